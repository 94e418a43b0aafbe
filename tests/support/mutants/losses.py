"""Engines that are not what their ledger says of losses, in ways that short streams do not show."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from hashlib import blake2b

import numpy as np
import pytest
from numpy.typing import NDArray

from streamdp.core import randomness, segments
from streamdp.core.arrays import Ints
from streamdp.core.bank import CLEAN, Bank
from streamdp.core.engine import Engine
from streamdp.core.engine.charging import Charges
from streamdp.core.engine.rebuilding import Rebuilding
from streamdp.core.engine.releasing import Fresh
from streamdp.core.events import ACTION, Batch, Key
from streamdp.core.grid import UNIT, Quantiser, quantise
from streamdp.core.kinds.estimates import estimate
from streamdp.core.kinds.kind import BitsOf
from streamdp.core.kinds.losses import LossAdder, LossContents
from streamdp.core.kinds.tariff import Tariff
from streamdp.core.learners import Leader
from streamdp.core.noise import discrete_laplace
from streamdp.core.randomness import Bits, CounterBits, Purpose, SystemRandomness
from streamdp.core.releases import Releases
from streamdp.core.schedule import Schedule
from streamdp.core.segments import BatchSlots
from streamdp.core.selection import PermuteAndFlip, Prior, race
from streamdp.core.snapshot import Loading
from streamdp.lab.audit.around import Around
from streamdp.lab.audit.neighbours import innermost
from tests.support.batches import changed
from tests.support.mutants.table import BY_HEADER, INCUMBENT, PREFIX, mutant, of_losses

LAPLACE = of_losses(recipe="noisy_leader", noise="laplace")
REGRET = INCUMBENT.with_estimates([estimate("block_regret", epsilon="1/4", min_length=30)])
OTHER_SUMS = "drawn from other (sums|window) than the log's"
OTHER_ACTION = "drawn with other action than earlier releases say"
ANOTHER_RELEASE = "not drawn exactly once|the release is not what was drawn"


everywhere = partial(mutant, layer="nulls everywhere")
alone = partial(mutant, layer="slot by slot", said=OTHER_SUMS, longest=256)
from_outside = partial(
    mutant, layer="long samples", said="releases do not follow their law", samples=20_000
)
"""Nothing stands between the engine and its bits: what comes out does not follow the law."""


# -- what an outside look found -------------------------------------------------------------------


@from_outside(PREFIX)
@everywhere(PREFIX, said=OTHER_SUMS)
def shortens_the_window_of_a_block_that_begins_with_a_null(patch: pytest.MonkeyPatch) -> None:
    windows = LossAdder._windows

    def short(self: LossAdder, slots: BatchSlots, bits: BitsOf) -> Ints:
        drawn, cut = windows(self, slots, bits), slots.segments
        first = slots.batch.content["losses"][slots.grouped.places(cut.begin)]
        null = (cut.into == 0) & ~np.isfinite(first).all(axis=1)
        shortest = self._leader.schedule.lengths(cut.block) // 2 + 1
        return np.where(null, shortest, drawn)

    patch.setattr(LossAdder, "_windows", short)


Votes = Callable[[Fresh, Ints], Ints]
"""The votes of some rows."""


def with_votes(patch: pytest.MonkeyPatch, changed: Callable[[Fresh, Ints, Votes], Ints]) -> None:
    """Change the votes of rows: `changed` gets them and what votes as shipped."""
    released = Fresh.released

    def votes(self: Fresh, rows: Ints) -> Ints:
        return released(self, ACTION, rows)[:, 0]

    def other(self: Fresh, name: str, rows: Ints) -> Ints:
        if name != ACTION:
            return released(self, name, rows)
        return changed(self, rows, votes)[:, None]

    patch.setattr(Fresh, "released", other)


def lengths_of(self: Fresh, rows: Ints) -> Ints:
    """The lengths of the blocks that these rows are in."""
    return self.kind.schedule.lengths(self.bank.block[rows])


@from_outside(INCUMBENT)
@everywhere(INCUMBENT, said=OTHER_ACTION)
def favours_the_best_of_long_blocks(patch: pytest.MonkeyPatch) -> None:
    """The bonus goes to the action with the least raw sum, in blocks of 40 slots and more."""

    def favouring(self: Fresh, rows: Ints, votes: Votes) -> Ints:
        action, sums = self.bank.public["action"], self.bank.private["sums"]
        kept = action[rows].copy()
        action[rows] = np.where(lengths_of(self, rows) >= 40, sums[rows].argmin(axis=1), kept)
        chosen = votes(self, rows)
        action[rows] = kept
        return chosen

    with_votes(patch, favouring)


@mutant(INCUMBENT, layer="bits", said="words of system bits come twice")
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


@mutant(INCUMBENT, layer="bits", said="not AES-256 under the 32 bytes of entropy")
def keys_bits_with_four_bytes(patch: pytest.MonkeyPatch) -> None:
    aes = randomness._aes
    patch.setattr(randomness, "_aes", lambda key: aes(blake2b(key[:4], digest_size=32).digest()))


@mutant(INCUMBENT, layer="races", said="tie in their first words")
def ignores_runners_up_in_other_chunks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(race, "sum", lambda runners: min(1, len(list(runners))), raising=False)


# -- losses of long blocks ------------------------------------------------------------------------


@everywhere(INCUMBENT, said=OTHER_SUMS)
def fills_a_null_with_the_vector_before(patch: pytest.MonkeyPatch) -> None:
    """Imputation from the thirteenth slot on: one event reaches two slots (P2)."""
    contents = LossAdder.contents

    def filling(self: LossAdder, slots: BatchSlots, bits: BitsOf) -> LossContents:
        batch = slots.batch
        losses = batch.content["losses"].copy()
        order = slots.grouped.places(np.arange(len(losses)))
        key = np.repeat(np.arange(len(slots.grouped.counts)), slots.grouped.counts)
        null = ~np.isfinite(losses[order]).all(axis=1) & (slots.numbers[order] > 12)
        same = np.diff(key, prepend=-1) == 0
        for place in np.flatnonzero(null & same).tolist():
            losses[order[place]] = losses[order[place - 1]]
        return contents(self, replace(slots, batch=changed(batch, losses=losses)), bits)

    patch.setattr(LossAdder, "contents", filling)


@mutant(INCUMBENT, layer="slot by slot", said=OTHER_SUMS)
def takes_minus_infinity_for_a_number(patch: pytest.MonkeyPatch) -> None:
    """A very small one: what is beyond every bound, and not clipped, decides a choice."""

    def lowered(self: LossAdder, slots: BatchSlots, added: LossContents) -> None:
        infinite = np.isneginf(slots.batch.content["losses"])
        if infinite.any() and len(added.sums) == 1:
            added.sums = added.sums - (UNIT << 40) * infinite.any(axis=0)

    with_contents(patch, lowered)


@everywhere(INCUMBENT, said=OTHER_SUMS)
def adds_long_blocks_in_floats(patch: pytest.MonkeyPatch) -> None:
    """Sums of single precision stall beyond 2**24 grid units."""
    add = LossContents.add

    def stalling(self: LossContents, which: object, rows: Ints) -> None:
        add(self, which, rows)
        sums = self.private["sums"]
        sums[rows] = sums[rows].astype(np.float32).astype(np.int64)

    patch.setattr(LossContents, "add", stalling)


@mutant(INCUMBENT, layer="thousands of slots", said="drawn from other sums")
def keeps_the_finite_part_of_a_null_when_streaming(patch: pytest.MonkeyPatch) -> None:
    """Only runs of 2**16 values are streamed."""

    def sums(quantiser: Quantiser, losses: NDArray[np.float32]) -> tuple[Ints, NDArray[np.bool_]]:
        units, null = quantise(np.where(np.isfinite(losses), losses, np.float32(0.5)))
        return units.sum(axis=0), np.asarray(null | ~np.isfinite(losses).all(axis=1))

    patch.setattr(segments, "column_sums", sums)


@everywhere(INCUMBENT, said=OTHER_SUMS)
def nulls_large_frames_whole(patch: pytest.MonkeyPatch) -> None:
    """A bad row nulls all of its frame, if that has more than eight rows."""
    apply_batch = Engine.apply_batch

    def strict(self: Engine, batch: Batch) -> Releases:
        bad = ~np.isfinite(batch.content["losses"]).all(axis=1)
        frames, size = np.unique(batch.offsets, return_counts=True)
        spoilt = np.intersect1d(frames[size > 8], batch.offsets[bad])
        losses = batch.content["losses"].copy()
        losses[np.isin(batch.offsets, spoilt)] = np.nan
        return apply_batch(self, changed(batch, losses=losses))

    patch.setattr(Engine, "apply_batch", strict)


@everywhere(INCUMBENT, said=OTHER_SUMS)
def stretches_sums_of_long_blocks(patch: pytest.MonkeyPatch) -> None:
    """A rate that adapts: differences are doubled where all of them are small (P2, P9)."""

    def stretching(self: Fresh, rows: Ints, votes: Votes) -> Ints:
        sums = self.bank.private["sums"]
        kept = sums[rows].copy()
        least = kept.min(axis=1, keepdims=True)
        near = (kept - least).max(axis=1) < 4 * UNIT
        near &= lengths_of(self, rows) >= 16
        sums[rows] = np.where(near[:, None], 2 * (kept - least), kept)
        chosen = votes(self, rows)
        sums[rows] = kept
        return chosen

    with_votes(patch, stretching)


# -- who it happens to ----------------------------------------------------------------------------


@everywhere(INCUMBENT, said=OTHER_SUMS)
def lets_late_keys_inherit_sums(patch: pytest.MonkeyPatch) -> None:
    """A row beyond the first 64 begins with the open sums of the row 64 before it."""
    add = Bank.add

    def inheriting(self: Bank, keys: list[Key], born: Ints) -> Ints:
        rows = add(self, keys, born)
        late = rows[rows >= 64]
        self.private["sums"][late] = self.private["sums"][late - 64]
        return rows

    patch.setattr(Bank, "add", inheriting)


@everywhere(LAPLACE, said=ANOTHER_RELEASE)
def gives_the_null_key_no_noise(patch: pytest.MonkeyPatch) -> None:
    """In blocks of 16 slots and more."""

    def noiseless(self: Fresh, rows: Ints, votes: Votes) -> Ints:
        keyless = np.array([self.bank.keys[row] is None for row in rows.tolist()])
        keyless &= lengths_of(self, rows) >= 16
        best = self.bank.private["sums"][rows].argmin(axis=1)
        return np.where(keyless, best, votes(self, rows))

    with_votes(patch, noiseless)


@everywhere(INCUMBENT, said=ANOTHER_RELEASE)
def keeps_the_action_in_force_in_a_tie(patch: pytest.MonkeyPatch) -> None:
    """For certain, in blocks of 16 slots and more: another event breaks the tie."""

    def keeping(self: Fresh, rows: Ints, votes: Votes) -> Ints:
        tied = np.ptp(self.bank.private["sums"][rows], axis=1) == 0
        tied &= lengths_of(self, rows) >= 16
        return np.where(tied, self.bank.public["action"][rows], votes(self, rows))

    with_votes(patch, keeping)


# -- saves and rebuilds ---------------------------------------------------------------------------


@everywhere(INCUMBENT, said=OTHER_ACTION)
def saves_the_leader_as_the_action_in_force(patch: pytest.MonkeyPatch) -> None:
    """A rebuilt engine gives its bonus to what was best when it was saved."""
    save = Engine.save

    def leading(self: Engine, *, most: int | None = None) -> list[tuple[Key, bytes]]:
        bank = self._bank
        action = bank.public["action"]
        kept, begun = action.copy(), bank.slots > 20
        action[begun] = bank.private["sums"][begun].argmin(axis=1)
        rows = save(self, most=most)
        action[:] = kept
        return rows

    patch.setattr(Engine, "save", leading)


@everywhere(INCUMBENT, said=OTHER_SUMS)
def rounds_the_sums_that_it_loads(patch: pytest.MonkeyPatch) -> None:
    """To whole losses, in a block of 16 slots and more: a saved row is smaller then."""
    put = Loading.put

    def rounding(self: Loading, saved: Mapping[Key, bytes]) -> None:
        put(self, saved)
        bank = self._bank
        rows = np.flatnonzero(bank.slots[: len(bank)] > 11)
        sums = bank.private["sums"]
        sums[rows] = (sums[rows] + UNIT // 2) // UNIT * UNIT

    patch.setattr(Loading, "put", rounding)


# -- charges and estimates ------------------------------------------------------------------------


@everywhere(INCUMBENT, BY_HEADER, said="the ledger does not say what its blocks cost")
def lets_long_blocks_go_free(patch: pytest.MonkeyPatch) -> None:
    of_first = Tariff.of_first

    def lenient(
        self: Tariff, blocks: int, schedule: Schedule
    ) -> Iterator[tuple[Fraction, int, int]]:
        for epsilon, begin, end in of_first(self, blocks, schedule):
            for block in range(begin, end):
                free = schedule.stop(block) - schedule.start(block) >= 40
                yield Fraction(0) if free else epsilon, block, block + 1

    patch.setattr(Tariff, "of_first", lenient)


@everywhere(INCUMBENT, said="another highest charge")
def says_half_of_the_highest_charge(patch: pytest.MonkeyPatch) -> None:
    """The guarantee so far, as a library's user reads it."""
    highest = Charges.highest
    patch.setattr(Charges, "highest", lambda self: highest(self) / 2)


