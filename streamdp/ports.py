"""The transport port: what the service needs of the thing that moves records.

A transport knows records, bytes and atomicity; it knows nothing of learners, releases or ε. The
service knows nothing of brokers or files. Kafka, SQLite and memory implement this port, found by
the entry-point group ``streamdp.transports``; `streamdp.testing.check_transport` says whether an
implementation is one.

The life of a partition, in this order:

1. `Transport.join` announces partitions through its listener (assigned, revoked).
2. `take` fences every earlier owner of the partition, waits for the outcome of what they had
   under way, and returns what is durable. Only a later owner can change it any more: `confirm`
   says whether there is one.
3. `read` gives old input again, from any retained offset, for rebuilding.
4. `resume` says from which offset `poll` goes on.
5. `poll` and `commit` by turns; applying goes on while a commit is in flight, but there is at
   most one commit in flight for a partition.
6. `leave` gives the partition up.

A `commit` is atomic: after a crash either all of it is durable and visible or none of it. When it
raises `TransportLost` its outcome is unknown: the partition must be taken again. `Fenced` means
that another process has taken it; the transport announces the partition again if it comes back.
Where nothing would ever give it back, the next `poll` raises `Fenced` too: the process must end.

A stream may have a second input beside the first, and an output: partition p of the three belongs
together, is taken together, and a commit moves both positions and writes records to p of the output
in its one atomic step. Its ledger is published as any stream's is. `PairedTransport` says what a
transport adds for that; a stream without them has nothing to do with it.

A `Technology` is what an entry point of ``streamdp.transports`` names: it opens transports,
readers, producers and the administrator's tools on one cluster or file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, Self, runtime_checkable

from streamdp.core.errors import InvalidConfig, StateMismatch, StreamdpError, complaint

Key = bytes | None
Value = bytes | None

Headers = Sequence[tuple[str, bytes | None]]
"""One record's headers in their order; a name may come twice. Public, like the record's key."""

Written = tuple[Key, Value, Headers]
"""A record that a commit writes to the output."""

Reached = Callable[[str, "Partition"], None]
"""Told each step of a transport's protocol as it is reached: where a test kills, raises, waits."""


class Namesakes(Enum):
    """What an earlier worker of the same name is to a worker that starts."""

    STRANGERS = "strangers"  # nothing: the name is for people who read messages
    REPLACED = "replaced"  # itself, before it died; a live one is a mistake and refuses the start


@dataclass(frozen=True, slots=True)
class StreamTopics:
    """The names of a stream's records: its input and what is derived from it."""

    app: str
    stream: str
    input: str
    quarantined: bool = False  # whether unusable records are set aside
    largest_value: int = 0  # bytes that a value of what is derived may have; 0 if not known
    crowd: bool = False  # whether partitions tell each other snapshots of their votes
    headers: bool = False  # whether the input's records come with their headers and timestamps
    beside: str = ""  # a second input, whose partition p belongs to partition p of the first
    output: str = ""  # where commits write records, those of partition p to its partition p

    @property
    def actions(self) -> str:
        """Where the release in force of each key is published (compacted)."""
        return f"{self.app}.{self.stream}.actions"

    @property
    def ledger(self) -> str:
        """The name of the ledger topic: every charge is published there and never deleted."""
        return f"{self.app}.{self.stream}.ledger"

    @property
    def state(self) -> str:
        """Where the trusted state lives (compacted)."""
        return f"{self.app}.{self.stream}.state"

    @property
    def snapshots(self) -> str:
        """Where each partition tells the others what was voted in it if `crowd` (compacted)."""
        return f"{self.app}.{self.stream}.crowd"

    @property
    def quarantine(self) -> str:
        """Where unusable records are set aside if `quarantined`: as sensitive as the input."""
        return f"{self.app}.{self.stream}.quarantine"


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One partition of one stream: the unit of work, of state and of fencing."""

    stream: str
    number: int

    def __str__(self) -> str:
        """As in logs and messages: ``stream/number``."""
        return f"{self.stream}/{self.number}"


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive input records of one partition, as columns: all that there are in its span.

    The span [start, next_offset) lets whoever counts slots see that no record is left out and none
    comes twice: each batch begins where the one before ended. It may hold no record at all.
    """

    partition: Partition
    start: int  # the position that was asked for
    offsets: Sequence[int]  # rising; gaps are allowed, slots are counted in records
    keys: Sequence[Key]
    values: Sequence[Value]
    next_offset: int  # where to go on after these records
    headers: Sequence[Headers] = ()  # one for each record if the stream asks for them, else none
    timestamps: Sequence[int] = ()  # milliseconds since 1970, as the log has them; likewise

    def __len__(self) -> int:
        """How many records."""
        return len(self.offsets)

    def __repr__(self) -> str:
        """Say how many, never what."""
        return f"Records({self.partition}, {len(self.offsets)} up to {self.next_offset})"


