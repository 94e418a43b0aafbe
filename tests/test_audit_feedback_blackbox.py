"""What do neighbouring logs of feedback, sent through the real service, prove of ε?

The shipped learners prove no more than they charge; noise of half the scale, sums that are carried
over, a loss that is read though its action was not shown, counts of usable events and dropped
records prove more. Bits are seeded by the test, so that it says the same each time; at the
confidence of the shipped verdicts one in a million audits is a false alarm.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamdp import cli
from streamdp.core.events import FeedbackBatch
from streamdp.core.kinds import feedback as kind
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.core.noise import discrete_laplaces
from streamdp.core.randomness import SeededRandomness
from streamdp.lab.audit.blackbox import CONFIDENCE, EpsilonBound, Record
from streamdp.lab.audit.feedback_blackbox import feedback_bound, feedback_pairs
from streamdp.lab.commands._black_box import served, spec_of
from streamdp.ports import Records
from streamdp.service import protocol
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp.wire.feedback import Content, FeedbackFormat, Headers
from tests.support.feedback_story_mutants import MUTANTS

pytestmark = pytest.mark.slow

Patch = pytest.MonkeyPatch
PATIENT = 0.95  # confidence at which the published numbers of runs are stated


def made(
    *, recipe: str = "policy_elimination", epsilon: str = "1", **options: str
) -> PolicyLearner:
    """Elimination computes fastest, and what is released is the same for every rule."""
    return FEEDBACK_RECIPES[recipe](actions=["a", "b", "c"], epsilon=epsilon, **options)


def proven(
    learner: PolicyLearner,
    *,
    runs: int,
    confidence: float = CONFIDENCE,
    content: Content = "loss",
    which: slice = slice(None),
) -> list[EpsilonBound]:
    """What each pair proves of a learner behind the real service, its bits by a seed."""
    proven_bounds = []
    for at, pair in enumerate(feedback_pairs(learner.schedule, format_of(learner))[which]):
        spec = spec_of(learner, stream=f"pair-{at}", content=content)
        spec = replace(spec, randomness=SeededRandomness(5))

        def run(log: Sequence[Record], headers: Sequence[Headers], spec: Any = spec) -> list[bytes]:
            return asyncio.run(served(spec, MemoryTechnology(MemoryLog(gap=1)), log, headers))

        proven_bounds.append(feedback_bound(pair, run, runs=runs, confidence=confidence))
    return proven_bounds


def format_of(learner: PolicyLearner, content: Content = "loss") -> FeedbackFormat:
    chosen_format = spec_of(learner, stream="x", content=content).format
    assert isinstance(chosen_format, FeedbackFormat)
    return chosen_format


SHIPPED = [
    made(recipe=name, played=played)
    for name in FEEDBACK_RECIPES
    if name.startswith("policy")
    for played in ("header", "value")
]


@pytest.mark.parametrize("learner", SHIPPED, ids=str)
def test_do_shipped_learners_prove_no_more_than_they_charge(learner: PolicyLearner) -> None:
    proven_bounds = proven(learner, runs=150, content="reward")
    assert len(proven_bounds) == 3
    assert learner.charge is not None
    assert max(bound.epsilon for bound in proven_bounds) <= learner.charge


def test_is_the_bound_close_to_what_is_charged() -> None:
    """The audit would see a little more than it may: the honest learner is near its ε."""
    (bound,) = proven(made(), runs=3000, confidence=PATIENT, which=slice(1))
    assert 0.8 < bound.epsilon <= 1


@pytest.mark.parametrize(
    ("name", "runs", "pair", "event"),
    [
        ("adds_half_the_noise", 300, 0, "towards"),
        ("draws_with_half_the_scale_that_it_says", 300, 0, "towards"),
        ("adds_noise_of_one_over_epsilon_though_counts_are_content", 1500, 0, "towards"),
        ("reads_the_loss_of_an_arm_that_was_not_shown", 1500, 0, "another action's sum too"),
        ("keeps_the_sums_of_the_block_before", 1500, 0, "the next block's sum too"),
        ("counts_usable_events_instead_of_shown_ones", 100, 2, "a count that headers do not give"),
        ("ends_a_block_when_enough_was_usable", 100, 1, "a release is missing"),
    ],
)
def test_is_a_broken_engine_refuted(
    name: str, runs: int, pair: int, event: str, monkeypatch: Patch
) -> None:
    """By so many runs on each side, at 95 % confidence; sound ones pass with as many above."""
    mutant = MUTANTS[name]
    mutant.patch(monkeypatch)
    broken = made(played=mutant.subject.played)
    (bound,) = proven(broken, runs=runs, confidence=PATIENT, which=slice(pair, pair + 1))
    assert bound.epsilon > 1, bound
    assert event in bound.event


def test_is_a_dropped_record_refuted(monkeypatch: Patch) -> None:
    """A service that leaves unusable records out ends the block later: a release is missing."""
    decode = protocol.decode  # type: ignore[attr-defined]

    def dropping(format_: FeedbackFormat, records: Sequence[Records], **limits: Any) -> object:
        batch, refused = decode(format_, records, **limits)
        assert isinstance(batch, FeedbackBatch)
        assert batch.unusable is not None
        keep = ~batch.unusable
        columns = batch.index[keep], batch.played[keep], batch.gain[keep], batch.offsets[keep]
        return FeedbackBatch(batch.keys, *columns), refused

    monkeypatch.setattr(protocol, "decode", dropping)
    (bound,) = proven(made(), runs=100, which=slice(1, 2))
    assert bound.event == "a release is missing"
    assert bound.epsilon > 1


@pytest.mark.parametrize("played", ["header", "value"])
def test_are_the_logs_neighbours(played: str) -> None:
    """One content differs, and nothing that is public about it: its length, or any header."""
    learner = made(played=played)
    for pair in feedback_pairs(learner.schedule, format_of(learner)):
        differ = [(a, b) for a, b in zip(*pair.streams, strict=True) if a != b]
        assert len(differ) == 1
        ((one, other),) = differ
        assert other is None or len(one or b"") == len(other)
        assert (
            len(pair.headers) == len(pair.streams[0]) == learner.schedule.stop(pair.block + 1) - 1
        )
        assert (pair.exact[0] != pair.exact[1]).any()


# The command


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.application(), list(args))
    return result.exit_code, result.output


CONFIGURED = """
app = "shop"
[transport]
kind = "sqlite"
path = "streamdp.db"
[topics.shown]
budget = "2"
[topics.seen]
budget = "1"
[streams.home]
input = "seen"
actions = ["a", "b", "c"]
start = "earliest"
learner = { epsilon = "1" }
[streams.banners]
input = "shown"
start = "earliest"
observes = "feedback"
actions = ["autumn", "boots", "coats"]
learner = { recipe = "policy_elimination", epsilon = "1", played = "PLAYED" }
feedback = { content = "reward", salt = "s" }
"""


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    path = tmp_path / "streamdp.toml"
    path.write_text(CONFIGURED.replace("PLAYED", "header"))
    return path


QUICK = ("--samples", "1000", "--black-box", "--runs", "300", "--json")


@pytest.mark.usefixtures("few_requests")
def test_does_the_command_audit_a_configurations_feedback_streams(configured: Path) -> None:
    """As it is configured, three actions and rewards, through the real service on files."""
    code, out = run("audit", "--config", str(configured), *QUICK)
    assert code == 0, out
    (result,) = json.loads(out)
    assert result["learner"].startswith("banners: policy_elimination")
    assert result["actions"] == 3
    assert 0 <= result["epsilon_proven"] <= 1


@pytest.mark.usefixtures("few_requests")
def test_does_the_command_look_at_recipes_from_outside_too() -> None:
    """With the fewest actions that are asked for, by header and by value."""
    asked = ("--recipe", "policy_elimination", "--epsilon", "1", "--actions", "2", "--actions", "3")
    code, out = run("audit", *asked, *QUICK[:-2], "100", "--json")
    assert code == 0, out
    looked = [
        (result["actions"], result["epsilon_proven"] is not None) for result in json.loads(out)
    ]
    assert sorted(looked) == [(2, True), (2, True), (3, False), (3, False)]


@pytest.mark.usefixtures("few_requests")
def test_does_the_command_fail_for_a_service_that_proves_more(
    configured: Path, monkeypatch: Patch
) -> None:
    """An eighth of the noise: under system bits so few runs miss it less than once in 10⁶."""
    monkeypatch.setattr(
        kind, "discrete_laplaces", lambda scale, *of: discrete_laplaces(scale / 8, *of)
    )
    code, out = run("audit", "--config", str(configured), *QUICK)
    (result,) = json.loads(out)
    assert code == 1
    assert any("from outside" in failure for failure in result["failures"])


SECOND = """
[streams.again]
input = "shown"
start = "earliest"
observes = "feedback"
actions = ["autumn", "boots"]
learner = { recipe = "policy_elimination", epsilon = "1" }
feedback = { content = "reward", salt = "s" }
"""


@pytest.mark.usefixtures("few_requests")
@pytest.mark.parametrize("name", ["keys_bits_with_four_bytes", "counts_a_lone_slot_tenfold"])
def test_does_the_command_fail_for_what_only_the_engine_shows(
    name: str, configured: Path, monkeypatch: Patch
) -> None:
    """Production's bits, and slots that come alone: of every feedback stream of a configuration."""
    configured.write_text(configured.read_text() + SECOND)
    MUTANTS[name].patch(monkeypatch)
    code, out = run("audit", "--config", str(configured), "--samples", "1000", "--json")
    assert code == 1
    for result in json.loads(out):
        assert re.search(MUTANTS[name].said, "\n".join(result["failures"])), result


def test_is_a_configuration_without_feedback_refused(configured: Path) -> None:
    text = configured.read_text()
    configured.write_text(text[: text.index("[streams.banners]")])
    result = CliRunner().invoke(cli.application(), ["audit", "--config", str(configured)])
    assert "no feedback" in str(result.exception)
    both = ["audit", "--config", str(configured), "--epsilon", "1"]
    assert "got --epsilon" in str(CliRunner().invoke(cli.application(), both).exception)
