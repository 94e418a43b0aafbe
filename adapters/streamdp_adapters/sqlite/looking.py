"""Reads the trusted file without changing it: new records, owners, old input."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from streamdp.core.errors import StateMismatch, beyond
from streamdp.ports import Partition, Records, StreamTopics
from streamdp_adapters.sqlite.files import WIDTH, OpenFile
from streamdp_adapters.sqlite.published import LIST_KEY, rows_of
from streamdp_adapters.sqlite.trusted import Head, Ownership, heads_of, read_headers

READ_BATCH = 2000  # records of an old stretch that are handed over at once


@dataclass(frozen=True, slots=True)
class Sight:
    """The result of one look, as of one moment."""

    heads: dict[Partition, Head] = field(default_factory=dict)
    owners: dict[Partition, Ownership] = field(default_factory=dict)
    records: list[Records] = field(default_factory=list)
    gone: list[tuple[Partition, StateMismatch]] = field(default_factory=list)


def look(
    file: OpenFile,
    streams: Sequence[StreamTopics],
    positions: Mapping[Partition, int],
    limit: int,
) -> Sight:
    """At most `limit` records from these positions on, in this order of partitions."""
    sight = Sight()
    asking = {topics.stream for topics in streams if topics.headers}
    with file.reading() as reading:
        for topics in streams:
            for number, head in enumerate(heads_of(reading, topics.input)):
                sight.heads[Partition(topics.stream, number)] = head
            for number, *owner in reading.execute(
                "SELECT number, id, owner, worker FROM part WHERE app = ? AND stream = ?",
                (topics.app, topics.stream),
            ):
                sight.owners[Partition(topics.stream, number)] = Ownership(*owner)
        for partition, start in positions.items():
            head = sight.heads[partition]
            if start < head.first:
                sight.gone.append((partition, _gone(file, partition, start, head)))
            elif limit > 0 and start < head.next:
                wanted = partition.stream in asking
                records = _records(reading, partition, head, start, head.next, limit, wanted)
                sight.records.append(records)
                limit -= len(records)
    return sight


def stretch(
    file: OpenFile,
    topics: StreamTopics,
    partition: Partition,
    start: int,
    stop: int,
    *,
    every: bool = True,
) -> Records:
    """The next of the records in [start, stop), or of those that are retained."""
    with file.reading() as reading:
        head = heads_of(reading, topics.input)[partition.number]
        if start < head.first:
            if every:
                raise _gone(file, partition, start, head)
            return Records(partition, start, (), (), (), min(stop, head.first))
        stop = min(stop, head.next)
        return _records(reading, partition, head, start, stop, READ_BATCH, topics.headers)


def since(file: OpenFile, topics: StreamTopics, number: int, start: int, timestamp: int) -> int:
    """The first record of the second input from `start` on that is not older; else the end."""
    with file.reading() as reading:
        head = heads_of(reading, topics.second_input)[number]
        base = head.id << WIDTH
        if start > head.next:
            raise beyond(str(Partition(topics.stream, number)))
        row = reading.execute(
            "SELECT id FROM record WHERE id >= ? AND id < ? AND timestamp >= ? ORDER BY id LIMIT 1",
            (base + start, base + head.next, timestamp),
        ).fetchone()
    return head.next if row is None else int(row[0]) - base


def newest_list(file: OpenFile, topics: StreamTopics) -> bytes | None:
    """The stream's list, which is kept beside the actions of partition 0."""
    with file.reading() as reading:
        row = reading.execute(
            "SELECT value FROM action JOIN part ON action.part = part.id"
            " WHERE app = ? AND stream = ? AND number = 0 AND key IS ?"
            " ORDER BY action.id DESC LIMIT 1",
            (topics.app, topics.stream, LIST_KEY),
        ).fetchone()
    return None if row is None else bytes(row[0])


def heads(file: OpenFile, topics: StreamTopics) -> dict[Partition, Head]:
    """Where each partition of the input begins and ends."""
    with file.reading() as reading:
        found = heads_of(reading, topics.input)
    return {Partition(topics.stream, number): head for number, head in enumerate(found)}


def newest(file: OpenFile, topics: StreamTopics, count: int) -> list[Records]:
    """About the `count` last records of an input."""
    with file.reading() as reading:
        found = heads_of(reading, topics.input)
        share, latest = -(-count // max(1, len(found))), list[Records]()
        for number, head in enumerate(found):
            partition, start = Partition(topics.stream, number), max(head.first, head.next - share)
            latest.append(
                _records(reading, partition, head, start, head.next, share, topics.headers)
            )
    return [records for records in latest if records]


def _gone(file: OpenFile, partition: Partition, start: int, head: Head) -> StateMismatch:
    return StateMismatch(
        f"{partition}: input in {file.path}",
        "older records were trimmed",
        expected=f"offset {start}",
        got=f"{head.first} and later",
    )


def _records(
    file: sqlite3.Connection,
    partition: Partition,
    head: Head,
    start: int,
    stop: int,
    limit: int,
    headers: bool,  # with timestamps
) -> Records:
    base, columns = head.id << WIDTH, "id, key, value" + ", headers, timestamp" * headers
    rows = rows_of(file, "record", columns, head.id, start, stop, most=limit)
    ids, keys, values, *extras = zip(*rows, strict=True) if rows else ((), (), ())
    offsets = [at - base for at in ids]
    end = stop if len(rows) < limit else offsets[-1] + 1
    written, timestamps = extras or ((), ())
    return Records(
        partition,
        start,
        offsets,
        keys,
        values,
        end,
        [read_headers(of) for of in written],
        timestamps,
    )
