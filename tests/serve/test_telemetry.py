"""Is exported by OpenTelemetry what is public, and nothing else?

A small OTLP/HTTP receiver takes what the real exporters send, and decodes it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from streamdp.core.errors import InvalidConfig
from streamdp.serve import otlp
from streamdp.serve.asgi import App
from streamdp.serve.otlp import Telemetry
from streamdp.service.batches import joined
from streamdp.service.telemetry import ENDPOINT, exporter
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from tests.serve.test_rank_and_reward import RANK, REWARD, open_shop
from tests.support.asking import asked
from tests.support.running import Place, until
from tests.support.streams import spec
from tests.support.watched_observers import CHANGED, RECORDS, Lines, worked

SECOND = 1_000_000_000


@dataclass
class Collector:
    """What a receiver was sent."""

    bodies: list[tuple[str, bytes]] = field(default_factory=list)
    answers: threading.Event = field(default_factory=threading.Event)

    @property
    def traces(self) -> list[ExportTraceServiceRequest]:
        """The traces, request by request."""
        found = [body for path, body in self.bodies if path == "/v1/traces"]
        return [ExportTraceServiceRequest.FromString(body) for body in found]

    @property
    def spans(self) -> list[Span]:
        """Every span."""
        return [
            span
            for request in self.traces
            for of_resource in request.resource_spans
            for scope in of_resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resources(self) -> list[Resource]:
        """The resource of each request."""
        return [one.resource for request in self.traces for one in request.resource_spans]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A receiver on loopback, to which the environment points."""
    sent = Collector()
    sent.answers.set()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the standard library's own name
            body = self.rfile.read(int(self.headers["content-length"]))
            sent.answers.wait(60)
            sent.bodies.append((self.path, body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")  # all spans of a test in one request
    try:
        yield sent
    finally:
        sent.answers.set()
        server.shutdown()
        thread.join()
        server.server_close()


def attributes(values: Sequence[KeyValue]) -> dict[str, str | int]:
    """By name."""
    return {one.key: one.value.string_value or one.value.int_value for one in values}


async def test_a_step_s_span_begins_on_a_whole_second_and_other_steps_have_none(
    collector: Collector,
) -> None:
    telemetry = Telemetry(application="shop")
    async with telemetry.sending():
        for step, seconds in (("poll", 0.25), ("commit", 1.5), ("apply", 0.5), ("rebuild", 9)):
            telemetry.observe(step, seconds)
    lasted = {
        span.name: span.end_time_unix_nano - span.start_time_unix_nano for span in collector.spans
    }
    assert lasted == {"poll": SECOND // 4, "publish": 3 * SECOND // 2}
    assert not any(span.start_time_unix_nano % SECOND for span in collector.spans)


LOOK_UP = "/v1/streams/home/keys/secret-person/choice?request=secret-request"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_look_ups_are_traced_without_what_was_asked_and_rewards_not_at_all(
    collector: Collector,
) -> None:
    """They join the caller's trace, but take neither its state nor its baggage along."""
    log = MemoryLog()
    log.create("requests", partitions=1)
    log.create("outcomes", partitions=1)
    telemetry = Telemetry(application="shop")
    async with open_shop(MemoryTechnology(log)) as shop, telemetry.sending():
        app: App = telemetry.around(shop.gate)
        answer = await asked(
            app,
            LOOK_UP,
            traceparent=PARENT,
            tracestate="secret=state",
            baggage="user=secret-person",
        )
        assert answer.status == 200
        assert (await asked(app, LOOK_UP.replace("home", "secret"))).status == 404
        keys = b'{"requests":[{"key":"secret-person","request":"secret-request"}]}'
        for target, body, status in (
            ("/v1/streams/home/choices", keys, 200),
            (RANK, b'{"key":"secret-person","request":"secret-request"}', 200),
            (REWARD, b'{"key":"secret-person","request":"secret-request","reward":1}', 202),
        ):
            answer = await asked(app, target, method="POST", body=body)
            assert answer.status == status, answer.body
        for target in ("/metrics", "/v1/status", "/healthz", "/readyz", "/"):
            await asked(app, target)
    spans = sorted((span.name, *attributes(span.attributes).items()) for span in collector.spans)
    code = "http.response.status_code"
    assert spans == [("batch", (code, 200)), ("look_up", (code, 200)), ("look_up", (code, 404))]
    joined = [span for span in collector.spans if span.parent_span_id]
    assert [span.trace_id.hex() for span in joined] == [PARENT[3:35]]
    assert not any(span.events or span.links or span.trace_state for span in collector.spans)
    assert not any(b"secret" in body for _, body in collector.bodies)


# -- non-interference --------------------------------------------------------------------------

PLAIN = b'{"losses":[0.100,0.900,0.300]}'
NEIGHBOURS = {
    "other losses": b'{"losses":[0.900,0.100,0.700]}',
    "out of range": b'{"losses":[-99.0,99.00,1e300]}',
    "not a number": b'{"losses":[NaN  ,0.900,0.300]}',
    "garbage": b"\xff\x00" * (len(PLAIN) // 2),
}


async def learned(content: bytes, telling: Callable[[Telemetry], None]) -> None:
    """The service learns from a log with this content in one record, and exports."""
    log = MemoryLog()
    log.create("home-losses", partitions=1)
    values = [PLAIN] * CHANGED + [content] + [PLAIN] * (RECORDS - CHANGED - 1)
    log.append("home-losses", [(b"fr", value) for value in values])
    telemetry = Telemetry(application="shop")
    telling(telemetry)
    async with telemetry.sending():
        await worked(log, spec(), Lines(), observe=telemetry.observe)


def seen(
    collector: Collector,
    content: bytes,
    telling: Callable[[Telemetry], None] = lambda telemetry: None,
) -> dict[str, Any]:
    """All that the collector was sent, but for the time and random ids."""
    collector.bodies.clear()
    asyncio.run(learned(content, telling))
    spans = [
        (
            span.name,
            span.kind,
            span.end_time_unix_nano - span.start_time_unix_nano,
            tuple(attributes(span.attributes).items()),
            len(span.events),
            len(span.links),
            span.status.code,
        )
        for span in collector.spans
    ]
    return {
        "spans": Counter(spans),
        "resources": [attributes(one.attributes) for one in collector.resources],
        "sizes": [(path, len(body)) for path, body in collector.bodies],
    }


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbouring_inputs_export_the_same(name: str, collector: Collector) -> None:
    """Names, attributes and counts of spans, and the sizes of what is sent."""
    assert len(NEIGHBOURS[name]) == len(PLAIN)
    one, other = seen(collector, PLAIN), seen(collector, NEIGHBOURS[name])
    assert {span[0] for span in one["spans"]} == {"poll", "publish"}
    assert one == other


def test_a_span_for_an_unusable_record_would_be_caught(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant traces the decoding of batches that hold one."""
    telling: list[Telemetry] = []

    def traced(*given: Any, **named: Any) -> Any:
        batch, refused = joined(*given, **named)
        if not np.isfinite(batch.content["losses"]).all():
            telling[-1].observe("poll", 0.0)
        return batch, refused

    monkeypatch.setattr("streamdp.service.protocol.joined", traced)
    one = seen(collector, PLAIN, telling=telling.append)
    other = seen(collector, NEIGHBOURS["garbage"], telling=telling.append)
    assert one["spans"] != other["spans"]


# -- processes -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_process_that_learns_and_one_that_serves_both_export(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until their ends, when what is left is sent. The environment names more of the resource."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    place = Place(tmp_path)
    place.send([(b"fr", PLAIN)] * 20)
    with place.running():
        until(place.ready)
        until(lambda: place.get("/v1/streams/home/keys/fr/action")[0] == 200)
    names = Counter(span.name for span in collector.spans)
    assert names.keys() == {"poll", "publish", "look_up"}
    resources = [attributes(one.attributes) for one in collector.resources]
    assert len({one["service.instance.id"] for one in resources}) == 2
    assert {name for one in resources for name in one} == {
        "deployment.environment.name", "service.instance.id", "service.name",
        "service.namespace", "service.version",
    }  # fmt: skip


async def test_an_end_waits_for_no_collector_that_is_silent(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver reads and never answers; the exporter would wait ten seconds, and try again."""
    monkeypatch.setattr(otlp, "_END_SECONDS", 0.05)
    collector.answers.clear()

    async with asyncio.timeout(9):
        telemetry = Telemetry(application="shop")
        async with telemetry.sending():
            telemetry.observe("poll", 0.1)
    assert not collector.bodies


def test_without_the_extra_the_variable_is_refused_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:4318")
    monkeypatch.delitem(sys.modules, "streamdp.serve.otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidConfig, match=r'pip install "streamdp\[otel\]"') as refusal:
        exporter()
    assert str(refusal.value).startswith(f"{ENDPOINT}: needs an extra")
    for switched_off in ({ENDPOINT: ""}, {"OTEL_SDK_DISABLED": "true"}):
        with pytest.MonkeyPatch.context() as change:
            for name, value in switched_off.items():
                change.setenv(name, value)
            assert exporter() is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "expected http/protobuf, got grpc"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "expected values that OpenTelemetry specifies"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1", "no metrics by OTLP any more; expected the variable"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "", "a collector that scrapes /metrics"),
    ],
)
def test_a_variable_that_cannot_be_used_is_refused_by_name(
    name: str, value: str, said: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)

    def export() -> None:
        made = exporter()
        assert made is not None
        made(application="shop")

    with pytest.raises(InvalidConfig, match=f"OTEL_.*{said}"):
        export()
