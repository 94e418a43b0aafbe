"""The JSON of look-ups over HTTP: what the service answers and `HttpActions` reads.

A record key is text if it is UTF-8, null if it is null, and otherwise an object with its base64:
`{"base64": "/w=="}`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from binascii import a2b_base64
from math import isfinite
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct, structs

from streamdp.client.answers import Answer, Names, Protected, Why
from streamdp.ports import Key
from streamdp.wire.nesting import pruned

MOST_KEYS_A_BATCH = 1000

T = TypeVar("T")


class Bytes(Struct, frozen=True, forbid_unknown_fields=True):
    """A key that is not text."""

    base64: str

    def __post_init__(self) -> None:
        """Refuse other text: whoever decodes JSON is told where it stands."""
        a2b_base64(self.base64, strict_mode=True)


WireKey = str | None | Bytes


class InForce(Struct, frozen=True, gc=False, omit_defaults=True):
    """The release that an answer comes from."""

    partition: int
    epoch: int
    born: int
    block: int
    slots: int
    list: int = 0  # that its policy follows, if it follows one


class HttpAnswer(Struct, frozen=True, gc=False):
    """The answer for one key, as JSON."""

    action: str
    source: Why
    release: InForce | None


class KeyTold(Struct, frozen=True):
    """The answer for one key in the address."""

    stream: str
    key: WireKey
    action: str
    source: Why
    release: InForce | None


class Asked(Struct, frozen=True, forbid_unknown_fields=True):
    """A batch of keys."""

    keys: list[WireKey]


class AllTold(Struct, frozen=True):
    """The answers for a batch, in its order."""

    stream: str
    answers: list[HttpAnswer]


class ChoiceTold(Struct, frozen=True, gc=False, omit_defaults=True):
    """The choice for one request of a feedback stream."""

    stream: str
    key: WireKey
    request: str
    action: str
    probability: float
    source: Why
    release: InForce | None
    context: str = ""  # as the header of the request, in a stream with public contexts
    played: Literal["header", "value"] = "header"  # where a request has to say what was shown
    filter: str = ""  # the digest of the actions that were left, where some were excluded
    list: int = 0  # the ordinal of the stream's list, if it has one


WireContext = dict[str, str | int | float]
"""The levels of a request's fields."""


class AskedChoice(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request for a choice."""

    key: WireKey
    request: str
    context: WireContext | None = None
    exclude: list[str] = []


class AskedChoices(Struct, frozen=True, forbid_unknown_fields=True):
    """A batch of requests."""

    requests: list[AskedChoice]


class AllChosen(Struct, frozen=True):
    """The choices for a batch, in its order."""

    stream: str
    choices: list[ChoiceTold]


def chosen(stream: str, key: Key, request: str, answer: Answer) -> ChoiceTold:
    """A choice in the form that the service sends."""
    return ChoiceTold(
        stream,
        written_key(key),
        request,
        answer.action,
        answer.probability,
        answer.why,
        in_force(answer),
        *(("", "value") if isinstance(answer.context, Protected) else (answer.context, "header")),
        answer.filter,
        answer.list,
    )


def answer_for_http(answer: Answer) -> HttpAnswer:
    """An answer in the form that the service sends."""
    return HttpAnswer(answer.action, answer.why, in_force(answer))


def in_force(answer: Answer) -> InForce | None:
    """The release behind an answer."""
    if answer.partition < 0:
        return None
    where = answer.partition, answer.epoch, answer.born, answer.block, answer.slots
    return InForce(*where, list=answer.computed_under)


def answer_of(line: HttpAnswer | ChoiceTold) -> Answer:
    """The answer that the service sent."""
    answer = Answer(line.action, line.source)
    if line.release is not None:
        release = line.release
        where = release.partition, release.epoch, release.born, release.block, release.slots + 1
        answer = Answer(line.action, line.source, *where, computed_under=release.list)
    if not isinstance(line, ChoiceTold):
        return answer
    context = line.context if line.played == "header" else Protected(Names(played="value"), 0)
    return structs.replace(
        answer,
        probability=line.probability,
        context=context,
        filter=line.filter,
        list=line.list,
    )


def written_key(key: Key) -> WireKey:
    """A record key in the form of JSON, one form for each key.

    >>> written_key(b"fr"), written_key(None), written_key(b"\\xff")
    ('fr', None, Bytes(base64='/w=='))
    """
    if key is None:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return Bytes(b64encode(key).decode())


def read_key(key: WireKey) -> Key:
    """The record key behind `written_key`'s form."""
    if key is None:
        return None
    return key.encode() if isinstance(key, str) else a2b_base64(key.base64)


def asked_of(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """What a call asks. Of its contexts, what is no level is `other`, whatever stands there; of its
    exclusions, what is no name is ignored.

    Privacy: a private context that were refused would leave a gap in the topic of requests, and an
    answer 400 in a public metric.
    """
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return decoder.decode(_readable(body))


def _readable(body: bytes) -> bytes:
    """The same call, whose contexts have only what could be a level, and its exclusions only names.

    JSON that others write has NaN and 1e400, halves of characters, control characters, and any
    depth.
    """
    try:
        text = pruned(body).decode(errors="surrogateescape")
        call = json.loads(text, parse_int=float, strict=False)
    except ValueError:
        return body
    calls = call.get("requests") if isinstance(call, dict) else None
    for one in (call, *(calls if isinstance(calls, list) else ())):
        if isinstance(one, dict) and "exclude" in one:
            names = one["exclude"] if isinstance(one["exclude"], list) else []
            one["exclude"] = [_whole(name) for name in names if isinstance(name, str)]
        if isinstance(one, dict) and "context" in one:
            context = one["context"] if isinstance(one["context"], dict) else {}
            one["context"] = {
                _whole(name): _whole(level) if isinstance(level, str) else level
                for name, level in context.items()
                if isinstance(level, str) or (isinstance(level, float) and isfinite(level))
            }
    return json.dumps(call).encode()


def _whole(text: str) -> str:
    """The text with a mark in place of what no UTF-8 has."""
    return text.encode(errors="replace").decode()


encode = msgspec.json.Encoder().encode
asked_choices_decoder = msgspec.json.Decoder(AskedChoices)
asked_decoder = msgspec.json.Decoder(Asked)
all_told_decoder = msgspec.json.Decoder(AllTold)
all_chosen_decoder = msgspec.json.Decoder(AllChosen)
