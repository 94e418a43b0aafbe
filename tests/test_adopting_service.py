"""Does a service on several partitions learn across them, whatever happens to what they tell?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import pytest

from streamdp.core.errors import TransportLost
from streamdp.core.events import CrowdPrior, LossBatch
from streamdp.core.evidence.adoption import CrowdSnapshot
from streamdp.lab.replay.crowd_cells import InStep
from streamdp.ports import Commit, Partition, Published, StreamTopics
from streamdp.service.batches import decode
from streamdp.service.crowd_reader import CrowdReader
from streamdp.service.verification import Verification
from streamdp.service.view import View
from streamdp.testing.memory import MemoryPublications
from streamdp.testing.memory_log import Attempt, CommitOutcome
from streamdp.wire.lines import PriorLine
from streamdp.wire.published import Lines, decode_ledger
from streamdp.wire.snapshots import read_snapshot
from tests.support.adopting import across
from tests.support.carrying import mapped
from tests.support.services import QUICK, Room
from tests.support.services import Lines as Events

pytestmark = pytest.mark.usefixtures("priors_are_made_once")

KEYS = [b"key %d" % number for number in range(9)]


def room() -> Room:
    """Three partitions of one stream."""
    return Room([across()], partitions=3)


def adopted(of: Room) -> int:
    """How many snapshots all priors together were made of."""
    lines = [decode_ledger(record.value) for record in of.log.ledger(of.specs["home"].topics)]
    return sum(len(line.prior().adopted) for line in lines if isinstance(line, PriorLine))


def verified(of: Room) -> list[str]:
    """What `ledger verify` has against the ledgers."""
    verification, topics = Verification(), of.specs["home"].topics
    verification.read(topics, of.log.ledger(topics))
    verification.finish()
    return verification.violations


def priors_on_record(of: Room) -> dict[int, list[CrowdPrior]]:
    """The priors on the ledger, by partition."""
    priors: dict[int, list[CrowdPrior]] = {}
    for record in of.log.ledger(of.specs["home"].topics):
        line = decode_ledger(record.value)
        if isinstance(line, PriorLine):
            priors.setdefault(record.partition, []).append(line.prior())
    return priors


def replayed(of: Room, record: dict[int, list[CrowdPrior]] | None) -> dict[int, list[CrowdPrior]]:
    """The priors of a replay of the input, by the record or by its own schedule."""
    spec, logs = of.specs["home"], {}
    for number in range(3):
        source = of.log.input(spec.topics.input, number)
        records = of.log.batch(spec.topics, number, source.first, source.next, 10**9)
        batch, _ = decode(spec.format, [records], most_key_bytes=64)
        assert isinstance(batch, LossBatch)
        logs[number] = [batch]
    names = None
    if record is not None:
        names = {n: {p.number: p.adopted for p in priors} for n, priors in record.items()}
    priors: dict[int, list[CrowdPrior]] = {number: [] for number in range(3)}
    for number, releases in InStep({n: spec.engine(n) for n in logs}, logs, names).releases():
        priors[number] += releases.priors
    return priors


async def in_pieces(of: Room, *, pieces: int = 6, seed: int = 1) -> None:
    """Input that comes by and by, each piece behind what was made of the one before."""
    for piece in range(pieces):
        of.send("home", mapped(45, keys=KEYS, seed=seed + piece))
        await of.until(of.is_read)


async def in_pieces_until(of: Room, what: Callable[[], bool]) -> None:
    """The same until something is so: what is told is heard sooner or later."""
    for seed in range(100, 150):
        await in_pieces(of, pieces=1, seed=seed)
        if what():
            return
    pytest.fail("50 pieces of input, and it is not so")


def told_of(of: Room) -> set[int]:
    """The partitions whose snapshots any prior was made of."""
    priors = [prior for known in priors_on_record(of).values() for prior in known]
    return {name.partition for prior in priors for name in prior.adopted}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_do_partitions_learn_across_and_is_it_on_record(workers: int) -> None:
    """In one process and in two: priors name what they adopted, and all can be made again."""

    async def body() -> None:
        of = room()
        async with of.worker("one"):
            await in_pieces(of, pieces=3)
            if workers == 2:
                async with of.worker("two"):
                    await in_pieces(of, pieces=3, seed=9)
            else:
                await in_pieces(of, pieces=3, seed=9)
        assert adopted(of) > 10
        assert verified(of) == []
        assert of.wrong() == []
        assert replayed(of, priors_on_record(of)) == priors_on_record(of)
        assert replayed(of, None) != priors_on_record(of)

    asyncio.run(body())


def test_do_partitions_go_on_where_the_topic_is_lost_and_garbage_comes() -> None:
    """Nothing stops; what is none is refused, counted and told; the record gives all again."""

    async def body() -> None:
        of, topics = room(), across().topics
        async with of.worker("one") as worker:
            await in_pieces(of, pieces=2)
            kept = [snapshot.value for snapshot in of.log.snapshots(topics)]
            for number, value in ((0, b"garbage"), (1, kept[0].replace(b"home", b"away"))):
                partition = Partition("home", number)
                stranger = Attempt(
                    topics, partition, "stranger", Commit(0, [], snapshot=value),
                    outcome=CommitOutcome.COMMITTED,
                )  # fmt: skip
                of.log.send(stranger, skip=0, stop=1)
            of.log.ring()
            await of.until(lambda: worker.view.streams["home"].snapshots_refused == 2)
            refused = [str(entry["detail"]) for entry in worker.log.of("snapshot_refused")]
            assert ["unreadable" in detail for detail in refused] == [True, False]
            assert "of another stream" in refused[1]
            await in_pieces(of, pieces=2, seed=5)
            before = adopted(of)
            of.log.forget_snapshots(topics)
            await in_pieces(of, pieces=2, seed=9)
            assert adopted(of) > before
        async with of.worker("two"):  # a new process tells again what is told
            await of.until(of.is_read)
            await of.until(lambda: len(of.log.snapshots(topics)) >= 3)
        assert verified(of) == []

    asyncio.run(body())


def unreadable_twice(patch: pytest.MonkeyPatch) -> None:
    """The reader of the crowd topic breaks, twice, behind what it has read; nobody foresaw it."""
    plain, readings = MemoryPublications.snapshots, list[int]()

    async def snapshots(
        self: MemoryPublications, stream: StreamTopics, *, follow: bool
    ) -> AsyncIterator[Sequence[Published]]:
        readings.append(1)
        async for batch in plain(self, stream, follow=follow):
            yield batch
            if batch and len(readings) < 3:
                raise RuntimeError("of which nothing may be told")

    patch.setattr(MemoryPublications, "snapshots", snapshots)


def test_is_a_reader_that_breaks_begun_again_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the error: the crowd goes on, and the log names the error's kind and place alone."""
    unreadable_twice(monkeypatch)

    async def body() -> None:
        of = room()
        async with of.worker("one") as worker:
            shown = worker.view.streams["home"]
            await in_pieces(of, pieces=2)
            await of.until(lambda: len(worker.log.of("crowd_unread")) == 2)
            await of.until(lambda: not shown.crowd_unread)
            before = adopted(of)
            await in_pieces_until(of, lambda: adopted(of) > before)
        errors = worker.log.of("crowd_unread")
        assert [error["detail"] for error in errors] == ["RuntimeError"] * 2
        assert all(":" in str(error["where"]) for error in errors)
        assert verified(of) == []

    asyncio.run(body())


