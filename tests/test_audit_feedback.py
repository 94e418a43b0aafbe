"""Is ε what a feedback learner's releases cost, and is every broken variant caught?"""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from functools import partial
from math import inf
from re import search

import pytest
from typer.testing import CliRunner

from streamdp.cli import application
from streamdp.client import choosing
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.randomness import SeededRandomness
from streamdp.lab.audit import (
    Audit,
    Memo,
    audit_feedback_learner,
    feedback,
    flaws_of_choosing,
    flaws_of_system_bits,
    verdict,
)
from streamdp.lab.audit.feedback import designs, exposure
from streamdp.lab.audit.feedback_blocks import misdeeds_of_feedback, misdeeds_of_wide_feedback
from tests.golden_engine import POLICIES
from tests.support.feedback_mutants import CHOOSING, Mutant, made
from tests.support.feedback_story_mutants import MUTANTS

pytestmark = pytest.mark.slow


def audited(subject: PolicyLearner, memo: Memo) -> Audit:
    """Short blocks under seeded bits, so that a test never comes and goes."""
    seeded = SeededRandomness("audit")
    return audit_feedback_learner(subject, samples=4000, randomness=seeded, memo=memo)


@pytest.fixture(scope="module")
def sound() -> Memo:
    """The stories that the shipped engine lives through, and the bits of production."""
    memo = Memo()
    for played in ("header", "value"):
        assert audited(made(played=played), memo).passed
    return memo


def findings(mutant: Mutant, sound: Memo) -> Iterable[str]:
    """What the layer of the audit that is to find a broken engine finds, one by one."""
    if mutant.layer == "bits":
        return flaws_of_system_bits()
    if mutant.layer == "wide":
        return misdeeds_of_wide_feedback(mutant.subject)
    if mutant.layer == "stories":
        return misdeeds_of_feedback(mutant.subject)
    return audited(mutant.subject, Memo(engines={**sound.engines}, bits=[*sound.bits])).failures


@pytest.mark.parametrize(
    "subject",
    [*POLICIES.values(), made(), made(played="value")],
    ids=[*POLICIES, "mutants' by header", "mutants' by value"],
)
def test_every_learner_costs_what_it_says(subject: PolicyLearner, sound: Memo) -> None:
    """ε exactly: enumerated, in long blocks, sampled; what is not private says so."""
    result = audited(subject, sound)
    assert result.failures == ()
    assert result.verdict == ("holds" if subject.private else "not private")
    assert result.worst == (pytest.approx(float(subject.charge)) if subject.charge else inf)


@pytest.mark.parametrize("epsilon", ["0.1", "1", "3"])
@pytest.mark.parametrize("played", ["header", "value"])
def test_noise_is_not_larger_than_needed(epsilon: str, played: str) -> None:
    """The exact ratio reaches ε: 1/ε on sums, 3/ε on counts and sums, could not be smaller."""
    subject = made(epsilon=epsilon, played=played)
    worst = max(exposure(subject, design) for design in designs(subject))
    assert worst == pytest.approx(float(Fraction(epsilon)))


@pytest.mark.parametrize("name", list(MUTANTS))
def test_a_broken_variant_is_caught(
    name: str, sound: Memo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in the way that it is broken; the learners that they break pass above."""
    mutant = MUTANTS[name]
    mutant.patch(monkeypatch)
    others = []
    for failure in findings(mutant, sound):
        if search(mutant.said, failure):
            return
        others.append(failure)
    pytest.fail(f"only {others}")


def test_are_stories_told_once_for_all_epsilons(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one memo for many audits; the bits of production are looked at once too."""
    subjects: list[PolicyLearner] = []

    def telling(subject: PolicyLearner) -> Iterable[str]:
        subjects.append(subject)
        return [f"story {len(subjects)}"]

    monkeypatch.setattr(feedback, "misdeeds_of_feedback", telling)
    monkeypatch.setattr(verdict, "flaws_of_system_bits", lambda: [f"bits {len(subjects)}"])
    memo = Memo()
    learners = [made(epsilon="1"), made(epsilon="3"), made(played="value")]
    failures = [audited(subject, memo).failures for subject in learners]
    assert failures == [("bits 0", "story 1")] * 2 + [("bits 0", "story 2")]


@pytest.mark.parametrize("name", [None, *CHOOSING])
def test_is_a_broken_draw_from_a_policy_caught(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped one passes; salts for which it would not are one in 10⁸.

    Every broken one is caught by 150 requests; it gets a thousand.
    """
    said, samples = [], 5000
    if name is not None:
        samples = 1000
        wanted, patch = CHOOSING[name]
        patch(monkeypatch)
        said = [wanted]
    flaws = flaws_of_choosing(partial(choosing.chosen_arm, salt="pepper"), samples=samples)
    assert flaws[:1] == said, flaws


@pytest.mark.usefixtures("few_requests")
def test_the_command_tells_of_a_broken_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """`choose` is part of what `streamdp audit` looks at."""
    CHOOSING["says_the_probability_as_if_play_were_uniform"][1](monkeypatch)
    asked = ["audit", "--recipe", "policy_elimination", "--epsilon", "1", "--actions", "2"]
    result = CliRunner().invoke(application(), [*asked, "--samples", "1000", "--json"])
    assert result.exit_code == 1
    assert "a probability is said" in json.loads(result.stdout)[0]["failures"][0]


@pytest.mark.usefixtures("few_requests")
def test_the_command_audits_policies() -> None:
    """`streamdp audit --recipe policy_blocks`: with the action in the header and in the content."""
    asked = ["audit", "--recipe", "policy_elimination", "--epsilon", "1", "--actions", "2"]
    result = CliRunner().invoke(application(), [*asked, "--samples", "1000", "--json"])
    assert result.exit_code == 0, result.output
    results = json.loads(result.stdout)
    assert [one["verdict"] for one in results] == ["holds", "holds"]
    assert ["played=value" in one["learner"] for one in results] == [False, True]
    shown = CliRunner().invoke(application(), [*asked, "--samples", "1000"])
    assert "policy_elimination" in shown.stdout
