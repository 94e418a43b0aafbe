"""The Kafka transport: memberships deliver, owners commit, readers read.

Each part's docstring says what may go wrong in it and why that does no harm (`membership`, `owner`,
`reading`). Here they are only joined:

1. `join` compares the topics with what the promise needs (`topics`), then enters each stream's
   group. Two streams with one input are two groups.
2. `take` abandons an owner that this process may have had, makes a new one, and reads what is
   durable up to its owner record.
3. `poll` asks the memberships in turn for fetched records, and waits for all of them only if there
   are none. If the cluster does not answer, an empty poll is an error. A partition that was taken
   is delivered once a poll has asked whether its input is still that topic (`identity`).
4. Few partitions are taken at once. Taking one costs 50 ms of processor time and has a time-out, so
   a process that gets little of a processor loses them all together, again and again. (With a
   fortieth of one, none of 96 was taken in two minutes.) One that takes long lets the next begin.
5. Calls for a partition after `close` have no effect: its task may end later.

The steps at which a test can interrupt: ``take: fenced``, ``take: owned``, ``take: first``,
``take: group``, ``take: ledger``, ``take: state``, ``take: read``, ``poll``, ``commit: begun``,
``commit: sent``, ``commit: decided``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from aiokafka.structs import TopicPartition

from streamdp.core.errors import Fenced, TransportLost
from streamdp.ports import (
    Commit,
    LastKnown,
    Listener,
    LiveEntries,
    Partition,
    Reached,
    Records,
    StaticMembership,
    StreamTopics,
    Taken,
    check_names,
    no_fault,
)
from streamdp_adapters.kafka import client_errors, reading
from streamdp_adapters.kafka.catalogue import NewestLists
from streamdp_adapters.kafka.identity import TopicWatch
from streamdp_adapters.kafka.membership import Fetched, Membership
from streamdp_adapters.kafka.owner import PartitionOwner
from streamdp_adapters.kafka.second_input import InputEnds, SecondInput
from streamdp_adapters.kafka.sending import KEY_ROOM, RECORD_ROOM
from streamdp_adapters.kafka.settings import KafkaSettings
from streamdp_adapters.kafka.topics import BatchLimits, examine

TAKEN_AT_ONCE = 8
"""Partitions that are taken at the same time, unless some of them take long."""

LONG_SECONDS = 20.0
"""Seconds after which a taking no longer holds up the next: its part of the cluster may be away."""


class KafkaTransport:
    """One worker on a cluster."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        worker: str,
        reached: Reached = no_fault,
        static_membership: StaticMembership = StaticMembership.STRANGERS,
    ) -> None:
        self._settings = settings
        self._worker = worker
        self._static_membership = static_membership
        self._reached = reached
        self._topics: dict[str, StreamTopics] = {}
        self._limits: dict[str, BatchLimits] = {}
        self._memberships: dict[str, Membership] = {}
        self._owners: dict[Partition, PartitionOwner] = {}
        self._ends = InputEnds(settings)
        self._lists = NewestLists(settings)
        self._second_input: dict[Partition, SecondInput] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None
        self._watch = TopicWatch()
        self._unasked: dict[Partition, int] = {}  # where to resume, once the watch has asked
        self._turn = 0
        self._takings = asyncio.Semaphore(TAKEN_AT_ONCE)

    async def join(self, streams: Sequence[StreamTopics], listener: Listener) -> None:
        """Refuse topics that break the promise, then ask for a share of each stream's input."""
        check_names(streams)
        self._listener = listener
        self._topics = {topics.stream: topics for topics in streams}
        self._limits = await examine(self._settings, streams)
        for topics in streams:
            membership = Membership(
                topics,
                listener,
                settings=self._settings,
                worker=self._worker,
                largest_input=self._limits[topics.stream].input,
                static_membership=self._static_membership,
            )
            self._memberships[topics.stream] = membership
            try:
                await membership.start()
            except BaseException:
                await self._leave_groups()
                raise

    async def take(self, partition: Partition, *, entries: LiveEntries | None = None) -> Taken:
        """Fence every earlier owner and return what is durable."""
        topics = self._stream(partition)
        self._abandon(partition)
        with client_errors.after_start():
            owner = PartitionOwner(
                topics,
                partition.number,
                settings=self._settings,
                worker=self._worker,
                largest=self._limits[partition.stream].derived - RECORD_ROOM,
                reached=self._reached,
            )
        try:
            async with self._turn_to_take():
                with client_errors.after_start():
                    owned_at = await owner.take()
                    taken = await reading.durable(
                        self._settings,
                        topics,
                        partition.number,
                        owned_at=owned_at,
                        entries=entries,
                        reached=self._reached,
                    )
            self._reached("take: read", partition)
        except BaseException as error:
            self._close_later(owner)
            if isinstance(error, Fenced):
                self._fenced(partition)
            raise
        self._owners[partition] = owner
        self._watch.begin(partition, topics, taken)
        if (membership := self._memberships.get(partition.stream)) is not None:
            membership.firsts[partition.number] = taken.first_offset
        return taken

    @asynccontextmanager
    async def _turn_to_take(self) -> AsyncIterator[None]:
        """Wait for a turn; give it back at the end, or after `LONG_SECONDS`."""
        await self._takings.acquire()
        loop = asyncio.get_running_loop()
        giving_back = loop.call_later(LONG_SECONDS, self._takings.release)
        try:
            yield
        finally:
            if loop.time() < giving_back.when():
                giving_back.cancel()
                self._takings.release()

    async def confirm(self, partition: Partition) -> None:
        """Ask the broker whether our producer is still the partition's last one."""
        owner = self._owners.get(partition)
        if owner is not None:
            async with self._working(partition, owner):
                await owner.confirm()

    async def read(self, partition: Partition, start: int, stop: int) -> AsyncIterator[Records]:
        """The input again, from `start` up to but without `stop`, in batches."""
        topics = self._stream(partition)
        with client_errors.after_start():
            async for records in reading.stretch(
                self._settings, topics, partition, start=start, stop=stop
            ):
                yield records

    async def end_now(self, partition: Partition) -> int:
        """The end of the input, with what is in open transactions."""
        place = TopicPartition(self._stream(partition).input, partition.number)
        where = f"partition {partition}: input {place.topic}"
        with client_errors.after_start(), client_errors.translated(where):
            return await self._ends.end(place)

    async def stop_second_input(self, partition: Partition, start: int, *, timestamp: int) -> int:
        """The offset at which the second input is no longer older than this."""
        return await self._second(partition).stop(start, timestamp=timestamp)

    def read_second_input(
        self, partition: Partition, start: int, stop: int
    ) -> AsyncIterator[Records]:
        """The second input from `start` up to but without `stop`, in batches."""
        return self._second(partition).read(start, stop)

    def _second(self, partition: Partition) -> SecondInput:
        """The reader of a partition's second input, until the partition is left."""
        topics = self._stream(partition)
        if partition not in self._second_input:
            self._second_input[partition] = SecondInput(
                topics, partition, settings=self._settings, ends=self._ends
            )
        return self._second_input[partition]

    def resume(self, partition: Partition, offset: int) -> None:
        """Let `poll` deliver this partition from `offset` on."""
        if self._watch.is_new(partition):
            self._unasked[partition] = offset
        elif (membership := self._memberships.get(partition.stream)) is not None:
            membership.resume(partition.number, offset)

    def pause(self, partition: Partition) -> None:
        """Stop delivering this partition."""
        self._unasked.pop(partition, None)
        if (membership := self._memberships.get(partition.stream)) is not None:
            membership.pause(partition.number)

    async def poll(self, *, max_records: int, timeout: float) -> Sequence[Records]:
        """New records of the resumed partitions; empty after `timeout` seconds."""
        await asyncio.sleep(0)  # the client fetches and commits in other tasks
        with client_errors.after_start():
            await self._check_inputs()
            members = list(self._memberships.values())
            self._turn = (self._turn + 1) % max(len(members), 1)
            members = members[self._turn :] + members[: self._turn]
            for member in members:
                if batches := await member.ready(max_records):
                    break
            else:
                batches = await _first(members, max_records, timeout)
            if not batches:
                for member in members:
                    member.check_answers()
            for records in batches:
                self._reached("poll", records.partition)
            return batches

    async def _check_inputs(self) -> None:
        """Stop partitions whose input was deleted and recreated; deliver those just taken."""
        owners = (owner for owner in self._owners.values() if not owner.lost)
        client = next((owner.client for owner in owners), None)
        asked = set(self._unasked)
        errors = await self._watch.ask(asked, client) if asked else self._watch.look(client)
        for partition, error in errors.items():
            self.pause(partition)
            assert self._listener is not None
            self._listener.failed(partition, error)
        for partition in asked & self._unasked.keys():
            self.resume(partition, self._unasked.pop(partition))

    async def newest_list(self, stream: str) -> bytes | None:
        """The last list, up to the end of what is committed."""
        with client_errors.after_start():
            return await self._lists.newest(self._topics[stream])

    async def commit(self, partition: Partition, commit: Commit) -> None:
        """Make one step durable and visible, all or nothing."""
        owner = self._owners.get(partition)
        if owner is None:
            raise TransportLost(
                f"partition {partition}",
                "commit refused",
                expected="a partition that was taken",
                got="one that was lost or never taken",
            )
        async with self._working(partition, owner):
            await owner.commit(commit)

    def largest_value(self, stream: str) -> int:
        """The most bytes that one value of a commit may have, with a key of up to 4 KiB."""
        return max(0, self._limits[stream].derived - RECORD_ROOM - KEY_ROOM)

    def last_known(self, partition: Partition) -> LastKnown:
        """By the newest answers; the topics' own settings decide what is retained."""
        membership = self._memberships.get(partition.stream)
        return LastKnown() if membership is None else membership.last_known(partition.number)

    def missing(self) -> Mapping[str, str]:
        """The inputs that the cluster's newest answer does not list."""
        return {
            name: error
            for membership in self._memberships.values()
            for name, error in membership.missing.items()
        }

    async def leave(self, partition: Partition) -> None:
        """Leave one partition."""
        membership = self._memberships.get(partition.stream)
        if membership is not None:
            membership.leave(partition.number)
        self._watch.end(partition)
        self._unasked.pop(partition, None)
        second_input = self._second_input.pop(partition, None)
        if second_input is not None:
            await second_input.close()
        owner = self._owners.pop(partition, None)
        if owner is not None:
            await owner.close()

    async def close(self) -> None:
        """Close everything within a bounded time."""
        owners, self._owners = list(self._owners.values()), {}
        seconds, self._second_input = list(self._second_input.values()), {}
        await asyncio.gather(
            self._watch.close(),
            self._ends.close(),
            self._lists.close(),
            *(second.close() for second in seconds),
            *(owner.close() for owner in owners),
            self._leave_groups(),
            *self._leaving,
            return_exceptions=True,
        )

    async def _leave_groups(self) -> None:
        """Leave all groups, also one whose join failed."""
        members, self._memberships = list(self._memberships.values()), {}
        await asyncio.gather(*(member.stop() for member in members), return_exceptions=True)

    def _stream(self, partition: Partition) -> StreamTopics:
        """The topics of a partition's stream."""
        topics = self._topics.get(partition.stream)
        if topics is None or partition.stream not in self._memberships:
            raise TransportLost(
                f"partition {partition}",
                "its stream was not joined",
                expected=sorted(self._memberships),
                got=partition.stream,
            )
        return topics

    @asynccontextmanager
    async def _working(self, partition: Partition, owner: PartitionOwner) -> AsyncIterator[None]:
        """A step of an owner: drop a lost owner, and announce a fenced partition again."""
        try:
            with client_errors.after_start():
                yield
        except Fenced:
            self._fenced(partition)
            raise
        finally:
            if owner.lost and self._owners.get(partition) is owner:
                self._abandon(partition)

    def _fenced(self, partition: Partition) -> None:
        """Another process took it: announce it again if the group still assigns it here."""
        if (membership := self._memberships.get(partition.stream)) is not None:
            membership.fenced(partition.number)

    def _abandon(self, partition: Partition) -> None:
        """Close an owner in the background: the next one fences it anyway."""
        owner = self._owners.pop(partition, None)
        if owner is not None:
            self._close_later(owner)

    def _close_later(self, owner: PartitionOwner) -> None:
        """Close in a task that `close` waits for."""
        task = asyncio.create_task(owner.close())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


async def _first(members: Sequence[Membership], max_records: int, timeout: float) -> list[Records]:
    """Wait for all memberships; deliver the first one's records, rewind the others."""
    tasks = {asyncio.create_task(member.wait(max_records, timeout)): member for member in members}
    delivered: list[Records] = []
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(timeout)
    except asyncio.CancelledError:
        await _call_off(tasks)
        raise
    try:
        for task, member in list(tasks.items()):
            if task.done() and not delivered:
                del tasks[task]
                delivered = member.accept_or_blame(task)
    finally:
        await _call_off(tasks)
    return delivered


async def _call_off(tasks: dict[asyncio.Task[Fetched], Membership]) -> None:
    """Cancel pending fetches that are not needed; their records are fetched again."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task, member in tasks.items():
        if not task.cancelled():
            task.exception()
            member.rewind()
