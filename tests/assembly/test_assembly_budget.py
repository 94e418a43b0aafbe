"""Have requests and outcomes one budget, whatever is assembled from them, by whomever (P11)?

Each ledger alone says ε, and so does each assembled topic; a request that is in two of them, or
twice in one, has paid 2ε.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from streamdp.cli.ledger import _claim, _claimed
from streamdp.core.errors import ConfigurationMismatch, StateMismatch
from streamdp.core.events import ACTION, OPENING
from streamdp.core.releases import Identity, Release
from streamdp.ports import LastCommit, Published, StreamTopics
from streamdp.service.assembling.partition import PartitionAssembly
from streamdp.service.charges_by_others import ChargesByOthers, EpochReading, Scope
from streamdp.service.config import Configuration
from streamdp.service.ledgers import Ledgers
from streamdp.service.verifying.verification import Verification
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp.wire.lines import Assembled
from streamdp.wire.published import decode_assembled, encode_assembled
from tests.support.assembly_model import random_logs
from tests.support.streams import spec
from tests.support.visits import (
    AT,
    NOWHERE,
    SPEC,
    TAKEN,
    go_on,
    lived_through,
    saved_point,
    taken_over,
)

HALF = Fraction(1, 2)
LINES = spec().lines

CONFIG = """
app = "shop"
[transport]
kind = "sqlite"
path = "shop.db"
[topics.requests]
budget = "{budget}"
[topics.events]
budget = "1"
[topics.others]
budget = "1"
"""
STREAM = """
[streams.{name}]
input = "{topic}"
start = "earliest"
epoch = {epoch}
actions = ["a", "b", "c"]
[streams.{name}.learner]
epsilon = "{epsilon}"
"""
ASSEMBLY = """
[assemblies.{name}]
requests = "{requests}"
outcomes = "{outcomes}"
stream = "{stream}"
start = "earliest"
mode = "categories"
window = "1s"
combine = "max"
"""


def stream(name: str, *, topic: str = "events", epsilon: str = "1/2", epoch: int = 1) -> str:
    return STREAM.format(name=name, topic=topic, epsilon=epsilon, epoch=epoch)


def assembly(
    name: str, *, to: str = "home", requests: str = "requests", outcomes: str = "outcomes"
) -> str:
    return ASSEMBLY.format(name=name, stream=to, requests=requests, outcomes=outcomes)


def line(
    name: str = "clicks",
    start: int = 0,
    stop: int = 10,
    *,
    ordinal: int = 1,
    epoch: int = 1,
    requests: str = "requests",
    outcomes: str = "outcomes",
    output: str = "events",
) -> tuple[str, Published]:
    """An assembly may have made events of these."""
    assembled = Assembled(
        schema=1, stream=name, partition=0, epoch=epoch, input=requests, outcomes=outcomes,
        output=output, start=start, stop=stop, ordinal=ordinal, digest="d", version="v",
    )  # fmt: skip
    return name, Published(0, 0, None, encode_assembled(assembled))


def charge(
    name: str, topic: str = "events", *, epsilon: str = "1/2", last: int = 3
) -> list[tuple[str, Published]]:
    """A stream has charged the records up to one: an opening, and a block."""
    records = []
    for at, kind in enumerate((OPENING, ACTION)):
        stop = 1 if kind == OPENING else last + 2
        release = Release(
            Identity(name, 0, b"fr", 1, 0, 0, kind), (0,), start=1, stop=stop, first_offset=0,
            last_offset=0 if kind == OPENING else last,
            epsilon=Fraction(0) if kind == OPENING else Fraction(epsilon),
        )  # fmt: skip
        rate = Fraction(epsilon) / 2
        lines = replace(LINES, stream=name, input=topic, rate=rate, estimates=(), seeded=False)
        value = lines.ledger(release, ordinal=at + 1)
        records.append((name, Published(0, at, b"fr", value)))
    return records


class Shelf:
    """Ledgers that are there: a technology that has nothing else."""

    def __init__(self, *lines: tuple[str, Published]) -> None:
        self.lines = lines

    def publications(self) -> Shelf:
        return self

    def administrator(self) -> Shelf:
        return self

    async def last_commits(self, topics: StreamTopics, **_: object) -> AsyncIterator[LastCommit]:
        for commit in list[LastCommit]():
            yield commit

    async def ledgers(self, app: str) -> Sequence[StreamTopics]:
        return [StreamTopics(app, name, "") for name in dict.fromkeys(n for n, _ in self.lines)]

    async def ledger(self, topics: StreamTopics, *, follow: bool) -> AsyncIterator[list[Published]]:
        yield [record for name, record in self.lines if name == topics.stream]

    async def close(self) -> None: ...


def by_others(
    folder: Path, asked: str, *lines: tuple[str, Published], tables: str, budget: str = "1/2"
) -> ChargesByOthers:
    """What an assembly or a stream is told of the others."""
    path = folder / "shop.toml"
    path.write_text(CONFIG.format(budget=budget) + tables)
    shelf: Any = Shelf(*lines)
    ledgers = Ledgers(Configuration.load(path, {}), shelf)
    return asyncio.run(ledgers.by_others(asked, Scope.ALL))


HOME = stream("home")
CLICKS = HOME + assembly("clicks")
RENAMED = HOME + assembly("renamed")


# -- where an assembly begins, and whether it goes on ------------------------------------------


def test_does_a_lone_assembly_begin_at_the_beginning(tmp_path: Path) -> None:
    """Its own ledger is no other's."""
    assert by_others(tmp_path, "clicks", line(), tables=CLICKS).begin(0, 0) == 0


