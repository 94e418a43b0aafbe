"""Do the service's commands do what they say, in words for people and in JSON for programs?"""

from __future__ import annotations

import ast
import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer

import streamdp as sd
from streamdp.cli import application
from streamdp.cli.watch import _rank
from streamdp.ports import Taken
from streamdp.service.config import example
from streamdp.wire.published import decode_action
from streamdp.wire.unprotected import LABEL, MEMBER
from streamdp_adapters.sqlite.tools import SqliteAdministrator
from tests.conftest import ROOT
from tests.support.calling import Streamdp, written
from tests.support.learned_shop import KEYS, learned
from tests.support.publishing import action, release

# -- the program -------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its whole name."""

    def below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        subcommands = getattr(command, "commands", None)
        if subcommands is None:
            yield name, command
        else:
            for word, inner in subcommands.items():
                yield from below(f"{name} {word}".strip(), inner)

    yield from below("", typer.main.get_command(application()))


SERVICE = ("run", "check", "doctor", "topics create", "topics check", "topics expand",
           "ledger show", "ledger verify", "state inspect", "send", "watch")  # fmt: skip


def test_has_each_command_help_with_an_example() -> None:
    """What to type, not only what there is."""
    by_name = dict(commands())
    assert set(SERVICE) <= set(by_name)
    lacking = [name for name in SERVICE if f"streamdp {name}" not in (by_name[name].help or "")]
    assert lacking == []


def test_do_the_commands_for_programs_speak_json() -> None:
    """Everything that tells something, but for `run`, whose log is JSON."""
    by_name = dict(commands())
    lacking = [
        name
        for name in SERVICE
        if name != "run" and not any("--json" in param.opts for param in by_name[name].params)
    ]
    assert lacking == []


def test_is_help_quick_because_it_loads_nothing_heavy() -> None:
    """Commands import what they need when they are called."""
    assert loaded("from streamdp.cli import application; application()", HEAVY) == []


def test_does_reading_a_configuration_load_no_engine() -> None:
    """Commands that only read it start in the time of numpy and pydantic."""
    read = "from streamdp.service.config import Configuration; import streamdp.ports"
    rooms = ["streamdp.core.engine", "streamdp.service.worker", "streamdp.wire.state", "asyncio"]
    assert loaded(read, rooms) == []
    assert loaded("import streamdp; streamdp.Engine", rooms) == ["streamdp.core.engine"]


HEAVY = ("aiokafka", "asyncio", "cryptography", "msgspec", "numpy", "pydantic", "structlog")


def loaded(statement: str, of: Sequence[str]) -> list[str]:
    """Which of these modules a fresh interpreter holds after a statement."""
    program = (
        f"import sys; {statement}; print([each for each in {list(of)!r} if each in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return [str(name) for name in ast.literal_eval(run.stdout)]


def test_is_the_version_told(streamdp: Streamdp) -> None:
    """One line, for scripts and reports of defects."""
    result = streamdp("--version")
    assert (result.code, result.out) == (0, f"streamdp {sd.__version__}\n")


# -- check -------------------------------------------------------------------------------------


def test_does_check_say_what_each_stream_costs(shop: Path, streamdp: Streamdp) -> None:
    """And touches nothing."""
    result = streamdp("check", "--config", str(shop))
    assert result.code == 0
    assert "each record is charged ε = 3/4, of a budget of 3/4" in result.out
    report = streamdp("check", "-c", str(shop), "--json").json
    assert report["topics"][0] == {
        "topic": "losses", "budget": "3/4", "charged": "3/4", "elsewhere": "0",
    }  # fmt: skip
    assert report["streams"][0]["charges"] == {"action": "1/2", "block_regret": "1/4"}


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        ('epsilon = "0.5"', None),
        ('epsilon = "0.5"\nschedule = "capped 3"', None),
        ('epsilon = "0.5"\nrecipe = "incumbent_leader"', "blocks grow for ever"),
        ('epsilon = "0.5"\nrecipe = "incumbent_leader"\nschedule = "capped 512"', None),
        ('epsilon = "0.5"\nrecipe = "prefix_softmax"', "remembering_leader follows within a few"),
        ('epsilon = "0.5"\nschedule = "dyadic"', "blocks grow for ever"),
        ('epsilon = "0.5"\nschedule = "restarting 5000"', "begin anew every 5000 events of a key"),
        ('epsilon = "0.5"\nschedule = "geometric 2 to 100000"', "blocks of 100000 events of a key"),
    ],
)
def test_does_check_warn_where_a_schedule_cannot_follow_change(
    tmp_path: Path, streamdp: Streamdp, learner: str, said: str | None
) -> None:
    """In text and in JSON; the default and short blocks get no warning."""
    path = written(tmp_path)
    text, usual = path.read_text(), 'epsilon = "1/2"\nschedule = "capped 3"'
    assert usual in text
    path.write_text(text.replace(usual, learner))
    (stream,) = streamdp("check", "-c", str(path), "--json").json["streams"]
    lines = streamdp("check", "-c", str(path)).out
    if said is None:
        assert stream["warnings"] == []
        assert "the best action changes" not in lines
    else:
        (warning,) = stream["warnings"]
        assert said in warning
        assert "if the best action changes" in warning
        assert warning in lines


