"""OpenTelemetry: traces of public steps, by OTLP over HTTP. An extra.

1. Traced are polls, publications and look-ups. Applying, rebuilding and the reading of outcomes are
   not: their times depend on content. Nor are rank and reward: that there are rewards is secret.
2. A step's span begins on a whole second. The exact beginnings of two polls would say how long the
   batch between them took to apply.
3. A step has no attributes; a look-up has the status of its answer. There is no address, key,
   stream, exception, baggage or trace state: nothing here records what a caller or a record says.
   Of a caller's headers only ``traceparent`` is read, so that a look-up joins its caller's trace.
4. Resource attributes are ours and those of the environment; no detector looks at the process.
5. Nothing waits for the collector. What it does not take is dropped; the log says ``library``.

The environment configures it, as OpenTelemetry specifies: endpoint, headers, certificates, sampler.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from streamdp import __version__
from streamdp.core.errors import InvalidConfig
from streamdp.serve.asgi import App, Message, Receive, Scope, Send, header
from streamdp.serve.traffic import RequestKind, kind_of

TRACED = {"poll": "poll", "commit": "publish"}
"""The span of each public step; no other step has one."""

_NAME = "streamdp"
_SECOND = 1_000_000_000  # in nanoseconds
_END_SECONDS = 5.0  # for what is left to be sent
_ALONE = Context()  # a step has no parent


class Telemetry:
    """Sends one process's spans to the collector that the environment names."""

    def __init__(self, *, application: str) -> None:
        own = {
            "service.name": _NAME,
            "service.namespace": application,
            "service.version": __version__,
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        }
        try:
            resource = Resource(own).merge(OTELResourceDetector().detect())
            self._spans = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except ValueError as error:
            raise InvalidConfig(
                "environment: OTEL_…",
                "cannot be used",
                expected="values that OpenTelemetry specifies",
                got=str(error),
            ) from None
        self._tracer = self._spans.get_tracer(_NAME, __version__)

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
        """Send for as long as the block lasts, and what is left at its end, within seconds."""
        try:
            yield
        finally:
            end = threading.Thread(target=self._spans.shutdown, name="telemetry", daemon=True)
            end.start()
            await asyncio.to_thread(end.join, _END_SECONDS)


def _of_caller(scope: Scope) -> Context:
    """The caller's span, if it names one."""
    parent = header(scope, b"traceparent")
    carrier: Mapping[str, str] = {"traceparent": (parent or b"").decode("latin-1")}
    return TraceContextTextMapPropagator().extract(carrier, context=_ALONE)


def _whole_second(*, ago: float) -> int:
    """A second since 1970, in nanoseconds."""
    return int(time.time() - ago) * _SECOND
