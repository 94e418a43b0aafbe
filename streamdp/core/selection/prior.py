"""Public bonuses from earlier releases, which a selection adds to the noise of each action.

A prior is post-processing of earlier releases, so it costs nothing: every selection is ε-DP for any
fixed prior. It must therefore be computed from releases and slot numbers alone.

Bonuses are exact rationals in noise units, integers over one common denominator; a larger bonus
makes an action more likely. An irrational bonus is rounded before a prior is made from it, so that
floats never decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.grid import UNIT

_MOST = 1 << 62  # of a numerator and of the denominator: they stay exact in int64


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """One bonus per action and row: dense, or sparse with one favoured action per row.

    >>> prior = Prior.incumbent(np.array([2, 0]), Fraction(1, 2))
    >>> prior.numerators_of(row=0, actions=np.arange(3)), prior.denominator
    ([0, 0, 1], 2)
    """

    numerators: Ints  # R × K, or R when sparse
    denominator: int
    actions: Ints | None = None  # R: which action has the bonus, when sparse

    def __post_init__(self) -> None:
        """Refuse bonuses that are not exact or have the wrong shape."""
        dense = self.actions is None
        if self.numerators.dtype != np.int64 or self.numerators.ndim != (2 if dense else 1):
            shape = "R × K" if dense else "R"
            got = f"{self.numerators.dtype} with {self.numerators.ndim} axes"
            raise InvalidConfig(
                "prior.numerators", "wrong array", expected=f"int64 {shape}", got=got
            )
        if self.actions is not None and self.actions.shape != self.numerators.shape:
            got = f"{self.actions.shape}, {self.numerators.shape}"
            raise InvalidConfig("prior", "rows differ", expected="one each", got=got)
        if not 1 <= self.denominator <= _MOST:
            raise InvalidConfig(
                "prior.denominator", "out of range", expected="1 to 2**62", got=self.denominator
            )

    @classmethod
    def incumbent(cls, actions: Ints, bonus: Fraction) -> Prior:
        """The same bonus for one action of each row: the one in force."""
        if abs(bonus.numerator) > _MOST:
            raise InvalidConfig(
                "prior.bonus", "out of range", expected="a numerator to 2**62", got=bonus
            )
        numerators = np.full(len(actions), bonus.numerator, np.int64)
        return cls(numerators, bonus.denominator, np.asarray(actions, np.int64))

    def __len__(self) -> int:
        """How many rows."""
        return len(self.numerators)

    def check(self, *, rows: int, actions: int) -> None:
        """Refuse a prior that is not for `rows` selections among `actions`."""
        if self.actions is None:
            good = self.numerators.shape == (rows, actions)
        else:
            good = len(self) == rows and bool(
                np.all((self.actions >= 0) & (self.actions < actions))
            )
        if not good:
            expected = f"{rows} rows for {actions} actions"
            got = f"bonuses of shape {self.numerators.shape}"
            if self.actions is not None:
                got = f"{len(self)} rows for actions up to {self.actions.max(initial=-1)}"
            raise InvalidConfig("prior", "does not fit the sums", expected=expected, got=got)

    def largest(self) -> float:
        """The largest absolute bonus: what the float race must allow for. Public."""
        if not self.numerators.size:
            return 0.0
        most = max(int(self.numerators.max()), -int(self.numerators.min()))
        return most / self.denominator

    def part(self, start: int, stop: int) -> Prior:
        """The rows [start, stop)."""
        actions = None if self.actions is None else self.actions[start:stop]
        return Prior(self.numerators[start:stop], self.denominator, actions)

    def subtract(self, keys: Floats, *, row: int, start: int) -> None:
        """Subtract one row's bonuses from the keys of the actions from `start` on, in place."""
        if self.actions is None:
            numerators = self.numerators[row, start : start + len(keys)]
            keys -= numerators * (1 / self.denominator)
            return
        at = int(self.actions[row]) - start
        if 0 <= at < len(keys):
            keys[at] -= int(self.numerators[row]) / self.denominator

    def subtract_columns(self, keys: Floats) -> None:
        """Subtract every row's bonuses from its column of keys (K × R), in place."""
        if self.actions is None:
            keys -= self.numerators.T * (1 / self.denominator)
            return
        keys[self.actions, np.arange(len(self))] -= self.numerators * (1 / self.denominator)

    def numerators_of(self, *, row: int, actions: Ints) -> list[int]:
        """The exact bonuses of some of a row's actions, over the common denominator."""
        if self.actions is None:
            return list(self.numerators[row, actions].tolist())
        favoured, numerator = int(self.actions[row]), int(self.numerators[row])
        return [numerator if action == favoured else 0 for action in actions.tolist()]


def exact_scores(
    rate: Fraction, sums: Ints, prior: Prior | None, *, row: int, actions: Ints
) -> tuple[list[int], int]:
    """ρ·L_i − b_i of some of a row's actions minus the least of them, and what to divide it by."""
    numerator, denominator = rate.numerator, rate.denominator * UNIT
    scores = [numerator * value for value in sums[actions].tolist()]
    if prior is not None:
        bonuses = prior.numerators_of(row=row, actions=actions)
        scores = [
            score * prior.denominator - denominator * bonus
            for score, bonus in zip(scores, bonuses, strict=True)
        ]
        denominator *= prior.denominator
    least = min(scores)
    return [score - least for score in scores], denominator
