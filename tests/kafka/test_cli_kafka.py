"""Do the commands work on a real broker, from nothing to a proof of what was charged?"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from streamdp.testing.broker import Borrowed
from tests.support.calling import Ran, Streamdp
from tests.support.processes import Process, ended_at_once, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CONFIG = """
app = "{app}"
[transport]
kind = "kafka"
bootstrap = "{bootstrap}"
[topics.{app}-losses]
budget = "1"
partitions = 2
[streams.home]
input = "{app}-losses"
start = "earliest"
actions = ["a", "b", "c"]
[streams.home.learner]
epsilon = "1/2"
"""


@pytest.fixture
def config(tmp_path: Path, broker: Borrowed, fresh_app: Callable[[], str]) -> Path:
    """A stream of an application that the broker has not seen."""
    path = tmp_path / "streamdp.toml"
    path.write_text(CONFIG.format(app=fresh_app(), bootstrap=broker.bootstrap))
    return path


Call = Callable[..., Ran]


@pytest.fixture
def call(config: Path, streamdp: Streamdp) -> Call:
    """One command in this process, on one broker with one copy of everything."""

    def called(*arguments: str, stdin: str = "") -> Ran:
        return streamdp(
            *arguments, "--config", str(config), "--single-broker", stdin=stdin.encode()
        )

    return called


def refused(config: Path) -> str:
    """What a service says that cannot start: a process of its own, which takes its signals."""
    ended = ended_at_once("run", "--config", str(config), "--single-broker")
    assert ended.returncode == 3
    return ended.stderr


def test_are_missing_topics_told_at_once(config: Path, call: Call) -> None:
    """By the doctor within seconds, by `run` with what to type, and by no flood of warnings."""
    result = call("doctor")
    assert (result.code, result.err) == (1, "")
    assert "connection: connected" in result.out
    assert result.out.count("missing: `streamdp topics create` makes") == 5
    assert "missing: `streamdp topics create` makes the input" in refused(config)


def test_is_a_session_that_the_cluster_refuses_the_users_error(config: Path, call: Call) -> None:
    """It does not pass: `run` ends and says which bounds there are, rather than try for ever."""
    assert call("topics", "create").code == 0
    short = 'kind = "kafka"\nsession_timeout_ms = 5'
    config.write_text(config.read_text().replace('kind = "kafka"', short))
    message = refused(config)
    assert "the cluster refuses transport.session_timeout_ms" in message
    assert "group.min.session.timeout.ms" in message


def test_is_a_look_at_a_state_that_is_not_there_refused_at_once(config: Path, call: Call) -> None:
    """Whether the topics are missing or only the partition."""
    missing = call("state", "inspect")
    assert missing.code == 3
    assert "-losses: missing; expected `streamdp topics create`" in missing.err
    assert call("topics", "create").code == 0
    beyond = call("state", "inspect", "--partition", "5")
    assert beyond.code == 3
    assert "no such partition; expected below 2, got 5" in beyond.err


def test_is_a_topic_that_somebody_else_has_made_looked_at(
    config: Path, call: Call, broker: Borrowed
) -> None:
    """A ledger that forgets and a state too small for a commit: said where topics are made."""
    made = json.loads(call("topics", "create", "--json").out)
    ledger, state = (
        next(name for finding in made if (name := finding["subject"].split()[1]).endswith(role))
        for role in (".ledger", ".state")
    )
    asyncio.run(
        altered(
            broker.bootstrap,
            {
                ledger: {"cleanup.policy": "delete", "retention.ms": "1000"},
                state: {"cleanup.policy": "compact", "max.message.bytes": "200"},
            },
        )
    )
    for command in ("create", "check"):
        again = call("topics", command, "--json")
        assert again.code == 1
        wrong = {
            finding["subject"]: finding["detail"]
            for finding in json.loads(again.out)
            if finding["verdict"] == "problem"
        }
        assert wrong[f"topic {ledger}: retention.ms"].startswith("expected -1, got 1000")
        least = re.fullmatch(
            r"expected at least (\d+), got 200; .*", wrong[f"topic {state}: max.message.bytes"]
        )
        assert least is not None
        assert int(least[1]) > 10_000
    message = refused(config)
    assert f"topic {state}: max.message.bytes: expected at least" in message
    assert "loop_exception" not in message


async def altered(bootstrap: str, settings: dict[str, dict[str, str]]) -> None:
    """What somebody else has done to topics."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    for topic, configs in settings.items():
        await client.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic, configs=configs)]
        )
    await client.close()


