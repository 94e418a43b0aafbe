"""Does the recommender's cache answer the release in force, at once, whatever happens?"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import timeit
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from inspect import signature
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdp.client import Actions, ActionsCache, Change, Feed, HttpActions, Source, Why
from streamdp.client.following import Followers
from streamdp.client.table import Table
from streamdp.core.errors import InvalidConfig, TransportLost
from streamdp.core.releases import Release
from streamdp.ports import Published, StreamTopics
from tests.support.publishing import HOME, Reader, Topic, action, list_record, release

SOURCE = Source(HOME, "z")
Batches = AsyncIterator[Sequence[Published]]
BRIEF = (0.001,)


def table(*releases: Release, most_keys: int = 100) -> Table:
    filled = Table(SOURCE, most_keys=most_keys)
    list(filled.apply([action(release) for release in releases]))
    return filled


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


async def test_a_follower_that_outlives_a_cancellation_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A library may take a cancellation for its own; whoever closes a cache must not wait."""
    monkeypatch.setattr("streamdp.client.following.AGAIN_SECONDS", 0.01)
    heard = 0

    async def follow() -> None:
        nonlocal heard
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        heard += 1
        await asyncio.sleep(3600)

    followers = Followers()
    followers.start(follow(), name="one")
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await followers.stop()
    assert heard == 1


def test_does_the_newest_release_of_a_key_answer() -> None:
    opened, later = release(b"fr", 0), release(b"fr", 2, block=1, start=1, stop=4)
    assert table(opened).answers[b"fr"].action == "a"
    answer = table(opened, later).answers[b"fr"]
    assert (answer.action, answer.why, answer.slots) == ("c", Why.PUBLISHED, 3)


def test_does_reading_again_never_bring_back_an_old_action() -> None:
    records = [release(b"fr", n % 3, block=n, stop=1 + n) for n in range(5)]
    known = table(*records)
    again = list(known.apply([action(release) for release in records]))
    assert again == []
    assert known.answers[b"fr"].block == 4


@given(st.permutations(range(3)))
def test_does_the_first_learned_action_replace_the_opening(order: list[int]) -> None:
    """Both are of block 0; in whatever order they come, in one partition or beside another."""
    opening, first = release(b"fr", 0), release(b"fr", 1, kind="action", stop=2)
    other = release(b"fr", 2, partition=5)
    assert table(opening, first).answers[b"fr"].action == "b"
    assert table(first, opening).answers[b"fr"].action == "b"
    known = table(*([opening, first, other][at] for at in order))
    assert (known.answers[b"fr"].action, known.answers[b"fr"].slots) == ("b", 1)


def test_does_a_key_that_comes_back_count_as_new() -> None:
    """A larger `born` is a new learner; a larger epoch a new configuration."""
    old = release(b"fr", 0, block=7, stop=900)
    assert table(old, release(b"fr", 1, born=1000)).answers[b"fr"].action == "b"
    assert table(old, release(b"fr", 2, epoch=2)).answers[b"fr"].action == "c"


@given(st.permutations(range(4)))
def test_do_partitions_contend_by_epoch_then_slots_then_number(order: list[int]) -> None:
    """The order in which records come never matters."""
    releases = [
        release(b"fr", 0, block=5, stop=99, partition=0),  # an older epoch
        release(b"fr", 1, block=2, stop=10, partition=3, epoch=2),
        release(b"fr", 2, block=2, stop=10, partition=1, epoch=2),  # as many slots, lower
        release(b"fr", 0, block=1, stop=5, partition=2, epoch=2),
    ]
    known = table(*(releases[at] for at in order))
    assert (known.answers[b"fr"].partition, known.several) == (1, 1)


