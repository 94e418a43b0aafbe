"""Where contexts are private, does the join carry them, and does nothing but contents say so?

A request's content has context, action and propensity; the event's has context, action and reward.
Whatever contents are replaced by, everything else of requests, events and the service is the same.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import numpy as np
import pytest

from streamdp.assembly.contents import Lists
from streamdp.assembly.join import Join, Positions
from streamdp.assembly.kept import KeptRequest
from streamdp.assembly.persons import Cap
from streamdp.assembly.public import PERSON_HEADER
from streamdp.assembly.recipes import PrivateRewards, Unreadable, Value
from streamdp.cli._loop_records import loop_records
from streamdp.client import ActionsCache, Answer, Loop, LoopTopics, Names, Request, Source, Why
from streamdp.client.arguments import check_fields
from streamdp.client.choosing import choose, hashed_prefix, held
from streamdp.client.requests import outcome_record, request_record
from streamdp.client.writing import Record
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import NO_ARM, SUMS
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policy import PARTS
from streamdp.core.releases import Identity
from streamdp.ports import Key, StreamTopics, Verdict
from streamdp.serve.access import Bucket, Gate
from streamdp.serve.asgi import Rejected
from streamdp.serve.ranking import AskedOne, AskedRank, Ranking, call_of
from streamdp.serve.traffic import Traffic
from streamdp.service.assembly_spec import AssemblySpec
from streamdp.service.config import Configuration
from streamdp.service.diagnosis import telling
from streamdp.service.listeners import check_listeners
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp.wire.formats import Format, renamed
from streamdp.wire.revising import LONGEST_NAME
from streamdp.wire.schemas import schema
from tests.service.test_noninterference_assembling import Life, differing
from tests.support.asking import asked
from tests.support.assembling_group import Group
from tests.support.assembly_mutants import CapsUnreadableForNobody, CapsWhatCanBeRead
from tests.support.batches import observe
from tests.support.loops import rows
from tests.support.shop_files import joined_shop
from tests.support.visits import CAP, SPEC

if TYPE_CHECKING:
    from streamdp.client.answers import Context

ACTIONS = ("boots", "a coat with a long name")
FIELDS = Contexts.read('{"device":["phone","tablet with a né"],"age":{"cuts":[18,65]}}')
NAMES = Names(ACTIONS, "pepper", FIELDS, "value")
AT = Identity("clicks", 0, b"home", 1, 0, 3, SUMS)
R1 = Request(b"home", "r-1")
WHO: list[Context] = [
    {"device": device, "age": age}
    for device in ("phone", "tablet with a né", "fridge")
    for age in (7, 44, 66, "?")
]
CONTEXT = """
[streams.clicks.context]
device = ["phone", "tablet with a né"]
age = { cuts = [18, 65] }
"""


def settings(*, name: str = '"json"\npadding = "fixed"', context: str = CONTEXT) -> str:
    """A shop with private contexts, in some format."""
    return joined_shop(
        actions='["boots", "a coat with a long name"]\nfallback_action = "boots"',
        feedback='content = "reward"\nsalt = "pepper"',
        tables=f'played = "value"\n[streams.clicks.format]\nname = {name}\n{context}',
        of_assembly='grace = "100ms"',
    )


JSON = settings()
SHOP = settings(name='"float32"')
ROOMY = JSON.replace('fallback_action = "boots"', 'fallback_action = "boots"\nroom = 2')
PLAIN = settings(context="")
"""Without contexts: contents name the action alone."""


def shop(folder: Path, text: str = JSON, more: str = "") -> Configuration:
    path = folder / "shop.toml"
    path.write_text(text + more)
    return Configuration.load(path, {})


def policy() -> Answer:
    """A policy that says one action to some cells, the other to others, and both to the rest."""
    parts = np.full((FIELDS.cells, 2), PARTS // 2)
    parts[::3], parts[1::3] = [PARTS, 0], [1, PARTS - 1]
    kept = held(parts.astype(np.uint32).reshape(-1), hashed_prefix("pepper", AT), NAMES)
    return Answer("boots", Why.PUBLISHED, 0, 1, 0, 3, 9, held=kept)


class Cache:
    """What an `ActionsCache` of one key answers."""

    def __init__(self, answer: Answer, names: Names = NAMES) -> None:
        self.answer, self.names = answer, names

    def choose(
        self,
        stream: str,
        key: Key,
        request: str,
        *,
        context: Context | None = None,
        exclude: Collection[str] = (),
    ) -> Answer:
        cell = self.names.cell(context)
        return choose(self.answer, request, cell, self.names.told(cell), exclude)

    def has_read(self, stream: str) -> bool:
        return True


# -- what is written -----------------------------------------------------------------------------


def drawn(who: Context, request: str = "r-1", answer: Answer | None = None) -> Answer:
    return Cache(answer or policy()).choose("clicks", b"home", request, context=who)


def public(record: Record) -> tuple[object, ...]:
    """What anybody may see of a record."""
    key, value, headers = record
    return key, len(value or b""), list(headers)


def test_a_request_says_in_its_content_what_was_shown_to_whom() -> None:
    choice = drawn({"device": "phone", "age": 44})
    key, value, headers = request_record(R1, choice=choice, person="p-1")
    assert json.loads(value or b"") == {
        "action": choice.action, "pscore": choice.probability,
        "context": {"device": "phone", "age": "18..65"},
    }  # fmt: skip
    jsonschema.validate(json.loads(value or b""), schema("request"))
    assert (key, list(headers)) == (
        b"home",
        [
            ("streamdp-request", b"r-1"),
            ("streamdp-release", b"0/1/0/3"),
            ("streamdp-person", b"p-1"),
        ],
    )
    with pytest.raises(InvalidConfig, match="has its choice as its content"):
        request_record(R1, choice=choice, content=Lists({"boots": ["x"]}))


def writes_the_propensity(choice: Answer) -> Record:
    """Mutant: it names the cell, beside a public table."""
    key, value, headers = request_record(R1, choice=choice)
    return key, value, [*headers, ("pscore", repr(choice.probability).encode())]


def pads_nothing(choice: Answer) -> Record:
    """Mutant: the length names the level."""
    key, value, headers = request_record(R1, choice=choice)
    return key, (value or b"").rstrip(), headers


def logs_the_choice(choice: Answer) -> Record:
    """Mutant: whoever reads logs learns the context."""
    assert not isinstance(choice.context, str)
    print(FIELDS.levels(choice.context.cell))  # the leak
    return request_record(R1, choice=choice)


@pytest.mark.parametrize(
    "answer", [policy(), Answer("boots", Why.UNKNOWN_KEY), Answer("hats", Why.STALE)]
)
def test_requests_differ_in_contents_alone(
    answer: Answer, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever is asked about: key, headers and length; and nothing is logged or represented."""
    seen, contents = [], set()
    with caplog.at_level(0):
        for who in WHO:
            choice = drawn(who, answer=answer)
            record = request_record(R1, choice=choice)
            seen.append((public(record), repr(choice.context), repr(choice.held)))
            contents.add(record[1])
    assert len(contents) == (len(WHO) if answer.action in ACTIONS else 1)
    assert all(one == seen[0] for one in seen)
    assert (caplog.text, *capsys.readouterr()) == ("", "", "")


