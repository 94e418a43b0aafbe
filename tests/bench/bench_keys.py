"""A million keys on one partition: memory while it runs, memory and time of a restart, and commits.

    python tests/bench/bench_keys.py [--keys N] [--observes losses|feedback]
        [--before CHECKOUT] [--kafka] [--no-flood] [--json FILE]

One `streamdp run` on the embedded log, or on a broker, K = 10. It learns one event of each key and
is killed at once, when most of what it recorded is not deleted yet; it starts again, and saves its
rows; while 10^5 new keys a minute come, its commits are timed; it is killed, and starts once more
from saved rows, and then into an epoch with one more action. Memory is what the system counts as
resident, and its peak since the process started; beside the seconds of a start are those of its
processor, which say more where others use the machine too.

Each start but the first, which learns as fast as it can, runs in a control group of the size that
the documents give (`documented`), as a container does: one that needs more is killed. Where no
group can be made, RLIMIT_DATA is that size.
`--before` names the checkout of another commit, which is measured first, without a limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from streamdp.service.config import Configuration
from streamdp.testing.broker import THROUGHPUT, own_broker
from streamdp.testing.free_ports import free_ports
from tests.bench.peers.inputs import Input

ACTIONS = 10
FLOOD_KEYS, FLOOD_SECONDS = 100_000, 60
BASE_MB = 100
"""What a process takes without any key."""
BYTES_A_KEY = {"losses": 450, "feedback": 1450}
"""What a key may take while a process runs, all included."""
PROCESS_MB = 400
OWN_BYTES, BYTES_AN_ACTION = {"losses": 250, "feedback": 300}, {"losses": 16, "feedback": 140}
"""A container's size, as in docs/operating.md: for the process; for a key, and for its actions."""
MOST_PEAK, MOST_RESTART, MOST_COMMIT = 1.3, 0.4, 1.0
"""A restart's peak beside the running process and time beside `--before`; a commit's seconds."""
CONFIGURATION = """
app = "bench"
transport = {transport}
topics = {{ events = {{ budget = "1" }} }}
operations = {{ listen = "127.0.0.1:{port}" }}
[streams.home]
input = "events"
start = "earliest"
observes = "{observes}"
actions = [{actions}]
format = "float32"
learner = {{ epsilon = "1" }}
limits = {{ most_keys = 100000000 }}
{feedback}
"""
_GROUPS = Path("/sys/fs/cgroup/memory")


