"""Broken variants of the engine's feedback that only long stories, or a look at bits, can show.

They are wrong only where blocks are long, slots come alone, engines are rebuilt, keys go idle,
numbers are very many, or bits are the system's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from streamdp.core import snapshot
from streamdp.core.arrays import Bools, Columns, Ints
from streamdp.core.bank import Bank
from streamdp.core.engine import Engine, Rebuilding
from streamdp.core.engine.plan import Alone
from streamdp.core.engine.releasing import Fresh, FromRecord, Releasing
from streamdp.core.events import NO_ARM, SPARE, After, Batch, Key
from streamdp.core.evidence.evidence import Known
from streamdp.core.evidence.policies import ReleasedSums
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.evidence.released_tables import ReleasedTables
from streamdp.core.kinds.feedback import FeedbackContents
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.noise import discrete_laplaces
from streamdp.core.randomness import Bits, CounterBits, Purpose, SystemRandomness
from streamdp.core.releases import Releases
from streamdp.core.segments import BatchSlots
from streamdp.core.snapshot import Layout
from streamdp.lab.audit.around import Around
from streamdp.lab.audit.neighbours import innermost
from tests.support.batches import changed
from tests.support.histories import history_after
from tests.support.mutants.feedback import with_batch, with_contents
from tests.support.mutants.table import BY_HEADER, TABLES_BY_HEADER, mutant

_LATE = 4  # blocks before this one are short enough to be enumerated or sampled
_OTHER = "sums: (drawn from other sums than the log's|the release is not what was drawn)"

everywhere = partial(mutant, BY_HEADER, layer="nulls everywhere")
from_outside = partial(
    mutant, layer="long samples", said="long blocks: noise does not follow the law of its scale"
)
alone = partial(mutant, BY_HEADER, layer="slot by slot")
idle = partial(mutant, BY_HEADER, layer="idle keys")


def _late(self: Fresh, rows: Ints) -> Ints:
    """Which rows end a late block, as a column of 0 and 1."""
    return (self.bank.block[rows] >= _LATE).astype(np.int64)[:, None]


def _with_noise(patch: pytest.MonkeyPatch, changed: Callable[[Fresh, Ints, Ints], Ints]) -> None:
    """Change the noise of released sums: `changed` gets its rows, and returns other noise."""
    released = Fresh.released

    def other(self: Fresh, name: str, rows: Ints) -> Ints:
        drawn, exact = released(self, name, rows), self.bank.private["sums"][rows]
        arms = exact.shape[1]
        drawn[:, :arms] = exact + changed(self, rows, drawn[:, :arms] - exact)
        return drawn

    patch.setattr(Fresh, "released", other)


@everywhere(said=_OTHER)
def releases_late_blocks_without_noise(patch: pytest.MonkeyPatch) -> None:
    _with_noise(patch, lambda self, rows, noise: noise * (1 - _late(self, rows)))


@everywhere(said=_OTHER)
def gives_the_null_key_no_noise(patch: pytest.MonkeyPatch) -> None:
    def keyed(self: Fresh, rows: Ints, noise: Ints) -> Ints:
        kept: Ints = noise * np.array([[self.bank.keys[row] is not None] for row in rows.tolist()])
        return kept

    _with_noise(patch, keyed)


@everywhere(said=_OTHER)
def gives_the_last_arm_no_noise_in_late_blocks(patch: pytest.MonkeyPatch) -> None:
    def sparing(self: Fresh, rows: Ints, noise: Ints) -> Ints:
        last = np.arange(noise.shape[1]) == noise.shape[1] - 1
        kept: Ints = noise * (1 - _late(self, rows) * last)
        return kept

    _with_noise(patch, sparing)


@from_outside(BY_HEADER, samples=200_000)
@alone(said=_OTHER)
def draws_late_blocks_again_where_noise_is_large(patch: pytest.MonkeyPatch) -> None:
    """Under the system's bits: the smaller of two draws, in long blocks."""

    def smaller(self: Fresh, rows: Ints, noise: Ints) -> Ints:
        if self.randomness.seeded or not _late(self, rows).any():
            return noise
        bits = self.bits(Purpose.NOISE, rows, self.bank.block[rows])
        learner = innermost(self.kind)
        assert isinstance(learner, PolicyLearner)
        assert learner.sums_scale is not None
        again = discrete_laplaces(learner.sums_scale, bits, noise.shape[1])
        return np.where(np.abs(again) < np.abs(noise), again, noise)

    _with_noise(patch, smaller)


