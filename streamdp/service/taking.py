"""Takes a partition: everything durable is checked before any of it is used.

Streams and assemblies are asked the same questions in the same order (`_Found.open`):

1. Are the topics that the ledger names the configured ones?
2. Without a checkpoint: is it a first start? Or was the state lost, so that an epoch must begin?
3. Are the inputs still the topics that were read, with all their partitions? No epoch changes that.
4. Is the configured epoch the state's? Or does a later one begin here?
5. Does the checkpoint know every line of the ledger, and does the ledger still have the newest?
6. Is the digest of the configuration the state's?
7. Is the input still there from `low_water` on, and does it end where it ended or later?
8. Have the releases that wait room in the budget, and what is charged from here on?

On a contradiction the partition halts (`StateMismatch`); it never resets or skips an offset. The
way out is a larger `epoch` in the configuration or, if only one partition of a stream has lost
something, in its `partition_epochs`: then the other partitions' learners go on. If no epoch could
be sure to read no event twice, the way out is an input with another name.

Keys open in a new epoch with what is public of the one before (`carrying`), unless the option says
otherwise. A state that was lost or rolled back carries nothing: its keys begin anew. Neither does
a state whose ledger has lost lines: what it would carry follows from no evidence any more.

No way moves the position back (P11). A new epoch begins behind the checkpoint, the group offset and
the ledger, so a state that was rolled back, whose own position is too old, causes no second release
of an event. Offsets and charges belong to a topic, so a stream keeps its input for life, and an
assembly its topics. The charges of others count too, also of streams that are gone (`ledgers`):
renaming a stream must not spend a budget twice. No epoch takes back recorded releases: they are
published, so the records that they charge need room in the budget.

A topic id, where the transport has one, tells whether the input is still the same topic. The
checkpoint holds it; a checkpoint without one adopts it. If the state is gone too, the ledger says
which topic was read: in its first line, and in each line where an epoch begins. Without ids,
`input_fingerprint` looks for the last record that was read.

`start` is for the first partitions. A partition that is added later begins at its first record;
otherwise records that came before any process knew of it would be skipped. Each checkpoint, and the
group's offsets, say with how many partitions the stream or assembly began.

**Assemblies.** Outcomes that are no longer retained are no outcomes: what retention by size has
deleted depends on what outcomes there were. No message says how far they reach. The ledger's newest
line says up to where requests may have become events, before any of them is one. The checkpoint
knows the exact request, so a new epoch goes by the line only if the checkpoint is gone or older.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Self

from msgspec import UNSET, UnsetType

from streamdp.core.errors import (
    ConfigurationMismatch,
    StateMismatch,
    Superseded,
    complaint,
)
from streamdp.core.events import Key, names_in
from streamdp.core.releases import Release
from streamdp.ports import EntriesThat, Partition, Taken
from streamdp.service.carrying import (
    Begins,
    CarriedEntries,
    carried_entries,
    has_its_scale,
    is_readable,
)
from streamdp.service.charges_by_others import ALONE, ChargesByOthers, Scope
from streamdp.service.input_fingerprint import way_out
from streamdp.service.saved_entries import read
from streamdp.service.settings import Start, changes
from streamdp.service.spec import StreamSpec
from streamdp.wire.entries import Entries, release_entry
from streamdp.wire.lines import Assembled, EpochMark, LedgerLine, TakenList
from streamdp.wire.published import decode_any_ledger
from streamdp.wire.state import (
    NOTHING_READ,
    Checkpoint,
    EpochEntries,
    Joined,
    Recorded,
    SavedState,
    decode_checkpoint,
    decode_learner,
    decode_remark,
)

if TYPE_CHECKING:
    from streamdp.service.assembly_spec import AssemblySpec

_NONE = Fraction(0)


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of taking a partition: how it goes on."""

    point: Checkpoint
    """What a rebuild arrives at, as the next commit would write it: the position where new input
    begins, and `low_water`, the first record that the rebuild reads."""
    saved: SavedState
    new_epoch: int | None = None  # the epoch before this one, if a new one begins here
    adopts: bool = False  # whether the input's id is new to the checkpoint
    carries: bool = False  # whether the new epoch carries over what is public

    @property
    def position(self) -> int:
        """The position that a rebuild must reach."""
        return self.point.next_offset

    @property
    def goes_on(self) -> bool:
        """Whether the partition goes on from its state: neither a first start nor a new epoch."""
        return self.new_epoch is None and self.saved.checkpoint is not None

    def waits(self, recorded: Recorded) -> bool:
        """Whether a recorded release still has to be published."""
        return recorded.ordinal > self.point.lines_published

    def waiting(self) -> list[Release]:
        """The releases that charge something and still have to be published."""
        releases = [of.release for of in self.saved.releases.values() if self.waits(of)]
        return [release for release in releases if release.stop > release.start]