def test_does_a_contender_answer_again_when_it_overtakes() -> None:
    known = table(
        release(b"fr", 0, partition=0, block=1, stop=5),
        release(b"fr", 1, partition=1, block=1, stop=9),
        release(b"fr", 2, partition=0, block=2, stop=20),
    )
    assert known.answers[b"fr"].action == "c"
    assert +known.counts == {"c": 1}
    list(known.apply([action(release(b"fr", 1, partition=1, block=2, stop=21))]))
    assert known.answers[b"fr"].partition == 1


async def switching() -> None:
    actions, changes = Topic([action(release(b"fr", 1)), action(release(b"de", 2))]), list[Change]()
    lists = Topic()
    cache = ActionsCache(
        lambda: Reader(actions, Topic(), of_lists=lists), [SOURCE], on_change=changes.append,
        retries=BRIEF,
    )  # fmt: skip

    def answers() -> list[tuple[str, Why]]:
        asked = (cache.action("home", key) for key in (b"fr", b"de", b"nobody"))
        return [(answer.action, answer.why) for answer in asked]

    live = [("b", Why.PUBLISHED), ("c", Why.PUBLISHED), ("z", Why.UNKNOWN_KEY)]
    off = [("z", Why.FALLBACK_MODE)] * 3
    async with cache:
        assert answers() == live
        lists.publish(list_record(1, "fallback"))
        await until(lambda: cache.condition("home").fallback_mode)
        assert answers() == off
        actions.publish(action(release(b"fr", 0, block=1, stop=2)), action(release(b"it", 0)))
        await until(lambda: cache.condition("home").keys == 3)
        assert answers() == off
        lists.publish(list_record(2, "live"))
        await until(lambda: not cache.condition("home").fallback_mode)
        assert answers() == [("a", Why.PUBLISHED), *live[1:]]
    heard = [(change.key, change.before and change.before.action, change.after.action)
            for change in changes]  # fmt: skip
    loaded = [(b"fr", None, "b"), (b"de", None, "c")]
    switched = [(b"fr", "b", "z"), (b"de", "c", "z"), (b"it", None, "z")]
    assert heard == [*loaded, *switched, (b"fr", "z", "a"), (b"de", "z", "c"), (b"it", "z", "a")]


def test_a_mode_switches_every_key_at_once_and_back() -> None:
    """New releases in the meantime are kept; `on_change` tells what answers."""
    asyncio.run(switching())


async def reconnecting() -> None:
    seen, actions = list[Why](), Topic([action(release(b"fr", 1))])
    lists = Topic([list_record(1, "fallback"), list_record(2)])
    cache = ActionsCache(
        lambda: Reader(actions, Topic(), of_lists=lists), [SOURCE], retries=BRIEF,
        on_change=lambda change: seen.append(change.after.why),
    )  # fmt: skip
    async with cache:
        assert cache.action("home", b"fr").why is Why.PUBLISHED
        lists.fail(TransportLost("gone"))
        await until(lambda: cache.condition("home").feed is Feed.LOST)
        assert cache.condition("home").stale_seconds > 0
        actions.fail(TransportLost("gone"))
        lists.fail(None)
        await until(lambda: cache.condition("home").trouble == "gone")
        actions.fail(None)
        await until(lambda: cache.condition("home").feed is Feed.CURRENT)
        assert seen == [Why.PUBLISHED]
        lists.fail(TransportLost("gone"))
        await until(lambda: cache.condition("home").feed is Feed.LOST)
        lists.records.append(list_record(3, "fallback"))
        lists.fail(None)
        await until(lambda: cache.action("home", b"fr").why is Why.FALLBACK_MODE)
    assert seen == [Why.PUBLISHED, Why.FALLBACK_MODE]


def test_an_old_list_that_is_read_again_changes_nothing() -> None:
    """A topic that is not compacted yet has all of them; the highest ordinal counts."""
    asyncio.run(reconnecting())


