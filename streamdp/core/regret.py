"""Theorems about regret: functions of public numbers, which may be shown to anyone.

Nothing here is measured. Estimates (`core.kinds.estimates`) are: noisy releases, charged to their
slots like any other release. Exact regret `streamdp replay` computes offline, from a log of losses.

A gap Δ (how much worse the second-best action is in the mean) is configured; without one, bounds
hold for all gaps. All upper bounds are for losses in [0,1] that are independent and identically
distributed over time, and bound the expected pseudo-regret Σ_t E[Δ_{A_t}].

There are *printed* theorems with their constants, and `bound_of`, our own evaluation of the same
argument (Hoeffding, the noise's tail, a union over actions) for a learner's actual blocks, which
covers every schedule and the incumbent's bonus and is far below the printed constants.

K, Δ, η, ρ, T follow the papers: actions, gap, rate of a softmax, rate of a selection, horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, log, log2, sqrt
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.recipe import Selection
from streamdp.core.schedule import Schedule


def prefix_softmax_bound(*, actions: int, gap: float, eta: float) -> float:
    """The regret of the prefix softmax on dyadic blocks, at any horizon.

    Reference: Cesari & Colomboni 2026, Theorem 1, (1)

    1 + 800 ln K/Δ + 16 ln K/η. The theorem is stated for η ≤ 1/8; its proof uses that only if some
    gap exceeds 4η, hence only if η < 1/4, and then all steps still hold (ηΔ ≤ 1, ηV/4 < 1). So the
    bound covers the uncapped learner too.

    >>> round(prefix_softmax_bound(actions=10, gap=0.25, eta=0.125))
    7664
    """
    _check(actions, gap=gap, rate=eta)
    return 1 + 800 * log(actions) / gap + 16 * log(actions) / eta


def prefix_softmax_minimax(*, actions: int, horizon: int, eta: float) -> float:
    """The regret of the prefix softmax for every gap: 2√(800 T ln K) + 1 + 16 ln K/η, at most T.

    From Cesari & Colomboni 2026, Theorem 1, as in Hu et al. 2025, Corollary 11: actions with a gap
    below Δ* cost at most T·Δ*, and for the others Δ* takes the place of Δ; Δ* = √(800 ln K/T).
    """
    _check(actions, gap=None, rate=eta)
    gap_free = 1 + 2 * sqrt(800 * horizon * log(actions)) + 16 * log(actions) / eta
    return min(float(horizon), gap_free)


def leader_bound(*, actions: int, gap: float, rate: float) -> float:
    """The regret of a noisy leader on whole dyadic blocks, at any horizon.

    Reference: Hu et al. 2025, Appendix D.2
    Σ_ℓ 256 (1 + ln |J_ℓ|)/min{Δ_(ℓ), ρ} over the levels Δ_(ℓ) = 2^(ℓ−1) Δ ≤ 1 that hold any of
    the K − 1 other actions: the display before (55). Without knowing the gaps, |J_ℓ| ≤ K − 1 and
    at most K − 1 levels count. Their ε is 1/scale of the noise, hence our rate ρ; (51), on which
    it rests, holds for Laplace, exponential and Gumbel noise of scale 1/ρ (Wu & Wang
    2026, Lemma 16).

    >>> round(leader_bound(actions=2, gap=0.5, rate=0.25))
    1024
    """
    _check(actions, gap=gap, rate=rate)
    levels = [gap * 2**level for level in range(int(-log2(gap)) + 1)]
    costs = sorted((256 * (1 + log(actions - 1)) / min(x, rate) for x in levels), reverse=True)
    return float(sum(costs[: actions - 1]))


def resampled_leader_bound(*, actions: int, gap: float, rate: float) -> float:
    """The regret of a noisy leader with Bernoulli resampling and independent actions.

    Reference: Wu & Wang 2026, Theorem 3, without T
    512 (1 + ln(K − 1))/Δ + (64 ln K · H_K + 128)/ρ with the harmonic number H_K. The paper states
    the order O(ln K/Δ + ln² K/ε) only. We worked out the constants along its Appendix C, with
    P(A = j) ≤ 1/j for at most 4 ln K · 8/(Δ_j ρ) slots and (51) of Hu et al. 2025 after them; the
    sum in the last step there, Σ 2^(1−ℓ), is 2 and not 1 as printed.
    """
    _check(actions, gap=gap, rate=rate)
    harmonic = float((1 / np.arange(1, actions + 1)).sum())
    statistical = 512 * (1 + log(actions - 1)) / gap
    return statistical + (64 * log(actions) * harmonic + 128) / rate


def lower_bound(*, actions: int, gap: float, epsilon: float, horizon: int) -> float:
    """A regret that no ε-DP learner can beat on every instance of K ≥ 4 actions, gap Δ < 1/4.

    The larger of ln K/(44 Δ), once T ≥ ln K/(16 Δ²), and 0.0098 ln K/ε, once T ≥ ln K/(10 ε Δ).
    The second is Hu et al. 2025, Theorem 12: 0.2 · 0.49 · m Δ with m = ln K/(10 ε Δ), Appendix D.3.
    The first is Fano's inequality for K Bernoulli instances (1/2 but for the best, 1/2 − Δ): up to
    slot ln K/(16 Δ²) the information is at most 0.131 ln K, as kl(1/4, 1/2) < 2.1/16, so a wrong
    action is played with probability at least 1 − 0.131 − ln 2/ln 4 = 0.369, and 0.369/16 > 1/44.

    >>> lower_bound(actions=100, gap=0.1, epsilon=0.001, horizon=100)
    1.046...
    """
    _check(actions, gap=gap, rate=epsilon)
    if actions < 4 or gap >= 1 / 4:
        return 0.0
    statistical = log(actions) / (44 * gap) if horizon * 16 * gap**2 >= log(actions) else 0.0
    private = 0.0098 * log(actions) / epsilon
    return max(statistical, private if horizon * 10 * epsilon * gap >= log(actions) else 0.0)


def deterministic_lower_bound(*, actions: int, epsilon: float, horizon: int) -> float:
    """A regret that no ε-DP learner can beat even where losses are constants; K > 5.

    Reference: Wu & Wang 2026, Appendix E
    (1/ε) ln( e^(Tε) (3e^ε + K − 5) / (3e^((T+1)ε) + K − 5) ), written so that nothing overflows.
    For long horizons it tends to ln(1 + (K − 5)/(3e^ε))/ε.

    >>> deterministic_lower_bound(actions=1000, epsilon=0.5, horizon=10**9)
    10.61...
    """
    _check(actions, gap=None, rate=epsilon)
    if actions <= 5:
        return 0.0
    first = 3 + (actions - 5) * exp(-epsilon)
    last = 3 + (actions - 5) * exp(-epsilon * (horizon + 1))
    return log(first / last) / epsilon


class Bound(NamedTuple):
    """An upper bound on expected regret, and where it comes from."""

    regret: float
    source: str


def bound_of(learner: Kind, *, horizon: int, gap: float | None = None) -> Bound | None:
    """The best bound we can prove for a learner at a horizon: with a gap Δ, or (None) for all gaps.

    None for a learner that no theorem covers, because it does not select from sums of all losses.

    Besides the printed theorems: a block is played by an action that was selected from the n
    window slots of the block before. An action with gap x is selected with probability at most

        p(x) = min over θ in (0,1) of exp(−n (1−θ)² x²/2) + tail(ρ θ n x − c),

    since its sum leads the best one's by less than θ n x with at most the first probability
    (Hoeffding; differences lie in [−1, 1]), and otherwise noise and bonus must make up for it. So
    the block costs at most min over Δ* of Δ* + (K−1)·max_{x ≥ Δ*} x·p(x) a slot. A random prefix
    counts with its shortest length; resampling keeps means, ranges and independence. Where a memory
    weighs votes against earlier ones nothing is proven, and a slot counts as 1.
    """
    recipe, actions = learner.recipe, len(learner.actions)
    _check(actions, gap=gap)
    if recipe.selection is None:
        return None
    slots, lengths = _played(learner.schedule, recipe.selection, horizon)
    tail = _TAILS.get(recipe.mechanism)
    candidates = [Bound(float(horizon), "losses are at most 1")]
    if tail is not None and learner.releases[0].epsilon:
        costs = _costs(recipe.selection, tail, gap, actions=actions)
        distinct, which = np.unique(lengths, return_inverse=True)
        a_slot = np.array([costs(int(n)) for n in distinct])
        a_slot[distinct >= recipe.selection.since] = 1
        most = float(slots @ a_slot[which])
        first = horizon - int(slots.sum())
        candidates.append(Bound(first + most, "Hoeffding and union, our blocks"))
        candidates += _printed(learner, recipe.selection, horizon, gap)
    return min(candidates)


def _played(schedule: Schedule, selection: Selection, horizon: int) -> tuple[Floats, Ints]:
    """Of each block but the first: its slots up to the horizon, and its action's window."""
    blocks = np.arange(schedule.block_of(horizon) + 1)
    starts, stops = schedule.starts(blocks), schedule.stops(blocks)
    slots = np.minimum(stops, horizon + 1) - starts
    lengths = (stops - starts)[:-1]
    if selection.window == "random_prefix":
        lengths = lengths // 2 + 1
    return slots[1:].astype(np.float64), lengths


