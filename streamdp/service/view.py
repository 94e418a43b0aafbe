"""The status: the public facts of streams, assemblies and partitions, as values.

`View` is told of a commit after it is durable, and of nothing earlier. It replaces a partition's
`PartitionStatus`, which is frozen; `status_of` adds what follows from the time. Pages, metrics and
readiness read that value and nothing else: the operations listener lives in a thread of its own and
knows nothing else of the work. All of it is public: blocks, slots, keys and positions. The view
never receives a loss or a sum, so it cannot show one. (What was released and charged,
`streamdp.serve.history` reads from the ledger.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from streamdp.ports import LastKnown, Partition, Records

if TYPE_CHECKING:  # pages and metrics read the view: their process needs no engine
    from streamdp.service.protocol import Cut, PartitionWork
    from streamdp.service.spec import StreamSpec
    from streamdp.wire.renewals import RenewalSource


_CALM_SECONDS = 60.0  # of work after which nothing is refused any more
_OVERDUE_SECONDS = 60.0  # the step in which lateness is shown
_HOUR = 3_600_000  # milliseconds
_KEPT_ENDS = 256  # notes of the input's end; beyond this every other one is dropped

STEPS = ("poll", "commit")
"""The public steps whose durations are shown."""

BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
"""Upper bounds in seconds: a commit takes 3.5 ms on a healthy broker, and a request to one in
trouble ends after 40 s."""


class Status(StrEnum):
    """The stages of a partition's life."""

    TAKING = "taking"
    REBUILDING = "rebuilding"
    RUNNING = "running"
    RETRYING = "retrying"
    WAITING = "waiting"  # for a process with a later configuration
    HALTED = "halted"
    DRAINED = "drained"


ON_ITS_WAY = frozenset({Status.TAKING, Status.REBUILDING, Status.RETRYING})
"""The stages in which a partition does not learn, and will by itself."""


class Reason(StrEnum):
    """Why a partition is halted; this says who must act."""

    STATE = "state_mismatch"
    MISMATCH = "configuration_mismatch"  # the state was made by another configuration
    BUDGET = "budget_exceeded"
    CONFIG = "invalid_config"
    INTERNAL = "internal"


class PartitionStatus(Struct, frozen=True):
    """One partition of this process. Its fields, and those of a stream, are the page's JSON."""

    number: int
    status: Status = Status.TAKING
    reason: Reason | None = None
    message: str = ""
    progress: float = 0.0  # of a rebuild, 0 to 1
    position: int = 0
    low_water: int = 0
    lag: int | None = None  # records that are not durable in the state yet
    headroom: int | None = None
    """Records between the oldest retained one and the oldest that a rebuild needs. None while
    nothing was ever deleted: then retention is not near, however short the log is."""
    keys: int = 0
    keys_refused: int = 0
    slots: int = 0  # learned from
    blocks: int = 0
    published_ago: float | None = None
    lag_seconds: float = 0.0
    """Since this process first saw the oldest waiting record. Computed from offsets alone, so it
    says nothing of any event; records that waited before are as old as the first look."""
    lost: str = ""  # the class of the error by which the transport was lost; "" once it answers
    refused: str = ""  # the error's class and topic, while rights or certificates are refused
    lacking: str = ""  # the topic that lacks the partition, which the input has
    open: int = 0  # of an assembly: requests that wait for their deadline
    events: int = 0  # of an assembly: written
    clock_ahead: float | None = None  # of the newest timestamp before our clock, in whole hours
    overdue: float = 0.0
    """Of an assembly: seconds by which the oldest open request is late. In whole minutes: it is
    late while outcomes are read, and that takes seconds."""
    kept: int | None = None  # records of the input, where the transport trims it
    retain: int | None = None  # how many of them it means to keep beyond what rebuilds need


COUNTS = ("slots", "blocks", "keys_refused", "events")
"""What is counted of a partition: the view has it since it was taken, a status ever."""


class StreamStatus(Struct, frozen=True):
    """One stream or assembly of this process."""

    name: str
    partitions: list[PartitionStatus]
    settled: bool = True  # whether this process's partitions are known
    left: list[PartitionStatus] = []  # that it had before: what was counted of them stays


