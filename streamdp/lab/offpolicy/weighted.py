"""Logs with propensities: each block is weighted by the policy that follows from earlier blocks.

A learner is fed the log's own records, as a service on this topic would be, and releases as it
would there. The policy in force in a block weights that block's records. So the estimate is the
mean value of the policies *that learn from this log*. Live, a learner would have shown what its own
policies drew, and so learned more of the good actions and less of the others: a log of even draws
teaches better than that, one that hardly showed the best action teaches worse.

The mean policy over seeds is weighted: one number with one error, that of the log. `by_seed` has
each seed's own IPS estimate; these differ by the learner's own noise.

Estimates leave out records that name no known action, have no propensity, or one of 1 (then nothing
was drawn: the record says nothing of other actions, and this was known before the outcome).
Learners are fed them as live.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Columns, Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.evidence import InForce
from streamdp.core.evidence.policy import PARTS
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.schedule import Schedule
from streamdp.lab.common.answer import Answer, Shares, Trajectory
from streamdp.lab.common.bench import Bench, Rows
from streamdp.lab.common.estimates import MeanReward, PolicyValues
from streamdp.lab.logs.shown import ShownLog
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.offpolicy.cells import FeedbackCell, ends_of
from streamdp.lab.offpolicy.estimators import Moments, Sums, of_records, value_of
from streamdp.lab.play import KeyBits, KeyPart, charge_of, likely_best, of_first_row, play, totals

_MOST_CELLS = 1 << 25  # blocks × actions of all keys


@dataclass(frozen=True, slots=True)
class BlockGroups:
    """A log cut by one schedule: groups are blocks of keys, in order of key and block."""

    schedule: Schedule
    first: Ints  # R: the group of each key's block 0
    count: Ints  # R: the number of blocks, the open one included
    block: Ints  # G
    gains: Ints  # G × arms: exact sums of 1/2 − loss, in grid units
    shown: Ints  # G × arms
    moments: Moments  # with C cells: G·C × K, cell by cell
    guesses: Floats  # like `moments`: of each action's reward, from the key's earlier blocks
    cells: int = 1


def usable(log: ShownLog) -> NDArray[np.bool_]:
    """Which records take part in estimates."""
    good = (log.played >= 0) & (log.pscore > 0) & (log.pscore < 1)
    return np.asarray(good, dtype=np.bool_)


def cut(log: ShownLog, schedule: Schedule) -> BlockGroups:
    """The sums of a log that learners with this schedule need."""
    count = schedule.blocks_of(log.counts) + 1
    first, K, C = np.cumsum(count) - count, len(log.actions), log.cells
    total, arms = int(count.sum()), C * K
    if total * arms > _MOST_CELLS:
        raise InvalidConfig(
            "learners", "too many blocks", expected=f"≤ {_MOST_CELLS // arms}", got=total
        )
    block = np.arange(total) - np.repeat(first, count)
    gains, shown = np.zeros((total, arms), np.int64), np.zeros((total, arms), np.int64)
    moments = Moments.none((total * C, K))
    for chunk in log.chunks():
        groups, group = np.unique(
            first[chunk.row] + schedule.blocks_of(chunk.number), return_inverse=True
        )
        named, size = chunk.played >= 0, len(groups) * arms
        places = group[named] * arms + chunk.played[named]
        sums = np.bincount(places, chunk.gain[named], minlength=size)  # exact: far below 2**53
        gains[groups] += sums.reshape(-1, arms).astype(np.int64)
        shown[groups] += np.bincount(places, minlength=size).reshape(-1, arms)
        good = usable(chunk)
        moments.add(
            (groups[:, None] * C + np.arange(C)).ravel(),
            group[good] * C + chunk.cell[good],
            chunk.shown[good],
            chunk.reward[good],
            chunk.pscore[good],
        )
    guesses = _guesses(moments, block, cells=C)
    return BlockGroups(schedule, first, count, block, gains, shown, moments, guesses, C)


def _guesses(moments: Moments, block: Ints, *, cells: int) -> Floats:
    """Each action's mean reward in the key's earlier blocks, shrunk towards that of all actions.

    This is shrunk in turn towards the mean r̄ of the whole log. Either has the worth of 1/(r̄(1 − r̄))
    records: four where every second one is rewarded, 250 at click rates of .004. So one early click
    does not make an action seem good for the rest of the log. With contexts, an action's mean in a
    cell is shrunk towards that over all cells.
    """
    total = max(1.0, float(moments.shown.sum()))
    mean = float(moments.reward.sum()) / total
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
    log: ShownLog, cells: tuple[FeedbackCell, ...], bench: Bench, watch: Watch = unwatched
) -> list[Answer]:
    """Estimate each cell's value from the log."""
    rows = log.rows(bench)
    blocks: dict[tuple[Schedule, int], BlockGroups] = {}
    answers: list[Answer] = []
    tell = watch("weighing policies", len(cells))
    for cell in cells:
        tell(len(answers))
        seen = log.seen_by(cell.learner)
        by = cell.learner.schedule, seen.cells
        if by not in blocks:
            blocks[by] = cut(seen, cell.learner.schedule)
        answers.append(_weighed(cell, seen, blocks[by], rows, bench))
    return answers


