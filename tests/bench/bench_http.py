"""Look-ups over HTTP while the service learns at full speed, against the least a route can cost.

    python tests/bench/bench_http.py [--json FILE] [--seconds N] [--rounds N] [--pairs]

First rank and reward: one `streamdp serve` on the embedded log, nothing beside it, with a policy in
force; the load process asks for an action and rewards it, again and again, and the smallest route
of starlette in turn. `per_core` counts pairs for each second of processor that the server took;
`ratio` compares that, a pair being two requests. With ``--pairs`` this is all.

Then one `streamdp run` on the embedded log learns from a producer that never stops, and `streamdp
serve` answers beside it. In turns, a load process asks on loopback: the look-up; the smallest route
of starlette on the same server (uvicorn with h11); the smallest application there can be on that
server; a batch of 1,000 keys. Ratios compare medians over the rounds. The client's look-ups are
timed in memory.
Targets stand beside what they are for: at least (≥) or at most (≤).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

CONNECTIONS = 16
FIRST = "smallest route of starlette"
KEYS = 1000
ACTIONS = 100
PAIRS = {"rank and reward": True, "rank and reward, not durable": False}
TARGETS = {
    "look-up": "ratio ≥ 0.7",
    "batch of 1,000 keys": "p50_ms ≤ 5",
    "rank and reward": "per_core ≥ 2000",
}
SHOP = """
app = "bench"
transport = {{ kind = "sqlite", path = "{folder}/log.db", retain = 1000000 }}
topics = {{ requests = {{ budget = "1" }}, events = {{ budget = "1" }} }}
http = {{ listen = "127.0.0.1:{port}", requests_per_second = 1e9, rank_and_reward = true }}
[streams.home]
input = "events"
start = "earliest"
observes = "feedback"
actions = [{actions}]
fallback_action = "action-0"
format = {{ name = "json", padding = "fixed" }}
feedback = {{ content = "reward" }}
learner = {{ epsilon = "1" }}
[assemblies.clicks]
requests = "requests"
outcomes = "outcomes"
stream = "home"
start = "earliest"
mode = "feedback"
window = "1s"
combine = "max"
default_loss = 1.0
"""
BATCH = b'{"keys":[' + b",".join(b'"%d"' % n for n in range(KEYS)) + b"]}"
CONFIGURATION = """
app = "bench"
transport = {{ kind = "sqlite", path = "{folder}/log.db", retain = 100000 }}
topics = {{ events = {{ budget = "1" }} }}
http = {{ listen = "127.0.0.1:{port}", requests_per_second = 1e9 }}
operations = {{ listen = "127.0.0.1:{operations}" }}
[streams.home]
input = "events"
start = "latest"
actions = [{actions}]
fallback_action = "action-0"
format = "float32"
learner = {{ epsilon = "1" }}
"""


@dataclass
class Asked(asyncio.Protocol):
    """One connection that asks again and again, and how long each answer took."""

    request: bytes
    until: float
    done: asyncio.Future[None]
    times: list[float] = field(default_factory=list)
    _buffer: bytes = b""
    _begun: float = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the first time."""
        self._transport: Any = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Ask again when the answer is whole."""
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator or len(body) < int(
            head.lower().split(b"content-length: ")[1].split(b"\r")[0]
        ):
            return
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")):
            raise RuntimeError(head.decode())
        self._buffer = b""
        self._answered(body)

    def _answered(self, body: bytes) -> None:
        self.times.append(time.perf_counter() - self._begun)
        if time.perf_counter() < self.until:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """The end."""
        if not self.done.done():
            self.done.set_result(None)

    def _ask(self) -> None:
        self._begun = time.perf_counter()
        self._transport.write(self.request)


@dataclass
class Pair(Asked):
    """One that rewards what it is told to show; the time is that of both."""

    durable: bool = True

    def _answered(self, body: bytes) -> None:
        ranked = json.loads(body)
        if "action" not in ranked:
            super()._answered(body)
            return
        reward = {"key": "fr", "request": ranked["request"], "reward": 1, "durable": self.durable}
        self._transport.write(post("reward", reward))


def post(call: str, body: object) -> bytes:
    """A call of the stream, as bytes."""
    written = json.dumps(body).encode()
    head = f"POST /v1/streams/home/{call} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(written)}"
    return head.encode() + b"\r\n\r\n" + written


async def asked(
    port: int, request: bytes | bool, *, seconds: float, connections: int
) -> list[float]:
    """Ask for so long over so many connections."""
    loop = asyncio.get_running_loop()
    until = time.perf_counter() + seconds
    made = [_asking(request, until, loop.create_future()) for _ in range(connections)]
    for protocol in made:
        await loop.create_connection(lambda protocol=protocol: protocol, "127.0.0.1", port)  # type: ignore[misc]
    for protocol in made:
        await protocol.done
    return [took for protocol in made for took in protocol.times]


def _asking(request: bytes | bool, until: float, done: asyncio.Future[None]) -> Asked:
    """What asks a request; a boolean asks pairs that are durable, or not."""
    if isinstance(request, bytes):
        return Asked(request, until, done)
    return Pair(post("rank", {"key": "fr", "durable": request}), until, done, durable=request)


def load(channel: Connection) -> None:
    """The load process: asks as it is told to."""
    while (task := channel.recv()) is not None:
        port, request, seconds, connections = task
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            work = asked(port, request, seconds=seconds, connections=connections)
            channel.send(runner.run(work))


def smallest(listener: socket.socket, kind: str) -> None:
    """The smallest route, on the server that look-ups are on."""
    from streamdp.serve.asgi import Receive, Scope, Send
    from streamdp.serve.credentials import Credentials, Files
    from streamdp.serve.listener import Limits, server_of
    from streamdp.serve.traffic import Traffic

    async def bare(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def serve() -> None:
        app: Any = bare if kind == "bare" else with_starlette()
        limits = Limits(most_connections=100, requests_per_second=1e9, request_seconds=10.0)
        no_files, traffic = Credentials(Files("http")), Traffic()
        server = server_of(app, credentials=no_files, limits=limits, traffic=traffic)
        await server.serve(sockets=[listener])

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def with_starlette() -> Any:
    """starlette's smallest."""
    applications = import_module("starlette.applications")  # by name: only `make bench` has it
    responses, routing = (import_module(f"starlette.{name}") for name in ("responses", "routing"))

    async def ok(request: object) -> Any:
        return responses.PlainTextResponse("ok")

    return applications.Starlette(routes=[routing.Route("/", ok)])


