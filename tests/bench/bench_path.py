"""How many functions and files one record passes: what a reader of its way has to read.

    python tests/bench/bench_path.py [--json FILE] [--list] [--only NAME]
    PYTHONPATH=OTHER:OTHER/adapters python tests/bench/bench_path.py     # another checkout

Three ways: a loss vector that ends a block, a feedback record that ends one, a click through the
join. Each is sent to a running service (embedded files, default settings), and every call in its
process is noted from the read that returns the record until the transport has published what came
of it. Counted are the functions of ``streamdp/`` without transports, generated methods and
comprehensions: so what the service does meanwhile, between two records, is in it. Each way is
passed several times, on a learner that is warm; what was not called each time (a timer, a cache)
is left out.

It uses the command line and the ports of transports alone, so that it runs on other versions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import streamdp

PACKAGE = str(Path(streamdp.__file__).parent) + os.sep
NOT_COUNTED = tuple(PACKAGE + name for name in ("testing" + os.sep, "cli" + os.sep))
WARM, TRACED = 6, 3  # records before those that are traced, and of these
PATIENCE = 60.0  # seconds

SHOP = """
app = "shop"
[transport]
kind = "sqlite"
path = "shop.db"
partitions = 1
"""
LEARNER = """
[streams.home.learner]
epsilon = "1/2"
schedule = "capped 1"
"""
FEEDBACK = """
[topics.events]
budget = "1/2"
[streams.home]
input = "events"
start = "earliest"
observes = "feedback"
actions = ["a", "b", "c"]
[streams.home.feedback]
content = "loss"
"""

Records = list[tuple[bytes | None, bytes | None]]
Headers = list[list[tuple[str, bytes | None]]]


@dataclass(frozen=True)
class Way:
    """A configuration, the command that runs it, and what is sent, topic by topic."""

    about: str
    configuration: str
    command: Sequence[str]
    sent: Callable[[int], Sequence[tuple[str, Records, Headers | None]]]
    public: bool  # whether an action or policy comes of each record, or an event


WAYS = {
    "loss": Way(
        "a loss vector that ends a block",
        SHOP
        + '[topics.losses]\nbudget = "1/2"\n[streams.home]\ninput = "losses"\n'
        + 'start = "earliest"\nactions = ["a", "b", "c"]\n'
        + LEARNER,
        ["run"],
        lambda number: [("losses", [(b"fr", b"[0.1, 0.9, 0.5]")], None)],
        True,
    ),
    "feedback": Way(
        "a feedback record that ends a block",
        SHOP + FEEDBACK + LEARNER,
        ["run"],
        lambda number: [("events", [(b"fr", b'{"loss": 0}')], [[("streamdp-action", b"b")]])],
        True,
    ),
    "click": Way(
        "a click through the join",
        SHOP
        + '[topics.requests]\nbudget = "1/2"\n'
        + FEEDBACK
        + LEARNER
        + '[assemblies.clicks]\nrequests = "requests"\noutcomes = "outcomes"\nstream = "home"\n'
        + 'start = "earliest"\nmode = "feedback"\nwindow = "200ms"\ngrace = "100ms"\n'
        + 'combine = "max"\n',
        ["assemble"],
        lambda number: [
            (
                "requests",
                [(b"fr", None)],
                [[("streamdp-request", b"%d" % number), ("streamdp-action", b"b")]],
            ),
            ("outcomes", [(b"fr", b'{"reward": 1}')], [[("streamdp-request", b"%d" % number)]]),
        ],
        False,
    ),
}


@dataclass
class Trace:
    """The calls of one thread from the first read that returns records."""

    on: bool = False
    called: list[CodeType] = field(default_factory=list)

    def start(self) -> None:
        """Note the calls of the thread that this runs in."""
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, result: Any) -> None:
        code = frame.f_code
        if self.on:
            file = code.co_filename
            if (
                event == "call"
                and file.startswith(PACKAGE)
                and not file.startswith(NOT_COUNTED)
                and not code.co_name.startswith("<")
            ):
                self.called.append(code)
        elif event == "return" and code.co_name == "poll" and isinstance(result, list | tuple):
            self.on = len(result) > 0

    def named(self) -> list[tuple[str, str]]:
        """File and function of each call."""
        return [
            (code.co_filename.removeprefix(PACKAGE), f"{code.co_qualname}:{code.co_firstlineno}")
            for code in self.called
        ]


class Driver:
    """Sends to the service that runs in the main thread, from a thread of its own."""

    def __init__(self, way: Way, folder: Path) -> None:
        self._way, self._folder = way, folder
        self.traces: list[list[tuple[str, str]]] = []
        self.waiting: list[Callable[[], None]] = []  # for the signal, in the service's thread

    def run(self) -> None:
        """Warm up, trace, and end the process that this is in."""
        try:
            asyncio.run(self._drive())
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    async def _drive(self) -> None:
        from streamdp.ports import StreamTopics
        from streamdp.service.config import Configuration

        technology = Configuration.load(self._folder / "shop.toml").technology()

        async def published() -> int:
            """The next offset of what comes of records."""
            if self._way.public:
                reader = technology.publications()
                batches = reader.actions(StreamTopics("shop", "home", ""), follow=False)
                offsets = [one.offset async for batch in batches for one in batch]
                await reader.close()
                return max(offsets, default=-1) + 1
            inside = technology.administrator()
            events = inside.history(StreamTopics("shop", "reader", "events"), after={})
            lengths = [len(batch) async for batch in events]
            await inside.close()
            return sum(lengths)

        producer = technology.producer()
        for number in range(WARM + TRACED):
            before = await published()
            trace = Trace()
            if number >= WARM:
                self._signal(trace.start)
                await asyncio.sleep(0.2)
            for topic, records, headers in reversed(self._way.sent(number)):
                await producer.send(topic, records, headers=headers)
            await self._until(published, before + 1)
            await asyncio.sleep(0.2)  # what belongs to it and comes behind it
            if number >= WARM:
                self._signal(lambda: sys.setprofile(None))
                self.traces.append(trace.named())
        await producer.close()

    async def _until(self, count: Callable[[], Awaitable[int]], least: int) -> None:
        end = time.monotonic() + PATIENCE
        while await count() < least:
            if time.monotonic() > end:
                raise TimeoutError("nothing was published")
            await asyncio.sleep(0.05)

    def _signal(self, handler: Callable[[], None]) -> None:
        self.waiting.append(handler)
        os.kill(os.getpid(), signal.SIGUSR1)


def traced(name: str) -> None:
    """In a process of its own, in an empty folder: pass one way, and print what was called."""
    from streamdp.cli import main

    way, folder = WAYS[name], Path.cwd()
    (folder / "shop.toml").write_text(way.configuration, "utf-8")
    driver = Driver(way, folder)
    signal.signal(signal.SIGUSR1, lambda *_: driver.waiting.pop()())
    thread = threading.Thread(target=driver.run)
    sys.argv = ["streamdp", "topics", "create", "--config", "shop.toml"]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
    sys.argv = ["streamdp", *way.command, "--config", "shop.toml"]
    thread.start()
    try:
        main()
    except SystemExit:
        thread.join()
    print(json.dumps(driver.traces))


def summed_up(name: str, traces: Sequence[Sequence[Sequence[str]]]) -> dict[str, Any]:
    """What was called each time."""
    each_time = set.intersection(*({(file, what) for file, what in one} for one in traces))
    files = [file for file, what in traces[0] if (file, what) in each_time]
    return {
        "way": WAYS[name].about,
        "functions": len(each_time),
        "files": len({file for file, _ in each_time}),
        "changes of file": sum(one != two for one, two in pairwise(files)),
        "calls": len(files),
        "called": sorted(each_time),
    }


def measured(name: str) -> dict[str, Any]:
    """One way, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).resolve()), "--traced", name]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    try:
        return summed_up(name, json.loads(ran.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        sys.exit(f"{name}: no traces; the service said:\n{ran.stdout}\n{ran.stderr}")


def main() -> None:
    """Trace each way and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--list", action="store_true", help="name the functions, file by file")
    parser.add_argument("--only", choices=WAYS)
    parser.add_argument("--traced", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.traced:
        traced(given.traced)
        return
    rows = [measured(name) for name in ([given.only] if given.only else WAYS)]
    print(f"{'way':38}{'functions':>10}{'files':>7}{'changes':>9}{'calls':>7}")
    for row in rows:
        print(f"{row['way']:38}{row['functions']:>10}{row['files']:>7}"
              f"{row['changes of file']:>9}{row['calls']:>7}")  # fmt: skip
        if given.list:
            for file in sorted({file for file, _ in row["called"]}):
                names = [what for other, what in row["called"] if other == file]
                print(f"    {file:44}{len(names):>3}  {' '.join(names)}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1), "utf-8")


if __name__ == "__main__":
    main()
