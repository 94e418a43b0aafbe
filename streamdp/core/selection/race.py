"""The certified race: the exact winner of a noisy comparison, at the speed of a float softmax.

Action i has the key ρ·d_i − b_i + noise(V_i), and the smallest key wins. d_i = L_i − min L is an
exact integer, b_i a public rational, V_i the real number in (0, 1) whose binary digits are the
action's random bits, drawn lazily. The winner is therefore a mathematical function of the bits, the
same on every platform; floats only exclude actions that cannot win.

1. Draw one word for every action, compute a float *lower bound* of every key (the noise of the
   lower end of the word's cell), and find the least.
2. An action whose lower bound exceeds the least one's *upper* bound has lost: keys within
   ``gap(word) + slack`` of the least contend. Almost always one is left, and it has won.
3. Otherwise compute upper bounds for all, keep the actions whose lower bound reaches the least of
   them, and decide between these few in `decimal` (`core.enclosure`): directed rounding, by the
   first word, then with 64 more bits and more digits each round, until one is left.

The true winner is never dropped and ties have probability zero: the law is exact whatever the
quality of the floats. Extreme words have an infinite gap and so go to step 3.

Why ``slack`` suffices: contenders have |ρd| ≤ 111 + 2B, B the largest bonus; conversions, products
and sums are within 5 · 2⁻⁵³ of that, a logarithm within 4 units in the last place (0.5 was seen)
of at most 37, the bonus within 3 · 2⁻⁵³ · B. Together, for both sides of the comparison, that is
below 2⁻⁴² + 26 · 2⁻⁵³ · B, and the slack is max(2⁻³⁸, 2⁻⁴⁷ · B). Keys of other actions have only a
bounded relative error, which is enough to show that they lose.

Why the time says nothing about the scores: every action takes the same operations, none is pruned,
and step 3 is reached with probability about 2⁻³⁸ + K · 2⁻⁵³ for one long row, 2⁻²⁸ + K · 2⁻²⁴ for
each row of a block, whatever the scores.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar, Protocol

import numpy as np

from streamdp.core.arrays import Floats, Ints, Words
from streamdp.core.enclosure import Digits, Interval, Precision
from streamdp.core.errors import InvalidConfig
from streamdp.core.grid import UNIT
from streamdp.core.randomness import WORD_BITS, Bits
from streamdp.core.selection.prior import Prior, exact_scores

MOST_ACTIONS = 1_000_000

_CHUNK = 1 << 14  # actions of a long row at a time: 128 KB an array
_BLOCK = 1 << 15  # words of a block of rows at a time: 256 KB an array
_WIDEST_BLOCK = 1 << 10  # longer rows go one by one
_SLACK = 2.0**-38
_SLACK_PER_BONUS = 2.0**-47
_BLOCK_TOLERANCE = 2.0**-28  # for gap and slack of a block's rows together
_LARGEST_RATE = 2.0**500  # times 2**62 it is still finite; its inverse is still normal


class Noise(Protocol):
    """What a mechanism adds to ρ·d: a function of V, bounded in floats and enclosed in decimals."""

    def add_lower(self, keys: Floats, words: Words, width: int) -> None:
        """Add the noise's lower bound (in floats, up to rounding) to each key, in place."""

    def gap(self, words: Words, width: int) -> Floats:
        """How far above the lower bound the noise can be; infinite for extreme words."""

    def enclose(self, digits: Digits, precision: Precision) -> Interval:
        """Where the noise is, for certain."""


