"""The player: many runs of a kind in a made-up world, as rows of one array. NOT PRIVATE.

A block learner needs no single slots: what a block adds to a row's private columns is drawn at once
(`worlds`). So a million slots are some tens of steps, in which all runs go together through the
kind's own functions, as rows go through an engine:

    fill      the private columns at a block's end, by the world, given what was in force
    draw      the release, by the kind, with seeded bits
    fold      the release into the public columns
    in_force  the action or policy of the next block

There are two ways to fill, by the columns that a kind keeps:

* `sums` alone: *all losses* are seen, whatever was in force. The losses of all slots are drawn
  before anything is played, so all learners and budgets see the same ones.
* `sums` and `shown`: only the shown action's loss is seen. Each request draws its action from what
  is in force; some outcomes may be known later (`late`, `delay`).

Bits are addressed by run and block, not by learner or ε (common random numbers), so ratios between
learners are sharper than their means. Resampling changes nothing here: a Bernoulli loss resampled
is itself.

Regret is Σ over slots of (the mean loss of what is in force − that of the yardstick): an
expectation over a slot's losses and over what a policy draws, with the same mean as the regret of
what was drawn, and less variance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - losses are made up: no secret
from numpy.typing import NDArray

from streamdp.core.arrays import Columns, Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.evidence import InForce
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import NULL
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.losses import prefixes
from streamdp.core.randomness import TAG_BYTES, Bits, Purpose, SeededRandomness
from streamdp.core.schedule import Schedule
from streamdp.lab.worlds import World

FEWEST_AT_ONCE = 64
_VALUES = 1 << 22  # of sums held at once: 32 MB
_MOST_SHARES = 1 << 22  # blocks × K


# -- what is random ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunBits:
    """The seeded bits of some runs."""

    source: SeededRandomness
    tags: NDArray[np.uint8]

    @classmethod
    def of(cls, seed: int, runs: range, *, number: int = 0) -> RunBits:
        """The bits of runs by their numbers, in one of several worlds."""
        source = SeededRandomness(seed)
        tags = b"".join(source.tag(_STREAM, number, b"%d" % run, 1, 0) for run in runs)
        return cls(source, np.frombuffer(tags, np.uint8).reshape(len(runs), TAG_BYTES))

    def __len__(self) -> int:
        """The number of runs."""
        return len(self.tags)

    def of_block(self, purpose: int, block: int) -> Bits:
        """One draw of every run."""
        return self.source.bits(
            _STREAM, purpose, self.tags, np.full(len(self.tags), block, dtype=np.int64)
        )


_STREAM = "simulate"


# -- blocks --------------------------------------------------------------------------------------


def ends_of(schedule: Schedule, horizon: int) -> Ints:
    """0, and the slots after which each block ends; the last one holds the horizon."""
    return np.asarray(schedule.starts(np.arange(schedule.block_of(horizon) + 2)) - 1)


def _columns(kind: Kind) -> set[str]:
    return {column.name for column in kind.fields}


def sees_all_losses(kind: Kind) -> bool:
    """Whether a kind sees the losses of all actions; refuse one that reads slots again."""
    if any(column.name == "sums" and not column.cleared for column in kind.fields):
        expected = "learners that look at blocks"
        raise InvalidConfig("simulate", "a running window", expected=expected, got=kind.recipe)
    return "sums" in (columns := _columns(kind)) and "shown" not in columns


# -- filling -------------------------------------------------------------------------------------


class Fill(Protocol):
    """Gives the private columns at the end of a block, given what was in force in it."""

    def __call__(self, block: int, in_force: InForce) -> Columns:
        """Called for each block in turn."""
        ...


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

    @classmethod
    def drawn(
        cls, world: World, kinds: Sequence[Kind], bits: RunBits, *, horizon: int, seed: Any
    ) -> LossPaths:
        """Sums between the cuts of these kinds, added up."""
        windows = {
            kind.schedule: _windows(kind.schedule, bits, horizon)
            for kind in kinds
            if "window" in _columns(kind)
        }
        fixed = np.tile(shared_cuts(world, kinds, horizon), (len(bits), 1))
        cuts = np.sort(np.concatenate([fixed, *windows.values()], axis=1), axis=1)
        before = np.concatenate([np.zeros_like(cuts[:, :1]), cuts[:, :-1]], axis=1)
        sums = world.sums(cuts - before, world.phases_of(before, horizon), default_rng(seed))
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

    def filling(self, kind: Kind, horizon: int, first: First = this_block) -> Fill:
        """What fills the columns of one kind."""
        ends = ends_of(kind.schedule, horizon).tolist()
        windows = self.windows[kind.schedule] if "window" in _columns(kind) else None

        def fill(block: int, in_force: InForce) -> Columns:
            until = ends[block + 1] if windows is None else windows[:, block]
            return {"sums": self.at(until) - self.at(ends[first(block)])}

        return fill


def shared_cuts(world: World, kinds: Sequence[Kind], horizon: int) -> Ints:
    """The slots where sums are always needed: the ends of blocks and of phases."""
    cuts = [_whole(kind.schedule, horizon) for kind in kinds]
    return np.unique(np.concatenate([*cuts, world.starts(horizon), [horizon]]))


def _whole(schedule: Schedule, horizon: int) -> Ints:
    """0, and the slots after which each block ends that does so within the horizon."""
    ends = ends_of(schedule, horizon)
    return ends[ends <= horizon]


def _windows(schedule: Schedule, bits: RunBits, horizon: int) -> Ints:
    """The slots after which the random prefix of each block ends; runs × blocks."""
    begins = _whole(schedule, horizon)
    ends = [
        begin + prefixes(np.full(len(bits), length), bits.of_block(Purpose.WINDOW, block))
        for block, (begin, length) in enumerate(
            zip(begins.tolist(), np.diff(begins).tolist(), strict=False)
        )
    ]
    return np.stack([*ends, np.full(len(bits), horizon)], axis=1)


@dataclass
class Shows:
    """Fills the columns of a kind that sees the loss of the shown action only."""

    world: World
    kind: PolicyLearner
    runs: int
    horizon: int
    delay: int
    generator: Generator
    known: dict[int, tuple[Ints, Ints]] = field(default_factory=dict)
    """Sums and shows by the block at whose end they are known."""

    def __call__(self, block: int, in_force: InForce) -> Columns:
        """Draw what is shown in a block; the columns are of what is known at its end."""
        world, generator = self.world, self.generator
        schedule = self.kind.schedule
        begin, end = schedule.start(block) - 1, schedule.stop(block) - 1
        chances = in_force / PARTS
        for at, slots in self._known_at(block, range(begin, min(end, self.horizon))):
            for phase, count in world.parts(slots, self.horizon):
                shown = generator.multinomial(count, chances)
                delayed = generator.binomial(shown, world.late)
                self._enter(at, shown - delayed, phase)
                if world.late:
                    self._enter(at + 1, delayed, phase)
        none = np.zeros((self.runs, world.actions), dtype=np.int64)
        sums, shows = self.known.pop(block, (none, none))
        return self.kind.totals(sums, shows)

    def _enter(self, block: int, shown: Ints, phase: int) -> None:
        gains = NULL * shown - self.world.shown_sums(shown, phase, self.generator)
        if block in self.known:
            before = self.known[block]
            gains, shown = before[0] + gains, before[1] + shown
        self.known[block] = gains, shown

    def _known_at(self, block: int, slots: range) -> Iterator[tuple[int, range]]:
        """A block's slots, by the block at whose end their outcomes are known."""
        first = slots.start
        while first < slots.stop:
            stop = min(slots.stop, self.kind.schedule.stop(block) - 1 - self.delay)
            if stop > first:
                yield block, range(first, stop)
                first = stop
            block += 1


