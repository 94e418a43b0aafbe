"""The regret of learners in made-up worlds, in seconds. NOT PRIVATE.

Every candidate at every ε in every world, by the one player (`play`). A learner that the player
cannot play, whose releases follow from what it shows itself, brings its own loop (`OwnRuns`).
`planning` asks the same of one world, from what is known before there is any data.

The best action is **found** at the first slot from which on it is in force (a policy: is shown in
at least three of four requests) in nine runs of ten at any moment. These are not always the same
runs: `always` is the share of those that never lose it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, isfinite, log, sqrt
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig, counted
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.kinds.kind import Kind
from streamdp.lab.baselines import Baseline
from streamdp.lab.common.answer import (
    NO_SHARES,
    NOT_KNOWN,
    Answer,
    Shares,
    Trajectory,
    arms_as_json,
    first_for_good,
)
from streamdp.lab.common.cells import (
    DEFAULT,
    GROWING,
    Candidate,
    Epsilon,
    LearnerCell,
    crossed,
    epsilon_option,
    epsilon_text,
)
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.play import ends_of, likely_best, sees_all_losses, walks
from streamdp.lab.worlds import World
from streamdp.wire.unprotected import NOT_PRIVATE

SHOWN = 0.75
"""The share of requests that must show the best action. (Of two, chance alone shows it in half.)"""

_MOST_BLOCKS = 100_000
_MOST_POINTS = 200  # of a curve in JSON

PAPERS = (
    "prefix_softmax",
    "prefix_softmax:cap=none",
    "noisy_leader:noise=laplace",
    "noisy_leader:noise=gumbel",
    "noisy_leader:noise=exponential",
)
"""The papers' learners, calibrated anew; the first is as its theorem states it."""


@dataclass(frozen=True, slots=True)
class Usual:
    """What is simulated where nothing else was asked for."""

    learners: tuple[str, ...] | None  # None: every private policy, and one without privacy
    epsilons: str
    horizon: int


STATIONARY = Usual(
    (DEFAULT, GROWING, *PAPERS, "naive_noisy_leader", "follow_the_leader"), "0.1,0.5,1,4", 1 << 17
)
CHANGING = Usual(
    (
        DEFAULT,
        GROWING,
        f"{GROWING}:schedule=geometric 5/2 to 8192",
        f"{GROWING}:schedule=geometric 5/2 to 2048",
        f"{GROWING}:schedule=capped 512",
    ),
    "0.1,0.5,1,4",
    1 << 20,
)
"""Memory, blocks that grow for ever, blocks that stop growing."""
FEEDBACK = Usual(None, "0.25,0.5,1", 10**6)


@dataclass(frozen=True, slots=True)
class SimulationSize:
    """How a simulation is run."""

    runs: int = 400
    horizon: int = 1 << 17
    seed: int = 1
    delay: int = 0  # feedback is known so many slots after its request

    def __post_init__(self) -> None:
        """Refuse sizes without a standard error or without a block."""
        if self.runs < 2 or not 1 <= self.horizon <= 1 << 40:
            got = f"{self.runs} runs of {self.horizon} slots"
            raise InvalidConfig(
                "simulate", "size", expected="2 runs or more of 1 … 2**40 slots", got=got
            )
        if not 0 <= self.delay <= 1 << 40:
            expected = "0 … 2**40 slots"
            raise InvalidConfig("simulate", "delay", expected=expected, got=self.delay)


@runtime_checkable
class OwnRuns(Protocol):
    """A learner that the player cannot play: it brings its own loop through a world."""

    def simulated(
        self,
        world: World,
        *,
        runs: int,
        horizon: int,
        seed: tuple[int, int],
        delay: int,
        progress: Callable[[int], None],
    ) -> tuple[Ints, Floats]:
        """Some slots, and the regret so far of each run at these: runs × slots."""
        ...


def simulate(
    candidates: Sequence[Candidate],
    epsilons: Sequence[Epsilon],
    worlds: Sequence[World],
    size: SimulationSize,
    *,
    baselines: Sequence[Baseline] = (),
    progress: Callable[[World], None] = lambda world: None,
    watch: Watch = unwatched,
) -> list[Answer]:
    """Every candidate at every ε in every world, world by world; without an ε once."""
    answers: list[Answer] = []
    for number, world in enumerate(worlds):
        progress(world)
        names = [str(action) for action in range(world.actions)]
        cells = [
            *crossed(candidates, epsilons, partial(Candidate.learner, actions=names)),
            *(LearnerCell(of.candidate, None, of.kind(names)) for of in baselines),
        ]
        kinds = [cell.learner for cell in cells if not isinstance(cell.learner, OwnRuns)]
        _check_blocks(kinds, size.horizon)
        tell = watch(
            f"{world.name}, runs of {counted(len(kinds), 'learner')}", size.runs * len(kinds)
        )
        played = iter(
            walks(
                kinds,
                world.courses or world,
                runs=size.runs,
                horizon=size.horizon,
                seed=size.seed,
                number=number,
                delay=size.delay,
                firsts=[baseline.first for baseline in baselines],
                progress=tell,
            )
            if kinds
            else ()
        )
        for cell in cells:
            if not isinstance(cell.learner, OwnRuns):
                answers.append(_of_walk(world, cell, next(played), size.runs))
            elif not world.late:  # it has no blocks, so no late feedback
                tell = watch(f"{cell.name}, ε = {epsilon_text(cell.epsilon)}, runs", size.runs)
                slots, regrets = cell.learner.simulated(
                    world,
                    runs=size.runs,
                    horizon=size.horizon,
                    seed=(size.seed, number),
                    delay=size.delay,
                    progress=tell,
                )
                answers.append(
                    Answer(
                        cell=cell,
                        world=world.name,
                        runs=size.runs,
                        regret=regrets[:, -1],
                        course=Trajectory.of_runs(slots, regrets),
                    )
                )
    return answers


