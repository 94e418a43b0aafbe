"""Access: tokens, a rate, and the headers of every answer. Plain ASGI around an application.

The token is compared in constant time, before anything else of the request is looked at. Three
things need none: the two probes, and the page itself, which holds no data and asks for the token.
Changes of lists are opened by a token of their own, which opens nothing else.
The rate is one token bucket for the whole process. Probes do not count, and a few requests a second
are kept for metrics, so that look-ups cannot blind an operator.

Rewards (`serve.ranking`) are apart: they take nothing from this rate and are counted nowhere, and a
*publishable key*, which a page may show to everybody, opens the call that writes one of them and
nothing else. Pages of the configured origins may call it (CORS).

A request with both ``Content-Length`` and ``Transfer-Encoding`` is refused (RFC 9112, 6.1): a proxy
before us may have found another end of it than we would.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hmac import compare_digest

from streamdp.serve.asgi import Answered, Headers, Receive, Rejected, Scope, Send, header
from streamdp.serve.traffic import Traffic

PROBES = frozenset({b"/healthz", b"/readyz"})
METRICS = b"/metrics"

_SCRAPES_PER_SECOND = 10.0

PUBLISHABLE = "streamdp.publishable"
"""In a request's scope: it carries the publishable key, not the token."""

CATALOGUE = b"/catalogue"
"""Changes of lists (`serve.catalogue`): they have a token of their own."""

_REWARD = b"/reward"
REWARDS = (_REWARD, b"/rewards")

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


@dataclass(frozen=True, slots=True)
class RewardAccess:
    """Who may reward without the token."""

    publishable: Callable[[], bytes | None] = lambda: None
    origins: frozenset[bytes] = frozenset()  # whose pages may

    def headers(self, scope: Scope) -> Headers:
        """What lets a page of an allowed origin read the answer to its reward."""
        if not self.origins or not scope["raw_path"].endswith(_REWARD):
            return []
        origin = header(scope, b"origin")
        vary = (b"vary", b"origin")
        if origin is None or origin not in self.origins:
            return [vary]
        allowed = [
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-methods", b"POST"),
            (b"access-control-allow-headers", b"authorization, content-type"),
            (b"access-control-max-age", b"86400"),
        ]
        return [vary, *allowed]


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
        rewards: RewardAccess | None = None,
        catalogue: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        self._answer = answer
        self._catalogue = catalogue
        self._token = token
        self._bucket = bucket
        self._scrapes = Bucket(_SCRAPES_PER_SECOND, bucket.clock)
        self._traffic = traffic
        self._open = open_paths
        self._rewards = rewards or RewardAccess()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            raise AssertionError("the server passes only HTTP requests on")
        begun, path = self._bucket.clock(), scope["raw_path"]
        try:
            _check_length(scope)
            if scope["method"] == "OPTIONS" and len(self._rewards.headers(scope)) > 1:
                answered = Answered(204, [], b"")
            else:
                self._admit(scope)
                answered = await self._answer(scope, receive)
        except Rejected as refused:
            answered = refused.answer()
        answered.headers.extend((*_SAFE, *self._rewards.headers(scope)))
        await answered.send(scope, send)
        if path.endswith(REWARDS):  # that there are rewards is secret
            return
        took = self._bucket.clock() - begun
        self._traffic.answered(answered.status, method=scope["method"], path=path, seconds=took)

    def _admit(self, scope: Scope) -> None:
        path = scope["raw_path"]
        if path in PROBES and path in self._open:
            return
        if path.endswith(REWARDS):
            self._admit_reward(scope)
            return
        if not (self._bucket.take() or (path == METRICS and self._scrapes.take())):
            raise Rejected(429, "too many requests", (b"retry-after", b"1"))
        token = self._token()
        if path.endswith(CATALOGUE):
            token = self._catalogue() or token
        if path not in self._open and not _carries(scope, token):
            raise _NO_TOKEN

    def _admit_reward(self, scope: Scope) -> None:
        if _carries(scope, self._token()):
            return
        key = self._rewards.publishable()
        if key is None or not scope["raw_path"].endswith(_REWARD) or not _carries(scope, key):
            raise _NO_TOKEN
        scope[PUBLISHABLE] = True


_NO_TOKEN = Rejected(401, "a bearer token is required", (b"www-authenticate", b"Bearer"))


def _carries(scope: Scope, token: bytes | None) -> bool:
    """Whether a request carries this token, or needs none."""
    given = header(scope, b"authorization") or b""
    return token is None or compare_digest(given, b"Bearer " + token)


def _check_length(scope: Scope) -> None:
    """Refuse a request that says in two ways where it ends."""
    if header(scope, b"transfer-encoding") is None or header(scope, b"content-length") is None:
        return
    raise Rejected(400, "both Content-Length and Transfer-Encoding", (b"connection", b"close"))
