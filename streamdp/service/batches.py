"""Turns records into batches: columns, no object for each record.

The format decides from a record's own bytes whether it can be used (P1, P2); in a feedback stream
the headers say which action it is about. A record whose key is longer than the stream allows gets
no learner, like a key beyond `most_keys`: keys are public. A key that has a learner keeps it when a
limit is lowered, also while the key is idle.

A feedback record is half a dozen Python objects for a few numbers. So it is decoded as soon as it
is read (`decoded_records`) and the objects are freed: at the end of a whole batch the first ones
would have left the processor's cache, and a service would take a third longer. Losses are one
object a record, and many numbers: they are decoded when they are applied, all at once, because
what has been decoded in parts would be copied once more (a twelfth of the service, K = 100).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, groupby
from sys import maxsize

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.events import Batch, numbered
from streamdp.ports import Key, Records
from streamdp.service.lists import NO_LIST, TakenNames
from streamdp.wire.decoded import Decoded
from streamdp.wire.formats import Format


@dataclass(frozen=True, slots=True, repr=False)
class DecodedRecords(Records):
    """Records with what they hold, or of losses how they are read; and the list under which."""

    decoded: Decoded | Format = field(kw_only=True)
    listed: TakenNames = field(kw_only=True, default=NO_LIST)


def decoded_records(
    format_: Format, records: Records, *, whole: bool = False, listed: TakenNames = NO_LIST
) -> DecodedRecords:
    """What must be kept of records until they are applied.

    Of feedback only the last keeps value and headers: a checkpoint remembers the last record. With
    `whole` all keep them, for a quarantine.
    """
    kept = {of.name: getattr(records, of.name) for of in fields(records)}
    if format_.feedback is None:
        return DecodedRecords(**kept, decoded=format_)
    if not whole:
        kept |= {"values": records.values[-1:], "headers": records.headers[-1:]}
    decoded = format_.decode(records.values, records.headers)
    return DecodedRecords(**kept, decoded=decoded, listed=listed)


def under_one_list(records: Iterable[DecodedRecords]) -> Iterator[list[DecodedRecords]]:
    """Records in parts, each under one list."""
    for _, some in groupby(records, key=lambda part: part.listed.ordinal):
        yield list(some)


def joined(
    records: Sequence[DecodedRecords],
    *,
    most_key_bytes: int | None,
    known: Callable[[Key], bool] = lambda _: False,
    idle: int | None = None,
) -> tuple[Batch, int]:
    """Consecutive records of one partition as a batch, and how many have a key that is too long.

    They are under one list.

    A `known` key, one with a learner or idle, is never too long. Where idle keys are dropped, the
    batch has times: the largest timestamp of these records so far.
    """
    keys: list[Key] = list(chain.from_iterable(part.keys for part in records))
    offsets = np.concatenate([_column(part.offsets) for part in records])
    times = None
    if idle is not None:  # keys that get no learner have times too
        stamps = chain.from_iterable(part.timestamps for part in records)
        times = np.maximum.accumulate(np.fromiter(stamps, dtype=np.int64, count=len(keys)))
    distinct, index = numbered(keys)
    content, slots, unusable = _together(list(_contents(records)))
    if int(slots.sum()) > len(keys):
        index, offsets = np.repeat(index, slots), np.repeat(offsets, slots)
        times = None if times is None else np.repeat(times, slots)
    listed = records[0].listed
    batch = Batch(
        distinct, index, offsets, content, times, unusable, listed.allowed, listed.named
    )  # fmt: skip
    most = maxsize if most_key_bytes is None else most_key_bytes
    if max(map(len, filter(None, distinct)), default=0) <= most:
        return batch, 0
    long = {key for key in distinct if key is not None and len(key) > most and not known(key)}
    if not long:
        return batch, 0
    fits = np.array([key not in long for key in distinct], dtype=np.bool_)
    new = np.cumsum(fits) - 1
    some = batch.part(fits[index])
    kept = replace(some, keys=[key for key in distinct if key not in long], index=new[some.index])
    return kept, sum(key in long for key in keys)


def _column(offsets: Sequence[int]) -> Ints:
    """Offsets as an array: most often they have no gap, and are a range."""
    if isinstance(offsets, range):
        return np.arange(offsets.start, offsets.stop)
    return np.array(offsets, dtype=np.int64)


def _contents(records: Sequence[DecodedRecords]) -> Iterator[Decoded]:
    """What records hold, in order. Losses that one format reads are decoded at once."""
    for _, run in groupby(records, key=lambda part: id(part.decoded)):
        parts = list(run)
        decoded = parts[0].decoded
        if isinstance(decoded, Decoded):
            yield decoded
        else:
            yield decoded.decode(list(chain.from_iterable(part.values for part in parts)))


def _together(parts: Sequence[Decoded]) -> Decoded:
    """What the parts hold, one after the other."""
    if len(parts) == 1:
        return parts[0]
    content = {
        name: np.concatenate([part.content[name] for part in parts]) for name in parts[0].content
    }
    slots, unusable = (np.concatenate(of) for of in list(zip(*parts, strict=True))[1:])
    return Decoded(content, slots, unusable)


def newest_time(records: Sequence[Records]) -> int | None:
    """The largest timestamp of these records; None if there is no record."""
    return max(chain.from_iterable(part.timestamps for part in records), default=None)
