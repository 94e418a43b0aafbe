"""Do contexts come through configuration, records, engine, client and HTTP as they went in?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
import pytest

from streamdp.assembly.public import TELLING
from streamdp.client import Answer, Names, Why
from streamdp.client.answers import Context
from streamdp.client.choosing import choose, hashed_prefix, held
from streamdp.client.requests import Request, request_record
from streamdp.client.table import Table
from streamdp.core.engine import Engine
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import NO_ARM, SUMS
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.evidence import STAYS_AWAY, Known
from streamdp.core.evidence.policy import PARTS, policy_of
from streamdp.core.evidence.policy_posterior import NoiseVariance
from streamdp.core.evidence.released_tables import ReleasedTables
from streamdp.core.grid import UNIT
from streamdp.core.kinds.recipe import config_of
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.core.randomness import SeededRandomness
from streamdp.core.releases import Identity
from streamdp.lab.logs import ReadOptions
from streamdp.lab.logs.shown_topics import topic_log
from streamdp.ports import Headers, Partition, Published, Records, StreamTopics, Verdict
from streamdp.serve.asgi import Rejected
from streamdp.serve.lookups import check_public
from streamdp.service.config import Configuration
from streamdp.service.diagnosis import records
from streamdp.service.listeners import about_of
from streamdp.service.spec import StreamSpec
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import Format, configure
from streamdp.wire.retracing import Method
from tests.support.batches import feedback_batch, headers_of, observe
from tests.support.calling import Streamdp
from tests.support.histories import nothing_known, policy_after
from tests.support.shop_files import FEEDBACK_SHOP, read
from tests.wire.test_formats import LONGEST

if TYPE_CHECKING:
    from streamdp.ports import Administrator
    from streamdp.serve.knowledge import Knowledge

ACTIONS = ("boots", "coats")
FIELDS = Contexts.read('{"device":["phone","desktop"],"age":{"cuts":[18,65]}}')
ARMS = FIELDS.arms(ACTIONS)
CONTEXT = """
[streams.clicks.context]
device = ["phone", "desktop"]
age = { cuts = [18, 65] }
"""
WITHOUT = FEEDBACK_SHOP.replace('["a", "b", "c"]', '["boots", "coats"]\nfallback_action = "boots"')
SHOP = WITHOUT + CONTEXT
shop = partial(read, text=SHOP)


def learner(**options: str) -> PolicyLearner:
    return FEEDBACK_RECIPES["policy_contexts"](
        actions=ARMS, epsilon="1/2", context=FIELDS, **options
    )


# -- configuration -------------------------------------------------------------------------------


def test_the_table_of_contexts_makes_the_learner_the_format_and_the_names(tmp_path: Path) -> None:
    configuration = shop(tmp_path)
    spec = configuration.spec("clicks")
    assert (spec.learner.recipe.name, spec.learner.actions) == ("policy_contexts", ARMS)
    assert spec.format.feedback is not None
    assert (spec.format.feedback.arms, spec.format.feedback.contexts) == (ARMS, FIELDS)
    names = about_of(configuration, "clicks").source.names
    assert names == Names(ACTIONS, "pepper", FIELDS, "header")
    assert spec.learner.recipe.experiment(actions=len(ARMS)) is None  # none across cells


@pytest.mark.parametrize(
    ("instead", "more", "complaint"),
    [
        (('observes = "feedback"', 'observes = "losses"'), "", "context: only of streams"),
        (("[streams.clicks.learner]", '[streams.clicks.learner]\nrecipe = "policy_blocks"'), "",
         "learner.recipe: does not go together with a table of contexts"),
        (("[streams.clicks.learner]", '[streams.clicks.learner]\ncontext = "{}"'), "",
         "does not go together with a table of contexts; .* got an option `context`"),
        ((CONTEXT, ""),
         '[streams.clicks.learner]\nepsilon = "1/2"\n', "twice"),
        (('device = ["phone", "desktop"]', "device = []"), "", "context.device: no levels"),
        (('device = ["phone", "desktop"]', f"device = {json.dumps([str(n) for n in range(99)])}"),
         f"hour = {{ cuts = {list(range(20))} }}\n", "context: the table is too large"),
        (('epsilon = "1/2"', 'epsilon = "1/2"\nplayed = "value"'), "",
         "format.padding: an event's length would tell its context"),
        (('epsilon = "1/2"', 'epsilon = "1/2"\nplayed = "value"'),
         '[streams.clicks.format]\nname = "float16"\n', "one number and no action"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_hold_is_refused(
    tmp_path: Path, instead: tuple[str, str], more: str, complaint: str
) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        shop(tmp_path, instead=instead, more=more).spec("clicks")


def test_the_recipe_needs_the_table(tmp_path: Path) -> None:
    """Otherwise every event would be in one cell, and nobody would know."""
    path = tmp_path / "shop.toml"
    path.write_text(WITHOUT.replace("epsilon", 'recipe = "policy_contexts"\nepsilon'))
    with pytest.raises(InvalidConfig, match=r"streams\.clicks\.context: missing"):
        Configuration.load(path, {})


# -- records -------------------------------------------------------------------------------------

FORMATS = {
    f"{name} {played} {options}": configure(
        name,
        feedback=Feedback(ACTIONS, "reward", played, contexts=FIELDS),  # type: ignore[arg-type]
        options=options,
    )
    for name, played, options in (
        ("json", "header", {}), ("json", "value", {"padding": "fixed"}),
        ("float32", "header", {}), ("float16", "header", {"frames": True}),
        ("float32", "value", {}), ("float32", "value", {"frames": True, "prefix": "confluent"}),
    )
}  # fmt: skip


@pytest.mark.parametrize("format_", FORMATS.values(), ids=list(FORMATS))
def test_what_is_sent_is_observed_in_its_cell(format_: Format) -> None:
    """Every arm, alone and in frames; in value mode no header says anything."""
    groups = [[3, 0, len(ARMS) - 1]] if format_.frames else [[arm] for arm in range(len(ARMS))]
    values = [format_.encode(np.full(len(of), 0.25, np.float32), played=of) for of in groups]
    longest = [format_.encode(np.full(len(of), LONGEST, np.float32), played=of) for of in groups]
    headers = [headers_of(format_, of) for of in groups]
    seen = observe(format_, values, headers)
    assert seen.played.tolist() == [arm for of in groups for arm in of]
    assert (seen.gain == -(1 << 18)).all()
    assert not seen.unusable.any()
    assert format_.feedback is not None
    if format_.feedback.played == "value":
        assert headers == [[]] * len(groups)
        assert len({len(value) for value in values + longest}) == 1  # no length names a level
        public = [("streamdp-context", b"device=phone"), ("streamdp-action", b"boots")]
        said = observe(format_, values, [public] * len(values))
        assert said.played.tolist() == seen.played.tolist()
    assert format_.settings()["context"] == str(FIELDS)


@pytest.mark.parametrize(
    ("headers", "cell"),
    [
        ([("streamdp-context", b"device=phone;age=3")], {"device": "phone", "age": 3}),
        ([("streamdp-context", b"age=70;colour=red")], {"age": 70}),
        ([("streamdp-context", b"device=fridge")], {}),
        ([], {}),
        ([("streamdp-context", b"device=phone"), ("streamdp-context", b"device=phone")], {}),
        ([("streamdp-context", None)], {}),
        ([("streamdp-context", b"\xff")], {}),
    ],
)
def test_the_header_names_the_cell(
    headers: list[tuple[str, bytes | None]], cell: dict[str, object]
) -> None:
    """What is missing, twice or unreadable is `other`, for the arm that the other header names."""
    format_ = FORMATS["json header {}"]
    at = FIELDS.cell(cell) * 2
    for action, arm in ((b"coats", at + 1), (b"boots", at), (b"hats", NO_ARM), (None, NO_ARM)):
        given = [("streamdp-action", action), *headers]
        assert observe(format_, [b'{"reward":1}'], [given]).played.tolist() == [arm]


def test_contexts_in_contents_are_not_read_from_there_in_header_mode() -> None:
    """A content that decides a public cell would publish itself."""
    told = b'{"context":{"device":"phone"},"action":"coats","reward":1}'
    headers = [("streamdp-action", b"boots")]
    seen = observe(FORMATS["json header {}"], [told], [headers])
    assert seen.played.tolist() == [FIELDS.unknown * 2]


@pytest.mark.parametrize(
    ("event", "cell"),
    [
        ({"context": {"device": "phone", "age": 20}}, {"device": "phone", "age": 20}),
        ({"context": {"device": 7, "age": "x", "more": [1]}}, {}),
        ({"context": {}}, {}),
        ({"context": "device=phone"}, None),
        ({}, None),
    ],
)
def test_the_content_names_the_cell(
    event: dict[str, object], cell: dict[str, object] | None
) -> None:
    """An unreadable context is unusable content: it takes its slot and adds to nothing."""
    format_ = FORMATS["json value {'padding': 'fixed'}"]
    value = msgspec.json.encode({"action": "coats", "reward": 1, **event})
    arm = NO_ARM if cell is None else FIELDS.cell(cell) * 2 + 1
    seen = observe(format_, [value], [[]])
    assert (seen.played.tolist(), seen.unusable.tolist()) == ([arm], [cell is None])


def test_frames_number_cells_and_actions() -> None:
    """A number beyond the table is `other`; a header of a wrong length makes all rows `other`."""
    format_ = FORMATS["float16 header {'frames': True}"]
    value = format_.encode(np.ones(2, np.float32), played=[0, 0])
    actions = ("streamdp-actions", np.array([1, 0], "<u4").tobytes())
    for cells, expected in (
        ([2, 99], [5, FIELDS.unknown * 2]),
        ([2], [FIELDS.unknown * 2 + 1, FIELDS.unknown * 2]),
    ):
        header = ("streamdp-contexts", np.array(cells, "<u4").tobytes())
        assert observe(format_, [value], [[actions, header]]).played.tolist() == expected
    beyond = ("streamdp-actions", np.array([2, 2**32 - 1], "<u4").tobytes())
    assert observe(format_, [value], [[beyond]]).played.tolist() == [NO_ARM] * 2


def test_raw_rows_number_cells_and_actions() -> None:
    """Numbers beyond the table, and rows of a wrong length, in private contents."""
    format_ = FORMATS["float32 value {}"]
    row = np.zeros(1, dtype=[("cell", "<u4"), ("action", "<u4"), ("reward", "<f4")])
    expected = {(2, 1): 5, (10**9, 0): FIELDS.unknown * 2, (0, 2): NO_ARM, (0, 2**32 - 1): NO_ARM}
    for (cell, action), arm in expected.items():
        row["cell"], row["action"], row["reward"] = cell, action, 1
        assert observe(format_, [row.tobytes()], [[]]).played.tolist() == [arm]
    for wrong in (b"", row.tobytes()[:-1], row.tobytes() * 2, None):
        seen = observe(format_, [wrong], [[]])
        assert (seen.played.tolist(), seen.unusable.tolist()) == ([NO_ARM], [True])


# -- the engine ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, len(ARMS) // 2, len(ARMS) + 1, 12_012])
def test_a_learner_of_other_arms_than_the_table_has_is_refused(count: int) -> None:
    with pytest.raises(InvalidConfig, match="the table does not fit"):
        FEEDBACK_RECIPES["policy_contexts"](
            actions=[str(arm) for arm in range(count)], epsilon="1", context=FIELDS
        )


def test_two_arms_stand_for_any_number() -> None:
    """Who reads a ledger asks a learner of two arms for its noise and its numbers an arm."""
    two = FEEDBACK_RECIPES["policy_contexts"](actions=["0", "1"], epsilon="1/2", context=FIELDS)
    assert str(learner()).endswith(") of 2 actions in 12 contexts")
    assert str(two).endswith(") of 2 actions in 12 contexts")
    assert (two.charge, two.sums_scale) == (learner().charge, learner().sums_scale)
    assert policy_after(two, nothing_known(two), np.zeros(1, np.int64)).tolist() == [
        [PARTS // 2] * 24
    ]
    assert isinstance(two.rule, ContextModel)
    with pytest.raises(InvalidConfig, match="another table"):
        two.rule.policy(
            np.zeros((1, 2, 9)), np.zeros(1, np.int64), np.ones(1, np.int64), NoiseVariance(1.0)
        )


def test_a_stream_learns_what_is_best_in_each_cell() -> None:
    """Phones want boots, desktops coats; learned through the engine, with its noise."""
    machine = Engine(
        stream="clicks", partition=0, learner=learner(), budget="1/2",
        randomness=SeededRandomness(1),
    )  # fmt: skip
    rng, slots = np.random.default_rng(1), 40_000
    device, age, action = (rng.integers(0, most, slots) for most in (3, 4, 2))
    rate = np.where(device == action, 0.3, 0.1)
    gain = np.where(rng.random(slots) < rate, 1 << 19, -(1 << 19))
    releases = machine.apply_batch(
        feedback_batch(
            [b"home"], np.zeros(slots, np.int64),
            ((device * 4 + age) * 2 + action).astype(np.int32), gain, np.arange(slots),
        )
    )  # fmt: skip
    blocks = [release for release in releases if release.kind == SUMS]
    assert len(blocks) == 30  # of 1, 2, 3, 4, 6, … 2217 and ten times 3200 slots
    assert all(len(release.policy or b"") == 4 * len(ARMS) for release in blocks)
    policy = machine.in_force(b"home")
    assert policy is not None
    table = policy.reshape(3, 4, 2)
    assert (table.sum(axis=2) == PARTS).all()
    assert (table[0, :, 0] > 0.9 * PARTS).all()
    assert (table[1, :, 1] > 0.9 * PARTS).all()
    named = machine.policy(b"home", {"device": "desktop", "age": 31})
    assert named == dict(zip(("boots", "coats"), table[1, 1] / PARTS, strict=True))
    assert machine.policy(b"home", {}) == dict(
        zip(("boots", "coats"), table[2, 3] / PARTS, strict=True)
    )
    assert machine.policy(b"nobody", {}) is None


@pytest.mark.parametrize("context", [None, {"devise": "phone"}, "device=phone"])
def test_a_call_without_the_declared_fields_is_refused(context: Any) -> None:
    """A mistake of code: nothing is charged. What a field holds refuses nothing."""
    machine = Engine(
        stream="clicks", partition=0, learner=learner(), budget="1/2",
        randomness=SeededRandomness(1),
    )  # fmt: skip
    with pytest.raises(InvalidConfig, match=r"context: of other fields; expected .*device, age"):
        machine.observe(b"home", action="boots", reward=1, context=context)
    with pytest.raises(InvalidConfig, match="context: of other fields"):
        machine.policy(b"home", context)
    with pytest.raises(InvalidConfig, match="action: unknown; expected boots, coats, or None"):
        machine.observe(b"home", action=ARMS[0], reward=1, context={})
    assert machine.position == 0
    machine.observe(b"home", action="boots", reward=1, context={"device": [], "age": float("nan")})
    assert machine.position == 1


# -- the client ----------------------------------------------------------------------------------

AT = Identity("clicks", 0, b"home", 1, 0, 3, SUMS)


def answer(policy: np.ndarray) -> Answer:
    kept = held(policy.astype(np.uint32), hashed_prefix("pepper", AT), names("header"))
    return Answer("boots", Why.PUBLISHED, 0, 1, 0, 3, 9, held=kept)


def test_a_choice_is_drawn_from_the_policy_of_its_cell() -> None:
    """With its probability there; certain cells give their action to every request."""
    policy = np.zeros((FIELDS.cells, 2))
    policy[:, 0] = PARTS
    policy[5] = [0, PARTS]
    policy[7] = [PARTS // 4, PARTS - PARTS // 4]
    known, drawn = answer(policy), set()
    for at in range(200):
        for cell, action in ((0, "boots"), (5, "coats"), (FIELDS.unknown, "boots")):
            choice = choose(known, f"r-{at}", cell)
            assert (choice.action, choice.probability) == (action, 1.0)
        choice = choose(known, f"r-{at}", 7, "device=desktop")
        drawn.add((choice.action, choice.probability, choice.context))
    assert drawn == {("boots", 0.25, "device=desktop"), ("coats", 0.75, "device=desktop")}


def test_a_policy_adds_up_in_each_cell() -> None:
    sound = np.full(4, PARTS // 2, "<u4")
    assert policy_of(sound.tobytes(), actions=2, cells=2).tolist() == sound.tolist()
    wrong = np.array([0, PARTS - 1, 1, PARTS], "<u4")
    with pytest.raises(InvalidConfig, match="sum of parts; expected 16777216, got 16777215"):
        policy_of(wrong.tobytes(), actions=2, cells=2)


def names(played: str = "header") -> Names:
    return Names(ACTIONS, "pepper", FIELDS, played)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("played", "context", "header"),
    [
        ("header", {"device": "phone", "age": 44}, "device=phone;age=18..65"),
        ("header", {"device": "fridge"}, ""),
        ("header", None, ""),
    ],
)
def test_only_a_public_context_leaves_in_a_header(
    played: str, context: Context | None, header: str
) -> None:
    """As levels and bins; `other` is left out."""
    of = names(played)
    cell = of.cell(context)
    choice = choose(answer(np.full((12, 2), PARTS // 2)), "r-1", cell, of.told(cell))
    _, value, headers = request_record(Request(b"home", "r-1"), choice=choice)
    assert (choice.context, dict(headers).get("streamdp-context")) == (
        header,
        header.encode() or None,
    )
    assert value is None


def test_private_contexts_are_not_asked_for_over_http(tmp_path: Path) -> None:
    """They would leave the process that knows the person; public ones are answered."""
    padded = '[streams.clicks.format]\nname = "json"\npadding = "fixed"\n'
    private = shop(
        tmp_path, instead=('epsilon = "1/2"', 'epsilon = "1/2"\nplayed = "value"'), more=padded
    )
    knowledge = cast("Knowledge", SimpleNamespace(about={"clicks": about_of(private, "clicks")}))
    with pytest.raises(Rejected, match="contexts of this stream are private"):
        check_public(knowledge, "clicks")
    public = about_of(shop(tmp_path), "clicks")
    check_public(cast("Knowledge", SimpleNamespace(about={"clicks": public})), "clicks")


def test_the_fallback_keeps_the_public_context() -> None:
    fallback = Answer("boots", Why.UNKNOWN_KEY)
    assert choose(fallback, "r-1", 5, "device=phone").context == "device=phone"
    assert choose(fallback, "r-1") is fallback


def test_a_context_where_there_are_no_fields_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="context: of a stream without fields"):
        Names(ACTIONS, "").cell({"device": "phone"})
    assert Names(ACTIONS, "").cell(None) == 0
    assert (Names(ACTIONS, "").cells, Names(ACTIONS, "").arms) == (1, ACTIONS)


def opening_line(spec: StreamSpec) -> bytes:
    """The first policy of a key."""
    machine = replace(spec, randomness=SeededRandomness(1)).engine(0)
    nothing = np.zeros(1, dtype=np.int64)
    batch = feedback_batch([b"home"], nothing, nothing.astype(np.int32), nothing, nothing)
    line = spec.lines.action(machine.apply_batch(batch)[0])
    assert line is not None
    return line


def test_a_line_says_its_fields_and_levels(tmp_path: Path) -> None:
    """A reader needs the salt alone; what it knew of other levels does not matter."""
    configuration = shop(tmp_path)
    line = opening_line(configuration.spec("clicks"))
    source = about_of(configuration, "clicks").source
    other = Contexts.read('{"device":["desktop","phone"],"age":{"cuts":[18,65]}}')
    for known in (source.names, Names(salt="pepper"), Names(ACTIONS, "pepper", other)):
        table = Table(replace(source, names=known), most_keys=9)
        list(table.apply([Published(0, 0, b"home", line)]))
        assert table.answers[b"home"].why is Why.PUBLISHED
        assert table.names == source.names


def test_a_private_context_stays_private_whatever_a_line_says(tmp_path: Path) -> None:
    """A key that is idle since the epoch in which contexts were public has a line that says so."""
    configuration = shop(tmp_path)
    spec, known = configuration.spec("clicks"), about_of(configuration, "clicks").source
    assert known.names is not None
    line = opening_line(spec)
    for played, value in (("header", False), ("value", True)):
        source = replace(known, names=replace(known.names, played=played))  # type: ignore[arg-type]
        table = Table(source, most_keys=9)
        list(table.apply([Published(0, 0, b"home", line)]))
        held = table.answers[b"home"].held
        assert held is not None
        for names in (held.names, table.names):
            choice = choose(table.answers[b"home"], "r-1", 5, names.told(5))
            _, content, headers = request_record(Request(b"home", "r-1"), choice=choice)
            assert (content is not None) is value
            assert TELLING.isdisjoint(dict(headers)) is value


# -- what operators are told ---------------------------------------------------------------------


def test_as_many_keys_as_fit_get_a_learner(tmp_path: Path) -> None:
    """A number of keys that does not fit is refused, before anything starts."""
    default = shop(tmp_path).spec("clicks")
    assert default.most_keys == min(10**6, (1 << 30) // default.row_bytes)
    small = shop(tmp_path, more="[streams.clicks.limits]\nmemory = 1048576\n").spec("clicks")
    assert small.most_keys == (1 << 20) // small.row_bytes < 2000
    limits = "[streams.clicks.limits]\nmemory = 1048576\nmost_keys = 100000\n"
    with pytest.raises(InvalidConfig, match=r"limits\.most_keys: rows of [\d,]+ bytes do not fit"):
        shop(tmp_path, more=limits).spec("clicks")
    enough = f"[streams.clicks.limits]\nmemory = {10**5 * small.row_bytes}\nmost_keys = 100000\n"
    assert shop(tmp_path, more=enough).spec("clicks").most_keys == 100_000
    with pytest.raises(InvalidConfig, match=r"limits\.memory: only of streams with contexts"):
        shop(
            tmp_path, instead=(CONTEXT, ""), more="[streams.clicks.limits]\nmemory = 1048576\n"
        ).spec("clicks")


@pytest.mark.parametrize(
    ("instead", "noise", "public"),
    [
        (("", ""), "noise of ±2.8 on each number", "THEY ARE PUBLIC FOR GOOD"),
        (
            ('epsilon = "1/2"', 'epsilon = "1/2"\nplayed = "value"'),
            "noise of ±",
            "MUST NOT FOLLOW FROM EARLIER CONTENTS",
        ),
    ],
)
def test_check_says_what_a_table_takes(
    tmp_path: Path, streamdp: Streamdp, instead: tuple[str, str], noise: str, public: str
) -> None:
    shop(tmp_path, instead=instead, more='[streams.clicks.format]\nname = "float32"\n')
    said = streamdp("check", "-c", str(tmp_path / "shop.toml"))
    assert said.code == 0, said
    for phrase in ("a table of 12 cells: 48 numbers a release, a policy of 96 bytes", noise,
                   "one key is one partition", public):  # fmt: skip
        assert phrase in said.out
    table = streamdp("check", "-c", str(tmp_path / "shop.toml"), "--json").json["streams"][0]
    context = table["context"]
    assert context["memory_bytes"] == context["most_keys"] * table["row_bytes"] <= 1 << 30
    assert context["events_beyond_noise"] >= 10 * context["noise"] * 24


EVENTS = (
    b'{"key": "k", "action": "boots", "reward": 1, "context": {"device": "phone", "age": 70}}\n'
    b'{"key": "k", "action": "coats", "reward": 0}\n'
)
AS_CSV = b"key,action,reward,context\nk,boots,1,device=phone;age=70\nk,coats,0,\n"
SENT: dict[str, tuple[str, bytes, str, dict[str, object], int]] = {
    "json": ("events.ndjson", EVENTS, "json", {}, 2),
    "csv": ("events.csv", AS_CSV, "json", {}, 2),
    "frames": ("events.ndjson", EVENTS, "float32", {"frames": True}, 1),
    "private": ("events.ndjson", EVENTS, "json", {"padding": "fixed"}, 2),
}


@pytest.mark.parametrize("how", SENT)
def test_what_send_writes_is_observed_in_its_cell(
    tmp_path: Path, streamdp: Streamdp, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Of JSON lines and CSV, as records and frames, in headers and contents."""
    monkeypatch.chdir(tmp_path)
    name, events, form, options, count = SENT[how]
    lines = [f"{option} = {json.dumps(value)}" for option, value in options.items()]
    private = 'epsilon = "1/2"\nplayed = "value"' if how == "private" else 'epsilon = "1/2"'
    configuration = shop(
        tmp_path,
        instead=('epsilon = "1/2"', private),
        more="\n".join(["[streams.clicks.format]", f'name = "{form}"', *lines]),
    )
    (tmp_path / name).write_bytes(events)
    asked = ("--rows", "2") if how == "frames" else ()
    sent = streamdp("send", str(tmp_path / name), "-c", str(configuration.path), *asked)
    assert sent.out == f"{count} {'record' if count == 1 else 'records'} sent to shown\n", sent
    reading = ReadOptions(actions=ACTIONS, format=form, format_options=options)
    feedback = configuration.streams["clicks"].feedback
    log = topic_log(configuration.technology(), "shown", reading, feedback, name="shown")
    cells = [FIELDS.cell({"device": "phone", "age": 70}), FIELDS.cell({})]
    assert log.played.tolist() == [2 * cells[0], 2 * cells[1] + 1]
    assert log.reward.tolist() == [1, 0]


