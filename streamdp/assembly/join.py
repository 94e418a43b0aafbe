"""The join of one partition's requests and outcomes: a pure state machine.

Rules:

1. Each request becomes one event, at its place in the order of the requests, whatever came of it.
2. A request takes the outcomes of its key and id that are younger than its own time less the grace
   (an outcome may be appended a little before its request), and not younger than its deadline, its
   time plus the window. Where an earlier request of the same key and id was there, they are younger
   than that one's deadline too. So no outcome enters two events.
3. A request within the window of an earlier one of its key and id repeats it. It takes no outcomes,
   is a null event, and begins the window anew. So who takes what can be seen from the requests of
   one window and three times the grace before, without any state.
4. Events leave in the order of the requests, each when its deadline and a grace have passed, by the
   clock or by the time of a request that was read (`due`), and all outcomes have been read that may
   count (`until`). An outcome moves this neither forward nor back.
5. Outcomes are combined in the order of their partition.
6. A request without an id, with content that cannot be read, or over a person's cap is a null
   event.

Nothing here is saved but positions (and the persons' counts): what is open is read again from the
logs. `Positions` says from where: requests from `history` on, of which those before `requests` have
left already, and outcomes from `outcomes` on.

The timestamps are the brokers', which differ by less than the grace; as far as they do, the events
are a function of the two logs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from streamdp.assembly.persons import Persons
from streamdp.assembly.public import (
    PERSON_HEADER,
    REQUEST_HEADER,
    Headers,
    Key,
    event_headers,
    only,
)
from streamdp.assembly.recipes import Recipe, Unreadable, Value
from streamdp.assembly.rules import Gains, Rules
from streamdp.core.errors import StateMismatch, complaint

Name = tuple[Key, bytes]
"""A request's key and id."""

Encode = Callable[[Sequence[float]], bytes]
"""Losses as an event's bytes, of one length whatever they are."""

Event = tuple[Key, Value, Headers]

NULL_LOSS = 0.5
_EVER = -(1 << 62)  # before any time
_MOST_KNOWN = 1024  # encodings that are remembered
_SPANS = 64  # of outcomes' positions in a window: so finely is remembered where to begin again


@dataclass(frozen=True, slots=True)
class Positions:
    """Where reading goes on after a crash."""

    requests: int  # the first request whose event has not left
    history: int  # the first request that may still decide who takes what; ≤ `requests`
    outcomes: int  # the first outcome that an open or a later request may need


@dataclass(slots=True, eq=False)
class _Request:
    """An open request."""

    offset: int
    timestamp: int
    key: Key
    headers: Headers = field(repr=False)
    value: Value = field(repr=False)
    after: int | None  # takes outcomes younger than this; None: takes none
    gains: list[float] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """An outcome that no request has asked for yet."""

    timestamp: int
    value: Value = field(repr=False)


