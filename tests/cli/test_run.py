"""Does `streamdp run` keep its promise as a process: signals, kills, a second one, a full disk?

Real processes on real SQLite files. The judge reads the published file, and holds the ledger
against an offline fold of the input: the stream is seeded.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streamdp.ports import Key, Partition, Published, Records, StreamTopics, Value
from streamdp.service.config import Configuration, Seeds
from streamdp.service.logs import EVENTS
from streamdp.testing.judge import Evidence, judge, judge_fold
from streamdp.wire.published import decode_ledger
from streamdp.wire.state import read_state
from tests.conftest import ROOT
from tests.support.decoding import decode
from tests.support.processes import INTERPRETER, LONG, MAIN, Process, ended_at_once, until
from tests.support.streams import events

pytestmark = pytest.mark.slow

CONFIG = """
app = "shop"
[transport]
kind = "sqlite"
path = "{folder}/shop.db"
partitions = 2
actions = "all"
[topics.losses]
budget = "3/4"
[streams.home]
input = "losses"
start = "earliest"
actions = ["a", "b", "c"]
seed = "test"
[streams.home.learner]
recipe = "prefix_softmax"
epsilon = "1/2"
schedule = "capped 3"
[[streams.home.estimates]]
name = "block_regret"
epsilon = "1/4"
min_length = 3
[service]
idle_commit_seconds = 0.05
[log]
format = "json"
"""

KEYS = tuple(f"key {n}".encode() for n in range(9))
PARTITIONS = (0, 1)


@dataclass
class Shop:
    """A configuration with its files, and what can be seen of them from outside."""

    path: Path

    @property
    def configuration(self) -> Configuration:
        """As it is now."""
        return Configuration.load(self.path, {})

    @property
    def topics(self) -> StreamTopics:
        """The stream's."""
        return self.configuration.topics()[0]

    def change(self, old: str, new: str) -> None:
        """Edit the file."""
        text = self.path.read_text()
        assert old in text
        self.path.write_text(text.replace(old, new))

    def run(self, **options: Any) -> Process:
        """A process of the service."""
        return Process.start("run", "--config", str(self.path), "--insecure-seed", **options)

    def send(self, count: int, *, seed: int = 1) -> None:
        """Append events."""
        records: Sequence[tuple[Key, Value]] = events(count, keys=KEYS, seed=seed)

        async def sent() -> None:
            producer = self.configuration.technology().producer()
            await producer.send(self.topics.input, records)
            await producer.close()

        asyncio.run(sent())

    def position(self, partition: int) -> tuple[int, int]:
        """The durable position, and where the input ends."""

        async def peeked() -> tuple[int, int]:
            tools = self.configuration.technology().administrator()
            taken = await tools.peek(self.topics, partition)
            await tools.close()
            saved = read_state(taken.state, stream="home", partition=partition)
            at = -1 if saved.checkpoint is None else saved.checkpoint.next_offset
            return at, taken.end_offset

        return asyncio.run(peeked())

    def total(self) -> int:
        """How many records are durably applied."""
        return sum(at for at, _ in map(self.position, PARTITIONS))

    def is_read(self) -> bool:
        """Whether every record is durably applied."""
        return all(at >= end for at, end in map(self.position, PARTITIONS))

    def published(self) -> tuple[list[Published], list[Published]]:
        """Actions and ledger."""

        async def read() -> tuple[list[Published], list[Published]]:
            reader = self.configuration.technology().publications()
            both = [
                [record async for batch in stream for record in batch]
                for stream in (
                    reader.actions(self.topics, follow=False),
                    reader.ledger(self.topics, follow=False),
                )
            ]
            await reader.close()
            return both[0], both[1]

        return asyncio.run(read())

    def input(self, partition: int) -> Records:
        """All of it."""

        async def newest() -> Sequence[Records]:
            tools = self.configuration.technology().administrator()
            records = await tools.newest(self.topics, count=10**6)
            await tools.close()
            return records

        (records,) = [
            batch for batch in asyncio.run(newest()) if batch.partition.number == partition
        ]
        return records

    def wrong(self, *, whole: str = "whole") -> list[str]:
        """What the judge finds."""
        (spec,) = self.configuration.specs(seeds=Seeds.ALLOWED)
        actions, ledger = self.published()
        faults: list[str] = []
        for number in PARTITIONS:
            evidence = Evidence(
                Partition("home", number),
                [record for record in actions if record.partition == number],
                [record for record in ledger if record.partition == number],
            )
            batch, _ = decode(spec.format, [self.input(number)], most_key_bytes=spec.most_key_bytes)
            faults += judge(evidence)
            faults += judge_fold(
                evidence,
                engine=spec.engine(number),
                lines=spec.lines,
                log=[batch],
                whole=whole,
            )
        return faults


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """An empty shop."""
    path = tmp_path / "shop.toml"
    path.write_text(CONFIG.format(folder=tmp_path))
    return Shop(path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_does_a_signal_drain(shop: Shop, number: signal.Signals) -> None:
    """What was drawn is public when it ends; the next one goes on from there."""
    shop.send(300)
    with shop.run() as process:
        process.hear("partition_running")
        assert process.end(number) == 0
    assert process.said("signal")[0]["name"] == number.name
    assert process.said("stopped")
    assert shop.wrong(whole="prefix") == []
    shop.send(100, seed=2)
    with shop.run() as process:
        until(shop.is_read)
        assert process.end() == 0
    assert shop.wrong() == []
    assert {line["event"] for line in process.lines} <= set(EVENTS)
    assert process.other == []


def test_does_a_kill_lose_or_repeat_nothing(shop: Shop) -> None:
    """SIGKILL, again and again, at whatever it is doing."""
    for seed in range(3):
        shop.send(400, seed=seed)
        before = shop.total()
        with shop.run() as process:
            while shop.total() <= before:
                assert process.popen.poll() is None
            assert process.end(signal.SIGKILL) == -signal.SIGKILL
    shop.send(50, seed=5)
    with shop.run() as process:
        until(shop.is_read)
        assert process.end() == 0
    assert shop.wrong() == []


def test_is_a_second_process_refused(shop: Shop) -> None:
    """Exit code 3 and who has the files; the first goes on, and when it is killed another can."""
    shop.send(300)
    with shop.run() as first:
        first.hear("partition_running")
        with shop.run() as second:
            assert second.ended() == 3
        (entry,) = second.said("failed")
        holder = f"worker {socket.gethostname()}:{first.popen.pid}, process {first.popen.pid}"
        assert f"stop that one first; expected a free file, got one locked by {holder}" in str(
            entry["detail"]
        )
        assert not second.said("joined")
        shop.send(300, seed=2)
        until(shop.is_read)
        assert first.end(signal.SIGKILL) == -signal.SIGKILL
    with shop.run() as third:
        shop.send(50, seed=3)
        until(shop.is_read)
        assert third.end() == 0
    assert not first.said("partition_revoked")
    assert shop.wrong() == []


WITHOUT_LOCKS = {
    "program": f"import sys; sys.modules['fcntl'] = None; {MAIN}",
    "interpreter": INTERPRETER,
}


def test_does_a_fenced_process_end_where_there_are_no_locks(shop: Shop) -> None:
    """The newest owner wins; the first one touches nothing more, and ends with exit code 3."""
    shop.send(300)
    auto = {"STREAMDP__LOG__FORMAT": "auto"}
    with shop.run(**WITHOUT_LOCKS, environment=auto) as first:
        first.hear("partition_running")
        with shop.run(**WITHOUT_LOCKS) as second:
            second.hear("partition_running")
            shop.send(300, seed=2)
            assert first.ended() == 3
            until(shop.is_read)
            assert second.end() == 0
    (entry,) = first.said("failed")
    assert not first.other  # it had started: this is the log's
    assert "fenced; let one process at a time use these files" in str(entry["detail"])
    assert shop.wrong() == []


def test_does_a_full_disk_end_it_with_one_clear_message(shop: Shop) -> None:
    """Exit code 6; nothing that was durable is lost, and with room it goes on."""
    shop.send(2000)
    with shop.run(file_limit=1 << 16) as process:
        assert process.ended() == 6
    (entry,) = process.said("failed")
    assert "cannot grow; expected room on the disk" in str(entry["detail"])
    with shop.run() as process:
        until(shop.is_read)
        assert process.end() == 0
    assert shop.wrong() == []


def test_does_a_second_signal_stop_at_once(shop: Shop) -> None:
    """Without a drain, which is safe: the next one publishes what was recorded."""
    shop.send(300)
    with shop.run() as process:
        process.hear("partition_running")
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGINT)
        assert process.ended() in (0, 130)
    with shop.run() as process:
        process.hear("partition_running")  # before that, nobody listens to signals
        until(shop.is_read)
        assert process.end() == 0
    assert shop.wrong() == []


