"""The player: many runs of a kind, as rows of one array, block by block. NOT PRIVATE.

A row is a run: of a made-up world, or a key of a log under a seed. All rows go together through the
kind's own functions, as rows go through an engine, so under the same bits and sums they make the
same releases, bit for bit:

    in_force  the action or policy of the next block
    fill      which rows end it, and with which private columns
    draw      the release, by the kind, with seeded bits
    fold      the release into the public columns

`play` is the only loop. What is played is a `Fill`: the sums of a log (`replay.grid`), its own
shown actions (`offpolicy.weighted`), its uniform draws (`offpolicy.rejection`), the losses of all
actions played as feedback (`offpolicy.exact`), or a made-up world, here and in `context_worlds`.
Whoever counts losses, values or charges listens to the steps.

A world is filled by the columns that a kind keeps:

* `sums` alone: *all losses* are seen, whatever was in force. The losses of all slots are drawn
  before anything is played, so all learners and budgets see the same ones.
* `sums` and `shown`: only the shown action's loss is seen. Each request draws its action from what
  is in force; some outcomes may be known later (`late`, `delay`).

A block learner needs no single slots: what a block adds is drawn at once (`worlds`), so a million
slots are some tens of steps. Bits are addressed by run and block, not by learner or ε (common
random numbers), so ratios between learners are sharper than their means. Resampling changes nothing
here: a Bernoulli loss resampled is itself.

Regret is Σ over slots of (the mean loss of what is in force − that of the yardstick): an
expectation over a slot's losses and over what a policy draws, with the same mean as the regret of
what was drawn, and less variance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from itertools import count, pairwise, zip_longest
from math import ceil, inf
from typing import Any, Protocol

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - losses are made up: no secret
from numpy.typing import NDArray

from streamdp.core.arrays import Columns, Floats, Ints, Words
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.evidence import InForce, PublicRow
from streamdp.core.evidence.experiment import Arms, Experiment
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.grid import NULL, UNIT
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.losses import Leader, prefixes
from streamdp.core.randomness import TAG_BYTES, WORD_BITS, Bits, Purpose, SeededRandomness
from streamdp.core.schedule import Schedule
from streamdp.lab.common.answer import Charge
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.mapped import longest_first
from streamdp.lab.worlds import World

FEWEST_AT_ONCE = 64
_VALUES = 1 << 23  # of sums held at once: 64 MB
_MOST_SHARES = 1 << 22  # blocks × K

_HEAD = 16  # such a part of the slots is the head of a run, which every run plays
_FEW_BLOCKS = 64  # behind the head; fewer cost nothing
_TRIED = 8  # such a part of the runs is played to the horizon at first
_FEWEST_WHOLE = 50  # runs that say how much the tails vary
_ADDED = 0.02  # of the variance of a mean regret: what is saved may add 1 % to its error


# -- the player ----------------------------------------------------------------------------------


class DealtBits(Protocol):
    """The seeded bits of rows."""

    def __call__(self, purpose: int, rows: Ints, block: int) -> Bits:
        """One draw of each of these rows, at the end of a block."""
        ...


class Fill(Protocol):
    """What happens in a block."""

    def __call__(self, block: int, rows: Ints, in_force: InForce) -> tuple[Ints, Columns]:
        """The places of the rows that end the block, and their private columns at its end.

        Called for each block in turn, with the rows that have come to it and what is in force.
        """
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One block of the rows that have come to it."""

    block: int
    rows: Ints
    in_force: InForce  # of each of them
    ended: Ints  # the places of those that end it
    released: Ints  # by these: n × width