def test_does_a_renamed_assembly_begin_behind_the_old_one(tmp_path: Path) -> None:
    """Whatever the budget: a request is in a topic once."""
    for budget in ("1/2", "2"):
        history = by_others(tmp_path, "renamed", line(), tables=RENAMED, budget=budget)
        assert history.begin(0, 0) == 10
        assert history.begin(1, 0) == 0  # of another partition


def test_is_a_former_assembly_known_by_what_each_of_its_commits_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a look at its newest commits ends with these, and not at the beginning of its state."""
    known = list[set[bytes]]()

    async def looked_at(
        self: Shelf, topics: StreamTopics, *, marks: Callable[[int], Collection[bytes]]
    ) -> AsyncIterator[LastCommit]:
        state = saved_point()
        known.append(state.keys() & marks(0))
        yield LastCommit(0, state)

    monkeypatch.setattr(Shelf, "last_commits", looked_at)
    assert by_others(tmp_path, "renamed", line(), tables=RENAMED).begin(0, 0) == 10
    assert known == [saved_point().keys()]


def test_does_another_topic_of_the_same_requests_add_up(tmp_path: Path) -> None:
    """It may begin early only if the budget covers what streams of both charge."""
    tables = HOME + assembly("renamed")
    old = (line(output="others"), *charge("gone", "others"))
    assert by_others(tmp_path, "renamed", *old, tables=tables).begin(0, 0) == 10
    assert by_others(tmp_path, "renamed", *old, tables=tables, budget="1").begin(0, 0) == 0


def test_does_a_second_assembly_count_while_it_runs(tmp_path: Path) -> None:
    """What it will charge counts for each request, what it charged before for those it has had."""
    two = CLICKS + stream("trial", topic="others", epsilon="1/4", epoch=2) + assembly(
        "views", to="trial"
    )  # fmt: skip
    lines = (line("views", output="others"), *charge("trial", "others", epsilon="1/2"))
    history = by_others(tmp_path, "clicks", *lines, tables=two, budget="3/4")
    assert history.charged(0, 10) == Fraction(1, 4)
    assert history.charged(0, 9) == Fraction(1, 2)
    assert history.begin(0, 0) == 10


def test_does_a_stream_count_that_has_read_the_requests(tmp_path: Path) -> None:
    """Configured or gone."""
    gone = charge("gone", "requests", last=6)
    assert by_others(tmp_path, "clicks", *gone, tables=CLICKS).begin(0, 0) == 7
    direct = CLICKS + stream("direct", topic="requests", epsilon="1/4")
    history = by_others(tmp_path, "clicks", tables=direct, budget="3/4")
    assert history.charged(0, 0) == Fraction(1, 4)


@pytest.mark.parametrize("shared", ["outcomes", "requests"])
def test_do_requests_count_that_share_outcomes(tmp_path: Path, shared: str) -> None:
    """Their offsets cannot be compared, so nothing is early enough; other outcomes can be."""
    if shared == "outcomes":
        old = line("old", output="others", requests="old")
    else:
        old = line("old", output="others", outcomes="old")
    lines = (old, *charge("gone", "others"))
    history = by_others(tmp_path, "clicks", *lines, tables=CLICKS)
    if shared == "requests":
        assert history.begin(0, 0) == 10
    else:
        with pytest.raises(StateMismatch, match="use topics with other names, or a larger budget"):
            history.begin(0, 0)
    assert by_others(tmp_path, "clicks", *lines, tables=CLICKS, budget="1").begin(0, 0) == 0


def test_does_an_assembly_halt_that_others_have_overtaken(tmp_path: Path) -> None:
    """Renamed and renamed back: the requests in between are the other's. A new epoch is behind."""
    history = by_others(tmp_path, "clicks", line("renamed", 7, 9), tables=CLICKS)
    taken = replace(TAKEN, state=saved_point(), last_ledger_line=None)
    PartitionAssembly(SPEC, AT, taken, NOWHERE)
    with pytest.raises(StateMismatch, match=r"others have charged.*shop\.renamed\.ledger"):
        PartitionAssembly(SPEC, AT, taken, NOWHERE, by_others=history)
    anew = PartitionAssembly(replace(SPEC, epoch=2), AT, taken, NOWHERE, by_others=history)
    assert anew.committed == 9
    beyond = by_others(tmp_path, "clicks", line("renamed", 7, 30), tables=CLICKS)
    with pytest.raises(StateMismatch, match="read beyond the end of the input"):
        PartitionAssembly(replace(SPEC, epoch=2), AT, taken, NOWHERE, by_others=beyond)


