"""Is a configuration either right or refused with a message that says what to change?"""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import streamdp as sd
from streamdp.core.engine.machine import MOST_ROWS
from streamdp.core.errors import InvalidConfig
from streamdp.service.config import Configuration, Seeds, Tables, example
from streamdp.service.settings import LoopSettings, Start
from streamdp.wire.formats import checked_names
from tests.support.shop_files import second, shop


def refused(path: Path, environment: dict[str, str] | None = None) -> str:
    """What the message says."""
    with pytest.raises(InvalidConfig) as caught:
        resolved(Configuration.load(path, environment or {}))
    return str(caught.value)


def resolved(configuration: Configuration) -> None:
    """Everything that is made of a configuration without reaching for anything."""
    configuration.specs()
    configuration.technology()


def test_is_a_small_configuration_resolved(tmp_path: Path) -> None:
    """Everything that privacy rests on is written down; the rest has defaults."""
    configuration = Configuration.load(shop(tmp_path), {})
    (spec,) = configuration.specs()
    assert spec.topics.actions == "shop.home.actions"
    assert spec.learner == sd.remembering_leader(actions=["a", "b", "c"], epsilon="1/2")
    assert (spec.share, spec.charge, spec.epoch) == (Fraction(1, 2), Fraction(1, 2), 1)
    assert (spec.start, spec.randomness.seeded) == (Start.EARLIEST, False)
    assert configuration.loop_settings() == LoopSettings()
    assert [topics.input for topics in configuration.topics()] == ["feedback"]


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        (('app = "shop"', 'app = "shop"\ncolour = 1'), "shop.toml: colour: unknown key; expected"),
        (('app = "shop"', 'ap = "shop"'), "ap: unknown key; expected app, got ap"),
        (('app = "shop"', ""), "app: missing; expected the application's name"),
        (('app = "shop"', 'app = "a b"'), "app: not usable; expected letters"),
        (('kind = "sqlite"', 'kind = "rabbit"'), "transport.kind: unknown; expected kafka or sqli"),
        (('kind = "sqlite"', 'kind = "sqlite"\nroot = 1'), "unknown key; expected path"),
        (('budget = "1"', "budget = 1.5"), 'topics.feedback.budget: not exact; expected a string'),
        (('budget = "1"', 'budget = "0"'), "topics.feedback.budget: out of range"),
        (('start = "earliest"', ""), "streams.home.start: missing; expected where a stream"),
        (('start = "earliest"', 'start = "now"'), "streams.home.start: not usable; expected 'earl"),
        (('start = "earliest"', 'start = "latest"\nepok = 2'), "streams.home.epok: unknown key;"
         " expected epoch"),
        (('start = "earliest"', 'start = "latest"\nlimits = {epoch = 2}'), "limits.epoch: unknown"
         " key; expected streams.home.epoch, got epoch"),
        (('start = "earliest"', 'start = "latest"\nfeedback = {context = {a = ["b"]}}'),
         "streams.home.feedback.context: unknown key; expected streams.home.context, got context"),
        (('start = "earliest"', 'start = "latest"\nmost = "2"'), "streams.home.most: unknown key;"
         " expected streams.home.feedback.most, got most"),
        (('start = "earliest"', 'start = "latest"\nepoch = 0'), "streams.home.epoch: not usable"),
        (('epsilon = "1/2"', ""), "streams.home.learner.epsilon: missing option of reme"),
        (('epsilon = "1/2"', "epsilon = 0.5"), "streams.home.learner.epsilon: not exact; expected"
         ' a string such as "0.1", got float'),
        (('epsilon = "1/2"', 'epsilon = "x"'), "streams.home.learner.epsilon: not a number"),
        (('epsilon = "1/2"', 'epsilon = "1/2"\nrecipe = "none"'), "home.learner.recipe: unknown"),
        (('epsilon = "1/2"', 'epsilon = "1/2"\nnoise = "x"'), "home.learner.noise: unknown option"),
        (('epsilon = "1/2"', 'recipe = "follow_the_leader"'), "streams.home.learner: not private"),
        (('actions = ["a", "b", "c"]', ""), "streams.home.actions: needs one list; expected"),
        (('["a", "b", "c"]', '["a", "a"]'), "streams.home.actions: a name twice"),
        (('["a", "b", "c"]', '["a", "b"]\nactions_file = "x"'), "got both"),
        (('actions = ["a", "b", "c"]', 'actions_file = "/nowhere"'), "_file: cannot be read"),
        (('["a", "b", "c"]', '["a", "b"]\nfallback_action = "z"'), "action: not an action"),
        (('["a", "b", "c"]', '["a", "b"]\nlimits = {most_actions = 1}'), "most_actions: not"),
        (('["a", "b", "c"]', '["a", "b", "c"]\nlimits = {most_actions = 2}'), "actions: too many;"
         " expected at most 2 (limits.most_actions), got 3"),
        (('["a", "b", "c"]', '["a", "b"]\nformat = "xml"'), "home.format.name: unknown form"),
        (('["a", "b", "c"]', '["a", "b"]\nformat = {name = "json", layout = "x"}'),
         "streams.home.format.layout: not allowed"),
        (('input = "feedback"', 'input = "clicks"'), 'topics.clicks: no budget for the input'),
        (('input = "feedback"', "input = 3"), "streams.home.input: not usable; expected string"),
        (('budget = "1"', 'budget = "1"\npartitions = true'),
         "topics.feedback.partitions: not usable; expected a number, got true"),
        (('start = "earliest"', 'start = "latest"\nepoch = true'), "epoch: not usable; expect"),
        (('start = "earliest"', 'start = "latest"\ngap = true'), "gap: not usable; expected"),
        (('app = "shop"', 'app = "shop"\nhttp = {listen = "h:945693"}'),
         'http.listen: not an address; expected host:port, such as "127.0.0.1:8080" or'
         ' "[::1]:8080", got \'h:945693\''),
        (('app = "shop"', 'app = "shop"\nhttp = {listen = 8080}'),
         'http.listen: not an address; expected host:port, such as "127.0.0.1:8080" or'
         ' "[::1]:8080", got 8080'),
        (('epsilon = "1/2"', 'epsilon = "1/2"\nschedule = "triadic"'),
         "shop.toml: streams.home.learner.schedule: unknown; expected dyadic, geometric"),
        (('epsilon = "1/2"', 'epsilon = "1/2"\nschedule = "geometric 1"'),
         "streams.home.learner.schedule.ratio: out of range; expected 1.1 … 1000, got 1"),
        (('epsilon = "1/2"', 'epsilon = "-1"'), "shop.toml: streams.home.learner.epsilon: out of"
         " range; expected a number from 1/1000000 to 1000000, got -1"),
        (('budget = "1"', 'budget = "-.5"'), "topics.feedback.budget: out of range"),
        (('epsilon = "1/2"', 'epsilon = "1/2"\nrecipe = "policy_blocks"'),
         "shop.toml: streams.home.learner.recipe: policy_blocks is for streams that observe"
         " feedback; expected one of follow_the_leader, incumbent_leader, "),
        (('["a", "b", "c"]', '["a", "b", "c", "b", "b"]'), "streams.home.actions: a name twice;"
         " expected distinct names, got 'b' as no. 2 and 4 and 5"),
        (('kind = "sqlite"\npath = "shop.db"', 'kind = "kafka"\nbootstrap = "localhost"'),
         'transport.bootstrap: not an address; expected host:port, several with commas between,'
         ' such as "localhost:9092", got a host without a port as no. 1'),
        (('[streams.home.learner]', '[streams.home]  # again\n[streams.home.learner]'),
         "shop.toml: [streams.home]: is defined twice; expected once, got lines 8 and 12"),
        (('app = "shop"', 'app = "shop"\napp = "other"'), "shop.toml: a key of a table: is defined"
         " twice; expected once, got a second one in line 3"),
        (('app = "shop"', 'app = "shop"\nhttp = {listen = "h:²"}'), "expected host:port, such"),
        (('app = "shop"', 'app = "shop"\nhttp = {token_file = ""}'),
         "http.token_file: not usable; expected a path of a file, got '.'"),
        (('app = "shop"', 'app = "shop"\nhttp = {key_file = "a\\u0000b"}'), "key_file: not usabl"),
        (('actions = ["a", "b", "c"]', "actions = []"), "home.actions: count; expected 2 … 10"),
        (('start = "earliest"', f'start = "latest"\nlimits = {{most_keys = {MOST_ROWS + 1}}}'),
         f"streams.home.limits.most_keys: not usable; expected less than or equal to {MOST_ROWS}"),
        (('start = "earliest"', f'start = "latest"\nepoch = {2**63}'), "home.epoch: not usable"),
        (('start = "earliest"', f'start = "latest"\npartition_epochs = {{{2**31} = 2}}'),
         "streams.home.partition_epochs.2147483648: not usable; expected less than or equal to"),
        (('budget = "1"', f'budget = "1"\npartitions = {2**31}'), "partitions: not usable; expe"),
        (('app = "shop"', f'app = "shop"\nservice = {{poll_records = {2**63}}}'), "records: not"),
        (('app = "shop"', f'app = "shop"\nservice = {{worker = "{"w" * 201}"}}'), "worker: not"),
        (('app = "shop"', 'app = "shop"\nservice = {idle_commit_seconds = 1e-9}'),
         "service.idle_commit_seconds: not usable; expected greater than or equal to 0.001, got"),
        (('app = "shop"', 'app = "shop"\nservice = {drain_seconds = 1e300}'), "or equal to 100000"),
    ],
)  # fmt: skip
def test_is_what_is_wrong_said_with_where_expected_and_got(
    tmp_path: Path, instead: tuple[str, str], said: str
) -> None:
    """Nothing is repaired or ignored in silence."""
    path = shop(tmp_path, instead=instead)
    message = refused(path)
    assert said in message
    assert re.search("; expected .*, got ", message)