@pytest.mark.parametrize("mutant", [writes_the_propensity, pads_nothing, logs_the_choice])
def test_a_client_that_tells_is_caught(
    mutant: Callable[[Answer], Record], capsys: pytest.CaptureFixture[str]
) -> None:
    seen = set()
    for who in WHO:
        record = mutant(drawn(who))
        seen.add((str(public(record)), capsys.readouterr().out))
    assert len(seen) > 1


def test_every_probability_fits_the_width() -> None:
    """Also the longest decimals, of the smallest parts."""
    rng = np.random.default_rng(1)
    told = NAMES.told(4)
    assert not isinstance(told, str)
    parts = [1, 3, PARTS - 1, PARTS, *rng.integers(1, PARTS, 5000).tolist()]
    parts += rng.integers(1, 2000, 1000).tolist()
    choices = [Answer(ACTIONS[1], Why.PUBLISHED, probability=part / PARTS) for part in parts]
    assert len({len(told.content(choice)) for choice in choices}) == 1


def test_send_writes_what_the_client_writes(tmp_path: Path) -> None:
    feedback = shop(tmp_path).streams["clicks"].feedback
    choice = drawn({"device": "phone", "age": 44})
    line = {"key": "home", "request": "r-1", "action": choice.action, "pscore": choice.probability}
    for context in ({"device": "phone", "age": 44}, "device=phone;age=18..65"):
        source = io.BytesIO(json.dumps({**line, "context": context}).encode())
        (read,) = loop_records(
            "f", source, mode="feedback", actions=ACTIONS, key=None, feedback=feedback
        )
        _, value, headers = request_record(R1, choice=replace_release(choice))
        assert read.record == (b"home", value, headers)
    refused: list[tuple[object, str]] = [
        (7, "context: is not usable"),
        ({"devce": "phone"}, "context: unknown field; expected device, age.*, got devce"),
    ]
    for unusable, why in refused:
        wrong = json.dumps({**line, "context": unusable}).encode()
        read_wrong = loop_records(
            "f", io.BytesIO(wrong), mode="feedback", actions=ACTIONS, key=None, feedback=feedback
        )
        with pytest.raises(InvalidConfig, match=why):
            list(read_wrong)