def _weighed(
    cell: FeedbackCell, log: ShownLog, blocks: BlockGroups, rows: Rows, bench: Bench
) -> Answer:
    learner, seeds = cell.learner, len(bench.seeds)
    policies, by_seed = np.zeros(blocks.gains.shape), np.zeros(seeds)
    weighted = blocks.moments.weighted.reshape(policies.shape)
    released: list[Ints] = []  # by the longest key under the first seed
    parts = KeyPart.all(log.counts, seeds, words=4 * len(learner.actions))
    for number, part in enumerate(parts):
        bits, fill = KeyBits(rows, bench, part), LogBlocks.of(learner, blocks, log.counts, part)
        for step in play(learner, len(bits), fill, bits):
            came = part.keys[: len(step.rows) // len(part.seeds)]
            keys = came[blocks.count[came] > step.block]  # the others ended with their block
            group = blocks.first[keys] + step.block
            policy = (step.in_force / PARTS).reshape(len(part.seeds), len(came), -1)[:, : len(keys)]
            policies[group] += policy.sum(axis=0)
            by_seed[part.seeds.start : part.seeds.stop] += np.einsum(
                "srk,rk->s", policy, weighted[group]
            )
            if not number:
                released.append(of_first_row(step))
    policies /= seeds
    in_cells = policies.reshape(blocks.moments.shown.shape)
    sums = Sums.of(blocks.moments, in_cells, blocks.guesses)
    value = sums.value() if blocks.moments.records else None
    so_far = sums.by(np.repeat(blocks.block, blocks.cells)).so_far()
    mean = so_far.robust / np.maximum(so_far.records, 1)
    watched = int(log.counts.argmax())
    ends = ends_of(blocks.schedule, len(mean), longest=int(log.counts[watched]))
    first = blocks.first[watched]
    own = log.overall(watched, policies[first : first + blocks.count[watched]])
    return Answer(
        cell=cell,
        reward=None if value is None else value.reward,
        rewards=by_seed / max(1, blocks.moments.records),
        course=Trajectory(ends, mean, *so_far.weighted().interval()),
        shares=Shares(blocks.schedule.starts(np.arange(len(own))), own),
        arms=likely_best(learner, np.concatenate(released)),
        charge=charge_of(learner, log.counts),
        runs=seeds,
        value=value,
    )


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
        return cls(learner, blocks, part, blocks.schedule.blocks_of(counts[part.keys] + 1))

    def __call__(self, block: int, rows: Ints, in_force: InForce) -> tuple[Ints, Columns]:
        """All seeds of a key learn from the same records."""
        keys, ended = self.part.ending(rows, self.closed, block)
        group = self.blocks.first[keys] + block
        exact = totals(self.learner, self.blocks.gains[group], self.blocks.shown[group])
        seeds = len(self.part.seeds)
        return ended, {name: np.tile(column, (seeds, 1)) for name, column in exact.items()}


@dataclass(frozen=True, slots=True)
class Fixed:
    """The log's estimates for fixed actions, uniform choice, and its own policy."""

    logged: MeanReward  # the mean reward of the log's own draws
    uniform: PolicyValues
    always: tuple[PolicyValues, ...]  # each action alone


def fixed(log: ShownLog) -> Fixed:
    """The baselines of learners."""
    K, records, total, squares = len(log.actions), 0, 0.0, 0.0
    moments, alone = Moments.none((1, K)), np.zeros(1, dtype=np.int64)
    for chunk in log.chunks():
        good = usable(chunk)
        reward = chunk.reward[good]
        nothing = np.zeros(len(reward), dtype=np.int64)
        moments.add(alone, nothing, chunk.shown[good], reward, chunk.pscore[good])
        records += len(reward)
        total, squares = total + float(reward.sum()), squares + float((reward**2).sum())
    level = np.full((1, K), total / records)
    return Fixed(
        of_records(records, total, squares),
        value_of(moments, np.full((1, K), 1 / K), level),
        tuple(value_of(moments, one[None], level) for one in np.eye(K)),
    )
