"""Does what a recommender writes become the events of docs/loop.md, and does nothing else show?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import jsonschema
import pytest

from streamdp.assembly.contents import Asked, Said
from streamdp.assembly.recipes import AssemblyRecipe, Categories, Errors, Rankers, Rewards
from streamdp.client import (
    Answer,
    Chosen,
    Lists,
    Loop,
    LoopTopics,
    Predictions,
    Request,
    Reward,
    Right,
    Truth,
    Why,
)
from streamdp.client.requests import outcome_record, request_record
from streamdp.core.errors import InvalidConfig, TransportLost, Unreached
from streamdp.ports import Headers, Key, Producer, StreamTopics, Technology, Value
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp.wire.schemas import schema
from streamdp_adapters.sqlite import Sqlite
from tests.support.loops import ACTIONS, Draws, joined, rows

TOPICS = LoopTopics("requests", "outcomes")
PAIR = StreamTopics(
    "shop", "clicks", "requests", headers=True, second_input="outcomes", output="events"
)


async def opened(kind: str, folder: Path) -> Technology:
    """A log with the topics of the pair."""
    path = {"path": str(folder / "shop.db")}
    technology: Technology = (
        MemoryTechnology(MemoryLog())
        if kind == "memory"
        else Sqlite.from_settings(path, app="shop")
    )
    administrator = technology.administrator()
    await administrator.create([PAIR], partitions=1)
    await administrator.close()
    return technology


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_is_what_was_shown_and_clicked_the_event_of_the_page(
    kind: str, tmp_path: Path
) -> None:
    """Each request is one event, with what was drawn in its headers, clicked or not."""
    technology, draws = await opened(kind, tmp_path), Draws()
    async with Loop(technology.producer, draws, stream="banners", topics=TOPICS) as loop:
        clicked = loop.choose(b"fr", request="r1", person="p-7")
        passed_by = loop.choose(b"fr")
        assert await asyncio.to_thread(loop.flush)
        loop.outcome(clicked, 0.25)
        loop.outcome(Request(b"fr", "r1"), Reward(1))  # by another process, the id alone
        assert await asyncio.to_thread(loop.flush)
        assert loop.condition.requests.written == loop.condition.outcomes.written == 2
    requests = await rows(technology, "requests")
    outcomes = await rows(technology, "outcomes")
    assert draws.asked[0] == ("banners", b"fr", "r1")
    assert draws.asked[1][2] == passed_by.request.id != clicked.request.id
    first, second = joined(requests, outcomes, Rewards())
    assert first == (b"fr", [0.0], {  # the larger of the two rewards
        "streamdp-request": b"r1", "streamdp-action": b"list", "pscore": b"0.25",
        "streamdp-release": b"0/1/17/3",
    })  # fmt: skip
    assert second[1] == [1.0]
    assert second[2]["streamdp-action"] == passed_by.action.encode() == b"grid"
    assert ("streamdp-person", b"p-7") in requests[0][3]


@pytest.mark.parametrize(
    ("recipe", "asked", "said", "losses"),
    [
        (Rankers(ACTIONS), Lists({"grid": ["x", "y"], "list": ["z"]}), Chosen("y"), [0.0, 1.0]),
        (Categories(ACTIONS), None, Right(["list"]), [1.0, 0.0]),
        (Errors(ACTIONS, scale=2.0), Predictions({"grid": 3, "list": 2.5}), Truth(2), [0.5, 0.25]),
    ],
    ids=["rankers", "categories", "errors"],
)
def test_do_contents_say_what_the_modes_read(
    recipe: AssemblyRecipe, asked: Asked | None, said: Said, losses: list[float]
) -> None:
    """And both keep their published schema."""
    request = Request(None, "r1")
    key, value, headers = request_record(request, content=asked)
    at, outcome = 1_000, outcome_record(request, said)
    (event,) = joined(
        [(0, at, key, headers, value)], [(0, at + 5, outcome[0], outcome[2], outcome[1])], recipe
    )
    assert event == (None, losses, {"streamdp-request": b"r1"})
    if value is not None:
        jsonschema.validate(json.loads(value), schema("request"))
    jsonschema.validate(json.loads(outcome[1] or b""), schema("outcome"))


def test_does_a_fallback_name_no_release() -> None:
    _, _, headers = request_record(Request(b"fr", "r"), choice=Answer("grid", Why.UNKNOWN_KEY))
    assert dict(headers) == {
        "streamdp-request": b"r", "streamdp-action": b"grid", "pscore": b"1.0"
    }  # fmt: skip


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: outcome_record(Request(b"k", "r"), 1.5), "from 0 to 1, got a number outside"),
    (lambda: outcome_record(Request(b"k", "r"), float("nan")), "a finite number, got another"),
    (lambda: outcome_record(Request(b"k", "r"), True), "a number, got bool"),
    (lambda: outcome_record(Request(b"k", "r"), "1"), "a number, got str"),  # type: ignore[arg-type]
    (lambda: outcome_record(Request(b"k", "r"), Chosen(3)), "a text, got int"),  # type: ignore[arg-type]
    (lambda: outcome_record(Request(b"k", "r"), Right("grid")), "a list of texts, got str"),
    (lambda: outcome_record(Request("k", "r"), 1), "bytes or None, got str"),  # type: ignore[arg-type]
    (lambda: outcome_record(Request(b"k", ""), 1), "1 to 256 bytes of UTF-8, got 0"),
    (lambda: request_record(Request(b"k", "r" * 257)), "1 to 256 bytes of UTF-8, got 257"),
    (lambda: request_record(Request(b"k", b"r")), "text, got bytes"),  # type: ignore[arg-type]
    (lambda: request_record(Request(b"k", "r"), person=""), "person id"),
    (lambda: request_record(Request(b"k", "r"), content=Lists({})), "by its name, got dict"),
    (
        lambda: request_record(Request(b"k", "r"), content=Lists({"a": [7]})),  # type: ignore[list-item]
        "a text, got int",
    ),
    (
        lambda: request_record(Request(b"k", "r"), content=Predictions({"a": float("inf")})),
        "a finite number",
    ),
]


@pytest.mark.parametrize(("write", "message"), BAD, ids=[message for _, message in BAD])
def test_is_a_mistake_refused_where_it_is_made(write: Callable[[], object], message: str) -> None:
    """With what was expected, and never with what an outcome said."""
    with pytest.raises(InvalidConfig, match=message) as refused:
        write()
    assert "1.5" not in str(refused.value)


def test_is_a_loop_that_is_not_open_refused() -> None:
    loop = Loop(MemoryTechnology(MemoryLog()).producer, topics=TOPICS)
    with pytest.raises(InvalidConfig, match="is not open"):
        loop.outcome(Request(b"k", "r"), 1)
    with pytest.raises(InvalidConfig, match="nothing to draw actions from"):
        loop.choose(b"k")


async def test_is_waiting_in_the_event_loop_that_would_have_to_write_refused() -> None:
    """It would wait for itself for ever."""
    async with Loop(MemoryTechnology(MemoryLog()).producer, topics=TOPICS) as loop:
        with pytest.raises(InvalidConfig, match="another thread"):
            loop.flush()


class Stuck:
    """A producer of which some topics answer, some never, and some refuse."""

    def __init__(self, *, never: str = "", lost: str = "") -> None:
        self.never, self.lost = never, lost
        self.sent: dict[str, list[int]] = {}

    async def send(
        self,
        topic: str,
        records: Sequence[tuple[Key, Value]],
        *,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
    ) -> None:
        self.sent.setdefault(topic, []).append(len(records))
        if topic == self.never:
            await asyncio.Event().wait()
        if topic == self.lost:
            raise TransportLost("no answer")

    async def close(self) -> None: ...


def loop_on(producer: Producer, **more: Any) -> Loop:
    return Loop(lambda: producer, Draws(), stream="b", topics=TOPICS, close_within=0.01, **more)


class OneQueue(Loop):
    """A mutant: outcomes wait where requests wait."""

    async def __aenter__(self) -> Self:
        opened = await super().__aenter__()
        self._outcomes = self._requests
        return opened


@pytest.mark.parametrize("kind", [Loop, OneQueue])
def test_do_outcomes_that_cannot_be_written_move_no_request(kind: type[Loop]) -> None:
    """That there are clicks is a secret; when and whether a request is written is public."""

    async def run(clicks: int) -> tuple[list[int], object]:
        producer = Stuck(never="outcomes")
        loop = kind(lambda: producer, Draws(), stream="b", topics=TOPICS, most_waiting=3,
                    close_within=0.01)  # fmt: skip
        async with loop:
            for at in range(3):
                shown = loop.choose(b"k", request=f"r{at}")
                for _ in range(clicks):
                    loop.outcome(shown, 1)
                while loop.condition.requests.waiting:
                    await asyncio.sleep(0)
            return producer.sent["requests"], loop.condition.requests

    assert (asyncio.run(run(0)) == asyncio.run(run(5))) is (kind is Loop)


async def test_is_a_batch_that_was_given_up_counted_and_never_sent_again() -> None:
    """A second copy of a request would take a slot of its own."""
    producer = Stuck(lost="requests")
    async with loop_on(producer, pause=0.0) as loop:
        loop.choose(b"k")
        assert await asyncio.to_thread(loop.flush)
        loop.choose(b"k")
        assert await asyncio.to_thread(loop.flush)
        requests = loop.condition.requests
        assert (requests.written, requests.lost, requests.waiting) == (0, 2, 0)
        assert requests.trouble == "no answer"
    assert producer.sent["requests"] == [1, 1]


async def test_is_nothing_lost_as_long_as_no_broker_answers() -> None:
    """Nothing was sent, so it is tried again, in order; what waits beyond its room is refused."""

    class Asleep(Stuck):
        """Answers from the third attempt on."""

        attempts = 0

        async def send(self, topic: str, records: Any, **more: Any) -> None:
            self.attempts += 1
            if self.attempts < 3:
                raise Unreached("no broker answers")
            await super().send(topic, records, **more)

    producer = Asleep()
    async with loop_on(producer, pause=0.0, most_waiting=2) as loop:
        for _ in range(2):
            loop.choose(b"k")
        while producer.attempts < 1:
            await asyncio.sleep(0)
        requests = loop.condition.requests
        assert (requests.written, requests.lost, requests.waiting) == (0, 0, 2)
        loop.choose(b"k")
        assert await asyncio.to_thread(loop.flush)
        requests = loop.condition.requests
        assert (requests.written, requests.lost, requests.waiting) == (2, 1, 0)
    assert producer.sent["requests"] == [2]


async def test_is_memory_bounded_and_what_is_refused_counted() -> None:
    async with loop_on(Stuck(never="requests"), most_waiting=10) as loop:
        for _ in range(15):
            assert loop.choose(b"k").action in ACTIONS
        assert loop.condition.requests.lost == 5
        assert "10 records wait already" in loop.condition.requests.trouble
    assert loop.condition.requests.lost == 15  # what waited when time was up


def test_does_a_loop_in_a_thread_write_what_waits_before_it_ends() -> None:
    log = MemoryLog()
    for topic in TOPICS:
        log.create(topic, partitions=1)
    with Loop(MemoryTechnology(log).producer, Draws(), stream="banners", topics=TOPICS) as loop:
        first = loop.choose(b"fr")
        assert loop.flush(30.0)
        assert len(log.input("requests", 0).offsets) == 1
        for _ in range(2500):
            loop.outcome(first, 1)
    assert len(log.input("outcomes", 0).offsets) == 2500
    assert loop.condition.outcomes.waiting == 0
    with Loop(lambda: Stuck(never="outcomes"), topics=TOPICS) as loop:
        loop.outcome(Request(b"fr", "r"), 1)
        assert not loop.flush(0.01)
        loop._close_within = 0.0
