"""Is a registry asked by the clock alone, and is each record read for good as it was read first?"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import streamdp as sd
from streamdp.core.errors import InvalidConfig, StateMismatch, TransportLost
from streamdp.ports import Key, Records, Value
from streamdp.service.assembly_spec import AssemblySpec
from streamdp.service.batches import DecodedRecords
from streamdp.service.config import Configuration
from streamdp.service.protocol import PartitionWork
from streamdp.service.renewed_formats import RenewedFormats
from streamdp.service.sources import asking, up_to_date
from streamdp.service.spec import StreamSpec
from streamdp.service.view import Steps, View, status_of
from streamdp.testing.certificates import write_certificates
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp.wire.formats import configure
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from streamdp.wire.renewals import RenewalSource
from streamdp_adapters.registry.fields import RecordField
from streamdp_adapters.registry.formats import AVRO, JSON_SCHEMA, Reading, SchemaFormat
from streamdp_adapters.registry.schemas import Schema, held, prefix
from tests.support.assembly_model import READS_REQUESTS, Logs, encode
from tests.support.command_line import run_command
from tests.support.lives import EARLY, LATE
from tests.support.loops import rows
from tests.support.neighbours import Course as Neighbouring
from tests.support.neighbours import differences, on_memory
from tests.support.registry import Registry, registry
from tests.support.services import Lines, Room
from tests.support.shop_files import joined_shop
from tests.support.streams import ACTIONS, spec
from tests.support.visits import SPEC, go_on, lived_through, taken_over

EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "losses", "type": {"type": "array", "items": "double"}}],
}
WIDER = {**EVENT, "fields": [*EVENT["fields"], {"name": "note", "type": "string"}]}
REWARD = {"type": "record", "name": "E", "fields": [{"name": "reward", "type": "double"}]}


def avro(*losses: float, number: int = 1) -> bytes:
    return prefix(number) + b"\x06" + struct.pack("<3d", *losses) + b"\0"


def avro_format(url: str = "http://nowhere", **more: object) -> SchemaFormat:
    options = {"registry": url, "subject": "home-losses-value", **more}
    made = configure("avro", actions=list(ACTIONS), options=options)
    assert isinstance(made, SchemaFormat)
    return made


def sources(stream: StreamSpec) -> list[RenewalSource]:
    """What asks the registry of a stream."""
    assert stream.format.source is not None
    return [stream.format.source]


def avro_spec(registry: Registry | None = None, *, refresh: float = 0.02) -> StreamSpec:
    format_ = avro_format(*([] if registry is None else [registry.url]))
    kept = replace(format_.reading.registry, refresh=refresh)
    learner = sd.incumbent_leader(actions=ACTIONS, epsilon="50", schedule="capped 8")
    made = replace(spec(learner=learner), share=Fraction(50))
    return replace(made, format=replace(format_, reading=replace(format_.reading, registry=kept)))


def drawn(room: Room, stream: StreamSpec) -> list[object]:
    """What every ledger line says was drawn, of what."""
    lines = [decode_ledger(record.value) for record in room.log.ledger(stream.topics)]
    return [
        (line.key, line.block, line.index, line.first_offset, line.last_offset)
        for line in lines
        if isinstance(line, Charge)
    ]


def test_records_are_read_after_a_rebuild_as_they_were_read_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Evolution, an outage, a restart: what is drawn is what the same events in JSON come to.

    Records of the schema that was registered later are null before it was fetched, for good.
    """
    got, expected = lives(monkeypatch)
    assert len(expected) > 8
    assert got == expected


def test_a_rebuild_that_reads_early_records_by_later_schemas_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        RenewedFormats, "cut", lambda formats, records: [(formats._formats[-1], records)]
    )
    got, expected = lives(monkeypatch)
    assert got != expected


