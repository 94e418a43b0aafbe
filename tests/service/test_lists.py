"""Owners take a list at a position: through crashes, in the ledger, and what `verify` finds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET

from streamdp.client.answers import Names, Source
from streamdp.client.choosing import choose
from streamdp.client.http_wire import answer_of, chosen
from streamdp.client.requests import Request, request_record
from streamdp.client.table import Table
from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.errors import StreamdpError, TransportLost
from streamdp.core.events import OPENING, SPARE, Batch
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policy import PARTS
from streamdp.core.learners.feedback.policy_contexts import policy_contexts
from streamdp.core.learners.feedback.policy_following import policy_following
from streamdp.ports import (
    Headers,
    Key,
    LastCommit,
    Partition,
    Published,
    Records,
    StreamTopics,
    Value,
)
from streamdp.serve.history import StreamReleases
from streamdp.service import batches, protocol
from streamdp.service.batches import DecodedRecords
from streamdp.service.lists import NO_LIST, Catalogue
from streamdp.service.protocol import PartitionWork
from streamdp.service.renewed_formats import RenewedFormats
from streamdp.service.settings import Pace
from streamdp.service.spec import StreamSpec
from streamdp.service.verifying.verification import Verification
from streamdp.testing.judge import judge, judge_fold
from streamdp.wire.lines import Charge, PolicyLine, TakenList, from_base64
from streamdp.wire.published import decode_in_force, decode_ledger
from streamdp.wire.renewals import Renewal
from tests.support.decoding import decode
from tests.support.protocol_model import Store, evidence, finish, restore, settle
from tests.support.publishing import list_record
from tests.support.services import QUICK, Between, Room
from tests.support.streams import ACTIONS, feedback_spec, shown, spec

KEYS = (b"fr", b"de", None)
RECORDS = 220
PAUSES: Sequence[Sequence[str]] = (
    [ACTIONS[0]], [], [ACTIONS[1], ACTIONS[2]], [ACTIONS[2], "gone"], list(ACTIONS),
)  # fmt: skip


def stream(**options: Any) -> StreamSpec:
    learner = policy_following(actions=ACTIONS, epsilon="1/2", schedule="capped 4")
    return feedback_spec(name="home", learner=learner, **options)


FIELDS = Contexts.read('{"device":["phone"]}')


def in_contexts(played: str, *, room: int = 0, actions: tuple[str, ...] = ACTIONS) -> StreamSpec:
    learner = policy_contexts(
        actions=FIELDS.arms((*actions, *[SPARE] * room)), epsilon="1/2", context=FIELDS,
        played=played, schedule="capped 4", **({"room": str(room)} if room else {}),
    )  # fmt: skip
    options: dict[str, Any] = {"padding": "fixed"} if played == "value" else {}
    return feedback_spec(name="home", learner=learner, **options)


def in_cells(
    records: Sequence[tuple[Key, Value]], headers: Sequence[Headers], played: str
) -> tuple[list[tuple[Key, Value]], list[Headers]]:
    """The same records, each about a phone or about something else."""
    cells = [at % 3 % 2 for at in range(len(records))]
    if played == "header":
        named = [("streamdp-context", FIELDS.header_of_cell(cell)) for cell in cells]
        return [*records], [[*of, own] for of, own in zip(headers, named, strict=True)]
    contents = [
        {**json.loads(value), "action": (dict(of).get("streamdp-action") or b"").decode(),
         "context": FIELDS.levels(cell)}
        if value and value.startswith(b"{") else None
        for (_, value), of, cell in zip(records, headers, cells, strict=True)
    ]  # fmt: skip
    padded = [json.dumps(of).encode().ljust(80) for of in contents]
    return [(key, of) for (key, _), of in zip(records, padded, strict=True)], [[] for _ in records]


def list_line(ordinal: int) -> bytes:
    """The n-th list of the stream."""
    return list_record(ordinal, paused=PAUSES[ordinal % len(PAUSES)], actions=ACTIONS).value


@dataclass
class Life:
    """A partition whose list changes, in any order with cuts, decisions and crashes."""

    chance: random.Random
    stream: StreamSpec = field(default_factory=stream)
    ordinal: int = 0
    crashes: int = 0
    many: int = RECORDS

    def __post_init__(self) -> None:
        records, headers = shown(self.many)
        if self.stream.learner.recipe.contexts is not None:
            records, headers = in_cells(records, headers, str(self.stream.learner.recipe.played))
        self.store = Store(records, headers=headers)

    def line(self) -> bytes:
        """The newest list."""
        return list_line(self.ordinal)

    def log(self) -> Iterator[Batch]:
        """The input."""
        store = self.store
        yield decode(self.stream.format, [store.records(0, store.end)], most_key_bytes=64)[0]

    def again(self) -> PartitionWork:
        """Another process takes it: it has read no list yet."""
        self.crashes += 1
        self.stream = replace(self.stream, catalogue=Catalogue())
        return restore(self.store, self.stream)

    def tell(self) -> Life:
        store, chance, pending = self.store, self.chance, None
        work, now = restore(store, self.stream), 0.0
        pace, inbox = Pace(records=chance.choice([4, 1000]), seconds=20.0), list[DecodedRecords]()
        read = 0
        for _ in range(300):
            now += chance.random()
            match chance.choice(("read", "read", "absorb", "list", "cut", "decide", "crash")):
                case "read" if read < store.end:
                    stop = min(store.end, read + chance.randrange(1, 30))
                    if self.ordinal:
                        self.stream.catalogue.read(self.line())
                    inbox += work.read(store.records(read, stop))
                    read = stop
                case "absorb" if inbox:
                    work.absorb(inbox)
                    inbox = []
                case "list" if chance.random() < 0.6:
                    self.ordinal += chance.randrange(1, 3)
                case "cut" if pending is None and (work.urgent or work.behind):
                    pending = work.cut(now=now, pace=pace)
                case "decide" if pending is not None:
                    store.send(pending.commit)
                    store.decide(pending.commit)
                    pending = None
                case "crash" if chance.random() < 0.5:
                    if pending is not None and chance.random() < 0.5:
                        store.send(pending.commit)
                        store.decide(pending.commit)
                    work, pending, inbox = self.again(), None, []
                    read = work.engine.position
        if pending is not None:
            store.decide(pending.commit)
        if read < store.end:
            self.stream.catalogue.read(self.line())
            inbox += work.read(store.records(read, store.end))
        if inbox:
            work.absorb(inbox)
        settle(store, work)
        for _ in range(2):  # the first notes which lists no rebuild reads, the second deletes them
            store.decide(work.cut(now=now, pace=pace).commit)
        return self

    @property
    def lists(self) -> list[TakenList]:
        lines = [decode_ledger(record.value) for record in self.store.ledger]
        return [line for line in lines if isinstance(line, TakenList)]

    def wrong(self) -> list[str]:
        store, of = self.store, self.stream
        fold = judge_fold(
            evidence(store), engine=of.engine(0), lines=of.lines, log=self.log(), whole="whole"
        )
        return [*judge(evidence(store)), *fold, *self.site().violations()]

    def site(self) -> Site:
        return Site(self.stream, self.store.state, self.store.ledger, self.store.actions)


@dataclass(frozen=True)
class Site:
    """What a partition leaves."""

    stream: StreamSpec
    state: dict[bytes, bytes]
    ledger: Sequence[Published]
    actions: Sequence[Published]

    def violations(self) -> list[str]:
        """What `verify` says of it."""
        verification, topics = Verification(configured=[self.stream]), self.stream.topics
        verification.read_state(topics, LastCommit(0, self.state))
        verification.read_published(topics, self.actions)
        verification.read_all_published(topics)
        verification.read(topics, self.ledger)
        verification.finish()
        return verification.violations

    def forged(self, change: Callable[[list[dict[str, Any]], list[dict[str, Any]]], None]) -> Site:
        ledger, actions = (
            [json.loads(record.value) for record in records]
            for records in (self.ledger, self.actions)
        )
        keys = [[record.key for record in records] for records in (self.ledger, self.actions)]
        change(ledger, actions)
        records = [
            [
                Published(0, at, key, json.dumps(line, separators=(",", ":")).encode())
                for at, (key, line) in enumerate(zip(named, lines, strict=False))
            ]
            for named, lines in zip(keys, (ledger, actions), strict=True)
        ]
        return replace(self, ledger=records[0], actions=records[1])


@cache
def told(seed: int) -> Life:
    return Life(random.Random(seed)).tell()


@pytest.mark.parametrize("seed", range(8))
def test_policies_follow_each_list_from_its_position_through_any_crash(seed: int) -> None:
    """Judge, fold of the input under the ledger's lists, and `verify`: none finds anything."""
    life = told(seed)
    assert life.crashes > 5
    assert len(life.lists) > 3
    assert life.wrong() == []
    taken = [(of.next_offset, of.list_ordinal) for of in life.lists]
    assert taken == sorted(taken)
    assert not any(b'"release"' in place for place in life.store.state)
    assert len([place for place in life.store.state if b'"renewal"' in place]) == 1  # the newest


