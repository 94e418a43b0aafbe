"""Is the runbook right about halts: does it know each, and do the ways out lead out?"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

import streamdp as sd
from streamdp.cli.exit_codes import code_of_halt
from streamdp.core.errors import StateMismatch
from streamdp.ports import Taken
from streamdp.service.charges_by_others import ALONE
from streamdp.service.protocol import Restoring
from streamdp.service.settings import Pace
from streamdp.service.spec import StreamSpec
from streamdp.service.view import Reason
from tests.conftest import ROOT
from tests.support.protocol_model import HOME, Store, restore
from tests.support.streams import events, spec

STREAM = spec(epoch=2)
RUNBOOK = (ROOT / "deploy" / "RUNBOOK.md").read_text()


def rows() -> list[tuple[list[str], str]]:
    """The table of halts: what each says, and what to do."""
    entry = RUNBOOK.partition("### StreamdpPartitionHalted")[2].partition("\n### ")[0]
    cells = [line.split("|")[1:-1] for line in entry.splitlines() if line.startswith("| ")]
    return [(re.findall(r'"([^"]+)"', said), remedy) for _, said, remedy in cells if '"' in said]


def remedy(message: str) -> str:
    """What to do about a halt that says this, by the first row that quotes something of it."""
    remedies = [todo for said, todo in rows() if any(quote in message for quote in said)]
    assert remedies, message
    return remedies[0]


def words(path: str) -> Iterator[str]:
    """What is said where a module finds that state, ledger and input contradict each other."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("halt", "differs"):
            arguments = [node.func.value, *node.args]  # the partition's, which says where
        elif not isinstance(node.func, ast.Name):
            continue
        elif node.func.id == "StateMismatch":
            arguments = node.args
            if isinstance(arguments[0], ast.Call):  # a message made before
                arguments = arguments[0].args
        else:
            arguments = node.args if node.func.id in ("_halt", "_differs") else []
        said = arguments[1] if len(arguments) > 1 else None
        if isinstance(said, ast.JoinedStr):  # what happened, and then the way out
            said = said.values[0]
        if isinstance(said, ast.Constant):
            assert isinstance(said.value, str)
            yield said.value


ADAPTERS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "adapters").rglob("*.py"))


@pytest.mark.parametrize("path", ["streamdp/service/taking.py", *ADAPTERS])
def test_does_the_runbook_know_every_halt(path: str) -> None:
    """In the table, or among the exit codes if the process cannot even begin."""
    at_start = RUNBOOK.partition("### Exit code 4")[2].partition("\n### ")[0]
    quotes = [quote for said, _ in rows() for quote in said]
    quotes += re.findall(r'"([^"]+)"', at_start.replace("\n", " "))
    assert [said for said in words(path) if not any(quote in said for quote in quotes)] == []


@pytest.mark.parametrize("reason", Reason)
def test_does_the_entry_of_an_exit_code_name_the_halts_that_end_so(reason: Reason) -> None:
    """If the configuration says that a halt ends the process."""
    _, _, entry = RUNBOOK.partition(f"### Exit code {int(code_of_halt(reason))}\n")
    assert f"`{reason}`" in entry.partition("\n### ")[0]


def test_are_there_halts_to_know() -> None:
    """The test above would be worth little if it found none."""
    assert len(list(words("streamdp/service/taking.py"))) > 6
    assert sum(len(list(words(path))) for path in ADAPTERS) > 4


def lived() -> tuple[Store, dict[bytes, bytes]]:
    """A store that has learned and published, and its state one step before."""
    store = Store(events(60))
    work = restore(store, STREAM)
    work.absorb(work.read(store.records(0, 30)))
    store.decide(work.cut(now=0, pace=Pace()).commit)
    before = dict(store.state)
    work.absorb(work.read(store.records(30, 60)))
    for _ in range(2):
        store.decide(work.cut(now=0, pace=Pace()).commit)
    return store, before


def rebuilt(store: Store, stream: StreamSpec, taken: Taken) -> None:
    """Take the partition with what is found, and rebuild."""
    restoring = Restoring(stream, HOME, taken, by_others=ALONE)
    restoring.feed(store.records(restoring.span.start, restoring.span.stop))
    restoring.finish()


def changed(taken: Taken, what: str, value: bytes) -> Taken:
    """With another value in the entries of one kind."""
    entries = [key for key in taken.state if f'"{what}"'.encode() in key]
    assert entries
    return replace(taken, state={**taken.state, **dict.fromkeys(entries, value)})


def broken(how: str) -> tuple[Store, StreamSpec, Taken]:
    """A store, a configuration and what is found, of which two contradict each other."""
    store, before = lived()
    taken, stream = store.taken(), STREAM
    match how:
        case "another epsilon":
            learner = sd.incumbent_leader(actions=["a", "b", "c"], epsilon="1/3")
            stream = spec(epoch=2, learner=learner)
        case "lost input":
            taken = replace(taken, first_offset=59)
        case "lost state":
            taken = replace(taken, state={})
        case "rolled back":
            taken = replace(taken, state=before)
        case "lost ledger":
            taken = replace(taken, last_ledger_line=None)
        case "damaged row":
            taken = changed(taken, "row", b"no row")
        case "shorter input":
            taken = replace(taken, end_offset=10)
        case "damaged checkpoint":
            taken = changed(taken, "checkpoint", b"{}")
        case "newer checkpoint":
            taken = changed(taken, "checkpoint", b'{"version":99,"min_reader":99}')
        case "foreign entry":
            taken = replace(taken, state={**taken.state, b"foreign": b""})
        case "damaged ledger":
            taken = replace(taken, last_ledger_line=b"{}")
    return store, stream, taken


@pytest.mark.parametrize(
    "how",
    ["another epsilon", "lost input", "lost state", "rolled back", "lost ledger", "damaged row"],
)
def test_does_a_new_epoch_lead_out_where_the_runbook_says_so(how: str) -> None:
    """Of the very halt that it was looked up for."""
    store, stream, taken = broken(how)
    with pytest.raises(StateMismatch) as halted:
        rebuilt(store, stream, taken)
    assert "*new epoch*" in remedy(str(halted.value))
    rebuilt(store, replace(stream, epoch=3), taken)


@pytest.mark.parametrize(
    "how", ["shorter input", "damaged checkpoint", "newer checkpoint", "foreign entry",
            "damaged ledger"],
)  # fmt: skip
def test_does_the_runbook_promise_no_epoch_that_is_refused(how: str) -> None:
    """Another stream, or another version, is the way out there."""
    store, stream, taken = broken(how)
    for epoch in (2, 3, 1000):
        with pytest.raises(StateMismatch) as halted:
            rebuilt(store, replace(stream, epoch=epoch), taken)
        todo = remedy(str(halted.value))
        assert "*new epoch*" not in todo
        others = ("*another stream*", "*another input*")
        assert any(way in todo for way in others) or how == "newer checkpoint"
    rebuilt(store, stream, Taken({}, taken.first_offset, taken.end_offset, None, None, 1))
