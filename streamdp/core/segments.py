"""A batch of slots, cut where keys and blocks change, and summed at array speed.

A *segment* is the part of one block of one key that lies in one batch. Where a segment begins and
ends follows from slot numbers alone (P4). The slots of a segment are added in three ways, chosen
by shape and never by content: a long run of neighbouring rows is streamed; other rows are gathered
in pieces of 32, many pieces a step; the remainders of fewer than 32 rows are laid side by side, the
longest first, and their j-th rows are added together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.events import Batch
from streamdp.core.grid import Quantiser, column_sums, unshift
from streamdp.core.schedule import Schedule

_LONG_RUN = 1 << 16  # values; a run of so many is worth calls of its own: about 15 µs
_SHORT_NUMBERS = 1 << 16  # how many keys two bytes can number
_PIECE = 32  # rows; 32 · 2**20 < 2**32, so a piece's sums are exact modulo 2**32


@dataclass(frozen=True, slots=True)
class Grouped:
    """The slots of a batch, ordered by key: first all of one key, in their order, then the next."""

    touched: Ints  # T: which of the batch's keys have slots here
    counts: Ints  # T: how many
    order: Ints | None  # n: where each slot stands in the batch; None: in the same order

    def places(self, grouped: Ints) -> Ints:
        """The places in the batch of slots given by their places in the grouped order."""
        return grouped if self.order is None else self.order[grouped]


def group(index: Ints, keys: int) -> Grouped:
    """Order a batch's slots by key without changing the order within a key."""
    counts = np.bincount(index, minlength=keys)
    touched = np.flatnonzero(counts)
    if len(touched) == 1:
        return Grouped(touched, counts[touched], None)
    return Grouped(touched, counts[touched], _stable_order(index, keys))


