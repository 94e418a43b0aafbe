"""Are private estimates charged what they cost, and drawn once?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from streamdp.core import calibration
from streamdp.core.arrays import Ints
from streamdp.core.engine import Engine, rebuild
from streamdp.core.engine.releasing import Fresh, FromRecord
from streamdp.core.events import ACTION
from streamdp.core.kinds import losses
from streamdp.core.kinds.estimates import ESTIMATES, Estimate, estimate
from streamdp.core.kinds.tariff import Tariff
from streamdp.core.learners import Leader, learner_of
from streamdp.core.noise import discrete_laplace
from streamdp.core.randomness import Bits, Purpose, SeededRandomness
from streamdp.core.schedule import Schedule
from streamdp.lab.audit import Memo, audit_kind, sample
from streamdp.lab.audit.exposure import designs, exposed
from streamdp.lab.audit.transcripts import worst_ratios
from tests.support.batches import loss_batch
from tests.support.engine_mutants import Votes, with_votes

pytestmark = pytest.mark.slow

Breaks = Callable[[pytest.MonkeyPatch], None]


def learner(*, actions: int = 2) -> Leader:
    options = {"recipe": "incumbent_leader", "epsilon": "1"}
    return learner_of(options, actions=[f"a{i}" for i in range(actions)])


SECOND = 3
"""How many slots the second block has; the first has one."""

SOUND = Memo()
"""What audits of the unbroken engine share."""


def audited(*asked: Estimate, memo: Memo = SOUND) -> tuple[bool, float, Fraction | None]:
    kind = learner().with_estimates(asked)
    audit = audit_kind(kind, samples=1000, longest=16, memo=memo)
    return audit.passed, audit.worst, audit.charged


def sound_but_for_ratios(*asked: Estimate) -> Memo:
    """What an audit finds of the unbroken engine, without what log-ratios are computed from.

    So that an audit of a broken engine that begins with it can fail by its log-ratios alone (and
    by a sample).
    """
    assert audited(*asked)[0]
    return replace(SOUND, exposures={})


@pytest.mark.parametrize("name", sorted(ESTIMATES))
def test_every_estimate_costs_at_most_its_charge(name: str) -> None:
    """From the second block on. (A null slot moves a selection less than a vertex does.)"""
    asked = estimate(name, epsilon="1/2", min_length=SECOND)
    passed, worst, charged = audited(asked)
    assert passed
    assert charged == Fraction(3, 2)
    assert 1 - 1e-9 < worst <= 1.5 + 1e-9


@pytest.mark.parametrize("name", sorted(ESTIMATES))
def test_every_estimate_costs_no_more_with_three_actions(name: str) -> None:
    """A sensitivity may depend on K: every replacement in every short stream."""
    kind = learner(actions=3).with_estimates([estimate(name, epsilon="1/2", min_length=SECOND)])
    ratios = [worst_ratios(exposed(kind, design), kind) for design in designs(kind)]
    assert 1 - 1e-9 < max(max(of.values()) for of in ratios) <= 1.5 + 1e-9


def test_all_estimates_together_cost_their_sum() -> None:
    asked = [estimate(name, epsilon="1/4", min_length=1) for name in sorted(ESTIMATES)]
    passed, worst, charged = audited(*asked)
    assert (passed, charged) == (True, Fraction(2))
    assert worst > 1.25


def test_regret_with_sensitivity_1_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = estimate("block_regret", epsilon="1/2", min_length=SECOND)
    memo = sound_but_for_ratios(asked)
    monkeypatch.setattr(calibration, "BLOCK_REGRET_SENSITIVITY", Fraction(1))
    passed, worst, _ = audited(asked, memo=memo)
    assert not passed
    assert worst == pytest.approx(2, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "constant"),
    [("mean_loss", "MEAN_LOSS_SENSITIVITY"), ("null_share", "NULL_SHARE_SENSITIVITY")],
)
def test_half_a_sensitivity_is_caught(
    monkeypatch: pytest.MonkeyPatch, name: str, constant: str
) -> None:
    """Not in the estimate's own worst case only: with a selection that spends all of its ε."""
    asked = estimate(name, epsilon="1/2", min_length=SECOND)
    memo = sound_but_for_ratios(asked)
    monkeypatch.setattr(calibration, constant, Fraction(1, 4))
    assert not audited(asked, memo=memo)[0]


