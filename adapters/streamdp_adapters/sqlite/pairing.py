"""Opens the trusted file and its published one."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from streamdp_adapters.sqlite.files import open_file
from streamdp_adapters.sqlite.published import PUBLISHED, PublishedFile
from streamdp_adapters.sqlite.settings import Settings
from streamdp_adapters.sqlite.trusted import TRUSTED, TrustedFile


@dataclass(frozen=True, slots=True)
class FilePair:
    """A trusted file and its published file, both open for writing. One thread only."""

    trusted: TrustedFile
    published: PublishedFile

    def close(self) -> None:
        """Close both, the published one first: it may only be behind."""
        self.published.close()
        self.trusted.close()


def open_pair(settings: Settings) -> FilePair:
    """Open both files; create missing ones."""
    history = settings.actions
    with ExitStack() as undo:
        trusted = TrustedFile(open_file(settings.path, TRUSTED), settings.path, history=history)
        undo.callback(trusted.close)
        connection = open_file(settings.published, PUBLISHED)
        undo.pop_all()
    return FilePair(trusted, PublishedFile(connection, settings.published, history=history))
