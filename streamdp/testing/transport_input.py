"""What a transport promises of its input: assignment, polling, reading, handing over."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

from streamdp.core.errors import InvalidConfig
from streamdp.ports import Commit, Headers, Key, Value
from streamdp.testing.transport_room import (
    BOUNDED,
    Heard,
    Room,
    flatten,
    headers_of,
    interrupt,
    numbered,
    records,
    rows,
)

ODD: list[tuple[Key, Value]] = [
    (b"key", b"value"),
    (None, b"of the null key"),
    (b"", b"of the empty key"),
    (b"\xff\x00\xfe", bytes(range(256))),
    (b"tombstone", None),
    (None, None),
    (b"empty", b""),
    (b"large", bytes(range(251)) * 1200),
]


HEADERS: list[Headers] = [
    (),
    (("streamdp-action", b"banner"),),
    (("twice", b"1"), ("twice", b"2"), ("empty", b""), ("null", None)),
    (("Größe", b"\xff\x00"),),
]


async def missing_input(room: Room) -> None:
    """Joining without the input raises `InvalidConfig`."""
    transport = room.technology.transport(worker="lone")
    room.opened.append(transport.close)
    await room.refuses(
        "join without an input", InvalidConfig, transport.join([room.topics], Heard())
    )


async def assigns_everything(room: Room) -> None:
    """A worker alone gets every partition."""
    worker = await room.lone_worker(partitions=3)
    room.expect("assigned", expected={room.at(n) for n in range(3)}, got=worker.heard.assigned_now)
    room.expect("settled", expected={room.topics.stream}, got=worker.heard.settled_ever)


async def standing_by(room: Room) -> None:
    """A worker for which no partition is left is told that its share is settled."""
    await room.create(partitions=1)
    workers = [await room.worker("first"), await room.worker("second")]
    while not all(worker.heard.settled_ever for worker in workers):
        for worker in workers:
            await worker.transport.poll(max_records=1, timeout=0.02)


async def fresh_is_empty(room: Room) -> None:
    """A partition that was never taken has no state."""
    worker = await room.lone_worker(partitions=2)
    taken = await worker.transport.take(room.at(1))
    room.expect("state", expected={}, got=dict(taken.state))
    room.expect("offsets", expected=(0, 0), got=(taken.first_offset, taken.end_offset))
    room.expect("group offset", expected=None, got=taken.group_offset)
    room.expect("last ledger line", expected=None, got=taken.last_ledger_line)
    room.expect("partitions", expected=2, got=taken.partitions)
    room.expect("published", expected=([], []), got=await room.published())


async def delivers_once_in_order(room: Room) -> None:
    """Odd records and many arrive as they were sent."""
    worker = await room.lone_worker()
    await room.send(ODD, partition=0)
    await room.send(numbered(700), partition=0)
    taken = await worker.begin(room.at())
    batches = await worker.collect(len(ODD) + 700)
    room.expect("records", expected=ODD + numbered(700), got=records(batches))
    offsets = [row[0] for row in rows(batches)]
    room.expect("rising offsets", expected=sorted(set(offsets)), got=offsets)
    spans = [taken.first_offset, *(batch.next_offset for batch in batches[:-1])]
    room.expect(
        "each batch begins where the one before ended",
        expected=spans,
        got=[batch.start for batch in batches],
    )
    for batch in batches:
        within = all(batch.start <= offset < batch.next_offset for offset in batch.offsets)
        room.expect("offsets lie within their batch's span", expected=True, got=within)
    known = worker.transport.last_known(room.at())
    room.expect("end offset", expected=taken.end_offset, got=known.end)


async def brings_headers(room: Room) -> None:
    """A stream that asks gets each record's headers and timestamp, by polling and by reading."""
    asking = replace(room.topics, headers=True)
    await room.create()
    await room.send(numbered(len(HEADERS)), headers=HEADERS, partition=0)
    await room.send(numbered(1), partition=0)
    sent = [list(headers) for headers in (*HEADERS, ())]
    worker = await room.worker("asks", streams=[asking])
    await worker.until(lambda heard: bool(heard.assigned_now))
    taken = await worker.begin(room.at())
    polled = await worker.collect(len(sent))
    ends = taken.first_offset, taken.end_offset
    read = [batch async for batch in worker.transport.read(room.at(), *ends)]
    for way, batches in (("polled", polled), ("read", read)):
        room.expect(f"headers {way}", expected=sent, got=headers_of(batches))
        stamps = [stamp for batch in batches for stamp in batch.timestamps]
        room.expect(f"timestamps {way}", expected=len(sent), got=len(stamps))
        falling = [pair for pair in pairwise(stamps) if pair[0] > pair[1]]
        room.expect(f"timestamps {way} that fall", expected=[], got=falling)


async def spares_headers(room: Room) -> None:
    """A stream that does not ask gets none: they cost time."""
    worker = await room.lone_worker()
    await room.send(numbered(len(HEADERS)), headers=HEADERS, partition=0)
    await worker.begin(room.at())
    batches = await worker.collect(len(HEADERS))
    room.expect("headers", expected=[], got=headers_of(batches))
    room.expect("timestamps", expected=[], got=[s for b in batches for s in b.timestamps])


async def poll_is_bounded(room: Room) -> None:
    """No poll brings more than was asked for or takes longer."""
    worker = await room.lone_worker(partitions=2)
    await room.send(numbered(60), partition=0)
    await room.send(numbered(60), partition=1)
    for number in range(2):
        await worker.begin(room.at(number))
    sizes: list[int] = []
    while sum(sizes) < 120:
        batches = await worker.transport.poll(max_records=25, timeout=1.0)
        sizes.append(sum(map(len, batches)))
    room.expect("largest poll is within max_records", expected=True, got=max(sizes) <= 25)
    async with asyncio.timeout(BOUNDED):
        empty = await worker.transport.poll(max_records=25, timeout=0.05)
    room.expect("an idle poll", expected=0, got=sum(map(len, empty)))


