"""All code that uses undocumented parts of the client library.

The client (version 0.14) has no setting or method for these; each function here says why it is
needed, and `test_contracts.py` and `test_contracts_kafka.py` check that the
library behaves so. No other module of the adapters uses an attribute of another object that begins
with an underscore: ruff sees to that (SLF001).

**Handing over without copies.** The client copies every decoded record into a `ConsumerRecord`,
which takes as long as all the rest of its work on a record: 0.4 of 0.8 µs. The decoded record has
the same `offset`, `timestamp`, `key`, `value` and `headers`, which is all that this adapter reads,
so its consumers hand over that (`lean`). Fetched records pass through one dictionary of the
fetcher, and each entry is changed as it is added. Aborted and control records are left out earlier,
as ever. Its four steps of Python with each record take longer still than decoding it, so records
come in lists of as many as are asked for (`_handed_over`).

**Control batches without a record.** The cleaner empties a marker of a transaction and may keep its
batch, since that remembers a producer. The client raises at such a batch, for ever. Brokers name
no aborted transaction whose marker was emptied, since its records are gone, so it marks no abort.

**What the client cannot decode.** It raises without naming the batch, and the iterator of all that
was fetched of the partition is dead then. So the bytes of each answer are kept until its records
are handed over, the batch is decoded from them (`decoding`), and a new iterator goes on behind it.
The client also decompresses without a limit, so it is given batches that are decompressed already.

**Turns.** The client hands over in the order of that dictionary: all of the first partition, then
all of the next. With 2 MB of small records in each of 32 partitions, the last one waits for a
million records of the others. `to_the_end` lets partitions take turns.

**Filling batches.** The client's own method takes as long around a record as it does for it. `fill`
puts many into a batch, with one time.

**Ending clients that will not stop.** Their stop hangs while the broker is down, or in a race. A
client's tasks are cancelled again and again, because a cancelled one waits for those that it
started; then the connections are closed. Queued batches are dropped: the result of those in flight
is unknown anyway. A consumer's fetcher and coordinator have their tasks as attributes. A producer's
sender has only its main task; each request in flight is a task that only the main one knows, so an
`AbandonableProducer` notes requests as they begin.

**Asking for a transaction's end once.** The client speaks version 0 of `EndTxn`, which names a
producer and its epoch but no transaction, and asks again when the connection breaks. The first
request may still arrive then, during the next transaction of that epoch, and end it in its middle
(KIP-890). So to an `AbandonableProducer` a lost answer is fatal. The next owner has another epoch.
The other requests may be repeated: partitions and groups are added to a transaction twice with one
effect, batches have sequence numbers, and an offset is the group's note, not our position. One that
is late and finds no transaction opens one, which the coordinator aborts when its time is up. That
fences the owner, and the partition is taken again.

**Nothing after a refusal.** Where the coordinator refuses one partition of a transaction, the
client forgets which ones are not added yet, and sends their batches. A broker takes such a batch
while the marker of the transaction before is on its way there, and that one's commit makes it
visible: rows of a commit without its lines. So a refusal ends the sender of an
`AbandonableProducer` at once.

**Pauses.** To a broker that it cannot reach, or does not trust, the client
connects again at once, for each of its tasks: a hundred handshakes of TLS a second, on both sides.
While a topic is gone it asks three hundred times a second where it is. So it waits first
(`with_pauses`), longer each time, up to a second: the time of Kafka's own clients.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from sys import maxsize
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from weakref import ReferenceType, ref

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient, ClusterMetadata, ConnectionGroup, CoordinationType
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.fetcher import FetchError, FetchResult, PartitionRecords
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import (
    CorruptRecordException,
    KafkaError,
    NodeNotReadyError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.transaction import EndTxnRequest
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from streamdp.ports import Headers, Key, Value
from streamdp_adapters.kafka.decoding import (
    CODECS,
    batch_behind,
    decoded,
    decompressed,
    end_of,
    frame_end,
)

if TYPE_CHECKING:
    from aiokafka.consumer.fetcher import Batches  # of our stubs

R = TypeVar("R")

KNOWN_SECONDS = 5.0
"""How long a cluster may know of no broker before that is an error."""

_SECONDS = 2.0
_TIMES = 10
_SHORTEST, _LONGEST = 0.05, 1.0  # seconds of a pause
_AT_ONCE = 10  # questions about topics that may follow on one another, as at a start


# -- questions that the library does not offer -----------------------------------------------------


async def ask_any_node(client: AIOKafkaAdminClient, request: Any) -> Any:
    """Send a request of ours to any broker."""
    return await client._client.send(client._client.get_random_node(), request)


async def ask_transaction_coordinator(client: AIOKafkaAdminClient, transactional_id: str) -> None:
    """Look up who coordinates a transactional id, which needs a right on it."""
    await client._client.coordinator_lookup(CoordinationType.TRANSACTION, transactional_id)


def sender_error(producer: AIOKafkaProducer) -> BaseException | None:
    """The error that ended the task which sends a producer's batches, if one did.

    The client raises a general one from it.
    """
    sender = producer._sender.sender_task
    if sender is None or not sender.done() or sender.cancelled():
        return None
    error = sender.exception()
    return error if error is None else error.__cause__ or error


async def committed(
    consumer: AIOKafkaConsumer, places: list[TopicPartition]
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    """The group's offsets with their metadata, which the client's own method drops."""
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    offsets = await consumer._coordinator.fetch_committed_offsets(places)
    return offsets


async def know_topics(part: AIOKafkaConsumer | AIOKafkaProducer, topics: Sequence[str]) -> None:
    """Ask for these topics at once: the client would wait between them."""
    await client_of(part).set_topics(topics)


async def refused_topics(consumer: AIOKafkaConsumer) -> set[str]:
    """The consumer's topics that this user may not see, by an answer of now."""
    await consumer._client.force_metadata_update()
    return set(consumer._client.cluster.unauthorized_topics)


