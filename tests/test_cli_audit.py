"""What does `streamdp audit` print, and what does it return?"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from fractions import Fraction

import pytest
from typer.testing import CliRunner

from streamdp import cli
from streamdp.core.learners import RECIPES, incumbent_leader, leader
from streamdp.lab import audit
from streamdp.lab.audit import crowd
from streamdp.lab.commands import audit as command

pytestmark = pytest.mark.slow

QUICK = ["--epsilon", "1", "--actions", "2", "--samples", "1000"]
ONE = ["audit", "--recipe", "incumbent_leader", *QUICK]


SHARED = audit.Memo()
"""What does not depend on a rate; no test of this file breaks the engine."""


@pytest.fixture(autouse=True)
def the_engine_is_audited_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first command that is run."""
    monkeypatch.setattr(audit, "Memo", lambda: SHARED)


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.application(), list(args))
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
    assert "log-ratio 2 > 1" in json.loads(out)[0]["failures"][0]


def test_a_recipe_that_was_added_is_audited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def home_made(*, actions: list[str], epsilon: str) -> leader.Leader:
        return RECIPES["noisy_leader"](actions=actions, epsilon=epsilon, noise="gumbel")

    monkeypatch.setattr(leader, "RECIPES", dict(RECIPES))
    monkeypatch.setitem(RECIPES, "home_made", leader.recipe(home_made))
    monkeypatch.setitem(leader.RECIPES, "home_made", RECIPES["home_made"])
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


def test_is_a_crowd_audited_where_it_is_asked_for(
    main: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row for each kind; who selects otherwise than a crowd supposes has none.

    The audit itself is asked about in test_audit_crowd: one transcript of its eight does here.
    """
    monkeypatch.setattr(crowd, "misdeeds_of_crowd", lambda subject, **how: [])
    monkeypatch.setattr("streamdp.lab.audit.crowd.KINDS", ("groups", "donate"))
    scripts = tuple(crowd._scripts())[1:2]
    monkeypatch.setattr(crowd, "_scripts", lambda: scripts)
    code, out = run(*ONE, "--crowd", "--json")
    alone, *of_crowds = json.loads(out)
    assert (code, alone["verdict"]) == (0, "holds")
    assert [audit["learner"].rpartition("crowd=")[2] for audit in of_crowds] == [
        "groups)",
        "donate)",
    ]
    for entry in of_crowds:
        assert (entry["verdict"], entry["epsilon_charged"], entry["actions"]) == ("holds", "1", 2)
        assert 0.8 < entry["worst_log_ratio"] <= 1 + 1e-9
    assert main("audit", "--recipe", "prefix_softmax", *QUICK, "--crowd") == 2
    message = capsys.readouterr().err
    assert "--crowd: has no crowd; expected a recipe that selects by permute_and_flip" in message


def test_is_each_learner_audited_with_the_crowds_that_it_can_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that are shipped, by one life each: none is asked for a pool that it cannot have.

    One life runs through every kind; no verdict is asked for, which takes many.
    """
    monkeypatch.setattr(crowd, "misdeeds_of_crowd", lambda subject, **how: [])
    scripts = tuple(crowd._scripts())[:1]
    monkeypatch.setattr(crowd, "_scripts", lambda: scripts)
    monkeypatch.setattr(crowd, "_CONTENTS", crowd._CONTENTS[:1])
    monkeypatch.setattr(crowd, "_varied", lambda records, kind: [(len(records) - 1, False)])
    audited: dict[str, list[str]] = {}
    for result in command._of_crowds(command._chosen(None), ["1"]):
        learner, _, kind = result.learner.rstrip(")").rpartition(", crowd=")
        audited.setdefault(learner, []).append(kind)
    thinned = [learner for learner in audited if "resample=bernoulli" in learner]
    assert thinned
    without = ["partition", "groups", "control"]
    assert all(audited[learner] == without for learner in thinned)
    kept = [name for name in audited if name.startswith("remembering_leader")]
    assert kept
    assert all(audited[name] == list(crowd.KINDS) for name in kept)
    assert not any(learner.startswith("prefix_softmax") for learner in audited)
