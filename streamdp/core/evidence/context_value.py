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

*Blocks release tables that are finer or coarser* (`block_tables`). A policy that shows an action
alike in all cells of an entry of some level can be valued by what these entries earned: by the
blocks that say that. Cells that were shown the action only nearly alike, or are by the policy, have
room in the interval: rewards are not negative, so a mean of cells of which none counts more than
1 + δ times as much as it should is off by less than that factor; and so is what is missing to 1. Of
all levels the one with the narrowest interval counts; its blocks are `Value.blocks`. A policy that
no block says anything of may earn anything from 0 to 1.

Where counts are noisy, the blocks' tables are added up before a mean is taken: a ratio of two noisy
numbers would be biased, and a mean of such ratios as much. A cell that showed an action too rarely
(eight deviations of a count's noise) is pooled with the others of this action; `Value.pooled` says
how much of the value comes from them. These intervals do not correct for shows that follow from
rewards.

Whatever share of a policy was never shown may earn anything from 0 to 1: the interval has room for
it, and `Value.unknown` says how much it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.block_tables import PRIOR, BlockTables, Level, least
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policy_posterior import NoiseVariance

MISSES = 0.05  # how often an interval, or any of several, may miss


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
    blocks: tuple[int, ...]  # that it is about, counted from the first one of the tables
    unknown: float = 0.0  # the share of the policy's shows of which nothing is known
    pooled: float = 0.0  # the share of them whose cells showed the action too rarely

    def of(self, most: float) -> Value:
        """The same in the rewards' unit, where shares of `most` were released."""
        lift = None if self.lift is None else self.lift.times(most)
        return replace(self, reward=self.reward.times(most), lift=lift)


def value_as_shown(tables: BlockTables) -> Value:
    """The mean reward of what was shown: every block says that, whatever its table."""
    of = tables.together
    events, mean, noise = max(of.events, 1.0), of.mean, of.total_noise
    off, numbers = 0.5 - mean, of.shown.shape[2]
    variance = mean * (1 - mean) / events
    variance += numbers * (noise.on_sums + noise.on_counts * off * off) / events**2
    reach = NormalDist().inv_cdf(1 - MISSES / 2)
    return Value(_clipped(_interval(mean, sqrt(variance), reach)), None, tuple(of.blocks.tolist()))


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
    reach = NormalDist().inv_cdf(1 - MISSES / (2 * among))
    exact, found = not tables.noise.on_counts, list[Value]()
    for of, off in tables.levels(policy):
        noise = 0.0 if exact else of.total_noise.on_counts
        if of.events >= max(1.0, least(noise * of.shown[0].size)):
            shows = tables.shown[of.blocks].sum(axis=(0, 2)) if exact else np.zeros(shape[0])
            at_level = _averaged(policy, of.of_cells, shows)
            found.append(
                _by_block(at_level, of, off, reach, among)
                if exact
                else _pooled(at_level, of, off, reach, among)
            )
    nothing = Value(RewardInterval(tables.together.mean, 0.0, 1.0), None, (), unknown=1.0)
    value = min(found, key=lambda of: of.reward.high - of.reward.low, default=nothing)
    lift = value.lift and _clipped(value.lift, lowest=-1.0)
    return replace(value, reward=_clipped(value.reward), lift=lift)


def _averaged(policy: Floats, of_cells: Ints, shows: Floats) -> Floats:
    """A policy that is nearly alike in the cells of each entry: entries × actions."""
    entries = int(of_cells.max()) + 1
    if entries == len(policy):
        return policy
    none = np.bincount(of_cells, shows)[of_cells] == 0
    weight = np.where(none, 1.0, shows)
    table = np.zeros((entries, policy.shape[1]))
    np.add.at(table, of_cells, weight[:, None] * policy)
    return np.asarray(table / np.bincount(of_cells, weight)[:, None])


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


def _by_block(policy: Floats, of: Level, off: float, reach: float, among: int) -> Value:
    """Each block's means, weighted by the inverse of their deviations; counts are exact.

    The policy is `off` being alike in the cells of each entry by that factor at most.
    """
    shown, gains, level = of.shown, of.gains, of.mean
    events, count = of.events, shown.sum(axis=0)
    weight = count.sum(axis=1, keepdims=True) * policy / events
    drawn = tails(among, reach) * of.noise.on_sums * of.draws[:, None, None]
    spread = _of_reward(of) * shown + drawn  # the variance of a sum
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
    below, above = unknown * level, unknown * (1 - level)
    reward = _interval(value, sqrt(float(variance)), reach, below, above)
    of_blocks = np.maximum(shown.sum(axis=(1, 2), keepdims=True), 1.0)
    beside = (weight * share).sum(axis=(1, 2), keepdims=True)  # what a block counts in all means
    off = (1.0 + off) * (1.0 + float(beside[:, 0, 0] @ of.apart)) - 1.0
    room = _room(off, reward)
    reward = _interval(value, sqrt(float(variance)), reach, below + room, above + room)

    here = 0.5 + gains.sum(axis=(1, 2), keepdims=True) / of_blocks
    lift = value - unknown * level - float((beside * here).sum())
    within = np.clip(means, 0.0, 1.0) - here
    variance = (shown * np.square(cells - beside / of_blocks * within)).sum()
    variance += (np.square(weight * per - beside / of_blocks) * spread).sum()
    of_lift = _interval(lift, sqrt(float(variance)), reach, below + room, above + room)
    return Value(reward, of_lift, tuple(of.blocks.tolist()), unknown)


def _of_reward(of: Level) -> Floats:
    """The variance m(1 − m) of a reward of each entry and action.

    Of m we know its own mean and the level of all, which counts as much as `PRIOR` events; it is
    taken one standard error nearer to 1/2, since a mean that fell too low would seem too sure.
    """
    count, level = of.shown.sum(axis=0), of.mean
    of_all = max(level * (1.0 - level), 1 / max(of.events, 4.0))
    own = count**2 / np.maximum(of_all * count + of.total_noise.on_sums, 1e-300)
    prior = PRIOR / of_all
    mean = 0.5 + of.gains.sum(axis=0) / np.maximum(count, 1.0)
    off = np.abs((own * mean + prior * level) / (own + prior) - 0.5)
    cautious = np.maximum(off - np.sqrt(1.0 / (own + prior)), 0.0)
    return np.asarray(np.maximum(0.25 - cautious * cautious, 0.0))


def _pooled(policy: Floats, of: Level, off: float, reach: float, among: int) -> Value:
    """All blocks added up, and rare entries pooled action by action; counts are noisy."""
    count, gains, noise = of.shown.sum(axis=0), of.gains.sum(axis=0), of.total_noise
    events, level = of.events, of.mean
    of_cell = count.sum(axis=1, keepdims=True)
    labels, rare = _strata(count, noise)
    weight, gain, shows = (
        np.bincount(labels.ravel(), each.ravel())
        for each in (of_cell * policy / events, gains, count)
    )
    known = (shows > 0) & (shows >= least(noise.on_counts) * np.sqrt(np.bincount(labels.ravel())))
    shows = np.where(known, shows, 1.0)
    means = np.where(known, 0.5 + gain / shows, level)  # cut off, noise would not cancel
    by_gain = np.where(known, weight / shows, 0.0)
    by_count = np.where(known, -weight * gain / shows**2, 0.0)
    shrunk = np.clip((shows * means + PRIOR * level) / (shows + PRIOR), 0.0, 1.0)
    of_cells = (policy * means[labels]).sum(axis=1, keepdims=True)
    value = float((of_cell * of_cells).sum() / events)
    cells = (of_cells - value) / events
    rewards = np.square(by_gain) * shrunk * (1.0 - shrunk)
    variance = (np.maximum(count, 0.0) * (cells * cells + rewards[labels])).sum()
    drawn = noise.on_sums * np.square(by_gain[labels]).sum()
    drawn += noise.on_counts * np.square(cells + by_count[labels]).sum()
    variance += tails(among, reach) * drawn
    pooled = min(1.0, max(0.0, float((of_cell * policy)[rare].sum() / events)))
    unknown = min(1.0, max(0.0, float(weight[~known].sum())))
    below, above = unknown * level, unknown * (1.0 - level)
    beside = (np.where(known, weight / shows, 0.0)[labels] * of.shown).sum(axis=(1, 2))
    mean_apart = float(np.clip(beside @ of.apart, 0.0, of.apart.max()))
    reward = _interval(value, sqrt(float(variance)), reach, below, above)
    room = _room((1.0 + off) * (1.0 + mean_apart) - 1.0, reward)
    reward = _interval(value, sqrt(float(variance)), reach, below + room, above + room)
    return Value(reward, None, tuple(of.blocks.tolist()), unknown, pooled)


def _strata(count: Floats, noise: NoiseVariance) -> tuple[NDArray[np.int64], Bools]:
    """Which numbers are added up before their mean is taken, by their label; and the rare ones.

    A cell's own, or those of an action's rare cells.
    """
    rare = count < least(noise.on_counts)
    own = np.arange(count.size).reshape(count.shape)
    pool = count.size + np.broadcast_to(np.arange(count.shape[1]), count.shape)
    _, labels = np.unique(np.where(rare, pool, own), return_inverse=True)
    return labels.reshape(count.shape).astype(np.int64), rare


def tails(among: int, reach: float) -> float:
    """The variance of Laplace noise beside that of a normal law which is beyond `reach` as rarely.

    >>> round(tails(1, 1.96), 3)
    1.168
    """
    return float((log(among / MISSES) / (sqrt(2) * reach)) ** 2)


def _room(off: float, found: RewardInterval) -> float:
    """How far a mean may be from the truth whose events count by this factor too much, less 1."""
    return off * max(0.0, min(found.high, 1.0 - found.low))


def _interval(
    mean: float, deviation: float, reach: float, below: float = 0.0, above: float = 0.0
) -> RewardInterval:
    """A number with its interval, and room below and above it for what is not known."""
    off = reach * deviation
    return RewardInterval(mean, mean - off - below, mean + off + above)


def _clipped(of: RewardInterval, *, lowest: float = 0.0) -> RewardInterval:
    """The same, of a number that is within `lowest` and 1."""
    mean, low, high = (min(1.0, max(lowest, number)) for number in (of.mean, of.low, of.high))
    return RewardInterval(mean, low, high)
