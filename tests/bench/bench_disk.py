"""What a stream takes: bytes of its topics, processor of brokers, memory of the service.

    python tests/bench/bench_disk.py [--json FILE]

A full topic of two partitions is read by one `streamdp run` with default settings, once by a broker
that has nothing else to do. Bytes are of one copy, as the segments are on disk before compaction;
for actions and state, which are compacted, also of the newest line of each key (`kept`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from streamdp.testing.broker import THROUGHPUT, Broker, own_broker
from tests.bench.peers.candidates import Place, streamdp
from tests.bench.peers.inputs import PARTITIONS, Input, new_name, preload

INPUTS = (
    (Input("json", 10, 1000), 200_000),
    (Input("json", 10, 1000, observes="feedback"), 200_000),
    (Input("float32", 1000, 10_000), 40_000),
    (Input("json", 1000, 500, observes="feedback"), 20_000),
)
"""And how many records."""
ROLES = ("actions", "ledger", "state")


def processor(pid: int) -> float:
    """Seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def on_disk(broker: Broker, topic: str) -> int:
    """Bytes of a topic's segments."""
    files = (broker.folder / "data").glob(f"{topic}-[0-9]*/*.log")
    return sum(file.stat().st_size for file in files)


async def lines(bootstrap: str, topic: str) -> tuple[int, int]:
    """How many records a topic has, and the bytes of the newest record of each key."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, isolation_level="read_committed"
    )
    await consumer.start()
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(places)
    await consumer.seek_to_beginning(*places)
    count, newest = 0, dict[tuple[int, bytes | None], int]()
    while (got := await consumer.getmany(timeout_ms=5000)) or not count:
        for place, records in got.items():
            count += len(records)
            for record in records:
                size = len(record.key or b"") + len(record.value or b"")
                newest[(place.partition, record.key)] = size if record.value is not None else 0
    await consumer.stop()
    return count, sum(newest.values())


async def measure(broker: Broker, input_: Input, records: int, folder: Path) -> dict[str, Any]:
    """One input, from its first record to its last."""
    topic = new_name()
    size = await preload(broker.bootstrap, topic, input_, records=records)
    candidate = await streamdp(Place(broker.bootstrap, topic, input_, folder))
    config = Path(candidate.commands[0][-1])
    text, _, rest = config.read_text().partition("[streams.sums.learner]")
    feedback = rest[rest.index("[streams.sums.feedback]") :] if "feedback]" in rest else ""
    config.write_text(f'{text}[streams.sums.learner]\nepsilon = "1/2"\n{feedback}')
    ends, _ = await lines(broker.bootstrap, topic)
    before, begun = processor(broker.pid), time.monotonic()
    with subprocess.Popen(candidate.commands[0], stderr=(folder / "log").open("wb")) as running:
        inspect = [
            *candidate.commands[0][:1],
            "state",
            "inspect",
            "--json",
            "--config",
            str(config),
        ]
        read = 0
        while read < ends:
            assert running.poll() is None, (folder / "log").read_text()
            time.sleep(1)
            ended = subprocess.run(inspect, capture_output=True, check=False)
            parts = json.loads(ended.stdout or b"[]")
            read = sum(part["checkpoint"]["next_offset"] for part in parts if part["checkpoint"])
        seconds, load = time.monotonic() - begun, processor(broker.pid) - before
        status = Path(f"/proc/{running.pid}/status").read_text()
        peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
        running.terminate()
    facts: dict[str, Any] = {
        "input": input_.name,
        "records": ends,
        "value bytes": size,
        "input bytes a record": round(on_disk(broker, topic) / ends, 1),
        "broker's processor seconds a million": round(load / ends * 1e6, 2),
        "records a second": round(ends / seconds),
        "the service's peak, MB": round(peak / 1e6),
    }
    for role in ROLES:
        name = f"{config.stem}.sums.{role}"
        count, kept = await lines(broker.bootstrap, name)
        stored = on_disk(broker, name)
        facts |= {
            f"{role}: lines": count,
            f"{role}: bytes a line": round(stored / max(1, count), 1),
            f"{role}: bytes a key, kept": round(kept / input_.keys, 1),
            f"{role}: bytes an input record": round(stored / ends, 2),
        }
    return facts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = []
    with own_broker(java_options=THROUGHPUT) as broker, tempfile.TemporaryDirectory() as folder:
        for input_, records in INPUTS:
            found.append(asyncio.run(measure(broker, input_, records, Path(folder))))
            print(json.dumps(found[-1], indent=1), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