@pytest.mark.parametrize(
    "host",
    ["::1", "*", "[::zz]", "[127.0.0.1]", "[]", "", "a..b", "x" * 64, "ä", "1", "127.1",
     "300.1.1.1", " localhost", "http://localhost", "a/b", "::1]", "[::1"],
)  # fmt: skip
def test_is_an_address_refused_that_nobody_could_listen_at(tmp_path: Path, host: str) -> None:
    """Of every listener; only whether a name is known has to be tried."""
    for table, key in (
        ("http", "listen"), ("operations", "listen"), ("operations", "operator_listen")
    ):  # fmt: skip
        listener = f'app = "shop"\n{table} = {{{key} = "{host}:8080"}}'
        path = shop(tmp_path, instead=('app = "shop"', listener))
        assert f"{table}.{key}: not an address" in refused(path)


@pytest.mark.parametrize(
    "host", ["localhost", "0.0.0.0", "[::]", "[fe80::1%eth0]", "shop_1.example.", "2.example", "7f"]
)
def test_is_an_address_taken_that_may_exist(tmp_path: Path, host: str) -> None:
    http = f'app = "shop"\nhttp = {{listen = "{host}:8080"}}'
    path = shop(tmp_path, instead=('app = "shop"', http))
    assert Configuration.load(path, {}).tables.http.listen == f"{host}:8080"


