"""Does a stream draw again from what a former one may have shown before it died (P5, P11)?

A release is recorded by one commit and published by the next. A process that dies in between, or
while it publishes, leaves a ledger that does not mention a draw which readers of uncommitted
records may have seen. Whoever takes its place must begin behind that draw, and whoever comes back
must publish nothing that others have charged since.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.ports import LastCommit, Partition, StreamTopics, Technology
from streamdp.service.charges_by_others import RecordedLines, Scope, recorded_lines
from streamdp.service.config import Configuration
from streamdp.service.ledgers import Ledgers
from streamdp.service.settings import Pace
from streamdp.service.view import Reason
from streamdp.testing.memory import MemoryAdministrator, MemoryTechnology
from streamdp.testing.memory_log import Isolation, MemoryLog
from streamdp.wire.entries import Entries, parse_entry
from streamdp.wire.lines import Charge
from streamdp_adapters.sqlite import SqliteTransport
from tests.support.calling import Streamdp
from tests.support.protocol_model import Store, restore
from tests.support.renaming import (
    Dying,
    charges,
    charging,
    configured,
    lived,
    shared,
    verified,
)
from tests.support.services import Lines
from tests.support.sqlite_pair import Ears
from tests.support.streams import events, spec
from tests.support.visits import saved_point

MEMORY = ("commit: begun", "commit: half", "commit: sent", "commit: decided")


def in_memory() -> MemoryTechnology:
    log = MemoryLog()
    log.create("losses", partitions=1)
    return MemoryTechnology(log)


def seen(technology: MemoryTechnology, name: str) -> list[Charge]:
    """The charges that anybody may have read, committed or not."""
    records = technology.log.ledger(StreamTopics("shop", name, ""), Isolation.UNCOMMITTED)
    return charging([record.value for record in records])


def died(path: Path, technology: Technology, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A life that ends at a step of the commit which publishes the first charges."""
    with monkeypatch.context() as patch:
        assert lived(path, 40, Dying(technology, step, patch)) is Reason.INTERNAL


def forget_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: the ledger alone counts."""

    async def nothing(self: Ledgers, topics: StreamTopics) -> RecordedLines:
        return RecordedLines([], None)

    monkeypatch.setattr(Ledgers, "_recorded", nothing)


@pytest.mark.parametrize("step", MEMORY)
def test_does_a_stream_begin_behind_what_a_dead_one_may_have_shown(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever step of its publishing it died; then it comes back, and publishes the rest."""
    technology = in_memory()
    died(configured(tmp_path, "one"), technology, step, monkeypatch)
    assert lived(configured(tmp_path, "two"), 20, technology) is None
    assert not shared(seen(technology, "one"), seen(technology, "two"))
    assert lived(configured(tmp_path, "one"), 1, technology) is Reason.STATE  # two is ahead
    assert lived(configured(tmp_path, "one", epoch=2), 20, technology) is None
    one, two = seen(technology, "one"), seen(technology, "two")
    assert min(line.first_offset for line in one) == 0
    assert {line.epoch for line in one} == {1, 2}
    assert not shared(one, two)


