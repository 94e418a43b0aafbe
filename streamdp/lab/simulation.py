"""The regret of learners in made-up worlds, in seconds. NOT PRIVATE.

Every candidate at every ε in every world, by the one player (`play`). The papers' learners of
feedback, whose phases end by an arm's own count, have a loop of their own (`papers.play`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, floor, log, log10, sqrt

import numpy as np

from streamdp.core.arrays import Floats
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.experiment import Arms
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.kinds.kind import Kind
from streamdp.lab.baselines import Baseline
from streamdp.lab.common.answer import Shares, Trajectory, standard_error
from streamdp.lab.common.cells import Candidate, Epsilon, crossed, epsilon_text
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.papers.learners import Bandit
from streamdp.lab.papers.play import WorldLosses, simulate_bandit
from streamdp.lab.play import First, Walk, ends_of, likely_best, sees_all_losses, walks
from streamdp.lab.worlds import World

_WORST = 100  # the worst 1 % are one run in so many
_ROUNDING = 1e-9  # of a mean: a standard error below it is that of sums of floats
_MOST_BLOCKS = 10_000

DEFAULT = "remembering_leader"
GROWING = "incumbent_leader"
"""The earlier default: blocks grow for ever, and the newest release is in force."""

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
class Outcome:
    """The regret of one learner in one world, run by run."""

    world: World
    learner: str  # as on the command line
    epsilon: Epsilon
    regrets: Floats
    course: Trajectory  # the regret so far: mean and the middle 80 % of the runs
    shares: Shares | None = None  # how often each action was in force, for learners with blocks
    arms: Arms | None = None  # the first run of feedback, as its experiment page would show it

    @property
    def mean(self) -> float:
        """The mean regret."""
        return float(self.regrets.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return standard_error(self.regrets)

    @property
    def worst(self) -> float:
        """The mean over the worst 1 % of the runs (at least one run)."""
        count = max(1, len(self.regrets) // _WORST)
        return float(np.sort(self.regrets)[-count:].mean())

    def __str__(self) -> str:
        """The form used in tables."""
        known = self.error > _ROUNDING * abs(self.mean)  # below it, sums of equal runs were rounded
        digits = max(0, 1 - floor(log10(self.error))) if known else 0
        return f"{self.mean:.{digits}f} ± {self.error:.{digits}f}"


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


def simulate(
    candidates: Sequence[Candidate],
    epsilons: Sequence[Epsilon],
    worlds: Sequence[World],
    size: SimulationSize,
    *,
    baselines: Sequence[Baseline] = (),
    progress: Callable[[World], None] = lambda world: None,
    watch: Watch = unwatched,
) -> list[Outcome]:
    """Every candidate at every ε in every world, world by world; without an ε once."""
    outcomes: list[Outcome] = []
    for number, world in enumerate(worlds):
        progress(world)
        names = [str(action) for action in range(world.actions)]
        made = crossed(candidates, epsilons, partial(Candidate.learner, actions=names))
        cells = [(cell.name, cell.epsilon, cell.learner) for cell in made]
        cells += [(baseline.label, None, baseline.kind(names)) for baseline in baselines]
        kinds = [learner for _, _, learner in cells if not isinstance(learner, Bandit)]
        _check_blocks(kinds, size.horizon)
        firsts = [baseline.first for baseline in baselines]
        played = iter(_walks(kinds, firsts, world, size, number, watch))
        for text, epsilon, learner in cells:
            if not isinstance(learner, Bandit):
                outcomes.append(_of_walk(world, text, epsilon, next(played)))
            elif not world.late:  # it has no blocks, so no late feedback
                tell = watch(f"{text}, ε = {epsilon_text(epsilon)}, runs", size.runs)
                outcomes.append(_of_bandit(world, text, epsilon, learner, size, number, tell))
    return outcomes


def _check_blocks(kinds: Sequence[Kind], horizon: int) -> None:
    """Refuse learners that look at single slots, and too many blocks."""
    for kind in kinds:
        sees_all_losses(kind)
    most = max((kind.schedule.block_of(horizon) + 1 for kind in kinds), default=0)
    if most > _MOST_BLOCKS:
        raise InvalidConfig("simulate", "too many blocks", expected=f"≤ {_MOST_BLOCKS}", got=most)


def _walks(
    kinds: Sequence[Kind],
    firsts: Sequence[First],
    world: World,
    size: SimulationSize,
    number: int,
    watch: Watch,
) -> list[Walk]:
    """The learners with blocks, side by side."""
    if not kinds:
        return []
    return walks(
        kinds,
        world,
        runs=size.runs,
        horizon=size.horizon,
        seed=size.seed,
        number=number,
        delay=size.delay,
        firsts=firsts,
        progress=watch(f"{world.name}, runs of {len(kinds)} learners", size.runs * len(kinds)),
    )


def _of_walk(world: World, text: str, epsilon: Epsilon, walk: Walk) -> Outcome:
    so_far, kind = np.cumsum(walk.costs, axis=0), walk.kind
    arms = likely_best(kind, walk.released) if isinstance(kind, PolicyLearner) else None
    ends = np.minimum(ends_of(kind.schedule, walk.horizon)[1:], walk.horizon)
    return Outcome(
        world,
        text,
        epsilon,
        walk.regret,
        Trajectory.of_runs(ends, so_far.T),
        None if walk.shares is None else Shares(walk.starts, walk.shares),
        arms,
    )


def _of_bandit(
    world: World,
    text: str,
    epsilon: Epsilon,
    learner: Bandit,
    size: SimulationSize,
    number: int,
    progress: Callable[[int], None],
) -> Outcome:
    """One of the papers' learners."""
    marks = sorted({*(2**power for power in range(size.horizon.bit_length())), size.horizon})
    outcome = simulate_bandit(
        learner,
        WorldLosses(world, size.horizon),
        runs=size.runs,
        horizon=size.horizon,
        seed=(size.seed, number),
        delay=size.delay,
        marks=marks,
        progress=progress,
    )
    course = Trajectory.of_runs(np.array(marks), outcome.regrets)
    return Outcome(world, text, epsilon, outcome.regrets[:, -1], course)


