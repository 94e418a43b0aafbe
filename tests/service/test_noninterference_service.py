"""Does anything that the service lets be seen, but a charged release, depend on content?

Layer 4 of the audit on the whole service, for streams of losses and of feedback
(`tests.support.neighbours` tells what a life is and what is seen of it). Two inputs that differ in
one record's content must be the same to the byte in everything: actions or policies, ledger, sizes
and order of commits, logs, the view, how it ends, errors, reprs, warnings, files. And two lives
with other releases must have commits of the same sizes and order (P5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from streamdp.core.engine import Engine
from streamdp.core.events import Batch
from streamdp.ports import Partition, Value
from streamdp.service.logs import watch_loop
from streamdp.service.protocol import Cut, PartitionWork
from streamdp.service.settings import Pace
from streamdp.service.view import View
from streamdp.service.worker import Worker
from streamdp.wire import published, recording
from tests.support.feedback_neighbours import FeedbackCourse
from tests.support.leaks import (
    bad_slots,
    compresses_rows,
    counts_bad_records,
    drops_bad_records,
    expect_caught,
    halts_on_bad_records,
    logs_bad_records,
    quotes_sums_in_errors,
    redecode,
    saves_losers_first,
)
from tests.support.lives import EARLY, LAST, LATE, OPEN, shape
from tests.support.mutants import feedback
from tests.support.mutants.losses import with_votes
from tests.support.neighbours import (
    AnyCourse,
    Course,
    Observed,
    differences,
    on_memory,
    on_sqlite,
)
from tests.support.services import Lines

pytestmark = pytest.mark.slow

Patch = pytest.MonkeyPatch

LENGTH = 48
JSON: dict[str, Value] = {
    "a vector": b'{"losses":[0.1,0.9,0.3]}'.ljust(LENGTH),
    "another": b'{"losses":[0.9,0.1,0.7]}'.ljust(LENGTH),
    "out of range": b'{"losses":[-1e9,7,1e300]}'.ljust(LENGTH),
    "infinite": b'{"losses":[0,0,1e999]}'.ljust(LENGTH),
    "not a number": b'{"losses":[NaN,0,0]}'.ljust(LENGTH),
    "too few": b'{"losses":[0.1,0.9]}'.ljust(LENGTH),
    "a mapping": b'{"losses":{"a":0.1}}'.ljust(LENGTH),
    "a huge number": b'{"losses":[0,1,' + b"9" * (LENGTH - 17) + b"]}",
    "deep": b"[" * LENGTH,
    "garbage": b"\xff" * LENGTH,
    "no value": None,
}


def row(*losses: float) -> bytes:
    return np.array(losses, dtype="<f4").tobytes()


FRAMES: dict[str, Value] = {
    name: row(0.1, 0.2, 0.3) * 2 + middle + row(0.3, 0.2, 0.1)
    for name, middle in {
        "a row": row(0.1, 0.9, 0.3),
        "another": row(0.9, 0.1, 0.7),
        "out of range": row(-1e9, 7, 1e30),
        "not a number": row(np.nan, 0, 0),
        "infinite": row(0, np.inf, -np.inf),
        "a signalling NaN": b"\x01\x00\xa0\x7f" * 3,
        "minus nothing": row(-0.0, 1e-45, -1e-45),
    }.items()
}

HEADER: dict[str, Value] = {
    "a loss": b'{"loss":0.25}'.ljust(LENGTH),
    "another": b'{"loss":1}'.ljust(LENGTH),
    "one half": b'{"loss":0.5}'.ljust(LENGTH),
    "out of range": b'{"loss":-1e300}'.ljust(LENGTH),
    "infinite": b'{"loss":1e999}'.ljust(LENGTH),
    "not a number": b'{"loss":NaN}'.ljust(LENGTH),
    "of another kind": b'{"reward":0.25}'.ljust(LENGTH),
    "with an action": b'{"action":"a","loss":0.75}'.ljust(LENGTH),
    "deep": b"[" * LENGTH,
    "garbage": b"\xff" * LENGTH,
    "no value": None,
}
VALUE: dict[str, Value] = {
    "a loss": b'{"action":"a","loss":0.25}'.ljust(LENGTH),
    "another action": '{"action":"ü","loss":1}'.encode().ljust(LENGTH),
    "an unknown action": b'{"action":"b","loss":0.25}'.ljust(LENGTH),
    "no action": b'{"loss":0.25}'.ljust(LENGTH),
    "garbage": b"\xff" * LENGTH,
}
SHOWN_FRAMES: dict[str, Value] = {
    name: np.array([0.1, 0.2, middle, 0.9], dtype="<f4").tobytes()
    for name, middle in (("a row", 0.5), ("another", 0.0), ("NaN", np.nan), ("infinite", np.inf))
}

LIVES: list[tuple[AnyCourse, dict[str, Value], int]] = [
    (Course(), JSON, EARLY),
    (Course(), dict(islice(JSON.items(), 5)), LATE),
    (Course(), dict(islice(JSON.items(), 5)), LAST),
    (Course("float32"), FRAMES, EARLY),
    (Course("float32"), dict(islice(FRAMES.items(), 4)), LATE),
    (FeedbackCourse(), HEADER, EARLY),
    (FeedbackCourse(recipe="policy_blocks"), dict(islice(HEADER.items(), 2)), LATE),
    (FeedbackCourse(), dict(list(HEADER.items())[-2:]), LAST),
    (FeedbackCourse(played="value"), VALUE, EARLY),
    (FeedbackCourse(format="float32"), SHOWN_FRAMES, LATE),
]
LOSSES, FEEDBACK = (Course(), JSON), (FeedbackCourse(), HEADER)
both_kinds = pytest.mark.parametrize(
    ("course", "contents"), [LOSSES, FEEDBACK], ids=["losses", "feedback"]
)


@pytest.mark.parametrize(("course", "contents", "at"), LIVES, ids=lambda part: str(part)[:60])
def test_are_neighbours_the_same_to_the_byte(
    course: AnyCourse, contents: dict[str, Value], at: int, monkeypatch: Patch
) -> None:
    course.by_script(monkeypatch)
    first, *others = contents
    plain = on_memory(course, at=at, content=contents[first])
    for name in others:
        assert differences(plain, on_memory(course, at=at, content=contents[name])) == [], name


@both_kinds
def test_are_neighbours_the_same_on_files(
    course: AnyCourse, contents: dict[str, Value], monkeypatch: Patch, tmp_path: Path
) -> None:
    course.by_script(monkeypatch)
    lives, usable = [], list(contents)[:2]
    for number, name in enumerate((*usable, "not a number", "garbage")):
        folder = tmp_path / str(number)
        folder.mkdir()
        lives.append(on_sqlite(course, folder, at=LATE, content=contents[name]))
    assert [differences(lives[0], other) for other in lives[1:]] == [[], [], []]


def test_are_neighbours_the_same_with_a_quarantine(monkeypatch: Patch) -> None:
    """Only the quarantine itself may tell what was unusable, or a loss of exactly 1/2."""
    course = FeedbackCourse(aside=lambda technology: technology)
    course.by_script(monkeypatch)
    plain, *others = (
        on_memory(course, at=EARLY, content=HEADER[name]) for name in ("a loss", "one half", "deep")
    )
    assert [differences(plain, other) for other in others] == [[], []]


@both_kinds
def test_is_a_life_told_in_full(
    course: AnyCourse, contents: dict[str, Value], monkeypatch: Patch
) -> None:
    """The comparison would be worth little if little happened."""
    course.by_script(monkeypatch)
    seen = on_memory(course, at=EARLY, content=next(iter(contents.values())))
    log, commits = str(seen["log"]), seen["commits"]
    assert isinstance(commits, list)
    assert len(commits) > 20
    for event in ("partition_lost", "partition_drained", "partition_halted", "stopped"):
        assert event in log
    for phrase in ("needs a new epoch", "2 or a later one", "damaged", "rows; expected", "foreign"):
        assert phrase in log, phrase
    if contents is HEADER:
        assert str(seen["actions"]).count('"policy"') > 20
    else:
        assert '"records": 0' in log
        assert log.count('"partition_rebuilding"') > log.count('"records": 0')
        assert "block_regret" in str(seen["ledger"])


# Sizes do not tell what was drawn


@pytest.mark.parametrize("made", [Course, FeedbackCourse])
def test_is_nothing_larger_for_one_release_than_for_another(
    made: Callable[..., AnyCourse], monkeypatch: Patch
) -> None:
    lives = [_by_script(made(script=script), monkeypatch) for script in range(3)]
    assert differences(lives[0], lives[1]) != []
    assert [differences(shape(lives[0]), shape(other)) for other in lives[1:]] == [[], []]


def test_is_a_line_without_padding_caught(monkeypatch: Patch) -> None:
    monkeypatch.setattr(published, "_filled", lambda line, spaces: line)
    monkeypatch.setattr(recording, "_ends", recording._ends.__wrapped__)  # it remembers
    lives = [_by_script(Course(script=script), monkeypatch) for script in range(2)]
    assert "commits" in differences(shape(lives[0]), shape(lives[1]))


def _by_script(course: AnyCourse, patch: Patch) -> Observed:
    """A life whose releases are the script's."""
    with patch.context() as scripted:
        course.by_script(scripted)
        content = HEADER["a loss"] if isinstance(course, FeedbackCourse) else JSON["a vector"]
        return on_memory(course, at=EARLY, content=content)