@everywhere(REGRET, said="block_regret: not drawn exactly once")
def halves_the_noise_of_long_blocks(patch: pytest.MonkeyPatch) -> None:
    """The mean of two draws is taken for one, in blocks of 30 slots and more."""
    released = Fresh.released

    def quieter(self: Fresh, name: str, rows: Ints) -> Ints:
        if name == ACTION or lengths_of(self, rows).min() < 30:
            return released(self, name, rows)
        learner = innermost(self.kind)
        assert isinstance(learner, Leader)
        (which,) = (at for at, of in enumerate(learner.estimates) if of.name == name)
        spec, bank = learner.estimates[which], self.bank
        nulls, in_force = bank.private["nulls"][rows], bank.public["action"][rows].astype(np.int64)
        statistic = spec.statistic(bank.private["totals"][rows], action=in_force, nulls=nulls)
        bits = self.bits(Purpose.NOISE + which, rows, bank.block[rows])
        scale = spec.scale(actions=len(self.kind.actions))
        return (statistic + discrete_laplace(scale / 2, bits))[:, None]

    patch.setattr(Fresh, "released", quieter)


# -- the system's bits ----------------------------------------------------------------------------


@from_outside(INCUMBENT)
@mutant(INCUMBENT, layer="system bits", said=ANOTHER_RELEASE)
def draws_again_where_the_worst_won(patch: pytest.MonkeyPatch) -> None:
    """Once, in blocks of 7 slots and more, under the system's bits only."""

    def insisting(self: Fresh, rows: Ints, votes: Votes) -> Ints:
        chosen = votes(self, rows)
        if self.randomness.seeded:
            return chosen
        worst = chosen == self.bank.private["sums"][rows].argmax(axis=1)
        worst &= lengths_of(self, rows) >= 7
        again = np.flatnonzero(worst)
        if len(again):
            chosen[again] = votes(self, rows[again])
        return chosen

    with_votes(patch, insisting)