def _costs(
    selection: Selection, tail: Callable[[Floats], Floats], gap: float | None, *, actions: int
) -> Callable[[int], float]:
    """The function that bounds the cost of a slot whose action was selected from n slots.

    Gaps are taken on a grid: between two of its points x·p(x) is at most the upper x times the
    p of the lower, since p falls.
    """
    lowest = 1e-7 if gap is None else gap
    x = np.geomspace(lowest, 1, max(2, int(-100 * log(lowest)) + 2))
    theta = np.linspace(0.02, 0.98, 49)[:, None]
    rate, bonus = float(selection.rate), float(selection.bonus)

    def cost(n: int) -> float:
        leads = np.exp(-n * ((1 - theta) * x) ** 2 / 2)
        p = np.minimum(1, (leads + tail(rate * theta * n * x - bonus)).min(axis=0))
        upper = np.append(x[1:], 1) * p
        rest = (actions - 1) * np.maximum.accumulate(upper[::-1])[::-1]
        smaller = x if gap is None else np.where(x > gap, x, 0)
        return float(min(1, (smaller + rest).min()))

    return cost


def _printed(learner: Kind, selection: Selection, horizon: int, gap: float | None) -> list[Bound]:
    """The papers' theorems that cover exactly this learner."""
    actions, rate = len(learner.actions), float(selection.rate)
    if learner.schedule.name != "dyadic" or selection.bonus:
        return []
    limits = []
    if selection.window == "random_prefix" and learner.recipe.mechanism == "exponential":
        value = prefix_softmax_minimax(actions=actions, horizon=horizon, eta=rate)
        if gap is not None:
            value = min(value, prefix_softmax_bound(actions=actions, gap=gap, eta=rate))
        limits.append(Bound(value, "Cesari & Colomboni 2026, Theorem 1"))
    if selection.window == "whole" and gap is not None:
        value = leader_bound(actions=actions, gap=gap, rate=rate)
        limits.append(Bound(value, "Hu et al. 2025, Theorem 9"))
        if selection.resample == "bernoulli":
            value = resampled_leader_bound(actions=actions, gap=gap, rate=rate)
            limits.append(Bound(value, "Wu & Wang 2026, Theorem 3"))
    return limits


