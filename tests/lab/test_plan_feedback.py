"""Does `streamdp plan --observes feedback` say when the best action is found?"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.lab.common.answer import first_for_good
from streamdp.lab.common.cells import parse_candidate, policy_learner
from streamdp.lab.common.words import days_text
from streamdp.lab.planning import FORMULAS, Wish, as_json, plan_changes, plan_for, table_for
from streamdp.lab.play import Walk
from tests.support.command_line import run_command
from tests.support.shop_files import FEEDBACK_SHOP

ASKED = ["--actions", "4", "--epsilon", "1", "--rate", "0.02", "--gap", "0.03"]
BY_FORMULA = [*ASKED, "--learner", "policy_blocks"]


def invoked(*arguments: str) -> Any:
    return run_command(["plan", "--observes", "feedback", *arguments])


HELD_OUT = [
    ("policy_following", 3, 0.05, 0.02, "1"),
    ("policy_following", 7, 0.3, 0.12, "1/5"),
    ("policy_following", 18, 0.05, 0.045, "1"),
    ("policy_blocks", 3, 0.03, 0.02, "1"),
    ("policy_blocks", 6, 0.3, 0.1, "1/4"),
    ("policy_blocks", 20, 0.05, 0.05, "1"),
    ("policy_blocks", 2, 0.4, 0.02, "1/2"),
    ("policy_blocks", 3, 0.028, 0.031, "2"),
    ("policy_blocks", 14, 0.032, 0.035, "1/10"),
    ("policy_elimination", 3, 0.03, 0.02, "1"),
    ("policy_elimination", 3, 0.095, 0.064, "2"),
    ("policy_elimination", 6, 0.3, 0.1, "1/4"),
]
"""Learner, actions, rate, gap, ε: none is a point that the constants were fitted to."""


@pytest.mark.parametrize("point", HELD_OUT, ids=str)
def test_is_the_formula_within_a_factor_of_two_of_the_simulation(
    point: tuple[str, int, float, float, str],
) -> None:
    """Of what the simulation says to the user: the end of the block in which it is found.

    For good: until there were three times as many events as any of them needs, and for most of them
    ten times.
    """
    text, actions, rate, gap, epsilon = point
    wish = Wish.of_clicks(text, actions, rate, gap, 1 << 18)
    found_after = plan_for(wish, Fraction(epsilon), runs=100).settled
    assert found_after is not None
    said = FORMULAS[text].events(
        actions=actions, rate=rate, gap=gap, epsilon=float(Fraction(epsilon))
    )
    assert found_after / 2 < said < found_after * 2, (said, found_after)


def test_depends_the_formula_on_everything_the_right_way() -> None:
    """More actions, smaller gaps, less ε, rates nearer to 1/2: more events."""
    events = FORMULAS["policy_blocks"].events
    usual = events(actions=4, rate=0.02, gap=0.03, epsilon=1)
    assert events(actions=8, rate=0.02, gap=0.03, epsilon=1) > 2 * usual
    assert events(actions=4, rate=0.02, gap=0.015, epsilon=1) > 2 * usual
    assert events(actions=4, rate=0.02, gap=0.03, epsilon=0.1) > 2 * usual
    assert events(actions=4, rate=0.4, gap=0.03, epsilon=1) > 2 * usual
    assert events(actions=4, rate=0.02, gap=0.03, epsilon=1e9) < usual


def test_is_found_what_stays_found() -> None:
    """The first block after which enough runs have it for good."""

    kind = policy_learner("policy_blocks", Fraction(1), actions=["a", "b"])

    def settled(*shares: float) -> int | None:
        best = np.array([np.arange(100) < 100 * share for share in shares], dtype=np.float32)
        none = np.zeros((0, 4), dtype=np.int64)
        walk = Walk(kind, 31, best.astype(np.float64), best, None, none, len(best), 100)
        return first_for_good(walk.found(0.75), walk.starts + walk.lengths - 1)

    assert settled(0.1, 0.95, 0.5, 0.92, 1.0) == 8
    assert settled(0.95, 0.99) == 1
    assert settled(0.95, 0.2) is None


def test_tells_the_command_a_table_and_one_answer() -> None:
    result = invoked(*BY_FORMULA, "--horizon", "100000", "--traffic", "2000", "--keys", "3")
    assert result.exit_code == 0, result.output
    assert "ε = 1" in result.stdout
    assert "Events of a key until the best of 4 is found" in result.stdout
    assert "The best action is found after" in result.stdout
    assert "at 2,000 a day" in result.stdout
    assert "over 3 keys" in result.stdout


def test_is_the_table_of_the_page_what_its_command_says() -> None:
    """docs/shop.md names the command that made its table of traffic."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "shop.md").read_text()
    (command,) = re.findall(r"`streamdp plan --observes feedback (.*? --markdown)`", page)
    result = invoked(*command.split())
    assert result.exit_code == 0
    assert result.stdout.count("\n| 0.") == 12
    assert f"\n\n{result.stdout.strip()}\n\n" in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--learner", "policy_weights:gain=1/4"], "no formula"),
        (["--rate", "0.6", "--gap", "0.1", "--learner", "policy_blocks"], None),
    ],
)
def test_has_the_table_only_rates_that_can_be(arguments: list[str], said: str | None) -> None:
    result = invoked(*ASKED, *arguments, "--markdown")
    if said is not None:
        assert said in str(result.exception)
    else:
        assert {line.split("|")[1].strip() for line in result.stdout.splitlines()[2:]} == {
            "0.3", "0.6"
        }  # fmt: skip


