"""What a transport promises of streams with a second input and an output.

A worker that dies in the middle of a commit is imitated as in `transport_commits`. What was written
to the output is read as anybody would read an input: committed records only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from streamdp.core.errors import Fenced, InvalidConfig, StateMismatch
from streamdp.ports import (
    Commit,
    OutputRecord,
    PairedTransport,
    Records,
    StreamTopics,
    Transport,
)
from streamdp.testing.transport_input import HEADERS
from streamdp.testing.transport_room import (
    Room,
    RoomWorker,
    fold,
    headers_of,
    interrupt,
    numbered,
    records,
    rows,
)

_APART_SECONDS = 0.005  # between batches whose timestamps should differ; equal ones are checked too


async def mismatched(room: Room) -> None:
    """A second input or an output with another number of partitions is refused by join."""
    _pair(room)
    administrator = room.administrator()
    await administrator.create([room.topics], partitions=1)
    double = replace(room.topics, stream="double", output=room.topics.second_input)
    joining = room.worker("lone", streams=[double])
    await room.refuses("one topic for two ends", InvalidConfig, joining)
    for odd in (room.topics.second_input, room.topics.output):
        topics = replace(
            room.topics, stream=f"odd{len(odd)}",
            input=f"{odd}.first", second_input=f"{odd}.second",
            output=f"{odd}.output",
        )  # fmt: skip
        wide = topics.second_input if odd == room.topics.second_input else topics.output
        await administrator.create([StreamTopics(topics.app, "wide", input=wide)], partitions=3)
        await administrator.create([topics], partitions=2)
        joining = room.worker("lone", streams=[topics])
        error = await room.refuses(f"three partitions of {wide}", InvalidConfig, joining)
        room.expect("named in the refusal", expected=True, got=wide in str(error))


async def read_second_input(room: Room) -> None:
    """Any range of the second input, with headers and timestamps; polling does not deliver it."""
    worker, paired = await _lone_worker(room)
    second_input = room.topics.second_input
    await room.send(numbered(len(HEADERS)), headers=HEADERS, topic=second_input, partition=0)
    await room.send(numbered(30, start=100), topic=second_input, partition=0)
    await room.send(numbered(5), partition=0)
    taken = await paired.take(room.at())
    low, high = taken.second_input.first, taken.second_input.end
    batches = [batch async for batch in paired.read_second_input(room.at(), low, high)]
    every = rows(batches)
    sent = numbered(len(HEADERS)) + numbered(30, start=100)
    room.expect("all", expected=sent, got=records(batches))
    known = [list(pairs) for pairs in HEADERS] + [[]] * 30
    room.expect("headers", expected=known, got=headers_of(batches))
    stamps = [stamp for batch in batches for stamp in batch.timestamps]
    room.expect("timestamps", expected=len(sent), got=len(stamps))
    _expect_tiles(room, batches, low, high)
    for start, stop in [(low, low), (low + 3, high - 3), (low + 3, high), (high, high)]:
        range_read = [batch async for batch in paired.read_second_input(room.at(), start, stop)]
        expected = [row for row in every if start <= row[0] < stop]
        room.expect(f"the range [{start},{stop})", expected=expected, got=rows(range_read))
        _expect_tiles(room, range_read, start, stop)
    worker.transport.resume(room.at(), taken.first_offset)
    polled = records(await worker.collect(5))
    room.expect("polled", expected=numbered(5), got=polled)
    end = await paired.end_now(room.at())
    room.expect("the end of the first input", expected=taken.end_offset, got=end)
    await room.send(numbered(1), partition=0)
    moved = await paired.end_now(room.at()) > end
    room.expect("its end moves with the next record", expected=True, got=moved)


def _expect_tiles(room: Room, batches: Sequence[Records], start: int, stop: int) -> None:
    """Batches follow each other from `start` to `stop`."""
    ends = [start, *(batch.next_offset for batch in batches)]
    begins = [*(batch.start for batch in batches), stop]
    if batches:
        room.expect("no gap between batches", expected=ends, got=begins)


async def stop_by_time(room: Room) -> None:
    """Where the second input is no longer older than a moment; its end where there is no such."""
    _, paired = await _lone_worker(room)
    second_input, at = room.topics.second_input, room.at()
    empty = await paired.stop_second_input(at, 0, timestamp=1)
    room.expect("of an empty input", expected=0, got=empty)
    for number in range(4):
        await room.send(numbered(3, start=3 * number), topic=second_input, partition=0)
        await asyncio.sleep(_APART_SECONDS)
    taken = await paired.take(at)
    low, high = taken.second_input.first, taken.second_input.end
    batches = [batch async for batch in paired.read_second_input(at, low, high)]
    stamped = [pair for b in batches for pair in zip(b.offsets, b.timestamps, strict=True)]
    falling = [pair for pair in pairwise(stamped) if pair[0][1] > pair[1][1]]
    room.expect("timestamps that fall", expected=[], got=falling)
    beyond = paired.stop_second_input(at, high + 5, timestamp=1)
    await room.refuses("a start beyond the end", StateMismatch, beyond)
    for start in (low, stamped[4][0]):
        for moment in sorted({stamp + late for _, stamp in stamped for late in (0, 1)}):
            got = await paired.stop_second_input(at, start, timestamp=moment)
            older = [offset for offset, stamp in stamped if stamp < moment and offset >= start]
            younger = [offset for offset, stamp in stamped if stamp >= moment and offset >= start]
            behind = all(offset < got for offset in older)
            room.expect(f"nothing older from {got} on", expected=True, got=behind)
            if younger:
                room.expect(f"the first of {moment} ms", expected=younger[0], got=got)
            else:
                reached = await _reaches(paired, room, start, got)
                room.expect("the end can be read up to", expected=reached, got=got)


async def _reaches(paired: PairedTransport, room: Room, start: int, stop: int) -> int:
    """Where reading up to `stop` ends."""
    after = start
    async for batch in paired.read_second_input(room.at(), start, stop):
        after = batch.next_offset
    return after


async def commit_writes(room: Room) -> None:
    """One step: state, both positions, a ledger line, and records at p of the output."""
    worker, paired = await _lone_worker(room, partitions=2)
    for number in range(2):
        await room.send(numbered(10), partition=number)
        await room.send(numbered(20), partition=number, topic=room.topics.second_input)
    steps = {number: [_step(number, count) for count in range(1, 4)] for number in range(2)}
    for number, commits in steps.items():
        await paired.take(room.at(number))
        for commit in commits:
            await worker.transport.commit(room.at(number), commit)
    for number, commits in steps.items():
        await _expect_durable(room, commits, await room.worker(f"heir {number}"), number)


async def all_or_nothing(room: Room) -> None:
    """Workers that die in the middle of such a commit, at a later moment each time."""
    worker, _ = await _lone_worker(room)
    await room.send(numbered(20), partition=0)
    await room.send(numbered(20), topic=room.topics.second_input, partition=0)
    done: list[Commit] = []
    for count in range(1, 10):
        await worker.transport.take(room.at())
        commit = asyncio.create_task(worker.transport.commit(room.at(), _step(0, count)))
        await interrupt(commit, count * count // 2)
        worker = await room.worker(f"heir {count}")
        taken = await worker.transport.take(room.at())
        if dict(taken.state) != fold(done):
            done.append(_step(0, count))
        await _expect_durable(room, done, worker, 0)


async def fencing(room: Room) -> None:
    """The older owner's commits write nothing."""
    zombie, _ = await _lone_worker(room)
    await room.send(numbered(5), partition=0)
    await room.send(numbered(5), topic=room.topics.second_input, partition=0)
    await zombie.transport.take(room.at())
    await zombie.transport.commit(room.at(), _step(0, 1))
    owner = await room.worker("owner")
    await owner.transport.take(room.at())
    await room.refuses("a zombie", Fenced, zombie.transport.commit(room.at(), _step(0, 2)))
    await owner.transport.commit(room.at(), _step(0, 3))
    await _expect_durable(room, [_step(0, 1), _step(0, 3)], owner, 0)