def lives(monkeypatch: pytest.MonkeyPatch) -> tuple[list[object], list[object]]:
    """What is drawn of events in Avro, and of the same events in JSON."""
    monkeypatch.setattr(PartitionWork, "_share", lambda work, now, pace: 0)  # all is read again
    known, unknown = avro(0.9, 0.1, 0.9), avro(1, 0, 1, number=2)
    early = [(b"fr", known)] * 7 + [(b"fr", unknown)] * 6  # of which the last block stays open
    late = [(b"fr", avro(0, 1, 1, number=2)), (b"de", known)] + [(b"de", unknown)] * 8
    last = [(b"fr", avro(0, 1, 1, number=2)), (b"de", avro(0, 0, 0, number=7))] * 8

    async def lived(kept: Registry) -> tuple[list[object], Room]:
        stream = avro_spec(kept)
        room = Room([stream], partitions=1)
        (partition,) = room.partitions
        room.send("home", early)
        log = Lines()
        async with asking(sources(stream), log), room.worker():
            await room.until(lambda: room.position(partition) == len(early))
            kept.register("home-losses-value", WIDER, number=2)
            while len(log.of("schemas_fetched")) < 2:
                await asyncio.sleep(0.005)
            room.send("home", late)
            await room.until(lambda: room.position(partition) == len(early + late))
        kept.down = True
        again = avro_spec(kept)  # a new process, which fetches nothing
        room.specs = {"home": again}
        async with asking(sources(again), log), room.worker():
            room.send("home", last)
            await room.until(lambda: room.position(partition) == len(early + late + last))
        assert again.format.reading.registry.fetched.schemas is None  # type: ignore[attr-defined]
        assert len(log.of("registry_lost")) == 1
        return drawn(room, again), room

    async def in_json() -> list[object]:
        plain = replace(avro_spec(), format=configure("json", actions=list(ACTIONS)))
        room = Room([plain], partitions=1)
        (partition,) = room.partitions
        holds = {1: range(100), 2: range(len(early), 100)}
        events: list[tuple[Key, Value]] = []
        for offset, (key, value) in enumerate(early + late + last):
            text = json.dumps({"losses": struct.unpack("<3d", value[6:30])}).encode()
            read = offset in holds.get(int.from_bytes(value[1:5], "big"), ())
            events.append((key, text if read else b"null"))
        room.send("home", events)
        async with room.worker():
            await room.until(lambda: room.position(partition) == len(events))
        return drawn(room, plain)

    with registry() as kept:
        kept.register("home-losses-value", EVENT, number=1)
        got, room = asyncio.run(lived(kept))
    state = room.log.state(avro_spec().topics, 0)
    since = [json.loads(value)["since"] for place, value in state.items() if b'"renewal"' in place]
    assert sorted(since) == [0, len(early)]
    return got, asyncio.run(in_json())


async def test_without_any_schema_a_partition_waits() -> None:
    with registry() as kept:
        kept.down = True
        stream = avro_spec(kept)
        room = Room([stream], partitions=1)
        (partition,) = room.partitions
        room.send("home", [(b"fr", avro(0.1, 0.2, 0.9))])
        async with asking(sources(stream), Lines()), room.worker() as worker:
            while len(worker.log.of("partition_lost")) < 3:
                await asyncio.sleep(0.005)
            assert room.position(partition) == 0
            kept.down = False  # the registry is there, the subject is not
            while len(worker.log.of("partition_lost")) < 6:
                await asyncio.sleep(0.005)
            assert room.position(partition) == 0
            kept.register("home-losses-value", EVENT, number=1)
            await room.until(lambda: room.position(partition) == 1)


# -- content causes no question ----------------------------------------------------------------


class AvroCourse(Neighbouring):
    """Neighbours whose records are Avro, with a schema that a timer has fetched."""

    @cached_property
    def layout(self) -> SchemaFormat:
        format_ = avro_format()
        format_.reading.registry.fetched.schemas = (Schema(1, "AVRO", json.dumps(EVENT)),)
        return format_.renewed(0)


CONTENTS: dict[str, Value] = {
    "a vector": avro(0.1, 0.9, 0.3),
    "another": avro(0.9, 0.1, 0.7),
    "an unknown id": avro(0.1, 0.9, 0.3, number=7),
    "no prefix": b"{" * 31,
    "infinite": avro(0, float("inf"), float("-inf")),
    "blocks without end": prefix(1) + b"\xfe" + b"\xff" * 8 + b"\x01" * 17,
    "no value": None,
}