def test_does_a_halt_end_it_if_so_configured(shop: Shop) -> None:
    """Exit code 4, and a message that says what differs and what to do."""
    shop.send(100)
    with shop.run() as process:
        until(shop.is_read)
        assert process.end() == 0
    shop.change('epsilon = "1/2"', 'epsilon = "1/5"')
    shop.change("[service]", '[service]\non_halt = "exit"')
    with shop.run(environment={"STREAMDP__LOG__FORMAT": "auto"}) as process:
        assert process.ended() == 4
    entry = process.said("partition_halted")[0]
    assert (entry["reason"], entry["level"]) == ("configuration_mismatch", "error")
    assert "needs a new epoch" in str(entry["detail"])
    where, _, why = str(entry["detail"]).partition(": ")
    plain = f"streamdp: {where} is halted (configuration_mismatch): {why}\n"
    assert plain in process.other  # also for who reads what is piped
    shop.change('start = "earliest"', 'start = "earliest"\nepoch = 2')
    shop.send(100, seed=2)
    with shop.run() as process:
        until(shop.is_read)
        assert process.end() == 0
    assert {decode_ledger(record.value).epoch for record in shop.published()[1]} == {1, 2}


# -- what cannot start -------------------------------------------------------------------------


def test_is_a_wrong_configuration_told_in_one_line(shop: Shop) -> None:
    """Exit code 2, and nothing was started or made."""
    shop.change('start = "earliest"', 'begin = "earliest"')
    run = ended_at_once("run", "--config", str(shop.path), "--insecure-seed")
    assert run.returncode == 2
    assert run.stderr.splitlines() == [
        f"streamdp: {shop.path}: streams.home.start: missing; expected where a stream without any"
        " state begins, got nothing",
        f"streamdp: {shop.path}: streams.home.begin: unknown key; expected one of input, start,"
        " observes, feedback, context, actions, actions_file, room, learner, estimates, format,"
        " epoch, partition_epochs, idle, carry,"
        " fallback_action, gap, quarantine, limits, seed, got begin",
    ]
    assert not (shop.path.parent / "shop.db").exists()


