"""Does one event move what a whole crowd releases by its charge at most, whatever the priors?

Two keys' learners are run through the shipped engine under every transcript that they can have, and
under every content of one record. A transcript's probability is the product of the laws of its
draws, each from the sums and the prior that the engine handed to that draw. Nothing is assumed
about which event reaches which draw, by which prior: that is what is being checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core.engine.crowding import PartitionCrowd
from streamdp.core.engine.machine import Engine
from streamdp.core.engine.plan import Batch, Plan
from streamdp.core.events import CrowdPrior, LossBatch
from streamdp.core.evidence import crowd
from streamdp.core.evidence.control import NO_CONTROL, Control
from streamdp.core.evidence.crowd import POINT
from streamdp.core.evidence.groups import NO_GROUPS, Groups
from streamdp.core.grid import UNIT
from streamdp.core.learners.leader import crowded as with_control
from streamdp.lab.audit.crowd import Forced
from streamdp.lab.audit.transcripts import TOLERANCE
from tests.support.crowd_mutants import by_open_sums, from_open_sums, when_sums_say_so
from tests.support.crowded import crowded
from tests.support.forced import EPSILON, TWO, VERTICES, largest_ratios
from tests.support.strategies import cut

pytestmark = pytest.mark.usefixtures("priors_are_made_once")


NAMES = (b"x", b"y")
CONTROL = NO_CONTROL
BASE = np.array([[0, 1], [1, 0], [0, 1], [1, 0], [0, 1], [0, 1], [1, 1]], np.float32)
"""Records of the keys in turn. The blocks are 1, 2, 2 slots: five votes, and an open block."""


@pytest.fixture(autouse=True)
def two_keys_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Priors that two keys' votes already move far: what is wrong with one must show."""
    monkeypatch.setattr(crowd, "ALIKE", (0.05,))
    monkeypatch.setattr(crowd, "ALL_KEYS", 0.2)
    monkeypatch.setattr(crowd, "RELATED", (0.2,))


def forced(
    losses: NDArray[np.float32], script: tuple[int, ...], groups: Groups = NO_GROUPS
) -> list[float]:
    """The log-probabilities of a run's draws."""
    plain = sd.incumbent_leader(actions=TWO, epsilon=EPSILON, schedule="capped 2")
    learner = with_control(plain, groups=groups, control=CONTROL)
    choose = Forced(learner.choose, script)
    machine = Engine(
        stream="home", partition=0, learner=replace(learner, choose=choose),
        budget="2", randomness=sd.SeededRandomness(1),
    )  # fmt: skip
    for at, vector in enumerate(losses):
        key = NAMES[at % 2]
        machine.apply_batch(LossBatch([key], np.zeros(1, np.int64), vector[None], np.array([at])))
    assert len(choose.logs) == len(script)
    return choose.logs


def worst(
    varied: Sequence[int], scripts: Iterator[tuple[int, ...]], groups: Groups = NO_GROUPS
) -> dict[int, float]:
    """The largest log-ratio that the content of each record makes, over these transcripts."""
    return largest_ratios(
        BASE, varied, scripts, lambda losses, script: sum(forced(losses, script, groups))
    )


def transcripts(*, openings: tuple[int, int] = (0, 1)) -> Iterator[tuple[int, ...]]:
    """Every way that four or five votes can go: x opens, votes, y opens, votes, then the others."""
    for votes in product((0, 1), repeat=4):
        first, second, *others = votes
        yield (openings[0], first, openings[1], second, *others)


GROUPED = Groups(((b"x",), (b"y",)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("varied", "groups"),
    [((0, 3, 5, 6), NO_GROUPS), ((2, 5), GROUPED)],
)
def test_does_an_event_of_any_key_cost_its_charge_at_most(
    varied: tuple[int, ...], groups: Groups
) -> None:
    """Each kind of record, every transcript: the priors add nothing to ε, groups or none.

    Its key's first, one inside a block, a block's last, and one of a block that stays open.
    """
    for record, ratio in worst(varied, transcripts(), groups).items():
        assert ratio <= EPSILON + TOLERANCE
        assert (ratio > 0.5) == (record < 6)  # the last one lies in a block that is still open


@pytest.mark.slow
@pytest.mark.parametrize("names", [(b"y", b"w"), (b"y", b"apart")])
def test_does_a_control_group_cost_nothing(
    names: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which draws are told nothing follows from names: an event costs its charge all the same."""
    control = Control(Fraction(1, 2))
    assert [control.holds(name) for name in (b"y", b"w", b"apart")] == [True, False, False]
    assert control.plain(b"apart", 1, 0)
    monkeypatch.setattr("tests.test_crowd_audit.NAMES", names)
    monkeypatch.setattr("tests.test_crowd_audit.CONTROL", control)
    for ratio in worst((2, 3), transcripts()).values():
        assert 0.5 < ratio <= EPSILON + TOLERANCE


@pytest.mark.slow
def test_is_a_group_that_depends_on_sums_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is a feature of the key: what a key's losses say must reach no draw beforehand."""
    by_open_sums(monkeypatch)
    assert worst([3], transcripts(), GROUPED)[3] > EPSILON + 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("break_it", "varied"), [(from_open_sums, 2), (when_sums_say_so, 3)])
def test_is_a_prior_that_reads_sums_caught(
    break_it: Callable[[pytest.MonkeyPatch], None], varied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an open block holds would reach other keys' draws, and its own key's again."""
    break_it(monkeypatch)
    assert worst([varied], transcripts())[varied] > EPSILON + 0.05


def test_is_a_prior_that_depends_on_where_a_batch_was_cut_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant: priors are made where batches end. The clock would decide what is told to draws."""

    def whole(self: PartitionCrowd, batch: Batch, plan: Plan) -> Iterator[Batch]:
        yield batch

    def released(places: list[int]) -> list[sd.Release]:
        learner = crowded(sd.incumbent_leader(actions=TWO, epsilon=EPSILON, schedule="capped 2"))
        machine = Engine(
            stream="home", partition=0, learner=learner, budget="2",
            randomness=sd.SeededRandomness(1),
        )  # fmt: skip
        losses = np.tile(np.array([[0, 1], [1, 0]], np.float32), (20, 1))
        log = LossBatch([b"x", b"y"], np.tile([0, 1], 20), losses, np.arange(40))
        return [release for piece in cut(log, places) for release in machine.apply_batch(piece)]

    assert released([]) == released([3, 8, 30])
    monkeypatch.setattr(PartitionCrowd, "parts", whole)
    assert released([]) != released([3, 8, 30])


@pytest.mark.parametrize("bonuses", [(0, 0), (3, -3), (-1, 2), (12, -9)])
def test_is_a_draw_as_private_under_any_prior(bonuses: tuple[int, int]) -> None:
    """Any bonus vector, and base sums up to 256: the worst log-ratio of one draw is ε."""
    learner = crowded(sd.incumbent_leader(actions=TWO, epsilon=EPSILON))
    units = np.array(bonuses, np.int64) << POINT
    prior = CrowdPrior.of(1, after=1, gap=0, bonuses=units)
    ratio = 0.0
    for lead in (-255, -20, -3, -1, 0, 1, 3, 20, 255):
        base = np.array([max(0, lead), max(0, -lead)])
        logs = np.array(
            [
                learner.log_probabilities(
                    (base + vertex.astype(np.int64)) * UNIT, in_force=0, prior=prior
                )
                for vertex in VERTICES
            ]
        )
        ratio = max(ratio, float((logs.max(axis=0) - logs.min(axis=0)).max()))
    assert EPSILON * 0.9 < ratio <= EPSILON + TOLERANCE
