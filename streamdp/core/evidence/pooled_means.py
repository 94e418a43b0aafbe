"""The crowd of a feedback stream: a normal prior for each arm, from the private means of all keys.

The releases of a key give each arm a mean m and a weight w, the inverse of the mean's variance
(`policy_posterior`). Those of all keys of a partition show how good the arm is elsewhere, and how
much keys differ in it. They are public, so they may stand in for what a key does not know yet:

    m_ij ~ N(μ_j + c_i, τ_j² + 1/w_ij)

for key i and arm j. μ_j is the arm's mean gain. c_i is how much better *all* arms do with key i (a
country that clicks more), which does not help to choose between arms. τ_j is how much keys differ
in arm j besides that. A prior is μ_j and τ_j of each arm.

How they are estimated. `ROUNDS` rounds of expectation–maximisation, from the prior before: each
key's c_i is the precision-weighted mean of m_ij − μ_j, μ_j that of m_ij − c_i, and τ_j² the mean
over keys of the expected squared difference given m_ij. Where little is known, τ is the value that
a key without a crowd assumes, and arms are taken to be alike: `SUPPOSED` imaginary keys say so.

How a key uses it (`posterior`). Before it is seen, an arm has the mean μ_j + c_i in place of the
level of the key's own arms, with the weight 1/τ_j² in place of four losses. Three bounds limit the
cost for a key that is unlike the others: a prior weighs `MOST_LOSSES` losses at most; it weighs
less, the further it is from the key's own mean, so that a distant prior has less and less influence
(in the manner of Efron & Morris 1972); and the floor of shows stays. A prior never weighs less than
four losses.

Rules:

1. A prior is a function of what rows keep of releases. Open sums are not read (the package's import
   contract keeps them out of reach), nor is a clock.
2. Prior 0 says nothing: policies under it are those of the same learner without a crowd, bit for
   bit.
3. A prior is 2·K whole numbers in units of 2**-20 loss: K means, then K deviations τ. They are
   computed by one correctly rounded operation at a time, in the order of `_ordered`: a second
   computation arrives at the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.events import CrowdPrior
from streamdp.core.evidence.control import NO_CONTROL, Control
from streamdp.core.evidence.groups import NO_GROUPS, Groups
from streamdp.core.evidence.policy_arithmetic import ordered_sum
from streamdp.core.evidence.policy_best import chances_of_best
from streamdp.core.evidence.policy_posterior import PRIOR_LOSSES, level
from streamdp.core.evidence.policy_rule import KEPT_PER_ARM

ROUNDS = 3
"""Rounds of expectation–maximisation, a fixed number: no comparison of floats decides."""

SUPPOSED = 4.0
"""Imaginary keys that vary in an arm as keys do in all arms."""

SUPPOSED_OF_ALL = 2.0
"""Imaginary arms of keys that vary as a key without a crowd assumes."""

ALIKE_WEIGHT = 16.0
"""The weight of the mean of all arms in an arm's mean: of four losses whose variance is 1/4."""

MOST_LOSSES = 1000.0
"""The most that a prior weighs, in losses: a key that is unlike the others needs some more."""

FAR = 9.0
"""Squared deviations between a key's own mean and its prior, from which the prior weighs less."""

_UNIT = float(1 << 20)
_EXACT = r"(\d{1,30}(?:/[1-9]\d{0,29})?)"
_NAME = re.compile(rf"means of (\d{{1,7}}) actions(?: control {_EXACT})?", re.ASCII)


class ArmPriors(NamedTuple):
    """What a prior says of each arm: K numbers each, in loss."""

    means: Floats
    variances: Floats  # τ²


