"""The view of published releases: the only source of metrics, pages and HTTP.

The view is told of a commit after it is durable, and of nothing earlier. All of it is public:
blocks, slots, keys and positions. It never receives a loss or a sum, so it cannot show one. (What
was released and charged, `streamdp.serve.history` reads from the ledger.)
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from streamdp.ports import Partition, Records

if TYPE_CHECKING:  # pages and metrics read the view: their process needs no engine
    from streamdp.service.protocol import Cut, PartitionWork
    from streamdp.service.spec import StreamSpec
    from streamdp.wire.renewals import Source


_CALM_SECONDS = 60.0  # of work after which nothing is refused any more
_OVERDUE_SECONDS = 60.0  # the step in which lateness is shown
_HOUR = 3_600_000  # milliseconds
_KEPT_ENDS = 256  # notes of the input's end; beyond this every other one is dropped


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


@dataclass(slots=True)
class PartitionView:
    """The public facts of one partition."""

    status: Status = Status.TAKING
    reason: Reason | None = None
    message: str = ""
    progress: float = 0.0  # of a rebuild, 0 to 1
    position: int = 0
    low_water: int = 0
    end_offset: int | None = None
    first_offset: int | None = None
    retain: int | None = None  # records beyond what rebuilds need, where the transport trims
    keys: int = 0
    keys_refused: int = 0
    slots: int = 0  # learned from since this process took the partition
    blocks: int = 0
    published_at: float | None = None
    lost: str = ""  # the class of the error by which the transport was lost; "" once it answers
    refused: str = ""  # the error's class and topic, if rights or certificates were refused
    refused_at: float = 0.0
    lacking: str = ""  # the topic that lacks the partition, which the input has
    clock_ahead: float | None = None  # of the input's newest timestamp before ours, in hours
    open: int = 0  # of an assembly: requests that wait for their deadline
    events: int = 0  # of an assembly: written since this process took the partition
    due_at: float | None = None  # of an assembly: when the oldest open request is due
    _at_end: bool = False  # whether the newest records reached the input's end
    # When the input was seen to reach which offset.
    _ends: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def lag(self) -> int | None:
        """Records that are not durable in the state yet."""
        return None if self.end_offset is None else max(0, self.end_offset - self.position)

    def look(
        self, *, first: int | None, end: int | None, now: float, retain: int | None = None
    ) -> None:
        """Note how far the input reaches."""
        self.first_offset, self.end_offset, self.retain = first, end, retain
        ends = self._ends
        while ends and ends[0][1] <= self.position:
            ends.popleft()
        if end is not None and end > (ends[-1][1] if ends else self.position):
            ends.append((now, end))
        if len(ends) > _KEPT_ENDS:
            kept = list(ends)[::2]
            ends.clear()
            ends.extend(kept)

    def look_ahead(self, *, position: int | None, end: int | None, now: float) -> None:
        """Note how far input and group are while the partition is taken, as far as both are known.

        So its lag is known before it works: the group's offset follows the state's.
        """
        if position is None or end is None:
            return
        self.position = max(self.position, position)
        self.low_water = self.low_water or self.position
        self.look(first=self.first_offset, end=end, now=now)

    def stamp(self, records: Records, *, end: int | None, now: int) -> None:
        """Compare the clocks by records that have just come, in whole hours.

        They have if they reach the input's end, as those before them did: others may have waited
        for any time. `now` is our clock, in milliseconds since 1970. Nothing here depends on when
        this view was last looked at, which outcomes could move.
        """
        fresh, self._at_end = self._at_end, end is not None and records.next_offset >= end
        if fresh and self._at_end and records.timestamps:
            self.clock_ahead = float(int((records.timestamps[-1] - now) / _HOUR))

    def overdue(self, *, now: float) -> float:
        """Seconds by which an assembly's oldest open request is overdue.

        In whole minutes: it is overdue while outcomes are read, and that takes seconds.
        """
        late = 0.0 if self.due_at is None else max(0.0, now - self.due_at)
        return late - late % _OVERDUE_SECONDS

    def refusal(self, *, now: float) -> str:
        """What is refused now: it may show only some time after the partition was taken again."""
        calm = self.status is Status.RUNNING and now - self.refused_at > _CALM_SECONDS
        return "" if calm else self.refused

    def lag_seconds(self, *, now: float) -> float:
        """Seconds since this process first saw the oldest waiting record.

        Computed from offsets alone, so it says nothing of any event. Records that waited before the
        process came are as old as its first look.
        """
        waiting = (at for at, end in self._ends if end > self.position)
        return max(0.0, now - next(waiting, now))

    @property
    def headroom(self) -> int | None:
        """Records between the oldest retained one and the oldest that a rebuild needs.

        None while nothing was ever deleted: then retention is not near, however short the log is.
        """
        return self.low_water - self.first_offset if self.first_offset else None

    @property
    def kept(self) -> int | None:
        """Records that the input keeps, where the transport trims it; also of no use to anybody."""
        if self.retain is None or self.first_offset is None or self.end_offset is None:
            return None
        return self.end_offset - self.first_offset


COUNTS = ("slots", "blocks", "keys_refused", "events")
"""What a partition's view counts since this process took it."""


