"""Ports of the loopback interface that nobody listens on just now."""

from __future__ import annotations

import secrets
import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"

_PORTS = range(10_000, 32_768)
"""Systems give none of these to a connection that goes out, which would take it before a server."""


def free_ports(count: int) -> list[int]:
    """So many different ports."""
    with ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            probe, port = stack.enter_context(socket.socket()), secrets.choice(_PORTS)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            found.append(port)
        return found


def free_address(usual: int = 0) -> str:
    """An address to listen at: the usual port if it is free, otherwise any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, usual or free_ports(1)[0]))
        except OSError:
            return f"{LOOPBACK}:{free_ports(1)[0]}"
        return f"{LOOPBACK}:{probe.getsockname()[1]}"