def test_the_default_has_its_table_where_its_formula_holds() -> None:
    """Not where the best action is nearly always rewarded."""
    wish = Wish.of_clicks("policy_following", 4, 0.02, 0.03)
    table = table_for(wish, Fraction(1))
    assert table is not None
    assert len(table.gaps) == 3
    sure = Wish.of_clicks("policy_following", 4, 0.5, 0.4)
    assert table_for(sure, Fraction(1)) is not None  # of half the gap
    assert table_for(Wish.of_clicks("policy_following", 4, 0.7, 0.3), Fraction(1)) is None


def test_is_the_plan_there_for_programs() -> None:
    plan = json.loads(invoked(*BY_FORMULA, "--horizon", "100000", "--json").stdout)
    (row,) = plan["answers"]
    assert row["found_after"] < 30_000
    assert row["found_after_days"] is None
    assert plan["table"]["epsilons"] == ["0.1", "0.25", "0.5", "1", "2"]
    assert row["found_after_by_formula"] == pytest.approx(plan["table"]["events"][1][3])
    assert row["regret_over_time"]["slots"][:3] == [1, 3, 7]
    assert 0 < row["regret"] < plan["worlds"][0]["uniform_regret"]


def test_is_any_configured_learner_planned_for() -> None:
    """One with options has no formula, but its own simulation."""
    learner = "policy_blocks:schedule=capped 512:forgetting=9/10"
    result = invoked(*ASKED, "--horizon", "4000", "--learner", learner)
    assert "The best action is" in result.stdout
    assert "Events of a key" not in result.stdout
    wish = Wish.of_clicks(learner, 4, 0.02, 0.03)
    assert table_for(wish, Fraction(1)) is None


def test_takes_the_plan_a_configured_stream(tmp_path: Path) -> None:
    """Its actions, its ε and its learner with all options."""
    file = tmp_path / "streamdp.toml"
    file.write_text(CONFIGURED)
    plan = json.loads(
        invoked(
            "--config", str(file), "--rate", "0.02", "--gap", "0.03",
            "--horizon", "1000", "--json",
        ).stdout
    )  # fmt: skip
    (row,) = plan["answers"]
    assert row["learner"] == "policy_blocks:schedule=capped 512"
    assert (plan["actions"], row["epsilon"]) == (3, "0.5")
    alone = run_command(
        ["plan", "--config", str(file), "--rate", "0.02", "--gap", "0.03", "--horizon", "1000",
         "--json"],
    )  # fmt: skip
    assert json.loads(alone.stdout) == plan  # it observes what the stream does
    losses = CONFIGURED.partition("observes")[0] + 'actions = ["a", "b"]\n' + LEARNER_OF_LOSSES
    file.write_text(losses)
    refused = invoked("--config", str(file), "--rate", "0.02", "--gap", "0.03")
    assert "expected a stream of feedback, got losses" in refused.output + str(refused.exception)


