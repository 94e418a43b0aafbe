"""Engines that are not what their ledger says, in ways that short streams do not show.

Each one changes the shipped code through a `MonkeyPatch`, and says which learner it spoils. None of
them was found by an audit that enumerates streams of three blocks, sweeps single selections and
samples two blocks under seeded bits; nor the last ones, of events that come alone and of late
blocks, by one that goes through a few slots alone and through blocks of up to 256 slots.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import blake2b

import numpy as np
import pytest
from numpy.typing import NDArray

from streamdp.core import randomness, segments, snapshot
from streamdp.core.arrays import Ints
from streamdp.core.bank import CLEAN, Bank
from streamdp.core.engine import Engine
from streamdp.core.engine.draws import Fresh
from streamdp.core.engine.losses import LossBlocks
from streamdp.core.engine.plan import Batch, Plan
from streamdp.core.engine.quiet import Inside, Quiet
from streamdp.core.engine.rebuilding import Rebuilding
from streamdp.core.engine.waves import Applier
from streamdp.core.events import Key, LossBatch, Releases
from streamdp.core.grid import UNIT, Quantiser, quantise
from streamdp.core.learners import Leader, learner_of
from streamdp.core.ledger import Ledger
from streamdp.core.noise import discrete_laplace
from streamdp.core.randomness import Bits, CounterBits, Purpose, SystemRandomness
from streamdp.core.regret import Estimate, estimate
from streamdp.core.selection import Exponential, PermuteAndFlip, Prior, race
from streamdp.core.snapshot import Layout

Patch = Callable[[pytest.MonkeyPatch], None]

INCUMBENT = {"recipe": "incumbent_leader"}
PREFIX = {"recipe": "prefix_softmax", "cap": "none"}
LAPLACE = {"recipe": "noisy_leader", "noise": "laplace"}
ESTIMATES = (estimate("block_regret", epsilon="1/4", min_length=30),)


@dataclass(frozen=True)
class Mutant:
    """A broken engine, and the learner that it breaks."""

    patch: Patch
    options: Mapping[str, str]
    said: str  # what the audit finds
    layer: str  # which of its layers: "engine", "alone", "bits" or "races"
    estimates: tuple[Estimate, ...] = ()
    longest: int = 64  # the blocks in which it shows

    @property
    def learner(self) -> Leader:
        """The learner at ε = 1."""
        return learner_of({**self.options, "epsilon": "1"}, actions=["a", "b"])


MUTANTS: dict[str, Mutant] = {}


def mutant(
    options: Mapping[str, str],
    *,
    said: str,
    layer: str = "engine",
    estimates: tuple[Estimate, ...] = (),
    longest: int = 64,
) -> Callable[[Patch], Patch]:
    """Register a mutant under its function's name."""

    def registered(patch: Patch) -> Patch:
        MUTANTS[patch.__name__] = Mutant(patch, options, said, layer, estimates, longest)
        return patch

    return registered


# -- what an outside look found -------------------------------------------------------------------


@mutant(PREFIX, said="other sums than its window's")
def shortens_the_window_of_a_block_that_begins_with_a_null(patch: pytest.MonkeyPatch) -> None:
    windows = LossBlocks._windows

    def short(self: LossBlocks, plan: Plan) -> Ints:
        drawn, cut = windows(self, plan), plan.segments
        assert isinstance(plan.batch, LossBatch)
        first = plan.batch.losses[plan.grouped.places(cut.begin)]
        null = (cut.into == 0) & ~np.isfinite(first).all(axis=1)
        shortest = self._learner.schedule.lengths(cut.block) // 2 + 1
        return np.where(null, shortest, drawn)

    patch.setattr(LossBlocks, "_windows", short)


@mutant(INCUMBENT, said="the bonus is not what earlier releases say")
def favours_the_best_of_long_blocks(patch: pytest.MonkeyPatch) -> None:
    """The bonus goes to the action with the least raw sum, in blocks of 40 slots and more."""
    actions = Fresh.actions

    def favouring(self: Fresh, bank: Bank, rows: Ints) -> Ints:
        kept = bank.action[rows].copy()
        long = self.learner.schedule.lengths(bank.block[rows]) >= 40
        bank.action[rows] = np.where(long, bank.sums[rows].argmin(axis=1), kept)
        chosen = actions(self, bank, rows)
        bank.action[rows] = kept
        return chosen

    patch.setattr(Fresh, "actions", favouring)