def test_does_check_print_what_to_begin_with(tmp_path: Path, streamdp: Streamdp) -> None:
    """An example that passes, and a schema."""
    path = tmp_path / "streamdp.toml"
    path.write_text(streamdp("check", "--example").out)
    assert path.read_text() == example()
    assert streamdp("check", "-c", str(path)).code == 0
    assert "streams" in streamdp("check", "--schema").json["properties"]


def test_does_check_accept_what_deploy_ships(streamdp: Streamdp, tmp_path: Path) -> None:
    """Compose's; those of the chart's examples are checked with it."""
    path = ROOT / "deploy" / "compose" / "streamdp.toml"
    assert streamdp("check", "-c", str(path)).code == 0


def test_are_epochs_of_partitions_found_that_do_not_exist(shop: Path, streamdp: Streamdp) -> None:
    """By whatever looks at the transport; the one that was meant would go on as it is."""
    said = "partition_epochs: losses has no such partition; expected numbers from 0 to 1, got 2, 7"
    text = shop.read_text()
    shop.write_text(f"{text}[streams.home.partition_epochs]\n0 = 2\n7 = 2\n2 = 3\n")
    assert streamdp("check", "-c", str(shop)).code == 0  # it asks nobody
    refused = streamdp("check", "--with-state", "-c", str(shop))
    assert (refused.code, said in refused.err) == (4, True), refused.err
    ended = streamdp("doctor", "-c", str(shop), "--json")
    (finding,) = [finding for finding in ended.json if finding["verdict"] == "problem"]
    assert (ended.code, finding["subject"]) == (1, "epochs of home")
    assert said in finding["detail"]
    shop.write_text(f"{text}[streams.home.partition_epochs]\n0 = 2\n1 = 2\n")
    assert streamdp("check", "--with-state", "-c", str(shop)).code == 0
    assert streamdp("doctor", "-c", str(shop)).code == 0


def test_does_check_with_the_state_stop_what_needs_a_new_epoch(
    shop: Path, streamdp: Streamdp
) -> None:
    """Nothing but the state can know; a new epoch, or the same again, may pass."""
    ask = ("check", "--with-state", "-c", str(shop))
    assert streamdp(*ask).code == 0
    text = shop.read_text()
    first = text[text.index("actions = [") :].partition("\n")[0]
    other = text.replace('epsilon = "1/2"', 'epsilon = "1/3"')
    shop.write_text(other.replace(first, first.replace("]", ', "new"]')))
    assert streamdp("check", "-c", str(shop)).code == 0
    refused = streamdp(*ask)
    assert (refused.code, refused.out) == (4, "")
    assert "needs a new epoch" in refused.err
    assert " in learner.epsilon (was 1/2, is 1/3) and actions (new: 'new');" in refused.err
    shop.write_text(shop.read_text().replace('start = "earliest"', 'start = "earliest"\nepoch = 2'))
    assert streamdp(*ask).code == 0


