"""The loop's settings in a configuration, as plain values.

They stand apart from the code that uses them, so that a command which only reads the configuration
loads neither engine nor event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Start(StrEnum):
    """Where a stream without any state begins. There is no default."""

    EARLIEST = "earliest"
    LATEST = "latest"


class OnHalt(StrEnum):
    """Whether a halted partition ends its process."""

    STAY = "stay"  # the other partitions go on, and what was published can still be looked up
    EXIT = "exit"  # drain the others and end, so that a supervisor notices


@dataclass(frozen=True, slots=True)
class Pace:
    """How far saving may fall behind: this bounds the time of a rebuild."""

    records: int = 2_000_000
    """`low_water` stays within so many records of the position."""
    seconds: float = 30.0
    """Every changed row is saved about once in so many seconds."""
    bytes_a_cut: int = 4 << 20
    """Rows that one cut saves, so that a transaction stays short even if all keys leave at once."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The pacing of the service. None of it can change what is released."""

    poll_records: int = 2000
    poll_seconds: float = 0.05
    batch_records: int = 8192  # applied at once under load; fewer if many releases are drawn
    most_waiting: int = 200_000  # of a partition, applied and not durable: then it is paused
    most_drawn: int = 1024  # releases of a partition that no commit holds: then polling waits …
    most_drawn_bytes: int = 8 << 20  # … or with so many bytes of them
    brake_seconds: float = 0.25  # … but no longer than this at a time
    commit_seconds: float = 0.02  # between two commits of a partition that has something to publish
    idle_commit_seconds: float = 1.0
    drain_seconds: float = 30.0
    stall_seconds: float = 60.0
    retry_seconds: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
    on_halt: OnHalt = OnHalt.STAY
    pace: Pace = field(default_factory=Pace)
