"""A headless Chromium for tests, by its driver's own protocol (WebDriver), with nothing between."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from struct import unpack
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
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from error

    def open(self, url: str) -> None:
        """Go to a page."""
        self.ask("POST", "/url", url=url)

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns."""
        return self.ask("POST", "/execute/sync", script=script, args=list(arguments))

    def text(self, selector: str) -> str:
        """The text that can be seen of an element."""
        script = "const e = document.querySelector(arguments[0]); return e ? e.innerText : ''"
        text: str = self.run(script, selector)
        return text

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
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

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
        process.wait(timeout=60)


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


def keep(name: str, picture: bytes) -> tuple[int, int]:
    """Keep a picture if asked to, and say how large it is."""
    folder = os.environ.get("STREAMDP_SCREENSHOTS")
    if folder:
        Path(folder, f"{name}.png").write_bytes(picture)
    width, height = unpack(">II", picture[16:24])
    return width, height


LAPPING = """
const faults = [], shown = node => node.getBoundingClientRect();
const say = (text, what) => faults.push(`${text.textContent} ${what}`);
for (const drawing of document.querySelectorAll(arguments[0])) {
  const texts = [...drawing.querySelectorAll('text')].filter(text => text.textContent);
  for (const [at, text] of texts.entries()) {
    const a = shown(text), room = shown(drawing);
    if (a.left < room.left - 1 || a.right > room.right + 1) say(text, 'is cut');
    for (const other of texts.slice(at + 1)) {
      const b = shown(other), apart = a.right <= b.left || b.right <= a.left;
      const above = a.bottom <= b.top + 4 || b.bottom <= a.top + 4;
      if (!apart && !above) say(text, `laps over ${other.textContent}`);
    }
  }
}
return faults;
"""
"""The texts of drawings that lap over each other, or leave their drawing."""

CONTRAST = """
const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
const light = c => {
  const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => linear(v / 255));
  return .2126 * r + .7152 * g + .0722 * b;
};
const style = where => getComputedStyle(document.querySelector(where));
const parts = c => c.match(/[\\d.]+/g).map(Number);
const over = (c, below) => {
  const [r, g, b, a = 1] = parts(c), under = parts(below);
  return `rgb(${[r, g, b].map((v, at) => v * a + under[at] * (1 - a)).join()})`;
};
const ratio = (one, other) => (Math.max(one, other) + .05) / (Math.min(one, other) + .05);
const found = {}, card = light(style('.card').backgroundColor);
for (const where of ['h2', '.note', '.tag', 'th', '.pill', '#about', '.count']) {
  found[where] = ratio(light(style(where).color), card);
}
for (const look of ['pill', 'pill warn', 'pill bad', 'pill quiet']) {
  const made = Object.assign(document.createElement('span'), {className: look});
  document.body.append(made);
  for (const below of [style('.card').backgroundColor, style('body').backgroundColor]) {
    const own = over(getComputedStyle(made).backgroundColor, below);
    found[`${look} on ${below}`] = ratio(light(getComputedStyle(made).color), light(own));
  }
  made.remove();
}
return found;
"""
