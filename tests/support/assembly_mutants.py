"""Joins that break one rule each. Kept here, never in the product."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

from streamdp.assembly.join import Event, Join, Positions
from streamdp.assembly.kept import KeptRequest, KeptRequests, Name, _parts
from streamdp.assembly.persons import DAY, Persons, _Stretch
from streamdp.assembly.public import PERSON_HEADER, Key
from streamdp.assembly.recipes import AssemblyRecipe, Unreadable, Value


class Seeing(Join):
    """Can tell of an open request whether anything came of it."""

    def _came(self, at: int) -> bool:
        return self._kept.seen(self._kept.left + at)[1] is not None


class EmitsTwice(Join):
    """Says that the newest event has not left yet."""

    @property
    def positions(self) -> Positions:
        positions = super().positions
        before = max(0, positions.requests - 1)
        return replace(positions, requests=before, history=min(positions.history, before))


class EmitsEarly(Seeing):
    """Lets a request leave because a click came."""

    def due(self, now: int, *, most: int) -> int:
        count = super().due(now, most=most)
        while count < self.open and self._came(count):
            count += 1
        return count


class DropsTheSilent(Seeing):
    """Drops a request for which nothing came."""

    def emit(self, count: int) -> list[Event]:
        silent = [not self._came(at) for at in range(count)]
        events = super().emit(count)
        return [event for event, none in zip(events, silent, strict=True) if not none]


class OrdersByOutcomes(Seeing):
    """Lets clicked requests go first."""

    def emit(self, count: int) -> list[Event]:
        silent = [not self._came(at) for at in range(count)]
        paired = sorted(zip(silent, super().emit(count), strict=True), key=lambda pair: pair[0])
        return [event for _, event in paired]


class TakesPastTheDeadline(Join):
    """Counts the grace as a part of the window."""

    def _offer(self, number: int, timestamp: int, value: Value) -> bool:
        late = timestamp - self._rules.deadline(self._kept.time(number))
        return super()._offer(number, timestamp - max(0, min(late, 50)), value)


class CountsLateClicks(Join):
    """Takes whatever comes as long as the request is there."""

    def _offer(self, number: int, timestamp: int, value: Value) -> bool:
        deadline = self._rules.deadline(self._kept.time(number))
        return super()._offer(number, min(timestamp, deadline), value)


class ReusesClicks(Join):
    """Takes no notice of earlier requests of the same id."""

    def _takes_after(self, until: int, timestamp: int) -> int | None:
        return timestamp - self._rules.window


class TakesForBoth(Join):
    """Gives an outcome to every open request of its id."""

    def _takes_after(self, until: int, timestamp: int) -> int | None:
        return timestamp - self._rules.grace

    def _outcome(self, name: Name, timestamp: int, value: Value) -> None:
        number, taken = self._kept.find(name), False
        while number is not None and number >= self._kept.left:
            taken = self._offer(number, timestamp, value) or taken
            number = self._again[number].before if number in self._again else None
        if not taken:
            super()._outcome(name, timestamp, value)


class TellsInAHeader(Seeing):
    """Derives a header from content."""

    def _event(self, number: int) -> Event:
        clicked = b"%d" % self._came(0)
        key, value, headers = super()._event(number)
        return key, value, [*headers, ("clicked", clicked)]


class TellsThePerson(Join):
    """Writes the person into the event."""

    def _event(self, number: int) -> Event:
        headers = self._kept.record(number).headers
        key, value, _ = super()._event(number)
        return key, value, headers


class TellsByItsLength(Seeing):
    """Writes an event of which something came at its own length, unpadded."""

    def _event(self, number: int) -> Event:
        came = self._came(0)
        key, value, headers = super()._event(number)
        return key, value.rstrip() if came and value else value, headers


class ReadsTooLittle(Join):
    """Lets events leave before all outcomes have been read."""

    def until(self, count: int) -> int:
        return super().until(count) - self._rules.window


class ForgetsHistory(Join):
    """Reads only requests again that have not left."""

    @property
    def positions(self) -> Positions:
        positions = super().positions
        return replace(positions, history=positions.requests)


class ForgetsHistoryByTheNewest(Join):
    """Keeps what decides about later requests, not what has decided about open ones."""

    def _oldest_of_open(self) -> int:
        return self._oldest_of_coming()


class ReachesTooFar(Join):
    """Takes requests that are yet to come for read in a quiet time."""

    def reach(self, time: int) -> int:
        return super().reach(time + self._rules.window)


class ForgetsOutcomes(Join):
    """Goes on where it has read, not where open requests begin."""

    @property
    def positions(self) -> Positions:
        return replace(super().positions, outcomes=self._outcome_at)


class IgnoresEarlyOutcomes(Join):
    """Drops an outcome whose request was not read yet."""

    def _oldest_of_coming(self) -> int:
        return 1 << 62


class _ById(KeptRequests):
    """Finds requests by the id alone."""

    def find(self, name: Name) -> int | None:
        for number in range(self.end - 1, self.first - 1, -1):
            own = self.name(number)
            if own is not None and _parts(own)[1] == _parts(name)[1]:
                return number
        return None

    def add(self, *arguments: Any) -> int | None:
        name = arguments[2]
        before = None if name is None else self.find(name)
        super().add(*arguments)
        return before


class JoinsAcrossKeys(Join):
    """Looks at the id alone."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._kept = _ById()


