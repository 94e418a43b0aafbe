"""Logs of the losses of all actions, played as feedback: exact.

Each learner draws its own actions from its own policies, slot by slot, and sees only the loss of
the drawn action. The log holds the losses of all actions, so nothing has to be estimated: only the
learner's own noise and draws vary, and seeds show how much.

Regret is Σ of the policy's mean loss in each block, less the loss of each key's best fixed action.
This is the expectation over a block's draws: it has the same mean as the regret of what was drawn,
and less variance. The log is read twice: once for its keys, once to play.

In a log with contexts a learner of cells plays the policy of each slot's cell. Learners without see
the same slots under the same draws; regret is against the same fixed actions for both, so that of a
learner of cells may be below 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.random import Generator  # noqa: TID251 - made-up requests: no secret

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import NULL, UNIT, quantise
from streamdp.core.segments import group
from streamdp.lab.logs.log import Log, Portion
from streamdp.lab.logs.shown import SlotCells, over_cells
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.offpolicy.answers import FeedbackAnswer, FeedbackCell, charge_of, ends_of
from streamdp.lab.offpolicy.estimators import MeanReward
from streamdp.lab.offpolicy.policies import Runs, coins_of, drawn
from streamdp.lab.replay.course import Shares, Trajectory
from streamdp.lab.replay.cuts import Bench, Rows

_AT_ONCE = 1 << 21  # slots × (seeds + actions)


@dataclass(frozen=True, eq=False)
class LogKeys:
    """The keys of a log, their numbers of slots, and the losses of all actions, by cell."""

    rows: Rows
    in_cells: Ints  # R × C: numbers of slots; without contexts there is one cell
    lost: Ints  # R × C × K, on the grid

    @cached_property
    def counts(self) -> Ints:
        """The slots of each key."""
        return np.asarray(self.in_cells.sum(axis=1))

    @cached_property
    def totals(self) -> Ints:
        """The losses of each key's actions, R × K."""
        return np.asarray(self.lost.sum(axis=1))

    @property
    def slots(self) -> int:
        """The slots of all keys."""
        return int(self.counts.sum())


@dataclass(frozen=True, slots=True)
class Slots:
    """Some slots, ordered by key and in their order within a key."""

    row: Ints
    number: Ints  # among those of the key, from 1
    losses: Ints  # n × K, on the grid
    cell: Ints
    place: Ints  # the index of each in the log's order


