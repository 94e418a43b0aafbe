"""`replay_log`: a question about a log, and the answer, which is the content of a report.

Beside the given candidates, a replay always runs

- *follow the leader*, block by block (dyadic), which costs nothing more, and slot by slot if the
  log is small or the learner is asked for by name (it needs a pass of its own);
- the default with its memory beside growing and capped blocks (`following`), at every private ε.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats
from streamdp.core.errors import InvalidConfig
from streamdp.lab.common.answer import standard_error
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.cells import (
    BASELINE,
    RUNNING,
    Candidate,
    Cell,
    Epsilon,
    cells_of,
    parse_candidate,
    redraws,
    runs_on,
    schedules_of,
)
from streamdp.lab.common.words import WORTH_SAYING, duration
from streamdp.lab.logs.log import Log
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.play import Charge, charge_of
from streamdp.lab.replay.curves import Baselines, Curves, baselines, curves
from streamdp.lab.replay.cuts import CutPlan, report_points
from streamdp.lab.replay.following import Contest, Result, contests, could_differ, result_of
from streamdp.lab.replay.grid import holds
from streamdp.lab.replay.running import follow
from streamdp.lab.replay.summing import Summed, sum_log
from streamdp.lab.workers import IN_PROCESS, Workers

SMALL_LOG = 20_000_000
"""Losses (slots × K) up to which slot-by-slot follow-the-leader always runs: a second or two."""


@dataclass(frozen=True, slots=True)
class Question:
    """The question that a replay answers."""

    candidates: tuple[Candidate, ...]
    epsilons: tuple[Epsilon, ...]
    seeds: tuple[int, ...]
    stream: str = "replay"
    epoch: int = 1
    contests: bool = True  # whether memory, growing and capped blocks are compared

    def __post_init__(self) -> None:
        """Refuse a question without seeds."""
        if not self.seeds:
            raise InvalidConfig("seeds", "none", expected="at least 1", got=0)

    @property
    def bench(self) -> Bench:
        """The sources of randomness."""
        return Bench(self.seeds, self.stream, self.epoch)


@dataclass(frozen=True, slots=True)
class ReplayAnswer:
    """A cell's curves and its ledger."""

    cell: Cell
    curves: Curves
    charged: Charge | None  # None: not private

    @property
    def final(self) -> Floats:
        """The regret at the end, by seed."""
        return np.asarray(self.curves.regret[:, -1])

    @property
    def mean(self) -> float:
        """The mean regret at the end."""
        return float(self.final.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean over seeds; 0 for one seed."""
        return standard_error(self.final)


@dataclass(frozen=True, slots=True)
class Replay:
    """The content of a report."""

    log: str
    actions: tuple[str, ...]
    question: Question
    summed: Summed
    base: Baselines
    answers: tuple[ReplayAnswer, ...]  # candidates × ε, in the order of the question
    leader: ReplayAnswer  # follow the leader, block by block
    running: ReplayAnswer | None  # follow the leader, slot by slot
    followed: tuple[Result, ...]  # memory, growing and capped blocks, if they could differ

    @property
    def slots(self) -> int:
        """The number of slots of all keys."""
        return int(self.summed.slots.sum())


def replay_log(
    log: Log, question: Question, *, watch: Watch = unwatched, workers: Workers = IN_PROCESS
) -> Replay:
    """Replay a log and answer a question."""
    work = plan(log, question)
    main, redrawn = work.cuts()
    summed = sum_log(
        log,
        question.bench,
        main,
        resampling=redrawn,
        progress=watch(f"reading {log.name}", log.slots),
        workers=workers,
    )
    longest = summed.longest  # the horizon was an upper bound
    points = np.append(work.points[work.points < longest], longest)
    base = baselines(summed, points)
    compared = tuple(contest for contest in work.contests if _worth(contest, summed, question))
    cells = work.cells(compared)
    report = watch("learners", len(cells))
    drawn = curves(summed, cells, question.bench, base)
    report(len(cells))
    answers = {
        curve.cell: ReplayAnswer(
            curve.cell,
            curve,
            None
            if curve.cell.learner.charge is None
            else charge_of(curve.cell.learner, summed.slots),
        )
        for curve in drawn
    }
    for cell in work.running_cells:
        tell = watch(cell.name, log.slots)
        curve = follow(log, cell, summed, question.bench, base, progress=tell)
        answers[cell] = ReplayAnswer(cell, curve, None)
    return Replay(
        log=log.name,
        actions=log.actions,
        question=question,
        summed=summed,
        base=base,
        answers=tuple(answers[cell] for cell in work.asked),
        leader=answers[work.leader],
        running=next((answers[cell] for cell in work.running_cells), None),
        followed=tuple(
            result_of(contest, {cell: answers[cell].final for cell in contest.cells.values()})
            for contest in compared
        ),
    )


def _worth(contest: Contest, summed: Summed, question: Question) -> bool:
    """Whether a comparison can say anything about this log, and fits in memory."""
    return could_differ(contest, summed.longest) and all(
        holds(cell, summed, question.bench) for cell in contest.cells.values()
    )


@dataclass(frozen=True, slots=True)
class ReplayWork:
    """The computations that a question needs."""

    asked: tuple[Cell, ...]
    leader: Cell
    contests: tuple[Contest, ...]
    running_cells: tuple[Cell, ...]
    points: NDArray[np.int64]

    def cells(self, contests: Sequence[Contest]) -> tuple[Cell, ...]:
        """The cells that the one pass answers, with those of some comparisons."""
        compared = (cell for contest in contests for cell in contest.cells.values())
        every = dict.fromkeys((*self.asked, self.leader, *compared))
        return tuple(cell for cell in every if not runs_on(cell))

    def cuts(self) -> tuple[CutPlan, CutPlan | None]:
        """The cuts of the pass, and those of the events that are drawn anew."""
        cells = self.cells(self.contests)
        prefix = [cell for cell in cells if cell.learner.window == "random_prefix"]
        redrawn = [cell for cell in cells if redraws(cell)]
        main = CutPlan(schedules_of(cells), schedules_of(prefix), self.points)
        if not redrawn:
            return main, None
        none = np.zeros(0, dtype=np.int64)
        windows = [cell for cell in redrawn if cell.learner.window == "random_prefix"]
        return main, CutPlan(schedules_of(redrawn), schedules_of(windows), none)


def plan(log: Log, question: Question) -> ReplayWork:
    """The work that a question needs."""
    actions = log.actions
    asked = cells_of(question.candidates, question.epsilons, actions=actions)
    compared: tuple[Contest, ...] = ()
    if question.contests:
        seeds = len(question.seeds)
        compared = contests(question.epsilons, actions=actions, slots=log.slots, seeds=seeds)
    running = [cell for cell in asked if runs_on(cell)]
    if not running and log.slots * len(actions) <= SMALL_LOG:
        running = list(cells_of([parse_candidate(RUNNING)], (None,), actions=actions))
    (leader,) = cells_of([parse_candidate(BASELINE)], (None,), actions=actions)
    return ReplayWork(asked, leader, compared, tuple(running), report_points(log.slots))


def seeds_of(count: int, *, first: int = 0) -> tuple[int, ...]:
    """This many seeds from the first one on.

    >>> seeds_of(3)
    (0, 1, 2)
    """
    return tuple(range(first, first + count))


def costs(log: Log, question: Question) -> Sequence[str]:
    """The costs of a replay beyond one reading of the log, as sentences; empty if none."""
    work = plan(log, question)
    values, sentences = log.slots * len(log.actions), []
    redrawn = [cell.name for cell in work.asked if redraws(cell)]
    if redrawn:
        seconds = values * len(question.seeds) / REDRAWN_A_SECOND
        sentences.append(
            f"{', '.join(dict.fromkeys(redrawn))}: draws every event anew for each of"
            f" {len(question.seeds)} seeds, {duration(seconds)}"
        )
    for cell in work.running_cells:
        seconds = values / FOLLOWED_A_SECOND
        if seconds >= WORTH_SAYING:
            sentences.append(f"{cell.name}: a pass of its own, {duration(seconds)}")
    return sentences


REDRAWN_A_SECOND = 2.0e7
"""Losses per second that are drawn anew and summed, on one core of 2024; for estimates only."""

FOLLOWED_A_SECOND = 2.0e7
"""Losses per second that slot-by-slot follow-the-leader handles, likewise."""
