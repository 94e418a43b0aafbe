"""The public part of requests and outcomes: their keys, and these headers.

| header | of | what |
|---|---|---|
| `streamdp-request` | both | the request's id: bytes, exactly one, not empty |
| `streamdp-action` | requests | the action that was shown, where the stream learns from it |
| `streamdp-context` | requests | the levels of its fields, where they are public |
| `streamdp-filter` | requests | the digest of the actions that were allowed, if not all were |
| `streamdp-list` | requests | the ordinal of the stream's list, if it has one |
| `streamdp-person` | requests | a person's id, where a cap is configured; never in an event |

An event has the headers of its request, in order, without the person's. So it has the action, and
whatever else the recommender wrote there, such as the probability of the draw. Where a stream reads
action and context from contents, headers that name them (`TELLING`) belong into no request, and are
not copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamdp.wire.feedback import ACTION_HEADER, CONTEXT_HEADER

Key = bytes | None
Headers = Sequence[tuple[str, bytes | None]]

REQUEST_HEADER = "streamdp-request"
PERSON_HEADER = "streamdp-person"
PROPENSITY_HEADER = "pscore"
FILTER_HEADER, LIST_HEADER = "streamdp-filter", "streamdp-list"
TELLING = frozenset({ACTION_HEADER, CONTEXT_HEADER, PROPENSITY_HEADER, FILTER_HEADER})
"""Headers that say what was shown, or to whom: a propensity beside a public table names a cell."""


def only(headers: Headers, name: str) -> bytes | None:
    """The value of a header that is there exactly once and not empty; otherwise None.

    >>> only([("streamdp-request", b"r1")], "streamdp-request")
    b'r1'
    >>> only([("streamdp-request", b"r1"), ("streamdp-request", b"r2")], "streamdp-request")
    """
    given = [value for key, value in headers if key == name]
    return given[0] or None if len(given) == 1 else None


def event_headers(
    headers: Headers, *, but: frozenset[str] = frozenset()
) -> list[tuple[str, bytes | None]]:
    """The headers of the event that a request becomes."""
    return [pair for pair in headers if pair[0] != PERSON_HEADER and pair[0] not in but]
