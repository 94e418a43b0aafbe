"""What is durable of a partition of an assembly, and how it goes on from there.

The trusted state holds a checkpoint (the positions of both inputs, the configuration's digest, the
topics' ids), `fingerprints` of both inputs and, under a cap, each key's counts. It holds no open
request and no outcome: these are read again from the logs. A consumer group could remember two
positions without a state topic, but group offsets expire and any tool may reset them, and a request
that is emitted again would be charged again (P11).

**Positions never move back.** If there is no checkpoint, but a group offset or a ledger line, the
partition halts. It also halts if its inputs were recreated or truncated, or if requests that have
to be read again are no longer retained. Outcomes that are no longer retained are no outcomes: what
retention by size has deleted depends on what outcomes there were. A new epoch goes on behind every
request that any record says was emitted. A new assembly begins behind all requests that other
assemblies have emitted (`ChargesByOthers`, P11).

**The ledger says it first.** A line that says up to where requests may become events is durable
before any of these events is. So an assembly with another name, which knows nothing of this state,
can begin behind them.

The size of what is saved is a function of requests alone: positions and fingerprints have a fixed
width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from streamdp.assembly.join import Positions
from streamdp.core.errors import (
    OTHER_TOPICS,
    ConfigurationMismatch,
    StateMismatch,
    Superseded,
)
from streamdp.ports import Key, Partition, Taken
from streamdp.service.assembling.fingerprints import FINGERPRINTS, Inputs
from streamdp.service.assembling.spec import AssemblySpec
from streamdp.service.charges_by_others import ALONE, ChargesByOthers
from streamdp.service.settings import Start, changes
from streamdp.service.taking import check_alone
from streamdp.wire.entries import POINT
from streamdp.wire.lines import Assembled
from streamdp.wire.published import decode_assembled
from streamdp.wire.renewals import Renewal, decode_renewal

COUNTS = b"counts"
"""What the keys of all counts begin with."""
_RENEWAL = b"renewal"
VERSION = 1

_Width = Annotated[str, msgspec.Meta(pattern="^[0-9]{20}$")]


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The checkpoint of an assembly's partition."""

    version: int
    epoch: int
    digest: str
    partitions: int
    requests: _Width
    history: _Width
    outcomes: _Width
    requests_id: str | None
    outcomes_id: str | None
    lines: int  # of the ledger
    declared: int  # the first request that no line of this epoch allows to become an event
    settings: dict[str, str] = {}  # what the digest is made of, so that a mismatch can be explained


@dataclass(frozen=True, slots=True)
class Opened:
    """How a partition goes on."""

    positions: Positions
    counts: Mapping[Key, bytes] = field(repr=False)
    stale: tuple[bytes, ...]  # entries of an earlier epoch, to be deleted
    begins: bool  # whether nothing of this epoch is durable yet
    lines: int  # of the ledger
    declared: int
    inputs: Inputs
    renewals: Mapping[str, list[Renewal]] = field(default_factory=dict)  # of requests, outcomes


def renewal_entry(topic: str, of: Renewal, *, epoch: int) -> bytes:
    """The state's entry for what `requests` or `outcomes` are read by from a position on."""
    return _renewals(epoch) + f"{topic} {of.what} {of.number}".encode()


def _renewals(epoch: int) -> bytes:
    return b"%b %d " % (_RENEWAL, epoch)


def entry_of(key: Key, *, epoch: int) -> bytes:
    """The state's entry for a key's counts."""
    return entries(epoch) + (b"" if key is None else b":" + key)


def entries(epoch: int) -> bytes:
    """The prefix of all entries for an epoch's counts."""
    return b"%b %d" % (COUNTS, epoch)


def encode_point(
    spec: AssemblySpec, taken: Taken, positions: Positions, *, lines: int = 0, declared: int = 0
) -> bytes:
    """The checkpoint's value, whose length is a function of requests alone."""
    return msgspec.json.encode(
        Point(
            version=VERSION,
            epoch=spec.epoch,
            digest=spec.digest,
            partitions=taken.partitions,
            requests=f"{positions.requests:020d}",
            history=f"{positions.history:020d}",
            outcomes=f"{positions.outcomes:020d}",
            requests_id=taken.input_id,
            outcomes_id=taken.second_input_id,
            lines=lines,
            declared=declared,
            settings=spec.settings,
        )
    )


def open_assembly(
    spec: AssemblySpec, partition: Partition, taken: Taken, *, by_others: ChargesByOthers = ALONE
) -> Opened:
    """Check what is durable and decide how the partition goes on; raise if it must halt."""
    line = _line(spec, partition, taken.last_ledger_line)
    opened = _Found(spec, partition, taken, by_others, read_point(partition, taken), line).open()
    if not opened.begins:
        others = "other assemblies or streams have used these requests since"
        check_alone(partition, opened.positions.requests, by_others, others)
    return opened


