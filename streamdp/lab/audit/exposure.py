"""Finds what selections of the shipped engine get to read, for all streams over a few contents.

A `Design` describes the streams: T slots, of which some vary over an alphabet of contents while the
others are fixed. The alphabet holds the vertices of [0,1]^K, where the worst case lies, and, in
short designs, unusable content: NaN, a row that is partly NaN, infinity, values outside [0,1]. Each
stream is run with every action that could have been in force and with every outcome of the
learner's own tosses (windows, resampled bits). All runs are keys of one engine; frames alternate
between one and three slots, and each batch is offered twice, the second time to be refused. In one
small design each slot of the last block, except its last, is a batch of its own: an engine has a
layout of its own for them (`engine.plan.Alone`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.engine import Engine
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import LossBatch, Releases
from streamdp.core.learners import Leader
from streamdp.core.regret import Estimate
from streamdp.core.schedule import Schedule
from streamdp.lab.audit.script import (
    Script,
    Scripted,
    ScriptedRandomness,
    Seen,
    key_of,
    runs_of,
    word_of,
)

MOST_RUNS = 60_000
MOST_VARIED = 7
MOST_ALONE = 900  # runs whose slots are batches of their own


@dataclass(frozen=True, slots=True)
class Design:
    """All streams over an alphabet in the varied slots, and all outcomes of chance.

    Runs are numbered (stream, chance, script): a script is the action in force in each block.
    """

    slots: int
    blocks: int
    alphabet: NDArray[np.float32]  # A × K
    varied: tuple[int, ...]  # slots, from 1
    fixed: NDArray[np.float32]  # T × K: what the other slots hold
    scripts: Ints  # S × (B + 1)
    windows: Ints  # W × B: how many slots of each block count, minus the fewest possible
    choices: Ints  # B: how many windows each block has
    coins: Bools  # C × T × K
    alone: range = range(0)  # slots that are batches of their own, for each run

    @property
    def streams(self) -> int:
        """How many streams."""
        return int(len(self.alphabet) ** len(self.varied))

    @property
    def chances(self) -> int:
        """How many equally likely outcomes of the learner's own tosses."""
        return len(self.windows) * len(self.coins)

    @property
    def runs(self) -> int:
        """How many runs."""
        return self.streams * self.chances * len(self.scripts)

    def losses(self) -> NDArray[np.float32]:
        """Streams × T × K."""
        letters = np.indices((len(self.alphabet),) * len(self.varied))
        streams = np.repeat(self.fixed[None], self.streams, axis=0)
        for slot, letter in zip(self.varied, letters, strict=True):
            streams[:, slot - 1] = self.alphabet[letter.ravel()]
        return streams

    def script(self) -> Script:
        """The outcomes of chance in each run."""
        windows = np.repeat(self.windows, len(self.coins), axis=0)
        coins = np.tile(self.coins, (len(self.windows), 1, 1))
        words = word_of(windows, np.broadcast_to(self.choices, windows.shape))
        last = np.zeros((len(words), 1), np.uint64)
        per_chance = len(self.scripts)
        return Script(
            actions=np.tile(self.scripts, (self.streams * self.chances, 1)),
            windows=np.tile(
                np.repeat(np.concatenate([words, last], axis=1), per_chance, axis=0),
                (self.streams, 1),
            ),
            coins=np.tile(np.repeat(coins, per_chance, axis=0), (self.streams, 1, 1)),
        )


@dataclass(frozen=True, slots=True)
class Exposure:
    """What the releases of an engine read in every run of a design."""

    design: Design
    seen: Seen
    statistics: Ints  # N × B × E: the exact numbers behind estimates; 0 where none is due
    reads: dict[int, tuple[Ints, NDArray[np.intp]]] = field(default_factory=dict, repr=False)
    """What the selections of each block read: the distinct rows, and the number of each run's row.

    A cache of `transcripts.laws`, for any choice."""


Subject = Callable[[Design], Exposure]
"""A subject of the audit: the shipped engine, or a broken one."""


def engine_subject(learner: Leader, estimates: tuple[Estimate, ...] = ()) -> Subject:
    """The shipped engine with this learner, its choice and chance replaced by scripts."""
    watched = replace(learner, choose=Scripted(), charge=Fraction(1))

    def run(design: Design) -> Exposure:
        seen = Seen.nothing(design.runs, design.blocks, len(learner.actions))
        engine = Engine(
            stream="audit",
            partition=0,
            learner=watched,
            estimates=estimates,
            budget=1 + sum((estimate.epsilon for estimate in estimates), Fraction(0)),
            randomness=ScriptedRandomness(design.script(), seen),
        )
        statistics = np.zeros((design.runs, design.blocks, len(estimates)), dtype=np.int64)
        per_stream = design.chances * len(design.scripts)
        for batch in arrivals(design, np.repeat(design.losses(), per_stream, axis=0)):
            _note(statistics, engine.apply_batch(batch))
            try:
                engine.apply_batch(batch)
            except InvalidConfig:
                continue  # a batch that comes again must be refused
        return Exposure(design, seen, statistics)

    return run


def arrivals(design: Design, losses: NDArray[np.float32]) -> Iterator[LossBatch]:
    """N × T × K losses as batches: frames of all runs, except for slots that come alone."""
    if not design.alone:
        yield from frames(losses)
        return
    runs, slots, _ = losses.shape
    keys, numbers = [key_of(run) for run in range(runs)], np.arange(runs)
    for slot in range(1, slots + 1):
        rows, offsets = losses[:, slot - 1], numbers + slot * runs
        if slot not in design.alone:
            yield LossBatch(keys, numbers, np.ascontiguousarray(rows), offsets)
            continue
        for run in numbers.tolist():
            one = slice(run, run + 1)
            yield LossBatch(keys[one], numbers[:1], rows[one], offsets[one])


