"""Is every block released exactly once on a real broker, whatever is killed, frozen or moved?"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from streamdp.testing.broker import Borrowed, own_broker
from tests.crash.process import STEPS, Place
from tests.crash.scenario import Scenario
from tests.support.forking import Forked

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))
"""How much longer `make soak` tries what is tried once here."""

KILLS = 3 if TIMES == 1 else 5 * TIMES
"""Of the service, at each step of the protocol."""

SESSION_MS = 1500

Seen = dict[tuple[str, int], list[bytes]]


def scenario(
    bootstrap: str, app: str, folder: Path, *, seed: int, mutant: str | None = None
) -> Scenario:
    """Three streams on four partitions of one input."""
    settings: dict[str, object] = {
        "bootstrap": bootstrap, "single_broker": True, "session_timeout_ms": SESSION_MS,
    }  # fmt: skip
    made = Scenario(Place("kafka", settings, app, 4), folder, random.Random(seed), mutant=mutant)
    made.prepare()
    return made


def uncommitted(bootstrap: str, made: Scenario) -> Seen:
    """Every ledger line that anybody could ever have read, aborted ones included."""

    async def read() -> Seen:
        seen: Seen = defaultdict(list)
        consumer: Any = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_uncommitted",
            enable_auto_commit=False,
        )
        await consumer.start()
        for spec in made.place.specs():
            parts = [TopicPartition(spec.topics.ledger, n) for n in range(made.place.partitions)]
            consumer.assign(parts)
            await consumer.seek_to_beginning()
            ends = await consumer.end_offsets(parts)
            while any([await consumer.position(part) < end for part, end in ends.items()]):
                batches = await consumer.getmany(timeout_ms=200)
                for part, records in batches.items():
                    seen[spec.name, part.partition] += [record.value for record in records]
        await consumer.stop()
        return seen

    return asyncio.run(read())


@pytest.mark.long
def test_is_every_block_released_once_through_kills_at_every_step(
    broker: Borrowed, fresh_app: Callable[[], str], tmp_path: Path
) -> None:
    """Each kill ends twelve partitions, wherever they are; aborted data is looked at too."""
    made = scenario(broker.bootstrap, fresh_app(), tmp_path, seed=1)
    made.kill_at_each(STEPS["kafka"], times=KILLS, per_partition=10)
    assert made.finish() == []
    assert made.findings(uncommitted(broker.bootstrap, made)) == []
    assert sum(made.steps.values()) >= 40 * KILLS, made.steps
    assert min(made.steps[step] for step in STEPS["kafka"]) > KILLS // 2, made.steps


@pytest.mark.long
@pytest.mark.parametrize(
    ("mutant", "said"),
    [
        ("publish_before_durable", "two different releases"),
        ("redraw", "two different releases"),
        ("skip_a_record", "not the fold"),
    ],
)
def test_does_the_judge_catch_each_mutant(
    broker: Borrowed, fresh_app: Callable[[], str], tmp_path: Path, mutant: str, said: str
) -> None:
    """A service that is broken on purpose is found out, on the same broker by the same judge."""
    made = scenario(broker.bootstrap, fresh_app(), tmp_path, seed=2, mutant=mutant)
    for attempt in range(40):
        made.send(20)
        # In the stream whose redraws show. Late at first: two commits of each of its partitions
        # publish something before. One that skipped a record halts, rebuilt, and publishes no more.
        made.kill_at("commit: sent", 8 - attempt % 3, stream="wide")
        # a prefix: lines that are still to come are no fault
        faults = made.findings(uncommitted(broker.bootstrap, made), whole="prefix")
        if any(re.search(said, fault) for fault in faults):
            return
    pytest.fail(f"{mutant} was not caught: {faults[:5]}")


def test_is_a_frozen_owner_that_wakes_up_harmless(
    broker: Borrowed, fresh_app: Callable[[], str], tmp_path: Path
) -> None:
    """SIGSTOP past the session time-out, an heir, SIGCONT: the zombie commits nothing."""
    made = scenario(broker.bootstrap, fresh_app(), tmp_path, seed=3)
    with ExitStack() as stack:
        zombie = stack.enter_context(made.running())
        made.send(20)
        assert made.settle([zombie]) == []
        for _ in range(TIMES):
            heir = stack.enter_context(made.running())
            made.send(20)
            zombie.send_signal(signal.SIGSTOP)
            time.sleep(2 * SESSION_MS / 1000)  # the broker's own clock has to pass
            made.send(20)
            assert made.settle([heir]) == []
            zombie.send_signal(signal.SIGCONT)
            made.send(20)
            assert made.settle([heir]) == []
            made.stop(zombie)
            zombie = heir
        made.stop(zombie)
    assert made.findings(uncommitted(broker.bootstrap, made)) == []


@pytest.mark.long
def test_is_nothing_lost_or_doubled_while_workers_come_and_go(
    broker: Borrowed, fresh_app: Callable[[], str], tmp_path: Path
) -> None:
    """2 → 3 → 1 workers under load, then a rolling restart of three."""
    made = scenario(broker.bootstrap, fresh_app(), tmp_path, seed=4)
    with ExitStack() as stack:

        def begin() -> Forked:
            return stack.enter_context(made.running())

        workers = [begin(), begin()]
        for _ in range(3):
            made.send(10)
        workers.append(begin())
        for _ in range(3):
            made.send(10)
        assert made.settle(workers) == []
        for worker in workers[:2]:
            made.send(10)
            made.stop(worker)
        made.send(10)
        assert made.settle(workers[2:]) == []
        workers = [workers[2], begin(), begin()]
        for old in list(workers):
            made.send(10)
            made.stop(old)
            workers.remove(old)
            workers.append(begin())
        made.send(10)
        assert made.settle(workers) == []
        for worker in workers:
            made.stop(worker)
    assert made.findings(uncommitted(broker.bootstrap, made)) == []


@pytest.mark.long
def test_does_the_service_wait_for_its_broker_and_outlive_it(
    fresh_app: Callable[[], str], tmp_path: Path
) -> None:
    """Down when the service starts, later killed in mid-commit: nobody has to start it again."""
    with own_broker() as mine:
        made = scenario(mine.bootstrap, fresh_app(), tmp_path, seed=5)
        made.send(20)
        mine.kill()
        with made.running() as process:
            made.await_said(process, "join_lost")
            mine.restart()
            assert made.settle([process]) == []
            for _ in range(TIMES):
                made.send(20)
                time.sleep(0.3)  # let commits be under way
                mine.kill()
                mine.restart()
            made.send(20)
            assert made.settle([process]) == []
            made.stop(process)
        assert made.findings(uncommitted(mine.bootstrap, made)) == []
