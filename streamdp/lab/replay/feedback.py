"""The regret of feedback learners in made-up environments. NOT PRIVATE.

An environment has a mean reward for each arm, which may change at known slots, and says how rewards
are distributed and how much of the feedback comes a block late. Each request draws its arm from the
policy in force. A block's feedback is seen when the block ends, so every policy has waited a whole
block; late feedback comes with a later block's. Between two policies the shows are multinomial, and
the sums of their rewards are drawn at once (binomial; of beta laws up to 64 one by one, above that
by the normal law of their sum). So a run of a million slots is twenty steps, and thousands of runs
go through the shipped policy rules together. Noise is discrete Laplace of the shipped scales from
numpy's generator: it protects nothing.

Regret is Σ over shows of (best mean − mean of the arm shown), against the best arm of each moment;
against an adversary, who makes the newest winner the next loser, it is that of the best fixed arm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - rewards are made up: no secret

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.evidence.experiment import Arms, Experiment
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner, feedback_learner_of
from streamdp.core.schedule import Schedule
from streamdp.lab.offpolicy.policies import scales
from streamdp.lab.papers.learners import BANDIT_RECIPES, Bandit, bandit_of
from streamdp.lab.replay.bandit_worlds import IndependentRewards, Yardstick, gaps_of
from streamdp.lab.replay.bandits import simulate_bandit
from streamdp.lab.replay.cells import Epsilon, epsilon_text
from streamdp.lab.replay.course import Shares, Trajectory
from streamdp.lab.replay.spread import standard_error
from streamdp.lab.replay.stages import Watch, unwatched

HORIZON = 10**6
BASELINES = ("thompson", "ucb1")
LEARNERS = ("policy_blocks", "policy_elimination", "policy_weights", "thompson")

_CONCENTRATION = 4.0  # of beta rewards: their variance is m(1 − m)/5
_ONE_BY_ONE = 64
_VALUES = 1 << 20  # of an array at once
_MOST_BLOCKS = 10_000
BAND = (10, 90)
_WORST = 100  # the worst 1 % are one run in so many


@dataclass(frozen=True, slots=True)
class Environment:
    """Mean rewards of the arms, in equal stretches of the horizon, and how feedback comes."""

    name: str
    stretches: tuple[tuple[float, ...], ...]
    rewards: Literal["bernoulli", "beta"] = "bernoulli"
    late: float = 0.0  # the share that comes with the next block's feedback
    yardstick: Yardstick = "moment"  # what regret is measured against

    @property
    def arms(self) -> int:
        """The number of arms."""
        return len(self.stretches[0])


_GRADED = (0.75, 0.625, 0.5, 0.375, 0.25)
_EQUAL = (0.5, 0.4, 0.4, 0.4, 0.4)

ENVIRONMENTS = (
    Environment("graded, K = 5", (_GRADED,)),
    Environment("equal, K = 5", (_EQUAL,)),
    Environment("clicks 5 %, K = 4", ((0.05, 0.04, 0.04, 0.03),)),
    Environment("clicks 2 %, K = 4", ((0.02, 0.016, 0.015, 0.015),)),
    Environment("clicks 6 %, K = 20", ((0.06, *(0.04,) * 19),)),
    Environment("equal, K = 2", ((0.5, 0.4),)),
    Environment("equal, K = 20", ((0.5, *(0.4,) * 19),)),
    Environment("equal, K = 100", ((0.5, *(0.4,) * 99),)),
    Environment("graded, beta rewards", (_GRADED,), rewards="beta"),
    Environment("graded, a tenth late", (_GRADED,), late=0.1),
    Environment("equal, a tenth late", (_EQUAL,), late=0.1),
    Environment(
        "the best arm changes 9 times",
        tuple(tuple(0.6 if arm == at % 5 else 0.4 for arm in range(5)) for at in range(10)),
    ),
    Environment(
        "an adversary, K = 5",
        tuple((0.55, 0.9 if at % 2 else 0.1, 0.1 if at % 2 else 0.9, 0.3, 0.3) for at in range(64)),
        yardstick="fixed",
    ),
)
"""The first two are those of Hu et al. (2025), Fig. 1 and 2; then click rates, numbers of arms,
rewards that are not 0 or 1, late feedback, drift; and an oblivious adversary: two arms take turns
as the best, and a third is steady and better than both on average."""


@dataclass(frozen=True, slots=True)
class FeedbackOutcome:
    """The regret of one learner in one environment, run by run."""

    environment: Environment
    learner: str  # as on the command line
    epsilon: Epsilon
    regrets: Floats
    course: Trajectory  # the regret so far: mean and the middle 80 % of the runs
    shares: Shares | None = None  # the mean policy of each block, for learners with policies
    arms: Arms | None = None  # the first run, as its experiment page would show it

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
        return f"{self.mean:.0f} ± {self.error:.0f} (worst 1 %: {self.worst / self.mean:.1f} ×)"


def simulate_feedback(
    learners: Sequence[str],
    epsilons: Sequence[Epsilon],
    *,
    environments: Sequence[Environment] = ENVIRONMENTS,
    runs: int = 100,
    horizon: int = HORIZON,
    seed: int = 1,
    delay: int = 0,
    progress: Callable[[Environment], None] = lambda environment: None,
    watch: Watch = unwatched,
) -> Iterator[FeedbackOutcome]:
    """Every learner at every ε in every environment; baselines once.

    With `delay` an outcome is known this many slots after its request.
    """
    if not 0 <= delay <= 1 << 40:
        raise InvalidConfig(complaint("simulate", "delay", expected="0 … 2**40 slots", got=delay))
    if runs < 2 or not 1 <= horizon <= 1 << 40:
        got = f"{runs} runs of {horizon} slots"
        raise InvalidConfig(
            complaint("simulate", "size", expected="2 runs or more of 1 … 2**40 slots", got=got)
        )
    for number, environment in enumerate(environments):
        progress(environment)
        for text in learners:
            if text.split(":")[0] in BANDIT_RECIPES:
                size = _Size(runs, horizon, delay, (seed, number), watch)
                yield from _phased(text, epsilons, environment, size)
                continue
            private = text.split(":")[0] not in BASELINES
            for epsilon in epsilons if private else (None,):
                yield _outcome(
                    environment,
                    text,
                    epsilon,
                    runs=runs,
                    horizon=horizon,
                    generator=default_rng((seed, number)),
                    delay=delay,
                    watch=watch,
                )


@dataclass(frozen=True, slots=True)
class _Size:
    """How much of one world is simulated."""

    runs: int
    horizon: int
    delay: int
    seed: tuple[int, int]
    watch: Watch


def _phased(
    text: str, epsilons: Sequence[Epsilon], environment: Environment, size: _Size
) -> Iterator[FeedbackOutcome]:
    """Simulate a paper's learner. It has no blocks, so no late feedback."""
    if environment.late:
        return
    concentration = None if environment.rewards == "bernoulli" else _CONCENTRATION
    horizon, runs = size.horizon, size.runs
    world = IndependentRewards(environment.stretches, horizon, concentration, environment.yardstick)
    marks = sorted({*(2**power for power in range(horizon.bit_length())), horizon})
    for epsilon in epsilons:
        names = [str(arm) for arm in range(environment.arms)]
        learner = bandit_candidate(text, epsilon, actions=names)
        outcome = simulate_bandit(
            learner,
            world,
            runs=runs,
            horizon=horizon,
            seed=size.seed,
            delay=size.delay,
            marks=marks,
            progress=size.watch(f"{text}, ε = {epsilon_text(epsilon)}, runs", runs),
        )
        yield FeedbackOutcome(
            environment,
            text,
            epsilon,
            outcome.regrets[:, -1],
            course=_course(np.array(marks), outcome.regrets),
        )


