"""The transport port: what the service needs to move records and to make a step durable.

A transport knows records, bytes and atomicity; it knows nothing of learners, releases or ε. The
service knows nothing of brokers or files. Kafka, SQLite and memory implement this port and are
found by the entry-point group ``streamdp.transports``; `streamdp.testing.transport.check_transport`
tests an implementation.

The life of a partition, in this order:

1. `Transport.join` announces partitions through its listener (assigned, revoked).
2. `take` fences every earlier owner of the partition, waits for the outcome of their open commits,
   and returns what is durable. From then on only a later owner can change it; `confirm` tells
   whether there is one.
3. `read` reads old input again, from any retained offset, for rebuilding.
4. `resume` sets the offset from which `poll` goes on.
5. `poll` and `commit` alternate; applying goes on while a commit is in flight, but there is at
   most one commit in flight for a partition.
6. `leave` gives the partition up.

A `commit` is atomic: after a crash either all of it is durable and visible or none of it. When it
raises `TransportLost` its outcome is unknown: the partition must be taken again. `Fenced` means
that another process has taken it; the transport announces the partition again if it comes back.
If nothing could ever give it back, the next `poll` raises `Fenced` too: the process must end.

A stream may have a second input beside the first, and an output. Partitions p of the three topics
belong together and are taken together, and a commit moves both positions and writes records to
partition p of the output in one atomic step. The ledger of such a stream is published as usual.
`PairedTransport` is what a transport adds for such streams; other streams do not need it.

An entry point of ``streamdp.transports`` names a `Technology`: it opens transports, readers,
producers and the administrator's tools on one cluster or file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from itertools import compress
from typing import Protocol, Self, TypeVar, runtime_checkable

from streamdp.core.errors import InvalidConfig, StreamdpError, refuse

Key = bytes | None
Value = bytes | None

Headers = Sequence[tuple[str, bytes | None]]
"""One record's headers in their order; a name may come twice. Public, like the record's key."""

OutputRecord = tuple[Key, Value, Headers]
"""A record that a commit writes to the output."""

Reached = Callable[[str, "Partition"], None]
"""Called at each step of a transport's protocol: here a test kills, raises or waits."""


class StaticMembership(Enum):
    """How a worker that starts treats an earlier worker of the same name."""

    STRANGERS = "strangers"  # as another worker: names only appear in messages
    REPLACED = "replaced"  # as itself before it died; a live one is a mistake and stops the start


@dataclass(frozen=True, slots=True)
class StreamTopics:
    """The names of a stream's records: its input and what is derived from it."""

    app: str
    stream: str
    input: str
    quarantined: bool = False  # whether unusable records are quarantined
    largest_value: int = 0  # the most bytes of a value in derived topics; 0 if not known
    headers: bool = False  # whether the input's records come with their headers and timestamps
    second_input: str = ""  # a second input, whose partition p belongs to partition p of the first
    output: str = ""  # the topic to whose partition p the commits of partition p write records

    @property
    def actions(self) -> str:
        """Where the release in force of each key is published (compacted)."""
        return f"{self.app}.{self.stream}.actions"

    @property
    def catalogue(self) -> str:
        """Where the stream's list is: which of its actions readers may show (compacted)."""
        return f"{self.app}.{self.stream}.catalogue"

    @property
    def ledger(self) -> str:
        """The name of the ledger topic: every charge is published there and never deleted."""
        return f"{self.app}.{self.stream}.ledger"

    @property
    def state(self) -> str:
        """Where the trusted state lives (compacted)."""
        return f"{self.app}.{self.stream}.state"

    @property
    def quarantine(self) -> str:
        """The topic of unusable records, if `quarantined`: as sensitive as the input."""
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
    """Consecutive input records of one partition, as columns: all records of its span.

    By the span [start, next_offset) a consumer that counts slots can see that no record is left out
    and none comes twice: each batch begins where the one before ended. A span may have no record.
    """

    partition: Partition
    start: int  # the requested position
    offsets: Sequence[int]  # ascending; gaps are allowed, slots are counted in records
    keys: Sequence[Key]
    values: Sequence[Value]
    next_offset: int  # the position after these records
    headers: Sequence[Headers] = ()  # one for each record if the stream asks for them, else none
    timestamps: Sequence[int] = ()  # milliseconds since 1970, as in the log; the same

    def __len__(self) -> int:
        """How many records."""
        return len(self.offsets)

    def __repr__(self) -> str:
        """Show the count, never the content."""
        return f"Records({self.partition}, {len(self.offsets)} up to {self.next_offset})"