@dataclass(frozen=True, slots=True)
class Taken:
    """A partition's durable state at the moment it was taken."""

    state: Mapping[bytes, bytes] = field(repr=False)  # every live entry of the trusted state
    first_offset: int  # the oldest input record that is still retained
    end_offset: int  # where the next input record will go
    group_offset: int | None  # what a consumer group remembers: evidence, never trusted
    last_ledger_line: bytes | None  # the newest published ledger line of this partition
    partitions: int  # how many partitions the input has
    remarks: Mapping[int, str] = field(default_factory=dict)  # beside the group's offsets, of all
    input_id: str | None = None  # tells the input from another of its name, where there are ids
    owner: str | None = None  # who took it last, where the state itself does not say so
    beside_first: int = 0  # the oldest record of the second input that is retained
    beside_end: int = 0  # where its next record will go
    beside_offset: int | None = None  # what a group remembers of it: evidence, never trusted
    beside_id: str | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """One atomic step: trusted state, what is published, and the position, all or nothing."""

    next_offset: int
    state: Sequence[tuple[bytes, Value]] = field(repr=False)  # None takes an entry away
    actions: Sequence[tuple[Key, bytes]] = field(default=(), repr=False)  # in this order
    ledger: Sequence[tuple[Key, bytes]] = field(default=(), repr=False)
    low_water: int | None = None  # older input is not needed again; a transport may forget it
    remark: str = ""  # kept beside the offset that the group remembers, for whoever takes any
    beside: int | None = None  # older records of the second input are not needed again
    records: Sequence[Written] = field(default=(), repr=False)  # to the output, in this order
    snapshot: bytes | None = field(default=None, repr=False)  # what other partitions are told


@dataclass(frozen=True, slots=True)
class Published:
    """One published record: of the actions or of the ledger of a stream."""

    partition: int
    offset: int
    key: Key
    value: bytes


class Listener(Protocol):
    """What a transport tells its user; the calls return at once and must not raise."""

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """These partitions were assigned to this process: it may take them."""
        ...

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """These partitions go to another process: stop working on them."""
        ...

    def settled(self, stream: str) -> None:
        """Each partition of the stream that is this process's has been announced, be it none.

        Said after the first announcement, and may be said again after each later one: it is how a
        process that stands by learns that there is nothing for it to take.
        """
        ...

    def failed(self, partition: Partition, error: StreamdpError) -> None:
        """This partition cannot go on, while others can; it is paused.

        `StateMismatch`: halt it (its input is corrupt or no longer retained). `TransportLost`:
        take it again.
        """
        ...


