"""Broken services, each of which the judge must catch. They live here and never in the product."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from streamdp.core.engine import Rebuilding
from streamdp.ports import Commit, Records
from streamdp.service import opening
from streamdp.service.protocol import Cut, Pace, PartitionWork
from streamdp.wire.published import Mode


def publish_before_durable() -> None:
    """The commit that records a release publishes it too: an abort shows a draw that is redrawn."""
    cut = PartitionWork.cut

    def early(self: PartitionWork, *, now: float, pace: Pace) -> Cut:
        made = cut(self, now=now, pace=pace)
        entries = self._waiting.entries
        commit = replace(
            made.commit,
            actions=[(each.key, each.action) for each in entries if each.action is not None],
            ledger=[(each.key, each.ledger) for each in entries],
        )
        return replace(made, commit=commit)

    PartitionWork.cut = early  # type: ignore[method-assign]
    opening._published_by = lambda line: line.commit_seq  # else it would halt at its next start


def redraw() -> None:
    """A rebuild draws anew instead of taking what was recorded."""
    feed = Rebuilding.feed

    def fresh(self: Rebuilding, batch: object) -> None:
        self._record = self._engine._fresh  # type: ignore[assignment]
        feed(self, batch)  # type: ignore[arg-type]

    def forget(self: PartitionWork, *, now: float, pace: Pace) -> Cut:
        made = cut(self, now=now, pace=pace)
        keep = [each for each in made.commit.state if b'"row"' not in each[0]]
        return replace(made, commit=_with_state(made.commit, keep))

    cut = PartitionWork.cut
    Rebuilding.feed = fresh  # type: ignore[method-assign]
    PartitionWork.cut = forget  # type: ignore[method-assign]


def skip_a_record() -> None:
    """One record in fifty is lost on its way to the engine."""
    absorb = PartitionWork.absorb
    chance = random.Random(1)

    def lossy(self: PartitionWork, records: Sequence[Records], *, mode: Mode) -> None:
        absorb(self, [_thinned(each, chance) for each in records], mode=mode)

    PartitionWork.absorb = lossy  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    mutant.__name__: mutant for mutant in (publish_before_durable, redraw, skip_a_record)
}


def _with_state(commit: Commit, state: list[tuple[bytes, bytes | None]]) -> Commit:
    return replace(commit, state=state)


def _thinned(records: Records, chance: random.Random) -> Records:
    kept = [at for at in range(len(records)) if chance.random() > 0.02]
    return replace(
        records,
        offsets=[records.offsets[at] for at in kept],
        keys=[records.keys[at] for at in kept],
        values=[records.values[at] for at in kept],
    )