def produce(path: str) -> None:
    """Events without end."""
    from streamdp.ports import Key, Value
    from streamdp_adapters.sqlite import Sqlite

    async def send() -> None:
        producer = Sqlite.from_settings({"path": path}, app="bench").producer()
        rows = np.random.default_rng(1).random((KEYS, ACTIONS), dtype=np.float32)
        records: list[tuple[Key, Value]] = [
            (b"%d" % n, row.tobytes()) for n, row in enumerate(rows)
        ]
        while True:
            await producer.send("events", records)

    asyncio.run(send())


@contextmanager
def process(target: Callable[..., None], *arguments: Any) -> Iterator[int | None]:
    """Run something beside, and stop it: the number of its process."""
    made = multiprocessing.get_context("spawn").Process(target=target, args=arguments, daemon=True)
    made.start()
    try:
        yield made.pid
    finally:
        made.terminate()
        made.join()


@contextmanager
def service(folder: Path, port: int, operations: int) -> Iterator[None]:
    """`streamdp run`, `streamdp serve`, and a producer that never stops."""
    path = folder / "streamdp.toml"
    actions = ", ".join(f'"action-{n}"' for n in range(ACTIONS))
    path.write_text(
        CONFIGURATION.format(folder=folder, port=port, operations=operations, actions=actions)
    )
    with command(path, "run", "--with-serve"):
        until(lambda: get(port, "/readyz") is not None)
        with process(produce, str(folder / "log.db")):
            until(lambda: b'"published"' in (get(port, "/v1/streams/home/keys/7/action") or b""))
            yield


