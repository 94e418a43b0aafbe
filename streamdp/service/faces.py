"""Which faces a configuration asks for: what shows the process to people and machines."""

from __future__ import annotations

from collections.abc import Sequence

from streamdp.service.config import Configuration
from streamdp.service.run import Face


def faces_of(configuration: Configuration) -> Sequence[Face]:
    """The faces of one process, in the order in which they are opened."""
    return ()
