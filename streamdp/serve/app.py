"""The public application: page, data, metrics, probes, API description, and what others answer.

Look-ups are tried first, then rank and reward, then the few fixed addresses.
"""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import islice
from re import DOTALL, findall
from urllib.parse import parse_qsl

from streamdp.client.http_wire import encode, in_force, written_key
from streamdp.serve.asgi import JSON, Answered, Headers, Receive, Rejected, Scope
from streamdp.serve.catalogue import CatalogueCalls, stream_of
from streamdp.serve.credentials import Credentials
from streamdp.serve.knowledge import Knowledge
from streamdp.serve.lookups import Lookups, key_of
from streamdp.serve.metrics import CONTENT_TYPE, MetricsPage, published
from streamdp.serve.ranking import Ranking, call_of
from streamdp.serve.shown import by_context, shown_key, shown_status

MOST_FOUND = 200
MOST_SCANNED = 200_000
"""Keys that one search looks at, so that it takes some tens of milliseconds at most."""

_NO_STORE = (b"cache-control", b"no-store")
_TEXT = (b"content-type", b"text/plain; charset=utf-8")
_METRICS_TYPE = (b"content-type", CONTENT_TYPE.encode())


class PublicApp:
    """Answers every request of the public listener."""

    def __init__(
        self,
        knowledge: Knowledge,
        credentials: Credentials,
        *,
        body_seconds: float,
        ranking: Ranking | None = None,
        catalogue: CatalogueCalls | None = None,
    ) -> None:
        self._knowledge = knowledge
        self._catalogue = catalogue
        self._ranking = ranking
        self._lookups = Lookups(knowledge, body_seconds=body_seconds)
        self._metrics = MetricsPage(
            lambda: published(knowledge.facts(expires_at=credentials.expires_at)),
            application=knowledge.application,
        )

    async def answer(self, scope: Scope, receive: Receive) -> Answered:
        """Any request."""
        parts = self._lookups.parts(scope)
        if parts is not None:
            return await self._lookups.answer(scope, receive, parts)
        if (call := call_of(scope)) is not None:
            if self._ranking is None:
                raise Rejected(404, "rank and reward are off: see http.rank_and_reward")
            return await self._ranking.answer(scope, receive, call)
        if (stream := stream_of(scope)) is not None:
            if self._catalogue is None:
                raise Rejected(404, "changes of lists are off: see http.catalogue_token_file")
            return await self._catalogue.answer(scope, receive, stream)
        if scope["method"] not in ("GET", "HEAD"):
            raise Rejected(405, "only GET and HEAD are allowed", (b"allow", b"GET, HEAD"))
        match scope["raw_path"]:
            case b"/healthz":
                return Answered(200, [_TEXT, _NO_STORE], b"alive\n")
            case b"/readyz":
                missing, away = self._knowledge.why_not_ready(), list[str]()
                if self._ranking is not None:
                    missing += self._ranking.why_not_ready()
                    away = self._ranking.silent()
                readiness = {"ready": not missing, "why": missing, "away": away}
                return Answered(503 if missing else 200, [JSON, _NO_STORE], encode(readiness))
            case b"/metrics":
                return Answered(200, [_METRICS_TYPE, _NO_STORE], self._metrics.render())
            case b"/openapi.json":
                return Answered(200, [JSON, (b"cache-control", b"max-age=3600")], description())
            case b"/":
                page, headers = status_page()
                return Answered(200, list(headers), page)
            case b"/v1/status":
                return Answered(200, [JSON, _NO_STORE], encode(shown_status(self._knowledge)))
        return self._of_stream(scope)

    def _of_stream(self, scope: Scope) -> Answered:
        """A stream's keys, or one key's history."""
        parts: list[bytes] = scope["raw_path"].split(b"/")
        known = {name.encode(): name for name in self._knowledge.about}
        if parts[1:3] != [b"v1", b"streams"] or len(parts) < 5 or parts[3] not in known:
            raise Rejected(404, "unknown path")
        match parts[4:]:
            case [b"keys"]:
                return self._keys(scope, known[parts[3]])
            case [b"keys" | b"keys-base64url", _, b"history"] | [b"null-key", b"history"]:
                shown = shown_key(self._knowledge, known[parts[3]], key_of(parts))
                return Answered(200, [JSON, _NO_STORE], encode(shown))
        raise Rejected(404, "unknown path")

    def _keys(self, scope: Scope, stream: str) -> Answered:
        """The first keys that contain a text, in the order in which they appeared."""
        query = dict(parse_qsl(scope["query_string"].decode("ascii", "replace")))
        wanted, most = query.get("search", "").casefold(), _count(query.get("limit", "50"))
        answers = self._knowledge.cache.answers(stream)
        keys: list[dict[str, object]] = []
        more = False
        for key, answer in islice(answers.items(), MOST_SCANNED):
            if (
                wanted
                and wanted
                not in (b"null" if key is None else key).decode(errors="replace").casefold()
            ):
                continue
            if len(keys) == most:
                more = True
                break
            action = None if by_context(answer) else answer.action
            entry = {"key": written_key(key), "action": action, "source": answer.why}
            keys.append({**entry, "release": in_force(answer)})
        more = more or len(answers) > MOST_SCANNED
        return Answered(200, [JSON, _NO_STORE], encode({"keys": keys, "more": more}))


def _count(written: str) -> int:
    if not written.isdecimal() or not 1 <= int(written) <= MOST_FOUND:
        raise Rejected(400, f"limit: expected 1 … {MOST_FOUND}")
    return int(written)


@cache
def description() -> bytes:
    """The OpenAPI description."""
    text = files("streamdp.serve").joinpath("openapi.json").read_text("utf-8")
    return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False).encode()


@cache
def status_page() -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """The page, with headers that let it run only its own script and reach only its own origin."""
    page = files("streamdp.serve").joinpath("page.html").read_bytes()
    text = page.decode()
    scripts = " ".join(map(_hashed, findall(r"<script>(.*?)</script>", text, DOTALL)))
    styles = " ".join(map(_hashed, findall(r"<style>(.*?)</style>", text, DOTALL)))
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers: Headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"content-security-policy", policy.encode()),
    ]
    return page, tuple(headers)


def _hashed(inline: str) -> str:
    return f"'sha256-{b64encode(sha256(inline.encode()).digest()).decode()}'"