@contextmanager
def command(path: Path, *words: str) -> Iterator[int]:
    """A command of streamdp, ended afterwards: the number of its process."""
    run = "from streamdp.cli import main; main()"
    with path.with_suffix(".log").open("a") as log:
        running = subprocess.Popen(
            [sys.executable, "-c", run, *words, "--config", str(path)], stdout=log, stderr=log
        )
    try:
        yield running.pid
    finally:
        running.terminate()
        running.wait()


def get(port: int, path: str) -> bytes | None:
    """A body, if there is a good answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            body: bytes = answer.read()
            return body
    except OSError:
        return None


def until(holds: Callable[[], bool]) -> None:
    """Wait."""
    deadline = time.monotonic() + 60
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError("it never came to be")
        time.sleep(0.05)


def learned(port: int) -> float:
    """Slots learned so far."""
    page = (get(port, "/metrics") or b"").decode()
    return sum(
        float(line.split()[-1])
        for line in page.splitlines()
        if line.startswith("streamdp_slots_total{")
    )


def bound() -> socket.socket:
    """A listening socket."""
    return socket.create_server(("127.0.0.1", 0), backlog=128)


def measured(*, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Everything, in turns."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamdp-")))
        port, operations = (bound().getsockname()[1] for _ in range(2))
        bare, framework = stack.enter_context(bound()), stack.enter_context(bound())
        stack.enter_context(process(smallest, bare, "bare"))
        stack.enter_context(process(smallest, framework, "starlette"))
        stack.enter_context(service(folder, port, operations))
        ours, theirs = multiprocessing.Pipe()
        stack.enter_context(process(load, theirs))
        plain = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        look_up = b"GET /v1/streams/home/keys/7/action HTTP/1.1\r\nHost: x\r\n\r\n"
        batch = (b"POST /v1/streams/home/actions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
                 % len(BATCH)) + BATCH  # fmt: skip
        runs = {
            FIRST: (framework.getsockname()[1], plain, CONNECTIONS),
            "smallest application": (bare.getsockname()[1], plain, CONNECTIONS),
            "look-up": (port, look_up, CONNECTIONS),
            "batch of 1,000 keys": (port, batch, 1),
        }
        until(lambda: get(runs["smallest application"][0], "/") is not None)
        until(lambda: get(runs[FIRST][0], "/") is not None)
        begun, slots = time.monotonic(), learned(operations)
        rates: dict[str, list[float]] = {name: [] for name in runs}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(rounds + 1):
            for name, (where, request, connections) in runs.items():
                ours.send((where, request, seconds, connections))
                took = ours.recv()
                if turn:  # the first turn warms up
                    rates[name].append(len(took) / seconds)
                    times[name] += took
        speed = (learned(operations) - slots) / (time.monotonic() - begun)
        ours.send(None)
    return [*_rows(rates, times), {"run": "learned meanwhile", "per_second": round(speed)}]


def in_pairs(*, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Rank and reward, durable and not, and the smallest route of starlette, in turns."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamdp-")))
        path, port, framework = folder / "shop.toml", bound().getsockname()[1], bound()
        actions = ", ".join(f'"action-{n}"' for n in range(ACTIONS))
        path.write_text(SHOP.format(folder=folder, port=port, actions=actions))
        ours, theirs = multiprocessing.Pipe()
        stack.enter_context(process(load, theirs))
        with command(path, "run", "--with-assemblies", "--with-serve"):
            until(lambda: get(port, "/readyz") is not None)
            known = "/v1/streams/home/keys/fr/choice?request=r"

            def learned_one() -> bool:
                ours.send((port, False, 0.5, 4))
                ours.recv()
                return b'"published"' in (get(port, known) or b"")

            until(learned_one)
        starlette = stack.enter_context(process(smallest, framework, "starlette"))
        serving = stack.enter_context(command(path, "serve"))
        until(lambda: b'"published"' in (get(port, known) or b""))
        until(lambda: get(framework.getsockname()[1], "/") is not None)
        runs: dict[str, tuple[int, bytes | bool, int | None]] = {
            FIRST: (framework.getsockname()[1], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", starlette)
        } | {name: (port, durable, serving) for name, durable in PAIRS.items()}
        rates: dict[str, list[float]] = {name: [] for name in runs}
        times: dict[str, list[float]] = {name: [] for name in runs}
        processor = dict.fromkeys(runs, 0.0)
        for turn in range(rounds + 1):
            for name, (where, request, number) in runs.items():
                begun = processor_seconds(number)
                ours.send((where, request, seconds, CONNECTIONS))
                took = ours.recv()
                if turn:  # the first turn warms up
                    processor[name] += processor_seconds(number) - begun
                    rates[name].append(len(took) / seconds)
                    times[name] += took
        ours.send(None)
    rows = _rows(rates, times)
    for row in rows:
        name = row["run"]
        row["per_core"] = round(len(times[name]) / processor[name])
        requests = row["per_core"] * (2 if name in PAIRS else 1)
        row["ratio"] = round(requests / rows[0]["per_core"], 3)
    return rows


def processor_seconds(number: int | None) -> float:
    """The seconds of processor that a process has taken so far."""
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rows(rates: dict[str, list[float]], times: dict[str, list[float]]) -> list[dict[str, Any]]:
    first = statistics.median(rates[FIRST])
    rows = []
    for name, took in times.items():
        cuts = statistics.quantiles(took, n=100)
        rate = statistics.median(rates[name])
        rows.append(
            {
                "run": name,
                "per_second": round(rate),
                "ratio": round(rate / first, 3),
                "p50_ms": round(cuts[49] * 1e3, 3),
                "p99_ms": round(cuts[98] * 1e3, 3),
                "target": TARGETS.get(name, ""),
            }
        )
    return rows


def in_memory() -> list[dict[str, Any]]:
    """The client's look-up, of 100,000 keys, and what a key takes."""
    import tracemalloc

    from streamdp.client import Source
    from streamdp.client.cache import ActionsCache
    from streamdp.client.table import Table
    from streamdp.ports import Published, StreamTopics

    line = (
        b'{"type":"action","schema":1,"stream":"home","partition":0,"key":"%d","epoch":1,"born":%d,'
        b'"block":7,"kind":"action","input":"in","first_offset":0,"last_offset":9,"start":1,"stop":90,'
        b'"index":3,"action":"action-3"}'
    )
    count = 100_000
    records = [Published(0, n, b"key-%d" % n, line % (n, n + 10**6)) for n in range(count)]
    topics = StreamTopics("bench", "home", "in")
    cache = ActionsCache(lambda: None, [Source(topics, "a")], stale_after=60)  # type: ignore[arg-type, return-value]
    table: Table = cache._streams["home"].table
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    list(table.apply(records))
    size = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()
    begun = time.perf_counter()
    other = Table(Source(topics, "a"), most_keys=10**6)
    list(other.apply(records))
    loading = (time.perf_counter() - begun) / count
    look = min(timeit.repeat(lambda: cache.action("home", b"key-77"), number=100_000, repeat=7))
    return [
        {
            "run": "client's look-up",
            "microseconds": round(look / 100_000 * 1e6, 3),
            "target": "microseconds ≤ 2",
        },
        {"run": "client's loading of a key", "microseconds": round(loading * 1e6, 2)},
        {"run": "client's memory of a key", "bytes": round(size)},
    ]


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", action="store_true", help="rank and reward only")
    options = parser.parse_args()
    table = in_pairs(seconds=options.seconds, rounds=options.rounds)
    if not options.pairs:
        table += [*in_memory(), *measured(seconds=options.seconds, rounds=options.rounds)]
    for row in table:
        columns = "  ".join(f"{name} {row[name]}" for name in row if name not in ("run", "target"))
        print(f"{row['run']:28} {columns:66} {row.get('target', '')}".rstrip())
    if options.json:
        written = {"cores": os.cpu_count(), "http": table}
        options.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
