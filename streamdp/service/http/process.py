"""The face that serves over HTTP, as the learning process sees it.

It binds the address itself, so that a taken address is reported at once; starts the serving process
and gives it the listening socket; sends it a snapshot of the view twice a second; and restarts it
if it ends. Nothing here waits for the other side: while one snapshot is not taken, no further one
is sent.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from msgspec.structs import replace

from streamdp.service.http.checks import check_public
from streamdp.service.http.child import FRAME
from streamdp.service.http.knowledge import Role
from streamdp.service.http.server import bound
from streamdp.service.http.setup import Setup
from streamdp.service.run import Running
from streamdp.service.status import ProcessStatus, Steps, status_of
from streamdp.service.view import View
from streamdp.service.worker import EventLog, Observe

SNAPSHOT_SECONDS = 0.5
RESTART_SECONDS = 1.0
_END_SECONDS = 5.0


@asynccontextmanager
async def http_face(running: Running) -> AsyncIterator[Observe]:
    """Serve for as long as the block lasts."""
    http = running.configuration.tables.http
    assert http.listen is not None
    check_public(running.configuration)
    setup = Setup.of(running.configuration, running.technology, Role.LEARNS)
    steps = Steps(time.monotonic)
    with bound(http.listen, where="http.listen") as listener:
        serving = Serving(setup, listener, running.view, steps, running.log, time.time())
        task = asyncio.get_running_loop().create_task(serving.keep(), name="http")
        host, port = listener.getsockname()[:2]
        running.log.info("http_listening", address=f"{host}:{port}")
        try:
            yield steps.observe
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@dataclass(slots=True)
class Serving:
    """Keeps the serving process alive and sends it snapshots."""

    setup: Setup
    listener: socket.socket
    view: View
    steps: Steps
    log: EventLog
    started_at: float  # seconds since 1970
    restarts: int = 0
    begun: bool = False  # kept here, where the serving process's end does not forget it

    async def keep(self) -> None:
        """Start the process, send it snapshots, and start it again when it ends."""
        while True:
            ours, theirs = socket.socketpair()
            with theirs:
                child = await self._start(theirs)
            _, writer = await asyncio.open_connection(sock=ours)
            try:
                await self._tell(child, writer)
                self.log.warning("http_ended", exit_code=child.returncode)
            finally:
                writer.close()
                await _end(child)
            self.restarts += 1
            await asyncio.sleep(RESTART_SECONDS)

    async def _start(self, channel: socket.socket) -> asyncio.subprocess.Process:
        inherited = (self.listener.fileno(), channel.fileno())
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "streamdp.service.http.child",
            *map(str, inherited),
            pass_fds=inherited,
            stdin=asyncio.subprocess.DEVNULL,
        )

    async def _tell(self, child: asyncio.subprocess.Process, writer: asyncio.StreamWriter) -> None:
        """Send snapshots until the process ends."""
        ended = asyncio.get_running_loop().create_task(child.wait())
        try:
            _send(writer, pickle.dumps(self.setup))
            while not ended.done():
                if writer.transport.get_write_buffer_size() == 0:
                    _send(writer, self._status().encode())
                await asyncio.wait({ended}, timeout=SNAPSHOT_SECONDS)
        finally:
            ended.cancel()

    def _status(self) -> ProcessStatus:
        status = status_of(
            self.view,
            self.steps,
            now=time.monotonic(),
            started_at=self.started_at,
            listener_restarts=self.restarts,
        )
        self.begun = self.begun or not status.not_begun()
        return replace(status, begun=self.begun)


def _send(writer: asyncio.StreamWriter, status: bytes) -> None:
    writer.write(FRAME.pack(len(status)) + status)


async def _end(child: asyncio.subprocess.Process) -> None:
    """Wait for the child, whose channel is closed; kill it if it does not end."""
    if child.returncode is not None:
        return
    try:
        async with asyncio.timeout(_END_SECONDS):
            await child.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