@dataclass(slots=True)
class WorkView:
    """The public facts of one stream or assembly: the lives of its partitions."""

    settled: bool = False  # whether this process's partitions are known
    before: defaultdict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """What earlier takings of each partition have counted in this process."""
    partitions: defaultdict[int, PartitionView] = field(
        default_factory=lambda: defaultdict(PartitionView)
    )


class View:
    """Every stream and every assembly of one process."""

    def __init__(self, specs: Iterable[StreamSpec], *, assemblies: Iterable[str] = ()) -> None:
        self.assigned = 0  # partitions, since the start
        self.revoked = 0
        self.lost: tuple[str, str] | None = None  # topic and class of the newest poll's error
        self.missing: Mapping[str, str] = {}  # inputs that are not there: the refusal, or ""
        self.sources: Sequence[Source] = ()  # that are asked by timers
        self.inputs: Mapping[str, str] = {}  # of streams and assemblies, by name
        self.assemblies: Mapping[str, WorkView] = {name: WorkView() for name in assemblies}
        self.streams: Mapping[str, WorkView] = {spec.name: WorkView() for spec in specs}
        self.work = {**self.streams, **self.assemblies}  # by name

    def part(self, partition: Partition) -> PartitionView:
        """The view of one partition."""
        return self.work[partition.stream].partitions[partition.number]

    def forget(self, partition: Partition) -> None:
        """Forget a partition that another process has now, but for what was counted here."""
        if partition.number in self.work[partition.stream].partitions:
            self._count_anew(partition)
            del self.work[partition.stream].partitions[partition.number]

    def _count_anew(self, partition: Partition) -> None:
        """Keep what was counted of a partition: each taking counts from 0, and totals go on."""
        part, before = self.part(partition), self.work[partition.stream].before[partition.number]
        for name in COUNTS:
            before[name] += getattr(part, name)
            setattr(part, name, 0)

    def turn(self, partition: Partition, status: Status) -> None:
        """Show a new stage of a partition's life."""
        part = self.part(partition)
        part.status, part.reason, part.message = status, None, ""
        if status is Status.TAKING:
            self._count_anew(partition)
        if status is not Status.TAKING:  # taking says nothing of the transport yet
            part.lost = part.lacking = ""

    def retry(self, partition: Partition, error: str) -> None:
        """Show that the transport was lost, and the class of the error."""
        self.turn(partition, Status.RETRYING)
        self.part(partition).lost = error
        self.part(partition).refused = ""

    def refuse(self, partition: Partition, named: str, *, now: float) -> None:
        """Show that the transport answers, but refuses this process.

        Some answers name no topic: then the same error with a topic says more.
        """
        before = self.part(partition).refused
        self.turn(partition, Status.RETRYING)
        part = self.part(partition)
        part.refused_at = now
        part.refused = before if before.startswith(named) else named

    def lack(self, partition: Partition, topic: str) -> None:
        """Show that a topic lacks the partition, which its input has."""
        self.turn(partition, Status.RETRYING)
        self.part(partition).lacking = topic

    def running(self, partition: Partition, work: PartitionWork) -> None:
        """Show what is durable of a partition that was restored."""
        self.turn(partition, Status.RUNNING)
        part = self.part(partition)
        part.position, part.low_water = work.point.next_offset, work.point.low_water
        part.keys = len(work.engine)

    def wait(self, partition: Partition, message: str) -> None:
        """Show that the partition waits for a process with a later configuration."""
        self.turn(partition, Status.WAITING)
        self.part(partition).message = message

    def halt(self, partition: Partition, reason: Reason, message: str) -> None:
        """Show that the partition has stopped and needs an operator."""
        part = self.part(partition)
        part.status, part.reason, part.message = Status.HALTED, reason, message
        part.lost = part.refused = part.lacking = ""

    def committed(
        self, partition: Partition, cut: Cut, *, slots: int, keys_refused: int, now: float
    ) -> None:
        """Show what a commit published, once it is durable."""
        part, point = self.part(partition), cut.checkpoint
        part.slots = slots
        part.position, part.low_water = point.next_offset, point.low_water
        part.keys, part.keys_refused = point.rows, keys_refused
        if cut.releases:
            part.published_at = now
        part.blocks += cut.blocks
