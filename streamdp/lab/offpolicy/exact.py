"""Logs of the losses of all actions, played as feedback: exact.

Each learner draws its own actions from its own policies, slot by slot, and sees only the loss of
the drawn action. The log holds the losses of all actions, so nothing has to be estimated: only the
learner's own noise and draws vary, and seeds show how much.

Regret is Σ of the policy's mean loss in each block, less the loss of each key's best fixed action.
This is the expectation over a block's draws: it has the same mean as the regret of what was drawn,
and less variance. The log is read twice: once for its keys, once to play.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator  # noqa: TID251 - made-up requests: no secret

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import NULL, UNIT, quantise
from streamdp.core.segments import group
from streamdp.lab.offpolicy.answers import FeedbackAnswer, FeedbackCell, charge_of, ends_of
from streamdp.lab.offpolicy.estimators import MeanReward
from streamdp.lab.offpolicy.policies import Runs, coins_of, drawn
from streamdp.lab.replay.course import Shares, Trajectory
from streamdp.lab.replay.cuts import Bench, Rows
from streamdp.lab.replay.log import Log, Portion
from streamdp.lab.replay.stages import Watch, unwatched

_AT_ONCE = 1 << 21  # slots × (seeds + actions)


@dataclass(frozen=True, slots=True)
class LogKeys:
    """The keys of a log, their numbers of slots, and the losses of all actions."""

    rows: Rows
    counts: Ints  # R
    totals: Ints  # R × K, on the grid

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
    place: Ints  # the index of each in the log's order


def play(
    log: Log, cells: tuple[FeedbackCell, ...], bench: Bench, watch: Watch = unwatched
) -> tuple[LogKeys, list[FeedbackAnswer]]:
    """Each cell under each seed over a log of losses."""
    log_keys = _keys_of(log, bench)
    players = [_Player(cell, log_keys, bench) for cell in cells]
    generators = coins_of(bench)
    step = max(1, _AT_ONCE // (len(bench.seeds) + len(log.actions)))
    tell, done = watch("playing slots", log_keys.slots), 0
    for slots in slots_in_order(log, log_keys.rows, step=step) if players else ():
        tell(done)
        done += len(slots.row)
        coins = _coins(generators, slots.place)
        for player in players:
            player.take(slots, coins)
    return log_keys, [player.answer() for player in players]


def slots_in_order(log: Log, rows: Rows, *, step: int) -> Iterator[Slots]:
    """All slots of a log whose keys are known, in chunks."""
    taken = np.zeros(len(rows), dtype=np.int64)
    for portion in log.portions():
        for first in range(0, len(portion), step):
            yield _slots(portion, slice(first, first + step), rows, taken)


def _keys_of(log: Log, bench: Bench) -> LogKeys:
    rows = Rows(bench)
    counts, totals = np.zeros(0, np.int64), np.zeros((0, len(log.actions)), np.int64)
    step = max(1, _AT_ONCE // len(log.actions))
    for portion in log.portions():
        for first in range(0, len(portion), step):
            taken = np.zeros(len(rows) + len(portion.batch.keys), dtype=np.int64)
            slots = _slots(portion, slice(first, first + step), rows, taken)
            more = len(rows) - len(counts)
            counts = np.append(counts, np.zeros(more, np.int64))
            totals = np.concatenate([totals, np.zeros((more, totals.shape[1]), np.int64)])
            starts = np.flatnonzero(np.diff(slots.row, prepend=-1))
            touched = slots.row[starts]
            counts[touched] += np.diff(starts, append=len(slots.row))
            totals[touched] += np.add.reduceat(slots.losses, starts, axis=0)
    return LogKeys(rows, counts, totals)


def _slots(portion: Portion, part: slice, rows: Rows, taken: Ints) -> Slots:
    """Some slots of a portion; `taken` is how many each key had before, and is updated."""
    batch = portion.batch
    index, offsets = batch.index[part], batch.offsets[part]
    grouped = group(index, len(batch.keys))
    ends = np.cumsum(grouped.counts)
    place = grouped.places(np.arange(len(index)))
    born = offsets[place[ends - grouped.counts]]
    keys = [batch.keys[at] for at in grouped.touched.tolist()]
    own_rows = rows.find(portion.partition, keys, born)
    row = np.repeat(own_rows, grouped.counts)
    number = np.arange(1, len(index) + 1) - np.repeat(ends - grouped.counts, grouped.counts)
    number += taken[row]
    taken[own_rows] += grouped.counts
    losses, _ = quantise(batch.content["losses"][part][place])
    order = np.argsort(row, kind="stable")
    return Slots(row[order], number[order], losses[order], place[order])


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
        self._gains = np.zeros((rows, seeds, K), dtype=np.int64)
        self._shown = np.zeros((rows, seeds, K), dtype=np.int64)
        self._open = np.zeros((rows, K), dtype=np.int64)  # losses of the open block
        self._lost = np.zeros((rows, K), dtype=np.int64)  # and of all before it
        self._schedule = cell.learner.schedule
        self._blocks = self._schedule.blocks_of(np.maximum(1, log_keys.counts)) + 1
        self._regret = np.zeros((int(self._blocks.max()), seeds))  # the regret of each block
        own = int(self._blocks[self._runs.watched])
        self._shares = np.zeros((own, K))

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
        self._open[rows] += np.add.reduceat(losses, starts, axis=0)
        shape = (len(rows), losses.shape[1])
        for seed, own in enumerate(coins):
            arms = drawn(policy[:, seed], which, own)
            gain = NULL - losses[np.arange(len(at)), arms]
            cells = which * shape[1] + arms
            size = shape[0] * shape[1]
            sums = np.bincount(cells, gain, minlength=size)  # exact: far below 2**53
            self._gains[rows, seed] += sums.reshape(shape).astype(np.int64)
            self._shown[rows, seed] += np.bincount(cells, minlength=size).reshape(shape)
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
        self._lost[rows] += self._open[rows]
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
        return FeedbackAnswer(
            cell=self._cell,
            estimate=MeanReward.over_seeds(rewards),
            by_seed=rewards,
            course=Trajectory.of_runs(ends, so_far.T),
            shares=Shares(self._schedule.starts(np.arange(len(self._shares))), self._shares),
            arms=self._runs.arms(),
            charge=charge_of(self._cell.learner, log_keys.counts),
            regret=regret,
        )
