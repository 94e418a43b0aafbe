"""Follows the ledger lines of one partition, many at once: for `verification`, which has the rules.

What all lines of one sort say alike (their *terms*: kind, epoch, mechanism, noise, digest, …) is
judged once. What differs from line to line is columns, and each key has a row with its newest
learner and block. A batch is cut into *waves* in which no key comes twice, so that rows are what
the line before left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.calibration import permute_and_flip_charge
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import ACTION, OPENING, SUMS, After, Key
from streamdp.core.kinds.kind import BlockRelease
from streamdp.core.ledger import TopicCharges
from streamdp.core.regret import ESTIMATES, estimate
from streamdp.core.releases import Identity, Release
from streamdp.core.selection import Smallest
from streamdp.ports import StreamTopics
from streamdp.service.successions import Newest, Succession
from streamdp.wire.lines import (
    ENDS_BLOCK,
    ActionLine,
    CarriedOver,
    Charge,
    EpochMark,
    InForce,
    LedgerLine,
    from_base64,
    key_bytes,
)
from streamdp.wire.published import CARRIED, decode_ledger, named_levels
from streamdp.wire.retracing import (
    Learners,
    Method,
    grown,
    released_by,
    released_with,
    schedule_in,
)

if TYPE_CHECKING:
    from streamdp.service.spec import StreamSpec

Table = NDArray[Any]
"""An array with named fields."""

LONGEST = 1000
"""Characters of an exact number: far more than any of ours, fewer than Python refuses (4,300)."""

MOST_COMPARED = 1_000_000
"""Records of a partition's actions topic that are compared with its ledger. Of more, the newest of
each key: so many are left where the topic is compacted."""

LARGEST = 1 << 62
"""No slot or offset is as large."""

_OPENS, _ENDS = 0, 1
_CODES = {
    OPENING: _OPENS,
    **dict.fromkeys(ENDS_BLOCK, _ENDS),
    **{name: 2 + at for at, name in enumerate(sorted(ESTIMATES))},
}
_ESTIMATES = sorted(ESTIMATES)
_CONFIGURED = (
    "mechanism", "epsilon", "rate", "scale", "delta", "memory", "learner", "actions", "seeded",
)  # fmt: skip
"""Fields of a charge that follow from configuration and kind; of an opening not its mechanism."""

_NUMBERS = (
    "ordinal", "epoch", "born", "block", "start", "stop", "first_offset", "last_offset",
)  # fmt: skip
_SHOWN = 200  # characters of a name in a message
_PART_BYTES = 4  # per action of a policy
_ONE_LONG = np.array([1 << 40])  # the length of a record that would have many slots in a frame
_AT_ONCE = 1 << 16  # rows that are settled
_NOTHING = Fraction(0)

_TERMS = [("code", "i8"), ("charge", "i8"), ("table", "i8"), ("vote", "i8"), ("carried", "?"),
          ("ours", "?")]  # fmt: skip
_LINE = np.dtype(
    [
        ("at", "i8"),  # its offset in the ledger
        ("place", "i8"),  # in the list of lines
        ("sort", "i8"),  # the number of its terms
        ("row", "i8"),
        *((name, "i8") for name in _NUMBERS),
        ("in_force", "i8"),  # -1 where a line does not say
        *_TERMS,
    ]
)

_ROW = np.dtype(
    [
        ("epoch", "i8"), ("born", "i8"),  # of the newest learner
        ("due", "i8"),  # its next block
        ("start", "i8"), ("stop", "i8"), ("first_offset", "i8"), ("last_offset", "i8"),
        ("level", "i4"),  # of its newest block: what that was charged, as a place in `Levels`
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

_RECORD = np.dtype(
    [
        ("row", "i4"), ("code", "i1"), ("epoch", "i8"), ("born", "i8"), ("block", "i8"),
        ("choice", "i4"),  # the number of the action, or how many parts the policy has
        ("names", "i4"), ("one", "u8"), ("two", "u8"),  # the policy's digest
    ]
)  # fmt: skip
"""What is compared of a record in the actions topic."""


class Reached(NamedTuple):
    """What a partition's newest commit says of its ledger."""

    epoch: int
    published: int  # lines that readers can see
    recorded: int  # lines that have their final bytes
    next_offset: int  # no line, up to the last recorded one, reads this record
    digest: str
    input_id: str | None = None
    persons: str = ""  # an assembly's cap, in words
    rows: int = 0  # how many keys have a learner
    away: bool = False  # whether more may be away
    waiting: frozenset[Key] = frozenset()  # keys with releases that readers cannot see yet


