"""Do private contexts come through the join on a broker, though both processes are killed?"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdp.client import Answer, Names, Request, Why
from streamdp.client.requests import outcome_record, request_record
from streamdp.core.evidence.contexts import Contexts
from streamdp.ports import StreamTopics
from streamdp.service.config import Configuration
from streamdp.testing.broker import Borrowed
from tests.support.batches import observe
from tests.support.processes import LONG, Process, ended_at_once
from tests.support.shop_files import joined_shop

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ACTIONS = ("boots", "coats")
FIELDS = Contexts.read({"device": ["phone"], "country": ["fr"]})
TABLES = """
played = "value"
schedule = "capped 4"
interactions = "none"
[streams.clicks.format]
name = "float32"
[streams.clicks.context]
device = ["phone"]
country = ["fr"]
[service]
idle_commit_seconds = 0.05
[log]
format = "json"
"""
HALF = 12


def test_private_contexts_are_joined_once_through_kills(
    broker: Borrowed, fresh_app: Callable[[], str], tmp_path: Path
) -> None:
    """One event for each request, in their order, of one length; and a ledger without faults."""
    app, path = fresh_app(), tmp_path / "shop.toml"
    text = joined_shop(
        app=app,
        transport=f'kind = "kafka"\nbootstrap = "{broker.bootstrap}"\nsession_timeout_ms = 1500',
        of_topics="partitions = 1",
        actions='["boots", "coats"]',
        of_stream='fallback_action = "boots"',
        tables=TABLES,
        of_assembly='grace = "100ms"',
    )
    path.write_text(text)
    options = ("--config", str(path), "--single-broker")
    made = ended_at_once("topics", "create", *options)
    assert made.returncode == 0, made.stderr
    configuration = Configuration.load(path, {})
    technology = configuration.technology(single_broker=True)
    names = Names(ACTIONS, "", FIELDS, "value")

    async def lies(topic: str) -> tuple[list[bytes | None], list[object]]:
        values: list[bytes | None] = []
        headers: list[object] = []
        tools = technology.administrator()
        try:
            of = StreamTopics("reader", "reader", topic, headers=True)
            async for batch in tools.history(of, after={}):
                values += batch.values
                headers += batch.headers
        finally:
            await tools.close()
        return values, headers

    async def visits(first: int) -> None:
        producer = technology.producer()
        for at in range(first, first + HALF):
            told = names.told(at % FIELDS.cells)
            choice = Answer(ACTIONS[at % 2], Why.STALE, probability=0.5, context=told)
            request = Request(b"home", f"r-{at}")
            records = {"requests": request_record(request, choice=choice)}
            if at % 3 == 0:
                records["outcomes"] = outcome_record(request, 1)
            for topic, (key, value, headers) in records.items():
                await producer.send(f"{app}.{topic}", [(key, value)], headers=[headers])
        await producer.close()

    async def until(topic: str, count: int) -> None:
        async with asyncio.timeout(LONG):
            while len((await lies(topic))[0]) < count:
                await asyncio.sleep(0.1)

    async def lived() -> None:
        running = [Process.start(command, *options) for command in ("assemble", "run")]
        try:
            await visits(0)
            await until(f"{app}.events", 1)
            for process in running:
                process.popen.send_signal(signal.SIGKILL)
                await asyncio.to_thread(process.popen.wait)
            running += [Process.start(command, *options) for command in ("assemble", "run")]
            await visits(HALF)
            await until(f"{app}.events", 2 * HALF)
            await until(configuration.spec("clicks").topics.ledger, 1 + 2 * HALF // 4)
        finally:
            for process in running:
                process.__exit__()

    asyncio.run(lived())
    values, headers = asyncio.run(lies(f"{app}.events"))
    format_ = configuration.streams["clicks"].format()
    assert format_.feedback is not None
    seen = observe(format_, values, headers)  # type: ignore[arg-type]
    assert seen.played.tolist() == [at % FIELDS.cells * 2 + at % 2 for at in range(2 * HALF)]
    assert (seen.gain > 0).tolist() == [at % 3 == 0 for at in range(2 * HALF)]
    assert len({len(value or b"") for value in values}) == 1
    verified = ended_at_once("ledger", "verify", *options)
    assert verified.returncode == 0, (verified.stdout, verified.stderr)
