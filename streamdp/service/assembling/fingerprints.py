"""Are requests and outcomes still those that were read? Without topic ids, fingerprints tell.

The checkpoint keeps the newest request and the newest outcome that were read, each by its offset
and a digest (`input_fingerprint`). What it says of an outcome has one width, whether there was one
or not; no digest is ever logged or shown, and no message has an offset of an outcome.
"""

from __future__ import annotations

from streamdp.ports import PairedTransport, Partition, Records, Taken
from streamdp.service.assembly_spec import AssemblySpec
from streamdp.service.input_fingerprint import (
    InputFingerprint,
    NewestRecord,
    of_input,
    read_proof,
    way_out,
)
from streamdp.wire.state import NOTHING_READ, Checkpoint, LastRecord


class Inputs:
    """Both inputs of a partition that is taken; `checkpoint` says what was read of them."""

    def __init__(
        self, spec: AssemblySpec, partition: Partition, taken: Taken, checkpoint: Checkpoint | None
    ) -> None:
        joined = checkpoint.joined if checkpoint else None
        outcome = _record(joined.newest_outcome if joined else NOTHING_READ)
        self._partition = partition
        self._same_requests = of_input(spec.topics, partition, taken, checkpoint)
        self._same_outcomes = InputFingerprint(
            partition,
            outcome,
            first=taken.second_input.first,
            ids=(joined.outcomes_id if joined else None, taken.second_input.id),
            remedy=way_out(spec.topics),
            expected="the outcome that was read last",
        )
        for same, end in (
            (self._same_requests, taken.end_offset),
            (self._same_outcomes, taken.second_input.end),
        ):
            if same.span and end < same.span.stop:
                same.check(Records(partition, same.span.start, (), (), (), same.span.stop))
        self._newest_request = NewestRecord(checkpoint.last_record if checkpoint else None)
        self._newest_outcome = NewestRecord(outcome)

    async def prove(self, transport: PairedTransport) -> None:
        """Halt unless the inputs are the same, as far as no topic id says so."""
        for same, read, every in (
            (self._same_requests, transport.read, True),
            (self._same_outcomes, transport.read_second_input, False),
        ):
            for records in await read_proof(self._partition, same.span, read):
                same.check(records, every=every)

    def read_requests(self, records: Records) -> None:
        """Take in requests in their order."""
        self._same_requests.check(records)
        self._newest_request.read(records)

    def read_outcomes(self, records: Records) -> None:
        """Take in outcomes in their order."""
        self._same_outcomes.check(records, every=False)
        self._newest_outcome.read(records)

    def newest(self) -> tuple[LastRecord | None, str]:
        """The newest request and outcome, as the checkpoint has them."""
        outcome = self._newest_outcome.last_record()
        written = NOTHING_READ if outcome is None else f"{outcome.offset:020d}:{outcome.digest}"
        return self._newest_request.last_record(), written


def _record(written: str) -> LastRecord | None:
    """The newest outcome, which a checkpoint has with a fixed width."""
    if written == NOTHING_READ:
        return None
    offset, _, digest = written.partition(":")
    return LastRecord(offset=int(offset), digest=digest, whole=True)