def _softmax(z: Floats) -> Floats:
    """At most e^−z: the odds against the best action at a lead of z."""
    return np.minimum(1, np.exp(-z))


def _one_sided(z: Floats) -> Floats:
    """P(E_j − E_1 ≥ z) = e^−z/2 for z ≥ 0: the difference of two exponential variables."""
    return np.where(z < 0, 1, np.exp(-np.maximum(z, 0)) / 2)


def _two_sided(z: Floats) -> Floats:
    """P(X_j − X_1 ≥ z) = e^−z (2 + z)/4 for z ≥ 0: the difference of two Laplace variables."""
    above = np.maximum(z, 0)
    return np.where(z < 0, 1, np.exp(-above) * (2 + above) / 4)


_TAILS: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType(
    {
        "exponential": _softmax,
        "permute_and_flip": _one_sided,
        "noisy_max_laplace": _two_sided,
    }
)


def _check(actions: int, *, gap: float | None, rate: float = 1.0) -> None:
    if actions < 2:
        raise InvalidConfig("regret.actions", "too few", expected="≥ 2", got=actions)
    if gap is not None and not 0 < gap <= 1:
        raise InvalidConfig("regret.gap", "out of range", expected="0 < Δ ≤ 1", got=gap)
    if not rate > 0:
        raise InvalidConfig("regret.rate", "out of range", expected="above 0", got=rate)
