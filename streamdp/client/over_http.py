"""A cache of the keys that a program asks for, kept fresh over HTTP.

    with HttpActions("https://streamdp.internal", {"home": "a"}, token=token) as actions:
        actions.action("home", b"fr").action

`async with` is the same in a program with an event loop.

`action` never waits. The fallback action answers the first question for a key, and a thread asks
the service at once; from then on that thread asks for all known keys every `refresh` seconds, a
thousand at a time, over one kept connection. `fetch` asks now and waits. A key that nobody has
asked for during `forget` seconds is forgotten, and at most `most_keys` are kept.

When one answer says that the stream is in the fallback mode, the fallback action answers for all
keys at once.

While the service is out of reach the known answers stay in force, for `stale_after` seconds.

`choose` is for one request of a feedback stream, so it waits for the service's answer: the same
that every cache and process gives for this request under the same release. If none comes in time
the answer is the fallback action with probability 1. Do not call a waiting method in an event
loop's own thread: `await asyncio.to_thread(actions.choose, …)`.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Self, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import structs

from streamdp.client import http_wire
from streamdp.client.answers import (
    Answer,
    Change,
    Condition,
    Context,
    Feed,
    Protected,
    Why,
    unknown_stream,
)
from streamdp.client.arguments import (
    checked_callback,
    checked_count,
    checked_exclusions,
    checked_fallbacks,
    checked_id,
    checked_key,
    checked_keys,
    checked_seconds,
    checked_text,
)
from streamdp.client.cache import Clock
from streamdp.client.choosing import settled
from streamdp.core.errors import InvalidConfig, StreamdpError, TransportLost
from streamdp.ports import Key

_logger = logging.getLogger("streamdp.client")

T = TypeVar("T")

_MISTAKEN, _NO_SUCH_STREAM = 400, 404
_MISSING = {
    "actions": ("no actions", "a stream of the service, and `choose` where it observes feedback"),
    "choices": ("no policies", "a stream with observes = feedback"),
}
_MOST_BYTES = 16 << 20
"""Bytes: no answer for a thousand keys is larger."""


class _Stream:
    """The known answers of one stream, and when each key was last asked for."""

    __slots__ = ("answers", "asked", "heard", "new", "off", "stale", "trouble", "unknown")

    def __init__(self, fallback: str) -> None:
        self.answers: dict[Key, Answer] = {}
        self.asked: set[Key] = set()  # keys since the last forgetting
        self.new: dict[Key, None] = {}  # asked for and not known yet
        self.heard = False  # whether the service has answered yet
        self.off: Answer | None = None  # the fallback action for every key, in that mode
        self.trouble = ""  # why it did not answer the newest question
        self.unknown = Answer(fallback, Why.UNKNOWN_KEY)
        self.stale = Answer(fallback, Why.STALE)


class HttpActions:
    """The actions in force of the keys that this program asks for."""

    def __init__(
        self,
        url: str,
        fallbacks: Mapping[str, str],
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        refresh: float = 1.0,
        forget: float = 600.0,
        timeout: float = 5.0,
        most_keys: int = 100_000,
        stale_after: float | None = None,
        on_change: Callable[[Change], None] | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        for name, value in ("refresh", refresh), ("forget", forget), ("timeout", timeout):
            checked_seconds(name, value, positive=True)
        if stale_after is not None:
            checked_seconds("stale_after", stale_after)
        checked_count("most_keys", most_keys)
        checked_callback("on_change", on_change)
        answering = checked_fallbacks(fallbacks)
        self._streams = {stream: _Stream(fallback) for stream, fallback in answering.items()}
        self._wire = _Wire(url, token=token, tls=tls, timeout=timeout)
        self._refresh, self._forget = refresh, forget
        self._most_keys, self._stale_after = most_keys, stale_after
        self._on_change, self._clock = on_change, clock
        self._lost_at: float | None = None
        self._stirred, self._stopped = threading.Event(), threading.Event()
        self._asking = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="streamdp-http", daemon=True)

    def __enter__(self) -> Self:
        """Begin to keep known keys fresh."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; the last answers can still be read."""
        self._stopped.set()
        self._stirred.set()
        self._thread.join()
        self._wire.close()

    async def __aenter__(self) -> Self:
        """Like `with`, in a program with an event loop."""
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        """Like `with`, in a program with an event loop."""
        await asyncio.to_thread(self.__exit__)

    @property
    def streams(self) -> Sequence[str]:
        """The streams that can be asked for."""
        return list(self._streams)

    def action(self, stream: str, key: Key) -> Answer:
        """The action to play for a key; returns at once."""
        known = self._known(stream)
        answer = known.answers.get(key)
        if answer is None:
            known.asked.add(checked_key(key))
            if key not in known.new and len(known.answers) + len(known.new) < self._most_keys:
                known.new[key] = None
                self._stirred.set()
            return known.unknown
        known.asked.add(key)
        if known.off is not None:
            return known.off
        if self._stale_after is not None and self._stale_seconds() > self._stale_after:
            return known.stale
        return answer

    def fetch(self, stream: str, keys: Sequence[Key]) -> list[Answer]:
        """Ask the service now, and wait. Raises `TransportLost`."""
        self._known(stream)
        asked, answers = checked_keys(keys), list[Answer]()
        for start in range(0, len(asked), http_wire.MOST_KEYS_A_BATCH):
            answers += self._ask(stream, asked[start : start + http_wire.MOST_KEYS_A_BATCH])
        return answers

    def choose(
        self,
        stream: str,
        key: Key,
        request: str,
        *,
        context: Context | None = None,
        exclude: Collection[str] = (),
    ) -> Answer:
        """Let the service draw the action for a request of a feedback stream, and wait.

        A context leaves this process: the service refuses those of a stream whose contexts are
        private (`played = "value"`), for which only a cache in your process can choose. So do the
        exclusions.
        """
        (choice,) = self._choices(stream, [_asked(key, request, context, exclude)])
        return choice

    def choose_all(self, stream: str, requests: Sequence[tuple[Key, str]]) -> list[Answer]:
        """`choose` for many requests, a thousand per question. Never raises `TransportLost`."""
        return self._choices(stream, [_asked(key, request) for key, request in requests])

    def _choices(self, stream: str, requests: Sequence[http_wire.AskedChoice]) -> list[Answer]:
        stale = self._known(stream).stale
        choices: list[Answer] = []
        for start in range(0, len(requests), http_wire.MOST_KEYS_A_BATCH):
            some = requests[start : start + http_wire.MOST_KEYS_A_BATCH]
            try:
                choices += self._asked(stream, partial(self._wire.choose, stream, some))
            except TransportLost:
                choices += [settled(stale, (), one.exclude, stale.context) for one in some]
        told = [choice for choice in choices if isinstance(choice.context, Protected)]
        if told and not isinstance(stale.context, Protected):  # so are its fallbacks from now on
            self._known(stream).stale = structs.replace(stale, context=told[0].context)
        return choices

    def condition(self, stream: str) -> Condition:
        """What is known of a stream, and how fresh it is."""
        known = self._known(stream)
        feed = Feed.CURRENT if known.heard else Feed.LOADING
        if known.trouble:
            feed = Feed.LOST
        return Condition(
            feed, self._stale_seconds(), known.trouble, keys=len(known.answers),
            fallback_mode=known.off is not None,
        )  # fmt: skip

    def _known(self, stream: str) -> _Stream:
        try:
            return self._streams[stream]
        except KeyError:
            raise InvalidConfig(unknown_stream(stream, self._streams)) from None

    def _stale_seconds(self) -> float:
        """Seconds since the service is out of reach; 0 while it is not."""
        lost_at = self._lost_at
        return 0.0 if lost_at is None else max(0.0, self._clock() - lost_at)

    # -- the thread ------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Ask for new keys at once, and for all keys every `refresh` seconds."""
        refreshed = forgotten = self._clock()
        while not self._stopped.is_set():
            self._stirred.wait(self._refresh)
            self._stirred.clear()
            everything = self._clock() - refreshed >= self._refresh
            for stream, known in self._streams.items():
                keys = [*known.new, *(known.answers if everything else ())]
                try:
                    self.fetch(stream, keys)
                except Exception as error:
                    if not isinstance(error, StreamdpError):
                        _logger.exception("asking for the actions of stream %s failed", stream)
                        known.trouble = type(error).__name__
                    if self._stopped.wait(self._refresh):
                        return
            if everything:
                refreshed = self._clock()
            if self._clock() - forgotten > self._forget:
                forgotten = self._clock()
                self._drop_unasked()

    def _drop_unasked(self) -> None:
        with self._asking:
            for known in self._streams.values():
                asked, known.asked = known.asked, set()
                known.answers = {key: known.answers[key] for key in known.answers if key in asked}

    def _asked(self, stream: str, question: Callable[[], T]) -> T:
        """Ask the service; one question at a time."""
        known = self._streams[stream]
        with self._asking:
            try:
                answer = question()
            except StreamdpError as error:
                known.trouble = str(error)
                if self._lost_at is None and isinstance(error, TransportLost):
                    self._lost_at = self._clock()
                raise
            self._lost_at, known.heard, known.trouble = None, True, ""
            return answer

    def _ask(self, stream: str, keys: Sequence[Key]) -> list[Answer]:
        lines = self._asked(stream, partial(self._wire.ask, stream, keys))
        with self._asking:
            known = self._streams[stream]
            answers = [http_wire.answer_of(line) for line in lines]
            off = [answer for answer in answers if answer.why is Why.FALLBACK_MODE]
            known.off = off[-1] if off else None
            for key, after in zip(keys, answers, strict=True):
                self._put(stream, known, key, after)
        return answers

    def _put(self, stream: str, known: _Stream, key: Key, after: Answer) -> None:
        before = known.answers.get(key)
        known.new.pop(key, None)
        if before is None and len(known.answers) >= self._most_keys:
            return
        known.answers[key] = after
        news = before is None or (before.action, before.why, before.release) != (
            after.action,
            after.why,
            after.release,
        )
        if news and self._on_change is not None:
            try:
                self._on_change(Change(stream, key, before, after))
            except Exception:
                _logger.exception("on_change failed")


