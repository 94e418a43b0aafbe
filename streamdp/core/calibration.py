"""Every constant that privacy rests on, in one place, each with its reason.

Two inputs are *neighbours* when they differ in the content of one record: one vector in [0,1]^K
is replaced by another. Then each action's sum moves by at most 1, and, since one sum may rise
while another falls, the **difference of two sums moves by at most 2**. Noise that is calibrated
for counts which can only grow (sensitivity 1) is half of what is needed. That is why most rates
below are ε/2, and why several papers' constants are not ours.

A *rate* ρ is what a selection multiplies losses with: it adds noise of scale 1/ρ (in loss) or
samples proportionally to exp(−ρ·L). Rates, charges and scales are exact `Fraction`s; ε is written
by users as a string, never as a binary float.

Each constant names the test that fails when it is changed. "Exact audit" is
`tests/lab/test_audit_exact.py`: at twice a rate it finds a log-ratio above ε (1.31 already at two
slots and two actions, 1.99 to 2 at 256 slots).
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from streamdp.core.errors import InvalidConfig

LOSS_SENSITIVITY = Fraction(1)
"""How far one replaced vector moves one action's sum of losses in [0,1].

Broken by an unclipped loss: exact audit, `unclipped`."""

DIFFERENCE_SENSITIVITY = 2 * LOSS_SENSITIVITY
"""How far one replaced vector moves the difference of two actions' sums: one up, the other down.

Broken by 1: exact audit, every calibration marked wrong in the table of rates."""

PREFIX_CAP = Fraction(1, 8)
"""The largest η for which the regret theorem of the prefix softmax is stated.

Cesari & Colomboni 2026, §4. Privacy does not need it: without the cap the charge is still 2η."""

INCUMBENT_BONUS = Fraction(1)
"""The default bonus of the action in force, in noise units (1/ρ of loss).

It reads an earlier release, so it is post-processing and privacy does not rest on it; 1 was best
in simulations with block ratio 2.5."""

EPSILON_RANGE = (Fraction(1, 10**6), Fraction(10**6))
"""The accepted values of an ε or a budget; one outside is taken for a typing error."""

EPSILON_DENOMINATOR = 10**12
"""The finest ε, so that sums of charges stay small integers over small integers."""

_EXACT = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?(/[0-9]{1,20})?|-?\.[0-9]{1,20}", re.ASCII)


def parse_epsilon(value: object, where: str) -> Fraction:
    """The exact ε (or budget) that a user wrote: a string such as "0.1" or "1/3", or a Fraction.

    A float is refused: 0.1 the float is 0.1000000000000000055…, and budgets must add up exactly.
    No exponents, plus signs or spaces: nothing is repaired silently. A negative number is out of
    range like 0.

    >>> parse_epsilon("0.1", "epsilon")
    Fraction(1, 10)
    >>> parse_epsilon(0.1, "ε")
    Traceback (most recent call last):
    streamdp.core.errors.InvalidConfig: ε: not exact; expected a string such as "0.1", got float
    """
    if isinstance(value, str):
        exact = _read(value, where)
    elif isinstance(value, int | Fraction) and not isinstance(value, bool):
        exact = Fraction(value)
    else:
        got = type(value).__name__
        raise InvalidConfig(where, "not exact", expected='a string such as "0.1"', got=got)
    low, high = EPSILON_RANGE
    if not low <= exact <= high:
        expected = f"a number from {low} to {high}"
        raise InvalidConfig(where, "out of range", expected=expected, got=value)
    if exact.denominator > EPSILON_DENOMINATOR:
        expected = f"a denominator up to {EPSILON_DENOMINATOR}"
        raise InvalidConfig(where, "too fine", expected=expected, got=value)
    return exact


def _read(text: str, where: str) -> Fraction:
    if _EXACT.fullmatch(text) is None:
        got = repr(text[:40])
        raise InvalidConfig(
            where, "not a number", expected='a string such as "0.1" or "1/3"', got=got
        )
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):  # "0.5/3" and "1/0"
        raise InvalidConfig(
            where, "not a number", expected='a string such as "1/3"', got=repr(text)
        ) from None


def exponential_rate(epsilon: Fraction) -> Fraction:
    """The η at which sampling ∝ exp(−η·L) is ε-DP: ε/2.

    Why: a neighbour changes each weight by a factor within e^±η and the normaliser by another, so
    the ratio of two probabilities moves by at most e^2η (Cesari & Colomboni 2026, Lemma 3).
    Differs from Wu & Wang 2026: some displays equate Gumbel(2/ε) with exp(−εL); that law is 2ε.
    Test: exact audit, `softmax at eta = epsilon`.

    >>> exponential_rate(Fraction(1))
    Fraction(1, 2)
    """
    return epsilon / DIFFERENCE_SENSITIVITY


def permute_and_flip_rate(epsilon: Fraction) -> Fraction:
    """The ρ at which adding exponential noise of scale 1/ρ and taking the best is ε-DP: ε/2.

    Why: it is permute-and-flip, which is 2ρ-DP for scores of sensitivity 1 (McKenna & Sheldon
    2020, Theorem 1). Differs from Wu & Wang 2026, Theorems 3 and 11: Exp(1/ε) is exactly 2ε from
    two slots on, with or without resampling. Test: exact audit, `Exp(1/epsilon)`.

    >>> permute_and_flip_rate(Fraction(1))
    Fraction(1, 2)
    """
    return epsilon / DIFFERENCE_SENSITIVITY


def permute_and_flip_charge(rate: Fraction) -> Fraction:
    """The ε of one draw by permute-and-flip at rate ρ: 2ρ, the inverse of `permute_and_flip_rate`.

    No smaller ε holds for all lengths of blocks, so a ledger whose draws name their rate must
    charge this much. Test: exact audit, `Exp(1/epsilon)`.

    >>> permute_and_flip_charge(permute_and_flip_rate(Fraction(1, 3)))
    Fraction(1, 3)
    """
    return DIFFERENCE_SENSITIVITY * rate


def laplace_rate(epsilon: Fraction) -> Fraction:
    """The ρ at which adding Laplace noise of scale 1/ρ and taking the best is ε-DP: ε/2.

    Why: fix the losers' noise; the winner's own noise must move by at most 2 to win by as much,
    which costs a factor e^2ρ. Differs from Hu et al. 2025, Algorithm 4, and
    Hu et al. 2021, Algorithm 3: Lap(1/ε) is 2ε in the limit of long blocks. Test: exact audit,
    `Lap(1/epsilon)`.

    >>> laplace_rate(Fraction(1))
    Fraction(1, 2)
    """
    return epsilon / DIFFERENCE_SENSITIVITY


def naive_laplace_rate(epsilon: Fraction, *, actions: int) -> Fraction:
    """The ρ at which all K noisy sums could be published with Laplace noise of scale 1/ρ: ε/K.

    Why: the vector of sums moves by at most K in L1. It is the straw man of Hu et al. 2025, §5,
    whose noise protects K numbers where one index is published.

    >>> naive_laplace_rate(Fraction(1), actions=4)
    Fraction(1, 4)
    """
    return epsilon / (actions * LOSS_SENSITIVITY)


SUMS_SENSITIVITY = LOSS_SENSITIVITY
"""How far one replaced loss moves the K centred sums of a block together, in L1: 1.

