"""What do neighbouring logs through the real service prove of ε, and do broken ones show?

The shipped learners prove no more than they charge; noise of half the scale, sums that are carried
over, a loss that is read though its action was not shown, counts of usable events and dropped
records prove more. Bits are seeded by the test, so that it says the same each time; at the
confidence of the shipped verdicts one in a million audits is a false alarm.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf, log
from pathlib import Path
from typing import Any

import pytest
import scipy

import streamdp as sd
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.kinds import feedback
from streamdp.core.kinds.recipe import Played
from streamdp.core.learners import Leader, incumbent_leader, learner_of
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.core.noise import discrete_laplaces
from streamdp.core.selection import Exponential, NoisyMaxLaplace, PermuteAndFlip
from streamdp.lab import audit
from streamdp.lab.audit import verdict
from streamdp.lab.audit.blackbox import (
    CONFIDENCE,
    EpsilonBound,
    NeighbouringLogs,
    Record,
    highest,
    lower_bound,
    lowest,
    pairs,
)
from streamdp.lab.commands._black_box import served, spec_of
from streamdp.lab.commands.audit import SHIPPED
from streamdp.ports import Technology
from streamdp.service import batches, protocol
from streamdp.service.spec import StreamSpec
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp.wire.decoded import Headers
from streamdp.wire.feedback import Feedback, Number
from streamdp.wire.formats import Format, configure
from streamdp_adapters.sqlite import Settings, Sqlite
from tests.support.command_line import run_command
from tests.support.leaks import unusable
from tests.support.mutants import MUTANTS
from tests.support.mutants import feedback as broken
from tests.support.mutants.short_streams import keeps_sums

pytestmark = pytest.mark.slow

Patch = pytest.MonkeyPatch
PATIENT = 0.95  # confidence at which the published numbers of runs are stated


def shipped(options: dict[str, str]) -> Leader:
    return learner_of({**options, "epsilon": "1"}, actions=["x", "y"])


def made(*, recipe: str = "policy_elimination", **options: str) -> PolicyLearner:
    """Elimination computes fastest, and what is released is the same for every rule."""
    actions = ["a", "b", "c"]
    if "context" in options:
        actions = list(Contexts.read(options["context"]).arms(("a", "b")))
    return FEEDBACK_RECIPES[recipe](actions=actions, epsilon="1", **options)


HONEST = shipped({"recipe": "noisy_leader", "noise": "exponential"})
Learner = Leader | PolicyLearner

KINDS: list[Learner] = [*map(shipped, SHIPPED)] + [
    made(recipe=name, played=played)
    for name in FEEDBACK_RECIPES
    if name.startswith("policy") and name != "policy_contexts"  # the same sums, of more arms
    for played in ("header", "value")
]


def memory() -> Technology:
    """A new cluster for each pair."""
    return MemoryTechnology(MemoryLog(gap=1))


def proven(
    learner: Learner,
    *,
    runs: int,
    confidence: float = CONFIDENCE,
    make: Callable[[], Technology] = memory,
    content: Number = "loss",
    which: slice = slice(None),
    format_: Format | None = None,
) -> list[EpsilonBound]:
    """What each pair proves of a learner behind the real service, its bits by a seed."""
    bounds = []
    logs = pairs_of(learner, content) if format_ is None else pairs(learner.schedule, format_)
    for at, pair in enumerate(logs[which]):
        spec = spec_of(learner, stream=f"pair-{at}", content=content)
        spec = replace(spec, format=format_ or spec.format, randomness=sd.SeededRandomness(5))
        technology = make()

        def run(
            log: Sequence[Record],
            headers: Sequence[Headers] | None,
            spec: StreamSpec = spec,
            on: Technology = technology,
        ) -> list[bytes]:
            return asyncio.run(served(spec, on, log, headers))

        bounds.append(lower_bound(pair, run, runs=runs, confidence=confidence))
    return bounds


def pairs_of(learner: Learner, content: Number = "loss") -> list[NeighbouringLogs]:
    return pairs(learner.schedule, spec_of(learner, stream="x", content=content).format)


@pytest.mark.parametrize("learner", KINDS, ids=str)
def test_shipped_learners_prove_no_more_than_they_charge(learner: Learner) -> None:
    losses = learner.recipe.played is None
    bounds = proven(learner, runs=300 if losses else 150, content="loss" if losses else "reward")
    assert len(bounds) == 3
    assert learner.charge is not None
    assert max(bound.epsilon for bound in bounds) <= learner.charge


@pytest.mark.parametrize("played", ["header", "value"])
def test_contexts_prove_no_more_than_they_charge(played: Played) -> None:
    """One event of another cell and action, where these are content; else of another reward."""
    contexts = Contexts.read('{"device":["phone"]}')
    learner = made(recipe="policy_contexts", context=str(contexts), played=played)
    actions = ("a", "b")
    format_ = configure(
        "json",
        feedback=Feedback(actions, "reward", played, contexts=contexts),
        options={"padding": "fixed"} if played == "value" else {},
    )
    bounds = proven(learner, runs=100, format_=format_)
    assert len(bounds) == 3
    assert max(bound.epsilon for bound in bounds) <= 1
    assert {bound.event for bound in bounds} <= {"none", "towards a", "towards b"}


@pytest.mark.parametrize("learner", [HONEST, made()], ids=str)
def test_the_bound_is_close_to_what_is_charged(learner: Learner) -> None:
    """The audit would see a little more than it may: the honest learner is near its ε."""
    (bound,) = proven(learner, runs=3000, confidence=PATIENT, which=slice(1))
    assert 0.7 < bound.epsilon <= 1


@pytest.mark.parametrize(
    ("choose", "runs"),
    [
        (PermuteAndFlip(Fraction(1)), 300),  # Exp(1/ε)
        (NoisyMaxLaplace(Fraction(1)), 1400),  # Lap(1/ε)
        (Exponential(Fraction(1)), 1400),  # softmax at η = ε
    ],
    ids=lambda value: str(value),
)
def test_noise_of_half_the_scale_is_refuted(
    choose: PermuteAndFlip | NoisyMaxLaplace | Exponential, runs: int
) -> None:
    """By so many runs on each side, at 95 % confidence, as the papers print them."""
    bound = proven(replace(HONEST, choose=choose), runs=runs, confidence=PATIENT, which=slice(1))[0]
    assert bound.epsilon > 1, bound


def test_the_default_learner_with_half_the_noise_is_refuted(tmp_path: Path) -> None:
    """With its bonus, on the embedded files, at the confidence of verdicts."""
    broken = replace(shipped({"recipe": "incumbent_leader"}), choose=PermuteAndFlip(Fraction(1)))
    where = itertools.count()

    def files() -> Technology:
        path = str(tmp_path / f"{next(where)}.db")
        return Sqlite(Settings.from_mapping({"path": path}))

    honest = proven(shipped({"recipe": "incumbent_leader"}), runs=500, make=files, which=slice(1))
    bound = proven(broken, runs=2000, make=files, which=slice(1))[0]
    assert honest[0].epsilon <= 1 < bound.epsilon


@pytest.mark.parametrize(
    ("breaks", "played", "runs", "pair", "event"),
    [
        (broken.adds_half_the_noise, "header", 300, 0, "towards"),
        (broken.draws_with_half_the_scale_that_it_says, "header", 300, 0, "towards"),
        (
            broken.adds_noise_of_one_over_epsilon_though_actions_are_content, "value", 1500, 0,
            "towards",
        ),
        (
            broken.reads_the_loss_of_an_arm_that_was_not_shown, "header", 1500, 0,
            "another action's sum too",
        ),
        (keeps_sums, "header", 1500, 0, "the next block's sum too"),
        (
            broken.counts_usable_events_instead_of_shown_ones, "header", 100, 2,
            "a count that headers do not give",
        ),
        (broken.ends_a_block_when_enough_was_usable, "header", 100, 1, "a release is missing"),
    ],
)  # fmt: skip
def test_a_broken_engine_is_refuted(
    breaks: Callable[[Patch], None],
    played: Played,
    runs: int,
    pair: int,
    event: str,
    monkeypatch: Patch,
) -> None:
    """By so many runs on each side, at 95 % confidence; sound ones pass with as many above."""
    breaks(monkeypatch)
    (bound,) = proven(
        made(played=played), runs=runs, confidence=PATIENT, which=slice(pair, pair + 1)
    )
    assert bound.epsilon > 1, bound
    assert event in bound.event


@pytest.mark.parametrize("learner", [HONEST, made()], ids=str)
def test_a_dropped_record_is_refuted(learner: Learner, monkeypatch: Patch) -> None:
    """A service that leaves unusable records out ends the block later: a release is missing."""
    joined = batches.joined

    def dropping(records: Sequence[batches.DecodedRecords], **limits: Any) -> object:
        batch, refused = joined(records, **limits)
        return batch.part(~unusable(batch)), refused

    monkeypatch.setattr(protocol, "joined", dropping)
    bound = proven(learner, runs=100, which=slice(1, 2))[0]
    assert bound.event == "a release is missing"
    assert bound.epsilon > 1


def test_a_block_that_is_not_reset_is_refuted(monkeypatch: Patch) -> None:
    """An event is in the sums of the next block too: both releases together tell more than ε."""
    keeps_sums(monkeypatch)
    bound = proven(HONEST, runs=2500, confidence=PATIENT, which=slice(1))[0]
    assert "before" in bound.event
    assert bound.epsilon > 1


# The numbers


@pytest.mark.parametrize(("count", "runs"), [(0, 1), (0, 300), (7, 300), (150, 300), (299, 300)])
def test_the_bounds_are_those_of_clopper_and_pearson(count: int, runs: int) -> None:
    for error in (0.025, 1e-7):
        exact = scipy.stats.binomtest(count, runs).proportion_ci(1 - 2 * error, "exact")
        assert highest(count, runs, error=error) == pytest.approx(exact.high, rel=1e-9)
        assert lowest(count, runs, error=error) == pytest.approx(exact.low, rel=1e-9, abs=1e-15)


def test_a_certain_event_is_never_more_than_seen() -> None:
    assert (highest(10, 10, error=0.1), lowest(0, 10, error=0.1)) == (1, 0)


def test_an_event_that_one_side_never_shows_is_bounded() -> None:
    """Never seen is not impossible: the bound is finite."""
    bound = lower_bound(pairs_of(HONEST)[0], lambda log, headers: [], runs=50)
    assert (bound.epsilon, bound.event) == (0.0, "none")
    assert log(lowest(50, 50, error=1e-6) / highest(0, 50, error=1e-6)) < inf


@pytest.mark.parametrize("learner", [HONEST, made(), made(played="value")], ids=str)
def test_the_logs_are_neighbours(learner: Learner) -> None:
    """One content differs, and nothing that is public about it: of feedback no length either."""
    for pair in pairs_of(learner):
        differ = [(a, b) for a, b in zip(*pair.streams, strict=True) if a != b]
        assert len(differ) == 1
        assert len(pair.streams[0]) == learner.schedule.stop(pair.block + 1) - 1
        if pair.headers is not None:
            ((one, other),) = differ
            assert other is None or len(one or b"") == len(other)
            assert len(pair.headers) == len(pair.streams[0])


def test_a_box_of_three_actions_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="black box: actions; expected two, got 3"):
        pairs_of(sd.incumbent_leader(actions=["a", "b", "c"], epsilon="1"))


# The command


def run(*args: str) -> tuple[int, str]:
    result = run_command(list(args))
    return result.exit_code, result.output


@pytest.fixture
def exact_alone(monkeypatch: Patch) -> None:
    """From inside, commands look at short streams: what else they find is in `test_cli_audit`."""
    monkeypatch.setattr(verdict, "LAYERS", {"streams": audit.LAYERS["streams"]})


QUICK = ("audit", "--recipe", "incumbent_leader", "--epsilon", "1", "--actions", "2",
         "--samples", "1000", "--black-box", "--runs", "250")  # fmt: skip


@pytest.mark.usefixtures("exact_alone")
def test_the_command_tells_what_the_service_proves() -> None:
    code, out = run(*QUICK, "--json")
    (audit,) = json.loads(out)
    assert code == 0
    assert 0 <= audit["epsilon_proven"] <= 1


@pytest.mark.usefixtures("exact_alone")
def test_the_table_has_a_column_for_it(monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    code, out = run(*QUICK[:-1], "100")
    assert code == 0
    assert "seen from outside" in out
    assert "ε ≥" in out


@pytest.mark.usefixtures("exact_alone")
def test_the_command_fails_for_a_service_that_proves_more(monkeypatch: Patch) -> None:
    monkeypatch.setattr(incumbent_leader, "permute_and_flip_rate", lambda epsilon: 4 * epsilon)
    code, out = run(*QUICK, "--json")
    (audit,) = json.loads(out)
    assert code == 1
    assert any("from outside" in failure for failure in audit["failures"])


def test_a_service_that_halts_is_no_proof(monkeypatch: Patch) -> None:
    """The audit says why instead of taking silence for privacy."""

    def refuse(*args: object, **more: object) -> None:
        raise StateMismatch("on purpose")

    monkeypatch.setattr(protocol, "open_partition", refuse)
    with pytest.raises(StateMismatch, match="on purpose"):
        proven(HONEST, runs=10)


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


LOOKED = ("--samples", "1000", "--black-box", "--runs", "300", "--json")


@pytest.mark.usefixtures("exact_alone")
@pytest.mark.parametrize("room", [0, 2])
def test_the_command_audits_a_configurations_feedback_streams(configured: Path, room: int) -> None:
    """As it is configured, three actions and rewards, through the real service on files."""
    text = configured.read_text()
    configured.write_text(text.replace('"feedback"', f'"feedback"\nroom = {room}', 1))
    code, out = run("audit", "--config", str(configured), *LOOKED)
    assert code == 0, out
    (result,) = json.loads(out)
    assert result["learner"].startswith("banners: policy_elimination")
    assert result["actions"] == 3 + room
    assert 0 <= result["epsilon_proven"] <= 1


@pytest.mark.usefixtures("exact_alone")
def test_the_command_looks_at_recipes_from_outside_too() -> None:
    """With the fewest actions that are asked for, by header and by value."""
    asked = ("--recipe", "policy_elimination", "--epsilon", "1", "--actions", "2", "--actions", "3")
    code, out = run("audit", *asked, *LOOKED[:-2], "100", "--json")
    assert code == 0, out
    looked = [
        (result["actions"], result["epsilon_proven"] is not None) for result in json.loads(out)
    ]
    assert sorted(looked) == [(2, True), (2, True), (3, False), (3, False)]


@pytest.mark.usefixtures("exact_alone")
def test_the_command_fails_for_a_feedback_service_that_proves_more(
    configured: Path, monkeypatch: Patch
) -> None:
    """An eighth of the noise: under system bits so few runs miss it less than once in 10⁶."""
    monkeypatch.setattr(
        feedback,
        "discrete_laplaces",
        lambda scale, *of, **at: discrete_laplaces(scale / 8, *of, **at),
    )
    code, out = run("audit", "--config", str(configured), *LOOKED)
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


@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("name", ["keys_bits_with_four_bytes", "counts_a_lone_slot_tenfold"])
def test_the_command_fails_for_what_only_the_engine_shows(
    name: str, configured: Path, monkeypatch: Patch
) -> None:
    """Production's bits, and slots that come alone: of every feedback stream of a configuration."""
    configured.write_text(configured.read_text() + SECOND)
    layer = MUTANTS[name].layer
    monkeypatch.setattr(verdict, "LAYERS", {layer: audit.LAYERS[layer]})
    MUTANTS[name].patch(monkeypatch)
    code, out = run("audit", "--config", str(configured), "--samples", "1000", "--json")
    assert code == 1
    for result in json.loads(out):
        assert re.search(MUTANTS[name].said, "\n".join(result["failures"])), result


def test_a_configuration_without_feedback_is_refused(configured: Path) -> None:
    text = configured.read_text()
    configured.write_text(text[: text.index("[streams.banners]")])
    result = run_command(["audit", "--config", str(configured)])
    assert "no feedback" in str(result.exception)
    both = ["audit", "--config", str(configured), "--epsilon", "1"]
    assert "got --epsilon" in str(run_command(both).exception)