class LiveEntries(dict[bytes, bytes]):
    """Entries of a trusted state, the newest at each place (its key), as a transport reads them."""

    def enter(self, places: Sequence[bytes], values: Sequence[Value]) -> None:
        """Let entries take the place of earlier ones, in this order; None deletes."""
        for place, value in zip(places, values, strict=True):
            if value is None:
                self.pop(place, None)
            else:
                self[place] = value


class EntriesThat(LiveEntries):
    """The entries whose keys are of this sort: the others are read past, and never held."""

    def __init__(self, sort: Callable[[bytes], bool]) -> None:
        super().__init__()
        self._sort = sort

    def enter(self, places: Sequence[bytes], values: Sequence[Value]) -> None:
        """Let those of the sort take the place of earlier ones."""
        of_sort = [self._sort(place) for place in places]
        super().enter(list(compress(places, of_sort)), list(compress(values, of_sort)))


@dataclass(frozen=True, slots=True)
class Reach:
    """How far one partition of a second input reaches, as `Taken` says it of the first."""

    first: int = 0
    end: int = 0
    group: int | None = None
    id: str | None = None


NO_INPUT = Reach()
"""In place of a second input, where there is none."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A partition's durable state at the moment it was taken."""

    state: Mapping[bytes, bytes] = field(repr=False)  # every live entry of the trusted state
    first_offset: int  # the oldest input record that is still retained
    end_offset: int  # where the next input record will go
    group_offset: int | None  # the consumer group's offset: evidence, never trusted
    last_ledger_line: bytes | None  # the newest published ledger line of this partition
    partitions: int  # how many partitions the input has
    remarks: Mapping[int, str] = field(default_factory=dict)  # of all partitions; see `Commit`
    input_id: str | None = None  # tells the input from another topic of its name, if there are ids
    owner: str | None = None  # the worker that took it last, if known
    second_input: Reach = NO_INPUT
    later_ledger_line: bytes | None = None  # the newest after the state was read, by a look alone


@dataclass(frozen=True, slots=True)
class LastCommit:
    """What a partition's newest commit has recorded, for a reader that does not take it."""

    partition: int
    state: Mapping[bytes, bytes] = field(repr=False)  # its entries, and maybe older or deleted ones
    ledger: Sequence[bytes] = field(default=(), repr=False)  # lines that no reader can see yet


@dataclass(frozen=True, slots=True)
class Commit:
    """One atomic step: trusted state, published records, and the position, all or nothing."""

    next_offset: int
    state: Sequence[tuple[bytes, Value]] = field(repr=False)  # None deletes an entry
    actions: Sequence[tuple[Key, bytes]] = field(default=(), repr=False)  # in this order
    ledger: Sequence[tuple[Key, bytes]] = field(default=(), repr=False)
    low_water: int | None = None  # older input is not needed again; a transport may delete it
    remark: str = ""  # kept beside the group's offset, for every worker that takes a partition
    second_input: int | None = None  # older records of the second input are not needed again
    records: Sequence[OutputRecord] = field(default=(), repr=False)  # to the output, in this order


@dataclass(frozen=True, slots=True)
class LastKnown:
    """What a transport heard last of an input: for lag and alerts, never for decisions."""

    first: int | None = None  # the oldest retained record
    end: int | None = None  # where the next record will go
    group: int | None = None  # the group's offset, while the partition waits to be resumed
    retain: int | None = None  # records kept that no rebuild needs; None: by the topic's settings


@dataclass(frozen=True, slots=True)
class Published:
    """One published record: of the actions or of the ledger of a stream."""

    partition: int
    offset: int
    key: Key
    value: bytes


class Listener(Protocol):
    """A transport's callbacks to its user; they return at once and must not raise."""

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """These partitions were assigned to this process: it may take them."""
        ...

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """These partitions go to another process: stop working on them."""
        ...

    def settled(self, stream: str) -> None:
        """All partitions of the stream that this process has are announced; there may be none.

        It is called after the first announcement, and may be called after later ones: so a process
        that stands by learns that there is nothing for it to take.
        """
        ...

    def failed(self, partition: Partition, error: StreamdpError) -> None:
        """This partition cannot go on, while others can; the transport has paused it.

        `StateMismatch`: halt it (its input is corrupt or no longer retained). `InvalidConfig`:
        likewise (this installation cannot read it). `TransportLost`: take it again.
        """
        ...


