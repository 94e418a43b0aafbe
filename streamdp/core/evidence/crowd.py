"""The crowd: makes priors for the next draws from the newest votes of a partition's keys.

Keys are often alike. The releases of other keys tell which actions are likely to be good for a key
of which nothing is known yet, and they are public: they may steer that key's draws at no cost. A
*prior* is a bonus for each action, in noise units, the same for all keys of a partition:

    b_j = ln(K·π̃_j),   π̃ = (1 − λ)·π + λ/K,

π is an estimate of the share of keys whose best action is j, and λ, the *floor*, bounds the harm:
the crowd's least favoured action is behind by ln(K) + ln(1/λ) noise units at most.

How π is estimated. The evidence is the newest vote of each key: which action, after a block of how
many slots, drawn under which prior, and whether it is the action that was in force. A vote for what
the prior favoured anyway is no evidence, so the prior enters the likelihood: a key whose best
action is j votes for w with a chance near softmax(b + c·[in force] + a_n·[= j])[w], where b is the
prior of that draw and a_n = min(6, ρ·n·g) says how clearly a block of n slots shows a gap g. n_j,
how many keys action j is best for, comes from expectation–maximisation with a quarter of a
pseudo-count for each action; the gap is the one in the public grid `GAPS` with the greatest
likelihood. (The evidence does not name the action in force; it only says whether the vote was for
it. Where it was not, the softmax leaves c out.)

How alike keys are is estimated too. A few votes of unrelated keys look as if some actions were
preferred. So π is the mean of (n_j + α)/(n + K·α) over a grid of pseudo-counts α (`ALIKE`), each
weighted by the likelihood of the counts (Dirichlet–multinomial): small α where keys agree, large α
where they do not, and then the prior says little until there are many votes.

Where keys are in groups (`groups`), each group g has a prior of its own. Its counts n_g come from
the votes of its keys with `ALL_KEYS`·π as pseudo-counts, and π_g is the mean of
(n_gj + α₀·π_j)/(n_g + α₀) over a grid of α₀ (`RELATED`), weighted in the same way: large α₀ where
groups do not differ. A group without votes has the prior of all keys.

Rules:

1. A prior is a function of releases and slot numbers, that is, of what a ledger holds. Open sums
   are not read (the package's import contract keeps them out of reach), nor is a clock.
2. Prior 0 favours nothing. Prior n + 1 is made when the partition has 5 % more votes than when
   prior n was made (`due`): a count of blocks that end, known before anything is drawn.
3. A prior is K whole numbers in units of 2**-20 noise units. They are computed in floats, and the
   recorded numbers count: a second computation must come within one unit. These floats decide
   nothing else but the gap, which is recorded with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, fsum, lgamma, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.events import CrowdPrior
from streamdp.core.evidence.control import NO_CONTROL, Control
from streamdp.core.evidence.donation import MOST_DONATED
from streamdp.core.evidence.groups import NO_GROUPS, Groups
from streamdp.core.evidence.groups import named as groups_named

POINT = 20
"""Bits after the point of a bonus in noise units: finer than any difference that matters."""

GAPS = (Fraction(1, 20), Fraction(3, 25), Fraction(3, 10))
"""How much worse the second best action may be, in loss a slot: small, middle and large."""

MOST_TOLD = 6
"""A block's evidence is at most e^6 to 1, because the gap is not the same for all keys."""

WIDTH = 3
"""How many integers are kept of each key's newest vote: the number of its prior plus 1 (0: the key
has not voted), the encoded vote, and its block's length. The vote is encoded as twice the action,
plus 1 if that was in force, plus 2**21 times the key's group."""

PSEUDO_COUNT = 0.25
"""Keys assumed for each action while keys are counted, so that no share becomes 0."""

ALIKE = (0.25, 1.0, 4.0)
"""The grid of α: keys that are alike, neither, and unrelated."""

ALL_KEYS = 10.0
"""While a group's keys are counted, all keys together weigh as much as so many of its own."""

RELATED = (3.0, 30.0, 300.0)
"""The grid of α₀: groups that differ, that differ in part, and that do not."""

