"""Is an assembly either configured so that one budget counts all of it, or refused?"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from streamdp.assembly.persons import Cap
from streamdp.assembly.recipes import Categories, Errors, Rankers, Rewards
from streamdp.assembly.rules import Combine, Rules
from streamdp.core.errors import InvalidConfig
from streamdp.core.grid import UNIT
from streamdp.ports import StreamTopics
from streamdp.serve.metrics import MetricsPage, PublishedFacts, published
from streamdp.service.config import Configuration, Tables
from streamdp.service.listeners import abouts_of, epochs_of_assemblies
from streamdp.service.metrics import ProcessMetrics, ServiceFacts
from streamdp.wire.json_format import JsonFormat
from tests.support.calling import Streamdp
from tests.support.shop_files import second, shop

PAIR = """
[topics.requests]
budget = "1/2"
[assemblies.clicks]
requests = "requests"
outcomes = "outcomes"
stream = "home"
start = "earliest"
mode = "rankers"
window = "30m"
combine = "max"
"""
OTHER = PAIR.partition("[assemblies")[2].partition("]")[2]


def assembly(name: str, *, stream: str, **instead: str) -> str:
    """Another assembly of the same topics, or of others."""
    lines = [f"[assemblies.{name}]"]
    for line in OTHER.strip().splitlines():
        key = line.partition(" ")[0]
        value = {"stream": stream, **instead}.get(key)
        lines.append(line if value is None else f'{key} = "{value}"')
    return "\n".join(lines)


def loaded(folder: Path, *more: str, pair: str = PAIR) -> Configuration:
    return Configuration.load(shop(folder, pair, *more), {})


def feedback(folder: Path, *table: str) -> Configuration:
    """The same for a stream that learns from the action that was shown."""
    observes = ('start = "earliest"', 'start = "earliest"\nobserves = "feedback"')
    pair = PAIR.replace('"rankers"', '"feedback"')
    path = shop(folder, pair, "[streams.home.feedback]", *table, instead=observes)
    return Configuration.load(path, {})


def refused(folder: Path, *more: str, pair: str = PAIR) -> str:
    """What the message says."""
    with pytest.raises(InvalidConfig) as caught:
        loaded(folder, *more, pair=pair).assemblies()
    return str(caught.value)


def test_is_a_small_assembly_resolved(tmp_path: Path) -> None:
    """It writes the stream's input, and its events are padded though the stream does not say so."""
    (spec,) = loaded(tmp_path).assemblies()
    assert spec.topics == StreamTopics(
        "shop", "clicks", "requests", headers=True, second_input="outcomes", output="feedback"
    )
    assert spec.rules == Rules(window=1_800_000, grace=2000, combine=Combine.MAX, default=1.0)
    assert spec.recipe == Rankers(("a", "b", "c"))
    values = [spec.encode(losses) for losses in ([0.0] * 3, [0.5] * 3, [1 / 3, 0.1, 1.0])]
    assert {len(value) for value in values} == {len(values[0])}
    assert json.loads(values[0]) == {"losses": [0, 0, 0]}
    assert (spec.epoch, spec.cap, spec.most_open) == (1, None, 1_000_000)


def test_are_all_modes_resolved(tmp_path: Path) -> None:
    """Feedback for streams of feedback, the others for streams of losses."""
    ranked = PAIR.replace('"rankers"', '"rankers"\ngain = "rank"')
    assert loaded(tmp_path, pair=ranked).assemblies()[0].recipe == Rankers(("a", "b", "c"), True)
    named = PAIR.replace('"rankers"', '"categories"')
    assert loaded(tmp_path, pair=named).assemblies()[0].recipe == Categories(("a", "b", "c"))
    errors = PAIR.replace('"rankers"', '"errors"\nscale = 2.5')
    assert loaded(tmp_path, pair=errors).assemblies()[0].recipe == Errors(("a", "b", "c"), 2.5)


