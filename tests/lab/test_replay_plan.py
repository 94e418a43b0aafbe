"""Are plans and the papers' claims measured on the learners that are shipped?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.core.learners import RECIPES
from streamdp.lab.common.answer import first_for_good
from streamdp.lab.common.cells import FOLLOWING, parse_candidate
from streamdp.lab.logs.log import ArrayLog
from streamdp.lab.papers.claims import SHOWN, Effort, claims, ratio
from streamdp.lab.papers.claims.figures import as_json, with_pictures
from streamdp.lab.planning import Wish, changing, least_epsilon, plan_changes, plan_for
from streamdp.lab.planning import as_json as planned
from streamdp.lab.play import Walk, walks
from streamdp.lab.replay.replaying import Question, replay_log, seeds_of
from streamdp.lab.worlds import World
from tests.support.calling import written
from tests.support.command_line import run_command


def test_is_a_walk_on_constant_losses_a_replay_of_them() -> None:
    """The deterministic world, in which a replay has the same law; 5.3 standard errors."""
    losses = np.tile(np.array([0.0, 0.25, 1.0], np.float32), (500, 1))
    question = Question((parse_candidate("incumbent_leader"),), (Fraction(1, 4),), seeds_of(400))
    final = replay_log(ArrayLog("constant", ("a", "b", "c"), losses), question).answers[0].regret
    leader = parse_candidate("incumbent_leader").at(Fraction(1, 4), actions=["a", "b", "c"])
    world = World("constant", (1.0,), (), ((0.0, 0.25, 1.0),))
    (walk,) = walks([leader], world, horizon=500, runs=400, seed=1)
    regrets = walk.regret
    error = np.hypot(regrets.std(ddof=1), final.std(ddof=1)) / np.sqrt(400)
    assert abs(regrets.mean() - final.mean()) < 5.3 * error


def test_do_rare_losses_and_keys_change_a_plan() -> None:
    """With rare losses the same gap is told apart sooner; keys cost what one costs, each."""
    candidate = parse_candidate("incumbent_leader")
    even, rare = (Wish(candidate, 20, 0.02, 200_000, 1, base, 7) for base in (None, 0.01))
    assert (even.best, even.others) == (0.49, 0.51)
    assert (rare.best, rare.others) == (0.01, 0.03)
    usual, answer = plan_for(even, Fraction(2)), plan_for(rare, Fraction(2))
    assert answer.mean < 0.6 * usual.mean
    (row,) = planned(rare, [answer])["answers"]
    assert row["regret_of_all_keys"] == pytest.approx(7 * answer.mean)
    with pytest.raises(InvalidConfig, match="--base: no losses; expected both in 0"):
        Wish(candidate, 2, 0.5, 10, 1, 0.6)
    with pytest.raises(InvalidConfig, match="--keys: count"):
        Wish(candidate, 2, 0.5, 10, 1, None, 0)
    result = run_command(
        ["plan", "--actions", "5", "--epsilon", "1", "--gap", "0.1", "--base", "0.8", "--keys",
         "300", "--horizon", "2000"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "the best action's mean is 0.8, all others' 0.9" in " ".join(result.stdout.split())
    assert "over 300 keys" in result.stdout


def test_does_a_plan_hang_together() -> None:
    """Blocks cover the horizon, regret adds up, the bound holds, more ε costs less."""
    wish = Wish(parse_candidate("incumbent_leader"), 20, 0.1, 20_000)
    answers = [plan_for(wish, epsilon) for epsilon in (Fraction(1, 10), Fraction(2))]
    low, high = planned(wish, answers)["answers"]
    for plan in (low, high):
        over = plan["regret_over_time"]
        assert over["slots"][-1] == 20_000
        assert over["mean"][-1] == pytest.approx(plan["regret"])
        assert len(over["slots"]) == len(plan["found_over_time"])
        assert plan["regret"] < plan["bound"]["regret"]
    assert high["regret"] < low["regret"]
    assert high["found_after"] is not None


def test_is_the_least_epsilon_enough_and_needed() -> None:
    wish = Wish(parse_candidate("incumbent_leader"), 10, 0.2, 5000)
    plan = least_epsilon(wish, regret=100.0)
    assert plan is not None
    epsilon = plan.cell.epsilon
    assert epsilon is not None
    assert plan.mean <= 100 < plan_for(wish, epsilon * Fraction(9, 10)).mean
    assert (plan.regret == plan_for(wish, epsilon).regret).all()
    assert least_epsilon(wish, regret=0.5) is None


def test_are_impossible_wishes_refused() -> None:
    usual = parse_candidate("incumbent_leader")
    for wrong in ({"gap": 0.0}, {"actions": 1}, {"horizon": 0}, {"base": float("nan")}):
        with pytest.raises(InvalidConfig):
            Wish(**{"candidate": usual, "actions": 3, "gap": 0.1, "horizon": 10} | wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="not private"):
        Wish(parse_candidate("follow_the_leader"), 3, 0.1, 10)


def test_is_an_interval_of_a_ratio_right() -> None:
    """It covers the true ratio; at 99 % each, 12 misses of 200 happen with probability 10⁻⁶."""
    generator = np.random.default_rng(1)
    misses = 0
    for _ in range(200):
        _, low, high = ratio(generator.exponential(3, 300), generator.exponential(2, 300))
        misses += not low <= 1.5 <= high
    assert misses < 12


def test_do_claims_find_what_does_not_hold() -> None:
    """The printed example is the wrong way round; its mirror image and the lemma hold."""
    measured = dict(claims())["example"](Effort(runs=2000))
    assert [finding.verdict for finding in measured.findings] == [
        "not reproduced",
        "reproduced",
        "reproduced",
        "reproduced",
    ]
    low, high = measured.findings[0].interval
    assert low < 0.2 < high


def test_would_a_learner_that_grows_with_the_horizon_be_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With capped blocks a wrong action keeps being played: T-independence must fail."""
    capped = tuple(f"{name}:schedule=capped 512" for name in SHOWN)
    monkeypatch.setattr("streamdp.lab.papers.claims.growth.SHOWN", capped)
    monkeypatch.setattr("streamdp.lab.papers.claims.growth.LONG", 18)
    measured = dict(claims())["horizon"](Effort(runs=100))
    assert {finding.verdict for finding in measured.findings} == {"not reproduced"}