async def interrupted_poll_loses_nothing(room: Room) -> None:
    """Records that a cancelled poll may have fetched come again."""
    worker = await room.lone_worker()
    await worker.begin(room.at())
    came: list[tuple[Key, Value]] = []
    for turns in range(30):
        await room.send(numbered(5, start=5 * turns), partition=0)
        poll = asyncio.create_task(worker.transport.poll(max_records=3, timeout=0.5))
        came += records(await interrupt(poll, turns) or ())
    left = 150 - len(came)
    came += records(await worker.collect(left))
    room.expect("records, whatever was cancelled", expected=numbered(150), got=came)


async def resume_and_pause(room: Room) -> None:
    """A partition can be resumed at any offset, and a paused one delivers nothing."""
    worker = await room.lone_worker()
    await room.send(numbered(50), partition=0)
    await worker.begin(room.at())
    first = rows(await worker.collect(50))
    worker.transport.resume(room.at(), first[20][0])
    again = rows(await worker.collect(30))
    room.expect("records from the offset on, again", expected=first[20:], got=again)
    worker.transport.pause(room.at())
    await room.send(numbered(5, start=50), partition=0)
    paused = await worker.transport.poll(max_records=100, timeout=0.2)
    room.expect("a paused partition", expected=0, got=sum(map(len, paused)))
    worker.transport.resume(room.at(), first[-1][0] + 1)
    went_on = records(await worker.collect(5))
    room.expect("after the pause", expected=numbered(5, start=50), got=went_on)


async def pause_stops_a_waiting_poll(room: Room) -> None:
    """A pause takes effect at once, even for a poll that is under way."""
    worker = await room.lone_worker()
    taken = await worker.begin(room.at())
    poll = asyncio.create_task(worker.transport.poll(max_records=10, timeout=0.3))
    await asyncio.sleep(0.05)  # it waits; nothing depends on how long
    worker.transport.pause(room.at())
    await room.send(numbered(5), partition=0)
    room.expect("delivered after the pause", expected=0, got=sum(map(len, await poll)))
    worker.transport.resume(room.at(), taken.first_offset)
    came = records(await worker.collect(5))
    room.expect("delivered when resumed", expected=numbered(5), got=came)


async def reads_ranges(room: Room) -> None:
    """Any range, in whole and in part, up to the end and beyond."""
    worker = await room.lone_worker()
    for start in range(0, 40, 10):
        await room.send(numbered(10, start=start), partition=0)
    taken = await worker.transport.take(room.at())
    low, high = taken.first_offset, taken.end_offset
    everything = await flatten(worker.transport.read(room.at(), low, high))
    room.expect("all", expected=numbered(40), got=[row[1:] for row in everything])
    for start, stop in [
        (low, low),
        (low, low + 1),
        (low + 3, high - 3),
        (high, high),
        (high, high),
    ]:
        got = await flatten(worker.transport.read(room.at(), start, stop))
        expected = [row for row in everything if start <= row[0] < stop]
        room.expect(f"the range [{start},{stop})", expected=expected, got=got)
    beyond = await flatten(worker.transport.read(room.at(), high - 1, high + 1000))
    room.expect("ends at the end", expected=[r for r in everything if r[0] >= high - 1], got=beyond)


async def read_leaves_poll_alone(room: Room) -> None:
    """Rebuilding one partition does not disturb another."""
    worker = await room.lone_worker(partitions=2)
    for number in range(2):
        await room.send(numbered(30), partition=number)
        await worker.transport.take(room.at(number))
    worker.transport.resume(room.at(0), 0)
    read = asyncio.create_task(flatten(worker.transport.read(room.at(1), 0, 1000)))
    came = records(await worker.collect(30, max_records=4))
    room.expect("polled", expected=numbered(30), got=came)
    room.expect("read", expected=numbered(30), got=[row[1:] for row in await read])


async def handover(room: Room) -> None:
    """What one worker committed goes on at another, without a record lost or repeated."""
    await room.create()
    await room.send(numbered(40), partition=0)
    came: list[tuple[Key, Value]] = []
    for number in range(4):
        worker = await room.worker(f"worker {number}")
        await worker.until(lambda heard: bool(heard.assigned_now))
        taken = await worker.transport.take(room.at())
        after = taken.group_offset or taken.first_offset
        worker.transport.resume(room.at(), after)
        while len(came) < 10 * (number + 1):
            most = 10 * (number + 1) - len(came)
            for batch in await worker.transport.poll(max_records=most, timeout=1.0):
                came, after = came + records([batch]), batch.next_offset
        state = [(b"at", b"%d" % after)]
        await worker.transport.commit(room.at(), Commit(next_offset=after, state=state))
        await worker.transport.close()
    room.expect("records over four workers", expected=numbered(40), got=came)


async def share(room: Room) -> None:
    """Every partition comes to have one worker, also when one goes.

    The new owner may be told before the old one: taking the partition fences the old owner.
    """
    await room.create(partitions=4)
    first, second = await room.worker("first"), await room.worker("second")
    everything, shared = {room.at(number) for number in range(4)}, False
    while not shared:
        for worker in (first, second):
            await worker.transport.poll(max_records=1, timeout=0.02)
        ones, others = first.heard.assigned_now, second.heard.assigned_now
        shared = bool(ones and others) and ones | others == everything and not ones & others
    await second.transport.close()
    await first.until(lambda heard: heard.assigned_now == everything)
