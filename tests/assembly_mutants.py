"""Joins that break one rule each. Kept here, never in the product."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from streamdp.assembly.join import Event, Join, Positions, _Outcome, _Request
from streamdp.assembly.persons import Persons
from streamdp.assembly.public import Key


class EmitsTwice(Join):
    """Says that the newest event has not left yet."""

    @property
    def positions(self) -> Positions:
        positions = super().positions
        before = max(0, positions.requests - 1)
        return replace(positions, requests=before, history=min(positions.history, before))


class EmitsEarly(Join):
    """Lets a request leave because a click came."""

    def due(self, now: int, *, most: int) -> int:
        count = super().due(now, most=most)
        while count < len(self._open) and self._open[count].gains is not None:
            count += 1
        return count


class DropsTheSilent(Join):
    """Drops a request for which nothing came."""

    def emit(self, count: int) -> list[Event]:
        silent = [self._open[at].gains is None for at in range(count)]
        events = super().emit(count)
        return [event for event, none in zip(events, silent, strict=True) if not none]


class OrdersByOutcomes(Join):
    """Lets clicked requests go first."""

    def emit(self, count: int) -> list[Event]:
        silent = [self._open[at].gains is None for at in range(count)]
        paired = sorted(zip(silent, super().emit(count), strict=True), key=lambda pair: pair[0])
        return [event for _, event in paired]


class TakesPastTheDeadline(Join):
    """Counts the grace as a part of the window."""

    def _offer(self, request: _Request, outcome: _Outcome) -> bool:
        late = outcome.timestamp - request.timestamp - self._rules.window
        kind = replace(outcome, timestamp=outcome.timestamp - max(0, min(late, 50)))
        return super()._offer(request, kind)


class CountsLateClicks(Join):
    """Takes whatever comes as long as the request is there."""

    def _offer(self, request: _Request, outcome: _Outcome) -> bool:
        deadline = self._rules.deadline(request.timestamp)
        return super()._offer(request, replace(outcome, timestamp=min(outcome.timestamp, deadline)))


class ReusesClicks(Join):
    """Takes no notice of earlier requests of the same id."""

    def _takes_after(self, name: tuple[Key, bytes], timestamp: int) -> int | None:
        return timestamp - self._rules.window


class TakesForBoth(Join):
    """Gives an outcome to every open request of its id."""

    def _takes_after(self, name: tuple[Key, bytes], timestamp: int) -> int | None:
        return timestamp - self._rules.grace

    def _outcome(self, name: tuple[Key, bytes], outcome: _Outcome) -> None:
        taken = [self._offer(request, outcome) for request in self._takers.get(name, ())]
        if not any(taken):
            super()._outcome(name, outcome)


class TellsInAHeader(Join):
    """Derives a header from content."""

    def _event(self, request: _Request) -> Event:
        clicked = b"%d" % (request.gains is not None)
        key, value, headers = super()._event(request)
        return key, value, [*headers, ("clicked", clicked)]


class TellsThePerson(Join):
    """Writes the person into the event."""

    def _event(self, request: _Request) -> Event:
        key, value, _ = super()._event(request)
        return key, value, request.headers


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


class ForgetsOutcomes(Join):
    """Goes on where it has read, not where open requests begin."""

    @property
    def positions(self) -> Positions:
        return replace(super().positions, outcomes=self._outcome_at)


class IgnoresEarlyOutcomes(Join):
    """Drops an outcome whose request was not read yet."""

    def _oldest_of_coming(self) -> int:
        return 1 << 62


class JoinsAcrossKeys(Join):
    """Looks at the id alone."""

    @staticmethod
    def _name(key: Key, headers: Any) -> tuple[Key, bytes] | None:
        return Join._name(None, headers)


class DefaultsTheNameless(Join):
    """Takes a request without an id for one that nobody has answered."""

    def _event(self, request: _Request) -> Event:
        if request.after is None:
            self._left = request.offset + 1
            key, _, headers = super()._event(request)
            return key, self._encode(self._nothing), headers
        return super()._event(request)


MUTANTS = [
    EmitsTwice, EmitsEarly, DropsTheSilent, OrdersByOutcomes, TakesPastTheDeadline,
    CountsLateClicks, ReusesClicks, TakesForBoth, TellsInAHeader, TellsThePerson, ReadsTooLittle,
    ForgetsHistory, ForgetsHistoryByTheNewest, ForgetsOutcomes, IgnoresEarlyOutcomes,
    JoinsAcrossKeys, DefaultsTheNameless,
]  # fmt: skip


class SlidingCap(Persons):
    """Looks back over so many slots, wherever they begin."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._seen: dict[Key, deque[bytes | None]] = {}

    def counts(self, key: Key, person: bytes | None) -> bool:
        seen = self._seen.setdefault(key, deque(maxlen=self._cap.slots - 1))
        counts = person is not None and seen.count(person) < self._cap.most
        seen.append(person if counts else None)
        super().counts(key, person)
        return counts


class UnsavedCap(Persons):
    """Begins anew after each crash."""

    def save(self) -> dict[Key, bytes]:
        return {}


class GenerousCap(Persons):
    """Counts a request that names no person."""

    def counts(self, key: Key, person: bytes | None) -> bool:
        return super().counts(key, person) or person is None


class CapsWhatCame(Join):
    """Counts a person's request only if something usable came of it."""

    def _losses(self, request: _Request) -> Sequence[float]:
        if request.gains is None:
            persons, self._persons = self._persons, None
            try:
                return super()._losses(request)
            finally:
                self._persons = persons
        return super()._losses(request)


PERSON_MUTANTS = [SlidingCap, UnsavedCap, GenerousCap]
