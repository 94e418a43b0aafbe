"""The pure life of one partition: what is committed when, and how it is restored.

No clock, no transport, no task: a partition is taken with its durable state (`Taken`), fed with
records, and asked for cuts. Its caller makes each cut durable before the next, or drops the object
and takes the partition again. Everything that must hold through crashes is decided here and in
`taking`.

**The cut** is the only kind of commit. All of it is as of one position:

1. the releases drawn since the last cut, recorded with their final bytes;
2. the releases that the last cut recorded, now published to actions and ledger;
3. the checkpoint;
4. a share of saved rows, the longest unsaved first; recorded releases that are published and older
   than their saved row are deleted.

Nothing is published by the commit that records it: anybody may read what an aborted transaction
wrote, so everything public must be durable before it is first sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import compress, groupby
from operator import attrgetter, not_

from msgspec import UNSET, structs

from streamdp.core.arrays import Ints
from streamdp.core.engine import Ages, Engine, Rebuilding
from streamdp.core.errors import TransportLost
from streamdp.core.events import OPENING, Key
from streamdp.core.releases import Releases
from streamdp.ports import Commit, Partition, Records, Taken
from streamdp.service.batches import (
    DecodedRecords,
    decoded_records,
    joined,
    newest_time,
    under_one_list,
)
from streamdp.service.carrying import carries
from streamdp.service.charges_by_others import ChargesByOthers
from streamdp.service.input_fingerprint import NewestRecord, of_input
from streamdp.service.lists import LIST, TakenNames, names_by
from streamdp.service.renewed_formats import RenewedFormats
from streamdp.service.saved_entries import SavedEntries
from streamdp.service.settings import Pace
from streamdp.service.spec import StreamSpec
from streamdp.service.taking import Decision, carried_entries_at, check_alone, open_partition
from streamdp.wire.entries import Entries, release_entry
from streamdp.wire.lines import ENDS_BLOCK
from streamdp.wire.recording import ReadyReleases, record_all
from streamdp.wire.renewals import Renewal, encode_renewal
from streamdp.wire.state import (
    Checkpoint,
    EpochLearner,
    Remark,
    SavedAges,
    encode_checkpoint,
    encode_learner,
    encode_remark,
)

_MOST_GONE = 20_000
"""Entries that one cut deletes at most, so that a transaction stays short."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A commit, and what to show of it once it is durable."""

    commit: Commit = field(repr=False)
    checkpoint: Checkpoint
    releases: int  # that it publishes
    blocks: int  # that these end


@dataclass(slots=True)
class _Waiting:
    """What one commit recorded and the next will publish."""

    written: ReadyReleases = field(default_factory=ReadyReleases)
    held: list[bool] = field(default_factory=list)  # whether that commit saved a row past it
    blocks: int = 0  # how many the releases end


