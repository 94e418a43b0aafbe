"""Joins of requests and outcomes as processes, and the two topics that they read.

`streamdp assemble` reads records that have the learner's key, with the request's id in a header.
The peers join by the record's key, so they get topics of their own in which that is the id: nobody
has to write anything anew before the join. What is in the records is otherwise the same.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tomli_w
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import RecordMetadata

from streamdp.ports import Headers
from tests.bench.peers.candidates import PEERS, ROOT, java_of
from tests.bench.peers.inputs import PARTITIONS, create, filler, new_name
from tests.bench.peers.processes import Candidate

CLICKED = 4
"""One request of so many is followed by an outcome."""

_TOGETHER = 500  # requests of a batch; their outcomes follow at once
_KEYS = 50  # learners: segments of visitors
_ACTIONS = ("autumn", "boots", "coats", "delivery")
_UNDER_WAY = 16  # batches


@dataclass(frozen=True, slots=True)
class Logs:
    """Requests and outcomes on a broker."""

    bootstrap: str
    requests: str
    outcomes: str
    by_id: bool  # whether the records' key is the request's id

    @classmethod
    async def new(cls, bootstrap: str, *, by_id: bool) -> Logs:
        """Empty ones, with the brokers' own timestamps."""
        name = new_name()
        logs = cls(bootstrap, f"{name}-requests", f"{name}-outcomes", by_id)
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            configs = {"message.timestamp.type": "LogAppendTime"}
            topics = [
                NewTopic(topic, PARTITIONS, 1, topic_configs=configs)
                for topic in (logs.requests, logs.outcomes)
            ]
            answer = await admin.create_topics(topics)
            if any(error for _, error, *_ in answer.topic_errors):
                raise RuntimeError(f"could not create topics: {answer.topic_errors}")
        finally:
            await admin.close()
        return logs

    async def fill(self, count: int, *, rate: float | None = None) -> None:
        """Append so many requests, each batch with its outcomes, at a steady rate if one is given.

        Every id is new, so that each request takes what came of it.
        """
        producer = filler(self.bootstrap)
        await producer.start()
        try:
            waiting: list[asyncio.Future[RecordMetadata]] = []
            begun, sent = time.monotonic(), 0
            together = _TOGETHER if rate is None else max(1, round(rate / 200))
            for partition, requests, outcomes in self._batches(producer, count, together):
                if rate is not None:
                    await asyncio.sleep(max(0.0, begun + sent / rate - time.monotonic()))
                sent += together
                for topic, batch in ((self.requests, requests), (self.outcomes, outcomes)):
                    if batch.record_count():
                        batch.close()
                        waiting.append(await producer.send_batch(batch, topic, partition=partition))
                if len(waiting) > _UNDER_WAY:
                    await asyncio.gather(*waiting)
                    waiting.clear()
            await asyncio.gather(*waiting)
        finally:
            await producer.stop()

    def _batches(
        self, producer: AIOKafkaProducer, count: int, together: int
    ) -> Iterator[tuple[int, BatchBuilder, BatchBuilder]]:
        run = os.urandom(4).hex()
        for first in range(0, count, together):
            requests, outcomes = producer.create_batch(), producer.create_batch()
            for number in range(first, min(first + together, count)):
                id_ = b"%s-%023d" % (run.encode(), number)
                _append(requests, *self._request(id_, number))
                if number % CLICKED == 0:
                    _append(outcomes, *self._outcome(id_, number))
            yield first // together % PARTITIONS, requests, outcomes

    def _request(self, id_: bytes, number: int) -> tuple[bytes, bytes | None, Headers]:
        action = _ACTIONS[number % len(_ACTIONS)].encode()
        if self.by_id:
            return id_, b'{"action":"%b","pscore":0.25}' % action, []
        headers = [("streamdp-request", id_), ("streamdp-action", action), ("pscore", b"0.25")]
        return b"segment-%d" % (number % _KEYS), None, headers

    def _outcome(self, id_: bytes, number: int) -> tuple[bytes, bytes | None, Headers]:
        value = b'{"reward": 1}'
        if self.by_id:
            return id_, value, []
        return b"segment-%d" % (number % _KEYS), value, [("streamdp-request", id_)]


