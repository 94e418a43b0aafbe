"""Does one partition's loss cost the other partitions nothing?

An epoch of one partition begins behind everything that is known to have been read of it, says so in
ledger and state, and leaves all other partitions at the epoch that they are in.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.ports import Partition, Published, Taken
from streamdp.serve.history import StreamReleases
from streamdp.service.charges_by_others import ALONE
from streamdp.service.config import Configuration
from streamdp.service.protocol import PartitionWork, Restoring
from streamdp.service.settings import Pace
from streamdp.service.spec import StreamSpec
from streamdp.service.taking import open_partition
from streamdp.service.verifying.verification import Verification
from streamdp.testing.judge import judge
from streamdp.wire.lines import Charge, EpochMark
from streamdp.wire.published import decode_ledger
from streamdp.wire.state import Checkpoint, read_state
from tests.support.calling import CONFIG
from tests.support.lived import lived
from tests.support.protocol_model import HOME, Store, evidence, finish, restore
from tests.support.services import Room
from tests.support.streams import spec


def point(store: Store) -> Checkpoint:
    """The checkpoint."""
    checkpoint = read_state(store.state, stream="home", partition=0).checkpoint
    assert checkpoint is not None
    return checkpoint


def marks(store: Store) -> list[EpochMark]:
    """Where epochs begin, as the ledger says."""
    lines = [decode_ledger(record.value) for record in store.ledger]
    return [line for line in lines if isinstance(line, EpochMark)]


def opened(stream: StreamSpec, store: Store, number: int = 0) -> int | None:
    """The epoch before, if a new one begins; this store stands for any partition's."""
    return open_partition(
        stream, Partition("home", number), store.taken(), by_others=ALONE
    ).new_epoch


OWN = replace(spec(), partition_epochs={0: 2})


def test_does_a_partition_begin_an_epoch_of_its_own() -> None:
    """Behind the position, and recorded as its own in ledger and state."""
    store = lived(spec())
    store.first = 39  # what a rebuild needs is gone
    with pytest.raises(StateMismatch, match="no longer retained; raise the epoch to go on"):
        restore(replace_low_water(store), spec())
    work = restore(store, OWN)
    assert (work.engine.position, work.engine.epoch) == (40, 2)
    finish(store, work)
    assert judge(evidence(store)) == []
    (mark,) = marks(store)
    assert (mark.epoch, mark.previous, mark.stream_epoch, mark.next_offset) == (2, 1, 1, 40)
    assert (point(store).epoch, point(store).stream_epoch) == (2, 1)
    assert opened(OWN, store) is None


def replace_low_water(store: Store) -> Store:
    """The same store, whose rebuild would begin at the first record."""
    (place,) = [place for place in store.state if b'"checkpoint"' in place]
    old = msgspec.structs.replace(point(store), low_water=0)
    return replace(store, state={**store.state, place: msgspec.json.encode(old)})


def test_do_the_other_partitions_go_on_as_they_are() -> None:
    """Same epoch, same learners: another partition's epoch is no change to them."""
    stream = replace(spec(), partition_epochs={3: 2})
    store = lived(spec())
    before = restore(store, spec())
    work = restore(store, stream)
    assert (work.engine.position, work.engine.epoch) == (40, 1)
    assert len(work.engine) == len(before.engine) > 0
    finish(store, work)
    assert (marks(store), point(store).stream_epoch) == ([], None)
    assert stream.digest == spec().digest


def test_does_a_mark_of_the_stream_say_nothing_of_a_partition() -> None:
    """Only an epoch of the partition alone names the stream's beside it."""
    store = lived(spec())
    finish(store, restore(store, spec(epoch=2)))
    assert [b"stream_epoch" in record.value for record in store.ledger].count(True) == 0
    assert point(store).stream_epoch is None


def test_is_an_earlier_epoch_refused_for_the_partition_alone() -> None:
    """Whoever has not heard of it, in a rolling change, halts that partition and no other."""
    store = lived(spec())
    finish(store, restore(store, OWN))
    with pytest.raises(StateMismatch, match="deploy the newer one; expected epoch 2 or a later"):
        restore(store, spec())


@pytest.mark.parametrize("epoch", [2, 3])
def test_is_the_streams_epoch_raised_beyond_those_of_its_partitions(epoch: int) -> None:
    """An epoch that one partition has had already would not be a new one to it."""
    store = lived(spec())
    finish(store, restore(store, replace(spec(), partition_epochs={0: 3})))
    with pytest.raises(StateMismatch, match="has already had; expected epoch 4 or a later one"):
        restore(store, spec(epoch=epoch))
    assert opened(replace(spec(epoch=2), partition_epochs={0: 4}), store) == 3
    assert opened(spec(epoch=4), store) == 3
    finish(store, restore(store, spec(epoch=4)))
    assert (point(store).epoch, point(store).stream_epoch) == (4, None)


