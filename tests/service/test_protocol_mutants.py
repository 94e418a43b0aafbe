"""Does the random model of the protocol catch a protocol that is broken, wherever it is broken?

Each mutant breaks one sentence of the protocol's description. It is caught when a partition halts
(`StateMismatch`) or the judge finds something, in at least one of a few random lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest

import streamdp as sd
from streamdp.core.engine import Engine, Rebuilding
from streamdp.core.errors import StreamdpError
from streamdp.core.events import Batch
from streamdp.ports import Commit
from streamdp.service import taking
from streamdp.service.batches import DecodedRecords
from streamdp.service.protocol import Cut, PartitionWork
from streamdp.service.saved_entries import SavedEntries
from streamdp.service.settings import Pace
from streamdp.service.taking import Decision
from streamdp.wire.state import encode_checkpoint
from tests.support.protocol_model import Story
from tests.support.streams import spec

pytestmark = pytest.mark.slow

LIVES = (5, *range(5))
"""Seeds; the first has what only it catches: two of the mutants are caught by no other."""
Patch = pytest.MonkeyPatch


def recut(patch: Patch, change: Callable[[PartitionWork, Cut], Cut]) -> None:
    """Break every cut."""
    cut = PartitionWork.cut

    def broken(self: PartitionWork, *, now: float, pace: Pace) -> Cut:
        return change(self, cut(self, now=now, pace=pace))

    patch.setattr(PartitionWork, "cut", broken)


def checkpointed(made: Cut, **changes: int) -> Cut:
    """The same cut with another checkpoint."""
    point = msgspec.structs.replace(made.checkpoint, **changes)
    state = [
        (key, encode_checkpoint(point) if b'"checkpoint"' in key else value)
        for key, value in made.commit.state
    ]
    return replace(made, checkpoint=point, commit=replace(made.commit, state=state))


def low_water_too_far_ahead(patch: Patch) -> None:
    """A rebuild does not read what some saved row has not seen."""
    recut(patch, lambda work, made: checkpointed(made, low_water=made.checkpoint.next_offset))


def published_by_what_records(patch: Patch) -> None:
    """An aborted commit shows a draw, and the next owner draws another."""

    def early(work: PartitionWork, made: Cut) -> Cut:
        actions, ledger = work._waiting.written.published()
        return replace(made, commit=replace(made.commit, actions=actions, ledger=ledger))

    recut(patch, early)
    patch.setattr(taking, "_is_later", lambda line, checkpoint: False)


def rows_ahead_of_the_cut(patch: Patch) -> None:
    """Rows are as of now, the position is as of one batch ago: the releases between are lost."""
    absorb, before = PartitionWork.absorb, dict[PartitionWork, int]()

    def noting(self: PartitionWork, records: Sequence[DecodedRecords]) -> None:
        before[self] = self.engine.position
        absorb(self, records)

    def late(work: PartitionWork, made: Cut) -> Cut:
        at = max(before.get(work, 0), made.checkpoint.low_water)
        return checkpointed(made, next_offset=at)

    patch.setattr(PartitionWork, "absorb", noting)
    recut(patch, late)


def releases_taken_away_too_early(patch: Patch) -> None:
    """Recorded releases go when they are published, though no saved row is past them yet."""

    def forgetful(work: PartitionWork, made: Cut) -> Cut:
        kept = [
            (key, mark) for key, marks in work._published.items() for mark in marks.split(b"\n")
        ]
        gone = [(work._entries.release(mark, key), None) for key, mark in kept]
        return replace(made, commit=replace(made.commit, state=[*made.commit.state, *gone]))

    recut(patch, forgetful)


def records_applied_twice(patch: Patch) -> None:
    """A rebuild gives records to rows that have seen them."""
    patch.setattr(
        Rebuilding, "_wanted", lambda self, batch: self._bank.rows(batch.keys)[batch.index] >= 0
    )


def redrawn(patch: Patch) -> None:
    """A rebuild draws where a block ends, whatever was recorded, and forgets saved rows."""
    feed = Rebuilding.feed

    def fresh(self: Rebuilding, batch: Batch) -> None:
        self._record = self._engine._fresh  # type: ignore[assignment]
        feed(self, batch)

    patch.setattr(Rebuilding, "feed", fresh)
    recut(patch, lambda work, made: replace(made, commit=_without_rows(made.commit)))
    recut(patch, lambda work, made: checkpointed(made, low_water=0))


def _without_rows(commit: Commit) -> Commit:
    return replace(commit, state=[entry for entry in commit.state if b'"row"' not in entry[0]])


def published_again(patch: Patch) -> None:
    """Whoever takes a partition publishes all that is recorded, not only what the last commit did.

    (Harmless to privacy, as the bytes are the same; but a ledger must have each line once.)
    """
    patch.setattr(SavedEntries, "keep_needed", lambda self: None)
    patch.setattr(Decision, "waits", lambda self, recorded: True)


def never_published(patch: Patch) -> None:
    """What the last commit recorded is forgotten by who takes the partition."""

    def nothing(self: PartitionWork, *_: object) -> None:
        return

    patch.setattr(PartitionWork, "_adopt", nothing)


def in_force_forgotten(patch: Patch) -> None:
    """A rebuilt learner does not know which action is in force (its prior is another)."""
    finish = Rebuilding.finish

    def amnesiac(self: Rebuilding, *, position: int, rows: int) -> Engine:
        engine = finish(self, position=position, rows=rows)
        engine._bank.public["action"][: len(engine)] = 0
        return engine

    patch.setattr(Rebuilding, "finish", amnesiac)


@pytest.mark.parametrize(
    "breaks",
    [
        low_water_too_far_ahead,
        published_by_what_records,
        rows_ahead_of_the_cut,
        releases_taken_away_too_early,
        records_applied_twice,
        redrawn,
        published_again,
        never_published,
        in_force_forgotten,
    ],
)
def test_does_the_model_catch(monkeypatch: Patch, breaks: Callable[[Patch], None]) -> None:
    breaks(monkeypatch)
    for seed in LIVES:
        story = Story.of(seed)
        if breaks in (published_by_what_records, redrawn):
            story.stream = spec(randomness=sd.SystemRandomness(), learner=WIDE)
        try:
            story.tell()
        except StreamdpError:
            return
        if story.wrong():
            return
    pytest.fail("not caught")


WIDE = sd.noisy_leader(
    actions=[str(n) for n in range(16)], epsilon="1/100", noise="exponential", schedule="capped 1"
)
"""A second draw differs from the first with probability 15/16."""


def test_does_the_wide_stream_live_well() -> None:
    """The mutants are caught for what they do, not for the stream that they do it to."""
    for seed in LIVES:
        story = Story.of(seed)
        story.stream = spec(randomness=sd.SystemRandomness(), learner=WIDE)
        story.tell()
        assert story.wrong() == []
