"""The join of one partition's requests and outcomes: a pure state machine.

Rules:

1. Each request becomes one event, at its place in the order of the requests, whatever its outcomes.
2. A request takes the outcomes of its key and id that are younger than its own time less the grace
   (an outcome may be appended a little before its request) and not younger than its deadline: its
   time plus the window. If an earlier request has the same key and id, the outcomes must also be
   younger than that one's deadline. So no outcome enters two events.
3. A request within the window of an earlier one with its key and id is a repetition: it takes no
   outcomes, becomes a null event, and begins the window anew. So the requests of one window and
   three graces before are enough to say which request takes what, without any state.
4. Events leave in the order of the requests. An event leaves when its deadline and a grace have
   passed, by the clock or by the time of a request that was read (`due`), and when all outcomes
   that may count have been read (`until`). An outcome moves this neither forward nor back.
5. Outcomes are combined in the order of their partition.
6. A request without an id, with unreadable content, or over a person's cap is a null event.
7. In a quiet time the clock stands for a newest request (`reach`), so that logs may expire:
   otherwise the last requests and their outcomes would be kept until the next request comes.

Only positions (and the persons' counts) are saved: open requests are read again from the logs.
`Positions` says from where: requests from `history` on, of which those before `requests` have left
already, and outcomes from `outcomes` on.

The timestamps are the brokers', which differ by less than the grace. Given the timestamps, the
events are a function of the two logs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamdp.assembly.kept import KeptRequest, KeptRequests, Name, name_of
from streamdp.assembly.persons import Persons
from streamdp.assembly.public import PERSON_HEADER, TELLING, Headers, Key, event_headers, only
from streamdp.assembly.recipes import AssemblyRecipe, Unreadable, Value
from streamdp.assembly.rules import NULL_LOSS, Encode, Rules
from streamdp.core.errors import StateMismatch

Event = tuple[Key, Value, Headers]

_EVER = -(1 << 62)  # before any time
_MOST_KNOWN = 1024  # encodings, and gains, that are cached
_SPANS = 64  # of outcomes' positions in a window: how finely the place to begin again is known


@dataclass(frozen=True, slots=True)
class Positions:
    """Where reading starts again after a crash."""

    requests: int  # the first request whose event has not left
    history: int  # the first request that may still decide about a later one; ≤ `requests`
    outcomes: int  # the first outcome that an open or a later request may need


@dataclass(frozen=True, slots=True)
class _Outcome:
    """An outcome that no request has taken yet."""

    timestamp: int
    value: Value = field(repr=False)


class _Again(NamedTuple):
    """What earlier requests with the same name mean for a request."""

    after: int | None  # takes outcomes younger than this; None: takes none
    until: int  # the latest deadline of the name, its own included
    before: int  # the latest deadline before its own


class Join:
    """One partition's join."""

    def __init__(
        self,
        rules: Rules,
        recipe: AssemblyRecipe,
        encode: Encode,
        *,
        positions: Positions,
        persons: Persons | None = None,
    ) -> None:
        self._rules, self._recipe, self._encode = rules, recipe, encode
        self._persons = persons
        self._not_copied = TELLING if recipe.names_arm else frozenset[str]()
        self._restored, self._left = positions, positions.requests
        self._request_at, self._outcome_at = positions.history, positions.outcomes
        self._kept = KeptRequests()
        self._again: dict[int, _Again] = {}  # of requests whose name an earlier one has too
        self._early: dict[Name, list[_Outcome]] = {}
        self._early_names: deque[tuple[int, Name]] = deque()
        self._spans: deque[tuple[int, int, int]] = deque()
        """Of outcomes, over at least a fraction of a window each: start, youngest, first."""
        self._newest = _EVER  # of the requests
        self._reached = _EVER  # before this time, every request was read
        self._null = (NULL_LOSS,) * recipe.gains
        self._nothing = (rules.default,) * recipe.gains
        self._length = len(encode(self._null))
        self._known: dict[tuple[Any, ...], bytes] = {}
        self._shared: dict[tuple[float, ...], tuple[float, ...]] = {}

    # -- what is read ------------------------------------------------------------------------------

    @property
    def request_at(self) -> int:
        """The offset of the next request to read."""
        return self._request_at

    @property
    def outcome_at(self) -> int:
        """The offset of the next outcome to read."""
        return self._outcome_at

    @property
    def open(self) -> int:
        """The number of requests that wait for their deadline. Public."""
        return self._kept.end - self._kept.left

    def request(
        self, offset: int, timestamp: int, key: Key, headers: Headers, value: Value
    ) -> None:
        """Read the next request of the partition."""
        kept = self._kept
        self._request_at = offset + 1
        self._newest = max(self._newest, timestamp)
        name = name_of(key, headers)
        number = kept.end
        before = kept.add(offset, timestamp, name, key, headers, value)
        if before is not None:
            until = self._until(before)
            self._again[number] = _Again(
                self._takes_after(until, timestamp),
                max(until, self._rules.deadline(timestamp)),
                before,
            )
        if offset < self._left:
            kept.take()
        elif name is not None and self._early:
            for early in self._early.get(name, ()):
                self._offer(number, early.timestamp, early.value)

    def skip_requests(self, offset: int) -> None:
        """Note that the partition has no unread request before this offset."""
        self._request_at = max(self._request_at, offset)

    def outcomes(
        self,
        timestamps: Sequence[int],
        keys: Sequence[Key],
        headers: Sequence[Headers],
        values: Sequence[Value],
        *,
        next_offset: int,
    ) -> None:
        """Read the next outcomes of the partition, up to an offset."""
        if timestamps:
            youngest, spans = max(timestamps), self._spans
            if spans and youngest - spans[-1][2] < self._rules.window // _SPANS:
                start, before, oldest = spans[-1]
                spans[-1] = (start, max(before, youngest), oldest)
            else:
                spans.append((self._outcome_at, youngest, youngest))
        self._outcome_at = next_offset
        for timestamp, key, pairs, value in zip(timestamps, keys, headers, values, strict=True):
            name = name_of(key, pairs)
            if name is not None:
                self._outcome(name, timestamp, value)

    def _outcome(self, name: Name, timestamp: int, value: Value) -> None:
        """Give an outcome to the request that takes it, or keep it for a later request.

        No time belongs to two requests of a name, so the order of asking does not matter.
        """
        number = self._kept.find(name)
        while number is not None and number >= self._kept.left:
            if self._offer(number, timestamp, value):
                return
            again = self._again.get(number)
            number = None if again is None else again.before
        if timestamp > self._oldest_of_coming():
            self._early.setdefault(name, []).append(_Outcome(timestamp, value))
            self._early_names.append((timestamp, name))

    def _offer(self, number: int, timestamp: int, value: Value) -> bool:
        """Whether an open request takes an outcome; a readable one then counts."""
        time, before = self._kept.seen(number)
        after = self._after(number, time)
        if after is None or not after < timestamp <= self._rules.deadline(time):
            return False
        recipe = self._recipe
        try:
            content = self._kept.record(number).value if recipe.asks else None
            gains = recipe.answer(recipe.question(content), value)
        except Unreadable:
            gains = None
        if gains is not None:
            combined = self._rules.combined(before, gains)
            if len(self._shared) == _MOST_KNOWN:
                self._shared.clear()
            # Most requests with an outcome have the same gains: one object for all of them.
            self._kept.set_gains(number, self._shared.setdefault(combined, combined))
        return True

    def _takes_after(self, until: int, timestamp: int) -> int | None:
        """The time after which a request takes outcomes, by the deadline of those before it.

        None if it repeats an earlier request.
        """
        return None if timestamp <= until else max(until, timestamp - self._rules.grace)

    def _after(self, number: int, time: int) -> int | None:
        """The same, for a kept request of this time that has an id."""
        again = self._again.get(number)
        return time - self._rules.grace if again is None else again.after

    def _until(self, number: int) -> int:
        """The latest deadline of a request and of those of its name before it."""
        again = self._again.get(number)
        return self._rules.deadline(self._kept.time(number)) if again is None else again.until

    # -- what leaves -------------------------------------------------------------------------------

    def due(self, now: int, *, most: int) -> int:
        """The number of events that may leave at a time, by requests alone."""
        horizon = max(now, self._newest)
        count = 0
        for timestamp in self._kept.times(min(most, self.open)):
            if self._rules.leaves(timestamp) > horizon:
                break
            count += 1
        return count

    def until(self, count: int) -> int:
        """The time up to which all outcomes must be read before this many events leave."""
        return max(map(self._rules.leaves, self._kept.times(count)), default=_EVER)

    def last_of(self, count: int) -> int:
        """The offset of the newest of the `count` oldest open requests."""
        return self._kept.offset(self._kept.left + count - 1)

    def next_due(self) -> int | None:
        """The time at which the oldest open request may leave by the clock."""
        return self._rules.leaves(self._kept.time(self._kept.left)) if self.open else None

    def may_move_on(self, time: int) -> bool:
        """Whether nothing that was read matters any more if every request before a time was read.

        A later request is younger than this time less a grace, and looks back a grace (rule 2).
        """
        decided = self._rules.leaves(max(self._newest, self._reached)) + 2 * self._rules.grace
        return not self.open and decided <= time

    def reach(self, time: int) -> int:
        """Note that every request before a time was read; return from when on outcomes may matter.

        If the time is wrong, a repetition may count as a first request, but still no outcome enters
        two events: `positions` then lie behind the outcomes that were taken. When a request leaves
        does not depend on this.
        """
        self._reached = max(self._reached, time)
        return self._oldest_of_coming()

    def emit(self, count: int) -> list[Event]:
        """Make events of the oldest requests; all outcomes that may count must have been read."""
        return [self._event(self._kept.left) for _ in range(count)]

    def _event(self, number: int) -> Event:
        """The oldest open request as an event."""
        request = self._kept.take()
        self._left = request.offset + 1
        value = self._encoded(self._losses(number, request))
        return request.key, value, event_headers(request.headers, but=self._not_copied)

    def _encoded(self, losses: tuple[Any, ...]) -> bytes:
        """An event's bytes; most events have one of a few losses, so some encodings are cached."""
        if losses not in self._known:
            value = self._encode(losses)
            if len(value) != self._length:
                raise StateMismatch(
                    "an event",
                    "its length would reveal something of its content",
                    expected=f"{self._length} bytes, as every event",
                    got="an event of another length (not shown: private)",
                )
            if len(self._known) == _MOST_KNOWN:
                self._known.clear()
            self._known[losses] = value
        return self._known[losses]

    def _losses(self, number: int, request: KeptRequest) -> tuple[Any, ...]:
        counts = request.named and self._after(number, request.time) is not None
        if self._persons is not None:
            person = only(request.headers, PERSON_HEADER)
            counts = self._persons.counts(request.key, person, request.time) and counts
        try:
            asked = self._recipe.question(request.value)
        except Unreadable:
            counts = False
        if not counts:
            return self._null
        losses = self._nothing
        if request.gains is not None:
            losses = tuple([1.0 - min(1.0, gain) for gain in request.gains])
        if self._recipe.names_arm:
            assert isinstance(asked, tuple)
            return (*losses, *asked)
        return losses

    # -- what must be read again -------------------------------------------------------------------

    @property
    def positions(self) -> Positions:
        """Where reading starts again after a crash."""
        if self._request_at < self._restored.requests:  # history is still being read again
            return self._restored
        self._forget()
        kept = self._kept
        requests = kept.offset(kept.left) if self.open else max(self._request_at, self._left)
        history = kept.offset(kept.first) if len(kept) else requests
        outcomes = self._spans[0][0] if self._spans else self._outcome_at
        return Positions(requests, history, outcomes)

    def _forget(self) -> None:
        """Drop what decides nothing any more, even after a crash."""
        oldest, kept = self._oldest_of_open(), self._kept
        while kept.first < kept.left:
            if kept.name(kept.first) is not None:
                if self._until(kept.first) > oldest:
                    break
                self._again.pop(kept.first, None)
            kept.forget()
        while self._spans and self._spans[0][1] <= oldest:
            self._spans.popleft()
        oldest = self._oldest_of_coming()
        while self._early_names and self._early_names[0][0] <= oldest:
            _, name = self._early_names.popleft()
            young = [outcome for outcome in self._early.pop(name, ()) if outcome.timestamp > oldest]
            if young:
                self._early[name] = young

    def _oldest_of_coming(self) -> int:
        """The time before which no outcome or deadline matters to a request that is yet to be read.

        Such a request is later than the newest less a grace, and looks back a grace.
        """
        return max(self._newest, self._reached) - 2 * self._rules.grace

    def _oldest_of_open(self) -> int:
        """The same for open requests: none is older than the first by more than a grace."""
        if not self.open:
            return self._oldest_of_coming()
        first = min(self._kept.time(self._kept.left), self._newest)
        return first - 2 * self._rules.grace