@mutant(INCUMBENT, layer="bits", said="words of system bits come twice|asks for")
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


@mutant(INCUMBENT, layer="races", said="is not won by the action that its bits say")
def gives_rows_beyond_a_block_the_bits_of_the_first(patch: pytest.MonkeyPatch) -> None:
    """The race takes many rows in blocks; here each block reads the words of the first one."""
    part = CounterBits.part

    def first(self: CounterBits, start: int, stop: int) -> CounterBits:
        return part(self, 0, stop - start) if stop - start > 1 else part(self, start, stop)

    patch.setattr(CounterBits, "part", first)


# -- engines that look at who looks ---------------------------------------------------------------


@from_outside(INCUMBENT)
@everywhere(INCUMBENT, said="unwatched and in one batch: action: other releases")
def is_good_while_it_is_watched(patch: pytest.MonkeyPatch) -> None:
    """The best of blocks of 16 slots and more wins for certain, if nothing is around the kind."""

    def posing(self: Fresh, rows: Ints, votes: Votes) -> Ints:
        chosen = votes(self, rows)
        if isinstance(self.kind, Around):
            return chosen
        best = self.bank.private["sums"][rows].argmin(axis=1)
        return np.where(lengths_of(self, rows) >= 16, best, chosen)

    with_votes(patch, posing)


