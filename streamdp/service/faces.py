"""Which faces a configuration asks for: what shows the process to people and machines."""

from __future__ import annotations

from collections.abc import Sequence

from streamdp.service.config import Configuration
from streamdp.service.run import Face


def faces_of(configuration: Configuration) -> Sequence[Face]:
    """The faces of one process, in the order in which they are opened; they could be.

    What they read (tokens, certificates) is looked at here, so that a command that only checks a
    configuration refuses what one that runs it would.
    """
    http, faces = configuration.tables.http, list[Face]()
    if http.listen is not None:
        from streamdp.service.http.checks import check_public
        from streamdp.service.http.process import http_face

        check_public(configuration)
        faces.append(http_face)
    if http.operator_listen is not None:
        from streamdp.service.http.checks import check_operator
        from streamdp.service.http.operator import operator_face

        check_operator(configuration)
        faces.append(operator_face)
    return faces