def frames(losses: NDArray[np.float32]) -> list[LossBatch]:
    """N × T × K losses as records of alternately one and three slots, a batch for each."""
    runs, slots, actions = losses.shape
    keys = [key_of(run) for run in range(runs)]
    batches: list[LossBatch] = []
    begin = 0
    while begin < slots:
        end = min(slots, begin + (1, 3)[len(batches) % 2])
        index = np.repeat(np.arange(runs), end - begin)
        rows = np.ascontiguousarray(losses[:, begin:end]).reshape(-1, actions)
        batches.append(LossBatch(keys, index, rows, index + len(batches) * runs))
        begin = end
    return batches


def _note(statistics: Ints, releases: Releases) -> None:
    """Note the released estimates, whose noise is 0."""
    which = (releases.kind >= 2) & (releases.block < statistics.shape[1])
    if not which.any():
        return
    runs = runs_of(releases.keys)[which]
    statistics[runs, releases.block[which], releases.kind[which] - 2] = releases.value[which]


def designs(learner: Leader, estimates: tuple[Estimate, ...] = ()) -> list[Design]:
    """A short design with unusable content, and a longer one over vertices.

    The short one ends after two blocks, the longer one after three. Where there are too many slots
    to vary them all, the ends of the blocks vary, because boundaries can be wrong there.
    """
    acted = bool(learner.bonus or estimates)
    return [
        _design(learner, blocks=blocks, bad=bad, acted=acted)
        for blocks, bad in ((2, "with unusable content"), (3, "vertices"))
    ]


def slots_alone(learner: Leader, estimates: tuple[Estimate, ...] = ()) -> list[Design]:
    """A small design whose last block's slots, except its last, are batches of their own.

    Empty where a learner tosses bits for every slot: an engine then has one way for all slots.
    """
    if learner.resample == "bernoulli":
        return []
    acted = bool(learner.bonus or estimates)
    schedule = learner.schedule
    blocks = 2 if schedule.stop(1) - schedule.start(1) > 2 else 3
    whole = _design(learner, blocks=blocks, bad="with unusable content", acted=acted)
    begin, end = schedule.start(blocks - 1), schedule.stop(blocks - 1)
    corners = len(vertices(len(learner.actions)))
    alphabet = whole.alphabet[[*range(corners), corners + 1, corners + 2]]  # NaN once, 7 and -7
    varied = tuple(range(begin, end))
    while len(varied) > 1 and (
        len(alphabet) ** len(varied) * len(whole.scripts) * len(whole.windows) > MOST_ALONE
    ):
        varied = varied[:-1]
    return [replace(whole, alphabet=alphabet, varied=varied, alone=range(begin, end - 1))]


def _design(learner: Leader, *, blocks: int, bad: str, acted: bool) -> Design:
    schedule, actions = learner.schedule, len(learner.actions)
    slots = schedule.stop(blocks - 1) - 1
    tossed = learner.resample == "bernoulli"
    alphabet = vertices(actions)
    if bad != "vertices":
        alphabet = np.concatenate([alphabet, unusable(actions)[: 1 if tossed else 4]])
    inner = product(range(actions), repeat=blocks) if acted else [(0,) * blocks]
    scripts = np.array([(*script, 0) for script in inner])
    choices, windows = _windows(learner, blocks)
    varied = _varied(schedule, blocks, slots)
    halves = bad != "vertices" and tossed
    while len(varied) > 1 and (
        len(alphabet) ** len(varied)
        * len(scripts)
        * len(windows)
        * (2 ** (actions * len(varied)) if halves else 1)
        > MOST_RUNS
    ):
        varied = varied[:-1]
    places = sorted(varied)
    return Design(
        slots=slots,
        blocks=blocks,
        alphabet=alphabet,
        varied=tuple(places),
        fixed=alphabet[np.arange(slots) * 5 % 2**actions],
        scripts=scripts,
        windows=windows,
        choices=choices,
        coins=_coins(slots, actions, places if halves else []),
    )


def vertices(actions: int) -> NDArray[np.float32]:
    """The corners of [0,1]^K."""
    return np.array(list(product((0, 1), repeat=actions)), dtype=np.float32)


def unusable(actions: int) -> NDArray[np.float32]:
    """Rows with NaN, infinity, or values outside [0,1]."""
    rows = np.zeros((4, actions), dtype=np.float32)
    rows[0] = np.nan
    rows[1, 0] = np.nan
    rows[2, 0], rows[2, 1] = 7, -7
    rows[3, 1] = np.inf
    return rows


def _varied(schedule: Schedule, blocks: int, slots: int) -> list[int]:
    """The slots that may vary, the most telling first: the ends of blocks, then the rest."""
    ends = [
        at for block in range(blocks) for at in (schedule.start(block), schedule.stop(block) - 1)
    ]
    order = list(dict.fromkeys([*ends, *range(1, slots + 1)]))
    return order[:MOST_VARIED]


def _windows(learner: Leader, blocks: int) -> tuple[Ints, Ints]:
    """How many windows each block has, and all combinations of them."""
    lengths = learner.schedule.lengths(np.arange(blocks))
    choices = lengths - lengths // 2 if learner.window == "random_prefix" else np.ones_like(lengths)
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