async def loading(slow: str) -> None:
    held = asyncio.Event()
    actions, lists = (
        Topic([action(release(b"fr", 1))]),
        Topic([list_record(1, "fallback", paused="z")]),
    )

    class Slow(Reader):
        async def _wait(self, topic: Topic) -> AsyncIterator[Sequence[Published]]:
            if topic is actions:
                yield topic.records
            await held.wait()
            yield topic.records
            yield ()
            await asyncio.Event().wait()

        def actions(self, stream: StreamTopics, *, follow: bool) -> Batches:
            told = super().actions(stream, follow=follow)
            return self._wait(actions) if slow == "actions" else told

        def catalogue(self, stream: StreamTopics, *, follow: bool) -> Batches:
            told = super().catalogue(stream, follow=follow)
            return self._wait(lists) if slow == "lists" else told

    changes = list[Change]()
    cache = ActionsCache(
        lambda: Slow(actions, Topic(), of_lists=lists), [SOURCE], ready_within=0,
        on_change=changes.append,
    )  # fmt: skip
    async with cache:
        await until(lambda: cache.condition("home").keys == 1)
        for _ in range(20):
            await asyncio.sleep(0)
        paused = slow == "actions"  # the list is known then, and the fallback is paused
        assert cache.action("home", b"fr").action == ("a" if paused else "z")
        assert cache.action("home", b"fr").why is Why.UNKNOWN_KEY
        assert not cache.is_ready
        held.set()
        await cache.ready()
        assert cache.action("home", b"fr").why is Why.FALLBACK_MODE
    assert [change.after.why for change in changes] == [Why.FALLBACK_MODE]


@pytest.mark.parametrize("slow", ["actions", "lists"])
def test_the_fallback_answers_until_list_and_actions_are_known(slow: str) -> None:
    """A reader that starts while a stream is switched off never plays what it has read so far."""
    asyncio.run(loading(slow))


async def pausing() -> None:
    """Keys have b and c in force; the list is a, b, c, and z the fallback."""
    actions, changes = Topic([action(release(b"fr", 1)), action(release(b"de", 2))]), list[Change]()
    lists = Topic()
    cache = ActionsCache(
        lambda: Reader(actions, Topic(), of_lists=lists), [SOURCE], on_change=changes.append,
        retries=BRIEF,
    )  # fmt: skip

    def answers() -> list[tuple[str, Why]]:
        asked = (cache.action("home", key) for key in (b"fr", b"de", b"nobody"))
        return [(answer.action, answer.why) for answer in asked]

    async def listed(ordinal: int, *paused: str) -> None:
        lists.publish(list_record(ordinal, paused=paused))
        await until(lambda: cache.condition("home").list == ordinal)
        assert cache.condition("home").paused == tuple(sorted(paused))

    async with cache:
        changes.clear()
        await listed(1, "b")
        assert answers() == [("z", Why.PAUSED), ("c", Why.PUBLISHED), ("z", Why.UNKNOWN_KEY)]
        assert cache.action("home", b"fr").list == 1
        await listed(2, "b", "z")
        assert answers() == [("a", Why.PAUSED), ("c", Why.PUBLISHED), ("a", Why.UNKNOWN_KEY)]
        await listed(3, "a", "b", "c", "z")
        assert answers() == [("", Why.NOTHING_ALLOWED)] * 3
        lists.publish(list_record(2))
        await listed(4)
        assert answers() == [("b", Why.PUBLISHED), ("c", Why.PUBLISHED), ("z", Why.UNKNOWN_KEY)]
    heard = [(change.key, change.before and change.before.action, change.after.action)
            for change in changes]  # fmt: skip
    assert heard == [
        (b"fr", "b", "z"), (b"fr", "z", "a"), (b"fr", "a", ""), (b"de", "c", ""),
        (b"fr", "", "b"), (b"de", "", "c"),
    ]  # fmt: skip


def test_a_paused_action_gives_way_to_the_fallback_or_the_first_that_is_not() -> None:
    """At once, keys without traffic included; an older list that comes late changes nothing."""
    asyncio.run(pausing())


