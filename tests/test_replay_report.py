"""Does the report say what the figures are, and is it one page that needs nothing else?"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from streamdp.cli import application
from streamdp.replay import charts
from streamdp.replay.cells import parse_candidates, parse_epsilons
from streamdp.replay.converting import convert
from streamdp.replay.figures import as_json, bounds, helping_cap, settled_at, timeline
from streamdp.replay.log import ArrayLog
from streamdp.replay.page import page
from streamdp.replay.replaying import Question, Replay, costs, replay_log, seeds_of
from streamdp.replay.summary import number, summary
from streamdp.wire.unprotected import LABEL, MEMBER

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
    (found,) = (each.says for each in summary(replay) if each.about == about)
    return found


def test_does_the_summary_agree_with_the_figures(still: Replay) -> None:
    """Its numbers are those of the cells."""
    middle = [answer for answer in still.answers if str(answer.cell.epsilon) == "2"]
    best = min(middle, key=lambda answer: answer.mean)
    told = _said(still, "Which learner")
    assert f"{best.cell.name}'s: {number(best.mean)} ±" in told
    assert number(float(still.base.uniform_regret[-1])) in told
    for answer in still.answers[:3]:
        at = settled_at(answer, still.base.points)
        assert at is not None
        assert f"from slot {at:,}" in _said(still, "When it settles")
    free, paid = still.answers[2], still.answers[0]
    assert number(paid.mean - free.mean) in _said(still, "What privacy costs")
    assert "prefix_softmax at ε = 2 spends 1/4" in _said(still, "What it spends")


def test_is_a_drift_noticed(still: Replay, drifting: Replay) -> None:
    """A capped schedule helps where the best action changes, and nowhere else."""
    assert _said(drifting, "Would a capped schedule help").startswith("Yes, in hindsight")
    assert _said(still, "Would a capped schedule help").startswith("No")
    changed = helping_cap(drifting, drifting.answers[0])
    assert changed is not None
    assert changed.mean < 0.8 * drifting.answers[0].mean
    stretches = timeline(changed, slots=6000)
    assert {each.action for each in stretches} == {0, 1, 2}
    assert stretches[0].start == 1
    assert stretches[-1].stop == 6001
    assert all(a.stop == b.start for a, b in pairwise(stretches))


def test_is_regret_below_the_bound(still: Replay) -> None:
    for answer in still.answers:
        told = bounds(still, answer.cell)
        if answer.cell.epsilon is None:
            assert told is None
        else:
            assert told is not None
            assert answer.mean < told[1][-1]


def test_is_the_ledger_the_schedules(still: Replay) -> None:
    """Whole blocks are charged, the open one is not, and no event twice."""
    answer = still.answers[0]
    assert answer.charged is not None
    schedule = answer.cell.leader.schedule
    assert answer.charged.blocks == schedule.block_of(4001)
    assert answer.charged.slots == schedule.start(answer.charged.blocks) - 1
    assert answer.charged.slots + answer.charged.open_slots == 4000
    assert answer.charged.epsilon == answer.cell.leader.charge


def test_is_the_page_complete_and_alone(still: Replay, drifting: Replay) -> None:
    for replay in (still, drifting):
        text = page(replay)
        assert "NOT PRIVATE" in text
        assert "This replay is exact" in text
        assert "stops being" in text
        assert not re.search(r"https?:|<script|<link|src=|@import|url\(", text)
        assert text.count("<section>") == text.count("</section>") >= 7
        assert "nan" not in re.findall(r'd="([^"]*)"', text)
        for each in summary(replay):
            assert each.about in text


def test_are_all_figures_in_the_json(still: Replay) -> None:
    told = json.loads(json.dumps(as_json(still)))
    names = {(cell["learner"], cell["epsilon"]) for cell in told["cells"]}
    assert {("incumbent_leader", "0.5"), ("prefix_softmax", "inf")} <= names
    assert "not_private" in told
    first = told["cells"][0]
    assert first["regret"] == pytest.approx(np.mean(first["regret_by_seed"]))
    assert first["regret_over_time"][-1] == pytest.approx(first["regret"])


def test_are_costs_told_before_a_long_run() -> None:
    losses = np.broadcast_to(np.zeros((1, 10), np.float32), (10**7, 10))
    log = ArrayLog("long", tuple("abcdefghij"), losses)
    learners = "noisy_leader:noise=gumbel:resample=bernoulli,follow_the_leader:window=running"
    told = costs(log, Question(parse_candidates(learners), QUESTION.epsilons, seeds_of(100)))
    assert [line.split(":")[0] for line in told] == ["noisy_leader", "follow_the_leader"]
    assert "draws every event anew for each of 100 seeds" in told[0]
    assert not costs(log, Question(QUESTION.candidates, QUESTION.epsilons, seeds_of(100)))


def test_do_the_commands_work_together(tmp_path: Path) -> None:
    """Convert, replay with a report, plan: as a user would type them."""
    convert(_still(600), tmp_path / "log.npz")
    run = CliRunner()
    parquet, html = tmp_path / "log.parquet", tmp_path / "log.html"
    found = run.invoke(application(), ["convert", str(tmp_path / "log.npz"), str(parquet)])
    assert found.exit_code == 0, found.output
    asked = ["replay", str(parquet), "--seeds", "5", "--report", str(html), "--json", "-"]
    found = run.invoke(application(), asked)
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout.strip().splitlines()[-1])
    assert (told["slots"], next(iter(told.items()))) == (600, (MEMBER, LABEL))
    assert "Replay of log.parquet" in html.read_text()
    found = run.invoke(application(), ["replay", str(parquet), "--seeds", "5"])
    assert found.exit_code == 0, found.output
    assert "NOT PRIVATE" in found.stdout
    found = run.invoke(application(), ["datasets"])
    assert "flights" in found.stdout


@pytest.mark.parametrize(
    ("count", "columns", "inside"),
    [(1, 1, False), (2, 2, False), (3, 3, False), (4, 2, False), (5, 3, True), (6, 3, False),
     (7, 2, True), (8, 3, True), (10, 2, False), (11, 3, True)],
)  # fmt: skip
def test_is_no_row_of_panels_nearly_empty(count: int, columns: int, inside: bool) -> None:
    """Columns are filled, or lack one place, which the legend takes."""
    made = charts.panels(["<figure></figure>"] * count, "<ul></ul>")
    assert f'class="panels of{columns}"' in made
    assert ('<div class="panel"><ul>' in made) is inside
    assert (count + inside) % columns == 0
