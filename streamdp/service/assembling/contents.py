"""Reads contents of requests or outcomes by a registry's schemas, as the JSON of the recipes.

Schemas that a timer has fetched hold from the next record that is read. When that is looked at, and
when it is saved, does not depend on whether there are records: an outcome's existence is a secret.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamdp.ports import Records, Value
from streamdp.service.assembling.saved import schema_entry
from streamdp.wire.registered.formats import Reading, as_json
from streamdp.wire.registered.schemas import Held, encode_held


class Contents:
    """The contents of one topic's records in one partition."""

    def __init__(self, what: str, reading: Reading | None, held: Sequence[Held]) -> None:
        self._what = what
        self._reading = None if reading is None else reading.resumed(held)
        self._unsaved: list[Held] = []

    def renew(self, *, since: int) -> None:
        """Let schemas that were fetched hold from the next record on, which has this offset."""
        if self._reading is not None:
            self._reading, new = self._reading.renewed(since=since)
            self._unsaved += new

    def read(self, records: Records) -> Sequence[Value]:
        """The records' values as JSON."""
        if self._reading is None:
            return records.values
        return as_json(self._reading, records.values, records.offsets)

    def unsaved(self, *, epoch: int) -> list[tuple[bytes, bytes]]:
        """The entries for the next commit."""
        unsaved, self._unsaved = self._unsaved, []
        return [
            (schema_entry(self._what, held, epoch=epoch), encode_held(held)) for held in unsaved
        ]
