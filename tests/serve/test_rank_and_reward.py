"""Do two HTTP calls write what the join needs, exactly what they promise, and tell of no reward?"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from streamdp.assembly.recipes import Rewards
from streamdp.client.requests import LoopTopics
from streamdp.client.writing import TopicWriter
from streamdp.core.errors import InvalidConfig, TransportLost, Unreached
from streamdp.ports import Headers, Key, Producer, StreamTopics, Technology, Value
from streamdp.serve.about import About
from streamdp.serve.access import Bucket, Gate, RewardAccess
from streamdp.serve.app import PublicApp, description
from streamdp.serve.ranking import MOST_WAITING, Ranking
from streamdp.service.config import Configuration
from streamdp.service.listeners import check_listeners
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp_adapters.sqlite import Sqlite
from tests.golden_wire import FEEDBACK, SHOWN_FEEDBACK
from tests.support.asking import NO_FILES, Answer, Observer, asked
from tests.support.loops import joined, rows
from tests.support.publishing import Topic, action
from tests.support.shop_files import joined_shop
from tests.support.showing import CLICKS

TOPICS = LoopTopics("requests", "outcomes")
PAIR = StreamTopics(
    "shop", "clicks", "requests", headers=True, second_input="outcomes", output="events"
)
TOKEN, KEY = b"a token of the shop's", b"a key for every page"
RANK, REWARD = "/v1/streams/home/rank", "/v1/streams/home/reward"
DESCRIPTION = json.loads(description())


class Shop:
    """The application with rank and reward over a log, and a published policy."""

    def __init__(
        self,
        technology: Technology,
        *,
        token: bytes | None = None,
        seconds: float = 5.0,
        undurable: bool = False,
        about: About = CLICKS,
    ) -> None:
        self.observer = Observer(Topic([action(SHOWN_FEEDBACK["sums"], lines=FEEDBACK)]), Topic([]),
                                 about=about)  # fmt: skip
        ticks = count()
        self.ranking = Ranking(
            self.observer.knowledge,
            {"home": TOPICS},
            technology.producer,
            seconds=5.0,
            within=seconds,
            undurable=undurable,
            clock=lambda: next(ticks) * 1e-3,
        )
        public = PublicApp(self.observer.knowledge, NO_FILES, body_seconds=1, ranking=self.ranking)
        self.gate = Gate(
            public.answer,
            token=lambda: token,
            bucket=Bucket(1e9, lambda: 0.0),
            traffic=self.observer.knowledge.traffic,
            rewards=RewardAccess(lambda: KEY, frozenset({b"https://shop.example"})),
        )

    async def post(self, target: str, body: object, **headers: str) -> Answer:
        """One call."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await asked(self.gate, target, method="POST", body=sent, **headers)


@asynccontextmanager
async def open_shop(technology: Technology, **other: Any) -> AsyncIterator[Shop]:
    shop = Shop(technology, **other)
    async with shop.observer.knowledge.following(), shop.ranking.writing():
        await shop.observer.knowledge.cache.ready()
        yield shop


async def with_topics(technology: Technology) -> Technology:
    administrator = technology.administrator()
    await administrator.create([PAIR], partitions=1)
    await administrator.close()
    return technology


def memory() -> Technology:
    log = MemoryLog()
    for topic in TOPICS:
        log.create(topic, partitions=1)
    return MemoryTechnology(log)


