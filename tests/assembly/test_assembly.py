"""Is the join of requests and outcomes what the documents say, through crashes, and no more?"""

from __future__ import annotations

import random
from collections.abc import Callable, Sized
from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest

from streamdp.assembly.join import Join, Positions
from streamdp.assembly.persons import DAY, Cap, Persons
from streamdp.assembly.recipes import AssemblyRecipe, Rewards
from streamdp.assembly.rules import Combine, Rules
from streamdp.core.errors import StateMismatch
from tests.support.assembly_model import (
    GRACE,
    PREDICTS,
    READS_REQUESTS,
    SAYS,
    SECRET,
    UNREADABLE,
    WINDOW,
    Logs,
    Story,
    encode,
    expected_events,
    paused,
    random_logs,
)
from tests.support.assembly_mutants import CONTENT_MUTANTS, DAY_MUTANTS, MUTANTS, PERSON_MUTANTS

RULES = Rules(window=WINDOW, grace=GRACE, combine=Combine.SUM, default=0.75)
CAP = Cap(2, 5, SECRET)


@pytest.mark.slow
@pytest.mark.parametrize("combine", Combine)
@pytest.mark.parametrize(
    ("gap", "recipe"), [(1, Rewards()), (3, READS_REQUESTS)], ids=["ignores", "reads"]
)
def test_events_are_those_of_an_independent_join_through_crashes(
    combine: Combine, gap: int, recipe: AssemblyRecipe
) -> None:
    """Byte for byte and in the same order, whatever was dropped and read again."""
    crashed = 0
    for seed in range(12):
        logs, rules = random_logs(seed, gap=gap), replace(RULES, combine=combine)
        logs = logs if seed % 3 else paused(logs)
        cap = CAP if seed % 2 else None
        crashes = 0.3 * (seed % 4)
        story = Story(logs, rules, seed, cap=cap, recipe=recipe, crashes=crashes).run()
        assert story.events == expected_events(logs, rules, cap, recipe=recipe)
        crashed += story.crashed
    assert crashed > 100


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_join_is_caught(mutant: Callable[..., Join]) -> None:
    """Each of the ways in which an event could tell, count twice or get lost."""

    def wrong(seed: int, logs: Logs) -> bool:
        rules = replace(RULES, combine=list(Combine)[seed % 4])
        story = Story(logs, rules, seed, join=mutant, crashes=0.3)
        try:
            return story.run().events != expected_events(logs, rules)
        except (AssertionError, IndexError, StateMismatch):
            return True

    plain = [(seed, random_logs(seed)) for seed in range(12)]
    assert any(wrong(*log) for log in [*plain, *((seed, paused(logs)) for seed, logs in plain)])


