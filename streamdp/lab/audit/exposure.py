"""Finds what releases of the shipped engine are drawn from, for all streams over a few contents.

A `Design` describes the streams: T slots, of which some vary over an alphabet of contents while the
others are fixed, under every public header. The alphabet holds the extremes, where the worst case
lies, and, in short designs, unusable content. Each stream is run with every action that could have
been in force and with every outcome of the kind's own tosses (windows, resampled bits). All runs
are keys of one engine; frames alternate between one and three slots, and each batch is offered
twice, the second time to be refused. In one small design each slot of the last block, except its
last, is a batch of its own: an engine has a layout of its own for them (`engine.plan.Alone`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Batch
from streamdp.core.kinds.kind import Kind
from streamdp.core.randomness import Purpose
from streamdp.core.releases import Releases
from streamdp.lab.audit.around import engine_of
from streamdp.lab.audit.neighbours import Neighbours, Slots, neighbours_of
from streamdp.lab.audit.script import (
    Script,
    Scripted,
    ScriptedRandomness,
    Seen,
    key_of,
    runs_of,
    word_of,
)

MOST_RUNS = {"action": 60_000, "policy": 12_000}  # a policy is computed for each release
MOST_VARIED = 7
MOST_ALONE = 900  # runs whose slots are batches of their own
_SHORT, _LONG = 4, 24  # slots of designs with headers
_HEADERS = 256  # of a short design

Table = tuple[Ints, NDArray[np.intp]]
"""Different rows, and which of them each run has."""


@dataclass(frozen=True, slots=True)
class Design:
    """All streams over an alphabet in the varied slots, under headers, and all outcomes of chance.

    Runs are numbered (header, stream, chance, script): a script is the action in force by block.
    """

    slots: int
    blocks: int
    headers: Slots  # P × T × H: the public parts
    alphabet: Slots  # A × C
    varied: tuple[int, ...]  # slots, from 1
    fixed: Slots  # T × C: what the other slots hold
    scripts: Ints  # S × (B + 1)
    windows: Ints  # W × B: how many slots of each block count, minus the fewest possible
    choices: Ints  # B: how many windows each block has
    coins: Bools  # C × T × K
    alone: range = range(0)  # slots that are batches of their own, for each run

    @property
    def streams(self) -> int:
        """How many streams under each header."""
        return int(len(self.alphabet) ** len(self.varied))

    @property
    def chances(self) -> int:
        """How many equally likely outcomes of the kind's own tosses."""
        return len(self.windows) * len(self.coins)

    @property
    def runs(self) -> int:
        """How many runs."""
        return len(self.headers) * self.streams * self.chances * len(self.scripts)

    def contents(self) -> Slots:
        """(Headers · streams) × T × W: public parts and contents."""
        letters = np.indices((len(self.alphabet),) * len(self.varied))
        streams = np.repeat(self.fixed[None], self.streams, axis=0)
        for slot, letter in zip(self.varied, letters, strict=True):
            streams[:, slot - 1] = self.alphabet[letter.ravel()]
        public = np.repeat(self.headers, self.streams, axis=0)
        return np.concatenate([public, np.tile(streams, (len(self.headers), 1, 1))], axis=2)

    def script(self, actions: int) -> Script:
        """The outcomes of chance in each run."""
        windows = np.repeat(self.windows, len(self.coins), axis=0)
        coins = np.tile(self.coins, (len(self.windows), 1, 1))
        words = word_of(windows, np.broadcast_to(self.choices, windows.shape))
        last = np.zeros((len(words), 1), np.uint64)
        per_chance, each = len(self.scripts), len(self.headers) * self.streams
        return Script(
            many=actions,
            actions=np.tile(self.scripts, (each * self.chances, 1)),
            windows=np.tile(
                np.repeat(np.concatenate([words, last], axis=1), per_chance, axis=0), (each, 1)
            ),
            coins=np.tile(np.repeat(coins, per_chance, axis=0), (each, 1, 1)),
        )


