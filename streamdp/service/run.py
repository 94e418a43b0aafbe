"""One process of the service: configuration, transport, loop, log, signals and faces together.

- SIGTERM and SIGINT drain: no more records are read, what was drawn is published, then the process
  ends. A second signal stops it at once, which is safe: it only costs a rebuild. So it is until all
  faces have closed, and a signal after that changes nothing: the exit code says how the work ended.
- *Faces* show the process to people and machines (metrics, HTTP). A face is an async context: it is
  entered before the transport is joined, so that it can say "starting", and left after the drain.
  It gets the view of what was published, never the engine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from streamdp import __version__
from streamdp.core.errors import InvalidConfig
from streamdp.ports import StaticMembership, Technology
from streamdp.service.config import Configuration, Seeds
from streamdp.service.event_log import EventLog
from streamdp.service.ledgers import Ledgers
from streamdp.service.life import Observe
from streamdp.service.loop import Service
from streamdp.service.quarantine import quarantining
from streamdp.service.sources import asking
from streamdp.service.spec import StreamSpec
from streamdp.service.view import Reason, View


class Duties(Enum):
    """What a process does of its configuration."""

    LEARN = "learn"
    ASSEMBLE = "assemble"
    BOTH = "both"  # for the embedded log, which only one process may open


class TransportRefuses(InvalidConfig):
    """An error that the transport found: topics, credentials, rights. The file itself is valid."""


@dataclass(frozen=True, slots=True)
class Running:
    """What a face may know of the process that it shows."""

    configuration: Configuration
    specs: Sequence[StreamSpec]
    technology: Technology
    view: View
    log: EventLog
    worker: str
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    draining: asyncio.Event = field(default_factory=asyncio.Event)


Observer = Callable[[Running], AbstractAsyncContextManager[Observe | None]]
"""Shows a process; the context yields a receiver of durations of public steps, or None."""


async def run_service(
    configuration: Configuration,
    *,
    technology: Technology,
    log: EventLog,
    observers: Sequence[Observer] = (),
    seeds: Seeds = Seeds.REFUSED,
    work: Duties = Duties.LEARN,
) -> Reason | None:
    """Run until a signal, a fatal error or, if so configured, a halted partition.

    Returns the reason if a halted partition ended it.
    """
    specs = configuration.specs(seeds=seeds) if work is not Duties.ASSEMBLE else []
    assemblies = configuration.assemblies() if work is not Duties.LEARN else []
    view = View(specs, assemblies=[assembly.name for assembly in assemblies])
    lasting = configuration.tables.service.worker
    worker = lasting or f"{socket.gethostname()}:{os.getpid()}"
    running = Running(configuration, specs, technology, view, log, worker)
    _announce(running)
    async with AsyncExitStack() as stack:
        signals = stack.enter_context(_Signals(running))
        await stack.enter_async_context(
            quarantining([spec.quarantine for spec in specs], technology)
        )
        formats = [spec.format for spec in specs]
        contents = [of for assembly in assemblies for of in assembly.contents]
        view.sources = [s for of in (*formats, *contents) if (s := of.source) is not None]
        await stack.enter_async_context(asking(view.sources, log))
        listening = [await stack.enter_async_context(observer(running)) for observer in observers]
        settings = configuration.loop_settings()
        service = Service(
            [*specs, *assemblies],
            technology.transport(
                worker=worker,
                static_membership=StaticMembership.REPLACED
                if lasting
                else StaticMembership.STRANGERS,
            ),
            by_others=Ledgers(configuration, technology, log=log).by_others,
            view=view,
            log=log,
            settings=settings,
            observe=_all(list(filter(None, listening))),
        )
        signals.listen(service)
        try:
            return await service.run(ready=running.joined.set)
        except InvalidConfig as error:
            raise TransportRefuses(str(error)) from error


def _all(receivers: Sequence[Observe]) -> Observe:
    """Pass a duration on to every face that shows durations."""

    def observe(step: str, seconds: float) -> None:
        for receiver in receivers:
            receiver(step, seconds)

    return observe


def _announce(running: Running) -> None:
    configuration, log = running.configuration, running.log
    log.info(
        "starting",
        version=__version__,
        app=configuration.app,
        streams=[spec.name for spec in running.specs],
        assemblies=list(running.view.assemblies),
        transport=configuration.tables.transport.kind,
        worker=running.worker,
    )
    for spec in running.specs:
        if spec.randomness.seeded:
            log.warning("insecure_seed", stream=spec.name)


class _Signals:
    """Handles signals to a service from `listen` on, until the block ends."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._before: dict[signal.Signals, Any] = {}  # the handlers of the program around it

    def __enter__(self) -> Self:
        return self

    def listen(self, service: Service) -> None:
        """Handle signals to this service."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.getsignal(number)
            self._loop.add_signal_handler(number, self._stop, service, number)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            self._loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def _stop(self, service: Service, number: signal.Signals) -> None:
        """Drain; on the second signal stop at once."""
        self._running.log.info("signal", name=number.name)
        if self._running.draining.is_set() and self._task is not None:
            self._task.cancel()
        self._running.draining.set()
        service.drain()
