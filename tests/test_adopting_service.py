"""Does a service on several partitions learn across them, whatever happens to what they tell?"""

from __future__ import annotations

import asyncio

import pytest

from streamdp.core.events import CrowdPrior, LossBatch
from streamdp.ports import Commit, Partition
from streamdp.replay.crowd_cells import InStep
from streamdp.service.batches import decode
from streamdp.service.verification import Verification
from streamdp.testing.memory_log import Attempt, CommitOutcome
from streamdp.wire.lines import PriorLine
from streamdp.wire.published import decode_ledger
from tests.support.adopting import across
from tests.support.carrying import mapped
from tests.support.services import Room

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


@pytest.mark.parametrize("workers", [1, 2])
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