async def refusing() -> None:
    newer = list_record(1).value.replace(b'"schema":1', b'"schema":9')
    lists = Topic([Published(0, 0, None, newer)])
    cache = ActionsCache(
        lambda: Reader(Topic([action(release(b"fr", 1))]), Topic(), of_lists=lists), [SOURCE],
        retries=BRIEF, ready_within=0,
    )  # fmt: skip
    async with cache:
        await until(lambda: "newer streamdp" in cache.condition("home").trouble)
        assert not cache.is_ready


def test_a_reader_does_not_begin_with_a_list_that_it_cannot_read() -> None:
    """It may pause anything."""
    asyncio.run(refusing())


def test_is_the_number_of_keys_bounded() -> None:
    known = table(*(release(str(n).encode(), 0) for n in range(50)), most_keys=10)
    assert (len(known.answers), known.beyond) == (10, 40)
    list(known.apply([action(release(b"3", 1, block=1, stop=2))]))
    assert known.answers[b"3"].action == "b"


def test_is_an_unreadable_line_counted_and_survived() -> None:
    known = table(release(b"fr", 0))
    newer = action(release(b"fr", 1, block=1)).value.replace(b'"schema":1', b'"schema":9')
    list(known.apply([Published(0, 1, b"fr", newer), Published(0, 2, b"de", b"{")]))
    assert (known.refused, known.answers[b"fr"].action) == (2, "a")


async def following() -> None:
    actions, changes = Topic(), list[Change]()
    closed: list[int] = []
    reader = Reader(actions, Topic(), lambda: closed.append(1))
    clock = itertools.count()
    actions.publish(action(release(b"fr", 0)), action(release(None, 2)))
    cache = ActionsCache(
        lambda: reader, [SOURCE], on_change=changes.append, retries=BRIEF,
        clock=lambda: next(clock), stale_after=1e6,
    )  # fmt: skip
    assert cache.action("home", b"fr").why is Why.UNKNOWN_KEY
    assert cache.condition("home").feed is Feed.LOADING
    async with cache:
        assert cache.action("home", b"fr").action == "a"
        assert cache.action("home", None).action == "c"
        assert cache.action("home", b"nobody").action == "z"
        assert cache.condition("home").feed is Feed.CURRENT
        actions.publish(action(release(b"fr", 1, kind="action", stop=2)))
        await until(lambda: cache.action("home", b"fr").action == "b")
        actions.fail(TransportLost("gone"))
        await until(lambda: cache.condition("home").feed is Feed.LOST)
        assert cache.is_ready
        assert cache.action("home", b"fr").action == "b"
        assert cache.condition("home").stale_seconds > 0
        actions.records.append(action(release(b"fr", 2, block=2, stop=4)))
        actions.fail(None)
        await until(lambda: cache.action("home", b"fr").action == "c")
        await until(lambda: cache.condition("home").stale_seconds == 0)
    assert [(c.key, c.after.action) for c in changes] == [
        (b"fr", "a"), (None, "c"), (b"fr", "b"), (b"fr", "c"),
    ]  # fmt: skip
    assert actions.readers + reader.of_lists.readers == len(closed)
    with pytest.raises(InvalidConfig, match="unknown"):
        cache.action("nowhere", b"fr")


def test_does_a_cache_follow_lose_and_find_its_topic_again() -> None:
    asyncio.run(following())


async def breaking() -> None:
    actions, attempts = Topic([action(release(b"fr", 0))]), itertools.count(1)

    def close() -> None:
        raise RuntimeError("cannot be closed")

    def reader() -> Reader:
        if next(attempts) == 1:
            raise RuntimeError("cannot be opened")
        return Reader(actions, Topic(), close if actions.readers == 0 else lambda: None)

    cache = ActionsCache(reader, [SOURCE], retries=BRIEF)
    async with cache:
        await until(lambda: cache.action("home", b"fr").action == "a")
        actions.fail(TransportLost("gone"))
        await until(lambda: cache.condition("home").feed is Feed.LOST)
        actions.fail(None)
        await until(lambda: cache.condition("home").feed is Feed.CURRENT)
    assert next(attempts) > 3


