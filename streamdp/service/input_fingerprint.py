"""Is the input still the one that was read? Without topic ids, its last record tells.

The checkpoint, which is trusted like the input, keeps the offset of the newest record that was read
and a digest of its key and value; if the stream reads headers, of its headers and timestamp too,
because the key and value of feedback records are nearly always the same. Taking a partition checks
that this record is still there:

1. If the topic's id is the checkpoint's, nothing is read just for the check. The record is still
   compared if a rebuild reads it anyway: a log that was truncated and filled again keeps its id.
2. Otherwise the record is read by itself, before a rebuild finds other faults in an input that is
   not the same.
3. A record that has expired proves nothing; neither does a checkpoint without one, nor a digest of
   headers if the stream no longer reads headers.

An assembly has two inputs, and keeps such a record of each (`assembling.fingerprints`): the
checkpoint has the newest outcome's with a fixed width.

The digest is never logged or shown, and no message says what a record holds. Its length is fixed,
so the size of a checkpoint does not depend on content.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from hashlib import blake2b

from msgspec import UNSET

from streamdp.core.errors import OTHER_TOPIC, OTHER_TOPICS, StateMismatch
from streamdp.ports import Partition, Records, StreamTopics, Taken
from streamdp.wire.state import Checkpoint, LastRecord


class NewestRecord:
    """Remembers the newest record that was read; computes its digest on demand."""

    def __init__(self, known: LastRecord | None) -> None:
        self._known = known
        self._record: Records | None = None  # that record only

    def read(self, records: Records) -> None:
        """Take in records in order; what is read again changes nothing."""
        if len(records) and (self._known is None or records.offsets[-1] > self._known.offset):
            self._record = Records(
                partition=records.partition,
                start=records.start,
                offsets=records.offsets[-1:],
                keys=records.keys[-1:],
                values=records.values[-1:],
                next_offset=records.next_offset,
                headers=records.headers[-1:],
                timestamps=records.timestamps[-1:],
            )

    def last_record(self) -> LastRecord | None:
        """The newest record, for a checkpoint."""
        if self._record is not None:
            record, self._record = self._record, None
            self._known = fingerprint(record, 0, whole=len(record.headers) > 0)
        return self._known


def way_out(topics: StreamTopics) -> str:
    """What to do where an input gives its offsets out again."""
    return OTHER_TOPICS if topics.second_input else OTHER_TOPIC


class InputFingerprint:
    """Looks for the last record that was read among the input that a taking reads."""

    def __init__(
        self,
        partition: Partition,
        last: LastRecord | None,
        *,
        first: int,
        ids: tuple[str | None, str | None],
        remedy: str,
        expected: str = "",
    ) -> None:
        """`ids`: of the topic that was read, and of the one that is there now."""
        self._where = f"partition {partition}"
        expired = last is not None and last.offset < first
        self._last = None if expired else last
        self._settled = ids[0] is not None and ids[0] == ids[1]
        self._says = f"the input was replaced: it does not hold what was read; {remedy}"
        of = 0 if last is None else last.offset
        self._expected = expected or f"the same record at offset {of}"

    @property
    def span(self) -> range:
        """The offsets that are read only for this check: the record's, or none."""
        if self._last is None or self._settled:
            return range(0)
        return range(self._last.offset, self._last.offset + 1)

    def check(self, records: Records, *, every: bool = True) -> None:
        """Halt unless the record, if these records should contain it, is the one that was read.

        Without `every` it may be missing: retention has deleted it.
        """
        last = self._last
        if last is None or not records.start <= last.offset < records.next_offset:
            return
        self._last = None
        whole = last.whole is True
        if whole and len(records) and not len(records.headers):
            return  # the stream no longer reads headers
        for at, offset in enumerate(records.offsets):
            if offset == last.offset:
                read_again = fingerprint(records, at, whole=whole)
                if read_again.digest == last.digest:
                    return
                break
        else:
            if not every:
                return
        raise StateMismatch(self._where, self._says, expected=self._expected, got="another")


def of_input(
    topics: StreamTopics, partition: Partition, taken: Taken, checkpoint: Checkpoint | None
) -> InputFingerprint:
    """The check of a stream's input, or of an assembly's requests."""
    last, known = (
        (None, None) if checkpoint is None else (checkpoint.last_record, checkpoint.input_id)
    )
    return InputFingerprint(
        partition, last, first=taken.first_offset, ids=(known, taken.input_id),
        remedy=way_out(topics),
    )  # fmt: skip


Read = Callable[[Partition, int, int], AsyncIterator[Records]]
"""Reads some offsets of an input again."""


async def read_proof(partition: Partition, span: range, read: Read) -> list[Records]:
    """The records that are read only for the check; none if they have expired meanwhile."""
    if not span:
        return []
    with suppress(StateMismatch):
        batches = [records async for records in read(partition, span.start, span.stop)]
        return batches or [Records(partition, span.start, (), (), (), span.stop)]
    return []


def fingerprint(records: Records, at: int, *, whole: bool) -> LastRecord:
    """What identifies one of the records; `whole` includes its headers and timestamp.

    Each part comes after its length, so that no two records look the same.
    """
    parts = [records.keys[at], records.values[at]]
    if whole:
        parts.append(b"%d" % records.timestamps[at])
        for name, value in records.headers[at]:
            parts += [name.encode(), value]
    hashed = blake2b(digest_size=16, person=b"streamdp record")
    for part in parts:
        hashed.update(b"-" if part is None else b"%d:" % len(part))
        hashed.update(part or b"")
    digest, offset = hashed.hexdigest(), records.offsets[at]
    return LastRecord(offset=offset, digest=digest, whole=True if whole else UNSET)
