"""How cells learn from each other: a model of a table of released numbers. Public, at no ε.

For each action the mean gain in a cell is

    level + μ + Σ over fields of β(field, level of the cell) + γ(cell),

with normal priors around 0. The variances of μ, of each field's β and of γ are common to all
actions and fitted by EM (Dempster, Laird & Rubin 1977), a few rounds from small values: a field
that does not matter costs nearly nothing, and an interaction that matters gets its own cells.

What a row keeps of a cell and action, added up over blocks: a weight w and a score. A block whose
released gain sum and count are S and n, with noise of variance σ² and τ², says of the mean m + δ,
m the level, that U = S − n·m is about δ·n. Its weight is (n² − τ²)/(v·n + TAILS·(σ² + τ²m²)) and
its score (n·U + τ²m)/(the same). Taking τ² off n², and the covariance −τ²m of n and U off n·U,
makes both right on average in cells that nearly no event fell into. There, means S/n of noisy
counts are all of one sign; a table has hundreds of such cells, and their bias would outweigh what
the others know. So a sum of weights may fall below 0: then it counts as 0, and its score still
counts. A count of 0 or less says nothing: weight and score are 0. (Noise is symmetric, so where no
event fell both stay right on average, at half the variance.)

Fitting: γ is integrated out, which leaves normal equations in 1 + Σ levels unknowns an action. Two
levels of one field never meet in a cell, so the largest field is eliminated by division, and what
remains is inverted by sweeps. Every number is one correctly rounded operation at a time, in a fixed
order (`policy_arithmetic`): the same releases give the same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import ClassVar

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.evidence.policy import Policy, parts_of, with_floor
from streamdp.core.evidence.policy_arithmetic import ordered_sum
from streamdp.core.evidence.policy_best import chances_of_best
from streamdp.core.evidence.policy_posterior import TAILS, NoiseVariance, level
from streamdp.core.evidence.policy_rule import Pairs

ROUNDS = 6
"""Of EM, each with a step of twice the length in the logarithm: as good as twelve plain ones.

Variances begin small, and few rounds keep them small where little is known."""

_MAIN = 0.05  # (level/2)²: the first variance of μ and of all fields together
_CELLS = 0.002  # (level/2)²: the first variance of γ
_LEAST = 1e-4  # of the first variance: none falls below, and none rises above (level/2)²
_LEAST_LEVEL = 2.0**-9  # a smaller level counts as this one
_FLOOR_SHARE = 0.5  # the most that all floors together take of a policy


@dataclass(frozen=True, slots=True)
class ContextModel:
    """In each cell an action's chance is its chance of being the best there, with a floor.

    Deviations are multiplied by `spread`. Each action is expected to be shown at least `floor`
    times a block, over all cells.
    """

    shape: tuple[int, ...]  # levels of each field
    actions: int
    spread: Fraction
    floor: Fraction
    name: str = "contexts"
    history: ClassVar[Pairs] = Pairs("posterior")

    def parameters(self) -> Mapping[str, str]:
        """Everything that its policies depend on, in writing."""
        shape = "x".join(map(str, self.shape))
        return {"shape": shape, "spread": str(self.spread), "floor": str(self.floor)}

    def learned(self, state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
        """Add the block's weights and scores, at the level after it."""
        now = level(state)
        counts = np.maximum(shown, 0.0)
        for _ in range(2):
            m = now.mean[:, None]
            spread = now.variance[:, None] * counts
            spread += TAILS * (noise.on_sums + noise.on_counts * (m * m))
            known = shown > 0
            spread = np.where(known, spread, 1.0)
            weight = np.where(known, (shown * shown - noise.on_counts) / spread, 0.0)
            about = shown * (gains - shown * m) + noise.on_counts * m
            score = np.where(known, about / spread, 0.0) + weight * m
            after: Floats = state + np.stack([weight, score], axis=1)
            now = level(after)
        return after

    def policy(self, state: Floats, lengths: Ints) -> Policy:
        """The policies of all cells, cell by cell."""
        arms = prod(self.shape) * self.actions
        if state.shape[2] != arms:
            raise InvalidConfig(
                complaint("context", "another table", expected=f"{arms} arms", got=state.shape[2])
            )
        return np.stack(
            [self._policy(row, length) for row, length in zip(state, lengths.tolist(), strict=True)]
        )

    def _policy(self, row: Floats, length: int) -> Policy:
        """The policy of one row."""
        cells = prod(self.shape)
        if row.any():
            means, deviations = self.effects(row)
            chances = chances_of_best(means, deviations * float(self.spread))
        else:
            chances = np.full((cells, self.actions), 1.0 / self.actions)
        floor = min(float(self.floor) / length, _FLOOR_SHARE / self.actions)
        return parts_of(with_floor(chances, np.full_like(chances, floor))).reshape(-1)

    def effects(self, row: Floats) -> tuple[Floats, Floats]:
        """The posterior mean gain, above the level, and deviation of each cell and action."""
        of_all = level(row[None])
        centre = of_all.mean[0]
        tables = row.reshape(2, prod(self.shape), self.actions).swapaxes(1, 2)
        shape = (self.actions, *self.shape)
        scores = (tables[1] - tables[0] * centre).reshape(shape)
        weights = np.maximum(tables[0], 0.0).reshape(shape)
        half = max(0.5 - abs(centre), _LEAST_LEVEL) / 2.0
        fit = _Fit(weights, scores, half * half)
        for _ in range(ROUNDS):
            fit.solve()
            fit.update()
        mean, variance = fit.solve()
        cells = prod(self.shape)
        flat = (np.ascontiguousarray(of.reshape(-1, cells).T) for of in (mean, np.sqrt(variance)))
        means, deviations = flat
        return means, deviations


