"""Ports of the loopback interface that nobody listens on just now."""

from __future__ import annotations

import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """So many different ports."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def free_address(usual: int = 0) -> str:
    """An address to listen at: the usual port if it is free, otherwise any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, usual))
        except OSError:
            return f"{LOOPBACK}:{free_ports(1)[0]}"
        return f"{LOOPBACK}:{probe.getsockname()[1]}"
