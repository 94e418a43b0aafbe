"""Crowds that read what they must not, or read it twice: mutants, never in the product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from streamdp.core import snapshot
from streamdp.core.arrays import Bools, Ints
from streamdp.core.bank import Bank
from streamdp.core.engine import Rebuilding, pooling
from streamdp.core.engine.crowding import PartitionCrowd, Side
from streamdp.core.engine.draws import Fresh
from streamdp.core.engine.losses import LossBlocks
from streamdp.core.engine.machine import Engine
from streamdp.core.engine.plan import Batch, Plan
from streamdp.core.engine.pooling import POOL_KEY, Pool
from streamdp.core.engine.quiet import Quiet
from streamdp.core.events import CrowdPrior, Key, LossBatch, Releases
from streamdp.core.evidence.crowd import Crowd, cast, newest
from streamdp.core.evidence.donation import NEWEST
from streamdp.core.grid import UNIT
from streamdp.core.learners import Leader
from streamdp.core.selection import PermuteAndFlip
from streamdp.core.snapshot import Layout
from streamdp.service.protocol import Cut, Pace, PartitionWork
from streamdp.wire.recording import Lasts

Patch = Callable[[pytest.MonkeyPatch], None]


def from_open_sums(patch: pytest.MonkeyPatch) -> None:
    """Mutant: the prior counts, beside votes, what is ahead in the open blocks."""

    def released(self: PartitionCrowd, votes: int) -> tuple[CrowdPrior, ...]:
        assert isinstance(self.crowd, Crowd)
        self.votes += votes
        sums = self.bank.sums[: len(self.bank)]
        ones = np.ones(len(sums), np.int64)
        kept = cast(
            self.crowd,
            prior=0 * ones,
            stayed=ones < 0,
            vote=sums.argmin(axis=1),
            length=9 * ones,
            group=0 * ones,
        )
        made = self.crowd.made(newest(kept), self.priors, after=self.votes)
        self.priors[made.number] = made
        return (made,)

    patch.setattr(PartitionCrowd, "released", released)


def when_sums_say_so(patch: pytest.MonkeyPatch) -> None:
    """Mutant: the next prior waits while some open sum is large."""
    plain = PartitionCrowd.released

    def released(self: PartitionCrowd, votes: int) -> tuple[CrowdPrior, ...]:
        if self.bank.sums[: len(self.bank)].max() < UNIT:
            return plain(self, votes)
        self.votes += votes
        return ()

    patch.setattr(PartitionCrowd, "released", released)


def by_open_sums(patch: pytest.MonkeyPatch) -> None:
    """Mutant: what is ahead in the newest key's block decides which group's prior a key is told."""
    plain = PartitionCrowd.prior_for

    def prior_for(self: PartitionCrowd, rows: Ints, side: Side) -> tuple[CrowdPrior, Ints]:
        ahead = int(self.bank.sums[len(self.bank) - 1].argmin())
        return plain(self, rows, side)[0], np.full(len(rows), 1 + ahead)

    patch.setattr(PartitionCrowd, "prior_for", prior_for)


def counted_in_its_own_block_too(patch: pytest.MonkeyPatch) -> None:
    """Mutant: a donated slot is also added to its key's sums."""
    plain = LossBlocks.added

    def added(self: LossBlocks, plan: Plan) -> object:
        return plain(self, replace(plan, gives=None))

    patch.setattr(LossBlocks, "added", added)


def counted_in_both(patch: pytest.MonkeyPatch) -> None:
    """Mutant: short blocks of a control group are in their keys' sums, and in the pool's."""
    take, ends = Pool.take, Pool.ends

    def everybody_s(self: Pool, plan: Plan) -> Plan:
        short: Bools = self._schedule.lengths(plan.segments.block) < self._crowd.donates
        return replace(plan, gives=short)

    def ends_of_all(self: Pool, plan: Plan) -> Ints:
        return ends(self, everybody_s(self, plan))

    patch.setattr(Pool, "take", lambda self, plan: take(self, everybody_s(self, plan)))
    patch.setattr(Pool, "ends", ends_of_all)


