"""The crowd: from the newest votes of a partition's keys to what the next draws know beforehand.

Keys are often alike. What others have released says which actions are likely to be good for a key
of which nothing is known yet, and it is public: it may steer that key's draw beforehand at no cost.
A *prior* is a bonus for each action, in noise units, the same for all keys of a partition:

    b_j = ln(K·π̃_j),   π̃ = (1 − λ)·π + λ/K,

π an estimate of the share of keys whose best action is j, and λ, the *floor*, a bound on harm: the
action that the crowd thinks least of is behind by ln(K) + ln(1/λ) noise units at most.

How π is estimated. The evidence is the newest vote of each key: which action, after a block of how
many slots, drawn under which prior, and whether it is the action that was in force. A vote for what
the prior favoured anyway is no evidence, so the prior stands in the likelihood: a key whose best
action is j votes for w with a chance near softmax(b + c·[in force] + a_n·[= j])[w], where b is what
was told to that draw and a_n = min(6, ρ·n·g) says how much a block of n slots tells of a gap g. π
comes from expectation–maximisation with a quarter of a pseudo-count for each action; the gap, from
the public grid `GAPS`, is the one of the greatest likelihood. (Of the action in force only is known
whether the vote was for it. Where it was not, the softmax leaves c out.)

Rules:

1. A prior is a function of releases and slot numbers: of what a ledger holds. Open sums are not
   read (the room's import contract keeps them out of reach), nor is a clock.
2. Prior 0 favours nothing. Prior n + 1 is made when the partition's votes have become 5 % more than
   they were when prior n was made (`due`): a count of blocks that end, known before they are drawn.
3. A prior is K whole numbers in units of 2**-20 noise units. They are computed in floats, and the
   record of them is the truth: whoever computes them again must come within one unit. Nothing else
   is decided by these floats but the gap, which is on record beside them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.events import CrowdPrior

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

POINT = 20
"""Bits after the point of a bonus in noise units: finer than any difference that could matter."""

GAPS = (Fraction(1, 20), Fraction(3, 25), Fraction(3, 10))
"""How much worse the second best action may be, in loss a slot: small, middle and large."""

MOST_TOLD = 6
"""A block tells no more than e^6 to 1: a gap is never the same for all keys."""

WIDTH = 3
"""How many integers are kept of each key's newest vote: the number of its prior plus 1 (0: the key
has cast none), twice the action plus whether that was in force, and its block's length."""

PSEUDO_COUNT = 0.25
"""Keys of each action that are supposed beforehand: one vote alone favours its action little."""

_ROUNDS = 40
"""Of expectation–maximisation. Fixed, so that no comparison of floats decides when to stop."""

_GROWTH = 20
"""A prior is made anew after 1/20 = 5 % more votes."""

_EXACT = r"(\d{1,30}(?:/[1-9]\d{0,29})?)"

