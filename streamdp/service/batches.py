"""Turns records into losses or feedback: arrays for each batch, no object for each record.

The format decides from a record's own bytes whether it can be used (P1, P2); in a feedback stream
the headers say which action it is about. A record whose key is longer than the stream allows gets
no learner, like a key beyond `most_keys`: keys are public. A key that has a learner keeps it when a
limit is lowered, also while the key is idle.

A feedback record is half a dozen Python objects for one number. So it is observed as soon as it is
read (`observed_early`) and the objects are freed: at the end of a whole batch the first ones would
have left the processor's cache, and the service would take a third longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from sys import maxsize

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.events import Batch, Content, numbered
from streamdp.ports import Key, Records, Value
from streamdp.wire.feedback import FeedbackFormat, Observed, observe
from streamdp.wire.formats import Format
from streamdp.wire.registered.formats import Registered


@dataclass(frozen=True, slots=True, repr=False)
class ObservedRecords(Records):
    """Feedback records that were observed; only the last one keeps its value and headers."""

    observed: Observed = field(kw_only=True)


def observed_early(format_: Format | FeedbackFormat, records: Records) -> Records:
    """What must be kept of records until they are applied: of losses everything."""
    if not isinstance(format_, FeedbackFormat):
        return records
    return ObservedRecords(
        partition=records.partition,
        start=records.start,
        offsets=records.offsets,
        keys=records.keys,
        values=records.values[-1:],  # a checkpoint remembers the last record
        next_offset=records.next_offset,
        headers=records.headers[-1:],
        timestamps=records.timestamps,
        observed=_observe(format_, records),
    )


def in_force(format_: object, values: Sequence[Value], offsets: Sequence[int]) -> Sequence[Value]:
    """The values as a format reads them at these offsets; those of other formats as they are."""
    if isinstance(format_, Registered):
        return format_.reading.log.in_force(values, offsets)
    return values


def _observe(format_: FeedbackFormat, records: Records) -> Observed:
    values = in_force(format_, records.values, records.offsets)
    return observe(format_, values, records.headers)


def decode(
    format_: Format | FeedbackFormat,
    records: Sequence[Records],
    *,
    most_key_bytes: int | None,
    known: Callable[[Key], bool] = lambda _: False,
    idle: int | None = None,
) -> tuple[Batch, int]:
    """Decode consecutive records of one partition, and count those whose key is too long.

    A `known` key, one with a learner or idle, is never too long. Where idle keys are dropped, the
    batch has times: the largest timestamp of these records so far.
    """
    keys: list[Key] = list(chain.from_iterable(part.keys for part in records))
    offsets = np.fromiter(
        chain.from_iterable(part.offsets for part in records), dtype=np.int64, count=len(keys)
    )
    times = None
    if idle is not None:  # keys that get no learner have times too
        stamps = chain.from_iterable(part.timestamps for part in records)
        times = np.maximum.accumulate(np.fromiter(stamps, dtype=np.int64, count=len(keys)))
    distinct, index = numbered(keys)
    most = maxsize if most_key_bytes is None else most_key_bytes
    long = {key for key in distinct if key is not None and len(key) > most and not known(key)}
    kept: slice | NDArray[np.bool_] = slice(None)
    if long:
        kept = np.array([key not in long for key in keys], dtype=np.bool_)
        offsets, times = offsets[kept], None if times is None else times[kept]
        distinct, index = numbered([key for key in keys if key not in long])
    refused = len(keys) - len(index)
    content: Content
    if isinstance(format_, FeedbackFormat):
        played, gain, slots, unusable = _observed(format_, records, kept)
        index, offsets, times = _spread(index, offsets, times, slots)
        content = {"played": played, "gain": gain}
        return Batch(distinct, index, offsets, content, times, unusable), refused
    read = [in_force(format_, part.values, part.offsets) for part in records]
    values: list[Value] = list(chain.from_iterable(read))
    if long:
        values = [value for key, value in zip(keys, values, strict=True) if key not in long]
    decoded = format_.decode(values)
    index, offsets, times = _spread(index, offsets, times, decoded.slots_per_record)
    content = {"losses": decoded.losses}
    return Batch(distinct, index, offsets, content, times, _unusable(decoded.losses)), refused


def _unusable(losses: NDArray[np.float32]) -> Bools:
    """Which rows may be unusable.

    A row's sum shows a null loss in a sixth of the time of a look at each loss (0.05 ms for 8192
    rows of 100). Huge finite losses may add up to infinity too.
    """
    with np.errstate(all="ignore"):
        sums = np.einsum("ij->i", losses)
    return np.asarray(~np.isfinite(sums), dtype=np.bool_)


def newest_time(records: Sequence[Records]) -> int | None:
    """The largest timestamp of these records; None if there is no record."""
    return max(chain.from_iterable(part.timestamps for part in records), default=None)


def _observed(
    format_: FeedbackFormat, records: Sequence[Records], kept: slice | NDArray[np.bool_]
) -> tuple[NDArray[np.int32], Ints, Ints, NDArray[np.bool_]]:
    """What was observed of the records that are kept."""
    parts = [
        part.observed if isinstance(part, ObservedRecords) else _observe(format_, part)
        for part in records
    ]
    slots = np.concatenate([part.slots_per_record for part in parts])
    some = kept if isinstance(kept, slice) else np.repeat(kept, slots)
    return (
        np.concatenate([part.played for part in parts])[some],
        np.concatenate([part.gain for part in parts])[some],
        slots[kept],
        np.concatenate([part.unusable for part in parts])[some],
    )


def _spread(
    index: Ints, offsets: Ints, times: Ints | None, slots: Ints
) -> tuple[Ints, Ints, Ints | None]:
    """The key, offset and time of each slot, from those of its record."""
    if int(slots.sum()) == len(index):
        return index, offsets, times
    spread = None if times is None else np.repeat(times, slots)
    return np.repeat(index, slots), np.repeat(offsets, slots), spread