_GROUP = 21
"""Bits of the encoded vote below the group: twice an action of 10**6 or fewer, plus one."""

MOST_VOTED_FOR = 1 << (_GROUP - 1)
"""Actions that an encoded vote can tell apart."""

LEAST_RATE = MOST_TOLD / (min(GAPS) * ((1 << 31) - 1))
"""The least ρ, 6·10**-8: rows keep lengths up to `longest_told`, as integers below 2**31. A
configuration's least is 5·10**-7."""

MOST_BONUS = 100
"""Noise units: e to this power is still a float, and a vote that is steered more says nothing."""

_MOST_AT_ONCE = 1 << 15
"""Numbers of a table for all gaps at once, 256 KiB. Larger ones are made gap by gap, for the same
bits in less memory and time; with small ones the calls are what takes time."""

_ROUNDS = 40
"""Rounds of expectation–maximisation: a fixed number, so that no comparison of floats decides."""

_GROWTH = 20
"""A prior is made anew after 1/20 = 5 % more votes."""

_EXACT = r"(\d{1,30}(?:/[1-9]\d{0,29})?)"

_NAME = re.compile(
    rf"crowd of (\d{{1,7}}) actions at rate {_EXACT} bonus {_EXACT} floor {_EXACT}"
    rf"(?: control {_EXACT})?(?: donating below (\d{{1,13}}))?"
    r"(?: groups (?P<groups>[0-9a-f,;]+))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Votes:
    """The newest vote of each key that has cast one, counted: one entry for each of C cells."""

    prior: Ints  # the number of the prior that it was drawn under
    length: Ints  # of its block
    stayed: Ints  # 1 where it is the action that was in force when it was drawn, else 0
    vote: Ints
    group: Ints  # of the key
    count: Ints

    @classmethod
    def counted(cls, *, prior: Ints, length: Ints, stayed: Ints, vote: Ints, group: Ints) -> Votes:
        """From one entry for each key; their order makes no difference.

        >>> one, two = np.array([1, 1, 0]), np.array([7, 7, 7])
        >>> Votes.counted(prior=one, length=two, stayed=one, vote=two, group=one).count.tolist()
        [1, 2]
        """
        lengths, which = np.unique(length, return_inverse=True)
        columns = (prior, which, stayed, vote, group)
        shape = tuple(int(column.max(initial=0)) + 1 for column in columns)
        distinct, count = np.unique(np.ravel_multi_index(columns, shape), return_counts=True)
        prior, which, stayed, vote, group = np.unravel_index(distinct, shape)
        return cls(prior, lengths[which], stayed, vote, group, count)


def cast(
    crowd: Crowd, *, prior: Ints, stayed: Bools, vote: Ints, length: Ints, group: Ints
) -> Ints:
    """Encode votes as rows keep them: R × `WIDTH` integers below 2**31.

    `group`: that of each vote's key, `crowd.groups.numbers(keys)`.
    """
    what = (group << _GROUP) + 2 * vote + stayed
    return np.stack([prior + 1, what, np.minimum(length, longest_told(crowd))], axis=1)


def newest(kept: NDArray[np.integer[Any]]) -> Votes:
    """Decode and count kept votes: R × `WIDTH` integers, one row for each key."""
    votes = kept[kept[:, 0] > 0].astype(np.int64)
    group, vote = votes[:, 1] >> _GROUP, votes[:, 1] & ((1 << _GROUP) - 1)
    return Votes.counted(
        prior=votes[:, 0] - 1, length=votes[:, 2], stayed=vote % 2, vote=vote // 2, group=group
    )


@dataclass(frozen=True, slots=True)
class Crowd:
    """Makes the priors of a partition; `named` restores it from its name.

    Privacy: post-processing of votes, at no cost. It gets votes, lengths and priors only.
    """

    actions: int
    rate: Fraction  # ρ: noise units for each unit of loss
    bonus: Fraction  # c: the bonus of the action in force beside the prior, in noise units
    floor: Fraction  # λ
    donates: int = 0  # blocks of fewer slots are donated (`evidence.donation`); 0: none
    groups: Groups = NO_GROUPS
    control: Control = NO_CONTROL

    def __post_init__(self) -> None:
        """Refuse a crowd without bounded priors, and a bonus that is not on the grid.

        All numbers are bounded: the name of a crowd may stand in a ledger that anybody has written.
        """
        on_grid = (self.bonus * (1 << POINT)).denominator == 1 and self.bonus <= MOST_BONUS
        sound = 2 <= self.actions <= MOST_VOTED_FOR and self.rate >= LEAST_RATE
        sound &= 0 < self.floor <= 1 and 0 <= self.donates <= MOST_DONATED
        sound &= self.donates == 0 or self.groups.count == 1
        if not (sound and on_grid):
            raise InvalidConfig(
                complaint(
                    "crowd",
                    "out of range",
                    expected=f"2 … {MOST_VOTED_FOR} actions, a rate of at least {LEAST_RATE}, a"
                    f" floor of 0 < λ ≤ 1 and a bonus of at most {MOST_BONUS} in units of 2**-20,"
                    f" and no donation where keys are in groups, nor of {MOST_DONATED} slots or"
                    " more",
                    got=self.name,
                )
            )

    @property
    def name(self) -> str:
        """Its name in the ledger; `named` reads it back."""
        apart = f" control {self.control.share}" if self.control.share else ""
        text = (
            f"crowd of {self.actions} actions at rate {self.rate} bonus {self.bonus}"
            f" floor {self.floor}{apart}"
        )
        if self.donates:
            text += f" donating below {self.donates}"
        return f"{text} groups {self.groups.name}" if self.groups.name else text

    @property
    def size(self) -> int:
        """How many bonuses a prior has: one for each group and action."""
        return self.groups.count * self.actions

    @property
    def width(self) -> int:
        """How many integers of a row the crowd reads."""
        return WIDTH

    @property
    def nothing(self) -> CrowdPrior:
        """Prior 0, which favours nothing."""
        return CrowdPrior.of(0, after=0, gap=0, bonuses=np.zeros(self.size, dtype=np.int64))

    def believed(self, prior: CrowdPrior) -> Floats:
        """The estimated share of keys that each action is best for: K that add up to 1.

        One row for each group, where keys are in groups.

        >>> crowd = Crowd(4, Fraction(1, 4), Fraction(1), Fraction(1, 20))
        >>> crowd.believed(crowd.nothing).tolist()
        [0.25, 0.25, 0.25, 0.25]
        """
        shares: Floats = np.exp(self._by_group(prior) / (1 << POINT)) / self.actions
        return shares if len(shares) > 1 else shares[0]

    def opening(self, prior: CrowdPrior, groups: Ints) -> Ints:
        """The bonuses of the first draws of some keys: R × K, in units of 2**-20."""
        return self._by_group(prior)[groups]

    def bonuses(self, prior: CrowdPrior, in_force: Ints, groups: Ints) -> Ints:
        """The bonuses of the next draws of some keys: R × K, in units of 2**-20.

        `groups`: those of the keys, `self.groups.numbers(keys)`.

        >>> crowd = Crowd(3, Fraction(1, 4), Fraction(1), Fraction(1, 20))
        >>> crowd.bonuses(crowd.nothing, np.array([2]), np.array([0])).tolist()
        [[0, 0, 1048576]]
        """
        units = self.opening(prior, groups)
        units[np.arange(len(in_force)), in_force] += int(self.bonus * (1 << POINT))
        return units

    def _by_group(self, prior: CrowdPrior) -> Ints:
        """A prior's bonuses: G × K."""
        return prior.bonuses.reshape(self.groups.count, self.actions)

    def made(self, votes: Votes, priors: Mapping[int, CrowdPrior], *, after: int) -> CrowdPrior:
        """The prior that follows from these votes; `priors` are those before it, by number."""
        cast_so = _Conditions.of(self, votes, priors)
        estimates = _estimated(cast_so)
        likelihoods = [estimate.likelihood for estimate in estimates]
        gap = likelihoods.index(max(likelihoods))
        units = self._units(cast_so, gap, estimates[gap])
        return CrowdPrior.of(max(priors) + 1, after=after, gap=gap, bonuses=units)

    def counts(self, kept: Ints) -> Bools:
        """Which of these rows have voted."""
        return np.asarray(kept[:, 0] > 0)

    def latest_told(self, kept: Ints) -> int:
        """The newest prior that any of these rows' votes was drawn under; −1: none voted."""
        return int(kept[:, 0].max(initial=0)) - 1

    def follows(self, prior: CrowdPrior, votes: Votes, priors: Mapping[int, CrowdPrior]) -> bool:
        """Whether a recorded prior follows from these votes, up to the differences of floats.

        Another platform's logarithms may differ in the last digit: so each bonus may differ by a
        unit, and of two gaps that are equally likely up to 10**-9 either may have been taken.
        """
        if not 0 <= prior.gap < len(GAPS) or not self.fits(prior):
            return False
        cast_so = _Conditions.of(self, votes, priors)
        estimates = _estimated(cast_so)
        best, taken = max(estimate.likelihood for estimate in estimates), estimates[prior.gap]
        off = np.abs(self._units(cast_so, prior.gap, taken) - prior.bonuses).max()
        return bool(off <= 1 and taken.likelihood >= best - 1e-9 * abs(best))

    def fits(self, prior: CrowdPrior) -> bool:
        """Whether a prior has a bonus for each group and action."""
        return len(prior.encoded) == 8 * self.size

    def _units(self, cast_so: _Conditions, gap: int, estimate: _Estimate) -> Ints:
        """The bonuses that follow from how many keys each action is best for, group by group."""
        if self.groups.count == 1:
            return self._bonuses(estimate.shares)
        rows = cast_so.rows(GAPS[gap : gap + 1]).of_first_gap()
        places = [np.flatnonzero(cast_so.group == group) for group in range(self.groups.count)]
        return np.concatenate(
            [self._bonuses(shares) for shares in _of_groups(rows, places, estimate.shares)]
        )

    def _bonuses(self, shares: Floats) -> Ints:
        """K bonuses that follow from the shares of actions."""
        floor = float(self.floor)
        mixed = (1 - floor) * shares + floor / self.actions
        units: Ints = np.rint(np.log(self.actions * mixed) * (1 << POINT)).astype(np.int64)
        return units


def due(after: int) -> int:
    """How many votes a partition must have released when the next prior is made.

    >>> due(0), due(1), due(20), due(21), due(1000)
    (1, 2, 21, 23, 1050)
    """
    return after + max(1, -(-after // _GROWTH))


def named(name: str) -> Crowd:
    """The crowd of this name in the ledger.

    >>> crowd = Crowd(3, Fraction(1, 4), Fraction(1), Fraction(1, 20))
    >>> named(crowd.name) == crowd
    True
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidConfig(
            complaint("crowd", "unknown", expected="a name that this version writes", got=name)
        )
    rate, bonus, floor, control = (Fraction(text or 0) for text in match.groups()[1:5])
    groups = groups_named(match["groups"] or "")
    donates = int(match[6] or 0)
    return Crowd(int(match[1]), rate, bonus, floor, donates, groups, Control(control))


@dataclass(frozen=True, slots=True)
class _Estimate:
    """What follows from votes for one gap."""

    shares: Floats  # K: π
    likelihood: float  # the logarithm of its maximum


@dataclass(frozen=True, slots=True)
class _Rows:
    """Votes in rows of equal conditions, with their likelihoods, for one gap or for each of D.

    All votes of a row have the same group, prior and length, and the same weight Σ_i e^(b_i + …) of
    everything but the best action j in the softmax's denominator. So a vote for w has the
    likelihood `both[0]`[j] if j is not w and `both[1]`[w] if it is, up to a factor without j and
    gap. (The weight that c adds to a vote for the action in force is rounded to a power of two, so
    that there are few rows.)
    """

    count: Floats  # G × K, or D × G × K: how many votes for each action
    both: Floats  # 2 × G × K, or 2 × D × G × K: how likely under other actions, under its own

    def of_first_gap(self) -> _Rows:
        """The rows, for the first of the gaps alone."""
        return _Rows(self.count, self.both[:, 0])

    def in_parts(self, places: Sequence[Ints]) -> _Rows:
        """D parts of the rows, for one gap; rows without a vote make them equally long."""
        index = np.zeros((len(places), max(map(len, places))), dtype=np.int64)
        used = np.zeros((*index.shape, 1))
        for part, rows in enumerate(places):
            index[part, : len(rows)], used[part, : len(rows)] = rows, 1
        return _Rows(self.count[index] * used, self.both[:, index])


@dataclass(frozen=True, slots=True)
class _Conditions:
    """Votes in rows of equal conditions, and what their likelihoods follow from."""

    rate: Fraction  # ρ
    count: Floats  # G × K: how many votes for each action
    weights: Floats  # G × K: e^b
    base: Floats  # G × 1: Σ_i e^(b_i + …)
    stays: Floats  # G × 1: e^c where the vote is for the action in force, else 1
    length: Ints  # G: of their blocks
    group: Ints  # G: of the keys

    @classmethod
    def of(cls, crowd: Crowd, votes: Votes, priors: Mapping[int, CrowdPrior]) -> _Conditions:
        """Those of these votes."""
        kept = float(np.exp(float(crowd.bonus)))
        which, prior = np.unique(votes.prior, return_inverse=True)
        units = np.concatenate([crowd._by_group(priors[n]) for n in which.tolist()])
        weights = np.exp(units / (1 << POINT))
        told_by = prior * crowd.groups.count + votes.group
        levels = np.rint(units[told_by, votes.vote] / (log(2) * (1 << POINT))) * votes.stayed
        length = np.minimum(votes.length, longest_told(crowd))
        table = np.stack([told_by, length, votes.stayed, levels.astype(np.int64)], axis=1)
        rows, row = np.unique(table, axis=0, return_inverse=True)
        count = np.zeros((len(rows), crowd.actions))
        np.add.at(count, (row.ravel(), votes.vote), votes.count)
        row_weights, stayed = weights[rows[:, 0]], rows[:, 2:3]
        base = row_weights.sum(axis=1, keepdims=True) + (kept - 1) * stayed * np.exp2(rows[:, 3:])
        group = rows[:, 0] % crowd.groups.count
        return cls(
            crowd.rate, count, row_weights, base, np.where(stayed, kept, 1), rows[:, 1], group
        )

    def at_once(self) -> list[Sequence[Fraction]]:
        """The gaps, in parts whose tables are not too large to be made at once."""
        if len(GAPS) * self.count.size <= _MOST_AT_ONCE:
            return [GAPS]
        return [(gap,) for gap in GAPS]

    def rows(self, gaps: Sequence[Fraction]) -> _Rows:
        """The rows, for each of D gaps."""
        by_slot = np.array([float(self.rate * gap) for gap in gaps])[:, None]
        exponents = np.minimum(MOST_TOLD, by_slot * self.length)[:, :, None]
        more = np.expm1(exponents) * self.weights
        own = np.exp(exponents) / (self.base + more * self.stays)
        return _Rows(self.count, np.stack([1 / (self.base + more), own]))


def longest_told(crowd: Crowd) -> int:
    """The block length from which a block's evidence is `MOST_TOLD`, whatever the gap."""
    return ceil(MOST_TOLD / (crowd.rate * min(GAPS)))


def _estimated(cast_so: _Conditions) -> list[_Estimate]:
    """π of all votes, for each gap."""
    return [
        estimate for gaps in cast_so.at_once() for estimate in _estimated_of(cast_so.rows(gaps))
    ]


def _estimated_of(rows: _Rows) -> list[_Estimate]:
    """π of all votes, for each gap of these rows."""
    actions = rows.count.shape[1]
    shares = _maximised(rows, np.full(actions, PSEUDO_COUNT))
    keys, chances = _keys(rows, shares), _chances(rows, shares)
    even, sizes = np.full(actions, 1 / actions), [actions * alike for alike in ALIKE]
    return [
        _Estimate(_weighed(keys[gap], even, sizes), float((rows.count * np.log(of_gap)).sum()))
        for gap, of_gap in enumerate(chances)
    ]


def _of_groups(rows: _Rows, places: Sequence[Ints], shares: Floats) -> Iterator[Floats]:
    """π of the votes of each group, whose rows have these places; `shares` are those of all."""
    longest = max(map(len, places))
    at_once = max(1, _MOST_AT_ONCE // (longest * len(shares)))
    for first in range(0, len(places), at_once):
        some = rows.in_parts(places[first : first + at_once])
        for keys in _keys(some, _maximised(some, ALL_KEYS * shares)):
            yield _weighed(keys, shares, RELATED)


def _maximised(rows: _Rows, supposed: Floats) -> Floats:
    """Shares of keys by expectation–maximisation, with so many pseudo-counts: K, or D × K."""
    shares: Floats = np.broadcast_to(
        supposed / supposed.sum(), (*rows.both.shape[1:-2], len(supposed))
    )
    for _ in range(_ROUNDS):
        keys = _keys(rows, shares) + supposed
        shares = keys / np.add.reduce(keys, axis=-1, keepdims=True)
    return shares


def _keys(rows: _Rows, shares: Floats) -> Floats:
    """How many of the keys that voted each action is best for, given its shares of all keys.

    Sums are added in one order on every platform. (`np.add.reduce` is `sum`, called directly.)
    """
    both = shares[..., None, :] * rows.both
    factors = np.empty_like(both)
    share = np.divide(rows.count, _likely(both), out=factors[1])
    np.subtract(np.add.reduce(share, axis=-1, keepdims=True), share, out=factors[0])
    both *= factors
    others, own = np.add.reduce(both, axis=-2)
    return np.asarray(others + own)


def _weighed(keys: Floats, base: Floats, sizes: Sequence[float]) -> Floats:
    """The mean of (n + A·base)/(Σn + A) over A, each weighted by the likelihood of the counts n.

    That of a Dirichlet–multinomial, Γ(A)/Γ(A + Σn)·Π_j Γ(A·base_j + n_j)/Γ(A·base_j), which is
    smooth in n: counts that differ by a last digit give shares that do.
    """
    logs = np.array([_likelihood(keys, size * base) for size in sizes])
    weights = np.exp(logs - logs.max())
    means = [(keys + size * base) / (keys.sum() + size) for size in sizes]
    return np.asarray((weights[:, None] * np.stack(means)).sum(axis=0) / weights.sum())


def _likelihood(keys: Floats, supposed: Floats) -> float:
    """The logarithm of the Dirichlet–multinomial likelihood of counts."""
    pairs = zip(keys.tolist(), supposed.tolist(), strict=True)
    all_keys, all_supposed = float(keys.sum()), float(supposed.sum())
    of_actions = fsum(lgamma(count + known) - lgamma(known) for count, known in pairs)
    return lgamma(all_supposed) - lgamma(all_supposed + all_keys) + of_actions


def _chances(rows: _Rows, shares: Floats) -> Floats:
    """How likely each vote of each row is (D × G × K), up to a factor of its own."""
    return _likely(shares[..., None, :] * rows.both)


def _likely(both: Floats) -> Floats:
    """Either another action than the vote's is the best, or the vote's own is."""
    others, own = both
    likely = np.add.reduce(others, axis=-1, keepdims=True) - others
    likely += own
    return np.asarray(likely)


def are_priors(crowd: Crowd, bonuses: Ints) -> bool:
    """Whether these bonuses follow from shares of keys: each e^b within bounds, their sum K."""
    least, most = (
        round_(log(of)) for round_, of in ((floor, float(crowd.floor)), (ceil, crowd.actions))
    )
    if (bonuses < (least << POINT)).any() or (bonuses > (most << POINT)).any():
        return False
    shares = np.exp(bonuses.reshape(-1, crowd.actions) / (1 << POINT)).sum(axis=1)
    return bool((np.abs(shares / crowd.actions - 1) < 1e-3).all())
