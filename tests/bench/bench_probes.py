"""How soon probes are answered while a process learns, and while it takes back a partition.

    python tests/bench/bench_probes.py [--keys N] [--json FILE]

One `streamdp run` on the embedded log. It learns a million keys, is killed, and starts again: from
its start to the end of the rebuild, and while it learns again as fast as it can, /healthz is asked
on a new connection each time. Target: every answer within 100 ms once the process listens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from streamdp.testing.free_ports import free_ports

ACTIONS = 10
PAUSE_SECONDS = 0.02
MOST_MS = 100
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
CONFIGURATION = """
app = "bench"
transport = {{ kind = "sqlite", path = "{folder}/log.db" }}
topics = {{ events = {{ budget = "1", partitions = 1 }} }}
operations = {{ listen = "127.0.0.1:{port}" }}
[streams.home]
input = "events"
start = "earliest"
actions = [{actions}]
format = "float32"
learner = {{ epsilon = "1" }}
limits = {{ most_keys = 100000000 }}
"""


def produce(path: Path, *, keys: int) -> None:
    """One event of each key."""
    from streamdp_adapters.sqlite import Sqlite

    async def send() -> None:
        producer = Sqlite.from_settings({"path": str(path)}, app="bench").producer()
        row = np.random.default_rng(1).random(ACTIONS, dtype=np.float32).tobytes()
        for first in range(0, keys, 20_000):
            numbers = range(first, min(keys, first + 20_000))
            await producer.send("events", [(b"key-%d" % number, row) for number in numbers])
        await producer.close()

    asyncio.run(send())


@contextmanager
def service(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`streamdp run`."""
    command = [sys.executable, "-m", "streamdp", "run", "--config", str(folder / "streamdp.toml")]
    with (folder / "log").open("ab") as log, subprocess.Popen(command, stderr=log) as running:
        try:
            yield running
        finally:
            running.kill()


def asked(port: int) -> float | None:
    """Seconds until the process said that it lives; None if nobody listens."""
    begun = time.perf_counter()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(REQUEST)
            answer = b""
            while part := connection.recv(4096):
                answer += part
    except ConnectionRefusedError:
        return None
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer.decode())
    return time.perf_counter() - begun


def asked_while(port: int, holds: Callable[[], bool]) -> dict[str, object]:
    """How long the answers took."""
    times: list[float] = []
    while holds():
        if (took := asked(port)) is not None:
            times.append(took * 1e3)
        time.sleep(PAUSE_SECONDS)
    p50, p99 = np.percentile(times, [50, 99])
    return {
        "answers": len(times), "p50_ms": round(p50, 1), "p99_ms": round(p99, 1),
        "max_ms": round(max(times), 1), "beyond_target": sum(took > MOST_MS for took in times),
    }  # fmt: skip


def status(port: int) -> dict[str, object]:
    """The state of the one partition; nothing before it has one."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/status", timeout=60) as answer:
            (stream,) = json.load(answer)["streams"]
    except (OSError, ValueError):
        return {}
    return dict(stream["partitions"][0]) if stream["partitions"] else {}


class Until:
    """Holds until the partition's state is so; asked at most once a second."""

    def __init__(self, port: int, reached: Callable[[dict[str, object]], bool]) -> None:
        self._port, self._reached, self._next = port, reached, 0.0

    def __call__(self) -> bool:
        """Whether it is not so yet."""
        if time.monotonic() < self._next:
            return True
        self._next = time.monotonic() + 1
        return not self._reached(status(self._port))


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="streamdp-") as name:
        folder, (port,) = Path(name), free_ports(1)
        actions = ", ".join(f'"action-{n}"' for n in range(ACTIONS))
        text = CONFIGURATION.format(folder=folder, port=port, actions=actions)
        (folder / "streamdp.toml").write_text(text)
        produce(folder / "log.db", keys=options.keys)
        with service(folder) as running:
            learned = Until(port, lambda part: part.get("position") == options.keys)
            rows.append({"run": "while it learns new keys", **asked_while(port, learned)})
            os.kill(running.pid, signal.SIGKILL)
        with service(folder):
            taken = Until(port, lambda part: part.get("status") == "running")
            begun = time.monotonic()
            row = {"run": "while it takes the partition back", **asked_while(port, taken)}
            rows.append({**row, "seconds": round(time.monotonic() - begun, 1)})
            produce(folder / "log.db", keys=options.keys // 2)
            learned = Until(port, lambda part: part.get("position") == options.keys * 3 // 2)
            rows.append({"run": "while it learns of known keys", **asked_while(port, learned)})
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