# What leaks is caught


def shows_the_engine(patch: Patch) -> None:
    """A page that reads the learners' sums instead of what was published."""
    commit, working = Worker._commit, list[PartitionWork]()

    async def watched(self: Worker, work: PartitionWork) -> None:
        working[:] = [work]
        await commit(self, work)

    committed = View.committed

    def telling(self: View, partition: Partition, cut: Cut, **more: object) -> None:
        committed(self, partition, cut, **more)  # type: ignore[arg-type]
        bank = working[0].engine._bank
        self.show(partition, message=str(bank.private["sums"][: len(bank)].sum()))

    patch.setattr(Worker, "_commit", watched)
    patch.setattr(View, "committed", telling)


def warns_of_bad_records(patch: Patch) -> None:
    """A library that warns of numbers: here of the square of infinity."""

    def squared(batch: Batch) -> Batch:
        np.square(np.where(np.isfinite(batch.content["losses"]), 0, np.float32(1e38)))
        return batch

    redecode(patch, squared)


def saves_more_for_bad_records(patch: Patch) -> None:
    """How much a commit holds depends on what came."""
    share, seen = PartitionWork._share, [0]

    def noted(batch: Batch) -> Batch:
        seen[0] += bad_slots(batch)
        return batch

    def generous(self: PartitionWork, now: float, pace: Pace) -> int:
        more, seen[0] = seen[0], 0
        return share(self, now, pace) + more

    redecode(patch, noted)
    patch.setattr(PartitionWork, "_share", generous)