def scope(spec: StreamSpec | AssemblySpec, partition: Partition, taken: Taken) -> Scope:
    """Which other ledgers matter to how this partition goes on."""
    entries = Entries(partition.stream, partition.number)
    value = taken.state.get(entries.checkpoint)
    if value is None:
        return Scope.ALL if taken.last_ledger_line is None else Scope.LOST
    if spec.epoch_of(partition.number) > decode_checkpoint(value).epoch:
        return Scope.ALL
    return Scope.EARLIER


def open_partition(
    spec: StreamSpec | AssemblySpec,
    partition: Partition,
    taken: Taken,
    *,
    by_others: ChargesByOthers,
) -> Decision:
    """Check what is durable and decide how the partition goes on; raise if it must halt."""
    found = _Found.read(spec, partition, taken, by_others, read(partition, taken))
    decision = found.open()
    found.check_waiting(decision.waiting())
    if decision.goes_on:
        check_alone(partition, decision.position, by_others)
    return decision


def carried_entries_at(
    spec: StreamSpec,
    partition: Partition,
    decision: Decision,
    *,
    opened: Callable[[Key], bool] = lambda key: False,
) -> CarriedEntries:
    """What keys carry over into the partition's epoch; `opened` knows keys beside the state's."""
    begins = Begins.NOT
    if decision.new_epoch is not None:
        begins = Begins.CARRYING if decision.carries else Begins.ANEW
    saved = decision.saved
    waiting = {
        release_entry(identity)
        for identity, drawn in saved.releases.items()
        if decision.waits(drawn)
    }
    return carried_entries(
        spec, partition.number, saved, begins=begins, waiting=waiting, opened_now=opened
    )


def of_configuration(partition: Partition) -> EntriesThat:
    """The few entries of a state that `check_configuration` needs."""
    entries = Entries(partition.stream, partition.number)
    learner = entries.all_of("learner")
    return EntriesThat(lambda place: place == entries.checkpoint or place.startswith(learner))


def check_configuration(
    spec: StreamSpec | AssemblySpec, partition: Partition, taken: Taken
) -> None:
    """Refuse a configuration that did not make the state, whatever else may be wrong with it.

    It reads the checkpoint and what its rows mean, never the rows.
    """
    entries, where = Entries(partition.stream, partition.number), f"state of {partition}"
    value, now = taken.state.get(entries.checkpoint), EpochEntries()
    checkpoint = None if value is None else decode_checkpoint(value, where=where)
    if checkpoint is not None:
        learner = taken.state.get(entries.learner(epoch=checkpoint.epoch))
        now.learner = None if learner is None else decode_learner(learner, where=where)
    found = _Found.read(spec, partition, taken, ALONE, SavedState(checkpoint, now, {}, ()))
    if checkpoint is not None:
        found.check_epoch(checkpoint)
        if found.epoch == checkpoint.epoch:
            found.check_digest(checkpoint)