# -- playing -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One block of some runs."""

    block: int
    slots: range  # numbered from 0; cut at the horizon
    in_force: InForce
    released: Ints | None  # at its end: runs × width; None if it ends after the horizon


def steps(kind: Kind, fill: Fill, bits: RunBits, *, horizon: int) -> Iterator[Step]:
    """Play some runs of one kind, all at once, block by block."""
    evidence, ends = kind.evidence, ends_of(kind.schedule, horizon).tolist()
    public = {
        column.name: np.zeros((len(bits), *column.shape), column.dtype)
        for column in evidence.fields
    }
    public |= evidence.opened(kind.opening(len(bits), partial(bits.of_block, block=0)))
    for block, (begin, end) in enumerate(pairwise(ends)):
        lengths = np.full(len(bits), end - begin)
        in_force = evidence.in_force(public, lengths)
        released = None
        if end <= horizon:
            private = fill(block, in_force)
            of_block = partial(bits.of_block, block=block)
            released = kind.draw(kind.releases[0].name, private, public, of_block)
        yield Step(block, range(begin, min(end, horizon)), in_force, released)
        if released is not None:
            public |= evidence.fold(public, released, lengths)


def mean_of(values: Floats, in_force: InForce) -> Floats:
    """The mean of a value of each action (K) under what is in force, by run."""
    if in_force.ndim == 1:
        return np.asarray(values[in_force])
    return np.asarray(in_force @ values / PARTS)


