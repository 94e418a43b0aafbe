"""What a configuration may choose of the loop, as plain values.

They stand apart from the code that they are for, so that a command which only reads the
configuration loads neither engine nor event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Start(StrEnum):
    """Where a stream without any state begins. There is no default."""

    EARLIEST = "earliest"
    LATEST = "latest"


class OnHalt(StrEnum):
    """What a halted partition does to its process."""

    STAY = "stay"  # the others go on, and what was published can still be looked up
    EXIT = "exit"  # drain the others and end, for whoever restarts or calls someone


@dataclass(frozen=True, slots=True)
class Pace:
    """How far saving may fall behind: what bounds the time that a rebuild takes."""

    records: int = 2_000_000
    """`low_water` is kept within so many records of the position."""
    seconds: float = 30.0
    """Every changed row is saved about so often."""
    bytes_a_cut: int = 4 << 20
    """Saved rows of one cut, so that a transaction stays short, though all keys leave at once."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The pacing of the service. None of it can change what is released."""

    poll_records: int = 2000
    poll_seconds: float = 0.05
    batch_records: int = 8192  # applied at once under load, fewer where many releases are drawn
    most_waiting: int = 200_000  # of a partition, applied and not durable: then it is paused
    most_drawn: int = 1024  # releases of a partition that no commit holds: then polling waits …
    most_drawn_bytes: int = 8 << 20  # … or so many bytes of them, where a release is large
    brake_seconds: float = 0.25  # … but no longer than this at a time
    commit_seconds: float = 0.02  # between two commits of a partition that has something to say
    idle_commit_seconds: float = 1.0
    drain_seconds: float = 30.0
    stall_seconds: float = 60.0
    retry_seconds: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
    on_halt: OnHalt = OnHalt.STAY
    pace: Pace = field(default_factory=Pace)
