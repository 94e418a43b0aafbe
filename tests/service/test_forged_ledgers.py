"""Does `ledger verify` find each ledger that was forged, and take every honest one?

Honest sites come from the real protocol: state, actions topic and ledger of one partition. Each
forgery changes the ledger (and the actions topic, where that is possible) as somebody would who
can write both, but not the state.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

import streamdp as sd
from streamdp.assembly.persons import Cap
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.kinds.recipe import config_of
from streamdp.core.learners.recipes import kind_of
from streamdp.ports import Key, LastCommit, Published, StreamTopics, Value
from streamdp.service.spec import StreamSpec
from streamdp.service.verifying.verification import Verification
from streamdp.wire.formats import configure
from streamdp.wire.lines import Assembled, PersonsCap
from tests.service.test_contexts_service import shown as shown_in_cells
from tests.service.test_contexts_service import spec as contexts_spec
from tests.support.carrying import MORE, follows, leader, live, remembers, store_of, stream
from tests.support.idling import idles, of_two
from tests.support.protocol_model import Store
from tests.support.streams import ACTIONS, events, spec
from tests.support.visits import CAP, SPEC, saved_point

Line = dict[str, Any]
Lines = list[tuple[bytes | None, Line]]


@dataclass(frozen=True)
class Site:
    """What a partition leaves, and the configuration that it was made with."""

    topics: StreamTopics
    state: LastCommit
    ledger: Sequence[Published]
    actions: Sequence[Published] = ()
    specs: Sequence[StreamSpec] = ()

    def violations(self) -> list[str]:
        """What `verify` says of it."""
        verification = Verification(configured=self.specs)
        verification.read_state(self.topics, self.state)
        if not self.topics.output:
            verification.read_published(self.topics, self.actions)
            verification.read_all_published(self.topics)
        verification.read(self.topics, self.ledger)
        verification.finish()
        verification.verdicts({self.topics.input: Fraction(9)}, {})
        return verification.violations

    def forged(self, change: Callable[[Lines, Lines], None]) -> Site:
        """The same after somebody wrote ledger and actions anew."""
        ledger, actions = (
            [(record.key, json.loads(record.value)) for record in records]
            for records in (self.ledger, self.actions)
        )
        change(ledger, actions)
        return replace(self, ledger=records_of(ledger), actions=records_of(actions))


def records_of(lines: Lines) -> list[Published]:
    """Lines as records, in their order."""
    return [
        Published(0, at, key, json.dumps(line, separators=(",", ":")).encode())
        for at, (key, line) in enumerate(lines)
    ]


def lived(store: Store, *specs: StreamSpec, stops: Sequence[int] = ()) -> Site:
    """A partition's life under one configuration after the other, from the stops on."""
    for of, stop in zip(specs, [*stops, store.end], strict=True):
        live(store, of, stop)
    state = LastCommit(0, store.state)
    return Site(specs[-1].topics, state, store.ledger, store.actions, specs[-1:])


def of_cells(played: str, interactions: str = "all") -> Site:
    """A stream with contexts."""
    records, headers = shown_in_cells(played, 200)
    made = contexts_spec(played, interactions)
    made = replace(made, topics=replace(made.topics, stream="home"))
    return lived(Store(records, headers=headers), made)


def of_tables(played: str, table: int | None = None) -> Site:
    """The same, where fields and cells get tables of their own; or always the table that is given.

    Its engine then breaks the rule that chooses tables.
    """
    records, headers = shown_in_cells(played, 600)
    made = contexts_spec(played)
    options = {**config_of(made.learner.recipe), "epsilon": "4", "schedule": "capped 64"}
    learner = kind_of(options, actions=made.learner.actions)
    topics = replace(made.topics, stream="home")
    made = replace(made, topics=topics, share=Fraction(4), learner=learner)
    with pytest.MonkeyPatch.context() as patch:
        if table is not None:
            chosen = lambda of, state, *_, **__: np.full(len(state), table % len(of.tables))  # noqa: E731
            patch.setattr(ContextModel, "chosen", chosen)
        return lived(Store(records, headers=headers), made)


def in_frames() -> Site:
    """Records of one to five rows."""
    rng, made = np.random.default_rng(1), replace(spec(), randomness=sd.SystemRandomness())
    values = [rng.random((n % 5 + 1, 3), np.float32).tobytes() for n in range(60)]
    records: list[tuple[Key, Value]] = [
        ((b"fr", None)[n % 3 == 0], value) for n, value in enumerate(values)
    ]
    format_ = configure("float32", actions=list(ACTIONS), options={"frames": True})
    return lived(Store(records), replace(made, format=format_))


