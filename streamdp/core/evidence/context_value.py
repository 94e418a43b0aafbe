"""What a policy would have earned, from released tables alone: public, at no ε.

For cells c, actions a and a policy π, the value is

    V = Σ_c q(c) · Σ_a π(a | c) · m(c, a),

with q(c) the share of events that fall into a cell, and m the mean reward there. It compares like
with like: within a cell the policy in force drew actions without looking at anything else, so what
was shown there is a sample of what would have been. Three things keep its intervals honest.

*A rule is valued by blocks that it was not chosen by* (`BlockTables.since`). A table that is the
best of its kind on some numbers looks better on them than it is. Every second block would not do:
how often it showed an action follows from the sums of the others. So a rule that was fitted on the
blocks before b is valued on those from b on (`forward`). Where several are compared, `among` makes
their intervals hold all at once.

*Shows follow from earlier rewards.* An action that was unlucky is shown less, so a plain mean of
all its shows would be too low. Where counts are exact, each block's mean S/n of a cell and action
is weighted by the inverse h of its deviation, (v/n + σ²/n²)^½, for v the variance of a reward and
σ² that of the noise. Given what was before, h·(S/n − m) has the mean 0 and the variance 1, so the
sum over B blocks is a martingale: m is within z·√B/Σh of Σ h·(S/n)/Σh. Shares of a block's slots in
place of n would be biased: outcomes are late, and slots without an outcome are slots.

*The world changes.* `lift` is what the policy earns more than what was shown, as a difference
within each block, so a level that moves with time cancels.

Where counts are noisy, the blocks' tables are added up before a mean is taken: a ratio of two noisy
numbers would be biased, and a mean of such ratios as much. A cell that showed an action too rarely
(`_FEW` deviations of a count's noise) is pooled with the others of this action; `Value.pooled` says
how much of the value comes from them. These intervals do not correct for shows that follow from
rewards.

Whatever share of a policy was never shown may earn anything from 0 to 1: the interval has room for
it, and `Value.unknown` says how much it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policy_posterior import NoiseVariance

_FEW = 8.0
_MISSES = 0.05  # how often an interval, or any of several, may miss
_PRIOR = 10.0  # events at the mean of all, in the variance of a reward


@dataclass(frozen=True, slots=True)
class BlockTables:
    """Released tables of consecutive blocks: blocks × cells × actions."""

    gains: Floats = field(repr=False)  # rewards less 1/2
    shown: Floats
    noise: NoiseVariance  # of each number

    def since(self, block: int) -> BlockTables:
        """Those from a block on."""
        return BlockTables(self.gains[block:], self.shown[block:], self.noise)

    def until(self, block: int) -> BlockTables:
        """Those of the blocks before one."""
        return BlockTables(self.gains[:block], self.shown[:block], self.noise)

    @property
    def blocks(self) -> int:
        """How many blocks."""
        return len(self.shown)

    @property
    def events(self) -> float:
        """How many events they are of; noisy where counts are."""
        return float(self.shown.sum())

    @property
    def mean(self) -> float:
        """The mean reward of what was shown."""
        return float(np.clip(0.5 + self.gains.sum() / max(self.events, 1.0), 0.0, 1.0))

    @property
    def total_noise(self) -> NoiseVariance:
        """The noise in each number of all blocks together."""
        return NoiseVariance(self.blocks * self.noise.on_sums, self.blocks * self.noise.on_counts)

    def half(self) -> int:
        """The block that comes nearest to having half of the events before it, and half after.

        >>> shown = np.array([1.0, 2.0, 4.0, 8.0]).reshape(4, 1, 1)
        >>> BlockTables(shown, shown, NoiseVariance(0.0)).half()
        3
        """
        of_blocks = self.shown.sum(axis=(1, 2))
        after = of_blocks[::-1].cumsum()[::-1] / max(self.events, 1.0)
        return int(np.abs(after - 0.5).argmin()) if self.blocks else 0

    def best(self, alike: Ints | None = None) -> Floats:
        """The rule that shows in each cell what earned most there: cells × actions.

        A mean of few shows is drawn towards what the action earned everywhere. Cells of one number
        in `alike` show the same action: what earned most in their mixture.

        >>> shown = np.array([[[50.0, 50.0], [0.0, 0.0], [50.0, 50.0]]])
        >>> gains = np.array([[[10.0, 20.0], [0.0, 0.0], [25.0, -10.0]]])
        >>> BlockTables(gains, shown, NoiseVariance(0.0)).best().argmax(axis=1)
        array([1, 0, 0])
        >>> BlockTables(gains, shown, NoiseVariance(0.0)).best(np.array([0, 0, 0])).argmax(axis=1)
        array([0, 0, 0])
        """
        count, gains = np.maximum(self.shown.sum(axis=0), 0.0), self.gains.sum(axis=0)
        overall = gains.sum(axis=0) / np.maximum(count.sum(axis=0), 1.0)
        few = _PRIOR + _least(self.total_noise)
        earned = (gains + few * overall) / (count + few)
        if alike is not None:
            mixture = np.zeros((int(alike.max()) + 1, count.shape[1]))
            np.add.at(mixture, alike, (1.0 + count.sum(axis=1, keepdims=True)) * earned)
            earned = mixture[alike]
        best: Floats = np.eye(count.shape[1])[earned.argmax(axis=1)]
        return best


@dataclass(frozen=True, slots=True)
class RewardInterval:
    """A number, and the interval that holds the truth in 95 of 100 cases."""

    mean: float
    low: float
    high: float

    def times(self, most: float) -> RewardInterval:
        """The same of rewards that are as many times as large."""
        return RewardInterval(self.mean * most, self.low * most, self.high * most)


@dataclass(frozen=True, slots=True)
class Value:
    """The mean reward of a policy."""

    reward: RewardInterval
    lift: RewardInterval | None
    """Over what was shown in the same blocks; None where counts are noisy."""
    unknown: float = 0.0  # the share of the policy's shows of which nothing is known
    pooled: float = 0.0  # the share of them whose cells showed the action too rarely

    def of(self, most: float) -> Value:
        """The same in the rewards' unit, where shares of `most` were released."""
        lift = None if self.lift is None else self.lift.times(most)
        return replace(self, reward=self.reward.times(most), lift=lift)


