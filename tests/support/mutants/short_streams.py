"""Engines that are wrong in the first slots already, which the exact audit finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Columns, Floats, Ints
from streamdp.core.engine import Engine, machine
from streamdp.core.engine.charging import Charges
from streamdp.core.engine.plan import Alone, Plan, plan
from streamdp.core.engine.releasing import Draws, Ended
from streamdp.core.events import ACTION, Batch, Key
from streamdp.core.evidence.votes import Votes
from streamdp.core.grid import UNIT
from streamdp.core.kinds.losses import Leader, LossAdder, LossContents
from streamdp.core.randomness import Bits
from streamdp.core.releases import Releases
from streamdp.core.segments import Adder, BatchSlots, Grouped
from tests.support.batches import changed
from tests.support.mutants.losses import with_contents
from tests.support.mutants.table import BY_HEADER, INCUMBENT, mutant, of_losses

REMEMBERING = of_losses(recipe="remembering_leader", schedule="capped 1", bonus="2")


@mutant(INCUMBENT, BY_HEADER, layer="streams", said="log-ratio (1.[4-9]|[2-9]).* > 1")
def keeps_sums(patch: pytest.MonkeyPatch) -> None:
    """A block's sums begin with those of the block before: an event is in both."""
    close = Engine._close

    def keeping(
        self: Engine, ended: Ended, paid: Sequence[Bools], draws: Draws, batch: Batch
    ) -> Iterator[Releases]:
        sums = self._bank.private["sums"]
        kept = sums[ended.rows].copy()
        yield from close(self, ended, paid, draws, batch)
        sums[ended.rows] = kept

    patch.setattr(Engine, "_close", keeping)


@mutant(REMEMBERING, layer="streams", said="log-ratio (1.[3-9]|[2-9]).* > 1")
def folds_what_it_drew_from(patch: pytest.MonkeyPatch, *, shortest: int = 1) -> None:
    """A kind that remembers sums where it draws: in force is the best of long enough blocks.

    What is in force has a bonus in the next selection, which then tells of two blocks. The imports
    of `core.evidence` forbid it to reach sums; here draw and fold share a list.
    """
    draw, fold, best = Leader.draw, Votes.fold, list[Ints]()

    def remembering(
        self: Leader, name: str, private: Columns, public: Columns, bits: Callable[[int], Bits]
    ) -> Ints:
        if name == ACTION:
            best[:] = [private["sums"].argmin(axis=1)]
        return draw(self, name, private, public, bits)

    def peeking(
        self: Votes, public: Columns, released: Ints, lengths: Ints, allowed: Bools | None = None
    ) -> Columns:
        now = fold(self, public, released, lengths, allowed)
        if not best:
            return now
        return {**now, "action": np.where(lengths >= shortest, best.pop(), now["action"])}

    patch.setattr(Leader, "draw", remembering)
    patch.setattr(Votes, "fold", peeking)


# -- records that matter by their content ---------------------------------------------------------


def with_batches(patch: pytest.MonkeyPatch, changed: Callable[[Batch], Batch]) -> None:
    """Change what the engine takes."""
    apply_batch = Engine.apply_batch
    patch.setattr(Engine, "apply_batch", lambda self, batch: apply_batch(self, changed(batch)))


def finite(batch: Batch) -> NDArray[np.bool_]:
    """Which slots are usable."""
    return np.asarray(np.isfinite(batch.content["losses"]).all(axis=1))


@mutant(INCUMBENT, layer="streams", said="log-ratio inf > 1")
def drops_bad_records(patch: pytest.MonkeyPatch) -> None:
    """Later slots move, so that a release is missing (P1)."""
    with_batches(patch, lambda batch: batch.part(finite(batch)))


@mutant(INCUMBENT, BY_HEADER, layer="streams", said="log-ratio inf > 1")
def drops_what_a_quarantine_takes(patch: pytest.MonkeyPatch) -> None:
    """A batch says which slots are unusable: that is content, too."""

    def usable(batch: Batch) -> Batch:
        return batch if batch.unusable is None else batch.part(~batch.unusable)

    with_batches(patch, usable)


@mutant(INCUMBENT, layer="streams", said="log-ratio inf > 1")
def drops_repeated_content(patch: pytest.MonkeyPatch) -> None:
    def distinct(batch: Batch) -> Batch:
        rows = np.nan_to_num(np.column_stack([batch.index, batch.content["losses"]]), posinf=9.0)
        keep = np.zeros(len(rows), dtype=np.bool_)
        keep[np.unique(rows, axis=0, return_index=True)[1]] = True
        return batch.part(keep)

    with_batches(patch, distinct)


@mutant(INCUMBENT, layer="streams", said="log-ratio (1.[4-9]|[2-9]).* > 1")
def nulls_whole_frames(patch: pytest.MonkeyPatch) -> None:
    """A bad row nulls all of its frame: one event moves two slots."""

    def strict(batch: Batch) -> Batch:
        losses = batch.content["losses"].copy()
        losses[np.isin(batch.offsets, batch.offsets[~finite(batch)])] = np.nan
        return changed(batch, losses=losses)

    with_batches(patch, strict)


