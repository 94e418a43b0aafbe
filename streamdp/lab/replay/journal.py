"""The progress of a conversion: a small file, replaced once the rows that it counts are durable.

It names the log and the target, and holds the position in the log, the number of written slots (and
of those that were clipped, or are null), and the target's own mark: how much of it is complete.
What a target holds beyond its mark is truncated or, in a topic, counted, so a process may die at
any time. A journal of another conversion is refused. It holds no losses.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdp.cli.writing import writing
from streamdp.core.errors import StateMismatch, complaint
from streamdp.lab.replay.chunks import nulls
from streamdp.lab.replay.log import START, Log, Position

VERSION = 2

Mark = Mapping[str, Any]
"""What a target needs to resume: numbers and lists of numbers, by names that only it knows."""


@dataclass(frozen=True, slots=True)
class Written:
    """How many slots are written, and how many of them do not count as they stand in the log."""

    slots: int = 0
    clipped: int = 0
    nulls: int = 0

    def after(self, rows: NDArray[np.float32], *, clipped: int = 0) -> Written:
        """With the rows that follow."""
        null = int(np.count_nonzero(nulls(rows)))
        return Written(self.slots + len(rows), self.clipped + clipped, self.nulls + null)


@dataclass(frozen=True, slots=True)
class Milestone:
    """A position to resume from."""

    position: Position
    written: Written
    mark: Mark | None  # None: nothing is written yet


BEGIN = Milestone(START, Written(), None)


@dataclass(frozen=True, slots=True)
class Journal:
    """The milestones of one conversion; only the newest is kept."""

    path: Path
    of: str

    @classmethod
    def between(cls, log: Log, target: str, path: Path) -> Journal:
        """The journal of the conversion of a log to a target."""
        return cls(path, json.dumps([VERSION, log.identity(), list(log.actions), target]))

    def save(self, milestone: Milestone) -> None:
        """Replace the journal with this milestone."""
        facts = {
            "of": self.of,
            "position": dict(milestone.position),
            **asdict(milestone.written),
            "mark": milestone.mark,
        }
        new = self.path.with_name(self.path.name + ".new")
        with writing(self.path):
            with new.open("w", encoding="utf-8") as file:
                json.dump(facts, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)

    def load(self) -> Milestone | None:
        """The newest milestone; None if there is none."""
        try:
            facts = json.loads(self.path.read_text(encoding="utf-8"))
            written = Written(*(int(facts[name]) for name in ("slots", "clipped", "nulls")))
            milestone = Milestone(facts["position"], written, facts["mark"])
            of = facts["of"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise self._refused("cannot be read", "a file that convert has written") from None
        if of != self.of:
            raise self._refused("of another conversion", "the same log and target, unchanged")
        return milestone

    def remove(self) -> None:
        """Delete the journal: the work is finished."""
        self.path.unlink(missing_ok=True)

    def _refused(self, what: str, expected: str) -> StateMismatch:
        where, got = f"checkpoint {self.path}", "another; remove it to start anew"
        return StateMismatch(complaint(where, what, expected=expected, got=got))