def test_does_a_reader_that_begins_again_keep_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Superseded snapshots are read again, the oldest first: none replaces a newer one.

    Nor does a snapshot stop counting whose record is gone, as where garbage took its place.
    """
    of, spec = room(), across()
    counts = list[list[dict[int, int]]]()  # of each reading, behind each record: partition → number
    ended = asyncio.Event()

    async def snapshots(
        self: MemoryPublications, stream: StreamTopics, *, follow: bool
    ) -> AsyncIterator[Sequence[Published]]:
        snapshots_so_far = of.log.snapshots(stream)
        counts.append([])
        for record in snapshots_so_far:
            if len(counts) == 1 or record.partition > 0:
                yield [record]
                counts[-1].append({kept.partition: kept.number for kept in reader.newest("home")})
        yield ()
        counts[-1].append({kept.partition: kept.number for kept in reader.newest("home")})
        if len(counts) == 1:
            raise TransportLost("topic shop.home.crowd: gone")
        ended.set()
        await asyncio.Event().wait()

    async def body() -> None:
        async with of.worker("one"):
            await in_pieces(of, pieces=3)
        monkeypatch.setattr(MemoryPublications, "snapshots", snapshots)
        async with reader, asyncio.timeout(60):
            await ended.wait()

    publications = partial(MemoryPublications, of.log)
    view, log = View([spec]), Events()
    reader = CrowdReader([spec], publications, view=view, log=log, settings=QUICK)
    asyncio.run(body())
    first, again = counts
    assert len(first[-1]) == 3
    assert len(first) > 6, "some are superseded"
    assert first[:-1] == [{}] * (len(first) - 1)
    assert again == [first[-1]] * len(again)
    assert len(again) > 3


def test_is_it_said_while_the_topic_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as each attempt fails, partitions go on alone, and the view has it."""

    async def snapshots(
        self: MemoryPublications, stream: StreamTopics, *, follow: bool
    ) -> AsyncIterator[Sequence[Published]]:
        if follow:
            raise TransportLost("topic shop.home.crowd: gone")
        yield ()

    async def body() -> None:
        of = room()
        with monkeypatch.context() as patch:
            patch.setattr(MemoryPublications, "snapshots", snapshots)
            async with of.worker("one") as worker:
                await in_pieces(of, pieces=1)
                await of.until(lambda: len(worker.log.of("crowd_unread")) > 3)
                assert worker.view.streams["home"].crowd_unread
        assert worker.log.of("crowd_unread")[3]["detail"] == "topic shop.home.crowd: gone"
        assert adopted(of) == 0
        assert verified(of) == []

    asyncio.run(body())


def test_is_a_record_that_breaks_the_reader_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would break it again each time that the topic is read: it is counted, and others count."""
    of = room()

    def breaking(value: bytes, *, lines: Lines, partition: int) -> CrowdSnapshot:
        if partition == 1:
            raise OverflowError("of which nothing may be told")
        return read_snapshot(value, lines=lines, partition=partition)

    async def body() -> None:
        async with of.worker("one") as worker:
            shown = worker.view.streams["home"]
            await in_pieces_until(of, lambda: told_of(of) >= {0, 2} and shown.snapshots_refused > 0)
        assert worker.log.of("crowd_unread") == []
        refused = worker.log.of("snapshot_refused")
        assert {(line["partition"], line["detail"]) for line in refused} == {
            ("home/1", "OverflowError")
        }
        assert told_of(of) == {0, 2}
        assert verified(of) == []

    monkeypatch.setattr("streamdp.service.crowd_reader.read_snapshot", breaking)
    asyncio.run(body())
