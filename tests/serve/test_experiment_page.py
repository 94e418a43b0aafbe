"""Does a feedback stream's key show its actions as an experiment, in a real browser?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import UNIT
from streamdp.core.releases import Release
from streamdp.serve.about import About
from streamdp.wire.published import Lines
from tests.golden_wire import FEEDBACK, SHOWN_FEEDBACK
from tests.support.asking import Observer, shown
from tests.support.browser import CONTRAST, LAPPING, Browser, browser, keep
from tests.support.histories import history_after, nothing_known, policy_after
from tests.support.publishing import Topic, action, charge, list_record
from tests.support.showing import CLICKS, LEARNER

pytestmark = pytest.mark.system("chromium", "chromedriver")

ACTIONS = ("autumn", "boots", "coats", "delivery within two days")
CLICKED_BY = np.array([0.02, 0.02, 0.05, 0.02])
LINES: Lines = replace(FEEDBACK, actions=ACTIONS)
BLOCKS = 14
DRAWN_AT = "return document.querySelector('.policies').viewBox.baseVal.width"


def releases() -> list[Release]:
    """An opening and blocks of 1, 2, 4, … impressions, shown by the policies that follow."""
    rng = np.random.default_rng(5)
    state, start = nothing_known(LEARNER), 1
    opening, block = SHOWN_FEEDBACK["opening"], SHOWN_FEEDBACK["sums"]
    policy = policy_after(LEARNER, state, np.array([0]))
    drawn = [replace(opening, policy=policy[0].astype("<u4").tobytes())]
    for number in range(BLOCKS):
        shown = rng.multinomial(2**number, policy[0] / policy[0].sum())
        clicks = rng.binomial(shown, CLICKED_BY)
        gains = np.rint((clicks - shown / 2 + rng.laplace(0, 2, 4)) * UNIT).astype(np.int64)
        state = history_after(LEARNER, state, gains[None], shown[None])
        policy = policy_after(LEARNER, state, np.array([number + 1]))
        drawn.append(
            replace(
                block,
                identity=block.identity._replace(block=number),
                numbers=(*gains.tolist(), *shown.tolist()),
                policy=policy[0].astype("<u4").tobytes(),
                start=start,
                stop=start + 2**number,
            )
        )
        start += 2**number
    return drawn


@contextmanager
def opened(about: About = CLICKS, lists: Topic | None = None) -> Iterator[Browser]:
    """A window on the page of such a stream, its key opened."""
    drawn = releases()
    actions = Topic([action(release, lines=LINES) for release in drawn])
    ledger = Topic(
        [charge(release, ordinal=n, lines=LINES) for n, release in enumerate(drawn, start=1)]
    )
    learner = replace(LEARNER, actions=ACTIONS)
    about = replace(about, learner=learner, actions=ACTIONS, fallback="autumn")

    with (
        shown(lambda: Observer(actions, ledger, about=about, lists=lists)) as address,
        browser() as page,
    ):
        page.size(1280, 1100)
        page.open(address)
        page.until(lambda: "fr" in page.text("#rows"))
        page.run("document.querySelector('#rows button').click()")
        page.until(lambda: "Interval" in page.text("#rows"))
        yield page


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    """The page of a stream of clicks."""
    with opened() as page:
        yield page


@pytest.fixture(scope="module")
def prices() -> Iterator[Browser]:
    """The page of a stream of amounts, whose best action is paused."""
    lists = Topic([list_record(3, paused=["coats"], actions=ACTIONS)])
    with opened(replace(CLICKS, unit="€", most=Fraction(200)), lists) as page:
        page.until(lambda: "coats paused" in page.text("#paused"))
        yield page


def test_does_the_page_say_what_is_paused_and_since_which_list(prices: Browser) -> None:
    """On top, beside the key's likeliest action, and in its experiment, where it has no share."""
    assert "No reader shows it, by list 3 of 2 Jan" in prices.text("#paused")
    assert prices.text("#shares").splitlines()[0].split() == ["coats", "paused"]
    assert "coats\npaused" in prices.text("#rows tr td:nth-child(2)").replace(" ", "\n")
    assert "from before the pause of coats: readers give that share to the others" in prices.text(
        ".detail"
    )
    last = prices.text(".arms tbody").splitlines()[-1]
    assert last.split()[:4] == ["coats", "paused", "0.0", "%"]


