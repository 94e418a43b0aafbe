"""Runs what a page of the documentation tells its reader to do, in the order of the page.

A page is one story in an empty folder. By the language of its fenced blocks:

toml    begins with ``# NAME.toml``: the file is written. Otherwise it is a fragment: laid over the
        page's first file it must be a valid configuration (or name entry points, for a package).
sh      every command is run and must end with 0; a file that it names as `--config docs/NAME` is
        there. `streamdp run`, `assemble`, `serve` and `watch` stay, as in a terminal of their own,
        and are ended with the story; all but `watch` must then have drained. So does a program that
        says `# stays`, from when it says that it is listening.
java    begins with ``// NAME.java``: the file is written, and run with the clients of Kafka.
js      begins with ``// NAME``: the file is written.
python  begins with ``# NAME.py``: the file is written. Otherwise it is run.
sql     begins with ``-- NAME.db``: asked of that file, read-only; there must be an answer.
text    what one of the commands that stay, or the last one that did not, prints; `…` is anything.
json    lines of the published schemas.

Where no shell is needed, `streamdp` and what is Python run in forks of a process that has imported
streamdp (`tests.support.forking`): an interpreter takes half a second of processor time to begin.
In a story that is `installed` what stays, and Python, runs as a reader's does: by the command and
an interpreter of its own.

`Story.wording` replaces words of the page by those of the test (addresses, fresh names),
and back in what is printed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
from pydantic import ValidationError

from streamdp.service.config import Tables
from streamdp.testing.kafka_jars import kafka_jars
from streamdp.wire.schemas import schema
from tests.support.forking import Forked, parent
from tests.support.processes import MAIN

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PATIENCE = 240.0  # seconds that anything may take
STAYS = re.compile(
    r"(?:\w+=\S+ )*(?:streamdp (run|assemble|serve|watch)\b(?!.*--once)|python \S+  # stays)"
)
READY = {"run": "partition_running", "assemble": "partition_running", "serve": "http_listening"}
READY["program"] = "listening"
SHELL = re.compile(r"[|&;<>$*?`]")
"""What only a shell understands."""

WITH_WARNINGS = """
import sys, warnings
sys.path.insert(0, "")
warnings.simplefilter("error")
"""
"""What makes a fork's program one of ``python -W error -c``."""

ELSEWHERE = {"make", ".", "docker", "pip"}
"""Commands that other tests run; that what they name is there is looked at here."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that it is, by its first line."""
        match = re.match(r"(?:#|--|//) ([\w.]+\.(?:toml|py|db|java|mjs))\n", self.text)
        return match and match[1]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page in order."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [Block(match[1], match[2]) for match in fence.finditer(page)]


def needs_broker(page: str) -> bool:
    """Whether a page's story begins on Kafka."""
    return any('kind = "kafka"' in block.text for block in blocks(page) if block.file)


def needs_programs(page: Path) -> list[str]:
    """The languages' own programs that a page's story runs."""
    return ["node"] if any(block.language == "js" for block in blocks(page.read_text())) else []


class Running:
    """A command that stays, as in a terminal of its own, and what it has printed."""

    def __init__(
        self, command: str, folder: Path, environment: Mapping[str, str], *, forked: bool
    ) -> None:
        self.command = command
        self.lines: list[str] = []
        self._heard = threading.Condition()
        ours, theirs = os.pipe()
        self._printed = os.fdopen(ours, encoding="utf-8")
        begin = _forked if forked else _by_shell
        try:
            self._process = begin(command, folder, environment, theirs)
        finally:
            os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return "".join(self.lines)

    def wait_until(self, pattern: re.Pattern[str]) -> bool:
        """Whether it has printed that, within a patient reader's time; no longer if it ended."""

        def printed() -> bool:
            return pattern.search(self.output) is not None

        with self._heard:
            self._heard.wait_for(lambda: printed() or not self._reader.is_alive(), PATIENCE)
        return printed()

    def end(self) -> int:
        """As a reader ends it, by Ctrl-C; its exit code."""
        self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._reader.join(PATIENCE)
            self._printed.close()

    def _read(self) -> None:
        for line in self._printed:
            with self._heard:
                self.lines.append(line)
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()