def _stable_order(index: Ints, keys: int) -> Ints:
    """The places of the slots of key 0, in their order, then those of key 1, and so on."""
    if keys <= _SHORT_NUMBERS:  # numpy sorts two-byte numbers by radix: a sixth of the time
        return np.argsort(index.astype(np.uint16), kind="stable")
    width = max(1, int(len(index) - 1).bit_length())
    tagged = (index << width) | np.arange(len(index))
    tagged.sort()
    return tagged & ((1 << width) - 1)


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of one batch, ordered by key and block."""

    of: Ints  # S: which touched key
    block: Ints  # S
    start: Ints  # S: the block's first slot
    stop: Ints  # S: the slot after its last
    begin: Ints  # S: where its slots begin in the grouped order
    length: Ints  # S: how many slots
    into: Ints  # S: how many slots of the block came in earlier batches
    closes: Bools  # S: whether the block ends here
    wave: Ints  # S: 0 for the first segment of a key, 1 for its second, …


@dataclass(slots=True)
class BatchSlots:
    """The slots of a batch by row and block: from keys, offsets and slot numbers alone.

    A *wave* is the r-th segment of every key.
    """

    batch: Batch
    rows: Ints  # T: the row of each touched key
    taken: Ints  # T: how many slots it had before
    grouped: Grouped
    segments: Segments

    @property
    def segment_rows(self) -> Ints:
        """The row of each segment."""
        rows: Ints = self.rows[self.segments.of]
        return rows

    @property
    def slot_rows(self) -> Ints:
        """The row of each slot, in the order of the batch."""
        rows = np.empty(len(self.batch.index), dtype=np.int64)
        counts = self.grouped.counts
        rows[self.grouped.places(np.arange(len(rows)))] = np.repeat(self.rows, counts)
        return rows

    @property
    def numbers(self) -> Ints:
        """The slot number of each slot, in the order of the batch."""
        grouped, counts = self.grouped, self.grouped.counts
        begins = np.cumsum(counts) - counts
        numbers: Ints = np.repeat(self.taken + 1 - begins, counts)
        numbers += np.arange(len(numbers))
        if grouped.order is None:
            return numbers
        slots = np.empty_like(numbers)
        slots[grouped.order] = numbers
        return slots

    def offsets_at(self, places: Ints) -> Ints:
        """The offset of the records at these places of the grouped order."""
        offsets: Ints = self.batch.offsets[self.grouped.places(places)]
        return offsets

    def waves(self) -> list[slice | Ints]:
        """The segments of each wave."""
        wave = self.segments.wave
        if len(wave) == len(self.rows):  # one segment a key
            return [slice(None)]
        by_wave = np.argsort(wave, kind="stable")
        return list(np.split(by_wave, np.flatnonzero(np.diff(wave[by_wave])) + 1))


def cut(schedule: Schedule, grouped: Grouped, taken: Ints) -> Segments:
    """Cut grouped slots where blocks end; `taken` is how many slots each touched key had before."""
    first, last = taken + 1, taken + grouped.counts
    block = schedule.blocks_of(first)
    how_many = schedule.blocks_of(last) - block + 1
    of = np.repeat(np.arange(len(taken)), how_many)
    wave = np.arange(len(of)) - np.repeat(np.cumsum(how_many) - how_many, how_many)
    blocks = block[of] + wave
    starts, stops = schedule.starts(blocks), schedule.stops(blocks)
    begin, end = np.maximum(starts, first[of]), np.minimum(stops, last[of] + 1)
    places = (np.cumsum(grouped.counts) - grouped.counts)[of] + begin - first[of]
    return Segments(
        of, blocks, starts, stops, places, end - begin, begin - starts, end == stops, wave
    )


class Adder:
    """Adds the slots of many segments of one width; keeps its working memory between calls."""

    __slots__ = ("_actions", "_piece", "_quantiser", "_steps")

    def __init__(self, actions: int) -> None:
        self._actions = actions
        self._quantiser = Quantiser(actions)
        self._piece = min(_PIECE, self._quantiser.chunk)
        self._steps = np.arange(self._piece)[:, None]

    def sums(
        self, losses: NDArray[np.float32], grouped: Grouped, begin: Ints, length: Ints
    ) -> tuple[Ints, Bools]:
        """Exact sums of each segment's first `length` slots; which slots of the batch were null."""
        if len(losses) == 1:  # there is nothing to lay out
            values, null = self._quantiser.single(losses)
            return values if length[0] else np.zeros_like(values), null
        into = _Sums(
            losses=losses,
            sums=np.zeros((len(begin), self._actions), dtype=np.int64),
            nulls=np.zeros(len(losses), dtype=np.bool_),
        )
        rows = _rows(grouped, begin, length)
        runs = _long_runs(rows, at_least=-(-_LONG_RUN // self._actions))
        for run in zip(runs.of.tolist(), runs.place.tolist(), runs.length.tolist(), strict=True):
            self._add_run(into, *run)
        if len(runs.of):
            rows = _without(rows, runs)
        self._add_full_pieces(into, rows)
        self._add_rests(into, rows)
        return into.sums, into.nulls

    def _add_run(self, into: _Sums, of: int, place: int, rows: int) -> None:
        """Stream neighbouring rows of one segment."""
        added, null = column_sums(self._quantiser, into.losses[place : place + rows])
        into.sums[of] += added
        into.nulls[place : place + rows] = null

    def _add_full_pieces(self, into: _Sums, rows: _Rows) -> None:
        """Add the full pieces; a segment may have many, next to each other."""
        full = rows.length // self._piece
        of = np.repeat(np.arange(len(full)), full)
        nth = np.arange(len(of)) - np.repeat(np.cumsum(full) - full, full)
        begin = rows.begin[of] + nth * self._piece
        at_once = self._quantiser.chunk // self._piece
        for first in range(0, len(of), at_once):
            some = slice(first, first + at_once)
            bits = self._shifted(into, rows.place[begin[some] + self._steps].ravel())
            wrapped = np.add.reduce(bits.reshape(self._piece, -1), axis=0, dtype=np.uint32)
            wrapped = wrapped.reshape(-1, self._actions)
            added = unshift(wrapped, np.array(self._piece)).astype(np.int64)
            owners = of[some]
            changes = np.flatnonzero(owners[1:] != owners[:-1]) + 1
            if len(changes) + 1 < len(owners):
                starts = np.concatenate([[0], changes])
                owners, added = owners[starts], np.add.reduceat(added, starts, axis=0)
            into.sums[owners] += added

    def _add_rests(self, into: _Sums, rows: _Rows) -> None:
        """Add the remainders that fill no piece: at most one a segment, the longest first."""
        rest = rows.length % self._piece
        of = np.flatnonzero(rest)
        of = of[np.argsort(-rest[of].astype(np.int8), kind="stable")]  # of bytes: a radix sort
        length = rest[of]
        begin = rows.begin[of] + rows.length[of] - length
        first = 0
        while first < len(of):
            last = first + self._quantiser.chunk // int(length[first])
            some = slice(first, last)
            self._add_ladder(into, rows.place, of[some], begin[some], length[some])
            first = last

    def _add_ladder(self, into: _Sums, place: Ints, of: Ints, begin: Ints, length: Ints) -> None:
        """Add remainders side by side: those that are at least j rows long have a j-th row."""
        steps = self._steps[: length[0]]
        bits = self._shifted(into, place[(begin + steps)[steps < length]])
        wrapped = np.zeros((len(of), self._actions), dtype=np.uint32)
        done = added = 0
        for high, width in _rungs(length):
            size = (high - added) * width
            part = bits[done : done + size].reshape(high - added, width, self._actions)
            wrapped[:width] += np.add.reduce(part, axis=0, dtype=np.uint32)
            done, added = done + size, high
        into.sums[of] += unshift(wrapped, length[:, None])

    def _shifted(self, into: _Sums, places: Ints) -> NDArray[np.uint32]:
        """Quantise the rows at some places, and note which were null."""
        shifted, null = self._quantiser.shift_at(into.losses, places)
        into.nulls[places] = null
        return shifted.view(np.uint32)


@dataclass(frozen=True, slots=True, repr=False)
class _Sums:
    """The losses of a batch, the sums so far, and which slots were null."""

    losses: NDArray[np.float32]
    sums: Ints  # S × K
    nulls: Bools  # n


@dataclass(frozen=True, slots=True)
class _Rows:
    """The places in the batch of the rows that count, segment after segment."""

    place: Ints
    begin: Ints  # S: where a segment's begin in `place`
    length: Ints  # S: how many it has


def _rows(grouped: Grouped, begin: Ints, length: Ints) -> _Rows:
    """The first `length` rows of each segment."""
    total = int(length.sum())
    ends = np.cumsum(length)
    at = np.arange(total)
    if total != int(grouped.counts.sum()):  # otherwise every row counts
        at += np.repeat(begin - (ends - length), length)
    return _Rows(grouped.places(at), ends - length, length)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Long runs of rows that are neighbours in the batch and of one segment."""

    of: Ints
    first: Ints  # where each begins in `_Rows.place`
    place: Ints  # and in the batch
    length: Ints


def _long_runs(rows: _Rows, *, at_least: int) -> _Runs:
    """The runs of at least so many rows."""
    breaks = np.empty(len(rows.place) + 1, dtype=np.bool_)
    breaks[0] = breaks[-1] = True
    np.not_equal(rows.place[1:], rows.place[:-1] + 1, out=breaks[1:-1])
    breaks[rows.begin] = True
    borders = np.flatnonzero(breaks)
    length = np.diff(borders)
    long = np.flatnonzero(length >= at_least)
    first = borders[long]
    of = np.searchsorted(rows.begin, first, side="right") - 1
    return _Runs(of, first, rows.place[first], length[long])


def _without(rows: _Rows, runs: _Runs) -> _Rows:
    """The rows outside these runs."""
    keep = np.zeros(len(rows.place) + 1, dtype=np.int64)
    keep[runs.first] += 1
    keep[runs.first + runs.length] -= 1
    left = rows.length - np.bincount(
        runs.of, weights=runs.length, minlength=len(rows.length)
    ).astype(np.int64)
    return _Rows(rows.place[np.cumsum(keep[:-1]) == 0], np.cumsum(left) - left, left)


def _rungs(length: Ints) -> Iterator[tuple[int, int]]:
    """For descending lengths: each length that occurs, shortest first, and how many reach it."""
    lasts = np.flatnonzero(np.diff(length, append=0))
    return zip(length[lasts[::-1]].tolist(), (lasts[::-1] + 1).tolist(), strict=True)
