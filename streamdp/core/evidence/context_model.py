"""How cells learn from each other: a model of released tables of numbers. Public, at no ε.

For each action the mean gain in a cell is

    level + Σ over factors of an effect(factor, level of the factor in the cell),

where the factors are: nothing (one effect of the action everywhere), each field, each pair of
fields, and the cell itself. Effects have normal priors around 0; each factor has a variance, which
is common to all actions and fitted from a small first value: a factor that does not matter costs
nearly nothing, and an interaction that matters gets effects of its own (`context_factors`).

*A table that gets finer.* A block releases one table: all cells together, the table of one field,
of a pair of fields, or of all. An event enters one number of it, whichever it is. Noise in many
numbers adds up in whatever is common to them, so a coarse table says more of that, and a fine one
says what a coarse one cannot. The next block's table is the one after which the variance of what
matters is expected to fall the most (`chosen`): of each action's mean in each cell, as often as the
cell occurs, and as much as it is open whether the action is the better one there (`_open`).
It follows from releases alone and is fixed before the block begins.

*How much is tried.* A cell plays an action as often as it may *turn out* to be the best there, by
what the block's table can tell while as many events come as there were: deviations are those of the
means that will be expected then (`_falls`), not of the truth. What cannot be learned by then, such
as effects of single cells at first, is no reason to try anything. Trying whatever is open would
cost several times what is lost by not knowing: a fine table opens a little of everything.

*What is kept* of a hypothesis (below) is, of each entry of each table, a weight and a score, added
up over blocks. A block whose released gain sum and count are S and n, with noise of variance σ² and
τ², says of the mean m + δ, m the level, that U = S − n·m is about δ·n. Its weight is
(n² − τ²)/(v·n + TAILS·(σ² + τ²m²)) and its score (n·U + τ²m)/(the same). Taking τ² off n², and the
covariance −τ²m of n and U off n·U, makes both right on average in entries that nearly no event fell
into. There, means S/n of noisy counts are all of one sign; a table has hundreds of such entries,
and their bias would outweigh what the others know. So a sum of weights may fall below 0: then it
counts as 0, and its score still counts. A count of 0 or less says nothing: weight and score are 0.
(Noise is symmetric, so where no event fell both stay right on average, at half the variance.)

An entry of a coarse table is of events in several cells: its mean is that of their cells, each as
often as the block showed the action there. So beside the numbers of entries the *shares* of arms
are kept: the weight of each coarse entry, divided among its arms as its events are. Where cell and
action are public, that is known exactly; elsewhere an entry's noisy count is divided as the policy
and the cells' frequencies say (`divided`). Last, it is kept how often each arm was shown.

Change: at any block a new *regime* may begin, in which everything is different. The run-length
filter of `policy_regimes` decides, with room for the two likeliest hypotheses, each of which has
numbers of its own. A hypothesis is judged by the gains of each action in all cells together: those
that its model predicts for the events that the block's cells showed, and the block's. (An action's
mean over all cells would not do: it moves when policies learn where to play the action.) What
changes in favour of some cells and against others shows all the same, because policies play each
action where it was good. A new regime begins with coarse tables again.

Every number is one correctly rounded operation at a time, in a fixed order (`policy_arithmetic`):
the same releases give the same bytes on every machine. Sums over cells are those of `np.bincount`,
which adds one number after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.evidence.context_factors import Factors, Fields, Fitted, Prospects, levels_of
from streamdp.core.evidence.policy import Policy, parts_of, with_floor
from streamdp.core.evidence.policy_arithmetic import log2, normal_cdf, ordered_sum
from streamdp.core.evidence.policy_best import chances_of_best
from streamdp.core.evidence.policy_posterior import TAILS, Level, NoiseVariance, level
from streamdp.core.evidence.policy_regimes import HALF_LOG2_E, WIDTH, RegimeHistory, Regimes

_LEAST_LEVEL = 2.0**-9
"""A smaller level counts as this one, and a mean reward above 1/2 as 1/2: whatever is earned by
then, another action may earn nothing."""

_FLOOR_SHARE = 0.5  # the most that all floors together take of a policy
_NUMBERS = 1 << 14  # of tables that are fitted at once
_NO_CHANCE = 2.0**-28
_REMEMBERED = 8  # fits: of what a block's end asks three times, and its next one once more


class _Told(NamedTuple):
    """What the numbers of some rows' hypotheses tell."""

    now: Level
    of: Fitted


