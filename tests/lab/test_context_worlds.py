"""Do made-up worlds with contexts say when contexts are worth it?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from streamdp.core.engine import Engine
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import SUMS
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import UNIT
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.randomness import SeededRandomness
from streamdp.lab import context_worlds
from streamdp.lab.commands._contexts import verdict
from streamdp.lab.context_worlds import (
    APART,
    ASKED,
    WITHOUT,
    WORLDS,
    Table,
    TableShows,
    as_json,
    in_world,
    learned,
    mean_lost,
    shares_of,
)
from tests.service.test_contexts_stream import SHOP
from tests.support.batches import feedback_batch
from tests.support.command_line import run_command

TABLE = Table((2, 3), 2, 0.1, 0.2, Fraction(1), slots=20_000)


def test_contexts_are_worth_it_where_they_decide() -> None:
    """Where nothing depends on them they cost; where a field decides they gain, and are learned."""
    found = {of.world: of for of in learned(TABLE)}
    assert list(found) == TABLE.worlds()
    assert WITHOUT in found["nothing"].alike
    one = found["the first field"]
    assert WITHOUT not in one.alike
    assert one.least in one.alike
    assert 0 < (found["nothing"].answers[ASKED].settled or 0) < 10_000
    assert one.answers[ASKED].mean < 15 < one.answers[WITHOUT].mean
    take = as_json(TABLE, found.values())["take"]
    assert take != WITHOUT
    lost = mean_lost(list(found.values()))
    assert lost[take] == min(lost.values()) < lost[WITHOUT]
    short = replace(TABLE, slots=200)
    assert as_json(short, learned(short)) == as_json(short, learned(short))


# -- beside another simulation -------------------------------------------------------------------

RATE, GAP, ACTIONS, RUNS = 0.05, 0.1, 3, 32
Rates = NDArray[np.float64]  # cells × actions
Made = Callable[[np.random.Generator], Rates]


def of_one_field(rng: np.random.Generator) -> Rates:
    """The best action depends on the first field, of 3 levels; the second one has 2."""
    best = np.repeat(rng.integers(ACTIONS, size=3), 2)
    return RATE + GAP * np.eye(ACTIONS)[best]


def of_nothing(rng: np.random.Generator) -> Rates:
    """One action is the best everywhere."""
    return np.tile(RATE + GAP * np.eye(ACTIONS)[rng.integers(ACTIONS)], (6, 1))


def of_each_cell(rng: np.random.Generator) -> Rates:
    """Each cell has a best action of its own."""
    return RATE + GAP * np.eye(ACTIONS)[rng.integers(ACTIONS, size=6)]


def lost_by_an_engine(learner: PolicyLearner, made: Made, events: int) -> float:
    """Percent of what random play loses: every event is a record that an engine takes.

    Each key is a run in a world of its own, and all of them have their records one block at a time.
    """
    engine = Engine(
        stream="home", partition=0, learner=learner, budget="1", randomness=SeededRandomness(17)
    )
    keys = [b"%d" % seed for seed in range(RUNS)]
    worlds = [made(np.random.default_rng(seed)) for seed in range(RUNS)]
    draws = [np.random.default_rng((17, seed)) for seed in range(RUNS)]
    occurs = np.outer([6, 3, 2], [2, 1]).ravel() / 33
    lost, uniform = np.zeros(RUNS), np.zeros(RUNS)
    ends = learner.schedule.stops(np.arange(learner.schedule.block_of(events) + 1)) - 1
    policies = np.full((RUNS, 1, ACTIONS), 1 / ACTIONS)  # of each run and cell
    for first, stop in pairwise([0, *np.minimum(ends, events).tolist()]):
        many = stop - first
        played, gains = np.zeros((2, RUNS, many), dtype=np.int64)
        for run, (rates, rng) in enumerate(zip(worlds, draws, strict=True)):
            policy = np.broadcast_to(policies[run], rates.shape)
            cells = rng.choice(6, size=many, p=occurs)
            coins = rng.random(many)
            shown = (coins[:, None] >= np.cumsum(policy, axis=1)[cells]).sum(axis=1)
            shown = np.minimum(shown, ACTIONS - 1)
            gains[run] = (rng.random(many) < rates[cells, shown]) * UNIT - UNIT // 2
            best = rates[cells].max(axis=1)
            lost[run] += (best - rates[cells, shown]).sum()
            uniform[run] += (best - rates[cells].mean(axis=1)).sum()
            played[run] = cells * ACTIONS + shown if len(learner.actions) > ACTIONS else shown
        index, offsets = np.repeat(np.arange(RUNS), many), RUNS * first + np.arange(RUNS * many)
        arms = played.ravel().astype(np.int32)
        batch = feedback_batch(keys, index, arms, gains.ravel(), offsets)
        released = engine.apply_batch(batch)
        ended = released.at(np.flatnonzero(released.kind == released.kinds.index(SUMS)))
        if len(ended):  # what is in force then, of each run
            order = np.argsort([int(key or b"") for key in ended.keys])
            policies = np.asarray(ended.in_force)[order].reshape(RUNS, -1, ACTIONS) / PARTS
    return float(np.mean(100 * lost / uniform))


@pytest.mark.parametrize(
    ("world", "made", "events"),
    [
        ("nothing", of_nothing, 8_000),
        ("the first field", of_one_field, 4_000),
        ("the first field", of_one_field, 24_000),
        ("the first two fields together", of_each_cell, 24_000),
    ],
)
def test_what_is_said_agrees_with_engines_that_take_each_event(
    world: str, made: Made, events: int
) -> None:
    """Each choice loses within 15 % of what was said, and the verdict is the engines' own.

    Worlds, draws, records and sums are made here, and everything is seeded.
    """
    table = Table((3, 2), ACTIONS, RATE, GAP, Fraction(1), slots=events)
    said = in_world(table, world)
    lost = {}
    for name, learner in table.learners().items():
        lost[name] = lost_by_an_engine(learner, made, events)
        assert said.answers[name].mean == pytest.approx(lost[name], rel=0.15), (name, lost)
    assert lost[said.least] <= 1.15 * min(lost.values())
    assert min(lost, key=lambda name: lost[name]) in said.alike


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("which", [ASKED, WITHOUT])
def test_a_block_has_all_its_events_at_the_rates_of_their_cells(name: str, which: str) -> None:
    """Sums and shows of a large block; without contexts those of all cells together."""
    table = Table((2, 3, 2), 2, 0.1, 0.2, Fraction(1))
    learner, block = table.learners()[which], 30
    cells = WORLDS[name](table.shape, 2, np.random.default_rng(3)).reshape(1, -1, 2)
    rates = np.clip(0.1 + 0.2 * cells, 0, 1)
    shares = shares_of(table.shape)
    fill = TableShows(rates, shares, learner, np.random.default_rng((1, 2)), table.slots)
    width = len(learner.actions)
    in_force = np.full((1, width), PARTS // 2, dtype=np.uint32)
    _, columns = fill(block, np.arange(1), in_force)
    shown, events = columns["shown"], learner.schedule.stop(block) - learner.schedule.start(block)
    assert shown.shape == (1, width)
    assert shown.sum() == events
    clicks = columns["sums"] / UNIT + shown / 2
    assert abs(clicks.sum() / events - (shares @ rates[0]).mean()) < 6 * 0.5 / events**0.5


@pytest.mark.parametrize("text", ["", "8,", "8,1", "x", "-2"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="--context: no fields"):
        Table.read(text)


def test_rates_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="no rates"):
        Table((2,), 2, 0.9, 0.2, Fraction(1))


def run(*arguments: str) -> str:
    ran = run_command(arguments)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


CLICKS = ["--observes", "feedback", "--context", "2", "--json"]
ONCE = cache(in_world)


@pytest.fixture
def played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that ask for an equal table are told the same: that playing it again says so is
    asked above.
    """
    monkeypatch.setattr(context_worlds, "in_world", ONCE)