class DefaultsTheNameless(Join):
    """Takes a request without an id for one that nobody has answered."""

    def _event(self, number: int) -> Event:
        request = self._kept.record(number)
        takes = request.named and self._after(number, request.time) is not None
        key, value, headers = super()._event(number)
        return key, value if takes else self._encode(self._nothing), headers


MUTANTS = [
    EmitsTwice, EmitsEarly, DropsTheSilent, OrdersByOutcomes, TakesPastTheDeadline,
    CountsLateClicks, ReusesClicks, TakesForBoth, TellsInAHeader, TellsThePerson,
    TellsByItsLength, ReadsTooLittle,
    ForgetsHistory, ForgetsHistoryByTheNewest, ReachesTooFar, ForgetsOutcomes, IgnoresEarlyOutcomes,
    JoinsAcrossKeys, DefaultsTheNameless,
]  # fmt: skip


class SlidingCap(Persons):
    """Looks back over so many slots, wherever they begin."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._seen: dict[Key, deque[bytes | None]] = {}

    def counts(self, key: Key, person: bytes | None, timestamp: int) -> bool:
        assert self._cap.slots is not None
        seen = self._seen.setdefault(key, deque(maxlen=self._cap.slots - 1))
        counts = person is not None and seen.count(person) < self._cap.most
        seen.append(person if counts else None)
        super().counts(key, person, timestamp)
        return counts


class UnsavedCap(Persons):
    """Begins anew after each crash."""

    def save(self) -> dict[Key, bytes]:
        return {}


class GenerousCap(Persons):
    """Counts a request that names no person."""

    def counts(self, key: Key, person: bytes | None, timestamp: int) -> bool:
        return super().counts(key, person, timestamp) or person is None


class CapsWhatCame(Join):
    """Counts a person's request only if something usable came of it."""

    def _losses(self, number: int, request: KeptRequest) -> tuple[float, ...]:
        persons = self._persons
        if request.gains is None:
            self._persons = None
        try:
            return super()._losses(number, request)
        finally:
            self._persons = persons


def _readable(recipe: AssemblyRecipe, value: Value) -> bool:
    try:
        recipe.question(value)
    except Unreadable:
        return False
    return True


class CapsWhatCanBeRead(Join):
    """Gives a slot of a person's stretch only to requests that can be read."""

    def _losses(self, number: int, request: KeptRequest) -> tuple[float, ...]:
        readable = _readable(self._recipe, request.value)
        return super()._losses(number, request) if readable else self._null


class CapsUnreadableForNobody(Join):
    """Gives a request that cannot be read its slot, but counts it for no person."""

    def _losses(self, number: int, request: KeptRequest) -> tuple[float, ...]:
        if not _readable(self._recipe, request.value):
            headers = [pair for pair in request.headers if pair[0] != PERSON_HEADER]
            request = request._replace(headers=headers)
        return super()._losses(number, request)


CONTENT_MUTANTS = [CapsWhatCame, CapsWhatCanBeRead, CapsUnreadableForNobody]
"""Caps that one request's content, or its outcomes, turn from other events of its person."""


PERSON_MUTANTS = [SlidingCap, UnsavedCap, GenerousCap]


class TakesNobodyForAPerson(Persons):
    """Counts requests that name no person as those of one more person."""

    def counts(self, key: Key, person: bytes | None, timestamp: int) -> bool:
        named = b"" if person is None else person
        return super().counts(key, named, timestamp) and person is not None


class SlidingDay(Persons):
    """Looks back over 24 hours, whenever they begin."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._seen: dict[Key, list[tuple[bytes | None, int]]] = {}

    def counts(self, key: Key, person: bytes | None, timestamp: int) -> bool:
        seen = self._seen.setdefault(key, [])
        seen[:] = [visit for visit in seen if visit[1] > timestamp - DAY]
        counts = person is not None and [p for p, _ in seen].count(person) < self._cap.most
        if counts:
            seen.append((person, timestamp))
        super().counts(key, person, timestamp)
        return counts


class DayThatBeginsTwice(Persons):
    """Takes each record's own day, so that a clock that goes back begins a day anew."""

    def _begins(self, stretch: _Stretch, timestamp: int) -> bool:
        before, stretch.at = stretch.at, timestamp // DAY
        return stretch.at != before


class EndlessDay(Persons):
    """Keeps however many persons come."""

    def counts(self, key: Key, person: bytes | None, timestamp: int) -> bool:
        cap, self._cap = self._cap, replace(self._cap, most_persons=1 << 30)
        try:
            return super().counts(key, person, timestamp)
        finally:
            self._cap = cap


DAY_MUTANTS = [
    SlidingDay, DayThatBeginsTwice, EndlessDay, UnsavedCap, GenerousCap, TakesNobodyForAPerson,
]  # fmt: skip
