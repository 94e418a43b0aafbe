"""Does the harness start a real broker, obey, and leave nothing behind?"""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.testing import kafka_jars
from streamdp.testing.broker import (
    OUTSIDE_BROKER,
    Borrowed,
    Broker,
    borrow_broker,
)

pytestmark = pytest.mark.kafka


def _listens(bootstrap: str) -> bool:
    host, port = bootstrap.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


KILLED_WITH_ITS_OWNER = """
import os, signal
from streamdp.testing.broker import own_broker
with own_broker() as broker:
    identity = (broker.folder / "data" / "meta.properties").read_text()
    broker.kill()
    print(broker.bootstrap, flush=True)
    input()
    broker.start()
    assert (broker.folder / "data" / "meta.properties").read_text() == identity
    print(broker.pid, flush=True)
    input()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_broker_comes_back_and_dies_with_its_owner(tmp_path: Path) -> None:
    """On the same port and storage; however the owner ends: by SIGKILL, which no handler sees."""
    there = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_WITH_ITS_OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **there},
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        bootstrap = owner.stdout.readline().strip()
        assert not _listens(bootstrap)
        owner.stdin.write("start\n")
        owner.stdin.flush()
        pid = int(owner.stdout.readline())
        assert _listens(bootstrap)
        descriptor = os.pidfd_open(pid)
        owner.stdin.write("end\n")
        owner.stdin.flush()
        assert owner.wait(timeout=120) == -signal.SIGKILL
    assert select.select([descriptor], [], [], 30)[0], "the broker outlives its owner"
    os.close(descriptor)
    assert not _listens(bootstrap)


def test_an_outside_broker_is_used_and_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OUTSIDE_BROKER, "kafka.example:9092")
    with borrow_broker() as broker:
        assert broker == Borrowed("kafka.example:9092")


@pytest.mark.parametrize("change", ["altered", "missing", "further"])
def test_jars_that_are_not_the_pinned_ones_are_refused(tmp_path: Path, change: str) -> None:
    pinned = {"a.jar": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"}
    jar = tmp_path / "a.jar"
    jar.write_text("a")
    kafka_jars.verify(tmp_path, pinned)
    if change == "altered":
        jar.write_text("b")
    elif change == "missing":
        jar.unlink()
    else:
        (tmp_path / "b.jar").write_text("b")
    with pytest.raises(InvalidConfig, match="not the pinned jar"):
        kafka_jars.verify(tmp_path, pinned)


def test_is_the_port_that_is_wished_for_taken_only_if_it_is_free(tmp_path: Path) -> None:
    """Examples name Kafka's own port; who has a broker there already gets another."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        taken: int = listening.getsockname()[1]
        listening.listen()
        assert Broker(tmp_path, port=taken).bootstrap != f"127.0.0.1:{taken}"
    assert Broker(tmp_path, port=taken).bootstrap == f"127.0.0.1:{taken}"


def test_is_a_broker_lent_by_one_command(tmp_path: Path) -> None:
    """It says where it listens, and a signal ends it with nothing left behind.

    Also where whoever starts it does not listen to the keyboard, as in the background of a shell.
    """
    command = [sys.executable, "-m", "streamdp.testing"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        bootstrap = process.stdout.readline().strip()
        try:
            assert _listens(bootstrap)
            (folder,) = tmp_path.glob("streamdp-broker-*")
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 0
    assert not _listens(bootstrap)
    assert not folder.exists()
