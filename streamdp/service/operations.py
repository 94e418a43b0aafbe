"""The operations listener of a process that learns or assembles: a thread with an event loop.

It answers probes and metrics from the newest snapshot of the view, an immutable value that the
learning loop replaces twice a second. It reads nothing else of the learning, so a long batch or a
rebuild delays it by the turns of Python's interpreter alone.

    /healthz     alive while the learning loop takes snapshots
    /readyz      ready once the partitions that the process had at first are taken; says what is not
    /metrics     the process's own metrics
    /v1/status   each partition's state as JSON

NOT PRIVATE: the operator's listener. It is a second one in the same thread, on loopback, behind a
token, off by default. It shows what no public page may: the memory and processor time of the
process, which bad records can move; and how many unusable records it set aside. Each line says NOT
PRIVATE, and that decisions taken on it leave the guarantee. ``/metrics`` there has memory and
processor time, under names that say so too.
These figures are read in the learning loop, between two of its steps: this listener may wait.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from streamdp import __version__
from streamdp.serve.access import METRICS, PROBES, Answer, Bucket, Gate
from streamdp.serve.asgi import JSON, Answered, Receive, Rejected, Scope, encode
from streamdp.serve.credentials import Credentials
from streamdp.serve.families import counter, gauge
from streamdp.serve.listener import Limits, bound, server_of
from streamdp.serve.metrics import CONTENT_TYPE, MetricsPage
from streamdp.serve.traffic import Traffic
from streamdp.service.event_log import EventLog, where_raised
from streamdp.service.life import Observe
from streamdp.service.listeners import (
    abouts_of,
    epochs_of_assemblies,
    operations_credentials,
    operator_credentials,
)
from streamdp.service.metrics import ProcessMetrics, ServiceFacts, is_up
from streamdp.service.run import Running
from streamdp.service.view import ProcessStatus, Reason, Steps, status_of
from streamdp.wire.unprotected import NOT_PRIVATE

SNAPSHOT_SECONDS = 0.5

SILENT_SECONDS = 60.0
"""A learning loop that has taken no snapshot for so many seconds counts as hung."""

LIMITS = Limits(most_connections=100, requests_per_second=100.0, request_seconds=10.0)

_END_SECONDS = 5.0
_EACH_LINE = f"{NOT_PRIVATE} (decisions taken on this leave the guarantee): "
_OF_CONFIGURATION = {Reason.MISMATCH, Reason.CONFIG}
_NO_STORE = (b"cache-control", b"no-store")
_NO_STORE_NOT_PRIVATE = (_NO_STORE, (b"streamdp-tier", NOT_PRIVATE.encode()))
_TEXT = (b"content-type", b"text/plain; charset=utf-8")
_METRICS_TYPE = (b"content-type", CONTENT_TYPE.encode())


class LatestStatus:
    """The newest snapshot: replaced by the learning loop, read by the listener's thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._newest: tuple[float, ProcessStatus | None] = (clock(), None)
        self._begun = False  # whether every partition that it had at first was taken

    def take(self, status: ProcessStatus) -> None:
        """Replace the newest snapshot."""
        self._begun = self._begun or not status.not_begun()
        self._newest = self._clock(), replace(status, begun=self._begun)

    @property
    def process(self) -> ProcessStatus | None:
        """The newest snapshot, if there is one."""
        return self._newest[1]

    @property
    def silent_seconds(self) -> float:
        """Seconds since the newest snapshot."""
        return self._clock() - self._newest[0]

    @property
    def is_alive(self) -> bool:
        """Whether the process can go on without a restart."""
        return self.silent_seconds < SILENT_SECONDS

    def why_not_ready(self) -> list[str]:
        """The reasons why this process is not ready; empty if it is.

        It is ready once it has taken every partition that it was given at first, so a roll-out
        waits for that. A partition that it takes later, or loses with the transport, does not make
        it unready. A partition that halts because another configuration made its state does: such
        a roll-out must stop.
        """
        process = self.process
        if process is None:
            return ["the learning process has not started"]
        missing = [] if process.begun else process.not_begun()
        missing += [
            f"{name} is halted by this configuration"
            for name, part in process.parts
            if part.reason in _OF_CONFIGURATION
        ]
        return missing if self.is_alive else [*missing, "the learning process is silent"]

    def halted(self) -> list[str]:
        """The halted partitions and their reasons; their published actions stay in force."""
        return [
            f"{name}: {part.reason}: {part.message}"
            for name, part in ([] if self.process is None else self.process.parts)
            if part.reason is not None
        ]