CONFIGURED = """
app = "shop"
[transport]
kind = "sqlite"
path = "shop.db"
[topics.impressions]
budget = "1"
[streams.banners]
input = "impressions"
start = "earliest"
observes = "feedback"
actions = ["a", "b", "c"]
fallback_action = "a"
[streams.banners.learner]
recipe = "policy_blocks"
epsilon = "1/2"
schedule = "capped 512"
[streams.banners.feedback]
content = "reward"
salt = "some salt"
"""
LEARNER_OF_LOSSES = '[streams.banners.learner]\nepsilon = "1/2"\n'


def test_is_a_best_that_is_never_found_said() -> None:
    result = invoked(*ASKED, "--horizon", "100")
    assert "is not found within 100 events" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*ASKED, "--base", "0.5"], "--base: cannot be planned; expected --observes losses"),
        ([*ASKED[:4], "--gap", "0.1"], "--rate: cannot be planned"),
        ([*ASKED[:4], "--gap", "0.9", "--rate", "0.2"], "rate + gap"),
        ([*ASKED, "--learner", "thompson"], "not private"),
        ([*ASKED, "--traffic", "0"], "events a day"),
        ([*ASKED, "--traffic", "inf"], "events a day"),
        ([*ASKED, "--keys", "0"], "--keys: count"),
        (["--actions", "1", *ASKED[2:]], "--actions: count"),
        ([*ASKED, "--observes", "clicks"], "expected losses | feedback"),
        ([*ASKED, "--observes", "losses"], "--rate: cannot be planned"),
        ([*ASKED, "--config", "x.toml"], "no --actions, --epsilon or --learner with it"),
    ],
)
def test_is_what_cannot_be_planned_refused(arguments: list[str], said: str) -> None:
    result = invoked(*arguments)
    assert said in result.output + str(result.exception)


def test_are_times_told_for_people() -> None:
    assert days_text(400) == "about 400 days"
    assert days_text(1.5) == "about 36 hours"
    assert days_text(0.0001) == "about 1 minute"


def test_a_plan_says_what_each_learner_loses_when_the_best_changes() -> None:
    """At click rates: every shipped learner that takes an ε, the least regret first."""
    wish = Wish.of_clicks("policy_blocks", 4, 0.02, 0.07, 200_000, keys=3)
    world, answers = plan_changes(wish, Fraction(1), every=20_000)
    figures = as_json(wish, answers, world, 20_000)
    rows = {row["learner"]: row for row in figures["answers"]}
    takes_epsilon = {
        name
        for name in FEEDBACK_RECIPES
        if parse_candidate(name, observes="feedback").private and name != "policy_contexts"
    }
    assert rows.keys() == takes_epsilon
    assert figures["worlds"][0]["changes"] == 10
    regrets = [row["regret"] for row in figures["answers"]]
    assert regrets == sorted(regrets)
    assert f"Recommended: {figures['answers'][0]['learner']}," in figures["lead"]["worth"]
    for row in rows.values():
        assert row["regret_of_all_keys"] == pytest.approx(3 * row["regret"])
    _, still = plan_changes(wish, Fraction(1), every=10**6)
    lost = {answer.cell.name: answer.mean for answer in still}
    assert all(row["regret"] > 1.5 * lost[name] for name, row in rows.items())


def test_a_given_learner_stands_beside_the_shipped_ones() -> None:
    """With its options; the command prints rewards below what was possible."""
    asked = [*ASKED, "--horizon", "20000", "--changes-every", "9000"]
    learner = "policy_blocks:schedule=capped 512:forgetting=9/10"
    plan = json.loads(invoked(*asked, "--learner", learner, "--json").stdout)
    assert learner in {row["learner"] for row in plan["answers"]}
    words = " ".join(invoked(*asked).stdout.split())
    assert "the best action changes every 9,000 slots" in words
    assert "Recommended: policy_" in words
    beside = str(invoked(*asked, "--traffic", "9").exception)  # no days are said of them
    assert "--traffic: cannot be planned; expected no --changes-every with it" in beside