@pytest.mark.parametrize("mutant", PERSON_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_cap_is_caught(mutant: Callable[..., Any]) -> None:
    """Stretches that slide, counts that forget."""

    def wrong(seed: int) -> bool:
        logs = random_logs(seed)
        story = Story(logs, RULES, seed, cap=CAP, persons=mutant, crashes=0.3).run()
        return story.events != expected_events(logs, RULES, CAP)

    assert any(wrong(seed) for seed in range(12))


DAILY = Cap(2, None, SECRET, most_persons=2)


def _by_day(seed: int) -> tuple[Logs, int]:
    """Logs with a midnight in their middle, around which two brokers' clocks differ; their start.

    The requests of the middle third come within less than the grace, on either side by turns.
    """
    logs, random_ = random_logs(seed), random.Random(seed)
    third = len(logs.requests) // 3
    begin = 3 * DAY - logs.requests[third][0]
    gone = logs.requests[2 * third][0] - logs.requests[third][0]

    def moved(time: int) -> int:
        late = time - logs.requests[third][0]
        if 0 <= late <= gone:
            return 3 * DAY + random_.randrange(-GRACE // 4, GRACE // 4)
        return begin + time - (gone if late > 0 else 0)

    requests = [(moved(row[0]), row[1], row[2], row[3]) for row in logs.requests]
    outcomes = [(moved(row[0]), row[1], row[2], row[3]) for row in logs.outcomes]
    return replace(logs, requests=requests, outcomes=sorted(outcomes, key=itemgetter(0))), begin


def test_a_cap_by_day_is_the_independent_join_s() -> None:
    """Through crashes, with clocks that go back at midnight, and more persons than a day takes."""
    for seed in range(8):
        logs, begin = _by_day(seed)
        story = Story(logs, RULES, seed, cap=DAILY, crashes=0.2, begin=begin).run()
        assert story.events == expected_events(logs, RULES, DAILY)


@pytest.mark.parametrize("mutant", DAY_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_day_is_caught(mutant: Callable[..., Any]) -> None:
    """Days that slide, begin twice, forget, hold any number of persons, or somebody unnamed."""

    def wrong(seed: int) -> bool:
        logs, begin = _by_day(seed)
        story = Story(logs, RULES, seed, cap=DAILY, persons=mutant, crashes=0.2, begin=begin).run()
        return story.events != expected_events(logs, RULES, DAILY)

    assert any(wrong(seed) for seed in range(8))


def _neighbour(logs: Logs, seed: int) -> tuple[Logs, int]:
    """The logs with all that one request and its outcomes say replaced, and where it is.

    It is one whose id no other has, so that all outcomes of its id are its own.
    """
    ids = [dict(headers).get("streamdp-request") for _, _, headers, _ in logs.requests]
    own = [at for at, name in enumerate(ids) if name is not None and ids.count(name) == 1]
    at = own[(seed * 7) % len(own)]
    time, key, headers, _ = logs.requests[at]
    name = dict(headers).get("streamdp-request")
    mine = ("streamdp-request", name)

    def is_of(record: Any) -> bool:
        stamp, other, pairs, _ = record
        return other == key and list(pairs) == [mine] and time - GRACE < stamp <= time + WINDOW

    others = [record for record in logs.outcomes if not is_of(record)]
    if len(others) == len(logs.outcomes):
        stamp = time + WINDOW // 2
        place = sum(1 for record in others if record[0] <= stamp)
        others.insert(place, (stamp, key, [mine], SAYS % (1, 1)))
    changed = list(logs.requests)
    said = PREDICTS % 0.5 if changed[at][3] == UNREADABLE else UNREADABLE
    changed[at] = (*changed[at][:3], said)
    return replace(logs, outcomes=others, requests=changed), at


@pytest.mark.slow
@pytest.mark.parametrize("cap", [None, CAP], ids=["no cap", "a cap"])
@pytest.mark.parametrize("recipe", [Rewards(), READS_REQUESTS], ids=["ignores", "reads"])
def test_a_request_s_content_and_outcomes_change_one_event_alone(
    recipe: AssemblyRecipe, cap: Cap | None
) -> None:
    """Order, times, sizes and positions of everything are the same, whatever came of a request."""
    differing = 0
    for seed in range(20):
        logs = random_logs(seed)
        other, at = _neighbour(logs, seed)
        stories = [
            Story(story, RULES, seed, cap=cap, recipe=recipe).run() for story in (logs, other)
        ]
        assert stories[0].steps == stories[1].steps
        pairs = zip(stories[0].events, stories[1].events, strict=True)
        changed = [number for number, (one, two) in enumerate(pairs) if one != two]
        assert changed in ([], [at])
        headers = [[event[2] for event in story.events] for story in stories]
        assert headers[0] == headers[1]
        differing += len(changed)
    assert differing > 5


@pytest.mark.parametrize("mutant", CONTENT_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_cap_that_looks_at_contents_is_caught(mutant: Callable[..., Join]) -> None:
    """One request's content or outcomes would decide whether other events of the person count."""

    def disturbs(seed: int) -> bool:
        logs = random_logs(seed)
        other, at = _neighbour(logs, seed)
        stories = [
            Story(story, RULES, seed, cap=CAP, recipe=READS_REQUESTS, join=mutant, crashes=0).run()
            for story in (logs, other)
        ]
        pairs = zip(stories[0].events, stories[1].events, strict=True)
        return bool({number for number, (one, two) in enumerate(pairs) if one != two} - {at})

    assert any(disturbs(seed) for seed in range(20))


@pytest.mark.parametrize(("most", "slots"), [(1, 2), (2, 5), (3, 4)])
def test_what_a_cap_buys_is_what_is_claimed_and_no_more(most: int, slots: int) -> None:
    """m of a stretch and 2m of any n consecutive slots; a person can reach both."""
    persons, random_ = Persons(Cap(most, slots, SECRET), {}), random.Random(1)
    counted = [
        persons.counts(b"k", name, 0) and name == b"p"
        for name in (random_.choice([b"p", b"p", b"q"]) for _ in range(400 * slots))
    ]
    stretches = [sum(counted[at : at + slots]) for at in range(0, len(counted), slots)]
    assert max(stretches) == most
    assert max(sum(counted[at : at + slots]) for at in range(len(counted))) == min(2 * most, slots)


def test_an_event_whose_length_tells_is_never_emitted() -> None:
    """An encoding that does not pad stops the partition, before anything of it leaves."""

    def unpadded(losses: Any) -> bytes:
        return encode(losses).strip()

    positions = Positions(0, 0, 0)
    join = Join(RULES, Rewards(), unpadded, positions=positions)
    headers = [("streamdp-request", b"r")]
    join.request(0, 0, b"k", headers, None)
    join.outcomes([5], [b"k"], [headers], [b'{"reward": 0.125}'], next_offset=1)
    with pytest.raises(StateMismatch, match="length"):
        join.emit(1)


def test_only_what_is_open_is_kept() -> None:
    """Memory is bounded by the requests of two windows, however long the logs are."""
    join = Join(RULES, Rewards(), encode, positions=Positions(0, 0, 0))
    most = 0
    for number in range(3000):
        time, headers = 10 * number, [("streamdp-request", b"r%d" % number)]
        join.request(number, time, b"k", headers, None)
        known = b"r%d" % number if number % 2 else b"nobody %d" % number
        join.outcomes(
            [time], [b"k"], [[("streamdp-request", known)]], [b'{"reward": 1}'],
            next_offset=number + 1,
        )  # fmt: skip
        join.emit(join.due(time, most=100))
        assert join.positions.requests == max(0, number + 1 - join.open)
        kept: tuple[Sized, ...] = (join._kept, join._again, join._early)
        most = max(most, *map(len, kept), len(join._early_names), len(join._spans))
    assert most <= 2 * (WINDOW + 4 * GRACE) // 10
    assert join.positions.outcomes > 2600


def test_does_a_quiet_time_let_everything_go() -> None:
    """All that was read may expire, once it decides about no later request; not before."""
    join = Join(RULES, Rewards(), encode, positions=Positions(0, 0, 0))
    headers = [("streamdp-request", b"r")]
    join.request(0, 1000, b"k", headers, None)
    join.outcomes([1001], [b"k"], [headers], [b'{"reward": 1}'], next_offset=1)
    quiet = 1000 + WINDOW + 3 * GRACE
    assert not join.may_move_on(quiet)  # it is still open
    assert join.emit(join.due(quiet, most=5)) == [(b"k", encode([0.0]), headers)]
    join.outcomes([1500 + WINDOW], [b"k"], [headers], [None], next_offset=2)  # a late click
    assert not join.may_move_on(quiet - 1)
    assert join.may_move_on(quiet)
    assert join.positions == Positions(1, 0, 0)
    join.reach(quiet)
    assert join.positions == Positions(1, 1, 1)  # the click is younger than later requests may be
    join.reach(quiet + WINDOW)
    assert join.positions == Positions(1, 1, 2)
    assert not join.may_move_on(quiet + WINDOW)  # once in a window is enough


def test_does_a_clock_that_was_ahead_in_a_quiet_time_make_later_requests_leave_early() -> None:
    """Once it is right again, a request waits for its window as ever."""
    join = Join(RULES, Rewards(), encode, positions=Positions(0, 0, 0))
    join.reach(100 * WINDOW)
    join.request(0, 1000, b"k", [("streamdp-request", b"r")], None)
    assert join.due(1001, most=1) == 0
    assert join.due(1000 + WINDOW + GRACE, most=1) == 1


def test_two_requests_of_one_moment_are_one_and_its_repetition() -> None:
    """The same id at the same time: the first takes the click, and both are forgotten in time."""
    headers = [("streamdp-request", b"r")]
    times = [0, 0, 5 * WINDOW]
    logs = Logs(
        [(time, b"k", headers, None) for time in times], [(9, b"k", headers, b'{"reward": 1}')]
    )
    story = Story(logs, RULES, 0, crashes=0.0).run()
    assert [value.strip() for _, value, _ in story.events if value] == [
        b"[0.0]",
        b"[0.5]",
        b"[0.75]",
    ]
    assert story.events == expected_events(logs, RULES)
