"""The schedule of adoptions that a ledger has on record, for replays of `crowd = "stream"`.

In life the clock decides which snapshots of other partitions a prior adopts; the prior's line on
the ledger names them. Here these lines are read from a file, one line of the ledger in each line of
the file, as ``streamdp ledger show --json`` prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from streamdp.core.errors import InvalidConfig, StateMismatch, complaint
from streamdp.core.events import Adopted
from streamdp.wire.lines import PriorLine
from streamdp.wire.published import decode_any_ledger


def read_record(
    path: Path, *, stream: str, epoch: int
) -> Mapping[int, Mapping[int, tuple[Adopted, ...]]]:
    """What each prior of this stream and epoch has adopted, by partition and number."""
    record: dict[int, dict[int, tuple[Adopted, ...]]] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise _unusable(path, "a file of ledger lines", error.strerror or "an error") from None
    for number, value in enumerate(lines, 1):
        try:
            line = decode_any_ledger(value) if value.strip() else None
            if isinstance(line, PriorLine) and (line.stream, line.epoch) == (stream, epoch):
                prior = line.prior()
                record.setdefault(line.partition, {})[prior.number] = prior.adopted
        except StateMismatch as error:
            where = f"--record {path}: line {number}"
            raise InvalidConfig(f"{where}: {error}") from None
    if not any(names for priors in record.values() for names in priors.values()):
        expected = f"priors of stream {stream}, epoch {epoch}, that name snapshots"
        raise _unusable(path, expected, f"{len(lines)} lines without one")
    return record


def _unusable(path: Path, expected: str, got: str) -> InvalidConfig:
    return InvalidConfig(complaint(f"--record {path}", "no record", expected=expected, got=got))
