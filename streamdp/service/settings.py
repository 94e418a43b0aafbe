"""The loop's settings as plain values, and what differs between two configurations' settings.

They stand apart from the code that uses them, so that a command which only reads the configuration
loads neither engine nor event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

DIGEST = "digest "
"""What the text of a setting begins with that is too long, or too secret, to be shown."""

MOST_NAMED = 5
"""Actions that a message names."""


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
    most_waiting_bytes: int = 16 << 20  # with so many bytes of them the partition is paused
    commit_seconds: float = 0.02  # between two commits of a partition that has something to publish
    idle_commit_seconds: float = 1.0
    drain_seconds: float = 30.0
    stall_seconds: float = 60.0
    retry_seconds: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
    on_halt: OnHalt = OnHalt.STAY
    pace: Pace = field(default_factory=Pace)


def changes(
    before: Mapping[str, str],
    now: Mapping[str, str],
    *,
    actions: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> str:
    """What differs between two configurations, for a message; "" if nothing that is known does.

    >>> changes({"learner.epsilon": "1/2"}, {"learner.epsilon": "1"}, actions=(["a"], ["a", "b"]))
    " in learner.epsilon (was 1/2, is 1) and actions (new: 'b')"
    """
    told = []
    for name in sorted({*before, *now}):
        was, is_ = before.get(name, "not set"), now.get(name, "not set")
        if was != is_:
            long = DIGEST in was + is_
            told.append(name if long else f"{name} (was {was}, is {is_})")
    old, new = actions
    if list(old) != list(new):
        known, wanted = set(old), set(new)
        parts = [
            f"{what}: {', '.join(map(repr, names[:MOST_NAMED]))}{' …' * (len(names) > MOST_NAMED)}"
            for what, names in (
                ("new", [name for name in new if name not in known]),
                ("gone", [name for name in old if name not in wanted]),
            )
            if names
        ]
        told.append(f"actions ({'; '.join(parts) or 'in another order'})")
    return f" in {' and '.join(told)}" if told else ""
