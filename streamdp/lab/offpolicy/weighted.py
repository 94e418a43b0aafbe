"""Logs with propensities: each block is weighted by the policy that follows from earlier blocks.

A learner is fed the log's own records, as a service on this topic would be, and releases as it
would there. The policy in force in a block weights that block's records. So the estimate is the
mean value of the policies *that learn from this log*. Live, a learner would have shown what its own
policies drew, and so learned more of the good actions and less of the others: a log of even draws
teaches better than that, one that hardly showed the best action teaches worse.

The mean policy over seeds is weighted: one number with one error, that of the log. `by_seed` has
each seed's own IPS estimate; these differ by the learner's own noise.

A request to which not all actions were allowed would have been shown another policy's action among
those: the parts of the others are scaled up, as readers do (`client.filtering`).

Estimates leave out records that name no known action, have no propensity, or one of 1 (then nothing
was drawn: the record says nothing of other actions, and this was known before the outcome).
Learners are fed them as live.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Columns, Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import NO_ARM
from streamdp.core.evidence.evidence import InForce
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import UNIT
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.schedule import Schedule
from streamdp.lab.common.answer import Answer, Shares, Trajectory
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.estimates import MeanReward, PolicyValues
from streamdp.lab.common.mapped import Gathered, begins_of, longest_first
from streamdp.lab.logs.shown import CHUNK, KeyRecords, ShownLog, over_cells
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.offpolicy.cells import FeedbackCell, ends_of
from streamdp.lab.offpolicy.estimators import Moments, Sums, of_records, value_of
from streamdp.lab.offpolicy.shares import Share, play_shares
from streamdp.lab.play import (
    KeyPart,
    charge_of,
    likely_best,
    of_first_row,
    play,
    side_by_side,
    totals,
)
from streamdp.lab.workers import IN_PROCESS, Workers

_MOST_CELLS = 1 << 25  # blocks × actions of all keys
_KEYS = 1 << 14  # whose sums are added up at once


@dataclass(frozen=True, slots=True)
class BlockGroups:
    """Keys cut by one schedule: groups are blocks of keys, in order of key and block."""

    first: Ints  # R: the group of each key's block 0
    count: Ints  # R: the number of blocks, the open one included
    block: Ints  # G
    gains: Ints  # G × arms: exact sums of 1/2 − loss, in grid units
    shown: Ints  # G × arms
    moments: Moments  # with M masks and C cells: G·M·C × K, cell by cell
    guesses: Floats  # like `moments`: of each action's reward, from the key's earlier blocks


def usable(log: ShownLog) -> NDArray[np.bool_]:
    """Which records take part in estimates."""
    good = (log.played >= 0) & (log.pscore > 0) & (log.pscore < 1)
    return np.asarray(good, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class LogMean:
    """The records of a log that take part in estimates, and their rewards: exact sums."""

    records: int
    won: float

    @classmethod
    def of(cls, log: ShownLog) -> LogMean:
        """Look at all records once."""
        records, won = 0, 0.0
        for chunk in log.chunks():
            reward = chunk.reward[usable(chunk)]
            records, won = records + len(reward), won + float(reward.sum())
        return cls(records, won)


def cut(
    records: KeyRecords,
    counts: Ints,
    schedule: Schedule,
    mean: LogMean,
    *,
    actions: int,
    arms_of_log: int,
    masks: int,
    cells: int = 1,
    begin: int = 0,
) -> BlockGroups:
    """The sums of some keys that learners with this schedule need.

    `counts` are the records of each key, from `begin` on. Records that lie in one chunk of the log
    are added up first, so what is not exact does not depend on which keys are cut together.
    """
    count = schedule.blocks_of(counts) + 1
    first, arms, ends = np.cumsum(count) - count, cells * actions, np.cumsum(counts)
    total, low, end = int(count.sum()), 0, int(ends[-1])
    block = np.arange(total) - np.repeat(first, count)
    gains, shown = np.zeros((total, arms), np.int64), np.zeros((total, arms), np.int64)
    moments = Moments.none((total * masks * cells, actions))
    while low < end:
        part = records.of(begin + low, begin + min(low + 2 * CHUNK, end))
        at = np.arange(low, low + len(part.place))
        key = np.searchsorted(ends, at, side="right")
        group = first[key] + schedule.blocks_of(at - (ends - counts)[key] + 1)
        chunk, stop = part.place // CHUNK, len(at)
        if low + stop < end:  # a group may go on: up to where another chunk or group begins
            stop = 1 + int(np.flatnonzero((np.diff(group) != 0) | (np.diff(chunk) != 0))[-1])
        group, chunk, part = group[:stop], chunk[:stop], part.of(0, stop)
        low, base = low + stop, int(group[0])
        mask, played = np.divmod(part.played.astype(np.int64), arms_of_log)  # no arm: mask -1
        played = np.where(mask < 0, NO_ARM, played % arms)
        named, size = played >= 0, (int(group[-1]) + 1 - base) * arms
        places, these = (group[named] - base) * arms + played[named], slice(base, group[-1] + 1)
        sums = np.bincount(places, part.gain[named], minlength=size)  # exact: far below 2**53
        gains[these] += sums.reshape(-1, arms).astype(np.int64)
        shown[these] += np.bincount(places, minlength=size).reshape(-1, arms)
        good = named & (part.pscore > 0) & (part.pscore < 1)
        reward = part.gain[good] / UNIT + 0.5
        moments.add_in_chunks((group[good] * masks + mask[good]) * arms + played[good],
                              chunk[good], reward, part.pscore[good])  # fmt: skip
    guesses = _guesses(moments, block, mean, cells=masks * cells)
    return BlockGroups(first, count, block, gains, shown, moments, guesses)


def _guesses(moments: Moments, block: Ints, of_log: LogMean, *, cells: int) -> Floats:
    """Each action's mean reward in the key's earlier blocks, shrunk towards that of all actions.

    This is shrunk in turn towards the mean r̄ of the whole log. Either has the worth of 1/(r̄(1 − r̄))
    records: four where every second one is rewarded, 250 at click rates of .004. So one early click
    does not make an action seem good for the rest of the log. With contexts, an action's mean in a
    cell is shrunk towards that over all cells.
    """
    total = max(1.0, float(of_log.records))
    mean = of_log.won / total
    worth = 1 / max(mean * (1 - mean), 1 / total)
    apart = (len(block), cells, -1)
    of_cells = [
        _before(values.reshape(len(block), -1), block).reshape(apart)
        for values in (moments.shown, moments.reward)
    ]
    shown, reward = (values.sum(axis=1) for values in of_cells)
    records = shown.sum(axis=1, keepdims=True)
    level = (reward.sum(axis=1, keepdims=True) + worth * mean) / (records + worth)
    guesses: Floats = np.asarray((reward + worth * level) / (shown + worth))
    if cells == 1:
        return guesses
    shown, reward = of_cells
    own: Floats = (reward + worth * guesses[:, None]) / (shown + worth)
    return own.reshape(moments.shown.shape)


def _before(values: Floats, block: Ints) -> Floats:
    """The sums over a key's earlier blocks; groups of a key are neighbours."""
    total = np.cumsum(values, axis=0) - values
    begins = np.flatnonzero(block == 0)
    of = np.cumsum(block == 0) - 1
    earlier: Floats = total - total[begins][of]
    return earlier


