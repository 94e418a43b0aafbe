"""Idle keys: when their rows are dropped, and what is kept of them.

Time comes from the records of the partition: the *newest time* is the largest timestamp so far, in
the order of the log. Timestamps are public, so neighbours share it, and a replay of the log arrives
at the same time. No clock is read.

1. Time is cut into periods of the length `idle`. When the first record of a new period comes, every
   key is dropped whose latest record is older than the period that has just ended: the key was idle
   for at least one period and at most two. (A batch is cut there, so that how records were cut into
   batches changes nothing.)
2. The open block goes with the row: it is never selected from, nor carried over (P9).
3. A key that comes back is born anew, at the offset of the record that it comes back with. It opens
   with the public state of the learner that was dropped, and is charged nothing for that
   (`evidence.carrying`).
4. A dropped row that has changed since its save is saved once more, so that the saved state has the
   newest of each key that is away. A rebuild loads such rows and drops them again. A whole
   partition may leave at once, and one save takes a limited number of rows: until its turn comes, a
   row waits in the engine and counts as present, so that a rebuild reads its records again.
5. Keys that are away count towards the limit of rows: otherwise which key gets a learner would
   depend on when rows are dropped.
6. Where `idle` is raised or removed, a key that was away and no longer is goes on as if its row had
   never been dropped, with its old `born` and the block that was open. It had no record meanwhile
   (with one it would have come back), so each of its records is still in one block (P4).

A record with a time far in the future drops all other keys once; then time stands still until other
records reach it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Batch, Key


class Ages(NamedTuple):
    """The state of a partition's time at its checkpoint."""

    idle: int  # milliseconds: the setting under which rows were dropped
    since: int  # the time assumed for rows that were saved without one
    newest: int
    low: int  # the newest time when the oldest record came that a rebuild reads

    def dropped_before(self) -> int:
        """Keys whose latest record came before this time are away."""
        return (self.newest // self.idle - 1) * self.idle


@dataclass(slots=True)
class Idleness:
    """The time of one partition, and which keys are away."""

    idle: int  # milliseconds
    newest: int | None = None  # the largest time so far
    since: int | None = None  # the time assumed for rows that were saved without one
    away: set[Key] = field(default_factory=set, repr=False)
    _period: int = -1  # the latest period at whose beginning rows were dropped

    def __post_init__(self) -> None:
        """Refuse an `idle` below 1 ms."""
        if self.idle < 1:
            raise InvalidConfig("idle", "too short", expected="1 ms or more", got=self.idle)

    def begin(self, newest: int, since: int) -> None:
        """Go on from here."""
        self.newest, self.since, self._period = newest, since, newest // self.idle

    def timed(self, batch: Batch) -> Batch:
        """The batch with the newest time at each of its slots; updates `newest`."""
        if batch.times is None:
            raise InvalidConfig("batch.times", "missing", expected="a time for each slot", got=None)
        if not len(batch.times):
            return batch
        times = np.maximum.accumulate(np.maximum(batch.times, self.newest or 0))
        self.newest = int(times[-1])
        return batch.timed(times)

    def parts(self, batch: Batch) -> Iterator[tuple[Batch, int | None]]:
        """Cut the batch where periods begin; with each part, keys idle since when must go first."""
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
            yield batch.part(slice(first, end)), before
            first = end

    def reaches(self, time: int) -> bool:
        """Move time forward to here; return whether a period begins."""
        self.newest = max(time, self.newest or 0)
        began = self.newest // self.idle > self._period
        self._period = max(self._period, self.newest // self.idle)
        return began

    def dropped_before(self) -> int:
        """Keys whose latest record came before this time are away."""
        return (self._period - 1) * self.idle