@pytest.mark.parametrize("learns", [True, False])
def test_are_epochs_shown_by_every_process(tmp_path: Path, learns: bool) -> None:
    """Of each stream and assembly, also where another process works on it, or none does."""
    configuration = loaded(tmp_path, pair=f"{PAIR}epoch = 3\n")
    about, epochs_of = abouts_of(configuration), epochs_of_assemblies(configuration)
    families = (
        ProcessMetrics(lambda: ServiceFacts(about, None, epochs_of), most_series=5000).families
        if learns
        else lambda: published(PublishedFacts(about, assemblies=epochs_of))
    )
    page = MetricsPage(families, application="shop").render()
    epochs = [line for line in page.splitlines() if line.startswith(b"streamdp_epoch")]
    assert epochs == [
        b'streamdp_epoch{application="shop",stream="home"} 1.0',
        b'streamdp_epoch{application="shop",stream="clicks"} 3.0',
    ]


def test_an_assembly_of_feedback_knows_the_actions(tmp_path: Path) -> None:
    """Though an event is one number: `check --with-state` asks for a new epoch."""
    (spec,) = feedback(tmp_path, 'content = "reward"').assemblies()
    path = tmp_path / "shop.toml"
    path.write_text(path.read_text().replace('"a", "b", "c"', '"a", "b", "d"'))
    (other,) = Configuration.load(path, {}).assemblies()
    assert spec.digest != other.digest


