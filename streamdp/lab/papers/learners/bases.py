"""Adversarial bandit algorithms that are not private themselves; a conversion makes them private.

A base plays many runs (rows) in lockstep for simulations; a stream is one row. It gets the loss of
the arm that it drew, averaged over a batch and with noise: `noise` is the scale λ of that Laplace
noise, and `rounds` the number of batches that its constants are set for.
"""

from __future__ import annotations

from math import log, sqrt
from typing import Protocol

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import refuse
from streamdp.lab.papers.learners.bandit import Chance


class Base(Protocol):
    """A bandit algorithm in rows; its state is public."""

    def draw(self, chance: Chance) -> Ints:
        """The arm of each row."""
        ...

    def learn(self, arms: Ints, losses: Floats, chance: Chance) -> None:
        """Learn the loss of each row's arm."""
        ...


class Exp3:
    """EXP3 with mixing: P = (1 − γ)·softmax(−η L̂) + γ/K, L̂ weighted by 1/P.

    Reference: Auer et al. 2002; as in Asi, Raman & Talwar 2025, Algorithm 3
    """

    __slots__ = ("chances", "eta", "gamma", "losses")

    def __init__(self, rows: int, actions: int, *, eta: float, gamma: float) -> None:
        check_gamma(gamma, remedy="more batches, fewer actions, or HTINF")
        self.eta, self.gamma = eta, gamma
        self.losses = np.zeros((rows, actions))
        self.chances = np.full((rows, actions), 1 / actions)

    def draw(self, chance: Chance) -> Ints:
        """An arm of each row from its distribution."""
        return drawn(self.chances, chance)

    def learn(self, arms: Ints, losses: Floats, chance: Chance) -> None:
        """Importance-weighted losses, exponential weights."""
        rows = np.arange(len(arms))
        self.losses[rows, arms] += losses / self.chances[rows, arms]
        self.chances = mixed(softmax(-self.eta * self.losses), self.gamma)


def exp3_rates(rounds: int, actions: int, noise: float) -> tuple[float, float]:
    """η and γ for noise of any scale λ; for λ = 1 they are the paper's.

    Corollary 1 prints η = √(ln K/(22 B K ln²(BK))) with B = εT; its proof needs
    √(ln K/(2BK(1 + 10 max(λ², λ) ln²(BK)))).
    """
    spread = log(actions * rounds)
    lost = 2 * rounds * actions * (1 + 10 * max(noise**2, noise) * spread**2)
    eta = sqrt(log(actions) / lost)
    return eta, 4 * eta * noise * actions * spread


def printed_exp3_rates(product: float, actions: int) -> tuple[float, float]:
    """η and γ as Corollary 1 prints them, of the product εT."""
    spread = log(product * actions)
    eta = sqrt(log(actions) / (22 * product * actions * spread**2))
    return eta, 4 * eta * actions * spread


_HTINF_ROUNDS = 60
HTINF_SKIP = 1 - 2 ** (-1 / 3)
"""Θ at α = 2: min{1 − 2^(−(α−1)/(2α−1)), (2 − 2/α)^(1/(2−α))}."""


class Htinf:
    """HTINF with α = 2: FTRL with Σ√x for heavy tails; skips losses that are too large.

    Reference: Huang, Dai & Huang 2022, Algorithm 1
    """

    __slots__ = ("chances", "losses", "sigma", "time")

    def __init__(self, rows: int, actions: int, *, sigma: float) -> None:
        self.sigma, self.time = sigma, 1
        self.losses = np.zeros((rows, actions))
        self.chances = np.full((rows, actions), 1 / actions)

    def draw(self, chance: Chance) -> Ints:
        """An arm of each row from its distribution."""
        return drawn(self.chances, chance)

    def learn(self, arms: Ints, losses: Floats, chance: Chance) -> None:
        """Skip losses beyond Θσ√(t x), weight others by 1/x, and solve for the distribution."""
        rows = np.arange(len(arms))
        own = self.chances[rows, arms]
        kept = np.abs(losses) <= HTINF_SKIP * self.sigma * np.sqrt(self.time * own)
        self.losses[rows, arms] += np.where(kept, losses / own, 0.0)
        self.time += 1
        self.chances = tsallis(self.losses / (self.sigma * sqrt(self.time)))