class _Ahead(NamedTuple):
    """What a row's next block may tell: its table, its length, and the noise in each number."""

    tables: Ints
    lengths: Ints
    noise: NoiseVariance

    def of(self, rows: Ints) -> _Ahead:
        """That of some rows."""
        return _Ahead(self.tables[rows], self.lengths[rows], self.noise)


@dataclass(frozen=True)
class ContextModel:
    """In each cell an action's chance is its chance of being the best there, with a floor.

    Deviations are multiplied by `spread`. Each action is expected to be shown at least `floor`
    times a block, over all cells. `hazard` is how likely a new regime begins with a block.
    """

    shape: Fields  # levels of each field
    actions: int
    hazard: Fraction
    spread: Fraction
    floor: Fraction
    tables: tuple[Fields, ...]  # that a block may release, by their fields: the first has none
    room: int = 0  # how many of the actions, the last ones, are spare: see `released_tables`
    name: str = "contexts"
    history: ClassVar[RegimeHistory] = RegimeHistory(2)

    def parameters(self) -> Mapping[str, str]:
        """Everything that its policies depend on, in writing."""
        return {
            "shape": "x".join(map(str, self.shape)),
            "tables": ",".join("x".join(map(str, table)) or "-" for table in self.tables),
            "hazard": str(self.hazard),
            "spread": str(self.spread),
            "floor": str(self.floor),
        }

    @cached_property
    def arms(self) -> int:
        """How many actions in cells."""
        return prod(self.shape) * self.actions

    @property
    def named(self) -> Bools | None:
        """The actions that are not spare; None: all."""
        return np.arange(self.actions) < self.actions - self.room if self.room else None

    @cached_property
    def places(self) -> Ints:
        """The entry of each table that an arm's events enter: tables × arms."""
        every = range(len(self.shape))
        cells = np.array([levels_of(self.shape, table, every) for table in self.tables])
        entries = cells[:, :, None] * self.actions + np.arange(self.actions)
        return np.asarray(entries.reshape(len(self.tables), -1))

    @cached_property
    def stops(self) -> tuple[int, ...]:
        """Where each table's entries end among those of all tables."""
        sizes = [self.actions * prod(self.shape[of] for of in table) for table in self.tables]
        return tuple(np.cumsum(sizes).tolist())

    def entries(self, table: int) -> slice:
        """Where a table's entries are among those of all tables."""
        return slice(self.stops[table - 1] if table else 0, self.stops[table])

    def size(self, table: int) -> int:
        """How many entries a table has."""
        of = self.entries(table)
        return int(of.stop - of.start)

    @property
    def kept(self) -> int:
        """How many pairs of numbers a hypothesis has: entries' ones, then those of arms."""
        return self.stops[-1] + self.arms

    def summed(self, table: int, of_arms: Ints) -> Ints:
        """The entries of a table, as exact sums over arms: rows × entries, of rows × arms."""
        rows, kept = len(of_arms), self.tables[table]
        away = tuple(1 + field for field in range(len(self.shape)) if field not in kept)
        sums: Ints = of_arms.reshape(rows, *self.shape, self.actions).sum(axis=away)
        return sums.reshape(rows, -1)

    # -- blocks in -------------------------------------------------------------------------------

    def divided(
        self,
        state: Floats,
        table: int,
        counts: Floats,
        lengths: Ints,
        noise: NoiseVariance,
        allowed: Bools | None = None,
    ) -> Floats:
        """How often blocks showed each arm, by noisy counts of a table's entries.

        An entry's events are in its cells as often as each one occurs, and as often as the policy
        of what is allowed shows the action there.
        """
        if self.size(table) == self.arms:
            return counts
        regimes = Regimes.of(state)
        seen = np.maximum(regimes.mixed(regimes.shares())[:, 1, self.stops[-1] :], 0.0)
        of_cells = ordered_sum(seen.reshape(len(seen), -1, self.actions).transpose(2, 0, 1))
        of_cells[~np.any(of_cells > 0, axis=1)] = 1.0
        shares = np.repeat(of_cells, self.actions, axis=1) * self.policy(
            state, np.full(len(state), table), lengths, noise, allowed
        )
        whole = self._of_entries(table, shares)
        place = self.places[table]
        shares += np.where(whole > 0, 0.0, 1.0)[:, place]
        return counts[:, place] * (shares / self._of_entries(table, shares)[:, place])

    def learned(
        self,
        state: Floats,
        table: int,
        gains: Floats,
        counts: Floats,
        shown: Floats,
        noise: NoiseVariance,
    ) -> Floats:
        """Weigh the hypotheses by what they predicted, and add blocks to each.

        `gains` and `counts` are those of a table's entries, `shown` is of arms.
        """
        regimes = Regimes.of(state)
        mixture = regimes.mixed(regimes.shares())[:, :, : self.stops[-1]]
        before = level(mixture)
        block = np.zeros((len(state), 2, self.kept))
        added = weighed(mixture, before, gains, counts, noise)
        block[:, :, self.entries(table)] = added
        if self.size(table) < self.arms:
            a_show = np.where(counts != 0, added[:, 0] / np.where(counts != 0, counts, 1.0), 0.0)
            block[:, 0, self.stops[-1] :] = shown * a_show[:, self.places[table]]
        known = np.any(block[:, 0] != 0, axis=1)
        block[:, 1, self.stops[-1] :] = np.where(known[:, None], shown, 0.0)
        densities = self._densities(regimes, before, table, gains, shown, noise)
        return regimes.followed(block, densities, hazard=self.hazard)

    def _densities(
        self,
        regimes: Regimes,
        before: Level,
        table: int,
        gains: Floats,
        shown: Floats,
        noise: NoiseVariance,
    ) -> Floats:
        """log₂ of the density of each action's gains under each hypothesis, and under a new one.

        The uncertainty of an action's cells counts as if it were the same in all of them. A
        hypothesis that gives its place to the new one, however likely it found the block, is not
        fitted: it stands there as if it had known the block.
        """
        rows, count = regimes.known.shape
        shown = shown.reshape(rows, -1, self.actions)
        gains = gains.reshape(rows, -1, self.actions)
        counts, found = np.maximum(shown, 0.0), _over_cells(gains)
        slots = _over_cells(counts)
        on_each = noise.on_sums + noise.on_counts * (before.mean * before.mean)
        own = before.variance[:, None] * slots + (TAILS * gains.shape[1] * on_each)[:, None]

        def density(row: Ints, means: Floats, deviations: Floats) -> Floats:
            seen = slots[row] > 0
            variance = np.where(seen, own[row] + deviations * deviations, 1.0)
            off = found[row] - means
            bits = off * off * HALF_LOG2_E / variance + log2(variance) * 0.5
            return -ordered_sum(np.where(seen, bits, 0.0).T)

        every = np.arange(rows)
        densities = np.repeat(density(every, found, np.zeros_like(found))[:, None], count + 1, 1)
        densities[:, count] = density(
            every, _over_cells(shown) * before.mean[:, None], before.rate[:, None] * WIDTH * slots
        )

        def fit(some: Bools) -> None:
            row, number = np.nonzero(some)
            if len(row):
                of_cell, variances = self._laws(regimes, row, number)
                means = _over_cells(shown[row] * of_cell)
                deviations = _over_cells(counts[row] * np.sqrt(variances))
                densities[row, number] = density(row, means, deviations)

        last = regimes.last()
        fit(regimes.known & ~last)
        logs = regimes.judged(densities, hazard=self.hazard)[:, :count]
        fit(last & (logs >= np.where(last, np.inf, logs).min(axis=1)[:, None]))
        return densities

    # -- the next table --------------------------------------------------------------------------

    def chosen(
        self, state: Floats, shown: Floats, noise: NoiseVariance, allowed: Bools | None = None
    ) -> Ints:
        """The table of each row's next block, which shows arms as often as `shown` says.

        By the likeliest hypothesis. While nothing is known: all cells together. Only actions that
        are allowed matter: beside one that is paused, and the best for certain, no other would.
        """
        return np.asarray(self.prospects(state, shown, noise, allowed).argmax(axis=0))

    def prospects(
        self, state: Floats, shown: Floats, noise: NoiseVariance, allowed: Bools | None = None
    ) -> Floats:
        """How far the variance of what matters is expected to fall with each table, × rows."""
        regimes = Regimes.of(state)
        likeliest = np.where(regimes.known, regimes.logs, -np.inf).argmax(axis=1)
        each = regimes.arms[np.arange(len(state)), likeliest]
        falls = np.zeros((len(self.tables), len(state)))
        for some, used in self._alike(each):
            if used:
                falls[:, some] = self._prospects(each[some], used, shown[some], noise, allowed)
        return falls

    def _prospects(
        self,
        each: Floats,
        used: tuple[int, ...],
        shown: Floats,
        noise: NoiseVariance,
        allowed: Bools | None,
    ) -> Floats:
        rows, shown = len(each), np.maximum(shown, 0.0)
        now, of = _told(self, used, each.tobytes())
        variances = self._factors(rows, used).of_arms(of.spread)
        means, variances = (numbers.reshape(-1, self.actions) for numbers in (of.mean, variances))
        events = ordered_sum(shown.reshape(rows, -1, self.actions).transpose(2, 0, 1))
        some = slice(None) if allowed is None else allowed
        matters = np.zeros(means.shape)
        matters[:, some] = _open(means[:, some], variances[:, some], float(self.spread))
        matters *= events.reshape(-1, 1)
        on_each = TAILS * (noise.on_sums + noise.on_counts * (now.mean * now.mean))
        further = Prospects.of(self.shape, self.tables, rows, self.actions)
        return further.gains(
            of.may_be, matters.reshape(-1), shown.reshape(-1), now.variance, on_each
        )

    # -- what follows ----------------------------------------------------------------------------

    def policy(
        self,
        state: Floats,
        tables: Ints,
        lengths: Ints,
        noise: NoiseVariance,
        allowed: Bools | None = None,
    ) -> Policy:
        """The policies of all cells, cell by cell, during blocks that release these tables.

        An action is tried as often as it may *turn out* to be the best by what the table can tell
        of as many events as there were: trying it for anything else would teach nothing. One that
        is not allowed has no chance and no floor.
        """
        if state.shape[1:] != self.history.shape(self.kept):
            expected, got = f"{self.kept} numbers", f"state {state.shape}"
            raise InvalidConfig("context", "another table", expected=expected, got=got)
        means, deviations = self.posterior(state, _Ahead(tables, lengths, noise))
        chances = self._chances(means, deviations, allowed)
        some = np.ones(self.actions, dtype=np.bool_) if allowed is None else allowed
        many = np.count_nonzero(some)
        unknown = ~state.any(axis=(1, 2))
        chances.reshape(means.shape)[unknown] = some / many
        floors = np.minimum(float(self.floor) / lengths, _FLOOR_SHARE / many)
        cells = with_floor(chances, np.repeat(floors, prod(self.shape))[:, None] * some)
        return parts_of(cells).reshape(-1, self.arms)

    def _chances(self, means: Floats, deviations: Floats, allowed: Bools | None) -> Floats:
        """How likely each allowed action is the best of these, in each cell; 0 for the others.

        Of the means themselves, what is known of other actions says something too: how much fields
        matter. That is why they are not left out before.
        """
        means, deviations = (of.reshape(-1, self.actions) for of in (means, deviations))
        if allowed is None:
            return chances_of_best(means, deviations * float(self.spread))
        if len(allowed) != self.actions:
            raise StateMismatch("list", "actions", expected=self.actions, got=len(allowed))
        chances = np.zeros(means.shape)
        chances[:, allowed] = chances_of_best(
            means[:, allowed], deviations[:, allowed] * float(self.spread)
        )
        return chances

    def posterior(self, state: Floats, ahead: _Ahead | None = None) -> tuple[Floats, Floats]:
        """The mean gain and its deviation, rows × cells × actions: mixed of the hypotheses.

        With `ahead`: the deviation of the mean that will be expected then.
        """
        regimes = Regimes.of(state)
        shares = regimes.likely()
        row, number = np.nonzero(shares)
        of_each, variances = self._laws(regimes, row, number, ahead)
        share = shares[row, number][:, None, None]
        means, variance = np.zeros((2, len(state), *of_each.shape[1:]))
        each = [np.flatnonzero(number == of) for of in range(shares.shape[1])]
        for some in each:  # of each hypothesis: its rows
            means[row[some]] += share[some] * of_each[some]
        apart = of_each - means[row]
        parts = share * (variances + apart * apart)
        for some in each:
            variance[row[some]] += parts[some]
        return means, np.sqrt(variance)

    def _laws(
        self, regimes: Regimes, row: Ints, number: Ints, ahead: _Ahead | None = None
    ) -> tuple[Floats, Floats]:
        """The posterior mean gain and its variance, n × cells × actions, of rows' hypotheses.

        One hypothesis of all rows after the other: what was fitted so is remembered.
        """
        means, variances = np.empty((2, len(row), self.arms))
        for at in (np.flatnonzero(number == of) for of in np.unique(number)):
            each = regimes.arms[row[at], number[at]]
            for some, used in self._alike(each):
                told, here = _told(self, used, each[some].tobytes()), at[some]
                of = told.of
                fall = ahead and self._falls(each[some], told, ahead.of(row[here]))
                open_ = self._factors(len(some), used).of_arms(of.spread if fall is None else fall)
                means[here] = of.mean.reshape(len(some), -1) + told.now.mean[:, None]
                variances[here] = open_.reshape(len(some), -1)
        shape = len(row), -1, self.actions
        return means.reshape(shape), variances.reshape(shape)

    def _alike(self, each: Floats) -> list[tuple[Ints, tuple[int, ...]]]:
        """Rows of which the same tables tell something, not too many at once; and these tables.

        What is fitted to others must not depend on the rows beside it.
        """
        begins = [0, *self.stops[:-1]]
        told = np.logical_or.reduceat(each[:, 0, : self.stops[-1]] != 0, begins, axis=1)
        alike: dict[tuple[int, ...], list[int]] = {}
        for row, of_row in enumerate(told):
            alike.setdefault(tuple(np.flatnonzero(of_row).tolist()), []).append(row)
        at_once = max(1, _NUMBERS // self.arms)
        return [
            (np.array(rows[at : at + at_once]), used)
            for used, rows in alike.items()
            for at in range(0, len(rows), at_once)
        ]

    def _falls(self, each: Floats, told: _Told, ahead: _Ahead) -> Floats:
        """How far the variance of each effect may fall while as many events come as there were.

        They come to the cells as often as they did, and all actions are shown alike. They are at
        least one block; each block has noise of its own.
        """
        rows, (now, of) = len(each), told
        shown = np.maximum(each[:, 1, self.stops[-1] :], 0.0).reshape(rows, -1, self.actions)
        cells = ordered_sum(shown.transpose(2, 0, 1))
        cells[~np.any(cells > 0, axis=1)] = 1.0
        events = ordered_sum(cells.T)
        blocks = np.maximum(events / ahead.lengths, 1.0)
        often = cells * (blocks * ahead.lengths / (events * self.actions))[:, None]
        counts = np.repeat(often, self.actions, axis=1).reshape(-1)
        on_each = TAILS * (ahead.noise.on_sums + ahead.noise.on_counts * (now.mean * now.mean))
        further = Prospects.of(self.shape, self.tables, rows, self.actions)
        falls = np.zeros_like(of.spread)
        of_effects = ahead.tables[further.row]
        for table in np.unique(ahead.tables).tolist():
            fall = further.falls(table, of.spread, counts, now.variance, on_each * blocks)
            falls += np.where(of_effects == table, fall, 0.0)
        return falls

    def _factors(self, rows: int, used: tuple[int, ...]) -> Factors:
        tables = tuple(self.tables[table] for table in used)
        return Factors.of(self.shape, self.tables, tables, rows, self.actions)

    def told(self, each: Floats, used: tuple[int, ...]) -> _Told:
        """Level and effects by the numbers of these tables: of each n × 2 × kept."""
        now = level(each[:, :, : self.stops[-1]])
        centre = now.mean
        half = np.maximum(0.5 + np.minimum(centre, 0.0), _LEAST_LEVEL) / 2.0
        numbers, scores = each[:, :, : self.stops[-1]].swapaxes(0, 1)
        scores = scores - numbers * centre[:, None]
        weights = np.maximum(numbers, 0.0)
        shares = np.maximum(each[:, 0, self.stops[-1] :], 0.0).reshape(-1)
        entries = [self.entries(table) for table in used]
        fitted = self._factors(len(each), used).fitted(
            np.concatenate([np.zeros(0), *(weights[:, of].reshape(-1) for of in entries)]),
            np.concatenate([np.zeros(0), *(scores[:, of].reshape(-1) for of in entries)]),
            shares,
            half * half,
        )
        return _Told(now, fitted)

    def _of_entries(self, table: int, of_arms: Floats) -> Floats:
        """The sums over arms in a table's entries: rows × entries."""
        size, rows = self.size(table), len(of_arms)
        place = np.arange(rows)[:, None] * size + self.places[table]
        sums = np.bincount(place.reshape(-1), of_arms.reshape(-1), rows * size)
        return np.asarray(sums.reshape(rows, size), dtype=np.float64)

    def counted(self, table: int, of_arms: Floats) -> Floats:
        """How often a table's entries were shown, by exact shows of arms."""
        return self._of_entries(table, of_arms)


@lru_cache(maxsize=_REMEMBERED)
def _told(rule: ContextModel, used: tuple[int, ...], numbers: bytes) -> _Told:
    """What these numbers tell. Nobody may write into it: it is remembered."""
    return rule.told(np.frombuffer(numbers).reshape(-1, 2, rule.kept), used)


@lru_cache(maxsize=64)
def model_among(model: ContextModel, some: bytes) -> tuple[ContextModel, Ints, Ints]:
    """The model of some actions alone, without room: kept, with what it computes once.

    And the places of their numbers: among all arms, and in a hypothesis. `some` are K bools.
    """
    actions = np.flatnonzero(np.frombuffer(some, dtype=np.bool_))
    numbers = (np.arange(0, 2 * model.kept, model.actions)[:, None] + actions).reshape(-1)
    arms = numbers[: prod(model.shape) * len(actions)]
    return replace(model, actions=len(actions), room=0), arms, np.concatenate([[0], 1 + numbers])


def weighed(
    state: Floats, before: Level, gains: Floats, shown: Floats, noise: NoiseVariance
) -> Floats:
    """What blocks add to weights and scores, at the level after them; `before` is the state's."""
    counts = np.maximum(shown, 0.0)
    first = _weighed(before, gains, shown, counts, noise)
    return _weighed(level(np.concatenate([state, first], axis=2)), gains, shown, counts, noise)


def _weighed(
    now: Level, gains: Floats, shown: Floats, counts: Floats, noise: NoiseVariance
) -> Floats:
    m = now.mean[:, None]
    spread = now.variance[:, None] * counts
    spread += TAILS * (noise.on_sums + noise.on_counts * (m * m))
    known = shown > 0
    spread = np.where(known, spread, 1.0)
    weight = np.where(known, (shown * shown - noise.on_counts) / spread, 0.0)
    about = shown * (gains - shown * m) + noise.on_counts * m
    score = np.where(known, about / spread, 0.0) + weight * m
    return np.stack([weight, score], axis=1)


def _open(means: Floats, variances: Floats, spread: float) -> Floats:
    """How open it is whether an action is better than the best of the others: n × actions.

    p·(1 − p) for its chance p to be better than the likeliest; of that one, than its next rival. A
    chance of 6 deviations, where the table of Φ ends, is none.

    >>> _open(np.array([[0.0, 0.0, -9.0]]), np.ones((1, 3)), 1.0).round(2)
    array([[0.25, 0.25, 0.  ]])
    """
    row, best = np.arange(len(means)), means.argmax(axis=1)
    among = np.sqrt(variances + variances[row, best][:, None]) * spread
    chances = normal_cdf(means, means[row, best][:, None], among)
    chances[row, best] = 0.0
    chances[chances < _NO_CHANCE] = 0.0
    found: Floats = chances * (1.0 - chances)
    found[row, best] = found.max(axis=1)
    return found


def _over_cells(table: Floats) -> Floats:
    """The sums over the cells of rows × cells × actions."""
    return ordered_sum(table.swapaxes(0, 1))