def test_a_rounded_statistic_needs_a_rounded_sensitivity() -> None:
    """For K = 3 the mean of sums is no multiple of the grid: 4/3 of a loss becomes ⌈4/3·2^20⌉."""
    assert estimate("regret_vs_uniform", epsilon=1, min_length=1).sensitivity(actions=3) == -(
        -4 * 2**20 // 3
    )


def test_an_estimate_that_is_not_charged_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def action_only(
        self: Tariff, blocks: int, schedule: Schedule
    ) -> Iterator[tuple[Fraction, int, int]]:
        yield self.releases[0].epsilon, 0, blocks

    asked = estimate("block_regret", epsilon="1/2", min_length=SECOND)
    memo = sound_but_for_ratios(asked)
    monkeypatch.setattr(Tariff, "of_first", action_only)
    assert not audited(asked, memo=memo)[0]


def test_an_estimate_for_blocks_that_losses_choose_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Released only where regret is positive: whether it exists is a second release."""
    statistic = Estimate.statistic

    def hides_zero(self: Estimate, sums: Ints, *, action: Ints, nulls: Ints) -> Ints:
        value = statistic(self, sums, action=action, nulls=nulls)
        return np.where(value == 0, -(2**40), value)  # far outside: "no value"

    asked = estimate("block_regret", epsilon="1/2", min_length=SECOND)
    memo = sound_but_for_ratios(asked)
    monkeypatch.setattr(Estimate, "statistic", hides_zero)
    assert not audited(asked, memo=memo)[0]


# -- the noise itself: χ² tests at a false-alarm rate of 1e-9 each, seeded -------------------------

TWO = (
    estimate("regret_vs_uniform", epsilon="3", min_length=2),
    estimate("mean_loss", epsilon="3", min_length=2),
)


def scaled(noise: Fraction) -> Breaks:
    """Noise of another scale than the one that is charged for."""

    def breaks(patch: pytest.MonkeyPatch) -> None:
        def drawn(scale: Fraction, bits: Bits) -> Ints:
            return discrete_laplace(scale * noise, bits) if noise else np.zeros(bits.rows, np.int64)

        patch.setattr(losses, "discrete_laplace", drawn)

    return breaks


def purposes(purpose: Callable[[int], int]) -> Breaks:
    """Noise from bits that another draw reads."""

    def breaks(patch: pytest.MonkeyPatch) -> None:
        bits = Fresh.bits

        def shared(self: Fresh, asked: int, rows: Ints, indices: Ints) -> Bits:
            own = purpose(asked) if asked >= Purpose.NOISE else asked
            return bits(self, own, rows, indices)

        patch.setattr(Fresh, "bits", shared)

    return breaks


def blocks_share(patch: pytest.MonkeyPatch) -> None:
    """The noise of every block is the first one's."""
    bits = Fresh.bits

    def shared(self: Fresh, asked: int, rows: Ints, indices: Ints) -> Bits:
        return bits(self, asked, rows, indices * 0 if asked >= Purpose.NOISE else indices)

    patch.setattr(Fresh, "bits", shared)


def of_the_next_action(patch: pytest.MonkeyPatch) -> None:
    """What the action that is selected at the block's end would have lost in it."""

    def and_in_force(self: Fresh, rows: Ints, votes: Votes) -> Ints:
        chosen = votes(self, rows)
        self.bank.public["action"][rows] = chosen
        return chosen

    with_votes(patch, and_in_force)