def _asked(
    key: Key, request: str, context: Context | None = None, exclude: Collection[str] = ()
) -> http_wire.AskedChoice:
    """A question for a choice; levels that are neither text nor numbers are `other` anyway."""
    name, sound = checked_id(request, "request"), (str, int, float)
    levels = {of: level for of, level in (context or {}).items() if isinstance(level, sound)}
    wire = http_wire.written_key(checked_key(key))
    return http_wire.AskedChoice(wire, name, levels or None, sorted(checked_exclusions(exclude)))


class _Wire:
    """One kept connection to the service."""

    def __init__(
        self, url: str, *, token: str | None, tls: ssl.SSLContext | None, timeout: float
    ) -> None:
        checked_text("url", url)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfig(
                "url", "not an address", expected="http(s)://host[:port]", got=repr(url)
            )
        self._connection = (
            http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=tls)
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        )
        self._where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._path = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def ask(self, stream: str, keys: Iterable[Key]) -> list[http_wire.HttpAnswer]:
        """The answers for a batch of keys."""
        asked = http_wire.Asked([http_wire.written_key(key) for key in keys])
        answers = self._answer(stream, "actions", asked, http_wire.all_told_decoder).answers
        if len(answers) != len(asked.keys):
            raise self._lost(f"{len(answers)} for {len(asked.keys)} keys")
        return answers

    def choose(self, stream: str, requests: Sequence[http_wire.AskedChoice]) -> list[Answer]:
        """The choices for a batch of requests."""
        asked = http_wire.AskedChoices(list(requests))
        choices = self._answer(stream, "choices", asked, http_wire.all_chosen_decoder).choices
        if [(choice.key, choice.request) for choice in choices] != [
            (choice.key, choice.request) for choice in asked.requests
        ]:
            raise self._lost(f"{len(choices)} choices of other requests")
        return [http_wire.answer_of(choice) for choice in choices]

    def _answer(self, stream: str, what: str, asked: object, decoder: msgspec.json.Decoder[T]) -> T:
        """An answer; a connection that was closed is opened once more."""
        body = http_wire.encode(asked)
        path = f"{self._path}/v1/streams/{quote(stream, safe='')}/{what}"
        status, answer = self._posted(path, body, may_be_closed=True)
        missing, expected = _MISSING[what]
        if status == _NO_SUCH_STREAM:
            raise InvalidConfig(f"stream {stream}", missing, expected=expected, got="status 404")
        if status == _MISTAKEN:
            got = answer[:500].decode(errors="replace")
            raise InvalidConfig(
                f"stream {stream}", "the question is refused", expected="one like in /openapi.json",
                got=got,
            )  # fmt: skip
        if status != 200:
            raise self._lost(f"status {status}")
        try:
            return decoder.decode(answer)
        except msgspec.MsgspecError:
            raise self._lost("an answer that is not the expected JSON") from None

    def _posted(self, path: str, body: bytes, *, may_be_closed: bool) -> tuple[int, bytes]:
        try:
            self._connection.request("POST", path, body, self._headers)
            response = self._connection.getresponse()
            answer = response.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if may_be_closed and isinstance(error, BrokenPipeError | ConnectionResetError):
                return self._posted(path, body, may_be_closed=False)
            raise self._lost(type(error).__name__) from None
        if not response.isclosed():
            self._connection.close()
        return response.status, answer

    def _lost(self, got: str) -> TransportLost:
        return TransportLost(self._where, "no answers", expected="actions", got=got)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