def play(
    log: Log,
    cells: tuple[FeedbackCell, ...],
    bench: Bench,
    watch: Watch = unwatched,
    within: SlotCells | None = None,
) -> tuple[LogKeys, list[FeedbackAnswer]]:
    """Each cell of the grid under each seed over a log of losses, maybe with contexts."""
    log_keys = _keys_of(log, bench, within)
    players = [_Player(cell, log_keys, bench) for cell in cells]
    generators = coins_of(bench)
    step = max(1, _AT_ONCE // (len(bench.seeds) + len(log.actions)))
    tell, done = watch("playing slots", log_keys.slots), 0
    for slots in slots_in_order(log, log_keys.rows, step=step, within=within) if players else ():
        tell(done)
        done += len(slots.row)
        coins = _coins(generators, slots.place)
        for player in players:
            player.take(slots, coins)
    return log_keys, [player.answer() for player in players]


def slots_in_order(
    log: Log, rows: Rows, *, step: int, within: SlotCells | None = None
) -> Iterator[Slots]:
    """All slots of a log in chunks; new keys are added to the rows."""
    taken, done = np.zeros(len(rows), dtype=np.int64), 0
    for portion in log.portions():
        more = len(rows) + len(portion.batch.keys) - len(taken)
        taken = np.append(taken, np.zeros(max(0, more), np.int64))
        for first in range(0, len(portion), step):
            slots = _slots(portion, slice(first, first + step), rows, taken)
            if within is not None:
                slots.cell[:] = within.of_slots[done + slots.place]
            done += len(slots.place)
            yield slots


def _keys_of(log: Log, bench: Bench, within: SlotCells | None) -> LogKeys:
    rows, K, C = Rows(bench), len(log.actions), 1 if within is None else within.contexts.cells
    counts, totals = np.zeros((0, C), np.int64), np.zeros((0, C, K), np.int64)
    for slots in slots_in_order(log, rows, step=max(1, _AT_ONCE // K), within=within):
        more = len(rows) - len(counts)
        counts = np.concatenate([counts, np.zeros((more, C), np.int64)])
        totals = np.concatenate([totals, np.zeros((more, C, K), np.int64)])
        starts = np.flatnonzero(np.diff(slots.row, prepend=-1))
        touched = slots.row[starts]
        which = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(slots.row)))
        index = which * C + slots.cell
        counts[touched] += np.bincount(index, minlength=len(touched) * C).reshape(-1, C)
        totals[touched] += _summed(slots.losses, index, len(touched) * C).reshape(-1, C, K)
    return LogKeys(rows, counts, totals)


def _summed(losses: Ints, index: Ints, size: int) -> Ints:
    """The losses of the slots of each index: size × K."""
    order = np.argsort(index, kind="stable")
    starts = np.flatnonzero(np.diff(index[order], prepend=-1))
    sums = np.zeros((size, losses.shape[1]), dtype=np.int64)
    sums[index[order[starts]]] = np.add.reduceat(losses[order], starts, axis=0)
    return sums


def _slots(portion: Portion, part: slice, rows: Rows, taken: Ints) -> Slots:
    """Some slots of a portion; `taken` is how many each key had before, and is updated."""
    batch = portion.batch
    index, offsets = batch.index[part], batch.offsets[part]
    grouped = group(index, len(batch.keys))
    ends = np.cumsum(grouped.counts)
    place = grouped.places(np.arange(len(index)))
    born = offsets[place[ends - grouped.counts]]
    keys = [batch.keys[at] for at in grouped.touched.tolist()]
    own_rows = rows.find([(portion.partition, key) for key in keys], born)
    row = np.repeat(own_rows, grouped.counts)
    number = np.arange(1, len(index) + 1) - np.repeat(ends - grouped.counts, grouped.counts)
    number += taken[row]
    taken[own_rows] += grouped.counts
    losses, _ = quantise(batch.content["losses"][part][place])
    order = np.argsort(row, kind="stable")
    cell = np.zeros(len(order), dtype=np.int64)
    return Slots(row[order], number[order], losses[order], cell, place[order])


def _coins(generators: list[Generator], place: Ints) -> Ints:
    """A coin of each slot under each seed, tossed in the log's order: S × n."""
    tossed = [generator.integers(0, PARTS, len(place)) for generator in generators]
    return np.stack([coins[place] for coins in tossed])


class _Player:
    """One cell: all seeds and keys at once, block by block."""

    def __init__(self, cell: FeedbackCell, log_keys: LogKeys, bench: Bench) -> None:
        self._cell, self._log_keys = cell, log_keys
        self._runs = Runs.of(cell.learner, log_keys.rows, bench, log_keys.counts)
        rows, seeds, K = len(log_keys.rows), len(bench.seeds), log_keys.totals.shape[1]
        arms = len(cell.learner.actions)
        self._cells = arms // K  # that the learner sees: all of the log's, or 1
        self._gains = np.zeros((rows, seeds, arms), dtype=np.int64)
        self._shown = np.zeros((rows, seeds, arms), dtype=np.int64)
        self._open = np.zeros((rows, arms), dtype=np.int64)  # losses of the open block, by cell
        self._lost = np.zeros((rows, K), dtype=np.int64)  # and of all before it
        self._schedule = cell.learner.schedule
        self._blocks = self._schedule.blocks_of(np.maximum(1, log_keys.counts)) + 1
        self._regret = np.zeros((int(self._blocks.max()), seeds))  # the regret of each block
        own = int(self._blocks[self._runs.watched])
        self._shares = np.zeros((own, arms))

    def take(self, slots: Slots, coins: Ints) -> None:
        """Play some slots: block after block of each key, all keys side by side."""
        block = self._schedule.blocks_of(slots.number)
        starts = np.flatnonzero(np.diff(slots.row, prepend=-1))
        first = np.repeat(block[starts], np.diff(starts, append=len(slots.row)))
        wave = block - first
        for number in range(int(wave.max()) + 1):
            at = np.flatnonzero(wave == number)
            self._take(slots, at, coins[:, at], block[at])

    def _take(self, slots: Slots, at: Ints, coins: Ints, block: Ints) -> None:
        """Slots of one block of each key."""
        starts = np.flatnonzero(np.diff(slots.row[at], prepend=-1))
        rows, blocks = slots.row[at][starts], block[starts]
        lengths = np.diff(starts, append=len(at))
        which = np.repeat(np.arange(len(rows)), lengths)
        policy, losses = self._runs.policy(rows, blocks), slots.losses[at]
        K, shape = losses.shape[1], (len(rows), self._open.shape[1])
        size = shape[0] * shape[1]
        tables = which * self._cells + (slots.cell[at] if self._cells > 1 else 0)
        self._open[rows] += _summed(losses, tables, size // K).reshape(shape)
        for seed, own in enumerate(coins):
            actions = drawn(policy[:, seed].reshape(-1, K), tables, own)
            gain = NULL - losses[np.arange(len(at)), actions]
            arms = tables * K + actions
            sums = np.bincount(arms, gain, minlength=size)  # exact: far below 2**53
            self._gains[rows, seed] += sums.reshape(shape).astype(np.int64)
            self._shown[rows, seed] += np.bincount(arms, minlength=size).reshape(shape)
        last = slots.number[at][starts + lengths - 1]
        ended = last == self._schedule.stops(blocks) - 1
        over = ended | (last == self._log_keys.counts[rows])
        self._enter(rows[over], blocks[over], policy[over] / PARTS)
        if ended.any():
            rows, blocks = rows[ended], blocks[ended]
            self._runs.close(rows, blocks, self._gains[rows], self._shown[rows])
            self._gains[rows] = 0
            self._shown[rows] = 0

    def _enter(self, rows: Ints, blocks: Ints, policy: Floats) -> None:
        """Add the regret of blocks that have ended."""
        before = self._lost[rows].min(axis=1)
        played = np.einsum("rsk,rk->rs", policy, self._open[rows].astype(np.float64))
        self._lost[rows] += (
            self._open[rows].reshape(-1, self._cells, self._lost.shape[1]).sum(axis=1)
        )
        self._open[rows] = 0
        best = self._lost[rows].min(axis=1) - before
        np.add.at(self._regret, blocks, (played - best[:, None]) / UNIT)
        mine = np.flatnonzero(rows == self._runs.watched)
        if len(mine):
            self._shares[blocks[mine[0]]] = policy[mine[0]].mean(axis=0)

    def answer(self) -> FeedbackAnswer:
        """The result."""
        log_keys, so_far = self._log_keys, np.cumsum(self._regret, axis=0)
        ends = ends_of(self._schedule, len(so_far), longest=int(log_keys.counts.max()))
        regret = so_far[-1]
        best = float(log_keys.totals.min(axis=1).sum()) / UNIT
        rewards = 1 - (regret + best) / log_keys.slots
        shares = self._shares
        if self._cells > 1:
            shares = over_cells(shares, log_keys.in_cells[self._runs.watched])
        return FeedbackAnswer(
            cell=self._cell,
            estimate=MeanReward.over_seeds(rewards),
            by_seed=rewards,
            course=Trajectory.of_runs(ends, so_far.T),
            shares=Shares(self._schedule.starts(np.arange(len(shares))), shares),
            arms=self._runs.arms(),
            charge=charge_of(self._cell.learner, log_keys.counts),
            regret=regret,
        )
