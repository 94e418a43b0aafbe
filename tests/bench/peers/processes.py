"""Candidates as processes: started, looked at from outside, and killed.

Everything is measured the same way for all: what has been consumed is what a candidate's consumer
group has committed, CPU time and memory are the operating system's account of its processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition

from tests.bench.peers.inputs import PARTITIONS

_LOOK_SECONDS = 0.02
_STILL_SECONDS = 90.0  # without progress: something is wrong
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """How far a candidate was, and what that had cost."""

    at: float
    position: int
    cpu: float
    behind: float = 1.0  # the least advanced partition's position, of their mean


@dataclass(frozen=True, slots=True)
class Measured:
    """The second half of a run."""

    rate: float  # records per second
    cpu: float  # seconds per million records
    memory: float  # MiB, the most that all processes together had
    seconds: float  # that the whole run took
    behind: float  # at half the run: the least advanced partition's position, of their mean

    def as_row(self) -> dict[str, float]:
        """For tables."""
        return {
            "records/s": round(self.rate),
            "CPU s/M": round(self.cpu, 2),
            "MiB": round(self.memory),
        }


def median(turns: Sequence[Measured]) -> Measured:
    """Of each figure, over several runs; the most of memory."""
    return Measured(
        rate=statistics.median(turn.rate for turn in turns),
        cpu=statistics.median(turn.cpu for turn in turns),
        memory=max(turn.memory for turn in turns),
        seconds=statistics.median(turn.seconds for turn in turns),
        behind=statistics.median(turn.behind for turn in turns),
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """Processes that do one job, and the group that tells how far they are."""

    name: str
    group: str
    commands: Sequence[Sequence[str]]
    environment: Mapping[str, str]


class Process:
    """One running process and its log."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                env={**os.environ, **environment}, process_group=0,
            )  # fmt: skip
        self._proc = Path(f"/proc/{self._process.pid}")

    @property
    def cpu(self) -> float:
        """Seconds of CPU until now."""
        fields = self._alive("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def memory(self) -> float:
        """The most memory that was resident, in MiB."""
        status = self._alive("status")
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def _alive(self, name: str) -> str:
        if self._process.poll() is not None:
            words = self.log.read_text("utf-8", "replace")[-2000:]
            raise RuntimeError(f"a candidate ended ({self._process.returncode}): {words}")
        return (self._proc / name).read_text("ascii")

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.send_signal(how)
        self._process.wait()


@contextmanager
def running(candidate: Candidate, folder: Path) -> Iterator[list[Process]]:
    """The candidate's processes, for as long as the block lasts."""
    logs = [folder / f"{candidate.group}-{at}.log" for at in range(len(candidate.commands))]
    processes: list[Process] = []
    try:
        for command, log in zip(candidate.commands, logs, strict=True):
            processes.append(Process(command, candidate.environment, log))
        yield processes
    finally:
        for process in processes:
            process.kill()


async def measure(
    candidate: Candidate,
    folder: Path,
    *,
    bootstrap: str,
    topic: str,
    records: int,
    partitions: int = PARTITIONS,
) -> Measured:
    """Run a candidate on a full topic until it has done so many records."""
    with running(candidate, folder) as processes:
        async with committed(bootstrap, candidate.group, topic, partitions) as positions:
            samples = await _watch(processes, positions, candidate.group, records)
        memory = sum(process.memory for process in processes)
    half = next(sample for sample in samples if sample.position >= records / 2)
    end = samples[-1]
    done = end.position - half.position
    if not done:
        raise RuntimeError(f"{candidate.name} commits too seldom for so short a run")
    return Measured(
        rate=done / (end.at - half.at),
        cpu=(end.cpu - half.cpu) / done * 1e6,
        memory=memory,
        seconds=end.at - samples[0].at,
        behind=half.behind,
    )


Positions = Callable[[], Awaitable[Sequence[int]]]


async def _watch(
    processes: Sequence[Process], positions: Positions, group: str, records: int
) -> list[Sample]:
    """A sample at each progress that the group tells."""
    samples = [Sample(time.monotonic(), 0, 0.0)]
    while samples[-1].position < records:
        ends = await positions()
        now, cpu = sum(ends), sum(process.cpu for process in processes)
        sample = Sample(time.monotonic(), now, cpu, min(ends) * len(ends) / max(1, now))
        if now > samples[-1].position:
            samples.append(sample)
        elif sample.at - samples[-1].at > _STILL_SECONDS:
            raise RuntimeError(f"{group} stands still: {processes[0].log.read_text()[-2000:]}")
        await asyncio.sleep(_LOOK_SECONDS)
    return samples


@asynccontextmanager
async def committed(
    bootstrap: str, group: str, topic: str, partitions: int = PARTITIONS
) -> AsyncIterator[Positions]:
    """Asks how many records a group has done of each partition."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
    )
    await consumer.start()
    places = [TopicPartition(topic, number) for number in range(partitions)]

    async def positions() -> Sequence[int]:
        return [await consumer.committed(place) or 0 for place in places]

    try:
        yield positions
    finally:
        await consumer.stop()