# -- what is left to streams -------------------------------------------------------------------


def test_is_a_stream_bound_by_the_budget_of_what_it_is_assembled_from(tmp_path: Path) -> None:
    """Its own topic's would cover a renamed stream's second reading."""
    tables = stream("renamed") + assembly("clicks", to="renamed")
    lines = (line(), *charge("home"))
    assert by_others(tmp_path, "renamed", *lines, tables=tables).begin(0, 0) == 4
    assert by_others(tmp_path, "renamed", *lines, tables=tables, budget="1").begin(0, 0) == 0


def test_does_what_other_topics_were_charged_leave_less(tmp_path: Path) -> None:
    """Of an assembly that is gone, and of one that is not; or of a stream of the requests."""
    tables = stream("renamed") + assembly("clicks", to="renamed")
    gone = (line(), *charge("home"), line("old", output="others"), *charge("trial", "others"))
    assert by_others(tmp_path, "renamed", *gone, tables=tables, budget="1").begin(0, 0) == 4
    both = tables + stream("trial", topic="others") + assembly("views", to="trial")
    here = (line(), *charge("home"))
    assert by_others(tmp_path, "renamed", *here, tables=both, budget="1").begin(0, 0) == 4
    assert by_others(tmp_path, "renamed", *here, tables=both, budget="3/2").begin(0, 0) == 0


def test_does_a_stream_of_the_requests_share_their_budget(tmp_path: Path) -> None:
    """Nothing is left to it where assembled topics were charged all of it."""
    tables = CLICKS + stream("direct", topic="requests", epsilon="1/4")
    assert by_others(tmp_path, "direct", tables=tables, budget="3/4").begin(0, 0) == 0
    lines = (line("old", output="others"), *charge("gone", "others"))
    with pytest.raises(StateMismatch, match="no beginning is within their budget"):
        by_others(tmp_path, "direct", *lines, tables=tables, budget="3/4").begin(0, 0)


def test_is_a_stream_of_another_topic_left_alone(tmp_path: Path) -> None:
    tables = CLICKS + stream("apart", topic="others", epsilon="1")
    assert by_others(tmp_path, "apart", line(), tables=tables).room == 0
    assert by_others(tmp_path, "apart", line(), tables=tables).begin(0, 0) == 0


# -- what an assembly's ledger says, and when --------------------------------------------------


def _declared_before(log: MemoryLog) -> bool:
    """Whether every event's request was told of by a line that was durable before."""
    offsets, declared, events = log.input("requests", 0).offsets, 0, 0
    for attempt in log.attempts:
        if attempt.outcome.value != "committed":
            continue
        events += len(attempt.commit.records)
        if attempt.commit.records and offsets[events - 1] >= declared:
            return False
        for _, value in attempt.commit.ledger:
            declared = max(declared, decode_assembled(value).stop)
    return True