@mutant(INCUMBENT, layer="races", said="tie in their first words")
def sharpens_a_race_that_is_far_apart(patch: pytest.MonkeyPatch) -> None:
    """The mechanism itself: from 30 units apart on, the best wins for certain."""
    select = PermuteAndFlip.select

    def sharp(self: PermuteAndFlip, sums: Ints, bits: Bits, prior: Prior | None = None) -> Ints:
        far = np.ptp(sums, axis=1) > 30 * UNIT
        return np.where(far, sums.argmin(axis=1), select(self, sums, bits, prior))

    patch.setattr(PermuteAndFlip, "select", sharp)


@mutant(INCUMBENT, layer="races", said="a rare word says")
def leaves_out_actions_that_are_far_behind(patch: pytest.MonkeyPatch) -> None:
    """As if a chance of 10⁻⁹ were none: a neighbour may have more of it than e^ε allows."""
    select = PermuteAndFlip.select

    def pruned(self: PermuteAndFlip, sums: Ints, bits: Bits, prior: Prior | None = None) -> Ints:
        behind = sums - sums.min(axis=1, keepdims=True)
        far = behind * self.rate > 20 * UNIT
        return select(self, sums + far * (UNIT << 20), bits, prior)

    patch.setattr(PermuteAndFlip, "select", pruned)


