"""The published file: readers open it. It holds public things only: releases in force, the ledger.

It is a replica of two tables of the trusted file (`pairing`). A row's number is its partition's id
and its offset there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from streamdp.ports import Key, Published, StreamTopics
from streamdp_adapters.sqlite.files import WIDTH, FileKind, OpenFile

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
LIST_KEY = "list"
"""The key of the stream's list. It is text, and learners' keys are blobs: never equal."""


Row = tuple[int, Key | str, bytes]
"""A row's number, its key (a text for the stream's list) and its value."""


def last_row(file: sqlite3.Connection, table: str, part: int) -> int:
    """The number of a partition's newest row; the number before its first, without any."""
    (newest,) = file.execute(
        f"SELECT max(id) FROM {table} WHERE id >= ? AND id < ?",  # noqa: S608
        (part << WIDTH, (part + 1) << WIDTH),
    ).fetchone()
    return (part << WIDTH) - 1 if newest is None else int(newest)


def rows_of(
    file: sqlite3.Connection,
    table: str,
    columns: str,
    part: int,
    start: int = 0,
    stop: int = 1 << WIDTH,
    *,
    most: int = -1,
) -> list[Any]:
    """A partition's rows from offset to offset, in order; all of them, or so many at most."""
    base = part << WIDTH
    return file.execute(
        f"SELECT {columns} FROM {table} WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",  # noqa: S608
        (base + start, base + stop, most),
    ).fetchall()


def ledger_line(file: sqlite3.Connection, at: int) -> bytes | None:
    """The ledger row of this number."""
    row = file.execute("SELECT value FROM ledger WHERE id = ?", (at,)).fetchone()
    return bytes(row[0]) if row else None


def append(
    file: sqlite3.Connection, table: str, part: int, rows: Sequence[Row], history: str
) -> None:
    """Add rows.

    With `history` ``"latest"`` an action takes the place of its key's earlier ones; the stream's
    list always does.
    """
    if table == LEDGER:
        file.executemany("INSERT INTO ledger VALUES (?, ?, ?)", rows)
        return
    file.executemany(
        "INSERT INTO action VALUES (?, ?, ?, ?)", [(at, part, *record) for at, *record in rows]
    )
    file.executemany(
        "DELETE FROM action WHERE part = ? AND key IS ? AND id < ?",
        [(part, key, at) for at, key, _ in rows if history == "latest" or key == LIST_KEY],
    )


# --- what readers ask ------------------------------------------------------------------------


def parts_of(file: sqlite3.Connection, topics: StreamTopics) -> dict[int, int]:
    """The ids of a stream's partitions, by number."""
    return dict(
        file.execute(
            "SELECT number, id FROM part WHERE app = ? AND stream = ? ORDER BY number",
            (topics.app, topics.stream),
        ).fetchall()
    )


def streams(file: OpenFile) -> list[StreamTopics]:
    """Every stream that was ever taken."""
    with file.reading() as reading:
        rows = reading.execute(
            "SELECT DISTINCT app, stream FROM part ORDER BY app, stream"
        ).fetchall()
    return [StreamTopics(app, stream, "") for app, stream in rows]


def late(file: OpenFile, topics: StreamTopics, newest: int) -> dict[int, int]:
    """The offset in each partition from which on there are about `newest` lines."""
    with file.reading() as reading:
        parts = parts_of(reading, topics)
        ends = {n: last_row(reading, LEDGER, at) + 1 - (at << WIDTH) for n, at in parts.items()}
    share = -(-newest // max(1, len(parts)))
    return {number: max(0, end - share) for number, end in ends.items()}


def pages(
    file: OpenFile, table: str, topics: StreamTopics, starts: dict[int, int], *, lists: bool
) -> list[list[Published]]:
    """The next records of each partition that has any from its start on; moves the starts.

    They are the stream's lists, or all others.
    """
    assert table in TABLES
    among = "IS" if lists else "IS NOT"
    pages = []
    with file.reading() as reading:
        for number, part in parts_of(reading, topics).items():
            low = part << WIDTH
            rows = reading.execute(
                f"SELECT id, key, value FROM {table}"  # noqa: S608
                f" WHERE id >= ? AND id < ? AND key {among} ? ORDER BY id LIMIT ?",
                (low + starts.get(number, 0), low + (1 << WIDTH), LIST_KEY, PAGE),
            ).fetchall()
            if rows:
                starts[number] = rows[-1][0] - low + 1
                pages.append(
                    [
                        Published(number, at - low, None if lists else key, value)
                        for at, key, value in rows
                    ]
                )
    return pages
