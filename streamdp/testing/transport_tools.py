"""The promises of a transport's tools: readers, producers, administrators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from streamdp.core.errors import InvalidConfig
from streamdp.ports import EntriesThat, Key, Partition, Published, Verdict
from streamdp.testing.transport_input import ODD
from streamdp.testing.transport_room import Room, flatten, fold, numbered, records, rows, step

MOST_STEPS = 2000  # commits that a check makes at most beside what it looks at


async def publications_follow(room: Room) -> None:
    """The end is marked by an empty batch, and then comes what is new."""
    worker = await room.lone_worker()
    await worker.transport.take(room.at())
    await worker.transport.commit(room.at(), step(1))
    reader = room.reader()
    lines = reader.ledger(room.topics, follow=True)
    came = [record.value async for batch in until_empty(lines) for record in batch]
    room.expect("up to the end", expected=[v for _, v in step(1).ledger], got=came)
    await worker.transport.commit(room.at(), step(2))
    came = []
    async for batch in lines:
        came += [record.value for record in batch]
        if len(came) >= len(step(2).ledger):
            break
    room.expect("and then what comes", expected=[v for _, v in step(2).ledger], got=came)


async def publications_begin_late(room: Room) -> None:
    """The newest lines alone, in each partition, however long the ledger is; then what comes."""
    worker = await room.lone_worker(partitions=2)
    for number in range(2):
        await worker.transport.take(room.at(number))
        for count in range(1, 31):
            await worker.transport.commit(room.at(number), step(100 * number + count))
    reader = room.reader()
    for newest in (40, 1000):
        lines = [
            r async for b in reader.ledger(room.topics, follow=False, newest=newest) for r in b
        ]
        for number in range(2):
            got = [record.value for record in lines if record.partition == number]
            every = [v for at in range(1, 31) for _, v in step(100 * number + at).ledger]
            room.expect(f"ends with the newest of {newest}", expected=every[-len(got) :], got=got)
            few = range(8, 31) if newest == 40 else [60]  # a transaction's end takes an offset too
            room.expect(f"about a half of {newest}", expected=True, got=len(got) in few)


_DECIDED_SECONDS = 10.0  # a command returns a moment before others can read what it wrote


async def lists(room: Room) -> None:
    """A stream's list is no action, disturbs no owner, and two that change it lose nothing.

    An owner that asks for the newest one gets it as soon as it is decided.
    """
    worker = await room.lone_worker(partitions=2)
    tools, reader = room.administrator(), room.reader()

    def added(name: bytes) -> Callable[[bytes | None], bytes]:
        return lambda before: name if before is None else before + b" " + name

    async def newest(expected: bytes) -> bytes | None:
        async with asyncio.timeout(_DECIDED_SECONDS):
            while (got := await asks(room.topics.stream)) != expected:
                await asyncio.sleep(0.01)
        return got

    asks = worker.transport.newest_list
    room.expect("none yet", expected=None, got=await asks(room.topics.stream))
    room.expect("the first", expected=b"a", got=await tools.revise(room.topics, added(b"a")))
    room.expect(
        "the first, for its owner",
        expected=[b"a"] * 2,
        got=[await newest(b"a"), await asks(room.topics.stream)],
    )
    await worker.transport.take(room.at(0))
    keys: list[Key] = [None, b"", b"list", b"mode", b"\0", b"\0list", b"\0\0list"]
    await worker.transport.commit(
        room.at(0), replace(step(1), actions=[(key, b"of a key") for key in keys])
    )
    following = reader.catalogue(room.topics, follow=True)
    came = [record.value async for batch in until_empty(following) for record in batch]
    room.expect("is read to its end", expected=[b"a"], got=came[-1:])
    names = [b"b", b"c", b"d"]
    await asyncio.gather(*(tools.revise(room.topics, added(name)) for name in names))
    every = [r.value async for b in reader.catalogue(room.topics, follow=False) for r in b]
    room.expect("of all", expected={b"a", *names}, got=set(b" ".join(every[-1:]).split()))
    room.expect("of all, for their owner", expected=every[-1], got=await newest(every[-1]))
    async for batch in following:
        if batch and batch[-1].value == every[-1]:
            break
    actions = [r async for b in reader.actions(room.topics, follow=False) for r in b]
    told = {(record.partition, record.key, record.value) for record in actions}
    room.expect("each key's", expected={(0, key, b"of a key") for key in keys}, got=told)
    taken = await worker.transport.take(room.at(0))
    room.expect("the last ledger line", expected=step(1).ledger[-1][1], got=taken.last_ledger_line)
    await worker.transport.commit(room.at(0), step(2))


async def until_empty(
    batches: AsyncIterator[Sequence[Published]],
) -> AsyncIterator[Sequence[Published]]:
    """What there is before the empty batch that marks the end."""
    async for batch in batches:
        if not batch:
            return
        yield batch


async def ledgers(room: Room) -> None:
    """Every stream that has published, whoever knows its name; others' are told by theirs."""
    second = replace(room.topics, stream="away")
    third = replace(room.topics, app=f"{room.topics.app}-other", stream="elsewhere")
    tools = room.administrator()
    await tools.create([room.topics, second, third], partitions=1)
    for topics in (second, room.topics, third):
        worker = await room.worker(topics.stream, streams=[topics])
        await worker.until(lambda heard: len(heard.assigned_now) == 1)
        partition = Partition(topics.stream, 0)
        await worker.transport.take(partition)
        await worker.transport.commit(partition, step(1))
        await worker.transport.close()
    reader = room.reader()
    listed = await reader.ledgers(room.topics.app)
    own = [topics for topics in listed if topics.app == room.topics.app]
    expected = [replace(topics, input="") for topics in (second, room.topics)]
    room.expect("the application's own", expected=expected, got=own)
    lines = [r.value async for batch in reader.ledger(own[0], follow=False) for r in batch]
    room.expect("read by its name", expected=[v for _, v in step(1).ledger], got=lines)