@runtime_checkable
class Transport(Protocol):
    """Moves records, and makes a step of the service durable and visible at once."""

    async def join(self, streams: Sequence[StreamTopics], listener: Listener) -> None:
        """Check that what the streams need is there, then ask for a share of their partitions.

        Raises `InvalidConfig` for what the user must mend (a missing topic, wrong credentials, a
        compacted input, too little replication) and `TransportLost` for what may pass: then it may
        be called again.
        """
        ...

    async def take(
        self, partition: Partition, *, progress: Callable[[int], None] | None = None
    ) -> Taken:
        """Fence every earlier owner and return what is durable.

        It does not ask whether the partition was assigned: what was true a moment ago may not be,
        and fencing decides. Only what `resume` delivers needs an assignment.
        """
        ...

    async def confirm(self, partition: Partition) -> None:
        """Ask whether a partition that was taken is still ours; `Fenced` if another has taken it.

        What was read at two moments differs where another owner worked in between, and only an
        owner may believe that it contradicts itself. Says nothing of a partition that this worker
        does not own: it was never taken, or a commit whose outcome is unknown has ended that.
        """
        ...

    def read(self, partition: Partition, start: int, stop: int) -> AsyncIterator[Records]:
        """The input again, from `start` up to but without `stop`, in batches.

        Ends when nothing below `stop` is left. Raises `StateMismatch` if `start` is no longer
        retained.
        """
        ...

    def resume(self, partition: Partition, offset: int) -> None:
        """Let `poll` deliver this partition from `offset` on."""
        ...

    def pause(self, partition: Partition) -> None:
        """Let `poll` deliver nothing more of this partition."""
        ...

    async def poll(self, *, max_records: int, timeout: float) -> Sequence[Records]:
        """New records of the resumed partitions; empty after `timeout` seconds.

        A record is delivered once, in order: a partition's batch begins where the one before ended,
        the first one where it was resumed. If it raises, nothing was delivered: the same
        records come again. What concerns one partition alone goes to `Listener.failed`. Call it
        regularly, also while nothing is resumed: a transport may take silence for death.
        """
        ...

    async def commit(self, partition: Partition, commit: Commit) -> None:
        """Make one step durable and visible, all or nothing."""
        ...

    def largest_value(self, stream: str) -> int:
        """The most bytes that one value of a commit may have: call it after `join`."""
        ...

    def end_offset(self, partition: Partition) -> int | None:
        """The input's end offset, as last known; for lag, never for decisions."""
        ...

    def first_offset(self, partition: Partition) -> int | None:
        """The oldest retained input offset, as last known; for alerts, never for decisions."""
        ...

    async def leave(self, partition: Partition) -> None:
        """Give one partition up; never raises for a transport that is already lost."""
        ...

    async def close(self) -> None:
        """Give everything up, within a bounded time."""
        ...


@runtime_checkable
class PairedTransport(Transport, Protocol):
    """A transport whose streams may have a second input and an output.

    `poll` delivers the first input alone. Of the second one reads what one needs, when one needs
    it, with headers and timestamps: what comes there moves nothing forward or back by itself.
    `join` refuses topics that differ in their number of partitions.
    """

    async def stop_beside(self, partition: Partition, start: int, *, timestamp: int) -> int:
        """Before which offset of the second input everything older than `timestamp` lies.

        The offset of its first record, from `start` on, that is not older (milliseconds since
        1970, as the log has them); where there is none, its end as of now. What is not decided
        yet counts as there, so that whoever reads up to it has waited for the outcome. It is
        right as far as timestamps rise; a log whose clock was set back may say too little.
        `StateMismatch` if `start` lies beyond the end: then this is not the log that was read.
        """
        ...

    def read_beside(self, partition: Partition, start: int, stop: int) -> AsyncIterator[Records]:
        """The second input from `start` up to but without `stop`, in batches; as `read` does.

        `stop` lies within the input: it is what `stop_beside` or a take has said, or less. The
        batches follow each other without a gap, and the last one's `next_offset` is `stop`.
        `StateMismatch` if `start` is no longer retained.
        """
        ...


