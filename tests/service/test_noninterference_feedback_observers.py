"""Do neighbouring inputs of a feedback stream look the same to everybody, byte for byte?

As `test_noninterference_observers`, for streams that publish policies: choices one by one and in
bulk with their headers, histories with the experiment, metrics, status and logs, before and after a
restart. Released sums come from a script; whatever else may be seen must not depend on content.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from streamdp.serve.about import About
from streamdp.testing.memory_log import MemoryLog
from tests.support.feedback_neighbours import FeedbackCourse, sums_by_script
from tests.support.mutants.feedback import releases_exact_sums
from tests.support.watched_observers import RECORDS, Lines, seen, worked

pytestmark = pytest.mark.slow

CONTENTS = {
    "a loss": b'{"loss":0.25}',
    "another": b'{"loss":1.00}',
    "one half": b'{"loss":0.50}',
    "not a number": b'{"loss":NaN }',
    "garbage": b"\xff" * 13,
}
CHANGED = 47
KEY = "/v1/streams/home/keys/%00%00%00%00%00%00%00%04"  # whose record is changed
ASKED = [
    *(
        (target, b"")
        for target in (
            "/metrics", "/v1/status", "/readyz", "/", "/v1/streams/home/keys",
            f"{KEY}/choice?request=r-1", f"{KEY}/choice?request=r-2", f"{KEY}/choice",
            f"{KEY}/history", f"{KEY}/action", "/v1/streams/home/null-key/choice?request=r-1",
            "/v1/streams/home/keys/nobody/choice?request=r-1",
        )
    ),
    (
        "/v1/streams/home/choices",
        json.dumps(
            {
                "requests": [
                    {"key": key, "request": f"r-{at}"}
                    for at, key in enumerate([{"base64": "AAAAAAAAAAQ="}, None, "nobody"])
                ]
            }
        ).encode(),
    ),
]  # fmt: skip


async def observed(content: bytes) -> list[Mapping[str, object]]:
    """What is seen before and after a restart."""
    course, lines, log = FeedbackCourse(), Lines(), MemoryLog()
    made = course.spec()
    log.create(made.topics.input, partitions=1)
    records = course.records(at=CHANGED, content=content)[:RECORDS]
    log.append(made.topics.input, records, headers=course.headers()[:RECORDS])
    about = About(
        made.topics, made.learner, (), made.share, 1, seeded=True, actions=made.names,
        fallback="ü", salt="pepper",
    )  # fmt: skip
    shown = []
    for _ in range(2):
        view = await worked(log, made, lines)
        shown.append(await seen(log, about, view, lines, ASKED))
    return shown


@pytest.mark.parametrize("name", list(CONTENTS)[1:])
def test_do_neighbouring_inputs_look_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither values, nor sizes, nor headers, nor log lines, before and after a restart."""
    sums_by_script(monkeypatch)
    one = asyncio.run(observed(CONTENTS["a loss"]))
    other = asyncio.run(observed(CONTENTS[name]))
    for before, after in zip(one, other, strict=True):
        assert before.keys() == after.keys()
        for what, answer in before.items():
            assert answer == after[what], what
    choice = one[0][f"{KEY}/choice?request=r-1"]
    assert json.loads(choice[2])["source"] == "published"  # type: ignore[index]
    history = json.loads(one[1][f"{KEY}/history"][2])  # type: ignore[index]
    assert history["learners"][0]["blocks"] >= 2


def test_would_sums_without_noise_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant releases what was observed: the experiment tells of it."""
    releases_exact_sums(monkeypatch)
    one = asyncio.run(observed(CONTENTS["a loss"]))
    other = asyncio.run(observed(CONTENTS["another"]))
    differing = {what for what in one[0] if one[0][what] != other[0][what]}
    assert f"{KEY}/history" in differing, differing
