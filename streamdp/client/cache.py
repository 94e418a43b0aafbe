"""A cache of published actions, fed by a transport's readers.

    with ActionsCache(technology.publications, [Source(topics, fallback="a")]) as cache:
        cache.action("home", b"fr").action

`async with` is the same in a program with an event loop. Opening waits until every stream was read
to its end once, for `ready_within` seconds at most; after that loading goes on in the background.
Opening raises errors that the user must fix.

A key without a release gets the fallback action; in a feedback stream each action is equally
likely, once the topic was read to its end.

A stream's list says which actions may be shown, or that the fallback action answers for all keys
(`streamdp actions`, `streamdp mode`). It is obeyed as soon as it is read: a paused action has no
share of a policy, and where it is the one in force, or the fallback, the fallback or the first
action of the list that is not paused takes its place. An action that was added is shown from
then on, by policies that do not name it yet as one that is back (`client.filtering`): the event
comes after the list, so its owner knows the name. Until list and actions were read to their end
once, the fallback action answers.

Each stream has two tasks, for its list and its actions, that read from the oldest record and then
follow. When one loses its source, the feed is `Feed.LOST`: answers stay as they are, and it
reconnects with growing delays. With `stale_after`, answers fall back once the source has been lost
for so many seconds.

`action` may be called from any thread. `on_change` is called in the thread of the event loop: for
each key that was loaded, then for each key that has a new answer, by a release or by the list. An
exception in it is logged and does not stop the cache.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Self

from msgspec import UNSET, structs

from streamdp.client.answers import (
    Answer,
    Change,
    Condition,
    Context,
    Feed,
    Names,
    Source,
    Why,
    unknown_stream,
)
from streamdp.client.arguments import (
    check_fields,
    checked_callback,
    checked_count,
    checked_exclusions,
    checked_id,
    checked_key,
    checked_seconds,
    checked_sources,
)
from streamdp.client.choosing import choose, even, settled
from streamdp.client.following import RETRIES, Followers, follow
from streamdp.client.table import MOST_BYTES, Table
from streamdp.client.threaded import InThread
from streamdp.core.errors import InvalidConfig, StreamdpError
from streamdp.ports import Key, Publications, Published, StreamTopics
from streamdp.wire.lines import ListLine
from streamdp.wire.published import decode_list

Clock = Callable[[], float]

_logger = logging.getLogger("streamdp.client")


class _Followed:
    """One stream: reads its actions topic, and keeps track of how fresh its knowledge is."""

    def __init__(
        self,
        source: Source,
        *,
        most_keys: int,
        most_bytes: int,
        on_change: Callable[[Change], None] | None,
        clock: Clock,
        moved: Callable[[], None],
    ) -> None:
        self.topics, self.names = source.topics, source.names
        self.table = Table(source, most_keys=most_keys, most_bytes=most_bytes)
        self.catalogue = _Catalogue(self)
        self._fallback = source.fallback
        self._list: ListLine | None = None
        self._decide()
        self.instead: Answer | None = self.unknown  # the answer for every key: not loaded, or off
        self.feed = Feed.LOADING
        self._unread = {source.topics.actions, source.topics.catalogue}  # never to their end
        self._away: dict[str, Exception] = {}  # why each of them is lost
        self.lost_at: float | None = None
        self._on_change = on_change
        self._clock = clock
        self._moved = moved

    def _decide(self) -> None:
        """The answers without a release, by the stream's list."""
        line = self._list
        self.ordinal, self.paused, names = 0, frozenset[str](), list[str]()
        self.listed_at = None if line is None else line.at
        self.added_in = 0 if line is None or line.epoch is UNSET else line.epoch  # 0: none were
        self.named = () if line is None else tuple(line.named_in(self.added_in))
        self.removed = () if line is None or line.removed is UNSET else tuple(line.removed)
        if line is not None:
            self.ordinal, self.paused, names = line.ordinal, frozenset(line.paused), line.actions
        self.unknown, self.stale, self.off, self.instead_of_paused = (
            structs.replace(
                settled(Answer(self._fallback, why), names, self.paused), list=self.ordinal
            )
            for why in (Why.UNKNOWN_KEY, Why.STALE, Why.FALLBACK_MODE, Why.PAUSED)
        )

    def without_release(self, key: Key) -> Answer:
        """The answer for a key that has none: equal parts if actions are known, else the fallback.

        It learns from the first request on; the fallback alone would be all that it saw.
        """
        names = self.table.names
        if self.names is None or not names.actions:
            return self.unknown
        if added := self.added(names, self.table.epoch or self.added_in):
            names = replace(names, actions=names.actions + added)
        held = even(self.topics.stream, key, names)
        return structs.replace(
            self.unknown, action=names.actions[0], why=Why.UNKNOWN_KEY, held=held
        )

    def added(self, names: Names, epoch: int) -> tuple[str, ...]:
        """The actions that were added in this epoch, and that these names do not have yet."""
        if epoch != self.added_in:
            return ()
        return tuple(name for name in self.named if name not in names.actions)

    def shown(self, answer: Answer) -> Answer:
        """What answers for a key with this answer, if the key is asked for now."""
        if self.instead is not None:
            return self.instead
        paused = answer.held is None and answer.action in self.paused
        return self.instead_of_paused if paused else answer

    @property
    def loaded(self) -> bool:
        """Whether list and actions were read to their end once."""
        return not self._unread

    @property
    def trouble(self) -> Exception | None:
        """Why the source was lost."""
        return next(iter(self._away.values()), None)

    def began(self) -> None:
        """Keep the table: a second reading never replaces a release by an older one."""

    def heard(self, batch: Sequence[Published]) -> None:
        """Put published records into the table, and tell of each new answer."""
        for change in self.table.apply(batch):
            if self.loaded:
                before = None if change.before is None else self.shown(change.before)
                self._tell(change.key, before, self.shown(change.after))

    def listed(self, line: ListLine) -> None:
        """Obey a list from now on, unless a later one is known."""
        if self._list is None or line.ordinal > self._list.ordinal:
            known = self._list
            self._list = line
            if self.loaded:
                self._obey(known)
            else:
                self._decide()
                self.instead = self.unknown

    def current(self) -> None:
        """The end of the actions topic was reached."""
        self.reached(self.topics.actions)

    def reached(self, topic: str) -> None:
        """The end of a topic was reached: without others the feed is live."""
        self._away.pop(topic, None)
        if topic in self._unread:
            self._unread.discard(topic)
            if self.loaded:
                self._obey(None, first=True)
        if self.loaded and not self._away:
            self.feed, self.lost_at = Feed.CURRENT, None
        self._moved()

    def _obey(self, known: ListLine | None, *, first: bool = False) -> None:
        """Answer by the list from now on, and tell of each answer that this changes."""
        before = {} if first else {key: self.shown(of) for key, of in self.table.answers.items()}
        self._decide()
        live = self._list is None or self._list.live
        self.instead = None if live else self.off
        list_ = f"stream {self.table.stream}, list {self.ordinal}"
        if live != (known is None or known.live):
            used = "each key's own action" if live else "the fallback action"
            _logger.warning("%s: all readers use %s now", list_, used)
        for name in sorted(self.paused.symmetric_difference(known.paused if known else ())):
            said = "paused" if name in self.paused else "resumed"
            said = "removed" if name in self.removed else said
            _logger.warning("%s: action %s is %s now", list_, name, said)
        if self._on_change is not None:
            for key, answer in self.table.answers.items():
                self._tell(key, before.get(key), self.shown(answer))

    def _tell(self, key: Key, before: Answer | None, after: Answer) -> None:
        same = before is not None and structs.replace(before, list=after.list) == after
        if self._on_change is not None and not same:
            try:
                self._on_change(Change(self.table.stream, key, before, after))
            except Exception:
                _logger.exception("on_change failed")

    def lost(self, error: Exception) -> None:
        """Note that the actions were lost: from now on answers become stale."""
        self.missed(self.topics.actions, error)

    def missed(self, topic: str, error: Exception) -> None:
        """Note that a topic was lost."""
        self._away[topic] = error
        self.feed = Feed.LOST
        if self.lost_at is None:
            self.lost_at = self._clock()
        self._moved()


