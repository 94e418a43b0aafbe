"""A log of feedback: each slot's shown action, outcome and propensity.

A slot means what it means live. An unknown action is no arm (`NO_ARM`), an unusable outcome is the
gain 0 of the arm that was shown, and either takes its slot. Keys, offsets and partitions are those
of the log, so a learner's bits are addressed as in a live stream; in a file a row's offset is its
number from 0 and the partition is 0, unless columns say otherwise.

Where the log has contexts, an arm is an action in a cell, as live (`core.evidence.contexts`).
Where requests were shown only what was allowed to them, by the stream's list or by themselves, each
such *mask* has arms of its own: `played` is mask · arms + arm, and mask 0 allows everything.

A propensity is the probability with which the shown action was drawn, in (0, 1]; NaN if the log has
none. A record takes 28 bytes, and 24 key by key: in memory where there are few, else in files that
are mapped. So nothing may look at whole columns: `chunks` are pieces that fit in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import NO_ARM, Batch, Key
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.grid import UNIT
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.mapped import Arrays, Gathered, by_key, held, let_go

CHUNK = 1 << 16  # slots that are looked at together
_COLUMNS = ("row", "offsets", "played", "gain", "pscore")

Mask = tuple[bool, ...]
"""Whether each action was allowed."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive slots of one partition, as columns."""

    partition: int
    keys: Sequence[Key]  # different ones
    index: NDArray[Any]  # n: each slot's among them
    offsets: Ints
    played: NDArray[np.int32]  # mask · arms + arm (with contexts: cell · K + action), or NO_ARM
    gain: NDArray[np.int32]  # 1/2 − loss in grid units
    pscore: Floats  # NaN: none
    clipped: int = 0  # slots with a number outside [0, 1]

    @property
    def outcomes(self) -> tuple[NDArray[Any], ...]:
        """The arm, gain and propensity of each slot."""
        return self.played, self.gain, self.pscore

    def __repr__(self) -> str:
        """Show the size, never the content."""
        return f"Piece({len(self.index)} slots of partition {self.partition})"


