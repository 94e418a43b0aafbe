"""Look-ups: which action is in force for a key. The hot path, so plain ASGI.

    GET  /v1/streams/{stream}/keys/{key}/action           a key that is text, percent-encoded
    GET  /v1/streams/{stream}/keys-base64url/{key}/action any key, base64url without padding
    GET  /v1/streams/{stream}/null-key/action             the null key
    POST /v1/streams/{stream}/actions                     up to 1,000 keys at once

Addresses are taken apart as they came, before any decoding, so an encoded slash is part of a key
and nothing else. Nothing is kept for a key that is asked for.

An answer's ETag names the release behind it (partition, epoch, born, stop): it changes when, and
only when, another release is in force. How old the knowledge is stands in headers:
``streamdp-feed`` (loading, current, lost), ``streamdp-stale-seconds`` (since the published topic
was lost; 0 while it is not) and ``streamdp-source`` (published; or why the fallback action is
answered). A stream without a fallback action answers 404 where nothing is known.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from hashlib import sha256
from urllib.parse import unquote_to_bytes

import msgspec

from streamdp import __version__
from streamdp.client import Answer
from streamdp.client.http_wire import (
    MOST_KEYS_A_BATCH,
    AllTold,
    KeyTold,
    asked_decoder,
    encode,
    in_force,
    read_key,
    told,
    written_key,
)
from streamdp.core.errors import InvalidConfig
from streamdp.ports import Key
from streamdp.service.about import NO_FALLBACK, About
from streamdp.service.http.asgi import (
    JSON,
    Answered,
    Receive,
    Refused,
    Scope,
    body_of,
    header,
)
from streamdp.service.http.knowledge import Knowledge

MOST_BODY = 2 << 20
"""Bytes of a batch of keys: a thousand of the longest that streams allow by default, in base64."""

_FRESH = (b"cache-control", b"no-cache")
_ONLY_GET = (b"allow", b"GET, HEAD")
_ONLY_POST = (b"allow", b"POST")


class Lookups:
    """Answers for keys, out of the published actions."""

    def __init__(self, knowledge: Knowledge, *, body_seconds: float) -> None:
        self._knowledge = knowledge
        self._cache = knowledge.cache
        self._body_seconds = body_seconds
        self._streams = {
            name.encode(): (name, _fingerprint(each)) for name, each in knowledge.about.items()
        }

    def parts(self, scope: Scope) -> list[bytes] | None:
        """The address taken apart, if it is a look-up's."""
        parts: list[bytes] = scope["raw_path"].split(b"/")
        if len(parts) < 5 or parts[1] != b"v1" or parts[2] != b"streams":
            return None
        match parts[4:]:
            case [b"keys" | b"keys-base64url", _, b"action"] | [b"null-key", b"action"]:
                return parts
            case [b"actions"]:
                return parts
        return None

    async def answer(self, scope: Scope, receive: Receive, parts: list[bytes]) -> Answered:
        """The answer to a look-up."""
        try:
            stream, fingerprint = self._streams[parts[3]]
        except KeyError:
            raise Refused(404, "no such stream") from None
        if parts[4] == b"actions":
            return await self._batch(scope, receive, stream)
        if scope["method"] not in ("GET", "HEAD"):
            raise Refused(405, "look-ups are GET", _ONLY_GET)
        return self._one(scope, stream, fingerprint, key_of(parts))

    def _one(self, scope: Scope, stream: str, fingerprint: str, key: Key) -> Answered:
        answer = self._cache.action(stream, key)
        tag = _etag(answer, fingerprint)
        headers = [JSON, (b"etag", tag), _FRESH, *self._age(stream)]
        headers.append((b"streamdp-source", answer.why.value.encode()))
        asked = header(scope, b"if-none-match")
        if asked is not None and _matches(asked, tag):
            return Answered(304, headers[1:], b"")
        if answer.action == NO_FALLBACK:
            raise Refused(404, "no action is known, and the stream has no fallback", *headers[1:])
        body = KeyTold(stream, written_key(key), answer.action, answer.why, in_force(answer))
        return Answered(200, headers, encode(body))

    async def _batch(self, scope: Scope, receive: Receive, stream: str) -> Answered:
        if scope["method"] != "POST":
            raise Refused(405, "a batch of look-ups is POST", _ONLY_POST)
        body = await body_of(receive, most=MOST_BODY, seconds=self._body_seconds)
        try:
            keys = [read_key(key) for key in asked_decoder.decode(body).keys]
        except (msgspec.MsgspecError, InvalidConfig, UnicodeError, RecursionError):
            expected = 'expected {"keys": ["text", null, {"base64": "…"}]}'
            raise Refused(400, f"unreadable; {expected}") from None
        if len(keys) > MOST_KEYS_A_BATCH:
            raise Refused(413, f"more than {MOST_KEYS_A_BATCH} keys")
        action = self._cache.action
        answers = AllTold(stream, [told(action(stream, key)) for key in keys])
        return Answered(200, [JSON, (b"cache-control", b"no-store"), *self._age(stream)],
                        encode(answers))  # fmt: skip

    def _age(self, stream: str) -> list[tuple[bytes, bytes]]:
        """How old the knowledge is."""
        feed, stale = self._cache.freshness(stream)
        return [
            (b"streamdp-feed", feed.value.encode()),
            (b"streamdp-stale-seconds", b"%.3f" % stale),
        ]


def key_of(parts: list[bytes]) -> Key:
    """The key that an address names."""
    if parts[4] == b"null-key":
        return None
    written = parts[5]
    if parts[4] == b"keys":
        return unquote_to_bytes(written) if b"%" in written else written
    try:
        return urlsafe_b64decode(_checked(written) + b"=" * (-len(written) % 4))
    except ValueError:
        raise Refused(400, "the key is no base64url") from None


_BASE64URL = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def _checked(written: bytes) -> bytes:
    """Python would leave out what is no base64."""
    if not _BASE64URL.issuperset(written):
        raise ValueError("no base64url")
    return written


def _fingerprint(about: About) -> str:
    """Changes when the same release would be told differently."""
    return sha256(f"{__version__} {about.fallback}".encode()).hexdigest()[:8]


def _etag(answer: Answer, fingerprint: str) -> bytes:
    if answer.partition < 0:
        return f'"{answer.why}.{fingerprint}"'.encode()
    epoch, born, stop = answer.release
    told = f"{answer.partition}.{epoch}.{born}.{stop}"
    return f'"{told}.{answer.why}.{fingerprint}"'.encode()


def _matches(asked: bytes, tag: bytes) -> bool:
    """RFC 9110, 13.1.2: any of the listed, compared weakly; or any at all."""
    if asked == tag:
        return True
    each = [one.strip().removeprefix(b"W/") for one in asked.split(b",")]
    return tag in each or each == [b"*"]