def value_as_shown(tables: BlockTables) -> Value:
    """The mean reward of what was shown."""
    events, mean, noise = max(tables.events, 1.0), tables.mean, tables.total_noise
    numbers = tables.shown[0].size if tables.blocks else 0
    variance = mean * (1 - mean) / events
    off = 0.5 - mean
    variance += numbers * (noise.on_sums + noise.on_counts * off * off) / events**2
    return Value(_within(mean, sqrt(variance)), None)


def value_of(policy: Floats, tables: BlockTables, *, among: int = 1) -> Value:
    """The value of a policy: cells × actions, each cell's probabilities adding up to 1.

    With `among` the intervals of so many policies hold all at once.

    >>> shown = np.array([[[800.0, 200.0], [100.0, 900.0]]])
    >>> tables = BlockTables(shown * -0.4, shown, NoiseVariance(0.0))
    >>> found = value_of(np.array([[1.0, 0.0], [1.0, 0.0]]), tables).reward
    >>> round(found.mean, 6), round(found.high - found.mean, 3)
    (0.1, 0.035)
    """
    shape = tables.shown.shape[1:]
    if policy.shape != shape or not np.allclose(policy.sum(axis=1), 1.0):
        raise InvalidConfig(
            "policy",
            "not one of this table",
            expected=f"probabilities of {shape[1]} actions in each of {shape[0]} cells",
            got=f"a table of {' × '.join(map(str, policy.shape))}",
        )
    reach = NormalDist().inv_cdf(1 - _MISSES / (2 * among))
    if tables.noise.on_counts:
        return _pooled(policy, tables, reach)
    return _by_block(policy, tables, reach, among)


