"""A service to be killed: one process that runs three streams of one input, and says where it was.

`tests.crash.scenario` starts it, with what is asked of it as a mapping, in a fork of a process that
has imported streamdp (`tests.support.forking`): the crash tests start hundreds.

The stream ``fold`` is seeded, so that its ledger can be compared with an offline fold; the stream
``wide`` draws from the system among many equal actions, so that a redraw would almost surely show,
and has a memory, so that what is in force after a kill must follow from all votes before it.
The stream ``shown`` learns from what was shown, and publishes policies: seeded on SQLite, from the
system on Kafka, where a redraw of its sums would show to whoever looks at aborted data.
The last step that each partition passed stands in a file mapped to memory, which outlives SIGKILL;
so does how often the step was passed that it is to die at.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import sys
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import streamdp as sd
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.core.randomness import Randomness
from streamdp.ports import Partition, Reached, StreamTopics, Technology
from streamdp.service.charges_by_others import alone
from streamdp.service.loop import Service
from streamdp.service.settings import LoopSettings, Pace, Start
from streamdp.service.spec import StreamSpec
from streamdp.service.view import View
from streamdp.wire.formats import configure
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.technology import KafkaTechnology
from streamdp_adapters.sqlite import Settings, Sqlite
from tests.crash.mutants import MUTANTS
from tests.support.streams import ACTIONS, feedback_spec

STEPS = {
    "kafka": ("take: fenced", "take: owned", "take: read", "poll", "commit: begun", "commit: sent",
              "commit: decided"),
    "sqlite": ("take: fenced", "take: copied", "poll: found", "commit: begun",
               "commit: recorded", "commit: published"),
}  # fmt: skip

QUICK = LoopSettings(
    poll_seconds=0.02,
    poll_records=40,
    batch_records=40,
    commit_seconds=0.002,
    idle_commit_seconds=0.1,
    retry_seconds=(0.05, 0.2, 0.5),
    pace=Pace(records=200, seconds=1.0),
)
"""Many small commits, so that a kill finds every step."""


@dataclass(frozen=True)
class Place:
    """Where the streams live: a technology, its settings, and the names."""

    kind: str
    settings: dict[str, object] = field(repr=False)
    app: str
    partitions: int

    @property
    def input(self) -> str:
        """The input topic of all streams."""
        return f"{self.app}-losses"

    def technology(self, reached: Reached | None = None) -> Technology:
        """The technology, with a hook in its transport."""
        hook = reached or (lambda step, partition: None)
        if self.kind == "sqlite":
            return Sqlite(Settings.from_mapping(self.settings), reached=hook)
        return KafkaTechnology(KafkaSettings.parse(self.settings), reached=hook)

    def specs(self) -> list[StreamSpec]:
        """All streams."""
        narrow = sd.prefix_softmax(actions=["a", "b", "c"], epsilon="1/2", schedule="capped 3")
        wide = sd.remembering_leader(
            actions=[f"action {number}" for number in range(16)],
            epsilon="1/100",
            schedule="restarting 4",
            bonus=0,
        )
        return [
            self._spec("fold", narrow, sd.SeededRandomness(7)),
            self._spec("wide", wide, sd.SystemRandomness()),
            self._shown(),
        ]

    def _shown(self) -> StreamSpec:
        """The feedback stream: it reads the same records, and their headers."""
        learner = policy_blocks(actions=ACTIONS, epsilon="1/4", schedule="capped 3")
        seeded = self.kind == "sqlite"
        randomness = sd.SeededRandomness(7) if seeded else sd.SystemRandomness()
        return replace(
            feedback_spec(learner=learner, randomness=randomness),
            topics=StreamTopics(self.app, "shown", self.input, headers=True),
            share=Fraction(1),
        )

    def _spec(self, name: str, learner: sd.Leader, randomness: Randomness) -> StreamSpec:
        return StreamSpec(
            topics=StreamTopics(self.app, name, self.input),
            learner=learner,
            estimates=(sd.estimate("block_regret", epsilon="1/4", min_length=3),),
            format=configure("json", actions=list(learner.actions), options={"layout": "mapping"}),
            share=Fraction(1),
            epoch=1,
            start=Start.EARLIEST,
            randomness=randomness,
            most_key_bytes=64,
        )


class Trace:
    """Notes the last step of each partition, and dies at a chosen one."""

    def __init__(
        self, place: Place, path: Path, *, step: str | None, passage: int, stream: str | None
    ) -> None:
        self._steps = STEPS[place.kind]
        self._names = [spec.name for spec in place.specs()]
        self._partitions = place.partitions
        size = len(self._names) * place.partitions + 1
        with path.open("w+b") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self._step, self._left, self._stream = step, passage, stream

    def __call__(self, step: str, partition: Partition) -> None:
        """One step was reached; those between two looks leave nothing to be killed."""
        if step not in self._steps:
            return
        at = self._names.index(partition.stream) * self._partitions + partition.number
        self._map[at] = self._steps.index(step) + 1
        if step == self._step and self._stream in (None, partition.stream):
            self._map[-1] += 1
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Stderr:
    """A log that a failed test can show."""

    def info(self, event: str, **fields: object) -> None:
        """As it should be."""
        print("info", event, fields, file=sys.stderr, flush=True)

    def warning(self, event: str, **fields: object) -> None:
        """Passes by itself."""
        print("warning", event, fields, file=sys.stderr, flush=True)

    def error(self, event: str, **fields: object) -> None:
        """Somebody must act."""
        print("error", event, fields, file=sys.stderr, flush=True)


async def serve(place: Place, trace: Trace | None, worker: str) -> int:
    """Run until SIGTERM; 4 if a partition halted."""
    specs = place.specs()
    view = View(specs)
    transport = place.technology(trace).transport(worker=worker)
    service = Service(specs, transport, by_others=alone, view=view, log=Stderr(), settings=QUICK)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.drain)
    await service.run()
    return 4 if service.halted else 0


def run(asked: dict[str, Any]) -> int:
    """Run a service as asked, to its end; its exit code."""
    place = Place(asked["kind"], asked["settings"], asked["app"], asked["partitions"])
    if asked.get("mutant"):
        MUTANTS[asked["mutant"]]()
    trace = None
    if asked.get("trace"):
        at = {name: asked[name] for name in ("step", "passage", "stream")}
        trace = Trace(place, Path(asked["trace"]), **at)
    return asyncio.run(serve(place, trace, asked.get("worker", "worker")))