@runtime_checkable
class Transport(Protocol):
    """Moves records, and makes a step of the service durable and visible at once."""

    async def join(self, streams: Sequence[StreamTopics], listener: Listener) -> None:
        """Check that the streams' topics are there, then ask for a share of their partitions.

        Raises `InvalidConfig` if the user must act (a missing topic, wrong credentials, a compacted
        input, too little replication), `TransportLost` for temporary trouble: then call it again.
        It first publishes what any stream has made durable and could not publish.
        """
        ...

    async def take(self, partition: Partition, *, entries: LiveEntries | None = None) -> Taken:
        """Fence every earlier owner and return what is durable.

        The state is read into `entries`, some at a time and in their order, which is then the
        state of what is returned; there is no second copy. After an error they are worthless.

        It does not check whether the partition is assigned: that may change at any moment, and
        fencing decides. Only delivery after `resume` needs an assignment.
        """
        ...

    async def confirm(self, partition: Partition) -> None:
        """Ask whether a partition that was taken is still ours; `Fenced` if another has taken it.

        Two reads may differ because another owner worked in between, so only an owner may conclude
        that they contradict each other. It does nothing for a partition that this worker does not
        own: one that was never taken, or was lost by a commit whose outcome is unknown.
        """
        ...

    def read(self, partition: Partition, start: int, stop: int) -> AsyncIterator[Records]:
        """Read the input again, the offsets [start, stop), in batches.

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
        the first one where it was resumed. If `poll` raises, nothing was delivered: the same
        records come again. An error of one partition alone goes to `Listener.failed`. Call `poll`
        regularly, even while nothing is resumed: a transport may take a silent worker for dead.
        """
        ...

    async def newest_list(self, stream: str) -> bytes | None:
        """The newest committed record of the stream's catalogue, read to its end; None if empty.

        It is asked after each poll, so it should cost little where nothing has changed. It waits
        for no open transaction.
        """
        ...

    async def commit(self, partition: Partition, commit: Commit) -> None:
        """Make one step durable and visible, all or nothing."""
        ...

    def largest_value(self, stream: str) -> int:
        """The most bytes that one value of a commit may have: call it after `join`."""
        ...

    def last_known(self, partition: Partition) -> LastKnown:
        """What was heard last of the partition's input, also before it is taken."""
        ...

    def missing(self) -> Mapping[str, str]:
        """The inputs that are not there, as last known; for alerts, never for decisions.

        Each with the class of the error by which it is refused; "" where it does not exist.
        """
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

    `poll` delivers the first input alone. The user reads the second input when needed, with headers
    and timestamps: its records move no position by themselves. `join` refuses topics that differ in
    their number of partitions.
    """

    async def end_now(self, partition: Partition) -> int:
        """The end of the first input as of the call: every record from there on is added later.

        Records of open transactions count as present. Unlike `end_offset`, this is for decisions.
        """
        ...

    async def stop_second_input(self, partition: Partition, start: int, *, timestamp: int) -> int:
        """The offset of the second input before which all records older than `timestamp` lie.

        This is the offset of the first record from `start` on that is not older (milliseconds since
        1970, as in the log), or the present end if there is none. Records of open transactions
        count as present, so that a reader up to this offset has waited for their outcome. It is
        right as far as timestamps rise; in a log whose clock was set back it may be too low.
        `StateMismatch` if `start` lies beyond the end: then this is not the log that was read.
        """
        ...

    def read_second_input(
        self, partition: Partition, start: int, stop: int
    ) -> AsyncIterator[Records]:
        """Read the offsets [start, stop) of the second input in batches, as `read` does.

        `stop` lies within the input: at most what `stop_second_input` or a take returned. The
        batches follow each other without a gap, and the last one's `next_offset` is `stop`.
        Records that are no longer retained are left out, and so are those that cannot be decoded:
        whether there are such records may depend on what this input contains.
        """
        ...


@runtime_checkable
class Publications(Protocol):
    """Reads published records. Needs no rights on the input or the state."""

    def actions(self, stream: StreamTopics, *, follow: bool) -> AsyncIterator[Sequence[Published]]:
        """Every committed action record from the oldest on.

        With `follow`, an empty batch marks the end as of the call, and the iterator then goes on
        with new records; without, it ends there.
        """
        ...

    def catalogue(
        self, stream: StreamTopics, *, follow: bool
    ) -> AsyncIterator[Sequence[Published]]:
        """The stream's list, as `actions` reads; earlier ones may come before it."""
        ...

    def ledger(
        self, stream: StreamTopics, *, follow: bool, newest: int | None = None
    ) -> AsyncIterator[Sequence[Published]]:
        """Every ledger record from the oldest on, as `actions` reads them.

        With `newest`, only about so many before the end as of the call, and new ones.
        """
        ...

    async def ledgers(self, app: str) -> Sequence[StreamTopics]:
        """Every stream of the application that has a ledger here, configured or not, by name.

        A place that applications share, such as a file, also has those of other applications. Only
        the ledger lines name a stream's input: `input` is empty.
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

        With `headers` there is one entry for each record. A key or value that is not bytes is
        refused before anything is appended: see `check_bytes`.
        """
        ...

    async def close(self) -> None:
        """Flush and give everything up, within a bounded time."""
        ...


