"""Does a feedback stream keep the service's promises, from records to policies, through faults?

On the memory transport, whose every step may fail. Under seeded randomness each ledger must be the
offline fold of its input, byte for byte, whatever happened.
"""

from __future__ import annotations

import asyncio
import json
from fractions import Fraction

import numpy as np
import pytest

from streamdp.client import Names, Source, Why
from streamdp.client.choosing import choose
from streamdp.client.table import Table
from streamdp.core.evidence.policy import PARTS, policy_of
from streamdp.core.learners.feedback import feedback_learner_of
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.ports import Partition
from streamdp.service.verifying.verification import Verification
from streamdp.testing.faults import Dice
from streamdp.wire.decoded import Headers
from streamdp.wire.lines import Charge, PolicyLine, from_base64
from streamdp.wire.published import decode_in_force, decode_ledger
from tests.support.histories import history_after, nothing_known, policy_after
from tests.support.services import Room
from tests.support.streams import ACTIONS, feedback_spec, shown, spec

KEYS = tuple(f"key {n}".encode() for n in range(6))
CLICKS = Partition("clicks", 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_is_every_block_released_once_through_faults_at_every_step(seed: int) -> None:
    """One step in twenty fails with an unknown outcome, beside a stream of losses."""

    async def run() -> None:
        room = Room([feedback_spec()], partitions=3, gap=seed % 2)
        dice = Dice(seed=seed, chance=Fraction(1, 20))
        async with room.worker(reached=dice) as worker:
            for part in range(60):
                room.send("clicks", *shown(40, keys=KEYS, seed=part))
                await room.log.changed(timeout=0.01)
                if dice.thrown.total() >= 8:
                    break
            await room.until(room.is_read)
        assert worker.log.of("partition_lost")
        async with room.worker("after"):  # what a fault in the drain left unpublished
            await room.until(lambda: not any(room.wrong()))

    asyncio.run(run())


@pytest.mark.parametrize("played", ["header", "value"])
def test_is_a_policy_published_that_anybody_can_recompute(played: str) -> None:
    """From the ledger alone, by the learner that it names: the same parts for every release."""
    learner = policy_blocks(actions=ACTIONS, epsilon="2", schedule="geometric 2", played=played)
    made = feedback_spec(learner=learner)

    async def run() -> Room:
        room = Room([made], partitions=1)
        async with room.worker():
            room.send("clicks", *shown(400, keys=KEYS))
            await room.until(room.is_read)
        return room

    room = asyncio.run(run())
    assert room.wrong() == []
    evidence = room.evidence(CLICKS)
    policies = {
        line.identity: policy_of(from_base64(line.policy, "policy"), actions=len(ACTIONS))
        for line in map(decode_in_force, (record.value for record in evidence.actions))
        if isinstance(line, PolicyLine)
    }
    first = decode_ledger(evidence.ledger[0].value)
    assert isinstance(first, Charge)
    assert isinstance(first.learner, str)
    learner = feedback_learner_of(json.loads(first.learner), actions=ACTIONS)
    states = {key: nothing_known(learner) for key in KEYS}
    compared = 0
    for record in evidence.ledger:
        line = decode_ledger(record.value)
        assert isinstance(line, Charge)
        sums, key = line.released(), record.key
        assert key is not None
        if sums is not None:
            gains, counts = np.split(sums, 2)
            states[key] = history_after(learner, states[key], gains[None], counts[None])
        block = line.block if sums is None else line.block + 1
        expected = policy_after(learner, states[key], np.array([block]))[0]
        assert policies[line.identity].tolist() == expected.tolist()
        compared += 1
    assert compared == len(policies) > 20


def test_are_counts_those_of_the_headers_whatever_the_payloads() -> None:
    """Garbage payloads count for the arm that was shown, garbage headers for none; slots tile."""

    async def run() -> Room:
        room = Room([feedback_spec()], partitions=1)
        async with room.worker():
            records, headers = shown(300, keys=[b"k"])
            room.send("clicks", records, headers)
            await room.until(room.is_read)
        return room

    room = asyncio.run(run())
    headers = shown(300, keys=[b"k"])[1]
    named = [dict(pairs).get("streamdp-action") for pairs in headers]
    at = 0
    for record in room.evidence(CLICKS).ledger:
        line = decode_ledger(record.value)
        assert isinstance(line, Charge)
        sums = line.released()
        if sums is None:
            continue
        some = named[at : at + line.stop - line.start]
        expected = [some.count(action.encode()) for action in ACTIONS]
        assert np.split(sums, 2)[1].tolist() == expected
        at += len(some)
    assert at > 290


def test_does_a_reader_choose_by_what_was_published() -> None:
    """Service to choice: the table of what is published draws by the newest policy."""

    async def run() -> Room:
        room = Room([feedback_spec()], partitions=1)
        async with room.worker():
            room.send("clicks", *shown(50, keys=[b"k"]))
            await room.until(room.is_read)
        return room

    room = asyncio.run(run())
    table = Table(Source(room.specs["clicks"].topics, "c", Names(ACTIONS, "s")), most_keys=9)
    list(table.apply(room.evidence(CLICKS).actions))
    answer = table.answers[b"k"]
    choice = choose(answer, "r-1")
    assert (choice.why, choice.slots > 40) == (Why.PUBLISHED, True)
    assert answer.held is not None
    assert answer.held.ends[-1] == PARTS


def test_does_a_payload_move_nothing_but_sums() -> None:
    """Replaced payloads leave every line as it is, but for sums and what follows from them."""

    def lines(headers: list[Headers], value: bytes) -> list[dict[str, object]]:
        async def run() -> Room:
            room = Room([feedback_spec()], partitions=1)
            async with room.worker():
                room.send("clicks", [(b"k", value)] * len(headers), headers)
                await room.until(room.is_read)
            return room

        evidence = asyncio.run(run()).evidence(CLICKS)
        decoded = [decode_ledger(record.value) for record in evidence.ledger]
        return [
            {name: getattr(line, name) for name in line.__struct_fields__ if name != "sums"}
            for line in decoded
        ]

    headers = shown(100, keys=[b"k"])[1]
    assert lines(headers, b'{"reward":1}') == lines(headers, b"\xff garbage")


def test_does_verify_take_a_feedback_ledger() -> None:
    """Beside a stream of losses on another input; ε is the sums' charge for all arms together."""

    async def run() -> Room:
        room = Room([feedback_spec(), spec()], partitions=2)
        async with room.worker():
            room.send("clicks", *shown(200, keys=KEYS))
            await room.until(room.is_read)
        return room

    room = asyncio.run(run())
    made, verification = room.specs["clicks"], Verification()
    for number in range(2):
        verification.read(made.topics, room.evidence(Partition("clicks", number)).ledger)
    (verdict,) = verification.verdicts({made.topics.input: Fraction(1)}, {})
    assert verification.violations == []
    assert (verdict.highest, made.charge) == (Fraction(1, 2), Fraction(1, 2))
