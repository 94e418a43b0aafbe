"""What Bernoulli resampling is for: an example, and the order of the selection probabilities."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - losses are made up: no secret
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.grid import quantise
from streamdp.core.kinds.losses import resampled
from streamdp.core.learners import Leader
from streamdp.core.randomness import Bits, Purpose, SeededRandomness
from streamdp.lab.common.cells import Epsilon, epsilon_text, parse_candidate
from streamdp.lab.papers.claims import ClaimResult, Effort, Measured, Z

Losses = NDArray[np.float32]

MANY = 50
"""Selections for each run of the other claims: these cost next to nothing."""

NOISES = ("laplace", "gumbel", "exponential")


def example(size: Effort) -> Measured:
    """0.3 against {0.4 with probability 0.8, 0 else}, after one slot and without privacy."""
    findings = []
    printed = "Wu & Wang 2026, §3.1, as printed"
    rule = "P(J = 2) after one slot, ε = ∞"
    for source, often, seldom in (
        (printed, 0.4, 0.0),
        ("Wu & Wang 2026, §3.1, mirrored: {0.2 with probability 0.8, 0.9 else}", 0.2, 0.9),
    ):
        for resample, claimed in (("none", 0.8), ("bernoulli", None)):
            low, high, share, n = _wrong(size, often, seldom, resample)
            at = (claimed - 0.02, claimed + 0.02) if claimed else (0.0, 0.5)
            said = f"is {claimed}" if claimed else "is at most 1/2"
            findings.append(
                ClaimResult(
                    "without resampling the wrong action leads"
                    if claimed
                    else "resampling sets it right",
                    source,
                    f"noisy_leader:resample={resample}",
                    f"{rule} {said}",
                    f"{share:.3f}",
                    (low, high),
                    n,
                    at_least=at[0],
                    at_most=at[1],
                )
            )
    return Measured(findings)


def _wrong(
    size: Effort, often: float, seldom: float, resample: str
) -> tuple[float, float, float, int]:
    """How often the second action is selected after one slot, though the first is better."""
    n = MANY * size.runs
    generator = default_rng(size.seed)
    losses = np.full((n, 2), 0.3, dtype=np.float32)
    losses[:, 1] = np.where(generator.random(n) < 0.8, often, seldom)
    assert losses[:, 1].mean(dtype=float) > 0.3
    leader = _leader("gumbel", None, actions=2)
    chosen = _select(leader, losses[:, None, :], size, resample=resample)
    share = float((chosen == 1).mean())
    half = Z * np.sqrt(share * (1 - share) / n)
    return share - half, share + half, share, n


def monotonicity(size: Effort) -> Measured:
    """Under resampling P(J = j) ≤ 1/j with the actions in the order of their means."""
    findings = []
    for budget in (Fraction(2), None):
        for noise in NOISES:
            low, high, j, share, n = _worst_share(size, noise, budget, "bernoulli")
            _, _, i, plain, _ = _worst_share(size, noise, budget, "none")
            findings.append(
                ClaimResult(
                    "P(J = j) ≤ 1/j under resampling",
                    "Wu & Wang 2026, Lemma 6",
                    f"noisy_leader:noise={noise}:resample=bernoulli",
                    f"the largest j · P(J = j), j ≥ 2, after blocks of 1, 4, 16 slots is at most 1"
                    f" (K = 6, skewed losses, ε = {epsilon_text(budget)})",
                    f"{j} · {share:.3f}; without resampling {i} · {plain:.3f}",
                    (low, high),
                    n,
                    at_most=1,
                )
            )
    return Measured(findings)


def _worst_share(
    size: Effort, noise: str, budget: Epsilon, resample: str
) -> tuple[float, float, int, float, int]:
    """The largest j·P(J = j) over j ≥ 2 and blocks, with its interval."""
    n, K, worst = 10 * size.runs, 6, (-1.0, 0, 0.0)
    generator = default_rng(size.seed)
    leader = _leader(noise, budget, actions=K)
    for slots in (1, 4, 16):
        chosen = _select(leader, _skewed(generator, n, slots, K), size, resample=resample)
        shares = np.bincount(chosen, minlength=K) / n
        at = 1 + int((shares * np.arange(1, K + 1))[1:].argmax())
        worst = max(worst, (float(shares[at]) * (at + 1), at + 1, float(shares[at])))
    value, j, share = worst
    half = j * Z * float(np.sqrt(share * (1 - share) / n))
    return value - half, value + half, j, share, n


def _skewed(generator: Generator, n: int, slots: int, actions: int) -> Losses:
    """The first action's loss is 1/2; the others' are .45 more often than not, and worse in mean.

    The mean of action j (from 0) is .5 + .03 j: .45 with probability .6, else (.23 + .03 j)/.4.
    """
    losses = np.full((n, slots, actions), 0.5, dtype=np.float32)
    for j in range(1, actions):
        seldom = generator.random((n, slots)) < 0.4
        losses[:, :, j] = np.where(seldom, (0.23 + 0.03 * j) / 0.4, 0.45)
    return losses


def _leader(noise: str, budget: Epsilon, *, actions: int) -> Leader:
    names = [str(action) for action in range(actions)]
    return parse_candidate(f"noisy_leader:noise={noise}").at(budget, actions=names)


def _select(leader: Leader, losses: Losses, size: Effort, *, resample: str) -> Ints:
    """One selection from each block of losses (n × slots × K)."""
    n, slots, K = losses.shape
    flat = losses.reshape(n * slots, K)
    if resample == "bernoulli":
        flat = resampled(flat, _bits(size, Purpose.RESAMPLE, n * slots))
    grid, _ = quantise(flat)
    sums = grid.reshape(n, slots, K).sum(axis=1)
    return leader.choose.select(sums, _bits(size, Purpose.SELECTION, n))


def _bits(size: Effort, purpose: Purpose, rows: int) -> Bits:
    tags = np.zeros((rows, 16), dtype=np.uint8)
    return SeededRandomness(size.seed).bits("claims", purpose, tags, np.arange(rows))
