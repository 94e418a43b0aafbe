"""How cells learn from each other: a model of a table of released numbers. Public, at no ε.

For each action the mean gain in a cell is

    level + Σ over factors of an effect(factor, level of the factor in the cell),

where the factors are: nothing (one effect of the action everywhere), each field, each pair of
fields, and the cell itself. Effects have normal priors around 0; each factor has a variance, which
is common to all actions and fitted from a small first value: a factor that does not matter costs
nearly nothing, and an interaction that matters gets effects of its own.

What a row keeps of a cell and action, added up over blocks: a weight w and a score. A block whose
released gain sum and count are S and n, with noise of variance σ² and τ², says of the mean m + δ,
m the level, that U = S − n·m is about δ·n. Its weight is (n² − τ²)/(v·n + TAILS·(σ² + τ²m²)) and
its score (n·U + τ²m)/(the same). Taking τ² off n², and the covariance −τ²m of n and U off n·U,
makes both right on average in cells that nearly no event fell into. There, means S/n of noisy
counts are all of one sign; a table has hundreds of such cells, and their bias would outweigh what
the others know. So a sum of weights may fall below 0: then it counts as 0, and its score still
counts. A count of 0 or less says nothing: weight and score are 0. (Noise is symmetric, so where no
event fell both stay right on average, at half the variance.)

Fitting: variational Bayes with a law of its own for each factor (Blei, Kucukelbir & McAuliffe 2017,
§2.4). A factor's effects are fitted to what all others leave over, factor by factor, and so again
in `ROUNDS` rounds. The levels of a factor never meet in a cell, so each effect is a division: there
is no matrix, whatever the number of fields. After each round each variance moves towards the mean
square of its effects.

Change: at any block a new *regime* may begin, in which everything is different. The run-length
filter of `policy_regimes` decides, with room for the two likeliest hypotheses, each of which has a
table of its own. A hypothesis is judged by the gains of each action in all cells together: those
that its model predicts for the events that the block's cells showed, and the block's. (An action's
mean over all cells would not do: it moves when policies learn where to play the action.) What
changes in favour of some cells and against others shows all the same, because policies play each
action where it was good.

Every number is one correctly rounded operation at a time, in a fixed order (`policy_arithmetic`):
the same releases give the same bytes on every machine. Sums over cells are those of `np.bincount`,
which adds one number after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import ClassVar

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.policy import Policy, parts_of, with_floor
from streamdp.core.evidence.policy_arithmetic import log2, ordered_sum
from streamdp.core.evidence.policy_best import chances_of_best
from streamdp.core.evidence.policy_posterior import TAILS, Level, NoiseVariance, level
from streamdp.core.evidence.policy_regimes import HALF_LOG2_E, WIDTH, RegimeHistory, Regimes

ROUNDS = 16
"""Of fitting. Variances begin small, and few rounds keep them small where little is known."""

_LEAST_ROUNDS = 8
_WORK = 2_600_000
"""Numbers of tables, times factors, times rounds: large tables of many fields get fewer rounds."""

_EVERYWHERE = 0.25  # (level/2)²: the first variance of the effects of actions everywhere
_FIELDS = 0.05  # (level/2)²: the first variance of all fields together
_PAIRS = 0.02  # (level/2)²: the first variance of all pairs of fields together
_CELLS = 0.002  # (level/2)²: the first variance of a cell's own effects
_LEAST = 1e-4  # of the first variance: none falls below, and none rises above (level/2)²
_PREDICTING = 5  # rounds of a fit that only predicts a block
_LEAST_LEVEL = 2.0**-9  # a smaller level counts as this one
_FLOOR_SHARE = 0.5  # the most that all floors together take of a policy
_NUMBERS = 1 << 14  # of tables that are fitted at once


@dataclass(frozen=True, slots=True)
class ContextModel:
    """In each cell an action's chance is its chance of being the best there, with a floor.

    Deviations are multiplied by `spread`. Each action is expected to be shown at least `floor`
    times a block, over all cells. `hazard` is how likely a new regime begins with a block.
    """

    shape: tuple[int, ...]  # levels of each field
    actions: int
    hazard: Fraction
    spread: Fraction
    floor: Fraction
    name: str = "contexts"
    history: ClassVar[RegimeHistory] = RegimeHistory(2)

    def parameters(self) -> Mapping[str, str]:
        """Everything that its policies depend on, in writing."""
        shape = "x".join(map(str, self.shape))
        return {
            "shape": shape,
            "hazard": str(self.hazard),
            "spread": str(self.spread),
            "floor": str(self.floor),
        }

    def learned(self, state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
        """Weigh the hypotheses by what they predicted, and add the block to each."""
        regimes = Regimes.of(state)
        mixture = regimes.mixed(regimes.shares())
        block = weighed(mixture, gains, shown, noise)
        densities = self._densities(regimes, level(mixture), gains, shown, noise)
        return regimes.followed(block, densities, hazard=self.hazard)

    def _densities(
        self, regimes: Regimes, before: Level, gains: Floats, shown: Floats, noise: NoiseVariance
    ) -> Floats:
        """log₂ of the density of each action's gains under each hypothesis, and under a new one.

        The uncertainty of an action's cells counts as if it were the same in all of them.
        """
        rows, count = regimes.known.shape
        of_cells = (rows, prod(self.shape), self.actions)
        shown, gains = shown.reshape(of_cells), gains.reshape(of_cells)
        counts = np.maximum(shown, 0.0)
        slots = _over_cells(counts)
        means = np.repeat((_over_cells(shown) * before.mean[:, None])[:, None], count + 1, axis=1)
        wide = before.rate[:, None] * WIDTH * slots
        deviations = np.repeat(wide[:, None], count + 1, axis=1)
        row, number = np.nonzero(regimes.known)
        if len(row):
            of_cell, variances = self._laws(regimes.arms[row, number], rounds=_PREDICTING)
            means[row, number] = _over_cells(shown[row] * of_cell)
            deviations[row, number] = _over_cells(counts[row] * np.sqrt(variances))
        on_cells = noise.on_sums + noise.on_counts * (before.mean * before.mean)
        own = before.variance[:, None] * slots + (TAILS * of_cells[1] * on_cells)[:, None]
        seen = (slots > 0)[:, None]
        variance = np.where(seen, own[:, None] + deviations * deviations, 1.0)
        off = _over_cells(gains)[:, None] - means
        bits = off * off * HALF_LOG2_E / variance + log2(variance) * 0.5
        return -ordered_sum(np.moveaxis(np.where(seen, bits, 0.0), 2, 0))

    def policy(self, state: Floats, lengths: Ints) -> Policy:
        """The policies of all cells, cell by cell."""
        arms = prod(self.shape) * self.actions
        if state.shape[1:] != self.history.shape(arms):
            raise InvalidConfig(
                "context", "another table", expected=f"{arms} arms", got=f"state {state.shape}"
            )
        means, deviations = self.posterior(state)
        chances = chances_of_best(
            means.reshape(-1, self.actions),
            deviations.reshape(-1, self.actions) * float(self.spread),
        )
        unknown = ~state.any(axis=(1, 2))
        chances.reshape(means.shape)[unknown] = 1.0 / self.actions
        floors = np.minimum(float(self.floor) / lengths, _FLOOR_SHARE / self.actions)
        floors = np.repeat(floors, prod(self.shape))[:, None]
        cells = with_floor(chances, np.broadcast_to(floors, chances.shape))
        return parts_of(cells).reshape(-1, arms)

    def posterior(self, state: Floats) -> tuple[Floats, Floats]:
        """The mean gain and its deviation, rows × cells × actions: mixed of the hypotheses."""
        regimes = Regimes.of(state)
        shares = regimes.likely()
        row, number = np.nonzero(shares)
        of_each, variances = self._laws(regimes.arms[row, number])
        share = shares[row, number][:, None, None]
        means = np.zeros((len(state), *of_each.shape[1:]))
        np.add.at(means, row, share * of_each)
        apart = of_each - means[row]
        variance = np.zeros_like(means)
        np.add.at(variance, row, share * (variances + apart * apart))
        return means, np.sqrt(variance)

    def _laws(self, tables: Floats, *, rounds: int = ROUNDS) -> tuple[Floats, Floats]:
        """The posterior mean gain and its variance, tables × cells × actions."""
        at_once = max(1, _NUMBERS // tables[0, 0].size)
        some = [
            self._fitted(tables[at : at + at_once], rounds) for at in range(0, len(tables), at_once)
        ]
        means, variances = (np.concatenate(parts) for parts in zip(*some, strict=True))
        return means, variances

    def _fitted(self, tables: Floats, rounds: int) -> tuple[Floats, Floats]:
        centre = level(tables).mean
        half = np.maximum(0.5 - np.abs(centre), _LEAST_LEVEL) / 2.0
        weights = np.maximum(tables[:, 0], 0.0).reshape(-1)
        scores = (tables[:, 1] - tables[:, 0] * centre[:, None]).reshape(-1)
        factors = _Factors.of(self.shape, len(tables), self.actions)
        mean, variance = factors.fitted(weights, scores, half * half, rounds)
        shape = len(tables), prod(self.shape), self.actions
        return mean.reshape(shape) + centre[:, None, None], variance.reshape(shape)


def weighed(state: Floats, gains: Floats, shown: Floats, noise: NoiseVariance) -> Floats:
    """What a block adds to weights and scores, at the level after it."""
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
        block: Floats = np.stack([weight, score], axis=1)
        now = level(state + block)
    return block


def _over_cells(table: Floats) -> Floats:
    """The sums over the cells of rows × cells × actions."""
    return ordered_sum(np.moveaxis(table, 1, 0))


@dataclass(frozen=True, slots=True, eq=False)
class _Factors:
    """The factors of some rows' tables. All effects stand in one array, factor after factor.

    A factor has effects of each row, level and action. An entry is an action in a cell of a row.
    """

    places: tuple[tuple[slice, Ints], ...]  # of each factor: its effects, and each entry's of them
    group: Ints  # of each effect: its row and factor, of which each row has a variance
    size: Floats  # of each group: how many effects
    first: Floats  # of each group: the first variance
    rounds: int

    @staticmethod
    @lru_cache(maxsize=8)
    def of(shape: tuple[int, ...], rows: int, actions: int) -> _Factors:
        """Those of a number of rows with tables of this shape."""
        fields = range(len(shape))
        pairs = len(shape) * (len(shape) - 1) // 2
        chosen: list[tuple[tuple[int, ...], float]] = [((), _EVERYWHERE)]
        chosen += [((field,), _FIELDS / len(shape)) for field in fields]
        chosen += [(pair, _PAIRS / pairs) for pair in combinations(fields, 2)]
        if len(shape) > 2:
            chosen.append((tuple(fields), _CELLS))
        row, action = np.arange(rows)[:, None, None], np.arange(actions)
        places, groups, begin = [], [], 0
        for number, (of, _) in enumerate(chosen):
            levels = prod(shape[field] for field in of)
            kept = [shape[field] if field in of else 1 for field in fields]
            level_of = np.broadcast_to(np.arange(levels).reshape(kept), shape).reshape(-1)
            place = (row * levels + level_of[:, None]) * actions + action
            count = rows * levels * actions
            places.append((slice(begin, begin + count), place.reshape(-1)))
            groups.append(np.repeat(np.arange(rows) * len(chosen) + number, levels * actions))
            begin += count
        group = np.concatenate(groups)
        size = np.bincount(group).astype(np.float64)
        first = np.array([first for _, first in chosen] * rows)
        work = prod(shape) * actions * len(chosen)
        rounds = min(ROUNDS, max(_LEAST_ROUNDS, _WORK // work))
        return _Factors(tuple(places), group, size, first, rounds)

    def fitted(
        self, weights: Floats, scores: Floats, unit: Floats, rounds: int
    ) -> tuple[Floats, Floats]:
        """The mean and variance of each entry's sum of effects, by rounds over the factors."""
        known = np.concatenate(
            [np.bincount(place, weights, of.stop - of.start) for of, place in self.places]
        )
        most = np.repeat(unit, len(self.first) // len(unit))
        variances = self.first * most
        least = variances * _LEAST
        effects, spread = np.zeros_like(known), self._spread(known, variances)
        rest, moved = scores.copy(), np.empty_like(scores)  # what is not explained yet
        for turn in range(min(self.rounds, rounds) + 1):
            if turn:
                squares = np.bincount(self.group, effects * effects + spread) / self.size
                variances = np.maximum(np.minimum(squares * squares / variances, most), least)
                spread = self._spread(known, variances)
            for of, place in self.places:
                before = effects[of]
                after: Floats = known[of] * before + np.bincount(place, rest, len(before))
                after *= spread[of]
                (after - before).take(place, out=moved, mode="clip")
                moved *= weights
                rest -= moved
                effects[of] = after
        mean, variance = np.zeros_like(weights), np.zeros_like(weights)
        for of, place in self.places:
            mean += effects[of].take(place)
            variance += spread[of].take(place)
        return mean, variance

    def _spread(self, known: Floats, variances: Floats) -> Floats:
        """The variance of each effect, given what is known of it and the factors' variances."""
        spread: Floats = 1.0 / (known + (1.0 / variances).take(self.group))
        return spread