def play(kind: Kind, size: int, fill: Fill, bits: DealtBits) -> Iterator[Step]:
    """Play so many rows of one kind, all at once, until none of them ends its block."""
    evidence, name, rows = kind.evidence, kind.releases[0].name, np.arange(size)
    public = {of.name: np.zeros((size, *of.shape), of.dtype) for of in evidence.fields}
    opening = kind.opening(size, partial(bits, rows=rows, block=0))
    public |= evidence.opened(opening)
    for block in count():
        came, lengths = rows, np.full(len(rows), kind.schedule.length_before(block + 1))
        in_force = evidence.in_force(public, lengths)
        ended, private = fill(block, rows, in_force)
        if len(ended) < len(rows):
            rows, lengths = rows[ended], lengths[ended]
            public = {column: of_rows[ended] for column, of_rows in public.items()}
        if not len(rows):
            yield Step(block, came, in_force, ended, opening[:0])
            return
        drawn = kind.draw(name, private, public, partial(bits, rows=rows, block=block))
        released = evidence.of_named(drawn)
        yield Step(block, came, in_force, ended, released)
        public |= evidence.fold(public, released, lengths)


def side_by_side(playing: Iterable[Iterator[Step]]) -> Iterator[tuple[int, Step]]:
    """The steps of several kinds, block by block: with which of them each is."""
    for steps in zip_longest(*playing):
        yield from ((at, step) for at, step in enumerate(steps) if step is not None)


NOBODY: tuple[Ints, Columns] = (np.zeros(0, np.int64), {})
"""Nobody ends this block."""


def charge_of(kind: Leader | PolicyLearner, slots: Ints) -> Charge:
    """The charge of keys with these numbers of slots."""
    closed = kind.schedule.blocks_of(slots + 1)
    charged = int((kind.schedule.starts(closed) - 1).sum())
    none = None if kind.charge is None else Fraction(0)
    epsilon = kind.charge if charged else none
    return Charge(epsilon, int(closed.sum()), charged, int(slots.sum()) - charged)


def of_first_row(step: Step) -> Ints:
    """What the first row released, if it has come to this block and ended it: 0 or 1 × width."""
    first = len(step.ended) > 0 and step.rows[step.ended[0]] == 0
    return step.released[: int(first)]


def drawn(policies: Policy, which: Ints, coins: Ints) -> Ints:
    """The arm that each coin draws from one of some policies; coins are uniform in [0, 2**24).

    >>> halves = np.array([[PARTS // 2, PARTS // 2], [0, PARTS]], dtype=np.uint32)
    >>> drawn(halves, np.array([0, 0, 1]), np.array([0, PARTS // 2, 0])).tolist()
    [0, 1, 1]
    """
    arms = policies.shape[1]
    upto = np.cumsum(policies, axis=1, dtype=np.int64)
    upto += PARTS * np.arange(len(policies))[:, None]
    places = np.searchsorted(upto.ravel(), coins + PARTS * which, side="right")
    drawn_arms: Ints = places - which * arms
    return drawn_arms


def coins_of(bench: Bench) -> list[Generator]:
    """Each seed's random generator for the draws of requests."""
    return [default_rng((int(seed < 0), abs(seed))) for seed in bench.seeds]


def likely_best(kind: PolicyLearner, released: Ints) -> Arms | None:
    """Some releases of one row as its page would show them; None where arms are of many cells."""
    if isinstance(kind.rule, ContextModel):
        return None
    scale = Fraction(0) if kind.sums_scale is None else kind.sums_scale / UNIT
    experiment = Experiment.of(scale, pairs=kind.pairs, actions=len(kind.actions))
    row = PublicRow.opened(kind.evidence, np.zeros(2 * len(kind.actions), dtype=np.int64))
    for numbers, length in zip(
        released, kind.schedule.lengths(np.arange(len(released))), strict=True
    ):
        experiment.add(numbers)
        row.fold(numbers, int(length))
    return experiment.arms().by(row.likely_best())