# -- events that come alone, and late blocks ------------------------------------------------------


LATE = 100
"""Slots of a block that an audit of single slots near its middle does not reach."""


Adding = Callable[[LossAdder, BatchSlots, LossContents], None]


def lone_and_late(slots: BatchSlots) -> bool:
    """Whether these slots are one, late in a block that it does not end."""
    cut = slots.segments
    return len(slots.batch.index) == 1 and bool(cut.into[0] >= LATE and not cut.closes[0])


def with_contents(patch: pytest.MonkeyPatch, changed: Adding) -> None:
    """Change what batches add to sums."""
    contents = LossAdder.contents

    def other(self: LossAdder, slots: BatchSlots, bits: BitsOf) -> LossContents:
        added = contents(self, slots, bits)
        changed(self, slots, added)
        return added

    patch.setattr(LossAdder, "contents", other)


@alone(INCUMBENT)
def counts_late_events_twice_that_come_alone(patch: pytest.MonkeyPatch) -> None:
    """An event that is a batch of its own, from the hundredth slot of a block on: 2 ε."""

    def twice(self: LossAdder, slots: BatchSlots, added: LossContents) -> None:
        added.sums = added.sums * (1 + lone_and_late(slots))

    with_contents(patch, twice)


@alone(INCUMBENT)
def imputes_late_nulls_that_come_alone(patch: pytest.MonkeyPatch) -> None:
    """The mean of the block so far stands for a null: what others said counts again (P2)."""

    def imputing(self: LossAdder, slots: BatchSlots, added: LossContents) -> None:
        if lone_and_late(slots) and not np.isfinite(slots.batch.content["losses"]).all():
            added.sums = self._private["sums"][slots.rows] // slots.segments.into[0]

    with_contents(patch, imputing)


