"""The pool: one learner over the slots that the keys of a partition donate (`evidence.donation`).

It is an engine of its own, with one key and a ledger: what holds for an engine holds for the pool.
The name of its stream is one that no stream can have, so that it shares seeded bits with nobody.

1. *In.* The donated slots of a batch, in the order of the log. They add nothing to the sums of
   their keys' rows. Keys of a control group donate nothing: `marked` and `begun` ask the same
   function of the key, so a slot is either the pool's or its row's. How a log was cut into batches
   changes nothing.
2. *Out.* Votes, which count among the partition's votes. Its opening is not shown: it says nothing.
3. *Charge.* A donated block is booked to its key when it begins: the pool may draw from its first
   slots before it ends (P6). The pool books its own slots too. Both entries are the same charge: a
   slot has one number at its key and another one in the pool.
4. *Saving.* Every checkpoint holds the pool as of that checkpoint's position (`standing`), so a
   rebuild reads no record for the pool. It cannot be saved now and then, as rows are: whether a
   record was donated follows from its slot number, which a rebuild knows only of records that the
   key's saved row has not seen yet. So it could not tell which records the pool already has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from streamdp.core import snapshot
from streamdp.core.arrays import Bools, Ints
from streamdp.core.bank import Bank
from streamdp.core.engine.plan import Plan
from streamdp.core.engine.waves import BLOCK_CODE
from streamdp.core.events import Key, LossBatch, Releases
from streamdp.core.evidence.crowd import Crowd, cast
from streamdp.core.evidence.donation import donated_below_by, votes_of
from streamdp.core.schedule import Schedule

if TYPE_CHECKING:
    from streamdp.core.engine.machine import Engine


POOL_KEY = b""
"""The only key of the pool's engine."""

NO_SLOT = b"\x00"
"""What a checkpoint holds for a pool that no slot was donated to yet."""

_ROW = np.zeros(1, dtype=np.int64)


def stream_of(stream: str) -> str:
    """The name of the pool's stream: the slash keeps it apart from every configured stream."""
    return f"{stream}/pool"


class Pool:
    """The learner of the donated slots, and the rule that says which slots these are."""

    __slots__ = ("_crowd", "_released", "_schedule", "engine")

    def __init__(self, engine: Engine, *, schedule: Schedule, crowd: Crowd) -> None:
        """`engine`: the pool's, new; `schedule`: that of the keys; `crowd`: it gets the votes."""
        self.engine, self._schedule, self._crowd = engine, schedule, crowd
        self._released: list[Releases] = []

    def __repr__(self) -> str:
        """Show the position, never the content."""
        return f"Pool({self.engine!r})"

    def marked(self, plan: Plan) -> Plan:
        """Mark the donated segments of a plan."""
        gives = self._schedule.lengths(plan.segments.block) < self._crowd.donates
        short = np.flatnonzero(gives)
        of_keys = plan.grouped.touched[plan.segments.of[short]]
        gives[short] = self._donors([plan.batch.keys[key] for key in of_keys.tolist()])
        return replace(plan, gives=gives)

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
        """Return what the pool released since the last call."""
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
        rows, block = rows[begun], block[begun]
        donors = self._donors([bank.keys[row] for row in rows.tolist()])
        return rows[donors], block[donors]

    def _donors(self, keys: Sequence[Key]) -> Bools:
        """Which of these keys donate their short blocks."""
        crowd = self._crowd
        if not crowd.control.share:
            return np.ones(len(keys), dtype=np.bool_)
        below = [donated_below_by(key, crowd.donates, crowd.control) for key in keys]
        return np.array(below, dtype=np.int64) > 0

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
    """The pool's releases without its opening."""
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
