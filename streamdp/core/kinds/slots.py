"""The slots of a batch by row and block: from keys, offsets and slot numbers alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.events import Batch
from streamdp.core.segments import Grouped, Segments


@dataclass(slots=True)
class BatchSlots:
    """The slots of a batch by row and block. A *wave* is the r-th segment of every key."""

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
