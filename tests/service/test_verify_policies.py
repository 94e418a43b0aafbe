"""Does `ledger verify` find a policy that does not follow from the sums, and say what it compared?

Ledger and actions topic come from the real service in every mode; then one thing is changed.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from streamdp.core.events import After, Carried
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.core.learners.feedback.policy_following import policy_following
from streamdp.core.releases import Release
from streamdp.ports import Partition, Published, StreamTopics
from streamdp.service.verifying.shown import Compared
from streamdp.service.verifying.verification import Verification
from tests.golden_wire import FEEDBACK, SHOWN_FEEDBACK
from tests.support.services import Room
from tests.support.streams import ACTIONS, events, feedback_spec, shown, spec

KEYS = tuple(f"key {n}".encode() for n in range(4))
CLICKS = Partition("clicks", 0)


@dataclass(frozen=True)
class Topics:
    """What was published by one service."""

    actions: Sequence[Published]
    ledger: Sequence[Published]

    def verified(self) -> Verification:
        verification, topics = Verification(), feedback_spec().topics
        verification.read_published(topics, self.actions)
        verification.read(topics, self.ledger)
        verification.finish()
        return verification


@lru_cache
def published(played: str = "header") -> Topics:
    """By a service, and by its next start."""
    learner = policy_blocks(actions=ACTIONS, epsilon="2", schedule="capped 4", played=played)

    async def run() -> Room:
        room = Room([feedback_spec(learner=learner)], partitions=1)
        for number in range(2):
            async with room.worker():
                room.send("clicks", *shown(80, keys=KEYS, seed=number))
                await room.until(room.is_read)
        return room

    evidence = asyncio.run(run()).evidence(CLICKS)
    return Topics(tuple(evidence.actions), tuple(evidence.ledger))


@pytest.mark.parametrize("played", ["header", "value"])
def test_is_every_published_policy_computed_again(played: str) -> None:
    topics = published(played=played)
    verification = topics.verified()
    assert verification.violations == []
    assert verification.compared == Compared(policies=len(topics.actions))
    assert len(topics.actions) > 30


def test_is_what_compaction_leaves_enough() -> None:
    """The newest policy of each key stands for all sums before it."""
    topics = published()
    newest = {record.key: record for record in topics.actions}
    verification = replace(topics, actions=list(newest.values())).verified()
    assert (verification.violations, verification.compared.policies) == ([], len(KEYS))


async def test_are_published_actions_of_losses_compared_too() -> None:
    room = Room([spec()], partitions=1)
    async with room.worker():
        room.send("home", events(100))
        await room.until(room.is_read)
    evidence = room.evidence(Partition("home", 0))
    for change, said in ((0, []), (1, ["published action"])):
        verification, topics = Verification(), spec().topics
        last = json.loads(evidence.actions[-1].value)
        last["index"] = (last["index"] + change) % len(ACTIONS)
        last["action"] = ACTIONS[last["index"]]
        record = replace(evidence.actions[-1], value=json.dumps(last).encode())
        verification.read_published(topics, [*evidence.actions[:-1], record])
        verification.read(topics, evidence.ledger)
        verification.finish()
        assert [text for text in said if text not in str(verification.violations)] == []
        assert len(verification.violations) == change
        assert verification.compared.actions == len(evidence.actions) - change


# What is tampered with

Line = dict[str, Any]


def numbers(
    line: Line, name: str, dtype: str, change: Callable[[np.ndarray[Any, Any]], object]
) -> None:
    """Change the array in a line's field."""
    array = np.frombuffer(b64decode(line[name]), dtype).copy()
    change(array)
    line[name] = b64encode(array.tobytes()).decode()


def moves_a_part(line: Line) -> None:
    def move(policy: np.ndarray[Any, Any]) -> None:
        policy[0] += 1
        policy[1] -= 1

    numbers(line, "policy", "<u4", move)


def moves_a_sum(line: Line) -> None:
    numbers(line, "sums", "<i8", lambda sums: sums.__iadd__(1 << 18))


def shows_too_often(line: Line) -> None:
    numbers(line, "shown", "<i8", lambda shown: shown.__iadd__(3))


def names_another_learner(line: Line) -> None:
    line["learner"] = line["learner"].replace('"floor":"8"', '"floor":"9"')


def charges_less(line: Line) -> None:
    line["epsilon"] = "1"


def moves_a_border(line: Line) -> None:
    line["stop"] += 1


def tells_no_sums(line: Line) -> None:
    del line["sums"]