def test_does_check_with_the_state_hold_no_learner(
    shop: Path, streamdp: Streamdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in a small container beside a state of any size: rows and releases are read past."""
    looked: list[Taken] = []

    async def peek(tools: SqliteAdministrator, *args: Any, **options: Any) -> Taken:
        looked.append(await plain(tools, *args, **options))
        return looked[-1]

    plain = SqliteAdministrator.peek
    monkeypatch.setattr(SqliteAdministrator, "peek", peek)
    assert streamdp("doctor", "-c", str(shop)).code == 0
    whole = [entry for taken in looked for entry in taken.state]
    looked.clear()
    assert streamdp("check", "--with-state", "-c", str(shop)).code == 0
    held = {entry for taken in looked for entry in taken.state}
    assert held == {of for of in whole if b'"checkpoint"' in of or b'"learner"' in of} != set(whole)


def test_does_check_with_the_state_accept_what_is_not_there_yet(
    tmp_path: Path, streamdp: Streamdp
) -> None:
    assert streamdp("check", "--with-state", "-c", str(written(tmp_path))).code == 0
    assert list(tmp_path.glob("*.db")) == []


def test_is_a_wrong_configuration_exit_code_2(shop: Path, streamdp: Streamdp) -> None:
    """With the message on standard error, and nothing else."""
    shop.write_text(shop.read_text().replace('budget = "3/4"', 'budget = "1/4"'))
    result = streamdp("check", "-c", str(shop))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"streamdp: {shop}: topics.losses.budget: the topic's streams may")
    assert streamdp("check", "-c", "nowhere.toml").code == 2
    assert streamdp("check", "--no-such-option").code == 2


# -- topics ------------------------------------------------------------------------------------


def test_do_topics_get_made_checked_and_expanded(tmp_path: Path, streamdp: Streamdp) -> None:
    """Each says what it found or did."""
    config = ("--config", str(written(tmp_path)))
    missing = streamdp("topics", "check", *config, "--json")
    assert (missing.code, missing.json[-1]["verdict"]) == (1, "problem")
    assert "2 partitions" in streamdp("topics", "create", *config).out
    assert streamdp("topics", "check", *config).code == 0
    assert streamdp("topics", "expand", *config, "--partitions", "5", "--json").json == [
        {"subject": "topic losses", "verdict": "changed", "detail": "5 partitions"}
    ]
    assert "topics create" in streamdp("topics", "--print", *config).out
    assert streamdp("topics", *config).code == 2


# -- watch -------------------------------------------------------------------------------------


def test_does_watch_show_the_actions_in_force(shop: Path, streamdp: Streamdp) -> None:
    """One line a key, of those that were asked for."""
    result = streamdp("watch", "-c", str(shop), "--once")
    assert [line.split()[0] for line in result.out.splitlines()] == ["(no", "de", "fr", "it"]
    assert re.search(r"^fr +[abc] +block \d+, in force from slot \d+$", result.out, re.M)
    only = streamdp("watch", "-c", str(shop), "--once", "--key", "fr", "--json").json
    assert (only["key"], only["type"]) == ("fr", "action")
    for of_none in (("watch", "--once"), ("ledger", "show")):
        ran = streamdp(*of_none, "-c", str(shop), "--key", "none")
        assert (ran.code, ran.out) == (0, "")
        assert ran.err == "nothing is published of what was asked for\n"


def test_does_watch_rank_partitions_as_readers_do() -> None:
    """A key's learner of a later epoch answers, however many slots an older one has seen."""
    old = decode_action(action(release(b"fr", 0, block=5, stop=99)).value)
    new = decode_action(action(release(b"fr", 1, epoch=2, partition=1)).value)
    assert max(old, new, key=_rank) is new


def test_does_watch_follow_until_interrupted(shop: Path, streamdp: Streamdp) -> None:
    """Lines come as they are published, at once; the newest list before any action."""
    for change in ("pause", "resume", "pause"):
        assert streamdp("actions", "home", change, "a", "-c", str(shop)).code == 0
    program = [sys.executable, "-c", "from streamdp.cli import main; main()"]
    with subprocess.Popen(
        [*program, "watch", "-c", str(shop), "--json"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        keys = {json.loads(process.stdout.readline())["key"] for _ in range(4)}
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert (first["type"], first["ordinal"], first["paused"]) == ("list", 3, ["a"])
    assert keys == {None, "de", "fr", "it"}


def test_do_keys_neither_forge_lines_nor_command_a_terminal(
    tmp_path: Path, streamdp: Streamdp
) -> None:
    """Whatever a producer writes is one word in one line, and no two keys look the same."""
    forged = b"a\nfake   right   block 9, in force from slot 9"
    keys = [forged, b"\x1b[2J", "\x9b2J\u202e".encode(), b"\xff", b"\\xff", b"(no key)", None]
    learned(written(tmp_path), keys=keys)
    config = ("-c", str(tmp_path / "shop.toml"))
    for result in (streamdp("watch", *config, "--once"), streamdp("ledger", "show", *config)):
        assert result.code == 0
        assert all(line.isprintable() for line in result.out.split("\n"))
        assert not any(line.startswith("fake") for line in result.out.splitlines())
        shown = ['"a\\nfake   right', '"\\u001b[2J"', '"\\u009b2J\\u202e"', '"\\xff"', '"\\\\xff"']
        for name in (*shown, '"(no key)"', " (no key) "):
            assert name in f" {result.out}", name
    for asked in ('"\\xff"', "\udcff"):
        lines = streamdp("ledger", "show", *config, "--key", asked, "--json").out.splitlines()
        assert {json.loads(line)["key_base64"] for line in lines} == {"/w=="}
        assert streamdp("watch", *config, "--once", "--key", asked, "--json").json["key_base64"]
    assert streamdp("watch", *config, "--once", "--key", forged.decode(), "--json").json["key"]
    exact = streamdp("state", "inspect", *config, "--not-private")
    assert all(line.isprintable() for line in exact.out.split("\n"))


# -- ledger ------------------------------------------------------------------------------------


def test_does_the_ledger_show_what_was_charged(shop: Path, streamdp: Streamdp) -> None:
    """The published lines, in words or as they are."""
    text = streamdp("ledger", "show", "-c", str(shop), "--key", "fr", "--last", "3").out
    assert len(text.splitlines()) == 3
    assert re.search(r"fr +block \d+ +action +ε 1/2 +slots \[\d+, \d+\)", text)
    line = json.loads(streamdp("ledger", "show", "-c", str(shop), "--json").out.splitlines()[0])
    assert (line["type"], line["kind"]) == ("charge", "opening")


def test_the_last_lines_of_each_partition_are_shown(shop: Path, streamdp: Streamdp) -> None:
    """Partition by partition: there is no order between them."""
    shown = ("ledger", "show", "-c", str(shop), "--json")
    lines = [json.loads(line) for line in streamdp(*shown).out.splitlines()]
    parts = [line["partition"] for line in lines]
    assert (parts, set(parts)) == (sorted(parts), {0, 1})
    last = [json.loads(line) for line in streamdp(*shown, "--last", "2").out.splitlines()]
    assert last == [
        line for part in (0, 1) for line in [of for of in lines if of["partition"] == part][-2:]
    ]


def test_does_verify_prove_the_guarantee(shop: Path, streamdp: Streamdp) -> None:
    """From the ledger alone: the highest charge on any record, within the budget."""
    result = streamdp("ledger", "verify", "-c", str(shop))
    assert result.code == 0
    assert "the highest charge on any record is ε = 3/4, of a budget of 3/4" in result.out
    assert result.out.strip().endswith("kept")
    assert "published actions are those that the ledger puts in force" in result.out
    report = streamdp("ledger", "verify", "-c", str(shop), "--json").json
    assert (report["violations"], report["topics"][0]["kept"]) == ([], True)
    assert report["compared"]["actions"] > 0
    assert report["compared"]["not_read"] == []


def test_does_verify_find_what_readers_were_told_and_no_line_tells_of(
    shop: Path, streamdp: Streamdp
) -> None:
    """Who changes what is published is found by the ledger."""
    with closing(sqlite3.connect(shop.with_name("shop.published.db"))) as file, file:
        file.execute(
            """UPDATE action SET value =
            CAST(replace(CAST(value AS TEXT), '"block":', '"block":1') AS BLOB)"""
        )
    result = streamdp("ledger", "verify", "-c", str(shop))
    assert (result.code, "NOT PROVEN, see the violations" in result.out) == (1, True)
    assert "which has no ledger line" in result.out


def test_does_verify_find_last_lines_that_were_deleted_with_their_actions(
    shop: Path, streamdp: Streamdp
) -> None:
    """What is left agrees with itself; the state says how many lines were published. Where they
    are gone from the published file alone, they wait in the trusted one to be copied again.
    """
    for name in ("shop.published.db", "shop.db"):
        assert streamdp("ledger", "verify", "-c", str(shop)).code == 0
        with closing(sqlite3.connect(shop.with_name(name))) as file, file:
            lines = file.execute("SELECT id, key FROM ledger ORDER BY id").fetchall()
            file.execute("DELETE FROM ledger WHERE id = ?", (lines[-1][0],))
            file.execute("DELETE FROM action WHERE key IS ?", (lines[-1][1],))
    result = streamdp("ledger", "verify", "-c", str(shop))
    assert (result.code, "NOT PROVEN, see the violations" in result.out) == (1, True)
    assert "its last lines are gone: it ends with line" in result.out


def test_does_verify_refuse_more_than_the_budget(shop: Path, streamdp: Streamdp) -> None:
    """Whatever the configuration says now: exit code 1."""
    text = shop.read_text().replace('budget = "3/4"', 'budget = "1/2"')
    shop.write_text(text.replace('epsilon = "1/2"', 'epsilon = "1/8"'))
    result = streamdp("ledger", "verify", "-c", str(shop))
    assert (result.code, "OVER BUDGET" in result.out) == (1, True)


def test_does_verify_add_what_is_charged_elsewhere(shop: Path, streamdp: Streamdp) -> None:
    """It is not in these ledgers, so it is believed."""
    shop.write_text(shop.read_text().replace('"3/4"', '"1"\nelsewhere = "1/4"'))
    result = streamdp("ledger", "verify", "-c", str(shop))
    assert (result.code, "ε = 3/4 + 1/4 elsewhere, of a budget of 1" in result.out) == (0, True)


@pytest.mark.slow
def test_does_verify_add_applications_that_read_one_topic(shop: Path, streamdp: Streamdp) -> None:
    """Two of 3/4 are 3/2, whichever of them is asked: the other's ledger is in the same file."""
    other = written(shop.parent, app="other", name="other.toml")
    for path in (shop, other):
        path.write_text(path.read_text().replace('"3/4"', '"7/4"\nelsewhere = "1"'))
    learned(other)
    result = streamdp("ledger", "verify", "-c", str(shop), "-c", str(other))
    assert (result.code, "ε = 3/2, of a budget of 7/4" in result.out) == (0, True)
    alone = streamdp("ledger", "verify", "-c", str(shop))
    said = "ε = 3/2 (without other applications: 3/4 + 1 elsewhere), of a budget of 7/4"
    assert (alone.code, said in alone.out) == (0, True)
    for path in (shop, other):
        path.write_text(path.read_text().replace('"7/4"\nelsewhere = "1"', '"3/4"'))
        assert streamdp("ledger", "verify", "-c", str(path)).code == 1
    assert streamdp("ledger", "verify", "-c", str(shop), "-c", str(other)).code == 1


def test_does_verify_refuse_a_delta(shop: Path, streamdp: Streamdp) -> None:
    """A line that says it is not pure is no proof of a pure promise."""
    with closing(sqlite3.connect(shop.with_name("shop.published.db"))) as file, file:
        file.execute(
            """UPDATE ledger SET value =
            CAST(replace(CAST(value AS TEXT), '"delta":"0"', '"delta":"1/10"') AS BLOB)"""
        )
    result = streamdp("ledger", "verify", "-c", str(shop))
    assert (result.code, "NOT PROVEN, see the violations" in result.out) == (1, True)
    assert "δ is charged, but the promise is pure; expected 0, got 1/10" in result.out
    assert not streamdp("ledger", "verify", "-c", str(shop), "--json").json["topics"][0]["kept"]


def test_does_verify_read_each_ledger_once(
    shop: Path, streamdp: Streamdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again it would look like every charge again; the variable counts like the option."""
    result = streamdp("ledger", "verify", "-c", str(shop), "-c", str(shop))
    assert (result.code, result.out) == (2, "")
    assert (
        "streams.home: a ledger is given twice; expected each once, got shop.home.ledger, as in"
        in result.err
    )
    monkeypatch.setenv("STREAMDP_CONFIG", str(shop))
    assert "ε = 3/4, of a budget of 3/4" in streamdp("ledger", "verify").out
    monkeypatch.setenv("STREAMDP_CONFIG", str(shop.with_name("none.toml")))
    assert "none.toml: cannot be read" in streamdp("ledger", "verify").err


# -- state and doctor --------------------------------------------------------------------------


def test_does_inspect_show_the_state_without_content(shop: Path, streamdp: Streamdp) -> None:
    """Positions and numbers; sums only on request, with a banner."""
    result = streamdp("state", "inspect", "-c", str(shop), "--json")
    parts = result.json
    assert [part["partition"] for part in parts] == ["home/0", "home/1"]
    assert sum(part["checkpoint"]["next_offset"] for part in parts) == 400
    assert {part["checkpoint"]["configuration"] for part in parts} == {"same"}
    assert all(part["last_owner"] for part in parts)  # the process that took them last
    assert "sums" not in result.out
    assert "NOT PRIVATE" not in result.err
    words = streamdp("state", "inspect", "-c", str(shop), "--partition", "1").out
    assert words.startswith("partition home/1\n")
    exact = streamdp("state", "inspect", "-c", str(shop), "--not-private", "--json")
    assert "NOT PRIVATE" in exact.err
    assert all(len(row["sums"]) == 3 for part in exact.json for row in part["rows"].values())
    assert [next(iter(part.items())) for part in exact.json] == [(MEMBER, LABEL)] * 2
    assert MEMBER not in result.out
    assert "not private" in streamdp("state", "inspect", "-c", str(shop), "--not-private").out


def test_does_the_doctor_find_a_healthy_shop_healthy(shop: Path, streamdp: Streamdp) -> None:
    """Files, topics, state and retention."""
    result = streamdp("doctor", "-c", str(shop))
    assert result.code == 0
    assert "partition home/1: state: commit" in result.out
    assert "partition home/0: retention: a rebuild reads from" in result.out
    assert f"keys of home: {len(KEYS)}, each in one partition" in result.out


def test_does_the_doctor_say_what_is_wrong_with_records(shop: Path, streamdp: Streamdp) -> None:
    """NOT PRIVATE, in so many words, and exit code 1."""
    result = streamdp("doctor", "-c", str(shop), "--sample", "100", "--json")
    assert result.code == 1
    assert result.err.startswith("NOT PRIVATE")
    bad = [finding for finding in result.json if finding["subject"].startswith("NOT PRIVATE")]
    assert "records unusable" in bad[-1]["detail"]
    assert len(bad) > 1
    assert [finding.get(MEMBER) for finding in bad] == [LABEL] * len(bad)
    assert all(MEMBER not in finding for finding in result.json if finding not in bad)


def test_does_the_doctor_say_that_nothing_is_there_yet(tmp_path: Path, streamdp: Streamdp) -> None:
    """What to do comes before what it would look at."""
    result = streamdp("doctor", "-c", str(written(tmp_path)))
    assert (result.code, result.err) == (1, "")
    assert "there is no such file: create it" in result.out


def test_does_the_doctor_show_what_was_set_aside(tmp_path: Path, streamdp: Streamdp) -> None:
    """NOT PRIVATE: the newest of the unusable records that the service has met, and why."""
    path = written(tmp_path)
    path.write_text(path.read_text().replace("[streams.home]", "[streams.home]\nquarantine = true"))
    assert streamdp("topics", "create", "-c", str(path)).code == 0
    learned(path)
    result = streamdp("doctor", "-c", str(path), "--quarantine", "3", "--json")
    assert result.code == 0
    assert result.err.startswith("NOT PRIVATE")
    aside = [
        finding for finding in result.json if finding["subject"].startswith("NOT PRIVATE: losses ")
    ]
    assert len(aside) == 3
    assert all(finding[MEMBER] == LABEL for finding in aside)
    assert all("b'\\xffgarbage'" in finding["detail"] for finding in aside)
    assert "garbage" not in str(streamdp("ledger", "show", "-c", str(path)).out)


def test_does_the_doctor_say_that_a_partition_would_halt(shop: Path, streamdp: Streamdp) -> None:
    """Before it does: the configuration differs from the state's."""
    shop.write_text(shop.read_text().replace('epsilon = "1/2"', 'epsilon = "1/4"'))
    result = streamdp("doctor", "-c", str(shop))
    assert result.code == 1
    assert "PROBLEM  partition home/0: state" in result.out
    assert "needs a new epoch" in result.out
    shop.write_text(shop.read_text().replace("[streams.home]", "[streams.home]\nepoch = 2"))
    result = streamdp("doctor", "-c", str(shop))
    assert (result.code, "epoch 2 would begin at record" in result.out) == (0, True)


def test_is_what_the_transport_refuses_exit_code_3(tmp_path: Path, streamdp: Streamdp) -> None:
    """A published file that is not there is no fault of the configuration."""
    result = streamdp("watch", "-c", str(written(tmp_path)), "--once")
    assert result.code == 3
    assert "shop.published.db: is missing" in result.err
