"""The state machine around a bank: losses or feedback in, releases out. Pure: no clock, no file.

What one batch does, in this order:

1. *Plan.* Which rows its slots belong to and where their blocks end: from keys, offsets and slot
   numbers alone. Nothing has changed yet.
2. *Charge* (P6). The ledger books every block that will end, or refuses and nothing changes.
3. *Apply.* New rows are born and draw their openings; each segment is added to its row; where a
   block ends its releases are drawn, the r-th blocks of all keys together. `losses` does this for
   sums of losses and a private choice, `feedback` for sums of gains, noise and a policy; the
   learner decides which.

Releases come in the order of the records that ended their blocks. How a stream of records is cut
into batches changes nothing.

When the third step fails (no entropy, no memory, an interrupt), half a batch is in the rows. Such
an engine refuses to go on or to be saved, because these slots would be counted twice: rebuild it.
An engine whose keys go idle refuses even after a batch that failed in the first two steps: time has
moved on.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, MutableMapping, Sequence, Set
from dataclasses import replace
from fractions import Fraction

import numpy as np

from streamdp.core import snapshot
from streamdp.core.arrays import Ints
from streamdp.core.bank import CLEAN, Bank
from streamdp.core.calibration import parse_epsilon
from streamdp.core.engine import feedback
from streamdp.core.engine.arguments import (
    check_action,
    check_learner,
    check_offset,
    check_place,
    check_randomness,
)
from streamdp.core.engine.charges import Charges, tariff
from streamdp.core.engine.draws import Draws, Fresh
from streamdp.core.engine.idleness import Ages, Idleness, Leaving, joined, known_of
from streamdp.core.engine.layout import remembered, row_layout
from streamdp.core.engine.losses import LossBlocks
from streamdp.core.engine.operator import NotPrivate
from streamdp.core.engine.plan import Batch, check_keys, checked, plan
from streamdp.core.engine.quiet import Quiet, QuietFeedback
from streamdp.core.engine.releasing import Releasing
from streamdp.core.engine.waves import Applier, Blocks, Wave
from streamdp.core.errors import InvalidConfig, StateMismatch, complaint
from streamdp.core.events import NO_ARM, Carried, FeedbackBatch, Key, LossBatch, Releases
from streamdp.core.evidence.policy import Policy
from streamdp.core.grid import as_float32, as_single, as_vector, centred_gains
from streamdp.core.learners import Leader, Learner, PolicyLearner
from streamdp.core.ledger import Ledger
from streamdp.core.randomness import Randomness
from streamdp.core.regret import Estimate

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
        learner: Learner,
        budget: str | Fraction | int | None,
        randomness: Randomness,
        epoch: int = 1,
        estimates: Sequence[Estimate] = (),
        limit: int = 1_000_000,
        not_private: NotPrivate | None = None,
        heritage: MutableMapping[Key, Carried] | None = None,
        withheld: Container[Key] = frozenset(),
        idle: int | None = None,
    ) -> None:
        """`heritage`: what keys carry over from their previous learners when they open here, unless
        they are among `withheld`. `idle`: milliseconds after which a key's row is dropped; see
        `engine.idleness`. Batches then need times.
        """
        share = None if budget is None else parse_epsilon(budget, "budget")
        check_learner(
            learner, Leader | PolicyLearner, recipe='incumbent_leader(actions=…, epsilon="0.5")'
        )
        check_randomness(randomness)
        check_place(stream, partition=partition, epoch=epoch)
        if not 1 <= limit <= MOST_ROWS:
            raise InvalidConfig(complaint("limit", "rows", expected=f"1 … {MOST_ROWS}", got=limit))
        self.stream, self.partition, self.epoch, self.limit = stream, partition, epoch, limit
        self.learner, self.estimates = learner, tuple(estimates)
        self.position = 0
        self.slots_refused = 0
        self._heritage = {} if heritage is None else heritage
        self._halfway = False
        self._tariff = tariff(learner, self.estimates, budget=share)
        self._ledger = None if share is None else Ledger(share)
        windowed = isinstance(learner, Leader) and learner.window == "random_prefix"
        self._bank = Bank(
            len(learner.actions),
            windows="drawn" if windowed else "fixed",
            whole="summed" if self.estimates else "counted",
            tagged="seeded" if randomness.seeded else "system",
            remembered=remembered(learner),
            observes="feedback" if isinstance(learner, PolicyLearner) else "losses",
            ages="never" if idle is None else "idle",
        )
        self._not_private = not_private
        self._idleness = None if idle is None else Idleness(idle)
        self._leaving = Leaving()
        self._releasing = Releasing(
            stream=stream, partition=partition, epoch=epoch, learner=learner,
            estimates=self.estimates, bank=self._bank,
        )  # fmt: skip
        self._fresh = Fresh(
            stream, partition, epoch, learner, self.estimates, randomness, self._heritage, withheld
        )
        self._quiet: Quiet | QuietFeedback
        self._applier = Applier(
            schedule=learner.schedule,
            blocks=self._blocks(not_private),
            bank=self._bank,
            fresh=self._fresh,
        )

    def _blocks(self, not_private: NotPrivate | None) -> Blocks:
        """The part of the engine that the kind of learner decides."""
        learner, bank = self.learner, self._bank
        if isinstance(learner, PolicyLearner):
            if not_private is not None:
                raise InvalidConfig(
                    complaint(
                        "not_private", "on a feedback stream", expected="none", got="exact totals"
                    )
                )
            self._quiet = QuietFeedback(learner=learner, bank=bank)
            return feedback.FeedbackBlocks(learner=learner, bank=bank)
        self._quiet = Quiet(
            learner=learner, bank=bank, counts_whole=self.estimates, not_private=not_private
        )
        return LossBlocks(
            learner=learner,
            estimates=self.estimates,
            bank=bank,
            fresh=self._fresh,
            not_private=not_private,
        )

    def __repr__(self) -> str:
        """Show the position, never the content."""
        return f"Engine({self.stream}/{self.partition}, {len(self)} keys, position {self.position})"

    def __len__(self) -> int:
        """How many keys have a learner."""
        return len(self._bank)

    def __contains__(self, key: object) -> bool:
        """Whether a key has a learner."""
        return isinstance(key, bytes | None) and self._bank.row(key) is not None

    def apply(self, key: Key, losses: object, *, offset: int | None = None) -> Releases:
        """One slot: an event of `key`, whose losses are a vector of K numbers in [0, 1].

        Numbers outside are clipped. A vector of another length, a vector with NaN, infinity or
        anything but numbers in it, and None take their slot as the *null loss*, 1/2 for every
        action: an error would tempt you to drop the event, and a dropped event moves all later
        blocks (P1). Anything but a vector (a text, a mapping, rows of rows) is a mistake in the
        call and refused; decode bytes from outside with a format of `streamdp.wire`, which refuses
        nothing.
        """
        row = as_vector(losses, actions=len(self.learner.actions))
        at = self.position if offset is None else check_offset(offset)
        return self.apply_batch(LossBatch([key], _ONE_SLOT, row, np.array([at], dtype=np.int64)))

    def observe(
        self, key: Key, *, action: str | None, loss: float | None, offset: int | None = None
    ) -> Releases:
        """One slot of a feedback stream: `action` was shown and had this loss in [0, 1].

        A loss that is None or not a finite number teaches nothing about the action; an action that
        is None or unknown teaches nothing at all. Either way the slot is taken (P1). A name that is
        no text, and a loss of a type that is no number, are mistakes in the call and refused.
        """
        check_action(action)
        number = as_float32([as_single(loss)], actions=1)[:, 0]
        arms = {name: arm for arm, name in enumerate(self.learner.actions)}
        at = self.position if offset is None else check_offset(offset)
        return self.apply_batch(
            FeedbackBatch(
                keys=[key],
                index=_ONE_SLOT,
                played=np.array([arms.get(action, NO_ARM) if action else NO_ARM], dtype=np.int32),
                gain=centred_gains(number),
                offsets=np.array([at], dtype=np.int64),
            )
        )

    def apply_batch(
        self, batch: Batch, *, noting: Callable[[Releases], None] | None = None
    ) -> Releases:
        """Many slots; the result is exactly that of applying them one by one, 50 times as fast.

        The slots of one record must come in one batch: the position moves past the last record.
        `noting` is called with releases before their keys may be dropped and open again, so that
        the caller can bring `withheld` up to date.
        """
        batch = checked(batch, learner=self.learner, position=self.position)
        self._check_whole()
        if self._idleness is None:
            released = self._drawn(batch, noting)
        else:
            released = self._between_drops(self._idleness, self._timed(batch), noting)
        self._halfway = False
        return released

    def _drawn(self, batch: Batch, noting: Callable[[Releases], None] | None) -> Releases:
        """Apply slots between which no row is dropped."""
        released = self._releasing.of(self._step(batch, self._fresh, limit=self.limit, read=batch))
        if noting is not None:
            noting(released)
        return released

    def _between_drops(
        self, idleness: Idleness, batch: Batch, noting: Callable[[Releases], None] | None
    ) -> Releases:
        """Apply a batch in parts, between which rows are dropped.

        When a part is refused, time has gone on, the parts before it are in the rows, and their
        draws are lost (P5): the engine must be rebuilt.
        """
        self._halfway = True
        released = []
        for part, before in idleness.parts(batch):
            if before is not None:
                self._drop(before)
            released.append(self._drawn(part, noting))
        return joined(released, nothing=self._releasing.nothing)

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
        self._leaving.add(saved, bank.first_unsaved[unsaved], bank.unsaved_time[unsaved])
        for key, known in known_of(self.learner, bank, rows, epoch=self.epoch):
            carried = self._idleness.passage(self.learner).carried(known)
            assert carried is not None, "the same learner has all of its actions"
            self._idleness.away.add(key)
            self._heritage[key] = carried
        kept = np.flatnonzero(stays)
        bank.keep(kept)
        if self._ledger is not None:
            self._ledger.keep(kept)
        if self._not_private is not None:
            self._not_private.keep(kept)

    def skip_to(self, position: int) -> None:
        """Move past offsets that hold no records (control records, a first start)."""
        if position < self.position:
            raise InvalidConfig(
                complaint("position", "backwards", expected=f"≥ {self.position}", got=position)
            )
        self.position = position

    def policy(self, key: Key) -> Policy | None:
        """The policy in force for a key of a feedback stream; None if it has no learner."""
        check_keys([key])
        if not isinstance(self.learner, PolicyLearner):
            raise InvalidConfig(
                complaint("policy", "of a stream of losses", expected="action(key)", got="policy")
            )
        row = self._bank.row(key)
        if row is None:
            return None
        rows = np.array([row])
        policy: Policy = feedback.in_force(self.learner, self._bank, rows)[0]
        return policy

    def action(self, key: Key) -> str | None:
        """The action in force for a key; None if it has no learner."""
        check_keys([key])
        if isinstance(self.learner, PolicyLearner):
            raise InvalidConfig(
                complaint("action", "of a feedback stream", expected="policy(key)", got="action")
            )
        row = self._bank.row(key)
        return None if row is None else self.learner.actions[int(self._bank.action[row])]

    def slots(self, key: Key) -> int:
        """How many slots a key has taken; public."""
        check_keys([key])
        row = self._bank.row(key)
        return 0 if row is None else int(self._bank.slots[row])

    @property
    def ledger(self) -> Charges:
        """The charges, by key."""
        return Charges(self._ledger, self._bank)

    @property
    def layout(self) -> snapshot.Layout:
        """The layout of saved rows; all have one width."""
        layout = row_layout(self.learner, self.estimates, epoch=self.epoch)
        return layout if self._idleness is None else replace(layout, seen=1)

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
        _, leaving = self._leaving.low(self.position, idleness.newest)
        return Ages(idleness.idle, idleness.since, idleness.newest, min(low, leaving))

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

    def low_water(self) -> int:
        """The oldest record that a rebuild from the saved rows would read again."""
        low = self._bank.low_water(self.position)
        return min(low, self._leaving.low(low, 0)[0])

    def open_since(self, *, end: int | None = None) -> int:
        """The oldest record of any open block, or `end` (by default the position); public."""
        bank, rows = self._bank, slice(len(self._bank))
        begun = bank.slots[rows] >= self.learner.schedule.starts(bank.block[rows])
        last = self.position if end is None else end
        return int(bank.first_offset[rows][begun].min(initial=last))

    @property
    def rows(self) -> int:
        """How many rows a rebuild arrives at: dropped rows count until they are saved."""
        return len(self) + len(self._leaving)

    def unsaved(self, *, before: int) -> int:
        """How many unsaved rows were dropped, or changed by a record older than `before`."""
        return self._bank.unsaved(before=before) + len(self._leaving)

    def save(self, *, most: int | None = None) -> list[tuple[Key, bytes]]:
        """At most `most` rows that changed since their save: dropped ones, then longest unsaved.

        They count as saved from now on: a caller that cannot make them durable must abandon this
        engine and rebuild one.
        """
        self._check_whole()
        room = self.rows if most is None else most
        dropped = self._leaving.take(room)
        rows = self._bank.longest_unsaved(room - len(dropped))
        saved = snapshot.encode(self.layout, self._bank, rows, valid_at=self.position)
        self._bank.first_unsaved[rows] = CLEAN
        return [*dropped, *saved]

    def _step(self, batch: Batch, draws: Draws, *, limit: int, read: Batch) -> list[Wave]:
        """Plan, charge, apply; move the position past everything in `read`."""
        waves = [] if self._took_quietly(batch) else self._planned(batch, draws, limit=limit)
        if len(read.offsets):
            self.position = int(read.offsets[-1]) + 1
        return waves

    def _took_quietly(self, batch: Batch) -> bool:
        """Add the batch at once if it is one slot that begins and ends nothing; return whether."""
        row = self._quiet.row(batch)
        if row is None:
            return False
        self._halfway = True
        self._quiet.take(batch, row)
        return True

    def _planned(self, batch: Batch, draws: Draws, *, limit: int) -> list[Wave]:
        """The general way: for slots that begin or end something, and batches of several slots."""
        away = NOBODY if self._idleness is None else self._idleness.away
        planned = plan(
            self._bank, self.learner.schedule, batch, limit=limit, heritage=draws.carried, away=away
        )
        charged = np.flatnonzero(planned.segments.closes)
        self._grow_ledger(len(self._bank) + len(planned.new))
        self._book(planned.segment_rows[charged], planned.segments.block[charged])
        self._halfway = True
        waves = list(self._applier.apply(planned, draws))
        self._forget_heritage(batch.keys[key] for key in planned.new.tolist())
        self.slots_refused += planned.refused
        return waves

    def _forget_heritage(self, opened: Iterable[Key]) -> None:
        """Forget what these keys carried over: it is in their rows now."""
        if not self._heritage and self._idleness is None:
            return
        for key in opened:
            self._heritage.pop(key, None)
            if self._idleness is not None:
                self._idleness.away.discard(key)
                self._leaving.forget(key)

    def _check_whole(self) -> None:
        """Refuse to use an engine that holds half a batch (P4)."""
        if self._halfway:
            raise StateMismatch(
                complaint(
                    "engine",
                    "a batch failed halfway",
                    expected="a rebuilt engine",
                    got=f"one at position {self.position} with half a batch",
                )
            )

    def _grow_ledger(self, rows: int) -> None:
        if self._ledger is not None:
            self._ledger.grow(max(0, rows - len(self._ledger)))

    def _book(self, accounts: Ints, blocks: Ints) -> None:
        """Charge blocks before anything is drawn from them (P6)."""
        if self._ledger is None or self._tariff is None:
            return
        starts, stops = self.learner.schedule.starts(blocks), self.learner.schedule.stops(blocks)
        for epsilon, which in self._tariff.of_lengths(stops - starts):
            self._ledger.book(accounts[which], starts[which], stops[which], epsilon=epsilon)

    def _book_past(self) -> None:
        """Charge the blocks that ended before saved rows were saved."""
        self._grow_ledger(len(self._bank))
        if self._ledger is None or self._tariff is None:
            return
        ended, schedule = self._bank.block[: len(self._bank)], self.learner.schedule
        for epsilon, begin, end in self._tariff.of_first(int(ended.max(initial=0)), schedule):
            accounts = np.flatnonzero(ended > begin)
            stops = schedule.starts(np.minimum(ended[accounts], end))
            starts = np.full_like(stops, schedule.start(begin))
            self._ledger.book(accounts, starts, stops, epsilon=epsilon)
