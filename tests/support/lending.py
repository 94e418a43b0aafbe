"""A pytest plugin: brokers that all tests of a run share, in however many processes they run.

A broker takes two seconds of processor time to start, some more until its code is compiled, and
one for every two minutes that it stands by. So the process that started the suite lends one of each
kind: it starts it when a test first asks for it, and ends it behind the last test. Where the suite
runs in several processes (pytest-xdist) they ask over a socket: a line with the kind, answered by
a line of JSON, what a test may know of the broker or why it did not start.

A test that kills, stops or configures its broker starts its own (`streamdp.testing.broker`).
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from socketserver import StreamRequestHandler, UnixStreamServer
from threading import Lock, Thread
from typing import Any, Protocol

import pytest

from streamdp.core.errors import StreamdpError, TransportLost
from streamdp.testing.broker import OUTSIDE_BROKER, Borrowed, Broker, Security, own_broker

LENDER = "lender of brokers"
"""Under which name a process of the suite is told where to ask."""

KINDS: Mapping[str, Security | None] = {
    "plain": None,
    "secure": Security(
        {user: f"xyzzy-{user[0]}" for user in ("alice", "bob", "carol", "erin", "gina")}
    ),
}
"""Each kind of broker, and who may use its listener with TLS and SASL by which password."""

CALM = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}
"""Kafka's own times: a broker that is never killed need not be back soon."""

Start = Callable[[Security | None], AbstractContextManager[Broker]]


def started(security: Security | None) -> AbstractContextManager[Broker]:
    """A broker that nobody is going to kill."""
    return own_broker(security=security, settings=CALM)


@dataclass(frozen=True, slots=True)
class Lent:
    """A broker that runs already: its addresses, and who signed its certificate."""

    bootstrap: str
    secure_bootstrap: str
    ca_file: str


class Lender:
    """Starts each kind of broker once, and ends all of them."""

    def __init__(self, start: Start = started) -> None:
        self._start = start
        self._running = ExitStack()
        self._lent: dict[str, Lent] = {}
        self._one_at_a_time = Lock()

    def lend(self, kind: str) -> Lent:
        """The broker of this kind."""
        with self._one_at_a_time:
            if kind not in self._lent:
                broker = self._running.enter_context(self._start(KINDS[kind]))
                self._lent[kind] = Lent(
                    broker.bootstrap, broker.secure_bootstrap, str(broker.ca_file)
                )
            return self._lent[kind]

    def listen(self) -> str:
        """Let other processes ask, too; where."""
        folder = self._running.enter_context(tempfile.TemporaryDirectory(prefix="streamdp-"))
        path = str(Path(folder) / "lender")
        server = self._running.enter_context(_Server(path, self))
        self._running.callback(server.shutdown)
        Thread(target=server.serve_forever, daemon=True).start()
        return path

    def close(self) -> None:
        """End every broker."""
        self._running.close()


class Borrower:
    """Asks the lender in another process."""

    def __init__(self, path: str) -> None:
        self._path = path

    def lend(self, kind: str) -> Lent:
        """The broker of this kind."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(self._path)
            asking.sendall(f"{kind}\n".encode())
            with asking.makefile("rb") as answer:
                said: dict[str, Any] = json.loads(answer.readline())
        if "trouble" in said:
            raise TransportLost(said["trouble"])
        return Lent(**said)


class _Server(UnixStreamServer):
    """Answers one question at a time."""

    def __init__(self, path: str, lender: Lender) -> None:
        super().__init__(path, _Answer)
        self.lender = lender


class _Answer(StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        try:
            said = asdict(self.server.lender.lend(self.rfile.readline().decode().strip()))
        except StreamdpError as trouble:
            said = {"trouble": str(trouble)}
        self.wfile.write(json.dumps(said).encode() + b"\n")


# -- pytest ------------------------------------------------------------------------------------

_key = pytest.StashKey[Lender | Borrower]()


class Node(Protocol):
    """One process of a suite that runs in several, as the process that starts it sees it."""

    workerinput: dict[str, Any]


class Lending:
    """What the process that started the suite does with its lender."""

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        self._path = ""

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Node) -> None:
        """Tell each process of the suite where to ask."""
        self._path = self._path or self._lender.listen()
        node.workerinput[LENDER] = self._path

    def pytest_unconfigure(self) -> None:
        """Every test has ended, in every process."""
        self._lender.close()


def pytest_configure(config: pytest.Config) -> None:
    given: Mapping[str, Any] = getattr(config, "workerinput", {})
    if LENDER in given:
        config.stash[_key] = Borrower(given[LENDER])
        return
    lender = config.stash[_key] = Lender()
    config.pluginmanager.register(Lending(lender), "lending")


def lend(config: pytest.Config, kind: str) -> Lent:
    """The run's broker of this kind."""
    return config.stash[_key].lend(kind)


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Borrowed:
    """The broker that all tests share; whoever wants to kill one starts an `own_broker`."""
    outside = os.environ.get(OUTSIDE_BROKER)
    return Borrowed(outside or lend(request.config, "plain").bootstrap)


@pytest.fixture(scope="session")
def secure_broker(request: pytest.FixtureRequest) -> Lent:
    """The broker with users that all tests share; each file has users of its own."""
    return lend(request.config, "secure")


@pytest.fixture(scope="session")
def fresh_app() -> Callable[[], str]:
    """Gives an application name that nothing on the shared broker has yet."""
    run = secrets.token_hex(3)  # an outside broker may remember earlier runs
    numbers = itertools.count()
    return lambda: f"t{run}n{next(numbers)}"