class Configured:
    """What a configured stream writes."""

    def __init__(self, spec: StreamSpec) -> None:
        self.digest = spec.digest
        self.actions = spec.learner.actions
        self.levels = named_levels(spec.lines)
        self.whole = int(spec.format.slots(_ONE_LONG)[0]) == 1  # whether a record is one slot
        self.estimates = [(_CODES[of.name], of.shortest) for of in spec.kind.releases[1:]]
        self.lines: dict[str, LedgerLine] = {}
        for of in (BlockRelease(OPENING, _NOTHING, 1), *spec.kind.releases):
            identity = Identity(spec.name, 0, None, spec.epoch, 0, 0, of.name)
            release = Release(identity, (0,) * of.width, 1, 2, 0, 0, of.epsilon)
            self.lines[of.name] = decode_ledger(spec.lines.ledger(release, ordinal=1))

    def faults(self, line: Charge) -> Iterator[str]:
        """Yield what a line says otherwise."""
        expected = self.lines.get(line.kind)
        if expected is None:
            yield f"the configured stream releases no {line.kind!r}"
            return
        for name in _CONFIGURED:
            got, said = getattr(line, name), getattr(expected, name)
            if got != said and (name, line.kind) != ("mechanism", OPENING):
                got, said = ("none" if of is UNSET else of for of in (got, said))
                yield f"{name} is {got}, configured is {said}"

    def owed(self, lengths: Ints) -> NDArray[np.uint8]:
        """The estimates that blocks of these lengths must have."""
        owed = np.zeros(len(lengths), dtype=np.uint8)
        for code, shortest in self.estimates:
            owed[lengths >= shortest] |= 1 << (code - 2)
        return owed


@dataclass(slots=True)
class Levels:
    """Charges by number; 0 stands for nothing."""

    amounts: list[Fraction] = field(default_factory=lambda: [_NOTHING])
    _numbers: dict[Fraction, int] = field(default_factory=lambda: {_NOTHING: 0})

    def number(self, amount: Fraction) -> int:
        """The number of a charge."""
        if amount not in self._numbers:
            self._numbers[amount] = len(self.amounts)
            self.amounts.append(amount)
        return self._numbers[amount]

    def added(self, some: Ints, others: Ints) -> list[int]:
        """The numbers of sums."""
        pairs = zip(some.tolist(), others.tolist(), strict=True)
        return [self.number(self.amounts[one] + self.amounts[other]) for one, other in pairs]

    def more(self, some: Ints, others: Ints) -> Bools:
        """Where the first is more than the second."""
        amounts = np.array(self.amounts, dtype=object)
        return np.asarray(amounts[some] > amounts[others], dtype=np.bool_)


class _Sort(NamedTuple):
    """What lines of the same terms have in common."""

    kind: str
    faults: tuple[str, ...]
    columns: tuple[int | bool, ...]  # `_TERMS`


@dataclass(slots=True)
class Compared:
    """How many records of actions topics were compared with the ledger's lines."""

    actions: int = 0  # equal to the action in force
    policies: int = 0  # recomputed from the sums, and equal


