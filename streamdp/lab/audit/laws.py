"""The exact law of a release, and what its random words say it must be, by the textbook.

A release is either a private *choice* from K sums, or *noisy* numbers. For both there is a closed
form of the law, of the cost of a difference between neighbours, and of the drawn value: one float
logarithm for each random word, trusted only as far as rounding errors allow. Nothing here is shared
with the code that draws, except `Mechanism.log_probabilities`, which `sampler` holds against draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import exp, inf

import numpy as np

from streamdp.core.arrays import Bools, Floats, Ints, Words
from streamdp.core.grid import UNIT
from streamdp.core.selection import Mechanism, Prior

TOLERANCE = 1e-9
"""How far above its charge a log-ratio may be computed, in nats: rounding, not privacy."""

_MARGIN = 1e-6  # by how much a key must be ahead to be trusted; rounding is below 1e-11
_ROUNDING = 2.0**-48, 2.0**-50  # of −scale·ln V by floats: of its value, and of the scale
_QUANTILES = (-2.5, -1.5, -0.8, -0.35, 0.0, 0.35, 0.8, 1.5, 2.5)  # of the noise, in scales


@dataclass(frozen=True, slots=True)
class Choice:
    """One of K actions for each row, by a mechanism, from sums and a public prior."""

    mechanism: Mechanism
    sums: Ints  # R × K
    prior: Prior | None

    @property
    def words(self) -> int:
        """How many random words a row's draw reads first."""
        return int(self.sums.shape[1])

    @property
    def known(self) -> bool:
        """Whether the textbook has the mechanism."""
        return _noise_of_choice(self.mechanism.name, np.zeros((1, 2), np.uint64)) is not None

    def broken(self, released: Ints, words: Words) -> Bools:
        """Which rows released something else than these words say."""
        mechanism = self.mechanism
        plain = plain_winners(mechanism.name, mechanism.rate, self.sums, words, self.prior)
        if plain is None:
            return np.zeros(len(self.sums), dtype=np.bool_)
        return np.asarray((plain[0] != released[:, 0]) & plain[1])

    def of_row(self, row: int) -> Floats:
        """ln of the chance of each action."""
        prior = None if self.prior is None else self.prior.part(row, row + 1)
        return self.mechanism.log_probabilities(self.sums[row], prior)

    def log_probability(self, released: Ints) -> Floats:
        """ln of the chance of what each row released."""
        chosen = enumerate(released[:, 0].tolist())
        return np.array([self.of_row(row)[action] for row, action in chosen])

    def widest(self) -> float:
        """The largest log-ratio of what two rows release."""
        logs = np.array([self.of_row(row) for row in range(len(self.sums))])
        return float(np.ptp(logs, axis=0).max()) if np.isfinite(logs).all() else inf


@dataclass(frozen=True, slots=True)
class Noisy:
    """Numbers with independent discrete Laplace noise; a scale of None: no noise."""

    exact: Ints  # R × width
    parts: tuple[tuple[int, Fraction | None], ...]
    """So many numbers in a row have noise of this scale, in their units."""
    beyond: Bools | None = None  # R × width: numbers of no table, which have no noise

    @property
    def known(self) -> bool:
        """The textbook has the noise."""
        return True

    @property
    def scales(self) -> list[Fraction | None]:
        """The scale of each number's noise."""
        return [scale for many, scale in self.parts for _ in range(many)]

    @property
    def sizes(self) -> Floats:
        """The scale of each number's noise; 0: none."""
        numbers, scales = zip(*self.parts, strict=True)
        return np.repeat([float(scale or 0) for scale in scales], numbers)

    @property
    def words(self) -> int:
        """How many random words a row's draw reads first: two for each number that has noise."""
        return 2 * sum(many for many, scale in self.parts if scale is not None)

    @property
    def exactly(self) -> Bools:
        """Which numbers of each row have no noise."""
        none = np.tile(self.sizes == 0, (len(self.exact), 1))
        return none if self.beyond is None else none | self.beyond

    def broken(self, released: Ints, words: Words) -> Bools:
        """Which rows released something else than these words say."""
        low, high, sizes = np.zeros(self.exact.shape), np.zeros(self.exact.shape), self.sizes
        if (noisy := sizes > 0).any():
            low[:, noisy], high[:, noisy] = noise_bounds(sizes[noisy], words)
        none, noise = self.exactly, released - self.exact
        low[none] = high[none] = 0
        return np.asarray(((noise < low) | (noise > high)).any(axis=1))

    def log_probability(self, released: Ints) -> Floats:
        """ln of the chance of what each row released: (1 − q)/(1 + q) · q^|y|, q = e^(−1/scale)."""
        noise, none = np.abs(released - self.exact), self.exactly
        with np.errstate(divide="ignore", invalid="ignore"):
            laws = np.log(np.tanh(0.5 / self.sizes)) - noise / self.sizes
        logs: Floats = np.where(none, np.where(noise > 0, -np.inf, 0.0), laws).sum(axis=1)
        return logs

    def widest(self) -> float:
        """The largest log-ratio of what two rows release, of rows whose scales are the same."""
        none, worst = self.exactly[0], 0.0
        for row in self.exact:
            moved = np.abs(self.exact - row)
            if moved[:, none].any():
                return inf
            ratios = (moved[:, ~none] / self.sizes[~none]).sum(axis=1)
            worst = max(worst, float(ratios.max()))
        return worst