Feedback with a public action: a record's gain 1/2 − loss, within ±1/2, enters the sum of the arm
that its header names, and no other. Broken by unplayed losses that are read: exact audit of
feedback."""

PAIRS_SENSITIVITY = 2 * SUMS_SENSITIVITY
"""The same where the action stands in the content: K sums of rewards and K of losses move by 2.

A record writes its reward r and its loss 1 − r, together 1, into one arm's two sums. Another reward
of the same arm moves them by |r − r′| each; another arm loses 1 in all and this one gains 1; a
record that becomes unusable, or names no arm, moves them by 1. So whatever is replaced, at most 2.
A count is the pair's sum and a gain half its difference: post-processing. Counts and centred sums
with noise of their own would move by 3. Where an event enters a number of each of P tables
(contexts in parts), this and `SUMS_SENSITIVITY` count P times. Exact audit of feedback:
`adds_noise_of_one_over_epsilon…`, `adds_half_the_noise_to_losses`,
`writes_counts_in_place_of_losses`."""


class SoftmaxRate(NamedTuple):
    """The η of a softmax and what a slot is charged for it."""

    eta: Fraction
    charge: Fraction


def prefix_softmax_rate(epsilon: Fraction, *, cap: Fraction | None = PREFIX_CAP) -> SoftmaxRate:
    """The η = min(ε/2, cap) of the prefix softmax, and its charge 2η.

    Why: for every prefix the softmax is 2η-DP, and the prefix's length does not depend on the
    losses, so the mixture is too (Cesari & Colomboni 2026, Lemma 3). Above ε = 1/4 the theorem's
    cap spends 1/4 only; `cap=None` spends all of ε. Test: exact audit, `overlapping_windows`
    and `softmax at eta = epsilon`.

    >>> prefix_softmax_rate(Fraction(1))
    SoftmaxRate(eta=Fraction(1, 8), charge=Fraction(1, 4))
    >>> prefix_softmax_rate(Fraction(1), cap=None)
    SoftmaxRate(eta=Fraction(1, 2), charge=Fraction(1, 1))
    """
    free = exponential_rate(epsilon)
    eta = free if cap is None else min(free, cap)
    return SoftmaxRate(eta, DIFFERENCE_SENSITIVITY * eta)


BLOCK_REGRET_SENSITIVITY = DIFFERENCE_SENSITIVITY
"""max over i of Σ(ℓ_t(A) − ℓ_t(i)): each difference of sums moves by 2, so their maximum does.

Broken by 1: `takes_the_sensitivity_of_regret_for_1`, in `tests/support/mutants/estimates.py`."""

MEAN_LOSS_SENSITIVITY = LOSS_SENSITIVITY
"""Σ ℓ_t(A), which is divided by the public length only after the noise."""

NULL_SHARE_SENSITIVITY = Fraction(1)
"""The number of null slots, which is divided by the public length only after the noise."""


def uniform_regret_sensitivity(*, actions: int) -> Fraction:
    """How far one vector moves Σ(ℓ_t(A) − mean_i ℓ_t(i)): 2(1 − 1/K).

    Why: one slot's term is (1 − 1/K)·ℓ(A) − (1/K)·Σ_{i≠A} ℓ(i), which lies within ±(1 − 1/K).

    >>> uniform_regret_sensitivity(actions=4)
    Fraction(3, 2)
    """
    return 2 * (1 - Fraction(1, actions))


def laplace_scale(sensitivity: Fraction, epsilon: Fraction) -> Fraction:
    """The scale of Laplace noise, continuous or discrete, that makes a number ε-DP: s/ε.

    >>> laplace_scale(Fraction(2), Fraction(1, 10))
    Fraction(20, 1)
    """
    return sensitivity / epsilon