@dataclass(frozen=True, slots=True)
class _Found:
    """What is durable of a partition that is taken, and the configuration that takes it."""

    spec: AssemblySpec
    partition: Partition
    taken: Taken
    by_others: ChargesByOthers
    point: Point | None
    line: Assembled | None  # the newest of the ledger

    def open(self) -> Opened:
        """Check what is durable and decide how the partition goes on."""
        spec, taken, point = self.spec, self.taken, self.point
        if point is None:
            return self._without_point()
        self._check_inputs(point)
        inputs = Inputs(self.partition, taken, ids=(point.requests_id, point.outcomes_id))
        if spec.epoch < point.epoch:
            raise Superseded(
                f"partition {self.partition}",
                "the configuration is of an earlier epoch than the state; deploy the newer one",
                expected=f"epoch {point.epoch} or a later one",
                got=spec.epoch,
            )
        positions = Positions(int(point.requests), int(point.history), int(point.outcomes))
        if spec.epoch > max(point.epoch, self.line.epoch if self.line else 0):
            return self._anew(positions.requests, inputs)
        if spec.digest != point.digest:
            what = changes(point.settings, spec.settings)
            raise ConfigurationMismatch(
                f"partition {self.partition}",
                f"the configuration differs from the state's{what}; a change of windows,"
                " rules, actions, formats, caps or topics needs a new epoch",
                expected=f"digest {point.digest}",
                got=spec.digest,
            )
        self._check_ledger(point)
        self._check_retained(positions)
        null, head = entries(spec.epoch), entries(spec.epoch) + b":"
        counts: dict[Key, bytes] = {
            (None if place == null else place[len(head) :]): value
            for place, value in taken.state.items()
            if place == null or place.startswith(head)
        }
        kept = tuple(_renewals(spec.epoch) + what + b" " for what in (b"requests", b"outcomes"))
        stale = [
            place
            for place in _others(taken)
            if place != null and not place.startswith((head, *kept))
        ]
        where = f"state of {self.partition}"
        return Opened(
            positions,
            counts,
            tuple(stale),
            begins=False,
            lines=point.lines,
            declared=point.declared,
            inputs=inputs,
            renewals={
                what: [
                    decode_renewal(value, where=where)
                    for place, value in taken.state.items()
                    if place.startswith(begin)
                ]
                for what, begin in zip(("requests", "outcomes"), kept, strict=True)
            },
        )

    def _without_point(self) -> Opened:
        """A first start; or a state that was lost, which needs a new epoch."""
        spec, taken, line = self.spec, self.taken, self.line
        inputs = Inputs(self.partition, taken, ids=(None, None))
        if line is None and taken.group_offset is None:
            earliest = spec.start is Start.EARLIEST
            begin = self._begin(taken.first_offset if earliest else taken.end_offset)
            outcomes = taken.second_input_first if earliest else taken.second_input_end
            positions = Positions(begin, begin, outcomes)
            return Opened(positions, {}, (), begins=True, lines=0, declared=0, inputs=inputs)
        known = line.epoch if line else 1
        if spec.epoch <= known:
            raise self.halt(
                "the state is gone; raise the epoch to go on",
                f"a checkpoint, or epoch {known + 1}",
                "a group offset" if line is None else "a ledger line",
            )
        return self._anew(0, inputs)

    def _anew(self, position: int, inputs: Inputs) -> Opened:
        """Begin a new epoch, behind every request that may have been emitted (P11).

        The checkpoint knows the exact request. The ledger reaches further, so it is used only if
        the checkpoint is missing or was rolled back.
        """
        taken, point, line = self.taken, self.point, self.line
        whole = point is not None and (line is None or line.ordinal <= point.lines)
        assembled = 0 if line is None or whole else line.stop
        known = max(position, taken.group_offset or 0, assembled)
        if taken.end_offset < known:
            raise self._cut_back("requests", known, taken.end_offset)
        at = self._begin(max(known, taken.first_offset))
        positions = Positions(at, at, max(taken.second_input_first, taken.second_input_offset or 0))
        stale = tuple(_others(taken))
        lines = max(point.lines if point else 0, line.ordinal if line else 0)
        return Opened(positions, {}, stale, begins=True, lines=lines, declared=0, inputs=inputs)

    def _begin(self, known: int) -> int:
        """The first request, at `known` or later, that others leave room for."""
        number, end = self.partition.number, self.taken.end_offset
        begin = self.by_others.begin(number, known)
        if begin > end:
            ledgers = ", ".join(self.by_others.ahead(number, end))
            raise self.halt(
                "others have read beyond the end of the requests, and the budget does not cover"
                f" their charges again ({ledgers}); use topics with other names",
                f"an end at {begin} or later",
                end,
            )
        return begin

    def _check_ledger(self, point: Point) -> None:
        """State and ledger must know the same lines; a look beside an owner reads it twice."""
        later = _line(self.spec, self.partition, self.taken.later_ledger_line)
        newest = self.line.ordinal if self.line else 0
        if newest > point.lines:
            raise self.halt(
                "the state was rolled back: the ledger has a later line; raise the epoch to go on",
                f"line {point.lines}",
                f"line {newest}",
            )
        newest = max(newest, later.ordinal if later else 0)
        if newest < point.lines:
            raise self.halt(
                "the ledger has lost lines; restore it: nothing else says what was assembled",
                f"line {point.lines}",
                f"line {newest}" if newest else "an empty ledger",
            )

    def _check_inputs(self, point: Point) -> None:
        """The topics must be the same, with no fewer partitions; a new epoch changes neither."""
        for what, known, now in (
            ("requests", point.requests_id, self.taken.input_id),
            ("outcomes", point.outcomes_id, self.taken.second_input_id),
        ):
            if known is not None and now is not None and known != now:
                raise self.halt(
                    f"requests or outcomes were deleted and recreated; {OTHER_TOPICS}",
                    f"{what} with topic id {known}",
                    now,
                )
        if self.taken.partitions < point.partitions:
            raise self.halt(
                "the inputs have fewer partitions than before",
                point.partitions,
                self.taken.partitions,
            )

    def _check_retained(self, positions: Positions) -> None:
        """The inputs must still hold everything from the positions on; only outcomes may expire."""
        taken = self.taken
        if (taken.group_offset or 0) > positions.requests:
            raise self.halt(
                "the state was rolled back: the group remembers a later position; raise the epoch"
                " to go on",
                f"offset {taken.group_offset} or later",
                positions.requests,
            )
        if taken.first_offset > positions.history:
            raise self.halt(
                "requests that are needed again are no longer retained; raise the epoch to go on",
                f"request {positions.history}",
                f"{taken.first_offset} as the oldest",
            )
        if taken.second_input_end < positions.outcomes:
            raise self._cut_back("outcomes", "where it was", taken.second_input_end)
        if taken.end_offset < positions.requests:
            raise self._cut_back("requests", positions.requests, taken.end_offset)

    def _cut_back(self, what: str, expected: int | str, got: int) -> StateMismatch:
        """An input ends too early. Offsets of requests are public, outcomes' are not shown."""
        return self.halt(
            "requests or outcomes were truncated or replaced, and their offsets are given out"
            f" again; {OTHER_TOPICS}",
            f"an end of {what} at {expected} or later",
            got if isinstance(expected, int) else "an earlier one",
        )

    def halt(self, what: str, expected: object, got: object) -> StateMismatch:
        """The error of a contradiction."""
        return _halt(self.partition, what, expected, got)