class Operations:
    """Answers probes, metrics and the status of the process."""

    def __init__(self, latest: LatestStatus, metrics: MetricsPage) -> None:
        self._latest = latest
        self._metrics = metrics

    async def answer(self, scope: Scope, receive: Receive) -> Answered:
        """Any request."""
        _check_reads(scope)
        match scope["raw_path"]:
            case b"/healthz":
                if self._latest.is_alive:
                    return Answered(200, [_TEXT, _NO_STORE], b"alive\n")
                return Answered(503, [_TEXT, _NO_STORE], b"the learning process is silent\n")
            case b"/readyz":
                missing = self._latest.why_not_ready()
                halted = self._latest.halted()
                away = [] if self._latest.process is None else self._latest.process.away()
                readiness = {"ready": not missing, "why": missing, "away": away, "halted": halted}
                return Answered(503 if missing else 200, [JSON, _NO_STORE], encode(readiness))
            case b"/metrics":
                return Answered(200, [_METRICS_TYPE, _NO_STORE], self._metrics.render())
            case b"/v1/status":
                return Answered(200, [JSON, _NO_STORE], encode(self._status()))
        raise Rejected(404, "unknown path")

    def _status(self) -> dict[str, object]:
        process = self._latest.process
        return {
            "version": __version__,
            "silent_seconds": round(self._latest.silent_seconds, 1),
            "transport_up": None if process is None else is_up(process),
            "streams": [] if process is None else process.streams,
            "assemblies": [] if process is None else process.assemblies,
        }


class Operator:
    """NOT PRIVATE: answers the operator's requests, with what the learning loop says."""

    def __init__(self, running: Running, loop: asyncio.AbstractEventLoop) -> None:
        self._running = running
        self._loop = loop

    async def answer(self, scope: Scope, receive: Receive) -> Answered:
        """All figures, as text."""
        _check_reads(scope)
        if scope["raw_path"] == METRICS:
            return Answered(200, [_METRICS_TYPE, *_NO_STORE_NOT_PRIVATE], metrics())
        if scope["raw_path"] != b"/":
            raise Rejected(404, "unknown path")
        asked = asyncio.run_coroutine_threadsafe(self._lines(), self._loop)
        text = "".join(f"{_EACH_LINE}{line}\n" for line in await asyncio.wrap_future(asked))
        return Answered(200, [_TEXT, *_NO_STORE_NOT_PRIVATE], text.encode())

    async def _lines(self) -> list[str]:
        """The figures at one moment of the learning loop, in which this runs."""
        now, most = memory_bytes() >> 10, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        lines = [
            f"process {self._running.worker}: {now} KiB of memory, at most {most} KiB so far;"
            f" {time.process_time():.1f} seconds of processor time"
        ]
        for spec in self._running.specs:
            set_aside = "no quarantine" if spec.quarantine is None else spec.quarantine.line()
            lines.append(f"stream {spec.name}: {set_aside}")
        return lines


@dataclass(frozen=True, slots=True)
class _Listener:
    """One of the thread's listeners."""

    server: uvicorn.Server
    socket: socket.socket
    credentials: Credentials


