"""A schema registry in this process: what a test registers, by Confluent's API, and who asked."""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Registry:
    """Subjects with their schemas; answers with 503 while it is `down`."""

    def __init__(self) -> None:
        self.url = ""
        self.down = False
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []
        self.subjects: defaultdict[str, list[dict[str, object]]] = defaultdict(list)

    def register(self, subject: str, schema: object, *, number: int, kind: str = "AVRO") -> None:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        entry = {"id": number, "schema": text} | ({} if kind == "AVRO" else {"schemaType": kind})
        self.subjects[subject].append(entry)

    def answer(self, path: str) -> tuple[int, object]:
        self.asked.append(path)
        match = re.fullmatch(r"/subjects/([^/]+)/versions(?:/(\d+))?", path)
        if self.down:
            return 503, {}
        if match is None or match[1] not in self.subjects:
            return 404, {"error_code": 40401}
        entries = self.subjects[match[1]]
        if match[2] is None:
            return 200, list(range(1, len(entries) + 1))
        return 200, entries[int(match[2]) - 1]


@contextmanager
def registry() -> Iterator[Registry]:
    """A registry that listens for as long as the block lasts."""
    kept = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kept.authorizations.append(self.headers["Authorization"])
            status, answer = kept.answer(self.path)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    kept.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