def _check_blocks(kinds: Sequence[Kind], horizon: int) -> None:
    """Refuse learners that look at single slots, and too many blocks."""
    for kind in kinds:
        sees_all_losses(kind)
    most = max((kind.schedule.block_of(horizon) + 1 for kind in kinds), default=0)
    if most > _MOST_BLOCKS:
        raise InvalidConfig("simulate", "too many blocks", expected=f"≤ {_MOST_BLOCKS}", got=most)


def _of_walk(world: World, cell: LearnerCell[Any], walk: Any, runs: int) -> Answer:
    so_far, kind = np.cumsum(walk.costs, axis=0), walk.kind
    ends = np.minimum(ends_of(kind.schedule, walk.horizon)[1:], walk.horizon)
    final, best, always = walk.regret, NOT_KNOWN, None
    if world.courses:  # runs of one course are alike: the error is that of courses' means
        final = final.reshape(-1, len(world.courses)).mean(axis=0)
    elif not world.later:
        best = walk.found(SHOWN)
        settled = first_for_good(best, ends)
        always = None if settled is None else walk.always(SHOWN, since=settled)
    return Answer(
        cell=cell,
        world=world.name,
        runs=runs,
        regret=final,
        course=Trajectory.of_runs(ends, so_far.T),
        shares=NO_SHARES if walk.shares is None else Shares(walk.starts, walk.shares),
        best=best,
        always=always,
        arms=likely_best(kind, walk.released) if isinstance(kind, PolicyLearner) else None,
    )


# -- relative to one learner ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Relative:
    """A learner's regret relative to another's: geometric mean over worlds and budgets."""

    learner: str
    ratio: float
    error: float


def relative(
    answers: Sequence[Answer], *, reference: str, beside: Sequence[str] = ()
) -> list[Relative]:
    """Each private learner relative to one, with the standard error of the paired comparison.

    `beside` names baselines that take no ε: each is compared with the reference at every ε.

    The logarithm of a ratio of means moves by x/mean(x) − y/mean(y) for each run. The same runs
    serve all budgets, so these terms are added over budgets before their spread is taken.
    """
    shown = [of for of in answers if of.cell.epsilon or of.cell.name in beside]
    table = {(of.world, of.cell.epsilon, of.cell.name): of for of in shown}
    learners = dict.fromkeys(of.cell.name for of in shown)
    if reference not in learners:
        raise InvalidConfig(
            "simulate", "no such learner", expected="a simulated one", got=reference
        )
    still = [str(of.cell) for of in shown if not of.mean]
    if still:
        what = "a learner without any regret cannot be compared"
        raise InvalidConfig("simulate", what, expected="more runs or slots", got=still)
    budgets = dict.fromkeys((world, epsilon) for world, epsilon, _ in table if epsilon)
    results = []
    for learner in learners:
        logs, moves = 0.0, dict.fromkeys((world for world, _ in budgets), np.zeros(1))
        for world, epsilon in budgets:
            mine = table[world, None if learner in beside else epsilon, learner]
            other = table[world, epsilon, reference]
            logs += log(mine.mean / other.mean)
            moves[world] = moves[world] + mine.regret / mine.mean - other.regret / other.mean
        ratio = exp(logs / len(budgets))
        variance = sum(float(move.var(ddof=1)) / len(move) for move in moves.values())
        results.append(Relative(learner, ratio, ratio * sqrt(variance) / len(budgets)))
    return results


def best_paper(answers: Sequence[Answer]) -> str:
    """The paper's learner with the least regret, by geometric mean."""
    simulated = {answer.cell.name for answer in answers}
    papers = [name for name in PAPERS if name in simulated]
    if not papers:
        raise InvalidConfig(
            "simulate", "nothing to compare with", expected=PAPERS, got=sorted(simulated)
        )
    table = relative(answers, reference=papers[0])
    return min((r.ratio, r.learner) for r in table if r.learner in papers)[1]


