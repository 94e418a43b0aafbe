"""Are probes and metrics answered whatever other clients do with their connections?"""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import uvloop

from streamdp.service.http import door, guard
from streamdp.service.http.checks import tls_of
from streamdp.service.http.door import fitted
from streamdp.service.http.guard import Limits
from streamdp.service.http.server import bound, serving
from streamdp.service.traffic import Refusal, RequestKind, Traffic
from streamdp.testing.certificates import write_certificates
from tests.support.asking import Face, raw
from tests.support.processes import MAIN
from tests.support.publishing import Topic, action, release
from tests.support.running import Place, until

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
SMALL = Limits(most_connections=3, request_seconds=60, reserved=2)
Address = tuple[str, int]


def request(path: str, *, close: str = "") -> bytes:
    """A request, after which the connection is kept unless it says otherwise."""
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{close}\r\n".encode()


@asynccontextmanager
async def listening(
    limits: Limits, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Address, Traffic]]:
    """A listener with one key, and its counts."""
    face = Face(Topic([action(release(b"fr", 0))]), Topic(), clock=lambda: 0.0)
    traffic = face.knowledge.traffic
    async with face.knowledge.following():
        await face.knowledge.cache.ready()
        with bound("127.0.0.1:0", where="test") as listener:
            host, port = listener.getsockname()
            async with serving(face.gate, listener, limits, traffic=traffic, tls=tls):
                yield (host, port), traffic


@asynccontextmanager
async def connection(
    address: Address, sent: bytes = b"", tls: ssl.SSLContext | None = None
) -> AsyncIterator[asyncio.StreamReader]:
    """A client that keeps its connection."""
    name = None if tls is None else "localhost"
    reader, writer = await asyncio.open_connection(*address, ssl=tls, server_hostname=name)
    writer.write(sent)
    try:
        if sent:
            await reader.readuntil(b"\r\n\r\n")
        yield reader
    finally:
        writer.close()


async def holds(what: Callable[[], bool]) -> None:
    """Wait for what the other side of a socket brings about."""
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.01)


