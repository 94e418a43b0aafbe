"""SQLite, the embedded default: streamdp without a broker, on two files.

The *trusted* file holds the input log, the state, and the actions and ledger lines; it is as
sensitive as the events themselves (mode 0600). The *published* file is a copy of the actions and
ledger lines, which readers open. Each commit is recorded in the first file and then copied to the
second (`transport` says how, and what a crash in between leaves). A second file that is missing or
old is filled up; one that is ahead shows that the first was lost or rolled back, and halts. If both
are rolled back together, nothing shows it: back them up for reading, and never restore an older
pair to write on.

Anyone who may read the published file can do so while a service or producer has it open; otherwise
SQLite needs the right to write beside it.

Both files belong on a local disk (SQLite's locks do not hold on network file systems).

`trusted` and `published` are the two files, `pairing` both together, `files` what any file of ours
needs, `lock` keeps a second process out. `transport` is the transport, `tools` are readers,
producers and the administrator, and `looking` reads beside an owner. `settings` are the settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from streamdp.core.errors import InvalidConfig
from streamdp.ports import (
    Administrator,
    Producer,
    Publications,
    Reached,
    StaticMembership,
    StreamTopics,
    Transport,
    no_fault,
)
from streamdp_adapters.sqlite.settings import Settings
from streamdp_adapters.sqlite.tools import (
    SqliteAdministrator,
    SqliteProducer,
    SqlitePublications,
)
from streamdp_adapters.sqlite.transport import LARGEST_VALUE, SqliteTransport

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
        """Read the configuration's table; `Settings` has its keys."""
        read = Settings.from_mapping(settings)
        read.check_places()
        return cls(read)

    def check_streams(self, streams: Sequence[StreamTopics]) -> None:
        """Refuse values that no row of the files can hold; any name will do."""
        for topics in streams:
            if topics.largest_value > LARGEST_VALUE:
                raise InvalidConfig(
                    f"stream {topics.stream}",
                    "its largest value does not fit; use fewer actions, or shorter names or keys",
                    expected=f"at most {LARGEST_VALUE} bytes",
                    got=topics.largest_value,
                )

    def transport(
        self, *, worker: str, static_membership: StaticMembership = StaticMembership.STRANGERS
    ) -> Transport:
        """A worker on these files."""
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
