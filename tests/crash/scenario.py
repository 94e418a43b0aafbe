"""Kill, restart, and judge: what the crash tests of every transport share."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from streamdp.core.learners import PolicyLearner
from streamdp.ports import Headers, Key, Partition, Published, Records, Value
from streamdp.service.spec import StreamSpec
from streamdp.service.verifying.verification import Verification
from streamdp.testing.judge import Evidence, judge, judge_counts, judge_fold
from tests.crash.process import STEPS, Place
from tests.support.decoding import decode
from tests.support.forking import Forked, parent

KEYS: Sequence[Key] = (b"fr", b"de", b"it", None, b"\xff")
PATIENCE = 240.0

FIRST_PASSAGE = 20.0
"""Seconds that a service has to get to the step that it is to die at, …"""

NEXT_PASSAGE = 2.0
"""… and from there to the next time; a slow one is killed elsewhere."""

SERVICE = """
import json, sys
from tests.crash.process import run
sys.exit(run(json.loads(sys.argv[1])))
"""


@dataclass
class Input:
    """What was sent, partition by partition: the judge's own copy."""

    sent: dict[int, list[tuple[Key, Value]]] = field(default_factory=dict)
    headers: dict[int, list[Headers]] = field(default_factory=dict)

    def more(self, chance: random.Random, *, partitions: int, per_partition: int) -> Iterator[int]:
        """Make up records for every partition; one in twenty is garbage."""
        for number in range(partitions):
            rows = self.sent.setdefault(number, [])
            for _ in range(per_partition):
                losses = {name: round(chance.random(), 3) for name in ("a", "b", "c")}
                event = {"losses": losses, "reward": int(losses["a"] < 0.3)}
                value = json.dumps(event).encode()
                rows.append((chance.choice(KEYS), b"\x00" if chance.random() < 0.05 else value))
                self.headers.setdefault(number, []).append(_shown(len(rows)))
            yield number