def of_losses() -> Site:
    """A stream with an estimate, on a transport with topic ids."""
    estimate = sd.estimate("block_regret", epsilon="1/4", min_length=2)
    made = replace(spec(estimates=[estimate], most_keys=3), randomness=sd.SystemRandomness())
    keys = (b"fr", b"de", None, b"beyond the limit")
    return lived(Store(events(200, keys=keys), input_id="topic 1"), made)


def in_epochs(made: Callable[..., Any]) -> Site:
    """Three epochs that carry over, the last with other actions."""
    names = (made(), made(schedule="capped 5") if made is leader else made(), made(MORE))
    specs = [stream(of, epoch=epoch) for epoch, of in enumerate(names, start=1)]
    return lived(store_of(made()), *specs, stops=(50, 80))


def of_assembly(cap: Cap | None = None) -> Site:
    """An assembly that has declared its requests in two lines."""
    made = replace(SPEC, cap=cap)
    state = saved_point(made, at=(9, 9, 9), lines=2, declared=20)
    persons = UNSET if cap is None else PersonsCap(most=cap.most, slots=cap.slots or UNSET)
    lines: Lines = [
        (None, msgspec.to_builtins(Assembled(
            schema=1, stream="clicks", partition=0, epoch=1, input="requests", outcomes="outcomes",
            output="events", start=start, stop=stop, ordinal=ordinal, digest=made.digest,
            version="v", persons=persons,
        )))
        for ordinal, start, stop in ((1, 0, 10), (2, 10, 20))
    ]  # fmt: skip
    return Site(made.topics, LastCommit(0, state), records_of(lines))


HONEST: dict[str, Callable[[], Site]] = {
    "losses": of_losses,
    "memory": lambda: lived(store_of(remembers()), stream(remembers())),
    "frames": in_frames,
    "feedback": lambda: lived(store_of(follows()), stream(follows())),
    "contexts": lambda: of_cells("header"),
    "private contexts": lambda: of_cells("value"),
    "tables of fields": lambda: of_cells("value", "none"),
    "tables": lambda: of_tables("header"),
    "private tables": lambda: of_tables("value"),
    "epochs": lambda: in_epochs(leader),
    "epochs of memories": lambda: in_epochs(remembers),
    "epochs of feedback": lambda: in_epochs(follows),
    "idle keys": lambda: lived(of_two(leader()), idles(leader())),
    "idle keys of feedback": lambda: lived(of_two(follows()), idles(follows())),
    "assembly": of_assembly,
    "assembly with a cap": lambda: of_assembly(CAP),
}


@cache
def site(name: str) -> Site:
    """An honest site."""
    return HONEST[name]()


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_ledger_verifies(name: str) -> None:
    assert site(name).violations() == []
    assert len(site(name).ledger) > 1
    for of in site(name).specs:
        verification = Verification()
        verification.read(of.topics, site(name).ledger)
        (verdict,) = verification.verdicts({of.topics.input: Fraction(9)}, {})
        assert verdict.highest == of.charge


