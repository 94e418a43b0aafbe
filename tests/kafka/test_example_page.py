"""Does `make example` come up on a real Kafka, learn from visitors, and take a browser's clicks?

One test, since a run of the suite may give the tests of a file to several processes, and each would
start everything anew. With ``STREAMDP_SCREENSHOTS=folder`` the pictures are kept, to be looked at.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from deploy.example.start import NEW, RESTOCKED
from tests.support.browser import CONTRAST, Browser, browser, keep
from tests.support.documents import ROOT
from tests.support.prometheus_server import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.system("chromium", "chromedriver")]

LATEST_SALE = 4.0
"""Seconds without a sale after which no made-up visitor buys: the window is shorter."""

PATIENCE = 540.0
"""Seconds in which it must have learned; a quiet machine takes 20."""

START = [sys.executable, "deploy/example/start.py"]


@contextmanager
def opened() -> Iterator[str]:
    """The shop, when it has learned; ended as by Ctrl-C, after every step of its timetable."""
    started = subprocess.Popen(
        START, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert started.stdout is not None
    lines: list[str] = []
    try:
        for line in started.stdout:
            lines.append(line)
            if address := re.search(r"the shop is open after \d+ s: (http://\S+)", line):
                # A browser would take from its time.
                assert eventually(lambda: has_learned(address[1]), within=PATIENCE), lines
                yield address[1]
                break
    finally:
        started.send_signal(signal.SIGINT)
        rest, _ = started.communicate(timeout=120)
    assert started.returncode == 0, [*lines, rest]
    steps = [f"{RESTOCKED} is paused", f"the delivery has come: {RESTOCKED}", f"{NEW} is new"]
    said = [step for step in ["was learned after", *steps] if step in rest]
    assert (said, rest.splitlines()[-1]) == (["was learned after", *steps], "the shop is closed")


def has_learned(address: str) -> bool:
    """Whether each segment is shown its best shelf most, which the simulator alone knows."""
    with urllib.request.urlopen(f"{address}state", timeout=60) as answer:
        state = json.load(answer)
    policies = {segment["name"]: segment["policy"] or {"": 1} for segment in state["segments"]}
    tops = {name: max(policy, key=policy.__getitem__) for name, policy in policies.items()}
    return bool(tops == state["simulator"]["best"])


def test_does_the_shop_learn_sell_and_say_what_it_cost() -> None:
    """What a visitor of the page sees, in the order of the page."""
    with opened() as address, browser() as window:
        window.size(1280, 900)
        window.open(address)
        window.until(lambda: bool(window.text("#who")))
        learns_the_best_shelf_of_each_segment(window)
        counts_clicks_of_the_browser(window)
        ends_with_the_money_and_says_that_it_is_not_private(window)
        window.run("document.getElementById('switch').click()")  # nothing more is sold
        window.until(lambda: NEW in window.text("#paused"))
        for name, width in (("desktop", 1280), ("phone", 390)):
            for scheme in ("light", "dark"):
                fits(window, scheme, name, width)
        assert window.complaints() == []


def count_of(window: Browser, selector: str) -> int:
    count: int = window.run("return document.querySelectorAll(arguments[0]).length", selector)
    return count


def segments(window: Browser) -> list[dict[str, Any]]:
    attributes: list[dict[str, Any]] = window.run(
        "return [...document.querySelectorAll('#segments > div')].map(e => ({...e.dataset}))"
    )
    return attributes


def learns_the_best_shelf_of_each_segment(window: Browser) -> None:
    """By what was published, and by what the simulator alone knows."""
    window.until(lambda: all(segment["top"] == segment["best"] for segment in segments(window)))
    assert len(segments(window)) == 6
    assert "published after" in window.text("#segments")


def counts_clicks_of_the_browser(window: Browser) -> None:
    """By keyboard alone: who one is, a shelf, a purchase; without any made-up visitor."""
    window.run("document.getElementById('switch').focus()")
    window.keys("\ue007")
    window.until(lambda: window.run("return document.activeElement.ariaPressed") == "false")
    _wait_for_late_sales(window)
    window.run("document.querySelector('#who button').focus()")
    window.keys("\ue007")
    window.until(lambda: count_of(window, ".products button") == 4)
    assert "drawn with probability" in window.text("#shelf")
    window.run("document.querySelectorAll('.products button')[1].focus()")
    window.keys("\ue007")
    window.until(lambda: "Bought: " in window.text("#said"))
    window.until(lambda: "you" in window.text("#seen"))
    assert window.run("return document.querySelector('.products button:disabled').innerText")
    window.run("document.getElementById('switch').click()")


def _wait_for_late_sales(window: Browser) -> None:
    """Made-up visitors who are still deciding would push a sale of the browser out of the list."""
    listed, since = "", time.monotonic()

    def stands_still() -> bool:
        nonlocal listed, since
        if window.text("#seen") != listed:
            listed, since = window.text("#seen"), time.monotonic()
        return time.monotonic() - since > LATEST_SALE

    window.until(stands_still)


def ends_with_the_money_and_says_that_it_is_not_private(window: Browser) -> None:
    """By the simulator's own knowledge."""
    window.until(lambda: count_of(window, "#chart polyline") == 4)
    assert "NOT PRIVATE" in window.text("[aria-labelledby=money]")
    window.until(lambda: "than the fixed shelf. ε = 1 cost" in window.text("#verdict"))
    assert "0 lost" in window.text("#behind")


def fits(window: Browser, scheme: str, name: str, width: int) -> None:
    """Nothing is cut off at the side, and text has contrast enough (WCAG AA) on its card."""
    window.scheme(scheme)
    window.ask(
        "POST", "/goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride",
        params={"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )  # fmt: skip
    window.until(lambda: bool(window.run("return innerWidth === arguments[0]", width)))
    chart = "return document.querySelector('#chart svg').viewBox.baseVal.width"
    window.until(lambda: (window.run(chart) < 600) == (width < 600))
    narrow = "return document.documentElement.scrollWidth <= innerWidth"
    window.until(lambda: bool(window.run(narrow)))
    script = CONTRAST.partition("const found")[0]
    contrast = window.run(script + CARD)
    assert min(contrast.values()) >= 4.5, contrast
    keep(f"example-{name}-{scheme}", window.screenshot())


CARD = """
const found = {}, card = style('.card').backgroundColor;
for (const where of ['h2', '.note', '.tag', '.tag.not', '.who button', '.switch',
                    '.products button', '#verdict']) {
  const own = style(where);
  found[where] = ratio(light(own.color), light(over(own.backgroundColor, card)));
}
return found;
"""
