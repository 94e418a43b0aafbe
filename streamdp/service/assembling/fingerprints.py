"""Are requests and outcomes still those that were read? Without topic ids, fingerprints tell.

The state keeps the newest request and the newest outcome that were read, each by its offset and a
digest (`input_fingerprint`), in an entry of their own. A state without fingerprints goes on, and
gets them with its next commit.

The entry has one length, whether there was an outcome or not; no digest is ever logged or shown,
and no message has an offset of an outcome.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from streamdp.core.errors import OTHER_TOPICS, StateMismatch
from streamdp.ports import PairedTransport, Partition, Records, Taken
from streamdp.service.input_fingerprint import InputFingerprint, Newest, Replaced, read_proof
from streamdp.wire.state import LastRecord

FINGERPRINTS = b"fingerprints"

_Fingerprint = Annotated[str, msgspec.Meta(pattern="^[0-9]{20}:[0-9a-f]{32}$")]
_NOTHING_READ = f"{0:020d}:{0:032x}"
_REPLACED = f"requests or outcomes were replaced: they do not hold what was read; {OTHER_TOPICS}"


class _Saved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    requests: _Fingerprint
    outcomes: _Fingerprint

    def __repr__(self) -> str:
        """Show no digest."""
        return "fingerprints"


class Inputs:
    """Both inputs of a partition that is taken; `ids` are those of the topics that were read."""

    def __init__(
        self, partition: Partition, taken: Taken, *, ids: tuple[str | None, str | None]
    ) -> None:
        request, outcome = _read(partition, taken)
        requests_id, outcomes_id = ids
        self._partition = partition
        self._same_requests = InputFingerprint(
            partition,
            request,
            first=taken.first_offset,
            settled=requests_id is not None and requests_id == taken.input_id,
            says=Replaced(
                _REPLACED, f"the same request at offset {0 if request is None else request.offset}"
            ),
        )
        self._same_outcomes = InputFingerprint(
            partition,
            outcome,
            first=taken.second_input_first,
            settled=outcomes_id is not None and outcomes_id == taken.second_input_id,
            says=Replaced(_REPLACED, "the outcome that was read last"),
        )
        for same, end in (
            (self._same_requests, taken.end_offset),
            (self._same_outcomes, taken.second_input_end),
        ):
            if same.span and end < same.span.stop:
                same.check(_nothing(partition, same.span))
        self._newest_request, self._newest_outcome = Newest(request), Newest(outcome)

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

    def encode(self) -> bytes:
        """The entry's value."""
        records = self._newest_request.last_record(), self._newest_outcome.last_record()
        requests, outcomes = map(_written, records)
        return msgspec.json.encode(_Saved(requests=requests, outcomes=outcomes))


def _nothing(partition: Partition, span: range) -> Records:
    return Records(partition, span.start, (), (), (), span.stop)


def _written(record: LastRecord | None) -> str:
    return _NOTHING_READ if record is None else f"{record.offset:020d}:{record.digest}"


def _read(partition: Partition, taken: Taken) -> tuple[LastRecord | None, LastRecord | None]:
    value = taken.state.get(FINGERPRINTS)
    if value is None:
        return None, None
    try:
        saved = msgspec.json.decode(value, type=_Saved)
    except msgspec.MsgspecError:
        raise StateMismatch(
            f"partition {partition}",
            "the checkpoint cannot be read",
            expected="readable fingerprints of requests and outcomes",
            got="other bytes",
        ) from None
    return _record(saved.requests), _record(saved.outcomes)


def _record(written: str) -> LastRecord | None:
    if written == _NOTHING_READ:
        return None
    offset, _, digest = written.partition(":")
    return LastRecord(offset=int(offset), digest=digest, whole=True)