@dataclass(frozen=True, slots=True)
class Race:
    """The base class of the private mechanisms, which differ only in their noise and their law.

    It is the only base class here: so a mechanism is a class of its own, which a learner's value
    names, and contains nothing but its claim, its noise and its law.
    """

    rate: Fraction
    _grid: float = field(init=False, repr=False, compare=False)  # ρ per grid unit

    name: ClassVar[str]
    noise: ClassVar[Noise]

    def __post_init__(self) -> None:
        """Refuse a rate that floats cannot bound."""
        rate = self.rate
        if not isinstance(rate, Fraction) or not 1 / _LARGEST_RATE < rate / UNIT < _LARGEST_RATE:
            expected = "a Fraction between 2**-480 and 2**500"
            where = f"{self.name}.rate"
            raise InvalidConfig(where, "not a rate", expected=expected, got=repr(rate))
        object.__setattr__(self, "_grid", float(rate / UNIT))

    def select(self, sums: Ints, bits: Bits, prior: Prior | None = None) -> Ints:
        """The winner of each row of `sums`."""
        check(sums, bits, prior)
        noise, grid = self.noise, self._grid
        rows, actions = sums.shape
        slack = _slack(prior)
        with np.errstate(divide="ignore", invalid="ignore"):  # extreme words: infinite gaps
            if rows > 1 and actions <= _WIDEST_BLOCK:
                winners = _run_blocks(noise, grid, sums, bits, prior, slack)
            else:
                one_by_one = (
                    _run_row(noise, grid, sums, bits, prior, row, slack) for row in range(rows)
                )
                winners = np.fromiter(one_by_one, np.int64, rows)
            for row in np.flatnonzero(winners < 0).tolist():
                winners[row] = _winner_by_bounds(noise, self.rate, sums, bits, prior, row)
        return winners

    def select_exactly(self, sums: Ints, bits: Bits, prior: Prior | None = None) -> Ints:
        """The same winners, with every action enclosed in decimals from the start."""
        check(sums, bits, prior)
        everyone = np.arange(sums.shape[1])
        winners = []
        for row in range(len(sums)):
            words = bits.part(row, row + 1).words(0, len(everyone))[0]
            winners.append(_refine(self.noise, self.rate, sums, bits, prior, row, everyone, words))
        return np.array(winners, np.int64)


def check(sums: Ints, bits: Bits, prior: Prior | None) -> None:
    """Refuse shapes that do not fit together; the values of sums are never looked at."""
    if sums.dtype != np.int64 or sums.ndim != 2 or not 2 <= sums.shape[1] <= MOST_ACTIONS:
        expected = f"int64, R rows of 2 to {MOST_ACTIONS} sums"
        got = f"{sums.dtype} {sums.shape}"
        raise InvalidConfig("sums", "wrong array", expected=expected, got=got)
    if bits.rows != sums.shape[0]:
        raise InvalidConfig("bits", "draws and rows differ", expected=sums.shape[0], got=bits.rows)
    if prior is not None:
        prior.check(rows=sums.shape[0], actions=sums.shape[1])


def _slack(prior: Prior | None) -> float:
    """A bound on the rounding error between two keys; a function of public numbers."""
    return _SLACK if prior is None else max(_SLACK, prior.largest() * _SLACK_PER_BONUS)


def _run_row(
    noise: Noise,
    grid: float,
    sums: Ints,
    bits: Bits,
    prior: Prior | None,
    row: int,
    slack: float,
) -> int:
    """The winner of one row in floats, or −1 if it is undecided; the same steps for each chunk."""
    own = bits if bits.rows == 1 else bits.part(row, row + 1)
    losses = sums[row]
    least = np.minimum.reduce(losses)
    best, winner, contenders, limit = np.inf, 0, 0, np.inf
    runners: list[float] = []
    for start in range(0, len(losses), _CHUNK):
        part = losses[start : start + _CHUNK]
        words = own.words(start, len(part))[0]
        keys = (part - least).astype(np.float64)
        keys *= grid
        noise.add_lower(keys, words, bits.width)
        if prior is not None:
            prior.subtract(keys, row=row, start=start)
        at = int(keys.argmin())
        key = float(keys[at])
        bound = key + float(noise.gap(words[at], bits.width)) + slack
        close = int(np.count_nonzero(keys <= bound))
        runners.append(key)
        if key < best:
            best, winner, contenders, limit = key, start + at, close, bound
    alone = contenders == 1 and sum(key <= limit for key in runners) == 1
    return winner if alone else -1


