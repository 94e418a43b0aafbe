"""`replay_log`: a question about a log, and the answer, which is the content of a report.

Beside the given candidates a replay always runs *follow the leader*: block by block (dyadic), which
costs nothing more, and slot by slot if the log is small and has few keys, or the learner is asked
for by name (it needs a pass of its own, takes each key by itself, and holds all of them in memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamdp.core.errors import InvalidConfig
from streamdp.lab.common.answer import Answer
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
from streamdp.lab.replay.curves import Baselines, answers
from streamdp.lab.replay.cuts import CutPlan, report_points
from streamdp.lab.replay.running import follow
from streamdp.lab.replay.summing import Summed, sum_log
from streamdp.lab.workers import IN_PROCESS, Workers

SMALL_LOG = 20_000_000
"""Losses (slots × K) up to which slot-by-slot follow-the-leader always runs: a second or two."""

FEW_RUNS = 1 << 20
"""Keys × seeds up to which it always does."""


@dataclass(frozen=True, slots=True)
class Question:
    """The question that a replay answers."""

    candidates: tuple[Candidate, ...]
    epsilons: tuple[Epsilon, ...]
    seeds: tuple[int, ...]
    stream: str = "replay"
    epoch: int = 1

    def __post_init__(self) -> None:
        """Refuse a question without seeds."""
        if not self.seeds:
            raise InvalidConfig("seeds", "none", expected="at least 1", got=0)

    @property
    def bench(self) -> Bench:
        """The sources of randomness."""
        return Bench(self.seeds, self.stream, self.epoch)


@dataclass(frozen=True, slots=True)
class Replay:
    """The content of a report."""

    log: str
    actions: tuple[str, ...]
    question: Question
    summed: Summed
    base: Baselines
    answers: tuple[Answer, ...]  # candidates × ε, in the order of the question
    leader: Answer  # follow the leader, block by block
    running: Answer | None  # follow the leader, slot by slot

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
    cells = work.cells
    report = watch("learners", len(cells))
    base, played = answers(summed, cells, question.bench, points, workers.near)
    found = {answer.cell: answer for answer in played}
    report(len(cells))
    asked, runs = set(work.running_cells) & set(work.asked), len(summed.rows) * len(question.seeds)
    running = work.running_cells if asked or runs <= FEW_RUNS else ()
    for cell in running:
        tell = watch(cell.name, log.slots)
        found[cell] = follow(log, cell, summed, question.bench, base, progress=tell)
    return Replay(
        log=log.name,
        actions=log.actions,
        question=question,
        summed=summed,
        base=base,
        answers=tuple(found[cell] for cell in work.asked),
        leader=found[work.leader],
        running=next((found[cell] for cell in running), None),
    )


@dataclass(frozen=True, slots=True)
class ReplayWork:
    """The computations that a question needs."""

    asked: tuple[Cell, ...]
    leader: Cell
    running_cells: tuple[Cell, ...]
    points: NDArray[np.int64]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that the one pass answers."""
        every = dict.fromkeys((*self.asked, self.leader))
        return tuple(cell for cell in every if not runs_on(cell))

    def cuts(self) -> tuple[CutPlan, CutPlan | None]:
        """The cuts of the pass, and those of the events that are drawn anew."""
        cells = self.cells
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
    running = [cell for cell in asked if runs_on(cell)]
    if not running and log.slots * len(actions) <= SMALL_LOG:
        running = list(cells_of([parse_candidate(RUNNING)], (None,), actions=actions))
    (leader,) = cells_of([parse_candidate(BASELINE)], (None,), actions=actions)
    return ReplayWork(asked, leader, tuple(running), report_points(log.slots))


def seeds_of(count: int, first: int = 0) -> tuple[int, ...]:
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


def as_read(log: Log, question: Question) -> int:
    """How many losses are read in the time that the pass over a log takes."""
    redrawn = any(map(redraws, plan(log, question).asked))
    times = len(question.seeds) * READ_A_SECOND / REDRAWN_A_SECOND if redrawn else 0
    return round(log.slots * len(log.actions) * (1 + times))


READ_A_SECOND = 1.0e8
"""Losses per second that are read and summed, on one core of 2024; for estimates only."""

REDRAWN_A_SECOND = 2.0e7
"""Losses per second that are drawn anew and summed, likewise."""

FOLLOWED_A_SECOND = 2.0e7
"""Losses per second that slot-by-slot follow-the-leader handles, likewise."""
