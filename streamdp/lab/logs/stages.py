"""How long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Watch = Callable[[str, int], Callable[[int], None]]
"""Starts to show a stage of so many steps; returns a function to call with the number done."""


def unwatched(name: str, steps: int) -> Callable[[int], None]:
    """A watcher that shows nothing."""
    return lambda done: None
