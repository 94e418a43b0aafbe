"""Does the simulation of feedback learners tell how good they are, and are they good?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.lab.common.answer import Answer
from streamdp.lab.common.cells import parse_candidates, policy_learner, usual_policies
from streamdp.lab.play import Courses, RunBits, Shows, play
from streamdp.lab.simulation import SimulationSize, simulate
from streamdp.lab.worlds import World
from streamdp.lab.worlds.families import FEEDBACK
from streamdp.wire.unprotected import NOT_PRIVATE
from tests.support.command_line import run_command

GRADED, EQUAL, CLICKS = FEEDBACK[:3]
HALF = Fraction(1, 2)
SMALL = World.of_rewards("small", (0.9, 0.1, 0.1))


def simulated(
    learners: str,
    world: World,
    *,
    epsilons: Sequence[Fraction] = (HALF,),
    runs: int = 100,
    horizon: int = 10**6,
    seed: int = 1,
    delay: int = 0,
    **asked: Any,
) -> list[Answer]:
    """Learners of feedback in one world."""
    candidates = parse_candidates(learners, observes="feedback")
    size = SimulationSize(runs, horizon, seed, delay)
    return simulate(candidates, epsilons, [world], size, **asked)


@pytest.mark.parametrize(
    ("world", "at_most"),
    [(GRADED, (570, 400, 300)), (EQUAL, (620, 480, 400)), (CLICKS, (400, 300, 240))],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_default_reaches_its_regret(world: World, at_most: tuple[int, int, int]) -> None:
    """A million slots with a block's delay, 200 runs: mean + 2 s.e. below the bar; fixed seed.

    (At clicks and ε = ¼ about one run in 3,000 goes astray for long and shows in the mean of a few
    hundred.) The best of the papers' forms, which wait for nothing, have 1893, 978, 496 on graded
    means and 1689, 1036, 576 on equal ones (see docs/feedback.md).
    """
    budgets = [Fraction(1, 4), HALF, Fraction(1)]
    outcomes = simulated("policy_blocks", world, epsilons=budgets, runs=200, seed=2)
    for outcome, bar in zip(outcomes, at_most, strict=True):
        assert outcome.mean + 2 * outcome.error < bar, outcome


def test_runs_that_early_noise_leads_astray_find_back() -> None:
    """At a click rate of 5 % the worst 1 % of 1,000 runs have at most 5 times the mean regret."""
    (outcome,) = simulated("policy_blocks", CLICKS, epsilons=[Fraction(1, 4)], runs=1000, seed=7)
    assert outcome.worst < 5 * outcome.mean, outcome


def test_a_floor_is_what_lets_them() -> None:
    """Without floor and heavy tails some runs lock in: the bar above can be missed."""
    (outcome,) = simulated(
        "policy_blocks:floor=1/100:spread=3/4", CLICKS, epsilons=[Fraction(1, 4)], runs=300
    )
    assert outcome.worst > 5 * outcome.mean, outcome


def test_regret_is_that_of_the_policy() -> None:
    """Uniform play has n slots of regret Σ gap/K; a seed gives the same numbers again."""
    uniform = "policy_weights:schedule=restarting 1000:mixing=1"
    (outcome,) = simulated(uniform, SMALL, runs=4, horizon=1000)
    assert outcome.regret == pytest.approx(1000 * 1.6 / 3, rel=1e-6)
    first, again, other = (
        simulated("policy_blocks", SMALL, runs=9, horizon=1000, seed=seed)[0].regret
        for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).any()


def test_late_feedback_drift_and_beta_rewards_arrive() -> None:
    """Each kind of world: learning beats uniform play; forgetting beats memory where it drifts."""
    by_name = {world.name: world for world in FEEDBACK}
    for name in ("graded, beta rewards", "graded, a tenth late"):
        (outcome,) = simulated("policy_blocks", by_name[name], runs=20, horizon=10**5)
        assert outcome.mean < 10**5 * 0.25 / 50
    drift = by_name["the best arm changes 9 times"]
    learners = "policy_blocks,policy_blocks:schedule=capped 2048:forgetting=3/4"
    keeps, forgets = simulated(learners, drift, runs=4, horizon=2 * 10**5)
    assert forgets.mean < keeps.mean / 2


@pytest.mark.slow
def test_the_command_prints_tables() -> None:
    """Mean regret and the worst runs, for people, as Markdown and as JSON; baselines told once."""
    asked = ["simulate", "--observes", "feedback", "--runs", "2", "--slots", "300"]
    ran = run_command([*asked, "--json", "--epsilon", "1"])
    table = json.loads(ran.stdout)["answers"]
    assert ran.exit_code == 0
    usual = usual_policies().split(",")
    assert [row["learner"] for row in table] == usual * len(FEEDBACK)
    assert usual[0] == FEEDBACK_RECIPES.default
    assert {"regret", "standard_error", "worst_percent", "epsilon"} <= table[0].keys()
    shown = run_command([*asked, "--markdown", "--learners", "policy_blocks,thompson"])
    assert "| graded, K = 5 | thompson |" in shown.stdout
    assert "ε = 0.25" in shown.stdout
    people = run_command([*asked, "--learners", "thompson"])
    assert "Worst 1 %" in people.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--observes", "clicks"], "--observes: unknown"),
        (["--observes", "feedback", "--runs", "1"], "simulate: size"),
        (
            ["--observes", "feedback", "--learners", "follow_the_leader"],
            "expected a question about losses or",
        ),
        (["--observes", "feedback", "--learners", "thompson:x"], "learners: thompson: option"),
        (["--observes", "feedback", "--learners", "ucb1"], "simulate: too many blocks"),
        (["--observes", "feedback", "--world", "x"], "--world: unknown"),
        (["--observes", "feedback", "--epsilon", "inf"], "epsilon: no policy without noise"),
        (
            ["--observes", "feedback", "--learners", "lazy_ucb", "--world", "equal, a tenth late"],
            "simulate: nothing to play",
        ),
    ],
)
def test_is_what_cannot_be_simulated_refused(arguments: list[str], said: str) -> None:
    result = run_command(["simulate", *arguments])
    assert result.exit_code == 1 or isinstance(result.exception, InvalidConfig)
    assert said in result.output + str(result.exception)


def test_candidates_are_written_like_others() -> None:
    learner = policy_learner("policy_blocks:spread=1:played=value", HALF, actions=["x", "y", "z"])
    assert learner.played == "value"
    assert np.array(learner.actions).tolist() == ["x", "y", "z"]


def test_a_world_s_figures_say_what_showing_by_chance_loses(tmp_path: Path) -> None:
    """The report holds the figures; nothing of it is anybody's, so it has no label."""
    report = tmp_path / "page.html"
    asked = ["simulate", "--observes", "feedback", "--runs", "2", "--slots", "300"]
    ran = run_command([*asked, "--world", "graded", "--report", str(report), "--json"])
    figures = json.loads(ran.stdout)
    assert {world["name"] for world in figures["worlds"]} == {
        "graded, K = 5", "graded, beta rewards", "graded, a tenth late"
    }  # fmt: skip
    for world in figures["worlds"]:
        assert world["uniform_regret"] == pytest.approx(300 * 0.25)
    text = report.read_text()
    assert json.dumps(figures["answers"][0]["policy_over_time"]) in text
    assert NOT_PRIVATE not in json.dumps(figures)


