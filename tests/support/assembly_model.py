"""Two logs, a join that reads them, crashes; and a join of one's own to hold it against.

`expected_events` is written from docs/loop.md alone: it sees both logs whole, and looks at each
request by itself. `Story` runs the state machine over logs that grow, with clocks that differ by
less than the grace, and drops all that was not committed at random moments. What a story does is a
function of its seed, and not of what outcomes say.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamdp.assembly.join import Join, Positions
from streamdp.assembly.persons import Cap, Persons
from streamdp.assembly.recipes import AssemblyRecipe, Errors, Rewards
from streamdp.assembly.rules import Combine, Rules
from streamdp.ports import Headers, Key, OutputRecord, Value

WINDOW, GRACE = 1000, 100
SECRET = b"a secret of the tests"

Record = tuple[int, Key, Headers, Value]
"""Timestamp, key, headers, value; the offset is the place in the log times the gap."""


@dataclass
class Logs:
    """A partition's requests and outcomes."""

    requests: list[Record] = field(default_factory=list)
    outcomes: list[Record] = field(default_factory=list)
    gap: int = 1


def encode(losses: Sequence[float]) -> bytes:
    """Losses at one width."""
    return json.dumps(list(losses)).encode().ljust(40)


def _number(value: Value, *path: str) -> float | None:
    """The number that a content has at a path."""
    try:
        found: Any = json.loads(value or b"")
        for name in path:
            found = found[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    usable = isinstance(found, int | float) and not isinstance(found, bool)
    return found if usable and math.isfinite(found) else None


# --- the join from the documents ------------------------------------------------------------------


READS_REQUESTS = Errors(("a",), scale=1.0)
"""One gain, as `Rewards`; but a request whose content cannot be read is a null event."""


def _gain(recipe: AssemblyRecipe, content: Value, outcome: Value) -> float | None:
    """What an outcome gives to a request that can be read."""
    if recipe != READS_REQUESTS:
        reward = _number(outcome, "reward")
        return None if reward is None else min(1.0, max(0.0, reward))
    prediction, truth = _number(content, "predictions", "a"), _number(outcome, "truth")
    assert prediction is not None
    return None if truth is None else 1.0 - min(1.0, abs(prediction - truth))


def expected_events(
    logs: Logs, rules: Rules, cap: Cap | None = None, *, recipe: AssemblyRecipe | None = None
) -> list[OutputRecord]:
    """Every request's event, in order."""
    recipe = recipe or Rewards()
    slots: Counter[Key] = Counter()
    days: Counter[Key] = Counter()
    persons: Counter[tuple[Key, int, bytes]] = Counter()
    events: list[OutputRecord] = []
    for at, (time, key, headers, _) in enumerate(logs.requests):
        counts = True
        if cap is not None:
            person = _one(headers, "streamdp-person")
            if cap.slots is None:
                stretch = days[key] = max(days[key], time // 86_400_000)
            else:
                stretch, slots[key] = slots[key] // cap.slots, slots[key] + 1
            there = {other for of, when, other in persons if (of, when) == (key, stretch)}
            if person is not None and (person in there or len(there) < cap.persons):
                persons[(key, stretch, person)] += 1
            counted = 0 if person is None else persons[(key, stretch, person)]
            counts = 1 <= counted <= cap.most
        loss = _loss(logs, at, time, rules, recipe) if counts else 0.5
        kept = [pair for pair in headers if pair[0] != "streamdp-person"]
        events.append((key, encode([loss]), kept))
    return events


def _loss(logs: Logs, at: int, time: int, rules: Rules, recipe: AssemblyRecipe) -> float:
    _, key, headers, content = logs.requests[at]
    name = _one(headers, "streamdp-request")
    unreadable = recipe == READS_REQUESTS and _number(content, "predictions", "a") is None
    if name is None or unreadable:
        return 0.5
    deadlines = [
        before + rules.window
        for before, other, pairs, _ in logs.requests[:at]
        if other == key and _one(pairs, "streamdp-request") == name
    ]
    if any(time <= deadline for deadline in deadlines):
        return 0.5
    after = max([time - rules.grace, *deadlines])
    taken = [
        _gain(recipe, content, value)
        for stamp, other, pairs, value in logs.outcomes
        if other == key and _one(pairs, "streamdp-request") == name
        if after < stamp <= time + rules.window
    ]
    gains = [gain for gain in taken if gain is not None]
    if not gains:
        return rules.default
    together = {
        Combine.FIRST: gains[0],
        Combine.LAST: gains[-1],
        Combine.MAX: max(gains),
        Combine.SUM: min(1.0, sum(gains)),
    }
    return 1.0 - together[rules.combine]


def _one(headers: Headers, name: str) -> bytes | None:
    values = [value for key, value in headers if key == name]
    return values[0] or None if len(values) == 1 else None


# --- the story ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """What anybody can see of a commit."""

    time: int
    lengths: tuple[int, ...]
    requests: int
    history: int


MakeJoin = Callable[..., Join]
MakePersons = Callable[..., Persons]


@dataclass
class Story:
    """A join at work on logs that grow, crashing at random."""

    logs: Logs
    rules: Rules
    seed: int
    join: MakeJoin = Join
    persons: MakePersons = Persons
    cap: Cap | None = None
    recipe: AssemblyRecipe = field(default_factory=Rewards)
    crashes: float = 0.1
    most: int = 7
    begin: int = 0  # the clock
    events: list[OutputRecord] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    crashed: int = 0
    there: int = 0  # how many outcomes have been written by now

    def run(self) -> Story:
        """To the end of the logs, and until every event has left."""
        random_ = random.Random(self.seed)
        durable, counted = Positions(0, 0, 0), dict[Key, bytes]()
        now = self.begin
        end = max(time for time, *_ in self.logs.requests + self.logs.outcomes)
        join = self._new(durable, counted)
        while True:
            now += random_.randrange(1, 60)
            self._read_requests(join, now, random_)
            count = join.due(now + random_.randrange(GRACE), most=self.most)
            if join.may_move_on(now) and not self._coming(join, now):
                self._read_outcomes(join, join.reach(now), now)
            self._read_outcomes(join, join.until(count), now)
            events = join.emit(count)
            positions = join.positions
            saved = join._persons.save() if join._persons is not None else {}
            if random_.random() < self.crashes / 2:
                self.crashed += 1  # before the commit was decided
                join = self._new(durable, counted)
                continue
            durable, counted = positions, counted | saved
            self.events += events
            self.steps.append(
                Step(now, tuple(len(value or b"") for _, value, _ in events),
                     positions.requests, positions.history)
            )  # fmt: skip
            if random_.random() < self.crashes / 2:
                self.crashed += 1
                join = self._new(durable, counted)
            done = now > end + 3 * (WINDOW + GRACE) and not join.open and not self._unread(join)
            if done or now > end + 100 * WINDOW:  # a broken join may never come to an end
                return self

    def _new(self, positions: Positions, counted: dict[Key, bytes]) -> Join:
        persons = self.persons(self.cap, counted) if self.cap else None
        return self.join(self.rules, self.recipe, encode, positions=positions, persons=persons)

    def _unread(self, join: Join) -> bool:
        return -(-join.request_at // self.logs.gap) < len(self.logs.requests)

    def _coming(self, join: Join, now: int) -> bool:
        """Whether a request is there that was not read."""
        at = -(-join.request_at // self.logs.gap)
        return at < len(self.logs.requests) and self.logs.requests[at][0] <= now

    def _read_requests(self, join: Join, now: int, random_: random.Random) -> None:
        """Some of the requests that are there by now, in order."""
        first = -(-join.request_at // self.logs.gap)
        for at in range(first, first + random_.randrange(12)):
            if at >= len(self.logs.requests) or self.logs.requests[at][0] > now:
                break
            time, key, headers, value = self.logs.requests[at]
            join.request(at * self.logs.gap, time, key, headers, value)

    def _read_outcomes(self, join: Join, until: int, now: int) -> None:
        """Up to the first that is not older; of those that are there, all."""
        gap = self.logs.gap
        first = -(-join.outcome_at // gap)
        log = self.logs.outcomes
        while self.there < len(log) and log[self.there][0] <= now + GRACE // 2:
            self.there += 1
        written = range(first, self.there)
        stop = next((at for at in written if log[at][0] >= until), self.there)
        batch = log[first:stop]
        if batch:
            times, keys, headers, values = map(list, zip(*batch, strict=True))
            join.outcomes(times, keys, headers, values, next_offset=stop * gap)


# --- logs -----------------------------------------------------------------------------------------

UNREADABLE, PREDICTS = b"content", b'{"predictions": {"a": %.2f}}'
SAYS = b'{"reward": %.2f, "truth": %.2f}'


def random_logs(seed: int, *, requests: int = 60, gap: int = 1) -> Logs:
    """Reused ids, late, early, doubled and unreadable records, clocks that jump, idle times.

    Each log's clock may go back by less than the grace, as when another broker leads it.
    """
    random_, contents = random.Random(seed), random.Random(seed)
    logs, time = Logs(gap=gap), 1000
    sent: list[tuple[int, Key, Headers]] = []
    for number in range(requests):
        time += random_.choice([0, 1, 5, 20, 100, 900])
        key: Key = random_.choice([None, b"", b"k1", b"k2"])
        name = b"r%d" % (number if random_.random() < 0.7 else random_.randrange(8))
        headers: Headers = [("streamdp-request", name)]
        if random_.random() < 0.05:
            headers = random_.choice([[], [*headers, *headers], [("streamdp-request", None)]])
        if random_.random() < 0.9:
            headers = [*headers, ("streamdp-person", b"p%d" % random_.randrange(3))]
        if random_.random() < 0.5:
            headers = [("streamdp-action", b"a"), *headers]
        said = UNREADABLE if contents.random() < 0.3 else PREDICTS % contents.random()
        logs.requests.append((time + random_.randrange(GRACE // 2), key, headers, said))
        sent.append((time, key, headers))
    outcomes: list[tuple[int, Record]] = []
    for when, key, headers in sent:
        for _ in range(random_.choice([0, 0, 1, 1, 2, 5])):
            at = when + random_.choice([-150, -60, -1, 0, 1, 300, 999, 1000, 1001, 1040, 1200])
            content = random_.choice([SAYS % ((random_.random(),) * 2), SAYS % (1, 1)])
            if random_.random() < 0.1:
                content = random_.choice([b"", b"nonsense", b'{"reward": "1"}', b"[" * 400])
            other = b"k3" if random_.random() < 0.05 else key
            stamp = max(0, at) + random_.randrange(GRACE // 2)
            outcomes.append((at, (stamp, other, _of(headers), content)))
    outcomes.sort(key=lambda row: row[0])
    logs.outcomes = [record for _, record in outcomes]
    return logs


def paused(logs: Logs) -> Logs:
    """The same logs, with a time in which nothing comes after every few windows."""

    def later(records: list[Record]) -> list[Record]:
        return [
            (at + 4 * WINDOW * (at // (3 * WINDOW)), key, headers, value)
            for at, key, headers, value in records
        ]

    return Logs(later(logs.requests), later(logs.outcomes), logs.gap)


def _of(headers: Headers) -> Headers:
    """The headers of an outcome: its request's id."""
    return [pair for pair in headers if pair[0] == "streamdp-request"]
