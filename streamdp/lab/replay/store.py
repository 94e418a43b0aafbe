"""Cumulative sums at cuts, as they come: in memory while they are few, then in files.

A grid over one key has some thousands of cuts; one over many keys and seeds may have as many as
the log has slots, so they may not be kept in memory. They are laid out key by key
(`common.mapped`), and whoever plays some keys reads what is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.lab.common.mapped import let_go

_SLOT_BITS = 43


def code(rows: Ints, cuts: Ints) -> Ints:
    """A (row, cut) as one number that orders by both; slots stay below 2**42."""
    return rows << _SLOT_BITS | cuts


def in_order(codes: Ints) -> Ints:
    """Codes in rising order, each once; `np.unique` hashes them before, which takes far longer."""
    codes = np.sort(codes)
    return codes[np.diff(codes, prepend=-1) > 0]


def read(codes: Ints) -> tuple[Ints, Ints]:
    """The rows and cuts of codes."""
    return codes >> _SLOT_BITS, codes & ((1 << _SLOT_BITS) - 1)


@dataclass(frozen=True, slots=True)
class LaidSums:
    """Cumulative sums of all rows, one row after the other."""

    ends: Ints  # 0, and where each row's end
    cuts: Ints
    sums: Ints

    def of(self, rows: range) -> CutSums:
        """Those of some rows, which are numbered anew."""
        begin, end = self.ends[rows.start], self.ends[rows.stop]
        cuts, sums = (np.array(column[begin:end]) for column in (self.cuts, self.sums))
        let_go(self.cuts, self.sums)
        counts = np.diff(self.ends[rows.start : rows.stop + 1])
        return CutSums(code(np.repeat(np.arange(len(rows)), counts), cuts), sums)


@dataclass(frozen=True, slots=True)
class CutSums:
    """Cumulative sums by row and cut; the empty sum at cut 0."""

    codes: Ints  # sorted
    sums: Ints

    def upto(self, rows: Ints, cuts: Ints) -> Ints:
        """The sums after these cuts; every one must be there, or be 0."""
        wanted = code(rows, cuts)
        places = np.minimum(np.searchsorted(self.codes, wanted), len(self.codes) - 1)
        assert bool(((self.codes[places] == wanted) | (cuts == 0)).all())
        sums = self.sums[places]
        sums[cuts == 0] = 0
        return sums