def test_doctor_counts_levels_that_are_not_listed() -> None:
    """Of each field; a record whose action is unknown says nothing of its context."""
    format_, headers = FORMATS["json header {}"], list[Headers]()
    for context in (b"device=phone;age=3", b"device=fridge;age=3", b"age=x", b""):
        headers.append([("streamdp-action", b"boots"), ("streamdp-context", context)])
    headers.append([("streamdp-action", b"hats")])
    count = len(headers)
    values = [b'{"reward":1}'] * count
    at, keys = Partition("clicks", 0), [b"home"] * count
    batch = Records(at, 0, range(count), keys, values, count, headers)
    tools = cast("Administrator", SimpleNamespace(newest=newest_of(batch)))
    topics = StreamTopics("shop", "clicks", "shown", headers=True)
    found = asyncio.run(records(tools, topics, format_=format_, count=9))
    (listed,) = (of for of in found if "contexts of clicks" in of.subject)
    assert listed.subject.startswith("NOT PRIVATE")
    assert (listed.verdict, listed.detail) == (
        Verdict.WARNING,
        "of 4 slots with a known action, a level that is not listed or missing: device 3, age 2",
    )


def newest_of(batch: Records) -> Callable[..., Awaitable[list[Records]]]:
    async def newest(stream: StreamTopics, *, count: int) -> list[Records]:
        return [batch]

    return newest