@mutant(INCUMBENT, said="words of system bits come twice", layer="bits")
def repeats_rows_of_system_bits(patch: pytest.MonkeyPatch) -> None:
    """Every 4,096 rows."""

    def bits(
        self: SystemRandomness, stream: str, purpose: int, tags: NDArray[np.uint8], indices: Ints
    ) -> Bits:
        rows = len(indices)
        high = np.arange(rows, dtype=np.uint64) % np.uint64(4096)
        return CounterBits(aes(os.urandom(32)), high, np.zeros(rows, np.uint64))

    aes = randomness._aes
    patch.setattr(SystemRandomness, "bits", bits)


@mutant(INCUMBENT, said="not AES-256 under the 32 bytes of entropy", layer="bits")
def keys_bits_with_four_bytes(patch: pytest.MonkeyPatch) -> None:
    aes = randomness._aes
    patch.setattr(randomness, "_aes", lambda key: aes(blake2b(key[:4], digest_size=32).digest()))


@mutant(INCUMBENT, said="tie in their first words", layer="races")
def ignores_runners_up_in_other_chunks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(race, "sum", lambda runners: min(1, len(list(runners))), raising=False)


# -- losses of long blocks ------------------------------------------------------------------------


@mutant(INCUMBENT, said="other sums than its window's")
def fills_a_null_with_the_vector_before(patch: pytest.MonkeyPatch) -> None:
    """Imputation from the thirteenth slot on: one event reaches two slots (P2)."""
    add = LossBlocks.added

    def filling(self: LossBlocks, plan: Plan) -> object:
        assert isinstance(plan.batch, LossBatch)
        losses = plan.batch.losses.copy()
        order = plan.grouped.places(np.arange(len(losses)))
        key = np.repeat(np.arange(len(plan.grouped.counts)), plan.grouped.counts)
        null = ~np.isfinite(losses[order]).all(axis=1) & (plan.slots[order] > 12)
        same = np.diff(key, prepend=-1) == 0
        for place in np.flatnonzero(null & same).tolist():
            losses[order[place]] = losses[order[place - 1]]
        return add(self, replace(plan, batch=replace(plan.batch, losses=losses)))

    patch.setattr(LossBlocks, "added", filling)


@mutant(INCUMBENT, said="other sums than its window's")
def adds_long_blocks_in_floats(patch: pytest.MonkeyPatch) -> None:
    """Sums of single precision stall beyond 2**24 grid units."""
    advance = Applier._advance

    def stalling(self: Applier, plan: Plan, which: Ints, *rest: object) -> object:
        yield from advance(self, plan, which, *rest)  # type: ignore[arg-type]
        rows = plan.segment_rows[which]
        self._bank.sums[rows] = self._bank.sums[rows].astype(np.float32).astype(np.int64)

    patch.setattr(Applier, "_advance", stalling)


@mutant(INCUMBENT, said="thousands of slots: block .*: the selection read other sums")
def keeps_the_finite_part_of_a_null_when_streaming(patch: pytest.MonkeyPatch) -> None:
    """Only runs of 2**16 values are streamed."""

    def sums(quantiser: Quantiser, losses: NDArray[np.float32]) -> tuple[Ints, NDArray[np.bool_]]:
        units, null = quantise(np.where(np.isfinite(losses), losses, np.float32(0.5)))
        return units.sum(axis=0), np.asarray(null | ~np.isfinite(losses).all(axis=1))

    patch.setattr(segments, "column_sums", sums)


@mutant(INCUMBENT, said="other sums than its window's")
def nulls_large_frames_whole(patch: pytest.MonkeyPatch) -> None:
    """A bad row nulls all of its frame, if that has more than eight rows."""
    apply_batch = Engine.apply_batch

    def strict(self: Engine, batch: LossBatch) -> Releases:
        bad = ~np.isfinite(batch.losses).all(axis=1)
        frames, size = np.unique(batch.offsets, return_counts=True)
        spoilt = np.intersect1d(frames[size > 8], batch.offsets[bad])
        losses = batch.losses.copy()
        losses[np.isin(batch.offsets, spoilt)] = np.nan
        return apply_batch(self, replace(batch, losses=losses))

    patch.setattr(Engine, "apply_batch", strict)


@mutant(INCUMBENT, said="other sums than its window's")
def stretches_sums_of_long_blocks(patch: pytest.MonkeyPatch) -> None:
    """A rate that adapts: differences are doubled where all of them are small (P2, P9)."""
    actions = Fresh.actions

    def stretching(self: Fresh, bank: Bank, rows: Ints) -> Ints:
        kept = bank.sums[rows].copy()
        least = kept.min(axis=1, keepdims=True)
        near = (kept - least).max(axis=1) < 4 * UNIT
        near &= self.learner.schedule.lengths(bank.block[rows]) >= 16
        bank.sums[rows] = np.where(near[:, None], 2 * (kept - least), kept)
        chosen = actions(self, bank, rows)
        bank.sums[rows] = kept
        return chosen

    patch.setattr(Fresh, "actions", stretching)