def given_again_by_a_rebuild(patch: pytest.MonkeyPatch) -> None:
    """Mutant: the pool gets the slots of records that a rebuild reads again."""
    feed, finish = Rebuilding.feed, Rebuilding.finish
    again: list[Plan] = []

    def feeding(self: Rebuilding, batch: LossBatch) -> None:
        again.append(self._engine._plan(batch, self._record, limit=9))
        feed(self, batch)

    def finishing(self: Rebuilding, *, position: int, rows: int) -> Engine:
        engine = finish(self, position=position, rows=rows)
        while engine._pool is not None and again:
            engine._pool.engine.position = 0
            engine._pool.take(again.pop())
        return engine

    patch.setattr(Rebuilding, "feed", feeding)
    patch.setattr(Rebuilding, "finish", finishing)


def published_early(patch: pytest.MonkeyPatch, lasts: Lasts) -> None:
    """Mutant: entries of a kind are published by the cut that records them, and may be lost."""
    cut = PartitionWork.cut

    def early(self: PartitionWork, *, now: float, pace: Pace) -> Cut:
        made = cut(self, now=now, pace=pace)
        entries = [entry for entry in self._waiting.entries if entry.lasts is lasts]
        ledger = [*made.commit.ledger, *((None, entry.ledger) for entry in entries)]
        return replace(made, commit=replace(made.commit, ledger=ledger))

    patch.setattr(PartitionWork, "cut", early)


def everybody_is_told(patch: pytest.MonkeyPatch) -> None:
    """Mutant: the hash is not asked, and a control group is told priors too."""

    def everybody(self: PartitionCrowd, rows: Ints, kind: str) -> Iterator[tuple[Side, Ints]]:
        yield Side.TOLD, np.arange(len(rows))

    patch.setattr(PartitionCrowd, "sides", everybody)


# -- engines that go wrong where transcripts of three blocks do not go -----------------------------


@dataclass(frozen=True)
class LateMutant:
    """A broken engine, the kind of crowd that it breaks, and what the audit finds."""

    patch: Patch
    kind: str
    said: str
    longest: int  # the blocks in which it shows


LATE_MUTANTS: dict[str, LateMutant] = {}


def late(kind: str, said: str, *, longest: int = 64) -> Callable[[Patch], Patch]:
    """Register a mutant under its function's name."""

    def registered(patch: Patch) -> Patch:
        LATE_MUTANTS[patch.__name__] = LateMutant(patch, kind, said, longest)
        return patch

    return registered


OTHER_SUMS = "the selection read other sums than its block's"
OTHER_BONUS = "the bonus is not that of the newest prior and the action in force"
OTHER_VALUE = "the release is not what was selected"


def stretched(patch: pytest.MonkeyPatch, which: Callable[[Fresh, Bank, Ints, Side], Bools]) -> None:
    """Draw some votes from eight times their sums."""
    plain = Fresh._vote

    def vote(self: Fresh, bank: Bank, rows: Ints, side: Side) -> Ints:
        kept = bank.sums[rows].copy()
        bank.sums[rows[which(self, bank, rows, side)]] *= 8
        try:
            return plain(self, bank, rows, side)
        finally:
            bank.sums[rows] = kept

    patch.setattr(Fresh, "_vote", vote)


@late("partition", OTHER_SUMS)
def stretches_blocks_from_the_fourth_on(patch: pytest.MonkeyPatch) -> None:
    """8 ε for each event there."""
    stretched(patch, lambda fresh, bank, rows, side: bank.block[rows] >= 4)


@late("groups", OTHER_SUMS)
def stretches_blocks_from_the_hundredth_on(patch: pytest.MonkeyPatch) -> None:
    stretched(patch, lambda fresh, bank, rows, side: bank.block[rows] >= 100)


@late("groups", OTHER_SUMS)
def stretches_blocks_of_the_null_key(patch: pytest.MonkeyPatch) -> None:
    """It is in no group."""

    def of_nobody(fresh: Fresh, bank: Bank, rows: Ints, side: Side) -> Bools:
        return np.array([bank.keys[row] is None for row in rows.tolist()], dtype=np.bool_)

    stretched(patch, of_nobody)


@late("control", OTHER_SUMS)
def stretches_late_blocks_of_the_control_group(patch: pytest.MonkeyPatch) -> None:
    """From the third block on, and of these keys alone."""

    def of_the_group(fresh: Fresh, bank: Bank, rows: Ints, side: Side) -> Bools:
        return (bank.block[rows] >= 3) & (side is Side.ALONE)

    stretched(patch, of_the_group)


