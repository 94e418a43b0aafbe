"""The pool: one learner over the slots that the keys of a partition donate (`evidence.donation`).

It is an engine of its own, with one key and a ledger: whatever holds of an engine holds of it. Its
stream is named as no stream can be, so that its seeded bits are nobody else's.

1. *In.* The donated slots of a batch, in the order of the log. They add nothing to the sums of
   their keys' rows. How a log was cut into batches changes nothing.
2. *Out.* Votes, which count among the partition's votes. Nobody sees its opening: it says nothing.
3. *Charge.* A donated block is booked to its key when it begins: the pool may draw from its first
   slots before it ends (P6). The pool books its own slots too, and both are the same charge: a slot
   has one number with its key, and one with the pool.
4. *Saved* in every checkpoint, as of the position of that checkpoint and no other (`standing`). So
   a rebuild reads no record for the pool. Rows are saved now and then, each as of another position;
   a pool that was saved like them could not tell which records it already has, since the slot
   number, hence whether a record was donated, is known of records that a row has not seen yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streamdp.core import snapshot
from streamdp.core.arrays import Ints
from streamdp.core.bank import Bank
from streamdp.core.engine.plan import Plan
from streamdp.core.engine.waves import BLOCK_CODE
from streamdp.core.events import LossBatch, Releases
from streamdp.core.evidence.crowd import Crowd, cast
from streamdp.core.evidence.donation import votes_of
from streamdp.core.schedule import Schedule

if TYPE_CHECKING:
    from streamdp.core.engine.machine import Engine


POOL_KEY = b""
"""The only key of the pool's engine."""

NO_SLOT = b"\x00"
"""What a checkpoint holds of a pool to which no slot was given yet."""

_ROW = np.zeros(1, dtype=np.int64)


def stream_of(stream: str) -> str:
    """The name of the pool's stream: no stream of a configuration has one with a slash."""
    return f"{stream}/pool"


class Pool:
    """The learner of what keys donate, and which slots they do."""

    __slots__ = ("_crowd", "_released", "_schedule", "engine")

    def __init__(self, engine: Engine, *, schedule: Schedule, crowd: Crowd) -> None:
        """`engine`: the pool's, new; `schedule`: the blocks of keys; `crowd`: who is told votes."""
        self.engine, self._schedule, self._crowd = engine, schedule, crowd
        self._released: list[Releases] = []

    def __repr__(self) -> str:
        """Say where it stands, never what it holds."""
        return f"Pool({self.engine!r})"

    def marked(self, plan: Plan) -> Plan:
        """The plan, with the segments that are donated."""
        lengths = self._schedule.lengths(plan.segments.block)
        return replace(plan, gives=lengths < self._crowd.donates)

    def ends(self, plan: Plan) -> Ints:
        """The offsets of the records that end blocks of the pool."""
        gifts = plan.gifts
        if not len(gifts):
            return gifts
        schedule, taken = self.engine.learner.schedule, self.engine.slots(POOL_KEY)
        first = schedule.block_of(taken + 1)
        last = schedule.block_of(taken + len(gifts) + 1)
        stops = schedule.starts(np.arange(first + 1, last + 1))
        ended: Ints = plan.batch.offsets[gifts[stops - taken - 2]]
        return ended

    def take(self, plan: Plan) -> None:
        """Give the donated slots of a plan to the pool's learner."""
        gifts, batch = plan.gifts, plan.batch
        if not len(gifts):
            return
        assert isinstance(batch, LossBatch)
        index = np.zeros(len(gifts), dtype=np.int64)
        given = LossBatch([POOL_KEY], index, batch.losses[gifts], batch.offsets[gifts])
        released = _votes(self.engine.apply_batch(given))
        if len(released):
            self._released.append(released)

    def released(self) -> tuple[Releases, ...]:
        """What the pool released since this was asked."""
        released, self._released = tuple(self._released), []
        return released

    def votes(self) -> Ints:
        """The pool's newest votes, as the crowd keeps those of keys."""
        engine = self.engine
        bank, rows = engine._bank, len(engine)
        kept = bank.remembered[:rows].ravel()
        block = int(bank.block[:rows].sum())
        votes, lengths = votes_of(kept, block, engine.learner.schedule)
        nothing = np.zeros_like(votes)
        return cast(
            self._crowd, prior=nothing, stayed=nothing > 0, vote=votes, length=lengths,
            group=nothing,
        )  # fmt: skip

    def begun(self, bank: Bank) -> tuple[Ints, Ints]:
        """The rows whose open block is donated and has begun, and that block."""
        rows = np.arange(len(bank))
        block = bank.block[rows]
        begun = bank.slots[rows] >= self._schedule.starts(block)
        begun &= self._schedule.lengths(block) < self._crowd.donates
        return rows[begun], block[begun]

    def open_since(self, *, end: int) -> int:
        """The oldest record of the pool's open block, or `end`; public."""
        return self.engine.open_since(end=end)

    def standing(self, position: int) -> bytes:
        """The pool for a checkpoint at this position."""
        engine = self.engine
        if not len(engine):
            return NO_SLOT
        engine._check_whole()
        ((_, row),) = snapshot.encode(engine.layout, engine._bank, _ROW, valid_at=position)
        return row


def _votes(released: Releases) -> Releases:
    """The votes among what the pool released: all but its opening."""
    votes = released.kind == BLOCK_CODE
    return replace(
        released,
        keys=[POOL_KEY] * int(np.count_nonzero(votes)),
        in_force=None,
        born=released.born[votes],
        block=released.block[votes],
        kind=released.kind[votes],
        value=released.value[votes],
        start=released.start[votes],
        stop=released.stop[votes],
        first_offset=released.first_offset[votes],
        last_offset=released.last_offset[votes],
    )
