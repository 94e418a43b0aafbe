"""The numbers of a report, for JSON and the summary.

An interval is the mean ± 1.96 standard errors over seeds: it says how well the mean over the
learner's own randomness is known on *this* log, and nothing about other logs. A band holds the
middle 80 % of the seeds. A learner has *settled* at the first slot from which on, at every later
point of the report, the best fixed action was in force in at least 90 % of the slots and seeds
(`common.answer`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.grid import UNIT
from streamdp.core.regret import bound_of
from streamdp.lab.common.answer import Answer
from streamdp.lab.common.cells import Cell
from streamdp.lab.replay.replaying import Replay

_BOUND_POINTS = 24


def gap(replay: Replay) -> float:
    """How much worse per slot the second-best action was, in hindsight, for the longest key."""
    row = int(replay.summed.order[0])
    totals = np.sort(replay.summed.totals[row]) / UNIT
    return float(totals[1] - totals[0]) / replay.summed.longest


def share_reached(answer: Answer, replay: Replay) -> float | None:
    """The share of what the best fixed action gains over uniform play; None if that is nothing."""
    stake = float(replay.base.uniform_regret[-1])
    return 1 - answer.mean / stake if stake > 0 else None


def bounds(replay: Replay, cell: Cell) -> tuple[Floats, Floats, str] | None:
    """The theorem's bound over time, as if the log were i.i.d. with its gap in hindsight.

    None with several keys, each of which has its own bound, and for learners without privacy.
    """
    difference = gap(replay)
    if len(replay.summed.rows) > 1 or cell.learner.charge is None or difference <= 0:
        return None
    longest = replay.summed.longest
    horizons = np.unique(np.geomspace(1, longest, _BOUND_POINTS).astype(np.int64))
    found = (bound_of(cell.learner, horizon=int(t), gap=difference) for t in horizons)
    limits = [limit for limit in found if limit is not None]
    return horizons.astype(float), np.array([limit.regret for limit in limits]), limits[-1].source


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive blocks of the longest key in which the same action was in force most often."""

    start: int  # slot
    stop: int
    action: int
    share: float  # of seeds, over the stretch


def timeline(answer: Answer, *, slots: int) -> list[Stretch]:
    """The most frequent action over all seeds, block by block."""
    schedule, actions = answer.cell.learner.schedule, answer.in_force
    assert actions is not None
    starts = schedule.starts(np.arange(len(actions)))
    inside = starts <= slots
    actions, starts = actions[inside], starts[inside]
    stops = np.append(starts[1:], slots + 1)
    modes, shares = _modes(actions)
    stretches = []
    for action, blocks in groupby(range(len(modes)), key=lambda block: int(modes[block])):
        run = list(blocks)
        first, last = run[0], run[-1]
        lengths = (stops - starts)[first : last + 1]
        share = float((shares[first : last + 1] * lengths).sum() / lengths.sum())
        stretches.append(Stretch(int(starts[first]), int(stops[last]), action, share))
    return stretches


def _modes(actions: NDArray[np.int32]) -> tuple[Ints, Floats]:
    """The most frequent action of each block, and its share of seeds."""
    modes, shares = np.empty(len(actions), dtype=np.int64), np.empty(len(actions))
    for block, row in enumerate(actions):
        values, counts = np.unique(row, return_counts=True)
        best = int(counts.argmax())
        modes[block], shares[block] = values[best], counts[best] / len(row)
    return modes, shares