class Forward(NamedTuple):
    """What the blocks before one led to, valued by those from it on."""

    since: int
    policy: Value
    best: Mapping[str, tuple[Ints, Value]]  # by who gets one action: which; all hold at once


def forward(
    tables: BlockTables, policies: Mapping[int, Floats], contexts: Contexts | None
) -> Forward | None:
    """The policy and the best actions of about half of all events; None: there is no such block.

    `policies` are those that blocks led to, by how many these were.
    """
    since = min(policies, key=lambda block: abs(block - tables.half()))
    if not since:
        return None
    first, later, cells = tables.until(since), tables.since(since), tables.shown.shape[1]
    alike = {"everybody": np.zeros(cells, dtype=np.int64)}
    if contexts is not None:
        levels = np.unravel_index(np.arange(cells), contexts.shape)
        alike |= {f"each {of.name}": at for of, at in zip(contexts.fields, levels, strict=True)}
    if len(alike) > 2:
        alike["each combination"] = np.arange(cells)
    best = {}
    for whom, numbers in alike.items():
        rule, of_each = first.best(numbers), np.unique(numbers, return_index=True)[1]
        value = value_of(rule, later, among=len(alike))
        best[whom] = rule[of_each].argmax(axis=1), value
    return Forward(since, value_of(policies[since], later), best)


def _by_block(policy: Floats, tables: BlockTables, reach: float, among: int) -> Value:
    """Each block's means, weighted by the inverse of their deviations; counts are exact."""
    shown, gains, level = tables.shown, tables.gains, tables.mean
    events, count = max(tables.events, 1.0), shown.sum(axis=0)
    weight = count.sum(axis=1, keepdims=True) * policy / events
    tails = (log(among / _MISSES) / (sqrt(2) * reach)) ** 2  # a Laplace law's beside a normal one's
    spread = _of_reward(tables) * shown + tails * tables.noise.on_sums  # the variance of a sum
    h = shown / np.sqrt(np.maximum(spread, 1e-300))
    total = h.sum(axis=0)
    known = total > 0
    share = h / np.where(known, total, 1.0)
    per = share / np.maximum(shown, 1.0)  # what a sum counts in the mean of its cell and action
    means = np.where(known, 0.5 + (per * gains).sum(axis=0), level)
    of_cells = (policy * means).sum(axis=1, keepdims=True)
    value = float(weight.sum(axis=1) @ of_cells[:, 0])
    unknown = float(weight[~known].sum())
    cells = (of_cells - value) / events  # what an event says of the mixture of cells
    variance = (count * cells * cells).sum() + (np.square(weight * per) * spread).sum()
    reward = _within(value, sqrt(float(variance)), reach, unknown * level, unknown * (1 - level))

    of_blocks = np.maximum(shown.sum(axis=(1, 2), keepdims=True), 1.0)
    beside = (weight * share).sum(axis=(1, 2), keepdims=True)  # what a block counts in all means
    here = 0.5 + gains.sum(axis=(1, 2), keepdims=True) / of_blocks
    lift = value - unknown * level - float((beside * here).sum())
    within = np.clip(means, 0.0, 1.0) - here
    variance = (shown * np.square(cells - beside / of_blocks * within)).sum()
    variance += (np.square(weight * per - beside / of_blocks) * spread).sum()
    of_lift = _interval(lift, sqrt(float(variance)), reach, unknown * level, unknown * (1 - level))
    return Value(reward, of_lift, unknown)