@alone(PREFIX)
def reads_late_events_behind_the_window_that_come_alone(patch: pytest.MonkeyPatch) -> None:
    def reading(self: LossAdder, slots: BatchSlots, added: LossContents) -> None:
        if lone_and_late(slots):
            added.sums = quantise(slots.batch.content["losses"])[0]

    with_contents(patch, reading)


@alone(INCUMBENT)
def counts_an_event_twice_that_comes_alone_behind_a_save(patch: pytest.MonkeyPatch) -> None:
    """The first one after its row was saved, late in a block."""
    step = Engine._step

    def twice(self: Engine, batch: Batch, *rest: object, **options: object) -> object:
        bank, row = self._bank, self._bank.row(batch.keys[0]) if len(batch.index) == 1 else None
        saved = row is not None and bank.first_unsaved[row] == CLEAN
        before = None if row is None else bank.private["sums"][row].copy()
        waves = step(self, batch, *rest, **options)  # type: ignore[arg-type]
        if row is not None and saved and not waves and lone_and_late(self._alone.slots):
            bank.private["sums"][row] += bank.private["sums"][row] - before
        return waves

    patch.setattr(Engine, "_step", twice)


@alone(INCUMBENT)
def reads_late_events_again_that_come_alone_in_a_rebuild(patch: pytest.MonkeyPatch) -> None:
    """An event that a rebuild reads alone counts twice: a crash makes 2 ε of it."""
    feed = Rebuilding.feed
    feeding: list[object] = []

    def fed(self: Rebuilding, batch: Batch) -> None:
        feeding.append(self)
        feed(self, batch)
        feeding.clear()

    def twice(self: LossAdder, slots: BatchSlots, added: LossContents) -> None:
        added.sums = added.sums * (1 + bool(feeding and lone_and_late(slots)))

    patch.setattr(Rebuilding, "feed", fed)
    with_contents(patch, twice)


@alone(INCUMBENT)
def counts_a_run_twice_behind_events_that_come_alone(patch: pytest.MonkeyPatch) -> None:
    """Two events of a key in one batch, late in a block, if the one before them came alone."""
    alone: dict[LossAdder, set[int]] = {}

    def twice(self: LossAdder, slots: BatchSlots, added: LossContents) -> None:
        rows, cut, known = slots.segment_rows, slots.segments, alone.setdefault(self, set())
        if len(slots.batch.index) == 1:
            known.update(rows.tolist())
            return
        late = (cut.into >= LATE) & ~cut.closes & (cut.length > 1) & np.isin(rows, list(known))
        known.difference_update(rows.tolist())
        added.sums[late] *= 2

    with_contents(patch, twice)


@mutant(INCUMBENT, layer="many blocks", said=ANOTHER_RELEASE)
def releases_the_best_of_late_blocks(patch: pytest.MonkeyPatch) -> None:
    """Without noise, from the hundredth block of a key on: an infinite ε."""

    def noiseless(self: Fresh, rows: Ints, votes: Votes) -> Ints:
        chosen = votes(self, rows)
        best = self.bank.private["sums"][rows].argmin(axis=1)
        return np.where(self.bank.block[rows] >= LATE, best, chosen)

    with_votes(patch, noiseless)