class _Catalogue:
    """Reads a stream's list for those who answer by it."""

    def __init__(self, of: _Followed) -> None:
        self._of, self._topic = of, of.topics.catalogue

    def began(self) -> None:
        """Keep the list: a second reading never replaces it by an older one."""

    def heard(self, batch: Sequence[Published]) -> None:
        """Hand on lists. One that cannot be read is a lost source: it may pause anything."""
        for record in batch:
            self._of.listed(decode_list(record.value))

    def current(self) -> None:
        """The newest list was read."""
        self._of.reached(self._topic)

    def lost(self, error: Exception) -> None:
        """Whoever answers now may answer by an old list."""
        self._of.missed(self._topic, error)


class ActionsCache:
    """The actions in force of every key of some streams."""

    def __init__(
        self,
        publications: Callable[[], Publications],
        sources: Iterable[Source],
        *,
        most_keys: int = 1_000_000,
        most_bytes: int = MOST_BYTES,
        stale_after: float | None = None,
        ready_within: float = 30.0,
        on_change: Callable[[Change], None] | None = None,
        retries: Sequence[float] = RETRIES,
        clock: Clock = time.monotonic,
    ) -> None:
        checked_count("most_keys", most_keys)
        checked_count("most_bytes", most_bytes)
        checked_callback("on_change", on_change)
        checked_seconds("ready_within", ready_within)
        if stale_after is not None:
            checked_seconds("stale_after", stale_after)
        self._open = publications
        self._ready_within = ready_within
        self._stale_after = stale_after
        self._retries = retries
        self._clock = clock
        self._followers = Followers()
        self._thread = InThread(self)
        self._moved = asyncio.Event()
        self._streams = {
            source.stream: _Followed(
                source,
                most_keys=most_keys,
                most_bytes=most_bytes,
                on_change=on_change,
                clock=clock,
                moved=self._moved.set,
            )
            for source in checked_sources(sources)
        }
        self._policies = frozenset(
            stream for stream, of in self._streams.items() if of.names is not None
        )

    async def __aenter__(self) -> Self:
        """Begin to follow; wait until everything was read once, for a bounded time."""
        for name, followed in self._streams.items():
            following = follow(
                self._open,
                partial(_actions, followed.topics),
                followed,
                name=f"topic {followed.topics.actions}",
                retries=self._retries,
            )
            self._followers.start(following, name=f"actions of {name}")
            listing = follow(
                self._open,
                partial(_list, followed.topics),
                followed.catalogue,
                name=f"topic {followed.topics.catalogue}",
                retries=self._retries,
            )
            self._followers.start(listing, name=f"catalogue of {name}")
        try:
            async with asyncio.timeout(self._ready_within):
                await self.ready()
        except TimeoutError:
            pass  # loading goes on; until then the fallback action answers
        except BaseException:
            await self._followers.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop following; the last answers can still be read."""
        await self._followers.stop()

    def __enter__(self) -> Self:
        """Like `async with`, in a thread of its own."""
        self._thread.open()
        return self

    def __exit__(self, *_: object) -> None:
        """Like `async with`, in a thread of its own."""
        self._thread.close()

    async def ready(self) -> None:
        """Wait until each stream was read to its end once; raise errors that the user must fix."""
        while not self.is_ready:
            for followed in self._streams.values():
                if isinstance(followed.trouble, InvalidConfig):
                    raise followed.trouble
            self._moved.clear()
            await self._moved.wait()

    @property
    def is_ready(self) -> bool:
        """Whether each stream was read to its end once."""
        return all(followed.loaded for followed in self._streams.values())

    def has_read(self, stream: str) -> bool:
        """Whether this stream was read to its end once: before that, known keys are unknown."""
        return self._followed(stream).loaded

    @property
    def streams(self) -> Sequence[str]:
        """The streams that can be asked for."""
        return list(self._streams)

    def action(self, stream: str, key: Key) -> Answer:
        """The action to play for a key; returns at once. Use `choose` for a feedback stream."""
        if stream in self._policies:
            raise InvalidConfig(
                f"stream {stream}",
                "publishes policies, not actions",
                expected="a call of `choose`",
                got="action",
            )
        return self.answer(stream, key)

    def answer(self, stream: str, key: Key) -> Answer:
        """The answer for a key, at once: an action in force, or a policy to draw from."""
        try:  # not by `_followed`: that call would take a third of a look-up
            followed = self._streams[stream]
        except KeyError:
            raise InvalidConfig(unknown_stream(stream, self._streams)) from None
        if followed.instead is not None:
            checked_key(key)
            return followed.instead
        if (
            self._stale_after is not None
            and followed.lost_at is not None
            and self._clock() - followed.lost_at > self._stale_after
        ):
            return followed.stale
        answer = followed.table.answers.get(key)
        if answer is None:
            return followed.without_release(checked_key(key))
        if followed.paused and answer.held is None and answer.action in followed.paused:
            return followed.instead_of_paused
        return answer

    def choose(
        self,
        stream: str,
        key: Key,
        request: str,
        *,
        context: Context | None = None,
        exclude: Collection[str] = (),
    ) -> Answer:
        """Draw the action for a request of a feedback stream; returns at once.

        In a stream with contexts, `context` has the levels of the request's fields; it is used here
        and kept nowhere. A field that is not declared is a mistake of code and refused; where
        contexts are private it is ignored, so that no call fails because of what a context has.

        `exclude` has the names of actions that this request must not get; unknown ones are ignored.

        The same request under the same release, with the same exclusions, gets the same choice in
        every process. Keep the choice with the request: its outcome must name the action that was
        shown.
        """
        answer = self.answer(stream, key)
        checked_id(request, "request")
        followed = self._streams[stream]
        known = followed.names
        if known is None:
            raise InvalidConfig(
                f"stream {stream}",
                "publishes actions, not policies",
                expected="a call of `action`, or a stream with observes = feedback",
                got="choose",
            )
        names = followed.table.names if answer.held is None else answer.held.names
        if context and names.played == known.played == "header":
            check_fields(context, names, known)
        # a line from before there were contexts has one policy for all of them
        of = known if names.contexts is None and known.contexts is not None else names
        plain = of.contexts is None and context is None and of.played == "header"
        if plain and not exclude and not followed.ordinal:
            return choose(answer, request)
        cell = of.cell(context)
        told, excluded = of.told(cell), checked_exclusions(exclude) | followed.paused
        if answer.held is None:
            choice = settled(answer, names.actions, excluded, told)
        else:
            back, at = answer.back(followed.ordinal), cell if of is names else 0
            if added := followed.added(names, answer.epoch):  # a content says what was shown
                told = replace(of, actions=(*names.actions, *added)).told(cell)
            choice = choose(answer, request, at, told, excluded, back, added)
        return structs.replace(choice, list=followed.ordinal) if followed.ordinal else choice

    def choose_all(self, stream: str, requests: Sequence[tuple[Key, str]]) -> list[Answer]:
        """`choose` for many requests, without contexts."""
        return [self.choose(stream, key, request) for key, request in requests]

    def answers(self, stream: str) -> Mapping[Key, Answer]:
        """The live mapping from keys to what was published: read it, keep no reference.

        It does not know the mode.
        """
        return self._followed(stream).table.answers

    def counts(self, stream: str) -> Mapping[str, int]:
        """How many keys each action is in force for."""
        return self._followed(stream).table.counts

    def condition(self, stream: str) -> Condition:
        """What this cache knows of a stream, and how fresh it is."""
        followed = self._followed(stream)
        table, lost_at = followed.table, followed.lost_at
        return Condition(
            feed=followed.feed,
            stale_seconds=0.0 if lost_at is None else max(0.0, self._clock() - lost_at),
            trouble="" if followed.trouble is None else _said(followed.trouble),
            keys=len(table.answers),
            several=table.several,
            beyond=table.beyond,
            refused=table.refused,
            fallback_mode=followed.instead is followed.off,
            list=followed.ordinal,
            listed_at=followed.listed_at,
            paused=tuple(sorted(followed.paused)),
            removed=followed.removed,
            named=followed.named,
            named_in=followed.added_in,
        )

    def _followed(self, stream: str) -> _Followed:
        try:
            return self._streams[stream]
        except KeyError:
            raise InvalidConfig(unknown_stream(stream, self._streams)) from None


def _actions(
    topics: StreamTopics, publications: Publications
) -> AsyncIterator[Sequence[Published]]:
    return publications.actions(topics, follow=True)


def _list(topics: StreamTopics, publications: Publications) -> AsyncIterator[Sequence[Published]]:
    return publications.catalogue(topics, follow=True)


def _said(error: Exception) -> str:
    """An error in words; of a foreign one only its type, since its text might quote content."""
    return str(error) if isinstance(error, StreamdpError) else type(error).__name__
