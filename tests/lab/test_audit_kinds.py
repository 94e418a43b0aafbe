"""Does the audit let every shipped kind pass, and does its verdict say what a broken one does?

Broken ones are in `test_mutants`. Seeds are fixed, but where the system's bits are what is tested;
a sound engine fails one of these tests with probability at most 1e-8. `make soak` repeats what is
random.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np
import pytest

from streamdp.core.events import SPARE
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.kinds.estimates import estimate
from streamdp.core.kinds.kind import Kind
from streamdp.core.learners import Leader, learner_of
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.core.randomness import SeededRandomness, SystemRandomness
from streamdp.lab.audit import (
    LAYERS,
    Audit,
    Findings,
    Memo,
    audit_kind,
    flaws_of_system_bits,
    misdeeds,
    sample,
    verdict,
)
from streamdp.lab.audit.exposure import designs, exposed
from streamdp.lab.audit.long_blocks import Telling
from streamdp.lab.audit.transcripts import worst_ratios
from streamdp.lab.commands.audit import SHIPPED
from streamdp.lab.kits.kinds import check_kind
from tests.golden_engine import POLICIES
from tests.support.mutants import MUTANTS
from tests.support.mutants.table import BY_HEADER, BY_VALUE, FIELDS, INCUMBENT, made
from tests.support.remembering import remembering
from tests.support.structures import one_policy_of_each

pytestmark = pytest.mark.slow

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))
SYSTEM = SystemRandomness()


def shipped(options: dict[str, str], *, actions: int = 2) -> Leader:
    return learner_of({**options, "epsilon": "1"}, actions=["a", "b", "c"][:actions])


def audited(kind: Kind, memo: Memo) -> Audit:
    """Blocks as the kit's under seeded bits, so that a test never comes and goes."""
    return audit_kind(
        kind, samples=1000, randomness=SeededRandomness("audit"), longest=64, memo=memo
    )


SOUND = Memo()
"""What audits of the unbroken engine share."""


@pytest.mark.parametrize("options", [{}, {"context": FIELDS}], ids=["plain", "contexts"])
def test_a_kind_with_room_is_audited_in_its_own_columns(options: dict[str, Any]) -> None:
    """As a configuration has it."""
    columns = ("a", "b", SPARE, SPARE)
    kind = FEEDBACK_RECIPES["policy_contexts" if options else "policy_elimination"](
        actions=FIELDS.arms(columns) if options else columns, epsilon="1", room="2", **options
    )
    seeded = SeededRandomness("audit")
    result = audit_kind(kind, samples=1000, randomness=seeded, longest=8, memo=SOUND)
    assert (result.failures, result.verdict) == ((), "holds")
    assert result.worst == pytest.approx(1)


# What else a rule is told does not reach the engine, only the policy that follows from releases.
# With contexts each policy fits a model: whole by value, in parts by header.
AUDITED = one_policy_of_each(
    {
        name: of
        for name, of in POLICIES.items()
        if (of.name, of.played) != ("policy_contexts", "header")
    },
    lambda of: (of.name, of.schedule, of.played),
)


def in_parts(played: str) -> PolicyLearner:
    """Of a table of two fields, each of them a part."""
    fields = Contexts.read({"device": ["phone"], "country": ["fr"]})
    return FEEDBACK_RECIPES["policy_contexts"](
        actions=fields.arms(("a", "b")), epsilon="1/2", context=fields, played=played,
        interactions="none",
    )  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [*AUDITED.values(), BY_HEADER, BY_VALUE, in_parts("header")],
    ids=[*AUDITED, "mutants' by header", "mutants' by value", "parts"],
)
def test_every_feedback_learner_costs_what_it_says(kind: PolicyLearner) -> None:
    """ε exactly: enumerated, in long blocks, sampled; what is not private says so.

    By the kit, which asks the same of blocks and content, it keeps its other promises too.
    """
    result = audited(kind, SOUND)
    check_kind(kind, memo=SOUND)
    assert result.failures == ()
    assert result.verdict == ("holds" if kind.charge else "not private")
    assert result.worst == (pytest.approx(float(kind.charge)) if kind.charge else inf)


def test_a_whole_table_by_header_costs_what_it_says() -> None:
    """Every short stream: what else an engine does with a table in headers is asked of parts."""
    by_header = "policy_contexts", "header"
    kind = next(of for of in POLICIES.values() if (of.name, of.played) == by_header)
    findings = Findings(kind, 1000, 64, SOUND)
    assert list(LAYERS["streams"](findings)) == []
    assert findings.worst == pytest.approx(float(findings.charged)) == float(kind.charge or 0)


@pytest.mark.parametrize("epsilon", ["0.1", "1", "3"])
@pytest.mark.parametrize("played", ["header", "value"])
def test_noise_is_not_larger_than_needed(epsilon: str, played: str) -> None:
    """The exact ratio reaches ε: smaller noise would not do."""
    kind = made(epsilon=epsilon, played=played)
    worst = max(max(worst_ratios(exposed(kind, one), kind).values()) for one in designs(kind))
    assert worst == pytest.approx(float(Fraction(epsilon)))