@pytest.mark.slow
@pytest.mark.parametrize("at", [EARLY, LATE])
def test_neighbours_are_the_same_to_the_byte(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    course = AvroCourse()
    course.by_script(monkeypatch)
    first, *others = CONTENTS.values()
    plain = on_memory(course, at=at, content=first)
    for value in others if at == EARLY else others[1:2]:
        assert differences(plain, on_memory(course, at=at, content=value)) == []
    assert course.layout.reading.registry.fetched.lost_at is None  # which a metric shows


def asked_for(content: Value) -> list[str]:
    """What a registry hears while records come of which one has this content."""

    async def lived(kept: Registry) -> None:
        stream = avro_spec(kept, refresh=1e6)
        room = Room([stream], partitions=1)
        (partition,) = room.partitions
        log = Lines()
        async with asking(sources(stream), log), room.worker():
            for value in (avro(0, 0.5, 1), content, avro(1, 0.5, 0)):
                room.send("home", [(b"fr", value)])
            await room.until(lambda: room.position(partition) == 3)

    with registry() as kept:
        kept.register("home-losses-value", EVENT, number=1)
        asyncio.run(lived(kept))
        return kept.asked


def test_no_content_makes_anybody_ask_the_registry() -> None:
    first, *others = CONTENTS.values()
    plain = asked_for(first)
    assert len(plain) == 2  # the versions, and the only one of them
    assert [asked_for(content) for content in others] == [plain] * len(others)


def test_a_reader_that_asks_for_unknown_ids_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As every other client of a registry does."""
    read = PartitionWork.read

    def curious(self: PartitionWork, records: Records) -> list[DecodedRecords]:
        format_ = self.spec.format
        assert isinstance(format_, SchemaFormat)
        for value in records.values:
            if value is not None and value[:5] != prefix(1):
                task = asyncio.ensure_future(format_.source.fetch())
                tasks.append(task)
        return read(self, records)

    tasks: list[object] = []
    monkeypatch.setattr(PartitionWork, "read", curious)
    first, second, unknown, *_ = CONTENTS.values()
    assert asked_for(first) == asked_for(second)
    assert asked_for(unknown) != asked_for(first)


def test_how_long_a_registry_is_silent_is_shown_until_it_answers() -> None:
    """By the clock alone: no record is read here."""

    async def lived(kept: Registry) -> tuple[float, float, float]:
        stream = avro_spec(kept)
        view = View([stream])
        view.sources = sources(stream)

        def silent(*, ahead: float = 0.0) -> float:
            status = status_of(view, Steps(time.monotonic), now=time.monotonic() + ahead)
            return status.registries["home-losses-value"]

        async with asking(view.sources, log):
            well = silent()
            kept.down = True
            while not log.of("registry_lost"):
                await asyncio.sleep(0.005)
            lost = silent(ahead=100)
            kept.down = False
            while silent():
                await asyncio.sleep(0.005)
        return well, lost, silent()

    log = Lines()
    with registry() as kept:
        kept.register("home-losses-value", EVENT, number=1)
        well, lost, again = asyncio.run(lived(kept))
    assert well == again == 0
    assert 100 <= lost < 110


# -- requests and outcomes -----------------------------------------------------------------------


def rewards(records: Sequence[tuple[int, Key, Any, Value]], *, number: int) -> Any:
    """The same outcomes in Avro; what is no number there stays what it is."""
    for at, key, headers, value in records:
        new = value
        try:
            reward = json.loads(value or b"")["reward"]
            new = prefix(number) + struct.pack("<d", float(reward))
        except (ValueError, KeyError, TypeError):
            pass
        yield at, key, headers, new


def test_outcomes_in_avro_come_to_what_they_come_to_in_json() -> None:
    """Through kills at every step; an outcome of an unknown id is no outcome."""
    from tests.support.assembly_model import random_logs

    logs = random_logs(5)
    numbers = [
        record
        for record in logs.outcomes
        if b"reward" in (record[3] or b"") and b'"reward": "' not in (record[3] or b"")
    ]
    plain = Logs(logs.requests, numbers, logs.gap)
    unknown = list(rewards([of for of in numbers if of[0] % 2], number=9))
    both = sorted([*rewards(numbers, number=1), *unknown], key=lambda record: record[0])
    options = {"registry": "http://nowhere", "subject": "outcomes-value"}
    reading = AVRO.reading(RecordField("reward", "number"), options)
    reading.registry.fetched.schemas = (Schema(1, "AVRO", json.dumps(REWARD)),)

    def events(logs: Logs, **more: Any) -> list[Value]:
        spec = replace(SPEC, encode=encode, **more)
        log: MemoryLog = asyncio.run(lived_through(logs, spec, seed=2, chance=Fraction(1, 12)))
        return list(log.input(SPEC.topics.output, 0).values)

    expected = events(plain)
    assert len(set(expected)) > 3
    assert events(Logs(plain.requests, both, plain.gap), outcomes=reading) == expected


async def test_an_assembly_s_schemas_hold_from_where_they_were_fetched_and_are_saved() -> None:
    """A process is lost twice, and its successors have no registry that answers, or another answer.

    A request of a schema that was unknown when it was read stays unreadable, for good; a request
    that was read by a schema stays readable. So events do not depend on who died when.
    """
    log = MemoryLog()
    for topic in (SPEC.topics.input, SPEC.topics.second_input, SPEC.topics.output):
        log.create(topic, partitions=1)

    def process(*known: int) -> AssemblySpec:
        """A process to which the registry has said these ids."""
        fields = RecordField("predictions", "numbers by name"), RecordField("truth", "number")
        readings = [
            JSON_SCHEMA.reading(field, {"registry": "http://x", "subject": field.name})
            for field in fields
        ]
        for reading in readings if known else []:
            reading.registry.fetched.schemas = tuple(Schema(of, "JSON", "{}") for of in known)
        requests, outcomes = readings
        return replace(SPEC, recipe=READS_REQUESTS, requests=requests, outcomes=outcomes)

    def request(name: bytes, number: int, *, at: int) -> None:
        log.now, headers = at, [("streamdp-request", name)]
        value = prefix(number) + b'{"predictions":{"a":1}}'
        log.append(SPEC.topics.input, [(b"k", value)], headers=[headers], partition=0)

    def outcome(name: bytes, number: int, *, at: int) -> None:
        log.now, headers = at, [("streamdp-request", name)]
        value = prefix(number) + b'{"truth":1}'
        log.append(SPEC.topics.second_input, [(b"k", value)], headers=[headers], partition=0)

    def since(what: bytes) -> list[tuple[int, int]]:
        """From which offset on each schema holds, as the state says."""
        state = log.state(SPEC.topics, 0)
        held = [
            json.loads(value)
            for place, value in state.items()
            if b"renewal" in place and what in place
        ]
        return sorted((renewal["number"], renewal["since"]) for renewal in held)

    first = process(1)
    work, transport = await taken_over(MemoryTechnology(log), first)
    for name in (b"early", b"late", b"never"):
        outcome(name, 1, at=100)  # the two others may count for nothing
    request(b"early", 1, at=0)
    request(b"never", 2, at=0)
    await go_on(work, transport, 0)
    for reading in first.contents:
        assert isinstance(reading, Reading)
        reading.registry.fetched.schemas = (Schema(1, "JSON", "{}"), Schema(2, "JSON", "{}"))
    request(b"late", 2, at=600)
    await go_on(work, transport, 600)
    await go_on(work, transport, 1150)  # the first two leave, the third stays open
    assert (since(b"requests"), since(b"outcomes")) == ([(1, 0), (2, 2)], [(1, 0), (2, 0)])
    outcome(b"late", 2, at=1200)
    work, transport = await taken_over(MemoryTechnology(log), process())  # no answer
    await go_on(work, transport, 1200)
    work, transport = await taken_over(MemoryTechnology(log), process(1, 2, 3))
    request(b"last", 3, at=1300)
    await go_on(work, transport, 1300)
    await go_on(work, transport, 3000)
    assert since(b"requests") == [
        (1, 0),
        (2, 2),
        (3, 2),
    ]  # the two that have left decide nothing
    losses = [json.loads(value or b"") for value in log.input(SPEC.topics.output, 0).values]
    assert losses == [[0.0], [0.5], [0.0], [0.75]]


# -- asking ----------------------------------------------------------------------------------------


def test_a_password_is_sent_and_read_anew(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("one\n")
    with registry() as kept:
        kept.register("home-losses-value", EVENT, number=1)
        format_ = avro_format(kept.url, user="shop", password_file=str(secret))
        client = format_.source
        assert len(asyncio.run(client.schemas())) == 1
        secret.write_text("two")
        asyncio.run(client.schemas())
    assert kept.authorizations[0] == "Basic c2hvcDpvbmU="  # shop:one
    assert kept.authorizations[-1] == "Basic c2hvcDp0d28="


def test_a_certificate_is_checked(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    with registry(tmp_path / "server.pem") as kept:
        kept.register("home-losses-value", EVENT, number=1)
        trusting = avro_format(kept.url, ca_file=str(tmp_path / "ca.pem"))
        assert len(asyncio.run(trusting.source.schemas())) == 1
        with pytest.raises(TransportLost, match="SSLCertVerificationError"):
            asyncio.run(avro_format(kept.url).source.schemas())
    nothing = avro_format("https://nowhere", ca_file=str(tmp_path / "none.pem"))
    with pytest.raises(InvalidConfig, match=r"format\.ca_file: cannot be read"):
        asyncio.run(nothing.source.schemas())


ANSWERS: dict[str, Callable[[Registry], object]] = {
    "an error": lambda kept: setattr(kept, "down", True),
    "something else": lambda kept: kept.subjects.update({"home-losses-value": [{"id": "x"}]}),
}


@pytest.mark.parametrize("spoil", ANSWERS.values(), ids=ANSWERS.keys())
def test_another_answer_than_expected_is_an_outage(spoil: Callable[[Registry], object]) -> None:
    with registry() as kept:
        spoil(kept)
        with pytest.raises(TransportLost, match="registry of home-losses-value"):
            asyncio.run(avro_format(kept.url).source.schemas())


@pytest.mark.parametrize("said", [b"", b"garbage", b"HTTP/1.0", b"x" * 100_000], ids=len)
def test_what_is_no_answer_of_http_is_an_outage(said: bytes) -> None:
    """Another error would end the timer, or the start."""

    async def asked() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(said + b"\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await avro_format(url).source.schemas()

    with pytest.raises(TransportLost, match="registry of home-losses-value"):
        asyncio.run(asked())


def test_nobody_there_is_an_outage() -> None:
    with registry() as kept:
        url = kept.url
    with pytest.raises(TransportLost, match="does not answer"):
        asyncio.run(avro_format(url).source.schemas())


def test_a_schema_that_nothing_can_be_read_by_is_logged_once() -> None:
    async def lived(kept: Registry) -> Lines:
        log, stream = Lines(), avro_spec(kept)
        async with asking(sources(stream), log):
            kept.subjects["home-losses-value"][0]["schema"] = '"string"'
            kept.register("home-losses-value", EVENT, number=2)
            while len(log.of("schemas_fetched")) < 2:
                await asyncio.sleep(0.005)
        return log

    with registry() as kept:
        kept.register("home-losses-value", '"int"', number=1)
        log = asyncio.run(lived(kept))
    assert [line["id"] for line in log.of("schema_unreadable")] == [1]


def test_a_state_with_a_schema_that_is_none_halts() -> None:
    reading = avro_format().reading
    with pytest.raises(StateMismatch, match="schemas that this version reads"):
        reading.resumed([held(Schema(1, "AVRO", "{"), since=0)])
    for wrong in ({"what": "list"}, {"content": {"text": "{}"}}, {"number": 2**32}):
        with pytest.raises(StateMismatch, match="a schema's kind and text"):
            reading.resumed([structs.replace(held(Schema(1, "AVRO", "{}"), since=0), **wrong)])


# -- configuration ---------------------------------------------------------------------------------

REGISTRY = 'name = "avro", registry = "http://localhost"'


def loaded(tmp_path: Path, *, format_: str = "", more: str = "") -> Configuration:
    path = tmp_path / "shop.toml"
    path.write_text(joined_shop(of_stream=format_, of_assembly=more))
    return Configuration.load(path, {})


def test_a_subject_is_the_topics_unless_it_is_named(tmp_path: Path) -> None:
    outcomes = f"outcomes_format = {{ {REGISTRY} }}"
    (assembly,) = loaded(tmp_path, more=outcomes).assemblies()
    assert assembly.outcomes is not None
    assert assembly.outcomes.source is not None
    assert assembly.outcomes.source.subject == "outcomes-value"
    assert assembly.settings["outcomes_format"] == "avro, subject outcomes-value"
    named = f'outcomes_format = {{ {REGISTRY}, subject = "said" }}'
    assert loaded(tmp_path, more=named).assemblies()[0].digest != assembly.digest
    (plain,) = loaded(tmp_path).assemblies()
    assert plain.outcomes is None
    assert "outcomes_format" not in plain.settings


WRONG = {
    "requests without content": (
        "", f"requests_format = {{ {REGISTRY} }}", "reads no content of requests"),
    "no registry's format": ("", 'outcomes_format = "float32"', "is not for contents"),
    "an event of the assembly": (f"format = {{ {REGISTRY} }}", "", "must never differ"),
    "an unknown option": (
        "", f'outcomes_format = {{ {REGISTRY}, layout = "list" }}', "unknown option"),
    "HTTP, which writes JSON": (
        "", f"outcomes_format = {{ {REGISTRY} }}\n[http]\nrank_and_reward = true",
        "writes JSON outcomes"),
}  # fmt: skip


@pytest.mark.parametrize(("format_", "more", "said"), WRONG.values(), ids=WRONG.keys())
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, format_: str, more: str, said: str
) -> None:
    from streamdp.service.listeners import check_listeners

    configuration = loaded(tmp_path, format_=format_, more=more)

    def checked() -> None:
        configuration.assemblies()
        check_listeners(configuration)

    with pytest.raises(InvalidConfig, match=said):
        checked()


# -- commands --------------------------------------------------------------------------------------

COMMANDS = """
app = "shop"
[transport]
kind = "sqlite"
path = "{folder}/shop.db"
[topics.events]
budget = "1"
[streams.home]
input = "events"
start = "earliest"
actions = ["a", "b", "c"]
format = {{ name = "avro", registry = "{registry}" }}
[streams.home.learner]
epsilon = "1"
"""


def test_commands_ask_the_registry_once_they_are_called(tmp_path: Path) -> None:
    """`send` writes by the newest schema; `doctor` names the ids, and what is wrong."""

    def said(*words: str, ok: bool = True, standard_input: str = "") -> str:
        arguments = [*words, "--config", str(path)]
        result = run_command(arguments, input=standard_input)
        assert (result.exit_code == 0) is ok, result.output
        return result.output

    path = tmp_path / "streamdp.toml"
    with registry() as kept:
        path.write_text(COMMANDS.format(folder=tmp_path, registry=kept.url))
        kept.register("events-value", EVENT, number=3)
        kept.register("events-value", '"int"', number=4)
        said("check")
        assert kept.asked == []
        said("topics", "create")
        event = json.dumps({"key": "fr", "losses": [0.1, 0.9, 0.3]})
        assert "1 record sent" in said("send", standard_input=event)
        said("send", "--as-it-is", "--key", "fr", standard_input="no schema at all")
        told = said("doctor", "--sample", "10", ok=False)
        assert "ids 3" in told
        assert "its records are not used" in " ".join(told.split())
        assert "1 of 2 records unusable" in " ".join(told.split())
        form = f"avro,registry={kept.url},subject=events-value"
        place = f"sqlite:{tmp_path}/shop.db#events"
        replay = ["replay", "losses", place, "--actions", "a,b,c", "--format", form, "--json", "-"]
        result = run_command(replay)
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        assert (report["slots"], report["null_slots"]) == (2, 1)
        kept.down = True
        assert "refuses to answer" in " ".join(said("doctor", ok=False).split())


def test_send_writes_requests_and_outcomes_by_their_schemas(tmp_path: Path) -> None:
    """What an assembly's readers make of them is the JSON that is sent without a registry."""
    lists = {
        "name": "items",
        "type": {"type": "map", "values": {"type": "array", "items": "string"}},
    }
    item = {"name": "item", "type": "string"}
    content = {"grid": ["x", "y"], "list": ["z"]}
    lines = [{"request": "r1", "items": content}, {"request": "r1", "item": "x"}]
    path = tmp_path / "shop.toml"
    with registry() as kept:
        for number, of in enumerate((lists, item), start=1):
            schema = {"type": "record", "name": "E", "fields": [of]}
            kept.register(("requests-value", "outcomes-value")[number - 1], schema, number=number)
        both = [f'{what}_format = {{ name = "avro", registry = "{kept.url}" }}'
                for what in ("requests", "outcomes")]  # fmt: skip
        text = joined_shop(of_assembly="\n".join(both))
        for old, new in (("feedback", "losses"), ("reward", "loss")):
            text = text.replace(f'observes = "{old}"', f'observes = "{new}"')
        text = text.replace('path = "shop.db"', f'path = "{tmp_path}/shop.db"')
        text = text.replace('[streams.clicks.feedback]\ncontent = "reward"\n', "")
        path.write_text(text.replace('mode = "feedback"', 'mode = "rankers"'))
        for words in (["topics", "create"], ["send", "--assembly", "join", "--key", "fr"]):
            arguments = [*words, "--config", str(path)]
            given = "\n".join(map(json.dumps, lines))
            result = run_command(arguments, input=given)
            assert result.exit_code == 0, result.output
        configuration = Configuration.load(path, {})
        (assembly,) = configuration.assemblies()
        said: list[object] = []
        for reading, topic in zip(assembly.contents, ("requests", "outcomes"), strict=True):
            assert isinstance(reading, Reading)
            ((*_, value),) = asyncio.run(rows(configuration.technology(), topic))
            said.append(up_to_date(reading).content(value))
    assert said == [content, "x"]
