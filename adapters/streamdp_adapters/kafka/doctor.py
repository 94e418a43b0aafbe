"""Harmless probes of what this user may do on the cluster.

- Rights to write are asked of a broker (2.8 or later): a transaction would leave a marker in the
  topic, even if nothing is written.
- The right to commit is tried by a transaction that is aborted; its marker is in the brokers' own
  topic. Its transactional id is ``<app>.<stream>.doctor``: the service's would fence a running
  owner. Rights are usually granted by the prefix ``<app>.<stream>.``; the id of partition 0 is
  looked up too, which needs the right to describe it.
- Rights to read are tried by asking for one record.
- A topic that does not exist is not tried: the client would ask until its time is up, and the check
  of topics reports it. A topic that this user may not see is not tried either: every right on a
  topic brings the right to see it, so all are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import suppress

from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka.structs import OffsetAndMetadata, TopicPartition

from streamdp.core.errors import InvalidConfig, StreamdpError, TransportLost
from streamdp.ports import Finding, StreamTopics, Verdict
from streamdp_adapters.kafka import client_errors, reading
from streamdp_adapters.kafka.internals import (
    AbandonableProducer,
    ask_any_node,
    ask_transaction_coordinator,
)
from streamdp_adapters.kafka.owner import group, transactional_id
from streamdp_adapters.kafka.requests import WRITE, TopicIds
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.topics import administration, seen_shapes, wanted

_PROBE_SECONDS = 20.0
"""Seconds that one probe may take."""

_AGAIN_SECONDS = 0.1
"""Seconds between two questions to a cluster that has no answer yet."""


async def probe(
    settings: KafkaSettings, streams: Sequence[StreamTopics], written: Sequence[str]
) -> list[Finding]:
    """Try reachability and credentials first, then the rights of each stream, then of `serve`."""
    connection = await _try(
        "connection", "connected and authenticated", client_errors.reach(settings)
    )
    findings = [connection]
    if connection.verdict is Verdict.GOOD:
        there = await _there(settings, streams, written)
        for stream in streams:
            findings += [finding async for finding in _rights(settings, stream, there)]
        for topic in written:
            if topic in there:
                subject = f"topic {topic}: write by serve"
                findings.append(await _may_write(settings, subject, topic, seen=there[topic]))
    return findings


async def _there(
    settings: KafkaSettings, streams: Sequence[StreamTopics], written: Sequence[str]
) -> dict[str, bool]:
    """The topics that exist, and whether this user may see them."""
    names = [topic.name for stream in streams for topic in wanted(stream, settings)]
    names += written
    if not names:  # the client would ask for all topics
        return {}
    async with administration(settings) as client:
        shapes = await seen_shapes(client, names)
    return {name: shape is not None for name, shape in shapes.items()}


async def _rights(
    settings: KafkaSettings, stream: StreamTopics, there: Mapping[str, bool]
) -> AsyncIterator[Finding]:
    """Try what the service will do with a stream, right by right."""
    followed = "" if stream.output else stream.catalogue
    for topic in (stream.input, stream.second_input, stream.state, stream.ledger, followed):
        if topic in there:
            subject = f"topic {topic}: read"
            if there[topic]:
                yield await _try(subject, "may read", _read(settings, topic))
            else:
                yield Finding(subject, Verdict.PROBLEM, "refused: no right to Read, nor to see it")
    aside = [stream.quarantine] if stream.quarantined else []
    for topic in (stream.state, stream.output, stream.actions, stream.ledger, *aside):
        if topic in there:
            subject = f"topic {topic}: write in a transaction"
            yield await _may_write(settings, subject, topic, seen=there[topic])
    if there.get(stream.input, False):
        subject = f"group {group(stream)}: commit"
        yield await _try(subject, "may commit", _commit(settings, stream))
    own = transactional_id(stream, 0)
    yield await _try(f"transactional id {own}", "may be used", _look_up(settings, own))


async def _try(subject: str, good: str, step: Awaitable[None]) -> Finding:
    """Run one probe, and report it as a finding."""
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            with client_errors.translated(subject):
                await step
    except InvalidConfig as error:
        return Finding(subject, Verdict.PROBLEM, client_errors.refusal(error))
    except (StreamdpError, TimeoutError) as error:
        what = str(error) if isinstance(error, TransportLost) else "no answer in time"
        return Finding(subject, Verdict.PROBLEM, what)
    return Finding(subject, Verdict.GOOD, good)


async def _read(settings: KafkaSettings, topic: str) -> None:
    """Ask for a topic's bounds and for one record, if there is any."""
    place = TopicPartition(topic, 0)
    async with reading.reader(settings, (topic,), where=f"topic {topic}") as look:
        first, end = await look.bounds(place)
        async for _ in look.batches(place, first, min(end, first + 1)):
            break
        look.consumer.assign([place])
        look.consumer.seek(place, end)
        await look.consumer.getmany(timeout_ms=100)  # an empty topic has rights too


async def _may_write(settings: KafkaSettings, subject: str, topic: str, *, seen: bool) -> Finding:
    """Check the right to write to a topic that this user may see, or may not."""
    if not seen:
        return Finding(subject, Verdict.PROBLEM, "refused: no right to Write, nor to see it")
    return await _try(subject, "may write", _ask_write(settings, topic))


async def _ask_write(settings: KafkaSettings, topic: str) -> None:
    """Ask whether this user may write to a topic."""
    async with administration(settings) as client:
        answer = await ask_any_node(client, TopicIds([topic], rights=True))
    ((error, *_, rights, _),) = answer.topics
    if error:
        raise for_code(error)(topic)
    if not rights & WRITE:
        raise TopicAuthorizationFailedError(topic)


async def _commit(settings: KafkaSettings, stream: StreamTopics) -> None:
    """Announce a commit of an offset in a transaction, then abort it."""
    producer = AbandonableProducer(
        **settings.client(), transactional_id=f"{stream.app}.{stream.stream}.doctor"
    )
    position = {TopicPartition(stream.input, 0): OffsetAndMetadata(0, "")}
    async with client_errors.started(producer, settings):
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction(position, group(stream))
        await producer.abort_transaction()


async def _look_up(settings: KafkaSettings, name: str) -> None:
    """Look up who coordinates a transactional id, which needs a right on it.

    A cluster that was never asked creates the coordinators' topic first, and says so.
    """
    async with administration(settings) as client:
        while True:
            with suppress(GroupCoordinatorNotAvailableError, GroupLoadInProgressError):
                await ask_transaction_coordinator(client, name)
                return
            await asyncio.sleep(_AGAIN_SECONDS)
