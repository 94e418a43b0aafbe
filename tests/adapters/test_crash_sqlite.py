"""Is every release published exactly once, with one value, whatever kills a service on SQLite?

The judge opens the published file as any reader would, after every kill, and remembers all that it
has ever shown: each block of a partition has one line, blocks are consecutive, and no block is ever
seen with two values. The service under test is `sqlite_victim.py`, killed by SIGKILL at every
statement that its writing thread makes, at every named step, and at arbitrary times.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamdp_adapters.sqlite.transport import STEPS

pytestmark = pytest.mark.slow

VICTIM = Path(__file__).parents[1] / "support" / "sqlite_victim.py"
KILLED = -9
FULL = 3
ROUNDS = 3


class Nursery:
    """The parent of the victims."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trusted.db"
        self.process = subprocess.Popen(
            [sys.executable, str(VICTIM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, *jobs: dict[str, Any]) -> list[int]:
        """Exit codes of victims that run at the same time."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        whole = [{"path": str(self.path), "rounds": ROUNDS} | job for job in jobs]
        self.process.stdin.write(json.dumps(whole) + "\n")
        self.process.stdin.flush()
        codes: list[int] = json.loads(self.process.stdout.readline())
        return codes

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait(30) == 0


class Judge:
    """Remembers everything that was ever published."""

    def __init__(self, nursery: Nursery) -> None:
        self.path = nursery.path.with_name("trusted.published.db")
        self.seen: dict[tuple[int, int], str] = {}

    def look(self) -> int:
        """Check everything that is published now; how many lines there are."""
        if not self.path.exists():
            return 0
        file = sqlite3.connect(self.path)
        try:
            if not file.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                return 0  # killed before the tables were made
            rows = file.execute(
                "SELECT part.number, ledger.value FROM ledger"
                " JOIN part ON part.id = ledger.id >> 40 ORDER BY ledger.id"
            ).fetchall()
        finally:
            file.close()
        blocks: dict[int, list[int]] = {}
        for number, line in rows:
            block, value = line.decode().split(":")
            blocks.setdefault(number, []).append(int(block))
            known = self.seen.setdefault((number, int(block)), value)
            assert known == value, f"block {block} of partition {number} was redrawn"
        for number, numbers in blocks.items():
            assert numbers == list(range(len(numbers))), f"partition {number} has blocks {numbers}"
        return len(rows)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    nursery = Nursery(tmp_path)
    yield nursery
    nursery.close()


def test_a_kill_at_any_statement(nursery: Nursery) -> None:
    """More than a hundred kills: in the middle of each transaction, and between any two."""
    judge = Judge(nursery)
    kills = 0
    for statement in range(1, 400):
        (code,) = nursery.run({"statement": statement})
        judge.look()
        if code == 0:
            break
        assert code == KILLED
        kills += 1
    assert kills > 100
    lines = judge.look()
    assert nursery.run({}) == [0]
    assert judge.look() >= lines + 2 * (ROUNDS - 1)


@pytest.mark.parametrize("step", [step for step in STEPS if not step.startswith("poll")])
def test_a_kill_at_any_step(nursery: Nursery, step: str) -> None:
    judge = Judge(nursery)
    passages = 2 if step.startswith("take") else 2 * ROUNDS
    for passage in range(1, passages + 1):
        assert nursery.run({"step": step, "passage": passage}) == [KILLED]
        judge.look()
    lines = judge.look()
    assert nursery.run({}) == [0]
    assert judge.look() >= lines + 2 * (ROUNDS - 1)


def test_services_that_fence_each_other(nursery: Nursery) -> None:
    """Three processes take the same partitions from each other, one of them killed at times."""
    judge = Judge(nursery)
    assert nursery.run({}) == [0]
    for passage in range(1, 7):
        rivals = {"attempts": 50, "rounds": 6}
        dying = {"step": "commit: recorded", "passage": passage}
        codes = nursery.run(rivals, rivals | dying, rivals)
        assert codes[0] == codes[2] == 0
        judge.look()
    assert judge.look() > 6 * ROUNDS


@pytest.mark.parametrize("publish", ["later", "at once"])
def test_a_commit_that_publishes_first_is_caught(nursery: Nursery, publish: str) -> None:
    """The next take finds a published file that is ahead, and goes no further."""
    with pytest.raises(AssertionError, match=r"\[1\] == \[-9\]"):
        sweep(nursery, {"mutant": "publish first", "publish": publish})


def sweep(nursery: Nursery, mutant: dict[str, str]) -> None:
    judge = Judge(nursery)
    for passage in range(1, 2 * ROUNDS + 1):
        for step in ("commit: recorded", "commit: published"):
            codes = nursery.run({"step": step, "passage": passage} | mutant)
            assert codes == [KILLED]
            judge.look()


def test_a_disk_that_fills_up(nursery: Nursery) -> None:
    """A limit on file sizes that is hit in many places: nothing is lost and a clear end is made."""
    judge = Judge(nursery)
    assert nursery.run({}) == [0]
    ends = set()
    for limit in range(60_000, 300_000, 12_000):
        (code,) = nursery.run({"file_limit": limit, "size": 3000, "rounds": 20})
        ends.add(code)
        judge.look()
    assert FULL in ends
    assert ends <= {0, FULL}
    lines = judge.look()
    assert nursery.run({}) == [0]
    assert judge.look() >= lines + 2 * (ROUNDS - 1)


def test_producers_in_other_processes(nursery: Nursery) -> None:
    """Appending at once loses nothing and keeps each producer's order in each partition."""
    jobs = [{"send": 200, "name": name} for name in ("a", "b", "c")]
    assert nursery.run(*jobs, {"rounds": 20}) == [0, 0, 0, 0]
    file = sqlite3.connect(nursery.path)
    rows = file.execute("SELECT id, key, value FROM record ORDER BY id").fetchall()
    file.close()
    assert len(rows) == 600
    orders: dict[tuple[str, bytes, int], list[int]] = {}
    for at, key, value in rows:
        name, number = value.decode().split()
        orders.setdefault((name, key, at >> 40), []).append(int(number))
    assert len(orders) == 3 * 4  # a key has one home
    assert all(order == sorted(order) for order in orders.values())
