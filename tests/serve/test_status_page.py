"""Does the status page show what is so, in a real browser, by keyboard, light and dark, wide and
narrow, and say what is exact and what is noisy?

With ``STREAMDP_SCREENSHOTS=folder`` the pictures are kept, to be looked at.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from streamdp.ports import Published
from tests.support.asking import Observer, shown
from tests.support.browser import CONTRAST, Browser, browser, keep
from tests.support.publishing import Topic, action, charge, release
from tests.support.showing import ABOUT, LINES, block

pytestmark = pytest.mark.system("chromium", "chromedriver")

TOKEN = b"a token of some length"
KEYS: tuple[bytes | None, ...] = (b"fr", b"de", None, b"\xff\x00", b"a/b <i>&", b"x" * 300)


def published() -> tuple[Topic, Topic]:
    """Six odd keys and two hundred plain ones, with ten blocks each."""
    chance, actions, ledger = random.Random(1), list[Published](), list[Published]()
    for key in (*KEYS, *(b"segment-%03d" % n for n in range(200))):
        start = 1
        for number in range(11):
            stop = start + 2**number if number else 1
            drawn = chance.randrange(3)
            of = release(key, drawn, block=number, start=start, stop=stop)
            actions.append(action(of))
            if number:
                regret = (stop - start) * (0.3 / number + chance.gauss(0, 0.01))
                ledger += block(key, number, start, stop, regret=regret, share=0.01, action=drawn)
            else:
                ledger.append(charge(of, lines=LINES))
            start = stop
    return Topic(actions), Topic(ledger)


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """A listener with a token."""
    with shown(lambda: Observer(*published(), token=TOKEN)) as address:
        yield address


@pytest.fixture(scope="module")
def window(page: str) -> Iterator[Browser]:
    """A window that has been let in."""
    with browser() as page_window:
        page_window.size(1280, 900)
        page_window.open(page)
        page_window.until(lambda: "asks for its token" in page_window.text("form"))
        page_window.keys(TOKEN.decode() + "\ue007")
        page_window.until(
            lambda: "segment" in page_window.text("#rows") or "fr" in page_window.text("#rows")
        )
        yield page_window


def test_is_the_cost_of_an_event_on_its_face(window: Browser) -> None:
    """Beside the budget, exact, and never as a gauge that runs down."""
    said = window.text("[aria-labelledby=costs]")
    assert "ε = 1" in said
    assert "of an allowed 2" in said
    assert "time does not use up a budget" in said
    assert "e1 ≈ 2.72" in said


def test_is_it_said_what_is_exact_and_what_is_noisy(window: Browser) -> None:
    assert "noisy" in window.text("[aria-labelledby=regret]")
    assert "exact" in window.text("[aria-labelledby=costs]")
    assert "Not here: contents of events, sums without noise" in window.text("footer")


def test_does_the_chart_speak_and_follow_the_keyboard(window: Browser) -> None:
    label = window.run("return document.querySelector('#curve svg').getAttribute('aria-label')")
    assert "over 10 blocks" in label
    window.run("document.querySelector('#curve svg').focus()")
    window.keys("\ue011")  # Home
    first = window.text("#curve .read")
    window.keys("\ue014")  # →
    assert first.startswith("Block 1, to event ")
    assert window.text("#curve .read").startswith("Block 2, to event ")
    drawn = window.run(
        "return [...document.querySelectorAll('#curve .slots')].map(e => e.textContent)"
    )
    assert any(drawn)
    assert "one standard error" in first


def test_are_keys_found_and_opened_by_keyboard_alone(window: Browser) -> None:
    window.run("document.activeElement.blur()")
    window.ask("POST", "/actions", actions=[
        {"type": "key", "id": "k", "actions": [
            {"type": "keyDown", "value": "/"}, {"type": "keyUp", "value": "/"}]}
    ])  # fmt: skip
    assert window.run("return document.activeElement.id") == "search"
    window.keys("segment-17")
    window.until(lambda: window.text("#rows").count("segment-17") == 10)
    window.keys("7")
    window.until(
        lambda: "segment-177" in window.text("#rows") and "176" not in window.text("#rows")
    )
    window.keys("\ue004")  # Tab, to the list, which scrolls by arrow keys
    assert "scroll" in window.run("return document.activeElement.className")
    window.keys("\ue004")  # Tab, to the one key
    window.keys("\ue007")
    window.until(lambda: "each event charged ε = 1" in window.text("#rows"))
    assert "segment-177" in window.run("return document.activeElement.dataset.key")
    assert window.run("return document.querySelectorAll('#rows svg').length") == 1
    assert "In force from event" in window.text("tr.detail [aria-label='Newest actions']")
    assert "2,047" in window.text("tr.detail [aria-label='Newest actions']")
    width, height = keep("opened", window.screenshot())
    assert (width, height > 900) == (1280, True)
    window.size(390, 844)
    window.until(lambda: window.run("return innerWidth") == 390)
    wider = (
        "return [...document.querySelectorAll('.scroll')]"
        ".map(each => each.scrollWidth - each.clientWidth)"
    )
    window.until(lambda: max(window.run(wider)) <= 0)  # on a phone no table scrolls sideways
    keep("opened-390", window.screenshot())
    window.size(1280, 900)
    window.run("document.getElementById('search').focus()")
    window.keys("\ue00c")  # Escape
    window.until(lambda: "More keys match" in window.text("#more"))


def test_are_odd_keys_shown_as_they_are(window: Browser) -> None:
    rows = window.text("#rows")
    assert "a/b <i>&" in rows
    assert "base64 /wA=" in rows
    assert "null" in rows
    assert window.run("return document.querySelectorAll('#rows i').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "width"), [("wide", 1280), ("narrow", 390)])
def test_does_it_fit_wide_and_narrow_light_and_dark(
    window: Browser, scheme: str, name: str, width: int
) -> None:
    """Nothing is cut off at the side, and text has contrast enough (WCAG AA) on its card."""
    window.scheme(scheme)
    window.size(width, 900)
    window.until(lambda: bool(window.run("return innerWidth === arguments[0]", width)))
    drawn = (
        "const svg = document.querySelector('#curve svg');"
        " return svg.clientWidth / svg.viewBox.baseVal.width"
    )
    window.until(lambda: abs(window.run(drawn) - 1) < 0.05)  # its labels have the size of text
    window.until(
        lambda: bool(window.run("return document.documentElement.scrollWidth <= innerWidth"))
    )
    contrast = window.run(CONTRAST)
    assert min(contrast.values()) >= 4.5, contrast
    keep(f"{name}-{scheme}", window.screenshot())
    window.size(1280, 900)


def test_does_it_ask_nobody_but_its_own_origin_and_complain_of_nothing(
    window: Browser, page: str
) -> None:
    asked = window.run("return performance.getEntriesByType('resource').map(e => e.name)")
    assert asked
    assert all(name.startswith((page, "data:")) for name in asked)
    complaints = [complaint for complaint in window.complaints() if "401" not in complaint]
    assert complaints == []


def test_does_a_page_of_several_streams_let_one_choose() -> None:
    """A seed and silence are said; the budget adds up over the streams of a topic."""
    other = replace(ABOUT, topics=replace(ABOUT.topics, stream="other"), seeded=True)
    made = partial(Observer, *published(), about=ABOUT, more=[other])
    with browser() as page_window:
        with shown(made) as address:
            page_window.open(address)
            page_window.until(lambda: "other" in page_window.text("#streams"))
            assert "ε = 2" in page_window.text("[aria-labelledby=costs]")
            assert "other is seeded" in page_window.text("#alarms")
            page_window.run("document.querySelectorAll('#streams button')[1].focus()")
            page_window.keys("\ue007")
            page_window.until(lambda: "live" in page_window.text("#pills"))
            keep("streams", page_window.screenshot())
        page_window.until(lambda: "There is no answer" in page_window.text("#alarms"))
        assert "published until" in page_window.text("#alarms")
