"""Do logs hold documented events only, and nothing from content? (P8)"""

from __future__ import annotations

import ast
import asyncio
import io
import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.errors import NodeNotReadyError

import streamdp
import streamdp_adapters
from streamdp.service import logs
from streamdp.service.settings import LoopSettings

PLACES = [Path(package.__path__[0]) for package in (streamdp, streamdp_adapters)]


def names(tree: ast.AST) -> Iterator[str]:
    """The event of every line that code logs: the first argument of a log's methods."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        code, first = node.func, node.args[0]
        if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
            continue
        called = code.attr if isinstance(code, ast.Attribute) else getattr(code, "id", "")
        of_a_log = isinstance(code, ast.Attribute) and ast.unparse(code.value).endswith("log")
        if called in ("tell", "_teller") or (of_a_log and called in ("info", "warning", "error")):
            yield first.value


@pytest.mark.slow
def test_is_every_event_documented_and_every_documented_event_logged() -> None:
    """`EVENTS` is the whole list."""
    events = {
        name
        for place in PLACES
        for path in place.rglob("*.py")
        for name in names(ast.parse(path.read_text()))
    }
    assert events == set(logs.EVENTS)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where a log is written; the root of standard logging is as before afterwards."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], level = before[0], before[1]
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    """What was written, one event a line."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_is_a_line_one_json_object_with_time_level_and_event(stream: io.StringIO) -> None:
    """In the order in which people read."""
    log = logs.set_up(level="info", style="auto", stream=stream)
    log.info("joined", streams=["home"])
    (line,) = lines(stream)
    assert list(line) == ["time", "level", "event", "streams"]
    assert (line["level"], line["event"], line["streams"]) == ("info", "joined", ["home"])


def test_is_text_for_people_and_less_on_request(stream: io.StringIO) -> None:
    """On a terminal; and only warnings, if so configured."""
    log = logs.set_up(level="warning", style="text", stream=stream)
    log.info("joined")
    log.warning("poll_lost", detail="why")
    assert "joined" not in stream.getvalue()
    assert "poll_lost" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_do_other_libraries_tell_nothing_from_content(stream: io.StringIO) -> None:
    """Templates without what fills them, exceptions without their text; below warnings nothing."""
    logs.set_up(level="info", style="json", stream=stream)
    logs.set_up(level="info", style="json", stream=stream)  # once is enough
    stranger = logging.getLogger("stranger")
    stranger.info("losses 0.25")
    stranger.warning("bad record %s", "0.25")
    try:
        raise ValueError("losses 0.25")
    except ValueError:
        stranger.exception("it broke\nlosses 0.25")
    logging.getLogger("aiokafka.conn").warning("node %s is away", 3)
    assert "0.25" not in stream.getvalue()
    logged = lines(stream)
    assert [line["event"] for line in logged] == ["library"] * 3
    assert [line["detail"] for line in logged] == ["bad record %s", "it broke", "node 3 is away"]
    assert (logged[1]["exception"], logged[1]["level"]) == ("ValueError", "error")


def test_is_what_a_library_repeats_passed_on_once(stream: io.StringIO) -> None:
    """A client that cannot find a topic says so many times a second."""
    logs.set_up(level="info", style="json", stream=stream)
    for number in range(100):
        logging.getLogger("aiokafka.client").warning("not found: %s", number)
    logging.getLogger("aiokafka.client").warning("another")
    assert [line["detail"] for line in lines(stream)] == ["not found: 0", "another"]


def test_the_client_of_streamdp_is_heard_whatever_it_names(stream: io.StringIO) -> None:
    """In one minute, too, and in full: its words hold names of streams and actions, no content."""
    logs.set_up(level="info", style="json", stream=stream)
    for number in (1, 2, 2):
        logging.getLogger("streamdp.client").warning("list %d: action boots is paused", number)
    said = [(line["event"], line["detail"]) for line in lines(stream)]
    assert said == [("client", f"list {number}: action boots is paused") for number in (1, 2)]


