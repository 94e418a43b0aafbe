"""NOT PRIVATE: exact figures that an operator may look at, and must not act on.

Everything here is exact: regret, losses, counts of null slots. None of it is differentially
private, and decisions taken on it leave the guarantee. An engine has it only if it is passed in
explicitly, and nothing public reads it.
"""

from __future__ import annotations

import numpy as np

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.grid import UNIT


class NotPrivate:
    """Exact totals of the rows of one engine. NOT PRIVATE."""

    __slots__ = ("_nulls", "_played", "_totals", "latest_nulls")

    def __init__(self, actions: int) -> None:
        self._totals = np.zeros((0, actions), dtype=np.int64)
        self._played = np.zeros(0, dtype=np.int64)
        self._nulls = np.zeros(0, dtype=np.int64)
        self.latest_nulls: Bools = np.zeros(0, dtype=np.bool_)
        """Which slots of the latest batch were null."""

    def __repr__(self) -> str:
        """Show the class, never the content."""
        return "NotPrivate()"

    def observe(self, rows: Ints, actions: Ints, totals: Ints, nulls: Ints) -> None:
        """Add the totals of some rows (each at most once) while these actions were in force."""
        self._make_room(int(rows.max()) + 1 if len(rows) else 0)
        self._totals[rows] += totals
        self._played[rows] += totals[np.arange(len(rows)), actions]
        self._nulls[rows] += nulls

    def keep(self, rows: Ints) -> None:
        """Keep only these rows, renumbered in this order."""
        self._make_room(int(rows.max()) + 1 if len(rows) else 0)
        self._totals, self._played = self._totals[rows], self._played[rows]
        self._nulls = self._nulls[rows]

    def regret(self, row: int) -> float:
        """Exact regret against the best fixed action, in losses."""
        return float(self._played[row] - self._totals[row].min()) / UNIT

    def regrets(self) -> Floats:
        """Exact regret of every row."""
        return np.asarray((self._played - self._totals.min(axis=1)) / UNIT, dtype=np.float64)

    def nulls(self, row: int) -> int:
        """How many slots were null."""
        return int(self._nulls[row])

    def _make_room(self, rows: int) -> None:
        short = rows - len(self._played)
        if short > 0:
            self._totals = np.concatenate(
                [self._totals, np.zeros((short, self._totals.shape[1]), np.int64)]
            )
            self._played = np.concatenate([self._played, np.zeros(short, np.int64)])
            self._nulls = np.concatenate([self._nulls, np.zeros(short, np.int64)])
