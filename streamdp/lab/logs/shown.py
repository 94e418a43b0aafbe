"""A log of feedback: each slot's shown action, outcome and propensity.

A slot means what it means live. An unknown action is no arm (`NO_ARM`), an unusable outcome is the
gain 0 of the arm that was shown, and either takes its slot. Keys, offsets and partitions are those
of the log, so a learner's bits are addressed as in a live stream; in a file a row's offset is its
number from 0 and the partition is 0, unless columns say otherwise.

Where the log has contexts, an arm is an action in a cell, as live (`core.evidence.contexts`).

A propensity is the probability with which the shown action was drawn, in (0, 1]; NaN if the log has
none. A record takes 28 bytes: in memory where there are few, else in files that are mapped and have
no names. So nothing may look at whole columns: `chunks` are pieces that fit in memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import NO_ARM, Batch, Key
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.grid import UNIT
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.lab.common.bench import Bench, Rows

CHUNK = 1 << 16  # slots that are looked at together
_IN_MEMORY = 1 << 23  # bytes of columns
_COLUMNS = ("row", "offsets", "played", "gain", "pscore")


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive slots of one partition, as columns."""

    partition: int
    keys: Sequence[Key]  # different ones
    index: Ints  # n: each slot's among them
    offsets: Ints
    played: NDArray[np.int32]  # the arm (with contexts: cell · K + action), or NO_ARM
    gain: NDArray[np.int32]  # 1/2 − loss in grid units
    pscore: Floats  # NaN: none
    clipped: int = 0  # slots with a number outside [0, 1]

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
    before: Ints | None = None  # of a piece of a log: the slots of each learner before it
    first: int = 0  # and of all

    @property
    def cells(self) -> int:
        """How many cells there are; 1 without contexts."""
        return 1 if self.contexts is None else self.contexts.cells

    @cached_property
    def cell(self) -> Ints:
        """The cell of each slot; 0 where no action is known."""
        return np.maximum(self.played, 0).astype(np.int64) // len(self.actions)

    @cached_property
    def shown(self) -> Ints:
        """The action of each slot, whatever its cell, or NO_ARM."""
        played = self.played.astype(np.int64)
        return np.where(played == NO_ARM, NO_ARM, played % len(self.actions))

    @cached_property
    def without_contexts(self) -> ShownLog:
        """The same slots for learners that see no contexts."""
        gathered = Gathered()
        for chunk in self.chunks():
            gathered.add((chunk.shown.astype(np.int32),))
        return replace(self, played=gathered.columns()[0], contexts=None)

    def seen_by(self, learner: PolicyLearner) -> ShownLog:
        """The slots as a learner sees them: by cell, if its arms are those of all cells."""
        if len(learner.actions) == self.cells * len(self.actions):
            return self
        return self.without_contexts

    def overall(self, row: int, policies: Floats) -> Floats:
        """Policies of one key (n × arms) over its cells, weighted by how often each occurred."""
        if self.cells == 1:
            return policies
        counts = np.zeros(self.cells, dtype=np.int64)
        for chunk in self.chunks():
            mine = (chunk.row == row) & (chunk.played != NO_ARM)
            counts += np.bincount(chunk.cell[mine], minlength=self.cells)
        return over_cells(policies, counts)

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
            rows, first = np.unique(chunk.row, return_index=True)
            new = born[rows] < 0
            born[rows[new]] = chunk.offsets[first[new]]
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
            **_named(gathered),
        )

    def rows(self, bench: Bench) -> Rows:
        """Its learners in the form that addresses their bits."""
        rows = Rows(bench)
        for at, (partition, key) in enumerate(self.learners):
            rows.find([(partition, key)], self.born[at : at + 1])
        return rows

    def batches(self) -> Iterator[tuple[int, Batch]]:
        """The slots as batches for the engine: runs of one partition, in order."""
        of = np.array([partition for partition, _ in self.learners])
        for chunk in self.chunks():
            partitions = of[chunk.row]
            starts = np.flatnonzero(np.diff(partitions, prepend=-1)).tolist()
            for begin, end in zip(starts, [*starts[1:], chunk.slots], strict=True):
                part = slice(begin, end)
                keys = [self.learners[row][1] for row in chunk.row[part].tolist()]
                gain = chunk.gain[part].astype(np.int64)
                yield (
                    int(partitions[begin]),
                    Batch.of_feedback(keys, chunk.played[part], gain, chunk.offsets[part]),
                )

    def __repr__(self) -> str:
        """Show the size, never the content."""
        return f"ShownLog({self.name}, {self.slots} slots of {len(self.learners)} keys)"


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


