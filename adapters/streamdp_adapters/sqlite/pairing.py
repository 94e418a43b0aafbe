"""Opens two files that belong together as one pair.

A new trusted file gives itself a name of random bytes; its published file carries the same name. A
new trusted file beside an old published one takes over its name: the ledger lines there then tell
the service that the state was lost. Two files with different names are refused.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from streamdp.core.errors import StateMismatch
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
    with ExitStack() as undo:
        trusted = TrustedFile(open_file(settings.path, TRUSTED), settings.path)
        undo.callback(trusted.close)
        published = PublishedFile(
            open_file(settings.published, PUBLISHED), settings.published, history=settings.actions
        )
        undo.callback(published.close)
        name = trusted.pair(published.pair())
        published.pair_with(name)
        if published.pair() != name:
            raise StateMismatch(
                f"{settings.published}",
                "belongs to another trusted file",
                expected=f"the file published from {settings.path}",
                got=f"one that belongs to file {published.pair()!r}",
            )
        undo.pop_all()
    return FilePair(trusted, published)