def test_are_records_found_that_two_have_drawn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant, in memory, where everything that was ever visible is kept."""
    technology = in_memory()
    died(configured(tmp_path, "one"), technology, "commit: sent", monkeypatch)
    forget_what_is_recorded(monkeypatch)
    assert lived(configured(tmp_path, "two"), 20, technology) is None
    assert shared(seen(technology, "one"), seen(technology, "two"))


def test_does_a_budget_for_both_let_a_stream_begin_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was recorded costs its charge, no more."""
    technology = in_memory()
    died(configured(tmp_path, "one"), technology, "commit: sent", monkeypatch)
    assert lived(configured(tmp_path, "two", budget="1"), 20, technology) is None
    assert min(line.first_offset for line in seen(technology, "two")) == 0


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("commit: begun", marks=pytest.mark.slow),
        "commit: recorded",
        pytest.param("commit: published", marks=pytest.mark.slow),
    ],
)
def test_does_a_file_keep_one_charge_a_record(
    step: str, streamdp: Streamdp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files do not commit as one: what the first holds is published before anybody begins.

    `doctor` knows, before anything is published, where the other would begin.
    """
    path = configured(tmp_path, "one")
    died(path, Configuration.load(path, {}).technology(), step, monkeypatch)
    path = configured(tmp_path, "two")
    ended = streamdp("doctor", "--config", str(path), "--json")
    details = {finding["subject"]: finding["detail"] for finding in ended.json}
    assert lived(path, 20) is None
    begin = min(line.first_offset for line in charges(path, "two"))
    assert begin > 0
    foretold = f"none yet: it would start at record {begin}"
    assert details["partition two/0: state"].startswith(foretold)
    assert "gone" not in details["ledgers of streams that are no longer configured"]
    path = configured(tmp_path, "one")
    assert lived(path, 1) is Reason.STATE
    assert verified(streamdp, path)[:2] == (0, "1/2")
    path = configured(tmp_path, "one", epoch=2)
    assert lived(path, 20) is None
    assert verified(streamdp, path)[:2] == (0, "1/2")
    assert not shared(charges(path, "one"), charges(path, "two"))


def test_is_a_copy_found_that_is_made_too_late(
    streamdp: Streamdp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutants: a worker that copies its own lines alone, and reads the ledger alone."""
    path = configured(tmp_path, "one")
    died(path, Configuration.load(path, {}).technology(), "commit: recorded", monkeypatch)
    forget_what_is_recorded(monkeypatch)
    monkeypatch.setattr(SqliteTransport, "_copy_all", lambda self: None)
    assert lived(configured(tmp_path, "two"), 20) is None
    path = configured(tmp_path, "one")
    assert lived(path, 1) is Reason.STATE
    assert verified(streamdp, path)[:2] == (1, "1")


def test_is_the_ledger_alone_read_where_the_state_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says what was recorded; the stream begins all the same."""
    technology = in_memory()
    died(configured(tmp_path, "one"), technology, "commit: begun", monkeypatch)

    async def gone(*_: object, **__: object) -> AsyncIterator[LastCommit]:
        for commit in list[LastCommit]():
            yield commit

    monkeypatch.setattr(MemoryAdministrator, "last_commits", gone)
    ledgers = Ledgers(Configuration.load(configured(tmp_path, "two"), {}), technology)
    by_others = asyncio.run(ledgers.by_others("two", Scope.ALL))
    assert by_others.begin(0, 0) == 0
    assert ledgers.without_state == ["shop.one.ledger"]


@pytest.mark.parametrize("how", ["gone", "made again", "refused"])
def test_does_a_process_say_that_it_reads_a_ledger_alone(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, in its log; and it looks again until the state can be read."""
    technology, log, now = in_memory(), Lines(), [0.0]
    lived(configured(tmp_path, "one"), 40, technology)
    configuration = Configuration.load(configured(tmp_path, "two"), {})
    ledgers = Ledgers(configuration, technology, clock=lambda: now[0], log=log)

    async def unseen(*_: object, **__: object) -> AsyncIterator[LastCommit]:
        if how == "made again":
            yield LastCommit(0, {})
        if how == "refused":
            raise InvalidConfig("no right")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryAdministrator, "last_commits", unseen)
        for _ in range(2):
            asyncio.run(ledgers.by_others("two", Scope.ALL))
            assert ledgers.without_state == ["shop.one.ledger"]
            now[0] += 60
    assert log.lines == [("past_without_state", {"ledger": "shop.one.ledger"})]
    asyncio.run(ledgers.by_others("two", Scope.ALL))
    assert ledgers.without_state == []
    monkeypatch.setattr(MemoryAdministrator, "last_commits", unseen)
    now[0] += 60
    asyncio.run(ledgers.by_others("two", Scope.ALL))
    assert ledgers.without_state == []  # what was read once is known


def test_is_nothing_missed_of_a_stream_that_was_only_ever_taken(tmp_path: Path) -> None:
    """It has committed nothing, so it has recorded nothing."""
    technology = Configuration.load(configured(tmp_path, "one"), {}).technology()
    configuration = Configuration.load(configured(tmp_path, "two"), {})

    async def taken() -> None:
        producer = technology.producer()
        await producer.send("losses", events(1, keys=[b"fr"]))
        await producer.close()
        transport = technology.transport(worker="w")
        await transport.join([StreamTopics("shop", "one", "losses")], Ears())
        await transport.take(Partition("one", 0))
        await transport.close()

    asyncio.run(taken())
    ledgers = Ledgers(configuration, technology)
    asyncio.run(ledgers.by_others("two", Scope.ALL))
    assert [topics.stream for topics in asyncio.run(ledgers.retired())] == ["one"]
    assert ledgers.without_state == []


def test_are_recorded_lines_read_strictly() -> None:
    """A state that is damaged or that a newer streamdp wrote may hide a charge; an assembly's
    records none.
    """
    assembly = LastCommit(0, saved_point(), [b"line"])
    assert recorded_lines(assembly, "clicks") == [b"line"]
    work = restore(store := Store(events(6, keys=[b"k"])), spec())
    work.absorb(work.read(store.records(0, 6)))
    store.decide(work.cut(now=0, pace=Pace()).commit)
    lines = recorded_lines(LastCommit(0, store.state), "home")
    assert [line.last_offset for line in charging(lines)] == [0, 2, 5]
    releases = Entries("home", 0).all_of("release")
    damaged = {
        key: value[:-1] if key.startswith(releases) else value for key, value in store.state.items()
    }
    with pytest.raises(StateMismatch, match="damaged"):
        recorded_lines(LastCommit(0, damaged), "home")
    newer = LastCommit(0, {Entries("home", 0).checkpoint: b'{"version":99,"min_reader":99}'})
    with pytest.raises(StateMismatch, match="newer"):
        recorded_lines(newer, "home")


def test_is_a_row_of_a_state_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state of a million rows is looked through in one step, so only what waits is parsed."""
    work = restore(store := Store(events(6, keys=[b"k"])), spec())
    work.absorb(work.read(store.records(0, 6)))
    store.decide(work.cut(now=0, pace=Pace()).commit)
    rows = {Entries("home", 0).row(b"%d" % at, epoch=1): b"" for at in range(50)}
    parsed = list[bytes]()

    def noted(entry: bytes, places: Entries, *, where: str) -> tuple[str, int, list[object]]:
        parsed.append(entry)
        return parse_entry(entry, places, where=where)

    monkeypatch.setattr("streamdp.service.charges_by_others.parse_entry", noted)
    lines = recorded_lines(LastCommit(0, rows | store.state), "home")
    assert len(parsed) == len(lines) > 0
