"""Memory, growing or capped blocks: which of them would have served a log best.

Three learners, compared at every private ε of the question:

* *memory*: the default, whose blocks grow, then stay, and whose votes are filtered;
* *growing*: the same blocks, but they grow for ever, and the newest vote is in force;
* *capped*: memory's blocks, with the newest vote in force.

None of them is chosen by looking at the log, so the comparison is not in hindsight. There are two
regrets: against the best fixed action of each key, and against the best action of each *stretch*,
which is a fiftieth of a key's slots, at least 100. The second is the goal of a learner that follows
change. It is never reached: which action did best in a short stretch is partly luck. The two differ
by the same number for all learners, so the winner is the same.

Intervals are 1.96 standard errors over seeds. Differences are taken seed by seed (common random
numbers), so they are sharper than the means. They say how well this log's means are known, and
nothing about other logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.grid import UNIT
from streamdp.lab.common.answer import standard_error
from streamdp.lab.common.cells import (
    Candidate,
    Cell,
    Epsilon,
    cells_of,
    epsilon_text,
    parse_candidate,
)
from streamdp.lab.replay.summing import Summed

MEMORY, GROWING = "remembering_leader", "incumbent_leader"
Z = 1.96

STRETCHES = 50
_SHORTEST_STRETCH = 100

_ALL_DRAWS, _MOST_DRAWS = 1 << 23, 1 << 25
"""Draws × K of memory's blocks: all ε are compared up to the first number (about five seconds), and
only the middle ε up to the second (about twenty)."""


class MemoryKind(StrEnum):
    """The three learners that are compared."""

    MEMORY = "memory"
    GROWING = "growing blocks"
    CAPPED = "capped blocks"


@dataclass(frozen=True, slots=True)
class Contest:
    """The three cells at one ε."""

    epsilon: Epsilon
    cells: Mapping[MemoryKind, Cell]


def contests(
    epsilons: Sequence[Epsilon], *, actions: Sequence[str], slots: int, seeds: int
) -> tuple[Contest, ...]:
    """The comparisons: at every private ε, or only at the middle one if all would take long."""
    finite = [epsilon for epsilon in epsilons if epsilon is not None]
    comparisons = [_contest(epsilon, actions) for epsilon in finite]
    draws = seeds * len(actions)
    if sum(_blocks(contest, slots) for contest in comparisons) * draws > _ALL_DRAWS:
        comparisons = comparisons[len(comparisons) // 2 :][:1]
    return tuple(
        contest for contest in comparisons if _blocks(contest, slots) * draws <= _MOST_DRAWS
    )


def _contest(epsilon: Epsilon, actions: Sequence[str]) -> Contest:
    memory = parse_candidate(MEMORY)
    (cell,) = cells_of([memory], [epsilon], actions=actions)
    schedule = cell.learner.schedule
    capped = parse_candidate(f"{GROWING}:schedule={schedule.name} {schedule.parameter}")
    candidates: dict[MemoryKind, Candidate] = {
        MemoryKind.MEMORY: memory,
        MemoryKind.GROWING: parse_candidate(GROWING),
        MemoryKind.CAPPED: capped,
    }
    return Contest(
        epsilon,
        {
            kind: cells_of([candidate], [epsilon], actions=actions)[0]
            for kind, candidate in candidates.items()
        },
    )


def _blocks(contest: Contest, slots: int) -> int:
    return contest.cells[MemoryKind.MEMORY].learner.schedule.block_of(slots)


def could_differ(contest: Contest, longest: int) -> bool:
    """Whether the longest key reaches a block that memory or a cap changes."""
    schedule = contest.cells[MemoryKind.MEMORY].learner.schedule
    assert schedule.longest is not None, "the default's blocks stop growing"
    return longest >= schedule.start(len(schedule.prefix) + 2)


@dataclass(frozen=True, slots=True)
class Placed:
    """One learner of a comparison, beside the winner."""

    kind: str
    name: str  # as on the command line
    final: Floats  # regret against the best fixed action, by seed
    behind: Floats  # how much more than the winner it lost, by seed

    @property
    def mean(self) -> float:
        """The mean regret against the best fixed action."""
        return float(self.final.mean())

    @property
    def half(self) -> float:
        """Half of its interval."""
        return half_interval(self.final)

    @property
    def alike(self) -> bool:
        """Whether the difference to the winner is within chance."""
        return bool(abs(self.behind.mean()) <= half_interval(self.behind))


@dataclass(frozen=True, slots=True)
class Result:
    """A comparison at one ε, the winner first."""

    epsilon: Epsilon
    placed: tuple[Placed, ...]

    @property
    def winner(self) -> Placed:
        """The learner with the least regret."""
        return self.placed[0]

    @property
    def tied(self) -> tuple[Placed, ...]:
        """The learners that do not differ significantly from the winner on these seeds."""
        return tuple(placed for placed in self.placed[1:] if placed.alike)


def ranked(epsilon: Epsilon, finals: Mapping[tuple[str, str], Floats]) -> Result:
    """Rank learners, by kind and name, by their mean regret."""
    order = sorted(finals, key=lambda learner: float(finals[learner].mean()))
    best = finals[order[0]]
    return Result(
        epsilon,
        tuple(
            Placed(kind, name, final, final - best)
            for kind, name in order
            for final in [finals[kind, name]]
        ),
    )


def result_of(contest: Contest, finals: Mapping[Cell, Floats]) -> Result:
    """Rank one contest by mean regret."""
    cells = contest.cells.items()
    return ranked(contest.epsilon, {(kind.value, cell.name): finals[cell] for kind, cell in cells})


def half_interval(values: Floats) -> float:
    """1.96 standard errors of a mean over seeds; infinite for one seed."""
    return Z * standard_error(values, alone=float("inf"))


def loss_by_stretch(summed: Summed, points: Ints) -> float:
    """The loss of the best action of each stretch of each key, in hindsight."""
    total = 0
    for row, last in enumerate(summed.slots.tolist()):
        cuts = stretch_ends(points, last)
        sums = summed.sums.at(summed.sums.places(np.full(len(cuts), row), cuts))
        total += int(np.diff(sums, axis=0, prepend=0).min(axis=1).sum())
    return total / UNIT


def stretch_ends(points: Ints, slots: int) -> Ints:
    """The slots at which a key's stretches end: points of the report, and the key's end."""
    wanted = np.linspace(0, slots, max(1, min(STRETCHES, slots // _SHORTEST_STRETCH)) + 1)[1:-1]
    inner = points[points < slots]
    if not len(inner) or not len(wanted):
        return np.array([slots], dtype=np.int64)
    places = np.minimum(np.searchsorted(inner, wanted), len(inner) - 1)
    return np.append(np.unique(inner[places]), slots)


def as_json(results: Sequence[Result], *, above: float, stretches: int) -> dict[str, object]:
    """The comparison in JSON; `above`: the best fixed actions' loss above the stretches'."""
    return {
        "stretches_of_longest_key": stretches,
        "best_fixed_above_best_by_stretch": above,
        "contests": [
            {
                "epsilon": epsilon_text(result.epsilon),
                "winner": result.winner.kind,
                "cannot_be_told_from": [placed.kind for placed in result.tied],
                "learners": [_placed_json(placed, above) for placed in result.placed],
            }
            for result in results
        ],
    }


def _placed_json(placed: Placed, above: float) -> dict[str, object]:
    half, behind = placed.half, half_interval(placed.behind)
    return {
        "kind": placed.kind,
        "learner": placed.name,
        "regret": placed.mean,
        "regret_by_stretch": placed.mean + above,
        "interval": half if np.isfinite(half) else None,
        "behind_winner": float(placed.behind.mean()),
        "interval_of_difference": behind if np.isfinite(behind) else None,
    }