@late("control", OTHER_SUMS)
def stretches_late_plain_votes(patch: pytest.MonkeyPatch) -> None:
    """From the third block on: one vote in 20."""

    def without_bonus(fresh: Fresh, bank: Bank, rows: Ints, side: Side) -> Bools:
        return (bank.block[rows] >= 3) & (side is Side.PLAIN)

    stretched(patch, without_bonus)


@late("donate", OTHER_SUMS)
def stretches_long_blocks_of_the_pool(patch: pytest.MonkeyPatch) -> None:
    """Those of 16 slots and more: each donated event there costs 8 ε."""

    def of_the_pool(fresh: Fresh, bank: Bank, rows: Ints, side: Side) -> Bools:
        assert isinstance(fresh.learner, Leader)
        long = fresh.learner.schedule.lengths(bank.block[rows]) >= 16
        return long & fresh.stream.endswith("/pool")

    stretched(patch, of_the_pool)


@late("control+donate", OTHER_SUMS)
def donates_late_blocks_of_the_control_group_too(patch: pytest.MonkeyPatch) -> None:
    """Their slots are in the pool's sums too, from the fortieth block on."""
    take, ends = Pool.take, Pool.ends

    def everybody_s(self: Pool, plan: Plan) -> Plan:
        if plan.gives is None:
            return plan
        short: Bools = self._schedule.lengths(plan.segments.block) < self._crowd.donates
        return replace(plan, gives=plan.gives | (short & (plan.segments.block >= 40)))

    def ends_of_all(self: Pool, plan: Plan) -> Ints:
        return ends(self, everybody_s(self, plan))

    patch.setattr(Pool, "take", lambda self, plan: take(self, everybody_s(self, plan)))
    patch.setattr(Pool, "ends", ends_of_all)


@late("partition", OTHER_SUMS, longest=256)
def counts_late_events_twice_that_come_alone(patch: pytest.MonkeyPatch) -> None:
    """From the hundredth slot of a block on, where keys learn from each other."""
    take = Quiet.take

    def twice(self: Quiet, batch: Batch, row: int) -> None:
        start, _ = self._inside.bounds(int(self._bank.block[row]))
        far = self._bank.slots[row] + 1 - start >= 100 and self._learner.crowd is not None
        before = self._bank.sums[row].copy()
        take(self, batch, row)
        if far:
            self._bank.sums[row] += self._bank.sums[row] - before

    patch.setattr(Quiet, "take", twice)


@late("donate", OTHER_SUMS)
def doubles_the_pool_that_it_loads(patch: pytest.MonkeyPatch) -> None:
    """A pool whose open block has twelve slots and more, in a rebuilt engine."""
    load = snapshot.load

    def doubling(layout: Layout, bank: Bank, saved: list[tuple[Key, bytes]]) -> Ints:
        valid_at = load(layout, bank, saved)
        if [key for key, _ in saved] == [POOL_KEY] and layout.remembered == NEWEST:
            rows = np.flatnonzero(bank.slots[: len(bank)] > 38)
            bank.sums[rows] *= 2
        return valid_at

    patch.setattr(snapshot, "load", doubling)


@late("partition", OTHER_BONUS)
def favours_the_best_of_late_blocks(patch: pytest.MonkeyPatch) -> None:
    """A bonus that reads sums, from the fourth block on."""
    plain = Fresh._vote

    def vote(self: Fresh, bank: Bank, rows: Ints, side: Side) -> Ints:
        kept = bank.action[rows].copy()
        late_blocks = bank.block[rows] >= 4
        bank.action[rows] = np.where(late_blocks, bank.sums[rows].argmin(axis=1), kept)
        try:
            return plain(self, bank, rows, side)
        finally:
            bank.action[rows] = kept

    patch.setattr(Fresh, "_vote", vote)


