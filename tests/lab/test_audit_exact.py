"""Does the exact audit let every shipped learner pass, and catch every wrong calibration?

Broken engines are in `test_mutants`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import product
from math import comb

import numpy as np
import pytest

from streamdp.core import calibration
from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.grid import UNIT
from streamdp.core.learners import Leader, learner_of, naive_noisy_leader
from streamdp.core.randomness import Bits, SeededRandomness, SystemRandomness
from streamdp.core.selection import (
    Exponential,
    Mechanism,
    NoisyMaxLaplace,
    PermuteAndFlip,
    Prior,
)
from streamdp.lab.audit import (
    TOLERANCE,
    Memo,
    audit_kind,
    sample,
    sweep,
    transcripts,
)
from streamdp.lab.audit.comparing import compared
from streamdp.lab.audit.exposure import Exposure, designs, exposed, slots_alone
from streamdp.lab.audit.stories import by_turns, named
from streamdp.lab.audit.sweep import sweep_wide
from streamdp.lab.audit.telling import Told
from streamdp.lab.audit.transcripts import worst_ratios
from streamdp.lab.audit.watching import Watch
from streamdp.lab.commands.audit import SHIPPED
from streamdp.lab.kits.kinds import check_kind
from tests.support.structures import one_of_each, structure

pytestmark = pytest.mark.slow


MEMO = Memo()
"""What audits of the unbroken engine share; no test of this file breaks it."""

EPSILONS = ("0.1", "1", "3")
TWO, THREE = ["a", "b"], ["a", "b", "c"]


def shipped(options: dict[str, str], *, epsilon: str = "1", actions: int = 2) -> Leader:
    return learner_of({**options, "epsilon": epsilon}, actions=THREE[:actions])


def incumbent() -> Leader:
    return shipped({"recipe": "incumbent_leader"})


def leader(choose: Mechanism, *, actions: int = 2, resample: str = "none") -> Leader:
    """A noisy leader that charges 1, or ε, whatever its choice really costs."""
    base = shipped(
        {"recipe": "noisy_leader", "noise": "gumbel", "resample": resample}, actions=actions
    )
    return replace(base, choose=choose)


def worst(learner: Leader) -> float:
    """The worst log-ratio of a slot that varies, over short streams on the shipped engine."""
    seen = (exposed(learner, design) for design in designs(learner))
    return max(max(worst_ratios(one, learner).values()) for one in seen)


# -- what is shipped ------------------------------------------------------------------------------


shipped_options = pytest.mark.parametrize(
    "options", SHIPPED, ids=lambda options: "-".join(options.values())
)


@shipped_options
def test_every_shipped_learner_costs_at_most_its_charge(options: dict[str, str]) -> None:
    """All layers with three actions; χ² tests at a false-alarm rate of 1e-9 each, seeded.

    Blocks of 64 slots; of an engine with estimates `test_audit_kinds` asks for 256. The naive
    learner comes near its charge in the sums of blocks so long. The smallest and the largest ε: a
    rate of ε and K that is right at both, and at all three with two actions, is right in between.
    The kit finds blocks and content looked at already, and asks for a learner's other promises.
    """
    for epsilon in (EPSILONS[0], EPSILONS[-1]):
        learner = shipped(options, epsilon=epsilon, actions=3)
        audit = audit_kind(learner, samples=4000, longest=64, memo=MEMO)
        highest = audit.worst
        if options["recipe"] == "naive_noisy_leader":
            highest = max(highest, sweep(learner))
        assert audit.failures == ()
        assert audit.charged is not None
        assert audit.charged == learner.charge
        assert audit.configured == epsilon
        assert audit.charged * Fraction(66, 100) <= highest <= audit.charged + TOLERANCE
    check_kind(learner, memo=MEMO)


@shipped_options
def test_every_shipped_learner_of_two_actions_costs_at_most_its_charge(
    options: dict[str, str],
) -> None:
    """What depends on ε: streams, sums and samples. What an engine notes, saves and draws does not,
    and is asked above with three actions, in test_cli_audit with two.
    """
    for epsilon in EPSILONS:
        learner = shipped(options, epsilon=epsilon)
        assert learner.charge is not None
        by_slot = [worst_ratios(seen, learner) for seen in exposures(structure(learner))]
        highest = max(sweep(learner, longest=32), *(max(slots.values()) for slots in by_slot))
        assert learner.charge * Fraction(66, 100) <= highest <= learner.charge + TOLERANCE
        seeded, system = SeededRandomness("audit"), SystemRandomness()
        tests = [
            *sample(learner, randomness=seeded, samples=4000),
            *sample(learner, randomness=system, samples=800, longest=32),
        ]
        assert all(fit.passed for _, fit in tests)


@cache
def exposures(shape: Leader) -> list[Exposure]:
    """What the shipped engine shows to selections of learners of one structure."""
    return [exposed(shape, one) for one in [*designs(shape), *slots_alone(shape)]]


@pytest.mark.parametrize("schedule", ["dyadic", "geometric 5/2", "capped 2", "restarting 5"])
def test_every_schedule_keeps_events_apart(schedule: str) -> None:
    for recipe in ("incumbent_leader", "prefix_softmax"):
        learner = shipped({"recipe": recipe, "schedule": schedule})
        assert learner.charge is not None
        assert worst(learner) <= learner.charge + TOLERANCE


@pytest.mark.parametrize("learner", one_of_each(map(shipped, SHIPPED)), ids=str)
def test_the_engine_reads_what_a_learner_should_read(learner: Leader) -> None:
    """Sums, priors and windows of all streams of the short design: those of the plain fold.

    Of one learner of each structure: what selects takes no part.
    """
    streams = designs(learner)[0].contents()
    story = by_turns("short streams", named(len(streams)), streams)
    assert list(compared(Told(learner, story, SeededRandomness("audit"), Watch()))) == []


def test_are_rows_told_apart_though_their_numbers_are_equal() -> None:
    """The number of a row is its product with powers of one factor: (f, 0) and (0, 1) share it."""
    factor = int(transcripts._FACTOR)
    for rows in ([[factor, 0], [0, 1], [factor, 0]], [[1, 2], [1, 2], [-5, 0]], [[7, 7]]):
        table = np.array(rows, dtype=np.int64)
        distinct, which = transcripts.distinct_rows(table)
        assert len(distinct) == len(np.unique(table, axis=0))
        np.testing.assert_array_equal(distinct[which], table)


def test_a_learner_that_promises_nothing_is_called_that() -> None:
    learner = learner_of({"recipe": "follow_the_leader"}, actions=TWO)
    audit = audit_kind(learner, samples=1000, longest=64, memo=MEMO)
    assert (audit.verdict, audit.charged, audit.configured) == ("not private", None, "∞")


def test_a_learner_of_many_actions_is_audited_with_three() -> None:
    """Its recipe is run again: the naive learner's rate depends on K."""
    names = [f"a{i}" for i in range(9)]
    naive = learner_of({"recipe": "naive_noisy_leader", "epsilon": "1"}, actions=names)
    audit = audit_kind(naive, samples=2000, longest=64, memo=MEMO)
    assert (audit.actions, audit.verdict) == (3, "holds")
    handmade = replace(incumbent(), name="leader", actions=tuple(names))
    assert audit_kind(handmade, samples=2000, longest=64, memo=MEMO).actions == 3