def _run_blocks(
    noise: Noise,
    grid: float,
    sums: Ints,
    bits: Bits,
    prior: Prior | None,
    slack: float,
) -> Ints:
    """The winners of many short rows in floats, −1 if undecided; keys lie action by row."""
    rows, actions = sums.shape
    winners = np.empty(rows, np.int64)
    step = max(1, _BLOCK // actions)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        words = bits.part(start, stop).words(0, actions).T  # already in this order in memory
        losses = sums[start:stop].T.copy()
        losses -= losses.min(axis=0)
        keys = losses.astype(np.float64)
        keys *= grid
        noise.add_lower(keys, words, bits.width)
        if prior is not None:
            prior.part(start, stop).subtract_columns(keys)
        winners[start:stop] = _leaders(noise, keys, words, bits.width, slack)
    return winners


def _leaders(
    noise: Noise,
    keys: Floats,
    words: Words,
    width: int,
    slack: float,
) -> Ints:
    """The only contender of each column of keys; −1 if there are several or the gap is wide."""
    rows = keys.shape[1]
    tolerance = max(_BLOCK_TOLERANCE, 2 * slack)
    contenders = np.flatnonzero(keys <= keys.min(axis=0) + tolerance)
    row = contenders - contenders // rows * rows
    leaders = np.zeros(rows, np.int64)
    leaders[row] = contenders
    gaps = noise.gap(words.ravel()[leaders], width)
    decided = (np.bincount(row, minlength=rows) == 1) & (gaps + slack <= tolerance)
    return np.where(decided, leaders // rows, -1)


def _winner_by_bounds(
    noise: Noise,
    rate: Fraction,
    sums: Ints,
    bits: Bits,
    prior: Prior | None,
    row: int,
) -> int:
    """The winner of a row that one common tolerance left undecided."""
    own = bits.part(row, row + 1)
    words = own.words(0, sums.shape[1])[0]
    lower = (sums[row] - sums[row].min()) * float(rate / UNIT)
    noise.add_lower(lower, words, bits.width)
    if prior is not None:
        prior.subtract(lower, row=row, start=0)
    gaps = noise.gap(words, bits.width)
    upper = np.where(np.isfinite(gaps), lower + gaps, np.inf)
    reach = upper.min() + _slack(prior)
    contenders = np.flatnonzero(~(lower > reach))
    return _refine(noise, rate, sums, bits, prior, row, contenders, words[contenders])


def _refine(
    noise: Noise,
    rate: Fraction,
    sums: Ints,
    bits: Bits,
    prior: Prior | None,
    row: int,
    contenders: Ints,
    words: Words,
) -> int:
    """The winner among a few contenders, by enclosures that shrink until one is left.

    `words` are their first words. One of 64 digits is enclosed before more are read, as it nearly
    always decides; one of fewer digits left the draw open in floats.
    """
    own = bits.part(row, row + 1)
    scores, denominator = exact_scores(rate, sums[row], prior, row=row, actions=contenders)
    running: list[tuple[int, Fraction, Digits]] = [
        (action, Fraction(score, denominator), Digits.of_word(own, row=0, position=action, word=of))
        for action, score, of in zip(contenders.tolist(), scores, words.tolist(), strict=True)
    ]
    further = bits.width < WORD_BITS
    while len(running) > 1:
        if further:
            for _, _, digits in running:
                digits.extend(own)
        precision = Precision.of_bits(running[0][2].size)
        keys = [noise.enclose(d, precision).plus(offset, precision) for _, offset, d in running]
        reach = min(key.high for key in keys)
        running = [runner for runner, key in zip(running, keys, strict=True) if key.low <= reach]
        further = True
    return running[0][0]
