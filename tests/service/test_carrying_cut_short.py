"""Is the right learner carried over, whatever was taken away of the state before a crash?

A cut takes away so many entries at most, and a crash may come after each. What is left of earlier
epochs must never look like the newest of a key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from streamdp.ports import Headers
from streamdp.service import protocol
from streamdp.service.protocol import PartitionWork
from streamdp.service.settings import Pace
from streamdp.wire.state import encode_learner
from tests.support.carrying import (
    ALL,
    LEADERS,
    MORE,
    leader,
    live,
    openings,
    store_of,
    stream,
    verified,
)
from tests.support.idling import dated, idles, openings_of
from tests.support.protocol_model import Store, restore


def cut(store: Store, work: PartitionWork, *, times: int, saves: bool = False) -> None:
    """So many cuts, which save all rows, or one each; then it is killed."""
    pace = Pace(records=1000, seconds=1e-9 if saves else 1e9)
    for at in range(times):
        store.decide(work.cut(now=float(at), pace=pace).commit)


@pytest.mark.slow
@pytest.mark.parametrize("made", ALL)
@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
def test_does_a_restart_go_on_whatever_is_left(
    made: Callable[..., Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key's row may be gone where its later releases are not yet."""
    monkeypatch.setattr(protocol, "_MOST_GONE", most)
    store, second = store_of(made()), stream(made(), epoch=2)
    live(store, stream(made()), 6)
    work = restore(store, stream(made()))
    work.absorb(work.read(store.records(6, 60)))
    cut(store, work, times=2)
    work = restore(store, second)
    work.absorb(work.read(store.records(60, 110)))
    cut(store, work, times=1)
    for _ in range(12):
        cut(store, restore(store, second), times=1)
    live(store, second, 120)
    assert verified(store, second) == []
    assert {line.mechanism for line in openings(store, 2).values()} == {"carried"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("carry", "actions"),
    [(False, MORE), (True, ("b", "d"))],
    ids=["anew", "action gone"],
)
def test_is_no_earlier_learner_carried_wherever_a_cut_ends(
    carry: bool, actions: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three epochs, nothing taken away before the last, which is killed after each number of them.

    The second one begins anew, or has actions in force that the third has not.
    """
    store, second = store_of_many(leader()), stream(leader(MORE), epoch=2, carry=carry)
    third, count, left = stream(leader(actions), epoch=3), 0, 1
    monkeypatch.setattr(protocol, "_MOST_GONE", 0)
    for of, stop, saves in ((stream(leader()), 60, True), (second, 85, True), (second, 120, False)):
        work = restore(store, of)
        work.absorb(work.read(store.records(work.engine.position, stop)))
        cut(store, work, times=2, saves=saves)
    while count < left:
        trial = deepcopy(store)
        monkeypatch.setattr(protocol, "_MOST_GONE", count)
        work = restore(trial, third)
        left, count = len(work._tombstones), count + 1
        cut(trial, work, times=1)
        monkeypatch.setattr(protocol, "_MOST_GONE", 20_000)
        live(trial, third, trial.end)
        assert verified(trial, third) == []
    assert left > 10


def store_of_many(learner: Any) -> Store:
    """Eight keys, of which the second 60 records have six."""
    store = store_of(learner, 180)
    for at, (_, value) in enumerate(store.input):
        store.input[at] = (b"k%d" % (at * at % 17 % (6 if 60 <= at < 120 else 8)), value)
    return store


@pytest.mark.parametrize("made", LEADERS)
def test_does_the_newest_release_decide_where_no_row_is_saved(made: Callable[..., Any]) -> None:
    """Rows are of the first batch, releases of the second: the newest ones are carried."""
    store, second = store_of_many(made()), stream(made(MORE), epoch=2)
    work = restore(store, stream(made()))
    for stop, times in ((40, 1), (120, 2)):
        work.absorb(work.read(store.records(work.engine.position, stop)))
        cut(store, work, times=times)
    live(store, second, 180)
    assert {line.mechanism for line in openings(store, 2).values()} == {"carried"}
    assert verified(store, second) == []


@pytest.mark.parametrize("made", ALL)
def test_a_third_epoch_carries_what_the_recorded_openings_of_the_second_carried(
    made: Callable[..., Any],
) -> None:
    """It was killed when it had recorded releases and had not saved the rows of their keys."""
    second, third = (stream(made(MORE), epoch=epoch) for epoch in (2, 3))
    killed, whole = store_of_many(made()), store_of_many(made())
    for store in (killed, whole):
        live(store, stream(made()), 60)
    live(whole, second, 120)
    work = restore(killed, second)
    for stop in (62, 120):  # one row is saved at each cut
        work.absorb(work.read(killed.records(work.engine.position, stop)))
        cut(killed, work, times=1)
    assert [sum(b'"row",2' in place for place in of.state) for of in (killed, whole)] == [2, 5]
    kept = list[dict[Any, Any]]()
    for store in (killed, whole):
        live(store, third, 180)
        assert verified(store, third) == []
        opened = openings(store, 3)
        assert {line.mechanism for line in opened.values()} == {"carried"}
        kept.append({key: line.carried for key, line in opened.items()})
    assert kept[0] == kept[1]


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("made", ALL)
def test_does_a_key_from_before_idle_carry_over(made: Callable[..., Any], restarts: bool) -> None:
    """Idle is switched on in the middle of an epoch: keys that come back carry over, like later
    ones, also after a restart."""
    hours = [10 + at * 0.01 for at in range(60)]
    for begin in (15, 20, 25):
        hours += [begin - 2, *(begin + at * 0.01 for at in range(40))]
    keys = [b"fr"] * 60 + [b"de", *[b"fr"] * 40] * 3
    store, of = dated(made(), hours, keys), idles(made(), carry=False)
    live(store, idles(made(), idle=None, carry=False), 60)
    for stop in (61, *range(81, store.end, 20)) if restarts else (61,):
        live(store, of, stop)
    live(store, of, store.end)
    mechanisms = [line.mechanism for line in openings_of(store, b"fr")]
    assert mechanisms == ["uniform", "carried", "carried", "carried"]
    assert verified(store, of) == []
    third = idles(made(MORE), epoch=2)
    store.input += store.input[-40:]
    store.stamps += [store.stamps[-1]] * 40
    store.headers = headers_of(store.headers)
    live(store, third, store.end)
    assert {line.mechanism for line in openings(store, 2).values()} == {"carried"}
    assert verified(store, third) == []


def headers_of(headers: Any) -> list[Headers]:
    """As many more as `store.input` has got."""
    return [*headers, *headers[-40:]]


def test_does_the_largest_value_count_what_an_epoch_writes() -> None:
    """What an epoch's rows mean names every action."""
    names = [f"action {at}" * 20 for at in range(60)]
    of = replace(stream(leader(names), carry=False), most_key_bytes=16)
    assert of.largest_value > len(encode_learner(of.epoch_learner(carries=False))) > of.row_bytes