# -- what is random ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunBits:
    """The seeded bits of some runs.

    Those that were asked for last are kept: kinds that are played side by side share them.
    """

    source: SeededRandomness
    tags: NDArray[np.uint8]
    newest: dict[tuple[int, int], tuple[Ints, HeldBits]] = field(default_factory=dict)

    @classmethod
    def of(cls, seed: int, runs: range, *, number: int = 0) -> RunBits:
        """The bits of runs by their numbers, in one of several worlds."""
        source = SeededRandomness(seed)
        tags = b"".join(source.tag(_STREAM, number, b"%d" % run, 1, 0) for run in runs)
        return cls(source, np.frombuffer(tags, np.uint8).reshape(len(runs), TAG_BYTES))

    def __len__(self) -> int:
        """The number of runs."""
        return len(self.tags)

    def __call__(self, purpose: int, rows: Ints, block: int) -> Bits:
        """One draw of some runs."""
        held = self.newest.get((purpose, block))
        if held is None or not np.array_equal(held[0], rows):
            bits = self.source.bits(
                _STREAM, purpose, self.tags[rows], np.full(len(rows), block, dtype=np.int64)
            )
            held = rows, HeldBits([bits], np.array([0, len(rows)]))
            self.newest.clear()
            self.newest[purpose, block] = held
        return held[1]


_STREAM = "simulate"


_WORDS = 1 << 22  # of bits that are held at once: 32 MB


