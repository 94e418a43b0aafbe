"""What lines of one sort say alike (their *terms*: kind, epoch, mechanism, noise, digest, …).

It is judged once, and so is what a line says of its place. What differs from line to line is
columns (`partition_lines`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Ints, Table
from streamdp.core.calibration import permute_and_flip_charge
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import ACTION, OPENING, SPARE, SUMS, Key
from streamdp.core.kinds.estimates import ESTIMATES, estimate
from streamdp.core.kinds.kind import BlockRelease
from streamdp.core.releases import Identity, Release
from streamdp.core.selection import Smallest
from streamdp.ports import StreamTopics
from streamdp.service.verifying.charged import ChargeNumbers
from streamdp.wire.lines import ENDS_BLOCK, CarriedOver, Charge, LedgerLine, TakenList
from streamdp.wire.published import CARRIED, decode_ledger, named_levels, written
from streamdp.wire.retracing import Learners, Method, released_with

if TYPE_CHECKING:
    from streamdp.service.spec import StreamSpec

LONGEST = 1000
"""Characters of an exact number: far more than any of ours, fewer than Python refuses (4,300)."""

LARGEST = 1 << 62
"""No slot or offset is as large."""

OPENS, ENDS = 0, 1
CODES = {
    OPENING: OPENS,
    **dict.fromkeys(ENDS_BLOCK, ENDS),
    **{name: 2 + at for at, name in enumerate(sorted(ESTIMATES))},
}
"""The number of each kind of line; estimates are above `ENDS`."""

NUMBERS = (
    "ordinal", "epoch", "born", "block", "start", "stop", "first_offset", "last_offset",
)  # fmt: skip
"""What differs from line to line, beside the key."""

TERMS = [("code", "i8"), ("charge", "i8"), ("table", "i8"), ("vote", "i8"), ("carried", "?"),
         ("ours", "?"), ("list", "i8")]  # fmt: skip
"""What a line's terms say, as columns."""

_CONFIGURED = (
    "mechanism", "epsilon", "rate", "scale", "delta", "memory", "learner", "actions", "seeded",
)  # fmt: skip
"""Fields of a charge that follow from configuration and kind; of an opening not its mechanism."""

_SHOWN = 200  # characters of a name in a message
_ONE_LONG = np.array([1 << 40])  # the length of a record that would have many slots in a frame
_NOTHING = Fraction(0)


class SavedProgress(NamedTuple):
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
        self.actions = spec.lines.shown or spec.learner.actions
        self.levels = named_levels(spec.lines)
        self.whole = int(spec.format.slots(_ONE_LONG)[0]) == 1  # whether a record is one slot
        self.estimates = [(CODES[of.name], of.shortest) for of in spec.kind.releases[1:]]
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


class _Sort(NamedTuple):
    """What lines of the same terms have in common."""

    kind: str
    faults: tuple[str, ...]
    columns: tuple[int | bool, ...]  # `TERMS`


class ListTaken(NamedTuple):
    """A list that was taken; of an epoch the first is none."""

    position: int = -1
    ordinal: int = 0
    allowed: Bools | None = None  # None: all that have a name
    paused: tuple[str, ...] = ()  # the names that have no part of policies
    named: int | None = None  # how many columns have a name; None: those that began with one


_NO_LIST = ListTaken()


