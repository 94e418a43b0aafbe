"""What kills a worker of a replay; workers import this module, and no test with all it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from os import getpid, kill
from pathlib import Path
from signal import SIGKILL
from typing import Any

from streamdp.lab.logs.log import LogPart, Portion
from streamdp.lab.workers import Workers


def killed(part: object) -> None:
    """Work that kills every process that begins it."""
    kill(getpid(), SIGKILL)


def _killed_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        killed(mark)


@dataclass(frozen=True, slots=True)
class FatalPart:
    """A part that kills the first process that reads its losses."""

    part: LogPart
    mark: Path

    def portions(self) -> Iterator[Portion]:
        """The part's."""
        _killed_once(self.mark)
        yield from self.part.portions()

    def keyed(self) -> Iterator[Portion]:
        """The part's."""
        yield from self.part.keyed()


@dataclass(frozen=True, slots=True)
class FatalWork:
    """Work that kills the first process that begins it."""

    work: Callable[[Any], Any]
    mark: Path

    def __call__(self, part: Any) -> Any:
        """The work's result."""
        _killed_once(self.mark)
        return self.work(part)


@dataclass(frozen=True, slots=True)
class Mortal:
    """Workers of which one is killed."""

    workers: Workers
    mark: Path
    apart: bool = True

    @property
    def near(self) -> Workers:
        """These."""
        assert self.workers.near is self.workers
        return self

    def map(self, work: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
        """The result of each part, in their order."""
        return self.workers.map(FatalWork(work, self.mark), parts)
