"""Is the input still the one that was read? Known by the last record of it, where there are no ids.

The checkpoint, which is trusted like the input, keeps the offset of the newest record that was read
and a digest of its key and value; of its headers and timestamp too where the stream reads headers,
because a feedback record's key and value are nearly always the same. (Checkpoints of the version
before have key and value only, and are compared so.) A taking looks whether that record is still
there:

1. Where the topic has an id and it is the checkpoint's, nothing has to be read for it. The record
   is compared all the same if a rebuild reads it anyway: a log that was cut back and filled again
   keeps its id.
2. Where nothing else tells, the record is read by itself, before a rebuild finds other things wrong
   with what is not the same input.
3. A record that has expired proves nothing, and neither does a checkpoint that has none, nor one
   that knows headers where the stream reads none any more.

The digest is never logged or shown, and no message says what a record holds. Its length is fixed,
so the size of a checkpoint does not depend on content.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from msgspec import UNSET

from streamdp.core.errors import StateMismatch, complaint
from streamdp.ports import Partition, Records, Taken
from streamdp.wire.state import Checkpoint, LastRecord


class Newest:
    """Remembers the newest record that was read; its digest is made when it is asked for."""

    def __init__(self, known: LastRecord | None) -> None:
        self._known = known
        self._record: Records | None = None  # it alone

    def read(self, records: Records) -> None:
        """These came after all that were remembered."""
        if len(records):
            self._record = _last_of(records)

    def last_record(self) -> LastRecord | None:
        """For a checkpoint."""
        if self._record is not None:
            record, self._record = self._record, None
            self._known = fingerprint(record, 0, whole=len(record.headers) > 0)
        return self._known


class Sameness:
    """Looks for the checkpoint's last record among what a taking reads of the input."""

    def __init__(self, partition: Partition, taken: Taken, checkpoint: Checkpoint | None) -> None:
        self._where = f"partition {partition}"
        self._last = None if checkpoint is None else checkpoint.last_record
        if self._last is not None and self._last.offset < taken.first_offset:
            self._last = None  # it has expired
        known = None if checkpoint is None else checkpoint.input_id
        self._settled = known is not None and known == taken.input_id

    @property
    def span(self) -> range:
        """The offsets to be read for this alone: the record's, or none."""
        if self._last is None or self._settled:
            return range(0)
        return range(self._last.offset, self._last.offset + 1)

    def check(self, records: Records) -> None:
        """Halt unless the record, if it is to be among these, is the one that was read."""
        last = self._last
        if last is None or not records.start <= last.offset < records.next_offset:
            return
        self._last = None
        whole = last.whole is True
        if whole and len(records) and not len(records.headers):
            return  # the stream reads none now
        for at, offset in enumerate(records.offsets):
            if offset == last.offset:
                read_again = fingerprint(records, at, whole=whole)
                if read_again.digest == last.digest:
                    return
        raise StateMismatch(
            complaint(
                self._where,
                "the input was replaced: it does not hold what was read; send its events to a topic"
                " of another name, which a stream of another name may read",
                expected=f"the same record at offset {last.offset}",
                got="another",
            )
        )


def _last_of(records: Records) -> Records:
    """The last record alone: the others need not be kept for it."""
    return Records(
        partition=records.partition,
        start=records.start,
        offsets=records.offsets[-1:],
        keys=records.keys[-1:],
        values=records.values[-1:],
        next_offset=records.next_offset,
        headers=records.headers[-1:],
        timestamps=records.timestamps[-1:],
    )


def fingerprint(records: Records, at: int, *, whole: bool) -> LastRecord:
    """What one of the records is known again by; `whole` with its headers and timestamp."""
    hashed = blake2b(digest_size=16, person=b"streamdp record")
    for part in _parts(records, at, whole=whole):
        hashed.update(b"-" if part is None else b"%d:" % len(part))
        hashed.update(part or b"")
    digest, offset = hashed.hexdigest(), records.offsets[at]
    return LastRecord(offset=offset, digest=digest, whole=True if whole else UNSET)


def _parts(records: Records, at: int, *, whole: bool) -> Iterator[bytes | None]:
    """What is digested, each with its length first, so that no two records are told the same."""
    yield records.keys[at]
    yield records.values[at]
    if whole:
        yield b"%d" % records.timestamps[at]
        for name, value in records.headers[at]:
            yield name.encode()
            yield value
