"""Access: a token, a rate, and the headers of every answer. Plain ASGI around an application.

The token is compared in constant time, before anything else of the request is looked at. Three
things need none: the two probes, and the page itself, which holds no data and asks for the token.
The rate is one token bucket for the whole process. Probes do not count, and a few requests a second
are kept for metrics, so that look-ups cannot blind an operator.

A request with both ``Content-Length`` and ``Transfer-Encoding`` is refused (RFC 9112, 6.1): a proxy
before us may have found another end of it than we would.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hmac import compare_digest

from streamdp.serve.asgi import Answered, Receive, Refused, Scope, Send, header
from streamdp.serve.traffic import Traffic

PROBES = frozenset({b"/healthz", b"/readyz"})
METRICS = b"/metrics"

_SCRAPES_PER_SECOND = 10.0

_SAFE = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

Answer = Callable[[Scope, Receive], Awaitable[Answered]]


@dataclass(slots=True)
class Bucket:
    """A token bucket: a rate of requests, and as many at once as fit one second."""

    rate: float
    clock: Callable[[], float]
    _left: float = field(init=False)
    _filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        """Start full."""
        self._left, self._filled_at = max(1.0, self.rate), self.clock()

    def take(self) -> bool:
        """Take one token, if there is one."""
        now = self.clock()
        self._left = min(max(1.0, self.rate), self._left + (now - self._filled_at) * self.rate)
        self._filled_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Gate:
    """The application that a listener runs."""

    def __init__(
        self,
        answer: Answer,
        *,
        token: Callable[[], bytes | None],
        bucket: Bucket,
        traffic: Traffic,
        open_paths: frozenset[bytes] = PROBES | {b"/"},
    ) -> None:
        self._answer = answer
        self._token = token
        self._bucket = bucket
        self._scrapes = Bucket(_SCRAPES_PER_SECOND, bucket.clock)
        self._traffic = traffic
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            raise AssertionError("the server passes only HTTP requests on")
        begun, path = self._bucket.clock(), scope["raw_path"]
        try:
            _check_length(scope)
            self._admit(scope)
            answered = await self._answer(scope, receive)
        except Refused as refused:
            answered = refused.answer()
        answered.headers.extend(_SAFE)
        await answered.send(scope, send)
        took = self._bucket.clock() - begun
        self._traffic.answered(answered.status, method=scope["method"], path=path, seconds=took)

    def _admit(self, scope: Scope) -> None:
        path = scope["raw_path"]
        if path in PROBES and path in self._open:
            return
        if not (self._bucket.take() or (path == METRICS and self._scrapes.take())):
            raise Refused(429, "too many requests", (b"retry-after", b"1"))
        token = self._token()
        if token is None or path in self._open:
            return
        given = header(scope, b"authorization") or b""
        if not compare_digest(given, b"Bearer " + token):
            raise Refused(401, "a bearer token is required", (b"www-authenticate", b"Bearer"))


def _check_length(scope: Scope) -> None:
    """Refuse a request that says in two ways where it ends."""
    if header(scope, b"transfer-encoding") is None or header(scope, b"content-length") is None:
        return
    raise Refused(400, "both Content-Length and Transfer-Encoding", (b"connection", b"close"))
