"""Does it matter if entries that were removed are there again when a partition is taken?

A compacted log drops a tombstone some time after what it removed. A taker that has read the one and
comes too late for the other finds an entry again that was live before. So tombstones may be
short-lived (what a takeover reads is the shorter for it) only if such entries do no harm.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace

import pytest

from streamdp.ports import Commit, Taken
from tests.support.protocol_model import Store, Story, finish, restore

TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))


@dataclass
class Reappearing(Store):
    """A store in which a random part of what was ever removed is found again."""

    removed: dict[bytes, bytes] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    found_again: int = 0

    def decide(self, commit: Commit) -> None:
        """Remember the last value of what is taken away."""
        for key, value in commit.state:
            if value is None and key in self.state:
                self.removed[key] = self.state[key]
        super().decide(commit)

    def taken(self) -> Taken:
        """With some of it, as long as nothing newer is there."""
        taken = super().taken()
        again = {
            key: value
            for key, value in self.removed.items()
            if key not in self.state and self.chance.random() < 0.5
        }
        self.found_again += len(again)
        return replace(taken, state={**again, **taken.state})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6 * TIMES))
def test_is_every_block_released_once_though_removed_entries_come_back(seed: int) -> None:
    """Crashes and rebuilds as in the protocol's own stories, and an epoch at the end."""
    story = Story.of(seed)
    known = story.store
    story.store = store = Reappearing(known.input, gap=known.gap, chance=random.Random(seed))
    work = story.tell()
    assert store.found_again > 10
    assert list(story.wrong()) == []
    lines = len(store.ledger)
    finish(store, restore(store, story.stream))
    assert len(store.ledger) == lines
    changed = replace(story.stream, epoch=2)
    finish(store, restore(store, changed))
    assert len(store.ledger) == lines + 1
    assert work.engine.position == store.end