def test_is_every_claim_a_row_with_an_interval() -> None:
    names = ["horizon", "monotonicity"]
    measured = [(name, claim(Effort(runs=100))) for name, claim in claims() if name in names]
    rows = as_json(measured)
    assert {row["name"] for row in rows} == set(names)
    assert all(row["interval"][0] <= row["interval"][1] and row["runs"] >= 100 for row in rows)
    shown = with_pictures(measured, Effort(runs=100))
    assert shown["findings"] == rows
    assert set(shown["pictures"]) == {name for name, claim in measured if claim.picture}


def test_do_the_commands_print() -> None:
    asked = ["plan", "--actions", "5", "--epsilon", "0.5", "--gap", "0.2", "--horizon", "5000"]
    result = run_command([*asked, "--target-regret", "100"])
    assert result.exit_code == 0, result.output
    assert "The least ε for a regret of 100 is about" in result.stdout
    figures = json.loads(run_command([*asked, "--json"]).stdout)
    assert figures["answers"][0]["regret_over_time"]["slots"][-1] == 5000
    result = run_command(["reproduce", "example", "--runs", "100", "--json"])
    assert json.loads(result.stdout)["findings"][0]["verdict"] == "not reproduced"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--target-regret", "nan"),
        ("--target-regret", "-1"),
        ("--seed", "-1"),
    ],
)
def test_is_an_impossible_number_refused(option: str, value: str) -> None:
    """Before anything is simulated."""
    asked = ["plan", "--actions", "5", "--epsilon", "0.5", "--gap", "0.2", option, value]
    result = run_command(asked)
    assert isinstance(result.exception, InvalidConfig) or result.exit_code == 2
    for command in (["simulate"], ["reproduce", "leak"]):
        if option == "--seed":
            assert run_command([*command, option, value]).exit_code == 2


def change_plan(every: int, *, keys: int = 1, epsilon: Fraction = Fraction(1)) -> dict[str, Any]:
    """A plan for 2¹⁶ slots of three actions."""
    wish = Wish(parse_candidate("incumbent_leader"), 3, 0.2, 1 << 16, 1, 0.3, keys)
    world, answers = plan_changes(wish, epsilon, every=every)
    return planned(wish, answers, world, every)


MEMORY, GROWING, CAPPED = FOLLOWING


def test_does_a_plan_know_how_often_the_best_action_changes() -> None:
    """Growing blocks are never recommended where it changes often, capped ones not where never."""
    often, never = change_plan(8000), change_plan(1 << 20)
    assert (often["worlds"][0]["changes"], never["worlds"][0]["changes"]) == (8, 0)
    last = often["answers"][-1]
    assert last["learner"] == GROWING
    assert last["behind_best"] > last["interval_of_difference"]
    assert never["answers"][-1]["learner"] == CAPPED
    assert often["answers"][0]["regret"] < 0.2 * last["regret"]
    lost = {row["learner"]: row["regret"] for row in often["answers"]}
    follow = [row for row in change_plan(4000)["answers"] if row["learner"] != GROWING]
    assert all(row["regret"] > lost[row["learner"]] for row in follow)