def tsallis(scaled: Floats) -> Floats:
    """Rows x with x_i = (s_i − λ)^−2 that add up to 1, by Newton's method from below.

    >>> tsallis(np.array([[0.0, 0.0], [0.0, 1e6]])).round(3).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    least = scaled.min(axis=1)
    shift = least - 1.0  # the smallest alone has at most 1 there: Σ ≥ 1, and Newton goes down
    for _ in range(_HTINF_ROUNDS):
        inverse = 1 / (scaled - shift[:, None])
        total = (inverse**2).sum(axis=1)
        step = (total - 1) / (2 * (inverse**3).sum(axis=1))
        shift -= step
        if (step <= 1e-12 * np.abs(shift - least)).all():
            break
    x = (scaled - shift[:, None]) ** -2.0
    chances: Floats = x / x.sum(axis=1, keepdims=True)
    return chances


class Ftpl:
    """FTPL with Laplace perturbations of scale 1/η, and geometric resampling for 1/P.

    Differs from the paper (its Algorithm 4): the arm is the argmin in both places, where an argmax
    is printed in the second; and where none of M resamples hits, the estimate is M, not 0.
    Resampling reads released numbers only, so its duration tells nothing about the data.

    Reference: Neu & Bartók 2016
    """

    __slots__ = ("eta", "losses", "most")

    def __init__(self, rows: int, actions: int, *, eta: float, most: int) -> None:
        self.eta, self.most = eta, most
        self.losses = np.zeros((rows, actions))

    def draw(self, chance: Chance) -> Ints:
        """The least perturbed loss of each row."""
        return self._least(self.losses, chance)

    def learn(self, arms: Ints, losses: Floats, chance: Chance) -> None:
        """Weight by the number of draws until the arm comes again."""
        rows = np.arange(len(arms))
        times = np.full(len(arms), self.most)
        open_, done = rows, 0
        while len(open_) and done < self.most:
            again = self._least(self.losses[open_], chance)
            done += 1
            hit = again == arms[open_]
            times[open_[hit]] = done
            open_ = open_[~hit]
        self.losses[rows, arms] += losses * times

    def _least(self, losses: Floats, chance: Chance) -> Ints:
        u = chance.uniform(*losses.shape) - 0.5
        noise = -np.sign(u) * np.log1p(-2 * np.abs(u)) / self.eta
        arms: Ints = (losses + noise).argmin(axis=1)
        return arms


def ftpl_rates(rounds: int, actions: int, noise: float) -> tuple[float, int]:
    """η and M of Lemma 13, for any λ; Corollary 3 prints them for λ = 1 and B = εT."""
    most = max(1, round(sqrt(actions * rounds)))
    spread = log(actions * rounds)
    product = actions * rounds
    eta = sqrt(log(actions) / (product + 10 * product * noise**2 * spread**2))
    return min(eta, 1 / (most * (1 + 4 * noise * log(rounds)))), most


def drawn(chances: Floats, chance: Chance) -> Ints:
    """An index of each row, drawn from its distribution."""
    upto = np.cumsum(chances, axis=1)
    u = chance.uniform(len(chances))[:, None] * upto[:, -1:]
    arms: Ints = (upto <= u).sum(axis=1)
    return arms


def softmax(scores: Floats) -> Floats:
    """Rows of exp(s) that add up to 1."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances: Floats = weights / weights.sum(axis=1, keepdims=True)
    return chances


def check_gamma(gamma: float, *, remedy: str) -> None:
    """Refuse a γ that is no share."""
    if not 0 < gamma <= 1:
        refuse("learner.gamma", "out of range", f"0 < γ ≤ 1: {remedy}", f"{gamma:.3g}")


def mixed(chances: Floats, gamma: float) -> Floats:
    """(1 − γ)·P + γ/K."""
    out: Floats = (1 - gamma) * chances + gamma / chances.shape[1]
    return out