class Restoring:
    """Restores a taken partition: feed it the input, then finish."""

    def __init__(
        self, spec: StreamSpec, partition: Partition, taken: Taken, *, by_others: ChargesByOthers
    ) -> None:
        entries = SavedEntries.of(spec, partition, taken)
        entries.keep_needed()
        entries.check_epoch()
        taken = replace(taken, state=entries)
        decision = open_partition(spec, partition, taken, by_others=by_others)
        saved, point = decision.saved, decision.saved.checkpoint
        self.spec, self.partition, self.decision = spec, partition, decision
        self._by_others = by_others
        self._read = decision.point.low_water
        self._input_fingerprint = of_input(spec.topics, partition, taken, point)
        renewals = saved.now.renewals if decision.goes_on else []
        self.formats = RenewedFormats(spec.listed_format, renewals)
        self.learner = None if decision.goes_on else spec.epoch_learner(carries=decision.carries)
        """The entry that says what the epoch's rows mean, if it is to be written now."""
        kept = carried_entries_at(spec, partition, decision, opened=entries.opened)
        entries.heritage.adopt(kept.carried)
        kept.carried = entries.heritage  # which the engine asks, and takes from
        kept.gone += entries.behind
        self.carried_entries = kept
        self.published, ages = entries.published, None
        if decision.new_epoch is None and point is not None:
            nothing = entries.engine.no_releases
            self.published.add(nothing.of(of.release for of in saved.releases.values()))
            ages = None if point.ages is UNSET else Ages(**structs.asdict(point.ages))
        self._rebuilding = Rebuilding(
            entries.engine, rows=entries.rows, releases=self.published, ages=ages
        )

    def saved_at(self, keys: Sequence[Key]) -> Ints:
        """The position that each key's saved row holds."""
        return self._rebuilding.valid_at(keys)

    @property
    def span(self) -> range:
        """The input offsets that must be read again."""
        return range(self.decision.point.low_water, self.decision.position)

    @property
    def proof(self) -> range:
        """The input offsets that must be read first, only to see whether the input is the same."""
        return self._input_fingerprint.span

    def prove(self, records: Records) -> None:
        """Take in some of the proof's records."""
        self._input_fingerprint.check(records)

    def feed(self, records: Records) -> None:
        """Take in some of the span's records, in order.

        A key has a learner if it had one when its records were first read. A limit that was lowered
        since must not take a learner's slots away: its blocks would end, and be drawn, a second
        time.
        """
        check_goes_on(records, position=self._read)
        self._input_fingerprint.check(records)
        read = (
            decoded_records(of.format, part, listed=of.newest)
            for of, part in self.formats.cut(records)
        )
        for some in under_one_list(read):
            batch, _ = joined(some, most_key_bytes=None, idle=self.spec.idle)
            self._rebuilding.feed(batch)
        self._read = records.next_offset

    def foresee(self) -> list[str]:
        """The ledgers because of which `finish` may halt, as far as known before any input is read.

        It is known which records the open blocks hold for rows that no record followed; for others
        there is a bound. If nothing has to be read again, the check of `finish` itself is made and
        may raise.
        """
        low_water = self.decision.point.low_water
        if low_water == self.decision.position:
            self.finish()
            return []
        number = self.partition.number
        oldest = self._rebuilding.open_since(end=low_water)
        return (
            self._by_others.ahead(number, oldest)
            if self._by_others.begin(number, oldest) > oldest
            else []
        )

    def finish(self) -> PartitionWork:
        """The partition at its committed position, ready to go on."""
        decision = self.decision
        engine = self._rebuilding.finish(position=decision.position, rows=decision.point.rows)
        if decision.new_epoch is None:
            check_alone(self.partition, self._oldest_uncharged(engine), self._by_others)
        return PartitionWork(self, engine)

    def _oldest_uncharged(self, engine: Engine) -> int:
        """The oldest record that was read and is in no release yet.

        It lies behind the position, in a block that has not ended. A stream that began while this
        one was away began behind this one's ledger, and may have charged such records.
        (`open_partition` has checked the charges of releases that wait.)
        """
        return min(engine.open_since(), engine.position)


