"""`check_selection`: is this a private choice of one among K? For our mechanisms and for yours.

    def test_my_mechanism_is_a_selection() -> None:
        check_selection(MyMechanism(rate=Fraction(1, 2)))

The promises, in the order in which they are checked:

1. *The law* (`log_probabilities`) is a finite log-probability for every action: an action with
   probability 0 that a neighbour gives more is ε = ∞. It sums to 1 to 10⁻¹², prefers smaller sums
   and larger bonuses, and does not change when all sums grow by the same number.
2. *The price*: over neighbouring sums, from blocks of one slot to 256, under any prior, no
   log-probability moves by more than twice the rate.
3. *A function of the bits*: the same bits, the same winners; a row alone wins what it wins in a
   batch, whatever its neighbours in the batch are.
4. *The draws follow the law*, by a χ² test, for 2, 5 and 50 actions, near and far apart, with
   sparse and dense priors.
5. *Floats only propose*: the same with words of 4 random bits, where nearly every draw needs more
   bits; and if the mechanism has an exact path (`core.selection.Exact`), that gives the same
   winners on the same bits.

6. *Any number*: among 40,000 actions, wherever two contend, the bits of these two decide; each of
   50,000 rows is won as its own bits say (for the noises that `streamdp.lab.audit.races` knows).

A failure is an `AssertionError` that says which promise was broken. The χ² tests of a run (those of
`streamdp.lab.audit.sampler`) together raise a false alarm with probability at most 10⁻⁷; seeds are
fixed, so it never comes and goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Floats, Ints, Words
from streamdp.core.grid import UNIT
from streamdp.core.randomness import Bits, Purpose, SeededRandomness, uniform_integers
from streamdp.core.selection import Mechanism, Prior
from streamdp.lab.audit import flaws_of_races
from streamdp.lab.audit.sampler import chi2
from streamdp.lab.kits.kinds import require

TOLERANCE = 1e-9  # of a log-probability in the price: quadrature, not privacy, is that coarse
_COARSE = 6
_COARSE_DRAWN = 4  # random bits of a word: the first words of 50 actions nearly always tie
_COARSE_ROWS = 160  # one draw of coarse words for so many others: 12 of each of 50 equal actions


class CoarseBits:
    """Bits whose level-0 words have few random digits, so that floats decide almost nothing."""

    __slots__ = ("_bits", "width")

    def __init__(self, bits: Bits, *, width: int = _COARSE) -> None:
        self._bits = bits
        self.width = width

    @property
    def rows(self) -> int:
        """How many draws."""
        return self._bits.rows

    def words(self, start: int, count: int) -> Words:
        """The leading digits of each word, zeros behind."""
        unknown = np.uint64(64 - self.width)
        return self._bits.words(start, count) >> unknown << unknown

    def more(self, row: int, position: int, level: int) -> int:
        """64 further digits."""
        return self._bits.more(row, position, level)

    def part(self, start: int, stop: int) -> CoarseBits:
        """The draws [start, stop) alone."""
        return CoarseBits(self._bits.part(start, stop), width=self.width)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of sums with a public prior, and what is special about it."""

    name: str
    sums: Ints
    bonuses: tuple[int, ...] | None = None  # in thirds of a noise unit
    incumbent: int | None = None
    coarse: bool = False  # whether to draw with coarse words too, which is slow

    def prior(self, rows: int) -> Prior | None:
        """The prior for `rows` equal rows."""
        if self.incumbent is not None:
            return Prior.incumbent(np.full(rows, self.incumbent), Fraction(1))
        if self.bonuses is not None:
            return Prior(np.tile(np.array(self.bonuses, np.int64), (rows, 1)), 3)
        return None

    def law(self, mechanism: Mechanism) -> Floats:
        """The log-probabilities that the mechanism claims."""
        return mechanism.log_probabilities(self.sums, self.prior(1))

    def winners(self, mechanism: Mechanism, bits: Bits) -> Ints:
        """One draw per row of bits."""
        rows = np.tile(self.sums, (bits.rows, 1))
        return mechanism.select(rows, bits, self.prior(bits.rows))


