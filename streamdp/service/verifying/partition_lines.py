"""Follows the ledger lines of one partition, many at once: for `verification`, which has the rules.

What all lines of one sort say alike is judged once (`terms`). What differs from line to line is
columns, and each key has a row with its newest learner and block. A batch is cut into *waves* in
which no key comes twice, so that rows are what the line before left. `shown` compares with what
readers were told, `charged` adds the charges up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import UNSET

from streamdp.core.arrays import Bools, Ints, Table
from streamdp.core.errors import InvalidConfig, StateMismatch, counted
from streamdp.core.events import After, Key
from streamdp.core.kinds.estimates import ESTIMATES
from streamdp.core.ledger import TopicCharges
from streamdp.ports import StreamTopics
from streamdp.service.verifying.charged import BookedCharges, ChargeNumbers
from streamdp.service.verifying.shown import ShownLines
from streamdp.service.verifying.successions import NewestCharge, Succession
from streamdp.service.verifying.terms import (
    ENDS,
    LARGEST,
    NUMBERS,
    OPENS,
    TERMS,
    Configured,
    SavedProgress,
    Terms,
    alike,
)
from streamdp.wire.lines import (
    CarriedOver,
    Charge,
    EpochMark,
    LedgerLine,
    TakenList,
    key_bytes,
)
from streamdp.wire.retracing import Learners, grown, released_by, schedule_in

_ESTIMATES = sorted(ESTIMATES)

_LINE = np.dtype(
    [
        ("at", "i8"),  # its offset in the ledger
        ("place", "i8"),  # in the list of lines
        ("sort", "i8"),  # the number of its terms
        ("row", "i8"),
        *((name, "i8") for name in NUMBERS),
        ("in_force", "i8"),  # -1 where a line does not say
        *TERMS,
    ]
)

_ROW = np.dtype(
    [
        ("epoch", "i8"), ("born", "i8"),  # of the newest learner
        ("due", "i8"),  # its next block
        ("start", "i8"), ("stop", "i8"), ("first_offset", "i8"), ("last_offset", "i8"),
        ("level", "i4"),  # of its newest block: its charge, as one of `ChargeNumbers`
        ("run_level", "i4"), ("run_first", "i8"), ("run_last", "i8"),  # blocks before that
        ("said", "i4"),  # the action in force, as lines say; -1 for a policy
        ("table", "i4"),  # of learners that count alike
        ("shown_at", "i4"), ("shown_end", "i4"),  # records of the actions topic that may come
        ("kinds", "u1"), ("owed", "u1"),  # estimates of the newest block: seen, and configured
        ("opened", "?"), ("begun", "?"),  # whether there is a learner, and a block of it
        ("lost", "?"),  # whether a release is missing, so that nothing can be computed
        ("unseen", "?"),  # whether readers were not told of its newest release
    ]
)  # fmt: skip


class PartitionLines:
    """The lines of one partition so far."""

    def __init__(
        self,
        stream: StreamTopics,
        number: int,
        *,
        keys: dict[Key, int],
        levels: ChargeNumbers,
        tell: Callable[[int, str], None],
        reached: SavedProgress | None = None,
        configured: Configured | None = None,
    ) -> None:
        """`tell` reports a violation at an offset of the ledger."""
        self._terms = Terms(
            stream, number, levels=levels, tell=tell, reached=reached, configured=configured
        )
        self.shown = ShownLines(keys, self._terms, reached)
        self._charges = BookedCharges(levels)
        self.ordinal = 0  # of the last line
        self.slots = 0  # in blocks that ended
        self.lines = self.seeded = 0
        self._epoch = 0
        self._reached, self._keys, self._levels, self._tell = reached, keys, levels, tell
        self._position = 0  # the epoch's first record
        self._last = -1  # the latest record in any line
        self._opened = 0  # keys, in this epoch
        self._rows: Table = np.zeros(0, _ROW)
        self._succession = Succession(self._terms.names)

    def read(self, records: Sequence[tuple[int, LedgerLine]]) -> None:
        """Read some lines, each with its offset in the ledger."""
        self._lay_out()
        charges: list[tuple[int, Charge]] = []
        for at, line in records:
            if isinstance(line, Charge):
                charges.append((at, line))
                continue
            self._read_charges(charges)
            charges = []
            if isinstance(line, TakenList):
                self._read_list(at, line)
            else:
                self._read_mark(at, line)
        self._read_charges(charges)

    def _lay_out(self) -> None:
        """Give the rows their places among what readers were told, which is read before lines."""
        if self.shown.unread:
            self._rows = grown(self._rows, len(self._keys), dtype=_ROW)
            self.shown.lay_out(self._rows)

    def _read_mark(self, at: int, line: EpochMark) -> None:
        self.lines += 1
        self.seeded += line.seeded
        for wrong in (*self._terms.of_place(line), *self._terms.of_epoch(line)):
            self._tell(at, wrong)
        if max(line.ordinal, line.epoch, line.next_offset) >= LARGEST:
            self._tell(at, f"a number is too large; expected < {LARGEST}")
            return
        mark = np.zeros(1, _LINE)
        mark["at"], mark["ordinal"], mark["epoch"] = at, line.ordinal, line.epoch
        mark["last_offset"] = line.next_offset - 1
        self._in_order(mark, begins=True)
        earlier = self._terms.epochs - {line.epoch}
        if earlier and line.previous not in earlier:
            self._tell(at, f"epoch {line.epoch} follows {line.previous}, of which there is no line")
        if line.next_offset <= self._last:
            begins = f"epoch {line.epoch} begins at {line.next_offset}"
            self._tell(at, f"{begins}, but {self._last} was read")
        self._epoch, self._position, self._opened = line.epoch, line.next_offset, 0
        carries = None if line.carries is UNSET else line.carries
        self._succession.begin(line.epoch, carries)
        if carries is None:
            self._charges.book_newest(self._rows)
            self._rows["opened"] = False

    def _read_list(self, at: int, line: TakenList) -> None:
        """A list holds from a record on that comes after all that was read before its line."""
        self.lines += 1
        self.seeded += line.seeded
        for wrong in (*self._terms.of_place(line), *self._terms.of_epoch(line)):
            self._tell(at, wrong)
        if max(line.ordinal, line.epoch, line.next_offset, line.list_ordinal) >= LARGEST:
            self._tell(at, f"a number is too large; expected < {LARGEST}")
            return
        mark = np.zeros(1, _LINE)
        mark["at"], mark["ordinal"], mark["epoch"] = at, line.ordinal, line.epoch
        mark["last_offset"] = -1
        self._in_order(mark)
        for wrong in self._terms.takes(line, first=max(self._position, self._last + 1)):
            self._tell(at, wrong)

    def _read_charges(self, charges: Sequence[tuple[int, Charge]]) -> None:
        try:
            batch = self._columns(charges)
        except OverflowError:
            few = [(at, line) for at, line in charges if _is_small(line)]
            for at in {at for at, _ in charges} - {at for at, _ in few}:
                self._tell(at, f"a number is too large; expected < {LARGEST}")
            batch, charges = self._columns(few), few
        if not len(batch):
            return
        lines = [line for _, line in charges]
        self._terms.check(batch)
        self.lines += len(batch)
        self.seeded += sum(line.seeded for line in lines)
        self._in_order(batch)
        self._terms.report(
            batch,
            batch["first_offset"] < self._position,
            "record {first_offset} is read again, epoch {epoch} began after it",
        )
        taken = self._terms.lists_of(batch)
        self._terms.report(
            batch,
            (batch["list"] != taken) & (batch["code"] <= ENDS),
            "block {block} ({kind}) is of list {list}, expected {taken}",
            list=batch["list"],
            taken=taken,
        )
        self._last = max(self._last, int(batch["last_offset"].max()))
        self.slots += int((batch["stop"] - batch["start"])[batch["code"] == ENDS].sum())
        order = np.argsort(batch["row"], kind="stable")
        begins = np.flatnonzero(np.diff(batch["row"][order], prepend=-1))
        wave = np.empty(len(order), dtype=np.int64)
        lengths = np.diff(begins, append=len(order))
        wave[order] = np.arange(len(order)) - np.repeat(begins, lengths)
        order = np.argsort(wave, kind="stable")
        for which in np.split(order, np.flatnonzero(np.diff(wave[order])) + 1):
            self._wave(batch[which], lines)

    def _columns(self, charges: Sequence[tuple[int, Charge]]) -> Table:
        """Lines as columns, with what their terms say."""
        keys, rows = self._keys, list[tuple[int, ...]]()
        for place, (at, line) in enumerate(charges):
            sort = self._terms.sort_of(line)
            key = line.key.encode() if isinstance(line.key, str) else key_bytes(line)
            rows.append((
                at, place, sort, keys.setdefault(key, len(keys)), line.ordinal, line.epoch,
                line.born, line.block, line.start, line.stop, line.first_offset, line.last_offset,
                -1 if line.in_force is UNSET else line.in_force,
            ))  # fmt: skip
        numbers = np.array(rows, dtype=np.int64).reshape(-1, len(NUMBERS) + 5)
        if numbers.max(initial=0) >= LARGEST:
            raise OverflowError
        self._rows = grown(self._rows, len(keys), dtype=_ROW)
        batch = np.empty(len(rows), _LINE)
        for name, column in zip(_LINE.names or (), numbers.T, strict=False):
            batch[name] = column
        terms = self._terms.columns(batch["sort"])
        for name, _ in TERMS:
            batch[name] = terms[name]
        return batch

    def _in_order(self, batch: Table, *, begins: bool = False) -> None:
        """Check ordinals and epochs, against the lines before and the state."""
        ordinal, epoch, last = batch["ordinal"], batch["epoch"], batch["last_offset"]
        due = np.concatenate([[self.ordinal], ordinal[:-1]]) + 1
        self._terms.report(batch, ordinal != due, "line {ordinal} where {due} was due", due=due)
        self.ordinal = int(ordinal[-1])
        old = np.maximum.accumulate(np.concatenate([[self._epoch], epoch[:-1]]))
        self._terms.report(batch, epoch < old, "epoch falls from {old} to {epoch}", old=old)
        if not begins:
            unmarked = (epoch > old) & (old > 0)
            self._terms.report(batch, unmarked, "epoch {epoch} begins without a mark")
        self._epoch = max(self._epoch, int(epoch.max()))
        if self._reached is None:
            return
        late, newest = ordinal > self._reached.recorded, ordinal == self._reached.recorded
        ahead, behind = epoch > self._reached.epoch, epoch < self._reached.epoch
        self._terms.report(
            batch,
            (ahead & ~late) | (behind & (late | newest)),
            "line {ordinal} is of epoch {epoch}, but the state of {state.epoch}",
        )
        self._terms.report(
            batch,
            ~late & (last >= self._reached.next_offset),
            "record {last_offset} was read, but the state had reached {state.next_offset} alone",
        )

    # -- what differs from line to line ----------------------------------------------------------

    def _wave(self, batch: Table, lines: Sequence[Charge]) -> None:
        """Lines of different keys."""
        code, block, old = batch["code"], batch["block"], self._rows[batch["row"]]
        opens, ends, beside = code == OPENS, code == ENDS, code > ENDS
        known = old["opened"] & alike(old, batch, "epoch", "born")
        bit = np.left_shift(1, np.maximum(code - 2, 0)).astype(np.uint8)
        newest = block == old["due"] - 1
        second = known & (
            opens | (ends & (block < old["due"])) | (beside & newest & (old["kinds"] & bit > 0))
        )
        newest &= known & old["begun"]
        newest &= alike(old, batch, "start", "stop", "first_offset", "last_offset")
        self._terms.report(batch, second, "block {block} ({kind}) has a second line")
        stray = ~known & ~opens
        self._terms.report(batch, stray, "block {block} of a learner without an opening")
        self._tiles(batch, old, opens & ~second, ends & known & ~second)
        self._terms.report(
            batch,
            beside & ~newest & ~second,
            "{kind} of block {block} with slots [{start}, {stop}) in records {first_offset} …"
            " {last_offset}, but the last that ended is the one before block {old[due]} with slots"
            " [{old[start]}, {old[stop]}) in records {old[first_offset]} … {old[last_offset]}",
            old=old,
        )
        taken, estimates = (opens | ends) & ~second, beside & newest & ~second
        apart = batch[~taken & ~estimates & (batch["stop"] > batch["start"])]
        self._charges.book(
            *(apart[name] for name in ("row", "first_offset", "last_offset", "charge"))
        )
        which = np.flatnonzero(estimates)
        new = old[which]
        new["kinds"] |= bit[which]
        new["owed"] &= ~bit[which]
        new["level"] = self._levels.added(new["level"], batch["charge"][which])
        self._rows[batch["row"][which]] = new
        if taken.any():
            part = batch[taken]
            self._take(part, [lines[at] for at in part["place"].tolist()], old[taken], stray[taken])

    def _tiles(self, batch: Table, old: Table, opens: Bools, ends: Bools) -> None:
        """Blocks are consecutive, slots without a gap, records in order."""
        block, start, length = batch["block"], batch["start"], batch["stop"] - batch["start"]
        first, last, born = batch["first_offset"], batch["last_offset"], batch["born"]
        reads = "block {block} reads records {first_offset} … {last_offset}"
        begins = opens | (ends & ~old["begun"])
        crowded = np.zeros(len(batch), dtype=np.bool_)
        if self._terms.configured is not None and self._terms.configured.whole:
            crowded = ends & batch["ours"] & (length > last - first + 1)
        for wrong, text in (
            (opens & ((length != 0) | (block > 0)),
             "an opening that is charged slots [{start}, {stop}) of block {block}"),
            (ends & (block > old["due"]), "block {block} where {old[due]} was due"),
            (ends & ((start != old["stop"]) | (length <= 0)),
             "slots [{start}, {stop}) where {old[stop]} was due"),
            (ends & ((last < first) | (old["begun"] & (first < old["last_offset"]))),
             reads + ", but {old[last_offset]} was read"),
            ((begins & (first != born)) | (opens & (last != born)),
             reads + ", but its learner was born at {born}"),
            (crowded, "block {block} has slots [{start}, {stop}) in records {first_offset} …"
             " {last_offset}, but the configured format has no frames"),
        ):  # fmt: skip
            self._terms.report(batch, wrong, text, old=old)
        for at in np.flatnonzero((opens | ends) & (old["owed"] > 0)).tolist():
            self._tell(int(batch["at"][at]), f"the block before has no {_missing(old[at])}")

    def _take(self, batch: Table, lines: Sequence[Charge], old: Table, stray: Bools) -> None:
        """Openings and ends of blocks: what they charge, put in force, and readers were told."""
        opens = batch["code"] == OPENS
        for at in np.flatnonzero(opens & (old["opened"] | batch["carried"])).tolist():
            self._succeeds(int(batch["at"][at]), lines[at], old[at])
        if self._reached is not None:
            again = old["opened"] & (old["epoch"] == batch["epoch"])  # its key went idle meanwhile
            here = opens & (batch["ordinal"] <= self._reached.recorded)
            self._opened += int((here & ~again).sum())
        new = self._charges.with_newest(batch["row"], self._rows[batch["row"]], closes=opens)
        for name in ("epoch", "born", "start", "stop", "first_offset", "last_offset"):
            new[name] = batch[name]
        new["due"] = np.where(opens, 0, batch["block"] + 1)
        new["opened"], new["begun"], new["kinds"], new["owed"] = True, ~opens, 0, 0
        new["level"] = np.where(opens, 0, batch["charge"])
        new["lost"] = stray | (new["lost"] & ~opens)
        if self._terms.configured is not None:
            ours = np.flatnonzero(batch["ours"] & ~opens)
            new["owed"][ours] = self._terms.configured.owed((batch["stop"] - batch["start"])[ours])
        for at in np.flatnonzero(opens & batch["carried"]).tolist():
            carried = lines[at].carried
            assert isinstance(carried, CarriedOver)
            new["due"][at] = min(carried.first_block, LARGEST)
            schedule = schedule_in(carried)
            if schedule is not None:  # as if a block of the length reached had ended
                new["start"][at] -= schedule.length_before(carried.first_block)
        for table in np.unique(batch["table"]).tolist():
            which = np.flatnonzero(batch["table"] == table)
            of = [lines[at] for at in which.tolist()]
            new[which] = self._counted(
                self._terms.tables[table], batch[which], of, old[which], new[which]
            )
        self._rows[batch["row"]] = self.shown.compare(batch, new)

    def _succeeds(self, at: int, line: Charge, old: Any) -> None:
        """Compare an opening with the learner that its key had."""
        before = None
        if old["opened"]:
            after = After(int(old["epoch"]), int(old["born"]), int(old["due"]))
            before = NewestCharge(
                after, int(old["stop"] - old["start"]), self._terms.tables[old["table"]],
                row=self._keys[key_bytes(line)], said=int(old["said"]), lost=bool(old["lost"]),
            )  # fmt: skip
        try:
            for wrong in self._succession.opened(line, before):
                self._tell(at, wrong)
        except (InvalidConfig, StateMismatch) as error:
            self._tell(at, f"an opening: {error}")

    def _counted(
        self, learners: Learners, batch: Table, lines: Sequence[Charge], old: Table, new: Table
    ) -> Table:
        """Fold what was drawn into learners that count alike, and compare what follows."""
        opens, rows, votes = batch["code"] == OPENS, batch["row"], learners.method.learner is None
        changed = ~opens & ~new["lost"] & (old["table"] != batch["table"])
        for at in np.flatnonzero(changed).tolist():
            what, before = (
                "memory" if votes else "learner",
                self._terms.tables[old["table"][at]].method,
            )
            text = f"another {what} than before: {learners.method}, not {before}"
            self._tell(int(batch["at"][at]), text)
        new["lost"] |= changed
        new["table"], new["said"] = batch["table"], -1
        if votes:
            new["said"] = np.where(batch["in_force"] < 0, batch["vote"], batch["in_force"])
            if not learners.method.memory:
                return new
        try:
            plain = opens & ~batch["carried"]
            if plain.any():
                learners.opened(rows[plain], batch["vote"][plain, None])
            ended, released = list[int](), list[Ints]()
            for at in np.flatnonzero(~plain & ~new["lost"]).tolist():
                try:
                    if opens[at]:
                        taken = self._terms.under(lines[at].epoch, batch["list"][at])
                        learners.begin(int(rows[at]), lines[at], taken.allowed)
                    else:
                        released.append(released_by(lines[at], learners, int(rows[at])))
                        ended.append(at)
                except (InvalidConfig, StateMismatch, OverflowError) as error:
                    new["lost"][at] = True
                    self._tell(int(batch["at"][at]), f"block {batch['block'][at]}: {error}")
            if ended:
                some, numbers = batch[ended], np.stack(released)
                for epoch, listed in np.unique(some[["epoch", "list"]]).tolist():
                    of = (some["epoch"] == epoch) & (some["list"] == listed)
                    lengths = (some["stop"] - some["start"])[of]
                    taken = self._terms.under(epoch, listed)
                    of_named = learners.evidence.of_named(numbers[of], taken.named)
                    self._terms.report(
                        some[of],
                        (of_named != numbers[of]).any(axis=1),
                        "block {block}: it has numbers of a column that has no name",
                    )
                    learners.folded(some["row"][of], numbers[of], lengths, taken.allowed)
                self._in_slots(learners, some)
            told = np.flatnonzero(~new["lost"] & (batch["in_force"] >= 0))
            if votes and len(told):
                computed = learners.in_force(rows[told], np.zeros_like(rows[told]))
                self._terms.report(
                    batch[told],
                    computed != batch["in_force"][told],
                    "block {block}: the votes put action {computed} in force, but the line names"
                    " {named}",
                    computed=computed,
                    named=batch["in_force"][told],
                )
        except InvalidConfig:  # the terms' fault, which is reported
            new["lost"] = True
        return new

    def _in_slots(self, learners: Learners, batch: Table) -> None:
        """Compare the slots of blocks with those that their learner has."""
        kind = learners.method.kind(learners.actions)
        if kind is None:
            return
        start, stop = kind.schedule.starts(batch["block"]), kind.schedule.stops(batch["block"])
        self._terms.report(
            batch,
            (batch["start"] != start) | (batch["stop"] != stop),
            "block {block} has the slots [{start}, {stop}), its learner's [{begin}, {end})",
            begin=start,
            end=stop,
        )

    @property
    def input(self) -> str:
        """The topic that the lines name as their input."""
        return self._terms.input

    @property
    def input_id(self) -> str | None:
        """The input's topic id, if a line names it."""
        return self._terms.input_id

    # -- at the end ------------------------------------------------------------------------------

    def charges(self) -> TopicCharges:
        """All charges so far, by key."""
        return self._charges.so_far(self._rows)

    def missing(self) -> Iterator[str]:
        """Yield what the lines lack that configuration, state or readers know of."""
        self._lay_out()
        reached, rows, keys = self._reached, self._rows, list(self._keys)
        if reached is not None and reached.published == reached.recorded:
            opened, least = self._opened, "at least " if reached.away else ""
            if opened < reached.rows or (opened > reached.rows and not reached.away):
                keys_are = f"{counted(opened, 'key')} opened in epoch {reached.epoch}"
                yield f"{keys_are}, but the state has {least}{reached.rows}"
        owed = rows["owed"].copy()
        owed[self.shown.waiting] = 0
        for row in np.flatnonzero(owed).tolist():
            yield f"the newest block of key {keys[row]!r} has no {_missing(rows[row])}"
        yield from self.shown.missing(rows)


def _missing(row: Any) -> str:
    """An estimate that a block has not."""
    return _ESTIMATES[int(row["owed"]).bit_length() - 1]


def _is_small(line: Charge) -> bool:
    numbers = (getattr(line, name) for name in (*NUMBERS, "in_force"))
    return all(number is UNSET or number < LARGEST for number in numbers)
