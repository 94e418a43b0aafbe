"""One process of the service, assembled: configuration → transport, loop, log, signals, faces.

- SIGTERM and SIGINT drain: no more records are read, what was drawn is published, then it ends. A
  second one stops at once, which is safe: it only costs a rebuild.
- SIGHUP rereads the configuration and takes over the streams' modes, nothing else.
- *Faces* are what shows the process to people and machines (metrics, HTTP). A face is an async
  context: it is entered before the transport is joined, so that it can say "starting", and left
  after the drain. It gets the view of what was published, never the engine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from streamdp import __version__
from streamdp.core.errors import InvalidConfig
from streamdp.ports import Namesakes, Technology
from streamdp.service.allocation import set_up_memory
from streamdp.service.config import Configuration, Seeds
from streamdp.service.crowd_reader import CrowdReader
from streamdp.service.ledgers import Ledgers
from streamdp.service.logs import set_up, watch_loop
from streamdp.service.loop import Service
from streamdp.service.quarantine import quarantining
from streamdp.service.spec import StreamSpec
from streamdp.service.view import Reason, View
from streamdp.service.worker import EventLog, Observe

T = TypeVar("T")


class Work(Enum):
    """What a process does of its configuration."""

    LEARN = "learn"
    ASSEMBLE = "assemble"
    BOTH = "both"  # where one process alone may have the embedded log


class TransportRefuses(InvalidConfig):
    """What the transport found: missing topics, credentials, rights. The file itself is right."""


@dataclass(frozen=True, slots=True)
class Running:
    """What a face may know of the process it shows."""

    configuration: Configuration
    specs: Sequence[StreamSpec]
    technology: Technology
    view: View
    log: EventLog
    worker: str
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    draining: asyncio.Event = field(default_factory=asyncio.Event)


Face = Callable[[Running], AbstractAsyncContextManager[Observe | None]]
"""Shows a process; the context gives what wants to know how long public steps take, or None."""


async def run_service(
    configuration: Configuration,
    *,
    technology: Technology,
    log: EventLog,
    faces: Sequence[Face] = (),
    seeds: Seeds = Seeds.REFUSED,
    work: Work = Work.LEARN,
) -> Reason | None:
    """Run until a signal, a fatal error or, if so configured, a halted partition.

    Returns why a halted partition ended it, if one did.
    """
    specs = configuration.specs(seeds=seeds) if work is not Work.ASSEMBLE else []
    assemblies = configuration.assemblies() if work is not Work.LEARN else []
    view = View(specs, assemblies=[assembly.name for assembly in assemblies])
    lasting = configuration.tables.service.worker
    worker = lasting or f"{socket.gethostname()}:{os.getpid()}"
    running = Running(configuration, specs, technology, view, log, worker)
    _announce(running)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(
            quarantining([spec.quarantine for spec in specs], technology)
        )
        observers = [await stack.enter_async_context(face(running)) for face in faces]
        settings = configuration.loop_settings()
        reader = await stack.enter_async_context(
            CrowdReader(
                specs,
                technology.publications,
                view=view,
                log=log,
                settings=settings,
                begin=running.joined.wait,
            )
        )
        service = Service(
            [*specs, *assemblies],
            technology.transport(
                worker=worker,
                namesakes=Namesakes.REPLACED if lasting else Namesakes.STRANGERS,
            ),
            past=Ledgers(configuration, technology).past,
            view=view,
            log=log,
            settings=settings,
            modes={name: configuration.modes()[name] for name in view.streams},
            observe=_all_of([observer for observer in observers if observer is not None]),
            snapshots_of=reader.newest,
        )
        with _Signals(running, service):
            try:
                return await service.run(ready=running.joined.set)
            except InvalidConfig as error:
                raise TransportRefuses(str(error)) from error


def run(work: Callable[[], Awaitable[T]], *, log: EventLog) -> T:
    """Run on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop

    set_up_memory()

    async def watched() -> T:
        watch_loop(asyncio.get_running_loop(), log)
        return await work()

    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(watched())


def log_of(configuration: Configuration) -> EventLog:
    """The process's log, as the configuration wants it."""
    table = configuration.tables.log
    return set_up(level=table.level, style=table.format)


def piped_by_default(configuration: Configuration) -> bool:
    """Whether the log is JSON only because standard error is no terminal."""
    return configuration.tables.log.format == "auto" and not sys.stderr.isatty()


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


def _all_of(observers: Sequence[Observe]) -> Observe:
    """Tell every observer."""

    def observe(step: str, seconds: float) -> None:
        for observer in observers:
            observer(step, seconds)

    return observe


class _Signals:
    """What signals do to a running service, for as long as the block lasts."""

    def __init__(self, running: Running, service: Service) -> None:
        self._running = running
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop, number)
        self._loop.add_signal_handler(signal.SIGHUP, self._reread)

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._loop.remove_signal_handler(number)

    def _stop(self, number: signal.Signals) -> None:
        """Drain; the second time stop at once."""
        self._running.log.info("signal", name=number.name)
        if self._running.draining.is_set() and self._task is not None:
            self._task.cancel()
        self._running.draining.set()
        self._service.drain()

    def _reread(self) -> None:
        """Take over the modes of the file as it is now."""
        log, before = self._running.log, self._running.configuration
        try:
            after = Configuration.load(before.path)
        except InvalidConfig as error:
            log.error("configuration_rejected", detail=str(error))
            return
        if before.differs_beyond_modes(after):
            log.warning("configuration_needs_restart")
        known = self._running.view.streams
        self._service.set_modes({k: mode for k, mode in after.modes().items() if k in known})