@runtime_checkable
class Publications(Protocol):
    """Reads what was published. Needs no rights on the input and none on the state."""

    def actions(self, stream: StreamTopics, *, follow: bool) -> AsyncIterator[Sequence[Published]]:
        """Every action record from the oldest on, committed ones only.

        With `follow`, an empty batch says that the end as of the call was reached, and the
        iterator then goes on with what comes; without, it ends there.
        """
        ...

    def ledger(
        self, stream: StreamTopics, *, follow: bool, newest: int | None = None
    ) -> AsyncIterator[Sequence[Published]]:
        """Every ledger record from the oldest on, likewise.

        With `newest` only about so many before the end as of the call, an even share of them in
        each partition, and what comes: a ledger is kept for good, and grows.
        """
        ...

    def snapshots(
        self, stream: StreamTopics, *, follow: bool
    ) -> AsyncIterator[Sequence[Published]]:
        """The newest snapshot that each partition has told the others, and maybe older ones.

        Of a stream with `crowd` only; likewise.
        """
        ...

    async def ledgers(self, app: str) -> Sequence[StreamTopics]:
        """Every stream of the application that has a ledger here, configured or not, by name.

        A technology whose place is not an application's own, such as a file, names those of other
        applications too. Which input a stream read, only its lines say: `input` is empty.
        """
        ...

    async def close(self) -> None:
        """Give everything up, within a bounded time."""
        ...


@runtime_checkable
class Producer(Protocol):
    """Writes input records: `streamdp send`, the demo and the tests."""

    async def send(
        self,
        topic: str,
        records: Sequence[tuple[Key, Value]],
        *,
        headers: Sequence[Headers] | None = None,
        partition: int | None = None,
    ) -> None:
        """Append records in this order, each exactly once; returns when they are durable.

        With `headers` there is one entry for each record. What is no bytes is refused before
        anything is appended: see `check_bytes`.
        """
        ...

    async def close(self) -> None:
        """Flush and give everything up, within a bounded time."""
        ...


class Verdict(Enum):
    """How a check went."""

    GOOD = "good"
    CHANGED = "changed"  # it was missing and has been put right
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check looked at, and what it found."""

    subject: str  # what was looked at, such as ``topic app.home.state: min.insync.replicas``
    verdict: Verdict
    detail: str  # what is so; for a problem also what to do


@runtime_checkable
class Administrator(Protocol):
    """Makes, checks and looks into what streams need; nothing here takes a partition."""

    async def create(
        self, streams: Sequence[StreamTopics], *, partitions: int
    ) -> Sequence[Finding]:
        """Make what is missing, the input included, and change nothing that is there."""
        ...

    async def check(self, streams: Sequence[StreamTopics]) -> Sequence[Finding]:
        """Compare what is there with what the promise needs, changing nothing."""
        ...

    async def mend(self, streams: Sequence[StreamTopics]) -> Sequence[Finding]:
        """Put right what may be put right without asking anybody; then check.

        Nothing that the promise rests on, and nothing that is lost by it: settings that make work
        slow. `Verdict.CHANGED` says what was done.
        """
        ...

    async def expand(
        self, streams: Sequence[StreamTopics], *, partitions: int
    ) -> Sequence[Finding]:
        """Give the input and what is derived from it more partitions; never fewer."""
        ...

    def commands(self, streams: Sequence[StreamTopics], *, partitions: int) -> str:
        """Shell commands that make the topics, for a cluster's administrators."""
        ...

    async def probe(self, streams: Sequence[StreamTopics]) -> Sequence[Finding]:
        """Try reachability, credentials and rights without leaving anything that counts."""
        ...

    async def peek(self, stream: StreamTopics, partition: int) -> Taken:
        """Read a partition's durable state without fencing its owner."""
        ...

    async def newest(self, stream: StreamTopics, *, count: int) -> Sequence[Records]:
        """About the `count` newest input records. NOT PRIVATE."""
        ...

    def history(self, stream: StreamTopics, *, after: Mapping[int, int]) -> AsyncIterator[Records]:
        """Every retained input record up to now, one partition after the other. NOT PRIVATE.

        A partition that `after` names begins at that offset. For replay: nothing is taken, joined
        or fenced, and only the input has to be there.
        """
        ...

    async def close(self) -> None:
        """Give everything up, within a bounded time."""
        ...


