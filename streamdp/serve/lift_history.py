"""What a key's blocks earned beside other shares, as pages say it: `core.evidence.lift`.

A block alone takes half a millisecond to add, and one of many a few microseconds. So blocks wait
until there are many of them, or somebody asks.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from streamdp.core.arrays import Bools, Floats
from streamdp.core.errors import StateMismatch
from streamdp.core.evidence.lift import Beside, Lift

_NUMBERS_WAITING = 1 << 10  # 16 kB of a key: 102 blocks of ten actions


class _Block(NamedTuple):
    gains: Floats
    shown: Floats
    allowed: Bools | None


class LiftHistory:
    """The blocks of one key, in one epoch or several of the same actions."""

    __slots__ = ("_lift", "_noise", "_waiting", "since_epoch")

    def __init__(self, epoch: int) -> None:
        self.since_epoch = epoch
        self._lift: Lift | None = None
        self._noise = 0.0
        self._waiting: list[_Block] = []

    def add(self, gains: Floats, shown: Floats, noise: float, allowed: Bools | None) -> None:
        """Add a block, of a policy that might show what is allowed."""
        first = self._waiting[0].gains if self._waiting else gains
        actions = len(first) if self._lift is None else self._lift.actions
        if len(gains) != actions or len(gains if allowed is None else allowed) != actions:
            raise StateMismatch("sums", "length", expected=f"{actions} actions", got=len(gains))
        if (shown < 0).any():
            raise StateMismatch("sums", "count", expected="≥ 0", got=f"{shown.min():,.0f}")
        if self._waiting and noise != self._noise:
            self._add_waiting()
        self._noise = noise
        self._waiting.append(_Block(gains, shown, allowed))
        if len(self._waiting) * len(gains) >= _NUMBERS_WAITING:
            self._add_waiting()

    def begin_with(self, earlier: LiftHistory) -> None:
        """Add the blocks of an earlier epoch, of the same actions."""
        before, mine = earlier.lift(), self.lift()
        if before is None or (mine is not None and mine.actions != before.actions):
            return
        self.since_epoch = earlier.since_epoch
        self._lift = before if mine is None else before.joined(mine)

    def lift(self) -> Lift | None:
        """All blocks; None before any."""
        self._add_waiting()
        return self._lift

    def _add_waiting(self) -> None:
        if not self._waiting:
            return
        gains, shown, allowed = zip(*self._waiting, strict=True)
        self._waiting = []
        actions = len(gains[0])
        if self._lift is None:
            self._lift = Lift(actions)
        all_of_them = np.ones(actions, dtype=np.bool_)
        might = np.stack([all_of_them if mask is None else mask for mask in allowed])
        self._lift.add(np.stack(gains), np.stack(shown), noise=self._noise, allowed=might)


def said(lift: Lift, since_epoch: int, most: float, named: int | None) -> dict[str, Any] | None:
    """What pages say of the first `named` columns, in the rewards' unit; None: nothing."""
    found = lift.earned()
    if found is None:
        return None
    return {
        "since_epoch": since_epoch,
        "blocks": found.blocks,
        "shows": found.shows,
        "earned": asdict(found.reward.times(most)),
        "alike": _said(found.alike, most),
        "always": [_said(beside, most) for beside in found.always[:named]],
    }


def _said(beside: Beside | None, most: float) -> dict[str, Any] | None:
    if beside is None:
        return None
    return {
        **asdict(beside.reward.times(most)),
        "more": asdict(beside.more.times(most)),
        "blocks": beside.blocks,
        "shows": beside.shows,
    }