def test_of_many_records_that_were_not_compacted_the_newest_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of each key; that one is gone is found all the same."""
    monkeypatch.setattr("streamdp.service.verifying.shown.MOST_COMPARED", 4)
    assert site("losses").violations() == []
    (violation,) = site("losses").forged(loses_the_newest_record).violations()
    assert "readers were not told of the newest" in violation


def each(change: Callable[[Line], object]) -> Callable[[Lines, Lines], None]:
    """Change each line of ledger and actions."""

    def changed(ledger: Lines, actions: Lines) -> None:
        for _, line in (*ledger, *actions):
            change(line)

    return changed


def charged(change: Callable[[Line], object]) -> Callable[[Lines, Lines], None]:
    """Change each charge in the ledger that is of no opening."""
    return each(lambda line: line.get("epsilon", "0") != "0" and change(line))


def only_shown(change: Callable[[Line], object]) -> Callable[[Lines, Lines], None]:
    """Change each line of the actions topic."""

    def changed(ledger: Lines, actions: Lines) -> None:
        for _, line in actions:
            change(line)

    return changed


def moved(line: Line, by: int) -> None:
    """Move what a line reads."""
    for name in ("first_offset", "last_offset", "next_offset", "born"):
        if name in line:
            line[name] += by


def into_another_epoch(line: Line) -> None:
    """The third one, behind everything; earlier epochs stay."""
    if line["epoch"] == 3:
        line["epoch"] = 4
        moved(line, 1000)


def first_into_another_epoch(line: Line) -> None:
    """An only epoch."""
    line["epoch"] = 2
    moved(line, 1000)


def another_first_epoch(line: Line) -> None:
    """The first one of three; what carries over from it says so."""
    for of in (line, line.get("carried", {})):
        if of.get("epoch") == 1:
            of["epoch"] = 0


def another_birth(line: Line) -> None:
    """Of one key."""
    if line.get("key") == "fr":
        line["born"] += 1


def sets(**fields: object) -> Callable[[Line], None]:
    """Give these fields other values, where a line has them."""
    return lambda line: line.update({name: of for name, of in fields.items() if name in line})


def another_topic_id(at: int) -> Callable[[Lines, Lines], None]:
    """A line says that the input is another topic."""
    return lambda ledger, actions: ledger[at][1].update(input_id="topic 2")


def one_record_a_block(ledger: Lines, actions: Lines) -> None:
    """Each block read its last record alone, but the first."""
    for _, line in (*ledger, *actions):
        if line["block"] > 1:
            line["first_offset"] = line["last_offset"]


def made_up_keys(shown: str) -> Callable[[Lines, Lines], None]:
    """Openings of keys that never were, in place of a key's lines."""

    def change(ledger: Lines, actions: Lines) -> None:
        opening = next(line for _, line in ledger if line["kind"] == "opening")
        of_actions = next(line for _, line in actions if line["kind"] == "opening")
        for lines, like in ((ledger, opening), (actions, of_actions)):
            for at, (key, line) in enumerate(list(lines)):
                if key == b"fr":
                    name, offset = f"made up {line['block']} {line['kind']}", line["last_offset"]
                    place = dict.fromkeys(("born", "first_offset", "last_offset"), offset)
                    ordinal = {"ordinal": line["ordinal"]} if "ordinal" in line else {}
                    lines[at] = name.encode(), {**like, **place, **ordinal, "key": name}
        if shown == "hidden":
            actions[:] = [(key, line) for key, line in actions if not key or b"made" not in key]

    return change


def loses_the_newest_record(ledger: Lines, actions: Lines) -> None:
    """Of one key, in the actions topic."""
    del actions[max(at for at, (key, _) in enumerate(actions) if key == b"fr")]


def estimates(**fields: object) -> Callable[[Line], None]:
    """Change estimates alone."""
    return lambda line: line["kind"] == "block_regret" and line.update(fields)


def half_the_noise(line: Line) -> None:
    """Rate and charge agree."""
    line["epsilon"] = str(Fraction(line["epsilon"]) / 2)
    if "rate" in line:
        line["rate"] = str(Fraction(line["rate"]) / 2)
    if "scale" in line:
        line["scale"] = str(Fraction(line["scale"]) * 2)


def of_this_stream_alone(ledger: Lines, actions: Lines) -> None:
    """An estimate's lines name other records than those of its block."""
    for _, line in ledger:
        if line["kind"] == "block_regret":
            line["first_offset"] = line["last_offset"]


def an_estimate_gone(ledger: Lines) -> None:
    """An opening of a key that never was in place of an estimate."""
    opening = next(line for _, line in ledger if line["kind"] == "opening")
    at = max(at for at, (_, line) in enumerate(ledger) if line["kind"] == "block_regret")
    line = ledger[at][1]
    place = dict.fromkeys(("born", "first_offset", "last_offset"), line["last_offset"])
    ledger[at] = b"x", {**opening, **place, "key": "x", "ordinal": line["ordinal"]}


def filled(column: str, block: int) -> Callable[[Lines, Lines], None]:
    """A block's line has a number behind those of its table."""

    def change(ledger: Lines, actions: Lines) -> None:
        line = next(of for _, of in ledger if of["kind"] == "sums" and of["block"] == block)
        numbers = np.frombuffer(b64decode(line[column]), "<i8").copy()
        numbers[-1] = 1
        line[column] = b64encode(numbers.tobytes()).decode()

    return change


def numbers_of(other: int) -> Callable[[Lines, Lines], None]:
    """The first block's line has the sums of another one, of another table."""

    def change(ledger: Lines, actions: Lines) -> None:
        lines = [of for _, of in ledger if of["kind"] == "sums"]
        lines[0]["sums"] = lines[other]["sums"]

    return change


