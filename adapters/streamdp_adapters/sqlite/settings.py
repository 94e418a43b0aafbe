"""The settings of the SQLite technology: the two files, and what is kept in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from streamdp.core.errors import InvalidConfig

INTERVAL = 0.01  # seconds between two looks for new records: too short to notice
HISTORIES = ("latest", "all")
KEYS = ("path", "published", "partitions", "retain", "actions")
MOST_PARTITIONS = 10_000  # of an input: each takes a task and a part of the state
MOST_RECORDS = 2**40 - 1  # of a partition: its offsets have 40 bits
RETAIN = 1_000_000  # some 100 MB a partition at 100 bytes a record: days of a small shop


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the files are and what is kept.

    ``path``: the trusted file (input, state); ``published``: the file that readers open, by default
    beside it; ``partitions``: the number that a missing input is created with, 0 to refuse it;
    ``retain``: how many records of each partition that no rebuild needs are kept; ``actions``:
    ``"latest"`` keeps each key's action in force, ``"all"`` also the earlier ones.
    """

    path: Path
    published: Path
    partitions: int = 1
    retain: int = RETAIN
    actions: str = "latest"

    @classmethod
    def from_mapping(cls, settings: Mapping[str, object]) -> Self:
        """From the configuration's table."""
        unknown = sorted(set(settings) - set(KEYS))
        if unknown:
            raise InvalidConfig("transport", "unknown key", expected=", ".join(KEYS), got=unknown)
        path = _path(settings, "path")
        published = _path(settings, "published") if "published" in settings else beside(path)
        if os.path.realpath(path) == os.path.realpath(published):
            raise InvalidConfig(
                "transport.published",
                "is the trusted file",
                expected="a file of its own",
                got=published,
            )
        actions = settings.get("actions", "latest")
        if actions not in HISTORIES:
            raise InvalidConfig("transport.actions", "unknown", expected=HISTORIES, got=actions)
        given = settings.get("retain") is not None
        retain = _count(settings, "retain", most=MOST_RECORDS) if given else RETAIN
        given = "partitions" in settings
        partitions = _count(settings, "partitions", most=MOST_PARTITIONS) if given else 1
        return cls(path, published, partitions, retain, str(actions))

    def check_places(self) -> None:
        """Refuse files that cannot be there: something else has the name, or there is no folder.

        A reader of the published file may live where the folder of the trusted one is not.
        """
        begun = stat.S_ISREG(_mode(self.published))
        for name, path in (("path", self.path), ("published", self.published)):
            homeless = not begun and not stat.S_ISDIR(_mode(path.absolute().parent))
            if homeless or (_mode(path) and not stat.S_ISREG(_mode(path))):
                raise InvalidConfig(
                    f"transport.{name}",
                    "no place for a file",
                    expected="a file, or a name in an existing folder",
                    got=path,
                )


def _mode(path: Path) -> int:
    """What is at a path, and its rights; 0 if there is nothing that this process may see."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def beside(path: Path) -> Path:
    """The default published file: ``home.db`` has ``home.published.db`` beside it."""
    return path.with_name(f"{path.stem}.published{path.suffix}")


def _path(settings: Mapping[str, object], name: str) -> Path:
    value = settings.get(name)
    usable = isinstance(value, str | Path) and Path(value).name and "\0" not in str(value)
    if not usable:
        raise InvalidConfig(f"transport.{name}", "no file", expected="a path", got=repr(value))
    return Path(str(value))


def _count(settings: Mapping[str, object], name: str, *, most: int) -> int:
    value = settings[name]
    if isinstance(value, str) and value.isdecimal():  # the environment gives text for everything
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise InvalidConfig(
            f"transport.{name}", "not a count", expected=f"0 to {most}", got=repr(value)
        )
    return value