# -- who it happens to ----------------------------------------------------------------------------


@mutant(INCUMBENT, said="other sums than its window's")
def lets_late_keys_inherit_sums(patch: pytest.MonkeyPatch) -> None:
    """A row beyond the first 64 begins with the open sums of the row 64 before it."""
    add = Bank.add

    def inheriting(self: Bank, keys: list[Key], born: Ints) -> Ints:
        rows = add(self, keys, born)
        late = rows[rows >= 64]
        self.sums[late] = self.sums[late - 64]
        return rows

    patch.setattr(Bank, "add", inheriting)


@mutant(LAPLACE, said="the release is not what was selected")
def gives_the_null_key_no_noise(patch: pytest.MonkeyPatch) -> None:
    """In blocks of 16 slots and more."""
    actions = Fresh.actions

    def noiseless(self: Fresh, bank: Bank, rows: Ints) -> Ints:
        keyless = np.array([bank.keys[row] is None for row in rows.tolist()])
        keyless &= self.learner.schedule.lengths(bank.block[rows]) >= 16
        best = bank.sums[rows].argmin(axis=1)
        return np.where(keyless, best, actions(self, bank, rows))

    patch.setattr(Fresh, "actions", noiseless)


@mutant(INCUMBENT, said="the release is not what was selected|another value")
def keeps_the_action_in_force_in_a_tie(patch: pytest.MonkeyPatch) -> None:
    """For certain, in blocks of 16 slots and more: another event breaks the tie."""
    actions = Fresh.actions

    def keeping(self: Fresh, bank: Bank, rows: Ints) -> Ints:
        tied = np.ptp(bank.sums[rows], axis=1) == 0
        tied &= self.learner.schedule.lengths(bank.block[rows]) >= 16
        return np.where(tied, bank.action[rows], actions(self, bank, rows))

    patch.setattr(Fresh, "actions", keeping)


# -- saves and rebuilds ---------------------------------------------------------------------------


@mutant(INCUMBENT, said="the bonus is not what earlier releases say")
def saves_the_leader_as_the_action_in_force(patch: pytest.MonkeyPatch) -> None:
    """A rebuilt engine gives its bonus to what was best when it was saved."""
    save = Engine.save

    def leading(self: Engine, *, most: int | None = None) -> list[tuple[Key, bytes]]:
        bank = self._bank
        kept = bank.action.copy()
        begun = bank.slots > 20
        bank.action[begun] = bank.sums[begun].argmin(axis=1)
        rows = save(self, most=most)
        bank.action[:] = kept
        return rows

    patch.setattr(Engine, "save", leading)