Law = Choice | Noisy


def plain_winners(
    name: str, rate: Fraction, sums: Ints, words: Words, prior: Prior | None
) -> tuple[Ints, Bools] | None:
    """The winners by the textbook, and where they are certain; None for an unknown mechanism.

    The least ρ·d − b + noise wins. V is the real number whose binary digits are the word's.
    """
    noise = _noise_of_choice(name, words)
    if noise is None:
        return None
    numerators, denominator = bonuses(prior, *sums.shape)
    moved = (sums - sums.min(axis=1, keepdims=True)) * float(rate / UNIT)
    keys = moved - numerators / denominator + noise
    best = keys.argmin(axis=1)
    first, second = np.partition(keys, 1, axis=1)[:, :2].T
    with np.errstate(invalid="ignore"):
        certain = second - first > _MARGIN
    return np.asarray(best, dtype=np.int64), np.asarray(certain & np.isfinite(first))


def _noise_of_choice(name: str, words: Words) -> Floats | None:
    """The noise of each mechanism on ρ·d, for the middle of its word's cell."""
    with np.errstate(divide="ignore"):
        if name == "permute_and_flip":  # −E, E = −ln V
            return np.asarray(np.log(_middles(words)))
        if name == "exponential":  # ln E, E = −ln(1 − V)
            return np.asarray(np.log(-np.log1p(-_middles(words))))
        if name == "noisy_max_laplace":  # −X: the first digit of V is its sign, the others are V'
            size = np.log(_middles(words << np.uint64(1)))
            return np.where(words >> np.uint64(63) == 0, size, -size)
    return None


def bonuses(prior: Prior | None, rows: int, actions: int) -> tuple[Ints, int]:
    """A prior as numerators for every action of each row, and their denominator."""
    numerators = np.zeros((rows, actions), dtype=np.int64)
    if prior is None:
        return numerators, 1
    if prior.actions is None:
        return prior.numerators, prior.denominator
    numerators[np.arange(rows), prior.actions] = prior.numerators
    return numerators, prior.denominator


def noise_bounds(scales: Floats, words: Words) -> tuple[Floats, Floats]:
    """The least and the most that noise of these words can be: ⌊scale·E⌋ − ⌊scale·E'⌋, E = −ln V.

    Words come in pairs (R × 2n). V is the real number that begins with a word's digits.

    >>> low, high = noise_bounds(np.array([2.0**20]), np.array([[1 << 62, 1 << 63]], np.uint64))
    >>> low.tolist(), high.tolist()
    ([[726817.0]], [[726817.0]])
    """
    each = np.repeat(scales, 2)
    values = -np.log(_middles(words)) * each
    slack = values * _ROUNDING[0] + each * _ROUNDING[1]
    least, most = np.floor(values - slack), np.floor(values + slack)
    return least[:, 0::2] - most[:, 1::2], most[:, 0::2] - least[:, 1::2]


def _middles(words: Words) -> Floats:
    return (words.astype(np.float64) + 0.5) * 2.0**-64


def scaled(words: Words, many: Ints) -> Ints:
    """⌊n·w/2^64⌋ for n < 2^31: a uniform integer below n, but for a chance of n·2^-64."""
    wide = many.astype(np.uint64)
    high, low = words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)
    whole: Ints = ((high * wide + (low * wide >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)
    return whole


def noise_classes(noise: Ints, scale: Fraction) -> Ints:
    """The class of each value of discrete Laplace noise; `noise_law` has the chances."""
    return np.searchsorted(_borders(float(scale)), noise, side="right")


def noise_law(scale: Fraction) -> Floats:
    """The chance of each class of discrete Laplace noise, in closed form.

    >>> round(float(noise_law(Fraction(1 << 20)).sum()), 12)
    1.0
    """
    size = float(scale)
    ratio = exp(-1 / size)
    below = [
        1 - exp(-border / size) / (1 + ratio)
        if border > 0
        else exp((border - 1) / size) / (1 + ratio)
        for border in _borders(size).tolist()
    ]
    return np.diff([0.0, *below, 1.0])


def _borders(scale: float, quantiles: Sequence[float] = _QUANTILES) -> Floats:
    return np.unique(np.rint(np.array(quantiles) * scale))
