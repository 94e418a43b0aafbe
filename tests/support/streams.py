"""Streams for tests: small, seeded, and with an input that a test can make up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

import streamdp as sd
from streamdp.core.events import SPARE
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.core.randomness import Randomness
from streamdp.ports import Headers, Key, StreamTopics, Value
from streamdp.service.settings import Start
from streamdp.service.spec import StreamSpec
from streamdp.wire.feedback import Feedback, Number
from streamdp.wire.formats import configure

ACTIONS = ("a", "b", "c")


def spec(
    *,
    name: str = "home",
    app: str = "shop",
    learner: sd.Leader | None = None,
    epoch: int = 1,
    start: Start = Start.EARLIEST,
    randomness: Randomness | None = None,
    estimates: Sequence[sd.Estimate] = (),
    most_keys: int = 1000,
    most_key_bytes: int = 64,
) -> StreamSpec:
    """A stream of JSON events with three actions."""
    chosen = learner or sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", schedule="capped 3")
    return StreamSpec(
        topics=StreamTopics(app, name, f"{name}-losses"),
        learner=chosen,
        estimates=tuple(estimates),
        format=configure("json", actions=list(chosen.actions), options={}),
        share=Fraction(5),
        epoch=epoch,
        start=start,
        randomness=sd.SeededRandomness(7) if randomness is None else randomness,
        most_keys=most_keys,
        most_key_bytes=most_key_bytes,
    )


def feedback_spec(
    *,
    name: str = "clicks",
    learner: PolicyLearner | None = None,
    content: Number = "reward",
    randomness: Randomness | None = None,
    format_name: str = "json",
    **options: object,
) -> StreamSpec:
    """A feedback stream with three actions, in blocks of 1, 2 and then 3 slots."""
    chosen = learner or policy_blocks(actions=ACTIONS, epsilon="1/2", schedule="capped 3")
    contexts = chosen.recipe.contexts
    columns = (contexts.actions(chosen.actions) if contexts else chosen.actions) or ()
    named = tuple(name for name in columns if name != SPARE)
    feedback = Feedback(named, content, chosen.played, contexts=contexts, columns=len(columns))
    return StreamSpec(
        topics=StreamTopics("shop", name, f"{name}-shown", headers=True),
        learner=chosen,
        estimates=(),
        format=configure(format_name, feedback=feedback, options=options),
        share=Fraction(5),
        epoch=1,
        start=Start.EARLIEST,
        randomness=sd.SeededRandomness(7) if randomness is None else randomness,
        most_keys=1000,
        most_key_bytes=64,
    )


def shown(
    count: int, *, keys: Sequence[Key] = (b"fr", b"de", None), seed: int = 1
) -> tuple[list[tuple[Key, Value]], list[Headers]]:
    """Records of clicks on random actions; some payloads and some headers are garbage."""
    rng = np.random.default_rng(seed)
    records: list[tuple[Key, Value]] = []
    headers: list[Headers] = []
    for _ in range(count):
        arm, click = int(rng.integers(0, len(ACTIONS))), bool(rng.random() < 0.3)
        odd = rng.random()
        value = b"\xffgarbage" if odd < 0.05 else json.dumps({"reward": int(click)}).encode()
        named: Headers = [("streamdp-action", ACTIONS[arm].encode())]
        if odd > 0.95:
            named = [("streamdp-action", b"nobody")] if odd > 0.975 else []
        records.append((keys[int(rng.integers(0, len(keys)))], value))
        headers.append(named)
    return records, headers


def events(
    count: int, *, keys: Sequence[Key] = (b"fr", b"de", None), seed: int = 1
) -> list[tuple[Key, Value]]:
    """Records of random losses, one in twenty of them garbage."""
    rng = np.random.default_rng(seed)
    records: list[tuple[Key, Value]] = []
    for losses, which, bad in zip(
        rng.random((count, len(ACTIONS))).round(3).tolist(),
        rng.integers(0, len(keys), count).tolist(),
        (rng.random(count) < 0.05).tolist(),
        strict=True,
    ):
        value = b"\xffgarbage" if bad else json.dumps({"losses": losses}).encode()
        records.append((keys[which], value))
    return records