# -- how fine tables may become ------------------------------------------------------------------


@pytest.mark.parametrize("played", ["header", "value"])
def test_a_bound_on_tables_changes_neither_noise_nor_size(
    tmp_path: Path, streamdp: Streamdp, played: str
) -> None:
    more = '[streams.clicks.format]\nname = "float32"\n' if played == "value" else ""
    options = f'epsilon = "1/2"\nplayed = "{played}"\ninteractions = "none"'
    spec = shop(tmp_path, instead=('epsilon = "1/2"', options), more=more).spec("clicks")
    of = spec.learner
    assert isinstance(of, PolicyLearner)
    assert of.sums_scale == 2 * (1 if played == "header" else 2) * UNIT  # ε = 1/2
    said = streamdp("check", "-c", str(tmp_path / "shop.toml"))
    assert said.code == 0, said
    assert "a table of 12 cells: 48 numbers a release" in said.out
    assert "on each number of the table that a block releases" in said.out


def test_interactions_are_written_as_a_list_or_as_text(tmp_path: Path) -> None:
    one, two = (FIELDS.fields[at].name for at in range(2))
    made = []
    for at, written in enumerate((f'["{one} × {two}"]', f'"{one} x {two}"')):
        folder = tmp_path / str(at)
        folder.mkdir()
        options = f'epsilon = "1/2"\ninteractions = {written}'
        configuration = shop(folder, instead=('epsilon = "1/2"', options))
        made.append(configuration.streams["clicks"].learner)
    assert made[0].recipe.digest == made[1].recipe.digest