def test_are_amounts_in_their_unit(prices: Browser) -> None:
    earned = prices.text("#earned")
    amount = earned.splitlines()[0].removesuffix(" €")
    assert 4 < float(amount) < 13  # 2 to 5 % of shows earn 200 €, give or take the noise
    assert f"a show, of {sum(2**number for number in range(BLOCKS)):,} shows" in earned
    assert "A reward above 200.00 € counts as that." in earned
    assert "€ a show" in prices.text(".arms thead")
    assert " €" in prices.text(".arms tbody")
    assert " % to " not in prices.text(".arms tbody")
    assert "Showing all actions alike would have had" in prices.text(".beside")
    assert " %" not in prices.text(".beside").replace("Intervals of 95 %", "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_what_is_paused_is_whole_and_legible(prices: Browser, width: int, scheme: str) -> None:
    fits(prices, width, scheme, "paused")


def test_does_each_action_stand_with_its_mean_interval_and_chance(window: Browser) -> None:
    """The best first, by the policy; shows, means and intervals of all four."""
    rows = window.text(".arms tbody").splitlines()
    assert rows[0].startswith("coats")
    assert len(rows) == len(ACTIONS)
    reaches = window.run(
        "return [...document.querySelectorAll('.arms svg')].map(e => e.getAttribute('aria-label'))"
    )
    assert len(reaches) == len(ACTIONS)
    for low, high in (reach.removesuffix(" %").split(" % to ") for reach in reaches):
        assert 0 <= float(low) < float(high) <= 100
    assert "Clicks" in window.text(".arms thead")
    assert "guarantees nothing" in window.text(".detail")


def test_does_the_page_begin_with_what_was_earned(window: Browser) -> None:
    """In percent of shows, and before what it costs."""
    earned = window.text("#earned")
    percent, shows = earned.splitlines()[:2]
    clicks = float(percent.removesuffix(" %"))
    (low, high) = (clicks - float(earned.split("± ")[1].split()[0]), clicks + 1)
    assert low < 4.5 < high  # 2 to 5 % click, most on what is shown most
    assert shows == f"clicks, of {sum(2**number for number in range(BLOCKS)):,} shows"
    assert "no further ε" in earned
    top = "return document.querySelector('{}').getBoundingClientRect().top"
    assert window.run(top.format("#earned")) < window.run(top.format("#topics"))


def test_does_a_key_say_what_it_earned_beside_other_shares(window: Browser) -> None:
    """All actions alike and each of them, with intervals; and of how many shows that is said."""
    told = window.text(".beside")
    assert f"clicks, of {sum(2**number for number in range(BLOCKS)):,} shows" in told
    _, _, alike = told.partition("Showing all actions alike would have had ")
    mean, low, high = (float(part.split()[-1].strip("(")) for part in alike.split(" %")[:3])
    assert low < mean < high
    assert low < CLICKED_BY.mean() * 100 < high
    assert "some action was shown too rarely to tell" in alike
    assert "Always the same action: coats " in told


def test_does_the_policy_stand_over_its_blocks(window: Browser) -> None:
    """A line for each action, named with its share now; the last points are the published ones."""
    lines = window.run(
        "return [...document.querySelectorAll('.policies polyline')].map(e => e.points.length)"
    )
    assert lines == [BLOCKS + 1] * len(ACTIONS)
    label = window.run("return document.querySelector('.policies').getAttribute('aria-label')")
    assert label.startswith(f"Policy over {BLOCKS} blocks; now coats ")
    labels = window.run(
        "return [...document.querySelectorAll('.policies text')].slice(-4)"
        ".map(e => [e.textContent, +e.getAttribute('y'), getComputedStyle(e).fill])"
    )
    assert labels[0][0].startswith("coats")
    assert min(np.diff([height for _, height, _ in labels])) >= 13.9
    assert max(height for _, height, _ in labels) <= 194
    assert len({fill for _, _, fill in labels}) == len(ACTIONS)
    now = np.frombuffer(releases()[-1].policy or b"", "<u4") / PARTS
    assert f"coats {now[2] * 100:.1f} %" in label
    assert "computed from the sums in the ledger" in window.text(".detail")


def test_does_it_say_what_the_stream_pays_for(window: Browser) -> None:
    assert "sums" in window.text("[aria-labelledby=costs]")
    assert "learning only from the action that was shown" in window.text("#about")


def test_no_card_is_empty(window: Browser) -> None:
    """There is no regret without losses, so no card of it."""
    cards = "return [...document.querySelectorAll('.grid > .card')].filter(e => e.offsetParent)"
    assert window.run(f"{cards}.map(e => e.querySelector('h2')?.id)") == [
        None,
        "earns",
        "inforce",
        "costs",
        "keys",
    ]
    empty = "return [...document.querySelectorAll('.empty')].filter(e => e.offsetParent).length"
    assert window.run(empty) == 0
    assert window.text("[aria-labelledby=inforce]").startswith("Likeliest action of each key")


SCROLLING = """
return [...document.querySelectorAll('.scroll')].filter(node =>
  node.scrollWidth > node.clientWidth || node.scrollHeight > node.clientHeight
).map(node => node.getAttribute('aria-label') || 'keys');
"""
LABELS = """
const under = style('.detail > td').backgroundColor;
return [...document.querySelectorAll('.policies text')].map(text =>
  ratio(light(getComputedStyle(text).fill), light(under)));
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_experiment_is_whole_and_legible(window: Browser, width: int, scheme: str) -> None:
    """On a desk and on a phone: nothing of it scrolls or is cut, no text laps over another."""
    fits(window, width, scheme, "experiment")
    assert window.run(LAPPING, ".policies") == []


def fits(page: Browser, width: int, scheme: str, name: str) -> None:
    """Nothing scrolls or is cut, and all of it can be read."""
    page.scheme(scheme)
    page.size(width, 844)
    page.until(lambda: page.run("return innerWidth") == width)
    page.until(lambda: (page.run(DRAWN_AT) < 400) == (width < 500))
    assert page.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.run(SCROLLING) == []
    assert min(page.run(CONTRAST.partition("const found")[0] + LABELS)) >= 4.5
    keep(f"{name}-{width}-{scheme}", page.screenshot())
