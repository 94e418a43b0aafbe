"""Does the audit of a crowd pass what is shipped, and catch an engine that is wrong?"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

import streamdp as sd
from streamdp.audit import crowd
from streamdp.audit.crowd import APART, KEYS, KINDS, audit_crowd
from streamdp.core.arrays import Floats, Ints
from streamdp.core.selection import PermuteAndFlip, Prior
from tests.support.crowd_mutants import (
    by_open_sums,
    counted_in_both,
    counted_in_its_own_block_too,
    from_open_sums,
    given_again_by_a_rebuild,
    when_sums_say_so,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("priors_are_made_once")]

TELLING = (2, 7)
"""Of the audit's eight transcripts, two in which every broken engine here shows."""


def two_transcripts(patch: pytest.MonkeyPatch) -> None:
    """Let the audit ask about these alone."""
    scripts = tuple(crowd._scripts())
    patch.setattr(crowd, "_scripts", lambda: [scripts[number] for number in TELLING])


def test_has_the_control_group_one_of_the_two_keys() -> None:
    """Else nobody would be told anything, or nobody would learn alone."""
    assert [APART.holds(key) for key in KEYS] == [True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_does_a_crowd_cost_an_event_its_charge_at_most(kind: str) -> None:
    """Exactly its charge where the draw is close, and nothing while its block is open."""
    audit = audit_crowd(sd.remembering_leader(actions=["a", "b", "c"], epsilon="1/2"), kind)
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
    audit = audit_crowd(sd.incumbent_leader(actions=["a", "b"], epsilon="1"), kind)
    assert not audit.passed
    assert f"record {record}: moves what is released by" in audit.failures[-1]
    assert audit.worst > 1.1


def test_is_a_draw_that_reads_nothing_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit that sees nothing must not say that all is well; two transcripts show it."""
    two_transcripts(monkeypatch)
    learner = sd.incumbent_leader(actions=["a", "b"], epsilon="1")
    kind = type(learner.choose)
    plain = kind.log_probabilities

    def blind(self: PermuteAndFlip, sums: Ints, prior: Prior | None = None) -> Floats:
        return plain(self, 0 * sums, prior)

    monkeypatch.setattr(kind, "log_probabilities", blind)
    assert "due: some" in audit_crowd(learner, "partition").failures[0]
