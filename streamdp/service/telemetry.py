"""Whether a process exports by OpenTelemetry, and the face of `run` and `assemble` that does.

`OTEL_EXPORTER_OTLP_ENDPOINT` switches it on. `streamdp.serve.otlp` has the rules.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from streamdp.core.errors import InvalidConfig

if TYPE_CHECKING:
    from streamdp.serve.otlp import Telemetry
    from streamdp.service.life import Observe
    from streamdp.service.run import Running

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
_OF_METRICS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_METRIC_EXPORT_INTERVAL")
"""Variables that ask for metrics by OTLP: a collector scrapes them instead."""


def exporter() -> type[Telemetry] | None:
    """What exports, if the environment asks for it; refused if it cannot."""
    if not os.environ.get(ENDPOINT) or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    protocol = os.environ.get(_PROTOCOL) or "http/protobuf"
    if protocol != "http/protobuf":
        raise InvalidConfig(_PROTOCOL, "unknown", expected="http/protobuf", got=protocol)
    for name in _OF_METRICS:
        if name in os.environ:
            expected = "the variable unset, and a collector that scrapes /metrics"
            raise InvalidConfig(name, "no metrics by OTLP any more", expected=expected, got="set")
    try:
        from streamdp.serve.otlp import Telemetry
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise InvalidConfig(
            ENDPOINT,
            "needs an extra",
            expected='pip install "streamdp[otel]", or the variable unset',
            got=f"no {error.name}",
        ) from None
    return Telemetry


@asynccontextmanager
async def telemetry_face(running: Running) -> AsyncIterator[Observe | None]:
    """Export for as long as the block lasts."""
    kind = exporter()
    assert kind is not None, "the face is opened where the environment asks for it"
    telemetry = kind(application=running.configuration.app)
    async with telemetry.sending():
        yield telemetry.observe