def joined(
    name: str,
    actions: tuple[str, ...],
    pieces: Iterable[Piece],
    contexts: Contexts | None = None,
) -> ShownLog:
    """A log made of pieces; refused if it is empty."""
    gathered, learners, clipped = Gathered(), dict[tuple[int, Key], int](), 0
    for piece in pieces:
        rows = [learners.setdefault((piece.partition, key), len(learners)) for key in piece.keys]
        row = np.array(rows, dtype=np.int32)[piece.index]
        gathered.add((row, piece.offsets, piece.played, piece.gain, piece.pscore))
        clipped += piece.clipped
    if not learners:
        raise InvalidConfig(name, "empty", expected="at least one record", got="none")
    of = _named(gathered)
    return ShownLog(name, actions, tuple(learners), **of, clipped=clipped, contexts=contexts)


def held(shape: tuple[int, ...], kind: DTypeLike) -> NDArray[Any]:
    """An array of zeros: in memory, or in a mapped file without a name where it is large."""
    if int(np.prod(shape)) * np.dtype(kind).itemsize <= _IN_MEMORY:
        return np.zeros(shape, kind)
    with TemporaryFile() as file:  # the map keeps it
        return np.memmap(file, kind, "w+", shape=shape)


def let_go(*arrays: NDArray[Any]) -> None:
    """Release the memory of arrays that are mapped: what is in them stays in their files."""
    for array in arrays:
        if isinstance(array, np.memmap):
            array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def _named(gathered: Gathered) -> dict[str, Any]:
    return dict(zip(_COLUMNS, gathered.columns(), strict=True))


class Gathered:
    """Columns that grow: in memory while they are short, then in files without names."""

    __slots__ = ("_files", "_held", "_size")

    def __init__(self) -> None:
        self._held: list[tuple[NDArray[Any], ...]] = []
        self._size = 0
        self._files: list[IO[bytes]] = []

    def add(self, columns: tuple[NDArray[Any], ...]) -> None:
        """Add rows, of the same types as before."""
        self._held.append(columns)
        self._size += sum(column.nbytes for column in columns)
        if self._size > _IN_MEMORY:
            self._spill()

    def columns(self) -> tuple[NDArray[Any], ...]:
        """All rows: arrays, or views of mapped files, which last as long as these."""
        if not self._files:
            return tuple(map(np.concatenate, zip(*self._held, strict=True)))
        kinds = [column.dtype for column in self._held[-1]]
        self._spill()
        mapped = []
        for file, kind in zip(self._files, kinds, strict=True):
            with file:
                file.flush()
                mapped.append(np.memmap(file, kind, "r"))
        return tuple(mapped)

    def _spill(self) -> None:
        if not self._files:
            self._files = [TemporaryFile() for _ in self._held[0]]  # noqa: SIM115 - see `columns`
        for file, columns in zip(self._files, zip(*self._held, strict=True), strict=True):
            for column in columns:
                file.write(np.ascontiguousarray(column).data)
        self._held, self._size = [tuple(column[:0] for column in self._held[-1])], 0


def arms_of(actions: Sequence[str], shown: Iterable[object]) -> NDArray[np.int32]:
    """The arm of each slot: by name, or by number as in Open Bandit Pipeline.

    >>> arms_of(("a", "b"), ["b", 0, "c", 7, None]).tolist()
    [1, 0, -1, -1, -1]
    """
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