def conforms(value: object, schema: str) -> None:
    wanted = {"$ref": f"#/components/schemas/{schema}", "components": DESCRIPTION["components"]}
    jsonschema.validate(value, wanted)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_what_is_ranked_and_rewarded_is_an_event_of_the_join(
    kind: str, tmp_path: Path
) -> None:
    technology = (
        memory()
        if kind == "memory"
        else await with_topics(Sqlite.from_settings({"path": str(tmp_path / "x.db")}, app="s"))
    )
    async with open_shop(technology) as shop:
        out = CLICKS.learner.actions[0]
        asked_for = {"key": "fr", "request": "r1", "person": "p-7", "exclude": [out]}
        conforms(asked_for, "AskedRank")
        answer = await shop.post(RANK, asked_for)
        assert answer.status == 200
        conforms(answer.json, "Ranked")
        assert answer.json["durable"] is True
        choice = await asked(shop.gate, f"/v1/streams/home/keys/fr/choice?request=r1&exclude={out}")
        assert {**choice.json, "durable": True} == answer.json
        fresh = (await shop.post(RANK, {"key": "fr"})).json["request"]
        assert len(fresh) == 32
        reward = {"key": "fr", "request": "r1", "reward": 1}
        conforms(reward, "AskedReward")
        rewarded = await shop.post(REWARD, reward)
        assert (rewarded.status, rewarded.json) == (202, {"durable": True})
        written = await rows(technology, "requests"), await rows(technology, "outcomes")
    first, second = joined(*written, Rewards())
    assert (first[1], second[1]) == ([0.0], [1.0])  # losses: clicked, and not
    assert first[2]["streamdp-action"] == answer.json["action"].encode()
    assert first[2]["streamdp-action"] != out.encode()
    assert float(first[2]["pscore"]) == answer.json["probability"]
    assert first[2]["streamdp-filter"] == answer.json["filter"].encode()
    assert "streamdp-filter" not in second[2]
    assert second[2]["streamdp-request"] == fresh.encode()
    assert ("streamdp-person", b"p-7") in written[0][0][3]


async def test_a_reward_in_its_unit_is_written_as_it_is_and_clipped_by_the_join() -> None:
    technology, prices = memory(), replace(CLICKS, unit="€", most=Fraction(200))
    async with open_shop(technology, about=prices) as shop:
        for request, reward in (("r1", 50), ("r2", 950.25)):
            assert (await shop.post(RANK, {"key": "fr", "request": request})).status == 200
            rewarded = {"key": "fr", "request": request, "reward": reward}
            conforms(rewarded, "AskedReward")
            assert (await shop.post(REWARD, rewarded)).status == 202
        below = await shop.post(REWARD, {"key": "fr", "request": "r1", "reward": -1})
        assert (below.status, b"expected a number from 0, got" in below.body) == (400, True)
        written = await rows(technology, "requests"), await rows(technology, "outcomes")
    assert [json.loads(value or b"") for *_, value in written[1]] == [
        {"reward": 50}, {"reward": 950.25},
    ]  # fmt: skip
    losses = [event[1] for event in joined(*written, Rewards(Fraction(200)))]
    assert losses == [[0.75], [0.0]]


async def test_batches_are_answered_in_order_and_written_whole() -> None:
    technology = memory()
    async with open_shop(technology) as shop:
        requests = [{"key": "fr", "request": f"r{at}"} for at in range(1000)]
        conforms({"requests": requests}, "AskedRanks")
        answer = await shop.post(f"{RANK}s", {"requests": requests})
        conforms(answer.json, "AllRanked")
        nameless = await shop.post(f"{RANK}s", {"requests": [{"key": "fr"}] * 1000})
        ids = [int(one["request"], 16) for one in nameless.json["choices"]]
        ones = [sum(id_ >> bit & 1 for id_ in ids) for bit in range(128)]
        assert 380 < min(ones) <= max(ones) < 620  # false alarm: 10⁻¹¹; each bit is a coin
        assert [one["request"] for one in answer.json["choices"]] == [
            one["request"] for one in requests
        ]
        rewards = [{**one, "reward": 0.5} for one in requests]
        conforms({"rewards": rewards}, "AskedRewards")
        assert (await shop.post(f"{REWARD}s", {"rewards": rewards})).status == 202
        assert (await shop.post(f"{RANK}s", {"requests": requests * 2})).status == 413
        assert len(await rows(technology, "requests")) == 2000
        assert len(await rows(technology, "outcomes")) == 1000


