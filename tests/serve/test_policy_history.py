"""Are the policies of an opened key those that were published, and is it said what is missing?"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from streamdp.client import Condition, Feed
from streamdp.core.evidence.policy import PARTS
from streamdp.core.kinds.kind import Kind
from streamdp.core.learners.feedback.policy_elimination import policy_elimination
from streamdp.core.learners.feedback.policy_weights import policy_weights
from streamdp.ports import Partition, StreamTopics
from streamdp.serve import policy_history
from streamdp.serve.about import About
from streamdp.serve.history import KeyHistory, StreamReleases
from streamdp.serve.policy_history import MOST_BLOCKS, MOST_POINTS
from streamdp.serve.shown import _learner
from streamdp.testing.judge import Evidence
from streamdp.wire.lines import PolicyLine, from_base64, key_bytes
from streamdp.wire.published import decode_in_force
from tests.support.carrying import MORE, live, openings, policies, store_of, stream
from tests.support.idling import idles, of_two
from tests.support.services import Room
from tests.support.streams import ACTIONS, feedback_spec, shown

TOPICS = StreamTopics("shop", "home", "events")
LEARNER = policy_elimination(actions=ACTIONS, epsilon="1/2", schedule="capped 3")


@lru_cache
def published() -> Evidence:
    async def run() -> Room:
        room = Room([feedback_spec(learner=LEARNER)], partitions=1)
        async with room.worker():
            room.send("clicks", *shown(300, keys=[b"k"]))
            await room.until(room.is_read)
        return room

    return asyncio.run(run()).evidence(Partition("clicks", 0))


def heard(evidence: Evidence, *, since: int = 0) -> StreamReleases:
    releases = StreamReleases()
    releases.apply(evidence.ledger[since:])
    return releases


def told(history: KeyHistory, learner: Kind = LEARNER) -> dict[str, Any]:
    """What a page shows of it, by the configuration of its epoch."""
    about = About(
        TOPICS, learner, (), Fraction(1), history.epoch, seeded=False, actions=learner.actions
    )
    return _learner(about, Condition(Feed.CURRENT, 0.0, "", 0), 0, history)


def test_are_the_points_the_published_policies() -> None:
    """Evenly over the blocks, and the newest; bit for bit."""
    evidence = published()
    history = heard(evidence).of_key(b"k")[0]
    assert history.policies is not None
    points = history.policies.points()
    lines = [decode_in_force(record.value) for record in evidence.actions]
    by_stop = {
        line.stop: np.frombuffer(from_base64(line.policy, "policy"), "<u4") / PARTS
        for line in lines
        if isinstance(line, PolicyLine)
    }
    assert MOST_POINTS < len(by_stop) - 1 <= MOST_BLOCKS
    assert MOST_POINTS // 2 < len(points) <= MOST_POINTS + 1
    assert all(point.shares == by_stop[point.slot].tolist() for point in points)
    assert [points[0].slot, points[-1].slot] == [1, max(by_stop)]
    steps = np.diff([point.blocks for point in points])[:-1]
    assert set(steps.tolist()) == {4}


def test_are_there_none_of_a_key_with_too_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing rather than a part: what a policy is depends on all blocks before."""
    monkeypatch.setattr(policy_history, "MOST_BLOCKS", 50)
    history = heard(published()).of_key(b"k")[0]
    assert history.policies is not None
    assert history.policies.points() == []


def test_is_it_said_that_only_the_newest_lines_were_read() -> None:
    """The experiment says since which slot; the policy's past is none rather than wrong."""
    whole = told(heard(published()).of_key(b"k")[0])
    assert whole["arms"]["since_slot"] == 1
    assert whole["policies"][0]["slot"] == 1
    late = told(heard(published(), since=20).of_key(b"k")[0])
    assert late["arms"]["since_slot"] > 20
    assert late["policies"] is None
    assert sum(whole["arms"]["chance_of_best"]) == pytest.approx(1)
    assert late["arms"]["chance_of_best"] is None
    without = told(
        heard(published()).of_key(b"k")[0], policy_weights(actions=ACTIONS, epsilon="1/2")
    )
    assert sum(without["arms"]["chance_of_best"]) == pytest.approx(1)  # of its sums


def test_do_the_points_of_a_learner_that_carried_over_begin_with_that() -> None:
    """Of an epoch with more actions: what its opening says, then its own sums."""
    store = store_of(policies())
    live(store, stream(policies()), 60)
    live(store, stream(policies(MORE), epoch=2), store.end)
    releases = StreamReleases()
    releases.apply(store.ledger)
    lines = [decode_in_force(record.value) for record in store.actions]
    for key, opening in openings(store, 2).items():
        history = releases.of_key(key)[0]
        assert history.policies is not None
        points = history.policies.points()
        by_stop = {
            line.stop: np.frombuffer(from_base64(line.policy, "policy"), "<u4") / PARTS
            for line in lines
            if isinstance(line, PolicyLine) and line.epoch == 2 and key_bytes(line) == key
        }
        assert opening.start > 1
        assert len(points) > 5
        assert {point.slot: point.shares for point in points} == {
            stop: policy.tolist() for stop, policy in by_stop.items()
        }
        assert len({*points[0].shares}) > 1  # it knew something
        shown = told(history, policies(MORE))
        assert (shown["carried"], shown["arms"]["since_slot"]) == (True, opening.start)


def test_does_a_key_that_comes_back_keep_its_place_among_the_first() -> None:
    """Whoever is watched stays so: a new learner of the key takes the place of the one before."""
    store, of = of_two(policies()), idles(policies())
    live(store, of, store.end)
    releases = StreamReleases(histories=2)
    releases.apply(store.ledger)
    assert releases.of_key(b"fr")[0].carried
    assert releases.of_key(b"fr")[0].points is not None
    assert releases.of_key(b"fr")[0].policies is not None


@pytest.mark.parametrize(
    ("kind", "member", "broken"),
    [
        ("sums", "sums", "?"), ("sums", "shown", "AAAA"), ("sums", "shown", ""),
        ("opening", "history", "?"), ("opening", "history", "AAAA"), ("opening", "history", ""),
    ],
)  # fmt: skip
def test_does_a_line_that_is_no_line_of_ours_stop_nothing(
    kind: str, member: str, broken: str
) -> None:
    """Neither the policies of others nor what comes after: the ledger is read, not trusted."""
    store = store_of(policies())
    live(store, stream(policies()), 60)
    live(store, stream(policies(MORE), epoch=2), store.end)
    at, real = next(
        (at, json.loads(record.value))
        for at, record in enumerate(store.ledger)
        if b'"epoch":2' in record.value and b'"kind":"%b"' % kind.encode() in record.value
    )
    (real["carried"] if member == "history" else real)[member] = broken
    store.ledger[at] = replace(store.ledger[at], value=json.dumps(real).encode())
    releases = StreamReleases()
    releases.apply(store.ledger)
    drawn = {}
    for (_, key), history in releases.keys.items():
        drawn[key] = told(history, policies(MORE))["policies"]
    assert drawn.pop(store.ledger[at].key) is None
    assert None not in drawn.values()
    assert releases.refused == (kind == "sums")


def test_are_there_no_policies_of_a_table_that_no_line_has() -> None:
    whole = heard(published()).of_key(b"k")[0]
    assert told(whole, policies(("one", "too", "many", "of", "them")))["policies"] is None
