"""Keys that nothing comes for any more: when their rows are dropped, and what is kept of them.

Time is what the records of the partition say: the *newest time* is the largest timestamp so far, in
the order of the log. Timestamps are public, so it is a function of what neighbours share, and a
replay of the log arrives at the same. No clock is asked.

1. Time is cut into periods of the length `idle`. Where the first record of a new period comes,
   every key is dropped whose latest record came before the period that has just ended began: it was
   idle for one period at least and for two at most. (A batch is cut there, so that how records
   were cut into batches changes nothing.)
2. With its row goes its open block: it is never selected from, nor carried over (P9).
3. Who comes back is born anew, under the offset of the record that it comes back with, and opens
   with what is public of the learner that was dropped, charged nothing (`evidence.carrying`).
4. A dropped row that has changed since its save is saved once more, so that the state knows the
   newest of each key that is away. Whoever rebuilds loads such rows, and drops them again. A whole
   partition may leave at once, and a cut holds so many rows at most: until its turn comes, such a
   row waits (`Leaving`) and counts as one that is there, so that a rebuild reads its records again.
5. The limit of rows counts keys that are away: otherwise who gets a learner would depend on when.
6. Where `idle` is raised or taken out, a key that was away and is not any more goes on as if its
   row had never been dropped, with its old `born` and the block that was open: none of its records
   came meanwhile (with one it would have come back), so each is still in one block (P4).

A record with a time far in the future drops everybody else once; after that time stands still until
it is caught up with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.bank import Bank
from streamdp.core.engine.feedback import history
from streamdp.core.engine.plan import Batch, part_of
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.events import After, FeedbackColumns, Key, Releases
from streamdp.core.evidence.carrying import Known, Passage
from streamdp.core.learners import Learner, PolicyLearner
from streamdp.core.learners.leader import donated_below


class Ages(NamedTuple):
    """How far time was in a partition at its checkpoint."""

    idle: int  # milliseconds: under which rows were dropped
    since: int  # what stands for the time of rows that were saved without one
    newest: int
    low: int  # the newest when the oldest record came that a rebuild reads

    def dropped_before(self) -> int:
        """Keys whose latest record came before this time are away."""
        return (self.newest // self.idle - 1) * self.idle


@dataclass(slots=True)
class Leaving:
    """Dropped rows that no save holds yet, the longest unsaved first."""

    _rows: dict[Key, tuple[int, int, bytes]] = field(default_factory=dict, repr=False)
    """Each with its first record that is in no save, and the largest time when that came."""

    def __len__(self) -> int:
        """How many."""
        return len(self._rows)

    def add(self, rows: Iterable[tuple[Key, bytes]], first_unsaved: Ints, times: Ints) -> None:
        """Rows as they were when they were dropped."""
        columns = zip(rows, first_unsaved.tolist(), times.tolist(), strict=True)
        self._rows |= {key: (first, time, row) for (key, row), first, time in columns}
        self._rows = dict(sorted(self._rows.items(), key=lambda item: item[1][0]))

    def forget(self, key: Key) -> None:
        """A key is back: its new opening says everything."""
        self._rows.pop(key, None)

    def take(self, most: int) -> list[tuple[Key, bytes]]:
        """The first of them, which are saved now."""
        keys = list(islice(self._rows, most))
        return [(key, self._rows.pop(key)[2]) for key in keys]

    def low(self, position: int, now: int) -> tuple[int, int]:
        """The oldest record that is in no save, and the largest time when it came."""
        first, time, _ = next(iter(self._rows.values()), (position, now, b""))
        return first, time


@dataclass(slots=True)
class Idleness:
    """How far time is in one partition, and which keys are away."""

    idle: int  # milliseconds
    newest: int | None = None  # the largest time so far
    since: int | None = None  # what stands for the time of rows that were saved without one
    away: set[Key] = field(default_factory=set, repr=False)
    _period: int = -1  # the last one that rows were dropped for
    _passage: Passage | None = None

    def __post_init__(self) -> None:
        """Refuse a length that is none."""
        if self.idle < 1:
            raise InvalidConfig(
                complaint("idle", "no time", expected="1 ms or more", got=self.idle)
            )

    def begin(self, newest: int, since: int) -> None:
        """Go on from here."""
        self.newest, self.since, self._period = newest, since, newest // self.idle

    def timed(self, batch: Batch) -> Batch:
        """The batch with the newest time at each of its slots, which becomes known."""
        if batch.times is None:
            raise InvalidConfig(
                complaint("batch.times", "missing", expected="a time for each slot", got=None)
            )
        if not len(batch.times):
            return batch
        times = np.maximum.accumulate(np.maximum(batch.times, self.newest or 0))
        self.newest = int(times[-1])
        return replace(batch, times=times)

    def parts(self, batch: Batch) -> Iterator[tuple[Batch, int | None]]:
        """The batch cut where periods begin; beside each part since when keys must have come."""
        if batch.times is None or not len(batch.times):
            yield batch, None
            return
        periods = batch.times // self.idle
        borders = np.flatnonzero(np.diff(periods, prepend=self._period))
        ends = [*borders[borders > 0].tolist(), len(periods)]
        first = 0
        for end in ends:
            before = None
            if periods[first] > self._period:
                self._period = int(periods[first])
                before = self.dropped_before()
            yield part_of(batch, slice(first, end)), before
            first = end

    def reaches(self, time: int) -> bool:
        """Time goes on to here; whether a period begins by it."""
        self.newest = max(time, self.newest or 0)
        began = self.newest // self.idle > self._period
        self._period = max(self._period, self.newest // self.idle)
        return began

    def dropped_before(self) -> int:
        """Keys whose latest record came before this time are away."""
        return (self._period - 1) * self.idle

    def passage(self, learner: Learner) -> Passage:
        """The way of a key that comes back: the same learner, at the length reached."""
        if self._passage is None:
            actions, schedule = learner.actions, learner.schedule
            self._passage = Passage(
                actions, actions, schedule, schedule, histories=True, donates=donated_below(learner)
            )
        return self._passage


def known_of(
    learner: Learner, bank: Bank, rows: Ints, *, epoch: int
) -> Iterator[tuple[Key, Known]]:
    """The public columns of some rows; no sum is read."""
    policies = isinstance(learner, PolicyLearner)
    histories = history(bank, rows) if policies else None
    columns = (rows, bank.born[rows], bank.block[rows], bank.action[rows])
    for at, (row, born, block, action) in enumerate(
        zip(*(c.tolist() for c in columns), strict=True)
    ):
        kept = None if histories is None else histories[at]
        yield bank.keys[row], Known(After(epoch, born, block), action, kept)


def joined(released: Sequence[Releases], *, nothing: Releases) -> Releases:
    """Releases of several parts of a batch, one after the other."""
    some = [part for part in released if len(part) or part.donated or part.pooled]
    if len(some) < 2:
        return some[0] if some else nothing

    def column(name: str) -> Ints:
        return np.concatenate([getattr(part, name) for part in some])

    in_force = [part.in_force for part in some if part.in_force is not None]
    before = accumulate((part.lines - len(part.priors) for part in some), initial=0)
    prior = [part.prior for part in some if part.prior is not None]
    carried = {at: of for part in some for at, of in (part.carried or {}).items()}
    return replace(
        some[0],
        keys=[key for part in some for key in part.keys],
        in_force=np.concatenate(in_force) if in_force else None,
        feedback=FeedbackColumns.joined(part.feedback for part in some),
        carried=carried or None,
        prior=np.concatenate(prior) if prior else None,
        priors=tuple(prior for part in some for prior in part.priors),
        prior_places=tuple(
            first + place
            for first, part in zip(before, some, strict=False)
            for place in part.prior_places
        ),
        pooled=tuple(pooled for part in some for pooled in part.pooled),
        donated=tuple(donated for part in some for donated in part.donated),
        born=column("born"),
        block=column("block"),
        kind=column("kind").astype(np.uint8),
        value=column("value"),
        start=column("start"),
        stop=column("stop"),
        first_offset=column("first_offset"),
        last_offset=column("last_offset"),
    )