@mutant(INCUMBENT, said="other sums than its window's")
def rounds_the_sums_that_it_loads(patch: pytest.MonkeyPatch) -> None:
    """To whole losses, in a block of 16 slots and more: a saved row is smaller then."""
    load = snapshot.load

    def rounding(layout: Layout, bank: Bank, saved: list[tuple[Key, bytes]]) -> Ints:
        valid_at = load(layout, bank, saved)
        rows = np.flatnonzero(bank.slots[: len(bank)] > 11)
        bank.sums[rows] = (bank.sums[rows] + UNIT // 2) // UNIT * UNIT
        return valid_at

    patch.setattr(snapshot, "load", rounding)


# -- charges and estimates ------------------------------------------------------------------------


@mutant(INCUMBENT, said="the ledger does not say what its blocks cost")
def lets_long_blocks_go_free(patch: pytest.MonkeyPatch) -> None:
    book = Ledger.book

    def lenient(
        self: Ledger, accounts: Ints, starts: Ints, stops: Ints, *, epsilon: Fraction
    ) -> None:
        short = stops - starts < 40
        book(self, accounts[short], starts[short], stops[short], epsilon=epsilon)

    patch.setattr(Ledger, "book", lenient)


@mutant(INCUMBENT, said="not the block's statistic with the noise", estimates=ESTIMATES)
def halves_the_noise_of_long_blocks(patch: pytest.MonkeyPatch) -> None:
    """The mean of two draws is taken for one, in blocks of 30 slots and more."""
    exact = Fresh.estimate

    def quieter(self: Fresh, bank: Bank, rows: Ints, which: int) -> Ints:
        spec = self.estimates[which]
        if self.learner.schedule.lengths(bank.block[rows]).min() < 30:
            return exact(self, bank, rows, which)
        nulls, in_force = bank.nulls[rows], bank.action[rows].astype(np.int64)
        statistic = spec.statistic(bank.totals[rows], action=in_force, nulls=nulls)
        bits = self.bits(bank, rows, Purpose.NOISE + which, bank.block[rows])
        scale = spec.scale(actions=len(self.learner.actions))
        return statistic + discrete_laplace(scale / 2, bits)

    patch.setattr(Fresh, "estimate", quieter)


# -- the system's bits ----------------------------------------------------------------------------


@mutant(INCUMBENT, said="not selected from exactly once|the release is not what was selected")
def draws_again_where_the_worst_won(patch: pytest.MonkeyPatch) -> None:
    """Once, in blocks of 7 slots and more, under the system's bits only."""
    actions = Fresh.actions

    def insisting(self: Fresh, bank: Bank, rows: Ints) -> Ints:
        chosen = actions(self, bank, rows)
        if self.randomness.seeded:
            return chosen
        worst = chosen == bank.sums[rows].argmax(axis=1)
        worst &= self.learner.schedule.lengths(bank.block[rows]) >= 7
        again = np.flatnonzero(worst)
        if len(again):
            chosen[again] = actions(self, bank, rows[again])
        return chosen

    patch.setattr(Fresh, "actions", insisting)


@mutant(INCUMBENT, said="words of system bits come twice|asks for", layer="bits")
def keeps_the_key_of_single_draws(patch: pytest.MonkeyPatch) -> None:
    """A batch of one draw takes the key of the batch of one draw before it."""
    bits = SystemRandomness.bits
    kept: list[Bits] = []

    def keeping(
        self: SystemRandomness, stream: str, purpose: int, tags: NDArray[np.uint8], indices: Ints
    ) -> Bits:
        if len(indices) != 1:
            return bits(self, stream, purpose, tags, indices)
        kept.extend([] if kept else [bits(self, stream, purpose, tags, indices)])
        return kept[0]

    patch.setattr(SystemRandomness, "bits", keeping)


@mutant(INCUMBENT, said="is not won by the action that its bits say", layer="races")
def gives_rows_beyond_a_block_the_bits_of_the_first(patch: pytest.MonkeyPatch) -> None:
    """The race takes many rows in blocks; here each block reads the words of the first one."""
    part = CounterBits.part

    def first(self: CounterBits, start: int, stop: int) -> CounterBits:
        return part(self, 0, stop - start) if stop - start > 1 else part(self, start, stop)

    patch.setattr(CounterBits, "part", first)


# -- engines that look at who looks ---------------------------------------------------------------


@mutant(INCUMBENT, said="another value")
def is_good_while_it_is_watched(patch: pytest.MonkeyPatch) -> None:
    """The best of blocks of 16 slots and more wins for certain, if the choice is a shipped one."""
    actions = Fresh.actions

    def posing(self: Fresh, bank: Bank, rows: Ints) -> Ints:
        chosen = actions(self, bank, rows)
        assert isinstance(self.learner, Leader)
        if not isinstance(self.learner.choose, PermuteAndFlip | Exponential):
            return chosen
        long = self.learner.schedule.lengths(bank.block[rows]) >= 16
        return np.where(long, bank.sums[rows].argmin(axis=1), chosen)

    patch.setattr(Fresh, "actions", posing)


@mutant(INCUMBENT, said="tie in their first words", layer="races")
def sharpens_a_race_that_is_far_apart(patch: pytest.MonkeyPatch) -> None:
    """The mechanism itself: from 30 units apart on, the best wins for certain."""
    select = PermuteAndFlip.select

    def sharp(self: PermuteAndFlip, sums: Ints, bits: Bits, prior: Prior | None = None) -> Ints:
        far = np.ptp(sums, axis=1) > 30 * UNIT
        return np.where(far, sums.argmin(axis=1), select(self, sums, bits, prior))

    patch.setattr(PermuteAndFlip, "select", sharp)


# -- events that come alone, and late blocks ------------------------------------------------------


LATE = 100
"""Slots of a block that an audit of single slots near its middle does not reach."""


def into(quiet: Quiet, row: int) -> int:
    """How many slots of its block come before the row's next one."""
    inside: Inside = quiet._inside
    start, _ = inside.bounds(int(quiet._bank.block[row]))
    return int(quiet._bank.slots[row]) + 1 - start


@mutant(INCUMBENT, said="other sums than its window's", longest=256)
def counts_late_events_twice_that_come_alone(patch: pytest.MonkeyPatch) -> None:
    """An event that is a batch of its own, from the hundredth slot of a block on: 2 ε."""
    add = Quiet._add

    def twice(self: Quiet, row: int, losses: NDArray[np.uint32], null: NDArray[np.bool_]) -> None:
        if into(self, row) >= LATE:
            self._bank.sums[row] += losses
        add(self, row, losses, null)

    patch.setattr(Quiet, "_add", twice)


@mutant(INCUMBENT, said="other sums than its window's", layer="alone", longest=256)
def imputes_late_nulls_that_come_alone(patch: pytest.MonkeyPatch) -> None:
    """The mean of the block so far stands for a null: what others said counts again (P2)."""
    add = Quiet._add

    def imputing(
        self: Quiet, row: int, losses: NDArray[np.uint32], null: NDArray[np.bool_]
    ) -> None:
        late = into(self, row)
        mean = (self._bank.sums[row] // max(1, late)).astype(losses.dtype)
        add(self, row, mean if null[0] and late >= LATE else losses, null)

    patch.setattr(Quiet, "_add", imputing)


@mutant(PREFIX, said="other sums than its window's", layer="alone", longest=256)
def reads_late_events_behind_the_window_that_come_alone(patch: pytest.MonkeyPatch) -> None:
    counts = Quiet._counts

    def reading(self: Quiet, row: int) -> bool:
        return into(self, row) >= LATE or counts(self, row)

    patch.setattr(Quiet, "_counts", reading)


@mutant(INCUMBENT, said="other sums than its window's", layer="alone", longest=256)
def counts_an_event_twice_that_comes_alone_behind_a_save(patch: pytest.MonkeyPatch) -> None:
    """The first one after its row was saved, late in a block."""
    take = Quiet.take

    def twice(self: Quiet, batch: Batch, row: int) -> None:
        before, saved = self._bank.sums[row].copy(), self._bank.first_unsaved[row] == CLEAN
        late = into(self, row) >= LATE
        take(self, batch, row)
        if saved and late:
            self._bank.sums[row] += self._bank.sums[row] - before

    patch.setattr(Quiet, "take", twice)


@mutant(INCUMBENT, said="other sums than its window's", layer="alone", longest=256)
def reads_late_events_again_that_come_alone_in_a_rebuild(patch: pytest.MonkeyPatch) -> None:
    """An event that a rebuild reads alone counts twice: a crash makes 2 ε of it."""
    feed, take = Rebuilding.feed, Quiet.take
    feeding: list[object] = []

    def fed(self: Rebuilding, batch: Batch) -> None:
        feeding.append(self)
        feed(self, batch)
        feeding.clear()

    def twice(self: Quiet, batch: Batch, row: int) -> None:
        before, late = self._bank.sums[row].copy(), into(self, row) >= LATE
        take(self, batch, row)
        if feeding and late:
            self._bank.sums[row] += self._bank.sums[row] - before

    patch.setattr(Rebuilding, "feed", fed)
    patch.setattr(Quiet, "take", twice)


@mutant(INCUMBENT, said="other sums than its window's", layer="alone", longest=256)
def counts_a_run_twice_behind_events_that_come_alone(patch: pytest.MonkeyPatch) -> None:
    """Two events of a key in one batch, late in a block, if the one before them came alone."""
    take, advance = Quiet.take, Applier._advance
    alone: dict[Bank, set[int]] = {}

    def noting(self: Quiet, batch: Batch, row: int) -> None:
        alone.setdefault(self._bank, set()).add(row)
        take(self, batch, row)

    def twice(self: Applier, plan: Plan, which: Ints, added: object, *rest: object) -> object:
        rows, bank = plan.segment_rows[which], self._bank
        known = alone.setdefault(bank, set())
        late = (plan.segments.into[which] >= LATE) & ~plan.segments.closes[which]
        late &= (plan.segments.length[which] > 1) & np.isin(rows, list(known))
        known.difference_update(rows.tolist())
        before = bank.sums[rows[late]].copy()
        yield from advance(self, plan, which, added, *rest)  # type: ignore[arg-type]
        bank.sums[rows[late]] += bank.sums[rows[late]] - before

    patch.setattr(Quiet, "take", noting)
    patch.setattr(Applier, "_advance", twice)


@mutant(INCUMBENT, said="not selected from exactly once|the release is not what was selected")
def releases_the_best_of_late_blocks(patch: pytest.MonkeyPatch) -> None:
    """Without noise, from the hundredth block of a key on: an infinite ε."""
    actions = Fresh.actions

    def noiseless(self: Fresh, bank: Bank, rows: Ints) -> Ints:
        chosen = actions(self, bank, rows)
        return np.where(bank.block[rows] >= LATE, bank.sums[rows].argmin(axis=1), chosen)

    patch.setattr(Fresh, "actions", noiseless)