_NAME = re.compile(
    rf"crowd of (\d{{1,7}}) actions at rate {_EXACT} bonus {_EXACT} floor {_EXACT}"
    r"(?: donating below (\d{1,13}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Votes:
    """The newest vote of each key that has cast one, counted: one entry for each of C cells."""

    prior: Ints  # the number of the prior that it was drawn under
    length: Ints  # of its block
    stayed: Ints  # 1 where it is the action that was in force when it was drawn, else 0
    vote: Ints
    count: Ints

    @classmethod
    def counted(cls, *, prior: Ints, length: Ints, stayed: Ints, vote: Ints) -> Votes:
        """From one entry for each key; their order makes no difference.

        >>> one, two = np.array([1, 1, 0]), np.array([7, 7, 7])
        >>> Votes.counted(prior=one, length=two, stayed=one, vote=two).count.tolist()
        [1, 2]
        """
        lengths, which = np.unique(length, return_inverse=True)
        shape = tuple(int(each.max(initial=0)) + 1 for each in (prior, which, stayed, vote))
        cells = np.ravel_multi_index((prior, which, stayed, vote), shape)
        found, count = np.unique(cells, return_counts=True)
        prior, which, stayed, vote = np.unravel_index(found, shape)
        return cls(prior, lengths[which], stayed, vote, count)


def cast(crowd: Crowd, *, prior: Ints, stayed: Bools, vote: Ints, length: Ints) -> Ints:
    """What is kept of votes: R × `WIDTH` integers below 2**31."""
    return np.stack([prior + 1, 2 * vote + stayed, np.minimum(length, longest_told(crowd))], axis=1)


def newest(kept: NDArray[np.integer[Any]]) -> Votes:
    """The votes that are kept, counted: R × `WIDTH` integers, one row for each key."""
    votes = kept[kept[:, 0] > 0].astype(np.int64)
    return Votes.counted(
        prior=votes[:, 0] - 1, length=votes[:, 2], stayed=votes[:, 1] % 2, vote=votes[:, 1] // 2
    )


@dataclass(frozen=True, slots=True)
class Crowd:
    """How the priors of a partition are made; `named` makes it again from its name.

    Privacy: post-processing of votes, at no cost. It is given votes, lengths and priors only.
    """

    actions: int
    rate: Fraction  # ρ: noise units for each unit of loss
    bonus: Fraction  # c: what the action in force has beside the prior, in noise units
    floor: Fraction  # λ
    donates: int = 0  # blocks of fewer slots are donated (`evidence.donation`); 0: none

    def __post_init__(self) -> None:
        """Refuse what gives no bounded prior, and a bonus that the grid does not hold."""
        on_grid = (self.bonus * (1 << POINT)).denominator == 1
        sound = self.actions >= 2 and self.rate > 0 and 0 < self.floor <= 1 and self.donates >= 0
        if not (sound and on_grid):
            raise InvalidConfig(
                complaint(
                    "crowd",
                    "no crowd",
                    expected="2 actions or more, a rate above 0, a floor of 0 < λ ≤ 1 and"
                    " a bonus in units of 2**-20, and a length of blocks that is not below 0",
                    got=self.name,
                )
            )

    @property
    def name(self) -> str:
        """What the ledger calls it; `named` makes it again."""
        told = (
            f"crowd of {self.actions} actions at rate {self.rate} bonus {self.bonus}"
            f" floor {self.floor}"
        )
        return f"{told} donating below {self.donates}" if self.donates else told

    @property
    def nothing(self) -> CrowdPrior:
        """Prior 0, which favours nothing."""
        return CrowdPrior.of(0, after=0, gap=0, bonuses=np.zeros(self.actions, dtype=np.int64))

    def believed(self, prior: CrowdPrior) -> Floats:
        """K numbers that add up to 1: for which share of keys each action is thought the best.

        >>> crowd = Crowd(4, Fraction(1, 4), Fraction(1), Fraction(1, 20))
        >>> crowd.believed(crowd.nothing).tolist()
        [0.25, 0.25, 0.25, 0.25]
        """
        believed: Floats = np.exp(prior.bonuses / (1 << POINT)) / self.actions
        return believed

    def bonuses(self, prior: CrowdPrior, in_force: Ints) -> Ints:
        """What the next draws of some keys know beforehand: R × K, in units of 2**-20.

        >>> crowd = Crowd(3, Fraction(1, 4), Fraction(1), Fraction(1, 20))
        >>> crowd.bonuses(crowd.nothing, np.array([2])).tolist()
        [[0, 0, 1048576]]
        """
        told = np.tile(prior.bonuses, (len(in_force), 1))
        told[np.arange(len(in_force)), in_force] += int(self.bonus * (1 << POINT))
        return told

    def made(self, votes: Votes, priors: Mapping[int, CrowdPrior], *, after: int) -> CrowdPrior:
        """The prior that follows from these votes; `priors` are those before it, by number."""
        found = [_estimated(_Rows.of(self, votes, priors, gap)) for gap in GAPS]
        likelihoods = [each.likelihood for each in found]
        gap = likelihoods.index(max(likelihoods))
        units = self._units(found[gap].shares)
        return CrowdPrior.of(max(priors) + 1, after=after, gap=gap, bonuses=units)

    def follows(self, prior: CrowdPrior, votes: Votes, priors: Mapping[int, CrowdPrior]) -> bool:
        """Whether a prior on record is what these votes make, up to what floats may differ by.

        Another platform's logarithms may be off by a last digit: each bonus by a unit, and of two
        gaps that are equally likely up to 10**-9 either may have been taken.
        """
        found = [_estimated(_Rows.of(self, votes, priors, gap)) for gap in GAPS]
        if not 0 <= prior.gap < len(found) or len(prior.told) != 8 * self.actions:
            return False
        best, taken = max(each.likelihood for each in found), found[prior.gap]
        off = np.abs(self._units(taken.shares) - prior.bonuses).max()
        return bool(off <= 1 and taken.likelihood >= best - 1e-9 * abs(best))

    def _units(self, shares: Floats) -> Ints:
        """The bonuses that follow from how many keys each action is best for."""
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
    """The crowd that the ledger calls so.

    >>> crowd = Crowd(3, Fraction(1, 4), Fraction(1), Fraction(1, 20))
    >>> named(crowd.name) == crowd
    True
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise InvalidConfig(
            complaint("crowd", "unknown", expected="a name that this version writes", got=name)
        )
    rate, bonus, floor = (Fraction(each) for each in found.groups()[1:4])
    return Crowd(int(found[1]), rate, bonus, floor, int(found[5] or 0))


@dataclass(frozen=True, slots=True)
class _Estimate:
    """What expectation–maximisation arrives at."""

    shares: Floats  # K: π
    likelihood: float  # its logarithm


@dataclass(frozen=True, slots=True)
class _Rows:
    """Votes by what they were drawn under, with their likelihoods, for one gap.

    All votes of a row have the same prior, the same length and the same weight Σ_i e^(b_i + …) of
    everything but the best action j in the softmax's denominator. So a vote for w has the
    likelihood `others[j]` if j is not w and `own[w]` if it is, up to a factor without j and gap.
    (The weight that c adds for a vote that stayed is rounded to a power of two: few rows.)
    """

    count: Floats  # G × K: how many votes for each action
    others: Floats  # G × K
    own: Floats  # G × K

    @classmethod
    def of(
        cls, crowd: Crowd, votes: Votes, priors: Mapping[int, CrowdPrior], gap: Fraction
    ) -> _Rows:
        """The rows of these votes."""
        rate, kept = float(crowd.rate * gap), float(np.exp(float(crowd.bonus)))
        which, prior = np.unique(votes.prior, return_inverse=True)
        units = np.stack([priors[n].bonuses for n in which.tolist()])
        weights = np.exp(units / (1 << POINT))
        levels = np.rint(units[prior, votes.vote] / (log(2) * (1 << POINT))) * votes.stayed
        length = np.minimum(votes.length, longest_told(crowd))
        table = np.stack([prior, length, votes.stayed, levels.astype(np.int64)], axis=1)
        rows, row = np.unique(table, axis=0, return_inverse=True)
        count = np.zeros((len(rows), crowd.actions))
        np.add.at(count, (row.ravel(), votes.vote), votes.count)
        told = np.minimum(MOST_TOLD, rate * rows[:, 1])[:, None]
        each, stayed = weights[rows[:, 0]], rows[:, 2:3]
        base = each.sum(axis=1, keepdims=True) + (kept - 1) * stayed * np.exp2(rows[:, 3:])
        others = 1 / (base + np.expm1(told) * each)
        own = np.exp(told) / (base + np.expm1(told) * each * np.where(stayed, kept, 1))
        return cls(count, others, own)


def longest_told(crowd: Crowd) -> int:
    """Blocks of more slots tell `MOST_TOLD` of every gap."""
    return ceil(MOST_TOLD / (crowd.rate * min(GAPS)))


def _estimated(rows: _Rows) -> _Estimate:
    """π by expectation–maximisation; sums are added in one order, whatever the platform."""
    actions = rows.count.shape[1]
    shares = np.full(actions, 1 / actions)
    for _ in range(_ROUNDS):
        share = rows.count / _chances(rows, shares)
        others = shares * rows.others
        keys = (others * (share.sum(axis=1, keepdims=True) - share)).sum(axis=0)
        keys += (shares * rows.own * share).sum(axis=0) + PSEUDO_COUNT
        shares = keys / keys.sum()
    chances = np.log(_chances(rows, shares))
    return _Estimate(shares, float((rows.count * chances).sum()))


def _chances(rows: _Rows, shares: Floats) -> Floats:
    """How likely each vote of each row is (G × K), up to a factor of its own."""
    others = shares * rows.others
    return np.asarray(others.sum(axis=1, keepdims=True) - others + shares * rows.own)