def client_of(part: AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient) -> AIOKafkaClient:
    """The connections of a consumer, a producer or an administration."""
    return part.client if isinstance(part, AIOKafkaProducer) else part._client


async def know_a_broker(client: AIOKafkaClient) -> None:
    """Ask a started client's servers until they name a broker, for some seconds at most.

    One that starts, or was away for a moment, names none, not even itself.
    """
    until = time.monotonic() + KNOWN_SECONDS
    while not client.cluster.brokers():
        if time.monotonic() > until:
            raise NodeNotReadyError("no broker is known")
        await asyncio.sleep(_SHORTEST)
        await client.force_metadata_update()


def abort(connection: AIOKafkaConnection) -> bool:
    """Cut a connection that is closing: a refused TLS connection waits for the other side."""
    protocol = connection._protocol
    if protocol is None or protocol._transport is None:
        return False
    protocol._transport.abort()
    return True


# -- connections -----------------------------------------------------------------------------------


def close_first_connection(error: BaseException) -> None:
    """Close the connection with which a client began, if this error ended its beginning.

    The client keeps it in a variable alone until the broker has answered, and closes it after some
    errors, but not where it is cancelled.
    """
    for frame, _ in walk_tb(error.__traceback__):
        connection = frame.f_locals.get("bootstrap_conn")
        if connection is not None:
            connection.close()


def with_pauses(client: AIOKafkaClient) -> None:
    """Let connections that fail, and questions about topics, be ever rarer in a row."""
    connect, pauses = client._get_conn, dict[tuple[int | str, Any], _Pause]()
    update, asked = client._metadata_update, _Pause()

    async def connect_later(node: int | str, **more: Any) -> AIOKafkaConnection | None:
        # A broker has a connection for each group: that of heartbeats waits for its own alone.
        pause = pauses.setdefault((node, more.get("group", ConnectionGroup.DEFAULT)), _Pause())
        before = pause.times
        await asyncio.sleep(pause.until - time.monotonic())  # at once if that is past
        if pause.times > before:
            return None  # another task has tried meanwhile
        connection = await connect(node, **more)
        if connection is not None:
            pause.times, pause.until = 0, 0.0
        elif pause.times == before:
            pause.times += 1
            pause.until = time.monotonic() + _seconds(pause.times)
        return connection

    async def update_later(cluster: ClusterMetadata, topics: Collection[str] | None) -> bool:
        in_a_row = time.monotonic() < asked.until
        asked.times = asked.times + 1 if in_a_row else 0
        if asked.times > _AT_ONCE:
            await asyncio.sleep(_seconds(asked.times - _AT_ONCE))
        try:
            return await update(cluster, topics)
        finally:
            asked.until = time.monotonic() + _SHORTEST

    client._get_conn, client._metadata_update = connect_later, update_later