@asynccontextmanager
async def operations_face(running: Running) -> AsyncIterator[Observe | None]:
    """Listen for as long as the block lasts. Taken addresses are reported at once."""
    table = running.configuration.tables.operations
    latest, steps, started_at = LatestStatus(), Steps(time.monotonic), time.time()
    traffic = Traffic()
    listeners = []
    with ExitStack() as stack:
        if table.listen is not None:
            credentials = operations_credentials(running.configuration)
            operations = Operations(latest, _page(running, latest, credentials, traffic))
            opened = stack.enter_context(bound(table.listen, where="operations.listen"))
            listeners.append(
                _listener(operations.answer, opened, credentials, traffic, open_paths=PROBES)
            )
            running.log.info("operations_listening", address=_address(opened))
        if table.operator_listen is not None:
            credentials = operator_credentials(running.configuration)
            operator = Operator(running, asyncio.get_running_loop())
            opened = stack.enter_context(
                bound(table.operator_listen, where="operations.operator_listen")
            )
            listeners.append(
                _listener(operator.answer, opened, credentials, traffic, open_paths=frozenset())
            )
            running.log.warning("operator_listening", address=_address(opened))
        thread = threading.Thread(
            target=_listen, args=(listeners, running.log), name="operations", daemon=True
        )
        taking = asyncio.get_running_loop().create_task(
            _take(latest, running, steps, started_at), name="operations"
        )
        thread.start()
        try:
            yield steps.observe
        finally:
            taking.cancel()
            for listener in listeners:
                listener.server.should_exit = True
            await asyncio.to_thread(thread.join, _END_SECONDS)
            with suppress(asyncio.CancelledError):
                await taking


async def _take(latest: LatestStatus, running: Running, steps: Steps, started_at: float) -> None:
    """Take a snapshot again and again, in the learning loop."""
    while True:
        now = time.monotonic()
        latest.take(status_of(running.view, steps, now=now, started_at=started_at))
        await asyncio.sleep(SNAPSHOT_SECONDS)


def _listen(listeners: Sequence[_Listener], log: EventLog) -> None:
    """The thread."""

    async def listen() -> None:
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(one.credentials.watch(log)) for one in listeners]
            served = [
                group.create_task(one.server.serve(sockets=[one.socket])) for one in listeners
            ]
            await asyncio.gather(*served)
            for task in watching:
                task.cancel()

    try:
        asyncio.run(listen())
    except Exception as error:
        log.error("operations_ended", detail=type(error).__name__, where=where_raised(error))


def _page(
    running: Running, latest: LatestStatus, credentials: Credentials, traffic: Traffic
) -> MetricsPage:
    configuration = running.configuration
    about, epochs = abouts_of(configuration), epochs_of_assemblies(configuration)
    families = ProcessMetrics(
        lambda: ServiceFacts(about, latest.process, epochs, credentials.expires_at, traffic),
        most_series=configuration.tables.operations.most_series,
    )
    return MetricsPage(families.families, application=configuration.app)


def _listener(
    answer: Answer,
    opened: socket.socket,
    credentials: Credentials,
    traffic: Traffic,
    *,
    open_paths: frozenset[bytes],
) -> _Listener:
    gate = Gate(
        answer,
        token=lambda: credentials.token,
        bucket=Bucket(LIMITS.requests_per_second, time.perf_counter),
        traffic=traffic,
        open_paths=open_paths,
    )
    server = server_of(gate, credentials=credentials, limits=LIMITS, traffic=traffic)
    return _Listener(server, opened, credentials)


def _address(opened: socket.socket) -> str:
    host, port = opened.getsockname()[:2]
    return f"{host}:{port}"


def _check_reads(scope: Scope) -> None:
    if scope["method"] not in ("GET", "HEAD"):
        raise Rejected(405, "only GET and HEAD are allowed", (b"allow", b"GET, HEAD"))


def memory_bytes() -> int:
    """This process's memory now; if the system does not say it, the highest so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Figures:
    """The families of the operator's own metrics page."""

    def collect(self) -> Iterator[Metric]:
        """The families, in the form that prometheus-client asks for."""
        yield gauge(
            "streamdp_not_private_memory_bytes",
            f"{_EACH_LINE}memory of the learning process.",
            [],
            [((), memory_bytes())],
        )
        yield counter(
            "streamdp_not_private_processor_seconds",
            f"{_EACH_LINE}processor time of the learning process.",
            [],
            [((), time.process_time())],
        )


def metrics() -> bytes:
    """The operator's metrics page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures())
    return generate_latest(registry)