class PartitionWork:
    """A partition at work: it absorbs records and makes cuts.

    At most one cut may be in flight; absorbing goes on meanwhile. When a cut's result is unknown,
    drop this object and take the partition again.
    """

    def __init__(self, restored: Restoring, engine: Engine) -> None:
        decision, learner = restored.decision, restored.learner
        self.spec, self.partition, self.engine = restored.spec, restored.partition, engine
        self.point = decision.point
        """The newest cut's: the position, and the oldest record that a rebuild from it reads."""
        self._lines_recorded = decision.point.lines_recorded
        self.keys_refused = 0
        self.slots = 0  # absorbed since the partition was taken
        self._newest = NewestRecord(decision.point.last_record)
        self._entries = Entries(self.partition.stream, self.partition.number)
        self._epoch = decision.point.epoch
        self._drawn: list[tuple[TakenNames, Releases]] = []  # each with its list
        self.unrecorded = 0  # lines of what was drawn since the last cut
        self._tombstones: list[bytes] = [*decision.saved.stale, *restored.carried_entries.gone]
        self._carried_entries = restored.carried_entries
        self._published: dict[Key, bytes] = {}  # per key, the marks of its entries, one a line
        self._waiting = _Waiting()
        self.bytes_a_line = self.spec.bytes_a_line
        """Bytes of a recorded release in all its copies: the mean of the last cut, or before the
        first one the most of a short key."""
        self._mark: bytes | None = None  # the ledger's line where an epoch begins
        self._first = not decision.goes_on or decision.adopts
        self._learner = learner  # what the epoch's rows mean, still to be written
        written = decision.saved.now.learner if learner is None else learner
        self._carries = written is not None and written.carries
        self._formats = restored.formats
        self._last_save: float | None = None
        self._adopt(restored)
        if decision.new_epoch is not None:
            self._mark = self._epoch_mark(decision, previous=decision.new_epoch)

    def _adopt(self, restored: Restoring) -> None:
        """Sort earlier recorded releases: those still to be published, and those to delete."""
        decision = restored.decision
        saved = decision.saved
        records = sorted(saved.releases.values(), key=attrgetter("ordinal"))
        saved_positions = restored.saved_at([record.release.key for record in records]).tolist()
        for record, position in zip(records, saved_positions, strict=True):
            identity = record.release.identity
            place = release_entry(identity)
            gone = record.release.last_offset < position
            if decision.new_epoch is not None:
                gone = identity.key not in self._carried_entries.carried
            if decision.waits(record):
                written = self._waiting.written
                written.keys.append(identity.key)
                written.places.append(place)
                written.ledgers.append(record.ledger)
                written.actions.append(record.action)
                self._waiting.held.append(gone)
                self._waiting.blocks += record.release.kind in ENDS_BLOCK
            elif decision.new_epoch is not None:
                pass  # `_carried_entries` knows what is deleted, and when
            elif gone:
                self._tombstones.append(place)
            else:
                self._keep(zip([identity.key], self._entries.marks_of([place]), strict=True))
        adopted = {release_entry(of) for of in saved.releases}
        adopted_keys = {of.key for of in saved.releases}
        for part in restored.published.chunks():
            marked = self._entries.marks(part)
            held = (part.last_offset < restored.saved_at(part.keys)).tolist()
            for key, mark, gone in zip(part.keys, marked, held, strict=True):
                if key in adopted_keys and self._entries.release(mark, key) in adopted:
                    continue
                if gone:
                    self._tombstones.append(self._entries.release(mark, key))
                else:
                    self._keep([(key, mark)])

    def read(self, records: Records) -> list[DecodedRecords]:
        """What must be kept of records until they are absorbed.

        What the format's source has learned since holds from here on. Each cut that knows of these
        records has it too.
        """
        self._formats.renew(records.start)
        whole = self.spec.quarantine is not None
        return [
            decoded_records(of.format, part, whole=whole, listed=of.newest)
            for of, part in self._formats.cut(records)
        ]

    def absorb(self, records: Sequence[DecodedRecords]) -> None:
        """Apply consecutive records; what is drawn waits for the next cut."""
        for some in under_one_list(records):
            self._absorb(some)

    def _absorb(self, records: Sequence[DecodedRecords]) -> None:
        """Apply records under one list."""
        position = self.engine.position
        for part in records:
            check_goes_on(part, position=position)
            position = part.next_offset
            self._newest.read(part)
        batch, refused = joined(
            records,
            most_key_bytes=self.spec.most_key_bytes,
            known=self.engine.knows,
            idle=self.spec.idle,
        )
        self.keys_refused += refused
        self.slots += len(batch.offsets)
        releases = self.engine.apply_batch(batch)
        if self._carried_entries.holds:
            for key, code in zip(releases.keys, releases.kind.tolist(), strict=True):
                if releases.kinds[code] == OPENING:
                    self._tombstones += self._carried_entries.let_go(key)
        if self.spec.idle is not None and (newest := newest_time(records)) is not None:
            self.engine.reach(newest)
        self.engine.skip_to(records[-1].next_offset)
        if len(releases):
            self._drawn.append((records[0].listed, releases))
            self.unrecorded += len(releases)
        if self.spec.quarantine is not None:
            self.spec.quarantine.notice(self.partition.number, records, batch)

    @property
    def urgent(self) -> bool:
        """Whether something was drawn or waits to be published."""
        return self._first or bool(self._drawn) or bool(self._waiting.held)

    @property
    def behind(self) -> bool:
        """Whether the durable position, `low_water` or deletions are behind."""
        return self.point.low_water < self.engine.position or bool(self._tombstones)

    def cut(self, *, now: float, pace: Pace) -> Cut:
        """A cut of everything as of now; `now` only paces how many rows are saved."""
        rows = dict(self.engine.save(most=self._share(now, pace)))
        saved = rows.keys()
        publishing = self._waiting
        self._let_go(publishing, saved)
        actions, ledger = publishing.written.published()
        if self._mark is not None:
            ledger.append((None, self._mark))
            self._mark = None
        renewals = self._formats.unsaved()
        ledger += [(None, self._taken_list(of)) for of in renewals if of.what == LIST]
        published = self._lines_recorded  # of all earlier cuts, and what draws nothing
        self._waiting = self._record(saved)
        gone, self._tombstones = self._tombstones[:_MOST_GONE], self._tombstones[_MOST_GONE:]
        self._first = False
        ages = self.engine.ages()
        self.point = structs.replace(
            self.point,
            next_offset=self.engine.position,
            low_water=self.engine.low_water(),
            rows=self.engine.rows,
            commit_seq=self.point.commit_seq + 1,
            lines_recorded=self._lines_recorded,
            lines_published=published,
            last_record=self._newest.last_record(),
            ages=UNSET if ages is None else SavedAges(**ages._asdict()),
        )
        self._tombstones += [
            self._entries.renewal(of.what, of.number, epoch=self._epoch)
            for of in self._formats.outlived(self.point.low_water)
        ]
        remark = Remark(epoch=self._epoch, began_with=self.point.began_with)
        state: list[tuple[bytes, bytes | None]] = [
            *self._introduced(renewals),
            *zip(self._waiting.written.places, self._waiting.written.values, strict=True),
            *zip(self._entries.rows([*rows], epoch=self._epoch), rows.values(), strict=True),
            *((entry, None) for entry in gone),
            (self._entries.checkpoint, encode_checkpoint(self.point)),
        ]
        return Cut(
            commit=Commit(
                next_offset=self.point.next_offset,
                state=state,
                actions=actions,
                ledger=ledger,
                low_water=self.point.low_water,
                remark=encode_remark(remark),
            ),
            checkpoint=self.point,
            releases=len(publishing.held),
            blocks=publishing.blocks,
        )

    def _record(self, saved: Set[Key]) -> _Waiting:
        """What was drawn, with its final bytes, as this commit records it."""
        waiting, (drawn, self._drawn), self.unrecorded = _Waiting(), (self._drawn, []), 0
        written = waiting.written
        for _, run in groupby(drawn, key=lambda of: of[0].ordinal):
            lists, parts = zip(*run, strict=True)
            releases = self.engine.no_releases.joined(parts)
            written.add(
                record_all(
                    releases, lines=self.spec.lines_under(lists[0]),
                    ordinal=self._lines_recorded + 1, input_id=self.point.input_id,
                )
            )  # fmt: skip
            self._lines_recorded += len(releases)
            waiting.blocks += int(releases.ends.sum())
        if written.keys:
            some = slice(None, None, len(written.keys) // 64 + 1)
            texts = written.values[some], written.ledgers[some], written.actions[some]
            total = sum(len(text or b"") for of in texts for text in of)
            self.bytes_a_line = total // len(texts[0])
        waiting.held += map(saved.__contains__, written.keys)
        return waiting

    def _taken_list(self, taken: Renewal) -> bytes:
        """The ledger's line for a list; nothing is drawn under it before this commit's records."""
        self._lines_recorded += 1
        named = self.point.input_id if self._lines_recorded == 1 else None
        names = names_by(taken, self.spec.lines.shown)
        lines = replace(self.spec.lines_under(names), input_id=named or UNSET)
        return lines.taken_list(
            partition=self.partition.number,
            epoch=self._epoch,
            next_offset=taken.since,
            paused=names.paused,
            ordinal=self._lines_recorded,
        )

    def _introduced(self, renewals: Sequence[Renewal]) -> list[tuple[bytes, bytes | None]]:
        """The entries that later epochs need beside the rows."""
        entries: list[tuple[bytes, bytes | None]] = []
        described = self._described(renewals)
        if described is not None:
            learner = encode_learner(described)
            entries.append((self._entries.learner(epoch=self._epoch), learner))
        entries += [
            (self._entries.renewal(of.what, of.number, epoch=self._epoch), encode_renewal(of))
            for of in renewals
        ]
        self._learner = None
        return entries

    def _described(self, renewals: Sequence[Renewal]) -> EpochLearner | None:
        """What the rows mean, if that is to be written: an epoch began, or columns got names."""
        added = [of for of in renewals if "added" in of.content]
        if not added:
            return self._learner
        names = names_by(added[-1], self.spec.lines.shown).names
        return self.spec.epoch_learner(carries=self._carries, names=names)

    def _let_go(self, publishing: _Waiting, saved: Set[Key]) -> None:
        """Delete published releases that are older than their saved row."""
        keys, places = publishing.written.keys, publishing.written.places
        self._tombstones += compress(places, publishing.held)
        stays = list(map(not_, publishing.held))
        marks = self._entries.marks_of(compress(places, stays))
        self._keep(zip(compress(keys, stays), marks, strict=True))
        for key in saved & self._published.keys():
            marks = self._published.pop(key).split(b"\n")
            self._tombstones += [self._entries.release(mark, key) for mark in marks]

    def _keep(self, marks: Iterable[tuple[Key, bytes]]) -> None:
        """Remember the entries of published releases that are newer than their saved row."""
        published = self._published
        for key, mark in marks:
            before = published.get(key)
            published[key] = mark if before is None else b"%b\n%b" % (before, mark)

    def _share(self, now: float, pace: Pace) -> int:
        """The number of rows that this cut saves."""
        since = 0.0 if self._last_save is None else now - self._last_save
        self._last_save = now
        due = self.engine.unsaved(before=self.engine.position - pace.records // 2)
        share = int(len(self.engine) * min(1.0, since / pace.seconds)) + 1
        return min(max(due, share), max(1, pace.bytes_a_cut // self.spec.row_bytes))

    def _epoch_mark(self, decision: Decision, *, previous: int) -> bytes:
        """The ledger's line where an epoch begins; it comes after all releases that wait."""
        self._lines_recorded += 1
        before = decision.saved.now.learner
        return replace(self.spec.lines, input_id=self.point.input_id or UNSET).epoch(
            partition=self.partition.number,
            epoch=self._epoch,
            stream_epoch=self.point.stream_epoch,
            previous=previous,
            next_offset=decision.position,
            carries=carries(self.spec, before) if decision.carries and before else None,
            ordinal=self._lines_recorded,
        )


def check_goes_on(records: Records, *, position: int) -> None:
    """Refuse records with a gap or a repetition: each slot is counted once (P4).

    Only the sender of the records can be at fault; taking the partition again asks for them anew.
    """
    if records.start != position:
        raise TransportLost(
            f"partition {records.partition}",
            "records do not begin where the records before them ended",
            expected=f"offset {position}",
            got=records.start,
        )
