"""A snapshot of a partition's votes, as its record tells it to the other partitions.

The record's key is the partition's number, so that a compacted topic keeps the newest of each.
What it counts is on the partition's ledger: the line of the prior of this epoch and number says
which record was the last and how many votes there were, and the votes stand before it. So anybody
can make the snapshot again, and hold it against its digest.

The trusted state has the same bytes: of a partition's own newest snapshot, and of those that it
has adopted. Reading is strict. What others wrote is held against the stream, its configuration and
its crowd too (`read_snapshot`).
"""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from streamdp.core.errors import StateMismatch, complaint
from streamdp.core.evidence.adoption import (
    COLUMNS,
    MOST_CELLS,
    CrowdSnapshot,
    most_priors,
)
from streamdp.core.evidence.crowd import named
from streamdp.wire.lines import Natural, from_base64
from streamdp.wire.published import Lines

SNAPSHOT_SCHEMA = 1
"""The version of the record's schema; it rises when an old reader would misread a new one."""

_LONG = 2**63 - 1


class SnapshotRecord(Struct, frozen=True, kw_only=True, tag_field="type", tag="snapshot"):
    """The newest votes of one partition's keys, counted: a record of a crowd topic."""

    schema: Annotated[int, Meta(ge=1, description="Version of this schema.")]
    stream: str
    partition: Natural
    epoch: Natural
    number: Annotated[int, Meta(ge=1, description="Of the prior that was made of these votes.")]
    crowd: Annotated[str, Meta(description="How priors follow from votes.")]
    digest: Annotated[str, Meta(description="Digest of the stream's configuration.")]
    version: Annotated[str, Meta(description="Version of the library.")]
    seeded: Annotated[bool, Meta(description="If true, nothing is guaranteed: a test.")]
    fingerprint: Annotated[str, Meta(description="Digest of what is told; priors name it.")]
    priors: Annotated[
        str,
        Meta(
            description="base64 of K little-endian int32 for each group of keys and each prior that"
            " votes were drawn under: noise units in parts of 2^20."
        ),
    ]
    votes: Annotated[
        str,
        Meta(
            description="base64 of 6 little-endian int32 for each kind of vote: place of its prior"
            " among those told, slots of its block, whether it was for the action in force, the"
            " action, group of its key, how many keys."
        ),
    ]

    def snapshot(self) -> CrowdSnapshot:
        """What is told; refused where it is not what the fingerprint says."""
        priors, cells = from_base64(self.priors, "priors"), from_base64(self.votes, "votes")
        snapshot = CrowdSnapshot(self.partition, self.epoch, self.number, priors, cells)
        if snapshot.digest != self.fingerprint:
            where = f"snapshot of partition {self.partition}"
            raise StateMismatch(
                complaint(where, "damaged", expected=self.fingerprint[:40], got=snapshot.digest)
            )
        return snapshot


def encode_snapshot(snapshot: CrowdSnapshot, *, lines: Lines) -> bytes:
    """The value of a snapshot's record, of the stream that these lines are of."""
    return _encode(
        SnapshotRecord(
            schema=SNAPSHOT_SCHEMA,
            stream=lines.stream,
            partition=snapshot.partition,
            epoch=snapshot.epoch,
            number=snapshot.number,
            crowd=lines.crowd,
            digest=lines.digest,
            version=lines.version,
            seeded=lines.seeded,
            fingerprint=snapshot.digest,
            priors=b64encode(snapshot.priors).decode(),
            votes=b64encode(snapshot.cells).decode(),
        )
    )


def decode_snapshot(value: bytes, *, where: str = "snapshot") -> SnapshotRecord:
    """Read a snapshot's record; `StateMismatch` if it is none that this version reads."""
    try:
        record = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        expected = f"a snapshot of schema {SNAPSHOT_SCHEMA}"
        got = f"{len(value)} bytes of something else"
        raise StateMismatch(complaint(where, "unreadable", expected=expected, got=got)) from None
    if record.schema > SNAPSHOT_SCHEMA:
        expected = f"schema {SNAPSHOT_SCHEMA} or lower"
        raise StateMismatch(
            complaint(where, "written by a newer streamdp", expected=expected, got=record.schema)
        )
    return record


def read_snapshot(value: bytes, *, lines: Lines, partition: int) -> CrowdSnapshot:
    """The snapshot that a partition of this stream has told, held against the stream's crowd."""
    where = f"snapshot of partition {partition}"
    record = decode_snapshot(value, where=where)
    of = (record.stream, record.partition, record.crowd, record.digest)
    if of != (lines.stream, partition, lines.crowd, lines.digest):
        raise StateMismatch(
            complaint(
                where,
                "of another stream, partition or configuration",
                expected=f"{lines.stream}/{partition}, configuration {lines.digest}",
                got=f"{record.stream[:80]}/{record.partition}, configuration {record.digest[:40]}",
            )
        )
    snapshot = record.snapshot()
    snapshot.check(named(lines.crowd))
    return snapshot


def saved_snapshot(value: bytes, partition: int, *, where: str) -> CrowdSnapshot:
    """Read an entry of the state: a snapshot of this partition."""
    snapshot = decode_snapshot(value, where=where).snapshot()
    if snapshot.partition != partition:
        expected = f"a snapshot of partition {partition}"
        raise StateMismatch(
            complaint(where, "damaged", expected=expected, got=f"one of {snapshot.partition}")
        )
    return snapshot


def largest_snapshot(lines: Lines) -> bytes:
    """A record as long as any snapshot of this stream."""
    crowd = named(lines.crowd)
    priors = bytes(4 * crowd.size * most_priors(crowd))
    cells = bytes(4 * COLUMNS * MOST_CELLS)
    return encode_snapshot(CrowdSnapshot(_LONG, _LONG, _LONG, priors, cells), lines=lines)


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(SnapshotRecord)
