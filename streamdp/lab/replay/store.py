"""Cumulative sums at cuts, as they come: in memory while they are few, then in a file.

A grid over one key has some thousands of cuts; one over many keys and seeds may have as many as
the log has slots, so they may not be kept in memory. The file is temporary and without a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO
from weakref import finalize

import numpy as np

from streamdp.core.arrays import Ints

_IN_MEMORY = 1 << 27  # bytes
_SLOT_BITS = 43


def code(rows: Ints, cuts: Ints) -> Ints:
    """A (row, cut) as one number that orders by both; slots stay below 2**42."""
    return rows << _SLOT_BITS | cuts


class CutStore:
    """Takes cumulative sums in any order, and sorts them out at the end."""

    __slots__ = ("__weakref__", "_codes", "_file", "_held", "_sums", "_width", "_written")

    def __init__(self, actions: int) -> None:
        self._width = actions
        self._codes: list[Ints] = []
        self._sums: list[Ints] = []
        self._held = 0
        self._written = 0
        self._file: IO[bytes] | None = None

    def add(self, rows: Ints, cuts: Ints, sums: Ints) -> None:
        """The cumulative sums after these cuts of these rows."""
        self._codes.append(code(rows, cuts))
        self._sums.append(sums)
        self._held += sums.nbytes
        if self._held > _IN_MEMORY:
            self._spill()

    def finish(self) -> CutSums:
        """Sort all codes and sums, ready for look-ups."""
        codes = np.concatenate(self._codes)
        order = np.argsort(codes, kind="stable")
        if self._file is None:
            return CutSums(codes[order], np.concatenate(self._sums), order)
        self._spill()
        self._file.flush()
        sums = np.memmap(self._file, np.int64, "r", shape=(self._written, self._width))
        return CutSums(codes[order], sums, order)

    def _spill(self) -> None:
        if self._file is None:
            self._file = TemporaryFile()  # noqa: SIM115 - it lives as long as the store
            finalize(self, self._file.close)
        for sums in self._sums:
            self._file.write(np.ascontiguousarray(sums).data)
            self._written += len(sums)
        self._sums = []
        self._held = 0


@dataclass(frozen=True, slots=True)
class CutSums:
    """Cumulative sums by row and cut; the empty sum at cut 0."""

    codes: Ints  # sorted
    sums: Ints  # as they came
    order: Ints  # where the sums of each code are

    def places(self, rows: Ints, cuts: Ints) -> Ints:
        """Where the sums after these cuts are; every one must be there, or be 0."""
        wanted = code(rows, cuts)
        places = np.minimum(np.searchsorted(self.codes, wanted), len(self.codes) - 1)
        assert bool(((self.codes[places] == wanted) | (cuts == 0)).all())
        return np.where(cuts == 0, -1, places)

    def at(self, places: Ints) -> Ints:
        """The sums at these places."""
        sums = np.asarray(self.sums[self.order[np.maximum(places, 0)]])
        sums[places < 0] = 0
        return sums
