"""The published file: readers open it. It is a replica of two tables of the trusted file.

1. It holds public things only: the releases in force and the ledger.
2. Publishing copies the rows behind its own last ones, from the trusted file. Copying again changes
   nothing, whoever does it. A published file that is missing or old is filled up again.
3. It is the witness of what the trusted file once knew. Before anything is copied, its last ledger
   row must be the trusted file's row of the same number, byte for byte. A published file that is
   ahead (the trusted one was lost or rolled back) is never written to.

A row's number is its partition's id and its offset there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from streamdp.core.errors import StateMismatch
from streamdp.ports import Key, Published, StreamTopics
from streamdp_adapters.sqlite.files import WIDTH, FileKind, reading, writing

SCHEMA = """
    CREATE TABLE action (id INTEGER PRIMARY KEY, part INTEGER NOT NULL, key BLOB, value BLOB);
    CREATE INDEX action_of_key ON action (part, key);
    CREATE TABLE ledger (id INTEGER PRIMARY KEY, key BLOB, value BLOB)
    """
"""The same in both files."""

PUBLISHED = FileKind(
    name="a published file of streamdp",
    application_id=0x5DB0_0004,
    version=1,
    mode=0o644,
    schema=f"""
    CREATE TABLE part (
      id INTEGER PRIMARY KEY, app TEXT NOT NULL, stream TEXT NOT NULL, number INTEGER NOT NULL);
    {SCHEMA}
    """,
)
PAGE = 1000  # records of a reader's page

TABLES = ACTIONS, LEDGER = "action", "ledger"
MODE_KEY = "mode"
"""The key of the stream's own record. It is text, and learners' keys are blobs: never equal."""


Row = tuple[int, Key | str, bytes]
"""A row's number, its key (a text for the stream's own record) and its value."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the trusted file knows of a partition."""

    name: tuple[str, str, int]  # application, stream, partition
    last: Mapping[str, int]  # by table, the number of the newest row
    ledger_line: bytes | None = field(repr=False)  # of the row that was asked for


class Source(Protocol):
    """The trusted file, as the published file reads it."""

    def known(self, part: int, *, ledger_row: int) -> Known:
        """The partition of this id, and one of its ledger rows."""

    def later(self, table: str, part: int, after: int) -> Iterable[Sequence[Row]]:
        """A partition's rows behind this number, in order, some at a time."""


class PublishedFile:
    """Copies what the trusted file holds. One thread only.

    With `history` ``"all"`` superseded actions stay; with ``"latest"`` they are deleted.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, *, history: str) -> None:
        self._connection = connection
        self._path = path
        self._history = history

    def copy(self, trusted: Source, part: int) -> None:
        """Copy a partition's rows that are not here yet, all or none; refuse a file that is ahead.

        The trusted file is read while this one is locked for writing: it holds what any other
        process has copied.
        """
        with writing(self._connection, self._path) as file:
            name, last = self._check(file, trusted, part)
            file.execute("INSERT OR IGNORE INTO part VALUES (?, ?, ?, ?)", (part, *name))
            for table in TABLES:  # actions first, so that none is here without its ledger line
                for rows in trusted.later(table, part, last[table]):
                    append(file, table, part, rows, self._history)

    def check(self, trusted: Source, part: int) -> None:
        """Refuse what `copy` would refuse."""
        with reading(self._connection, self._path) as file:
            self._check(file, trusted, part)

    def _check(
        self, file: sqlite3.Connection, trusted: Source, part: int
    ) -> tuple[tuple[str, str, int], dict[str, int]]:
        """Return the partition's name, and the number of its newest row here in each table."""
        last = {table: last_row(file, table, part) for table in TABLES}
        known = trusted.known(part, ledger_row=last[LEDGER])
        app, stream, number = known.name
        here = file.execute("SELECT app, stream, number FROM part WHERE id = ?", (part,)).fetchone()
        if here is not None and here != known.name:
            raise StateMismatch(
                f"{self._path}",
                "belongs to another trusted file",
                expected=f"partition {stream}/{number} of {app} as its number {part}",
                got=f"{here[1]}/{here[2]} of {here[0]}",
            )
        first = part << WIDTH
        for table in TABLES:
            if last[table] > known.last[table]:
                raise StateMismatch(
                    f"{stream}/{number}: {self._path}",
                    "is ahead of the trusted file, which was lost or is an old copy; put its"
                    " newest copy back, or begin with two new files",
                    expected=f"at most {known.last[table] + 1 - first} {table} rows",
                    got=last[table] + 1 - first,
                )
        if ledger_line(file, last[LEDGER]) != known.ledger_line:
            raise StateMismatch(
                f"{stream}/{number}: {self._path}",
                "was not copied from this trusted file; put back the file that was",
                expected=f"the trusted file's ledger row {last[LEDGER] - first}",
                got="another one",
            )
        return known.name, last

    def last_ledger_row(self, topics: StreamTopics, number: int) -> int:
        """The number of a partition's newest ledger row here; -1 without any."""
        with reading(self._connection, self._path) as file:
            row = file.execute(
                "SELECT id FROM part WHERE app = ? AND stream = ? AND number = ?",
                (topics.app, topics.stream, number),
            ).fetchone()
            return last_row(file, LEDGER, row[0]) if row else -1

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def last_row(file: sqlite3.Connection, table: str, part: int) -> int:
    """The number of a partition's newest row; the number before its first, without any."""
    (newest,) = file.execute(
        f"SELECT max(id) FROM {table} WHERE id >= ? AND id < ?",  # noqa: S608
        (part << WIDTH, (part + 1) << WIDTH),
    ).fetchone()
    return (part << WIDTH) - 1 if newest is None else int(newest)


def ledger_line(file: sqlite3.Connection, at: int) -> bytes | None:
    """The ledger row of this number."""
    row = file.execute("SELECT value FROM ledger WHERE id = ?", (at,)).fetchone()
    return bytes(row[0]) if row else None


def append(
    file: sqlite3.Connection, table: str, part: int, rows: Sequence[Row], history: str
) -> None:
    """Add rows.

    With `history` ``"latest"`` an action takes the place of its key's earlier ones; the stream's
    own record always does.
    """
    if table == LEDGER:
        file.executemany("INSERT INTO ledger VALUES (?, ?, ?)", rows)
        return
    file.executemany(
        "INSERT INTO action VALUES (?, ?, ?, ?)", [(at, part, *record) for at, *record in rows]
    )
    file.executemany(
        "DELETE FROM action WHERE part = ? AND key IS ? AND id < ?",
        [(part, key, at) for at, key, _ in rows if history == "latest" or key == MODE_KEY],
    )


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
        parts = self.parts(topics)
        share = -(-newest // max(1, len(parts)))
        with reading(self._connection, self._path) as file:
            ends = {n: last_row(file, LEDGER, at) + 1 - (at << WIDTH) for n, at in parts.items()}
        return {number: max(0, end - share) for number, end in ends.items()}

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
            Published(number, at - low, None if key == MODE_KEY else key, value)
            for at, key, value in rows
        ]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