@pytest.mark.usefixtures("played_once")
def test_a_plan_prints_the_worlds() -> None:
    """The asked table at each ε; without --json tables and verdicts."""
    asked = ["--actions", "2", "--rate", "0.2", "--gap", "0.2", "--horizon", "4000"]
    planned = json.loads(run("plan", *CLICKS, *asked, "--epsilon", "1,2"))
    assert [of["epsilon"] for of in planned] == ["1", "2"]
    assert [planned[0]] == json.loads(run("plan", *CLICKS, *asked, "--epsilon", "1"))
    assert [of["decides"] for of in planned[0]["worlds"]] == ["nothing", "the first field"]
    drawn = run("plan", *CLICKS[:-1], *asked, "--epsilon", "1,2")
    assert f"Over 4,000 events of a key take {planned[0]['take']}, unless you know" in drawn
    assert all(verdict(of) in drawn.replace("\n", " ") for of in planned)


@pytest.mark.usefixtures("played_once")
def test_a_plan_takes_a_bound_on_tables() -> None:
    """The named fields together are the finest; other names are refused."""
    parts = ["--context", "2,2,2", "--interactions", "f1 x f2"]
    asked = ["plan", *CLICKS, "--actions", "4", "--epsilon", "1", "--rate", "0.03"]
    asked += ["--gap", "0.02"]
    (planned,) = json.loads(run(*asked, "--horizon", "500", *parts))
    assert planned["interactions"] == "f1 x f2"
    learner = Table((2, 2, 2), 4, 0.03, 0.02, Fraction(1), interactions="f1 x f2").learners()[ASKED]
    assert isinstance(learner.rule, ContextModel)
    assert learner.rule.tables[-1] == (0, 1)
    said = run(*asked[:3], *asked[6:], "--horizon", "500", *parts)
    assert "in parts (f1 x f2)" in said
    for command, more, error in (
        (asked, ["--interactions", "f1 x f9", "--context", "2,2"], "no interaction"),
        ([*asked[:3], *asked[5:]], ["--interactions", "none"], "--interactions"),
        (["simulate", *CLICKS[:2]], ["--context", "2"], "No such option"),
    ):
        refused = run_command([*command, *more])
        assert refused.exit_code != 0
        assert error in str(refused.exception) + refused.output