@pytest.mark.parametrize(
    ("where", "change", "said"),
    [
        ("actions", moves_a_part, "the published policy does not follow from the sums"),
        ("ledger", moves_a_sum, "the published policy does not follow from the sums"),
        ("ledger", shows_too_often, "shown more often than it has slots"),
        ("ledger", names_another_learner, "another learner than before"),
        ("ledger", charges_less, "is charged ε = 1, its learner's is 2"),
        ("ledger", moves_a_border, "its learner's"),
        ("ledger", tells_no_sums, "does not say what was drawn"),
    ],
)
def test_is_what_was_tampered_with_found(
    where: str, change: Callable[[Line], None], said: str
) -> None:
    """In the middle of the topic, in one line of one key."""
    topics = published()
    records = list(getattr(topics, where))
    at = next(n for n, record in enumerate(records) if n > 20 and b'"kind":"sums"' in record.value)
    line = json.loads(records[at].value)
    change(line)
    records[at] = replace(records[at], value=json.dumps(line, separators=(",", ":")).encode())
    verification = replace(topics, **{where: records}).verified()
    assert any(said in violation for violation in verification.violations), verification.violations


def test_a_charge_that_learner_and_lines_agree_on_is_found_by_the_noise() -> None:
    """Both say ε = 1, in every line; noise of that scale costs 2."""
    topics = published()
    ledger = [
        replace(
            record,
            value=record.value.replace(b'"epsilon":"2"', b'"epsilon":"1"').replace(
                rb"\"epsilon\":\"2\"", rb"\"epsilon\":\"1\""
            ),
        )
        for record in topics.ledger
    ]
    assert ledger != topics.ledger
    violations = replace(topics, ledger=ledger, actions=[]).verified().violations
    assert any("noise of scale 524288, its learner's is 1048576" in text for text in violations)


@pytest.mark.parametrize("learner", ['["policy_blocks"]', "{", '{"recipe":"policy_blocks"}', "3"])
def test_is_a_learner_that_is_none_found(learner: str) -> None:
    """In all lines: nothing can be computed, which is no proof."""
    topics = published()
    lines = [{**json.loads(record.value), "learner": learner} for record in topics.ledger]
    ledger = [
        replace(record, value=json.dumps(line).encode())
        for record, line in zip(topics.ledger, lines, strict=True)
    ]
    verification = replace(topics, ledger=ledger).verified()
    assert len(verification.violations) > 10
    assert verification.compared.policies == 0


def test_is_a_sum_found_whose_own_policy_was_compacted_away() -> None:
    """Later policies follow from it too."""
    topics = published()
    newest = {record.key: record for record in topics.actions}
    ledger = list(topics.ledger)
    at = next(n for n, record in enumerate(ledger) if n > 20 and b'"kind":"sums"' in record.value)
    line = json.loads(ledger[at].value)
    moves_a_sum(line)
    ledger[at] = replace(ledger[at], value=json.dumps(line).encode())
    (violation,) = Topics(list(newest.values()), ledger).verified().violations
    assert "the published policy does not follow" in violation


def test_is_a_policy_found_that_no_line_lets_anybody_compute() -> None:
    """The key's opening was deleted from the ledger: its policies are no longer proved."""
    topics = published()
    key = topics.ledger[0].key
    ledger = [record for record in topics.ledger if record is not topics.ledger[0]]
    violations = replace(topics, ledger=ledger).verified().violations
    unproved = [text for text in violations if "do not say which policy it put in force" in text]
    assert len(unproved) == sum(record.key == key for record in topics.actions) - 1


def test_is_a_policy_without_a_line_found() -> None:
    """It was published and never charged."""
    topics = published()
    verification = replace(topics, ledger=topics.ledger[:-1]).verified()
    assert ["which has no ledger line" in violation for violation in verification.violations] == [
        True
    ]


@pytest.mark.parametrize("actions", [2, 4, 6])
def test_blocks_whose_length_depends_on_the_number_of_actions_are_judged_by_it(
    actions: int,
) -> None:
    """The default's blocks stop growing at 400 slots for each action; a moved border is found."""
    learner = policy_following(actions=[f"a{at}" for at in range(actions)], epsilon="1")
    lines = replace(FEEDBACK, actions=learner.actions, learner=learner.recipe.learner)
    start, stop = learner.schedule.start(14), learner.schedule.stop(14)
    assert stop - start == max(512, 400 * actions)
    drawn = replace(
        SHOWN_FEEDBACK["sums"],
        identity=SHOWN_FEEDBACK["sums"].identity._replace(block=14),
        start=start,
        stop=stop,
        numbers=(0,) * 2 * actions,
        policy=bytes(4 * actions),
    )

    carried = Carried(0, 14, After(0, 0, 14), bytes(16 * actions))
    opening = replace(
        SHOWN_FEEDBACK["opening"], start=start, stop=start, carried=carried, policy=None
    )

    def said(of: Release) -> list[str]:
        verification = Verification()
        verification.read(
            StreamTopics("shop", lines.stream, lines.input),
            [
                Published(3, at, b"", lines.ledger(of, ordinal=9))
                for at, of in enumerate((opening, of))
            ],
        )
        return [text for text in verification.violations if "has the slots" in text]

    assert said(drawn) == []
    assert said(replace(drawn, stop=stop + 1))