def replace_release(choice: Answer) -> Answer:
    """The same choice, of which nobody knows the release."""
    return Answer(choice.action, Why.STALE, probability=choice.probability, context=choice.context)


# -- what the join makes of it -------------------------------------------------------------------


@pytest.mark.parametrize("contexts", [True, False])
def test_a_name_that_came_since_stands_in_an_event_of_the_same_length(
    tmp_path: Path, contexts: bool
) -> None:
    """Whatever its length. What no action can be called makes a null event."""
    spec, format_ = spec_of(tmp_path, ROOMY if contexts else ROOMY.replace(CONTEXT, ""))
    later = (*ACTIONS, "gloves", LONGEST_NAME)
    asked = [*later, "x" * 101, "a\nb", ""]
    contents = [
        msgspec.json.encode({"action": name, **({"context": WHO[5]} if contexts else {})})
        for name in asked
    ]
    requests: list[Record] = [
        (b"home", content, [("streamdp-request", b"r%d" % at)])
        for at, content in enumerate(contents)
    ]
    outcomes = [outcome_record(Request(b"home", f"r{at}"), 1) for at in range(len(asked))]
    made = [value or b"" for _, value, _ in events(spec, requests, outcomes)]
    assert len({len(value) for value in made}) == 1
    first = FIELDS.cell(WHO[5]) * 4 if contexts else 0
    known = [*range(first, first + 4), *[NO_ARM] * 3]
    seen = observe(renamed(format_, later), made, [[]] * len(made))
    assert seen.played.tolist() == known
    assert (seen.gain > 0).tolist() == [arm != NO_ARM for arm in known]
    before = observe(format_, made, [[]] * len(made))
    assert before.played.tolist() == [*known[:2], *[NO_ARM] * 5]


def test_numbers_of_actions_cannot_name_one_that_comes_later(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="not the name of one that comes later"):
        shop(tmp_path, SHOP.replace('"boots"\n', '"boots"\nroom = 2\n', 1)).assemblies()


def spec_of(folder: Path, text: str = JSON) -> tuple[AssemblySpec, Format]:
    configuration = shop(folder, text)
    (spec,) = configuration.assemblies()
    format_ = configuration.streams["clicks"].format()
    assert format_.feedback is not None
    return spec, format_


def events(
    spec: AssemblySpec, requests: list[Record], outcomes: list[Record]
) -> list[tuple[Key, Value, Any]]:
    join = Join(spec.rules, spec.recipe, spec.encode, positions=Positions(0, 0, 0))
    for at, (key, value, headers) in enumerate(requests):
        join.request(at, at, key, headers, value)
    for at, (key, value, headers) in enumerate(outcomes):
        join.outcomes([500], [key], [headers], [value], next_offset=at + 1)
    return join.emit(len(requests))


