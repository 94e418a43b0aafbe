"""Does a Kafka membership deliver every record once, whatever happens while it waits on its client?

The client is scripted: it lets something happen in the middle of an ask, as an event loop does.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import cast

import pytest
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError
from aiokafka.structs import TopicPartition

from streamdp.core.errors import Refused, StreamdpError, TransportLost
from streamdp.ports import Partition, Records, StreamTopics
from streamdp_adapters.kafka import KafkaSettings, client_errors, grouping, membership
from streamdp_adapters.kafka.membership import Membership
from streamdp_adapters.kafka.transport import KafkaTransport

TOPICS = StreamTopics("shop", "home", "losses")
PLACE = TopicPartition("losses", 0)
END = 20


@dataclass(frozen=True)
class Record:
    """What a membership looks at."""

    offset: int
    key: bytes = b"k"
    value: bytes = b"x"


@dataclass
class Fetched:
    """What a client has fetched: nothing waits in it."""

    _records: OrderedDict[TopicPartition, object] = field(default_factory=OrderedDict)


@dataclass
class Client:
    """A consumer with one partition of twenty records; each ask may have its own happening."""

    happenings: list[Callable[[], None]] = field(default_factory=list)
    position: int = 0
    paused: bool = False
    joined: bool = False
    _fetcher: Fetched = field(default_factory=lambda: Fetched())

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}

    async def start(self) -> None:
        """There is nothing to connect to."""

    async def stop(self) -> None:
        """There is nothing to disconnect from."""

    def subscribe(self, topics: Sequence[str], *, listener: object) -> None:
        """Join."""
        self.joined = True

    def last_poll_timestamp(self, place: TopicPartition) -> int | None:
        """The brokers have never answered."""
        return None

    last_stable_offset = last_poll_timestamp

    def assignment(self) -> set[TopicPartition]:
        return {PLACE}

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.position = offset

    def pause(self, place: TopicPartition) -> None:
        self.paused = True

    def resume(self, place: TopicPartition) -> None:
        self.paused = False

    async def getmany(
        self, *places: TopicPartition, timeout_ms: int = 0, max_records: int = 500
    ) -> dict[TopicPartition, list[Record]]:
        """What is there at once; what happens then, happens before anybody sees it."""
        records = [Record(offset) for offset in range(self.position, END)][:max_records]
        if self.paused or not records:
            records = []
        else:
            self.position = records[-1].offset + 1
        if self.happenings:
            self.happenings.pop(0)()
        return {PLACE: records} if records else {}


@dataclass
class Deaf:
    """Listens to nothing."""

    failures: list[StreamdpError] = field(default_factory=list)

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """As it should be."""

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """As it should be."""

    def settled(self, stream: str) -> None:
        """As it should be."""

    def failed(self, partition: Partition, error: StreamdpError) -> None:
        """To be looked at."""
        self.failures.append(error)


@pytest.fixture
def client() -> Client:
    """The scripted consumer."""
    return Client()


@pytest.fixture
def member(client: Client, monkeypatch: pytest.MonkeyPatch) -> Membership:
    """A membership that was given its partition, and resumed it at 10."""
    monkeypatch.setattr(membership.Membership, "_new_consumer", lambda self: client)
    monkeypatch.setattr(grouping.Group, "_new_consumer", lambda self: Client(paused=True))
    made = Membership(
        TOPICS, Deaf(), settings=KafkaSettings("nowhere:1"), worker="w", largest_input=1
    )
    made.assigned({0})
    made.resume(0, 10)
    return made


def undecodable() -> None:
    """An error that names no partition: from now on it is hunted."""
    raise ValueError("decompression failed")


def nothing() -> None:
    """Nothing happens."""


def given_again(member: Membership) -> None:
    """The group takes everything and gives it back."""
    member.assigned({0})


def given_later(member: Membership) -> None:
    """The group gives the partition to another process, and then back."""
    member.assigned(set())
    member.assigned({0})
    member.resume(0, 7)


def taken_again(member: Membership) -> None:
    """The worker lost a commit, left, took the partition, and resumes at what is durable."""
    member.leave(0)
    member.assigned({0})
    member.resume(0, 7)


def delivered(member: Membership, how: str) -> list[Records]:
    """What a dozen asks deliver."""

    async def ask() -> list[Records]:
        if how == "waited":
            return member.accept(await member.wait(4, 0.01))
        return await member.ready(4)

    async def all_of_them() -> list[Records]:
        return [batch for _ in range(12) for batch in await ask()]

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("how", ["asked", "waited", "hunted"])
@pytest.mark.parametrize("moment", range(4))
@pytest.mark.parametrize(("what", "begin"), [(given_again, 10), (given_later, 7), (taken_again, 7)])
def test_is_nothing_left_out_or_delivered_twice(
    member: Membership,
    client: Client,
    how: str,
    moment: int,
    what: Callable[[Membership], None],
    begin: int,
) -> None:
    """Whenever it happens, what comes afterwards goes on from where it has to, without a gap."""
    client.happenings = [undecodable] if how == "hunted" else []
    client.happenings += [*[nothing] * moment, lambda: what(member)]
    batches = delivered(member, how)
    first = next((at for at, batch in enumerate(batches) if batch.start == begin), None)
    assert first is not None
    before, after = batches[:first], batches[first:]
    assert _offsets(before) == list(range(10, 10 + len(_offsets(before))))
    assert _offsets(after) == list(range(begin, END))
    assert [batch.start for batch in after] == [begin, *(batch.next_offset for batch in after[:-1])]


@pytest.mark.parametrize("waiting", [True, False])
def test_is_what_waits_for_its_turn_stalled(
    member: Membership, client: Client, *, waiting: bool
) -> None:
    """Only a partition of which nothing comes is; not one whose records wait to be asked for."""
    if waiting:
        client._fetcher._records[PLACE] = "something"
    member._check_progress(PLACE, 10, 5.0)
    for _ in range(int(membership.STALL_SECONDS // 5.0)):
        member._check_progress(PLACE, 10, 5.0)
    with nullcontext() if waiting else pytest.raises(TransportLost, match="makes no progress"):
        member._check_progress(PLACE, 10, 5.0)


@dataclass
class Complaining(Client):
    """A member that is refused."""

    refusal: KafkaError | None = None

    async def getmany(
        self, *places: TopicPartition, timeout_ms: int = 0, max_records: int = 500
    ) -> dict[TopicPartition, list[Record]]:
        """Say so."""
        if self.refusal is not None:
            raise self.refusal
        return {}


async def test_a_refused_member_fails_its_partitions_and_comes_back(
    member: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal by the group is told for its partitions; after two a new member is tried."""
    refused = GroupAuthorizationFailedError("shop.home")
    members = [Complaining(refusal=refused), Complaining()]
    monkeypatch.setattr(grouping.Group, "_new_consumer", lambda self: members[1])
    monkeypatch.setattr(grouping, "_ASK_SECONDS", 0.0)
    monkeypatch.setattr(client_errors, "start", lambda client, _: client.start())
    monkeypatch.setattr(member._group, "_consumer", members[0])
    failures = cast(Deaf, member._listener).failures

    for _ in range(12):
        await member.ready(1)
        await asyncio.sleep(0)
    await member._group.stop()
    assert [type(error) for error in failures] == [Refused, Refused]
    assert all("GroupAuthorizationFailedError" in str(error) for error in failures)
    assert [known.joined for known in members] == [False, True]


async def test_does_what_is_told_after_the_end_reach_nobody() -> None:
    """A partition's task may end after its transport was closed."""
    transport = KafkaTransport(KafkaSettings("nowhere:1"), worker="w")
    await transport.close()
    transport.resume(Partition("home", 0), 10)
    transport.pause(Partition("home", 0))
    assert transport.last_known(Partition("home", 0)).end is None
    assert transport.last_known(Partition("home", 0)).first is None
    await transport.leave(Partition("home", 0))


def _offsets(batches: Sequence[Records]) -> list[int]:
    return [offset for batch in batches for offset in batch.offsets]
