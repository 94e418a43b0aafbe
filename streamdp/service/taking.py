"""Takes a partition: everything durable is checked before any of it is used.

Checked are the epoch, the digest, that the checkpoint knows every line of the ledger, and that the
input from `low_water` on is still there. On a contradiction the partition halts (`StateMismatch`);
it never resets or skips an offset. The way out is a larger `epoch` in the configuration or, if only
one partition has lost something, in its `partition_epochs`: then the other partitions' learners go
on. If no epoch could be sure to read no event twice, the way out is an input with another name.

Keys open in a new epoch with what is public of the one before (`carrying`), unless the option says
otherwise. A state that was lost or rolled back carries nothing: its keys begin anew.

No way moves the position back (P11). A new epoch begins behind the checkpoint, the group offset and
the ledger, so a state that was rolled back, whose own position is too old, causes no second release
of an event. Offsets and charges belong to a topic, so a stream keeps its input for life. The
charges of other streams count too, also of streams that are gone (`ledgers`): renaming a stream
must not spend a budget twice. No epoch takes back recorded releases: they are published, so the
records that they charge need room in the budget.

A topic id, where the transport has one, tells whether the input is still the same topic. The
checkpoint holds it; a checkpoint without one adopts it. Not even a new epoch may go on in another
topic. If the state is gone too, the ledger says which topic was read: in its first line, and in
each line where an epoch begins. Without ids, `input_fingerprint` looks for the last record that was
read.

`start` is for a stream's first partitions. A partition that is added later begins at its first
record; otherwise records that came before any process knew of it would be skipped. Each checkpoint,
and the group's offsets, say with how many partitions the stream began.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

from msgspec import UNSET

from streamdp.core.errors import (
    OTHER_TOPIC,
    ConfigurationMismatch,
    StateMismatch,
    Superseded,
    complaint,
)
from streamdp.core.events import Key
from streamdp.ports import EntriesThat, Partition, Taken
from streamdp.service.carrying import Begins, Heritage, heritage, is_readable
from streamdp.service.charges_by_others import ALONE, ChargesByOthers, Scope
from streamdp.service.saved_entries import read
from streamdp.service.settings import Start, changes
from streamdp.service.spec import StreamSpec
from streamdp.wire.entries import Entries, release_entry
from streamdp.wire.lines import EpochMark, LedgerLine
from streamdp.wire.published import decode_ledger
from streamdp.wire.state import (
    Checkpoint,
    EpochEntries,
    Recorded,
    SavedState,
    decode_checkpoint,
    decode_learner,
    decode_remark,
)

_NONE = Fraction(0)


@dataclass(frozen=True, slots=True)
class Opening:
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

    def waiting(self) -> list[tuple[str, int, int, Fraction]]:
        """The releases that still have to be published: kind, first and last record, charge."""
        releases = [r.release for r in self.saved.releases.values() if self.waits(r)]
        charging = [release for release in releases if release.stop > release.start]
        return [(r.kind, r.first_offset, r.last_offset, r.epsilon) for r in charging]


def scope(spec: StreamSpec, partition: Partition, taken: Taken) -> Scope:
    """Which other ledgers matter to how this partition goes on."""
    places = Entries(partition.stream, partition.number)
    value = taken.state.get(places.checkpoint)
    if value is None:
        return Scope.ALL if taken.last_ledger_line is None else Scope.LOST
    if spec.epoch_of(partition.number) > decode_checkpoint(value).epoch:
        return Scope.ALL
    return Scope.EARLIER


def open_partition(
    spec: StreamSpec, partition: Partition, taken: Taken, *, by_others: ChargesByOthers
) -> Opening:
    """Check what is durable and decide how the partition goes on; raise if it must halt."""
    found = _Found.read(spec, partition, taken, by_others, read(partition, taken))
    opening = found.open()
    found.check_waiting(opening.waiting())
    if opening.goes_on:
        check_alone(partition, opening.position, by_others)
    return opening


def heritage_at(
    spec: StreamSpec,
    partition: Partition,
    opening: Opening,
    *,
    opened: Callable[[Key], bool] = lambda key: False,
) -> Heritage:
    """What keys carry over into the partition's epoch; `opened` knows keys beside the state's."""
    begins = Begins.NOT
    if opening.new_epoch is not None:
        begins = Begins.CARRYING if opening.carries else Begins.ANEW
    saved = opening.saved
    waiting = {
        release_entry(identity)
        for identity, drawn in saved.releases.items()
        if opening.waits(drawn)
    }
    return heritage(
        spec, partition.number, saved, begins=begins, waiting=waiting, opened_now=opened
    )


def of_configuration(partition: Partition) -> EntriesThat:
    """The few entries of a state that `check_configuration` needs."""
    places = Entries(partition.stream, partition.number)
    learner = places.all_of("learner")
    return EntriesThat(lambda place: place == places.checkpoint or place.startswith(learner))


def check_configuration(spec: StreamSpec, partition: Partition, taken: Taken) -> None:
    """Refuse a configuration that did not make the state, whatever else may be wrong with it.

    It reads the checkpoint and what its rows mean, never the rows.
    """
    places, where = Entries(partition.stream, partition.number), f"state of {partition}"
    value, now = taken.state.get(places.checkpoint), EpochEntries()
    checkpoint = None if value is None else decode_checkpoint(value, where=where)
    if checkpoint is not None:
        learner = taken.state.get(places.learner(epoch=checkpoint.epoch))
        now.learner = None if learner is None else decode_learner(learner, where=where)
    found = _Found.read(spec, partition, taken, ALONE, SavedState(checkpoint, now, {}, ()))
    if checkpoint is not None:
        found.check_epoch(checkpoint)
        if found.epoch == checkpoint.epoch:
            found.check_digest(checkpoint)


def epochs_of_no_partition(spec: StreamSpec, partitions: int) -> str | None:
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

    spec: StreamSpec
    partition: Partition
    taken: Taken
    by_others: ChargesByOthers
    saved: SavedState
    line: LedgerLine | None  # the newest of the ledger

    @classmethod
    def read(
        cls,
        spec: StreamSpec,
        partition: Partition,
        taken: Taken,
        by_others: ChargesByOthers,
        saved: SavedState,
    ) -> Self:
        """Read the ledger's line; it must be of the configured input."""
        line = None if taken.last_ledger_line is None else decode_ledger(taken.last_ledger_line)
        found = cls(spec, partition, taken, by_others, saved, line)
        if line is not None and line.input != spec.topics.input:
            raise found.differs(
                "the configured input is not the topic that was read; only a stream with another"
                " name may read the new one",
                line.input,
                spec.topics.input,
            )
        return found

    @property
    def epoch(self) -> int:
        """The partition's configured epoch."""
        return self.spec.epoch_of(self.partition.number)

    # -- how it goes on --------------------------------------------------------------------------

    def open(self) -> Opening:
        """Check what is durable and decide how the partition goes on."""
        saved, line, checkpoint = self.saved, self.line, self.saved.checkpoint
        if checkpoint is None:
            return self._without_checkpoint()
        self._check_input(checkpoint.input_id)
        self.check_epoch(checkpoint)
        if self.epoch > max(checkpoint.epoch, line.epoch if line else 0):
            newest = line is None or not _is_later(line, checkpoint)
            learner = saved.now.learner
            known = learner is not None
            whole = is_readable(checkpoint.epoch, saved.now)
            carries = self.spec.carry and newest and known and whole
            return replace(self._anew(before=checkpoint.epoch), carries=carries)
        self._check_continues(checkpoint)
        point = self._point(
            at=checkpoint.next_offset, low_water=checkpoint.low_water, rows=checkpoint.rows,
            lines=(checkpoint.lines_recorded, checkpoint.lines_published),
        )  # fmt: skip
        adopts = checkpoint.input_id is None and self.taken.input_id is not None
        return Opening(point, saved, adopts=adopts)

    def _point(
        self,
        *,
        at: int,
        low_water: int,
        rows: int = 0,
        lines: tuple[int, int] = (0, 0),  # the last ordinals that were recorded and published
    ) -> Checkpoint:
        """The checkpoint at a position, with this configuration and what is known of the input."""
        before, spec = self.saved.checkpoint, self.spec
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
            partitions=self.taken.partitions,
            began_with=before.began_with if before else _began_with(self.taken),
            input_id=self.taken.input_id or (before.input_id if before else None),
            last_record=before.last_record if before else None,
        )

    def _without_checkpoint(self) -> Opening:
        """A first start; or a state that was lost, which needs a new epoch."""
        taken, line, number = self.taken, self.line, self.partition.number
        if line is None and taken.group_offset is None:
            earliest = number >= _began_with(taken) or self.spec.start is Start.EARLIEST
            first = taken.first_offset if earliest else taken.end_offset
            first = self.by_others.begin(number, first)
            self._check_reaches(first)
            return Opening(self._point(at=first, low_water=first), self.saved)
        self._check_input(self.by_others.input_ids.get(number))
        remark = decode_remark(taken.remarks.get(number, ""))
        before = max(1, line.epoch if line else 0, remark.epoch if remark else 0)
        if self.epoch <= before:
            raise self.halt(
                "the state is gone; raise the epoch to go on",
                f"a checkpoint, or epoch {before + 1}",
                "a group offset" if line is None else f"a ledger with line {line.ordinal}",
            )
        return self._anew(before=before)

    def _anew(self, *, before: int) -> Opening:
        """Begin a new epoch, behind every record that may have been read (P11)."""
        checkpoint, line = self.saved.checkpoint, self.line
        known = [self.taken.first_offset, self.taken.group_offset or 0]
        published, recorded = [0], [0]
        if checkpoint is not None:
            known.append(checkpoint.next_offset)
            published.append(checkpoint.lines_published)
            recorded.append(checkpoint.lines_recorded)
        if line is not None:
            known.append(line.next_offset if isinstance(line, EpochMark) else line.last_offset + 1)
            published.append(line.ordinal)
        self._check_end(max(known))
        position = self.by_others.begin(self.partition.number, max(known))
        self._check_reaches(position)
        lines = max(*recorded, *published), max(published)
        point = self._point(at=position, low_water=position, lines=lines)
        return Opening(point, self.saved, new_epoch=before)

    # -- what must hold --------------------------------------------------------------------------

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

    def check_digest(self, checkpoint: Checkpoint) -> None:
        """Refuse another configuration than that of the state."""
        spec, learner, what = self.spec, self.saved.now.learner, ""
        if spec.digest == checkpoint.digest:
            return
        if learner is not None and learner.settings is not UNSET:
            actions = learner.actions, spec.learner.actions
            what = changes(learner.settings, spec.settings, actions=actions)
        raise self.differs(
            f"the configuration differs from the state's{what}; a change of ε, actions, learner,"
            " format or estimates needs a new epoch",
            f"digest {checkpoint.digest}",
            spec.digest,
        )

    def _check_continues(self, checkpoint: Checkpoint) -> None:
        """Refuse a state that is not the newest, and an input that has lost records."""
        line, taken = self.line, self.taken
        if line is not None and _is_later(line, checkpoint):
            raise self.halt(
                "the state was rolled back: the ledger has a later line; raise the epoch to go on",
                f"a state of line {line.ordinal} or later, or epoch {line.epoch + 1}",
                f"line {checkpoint.lines_published}",
            )
        self.check_digest(checkpoint)
        if taken.partitions < checkpoint.partitions:
            raise self.halt(
                f"the input has fewer partitions than before; {OTHER_TOPIC}",
                checkpoint.partitions,
                taken.partitions,
            )
        if taken.first_offset > checkpoint.low_water:
            raise self.halt(
                "input that a rebuild needs is no longer retained; raise the epoch to go on",
                f"offset {checkpoint.low_water}",
                f"{taken.first_offset} as the oldest",
            )
        self._check_end(checkpoint.next_offset)

    def _check_input(self, known: str | None) -> None:
        """Refuse a topic that was deleted and recreated: it gives its offsets out again."""
        now = self.taken.input_id
        if known is not None and now is not None and known != now:
            raise self.halt(
                f"the input was deleted and recreated; {OTHER_TOPIC}", f"topic id {known}", now
            )

    def _check_end(self, position: int) -> None:
        """Refuse an input that ends before the position: its offsets would be given out again."""
        if self.taken.end_offset < position:
            raise self.halt(
                "the input was truncated or replaced, and its offsets are given out again;"
                f" {OTHER_TOPIC}",
                f"an end at {position} or later",
                self.taken.end_offset,
            )

    def _check_reaches(self, position: int) -> None:
        """Refuse a first start if other streams have read beyond the end of the input."""
        end = self.taken.end_offset
        if end < position:
            ledgers = ", ".join(self.by_others.ahead(self.partition.number, end))
            raise self.halt(
                f"other streams have read beyond the end of the input ({ledgers}), and its budget"
                " does not cover their charges again; send its events to a topic with another name",
                f"an end at {position} or later",
                end,
            )

    def check_waiting(self, waiting: list[tuple[str, int, int, Fraction]]) -> None:
        """Check that recorded releases, which the next epoch publishes, have room in the budget.

        A stream that took this one's place while it was away began behind its ledger alone if it
        could not read this state, and the ledger does not mention releases that wait. These may not
        be dropped: a draw that was recorded counts as seen (P11).
        """
        if not waiting:
            return
        number, by_others = self.partition.number, self.by_others
        kinds: dict[str, Fraction] = {}
        for kind, _, _, epsilon in waiting:
            kinds[kind] = max(kinds.get(kind, _NONE), epsilon)
        oldest = min(first for _, first, _, _ in waiting)
        newest = max(last for _, _, last, _ in waiting)
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


def _is_later(line: LedgerLine, checkpoint: Checkpoint) -> bool:
    """Whether a commit after the checkpoint's published this line."""
    return line.ordinal > checkpoint.lines_published


_OTHERS = "streams that are no longer configured have read more"


def check_alone(
    partition: Partition, position: int, by_others: ChargesByOthers, others: str = _OTHERS
) -> None:
    """Refuse to charge records that others have charged, beyond the budget (P11).

    `position`: the oldest record that this stream or assembly may charge from now on.
    """
    if by_others.begin(partition.number, position) > position:
        ledgers = ", ".join(by_others.ahead(partition.number, position))
        raise StateMismatch(
            f"partition {partition}",
            f"{others}, and the budget does not cover their charges beside its own; raise"
            " the epoch to go on: the new epoch begins behind them",
            expected=f"others to charge at most {by_others.room} from record {position} on",
            got=f"{by_others.charged(partition.number, position)}: {ledgers}",
        )
