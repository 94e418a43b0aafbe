"""What an operator was promised, of this version and of the one before, in one run.

    python tests/bench/bench_promises.py --before OTHER/.venv/bin/python [--json FILE] [--only …]

Each measurement starts the commands and the library of both versions, by turns, so that whatever
else the machine does meets both. Compare the ratios: absolute figures are this machine's.

- **state**: entries of the state topic that a restart reads, for each one that is live, after a
  stream's topics were made by `streamdp topics create` and the state was written again and again.
- **connections**: polite clients fill every place of the HTTP listener; how many of twenty probes
  of `/healthz` are then answered.
- **apply**: microseconds of processor time for one event by `Engine.apply`.
- **convert**: rows a second from Parquet to NDJSON.
- **group**: restart, pause and backlog of a Kafka group (`bench_group.py --quick`).
- **startup**: processor time of each command (`bench_startup.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition

from streamdp.testing.broker import own_broker

BEFORE, NOW = "before", "now"
HERE = Path(__file__).parent

_TURNS = 3
_ROWS = 300_000
_PLACES = 200  # connections that the listener is given
_PROBES = 20
_EVENTS = 3000  # applied one by one
_ROUNDS = 400  # how often each entry of the state is written
_LIVE = 200
_CLEANER_SECONDS = (
    20.0  # for the broker to compact, which it is told to look for ten times a second
)

STREAM: Mapping[str, Any] = {
    "input": "losses",
    "start": "earliest",
    "actions": ["a", "b", "c"],
    "learner": {"epsilon": "1/2"},
}

APPLY = """
import sys, time
import numpy as np, streamdp as sd
learner = sd.incumbent_leader(actions=["a", "b", "c"], epsilon="1")
engine = sd.Engine(stream="s", partition=0, learner=learner, budget="1",
                   randomness=sd.SeededRandomness(1))
losses = np.random.default_rng(1).random((int(sys.argv[1]), 3), dtype=np.float32)
for row in losses[:200]:
    engine.apply(b"k", row)
begun = time.process_time()
for row in losses:
    engine.apply(b"k", row)
print((time.process_time() - begun) / len(losses) * 1e6)
"""


def program(python: str) -> str:
    """The command beside an interpreter."""
    return str(Path(python).with_name("streamdp"))


def clean() -> dict[str, str]:
    """An environment in which each version imports its own code."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def written(folder: Path, **tables: object) -> Path:
    """A configuration of one stream."""
    path = folder / "streamdp.toml"
    topics = {"losses": {"budget": "1"}}
    config = {"app": "shop", "topics": topics, "streams": {"home": dict(STREAM)}, **tables}
    path.write_text(tomli_w.dumps(config), "utf-8")
    return path


# -- the measurements -----------------------------------------------------------------------------