# -- as JSON --------------------------------------------------------------------------------------


def as_json(answers: Sequence[Answer], worlds: Sequence[World], slots: int) -> dict[str, Any]:
    """What `--json` writes, and all that the page and the terminal show."""
    if not answers:
        expected = "learners with blocks where feedback comes late"
        raise InvalidConfig("simulate", "nothing to play", expected=expected, got="others alone")
    rows = list(_rows(answers))
    return {
        "lead": _lead(rows, worlds, slots),
        "slots": slots,
        "worlds": [_world(world, slots) for world in worlds],
        "relative": _relative(answers),
        "answers": rows,
    }


def _rows(answers: Sequence[Answer]) -> Iterator[dict[str, Any]]:
    rivals: dict[tuple[str, Epsilon], list[Answer]] = {}
    for answer in answers:
        rivals.setdefault((answer.world, answer.cell.epsilon), []).append(answer)
    for answer in answers:
        cell = answer.cell
        best = min(rivals[answer.world, cell.epsilon], key=lambda of: of.mean)
        behind, half = answer.behind(best)
        schedule = getattr(cell.learner, "schedule", None)
        yield {
            "world": answer.world,
            "learner": cell.name,
            "epsilon": epsilon_option(cell.epsilon),
            "runs": answer.runs,
            "regret": answer.mean,
            "standard_error": answer.error,
            "worst_percent": answer.worst,
            "behind_best": behind,
            "interval_of_difference": half if isfinite(half) else None,
            "found_after": None if answer.settled is None else answer.settled - 1,
            "found_for_good": answer.always,
            "blocks": None if schedule is None else schedule.block_of(answer.course.slots[-1] + 1),
            "regret_over_time": answer.course.as_json(most=_MOST_POINTS),
            "found_over_time": None
            if not len(answer.best)
            else answer.best[:: answer.course.step(_MOST_POINTS)].tolist(),
            "policy_over_time": answer.shares.as_json(),
            "experiment": None if answer.arms is None else arms_as_json(answer.arms),
        }


def _world(world: World, slots: int) -> dict[str, Any]:
    """What is known of a world, and what showing actions by chance loses in it."""
    return {
        "name": world.name,
        "actions": world.actions,
        "means": (1 - world.table[0]).round(12).tolist(),
        "changes": len(world.later),
        "rewards": "bernoulli" if world.concentration is None else "beta",
        "late": world.late,
        "uniform_regret": float(world.costs(np.array([0, slots]), slots).mean()),
    }


def _lead(rows: list[dict[str, Any]], worlds: Sequence[World], slots: int) -> dict[str, str]:
    """What was compared, which learner did best, and how sure that is."""
    budgets = list(dict.fromkeys(of["epsilon"] for of in rows))
    finite = [epsilon for epsilon in budgets if epsilon != "inf"]
    middle = (finite or budgets)[len(finite or budgets) // 2]
    best = [of["learner"] for of in rows if of["epsilon"] == middle and not of["behind_best"]]
    wins = sorted(dict.fromkeys(best), key=lambda name: -best.count(name))
    learners = counted(len({of["learner"] for of in rows}), "learner")
    private = f" with privacy, at ε = {middle}" if finite else ""
    return {
        "compared": f"{learners} in {counted(len(worlds), 'made-up world')},"
        f" {rows[0]['runs']:,} runs of {slots:,} slots each.",
        "worth": f"The least regret{private}: "
        + ", ".join(f"{name} in {best.count(name)} of {len(worlds)}" for name in wins)
        + ".",
        "sure": "Means over runs with 95 % intervals; what happens is drawn from worlds with known"
        " means, so regret is exact and nothing needs protection. What a block saw is learned when"
        " it ends: every learner has waited a whole block.",
    }


def _relative(answers: Sequence[Answer]) -> dict[str, Any] | None:
    """Regret relative to the best paper's learner, or to growing blocks, by ε and altogether."""
    learners = {of.cell.name for of in answers if of.cell.epsilon}
    papers = learners & set(PAPERS)
    if not papers and not (GROWING in learners and len(learners) > 1):
        return None
    reference = best_paper(answers) if papers else GROWING
    free = [of for of in answers if of.cell.name.endswith(NOT_PRIVATE)]
    beside = list(dict.fromkeys(of.cell.name for of in free))
    budgets = list(dict.fromkeys(of.cell.epsilon for of in answers if of.cell.epsilon))
    parts = [[of for of in answers if of.cell.epsilon == budget] for budget in budgets]
    columns = [
        relative([*part, *free], reference=reference, beside=beside)
        for part in [*parts, [of for of in answers if of not in free]]
    ]
    return {
        "to": reference,
        "epsilons": [epsilon_option(budget) for budget in budgets],
        "learners": [
            {"learner": line[0].learner, "ratios": [[of.ratio, of.error] for of in line]}
            for line in zip(*columns, strict=True)
        ],
    }