def _seconds(times: int) -> float:
    """The pause after so many times in a row."""
    return min(_SHORTEST * 2.0 ** min(times - 1, 10), _LONGEST)


@dataclass
class _Pause:
    """How often something was tried in a row, and until when to wait, or to count as a row."""

    times: int = 0
    until: float = 0.0


# -- fetched records -------------------------------------------------------------------------------


def lean(consumer: AIOKafkaConsumer, *, every: bool = True) -> None:
    """Let a started consumer without deserialisers hand over records as they are decoded.

    Nothing may be assigned to it yet. `every`: see `decoding`.
    """
    client: Any = consumer._client
    send, answer = client.send, dict[TopicPartition, bytes]()

    async def noted_send(node: int, request: Any, **more: Any) -> Any:
        """Note the bytes of an answer; the fetcher makes its entries before any task goes on."""
        got = await send(node, request, **more)
        if isinstance(request, FetchRequest):
            answer.clear()
            for topic, partitions in got.topics:
                for number, *_, batches in partitions:
                    answer[TopicPartition(topic, number)] = batches
        return got

    client.send = noted_send
    consumer._fetcher._records = _Fetched(answer, every=every)


def to_the_end(consumer: AIOKafkaConsumer, place: TopicPartition) -> None:
    """Hand over the rest of a partition after the records of all others."""
    fetched = consumer._fetcher._records
    if place in fetched:
        fetched.move_to_end(place)


def waits(consumer: AIOKafkaConsumer, place: TopicPartition) -> bool:
    """Whether fetched records of a partition wait to be handed over."""
    return place in consumer._fetcher._records


class _Fetched(OrderedDict[TopicPartition, FetchResult | FetchError]):
    """Fetched records that are not handed over yet."""

    def __init__(self, answer: dict[TopicPartition, bytes], *, every: bool) -> None:
        super().__init__()
        self._answer, self._every = answer, every

    def __setitem__(self, place: TopicPartition, result: FetchResult | FetchError) -> None:
        if isinstance(result, FetchResult):
            records, batches = result._partition_records, self._answer.pop(place)
            assert isinstance(records, PartitionRecords)
            result._partition_records = _Unpacked(records, batches, every=self._every)
            # Weakly: a cycle would keep the answer until the collector looks.
            result.getall = partial(_handed_over, ref(result))
        super().__setitem__(place, result)


def _handed_over(
    reference: ReferenceType[FetchResult], most: int | None = None
) -> list[DefaultRecord]:
    """At most so many of the records that were fetched: what the client's own method does."""
    result = reference()
    assert result is not None, "this is a method of it"
    if not result.check_assignment(result._topic_partition):
        return []
    unpacked = result._partition_records
    assert isinstance(unpacked, _Unpacked)
    records = unpacked.take(maxsize if most is None else most)
    result._update_position()
    if unpacked.ended:
        result._partition_records = None
    return records


@dataclass
class _Wanted:
    """How many records are wanted next: a batch of a megabyte can have millions."""

    count: int = 0