@dataclass(frozen=True, slots=True)
class Exposure:
    """What the releases of an engine are drawn from in every run of a design."""

    design: Design
    seen: Seen
    public: Ints  # N × ·: slots and records that the releases name
    reads: dict[int, Table] = field(default_factory=dict, repr=False)
    """What the choices of each block read: a cache of `transcripts.laws`, for any mechanism."""


def exposed(kind: Kind, design: Design) -> Exposure:
    """Run the shipped engine with this kind, its chance replaced by scripts."""
    row = neighbours_of(kind)
    seen = Seen.nothing(kind, design.runs, design.blocks)
    script = design.script(len(kind.actions))
    engine = engine_of(Scripted(kind, seen).as_kind, ScriptedRandomness(script))
    public = np.full((design.runs, design.blocks, 4), -1, dtype=np.int64)
    per_stream = design.chances * len(design.scripts)
    for batch in arrivals(row, design, np.repeat(design.contents(), per_stream, axis=0)):
        _note(public, engine.apply_batch(batch), design)
        try:
            engine.apply_batch(batch)
        except InvalidConfig:
            continue  # a batch that comes again must be refused
    return Exposure(design, seen, public.reshape(design.runs, -1))


def arrivals(row: Neighbours, design: Design, slots: Slots) -> Iterator[Batch]:
    """N × T × W slots as batches: frames of all runs, except for slots that come alone."""
    runs, many, _ = slots.shape
    keys, numbers = [key_of(run) for run in range(runs)], np.arange(runs)
    if not design.alone:
        begin, records = 0, 0
        while begin < many:
            end = min(many, begin + (1, 3)[records % 2])
            index = np.repeat(numbers, end - begin)
            rows = slots[:, begin:end].reshape(len(index), -1)
            yield row.batch(keys, index, rows, index + records * runs, None)
            begin, records = end, records + 1
        return
    for slot in range(1, many + 1):
        rows, offsets = slots[:, slot - 1], numbers + slot * runs
        if slot not in design.alone:
            yield row.batch(keys, numbers, rows, offsets, None)
            continue
        for run in numbers.tolist():
            one = slice(run, run + 1)
            yield row.batch(keys[one], numbers[:1], rows[one], offsets[one], None)


def _note(public: Ints, releases: Releases, design: Design) -> None:
    """Note the slots and records that first releases name; records by their place in the stream."""
    ended = (releases.kind == 1) & (releases.block < public.shape[1])
    if not ended.any():
        return
    columns = (
        releases.start, releases.stop,
        releases.first_offset // design.runs, releases.last_offset // design.runs,
    )  # fmt: skip
    runs = runs_of(releases.keys)[ended]
    public[runs, releases.block[ended]] = np.stack([of[ended] for of in columns], axis=1)


# -- which streams ---------------------------------------------------------------------------------


def designs(kind: Kind) -> list[Design]:
    """A short design with unusable content, and a longer one over extremes.

    The short one ends after two blocks, the longer one after three. Where there are too many slots
    to vary them all, the ends of the blocks vary, because boundaries can be wrong there. With
    headers the short one has every header, the longer one some.
    """
    return [_design(kind, blocks=2, bad=True), _design(kind, blocks=3, bad=False)]