@pytest.mark.parametrize("seed", range(2))
def test_does_the_ledger_know_of_events_before_they_are_there(seed: int) -> None:
    """Through faults at every step; and it proves that nothing was assembled again."""
    log = asyncio.run(lived_through(random_logs(seed), SPEC, seed=seed, chance=Fraction(1, 12)))
    assert _declared_before(log)
    lines = [value for a in log.attempts if a.outcome.value == "committed"
             for _, value in a.commit.ledger]  # fmt: skip
    assert 1 < len(lines) < sum(bool(a.commit.records) for a in log.attempts)
    verification = Verification()
    records = [Published(0, at, None, value) for at, value in enumerate(lines)]
    verification.read(SPEC.topics, records)
    assert not verification.violations


async def test_a_new_epoch_declares_from_where_it_begins() -> None:
    """A line that reached back would say that its requests were assembled twice."""
    log = MemoryLog()
    for topic in (SPEC.topics.input, SPEC.topics.second_input, SPEC.topics.output):
        log.create(topic, partitions=1)
    for epoch in (1, 2):
        headers = [[("streamdp-request", b"%d %d" % (epoch, at))] for at in range(3)]
        log.append(SPEC.topics.input, [(b"k", None)] * 3, headers=headers, partition=0)
        work, transport = await taken_over(MemoryTechnology(log), replace(SPEC, epoch=epoch))
        for _ in range(3):
            await go_on(work, transport, 5000)
    assert len(log.input(SPEC.topics.output, 0).offsets) == 6
    lines = [decode_assembled(record.value) for record in log.ledger(SPEC.topics)]
    assert [(made.epoch, made.start, made.stop) for made in lines] == [(1, 0, 3), (2, 3, 6)]


