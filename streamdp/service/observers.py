"""The faces that a configuration asks for. A face shows the process to people or machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamdp.service.telemetry import exporter, telemetry_face

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from streamdp.service.config import Configuration
    from streamdp.service.life import Observe
    from streamdp.service.run import Observer, Running


def observers_of(configuration: Configuration) -> Sequence[Observer]:
    """The faces of one process, in the order in which they are opened.

    This reads the tokens and certificates of all listeners, so a command that only checks a
    configuration refuses what `run` or `serve` would refuse. It loads no server.
    """
    table = configuration.tables.operations
    faces: list[Observer] = []
    if (configuration.tables.http.listen, table.listen, table.operator_listen) != (None,) * 3:
        from streamdp.service.listeners import check_listeners

        with configuration.placed():
            check_listeners(configuration)
    if table.listen or table.operator_listen:
        faces.append(_operations)
    if exporter() is not None:
        faces.append(telemetry_face)
    return faces


def _operations(running: Running) -> AbstractAsyncContextManager[Observe | None]:
    from streamdp.service.operations import operations_face

    return operations_face(running)
