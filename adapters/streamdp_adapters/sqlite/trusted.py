"""The trusted file: the input log, the owners, the state, and what is published from it.

Each function is one transaction or one read. A record's row number is its partition's id and its
offset; a partition's `first` and `next` are stored apart from the records, so trimming never gives
an offset out again. A stream's partition has an owner number: a commit checks in its own
transaction that it is still the same.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

import msgspec

from streamdp.core.errors import Fenced, InvalidConfig
from streamdp.ports import (
    NO_INPUT,
    Commit,
    Headers,
    Key,
    LastCommit,
    LiveEntries,
    Reach,
    StreamTopics,
    Taken,
    Value,
)
from streamdp_adapters.sqlite.files import WIDTH, FileKind, OpenFile
from streamdp_adapters.sqlite.published import (
    ACTIONS,
    LEDGER,
    LIST_KEY,
    SCHEMA,
    TABLES,
    append,
    last_row,
    ledger_line,
    parts_of,
    rows_of,
)
from streamdp_adapters.sqlite.published import Row as PublishedRow

TRUSTED = FileKind(
    name="a trusted file of streamdp",
    application_id=0x5DB0_0005,
    version=1,
    mode=0o600,
    schema=f"""
    CREATE TABLE input (
      id INTEGER PRIMARY KEY, topic TEXT NOT NULL, number INTEGER NOT NULL,
      first INTEGER NOT NULL, next INTEGER NOT NULL, UNIQUE (topic, number));
    CREATE TABLE record (id INTEGER PRIMARY KEY, key BLOB, value BLOB, headers BLOB,
      timestamp INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE part (
      id INTEGER PRIMARY KEY, app TEXT NOT NULL, stream TEXT NOT NULL, number INTEGER NOT NULL,
      topic TEXT NOT NULL, owner INTEGER NOT NULL, worker TEXT NOT NULL,
      position INTEGER, low_water INTEGER, remark TEXT NOT NULL DEFAULT '',
      beside TEXT NOT NULL DEFAULT '', beside_position INTEGER,
      UNIQUE (app, stream, number));
    CREATE TABLE state (part INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
      UNIQUE (part, key));
    {SCHEMA}
    """,
)
_headers_encoder = msgspec.msgpack.Encoder()
_headers_decoder = msgspec.msgpack.Decoder(list[tuple[str, bytes | None]])

_READ_AT_ONCE = 2000  # entries of a state, or rows to publish
TRIMMED_AT_ONCE = 5000  # records that one commit deletes at most: it has to stay short


@dataclass(frozen=True, slots=True)
class TakenPart:
    """One partition of a stream that was ever taken, and its id."""

    topics: StreamTopics
    number: int
    id: int


@dataclass(frozen=True, slots=True)
class Head:
    """One partition of an input, as of now."""

    id: int
    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """The right to commit to a partition: the newest owner number."""

    part: int
    number: int
    worker: str


@dataclass(frozen=True, slots=True)
class TrustedFile:
    """The transactions on the trusted file. One thread only."""

    file: OpenFile
    history: str  # "all": superseded actions stay; "latest": they are deleted

    # --- topics and input -------------------------------------------------------------------

    def create(self, topic: str, partitions: int) -> int:
        """Create missing partitions; return how many there were."""
        with self.file.writing() as file:
            before = len(heads_of(file, topic))
            file.executemany(
                "INSERT INTO input (topic, number, first, next) VALUES (?, ?, 0, 0)",
                [(topic, number) for number in range(before, partitions)],
            )
            return before

    def heads(self, topic: str) -> list[Head]:
        """The partitions of an input, in order; empty if there is no such input."""
        with self.file.reading() as file:
            return heads_of(file, topic)

    def append(
        self,
        topic: str,
        records: Sequence[tuple[Key, Value]],
        partition: int | None,
        *,
        headers: Sequence[Headers] | None = None,
        kept: int | None = None,
    ) -> None:
        """Append records, all or none; a key's partition is its checksum, the null key's is 0.

        Their timestamp is the present time. With `kept`, records older than the `kept` newest ones
        are deleted from the partitions that get records.
        """
        with self.file.writing() as file:
            heads = heads_of(file, topic)
            if partition is not None:
                _check_number(topic, heads, partition)
            shares: dict[int, list[Row]] = {}
            for at, (key, value) in enumerate(records):
                home = crc32(key or b"") % len(heads) if partition is None else partition
                written = None if headers is None else write_headers(headers[at])
                shares.setdefault(home, []).append((key, value, written))
            for home, share in shares.items():
                _append(file, heads[home], share)
                if kept is not None:
                    _forget(file, heads[home], heads[home].next + len(share) - kept)

    # --- owners and commits -----------------------------------------------------------------

    def claim(self, topics: StreamTopics, number: int, worker: str) -> Ownership:
        """Fence every earlier owner; refuse a partition that is not there.

        A partition that was committed keeps the names of its inputs, and so the records that it
        needs, until the next commit: the taker may find that they are not those it was taken for.
        """
        with self.file.writing() as file:
            _check_number(topics.input, heads_of(file, topics.input), number)
            part = _enter(file, topics, number)
            file.execute(
                "UPDATE part SET topic = ?, beside = ? WHERE id = ? AND position IS NULL",
                (topics.input, topics.second_input, part),
            )
            (owner,) = file.execute(
                "UPDATE part SET owner = owner + 1, worker = ? WHERE id = ? RETURNING owner",
                (worker, part),
            ).fetchone()
            return Ownership(part, owner, worker)

    def record(
        self,
        topics: StreamTopics,
        number: int,
        owner: Ownership,
        commit: Commit,
        *,
        retain: int,
    ) -> None:
        """Record one commit, with what it publishes."""
        with self.file.writing() as file:
            _check_owner(file, topics, number, owner)
            _write_state(file, owner.part, commit)
            for table, records in ((ACTIONS, commit.actions), (LEDGER, commit.ledger)):
                start = last_row(file, table, owner.part) + 1
                rows = [(at, *record) for at, record in enumerate(records, start)]
                append(file, table, owner.part, rows, self.history)
            file.execute(
                "UPDATE part SET topic = ?, beside = ?, position = ?, remark = ?,"
                " low_water = coalesce(?, low_water),"
                " beside_position = coalesce(?, beside_position) WHERE id = ?",
                (
                    topics.input,
                    topics.second_input,
                    commit.next_offset,
                    commit.remark,
                    commit.low_water,
                    commit.second_input,
                    owner.part,
                ),
            )
            if commit.records:
                written = [(k, value, write_headers(pairs)) for k, value, pairs in commit.records]
                _append(file, heads_of(file, topics.output)[number], written)
            for topic in filter(None, (topics.input, topics.second_input)):
                _trim(file, topic, number, retain)

    def revise(
        self, topics: StreamTopics, change: Callable[[bytes | None], bytes]
    ) -> tuple[TakenPart, bytes]:
        """Replace the stream's list, which is kept beside the actions of partition 0."""
        with self.file.writing() as file:
            part = _enter(file, topics, 0)
            row = file.execute(
                "SELECT value FROM action WHERE part = ? AND key IS ?", (part, LIST_KEY)
            ).fetchone()
            line = change(None if row is None else bytes(row[0]))
            at = last_row(file, ACTIONS, part) + 1
            append(file, ACTIONS, part, [(at, LIST_KEY, line)], self.history)
            return TakenPart(topics, 0, part), line

    def durable(
        self,
        topics: StreamTopics,
        number: int,
        *,
        owner: Ownership | None = None,
        entries: LiveEntries | None = None,
    ) -> Taken:
        """A partition's durable state in one read transaction; with `owner`, only for it."""
        with self.file.reading() as file:
            if owner is not None:
                _check_owner(file, topics, number, owner)
            heads = heads_of(file, topics.input)
            _check_number(topics.input, heads, number)
            parts = file.execute(
                "SELECT number, remark, id, position, worker, beside_position FROM part"
                " WHERE app = ? AND stream = ?",
                (topics.app, topics.stream),
            ).fetchall()
            taken = (row for at, _, *row in parts if at == number)
            part, position, worker, second_position = next(taken, (None, None, None, None))
            state = LiveEntries() if entries is None else entries
            rows = file.execute("SELECT key, value FROM state WHERE part = ? ORDER BY key", (part,))
            while some := rows.fetchmany(_READ_AT_ONCE):
                state.enter(*zip(*some, strict=True))
            second = heads_of(file, topics.second_input)[number] if topics.second_input else None
            return Taken(
                state=state,
                first_offset=heads[number].first,
                end_offset=heads[number].next,
                group_offset=position,
                last_ledger_line=None
                if part is None
                else ledger_line(file, last_row(file, LEDGER, part)),
                partitions=len(heads),
                remarks={at: text for at, text, _, committed, *_ in parts if committed is not None},
                owner=worker or None,
                second_input=Reach(second.first, second.next, second_position)
                if second
                else NO_INPUT,
            )

    def parts(self) -> list[TakenPart]:
        """Each partition of each stream that was ever taken, gone streams included."""
        with self.file.reading() as file:
            rows = file.execute(
                "SELECT app, stream, topic, beside, number, id FROM part"
                " ORDER BY app, stream, number"
            ).fetchall()
        return [
            TakenPart(StreamTopics(app, stream, topic, second_input=second_input), number, part)
            for app, stream, topic, second_input, number, part in rows
        ]

    def partitions(self, topics: StreamTopics) -> list[int]:
        """The partitions of a stream that were ever taken."""
        with self.file.reading() as file:
            return list(parts_of(file, topics))

    def last_commit(self, topics: StreamTopics, number: int, *, published: int) -> LastCommit:
        """A partition's state, and its ledger lines behind the row number that is published."""
        with self.file.reading() as file:
            part = parts_of(file, topics)[number]
            state = file.execute("SELECT key, value FROM state WHERE part = ?", (part,)).fetchall()
            waits = max(0, published + 1 - (part << WIDTH))
            lines = rows_of(file, LEDGER, "value", part, waits)
        return LastCommit(number, dict(state), [line for (line,) in lines])

    def confirm(self, topics: StreamTopics, number: int, owner: Ownership) -> None:
        """Refuse an owner that was fenced."""
        with self.file.reading() as file:
            _check_owner(file, topics, number, owner)

    # --- what the published file copies -----------------------------------------------------

    def known(self, part: int, *, ledger_row: int) -> tuple[dict[str, int], bytes | None]:
        """The number of a partition's newest row in each table, and one of its ledger rows."""
        with self.file.reading() as file:
            last = {table: last_row(file, table, part) for table in TABLES}
            return last, ledger_line(file, ledger_row)

    def later(self, table: str, part: int, after: int) -> Iterator[list[PublishedRow]]:
        """A partition's rows behind this number, in order, some at a time."""
        while True:
            start = after + 1 - (part << WIDTH)
            with self.file.reading() as file:
                rows = rows_of(file, table, "id, key, value", part, start, most=_READ_AT_ONCE)
            if rows:
                yield rows
            if len(rows) < _READ_AT_ONCE:
                return
            after = rows[-1][0]

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _enter(file: sqlite3.Connection, topics: StreamTopics, number: int) -> int:
    """The id of a stream's partition, which is given to it once."""
    file.execute(
        "INSERT OR IGNORE INTO part (app, stream, number, topic, owner, worker)"
        " VALUES (?, ?, ?, '', 0, '')",
        (topics.app, topics.stream, number),
    )
    return parts_of(file, topics)[number]


def heads_of(file: sqlite3.Connection, topic: str) -> list[Head]:
    """The partitions of an input in order."""
    rows = file.execute(
        "SELECT id, first, next FROM input WHERE topic = ? ORDER BY number", (topic,)
    )
    return [Head(*row) for row in rows]


def write_headers(headers: Headers) -> bytes | None:
    """A record's headers as bytes; None if it has none."""
    return _headers_encoder.encode(list(headers)) if headers else None


def read_headers(written: bytes | None) -> Headers:
    """The headers in these bytes."""
    return () if written is None else _headers_decoder.decode(written)


def missing(topic: str) -> InvalidConfig:
    """The error for an input that does not exist."""
    return InvalidConfig(
        f"topic {topic}", "missing", expected="`streamdp topics create`", got="no such topic"
    )


def _check_number(topic: str, heads: Sequence[Head], number: int) -> None:
    """Refuse a partition that an input does not have."""
    if not heads:
        raise missing(topic)
    if not 0 <= number < len(heads):
        raise InvalidConfig(
            f"topic {topic}", "no such partition", expected=f"below {len(heads)}", got=number
        )


Row = tuple[Key, Value, bytes | None]
"""A record's key, value and written headers."""


def _append(file: sqlite3.Connection, head: Head, records: Sequence[Row]) -> None:
    base = (head.id << WIDTH) + head.next
    now = time.time_ns() // 1_000_000
    file.executemany(
        "INSERT INTO record VALUES (?, ?, ?, ?, ?)",
        [(at, *record, now) for at, record in enumerate(records, base)],
    )
    file.execute("UPDATE input SET next = ? WHERE id = ?", (head.next + len(records), head.id))


def _check_owner(
    file: sqlite3.Connection, topics: StreamTopics, number: int, owner: Ownership
) -> None:
    """Refuse a fenced owner."""
    row = file.execute("SELECT owner, worker FROM part WHERE id = ?", (owner.part,)).fetchone()
    if row is None or row[0] != owner.number:
        now = Ownership(owner.part, *row) if row else None
        raise fenced(f"{topics.stream}/{number}", was=owner, now=now)


def fenced(where: str, *, was: Ownership, now: Ownership | None) -> Fenced:
    """The error for an owner that was replaced; here a partition is never given back."""
    return Fenced(
        where,
        "fenced; let one process at a time use these files",
        expected=f"owner {was.number} ({was.worker})",
        got=f"owner {now.number} ({now.worker})" if now else "no owner",
    )


def _write_state(file: sqlite3.Connection, part: int, commit: Commit) -> None:
    last = dict(commit.state)  # the last entry for a key wins
    file.executemany(
        "DELETE FROM state WHERE part = ? AND key = ?",
        [(part, key) for key, value in last.items() if value is None],
    )
    file.executemany(
        "INSERT INTO state VALUES (?, ?, ?)"
        " ON CONFLICT (part, key) DO UPDATE SET value = excluded.value",
        [(part, key, value) for key, value in last.items() if value is not None],
    )


def _trim(file: sqlite3.Connection, topic: str, number: int, retain: int) -> None:
    """Delete old input that no stream needs, all but `retain` records, some at a time."""
    low_waters = [
        low
        for (low,) in file.execute(
            "SELECT low_water FROM part WHERE topic = ?1 AND number = ?2 UNION ALL"
            " SELECT beside_position FROM part WHERE beside = ?1 AND number = ?2",
            (topic, number),
        )
    ]
    head = heads_of(file, topic)[number]
    if None in low_waters:
        return
    _forget(file, head, min(min(low_waters) - retain, head.first + TRIMMED_AT_ONCE))


def _forget(file: sqlite3.Connection, head: Head, before: int) -> None:
    """Delete records below an offset."""
    if before <= head.first:
        return
    base = head.id << WIDTH
    file.execute("DELETE FROM record WHERE id >= ? AND id < ?", (base + head.first, base + before))
    file.execute("UPDATE input SET first = ? WHERE id = ?", (before, head.id))
