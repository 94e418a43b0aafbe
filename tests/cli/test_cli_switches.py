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


def test_mode_switches_readers_and_says_since_when(shop: Path, streamdp: Streamdp) -> None:
    """One line of the stream, beside the keys' own; nothing that was charged changes."""
    config = ("-c", str(shop))
    ledger = streamdp("ledger", "verify", *config, "--json").json
    asked = streamdp("mode", "home", *config)
    assert (asked.code, asked.out) == (0, "home: all readers use each key's own action\n")
    off = streamdp("mode", "home", "fallback", *config, "--json").json
    assert (off["stream"], off["mode"]) == ("home", "fallback")
    assert streamdp("mode", "home", *config, "--json").json == off
    shown = streamdp("watch", *config, "--once").out.splitlines()
    assert shown[0] == f"since {off['since']} all readers use the fallback action"
    assert len(shown) == 5
    back = streamdp("mode", "home", "live", *config).out
    assert re.fullmatch(r"home: since \S+Z all readers use each key's own action\n", back)
    assert len(streamdp("watch", *config, "--once").out.splitlines()) == 4
    assert streamdp("ledger", "verify", *config, "--json").json == ledger
    wrong = streamdp("mode", "nowhere", "fallback", *config)
    assert (wrong.code, "unknown; expected home" in wrong.err) == (2, True)