@dataclass
class Bench:
    """One checkout, and what was measured of it."""

    root: Path
    folder: Path
    port: int
    input: Input
    limit: int | None  # bytes
    transport: str  # its table
    facts: dict[str, float] = field(default_factory=dict)

    def configure(self) -> None:
        """Write the configuration."""
        observes = self.input.observes
        feedback = 'feedback = { content = "reward" }' if observes == "feedback" else ""
        text = CONFIGURATION.format(
            transport=self.transport,
            port=self.port, observes=observes, feedback=feedback,
            actions=", ".join(f'"{name}"' for name in self.input.labels),
        )  # fmt: skip
        (self.folder / "streamdp.toml").write_text(text)
        configuration = self.configuration()
        administrator = configuration.technology().administrator()
        asyncio.run(administrator.create(configuration.topics(), partitions=1))

    def configuration(self) -> Configuration:
        """What `configure` has written."""
        return Configuration.load(self.folder / "streamdp.toml")

    def produce(self, first: int, stop: int, *, seconds: float = 0) -> None:
        """One event of each of these keys, spread over so many seconds."""

        async def send() -> None:
            producer = self.configuration().technology().producer()
            records = self.input.records(stop - first)
            begun, step = time.monotonic(), 2000 if seconds else 20_000
            for at in range(first, stop, step):
                keys = range(at, min(stop, at + step))
                values = list(islice(records, len(keys)))
                named = [(b"key-%d" % key, of) for key, (of, _) in zip(keys, values, strict=True)]
                headers = [headers for _, headers in values]
                await producer.send("events", named, headers=headers)
                due = begun + seconds * (keys.stop - first) / (stop - first)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            await producer.close()

        asyncio.run(send())

    @contextmanager
    def service(self, *, limit: int | None) -> Iterator[subprocess.Popen[bytes]]:
        """`streamdp run` within so many bytes, killed at the end."""
        command = [sys.executable, "-m", "streamdp", "run"]
        command += ["--config", str(self.folder / "streamdp.toml")]
        path = os.pathsep.join(map(str, (self.root, self.root / "adapters")))
        with (
            (self.folder / "log").open("ab") as log,
            confined(limit) as confine,
            subprocess.Popen(
                command,
                cwd=self.folder,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                preexec_fn=confine,
            ) as running,
        ):
            try:
                yield running
            finally:
                with suppress(ProcessLookupError):
                    os.kill(running.pid, signal.SIGKILL)

    def wait(self, running: subprocess.Popen[bytes], reached: Callable[[Any], bool]) -> float:
        """Seconds until the partition's state is so."""
        begun = time.monotonic()
        while not reached(self.status()):
            if running.poll() is not None:
                raise SystemExit(f"{self.root}: the process ended with {running.returncode}")
            time.sleep(0.2)
        return time.monotonic() - begun

    def status(self) -> dict[str, Any]:
        """The state of the one partition; nothing before it has one."""
        try:
            with urllib.request.urlopen(f"{self._address}/v1/status", timeout=60) as answer:
                (stream,) = json.load(answer)["streams"]
        except (OSError, ValueError):
            return {}
        return dict(stream["partitions"][0]) if stream["partitions"] else {}

    def commits(self) -> dict[float, int]:
        """How many commits took at most so many seconds."""
        with urllib.request.urlopen(f"{self._address}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        marked = (line for line in lines if line.startswith("streamdp_commit_seconds_bucket"))
        pairs = (line.split('le="')[1].split('"} ') for line in marked)
        return {float(bound): int(float(count)) for bound, count in pairs}

    @property
    def _address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def note(self, name: str, pid: int, *, seconds: float | None = None) -> None:
        """Note the memory of a process, and how long something took."""
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        sizes = dict(line.split(":", 1) for line in status)
        for what, of in (("resident", "VmRSS"), ("peak", "VmHWM")):
            self.facts[f"{name}: {what} MB"] = round(int(sizes[of].split()[0]) * 1024 / 1e6)
        if seconds is not None:
            self.facts[f"{name}: seconds"] = round(seconds, 1)
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks = int(fields[11]) + int(fields[12])  # user's and system's
            self.facts[f"{name}: processor seconds"] = ticks / os.sysconf("SC_CLK_TCK")
        print(f"{self.root.name:12} {name}:", end=" ")
        print({key: value for key, value in self.facts.items() if key.startswith(name)}, flush=True)

    def measure(self, keys: int, *, flood: bool) -> None:
        """Everything, in order."""
        self.configure()
        self.produce(0, keys)
        with self.service(limit=None) as running:
            took = self.wait(running, lambda part: part.get("position") == keys)
            self.note("learned", running.pid, seconds=took)
        with self.service(limit=self.limit) as running:
            took = self.wait(running, lambda part: part.get("status") == "running")
            self.note("restarted at once", running.pid, seconds=took)
            took = self.wait(running, _settled)
            self.note("saved", running.pid, seconds=took)
            if flood:
                before = self.commits()
                self.produce(keys, keys + FLOOD_KEYS, seconds=FLOOD_SECONDS)
                self.wait(running, lambda part: part.get("position") == keys + FLOOD_KEYS)
                now = self.commits()
                total = now[float("inf")] - before[float("inf")]
                slowest = min(le for le, of in now.items() if of - before[le] == total)
                self.facts["flood: slowest commit s, at most"] = slowest
                self.facts["flood: commits"] = total
                self.wait(running, _settled)
                self.note("flood", running.pid)
        with self.service(limit=self.limit) as running:
            took = self.wait(running, lambda part: part.get("status") == "running")
            self.note("restarted", running.pid, seconds=took)
        self._change()
        with self.service(limit=self.limit) as running:
            took = self.wait(running, lambda part: part.get("status") == "running")
            self.note("new epoch", running.pid, seconds=took)

    def _change(self) -> None:
        """Add an action, in an epoch of its own."""
        path = self.folder / "streamdp.toml"
        text = path.read_text().replace("actions = [", 'epoch = 2\nactions = ["more", ')
        path.write_text(text)


def _settled(part: dict[str, Any]) -> bool:
    """Whether every row is saved."""
    return part.get("low_water") == part.get("position") is not None


@contextmanager
def confined(limit: int | None) -> Iterator[Callable[[], None]]:
    """What a child calls to live within so many bytes."""
    if limit is None:
        yield lambda: None
        return
    group = _GROUPS / f"streamdp-bench-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as error:
        print(f"no control group can be made ({error}): RLIMIT_DATA instead")
        yield lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        return
    try:
        yield partial(_join, group)
    finally:
        for _ in range(100):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def documented(input_: Input, *, flood: bool) -> int:
    """The bytes that the documents give a process with one partition of so many keys."""
    keys = input_.keys + FLOOD_KEYS * flood
    a_key = OWN_BYTES[input_.observes] + BYTES_AN_ACTION[input_.observes] * input_.actions
    return PROCESS_MB * 1_000_000 + keys * a_key


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


def judged(facts: dict[str, float], before: dict[str, float], input_: Input) -> Iterator[str]:
    """What was wanted, and whether it holds."""
    running, keys = facts["saved: resident MB"], input_.keys
    a_key = (running - BASE_MB) * 1e6 / keys
    yield f"bytes a key while it runs: {a_key:.0f}, at most {BYTES_A_KEY[input_.observes]}"
    for name in ("restarted at once", "restarted", "new epoch"):
        if f"{name}: peak MB" in facts:
            beside = facts["learned: resident MB"] if name == "restarted at once" else running
            ratio = facts[f"{name}: peak MB"] / beside
            yield f"{name}: peak {ratio:.2f} × running, at most {MOST_PEAK}"
        if before:
            for what in ("seconds", "processor seconds"):
                ratio = facts[f"{name}: {what}"] / before[f"{name}: {what}"]
                yield f"{name}: {ratio:.2f} × the {what} of before, at most {MOST_RESTART}"
    if "flood: commits" in facts:
        slowest = facts["flood: slowest commit s, at most"]
        yield f"slowest commit of the flood: ≤ {slowest} s, at most {MOST_COMMIT}"


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--observes", choices=["losses", "feedback"], default="losses")
    parser.add_argument("--before", type=Path, help="another checkout, measured in the same run")
    parser.add_argument("--kafka", action="store_true", help="on a broker of its own")
    parser.add_argument("--no-flood", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    input_ = Input("float32", ACTIONS, options.keys, observes=options.observes)
    here = Path(__file__).resolve().parents[2]
    facts: dict[str, dict[str, float]] = {}
    for who, root in (("before", options.before), ("now", here)):
        if root is None:
            continue
        with tempfile.TemporaryDirectory(prefix="streamdp-") as name, ExitStack() as stack:
            limit = documented(input_, flood=not options.no_flood) if who == "now" else None
            transport = f'{{ kind = "sqlite", path = "{name}/log.db" }}'
            if options.kafka:
                broker = stack.enter_context(own_broker(java_options=THROUGHPUT))
                transport = f'{{ kind = "kafka", bootstrap = "{broker.bootstrap}"'
                transport += ", single_broker = true }"
            bench = Bench(root.resolve(), Path(name), free_ports(1)[0], input_, limit, transport)
            bench.measure(options.keys, flood=not options.no_flood)
            facts[who] = bench.facts
    for line in judged(facts["now"], facts.get("before", {}), input_):
        print(line)
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