def _shown(number: int) -> Headers:
    """Which action the record with this number says was shown; some say none, or one too many."""
    action = (b"a", b"b", b"c")[number * 5 % 7 % 3]
    return [("streamdp-action", action)] * (1 if number % 9 else number // 9 % 3)


Shown = Sequence[tuple[StreamSpec, list[Evidence]]]
"""What can be seen of each stream, partition by partition."""


@dataclass
class Scenario:
    """Streams on one place, and everything that a test does to them."""

    place: Place
    folder: Path
    chance: random.Random
    mutant: str | None = None
    input: Input = field(default_factory=Input)
    steps: Counter[str] = field(default_factory=Counter)  # where partitions were when killed
    _started: int = 0
    _logs: dict[int, Path] = field(default_factory=dict)
    _traces: dict[int, Path] = field(default_factory=dict)
    _wanted: dict[tuple[str, int, int], int] = field(default_factory=dict)  # lines, by input

    def prepare(self) -> None:
        """Make the topics."""

        async def create() -> None:
            tools = self.place.technology().administrator()
            topics = [spec.topics for spec in self.place.specs()]
            await tools.create(topics, partitions=self.place.partitions)
            await tools.close()

        asyncio.run(create())

    def send(self, per_partition: int) -> None:
        """Append so many records to every partition."""

        async def append() -> None:
            producer = self.place.technology().producer()
            for number in self.input.more(
                self.chance, partitions=self.place.partitions, per_partition=per_partition
            ):
                rows = self.input.sent[number][-per_partition:]
                headers = self.input.headers.get(number, [])[-per_partition:]
                await producer.send(
                    self.place.input, rows, headers=headers or None, partition=number
                )
            await producer.close()

        asyncio.run(append())

    @contextmanager
    def running(
        self, *, step: str | None = None, passage: int = 1, stream: str | None = None
    ) -> Iterator[Forked]:
        """A service in a process of its own; it dies at the `passage`-th `step`, if any.

        Of a partition of this `stream`, or of any.
        """
        self._started += 1
        trace = self.folder / f"trace {self._started}"
        asked = {
            "kind": self.place.kind,
            "settings": self.place.settings,
            "app": self.place.app,
            "partitions": self.place.partitions,
            "worker": f"worker {self._started}",
            "trace": str(trace),
            "mutant": self.mutant,
            "step": step,
            "passage": passage,
            "stream": stream,
        }
        path = self.folder / f"log {self._started}"
        with path.open("ab") as log:
            process = parent().start(SERVICE, [json.dumps(asked)], stderr=log.fileno())
        self._logs[process.pid], self._traces[process.pid] = path, trace
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            if process.wait() == -signal.SIGKILL:
                self._note(trace)

    def kill_at_each(self, steps: Sequence[str], *, times: int, per_partition: int) -> None:
        """Kill services so often at each step, in any order, with new records before each kill.

        One that was slow is killed elsewhere; so where most were slow, others are killed.
        """
        every = [step for step in steps for _ in range(times)]
        self.chance.shuffle(every)
        for step in every:
            self.send(per_partition)
            self.kill_at(step, self.chance.randrange(1, 8))
        for _ in every:
            rarest = min(steps, key=lambda step: self.steps[step])
            if self.steps[rarest] > times // 2:
                break
            self.send(per_partition)
            self.kill_at(rarest, 1)

    def kill_at(self, step: str, passage: int, *, stream: str | None = None) -> None:
        """Run a service until it dies at a step; kill it if it gets there no more."""
        with self.running(step=step, passage=passage, stream=stream) as process:
            self.await_dead(process)

    def await_dead(self, process: Forked) -> None:
        """Wait for a service that dies at a step; kill it if it gets there no more."""
        begun, passages, trace = time.monotonic(), 0, self._traces[process.pid]
        while process.poll() is None:
            try:
                process.wait(NEXT_PASSAGE)
            except subprocess.TimeoutExpired:
                before, passages = passages, trace.read_bytes()[-1] if trace.exists() else 0
                late = time.monotonic() - begun > FIRST_PASSAGE
                if passages == before and (passages or late):
                    process.kill()
        assert process.wait() == -signal.SIGKILL, self.log(process)

    def await_joined(self, process: Forked) -> None:
        """Wait until a service has joined and will listen to signals."""
        self.await_said(process, "joined")

    def await_said(self, process: Forked, event: str) -> None:
        """Wait until a service has logged an event."""
        deadline = time.monotonic() + PATIENCE
        while event not in self._logs[process.pid].read_text(errors="replace"):
            assert process.poll() is None, self.log(process)
            assert time.monotonic() < deadline, f"the service does not say {event}"
            time.sleep(0.05)

    def stop(self, process: Forked) -> None:
        """Ask a service to drain."""
        self.await_joined(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE) == 0, self.log(process)

    def log(self, process: Forked) -> str:
        """The end of one process's own log."""
        return self._logs[process.pid].read_text(errors="replace")[-3000:]

    def _note(self, trace: Path) -> None:
        names = STEPS[self.place.kind]
        for last in trace.read_bytes()[:-1] if trace.exists() else b"":
            if last:
                self.steps[names[last - 1]] += 1

    # -- judging -----------------------------------------------------------------------------

    def evidence(self, spec: StreamSpec) -> list[Evidence]:
        """What can be seen of each partition."""

        async def read() -> tuple[list[Published], list[Published]]:
            reader = self.place.technology().publications()
            shown = reader.actions(spec.topics, follow=False)
            actions = [record async for batch in shown for record in batch]
            lines = reader.ledger(spec.topics, follow=False)
            ledger = [record async for batch in lines for record in batch]
            await reader.close()
            return actions, ledger

        actions, ledger = asyncio.run(read())
        return [
            Evidence(
                Partition(spec.name, number),
                [record for record in actions if record.partition == number],
                [record for record in ledger if record.partition == number],
            )
            for number in range(self.place.partitions)
        ]

    def findings(
        self,
        seen: dict[tuple[str, int], list[bytes]] | None = None,
        *,
        whole: str = "whole",
        shown: Shown = (),
    ) -> list[str]:
        """Everything that the judge holds against any partition, as it is `shown` or now."""
        faults = []
        for spec, parts in shown or self._shown():
            for number, evidence in enumerate(parts):
                if seen is not None:
                    evidence = replace(evidence, seen=seen.get((spec.name, number), []))
                faults += judge(evidence)
                faults += self._counts(spec, number, evidence)
                if spec.randomness.seeded:
                    faults += self._fold(spec, number, evidence, whole)
                elif isinstance(spec.learner, PolicyLearner):
                    batch, _ = decode(spec.format, [self._log(spec, number)], most_key_bytes=64)
                    engine = spec.engine(number)
                    faults += judge_counts(evidence, engine=engine, log=[batch])
        return faults

    def _log(self, spec: StreamSpec, number: int) -> Records:
        rows = self.input.sent.get(number, [])
        keys, values = [key for key, _ in rows], [value for _, value in rows]
        headers = self.input.headers.get(number, []) if spec.topics.headers else ()
        place, offsets = Partition(spec.name, number), range(len(rows))
        return Records(place, 0, offsets, keys, values, len(rows), headers)

    def _fold(self, spec: StreamSpec, number: int, evidence: Evidence, whole: str) -> list[str]:
        batch, _ = decode(spec.format, [self._log(spec, number)], most_key_bytes=64)
        engine = spec.engine(number)
        return judge_fold(evidence, engine=engine, lines=spec.lines, log=[batch], whole=whole)

    def _counts(self, spec: StreamSpec, number: int, evidence: Evidence) -> list[str]:
        """As many releases as the input asks for, whatever was drawn."""
        name = spec.name, number, len(self.input.sent.get(number, []))
        if name not in self._wanted:
            batch, _ = decode(spec.format, [self._log(spec, number)], most_key_bytes=64)
            drawn = spec.engine(number).apply_batch(batch)
            self._wanted[name] = len(drawn)
        wanted, got = self._wanted[name], len(evidence.ledger)
        return [] if got == wanted else [f"{evidence.partition}: {got} lines, {wanted} expected"]

    def _shown(self) -> Iterator[tuple[StreamSpec, list[Evidence]]]:
        """What can be seen of each stream now."""
        for spec in self.place.specs():
            yield spec, self.evidence(spec)

    def _whole(self) -> tuple[list[str], Shown]:
        """What is still missing of the first stream that lacks something; else all that is there.

        Nearly every look comes too early: it ends here, and judges nothing.
        """
        shown = []
        for spec, parts in self._shown():
            counts = [self._counts(spec, number, evidence) for number, evidence in enumerate(parts)]
            if any(counts):
                return [fault for count in counts for fault in count], []
            shown.append((spec, parts))
        return [], shown

    def _unverified(self, shown: Shown) -> list[str]:
        """What does not follow from the ledger's votes and sums, also of what readers heard."""
        verification = Verification()
        for spec, parts in shown:
            for evidence in parts:
                verification.read_published(spec.topics, evidence.actions)
                verification.read(spec.topics, evidence.ledger)
        verification.finish()
        return verification.violations

    def settle(self, processes: Sequence[Forked]) -> list[str]:
        """Wait until everything is published, or until patience ends; what is wrong then."""
        deadline = time.monotonic() + PATIENCE
        while True:
            began = time.monotonic()
            faults, shown = self._whole()
            faults = faults or self.findings(shown=shown) or self._unverified(shown)
            if not faults or time.monotonic() > deadline:
                return faults
            for process in processes:
                assert process.poll() is None, self.log(process)
            # half of the time is left to who works: a look reads everything
            time.sleep(max(0.2, time.monotonic() - began))

    def finish(self) -> list[str]:
        """One last service publishes everything and drains by itself when told."""
        with self.running() as process:
            faults = self.settle([process])
            self.stop(process)
        return faults