def apply(python: str, folder: Path) -> float:
    """Microseconds for one event."""
    done = subprocess.run(
        [python, "-c", APPLY, str(_EVENTS)],
        cwd=folder, env=clean(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


def convert(python: str, folder: Path) -> float:
    """Rows a second, the start of the command included."""
    source, target = folder / "events.parquet", folder / "events.ndjson"
    if not source.exists():
        values = [[0.25, 0.5, 1.0], [0.0, 0.125, 0.75]] * (_ROWS // 2)
        keys = [f"key-{at % 1000}" for at in range(_ROWS)]
        losses = pa.array(values, pa.list_(pa.float32()))
        pq.write_table(pa.table({"key": keys, "losses": losses}), source)
    target.unlink(missing_ok=True)
    begun = time.monotonic()
    subprocess.run(
        [program(python), "convert", str(source), str(target), "--actions", "a,b,c"],
        cwd=folder, env=clean(), capture_output=True, check=True,
    )  # fmt: skip
    return _ROWS / (time.monotonic() - begun)


def connections(python: str, folder: Path) -> float:
    """The share of probes that are answered while polite clients hold every place."""
    for old in folder.glob("shop*"):
        old.unlink()
    listen = {"listen": "127.0.0.1:0", "most_connections": _PLACES}
    transport = {"kind": "sqlite", "path": str(folder / "shop.db")}
    path = written(folder, transport=transport, http=listen)
    log = folder / "connections.log"
    with log.open("wb") as file:
        service = subprocess.Popen(
            [program(python), "run", "--config", str(path)], cwd=folder, env=clean(), stderr=file
        )
    try:
        return asyncio.run(_probed(_port(log)))
    finally:
        service.terminate()
        service.wait()


def _port(log: Path) -> int:
    """Where the service says that it listens."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for line in log.read_text("utf-8").splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "http_listening":
                return int(str(event["address"]).rpartition(":")[2])
        time.sleep(0.05)
    raise TimeoutError(log.read_text("utf-8"))


async def _probed(port: int) -> float:
    """Fill the places, then ask for the health, each time on a connection of its own."""
    held = []
    for _ in range(_PLACES):
        try:
            held.append(await _asked(port, "/v1/streams/home/keys/fr/action"))
        except (OSError, EOFError, TimeoutError):
            break
    answered = 0
    for _ in range(_PROBES):
        try:
            _, writer, status = await _asked(port, "/healthz")
        except (OSError, EOFError, TimeoutError):
            continue
        answered += status == 200
        writer.close()
    for _, writer, _ in held:
        writer.close()
    return answered / _PROBES


async def _asked(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
    """One question over a connection that stays, and the status of its answer."""
    async with asyncio.timeout(2):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        first = await reader.readline()
    if not first:
        raise EOFError
    return reader, writer, int(first.split()[1])


def state(python: str, folder: Path) -> float:
    """Entries that a restart reads for each live one, with the settings that the version gives."""
    with own_broker(settings={"log.cleaner.backoff.ms": "100"}) as broker:
        transport = {"kind": "kafka", "bootstrap": broker.bootstrap, "single_broker": True}
        path = written(folder, transport=transport)
        create = [program(python), "topics", "create", "--config", str(path), "--partitions", "1"]
        subprocess.run(create, cwd=folder, env=clean(), capture_output=True, check=True)
        return asyncio.run(_read_again(broker.bootstrap, "shop.home.state"))


async def _read_again(bootstrap: str, topic: str) -> float:
    """Write every entry often, give the broker time to compact, and count what is left."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    for number in range(_ROUNDS):
        for at in range(_LIVE):
            await producer.send(topic, b"r" * 400, key=b"row %d" % at, partition=0)
        if number % 20 == 0:
            await producer.flush()
    await producer.stop()
    place = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    consumer.assign([place])
    least, deadline = float(_ROUNDS), time.monotonic() + _CLEANER_SECONDS
    while time.monotonic() < deadline:
        await asyncio.sleep(2.0)
        await consumer.seek_to_beginning(place)
        end, count = (await consumer.end_offsets([place]))[place], 0
        while await consumer.position(place) < end:
            count += sum(map(len, (await consumer.getmany(timeout_ms=500)).values()))
        least = min(least, count / _LIVE)
    await consumer.stop()
    return least


ALONE: Mapping[str, tuple[str, int, Callable[[str, Path], float]]] = {
    "state": ("entries read for each live one", 1, state),
    "connections": ("probes answered, all places taken", 1, connections),
    "apply": ("µs for one event", _TURNS, apply),
    "convert": ("rows a second", _TURNS, convert),
}
"""What it is, how often it is measured, and by what."""

TABLES: Mapping[str, tuple[str, ...]] = {
    "group": ("bench_group.py", "--quick"),
    "startup": ("bench_startup.py", "--turns", "3"),
}
"""Benchmarks of their own that compare versions."""


def compared(name: str, pythons: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """One measurement of both versions, by turns."""
    what, turns, measure = ALONE[name]
    measured: dict[str, list[float]] = {who: [] for who in pythons}
    for _ in range(turns):
        for who, python in pythons.items():
            own = folder / who
            own.mkdir(exist_ok=True)
            measured[who].append(measure(python, own))
    row = {who: round(statistics.median(values), 2) for who, values in measured.items()}
    print(f"{name:12} {what:34}" + "".join(f"{who} {value:<12g}" for who, value in row.items()))
    sys.stdout.flush()
    return {"measurement": name, "what": what, **row}


def main() -> None:
    """Measure what is asked for, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", help="the interpreter of the version before")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=[*ALONE, *TABLES], default=[*ALONE, *TABLES])
    options = parser.parse_args()
    before = {BEFORE: options.before} if options.before else {}
    pythons = {**before, NOW: sys.executable}
    rows = []
    with tempfile.TemporaryDirectory(prefix="streamdp-bench-") as name:
        rows = [compared(what, pythons, Path(name)) for what in ALONE if what in options.only]
    for table, (file, *arguments) in TABLES.items():
        if table in options.only:
            second_input = ["--before", options.before] if options.before else []
            call = [sys.executable, str(HERE / file), *arguments]
            if subprocess.run([*call, *second_input], env=clean()).returncode and second_input:
                print(f"{table:12} the version before cannot be measured so; this one alone:")
                subprocess.run(call, env=clean(), check=True)
    if options.json:
        options.json.write_text(json.dumps({"promises": {"rows": rows}}))


if __name__ == "__main__":
    main()
