"""The real service, seen from outside: what `streamdp audit --black-box` runs a log through.

Each learner gets a stream of its own on an embedded pair of files that is deleted afterwards. The
service, its transport, its commits and its randomness are those of `streamdp run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamdp.audit import Audit
    from streamdp.audit.blackbox import Bound, Record
    from streamdp.core.learners import Leader
    from streamdp.ports import Technology
    from streamdp.service.spec import StreamSpec

_APP = "audit"
_LOOK_SECONDS = 0.01


def seen_from_outside(learner: Leader, audit: Audit, *, runs: int) -> Audit:
    """The audit with what the real service's releases prove; more than is charged is a failure."""
    if audit.charged is None:
        return audit
    found = bounds(learner, runs=runs)
    worst = max(bound.epsilon for bound in found)
    failures = tuple(
        f"from outside: ε ≥ {bound.epsilon:.3f} > {audit.charged} ({bound.event}:"
        f" {bound.counts[0]} against {bound.counts[1]} of {bound.runs} runs)"
        for bound in found
        if bound.epsilon > audit.charged
    )
    return replace(audit, outside=worst, failures=audit.failures + failures)


class Silent:
    """A log that nobody reads."""

    def info(self, event: str, **fields: object) -> None:
        """Drop it."""

    warning = info
    error = info


async def served(spec: StreamSpec, technology: Technology, log: Sequence[Record]) -> list[bytes]:
    """The ledger lines that the service publishes of a log; the stream must be new."""
    from streamdp.core.errors import StateMismatch
    from streamdp.ports import Partition
    from streamdp.service.loop import Service
    from streamdp.service.past import alone
    from streamdp.service.view import Status, View

    tools, producer = technology.administrator(), technology.producer()
    await tools.create([spec.topics], partitions=1)
    await tools.close()
    await producer.send(spec.topics.input, log, partition=0)
    await producer.close()
    view, place = View([spec]), Partition(spec.name, 0)
    service = Service(
        [spec], technology.transport(worker=_APP), past=alone, view=view, log=Silent()
    )
    running = asyncio.create_task(service.run())
    while not running.done() and view.part(place).position < len(log):
        if view.part(place).status is Status.HALTED:
            running.cancel()
            raise StateMismatch(view.part(place).message)
        await asyncio.sleep(_LOOK_SECONDS)
    service.drain()
    await running
    reader = technology.publications()
    batches = [batch async for batch in reader.ledger(spec.topics, follow=False)]
    await reader.close()
    return [record.value for batch in batches for record in batch]


def spec_of(learner: Leader, *, stream: str) -> StreamSpec:
    """A stream of this learner, as a configuration would make it."""
    from streamdp.core.randomness import SystemRandomness
    from streamdp.ports import StreamTopics
    from streamdp.service.spec import Start, StreamSpec
    from streamdp.wire.formats import configure

    return StreamSpec(
        topics=StreamTopics(_APP, stream, f"{_APP}-{stream}"),
        learner=learner,
        estimates=(),
        format=configure("json", actions=list(learner.actions)),
        budget=learner.charge or Fraction(0),
        epoch=1,
        start=Start.EARLIEST,
        randomness=SystemRandomness(),
    )


def bounds(learner: Leader, *, runs: int) -> list[Bound]:
    """What each pair of neighbouring logs proves of a learner, on the embedded files."""
    from streamdp.audit.blackbox import lower_bound, pairs

    (entry,) = entry_points(group="streamdp.transports", name="sqlite")
    factory: type[Technology] = entry.load()
    found = []
    with TemporaryDirectory(prefix="streamdp-audit-") as folder:
        technology = factory.from_settings({"path": str(Path(folder) / "audit.db")}, app=_APP)
        for at, pair in enumerate(
            pairs(learner.schedule, spec_of(learner, stream="x").loss_format)
        ):
            spec = spec_of(learner, stream=f"pair-{at}")

            def run(log: Sequence[Record], spec: StreamSpec = spec) -> list[bytes]:
                return asyncio.run(served(spec, technology, log))

            found.append(lower_bound(pair, run, runs=runs))
    return found