def test_is_everything_wrong_told_at_once(tmp_path: Path) -> None:
    """One line for each thing."""
    message = refused(
        shop(tmp_path, "[log]\nlevel = 3\n[service]\npace = 1", instead=("app", "ap"))
    )
    assert len(message.splitlines()) == 4
    assert "log.level" in message
    assert "service.pace" in message
    both = second("trial", more='actions_file = "names"\n[streams.trial.context]\nhour = ["am"]')
    message = refused(shop(tmp_path, both, instead=('["a", "b", "c"]', '["a", "b"]\nepoch = 0')))
    assert [line.partition(": ")[2].split(";")[0] for line in message.splitlines()] == [
        "streams.home.epoch: not usable",
        "streams.trial.actions: needs one list",
    ]


def test_is_what_is_no_toml_refused_without_quoting_it(tmp_path: Path) -> None:
    """Neither a missing file nor a broken one is guessed at."""
    assert "cannot be read; expected a TOML file" in refused(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text('password = "secret\n')
    assert "is not TOML" in refused(broken)
    assert "secret" not in refused(broken)
    broken.write_bytes(b"\xff")
    assert "not UTF-8" in refused(broken)
    broken.write_text("a = " + "[" * 10_000)
    assert "nested too deeply" in refused(broken)


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        (
            ('start = "earliest"', 'start = "latest"\nmode = "shadow"'),
            "shop.toml: streams.home.mode: no key any more; expected no mode: a trial is a stream"
            " that nobody reads, and `streamdp mode STREAM fallback` takes the readers of a stream"
            " away, got mode",
        ),
        (
            ('app = "shop"', 'app = "shop"\noperations = {operator_exact = true}'),
            "shop.toml: operations.operator_exact: no key any more; expected no exact figures of"
            " what runs: `streamdp replay` computes them from the log, and an estimate shows them"
            " privately, got operator_exact",
        ),
    ],
)
def test_does_a_key_that_is_gone_say_what_to_do_instead(
    tmp_path: Path, instead: tuple[str, str], said: str
) -> None:
    assert refused(shop(tmp_path, instead=instead)).endswith(said)


