"""A worker's lasting name in a group: it takes over what a dead process with its name held.

A member that was killed keeps its partitions, and delays every rebalance, until its session times
out. A process with a lasting name (`StaticMembership.REPLACED`) knows more: an earlier member
with its name is its own predecessor. Kafka cannot tell a dead member from a live one, so:

1. On this machine the name is held by an abstract socket, which the system frees however a process
   ends. If it is held, a live duplicate runs, and this process is refused before it joins.
2. A namesake with our address is dead, since the socket was free: it is removed from the group
   (LeaveGroup) before we join, so the join does not wait for it.
3. A namesake elsewhere gets `PATIENCE_SECONDS`: our join makes every live member join again within
   a heartbeat of a second. One that has not by then is dead, and is removed.
4. A member of a finished join was alive then. So if another member with our name is in our finished
   join, it is a live duplicate, and we, who came later, are refused. A removed member that lives
   comes back at its next heartbeat, within its session, so for that long each join is checked
   again.

Safety needs none of these rules: whoever takes a partition fences every earlier owner. A live
process that rule 2 takes for dead (two machines behind one address) loses some seconds, and we are
refused by rule 4. Without abstract sockets, rule 3 covers all.

The client (version 0.14) has no call for LeaveGroup of another member, so our own requests use its
connection; each question is bounded in time.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import ipaddress
import socket
import time
from contextlib import suppress
from dataclasses import dataclass

from aiokafka import errors as kafka
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.group import LeaveGroupRequest

from streamdp.core.errors import InvalidConfig
from streamdp_adapters.kafka.settings import KafkaSettings

PATIENCE_SECONDS = 3.0
"""Seconds in which a live member joins again: three heartbeats."""

_ASK_SECONDS = 15.0  # a young broker takes a moment to have a coordinator
_AGAIN_SECONDS = 0.05
_JOINED = ("CompletingRebalance", "Stable")  # states of a group whose members have all joined
_GONE = (kafka.NoError, kafka.UnknownMemberIdError)
_NOT_YET = (
    kafka.GroupCoordinatorNotAvailableError,
    kafka.NotCoordinatorForGroupError,
    kafka.GroupLoadInProgressError,
    kafka.KafkaConnectionError,
    kafka.NodeNotReadyError,
)


@dataclass(frozen=True, slots=True)
class Namesake:
    """A member of the group with our name."""

    member_id: str
    host: str


class Name:
    """A lasting name in one group, while this process is in it."""

    def __init__(self, settings: KafkaSettings, *, group_id: str, client_id: str) -> None:
        self._group_id = group_id
        self._client_id = client_id
        self._session = settings.session_timeout_ms / 1000
        servers = ",".join(sorted(settings.servers))
        self._held_as = f"{servers}\n{group_id}\n{client_id}"
        self._hold: socket.socket | None = None
        self._elsewhere: list[Namesake] = []
        self._removed = False
        self._joined = asyncio.Event()

    def hold(self) -> None:
        """Hold the name on this machine; refuse if another process holds it."""
        if self._hold is not None:
            return
        place = b"\0streamdp-" + hashlib.sha256(self._held_as.encode()).hexdigest().encode()
        with suppress(OSError, AttributeError):  # a system without such sockets
            hold = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                hold.bind(place)
            except OSError as error:
                hold.close()
                if error.errno == errno.EADDRINUSE:
                    raise self._refused("another process of this machine") from None
                raise
            self._hold = hold

    def release(self) -> None:
        """Release the name."""
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    async def succeed(self, client: AIOKafkaClient) -> None:
        """Before joining, remove dead members of this machine."""
        self._joined.clear()
        self._removed = False
        node, _, members = await self._look(client)
        here = await _own_address(client, node) if members and self._hold is not None else None
        self._elsewhere = [one for one in members if here is None or _address(one.host) != here]
        await self._remove(client, [one for one in members if one not in self._elsewhere])

    async def watch(self, client: AIOKafkaClient) -> None:
        """After joining, remove dead members elsewhere, then raise if a live one has our name."""
        if self._elsewhere:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self._joined.wait()
            if not self._joined.is_set():
                await self._remove(client, self._elsewhere)
        removed_at = time.monotonic()
        while True:
            left = self._session - (time.monotonic() - removed_at) if self._removed else None
            try:
                async with asyncio.timeout(left):
                    await self._joined.wait()
            except TimeoutError:
                return
            self._joined.clear()
            _, state, members = await self._look(client)
            if state in _JOINED and len(members) > 1:
                hosts = ", ".join(sorted(member.host.removeprefix("/") for member in members))
                raise self._refused(f"live members of group {self._group_id}: {hosts}")
            if state in _JOINED and not self._removed:
                return

    def joined(self) -> None:
        """Note that a join has finished, with us."""
        self._joined.set()

    async def _look(self, client: AIOKafkaClient) -> tuple[int, str, list[Namesake]]:
        """The group's coordinator and state, and its members of our name."""
        async with asyncio.timeout(_ASK_SECONDS):
            while True:
                try:
                    node = await client.coordinator_lookup(CoordinationType.GROUP, self._group_id)
                    answer = await client.send(node, DescribeGroupsRequest([self._group_id]))
                    code, _, state, _, _, members, *_ = answer.groups[0]
                    if (error := kafka.for_code(code)) is not kafka.NoError:
                        raise error(self._group_id)
                except _NOT_YET:
                    await asyncio.sleep(_AGAIN_SECONDS)
                else:
                    ours = [Namesake(member[0], member[2]) for member in members
                            if member[1] == self._client_id]  # fmt: skip
                    return node, state, ours

    async def _remove(self, client: AIOKafkaClient, members: list[Namesake]) -> None:
        """Remove members that cannot leave by themselves."""
        for member in members:
            async with asyncio.timeout(_ASK_SECONDS):
                node = await client.coordinator_lookup(CoordinationType.GROUP, self._group_id)
                leave = LeaveGroupRequest(self._group_id, member.member_id)
                answer = await client.send(node, leave)
            error = kafka.for_code(answer.error_code)
            if error not in _GONE:
                raise error(self._group_id)
            self._removed = True

    def _refused(self, got: str) -> InvalidConfig:
        """The error for a live duplicate."""
        return InvalidConfig(
            "service.worker",
            f"a process of this name is running ({self._client_id.removeprefix('streamdp-')})",
            expected="a name of its own for each process, or none",
            got=got,
        )


def _address(host: str) -> object:
    """A host in the broker's or this machine's form."""
    words = host.removeprefix("/").partition("%")[0]
    with suppress(ValueError):
        return ipaddress.ip_address(words)
    return words


async def _own_address(client: AIOKafkaClient, node: int) -> object:
    """The address from which this machine talks to a broker; sends nothing."""
    broker = client.cluster.broker_metadata(node)
    if broker is None:
        return None
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=(broker.host, broker.port)
        )
    except OSError:
        return None
    try:
        return _address(str(transport.get_extra_info("sockname")[0]))
    finally:
        transport.close()