@pytest.fixture
def tables_by_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next table is another one under each list, and with each block."""

    def chosen(self: ContextModel, state: Floats, *_: object, allowed: Bools | None = None) -> Ints:
        blocks = np.count_nonzero(state, axis=(1, 2))
        paused = 0 if allowed is None else int((~allowed).argmax()) + 1
        return np.asarray((blocks + paused) % len(self.tables))

    monkeypatch.setattr(ContextModel, "chosen", chosen)


@pytest.mark.usefixtures("tables_by_lists")
@pytest.mark.parametrize("played", ["header", "value"])
def test_so_do_policies_of_contexts(played: str) -> None:
    """Tables of blocks too: what a block released is read by the table that its list led to."""
    life = Life(random.Random(5), in_contexts(played), many=110).tell()
    assert life.crashes > 5
    assert len(life.lists) > 3
    assert life.lists[0].actions == list(ACTIONS)
    assert life.wrong() == []


@pytest.mark.usefixtures("tables_by_lists")
@pytest.mark.parametrize("played", ["header", "value"])
def test_what_contexts_carry_over_follows_from_lists(played: str) -> None:
    """Of keys whose newest releases are not in their rows too."""
    life = Life(random.Random(0), in_contexts(played), many=150)
    store = life.store
    for epoch in (1, 2, 3):
        life.stream = replace(life.stream, epoch=epoch, catalogue=Catalogue())
        work, begin = restore(store, life.stream), 50 * epoch - 50
        for at in range(begin, begin + 50, 5):
            life.stream.catalogue.read(list_line(3 + at // 10))
            work.absorb(work.read(store.records(at, at + 5)))
            if at % 50 in (0, 45):  # a cut saves one row, however many changed
                store.decide(work.cut(now=0.0, pace=Pace(records=1000)).commit)
        assert sum(b'"release",%d' % epoch in place for place in store.state) > 5
    finish(store, work)
    carried = [json.loads(of.value).get("carried") for of in store.ledger]
    assert len([of for of in carried if of]) == 2 * len(KEYS)
    assert [*judge(evidence(store)), *life.site().violations()] == []


def test_a_paused_action_has_no_part_of_any_policy_after_the_position() -> None:
    life = told(3)
    lists = {of.list_ordinal: of for of in life.lists}
    compared = 0
    for record in life.store.actions:
        line = decode_in_force(record.value)
        assert isinstance(line, PolicyLine)
        if not isinstance(line.list_ordinal, int):
            assert line.last_offset < life.lists[0].next_offset
            continue
        assert line.last_offset >= lists[line.list_ordinal].next_offset
        allowed = lists[line.list_ordinal].allowed()
        parts = np.frombuffer(from_base64(line.policy, "policy"), "<u4").tolist()
        if allowed is not None:
            assert [bool(part) for part in parts] == allowed.tolist()
            compared += 1
    assert compared > 10


Patch = pytest.MonkeyPatch


def one_list_for_all_that_waits(patch: Patch) -> None:
    """Records that were read before the position are applied under the newest list."""

    def together(records: Sequence[DecodedRecords]) -> Iterator[list[DecodedRecords]]:
        some = list(records)
        yield [replace(of, listed=some[-1].listed) for of in some]

    patch.setattr(protocol, "under_one_list", together)


def not_saved(patch: Patch) -> None:
    """A rebuild knows no list."""
    unsaved = RenewedFormats.unsaved

    def forgetful(self: RenewedFormats[Any]) -> list[Renewal]:
        unsaved(self)
        return []

    patch.setattr(RenewedFormats, "unsaved", forgetful)


def taken_earlier_than_said(patch: Patch) -> None:
    """From the last record of the fetch before on; the ledger names the fetch."""
    renew = RenewedFormats.renew

    def early(self: RenewedFormats[Any], since: int) -> None:
        renew(self, since)
        if len(self._since) > 1 and self._since[-1] == since > self._since[-2]:
            self._since[-1] = max(self._since[-2], since - 1)

    patch.setattr(RenewedFormats, "renew", early)

    def late(self: PartitionWork, records: Sequence[DecodedRecords]) -> None:
        for of in records:
            self._absorb([replace(of, listed=self._formats._formats[-1].newest)])

    patch.setattr(PartitionWork, "absorb", late)


def taken_again_at_the_next_start(patch: Patch) -> None:
    """Positions move: a rebuild takes the newest list from its first record on."""
    cut = RenewedFormats.cut

    def newest(self: RenewedFormats[Any], records: Records) -> Iterator[tuple[Any, Records]]:
        for _, part in cut(self, records):
            yield self._formats[-1], part

    patch.setattr(RenewedFormats, "cut", newest)


@pytest.mark.parametrize(
    "breaks",
    [
        one_list_for_all_that_waits,
        not_saved,
        taken_earlier_than_said,
        taken_again_at_the_next_start,
    ],
)
def test_a_broken_taking_is_caught(breaks: Callable[[Patch], None], monkeypatch: Patch) -> None:
    breaks(monkeypatch)
    for seed in range(8):
        try:
            if Life(random.Random(seed)).tell().wrong():
                return
        except StreamdpError:
            return
    pytest.fail("not caught")


# -- what a ledger says ----------------------------------------------------------------------------

Lines = list[dict[str, Any]]


@cache
def honest() -> Site:
    """What `verify` finds nothing wrong with."""
    return told(3).site()


def first_list(ledger: Lines) -> dict[str, Any]:
    return next(line for line in ledger if line["type"] == "list")


def names_a_later_position(ledger: Lines, actions: Lines) -> None:
    first_list(ledger)["next_offset"] += 15


def names_an_earlier_position(ledger: Lines, actions: Lines) -> None:
    lists = [line for line in ledger if line["type"] == "list"]
    lists[-1]["next_offset"] = lists[-2]["next_offset"] - 1


def pauses_something_else(ledger: Lines, actions: Lines) -> None:
    line = next(of for of in ledger if of["type"] == "list" and len(of["paused"]) == 1)
    line["paused"] = [name for name in line["actions"] if name not in line["paused"]][:1]


def pauses_what_there_is_not(ledger: Lines, actions: Lines) -> None:
    first_list(ledger)["paused"].append("nobody")


def names_other_columns(ledger: Lines, actions: Lines) -> None:
    first_list(ledger)["actions"].reverse()


def has_one_list_twice(ledger: Lines, actions: Lines) -> None:
    lists = [line for line in ledger if line["type"] == "list"]
    lists[-1]["list_ordinal"] = lists[-2]["list_ordinal"]


def misses_a_list(ledger: Lines, actions: Lines) -> None:
    ledger.remove(first_list(ledger))


def charges_under_another_list(ledger: Lines, actions: Lines) -> None:
    next(line for line in ledger if line.get("kind") and "list_ordinal" in line)[
        "list_ordinal"
    ] += 1


def shows_under_another_list(ledger: Lines, actions: Lines) -> None:
    next(line for line in actions if "list_ordinal" in line)["list_ordinal"] += 1


def says_that_nothing_is_paused(ledger: Lines, actions: Lines) -> None:
    next(line for line in actions if "paused" in line).pop("paused")


def has_huge_numbers(ledger: Lines, actions: Lines) -> None:
    first_list(ledger)["next_offset"] = 1 << 62


def is_of_another_stream(ledger: Lines, actions: Lines) -> None:
    first_list(ledger)["stream"] = "away"


FORGERIES: dict[Callable[[Lines, Lines], None], str] = {
    names_a_later_position: "is of list",
    names_an_earlier_position: "expected ≥",
    pauses_something_else: "does not follow",
    pauses_what_there_is_not: "pauses nobody",
    names_other_columns: "action 0 is of",
    has_one_list_twice: "is taken after list",
    misses_a_list: "was due",
    charges_under_another_list: "is of list",
    shows_under_another_list: "the published policy is of list",
    says_that_nothing_is_paused: "name nothing as paused, expected",
    has_huge_numbers: "a number is too large",
    is_of_another_stream: "it names away/0",
}


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.__name__)
def test_verify_finds_a_forged_list(forgery: Callable[[Lines, Lines], None]) -> None:
    found = honest().forged(forgery).violations()
    assert any(FORGERIES[forgery] in what for what in found), found


# -- the service -----------------------------------------------------------------------------------


async def lived(room: Room, name: str, changes: int) -> None:
    """Records, and before each handful another list."""
    topics = room.specs[name].topics
    for turn in range(changes):
        async with room.worker():
            room.log.revise(topics, lambda before: list_line(_ordinal(before) + 1))
            room.send(name, *shown(40, keys=KEYS, seed=turn))
            await room.until(room.is_read)


def _ordinal(before: bytes | None) -> int:
    return 0 if before is None else json.loads(before)["ordinal"]


def taken_lists(room: Room, partition: Partition) -> list[TakenList]:
    lines = [decode_ledger(record.value) for record in room.evidence(partition).ledger]
    return [line for line in lines if isinstance(line, TakenList)]


async def test_every_partition_takes_the_list_that_is_there_when_its_records_come() -> None:
    """In its own commit: the first line of a ledger too, which names the input's id."""
    room = Room([stream()], partitions=2)
    await lived(room, "home", 4)
    assert room.wrong() == []
    for partition in room.partitions:
        taken = taken_lists(room, partition)
        assert [of.list_ordinal for of in taken] == [1, 2, 3, 4]
        assert taken[0].ordinal == 1
        assert isinstance(taken[0].input_id, str)
        assert taken[0].next_offset == 0
        charges = [decode_ledger(of.value) for of in room.evidence(partition).ledger]
        assert all(of.list_ordinal for of in charges if isinstance(of, Charge))