def epochs_of_no_partition(spec: StreamSpec | AssemblySpec, partitions: int) -> str | None:
    """The complaint about epochs of partitions that the input does not have; None if it has all.

    A slip of the pen leaves the partition that was meant as it is. It harms no partition, so none
    is halted for it.
    """
    beyond = [number for number in sorted(spec.partition_epochs) if number >= partitions]
    if not beyond:
        return None
    return complaint(
        f"streams.{spec.name}.partition_epochs",
        f"{spec.topics.input} has no such partition",
        expected=f"numbers from 0 to {partitions - 1}",
        got=", ".join(map(str, beyond)),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What is durable of a partition that is taken, and the configuration that takes it."""

    spec: StreamSpec | AssemblySpec
    partition: Partition
    taken: Taken
    by_others: ChargesByOthers
    saved: SavedState
    line: LedgerLine | Assembled | None  # the newest of the ledger

    @classmethod
    def read(
        cls,
        spec: StreamSpec | AssemblySpec,
        partition: Partition,
        taken: Taken,
        by_others: ChargesByOthers,
        saved: SavedState,
    ) -> Self:
        """Read the ledger's line; it and the state must be of the configured topics."""
        line = None if taken.last_ledger_line is None else decode_any_ledger(taken.last_ledger_line)
        found = cls(spec, partition, taken, by_others, saved, line)
        if line is not None:
            found._check_topics(line)
        point = saved.checkpoint
        if point is not None and (point.joined is UNSET) == found.assembles:
            kinds = ("a stream's", "an assembly's")
            raise found.differs(
                "the state is of something else with this name; only another name may read these"
                " topics",
                kinds[found.assembles],
                kinds[not found.assembles],
            )
        return found

    @property
    def epoch(self) -> int:
        """The partition's configured epoch."""
        return self.spec.epoch_of(self.partition.number)

    @property
    def assembles(self) -> bool:
        """Whether this is an assembly's partition."""
        return bool(self.spec.topics.second_input)

    # -- how it goes on --------------------------------------------------------------------------

    def open(self) -> Decision:
        """Check what is durable and decide how the partition goes on."""
        saved, line, checkpoint = self.saved, self.line, self.saved.checkpoint
        if checkpoint is None:
            return self._without_checkpoint()
        self._check_inputs(checkpoint)
        self.check_epoch(checkpoint)
        if self.epoch > max(checkpoint.epoch, line.epoch if line else 0):
            agree = self._newest_line() == checkpoint.lines_published
            known = saved.now.learner is not None and has_its_scale(
                self.spec.settings, saved.now.learner
            )
            whole = is_readable(checkpoint.epoch, saved.now)
            carries = self.spec.carry and agree and known and whole
            return replace(self._anew(before=checkpoint.epoch), carries=carries)
        self._check_ledger(checkpoint)
        self.check_digest(checkpoint)
        self._check_retained(checkpoint)
        joined = checkpoint.joined
        point = self._point(
            at=checkpoint.next_offset, low_water=checkpoint.low_water, rows=checkpoint.rows,
            lines=(checkpoint.lines_recorded, checkpoint.lines_published),
            outcomes=0 if joined is UNSET else int(joined.outcomes),
            declared=0 if joined is UNSET else joined.declared,
        )  # fmt: skip
        adopts = checkpoint.input_id is None and self.taken.input_id is not None
        return Decision(point, saved, adopts=adopts)

    def _point(
        self,
        *,
        at: int,
        low_water: int,
        rows: int = 0,
        lines: tuple[int, int] = (0, 0),  # the last ordinals that were recorded and published
        outcomes: int,
        declared: int = 0,
    ) -> Checkpoint:
        """The checkpoint at a position, with this configuration and what is known of the input."""
        before, spec, taken = self.saved.checkpoint, self.spec, self.taken
        joined: Joined | UnsetType = UNSET
        if self.assembles:
            known = UNSET if before is None else before.joined
            joined = Joined(
                declared=declared,
                outcomes=f"{outcomes:020d}",
                newest_outcome=NOTHING_READ if known is UNSET else known.newest_outcome,
                outcomes_id=taken.second_input.id or (known.outcomes_id if known else None),
                settings=spec.settings,
            )
        return Checkpoint(
            next_offset=at,
            low_water=low_water,
            rows=rows,
            commit_seq=before.commit_seq if before else 0,
            lines_recorded=lines[0],
            lines_published=lines[1],
            epoch=self.epoch,
            stream_epoch=None if self.epoch == spec.epoch else spec.epoch,
            digest=spec.digest,
            partitions=taken.partitions,
            began_with=before.began_with if before else _began_with(taken),
            input_id=taken.input_id or (before.input_id if before else None),
            last_record=before.last_record if before else None,
            joined=joined,
        )

    def _without_checkpoint(self) -> Decision:
        """A first start; or a state that was lost, which needs a new epoch."""
        taken, line, number = self.taken, self.line, self.partition.number
        if line is None and taken.group_offset is None:
            earliest = number >= _began_with(taken) or self.spec.start is Start.EARLIEST
            first = self._begin(taken.first_offset if earliest else taken.end_offset)
            outcomes = taken.second_input.first if earliest else taken.second_input.end
            return Decision(self._point(at=first, low_water=first, outcomes=outcomes), self.saved)
        self._check_id("input", self.by_others.input_ids.get(number), taken.input_id)
        remark = decode_remark(taken.remarks.get(number, ""))
        before = max(1, line.epoch if line else 0, remark.epoch if remark else 0)
        if self.epoch <= before:
            raise self.halt(
                "the state is gone; raise the epoch to go on",
                f"a checkpoint, or epoch {before + 1}",
                "a group offset" if line is None else f"a ledger with line {line.ordinal}",
            )
        return self._anew(before=before)

    def _anew(self, *, before: int) -> Decision:
        """Begin a new epoch, behind every record that may have been read (P11)."""
        checkpoint, line, taken = self.saved.checkpoint, self.line, self.taken
        known = [taken.first_offset, taken.group_offset or 0]
        published, recorded = [0], [0]
        if checkpoint is not None:
            known.append(checkpoint.next_offset)
            published.append(checkpoint.lines_published)
            recorded.append(checkpoint.lines_recorded)
        if line is not None:
            published.append(line.ordinal)
            if isinstance(line, EpochMark | TakenList):
                known.append(line.next_offset)
            elif not isinstance(line, Assembled):
                known.append(line.last_offset + 1)
            elif checkpoint is None or _is_later(line, checkpoint):
                known.append(line.stop)
        self._check_end(max(known))
        position = self._begin(max(known))
        lines = max(*recorded, *published), max(published)
        outcomes = max(taken.second_input.first, taken.second_input.group or 0)
        point = self._point(at=position, low_water=position, lines=lines, outcomes=outcomes)
        return Decision(point, self.saved, new_epoch=before)

    def _begin(self, known: int) -> int:
        """The first record, at `known` or later, that others leave room for."""
        number, end = self.partition.number, self.taken.end_offset
        position = self.by_others.begin(number, known)
        if end < position:
            ledgers = ", ".join(self.by_others.ahead(number, end))
            raise self.halt(
                f"others have read beyond the end of the input ({ledgers}), and the budget does not"
                " cover their charges again; send its records to a topic with another name",
                f"an end at {position} or later",
                end,
            )
        return position

    # -- what must hold --------------------------------------------------------------------------

    def _check_topics(self, line: LedgerLine | Assembled) -> None:
        """Refuse other topics than those that were read, and written if they are assembled."""
        topics = self.spec.topics
        configured = [of for of in (topics.input, topics.second_input, topics.output) if of]
        named = [line.input]
        if isinstance(line, Assembled):
            named += [line.outcomes, line.output]
        if named != configured:
            raise self.differs(
                "the configured topics are not those that were read; only a stream, or an"
                " assembly, with another name may read the new ones",
                ", ".join(named),
                ", ".join(configured),
            )

    def _check_inputs(self, checkpoint: Checkpoint) -> None:
        """Refuse other topics with the same names; a new epoch changes nothing about that."""
        taken, joined = self.taken, checkpoint.joined
        self._check_id("input", checkpoint.input_id, taken.input_id)
        if joined is not UNSET:
            self._check_id("outcomes", joined.outcomes_id, taken.second_input.id)
        if taken.partitions < checkpoint.partitions:
            raise self.halt(
                f"the input has fewer partitions than before; {way_out(self.spec.topics)}",
                checkpoint.partitions,
                taken.partitions,
            )

    def _check_id(self, what: str, known: str | None, now: str | None) -> None:
        """Refuse a topic that was deleted and recreated: it gives its offsets out again."""
        if known is not None and now is not None and known != now:
            raise self.halt(
                f"the input was deleted and recreated; {way_out(self.spec.topics)}",
                f"{what} with topic id {known}",
                now,
            )

    def check_epoch(self, checkpoint: Checkpoint) -> None:
        """The epoch must be the state's, or a later one that is new to this partition."""
        before, asked = checkpoint.stream_epoch, self.spec.epoch
        raised = before is not None and before < asked <= checkpoint.epoch
        if raised and self.epoch <= checkpoint.epoch:
            raise self.differs(
                "the stream's epoch was raised to one that this partition has already had",
                f"epoch {checkpoint.epoch + 1} or a later one",
                asked,
            )
        if self.epoch < checkpoint.epoch:
            raise Superseded(
                f"partition {self.partition}",
                "the configuration is of an earlier epoch than the state; deploy the newer one",
                expected=f"epoch {checkpoint.epoch} or a later one",
                got=self.epoch,
            )

    def _check_ledger(self, checkpoint: Checkpoint) -> None:
        """Refuse a state that is not the newest, and a ledger that has lost its newest lines.

        What is in force, and what others may charge, must follow from published evidence: so the
        state alone, which knows more, is no reason to go on.
        """
        line, published = self.line, checkpoint.lines_published
        if line is not None and _is_later(line, checkpoint):
            raise self.halt(
                "the state was rolled back: the ledger has a later line; raise the epoch to go on",
                f"a state of line {line.ordinal} or later, or epoch {line.epoch + 1}",
                f"line {published}",
            )
        newest = self._newest_line()
        if newest < published:
            raise self.halt(
                "the ledger has lost lines; restore it: nothing else says what was"
                f" {'assembled' if self.assembles else 'charged'}",
                f"line {published}",
                f"line {newest}" if newest else "an empty ledger",
            )

    def _newest_line(self) -> int:
        """The ordinal of the ledger's newest line; 0 if it has none.

        A look beside an owner reads the ledger twice: the state may be newer than its first look.
        """
        later = self.taken.later_ledger_line
        lines = [self.line, None if later is None else decode_any_ledger(later)]
        return max(line.ordinal if line else 0 for line in lines)

    def check_digest(self, checkpoint: Checkpoint) -> None:
        """Refuse another configuration than that of the state."""
        spec, learner, what = self.spec, self.saved.now.learner, ""
        if spec.digest == checkpoint.digest:
            return
        if checkpoint.joined is not UNSET:
            what = changes(checkpoint.joined.settings, spec.settings)
        elif learner is not None:
            names, cells, room = learner.actions, 1, 0
            if isinstance(spec, StreamSpec):
                room, contexts = spec.room, spec.lines.contexts
                cells = 1 if contexts is None else contexts.cells
            if learner.settings == spec.settings:  # also of room: what came since is not configured
                many = len(names) // cells
                names = [name for at, name in enumerate(names) if at % many < many - room]
            what = changes(learner.settings, spec.settings, actions=(names, names_in(spec.actions)))
            if room and learner.settings == spec.settings:
                raise self.differs(
                    f"its actions were edited within an epoch{what}; keep those that it began with,"
                    f" and use `streamdp actions {spec.name} add NAME` (or pause, resume, remove),"
                    " or begin a new epoch",
                    f"digest {checkpoint.digest}",
                    spec.digest,
                )
        raise self.differs(
            f"the configuration differs from the state's{what}; a change of {spec.decides} needs"
            " a new epoch",
            f"digest {checkpoint.digest}",
            spec.digest,
        )

    def _check_retained(self, checkpoint: Checkpoint) -> None:
        """Refuse inputs that have lost records; only outcomes may expire."""
        taken, joined = self.taken, checkpoint.joined
        if joined is not UNSET and (taken.group_offset or 0) > checkpoint.next_offset:
            raise self.halt(
                "the state was rolled back: the group remembers a later position; raise the epoch"
                " to go on",
                f"offset {taken.group_offset} or later",
                checkpoint.next_offset,
            )
        if taken.first_offset > checkpoint.low_water:
            raise self.halt(
                "input that a rebuild needs is no longer retained; raise the epoch to go on",
                f"offset {checkpoint.low_water}",
                f"{taken.first_offset} as the oldest",
            )
        self._check_end(checkpoint.next_offset)
        if joined is not UNSET and taken.second_input.end < int(joined.outcomes):
            raise self._cut_back("an end of outcomes where it was", "an earlier one")

    def _check_end(self, position: int) -> None:
        """Refuse an input that ends before the position: its offsets would be given out again."""
        if self.taken.end_offset < position:
            raise self._cut_back(f"an end at {position} or later", self.taken.end_offset)

    def _cut_back(self, expected: str, got: object) -> StateMismatch:
        """The error of an input that ends too early."""
        return self.halt(
            "the input was truncated or replaced, and its offsets are given out again;"
            f" {way_out(self.spec.topics)}",
            expected,
            got,
        )

    def check_waiting(self, waiting: Sequence[Release]) -> None:
        """Check that recorded releases, which the next epoch publishes, have room in the budget.

        A stream that took this one's place while it was away began behind its ledger alone if it
        could not read this state, and the ledger does not mention releases that wait. These may not
        be dropped: a draw that was recorded counts as seen (P11).
        """
        if not waiting:
            return
        number, by_others = self.partition.number, self.by_others
        kinds: dict[str, Fraction] = {}
        for of in waiting:
            kinds[of.kind] = max(kinds.get(of.kind, _NONE), of.epsilon)
        oldest = min(of.first_offset for of in waiting)
        newest = max(of.last_offset for of in waiting)
        charged = by_others.charged(number, oldest, last=newest)
        budget, total = by_others.room + self.spec.charge, charged + sum(kinds.values(), _NONE)
        if charged > 0 and total > budget:
            ahead = by_others.ahead(number, oldest, last=newest)
            ledgers = ", ".join(ahead) or "streams that are configured"
            raise self.halt(
                f"{len(waiting)} "
                "recorded releases wait to be published, and others charge the same records;"
                " no epoch can drop the releases: raise the topic's budget",
                f"a budget of at least {total} on records {oldest} to {newest}",
                f"{budget}, of which others charge {charged}: {ledgers}",
            )

    def differs(self, what: str, expected: object, got: object) -> ConfigurationMismatch:
        """The error of another configuration."""
        where = f"partition {self.partition}"
        return ConfigurationMismatch(where, what, expected=expected, got=got)

    def halt(self, what: str, expected: object, got: object) -> StateMismatch:
        """The error of a contradiction."""
        return StateMismatch(f"partition {self.partition}", what, expected=expected, got=got)


def _began_with(taken: Taken) -> int:
    """The number of partitions when the stream began, as other partitions remember it."""
    remarks = [decode_remark(text) for text in taken.remarks.values()]
    return min([taken.partitions, *(remark.began_with for remark in remarks if remark)])


def _is_later(line: LedgerLine | Assembled, checkpoint: Checkpoint) -> bool:
    """Whether a commit after the checkpoint's published this line."""
    return line.ordinal > checkpoint.lines_published


def check_alone(partition: Partition, position: int, by_others: ChargesByOthers) -> None:
    """Refuse to charge records that others have charged, beyond the budget (P11).

    `position`: the oldest record that this stream or assembly may charge from now on.
    """
    if by_others.begin(partition.number, position) > position:
        ledgers = ", ".join(by_others.ahead(partition.number, position))
        raise StateMismatch(
            f"partition {partition}",
            "others have charged the same records, and the budget does not cover their charges"
            " beside its own; raise the epoch to go on: the new epoch begins behind them",
            expected=f"others to charge at most {by_others.room} from record {position} on",
            got=f"{by_others.charged(partition.number, position)}: {ledgers}",
        )
