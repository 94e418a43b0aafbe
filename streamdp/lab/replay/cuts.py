"""The slots at which the cumulative sums of a log are needed: the union of all cells' cuts.

A block learner looks only at sums over windows, so a whole grid needs of a log only its cumulative
sums after certain slots of each key: where a block of some schedule ends, where a random prefix
window ends, and where the report has a point. These are known before the losses are read: blocks
follow from slot numbers, and windows are drawn from the seed's bits (purpose WINDOW, index = block)
as the engine draws them when a block begins.

"After slot t" is the cut t; the cut 0 is the empty sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.schedule import Schedule
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.mapped import let_go
from streamdp.lab.replay.store import code, in_order

_WINDOWS = 1 << 18  # that are drawn together

POINTS_AN_OCTAVE = 16
EVEN_POINTS = 200


@dataclass(frozen=True, slots=True)
class CutPlan:
    """What cuts a log: schedules, those with prefix windows, and the report's points."""

    whole: tuple[Schedule, ...]
    prefix: tuple[Schedule, ...]
    points: Ints

    def codes(
        self, bench: Bench, tags: NDArray[np.uint8], rows: Ints, first: Ints, last: Ints
    ) -> Ints:
        """The (key, cut) in [first, last] of each of some keys, whose tags are in these rows."""
        found = [code(*between(self.points, first, last))]
        found += [code(*block_ends(schedule, first, last)) for schedule in self.whole]
        step = max(1, _WINDOWS // len(bench.seeds))
        for schedule in self.prefix:
            begin = schedule.blocks_of(first)
            of, blocks = _spread(begin, schedule.blocks_of(last) + 1 - begin)
            for low in range(0, len(of), step):
                at, drawn = of[low : low + step], blocks[low : low + step]
                windows = bench.windows(schedule, tags[rows[at]], drawn)
                let_go(tags)
                ends = schedule.starts(drawn)[:, None] - 1 + windows
                inside = (ends >= first[at][:, None]) & (ends <= last[at][:, None])
                found.append(in_order(code(at[np.nonzero(inside)[0]], ends[inside])))
        return np.concatenate(found)


def block_ends(schedule: Schedule, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The last slots of blocks that lie in [first, last] of each row."""
    begin = schedule.blocks_of(first)
    count = schedule.blocks_of(last + 1) - begin
    at, blocks = _spread(begin, count)
    return at, schedule.stops(blocks) - 1


def report_points(slots: int) -> Ints:
    """The slots at which a report has points: nearly even on logarithmic and linear axes.

    >>> report_points(5).tolist()
    [1, 2, 3, 4, 5]
    """
    steps = int(np.ceil(np.log2(max(2, slots)) * POINTS_AN_OCTAVE)) + 1
    growing = np.floor(2 ** (np.arange(steps) / POINTS_AN_OCTAVE)).astype(np.int64)
    even = np.linspace(1, slots, min(slots, EVEN_POINTS)).astype(np.int64)
    points = np.unique(np.concatenate([growing, even, [slots]]))
    return np.asarray(points[points <= slots], dtype=np.int64)


def between(points: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The points that lie in [first, last] of each row."""
    begin = np.searchsorted(points, first)
    at, which = _spread(begin, np.searchsorted(points, last, side="right") - begin)
    return at, points[which]


def _spread(begin: Ints, count: Ints) -> tuple[Ints, Ints]:
    """The numbers begin, begin + 1, … for each place, and the place of each number."""
    at = np.repeat(np.arange(len(begin)), count)
    return at, np.arange(len(at)) - np.repeat(np.cumsum(count) - count - begin, count)
