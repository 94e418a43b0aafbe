"""``make example``: the shop on a real Kafka, all of it on this machine, until Ctrl-C.

It lends a broker (`streamdp.testing.broker`: fetched by package managers, gone afterwards), creates
the topics, starts `streamdp assemble`, `streamdp run` and the shop with ordinary commands, and
Prometheus if that is installed. ``--bootstrap`` uses your broker instead.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from streamdp.testing.broker import OUTSIDE_BROKER, borrow_broker
from streamdp.testing.free_ports import free_address

HERE = Path(__file__).resolve().parent
PORTS = {"shop": 8000, "serve": 8080, "run": 8081, "assemble": 8082, "prometheus": 9090}
READY_SECONDS = 300.0  # a quiet machine takes 20, a busy one ten times as long
_LOOK_SECONDS = 0.25
RESTOCKED, NEW = "second hand", "gifts"
TIMETABLE = ((10.0, "pause", RESTOCKED), (30.0, "resume", RESTOCKED), (40.0, "add", NEW))
"""Seconds after everything was learned: a shelf is restocked, another one comes. Never by sales:
the list is public for good."""


class Started:
    """The processes of the example; all of them end with it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str | Path, **environment: str) -> None:
        """Start one more process, with a log file of its own."""
        with self.log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603  # the commands are ours
                [str(part) for part in command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**self._environment, **environment},
                process_group=0,
            )

    def log(self, name: str) -> Path:
        """A process's log file."""
        return self._folder / f"{name}.log"

    def check(self) -> None:
        """Exit with a process's last words if it has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                last = self.log(name).read_text("utf-8", "replace")[-2000:]
                raise SystemExit(f"{name} has ended with exit code {process.returncode}:\n{last}")

    def end(self) -> None:
        """End all processes, the newest first, as an operator would."""
        for process in reversed(self._running.values()):
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main() -> None:
    """Start everything, print the addresses, and wait."""
    parser = argparse.ArgumentParser(prog="make example", description=__doc__)
    parser.add_argument("--bootstrap", help="your broker; otherwise one is lent")
    parser.add_argument("--seconds", type=float, help="end by itself; otherwise Ctrl-C does")
    parser.add_argument("--visitors", type=float, default=400.0, help="made-up ones in a second")
    asked = parser.parse_args()
    begun = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamdp-shop-")))
            say("a broker is starting; the first time it fetches Kafka")
            bootstrap = stack.enter_context(_broker(asked.bootstrap))
            addresses = {name: free_address(port) for name, port in PORTS.items()}
            started = Started(folder, _environment(bootstrap))
            stack.callback(started.end)
            _start(started, folder, addresses, visitors=asked.visitors)
            _tell(started, addresses, begun=begun)
            _wait(started, seconds=asked.seconds)
    except KeyboardInterrupt:
        pass
    say("the shop is closed")


def _start(
    started: Started, folder: Path, addresses: Mapping[str, str], *, visitors: float
) -> None:
    """Create the topics, then start every process."""
    streamdp = Path(sys.executable).with_name("streamdp")
    configured = ("--config", HERE / "streamdp.toml")
    topics = subprocess.run(  # noqa: S603  # the command is ours
        [streamdp, "topics", "create", *configured],
        env=started._environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if topics.returncode != 0:
        raise SystemExit(topics.stdout + topics.stderr)
    for name, table in (("assemble", "OPERATIONS"), ("run", "OPERATIONS"), ("serve", "HTTP")):
        listen = {f"STREAMDP__{table}__LISTEN": addresses[name]}
        started.start(name, streamdp, name, *configured, **listen)
    started.start(
        "shop", sys.executable, "-m", "shop", *configured, "--listen", addresses["shop"],
        "--status-page", f"http://{addresses['serve']}/", "--visitors", f"{visitors:g}",
        PYTHONPATH=os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
    )  # fmt: skip
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        return
    scraped = folder / "prometheus.yml"
    text = (HERE / "prometheus.yml").read_text("utf-8")
    for name, place in (
        ("run", "run:8081"),
        ("assemble", "assemble:8081"),
        ("serve", "serve:8080"),
    ):
        text = text.replace(place, addresses[name])
    rules = HERE.parent / "prometheus"
    scraped.write_text(text.replace("/etc/prometheus/rules", str(rules)), "utf-8")
    started.start(
        "prometheus", prometheus, f"--config.file={scraped}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={addresses['prometheus']}",
    )  # fmt: skip


def _tell(started: Started, addresses: Mapping[str, str], *, begun: float) -> None:
    """Print the addresses, and later when the shelves were learned."""
    deadline = time.monotonic() + READY_SECONDS
    opened = False
    while time.monotonic() < deadline:
        started.check()
        state = _state(addresses["shop"])
        if state is not None and not opened:
            opened = True
            passed = time.monotonic() - begun
            say(f"the shop is open after {passed:.0f} s: http://{addresses['shop']}/")
            say(f"streamdp's own page: http://{addresses['serve']}/, and"
                f" http://{addresses['assemble']}/metrics of the assembly")  # fmt: skip
            if started.log("prometheus").exists():
                say(f"Prometheus: http://{addresses['prometheus']}/ (its dashboard for Grafana is"
                    " deploy/grafana/streamdp.json)")  # fmt: skip
        if state is not None and state["learned_after"] is not None:
            passed = time.monotonic() - begun
            say(f"each segment's shelf was learned after {passed:.0f} s; Ctrl-C ends everything")
            return
        time.sleep(_LOOK_SECONDS)
    raise SystemExit(f"nothing was learned within {READY_SECONDS:.0f} s")


def _wait(started: Started, *, seconds: float | None) -> None:
    """Wait for the end; meanwhile shelves are paused, come back, or are new, by the timetable."""
    begun, due = time.monotonic(), list(TIMETABLE)
    while seconds is None or time.monotonic() - begun < seconds:
        started.check()
        if due and time.monotonic() - begun >= due[0][0]:
            _, step, shelf = due.pop(0)
            _change(started, step, shelf)
        time.sleep(_LOOK_SECONDS)


def _change(started: Started, step: str, shelf: str) -> None:
    streamdp = Path(sys.executable).with_name("streamdp")
    command = (streamdp, "actions", "shelves", step, shelf)
    subprocess.run(  # noqa: S603  # the command is ours
        [*command, "--config", HERE / "streamdp.toml"],
        env=started._environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    said = {
        "pause": f"{shelf} is paused until its delivery: nobody is shown it",
        "resume": f"the delivery has come: {shelf} is shown as before",
        "add": f"{shelf} is new: it is tried until it is known",
    }
    say(said[step])


def _state(address: str) -> dict[str, Any] | None:
    """The data of the shop's page; None before it is open."""
    try:
        with urllib.request.urlopen(f"http://{address}/state", timeout=5) as answer:
            state: dict[str, Any] = json.load(answer)
            return state
    except OSError:
        return None


@contextmanager
def _broker(bootstrap: str | None) -> Iterator[str]:
    if bootstrap is not None:
        yield bootstrap
        return
    with borrow_broker() as broker:
        yield broker.bootstrap


def _environment(bootstrap: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != OUTSIDE_BROKER}
    return {**kept, "STREAMDP__TRANSPORT__BOOTSTRAP": bootstrap, "PYTHONUNBUFFERED": "1"}


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