def weigh(
    log: ShownLog,
    cells: Sequence[FeedbackCell],
    bench: Bench,
    watch: Watch = unwatched,
    workers: Workers = IN_PROCESS,
) -> list[Answer]:
    """Estimate each cell's value from the log."""
    tell, answers = watch("weighing policies", len(cells)), dict[int, Answer]()
    alike: dict[object, list[int]] = {}  # that see the same blocks
    for at, cell in enumerate(cells):
        learner = cell.learner
        _check_blocks(log, learner)
        by = learner.schedule, len(learner.actions)
        alike.setdefault(by, []).append(at)
    groups, mean = [[cells[at] for at in which] for which in alike.values()], LogMean.of(log)
    of_log = log.allowed, log.cells * len(log.actions)
    work = partial(_weighed, records=log.by_key, mean=mean, of_log=of_log, bench=bench)
    tags, masks = partial(log.tags, bench), len(log.allowed)
    found = play_shares(groups, log.counts, bench, tags, work, workers, masks=masks)
    for which, group, shares in zip(alike.values(), groups, found, strict=True):
        tell(len(answers))
        answers |= zip(which, _answers(group, shares, log, mean, bench), strict=True)
    return [answers[at] for at in range(len(cells))]


def _check_blocks(log: ShownLog, learner: PolicyLearner) -> None:
    """Refuse a learner whose blocks are too many."""
    total = int((learner.schedule.blocks_of(log.counts) + 1).sum())
    if total * (numbers := len(learner.actions) * len(log.allowed)) > _MOST_CELLS:
        expected = f"≤ {_MOST_CELLS // numbers}"
        raise InvalidConfig("learners", "too many blocks", expected=expected, got=total)


