"""Do the commands work on a real broker, from nothing to a proof of what was charged?"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdp.testing.broker import Borrowed
from tests.processes import PROGRAM, Process, until

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


def call(config: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """One command on one broker with one copy of everything."""
    return subprocess.run(
        [*PROGRAM, *arguments, "--config", str(config), "--single-broker"],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_are_missing_topics_told_at_once(config: Path) -> None:
    """By the doctor within seconds, by `run` with what to type, and by no flood of warnings."""
    told = call(config, "doctor")
    assert (told.returncode, told.stderr) == (1, "")
    assert "connection: connected" in told.stdout
    assert told.stdout.count("missing: `streamdp topics create` makes") == 4
    run = call(config, "run")
    assert run.returncode == 3
    assert "missing: `streamdp topics create` makes the input" in run.stderr


def test_is_a_session_that_the_cluster_refuses_the_users_error(config: Path) -> None:
    """It does not pass: `run` ends and says which bounds there are, rather than try for ever."""
    assert call(config, "topics", "create").returncode == 0
    short = 'kind = "kafka"\nsession_timeout_ms = 5'
    config.write_text(config.read_text().replace('kind = "kafka"', short))
    run = call(config, "run")
    assert run.returncode == 3
    assert "the cluster refuses transport.session_timeout_ms" in run.stderr
    assert "group.min.session.timeout.ms" in run.stderr


def test_does_everything_work_from_nothing_to_a_proof(config: Path) -> None:
    """Topics, events, actions, state and ledger, with the service running meanwhile."""
    made = call(config, "topics", "create", "--json")
    assert {each["verdict"] for each in json.loads(made.stdout)} == {"changed"}
    assert call(config, "doctor").returncode == 0
    lines = [json.dumps({"key": key, "losses": [0, 1, 1]}) for key in ("fr", "de") * 200]
    with Process.start("run", "--config", str(config), "--single-broker") as process:
        assert call(config, "send", stdin="\n".join(lines)).stdout.startswith("400 records sent")
        until(lambda: learned(config) == 400)
        assert process.end() == 0
    told = [
        json.loads(line) for line in call(config, "watch", "--once", "--json").stdout.splitlines()
    ]
    assert {line["key"] for line in told} == {"fr", "de"}
    verified = json.loads(call(config, "ledger", "verify", "--json").stdout)
    assert verified["violations"] == []
    assert [topic["highest"] for topic in verified["topics"]] == ["1/2"]
    assert call(config, "doctor", "--sample", "50").returncode == 0


def learned(config: Path) -> int:
    """How many records are durably learned, over all partitions."""
    found = json.loads(call(config, "state", "inspect", "--json").stdout)
    points = [part["checkpoint"] for part in found if part["checkpoint"] is not None]
    return sum(point["next_offset"] for point in points)