@dataclass(frozen=True, slots=True)
class PooledMeans:
    """Makes the priors of a feedback stream's partition; `named` restores it from its name.

    Privacy: post-processing of released sums and counts, at no cost.

    >>> means = PooledMeans(2)
    >>> two_keys = np.array([[[400.0, 400.0], [40.0, -40.0]], [[400.0, 400.0], [48.0, -32.0]]])
    >>> kept = np.zeros((2, 5), np.int64)
    >>> kept[:, :4] = two_keys.reshape(2, 4).view(np.int64)
    >>> prior = means.made_from(kept, {0: means.nothing}, after=2)
    >>> bool(prior.bonuses[0] > prior.bonuses[1])
    True
    """

    actions: int
    control: Control = NO_CONTROL

    def __post_init__(self) -> None:
        """Refuse fewer than two actions."""
        if self.actions < 2:
            raise InvalidConfig(
                complaint("crowd", "out of range", expected="2 actions or more", got=self.actions)
            )

    @property
    def name(self) -> str:
        """Its name in the ledger; `named` reads it back."""
        apart = f" control {self.control.share}" if self.control.share else ""
        return f"means of {self.actions} actions{apart}"

    @property
    def groups(self) -> Groups:
        """None: all keys are in one group."""
        return NO_GROUPS

    @property
    def donates(self) -> int:
        """0: no block is donated."""
        return 0

    @property
    def size(self) -> int:
        """How many numbers a prior has: a mean and a deviation of each arm."""
        return 2 * self.actions

    @property
    def width(self) -> int:
        """How many integers of a row the crowd reads: its history and the prior of its policy."""
        return KEPT_PER_ARM * self.actions + 1

    @property
    def nothing(self) -> CrowdPrior:
        """Prior 0, which says nothing."""
        return CrowdPrior.of(0, after=0, gap=0, bonuses=np.zeros(self.size, dtype=np.int64))

    def fits(self, prior: CrowdPrior) -> bool:
        """Whether a prior has a mean and a deviation of each arm."""
        return len(prior.encoded) == 8 * self.size and prior.gap == 0

    def believed(self, prior: CrowdPrior) -> Floats:
        """How likely each arm is the best for a new key; floats for people."""
        arms = arms_of(prior)
        if arms is None:
            return np.full(self.actions, 1 / self.actions)
        chances: Floats = chances_of_best(arms.means[None], np.sqrt(arms.variances)[None])[0]
        return chances

    def latest_told(self, kept: Ints) -> int:
        """The newest prior under which any of these rows has its policy."""
        return int(kept[:, -1].max(initial=0))

    def counts(self, kept: Ints) -> Bools:
        """Which of these rows have released anything about an arm."""
        weights = kept[:, : self.actions].view(np.float64)
        return np.asarray((weights > 0).any(axis=1))

    def made_from(self, kept: Ints, priors: Mapping[int, CrowdPrior], *, after: int) -> CrowdPrior:
        """The prior that follows from rows (`width` integers of each key) and the one before."""
        newest = max(priors)
        histories = _ordered(kept[self.counts(kept)][:, :-1])
        estimates = _estimated(histories.reshape(-1, KEPT_PER_ARM, self.actions), priors[newest])
        return CrowdPrior.of(newest + 1, after=after, gap=0, bonuses=estimates)

    def follows(self, prior: CrowdPrior, kept: Ints, priors: Mapping[int, CrowdPrior]) -> bool:
        """Whether a recorded prior follows from these rows, to the last digit."""
        return self.fits(prior) and self.made_from(kept, priors, after=prior.after) == prior


def named(name: str) -> PooledMeans | None:
    """The crowd of this name in the ledger; None for a name of another kind.

    >>> named("means of 3 actions control 1/20").control.share, named("crowd of votes")
    (Fraction(1, 20), None)
    """
    match = _NAME.fullmatch(name)
    return None if match is None else PooledMeans(int(match[1]), Control(Fraction(match[2] or 0)))


def arms_of(prior: CrowdPrior) -> ArmPriors | None:
    """Decode a prior; None for one that says nothing."""
    numbers = prior.bonuses / _UNIT
    means, deviations = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    return ArmPriors(means, deviations * deviations) if deviations.any() else None