@from_outside(BY_HEADER)
def gives_late_blocks_noise_while_it_is_watched(patch: pytest.MonkeyPatch) -> None:
    def posing(self: Fresh, rows: Ints, noise: Ints) -> Ints:
        return noise * (1 - _late(self, rows) * isinstance(self.randomness, SystemRandomness))

    _with_noise(patch, posing)


@everywhere(said=_OTHER)
def nulls_frames_whole(patch: pytest.MonkeyPatch) -> None:
    """A row that teaches nothing takes its record's other rows with it: one event, many slots."""
    apply_batch = Engine.apply_batch

    def strict(self: Engine, batch: Batch) -> Releases:
        spoilt = np.isin(batch.offsets, batch.offsets[batch.content["gain"] == 0])
        return apply_batch(self, changed(batch, gain=np.where(spoilt, 0, batch.content["gain"])))

    patch.setattr(Engine, "apply_batch", strict)


@everywhere(said="unwatched and in one batch: sums: other releases")
def gives_late_blocks_noise_while_it_is_witnessed(patch: pytest.MonkeyPatch) -> None:
    def posing(self: Fresh, rows: Ints, noise: Ints) -> Ints:
        return noise * (1 - _late(self, rows) * (not isinstance(self.kind, Around)))

    _with_noise(patch, posing)


@everywhere(said="sums: not drawn exactly once for each release")
def adds_the_noise_of_the_block_before(patch: pytest.MonkeyPatch) -> None:
    """The difference of two releases is then exact."""
    released, kept = Fresh.released, dict[int, Ints]()

    def repeating(self: Fresh, name: str, rows: Ints) -> Ints:
        private = self.bank.private
        late = bool(_late(self, rows).any())
        if late and all(row in kept for row in rows.tolist()):
            noise = np.stack([kept[row] for row in rows.tolist()])
            return np.hstack([private["sums"][rows] + noise, private["shown"][rows]])
        drawn, exact = released(self, name, rows), private["sums"][rows]
        noise = drawn[:, : exact.shape[1]] - exact
        kept.update(zip(rows.tolist(), noise, strict=True))
        return drawn

    patch.setattr(Fresh, "released", repeating)


@everywhere(said="random words come twice")
def draws_late_blocks_from_the_bits_of_the_first(patch: pytest.MonkeyPatch) -> None:
    bits = Fresh.bits

    def first(self: Fresh, purpose: int, rows: Ints, indices: Ints) -> Bits:
        return bits(self, purpose, rows, np.where(indices < _LATE, indices, 0))

    patch.setattr(Fresh, "bits", first)


@mutant(BY_HEADER, layer="thousands of actions", said="not what its law and bits say")
def gives_later_parts_of_a_draw_the_bits_of_the_first(patch: pytest.MonkeyPatch) -> None:
    """Only draws of more than 2**18 words are made in parts."""
    part = CounterBits.part

    def first(self: CounterBits, start: int, stop: int) -> CounterBits:
        return part(self, 0, min(stop, self.rows) - start)

    patch.setattr(CounterBits, "part", first)


@alone(said=_OTHER)
def counts_a_lone_slot_tenfold(patch: pytest.MonkeyPatch) -> None:
    """One event inside a block costs ten times its charge."""

    def ten_times(slots: BatchSlots, added: FeedbackContents) -> None:
        added.gains = added.gains * (10 if _inside_alone(slots) else 1)

    with_contents(patch, ten_times)


def _inside_alone(slots: BatchSlots) -> bool:
    """Whether these slots are one that ends no block."""
    return len(slots.batch.index) == 1 and not slots.segments.closes[0]


@alone(said=_OTHER)
def does_not_clip_the_gain_of_a_lone_slot(patch: pytest.MonkeyPatch) -> None:
    def unclipped(slots: BatchSlots, added: FeedbackContents) -> None:
        if _inside_alone(slots):
            added.gains = slots.batch.content["gain"] * added.shows

    with_contents(patch, unclipped)


