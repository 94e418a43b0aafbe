"""Effects of factors, fitted to released sums: the arithmetic of `context_model`. Public, at no ε.

A *factor* is a set of fields. It has one effect for each combination of their levels and each
action. A *table* is a set of fields too: it has one number for each combination and action, an
*entry*. What is known of an entry is a weight and a score (`context_model`); its mean is

    Σ over its cells of share(cell) · Σ over factors of effect(factor, levels of the cell),

where the shares of its cells, by action, are those of the events that the entry is of. A table
tells of the factors whose fields it has, each of whose effects is the same in all cells of an
entry. Effects of other factors are taken off what it says, as they are known from other tables.

Fitting: variational Bayes with a law of its own for each factor (Blei, Kucukelbir & McAuliffe 2017,
§2.4). A factor's effects are fitted to what all others leave over, factor by factor, and so again
in `ROUNDS` rounds. The levels of a factor never meet in an entry of a table that tells of it, so
each effect is a division: there is no matrix, whatever the number of fields. After each round each
variance moves towards the mean square of its effects.

A factor's effects are what its fields add to fewer ones: *their mean is 0* over all that are one
effect of a factor with fewer fields, each weighed by what is known of it. Then a coarse table tells
nothing of the finer factors that it leaves out. If their means were free, a coarse table and a
finer one that differ by noise would pull an action's effect everywhere up and those of a field
down, further in each round, and variances would follow: policies then tried again what they knew.

Every number is one correctly rounded operation at a time, in a fixed order (`policy_arithmetic`).
Sums are those of `np.bincount`, which adds one number after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from streamdp.core.arrays import Floats, Ints

ROUNDS = 16
"""Of fitting. Variances begin small, and few rounds keep them small where little is known."""

_LEAST_ROUNDS = 8
_WORK = 2_600_000
"""Numbers of tables, times factors, times rounds: large tables of many fields get fewer rounds."""

_EVERYWHERE = 0.25  # (level/2)²: the first variance of the effects of actions everywhere
_FIELDS = 0.05  # (level/2)²: the first variance of all fields together
_PAIRS = 0.02  # (level/2)²: the first variance of all pairs of fields together
_MORE = 0.002  # (level/2)²: the first variance of the effects of more fields together
_LEAST = 1e-4  # of the first variance: none falls below, and none rises above (level/2)²
_PREDICTING = 5  # rounds of a fit that only predicts a block

Fields = tuple[int, ...]


def levels_of(shape: Sequence[int], of: Sequence[int], table: Sequence[int]) -> Ints:
    """The combination of levels of some fields, in each entry of a table of these or more.

    >>> levels_of((2, 3), [0], range(2)).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    kept = [size if field in of else 1 for field, size in enumerate(shape)]
    numbers = np.arange(prod(kept)).reshape(kept)
    wide = [size if field in table else 1 for field, size in enumerate(shape)]
    return np.broadcast_to(numbers, wide).reshape(-1)


class Fitted(NamedTuple):
    """The mean and variance of each arm's sum of effects, and what may be found of each effect."""

    mean: Floats
    variance: Floats
    may_be: Floats
    """The variance of each effect, where a factor of which little is known may vary by more than
    what was fitted: between its first variance and the most, a quarter of the way in logarithms."""


class _Fewer(NamedTuple):
    """A factor of fewer fields, the most that there are: of each effect, which of its own."""

    place: Ints
    effects: int


class _Factor(NamedTuple):
    """Where a factor's effects stand in the array of all effects."""

    effects: slice
    effect: Ints | None  # of each number that it is fitted to: which effect; None: its own
    fewer: tuple[_Fewer, ...]


class _Group(NamedTuple):
    """Factors that are fitted to the same sums: those over all fields that none of them has."""

    entries: Ints | slice  # those that are summed
    place: Ints | None  # of each of these: which sum; None: its own
    sums: int
    factors: tuple[_Factor, ...]


class _Coarse(NamedTuple):
    """A table with several cells in an entry."""

    entries: slice
    place: Ints  # of each arm: which of these entries


