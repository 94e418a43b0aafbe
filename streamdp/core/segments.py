"""A batch of slots, cut where keys and blocks change, and summed at array speed.

A *segment* is the part of one block of one key that lies in one batch. Where a segment begins and
ends follows from slot numbers alone (P4). The slots of a segment are added in three ways, chosen
by shape and never by content: a long run of neighbouring rows is streamed; short runs are laid
side by side as pieces of at most 32 rows, the longest first, and the j-th rows of all pieces are
added in one step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.grid import Quantiser, column_sums, unshift
from streamdp.core.schedule import Schedule

Ints = NDArray[np.int64]

_LONG_RUN = 48  # rows; a run this long is worth a call of its own
_PIECE = 32  # rows; 32 · 2**20 < 2**32, so a piece's sums are exact modulo 2**32


@dataclass(frozen=True, slots=True)
class Grouped:
    """The slots of a batch, ordered by key: first all of one key, in their order, then the next."""

    touched: Ints  # T: which of the batch's keys have slots here
    counts: Ints  # T: how many
    order: Ints | None  # n: where each slot stands in the batch; None: as they are

    def places(self, grouped: Ints) -> Ints:
        """Where in the batch the slots stand that have these places in the grouped order."""
        return grouped if self.order is None else self.order[grouped]


def group(index: Ints, keys: int) -> Grouped:
    """Order a batch's slots by key without changing the order within a key."""
    counts = np.bincount(index, minlength=keys)
    touched = np.flatnonzero(counts)
    if len(touched) == 1:
        return Grouped(touched, counts[touched], None)
    width = max(1, int(len(index) - 1).bit_length())
    tagged = (index << width) | np.arange(len(index))
    tagged.sort()
    return Grouped(touched, counts[touched], tagged & ((1 << width) - 1))


@dataclass(frozen=True, slots=True)
class Segments:
    """What one batch brings to the blocks of its keys, one row a (key, block), ordered by both."""

    of: Ints  # S: which touched key
    block: Ints  # S
    begin: Ints  # S: where its slots begin in the grouped order
    length: Ints  # S: how many slots
    into: Ints  # S: how many slots of the block came in earlier batches
    closes: NDArray[np.bool_]  # S: whether the block ends here
    wave: Ints  # S: 0 for the first segment of a key, 1 for its second, …


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
    return Segments(of, blocks, places, end - begin, begin - starts, end == stops, wave)


class Adder:
    """Adds the slots of many segments of one width; keeps its working memory between calls."""

    __slots__ = ("_actions", "_quantiser")

    def __init__(self, actions: int) -> None:
        self._actions = actions
        self._quantiser = Quantiser(actions)

    def sums(
        self, losses: NDArray[np.float32], grouped: Grouped, begin: Ints, length: Ints
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """Exact sums of each segment's first `length` slots; which slots of the batch were null."""
        sums = np.zeros((len(begin), self._actions), dtype=np.int64)
        nulls = np.zeros(len(losses), dtype=np.bool_)
        runs = _runs(grouped, begin, length)
        long = runs.length >= _LONG_RUN
        streamed = zip(
            runs.of[long].tolist(),
            runs.place[long].tolist(),
            runs.length[long].tolist(),
            strict=True,
        )
        for of, place, rows in streamed:
            added, null = column_sums(self._quantiser, losses[place : place + rows])
            sums[of] += added
            nulls[place : place + rows] = null
        of, place = runs.rows(~long)
        for begun in range(0, len(of), self._quantiser.chunk):
            some = slice(begun, begun + self._quantiser.chunk)
            self._add_scattered(losses, of[some], place[some], sums, nulls)
        return sums, nulls

    def _add_scattered(
        self,
        losses: NDArray[np.float32],
        of: Ints,
        place: Ints,
        sums: Ints,
        nulls: NDArray[np.bool_],
    ) -> None:
        """Add a chunk of rows, ordered by segment, that stand anywhere in the batch."""
        ladder = _ladder(of)
        from_where = place[ladder.rows]
        shifted, null = self._quantiser.shift_at(losses, from_where)
        nulls[from_where] = null
        bits = shifted.view(np.uint32)
        wrapped = bits[: ladder.widths[0]].copy()
        done = len(wrapped)
        for width in ladder.widths[1:]:
            wrapped[:width] += bits[done : done + width]
            done += width
        added = unshift(wrapped, ladder.length[:, None]).astype(np.int64)[ladder.by_segment]
        segments = of[ladder.first]
        if len(segments) != len(added):
            added = np.add.reduceat(added, ladder.first_piece, axis=0)
        sums[segments] += added


@dataclass(frozen=True, slots=True)
class _Runs:
    """Neighbouring rows of a batch that belong to one segment, ordered by segment."""

    of: Ints
    place: Ints
    length: Ints

    def rows(self, which: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Segment and place of each row of some runs."""
        length = self.length[which]
        within = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
        return np.repeat(self.of[which], length), np.repeat(self.place[which], length) + within


def _runs(grouped: Grouped, begin: Ints, length: Ints) -> _Runs:
    """The longest stretches of neighbouring rows within each segment."""
    segments = np.flatnonzero(length)
    if grouped.order is None:
        return _Runs(segments, begin[segments], length[segments])
    of, place = _Runs(segments, begin[segments], length[segments]).rows(
        np.ones(len(segments), dtype=np.bool_)
    )
    place = grouped.places(place)
    if not len(of):
        return _Runs(of, place, of)
    breaks = np.ones(len(of), dtype=np.bool_)
    breaks[1:] = (place[1:] - place[:-1] != 1) | (of[1:] != of[:-1])
    starts = np.flatnonzero(breaks)
    return _Runs(of[starts], place[starts], np.diff(starts, append=len(of)))


@dataclass(frozen=True, slots=True)
class _Ladder:
    """Rows cut into pieces of one segment and laid side by side: step j adds every j-th row."""

    rows: Ints  # which row comes when
    widths: list[int]  # how many pieces have a row at each step
    length: Ints  # how many rows each piece has, longest first
    by_segment: Ints  # the pieces in the order of their segments
    first: Ints  # the first row of each segment
    first_piece: Ints  # the first piece of each segment, in the order of segments


def _ladder(of: Ints) -> _Ladder:
    """Lay out rows that are ordered by segment."""
    n = len(of)
    breaks = np.ones(n, dtype=np.bool_)
    breaks[1:] = of[1:] != of[:-1]
    first = np.flatnonzero(breaks)
    rows_of = np.diff(first, append=n)
    pieces_of = -(-rows_of // _PIECE)
    first_piece = np.cumsum(pieces_of) - pieces_of
    nth = np.arange(int(pieces_of.sum())) - np.repeat(first_piece, pieces_of)
    begin = np.repeat(first, pieces_of) + nth * _PIECE
    length = np.minimum(np.repeat(first + rows_of, pieces_of) - begin, _PIECE)
    longest_first = np.argsort(-length, kind="stable")
    rank = np.empty_like(longest_first)
    rank[longest_first] = np.arange(len(rank))
    widths = len(length) - np.cumsum(np.bincount(length, minlength=int(length.max()) + 1))[:-1]
    step = np.arange(n) - np.repeat(begin, length)
    at = (np.cumsum(widths) - widths)[step] + np.repeat(rank, length)
    rows = np.empty(n, dtype=np.int64)
    rows[at] = np.arange(n)
    return _Ladder(rows, widths.tolist(), length[longest_first], rank, first, first_piece)