class Verdict(Enum):
    """The result of a check."""

    GOOD = "good"
    CHANGED = "changed"  # something was missing or wrong, and was corrected
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a check."""

    subject: str  # the checked thing, such as ``topic app.home.state: min.insync.replicas``
    verdict: Verdict
    detail: str  # the finding; for a problem also what to do


@runtime_checkable
class Administrator(Protocol):
    """Makes, checks and inspects the topics of streams; nothing here takes a partition."""

    async def create(
        self, streams: Sequence[StreamTopics], *, partitions: int
    ) -> Sequence[Finding]:
        """Make missing topics, including the input, and change none that is there."""
        ...

    async def check(self, streams: Sequence[StreamTopics]) -> Sequence[Finding]:
        """Compare the topics with what the guarantee needs, changing nothing."""
        ...

    async def mend(self, streams: Sequence[StreamTopics]) -> Sequence[Finding]:
        """Correct settings that only make work slow, then check; `Verdict.CHANGED` marks them."""
        ...

    async def expand(
        self, streams: Sequence[StreamTopics], *, partitions: int
    ) -> Sequence[Finding]:
        """Give the input and the topics derived from it more partitions; never fewer."""
        ...

    def commands(self, streams: Sequence[StreamTopics], *, partitions: int) -> str:
        """Shell commands that make the topics, for a cluster's administrators."""
        ...

    async def probe(
        self, streams: Sequence[StreamTopics], *, written: Sequence[str] = ()
    ) -> Sequence[Finding]:
        """Try reachability, credentials and rights without lasting effects.

        `written`: the topics that `serve` writes requests and outcomes to.
        """
        ...

    async def revise(self, stream: StreamTopics, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace the stream's list by what `change` makes of it, and return that.

        Two at once lose nothing: `change` is called again where another one was faster.
        """
        ...

    async def peek(
        self, stream: StreamTopics, partition: int, *, entries: LiveEntries | None = None
    ) -> Taken:
        """Read a partition's durable state without fencing its owner, into `entries` if given."""
        ...

    def last_commits(
        self, stream: StreamTopics, *, marks: Callable[[int], Collection[bytes]]
    ) -> AsyncIterator[LastCommit]:
        """What each partition's newest commit has recorded, without fencing its owner.

        `marks`: keys of entries, one of which every commit writes. The stream's input may be empty.
        Nothing if the state is gone; `InvalidConfig` if it may not be read.
        """
        ...

    async def newest(self, stream: StreamTopics, *, count: int) -> Sequence[Records]:
        """About the `count` newest input records. NOT PRIVATE."""
        ...

    def history(self, stream: StreamTopics, *, after: Mapping[int, int]) -> AsyncIterator[Records]:
        """Every retained input record up to now, one partition after the other. NOT PRIVATE.

        A partition in `after` begins at that offset. It is for replay: nothing is taken, joined or
        fenced, and only the input has to exist.
        """
        ...

    async def close(self) -> None:
        """Give everything up, within a bounded time."""
        ...


@runtime_checkable
class RemovingAdministrator(Administrator, Protocol):
    """An administrator that can delete topics; the demonstration deletes those that it made."""

    async def existing(self, streams: Sequence[StreamTopics]) -> Sequence[str]:
        """The topics of these streams that exist."""
        ...

    async def remove(self, streams: Sequence[StreamTopics]) -> None:
        """Delete the topics of these streams, with all that they hold."""
        ...


class Technology(Protocol):
    """One cluster or file, given by its settings; entry points of ``streamdp.transports`` name it.

    Opening does not connect; the returned objects connect at their first use.
    """

    @classmethod
    def from_settings(cls, settings: Mapping[str, object], *, app: str) -> Self:
        """Read the transport's table and the files it names; `InvalidConfig` names a bad key."""
        ...

    def check_streams(self, streams: Sequence[StreamTopics]) -> None:
        """Refuse names and sizes that nothing here can ever hold, without connecting."""
        ...

    def transport(
        self, *, worker: str, static_membership: StaticMembership = StaticMembership.STRANGERS
    ) -> Transport:
        """A transport for the service; `worker` names the process in messages and owner records."""
        ...

    def publications(self) -> Publications:
        """A new reader of published topics."""
        ...

    def producer(self, *, kept: int | None = None) -> Producer:
        """A new writer of input records.

        `kept`: how many of the newest records stay in each partition that it writes to, if the
        technology has no retention of its own.
        """
        ...

    def administrator(self) -> Administrator:
        """The tools for commands that make and check topics."""
        ...


def no_fault(step: str, partition: Partition) -> None:
    """A `Reached` that injects nothing."""


def check_names(streams: Sequence[StreamTopics]) -> None:
    """Refuse two streams of one name."""
    names = [topics.stream for topics in streams]
    if len(set(names)) != len(names):
        raise InvalidConfig("streams", "a name twice", expected="distinct names", got=names)


def check_paired(stream: StreamTopics, partitions: Mapping[str, int]) -> None:
    """Refuse a second input or an output whose partitions do not match those of the first input."""
    names = [stream.input, stream.second_input, stream.output]
    if not all(names) or len(set(names)) != len(names):
        raise InvalidConfig(
            f"stream {stream.stream}",
            "its two inputs and its output are not three topics",
            expected="three names",
            got=", ".join(names),
        )
    counts = {name: partitions[name] for name in names}
    if len(set(counts.values())) > 1:
        raise InvalidConfig(
            f"stream {stream.stream}",
            "its topics differ in their number of partitions",
            expected=f"{counts[stream.input]} in each, as {stream.input} has",
            got=", ".join(f"{name}: {count}" for name, count in counts.items()),
        )


def check_bytes(
    topic: str, records: Sequence[tuple[Key, Value]], headers: Sequence[Headers] | None = None
) -> None:
    """Refuse keys and values that are not bytes: in a log they would stop readers."""
    _check_headers(topic, len(records), headers)
    for at, record in enumerate(records):
        where = f"record {at} of those to send"
        for what, part in zip(("key", "value"), record, strict=True):
            if part is not None and not isinstance(part, bytes):
                refuse(f"topic {topic}: {where}", what, "bytes or None", type(part).__name__)


def _check_headers(topic: str, count: int, headers: Sequence[Headers] | None) -> None:
    """Refuse headers whose number is not that of the records, or that no log could keep."""
    if headers is None:
        return
    if len(headers) != count:
        what = "not one entry for each record"
        refuse(f"topic {topic}: headers to send", what, count, len(headers))
    for at, pairs in enumerate(headers):
        where, what = f"headers of record {at} of those to send", "not a name with its value"
        for name, value in pairs:
            if not isinstance(name, str) or not isinstance(value, bytes | None):
                refuse(
                    f"topic {topic}: {where}", what, "str and bytes or None",
                    f"{type(name).__name__} and {type(value).__name__}",
                )  # fmt: skip


class Closes(Protocol):
    """Whatever a technology opens."""

    async def close(self) -> None:
        """Let go of connections and files."""
        ...


C = TypeVar("C", bound=Closes)


@asynccontextmanager
async def closing(opened: C) -> AsyncIterator[C]:
    """It is closed when the block ends."""
    try:
        yield opened
    finally:
        await opened.close()