def test_streams_of_losses_take_no_list() -> None:
    """Nor do their lines change."""
    of = spec()
    assert not of.takes_lists
    assert of.lines_under(NO_LIST) is of.lines
    assert of.listed_format.catalogue is None


async def test_a_list_that_cannot_be_read_leaves_the_one_that_was_taken() -> None:
    """Said once, until it can be read again."""

    class Deaf(Between):
        """Answers with an error, with something newer, and at last well."""

        asked = 0

        async def newest_list(self, stream: str) -> bytes | None:
            type(self).asked += 1
            if self.asked < 4:
                raise TransportLost("catalogue", "away", expected="an answer", got="none")
            if self.asked < 7:
                return b'{"type":"list","schema":99}'
            return await self.inner.newest_list(stream)

    room = Room([stream()], partitions=1)
    room.log.revise(room.specs["home"].topics, lambda _: list_line(1))
    records, headers = shown(300, keys=KEYS)
    settings = replace(QUICK, poll_records=1, batch_records=1)
    async with room.worker(around=Deaf, settings=settings) as worker:
        room.send("home", records, headers)
        await room.until(room.is_read)
        lost = worker.log.of("list_lost")
    assert len(lost) == 1
    (taken,) = taken_lists(room, room.partitions[0])
    assert taken.next_offset >= 6
    assert room.wrong() == []


