"""Keeps of an engine's run what a service would keep: saved rows and recorded releases."""

from __future__ import annotations

import streamdp as sd
from streamdp.core.events import Batch, Key
from streamdp.core.ledger import Run


def charged(machine: sd.Engine) -> dict[Key, list[Run]]:
    """The ledger by key."""
    runs: dict[Key, list[Run]] = {}
    for key, run in machine.ledger.export():
        runs.setdefault(key, []).append(run)
    return runs


class Recorder:
    """Runs an engine as a service would: some rows are saved now and then, releases recorded."""

    def __init__(self, machine: sd.Engine) -> None:
        self.machine = machine
        self.rows: dict[Key, bytes] = {}
        self.releases: list[sd.Release] = []

    def step(self, batch: Batch, *, saves: int) -> None:
        """Apply a batch, then save at most so many rows."""
        self.releases += self.machine.apply_batch(batch)
        self.rows |= dict(self.machine.save(most=saves))
