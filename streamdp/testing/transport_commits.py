"""What a transport promises of its commits: whole or not at all, one owner, nothing mixed.

What a dying process leaves behind is imitated by cancelling a step after some turns of the event
loop and walking away from the worker; what a zombie does, by using the worker after another has
taken its partition.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from streamdp.core.errors import Fenced, TransportLost
from streamdp.ports import Commit, LiveEntries, StreamTopics
from streamdp.testing.transport_room import (
    BOUNDED,
    Room,
    expect_durable,
    fold,
    interrupt,
    numbered,
    records,
    step,
)


async def commit_is_kept(room: Room) -> None:
    """State with tombstones, actions and ledger, for a new owner and for readers."""
    worker = await room.lone_worker()
    await worker.transport.take(room.at())
    commits = [step(number) for number in range(1, 8)]
    commits.insert(4, Commit(next_offset=4, state=[(b"row 2", None), (b"row 99", None)]))
    commits.insert(5, Commit(next_offset=4, state=[]))
    for commit in commits:
        await worker.transport.commit(room.at(), commit)
    await expect_durable(room, commits, await room.worker("second"))


async def group_remembers(room: Room) -> None:
    """The position of the last commit is there as evidence, its remark for every partition."""
    worker = await room.lone_worker(partitions=3)
    await room.send(numbered(9), partition=0)
    for number in range(2):
        await worker.transport.take(room.at(number))
        for count in (3, 7 - number):
            commit = replace(step(count), remark=f"{number} at {count}")
            await worker.transport.commit(room.at(number), commit)
    remarks = {0: "0 at 7", 1: "1 at 6"}
    for number, group_offset in enumerate([7, 6, None]):
        taken = await worker.transport.take(room.at(number))
        room.expect("group offset", expected=group_offset, got=taken.group_offset)
        room.expect("remarks", expected=remarks, got=dict(taken.remarks))


async def large_commit(room: Room) -> None:
    """The largest value and thousands of small ones."""
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
    await expect_durable(room, [commit], await room.worker("second"))


async def take_again(room: Room) -> None:
    """A worker may take a partition again that it has."""
    worker = await room.lone_worker()
    commits: list[Commit] = []
    for number in range(1, 5):
        entries = LiveEntries()
        taken = await worker.transport.take(room.at(), entries=entries)
        room.expect("state", expected=fold(commits), got=dict(taken.state))
        room.expect("what was passed for it", expected=True, got=taken.state is entries)
        commits.append(step(number))
        await worker.transport.commit(room.at(), commits[-1])
    await expect_durable(room, commits, worker)


async def fencing(room: Room) -> None:
    """The older owner's commits are refused and leave nothing."""
    zombie = await room.lone_worker()
    await zombie.transport.take(room.at())
    await zombie.transport.commit(room.at(), step(1))
    owner = await room.worker("owner")
    await owner.transport.take(room.at())
    await room.refuses("a zombie's commit", Fenced, zombie.transport.commit(room.at(), step(2)))
    await owner.transport.commit(room.at(), step(3))
    again = zombie.transport.commit(room.at(), step(4))
    await room.refuses("a zombie's second commit", TransportLost, again)
    await expect_durable(room, [step(1), step(3)], owner)


async def owner_may_ask(room: Room) -> None:
    """`confirm` succeeds until another worker takes the partition, and changes nothing."""
    worker = await room.lone_worker(partitions=2)
    await worker.transport.confirm(room.at())  # which was never taken
    await worker.transport.take(room.at())
    await worker.transport.confirm(room.at())
    await worker.transport.commit(room.at(), step(1))
    await worker.transport.confirm(room.at())
    heir = await room.worker("heir")
    await heir.transport.take(room.at(1))
    await worker.transport.confirm(room.at())
    await expect_durable(room, [step(1)], heir)
    await heir.transport.commit(room.at(), step(2))
    await room.refuses("a fenced owner's question", Fenced, worker.transport.confirm(room.at()))
    await heir.transport.confirm(room.at())
    await expect_durable(room, [step(1), step(2)], heir)


async def commit_needs_take(room: Room) -> None:
    """Neither before a take nor after leaving."""
    worker = await room.lone_worker()
    early = worker.transport.commit(room.at(), step(1))
    await room.refuses("a commit before any take", TransportLost, early)
    await worker.transport.take(room.at())
    await worker.transport.leave(room.at())
    late = worker.transport.commit(room.at(), step(1))
    await room.refuses("a commit after leaving", TransportLost, late)
    await expect_durable(room, [], worker)


async def leaving_ends_it(room: Room) -> None:
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
    await expect_durable(room, survived, worker)


async def all_or_nothing(room: Room) -> None:
    """Workers that die in the middle of a commit, at a later moment each time."""
    worker = await room.lone_worker()
    done: list[Commit] = []
    for number in range(1, 15):
        await worker.transport.take(room.at())
        commit = asyncio.create_task(worker.transport.commit(room.at(), step(number)))
        await interrupt(commit, number * number // 3)
        worker = await room.worker(f"heir {number}")
        taken = await worker.transport.take(room.at())
        if dict(taken.state) != fold(done):
            done.append(step(number))
        await expect_durable(room, done, worker)
    await expect_durable(room, done, worker)


async def lost_means_take(room: Room) -> None:
    """After a commit of unknown outcome a worker may not go on without a take."""
    worker = await room.lone_worker()
    await worker.transport.take(room.at())
    commit = asyncio.create_task(worker.transport.commit(room.at(), step(1)))
    await interrupt(commit, 1)
    next_one = worker.transport.commit(room.at(), step(2))
    await room.refuses("a commit after one whose outcome is unknown", TransportLost, next_one)
    taken = await worker.transport.take(room.at())
    await worker.transport.commit(room.at(), step(3))
    survived = [step(1)] if b"row 1" in taken.state else []
    await expect_durable(room, [*survived, step(3)], worker)


async def race(room: Room) -> None:
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
        await expect_durable(room, done, heir)
        worker = heir


async def partitions_apart(room: Room) -> None:
    """State, ledger and fencing of one are not those of another."""
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


async def streams_apart(room: Room) -> None:
    """Two streams on one input share its records and nothing else."""
    other = StreamTopics(app=room.topics.app, stream="other", input=room.topics.input)
    await room.create()
    administrator = room.administrator()
    await administrator.create([other], partitions=1)
    worker = await room.worker("lone", streams=[room.topics, other])
    await worker.until(lambda heard: len(heard.assigned_now) == 2)
    await room.send(numbered(20), partition=0)
    for partition in sorted(worker.heard.assigned_now):
        await worker.transport.take(partition)
        worker.transport.resume(partition, 0)
    came = await worker.collect(40)
    for stream in ("home", "other"):
        own = records(b for b in came if b.partition.stream == stream)
        room.expect(f"records of {stream}", expected=numbered(20), got=own)
    await worker.transport.commit(room.at(), step(1))
    partition = next(p for p in worker.heard.assigned_now if p.stream == "other")
    taken = await worker.transport.take(partition)
    room.expect("the other stream's state", expected={}, got=dict(taken.state))
    room.expect("its last ledger line", expected=None, got=taken.last_ledger_line)
    await worker.transport.commit(room.at(), step(2))


async def gives_up_in_time(room: Room) -> None:
    """Leaving and closing end, in any state."""
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
