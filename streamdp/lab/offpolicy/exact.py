"""Logs of the losses of all actions, played as feedback: exact.

Each learner draws its own actions from its own policies, slot by slot, and sees only the loss of
the drawn action. The log holds the losses of all actions, so nothing has to be estimated: only the
learner's own noise and draws vary, and seeds show how much.

Regret is Σ of the policy's mean loss in each block, less the loss of each key's best fixed action.
This is the expectation over a block's draws: it has the same mean as the regret of what was drawn,
and less variance. The log is read twice: once for its keys, once to lay its slots and their coins
out key by key, in memory or in a temporary file without a name.

In a log with contexts a learner of cells plays the policy of each slot's cell. Learners without see
the same slots under the same draws; regret is against the same fixed actions for both, so that of a
learner of cells may be below 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Columns, Floats, Ints
from streamdp.core.evidence.evidence import InForce
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import NULL, UNIT, quantise
from streamdp.core.segments import group
from streamdp.lab.common.answer import Answer, Shares, Trajectory
from streamdp.lab.common.bench import Bench, Rows
from streamdp.lab.common.mapped import Arrays, by_key, let_go
from streamdp.lab.logs.log import Log, Portion
from streamdp.lab.logs.shown import SlotCells, over_cells
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.offpolicy.cells import FeedbackCell, ends_of
from streamdp.lab.offpolicy.estimators import over_seeds
from streamdp.lab.offpolicy.shares import Share, Tags, play_shares
from streamdp.lab.play import (
    KeyPart,
    charge_of,
    coins_of,
    drawn,
    likely_best,
    of_first_row,
    play,
    totals,
)
from streamdp.lab.workers import IN_PROCESS, Workers

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


@dataclass(frozen=True, slots=True, eq=False)
class KeySlots:
    """All slots of a log, key by key, the longest key first."""

    losses: NDArray[np.int32]  # n × K, on the grid
    cell: NDArray[np.int32]
    coins: NDArray[np.uint32]  # n × seeds: tossed in the log's order

    @classmethod
    def of(
        cls, log: Log, keys: LogKeys, bench: Bench, watch: Watch, within: SlotCells | None
    ) -> KeySlots:
        """Read a log whose keys are known."""
        K, generators, n = len(log.actions), coins_of(bench), keys.slots
        tell, step = watch("laying slots out by key", n), max(1, _AT_ONCE // (len(generators) + K))

        def chunks() -> Iterator[tuple[Ints, Arrays]]:
            done = 0
            for slots in slots_in_order(log, keys.rows, step=step, within=within):
                coins = [of.integers(0, PARTS, len(slots.row))[slots.place] for of in generators]
                yield slots.row, (slots.losses, slots.cell, np.stack(coins, axis=1))
                done += len(slots.row)
                tell(done)

        like = [(np.int32, K), (np.int32, 0), (np.uint32, len(generators))]
        return cls(*by_key(keys.counts, chunks(), like))


@dataclass(frozen=True, slots=True)
class Slots:
    """Some slots, ordered by key and in their order within a key."""

    row: Ints
    number: Ints  # among those of the key, from 1
    losses: Ints  # n × K, on the grid
    cell: Ints
    place: Ints  # the index of each in the log's order


def play_losses(
    log: Log,
    cells: Sequence[FeedbackCell],
    bench: Bench,
    watch: Watch = unwatched,
    within: SlotCells | None = None,
    workers: Workers = IN_PROCESS,
) -> tuple[LogKeys, KeySlots, list[Answer]]:
    """Each cell of the grid under each seed over a log of losses, maybe with contexts."""
    keys = _keys_of(log, bench, within)
    slots = KeySlots.of(log, keys, bench, watch, within)
    tell, answers = watch("playing slots, learners", len(cells)), list[Answer]()
    groups, work = [[cell] for cell in cells], partial(_played, slots=slots, bench=bench)

    def tags(of: Ints) -> Tags:
        return partial(np.asarray, keys.rows.tags(of))

    found = play_shares(groups, keys.counts, bench, tags, work, workers)
    for cell, shares in zip(cells, found, strict=True):
        tell(len(answers))
        answers.append(_answer(cell, shares, keys, bench))
    return keys, slots, answers


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


@dataclass(frozen=True, slots=True, repr=False)
class PlayedKeys:
    """How one learner did on some keys."""

    regret: Floats  # blocks × seeds
    first: Floats  # the mean policies of the first key, block by block
    released: Ints  # what that released under the first seed


def _played(share: Share, *, slots: KeySlots, bench: Bench) -> PlayedKeys:
    """Play a learner on the losses of all actions."""
    learner, seeds, K = share.learner, len(bench.seeds), slots.losses.shape[1]
    blocks = learner.schedule.block_of(int(share.counts[0])) + 1
    regret = np.zeros((blocks, seeds))
    first = np.zeros((blocks, len(learner.actions)))
    released: list[Ints] = []
    for part, bits in share.parts(bench):
        fill, lost = OwnDraws.of(share, slots, part), np.zeros((len(part.keys), K))
        for step in play(learner, len(bits), fill, bits):
            if step.block == blocks:
                break
            came = len(step.rows) // len(part.seeds)
            policy = (step.in_force / PARTS).reshape(len(part.seeds), came, -1)
            before = lost[:came].min(axis=1)
            lost[:came] += fill.losses.sum(axis=1)
            won = np.einsum("sra,ra->s", policy, fill.losses.reshape(came, -1))
            best = float((lost[:came].min(axis=1) - before).sum())
            regret[step.block, part.seeds.start : part.seeds.stop] += (won - best) / UNIT
            first[step.block] += policy[:, 0].sum(axis=0) / seeds
            if not part.seeds.start:
                released.append(of_first_row(step))
    return PlayedKeys(regret, first, np.concatenate(released))


def _answer(
    cell: FeedbackCell, shares: Iterator[PlayedKeys], keys: LogKeys, bench: Bench
) -> Answer:
    longest = next(shares)
    learner, schedule, blocks = cell.learner, cell.learner.schedule, len(longest.first)
    regret, mean = longest.regret, longest.first
    for share in shares:
        regret[: len(share.regret)] += share.regret
    so_far = np.cumsum(regret, axis=0)
    best = float(keys.totals.min(axis=1).sum()) / UNIT
    rewards = 1 - (so_far[-1] + best) / keys.slots
    if len(learner.actions) > keys.totals.shape[1]:
        mean = over_cells(mean, keys.in_cells[keys.counts.argmax()])
    return Answer(
        cell=cell,
        reward=over_seeds(rewards),
        rewards=rewards,
        course=Trajectory.of_runs(
            ends_of(schedule, blocks, longest=int(keys.counts.max())), so_far.T
        ),
        shares=Shares(schedule.starts(np.arange(blocks)), mean),
        arms=likely_best(learner, longest.released),
        charge=charge_of(learner, keys.counts),
        runs=len(bench.seeds),
        regret=so_far[-1],
    )


@dataclass(slots=True)
class OwnDraws:
    """Fills a learner's columns with what it draws itself, where all losses are known."""

    share: Share
    slots: KeySlots
    part: KeyPart
    cells: int  # that the learner sees: all of the log's, or 1
    losses: Ints  # of the newest block: keys × cells × K, all of its slots

    @classmethod
    def of(cls, share: Share, slots: KeySlots, part: KeyPart) -> OwnDraws:
        """The draws of some keys under some seeds."""
        K = slots.losses.shape[1]
        nothing = np.zeros((0, len(share.learner.actions) // K, K), np.int64)
        return cls(share, slots, part, nothing.shape[1], nothing)

    def __call__(self, block: int, rows: Ints, in_force: InForce) -> tuple[Ints, Columns]:
        """All seeds of a key end a block together."""
        learner, seeds, K = self.share.learner, self.part.seeds, self.slots.losses.shape[1]
        begin, stop = learner.schedule.start(block) - 1, learner.schedule.stop(block) - 1
        keys, counts = self.part.keys[: len(rows) // len(seeds)], self.share.counts
        lengths = np.minimum(counts[keys], stop) - begin
        starts = self.share.begin + np.cumsum(counts) - counts
        first, ends = starts[keys] + begin, np.cumsum(lengths)
        policies = in_force.reshape(len(seeds), -1, K)
        size, shape = policies.shape[1] * K, (len(seeds), len(keys), self.cells * K)
        gains, shown = np.zeros((len(seeds), size)), np.zeros((len(seeds), size), np.int64)
        self.losses = np.zeros((len(keys), self.cells, K), np.int64)
        for low in range(0, int(ends[-1]), step := max(1, _AT_ONCE // K)):
            number = np.arange(low, min(low + step, int(ends[-1])))
            which = np.searchsorted(ends, number, side="right")
            places = first[which] + number - (ends - lengths)[which]
            losses = self.slots.losses[places].astype(np.int64)
            tables = which * self.cells + (self.slots.cell[places] if self.cells > 1 else 0)
            self.losses += _summed(losses, tables, len(keys) * self.cells).reshape(
                -1, self.cells, K
            )
            for at, seed in enumerate(seeds):
                coins = self.slots.coins[places, seed].astype(np.int64)
                actions = drawn(policies[at], tables, coins)
                gain, arms = NULL - losses[np.arange(len(places)), actions], tables * K + actions
                gains[at] += np.bincount(arms, gain, minlength=size)  # exact: far below 2**53
                shown[at] += np.bincount(arms, minlength=size)
            let_go(self.slots.losses, self.slots.cell, self.slots.coins)
        ended = np.flatnonzero(begin + lengths == stop)  # the longest keys come first
        places = (len(keys) * np.arange(len(seeds))[:, None] + ended).reshape(-1)
        exact = gains.astype(np.int64).reshape(shape)[:, ended]
        arms = self.cells * K
        return places, totals(
            learner, exact.reshape(-1, arms), shown.reshape(shape)[:, ended].reshape(-1, arms)
        )
