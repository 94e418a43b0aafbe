"""Does anything but a charged release depend on content, and is it seen when something does?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from streamdp.core.bank import Bank
from streamdp.core.engine import Engine
from streamdp.core.engine.releasing import FromRecord
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Batch, Key
from streamdp.core.kinds.estimates import estimate
from streamdp.core.learners import Leader, learner_of
from streamdp.core.releases import Releases
from streamdp.lab.audit import audit_kind, leaks
from streamdp.lab.audit.interference import each_leak
from streamdp.lab.commands.audit import SHIPPED
from tests.support.feedback_mutants import made
from tests.support.leaks import compresses_rows
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
    assert leaks(learner.with_estimates(ESTIMATES)) == []


@pytest.mark.parametrize("played", ["header", "value"])
def test_no_feedback_but_charged_sums_is_seen(played: str) -> None:
    """Policies follow from releases, which a script makes."""
    assert leaks(made(played=played)) == []


def test_a_schedule_of_single_slots_tells_nothing_either() -> None:
    single = shipped({"recipe": "incumbent_leader", "schedule": "capped 1"})
    assert leaks(single.with_estimates(ESTIMATES)) == []


Break = Callable[[pytest.MonkeyPatch], None]


def counts_bad_records(patch: pytest.MonkeyPatch) -> None:
    """An engine that says how many records were unusable."""
    apply_batch = Engine.apply_batch
    bad = 0

    def counting(self: Engine, batch: Batch) -> Releases:
        nonlocal bad
        if not len(self):
            bad = 0
        bad += int((~np.isfinite(batch.content["losses"])).any(axis=1).sum())
        return apply_batch(self, batch)

    patch.setattr(Engine, "apply_batch", counting)
    patch.setattr(Engine, "__repr__", lambda self: f"Engine({bad} bad records)")


def saves_losers_first(patch: pytest.MonkeyPatch) -> None:
    """Rows saved in the order of what is in them."""

    def by_content(self: Bank, most: int) -> NDArray[np.int64]:
        return np.argsort(-self.private["sums"][: len(self)].sum(axis=1), kind="stable")[:most]

    patch.setattr(Bank, "longest_unsaved", by_content)


def refuses_bad_records(patch: pytest.MonkeyPatch) -> None:
    """An error where another content would have been taken."""
    apply_batch = Engine.apply_batch

    def strict(self: Engine, batch: Batch) -> Releases:
        if not np.isfinite(batch.content["losses"]).all():
            raise InvalidConfig("batch: a loss is not finite")
        return apply_batch(self, batch)

    patch.setattr(Engine, "apply_batch", strict)


def tells_values_in_errors(patch: pytest.MonkeyPatch) -> None:
    """An error message that quotes state."""
    read = FromRecord._read

    def quoting(
        self: FromRecord, kind: str, rows: NDArray[np.int64], blocks: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        try:
            return read(self, kind, rows, blocks)
        except Exception as error:
            raise type(error)(f"{error}; sums {self.bank.private['sums'][rows].tolist()}") from None

    patch.setattr(FromRecord, "_read", quoting)


def charges_by_content(patch: pytest.MonkeyPatch) -> None:
    """A reset that raw losses trigger: blocks of bad records are not charged and not selected."""
    apply_batch = Engine.apply_batch

    def skipping(self: Engine, batch: Batch) -> Releases:
        keep = np.asarray(np.isfinite(batch.content["losses"]).all(axis=1))
        return apply_batch(
            self,
            batch.part(keep),
        )

    patch.setattr(Engine, "apply_batch", skipping)


@pytest.fixture(scope="module")
def sound() -> None:
    """The unbroken engine tells nothing."""
    assert leaks(INCUMBENT) == []


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize(
    ("breaks", "observable"),
    [
        (counts_bad_records, "repr of the engine"),
        (compresses_rows, "save: rows and sizes"),
        (saves_losers_first, "rows and sizes"),
        (refuses_bad_records, "refused"),
        (tells_values_in_errors, "error: a release missing"),
        (charges_by_content, "ledger"),
    ],
)
def test_what_depends_on_content_is_named(
    monkeypatch: pytest.MonkeyPatch, breaks: Break, observable: str
) -> None:
    breaks(monkeypatch)
    assert any(observable in name for name in each_leak(INCUMBENT))


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
    from streamdp.core.randomness import SystemRandomness

    return Engine(
        stream="s", partition=0, learner=learner, budget="1", randomness=SystemRandomness()
    )
