"""Computes what the draws of a crowd should read, from the log and the releases alone.

Record by record: which blocks end, whether a slot is its key's own or the pool's, what a draw may
know beforehand, when the next prior is made, and of which votes. It does not use the engine. What
it shares with one are the public definitions of `core.evidence`: how votes are encoded and counted,
the prior that follows from them, who is in the control group, and the learner's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.events import CrowdPrior
from streamdp.core.evidence import Standing
from streamdp.core.evidence.crowd import Crowd, cast, due, newest
from streamdp.core.evidence.donation import NEWEST, donated_below_by
from streamdp.core.learners import Leader
from streamdp.core.randomness import Purpose
from streamdp.core.selection import Prior
from streamdp.lab.audit.fold import Fold, plain_grid
from streamdp.lab.audit.stories import Story, Telling
from streamdp.lab.audit.witness import POOLED

_NONE = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class DueDraw:
    """A draw that the engine owes: from which block, and what it reads."""

    purpose: int
    key: int  # `POOLED` for a vote of the pool
    block: int
    sums: Ints
    prior: Prior | None
    prior_number: int  # the number of the crowd's prior


@dataclass(frozen=True, slots=True)
class Values:
    """What the engine released: the next draws know it."""

    openings: Ints  # N
    votes: Ints  # N × B
    pooled: Sequence[int]  # the pool's, in order


@dataclass(slots=True)
class _OfKey:
    """A key's state so far."""

    born: int
    donates_below: int
    standing: Standing
    slots: int = 0
    block: int = 0
    newest: list[Ints] = field(default_factory=list)  # its newest vote, if it has one


@dataclass(slots=True)
class _OfPool:
    """The pool's state so far."""

    sums: Ints  # of its open block
    slots: int = 0
    block: int = 0
    newest: list[Ints] = field(default_factory=list)


class CrowdFold:
    """The draws that are due, and the priors, after the records so far."""

    def __init__(self, learner: Leader, story: Story, fold: Fold, values: Values) -> None:
        """`fold`: the sums of each key's own blocks."""
        assert isinstance(learner.crowd, Crowd)
        self.draws: list[DueDraw] = []
        self.priors = {0: learner.crowd.nothing}
        self.in_force = np.full((len(story.keys), story.blocks), -1)  # after each vote
        self._learner, self._story, self._fold, self._values = learner, story, fold, values
        self._crowd, self._votes, self._pooled = learner.crowd, 0, learner.pool
        self._keys: dict[int, _OfKey] = {}
        self._pool = _OfPool(np.zeros(len(learner.actions), dtype=np.int64))
        self._grid, _ = plain_grid(story.losses)
        blocks = np.arange(story.blocks)
        starts, stops = learner.schedule.starts(blocks), learner.schedule.stops(blocks)
        self._bounds = list(zip(starts.tolist(), stops.tolist(), strict=True))

    def read(self, telling: Telling) -> None:
        """Read a telling's records; behind each of them a prior may be due."""
        story, crowd = self._story, self._crowd
        for key, slots, offset in _records(story, telling):
            if key not in self._keys:
                below = donated_below_by(story.keys[key], crowd.donates, crowd.control)
                self._keys[key] = _OfKey(offset, below, self._opened(key))
            for _ in range(slots):
                self._take(key, self._keys[key])
            if self._votes >= due(self._current.after):
                of_keys = [vote for of_key in self._keys.values() for vote in of_key.newest]
                kept = newest(np.array([*of_keys, *self._pool.newest[-NEWEST:]]))
                made = crowd.made(kept, self.priors, after=self._votes)
                self.priors[made.number] = made

    def now(self) -> list[int]:
        """The action in force of each key."""
        return [int(self._keys[key].standing.in_force[0]) for key in range(len(self._keys))]

    @property
    def _current(self) -> CrowdPrior:
        return self.priors[len(self.priors) - 1]

    def _opened(self, key: int) -> Standing:
        """The opening of a key; one of the control group opens under prior 0."""
        apart = self._crowd.control.holds(self._story.keys[key])
        crowd_prior = self._crowd.nothing if apart else self._current
        prior = self._learner.opening_prior((crowd_prior, self._group(key)))
        nothing = np.zeros(len(self._learner.actions), dtype=np.int64)
        self.draws.append(DueDraw(Purpose.OPENING, key, 0, nothing, prior, crowd_prior.number))
        remembered = np.zeros((1, self._learner.memory.width), dtype=np.int64)
        return Standing(self._values.openings[key : key + 1], remembered)

    def _take(self, key: int, state: _OfKey) -> None:
        """One slot: the pool's, or its key's own."""
        state.slots += 1
        start, stop = self._bounds[state.block]
        if stop - start < state.donates_below:
            self._give(self._grid[key, state.slots - 1])
        elif state.slots == stop - 1:
            self._vote(key, state, stop - start)
        state.block += state.slots == stop - 1

    def _vote(self, key: int, state: _OfKey, length: int) -> None:
        """The vote at the end of a key's own block, under what it may know beforehand."""
        name, control, group = self._story.keys[key], self._crowd.control, self._group(key)
        block, plain = state.block, control.plain(name, state.born, state.block)
        crowd_prior = self._crowd.nothing if plain or control.holds(name) else self._current
        in_force = state.standing.in_force
        prior = None if plain else self._learner.prior(in_force, (crowd_prior, group))
        sums = self._fold.windows[key, block]
        self.draws.append(DueDraw(Purpose.SELECTION, key, block, sums, prior, crowd_prior.number))
        vote, lengths = self._values.votes[key, block : block + 1], np.array([length])
        stayed = (vote == in_force) & (not plain)
        state.newest = list(
            cast(self._crowd, prior=_NONE + crowd_prior.number, stayed=stayed, vote=vote,
                 length=lengths, group=group)
        )  # fmt: skip
        state.standing = self._learner.memory.after(state.standing, vote.copy(), lengths)
        self.in_force[key, block] = state.standing.in_force[0]
        self._votes += 1

    def _give(self, units: Ints) -> None:
        """A donated slot, and the pool's vote if a block of the pool ends there: under no prior."""
        learner, pool = self._pooled, self._pool
        assert learner is not None
        pool.sums, pool.slots = pool.sums + units, pool.slots + 1
        if pool.slots < learner.schedule.stop(pool.block) - 1:
            return
        self.draws.append(DueDraw(Purpose.SELECTION, POOLED, pool.block, pool.sums, None, 0))
        vote = np.array(self._values.pooled[pool.block : pool.block + 1], dtype=np.int64)
        pool.newest += list(
            cast(self._crowd, prior=0 * vote, stayed=vote < 0, vote=vote,
                 length=learner.schedule.lengths(pool.block + 0 * vote), group=0 * vote)
        )  # fmt: skip
        pool.sums, pool.block = np.zeros_like(units), pool.block + 1
        self._votes += 1

    def _group(self, key: int) -> Ints:
        return self._crowd.groups.numbers([self._story.keys[key]])


def _records(story: Story, telling: Telling) -> Iterator[tuple[int, int, int]]:
    """Each record's key, how many slots it has, and its offset."""
    numbers = {key: number for number, key in enumerate(story.keys)}
    for batch in telling.batches:
        begins = np.flatnonzero(np.diff(batch.offsets, prepend=-1)).tolist()
        for begin, end in zip(begins, [*begins[1:], len(batch.offsets)], strict=True):
            key = batch.keys[int(batch.index[begin])]
            yield numbers[key], end - begin, int(batch.offsets[begin])