class _Unpacked:
    """The records of one answer, in place of the client's."""

    def __init__(self, client: PartitionRecords, batches: bytes, *, every: bool) -> None:
        self._wanted = _Wanted()
        client._consumer_record = _as_decoded
        client._contains_abort_marker = _marks_abort
        client._records = _Batches(client._records, batches, self._wanted)
        client._check_crcs = False  # of what was fetched; it would be of what is decompressed
        client._records_iterator = None  # a cycle that keeps the answer until the collector looks
        self._client, self._first = client, client.next_fetch_offset
        self._all = self._unpack(batches, every=every)
        self.ended = False  # whether all was taken

    @property
    def next_fetch_offset(self) -> int:
        """Where to fetch next."""
        return self._client.next_fetch_offset

    def take(self, most: int) -> list[DefaultRecord]:
        """The next records, at most so many; fewer at the end."""
        taken: list[DefaultRecord] = []
        while not self.ended and len(taken) < most:
            self._wanted.count = most - len(taken)
            some = next(self._all, None)
            if some is None:
                self.ended = True
            elif some[0].offset >= self._first:
                taken += some
            else:  # the answer begins inside a batch
                taken += [record for record in some if record.offset >= self._first]
        return taken

    def _unpack(self, batches: bytes, *, every: bool) -> Iterator[Sequence[DefaultRecord]]:
        client = self._client
        while True:
            try:
                yield from client._unpack_records()
            except Exception as error:  # each codec has errors of its own
                batch = batch_behind(batches, client.next_fetch_offset)
                if batch is None or (every and not isinstance(error, UnicodeDecodeError)):
                    raise
            else:
                return
            for record in decoded(batch, every=every):
                if record.offset >= client.next_fetch_offset:
                    client.next_fetch_offset = record.offset + 1
                    yield [record]
            client.next_fetch_offset = end_of(batch)


class _Records(list[DefaultRecord]):
    """Some records of a batch, which the client takes for one: it asks for the offset."""

    @property
    def offset(self) -> int:
        """The last one's."""
        return self[-1].offset


class _Together:
    """A batch of the client's whose records come as many at a time as are wanted."""

    def __init__(self, batch: DefaultRecordBatch, wanted: _Wanted) -> None:
        self._batch, self._wanted = batch, wanted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[_Records]:
        left = chain(self._batch)  # a batch itself begins only once
        while records := _Records(islice(left, self._wanted.count)):
            yield records


class _Batches:
    """The batches of one answer, decompressed here instead of by the client."""

    def __init__(self, client: Batches, answer: bytes, wanted: _Wanted) -> None:
        self._client = client
        self._answer = answer
        self._at = 0
        self._wanted = wanted

    def has_next(self) -> bool:
        """Whether there is another batch."""
        return self._client.has_next()

    def next_batch(self) -> Any:
        """The next batch, after a check of its checksum."""
        batch = self._next_batch()
        return batch if batch.is_control_batch else _Together(batch, self._wanted)

    def _next_batch(self) -> DefaultRecordBatch:
        batch, start = self._client.next_batch(), self._at
        self._at = frame_end(self._answer, start)
        if not batch.validate_crc():
            raise CorruptRecordException("Invalid CRC")
        codecs = [number for number, has, _ in CODECS.values() if has()]
        if isinstance(batch, DefaultRecordBatch) and batch.compression_type in codecs:
            return DefaultRecordBatch(decompressed(self._answer[start : self._at]))
        return batch


def _as_decoded(_: TopicPartition, record: R) -> R:
    """Return the record itself."""
    return record


def _marks_abort(batch: DefaultRecordBatch) -> bool:
    """Whether a control batch has the marker of an abort."""
    marker = next(batch, None)
    return marker is not None and ControlRecord.parse(marker.key) == ABORT_MARKER


# -- batches to be sent ----------------------------------------------------------------------------


def fill(
    batch: BatchBuilder,
    records: Sequence[tuple[Key, Value]],
    headers: Sequence[Headers] | None = None,
    *,
    start: int = 0,
) -> int:
    """Put records into an empty batch, from a place on until one does not fit; return its place.

    The first one always fits: a record that is too large travels alone.
    """
    append, now, none = batch._builder.append, time.time_ns() // 1_000_000, list[Any]()
    at = start
    for key, value in islice(records, start, None):
        if append(at - start, now, key, value, list(headers[at]) if headers else none) is None:
            break
        at += 1
    batch._relative_offset = at - start
    return at


# -- ending clients --------------------------------------------------------------------------------