class _Fit:
    """The model's fit to one row's table: alternate `solve` and `update`.

    Arrays have the action first: K × levels of each field. Unknowns are the levels of the largest
    field, eliminated, and the others: μ, then the levels of the other fields, D in all.
    """

    def __init__(self, weights: Floats, scores: Floats, unit: float) -> None:
        self._weights, self._scores, self._unit = weights, scores, unit
        sizes = weights.shape[1:]
        self._large = max(range(len(sizes)), key=lambda field: sizes[field])
        self._small = [field for field in range(len(sizes)) if field != self._large]
        self._begin, at = {}, 1  # where each other field's levels begin
        for field in self._small:
            self._begin[field] = slice(at, at + sizes[field])
            at += sizes[field]
        self._unknowns = at
        share = _MAIN / len(sizes) * unit
        self._main = share
        self._fields = [share] * len(sizes)
        self._cells = _CELLS * unit

    # -- one round -------------------------------------------------------------------------------

    def solve(self) -> tuple[Floats, Floats]:
        """The posterior means and variances of all cells, given the variances of effects."""
        weights, scores = self._weights, self._scores
        inflation = 1.0 + weights * self._cells
        precision, score = weights / inflation, scores / inflation
        large = self._levels(precision, self._large) + 1.0 / self._fields[self._large]
        cross = self._cross(precision)  # K × L × D
        rest = self._rest(precision)  # K × D × D
        ratio = cross / large[:, :, None]
        for at in range(large.shape[1]):
            rest -= cross[:, at, :, None] * ratio[:, at, None, :]
        inverse = _inverse(rest)
        right_large, right = self._levels(score, self._large), self._right(score)
        for at in range(large.shape[1]):
            right -= ratio[:, at] * right_large[:, at, None]
        # The blocks of the whole inverse, and the unknowns.
        joint = np.zeros_like(ratio)  # −(covariance of the large field and the others)
        for at in range(self._unknowns):
            joint += ratio[:, :, at, None] * inverse[:, at, None, :]
        spread = 1.0 / large + ordered_sum(np.moveaxis(ratio * joint, 2, 0))
        rest_means = ordered_sum(np.moveaxis(inverse * right[:, None, :], 2, 0))
        behind = ordered_sum(np.moveaxis(ratio * rest_means[:, None, :], 2, 0))
        self._of_large = right_large / large - behind, spread
        self._of_rest = rest_means, inverse
        mean, variance = self._linear(joint)
        keeps = 1.0 / inflation  # of what the linear part predicts
        self._means = self._cells * keeps * (scores - weights * mean)
        own = self._cells * keeps
        moved = 1.0 - keeps
        self._variances = own + moved * moved * variance
        return mean + self._means, own + keeps * keeps * variance

    def update(self) -> None:
        """One round of EM: each variance moves towards the mean square of its effects."""
        large = self._large
        self._fields[large] = self._stepped(self._fields[large], *self._of_large, first=_MAIN)
        means, inverse = self._of_rest
        diagonal = np.stack([inverse[:, at, at] for at in range(self._unknowns)], axis=1)
        self._main = self._stepped(self._main, means[:, :1], diagonal[:, :1], first=_MAIN)
        for field, of in self._begin.items():
            self._fields[field] = self._stepped(
                self._fields[field], means[:, of], diagonal[:, of], first=_MAIN
            )
        self._cells = self._stepped(self._cells, self._means, self._variances, first=_CELLS)

    def _stepped(self, now: float, means: Floats, variances: Floats, *, first: float) -> float:
        """A variance after one more round: EM's ratio twice."""
        squares = ordered_sum((means * means + variances).reshape(-1))
        mean_square = float(squares) / means.size
        return max(min(mean_square * mean_square / now, self._unit), _LEAST * first * self._unit)

    # -- sums of the table -----------------------------------------------------------------------

    def _levels(self, table: Floats, *fields: int) -> Floats:
        """The table's sums over all fields but these, K × their levels in the order given."""
        axes = [field + 1 for field in fields]
        others = [axis for axis in range(1, table.ndim) if axis not in axes]
        kept = [table.shape[axis] for axis in axes]
        ordered = table.transpose(*others, 0, *axes)
        return ordered_sum(ordered.reshape(-1, table.shape[0], *kept))

    def _cross(self, precision: Floats) -> Floats:
        """What the largest field shares with each other unknown."""
        count = precision.shape[self._large + 1]
        cross = np.empty((len(precision), count, self._unknowns))
        cross[:, :, 0] = self._levels(precision, self._large)
        for field, of in self._begin.items():
            cross[:, :, of] = self._levels(precision, self._large, field)
        return cross

    def _rest(self, precision: Floats) -> Floats:
        """The normal equations' matrix of the other unknowns."""
        rest = np.zeros((len(precision), self._unknowns, self._unknowns))
        for place, field in enumerate(self._small):
            of = self._begin[field]
            sums = self._levels(precision, field)
            for at in range(sums.shape[1]):
                rest[:, of.start + at, of.start + at] = sums[:, at] + 1.0 / self._fields[field]
            rest[:, 0, of] = rest[:, of, 0] = sums
            for other in self._small[:place]:
                pairs = self._levels(precision, field, other)
                rest[:, of, self._begin[other]] = pairs
                rest[:, self._begin[other], of] = pairs.swapaxes(1, 2)
        rest[:, 0, 0] = self._total(precision) + 1.0 / self._main
        return rest

    def _right(self, score: Floats) -> Floats:
        """The right-hand side of the other unknowns."""
        right = np.empty((len(score), self._unknowns))
        right[:, 0] = self._total(score)
        for field, of in self._begin.items():
            right[:, of] = self._levels(score, field)
        return right

    def _total(self, table: Floats) -> Floats:
        return ordered_sum(self._levels(table, self._large).T)

    # -- back to cells ---------------------------------------------------------------------------

    def _linear(self, joint: Floats) -> tuple[Floats, Floats]:
        """The mean and variance of level + μ + Σβ in each cell."""
        means, inverse = self._of_rest
        mean_large, spread = self._of_large
        shape = self._weights.shape
        mean, variance = np.zeros(shape), np.zeros(shape)
        mean += self._spread(means[:, 0])
        variance += self._spread(inverse[:, 0, 0])
        mean += self._spread(mean_large, self._large)
        variance += self._spread(spread - 2.0 * joint[:, :, 0], self._large)
        for place, field in enumerate(self._small):
            of = self._begin[field]
            mean += self._spread(means[:, of], field)
            own = np.stack([inverse[:, at, at] for at in range(of.start, of.stop)], axis=1)
            variance += self._spread(own + 2.0 * inverse[:, 0, of], field)
            variance -= self._spread(2.0 * joint[:, :, of], self._large, field)
            for other in self._small[:place]:
                pairs = inverse[:, of, self._begin[other]]
                variance += self._spread(2.0 * pairs, field, other)
        # Rounding may leave a variance below 0 where two nearly equal numbers cancel.
        return mean, np.maximum(variance, 0.0)

    def _spread(self, values: Floats, *fields: int) -> Floats:
        """K × the levels of some fields, broadcast to a table."""
        order = sorted(range(len(fields)), key=lambda at: fields[at])
        values = values.transpose(0, *(at + 1 for at in order))
        shape = [len(values)] + [1] * (self._weights.ndim - 1)
        for at, field in enumerate(sorted(fields)):
            shape[field + 1] = values.shape[at + 1]
        return values.reshape(shape)


def _inverse(matrices: Floats) -> Floats:
    """The inverses of positive definite matrices, by one sweep for each row; overwrites them.

    >>> _inverse(np.array([[[2.0, 1.0], [1.0, 1.0]]])).tolist()
    [[[1.0, -1.0], [-1.0, 2.0]]]
    """
    for at in range(matrices.shape[1]):
        pivot = 1.0 / matrices[:, at, at]
        column = matrices[:, :, at].copy()
        row = column * pivot[:, None]
        matrices -= column[:, :, None] * row[:, None, :]
        matrices[:, at, :] = matrices[:, :, at] = row
        matrices[:, at, at] = -pivot
    return -matrices
