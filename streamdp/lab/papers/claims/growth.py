"""How regret grows: not with T, with ln K, with 1/ε; and in the deterministic setting."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Floats
from streamdp.core.regret import deterministic_lower_bound
from streamdp.lab.common.answer import standard_error
from streamdp.lab.common.cells import epsilon_text, parse_candidate
from streamdp.lab.papers.claims import (
    SHOWN,
    ClaimResult,
    Curve,
    Effort,
    Measured,
    Picture,
    Z,
    ratio,
)
from streamdp.lab.play import Walk, walks
from streamdp.lab.worlds import World

LONG = 24
"""Slots, as a power of two, up to which the horizon goes."""

PREFIX = "Cesari & Colomboni 2026, Theorem 1"
NOISY = "Hu et al. 2025, Theorem 9"


def one_better(actions: int, gap: float) -> World:
    """Bernoulli losses around 1/2, one action better than all others by the gap."""
    return World("one better", ((1 - gap) / 2, *((1 + gap) / 2,) * (actions - 1)))


def run(learner: str, epsilon: Fraction, world: World, *, horizon: int, size: Effort) -> Walk:
    """A learner by its name in a world."""
    names = [str(action) for action in range(world.actions)]
    leader = parse_candidate(learner).at(epsilon, actions=names)
    (walk,) = walks([leader], world, horizon=horizon, runs=size.runs, seed=size.seed)
    return walk


def horizon(size: Effort) -> Measured:
    """Regret does not grow with T: what 2^24 slots add to the regret of 2^16."""
    K, gap, epsilon, short, long = 10, 0.1, Fraction(1, 4), 16, LONG
    findings, curves = [], []
    for learner in SHOWN:
        course = run(learner, epsilon, one_better(K, gap), horizon=2**long, size=size)
        late = course.starts >= 2**short
        costs = course.costs
        early, added = costs[~late].sum(axis=0), costs[late].sum(axis=0)
        share = added / early.mean()
        half = Z * standard_error(share)
        low, high = float(share.mean()) - half, float(share.mean()) + half
        findings.append(
            ClaimResult(
                "regret does not grow with T",
                f"{PREFIX}; {NOISY}; Wu & Wang 2026, Theorem 3",
                learner,
                f"from 2^{short} to 2^{long} slots it grows by at most 2 %"
                f" (K = {K}, Δ = {gap}, ε = {epsilon_text(epsilon)})",
                f"{early.mean():.1f} after 2^{short}, {added.mean():.2f} more by 2^{long};"
                f" {int((added > 0).sum())} runs played a wrong action after 2^{short}",
                (low, high),
                size.runs,
                at_most=0.02,
            )
        )
        total = np.cumsum(costs.mean(axis=1))
        ends = (course.starts + course.lengths - 1).astype(float)
        curves.append(Curve(learner, ends.tolist(), total.tolist()))
    title = f"Regret over time, K = {K}, Δ = {gap}, ε = {epsilon_text(epsilon)}"
    return Measured(findings, Picture(title, "slots", "regret", curves))


def actions(size: Effort) -> Measured:
    """Regret grows like ln K at most: R/ln K hardly moves from K = 8 to K = 1024."""
    counts, gap, epsilon, slots = (2, 8, 32, 128, 1024), 0.25, Fraction(1, 4), 2**18
    logs = np.log(1024) / np.log(8)
    findings, curves = [], []
    for learner in SHOWN:
        regrets = {
            K: run(learner, epsilon, one_better(K, gap), horizon=slots, size=size).regret
            for K in counts
        }
        value, low, high = (bound / logs for bound in ratio(regrets[1024], regrets[8]))
        findings.append(
            ClaimResult(
                "regret grows like ln K",
                f"{PREFIX}; {NOISY} (ln K once gaps are equal)",
                learner,
                f"R/ln K at K = 1024 is at most 1.5 times that at K = 8, where ln² K would give"
                f" 3.3 (Δ = {gap}, ε = {epsilon_text(epsilon)})",
                f"{value:.2f} times; R is {regrets[8].mean():.1f} and {regrets[1024].mean():.1f}",
                (low, high),
                size.runs,
                at_most=1.5,
            )
        )
        curves.append(_curve(learner, {float(np.log(K)): regret for K, regret in regrets.items()}))
    title = f"Regret against ln K, Δ = {gap}, ε = {epsilon_text(epsilon)}"
    return Measured(findings, Picture(title, "ln K", "regret", curves, linear=True))


def epsilon(size: Effort) -> Measured:
    """Regret is like 1/ε for small ε, and no longer depends on it for large ones."""
    K, gap, slots = 10, 0.25, 2**20
    budgets = [Fraction(1, 64), Fraction(1, 32), Fraction(1, 8), Fraction(1, 2)]
    budgets += [Fraction(2), Fraction(8), Fraction(16)]
    small, large, curves = [], [], []
    for learner in SHOWN:
        regrets = {
            float(budget): run(learner, budget, one_better(K, gap), horizon=slots, size=size).regret
            for budget in budgets
        }
        value, low, high = ratio(regrets[1 / 64], regrets[1 / 32])
        flat, flat_low, flat_high = ratio(regrets[16.0], regrets[8.0])
        small.append(
            ClaimResult(
                "regret is like 1/ε for small ε",
                f"{PREFIX}; {NOISY} and 12",
                learner,
                f"R(ε = 1/64) / R(ε = 1/32) lies in [1.7, 2.3] (K = {K}, Δ = {gap})",
                f"ratio {value:.2f}; {regrets[1 / 64].mean():.0f} and {regrets[1 / 32].mean():.0f}",
                (low, high),
                size.runs,
                at_least=1.7,
                at_most=2.3,
            )
        )
        large.append(
            ClaimResult(
                "privacy is free for large ε",
                f"{PREFIX}; {NOISY}: ln K/Δ remains",
                learner,
                f"R(ε = 16) / R(ε = 8) lies in [0.8, 1.25] (K = {K}, Δ = {gap})",
                f"ratio {flat:.2f}; {regrets[16.0].mean():.1f} and {regrets[8.0].mean():.1f}",
                (flat_low, flat_high),
                size.runs,
                at_least=0.8,
                at_most=1.25,
            )
        )
        curves.append(_curve(learner, regrets))
    title = f"Regret against ε, K = {K}, Δ = {gap}"
    return Measured([*small, *large], Picture(title, "ε", "regret", curves))


def deterministic(size: Effort) -> Measured:
    """Losses (0, Δ, Δ, 1, …, 1) in every slot: regret is Θ(ln K/ε)."""
    gap, slots = 0.1, 2**16
    few = Effort(max(100, size.runs // 4), size.seed)
    findings, curves = [], []
    for budget in (Fraction(1, 10), Fraction(1)):
        for learner in SHOWN[2:]:
            regrets = {
                K: run(learner, budget, _worst(K, gap), horizon=slots, size=few).regret
                for K in _COUNTS
            }
            findings.append(_order(learner, budget, regrets, gap=gap, horizon=slots))
            if budget == 1:
                at = {float(np.log(K)): regret for K, regret in regrets.items()}
                curves.append(_curve(learner, at))
    title = f"Deterministic losses (0, {gap}, {gap}, 1, …), ε = 1"
    return Measured(findings, Picture(title, "ln K", "regret", curves, linear=True))


_COUNTS = (16, 64, 256, 1024, 4096)


def _order(
    learner: str, budget: Fraction, regrets: dict[int, Floats], *, gap: float, horizon: int
) -> ClaimResult:
    """Whether regret is of the order ln K/ε, and above what no learner can beat."""
    logs = np.log(4096) / np.log(16)
    value, low, high = (bound / logs for bound in ratio(regrets[4096], regrets[16]))
    least = min(
        (regret.mean() - Z * standard_error(regret))
        / deterministic_lower_bound(actions=K, epsilon=float(budget), horizon=horizon)
        for K, regret in regrets.items()
    )
    scaled = [float(budget) * regret.mean() / np.log(K) for K, regret in regrets.items()]
    source = "Wu & Wang 2026, Theorems 7 and 11"
    if "laplace" in learner:
        source += " (open there for Laplace)"
    return ClaimResult(
        "deterministic setting: Θ(ln K/ε)",
        source,
        learner,
        "R/ln K at K = 4096 is 1/1.5 to 1.5 times that at K = 16, where ln² K would give 3; never"
        f" below the lower bound (Δ = {gap}, ε = {epsilon_text(budget)})",
        f"{value:.2f} times; ε R/ln K is {min(scaled):.2f} … {max(scaled):.2f}; R is at least"
        f" {least:.1f} times the lower bound",
        (low, high),
        len(regrets[16]),
        at_least=1 / 1.5,
        at_most=1.5 if least >= 1 else -np.inf,
    )


def _worst(actions: int, gap: float) -> World:
    """The same losses in every slot: a world with one outcome."""
    return World("worst", (1.0,), (), ((0.0, gap, gap, *(1.0,) * (actions - 3)),))


def _curve(name: str, regrets: dict[float, Floats]) -> Curve:
    mean = np.array([regret.mean() for regret in regrets.values()])
    half = np.array([Z * standard_error(regret) for regret in regrets.values()])
    return Curve.around(name, np.array(list(regrets)), mean, half, whiskers=True)
