"""NOT PRIVATE: the operator's listener, on loopback, behind a token.

It shows what no public face may: the memory and processor time of the process, which bad records
can move; how many records it quarantined; and (with ``operator_exact``) exact regret and counts of
null slots. Each line says NOT PRIVATE, and that decisions taken on it leave the guarantee.
``/metrics`` has memory and processor time for the operator's own Prometheus, under names that say
NOT PRIVATE too. Off by default.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from streamdp.service.families import counter, gauge
from streamdp.service.http.asgi import Answered, Receive, Refused, Scope
from streamdp.service.http.checks import check_operator
from streamdp.service.http.gate import METRICS, Bucket, Gate
from streamdp.service.http.guard import Limits
from streamdp.service.http.server import bound, serving
from streamdp.service.metrics import CONTENT_TYPE
from streamdp.service.run import Running
from streamdp.service.traffic import Traffic
from streamdp.service.worker import Observe
from streamdp.wire.unprotected import NOT_PRIVATE

_EACH_LINE = f"{NOT_PRIVATE} (decisions taken on this leave the guarantee): "
_REQUESTS_PER_SECOND = 10.0
_HEADERS = ((b"cache-control", b"no-store"), (b"streamdp-tier", NOT_PRIVATE.encode()))
_LIMITS = Limits(most_connections=16, request_seconds=5.0)


@asynccontextmanager
async def operator_face(running: Running) -> AsyncIterator[Observe | None]:
    """Listen for as long as the block lasts."""
    http = running.configuration.tables.http
    assert http.operator_listen is not None
    token = check_operator(running.configuration)
    with bound(http.operator_listen, where="http.operator_listen") as listener:
        clock, traffic = asyncio.get_running_loop().time, Traffic()
        gate = Gate(
            Operator(running).answer,
            token=token,
            bucket=Bucket(_REQUESTS_PER_SECOND, clock),
            traffic=traffic,
            open_paths=frozenset(),
        )
        async with serving(gate, listener, _LIMITS, traffic=traffic):
            host, port = listener.getsockname()[:2]
            running.log.warning("operator_listening", address=f"{host}:{port}")
            yield None


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


class Operator:
    """Answers the operator's requests."""

    def __init__(self, running: Running) -> None:
        self._running = running

    async def answer(self, scope: Scope, receive: Receive) -> Answered:
        """All figures, as text."""
        if scope["method"] not in ("GET", "HEAD"):
            raise Refused(405, "only GET and HEAD are allowed", (b"allow", b"GET, HEAD"))
        if scope["raw_path"] == METRICS:
            return Answered(200, [(b"content-type", CONTENT_TYPE.encode()), *_HEADERS], metrics())
        if scope["raw_path"] != b"/":
            raise Refused(404, "unknown path")
        text = "".join(f"{_EACH_LINE}{line}\n" for line in self._lines())
        headers = [(b"content-type", b"text/plain; charset=utf-8"), *_HEADERS]
        return Answered(200, headers, text.encode())

    def _lines(self) -> list[str]:
        now, most = memory_bytes() >> 10, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        lines = [
            f"process {self._running.worker}: {now} KiB of memory, at most {most} KiB so far;"
            f" {time.process_time():.1f} seconds of processor time"
        ]
        for spec in self._running.specs:
            if spec.exact is None:
                lines.append(f"stream {spec.name}: exact figures are off (http.operator_exact)")
            else:
                lines += [f"stream {spec.name}, {line}" for line in spec.exact.lines()]
            if spec.quarantine is not None:
                lines.append(f"stream {spec.name}, {spec.quarantine.line()}")
        return lines
