"""The plan of a batch: which rows its slots belong to and where their blocks end.

It is made from keys, offsets and slot numbers alone; nothing here looks at a loss or changes state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamdp.core.arrays import Bools, Ints
from streamdp.core.bank import Bank, first_places
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.events import Carried, FeedbackBatch, Key, LossBatch
from streamdp.core.grid import as_rows
from streamdp.core.learners import Learner, PolicyLearner
from streamdp.core.schedule import LAST_SLOT, Schedule
from streamdp.core.segments import Grouped, Segments, cut, group

Batch = LossBatch | FeedbackBatch

Heritage = Callable[[Sequence[Key], Ints], dict[int, Carried]]
"""Returns what keys that are born at these offsets carry over, by their places."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The slots of a batch by row and block."""

    batch: Batch  # without the slots of keys that get no row
    rows: Ints  # T: the row of each touched key
    grouped: Grouped
    taken: Ints  # T: how many slots it had before
    segments: Segments
    new: Ints  # which of the batch's keys are born, in the order of their first records
    born: Ints  # the offset where each is born
    carried: dict[int, Carried]  # what they carry over, by their places in `new`
    refused: int  # how many slots were of keys beyond the limit

    @property
    def segment_rows(self) -> Ints:
        """The row of each segment."""
        return self.rows[self.segments.of]

    @property
    def slots(self) -> Ints:
        """The slot number of each slot, in the order of the batch."""
        grouped, counts = self.grouped, self.grouped.counts
        begins = np.cumsum(counts) - counts
        numbers: Ints = np.repeat(self.taken + 1 - begins, counts)
        numbers += np.arange(len(numbers))
        if grouped.order is None:
            return numbers
        slots = np.empty_like(numbers)
        slots[grouped.order] = numbers
        return slots

    def offset_at(self, places: Ints) -> Ints:
        """The offset of the records at these places of the grouped order."""
        offsets: Ints = self.batch.offsets[self.grouped.places(places)]
        return offsets


def plan(
    bank: Bank,
    schedule: Schedule,
    batch: Batch,
    *,
    limit: int,
    heritage: Heritage,
    away: Collection[Key] = frozenset(),
) -> Plan:
    """Lay a checked batch out over rows; keys beyond `limit` rows get none.

    Keys that are `away` count as if they had their rows: they come back whatever the limit.
    """
    rows = bank.rows(batch.keys)
    first = first_places(batch.index, len(batch.keys)) if (rows < 0).any() else rows
    new = np.flatnonzero((rows < 0) & (first < len(batch.index)))
    new = _admitted(new[np.argsort(first[new], kind="stable")], batch, limit - len(bank), away)
    born = batch.offsets[first[new]]
    rows[new] = len(bank) + np.arange(len(new))
    kept = only(batch, rows[batch.index] >= 0)
    grouped = group(kept.index, len(batch.keys))
    touched = rows[grouped.touched]
    taken = np.where(touched < len(bank), bank.slots[np.minimum(touched, len(bank.slots) - 1)], 0)
    carried = heritage([batch.keys[key] for key in new.tolist()], born) if len(new) else {}
    if carried:
        begun = np.zeros(len(new), dtype=np.int64)
        begun[list(carried)] = [schedule.start(known.block) - 1 for known in carried.values()]
        fresh = touched >= len(bank)
        taken[fresh] = begun[touched[fresh] - len(bank)]
    if len(taken) and (last := int((taken + grouped.counts).max())) > LAST_SLOT:
        raise InvalidConfig(
            complaint("batch", "too many slots of one key", expected=LAST_SLOT, got=last)
        )
    return Plan(
        batch=kept,
        rows=touched,
        grouped=grouped,
        taken=taken,
        segments=cut(schedule, grouped, taken),
        new=new,
        born=born,
        carried=carried,
        refused=len(batch.index) - len(kept.index),
    )


def _admitted(new: Ints, batch: Batch, room: int, away: Collection[Key]) -> Ints:
    """The new keys that get a row."""
    if not away:
        return new[: max(0, room)]
    news = np.array([batch.keys[key] not in away for key in new.tolist()], dtype=np.bool_)
    return new[~news | (np.cumsum(news) <= room - len(away))]