@mutant(INCUMBENT, layer="streams", said="log-ratio (1.[4-9]|[2-9]).* > 1")
def takes_a_record_twice(patch: pytest.MonkeyPatch) -> None:
    """The audit offers every batch twice; an engine that takes it spends an event in two blocks."""
    patch.setattr(machine, "check_order", lambda batch, *, position: None)


def with_losses(patch: pytest.MonkeyPatch, reads: Callable[[Floats], Floats]) -> None:
    """Add losses as they are read."""

    def sums(
        self: Adder, losses: NDArray[np.float32], grouped: Grouped, begin: Ints, length: Ints
    ) -> tuple[Ints, NDArray[np.bool_]]:
        units = np.rint(reads(losses.astype(np.float64)) * UNIT).astype(np.int64)
        added = [
            units[grouped.places(np.arange(at, at + rows))].sum(axis=0)
            for at, rows in zip(begin.tolist(), length.tolist(), strict=True)
        ]
        nulls = np.asarray(np.isnan(losses).any(axis=1))
        return np.array(added, dtype=np.int64).reshape(len(begin), -1), nulls

    patch.setattr(Adder, "sums", sums)


@mutant(INCUMBENT, layer="streams", said="log-ratio (2.[5-9]|[3-9]|inf).* > 1")
def does_not_clip_losses(patch: pytest.MonkeyPatch) -> None:
    with_losses(patch, lambda losses: np.where(np.isfinite(losses), losses, 0.5))


@mutant(INCUMBENT, layer="streams", said="log-ratio (2.[5-9]|[3-9]|inf).* > 1")
def takes_nan_as_an_integer(patch: pytest.MonkeyPatch) -> None:
    with_losses(patch, lambda losses: np.nan_to_num(np.clip(losses, 0, 1), nan=-(2.0**30)))


@mutant(INCUMBENT, layer="streams", said="log-ratio .* > 0$")
def charges_all_slots_but_the_first(patch: pytest.MonkeyPatch) -> None:
    """A ledger off by one: the first slot of each block goes free."""
    spent = Charges.spent

    def late(self: Charges, key: Key, *, slot: int) -> Fraction:
        begins = slot == self.schedule.start(self.schedule.block_of(slot))
        return Fraction(0) if begins else spent(self, key, slot=slot)

    patch.setattr(Charges, "spent", late)


@mutant(INCUMBENT, BY_HEADER, layer="too many keys", said="drawn from other sums")
def reads_other_records_where_keys_get_no_row(patch: pytest.MonkeyPatch) -> None:
    """Contents that were not left out with their keys: events count that nobody was charged for."""

    def shifted(*of: Any, **options: Any) -> Plan:
        planned, batch = plan(*of, **options), of[2]
        kept, count = planned.slots.batch, len(planned.slots.batch.index)
        content = {name: column[:count] for name, column in batch.content.items()}
        kept = replace(kept, content=content)
        return replace(planned, slots=replace(planned.slots, batch=kept))

    patch.setattr(machine, "plan", shifted)


# -- slots inside a block that come alone ---------------------------------------------------------


def inside(slots: BatchSlots) -> bool:
    """Whether these slots are one that ends no block."""
    return len(slots.batch.index) == 1 and not slots.segments.closes[0]


@mutant(INCUMBENT, layer="lone slots", said="log-ratio (1.9|[2-9]).* > 1")
def counts_a_lone_slot_twice(patch: pytest.MonkeyPatch) -> None:
    def twice(self: LossAdder, slots: BatchSlots, added: LossContents) -> None:
        added.sums = added.sums * (1 + inside(slots))

    with_contents(patch, twice)


@mutant(INCUMBENT, layer="lone slots", said="log-ratio ([6-9]|..).* > 1")
def does_not_clip_a_lone_slot(patch: pytest.MonkeyPatch) -> None:
    def unclipped(self: LossAdder, slots: BatchSlots, added: LossContents) -> None:
        if inside(slots):
            usable = np.nan_to_num(slots.batch.content["losses"].astype(np.float64), nan=0.5)
            added.sums = np.rint(usable * UNIT).astype(np.int64)

    with_contents(patch, unclipped)


@mutant(INCUMBENT, layer="lone slots", said="log-ratio inf > 1")
def loses_lone_nulls(patch: pytest.MonkeyPatch) -> None:
    """The slot is undone, as if its record were not there: later blocks move."""
    note = Alone.note

    def losing(self: Alone, slots: BatchSlots) -> None:
        note(self, slots)
        self._bank.slots[slots.rows] -= int(np.isnan(slots.batch.content["losses"]).any())

    patch.setattr(Alone, "note", losing)
