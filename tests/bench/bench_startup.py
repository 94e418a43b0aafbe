"""What starting a command costs: its processor time, from the first instruction to the last.

    python tests/bench/bench_startup.py [--json FILE] [--turns N] [--before OTHER/.venv/bin/python]

Every command runs on a small SQLite shop that has learned from a few hundred events; user and
system time are the operating system's account of each process. `--before` names the interpreter of
another checkout, whose commands run in turn with this one's, on a shop that it made itself.

Modules are compiled once, in a folder of this benchmark, as an installed package's are. (Where
`PYTHONDONTWRITEBYTECODE` is set, a checkout that was never compiled costs .2 s more each time.)
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COMMANDS = (
    "--version",
    "--help",
    "check",
    "ledger verify",
    "ledger show --last 3",
    "state inspect",
    "topics check",
    "doctor",
    "send events.ndjson",
    "watch --help",
    "send --help",
    "replay --help",
    "plan --actions 10 --epsilon 1 --gap 0.1 --horizon 1000",
)
"""`plan` simulates: the shortest horizon that says anything leaves little but its start."""

LIMIT = 0.4
"""Seconds of processor time that a command may take to start."""

CONFIGURATION = """
app = "shop"
[transport]
kind = "sqlite"
path = "shop.db"
[topics.losses]
budget = "1"
[streams.home]
input = "losses"
start = "earliest"
actions = ["a", "b", "c"]
[streams.home.learner]
epsilon = "1/2"
"""


def program(python: str) -> str:
    """The command beside an interpreter."""
    return str(Path(python).with_name("streamdp"))


def shop(python: str, folder: Path) -> None:
    """A shop that has learned."""
    (folder / "streamdp.toml").write_text(CONFIGURATION)
    chance = random.Random(1)
    events = (
        json.dumps(
            {"key": f"key-{at % 5}", "losses": [round(chance.random(), 3) for _ in range(3)]}
        )
        for at in range(400)
    )
    (folder / "events.ndjson").write_text("\n".join(events))
    call = [program(python), "send", "events.ndjson", "--stream", "home"]
    subprocess.run(call, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    service = subprocess.Popen([program(python), "run"], cwd=folder, stderr=subprocess.PIPE)
    assert service.stderr is not None
    for line in service.stderr:
        if b"partition_running" in line:
            time.sleep(2)  # nothing here is a test: it has read a few hundred events by then
            break
    service.terminate()
    service.communicate()


def seconds(python: str, command: str, folder: Path) -> float:
    """User and system time of one run."""
    call = [program(python), *command.split()]
    null = subprocess.DEVNULL
    process = subprocess.Popen(call, cwd=folder, stdin=null, stdout=null, stderr=null)
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0  # it was waited for above
    return used.ru_utime + used.ru_stime


def measured(pythons: Sequence[tuple[str, str]], turns: int, folder: Path) -> list[dict[str, Any]]:
    """Medians of each command, of every checkout in turn."""
    for who, python in pythons:
        (folder / who).mkdir()
        shop(python, folder / who)
    rows = []
    for command in COMMANDS:
        times: dict[str, list[float]] = {who: [] for who, _ in pythons}
        for turn in range(turns + 1):  # the first compiles
            for who, python in pythons:
                took = seconds(python, command, folder / who)
                times[who] += [took] if turn else []
        row = {"command": command} | {who: statistics.median(of) for who, of in times.items()}
        print("  ".join([f"{command:56}", *(f"{who} {row[who]:.3f} s" for who in times)]))
        rows.append(row)
    return rows


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--before", help="the interpreter of another checkout, measured in turn")
    options = parser.parse_args()
    pythons = [("before", options.before)] if options.before else []
    with tempfile.TemporaryDirectory(prefix="streamdp-bench-") as name:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = f"{name}/compiled"
        rows = measured([*pythons, ("now", sys.executable)], options.turns, Path(name))
    slowest = max(row["now"] for row in rows)
    met = "met" if slowest <= LIMIT else "MISSED"
    print(f"the slowest start: {slowest:.3f} s of processor time, at most {LIMIT} wanted: {met}")
    if options.json:
        options.json.write_text(json.dumps({"startup": {"rows": rows, "limit": LIMIT}}))


if __name__ == "__main__":
    main()