def bandit_candidate(text: str, epsilon: Epsilon, *, actions: Sequence[str]) -> Bandit:
    """Parse a paper's learner, at an ε.

    >>> str(bandit_candidate("lazy_thompson:play=held", Fraction(1), actions=["a", "b"]))
    'lazy_thompson(epsilon=1, play=held, log=e) of 2 actions'
    """
    name, *parts = (part.strip() for part in text.split(":"))
    options = dict(part.partition("=")[::2] for part in parts)
    if epsilon is None:
        raise InvalidConfig(complaint("epsilon", "no phase without noise", expected="ε", got=name))
    return bandit_of({"recipe": name, "epsilon": str(epsilon), **options}, actions=actions)


def feedback_candidate(text: str, epsilon: Epsilon, *, actions: Sequence[str]) -> PolicyLearner:
    """Parse a learner, at an ε.

    >>> feedback_candidate("policy_blocks:spread=1", Fraction(1), actions=["a", "b"]).rule
    BestArm(spread=Fraction(1, 1), floor=Fraction(8, 1), name='best arm')
    """
    name, *parts = (part.strip() for part in text.split(":"))
    options = dict(part.partition("=")[::2] for part in parts)
    if name not in FEEDBACK_RECIPES or any(not value for value in options.values()):
        expected = f"name:option=value with a name of {', '.join(sorted(FEEDBACK_RECIPES))}"
        raise InvalidConfig(complaint("learners", "unknown", expected=expected, got=text))
    config = {"recipe": name, **options}
    if name not in BASELINES:
        if epsilon is None:
            raise InvalidConfig(
                complaint("epsilon", "no policy without noise", expected="thompson", got=name)
            )
        config["epsilon"] = str(epsilon)
    return feedback_learner_of(config, actions=actions)