def test_a_learner_without_policies_has_regret_over_time() -> None:
    outcomes = simulated("policy_blocks,lazy_thompson", SMALL, runs=3, horizon=1000)
    assert not len(outcomes[1].shares.starts)
    assert outcomes[1].course.mean[-1] == pytest.approx(outcomes[1].mean)


def test_add_curves_up_to_the_regret() -> None:
    """Over time it ends where it ends, and policies are probabilities."""
    (outcome,) = simulated("policy_blocks", SMALL, runs=30)
    assert outcome.course.mean[-1] == pytest.approx(outcome.mean)
    assert (np.diff(outcome.course.mean) >= 0).all()
    assert outcome.course.slots[-1] == 10**6
    assert outcome.arms is not None
    assert np.allclose(outcome.shares.shares.sum(axis=1), 1)
    assert outcome.shares.shares[-1, 0] > 0.9
    assert outcome.arms.chances.argmax() == 0
    assert outcome.arms.low[0] < 1 - 0.9 < outcome.arms.high[0]


def test_what_is_likely_the_best_follows_change() -> None:
    """As on the page: from the posterior that policies follow from, not from all blocks' sums."""
    swapped = World.of_rewards("swapped", (0.6, 0.4), (0.6, 0.4), (0.4, 0.6))
    (outcome,) = simulated("policy_following", swapped, runs=2, horizon=40_000)
    assert outcome.arms is not None
    assert outcome.arms.chances.argmax() == 1
    assert outcome.arms.chances[1] > 0.9


