"""Does a stream with contexts keep the service's promises, from records to choices?"""

from __future__ import annotations

import asyncio
import json
from fractions import Fraction

import numpy as np
import pytest

import streamdp as sd
from streamdp.client import Names, Source, Why
from streamdp.client.choosing import choose
from streamdp.client.table import Table
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.ports import Headers, Key, Partition, StreamTopics, Value
from streamdp.service.settings import Start
from streamdp.service.spec import StreamSpec
from streamdp.service.verifying.verification import Verification
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import configure
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from tests.support.services import Room

ACTIONS = ("boots", "coats")
FIELDS = Contexts.read('{"device":["phone"],"country":["fr"]}')
CELLS: tuple[dict[str, str], ...] = (
    {"device": "phone", "country": "fr"},
    {"device": "phone"},
    {"country": "fr"},
    {},
)
CLICKS = Partition("clicks", 0)


def spec(played: str, interactions: str = "all") -> StreamSpec:
    learner = FEEDBACK_RECIPES["policy_contexts"](
        actions=FIELDS.arms(ACTIONS), epsilon="1/2", context=FIELDS, played=played,
        interactions=interactions, schedule="capped 3200",
    )  # fmt: skip
    feedback = Feedback(ACTIONS, "reward", played, contexts=FIELDS)  # type: ignore[arg-type]
    options = {"padding": "fixed"} if played == "value" else {}
    return StreamSpec(
        topics=StreamTopics("shop", "clicks", "clicks-shown", headers=True),
        learner=learner,
        estimates=(),
        format=configure("json", feedback=feedback, options=options),
        share=Fraction(1, 2),
        epoch=1,
        start=Start.EARLIEST,
        randomness=sd.SeededRandomness(7),
        most_keys=1000,
        most_key_bytes=64,
    )


def shown(
    played: str, count: int, *, seed: int = 1
) -> tuple[list[tuple[Key, Value]], list[Headers]]:
    """Events in random cells; a phone clicks on boots. Some values and headers are garbage."""
    rng, records, headers = np.random.default_rng(seed), [], []
    for _ in range(count):
        cell, action = CELLS[int(rng.integers(4))], ACTIONS[int(rng.integers(2))]
        click = rng.random() < (0.9 if ("device" in cell) == (action == "boots") else 0.1)
        event: dict[str, object] = {"reward": int(click)}
        if played == "value":
            event |= {"action": action, "context": cell}
        text = b"\xffgarbage" if rng.random() < 0.03 else json.dumps(event).encode()
        records.append((b"home", text.ljust(80)))
        header: list[tuple[str, bytes | None]] = []
        if played == "header":
            named = ";".join(f"{field}={level}" for field, level in cell.items())
            header = [("streamdp-action", action.encode()), ("streamdp-context", named.encode())]
        headers.append([] if rng.random() < 0.03 else header)
    return records, headers  # type: ignore[return-value]


def served(
    played: str,
    records: list[tuple[Key, Value]],
    headers: list[Headers],
    interactions: str = "all",
) -> Room:
    async def run() -> Room:
        room = Room([spec(played, interactions)], partitions=1)
        async with room.worker():
            room.send("clicks", records, headers)
            await room.until(room.is_read)
        return room

    return asyncio.run(run())


@pytest.mark.parametrize("interactions", ["all", "none"])
@pytest.mark.parametrize("played", ["header", "value"])
def test_readers_choose_by_cell_and_verify_finds_nothing(played: str, interactions: str) -> None:
    """The published table is what the ledger's numbers give, and phones get boots."""
    room = served(played, *shown(played, 6000 if played == "header" else 20_000), interactions)
    assert room.wrong() == []
    evidence, made = room.evidence(CLICKS), room.specs["clicks"]
    names = Names(ACTIONS, "pepper", FIELDS, played)  # type: ignore[arg-type]
    table = Table(Source(made.topics, "coats", names), most_keys=9)
    list(table.apply(evidence.actions))
    answer, taken = table.answers[b"home"], {}
    for device in ("phone", "fridge"):
        cell = names.cell({"device": device, "country": "fr"})
        drawn = [choose(answer, f"r-{at}", cell) for at in range(200)]
        assert {choice.why for choice in drawn} == {Why.PUBLISHED}
        taken[device] = sum(choice.action == "boots" for choice in drawn)
    assert taken["phone"] > 150 > 50 > taken["fridge"]
    verification = Verification()
    verification.read(made.topics, evidence.ledger)
    (verdict,) = verification.verdicts({made.topics.input: Fraction(1, 2)}, {})
    assert verification.violations == []
    assert verdict.highest == Fraction(1, 2)


@pytest.mark.parametrize("played", ["header", "value"])
def test_contents_move_nothing_but_released_numbers(played: str) -> None:
    """Whoever the events are about: lines, their lengths, state and boundaries stay as they are."""
    records, headers = shown(played, 300)
    others = [(key, value) for key, value in shown(played, 300, seed=2)[0]]
    lines = []
    for contents in (records, others):
        evidence = served(played, contents, headers).evidence(CLICKS)
        decoded = [decode_ledger(record.value) for record in evidence.ledger]
        private = ("rewards", "losses") if played == "value" else ("sums",)
        lines.append(
            (
                [
                    {name: getattr(line, name) for name in line.__struct_fields__
                     if name not in private}
                    for line in decoded
                ],
                [len(record.value) for record in (*evidence.ledger, *evidence.actions)],
            )
        )  # fmt: skip
        assert any(isinstance(line, Charge) and line.kind == "sums" for line in decoded)
    assert lines[0] == lines[1]
