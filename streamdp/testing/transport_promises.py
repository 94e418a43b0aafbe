"""The promises of a transport, one function each: what is done, and what must come of it.

Nothing here knows a technology. What a dying process leaves behind is imitated by cancelling a
step after some turns of the event loop and walking away from the worker; what a zombie does, by
using the worker after another has taken its partition.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TypeVar

from streamdp.core.errors import Fenced, InvalidConfig, TransportLost
from streamdp.ports import Commit, Key, StreamTopics, Transport, Value, Verdict
from streamdp.testing.transport_room import (
    Check,
    Heard,
    Room,
    Worker,
    flatten,
    fold,
    pairs,
    rows,
    step,
)

T = TypeVar("T")

BOUNDED = 20.0  # seconds within which a worker must have given everything up
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


def numbered(count: int, *, start: int = 0) -> list[tuple[Key, Value]]:
    """Input records that can be told apart."""
    return [(b"k%d" % (i % 7), b"record %d" % i) for i in range(start, start + count)]


async def _missing_input(room: Room) -> None:
    transport = room.technology.transport(worker="lone")
    room.opened.append(transport.close)
    await room.refuses(
        "join without an input", InvalidConfig, transport.join([room.topics], Heard())
    )


async def _assigns_everything(room: Room) -> None:
    worker = await room.lone_worker(partitions=3)
    room.expect("assigned", expected={room.at(n) for n in range(3)}, got=worker.heard.assigned_now)


async def _fresh_is_empty(room: Room) -> None:
    worker = await room.lone_worker(partitions=2)
    taken = await worker.transport.take(room.at(1))
    room.expect("state", expected={}, got=dict(taken.state))
    room.expect("offsets", expected=(0, 0), got=(taken.first_offset, taken.end_offset))
    room.expect("group offset", expected=None, got=taken.group_offset)
    room.expect("last ledger line", expected=None, got=taken.last_ledger_line)
    room.expect("partitions", expected=2, got=taken.partitions)
    room.expect("published", expected=([], []), got=await room.published())


async def _delivers_once_in_order(room: Room) -> None:
    worker = await room.lone_worker()
    await room.send(ODD, partition=0)
    await room.send(numbered(700), partition=0)
    taken = await worker.transport.take(room.at())
    worker.transport.resume(room.at(), taken.first_offset)
    batches = await worker.collect(len(ODD) + 700)
    came = rows(batches)
    room.expect("records", expected=ODD + numbered(700), got=[row[1:] for row in came])
    offsets = [row[0] for row in came]
    room.expect("rising offsets", expected=sorted(set(offsets)), got=offsets)
    for batch, after in zip(batches, [*batches[1:], None], strict=True):
        follows = after is None or batch.offsets[-1] < batch.next_offset <= after.offsets[0]
        room.expect("next_offset lies between two batches", expected=True, got=follows)
    room.expect("end offset", expected=taken.end_offset, got=worker.transport.end_offset(room.at()))


async def _poll_is_bounded(room: Room) -> None:
    worker = await room.lone_worker(partitions=2)
    await room.send(numbered(60), partition=0)
    await room.send(numbered(60), partition=1)
    for number in range(2):
        taken = await worker.transport.take(room.at(number))
        worker.transport.resume(room.at(number), taken.first_offset)
    sizes = []
    while sum(sizes) < 120:
        found = await worker.transport.poll(max_records=25, timeout=1.0)
        sizes.append(sum(map(len, found)))
    room.expect("largest poll is within max_records", expected=True, got=max(sizes) <= 25)
    async with asyncio.timeout(BOUNDED):
        empty = await worker.transport.poll(max_records=25, timeout=0.05)
    room.expect("an idle poll", expected=0, got=sum(map(len, empty)))


async def _interrupted_poll_loses_nothing(room: Room) -> None:
    worker = await room.lone_worker()
    taken = await worker.transport.take(room.at())
    worker.transport.resume(room.at(), taken.first_offset)
    came: list[tuple[Key, Value]] = []
    for turns in range(30):
        await room.send(numbered(5, start=5 * turns), partition=0)
        poll = asyncio.create_task(worker.transport.poll(max_records=3, timeout=0.5))
        came += [row[1:] for row in rows(await _interrupt(poll, turns) or ())]
    left = 150 - len(came)
    came += [row[1:] for row in rows(await worker.collect(left))]
    room.expect("records, whatever was cancelled", expected=numbered(150), got=came)


async def _interrupt(task: asyncio.Task[T], turns: int) -> T | None:
    """Cancel a step after some turns of the loop; what it returned if it was faster."""
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except (asyncio.CancelledError, TransportLost):
        return None


async def _resume_and_pause(room: Room) -> None:
    worker = await room.lone_worker()
    await room.send(numbered(50), partition=0)
    taken = await worker.transport.take(room.at())
    worker.transport.resume(room.at(), taken.first_offset)
    first = rows(await worker.collect(50))
    worker.transport.resume(room.at(), first[20][0])
    again = rows(await worker.collect(30))
    room.expect("records from the offset on, again", expected=first[20:], got=again)
    worker.transport.pause(room.at())
    await room.send(numbered(5, start=50), partition=0)
    paused = await worker.transport.poll(max_records=100, timeout=0.2)
    room.expect("a paused partition", expected=0, got=sum(map(len, paused)))
    worker.transport.resume(room.at(), first[-1][0] + 1)
    went_on = [row[1:] for row in rows(await worker.collect(5))]
    room.expect("after the pause", expected=numbered(5, start=50), got=went_on)


async def _pause_stops_a_waiting_poll(room: Room) -> None:
    worker = await room.lone_worker()
    taken = await worker.transport.take(room.at())
    worker.transport.resume(room.at(), taken.first_offset)
    poll = asyncio.create_task(worker.transport.poll(max_records=10, timeout=0.3))
    await asyncio.sleep(0.05)  # it waits; nothing depends on how long
    worker.transport.pause(room.at())
    await room.send(numbered(5), partition=0)
    room.expect("delivered after the pause", expected=0, got=sum(map(len, await poll)))
    worker.transport.resume(room.at(), taken.first_offset)
    came = [row[1:] for row in rows(await worker.collect(5))]
    room.expect("delivered when resumed", expected=numbered(5), got=came)


async def _reads_ranges(room: Room) -> None:
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


async def _read_leaves_poll_alone(room: Room) -> None:
    worker = await room.lone_worker(partitions=2)
    for number in range(2):
        await room.send(numbered(30), partition=number)
        await worker.transport.take(room.at(number))
    worker.transport.resume(room.at(0), 0)
    read = asyncio.create_task(flatten(worker.transport.read(room.at(1), 0, 1000)))
    came = [row[1:] for row in rows(await worker.collect(30, max_records=4))]
    room.expect("polled", expected=numbered(30), got=came)
    room.expect("read", expected=numbered(30), got=[row[1:] for row in await read])


async def _commit_is_kept(room: Room) -> None:
    worker = await room.lone_worker()
    await worker.transport.take(room.at())
    commits = [step(number) for number in range(1, 8)]
    commits.insert(4, Commit(next_offset=4, state=[(b"row 2", None), (b"row 99", None)]))
    commits.insert(5, Commit(next_offset=4, state=[]))
    for commit in commits:
        await worker.transport.commit(room.at(), commit)
    await _expect_durable(room, commits, await room.worker("second"))


async def _expect_durable(room: Room, commits: list[Commit], worker: Worker) -> None:
    """Everything of these commits, and nothing else, is there for a new owner and for readers."""
    taken = await worker.transport.take(room.at())
    room.expect("state", expected=fold(commits), got=dict(taken.state))
    actions, ledger = await room.published()
    lines = [record for commit in commits for record in commit.ledger]
    room.expect("ledger", expected=lines, got=pairs(ledger))
    room.expect("rising ledger offsets", expected=True, got=_rising([r.offset for r in ledger]))
    room.expect("rising action offsets", expected=True, got=_rising([r.offset for r in actions]))
    sent = [record for commit in commits for record in commit.actions]
    room.expect("actions in force", expected=dict(sent), got=dict(pairs(actions)))
    newest = lines[-1][1] if lines else None
    room.expect("last ledger line", expected=newest, got=taken.last_ledger_line)


def _rising(offsets: list[int]) -> bool:
    return all(a < b for a, b in pairwise(offsets))


async def _group_remembers(room: Room) -> None:
    worker = await room.lone_worker()
    await room.send(numbered(9), partition=0)
    await worker.transport.take(room.at())
    await worker.transport.commit(room.at(), step(3))
    await worker.transport.commit(room.at(), step(7))
    taken = await worker.transport.take(room.at())
    room.expect("group offset", expected=7, got=taken.group_offset)


async def _large_commit(room: Room) -> None:
    worker = await room.lone_worker()
    await worker.transport.take(room.at())
    largest = min(worker.transport.largest_value("home"), 4_000_000)
    commit = Commit(
        next_offset=1,
        state=[(b"large", b"\x07" * largest)] + [(b"row %d" % i, b"%d" % i) for i in range(3000)],
        actions=[(b"key %d" % i, b"action %d" % i) for i in range(2000)],
        ledger=[(b"key %d" % i, b"line %d" % i) for i in range(2000)],
    )
    await worker.transport.commit(room.at(), commit)
    await _expect_durable(room, [commit], await room.worker("second"))


async def _take_again(room: Room) -> None:
    worker = await room.lone_worker()
    commits = []
    for number in range(1, 5):
        taken = await worker.transport.take(room.at())
        room.expect("state", expected=fold(commits), got=dict(taken.state))
        commits.append(step(number))
        await worker.transport.commit(room.at(), commits[-1])
    await _expect_durable(room, commits, worker)


async def _fencing(room: Room) -> None:
    zombie = await room.lone_worker()
    await zombie.transport.take(room.at())
    await zombie.transport.commit(room.at(), step(1))
    owner = await room.worker("owner")
    await owner.transport.take(room.at())
    await room.refuses("a zombie's commit", Fenced, zombie.transport.commit(room.at(), step(2)))
    await owner.transport.commit(room.at(), step(3))
    again = zombie.transport.commit(room.at(), step(4))
    await room.refuses("a zombie's second commit", TransportLost, again)
    await _expect_durable(room, [step(1), step(3)], owner)


async def _commit_needs_take(room: Room) -> None:
    worker = await room.lone_worker()
    early = worker.transport.commit(room.at(), step(1))
    await room.refuses("a commit before any take", TransportLost, early)
    await worker.transport.take(room.at())
    await worker.transport.leave(room.at())
    late = worker.transport.commit(room.at(), step(1))
    await room.refuses("a commit after leaving", TransportLost, late)
    await _expect_durable(room, [], worker)


async def _leaving_ends_it(room: Room) -> None:
    """A commit in flight may go through, but the partition is no longer this worker's."""
    worker = await room.lone_worker()
    await worker.transport.take(room.at())
    commit = asyncio.create_task(worker.transport.commit(room.at(), step(1)))
    await asyncio.sleep(0)
    await worker.transport.leave(room.at())
    await asyncio.gather(commit, return_exceptions=True)
    late = worker.transport.commit(room.at(), step(2))
    await room.refuses("a commit after leaving in mid-commit", TransportLost, late)
    taken = await worker.transport.take(room.at())
    survived = [step(1)] if b"row 1" in taken.state else []
    await _expect_durable(room, survived, worker)