def only(batch: Batch, keep: Bools) -> Batch:
    """Some slots of a batch."""
    if keep.all():
        return batch
    index, offsets = batch.index[keep], batch.offsets[keep]
    times = None if batch.times is None else batch.times[keep]
    if isinstance(batch, LossBatch):
        return LossBatch(batch.keys, index, batch.losses[keep], offsets, times)
    return FeedbackBatch(
        batch.keys, index, batch.played[keep], batch.gain[keep], offsets, times=times
    )


def part_of(batch: Batch, some: slice) -> Batch:
    """Some neighbouring slots of a batch."""
    times = None if batch.times is None else batch.times[some]
    index, offsets = batch.index[some], batch.offsets[some]
    if isinstance(batch, LossBatch):
        return LossBatch(batch.keys, index, batch.losses[some], offsets, times)
    played, gain = batch.played[some], batch.gain[some]
    return FeedbackBatch(batch.keys, index, played, gain, offsets, times=times)


def check_keys(keys: Sequence[object]) -> None:
    """Refuse keys that are not bytes or None: a str would get a learner beside its bytes'."""
    wrong = next(
        (kind for kind in set(map(type, keys)) if not issubclass(kind, bytes | None)), None
    )
    if wrong is not None:
        raise InvalidConfig(
            complaint("key", "no key", expected="bytes, or None", got=wrong.__name__)
        )


def checked(batch: Batch, *, learner: Learner, position: int) -> Batch:
    """The batch, its losses as float32; refuse one of another learner, and old records."""
    if isinstance(batch, LossBatch) and batch.losses.dtype != np.float32:
        batch = replace(batch, losses=as_rows(batch.losses, actions=len(learner.actions)))
    if isinstance(learner, PolicyLearner):
        n = _check_feedback(batch)
    else:
        n = _check_losses(batch, actions=len(learner.actions))
    if not n == len(batch.index) == len(batch.offsets):
        got = f"{len(batch.index)} and {len(batch.offsets)}"
        raise InvalidConfig(complaint("batch", "uneven columns", expected=n, got=got))
    _check_order(batch, position=position)
    return batch


def _check_losses(batch: Batch, *, actions: int) -> int:
    """How many slots."""
    if not isinstance(batch, LossBatch):
        got = type(batch).__name__
        raise InvalidConfig(complaint("batch", "of another kind", expected="LossBatch", got=got))
    n = len(batch.losses)
    if batch.losses.shape != (n, actions):
        got = f"{batch.losses.shape} {batch.losses.dtype}"
        raise InvalidConfig(
            complaint("batch.losses", "shape", expected=f"n × {actions} float32", got=got)
        )
    return n


def _check_feedback(batch: Batch) -> int:
    """How many slots. The values of `played` and `gain` may be content: they are never refused."""
    if not isinstance(batch, FeedbackBatch):
        got = type(batch).__name__
        raise InvalidConfig(
            complaint("batch", "of another kind", expected="FeedbackBatch", got=got)
        )
    for name, column, kind in (("played", batch.played, "int32"), ("gain", batch.gain, "int64")):
        if column.dtype != np.dtype(kind) or column.shape != batch.played.shape[:1]:
            got = f"{column.shape} {column.dtype}"
            raise InvalidConfig(complaint(f"batch.{name}", "shape", expected=f"n {kind}", got=got))
    return len(batch.played)


def _check_order(batch: Batch, *, position: int) -> None:
    """Refuse a wrong or repeated key, an index without a key, and records that come again."""
    n = len(batch.index)
    check_keys(batch.keys)
    different = len(set(batch.keys))
    if different != len(batch.keys):
        expected = f"{len(batch.keys)} different keys"
        raise InvalidConfig(
            complaint("batch.keys", "a key twice", expected=expected, got=different)
        )
    if not n:
        return
    if np.minimum.reduce(batch.index) < 0 or np.maximum.reduce(batch.index) >= len(batch.keys):
        expected = f"0 … {len(batch.keys) - 1}"
        got = f"{batch.index.min()} … {batch.index.max()}"
        raise InvalidConfig(complaint("batch.index", "no such key", expected=expected, got=got))
    falls = n > 1 and bool((batch.offsets[1:] < batch.offsets[:-1]).any())
    if falls or batch.offsets[0] < position:
        at = int((batch.offsets[1:] < batch.offsets[:-1]).argmax()) + 1 if falls else 0
        got = f"{batch.offsets[at]}, in place {at}"
        expected = f"rising from {position}"
        raise InvalidConfig(
            complaint("batch.offsets", "a record again", expected=expected, got=got)
        )
