"""Do keys that are alike lose less by knowing each other, and keys that are not hardly more?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from typer.testing import CliRunner

import streamdp as sd
from streamdp.cli import application
from streamdp.core.learners import Leader
from streamdp.lab.replay import crowd_worlds, crowds
from streamdp.lab.replay.crowd_worlds import BESIDE, SETS, STAGGERED, Kind
from streamdp.lab.replay.crowds import CrowdOutcome, Size, caught, regret_left, simulate_crowds

SMALL = Size(keys=80, actions=5, horizon=1500, runs=3, seed=1)


def growing(epsilon: Fraction, actions: Sequence[str]) -> Leader:
    """A learner whose blocks grow."""
    return sd.incumbent_leader(actions=actions, epsilon=epsilon)


def played(*names: str, size: Size = SMALL) -> list[CrowdOutcome]:
    """Some kinds at ε = 1."""
    kinds = [kind for kind in (*STAGGERED, *BESIDE) if kind.name in names]
    return list(simulate_crowds(growing, [Fraction(1)], kinds=kinds, size=size))


@pytest.mark.slow
def test_do_keys_with_the_same_best_action_lose_far_less() -> None:
    """With eighty keys already less than half; with a thousand a fifteenth (docs/crowd.md)."""
    (same,) = played("same best")
    assert regret_left([same])[0] < 0.5


@pytest.mark.slow
def test_do_unrelated_keys_lose_hardly_more() -> None:
    """Nor those of a power law, nor those that begin at once."""
    for outcome in played("unrelated", "power law, unrelated", "at once, unrelated"):
        assert regret_left([outcome])[0] < 1.15, outcome.kind.name


@pytest.mark.slow
def test_is_harm_bounded_where_the_crowd_is_wrong() -> None:
    """The crowd's favourite is the worst action for a fifth of the keys."""
    (trap,) = played("trap")
    assert caught(trap) < 1.5
    assert regret_left([trap])[0] < 1.0


def test_is_a_crowd_that_is_told_nothing_the_learner_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Same losses, same bits: without a prior the two differ by nothing at all."""
    monkeypatch.setattr(crowds, "due", lambda after: 1 << 60)
    for outcome in played("five clusters", "power law, alike"):
        assert np.array_equal(outcome.alone, outcome.crowd)


@pytest.mark.slow
def test_do_groups_say_what_they_can() -> None:
    """Keys of one cluster gain by being a group; groups that mean nothing hardly cost."""
    size = Size(keys=150, actions=10, horizon=3000, runs=3, seed=1)
    kinds = ("five clusters", "clusters that are groups", "unrelated, in groups")
    apart, grouped, unrelated = (regret_left([outcome])[0] for outcome in played(*kinds, size=size))
    assert grouped < 0.75 * apart
    assert unrelated < 1.15


@pytest.mark.slow
def test_do_keys_lose_hardly_more_where_the_world_changes() -> None:
    """A world of four phases, and a memory: old votes for what was best give way to new ones."""
    size = Size(keys=80, actions=5, horizon=6000, runs=3, seed=1)
    kinds = [kind for kind in BESIDE if kind.name in ("changing, same best", "changing, unrelated")]

    def remembering(epsilon: Fraction, actions: Sequence[str]) -> Leader:
        return sd.remembering_leader(actions=actions, epsilon=epsilon)

    same, unrelated = simulate_crowds(remembering, [Fraction(2)], kinds=kinds, size=size)
    assert regret_left([same])[0] < 1.1 > regret_left([unrelated])[0]


def test_do_phases_share_a_world_out() -> None:
    """Each slot of each key lies in one phase, and phases are equally long in time."""
    kind = next(kind for kind in BESIDE if kind.name == "changing, unrelated")
    world = kind.world(
        np.random.default_rng(1), keys=50, actions=4, horizon=1000, structure=0, scale=SETS["wide"]
    )
    assert world.means.shape == (4, 50, 4)
    assert (np.diff(world.borders, axis=0) >= 0).all()
    assert (world.borders[-1] == world.slots).all()
    ends = (world.starts.max() + 1000) / 4
    first = np.clip(np.ceil(ends - world.starts), 0, 1000)
    assert world.borders[0].tolist() == first.tolist()


def test_is_a_simulation_the_same_again() -> None:
    """A seed says everything."""
    few = Size(keys=20, actions=3, horizon=200, runs=2, seed=1)
    (one,), (other,) = (played("half alike", size=few) for _ in range(2))
    assert np.array_equal(one.crowd, other.crowd)
    (another,) = played("half alike", size=replace(few, seed=2))
    assert not np.array_equal(one.crowd, another.crowd)


def invoke(*arguments: str) -> str:
    """What the command says."""
    result = CliRunner().invoke(application(), ["simulate", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_can_a_crowd_be_simulated_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables for people and a list for machines, each kind at each ε."""
    monkeypatch.setattr(crowd_worlds, "STAGGERED", (Kind("trap", BESIDE[-1].means), STAGGERED[0]))
    monkeypatch.setattr(crowd_worlds, "BESIDE", ())
    arguments = ["--keys", "10", "--slots", "12", "--epsilon", "0.5,2", "--actions", "3"]
    table = invoke(*arguments, "--markdown", "--runs", "2")
    assert "| trap: whom it catches |" in table
    assert "| geometric mean of the first ten |" in table
    assert "wide: regret" in table
    assert "narrow: regret" in table
    listed = json.loads(invoke(*arguments, "--json"))
    assert [(e["worlds"], e["world"], e["epsilon"], e["runs"]) for e in listed] == [
        (worlds, world, epsilon, 3)
        for worlds in ("wide", "narrow")
        for world in ("trap", "identical")
        for epsilon in ("1/2", "2")
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--keys", "1"], "simulate: size"),
        (["--keys", "9", "--worlds", "drifting"], "unknown worlds"),
        (["--keys", "9", "--world", "nowhere"], "--world: unknown"),
        (["--keys", "9", "--observes", "clicks"], "--observes: unknown"),
        (["--keys", "9", "--observes", "feedback", "--donate"], "with itself"),
        (["--keys", "9", "--observes", "feedback", "--world", "groups"], "--world: unknown"),
        (["--keys", "9", "--observes", "feedback", "--learners", "ucb1,thompson"], "with itself"),
        (
            ["--keys", "9", "--observes", "feedback", "--learners", "policy_weights"],
            "policies cannot use",
        ),
        (["--keys", "9", "--learners", "incumbent_leader,remembering_leader"], "with itself"),
        (["--keys", "9", "--epsilon", "1,inf"], "finite ε"),
        (["--keys", "9", "--learners", "noisy_leader:noise=gumbel"], "a crowd of other draws"),
    ],
)
def test_is_a_crowd_refused_that_is_none(arguments: list[str], said: str) -> None:
    """One learner beside itself, that selects by permute-and-flip."""
    result = CliRunner().invoke(application(), ["simulate", *arguments])
    assert result.exit_code != 0
    assert said in " ".join(str(result.exception or result.output).split())