# -- budgets -----------------------------------------------------------------------------------


def test_do_the_streams_of_a_topic_share_its_budget(tmp_path: Path) -> None:
    """P11: trials and estimates count; the message lists every share, exactly."""
    estimates = '[[streams.trial.estimates]]\nname = "mean_loss"\nepsilon = "1/3"\nmin_length = 9'
    message = refused(shop(tmp_path, second("trial"), estimates))
    assert "topics.feedback.budget" in message
    assert "expected a total of at most 1, got 13/12" in message
    assert "home 1/2 (action 1/2)" in message
    assert "trial 7/12 (action 1/4 + mean_loss 1/3)" in message


def test_is_a_budget_met_to_the_last_fraction(tmp_path: Path) -> None:
    """Ten tenths are one: no binary float can do that."""
    streams = [second(f"s{n}", epsilon='"0.05"') for n in range(10)]
    configuration = Configuration.load(shop(tmp_path, *streams), {})
    assert configuration.charged("feedback") == 1
    assert [spec.share for spec in configuration.specs()] == [Fraction(1, 2)] + [
        Fraction(1, 20)
    ] * 10
    message = refused(shop(tmp_path, *streams, second("more", epsilon='"0.000001"')))
    assert "got 1000001/1000000" in message


def test_does_what_others_charge_count(tmp_path: Path) -> None:
    """Another application's share of the same topic is written down, because it is not seen."""
    budget = ('budget = "1"', 'budget = "1"\nelsewhere = "3/5"')
    assert "got 11/10: home 1/2 (action 1/2); elsewhere 3/5" in refused(
        shop(tmp_path, instead=budget)
    )
    assert Configuration.load(
        shop(tmp_path, instead=('budget = "1"', 'budget = "1"\nelsewhere = "1/2"')), {}
    ).specs()


def test_has_each_topic_a_budget_of_its_own(tmp_path: Path) -> None:
    """Streams of different inputs do not add up."""
    topic = '[topics.clicks]\nbudget = "3/4"'
    configuration = Configuration.load(
        shop(tmp_path, topic, second("clicks", epsilon='"3/4"', topic="clicks")), {}
    )
    assert [configuration.charged(topic) for topic in ("feedback", "clicks")] == [
        Fraction(1, 2),
        Fraction(3, 4),
    ]


@pytest.mark.parametrize("name", ["shop.home.actions", "shop_home_state"])
def test_is_an_input_refused_that_is_derived(tmp_path: Path, name: str) -> None:
    """A stream that fed on what streams publish; brokers take `.` and `_` for the same."""
    topic = f'[topics."{name}"]\nbudget = "1"'
    assert "shares a name" in refused(shop(tmp_path, topic, second("loop", topic=name)))


def test_is_a_stream_s_name_one_that_topics_can_have(tmp_path: Path) -> None:
    """Names part the derived topics, so they have no dot."""
    assert 'streams."a.b"' in refused(shop(tmp_path, second('"a.b"')))


def test_is_an_estimate_given_once(tmp_path: Path) -> None:
    """Two of one name would be two releases of one identity."""
    one = '[[streams.home.estimates]]\nname = "mean_loss"\nepsilon = "1/9"\nmin_length = 9\n'
    assert "estimates: one twice" in refused(shop(tmp_path, one, one))
    wrong = one.replace("mean_loss", "all_losses")
    assert "streams.home.estimate.name: unknown" in refused(shop(tmp_path, wrong))


# -- seeds, files, environment -----------------------------------------------------------------


def test_is_a_seed_refused_unless_allowed(tmp_path: Path) -> None:
    """Seeded randomness protects nobody."""
    path = shop(tmp_path, instead=('start = "earliest"', 'start = "earliest"\nseed = "x"'))
    assert "streams.home.seed: seeded randomness protects nobody" in refused(path)
    (spec,) = Configuration.load(path, {}).specs(seeds=Seeds.ALLOWED)
    assert spec.randomness.seeded


