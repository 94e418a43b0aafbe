"""The trusted file with its published one, which is a replica of two of its tables.

1. Publishing copies the rows behind the published file's own last ones, from the trusted file.
   Copying again changes nothing, whoever does it. A published file that is missing or old is
   filled up again.
2. The published file is the witness of what the trusted file once knew. Before anything is copied,
   its last ledger row must be the trusted file's row of the same number, byte for byte. A published
   file that is ahead (the trusted one was lost or rolled back) is never written to.
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack
from dataclasses import dataclass

from streamdp.core.errors import StateMismatch
from streamdp.ports import StreamTopics
from streamdp_adapters.sqlite.files import WIDTH, OpenFile, open_file
from streamdp_adapters.sqlite.published import (
    LEDGER,
    PUBLISHED,
    TABLES,
    append,
    last_row,
    ledger_line,
    parts_of,
)
from streamdp_adapters.sqlite.settings import Settings
from streamdp_adapters.sqlite.trusted import TRUSTED, TakenPart, TrustedFile


@dataclass(frozen=True, slots=True)
class FilePair:
    """A trusted file and its published file, both open for writing. One thread only."""

    trusted: TrustedFile
    published: OpenFile

    def parts(self) -> list[TakenPart]:
        """Each partition that was ever taken; of one that only the published file knows, no input.

        That one is of a trusted file that was lost, or rolled back to before its first take.
        """
        parts = self.trusted.parts()
        known = {(of.topics.app, of.topics.stream, of.number, of.id) for of in parts}
        with self.published.reading() as file:
            rows = set(file.execute("SELECT app, stream, number, id FROM part")) - known
        unknown = [(StreamTopics(app, stream, ""), *which) for app, stream, *which in sorted(rows)]
        return parts + [TakenPart(*of) for of in unknown]

    def copy(self, part: TakenPart) -> None:
        """Publish a partition's rows, all that are missing or none; refuse a file that is ahead.

        The trusted file is read while the published one is locked for writing: it holds what any
        other process has copied.
        """
        with self.published.writing() as file:
            last = self._check(file, part)
            name = (part.topics.app, part.topics.stream, part.number)
            file.execute("INSERT OR IGNORE INTO part VALUES (?, ?, ?, ?)", (part.id, *name))
            for table in TABLES:  # actions first, so that none is here without its ledger line
                for rows in self.trusted.later(table, part.id, last[table]):
                    append(file, table, part.id, rows, self.trusted.history)

    def check(self, part: TakenPart) -> None:
        """Refuse what `copy` would refuse."""
        with self.published.reading() as file:
            self._check(file, part)

    def _check(self, file: sqlite3.Connection, part: TakenPart) -> dict[str, int]:
        """Return the number of the partition's newest published row in each table."""
        app, stream, number = part.topics.app, part.topics.stream, part.number
        last = {table: last_row(file, table, part.id) for table in TABLES}
        known, line = self.trusted.known(part.id, ledger_row=last[LEDGER])
        query = "SELECT app, stream, number FROM part WHERE id = ?"
        here = file.execute(query, (part.id,)).fetchone()
        if here not in (None, (app, stream, number)):
            raise StateMismatch(
                f"{self.published.path}",
                "belongs to another trusted file",
                expected=f"partition {stream}/{number} of {app} as its number {part.id}",
                got=f"{here[1]}/{here[2]} of {here[0]}",
            )
        first = part.id << WIDTH
        for table in TABLES:
            if last[table] > known[table]:
                raise StateMismatch(
                    f"{stream}/{number}: {self.published.path}",
                    "is ahead of the trusted file, which was lost or is an old copy; put its"
                    " newest copy back, or begin with two new files",
                    expected=f"at most {known[table] + 1 - first} {table} rows",
                    got=last[table] + 1 - first,
                )
        if ledger_line(file, last[LEDGER]) != line:
            raise StateMismatch(
                f"{stream}/{number}: {self.published.path}",
                "was not copied from this trusted file; put back the file that was",
                expected=f"the trusted file's ledger row {last[LEDGER] - first}",
                got="another one",
            )
        return last

    def last_published(self, topics: StreamTopics, number: int) -> int:
        """The number of a partition's newest ledger row in the published file; -1 without any."""
        with self.published.reading() as file:
            part = parts_of(file, topics).get(number)
            return -1 if part is None else last_row(file, LEDGER, part)

    def close(self) -> None:
        """Close both, the published one first: it may only be behind."""
        self.published.close()
        self.trusted.close()


def open_pair(settings: Settings) -> FilePair:
    """Open both files; create missing ones."""
    with ExitStack() as undo:
        trusted = TrustedFile(open_file(settings.path, TRUSTED), settings.actions)
        undo.callback(trusted.close)
        published = open_file(settings.published, PUBLISHED)
        undo.pop_all()
    return FilePair(trusted, published)