@dataclass(frozen=True, eq=False, repr=False)
class ShownLog:
    """All slots of a log, in its order."""

    name: str
    actions: tuple[str, ...]
    learners: tuple[tuple[int, Key], ...]  # partition and key, by first appearance
    row: NDArray[np.int32]  # n: the learner of each slot
    offsets: Ints
    played: NDArray[np.int32]
    gain: NDArray[np.int32]
    pscore: Floats
    clipped: int = 0
    contexts: Contexts | None = None
    masks: tuple[Mask, ...] = ()  # the first of all allows everything; none: no other
    before: Ints | None = None  # of a piece of a log: the slots of each learner before it
    first: int = 0  # and of all

    @property
    def cells(self) -> int:
        """How many cells there are; 1 without contexts."""
        return 1 if self.contexts is None else self.contexts.cells

    @cached_property
    def cell(self) -> Ints:
        """The cell of each slot; 0 where no action is known."""
        return np.maximum(self.played, 0).astype(np.int64) // len(self.actions) % self.cells

    @property
    def allowed(self) -> Bools:
        """Which actions each mask allows: masks × actions."""
        return np.array(self.masks or [[True] * len(self.actions)], dtype=np.bool_)

    @cached_property
    def mask(self) -> Ints:
        """The mask of each slot; 0 where no action is known."""
        return np.maximum(self.played, 0).astype(np.int64) // (self.cells * len(self.actions))

    @cached_property
    def shown(self) -> Ints:
        """The action of each slot, whatever its cell, or NO_ARM."""
        played = self.played.astype(np.int64)
        return np.where(played == NO_ARM, NO_ARM, played % len(self.actions))

    @cached_property
    def without_contexts(self) -> ShownLog:
        """The same slots for learners that see no contexts."""
        if self.cells == 1 and not self.masks:
            return self
        return replace(self._numbered(0), contexts=None)

    def in_columns(self, columns: tuple[str, ...]) -> ShownLog:
        """The same slots in a service's columns, the first of which are the log's actions."""
        return replace(self._numbered(len(columns)), actions=columns)

    def _numbered(self, actions: int) -> ShownLog:
        """With the arms of cells of so many actions, whatever was allowed."""
        gathered = Gathered()
        for chunk in self.chunks():
            gathered.add((chunk.arms(actions),))
        return replace(self, played=gathered.columns()[0], masks=())

    def arms(self, actions: int) -> NDArray[np.int32]:
        """The arm of each slot, of cells of so many actions, or NO_ARM."""
        return np.where(self.played < 0, NO_ARM, self.cell * actions + self.shown).astype(np.int32)

    def seen_by(self, learner: PolicyLearner) -> ShownLog:
        """The slots as a learner sees them: by cell, if its arms are those of all cells."""
        if len(learner.actions) == self.cells * len(self.actions):
            return self
        return self.without_contexts

    def chunks(self) -> Iterator[ShownLog]:
        """The slots in pieces that fit in memory, each a log of the same learners."""
        before = np.zeros(len(self.learners), dtype=np.int64)
        for first in range(0, self.slots, CHUNK):
            part = slice(first, first + CHUNK)
            own: dict[str, Any] = {name: np.array(getattr(self, name)[part]) for name in _COLUMNS}
            let_go(*(getattr(self, name) for name in _COLUMNS))
            yield replace(self, **own, before=before, first=first)
            before = before + np.bincount(own["row"], minlength=len(self.learners))

    @property
    def slots(self) -> int:
        """The number of slots."""
        return len(self.row)

    @cached_property
    def born(self) -> Ints:
        """The offset of each learner's first record."""
        born = np.full(len(self.learners), -1, dtype=np.int64)
        for chunk in self.chunks():
            new = np.flatnonzero(born[chunk.row] < 0)[::-1]  # the first one is written last
            born[chunk.row[new]] = chunk.offsets[new]
        return born

    @cached_property
    def counts(self) -> Ints:
        """The number of slots of each learner."""
        counts = np.zeros(len(self.learners), dtype=np.int64)
        for chunk in self.chunks():
            counts += np.bincount(chunk.row, minlength=len(self.learners))
        return counts

    @cached_property
    def number(self) -> Ints:
        """The number of each slot among those of its learner, from 1."""
        own = np.bincount(self.row, minlength=len(self.learners))
        order, begins = np.argsort(self.row, kind="stable"), np.cumsum(own) - own
        number = np.empty(self.slots, dtype=np.int64)
        number[order] = np.arange(self.slots) - begins[self.row[order]] + 1
        return number if self.before is None else number + self.before[self.row]

    @property
    def outcomes(self) -> tuple[NDArray[Any], ...]:
        """The arm, gain and propensity of each slot."""
        return self.played, self.gain, self.pscore

    @property
    def places(self) -> slice:
        """Where a piece stands in its log."""
        return slice(self.first, self.first + self.slots)

    @property
    def reward(self) -> Floats:
        """1 − loss of each slot, as the learner sees it."""
        return self.gain / UNIT + 0.5

    def with_learners(self, has: Sequence[bool]) -> ShownLog:
        """The slots of the keys that have a learner; refused if there is none."""
        kept = np.array(has, dtype=np.bool_)
        if kept.all():
            return self
        if not kept.any():
            expected = "at least one key within the service's limit"
            raise InvalidConfig(self.name, "keys too long", expected=expected, got="none")
        renumbered, gathered = (np.cumsum(kept) - 1).astype(np.int32), Gathered()
        for chunk in self.chunks():
            mine = kept[chunk.row]
            rest = (getattr(chunk, name)[mine] for name in _COLUMNS[1:])
            gathered.add((renumbered[chunk.row[mine]], *rest))
        return replace(
            self,
            learners=tuple(key for key, of in zip(self.learners, has, strict=True) if of),
            **_named(gathered.columns()),
        )

    @cached_property
    def by_key(self) -> KeyRecords:
        """All slots key by key, the longest key first."""
        chunks = (
            (
                chunk.row,
                (np.arange(chunk.first, chunk.first + chunk.slots), *chunk.outcomes),
            )
            for chunk in self.chunks()
        )
        kinds = ((np.int64, 0), (np.int32, 0), (np.int32, 0), (np.float64, 0))
        return KeyRecords(*by_key(self.counts, chunks, kinds))

    @cached_property
    def in_cells(self) -> Ints:
        """How often each cell occurred, of the slots of the longest key that name an action."""
        counts, longest = np.zeros(self.cells, dtype=np.int64), int(self.counts.max())
        for part in self.by_key.parts(0, longest):
            cell = part.played[part.played != NO_ARM] // len(self.actions) % self.cells
            counts += np.bincount(cell, minlength=self.cells)
        return counts

    def tags(self, bench: Bench, rows: Ints) -> Callable[[], NDArray[np.uint8]]:
        """Makes what addresses the bits of some learners."""
        keys = [self.learners[row] for row in rows.tolist()]
        return partial(bench.tags, keys, self.born[rows])

    def batches(self) -> Iterator[tuple[int, Batch]]:
        """The slots as batches for the engine: runs of one partition, in order."""
        of = np.array([partition for partition, _ in self.learners])
        for chunk in self.chunks():
            partitions = of[chunk.row]
            starts = np.flatnonzero(np.diff(partitions, prepend=-1)).tolist()
            arms = chunk.arms(len(self.actions))
            for begin, end in zip(starts, [*starts[1:], chunk.slots], strict=True):
                part = slice(begin, end)
                keys = [self.learners[row][1] for row in chunk.row[part].tolist()]
                gain = chunk.gain[part].astype(np.int64)
                yield (
                    int(partitions[begin]),
                    Batch.of_feedback(keys, arms[part], gain, chunk.offsets[part]),
                )

    def __repr__(self) -> str:
        """Show the size, never the content."""
        return f"ShownLog({self.name}, {self.slots} slots of {len(self.learners)} keys)"


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class KeyRecords:
    """The slots of a log, key by key, the longest key first and each key's in their order."""

    place: Ints  # in the log
    played: NDArray[np.int32]
    gain: NDArray[np.int32]
    pscore: Floats

    def parts(self, begin: int, end: int) -> Iterator[KeyRecords]:
        """Some of them, in pieces that fit in memory."""
        while begin < end:
            part = self.of(begin, min(begin + CHUNK, end))
            yield part
            begin += len(part.place)

    def of(self, begin: int, end: int) -> KeyRecords:
        """Some of them, in memory."""
        columns: tuple[NDArray[Any], ...] = self.place, self.played, self.gain, self.pscore
        own = KeyRecords(*(np.array(column[begin:end]) for column in columns))
        let_go(*columns)
        return own


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class SlotCells:
    """The contexts of a log of the losses of all actions: the cell of each slot, in its order."""

    contexts: Contexts
    of_slots: Ints