async def test_a_new_epoch_takes_the_list_anew() -> None:
    room = Room([stream()], partitions=1)
    await lived(room, "home", 1)
    room.specs["home"] = replace(stream(), epoch=2)
    async with room.worker():
        room.send("home", *shown(40, keys=KEYS, seed=9))
        await room.until(room.is_read)
    taken = taken_lists(room, room.partitions[0])
    assert [(of.epoch, of.list_ordinal, of.next_offset) for of in taken] == [(1, 1, 0), (2, 1, 40)]
    assert judge(room.evidence(room.partitions[0])) == []


def test_a_damaged_list_in_the_state_is_refused() -> None:
    of = stream().listed_format
    for content in ({}, {"paused": "3"}, {"paused": "["}):
        saved = Renewal(what="list", number=1, since=0, content=content)
        with pytest.raises(StreamdpError, match="damaged"):
            of.resumed([saved])


def test_batches_of_one_list_are_not_cut() -> None:
    """However many fetches they came by."""
    records, headers = shown(6)
    store, of = Store(records, headers=headers), stream()
    formats = RenewedFormats(of.listed_format, [])
    read = [
        batches.decoded_records(part.format, some, listed=part.newest)
        for at in range(0, 6, 2)
        for part, some in formats.cut(store.records(at, at + 2))
    ]
    assert [len(some) for some in batches.under_one_list(read)] == [3]
    assert StreamTopics("shop", "home", "x").catalogue == "shop.home.catalogue"