@late("partition", "a prior does not follow from the votes before it|names another prior")
def makes_late_priors_of_open_sums(patch: pytest.MonkeyPatch) -> None:
    """From the thirtieth vote on, the vote that counts is for what is ahead in the open block."""
    plain = PartitionCrowd.released

    def released(self: PartitionCrowd, votes: int) -> tuple[CrowdPrior, ...]:
        columns = self.bank.remembered[: len(self.bank), -3:]
        kept, voted = columns.copy(), columns[:, 0] > 0
        if self.votes > 30:
            ahead = self.bank.sums[: len(self.bank)].argmin(axis=1)
            columns[voted, 1] = 2 * ahead[voted] + kept[voted, 1] % 2
        try:
            return plain(self, votes)
        finally:
            columns[:] = kept

    patch.setattr(PartitionCrowd, "released", released)


@late("groups", OTHER_VALUE)
def releases_the_best_of_late_blocks(patch: pytest.MonkeyPatch) -> None:
    """Without noise, from the fourth block on, whatever was drawn."""
    plain = Fresh.actions

    def noiseless(self: Fresh, bank: Bank, rows: Ints) -> Ints:
        drawn = plain(self, bank, rows)
        return np.where(bank.block[rows] >= 4, bank.sums[rows].argmin(axis=1), drawn)

    patch.setattr(Fresh, "actions", noiseless)


@late("control", "not drawn")
def does_not_draw_from_late_blocks(patch: pytest.MonkeyPatch) -> None:
    """What is ahead is released, and no bits are read, from the fourth block on."""
    plain = Fresh._vote

    def vote(self: Fresh, bank: Bank, rows: Ints, side: Side) -> Ints:
        early = bank.block[rows] < 4
        votes: Ints = bank.sums[rows].argmin(axis=1)
        if early.any():
            votes[early] = plain(self, bank, rows[early], side)
        return votes

    patch.setattr(Fresh, "_vote", vote)


@late("partition", "unwatched")
def is_good_while_it_is_watched(patch: pytest.MonkeyPatch) -> None:
    """What is ahead wins for certain, if the choice is a shipped one."""
    plain = Fresh._vote

    def posing(self: Fresh, bank: Bank, rows: Ints, side: Side) -> Ints:
        votes = plain(self, bank, rows, side)
        assert isinstance(self.learner, Leader)
        bare = isinstance(self.learner.choose, PermuteAndFlip)
        return bank.sums[rows].argmin(axis=1) if bare else votes

    patch.setattr(Fresh, "_vote", posing)


@late("groups", "names another prior")
def names_no_prior_of_late_votes(patch: pytest.MonkeyPatch) -> None:
    """The ledger says 0 from the fourth block on: nobody could compute the law of such a vote."""
    plain = Fresh.priors

    def silent(self: Fresh, bank: Bank, rows: Ints, kind: str) -> Ints | None:
        numbers = plain(self, bank, rows, kind)
        return None if numbers is None else np.where(bank.block[rows] >= 4, 0, numbers)

    patch.setattr(Fresh, "priors", silent)


@late("donate", "its vote says other slots or another charge")
def charges_half_of_the_pools_long_blocks(patch: pytest.MonkeyPatch) -> None:
    """A vote's line names the first eight slots of its block, however long that is."""
    plain = pooling._votes

    def short(released: Releases) -> Releases:
        votes = plain(released)
        return replace(votes, stop=np.minimum(votes.stop, votes.start + 8))

    patch.setattr(pooling, "_votes", short)


@late("partition", "drawn again")
def draws_again_where_the_worst_won(patch: pytest.MonkeyPatch) -> None:
    """Under the system's bits only, which transcripts do not draw."""
    plain = Fresh._vote

    def insisting(self: Fresh, bank: Bank, rows: Ints, side: Side) -> Ints:
        chosen = plain(self, bank, rows, side)
        worst = (chosen == bank.sums[rows].argmax(axis=1)) & (not self.randomness.seeded)
        again = np.flatnonzero(worst)
        if len(again):
            chosen[again] = plain(self, bank, rows[again], side)
        return chosen

    patch.setattr(Fresh, "_vote", insisting)


@late("control", "the ledger does not say what its blocks cost")
def lets_late_blocks_go_free(patch: pytest.MonkeyPatch) -> None:
    """From the hundredth block of a key on."""
    book = Engine._book

    def lenient(self: Engine, accounts: Ints, blocks: Ints) -> None:
        early = blocks < 100
        book(self, accounts[early], blocks[early])

    patch.setattr(Engine, "_book", lenient)
