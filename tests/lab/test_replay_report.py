"""Does the report say what the figures are, and lead with what was at stake?"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from streamdp.core.learners import RECIPES
from streamdp.lab.common.answer import Answer, Trajectory
from streamdp.lab.common.cells import USUAL_LEARNERS, parse_candidates, parse_epsilons
from streamdp.lab.common.cells import cells_of as cells_of_losses
from streamdp.lab.common.words import number
from streamdp.lab.logs.converting import convert
from streamdp.lab.logs.log import ArrayLog
from streamdp.lab.replay.figures import bounds, share_reached, timeline
from streamdp.lab.replay.replaying import Question, Replay, costs, replay_log, seeds_of
from streamdp.lab.replay.reported import as_json
from streamdp.lab.replay.summary import _paid, lead, middle, summary
from streamdp.wire.unprotected import LABEL, MEMBER
from tests.support.command_line import run_command
from tests.support.replayed import Pieces

LEARNERS = "incumbent_leader,prefix_softmax"
QUESTION = Question(parse_candidates(LEARNERS), parse_epsilons("0.5,2,inf"), seeds_of(20))


def _still(slots: int = 4000) -> ArrayLog:
    """Action b is better by .2 all along."""
    generator = np.random.default_rng(1)
    means = np.array([0.6, 0.4, 0.6])
    losses = (generator.random((slots, 3)) < means).astype(np.float32)
    return ArrayLog("still", ("a", "b", "c"), losses)


def _drifting(slots: int = 6000) -> ArrayLog:
    """The best action changes three times."""
    generator = np.random.default_rng(2)
    means = np.full((slots, 3), 0.8)
    means[np.arange(slots), np.arange(slots) * 4 // slots % 3] = 0.2
    losses = (generator.random((slots, 3)) < means).astype(np.float32)
    return ArrayLog("drifting", ("a", "b", "c"), losses)


@pytest.fixture(scope="module")
def still() -> Replay:
    return replay_log(_still(), QUESTION)


@pytest.fixture(scope="module")
def drifting() -> Replay:
    return replay_log(_drifting(), QUESTION)


def _said(replay: Replay, about: str) -> str:
    (says,) = (statement.says for statement in summary(replay) if statement.about == about)
    return says


def test_the_summary_agrees_with_the_figures(still: Replay) -> None:
    """Its numbers are those of the cells."""
    middle = [answer for answer in still.answers if str(answer.cell.epsilon) == "2"]
    best = min(middle, key=lambda answer: answer.mean)
    said = lead(still)
    assert f"At ε = 2 {best.cell.name} reached" in said["worth"]
    assert number(float(still.base.uniform_regret[-1])) in said["worth"]
    for answer in still.answers[:3]:
        at = answer.settled
        assert at is not None
        assert f"from slot {at:,}" in _said(still, "When it settles")
    free, paid = still.answers[2], still.answers[0]
    assert number(paid.mean - free.mean) in _said(still, "What privacy costs")
    assert "prefix_softmax at ε = 2 spends 1/4" in _said(still, "What it spends")


def test_what_privacy_costs_is_a_share_of_the_stake_and_a_gap_to_the_best_without(
    still: Replay,
) -> None:
    """Not only against the same blocks without noise: a leader by slot may lose much less."""
    said, uniform = _said(still, "What privacy costs"), float(still.base.uniform_regret[-1])
    assert still.running is not None
    paid = still.answers[0]
    every = (*still.answers, still.leader, still.running)
    free = min((a for a in every if a.cell.epsilon is None), key=lambda a: a.mean)
    assert free.mean < still.answers[2].mean
    assert said.startswith(f"{paid.cell.name} reached {1 - paid.mean / uniform:.0%} at ε = ")
    assert f"without privacy {free.cell.name} reached {1 - free.mean / uniform:.0%}." in said
    assert f"{number(float((paid.regret - free.regret).mean()))} ±" in said
    assert share_reached(paid, still) == pytest.approx(1 - paid.mean / uniform)


def test_the_default_grid_holds_the_default_learner() -> None:
    assert USUAL_LEARNERS[0] == RECIPES.default


def test_a_learner_without_privacy_has_a_report() -> None:
    """It stands at ε = inf, in a cell of its own and in sentences, whatever ε was asked for."""
    question = Question(parse_candidates("follow_the_leader"), parse_epsilons("0.5"), seeds_of(2))
    free = replay_log(_still(300), question)
    assert _said(free, "When it settles").startswith("follow_the_leader has the best action")
    assert lead(free)["sure"].endswith("No learner that was asked for has an ε.")
    assert lead(free)["worth"].startswith("At ε = ∞ follow_the_leader reached ")
    question = replace(question, candidates=parse_candidates("prefix_softmax,follow_the_leader"))
    asked = [
        cell for cell in cells_of(replay_log(_still(300), question)) if cell["role"] == "candidate"
    ]
    assert [cell["epsilon"] for cell in asked] == ["0.5", "inf"]


def test_a_log_without_losses_says_nothing() -> None:
    """Its summary says so, and first; that a short log is too short is not called a small gap."""
    nulls = ArrayLog("nulls", ("a", "b", "c"), np.full((50, 3), np.nan, dtype=np.float32))
    said = summary(replay_log(nulls, QUESTION))
    assert said[0].says.startswith("50 of 50 slots have no usable losses")
    assert said[1].says.startswith("Nothing: every action has lost the same")
    assert {statement.about for statement in said[2:]} <= {"What it spends", "What is still open"}
    one = replay_log(
        ArrayLog("one", ("a", "b"), np.array([[0.1, 0.9]], dtype=np.float32)), QUESTION
    )
    assert "worse by 0.8 a slot, which is too little for a log of" in _said(one, "When it settles")


def test_who_was_in_force_tiles_the_log(drifting: Replay) -> None:
    """Its stretches follow each other from the first slot to the last."""
    stretches = timeline(drifting.answers[0], slots=6000)
    assert (stretches[0].start, stretches[-1].stop) == (1, 6001)
    assert all(a.stop == b.start for a, b in pairwise(stretches))


def test_regret_is_below_the_bound(still: Replay) -> None:
    for answer in still.answers:
        bound = bounds(still, answer.cell)
        if answer.cell.epsilon is None:
            assert bound is None
        else:
            assert bound is not None
            assert answer.mean < bound[1][-1]


def test_the_ledger_charges_whole_blocks_once(still: Replay) -> None:
    """Whole blocks are charged, the open one is not, and no event twice."""
    answer = still.answers[0]
    schedule = answer.cell.learner.schedule
    assert answer.charge.blocks == schedule.block_of(4001)
    assert answer.charge.slots == schedule.start(answer.charge.blocks) - 1
    assert answer.charge.slots + answer.charge.open_slots == 4000
    assert answer.charge.epsilon == answer.cell.learner.charge


def test_the_lead_says_what_was_at_stake_and_how_sure_that_is(
    still: Replay, drifting: Replay
) -> None:
    """First what was compared, then what it is worth in losses, then the interval on this log."""
    for replay in (still, drifting):
        said, stake = lead(replay), float(replay.base.uniform_regret[-1])
        assert as_json(replay)["lead"] == said
        rivals = [a for a in replay.answers if a.cell.epsilon == middle(replay).cell.epsilon]
        best = min(rivals, key=lambda answer: answer.mean)
        assert said["compared"].startswith("2 learners at 3 budgets on ")
        won = best.mean < stake
        reached = (
            f"reached {1 - best.mean / stake:.0%} of what" if won else "lost more than uniform"
        )
        assert f"{best.cell.name} {reached}" in said["worth"]
        assert f"{number(abs(stake - best.mean))} of {number(stake)} losses" in said["worth"]
        assert said["sure"].startswith(f"± {number(1.96 * best.error)} losses with 95 % over 20")
    assert "(b) gains over uniform play" in lead(still)["worth"]


def test_nothing_is_said_to_be_at_stake_where_nothing_was() -> None:
    alike = ArrayLog("alike", ("a", "b"), np.full((50, 2), 0.5, dtype=np.float32))
    assert lead(replay_log(alike, QUESTION))["worth"].startswith("Nothing was at stake")
    one = replay_log(_still(300), replace(QUESTION, seeds=(3,)))
    assert lead(one)["sure"].startswith("One seed: how sure that is cannot be said.")


def cells_of(replay: Replay) -> list[dict[str, object]]:
    cells = as_json(replay)["cells"]
    assert isinstance(cells, list)
    return cells


def _keyed(slots: int = 900) -> Pieces:
    """Three keys: `fr` with 600 slots likes a, `de` and the null key with 150 each like c."""
    generator = np.random.default_rng(5)
    place = np.arange(slots)
    fr = place % 6 < 4
    means = np.where(fr[:, None], [0.2, 0.6, 0.8], [0.9, 0.5, 0.1])
    keys: list[bytes | None] = [
        b"fr" if mine else (b"de", None)[at % 2] for at, mine in enumerate(fr.tolist())
    ]
    losses = (generator.random((slots, 3)) < means).astype(np.float32)
    return Pieces(losses, keys, actions=("a", "b", "c"))


@pytest.mark.parametrize(
    ("paid", "said"),
    [
        ([3.0, 5.0, 4.0], "^4.00 ± 1.13 losses, 2.00 in a thousand slots$"),
        ([-15.0, -16.0, -14.0], r"^nothing; its noise saved 15.0 ± 1.13 losses here, 7.50 in a"),
        ([-15.0, 14.0, 2.0], r"^nothing beyond chance \(0.333 ± "),
    ],
)
def test_the_cost_of_privacy_is_never_negative(paid: list[float], said: str) -> None:
    """Noise that happened to help is told as such, and within chance nothing is claimed."""
    nothing, (cell,) = (
        np.zeros(len(paid)),
        cells_of_losses(parse_candidates("incumbent_leader"), (Fraction(1),), actions=["a", "b"]),
    )
    course = Trajectory(*(np.zeros(1, np.int64), *np.zeros((3, 1))))
    private, free = (
        Answer(cell=cell, regret=regret, course=course) for regret in (np.array(paid), nothing)
    )
    assert re.search(said, _paid(private, free, 2000))


def test_the_figures_hold_actions_keys_and_open_blocks() -> None:
    """Loss rates of the log, regret by key, and how much of it nothing was learned from yet."""
    log = _keyed()
    replay = replay_log(log, QUESTION)
    figures = as_json(replay)
    rates = log.losses.mean(axis=0)
    assert figures["loss_by_action"] == pytest.approx(
        dict(zip(log.actions, rates.tolist(), strict=True))
    )
    assert figures["best_for_keys"] == [1, 0, 2]
    keys = figures["by_key"]
    assert isinstance(keys, list)
    assert [(row["key"], row["slots"], row["best_action"]) for row in keys] == [
        ("fr", 600, "a"), ("de", 150, "c"), ("(no key)", 150, "c"),
    ]  # fmt: skip
    shown = middle(replay)
    assert sum(shown.by_key) == pytest.approx(shown.mean)
    open_slots = f"{shown.charge.open_slots:,} of 900 slots"
    assert open_slots in _said(replay, "What is still open")


def test_the_json_holds_all_figures(still: Replay) -> None:
    figures = json.loads(json.dumps(as_json(still)))
    names = {(cell["learner"], cell["epsilon"]) for cell in figures["cells"]}
    assert {("incumbent_leader", "0.5"), ("prefix_softmax", "inf")} <= names
    assert "not_private" in figures
    first = figures["cells"][0]
    assert first["regret"] == pytest.approx(np.mean(first["regret_by_seed"]))
    assert first["regret_over_time"][-1] == pytest.approx(first["regret"])


def test_a_long_run_says_its_cost_first() -> None:
    losses = np.broadcast_to(np.zeros((1, 10), np.float32), (10**7, 10))
    log = ArrayLog("long", tuple("abcdefghij"), losses)
    learners = "noisy_leader:noise=gumbel:resample=bernoulli,follow_the_leader:window=running"
    costs_told = costs(log, Question(parse_candidates(learners), QUESTION.epsilons, seeds_of(100)))
    assert [line.split(":")[0] for line in costs_told] == ["noisy_leader", "follow_the_leader"]
    assert "draws every event anew for each of 100 seeds" in costs_told[0]
    assert not costs(log, Question(QUESTION.candidates, QUESTION.epsilons, seeds_of(100)))


@pytest.mark.slow
def test_convert_and_replay_work_together(tmp_path: Path) -> None:
    """Convert, replay with a report, plan: as a user would type them."""
    convert(_still(600), tmp_path / "log.npz")
    parquet, html = tmp_path / "log.parquet", tmp_path / "log.html"
    result = run_command(["convert", str(tmp_path / "log.npz"), str(parquet)])
    assert result.exit_code == 0, result.output
    asked = ["replay", "losses", str(parquet), "--seeds", "5", "--report", str(html), "--json", "-"]
    result = run_command(asked)
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.strip().splitlines()[-1])
    assert (figures["slots"], next(iter(figures.items()))) == (600, (MEMBER, LABEL))
    assert json.dumps(figures["lead"]) in html.read_text()
    result = run_command(["replay", "losses", str(parquet), "--seeds", "5"])
    assert result.exit_code == 0, result.output
    assert "NOT PRIVATE" in result.stdout
    result = run_command(["datasets"])
    assert "flights" in result.stdout
