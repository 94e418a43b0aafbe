"""Layer 4 for the faces: do neighbouring inputs look the same to everybody, byte for byte?

Two inputs that differ in the content of one record go through the real service on a log. What
chance would decide is scripted (selections, noise, estimates), the clock stands still or counts.
Then everything that may be seen is compared: metrics page, status JSON, look-ups with their
headers, histories, the log, sizes. Only the sums that estimates are drawn from differ, and must:
else the test would see nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

import streamdp as sd
from streamdp.core.arrays import Ints
from streamdp.core.kinds.estimates import Estimate
from streamdp.lab.audit.script import Script, ScriptedRandomness, key_of
from streamdp.serve.about import About
from streamdp.service.spec import StreamSpec
from streamdp.testing.memory_log import MemoryLog
from tests.support.publishing import HOME
from tests.support.scripted_choice import ScriptedChoice
from tests.support.streams import ACTIONS, spec
from tests.support.watched_observers import BLOCKS, CHANGED, RECORDS, Lines, seen, worked

KEYS = [key_of(run) for run in range(3)]
PLAIN = b'{"losses":[0.100,0.900,0.300]}'
NEIGHBOURS = {
    "other losses": b'{"losses":[0.900,0.100,0.700]}',
    "out of range": b'{"losses":[-99.0,99.00,1e300]}',
    "not a number": b'{"losses":[NaN  ,0.900,0.300]}',
    "too few": b'{"losses":[0.100000,0.9000000]}'[: len(PLAIN) - 1] + b" ",
    "garbage": b"\xff\x00" * (len(PLAIN) // 2),
}
TARGETS = (
    "/metrics",
    "/v1/status",
    "/healthz",
    "/readyz",
    "/",
    "/openapi.json",
    "/v1/streams/home/keys",
    "/v1/streams/home/keys?search=x&limit=1",
    "/v1/streams/home/keys/%00%00%00%00%00%00%00%01/action",
    "/v1/streams/home/keys/%00%00%00%00%00%00%00%02/history",
    "/v1/streams/home/keys/nobody/action",
    "/v1/streams/home/null-key/action",
    "/nothing",
)
ESTIMATES = (
    sd.estimate("block_regret", epsilon="1/4", min_length=2),
    sd.estimate("null_share", epsilon="1/4", min_length=2),
)


def stream() -> StreamSpec:
    """A stream whose chance is scripted."""
    runs, actions = len(KEYS), len(ACTIONS)
    script = Script(
        many=actions,
        actions=np.arange(runs * (BLOCKS + 1)).reshape(runs, -1) * 7 % actions,
        windows=np.zeros((runs, BLOCKS + 1), dtype=np.uint64),
        coins=np.zeros((runs, RECORDS, actions), dtype=np.bool_),
    )
    learner = sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", schedule="capped 4")
    return spec(
        learner=replace(learner, choose=ScriptedChoice()),
        randomness=ScriptedRandomness(script),
        estimates=ESTIMATES,
    )


BATCH = ("/v1/streams/home/actions", b'{"keys":["a",null,{"base64":"AAAAAAAAAAE="}]}')


async def observed(content: bytes) -> Sequence[Mapping[str, object]]:
    """What is seen before and after a restart."""
    log, lines = MemoryLog(), Lines()
    log.create("home-losses", partitions=1)
    values = [PLAIN] * CHANGED + [content] + [PLAIN] * (RECORDS - CHANGED - 1)
    log.append("home-losses", [(KEYS[at % 3], value) for at, value in enumerate(values)])
    shown, made = list[Mapping[str, object]](), stream()
    for _ in range(2):
        view = await worked(log, made, lines)
        about = About(
            HOME, made.learner, ESTIMATES, made.share, 1, seeded=True, actions=made.names,
            fallback="a",
        )  # fmt: skip
        asked = [*((target, b"") for target in TARGETS), BATCH]
        shown.append(await seen(log, about, view, lines, asked))
    return shown


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_do_neighbouring_inputs_look_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither values, nor sizes, nor headers, nor log lines, before and after a restart."""
    private: list[object] = []

    def nothing(self: Estimate, sums: Ints, **_: object) -> Ints:
        private.append(sums.tolist())
        return np.zeros(len(sums), np.int64)

    monkeypatch.setattr(Estimate, "statistic", nothing)
    assert len(NEIGHBOURS[name]) == len(PLAIN)
    one, half = asyncio.run(observed(PLAIN)), len(private)
    other = asyncio.run(observed(NEIGHBOURS[name]))
    for before, after in zip(one, other, strict=True):
        assert before.keys() == after.keys()
        for what, answer in before.items():
            assert answer == after[what], what
    assert half == len(private) - half
    assert private[:half] != private[half:]
    history = json.loads(one[0]["/v1/streams/home/keys/%00%00%00%00%00%00%00%02/history"][2])  # type: ignore[index]
    assert len(history["learners"][0]["points"]) > 4


def test_would_an_exact_number_on_the_page_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant shows the block's own regret without noise: the pages differ."""
    monkeypatch.setattr(
        Estimate, "statistic", lambda self, sums, **_: sums.max(axis=1) - sums.min(axis=1)
    )
    one = asyncio.run(observed(PLAIN))
    other = asyncio.run(observed(NEIGHBOURS["other losses"]))
    assert one[0]["/metrics"] != other[0]["/metrics"]
    assert one[0]["/v1/status"] != other[0]["/v1/status"]
