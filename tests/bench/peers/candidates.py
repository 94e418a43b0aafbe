"""Who is measured: streamdp as `streamdp run` starts it, and its peers, each doing the same job.

The job: keyed running sums of K numbers, an output record at each power of two of a key's count,
exactly-once. For streamdp that is the noisy leader on the dyadic schedule, with the system's
randomness and all defaults. aiokafka alone only fetches.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from streamdp.ports import StreamTopics
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.technology import KafkaTechnology
from tests.bench.peers.inputs import Input, create, new_name
from tests.bench.peers.processes import Candidate

ROOT = Path(__file__).resolve().parents[3]
PEERS = "STREAMDP_PEERS"
"""The environment variable that names the Python of the peers' own environment."""

_STREAM = "sums"
_KAFKA_STREAMS = ROOT / "tests" / "bench" / "kafka_streams"
_CACHE_BYTES = 192 * 1024 * 1024
_HEAP = "-Xmx768m"
"""Room for 10^5 keys of K = 100 in its cache, so that no record waits for RocksDB."""


@dataclass(frozen=True, slots=True)
class Place:
    """A broker, a full topic, and a folder for files."""

    bootstrap: str
    topic: str
    input: Input
    folder: Path

    @property
    def kind(self) -> str:
        """How a peer reads a value."""
        if self.input.format != "json":
            return "raw"
        return "json" if self.input.observes == "losses" else "json-feedback"


async def streamdp(place: Place, *, processes: int = 1) -> Candidate:
    """The service with default settings; its topics are made here."""
    app = new_name()
    topics = StreamTopics(app, _STREAM, place.topic)
    settings = KafkaSettings(bootstrap=place.bootstrap, single_broker=True)
    administrator = KafkaTechnology(settings).administrator()
    await administrator.create([topics], partitions=place.input.partitions)
    path = place.folder / f"{app}.toml"
    path.write_text(tomli_w.dumps(_configuration(place, app)), "utf-8")
    command = [str(Path(sys.executable).with_name("streamdp")), "run", "--config", str(path)]
    return Candidate("streamdp", f"{app}.{_STREAM}", [command] * processes, {})


def _configuration(place: Place, app: str) -> dict[str, object]:
    """The service's file."""
    return {
        "app": app,
        "transport": {"kind": "kafka", "bootstrap": place.bootstrap, "single_broker": True},
        "topics": {place.topic: {"budget": "1"}},
        "streams": {
            _STREAM: {
                "input": place.topic,
                "start": "earliest",
                "actions": place.input.labels,
                "format": {"name": place.input.format, **place.input.options},
                **_LEARNS[place.input.observes],
            }
        },
    }


_LEARNS: dict[str, dict[str, object]] = {
    "losses": {
        "learner": {
            "recipe": "noisy_leader",
            "epsilon": "1/2",
            "noise": "exponential",
            "schedule": "dyadic",
        }
    },
    "feedback": {
        "observes": "feedback",
        "fallback_action": "a0",
        "learner": {"epsilon": "1/2"},
        "feedback": {"content": "reward", "salt": "bench"},
    },
}
"""The default learner of feedback streams has blocks of the same lengths."""


def actions_of(candidate: Candidate) -> str:
    """Where streamdp publishes its actions."""
    return f"{candidate.group}.actions"


async def alone(place: Place, *, processes: int = 1) -> Candidate:
    """aiokafka, consuming and throwing away."""
    group = new_name()
    shares = [range(at, place.input.partitions, processes) for at in range(processes)]
    commands = [
        [sys.executable, "-m", "tests.bench.peers.alone", place.bootstrap, group, place.topic,
         place.kind, *map(str, share)]
        for share in shares
    ]  # fmt: skip
    return Candidate("aiokafka alone", group, commands, {})


async def kafka_streams(place: Place, *, processes: int = 1) -> Candidate:
    """Kafka Streams: exactly-once (v2), two threads, a store with caching."""
    group = new_name()
    await create(place.bootstrap, _outputs(group))
    target = _KAFKA_STREAMS / "target"
    commands = [
        [java_of(), _HEAP, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
         "-cp", f"{target}/running-sums.jar:{target}/libraries/*", "RunningSums",
         place.bootstrap, group, place.topic, _outputs(group), place.kind,
         str(place.input.actions), str(place.folder / f"{group}-{at}"), str(_CACHE_BYTES)]
        for at in range(processes)
    ]  # fmt: skip
    return Candidate("Kafka Streams", group, commands, {})


async def quix(place: Place) -> Candidate:
    """Quix Streams: exactly-once, state with a changelog."""
    group = new_name()
    await create(place.bootstrap, _outputs(group))
    program = str(ROOT / "tests" / "bench" / "peers" / "quix.py")
    command = [os.environ[PEERS], program, place.bootstrap, group, place.topic, _outputs(group),
               place.kind, str(place.input.actions), str(place.folder / group)]  # fmt: skip
    return Candidate("Quix Streams", group, [command], {})


def outputs_of(candidate: Candidate) -> str:
    """Where a peer writes its outputs."""
    return _outputs(candidate.group)


def _outputs(group: str) -> str:
    """A peer's output topic."""
    return f"{group}-outputs"


def build_kafka_streams() -> bool:
    """Build the peer with Maven; False where there is none."""
    maven = shutil.which("mvn")
    if maven is None:
        return False
    command = [maven, "-B", "-q", "-Dstyle.color=never", "-f", str(_KAFKA_STREAMS), "package"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"Maven could not build Kafka Streams' program: {done.stdout[-2000:]}")
    return True


def has_quix() -> bool:
    """Whether the peers' environment is there."""
    return PEERS in os.environ


def java_of() -> str:
    """The Java that Maven runs on."""
    program = shutil.which("java")
    assert program is not None, "Maven does not run without Java"
    return program


def log_events(logs: Sequence[Path]) -> list[dict[str, object]]:
    """What the service's processes have logged until now."""
    lines = (line for log in logs for line in log.read_text("utf-8").splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]
