"""Does every name in a ledger still stand for the arithmetic that it stood for?"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from streamdp.core.evidence import vote_filter
from streamdp.core.evidence.policy_rules import Intervals
from tests import golden_arithmetic
from tests.golden_arithmetic import arithmetics, known, memories, recipes

pytestmark = pytest.mark.slow

RULE = (
    "a name stands for one arithmetic, because ledgers of other versions are computed again by it:"
    " give what you changed a new name, keep the old one, run `python -m tests.golden`"
)


def changed(now: Iterable[tuple[str, str]]) -> list[str]:
    """The names whose results are not those on record."""
    before = known()
    return [name for name, digest in now if before.get(name) != digest]


def test_is_every_named_arithmetic_what_it_was() -> None:
    now = dict(arithmetics())
    assert changed(now.items()) == [], RULE
    assert known().keys() == now.keys(), RULE


def test_is_a_changed_filter_of_votes_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one part in a million of a constant that its name does not tell."""
    monkeypatch.setattr(vote_filter, "_AGREEING", vote_filter._AGREEING + 16)
    assert changed(memories()) == [name for name, _ in memories()]
    assert changed(recipes(["policy_weights"])) == []


def test_is_a_changed_policy_rule_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here one that takes the actions in another order."""
    policy = Intervals.policy
    monkeypatch.setattr(
        Intervals, "policy", lambda self, *of: np.ascontiguousarray(policy(self, *of)[:, ::-1])
    )
    names = changed([*recipes(["policy_weights", "policy_elimination"]), *memories()])
    assert len(names) == 6
    assert all('"recipe":"policy_elimination"' in name for name in names)


def test_does_writing_the_file_again_never_change_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Names that are new are added; those that are known stay, whatever is computed now."""
    path = tmp_path / "arithmetic.json"
    path.write_text(json.dumps({"vote_filter of 2 actions since 3 at 1/100": "before"}))
    monkeypatch.setattr(golden_arithmetic, "GOLDEN", path)
    monkeypatch.setattr(golden_arithmetic, "private", lambda: ["policy_weights"])
    golden_arithmetic.main()
    written = json.loads(path.read_text())
    assert written["vote_filter of 2 actions since 3 at 1/100"] == "before"
    assert set(written) == {name for name, _ in arithmetics()}