def test_does_a_lost_state_begin_anew_in_one_partition() -> None:
    """Behind the ledger and the group, as with the stream's epoch."""
    store = lived(spec())
    taken = Taken({}, 0, 60, 12, store.ledger[-1].value, 1)
    with pytest.raises(StateMismatch, match="the state is gone"):
        open_partition(spec(), HOME, taken, by_others=ALONE)
    last = decode_ledger(store.ledger[-1].value)
    assert isinstance(last, Charge)
    restoring = Restoring(OWN, HOME, taken, by_others=ALONE)
    assert restoring.span.start == restoring.span.stop == last.last_offset + 1


def test_does_a_crash_begin_it_once() -> None:
    """Before its first commit is durable it begins again, after that it goes on."""
    for durable in (False, True):
        store = lived(spec())
        work: PartitionWork = restore(store, OWN)
        cut = work.cut(now=0, pace=Pace())
        if durable:
            store.decide(cut.commit)
        finish(store, restore(store, OWN))
        assert [mark.epoch for mark in marks(store)] == [2]
        assert judge(evidence(store)) == []


def test_does_verify_follow_each_partition() -> None:
    """The charges stay within the budget, and nothing is read again."""
    store = lived(spec())
    finish(store, restore(store, OWN))
    other = lived(spec())
    moved = [
        replace(record, partition=1, value=record.value.replace(b'"partition":0', b'"partition":1'))
        for record in other.ledger
    ]
    verification = Verification()
    verification.read(spec().topics, [*store.ledger, *moved])
    assert verification.violations == []


def test_does_the_status_page_keep_what_other_partitions_told() -> None:
    """A partition that begins anew forgets its own learners only."""
    releases = StreamReleases()
    lines = [line for line in lived(spec()).ledger if decode_ledger(line.value)]
    releases.apply([replace(line, partition=1) for line in lines])
    releases.apply(lines)
    before = len([place for place in releases.keys if place[0] == 1])
    mark = spec().lines.epoch(
        partition=0, epoch=2, previous=1, next_offset=40, ordinal=99, stream_epoch=1
    )
    releases.apply([Published(0, 99, None, mark)])
    assert {place[0] for place in releases.keys} == {1}
    assert len(releases.keys) == before > 0
    assert releases.partitions[1].blocks > 0
    assert releases.partitions[0].blocks == 0
    charged = releases.charged_in(OWN.epoch, OWN.partition_epochs)
    assert charged == releases.partitions[1].highest > 0


# Configuration


def configured(folder: Path, more: str) -> StreamSpec:
    """A stream with these lines beside its own."""
    path = folder / "shop.toml"
    path.write_text(CONFIG.format(app="shop", folder=folder) + more)
    return Configuration.load(path, {}).spec("home")


def test_is_the_epoch_of_a_partition_configured_by_its_number(tmp_path: Path) -> None:
    """Everything else of the stream is as it was, its digest too."""
    stream_spec = configured(tmp_path, "[streams.home.partition_epochs]\n1 = 2\n")
    assert [stream_spec.epoch_of(number) for number in range(3)] == [1, 2, 1]
    assert stream_spec.digest == configured(tmp_path, "").digest
    assert stream_spec.engine(1).epoch == 2
    assert stream_spec.largest_value >= configured(tmp_path, "").largest_value


async def test_is_an_epoch_of_no_partition_logged_and_nothing_halted() -> None:
    """Once, at the start; what the stream's partitions learn is not affected."""
    room = Room([replace(spec(), partition_epochs={1: 2, 3: 2})], partitions=3)
    async with room.worker() as worker:
        await room.until(lambda: len(worker.log.of("partition_running")) == 3)
        (line,) = worker.log.of("partition_epochs_unused")
    assert line["stream"] == "home"
    assert "no such partition; expected numbers from 0 to 2, got 3" in str(line["detail"])
    assert worker.log.of("partition_halted") == []


@pytest.mark.parametrize("line", ["1 = 1", "-1 = 2", "one = 2", "1 = true"])
def test_is_an_epoch_that_is_none_refused(tmp_path: Path, line: str) -> None:
    """Not beyond the stream's, or of no partition."""
    with pytest.raises(InvalidConfig, match=r"streams\.home\.partition_epochs"):
        configured(tmp_path, f"[streams.home.partition_epochs]\n{line}\n")
