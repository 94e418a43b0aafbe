"""Rank and reward: two calls by which a program without a Kafka client learns from clicks.

    POST /v1/streams/{stream}/rank      draws the action for a request, and writes the request
    POST /v1/streams/{stream}/reward    writes an outcome of a request
    POST /v1/streams/{stream}/ranks, …/rewards      up to 1,000 at once

They write to the topics of the assembly that makes the stream's events. Rules:

1. An answer says ``"durable": true`` only when the log has acknowledged the record. With
   ``"durable": false`` in the question it is queued, and may be lost if this process dies.
2. What is not acknowledged within `within` seconds is answered 503. It says whether the record may
   still appear: one that waits because no broker answers is taken back and will not. Where the
   configuration says so, a rank is answered with ``"durable": false`` instead, and stays queued;
   once the log has been silent for so long, further ranks do not wait. `why_not_ready` says it.
   Nothing is ranked before the stream's policies were read once: it would be the fallback.
3. Nothing is looked up. A repeated rank under the same release draws the same action, and is
   written again; the join makes a null event of it, so callers keep the first answer. A repeated
   reward is written again, and the join combines it.
4. That a reward exists is secret. Rewards have a queue, a producer and a rate of their own; no
   metric counts them, no log line names them, and they take nothing from the rate of look-ups.
5. With the publishable key one can only reward, one at a time. The answer to a readable reward is
   always 202, ``"durable": false``: it is dropped without a word if its connection sends too many,
   or if the queue is half full, so that the rest is left to trusted senders.
6. Rank is refused for a stream whose contexts are private, unless this process and whoever asks it
   are inside the trust boundary, as `http.private_contexts` says. Then nothing that a context or
   an exclusion holds is a reason to refuse: the topic would lack a request because of its content.
   So a request that excludes every action is written too.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from msgspec import Struct

from streamdp.client import Why
from streamdp.client.http_wire import (
    MOST_KEYS_A_BATCH,
    ChoiceTold,
    WireContext,
    WireKey,
    asked_of,
    chosen,
    encode,
    read_key,
)
from streamdp.client.requests import LoopTopics, Request, outcome_record, request_record
from streamdp.client.writing import Record, TopicWriter
from streamdp.core.errors import InvalidConfig
from streamdp.ports import Producer
from streamdp.serve.about import NO_FALLBACK, About
from streamdp.serve.access import PUBLISHABLE, Bucket
from streamdp.serve.asgi import JSON, Answered, Receive, Rejected, Scope, body_of, decoded
from streamdp.serve.knowledge import Knowledge
from streamdp.serve.lookups import check_public

MOST_WAITING = 20_000
"""Records of a topic that wait to be written."""

MOST_ONE = 16 << 10
MOST_BATCH = 2 << 20
_REWARDS_PER_SECOND = 20.0  # of one connection with the publishable key
_CONNECTIONS = 4096  # whose rates are remembered
_PAUSE_SECONDS = 0.5  # between two attempts to reach the log
_CLOSE_SECONDS = 5.0

_CALLS = frozenset({b"rank", b"ranks", b"reward", b"rewards"})
_NO_STORE = (b"cache-control", b"no-store")


class AskedRank(Struct, frozen=True, forbid_unknown_fields=True):
    """A request to be answered and written."""

    key: WireKey
    request: str = ""  # its id; by default 128 random bits
    person: str | None = None
    context: WireContext | None = None
    exclude: list[str] = []


class AskedOne(AskedRank, frozen=True, forbid_unknown_fields=True):
    """A request of its own."""

    durable: bool = True


class AskedRanks(Struct, frozen=True, forbid_unknown_fields=True):
    """A batch of requests."""

    requests: list[AskedRank]
    durable: bool = True


class Ranked(ChoiceTold, frozen=True, kw_only=True):
    """The answer to one request."""

    durable: bool


class AllRanked(Struct, frozen=True):
    """The answers to a batch, in its order."""

    stream: str
    choices: list[ChoiceTold]
    durable: bool


class AskedReward(Struct, frozen=True, forbid_unknown_fields=True):
    """An outcome of a request."""

    key: WireKey
    request: str
    reward: float


class OneReward(AskedReward, frozen=True, forbid_unknown_fields=True):
    """An outcome of its own."""

    durable: bool = True


class AskedRewards(Struct, frozen=True, forbid_unknown_fields=True):
    """A batch of outcomes."""

    rewards: list[AskedReward]
    durable: bool = True


class Written(Struct, frozen=True):
    """The answer to rewards."""

    durable: bool


class Ranking:
    """Answers rank and reward for streams whose events an assembly makes."""

    def __init__(
        self,
        knowledge: Knowledge,
        topics: Mapping[str, LoopTopics],
        producer: Callable[[], Producer],
        *,
        seconds: float,
        within: float,
        clock: Callable[[], float],
        private_contexts: bool = False,
        undurable: bool = False,
    ) -> None:
        self._knowledge = knowledge
        self._private_contexts = private_contexts
        self._seconds, self._within = seconds, within
        self._undurable = undurable
        self._clock = clock
        self._streams = {name.encode(): name for name in topics}
        self._requests, self._outcomes = (
            {
                topic: TopicWriter(
                    topic, producer, most_waiting=MOST_WAITING, pause=_PAUSE_SECONDS, silent=silent
                )
                for topic in {pair[place] for pair in topics.values()}
            }
            for place, silent in ((0, False), (1, True))
        )
        self._topics = topics
        self._senders: OrderedDict[object, Bucket] = OrderedDict()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write for as long as the block lasts; then what waits, for a bounded time."""
        events = asyncio.get_running_loop()
        writers = [*self._requests.values(), *self._outcomes.values()]
        for writer in writers:
            writer.begin(events)
        try:
            yield
        finally:
            await asyncio.gather(*(writer.end(within=_CLOSE_SECONDS) for writer in writers))

    def silent(self) -> list[str]:
        """The topics of requests whose log is silent. Outcomes do not show: they are secret."""
        return [
            f"topic {topic}: nothing has been acknowledged for {writer.silent_seconds:.0f} s"
            for topic, writer in self._requests.items()
            if writer.silent_seconds > self._within
        ]

    def why_not_ready(self) -> list[str]:
        """The reasons why ranks are refused now; empty if they are answered."""
        return [] if self._undurable else self.silent()

    async def answer(self, scope: Scope, receive: Receive, call: bytes) -> Answered:
        """The answer to a call."""
        stream = self._streams.get(scope["raw_path"].split(b"/")[3])
        if stream is None:
            raise Rejected(404, "no stream of this name learns from requests and rewards")
        if scope["method"] != "POST":
            raise Rejected(405, "rank and reward are POSTs", (b"allow", b"POST"))
        most = MOST_ONE if call in (b"rank", b"reward") else MOST_BATCH
        body = await body_of(receive, most=most, seconds=self._seconds)
        match call:
            case b"rank":
                one = decoded(_one_rank, body, '{"key": "text", "request": "an id"}')
                (told,), durable = await self._rank(stream, [one], durable=one.durable)
                ranked = Ranked(**msgspec.structs.asdict(told), durable=durable)
                return Answered(200, [JSON, _NO_STORE], encode(ranked))
            case b"ranks":
                many = decoded(_ranks, body, '{"requests": [{"key": "text", "request": "an id"}]}')
                all_told, durable = await self._rank(stream, many.requests, durable=many.durable)
                answers = AllRanked(stream, all_told, durable)
                return Answered(200, [JSON, _NO_STORE], encode(answers))
            case b"reward":
                wanted = '{"key": "text", "request": "an id", "reward": 1}'
                reward = decoded(_one_reward, body, wanted)
                if scope.get(PUBLISHABLE):
                    return self._reward_of_anybody(scope, stream, reward)
                return await self._reward(stream, [reward], durable=reward.durable)
        wanted = '{"rewards": [{"key": "text", "request": "an id", "reward": 1}]}'
        rewards = decoded(_rewards, body, wanted)
        return await self._reward(stream, rewards.rewards, durable=rewards.durable)

    async def _rank(
        self, stream: str, asked: Sequence[AskedRank], *, durable: bool
    ) -> tuple[list[ChoiceTold], bool]:
        """Draw, and write what is drawn; whether that is durable."""
        if not self._private_contexts:
            check_public(self._knowledge, stream)
        if not self._knowledge.cache.has_read(stream):
            raise _unwritten("the published policies are being loaded", maybe=False)
        writer = self._requests[self._topics[stream].requests]
        _check_number(asked)
        told, records = list[ChoiceTold](), list[Record]()
        for one in asked:
            try:
                request = Request(read_key(one.key), one.request or secrets.token_hex(16))
                choice = self._knowledge.cache.choose(
                    stream, request.key, request.id, context=one.context, exclude=one.exclude
                )
                records.append(request_record(request, choice=choice, person=one.person))
            except InvalidConfig as error:
                raise Rejected(400, str(error)) from None
            if choice.action == NO_FALLBACK and choice.why is not Why.NOTHING_ALLOWED:
                raise Rejected(404, "no policy is known, and the stream has no fallback")
            told.append(chosen(stream, request.key, request.id, choice))
        if self._undurable and writer.silent_seconds > self._within:
            durable = False
        later = self._undurable
        return told, await self._write(writer, records, durable=durable, else_later=later)

    async def _reward(
        self, stream: str, asked: Sequence[AskedReward], *, durable: bool
    ) -> Answered:
        _check_number(asked)
        records = [_outcome(one, self._knowledge.about[stream]) for one in asked]
        writer = self._outcomes[self._topics[stream].outcomes]
        await self._write(writer, records, durable=durable, else_later=False)
        return Answered(202, [JSON, _NO_STORE], encode(Written(durable)))

    def _reward_of_anybody(self, scope: Scope, stream: str, asked: AskedReward) -> Answered:
        record = _outcome(asked, self._knowledge.about[stream])
        writer = self._outcomes[self._topics[stream].outcomes]
        if self._rate(scope["client"]).take() and writer.condition.waiting < MOST_WAITING // 2:
            writer.put(record)
        return Answered(202, [JSON, _NO_STORE], encode(Written(durable=False)))

    def _rate(self, connection: object) -> Bucket:
        bucket = self._senders.get(connection)
        if bucket is None:
            bucket = self._senders[connection] = Bucket(_REWARDS_PER_SECOND, self._clock)
            if len(self._senders) > _CONNECTIONS:
                self._senders.popitem(last=False)
        return bucket

    async def _write(
        self, writer: TopicWriter, records: Sequence[Record], *, durable: bool, else_later: bool
    ) -> bool:
        """Queue records; if they are to be durable, wait until they are. Whether they are."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        left, good = len(records), True

        def settled(written: bool) -> None:
            nonlocal left, good
            left, good = left - 1, good and written
            if left == 0 and not done.done():
                done.set_result(good)

        numbers = list[int]()
        for record in records:
            number = writer.put(record, settled)
            if number is None:
                raise _unwritten("too many records wait", maybe=not _withdraw(writer, numbers))
            numbers.append(number)
        if not durable:
            return False
        if not records:
            return True
        try:
            async with asyncio.timeout(self._within):
                written = await done
        except TimeoutError:
            if else_later:
                return False
            maybe = not _withdraw(writer, numbers)
            raise _unwritten("the log does not answer", maybe=maybe) from None
        if not written and not else_later:
            raise _unwritten("the log did not acknowledge the record", maybe=True)
        return written


def call_of(scope: Scope) -> bytes | None:
    """The name of the call, if it is one of these."""
    parts: list[bytes] = scope["raw_path"].split(b"/")
    if len(parts) != 5 or parts[1:3] != [b"v1", b"streams"] or parts[4] not in _CALLS:
        return None
    return parts[4]


def _withdraw(writer: TopicWriter, numbers: Sequence[int]) -> bool:
    """Take records back; return whether none of them can appear any more."""
    taken_back = [writer.withdraw(number) for number in numbers]
    return all(taken_back)


def _unwritten(why: str, *, maybe: bool) -> Rejected:
    fate = "it may still be written" if maybe else "nothing was written"
    return Rejected(503, f"{why}; {fate}", (b"retry-after", b"1"))


def _outcome(asked: AskedReward, about: About) -> Record:
    most = None if about.most is None else float(about.most)
    try:
        request = Request(read_key(asked.key), asked.request)
        return outcome_record(request, asked.reward, most=most)
    except InvalidConfig as error:  # it quotes no content
        raise Rejected(400, str(error)) from None


def _check_number(asked: Sequence[object]) -> None:
    if len(asked) > MOST_KEYS_A_BATCH:
        raise Rejected(413, f"more than {MOST_KEYS_A_BATCH} at once")


_one_rank = partial(asked_of, msgspec.json.Decoder(AskedOne))
_ranks = partial(asked_of, msgspec.json.Decoder(AskedRanks))
_one_reward = partial(asked_of, msgspec.json.Decoder(OneReward))
_rewards = partial(asked_of, msgspec.json.Decoder(AskedRewards))