@pytest.mark.parametrize("text", [JSON, SHOP], ids=["json", "float32"])
def test_events_hold_context_action_and_reward(tmp_path: Path, text: str) -> None:
    """As the stream reads them; headers that would tell are not copied; one length."""
    spec, format_ = spec_of(tmp_path, text)
    choices = [drawn(who, f"r{at}") for at, who in enumerate(WHO)]
    requests = [
        request_record(Request(b"home", f"r{at}"), choice=choice)
        for at, choice in enumerate(choices)
    ]
    told = [("streamdp-action", b"boots"), ("pscore", b"0.5"), ("streamdp-context", b"age=7")]
    requests[0] = (*requests[0][:2], [*requests[0][2], *told, ("page", b"7")])
    outcomes = [outcome_record(Request(b"home", f"r{at}"), 1) for at in range(0, len(WHO), 2)]
    made = events(spec, requests, outcomes)
    seen = observe(format_, [value for _, value, _ in made], [headers for *_, headers in made])
    arms = [
        FIELDS.cell(who) * 2 + ACTIONS.index(choice.action)
        for who, choice in zip(WHO, choices, strict=True)
    ]
    assert seen.played.tolist() == arms
    assert (seen.gain * 2 >> 20).tolist() == [1, -1] * (len(WHO) // 2)
    assert len({len(value or b"") for _, value, _ in made}) == 1
    assert [name for name, _ in made[0][2]] == ["streamdp-request", "streamdp-release", "page"]


@pytest.mark.parametrize(
    "content",
    [None, b"", b"\xff", b"[" * 5000, b'{"action":"boots"}', b'{"action":"hats","context":{}}',
     b'{"action":"boots","context":"device=phone"}', b'{"context":{},"action":""}'],
)  # fmt: skip
@pytest.mark.parametrize("text", [JSON, SHOP], ids=["json", "float32"])
def test_a_request_that_cannot_be_read_is_a_null_event(
    tmp_path: Path, text: str, content: Value
) -> None:
    """It takes its slot, adds to nothing, and has the length of the others; whatever came of it."""
    spec, format_ = spec_of(tmp_path, text)
    request = (b"home", content, [("streamdp-request", b"r-1")])
    again = request_record(Request(b"home", "r-1"), choice=drawn(WHO[0]))
    made = events(spec, [request, again], [outcome_record(R1, 1)])
    seen = observe(format_, [value for _, value, _ in made], [[], []])
    assert seen.played.tolist() == [NO_ARM, NO_ARM]  # the second repeats the first's id
    assert seen.unusable.all()
    assert len({len(value or b"") for _, value, _ in [*made, *events(spec, [again], [])]}) == 1


def test_without_fields_contents_name_the_action(tmp_path: Path) -> None:
    spec, format_ = spec_of(tmp_path, PLAIN)
    names = Names(ACTIONS, "pepper", None, "value")
    answer = Answer("boots", Why.UNKNOWN_KEY)
    choice = Cache(answer, names).choose("clicks", b"home", "r-1")
    record = request_record(R1, choice=choice)
    assert (json.loads(record[1] or b""), len(record[2])) == (
        {"action": "boots", "pscore": 1.0},
        1,
    )
    made = events(spec, [record, (b"home", b"{}", record[2])], [])
    assert observe(format_, [value for _, value, _ in made], [[], []]).played.tolist() == [
        0,
        NO_ARM,
    ]


def test_other_fields_are_another_assembly(tmp_path: Path) -> None:
    """`check --with-state` asks for a new epoch: the events of open requests would change."""
    text = JSON.replace("cuts = [18, 65]", "cuts = [18, 64]")
    assert spec_of(tmp_path, text)[0].digest != spec_of(tmp_path)[0].digest


# -- what the service shows ----------------------------------------------------------------------


def content(cell: int, action: int) -> bytes:
    told = NAMES.told(cell)
    assert not isinstance(told, str)
    return told.content(Answer(ACTIONS[action], Why.PUBLISHED, probability=0.5))


GARBAGE = b"\xff".ljust(len(content(0, 0)), b"{")
CONTENTS = [content(0, 0), content(7, 1), content(FIELDS.unknown, 0), GARBAGE]
CLICK: list[tuple[int, Value]] = [(300, b'{"reward":1}')]


def lived(
    spec: AssemblySpec, of: bytes, outcomes: list[tuple[int, Value]]
) -> tuple[dict[str, object], list[Value]]:
    life = Life(
        outcomes, of, group=Group(spec=spec, partitions=1), usual=content(1, 0)
    )  # fmt: skip
    return asyncio.run(life.lived()), life.events()


def service(folder: Path, cap: Cap | None = None) -> AssemblySpec:
    """The assembly over the topics of `Life`, in which all requests are of one person."""
    spec, _ = spec_of(folder)
    return replace(
        SPEC, recipe=spec.recipe, encode=spec.encode, actions=ACTIONS, most_at_once=3, cap=cap
    )


@pytest.mark.parametrize("cap", [None, CAP], ids=["no cap", "a cap"])
def test_contents_move_one_event(cap: Cap | None, tmp_path: Path) -> None:
    """Whoever the request is about and whatever came of it: commits, log, metrics, other events.

    Under a cap, which event of a person counts does not depend on the contents of another one.
    """
    spec = service(tmp_path, cap)
    plain, made = lived(spec, CONTENTS[0], [])
    own = {made[3]}
    for of in CONTENTS:
        other, others = lived(spec, of, CLICK)
        assert differing(plain, other) == []
        assert [at for at in range(len(made)) if made[at] != others[at]] == [3]
        own.add(others[3])
    assert len(own) == 1 + len(CONTENTS)
    assert len({len(value or b"") for value in {*made, *own}}) == 1


def _copies_the_propensity(patch: pytest.MonkeyPatch) -> None:
    """Mutant: an event's header has what the request's content says."""
    honest = Join._event

    def event(self: Join, number: int) -> Any:
        value = self._kept.record(number).value or b""
        key, encoded, headers = honest(self, number)
        return key, encoded, [*headers, ("pscore", value[:16])]

    patch.setattr(Join, "_event", event)


def _learns_levels(patch: pytest.MonkeyPatch) -> None:
    """Mutant: an action that nobody has listed is the first one from then on."""
    honest = PrivateRewards.question
    unlisted: list[bytes] = []

    def question(self: PrivateRewards, value: Value) -> tuple[int, str]:
        try:
            return honest(self, value)
        except Unreadable:
            unlisted.append(value or b"")
            raise

    def arm(self: PrivateRewards, value: Value) -> tuple[int, str]:
        cell, action = question(self, value)
        at = self.actions.index(action) + len(unlisted)
        return cell, self.actions[at % len(self.actions)]

    patch.setattr(PrivateRewards, "question", arm)


class CapsNobodyUnknown(Join):
    """Mutant: a request from somebody of whom nothing is known counts for no person."""

    def _losses(self, number: int, request: KeptRequest) -> tuple[float, ...]:
        if b"phone" not in (request.value or b"") and b"tablet" not in (request.value or b""):
            headers = [pair for pair in request.headers if pair[0] != PERSON_HEADER]
            request = request._replace(headers=headers)
        return super()._losses(number, request)


@pytest.mark.parametrize("mutant", [CapsNobodyUnknown, CapsUnreadableForNobody, CapsWhatCanBeRead])
def test_a_cap_by_private_contents_is_caught(
    mutant: type[Join], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later events of the person would say something of one of their requests."""
    spec = service(tmp_path, CAP)
    monkeypatch.setattr("streamdp.service.assembling.partition.Join", mutant)
    (_, plain), *others = (lived(spec, of, []) for of in (CONTENTS[0], *CONTENTS[2:]))
    moved = {at for _, events in others for at in range(len(plain)) if plain[at] != events[at]}
    assert moved - {3}


def _writes_short(spec: AssemblySpec) -> AssemblySpec:
    """Mutant: no blanks."""
    return replace(spec, encode=lambda losses: spec.encode(losses).rstrip())


@pytest.mark.parametrize("mutant", [_copies_the_propensity, _learns_levels])
def test_a_join_that_tells_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = service(tmp_path)
    plain, made = lived(spec, CONTENTS[0], [])
    mutant(monkeypatch)
    caught = []
    for of in (CONTENTS[1], GARBAGE):
        other, others = lived(spec, of, [])
        differs = [at for at in range(len(made)) if made[at] != others[at]]
        caught.append(bool(differing(plain, other)) or differs != [3])
    assert any(caught)


def test_an_event_whose_length_names_a_level_stops_the_join(tmp_path: Path) -> None:
    spec = _writes_short(service(tmp_path))
    request = request_record(R1, choice=drawn(WHO[0]))
    with pytest.raises(StateMismatch, match="its length would reveal"):
        events(spec, [request], [])


@pytest.mark.parametrize(
    ("changed", "verdict", "said"),
    [
        (lambda choice: request_record(R1, choice=choice), Verdict.GOOD, "one length"),
        (writes_the_propensity, Verdict.PROBLEM, "headers pscore say"),
        (pads_nothing, Verdict.PROBLEM, "name levels"),
    ],
)
def test_doctor_finds_requests_that_tell(
    changed: Callable[[Answer], Record], verdict: Verdict, said: str
) -> None:
    technology = log()
    for who in WHO:
        key, value, headers = changed(drawn(who))
        technology.log.append("requests", [(key, value)], headers=[headers], partition=0)
    topics = StreamTopics("shop", "join", "requests", headers=True, second_input="outcomes")
    for room in (0, 2):
        looked = telling(technology.administrator(), topics, count=100, room=room)
        found = asyncio.run(looked)
        assert (found.verdict, said in found.detail) == (verdict, True), found


def test_doctor_finds_requests_without_space_for_a_name_that_comes() -> None:
    """They have one length now, and another one as soon as the new action is shown."""
    technology = log()
    value = b'{"context":{"device":"phone"},"action":"boots"}'.ljust(112)
    technology.log.append("requests", [(b"fr", value)] * 2, partition=0)
    topics = StreamTopics("shop", "join", "requests", headers=True, second_input="outcomes")
    for room, verdict in ((0, Verdict.GOOD), (1, Verdict.PROBLEM)):
        found = asyncio.run(telling(technology.administrator(), topics, count=9, room=room))
        assert (found.verdict, "112 bytes cannot hold" in found.detail) == (verdict, room == 1)


# -- a loop, and rank over HTTP ------------------------------------------------------------------

TOPICS = LoopTopics("requests", "outcomes")


def log() -> MemoryTechnology:
    memory = MemoryLog()
    for topic in TOPICS:
        memory.create(topic, partitions=1)
    return MemoryTechnology(memory)


async def test_a_loop_writes_private_requests(tmp_path: Path) -> None:
    """What a program chose and what came of it is one event, of its own arm."""
    spec, format_ = spec_of(tmp_path)

    technology = log()
    async with Loop(technology.producer, Cache(policy()), stream="clicks", topics=TOPICS) as loop:
        shown = [loop.choose(b"home", context=who) for who in WHO]
        loop.outcome(shown[3], 1)
        assert await asyncio.to_thread(loop.flush)
    requests = [row[2:] for row in await rows(technology, "requests")]
    outcomes = [row[2:] for row in await rows(technology, "outcomes")]
    made = events(
        spec,
        [(key, value, headers) for key, headers, value in requests],
        [(key, value, headers) for key, headers, value in outcomes],
    )
    seen = observe(format_, [value for _, value, _ in made], [[]] * len(made))
    assert (seen.played // 2).tolist() == [FIELDS.cell(who) for who in WHO]
    assert [ACTIONS[arm % 2] for arm in seen.played] == [one.action for one in shown]
    assert np.flatnonzero(seen.gain > 0).tolist() == [3]


class Known:
    """What `Ranking` asks of a service's knowledge."""

    def __init__(self, configuration: Configuration) -> None:
        from streamdp.service.listeners import about_of

        self.about = {"clicks": about_of(configuration, "clicks")}
        self.cache = Cache(policy())


def test_rank_with_private_contexts_is_for_inside_the_trust_boundary(tmp_path: Path) -> None:
    """Refused unless the configuration says so; then it writes what the client writes."""
    known: Any = Known(shop(tmp_path))
    asked = AskedRank("home", "r-1", context={"device": "phone", "age": 44})

    async def run(private_contexts: bool) -> list[Any]:
        technology = log()
        ranking = Ranking(
            known, {"clicks": TOPICS}, technology.producer, seconds=5, within=5, clock=lambda: 0.0,
            private_contexts=private_contexts,
        )  # fmt: skip
        async with ranking.writing():
            (told,), durable = await ranking._rank("clicks", [asked], durable=True)
            assert (told.context, durable) == ("", True)
        return await rows(technology, "requests")

    with pytest.raises(Rejected, match="contexts of this stream are private"):
        asyncio.run(run(False))
    ((_, _, key, headers, value),) = asyncio.run(run(True))
    expected = request_record(R1, choice=drawn({"device": "phone", "age": 44}))
    assert (key, value, list(headers)) == (expected[0], expected[1], list(expected[2]))


PHONE = json.dumps({"device": "phone", "age": 44}).encode()
DEEP = b"[" * 3000 + b"]" * 3000
CONTEXTS: dict[bytes, Context] = {
    PHONE: {"device": "phone", "age": 44},
    b'{"device":"phone","age":null}': {"device": "phone"},
    b'{"device":"phone","age":true}': {"device": "phone"},
    b'{"device":"phone","age":1e400}': {"device": "phone"},
    b'{"device":"phone","age":NaN}': {"device": "phone"},
    b'{"device":"phone","age":-Infinity}': {"device": "phone"},
    b'{"device":"phone","age":' + b"9" * 5000 + b"}": {"device": "phone"},
    b'{"device":["phone"],"age":44}': {"age": 44},
    b'{"device":{"phone":1},"age":44}': {"age": 44},
    b'{"device":' + DEEP + b',"age":44}': {"age": 44},
    b'{"device":"[[[{","x":' + DEEP + b',"age":44}': {"age": 44},
    b'{"device":"\\ud83d","age":44}': {"age": 44},
    b'{"device":"\xff","age":44}': {"age": 44},
    b'{"device":"\t\n\0\x7f","age":44}': {"age": 44},
    b'{"\\ud83d":"phone","age":44}': {"age": 44},
    b'{"devcie":"phone","age":44}': {"age": 44},
    b'{"device":"phone","device":7,"age":44}': {"age": 44},
    b"{}": {}, b"null": {}, b"true": {}, b"1e400": {}, b"NaN": {}, b'"device=phone"': {},
    b"[]": {}, b'[{"device":"phone"}]': {}, DEEP: {},
}  # fmt: skip
"""Contexts as a call may have them, and what each of them is."""


def ranked_over_http(
    configuration: Configuration, context: bytes, exclude: bytes = b"[]"
) -> tuple[Record | None, dict[str, object]]:
    """The record of one request, and what else of it is seen: alone, and in a batch of three."""
    known: Any = Known(configuration)
    known.cache = ActionsCache(lambda: None, [known.about["clicks"].source])  # type: ignore[arg-type, return-value]
    known.cache._streams["clicks"].current()
    known.cache._streams["clicks"].catalogue.current()
    traffic, technology = Traffic(), log()
    ranking = Ranking(
        known, {"clicks": TOPICS}, technology.producer, seconds=5, within=5, clock=lambda: 0.0,
        private_contexts=True,
    )  # fmt: skip

    async def answer(scope: Any, receive: Any) -> Any:
        return await ranking.answer(scope, receive, call_of(scope) or b"")

    async def run() -> list[Any]:
        gate = Gate(answer, token=lambda: None, bucket=Bucket(1e9, lambda: 0.0), traffic=traffic)
        one = b'{"key":"home","request":"r-%d","context":%b,"exclude":%b}'
        calls = {
            "rank": one % (1, context, exclude),
            "ranks": b'{"requests":[' + b",".join(
                one % ((at, context, exclude) if at == 3 else (at, PHONE, b"[]"))
                for at in (2, 3, 4)) + b"]}",
        }  # fmt: skip
        async with ranking.writing():
            answers = [
                await asked(gate, f"/v1/streams/clicks/{call}", method="POST", body=body)
                for call, body in calls.items()
            ]
        return [(answer.status, answer.headers) for answer in answers]

    answers = asyncio.run(run())
    written = [row[2:] for row in asyncio.run(rows(technology, "requests"))]
    records: list[Record] = [(key, value, list(headers)) for key, headers, value in written]
    seen: dict[str, object] = {
        "answers": answers,
        "metrics": dict(traffic.requests),
        "requests": [public(record) for record in records],
        "others": [record for at, record in enumerate(records) if at not in (0, 2)],
    }
    return (records[0] if records else None), seen


EXCLUSIONS: dict[bytes, Collection[str]] = {
    b"[]": (), b"null": (), b"7": (), b"[7,null,[],NaN]": (), b'["\\ud83d"]': (),
    b'{"boots":1}': (), b'"boots"': (),
    b'["boots"]': ("boots",), b'["hats","boots",1e400]': ("boots",),
    json.dumps(ACTIONS).encode(): ACTIONS,
    json.dumps([*ACTIONS, "", DEEP.decode()]).encode(): ACTIONS,
}  # fmt: skip
"""Exclusions as a call may have them, and what each of them is."""


def even(levels: Context, exclude: Collection[str]) -> Answer:
    """What a cache answers to a key without a release."""
    source = Source(StreamTopics("shop", "clicks", "in"), "boots", NAMES)
    known = ActionsCache(lambda: None, [source])  # type: ignore[arg-type, return-value]
    known._streams["clicks"].current()
    known._streams["clicks"].catalogue.current()
    return known.choose("clicks", b"home", "r-1", context=levels, exclude=exclude)


def unanswered(seen: Mapping[str, object]) -> dict[str, object]:
    """All but the length of the answers, which name the action to who asks."""
    answers: Any = seen["answers"]
    short = [(status, headers.keys()) for status, headers in answers]
    return {**seen, "answers": short}


def test_no_private_exclusion_changes_more_than_its_request_s_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is refused and no record is missing: not even where nothing is allowed."""
    configuration, contents = shop(tmp_path), set()
    plain = unanswered(ranked_over_http(configuration, PHONE)[1])
    for exclude, names in EXCLUSIONS.items():
        record, seen = ranked_over_http(configuration, PHONE, exclude)
        expected = request_record(R1, choice=even(CONTEXTS[PHONE], names))
        assert record == (expected[0], expected[1], list(expected[2])), exclude[:40]
        assert unanswered(seen) == plain, exclude[:40]
        contents.add(expected[1])
    assert len(contents) >= 3
    assert caplog.text == ""


def test_no_private_context_changes_more_than_its_request_s_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever stands there is a level or `other`: nothing is refused, no record is missing."""
    configuration = shop(tmp_path)
    _, plain = ranked_over_http(configuration, PHONE)
    assert plain["metrics"] == {"2xx": 2}
    for context, levels in CONTEXTS.items():
        record, seen = ranked_over_http(configuration, context)
        expected = request_record(R1, choice=even(levels, ()))
        assert record == (expected[0], expected[1], list(expected[2])), context[:40]
        assert seen == plain, context[:40]
    assert caplog.text == ""
    record, cut_off = ranked_over_http(configuration, b'{"device":"phone"')
    assert (record, cut_off["metrics"]) == (None, {"4xx": 2})


def _refuses(patch: pytest.MonkeyPatch) -> None:
    """Mutant: what is no level is refused."""
    patch.setattr("streamdp.serve.ranking._one_rank", msgspec.json.Decoder(AskedOne).decode)


def _refuses_fields(patch: pytest.MonkeyPatch) -> None:
    """Mutant: as of public contexts, a field that is not declared is refused."""
    honest = ActionsCache.choose

    def choose(
        self: ActionsCache, *asked: Any, context: Context | None = None, exclude: Any
    ) -> Answer:
        check_fields(context or {}, NAMES)
        return honest(self, *asked, context=context, exclude=exclude)

    patch.setattr(ActionsCache, "choose", choose)


@pytest.mark.parametrize(
    ("mutant", "context"),
    [
        (_refuses, b'{"device":"phone","age":null}'),
        (_refuses, b'{"device":"phone","age":NaN}'),
        (_refuses_fields, b'{"devcie":"phone","age":44}'),
    ],
)
def test_a_service_that_refuses_private_contexts_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None],
    context: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    plain, seen = (ranked_over_http(shop(tmp_path), of)[1] for of in (PHONE, context))
    assert seen["metrics"] != plain["metrics"]
    assert seen["requests"] != plain["requests"]


def test_private_contexts_over_http_need_rank(tmp_path: Path) -> None:
    for more, wrong in (("", True), ("rank_and_reward = true\n", False)):
        http = f'[http]\nlisten = "127.0.0.1:8080"\nprivate_contexts = true\n{more}'
        configuration = shop(tmp_path, more=http)
        if wrong:
            with pytest.raises(InvalidConfig, match=r"http\.private_contexts: without rank_and_"):
                check_listeners(configuration)
        else:
            check_listeners(configuration)