# -- readers ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tables_by_lists")
@pytest.mark.parametrize("played", ["", "header", "value"])
def test_a_page_computes_policies_under_their_lists(played: str) -> None:
    """Bit for bit, in all contexts; and what each block released, by its table."""
    life = Life(random.Random(1), in_contexts(played) if played else stream(), many=110).tell()
    site, compared = life.site(), 0
    shares: dict[bytes | None, dict[int, list[float]]] = {}
    for record in site.actions:
        line = decode_in_force(record.value)
        assert isinstance(line, PolicyLine)
        policy = np.frombuffer(from_base64(line.policy, "policy"), "<u4") / PARTS
        shares.setdefault(record.key, {})[line.stop] = policy.tolist()
    history = StreamReleases()
    history.apply(site.ledger)
    for key, published in shares.items():
        policies = history.of_key(key)[0].policies
        assert policies is not None
        for point in policies.points():
            assert point.shares == published[point.slot]
            compared += 0 in point.shares
        tables = policies.tables()
        assert tables is not None
        assert np.isfinite(tables[0].gains).all()
    assert compared > 10


def test_a_page_says_nothing_rather_than_a_guess() -> None:
    """Where the line of a list was not read."""
    ledger = Life(random.Random(3), ordinal=1).tell().store.ledger
    lines = [decode_ledger(record.value) for record in ledger]
    opened = next(
        at for at, line in enumerate(lines)
        if isinstance(line, Charge) and line.kind == OPENING and line.list_ordinal is not UNSET
    )  # fmt: skip
    late = StreamReleases()
    late.apply(ledger[opened:])
    assert late.of_key(ledger[opened].key)[0].policies is None