# --- tools ----------------------------------------------------------------------------------------


def _pair(room: Room) -> None:
    """Give the room's stream a second input and an output."""
    app = room.topics.app
    room.topics = replace(
        room.topics, second_input=f"{app}.beside", output=f"{app}.output", headers=True
    )


async def _lone_worker(room: Room, *, partitions: int = 1) -> tuple[RoomWorker, PairedTransport]:
    """A worker that was assigned everything, whose transport reads and writes beside."""
    _pair(room)
    worker = await room.lone_worker(partitions=partitions)
    return worker, _paired(room, worker.transport)


def _paired(room: Room, transport: Transport) -> PairedTransport:
    room.expect("a paired transport", expected=True, got=isinstance(transport, PairedTransport))
    assert isinstance(transport, PairedTransport)
    return transport


def _step(number: int, count: int) -> Commit:
    """A commit that can be told from every other one."""
    mark = f"{number}/{count}".encode()
    records: list[OutputRecord] = [
        (b"key " + mark, b"event " + mark, [("name", mark), ("none", None)]),
        (None, None, ()),
    ]
    return Commit(
        next_offset=count,
        state=[(b"checkpoint", mark), (b"row " + mark, mark)],
        ledger=[(None, b"line " + mark)],
        low_water=0,
        second_input=2 * count,
        records=records,
    )


async def _output(room: Room, number: int) -> list[Records]:
    """Every committed record of the output, as a stream that reads it would see it."""
    administrator = room.technology.administrator()
    reader = StreamTopics(room.topics.app, "reader", input=room.topics.output, headers=True)
    try:
        history = administrator.history(reader, after={})
        return [batch async for batch in history if batch.partition.number == number]
    finally:
        await administrator.close()


async def _expect_durable(
    room: Room, commits: list[Commit], worker: RoomWorker, number: int
) -> None:
    """Expect these commits to be durable, and nothing else."""
    taken = await worker.transport.take(room.at(number))
    room.expect("state", expected=fold(commits), got=dict(taken.state))
    last = commits[-1] if commits else None
    positions = (last.next_offset, last.second_input) if last else (None, None)
    remembered = taken.group_offset, taken.second_input.group
    room.expect("both positions", expected=positions, got=remembered)
    line = last.ledger[-1][1] if last else None
    room.expect("the last ledger line", expected=line, got=taken.last_ledger_line)
    written = [record for commit in commits for record in commit.records]
    output = await _output(room, number)
    room.expect("written", expected=[(k, v) for k, v, _ in written], got=records(output))
    headers = [list(pairs) for _, _, pairs in written]
    room.expect("headers", expected=headers, got=headers_of(output))