def _of_reward(tables: BlockTables) -> Floats:
    """The variance m(1 − m) of a reward of each cell and action.

    Of m we know its own mean and the level of all, which counts as much as `_PRIOR` events; it is
    taken one standard error nearer to 1/2, since a mean that fell too low would seem too sure.
    """
    count, level = tables.shown.sum(axis=0), tables.mean
    of_all = max(level * (1.0 - level), 1 / max(tables.events, 4.0))
    own = count**2 / np.maximum(of_all * count + tables.total_noise.on_sums, 1e-300)
    prior = _PRIOR / of_all
    mean = 0.5 + tables.gains.sum(axis=0) / np.maximum(count, 1.0)
    off = np.abs((own * mean + prior * level) / (own + prior) - 0.5)
    cautious = np.maximum(off - np.sqrt(1.0 / (own + prior)), 0.0)
    return np.asarray(np.maximum(0.25 - cautious * cautious, 0.0))


def _pooled(policy: Floats, tables: BlockTables, reach: float) -> Value:
    """All blocks added up, and rare cells pooled action by action; counts are noisy."""
    count, gains, noise = tables.shown.sum(axis=0), tables.gains.sum(axis=0), tables.total_noise
    events, level = max(tables.events, 1.0), tables.mean
    of_cell = count.sum(axis=1, keepdims=True)
    labels, rare = _strata(count, noise)
    weight, gain, shows = (
        np.bincount(labels.ravel(), of.ravel()) for of in (of_cell * policy / events, gains, count)
    )
    known = shows >= _least(noise) * np.sqrt(np.bincount(labels.ravel()))
    shows = np.where(known, shows, 1.0)
    means = np.where(known, 0.5 + gain / shows, level)  # cut off, noise would not cancel
    by_gain = np.where(known, weight / shows, 0.0)
    by_count = np.where(known, -weight * gain / shows**2, 0.0)
    shrunk = np.clip((shows * means + _PRIOR * level) / (shows + _PRIOR), 0.0, 1.0)
    of_cells = (policy * means[labels]).sum(axis=1, keepdims=True)
    value = float((of_cell * of_cells).sum() / events)
    cells = (of_cells - value) / events
    rewards = np.square(by_gain) * shrunk * (1.0 - shrunk)
    variance = (np.maximum(count, 0.0) * (cells * cells + rewards[labels])).sum()
    variance += noise.on_sums * np.square(by_gain[labels]).sum()
    variance += noise.on_counts * np.square(cells + by_count[labels]).sum()
    pooled = min(1.0, max(0.0, float((of_cell * policy)[rare].sum() / events)))
    unknown = min(1.0, max(0.0, float(weight[~known].sum())))
    low, high = unknown * level, unknown * (1.0 - level)
    return Value(_within(value, sqrt(float(variance)), reach, low, high), None, unknown, pooled)


def _strata(count: Floats, noise: NoiseVariance) -> tuple[NDArray[np.int64], Bools]:
    """Which numbers are added up before their mean is taken, by their label; and the rare ones.

    A cell's own, or those of an action's rare cells.
    """
    rare = count < _least(noise)
    own = np.arange(count.size).reshape(count.shape)
    pool = count.size + np.broadcast_to(np.arange(count.shape[1]), count.shape)
    _, labels = np.unique(np.where(rare, pool, own), return_inverse=True)
    return labels.reshape(count.shape).astype(np.int64), rare


def _least(noise: NoiseVariance) -> float:
    """The fewest shows that say something of a mean."""
    return _FEW * sqrt(noise.on_counts)


def _interval(
    mean: float, deviation: float, reach: float, below: float = 0.0, above: float = 0.0
) -> RewardInterval:
    """A number with its interval, and room below and above it for what is not known."""
    off = reach * deviation
    return RewardInterval(mean, mean - off - below, mean + off + above)


def _within(
    mean: float,
    deviation: float,
    reach: float = NormalDist().inv_cdf(1 - _MISSES / 2),
    below: float = 0.0,
    above: float = 0.0,
) -> RewardInterval:
    """The same of a reward: within [0, 1]."""
    found = _interval(mean, deviation, reach, below, above)
    return RewardInterval(mean, max(0.0, found.low), min(1.0, found.high))
