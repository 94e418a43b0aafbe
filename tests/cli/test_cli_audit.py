"""What does `streamdp audit` print, and what does it return?"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from fractions import Fraction

import pytest

from streamdp import cli
from streamdp.core.learners import RECIPES, incumbent_leader, leader
from streamdp.lab import audit
from streamdp.lab.audit import verdict
from streamdp.lab.commands import audit as command
from tests.support.command_line import run_command
from tests.support.mutants import draws

pytestmark = pytest.mark.slow

QUICK = ["--epsilon", "1", "--actions", "2", "--samples", "1000"]
ONE = ["audit", "--recipe", "incumbent_leader", *QUICK]


SHARED = audit.Memo()
"""What does not depend on a rate; no test of this file breaks the engine."""


@pytest.fixture(autouse=True)
def the_engine_is_audited_once(monkeypatch: pytest.MonkeyPatch, short_blocks: None) -> None:
    """By the first command that is run."""
    monkeypatch.setattr(audit, "Memo", lambda: SHARED)


def run(*args: str) -> tuple[int, str]:
    result = run_command(list(args))
    return result.exit_code, result.output


def test_a_table_says_what_was_found() -> None:
    code, out = run(*ONE)
    assert code == 0
    for word in ("incumbent_leader", "bonus=1", "1.000000000", "1000", "holds"):
        assert word in out


def test_json_says_the_same() -> None:
    code, out = run(*ONE, "--json")
    (audit,) = json.loads(out)
    assert code == 0
    assert audit["verdict"] == "holds"
    assert audit["epsilon_charged"] == "1"
    assert audit["failures"] == []
    assert audit["worst_log_ratio"] == pytest.approx(1)


def test_a_failed_audit_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """With noise of half the scale, as printed in the paper."""

    def as_printed(epsilon: Fraction) -> Fraction:
        return epsilon

    monkeypatch.setattr(incumbent_leader, "permute_and_flip_rate", as_printed)
    code, out = run(*ONE)
    assert code == 1
    assert "FAILS" in out
    code, out = run(*ONE, "--json")
    assert code == 1
    assert any("log-ratio 2 > 1" in failure for failure in json.loads(out)[0]["failures"])


def test_a_recipe_that_was_added_is_audited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def home_made(*, actions: list[str], epsilon: str) -> leader.Leader:
        return RECIPES["noisy_leader"](actions=actions, epsilon=epsilon, noise="gumbel")

    monkeypatch.setattr(RECIPES, "made", dict(RECIPES.made))
    leader.recipe(home_made)
    code, out = run("audit", "--recipe", "home_made", *QUICK)
    assert (code, "home_made" in out) == (0, True)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def called(*args: str) -> int:
        monkeypatch.setattr(sys, "argv", ["streamdp", *args])
        with pytest.raises(SystemExit) as end:
            cli.main()
        code = end.value.code
        return code if isinstance(code, int) else 0

    return called


def test_what_cannot_be_run_is_one_line_and_exit_code_2(
    main: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("audit", "--recipe", "nope") == 2
    message = capsys.readouterr().err
    assert message.startswith("streamdp: --recipe: unknown; expected incumbent_leader")
    assert message.count("\n") == 1
    assert main("audit", "--epsilon", "1e5") == 2
    assert main("--help") == 0


def test_is_a_papers_bandit_learner_audited_where_it_is_named() -> None:
    """Its releases cost ε."""
    code, out = run("audit", "--recipe", "lazy_ucb", *QUICK)
    assert code == 0
    for word in ("lazy_ucb", "holds"):
        assert word in out


def test_a_broken_draw_from_a_policy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """`choose` is part of what `streamdp audit` looks at."""
    anew = command._flaws_of_choices.__wrapped__  # once for all commands, where nothing is broken
    monkeypatch.setattr(command, "_flaws_of_choices", anew)
    draws.says_the_probability_as_if_play_were_uniform(monkeypatch)
    code, out = run("audit", "--recipe", "policy_elimination", *QUICK, "--json")
    assert code == 1
    assert "a probability is said" in json.loads(out)[0]["failures"][0]


def test_a_recipe_with_contexts_is_audited_whole_and_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In headers and in the value, slots that come alone; every short stream, and what an engine
    does with contexts beside that, is in `test_audit_kinds`."""
    monkeypatch.setattr(verdict, "LAYERS", {"lone slots": audit.LAYERS["lone slots"]})
    code, out = run("audit", "--recipe", "policy_contexts", *QUICK, "--json")
    found = json.loads(out)
    assert code == 0
    assert [audit["verdict"] for audit in found] == ["holds"] * 4
    assert [audit["actions"] for audit in found] == [4, 8, 4, 8]


def test_policies_are_audited_by_header_and_by_value() -> None:
    code, out = run("audit", "--recipe", "policy_elimination", *QUICK, "--json")
    assert code == 0, out
    results = json.loads(out)
    assert [one["verdict"] for one in results] == ["holds", "holds"]
    assert ["played=value" in one["learner"] for one in results] == [False, True]
    assert "policy_elimination" in run("audit", "--recipe", "policy_elimination", *QUICK)[1]