@dataclass(frozen=True)
class Walk:
    """What many runs of one kind had in force, and what it cost: blocks × runs."""

    kind: Kind
    horizon: int
    costs: Floats  # the regret of each block
    best: NDArray[np.float32]  # how likely the best action of the moment was shown
    shares: Floats | None  # blocks × K: how often each action was in force, mean over runs
    released: Ints  # what the first run released at the end of each whole block

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
        """The regret at the horizon of each run."""
        return np.asarray(self.costs.sum(axis=0))

    def found(self, share: float) -> Floats:
        """The share of runs, block by block, that show the best action at least so often."""
        return np.asarray((self.best >= share).mean(axis=1))

    def always(self, share: float, *, since: int) -> float:
        """The share of runs that show the best action at least so often in each block from a slot.

        Of those that do so at any one moment there are more.
        """
        later = self.best[np.searchsorted(self.starts, since) :]
        return float((later >= share).all(axis=0).mean())

    def settled(self, *, shown: float, runs: float) -> int | None:
        """The first slot from which on enough runs show the best action; None: not at all."""
        away = np.flatnonzero(self.found(shown) < runs)
        if not len(away):
            return 1
        return None if away[-1] == len(self.costs) - 1 else int(self.starts[away[-1] + 1])


def walks(
    kinds: Sequence[Kind],
    world: World,
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

    `number` tells worlds apart that are played under one seed. With `delay` the loss of a shown
    action is known this many slots later. `firsts`: how far back the last kinds look, which are
    baselines. `progress` is called with the number of runs that are done, of all kinds together.
    """
    whole = [kind for kind in kinds if sees_all_losses(kind)]
    looks_back = [this_block] * (len(kinds) - len(firsts)) + list(firsts)
    done = 0
    cuts = len(shared_cuts(world, whole, horizon)) if whole else 0
    at_once = max(1, _VALUES // (max(FEWEST_AT_ONCE, cuts) * world.actions))
    played = [_Tally(kind, world, horizon) for kind in kinds]
    for first in range(0, runs, at_once):
        which = range(first, min(first + at_once, runs))
        bits = RunBits.of(seed, which, number=number)
        origin = (seed, number, first)
        paths = LossPaths.drawn(world, whole, bits, horizon=horizon, seed=origin) if whole else None
        for kind, first_block, tally in zip(kinds, looks_back, played, strict=True):
            if paths is not None and sees_all_losses(kind):
                fill: Fill = paths.filling(kind, horizon, first_block)
            else:
                assert isinstance(kind, PolicyLearner)
                generator = default_rng(origin)
                fill = Shows(world, kind, len(which), horizon, delay, generator)
            tally.add(steps(kind, fill, bits, horizon=horizon))
            done += len(which)
            progress(done)
    return [tally.walk() for tally in played]


class _Tally:
    """Adds up what runs of one kind cost, some runs after others."""

    def __init__(self, kind: Kind, world: World, horizon: int) -> None:
        self._kind, self._world, self._horizon = kind, world, horizon
        self._costs: list[list[Floats]] = []
        self._best: list[list[NDArray[np.float32]]] = []
        blocks = kind.schedule.block_of(horizon) + 1
        few = blocks * world.actions <= _MOST_SHARES
        self._shares = np.zeros((blocks, world.actions)) if few else None
        self._runs = 0
        self._released: list[Ints] = []

    def add(self, steps: Iterator[Step]) -> None:
        world, horizon, runs = self._world, self._horizon, 0
        costs, best = [], []
        for step in steps:
            runs = len(step.in_force)
            costs.append(mean_of(world.costs(step.slots, horizon), step.in_force))
            shown = mean_of(world.best_in(step.slots, horizon), step.in_force)
            best.append(shown.astype(np.float32))
            if self._shares is not None:
                self._shares[step.block] += _counted(step.in_force, world.actions)
            if not self._runs and step.released is not None:
                self._released.append(step.released[0])
        self._costs.append(costs)
        self._best.append(best)
        self._runs += runs

    def walk(self) -> Walk:
        costs, best = (
            np.concatenate([np.array(some) for some in parts], axis=1)
            for parts in (self._costs, self._best)
        )
        width = self._kind.releases[0].width
        return Walk(
            self._kind,
            self._horizon,
            costs,
            best,
            None if self._shares is None else self._shares / self._runs,
            np.array(self._released, dtype=np.int64).reshape(-1, width),
        )


def _counted(in_force: InForce, actions: int) -> Floats:
    """How many runs show each action."""
    if in_force.ndim == 1:
        return np.bincount(in_force, minlength=actions).astype(np.float64)
    return np.asarray(in_force.sum(axis=0, dtype=np.int64) / PARTS)