def test_does_a_cache_follow_on_where_a_reader_cannot_be_opened_or_closed() -> None:
    """By an error that nobody foresaw: a task that ended would leave the cache as it was."""
    asyncio.run(breaking())


async def falling_back() -> None:
    actions, now = Topic([action(release(b"fr", 0))]), [0.0]
    cache = ActionsCache(
        lambda: Reader(actions, Topic()), [SOURCE], stale_after=5, retries=BRIEF,
        clock=lambda: now[0],
    )  # fmt: skip
    async with cache:
        actions.fail(TransportLost("gone"))
        await until(lambda: cache.condition("home").feed is Feed.LOST)
        now[0] = 5.0
        assert cache.action("home", b"fr").why is Why.PUBLISHED
        now[0] = 5.1
        assert cache.action("home", b"fr") == cache.action("home", b"other")
        assert (cache.action("home", b"fr").action, cache.action("home", b"fr").why) == (
            "z",
            Why.STALE,
        )


def test_do_answers_fall_back_when_they_are_stale() -> None:
    asyncio.run(falling_back())


async def mending() -> None:
    actions = Topic(error=InvalidConfig("no such topic"))
    source = lambda: Reader(actions, Topic())  # noqa: E731
    with pytest.raises(InvalidConfig, match="no such topic"):
        async with ActionsCache(source, [SOURCE], retries=BRIEF):
            raise AssertionError
    async with ActionsCache(source, [SOURCE], retries=BRIEF, ready_within=0) as cache:
        with pytest.raises(InvalidConfig, match="no such topic"):
            await cache.ready()
        actions.fail(None)
        await until(lambda: cache.is_ready)


def test_is_a_missing_topic_told_and_tried_again() -> None:
    asyncio.run(mending())


async def misbehaving() -> None:
    def raises(change: Change) -> None:
        raise RuntimeError("the program's own")

    actions = Topic([action(release(b"fr", 0)), action(release(b"de", 1))])
    reader = Reader(actions, Topic())
    async with ActionsCache(lambda: reader, [SOURCE], on_change=raises) as cache:
        assert cache.action("home", b"de").action == "b"


def test_does_a_callback_that_raises_stop_nothing() -> None:
    asyncio.run(misbehaving())


def test_does_the_threaded_cache_answer_without_a_loop() -> None:
    actions = Topic([action(release(b"fr", 1))])
    with ActionsCache(lambda: Reader(actions, Topic()), [SOURCE]) as cache:
        assert cache.action("home", b"fr").action == "b"
    assert cache.action("home", b"fr").action == "b"
    threads = threading.active_count()
    broken = Topic(error=InvalidConfig("no such topic"))
    with pytest.raises(InvalidConfig), ActionsCache(lambda: Reader(broken, Topic()), [SOURCE]):
        raise AssertionError
    assert threading.active_count() == threads


@pytest.mark.parametrize("client", [ActionsCache, HttpActions])
def test_have_both_clients_one_shape(client: type[Actions]) -> None:
    """The same methods with the same arguments and results, with and without an event loop."""
    for name in ("action", "choose", "choose_all", "condition"):
        assert signature(getattr(client, name)) == signature(getattr(Actions, name))
    for opened_by in ("__enter__", "__exit__", "__aenter__", "__aexit__"):
        assert hasattr(client, opened_by)


@pytest.mark.parametrize("key", ["fr", 1])
def test_is_a_key_that_is_no_bytes_refused_by_both_clients(key: Any) -> None:
    """It has no learner: the fallback action would answer for ever."""
    cache = ActionsCache(lambda: Reader(Topic(), Topic()), [SOURCE])
    over_http = HttpActions("http://127.0.0.1:9", {"home": "z"})
    for ask in (
        lambda: cache.action("home", key),
        lambda: over_http.action("home", key),
        lambda: over_http.fetch("home", [b"fr", key]),
        lambda: over_http.choose("home", key, "r-1"),
    ):
        with pytest.raises(InvalidConfig, match="key: not a key; expected bytes or None"):
            ask()