@dataclass(frozen=True, slots=True, repr=False)
class WeighedKeys:
    """What the policies of one learner are worth on some keys."""

    sums: Sums  # of their blocks, cell by cell
    by_seed: Floats  # steps × seeds: Σ w·r
    first: Floats  # the mean policies of the first key, block by block
    released: Ints  # what that released under the first seed


def _weighed(
    share: Share, *, records: KeyRecords, mean: LogMean, of_log: tuple[Bools, int], bench: Bench
) -> list[WeighedKeys]:
    """Weigh the policies of learners that see the same blocks; `of_log`: its masks, its arms."""
    learner, seeds, (masks, arms_of_log) = share.learner, len(bench.seeds), of_log
    actions = masks.shape[1]
    blocks = cut(
        records,
        share.counts,
        learner.schedule,
        mean,
        actions=actions,
        arms_of_log=arms_of_log,
        masks=len(masks),
        cells=len(learner.actions) // actions,
        begin=share.begin,
    )
    weighted = blocks.moments.weighted.reshape(len(blocks.gains), -1)
    policies = [np.zeros(weighted.shape) for _ in share.cells]
    by_seed: list[list[Floats]] = [[] for _ in share.cells]
    released: list[list[Ints]] = [[] for _ in share.cells]
    for part, bits in share.parts(bench):
        once = KeyPart(part.keys, part.seeds[:1])  # of what draws no noise all seeds are alike
        fills = [
            LogBlocks.of(
                cell.learner, blocks, share.counts, once if cell.learner.charge is None else part
            )
            for cell in share.cells
        ]
        playing = (play(fill.learner, len(fill.part), fill, bits) for fill in fills)
        for at, step in side_by_side(playing):
            apart = len(fills[at].part.seeds)
            came = part.keys[: len(step.rows) // apart]
            keys = came[blocks.count[came] > step.block]  # the others ended with their block
            group = blocks.first[keys] + step.block
            policy = (step.in_force / PARTS).reshape(apart, len(came), -1)[:, : len(keys)]
            policy = np.repeat(under_masks(policy, masks), len(part.seeds) // apart, axis=0)
            policies[at][group] += policy.sum(axis=0)
            won = np.zeros(seeds)
            won[part.seeds.start : part.seeds.stop] = np.einsum(
                "srk,rk->s", policy, weighted[group]
            )
            by_seed[at].append(won)
            if not part.seeds.start:
                released[at].append(of_first_row(step))
    found = []
    for at, policy in enumerate(policies):
        policy /= seeds
        in_cells = policy.reshape(blocks.moments.shown.shape)
        found.append(
            WeighedKeys(
                Sums.of(blocks.moments, in_cells, blocks.guesses),
                np.array(by_seed[at]),
                policy[: blocks.count[0], : len(learner.actions)],
                np.concatenate(released[at]),
            )
        )
    return found


def _answers(
    cells: Sequence[FeedbackCell],
    shares: Iterator[list[WeighedKeys]],
    log: ShownLog,
    mean: LogMean,
    bench: Bench,
) -> Iterator[Answer]:
    """Add up what the shares say of learners that see the same blocks."""
    schedule, arms = cells[0].learner.schedule, len(cells[0].learner.actions)
    of_groups, by_seed = [Gathered() for _ in cells], np.zeros((len(cells), len(bench.seeds)))
    longest: list[WeighedKeys] = []
    for share in shares:
        longest = longest or share
        for gathered, own, keys in zip(of_groups, by_seed, share, strict=True):
            gathered.add(keys.sums.columns)
            for won in keys.by_seed:  # one after the other: sums of floats depend on their order
                own += won
    order, counts = longest_first(log.counts), schedule.blocks_of(log.counts) + 1
    begins, many = begins_of(order, counts), arms // len(log.actions) * len(log.allowed)
    ends = ends_of(schedule, int(counts.max()), longest=int(log.counts.max()))
    for cell, gathered, won, keys in zip(cells, of_groups, by_seed, longest, strict=True):
        columns = gathered.columns()
        whole, by_block = Sums.none(1), Sums.none(int(counts.max()))
        for groups, block in _in_order(begins, counts, many):
            whole.add(columns, groups, np.zeros_like(block))
            by_block.add(columns, groups, block)
        value, so_far = whole.value() if mean.records else None, by_block.so_far()
        robust = so_far.robust / np.maximum(so_far.records, 1)
        seen = arms > len(log.actions)  # contexts
        own = over_cells(keys.first, log.in_cells) if seen else keys.first
        yield Answer(
            cell=cell,
            reward=None if value is None else value.reward,
            rewards=won / max(1, mean.records),
            course=Trajectory(ends, robust, *so_far.weighted().interval()),
            shares=Shares(schedule.starts(np.arange(len(own))), own),
            arms=likely_best(cell.learner, keys.released),
            charge=charge_of(cell.learner, log.counts),
            runs=len(bench.seeds),
            value=value,
        )


def _in_order(begins: Ints, counts: Ints, many: int) -> Iterator[tuple[Ints, Ints]]:
    """The places of the groups of some keys in the log's order, `many` for each block, and its
    number.
    """
    for first in range(0, len(counts), _KEYS):
        some = counts[first : first + _KEYS]
        block = np.arange(some.sum()) - np.repeat(np.cumsum(some) - some, some)
        at = np.repeat(begins[first : first + _KEYS], some) + block
        yield (at[:, None] * many + np.arange(many)).ravel(), np.repeat(block, many)


@dataclass(frozen=True, slots=True)
class LogBlocks:
    """Fills a learner's columns with what a log showed, block by block."""

    learner: PolicyLearner
    blocks: BlockGroups
    part: KeyPart
    closed: Ints  # how many blocks each key ends: the longest first

    @classmethod
    def of(
        cls, learner: PolicyLearner, blocks: BlockGroups, counts: Ints, part: KeyPart
    ) -> LogBlocks:
        """Those of keys with these numbers of slots."""
        return cls(learner, blocks, part, learner.schedule.blocks_of(counts[part.keys] + 1))

    def __call__(self, block: int, rows: Ints, in_force: InForce) -> tuple[Ints, Columns]:
        """All seeds of a key learn from the same records."""
        keys, ended = self.part.ending(rows, self.closed, block)
        group = self.blocks.first[keys] + block
        exact = totals(self.learner, self.blocks.gains[group], self.blocks.shown[group])
        seeds = len(self.part.seeds)
        return ended, {name: np.tile(column, (seeds, 1)) for name, column in exact.items()}


def under_masks(policies: Floats, masks: Bools) -> Floats:
    """What readers show by policies (… × arms) under each mask: … × (masks · arms).

    >>> under_masks(np.array([0.5, 0.25, 0.25]), np.array([[True] * 3, [False, True, True]]))
    array([0.5 , 0.25, 0.25, 0.  , 0.5 , 0.5 ])
    """
    if len(masks) == 1:
        return policies
    left = policies.reshape(*policies.shape[:-1], 1, -1, masks.shape[1]) * masks[:, None]
    whole, even = left.sum(axis=-1, keepdims=True), masks / masks.sum(axis=1, keepdims=True)
    shown = np.where(whole > 0, left / np.where(whole > 0, whole, 1.0), even[:, None])
    return np.asarray(shown.reshape(*policies.shape[:-1], -1))


@dataclass(frozen=True, slots=True)
class Fixed:
    """The log's estimates for fixed actions, uniform choice, and its own policy."""

    logged: MeanReward  # the mean reward of the log's own draws
    uniform: PolicyValues
    always: tuple[PolicyValues, ...]  # each action alone


def fixed(log: ShownLog) -> Fixed:
    """The baselines of learners."""
    K, records, total, squares = len(log.actions), 0, 0.0, 0.0
    masks, shape = log.allowed, (len(log.allowed), len(log.actions))
    moments, every = Moments.none(shape), np.arange(len(masks))
    for chunk in log.chunks():
        good = usable(chunk)
        reward = chunk.reward[good]
        moments.add(every, chunk.mask[good], chunk.shown[good], reward, chunk.pscore[good])
        records += len(reward)
        total, squares = total + float(reward.sum()), squares + float((reward**2).sum())
    level = np.full(shape, total / records)

    def value(policy: Floats) -> PolicyValues:
        return value_of(moments, under_masks(policy, masks).reshape(shape), level)

    return Fixed(
        of_records(records, total, squares),
        value(np.full(K, 1 / K)),
        tuple(map(value, np.eye(K))),
    )