class AbandonableProducer(AIOKafkaProducer):
    """A producer that knows its requests in flight, and asks for a transaction's end once.

    It sends nothing of a transaction of which something was refused.
    """

    def __init__(self, **configs: object) -> None:
        super().__init__(**configs)
        self.requests: set[asyncio.Task[None]] = set()
        _note_requests(self, self.requests)
        _end_once(self)
        self._txn_manager.error_transaction = _end_sender


class _Ended(TransactionalIdAuthorizationFailed):
    """Ends a sender without a word in the client's log, by its class; its cause says why."""


def _end_sender(error: KafkaError) -> NoReturn:
    """Raise, in the task of a transactional request, what was refused."""
    about = error.args[0] if error.args else None
    if isinstance(error, TopicAuthorizationFailedError) and isinstance(about, set):
        error = TopicAuthorizationFailedError(min(about))
    raise _Ended from error


def _note_requests(producer: AIOKafkaProducer, requests: set[asyncio.Task[None]]) -> None:
    """Keep the tasks that a sender starts, while they run."""
    sender = producer._sender
    send, transact = sender._send_produce_req, sender._maybe_do_transactional_request

    def note(task: asyncio.Task[None]) -> None:
        requests.add(task)
        task.add_done_callback(requests.discard)

    async def noted_send(node: int, batches: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        note(task)
        await send(node, batches)

    def noted_transact() -> asyncio.Task[None] | None:
        task = transact()
        if task is not None:
            note(task)
        return task

    sender._send_produce_req = noted_send
    sender._maybe_do_transactional_request = noted_transact


def _end_once(producer: AbandonableProducer) -> None:
    """Fail a producer for good when the answer to a transaction's end is lost."""
    client, manager = producer.client, producer._txn_manager
    send = client.send

    async def send_once(node: int | None, request: object, **more: object) -> Any:
        try:
            return await send(node, request, **more)
        except NodeNotReadyError:  # nothing was sent
            raise
        except KafkaError as error:
            if isinstance(request, EndTxnRequest):
                manager.fatal_error(error)
            raise

    client.send = send_once


async def abandon_producer(producer: AbandonableProducer) -> None:
    """End a producer; leave no task and no connection."""
    producer._closed = True
    await _cancel_all(lambda: [producer._sender.sender_task, *producer.requests])
    queued = chain.from_iterable(producer._message_accumulator._batches.values())
    ends: list[asyncio.Future[None] | None] = [batch._drain_waiter for batch in queued]
    ends.append(producer._txn_manager.wait_for_transaction_end())
    for end in ends:
        if end is not None and end.done() and not end.cancelled():
            end.exception()  # nobody waits for it any more
    await _close(producer.client)


async def abandon_consumer(consumer: AIOKafkaConsumer) -> None:
    """End a consumer; leave no task and no connection. The group notices later."""
    consumer._closed = True
    await _cancel_all(lambda: _tasks_of(consumer))
    await _close(consumer._client)


def _tasks_of(consumer: AIOKafkaConsumer) -> Iterable[asyncio.Task[None] | None]:
    """The tasks of a consumer; one that never connected has neither part."""
    fetcher, coordinator = consumer._fetcher, consumer._coordinator
    if fetcher is not None:
        yield fetcher._fetch_task
        yield from fetcher._pending_tasks
    if isinstance(coordinator, GroupCoordinator):
        yield coordinator._coordination_task
        yield coordinator._heartbeat_task
        yield coordinator._commit_refresh_task
    elif coordinator is not None:
        yield coordinator._reset_committed_task


async def _cancel_all(started: Callable[[], Iterable[asyncio.Task[None] | None]]) -> None:
    """Cancel until no task of a client runs."""
    for _ in range(_TIMES):
        tasks = [task for task in started() if task is not None and not task.done()]
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_SECONDS / _TIMES)


async def _close(client: AIOKafkaClient) -> None:
    """Close the connections within a bounded time."""
    closing = asyncio.ensure_future(client.close())
    await asyncio.wait([closing], timeout=_SECONDS)
    if not closing.done():
        closing.cancel()
