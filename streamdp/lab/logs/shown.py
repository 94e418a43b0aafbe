"""A log of feedback in memory: each slot's shown action, outcome and propensity.

A slot means what it means live. An unknown action is no arm (`NO_ARM`), an unusable outcome is the
gain 0 of the arm that was shown, and either takes its slot. Keys, offsets and partitions are those
of the log, so a learner's bits are addressed as in a live stream; in a file a row's offset is its
number from 0 and the partition is 0, unless columns say otherwise.

Where the log has contexts, an arm is an action in a cell, as live (`core.evidence.contexts`).

A propensity is the probability with which the shown action was drawn, in (0, 1]; NaN if the log has
none. A record takes about 50 bytes of memory: ten million take half a gigabyte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import NO_ARM, Batch, Key, numbered
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.grid import UNIT
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.lab.replay.cuts import Bench, Rows


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive slots of one partition, as columns."""

    partition: int
    keys: Sequence[Key]  # n
    offsets: Ints
    played: NDArray[np.int32]  # the arm (with contexts: cell · K + action), or NO_ARM
    gain: Ints  # 1/2 − loss in grid units
    pscore: Floats  # NaN: none
    clipped: int = 0  # slots with a number outside [0, 1]

    def __repr__(self) -> str:
        """Show the size, never the content."""
        return f"Piece({len(self.keys)} slots of partition {self.partition})"


@dataclass(frozen=True, eq=False, repr=False)
class ShownLog:
    """All slots of a log, in its order."""

    name: str
    actions: tuple[str, ...]
    learners: tuple[tuple[int, Key], ...]  # partition and key, by first appearance
    row: Ints  # n: the learner of each slot
    offsets: Ints
    played: NDArray[np.int32]
    gain: Ints
    pscore: Floats
    clipped: int = 0
    contexts: Contexts | None = None

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
        return replace(self, played=self.shown.astype(np.int32), contexts=None)

    def seen_by(self, learner: PolicyLearner) -> ShownLog:
        """The slots as a learner sees them: by cell, if its arms are those of all cells."""
        if len(learner.actions) == self.cells * len(self.actions):
            return self
        return self.without_contexts

    def overall(self, row: int, policies: Floats) -> Floats:
        """Policies of one key (n × arms) over its cells, weighted by how often each occurred."""
        if self.cells == 1:
            return policies
        mine = self.cell[(self.row == row) & (self.played != NO_ARM)]
        return over_cells(policies, np.bincount(mine, minlength=self.cells))

    @property
    def slots(self) -> int:
        """The number of slots."""
        return len(self.row)

    @cached_property
    def born(self) -> Ints:
        """The offset of each learner's first record."""
        first = np.full(len(self.learners), self.slots, dtype=np.int64)
        np.minimum.at(first, self.row, np.arange(self.slots))
        return self.offsets[first]

    @cached_property
    def counts(self) -> Ints:
        """The number of slots of each learner."""
        return np.bincount(self.row, minlength=len(self.learners))

    @cached_property
    def number(self) -> Ints:
        """The number of each slot among those of its learner, from 1."""
        order = np.argsort(self.row, kind="stable")
        begins = np.cumsum(self.counts) - self.counts
        number = np.empty(self.slots, dtype=np.int64)
        number[order] = np.arange(self.slots) - begins[self.row[order]] + 1
        return number

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
        mine = kept[self.row]
        return replace(
            self,
            learners=tuple(key for key, of in zip(self.learners, has, strict=True) if of),
            row=(np.cumsum(kept) - 1)[self.row[mine]],
            offsets=self.offsets[mine],
            played=self.played[mine],
            gain=self.gain[mine],
            pscore=self.pscore[mine],
        )

    def rows(self, bench: Bench) -> Rows:
        """Its learners in the form that addresses their bits."""
        rows = Rows(bench)
        for at, (partition, key) in enumerate(self.learners):
            rows.find([(partition, key)], self.born[at : at + 1])
        return rows

    def batches(self) -> Iterator[tuple[int, Batch]]:
        """The slots as batches for the engine: runs of one partition, in order."""
        partitions = np.array([partition for partition, _ in self.learners])[self.row]
        starts = np.flatnonzero(np.diff(partitions, prepend=-1)).tolist()
        for begin, end in zip(starts, [*starts[1:], self.slots], strict=True):
            part = slice(begin, end)
            keys = [self.learners[row][1] for row in self.row[part].tolist()]
            yield (
                int(partitions[begin]),
                Batch.of_feedback(keys, self.played[part], self.gain[part], self.offsets[part]),
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
    gathered = _Gathered()
    for piece in pieces:
        gathered.add(piece)
    if not gathered.columns:
        raise InvalidConfig(name, "empty", expected="at least one record", got="none")
    row, offsets, played, gain, pscore = map(np.concatenate, zip(*gathered.columns, strict=True))
    learners = tuple(gathered.learners)
    return ShownLog(
        name, actions, learners, row, offsets, played, gain, pscore, gathered.clipped, contexts
    )


@dataclass(slots=True)
class _Gathered:
    """Columns of the pieces so far."""

    learners: dict[tuple[int, Key], int] = field(default_factory=dict)
    columns: list[tuple[NDArray[np.generic], ...]] = field(default_factory=list)
    clipped: int = 0

    def add(self, piece: Piece) -> None:
        if not len(piece.keys):
            return
        keys, index = numbered(piece.keys)
        rows = [
            self.learners.setdefault((piece.partition, key), len(self.learners)) for key in keys
        ]
        row = np.array(rows, dtype=np.int64)[index]
        self.columns.append((row, piece.offsets, piece.played, piece.gain, piece.pscore))
        self.clipped += piece.clipped


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
    """Keys with their position, if there are several: each position learns apart.

    >>> with_positions([b"fr", None], [1, 2])
    [b'fr at position 1', b'position 2']
    """
    if len(set(positions)) < 2:
        return keys
    named = []
    for key, position in zip(keys, positions, strict=True):
        text = b"position %d" % position if position is not None else b"no position"
        named.append(text if key is None else key + b" at " + text)
    return named