@pytest.mark.usefixtures("tables_by_lists")
def test_what_is_resumed_is_shown_at_once_in_each_cell() -> None:
    """As often as the average action, until the key's next policy."""
    life = Life(random.Random(1), in_contexts("header"), many=110).tell()
    names = Names(ACTIONS, "pepper", FIELDS)
    table = Table(Source(life.stream.topics, ACTIONS[0], names=names), most_keys=9)
    assert [*table.apply(life.store.actions)]
    answer = next(of for of in table.answers.values() if of.held is not None and of.held.paused)
    back = answer.back(answer.computed_under + 1)
    assert answer.back(answer.computed_under) == ()
    for cell in range(FIELDS.cells):
        drawn = [choose(answer, f"r{at}", cell, back=back) for at in range(200)]
        said = [of.probability for of in drawn if of.action in back]
        assert said == pytest.approx([min(1 / 3, 0.5 / len(back))] * len(said), abs=1e-6)
        assert {of.action for of in drawn} == {*ACTIONS}
        assert not {choose(answer, f"r{at}", cell).action for at in range(200)} & {*back}


def test_a_request_names_the_list_that_its_policy_follows() -> None:
    """From the line to the header, also over HTTP."""
    names = Names(ACTIONS)
    table = Table(Source(stream().topics, ACTIONS[0], names=names), most_keys=9)
    assert [*table.apply(honest().actions)]
    answer = max(table.answers.values(), key=lambda of: of.computed_under)
    choice = choose(answer, "r1")
    assert choice.computed_under == answer.computed_under > 0
    sent = answer_of(chosen("home", b"fr", "r1", choice))
    for of in (choice, sent):
        headers = dict(request_record(Request(b"fr", "r1"), choice=of)[2])
        named = [of.partition, of.epoch, of.born, of.block, of.computed_under]
        assert headers["streamdp-release"] == "/".join(map(str, named)).encode()
