"""Broken services, each of which the judge must catch. They live here and never in the product."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import replace

from streamdp.ports import Partition, Records, Taken
from streamdp.service import protocol, taking
from streamdp.service.batches import DecodedRecords
from streamdp.service.charges_by_others import ChargesByOthers
from streamdp.service.protocol import Cut, PartitionWork
from streamdp.service.settings import Pace
from streamdp.service.spec import StreamSpec
from streamdp.service.taking import Decision
from streamdp.wire.state import Recorded, record


def publish_before_durable() -> None:
    """The commit that records a release publishes it too: an abort shows a draw that is redrawn."""
    cut = PartitionWork.cut

    def early(self: PartitionWork, *, now: float, pace: Pace) -> Cut:
        made = cut(self, now=now, pace=pace)
        actions, ledger = self._waiting.written.published()
        return replace(made, commit=replace(made.commit, actions=actions, ledger=ledger))

    PartitionWork.cut = early  # type: ignore[method-assign]
    taking._is_later = lambda line, checkpoint: False  # else it would halt at its next start


def redraw() -> None:
    """Who takes a partition draws anew what the last commit recorded and nobody is told of yet."""
    opened = protocol.open_partition  # type: ignore[attr-defined]

    def forgetful(
        spec: StreamSpec, partition: Partition, taken: Taken, **others: ChargesByOthers
    ) -> Decision:
        decision = opened(spec, partition, taken, **others)
        releases = {
            identity: _drawn_anew(spec, release) if decision.waits(release) else release
            for identity, release in decision.saved.releases.items()
        }
        now = replace(decision.saved.now, releases=releases)
        return replace(decision, saved=replace(decision.saved, now=now))

    protocol.open_partition = forgetful  # type: ignore[assignment,attr-defined]


def skip_a_record() -> None:
    """One record in fifty is lost on its way to the engine."""
    read = PartitionWork.read
    chance = random.Random(1)

    def lossy(self: PartitionWork, records: Records) -> list[DecodedRecords]:
        return read(self, _thinned(records, chance))

    PartitionWork.read = lossy  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    mutant.__name__: mutant for mutant in (publish_before_durable, redraw, skip_a_record)
}


def _drawn_anew(spec: StreamSpec, recorded: Recorded) -> Recorded:
    """The same release with another draw, in all the bytes that tell of it."""
    if recorded.action is None or recorded.ordinal is None or recorded.release.policy is not None:
        return recorded  # sums that are drawn anew give another policy: its rebuild would refuse
    release = replace(recorded.release, numbers=(secrets.randbelow(len(spec.learner.actions)),))
    return record(release, lines=spec.lines, ordinal=recorded.ordinal)


def _thinned(records: Records, chance: random.Random) -> Records:
    kept = [at for at in range(len(records)) if chance.random() > 0.02]
    return replace(
        records,
        offsets=[records.offsets[at] for at in kept],
        keys=[records.keys[at] for at in kept],
        values=[records.values[at] for at in kept],
    )