def posterior(state: Floats, priors: ArmPriors) -> tuple[Floats, Floats]:
    """Each arm's mean gain and standard deviation under a prior: R × K."""
    variance = level(state).variance[:, None]
    weight, product = state[:, 0], state[:, 1]
    own = _means(weight, product)
    trust = weight / (1.0 + weight * priors.variances)  # 1 / (own variance + τ²)
    expected = priors.means + _shared(own - priors.means, trust)[:, None]
    off = own - expected
    least = PRIOR_LOSSES / variance
    precision = np.minimum(1.0 / priors.variances, MOST_LOSSES / variance)
    precision /= np.maximum(1.0, off * off * trust / FAR)
    precision = np.maximum(precision, least)
    all_known = weight + precision
    mean = (product + precision * expected) / all_known
    return mean, np.sqrt(1.0 / all_known)


def _means(weight: Floats, product: Floats) -> Floats:
    """Each arm's own mean; 0 where it was never seen."""
    return np.asarray(product / np.where(weight > 0, weight, 1.0))


def _shared(differences: Floats, trust: Floats) -> Floats:
    """c_i: how much better all arms do with each key."""
    total = ordered_sum((trust * differences).T)
    return np.asarray(total / (ordered_sum(trust.T) + ALIKE_WEIGHT))


def _ordered(rows: Ints) -> Floats:
    """Rows in the order of their bytes, which does not depend on the order of the input."""
    whole = np.ascontiguousarray(rows)
    packed = whole.view(np.dtype((np.void, whole.itemsize * whole.shape[1]))).ravel()
    return whole[np.argsort(packed, kind="stable")].view(np.float64)


def _estimated(histories: Floats, before: CrowdPrior) -> Ints:
    """Means and deviations from histories of N keys (N × 2 × K) and the prior before."""
    arms = histories.shape[2]
    if not len(histories):
        return np.zeros(2 * arms, dtype=np.int64)
    weight, product = histories[:, 0], histories[:, 1]
    supposed = float(ordered_sum(level(histories).variance)) / (len(histories) * PRIOR_LOSSES)
    priors = arms_of(before)
    if priors is None:
        all_arms = float(ordered_sum(ordered_sum(product))) / float(
            ordered_sum(ordered_sum(weight))
        )
        priors = ArmPriors(np.full(arms, all_arms), np.full(arms, supposed))
    own, seen = _means(weight, product), (weight > 0).astype(np.float64)
    for _ in range(ROUNDS):
        priors = _improved(priors, own, weight, seen, supposed)
    means = np.rint(priors.means * _UNIT)
    deviations = np.maximum(1.0, np.rint(np.sqrt(priors.variances) * _UNIT))
    return np.concatenate([means, deviations]).astype(np.int64)


def _improved(
    priors: ArmPriors, own: Floats, weight: Floats, seen: Floats, supposed: float
) -> ArmPriors:
    """One round: c, then means, then how much keys differ."""
    arms = own.shape[1]
    trust = weight / (1.0 + weight * priors.variances)
    rest = own - _shared(own - priors.means, trust)[:, None]
    trusts, weighed = ordered_sum(trust), ordered_sum(trust * rest)
    all_arms = ordered_sum(weighed) / ordered_sum(trusts)
    means = (weighed + ALIKE_WEIGHT * all_arms) / (trusts + ALIKE_WEIGHT)
    believed = priors.variances * trust  # the share of a difference that is not noise
    off = believed * (rest - means)
    squares = off * off * (arms / (arms - 1.0)) + priors.variances * (1.0 - believed)
    differing, keys = ordered_sum(squares * seen), ordered_sum(seen)
    of_all = ordered_sum(differing) + SUPPOSED_OF_ALL * supposed
    of_all = of_all / (ordered_sum(keys) + SUPPOSED_OF_ALL)
    return ArmPriors(means, (differing + SUPPOSED * of_all) / (keys + SUPPOSED))