@pytest.mark.parametrize("every", [500, 20_000, 1 << 16])
def test_does_the_best_action_last_as_long_as_was_said(every: int) -> None:
    """A change comes within half that time of each multiple of it, the last one maybe too late."""
    wish = Wish(parse_candidate("incumbent_leader"), 3, 0.2, 1 << 16, 1, 0.3)
    count = wish.horizon // every
    begins = changing(wish, every, 0).starts(wish.horizon)[1:]
    asked = np.arange(1, count + 1) * every
    late = begins == wish.horizon
    assert (abs(begins - asked)[~late] <= every / 2 + 1).all()
    assert late.sum() <= 1


def test_are_a_changing_plan_s_units_right() -> None:
    """Losses above the best action of each moment; a slot's mean loss; all keys together."""
    figures = change_plan(8000, keys=300)
    rows = {row["learner"]: row for row in figures["answers"]}
    first = figures["answers"][0]
    assert f"Recommended: {first['learner']}," in figures["lead"]["worth"]
    assert first["behind_best"] == 0
    for row in rows.values():
        assert row["regret_of_all_keys"] == pytest.approx(300 * row["regret"])
        assert 0 < 1.96 * row["standard_error"] < row["regret"] < 0.2 * (1 << 16)
    assert rows[GROWING]["blocks"] < 20 < rows[MEMORY]["blocks"]


def test_does_the_command_recommend() -> None:
    usual = ["plan", "--actions", "3", "--epsilon", "1", "--gap", "0.2", "--horizon", "65536"]
    result = run_command([*usual, "--changes-every", "8000", "--keys", "7"])
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    assert "the best action changes every 8,000 slots" in words
    assert "Recommended: incumbent_leader:schedule=geometric 5/2 to 512, which" in words
    assert "over 7 keys" in words
    for wrong, said in (
        (["--changes-every", "0"], "--changes-every: slots; expected 6 or more, got 0"),
        (
            ["--changes-every", "9", "--target-regret", "3"],
            "--target-regret: cannot be planned; expected no --changes-every with it, got 3",
        ),
        (["--config", "x.toml"], "expected no --actions, --epsilon or --learner with it"),
        (
            ["--stream", "home"],
            "or --config with or without --stream, got --actions and --epsilon and",
        ),
        (
            ["--changes-every", "9000", "--learner", "prefix_softmax"],
            "--learner: cannot be planned; expected no --changes-every with it",
        ),
        (["--observes", "feedback", "--markdown", "--json"], "expected no --json with it"),
    ):
        refused = run_command([*usual, *wrong])
        assert isinstance(refused.exception, InvalidConfig)
        assert said in str(refused.exception)


@pytest.mark.parametrize(
    "kind", [("--actions", "2"), ("--observes", "feedback", "--actions", "2", "--rate", "0.2")]
)
def test_several_epsilons_are_compared_with_no_privacy(kind: tuple[str, ...]) -> None:
    arguments = ["plan", *kind, "--gap", "0.2", "--horizon", "2000", "--epsilon"]
    result = run_command([*arguments, "0.1,10"])
    assert "ε = 0.1" in result.output
    assert "without privacy" in result.output
    told = run_command([*arguments, "0.1,10", "--json"])
    first, second, free = json.loads(told.stdout)["answers"]
    assert (first["epsilon"], second["epsilon"]) == ("0.1", "10")
    assert first["regret"] > second["regret"] > 0.9 * free["regret"]
    refused = run_command([*arguments, "1,2", "--changes-every", "50"])
    assert "one ε with" in str(refused.exception or refused.output)


def test_does_a_plan_take_actions_and_budget_from_a_configuration(tmp_path: Path) -> None:
    """ε is the action's own, without what estimates cost; three actions at 1/2."""
    ask = ["plan", "--gap", "0.2", "--horizon", "20000", "--changes-every", "9000", "--json"]
    configured = [*ask, "--config", str(written(tmp_path))]
    plain = [*ask, "--actions", "3", "--epsilon", "1/2"]
    results = [run_command(words) for words in (configured, plain)]
    assert [result.exit_code for result in results] == [0, 0]
    assert results[0].stdout == results[1].stdout
    assert json.loads(results[0].stdout)["answers"][0]["epsilon"] == "0.5"


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        ("incumbent_leader", "Proved: expected regret is at most"),
        ("remembering_leader", "No bound below the regret of choosing uniformly is proved"),
    ],
)
def test_is_nothing_called_proved_that_says_nothing(learner: str, said: str) -> None:
    """Of memory nothing is proved: its slots count as 1, more than any regret of theirs can be."""
    ask = ["plan", "--actions", "3", "--epsilon", "1", "--gap", "0.2", "--horizon", "200000"]
    result = run_command([*ask, "--learner", learner])
    assert said in " ".join(result.stdout.split())
    assert result.stdout.count("roved") == 1


