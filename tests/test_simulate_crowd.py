"""Do keys that are alike lose less by knowing each other, and keys that are not hardly more?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from typer.testing import CliRunner

import streamdp as sd
from streamdp.cli import application
from streamdp.core.learners import Leader
from streamdp.replay import crowds
from streamdp.replay.crowd_worlds import BESIDE, STAGGERED, Kind
from streamdp.replay.crowds import CrowdOutcome, Size, caught, simulate_crowds, told

SMALL = Size(keys=80, actions=5, horizon=1500, runs=3, seed=1)


def growing(epsilon: Fraction, actions: Sequence[str]) -> Leader:
    """A learner whose blocks grow."""
    return sd.incumbent_leader(actions=actions, epsilon=epsilon)


def played(*names: str, size: Size = SMALL) -> list[CrowdOutcome]:
    """Some kinds at ε = 1."""
    kinds = [kind for kind in (*STAGGERED, *BESIDE) if kind.name in names]
    return list(simulate_crowds(growing, [Fraction(1)], kinds=kinds, size=size))


def test_do_keys_with_the_same_best_action_lose_far_less() -> None:
    """With eighty keys already less than half; with a thousand a fifteenth (docs/crowd.md)."""
    (same,) = played("same best")
    assert told([same])[0] < 0.5


def test_do_unrelated_keys_lose_hardly_more() -> None:
    """Nor those of a power law, nor those that begin late."""
    for outcome in played("unrelated", "power law, unrelated", "cold start, unrelated"):
        assert told([outcome])[0] < 1.15, outcome.kind.name


def test_is_harm_bounded_where_the_crowd_is_wrong() -> None:
    """The crowd's favourite is the worst action for a fifth of the keys."""
    (trap,) = played("trap")
    assert caught(trap) < 1.5
    assert told([trap])[0] < 1.0


def test_is_a_crowd_that_is_told_nothing_the_learner_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Same losses, same bits: without a prior the two differ by nothing at all."""
    monkeypatch.setattr(crowds, "due", lambda after: 1 << 60)
    for outcome in played("five clusters", "power law, alike"):
        assert np.array_equal(outcome.alone, outcome.crowd)


def test_is_a_simulation_the_same_again() -> None:
    """A seed says everything."""
    (one,), (other,) = (played("half alike") for _ in range(2))
    assert np.array_equal(one.crowd, other.crowd)
    (another,) = played("half alike", size=Size(keys=80, actions=5, horizon=1500, runs=3, seed=2))
    assert not np.array_equal(one.crowd, another.crowd)


def invoke(*arguments: str) -> str:
    """What the command says."""
    result = CliRunner().invoke(application(), ["simulate", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_can_a_crowd_be_simulated_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables for people and a list for machines, each kind at each ε."""
    few = [Kind("trap", BESIDE[-1].means), STAGGERED[0]]
    plain = crowds.simulate_crowds
    monkeypatch.setattr(
        crowds,
        "simulate_crowds",
        lambda learner, epsilons, *, size, progress: plain(
            learner, epsilons, kinds=few, size=size, progress=progress
        ),
    )
    arguments = ["--keys", "20", "--slots", "60", "--epsilon", "0.5,2"]
    table = invoke(*arguments, "--markdown")
    assert "| trap: whom it catches |" in table
    assert "| geometric mean of the first ten |" in table
    listed = json.loads(invoke(*arguments, "--json"))
    assert [(each["world"], each["epsilon"], each["runs"]) for each in listed] == [
        (world, epsilon, 3) for world in ("trap", "identical") for epsilon in ("1/2", "2")
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--keys", "1"], "simulate: size"),
        (["--keys", "9", "--observes", "feedback"], "no votes"),
        (["--keys", "9", "--learners", "incumbent_leader,remembering_leader"], "with itself"),
        (["--keys", "9", "--epsilon", "1,inf"], "with itself"),
        (["--keys", "9", "--learners", "noisy_leader:noise=gumbel"], "a crowd of other draws"),
    ],
)
def test_is_a_crowd_refused_that_is_none(arguments: list[str], said: str) -> None:
    """One learner beside itself, that selects by permute-and-flip."""
    result = CliRunner().invoke(application(), ["simulate", *arguments])
    assert result.exit_code != 0
    assert said in " ".join(str(result.exception or result.output).split())