def test_a_rate_that_is_wrong_for_many_actions_only_is_caught() -> None:
    """Streams are enumerated for three actions; single selections are swept for all of them."""
    names = [f"a{i}" for i in range(9)]
    for recipe in ({"recipe": "incumbent_leader"}, {"recipe": "noisy_leader", "noise": "laplace"}):
        good = learner_of({**recipe, "epsilon": "1"}, actions=names)
        assert audit_kind(good, samples=1000, longest=64, memo=MEMO).passed
        rate = good.choose.rate * 2
        wrong = replace(good, choose=type(good.choose)(rate))  # type: ignore[call-arg]
        assert sweep_wide(good) <= 1 + TOLERANCE
        assert sweep_wide(wrong) > 1.9


def test_a_recipe_that_is_wrong_for_many_actions_only_fails_the_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its recipe is right for three actions, so that the sweep of all of them has to tell."""
    naive = calibration.naive_laplace_rate

    def for_three(epsilon: Fraction, *, actions: int) -> Fraction:
        return naive(epsilon, actions=actions) * (1 if actions <= 3 else 3 * actions)

    monkeypatch.setattr(naive_noisy_leader, "naive_laplace_rate", for_three)
    names = [f"a{i}" for i in range(9)]
    learner = learner_of({"recipe": "naive_noisy_leader", "epsilon": "1"}, actions=names)
    audit = audit_kind(learner, samples=1000, longest=64, memo=MEMO)
    assert any(failure.startswith("9 actions: log-ratio") for failure in audit.failures)
    assert all("actions" in failure or "thousands" in failure for failure in audit.failures)


# -- calibrations as the papers print them --------------------------------------------------------

WRONG: dict[str, Callable[[Fraction], Mechanism]] = {
    "Lap(1/epsilon)": NoisyMaxLaplace,
    "Exp(1/epsilon)": PermuteAndFlip,
    "softmax at eta = epsilon": Exponential,
}


@pytest.mark.parametrize("resample", ["none", "bernoulli"])
@pytest.mark.parametrize("actions", [2, 3])
@pytest.mark.parametrize("name", WRONG)
def test_every_wrong_calibration_is_caught(name: str, actions: int, resample: str) -> None:
    for epsilon in (Fraction(1, 10), Fraction(1), Fraction(3)):
        wrong = leader(WRONG[name](epsilon), actions=actions, resample=resample)
        assert sweep(wrong) > epsilon * Fraction(17, 10)
        assert sweep(replace(wrong, choose=WRONG[name](epsilon / 2))) <= epsilon + TOLERANCE


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_calibration_fails_the_audit(name: str) -> None:
    audit = audit_kind(leader(WRONG[name](Fraction(1))), samples=1000, longest=64, memo=MEMO)
    assert (audit.verdict, audit.passed) == ("FAILS", False)
    assert any("log-ratio" in failure for failure in audit.failures)


def test_the_numbers_of_wrong_calibrations() -> None:
    """At ε = 1 and two actions: a factor two shows only in the limit for Laplace noise."""
    laplace = leader(NoisyMaxLaplace(Fraction(1)))
    assert sweep(laplace, longest=2) == pytest.approx(1.307, abs=5e-4)
    assert sweep(laplace, longest=256) == pytest.approx(1.992, abs=5e-4)
    assert sweep(leader(PermuteAndFlip(Fraction(1))), longest=2) == pytest.approx(2, abs=1e-9)
    assert sweep(leader(Exponential(Fraction(1))), longest=256) == pytest.approx(2, abs=1e-9)


def test_the_prefix_softmax_costs_two_eta_and_not_less() -> None:
    """Charging η, as if only one sum moved, is caught."""
    learner = shipped({"recipe": "prefix_softmax", "cap": "none"})
    assert sweep(replace(learner, charge=Fraction(1, 2))) > 0.99


def test_resampling_mixes_laws_and_does_not_hide_an_event() -> None:
    """Exact mixtures over binomial sums, all others at 1/2 or at vertices, n up to 8, ε = 1.

    Exp(1/ε) stays 2ε at vertices; with others at 1/2 it is less, and never more than for sums.
    """
    choose = PermuteAndFlip(Fraction(1))
    assert resampled_ratio(choose, others=[0.0, 1.0], n=3) == pytest.approx(2, abs=1e-9)
    for n in (1, 2, 5, 8):
        assert resampled_ratio(choose, others=[0.5, 0.5], n=n) < 2
        honest = PermuteAndFlip(Fraction(1, 2))
        assert resampled_ratio(honest, others=[0.5, 0.5], n=n) <= 1 + TOLERANCE


def resampled_ratio(choose: Mechanism, *, others: list[float], n: int) -> float:
    """The worst log-ratio when one of n slots is any vertex and the others hold `others`."""
    weights = [[comb(n - 1, k) * p**k * (1 - p) ** (n - 1 - k) for k in range(n)] for p in others]
    laws = []
    for corner in product((0, 1), repeat=2):
        law = np.zeros(2)
        for a, b in product(range(n), repeat=2):
            sums = np.array([a + corner[0], b + corner[1]]) * UNIT
            law += weights[0][a] * weights[1][b] * np.exp(choose.log_probabilities(sums))
        laws.append(np.log(law))
    return float(np.ptp(np.array(laws), axis=0).max())


# -- selections by floats -------------------------------------------------------------------------


@dataclass(frozen=True)
class FloatSoftmax:
    """softmax by exp, cumsum and one 53-bit uniform number, with the law that this really has."""

    rate: Fraction
    name: str = "exponential"

    def weights(self, sums: Ints, prior: Prior | None) -> Floats:
        bonuses = np.zeros(len(sums))
        if prior is not None:
            numerators = prior.numerators_of(row=0, actions=np.arange(len(sums)))
            bonuses = np.array(numerators) / prior.denominator
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(bonuses - float(self.rate) * (sums - sums.min()) / UNIT))

    def select(self, sums: Ints, bits: Bits, prior: Prior | None = None) -> Ints:
        raise NotImplementedError

    def log_probabilities(self, sums: Ints, prior: Prior | None = None) -> Floats:
        weights = self.weights(sums, prior)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.floor(np.cumsum(weights) / weights.sum() * 2.0**53) / 2.0**53
            return np.asarray(np.log(np.diff(steps, prepend=0.0)))


def test_float_zero_support_is_caught() -> None:
    """An action with probability below 2^-53 never comes, although a neighbour's may: ε = ∞."""
    assert sweep(leader(FloatSoftmax(Fraction(1, 2)))) == np.inf
    assert sweep(leader(FloatSoftmax(Fraction(1, 2))), longest=8) <= 1 + 1e-6


def test_a_float_prior_is_caught() -> None:
    """A bonus in floats swallows the others at once, or not, and which depends on losses."""
    floats = replace(leader(FloatSoftmax(Fraction(1, 2))), bonus=Fraction(36))
    assert sweep(floats, longest=8) == np.inf
    exact = replace(leader(Exponential(Fraction(1, 2))), bonus=Fraction(36))
    assert sweep(exact, longest=8) <= 1 + TOLERANCE


def test_a_float_prior_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="not exact"):
        learner_of({"recipe": "incumbent_leader", "epsilon": "1", "bonus": 0.5}, actions=TWO)  # type: ignore[dict-item]
    with pytest.raises(InvalidConfig, match="wrong array"):
        Prior(np.array([[0.5, 0.0]]), 1)
