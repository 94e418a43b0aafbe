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

ROUNDS = 8
"""Of fitting. Variances begin small, and few rounds keep them small where little is known."""

_EVERYWHERE = 0.25  # (level/2)²: the first variance of the effects of actions everywhere
_FIELDS = 0.05  # (level/2)²: the first variance of all fields together
_PAIRS = 0.02  # (level/2)²: the first variance of all pairs of fields together
_MORE = 0.002  # (level/2)²: the first variance of the effects of more fields together
_LEAST = 1e-4  # of the first variance: none falls below, and none rises above (level/2)²

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
    """The mean of each arm's sum of effects, and how far each effect is open."""

    mean: Floats
    spread: Floats
    """The variance of each effect."""
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

    entries: slice  # from the first to the last that are summed
    place: Ints | None  # of each of these: which sum, or none: `sums`; None: its own
    sums: int
    factors: tuple[_Factor, ...]


class _Cells(NamedTuple):
    """Effects that are added up in combinations of fields, and these sums in arms."""

    effects: Ints | slice  # factor after factor
    of_sum: Ints | None  # of each of these: which sum; None: its own
    sums: int
    place: Ints | None  # of each arm: which sum; None: its own


class _Coarse(NamedTuple):
    """The tables with several cells in an entry, which come first."""

    place: Ints  # of each arm, table after table: which entry
    entries: int


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
    cells: tuple[_Cells, ...]
    coarse: _Coarse
    arms: int  # of all rows
    of_variance: Ints  # of each effect: its row and factor, of which each row has a variance
    size: Floats  # of each row and factor: how many effects
    first: Floats  # of each row and factor: the first variance

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
                many = rows * actions * prod(shape[field] for field in of)
                place = np.full(stops[-1], many)
                for at, numbers_of in zip(
                    having, numbers(of, [tables[at] for at in having]), strict=True
                ):
                    place[stops[at] - sizes[at] : stops[at]] = numbers_of
                entries = slice(stops[having[0]] - sizes[having[0]], stops[having[-1]])
                own = [tables[at] for at in having] == [of]
                fitted = [
                    _Factor(
                        effects[factors.index(it)],
                        None if it == of else numbers(it, [of])[0],
                        fewer[it],
                    )
                    for it in some
                ]
                place = place[entries].copy()
                found.append(_Group(entries, None if own else place, many, tuple(fitted)))
            return tuple(found)

        sizes = [rows * actions * prod(shape[field] for field in table) for table in tables]
        stops = np.cumsum(sizes, dtype=np.int64).tolist()
        coarse = [
            stop - size + numbers(table, [every])[0]
            for table, size, stop in zip(tables, sizes, stops, strict=True)
            if len(table) < len(shape)
        ]
        of_variance = np.concatenate(
            [
                np.repeat(np.arange(rows) * len(factors) + at, many * actions)
                for at, many in enumerate(levels)
            ]
        )
        return Factors(
            groups(tables),
            tuple(map(_cells, groups([every]))),
            _Coarse(np.array(coarse, dtype=np.int64).reshape(-1), [0, *stops][len(coarse)]),
            rows * actions * prod(shape),
            of_variance,
            np.bincount(of_variance).astype(np.float64),
            np.array(first * rows),
        )

    def fitted(self, weights: Floats, scores: Floats, shares: Floats, unit: Floats) -> Fitted:
        """The effects by rounds over the factors.

        `weights` and `scores` are those of the entries, `shares` those of each arm in the entries
        of coarse tables, up to a factor.
        """
        effects, known, spread = np.zeros((3, len(self.of_variance)))
        rest = scores.copy()  # what is not explained yet
        fits = [_Fit.of(group, weights, rest, (effects, known, spread)) for group in self.groups]
        most = np.repeat(unit, len(self.first) // len(unit))
        variances = self.first * most
        least = variances * _LEAST
        self._spread(known, variances, spread)
        within, coarse = self._within(shares), slice(self.coarse.entries)
        of_coarse = np.empty_like(within)
        for turn in range(ROUNDS + 1):
            if turn:
                squares = np.bincount(self.of_variance, effects * effects + spread) / self.size
                variances = np.maximum(np.minimum(squares * squares / variances, most), least)
                self._spread(known, variances, spread)
                if len(within):
                    np.multiply(within, self.of_arms(effects), out=of_coarse)
                    told = _summed(of_coarse.ravel(), self.coarse.place, self.coarse.entries)
                    told *= weights[coarse]
                    np.subtract(scores[coarse], told, out=rest[coarse])
            for fit in fits:
                fit.once_more()
        mean_known = np.bincount(self.of_variance, known) / self.size
        larger = np.sqrt(self.first * np.sqrt(self.first)) * most
        more = np.maximum(larger - variances, 0.0) / (1.0 + mean_known * larger)
        may_be = self._spread(known, variances + more)
        return Fitted(self.of_arms(effects), spread, may_be)

    def of_arms(self, numbers: Floats) -> Floats:
        """The sum of all factors' numbers, one for each effect, in each arm."""
        total = np.zeros(self.arms)
        for effects, of_sum, sums, place in self.cells:
            total += _placed(_summed(numbers[effects], of_sum, sums), place)
        return total

    def _within(self, shares: Floats) -> Floats:
        """The share of each arm in its entry of each coarse table: tables × arms."""
        every = np.tile(shares, len(self.coarse.place) // len(shares))
        whole = np.bincount(self.coarse.place, every, self.coarse.entries)
        every /= np.where(whole > 0, whole, 1.0).take(self.coarse.place, mode="clip")
        return every.reshape(-1, len(shares))

    def _spread(self, known: Floats, variances: Floats, spread: Floats | None = None) -> Floats:
        """The variance of each effect, given what is known of it and the factors' variances."""
        spread = np.add(known, _placed(1.0 / variances, self.of_variance), out=spread)
        return np.divide(1.0, spread, out=spread)


class _Fitting(NamedTuple):
    """A factor that is being fitted: views of all effects', and room for what follows."""

    effects: Floats
    known: Floats
    spread: Floats
    effect: Ints | None
    fewer: tuple[tuple[Ints, Floats], ...]  # also: how much is known of the fewer effects
    after: Floats
    step: Floats

    @staticmethod
    def of(factor: _Factor, weight: Floats, every: tuple[Floats, Floats, Floats]) -> _Fitting:
        """Its own ones of all effects, of which so much is known in a group's sums."""
        of, effect, fewer = factor
        effects, known, spread = (numbers[of] for numbers in every)
        known[:] = _summed(weight, effect, of.stop - of.start)
        wholes = []
        for place, many in fewer:
            whole = _summed(known, place, many)
            whole[whole == 0] = 1.0
            wholes.append((place, whole))
        after, step = np.empty((2, len(effects)))
        return _Fitting(effects, known, spread, effect, tuple(wholes), after, step)

    def once_more(self, left: Floats) -> Floats:
        """Fit it to the sums of what is left; how far its effects moved."""
        effects, known, spread, effect, fewer, after, step = self
        np.multiply(known, effects, out=after)
        after += left if effect is None else np.bincount(effect, left, len(effects))
        after *= spread
        for place, whole in fewer:  # their mean is 0
            mean = _summed(np.multiply(known, after, out=step), place, len(whole))
            mean /= whole
            after -= mean.take(place, None, step, "clip")
        np.subtract(after, effects, out=step)
        effects[:] = after
        return step


class _Fit(NamedTuple):
    """A group that is being fitted: what is left of its entries, their weights, and its sums'."""

    rest: Floats
    weights: Floats
    place: Ints | None
    of_sums: Floats
    factors: tuple[_Fitting, ...]
    moved: Floats  # of each sum, and of what is none: 0
    step: Floats  # of each entry

    @staticmethod
    def of(
        group: _Group, weights: Floats, rest: Floats, every: tuple[Floats, Floats, Floats]
    ) -> _Fit:
        """Its part of all entries and effects."""
        entries, place, sums, factors = group
        weights = weights[entries]
        of_sums = _summed(weights, place, sums + 1)[:sums]
        fitted = tuple(_Fitting.of(factor, of_sums, every) for factor in factors)
        moved, step = np.zeros(sums + 1), np.empty(len(weights))
        return _Fit(rest[entries], weights, place, of_sums, fitted, moved, step)

    def once_more(self) -> None:
        """Fit the factors one after the other, and take what moved off the rest."""
        rest, weights, place, of_sums, factors, moved, step = self
        left = rest if place is None else _summed(rest, place, len(moved))[:-1]
        total, last = moved[:-1], factors[-1]
        total[:] = 0.0
        for factor in factors:
            of_factor = _placed(factor.once_more(left), factor.effect)
            total += of_factor
            if place is None or factor is not last:
                of_factor *= of_sums
                left -= of_factor
        if place is not None:
            moved.take(place, None, step, "clip")
            step *= weights
            rest -= step


def _cells(group: _Group) -> _Cells:
    """The sums of a group's effects."""
    every = [
        np.arange(of.start, of.stop) if effect is None else of.start + effect
        for of, effect, _ in group.factors
    ]
    if len(every) == 1 and group.factors[0].effect is None:
        return _Cells(group.factors[0].effects, None, group.sums, group.place)
    of_sum = np.tile(np.arange(group.sums), len(every))
    return _Cells(np.concatenate(every), of_sum, group.sums, group.place)


def effects_of(shape: Fields, factors: Sequence[Fields], rows: int, actions: int) -> list[slice]:
    """Where each factor's effects stand in the array of all effects."""
    levels = [prod(shape[field] for field in of) for of in factors]
    stops = [0, *(np.cumsum(levels) * rows * actions).tolist()]
    return [slice(begin, stop) for begin, stop in pairwise(stops)]


class _Prospect(NamedTuple):
    """What some tables would tell, each of as many factors."""

    numbers: tuple[int, ...]  # which tables
    place: Ints  # table after table, of each arm: which entry
    row: Ints  # of each entry
    effects: Ints  # of all that they tell of, table after table and factor after factor
    effect: Ints  # factors × entries: which of these
    of_row: Ints  # of each of these: the number of its table, factor and row

    @staticmethod
    def of(some: Sequence[_Prospect]) -> _Prospect:
        """Several ones, side by side."""

        def joined(parts: Sequence[Ints], sizes: Sequence[int]) -> Ints:
            begins = np.cumsum([0, *sizes[:-1]]).tolist()
            moved = [part + begin for part, begin in zip(parts, begins, strict=True)]
            return np.concatenate(moved, axis=-1)

        of_rows = [int(it.of_row[-1]) + 1 for it in some]
        return _Prospect(
            tuple(number for it in some for number in it.numbers),
            joined([it.place for it in some], [len(it.row) for it in some]),
            np.concatenate([it.row for it in some]),
            np.concatenate([it.effects for it in some]),
            joined([it.effect for it in some], [len(it.effects) for it in some]),
            joined([it.of_row for it in some], of_rows),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Prospects:
    """What a further block would tell of the effects of some rows, by the table it releases."""

    tables: tuple[_Prospect, ...]
    alike: tuple[_Prospect, ...]  # the same ones, those of as many factors together
    row: Ints  # of each effect
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

        effects = effects_of(shape, tables, rows, actions)

        def prospect(at: int, table: Fields) -> _Prospect:
            many = prod(shape[field] for field in table)
            told = [it for it, of in enumerate(tables) if {*of} <= {*table}]
            sizes = [effects[it].stop - effects[it].start for it in told]
            begins = np.cumsum([0, *sizes[:-1]])
            return _Prospect(
                (at,),
                number(table, every),
                np.repeat(np.arange(rows), actions * many),
                np.concatenate([np.arange(effects[it].start, effects[it].stop) for it in told]),
                np.array(
                    [
                        begin + number(tables[it], table)
                        for begin, it in zip(begins, told, strict=True)
                    ]
                ),
                np.repeat(np.arange(len(told) * rows), np.repeat(sizes, rows) // rows),
            )

        sizes = [actions * prod(shape[field] for field in of) for of in tables]
        each = tuple(prospect(at, table) for at, table in enumerate(tables))
        told = sorted({len(it.effect) for it in each})
        return Prospects(
            each,
            tuple(_Prospect.of([it for it in each if len(it.effect) == many]) for many in told),
            np.concatenate([np.repeat(np.arange(rows), size) for size in sizes]),
            tuple(effects),
            tuple(number(of, every) for of in tables),
            rows,
        )

    def falls(
        self, table: int, spread: Floats, counts: Floats, variance: Floats, noise: Floats
    ) -> Floats:
        """How far the variance of each effect would fall with a table; arguments as in `gains`."""
        of = self.tables[table]
        falls = np.zeros(len(spread))
        falls[of.effects] = self._falls(of, spread, counts, variance, noise)
        return falls

    def gains(
        self, spread: Floats, matters: Floats, counts: Floats, variance: Floats, noise: Floats
    ) -> Floats:
        """How far the variance of what matters would fall: tables × rows.

        `spread` is the variance of each effect, `matters` how much that of each arm counts,
        `counts` how many of the block's events it would show. A sum of n events has the variance
        `variance`·n + `noise`: a number for each row.
        """
        mattering = np.concatenate(
            [
                np.bincount(effect, matters, of.stop - of.start)
                for of, effect in zip(self.effects, self.effect, strict=True)
            ]
        )
        gains = np.empty((len(self.tables), self.rows))
        for of in self.alike:
            fall = self._falls(of, spread, counts, variance, noise)
            fall *= mattering.take(of.effects)
            of_factors = np.bincount(of.of_row, fall).reshape(len(of.numbers), -1, self.rows)
            total = np.zeros((len(of.numbers), self.rows))
            for factor in range(of_factors.shape[1]):
                total += of_factors[:, factor]
            gains[list(of.numbers)] = total
        return gains

    def _falls(
        self, of: _Prospect, spread: Floats, counts: Floats, variance: Floats, noise: Floats
    ) -> Floats:
        """How far that of each effect would fall that these tables tell of."""
        shown = np.bincount(of.place, np.tile(counts, len(of.numbers)), len(of.row))
        square = shown * shown
        own = variance.take(of.row) * shown
        own += noise.take(of.row)
        own[shown == 0] = 1.0
        before = spread.take(of.effects)
        others = before.take(of.effect)
        whole = np.zeros(len(of.row))
        for factor in others:
            whole += factor
        np.subtract(whole, others, out=others)
        others *= square
        others += own
        np.divide(square, others, out=others)
        told = np.bincount(of.effect.reshape(-1), others.reshape(-1), len(of.effects))
        fall: Floats = before * before * told / (1.0 + before * told)
        return fall


def _summed(numbers: Floats, place: Ints | None, sums: int) -> Floats:
    """The sums of the numbers of each place."""
    if place is None:
        return numbers.copy()
    return np.asarray(np.bincount(place, numbers, sums), dtype=np.float64)


def _placed(numbers: Floats, place: Ints | None) -> Floats:
    """The number of each place. (All are within: `clip` leaves out a check that takes longer.)"""
    return numbers if place is None else numbers.take(place, mode="clip")
