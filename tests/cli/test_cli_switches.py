"""Do `check --with-state`, while no broker answers, and `mode` do what they say?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streamdp.core.errors import TransportLost
from streamdp.ports import StreamTopics
from streamdp_adapters.sqlite import SqliteAdministrator
from tests.support.calling import Streamdp
from tests.support.shop_files import FEEDBACK_SHOP


def test_check_with_the_state_tells_cannot_know_yet_from_wrong(
    shop: Path, streamdp: Streamdp
) -> None:
    """A broker that is away makes no configuration wrong; wrong credentials would."""
    text = shop.read_text()
    transport = 'kind = "kafka"\nbootstrap = "127.0.0.1:1"\n'
    shop.write_text(re.sub(r"kind(.|\n)*?(?=\[topics)", transport, text))
    away = streamdp("check", "--with-state", "-c", str(shop))
    assert (away.code, away.out) == (7, "")
    assert "cannot know yet: transport.bootstrap 127.0.0.1:1: unreachable" in away.err


def test_check_with_the_state_waits_until_the_transport_answers(
    shop: Path, streamdp: Streamdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, check = list[int](), SqliteAdministrator.check

    async def answers_late(self: SqliteAdministrator, streams: Sequence[StreamTopics]) -> Any:
        asked.append(len(streams))
        if len(asked) < 3:
            raise TransportLost("brokers: unreachable")
        return await check(self, streams)

    monkeypatch.setattr(SqliteAdministrator, "check", answers_late)
    waited = streamdp("check", "--with-state", "--wait", "-c", str(shop))
    assert (waited.code, len(asked)) == (0, 3)
    assert waited.err == "streamdp: cannot know yet: brokers: unreachable\n" * 2
    shop.write_text(shop.read_text().replace('epsilon = "1/2"', 'epsilon = "1/3"'))
    assert streamdp("check", "--with-state", "--wait", "-c", str(shop)).code == 4


def test_mode_switches_readers_and_names_the_list(shop: Path, streamdp: Streamdp) -> None:
    """Nothing that was charged changes."""
    config = ("-c", str(shop))
    ledger = streamdp("ledger", "verify", *config, "--json").json
    asked = streamdp("mode", "home", *config)
    assert (asked.code, asked.out) == (0, "home: all readers use each key's own action\n")
    off = streamdp("mode", "home", "fallback", *config, "--json").json
    assert (off["stream"], off["mode"]) == ("home", "fallback")
    assert streamdp("mode", "home", *config, "--json").json == off
    shown = streamdp("watch", *config, "--once").out.splitlines()
    assert shown[0] == f"list 1 of {off['at']}: all readers use the fallback action"
    assert len(shown) == 5
    back = streamdp("mode", "home", "live", *config).out
    assert re.fullmatch(r"home: list 2 of \S+Z: all readers use each key's own action\n", back)
    assert len(streamdp("watch", *config, "--once").out.splitlines()) == 4
    assert streamdp("ledger", "verify", *config, "--json").json == ledger
    wrong = streamdp("mode", "nowhere", "fallback", *config)
    assert (wrong.code, "unknown; expected home" in wrong.err) == (2, True)


def test_actions_pauses_and_resumes_and_keeps_the_mode(shop: Path, streamdp: Streamdp) -> None:
    config = ("-c", str(shop))
    ledger = streamdp("ledger", "verify", *config, "--json").json
    before = streamdp("actions", "home", *config, "--json").json
    names = [of["action"] for of in before["actions"]]
    assert (before["list"], before["at"], before["others_paused"]) == (0, None, [])
    assert streamdp("mode", "home", "fallback", *config).code == 0
    paused = streamdp("actions", "home", "pause", names[0], *config, "--json").json
    assert paused["list"] == 2
    assert [of["paused"] for of in paused["actions"]] == [True] + [False] * (len(names) - 1)
    assert streamdp("mode", "home", *config, "--json").json["mode"] == "fallback"
    assert streamdp("mode", "home", "live", *config).code == 0
    assert f"paused: {names[0]}" in streamdp("watch", *config, "--once").out.splitlines()[0]
    more = streamdp("actions", "home", "pause", names[1], names[0], *config).out.splitlines()
    assert [line.split()[0] for line in more[1:] if "paused" in line] == names[:2]
    resumed = streamdp("actions", "home", "resume", *names[:2], *config, "--json").json
    assert (resumed["list"], any(of["paused"] for of in resumed["actions"])) == (5, False)
    assert streamdp("actions", "home", *config, "--json").json == resumed
    assert streamdp("ledger", "verify", *config, "--json").json == ledger


def test_actions_reads_a_list_that_stands_in_a_file(shop: Path, streamdp: Streamdp) -> None:
    before = streamdp("actions", "home", "-c", str(shop), "--json").json
    names = [of["action"] for of in before["actions"]]
    (shop.parent / "names").write_text("\n".join(names))
    text, listed = shop.read_text(), f'actions_file = "{shop.parent / "names"}"'
    shop.write_text(re.sub(r"^actions = \[[^]]*\]", listed, text, count=1, flags=re.MULTILINE))
    assert listed in shop.read_text()
    paused = streamdp("actions", "home", "pause", names[1], "-c", str(shop), "--json")
    assert paused.code == 0, paused.err
    assert [of["action"] for of in paused.json["actions"] if of["paused"]] == [names[1]]


def test_what_actions_cannot_do_is_refused(shop: Path, streamdp: Streamdp) -> None:
    config = ("-c", str(shop))
    names = [of["action"] for of in streamdp("actions", "home", *config, "--json").json["actions"]]
    for arguments, code, phrase in (
        (("pause", "nothing"), 3, "unknown names"),
        (("resume", "nothing"), 3, "unknown names"),
        (("pause", *names), 3, "all would be paused"),
        (("pause",), 2, "a step without names"),
    ):
        refused = streamdp("actions", "home", *arguments, *config)
        assert (refused.code, phrase in refused.err) == (code, True), refused.err
    assert streamdp("actions", "home", *config, "--json").json["list"] == 0


def test_a_name_that_an_epoch_removed_can_still_be_resumed(shop: Path, streamdp: Streamdp) -> None:
    config = ("-c", str(shop))
    first = streamdp("actions", "home", *config, "--json").json["actions"][0]["action"]
    assert streamdp("actions", "home", "pause", first, *config).code == 0
    text = shop.read_text()
    shop.write_text(text.replace(f'"{first}"', '"renamed"'))
    after = streamdp("actions", "home", *config, "--json").json
    assert after["others_paused"] == [first]
    assert "paused, and not configured" in streamdp("actions", "home", *config).out
    assert streamdp("actions", "home", "resume", first, *config).code == 0
    assert streamdp("actions", "home", *config, "--json").json["others_paused"] == []


def test_an_added_action_can_be_sent_and_a_removed_one_makes_no_room(
    tmp_path: Path, streamdp: Streamdp
) -> None:
    """Before it is added, its name is a mistake in a file."""
    shop = tmp_path / "shop.toml"
    path, roomy = tmp_path / "shop.db", 'observes = "feedback"\nroom = 1'
    text = FEEDBACK_SHOP.replace('observes = "feedback"', roomy)
    shop.write_text(text.replace('"shop.db"', f'"{path}"'))
    config = ("-c", str(shop))
    assert streamdp("topics", "create", *config).code == 0
    (tmp_path / "events.jsonl").write_text('{"key": "fr", "action": "d", "reward": 1}\n')
    send = ("send", str(tmp_path / "events.jsonl"), *config)
    refused = streamdp(*send)
    assert (refused.code, "unknown action" in refused.err) == (2, True)
    added = streamdp("actions", "clicks", "add", "d", *config, "--json").json
    assert [of["action"] for of in added["actions"]] == ["a", "b", "c", "d"]
    assert (added["room"], added["removed"]) == (0, [])
    assert streamdp(*send).code == 0
    left = streamdp("actions", "clicks", "remove", "a", *config, "--json").json
    assert (left["room"], left["removed"]) == (0, ["a"])
    assert [of["action"] for of in left["actions"]] == ["b", "c", "d"]
    full = streamdp("actions", "clicks", "add", "e", *config)
    assert (full.code, "a new epoch" in full.err) == (3, True)
    assert "removed: a" in streamdp("watch", *config, "--once").out
    assert "a  removed" in streamdp("actions", "clicks", *config).out