async def producer(room: Room) -> None:
    """A key stays in one partition, in order; what is no bytes is refused, all of the call."""
    worker = await room.lone_worker(partitions=4)
    records = numbered(300)
    odd: list[Any] = [("k", b"v"), (b"k", "v"), (b"k", 1.5), (b"k", bytearray(b"v"))]
    for record in odd:
        sent = room.send([(b"k", b"v"), record], partition=0)
        await room.refuses("what is no bytes", InvalidConfig, sent)
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


async def odd_headers(room: Room) -> None:
    """Headers that are not one entry a record, or no names with bytes: nothing of the call goes."""
    worker = await room.lone_worker()
    two = [(b"k", b"v"), (b"k", b"w")]
    odd: list[Any] = [[()], [(), (), ()], [(), [("n", "text")]], [(), [(b"n", b"v")]]]
    for headers in odd:
        sent = room.send(two, headers=headers, partition=0)
        await room.refuses("headers of another shape", InvalidConfig, sent)
    await worker.transport.take(room.at())
    worker.transport.resume(room.at(), 0)
    room.expect("records", expected=[], got=rows(await worker.collect(0)))


async def administrator(room: Room) -> None:
    """Made once, found good, and looked into without fencing."""
    await room.create(partitions=2)
    administrator = room.administrator()
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
    point = EntriesThat(b"checkpoint".__eq__)
    await administrator.peek(room.topics, 1, entries=point)
    room.expect("peek: some entries", expected=[b"checkpoint"], got=list(point))
    await worker.transport.commit(room.at(1), step(6))  # peeking has fenced nobody


async def peek_fits_together(room: Room) -> None:
    """A look while an owner commits: no commit is in one part and lacks in another.

    The state knows at least what was read before it, and the ledger's end after it at least that.
    """
    worker = await room.lone_worker()
    await room.send(numbered(MOST_STEPS), partition=0)
    administrator = room.administrator()
    await worker.transport.take(room.at())
    looking = True

    async def commits() -> None:
        for number in range(1, MOST_STEPS + 1):
            if not looking:
                return
            await worker.transport.commit(room.at(), step(number))

    committing = asyncio.create_task(commits())
    for _ in range(12):
        seen = await administrator.peek(room.topics, 0)
        state = int(seen.state.get(b"checkpoint", b"state 0").split()[1])
        line = int((seen.last_ledger_line or b"line 0/1")[5:-2])
        room.expect(f"state {state} knows line {line}", expected=True, got=line <= state)
        later = seen.later_ledger_line or seen.last_ledger_line
        line = int((later or b"line 0/1")[5:-2])
        room.expect(f"line {line} is not before state {state}", expected=True, got=state <= line)
        group = seen.group_offset or 0
        room.expect(f"state {state} knows offset {group}", expected=True, got=group <= state)
    looking = False
    await committing