def test_another_bound_carries_over_what_both_know() -> None:
    """Arms and the tables that both may release, by their fields."""
    before, now = learner().evidence, learner(interactions="none").evidence
    assert isinstance(before, ReleasedTables)
    assert isinstance(now, ReleasedTables)
    assert before.carries == now.carries == "tables"
    assert now.likely_best({}) is None
    numbers = np.arange(2.0 * before.rule.kept)
    stays = np.arange(len(ARMS))
    moved = now.moved(Known(0, numbers.tobytes()), stays, before)
    assert moved is not None
    kept = np.frombuffer(moved.history or b"").reshape(2, -1)
    old = numbers.reshape(2, -1)
    assert (kept[:, : now.rule.stops[-1]] == old[:, : now.rule.stops[-1]]).all()
    assert (kept[:, -len(ARMS) :] == old[:, -len(ARMS) :]).all()
    assert now.moved(Known(0, numbers.tobytes()), np.full(len(ARMS), STAYS_AWAY), before) is None


def test_whoever_reads_the_ledger_learns_how_many_actions_there_are() -> None:
    of = learner(interactions="none")
    method = Method(learner=json.dumps(config_of(of)))
    width = of.releases[0].width
    assert method.actions_of("released", width) == len(of.actions)
    assert method.actions_of("in_force", len(of.actions)) == len(of.actions)
    assert isinstance(of.rule, ContextModel)
    assert method.actions_of("history", 2 * of.rule.kept) == len(of.actions)
    with pytest.raises(StateMismatch, match="numbers"):
        method.actions_of("released", width + 1)
