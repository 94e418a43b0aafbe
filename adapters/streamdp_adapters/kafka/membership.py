"""One stream's share of its input: assigned by the group, fetched by a second consumer.

Rules:

- The group only decides (`grouping`). A second consumer fetches; it has all partitions of the input
  assigned by hand, once, and those that are not to be fetched are paused. So a rebalance costs the
  partitions that stay neither records nor time.
- Only the difference of a new assignment is passed on. A process that took a partition meanwhile
  has fenced us, and the next commit finds out, so keeping memory and producer through a rebalance
  is safe and makes it cheap. The service takes new partitions afterwards.
- The position that counts is the one after the last delivered record. After any error every
  partition goes back to it, because the client loses what it had already drained from other
  partitions, and skips one offset after a record that is too large.
- Records are delivered only to the resumption that asked for them: a partition that was resumed
  while a poll waited goes back to its position.
- Partitions take turns: the client hands over everything that it fetched of one before the next, so
  after each poll the rest of a partition is moved behind all others.
- The second failure in a row of one partition is reported and pauses it. An error that names no
  partition is traced: partitions are polled one by one. Nothing is ever skipped or reset.
- Markers of transactions take offsets, and retention deletes them too. A partition of which only
  markers are left is delivered an empty batch up to its end, so that its durable position does not
  stay before offsets that are gone.
- Rights that are refused concern all partitions of the stream and no other stream: each is told to
  be taken again. Only if the group never let this process in, it is an error of the whole start.
- A consumer may stall in silence, so lag without progress is an error too, unless records wait here
  to be asked for. After it, and after a second error in a row that belongs to no partition, the
  next poll begins with a new consumer; the group does not notice.
- On an idle input and on a dead cluster polls find nothing alike, so every few seconds a look asks
  the brokers. While none answers, an empty poll says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import (
    CorruptRecordException,
    KafkaError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
)
from aiokafka.structs import ConsumerRecord, TopicPartition

from streamdp.core.errors import (
    InvalidConfig,
    StateMismatch,
    StreamdpError,
    TransportLost,
)
from streamdp.ports import (
    LastKnown,
    Listener,
    Partition,
    Records,
    StaticMembership,
    StreamTopics,
)
from streamdp_adapters.kafka import client_errors
from streamdp_adapters.kafka.decoding import LARGEST
from streamdp_adapters.kafka.grouping import Group
from streamdp_adapters.kafka.internals import lean, refused_topics, to_the_end, waits
from streamdp_adapters.kafka.owner import group
from streamdp_adapters.kafka.reading import as_records
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.static_membership import Name

STALL_SECONDS = 60.0
"""Seconds that a partition may lag without progress before the consumer counts as stalled."""

FETCH_BYTES = 2 * 1024 * 1024
"""Bytes of a partition in one answer, and so in memory when polling stops."""

_LOOK_SECONDS = 5.0  # between two looks at lag and retention
_HUNT_MS = 1000  # how long one partition is polled while an error is traced
_STRIKES = 2
_ERRORS = 2
_RESTART_SECONDS = 30.0
_UNDECODABLE = (
    f"a batch of the input, damaged or decompressed larger than {LARGEST >> 20} MiB,"
    " cannot be decoded"
)
_OF_A_BATCH = (CorruptRecordException, UnsupportedCodecError)


@dataclass(slots=True, eq=False)
class ResumedPartition:
    """A resumed partition: its position and its failures; a new object at each resume."""

    position: int
    strikes: int = 0
    seen: int = -1
    still: float = 0.0  # seconds of polling without progress
    drained: int | None = None  # the last stable end before which everything was delivered


Feeds = Mapping[int, ResumedPartition]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a poll returned, and for which resumptions it was made."""

    asked: Feeds
    records: Mapping[TopicPartition, Sequence[ConsumerRecord]] = field(repr=False)


