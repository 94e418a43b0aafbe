"""Whether a process exports by OpenTelemetry, and the face of `run` and `assemble` that does.

`OTEL_EXPORTER_OTLP_ENDPOINT` switches it on. `streamdp.serve.otlp` has the rules.
"""

from __future__ import annotations

import os
import time
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


def exporter() -> type[Telemetry] | None:
    """What exports, if the environment asks for it; refused if it cannot."""
    if not os.environ.get(ENDPOINT) or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    protocol = os.environ.get(_PROTOCOL) or "http/protobuf"
    if protocol != "http/protobuf":
        raise InvalidConfig(_PROTOCOL, "unknown", expected="http/protobuf", got=protocol)
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
    from streamdp.serve.metrics import MetricsPage
    from streamdp.service.listeners import abouts_of, epochs_of_assemblies
    from streamdp.service.metrics import Facts, ProcessMetrics
    from streamdp.service.status import Steps, status_of

    configuration, kind = running.configuration, exporter()
    assert kind is not None, "the face is opened where the environment asks for it"
    about, epochs = abouts_of(configuration), epochs_of_assemblies(configuration)
    steps, started_at = Steps(time.monotonic), time.time()

    def facts() -> Facts:
        now = time.monotonic()
        return Facts(about, status_of(running.view, steps, now=now, started_at=started_at), epochs)

    metrics = ProcessMetrics(facts, most_series=configuration.tables.operations.most_series)
    page = MetricsPage(metrics.families, application=configuration.app)
    telemetry = kind(page, application=configuration.app)

    def observe(step: str, seconds: float) -> None:
        steps.observe(step, seconds)
        telemetry.observe(step, seconds)

    async with telemetry.sending():
        yield observe