@pytest.mark.slow
def test_waits_every_learner_for_late_outcomes() -> None:
    """With a delay of half the horizon: more regret, for policies and phases; told on the way."""
    stages: list[str] = []

    def watch(name: str, steps: int) -> Callable[[int], None]:
        stages.append(name)
        return lambda done: None

    asked: dict[str, Any] = {"runs": 40, "horizon": 4_000, "watch": watch}
    learners = "policy_blocks,lazy_thompson:play=held,converted"
    at_once = simulated(learners, SMALL, **asked)
    late = simulated(learners, SMALL, delay=2_000, **asked)
    for soon, later in zip(at_once, late, strict=True):
        assert later.mean - 3 * later.error > 2 * soon.mean, (soon, later)
    assert "small, runs of 1 learner" in stages
    assert "converted, ε = 0.5, runs" in stages
    with pytest.raises(InvalidConfig, match="simulate: delay"):
        SimulationSize(delay=-1)


def test_do_outcomes_of_any_delay_come_about_once() -> None:
    """Counts are exact: blocks have seen every request whose delay is over by their ends."""
    learner, slots = policy_learner("policy_blocks", HALF, actions=["a", "b", "c"]), 3_000
    schedule = learner.schedule
    last = schedule.stop(schedule.block_of(slots)) - 1
    for delay in (0, 1, 37, 5_000):
        fill = Shows(
            Courses([SMALL], np.zeros(1, np.int64)),
            learner,
            last,
            last,
            delay,
            np.random.default_rng(1),
        )
        seen = 0
        for step in play(learner, 1, fill, RunBits.of(1, range(1))):
            seen += int(step.released[:, 3:].sum())
            if not len(step.ended):
                break
            end = schedule.stop(step.block) - 1
            assert seen == max(0, end - delay)
        assert seen == max(0, last - delay)


def test_is_an_adversary_held_against_the_best_fixed_arm() -> None:
    """Whoever follows the newest winner loses; a steady arm is better than both in the mean."""
    adversary = FEEDBACK[-1]
    means = adversary.table.mean(axis=0)
    assert adversary.yardstick == "fixed"
    assert int(means.argmin()) == 0
    uniform = "policy_weights:schedule=restarting 1000:mixing=1"
    (outcome,) = simulated(uniform, adversary, runs=2, horizon=6_400)
    assert outcome.mean == pytest.approx(6_400 * (means.mean() - means[0]), rel=1e-4)


@pytest.mark.slow
def test_takes_the_command_a_delay() -> None:
    results = [
        run_command(
            ["simulate", "--observes", "feedback", "--runs", "20", "--slots", "2000", "--json",
             "--world", "graded, K = 5", "--learners", "policy_blocks,lazy_thompson",
             "--epsilon", "1", "--delay", delay],
        )
        for delay in ("0", "1000")
    ]  # fmt: skip
    soon, late = ([row["regret"] for row in json.loads(one.stdout)["answers"]] for one in results)
    assert all(np.array(late) > np.array(soon))
