"""Estimates that cost more than their charge, and noise of another law."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest

from streamdp.core import calibration
from streamdp.core.arrays import Ints
from streamdp.core.engine.releasing import Fresh
from streamdp.core.kinds import losses
from streamdp.core.kinds.estimates import Estimate, estimate
from streamdp.core.kinds.tariff import Tariff
from streamdp.core.learners import Leader
from streamdp.core.noise import discrete_laplace
from streamdp.core.randomness import Bits, Purpose
from streamdp.core.schedule import Schedule
from tests.support.mutants.losses import Votes, with_votes
from tests.support.mutants.table import INCUMBENT, mutant, of_losses


def releasing(name: str) -> Leader:
    """A learner that releases this estimate too, for 1/2 beside its 1."""
    return INCUMBENT.with_estimates([estimate(name, epsilon="1/2", min_length=1)])


REGRET = releasing("block_regret")


@mutant(REGRET, layer="streams", said="log-ratio 2 > 3/2")
def takes_the_sensitivity_of_regret_for_1(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calibration, "BLOCK_REGRET_SENSITIVITY", Fraction(1))


@mutant(releasing("mean_loss"), layer="streams", said="log-ratio .* > 3/2")
def takes_a_quarter_for_the_sensitivity_of_loss(patch: pytest.MonkeyPatch) -> None:
    """Not in the estimate's own worst case only: with a selection that spends all of its ε."""
    patch.setattr(calibration, "MEAN_LOSS_SENSITIVITY", Fraction(1, 4))


@mutant(releasing("null_share"), layer="streams", said="log-ratio .* > 3/2")
def takes_a_quarter_for_the_sensitivity_of_nulls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calibration, "NULL_SHARE_SENSITIVITY", Fraction(1, 4))


@mutant(REGRET, layer="streams", said="log-ratio .* > 1$")
def charges_no_estimate(patch: pytest.MonkeyPatch) -> None:
    def action_only(
        self: Tariff, blocks: int, schedule: Schedule
    ) -> Iterator[tuple[Fraction, int, int]]:
        yield self.releases[0].epsilon, 0, blocks

    patch.setattr(Tariff, "of_first", action_only)


@mutant(REGRET, layer="streams", said="log-ratio .* > 3/2")
def releases_regret_where_there_is_some(patch: pytest.MonkeyPatch) -> None:
    """Whether it exists is a second release."""
    statistic = Estimate.statistic

    def hides_zero(self: Estimate, sums: Ints, *, action: Ints, nulls: Ints) -> Ints:
        value = statistic(self, sums, action=action, nulls=nulls)
        return np.where(value == 0, -(2**40), value)  # far outside: "no value"

    patch.setattr(Estimate, "statistic", hides_zero)


# -- the noise itself ------------------------------------------------------------------------------

TWO = of_losses(recipe="incumbent_leader", schedule="capped 1", actions=3).with_estimates(
    [estimate(name, epsilon="3", min_length=1) for name in ("regret_vs_uniform", "mean_loss")]
)
"""Blocks of a slot are both short, so that they may share bits."""

noisy = mutant(TWO, layer="samples", said="noise", samples=10_000)


def with_scale(patch: pytest.MonkeyPatch, changed: Fraction) -> None:
    """Noise of another scale than the one that is charged for."""

    def drawn(scale: Fraction, bits: Bits) -> Ints:
        return discrete_laplace(scale * changed, bits) if changed else np.zeros(bits.rows, np.int64)

    patch.setattr(losses, "discrete_laplace", drawn)


def with_bits(patch: pytest.MonkeyPatch, of: Callable[[int, Ints], tuple[int, Ints]]) -> None:
    """Noise from other bits: `of` changes their purpose and their blocks."""
    bits = Fresh.bits

    def other(self: Fresh, purpose: int, rows: Ints, indices: Ints) -> Bits:
        if purpose >= Purpose.NOISE:
            purpose, indices = of(purpose, indices)
        return bits(self, purpose, rows, indices)

    patch.setattr(Fresh, "bits", other)


@noisy
def adds_no_noise_to_estimates(patch: pytest.MonkeyPatch) -> None:
    with_scale(patch, Fraction(0))


@mutant(REGRET, layer="samples", said="noise does not follow the law of its scale")
@noisy
def adds_half_the_noise_to_estimates(patch: pytest.MonkeyPatch) -> None:
    with_scale(patch, Fraction(1, 2))


@noisy
def adds_three_quarters_of_the_noise_to_estimates(patch: pytest.MonkeyPatch) -> None:
    with_scale(patch, Fraction(3, 4))


@noisy
def draws_all_estimates_from_the_same_bits(patch: pytest.MonkeyPatch) -> None:
    with_bits(patch, lambda purpose, blocks: (Purpose.NOISE, blocks))


@noisy
def draws_estimates_from_the_bits_of_the_selection(patch: pytest.MonkeyPatch) -> None:
    with_bits(patch, lambda purpose, blocks: (Purpose.SELECTION, blocks))


@noisy
def draws_estimates_of_all_blocks_from_the_same_bits(patch: pytest.MonkeyPatch) -> None:
    with_bits(patch, lambda purpose, blocks: (purpose, blocks * 0))


@noisy
def estimates_what_the_next_action_would_have_lost(patch: pytest.MonkeyPatch) -> None:
    """The one that is selected at the block's end."""

    def and_in_force(self: Fresh, rows: Ints, votes: Votes) -> Ints:
        chosen = votes(self, rows)
        self.bank.public["action"][rows] = chosen
        return chosen

    with_votes(patch, and_in_force)
