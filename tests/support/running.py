"""The real service for tests: `streamdp run` and its kin as processes, and what they answer."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from streamdp.ports import Key, Value
from streamdp.service.config import Configuration
from streamdp.testing.free_ports import free_ports
from tests.support.forking import Forked, parent
from tests.support.processes import MAIN

PATIENCE = 240.0
CONFIGURATION = """
app = "{app}"
[transport]
{transport}
[topics.{input}]
budget = "1"
[streams.home]
input = "{input}"
epoch = 1
start = "earliest"
actions = ["a", "b", "c"]
fallback_action = "c"
learner = {{ epsilon = "{epsilon}", schedule = "capped 3" }}
estimates = [
    {{ name = "block_regret", epsilon = "0.25", min_length = 2 }},
    {{ name = "null_share", epsilon = "0.25", min_length = 2 }},
]
[http]
listen = "127.0.0.1:{port}"
{more}
[operations]
listen = "127.0.0.1:{operations_port}"
{operations_more}
"""


class Place:
    """A folder with a configuration, and the address it serves at."""

    def __init__(
        self,
        folder: Path,
        more: str = "",
        *,
        scheme: str = "http",
        transport: str = "",
        app: str = "",
        operations: str = "",
    ) -> None:
        self.port, self.operations_port = free_ports(2)
        self._operations = operations
        self._learns = False
        self.app = app or "shop"
        self.input = f"{app}-feedback" if app else "feedback"
        self.folder = folder
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.path = folder / "streamdp.toml"
        self._transport = transport or f'kind = "sqlite"\npath = "{folder}/log.db"'
        self._more = more
        self.configure()

    def configure(self, *, epsilon: str = "0.5") -> None:
        """Write the configuration."""
        text = CONFIGURATION.format(
            app=self.app,
            input=self.input,
            transport=self._transport,
            port=self.port,
            more=self._more,
            operations_port=self.operations_port,
            operations_more=self._operations,
            epsilon=epsilon,
        )
        self.path.write_text(text)

    def change(self, **words: str) -> None:
        """Write the configuration anew, with other values where it says NAME = …"""
        text = self.path.read_text()
        for name, value in words.items():
            text, replaced = re.subn(rf"\b{name} = [^,}}\n]+", f"{name} = {value}", text, count=1)
            assert replaced, name
        self.path.write_text(text)

    @contextmanager
    def running(self, command: str = "run", *, program: str = MAIN) -> Iterator[Forked]:
        """The command, stopped afterwards by SIGTERM; `run` with `serve` beside it."""
        self._learns = command == "run"
        second_input = ("--with-serve",) if self._learns else ()
        arguments = (command, "--config", str(self.path), *second_input)
        with (self.folder / f"{command}.log").open("ab") as log:
            process = parent().start(program, arguments, stderr=log.fileno())
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(timeout=PATIENCE) == 0, (self.folder / f"{command}.log").read_text()

    def send(self, records: list[tuple[Key, Value]]) -> None:
        """Write input."""

        async def write() -> None:
            producer = Configuration.load(self.path, {}).technology().producer()
            await producer.send(self.input, records)
            await producer.close()

        asyncio.run(write())

    def get(self, path: str) -> tuple[int, bytes]:
        """One answer of `serve`, or 0 where nobody answers."""
        return self._asked(self.url + path)

    def operations(self, path: str) -> tuple[int, bytes]:
        """One answer of `run`, or 0 where nobody answers."""
        return self._asked(f"http://127.0.0.1:{self.operations_port}{path}")

    @property
    def scraped(self) -> list[str]:
        """What a Prometheus scrapes."""
        return [f"127.0.0.1:{self.port}", f"127.0.0.1:{self.operations_port}"]

    def _asked(self, url: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    def ready(self) -> bool:
        """Whether it may be asked."""
        learns = not self._learns or self.operations("/readyz")[0] == 200
        return learns and self.get("/readyz")[0] == 200


def until(holds: Callable[[], bool]) -> None:
    """Wait for what another process brings about."""
    deadline, pause = time.monotonic() + PATIENCE, 0.05
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(pause)
        pause = min(0.25, pause * 1.1)  # asking takes from the time of who is waited for


def children(process: Forked) -> list[int]:
    """The processes that a process has started."""
    pids = []
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        pids += [int(pid) for pid in (task / "children").read_text().split()]
    return pids
