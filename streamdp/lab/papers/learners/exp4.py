"""The recipes with expert advice: Algorithms 2, 5, 6 and 7 of one paper, and a noise of our own.

- `experts_converted` (Algorithm 5): the followed expert's batch, Lap(1/ε); ε.
- `local_exp4` (Algorithm 6): every loss, Lap(1/ε); ε, locally.
- `batched_exp4`: a batch's cells with `cell` noise (default, ours): ε. With `printed` noise
  (Algorithm 2): N experts' sums; (ε, δ).
- `improved_batched_exp4`: the same, but `printed` noise follows the batch's weights (Algorithm 7).

Measured (N = 20, K = 5, 4,000 slots, ε = 1): the printed batched algorithms learn nothing at this
scale; local noise inside a batch has about half the regret of uniform play, cells a little less.

Reference: Asi, Raman & Talwar 2025, Algorithms 2, 5, 6 and 7, Theorems 5 and 6
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import log, sqrt

from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig
from streamdp.core.learners.leader import one_of, read_actions
from streamdp.lab.papers.learners.bandit import read_horizon
from streamdp.lab.papers.learners.converted import Number, conversion_of
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
    conversion = conversion_of(
        exact, base=base, tau=tau, constants="general", sigma=None, eta=None, gamma=None
    )
    slots = read_horizon(horizon, where="learner.horizon") or _HORIZON

    def begin() -> ExpertCourse:
        run = conversion.begun(rows=1, actions=count, horizon=slots)
        return MetaCourse(run, exact, conversion.tau)

    begin()
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

    begin()
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
    return _batched(
        actions, experts, epsilon, noise, delta, tau, horizon, (eta, gamma), adaptive=False
    )


@expert_recipe
def improved_batched_exp4(
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
    """EXP4 in batches, with printed noise that adapts to the weights of the batch.

    Privacy: ε-DP for replacing one record's content, (ε, δ)-DP with `printed` noise; advice must be
    public.
    Arguments: `noise` is `cell` or `printed`; `delta` goes with `printed` noise; `tau` is the
    batch; `horizon` the slots that constants are set for; `eta` and `gamma` replace them.
    Reference: Asi, Raman & Talwar 2025, Algorithm 7; the noise for each cell is ours.

    >>> improved_batched_exp4(
    ...     actions=["a", "b"], experts=2, epsilon="1", noise="printed", delta="1/1000000", tau=20
    ... ).delta
    Fraction(1, 1000000)
    """
    return _batched(
        actions, experts, epsilon, noise, delta, tau, horizon, (eta, gamma), adaptive=True
    )


def _batched(
    actions: Sequence[str],
    experts: str | int,
    epsilon: str | Fraction | int,
    noise: str,
    delta: str | Fraction | int | None,
    tau: str | int | None,
    horizon: str | int | None,
    given: tuple[Number, Number],
    *,
    adaptive: bool,
) -> ExpertLearner:
    names, exact = read_actions(actions), parse_epsilon(epsilon, "learner.epsilon")
    count = read_experts(experts)
    slots = read_horizon(horizon, where="learner.horizon") or _HORIZON
    batch = read_horizon(tau, where="learner.tau")
    if one_of(noise, NOISES, where="learner.noise") == "cell":
        if delta not in (None, "none"):
            raise InvalidConfig("learner.delta", "unused", expected="noise = printed", got=delta)
        length = batch or max(1, round(sqrt(slots) / 10))
        step, share = _given(*given, _cell_rates(slots, length, len(names), count, float(exact)))
        return ExpertLearner(
            names, count, exact, Fraction(0),
            _checked(lambda: CellCourse(Weights(count, step, share), exact, length)),
        )  # fmt: skip
    if delta is None or delta == "none":
        raise InvalidConfig(
            "learner.delta", "missing", expected="a δ for printed noise", got="none"
        )
    exact_delta = parse_epsilon(delta, "learner.delta")
    share_of_expert = printed_share(exact, exact_delta, experts=count)
    eta, length, gamma = batched_rates(
        slots, len(names), max(2, count), float(exact), float(exact_delta)
    )
    length = batch or length
    step, share = _given(*given, (eta, gamma))
    return ExpertLearner(
        names, count, exact, exact_delta,
        _checked(
            lambda: ExpertSumsCourse(
                Weights(count, step, share), share_of_expert, length, len(names), adaptive
            )
        ),
    )  # fmt: skip


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
    step = rates[0] if eta is None or eta == "none" else parse_epsilon(eta, "learner.eta")
    share = rates[1] if gamma is None or gamma == "none" else parse_epsilon(gamma, "learner.gamma")
    return float(step), float(share)


def _checked(begin: Callable[[], ExpertCourse]) -> Callable[[], ExpertCourse]:
    """Begin one run as a check, so that wrong constants are refused early."""
    begin()
    return begin
