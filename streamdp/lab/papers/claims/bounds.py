"""The printed bound of the prefix softmax, over a grid of worlds: is it ever exceeded?"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from streamdp.core.calibration import prefix_softmax_rate
from streamdp.core.regret import leader_bound, prefix_softmax_bound
from streamdp.lab.common.answer import standard_error
from streamdp.lab.common.cells import epsilon_text
from streamdp.lab.papers.claims import ClaimResult, Effort, Measured, Z
from streamdp.lab.papers.claims.growth import one_better, run
from streamdp.lab.simulation import PAPERS

GRID = tuple(
    product((2, 10, 100), (0.02, 0.1, 0.5), (Fraction(1, 20), Fraction(1, 4), Fraction(2)))
)


def never_exceeded(size: Effort) -> Measured:
    """The largest regret as a share of its bound, by learner."""
    few = Effort(max(50, size.runs // 4), size.seed)
    findings = []
    for learner in PAPERS:
        worst = (0.0, 0.0, "")
        for K, gap, budget in GRID:
            regret = run(learner, budget, one_better(K, gap), horizon=2**20, size=few).regret
            rate = float(budget) / 2
            if learner.startswith("prefix"):
                cap = None if "cap" in learner else Fraction(1, 8)
                eta = float(prefix_softmax_rate(budget, cap=cap).eta)
                bound = prefix_softmax_bound(actions=K, gap=gap, eta=eta)
            else:
                bound = leader_bound(actions=K, gap=gap, rate=rate)
            half = Z * standard_error(regret)
            mean = float(regret.mean())
            where = f"K = {K}, Δ = {gap}, ε = {epsilon_text(budget)}"
            worst = max(worst, ((mean + half) / bound, (mean - half) / bound, where))
        high, low, where = worst
        source = "Hu et al. 2025, Appendix D.2, at our rates"
        if learner.startswith("prefix"):
            source = "Cesari & Colomboni 2026, Theorem 1"
        findings.append(
            ClaimResult(
                "the printed bound is never exceeded",
                source,
                learner,
                f"regret / bound is at most 1 in {len(GRID)} worlds (K = 2, 10, 100;"
                " Δ = .02, .1, .5; ε = .05, .25, 2; T = 2^20)",
                f"at most {100 * high:.1f} % of the bound, at {where}",
                (low, high),
                few.runs * len(GRID),
                at_most=1.0,
            )
        )
    return Measured(findings)