def test_are_actions_read_from_a_file(tmp_path: Path) -> None:
    """One name a line; nothing is trimmed or dropped."""
    names = tmp_path / "actions.txt"
    names.write_text("a\nb c\nü\n")
    path = shop(tmp_path, instead=('actions = ["a", "b", "c"]', f'actions_file = "{names}"'))
    assert Configuration.load(path, {}).streams["home"].actions == ["a", "b c", "ü"]
    names.write_text("a\n\nb\n")
    assert "streams.home.actions: not names" in refused(path)


def test_does_the_environment_override_the_file(tmp_path: Path) -> None:
    """Whatever the key's type; hyphens are underscores; lists are TOML."""
    path = shop(tmp_path, second("front-page"))
    environment = {
        "STREAMDP__APP": "store",
        "STREAMDP__STREAMS__HOME__EPOCH": "3",
        "STREAMDP__STREAMS__HOME__LEARNER__EPSILON": "1/3",
        "STREAMDP__STREAMS__FRONT_PAGE__CARRY": "false",
        "STREAMDP__STREAMS__FRONT_PAGE__ACTIONS": '["p", "q", "r"]',
        "STREAMDP__SERVICE__SAVE_SECONDS": "7.5",
        "STREAMDP_STRICT": "not ours",
    }
    configuration = Configuration.load(path, environment)
    assert (configuration.app, configuration.streams["home"].table.epoch) == ("store", 3)
    assert configuration.spec("home").charge == Fraction(1, 3)
    assert not configuration.streams["front-page"].table.carry
    assert configuration.streams["front-page"].actions == ["p", "q", "r"]
    assert configuration.loop_settings().pace.seconds == 7.5


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("STREAMDP__STREAMS__HOME__EPOCHS", "1", "STREAMDP__STREAMS__HOME__EPOCHS: unknown key"),
        ("STREAMDP__STREAMS__HOME__EPOCH", "x", "STREAMDP__STREAMS__HOME__EPOCH: not usable"),
        ("STREAMDP__APP__NAME", "x", "STREAMDP__APP__NAME: not a table"),
        ("STREAMDP__", "x", "STREAMDP__: no key"),
        ("STREAMDP__STREAMS__HOME__ACTIONS", "[1,", "STREAMDP__STREAMS__HOME__ACTIONS: unreadable"),
    ],
)
def test_is_a_wrong_variable_named(tmp_path: Path, variable: str, value: str, said: str) -> None:
    """Unknown variables are as fatal as unknown keys."""
    assert said in refused(shop(tmp_path), {variable: value})


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("STREAMS__HOME__LEARNER__EPSILON", "x", ": not a number"),
        ("STREAMS__HOME__LEARNER", '{recipe = "x"}', ": streams.home.learner.recipe: unknown"),
        ("STREAMS__HOME__SEED", "1", ": seeded randomness protects nobody"),
        ("STREAMS__HOME__ACTIONS", '["a"]', ": count; expected 2"),
        ("STREAMS__HOME__ACTIONS", '["a", "a"]', ": a name twice"),
        (
            "STREAMS__HOME__FALLBACK_ACTION",
            "z",
            ": not an action; expected one of the actions, got 'z'",
        ),
        (
            "TOPICS__FEEDBACK__BUDGET",
            "1/4",
            ": the topic's streams may charge a record",
        ),
        ("STREAMS__HOME__CONTEXT", '{hour = ["am", "pm"]}', ": only of streams that observe feed"),
        ("STREAMS__HOME__LIMITS__MEMORY", "9999999", ": only of streams with contexts"),
        ("TRANSPORT__KIND", "rabbit", ": unknown; expected kafka or sqlite, got rabbit"),
        ("TRANSPORT__PUBLISHED", "shop.db", ": is the trusted file"),
        ("TRANSPORT", '{kind = "kafka"}', ": transport.bootstrap: missing"),
    ],
)
def test_is_the_variable_named_that_a_wrong_value_came_from(
    tmp_path: Path, variable: str, value: str, said: str
) -> None:
    """Whoever finds it wrong: the learner, the transport, or the sum of all charges."""
    name = f"STREAMDP__{variable}"
    assert refused(shop(tmp_path), {name: value}).startswith(name + said)