def on(loop: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run on one of the event loops."""

    async def run() -> None:
        await work()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())


@pytest.mark.parametrize("loop", LOOPS)
def test_are_probes_answered_while_polite_clients_hold_every_connection(loop: str) -> None:
    """Probes and metrics have places of their own; a look-up is refused in so many words."""

    async def ask() -> None:
        async with AsyncExitStack() as stack:
            address, traffic = await stack.enter_async_context(listening(SMALL))
            for _ in range(SMALL.most_connections):
                held = connection(address, request("/v1/streams/home/keys/fr/action"))
                await stack.enter_async_context(held)
            for path in ("/healthz", "/readyz", "/metrics"):
                answer = await raw(address, request(path))  # it closes, so this ends
                assert answer.startswith(b"HTTP/1.1 200"), path
                assert b"connection: close" in answer.lower()
            refused = await raw(address, request("/v1/streams/home/keys/fr/action"))
            assert refused.startswith(b"HTTP/1.1 503")
            assert traffic.refused[Refusal.FULL] == 1
            await holds(lambda: traffic.open == SMALL.most_connections)

    on(loop, ask)


@pytest.mark.parametrize("loop", LOOPS)
def test_does_a_probe_take_the_place_of_who_asks_for_nothing(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that are silent cannot fill the reserved places either."""
    monkeypatch.setattr(guard, "RESERVED_SECONDS", 60.0)

    async def ask() -> None:
        async with AsyncExitStack() as stack:
            address, traffic = await stack.enter_async_context(listening(SMALL))
            silent = [await stack.enter_async_context(connection(address)) for _ in range(5)]
            await holds(lambda: traffic.open == 5)
            answer = await raw(address, request("/healthz"))
            assert answer.startswith(b"HTTP/1.1 200")
            assert await silent[3].read() == b""  # the oldest reserved one had to go
            assert traffic.refused[Refusal.FULL] == 1
            assert not silent[0].at_eof()

    on(loop, ask)


def test_is_a_silent_reserved_connection_cut_off_sooner() -> None:
    """After a second, where others have a minute."""

    async def ask() -> None:
        async with AsyncExitStack() as stack:
            address, traffic = await stack.enter_async_context(listening(SMALL))
            for _ in range(4):
                reader = await stack.enter_async_context(connection(address))
            async with asyncio.timeout(30):
                assert await reader.read() == b""
            assert traffic.refused[Refusal.SLOW] == 1

    asyncio.run(ask())


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_do_handshakes_count_and_end_in_time(loop: str, tmp_path: Path) -> None:
    """Who connects to TLS and says nothing has a place, for a short time; a probe gets past."""
    write_certificates(tmp_path)
    server = tls_of(tmp_path / "server.pem", tmp_path / "server.pem")
    client = ssl.create_default_context(cafile=tmp_path / "ca.pem")

    async def ask() -> None:
        async with AsyncExitStack() as stack:
            address, traffic = await stack.enter_async_context(listening(SMALL, server))
            silent = [await stack.enter_async_context(connection(address)) for _ in range(5)]
            await holds(lambda: traffic.open == 5)
            probe = connection(address, request("/healthz"), client)
            async with probe as answered:  # its head has come
                assert b"alive" in await answered.read()
            for reader in silent:
                async with asyncio.timeout(30):
                    assert await reader.read() == b""
            await holds(lambda: traffic.open == 0)
            assert traffic.refused[Refusal.FULL] <= 1  # none if the probe came after their time
            assert sum(traffic.refused.values()) == 5
            async with connection(address, request("/healthz"), client):
                assert traffic.open == 1

    on(loop, ask)


def test_is_plain_http_on_a_tls_listener_counted_and_let_go(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    server = tls_of(tmp_path / "server.pem", tmp_path / "server.pem")

    async def ask() -> None:
        async with listening(SMALL, server) as (address, traffic):
            for _ in range(5):
                assert b"200" not in await raw(address, request("/healthz"))
            await holds(lambda: traffic.open == 0)
            assert traffic.refused[Refusal.HANDSHAKE] == 5

    asyncio.run(ask())


def test_are_a_few_scrapes_answered_beyond_the_rate() -> None:
    async def ask() -> None:
        face = Face(Topic(), Topic(), rate=1.0, clock=lambda: 0.0)
        look_up = "/v1/streams/home/keys/fr/action"
        assert [(await face.ask(look_up)).status for _ in range(2)] == [200, 429]
        scrapes = [(await face.ask("/metrics")).status for _ in range(11)]
        assert scrapes == [200] * 10 + [429]
        assert (await face.ask(look_up)).status == 429

    asyncio.run(ask())


def test_are_durations_told_by_what_was_asked_for() -> None:
    """Every reading of this clock is a second later than the one before."""
    asked = [("GET", "keys/fr/action"), ("POST", "actions"), ("GET", "keys"), ("GET", "actions")]
    of_feedback = [("GET", "keys/fr/choice?request=r"), ("POST", "choices")]

    async def ask() -> None:
        ticks = count()
        face = Face(Topic(), Topic(), clock=lambda: float(next(ticks)))
        for method, path in (*asked, *of_feedback):
            body = json.dumps({"keys": []}).encode()
            await face.ask(f"/v1/streams/home/{path}", method=method, body=body)
        durations = face.knowledge.traffic.durations
        assert {
            kind: sum(histogram.counts) for kind, histogram in durations.items()
        } == dict.fromkeys(RequestKind, 2)
        assert all(histogram.seconds > 0 for histogram in durations.values())

    asyncio.run(ask())


# -- files -------------------------------------------------------------------------------------

FITTED = """
import resource, sys
soft, hard = map(int, sys.argv[1:3])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from streamdp.service.http.door import fitted
from streamdp.service.http.guard import Limits
most = fitted(Limits(1000, 1.0, 16)).most_connections
print(most, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "most", "left"),
    [(300, 4000, 1000, 1272), (300, 600, 328, 600), (2000, 4000, 1000, 2000)],
)
def test_are_connections_fewer_than_files(soft: int, hard: int, most: int, left: int) -> None:
    """The soft limit is raised as far as it may be, and connections leave files for the rest."""
    asked = [sys.executable, "-c", FITTED, str(soft), str(hard)]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(most), str(left)]


def test_is_a_sandbox_that_refuses_to_tell_or_change_limits_survived(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the shipped systemd unit does: what the system says of the process elsewhere counts."""

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(resource, "getrlimit", refused)
    monkeypatch.setattr(resource, "setrlimit", refused)
    limits = tmp_path / "limits"
    monkeypatch.setattr(door, "LIMITS", limits)
    for soft, most in (("600", 328), ("unlimited", 1000), ("16384", 1000)):
        limits.write_text(
            f"Limit  Soft  Hard  Units\nMax open files            {soft}   unlimited  files\n"
        )
        assert fitted(Limits(1000, 1.0, 16)).most_connections == most
    monkeypatch.undo()
    known = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(resource, "getrlimit", refused)
    assert door._allowed_files() == known


def test_are_too_few_files_refused() -> None:
    asked = [sys.executable, "-c", FITTED, "200", "200"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert "open files is too low" in done.stderr


FEW_FILES = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300)); {MAIN}"


@pytest.mark.slow
def test_does_a_service_with_few_files_answer_probes_beside_a_crowd(tmp_path: Path) -> None:
    """Of 400 clients a few have a place; no file is missing anywhere, and it is said."""
    place = Place(tmp_path)

    async def crowd() -> None:
        async with AsyncExitStack() as stack:
            for _ in range(400):
                await stack.enter_async_context(connection(("127.0.0.1", place.port)))
            for path in ("/healthz", "/readyz", "/metrics") * 5:
                status, answer = await asyncio.to_thread(place.get, path)
                assert status == 200, path
            page = answer.decode()
            assert 'streamdp_http_connections_limit{application="shop"} 28.0' in page
            assert '_refused_total{application="shop",reason="full"} 0.0' not in page

    with place.running(program=FEW_FILES):
        until(place.ready)
        asyncio.run(crowd())
    log = (tmp_path / "run.log").read_text()
    assert "connections_bounded" in log
    assert "loop_exception" not in log