def test_does_a_plan_play_the_learner_that_is_configured(tmp_path: Path) -> None:
    """The stream's own, with its options; without a stream, the one that is shipped."""
    ask = ["plan", "--gap", "0.2", "--horizon", "300", "--json"]
    path, plain = written(tmp_path), [*ask, "--actions", "3", "--epsilon", "1/2"]
    words = [
        [*ask, "--config", str(path)],
        [*plain, "--learner", "remembering_leader:schedule=capped 3"],
        plain,
    ]
    results = [run_command(some) for some in words]
    assert results[0].stdout == results[1].stdout != results[2].stdout
    assert json.loads(results[2].stdout)["answers"][0]["learner"] == RECIPES.default


@pytest.mark.slow
def test_are_claims_about_bandit_feedback_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flaw is exact; a figure's rows name their ε, and its page says who loses."""
    monkeypatch.setattr("streamdp.lab.papers.claims.bandits.HORIZON", 20_000)
    known = dict(claims())
    assert [finding.verdict for finding in known["hybrid"](Effort(runs=100)).findings] == [
        "not reproduced",
        "reproduced",
    ]
    figure = known["figure-1"](Effort(runs=400))
    assert {finding.learner for finding in figure.findings} == {"ε = 0.25", "ε = 0.5", "ε = 1"}
    (row, *_) = as_json([("figure-1", figure)])
    assert "loses no more than DP-SE" in row["claim"]


@pytest.mark.slow
def test_are_the_longer_versions_panels_and_comparators_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At short horizons: every panel has a finding of the text's, and stages are told."""
    shorter = {"comparators.HORIZON": 2_000, "panels.HORIZON": 2_000}
    for name, short in {**shorter, "adversarial.LONG": 20_000, "adversarial.MANY": 2}.items():
        monkeypatch.setattr(f"streamdp.lab.papers.claims.{name}", short)
    stages: list[str] = []

    def watch(name: str, steps: int) -> Callable[[int], None]:
        stages.append(name)
        return lambda done: None

    known, size = dict(claims()), Effort(runs=6, watch=watch)
    panels = known["panels"](size)
    of_the_text = [finding for finding in panels.findings if "competitive" in finding.claim]
    assert len(of_the_text) == 21
    assert {finding.learner for finding in of_the_text if "a plot" not in finding.source} == {
        "ε = 0.5",
        "ε = 1",
    }
    assert "Hybrid-UCB, every ε, slots" in stages
    claimed = [row["claim"] for row in as_json([("adap", known["adap"](size))])]
    assert "AdaP-KLUCB loses no more than AdaP-UCB" in claimed
    advised = known["experts-long"](size)
    assert [finding.learner for finding in advised.findings][-1] == "batched_exp4:noise=cell"


def test_the_interval_of_a_plan_covers_when_the_changes_come() -> None:
    """Two seeds agree within five standard errors: those of runs with the same changes did not."""
    wish = Wish(parse_candidate("remembering_leader"), 3, 0.3, 1 << 14)
    first, other = (
        plan_changes(replace(wish, seed=seed), Fraction(1), every=1 << 11)[1] for seed in (1, 2)
    )
    others = {answer.cell.name: answer for answer in other}
    for answer in first:
        too = others[answer.cell.name]
        assert abs(answer.mean - too.mean) < 5 * (answer.error**2 + too.error**2) ** 0.5
    assert len(first[0].regret) == 12
    assert first[0].runs % 12 == 0


def test_a_plan_says_how_many_runs_keep_the_best_action() -> None:
    """At any moment nine of ten may have it, and yet none of them always."""
    best = np.ones((12, 10), dtype=np.float32)
    best[np.arange(2, 12), np.arange(10)] = 0
    kind = parse_candidate("remembering_leader").at(Fraction(1), actions=["a", "b"])
    walk = Walk(kind, 4096, np.zeros((12, 10)), best, None, np.zeros((0, 1), np.int64), 12, 10)
    assert first_for_good(walk.found(0.75), walk.starts + walk.lengths - 1) == 1
    assert walk.always(0.75, since=1) == 0.0
    assert walk.always(0.75, since=int(walk.starts[7])) == 0.5


def test_no_name_is_broken_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    asked = ["--actions", "3", "--epsilon", "1", "--gap", "0.3", "--horizon", "512"]
    shown = run_command(["plan", *asked, "--changes-every", "256"]).stdout
    assert "incumbent_leader:schedule=geometric 5/2 to 512" in shown
    assert "regret" in shown
