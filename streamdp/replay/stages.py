"""How long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Watch = Callable[[str, int], Callable[[int], None]]
"""Shows a stage of so many steps; what it gives back is told how many are done."""


def unwatched(name: str, steps: int) -> Callable[[int], None]:
    """A watcher that shows nothing."""
    return lambda done: None