class Terms:
    """The terms of one partition's lines, by number; it says what is wrong with a line."""

    def __init__(
        self,
        stream: StreamTopics,
        number: int,
        *,
        levels: ChargeNumbers,
        tell: Callable[[int, str], None],
        reached: SavedProgress | None,
        configured: Configured | None,
    ) -> None:
        """`tell` reports a violation at an offset of the ledger."""
        self.input = stream.input
        self.input_id: str | None = None
        self.tables: list[Learners] = []  # of learners that count alike
        self.names: dict[tuple[int, int], str] = {}  # by epoch and action; -1: of policies
        self.configured, self.tell = configured, tell
        self._stream, self._number, self._levels, self._reached = stream, number, levels, reached
        self._digests: dict[int, str] = {}  # of each epoch's configuration
        self._sort_of: dict[tuple[object, ...], int] = {}
        self._sorts: list[_Sort] = []
        self._columns: Table = np.zeros(0, TERMS)
        self._table_of: dict[tuple[int, Method], int] = {}
        self._lists: dict[int, list[ListTaken]] = {}  # that were taken, by epoch, in their order

    @property
    def epochs(self) -> set[int]:
        """The epochs that lines are of."""
        return {*self._digests}

    def sort_of(self, line: Charge) -> int:
        """The number of a line's terms."""
        terms = (
            line.kind, line.epoch, line.input, line.input_id, line.digest, line.mechanism,
            line.epsilon, line.rate, line.scale, line.delta, line.memory, line.learner,
            line.actions, line.seeded, line.index, line.action, line.stream, line.partition,
            line.carried is UNSET, line.in_force is UNSET, line.list_ordinal,
        )  # fmt: skip
        sort = self._sort_of.get(terms)
        if sort is None:
            sort = self._sort_of[terms] = len(self._sort_of)
            self._sorts.append(self._judged(line))
        return sort

    def columns(self, sorts: Ints) -> Table:
        """What these terms say."""
        if len(self._columns) < len(self._sorts):
            self._columns = np.array([sort.columns for sort in self._sorts], TERMS)
        return self._columns[sorts]

    def check(self, batch: Table) -> None:
        """Report what is wrong with the terms of some lines."""
        for number in np.unique(batch["sort"]).tolist():
            for fault in self._sorts[number].faults:
                alike = batch["sort"] == number
                self.report(batch, alike, "block {block} ({kind}): {fault}", fault=fault)

    def report(self, batch: Table, wrong: Bools, text: str, **more: Any) -> None:
        """Report what is wrong with some lines; `more` has columns, or what is the same for all."""
        for place in np.flatnonzero(wrong).tolist():
            line = batch[place]
            numbers = {name: line[name] for name in NUMBERS}
            beside = {
                name: of[place] if isinstance(of, np.ndarray) else of for name, of in more.items()
            }
            kind = self._sorts[line["sort"]].kind if self._sorts else ""
            told = text.format(kind=kind, state=self._reached, **numbers, **beside)
            self.tell(int(line["at"]), told)

    def of_place(self, line: LedgerLine) -> Iterator[str]:
        """Check that the line names its place, and the input of its stream."""
        stream, number = self._stream, self._number
        if (line.stream, line.partition) != (stream.stream, number):
            yield f"it names {line.stream}/{line.partition}, expected {stream.stream}/{number}"
        self.input = self.input or line.input
        if line.input != self.input:
            of = f"{stream.app}.{stream.stream}"
            yield f"its input is {line.input}, but that of {of} is {self.input}"

    def of_epoch(self, line: LedgerLine) -> Iterator[str]:
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
        configured, method = self.configured, Method.of(line)
        code, charge, table = CODES.get(line.kind, -1), _NOTHING, -1
        faults = [*self.of_place(line), *self.of_epoch(line)]
        ours = configured is not None and configured.digest == line.digest
        if configured is not None and ours and (line.epoch, -1) not in self.names:
            named = [(at, of) for at, of in enumerate(configured.actions) if of != SPARE]
            for at, name in (*named, (-1, configured.levels[0]), (-2, configured.levels[1])):
                faults += self.named_so(line.epoch, at, name)
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
            faults += self.named_so(line.epoch, line.index, line.action)
        if code in (OPENS, ENDS):
            table = self._table_of.setdefault((line.epoch, method), len(self.tables))
            if table == len(self.tables):
                self.tables.append(Learners(method))
        carries = isinstance(line.carried, CarriedOver)
        if code == OPENS and (line.mechanism == CARRIED) != carries:
            faults.append(f"an opening by {line.mechanism!r} that contradicts what it carries")
        if code == OPENS and charge:
            faults.append("an opening that is charged")
        vote = -1 if line.index is UNSET else min(line.index, LARGEST)
        listed = 0 if line.list_ordinal is UNSET else min(line.list_ordinal, LARGEST)
        columns = (code, self._levels.number(charge), table, vote, carries, ours, listed)
        return _Sort(line.kind, tuple(faults), columns)

    def takes(self, line: TakenList, *, first: int) -> Iterator[str]:
        """Note a list, and yield what is wrong with it; `first`: no record before that is left."""
        taken = self._lists.setdefault(line.epoch, [_NO_LIST])
        if line.list_ordinal <= taken[-1].ordinal:
            yield f"list {line.list_ordinal} is taken after list {taken[-1].ordinal}"
        if line.next_offset < (first := max(taken[-1].position, first)):
            yield f"list {line.list_ordinal} holds from {line.next_offset}, expected ≥ {first}"
        for index, name in enumerate(line.actions):
            if name != SPARE:
                yield from self.named_so(line.epoch, index, name)
            elif (line.epoch, index) in self.names:
                was = self.names[line.epoch, index][:_SHOWN]
                yield f"list {line.list_ordinal} takes column {index} from {was}"
        if SPARE in line.actions and any(line.actions[line.actions.index(SPARE) :]):
            yield f"list {line.list_ordinal} names a column behind a spare one"
        self.names.setdefault((line.epoch, -2 - line.list_ordinal), written(line.actions))
        if unknown := sorted(set(line.paused) - set(line.actions)):
            yield f"list {line.list_ordinal} pauses {unknown[0][:_SHOWN]}, which it does not have"
        paused, position = tuple(line.without_part()), line.next_offset
        taken.append(ListTaken(position, line.list_ordinal, line.allowed(), paused, line.named))

    def lists_of(self, batch: Table) -> Ints:
        """The ordinals of the lists that policies of these lines follow; 0 where there is none.

        That is the last in the epoch that holds from a line's last record or one before it.
        """
        ordinals = np.zeros(len(batch), dtype=np.int64)
        for epoch, taken in self._lists.items():
            some = batch["epoch"] == epoch
            since = np.array([of.position for of in taken])
            places = np.searchsorted(since, batch["last_offset"][some], side="right") - 1
            ordinals[some] = np.array([of.ordinal for of in taken])[places]
        return ordinals

    def under(self, epoch: int, ordinal: int) -> ListTaken:
        """A list that was taken in an epoch, by its ordinal."""
        lists = self._lists.get(epoch, ())
        return next((of for of in lists if of.ordinal == ordinal), _NO_LIST)

    def named_so(self, epoch: int, index: int, name: str) -> Iterator[str]:
        """Check that something has one name in an epoch.

        It is an action; or levels and `played` of policies (-1); or all actions that they name
        under a list (-2 minus its ordinal).
        """
        known = self.names.setdefault((epoch, index), name)
        if name != known:
            what = "policies are" if index < 0 else f"action {index} is"
            yield f"{what} of {name[:_SHOWN]}, expected {known[:_SHOWN]}"


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
    kind = method.kind(method.few)
    if kind is not None:
        if line.kind != OPENING:
            yield from released_with(kind, line)
        return
    evidence = method.evidence(0)
    if line.index is UNSET:
        yield "it does not say what was drawn"
    elif wrong := evidence.wrong({}, np.array([line.index]), 1):
        yield wrong
    if not method.memory and line.in_force is not UNSET:
        yield "it names an action in force beside the vote, but no memory"
    if method.memory and line.in_force is UNSET:
        yield "it does not name vote and action in force"


def alike(some: Table, others: Table, *names: str) -> Bools:
    """Where two tables have the same in these columns."""
    same = np.ones(len(some), dtype=np.bool_)
    for name in names:
        same &= some[name] == others[name]
    return same