async def last_commits(room: Room) -> None:
    """Each partition's newest commit, known by its mark, whole and in its newest form."""
    worker = await room.lone_worker(partitions=2)
    administrator = room.administrator()
    former = replace(room.topics, input="")  # a ledger does not say what was read

    async def recorded() -> dict[int, dict[bytes, bytes]]:
        commits = administrator.last_commits(former, marks=lambda number: [b"checkpoint"])
        return {commit.partition: dict(commit.state) async for commit in commits}

    room.expect("before any commit", expected=True, got=not any((await recorded()).values()))
    await worker.transport.take(room.at(1))
    large = replace(step(2), state=[(b"many %d" % at, b"%d" % at) for at in range(40)])
    large = replace(large, state=[*large.state, (b"row 1", None), (b"checkpoint", b"newest")])
    for commit in (step(1), large):
        await worker.transport.commit(room.at(1), commit)
    await worker.transport.take(room.at(1))
    looked_at = await recorded()
    room.expect("of another partition", expected={}, got=looked_at.get(0, {}))
    expected = {key: value for key, value in large.state if value is not None}
    got: dict[bytes, bytes | None] = {key: looked_at[1].get(key) for key in expected}
    room.expect("entries", expected=expected, got=got)
    await worker.transport.commit(room.at(1), step(3))  # looking has fenced nobody
    newest = (await recorded())[1]
    got = {key: newest.get(key) for key, _ in step(3).state}
    room.expect("entries of the next", expected=fold([step(3)]), got=got)
    nobody = replace(former, stream="nobody")
    missing = administrator.last_commits(nobody, marks=lambda number: [b"checkpoint"])
    room.expect("of a stream without a state", expected=[], got=[c async for c in missing])


async def expand(room: Room) -> None:
    """A partition that was added works like the others."""
    await room.create(partitions=2)
    administrator = room.administrator()
    await administrator.expand([room.topics], partitions=3)
    worker = await room.worker("lone")
    await worker.until(lambda heard: len(heard.assigned_now) == 3)
    await room.send(numbered(5), partition=2)
    taken = await worker.transport.take(room.at(2))
    room.expect("partitions", expected=3, got=taken.partitions)
    worker.transport.resume(room.at(2), taken.first_offset)
    came = records(await worker.collect(5))
    room.expect("records of the new partition", expected=numbered(5), got=came)
    await worker.transport.commit(room.at(2), step(1))


async def newest(room: Room) -> None:
    """A look at the end of the input."""
    await room.create(partitions=2)
    administrator = room.administrator()
    room.expect(
        "of nothing", expected=[], got=list(await administrator.newest(room.topics, count=4))
    )
    await room.send(numbered(10), partition=0)
    await room.send(numbered(10, start=10), partition=1)
    newest = records(await administrator.newest(room.topics, count=4))
    room.expect("ends with the newest", expected=numbered(1, start=19)[0], got=newest[-1])
    room.expect("about as many as asked for", expected=True, got=1 <= len(newest) <= 8)


async def history(room: Room) -> None:
    """The whole input as it is now, from any offset, whoever owns it; a missing one is refused."""
    administrator = room.administrator()
    missing = flatten(administrator.history(room.topics, after={}))
    await room.refuses("history without an input", InvalidConfig, missing)
    worker = await room.lone_worker(partitions=3)
    await room.send([*ODD, *numbered(700)], partition=0)
    await room.send(numbered(10, start=700), partition=2)
    await worker.transport.take(room.at())
    batches = [records async for records in administrator.history(room.topics, after={})]
    order = [batch.partition for batch in batches]
    room.expect("one partition after the other", expected=sorted(order), got=order)
    first = rows(batch for batch in batches if batch.partition == room.at(0))
    room.expect("records", expected=ODD + numbered(700), got=[row[1:] for row in first])
    last = rows(batch for batch in batches if batch.partition == room.at(2))
    room.expect("of another", expected=numbered(10, start=700), got=[row[1:] for row in last])
    offsets = [row[0] for row in first]
    room.expect("rising offsets", expected=sorted(set(offsets)), got=offsets)
    end = batches[-1].next_offset
    for start in (offsets[0], offsets[5], offsets[-1], offsets[-1] + 1, offsets[-1] + 1000):
        got = await flatten(administrator.history(room.topics, after={0: start, 2: end}))
        expected = [row for row in first if row[0] >= start]
        room.expect(f"from offset {start} on", expected=expected, got=got)
    await worker.transport.commit(room.at(), step(1))  # looking has fenced nobody
