"""Encodes and reads a snapshot of a partition's votes, the record that other partitions get.

The record's key is the partition's number, so that a compacted topic keeps the newest of each. The
votes that it counts are on the partition's ledger: the line of the prior of this epoch and number
has the last record and the number of votes, and the votes stand before it. So anybody can make the
snapshot again and compare its digest.

The trusted state has the same bytes for a partition's own newest snapshot, and for those that it
has adopted. Reading is strict. A snapshot from others is also compared with the stream, its
configuration and its crowd (`read_snapshot`).
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
    number: Annotated[int, Meta(ge=1, description="The number of the prior from these votes.")]
    crowd: Annotated[str, Meta(description="How priors follow from votes.")]
    digest: Annotated[str, Meta(description="Digest of the stream's configuration.")]
    version: Annotated[str, Meta(description="Version of the library.")]
    seeded: Annotated[bool, Meta(description="If true, nothing is guaranteed: a test.")]
    fingerprint: Annotated[str, Meta(description="Digest of the snapshot; priors name it.")]
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
            " in `priors`, slots of its block, whether it was for the action in force, the action,"
            " group of its key, how many keys."
        ),
    ]

    def snapshot(self) -> CrowdSnapshot:
        """The snapshot; `StateMismatch` if it does not match the fingerprint."""
        priors, cells = from_base64(self.priors, "priors"), from_base64(self.votes, "votes")
        snapshot = CrowdSnapshot(self.partition, self.epoch, self.number, priors, cells)
        if snapshot.digest != self.fingerprint:
            where = f"snapshot of partition {self.partition}"
            raise StateMismatch(
                complaint(where, "damaged", expected=self.fingerprint[:40], got=snapshot.digest)
            )
        return snapshot


def encode_snapshot(snapshot: CrowdSnapshot, *, lines: Lines) -> bytes:
    """The value of a snapshot's record, in the stream of these lines."""
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
    """Read a snapshot's record; `StateMismatch` if this version cannot read it."""
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
    """Read a snapshot of a partition of this stream, and check it against the stream's crowd."""
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