def test_is_an_assembly_caught_that_tells_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: the ledger hears of events with the commit that writes them, or never."""
    honest = PartitionAssembly._commit

    async def together(self: PartitionAssembly, events: Any, *, ledger: Any = ()) -> None:
        kept = [*getattr(self, "kept", ()), *ledger]
        if ledger and not events:
            self.kept = kept  # type: ignore[attr-defined]
            return
        await honest(self, events, ledger=kept)
        self.kept = []  # type: ignore[attr-defined]

    monkeypatch.setattr(PartitionAssembly, "_commit", together)
    log = asyncio.run(lived_through(random_logs(0), SPEC, seed=0, chance=Fraction(0)))
    assert not _declared_before(log)


def test_do_ledger_and_state_belong_together() -> None:
    """Whichever is behind the other, the partition halts; a new epoch goes on behind both."""
    taken = replace(TAKEN, state=saved_point(lines=1, declared=8))

    def at(stop: int, ordinal: int, output: str = "events") -> bytes:
        return line(stop=stop, ordinal=ordinal, output=output)[1].value

    PartitionAssembly(SPEC, AT, replace(taken, last_ledger_line=at(8, 1)), NOWHERE)
    with pytest.raises(StateMismatch, match="the ledger has lost lines"):
        PartitionAssembly(SPEC, AT, taken, NOWHERE)
    ahead = replace(taken, last_ledger_line=at(9, 2))
    with pytest.raises(StateMismatch, match="rolled back: the ledger has a later line"):
        PartitionAssembly(SPEC, AT, ahead, NOWHERE)
    second = replace(SPEC, epoch=2)
    assert PartitionAssembly(second, AT, ahead, NOWHERE).committed == 9
    whole = replace(taken, last_ledger_line=at(8, 1))
    assert PartitionAssembly(second, AT, whole, NOWHERE).committed == 7
    lost = replace(ahead, state={}, group_offset=None)
    with pytest.raises(StateMismatch, match="state is gone; raise the epoch to go on"):
        PartitionAssembly(SPEC, AT, lost, NOWHERE)
    assert PartitionAssembly(second, AT, lost, NOWHERE).committed == 9
    other = replace(taken, last_ledger_line=at(8, 1, output="elsewhere"))
    with pytest.raises(ConfigurationMismatch, match="an assembly, with another name"):
        PartitionAssembly(second, AT, other, NOWHERE)


# -- ledger verify -----------------------------------------------------------------------------


def verified(*lines: tuple[str, Published]) -> tuple[Fraction, list[str]]:
    """The highest charge on a request with its outcomes, and what is wrong."""
    verification = Verification()
    for name in dict.fromkeys(name for name, _ in lines):
        topics = StreamTopics("shop", name, "")
        verification.read(topics, [record for other, record in lines if other == name])
    (verdict,) = verification.verdicts({"requests": Fraction(9)}, {})
    return verdict.highest, verification.violations


BOTH = (*charge("home"), *charge("trial", "others", epsilon="1/4"))


@pytest.mark.parametrize(
    ("lines", "highest"),
    [
        ((line(), *charge("home")), HALF),
        ((line(), line("views", 0, 5, output="others"), *BOTH), Fraction(3, 4)),
        ((line(), line("views", 9, 20, output="others"), *BOTH), Fraction(3, 4)),
        ((line(), line("views", 10, 20, output="others"), *BOTH), HALF),
        ((line(), line("renamed", 10, 20), *charge("home")), HALF),
        ((line(), line("renamed", 9, 20), *charge("home")), Fraction(1)),
        ((line(), line("apart", requests="r2", outcomes="o2", output="others"), *BOTH), HALF),
        ((line(), line("old", requests="r2", output="others"), *BOTH), Fraction(3, 4)),
        ((line(), *charge("home"), *charge("direct", "requests")), Fraction(1)),
        ((line(), *charge("home"), *charge("direct", "outcomes")), Fraction(1)),
        ((line(), line(epoch=2, start=4, stop=9, ordinal=2), *charge("home")), HALF),
    ],
)  # fmt: skip
def test_does_verify_add_up_what_was_assembled(
    lines: tuple[tuple[str, Published], ...], highest: Fraction
) -> None:
    """Over topics and assemblies that a request came through; not over those that it did not."""
    assert verified(*lines) == (highest, [])


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (line(start=9, stop=12, ordinal=2), "request 9 is assembled again, expected 10 or later"),
        (line(start=10, stop=12, ordinal=3), "line 3 where 2 was due"),
        (line(start=12, stop=11, ordinal=2), "requests [12, 11)"),
        (line(start=10, ordinal=2, stop=12, epoch=0), "epoch falls from 1 to 0"),
        (line(start=10, ordinal=2, stop=12, output="x"), "the topics change"),
    ],
)
def test_is_what_contradicts_itself_a_violation(second: tuple[str, Published], said: str) -> None:
    _, violations = verified(line(), second)
    assert any(said in violation for violation in violations), violations


@pytest.mark.parametrize(("start", "kept"), [(4, True), (3, False), (0, False)])
def test_a_new_epoch_begins_no_earlier_than_the_last_line_before_it(start: int, kept: bool) -> None:
    """That line may overstate what became of its requests, but those before it were events."""
    first, last = line(stop=4), line(start=4, stop=10, ordinal=2)
    _, violations = verified(first, last, line(start=start, stop=12, ordinal=3, epoch=2))
    assert violations == [] if kept else "expected 4 or later" in violations[0]


def test_lines_from_a_seed_guarantee_nothing_of_requests_either() -> None:
    """The promise for requests is that of the topics that they were assembled into."""
    verification = Verification()
    (_, assembled), [(_, opening), (_, vote)] = line(), charge("home")
    seeded = replace(vote, value=vote.value.replace(b'"seeded":false', b'"seeded":true'))
    assert seeded != vote
    verification.read(StreamTopics("shop", "clicks", ""), [assembled])
    verification.read(StreamTopics("shop", "home", ""), [opening, seeded])
    (verdict,) = verification.verdicts({"requests": Fraction(9)}, {})
    assert (verdict.seeded, verdict.kept) == (1, False)


def test_does_verify_say_what_a_cap_buys() -> None:
    """From the ledgers alone: m·ε in a stretch, 2m·ε over any slots; nothing without a cap."""
    name, record = line()
    capped = record.value.replace(b'"digest"', b'"persons":{"most":3,"slots":100},"digest"')
    verification = Verification()
    verification.read(StreamTopics("shop", name, ""), [replace(record, value=capped)])
    verification.read(StreamTopics("shop", "views", ""), [line("views", 0, 5, output="others")[1]])
    for stream_, topic, epsilon in (("home", "events", "1/2"), ("trial", "others", "1/4")):
        records = [record for _, record in charge(stream_, topic, epsilon=epsilon)]
        verification.read(StreamTopics("shop", stream_, ""), records)
    clicks, views = verification.persons({"requests": Fraction(1, 4)})
    charges = (clicks.epsilon, clicks.of_stretch, clicks.of_any)
    assert charges == (Fraction(1), Fraction(3), Fraction(6))
    assert (views.most, views.of_stretch, views.of_any) == (None, None, None)


def test_does_verify_say_what_a_cap_by_day_buys() -> None:
    """m·ε in a day and 2m·ε over any 24 hours: nothing of slots, of which a day has any number."""
    name, record = line()
    by_day = record.value.replace(b'"digest"', b'"persons":{"most":3,"per":"day"},"digest"')
    verification = Verification()
    verification.read(StreamTopics("shop", name, ""), [replace(record, value=by_day)])
    verification.read(
        StreamTopics("shop", "home", ""),
        [record for _, record in charge("home", "events", epsilon="1/2")],
    )
    (claim,) = verification.persons({})
    charges = (claim.most, claim.slots, claim.of_stretch, claim.of_any)
    assert charges == (3, None, 3 * HALF, Fraction(3))
    shown = _claim(claim)
    words = _claimed(shown)
    assert "ε = 3/2 for a person in a key and day, 3 over any 24 hours of a key" in words
    assert (shown["per"], shown["of_any_slots"], shown["of_any_24_hours"]) == ("day", None, "3")


def test_is_a_reading_that_is_gone_on_an_app_of_its_own() -> None:
    """Past adds up what other applications did with what they are said to charge, at the higher."""
    history = ChargesByOthers(
        "shop", HALF, Fraction(1, 4), {}, (EpochReading("other", "l", 0, HALF, 5),)
    )
    assert [history.charged(0, at) for at in (5, 6)] == [HALF, Fraction(1, 4)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"requests": "others"}, "its input is others, but that of shop.clicks is requests"),
        ({"outcomes": "others"}, "its outcomes is others"),
        ({"output": "others"}, "its output is others"),
    ],
)
def test_a_line_of_an_assembly_names_its_configured_topics(wrong: Any, said: str) -> None:
    topics = StreamTopics("shop", "clicks", "requests", second_input="outcomes", output="events")
    for of_line, expected in (({}, ""), (wrong, said)):
        verification = Verification()
        verification.read(topics, [line(**of_line)[1]])
        assert len(verification.violations) == bool(expected)
        assert all(expected in violation for violation in verification.violations)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((line(stop=4), *charge("home")), ""),
        ((line(stop=3), *charge("home")), "4 events of events were charged, but its assemblies'"),
        ((line(stop=0), *charge("home")), "declare 0 requests"),
        (charge("home"), "declare 0 requests"),
        ((line(stop=3), line(start=0, stop=3, epoch=2, ordinal=2), *charge("home")),
         "declare 3 requests"),
        ((line(stop=2), line("renamed", start=2, stop=4), *charge("home")), ""),
    ],
)  # fmt: skip
def test_no_more_events_are_charged_than_requests_were_declared(
    lines: Sequence[tuple[str, Published]], said: str
) -> None:
    """Lines that declare nothing, a ledger that is gone, a second line from the same start."""
    verification = Verification(assembled={"events"})
    for name, record in lines:
        verification.read(StreamTopics("shop", name, ""), [record])
    verification.finish()
    assert len(verification.violations) == bool(said)
    assert all(said in violation for violation in verification.violations)


@pytest.mark.parametrize("count", [20, 200])
def test_a_key_is_added_up_once_however_many_lines_an_assembly_has(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is linear in lines: an event's charges are added up once, not for each line."""
    sums: list[object] = []

    def counted(charges: object, levels: object) -> Fraction:
        sums.append(charges)
        return HALF

    monkeypatch.setattr("streamdp.service.verifying.verification.topic_total", counted)
    verification = Verification()
    for at in range(count):
        made = line(start=at, stop=at + 1, ordinal=at + 1)[1]
        verification.read(StreamTopics("shop", "clicks", ""), [made])
    for _, record in charge("home", last=9):
        verification.read(StreamTopics("shop", "home", ""), [record])
    (verdict,) = verification.verdicts({"requests": Fraction(1)}, {})
    verification.persons({})
    assert (verdict.highest, verification.violations, len(sums)) == (HALF, [], 1)