def test_the_shipped_engine_passes_in_the_longest_blocks() -> None:
    """Recipes and schedules go through the conformance kit; here are estimates, and 256 slots."""
    kind = INCUMBENT.with_estimates([estimate("block_regret", epsilon="1/4", min_length=30)])
    assert list(misdeeds(kind)) == []


@pytest.mark.parametrize("options", [SHIPPED[0], SHIPPED[2], SHIPPED[6]])
def test_releases_of_long_blocks_follow_their_law(options: dict[str, str]) -> None:
    """Under the system's bits, for whole blocks, windows and resampled losses; 1e-9 each."""
    for _ in range(TIMES):
        learner = shipped(options, actions=3)
        for what, fit in sample(learner, randomness=SYSTEM, samples=4000, longest=64):
            assert fit.passed, (what, fit)


def test_a_broken_engine_is_a_failed_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict of `streamdp audit` says what is wrong."""
    mutant = MUTANTS["favours_the_best_of_long_blocks"]
    mutant.patch(monkeypatch)
    audit = audit_kind(mutant.kind, samples=5000, longest=64)
    assert audit.verdict == "FAILS"
    assert any("drawn with other action than earlier" in what for what in audit.failures)
    assert any(what.startswith("long blocks: releases do not") for what in audit.failures)


def test_stories_are_told_once_for_all_epsilons(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one memo for many audits; the bits of production are looked at once too."""
    kinds: list[Kind] = []

    def told(self: Telling, kind: Kind, longest: int, system: object) -> Iterable[str]:
        kinds.append(kind)
        return [f"story {len(kinds)}"]

    monkeypatch.setattr(Telling, "faults", told)
    monkeypatch.setattr(verdict, "flaws_of_system_bits", lambda: [f"bits {len(kinds)}"])
    layers = {name: LAYERS[name] for name in ("bits", "nulls everywhere")}
    monkeypatch.setattr(verdict, "LAYERS", layers)
    memo = Memo()
    learners = [made(epsilon="1"), made(epsilon="3"), made(played="value")]
    failures = [audited(kind, memo).failures for kind in learners]
    assert failures == [("bits 0", "story 1")] * 2 + [("bits 0", "story 2")]


def test_stories_are_told_of_each_sort_of_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners that choose in other ways have one structure, and a choice could be wrong alone."""
    kinds: list[Kind] = []

    def told(self: Telling, kind: Kind, longest: int, system: object) -> Iterable[str]:
        kinds.append(kind)
        return [f"story {len(kinds)}"]

    monkeypatch.setattr(Telling, "faults", told)
    layers = {"nulls everywhere": LAYERS["nulls everywhere"]}
    monkeypatch.setattr(verdict, "LAYERS", layers)
    memo, asked = Memo(), []
    for resample in ("none", "bernoulli"):
        for noise, epsilon in (("laplace", "1"), ("gumbel", "1"), ("gumbel", "3")):
            options = {"recipe": "noisy_leader", "noise": noise, "resample": resample}
            asked.append(learner_of({**options, "epsilon": epsilon}, actions=["a", "b"]))
    stories = [audited(kind, memo).failures[0] for kind in asked]
    assert stories == [f"story {number}" for number in (1, 2, 2, 3, 3, 3)]


def test_a_learner_that_remembers_passes() -> None:
    """One whose memory looks at the sums does not: see `mutants.kinds`."""
    assert list(misdeeds(remembering(INCUMBENT), longest=64)) == []


def test_estimates_that_are_due_late_are_audited_on_short_blocks() -> None:
    late = estimate("block_regret", epsilon="1/2", min_length=64)
    for one in (late, replace(late, min_length=3)):
        findings = Findings(INCUMBENT.with_estimates([one]), 1000, 4)
        for layer in ("streams", "samples"):
            assert list(LAYERS[layer](findings)) == []
        assert findings.worst == pytest.approx(1.5)
        assert findings.charged == Fraction(3, 2)


# -- the bits of production -----------------------------------------------------------------------

Entropy = Callable[[int], bytes]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda entropy: lambda count: entropy(4) * 8, "asks for"),
        (lambda entropy: lambda count: entropy(count // 2) * 2, "asks for"),
        (lambda entropy: lambda count: entropy(count)[:4] * 8, "not AES-256"),
        (lambda entropy: lambda count: zlib.crc32(entropy(count)).to_bytes(32, "big"), "not AES"),
        (lambda entropy: lambda count: entropy(count)[:31] + b"\0", "not AES-256"),
    ],
)
def test_a_key_with_less_entropy_is_found(changed: Callable[[Entropy], Entropy], said: str) -> None:
    """Whatever is made of the operating system's bytes: 256 bits of them have to be the key."""
    assert flaws_of_system_bits() == []
    flaws = flaws_of_system_bits(lambda entropy: SystemRandomness(changed(entropy)))
    assert any(said in what for what in flaws), flaws


def test_every_batch_of_draws_is_keyed_anew() -> None:
    """No first word comes twice; with keys of 32 bits, one of 400,000 (`make soak`) nearly surely
    would, however they were made. A false alarm: 1e-8 even there."""
    tags, one = np.zeros((1, 0), np.uint8), np.zeros(1, np.int64)
    batches = 20_000 * TIMES
    words = {int(SYSTEM.bits("s", 1, tags, one).words(0, 1)[0, 0]) for _ in range(batches)}
    assert len(words) == batches
