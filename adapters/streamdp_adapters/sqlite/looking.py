"""Reads the trusted file without changing it: new records, owners, old input."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from streamdp.core.errors import StateMismatch, beyond
from streamdp.ports import Partition, Records, StreamTopics
from streamdp_adapters.sqlite.files import WIDTH, reading
from streamdp_adapters.sqlite.trusted import Head, Ownership, heads_of, read_headers

_PLAIN = "SELECT id, key, value FROM record WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
_WITH_HEADERS = _PLAIN.replace("value", "value, headers, timestamp")


@dataclass(frozen=True, slots=True)
class Sight:
    """The result of one look, as of one moment."""

    heads: dict[Partition, Head] = field(default_factory=dict)
    owners: dict[Partition, Ownership] = field(default_factory=dict)
    records: list[Records] = field(default_factory=list)
    gone: list[tuple[Partition, StateMismatch]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Span:
    """The records of a partition to look at, and whether headers and timestamps are needed."""

    head: Head
    start: int
    stop: int
    headers: bool


class Looker:
    """Reads the trusted file. One thread only."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def look(
        self, streams: Sequence[StreamTopics], positions: Mapping[Partition, int], limit: int
    ) -> Sight:
        """At most `limit` records from these positions on, in this order of partitions."""
        sight = Sight()
        asking = {topics.stream for topics in streams if topics.headers}
        with reading(self._connection, self._path) as file:
            for topics in streams:
                for number, head in enumerate(heads_of(file, topics.input)):
                    sight.heads[Partition(topics.stream, number)] = head
                for number, *owner in file.execute(
                    "SELECT number, id, owner, worker FROM part WHERE app = ? AND stream = ?",
                    (topics.app, topics.stream),
                ):
                    sight.owners[Partition(topics.stream, number)] = Ownership(*owner)
            for partition, start in positions.items():
                head = sight.heads[partition]
                if start < head.first:
                    sight.gone.append((partition, self._gone(partition, start, head)))
                elif limit > 0 and start < head.next:
                    span = Span(head, start, head.next, partition.stream in asking)
                    records = _records(file, partition, span, limit)
                    sight.records.append(records)
                    limit -= len(records)
        return sight

    def range(
        self,
        topics: StreamTopics,
        partition: Partition,
        start: int,
        stop: int,
        limit: int,
        *,
        every: bool = True,
    ) -> Records:
        """At most `limit` of the records in [start, stop), or of those that are retained."""
        with reading(self._connection, self._path) as file:
            head = heads_of(file, topics.input)[partition.number]
            if start < head.first:
                if every:
                    raise self._gone(partition, start, head)
                return Records(partition, start, (), (), (), min(stop, head.first))
            span = Span(head, start, min(stop, head.next), topics.headers)
            return _records(file, partition, span, limit)

    def since(self, topics: StreamTopics, number: int, start: int, timestamp: int) -> int:
        """The first record of the second input from `start` on that is not older; else the end."""
        with reading(self._connection, self._path) as file:
            head = heads_of(file, topics.second_input)[number]
            base = head.id << WIDTH
            if start > head.next:
                raise beyond(str(Partition(topics.stream, number)))
            row = file.execute(
                "SELECT id FROM record WHERE id >= ? AND id < ? AND timestamp >= ?"
                " ORDER BY id LIMIT 1",
                (base + start, base + head.next, timestamp),
            ).fetchone()
        return head.next if row is None else int(row[0]) - base

    def heads(self, topics: StreamTopics) -> dict[Partition, Head]:
        """Where each partition of the input begins and ends."""
        with reading(self._connection, self._path) as file:
            heads = heads_of(file, topics.input)
        return {Partition(topics.stream, number): head for number, head in enumerate(heads)}

    def newest(self, topics: StreamTopics, partition: Partition, count: int) -> Records:
        """The last records of a partition."""
        with reading(self._connection, self._path) as file:
            head = heads_of(file, topics.input)[partition.number]
            start = max(head.first, head.next - count)
            return _records(file, partition, Span(head, start, head.next, topics.headers), count)

    def _gone(self, partition: Partition, start: int, head: Head) -> StateMismatch:
        return StateMismatch(
            f"{partition}: input in {self._path}",
            "older records were trimmed",
            expected=f"offset {start}",
            got=f"{head.first} and later",
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _records(file: sqlite3.Connection, partition: Partition, span: Span, limit: int) -> Records:
    base = span.head.id << WIDTH
    rows = file.execute(
        _WITH_HEADERS if span.headers else _PLAIN,
        (base + span.start, base + span.stop, limit),
    ).fetchall()
    ids, keys, values, *extras = zip(*rows, strict=True) if rows else ((), (), ())
    offsets = [at - base for at in ids]
    end = span.stop if len(rows) < limit else offsets[-1] + 1
    headers, timestamps = extras or ((), ())
    return Records(
        partition,
        span.start,
        offsets,
        keys,
        values,
        end,
        [read_headers(h) for h in headers],
        timestamps,
    )
