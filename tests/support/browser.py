"""A headless Chromium for tests, by its driver's own protocol (WebDriver), with nothing between."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.asking import free_port

PATIENCE = 240.0
"""Seconds until what a test waits for is given up."""

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


@dataclass(frozen=True)
class Browser:
    """One window."""

    session: str

    def ask(self, method: str, path: str, **body: object) -> Any:
        """One command of the protocol."""
        data = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(
            f"{self.session}{path}",
            data,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)["value"]

    def open(self, url: str) -> None:
        """Go to a page."""
        self.ask("POST", "/url", url=url)

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns."""
        return self.ask("POST", "/execute/sync", script=script, args=list(arguments))

    def text(self, selector: str) -> str:
        """The text that can be seen of an element."""
        script = "const e = document.querySelector(arguments[0]); return e ? e.innerText : ''"
        found: str = self.run(script, selector)
        return found

    def keys(self, text: str) -> None:
        """Type into what has the focus."""
        focused = self.ask("GET", "/element/active")[_ELEMENT]
        self.ask("POST", f"/element/{focused}/value", text=text)

    def size(self, width: int, height: int) -> None:
        """Make the window so large."""
        self.ask("POST", "/window/rect", width=width, height=height)

    def scheme(self, scheme: str) -> None:
        """What the user prefers: light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask(
            "POST",
            "/goog/cdp/execute",
            cmd="Emulation.setEmulatedMedia",
            params={"features": [feature]},
        )

    def screenshot(self) -> bytes:
        """The whole page, as a PNG."""
        shot = self.ask(
            "POST",
            "/goog/cdp/execute",
            cmd="Page.captureScreenshot",
            params={"captureBeyondViewport": True},
        )
        return b64decode(shot["data"])

    def complaints(self) -> list[str]:
        """What the console says went wrong."""
        entries = self.ask("POST", "/se/log", type="browser")
        return [each["message"] for each in entries if each["level"] in ("SEVERE", "WARNING")]

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for what the page brings about."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(self.text("body"))
            time.sleep(0.05)


@contextmanager
def browser() -> Iterator[Browser]:
    """A window, gone afterwards."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    port = free_port()
    process = subprocess.Popen(
        [str(driver), f"--port={port}", "--silent"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    home = Browser(f"http://127.0.0.1:{port}")
    try:
        _wait(home)
        options = {
            "binary": chromium,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                     "--disable-dev-shm-usage"],
        }  # fmt: skip
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = home.ask("POST", "/session", capabilities={"alwaysMatch": wanted})
        window = Browser(f"{home.session}/session/{made['sessionId']}")
        try:
            yield window
        finally:
            window.ask("DELETE", "")
    finally:
        process.terminate()
        process.wait(timeout=10)


def _wait(home: Browser) -> None:
    """Until the driver listens."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            home.ask("GET", "/status")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
