"""The real service seen from outside: `streamdp audit --black-box` runs logs through it.

Each learner gets a stream of its own on an embedded pair of files, deleted afterwards. The service,
its transport, its commits and its randomness are those of `streamdp run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamdp.core.kinds.kind import Kind
    from streamdp.lab.audit import Audit
    from streamdp.lab.audit.blackbox import EpsilonBound, Record
    from streamdp.ports import StreamTopics, Technology
    from streamdp.service.spec import StreamSpec
    from streamdp.wire.decoded import Headers
from streamdp.wire.feedback import Number

_APP = "audit"
_LOOK_SECONDS = 0.01
_KEY_BYTES = 64  # more than the keys of runs need


def seen_from_outside(
    learner: Kind, audit: Audit, *, runs: int, spec: StreamSpec | None = None
) -> Audit:
    """Add the bound that the real service's releases prove; above the charge it is a failure.

    `spec` is the stream as configured; by default a stream of JSON records.
    """
    if audit.charged is None:
        return audit
    proven = bounds(spec or spec_of(learner, stream="x"), runs=runs)
    worst = max(bound.epsilon for bound in proven)
    failures = tuple(
        f"from outside: ε ≥ {bound.epsilon:.3f} > {audit.charged} ({bound.event}:"
        f" {bound.counts[0]} against {bound.counts[1]} of {bound.runs} runs)"
        for bound in proven
        if bound.epsilon > audit.charged
    )
    return replace(audit, outside=worst, failures=audit.failures + failures)


class Silent:
    """A log that discards its lines."""

    def info(self, event: str, **fields: object) -> None:
        """Drop it."""

    warning = info
    error = info


async def served(
    spec: StreamSpec,
    technology: Technology,
    log: Sequence[Record],
    headers: Sequence[Headers] | None = None,
) -> list[bytes]:
    """The ledger lines that the service publishes for a log; the stream must be new."""
    from streamdp.core.errors import StateMismatch
    from streamdp.ports import Partition
    from streamdp.service.charges_by_others import alone
    from streamdp.service.loop import Service
    from streamdp.service.view import Status, View

    tools, producer = technology.administrator(), technology.producer()
    await tools.create([spec.topics], partitions=1)
    await tools.close()
    await producer.send(spec.topics.input, log, headers=headers, partition=0)
    await producer.close()
    view, place = View([spec]), Partition(spec.name, 0)
    service = Service(
        [spec], technology.transport(worker=_APP), by_others=alone, view=view, log=Silent()
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


def spec_of(learner: Kind, *, stream: str, content: Number = "loss") -> StreamSpec:
    """A stream with this learner, as a configuration would make it."""
    from streamdp.core.learners import PolicyLearner
    from streamdp.core.randomness import SystemRandomness
    from streamdp.service.settings import Start
    from streamdp.service.spec import StreamSpec
    from streamdp.wire.feedback import Feedback
    from streamdp.wire.formats import configure

    feedback = None
    if isinstance(learner, PolicyLearner):
        feedback = Feedback(learner.actions, content, learner.played)
    return StreamSpec(
        topics=_topics(stream, headers=feedback is not None),
        learner=learner,
        estimates=(),
        format=configure("json", actions=learner.actions, feedback=feedback),
        share=learner.releases[0].epsilon,
        epoch=1,
        start=Start.EARLIEST,
        randomness=SystemRandomness(),
    )


def _topics(stream: str, *, headers: bool) -> StreamTopics:
    from streamdp.ports import StreamTopics

    return StreamTopics(_APP, stream, f"{_APP}-{stream}", headers=headers)


def apart(spec: StreamSpec, *, stream: str) -> StreamSpec:
    """The stream as an application of its own for each run, from the first record."""
    from streamdp.core.engine.machine import MOST_ROWS
    from streamdp.lab.audit.neighbours import in_short_blocks
    from streamdp.service.settings import Start

    return replace(
        spec,
        learner=in_short_blocks(spec.learner),
        topics=_topics(stream, headers=spec.topics.headers),
        epoch=1,
        partition_epochs={},
        start=Start.EARLIEST,
        most_keys=MOST_ROWS,
        most_key_bytes=max(spec.most_key_bytes, _KEY_BYTES),
        quarantine=None,
    )


def bounds(spec: StreamSpec, *, runs: int) -> list[EpsilonBound]:
    """What each pair of neighbouring logs proves of a stream on the embedded files."""
    from streamdp.lab.audit.blackbox import lower_bound, pairs

    (entry,) = entry_points(group="streamdp.transports", name="sqlite")
    factory: type[Technology] = entry.load()
    proven = []
    with TemporaryDirectory(prefix="streamdp-audit-") as folder:
        technology = factory.from_settings({"path": str(Path(folder) / "audit.db")}, app=_APP)
        schedule = apart(spec, stream="").learner.schedule
        for at, pair in enumerate(pairs(schedule, spec.format)):
            made = apart(spec, stream=f"pair-{at}")

            def run(
                log: Sequence[Record],
                headers: Sequence[Headers] | None,
                made: StreamSpec = made,
            ) -> list[bytes]:
                return asyncio.run(served(made, technology, log, headers))

            proven.append(lower_bound(pair, run, runs=runs))
    return proven
