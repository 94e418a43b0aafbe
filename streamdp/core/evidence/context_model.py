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

A table *in parts* releases, instead of the cells' numbers, those of a few smaller tables, each of
some of the fields: an event enters one cell of each part. What is fitted are these numbers, each by
the effects of its own fields; a cell's mean has the effects of all parts. Fields that no part has
together count as independent of each other: what one of them explains is not taken off another.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations
from math import prod
from typing import ClassVar, NamedTuple

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


@dataclass(frozen=True)
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
    parts: tuple[tuple[int, ...], ...] = ()  # of a table in parts: the fields of each
    name: str = "contexts"
    history: ClassVar[RegimeHistory] = RegimeHistory(2)

    def parameters(self) -> Mapping[str, str]:
        """Everything that its policies depend on, in writing."""
        parts = ",".join("x".join(map(str, part)) for part in self.parts)
        return {
            "shape": "x".join(map(str, self.shape)),
            **({"parts": parts} if parts else {}),
            "hazard": str(self.hazard),
            "spread": str(self.spread),
            "floor": str(self.floor),
        }

    @property
    def tables(self) -> tuple[tuple[int, ...], ...]:
        """The fields of each table that is released: all of them, or those of each part."""
        return self.parts or (tuple(range(len(self.shape))),)

    @cached_property
    def places(self) -> Ints:
        """The number of each part that an arm's events enter: parts × arms."""
        places, begin = [], 0
        for part in self.tables:
            size = prod(self.shape[field] for field in part)
            cells = begin + _levels_of(self.shape, part, range(len(self.shape)))
            places.append(cells[:, None] * self.actions + np.arange(self.actions))
            begin += size
        return np.reshape(places, (len(places), -1))

    @cached_property
    def numbers(self) -> int:
        """How many there are of the two numbers that are released of an arm without parts."""
        return int(self.places.max()) + 1

    def cells_shown(self, counts: Floats) -> Floats:
        """How often each cell occurred; of a table in parts as if fields were independent."""
        of_cell, found = counts.reshape(-1, self.actions).sum(axis=1), np.ones(1)
        if not self.parts:
            shown: Floats = np.maximum(of_cell, 0.0)
            return shown
        firsts, every = self.places[:, :: self.actions] // self.actions, range(len(self.shape))
        for field, size in enumerate(self.shape):
            part = next(at for at, of in enumerate(self.parts) if field in of)
            cells = np.unique(firsts[part], return_index=True)[1]  # one for each of the part's
            level = _levels_of(self.shape, (field,), every)[cells]
            of_level = np.bincount(level, of_cell[firsts[part][cells]], size)
            found = np.multiply.outer(found, np.maximum(of_level, 0.0))
        return found.reshape(-1)

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
        of_cells, parts = (rows, self.numbers // self.actions, self.actions), len(self.tables)
        shown, gains = shown.reshape(of_cells) / parts, gains.reshape(of_cells) / parts
        counts = np.maximum(shown, 0.0)
        slots = _over_cells(counts)
        means = np.repeat((_over_cells(shown) * before.mean[:, None])[:, None], count + 1, axis=1)
        wide = before.rate[:, None] * WIDTH * slots
        deviations = np.repeat(wide[:, None], count + 1, axis=1)
        row, number = np.nonzero(regimes.known)
        if len(row):
            of_cell, variances = self._laws(regimes.arms[row, number], predicting=True)
            means[row, number] = _over_cells(shown[row] * of_cell)
            deviations[row, number] = _over_cells(counts[row] * np.sqrt(variances))
        on_cells = noise.on_sums + noise.on_counts * (before.mean * before.mean)
        on_cells /= parts * parts
        own = before.variance[:, None] * slots + (TAILS * of_cells[1] * on_cells)[:, None]
        seen = (slots > 0)[:, None]
        variance = np.where(seen, own[:, None] + deviations * deviations, 1.0)
        off = _over_cells(gains)[:, None] - means
        bits = off * off * HALF_LOG2_E / variance + log2(variance) * 0.5
        return -ordered_sum(np.where(seen, bits, 0.0).transpose(2, 0, 1))

    def policy(self, state: Floats, lengths: Ints) -> Policy:
        """The policies of all cells, cell by cell."""
        arms = prod(self.shape) * self.actions
        if state.shape[1:] != self.history.shape(self.numbers):
            expected, got = f"{self.numbers} numbers", f"state {state.shape}"
            raise InvalidConfig("context", "another table", expected=expected, got=got)
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

    def _laws(self, tables: Floats, *, predicting: bool = False) -> tuple[Floats, Floats]:
        """The posterior mean gain and its variance, tables × cells × actions.

        `predicting`: of the numbers that are released, by fewer rounds.
        """
        at_once = max(1, _NUMBERS // tables[0, 0].size)
        some = [
            self._fitted(tables[at : at + at_once], predicting)
            for at in range(0, len(tables), at_once)
        ]
        means, variances = (np.concatenate(parts) for parts in zip(*some, strict=True))
        return means, variances

    def _fitted(self, tables: Floats, predicting: bool) -> tuple[Floats, Floats]:
        centre = level(tables).mean
        half = np.maximum(0.5 - np.abs(centre), _LEAST_LEVEL) / 2.0
        weights = np.maximum(tables[:, 0], 0.0).reshape(-1)
        scores = (tables[:, 1] - tables[:, 0] * centre[:, None]).reshape(-1)
        factors = _Factors.of(self.shape, self.tables, len(tables), self.actions)
        mean, variance = factors.fitted(weights, scores, half * half, predicting)
        shape = len(tables), -1, self.actions
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
    return ordered_sum(table.swapaxes(0, 1))


def _levels_of(shape: tuple[int, ...], of: Sequence[int], part: Sequence[int]) -> Ints:
    """The combination of levels of some fields, in each cell of a table of some fields or more.

    >>> _levels_of((2, 3), [0], range(2)).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    kept = [size if field in of else 1 for field, size in enumerate(shape)]
    numbers = np.arange(prod(kept)).reshape(kept)
    wide = [size if field in part else 1 for field, size in enumerate(shape)]
    return np.broadcast_to(numbers, wide).reshape(-1)


class _Places(NamedTuple):
    """Where a factor's effects stand, and which entries they are of."""

    effects: slice  # of a factor in the array of all effects
    entries: Ints | slice  # those that the factor has an effect in
    effect: Ints  # of each of these entries: the number of its effect


@dataclass(frozen=True, slots=True, eq=False)
class _Factors:
    """The factors of some rows' tables. All effects stand in one array, factor after factor.

    A factor has effects of each row, level and action. An entry is an action in a cell of a row:
    of the tables that are released, or of all cells.
    """

    places: tuple[_Places, ...]  # in released tables
    cells: tuple[_Places, ...]  # in all cells
    entries: int
    group: Ints  # of each effect: its row and factor, of which each row has a variance
    size: Floats  # of each group: how many effects
    first: Floats  # of each group: the first variance
    rounds: int

    @staticmethod
    @lru_cache(maxsize=8)
    def of(
        shape: tuple[int, ...], tables: tuple[tuple[int, ...], ...], rows: int, actions: int
    ) -> _Factors:
        """Those of a number of rows with released tables of these fields."""
        every = tuple(range(len(shape)))
        fields = sorted({field for part in tables for field in part})
        pairs = sorted({pair for part in tables for pair in combinations(part, 2)})
        chosen: list[tuple[tuple[int, ...], float]] = [((), _EVERYWHERE)]
        chosen += [((field,), _FIELDS / len(fields)) for field in fields]
        chosen += [(pair, _PAIRS / len(pairs)) for pair in pairs]
        chosen += [(part, _CELLS) for part in dict.fromkeys(tables) if len(part) > 2]
        row, action = np.arange(rows)[:, None, None], np.arange(actions)

        def places_in(parts: Sequence[tuple[int, ...]]) -> tuple[list[_Places], int]:
            """Where each factor stands in these tables; and how many entries they have."""
            sizes = [prod(shape[field] for field in part) for part in parts]
            ends = np.cumsum(sizes).tolist()
            cells, places, begin = ends[-1], list[_Places](), 0
            for of, _ in chosen:
                levels = prod(shape[field] for field in of)
                having = [at for at, part in enumerate(parts) if {*of} <= {*part}]
                level = np.concatenate([_levels_of(shape, of, parts[at]) for at in having])
                effect = (row * levels + level[:, None]) * actions + action
                entries: Ints | slice = slice(None)
                if len(having) < len(parts):
                    own = [np.arange(ends[at] - sizes[at], ends[at]) for at in having]
                    cell = np.concatenate(own)[:, None]
                    entries = ((row * cells + cell) * actions + action).reshape(-1)
                stop = begin + rows * levels * actions
                places.append(_Places(slice(begin, stop), entries, effect.reshape(-1)))
                begin = stop
            return places, rows * cells * actions

        places, entries = places_in(tables)
        of_cells = places if tables == (every,) else places_in([every])[0]
        groups = [
            np.repeat(np.arange(rows) * len(chosen) + at, (of.stop - of.start) // rows)
            for at, (of, _, _) in enumerate(places)
        ]
        group = np.concatenate(groups)
        size = np.bincount(group).astype(np.float64)
        first = np.array([first for _, first in chosen] * rows)
        work = entries // rows * len(chosen)
        rounds = min(ROUNDS, max(_LEAST_ROUNDS, _WORK // work))
        return _Factors(tuple(places), tuple(of_cells), entries, group, size, first, rounds)

    def fitted(
        self, weights: Floats, scores: Floats, unit: Floats, predicting: bool
    ) -> tuple[Floats, Floats]:
        """The mean and variance of each entry's sum of effects, by rounds over the factors.

        `predicting`: of the released tables' entries, by fewer rounds; else of all cells'.
        """
        known = np.concatenate(
            [
                np.bincount(place, weights[entries], of.stop - of.start)
                for of, entries, place in self.places
            ]
        )
        most = np.repeat(unit, len(self.first) // len(unit))
        variances = self.first * most
        least = variances * _LEAST
        effects, spread = np.zeros_like(known), self._spread(known, variances)
        rest, room = scores.copy(), np.empty_like(scores)  # what is not explained yet
        for turn in range((_PREDICTING if predicting else self.rounds) + 1):
            if turn:
                squares = np.bincount(self.group, effects * effects + spread) / self.size
                variances = np.maximum(np.minimum(squares * squares / variances, most), least)
                spread = self._spread(known, variances)
            for of, entries, place in self.places:
                before = effects[of]
                after: Floats = known[of] * before + np.bincount(place, rest[entries], len(before))
                after *= spread[of]
                moved = (after - before).take(place, out=room[: len(place)], mode="clip")
                moved *= weights[entries]
                rest[entries] -= moved
                effects[of] = after
        size = self.entries if predicting else len(self.cells[0].effect)
        mean, variance = np.zeros(size), np.zeros(size)
        for of, entries, place in self.places if predicting else self.cells:
            mean[entries] += effects[of].take(place)
            variance[entries] += spread[of].take(place)
        return mean, variance

    def _spread(self, known: Floats, variances: Floats) -> Floats:
        """The variance of each effect, given what is known of it and the factors' variances."""
        spread: Floats = 1.0 / (known + (1.0 / variances).take(self.group))
        return spread
