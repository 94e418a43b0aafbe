"""OpenTelemetry: traces of public steps, and the public metrics, by OTLP over HTTP. An extra.

1. Traced are polls, publications and look-ups. Applying, rebuilding and the reading of outcomes are
   not: their times depend on content. Nor are rank and reward: that there are rewards is secret.
2. A step's span begins on a whole second. The exact beginnings of two polls would say how long the
   batch between them took to apply.
3. A step has no attributes; a look-up has the status of its answer. There is no address, key,
   stream, exception, baggage or trace state: nothing here records what a caller or a record says.
   Of a caller's headers only ``traceparent`` is read, so that a look-up joins its caller's trace.
4. Metrics are the families of the process's own page, when the clock says so; none of the runtime,
   whose memory and processor time depend on content. Resource attributes are ours and those of the
   environment; no detector looks at the process.
5. Nothing waits for the collector. What it does not take is dropped; the log says ``library``.

The environment configures it, as OpenTelemetry specifies: endpoint, headers, certificates, sampler.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from queue import SimpleQueue
from typing import cast

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client.core import Metric as Family

from streamdp import __version__
from streamdp.core.errors import InvalidConfig
from streamdp.serve.asgi import App, Message, Receive, Scope, Send, header
from streamdp.serve.metrics import MetricsPage
from streamdp.serve.traffic import RequestKind, kind_of

TRACED = {"poll": "poll", "commit": "publish"}
"""The span of each public step; no other step has one."""

_NAME = "streamdp"
_SECOND = 1_000_000_000  # in nanoseconds
_INTERVAL_MS = "60000"  # OpenTelemetry's default
_END_SECONDS = 5.0  # for what is left to be sent
_ALONE = Context()  # a step has no parent
_CUMULATIVE = AggregationTemporality.CUMULATIVE


class Telemetry:
    """Sends one process's spans and metrics to the collector that the environment names."""

    def __init__(self, page: MetricsPage, *, application: str) -> None:
        own = {
            "service.name": _NAME,
            "service.namespace": application,
            "service.version": __version__,
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        }
        self._page = page
        self._outbox: SimpleQueue[MetricsData | None] = SimpleQueue()
        try:
            self._resource = Resource(own).merge(OTELResourceDetector().detect())
            self._interval = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", _INTERVAL_MS))
            self._metrics = OTLPMetricExporter()
            self._spans = TracerProvider(resource=self._resource, shutdown_on_exit=False)
            self._spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except ValueError as error:
            raise InvalidConfig(
                "environment: OTEL_…",
                "cannot be used",
                expected="values that OpenTelemetry specifies",
                got=str(error),
            ) from None
        self._tracer = self._spans.get_tracer(_NAME, __version__)
        self._since = _whole_second()

    def observe(self, step: str, seconds: float) -> None:
        """Trace a public step that has just ended."""
        name = TRACED.get(step)
        if name is not None:
            begun = _whole_second(ago=seconds)
            span = self._tracer.start_span(name, context=_ALONE, start_time=begun)
            span.end(begun + int(seconds * _SECOND))

    def around(self, app: App) -> App:
        """The same application, with its look-ups traced."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            kind = kind_of(scope["method"], scope["raw_path"])
            if kind is RequestKind.OTHER:
                await app(scope, receive, send)
                return
            begun, clock, status = time.time_ns(), time.perf_counter_ns(), 0

            async def noting(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            await app(scope, receive, noting)
            span = self._tracer.start_span(
                kind.value,
                context=_of_caller(scope),
                kind=SpanKind.SERVER,
                attributes={"http.response.status_code": status},
                start_time=begun,
            )
            span.end(begun + time.perf_counter_ns() - clock)

        return traced

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Send for as long as the block lasts, and what is left at its end, within seconds.

        Families are read in the event loop, which owns what they show, and sent by a thread.
        """
        thread = threading.Thread(target=self._send, name="telemetry", daemon=True)
        thread.start()
        reading = asyncio.get_running_loop().create_task(self._read_often(), name="telemetry")
        try:
            yield
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            self._read()
            self._outbox.put(None)
            await asyncio.to_thread(thread.join, _END_SECONDS)

    async def _read_often(self) -> None:
        while True:
            await asyncio.sleep(self._interval / 1000)
            self._read()

    def _read(self) -> None:
        """Read the page, unless an earlier reading still waits to be sent."""
        if self._outbox.empty():
            metrics = list(measured(self._page, since=self._since, now=_whole_second()))
            scope = ScopeMetrics(InstrumentationScope(_NAME, __version__), metrics, "")
            self._outbox.put(MetricsData([ResourceMetrics(self._resource, [scope], "")]))

    def _send(self) -> None:
        """The thread."""
        for reading in iter(self._outbox.get, None):
            self._metrics.export(reading)
        self._metrics.shutdown()
        self._spans.shutdown()


def measured(page: MetricsPage, *, since: int, now: int) -> Iterator[Metric]:
    """The families of a page with their names; a histogram's buckets are no longer cumulative."""
    for family in page.collect():
        data: Gauge | Sum | Histogram
        if family.type == "histogram":
            data = Histogram(list(_distributions(family, since, now)), _CUMULATIVE)
        else:
            points = [
                NumberDataPoint(sample.labels, since, now, float(sample.value))
                for sample in family.samples
            ]
            counts = family.type == "counter"
            data = Sum(points, _CUMULATIVE, is_monotonic=True) if counts else Gauge(points)
        if data.data_points:
            yield Metric(family.name, family.documentation, "", data)


def _distributions(family: Family, since: int, now: int) -> Iterator[HistogramDataPoint]:
    """A point for each combination of labels."""
    found: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in family.samples:
        labels = dict(sample.labels)
        bound = labels.pop("le", sample.name.removeprefix(family.name))
        found.setdefault(tuple(labels.items()), {})[bound] = sample.value
    for values, known in found.items():
        total, count = known.pop("_sum"), int(known.pop("_count"))
        upto = [0, *map(int, known.values())]
        yield HistogramDataPoint(
            attributes=dict(values),
            start_time_unix_nano=since,
            time_unix_nano=now,
            count=count,
            sum=total,
            bucket_counts=[high - low for low, high in pairwise(upto)],
            explicit_bounds=[float(bound) for bound in known if bound != "+Inf"],
            min=_UNKNOWN,
            max=_UNKNOWN,
        )


_UNKNOWN = cast(float, None)  # the encoder leaves it out


def _of_caller(scope: Scope) -> Context:
    """The caller's span, if it names one."""
    parent = header(scope, b"traceparent")
    carrier: Mapping[str, str] = {"traceparent": (parent or b"").decode("latin-1")}
    return TraceContextTextMapPropagator().extract(carrier, context=_ALONE)


def _whole_second(*, ago: float = 0.0) -> int:
    """A second since 1970, in nanoseconds."""
    return int(time.time() - ago) * _SECOND