def over_cells(policies: Floats, counts: Ints) -> Floats:
    """Policies of arms (n × arms) over cells that occurred so often: n × actions."""
    cells = len(counts)
    shares = counts / counts.sum() if counts.any() else np.full(cells, 1 / cells)
    mean: Floats = np.einsum("c,nca->na", shares, policies.reshape(len(policies), cells, -1))
    return mean


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """Consecutive slots of one partition that are laid into columns."""

    partition: int
    keys: Sequence[Key]  # different ones, by their number in the first column
    slots: int
    clipped: int


def room_for(slots: int, of: Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]) -> Arrays:
    """Columns for so many slots, made by a function: what `lay` fills."""
    return tuple(
        of((slots,), kind) for kind in (np.int32, np.int64, np.int32, np.int32, np.float64)
    )


def lay(columns: Arrays, pieces: Iterable[Piece]) -> list[Run]:
    """Lay slots into columns: the number of each one's key in its run, and what a piece has."""
    runs, at = list[Run](), 0
    for partition, pieces_of in groupby(pieces, key=lambda piece: piece.partition):
        numbers, begin, clipped = dict[Key, int](), at, 0
        for piece in pieces_of:
            own = [numbers.setdefault(key, len(numbers)) for key in piece.keys]
            number = np.array(own, np.int32)[piece.index]
            part = slice(at, at + len(number))
            if part.stop > len(columns[0]):
                raise _changed(len(columns[0]), part.stop)
            for column, of in zip(columns, (number, piece.offsets, *piece.outcomes), strict=True):
                column[part] = of
            let_go(*columns)
            at, clipped = part.stop, clipped + piece.clipped
        runs.append(Run(partition, [*numbers], at - begin, clipped))
    return runs