class Join:
    """One partition's join."""

    def __init__(
        self,
        rules: Rules,
        recipe: Recipe,
        encode: Encode,
        *,
        positions: Positions,
        persons: Persons | None = None,
    ) -> None:
        self._rules, self._recipe, self._encode = rules, recipe, encode
        self._persons = persons
        self._restored, self._left = positions, positions.requests
        self._request_at, self._outcome_at = positions.history, positions.outcomes
        self._open: deque[_Request] = deque()
        self._takers: dict[Name, deque[_Request]] = {}
        self._history: deque[tuple[int, int, Name]] = deque()  # offset, deadline, name
        self._until: dict[Name, int] = {}
        self._early: dict[Name, list[_Outcome]] = {}
        self._early_names: deque[tuple[int, Name]] = deque()
        self._spans: deque[tuple[int, int, int]] = deque()  # of outcomes: start, youngest, first
        self._newest = _EVER
        self._null = [NULL_LOSS] * recipe.gains
        self._nothing = [rules.default] * recipe.gains
        self._length = len(encode(self._null))
        self._known: dict[tuple[float, ...], bytes] = {}

    # -- what is read ------------------------------------------------------------------------------

    @property
    def request_at(self) -> int:
        """Where reading requests goes on."""
        return self._request_at

    @property
    def outcome_at(self) -> int:
        """Where reading outcomes goes on."""
        return self._outcome_at

    @property
    def open(self) -> int:
        """How many requests wait for their deadline. Public."""
        return len(self._open)

    def request(
        self, offset: int, timestamp: int, key: Key, headers: Headers, value: Value
    ) -> None:
        """The next request of the partition."""
        self._request_at = offset + 1
        self._newest = max(self._newest, timestamp)
        name, after = self._name(key, headers), None
        if name is not None:
            after = self._takes_after(name, timestamp)
            until = self._rules.deadline(timestamp)
            self._until[name] = max(self._until.get(name, _EVER), until)
            self._history.append((offset, until, name))
        if offset >= self._left:
            request = _Request(offset, timestamp, key, headers, value, after)
            self._open.append(request)
            if name is not None and after is not None:
                self._takers.setdefault(name, deque()).append(request)
                for outcome in self._early.get(name, ()):
                    self._offer(request, outcome)

    def skip_requests(self, offset: int) -> None:
        """There is no request before this offset that was not read."""
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
        """The next outcomes of the partition, up to an offset."""
        if timestamps:
            self._note_span(max(timestamps))
        self._outcome_at = next_offset
        for timestamp, key, pairs, value in zip(timestamps, keys, headers, values, strict=True):
            name = self._name(key, pairs)
            if name is not None:
                self._outcome(name, _Outcome(timestamp, value))

    def _note_span(self, youngest: int) -> None:
        """Remember where these outcomes begin; a span is not much less than a part of a window."""
        if self._spans and youngest - self._spans[-1][2] < self._rules.window // _SPANS:
            start, before, oldest = self._spans[-1]
            self._spans[-1] = (start, max(before, youngest), oldest)
        else:
            self._spans.append((self._outcome_at, youngest, youngest))

    def _outcome(self, name: Name, outcome: _Outcome) -> None:
        """Give an outcome to the request that takes it, or keep it for one that may come."""
        for request in self._takers.get(name, ()):
            if self._offer(request, outcome):
                return
        if outcome.timestamp > self._oldest_of_coming():
            self._early.setdefault(name, []).append(outcome)
            self._early_names.append((outcome.timestamp, name))

    def _offer(self, request: _Request, outcome: _Outcome) -> bool:
        """Whether a request takes an outcome; then it counts, if it can be read."""
        assert request.after is not None
        deadline = self._rules.deadline(request.timestamp)
        if not request.after < outcome.timestamp <= deadline:
            return False
        try:
            gains = self._recipe.answer(self._recipe.question(request.value), outcome.value)
        except Unreadable:
            gains = None
        if gains is not None:
            request.gains = self._rules.combined(request.gains, gains)
        return True

    def _takes_after(self, name: Name, timestamp: int) -> int | None:
        """After which moment a request takes outcomes; None if it repeats an earlier one."""
        until = self._until.get(name, _EVER)
        return None if timestamp <= until else max(until, timestamp - self._rules.grace)

    @staticmethod
    def _name(key: Key, headers: Headers) -> Name | None:
        found = only(headers, REQUEST_HEADER)
        return None if found is None else (key, found)

    # -- what leaves -------------------------------------------------------------------------------

    def due(self, now: int, *, most: int) -> int:
        """How many events may leave at a moment; none for what came of them."""
        horizon = max(now, self._newest)
        count = 0
        for request in self._open:
            if count == most or self._rules.leaves(request.timestamp) > horizon:
                break
            count += 1
        return count

    def until(self, count: int) -> int:
        """The time up to which all outcomes must have been read before so many events leave."""
        times = (self._open[at].timestamp for at in range(count))
        return max(map(self._rules.leaves, times), default=_EVER)

    def last_of(self, count: int) -> int:
        """The offset of the newest of so many of the oldest open requests."""
        return self._open[count - 1].offset

    def next_due(self) -> int | None:
        """The moment at which the oldest open request may leave by the clock."""
        return self._rules.leaves(self._open[0].timestamp) if self._open else None

    def emit(self, count: int) -> list[Event]:
        """The oldest requests as events: all outcomes that may count have been read."""
        return [self._event(self._open.popleft()) for _ in range(count)]

    def _event(self, request: _Request) -> Event:
        self._left = request.offset + 1
        if request.after is not None:
            self._close(request)
        value = self._encoded(tuple(self._losses(request)))
        return request.key, value, event_headers(request.headers)

    def _encoded(self, losses: tuple[float, ...]) -> bytes:
        """An event's bytes; few losses are the losses of most events, so some are remembered."""
        if losses not in self._known:
            value = self._encode(losses)
            if len(value) != self._length:
                raise StateMismatch(
                    complaint(
                        "an event",
                        "its length tells of its content",
                        expected=f"{self._length} bytes, as every event",
                        got="another length",
                    )
                )
            if len(self._known) == _MOST_KNOWN:
                self._known.clear()
            self._known[losses] = value
        return self._known[losses]

    def _losses(self, request: _Request) -> Sequence[float]:
        counts = request.after is not None
        if self._persons is not None:
            person = only(request.headers, PERSON_HEADER)
            counts = self._persons.counts(request.key, person) and counts
        if not counts or not self._readable(request):
            return self._null
        if request.gains is None:
            return self._nothing
        return _as_losses(request.gains)

    def _readable(self, request: _Request) -> bool:
        try:
            self._recipe.question(request.value)
        except Unreadable:
            return False
        return True

    def _close(self, request: _Request) -> None:
        """A request that has left takes no outcomes any more."""
        name = self._name(request.key, request.headers)
        assert name is not None
        takers = self._takers[name]
        assert takers.popleft() is request
        if not takers:
            del self._takers[name]

    # -- what must be read again -------------------------------------------------------------------

    @property
    def positions(self) -> Positions:
        """Where reading goes on after a crash."""
        if self._request_at < self._restored.requests:  # history is still being read again
            return self._restored
        self._forget()
        requests = self._open[0].offset if self._open else max(self._request_at, self._left)
        history = self._history[0][0] if self._history else requests
        outcomes = self._spans[0][0] if self._spans else self._outcome_at
        return Positions(requests, min(history, requests), outcomes)

    def _forget(self) -> None:
        """Drop what decides nothing any more, be it after a crash."""
        oldest = self._oldest_of_open()
        while self._history and self._history[0][1] <= oldest:
            _, until, name = self._history.popleft()
            if self._until.get(name) == until:  # of two of one moment the first has gone
                del self._until[name]
        while self._spans and self._spans[0][1] <= oldest:
            self._spans.popleft()
        oldest = self._oldest_of_coming()
        while self._early_names and self._early_names[0][0] <= oldest:
            _, name = self._early_names.popleft()
            kept = [each for each in self._early.pop(name, ()) if each.timestamp > oldest]
            if kept:
                self._early[name] = kept

    def _oldest_of_coming(self) -> int:
        """Older outcomes, and deadlines, matter to no request that is yet to be read.

        Its time is later than the newest less a grace, and it looks back a grace.
        """
        return self._newest - 2 * self._rules.grace

    def _oldest_of_open(self) -> int:
        """Nor to any that is open: these are not older than the first by more than a grace."""
        if not self._open:
            return self._oldest_of_coming()
        first = min(self._open[0].timestamp, self._newest)
        return first - 2 * self._rules.grace


def _as_losses(gains: Gains) -> list[float]:
    """1 − gain, of sums clipped."""
    return [1.0 - min(1.0, gain) for gain in gains]
