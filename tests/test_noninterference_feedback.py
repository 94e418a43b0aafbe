"""Does anything of a feedback stream's service, but the charged sums, depend on content?

Layer 4 of the audit on the whole service, for streams that see the shown action's loss only
(`tests.support.neighbours` tells what a life is and what is seen of it). Inputs that differ in one
record's content must be the same to the byte in everything: policies, ledger, sizes and order of
commits, logs, the view, how it ends, errors, reprs, warnings, files; and in what HTTP answers,
choices and the experiment page among it. And two lives with other sums must have commits of the
same sizes and order (P5).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamdp.core.events import FeedbackBatch
from streamdp.ports import Records, Value
from streamdp.service.protocol import PartitionWork
from tests.support.feedback_mutants import MUTANTS
from tests.support.feedback_neighbours import FeedbackCourse, sums_by_script
from tests.support.kind_mutants import releases_exact_sums
from tests.support.leaks import (
    compresses_rows,
    expect_caught,
    halts_on_bad_records,
    logs_bad_records,
    quotes_sums_in_errors,
    redecode,
    saves_losers_first,
)
from tests.support.lives import EARLY, LAST, LATE, OPEN, shape
from tests.support.neighbours import differences, on_memory, on_sqlite

pytestmark = pytest.mark.slow

Patch = pytest.MonkeyPatch

LENGTH = 48
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
FRAMES: dict[str, Value] = {
    name: np.array([0.1, 0.2, middle, 0.9], dtype="<f4").tobytes()
    for name, middle in (("a row", 0.5), ("another", 0.0), ("NaN", np.nan), ("infinite", np.inf))
}

LIVES: list[tuple[FeedbackCourse, dict[str, Value], int]] = [
    (FeedbackCourse(), HEADER, EARLY),
    (FeedbackCourse(recipe="policy_blocks"), dict(list(HEADER.items())[:2]), LATE),
    (FeedbackCourse(), dict(list(HEADER.items())[-2:]), LAST),
    (FeedbackCourse(played="value"), VALUE, EARLY),
    (FeedbackCourse(format="float32"), FRAMES, LATE),
]


@pytest.fixture(autouse=True)
def scripted(monkeypatch: Patch) -> None:
    """Sums are charged releases: what is drawn comes from a script here."""
    sums_by_script(monkeypatch)


@pytest.mark.parametrize(("course", "contents", "at"), LIVES, ids=lambda part: str(part)[:60])
def test_are_neighbours_the_same_to_the_byte(
    course: FeedbackCourse, contents: dict[str, Value], at: int
) -> None:
    first, *others = contents
    plain = on_memory(course, at=at, content=contents[first])
    for name in others:
        assert differences(plain, on_memory(course, at=at, content=contents[name])) == [], name


def test_are_neighbours_the_same_on_files(tmp_path: Path) -> None:
    lives = []
    for number, name in enumerate(("a loss", "another", "garbage")):
        folder = tmp_path / str(number)
        folder.mkdir()
        lives.append(on_sqlite(FeedbackCourse(), folder, at=LATE, content=HEADER[name]))
    assert [differences(lives[0], other) for other in lives[1:]] == [[], []]


def test_are_neighbours_the_same_with_a_quarantine() -> None:
    """Only the quarantine itself may tell what was unusable, or a loss of exactly 1/2."""
    course = FeedbackCourse(aside=lambda technology: technology)
    plain, *others = (
        on_memory(course, at=EARLY, content=HEADER[name]) for name in ("a loss", "one half", "deep")
    )
    assert [differences(plain, other) for other in others] == [[], []]


def test_is_a_life_told_in_full() -> None:
    """The comparison would be worth little if little happened."""
    seen = on_memory(FeedbackCourse(), at=EARLY, content=HEADER["a loss"])
    log, commits = str(seen["log"]), seen["commits"]
    assert isinstance(commits, list)
    assert len(commits) > 20
    for event in ("partition_lost", "partition_drained", "partition_halted", "stopped"):
        assert event in log
    for phrase in ("needs a new epoch", "2 or a later one", "damaged", "rows; expected", "foreign"):
        assert phrase in log, phrase
    assert "withheld" in str(seen["ledger"])
    assert str(seen["actions"]).count('"policy"') > 20


def test_is_nothing_larger_for_some_sums_than_for_others(monkeypatch: Patch) -> None:
    lives = []
    for script in range(3):
        sums_by_script(monkeypatch, script)
        lives.append(on_memory(FeedbackCourse(), at=EARLY, content=HEADER["a loss"]))
    assert differences(lives[0], lives[1]) != []
    assert [differences(shape(lives[0]), shape(other)) for other in lives[1:]] == [[], []]


# What leaks is caught


def drops_bad_records(patch: Patch) -> None:
    """Unusable contents take no slot."""

    def without(batch: FeedbackBatch) -> FeedbackBatch:
        assert batch.unusable is not None
        keep = ~batch.unusable
        columns = batch.index[keep], batch.played[keep], batch.gain[keep], batch.offsets[keep]
        return FeedbackBatch(batch.keys, *columns)

    redecode(patch, without)


def publishes_the_sums(patch: Patch) -> None:
    """Sums without noise."""
    releases_exact_sums(patch)


def counts_what_it_refuses(patch: Patch) -> None:
    """A public counter of keys to which unusable contents are added."""
    read = PartitionWork.read

    def counting(self: PartitionWork, records: Records) -> Records:
        bad = [self.spec.format.explain(value) is not None for value in records.values]
        self.keys_refused += sum(bad)
        return read(self, records)

    patch.setattr(PartitionWork, "read", counting)


@pytest.mark.parametrize(
    ("leaks", "at", "where"),
    [
        (logs_bad_records, EARLY, "log"),
        (drops_bad_records, EARLY, "ledger"),
        (halts_on_bad_records, EARLY, "log"),
        (publishes_the_sums, EARLY, "ledger"),
        (MUTANTS["counts_usable_events_instead_of_shown_ones"].patch, EARLY, "ledger"),
        (MUTANTS["reads_an_exact_sum_for_the_policy"].patch, EARLY, "actions"),
        (compresses_rows, OPEN - 1, "commits"),
        (saves_losers_first, EARLY, "commits"),
        (quotes_sums_in_errors, LAST, "log"),
        (counts_what_it_refuses, EARLY, "first: view"),
    ],
)
def test_is_a_leak_caught(
    monkeypatch: Patch, leaks: Callable[[Patch], None], at: int, where: str
) -> None:
    leaks(monkeypatch)
    expect_caught(
        lambda place, name: on_memory(FeedbackCourse(), at=place, content=HEADER[name]),
        ("a loss", "garbage", "another"),
        at=at,
        where=where,
    )