def _changed(slots: int, got: int) -> InvalidConfig:
    return InvalidConfig("log", "changed while it was read", expected=f"{slots} rows", got=got)


def log_of(
    name: str,
    actions: tuple[str, ...],
    columns: Arrays,
    runs: Iterable[Run],
    contexts: Contexts | None = None,
    masks: tuple[Mask, ...] = (),
) -> ShownLog:
    """The log of slots that were laid into columns; refused if it is empty."""
    number, *rest = columns
    row, learners, clipped, done = held(number.shape, np.int32), dict[tuple[int, Key], int](), 0, 0
    for run in runs:
        part = slice(done, done + run.slots)
        rows = [learners.setdefault((run.partition, key), len(learners)) for key in run.keys]
        row[part] = np.array(rows, np.int32)[number[part]]
        let_go(row, number)
        done, clipped = part.stop, clipped + run.clipped
    if done < len(row):
        raise _changed(len(row), done)
    if not learners:
        raise InvalidConfig(name, "empty", expected="at least one record", got="none")
    of = _named((row, *rest))
    return ShownLog(
        name, actions, tuple(learners), **of, clipped=clipped, contexts=contexts, masks=masks
    )


def _named(columns: Arrays) -> dict[str, Any]:
    return dict(zip(_COLUMNS, columns, strict=True))


def joined(
    name: str,
    actions: tuple[str, ...],
    pieces: Sequence[Piece],
    contexts: Contexts | None = None,
    masks: tuple[Mask, ...] = (),
) -> ShownLog:
    """A log made of pieces; refused if it is empty."""
    columns = room_for(sum(len(piece.index) for piece in pieces), held)
    return log_of(name, actions, columns, lay(columns, pieces), contexts, masks)


@dataclass(frozen=True, slots=True, repr=False)
class Coded(Sequence[Any]):
    """A column of few values: each once, as they first occur, and which of them a row has."""

    values: Sequence[Any]
    which: NDArray[Any]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.which)

    def __getitem__(self, at: Any) -> Any:
        """The value of a row, or those of some."""
        if isinstance(at, slice):
            return [self.values[of] for of in self.which[at].tolist()]
        return self.values[self.which[at]]


def arms_of(actions: Sequence[str], shown: Sequence[object]) -> NDArray[np.int32]:
    """The arm of each slot: by name, or by number as in Open Bandit Pipeline.

    >>> arms_of(("a", "b"), ["b", 0, "c", 7, None]).tolist()
    [1, 0, -1, -1, -1]
    """
    if isinstance(shown, Coded):
        return np.take(arms_of(actions, shown.values), shown.which)
    arms: dict[object, int] = {name: arm for arm, name in enumerate(actions)}
    count = len(actions)

    def arm(action: object) -> int:
        if isinstance(action, int) and not isinstance(action, bool):
            return action if 0 <= action < count else NO_ARM
        return arms.get(action, NO_ARM) if isinstance(action, str) else NO_ARM

    return np.fromiter(map(arm, shown), dtype=np.int32)


def with_positions(keys: Sequence[Key], positions: Sequence[int | None]) -> Sequence[Key]:
    """Keys with their position, where there are several: each position learns apart.

    >>> with_positions([b"fr", None], [1, 2])
    [b'fr at position 1', b'position 2']
    """
    named = []
    for key, position in zip(keys, positions, strict=True):
        text = b"position %d" % position if position is not None else b"no position"
        named.append(text if key is None else key + b" at " + text)
    return named
