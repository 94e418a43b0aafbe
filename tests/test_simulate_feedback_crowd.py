"""Do keys of a feedback stream lose less by knowing each other, and unlike ones hardly more?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from typer.testing import CliRunner

from streamdp.cli import application
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.lab.replay import feedback_crowds
from streamdp.lab.replay.crowd_worlds import SETS
from streamdp.lab.replay.crowds import CrowdOutcome, Size, caught, regret_left
from streamdp.lab.replay.feedback_crowds import KINDS, simulate_feedback_crowds

SMALL = Size(keys=60, actions=4, horizon=1500, runs=3, seed=1)


def usual(epsilon: Fraction, actions: Sequence[str]) -> PolicyLearner:
    """The default."""
    return policy_blocks(actions=actions, epsilon=epsilon)


def played(*names: str, size: Size = SMALL) -> list[CrowdOutcome]:
    """Some kinds at ε = 1."""
    kinds = [kind for kind in KINDS if kind.name in names]
    return list(simulate_feedback_crowds(usual, [Fraction(1)], kinds=kinds, size=size))


@pytest.mark.slow
def test_what_do_keys_gain_or_lose() -> None:
    """Alike ones gain much, unrelated ones and those that a trap is laid for lose hardly."""
    by_name = {outcome.kind.name: outcome for outcome in played("identical", "unrelated", "trap")}
    assert regret_left([by_name["identical"]])[0] < 0.6
    assert regret_left([by_name["unrelated"]])[0] < 1.1
    assert caught(by_name["trap"]) < 1.3


def test_is_a_crowd_that_is_told_nothing_the_learner_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Same losses, same noise: without a prior the two differ by nothing at all."""
    monkeypatch.setattr(feedback_crowds, "due", lambda after: 1 << 60)
    for outcome in played("changing, same best", size=replace(SMALL, keys=10, horizon=300)):
        assert np.array_equal(outcome.alone, outcome.crowd)


def test_does_each_block_release_what_was_shown() -> None:
    """Counts of all blocks add up to the slots, over the phases too; with noise in both numbers."""
    (kind,) = (possible for possible in KINDS if possible.name == "changing, clusters")
    world = kind.world(
        np.random.default_rng(1), keys=5, actions=3, horizon=400, structure=0,
        scale=SETS["wide"],
    )  # fmt: skip
    for of in ("header", "value"):
        learner = policy_blocks(actions=["a", "b", "c"], epsilon="1", played=of)
        play = feedback_crowds._Play.of(world, learner, (1, 2))
        play.policy[:] = 1 / 3
        shown = [play._block(2, block)[1].sum() for block in range(8)]
        wanted = np.diff(np.append(0, np.minimum(play.stops[:8], 400)))
        assert (np.array_equal(shown, wanted)) == (of == "header")


def test_can_it_be_asked_for_on_the_command_line() -> None:
    """As tables, and for machines."""
    arguments = [
        "simulate", "--observes", "feedback", "--keys", "6", "--actions", "3", "--slots", "60",
        "--runs", "2", "--epsilon", "1", "--worlds", "wide", "--world", "trap",
        "--learners", "policy_blocks:spread=1", "--json",
    ]  # fmt: skip
    result = CliRunner().invoke(application(), arguments)
    assert result.exit_code == 0, result.output
    (outcome,) = json.loads(result.stdout)
    assert (outcome["world"], outcome["runs"]) == ("trap", 2)
