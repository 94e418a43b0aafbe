"""Does what a feedback stream publishes follow from its headers and its ledger?"""

from __future__ import annotations

import json

import numpy as np
import pytest

from streamdp.core.evidence.policy import policy_of
from streamdp.core.learners.feedback import feedback_learner_of
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.ports import Partition
from streamdp.wire.lines import Charge, PolicyLine, from_base64
from streamdp.wire.published import decode_in_force, decode_ledger
from tests.support.histories import history_after, nothing_known, policy_after
from tests.support.services import Room
from tests.support.streams import ACTIONS, feedback_spec, shown

KEYS = tuple(f"key {n}".encode() for n in range(6))
CLICKS = Partition("clicks", 0)


@pytest.mark.parametrize("played", ["header", "value"])
async def test_is_a_policy_published_that_anybody_can_recompute(played: str) -> None:
    """From the ledger alone, by the learner that it names: the same parts for every release."""
    learner = policy_blocks(actions=ACTIONS, epsilon="2", schedule="geometric 2", played=played)
    made = feedback_spec(learner=learner)

    room = Room([made], partitions=1)
    async with room.worker():
        room.send("clicks", *shown(400, keys=KEYS))
        await room.until(room.is_read)
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


async def test_are_counts_those_of_the_headers_whatever_the_payloads() -> None:
    """Garbage payloads count for the arm that was shown, garbage headers for none; slots tile."""
    room = Room([feedback_spec()], partitions=1)
    async with room.worker():
        records, headers = shown(300, keys=[b"k"])
        room.send("clicks", records, headers)
        await room.until(room.is_read)
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
