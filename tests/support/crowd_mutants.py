"""Crowds that read what they must not, or read it twice: mutants, never in the product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from streamdp.core.arrays import Bools, Ints
from streamdp.core.engine import Rebuilding
from streamdp.core.engine.crowding import PartitionCrowd, Side
from streamdp.core.engine.losses import LossBlocks
from streamdp.core.engine.machine import Engine
from streamdp.core.engine.plan import Plan
from streamdp.core.engine.pooling import Pool
from streamdp.core.events import CrowdPrior, LossBatch
from streamdp.core.evidence.crowd import Crowd, cast, newest
from streamdp.core.grid import UNIT
from streamdp.service.protocol import Cut, Pace, PartitionWork
from streamdp.wire.recording import Lasts


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