@alone(said=_OTHER)
def weights_lone_slots_by_propensity(patch: pytest.MonkeyPatch) -> None:
    """By 1/p, before the noise: p is the chance that the action had, which falls in a block."""

    def weighted(slots: BatchSlots, added: FeedbackContents) -> None:
        if _inside_alone(slots):
            added.gains = added.gains * (1 + (slots.taken[0] + 1) // 8)

    with_contents(patch, weighted)


@alone(said=_OTHER)
def imputes_a_lone_null_from_the_slot_before(patch: pytest.MonkeyPatch) -> None:
    before = [NO_ARM]

    def imputing(slots: BatchSlots, batch: Batch) -> Batch:
        if not _inside_alone(slots):
            return batch
        if batch.content["played"][0] == NO_ARM:
            batch = changed(batch, played=np.array(before, dtype=np.int32))
        before[:] = batch.content["played"].tolist()
        return batch

    with_batch(patch, imputing)


@alone(said=_OTHER)
def counts_twice_a_lone_slot_that_ends_its_block(patch: pytest.MonkeyPatch) -> None:
    """From the third block on."""

    def twice(slots: BatchSlots, added: FeedbackContents) -> None:
        cut = slots.segments
        lone = len(slots.batch.index) == 1 and cut.block[0] > 2 and cut.closes[0]
        added.gains = added.gains * (2 if lone else 1)

    with_contents(patch, twice)


@alone(said="sums: a block is not released exactly once")
def drops_a_lone_null(patch: pytest.MonkeyPatch) -> None:
    """A slot that shows no known action is not taken: all later blocks move (P1)."""
    note = Alone.note

    def dropping(self: Alone, slots: BatchSlots) -> None:
        if slots.batch.content["played"][0] != NO_ARM:
            note(self, slots)

    patch.setattr(Alone, "note", dropping)


@alone(said="sums: it names other slots or records")
def names_no_record_that_begins_a_block_alone(patch: pytest.MonkeyPatch) -> None:
    note = Alone.note

    def forgetful(self: Alone, slots: BatchSlots) -> None:
        row = int(slots.rows[0])
        before = self._bank.first_offset[row]
        note(self, slots)
        self._bank.first_offset[row] = before

    patch.setattr(Alone, "note", forgetful)


@alone(said=f"{_OTHER}|refuses to go on")
def counts_lone_slots_twice_when_it_reads_them_again(patch: pytest.MonkeyPatch) -> None:
    """Only a rebuilt engine's open blocks are wrong."""
    feed = Rebuilding.feed

    def twice(self: Rebuilding, batch: Batch) -> None:
        bank = self._bank
        row = bank.row(batch.keys[0])
        sums = bank.private["sums"]
        before = None if row is None else (int(bank.slots[row]), sums[row].copy())
        feed(self, batch)
        if row is not None and before is not None and bank.slots[row] == before[0] + 1:
            sums[row] += sums[row] - before[1]

    patch.setattr(Rebuilding, "feed", twice)


@alone(said="sums: not drawn exactly once for each release")
def draws_again_what_it_rebuilds(patch: pytest.MonkeyPatch) -> None:
    """Later policies follow from sums that nobody recorded: each block is drawn from twice."""

    def released(self: FromRecord, name: str, rows: Ints) -> Ints:
        return fresh[-1].released(name, rows)

    def begin(self: Rebuilding, engine: Engine, **rest: object) -> None:
        fresh.append(engine._fresh)
        begins(self, engine, **rest)

    fresh: list[Fresh] = []
    begins: Callable[..., None] = Rebuilding.__init__
    patch.setattr(Rebuilding, "__init__", begin)
    patch.setattr(Rebuilding, "_check_records", lambda self, release: None)
    patch.setattr(FromRecord, "released", released)


@everywhere(said="refuses to go on")
def says_that_rows_are_newer_than_they_are(patch: pytest.MonkeyPatch) -> None:
    """A rebuild would leave out a record: all later blocks would move."""
    encode = snapshot.encode

    def ahead(layout: Layout, bank: Bank, rows: Ints, *, valid_at: int) -> list[tuple[Key, bytes]]:
        return encode(layout, bank, rows, valid_at=valid_at + 1)

    patch.setattr(snapshot, "encode", ahead)


@idle(said=_OTHER)
def lets_new_rows_inherit_the_sums_of_dropped_ones(patch: pytest.MonkeyPatch) -> None:
    """An abandoned block goes into a block of the next key that opens (P9)."""
    keep = Bank.keep

    def keeping(self: Bank, rows: Ints) -> None:
        sums = self.private["sums"][: len(self)].copy()
        keep(self, rows)
        self.private["sums"][len(rows) : len(sums)] = sums[len(rows) :]

    patch.setattr(Bank, "keep", keeping)


@idle(said="a key carries over another history")
def carries_over_what_the_open_block_held(patch: pytest.MonkeyPatch) -> None:
    """The policy that a key comes back to follows from sums that were never released."""
    known = Engine.known

    def knowing(self: Engine, rows: Ints | None = None) -> Iterator[tuple[Key, After, Known]]:
        assert rows is not None
        learner = innermost(self.kind)
        assert isinstance(learner, PolicyLearner)
        private = self._bank.private
        for row, (key, after, kept) in zip(rows.tolist(), known(self, rows), strict=True):
            assert kept.history is not None
            history = np.frombuffer(kept.history).reshape(1, 2, -1)
            open_ = private["sums"][[row]], private["shown"][[row]]
            yield key, after, Known(0, history_after(learner, history, *open_)[0].tobytes())

    patch.setattr(Engine, "known", knowing)


@idle(said="a key does not open exactly once|the engine refuses to go on")
def drops_only_keys_whose_open_sums_are_small(patch: pytest.MonkeyPatch) -> None:
    """When a key opens again follows from content."""
    drop = Engine._drop

    def dropping(self: Engine, before: int) -> None:
        bank = self._bank
        large = np.abs(bank.private["sums"][: len(bank)]).max(axis=1) > 1 << 20
        bank.seen[: len(bank)][large] = before
        drop(self, before)

    patch.setattr(Engine, "_drop", dropping)


@idle(said="a key does not open exactly once|the engine refuses to go on")
def keeps_keys_only_by_events_that_teach(patch: pytest.MonkeyPatch) -> None:
    """When a key goes idle follows from content: a null does not renew its time."""
    mark = Engine._mark_unsaved

    def marking(self: Engine, slots: BatchSlots) -> None:
        seen = self._bank.seen[slots.rows].copy()
        mark(self, slots)
        if slots.batch.times is not None:
            last = slots.grouped.places(np.cumsum(slots.grouped.counts) - 1)
            null = (slots.batch.content["played"][last] < 0) & (seen > 0)
            self._bank.seen[slots.rows[null]] = seen[null]

    patch.setattr(Engine, "_mark_unsaved", marking)


@mutant(BY_HEADER, layer="epochs", said="what is in force does not follow from the releases")
def answers_by_open_sums(patch: pytest.MonkeyPatch) -> None:
    """What a client is told follows from sums without noise; what is released does not."""
    in_force = Engine.in_force

    def answering(self: Engine, key: Key) -> Policy | None:
        policy, row = in_force(self, key), self._bank.row(key)
        if row is None or policy is None or not self._bank.private["sums"][row].any():
            return policy
        best = np.zeros_like(policy)
        best[self._bank.private["sums"][row].argmax()] = PARTS
        return best

    patch.setattr(Engine, "in_force", answering)


@everywhere(said="it says another charge than the kind's")
def says_half_of_what_a_block_costs(patch: pytest.MonkeyPatch) -> None:
    """On the ledger's lines, from which others compute what is left."""
    of = Releasing.of

    def halving(self: Releasing, waves: list[Releases]) -> Releases:
        released = of(self, waves)
        return replace(released, charges=tuple(charge / 2 for charge in released.charges))

    patch.setattr(Releasing, "of", halving)


# -- columns that get names later, also in contexts ------------------------------------------------

naming = partial(mutant, BY_HEADER, TABLES_BY_HEADER, layer="new names", longest=8)


@naming(said="a policy has a part for what is not allowed or has no name")
def gives_columns_without_a_name_a_floor(patch: pytest.MonkeyPatch) -> None:
    sums, tables = ReleasedSums.in_force, ReleasedTables.in_force

    def generous(
        self: ReleasedSums, public: Columns, lengths: Ints, allowed: Bools | None = None
    ) -> Policy:
        return sums(replace(self, room=0), public, lengths, allowed)

    def in_cells(
        self: ReleasedTables, public: Columns, lengths: Ints, allowed: Bools | None = None
    ) -> Policy:
        return tables(replace(self, rule=replace(self.rule, room=0)), public, lengths, allowed)

    patch.setattr(ReleasedSums, "in_force", generous)
    patch.setattr(ReleasedTables, "in_force", in_cells)


@naming(said="what is in force at an opening is not what it says|a release does not say")
def knows_a_name_before_its_position(patch: pytest.MonkeyPatch) -> None:
    """The first of those that come, from the log's first record on."""
    apply_batch = Engine.apply_batch

    def early(self: Engine, batch: Batch) -> Releases:
        listed = self.kind.evidence.listed
        named = np.array([name != SPARE for name in self.kind.actions[:listed]])
        if not named.all():
            allowed = (named if batch.allowed is None else batch.allowed).copy()
            allowed[named.argmin()] = True
            batch = replace(batch, allowed=allowed)
        return apply_batch(self, batch)

    patch.setattr(Engine, "apply_batch", early)
