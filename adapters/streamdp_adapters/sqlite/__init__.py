"""SQLite, the embedded default: streamdp without a broker, on two files.

The *trusted* file holds the input log, the state and the outbox of what is to be published; it is
as sensitive as the events themselves (mode 0600). The *published* file holds actions and ledger
lines and is what readers open. Each commit is recorded in the first and then published in the
second (`transport` says how and what a crash in between leaves); the second is the witness against
a first that was lost or rolled back. Two files rolled back together cannot be told from a younger
pair: back them up for reading, never put an older pair back to write on.

Anyone who may read the published file can do so while a service or producer has it open; when none
has, SQLite asks for the right to write beside it.

Both files belong on a local disk (SQLite's locks do not hold on network file systems).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from streamdp.ports import (
    Administrator,
    Namesakes,
    Producer,
    Publications,
    Reached,
    Transport,
    no_fault,
)
from streamdp_adapters.sqlite.settings import Settings
from streamdp_adapters.sqlite.tools import (
    SqliteAdministrator,
    SqliteProducer,
    SqlitePublications,
)
from streamdp_adapters.sqlite.transport import SqliteTransport

__all__ = [
    "Settings",
    "Sqlite",
    "SqliteAdministrator",
    "SqliteProducer",
    "SqlitePublications",
    "SqliteTransport",
]


class Sqlite:
    """The technology: a pair of files."""

    def __init__(self, settings: Settings, *, reached: Reached = no_fault) -> None:
        self.settings = settings
        self.reached = reached

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, app: str) -> Self:
        """From the configuration's table; see `Settings` for its keys."""
        return cls(Settings.from_mapping(settings))

    def transport(self, *, worker: str, namesakes: Namesakes = Namesakes.STRANGERS) -> Transport:
        """A worker over these files."""
        return SqliteTransport(self.settings, worker=worker, reached=self.reached)

    def publications(self) -> Publications:
        """A reader of the published file."""
        return SqlitePublications(self.settings)

    def producer(self, *, kept: int | None = None) -> Producer:
        """A writer of input."""
        return SqliteProducer(self.settings, kept=kept)

    def administrator(self) -> Administrator:
        """The tools."""
        return SqliteAdministrator(self.settings)