def decode_point(value: bytes, *, where: str) -> Point:
    """Read a checkpoint's value."""
    try:
        return msgspec.json.decode(value, type=Point)
    except msgspec.MsgspecError:
        what = "the checkpoint cannot be read"
        got = f"{len(value)} bytes"
        raise StateMismatch(where, what, expected="one of this version", got=got) from None


def _others(taken: Taken) -> list[bytes]:
    """The state's entries beside the checkpoint and the fingerprints."""
    return [place for place in taken.state if place not in (POINT, FINGERPRINTS)]


def read_point(partition: Partition, taken: Taken) -> Point | None:
    """The checkpoint, if there is one."""
    value = taken.state.get(POINT)
    if value is None:
        return None
    try:
        point = msgspec.json.decode(value, type=Point)
    except msgspec.MsgspecError:
        damage = "other bytes"
        raise _halt(partition, "the checkpoint cannot be read", "a readable one", damage) from None
    if point.version != VERSION:
        raise _halt(partition, "unknown version of the state", VERSION, point.version)
    return point


def _line(spec: AssemblySpec, partition: Partition, value: bytes | None) -> Assembled | None:
    """A ledger line. Its topics must be this assembly's: an assembly keeps its topics."""
    if value is None:
        return None
    line = decode_assembled(value)
    named = (line.input, line.outcomes, line.output)
    topics = (spec.topics.input, spec.topics.second_input, spec.topics.output)
    if named != topics:
        raise ConfigurationMismatch(
            f"partition {partition}",
            "the topics have changed; only an assembly with another name may join the new ones",
            expected=" and ".join(named[:2]) + f" to {named[2]}",
            got=" and ".join(topics[:2]) + f" to {topics[2]}",
        )
    return line


def _halt(partition: Partition, what: str, expected: object, got: object) -> StateMismatch:
    return StateMismatch(f"partition {partition}", what, expected=expected, got=got)
