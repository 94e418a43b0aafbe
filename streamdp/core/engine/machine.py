"""The state machine around a bank: slots in, releases out. Pure: no clock, no file.

What one batch does, in this order:

1. *Plan.* Which rows its slots belong to and where their blocks end: from keys, offsets and slot
   numbers alone. Nothing has changed yet.
2. *Charge* (P6). The slots of every block that will end are marked paid (`engine.charging`), or the
   batch is refused and nothing changes.
3. *Apply.* New rows are born and draw their openings; each segment is added to its row; where a
   block ends its releases are drawn, the r-th blocks of all keys together. What is added, drawn and
   put in force is the kind's (`core.kinds.kind`); the engine knows none of them.

Releases come in the order of the records that ended their blocks. How a stream of records is cut
into batches changes nothing.

When the third step fails (no entropy, no memory, an interrupt), half a batch is in the rows. Such
an engine refuses to go on or to be saved, because these slots would be counted twice: rebuild it.
An engine whose keys go idle refuses even after a batch that failed in the first two steps: time has
moved on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence, Set
from fractions import Fraction
from itertools import islice
from types import EllipsisType

import numpy as np

from streamdp.core import snapshot
from streamdp.core.arrays import Bools, Columns, Ints
from streamdp.core.bank import CLEAN, Bank, Gathered
from streamdp.core.calibration import parse_epsilon
from streamdp.core.engine.arguments import (
    cell_of,
    check_action,
    check_allowed,
    check_offset,
    check_place,
    check_randomness,
    warn_of_shape,
)
from streamdp.core.engine.charging import BlockEnds, Charges, ends_of
from streamdp.core.engine.idleness import Ages, Idleness
from streamdp.core.engine.plan import Alone, Plan, check_keys, check_order, plan
from streamdp.core.engine.releasing import Draws, Ended, Fresh, Releasing
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import NO_ARM, SPARE, After, Batch, Carried, Content, Key
from streamdp.core.evidence.carrying import Passage
from streamdp.core.evidence.evidence import InForce, Known
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import as_single, as_vector, centred_gain
from streamdp.core.kinds.estimates import Estimate
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.tariff import tariff
from streamdp.core.randomness import Randomness
from streamdp.core.releases import Releases
from streamdp.core.segments import BatchSlots

NOBODY: Set[Key] = frozenset()
MOST_ROWS = 100_000_000
_ONE_SLOT = np.zeros(1, dtype=np.int64)  # the index of a batch of one slot
_ONE_SLOT.flags.writeable = False


class Engine:
    """Many learners of one stream and partition, and the ledger of what they were charged.

    Save durably before you show a release: a release that was shown and is drawn again is charged
    once and spent twice. Never run two engines from one save, for the same reason.

    A key beyond `limit` rows gets no learner; its slots are counted in `slots_refused`, publicly.

    >>> from streamdp.core.learners import RECIPES
    >>> from streamdp.core.randomness import SystemRandomness
    >>> learner = RECIPES["incumbent_leader"](actions=["a", "b", "c"], epsilon="0.5")
    >>> engine = Engine(stream="home", partition=0, learner=learner, budget="1.0",
    ...                 randomness=SystemRandomness())
    >>> [release.kind for release in engine.apply(b"fr", [0.1, 0.9, 0.3])]
    ['opening', 'action']
    >>> engine.action(b"fr") in learner.actions, engine.ledger.spent(b"fr", slot=1)
    (True, Fraction(1, 2))
    """

    def __init__(
        self,
        *,
        stream: str,
        partition: int,
        learner: Kind,
        budget: str | Fraction | int | None,
        randomness: Randomness,
        epoch: int = 1,
        estimates: Sequence[Estimate] = (),
        limit: int = 1_000_000,
        heritage: MutableMapping[Key, Carried] | None = None,
        idle: int | None = None,
    ) -> None:
        """`heritage`: what keys carry over from their previous learners when they open here.
        `idle`: milliseconds after which a key's row is dropped; see `engine.idleness`. Batches then
        need times.
        """
        share = None if budget is None else parse_epsilon(budget, "budget")
        if isinstance(learner, type) or not hasattr(learner, "with_estimates"):
            expected = 'what a recipe makes, such as incumbent_leader(actions=…, epsilon="0.5")'
            got = type(learner).__name__
            raise InvalidConfig("learner", "no learner for this engine", expected=expected, got=got)
        check_randomness(randomness)
        check_place(stream, partition=partition, epoch=epoch)
        if not 1 <= limit <= MOST_ROWS:
            raise InvalidConfig("limit", "rows", expected=f"1 … {MOST_ROWS}", got=limit)
        kind = learner.with_estimates(estimates)
        self.stream, self.partition, self.epoch, self.limit = stream, partition, epoch, limit
        self.learner, self.kind = learner, kind
        contexts = kind.recipe.contexts
        shown = None if contexts is None else contexts.actions(kind.actions)
        self._contexts = None if shown is None else contexts
        columns = shown or kind.actions
        self._shown = {name: at for at, name in enumerate(columns) if name != SPARE}  # in a cell
        self._many = len(columns)
        self.position = 0
        self.slots_refused = 0
        self.layout = snapshot.row_layout(kind, epoch=epoch)
        """The layout of saved rows; all have one width."""
        self._furthest = 1  # the first slot that no row has ever paid
        self._evidence = kind.evidence
        self._releases = kind.releases
        self._cleared = [field.name for field in kind.fields if field.cleared]
        self._tariff = tariff(kind, budget=share)
        self._bank = bank = Bank(
            private=kind.fields, public=self._evidence.fields,
            tagged=randomness.seeded, aging=idle is not None,
        )  # fmt: skip
        self._heritage = {} if heritage is None else heritage
        self._halfway = False
        self._idleness = None if idle is None else Idleness(idle)
        self._comes_back = Passage(kind, kind)
        self._going_idle: dict[Key, tuple[int, int, bytes]] = {}
        """Dropped rows that are not saved yet, the longest unsaved first: the first unsaved record,
        the newest time when that record came, and the row."""
        self._adder = kind.adder(bank.private)
        self._alone = Alone(bank, kind.schedule)
        self._releasing = Releasing(
            stream=stream, partition=partition, epoch=epoch, kind=kind, bank=bank
        )
        self._fresh = Fresh(stream, partition, epoch, kind, bank, randomness, self._heritage)

    @property
    def no_releases(self) -> Releases:
        """An empty table of what this engine releases."""
        return self._releasing.nothing

    def __repr__(self) -> str:
        """Show the position, never the content."""
        return f"Engine({self.stream}/{self.partition}, {len(self)} keys, position {self.position})"

    def __len__(self) -> int:
        """How many keys have a learner."""
        return len(self._bank)

    def __contains__(self, key: object) -> bool:
        """Whether a key has a learner."""
        return isinstance(key, bytes | None) and self._bank.row(key) is not None

    # -- slots in --------------------------------------------------------------------------------

    def apply(self, key: Key, losses: object, *, offset: int | None = None) -> Releases:
        """One slot: an event of `key`, whose losses are a vector of K numbers in [0, 1].

        Numbers outside are clipped. A vector of another length, a vector with NaN, infinity or
        anything but numbers in it, and None take their slot as the *null loss*, 1/2 for every
        action: an error would tempt you to drop the event, and a dropped event moves all later
        blocks (P1). A vector of another length or of texts warns too, once: only a program makes
        these. Anything but a vector (a text, a mapping, rows of rows) is refused; decode bytes from
        outside with a format of `streamdp.wire`, which refuses nothing.
        """
        row = as_vector(losses, actions=len(self.learner.actions))
        warn_of_shape(losses, actions=len(self.learner.actions))
        return self.apply_batch(Batch([key], _ONE_SLOT, self._at(offset), {"losses": row}))

    def observe(
        self,
        key: Key,
        *,
        action: str | None,
        loss: float | EllipsisType | None = ...,
        reward: float | EllipsisType | None = ...,
        context: Mapping[str, object] | None = None,
        offset: int | None = None,
    ) -> Releases:
        """One slot of a feedback stream: `action` was shown and had this loss in [0, 1].

        Or this reward, which is 1 − loss: give one of the two. A number outside [0, 1] is clipped,
        since whether it lies outside is content. A loss that is None or not a finite number teaches
        nothing about the action; an action that is None teaches nothing at all. Either way the slot
        is taken (P1). An action that is none of the learner's, and a loss of a type that is no
        number, are mistakes in the call and refused: give None for an action from outside that you
        do not know.

        A learner with contexts needs `context`, a mapping of fields to values, and `action` is one
        of those in a cell. Whatever is no level of a field, or is left out, is its level `other`.
        """
        check_action(action, self._shown)
        cell = cell_of(context, self._contexts)
        arm = NO_ARM if action is None else cell * self._many + self._shown[action]
        content: Content = {
            "played": np.array([arm], dtype=np.int32),
            "gain": np.array([_gain(loss, reward)], dtype=np.int64),
        }
        return self.apply_batch(Batch([key], _ONE_SLOT, self._at(offset), content))

    def _at(self, offset: int | None) -> Ints:
        """The offset of one slot's record, by default the next one."""
        at = self.position if offset is None else check_offset(offset)
        return np.array([at], dtype=np.int64)

    def apply_batch(self, batch: Batch) -> Releases:
        """Many slots; the result is exactly that of applying them one by one, and much faster.

        The slots of one record must come in one batch: the position moves past the last record.
        """
        batch = self._checked(batch)
        released = [
            self._releasing.of(self._step(part, self._fresh, limit=self.limit, read=part))
            for part in self._parts(batch)
        ]
        self._halfway = False
        return self._releasing.nothing.joined([part for part in released if len(part)])

    def _checked(self, batch: Batch) -> Batch:
        """The batch as the kind reads it; refuse one of another kind, and old records."""
        batch = self.kind.checked(batch)
        if batch.allowed is not None:
            check_allowed(batch.allowed, self.kind)
        check_order(batch, position=self.position)
        self._check_whole()
        return batch

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        """The batch in parts, between which the rows of idle keys are dropped.

        When a part is refused, time has gone on, the parts before it are in the rows, and their
        draws are lost (P5): the engine must be rebuilt.
        """
        if self._idleness is None:
            yield batch
            return
        self._halfway = True
        for part, before in self._idleness.parts(self._timed(batch)):
            if before is not None:
                self._drop(before)
            yield part

    def _step(self, batch: Batch, draws: Draws, *, limit: int, read: Batch) -> list[Releases]:
        """Plan, charge, apply; move the position past everything in `read`."""
        waves: list[Releases] = []
        slots = self._alone.lay_out(batch) if len(batch.index) == 1 else None
        if slots is not None:
            self._halfway = True
            self._adder.contents(slots, self._fresh.bits).add(slice(None), slots.rows)
            self._alone.note(slots)
        else:
            away = NOBODY if self._idleness is None else self._idleness.away
            planned = plan(
                self._bank, self.kind.schedule, batch,
                limit=limit, carried_of=draws.carried, away=away,
            )  # fmt: skip
            ends = ends_of(planned, self._bank, self._releases)
            self._halfway = True
            waves += self._apply(planned, ends, draws)
            self.slots_refused += planned.refused
        if len(read.offsets):
            self.position = int(read.offsets[-1]) + 1
        return waves

    def _apply(self, planned: Plan, ends: BlockEnds, draws: Draws) -> Iterator[Releases]:
        """Apply a plan whose ends were checked: mark them paid, then draw; yield what was drawn."""
        if len(planned.new):
            yield self._give_birth(planned, draws)
        ends.pay(self._bank.charged)
        self._furthest = max(self._furthest, int(ends.stop.max(initial=1)))
        slots = planned.slots
        if not len(slots.segments.of):
            return
        contents, bank, segments = (
            self._adder.contents(slots, self._fresh.bits), self._bank, slots.segments,
        )  # fmt: skip
        of_segments, end_of = slots.segment_rows, np.cumsum(segments.closes) - 1
        for which in slots.waves():
            rows, into = of_segments[which], segments.into[which]
            begins = into == 0
            if np.count_nonzero(begins):
                at = segments.begin[which][begins]
                bank.first_offset[rows[begins]] = slots.offsets_at(at)
            bank.block[rows] = segments.block[which]
            bank.slots[rows] += segments.length[which]
            contents.add(which, rows)
            closes = segments.closes[which]
            if np.count_nonzero(closes):
                last = (segments.begin[which] + segments.length[which])[closes] - 1
                place = slots.grouped.places(last)
                rows, block, start, stop, due = ends.take(end_of[which][closes])
                ended = Ended(
                    rows=rows,
                    block=block,
                    start=start,
                    stop=stop,
                    first_offset=bank.first_offset[rows],
                    last_offset=slots.batch.offsets[place],
                    place=place,
                )
                yield from self._close(ended, due, draws, slots.batch)
        self._mark_unsaved(slots)

    def _give_birth(self, planned: Plan, draws: Draws) -> Releases:
        """The openings of new rows; a row that carries over draws none."""
        bank, batch, carried = self._bank, planned.slots.batch, planned.carried
        schedule, evidence = self.kind.schedule, self._evidence
        keys = [batch.keys[key] for key in planned.new.tolist()]
        rows = bank.add(keys, planned.born)
        self._fresh.tag(rows)
        for at, inherited in carried.items():
            bank.block[rows[at]] = inherited.block
        begin = planned.begin
        bank.slots[rows], bank.charged[rows] = begin - 1, begin
        released = draws.openings(rows)
        self._put(rows, evidence.opened(released))
        lengths = schedule.lengths(bank.block[rows])
        if carried:
            which = np.fromiter(carried, dtype=np.int64, count=len(carried))
            known = list(carried.values())
            self._put(rows[which], evidence.resumed(known, lengths[which], batch.allowed))
            released[which, 0] = [of.action for of in known]
        in_force = evidence.in_force(Gathered(bank.public, rows), lengths, batch.allowed)
        place = np.searchsorted(batch.offsets, planned.born)
        if batch.times is not None:
            bank.unsaved_time[rows] = batch.times[place]
        for key in keys:  # what they carried over is in their rows now
            self._heritage.pop(key, None)
            if self._idleness is not None:
                self._idleness.away.discard(key)
                self._going_idle.pop(key, None)
        named = {(keys[at], int(planned.born[at])): known for at, known in carried.items()}
        born = Ended(rows, np.zeros_like(rows), begin, begin, planned.born, planned.born, place)
        return self._releasing.drawn(0, born, released, in_force, named)

    def _close(
        self, ended: Ended, paid: Sequence[Bools], draws: Draws, batch: Batch
    ) -> Iterator[Releases]:
        """Draw the releases that were paid for, fold them, and begin the next blocks.

        All draws come before the fold: what is in force during a block is what its draws know.
        """
        bank, evidence, rows, lengths = (
            self._bank, self._evidence, ended.rows, ended.stop - ended.start,
        )  # fmt: skip
        allowed, of_named = batch.allowed, evidence.of_named
        drawn = [
            (code, due, of_named(draws.released(release.name, rows[due]), batch.named))
            for code, (release, due) in enumerate(zip(self._releases, paid, strict=True), start=1)
            if due.any()
        ]
        public = Gathered(bank.public, rows)
        self._put(rows, evidence.fold(public, drawn[0][2], lengths, allowed))
        next_lengths = self.kind.schedule.lengths(ended.block + 1)
        in_force = evidence.in_force(public, next_lengths, allowed)
        for name in self._cleared:
            bank.private[name][rows] = 0
        bank.block[rows] += 1
        for code, due, released in drawn:
            some = Ended(*(column[due] for column in ended))
            yield self._releasing.drawn(code, some, released, in_force[due])

    def _put(self, rows: Ints, public: Columns) -> None:
        """Store public columns of some rows."""
        for name, column in public.items():
            self._bank.public[name][rows] = column

    def _mark_unsaved(self, slots: BatchSlots) -> None:
        """Remember the first record that the latest save of each touched row does not hold."""
        bank, rows, times = self._bank, slots.rows, slots.batch.times
        clean = bank.first_unsaved[rows] == CLEAN
        if times is None and not np.count_nonzero(clean):
            return
        ends = np.cumsum(slots.grouped.counts)
        if times is not None:
            bank.seen[rows] = times[slots.grouped.places(ends - 1)]
        if np.count_nonzero(clean):
            begins = (ends - slots.grouped.counts)[clean]
            bank.first_unsaved[rows[clean]] = slots.offsets_at(begins)
            if times is not None:
                bank.unsaved_time[rows[clean]] = times[slots.grouped.places(begins)]

    def skip_to(self, position: int) -> None:
        """Move past offsets that hold no records (control records, a first start)."""
        if position < self.position:
            raise InvalidConfig(
                "position", "backwards", expected=f"≥ {self.position}", got=position
            )
        self.position = position

    # -- what is in force ------------------------------------------------------------------------

    def policy(
        self, key: Key, context: Mapping[str, object] | None = None
    ) -> dict[str, float] | None:
        """How likely each action is, by the policy in force for a key of a feedback stream.

        None if the key has no learner. A learner with contexts needs one, as in `observe`. Computed
        at each call: keep it until the key's next release.
        """
        if self._evidence.answers != "policy":
            raise InvalidConfig(
                "policy", "of a stream of losses", expected="action(key)", got="policy"
            )
        many, cell = self._many, cell_of(context, self._contexts)
        parts = self.in_force(key)
        if parts is None:
            return None
        of_cell = (parts[cell * many : (cell + 1) * many] / PARTS).tolist()
        return {name: of_cell[at] for name, at in self._shown.items()}

    def action(self, key: Key) -> str | None:
        """The action in force for a key; None if it has no learner."""
        if self._evidence.answers != "action":
            raise InvalidConfig(
                "action", "of a feedback stream", expected="policy(key)", got="action"
            )
        number = self.in_force(key)
        return None if number is None else self.learner.actions[int(number)]

    def in_force(self, key: Key) -> InForce | None:
        """What releases say: the number of an action, or a policy, in parts of 2²⁴ of each arm.

        It is over all actions, whatever was `allowed` in the newest batch.
        """
        check_keys([key])
        row = self._bank.row(key)
        if row is None:
            return None
        rows = np.array([row])
        lengths = self.kind.schedule.lengths(self._bank.block[rows])
        in_force: InForce = self._evidence.in_force(Gathered(self._bank.public, rows), lengths)[0]
        return in_force

    def slots(self, key: Key) -> int:
        """How many slots a key has taken; public."""
        check_keys([key])
        row = self._bank.row(key)
        return 0 if row is None else int(self._bank.slots[row])

    @property
    def ledger(self) -> Charges:
        """The charges, by key."""
        return Charges(self._tariff, self.kind.schedule, self._bank, self._furthest)

    # -- idle keys -------------------------------------------------------------------------------

    def _timed(self, batch: Batch) -> Batch:
        """The batch with the newest time at each of its slots."""
        if self._idleness is None:
            return batch
        begun = self._idleness.newest is not None
        timed = self._idleness.timed(batch)
        if not begun and timed.times is not None and len(timed.times):
            self._begin_time(self._idleness, int(timed.times[0]))
        return timed

    def _begin_time(self, idleness: Idleness, time: int) -> None:
        """Give older rows, which have no time, that of the first record."""
        rows = slice(len(self._bank))
        idleness.since = time
        unknown = self._bank.seen[rows] == 0
        self._bank.seen[rows][unknown] = time
        self._bank.unsaved_time[rows][unknown] = time

    def _drop(self, before: int) -> None:
        """Drop the rows without a record since that time, and keep their public state.

        The open block is abandoned (P9): its sums go with the row.
        """
        assert self._idleness is not None
        bank, count = self._bank, len(self._bank)
        stays = bank.seen[:count] >= before
        rows = np.flatnonzero(~stays)
        if not len(rows):
            return
        unsaved = rows[bank.first_unsaved[rows] != CLEAN]
        saved = snapshot.encode(self.layout, bank, unsaved, valid_at=self.position)
        since = (bank.first_unsaved[unsaved].tolist(), bank.unsaved_time[unsaved].tolist())
        for (key, row), first, time in zip(saved, *since, strict=True):
            self._going_idle[key] = first, time, row
        self._going_idle = dict(sorted(self._going_idle.items(), key=lambda item: item[1][0]))
        for key, after, known in self.known(rows):
            carried = self._comes_back.carried(after, known)
            assert carried is not None, "the same learner has all of its actions"
            self._idleness.away.add(key)
            self._heritage[key] = carried
        kept = np.flatnonzero(stays)
        bank.keep(kept)

    def known(self, rows: Ints | None = None) -> Iterator[tuple[Key, After, Known]]:
        """What the keys of some rows (or of all) may carry over: public columns only."""
        bank = self._bank
        some = np.arange(len(bank)) if rows is None else rows
        at = zip(some.tolist(), bank.born[some].tolist(), bank.block[some].tolist(), strict=True)
        of_rows = self._evidence.known(Gathered(bank.public, some))
        for (row, born, block), known in zip(at, of_rows, strict=True):
            yield bank.keys[row], After(self.epoch, born, block), known

    @property
    def idleness(self) -> Idleness | None:
        """The partition's time, where keys go idle."""
        return self._idleness

    def ages(self) -> Ages | None:
        """The state of time for a checkpoint; None where no key goes idle."""
        idleness = self._idleness
        if idleness is None or idleness.newest is None or idleness.since is None:
            return None
        low = self._bank.low_time(idleness.newest)
        _, time, _ = next(iter(self._going_idle.values()), (0, low, b""))
        return Ages(idleness.idle, idleness.since, idleness.newest, min(low, time))

    def reach(self, time: int) -> None:
        """Move time forward for records that are in no batch because their keys get no learner."""
        if self._idleness is None:
            return
        self._check_whole()
        if self._idleness.newest is None:
            self._begin_time(self._idleness, max(0, time))
        if self._idleness.reaches(time):
            self._halfway = True
            self._drop(self._idleness.dropped_before())
            self._halfway = False

    def knows(self, key: Key) -> bool:
        """Whether a key has a learner, or had one and is away."""
        return key in self or (self._idleness is not None and key in self._idleness.away)

    # -- saving ----------------------------------------------------------------------------------

    def loading(self) -> snapshot.Loading:
        """What puts saved rows into this engine, which must be new, for a rebuild."""
        return snapshot.Loading(self.layout, self._bank)

    def low_water(self) -> int:
        """The oldest record that a rebuild from the saved rows would read again."""
        low = int(self._bank.first_unsaved[: len(self)].min(initial=self.position))
        first, _, _ = next(iter(self._going_idle.values()), (low, 0, b""))
        return min(low, first)

    def open_since(self, *, end: int | None = None) -> int:
        """The oldest record of any open block, or `end` (by default the position); public."""
        bank, rows = self._bank, slice(len(self._bank))
        begun = bank.slots[rows] >= self.kind.schedule.starts(bank.block[rows])
        last = self.position if end is None else end
        return int(bank.first_offset[rows][begun].min(initial=last))

    @property
    def rows(self) -> int:
        """How many rows a rebuild arrives at: dropped rows count until they are saved."""
        return len(self) + len(self._going_idle)

    def unsaved(self, *, before: int) -> int:
        """How many unsaved rows were dropped, or changed by a record older than `before`."""
        changed = np.count_nonzero(self._bank.first_unsaved[: len(self)] < before)
        return int(changed) + len(self._going_idle)

    def save(self, *, most: int | None = None) -> list[tuple[Key, bytes]]:
        """At most `most` rows that changed since their save: dropped ones, then longest unsaved.

        They count as saved from now on: a caller that cannot make them durable must abandon this
        engine and rebuild one.
        """
        self._check_whole()
        room = self.rows if most is None else most
        dropped = [(key, self._going_idle.pop(key)[2]) for key in [*islice(self._going_idle, room)]]
        rows = self._bank.longest_unsaved(room - len(dropped))
        saved = snapshot.encode(self.layout, self._bank, rows, valid_at=self.position)
        self._bank.first_unsaved[rows] = CLEAN
        return [*dropped, *saved]

    def _check_whole(self) -> None:
        """Refuse to use an engine that holds half a batch (P4)."""
        if self._halfway:
            raise StateMismatch(
                "engine",
                "a batch failed halfway",
                expected="a rebuilt engine",
                got=f"one at position {self.position} with half a batch",
            )


def _gain(loss: object, reward: object) -> int:
    """The gain of a call of `observe`, which says either a loss or a reward."""
    if (loss is ...) == (reward is ...):
        got = "neither" if loss is ... else "both"
        raise InvalidConfig("observe", "needs one number", expected="loss or reward", got=got)
    if reward is ...:
        return centred_gain(as_single(loss))
    return -centred_gain(as_single(reward, where="reward"))
