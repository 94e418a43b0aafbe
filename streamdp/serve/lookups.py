"""Look-ups: which action is in force for a key. The hot path, so plain ASGI.

    GET  /v1/streams/{stream}/keys/{key}/action           a key that is text, percent-encoded
    GET  /v1/streams/{stream}/keys-base64url/{key}/action any key, base64url without padding
    GET  /v1/streams/{stream}/null-key/action             the null key
    POST /v1/streams/{stream}/actions                     up to 1,000 keys at once

For a feedback stream a request asks for its choice, which is drawn from the policy in force:

    GET  /v1/streams/{stream}/keys/{key}/choice?request={id}   and likewise for the other keys;
                                       in a stream with contexts `&device=phone&…` beside it,
                                       and `&exclude=NAME` for each action that is not to be shown
    POST /v1/streams/{stream}/choices                     up to 1,000 requests at once

Addresses are split before any decoding, so an encoded slash is part of a key. A look-up leaves no
trace of its key.

An answer's ETag names the release behind it (partition, epoch, born, stop): it changes exactly when
another release is in force. Headers say how old the knowledge is: ``streamdp-feed`` (loading,
current, lost), ``streamdp-stale-seconds`` (since the published topic was lost; 0 while it is not)
and ``streamdp-source`` (published, or why the fallback action is given). A stream without a
fallback action answers 404 where nothing is known.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from functools import partial
from hashlib import sha256
from urllib.parse import parse_qs, unquote_to_bytes

from streamdp import __version__
from streamdp.client import Answer, Why
from streamdp.client.http_wire import (
    MOST_KEYS_A_BATCH,
    AllChosen,
    AllTold,
    ChoiceTold,
    KeyTold,
    answer_for_http,
    asked_choices_decoder,
    asked_decoder,
    asked_of,
    chosen,
    encode,
    in_force,
    read_key,
    written_key,
)
from streamdp.core.errors import InvalidConfig
from streamdp.ports import Key
from streamdp.serve.about import NO_FALLBACK, About
from streamdp.serve.asgi import (
    JSON,
    Answered,
    Receive,
    Rejected,
    Scope,
    body_of,
    decoded,
    header,
)
from streamdp.serve.knowledge import Knowledge

MOST_BODY = 2 << 20
"""Bytes of a batch: a thousand of the longest keys that streams allow by default, in base64."""

_BATCH = 5
"""Parts of a batch's address, the empty one before the first slash included."""

_FRESH = (b"cache-control", b"no-cache")
_ONLY_GET = (b"allow", b"GET, HEAD")
_ONLY_POST = (b"allow", b"POST")


