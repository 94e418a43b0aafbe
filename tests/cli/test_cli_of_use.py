"""Is an option that would change nothing refused, rather than believed?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamdp.lab.commands.simulate import named
from streamdp.lab.worlds.families import FEEDBACK as WORLDS
from tests.support.calling import Streamdp
from tests.support.calling import streamdp as streamdp

FEEDBACK = ("--observes", "feedback")
USUAL = {
    "--delay": "0",
    "--executor": "pool",
    "--not-private": None,
    "--report": "page.html",
    "--world": "equal",
    "--worlds": "drifting",
    "--content": "reward",
    "--header": "action",
    "--logged": "auto",
    "--markdown": None,
    "--played": "header",
    "--pscore": "p",
    "--format": "json",
    "--set": "a=b",
    "--on-bad": "refuse",
}
"""Values that would be good where the option is of use; also what is usual may not be believed."""

SIMULATE = {
    ("--json",): "--markdown",
    (): "--delay",
    FEEDBACK: "--not-private",
}
REPLAY = {
    ("log.ndjson",): "--content --format --header --logged --played --pscore --set",
    ("sqlite:home.db#x",): "--content --executor --header --logged --on-bad --played --pscore",
    ("shown.ndjson", *FEEDBACK): "--content --format --header --played --set",
    ("sqlite:home.db#x", *FEEDBACK, "--content", "losses"): "--header --played --pscore",
}
CONVERT = {
    ("log.ndjson", "to.npy"): "--format --set",
    ("sqlite:home.db#x", "to.npy"): "--on-bad",
}
CASES = [
    (command, *place, option)
    for command, places in (("simulate", SIMULATE), ("replay", REPLAY), ("convert", CONVERT))
    for place, options in places.items()
    for option in options.split()
]


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_is_an_option_of_no_use_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamdp: Streamdp, words: tuple[str, ...]
) -> None:
    """It is named, and what it belongs to; nothing is simulated, read or written."""
    monkeypatch.chdir(tmp_path)
    shown = {"action": "a", "reward": 1, "pscore": 0.5}
    Path("shown.ndjson").write_text(json.dumps(shown) + "\n")
    Path("log.ndjson").write_text('{"losses":[0,1]}\n')
    option, value = words[-1], USUAL[words[-1]]
    ran = streamdp(*words, *([] if value is None else [value]))
    assert ran.code == 2
    assert ran.err.startswith(f"streamdp: {option}: of no use; expected ")
    assert ran.err.count("\n") == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_is_a_world_s_own_name_that_world_alone() -> None:
    """The names that a refusal lists: one of them may be the beginning of another."""
    for world in WORLDS:
        assert named(WORLDS, world.name) == [world]
    assert len(named(WORLDS, "equal, K = 2")) < len(named(WORLDS, "equal, K ="))
    assert named(WORLDS, None) == list(WORLDS)
