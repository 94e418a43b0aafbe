"""Does ``streamdp worth`` say what was earned beside other shares, as a key's page does?"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.serve.test_experiment_page import ACTIONS, BLOCKS, LINES, releases
from tests.support.calling import Streamdp
from tests.support.publishing import Reader, Topic, charge

SHOP = f"""
app = "shop"
[transport]
kind = "memory"
[topics.home-losses]
budget = "1"
[streams.home]
input = "home-losses"
start = "earliest"
epoch = 2
observes = "feedback"
actions = {json.dumps(ACTIONS)}
[streams.home.learner]
recipe = "policy_blocks"
epsilon = "1/2"
[streams.home.feedback]
content = "reward"
"""


def test_the_command_says_what_was_earned_beside_other_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamdp: Streamdp
) -> None:
    """All alike and each action, in the shows that tell it; and beside them no other such rows."""
    ledger = Topic([charge(of, ordinal=at, lines=LINES) for at, of in enumerate(releases(), 1)])
    technology = SimpleNamespace(publications=lambda: Reader(Topic([]), ledger))
    monkeypatch.setattr("streamdp.lab.commands.worth.opened", lambda *_: technology)
    path = tmp_path / "shop.toml"
    path.write_text(SHOP)
    ended = streamdp("worth", "--config", str(path), "--key", "fr", "--json")
    assert ended.code == 0, ended
    found = ended.json["lift"]
    assert (found["blocks"], found["shows"]) == (BLOCKS, 2**BLOCKS - 1)
    assert list(found["always"]) == list(ACTIONS)
    alike = found["alike"]
    assert alike["low"] < 0.0275 < alike["high"]
    said = streamdp("worth", "--config", str(path), "--key", "fr").out.splitlines()
    assert said[1].split("  ")[0] == "mean reward"
    assert said[2].startswith(f"{alike['mean']:.4f} ({alike['low']:.4f} … {alike['high']:.4f})")
    assert said[2].endswith(f"{alike['shows']:,}       all actions alike")
    assert [line.split("always ")[-1].strip("'\"") for line in said[3:7]] == list(ACTIONS)
    assert not [line for line in said if "for everybody" in line and "best" not in line]