def test_a_stream_is_planned_with_its_own_table(tmp_path: Path) -> None:
    """Its fields, parts, ε and mode; another table beside it is refused."""
    config = tmp_path / "shop.toml"
    options = 'epsilon = "1/2"\ninteractions = "none"\nplayed = "value"'
    form = '\n[streams.clicks.format]\nname = "float32"\n'
    config.write_text(SHOP.replace('epsilon = "1/2"', options) + form)
    asked = ["plan", "-c", str(config), "--rate", "0.2", "--gap", "0.2", "--horizon", "300"]
    (planned,) = json.loads(run(*asked, "--json"))
    told = {name: planned[name] for name in ("shape", "actions", "epsilon", "played")}
    assert told == {"shape": [3, 4], "actions": 2, "epsilon": "1/2", "played": "value"}
    assert planned["interactions"] == "none"
    refused = run_command([*asked, "--context", "3,4"])
    assert "the stream has its own" in str(refused.exception) + refused.output


@pytest.mark.usefixtures("played_once")
def test_each_field_alone_is_considered_beside_the_whole_table() -> None:
    """With few events the default is as good where nothing matters; traffic says how many days."""
    table = replace(TABLE, shape=(3, 3), slots=1000, traffic=250)
    assert {name: len(of.actions) for name, of in table.learners().items()} == {
        ASKED: 18, APART: 18, WITHOUT: 2,
    }  # fmt: skip
    assert APART not in replace(table, interactions="none").learners()
    found = [in_world(table, "nothing")]
    assert found[0].answers[ASKED].mean < 1.15 * found[0].answers[APART].mean
    assert found[0].random < found[0].answers[APART].rewards.mean() < found[0].best
    report = as_json(table, found)
    lost = report["mean_regret_percent"]
    said = verdict(report | {"take": APART})
    assert said == (
        "Over 1,000 events (about 4 days) of a key take each field alone (interactions ="
        ' "none"), unless you know which of these worlds is yours. The mean of them: it loses'
        f" {lost[APART]:.0f} % of what showing actions at random loses, contexts"
        f" {lost[ASKED]:.0f} %, no contexts {lost[WITHOUT]:.0f} %."
    )
    parts = report | {"take": ASKED, "interactions": "f1 x f2"}
    assert "take contexts in these parts (f1 x f2), unless" in verdict(parts)
    asked = ["--actions", "2", "--epsilon", "1", "--rate", "0.2", "--gap", "0.2"]
    clicks = [*CLICKS[:3], "2,2", "--horizon", "500", "--traffic"]
    said = run("plan", *clicks, "250", *asked)
    assert "over 500 events (about 2 days) of a key" in said
    (planned,) = json.loads(run("plan", *clicks, "250", "--json", *asked))
    assert planned["events_a_day"] == 250
    assert planned["worlds"][0]["choices"][APART]["regret_percent"] > 0
    assert run_command(["plan", *clicks, "0", *asked]).exit_code != 0


