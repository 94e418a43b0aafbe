"""The recipes with expert advice: Algorithms 2, 5, 6 and 7 of one paper, and a noise of our own.

- `experts_converted` (Algorithm 5): the followed expert's batch, Lap(1/ε); ε.
- `local_exp4` (Algorithm 6): every loss, Lap(1/ε); ε, locally.
- `batched_exp4`: a batch's cells with `cell` noise (default, ours): ε. With `printed` noise
  (Algorithm 2): N experts' sums; (ε, δ).
- `improved_batched_exp4`: printed noise that follows the batch's weights (Algorithm 7); (ε, δ).

Measured (N = 20, K = 5, 4,000 slots, ε = 1): the printed batched algorithms learn nothing at this
scale; local noise inside a batch has about half the regret of uniform play, cells a little less.

Reference: Asi, Raman & Talwar 2025, Algorithms 2, 5, 6 and 7, Theorems 5 and 6
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import log, sqrt

from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig
from streamdp.core.learners.leader import one_of, read_actions
from streamdp.lab.papers.learners.bandit import Number, read_horizon, read_number
from streamdp.lab.papers.learners.converted import conversion_of
from streamdp.lab.papers.learners.experts import (
    CellCourse,
    ExpertCourse,
    ExpertLearner,
    ExpertSumsCourse,
    LocalCourse,
    MetaCourse,
    Weights,
    batched_rates,
    expert_recipe,
    local_rates,
    printed_share,
    read_experts,
)

NOISES = ("cell", "printed")
_HORIZON = 10**6


@expert_recipe
def experts_converted(
    *,
    actions: Sequence[str],
    experts: str | int,
    epsilon: str | Fraction | int,
    base: str = "htinf",
    tau: str | int | None = None,
    horizon: str | int | None = None,
) -> ExpertLearner:
    """A private bandit whose arms are the experts.

    Privacy: ε-DP for replacing one record's content; advice must be public.
    Arguments: `base` is `htinf`, `exp3` or `ftpl`; `tau` is the batch; `horizon` the slots that
    constants are set for.
    Reference: Asi, Raman & Talwar 2025, Algorithm 5.

    >>> str(experts_converted(actions=["a", "b"], experts=3, epsilon="1"))
    'experts_converted(experts=3, epsilon=1, base=htinf) of 2 actions'
    """
    names, exact = read_actions(actions), parse_epsilon(epsilon, "learner.epsilon")
    count = read_experts(experts)
    conversion = conversion_of(exact, base=base, tau=tau)
    slots = read_horizon(horizon, where="learner.horizon") or _HORIZON

    def begin() -> ExpertCourse:
        run = conversion.begun(rows=1, actions=count, horizon=slots)
        return MetaCourse(run, exact, conversion.tau)

    return ExpertLearner(names, count, exact, Fraction(0), begin)


@expert_recipe
def local_exp4(
    *,
    actions: Sequence[str],
    experts: str | int,
    epsilon: str | Fraction | int,
    horizon: str | int | None = None,
    eta: Number = None,
    gamma: Number = None,
) -> ExpertLearner:
    """EXP4 on losses that are noisy one by one.

    Privacy: ε-DP for replacing one record's content, locally; advice must be public.
    Arguments: `horizon` is the slots that constants are set for; `eta` and `gamma` replace them.
    Reference: Asi, Raman & Talwar 2025, Algorithm 6.

    >>> local_exp4(actions=["a", "b"], experts=2, epsilon="1").charge
    Fraction(1, 1)
    """
    names, exact = read_actions(actions), parse_epsilon(epsilon, "learner.epsilon")
    count = read_experts(experts)
    slots = read_horizon(horizon, where="learner.horizon") or _HORIZON
    rates = local_rates(slots, len(names), max(2, count), float(exact))
    step, share = _given(eta, gamma, rates)

    def begin() -> ExpertCourse:
        return LocalCourse(Weights(count, step, share), exact)

    return ExpertLearner(names, count, exact, Fraction(0), begin)


@expert_recipe
def batched_exp4(
    *,
    actions: Sequence[str],
    experts: str | int,
    epsilon: str | Fraction | int,
    noise: str = "cell",
    delta: str | Fraction | int | None = None,
    tau: str | int | None = None,
    horizon: str | int | None = None,
    eta: Number = None,
    gamma: Number = None,
) -> ExpertLearner:
    """EXP4 in batches.

    Privacy: ε-DP for replacing one record's content, (ε, δ)-DP with `printed` noise; advice must be
    public.
    Arguments: `noise` is `cell` or `printed`; `delta` goes with `printed` noise; `tau` is the
    batch; `horizon` the slots that constants are set for; `eta` and `gamma` replace them.
    Reference: Asi, Raman & Talwar 2025, Algorithm 2; the noise for each cell is ours.

    >>> batched_exp4(actions=["a", "b"], experts=2, epsilon="1", tau=20).delta
    Fraction(0, 1)
    """
    names, exact = read_actions(actions), parse_epsilon(epsilon, "learner.epsilon")
    if one_of(noise, NOISES, where="learner.noise") == "printed":
        return _printed(names, experts, exact, delta, tau, horizon, eta, gamma, adaptive=False)
    if delta not in (None, "none"):
        raise InvalidConfig("learner.delta", "unused", expected="noise = printed", got=delta)
    count = read_experts(experts)
    slots = read_horizon(horizon, where="learner.horizon") or _HORIZON
    length = read_horizon(tau, where="learner.tau") or max(1, round(sqrt(slots) / 10))
    rates = _cell_rates(slots, length, len(names), count, float(exact))
    step, share = _given(eta, gamma, rates)

    def begin() -> ExpertCourse:
        return CellCourse(Weights(count, step, share), exact, length)

    return ExpertLearner(names, count, exact, Fraction(0), begin)


@expert_recipe
def improved_batched_exp4(
    *,
    actions: Sequence[str],
    experts: str | int,
    epsilon: str | Fraction | int,
    delta: str | Fraction | int,
    tau: str | int | None = None,
    horizon: str | int | None = None,
    eta: Number = None,
    gamma: Number = None,
) -> ExpertLearner:
    """EXP4 in batches, with noise for each expert that adapts to the weights of the batch.

    Privacy: (ε, δ)-DP for replacing one record's content, ε-DP if there are few experts; advice
    must be public.
    Arguments: `delta` is δ; `tau` is the batch; `horizon` the slots that constants are set for;
    `eta` and `gamma` replace them.
    Reference: Asi, Raman & Talwar 2025, Algorithm 7.

    >>> improved_batched_exp4(
    ...     actions=["a", "b"], experts=2, epsilon="1", delta="1/1000000", tau=20
    ... ).delta
    Fraction(1, 1000000)
    """
    names, exact = read_actions(actions), parse_epsilon(epsilon, "learner.epsilon")
    return _printed(names, experts, exact, delta, tau, horizon, eta, gamma, adaptive=True)


def _printed(
    names: tuple[str, ...],
    experts: str | int,
    epsilon: Fraction,
    delta: str | Fraction | int | None,
    tau: str | int | None,
    horizon: str | int | None,
    eta: Number,
    gamma: Number,
    *,
    adaptive: bool,
) -> ExpertLearner:
    """Noisy sums of all experts, tuned as Theorem 6 says."""
    if delta is None or delta == "none":
        expected = "a δ for printed noise"
        raise InvalidConfig("learner.delta", "missing", expected=expected, got="none")
    count, exact_delta = read_experts(experts), parse_epsilon(delta, "learner.delta")
    slots = read_horizon(horizon, where="learner.horizon") or _HORIZON
    share_of_expert = printed_share(epsilon, exact_delta, experts=count)
    own_step, own_length, own_share = batched_rates(
        slots, len(names), max(2, count), float(epsilon), float(exact_delta)
    )
    length = read_horizon(tau, where="learner.tau") or own_length
    step, share = _given(eta, gamma, (own_step, own_share))

    def begin() -> ExpertCourse:
        weights = Weights(count, step, share)
        return ExpertSumsCourse(weights, share_of_expert, length, len(names), adaptive)

    return ExpertLearner(names, count, epsilon, exact_delta, begin)


def _cell_rates(
    horizon: int, tau: int, actions: int, experts: int, epsilon: float
) -> tuple[float, float]:
    """η for B batches, and a tenth of the plays at random.

    A batch's estimate of an expert's mean loss has a second moment of about 1 + K/τ from sampling
    and 2·(K/(ετ))² from noise.
    """
    batches = max(1, horizon // tau)
    moment = 1 + actions / tau + 2 * (actions / (epsilon * tau)) ** 2
    return sqrt(2 * log(max(2, experts)) / (batches * moment)), 0.1


def _given(eta: Number, gamma: Number, rates: tuple[float, float]) -> tuple[float, float]:
    """η and γ: the given ones, or else the computed ones."""
    step, share = read_number(eta, where="learner.eta"), read_number(gamma, where="learner.gamma")
    return step or rates[0], share or rates[1]