def test_does_everything_work_from_nothing_to_a_proof(config: Path, call: Call) -> None:
    """Topics, events, actions, state and ledger, with the service running meanwhile."""
    made = call("topics", "create", "--json")
    assert {finding["verdict"] for finding in json.loads(made.out)} == {"changed"}
    assert call("doctor").code == 0
    lines = [json.dumps({"key": key, "losses": [0, 1, 1]}) for key in ("fr", "de") * 200]
    with Process.start("run", "--config", str(config), "--single-broker") as process:
        assert call("send", stdin="\n".join(lines)).out.startswith("400 records sent")
        until(lambda: learned(call) == 400)
        assert process.end() == 0
    entries = [json.loads(line) for line in call("watch", "--once", "--json").out.splitlines()]
    assert {line["key"] for line in entries} == {"fr", "de"}
    verified = json.loads(call("ledger", "verify", "--json").out)
    assert verified["violations"] == []
    assert [topic["highest"] for topic in verified["topics"]] == ["1/2"]
    assert call("doctor", "--sample", "50").code == 0
    expect_behind(config, call)


def test_does_a_rolling_restart_bring_a_configuration_in_and_take_it_back(
    config: Path, call: Call
) -> None:
    """The procedure of docs/operating.md#upgrades: nothing halts, and every charge is accounted."""
    assert call("topics", "create").code == 0
    before = config.read_text()
    changed = before.replace('"a", "b", "c"', '"a", "b", "c", "d"').replace("1/2", "1/3")
    first = "[streams.home]\n"
    sent = 0

    def send(losses: int) -> None:
        nonlocal sent
        lines = [
            json.dumps({"key": f"{n % 8}", "losses": [0, 1, 1, 1][:losses]}) for n in range(80)
        ]
        assert call("send", stdin="\n".join(lines)).code == 0
        sent += len(lines)

    def started() -> Process:
        return stack.enter_context(Process.start("run", "--config", str(config), "--single-broker"))

    with ExitStack() as stack:
        send(3)
        processes = [started(), started()]
        for process in processes:
            process.hear("partition_running")
        until(lambda: learned(call) == sent)
        for text, epoch, losses in ((changed, 2, 4), (before, 3, 3)):
            config.write_text(text)
            assert call("check", "--with-state").code == 4
            config.write_text(text.replace(first, f"{first}epoch = {epoch}\n"))
            assert call("check", "--with-state").code == 0
            for _ in range(2):
                assert processes.pop(0).end() == 0
                send(losses)
                processes.append(started())
                processes[-1].hear("partition_running")
            until(lambda: learned(call) == sent)
            parts = json.loads(call("state", "inspect", "--json").out)
            assert [part["checkpoint"]["epoch"] for part in parts] == [epoch] * 2
        # What a roll-back to epoch 2 would do: an epoch never goes back.
        config.write_text(changed.replace(first, f"{first}epoch = 2\n"))
        late = call("check", "--with-state")
        assert (late.code, "of an earlier epoch than the state" in late.err) == (4, True)
        for process in processes:
            assert process.end() == 0
            assert process.said("partition_halted") == []
    config.write_text(before.replace(first, f"{first}epoch = 3\n"))
    verified = json.loads(call("ledger", "verify", "--json").out)
    assert verified["violations"] == []
    assert verified["topics"][0]["highest"] == "1/2"


def expect_behind(config: Path, call: Call) -> None:
    """A stream with another name would begin behind what this one has charged (P11)."""
    shown = call("ledger", "show", "--json").out.splitlines()
    lines = [json.loads(line) for line in shown]
    ends = {
        line["partition"]: line["last_offset"] + 1 for line in lines if line["kind"] == "action"
    }
    text = config.read_text().replace('budget = "1"', 'budget = "1/2"')
    config.write_text(text.replace("streams.home", "streams.renamed"))
    assert call("topics", "create").code == 0
    details = {
        finding["subject"]: finding["detail"]
        for finding in json.loads(call("doctor", "--json").out)
    }
    for partition, end in ends.items():
        said = details[f"partition renamed/{partition}: state"]
        assert said.startswith(f"none yet: it would start at record {end}")
    verified = json.loads(call("ledger", "verify", "--json").out)
    assert [ledger.rpartition(".home.")[2] for ledger in verified["not_configured"]] == ["ledger"]
    assert verified["topics"][0]["highest"] == "1/2"


def learned(call: Call) -> int:
    """How many records are durably learned, over all partitions."""
    parts = json.loads(call("state", "inspect", "--json").out)
    points = [part["checkpoint"] for part in parts if part["checkpoint"] is not None]
    return sum(point["next_offset"] for point in points)
