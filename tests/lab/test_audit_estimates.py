"""Are private estimates charged what they cost, and drawn once? Broken ones: `test_mutants`."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.engine import Engine, rebuild
from streamdp.core.engine.releasing import FromRecord
from streamdp.core.events import ACTION
from streamdp.core.kinds.estimates import ESTIMATES, estimate
from streamdp.core.learners import Leader, learner_of
from streamdp.core.randomness import Bits, Purpose, SeededRandomness
from streamdp.lab.audit import LAYERS, Findings, audit_kind
from streamdp.lab.audit.exposure import designs, exposed
from streamdp.lab.audit.transcripts import worst_ratios
from tests.support.batches import loss_batch

pytestmark = pytest.mark.slow


def learner(*, actions: int = 2) -> Leader:
    options = {"recipe": "incumbent_leader", "epsilon": "1"}
    return learner_of(options, actions=[f"a{i}" for i in range(actions)])


SECOND = 3
"""How many slots the second block has; the first has one."""


@pytest.mark.parametrize("name", sorted(ESTIMATES))
def test_every_estimate_costs_at_most_its_charge(name: str) -> None:
    """From the second block on. (A null slot moves a selection less than a vertex does.)

    Every short stream, and samples; what an engine does in long ones is asked of all together.
    """
    kind = learner().with_estimates([estimate(name, epsilon="1/2", min_length=SECOND)])
    findings = Findings(kind, samples=1000, longest=16)
    for layer in ("streams", "lone slots", "samples"):
        assert list(LAYERS[layer](findings)) == []
    assert findings.charged == Fraction(3, 2)
    assert 1 - 1e-9 < findings.worst <= 1.5 + 1e-9


@pytest.mark.parametrize("name", sorted(ESTIMATES))
def test_every_estimate_costs_no_more_with_three_actions(name: str) -> None:
    """A sensitivity may depend on K: every replacement in every short stream."""
    kind = learner(actions=3).with_estimates([estimate(name, epsilon="1/2", min_length=SECOND)])
    ratios = [worst_ratios(exposed(kind, design), kind) for design in designs(kind)]
    assert 1 - 1e-9 < max(max(of.values()) for of in ratios) <= 1.5 + 1e-9


def test_all_estimates_together_cost_their_sum() -> None:
    asked = [estimate(name, epsilon="1/4", min_length=1) for name in sorted(ESTIMATES)]
    audit = audit_kind(learner().with_estimates(asked), samples=1000, longest=16)
    assert (audit.failures, audit.charged) == ((), Fraction(2))
    assert audit.worst > 1.25


def test_a_rounded_statistic_needs_a_rounded_sensitivity() -> None:
    """For K = 3 the mean of sums is no multiple of the grid: 4/3 of a loss becomes ⌈4/3·2^20⌉."""
    assert estimate("regret_vs_uniform", epsilon=1, min_length=1).sensitivity(actions=3) == -(
        -4 * 2**20 // 3
    )


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