def publishes_the_sums(patch: Patch) -> None:
    """A selection that is none: the best action so far, without noise."""

    with_votes(patch, lambda self, rows, votes: self.bank.private["sums"][rows].argmin(axis=1))


def shows_what_is_kept(patch: Patch) -> None:
    """An object of the state that says in its repr what it holds."""
    patch.setattr(Engine, "__repr__", lambda self: f"Engine({self._bank.private['sums'].tolist()})")
    live = Worker._live

    async def showing(self: Worker) -> None:
        try:
            await live(self)
        finally:
            if self.life.work is not None:
                self._around.view.show(self.partition, message=repr(self.life.work.engine))

    patch.setattr(Worker, "_live", showing)


Leak = tuple[Callable[[Patch], None], int, str]

ANY_KIND: list[Leak] = [
    (logs_bad_records, EARLY, "log"),
    (counts_bad_records, EARLY, "first: view"),
    (drops_bad_records, EARLY, "ledger"),
    (halts_on_bad_records, EARLY, "log"),
    (saves_losers_first, EARLY, "commits"),
    (quotes_sums_in_errors, LAST, "log"),
]
OF_LOSSES: list[Leak] = [
    (shows_the_engine, EARLY, "first: view"),
    (warns_of_bad_records, EARLY, "warnings"),
    (compresses_rows, OPEN - 5, "commits"),
    (saves_more_for_bad_records, EARLY, "commits"),
    (publishes_the_sums, EARLY, "actions"),
    (shows_what_is_kept, OPEN, "first: view"),
]
OF_FEEDBACK: list[Leak] = [
    (feedback.releases_exact_sums, EARLY, "ledger"),
    (feedback.counts_usable_events_instead_of_shown_ones, EARLY, "ledger"),
    (feedback.reads_an_exact_sum_for_the_policy, EARLY, "actions"),
    (compresses_rows, OPEN - 1, "commits"),
]


@pytest.mark.parametrize(
    ("course", "contents", "leaks", "at", "where"),
    [
        *((*LOSSES, *leak) for leak in (*ANY_KIND, *OF_LOSSES)),
        *((*FEEDBACK, *leak) for leak in (*ANY_KIND, *OF_FEEDBACK)),
    ],
    ids=lambda part: getattr(part, "__name__", type(part).__name__),
)
def test_is_a_leak_caught(
    monkeypatch: Patch,
    course: AnyCourse,
    contents: dict[str, Value],
    leaks: Callable[[Patch], None],
    at: int,
    where: str,
) -> None:
    course.by_script(monkeypatch)
    leaks(monkeypatch)
    first, another, *_ = contents
    expect_caught(
        lambda place, name: on_memory(course, at=place, content=contents[name]),
        (first, "garbage", another),
        at=at,
        where=where,
    )


async def test_is_the_argument_of_a_failed_callback_not_logged() -> None:
    """asyncio quotes it in its own message."""
    lines = Lines()
    watch_loop(asyncio.get_running_loop(), lines)
    asyncio.get_running_loop().call_soon(int, b"0.25 secret")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ((event, fields),) = lines.lines
    assert (event, fields["detail"]) == ("loop_exception", "Exception in callback")
    assert fields["exception"] == "ValueError"
    assert "0.25" not in str(fields)