def test_is_a_seed_refused_without_its_flag(shop: Shop) -> None:
    """Exit code 2."""
    run = ended_at_once("run", "--config", str(shop.path))
    assert (run.returncode, "seeded randomness protects nobody" in run.stderr) == (2, True)


def test_is_a_missing_topic_told(shop: Shop) -> None:
    """Exit code 3: it may be made later."""
    shop.change("partitions = 2", "partitions = 0")
    with shop.run() as process:
        assert process.ended() == 3
    (entry,) = process.said("failed")
    assert "topic losses: missing; expected `streamdp topics create`" in str(entry["detail"])
    assert entry["exit_code"] == 3


def test_is_the_cause_of_a_failed_start_a_plain_line_where_nobody_asked_for_json(
    shop: Shop,
) -> None:
    """With `log.format = "json"` every line is JSON; piped by default the cause is readable."""
    shop.change("partitions = 2", "partitions = 0")
    cause = "topic losses: missing; expected `streamdp topics create`, got no such topic"
    for form, plain in (("json", []), ("auto", [f"streamdp: {cause}\n"])):
        with shop.run(environment={"STREAMDP__LOG__FORMAT": form}) as process:
            assert process.ended() == 3
        (entry,) = process.said("failed")
        assert (entry["detail"], process.other) == (cause, plain)


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        (["run", "--nonsense"], "Error: No such option: --nonsense"),
        (["serve", "--nonsense"], "Error: No such option: --nonsense"),
        (["check", "--config"], "Error: Option '--config' requires an argument."),
        (["demo", "--seconds", "soon"], "Error: Invalid value for '--seconds': Input should be"
         " a valid number, unable to parse string as a number"),
        (["demo", "--seconds", "1", "--listen", "here"], "streamdp: "),
        (["serve", "--config", "a-name-" * 30 + ".toml"], "streamdp: " + "a-name-" * 30 + ".toml:"
         " cannot be read; expected a TOML file, got No such file or directory"),
    ],
)  # fmt: skip
def test_is_a_call_that_cannot_be_told_in_plain_lines(call: list[str], cause: str) -> None:
    """Piped, the last line is the whole cause: in no box, and not wrapped at 80 columns."""
    run = ended_at_once(*call)
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].startswith(cause)
    assert run.stderr.isascii()  # the frame of a box is not