def slots_alone(kind: Kind) -> list[Design]:
    """A small design whose last block's slots, except its last, are batches of their own.

    Empty where a kind tosses bits for every slot: an engine then has one way for all slots.
    """
    row, schedule = neighbours_of(kind), kind.schedule
    if Purpose.RESAMPLE in row.tosses:
        return []
    blocks = 2 if schedule.stop(1) - schedule.start(1) > 2 else 3
    whole = _design(kind, blocks=blocks, bad=True)
    begin, end = schedule.start(blocks - 1), schedule.stop(blocks - 1)
    some = [
        *range(row.extremes),
        *range(row.extremes + 1, min(row.extremes + 3, len(row.contents))),
    ]
    made = replace(
        whole,
        headers=whole.headers[:: max(1, len(whole.headers) // 3)],
        alphabet=row.contents[some],
        varied=tuple(range(begin, end)),
        alone=range(begin, end - 1),
    )
    while len(made.varied) > 1 and made.runs > MOST_ALONE:
        made = replace(made, varied=made.varied[:-1])
    return [made]


def _design(kind: Kind, *, blocks: int, bad: bool) -> Design:
    row, schedule, actions = neighbours_of(kind), kind.schedule, len(kind.actions)
    slots = schedule.stop(blocks - 1) - 1
    tossed = Purpose.RESAMPLE in row.tosses
    alphabet = row.contents[: row.extremes + 1 if tossed else None]
    alphabet = alphabet if bad else alphabet[: row.extremes]
    inner = (
        product(range(actions), repeat=blocks)
        if row.acts
        else [(script,) * blocks for script in range(len(row.scripts()))]
    )
    choices, windows = _windows(kind, blocks)
    ends = [
        at for block in range(blocks) for at in (schedule.start(block), schedule.stop(block) - 1)
    ]
    order = tuple(dict.fromkeys([*ends, *range(1, slots + 1)]))[:MOST_VARIED]
    made = Design(
        slots=slots,
        blocks=blocks,
        headers=_headers(row, slots, every=bad),
        alphabet=alphabet,
        varied=order,
        fixed=alphabet[np.arange(slots) * 5 % row.extremes],
        scripts=np.array([(*script, 0) for script in inner]),
        windows=windows,
        choices=choices,
        coins=np.zeros((1, slots, actions), dtype=np.bool_),
    )
    sides = 2**actions if bad and tossed else 1
    most = MOST_RUNS[kind.evidence.answers]
    while len(made.varied) > 1 and made.runs * sides ** len(made.varied) > most:
        made = replace(made, varied=made.varied[:-1])
    places = sorted(made.varied)
    coins = _coins(slots, actions, places) if sides > 1 else made.coins
    return replace(made, varied=tuple(places), coins=coins)


def _headers(row: Neighbours, slots: int, *, every: bool) -> Slots:
    """P × T × H: every sequence of public parts over so many slots, or some long ones."""
    parts, many = row.headers, len(row.headers)
    if many == 1:
        return np.repeat(parts[None], slots, axis=1)
    steps = np.array([[slot * step % many for slot in range(slots)] for step in (1, 3, 5)])
    if every:
        first = min(slots, _SHORT)
        begun = np.array(list(product(range(many), repeat=first)))
        later = np.tile(steps[0, first:], (len(begun), 1))
        steps = np.concatenate([begun, later], axis=1)
        steps = steps[:: -(-len(steps) // _HEADERS)]
    return np.asarray(parts[steps])


def _windows(kind: Kind, blocks: int) -> tuple[Ints, Ints]:
    """How many windows each block has, and all combinations of them."""
    lengths = kind.schedule.lengths(np.arange(blocks))
    tossed = Purpose.WINDOW in neighbours_of(kind).tosses
    choices = lengths - lengths // 2 if tossed else np.ones_like(lengths)
    while int(np.prod(choices)) > 64:  # fix the longest block's window at its shortest
        choices[int(choices.argmax())] = 1
    return choices, np.array(list(product(*(range(many) for many in choices.tolist()))))


def _coins(slots: int, actions: int, places: list[int]) -> Bools:
    """All outcomes of resampling 1/2 in these slots."""
    outcomes = list(product((False, True), repeat=len(places) * actions))
    coins = np.zeros((len(outcomes), slots, actions), dtype=np.bool_)
    tossed = np.array(outcomes, dtype=np.bool_).reshape(len(outcomes), len(places), actions)
    coins[:, [slot - 1 for slot in places]] = tossed
    return coins
