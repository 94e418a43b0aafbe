"""Is an option that a command has no use for refused, rather than believed?"""

from __future__ import annotations

from pathlib import Path

import pytest

from streamdp.lab.commands.simulate import named
from streamdp.lab.worlds.families import FEEDBACK as WORLDS
from tests.support.calling import Streamdp
from tests.support.calling import streamdp as streamdp

OTHERS = {
    ("replay", "losses", "log.ndjson"): "--columns --content --context --header --logged --played"
    " --pscore --most-key-bytes",
    ("replay", "shown", "log.ndjson"): "--observes",
}
CASES = [(*words, option) for words, options in OTHERS.items() for option in options.split()]


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_an_option_of_the_other_replay_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamdp: Streamdp, words: tuple[str, ...]
) -> None:
    """It is named; nothing is read or written."""
    monkeypatch.chdir(tmp_path)
    Path("log.ndjson").write_text('{"losses":[0,1]}\n')
    ran = streamdp(*words, "1")
    assert ran.code == 2
    assert f"No such option: {words[-1]}" in ran.err
    assert len(list(tmp_path.iterdir())) == 1


def test_is_a_world_s_own_name_that_world_alone() -> None:
    """The names that a refusal lists: one of them may be the beginning of another."""
    for world in WORLDS:
        assert named(WORLDS, world.name) == [world]
    assert len(named(WORLDS, "equal, K = 2")) < len(named(WORLDS, "equal, K ="))
    assert named(WORLDS, None) == list(WORLDS)