def _by_shell(
    command: str, folder: Path, environment: Mapping[str, str], out: int
) -> subprocess.Popen[bytes]:
    """A command that stays, by a shell."""
    return subprocess.Popen(
        ["bash", "-c", re.sub(r"(streamdp|python) ", r"exec \1 ", command, count=1)],
        cwd=folder,
        env=environment,
        stdout=out,
        stderr=out,
    )


def _forked(command: str, folder: Path, environment: Mapping[str, str], out: int) -> Forked:
    """`streamdp` with these arguments, behind what it finds in its environment."""
    words = _words(command)
    at = words.index("streamdp")
    said = dict(word.split("=", 1) for word in words[:at])
    return parent().start(
        MAIN, words[at + 1 :], stdout=out, stderr=out, environment={**environment, **said},
        folder=folder,
    )  # fmt: skip


@dataclass(slots=True)
class Story:
    """One page being followed."""

    folder: Path
    wording: Mapping[str, str] = field(default_factory=dict)
    installed: bool = False
    running: list[Running] = field(default_factory=list)
    last: str = ""
    first_file: dict[str, Any] = field(default_factory=dict)

    def follow(self, page: str) -> None:
        """Do what the page says, then end what stays."""
        for name in dict.fromkeys(re.findall(r"--config (docs/\S+)", page)):
            text = self._said((ROOT / name).read_text())
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text)
            self.first_file = self.first_file or tomllib.loads(text)
        try:
            for block in blocks(page):
                getattr(self, f"_{block.language}")(Block(block.language, self._said(block.text)))
        finally:
            ends = [(running, running.end()) for running in reversed(self.running)]
        for running, code in ends:
            assert code == 0 or "watch" in running.command, (
                f"{running.command}: {code}\n{running.output}"
            )

    # -- languages -------------------------------------------------------------------------------

    def _toml(self, block: Block) -> None:
        table = tomllib.loads(block.text)
        if block.file:
            (self.folder / block.file).write_text(block.text)
            self.first_file = self.first_file or table
        if "project" in table:
            assert list(table["project"]) == ["entry-points"]
            assert set(table["project"]["entry-points"]) <= {
                "streamdp.commands",
                "streamdp.formats",
                "streamdp.laboratory",
                "streamdp.recipes",
                "streamdp.transports",
            }
            return
        try:
            Tables.model_validate(table if block.file else _over(self.first_file, table))
        except ValidationError as error:
            # A fragment does not repeat the tables that it refers to: each is checked alone.
            if block.file or any(wrong["loc"] for wrong in error.errors()):
                raise

    def _sh(self, block: Block) -> None:
        for command in block.text.splitlines():
            words = shlex.split(command, comments=True)
            if words and words[0] in ELSEWHERE:
                _check_elsewhere(words)
            elif stays := STAYS.match(command):
                self._start(command, stays[1] or "program")
            elif words and words[0] == "streamdp" and not SHELL.search(command):
                self.last = self._fork(MAIN, _words(command)[1:], command)
            elif words:
                self.last = self._run(["bash", "-euo", "pipefail", "-c", command], command)

    def _python(self, block: Block) -> None:
        if block.file:
            (self.folder / block.file).write_text(block.text)
        elif self.installed:
            self._run([sys.executable, "-W", "error", "-c", block.text], block.text)
        else:
            self._fork(WITH_WARNINGS + block.text, [], block.text)

    def _java(self, block: Block) -> None:
        assert block.file
        (self.folder / block.file).write_text(block.text)
        quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # it lives for seconds
        self._run(["java", *quick, "-cp", f"{kafka_jars()}/*", block.file], block.text)

    def _js(self, block: Block) -> None:
        assert block.file
        (self.folder / block.file).write_text(block.text)

    def _sql(self, block: Block) -> None:
        assert block.file
        base = sqlite3.connect(f"file:{self.folder / block.file}?mode=ro", uri=True)
        try:
            assert base.execute(block.text).fetchall(), f"no answer to\n{block.text}"
        finally:
            base.close()

    def _text(self, block: Block) -> None:
        for expected in block.text.splitlines():
            pattern = _pattern(expected)
            if pattern.search(self.last) or any(
                running.wait_until(pattern) for running in self.waiting
            ):
                continue
            printed = "\n".join([self.last, *(running.output for running in self.waiting)])
            raise AssertionError(f"nothing printed\n  {expected}\nbut\n{printed}")

    def _json(self, block: Block) -> None:
        for line in block.text.splitlines():
            event = json.loads(line)
            layout = "list" if isinstance(event.get("losses"), list) else "mapping"
            if "loss" in event or "reward" in event:
                layout = "feedback"
            if event.keys() & {"items", "predictions", "pscore"}:
                jsonschema.validate(event, schema("request"))
                continue
            if event.keys() & {"item", "categories", "truth"}:
                jsonschema.validate(event, schema("outcome"))
                continue
            kinds = {name: name for name in ("action", "list", "policy")}
            kinds |= dict.fromkeys(("charge", "epoch"), "ledger")
            jsonschema.validate(event, schema(kinds.get(event.get("type"), f"event-{layout}")))

    # -- doing -----------------------------------------------------------------------------------

    @property
    def waiting(self) -> Iterator[Running]:
        """The commands that stay and print for people, the newest first."""
        return (running for running in reversed(self.running) if "watch" in running.command)

    def _start(self, command: str, kind: str) -> None:
        forked = kind != "program" and not (self.installed or SHELL.search(command))
        running = Running(command, self.folder, self._environment, forked=forked)
        self.running.append(running)
        first = not any(earlier.command in command for earlier in self.running[:-1])
        if kind in READY:
            event = READY[kind] if first else "joined"  # a second one shares, maybe nothing
            awaited = [event, "http_listening"] if "--with-serve" in command else [event]
            for event in awaited:
                assert running.wait_until(re.compile(rf"\b{event}\b")), (
                    f"{command}:\n{running.output}"
                )

    def _fork(self, program: str, arguments: list[str], command: str) -> str:
        """What a program prints that has no start of its own."""
        done = parent().run(
            program, arguments, timeout=PATIENCE, environment=self._environment, folder=self.folder
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _run(self, arguments: list[str], command: str) -> str:
        done = subprocess.run(
            arguments,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            check=False,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    @property
    def _environment(self) -> dict[str, str]:
        """The test's own, with its interpreter and commands in front."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}

    def _said(self, text: str) -> str:
        """The page's words in the test's."""
        for word, ours in self.wording.items():
            text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", ours, text)
        return text


def _words(command: str) -> list[str]:
    """What a shell makes of it; a comment has a blank before it."""
    return shlex.split(re.sub(r"\s#.*", "", command))


def _pattern(expected: str) -> re.Pattern[str]:
    """A line of which `…` may be anything, and blanks any number."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in expected.split("…")]
    return re.compile(r"\b" + r"\s*[^\n]*?\s*".join(parts))


def _over(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """A tree laid over another."""
    both = {
        name: _over(base[name], value) if isinstance(value, dict) else value
        for name, value in more.items()
        if isinstance(base.get(name), dict)
    }
    return {**base, **more, **both}


def _check_elsewhere(words: list[str]) -> None:
    """What the command names must be there."""
    match words:
        case ["make", *arguments]:
            targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert next(argument for argument in arguments if "=" not in argument) in targets, words
        case [".", where]:
            assert where == ".venv/bin/activate", words
        case ["docker", "compose", "-f", file, *_]:
            assert (ROOT / file).is_file(), words
        case ["pip", "install", wanted]:
            named = re.fullmatch(r"(?:streamdp|\.)(?:\[([\w,]+)\])?", wanted)
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            assert named is not None, words
            extras = named[1].split(",") if named[1] else []
            assert set(extras) <= set(project["optional-dependencies"]), words
        case _:
            raise AssertionError(f"nobody tries {words}")
