"""Records → losses or feedback: arrays for each batch, no object for each record.

What a record is worth is decided by its format from its own bytes (P1, P2), and of a feedback
stream which action it is about from its headers. A record whose key is
longer than the stream allows gets no learner, like a key beyond the limit: keys are public. Who has
a learner keeps it when the limit is lowered, also while it is away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from sys import maxsize

import numpy as np
from numpy.typing import NDArray

from streamdp.core.engine.plan import Batch
from streamdp.core.events import FeedbackBatch, LossBatch, numbered
from streamdp.ports import Key, Records, Value
from streamdp.wire.feedback import FeedbackFormat, Headers, observe
from streamdp.wire.formats import Format


def _nobody(key: Key) -> bool:
    return False


def decode(
    format_: Format | FeedbackFormat,
    records: Sequence[Records],
    *,
    most_key_bytes: int | None,
    known: Callable[[Key], bool] = _nobody,
    idle: int | None = None,
) -> tuple[Batch, int]:
    """Consecutive records of one partition as a batch; how many had a key that is too long.

    A key that is `known`, with a learner or away, is not too long. Where keys go `idle` the batch
    has times: the largest timestamp of these records so far.
    """
    keys: list[Key] = list(chain.from_iterable(part.keys for part in records))
    values: list[Value] = list(chain.from_iterable(part.values for part in records))
    offsets = np.fromiter(
        chain.from_iterable(part.offsets for part in records), dtype=np.int64, count=len(keys)
    )
    headers: list[Headers] = list(chain.from_iterable(part.headers for part in records))
    times = None if idle is None else _times(records)
    distinct, index = numbered(keys)
    most = maxsize if most_key_bytes is None else most_key_bytes
    long = {key for key in distinct if key is not None and len(key) > most and not known(key)}
    if long:
        kept = [at for at, key in enumerate(keys) if key not in long]
        keys, values = [keys[at] for at in kept], [values[at] for at in kept]
        headers = [headers[at] for at in kept] if headers else headers
        offsets = offsets[kept]
        times = None if times is None else times[kept]
        distinct, index = numbered(keys)
    refused = sum(len(part) for part in records) - len(keys)
    if isinstance(format_, FeedbackFormat):
        observed = observe(format_, values, headers)
        index, offsets, times = _spread(index, offsets, times, observed.slots_per_record)
        batch = FeedbackBatch(
            distinct, index, observed.played, observed.gain, offsets, observed.unusable, times
        )
        return batch, refused
    decoded = format_.decode(values)
    index, offsets, times = _spread(index, offsets, times, decoded.slots_per_record)
    return LossBatch(distinct, index, decoded.losses, offsets, times), refused


Ints = NDArray[np.int64]


def newest_time(records: Sequence[Records]) -> int | None:
    """The largest timestamp of these records; None if there is no record."""
    return max(chain.from_iterable(part.timestamps for part in records), default=None)


def _times(records: Sequence[Records]) -> Ints:
    """The largest timestamp so far at each record: of those too whose keys get no learner."""
    count = sum(map(len, records))
    stamps = chain.from_iterable(part.timestamps for part in records)
    times: Ints = np.maximum.accumulate(np.fromiter(stamps, dtype=np.int64, count=count))
    return times


def _spread(
    index: Ints, offsets: Ints, times: Ints | None, slots: Ints
) -> tuple[Ints, Ints, Ints | None]:
    """Each record's key, offset and time for each of its slots."""
    if int(slots.sum()) == len(index):
        return index, offsets, times
    spread = None if times is None else np.repeat(times, slots)
    return np.repeat(index, slots), np.repeat(offsets, slots), spread