def _append(batch: BatchBuilder, key: bytes, value: bytes | None, headers: Headers) -> None:
    if batch.append(timestamp=None, key=key, value=value, headers=list(headers)) is None:
        raise AssertionError("a batch is too small for its records")


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds: in which outcomes count, and by which clocks may differ."""

    window: int
    grace: int


async def assemble(logs: Logs, times: Times, folder: Path, *, port: int = 0) -> Candidate:
    """`streamdp assemble` with default settings; its own topics are made here."""
    app = new_name()
    path = folder / f"{app}.toml"
    path.write_text(tomli_w.dumps(_configuration(logs, times, app, port)), "utf-8")
    program = str(Path(sys.executable).with_name("streamdp"))
    made = await asyncio.to_thread(
        subprocess.run, [program, "topics", "create", "--config", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        raise RuntimeError(f"could not create topics: {made.stdout} {made.stderr}")
    command = [program, "assemble", "--config", str(path)]
    return Candidate("streamdp", f"{app}.join", [command], {})


def events_of(candidate: Candidate) -> str:
    """Where a join writes to."""
    return f"{candidate.group.removesuffix('.join')}-events"


def _configuration(logs: Logs, times: Times, app: str, port: int) -> dict[str, object]:
    """The service's file."""
    events = f"{app}-events"
    listen = {"http": {"listen": f"127.0.0.1:{port}"}} if port else {}
    return {
        "app": app,
        "transport": {"kind": "kafka", "bootstrap": logs.bootstrap, "single_broker": True},
        "topics": {
            logs.requests: {"budget": "1", "partitions": PARTITIONS},
            events: {"budget": "1", "partitions": PARTITIONS},
        },
        "streams": {
            "banners": {
                "input": events,
                "start": "earliest",
                "observes": "feedback",
                "actions": list(_ACTIONS),
                "learner": {"epsilon": "1"},
                "format": {"name": "json", "padding": "fixed"},
                "feedback": {"content": "reward", "salt": "bench"},
            }
        },
        "assemblies": {
            "join": {
                "requests": logs.requests,
                "outcomes": logs.outcomes,
                "stream": "banners",
                "start": "earliest",
                "mode": "feedback",
                "window": _length(times.window),
                "grace": _length(times.grace),
                "combine": "max",
                "default_loss": 1.0,
            }
        },
        **listen,
    }


def _length(milliseconds: int) -> str:
    """As a configuration has it."""
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


async def kafka_streams(
    logs: Logs, times: Times, folder: Path, *, stores: str, heap: str
) -> Candidate:
    """A windowed left join of Kafka Streams: exactly-once (v2), two threads."""
    group = new_name()
    await create(logs.bootstrap, f"{group}-events")
    target = ROOT / "tests" / "bench" / "kafka_streams" / "target"
    command = [
        java_of(), *heap.split(), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-cp", f"{target}/running-sums.jar:{target}/libraries/*", "WindowedLeftJoin",
        logs.bootstrap, group, logs.requests, logs.outcomes, f"{group}-events",
        str(times.window), str(times.grace), stores, str(folder / group),
    ]  # fmt: skip
    return Candidate(f"Kafka Streams, {stores}", group, [command], {})


async def quix(logs: Logs, times: Times, folder: Path) -> Candidate:
    """A left interval join of Quix Streams: exactly-once."""
    group = new_name()
    await create(logs.bootstrap, f"{group}-events")
    program = str(ROOT / "tests" / "bench" / "peers" / "quix_join.py")
    command = [
        os.environ[PEERS], program, logs.bootstrap, group, logs.requests, logs.outcomes,
        f"{group}-events", str(times.window), str(times.grace), str(folder / group),
    ]  # fmt: skip
    return Candidate("Quix Streams", group, [command], {})
