"""NOT PRIVATE: the operator's listener, on loopback, behind a token.

It says what no public face may: how much memory the process takes, how many records it has set
aside, and (with ``operator_exact``) exact regret and counts of null slots. Each line says NOT
PRIVATE, and that decisions taken on it leave the guarantee. Off by default.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.service.http.asgi import Answered, Receive, Refused, Scope
from streamdp.service.http.gate import Bucket, Gate
from streamdp.service.http.guard import Limits
from streamdp.service.http.server import bound, serving, token_of
from streamdp.service.run import Running
from streamdp.service.traffic import Traffic
from streamdp.service.worker import Observe
from streamdp.wire.unprotected import NOT_PRIVATE

_EACH_LINE = f"{NOT_PRIVATE} (decisions taken on this leave the guarantee): "
_REQUESTS_PER_SECOND = 10.0
_LIMITS = Limits(most_connections=16, request_seconds=5.0)


@asynccontextmanager
async def operator_face(running: Running) -> AsyncIterator[Observe | None]:
    """Listen for as long as the block lasts."""
    http = running.configuration.tables.http
    assert http.operator_listen is not None
    where = "http.operator_listen"
    check_loopback(http.operator_listen, where=where)
    token = token_of(http.operator_token_file, where="http.operator_token_file")
    if token is None:
        raise InvalidConfig(
            complaint("http.operator_token_file", "missing", expected="a file", got="nothing")
        )
    with bound(http.operator_listen, where=where) as listener:
        clock, traffic = asyncio.get_running_loop().time, Traffic()
        gate = Gate(
            Operator(running).answer,
            token=token,
            bucket=Bucket(_REQUESTS_PER_SECOND, clock),
            traffic=traffic,
            open_paths=frozenset(),
        )
        async with serving(gate, listener, _LIMITS, traffic=traffic):
            host, port = listener.getsockname()[:2]
            running.log.warning("operator_listening", address=f"{host}:{port}")
            yield None


def check_loopback(address: str, *, where: str) -> None:
    """Refuse an address that others can reach."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        local = ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise InvalidConfig(
            complaint(where, "not on loopback", expected="127.0.0.1:port or [::1]:port", got=host)
        )


class Operator:
    """Answers the operator."""

    def __init__(self, running: Running) -> None:
        self._running = running

    async def answer(self, scope: Scope, receive: Receive) -> Answered:
        """Everything there is, as text."""
        if scope["method"] not in ("GET", "HEAD"):
            raise Refused(405, "only GET and HEAD", (b"allow", b"GET, HEAD"))
        if scope["raw_path"] != b"/":
            raise Refused(404, "no such address")
        text = "".join(f"{_EACH_LINE}{line}\n" for line in self._lines())
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"streamdp-tier", NOT_PRIVATE.encode()),
        ]
        return Answered(200, headers, text.encode())

    def _lines(self) -> list[str]:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        lines = [f"process {self._running.worker}: at most {memory} KiB of memory so far"]
        for spec in self._running.specs:
            if spec.exact is None:
                lines.append(f"stream {spec.name}: exact figures are off (http.operator_exact)")
            else:
                lines += [f"stream {spec.name}, {line}" for line in spec.exact.lines()]
            if spec.quarantine is not None:
                lines.append(f"stream {spec.name}, {spec.quarantine.line()}")
        return lines
