"""The settings of the SQLite technology: the two files, and what is kept in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from streamdp.core.errors import InvalidConfig, complaint

INTERVAL = 0.01  # seconds between two looks for new records: too short to notice
HISTORIES = ("latest", "all")
KEYS = ("path", "published", "partitions", "retain", "actions")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the files are and what is kept.

    ``path``: the trusted file (input, state); ``published``: the file that readers open, by default
    beside it; ``partitions``: the number that a missing input is created with, 0 to refuse it;
    ``retain``: how many records that no rebuild needs are kept (by default all); ``actions``:
    ``"latest"`` keeps each key's action in force, ``"all"`` also the earlier ones.
    """

    path: Path
    published: Path
    partitions: int = 1
    retain: int | None = None
    actions: str = "latest"

    @classmethod
    def from_mapping(cls, settings: Mapping[str, object]) -> Self:
        """From the configuration's table."""
        unknown = sorted(set(settings) - set(KEYS))
        if unknown:
            raise InvalidConfig(
                complaint("transport", "unknown key", expected=", ".join(KEYS), got=unknown)
            )
        path = _path(settings, "path")
        published = _path(settings, "published") if "published" in settings else beside(path)
        if path.absolute() == published.absolute():
            raise InvalidConfig(
                complaint(
                    "transport.published",
                    "is the trusted file",
                    expected="a file of its own",
                    got=published,
                )
            )
        actions = settings.get("actions", "latest")
        if actions not in HISTORIES:
            raise InvalidConfig(
                complaint("transport.actions", "unknown", expected=HISTORIES, got=actions)
            )
        retain = _count(settings, "retain") if settings.get("retain") is not None else None
        partitions = _count(settings, "partitions") if "partitions" in settings else 1
        return cls(path, published, partitions, retain, str(actions))


def beside(path: Path) -> Path:
    """The default published file: ``home.db`` has ``home.published.db`` beside it."""
    return path.with_name(f"{path.stem}.published{path.suffix}")


def _path(settings: Mapping[str, object], name: str) -> Path:
    value = settings.get(name)
    if not isinstance(value, str | Path) or not str(value):
        raise InvalidConfig(
            complaint(f"transport.{name}", "no file", expected="a path", got=repr(value))
        )
    return Path(value)


def _count(settings: Mapping[str, object], name: str) -> int:
    value = settings[name]
    if isinstance(value, str) and value.isdecimal():  # the environment gives text for everything
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidConfig(
            complaint(f"transport.{name}", "not a count", expected="a number", got=repr(value))
        )
    return value
