"""Checks what a program hands to a client, where a wrong value would do harm later and elsewhere.

A key of another type than bytes has no learner, so its answer would be the fallback action for
ever.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from streamdp.client.answers import Context, Names, Source
from streamdp.core.errors import refuse
from streamdp.ports import Key

MOST_ID_BYTES = 256
"""Bytes of a request's or a person's id: the join keeps ids in memory."""


def checked_key(key: object) -> Key:
    """A record's key.

    >>> checked_key("fr")
    Traceback (most recent call last):
    streamdp.core.errors.InvalidConfig: key: not a key; expected bytes or None, got str
    """
    if key is not None and not isinstance(key, bytes):
        refuse("key", "not a key", "bytes or None", type(key).__name__)
    return key


def checked_keys(keys: object) -> list[Key]:
    """The keys of a question about many."""
    if not isinstance(keys, Iterable) or isinstance(keys, bytes):
        refuse("keys", "no keys", "a list of them", type(keys).__name__)
    return [checked_key(key) for key in keys]


def checked_id(value: object, of: str) -> str:
    """The id of a request or a person."""
    if not isinstance(value, str):
        refuse(f"{of} id", "no id", "text", type(value).__name__)
    return value


def id_bytes(value: object, of: str) -> bytes:
    """An id in the form of a header."""
    text = checked_id(value, of).encode()
    if not 1 <= len(text) <= MOST_ID_BYTES:
        expected = f"1 to {MOST_ID_BYTES} bytes of UTF-8"
        refuse(f"{of} id", "no id", expected, len(text))
    return text


def check_fields(context: Context, *known: Names) -> None:
    """Refuse a field that nobody has declared: a misspelt one would be `other` for ever.

    A policy's line and its reader may know different fields while an epoch is rolled out.
    """
    declared: set[str] = set()
    for names in known:
        if names.contexts is not None:
            if context.keys() <= names.contexts.declared:
                return
            declared |= names.contexts.declared
    if declared:
        unknown = sorted(repr(name)[:80] for name in context.keys() - declared)
        expected = f"some of {', '.join(sorted(declared))}"
        refuse("context", "unknown field", expected, ", ".join(unknown))


def checked_exclusions(given: object) -> frozenset[str]:
    """The names of actions that a request must not get; what is no name is ignored.

    >>> checked_exclusions("boots")
    Traceback (most recent call last):
    streamdp.core.errors.InvalidConfig: exclude: no names; expected a list of them, got str
    """
    if isinstance(given, str | bytes) or not isinstance(given, Collection):
        refuse("exclude", "no names", "a list of them", type(given).__name__)
    return frozenset(name for name in given if isinstance(name, str) and name)


def checked_seconds(name: str, value: object, *, positive: bool = False) -> None:
    """A length of time."""
    expected = "seconds, more than 0" if positive else "seconds, at least 0"
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(name, "no length of time", expected, type(value).__name__)
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        refuse(name, "no length of time", expected, value)


def checked_count(name: str, value: object) -> None:
    """A limit."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        refuse(name, "no limit", "a whole number, at least 1", repr(value))


def checked_callback(name: str, value: object) -> None:
    """A function of the program, or none."""
    if value is not None and not callable(value):
        refuse(name, "cannot be called", "a function", type(value).__name__)


def checked_fallbacks(given: object) -> Mapping[str, str]:
    """The action of each stream where nothing is known."""
    if not isinstance(given, Mapping):
        expected = "a fallback action for each stream"
        refuse("fallbacks", "not actions", expected, type(given).__name__)
    for stream, action in given.items():
        checked_text("fallbacks", stream)
        checked_text(f"fallbacks: stream {stream}", action)
    return given


def checked_sources(given: object) -> list[Source]:
    """The streams to follow."""
    if not isinstance(given, Iterable):
        expected = "a list of `Source`"
        refuse("sources", "no streams", expected, type(given).__name__)
    sources = list(given)
    for source in sources:
        if not isinstance(source, Source):
            got = type(source).__name__
            refuse("sources", "not a stream", "`Source(topics, fallback)`", got)
        checked_text(f"stream {source.stream}: fallback", source.fallback)
    return sources


def checked_text(where: str, value: object) -> None:
    """The name of a stream or an action; an empty one stands for no fallback action."""
    if not isinstance(value, str):
        refuse(where, "no name", "text", repr(value))
