"""The published file: readers open it, and it is the witness of what the trusted file once knew.

It holds public things only: the releases in force, the ledger, and for each partition of a stream
the sequence number and the position of the last commit published here. A commit is published once,
in the order of numbers: publishing it again changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from streamdp.core.errors import TransportLost
from streamdp.ports import Key, Published, StreamTopics
from streamdp_adapters.sqlite.files import WIDTH, FileKind, reading, writing

PUBLISHED = FileKind(
    name="a published file of streamdp",
    application_id=0x5DB0_0002,
    version=1,
    mode=0o644,
    schema="""
    CREATE TABLE pair (one INTEGER PRIMARY KEY CHECK (one = 1), id BLOB NOT NULL);
    CREATE TABLE part (
      id INTEGER PRIMARY KEY, app TEXT NOT NULL, stream TEXT NOT NULL, number INTEGER NOT NULL,
      sequence INTEGER NOT NULL, position INTEGER,
      actions INTEGER NOT NULL, ledger INTEGER NOT NULL, UNIQUE (app, stream, number));
    CREATE TABLE action (id INTEGER PRIMARY KEY, part INTEGER NOT NULL, key BLOB, value BLOB);
    CREATE INDEX action_of_key ON action (part, key);
    CREATE TABLE ledger (id INTEGER PRIMARY KEY, key BLOB, value BLOB)
    """,
)
PAGE = 1000  # records of a reader's page

ACTIONS, LEDGER = "action", "ledger"


@dataclass(frozen=True, slots=True)
class Publication:
    """The contents of one commit, with its number."""

    sequence: int
    position: int
    actions: Sequence[tuple[Key, bytes]] = field(repr=False)  # not public before it is durable
    ledger: Sequence[tuple[Key, bytes]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class PublishedMark:
    """What the published file knows of a partition."""

    sequence: int = 0
    position: int | None = None
    last_ledger_line: bytes | None = None


_MODE_KEY = "mode"
"""The key of the stream's own record. It is text, and learners' keys are blobs: never equal."""


class PublishedFile:
    """Writes publications, each commit once. One thread only.

    With `history` ``"all"`` superseded actions stay; with ``"latest"`` they are deleted.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, *, history: str) -> None:
        self._connection = connection
        self._path = path
        self._history = history

    def pair(self) -> bytes | None:
        """The name of the trusted file that this one belongs to."""
        with reading(self._connection, self._path) as file:
            row = file.execute("SELECT id FROM pair").fetchone()
            return bytes(row[0]) if row else None

    def pair_with(self, name: bytes) -> None:
        """Take the name of a trusted file, unless this file has a name already."""
        with writing(self._connection, self._path) as file:
            file.execute("INSERT OR IGNORE INTO pair VALUES (1, ?)", (name,))

    def witness(self, topics: StreamTopics, number: int) -> PublishedMark:
        """The published file's mark of a partition."""
        with reading(self._connection, self._path) as file:
            part = _part(file, topics, number)
            if part is None:
                return PublishedMark()
            return PublishedMark(part.sequence, part.position, _last_line(file, part.id))

    def enter(self, topics: StreamTopics, number: int) -> None:
        """Let readers find a stream before it has published anything."""
        with writing(self._connection, self._path) as file:
            if _part(file, topics, number) is None:
                _new_part(file, topics, number)

    def publish(self, topics: StreamTopics, number: int, batch: Sequence[Publication]) -> int:
        """Publish commits in order; skip published ones, and refuse one after a gap.

        Returns how many were not skipped.
        """
        with writing(self._connection, self._path) as file:
            part = _part(file, topics, number) or _new_part(file, topics, number)
            before = part.sequence
            for publication in batch:
                if publication.sequence <= part.sequence:
                    continue
                if publication.sequence != part.sequence + 1:
                    raise TransportLost(
                        f"{self._path}",
                        f"{topics.stream}/{number} has a gap",
                        expected=f"commit {publication.sequence - 1}",
                        got=part.sequence,
                    )
                part = self._append(file, part, publication)
            file.execute(
                "UPDATE part SET sequence = ?, position = ?, actions = ?, ledger = ? WHERE id = ?",
                (part.sequence, part.position, part.actions, part.ledger, part.id),
            )
            return part.sequence - before

    def announce(self, topics: StreamTopics, line: bytes) -> None:
        """Replace the stream's own record, in partition 0; commits number nothing by it."""
        with writing(self._connection, self._path) as file:
            part = _part(file, topics, 0) or _new_part(file, topics, 0)
            file.execute("DELETE FROM action WHERE part = ? AND key IS ?", (part.id, _MODE_KEY))
            at = part.id << WIDTH | part.actions
            file.execute("INSERT INTO action VALUES (?, ?, ?, ?)", (at, part.id, _MODE_KEY, line))
            file.execute("UPDATE part SET actions = actions + 1 WHERE id = ?", (part.id,))

    def _append(self, file: sqlite3.Connection, part: _Part, publication: Publication) -> _Part:
        actions = list(enumerate(publication.actions, part.id << WIDTH | part.actions))
        if self._history == "latest":
            newest = {key: (at, (key, value)) for at, (key, value) in actions}
            file.executemany(
                "DELETE FROM action WHERE part = ? AND key IS ?", [(part.id, key) for key in newest]
            )
            actions = sorted(newest.values(), key=lambda pair: pair[0])
        file.executemany(
            "INSERT INTO action VALUES (?, ?, ?, ?)",
            [(at, part.id, key, value) for at, (key, value) in actions],
        )
        lines = enumerate(publication.ledger, part.id << WIDTH | part.ledger)
        file.executemany(
            "INSERT INTO ledger VALUES (?, ?, ?)", [(at, key, value) for at, (key, value) in lines]
        )
        return _Part(
            part.id,
            publication.sequence,
            publication.position,
            part.actions + len(publication.actions),
            part.ledger + len(publication.ledger),
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class _Part:
    id: int
    sequence: int
    position: int | None
    actions: int  # the offset of the next action
    ledger: int


def _part(file: sqlite3.Connection, topics: StreamTopics, number: int) -> _Part | None:
    row = file.execute(
        "SELECT id, sequence, position, actions, ledger FROM part"
        " WHERE app = ? AND stream = ? AND number = ?",
        (topics.app, topics.stream, number),
    ).fetchone()
    return _Part(*row) if row else None


def _new_part(file: sqlite3.Connection, topics: StreamTopics, number: int) -> _Part:
    cursor = file.execute(
        "INSERT INTO part (app, stream, number, sequence, actions, ledger)"
        " VALUES (?, ?, ?, 0, 0, 0)",
        (topics.app, topics.stream, number),
    )
    assert cursor.lastrowid is not None
    return _Part(cursor.lastrowid, 0, None, 0, 0)


def _last_line(file: sqlite3.Connection, part: int) -> bytes | None:
    row = file.execute(
        "SELECT value FROM ledger WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT 1",
        (part << WIDTH, (part + 1) << WIDTH),
    ).fetchone()
    return bytes(row[0]) if row else None


class PublishedReader:
    """Reads publications, page by page. One thread only."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def parts(self, topics: StreamTopics) -> dict[int, int]:
        """The partitions' ids, by number."""
        with reading(self._connection, self._path) as file:
            return dict(
                file.execute(
                    "SELECT number, id FROM part WHERE app = ? AND stream = ? ORDER BY number",
                    (topics.app, topics.stream),
                ).fetchall()
            )

    def streams(self) -> list[StreamTopics]:
        """Every stream that was ever taken."""
        with reading(self._connection, self._path) as file:
            rows = file.execute(
                "SELECT DISTINCT app, stream FROM part ORDER BY app, stream"
            ).fetchall()
        return [StreamTopics(app, stream, "") for app, stream in rows]

    def late(self, topics: StreamTopics, newest: int) -> dict[int, int]:
        """The offset in each partition from which on there are about `newest` lines."""
        with reading(self._connection, self._path) as file:
            ends = file.execute(
                "SELECT number, ledger FROM part WHERE app = ? AND stream = ?",
                (topics.app, topics.stream),
            ).fetchall()
        share = -(-newest // max(1, len(ends)))
        return {number: max(0, end - share) for number, end in ends}

    def page(self, table: str, number: int, part: int, start: int) -> list[Published]:
        """The next records of a partition, from an offset on."""
        assert table in {ACTIONS, LEDGER}
        low = part << WIDTH
        with reading(self._connection, self._path) as file:
            rows = file.execute(
                f"SELECT id, key, value FROM {table} WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",  # noqa: S608
                (low + start, low + (1 << WIDTH), PAGE),
            ).fetchall()
        return [
            Published(number, at - low, None if key == _MODE_KEY else key, value)
            for at, key, value in rows
        ]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