def test_is_an_unreachable_broker_waited_for(shop: Shop) -> None:
    """At the start as later: which broker and why, again and again, until it is told to end."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        port = taken.getsockname()[1]
        environment = {"STREAMDP__TRANSPORT": f'{{kind = "kafka", bootstrap = "127.0.0.1:{port}"}}'}
        with shop.run(environment={**environment, "STREAMDP__LOG__FORMAT": "auto"}) as process:
            process.hear("join_lost")
            taken.listen()
            taken.settimeout(LONG)
            with taken.accept()[0]:  # it goes on trying, whether it logs each time or not
                assert process.end() == 0
    assert not process.said("failed")
    for entry in process.said("join_lost"):
        assert f"127.0.0.1:{port}: unreachable" in str(entry["detail"])
    plain = [line for line in process.other if line.startswith("streamdp: waiting for the")]
    causes = {str(entry["detail"]) for entry in process.said("join_lost")}
    assert plain == [f"streamdp: waiting for the transport: {cause}\n" for cause in causes]  # once


def test_is_a_port_in_use_an_end_that_may_be_tried_again(shop: Shop) -> None:
    """Exit code 3, which systemd restarts, unlike a wrong configuration."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with shop.run(environment={"STREAMDP__OPERATIONS__LISTEN": address}) as process:
            assert process.ended() == 3
    (entry,) = process.said("failed")
    detail = str(entry["detail"])
    assert detail.startswith("operations.listen: cannot listen; expected a free address: each")
    assert f"STREAMDP__OPERATIONS__LISTEN, got {address}" in detail
    unit = (ROOT / "deploy" / "systemd" / "streamdp.service").read_text()
    (kept,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert "3" not in kept.split()
    assert "StartLimitIntervalSec=0\n" in unit


CLOSING = """
import asyncio, os, signal
from contextlib import asynccontextmanager
import streamdp.service.run as module
before = module.quarantining
@asynccontextmanager
async def closing(*arguments):
    try:
        async with before(*arguments):
            yield
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep({seconds})
module.quarantining = closing
from streamdp.cli import main
main()
"""

AT_THE_END = """
import os, signal
import streamdp.cli._served as module
before = module.code_of_halt
def signalled(reason):
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    return before(reason)
module.code_of_halt = signalled
from streamdp.cli import main
main()
"""


@pytest.mark.parametrize("program", [CLOSING.format(seconds=0), AT_THE_END])
def test_does_a_signal_change_how_a_process_ends_that_ends_by_itself(
    shop: Shop, program: str
) -> None:
    """The exit code of a halt stays, while what it showed itself by is closed, and after that."""
    shop.send(10)
    with shop.run() as process:
        until(shop.is_read)
        assert process.end() == 0
    shop.change('epsilon = "1/2"', 'epsilon = "1/5"')
    shop.change("[service]", '[service]\non_halt = "exit"')
    with shop.run(program=program) as process:
        assert process.ended() == 4


def test_does_a_second_signal_end_what_takes_long_to_close(shop: Shop) -> None:
    """By the exit code that says so, as at any time after the first one."""
    with shop.run(program=CLOSING.format(seconds=60)) as process:
        process.hear("partition_running")
        assert process.end() == 130


SIGNALLED = """
import os, signal, sys
import {module} as module
before = module.{name}
def signalled(*arguments, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    return before(*arguments, **options)
module.{name} = signalled
from streamdp.__main__ import main
main()
"""


IMPORTING = """
import os, signal, sys
class Signals:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Signals())
from {module} import {name}
{name}()
"""


@pytest.mark.parametrize("command", ["run", "serve", "assemble"])
def test_does_a_signal_while_the_command_is_imported_end_it_in_order(command: str) -> None:
    """By the installed command: it hears signals before it imports what takes long."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["streamdp"].partition(":")
    program = IMPORTING.format(module=module, name=name)
    assert Process.start(command, program=program, interpreter=INTERPRETER).ended() == 0


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("streamdp.cli.run", "prepared"),  # nothing is read
        ("streamdp.service.process", "log_of"),  # the configuration is
        ("streamdp.service.run", "_announce"),  # the event loop runs
        ("streamdp.service.run", "Service"),  # listeners are open
    ],
)
def test_does_a_signal_before_the_first_step_end_it_in_order(
    shop: Shop, module: str, name: str
) -> None:
    """Exit code 0: it was asked to end, and nothing had begun."""
    program = SIGNALLED.format(module=module, name=name)
    with shop.run(program=program, interpreter=INTERPRETER) as process:
        assert process.ended() == 0
    assert not process.said("joined")
    assert not process.said("failed")