class Membership:
    """Delivers the part of one stream's input that the group assigns to this process."""

    def __init__(
        self,
        topics: StreamTopics,
        listener: Listener,
        *,
        settings: KafkaSettings,
        worker: str,
        largest_input: int,
        static_membership: StaticMembership = StaticMembership.STRANGERS,
    ) -> None:
        self._topics = topics
        self._listener = listener
        self._settings = settings
        self._where = f"stream {topics.stream}: input {topics.input}"
        self._given: set[int] = set()  # by the group, in its newest assignment
        self._announced: set[int] = set()
        self._let_in = False  # whether the group has ever let this process in
        self._orphans: dict[int, float] = {}
        self._feeds: dict[int, ResumedPartition] = {}
        self._suspects: list[int] = []
        self.missing: dict[str, str] = {}  # of the two inputs, and why, by the newest answer
        self.firsts: dict[int, int] = {}  # the oldest retained offsets in the newest answer
        self._ends: dict[int, int] = {}  # of partitions that are not resumed
        self._committed: dict[int, int] = {}  # the group's offsets of these
        self._errors = 0
        self._silence: StreamdpError | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looked = time.monotonic()
        self._client_id = f"streamdp-{worker}"
        self._fetch_bytes = max(FETCH_BYTES, largest_input)
        self._consumer = self._new_consumer()
        self._connected = False
        replaces = static_membership is StaticMembership.REPLACED
        self._group = Group(
            topics,
            settings=settings,
            client_id=self._client_id,
            assigned=self.assigned,
            name=Name(settings, group_id=group(topics), client_id=self._client_id)
            if replaces
            else None,
        )

    async def start(self) -> None:
        """Connect and ask for a share; the listener hears of it later."""
        with client_errors.translated(self._where):
            try:
                await self._connect()
                await self._group.start()
            except BaseException:
                await self.stop()
                raise

    async def stop(self) -> None:
        """Leave the group, within a bounded time."""
        await asyncio.gather(self._disconnect(), self._group.stop())

    async def _connect(self) -> None:
        """Connect the consumer that fetches; go on after the delivered records."""
        await client_errors.start(self._consumer, self._settings)
        lean(self._consumer)
        self._connected = True
        self._cover()

    async def _disconnect(self) -> None:
        """End the consumer that fetches, and its looks."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
            self._looking = None
        self._connected = False
        await client_errors.stop(self._consumer)

    async def _restart(self) -> None:
        """Fetch with a new consumer; the membership in the group stays."""
        await self._disconnect()
        self._consumer, self._suspects = self._new_consumer(), []
        async with asyncio.timeout(_RESTART_SECONDS):
            await self._connect()
        self._errors, self._silence = 0, None
        for feed in self._feeds.values():  # or each partition would end this one, too, in its turn
            feed.still = 0.0

    def _new_consumer(self) -> AIOKafkaConsumer:
        """A consumer that fetches, not yet connected."""
        return self._settings.consumer(
            client_id=self._client_id, max_partition_fetch_bytes=self._fetch_bytes
        )

    def _cover(self) -> None:
        """Tell the consumer about every partition; a new assignment drops all that it has fetched.

        It has the first partition from the start: without any, a poll would wait for the group.
        """
        numbers = {0} | self._given | self._group.partitions()
        places = {self._place(number) for number in numbers}
        if not self._connected or places <= self._consumer.assignment():
            return
        self._consumer.assign(sorted(places))
        for number in numbers:
            self._consumer.pause(self._place(number))
            self._consumer.seek(self._place(number), 0)  # or the client would ask for a position
        for number in self._feeds:
            self._feed(number)

    def _feed(self, number: int) -> None:
        """Fetch a partition that is ours, from after the delivered records."""
        place, feed = self._place(number), self._feeds[number]
        if number in self._given and place in self._consumer.assignment():
            self._feeds[number] = replace(feed)  # older polls may not deliver to it
            self._consumer.seek(place, feed.position)
            self._consumer.resume(place)

    def resume(self, number: int, offset: int) -> None:
        """Deliver a partition from `offset` on, as soon as the group assigns it."""
        self._feeds[number] = ResumedPartition(offset)
        self._feed(number)

    def pause(self, number: int) -> None:
        """Stop delivering a partition."""
        self._feeds.pop(number, None)
        place = self._place(number)
        if place in self._consumer.assignment():
            self._consumer.pause(place)

    def leave(self, number: int) -> None:
        """Forget that a partition was announced: if the group assigns it again, that is new.

        A worker that leaves because it was fenced hears of the partition once more if the group
        lets us keep it: the other owner may have taken it before the group gave it back.
        """
        self.pause(number)
        self._announced.discard(number)

    def fenced(self, number: int) -> None:
        """Leave a partition that another process took; announce it if the group keeps it here."""
        self.leave(number)
        self._orphans[number] = time.monotonic() + self._settings.session_timeout_ms / 1000

    def assigned(self, given: set[int]) -> None:
        """Take a new assignment: pass the difference on."""
        gone, fresh = self._given - given, given - self._announced
        resumed = self._feeds.keys() & (given - self._given)
        self._given, self._announced, self._let_in = set(given), set(given), True
        for number in gone:
            self.pause(number)
        self._cover()
        for number in resumed:
            self._feed(number)
        for number in given:
            self._orphans.pop(number, None)
        if gone:
            self._listener.revoked([self._partition(number) for number in sorted(gone)])
        if fresh:
            self._listener.assigned([self._partition(number) for number in sorted(fresh)])
        self._listener.settled(self._topics.stream)

    async def ready(self, max_records: int) -> list[Records]:
        """The records that were fetched already; never waits."""
        with client_errors.translated(self._where):
            try:
                self._group.attend()
            except client_errors.ACCESS as error:
                if not self._let_in:  # an error of the start, though it shows in a poll
                    raise InvalidConfig(str(client_errors.as_ours(self._where, error))) from error
                self._refuse(error)
            if self._errors >= _ERRORS:
                await self._restart()
        self._housekeep()
        if self._suspects:
            return await self._hunt(self._suspects.pop(), max_records)
        asked = dict(self._feeds)
        try:
            fetched = Fetched(asked, await self._consumer.getmany(max_records=max_records))
        except Exception as error:
            self._blame(error)
            return []
        self._errors = 0
        return self.accept(fetched) or await self._pass_markers()

    async def _pass_markers(self) -> list[Records]:
        """Empty batches of partitions without a record between what was delivered and their end.

        No fetch may be under way: each record that the client handed over was delivered, or the
        partition went back. So its own position tells whether only markers were skipped.
        """
        batches = []
        for number, feed in list(self._feeds.items()):
            place, end = self._place(number), feed.drained
            if end is None or end <= feed.position or place not in self._consumer.assignment():
                continue
            if await self._consumer.position(place) == end:
                at = self._partition(number)
                batches.append(Records(at, feed.position, (), (), (), end))
                feed.position = end
        return batches

    async def wait(self, max_records: int, timeout: float) -> Fetched:
        """What comes, to be accepted or rewound."""
        deadline = time.monotonic() + timeout
        while True:
            asked, left = dict(self._feeds), max(deadline - time.monotonic(), 0.001)
            records = await self._consumer.getmany(
                timeout_ms=max(int(left * 1000), 1), max_records=max_records
            )
            if not records or asked == self._feeds:
                return Fetched(asked, records)
            self.rewind()

    def accept(self, fetched: Fetched) -> list[Records]:
        """Count records as delivered; stale ones are fetched again."""
        accepted = []
        for place, records in fetched.records.items():
            feed = self._feeds.get(place.partition)
            if feed is None or not records:
                continue
            if feed is not fetched.asked.get(place.partition) or records[0].offset < feed.position:
                self._go_back(place, feed)
                continue
            batch = as_records(
                self._topics, self._partition(place.partition), records, start=feed.position
            )
            feed.position, feed.strikes = batch.next_offset, 0
            to_the_end(self._consumer, place)
            accepted.append(batch)
            self._silence = None
        return accepted

    def accept_or_blame(self, outcome: asyncio.Task[Fetched]) -> list[Records]:
        """Accept the result of a `wait`, or trace its error."""
        error = outcome.exception()
        if error is None:
            self._errors = 0
            return self.accept(outcome.result())
        self._blame(error)
        return []

    def check_answers(self) -> None:
        """Raise if no broker answered the newest fetch: for a poll that delivers nothing."""
        if self._silence is not None:
            raise self._silence

    def rewind(self) -> None:
        """Go back to the delivered records, in all partitions."""
        for number, feed in self._feeds.items():
            self._go_back(self._place(number), feed)

    def _go_back(self, place: TopicPartition, feed: ResumedPartition) -> None:
        """Fetch again from after the delivered records."""
        if place in self._consumer.assignment():
            self._consumer.seek(place, feed.position)

    def last_known(self, number: int) -> LastKnown:
        """By the newest answers."""
        return LastKnown(self.firsts.get(number), self._end(number), self._committed.get(number))

    def _end(self, number: int) -> int | None:
        """The end offset, without markers and open transactions."""
        place, feed = self._place(number), self._feeds.get(number)
        if number not in self._given or place not in self._consumer.assignment():
            return None
        if feed is None and number in self._ends:
            return self._ends[number]
        end = self._consumer.last_stable_offset(place)
        if feed is not None and end is not None and end == feed.drained:
            return feed.position
        return None if end is None else int(end)

    async def _hunt(self, number: int, max_records: int) -> list[Records]:
        """Poll one partition alone, record by record: records before the failure still come."""
        place, asked = self._place(number), dict(self._feeds)
        if number not in asked or place not in self._consumer.assignment():
            return []
        hunted: list[ConsumerRecord] = []
        try:
            while len(hunted) < max_records:
                one = await self._consumer.getmany(place, timeout_ms=_HUNT_MS, max_records=1)
                if place not in one:
                    break
                hunted += one[place]
        except Exception as error:
            if not hunted:
                asked[number].strikes = _STRIKES - 1
                self._blame(error, number)
                return []
            self._suspects.append(number)  # it fails again at once, with nothing before it
        batches = self.accept(Fetched(asked, {place: hunted}))
        self.rewind()
        return batches

    def _blame(self, error: BaseException, asked: int | None = None) -> None:
        """Go back, then find out which partition's error this is; raise if it is none's."""
        self.rewind()
        if isinstance(error, OffsetOutOfRangeError):
            for place in error.args[0]:
                self._strike(place.partition, "input expired, was truncated or is another topic")
        elif isinstance(error, RecordTooLargeError):
            self._strike(error.args[1].partition, "a record is larger than what is fetched")
        elif isinstance(error, client_errors.ACCESS):
            self._refuse(error)
        elif isinstance(error, client_errors.CLIENTS) and not isinstance(error, _OF_A_BATCH):
            self._errors += 1
            raise self._ours(error) from error
        elif asked is not None and isinstance(error, UnsupportedCodecError):
            self.pause(asked)
            at = self._partition(asked)
            self._listener.failed(at, client_errors.as_ours(f"partition {at}: input", error))
        elif asked is not None:
            self._strike(asked, _UNDECODABLE)
        else:
            self._suspects = sorted(self._feeds)

    def _refuse(self, error: BaseException) -> None:
        """Let this stream's partitions be taken again: other streams' go on meanwhile."""
        refused = client_errors.retried(client_errors.as_ours(self._where, error))
        for number in sorted(self._given):
            self.pause(number)
            self._listener.failed(self._partition(number), refused)
        if not self._given:
            self._silence = refused

    def _strike(self, number: int, what: str) -> None:
        """Count a failure of one partition; stop it at the second in a row."""
        feed = self._feeds.get(number)
        if feed is None:
            return
        feed.strikes += 1
        if feed.strikes < _STRIKES:
            return
        self.pause(number)
        partition = self._partition(number)
        remedy = "repair the input, or delete its records up to there and begin a new epoch"
        self._listener.failed(
            partition,
            StateMismatch(
                f"partition {partition}",
                f"{what} at offset {feed.position}; {remedy}",
                expected="a readable record",
                got="the same failure twice",
            ),
        )

    def _housekeep(self) -> None:
        """Announce orphans that are still ours; look at lag and retention now and then."""
        now = time.monotonic()
        for number, due in list(self._orphans.items()):
            if now >= due:
                del self._orphans[number]
                if number in self._given:
                    self._announced.add(number)
                    self._listener.assigned([self._partition(number)])
        if self._looking is not None and self._looking.done():
            looking, self._looking = self._looking, None
            if looking.exception() is not None:
                self._errors = _ERRORS
            looking.result()
        if self._looking is None and now - self._looked >= _LOOK_SECONDS:
            passed, self._looked = min(now - self._looked, 2 * _LOOK_SECONDS), now
            self._looking = asyncio.create_task(self._look(passed))

    async def _look(self, passed: float) -> None:
        """Check each partition's progress and retention, and whether a broker answers."""
        try:
            places = [self._place(number) for number in self._feeds if number in self._given]
            for place in places:
                self._check_progress(place, await self._consumer.position(place), passed)
            async with asyncio.timeout(_LOOK_SECONDS):
                firsts = await self._consumer.beginning_offsets(places or [self._place(0)])
                await self._look_at_waiting()
        except (KafkaError, TimeoutError):
            await self._ask()  # revoked, without a leader, or no broker
            return
        self._silence, self.missing = None, {}
        if self._topics.second_input:
            await self._ask()  # whether that one exists
        self.firsts |= {place.partition: int(first) for place, first in firsts.items()}

    async def _look_at_waiting(self) -> None:
        """Note how far the input and the group's offset are where nothing is delivered yet."""
        waiting = [self._place(number) for number in self._given - self._feeds.keys()]
        if not waiting:
            return
        ends = await self._consumer.end_offsets(waiting)
        self._ends = {place.partition: int(end) for place, end in ends.items()}
        self._committed = await self._group.committed(waiting)

    async def _ask(self) -> None:
        """Find out whether any broker answers, and which inputs exist."""
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                there = await self._consumer.topics()
                gone = {self._topics.input, self._topics.second_input} - {"", *there}
                hidden = await refused_topics(self._consumer) if gone else set()
        except (KafkaError, TimeoutError) as error:
            self._silence = self._ours(error)
            self._silence.__cause__ = error
        else:
            self._silence = None
            refusal = TopicAuthorizationFailedError.__name__
            self.missing = {name: refusal if name in hidden else "" for name in gone}

    def _ours(self, error: BaseException) -> StreamdpError:
        """Our error for one of the client's, with the topic."""
        ours = client_errors.as_ours(self._where, error)
        if isinstance(ours, TransportLost):
            ours.topic = self._topics.input
        return ours

    def _check_progress(self, place: TopicPartition, position: int, passed: float) -> None:
        """Raise if a partition has lagged without progress for too long."""
        feed = self._feeds.get(place.partition)
        if feed is None:
            return
        fetched = self._consumer.last_poll_timestamp(place)
        answered = fetched is not None and time.time() - fetched / 1000 < STALL_SECONDS
        end = self._consumer.last_stable_offset(place)
        idle = answered and end is not None and end <= position
        calm = idle or position != feed.seen or waits(self._consumer, place)
        feed.still = 0.0 if calm else feed.still + passed
        feed.seen, feed.drained = position, end if idle else None
        if feed.still > STALL_SECONDS:
            feed.still = 0.0
            raise TransportLost(
                self._where,
                f"partition {place.partition} lags and makes no progress",
                expected=f"progress within {STALL_SECONDS:g} s",
                got=f"offset {position} still",
            )

    def _place(self, number: int) -> TopicPartition:
        """A partition in the client's terms."""
        return TopicPartition(self._topics.input, number)

    def _partition(self, number: int) -> Partition:
        """A partition in the port's terms."""
        return Partition(self._topics.stream, number)
