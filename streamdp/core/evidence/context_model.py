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


class _Factor(NamedTuple):
    """Where a factor's effects stand in the array of all effects."""

    effects: slice
    effect: Ints | None  # of each number that it is fitted to: which effect; None: its own


class _Group(NamedTuple):
    """Factors that are fitted to the same sums: those over all fields that none of them has."""

    entries: Ints | slice  # those that are summed
    place: Ints | None  # of each of these: which sum; None: its own
    sums: int
    factors: tuple[_Factor, ...]


def _grouped(
    shape: tuple[int, ...], tables: Sequence[Sequence[int]], factors: Sequence[tuple[int, ...]]
) -> list[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """Which factors are fitted to the same sums, after the fields of these.

    A table's fields are cut into three bundles: any pair of fields is in one or two of them. What
    several parts have, and the cells, are fitted alone.

    >>> _grouped((2, 2, 2), [(0, 1, 2)], [(), (0,), (1,), (0, 1), (1, 2), (0, 1, 2)])
    [((0, 1), [(), (0,), (1,), (0, 1)]), ((1, 2), [(1, 2)]), ((0, 1, 2), [(0, 1, 2)])]
    """
    left = [of for of in factors if sum({*of} <= {*part} for part in tables) == 1]
    found = [(of, [of]) for of in factors if of not in left]
    for part in tables:
        by_size = sorted(part, key=lambda field: shape[field])
        bundles = np.array_split(by_size, 3)
        for two in combinations(bundles, 2):
            fields = tuple(sorted(np.concatenate(two).astype(int).tolist()))
            some = [of for of in left if {*of} <= {*fields}]
            found += [(fields, some)] if some else []
            left = [of for of in left if of not in some]
    return found + [(of, [of]) for of in left]


@dataclass(frozen=True, slots=True, eq=False)
class _Factors:
    """The factors of some rows' tables. All effects stand in one array, factor after factor.

    A factor has effects of each row, level and action. An entry is an action in a cell of a row:
    of the tables that are released, or of all cells. Moving an effect moves a sum over entries by
    the sum of their weights: so the factors of a group are fitted to a small table of sums, and
    then the entries are moved once for all of them.
    """

    groups: tuple[_Group, ...]  # in released tables
    cells: tuple[_Group, ...]  # in all cells
    in_cells: int  # entries of all cells
    of_variance: Ints  # of each effect: its row and factor, of which each row has a variance
    size: Floats  # of each row and factor: how many effects
    first: Floats  # of each row and factor: the first variance
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
        chosen: dict[tuple[int, ...], float] = {(): _EVERYWHERE}
        chosen |= dict.fromkeys([(field,) for field in fields], _FIELDS / len(fields))
        chosen |= {pair: _PAIRS / len(pairs) for pair in pairs}
        chosen |= {part: _CELLS for part in tables if len(part) > 2}
        levels = [prod(shape[field] for field in of) for of in chosen]
        stops = (np.cumsum(levels) * rows * actions).tolist()
        effects = dict(zip(chosen, map(slice, [0, *stops], stops), strict=False))
        row, action = np.arange(rows)[:, None, None], np.arange(actions)

        def places(
            of: Sequence[int], parts: Sequence[Sequence[int]]
        ) -> tuple[Ints | slice, Ints | None]:
            """The entries of these tables that have these fields, and the sum of each."""
            sizes = [prod(shape[field] for field in part) for part in parts]
            ends = np.cumsum(sizes).tolist()
            having = [at for at, part in enumerate(parts) if {*of} <= {*part}]
            level = np.concatenate([_levels_of(shape, of, parts[at]) for at in having])
            many = prod(shape[field] for field in of)
            place = ((row * many + level[:, None]) * actions + action).reshape(-1)
            if len(having) == len(parts):
                return slice(None), None if len(parts) == 1 and many == ends[-1] else place
            cell = np.concatenate([np.arange(ends[at] - sizes[at], ends[at]) for at in having])
            return ((row * ends[-1] + cell[:, None]) * actions + action).reshape(-1), place

        def groups(parts: Sequence[Sequence[int]]) -> tuple[_Group, ...]:
            """All of them, in these tables."""
            return tuple(
                _Group(
                    *places(of, parts),
                    rows * actions * prod(shape[field] for field in of),
                    tuple(_Factor(effects[factor], places(factor, [of])[1]) for factor in some),
                )
                for of, some in _grouped(shape, tables, [*chosen])
            )

        entries = rows * actions * sum(prod(shape[field] for field in part) for part in tables)
        of_variance = np.concatenate(
            [
                np.repeat(np.arange(rows) * len(chosen) + at, many * actions)
                for at, many in enumerate(levels)
            ]
        )
        return _Factors(
            groups(tables),
            groups([every]),
            rows * actions * prod(shape),
            of_variance,
            np.bincount(of_variance).astype(np.float64),
            np.array([*chosen.values()] * rows),
            min(ROUNDS, max(_LEAST_ROUNDS, _WORK // (entries // rows * len(chosen)))),
        )

    def fitted(
        self, weights: Floats, scores: Floats, unit: Floats, predicting: bool
    ) -> tuple[Floats, Floats]:
        """The mean and variance of each entry's sum of effects, by rounds over the factors.

        `predicting`: of the released tables' entries, by fewer rounds; else of all cells'.
        """
        of_sums = [_summed(weights[of.entries], of.place, of.sums) for of in self.groups]
        effects, known = np.zeros((2, len(self.of_variance)))
        for weight, group in zip(of_sums, self.groups, strict=True):
            for of, effect in group.factors:
                known[of] = _summed(weight, effect, of.stop - of.start)
        most = np.repeat(unit, len(self.first) // len(unit))
        variances = self.first * most
        least = variances * _LEAST
        spread, rest = self._spread(known, variances), scores.copy()  # what is not explained yet
        for turn in range((_PREDICTING if predicting else self.rounds) + 1):
            if turn:
                squares = np.bincount(self.of_variance, effects * effects + spread) / self.size
                variances = np.maximum(np.minimum(squares * squares / variances, most), least)
                spread = self._spread(known, variances)
            for weight, group in zip(of_sums, self.groups, strict=True):
                left = _summed(rest[group.entries], group.place, group.sums)
                moved = None if group.place is None else np.zeros(group.sums)
                for of, effect in group.factors:
                    before = effects[of]
                    after = known[of] * before
                    after += _summed(left, effect, len(before))
                    after *= spread[of]
                    step = _placed(after - before, effect)
                    effects[of] = after
                    if moved is not None:
                        moved += step
                    step *= weight
                    left -= step
                if moved is not None:  # else what is left is the rest
                    step = _placed(moved, group.place)
                    step *= weights[group.entries]
                    rest[group.entries] -= step
        mean, variance = np.zeros((2, len(scores) if predicting else self.in_cells))
        for entries, place, sums, factors in self.groups if predicting else self.cells:
            for numbers, total in ((effects, mean), (spread, variance)):
                of_sum = np.zeros(sums)
                for of, effect in factors:
                    of_sum += _placed(numbers[of], effect)
                total[entries] += _placed(of_sum, place)
        return mean, variance

    def _spread(self, known: Floats, variances: Floats) -> Floats:
        """The variance of each effect, given what is known of it and the factors' variances."""
        spread: Floats = 1.0 / (known + _placed(1.0 / variances, self.of_variance))
        return spread


def _summed(numbers: Floats, place: Ints | None, sums: int) -> Floats:
    """The sums of the numbers of each place."""
    if place is None:
        return numbers
    return np.asarray(np.bincount(place, numbers, sums), dtype=np.float64)


def _placed(numbers: Floats, place: Ints | None) -> Floats:
    """The number of each place. (All are within: `clip` leaves out a check that takes longer.)"""
    return numbers if place is None else numbers.take(place, mode="clip")
