"""Does `streamdp assemble` keep its promise as a process: kills, signals, refusals, what is shown?

Real processes on real SQLite files, from requests and outcomes to a policy.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamdp.ports import Headers
from streamdp.service.config import Configuration
from tests.support.asking import free_port
from tests.support.assembling_shop import Shop, configured, killed
from tests.support.calling import Streamdp
from tests.support.processes import until

pytestmark = pytest.mark.slow

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))
"""How much longer than usual the shop lives: `make soak` says so."""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A shop on two files."""
    transport = f'kind = "sqlite"\npath = "{tmp_path}/shop.db"\npartitions = 2'
    return Shop(configured(tmp_path, app="shop", transport=transport))


def test_from_clicks_to_a_policy_through_kills(shop: Shop, streamdp: Streamdp) -> None:
    """Events are the join of the logs though assemblers were killed; then a stream learns."""
    assert streamdp("topics", "create", "--config", str(shop.path)).code == 0
    asyncio.run(killed(shop, count=60 * TIMES, times=3 * TIMES))
    asyncio.run(shop.check())
    with shop.start("run") as process:
        watch = ("watch", "--config", str(shop.path), "--once", "--json")
        until(lambda: '"kind":"sums"' in streamdp(*watch).out)
        assert process.end() == 0
    verified = streamdp("ledger", "verify", "--config", str(shop.path), "--json")
    assert verified.code == 0, verified
    pair = next(row for row in verified.json["topics"] if row["topic"] == "shop.requests")
    assert (pair["highest"], pair["assembled_into"]) == ("1", ["shop.events"])
    shown = streamdp("ledger", "show", "--config", str(shop.path)).out
    assert re.search(r"block 1 +sums +ε 1 +slots \[\d+, \d+\)  records \d+ … \d+$", shown, re.M)
    claims = streamdp("ledger", "verify", "--persons", "--config", str(shop.path)).out
    assert "persons of assembly shop.join: 2 events count in each stretch of 5 slots" in claims
    assert "ε = 2 for a person in a key and stretch, 4 over any 5 consecutive slots" in claims
    looked = streamdp("doctor", "--config", str(shop.path))
    assert looked.code == 0, looked
    assert "partition join/0: state: at record" in looked.out
    place = ("state", "inspect", "--assembly", "join", "--config", str(shop.path))
    seen = streamdp(*place, "--json").json[1]
    point = seen["checkpoint"]
    assert (point["configuration"], point["not_yet_events"], point["epoch"]) == ("same", 0, 1)
    assert seen["requests"]["end_offset"] == point["next_request"] > 0
    assert (seen["keys_with_counts"], seen["stale_entries"]) == (2, 0)
    assert "outcomes" not in json.dumps(seen)  # how far these reach is for operators
    unsafe = streamdp(*place, "--not-private", "--partition", "1")
    assert "NOT PRIVATE" in unsafe.err
    assert "outcomes" in unsafe.out
    assert "expected join, got clicks" in streamdp(
        "state", "inspect", "--assembly", "clicks", "--config", str(shop.path)
    ).err  # fmt: skip
    assert "join/1       epoch 1: requests 0 …" in streamdp(
        "ledger", "show", "--config", str(shop.path)
    ).out  # fmt: skip


def test_does_a_renamed_assembly_begin_behind_the_old_one(shop: Shop, streamdp: Streamdp) -> None:
    """P11 on real files: it has no state, and would make each request an event again."""
    streamdp("topics", "create", "--config", str(shop.path))
    for turn in (1, 2):
        asyncio.run(shop.visit(count=10, rest=0))
        with shop.start("assemble") as process:
            until(partial(_has, shop, 10 * turn))
            assert process.end() == 0
        shop.path.write_text(shop.path.read_text().replace("assemblies.join", "assemblies.other"))
    columns = [asyncio.run(shop.columns(topic)) for topic in ("requests", "events")]
    for requests, events in zip(*columns, strict=True):
        assert [_id(headers) for _, _, headers, _ in events] == [
            _id(headers) for _, _, headers, _ in requests
        ]
    verified = streamdp("ledger", "verify", "--config", str(shop.path), "--json").json
    assert (verified["violations"], verified["not_configured"]) == ([], ["shop.join.ledger"])


