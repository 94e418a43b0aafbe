"""Does a partition of an assembly emit each request once, through faults at every step?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from streamdp.assembly.persons import Cap
from streamdp.assembly.recipes import Categories, Errors, Rankers
from streamdp.core.errors import (
    OTHER_TOPICS,
    ConfigurationMismatch,
    StateMismatch,
    Superseded,
    TransportLost,
    beyond,
)
from streamdp.ports import (
    Commit,
    OutputRecord,
    Partition,
    Records,
    StreamTopics,
    Taken,
)
from streamdp.service.assembling.partition import PartitionAssembly
from streamdp.service.settings import Start
from streamdp.testing.memory import MemoryTechnology, MemoryTransport
from streamdp.testing.memory_log import MemoryLog
from streamdp.testing.transport_room import Heard
from streamdp.wire.state import Remark, encode_remark
from streamdp_adapters.kafka.identity import recreated
from streamdp_adapters.sqlite import Sqlite
from tests.support.assembly_model import (
    SECRET,
    WINDOW,
    Logs,
    encode,
    expected_events,
    random_logs,
)
from tests.support.visits import (
    AT,
    CAP,
    NOWHERE,
    RULES,
    SPEC,
    TAKEN,
    TOPICS,
    go_on,
    lived_through,
    saved_point,
    second_reaches,
    taken_over,
)


def test_is_one_way_out_said_wherever_requests_or_outcomes_made_again_are_noticed() -> None:
    """At a taking, by id or end, while outcomes are read, and by what watches meanwhile."""
    watched = recreated(TOPICS, AT, TOPICS.second_input, known="one", now="two")
    said = [str(watched), str(beyond(str(AT)))]
    taken = replace(TAKEN, state=saved_point())
    for change in (
        replace(taken, input_id="requests 2"),
        second_reaches(taken, id="outcomes 2"),
        replace(taken, end_offset=6),
        second_reaches(taken, end=2),
    ):
        with pytest.raises(StateMismatch) as halted:
            PartitionAssembly(SPEC, AT, change, NOWHERE)
        said.append(str(halted.value))
    assert [text for text in said if OTHER_TOPICS not in text] == []


def _events(log: MemoryLog) -> list[OutputRecord]:
    written = log.input(TOPICS.output, 0)
    columns = zip(written.keys, written.values, written.headers, strict=True)
    return [(key, value, list(headers)) for key, value, headers in columns]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_each_request_is_one_event_through_faults_at_every_step(seed: int) -> None:
    """As an independent join of both logs has them, with and without a cap."""
    logs, cap = random_logs(seed), CAP if seed % 2 else None
    spec = replace(SPEC, cap=cap)
    log = asyncio.run(lived_through(logs, spec, seed=seed, chance=Fraction(1, 12)))
    assert _events(log) == expected_events(logs, RULES, cap)
    lost = [attempt for attempt in log.attempts if attempt.outcome.value == "aborted"]
    assert len(lost) > 3


def test_commits_of_neighbouring_logs_have_the_same_sizes() -> None:
    """What is committed when, and how large it is, does not tell whether anybody clicked."""
    logs = random_logs(3)
    silent = replace(logs, outcomes=logs.outcomes[:1])

    def seen(part: Logs) -> list[tuple[int, list[int], list[tuple[bytes, int]]]]:
        log = asyncio.run(lived_through(part, replace(SPEC, cap=CAP), seed=0, chance=Fraction(0)))
        return [_sizes(attempt.commit) for attempt in log.attempts]

    assert seen(logs) == seen(silent)


async def test_do_requests_that_nobody_has_read_keep_what_they_need() -> None:
    """However late they are read: the clock alone must not forget whom they repeat."""
    log = MemoryLog()
    for topic in (TOPICS.input, TOPICS.second_input, TOPICS.output):
        log.create(topic, partitions=1)
    headers = [[("streamdp-request", b"r")]]
    log.now = 1000
    log.append(TOPICS.input, [(b"k", None)], headers=headers, partition=0)
    work, transport = await taken_over(MemoryTechnology(log), SPEC)
    far = 1000 * WINDOW
    while work.open or work.position < 1:
        await go_on(work, transport, far)
    log.now = 1000 + WINDOW  # appended long ago, and delivered only now
    log.append(TOPICS.input, [(b"k", None)], headers=headers, partition=0)
    log.append(TOPICS.second_input, [(b"k", b'{"reward": 1}')], headers=headers, partition=0)
    await work.round(far)
    assert work.history == 0
    while work.open or work.position < 2:
        await go_on(work, transport, far)
    await work.round(far)
    assert work.history == 2
    assert [value for _, value, _ in _events(log)] == [encode([0.75]), encode([0.5])]


def _sizes(commit: Commit) -> tuple[int, list[int], list[tuple[bytes, int]]]:
    values = [len(value or b"") for _, value, _ in commit.records]
    return commit.next_offset, values, [(key, len(value or b"")) for key, value in commit.state]


def test_on_two_files_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    """With the clock of the files: requests of three lives, each event once."""
    settings = {"path": str(tmp_path / "trusted.db"), "published": str(tmp_path / "out.db")}
    technology = Sqlite.from_settings(settings, app="shop")
    far = 1 << 50  # every deadline has passed

    async def live(life: int) -> list[bytes | None]:
        producer = technology.producer()
        names = [b"%d/%d" % (life, number) for number in range(10)]
        headers = [[("streamdp-request", name)] for name in names]
        await producer.send("requests", [(b"k", None)] * 10, headers=headers)
        clicks = [(b"k", b'{"reward": 1}')] * 5
        await producer.send("outcomes", clicks, headers=headers[:5])
        await producer.close()
        work, transport = await taken_over(technology, SPEC)
        while work.position < 10 * (life + 1) or work.open:
            await go_on(work, transport, far)
        await transport.close()
        administrator = technology.administrator()
        reader = StreamTopics("shop", "reader", "events")
        batches = [batch async for batch in administrator.history(reader, after={})]
        await administrator.close()
        return [value for batch in batches for value in batch.values]

    for life in range(3):
        expected = ([encode([0.0])] * 5 + [encode([0.75])] * 5) * (life + 1)
        assert asyncio.run(live(life)) == expected


async def test_requests_that_are_too_large_take_their_slots() -> None:
    """By what is public of them: neither a long key nor endless headers stop a partition."""
    log = MemoryLog()
    log.largest_value = 100_000
    for topic in (TOPICS.input, TOPICS.second_input, TOPICS.output):
        log.create(topic, partitions=1)
    named = [("streamdp-request", b"r")]
    long = [*named, ("x", b"y" * 100_000)]
    requests = [(b"k", None), (b"k" * 99_000, None), (b"j", None)]
    log.append(TOPICS.input, requests, headers=[long, named, named])
    work, transport = await taken_over(MemoryTechnology(log), replace(SPEC, cap=CAP))
    while work.position < 3 or work.open:
        await go_on(work, transport, 5000)
    first, second, third = _events(log)
    assert (first[0], first[2]) == (b"k", [])
    assert (second[0], second[2]) == (b"k" * 65_537, [("streamdp-request", b"r")])
    assert third[0] == b"j"


class ReadsLess(MemoryTransport):
    """Leaves out the end of what was asked for."""

    def read_second_input(
        self, partition: Partition, start: int, stop: int
    ) -> AsyncIterator[Records]:
        return super().read_second_input(partition, start, stop - 1)


async def test_outcomes_that_are_missing_are_noticed_and_not_counted_in_public() -> None:
    """Whatever is wrong with them, no message says where they are."""
    log = MemoryLog()
    for topic in (TOPICS.input, TOPICS.second_input, TOPICS.output):
        log.create(topic, partitions=1)
    headers = [[("streamdp-request", b"r")]]
    log.append(TOPICS.input, [(b"k", None)], headers=headers)
    log.append(TOPICS.second_input, [(b"k", None)] * 7, headers=headers * 7)
    transport = ReadsLess(log, worker="test")
    await transport.join([TOPICS], Heard())
    work = PartitionAssembly(SPEC, AT, await transport.take(AT), transport)
    transport.resume(AT, work.position)
    with pytest.raises((StateMismatch, TransportLost), match="outcomes") as raised:
        await go_on(work, transport, 5000)
    assert not any(attempt.commit.records for attempt in log.attempts)
    assert not any(
        letter.isdigit() for letter in str(raised.value).removeprefix("partition clicks/0")
    )


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("has_ids", [False, True])
def test_outcomes_that_retention_has_deleted_are_no_outcomes(has_ids: bool, restarts: bool) -> None:
    """Retention by size depends on what outcomes there were, so neither work nor a start halts."""

    async def run(trim: int) -> list[OutputRecord]:
        log = MemoryLog(has_ids=has_ids)
        for topic in (TOPICS.input, TOPICS.second_input, TOPICS.output):
            log.create(topic, partitions=1)
        technology = MemoryTechnology(log)
        work, transport = await taken_over(technology, SPEC)
        for name in (b"r", b"s"):
            headers = [[("streamdp-request", name)]]
            log.append(TOPICS.input, [(b"k", None)], headers=headers)
            log.append(TOPICS.second_input, [(b"k", b'{"reward": 1}')] * 3, headers=headers * 3)
            while work.position < (1 if name == b"r" else 2):
                await go_on(work, transport, 0)
            if name == b"r":
                await go_on(work, transport, 5000)
                log.now += 4000
        log.trim(TOPICS.second_input, 0, before=trim)
        if restarts:
            await transport.close()
            work, transport = await taken_over(technology, SPEC)
        for _ in range(3):
            await go_on(work, transport, 50_000)
        return _events(log)

    kept, gone = asyncio.run(run(0)), asyncio.run(run(6))
    assert [event[::2] for event in kept] == [event[::2] for event in gone]
    assert len(kept) == 2
    assert kept[0] == gone[0]
    assert kept[1] != gone[1]


# --- halts ----------------------------------------------------------------------------------------


Change = Callable[[Taken], Taken]


@pytest.mark.parametrize(
    ("kind", "words", "change"),
    [
        (StateMismatch, "state is gone", lambda t: replace(t, state={})),
        (StateMismatch, "rolled back", lambda t: replace(t, group_offset=8)),
        (StateMismatch, "no longer retained.*offset 5", lambda t: replace(t, first_offset=6)),
        (StateMismatch, "truncated", lambda t: replace(t, end_offset=6)),
        (StateMismatch, "truncated.*an end of outcomes", lambda t: second_reaches(t, end=2)),
        (StateMismatch, "recreated", lambda t: replace(t, input_id="requests 2")),
        (
            StateMismatch,
            "outcomes with topic id",
            lambda t: second_reaches(t, id="outcomes 2"),
        ),
        (StateMismatch, "fewer partitions", lambda t: replace(t, partitions=1)),
        (StateMismatch, "damaged", lambda t: replace(t, state=dict.fromkeys(t.state, b"{}"))),
    ],
)
def test_what_contradicts_itself_halts(kind: type[Exception], words: str, change: Change) -> None:
    """A position never moves back, and nothing that is needed again may be missing."""
    taken = replace(TAKEN, state=saved_point())
    PartitionAssembly(SPEC, AT, taken, NOWHERE)
    with pytest.raises(kind, match=words):
        PartitionAssembly(SPEC, AT, change(taken), NOWHERE)


def test_another_configuration_needs_a_new_epoch() -> None:
    """Which goes on behind everything that is known to have left."""
    taken = replace(TAKEN, state=saved_point())
    other = replace(SPEC, rules=replace(RULES, window=WINDOW + 1))
    said = rf"the state's in window \(was {WINDOW} ms, is {WINDOW + 1} ms\); .* digest"
    with pytest.raises(ConfigurationMismatch, match=said):
        PartitionAssembly(other, AT, taken, NOWHERE)
    with pytest.raises(ConfigurationMismatch, match=r"the state's in actions; .* new epoch"):
        PartitionAssembly(replace(SPEC, actions=("a", "c")), AT, taken, NOWHERE)
    with pytest.raises(
        ConfigurationMismatch, match=r"in persons .* and persons.secret_file;"
    ) as no:
        PartitionAssembly(replace(SPEC, cap=CAP), AT, taken, NOWHERE)
    assert SECRET.decode() not in str(no.value)
    assert PartitionAssembly(replace(other, epoch=2), AT, taken, NOWHERE).committed == 7
    lost = replace(TAKEN, state={}, group_offset=8)
    assert PartitionAssembly(replace(SPEC, epoch=2), AT, lost, NOWHERE).committed == 8
    later = replace(TAKEN, state=saved_point(replace(SPEC, epoch=3)))
    with pytest.raises(Superseded, match="epoch 3"):
        PartitionAssembly(replace(SPEC, epoch=2), AT, later, NOWHERE)


def test_a_first_start_begins_where_it_is_told() -> None:
    fresh = second_reaches(replace(TAKEN, state={}, group_offset=None), group=None)
    assert PartitionAssembly(SPEC, AT, fresh, NOWHERE).position == 2
    latest = replace(SPEC, start=Start.LATEST)
    assert PartitionAssembly(latest, AT, fresh, NOWHERE).position == 9
    others = replace(fresh, remarks={0: encode_remark(Remark(epoch=1, began_with=1))})
    added = PartitionAssembly(latest, Partition("clicks", 1), others, NOWHERE)
    assert added.position == 2  # what came before any process knew of it


def test_does_every_commit_say_with_how_many_partitions_the_assembly_began() -> None:
    """So a partition that is added later is known as such, also by who takes it first."""
    log = asyncio.run(lived_through(random_logs(3), SPEC, seed=0, chance=Fraction(0)))
    remarks = {attempt.commit.remark for attempt in log.attempts}
    assert remarks == {encode_remark(Remark(epoch=1, began_with=1))}


def test_the_digest_tells_what_decides_and_hides_the_secret() -> None:
    others = [
        replace(SPEC, cap=CAP),
        replace(SPEC, cap=Cap(2, 5, SECRET + b"!")),
        replace(SPEC, rules=replace(RULES, default=0.5)),
        replace(SPEC, topics=replace(TOPICS, output="others")),
        replace(SPEC, encode=lambda losses: encode(losses) + b" "),
        replace(SPEC, actions=("b", "a")),
        *(
            replace(SPEC, recipe=recipe)
            for recipe in (
                Categories(("a",)),
                Rankers(("a",)),
                Rankers(("a",), by_rank=True),
                Errors(("a",), 1.0),
                Errors(("a",), 2.0),
            )
        ),
    ]
    assert len({spec.digest for spec in (SPEC, *others)}) == len(others) + 1
    assert replace(SPEC, most_open=5, most_at_once=9).digest == SPEC.digest