@runtime_checkable
class Technology(Protocol):
    """One cluster or file, by its settings: what an entry point of ``streamdp.transports`` names.

    Opening does not connect; what is returned does when it is first used.
    """

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, app: str) -> Self:
        """From the configuration's own table of settings; `InvalidConfig` names a bad key."""
        ...

    def transport(self, *, worker: str, namesakes: Namesakes = Namesakes.STRANGERS) -> Transport:
        """For the service; `worker` names this process in messages and owner records."""
        ...

    def publications(self) -> Publications:
        """A new reader of published topics."""
        ...

    def producer(self, *, kept: int | None = None) -> Producer:
        """A new writer of input records.

        `kept`: how many of the newest records of each partition stay of the topics that it writes
        to, where the technology has no retention of its own.
        """
        ...

    def administrator(self) -> Administrator:
        """For the commands that make and check."""
        ...


def no_fault(step: str, partition: Partition) -> None:
    """A `Reached` that injects nothing."""


def check_names(streams: Sequence[StreamTopics]) -> None:
    """Refuse two streams of one name."""
    names = [topics.stream for topics in streams]
    if len(set(names)) != len(names):
        raise InvalidConfig(
            complaint("streams", "two of one name", expected="distinct names", got=names)
        )


def check_paired(stream: StreamTopics, partitions: Mapping[str, int]) -> None:
    """Refuse a second input and an output that do not go with the first, partition by partition."""
    names = [stream.input, stream.beside, stream.output]
    if not all(names) or len(set(names)) != len(names):
        raise InvalidConfig(
            complaint(
                f"stream {stream.stream}",
                "its two inputs and its output are not three topics",
                expected="three names",
                got=", ".join(names),
            )
        )
    counts = {name: partitions[name] for name in names}
    if len(set(counts.values())) > 1:
        raise InvalidConfig(
            complaint(
                f"stream {stream.stream}",
                "its topics differ in their number of partitions",
                expected=f"{counts[stream.input]} in each, as {stream.input} has",
                got=", ".join(f"{name}: {count}" for name, count in counts.items()),
            )
        )


def beyond(partition: Partition) -> StateMismatch:
    """The error of a second input that ends before the position read; names no offset of it."""
    return StateMismatch(
        complaint(
            f"partition {partition}: second input",
            "was truncated or replaced; use topics with other names",
            expected="an end where it was, or later",
            got="an earlier one",
        )
    )


def check_bytes(
    topic: str, records: Sequence[tuple[Key, Value]], headers: Sequence[Headers] | None = None
) -> None:
    """Refuse records that are no bytes: a log that kept them as they are would stop readers."""
    _check_headers(topic, len(records), headers)
    for at, record in enumerate(records):
        for what, part in zip(("key", "value"), record, strict=True):
            if part is not None and not isinstance(part, bytes):
                raise InvalidConfig(
                    complaint(
                        f"topic {topic}: record {at} of those to send",
                        what,
                        expected="bytes or None",
                        got=type(part).__name__,
                    )
                )


def _check_headers(topic: str, count: int, headers: Sequence[Headers] | None) -> None:
    """Refuse headers that do not belong to the records, or that no log could keep."""
    if headers is None:
        return
    if len(headers) != count:
        raise InvalidConfig(
            complaint(
                f"topic {topic}: headers to send",
                "not one entry for each record",
                expected=count,
                got=len(headers),
            )
        )
    for at, pairs in enumerate(headers):
        for name, value in pairs:
            if not isinstance(name, str) or not isinstance(value, bytes | None):
                raise InvalidConfig(
                    complaint(
                        f"topic {topic}: headers of record {at} of those to send",
                        "not a name with its value",
                        expected="str and bytes or None",
                        got=f"{type(name).__name__} and {type(value).__name__}",
                    )
                )