def test_worlds_that_are_played_are_spread_evenly() -> None:
    """By what the best single action loses: few of them have the mean of very many."""
    table = Table((3, 4), 4, 0.03, 0.02, Fraction(1))

    def single(world: str, runs: int, seed: int) -> NDArray[np.float64]:
        rates = table.rates(world, runs, np.random.default_rng(seed))
        assert rates.shape == (runs, 12, 4)
        lost = (rates.max(axis=2, keepdims=True) - rates).transpose(0, 2, 1) @ shares_of((3, 4))
        return np.asarray(lost.min(axis=1) / lost.mean(axis=1))

    for world in set(WORLDS) - {"nothing"}:
        many = single(world, 400, 2)
        few = [single(world, 4, seed).mean() for seed in range(12)]
        off = float(np.sqrt(np.mean((np.array(few) - many.mean()) ** 2)))
        assert off < 0.6 * many.std() / 4**0.5, world  # as if there were 11 of them and more


@pytest.mark.usefixtures("played_once")
def test_check_says_what_to_expect_at_the_traffic_given(tmp_path: Path) -> None:
    """Of a month, by the table that `plan` makes for this stream; without traffic, nothing."""
    config = tmp_path / "shop.toml"
    config.write_text(SHOP)
    asked = ["check", "-c", str(config)]
    assert json.loads(run(*asked, "--json"))["streams"][0]["expected"] is None
    clicks = ["--rate", "0.2", "--gap", "0.2"]
    (stream,) = json.loads(run(*asked, "--traffic", "20", "--json", *clicks))["streams"]
    planned = run("plan", *asked[1:], *clicks, "--horizon", "600", "--traffic", "20", "--json")
    assert [stream["expected"]] == json.loads(planned)
    said = run(*asked, "--traffic", "20", *clicks)
    assert "expected of 600 events (about 30 days) of a key, where of 1,000 visits 200" in said
    for of in stream["expected"]["worlds"]:
        assert f"if what is best depends on {of['decides']}: contexts" in said
    assert verdict(stream["expected"]) in said


@pytest.mark.parametrize(
    "more",
    [["--learner", "policy_blocks"], ["--keys", "3"], ["--markdown"]],
)
def test_options_that_change_nothing_are_refused(more: list[str]) -> None:
    asked = ["--actions", "2", "--epsilon", "1", "--rate", "0.2", "--gap", "0.2"]
    how = [option for option in CLICKS if option != "--json" or "--markdown" not in more]
    refused = run_command(["plan", *how, *asked, *more])
    assert refused.exit_code != 0
    assert "no --context with it" in str(refused.exception) + refused.output