class Lookups:
    """Answers look-ups from the published actions."""

    def __init__(self, knowledge: Knowledge, *, body_seconds: float) -> None:
        self._knowledge = knowledge
        self._cache = knowledge.cache
        self._body_seconds = body_seconds
        self._streams = {
            name.encode(): (name, _fingerprint(stream)) for name, stream in knowledge.about.items()
        }

    def parts(self, scope: Scope) -> list[bytes] | None:
        """The parts of the address, if it is a look-up's."""
        parts: list[bytes] = scope["raw_path"].split(b"/")
        if len(parts) < 5 or parts[1] != b"v1" or parts[2] != b"streams":
            return None
        match parts[4:]:
            case [b"keys" | b"keys-base64url", _, b"action" | b"choice"]:
                return parts
            case [b"null-key", b"action" | b"choice"] | [b"actions" | b"choices"]:
                return parts
        return None

    async def answer(self, scope: Scope, receive: Receive, parts: list[bytes]) -> Answered:
        """The answer to a look-up."""
        try:
            stream, fingerprint = self._streams[parts[3]]
        except KeyError:
            raise Rejected(404, "unknown stream") from None
        self._check_kind(stream, parts)
        if len(parts) == _BATCH:
            if scope["method"] != "POST":
                raise Rejected(405, "a batch of look-ups is a POST", _ONLY_POST)
            body = await body_of(receive, most=MOST_BODY, seconds=self._body_seconds)
            answers = (
                self._actions(body, stream)
                if parts[4] == b"actions"
                else self._choices(body, stream)
            )
            return Answered(
                200, [JSON, (b"cache-control", b"no-store"), *self._age(stream)], answers
            )
        if scope["method"] not in ("GET", "HEAD"):
            raise Rejected(405, "a look-up is a GET", _ONLY_GET)
        if parts[-1] == b"choice":
            return self._choice(scope, stream, key_of(parts))
        return self._one(scope, stream, fingerprint, key_of(parts))

    def _check_kind(self, stream: str, parts: list[bytes]) -> None:
        """Refuse a choice of a stream of losses, and an action of a feedback stream."""
        wants_choice = parts[-1].startswith(b"choice")
        if wants_choice != (self._knowledge.about[stream].source.names is not None):
            kind = "publishes actions, not policies: ask for /action"
            if not wants_choice:
                kind = "is a feedback stream: ask for /choice?request=ID"
            raise Rejected(404, f"this stream {kind}")
        if wants_choice:
            check_public(self._knowledge, stream)

    def _one(self, scope: Scope, stream: str, fingerprint: str, key: Key) -> Answered:
        answer = self._cache.action(stream, key)
        tag = _etag(answer, fingerprint)
        headers = [JSON, (b"etag", tag), _FRESH, *self._age(stream)]
        headers.append((b"streamdp-source", answer.why.value.encode()))
        asked = header(scope, b"if-none-match")
        if asked is not None and _matches(asked, tag):
            return Answered(304, headers[1:], b"")
        if answer.action == NO_FALLBACK:
            raise Rejected(404, "no action is known, and the stream has no fallback", *headers[1:])
        body = KeyTold(stream, written_key(key), answer.action, answer.why, in_force(answer))
        return Answered(200, headers, encode(body))

    def _choice(self, scope: Scope, stream: str, key: Key) -> Answered:
        """Draw a choice for the request that the query names."""
        query = parse_qs(scope["query_string"].decode("ascii", "replace"), keep_blank_values=True)
        requests = query.get("request", [])
        if len(requests) != 1 or not requests[0]:
            raise Rejected(400, "expected ?request=ID once, with the request's own id")
        names = self._knowledge.about[stream].source.names
        context, exclude = None, query.get("exclude", [])
        if names is not None and names.contexts is not None:
            declared = names.contexts.declared
            context = {
                name: values[0] if len(values) == 1 else None
                for name, values in query.items()
                if name not in ("request", "exclude") or name in declared
            }
            exclude = [] if "exclude" in declared else exclude
        try:
            choice = self._cache.choose(stream, key, requests[0], context=context, exclude=exclude)
        except InvalidConfig as error:
            raise Rejected(400, str(error)) from None
        headers = [JSON, (b"cache-control", b"no-store"), *self._age(stream)]
        headers.append((b"streamdp-source", choice.why.value.encode()))
        if choice.action == NO_FALLBACK and choice.why is not Why.NOTHING_ALLOWED:
            raise Rejected(404, "no policy is known, and the stream has no fallback", *headers[1:])
        return Answered(200, headers, encode(chosen(stream, key, requests[0], choice)))

    def _choices(self, body: bytes, stream: str) -> bytes:
        expected = '{"requests": [{"key": "text", "request": "an id"}]}'
        requests = decoded(partial(asked_of, asked_choices_decoder), body, expected).requests
        if len(requests) > MOST_KEYS_A_BATCH:
            raise Rejected(413, f"more than {MOST_KEYS_A_BATCH} requests")
        choose, drawn = self._cache.choose, list[ChoiceTold]()
        try:
            for request in requests:
                key = read_key(request.key)
                choice = choose(
                    stream,
                    key,
                    request.request,
                    context=request.context,
                    exclude=request.exclude,
                )
                drawn.append(chosen(stream, key, request.request, choice))
        except InvalidConfig as error:
            raise Rejected(400, str(error)) from None
        return encode(AllChosen(stream, drawn))

    def _actions(self, body: bytes, stream: str) -> bytes:
        expected = '{"keys": ["text", null, {"base64": "…"}]}'
        keys = decoded(asked_decoder.decode, body, expected).keys
        if len(keys) > MOST_KEYS_A_BATCH:
            raise Rejected(413, f"more than {MOST_KEYS_A_BATCH} keys")
        answer = self._cache.answer  # `_check_kind` has found that it publishes actions
        answers = [answer_for_http(answer(stream, read_key(key))) for key in keys]
        return encode(AllTold(stream, answers))

    def _age(self, stream: str) -> list[tuple[bytes, bytes]]:
        """Headers that say how old the knowledge is."""
        known = self._cache.condition(stream)
        return [
            (b"streamdp-feed", known.feed.value.encode()),
            (b"streamdp-stale-seconds", b"%.3f" % known.stale_seconds),
        ]


def check_public(knowledge: Knowledge, stream: str) -> None:
    """Refuse to choose for a stream whose contexts are private: they must not travel."""
    names = knowledge.about[stream].source.names
    if names is not None and names.contexts is not None and names.played == "value":
        raise Rejected(
            404, "contexts of this stream are private: choose in the process that has it"
        )


def key_of(parts: list[bytes]) -> Key:
    """The key in an address."""
    if parts[4] == b"null-key":
        return None
    written = parts[5]
    if parts[4] == b"keys":
        return unquote_to_bytes(written) if b"%" in written else written
    try:
        return urlsafe_b64decode(_checked(written) + b"=" * (-len(written) % 4))
    except ValueError:
        raise Rejected(400, "the key is not base64url") from None


_BASE64URL = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def _checked(written: bytes) -> bytes:
    """Refuse other characters: Python's decoder would ignore them."""
    if not _BASE64URL.issuperset(written):
        raise ValueError("no base64url")
    return written


def _fingerprint(about: About) -> str:
    """Changes when the same release would be answered differently."""
    return sha256(f"{__version__} {about.fallback}".encode()).hexdigest()[:8]


def _etag(answer: Answer, fingerprint: str) -> bytes:
    if answer.partition < 0:
        of_list = f".{answer.list}" if answer.list else ""
        return f'"{answer.why}{of_list}.{fingerprint}"'.encode()
    epoch, born, stop = answer.release
    release = f"{answer.partition}.{epoch}.{born}.{stop}"
    return f'"{release}.{answer.why}.{fingerprint}"'.encode()


def _matches(asked: bytes, tag: bytes) -> bool:
    """RFC 9110, 13.1.2: any of the listed, compared weakly; or any at all."""
    if asked == tag:
        return True
    tags = [one.strip().removeprefix(b"W/") for one in asked.split(b",")]
    return tag in tags or tags == [b"*"]