class StepStatus(Struct, frozen=True):
    """How long a public step took: counts up to each bound of `BUCKETS` and beyond."""

    name: str
    counts: list[int]
    seconds: float


class ProcessStatus(Struct, frozen=True):
    """One learning process."""

    streams: list[StreamStatus]
    steps: list[StepStatus]
    polled_ago: float | None  # seconds since the transport last answered
    started_at: float = 0.0  # seconds since 1970
    assigned: int = 0  # partitions, since the start
    revoked: int = 0
    assemblies: list[StreamStatus] = []
    errors: list[tuple[str, str]] = []  # topic and class: why the transport does not answer
    missing: list[str] = []  # inputs that do not exist
    hidden: list[tuple[str, str]] = []  # stream; the error's class and the input that is refused
    registries: dict[str, float] = {}  # subjects: seconds since their registry stopped answering
    begun: bool = False  # whether every partition that it had at first was taken, now or earlier

    @property
    def work(self) -> list[StreamStatus]:
        """The streams and assemblies that have partitions here."""
        return [*self.streams, *self.assemblies]

    @property
    def parts(self) -> list[tuple[str, PartitionStatus]]:
        """Every partition that is here, with its name."""
        return [(f"{of.name}/{part.number}", part) for of in self.work for part in of.partitions]

    def not_begun(self) -> list[str]:
        """The partitions that still have to be taken, or why none can be."""
        missing = [
            f"{stream.name}: its partitions are not assigned yet"
            for stream in self.work
            if not stream.settled
        ]
        missing += self.away()
        if self.parts and all(part.status is Status.HALTED for _, part in self.parts):
            missing.append("every partition is halted")
        return missing

    def away(self) -> list[str]:
        """What does not learn now and will by itself, or as soon as its input is there again."""
        away = [f"{name}: {error}" for name, error in self.hidden]
        away += [f"the input {topic} does not exist" for topic in self.missing]
        for name, part in self.parts:
            if part.status in ON_ITS_WAY:
                why = f": {part.lacking} lacks the partition, `streamdp topics expand` adds it"
                away.append(f"{name} is {part.status}" + why * bool(part.lacking))
        return away


class Steps:
    """Counts how long public steps take."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts = {step: [0] * (len(BUCKETS) + 1) for step in STEPS}
        self._seconds = dict.fromkeys(STEPS, 0.0)
        self._polled_at: float | None = None

    def observe(self, step: str, seconds: float) -> None:
        """Count a step's duration."""
        self._counts[step][bisect_left(BUCKETS, seconds)] += 1
        self._seconds[step] += seconds
        if step == "poll":
            self._polled_at = self._clock()

    def statuses(self) -> list[StepStatus]:
        """The counts of all steps."""
        return [StepStatus(step, list(self._counts[step]), self._seconds[step]) for step in STEPS]

    def polled_ago(self, *, now: float) -> float | None:
        """Seconds since the transport last answered."""
        return None if self._polled_at is None else now - self._polled_at


@dataclass(slots=True)
class _Seen:
    """What a partition's status follows from, beside what it shows."""

    before: Counter[str] = field(default_factory=Counter)  # by earlier takings of this process
    known: LastKnown = field(default_factory=LastKnown)  # of the input
    ends: deque[tuple[float, int]] = field(default_factory=deque)  # when it reached which offset
    at_end: bool = False  # whether the newest records reached the input's end
    published_at: float | None = None
    refused_at: float = 0.0
    due_at: float | None = None  # of an assembly: when the oldest open request is due

    def status(self, part: PartitionStatus, now: float) -> PartitionStatus:
        """What is shown at a time."""
        waiting = (at for at, end in self.ends if end > part.position)
        late = 0.0 if self.due_at is None else max(0.0, now - self.due_at)
        calm = part.status is Status.RUNNING and now - self.refused_at > _CALM_SECONDS
        return structs.replace(
            part,
            published_ago=None if self.published_at is None else now - self.published_at,
            lag_seconds=max(0.0, now - next(waiting, now)),
            refused="" if calm else part.refused,  # that shows only some time after a taking
            overdue=late - late % _OVERDUE_SECONDS,
            **{name: getattr(part, name) + self.before[name] for name in COUNTS},
        )