@dataclass(frozen=True, slots=True)
class Relative:
    """A learner's regret relative to another's: geometric mean over worlds and budgets."""

    learner: str
    ratio: float
    error: float

    def __str__(self) -> str:
        """The form used in tables."""
        return f"{self.ratio:.3f} ± {self.error:.3f}"


def relative(
    outcomes: Sequence[Outcome], *, reference: str, beside: Sequence[str] = ()
) -> list[Relative]:
    """Each private learner relative to one, with the standard error of the paired comparison.

    `beside` names baselines that take no ε: each is compared with the reference at every ε.

    The logarithm of a ratio of means moves by x/mean(x) − y/mean(y) for each run. The same runs
    serve all budgets, so these terms are added over budgets before their spread is taken.
    """
    shown = [o for o in outcomes if o.epsilon or o.learner in beside]
    table = {(o.world.name, o.epsilon, o.learner): o for o in shown}
    learners = dict.fromkeys(o.learner for o in shown)
    if reference not in learners:
        raise InvalidConfig(
            "simulate", "no such learner", expected="a simulated one", got=reference
        )
    if any(not outcome.mean for outcome in table.values()):
        raise InvalidConfig(
            "simulate",
            "a learner without any regret cannot be compared",
            expected="more runs or slots",
            got=[
                f"{o.learner} at ε = {epsilon_text(o.epsilon)}"
                for o in table.values()
                if not o.mean
            ],
        )
    budgets = dict.fromkeys((world, epsilon) for world, epsilon, _ in table if epsilon)
    results = []
    for learner in learners:
        logs, moves = 0.0, dict.fromkeys((world for world, _ in budgets), np.zeros(1))
        for world, epsilon in budgets:
            mine = table[world, None if learner in beside else epsilon, learner]
            other = table[world, epsilon, reference]
            logs += log(mine.mean / other.mean)
            move = mine.regrets / mine.mean - other.regrets / other.mean
            moves[world] = moves[world] + move
        ratio = exp(logs / len(budgets))
        variance = sum(float(move.var(ddof=1)) / len(move) for move in moves.values())
        results.append(Relative(learner, ratio, ratio * sqrt(variance) / len(budgets)))
    return results


def best_paper(outcomes: Sequence[Outcome]) -> str:
    """The paper's learner with the least regret, by geometric mean."""
    simulated = {outcome.learner for outcome in outcomes}
    papers = [name for name in PAPERS if name in simulated]
    if not papers:
        raise InvalidConfig(
            "simulate", "nothing to compare with", expected=PAPERS, got=sorted(simulated)
        )
    table = relative(outcomes, reference=papers[0])
    return min((r.ratio, r.learner) for r in table if r.learner in papers)[1]
