"""A schema registry in this process: what a test registers, by Confluent's API, and who asked."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


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
def registry(certificate: Path | None = None) -> Iterator[Registry]:
    """A registry that listens for as long as the block lasts; by TLS with a certificate."""
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
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    scheme = "http" if certificate is None else "https"
    kept.url = f"{scheme}://127.0.0.1:{server.server_port}"
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