def _grouped(
    shape: Fields, tables: Sequence[Fields], factors: Sequence[Fields]
) -> list[tuple[Fields, list[Fields]]]:
    """Which factors are fitted to the same sums, after the fields of these.

    A table's fields are cut into three bundles: any pair of fields is in one or two of them. What
    several tables tell of, and the cells, are fitted alone. Of what is left nothing is known.

    >>> _grouped((2, 2, 2), [(0, 1, 2)], [(), (0,), (1,), (0, 1), (1, 2), (0, 1, 2)])
    [((0, 1), [(), (0,), (1,), (0, 1)]), ((1, 2), [(1, 2)]), ((0, 1, 2), [(0, 1, 2)])]
    """
    told = {of: sum({*of} <= {*table} for table in tables) for of in factors}
    left = [of for of in factors if told[of] == 1]
    found = [(of, [of]) for of in factors if told[of] > 1]
    for table in tables:
        by_size = sorted(table, key=lambda field: shape[field])
        bundles = np.array_split(by_size, 3)
        for two in combinations(bundles, 2):
            fields = tuple(sorted(np.concatenate(two).astype(int).tolist()))
            some = [of for of in left if {*of} <= {*fields}]
            found += [(fields, some)] if some else []
            left = [of for of in left if of not in some]
    return found + [(of, [of]) for of in left]


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """The factors of some rows. All effects stand in one array, factor after factor.

    A factor has effects of each row, level and action. Entries are those of the tables that
    something is known of, table after table, each row after row. Moving an effect moves a sum over
    entries by the sum of their weights: so the factors of a group are fitted to a small table of
    sums, and then the entries are moved once for all of them.
    """

    groups: tuple[_Group, ...]  # in entries
    cells: tuple[_Group, ...]  # in all arms
    coarse: tuple[_Coarse, ...]
    arms: int  # of all rows
    of_variance: Ints  # of each effect: its row and factor, of which each row has a variance
    size: Floats  # of each row and factor: how many effects
    first: Floats  # of each row and factor: the first variance
    rounds: int

    @staticmethod
    @lru_cache(maxsize=32)
    def of(
        shape: Fields,
        factors: tuple[Fields, ...],
        tables: tuple[Fields, ...],
        rows: int,
        actions: int,
    ) -> Factors:
        """Those of a number of rows of which these tables tell something."""
        every = tuple(range(len(shape)))
        alike = [sum(len(of) == fields for of in factors) for fields in (1, 2)]
        by_fields = [
            _EVERYWHERE,
            *(of / max(1, many) for of, many in zip((_FIELDS, _PAIRS), alike, strict=True)),
        ]
        first = [by_fields[len(of)] if len(of) < 3 else _MORE for of in factors]
        levels = [prod(shape[field] for field in of) for of in factors]
        effects = effects_of(shape, factors, rows, actions)
        row, action = np.arange(rows)[:, None, None], np.arange(actions)

        def numbers(of: Sequence[int], tables: Sequence[Fields]) -> list[Ints]:
            """Of each entry of these tables: the effect of its levels of these fields."""
            many = prod(shape[field] for field in of)
            return [
                ((row * many + levels_of(shape, of, table)[:, None]) * actions + action).reshape(-1)
                for table in tables
            ]

        fewer = {
            of: tuple(
                _Fewer(numbers(it, [of])[0], rows * actions * levels[factors.index(it)])
                for it in factors
                if {*it} < {*of} and not any({*it} < {*other} < {*of} for other in factors)
            )
            for of in factors
        }

        def groups(tables: Sequence[Fields]) -> tuple[_Group, ...]:
            """All factors of which these tables tell, in their entries."""
            sizes = [rows * actions * prod(shape[field] for field in table) for table in tables]
            stops = np.cumsum(sizes, dtype=np.int64).tolist()
            found = []
            for of, some in _grouped(shape, tables, factors):
                having = [at for at, table in enumerate(tables) if {*of} <= {*table}]
                place = np.concatenate(numbers(of, [tables[at] for at in having]))
                entries: Ints | slice = slice(
                    stops[having[0]] - sizes[having[0]], stops[having[-1]]
                )
                if len(having) <= having[-1] - having[0]:
                    each = [np.arange(stops[at] - sizes[at], stops[at]) for at in having]
                    entries = np.concatenate(each)
                own = [tables[at] for at in having] == [of]
                fitted = [
                    _Factor(
                        effects[factors.index(it)],
                        None if it == of else numbers(it, [of])[0],
                        fewer[it],
                    )
                    for it in some
                ]
                many = rows * actions * prod(shape[field] for field in of)
                found.append(_Group(entries, None if own else place, many, tuple(fitted)))
            return tuple(found)

        sizes = [rows * actions * prod(shape[field] for field in table) for table in tables]
        stops = np.cumsum(sizes, dtype=np.int64).tolist()
        coarse = [
            _Coarse(slice(stop - size, stop), numbers(table, [every])[0])
            for table, size, stop in zip(tables, sizes, stops, strict=True)
            if len(table) < len(shape)
        ]
        of_variance = np.concatenate(
            [
                np.repeat(np.arange(rows) * len(factors) + at, many * actions)
                for at, many in enumerate(levels)
            ]
        )
        work = max(1, sum(sizes) // rows) * len(factors)
        return Factors(
            groups(tables),
            groups([every]),
            tuple(coarse),
            rows * actions * prod(shape),
            of_variance,
            np.bincount(of_variance).astype(np.float64),
            np.array(first * rows),
            min(ROUNDS, max(_LEAST_ROUNDS, _WORK // work)),
        )

    def fitted(
        self,
        weights: Floats,
        scores: Floats,
        shares: Floats,
        unit: Floats,
        *,
        open_: Floats | None = None,
        predicting: bool = False,
    ) -> Fitted:
        """The effects by rounds over the factors; by fewer of them for a prediction.

        `weights` and `scores` are those of the entries, `shares` those of each arm in the entries
        of coarse tables, up to a factor. With `open_`, a number for each row and factor, the
        variance of a factor's effects counts so many times in that of arms.
        """
        of_sums = [_summed(weights[of.entries], of.place, of.sums) for of in self.groups]
        effects, known = np.zeros((2, len(self.of_variance)))
        for weight, group in zip(of_sums, self.groups, strict=True):
            for of, effect, _ in group.factors:
                known[of] = _summed(weight, effect, of.stop - of.start)
        most = np.repeat(unit, len(self.first) // len(unit))
        variances = self.first * most
        least = variances * _LEAST
        spread, rest = self._spread(known, variances), scores.copy()  # what is not explained yet
        within = [self._within(of, shares) for of in self.coarse]
        for turn in range((_PREDICTING if predicting else self.rounds) + 1):
            if turn:
                squares = np.bincount(self.of_variance, effects * effects + spread) / self.size
                variances = np.maximum(np.minimum(squares * squares / variances, most), least)
                spread = self._spread(known, variances)
                if within:
                    mean = self._of_arms(effects)
                    for (some, place), share in zip(self.coarse, within, strict=True):
                        told = np.bincount(place, mean * share, some.stop - some.start)
                        rest[some] = scores[some] - weights[some] * told
            for weight, group in zip(of_sums, self.groups, strict=True):
                left = _summed(rest[group.entries], group.place, group.sums)
                moved = None if group.place is None else np.zeros(group.sums)
                for of, effect, fewer in group.factors:
                    before = effects[of]
                    after = known[of] * before
                    after += _summed(left, effect, len(before))
                    after *= spread[of]
                    for common in fewer:
                        after -= _mean(after, known[of], common)
                    step = _placed(after - before, effect)
                    effects[of] = after
                    if moved is not None:
                        moved += step
                    step *= weight
                    left -= step
                if moved is None:  # then what is left is the rest
                    rest[group.entries] = left
                else:
                    step = _placed(moved, group.place)
                    step *= weights[group.entries]
                    rest[group.entries] -= step
        counted = spread if open_ is None else spread * open_[self.of_variance]
        mean_known = np.bincount(self.of_variance, known) / self.size
        larger = np.sqrt(self.first * np.sqrt(self.first)) * most
        more = np.maximum(larger - variances, 0.0) / (1.0 + mean_known * larger)
        may_be = self._spread(known, variances + more)
        return Fitted(self._of_arms(effects), self._of_arms(counted), may_be)

    def _of_arms(self, numbers: Floats) -> Floats:
        """The sum of all factors' numbers in each arm."""
        total = np.zeros(self.arms)
        for entries, place, sums, factors in self.cells:
            of_sum = np.zeros(sums)
            for of, effect, _ in factors:
                of_sum += _placed(numbers[of], effect)
            total[entries] += _placed(of_sum, place)
        return total

    @staticmethod
    def _within(of: _Coarse, shares: Floats) -> Floats:
        """The share of each arm in its entry of a table."""
        whole = np.bincount(of.place, shares, of.entries.stop - of.entries.start)
        return np.asarray(shares / np.where(whole > 0, whole, 1.0)[of.place])

    def _spread(self, known: Floats, variances: Floats) -> Floats:
        """The variance of each effect, given what is known of it and the factors' variances."""
        spread: Floats = 1.0 / (known + _placed(1.0 / variances, self.of_variance))
        return spread


def _mean(effects: Floats, known: Floats, common: _Fewer) -> Floats:
    """The mean of the effects that are one in a factor of fewer fields, of each of them."""
    place, many = common
    whole = np.bincount(place, known, many)
    whole[whole == 0] = 1.0
    mean: Floats = np.bincount(place, known * effects, many) / whole
    return _placed(mean, place)


def effects_of(shape: Fields, factors: Sequence[Fields], rows: int, actions: int) -> list[slice]:
    """Where each factor's effects stand in the array of all effects."""
    levels = [prod(shape[field] for field in of) for of in factors]
    stops = [0, *(np.cumsum(levels) * rows * actions).tolist()]
    return [slice(begin, stop) for begin, stop in pairwise(stops)]


class _Prospect(NamedTuple):
    """What one table would tell."""

    place: Ints  # of each arm: which entry
    entries: int
    factors: tuple[tuple[int, Ints], ...]  # each: its number, and the effect of each entry


@dataclass(frozen=True, slots=True, eq=False)
class Prospects:
    """What a further block would tell of the effects of some rows, by the table it releases."""

    tables: tuple[_Prospect, ...]
    effects: tuple[slice, ...]
    effect: tuple[Ints, ...]  # of each factor: the effect in each arm
    rows: int

    @staticmethod
    @lru_cache(maxsize=32)
    def of(shape: Fields, tables: tuple[Fields, ...], rows: int, actions: int) -> Prospects:
        """Tables are those that may be released, and the factors."""
        every = tuple(range(len(shape)))
        row, action = np.arange(rows)[:, None, None], np.arange(actions)

        def number(of: Fields, table: Fields) -> Ints:
            many = prod(shape[field] for field in of)
            level = levels_of(shape, of, table)[:, None]
            return ((row * many + level) * actions + action).reshape(-1)

        prospects = [
            _Prospect(
                number(table, every),
                rows * actions * prod(shape[field] for field in table),
                tuple((at, number(of, table)) for at, of in enumerate(tables) if {*of} <= {*table}),
            )
            for table in tables
        ]
        return Prospects(
            tuple(prospects),
            tuple(effects_of(shape, tables, rows, actions)),
            tuple(number(of, every) for of in tables),
            rows,
        )

    def gains(
        self, spread: Floats, matters: Floats, counts: Floats, variance: Floats, noise: Floats
    ) -> Floats:
        """How far the variance of what matters would fall: tables × rows.

        `spread` is the variance of each effect, `matters` how much that of each arm counts,
        `counts` how many of the block's events it would show. A sum of n events has the variance
        `variance`·n + `noise`: a number for each row.
        """
        mattering = [
            np.bincount(effect, matters, of.stop - of.start)
            for of, effect in zip(self.effects, self.effect, strict=True)
        ]
        gains = np.empty((len(self.tables), self.rows))
        for number, (place, entries, factors) in enumerate(self.tables):
            shown = np.bincount(place, counts, entries)
            square = shown * shown
            own = np.repeat(variance, entries // self.rows) * shown
            own += np.repeat(noise, entries // self.rows)
            own[shown == 0] = 1.0
            spreads = [spread[self.effects[at]].take(effect) for at, effect in factors]
            whole = np.zeros(entries)
            for of in spreads:
                whole += of
            total = np.zeros(self.rows)
            for (at, effect), of in zip(factors, spreads, strict=True):
                many = self.effects[at].stop - self.effects[at].start
                told = np.bincount(effect, square / (own + square * (whole - of)), many)
                before = spread[self.effects[at]]
                fall = before * before * told / (1.0 + before * told) * mattering[at]
                total = total + np.bincount(
                    np.repeat(np.arange(self.rows), many // self.rows), fall
                )
            gains[number] = total
        return gains


def _summed(numbers: Floats, place: Ints | None, sums: int) -> Floats:
    """The sums of the numbers of each place."""
    if place is None:
        return numbers.copy()
    return np.asarray(np.bincount(place, numbers, sums), dtype=np.float64)


def _placed(numbers: Floats, place: Ints | None) -> Floats:
    """The number of each place. (All are within: `clip` leaves out a check that takes longer.)"""
    return numbers if place is None else numbers.take(place, mode="clip")