NOT_PRIVATE = "which is not private"
FORGERIES: dict[str, tuple[str, Callable[[Lines, Lines], None], str]] = {
    "the newest epoch moved": ("epochs", each(into_another_epoch), "but the state of 3"),
    "the only epoch moved": ("losses", each(first_into_another_epoch), "but the state of 1"),
    "the only epoch renumbered": ("losses", each(sets(epoch=7)), "but the state of 1"),
    "the only epoch renumbered below": ("losses", each(sets(epoch=0)), "but the state of 1"),
    "an earlier epoch renumbered": ("epochs", each(another_first_epoch), "epoch 2 follows 1, of"),
    "a learner's birth moved": ("losses", each(another_birth), "but its learner was born at"),
    "another topic id in the middle": ("losses", another_topic_id(9), "id topic 2, in earlier"),
    "another topic id": ("losses", another_topic_id(0), "topic id topic 2, in the state topic 1"),
    "several slots of one record": ("losses", one_record_a_block, "the configured format has no"),
    "made-up keys": ("losses", made_up_keys("hidden"), "readers were not told of the newest"),
    "a newest record gone": ("losses", loses_the_newest_record, "readers were not told of the"),
    "other names of levels": (
        "contexts", only_shown(lambda line: line["context"].update(device=["fone"])),
        "policies are of",
    ),
    "other names of actions": ("losses", each(sets(action="z")), "is of z, expected"),
    "other names shown": ("memory", only_shown(sets(action="z")), "is of z, expected"),
    "no mechanism": ("losses", charged(sets(mechanism="none")), NOT_PRIVATE),
    "no mechanism of sums": ("feedback", charged(sets(mechanism="none")), NOT_PRIVATE),
    "another mechanism": (
        "losses", charged(sets(mechanism="exponential")), "configured is permute_and_flip"
    ),
    "half the noise and half the charge": ("losses", charged(half_the_noise), "configured is 1/2"),
    "estimates of other records": ("losses", of_this_stream_alone, "but the last that ended"),
    "an estimate gone": (
        "losses", lambda ledger, actions: an_estimate_gone(ledger), "has no block_regret"
    ),
    "made-up keys that were shown": (
        "losses", made_up_keys("shown"), "keys opened in epoch 1, but the state has 3"
    ),
    "estimates of other slots": ("losses", each(estimates(start=1, stop=2)), "the last that ended"),
    "an estimate that is not configured": (
        "losses", each(estimates(kind="mean_loss")), "releases no 'mean_loss'"
    ),
    "seeds denied": ("memory", each(sets(seeded=False)), "seeded is False, configured is True"),
    "another digest": ("losses", each(sets(digest="d")), "its digest is d, the state's"),
    "another digest in the middle": (
        "losses", lambda ledger, _: ledger[9][1].update(digest="d"), "is d, that of epoch 1 is",
    ),
    "another partition": ("losses", each(sets(partition=1)), "it names home/1, expected home/0"),
    "another stream": ("losses", each(sets(stream="x")), "it names x/0, expected home/0"),
    "a cap that is none": (
        "assembly", each(lambda line: line.update(persons={"most": 2, "slots": 5})),
        "its cap on persons is 2 in a stretch of 5 slots, the state's is none",
    ),
    "a smaller cap": (
        "assembly with a cap", each(sets(persons={"most": 1, "slots": 5})), "is 1 in a stretch of 5"
    ),
    "an assembly's epoch renumbered": ("assembly", each(sets(epoch=2)), "but the state of 1"),
    "fewer requests": (
        "assembly", lambda ledger, _: ledger[1][1].update(stop=15), "requests end at 15, but"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_ledger_is_found(name: str) -> None:
    of, change, said = FORGERIES[name]
    violations = site(of).forged(change).violations()
    assert any(said in violation for violation in violations), violations


@pytest.mark.parametrize("played", ["header", "value"])
@pytest.mark.parametrize(
    ("table", "said"), [(-1, "more numbers than those of its table"), (0, "policy")]
)
def test_a_ledger_whose_tables_follow_another_rule_is_found(
    played: str, table: int, said: str
) -> None:
    """Always the finest table, and never a finer one: what the rule chooses follows from lines."""
    violations = of_tables(played, table).violations()
    assert any(said in violation for violation in violations), violations
