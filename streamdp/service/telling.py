"""What a partition tells the others of its votes, and keeps of what they tell, cut by cut.

Where a crowd reaches across partitions (`core.evidence.adoption`):

1. The cut that publishes a prior's line tells the snapshot that belongs to it. That cut follows the
   one that recorded the prior. So a snapshot counts no vote that is not durable and nothing that is
   drawn in the same cut: that cut's size is the same whatever was drawn (P5).
2. The state keeps it from then on. The next owner of the partition tells it again, so a topic that
   was lost fills up again.
3. What was adopted is recorded in the cut that records the prior made of it, which is the cut of
   the first draw that used the prior. Nobody has seen anything of a prior that a crash lost, so its
   snapshots may be chosen anew. Of a durable prior the state keeps the snapshots too, and nothing
   is chosen again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streamdp.core.engine import CrowdStanding
from streamdp.core.evidence.adoption import CrowdSnapshot, Offers
from streamdp.service.spec import StreamSpec
from streamdp.wire.entries import Entries
from streamdp.wire.published import Lines
from streamdp.wire.snapshots import encode_snapshot
from streamdp.wire.state import EpochEntries
from streamdp.wire.state_version import ADOPTION_VERSION, CROWD_VERSION, POOL_VERSION, VERSION


def layout_version(spec: StreamSpec, crowd: CrowdStanding | None) -> int:
    """The layout version of a checkpoint: the oldest that holds what the stream needs."""
    if crowd is None:
        return VERSION
    if spec.reaches:
        return ADOPTION_VERSION
    return POOL_VERSION if crowd.pool else CROWD_VERSION


@dataclass(slots=True)
class SnapshotTelling:
    """The snapshots of one partition at work: its own, and those that others told it."""

    lines: Lines
    entries: Entries
    epoch: int
    offers: Offers
    due: CrowdSnapshot | None = None  # for the next cut to tell
    _told: CrowdSnapshot | None = None  # the newest that was told, or is to be told
    _kept: dict[int, CrowdSnapshot] = field(default_factory=dict)  # of others, as in the state

    def go_on(self, saved: EpochEntries) -> None:
        """Go on from a state of the same epoch; tell its snapshot again."""
        self.due = self._told = saved.snapshot
        self._kept = dict(saved.adopted)

    def cut(
        self, crowd: CrowdStanding | None
    ) -> tuple[bytes | None, list[tuple[bytes, bytes | None]]]:
        """What this cut tells the others, and the entries of the state that it changes."""
        changes: list[tuple[bytes, bytes | None]] = []
        record, due = None, self.due
        if due is not None:
            record = encode_snapshot(due, lines=self.lines)
            changes.append((self.entries.snapshot(epoch=self.epoch), record))
        self.due = None
        if crowd is None:
            return record, changes
        if crowd.snapshot is not None and crowd.snapshot != self._told:
            self.due = self._told = crowd.snapshot
        adopted = {snapshot.partition: snapshot for snapshot in crowd.adopted}
        for other in self._kept.keys() | adopted.keys():
            if self._kept.get(other) != adopted.get(other):
                place, now = self.entries.adopted(other, epoch=self.epoch), adopted.get(other)
                value = None if now is None else encode_snapshot(now, lines=self.lines)
                changes.append((place, value))
        self._kept = adopted
        return record, sorted(changes)
