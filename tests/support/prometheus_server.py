"""A real Prometheus for a test: scrapes the pages it is given, every half second, and answers."""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import yaml

from streamdp.testing.free_ports import free_address

PATIENCE = 240.0
"""Seconds until what a test waits for is given up."""


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """A running server and its questions."""

    address: str

    def ask(self, path: str, **parameters: str) -> Any:
        """The data that the server's interface answers with."""
        query = urllib.parse.urlencode(parameters)
        url = f"http://{self.address}/api/v1/{path}?{query}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now."""
        series: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return series

    def firing(self) -> set[str]:
        """The names of the alerts that are firing."""
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def rules(self) -> dict[str, str]:
        """The health of each rule: `ok`, `err` or `unknown`, by its name."""
        groups = self.ask("rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}


def eventually(holds: Callable[[], bool], *, within: float = PATIENCE) -> bool:
    """Whether something comes to hold in good time."""
    deadline, pause = monotonic() + within, Event()
    while not holds():
        if monotonic() > deadline:
            return False
        pause.wait(0.25)  # it scrapes and judges every half second
    return True


@contextmanager
def prometheus(
    targets: Sequence[str], folder: Path, *, rules: Path | None = None
) -> Iterator[PrometheusServer]:
    """Run a server that scrapes `targets` (host:port) under the job name `streamdp`."""
    address = free_address()
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(configuration(targets, rules)))
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        assert eventually(lambda: is_ready(address)), (folder / "prometheus.log").read_text()
        yield PrometheusServer(address)
    finally:
        process.terminate()
        process.wait(timeout=60)


def configuration(targets: Sequence[str], rules: Path | None) -> dict[str, Any]:
    """As in production, only faster."""
    return {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(rules)] if rules else [],
        "scrape_configs": [
            {"job_name": "streamdp", "static_configs": [{"targets": list(targets)}]}
        ],
    }


def hastened(rules: Path, folder: Path) -> Path:
    """The same rules, where an alert waits for a second instead of minutes."""
    tree = yaml.load(rules.read_text(), yaml.CSafeLoader)
    for rule in (rule for group in tree["groups"] for rule in group["rules"]):
        if "for" in rule:
            rule["for"] = "1s"
    hasty = folder / "hasty.rules.yml"
    hasty.write_text(yaml.safe_dump(tree))
    return hasty


def is_ready(address: str) -> bool:
    """Whether a server answers there."""
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
