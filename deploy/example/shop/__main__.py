"""``python -m shop --config streamdp.toml --listen 127.0.0.1:8000``: the storefront.

Made-up visitors come until somebody switches them off on the page; a browser's own clicks count
beside them, or instead of them. `/state` has the page's data, as JSON.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable
from heapq import heappop, heappush
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from streamdp.client import Request, Shown
from streamdp.service.config import Configuration

from .score import NOT_PRIVATE, WAYS, Score, WithoutPrivacy, recent
from .store import KEY, MADE_UP, STREAM, YOU, Seen, Store, clock, delay_of, opened, product_of
from .world import FIXED, LATER, SEGMENTS, SHELVES, Product, Segment, Visit, World, best

TICK_SECONDS = 0.1
LEARNED = 0.5
"""The share of a segment's visitors that see one shelf, from which on it counts as learned."""

_MARK_SECONDS = 1.0
_POINTS = 60  # of the chart
_MOST_BYTES = 10_000  # of a browser's request
_SEED = 20261122


class Visitors:
    """Made-up visitors, in a thread of their own."""

    def __init__(self, store: Store, *, a_second: float, delay: float) -> None:
        self.on = True
        self.world = World(_SEED)
        free = WithoutPrivacy(store.contexts, most=store.most, delay=delay, seed=_SEED + 1)
        self.score = Score(free)
        self.begun = clock()
        self.learned_after: float | None = None
        self._store, self._a_second = store, a_second
        self._later: list[tuple[float, int, Shown, Seen, Product]] = []
        self._numbers = count()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._come, name="visitors", daemon=True)

    def start(self) -> None:
        """Let them come."""
        self._thread.start()

    def stop(self) -> None:
        """Let no more of them come."""
        self._stopped.set()
        self._thread.join()

    def _come(self) -> None:
        marked, due = 0.0, 0.0
        while not self._stopped.wait(TICK_SECONDS):
            now = clock() - self.begun
            due += self._a_second * TICK_SECONDS if self.on else 0.0
            for visit in self.world.visits(int(due)):
                self._visit(visit, now)
            due -= int(due)
            self._buy(now)
            if now - marked >= _MARK_SECONDS:
                marked = now
                self.score.mark(now)
            if self.learned_after is None and self.learned():
                self.learned_after = now

    def _visit(self, visit: Visit, now: float) -> None:
        shown, seen = self._store.show(visit.segment, by=MADE_UP)
        self.score.add(visit, self._store.shelves, shown=shown.action, now=now)
        product = visit.would_buy[shown.action]
        if product is not None:
            entry = (now + visit.seconds, next(self._numbers), shown, seen, product)
            heappush(self._later, entry)

    def _buy(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            _, _, shown, seen, product = heappop(self._later)
            self._store.buy(shown.request, product, seen)

    def learned(self) -> bool:
        """Whether each segment is shown one shelf most of the time."""
        policies = [self._store.policy(segment) for segment in SEGMENTS]
        return all(policy is not None and max(policy.values()) >= LEARNED for policy in policies)


class Shop:
    """Answers the page's requests."""

    def __init__(self, store: Store, visitors: Visitors, facts: dict[str, str]) -> None:
        self.store, self.visitors, self._facts = store, visitors, facts

    def state(self) -> dict[str, Any]:
        """All data of the page."""
        visitors, written = self.visitors, self.store.loop.condition
        score, shelves = visitors.score, self.store.shelves
        return {
            "facts": self._facts,
            "seconds": clock() - visitors.begun,
            "learned_after": visitors.learned_after,
            "visitors_on": visitors.on,
            "paused": self.store.paused,
            "added": [shelf for shelf in LATER if shelf in self.store.shelves],
            "segments": [self._segment(segment) for segment in SEGMENTS],
            "seen": [
                {"number": seen.number, "segment": seen.segment, "shelf": seen.shelf,
                 "by": seen.by, "bought": seen.bought}
                for seen in reversed(list(self.store.seen))
            ],
            "requests": {"written": written.requests.written, "lost": written.requests.lost},
            "simulator": {
                "marked": NOT_PRIVATE,
                "visits": score.visits,
                "ways": WAYS,
                "euros": score.euros,
                "per_hundred": score.per_hundred(),
                "cost_of_privacy": score.cost,
                "series": recent(score.series, every=max(1, len(score.series) // _POINTS)),
                "best": {segment.name: best(segment, shelves) for segment in SEGMENTS},
                "fixed": FIXED,
            },
        }  # fmt: skip

    def _segment(self, segment: Segment) -> dict[str, Any]:
        slots = self.store.actions.answer(STREAM, KEY).slots
        policy = self.store.policy(segment)
        return {"name": segment.name, "policy": policy, "learned_from": slots}

    def shelf(self, name: str) -> dict[str, Any] | None:
        """A visit of the browser: the shelf, and what the browser sends back when it buys."""
        segment = next((known for known in SEGMENTS if known.name == name), None)
        if segment is None:
            return None
        shown, _ = self.store.show(segment, by=YOU)
        products = SHELVES[shown.action]
        return {
            "segment": name,
            "request": shown.request.id,
            "shelf": shown.action,
            "probability": shown.probability,
            "products": [{"name": product.name, "euros": product.euros} for product in products],
        }  # fmt: skip

    def buy(self, message: Any) -> bool:
        """A purchase in the browser: by key and id, as in any front end."""
        try:
            request = Request(KEY, str(message["request"]))
            product = product_of(message["shelf"], message["product"])
        except (KeyError, TypeError):
            return False
        if product is None or not 1 <= len(request.id) <= 64:
            return False
        seen = next((visit for visit in self.store.seen if visit.by == YOU
                     and visit.bought is None), None)  # fmt: skip
        self.store.buy(request, product, seen)
        return True

    def switch(self, message: Any) -> bool:
        """Switch made-up visitors on or off."""
        on = message.get("on") if isinstance(message, dict) else None
        if not isinstance(on, bool):
            return False
        self.visitors.on = on
        return True


def handler(shop: Shop) -> type[BaseHTTPRequestHandler]:
    """The handler of browsers' requests."""
    page = files(__package__).joinpath("page.html").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        """One connection."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """The page, its state, or a visit."""
            parts = urlsplit(self.path)
            if parts.path == "/":
                self._answer(page, "text/html; charset=utf-8")
            elif parts.path == "/state":
                self._json(shop.state())
            elif parts.path == "/shelf":
                self._json(shop.shelf(parse_qs(parts.query).get("segment", [""])[0]))
            else:
                self._json(None)

        def do_POST(self) -> None:
            """A purchase, or the switch."""
            does: dict[str, Callable[[Any], bool]] = {"/buy": shop.buy, "/visitors": shop.switch}
            length = int(self.headers.get("Content-Length") or 0)
            try:
                message = json.loads(self.rfile.read(min(length, _MOST_BYTES)))
            except ValueError:
                message = None
            act = does.get(self.path)
            self._json({"done": True} if act is not None and act(message) else None)

        def _json(self, reply: object) -> None:
            status = HTTPStatus.NOT_FOUND if reply is None else HTTPStatus.OK
            self._answer(json.dumps(reply).encode(), "application/json", status)

        def _answer(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: a shop's log would show who bought what."""

    return Handler


def main() -> None:
    """Serve until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(prog="shop", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--listen", default="127.0.0.1:8000")
    parser.add_argument("--visitors", type=float, default=400.0, help="made-up ones in a second")
    parser.add_argument("--status-page", default="", help="where streamdp's own page is")
    asked = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    configuration = Configuration.load(asked.config)
    delay = delay_of(configuration)
    host, _, port = asked.listen.rpartition(":")
    with opened(configuration) as store:
        visitors = Visitors(store, a_second=asked.visitors, delay=delay)
        facts = {
            "delay": f"{delay:g}",
            "epsilon": str(configuration.streams[STREAM].learner.releases[0].epsilon),
            "status_page": asked.status_page,
        }
        server = ThreadingHTTPServer((host, int(port)), handler(Shop(store, visitors, facts)))
        sys.stdout.write(f"the shop is open at http://{asked.listen}\n")
        sys.stdout.flush()
        visitors.start()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            server.server_close()
            visitors.stop()


if __name__ == "__main__":
    main()
