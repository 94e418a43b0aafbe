"""Does the audit of a crowd pass what is shipped, and catch an engine that is wrong?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import streamdp as sd
from streamdp.core.arrays import Floats, Ints
from streamdp.core.engine.losses import LossBlocks
from streamdp.core.randomness import SystemRandomness
from streamdp.core.selection import PermuteAndFlip, Prior
from streamdp.lab.audit import Memo, crowd
from streamdp.lab.audit.crowd import APART, KEYS, KINDS, audit_crowd
from streamdp.lab.audit.crowd_stories import each_misdeed_of_crowd, misdeeds_of_crowd
from tests.support.crowd_mutants import (
    LATE_MUTANTS,
    by_open_sums,
    counted_in_both,
    counted_in_its_own_block_too,
    from_open_sums,
    given_again_by_a_rebuild,
    when_sums_say_so,
)
from tests.support.engine_mutants import MUTANTS
from tests.support.remembering import remembering

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("priors_are_made_once")]

PLAIN = sd.incumbent_leader(actions=["a", "b"], epsilon="1")

TELLING = (2, 7)
"""Of the audit's eight transcripts, two in which every broken engine here shows."""


MEMO = Memo()
"""What audits of the unbroken engine share."""

SYSTEM = SystemRandomness()


def two_transcripts(patch: pytest.MonkeyPatch) -> None:
    """Let the audit ask about these alone."""
    patch.setattr(crowd, "misdeeds_of_crowd", lambda *asked, **how: [])
    scripts = tuple(crowd._scripts())
    patch.setattr(crowd, "_scripts", lambda: [scripts[number] for number in TELLING])


def test_has_the_control_group_one_of_the_two_keys() -> None:
    """Else nobody would be told anything, or nobody would learn alone."""
    assert [APART.holds(key) for key in KEYS] == [True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_does_a_crowd_cost_an_event_its_charge_at_most(kind: str) -> None:
    """Exactly its charge where the draw is close, and nothing while its block is open."""
    learner = sd.remembering_leader(actions=["a", "b", "c"], epsilon="1/2")
    audit = audit_crowd(learner, kind, longest=64, memo=MEMO)
    assert audit.verdict == "holds"
    assert (audit.charged, audit.actions, audit.samples) == (Fraction(1, 2), 2, 0)
    assert 0.45 < audit.worst <= 0.5 + 1e-9
    assert f"crowd={kind})" in audit.learner


@pytest.mark.parametrize(
    ("break_it", "kind", "record"),
    [
        (from_open_sums, "partition", 3),
        (when_sums_say_so, "partition", 3),
        (by_open_sums, "groups", 3),
        (counted_in_its_own_block_too, "donate", 1),
        (given_again_by_a_rebuild, "donate", 1),
        (counted_in_both, "control+donate", 0),
    ],
)
def test_is_a_broken_engine_caught(
    break_it: Callable[[pytest.MonkeyPatch], None],
    kind: str,
    record: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prior that reads sums, waits for them or is chosen by them; a slot that counts twice.

    By two transcripts: the audit fails for the worst of all eight, so these are enough for it.
    """
    two_transcripts(monkeypatch)
    break_it(monkeypatch)
    audit = audit_crowd(PLAIN, kind, memo=replace(MEMO, crowds={}))
    assert not audit.passed
    assert f"record {record}: moves what is released by" in audit.failures[-1]
    assert audit.worst > 1.1


def test_is_a_draw_that_reads_nothing_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit that sees nothing must not say that all is well; two transcripts show it."""
    two_transcripts(monkeypatch)
    kind = type(PLAIN.choose)
    plain = kind.log_probabilities

    def blind(self: PermuteAndFlip, sums: Ints, prior: Prior | None = None) -> Floats:
        return plain(self, 0 * sums, prior)

    monkeypatch.setattr(kind, "log_probabilities", blind)
    assert "due: some" in audit_crowd(PLAIN, "partition", memo=replace(MEMO, crowds={})).failures[0]


# -- beyond three blocks --------------------------------------------------------------------------


@pytest.mark.parametrize("name", LATE_MUTANTS)
def test_is_an_engine_caught_that_goes_wrong_where_no_transcript_goes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each passed an audit of transcripts alone; `said` is what is found."""
    mutant = LATE_MUTANTS[name]
    mutant.patch(monkeypatch)
    subject, flaws = crowd._subject(PLAIN, mutant.kind), list[str]()
    for what in each_misdeed_of_crowd(subject, mutant.longest, SYSTEM):
        flaws.append(what)
        if re.search(mutant.said, what):
            return
    pytest.fail(f"found {flaws}")


def test_is_what_is_in_force_recomputed_from_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner with a crowd that remembers passes; one whose memory looks at sums does not."""
    subject = crowd._subject(remembering(PLAIN), "control")
    assert misdeeds_of_crowd(subject, longest=64, system=SYSTEM) == []
    remember = LossBlocks._remember

    def peeking(self: LossBlocks, rows: Ints, votes: Ints, lengths: Ints) -> Ints:
        public = remember(self, rows, votes, lengths)
        return np.where(lengths >= 7, self._bank.sums[rows].argmax(axis=1), public)

    monkeypatch.setattr(LossBlocks, "_remember", peeking)
    flaws = misdeeds_of_crowd(subject, longest=64, system=SYSTEM)
    for said in (
        "the release does not say what is in force after it",
        "what is in force does not follow from them",
    ):
        assert any(said in what for what in flaws), flaws


def test_does_the_verdict_hold_what_is_found_beyond_the_transcripts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the engine in late blocks, and of the system's bits, which a crowd draws too."""
    mutant = LATE_MUTANTS["stretches_blocks_from_the_fourth_on"]
    bits = MUTANTS["repeats_rows_of_system_bits"]
    mutant.patch(monkeypatch)
    bits.patch(monkeypatch)
    monkeypatch.setattr(crowd, "_varied", lambda records, kind: [])
    audit = audit_crowd(PLAIN, mutant.kind, longest=64)
    assert audit.verdict == "FAILS"
    for said in (mutant.said, bits.said):
        assert any(re.search(said, what) for what in audit.failures), audit.failures