def test_does_the_thread_over_http_outlive_a_failure_that_nobody_foresaw(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The feed is lost, says why, and is asked again."""
    asked = threading.Semaphore(0)

    def fails(*_: object) -> None:
        asked.release()
        raise ZeroDivisionError

    with HttpActions("http://127.0.0.1:9", {"home": "z"}, refresh=0.01) as actions:
        monkeypatch.setattr(actions, "fetch", fails)
        for _ in range(3):
            assert asked.acquire(timeout=30)
        condition = actions.condition("home")
    assert (condition.feed, condition.trouble) == (Feed.LOST, "ZeroDivisionError")
    assert "asking for the actions of stream home failed" in caplog.text


def a_cache(sources: Any = (SOURCE,), **settings: Any) -> object:
    return ActionsCache(lambda: Reader(Topic(), Topic()), sources, **settings)


def over_http(fallbacks: Any = {"home": "z"}, url: Any = "http://h", **settings: Any) -> object:  # noqa: B006
    return HttpActions(url, fallbacks, **settings)


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: a_cache(None), "sources: no streams; expected a list of `Source`, got NoneType"),
    (lambda: a_cache(["home"]), "sources: not a stream; expected `Source.topics, fallback.`, got"),
    (lambda: a_cache([Source(HOME, 3)]), "stream home: fallback: no name; expected text, got 3"),  # type: ignore[arg-type]
    (lambda: a_cache(stale_after=-1), "stale_after: no length of time; .* at least 0, got -1"),
    (lambda: a_cache(stale_after="1"), "stale_after: no length of time; .* got str"),
    (lambda: a_cache(ready_within=float("nan")), "ready_within: no length of time; .* got nan"),
    (lambda: a_cache(on_change=3), "on_change: cannot be called; expected a function, got int"),
    (lambda: a_cache(most_keys=0), "most_keys: no limit; expected a whole number, at least 1"),
    (lambda: over_http(None), "fallbacks: not actions; expected a fallback action for each"),
    (lambda: over_http({"home": 3}), "fallbacks: stream home: no name; expected text, got 3"),
    (lambda: over_http(url=None), "url: no name; expected text, got None"),
    (lambda: over_http(refresh=0), "refresh: no length of time; .* more than 0, got 0"),
    (lambda: over_http().fetch("home", None), "keys: no keys; expected a list of them, got None"),  # type: ignore[attr-defined]
    (lambda: over_http().fetch("home", b"fr"), "keys: no keys; expected a list of them, got bytes"),  # type: ignore[attr-defined]
    (lambda: over_http().choose("home", b"fr", 7), "request id: no id; expected text, got int"),  # type: ignore[attr-defined]
]


@pytest.mark.parametrize(("use", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_is_a_mistake_in_a_client_s_arguments_told(use: Callable[[], object], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        use()


def plain(stream: str, key: bytes) -> bytes:
    """What the cheapest function costs: a tenth of a microsecond, on a machine of today."""
    return key


def took(call: Callable[[], object]) -> float:
    """The thread's own time for some calls: what else runs takes none of it."""
    return timeit.timeit(call, number=500, timer=time.thread_time)


def test_does_a_look_up_take_no_longer_than_twelve_plain_calls() -> None:
    """About a quarter of a microsecond; the best of short runs, in the thread's own time."""
    actions = Topic([action(release(str(n).encode(), n % 3)) for n in range(10_000)])
    with ActionsCache(lambda: Reader(actions, Topic()), [SOURCE], stale_after=60) as cache:
        runs = [
            (took(lambda: cache.action("home", b"77")), took(lambda: plain("home", b"77")))
            for _ in range(200)
        ]
    look_ups, calls = zip(*runs, strict=True)
    assert min(look_ups) < 12 * min(calls)