@pytest.mark.parametrize("content", ["loss", "reward"])
def test_does_a_feedback_stream_get_what_it_reads(tmp_path: Path, content: str) -> None:
    """A loss as a loss or as a reward: what its own format decodes is 1 − the reward that came."""
    configuration = feedback(tmp_path, f'content = "{content}"')
    (spec,) = configuration.assemblies()
    assert spec.recipe == Rewards()
    format_ = configuration.streams["home"].format()
    assert format_.feedback is not None
    read = format_.decode([spec.encode([0.25])], [[]])
    assert read.content["gain"].tolist() == [UNIT // 4]


def test_does_a_price_come_through_the_join_as_it_was_written(tmp_path: Path) -> None:
    """What its format decodes is the share of `most`; the event says it in the unit."""
    configuration = feedback(tmp_path, 'content = "reward"', 'unit = "€"', 'most = "200"')
    (spec,) = configuration.assemblies()
    assert spec.recipe == Rewards(Fraction(200))
    gains = spec.recipe.answer(None, b'{"reward": 37.5}')
    assert gains is not None
    value = spec.encode([1 - gains[0]])
    assert value.split(b"}")[0] == b'{"reward":37.5'
    read = configuration.streams["home"].format().decode([value], [[]])
    assert read.content["gain"].tolist() == [round((37.5 / 200 - 0.5) * UNIT)]
    (other,) = feedback(tmp_path, 'content = "reward"', 'most = "300"').assemblies()
    assert spec.digest != other.digest


def test_is_the_cap_s_secret_read_from_its_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    persons = f'[assemblies.clicks.persons]\nmost = 5\nslots = 100\nsecret_file = "{secret}"'
    assert "persons.secret_file: cannot be read; expected a secret in" in refused(tmp_path, persons)
    secret.write_bytes(b"short\n")
    assert "assemblies.clicks.persons.secret: of a wrong length" in refused(tmp_path, persons)
    secret.write_bytes(b"a secret of the tests\n")
    (spec,) = loaded(tmp_path, persons).assemblies()
    assert spec.cap == Cap(5, 100, b"a secret of the tests")
    assert "no cap" in refused(tmp_path, persons.replace("most = 5", "most = 100"))
    days = persons.replace("slots = 100", 'per = "day"')
    (spec,) = loaded(tmp_path, days).assemblies()
    assert spec.cap == Cap(5, None, b"a secret of the tests")
    (fewer,) = loaded(tmp_path, f"{days}\nmost_persons = 7").assemblies()
    assert (fewer.cap and fewer.cap.persons, fewer.digest != spec.digest) == (7, True)
    assert "most_persons: is only for per = day" in refused(
        tmp_path, f"{persons}\nmost_persons = 7"
    )
    assert "most_persons: not usable; expected less than or equal to 1000000" in refused(
        tmp_path, f"{days}\nmost_persons = 1000001"
    )
    for wrong, got in (("", "neither"), ('slots = 9\nper = "day"', "both")):
        table = persons.replace("slots = 100", wrong)
        assert f"expected slots = … or per = day, got {got}" in refused(tmp_path, table)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('stream = "home"', 'stream = "hom"', "assemblies.clicks.stream: unknown; expected one of"),
        ('"rankers"', '"ranker"', "assemblies.clicks.mode: not usable; expected 'feedback', 'rank"),
        ('"rankers"', '"feedback"', "this mode writes events for streams with observes = feedback"),
        ('"rankers"', '"rankers"\nscale = 1', "scale: is only for mode = errors"),
        ('"rankers"', '"errors"\ngain = "rank"', "gain: is only for mode = rankers"),
        ('"rankers"', '"errors"', "assemblies.clicks.scale: missing; expected the error"),
        ('"30m"', "30", "assemblies.clicks.window: not a length of time; expected such as"),
        ('"max"', '"mean"', "assemblies.clicks.combine: not usable; expected 'first', 'last'"),
        ('combine = "max"', "", "assemblies.clicks.combine: missing; expected how several"),
        ('combine = "max"', 'combine = "max"\ndefault_loss = 2', "default_loss: not usable"),
        ('combine = "max"', 'combine = "max"\nwindows = 2', "windows: unknown key; expected win"),
        ("[topics.requests]", "[topics.others]", 'topics.requests: no budget for the requests'),
        ('outcomes = "outcomes"', 'outcomes = "requests"', "holds the requests of this assembly"),
        ('outcomes = "outcomes"', 'outcomes = "feedback"', "outcomes: a stream reads the outcomes"),
        ('requests = "requests"', 'requests = "feedback"', "holds the requests of an assembly"),
    ],
)  # fmt: skip
def test_is_what_is_wrong_said(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in PAIR
    message = refused(tmp_path, pair=PAIR.replace(old, new, 1))
    assert said in message
    assert "; expected " in message


@pytest.mark.parametrize("name", ["home", "clicks_ledger"])
def test_is_a_name_refused_that_would_be_used_twice(tmp_path: Path, name: str) -> None:
    """An assembly and a stream of one name would share a ledger and a state."""
    taken = PAIR.replace("clicks", name)
    if name != "home":
        taken = taken.replace('"requests"', '"shop_clicks_ledger_state"')
        taken = taken.replace("[topics.requests]", "[topics.shop_clicks_ledger_state]")
    assert "shares a name" in refused(tmp_path, pair=taken)


def test_is_an_event_s_length_that_tells_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a format of one's own whose rows differ in length; a frame of one row is fine."""
    frames = '\n[streams.home.format]\nname = "float32"\nframes = true'
    assert len(loaded(tmp_path, frames).assemblies()[0].encode([0.0] * 3)) == 12

    def plain(name: str, *, actions: list[str], **others: object) -> JsonFormat:
        return JsonFormat(actions=tuple(actions))

    monkeypatch.setattr("streamdp.service.config.assembling.configure", plain)
    assert "an event's length would reveal the outcome" in refused(tmp_path)


def test_are_frames_of_feedback_refused(tmp_path: Path) -> None:
    """Their header names an action for each row: a request names one."""
    frames = ("[streams.home.format]", 'name = "float32"', "frames = true")
    with pytest.raises(InvalidConfig, match="an event is one slot"):
        feedback(tmp_path, 'content = "loss"', *frames).assemblies()


# -- one budget for requests and outcomes (P11) ------------------------------------------------


BOTH = (second("trial", topic="more", epsilon='"1/4"'), '[topics.more]\nbudget = "1"')


def test_do_all_topics_of_one_pair_share_its_budget(tmp_path: Path) -> None:
    """Two assemblies of the same requests: each topic is within its budget, the sum is not."""
    message = refused(tmp_path, assembly("views", stream="trial"), *BOTH)
    assert "topics.requests.budget: streams may charge a request with its outcomes more" in message
    assert "expected a total of at most 1/2, got 3/4" in message
    assert "events of clicks in feedback 1/2; events of views in more 1/4" in message


@pytest.mark.parametrize("shared", ["requests", "outcomes"])
def test_do_assemblies_add_up_that_share_one_topic_only(tmp_path: Path, shared: str) -> None:
    """A request's content, or its outcomes, would be in two topics."""
    other = {"requests": "outcomes", "outcomes": "requests"}[shared]
    more = (*BOTH, '[topics.others]\nbudget = "1"')
    views = assembly("views", stream="trial", **{other: "others"})
    assert "got 3/4" in refused(tmp_path, views, *more)
    apart = assembly("views", stream="trial", requests="others", outcomes="apart")
    assert loaded(tmp_path, apart, *more).charged("requests") == Fraction(1, 2)


def test_do_chains_of_assemblies_add_up(tmp_path: Path) -> None:
    """The last one brings two together that were apart."""
    streams = [second(f"s{n}", topic=f"in{n}", epsilon='"1/8"') for n in range(2)]
    budgets = [f'[topics.{name}]\nbudget = "1"' for name in ("in0", "in1", "r1", "r2")]
    pair = PAIR.replace('budget = "1/2"', 'budget = "3/4"')
    first = assembly("first", stream="s0", requests="r1", outcomes="o1")
    both = assembly("both", stream="s1", requests="requests", outcomes="o1")
    configuration = loaded(tmp_path, first, both, *streams, *budgets, pair=pair)
    assert [configuration.charged(topic) for topic in ("requests", "r1")] == [Fraction(3, 4)] * 2
    assert "got 3/4" in refused(tmp_path, first, both, *streams, *budgets)


def test_does_a_stream_count_that_reads_the_requests(tmp_path: Path) -> None:
    """Their content is protected too."""
    message = refused(tmp_path, second("direct", topic="requests"))
    assert "direct from requests 1/4" in message
    assert "got 3/4" in message


def test_does_what_others_charge_count(tmp_path: Path) -> None:
    """Of the requests and of the outcomes (an assembler elsewhere), and of the events."""
    for topic, more in (("requests", ""), ("outcomes", '[topics.outcomes]\nbudget = "2"')):
        pair = PAIR.replace('budget = "1/2"', 'budget = "1"') + more
        pair = pair.replace("[topics.requests]", '[topics.requests]\nelsewhere = "ER"')
        pair = pair.replace("[topics.outcomes]", '[topics.outcomes]\nelsewhere = "EO"')
        pair = pair.replace("ER", "3/4" if topic == "requests" else "0").replace("EO", "3/4")
        assert f"got 5/4: events of clicks in feedback 1/2; elsewhere from {topic} 3/4" in refused(
            tmp_path, pair=pair
        )
    events = ('budget = "1"', 'budget = "1"\nelsewhere = "1/2"')
    with pytest.raises(InvalidConfig, match="got 1: events of clicks in feedback 1"):
        Configuration.load(shop(tmp_path, PAIR, instead=events), {})


def test_does_a_budget_of_the_outcomes_bind_too(tmp_path: Path) -> None:
    """Where one is written."""
    message = refused(tmp_path, '[topics.outcomes]\nbudget = "1/4"')
    assert "topics.outcomes.budget" in message


def test_is_one_input_written_by_one_assembly(tmp_path: Path) -> None:
    """Two would put a request into it twice."""
    assert "another assembly writes the same input" in refused(
        tmp_path, assembly("views", stream="home")
    )


def test_does_check_say_what_a_request_costs(streamdp: Streamdp, tmp_path: Path) -> None:
    """And what a cap buys a person, which is a multiple of that."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"a secret of the tests")
    persons = f'[assemblies.clicks.persons]\nmost = 5\nslots = 100\nsecret_file = "{secret}"'
    path = shop(tmp_path, PAIR, persons)
    ended = streamdp("check", "--config", str(path))
    assert ended.code == 0, ended
    assert "topic requests: each record is charged ε = 1/2, of a budget of 1/2" in ended.out
    assert "assembly clicks: requests and outcomes become feedback for home" in ended.out
    assert "ε = 5/2 for a person in a key and stretch, 5 over any 100 consecutive" in ended.out
    report = streamdp("check", "--config", str(path), "--json").json
    assert report["assemblies"][0]["persons"]["charge_of_any_slots"] == "5"
    path = shop(tmp_path, PAIR, persons.replace("slots = 100", 'per = "day"'))
    by_day = streamdp("check", "--config", str(path))
    assert "ε = 5/2 for a person in a key and day, 5 over any 24 hours, however many" in by_day.out
    report = streamdp("check", "--config", str(path), "--json").json["assemblies"][0]["persons"]
    assert (report["charge_of_any_slots"], report["charge_of_any_24_hours"]) == (None, "5")


def test_is_the_schema_complete() -> None:
    assert "assemblies" in Tables.model_json_schema()["properties"]
