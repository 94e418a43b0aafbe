"""One learner on losses that are made up block by block: the basis of plans and claims.

A block learner looks only at sums over windows, so losses need not be made slot by slot: a *world*
draws the sums over n slots exactly (binomial for Bernoulli losses), and the shipped mechanism
selects from them with seeded bits. Regret is in expectation over the losses of the slots that are
played (pseudo-regret): Σ gap of the action in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - losses are made up: no secret
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence import Standing
from streamdp.core.grid import UNIT
from streamdp.core.learners import Leader
from streamdp.core.randomness import Bits, Purpose, SeededRandomness, uniform_integers

_MOST_KEPT = 1 << 22
"""Sums that are kept for later walks: 32 MB; what is beyond them is drawn again."""


class LossWorld(Protocol):
    """A distribution of loss vectors, the same in every slot."""

    @property
    def means(self) -> Floats:
        """The mean loss of each action."""
        ...

    def sums(self, slots: Ints, generator: Generator) -> Ints:
        """The sums over the given number of slots for each run, on the grid: runs × K."""
        ...


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """Independent losses of 0 or 1. Resampling them changes nothing."""

    means: Floats

    def sums(self, slots: Ints, generator: Generator) -> Ints:
        """Binomial counts."""
        counts = generator.binomial(slots[:, None], self.means[None, :])
        return np.asarray(counts, dtype=np.int64) * UNIT


@dataclass(frozen=True, slots=True)
class DrawnOnce:
    """A world whose losses are drawn once for all walks that ask alike: of one seed and horizon.

    What a generator draws follows from its state, which is set as if it had drawn again.
    """

    world: LossWorld
    _drawn: dict[tuple[bytes, str], tuple[Ints, Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def means(self) -> Floats:
        """Those of the world."""
        return self.world.means

    def sums(self, slots: Ints, generator: Generator) -> Ints:
        """As the world has them."""
        state = generator.bit_generator
        asked = slots.tobytes(), repr(state.state)
        if asked in self._drawn:
            sums, state.state = self._drawn[asked]
            return sums
        sums = self.world.sums(slots, generator)
        if sum(kept.size for kept, _ in self._drawn.values()) + sums.size <= _MOST_KEPT:
            self._drawn[asked] = sums, state.state
        return sums


@dataclass(frozen=True, slots=True)
class Constant:
    """The same loss vector in every slot: the deterministic setting of Wu & Wang 2026, §4."""

    means: Floats

    def sums(self, slots: Ints, generator: Generator) -> Ints:
        """The loss vector times the number of slots."""
        return slots[:, None] * np.rint(self.means * UNIT).astype(np.int64)[None, :]


@dataclass(frozen=True, slots=True)
class Walk:
    """The actions in force of many runs: [0] the openings, [b + 1] after block b."""

    leader: Leader
    gaps: Floats
    horizon: int
    actions: Ints  # (blocks + 1) × runs

    @property
    def starts(self) -> Ints:
        """The first slot in which each choice is in force."""
        return self.leader.schedule.starts(np.arange(len(self.actions)))

    @property
    def lengths(self) -> Ints:
        """The number of slots, up to the horizon, for which each choice is in force."""
        return np.diff(self.starts, append=self.horizon + 1)

    @property
    def right(self) -> Floats:
        """The share of runs with a best action in force, by choice."""
        return np.asarray((self.gaps[self.actions] == 0).mean(axis=1))

    @property
    def costs(self) -> Floats:
        """The regret of each choice in each run."""
        return np.asarray(self.gaps[self.actions] * self.lengths[:, None])

    @property
    def regret(self) -> Floats:
        """The regret at the horizon of each run."""
        return np.asarray(self.costs.sum(axis=0))

    def settled(self, share: float) -> int | None:
        """The first slot from which on a best action is in force in this share of the runs."""
        away = np.flatnonzero(self.right < share)
        if not len(away):
            return 1
        return None if away[-1] == len(self.right) - 1 else int(self.starts[away[-1] + 1])


def walk(leader: Leader, world: LossWorld, *, horizon: int, runs: int, seed: int) -> Walk:
    """Simulate many runs of one learner in one world."""
    source, stream = SeededRandomness(seed), "walk"
    tags = _tags(stream, seed, runs)

    def bits(purpose: int, block: int) -> Bits:
        return source.bits(stream, purpose, tags, np.full(runs, block, dtype=np.int64))

    generator = default_rng(seed)
    blocks = leader.schedule.block_of(horizon)
    starts = leader.schedule.starts(np.arange(blocks + 1))
    K = len(leader.actions)
    opening = uniform_integers(bits(Purpose.OPENING, 0), np.full(runs, K))
    known = Standing(opening, np.zeros((runs, leader.memory.width), dtype=np.int64))
    actions = [opening]
    for block, (start, stop) in enumerate(pairwise(starts.tolist())):
        slots = np.full(runs, stop - start)
        if leader.window == "random_prefix":
            half = (stop - start) // 2
            slots = half + 1 + uniform_integers(bits(Purpose.WINDOW, block), slots - half)
        sums = world.sums(slots, generator)
        prior = leader.prior(known.in_force)
        votes = leader.choose.select(sums, bits(Purpose.SELECTION, block), prior)
        known = leader.memory.after(known, votes, np.full(runs, stop - start))
        actions.append(known.in_force)
    gaps = world.means - world.means.min()
    return Walk(leader, gaps, horizon, np.stack(actions))


@lru_cache(maxsize=1)
def _tags(stream: str, seed: int, runs: int) -> NDArray[np.uint8]:
    """The name of each run's randomness, the same in all walks of a plan."""
    source = SeededRandomness(seed)
    joined = b"".join(source.tag(stream, 0, None, 1, run) for run in range(runs))
    return np.frombuffer(joined, np.uint8).reshape(runs, 16)