@pytest.mark.parametrize(
    ("target", "body", "status"),
    [
        (RANK, b"{", 400),
        (RANK, {"key": "fr", "request": "r" * 257}, 400),
        (RANK, {"key": "fr", "request": "r", "more": 1}, 400),
        (RANK, {"key": {"base64": "§"}}, 400),
        (REWARD, {"key": "fr", "request": "r"}, 400),
        (REWARD, {"key": "fr", "request": "", "reward": 1}, 400),
        (REWARD, {"key": "fr", "request": "r", "reward": 7.25}, 400),
        (REWARD, {"key": "fr", "request": "r", "reward": "1"}, 400),
        (REWARD, b"[" * 16_000, 400),
        (REWARD, b" " * 20_000, 413),
        ("/v1/streams/nowhere/rank", {"key": "fr"}, 404),
    ],
)
async def test_what_cannot_be_written_is_refused_and_never_quoted(
    target: str, body: object, status: int
) -> None:
    technology = memory()
    async with open_shop(technology) as shop:
        answer = await shop.post(target, body)
        assert answer.status == status
        assert b"7.25" not in answer.body
        assert status != 400 or re.search(rb"; expected .*, got:? ", answer.body)
        assert await rows(technology, "requests") == await rows(technology, "outcomes") == []