# -- which largest reward counts -----------------------------------------------------------------


def amounts(folder: Path, text: str, name: str = "amounts.txt") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def largest(*arguments: str) -> Any:
    return run_command(["plan", "--actions", "4", "--epsilon", "1", "--gap", "0.3", *arguments])


def test_a_few_huge_orders_are_cut_off_and_no_more(tmp_path: Path) -> None:
    """Orders of 10 to 50 and one of 5,000: `most` is above nearly all, and far below the last."""
    rng = np.random.default_rng(3)
    orders = [*rng.uniform(10, 50, 300).round(2).tolist(), 5000]
    text = "\n".join(map(str, [0] * 5000 + orders))
    done = largest("--rewards", amounts(tmp_path, text), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    rows = {row["most"]: row for row in found["considered"]}
    best = rows[found["best"]]
    assert 45 <= float(found["best"]) <= 80
    assert best["events"] == min(row["events"] for row in rows.values() if row["events"])
    assert rows["5000"]["events"] > 20 * best["events"]
    assert (found["private"], rows["5000"]["cut"], rows["5000"]["amount_cut"]) == (False, 0, 0)
    told = largest("--rewards", amounts(tmp_path, text)).output
    assert told.startswith("NOT PRIVATE")
    assert f'most = "{found["best"]}"' in told


def test_a_column_is_read_and_a_file_without_zeros_is_asked_about(tmp_path: Path) -> None:
    table = amounts(
        tmp_path, "id,paid\n" + "".join(f"{n},{n % 7 + 1}\n" for n in range(70)), "x.csv"
    )
    done = largest("--rewards", table, "--column", "paid")
    assert "70 of 70 rewards are above 0; the mean of all is 4." in done.output
    assert "does it leave out the shows that earned nothing?" in done.output


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("1\nx\n", [], r"amounts.txt line 2: is no reward; expected a number from 0, got text"),
        ("1\n-1\n", [], "line 2: is no reward; expected a number from 0, got another number"),
        ("0\n0\n", [], "says nothing of rewards"),
        ("a,b\n1,2\n", ["--column", "c"], "lacks the column; expected one of a, b, got 'c'"),
        ("1\n", ["--rate", "0.1"], "--rate: cannot be planned; expected no --rewards with it"),
        ("1\n", ["--seed", "2"], "--seed: cannot be planned; expected no --rewards with it"),
        ("1\n", ["--horizon", "9"], "--horizon: cannot be planned; expected no --rewards with it"),
        ("1\n", ["--epsilon", "1,2"], "--epsilon: cannot be planned; expected one ε"),
        ("1\n", ["--gap", "0"], "--gap: cannot be planned; expected above 0, in the unit"),
    ],
)
def test_rewards_that_cannot_be_read_are_refused(
    tmp_path: Path, text: str, more: list[str], said: str
) -> None:
    assert re.search(said, str(largest("--rewards", amounts(tmp_path, text), *more).exception))


def test_a_plan_of_a_stream_with_a_largest_reward_is_in_its_unit(tmp_path: Path) -> None:
    """The same world as of shares; and it says what 1 stands for."""
    path = tmp_path / "shop.toml"
    text = FEEDBACK_SHOP.replace('"reward"', '"reward"\nunit = "€"\nmost = "200"')
    path.write_text(text)
    rest = ["--horizon", "1000", "--traffic", "100"]
    config = ["plan", "--config", str(path)]
    euros = run_command([*config, "--rate", "4", "--gap", "6", *rest, "--json"])
    assert euros.exit_code == 0, euros.output
    path.write_text(FEEDBACK_SHOP)
    shares = run_command([*config, "--rate", "0.02", "--gap", "0.03", *rest, "--json"])
    assert json.loads(euros.output)["answers"] == json.loads(shares.output)["answers"]
    path.write_text(text)
    told = run_command([*config, "--rate", "4", "--gap", "6", *rest]).output
    assert "1 stands for 200 € here" in told


def test_a_column_needs_a_file(tmp_path: Path) -> None:
    assert "--rewards with it" in str(largest("--column", "paid").exception)
    missing = largest("--rewards", str(tmp_path / "none"))
    assert "cannot be read" in str(missing.exception)
