"""The faces that a configuration asks for. A face shows the process to people or machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from streamdp.service.config import Configuration
    from streamdp.service.run import Face, Running
    from streamdp.service.worker import Observe


def faces_of(configuration: Configuration) -> Sequence[Face]:
    """The faces of one process, in the order in which they are opened.

    This reads their tokens and certificates, so a command that only checks a configuration refuses
    what `run` would refuse. It loads no server.
    """
    faces: list[Face] = []
    http = configuration.tables.http
    if http.listen is not None:
        from streamdp.service.http.checks import check_public

        check_public(configuration)
        faces.append(_public)
    if http.operator_listen is not None:
        from streamdp.service.http.checks import check_apart, check_operator

        check_operator(configuration)
        if http.listen is not None:
            check_apart(http.listen, http.operator_listen)
        faces.append(_operator)
    return faces


def _public(running: Running) -> AbstractAsyncContextManager[Observe | None]:
    from streamdp.service.http.process import http_face

    return http_face(running)


def _operator(running: Running) -> AbstractAsyncContextManager[Observe | None]:
    from streamdp.service.http.operator import operator_face

    return operator_face(running)