def check_selection(mechanism: Mechanism, *, draws: int = 100_000, seed: int = 1) -> None:
    """Raise `AssertionError` unless the mechanism keeps every promise."""
    unit = max(1, round(UNIT / mechanism.rate))  # one noise unit of sums
    source = _Source(SeededRandomness(seed))
    for case in cases(unit):
        _check_law(mechanism, case, unit)
    _check_price(mechanism, source)
    for case in cases(unit):
        _check_function_of_bits(mechanism, case, source.bits(64))
        _check_draws(mechanism, case, source.bits(draws), "draws")
        if case.coarse:
            bits = CoarseBits(source.bits(draws // _COARSE_ROWS), width=_COARSE_DRAWN)
            _check_draws(mechanism, case, bits, "draws of coarse words")
        exact = max(20, min(300, draws // 50) // len(case.sums))
        _check_exact_path(mechanism, case, source.bits(exact))
    flaws = flaws_of_races(mechanism)
    require(not flaws, "; ".join(["many actions and rows", *flaws]), mechanism.name)


def cases(unit: int) -> Iterator[Case]:
    """Sums of every kind, in noise units: near, far, equal, with either sort of prior."""
    for actions in (2, 5, 50):
        graded = np.arange(actions, dtype=np.int64) * unit // 4
        far = np.where(np.arange(actions) % 2 == 0, graded, graded + 800 * unit)
        bonuses = np.where(np.arange(actions) % 2 == 0, -1, 1)
        yield Case(f"{actions} graded", graded, coarse=True)
        yield Case(f"{actions} far apart", far)
        yield Case(f"{actions} with an incumbent", graded, incumbent=actions - 1)
        mixed = tuple(bonuses.tolist())
        yield Case(f"{actions} with a prior", graded, bonuses=mixed, coarse=True)
        close = np.where(bonuses > 0, 2400, 0)
        yield Case(f"{actions} far apart, brought back", far, bonuses=tuple(close.tolist()))
        yield Case(f"{actions} equal", np.full(actions, 3 * unit, np.int64), coarse=True)


@dataclass(slots=True)
class _Source:
    """Fresh seeded bits for each check."""

    randomness: SeededRandomness
    taken: int = 0

    def bits(self, rows: int) -> Bits:
        """Bits that no other check sees."""
        self.taken += 1
        tag = self.randomness.tag("kit", 0, None, self.taken, 0)
        tags = np.tile(np.frombuffer(tag, np.uint8), (rows, 1))
        return self.randomness.bits("kit", Purpose.SELECTION, tags, np.arange(rows))

    def integers(self, most: int, shape: tuple[int, ...]) -> Ints:
        """Integers in [0, most]."""
        size = int(np.prod(shape))
        return uniform_integers(self.bits(size), np.full(size, most + 1)).reshape(shape)


def _check_law(mechanism: Mechanism, case: Case, unit: int) -> None:
    """Promise 1."""
    logs = case.law(mechanism)
    require(logs.shape == case.sums.shape, "one log-probability for each action", case.name)
    require(np.isfinite(logs).all(), "no action has probability 0", case.name)
    require(abs(np.exp(logs).sum() - 1) < 1e-12, "the probabilities sum to 1", case.name)
    moved = mechanism.log_probabilities(case.sums + 7 * unit, case.prior(1))
    require(np.allclose(moved, logs, rtol=1e-12, atol=1e-12), "only differences count", case.name)
    if case.prior(1) is None:
        order = np.argsort(case.sums)
        require(np.all(np.diff(logs[order]) <= 1e-12), "smaller sums are likelier", case.name)
    else:
        plain = mechanism.log_probabilities(case.sums)
        lucky = case.incumbent if case.incumbent is not None else int(np.argmax(case.bonuses or ()))
        require(logs[lucky] > plain[lucky], "a bonus makes an action likelier", case.name)


def _check_function_of_bits(mechanism: Mechanism, case: Case, bits: Bits) -> None:
    """Promise 3."""
    together = case.winners(mechanism, bits)
    require(together.dtype == np.int64 and together.shape == (bits.rows,), "one index a row", "")
    again = case.winners(mechanism, bits)
    require(np.array_equal(together, again), "the same bits give the same winners", case.name)
    alone = [case.winners(mechanism, bits.part(row, row + 1))[0] for row in range(bits.rows)]
    require(np.array_equal(together, alone), "a row alone wins as in a batch", case.name)


def _check_draws(mechanism: Mechanism, case: Case, bits: Bits, what: str) -> None:
    """Promises 4 and 5: a χ² test of the winners against the law."""
    law = np.exp(case.law(mechanism))
    counts = np.bincount(case.winners(mechanism, bits), minlength=len(law))
    require(chi2(counts, law * bits.rows).passed, f"{what} follow the law", case.name)


def _check_exact_path(mechanism: Mechanism, case: Case, bits: Bits) -> None:
    """Promise 5: forced exactness changes nothing."""
    select_exactly = getattr(mechanism, "select_exactly", None)  # a mechanism may have none
    if select_exactly is not None:
        sums = np.tile(case.sums, (bits.rows, 1))
        exact = select_exactly(sums, bits, case.prior(bits.rows))
        same = np.array_equal(exact, case.winners(mechanism, bits))
        require(same, "floats and decimals agree", case.name)


def _check_price(mechanism: Mechanism, source: _Source) -> None:
    """Promise 2: blocks of n slots in which one vector is replaced, at and between the corners."""
    allowed = 2 * float(mechanism.rate) + TOLERANCE
    for actions in (2, 3, 5):
        prior = Prior(source.integers(12, (1, actions)), 3)
        for slots in (1, 4, 32, 256):
            for base in source.integers(slots * UNIT, (2, actions)):
                rest = base * (slots - 1) // slots  # the other slots' share
                for public in (None, prior):
                    logs = [
                        mechanism.log_probabilities(rest + vector, public)
                        for vector in _vectors(actions, source)
                    ]
                    worst = np.ptp(np.stack(logs), axis=0).max()
                    case = f"{actions} actions, {slots} slots"
                    require(worst <= allowed, "a replaced vector costs twice the rate", case)


def _vectors(actions: int, source: _Source) -> Ints:
    """Loss vectors that may replace each other: the corners that matter and some between."""
    corners = (np.arange(1 << actions)[:, None] >> np.arange(actions) & 1) * UNIT
    return np.concatenate([corners, source.integers(UNIT, (4, actions))])