class Away:
    """A producer whose log is not there, until it is told that it is."""

    def __init__(self, technology: Technology, error: type[TransportLost]) -> None:
        self.technology, self.error, self.back = technology, error, False

    def producer(self, *, kept: int | None = None) -> Producer:
        return self

    async def send(
        self,
        topic: str,
        records: Sequence[tuple[Key, Value]],
        *,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
    ) -> None:
        if not self.back:
            raise self.error("no broker answers")
        inner = self.technology.producer()
        await inner.send(topic, records, headers=headers, partition=partition)
        await inner.close()

    async def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize(
    ("error", "fate"), [(Unreached, "nothing was written"), (TransportLost, "may still be")]
)
async def test_nothing_is_promised_that_was_not_appended(
    error: type[TransportLost], fate: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A record that was taken back never appears, also when the log is there again.

    That a request was not written is logged; that a reward was not is logged nowhere.
    """
    technology = memory()
    away = Away(technology, error)
    async with open_shop(away, seconds=0.8) as shop:  # type: ignore[arg-type]
        for target in (RANK, REWARD):
            body = {"key": "fr", "request": "r1"} | ({"reward": 1} if target == REWARD else {})
            caplog.clear()
            answer = await shop.post(target, body)
            lines = [line for line in caplog.records if line.name.startswith("streamdp")]
            assert len(lines) == (target == RANK)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert fate in answer.json["title"]
        away.back = True
        assert (await shop.post(RANK, {"key": "fr", "request": "r2"})).status == 200
        assert len(await rows(technology, "requests")) == 1
        assert await rows(technology, "outcomes") == []


@pytest.mark.parametrize("error", [Unreached, TransportLost])
@pytest.mark.parametrize("undurable", [False, True])
async def test_while_the_log_is_silent_ranks_end_in_time_and_readyz_says_it(
    undurable: bool, error: type[TransportLost]
) -> None:
    """They are refused, or where that is configured answered without a promise; then at once."""
    technology = memory()
    away = Away(technology, error)
    events = asyncio.get_running_loop()
    seconds = 2.0 if undurable else 0.3
    async with open_shop(away, seconds=seconds, undurable=undurable) as shop:  # type: ignore[arg-type]
        ready = await asked(shop.gate, "/readyz")
        assert (ready.status, ready.json["away"]) == (200, [])
        told, waited = list[Answer](), list[float]()
        for at in range(3):
            begun = events.time()
            told.append(await shop.post(RANK, {"key": "fr", "request": f"r{at}"}))
            waited.append(events.time() - begun)
            async with asyncio.timeout(60):
                while not shop.ranking.silent():
                    await asyncio.sleep(0.01)
        assert [answer.status for answer in told] == [200 if undurable else 503] * 3
        if undurable:
            assert not any(answer.json["durable"] for answer in told)
            assert max(waited[1:]) < seconds
        ready = await asked(shop.gate, "/readyz")
        assert ready.status == (200 if undurable else 503)
        assert "topic requests: nothing has been acknowledged" in ready.json["away"][0]
        assert ready.json["why"] == ([] if undurable else ready.json["away"])
        away.back = True
        answer = await shop.post(RANK, {"key": "fr", "request": "r8"})
        async with asyncio.timeout(60):
            while shop.ranking.silent():
                await asyncio.sleep(0.01)
        answer = await shop.post(RANK, {"key": "fr", "request": "r9"})
        assert (answer.status, answer.json["durable"]) == (200, True)
        assert (await asked(shop.gate, "/readyz")).json["away"] == []
        ids = [dict(row[3])["streamdp-request"] for row in await rows(technology, "requests")]
        assert undurable or ids == [b"r8", b"r9"]


async def test_five_seconds_after_the_last_attempt_nobody_knows_that_the_log_is_silent() -> None:
    """Else a process that gets no requests because it is not ready would never be ready again."""
    now = 0.0
    away = Away(memory(), TransportLost)
    writer = TopicWriter("requests", away.producer, most_waiting=9, pause=0, clock=lambda: now)
    writer.begin(asyncio.get_running_loop())
    writer.put((b"fr", None, ()))
    await writer.flush()
    now = 4.0
    assert writer.silent_seconds == 4
    now = 6.0
    assert writer.silent_seconds == 0
    await writer.end(within=1)


async def test_nothing_is_ranked_before_the_policies_were_read() -> None:
    """Known keys would get the fallback, and the log would say that it was shown."""
    technology = memory()
    shop = Shop(technology)
    async with shop.ranking.writing():
        for body in ({"key": "fr"}, {"key": "fr", "durable": False}):
            answer = await shop.post(RANK, body)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert "being loaded; nothing was written" in answer.json["title"]
        async with shop.observer.knowledge.following():
            await shop.observer.knowledge.cache.ready()
            assert (await shop.post(RANK, {"key": "fr"})).json["source"] == "published"
    assert len(await rows(technology, "requests")) == 1


async def test_a_full_queue_is_said_to_trusted_senders() -> None:
    away = Away(memory(), Unreached)
    async with open_shop(away, seconds=0.2) as shop:  # type: ignore[arg-type]
        queued = {"key": "fr", "request": "r", "reward": 1}
        for _ in range(MOST_WAITING // 1000):
            body = {"rewards": [queued] * 1000, "durable": False}
            answer = await shop.post(f"{REWARD}s", body)
            assert (answer.status, answer.json) == (202, {"durable": False})
        answer = await shop.post(REWARD, {**queued, "durable": False})
        assert answer.status == 503
        away.back = True


async def test_the_publishable_key_rewards_one_at_a_time_and_nothing_else() -> None:
    """Whatever comes of it: the answer to a readable reward is always the same."""
    technology = memory()
    async with open_shop(technology, token=TOKEN) as shop:
        page = {"authorization": f"Bearer {KEY.decode()}"}
        reward = {"key": "fr", "request": "r1", "reward": 1}
        for target, body in (
            (RANK, {"key": "fr"}),
            (f"{RANK}s", {"requests": []}),
            (f"{REWARD}s", {"rewards": [reward]}),
            ("/v1/streams/home/choices", {"requests": []}),
        ):
            assert (await shop.post(target, body, **page)).status == 401
        assert (await shop.post(REWARD, reward)).status == 401
        answers = {
            (answer.status, answer.body, tuple(sorted(answer.headers.items())))
            for answer in [await shop.post(REWARD, reward, **page) for _ in range(100)]
        }
        assert len(answers) == 1
        assert next(iter(answers))[:2] == (202, b'{"durable":false}')
        trusted = {"authorization": f"Bearer {TOKEN.decode()}"}
        assert (await shop.post(REWARD, reward, **trusted)).json == {"durable": True}
        written = len(await rows(technology, "outcomes"))
        assert 20 < written < 60  # the rest was beyond the connection's rate


async def test_only_pages_of_the_configured_origins_may_reward() -> None:
    async with open_shop(memory(), token=TOKEN) as shop:
        reward = {"key": "fr", "request": "r1", "reward": 1}
        shown = {"origin": "https://shop.example", "authorization": f"Bearer {KEY.decode()}"}
        asks = await asked(shop.gate, REWARD, method="OPTIONS", origin="https://shop.example")
        assert asks.status == 204
        assert "authorization" in asks.headers["access-control-allow-headers"]
        answer = await shop.post(REWARD, reward, **shown)
        allowed = answer.headers["access-control-allow-origin"]
        assert (answer.status, allowed) == (202, "https://shop.example")
        for target, origin in ((REWARD, "https://other.example"), (RANK, shown["origin"])):
            asks = await asked(shop.gate, target, method="OPTIONS", origin=origin)
            assert asks.status == 401
            assert "access-control-allow-origin" not in asks.headers


class OutcomesAway(Away):
    """The topic of outcomes cannot be written to; that of requests can."""

    async def send(self, topic: str, *arguments: Any, **more: Any) -> None:
        self.back = topic == TOPICS.requests
        await super().send(topic, *arguments, **more)


@pytest.mark.parametrize("error", [None, Unreached, TransportLost])
def test_nobody_can_see_that_there_was_a_reward(
    error: type[TransportLost] | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Metrics, status, look-ups, ranks and log lines, with rewards of any fate and without.

    Also where rewards cannot be written: whoever asks for one is told, and nobody else.
    """

    monkeypatch.setattr("streamdp.serve.ranking._CLOSE_SECONDS", 0.01)

    async def seen(rewards: Sequence[object]) -> list[Mapping[str, object]]:
        caplog.clear()
        shown: list[Mapping[str, object]] = []
        technology: Any = memory() if error is None else OutcomesAway(memory(), error)
        async with open_shop(technology) as shop:
            for body in rewards:
                await shop.post(REWARD, body)
            for target in ("/metrics", "/v1/status", "/readyz", "/v1/streams/home/keys"):
                answer = await asked(shop.gate, target)
                shown.append({"status": answer.status, "body": answer.body, **answer.headers})
            ranked = await shop.post(RANK, {"key": "fr", "request": "r1"})
            shown.append({"status": ranked.status, "body": ranked.body, **ranked.headers})
        shown.append({"log": [record.getMessage() for record in caplog.records]})
        return shown

    reward: dict[str, object] = {"key": "fr", "request": "r1", "reward": 1}
    many: list[object] = [reward, {**reward, "reward": 0}, {**reward, "reward": 9}, b"{"] * 50
    if error is not None:
        many = [{**reward, "durable": False}] * 50  # others would be told, after some time each
    without, with_rewards = asyncio.run(seen([])), asyncio.run(seen(many))
    for before, after in zip(without, with_rewards, strict=True):
        assert before == after


SETTINGS = joined_shop(feedback='content = "loss"')


@pytest.mark.parametrize(
    ("http", "said"),
    [
        ('listen = "0.0.0.0:8080"', "not on loopback"),
        ('publishable_key_file = "page.key"', "no token"),
        (
            'token_file = "token"\npublishable_key_file = "token"',
            "two secrets of the listener are the same",
        ),
        ('reward_origins = ["shop.example"]', "not an origin"),
        ('reward_origins = ["https://shop.example/"]', "not an origin"),
    ],
)
def test_settings_that_would_open_the_loop_are_refused(
    http: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "token").write_bytes(TOKEN)
    (tmp_path / "page.key").write_bytes(KEY)
    path = tmp_path / "shop.toml"
    listen = "" if "listen" in http else 'listen = "127.0.0.1:8080"\n'
    path.write_text(
        f"{SETTINGS}[http]\n{listen}rank_and_reward = true\n{http}\n".replace(
            '= "page', f'= "{tmp_path}/page'
        ).replace('= "token"', f'= "{tmp_path}/token"')
    )
    with pytest.raises(InvalidConfig, match=said):
        check_listeners(Configuration.load(path))


def test_rank_and_reward_need_an_assembly_to_write_to(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    alone = SETTINGS.partition("[assemblies")[0].replace('[topics.requests]\nbudget = "1"\n', "")
    path.write_text(f'{alone}[http]\nlisten = "127.0.0.1:8080"\nrank_and_reward = true\n')
    with pytest.raises(InvalidConfig, match="nothing to write to"):
        check_listeners(Configuration.load(path))
