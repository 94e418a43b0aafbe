"""Computes what a learner should do with a story, by its definition: cumulative sums.

It does not use the engine. Losses are put on the grid here, windows and resampled losses are
computed from the random words that were drawn for them, and sums are differences of cumulative
sums. `plain_winners` are the selections of the shipped mechanisms by the textbook: one float
logarithm for each word, trusted only where the best is ahead by far more than rounding errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Bools, Floats, Ints, Words
from streamdp.core.grid import UNIT
from streamdp.core.learners import Leader
from streamdp.core.selection import Prior
from streamdp.lab.audit.stories import Losses, Story

_FIELD_BITS, _FIELDS = 20, 3  # of a resampled loss in its word, three to a word
_MARGIN = 1e-6  # by how much a key must be ahead to be trusted; rounding is below 1e-11


def plain_grid(losses: Losses) -> tuple[Ints, Bools]:
    """Losses in units of the grid, 1/2 where a row is not finite; and which rows those are."""
    null = np.asarray(~np.isfinite(losses).all(axis=-1))
    usable = np.where(null[..., None], np.float32(0.5), losses).astype(np.float64)
    grid: Ints = np.rint(np.clip(usable, 0.0, 1.0) * UNIT).astype(np.int64)
    return grid, null


def scaled(words: Words, many: Ints) -> Ints:
    """⌊n·w/2^64⌋ for n < 2^31: a uniform integer below n, but for a chance of n·2^-64."""
    wide = many.astype(np.uint64)
    high, low = words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)
    whole: Ints = ((high * wide + (low * wide >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)
    return whole


def windows_of(learner: Leader, words: Words) -> Ints:
    """How many slots of each block count, by the words (N × B) that the windows were drawn by."""
    lengths = np.broadcast_to(learner.schedule.lengths(np.arange(words.shape[1])), words.shape)
    if learner.window != "random_prefix":
        return lengths
    half = lengths // 2
    return half + 1 + scaled(words, lengths - half)


def resampled_grid(grid: Ints, words: Words) -> Ints:
    """Each loss as 1 with its own probability, else 0, by the words (N × T × ⌈K/3⌉) of its slot."""
    shifts = (np.arange(_FIELDS) * _FIELD_BITS).astype(np.uint64)
    mask = np.uint64((1 << _FIELD_BITS) - 1)
    fields = ((words[..., None] >> shifts) & mask).reshape(*words.shape[:2], -1)
    drawn: Ints = np.where(fields[..., : grid.shape[2]] < grid.astype(np.uint64), UNIT, 0)
    return drawn


@dataclass(frozen=True, slots=True)
class Fold:
    """The sums that a learner's releases read."""

    windows: Ints  # N × B × K: what selections read
    totals: Ints  # N × B × K: over whole blocks
    nulls: Ints  # N × B

    @classmethod
    def of(cls, learner: Leader, story: Story, *, windows: Words, coins: Words) -> Fold:
        """By the words that windows (N × B) and resampled losses (N × T × ⌈K/3⌉) were drawn by."""
        grid, null = plain_grid(story.losses)
        read = resampled_grid(grid, coins) if learner.resample == "bernoulli" else grid
        numbers = np.arange(story.blocks)
        starts, stops = (learner.schedule.starts(numbers) - 1, learner.schedule.stops(numbers) - 1)
        begins = np.zeros_like(starts) if learner.window == "running" else starts
        ends = starts + windows_of(learner, windows)
        runs = np.arange(len(grid))[:, None]
        sums, totals = _cumulated(read), _cumulated(grid)
        nulls = _cumulated(null[..., None].astype(np.int64))
        return cls(
            windows=sums[runs, ends] - sums[:, begins],
            totals=totals[:, stops] - totals[:, starts],
            nulls=(nulls[:, stops] - nulls[:, starts])[..., 0],
        )


def _cumulated(rows: Ints) -> Ints:
    """Sums of the first 0, 1, …, T slots: N × (T + 1) × K."""
    none = np.zeros((len(rows), 1, rows.shape[2]), dtype=np.int64)
    return np.concatenate([none, np.cumsum(rows, axis=1)], axis=1)


def bonuses(prior: Prior | None, rows: int, actions: int) -> tuple[Ints, int]:
    """A prior as numerators for every action of each row, and their denominator."""
    numerators = np.zeros((rows, actions), dtype=np.int64)
    if prior is None:
        return numerators, 1
    if prior.actions is None:
        return prior.numerators, prior.denominator
    numerators[np.arange(rows), prior.actions] = prior.numerators
    return numerators, prior.denominator


def plain_winners(
    name: str, rate: Fraction, sums: Ints, words: Words, prior: Prior | None
) -> tuple[Ints, Bools] | None:
    """The winners by the textbook, and where they are certain; None for an unknown mechanism.

    The least ρ·d − b + noise wins. V is the real number whose binary digits are the word's.
    """
    noise = _noise(name, words)
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


def _noise(name: str, words: Words) -> Floats | None:
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


def _middles(words: Words) -> Floats:
    return (words.astype(np.float64) + 0.5) * 2.0**-64