def test_is_the_variable_named_whatever_a_transport_wants(tmp_path: Path) -> None:
    """A file that is not there, and what is said of the table as a whole."""
    kafka = ('kind = "sqlite"\npath = "shop.db"', 'kind = "kafka"\nbootstrap = "b:1"')
    secure = 'security_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\nusername = "u"'
    path = shop(tmp_path, instead=(kafka[0], f"{kafka[1]}\n{secure}"))
    environment = {"STREAMDP__TRANSPORT__PASSWORD_FILE": "/nope"}
    message = refused(path, environment)
    assert message.startswith("STREAMDP__TRANSPORT__PASSWORD_FILE: no such file; expected")
    message = refused(shop(tmp_path), {"STREAMDP__TRANSPORT__ROOT": "1"})
    assert message.startswith(f"{path} and STREAMDP__TRANSPORT__ROOT: transport: unknown key")


def test_is_a_variable_named_that_makes_a_stream(tmp_path: Path) -> None:
    """A mistyped name is not the file's fault; a whole stream may come from variables."""
    path, name = shop(tmp_path), "STREAMDP__STREAMS__HOMEX__"
    lines = refused(path, {f"{name}EPOCH": "2"}).splitlines()
    assert lines[0].startswith(
        f"{name}EPOCH: streams.homex.input: missing, and {path} has no streams.homex; expected the"
    )
    assert all(line.startswith(f"{name}EPOCH: streams.homex.") for line in lines)
    whole = {"INPUT": "feedback", "START": "latest", "ACTIONS": '["a", "b"]',
             "LEARNER__EPSILON": "1/4"}  # fmt: skip
    configuration = Configuration.load(path, {name + key: value for key, value in whole.items()})
    assert [spec.name for spec in configuration.specs()] == ["home", "homex"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TRANSPORT", "kafka://u:hunter2@h"),
        ("TRANSPORT", '["hunter2"]'),
        ("TRANSPORT__KIND", "kafka://u:hunter2@h"),
        ("TRANSPORT__KIND", '["hunter2"]'),
        ("STREAMS__HOME__SEED", '["hunter2"]'),
    ],
)
def test_is_what_may_be_a_secret_never_quoted(tmp_path: Path, variable: str, value: str) -> None:
    """Whatever stands where a transport's table or a seed ought to be."""
    message = refused(shop(tmp_path), {f"STREAMDP__{variable}": value})
    assert message.startswith(f"STREAMDP__{variable}")
    assert "hunter2" not in message
    assert "Table" not in message


def test_is_an_option_told_that_a_format_without_options_has_not() -> None:
    """It expects none, and says so."""
    with pytest.raises(InvalidConfig, match="format: unknown option; expected none, got x"):
        checked_names({"x": 1}, where="format", known=())


def test_are_secrets_in_no_message_and_no_repr(tmp_path: Path) -> None:
    """A transport's settings are its own: nothing of them is quoted."""
    kafka = 'kind = "kafka"\nbootstrap = "b:1"\npassword = "hunter2"\nport = 1'
    path = shop(tmp_path, instead=('kind = "sqlite"\npath = "shop.db"', kafka))
    with pytest.raises(InvalidConfig) as caught:
        Configuration.load(path, {}).technology()
    assert "hunter2" not in str(caught.value)
    assert "port" in str(caught.value)


# -- the example -------------------------------------------------------------------------------


def fields(model: type[BaseModel]) -> Iterator[str]:
    """Every key that a table may have, and the tables in it."""
    for name, field in model.model_fields.items():
        yield name
        for part in _models(field.annotation):
            yield from fields(part)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models(part)]


def test_is_the_example_right_and_complete(tmp_path: Path) -> None:
    """It loads as it stands and with every line of it in force, and names every key."""
    path = tmp_path / "streamdp.toml"
    path.write_text(example())
    assert Configuration.load(path, {}).specs()
    named = set(re.findall(r"^(?:# )?(\w+) = ", example(), re.MULTILINE))
    tables = set(re.findall(r"\w+", " ".join(re.findall(r"^(?:# )?\[+(.*?)\]", example(), re.M))))
    assert set(fields(Tables)) <= named | tables


def test_are_the_defaults_that_the_example_tells_the_real_ones(tmp_path: Path) -> None:
    """What is commented out in the tables without choices is what is so without it."""
    text = example()
    for name, table in Tables.model_fields.items():
        model = table.annotation
        if name not in ("service", "log") or not isinstance(model, type):
            continue
        section = text.partition(f"\n[{name}]")[2].partition("\n[")[0]
        defaults = tomllib.loads("\n".join(re.findall(r"^# (\w+ = \S+)", section, re.MULTILINE)))
        assert issubclass(model, BaseModel)
        assert model().model_dump(mode="json", exclude={"worker"}) == {
            key: value for key, value in defaults.items() if key != "worker"
        }