def noise_fits() -> bool:
    single = learner_of(
        {"recipe": "incumbent_leader", "epsilon": "1", "schedule": "capped 1"},
        actions=["a", "b", "c"],
    )
    estimates = tuple(replace(asked, min_length=1) for asked in TWO)
    kind = single.with_estimates(estimates)
    tests = sample(kind, randomness=SeededRandomness(2), samples=10_000)
    return all(fit.passed for _, fit in tests)


@pytest.fixture(scope="module")
def sound_noise() -> None:
    """The noise of the unbroken engine is what is charged."""
    assert noise_fits()


@pytest.mark.usefixtures("sound_noise")
@pytest.mark.parametrize(
    "breaks",
    [
        scaled(Fraction(0)),
        scaled(Fraction(1, 2)),
        scaled(Fraction(3, 4)),
        purposes(lambda asked: Purpose.NOISE),
        purposes(lambda asked: Purpose.SELECTION),
        blocks_share,
        of_the_next_action,
    ],
    ids=["none", "half", "three quarters", "one for all", "the selection's", "one for all blocks",
         "of the next action"],
)  # fmt: skip
def test_noise_that_is_not_what_is_charged_is_caught(
    monkeypatch: pytest.MonkeyPatch, breaks: Breaks
) -> None:
    """The exact layer takes the noise's law as given, so the engine's noise has a test of its own.

    On single slots both blocks are short, so that blocks may share bits; K = 3.
    """
    breaks(monkeypatch)
    assert not noise_fits()


def test_noise_that_is_wrong_fails_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of an estimate that is due for long blocks only: it is audited on short ones."""
    late = estimate("block_regret", epsilon="1/2", min_length=64)
    assert audited(late) == audited(replace(late, min_length=SECOND))
    scaled(Fraction(1, 2))(monkeypatch)
    audit = audit_kind(learner().with_estimates([late]), samples=4000, longest=16, memo=SOUND)
    assert any(failure.startswith("noise does not follow") for failure in audit.failures)


class NoDraws:
    """Randomness for a rebuild: what may be drawn anew is drawn, a release is not."""

    seeded = False

    def tag(self, stream: str, partition: int, key: bytes | None, epoch: int, born: int) -> bytes:
        return bytes(16)

    def bits(
        self, stream: str, purpose: int, tags: NDArray[np.uint8], indices: NDArray[np.int64]
    ) -> Bits:
        if purpose not in (Purpose.WINDOW, Purpose.RESAMPLE):
            raise AssertionError("a release is drawn again")
        return SeededRandomness(0).bits(stream, purpose, tags, indices)


def rebuilt() -> Engine:
    """An engine lived, then rebuilt from its log and its recorded releases."""
    asked = (estimate("block_regret", epsilon="1/2", min_length=2),)
    rows = np.random.default_rng(1).random((40, 2)).astype(np.float32)
    log = loss_batch([b"k"], np.zeros(40, np.int64), rows, np.arange(40))

    def engine(randomness: SeededRandomness | NoDraws) -> Engine:
        return Engine(
            stream="s",
            partition=0,
            learner=learner(),
            estimates=asked,
            budget="3/2",
            randomness=randomness,
        )

    first = engine(SeededRandomness(1))
    drawn = first.apply_batch(log)
    return rebuild(
        engine(NoDraws()), rows=[], releases=drawn, log=[log], position=40, expected_rows=1
    )


def test_a_rebuilt_engine_reads_estimates_back() -> None:
    assert rebuilt().slots(b"k") == 40


def test_an_estimate_that_is_drawn_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two draws of one estimate cost 2 ε_m, while the ledger says ε_m."""

    released = FromRecord.released

    def drawn_again(self: FromRecord, name: str, rows: Ints) -> Ints:
        if name != ACTION:
            tags, index = np.zeros((len(rows), 16), np.uint8), np.zeros(len(rows), np.int64)
            NoDraws().bits("s", Purpose.NOISE, tags, index)
        return released(self, name, rows)

    monkeypatch.setattr(FromRecord, "released", drawn_again)
    with pytest.raises(AssertionError, match="a release is drawn again"):
        rebuilt()