def test_an_outage_is_a_line_at_once_one_a_minute_and_one_at_its_end(stream: io.StringIO) -> None:
    """As long as the cause is the same, for each partition: an hour of retries is sixty lines."""
    now = [0.0]
    log = logs.set_up(level="info", style="json", stream=stream, clock=lambda: now[0])
    waits = LoopSettings().retry_seconds

    def outage(*, tries: int) -> None:
        for attempt in range(tries):
            retry_in = waits[min(attempt, len(waits) - 1)]
            log.warning("poll_lost", detail="why", retry_in=retry_in)
            for partition in ("home/0", "home/1"):
                log.info("partition_taking", partition=partition)
                log.warning("partition_lost", partition=partition, detail="why", retry_in=retry_in)
            now[0] += retry_in

    def logged() -> Counter[object]:
        counts = Counter(line["event"] for line in lines(stream))
        stream.seek(stream.truncate(0))
        return counts

    outage(tries=3)
    assert logged() == {"poll_lost": 1, "partition_taking": 2, "partition_lost": 2}
    log.info("poll_recovered", seconds=now[0])
    log.info("partition_running", partition="home/0")
    outage(tries=3)
    assert logged() == {
        "poll_recovered": 1, "partition_running": 1,
        "poll_lost": 1, "partition_taking": 1, "partition_lost": 1,
    }  # fmt: skip
    log.warning("poll_lost", detail="another cause")
    log.warning("partition_lost", partition="home/1", detail="another error of the same outage")
    assert logged() == {"poll_lost": 1}
    outage(tries=365)
    assert 3600 < now[0] < 3700  # begun less than a minute after the lines above
    assert logged() == {"poll_lost": 59, "partition_taking": 118, "partition_lost": 118}


@pytest.mark.parametrize("end", ["fenced", "halted", "revoked", "running", "waiting"])
def test_a_partition_that_is_taken_anew_says_so(stream: io.StringIO, end: str) -> None:
    """Else the log would say for a minute that this process has left it."""
    log = logs.set_up(level="info", style="json", stream=stream)
    for event in ("taking", "lost", "taking", end, "taking"):
        log.info(f"partition_{event}", partition="home/0")
    told = [line["event"] for line in lines(stream)]
    assert told == [f"partition_{event}" for event in ("taking", "lost", end, "taking")]


def test_a_library_is_heard_again_though_the_time_of_day_goes_back(stream: io.StringIO) -> None:
    """Summer time is no matter, but a clock that was an hour ahead is set right."""
    now = [0.0]
    logs.set_up(level="info", style="json", stream=stream, clock=lambda: now[0])
    for created in (7200.0, 3600.0):
        record = logging.LogRecord("aiokafka", logging.WARNING, "", 0, "away", (), None)
        record.created = created
        logging.getLogger("aiokafka").handle(record)
        now[0] += 61
    assert len(lines(stream)) == 2


async def test_is_an_exception_that_nobody_awaited_told_without_its_text(
    stream: io.StringIO,
) -> None:
    """asyncio's own words would quote it."""
    log = logs.set_up(level="info", style="json", stream=stream)

    async def broken() -> None:
        raise ValueError("losses 0.25")

    logs.watch_loop(asyncio.get_running_loop(), log)
    task = asyncio.create_task(broken())
    await asyncio.wait({task})
    del task
    (line,) = lines(stream)
    assert (line["event"], line["exception"]) == ("loop_exception", "ValueError")
    assert "0.25" not in stream.getvalue()


async def test_futures_that_the_client_drops_in_an_outage_are_no_defect_of_ours(
    stream: io.StringIO,
) -> None:
    """Whoever asked the client has got the same error; a warning a minute is enough."""
    log, now = logs.set_up(level="info", style="json", stream=stream), [0.0]

    logs.watch_loop(asyncio.get_running_loop(), log, clock=lambda: now[0])
    for _ in range(14):
        future = asyncio.get_running_loop().create_future()
        future.set_exception(NodeNotReadyError("of b'losses'"))
        del future
        now[0] += 10
    said = [(line["event"], line["level"], line["exception"]) for line in lines(stream)]
    assert said == [("library", "warning", "NodeNotReadyError")] * 3
    assert "losses" not in stream.getvalue()