async def _all_or_nothing(room: Room) -> None:
    """Workers that die in the middle of a commit, at a later moment each time."""
    worker = await room.lone_worker()
    done: list[Commit] = []
    for number in range(1, 15):
        await worker.transport.take(room.at())
        commit = asyncio.create_task(worker.transport.commit(room.at(), step(number)))
        await _interrupt(commit, number * number // 3)
        worker = await room.worker(f"heir {number}")
        taken = await worker.transport.take(room.at())
        if dict(taken.state) != fold(done):
            done.append(step(number))
        await _expect_durable(room, done, worker)
    await _expect_durable(room, done, worker)


async def _lost_means_take(room: Room) -> None:
    worker = await room.lone_worker()
    await worker.transport.take(room.at())
    commit = asyncio.create_task(worker.transport.commit(room.at(), step(1)))
    await _interrupt(commit, 1)
    next_one = worker.transport.commit(room.at(), step(2))
    await room.refuses("a commit after one whose outcome is unknown", TransportLost, next_one)
    taken = await worker.transport.take(room.at())
    await worker.transport.commit(room.at(), step(3))
    survived = [step(1)] if b"row 1" in taken.state else []
    await _expect_durable(room, [*survived, step(3)], worker)


async def _race(room: Room) -> None:
    """A commit and a take by another at the same time: one of two orders, never a mixture."""
    worker = await room.lone_worker()
    done: list[Commit] = []
    for number in range(1, 9):
        heir = await room.worker(f"heir {number}")
        await worker.transport.take(room.at())
        commit = asyncio.create_task(worker.transport.commit(room.at(), step(number)))
        for _ in range(number):
            await asyncio.sleep(0)
        taken = await heir.transport.take(room.at())
        (outcome,) = await asyncio.gather(commit, return_exceptions=True)
        kept = b"row %d" % number in taken.state
        if outcome is None:
            room.expect("a commit that succeeded is in what was taken", expected=True, got=kept)
        else:
            room.expect("refused as", expected=True, got=isinstance(outcome, TransportLost))
        done += [step(number)] if kept else []
        await _expect_durable(room, done, heir)
        worker = heir


async def _partitions_apart(room: Room) -> None:
    worker = await room.lone_worker(partitions=2)
    for number in range(2):
        await worker.transport.take(room.at(number))
    await asyncio.gather(
        worker.transport.commit(room.at(0), step(1)), worker.transport.commit(room.at(1), step(2))
    )
    heir = await room.worker("heir")
    taken = await heir.transport.take(room.at(0))
    room.expect("state of partition 0", expected=fold([step(1)]), got=dict(taken.state))
    room.expect("its last ledger line", expected=step(1).ledger[-1][1], got=taken.last_ledger_line)
    await worker.transport.commit(room.at(1), step(3))
    taken = await worker.transport.take(room.at(1))
    room.expect("state of partition 1", expected=fold([step(2), step(3)]), got=dict(taken.state))
    actions, _ = await room.published()
    numbers = {(r.partition, r.value) for r in actions if r.key is not None}
    expected = {(0, b"action 1"), (1, b"action 2"), (1, b"action 3")}
    room.expect("actions name their partition", expected=expected, got=numbers)


async def _streams_apart(room: Room) -> None:
    other = StreamTopics(app=room.topics.app, stream="other", input=room.topics.input)
    await room.create()
    administrator = room.technology.administrator()
    room.opened.append(administrator.close)
    await administrator.create([other], partitions=1)
    worker = await room.worker("lone", streams=[room.topics, other])
    await worker.until(lambda heard: len(heard.assigned_now) == 2)
    await room.send(numbered(20), partition=0)
    for partition in sorted(worker.heard.assigned_now):
        await worker.transport.take(partition)
        worker.transport.resume(partition, 0)
    came = await worker.collect(40)
    for stream in ("home", "other"):
        own = [row[1:] for row in rows(b for b in came if b.partition.stream == stream)]
        room.expect(f"records of {stream}", expected=numbered(20), got=own)
    await worker.transport.commit(room.at(), step(1))
    partition = next(p for p in worker.heard.assigned_now if p.stream == "other")
    taken = await worker.transport.take(partition)
    room.expect("the other stream's state", expected={}, got=dict(taken.state))
    room.expect("its last ledger line", expected=None, got=taken.last_ledger_line)
    await worker.transport.commit(room.at(), step(2))


async def _publications_follow(room: Room) -> None:
    worker = await room.lone_worker()
    await worker.transport.take(room.at())
    await worker.transport.commit(room.at(), step(1))
    reader = room.technology.publications()
    room.opened.append(reader.close)
    lines = reader.ledger(room.topics, follow=True)
    came: list[bytes] = []
    async for batch in lines:
        if not batch:
            break
        came += [record.value for record in batch]
    room.expect("up to the end", expected=[v for _, v in step(1).ledger], got=came)
    await worker.transport.commit(room.at(), step(2))
    came = []
    async for batch in lines:
        came += [record.value for record in batch]
        if len(came) >= len(step(2).ledger):
            break
    room.expect("and then what comes", expected=[v for _, v in step(2).ledger], got=came)


async def _gives_up_in_time(room: Room) -> None:
    worker = await room.lone_worker(partitions=2)
    await worker.transport.take(room.at(0))
    worker.transport.resume(room.at(0), 0)
    commit = asyncio.create_task(worker.transport.commit(room.at(0), step(1)))
    await asyncio.sleep(0)
    async with asyncio.timeout(BOUNDED):
        await worker.transport.leave(room.at(1))  # which was never taken
        await asyncio.gather(commit, return_exceptions=True)
        await worker.transport.leave(room.at(0))
        await worker.transport.close()
        await worker.transport.close()
    late = worker.transport.commit(room.at(0), step(2))
    await room.refuses("a commit after closing", TransportLost, late)


async def _producer(room: Room) -> None:
    worker = await room.lone_worker(partitions=4)
    records = numbered(300)
    await room.send(records[:150])
    await room.send(records[150:])
    for number in range(4):
        await worker.transport.take(room.at(number))
        worker.transport.resume(room.at(number), 0)
    came = await worker.collect(300)
    homes: dict[Key, set[int]] = {}
    for batch in came:
        for key in batch.keys:
            homes.setdefault(key, set()).add(batch.partition.number)
    room.expect("partitions of a key", expected={1}, got={len(home) for home in homes.values()})
    for number in range(4):
        own = rows(batch for batch in came if batch.partition.number == number)
        keys = {key for _, key, _ in own}
        expected = [record for record in records if record[0] in keys]
        room.expect(f"order in partition {number}", expected=expected, got=[r[1:] for r in own])


async def _administrator(room: Room) -> None:
    await room.create(partitions=2)
    administrator = room.technology.administrator()
    room.opened.append(administrator.close)
    again = await administrator.create([room.topics], partitions=2)
    changed = [f.subject for f in again if f.verdict is not Verdict.GOOD]
    room.expect("created again, changed", expected=[], got=changed)
    problems = [
        finding.subject
        for finding in await administrator.check([room.topics])
        if finding.verdict is Verdict.PROBLEM
    ]
    room.expect("problems", expected=[], got=problems)
    worker = await room.worker("lone")
    await worker.until(lambda heard: len(heard.assigned_now) == 2)
    await worker.transport.take(room.at(1))
    await worker.transport.commit(room.at(1), step(5))
    seen = await administrator.peek(room.topics, 1)
    room.expect("peek: state", expected=fold([step(5)]), got=dict(seen.state))
    line = step(5).ledger[-1][1]
    room.expect("peek: last ledger line", expected=line, got=seen.last_ledger_line)
    room.expect("peek: group offset", expected=5, got=seen.group_offset)
    await worker.transport.commit(room.at(1), step(6))  # peeking has fenced nobody


async def _expand(room: Room) -> None:
    await room.create(partitions=2)
    administrator = room.technology.administrator()
    room.opened.append(administrator.close)
    await administrator.expand([room.topics], partitions=3)
    worker = await room.worker("lone")
    await worker.until(lambda heard: len(heard.assigned_now) == 3)
    await room.send(numbered(5), partition=2)
    taken = await worker.transport.take(room.at(2))
    room.expect("partitions", expected=3, got=taken.partitions)
    worker.transport.resume(room.at(2), taken.first_offset)
    came = [row[1:] for row in rows(await worker.collect(5))]
    room.expect("records of the new partition", expected=numbered(5), got=came)
    await worker.transport.commit(room.at(2), step(1))


async def _newest(room: Room) -> None:
    await room.create(partitions=2)
    administrator = room.technology.administrator()
    room.opened.append(administrator.close)
    room.expect(
        "of nothing", expected=[], got=list(await administrator.newest(room.topics, count=4))
    )
    await room.send(numbered(10), partition=0)
    await room.send(numbered(10, start=10), partition=1)
    newest = [row[1:] for row in rows(await administrator.newest(room.topics, count=4))]
    room.expect("ends with the newest", expected=numbered(1, start=19)[0], got=newest[-1])
    room.expect("about as many as asked for", expected=True, got=1 <= len(newest) <= 8)


async def _share(room: Room) -> None:
    await room.create(partitions=4)
    first, second = await room.worker("first"), await room.worker("second")
    everything = {room.at(number) for number in range(4)}
    while True:
        for worker in (first, second):
            await worker.transport.poll(max_records=1, timeout=0.02)
        shares = first.heard.assigned_now, second.heard.assigned_now
        if all(shares) and shares[0] | shares[1] == everything:
            break
    room.expect("owned by both", expected=set(), got=shares[0] & shares[1])
    await second.transport.close()
    await first.until(lambda heard: heard.assigned_now == everything)


async def _handover(room: Room) -> None:
    """What one worker committed goes on at another, without a record lost or repeated."""
    await room.create()
    await room.send(numbered(40), partition=0)
    came: list[tuple[Key, Value]] = []
    for number in range(4):
        worker = await room.worker(f"worker {number}")
        await worker.until(lambda heard: bool(heard.assigned_now))
        taken = await worker.transport.take(room.at())
        position = taken.group_offset or taken.first_offset
        came += [row[1:] for row in await _ten(worker.transport, room, position)]
        await worker.transport.close()
    room.expect("records over four workers", expected=numbered(40), got=came)


async def _ten(transport: Transport, room: Room, start: int) -> list[tuple[int, Key, Value]]:
    transport.resume(room.at(), start)
    came: list[tuple[int, Key, Value]] = []
    after = start
    while len(came) < 10:
        for batch in await transport.poll(max_records=10 - len(came), timeout=1.0):
            came += rows([batch])
            after = batch.next_offset
    await transport.commit(room.at(), Commit(next_offset=after, state=[(b"at", b"%d" % after)]))
    return came


CHECKS = tuple(
    Check(number, promise, body)
    for number, (promise, body) in enumerate(
        [
            ("a missing input is refused by join", _missing_input),
            ("a lone worker is assigned every partition", _assigns_everything),
            ("a fresh partition is empty", _fresh_is_empty),
            ("records arrive once, in order, byte by byte", _delivers_once_in_order),
            ("a poll is bounded in number and time", _poll_is_bounded),
            ("an interrupted poll loses nothing", _interrupted_poll_loses_nothing),
            ("resume goes anywhere and pause stops", _resume_and_pause),
            ("read gives any range", _reads_ranges),
            ("read leaves poll alone", _read_leaves_poll_alone),
            ("a commit is kept, all of it", _commit_is_kept),
            ("the group remembers the position", _group_remembers),
            ("a large commit is one commit", _large_commit),
            ("a partition can be taken again", _take_again),
            ("taking fences", _fencing),
            ("a commit needs a take", _commit_needs_take),
            ("an interrupted commit is all or nothing", _all_or_nothing),
            ("after an unknown outcome comes a take", _lost_means_take),
            ("a commit and a take have an order", _race),
            ("partitions are apart", _partitions_apart),
            ("streams are apart", _streams_apart),
            ("publications can be followed", _publications_follow),
            ("giving up is bounded", _gives_up_in_time),
            ("a producer keeps order and keys' homes", _producer),
            ("the administrator makes, checks and peeks", _administrator),
            ("partitions can be added", _expand),
            ("the newest records can be looked at", _newest),
            ("a position is handed over", _handover),
            ("pause stops a poll that waits", _pause_stops_a_waiting_poll),
            ("leaving in mid-commit ends it", _leaving_ends_it),
        ],
        start=1,
    )
)

GROUP_CHECKS = (Check(51, "workers share partitions", _share),)