class PartitionLines:
    """The lines of one partition so far."""

    def __init__(
        self,
        stream: StreamTopics,
        number: int,
        *,
        keys: dict[Key, int],
        levels: Levels,
        tell: Callable[[int, str], None],
        reached: Reached | None = None,
        configured: Configured | None = None,
    ) -> None:
        """`tell` reports a violation at an offset of the ledger."""
        self.ordinal = 0  # of the last line
        self.compared = Compared()
        self.slots = 0  # in blocks that ended
        self.lines = self.seeded = 0
        self.shown_whole = False  # whether the actions topic was read to its end
        self.input = stream.input
        self.input_id: str | None = None
        self._epoch = 0
        self._digests: dict[int, str] = {}  # of each epoch's configuration
        self._reached, self._configured = reached, configured
        self._stream, self._number, self._keys, self._levels = stream, number, keys, levels
        self._tell = tell
        self._position = 0  # the epoch's first record
        self._last = -1  # the latest record in any line
        self._opened = 0  # keys, in this epoch
        self._rows: Table = np.zeros(0, _ROW)
        self._sort_of: dict[tuple[object, ...], int] = {}
        self._sorts: list[_Sort] = []
        self._terms: Table = np.zeros(0, _TERMS)
        self._tables: list[Learners] = []
        self._table_of: dict[tuple[int, Method], int] = {}
        self._names: dict[tuple[int, int], str] = {}  # by epoch and action; -1: of policies
        self._succession = Succession(self._names)
        self._runs: list[TopicCharges] = []
        self._records: list[Table] = []  # of the actions topic, as they were read
        self._room = MOST_COMPARED
        self._shown: Table = np.zeros(0, _RECORD)  # the same, by key
        self._strays: list[Table] = []  # those that have no line
        self._texts: dict[str, int] = {}  # names in them
        waiting = () if reached is None else reached.waiting
        self._waiting = [keys.setdefault(key, len(keys)) for key in waiting]

    # -- the actions topic -----------------------------------------------------------------------

    def show(self, lines: Sequence[InForce]) -> None:
        """Read records of the actions topic, before any line."""
        records, keys = list[tuple[int, ...]](), self._keys
        for line in lines:
            prints = (0, 0)
            if isinstance(line, ActionLine):
                choice, names = line.index, line.action
            else:
                policy = from_base64(line.policy, "policy")
                choice, names = len(policy) // _PART_BYTES, named_levels(line)
                prints = _fingerprint(policy)
            records.append((
                keys.setdefault(key_bytes(line), len(keys)), _CODES[line.kind], line.epoch,
                line.born, line.block, choice, self._texts.setdefault(names, len(self._texts)),
                *prints,
            ))  # fmt: skip
        self._records.append(np.array(records, _RECORD))
        if sum(map(len, self._records)) > self._room:
            every = np.concatenate(self._records)
            _, newest = np.unique(every["row"][::-1], return_index=True)
            self._records = [every[np.sort(len(every) - 1 - newest)]]
            self._room = max(MOST_COMPARED, 2 * len(newest))

    def _by_key(self) -> None:
        """Lay the records of the actions topic out by key."""
        if not self._records:
            return
        every, self._records = np.concatenate(self._records), []
        self._shown = every[np.argsort(every["row"], kind="stable")]
        self._rows = grown(self._rows, len(self._keys), dtype=_ROW)
        rows = np.arange(len(self._rows))
        self._rows["shown_at"] = np.searchsorted(self._shown["row"], rows)
        self._rows["shown_end"] = np.searchsorted(self._shown["row"], rows, side="right")

    # -- lines -----------------------------------------------------------------------------------

    def read(self, records: Sequence[tuple[int, LedgerLine]]) -> None:
        """Read some lines, each with its offset in the ledger."""
        self._by_key()
        charges: list[tuple[int, Charge]] = []
        for at, line in records:
            if isinstance(line, Charge):
                charges.append((at, line))
                continue
            self._read_charges(charges)
            charges = []
            self._read_mark(at, line)
        self._read_charges(charges)

    def _read_mark(self, at: int, line: EpochMark) -> None:
        self.lines += 1
        self.seeded += line.seeded
        for wrong in (*self._of_place(line), *self._of_epoch(line)):
            self._tell(at, wrong)
        if max(line.ordinal, line.epoch, line.next_offset) >= LARGEST:
            self._tell(at, f"a number is too large; expected < {LARGEST}")
            return
        mark = np.zeros(1, _LINE)
        mark["at"], mark["ordinal"], mark["epoch"] = at, line.ordinal, line.epoch
        mark["last_offset"] = line.next_offset - 1
        self._in_order(mark, begins=True)
        earlier = self._digests.keys() - {line.epoch}
        if earlier and line.previous not in earlier:
            self._tell(at, f"epoch {line.epoch} follows {line.previous}, of which there is no line")
        if line.next_offset <= self._last:
            begins = f"epoch {line.epoch} begins at {line.next_offset}"
            self._tell(at, f"{begins}, but {self._last} was read")
        self._epoch, self._position, self._opened = line.epoch, line.next_offset, 0
        carries = None if line.carries is UNSET else line.carries
        self._succession.begin(line.epoch, carries)
        if carries is None:
            self._settle_all(self._rows)
            self._rows["opened"] = False

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
        for number in np.unique(batch["sort"]).tolist():
            for fault in self._sorts[number].faults:
                alike = batch["sort"] == number
                self._report(batch, alike, "block {block} ({kind}): {fault}", fault=fault)
        self.lines += len(batch)
        self.seeded += sum(line.seeded for line in lines)
        self._in_order(batch)
        self._report(
            batch,
            batch["first_offset"] < self._position,
            "record {first_offset} is read again, epoch {epoch} began after it",
        )
        self._last = max(self._last, int(batch["last_offset"].max()))
        self.slots += int((batch["stop"] - batch["start"])[batch["code"] == _ENDS].sum())
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
        known, keys, rows = self._sort_of, self._keys, list[tuple[int, ...]]()
        for place, (at, line) in enumerate(charges):
            terms = (
                line.kind, line.epoch, line.input, line.input_id, line.digest, line.mechanism,
                line.epsilon, line.rate, line.scale, line.delta, line.memory, line.learner,
                line.actions, line.seeded, line.index, line.action, line.stream, line.partition,
                line.carried is UNSET, line.in_force is UNSET,
            )  # fmt: skip
            sort = known.get(terms)
            if sort is None:
                sort = known[terms] = len(known)
                self._sorts.append(self._judged(line))
            key = line.key.encode() if isinstance(line.key, str) else key_bytes(line)
            rows.append((
                at, place, sort, keys.setdefault(key, len(keys)), line.ordinal, line.epoch,
                line.born, line.block, line.start, line.stop, line.first_offset, line.last_offset,
                -1 if line.in_force is UNSET else line.in_force,
            ))  # fmt: skip
        if len(self._terms) < len(known):
            self._terms = np.array([sort.columns for sort in self._sorts], _TERMS)
        numbers = np.array(rows, dtype=np.int64).reshape(-1, len(_NUMBERS) + 5)
        if numbers.max(initial=0) >= LARGEST:
            raise OverflowError
        self._rows = grown(self._rows, len(keys), dtype=_ROW)
        batch = np.empty(len(rows), _LINE)
        for name, column in zip(_LINE.names or (), numbers.T, strict=False):
            batch[name] = column
        for name, _ in _TERMS:
            batch[name] = self._terms[name][batch["sort"]]
        return batch

    def _in_order(self, batch: Table, *, begins: bool = False) -> None:
        """Check ordinals and epochs, against the lines before and the state."""
        ordinal, epoch, last = batch["ordinal"], batch["epoch"], batch["last_offset"]
        due = np.concatenate([[self.ordinal], ordinal[:-1]]) + 1
        self._report(batch, ordinal != due, "line {ordinal} where {due} was due", due=due)
        self.ordinal = int(ordinal[-1])
        old = np.maximum.accumulate(np.concatenate([[self._epoch], epoch[:-1]]))
        self._report(batch, epoch < old, "epoch falls from {old} to {epoch}", old=old)
        if not begins:
            unmarked = (epoch > old) & (old > 0)
            self._report(batch, unmarked, "epoch {epoch} begins without a mark")
        self._epoch = max(self._epoch, int(epoch.max()))
        if self._reached is None:
            return
        late, newest = ordinal > self._reached.recorded, ordinal == self._reached.recorded
        ahead, behind = epoch > self._reached.epoch, epoch < self._reached.epoch
        self._report(
            batch,
            (ahead & ~late) | (behind & (late | newest)),
            "line {ordinal} is of epoch {epoch}, but the state of {state.epoch}",
        )
        self._report(
            batch,
            ~late & (last >= self._reached.next_offset),
            "record {last_offset} was read, but the state had reached {state.next_offset} alone",
        )

    def _report(self, batch: Table, wrong: Bools, text: str, **more: Any) -> None:
        """Report what is wrong with some lines; `more` has columns, or what is the same for all."""
        for place in np.flatnonzero(wrong).tolist():
            line = batch[place]
            numbers = {name: line[name] for name in _NUMBERS}
            beside = {
                name: of[place] if isinstance(of, np.ndarray) else of for name, of in more.items()
            }
            kind = self._sorts[line["sort"]].kind if self._sorts else ""
            told = text.format(kind=kind, state=self._reached, **numbers, **beside)
            self._tell(int(line["at"]), told)

    # -- what lines of one sort say alike --------------------------------------------------------

    def _of_place(self, line: LedgerLine) -> Iterator[str]:
        """Check that the line names its place, and the input of its stream."""
        stream, number = self._stream, self._number
        if (line.stream, line.partition) != (stream.stream, number):
            yield f"it names {line.stream}/{line.partition}, expected {stream.stream}/{number}"
        self.input = self.input or line.input
        if line.input != self.input:
            of = f"{stream.app}.{stream.stream}"
            yield f"its input is {line.input}, but that of {of} is {self.input}"

    def _of_epoch(self, line: LedgerLine) -> Iterator[str]:
        """Compare with the other lines of the epoch, and with the state."""
        digest, reached = self._digests.setdefault(line.epoch, line.digest), self._reached
        if line.digest != digest:
            yield f"its digest is {line.digest}, that of epoch {line.epoch} is {digest}"
        if reached is not None and line.epoch == reached.epoch and line.digest != reached.digest:
            yield f"its digest is {line.digest}, the state's {reached.digest}"
        if line.input_id is UNSET:
            return
        self.input_id = self.input_id or line.input_id
        if line.input_id != self.input_id:
            yield f"its input has topic id {line.input_id}, in earlier lines {self.input_id}"
        if reached is not None and reached.input_id not in (None, line.input_id):
            yield f"its input has topic id {line.input_id}, in the state {reached.input_id}"

    def _judged(self, line: Charge) -> _Sort:
        """What follows from a line's terms."""
        configured, method = self._configured, Method.of(line)
        code, charge, table = _CODES.get(line.kind, -1), _NOTHING, -1
        faults = [*self._of_place(line), *self._of_epoch(line)]
        ours = configured is not None and configured.digest == line.digest
        if configured is not None and ours and (line.epoch, 0) not in self._names:
            self._names |= {(line.epoch, at): of for at, of in enumerate(configured.actions)}
            self._names[line.epoch, -1] = configured.levels
        noise = [number for number in (line.rate, line.scale) if number is not UNSET]
        if (size := max(map(len, (line.epsilon, line.delta, *noise)))) > LONGEST:
            faults.append(f"an exact number has {size} characters; expected ≤ {LONGEST}")
        else:
            charge = line.charge
            faults += _charged_enough(line)
            if configured is not None and ours:
                faults += configured.faults(line)
            try:
                faults += _counts(line, method)
            except (InvalidConfig, StateMismatch) as error:
                faults.append(str(error))
        if isinstance(line.index, int) and isinstance(line.action, str):
            faults += self._named_so(line.epoch, line.index, line.action)
        if code in (_OPENS, _ENDS):
            table = self._table_of.setdefault((line.epoch, method), len(self._tables))
            if table == len(self._tables):
                self._tables.append(Learners(method))
        carries = isinstance(line.carried, CarriedOver)
        if code == _OPENS and (line.mechanism == CARRIED) != carries:
            faults.append(f"an opening by {line.mechanism!r} that contradicts what it carries")
        if code == _OPENS and charge:
            faults.append("an opening that is charged")
        vote = -1 if line.index is UNSET else min(line.index, LARGEST)
        columns = (code, self._levels.number(charge), table, vote, carries, ours)
        return _Sort(line.kind, tuple(faults), columns)

    def _named_so(self, epoch: int, index: int, name: str) -> Iterator[str]:
        """Check that an action, or what policies belong to (-1), has one name in an epoch."""
        known = self._names.setdefault((epoch, index), name)
        if name != known:
            what = "policies are" if index < 0 else f"action {index} is"
            yield f"{what} of {name[:_SHOWN]}, expected {known[:_SHOWN]}"

    # -- what differs from line to line ----------------------------------------------------------

    def _wave(self, batch: Table, lines: Sequence[Charge]) -> None:
        """Lines of different keys."""
        code, block, old = batch["code"], batch["block"], self._rows[batch["row"]]
        opens, ends, beside = code == _OPENS, code == _ENDS, code > _ENDS
        known = old["opened"] & _alike(old, batch, "epoch", "born")
        bit = np.left_shift(1, np.maximum(code - 2, 0)).astype(np.uint8)
        newest = block == old["due"] - 1
        second = known & (
            opens | (ends & (block < old["due"])) | (beside & newest & (old["kinds"] & bit > 0))
        )
        newest &= known & old["begun"]
        newest &= _alike(old, batch, "start", "stop", "first_offset", "last_offset")
        self._report(batch, second, "block {block} ({kind}) has a second line")
        stray = ~known & ~opens
        self._report(batch, stray, "block {block} of a learner without an opening")
        self._tiles(batch, old, opens & ~second, ends & known & ~second)
        self._report(
            batch,
            beside & ~newest & ~second,
            "{kind} of block {block} with slots [{start}, {stop}) in records {first_offset} …"
            " {last_offset}, but the last that ended is the one before block {old[due]} with slots"
            " [{old[start]}, {old[stop]}) in records {old[first_offset]} … {old[last_offset]}",
            old=old,
        )
        taken, estimates = (opens | ends) & ~second, beside & newest & ~second
        apart = batch[~taken & ~estimates & (batch["stop"] > batch["start"])]
        self._book(*(apart[name] for name in ("row", "first_offset", "last_offset", "charge")))
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
        if self._configured is not None and self._configured.whole:
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
            self._report(batch, wrong, text, old=old)
        for at in np.flatnonzero((opens | ends) & (old["owed"] > 0)).tolist():
            self._tell(int(batch["at"][at]), f"the block before has no {_missing(old[at])}")

    def _take(self, batch: Table, lines: Sequence[Charge], old: Table, stray: Bools) -> None:
        """Openings and ends of blocks: what they charge, put in force, and readers were told."""
        opens = batch["code"] == _OPENS
        for at in np.flatnonzero(opens & (old["opened"] | batch["carried"])).tolist():
            self._succeeds(int(batch["at"][at]), lines[at], old[at])
        if self._reached is not None:
            again = old["opened"] & (old["epoch"] == batch["epoch"])  # its key went idle meanwhile
            here = opens & (batch["ordinal"] <= self._reached.recorded)
            self._opened += int((here & ~again).sum())
        new = self._settled(batch["row"], self._rows[batch["row"]], closes=opens)
        for name in ("epoch", "born", "start", "stop", "first_offset", "last_offset"):
            new[name] = batch[name]
        new["due"] = np.where(opens, 0, batch["block"] + 1)
        new["opened"], new["begun"], new["kinds"], new["owed"] = True, ~opens, 0, 0
        new["level"] = np.where(opens, 0, batch["charge"])
        new["lost"] = stray | (new["lost"] & ~opens)
        if self._configured is not None:
            ours = np.flatnonzero(batch["ours"] & ~opens)
            new["owed"][ours] = self._configured.owed((batch["stop"] - batch["start"])[ours])
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
                self._tables[table], batch[which], of, old[which], new[which]
            )
        self._rows[batch["row"]] = self._as_shown(batch, new)

    def _succeeds(self, at: int, line: Charge, old: Any) -> None:
        """Compare an opening with the learner that its key had."""
        before = None
        if old["opened"]:
            after = After(int(old["epoch"]), int(old["born"]), int(old["due"]))
            before = Newest(
                after, int(old["stop"] - old["start"]), self._tables[old["table"]],
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
        opens, rows, votes = batch["code"] == _OPENS, batch["row"], learners.method.learner is None
        changed = ~opens & ~new["lost"] & (old["table"] != batch["table"])
        for at in np.flatnonzero(changed).tolist():
            what, before = "memory" if votes else "learner", self._tables[old["table"][at]].method
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
                        learners.begin(int(rows[at]), lines[at])
                    else:
                        released.append(released_by(lines[at], learners))
                        ended.append(at)
                except (InvalidConfig, StateMismatch, OverflowError) as error:
                    new["lost"][at] = True
                    self._tell(int(batch["at"][at]), f"block {batch['block'][at]}: {error}")
            if ended:
                lengths = (batch["stop"] - batch["start"])[ended]
                learners.folded(rows[ended], np.stack(released), lengths)
                self._in_slots(learners, batch[ended])
            told = np.flatnonzero(~new["lost"] & (batch["in_force"] >= 0))
            if votes and len(told):
                computed = learners.in_force(rows[told], np.zeros_like(rows[told]))
                self._report(
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
        self._report(
            batch,
            (batch["start"] != start) | (batch["stop"] != stop),
            "block {block} has the slots [{start}, {stop}), its learner's [{begin}, {end})",
            begin=start,
            end=stop,
        )

    # -- what readers were told ------------------------------------------------------------------

    def _as_shown(self, batch: Table, new: Table) -> Table:
        """Compare with the record in the actions topic, if it is still there."""
        there = np.flatnonzero(new["shown_at"] < new["shown_end"])
        same = _alike(self._shown[new["shown_at"][there]], batch[there], *_RELEASE)
        for at in there[~same & (new["shown_end"] - new["shown_at"] > 1)[there]].tolist():
            begin, end = new["shown_at"][at], new["shown_end"][at]
            later = np.flatnonzero(_alike(self._shown[begin:end], batch[at], *_RELEASE))
            if len(later):  # those before it have no line
                self._strays.append(self._shown[begin : begin + later[0]])
                new["shown_at"][at] += later[0]
                same |= there == at
        there = there[same]
        shown, of = self._shown[new["shown_at"][there]], batch[there]
        new["shown_at"][there] += 1
        if self._reached is not None and self.shown_whole:
            seen = batch["ordinal"] <= self._reached.published
            new["unseen"] |= seen & ~np.isin(batch["row"], self._waiting)
        new["unseen"][there] = False
        policies = (shown["one"] > 0) | (shown["two"] > 0)
        self._policies(of[policies], new[there[policies]], shown[policies])
        number = np.where(policies, -1, shown["choice"])
        texts = list(self._texts)
        named = (of["epoch"].tolist(), number.tolist(), shown["names"].tolist())
        for epoch, index, name in dict.fromkeys(zip(*named, strict=True)):
            for wrong in self._named_so(epoch, index, texts[name]):
                alike = (of["epoch"] == epoch) & (number == index) & (shown["names"] == name)
                self._report(of, alike, "block {block}: {fault}", fault=wrong)
        wrongs = ~policies & (shown["choice"] != new["said"][there])
        self._report(
            of,
            wrongs,
            "block {block}: published action {published}, expected {said}",
            published=shown["choice"],
            said=new["said"][there],
        )
        self.compared.actions += int((~policies & ~wrongs).sum())
        return new

    def _policies(self, batch: Table, new: Table, shown: Table) -> None:
        """Compute the policies that were published."""
        self._report(
            batch,
            new["lost"],
            "block {block}: the ledger's sums do not say which policy it put in force",
        )
        for table in np.unique(new["table"][~new["lost"]]).tolist():
            which = np.flatnonzero(~new["lost"] & (new["table"] == table))
            of, learners = batch[which], self._tables[table]
            prints = np.zeros((len(which), 2), dtype=np.uint64)
            try:
                for parts in np.unique(shown["choice"][which]).tolist():
                    learners.count("in_force", parts)
                computed = learners.policies(of["row"], new["due"][which])
                prints[:] = [_fingerprint(policy.astype("<u4").tobytes()) for policy in computed]
            except (InvalidConfig, StateMismatch) as error:
                self._tell(int(of["at"][0]), f"block {of['block'][0]}: {error}")
            wrong = (prints[:, 0] != shown["one"][which]) | (prints[:, 1] != shown["two"][which])
            text = "block {block}: the published policy does not follow from the sums"
            self._report(of, wrong, text)
            self.compared.policies += int((~wrong).sum())

    # -- what was charged ------------------------------------------------------------------------

    def _book(self, row: Ints, first: Ints, last: Ints, level: Ints) -> None:
        """Book charges on records, from offset to offset."""
        some = np.flatnonzero((level > 0) & (last >= first))
        if len(some):
            columns = (of[some].astype(np.int64) for of in (row, first, last, level))
            self._runs.append(TopicCharges(*columns))

    def _settled(self, rows: Ints, of: Table, *, closes: Bools) -> Table:
        """The rows with the newest block among those before it; runs that end are booked.

        Two blocks may share a record (a frame with slots in both): its highest charge counts.
        """
        begun, runs, first = of["begun"].copy(), of["run_level"] > 0, of["first_offset"].copy()
        anew = begun & ~(runs & (of["run_level"] == of["level"]))
        shared = np.flatnonzero(anew & runs & (first == of["run_last"]))
        if len(shared):
            more = self._levels.more(of["level"][shared], of["run_level"][shared])
            of["run_last"][shared[more]] -= 1
            first[shared[~more]] += 1
        for ends in (anew, closes):
            run = of[ends]
            self._book(rows[ends], run["run_first"], run["run_last"], run["run_level"])
            if ends is anew:
                of["run_last"][begun] = of["last_offset"][begun]
                of["run_first"][anew], of["run_level"][anew] = first[anew], of["level"][anew]
        of["run_level"][closes], of["begun"] = 0, False
        return of

    def charges(self) -> TopicCharges:
        """All charges so far, by key."""
        runs = list(self._runs)
        for first in range(0, len(self._rows), _AT_ONCE):
            self._settle_all(self._rows[first : first + _AT_ONCE].copy(), first)
        runs, self._runs = self._runs, runs
        return TopicCharges.joined(runs)

    def _settle_all(self, some: Table, first: int = 0) -> None:
        rows = np.arange(first, first + len(some))
        self._settled(rows, some, closes=np.ones(len(some), dtype=np.bool_))

    # -- at the end ------------------------------------------------------------------------------

    def missing(self) -> Iterator[str]:
        """Yield what the lines lack that configuration, state or readers know of."""
        self._by_key()
        reached, rows, keys = self._reached, self._rows, list(self._keys)
        if reached is not None and reached.published == reached.recorded:
            opened, least = self._opened, "at least " if reached.away else ""
            if opened < reached.rows or (opened > reached.rows and not reached.away):
                keys_are = f"{opened} keys have opened in epoch {reached.epoch}"
                yield f"{keys_are}, but the state has {least}{reached.rows}"
        owed = rows["owed"].copy()
        owed[self._waiting] = 0
        for row in np.flatnonzero(owed).tolist():
            yield f"the newest block of key {keys[row]!r} has no {_missing(rows[row])}"
        for row in np.flatnonzero(rows["unseen"]).tolist():
            of = rows[row]
            which = f"block {of['due'] - 1}" if of["begun"] else "opening"
            yield (
                f"readers were not told of the newest {which} of key {keys[row]!r}, born at"
                f" {of['born']}, epoch {of['epoch']}"
            )
        for row in np.flatnonzero(rows["shown_at"] < rows["shown_end"]).tolist():
            self._strays.append(self._shown[rows["shown_at"][row] : rows["shown_end"][row]])
        for of in (record for records in self._strays for record in records):
            which = "the opening" if of["code"] == _OPENS else f"block {of['block']}"
            yield (
                f"readers were told of {which} of key {keys[of['row']]!r}, born at {of['born']},"
                f" epoch {of['epoch']}, which has no ledger line"
            )


_RELEASE = ("code", "epoch", "born", "block")
"""What a line and a record in the actions topic name a key's release by."""


def _alike(some: Table, others: Table, *names: str) -> Bools:
    same = np.ones(len(some), dtype=np.bool_)
    for name in names:
        same &= some[name] == others[name]
    return same


def _missing(row: Any) -> str:
    """An estimate that a block has not."""
    return _ESTIMATES[int(row["owed"]).bit_length() - 1]


def _is_small(line: Charge) -> bool:
    numbers = (getattr(line, name) for name in (*_NUMBERS, "in_force"))
    return all(number is UNSET or number < LARGEST for number in numbers)


def _charged_enough(line: Charge) -> Iterator[str]:
    """Check that a vote or an estimate is charged what its noise costs; sums have a learner."""
    if line.delta.partition("/")[0].strip("0"):
        yield f"δ is charged, but the promise is pure; expected 0, got {line.delta[:40]}"
    if line.kind == ACTION:
        private = line.mechanism not in ("none", Smallest().name)
    else:
        private = line.mechanism == "discrete_laplace" or line.kind == OPENING
    if not private:
        yield f"it is by {line.mechanism!r}, which is not private"
    if line.kind in (OPENING, SUMS):
        return
    noise, name = (line.rate, "rate") if line.kind == ACTION else (line.scale, "scale")
    if noise is UNSET or not Fraction(noise):
        yield f"it does not name the {name} of its noise"
        return
    if line.kind == ACTION:
        cost = _cost_of_vote(noise)
    elif line.kind not in ESTIMATES or line.actions is UNSET:
        yield "it is no estimate over a number of actions"
        return
    else:
        cost = _cost_of_estimate(line.kind, noise, line.actions)
    if line.charge < cost:
        yield f"it is charged ε = {line.epsilon}, but noise of {name} {noise} costs {cost}"


@lru_cache(maxsize=64)
def _cost_of_vote(rate: str) -> Fraction:
    """The ε of a vote at this rate: whichever selection it was, twice the rate."""
    return permute_and_flip_charge(Fraction(rate))


@lru_cache(maxsize=64)
def _cost_of_estimate(kind: str, scale: str, actions: int) -> Fraction:
    """The ε of an estimate with noise of this scale."""
    return estimate(kind, epsilon=1, min_length=1).sensitivity(actions=actions) / Fraction(scale)


def _counts(line: Charge, method: Method) -> Iterator[str]:
    """Check that a line says how it counts, in terms that this version knows."""
    if line.kind not in (OPENING, *ENDS_BLOCK):
        return
    kind = method.kind(2)
    if kind is not None:
        if line.kind != OPENING:
            yield from released_with(kind, line)
        return
    evidence = method.evidence(0)
    if line.index is UNSET:
        yield "it does not say what was drawn"
    elif wrong := evidence.wrong(np.array([line.index]), 1):
        yield wrong
    if not method.memory and line.in_force is not UNSET:
        yield "it names an action in force beside the vote, but no memory"
    if method.memory and line.in_force is UNSET:
        yield "it does not name vote and action in force"


def _fingerprint(policy: bytes) -> tuple[int, int]:
    """Sixteen bytes in place of K parts: a topic has a policy for every key."""
    digest = blake2b(policy, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