def _has(shop: Shop, count: int) -> bool:
    return asyncio.run(shop.assembled()) >= count


def _id(headers: Headers) -> bytes | None:
    return dict(headers)["streamdp-request"]


def test_in_one_process_with_what_learns_from_it(shop: Shop, streamdp: Streamdp) -> None:
    """The embedded log is one process's, so `run` assembles too if it is told to."""
    port = free_port()
    with shop.path.open("a") as file:
        file.write(f'[operations]\nlisten = "127.0.0.1:{port}"\n')
    streamdp("topics", "create", "--config", str(shop.path))
    with shop.start("run", "--with-assemblies") as process:
        process.hear("operations_listening")
        asyncio.run(shop.visit(count=20, rest=0))
        until(lambda: _metric(port, "streamdp_events_assembled_total") == 20)
        until(lambda: _metric(port, "streamdp_slots_total") == 20)
        assert _metric(port, "streamdp_requests_open") == 0
        assert _get(port, "/readyz")["ready"]
        (join,) = _get(port, "/v1/status")["assemblies"]
        assert sum(part["events"] for part in join["partitions"]) == 20
        assert process.end() == 0
    asyncio.run(shop.check())


def test_is_a_second_assembler_refused_on_the_same_files(shop: Shop, streamdp: Streamdp) -> None:
    """As a second `run` is."""
    streamdp("topics", "create", "--config", str(shop.path))
    with shop.start("assemble") as first:
        first.hear("partition_running")
        with shop.start("assemble") as second:
            assert second.ended() == 3
        assert first.end() == 0


def test_is_a_configuration_without_assemblies_refused(shop: Shop, streamdp: Streamdp) -> None:
    text = shop.path.read_text()
    shop.path.write_text(text[: text.index("[assemblies.join]")])
    refused = streamdp("assemble", "--config", str(shop.path))
    assert refused.code == 2
    assert "expected at least one table [assemblies.NAME], got none" in refused.err


def test_does_a_halted_assembly_end_the_process_if_told_to(shop: Shop, streamdp: Streamdp) -> None:
    """Another window needs a new epoch: `check` says so before, and the exit code after."""
    streamdp("topics", "create", "--config", str(shop.path))
    with shop.start("assemble") as first:
        first.hear("partition_running")
        asyncio.run(_began(shop))
        assert first.end() == 0
    text = shop.path.read_text().replace('window = "1s"', 'window = "2s"')
    shop.path.write_text(text.replace("[service]", '[service]\non_halt = "exit"'))
    checked = streamdp("check", "--with-state", "--config", str(shop.path))
    assert checked.code == 4
    assert "rules, actions, formats, caps or topics needs a new epoch" in checked.err
    with shop.start("assemble") as second:
        assert second.ended() == 4
    shop.path.write_text(
        shop.path.read_text().replace('combine = "last"', 'combine = "last"\nepoch = 2')
    )
    assert Configuration.load(shop.path, {}).assemblies()[0].epoch == 2
    assert streamdp("check", "--with-state", "--config", str(shop.path)).code == 0


async def _began(shop: Shop) -> None:
    """Wait until every partition's checkpoint is durable."""
    (spec,) = shop.configuration.assemblies()
    tools = shop.technology.administrator()
    for _ in range(600):
        if all([(await tools.peek(spec.topics, number)).state for number in range(2)]):
            break
        await asyncio.sleep(0.05)
    await tools.close()


def _get(port: int, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
        parsed: dict[str, Any] = json.loads(answer.read())
    return parsed


def _metric(port: int, name: str) -> float:
    """The sum over partitions."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))
