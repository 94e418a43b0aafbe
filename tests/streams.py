"""Streams for tests: small, seeded, and with an input that a test can make up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

import streamdp as sd
from streamdp.core.randomness import Randomness
from streamdp.ports import Key, StreamTopics, Value
from streamdp.service.spec import Start, StreamSpec
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
        budget=Fraction(5),
        epoch=epoch,
        start=start,
        randomness=sd.SeededRandomness(7) if randomness is None else randomness,
        most_keys=most_keys,
        most_key_bytes=most_key_bytes,
    )


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