@dataclass(slots=True)
class WorkView:
    """One stream or assembly: the lives of its partitions."""

    settled: bool = False  # whether this process's partitions are known
    partitions: dict[int, PartitionStatus] = field(default_factory=dict)
    seen: defaultdict[int, _Seen] = field(default_factory=lambda: defaultdict(_Seen))

    def status(self, name: str, now: float) -> StreamStatus:
        """What is shown at a time."""
        parts = [self.seen[of].status(part, now) for of, part in sorted(self.partitions.items())]
        left = [
            self.seen[number].status(PartitionStatus(number, Status.DRAINED, progress=1.0), now)
            for number in sorted(self.seen.keys() - self.partitions.keys())
        ]
        return StreamStatus(name, parts, self.settled, left)


class View:
    """Every stream and every assembly of one process."""

    def __init__(self, specs: Iterable[StreamSpec], *, assemblies: Iterable[str] = ()) -> None:
        self.assigned = 0  # partitions, since the start
        self.revoked = 0
        self.lost: tuple[str, str] | None = None  # topic and class of the newest poll's error
        self.missing: Mapping[str, str] = {}  # inputs that are not there: the refusal, or ""
        self.sources: Sequence[RenewalSource] = ()  # that are asked by timers
        self.inputs: Mapping[str, str] = {}  # of streams and assemblies, by name
        self.assemblies: Mapping[str, WorkView] = {name: WorkView() for name in assemblies}
        self.streams: Mapping[str, WorkView] = {spec.name: WorkView() for spec in specs}
        self.work = {**self.streams, **self.assemblies}  # by name

    def part(self, partition: Partition) -> PartitionStatus:
        """What is shown of one partition."""
        number = partition.number
        return self.work[partition.stream].partitions.setdefault(number, PartitionStatus(number))

    def _seen(self, partition: Partition) -> _Seen:
        return self.work[partition.stream].seen[partition.number]

    def show(self, partition: Partition, **changes: Any) -> None:
        """Replace what is shown of a partition."""
        part, seen = structs.replace(self.part(partition), **changes), self._seen(partition)
        first, end, retain = seen.known.first, seen.known.end, seen.known.retain
        self.work[partition.stream].partitions[partition.number] = structs.replace(
            part,
            lag=None if end is None else max(0, end - part.position),
            headroom=part.low_water - first if first else None,
            kept=None if retain is None or first is None or end is None else end - first,
            retain=retain,
        )

    def forget(self, partition: Partition) -> None:
        """Forget a partition that another process has now, but for what was counted here."""
        work = self.work[partition.stream]
        if partition.number in work.partitions:
            self._count_anew(partition)
            work.seen[partition.number] = _Seen(self._seen(partition).before)
            del work.partitions[partition.number]

    def _count_anew(self, partition: Partition) -> None:
        """Keep what was counted of a partition: each taking counts from 0, and totals go on."""
        part, before = self.part(partition), self._seen(partition).before
        for name in COUNTS:
            before[name] += getattr(part, name)
        self.show(partition, **dict.fromkeys(COUNTS, 0))

    # -- a partition's life ------------------------------------------------------------------------

    def turn(self, partition: Partition, status: Status, message: str = "", **more: Any) -> None:
        """Show a new stage of a partition's life."""
        if status is Status.TAKING:
            self._count_anew(partition)
        else:  # taking says nothing of the transport yet
            more = {"lost": "", "lacking": "", **more}
        progress = 0.0 if status in ON_ITS_WAY else 1.0
        self.show(partition, status=status, reason=None, message=message, progress=progress, **more)

    def retry(self, partition: Partition, error: str) -> None:
        """Show that the transport was lost, and the class of the error."""
        self.turn(partition, Status.RETRYING, lost=error, refused="")

    def refuse(self, partition: Partition, named: str, *, now: float) -> None:
        """Show that the transport answers, but refuses this process.

        Some answers name no topic: then the same error with a topic says more.
        """
        before, self._seen(partition).refused_at = self.part(partition).refused, now
        refused = before if before.startswith(named) else named
        self.turn(partition, Status.RETRYING, refused=refused)

    def running(self, partition: Partition, work: PartitionWork) -> None:
        """Show what is durable of a partition that was restored."""
        point, keys = work.point, len(work.engine)
        self.turn(
            partition,
            Status.RUNNING,
            position=point.next_offset,
            low_water=point.low_water,
            keys=keys,
        )

    def halt(self, partition: Partition, reason: Reason, message: str) -> None:
        """Show that the partition has stopped and needs an operator."""
        self.turn(partition, Status.HALTED, message, refused="")
        self.show(partition, reason=reason)

    def committed(
        self, partition: Partition, cut: Cut, *, slots: int, keys_refused: int, now: float
    ) -> None:
        """Show what a commit published, once it is durable."""
        point, blocks = cut.checkpoint, self.part(partition).blocks + cut.blocks
        if cut.releases:
            self._seen(partition).published_at = now
        self.show(
            partition,
            position=point.next_offset,
            low_water=point.low_water,
            keys=point.rows,
            keys_refused=keys_refused,
            slots=slots,
            blocks=blocks,
        )

    def due(self, partition: Partition, at: float | None) -> None:
        """Note when an assembly's oldest open request is due."""
        self._seen(partition).due_at = at

    # -- its input ---------------------------------------------------------------------------------

    def look(self, partition: Partition, known: LastKnown, *, now: float) -> None:
        """Note how far the input reaches."""
        seen, position = self._seen(partition), self.part(partition).position
        seen.known, ends, end = known, seen.ends, known.end
        while ends and ends[0][1] <= position:
            ends.popleft()
        if end is not None and end > (ends[-1][1] if ends else position):
            ends.append((now, end))
        if len(ends) > _KEPT_ENDS:
            seen.ends = deque(list(ends)[::2])
        self.show(partition)

    def look_ahead(
        self, partition: Partition, *, position: int | None, end: int | None, now: float
    ) -> None:
        """Note how far input and group are while the partition is taken, as far as both are known.

        So its lag is known before it works: the group's offset follows the state's.
        """
        if position is None or end is None:
            return
        part = self.part(partition)
        position = max(part.position, position)
        self.show(partition, position=position, low_water=part.low_water or position)
        self.look(partition, replace(self._seen(partition).known, end=end), now=now)

    def stamp(self, partition: Partition, records: Records, *, end: int | None, now: int) -> None:
        """Compare the clocks by records that have just come, in whole hours.

        They have if they reach the input's end, as those before them did: others may have waited
        for any time. `now` is our clock, in milliseconds since 1970. Nothing here depends on when
        this view was last looked at, which outcomes could move.
        """
        seen = self._seen(partition)
        fresh, seen.at_end = seen.at_end, end is not None and records.next_offset >= end
        if fresh and seen.at_end and records.timestamps:
            ahead = float(int((records.timestamps[-1] - now) / _HOUR))
            self.show(partition, clock_ahead=ahead)


def status_of(view: View, steps: Steps, *, now: float, started_at: float = 0.0) -> ProcessStatus:
    """The public status at this moment; `now` is of the clock that the service runs by."""
    errors = {
        (view.inputs.get(name, ""), part.lost)
        for name, work in view.work.items()
        for part in work.partitions.values()
        if part.lost
    }
    registries: dict[str, float] = {}  # 0 while one answers
    for source in view.sources:
        seconds = 0.0 if source.lost_at is None else now - source.lost_at
        registries[source.subject] = max(seconds, registries.get(source.subject, 0.0))
    return ProcessStatus(
        streams=[work.status(name, now) for name, work in view.streams.items()],
        steps=steps.statuses(),
        polled_ago=steps.polled_ago(now=now),
        started_at=started_at,
        assigned=view.assigned,
        revoked=view.revoked,
        assemblies=[work.status(name, now) for name, work in view.assemblies.items()],
        errors=sorted(errors if view.lost is None else errors | {view.lost}),
        missing=sorted(topic for topic, error in view.missing.items() if not error),
        hidden=[
            (name, f"{error} {topic}")
            for name, topic in view.inputs.items()
            if (error := view.missing.get(topic, ""))
        ],
        registries=registries,
    )