@dataclass(frozen=True, slots=True)
class KeyPart:
    """Keys and seeds that are played together: a row for each, key after key, by seed."""

    keys: Ints  # the longest first
    seeds: range  # places in a bench

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.keys) * len(self.seeds)

    @classmethod
    def all(cls, slots: Ints, seeds: int, *, words: int) -> Iterator[KeyPart]:
        """Keys with these numbers of slots in parts that fit in memory; a draw has `words`."""
        many = max(1, _WORDS // (words * _seeds_together(seeds, words)))
        order = longest_first(slots)
        for first in range(0, len(order), many):
            yield from cls.of_seeds(order[first : first + many], seeds, words=words)

    @classmethod
    def of_seeds(cls, keys: Ints, seeds: int, *, words: int) -> Iterator[KeyPart]:
        """Keys that are played together, under all seeds."""
        together = _seeds_together(seeds, words)
        for seed in range(0, seeds, together):
            yield cls(keys, range(seed, min(seed + together, seeds)))

    def ending(self, rows: Ints, closed: Ints, block: int) -> tuple[Ints, Ints]:
        """The keys that end a block under all seeds, and the places of their rows."""
        seeds, keys = len(self.seeds), int(np.count_nonzero(closed > block))
        places = len(rows) // seeds * np.arange(seeds)[:, None] + np.arange(keys)
        return self.keys[:keys], places.reshape(-1)


def _seeds_together(seeds: int, words: int) -> int:
    return max(1, min(seeds, _WORDS // words))


class KeyBits:
    """The bits of keys under seeds, as a live stream addresses them: key after key, by seed.

    Those that were asked for last are kept: kinds that are played side by side share them.
    """

    __slots__ = ("_many", "_newest", "_sources", "_stream", "_tags")

    def __init__(self, tags: NDArray[np.uint8], bench: Bench, part: KeyPart) -> None:
        """The tags are those of the keys of a part, under all seeds of the bench."""
        seeds = slice(part.seeds.start, part.seeds.stop)
        tags = np.ascontiguousarray(tags[:, seeds].swapaxes(0, 1))
        self._tags = tags.reshape(-1, TAG_BYTES).view(f"V{TAG_BYTES}")[:, 0]
        self._many, self._stream = len(part.keys), bench.stream
        self._sources = bench.randomness()[seeds]
        self._newest: dict[tuple[int, int], tuple[Ints, HeldBits]] = {}

    def __len__(self) -> int:
        """The number of rows: one for each key and seed."""
        return len(self._tags)

    def __call__(self, purpose: int, rows: Ints, block: int) -> Bits:
        """One draw of some rows, in rising order."""
        held = self._newest.get((purpose, block))
        if held is None or not np.array_equal(held[0], rows):
            held = rows, self.at(purpose, rows, np.full(len(rows), block, dtype=np.int64))
            self._newest = {(purpose, block): held}
        return held[1]

    def at(self, purpose: int, rows: Ints, blocks: Ints) -> HeldBits:
        """One draw of some rows, in rising order, at the end of each one's block."""
        ends = np.searchsorted(rows, self._many * np.arange(len(self._sources) + 1))
        tags = self._tags[rows].view(np.uint8).reshape(-1, TAG_BYTES)
        parts = [
            source.bits(self._stream, purpose, tags[first:end], blocks[first:end])
            for source, (first, end) in zip(self._sources, pairwise(ends.tolist()), strict=True)
        ]
        return HeldBits(parts, ends)


class HeldBits:
    """The bits of several sources, one after the other; words that were read are kept."""

    __slots__ = ("_ends", "_parts", "_words")

    width = WORD_BITS

    def __init__(self, parts: Sequence[Bits], ends: Ints) -> None:
        self._parts, self._ends = parts, ends  # 0, and the draw after the last of each
        self._words = np.empty((0, self.rows), dtype=np.uint64)  # as the race reads them

    @property
    def rows(self) -> int:
        """How many draws."""
        return int(self._ends[-1])

    def words(self, start: int, count: int) -> Words:
        """Rows × `count` words of level 0."""
        if (have := len(self._words)) < start + count:
            words = np.empty((start + count, self.rows), dtype=np.uint64)
            words[:have] = self._words
            for part, (first, end) in zip(self._parts, pairwise(self._ends.tolist()), strict=True):
                words[have:, first:end] = part.words(have, start + count - have).T
            self._words = words
        return self._words[start : start + count].T

    def more(self, row: int, position: int, level: int) -> int:
        """The 64 bits that continue a word, from the draw's own source."""
        at = int(np.searchsorted(self._ends, row, side="right")) - 1
        return self._parts[at].more(row - int(self._ends[at]), position, level)

    def part(self, start: int, stop: int) -> Bits:
        """The draws [start, stop) alone."""
        return PartOfBits(self, start, min(stop, self.rows))


@dataclass(frozen=True, slots=True)
class PartOfBits:
    """Some draws of held bits."""

    held: HeldBits
    start: int
    stop: int
    width: int = WORD_BITS

    @property
    def rows(self) -> int:
        """How many draws."""
        return self.stop - self.start

    def words(self, start: int, count: int) -> Words:
        """Rows × `count` words of level 0."""
        return self.held.words(start, count)[self.start : self.stop]

    def more(self, row: int, position: int, level: int) -> int:
        """The 64 bits that continue a word."""
        return self.held.more(self.start + row, position, level)

    def part(self, start: int, stop: int) -> Bits:
        """The draws [start, stop) alone."""
        return self.held.part(self.start + start, min(self.start + stop, self.stop))


# -- blocks --------------------------------------------------------------------------------------


def ends_of(schedule: Schedule, horizon: int) -> Ints:
    """0, and the slots after which each block ends; the last one holds the horizon."""
    return np.asarray(schedule.starts(np.arange(schedule.block_of(horizon) + 2)) - 1)


def slots_of(schedule: Schedule, block: int, horizon: int) -> range:
    """The slots of a block, numbered from 0, up to the horizon."""
    return range(schedule.start(block) - 1, min(schedule.stop(block) - 1, horizon))


def _columns(kind: Kind) -> set[str]:
    return {column.name for column in kind.fields}


def sees_all_losses(kind: Kind) -> bool:
    """Whether a kind sees the losses of all actions; refuse one that reads slots again."""
    if any(column.name == "sums" and not column.cleared for column in kind.fields):
        expected = "learners that look at blocks"
        raise InvalidConfig("simulate", "a running window", expected=expected, got=kind.recipe)
    return "sums" in (columns := _columns(kind)) and "shown" not in columns


# -- filling -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Courses:
    """The worlds that some runs are in: each is in one of them, in turn."""

    worlds: Sequence[World]
    of_runs: Ints

    def rows(self) -> Iterator[tuple[World, Ints]]:
        """Each world, and the places of its runs."""
        for at, world in enumerate(self.worlds):
            yield world, np.flatnonzero(self.of_runs == at)


First = Callable[[int], int]
"""At the end of a block: the first of the blocks whose losses count."""


def this_block(block: int) -> int:
    """The first block whose sums count when a block ends: a private learner's is this one."""
    return block


@dataclass(frozen=True)
class LossPaths:
    """Cumulative sums of the losses of each run, at the slots where some kinds look at them."""

    cuts: Ints  # runs × C, rising
    sums: Ints  # C × runs × K, on the grid
    windows: Mapping[Schedule, Ints]  # the slot after which each block's random prefix ends
    newest: dict[object, dict[int, Ints]] = field(default_factory=dict)  # sums of a block

    @classmethod
    def drawn(
        cls,
        courses: Courses,
        looking: Sequence[tuple[Kind, int]],
        bits: RunBits,
        *,
        horizon: int,
        seed: Any,
    ) -> LossPaths:
        """Sums between the cuts of these kinds, each up to a slot of its own, added up."""
        drawing = [(kind.schedule, stop) for kind, stop in looking if "window" in _columns(kind)]
        windows = {
            schedule: _windows(schedule, bits, stop)
            for schedule, stop in sorted(drawing, key=lambda of: of[1])
        }
        fixed = np.tile(shared_cuts(courses.worlds, looking, horizon), (len(bits), 1))
        cuts = np.sort(np.concatenate([fixed, *windows.values()], axis=1), axis=1)
        before = np.concatenate([np.zeros_like(cuts[:, :1]), cuts[:, :-1]], axis=1)
        sums = np.empty((*cuts.shape, courses.worlds[0].actions), dtype=np.int64)
        generator = default_rng(seed)
        for world, mine in courses.rows():
            phases = world.phases_of(before[mine], horizon)
            sums[mine] = world.sums((cuts - before)[mine], phases, generator)
        return cls(cuts, np.cumsum(sums.transpose(1, 0, 2), axis=0), windows)

    @cached_property
    def shared(self) -> bool:
        """Whether all runs have the same cuts."""
        return bool((self.cuts == self.cuts[0]).all())

    def at(self, slots: Ints | int) -> Ints:
        """The sums of each run after so many slots, which must be one of its cuts."""
        if self.shared and isinstance(slots, int):
            return np.asarray(self.sums[np.searchsorted(self.cuts[0], slots)])
        place = (self.cuts < np.reshape(slots, (-1, 1))).sum(axis=1)
        return np.asarray(self.sums[place, np.arange(len(self.cuts))])

    def filling(self, kind: Kind, stop: int, first: First = this_block) -> Fill:
        """What fills the columns of one kind, up to a slot.

        The newest sums are kept: kinds that are played side by side share them.
        """
        ends = ends_of(kind.schedule, stop).tolist()
        windows = self.windows[kind.schedule] if "window" in _columns(kind) else None
        newest = self.newest.setdefault((kind.schedule, windows is None, first), {})

        def fill(block: int, rows: Ints, in_force: InForce) -> tuple[Ints, Columns]:
            if block + 1 >= len(ends) or ends[block + 1] > stop:
                return NOBODY
            if block not in newest:
                newest.clear()
                until = ends[block + 1] if windows is None else windows[:, block]
                newest[block] = self.at(until) - self.at(ends[first(block)])
            return rows, {"sums": newest[block]}

        return fill


def shared_cuts(worlds: Sequence[World], looking: Sequence[tuple[Kind, int]], horizon: int) -> Ints:
    """The slots where sums are always needed: the ends of blocks and of phases."""
    cuts = [_whole(kind.schedule, stop) for kind, stop in looking]
    cuts += [world.starts(horizon) for world in worlds]
    every, last = np.unique(np.concatenate(cuts)), max(stop for _, stop in looking)
    return np.append(every[every < last], last)


def _whole(schedule: Schedule, horizon: int) -> Ints:
    """0, and the slots after which each block ends that does so within the horizon."""
    ends = ends_of(schedule, horizon)
    return ends[ends <= horizon]


def _windows(schedule: Schedule, bits: RunBits, horizon: int) -> Ints:
    """The slots after which the random prefix of each block ends; runs × blocks."""
    begins = _whole(schedule, horizon)
    ends = [
        begin
        + prefixes(np.full(len(bits), length), bits(Purpose.WINDOW, np.arange(len(bits)), block))
        for block, (begin, length) in enumerate(
            zip(begins.tolist(), np.diff(begins).tolist(), strict=False)
        )
    ]
    return np.stack([*ends, np.full(len(bits), horizon)], axis=1)


@dataclass
class Shows:
    """Fills the columns of a kind that sees the loss of the shown action only."""

    courses: Courses
    kind: PolicyLearner
    horizon: int
    stop: int  # the last slot that is played
    delay: int
    generator: Generator
    known: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)
    """Sums and shows by the block at whose end they are known."""

    def __call__(self, block: int, rows: Ints, in_force: InForce) -> tuple[Ints, Columns]:
        """Draw what is shown in a block; the columns are of what is known at its end."""
        schedule, generator = self.kind.schedule, self.generator
        begin, end = schedule.start(block) - 1, schedule.stop(block) - 1
        if end > self.stop:
            return NOBODY
        chances = in_force / PARTS
        for at, slots in self._known_at(block, range(begin, end)):
            for world, mine in self.courses.rows():
                for phase, many in world.parts(slots, self.horizon):
                    shown = generator.multinomial(many, chances[mine])
                    delayed = generator.binomial(shown, world.late)
                    for later, some in ((0, shown - delayed), (1, delayed)):
                        if not later or world.late:
                            gains, shows = self._known(at + later)
                            lost = world.shown_sums(some, phase, generator)
                            gains[mine] += NULL * some - lost
                            shows[mine] += some
        known = self._known(block)
        del self.known[block]
        return rows, totals(self.kind, *known)

    def _known(self, block: int) -> tuple[Ints, Ints]:
        shape = len(self.courses.of_runs), len(self.kind.actions)
        nothing = np.zeros((2, *shape), dtype=np.int64)
        return self.known.setdefault(block, (nothing[0], nothing[1]))

    def _known_at(self, block: int, slots: range) -> Iterator[tuple[int, range]]:
        """A block's slots, by the block at whose end their outcomes are known."""
        first = slots.start
        while first < slots.stop:
            stop = min(slots.stop, self.kind.schedule.stop(block) - 1 - self.delay)
            if stop > first:
                yield block, range(first, stop)
                first = stop
            block += 1


# -- what worlds cost ----------------------------------------------------------------------------


def mean_of(values: Floats, in_force: InForce) -> Floats:
    """The mean of a value of each action (runs × K) under what is in force, by run."""
    if in_force.ndim == 1:
        return np.asarray(values[np.arange(len(values)), in_force])
    return np.asarray(np.einsum("rk,rk->r", in_force / PARTS, values))


@dataclass(frozen=True)
class Walk:
    """What many runs of one kind had in force, and what it cost: blocks × runs.

    The first `whole` runs were played to the horizon, the others `head` blocks: there they have the
    mean of those that were.
    """

    kind: Kind
    horizon: int
    costs: Floats  # the regret of each block
    best: NDArray[np.float32]  # how likely the best action of the moment was shown
    shares: Floats | None  # blocks × K: how often each action was in force, mean over runs
    released: Ints  # what the first run released at the end of each whole block
    head: int
    whole: int

    @property
    def starts(self) -> Ints:
        """The first slot of each block."""
        return self.kind.schedule.starts(np.arange(len(self.costs)))

    @property
    def lengths(self) -> Ints:
        """The number of slots of each block, up to the horizon."""
        return np.diff(self.starts, append=self.horizon + 1)

    @property
    def regret(self) -> Floats:
        """The regret at the horizon of each run.

        Where some runs are played in part, the others count for them behind the head. So the mean
        and its standard error are those of both estimates together (double sampling).
        """
        regret, whole = self.costs.sum(axis=0), self.whole
        tails = self.costs[self.head :, :whole].sum(axis=0)
        regret[:whole] += (len(regret) / whole - 1) * (tails - tails.mean())
        return np.asarray(regret)

    def found(self, share: float) -> Floats:
        """The share of runs, block by block, that show the best action at least so often."""
        shown = self.best >= share
        tail = shown[self.head :, : self.whole]
        return np.concatenate([shown[: self.head].mean(axis=1), tail.mean(axis=1)])

    def always(self, share: float, *, since: int) -> float:
        """The share of runs that show the best action at least so often in each block from a slot.

        Of those that do so at any one moment there are more.
        """
        later = self.best[np.searchsorted(self.starts, since) :, : self.whole]
        return float((later >= share).all(axis=0).mean())


def walks(
    kinds: Sequence[Kind],
    world: World | Sequence[World],
    *,
    runs: int,
    horizon: int,
    seed: int,
    number: int = 0,
    delay: int = 0,
    firsts: Sequence[First] = (),
    progress: Callable[[int], None] = lambda runs: None,
) -> list[Walk]:
    """Play many runs of some kinds in one world, as many at once as fit in memory.

    Where nothing changes, nearly all blocks of a long run of votes come when the action in force is
    settled. So at first an eighth of the runs is played to the horizon, then twice as many, until
    the tails of all others add no more than `_ADDED` to the variance of the mean regret.

    Of several worlds with as many actions, each run is in the next one. `number` tells worlds apart
    that are played under one seed. With `delay` the loss of a shown action is known this many slots
    later. `firsts`: how far back the last kinds look, which are baselines. `progress` is called
    with the number of runs that are done, of all kinds together.
    """
    looks_back = [this_block] * (len(kinds) - len(firsts)) + list(firsts)
    worlds = [world] if isinstance(world, World) else world
    played = [_Tally(kind, worlds, horizon) for kind in kinds]
    first = 0
    while first < runs:
        needed = (tally.needed(runs) for tally in played)
        more = [whole for whole in needed if first < whole < inf]
        last = min(runs, 2 * first or ceil(min(more))) if more else runs
        stops = [tally.stop(runs) for tally in played]
        looking = [of for of in zip(kinds, stops, strict=True) if sees_all_losses(of[0])]
        cuts = len(shared_cuts(worlds, looking, horizon)) if looking else 0
        at_once = max(1, _VALUES // (max(FEWEST_AT_ONCE, cuts) * worlds[0].actions))
        while first < last:
            which = range(first, min(first + at_once, last))
            bits = RunBits.of(seed, which, number=number)
            courses = Courses(worlds, np.array(which) % len(worlds))
            origin, paths = (seed, number, first), None
            if looking:
                paths = LossPaths.drawn(courses, looking, bits, horizon=horizon, seed=origin)
            playing = []
            for kind, stop, first_block in zip(kinds, stops, looks_back, strict=True):
                if paths is not None and sees_all_losses(kind):
                    fill: Fill = paths.filling(kind, stop, first_block)
                else:
                    assert isinstance(kind, PolicyLearner)
                    generator = default_rng(origin)
                    fill = Shows(courses, kind, horizon, stop, delay, generator)
                playing.append(play(kind, len(bits), fill, bits))
            for at, step in side_by_side(playing):
                played[at].take(step, courses)
            for tally in played:
                tally.finish(len(which))
            first = which.stop
            progress(first * len(kinds))
    return [tally.walk() for tally in played]


class _Tally:
    """Adds up what runs of one kind cost, some runs after others."""

    def __init__(self, kind: Kind, worlds: Sequence[World], horizon: int) -> None:
        self._kind, self._horizon = kind, horizon
        ends = np.minimum(ends_of(kind.schedule, horizon), horizon)
        self._of_blocks = [  # worlds × blocks × K
            np.stack([of(world, ends, horizon) for world in worlds])
            for of in (World.costs, World.best_in)
        ]
        blocks, actions = len(ends) - 1, worlds[0].actions
        self._head = kind.schedule.block_of(horizon // _HEAD + 1) + 1
        few, changes = blocks - self._head < _FEW_BLOCKS, any(world.later for world in worlds)
        if few or changes or not sees_all_losses(kind):  # a policy's tail varies more than its head
            self._head = blocks  # all runs are played to the horizon
        self._shares = np.zeros((blocks, actions)) if blocks * actions <= _MOST_SHARES else None
        self._found: list[list[Floats]] = []  # cost and best of some runs, by block
        self._heads: list[Floats] = []  # cost and best × blocks × runs
        self._tails: list[Floats] = []
        self._runs = self._whole = 0
        self._released: list[Ints] = []

    def needed(self, runs: int) -> float:
        """How many of so many runs must be played to the horizon, as far as is known."""
        if self._head == self._of_blocks[0].shape[1]:
            return inf
        if self._whole < self._runs:  # they were enough
            return self._whole
        if self._whole < _FEWEST_WHOLE:
            return max(_FEWEST_WHOLE, runs / _TRIED)
        head, tail = (
            np.concatenate([costs.sum(axis=0) for costs, _ in parts])
            for parts in (self._heads, self._tails)
        )
        return float(tail.var() * runs / max(_ADDED * (head + tail).var(), 1e-300))

    def stop(self, runs: int) -> int:
        """The last slot that the next ones of so many runs are played to."""
        return self._horizon if self._whole < self.needed(runs) else self._horizon // _HEAD

    def take(self, step: Step, courses: Courses) -> None:
        """Take the next block of some runs."""
        if step.block == self._of_blocks[0].shape[1]:
            return
        runs = courses.of_runs
        self._found.append([mean_of(of[runs, step.block], step.in_force) for of in self._of_blocks])
        if self._shares is not None:
            self._shares[step.block] += _counted(step.in_force, self._shares.shape[1])
        if not self._runs:
            self._released.append(of_first_row(step))

    def finish(self, runs: int) -> None:
        """These runs were played, to the horizon or to the end of the head."""
        blocks = len(self._found)
        values = np.array(self._found).transpose(1, 0, 2)
        self._found = []
        self._heads.append(values[:, : self._head])
        self._runs += runs
        if blocks == self._of_blocks[0].shape[1]:
            self._whole += runs
            if blocks > self._head:
                self._tails.append(values[:, self._head :])

    def walk(self) -> Walk:
        """All runs that were added."""
        blocks, whole = self._of_blocks[0].shape[1], self._whole
        values = np.empty((2, blocks, self._runs))
        values[:, : self._head] = np.concatenate(self._heads, axis=2)
        if self._tails:
            tails = np.concatenate(self._tails, axis=2)
            values[:, self._head :, :whole] = tails
            values[:, self._head :, whole:] = tails.mean(axis=2, keepdims=True)
        counted = np.where(np.arange(blocks) < self._head, self._runs, whole)
        return Walk(
            self._kind,
            self._horizon,
            values[0],
            values[1].astype(np.float32),
            None if self._shares is None else self._shares / counted[:, None],
            np.concatenate(self._released),
            self._head,
            whole,
        )


def _counted(in_force: InForce, actions: int) -> Floats:
    """How many runs show each action."""
    if in_force.ndim == 1:
        return np.bincount(in_force, minlength=actions).astype(np.float64)
    return np.asarray(in_force.sum(axis=0, dtype=np.int64) / PARTS)


def totals(kind: PolicyLearner, gains: Ints, shown: Ints) -> Columns:
    """The private columns of blocks with these exact sums of centred gains, and counts."""
    return kind.added(gains, shown)
