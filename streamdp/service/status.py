"""The view at one time, as an immutable value: what the operations listener shows.

`ProcessStatus` holds public facts only, since it is made from the `View` alone. The listener lives
in a thread of its own and knows nothing else of the learning.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator

from msgspec import Struct

from streamdp.service.view import COUNTS, ON_ITS_WAY, PartitionView, Status, View, WorkView

STEPS = ("poll", "commit")
"""The public steps whose durations are shown."""

BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
"""Upper bounds in seconds: a commit takes 3.5 ms on a healthy broker, and a request to one in
trouble ends after 40 s."""


class PartitionStatus(Struct, frozen=True):
    """One partition of this process."""

    number: int
    status: str
    reason: str | None
    message: str
    progress: float
    position: int
    low_water: int
    lag: int | None
    headroom: int | None
    keys: int
    keys_refused: int
    slots: int
    blocks: int
    published_ago: float | None
    lag_seconds: float = 0.0
    lost: str = ""  # the class of the error by which the transport was lost; "" once it answers
    refused: str = ""  # the error's class and topic, while rights or certificates are refused
    lacking: str = ""  # the topic that lacks the partition, which the input has
    open: int = 0  # of an assembly: requests that wait for their deadline
    events: int = 0  # of an assembly: written since this process took the partition
    clock_ahead: float | None = None  # of the newest timestamp, in whole hours
    overdue: float = 0.0  # of an assembly: seconds by which the oldest event is late
    kept: int | None = None  # records of the input, where the transport trims it
    retain: int | None = None  # how many of them the transport means to keep


class StreamStatus(Struct, frozen=True):
    """One stream of this process."""

    name: str
    partitions: list[PartitionStatus]
    settled: bool = True  # whether this process's partitions are known
    left: list[PartitionStatus] = []  # that it had before: what was counted of them stays


def _why(part: PartitionStatus) -> str:
    if not part.lacking:
        return ""
    return f": {part.lacking} lacks the partition, `streamdp topics expand` adds it"


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

    def not_begun(self) -> list[str]:
        """The partitions that still have to be taken, or why none can be."""
        missing = [
            f"{stream.name}: its partitions are not assigned yet"
            for stream in self.work
            if not stream.settled
        ]
        missing += self.away()
        parts = [part for stream in self.work for part in stream.partitions]
        if parts and all(part.status == Status.HALTED for part in parts):
            missing.append("every partition is halted")
        return missing

    def away(self) -> list[str]:
        """What does not learn now and will by itself, or as soon as its input is there again."""
        away = [f"{name}: {error}" for name, error in self.hidden]
        away += [f"the input {topic} does not exist" for topic in self.missing]
        return away + [
            f"{stream.name}/{part.number} is {part.status}" + _why(part)
            for stream in self.work
            for part in stream.partitions
            if part.status in ON_ITS_WAY
        ]

    @property
    def work(self) -> list[StreamStatus]:
        """The streams and assemblies that have partitions here."""
        return [*self.streams, *self.assemblies]


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


def status_of(view: View, steps: Steps, *, now: float, started_at: float = 0.0) -> ProcessStatus:
    """The public status at this moment; `now` is of the clock that the service runs by."""
    return ProcessStatus(
        streams=[_of_work(name, shown, now) for name, shown in view.streams.items()],
        steps=steps.statuses(),
        polled_ago=steps.polled_ago(now=now),
        started_at=started_at,
        assigned=view.assigned,
        revoked=view.revoked,
        assemblies=[_of_work(name, shown, now) for name, shown in view.assemblies.items()],
        errors=sorted({*_errors(view), *([] if view.lost is None else [view.lost])}),
        missing=sorted(topic for topic, error in view.missing.items() if not error),
        hidden=[
            (name, f"{error} {topic}")
            for name, topic in view.inputs.items()
            if (error := view.missing.get(topic, ""))
        ],
        registries=_silence(view, now),
    )


def _silence(view: View, now: float) -> dict[str, float]:
    """How long the registry of each subject has not answered; 0 while it does."""
    silence: dict[str, float] = {}
    for source in view.sources:
        lost_at = source.lost_at
        seconds = 0.0 if lost_at is None else now - lost_at
        silence[source.subject] = max(seconds, silence.get(source.subject, 0.0))
    return silence


def _errors(view: View) -> Iterator[tuple[str, str]]:
    """The input and the error of partitions that the transport has lost."""
    for name, work in view.work.items():
        for part in work.partitions.values():
            if part.lost:
                yield view.inputs.get(name, ""), part.lost


def _of_work(name: str, shown: WorkView, now: float) -> StreamStatus:
    def of(number: int, part: PartitionView) -> PartitionStatus:
        return _partition(number, part, shown.before[number], now)

    parts = [of(number, part) for number, part in sorted(shown.partitions.items())]
    gone = sorted(shown.before.keys() - shown.partitions.keys())
    left = [of(number, PartitionView(Status.DRAINED)) for number in gone]
    return StreamStatus(name, parts, shown.settled, left)


def _partition(
    number: int, part: PartitionView, before: Counter[str], now: float
) -> PartitionStatus:
    progress = part.progress if part.status is Status.REBUILDING else 1.0
    if part.status in (Status.TAKING, Status.RETRYING):
        progress = 0.0
    return PartitionStatus(
        number=number,
        status=str(part.status),
        reason=None if part.reason is None else str(part.reason),
        progress=progress,
        published_ago=None if part.published_at is None else now - part.published_at,
        lag_seconds=part.lag_seconds(now=now),
        refused=part.refusal(now=now),
        overdue=part.overdue(now=now),
        **{name: getattr(part, name) + before[name] for name in COUNTS},
        **{name: getattr(part, name) for name in _AS_IN_THE_VIEW},
    )


_AS_IN_THE_VIEW = (
    "message", "position", "low_water", "lag", "headroom", "keys", "lost", "lacking", "open",
    "clock_ahead", "kept", "retain",
)  # fmt: skip
