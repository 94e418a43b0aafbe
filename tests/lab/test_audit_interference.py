"""Does anything but a charged release depend on content? (Leaks are found in `test_mutants`.)"""

from __future__ import annotations

import pytest

from streamdp.core.engine import Engine
from streamdp.core.events import Key
from streamdp.core.kinds.estimates import estimate
from streamdp.core.learners import Leader, learner_of
from streamdp.core.randomness import SystemRandomness
from streamdp.lab.audit import audit_kind, leaks
from streamdp.lab.commands.audit import SHIPPED
from tests.support.leaks import compresses_rows
from tests.support.mutants.table import made
from tests.support.structures import one_of_each

pytestmark = pytest.mark.slow

ESTIMATES = (
    estimate("block_regret", epsilon="1/4", min_length=2),
    estimate("null_share", epsilon="1/4", min_length=4),
)


def shipped(options: dict[str, str], *, actions: int = 3) -> Leader:
    return learner_of({**options, "epsilon": "1"}, actions=[f"a{i}" for i in range(actions)])


INCUMBENT = shipped({"recipe": "incumbent_leader"})


@pytest.mark.parametrize(
    "learner", one_of_each(shipped(options, actions=7) for options in SHIPPED), ids=str
)
def test_nothing_but_charged_releases_depends_on_content(learner: Leader) -> None:
    """With estimates; without them it is a layer of each audit in `test_audit_exact`.

    Of one learner of each structure: selections are made by a script, whatever the noise.
    """
    assert list(leaks(learner.with_estimates(ESTIMATES))) == []


@pytest.mark.parametrize("played", ["header", "value"])
def test_no_feedback_but_charged_sums_is_seen(played: str) -> None:
    """Policies follow from releases, which a script makes."""
    assert list(leaks(made(played=played))) == []


def test_a_schedule_of_single_slots_tells_nothing_either() -> None:
    single = shipped({"recipe": "incumbent_leader", "schedule": "capped 1"})
    assert list(leaks(single.with_estimates(ESTIMATES))) == []


def test_a_leak_fails_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    compresses_rows(monkeypatch)
    audit = audit_kind(INCUMBENT, samples=1000, longest=4)
    assert not audit.passed
    assert any("depends on content: save" in failure for failure in audit.failures)


def test_saved_rows_have_one_size() -> None:
    """What the compressed variant breaks, said directly: a row's width depends on K alone."""
    sizes: set[int] = set()
    for losses in ([0.0, 0.0, 0.0], [1.0, 0.5, 0.1], [float("nan")] * 3):
        engine = engine_of(INCUMBENT)
        key: Key = b"k"
        engine.apply(key, losses)
        sizes.update(len(row) for _, row in engine.save())
    assert len(sizes) == 1


def engine_of(learner: Leader) -> Engine:
    return Engine(
        stream="s", partition=0, learner=learner, budget="1", randomness=SystemRandomness()
    )