def _outcome(
    environment: Environment,
    text: str,
    epsilon: Epsilon,
    *,
    runs: int,
    horizon: int,
    generator: Generator,
    delay: int,
    watch: Watch,
) -> FeedbackOutcome:
    """Simulate many runs of one learner, as many at once as fit in memory."""
    names = [str(arm) for arm in range(environment.arms)]
    learner = feedback_candidate(text, epsilon, actions=names)
    at_once = max(1, _VALUES // environment.arms)
    stops = learner.schedule.stops(np.arange(learner.schedule.block_of(horizon) + 1))
    policies = np.zeros((len(stops), environment.arms))
    experiment = Experiment.of(scales(learner), actions=environment.arms)
    regrets: list[Floats] = []  # runs × blocks: so far
    tell = watch(f"{text}, ε = {epsilon_text(epsilon)}, runs", runs)
    for first in range(0, runs, at_once):
        added = []
        for step in steps(
            environment,
            learner,
            min(at_once, runs - first),
            horizon=horizon,
            generator=generator,
            delay=delay,
        ):
            added.append(step.regret)
            policies[step.block] += step.policy.sum(axis=0)
            if not first and step.stop == stops[step.block]:  # a whole block of the first run
                experiment.add(step.gains, step.shown)
        regrets.append(np.cumsum(added, axis=0).T)
        tell(min(first + at_once, runs))
    so_far = np.concatenate(regrets)
    return FeedbackOutcome(
        environment,
        text,
        epsilon,
        so_far[:, -1],
        course=_course(np.minimum(stops - 1, horizon), so_far),
        shares=Shares(learner.schedule.starts(np.arange(len(stops))), policies / runs),
        arms=experiment.arms(),
    )


def _course(slots: Ints, so_far: Floats) -> Trajectory:
    """The regret over time, from runs × slots."""
    low, high = np.percentile(so_far, BAND, axis=0)
    return Trajectory(slots, so_far.mean(axis=0), low, high)


@dataclass(frozen=True, slots=True)
class Step:
    """One block of some runs."""

    block: int
    first: int  # the slots [first, stop)
    stop: int
    policy: Floats  # the policy in force: runs × K
    regret: Floats  # of each run
    gains: Ints  # what the first run releases at its end
    shown: Ints


def steps(
    environment: Environment,
    learner: PolicyLearner,
    runs: int,
    *,
    horizon: int,
    generator: Generator,
    delay: int = 0,
) -> Iterator[Step]:
    """Play some runs of one learner, all at once, block by block."""
    schedule = learner.schedule
    blocks = schedule.block_of(horizon) + 1
    if blocks > _MOST_BLOCKS:
        raise InvalidConfig(
            complaint("simulate", "too many blocks", expected=f"≤ {_MOST_BLOCKS}", got=blocks)
        )
    state = learner.nothing_known(runs)
    known_with: dict[int, _Feedback] = {}  # by the block at whose end it is known
    for block in range(blocks):
        slots = range(schedule.start(block) - 1, min(schedule.stop(block) - 1, horizon))
        policy = learner.policy(state, np.full(runs, block)) / PARTS
        regret = np.zeros(runs)
        nothing = _Feedback.none(runs, environment.arms)
        for known, part in _parts(schedule, block, slots, delay):
            for means, gaps, count in _stretches(environment, horizon, part):
                shown = generator.multinomial(count, policy)
                regret += shown @ gaps
                delayed = generator.binomial(shown, environment.late)
                for at, some in ((known, shown - delayed), (known + 1, delayed)):
                    drawn = _Feedback.drawn(some, means, environment, generator)
                    known_with[at] = known_with.get(at, nothing) + drawn
        seen = known_with.pop(block, nothing)
        gains, counts = _released(learner, seen, generator)
        yield Step(block, slots.start + 1, slots.stop + 1, policy, regret, gains[0], counts[0])
        state = learner.learned(state, gains, counts)


def _parts(schedule: Schedule, block: int, slots: range, delay: int) -> Iterator[tuple[int, range]]:
    """A block's slots, by the block at whose end their outcomes are known."""
    first = slots.start
    while first < slots.stop:
        stop = min(slots.stop, schedule.stop(block) - 1 - delay)
        if stop > first:
            yield block, range(first, stop)
            first = stop
        block += 1


def _stretches(
    environment: Environment, horizon: int, slots: range
) -> Iterator[tuple[Floats, Floats, int]]:
    """The means in some slots, each arm's gap, and the number of slots with them."""
    count = len(environment.stretches)
    borders = [horizon * at // count for at in range(count + 1)]
    gaps = gaps_of(environment.stretches, environment.yardstick)
    for at, (begin, end) in enumerate(pairwise(borders)):
        inside = min(end, slots.stop) - max(begin, slots.start)
        if inside > 0:
            yield np.array(environment.stretches[at]), gaps[at], inside


@dataclass(slots=True)
class _Feedback:
    """Shows and sums of centred gains (in losses) of some runs."""

    shown: Ints
    gains: Floats

    @classmethod
    def none(cls, runs: int, arms: int) -> _Feedback:
        return cls(np.zeros((runs, arms), dtype=np.int64), np.zeros((runs, arms)))

    @classmethod
    def drawn(
        cls, shown: Ints, means: Floats, environment: Environment, generator: Generator
    ) -> _Feedback:
        if environment.rewards == "bernoulli":
            return cls(shown, generator.binomial(shown, means) - 0.5 * shown)
        spread = np.sqrt(shown * means * (1 - means) / (1 + _CONCENTRATION))
        sums = shown * means + spread * generator.standard_normal(shown.shape)
        few = shown <= _ONE_BY_ONE
        alpha = np.broadcast_to(means * _CONCENTRATION, shown.shape)[few]
        draws = generator.beta(alpha, _CONCENTRATION - alpha, size=(_ONE_BY_ONE, len(alpha)))
        counted = np.arange(_ONE_BY_ONE)[:, None] < shown[few]
        sums[few] = (draws * counted).sum(axis=0)
        return cls(shown, np.clip(sums, 0, shown) - 0.5 * shown)

    def __add__(self, other: _Feedback) -> _Feedback:
        return _Feedback(self.shown + other.shown, self.gains + other.gains)


def _released(learner: PolicyLearner, seen: _Feedback, generator: Generator) -> tuple[Ints, Ints]:
    """The block's release: sums in grid units and counts, with noise."""
    sums = np.rint(seen.gains * UNIT).astype(np.int64)
    return (
        sums + _noise(learner.sums_scale, sums.shape, generator),
        seen.shown + _noise(learner.counts_scale, sums.shape, generator),
    )


def _noise(scale: Fraction | None, shape: tuple[int, ...], generator: Generator) -> Ints:
    """Discrete Laplace noise: the difference of two geometric draws."""
    if scale is None:
        return np.zeros(shape, dtype=np.int64)
    stop = -np.expm1(-1 / float(scale))
    noise: Ints = generator.geometric(stop, shape) - generator.geometric(stop, shape)
    return noise
