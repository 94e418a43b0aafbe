"""Does a report fit every page that it is read on, and is it legible, whatever names it holds?

In a real browser: a desk (1,280 px), a phone (390 px), A4 paper; light and dark.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamdp.lab.common.cells import parse_candidates, parse_epsilons
from streamdp.lab.common.words import number
from streamdp.lab.logs.log import ArrayLog
from streamdp.lab.logs.shown import ShownLog
from streamdp.lab.offpolicy import statements
from streamdp.lab.offpolicy.question import FeedbackQuestion, replay_losses, replay_shown
from streamdp.lab.papers.claims import Effort, claims
from streamdp.lab.papers.claims.figures import with_pictures
from streamdp.lab.replay.replaying import Question, replay_log, seeds_of
from streamdp.lab.replay.reported import as_json
from streamdp.lab.replay.summary import lead
from streamdp.lab.report import Kind, page
from streamdp.lab.simulation import SimulationSize, simulate
from streamdp.lab.simulation import as_json as simulated
from streamdp.lab.worlds.families import DRIFTING
from streamdp.lab.worlds.families import FEEDBACK as WORLDS
from tests.support.browser import Browser, browser, keep
from tests.support.replayed import Pieces
from tests.support.shown_logs import made_up

pytestmark = pytest.mark.system("chromium", "chromedriver")

MARKUP = "</script><img src=x onerror=document.title='run'>"
LONG = "banner_" + "of_the_autumn_collection_" * 4
NAMES = (MARKUP, LONG, "'\"&amp;", "d")
PAPER = 695
"""Pixels between the margins of a sheet of A4."""

FEEDBACK = FeedbackQuestion(("policy_blocks", "thompson"), parse_epsilons("0.5,1,4"), (1, 2))


def _keyed() -> Pieces:
    """Three keys with names like the actions'; the best action changes, so regret falls below 0."""
    generator, slots = np.random.default_rng(5), 4500
    means = np.full((slots, 4), 0.8)
    means[np.arange(slots), np.arange(slots) * 4 // slots % 3] = 0.2
    losses = (generator.random((slots, 4)) < means).astype(np.float32)
    keys = [(MARKUP.encode(), LONG.encode(), None)[at % 9 // 4] for at in range(slots)]
    return Pieces(losses, keys, actions=NAMES, name=f"/logs/{MARKUP}")


def _clicks() -> ShownLog:
    """Eighty actions that are clicked in .2 to .8 % of their shows."""
    generator = np.random.default_rng(4)
    names = tuple(f"{NAMES[at % 4]} {at}" for at in range(80))
    means, draws = generator.uniform(0.002, 0.008, 80), generator.dirichlet(np.full(80, 3.0))
    return replace(made_up(8000, seed=4, means=means, draws=draws), actions=names)


LOSSES = {"regret", "standard_error"}


def _long_numbers(figures: Any) -> Any:
    """The same with regrets a hundred thousand times as large."""
    if isinstance(figures, list):
        return [_long_numbers(part) for part in figures]
    if not isinstance(figures, dict):
        return figures
    longer = {name: _long_numbers(part) for name, part in figures.items()}
    for name in LOSSES & longer.keys():
        if isinstance(longer[name], float):
            longer[name] *= 1e5
    return longer


def _reports() -> dict[str, tuple[Kind, Any]]:
    learners = "remembering_leader,incumbent_leader:schedule=capped 64,follow_the_leader"
    epsilons = parse_epsilons("0.1,0.5,1,2,inf")
    losses = replay_log(_keyed(), Question(parse_candidates(learners), epsilons, seeds_of(5)))
    shown = ArrayLog("losses", NAMES, _keyed().losses[:300])
    worlds = simulate(
        parse_candidates("policy_blocks,lazy_thompson,thompson", observes="feedback"),
        [Fraction(1, 2), Fraction(1)], [WORLDS[0], WORLDS[3]], SimulationSize(3, 3000),
    )  # fmt: skip
    drifts = simulate(
        parse_candidates("remembering_leader,incumbent_leader:schedule=capped 512"),
        parse_epsilons("1,inf"), DRIFTING[:2], SimulationSize(3, 3000),
    )  # fmt: skip
    size = Effort(runs=100)
    measured = [(name, claim(size)) for name, claim in claims() if name in ("actions", "example")]
    return {
        "losses": ("losses", as_json(losses)),
        "long numbers": ("losses", _long_numbers(as_json(losses))),
        "clicks": ("feedback", statements.as_json(replay_shown(_clicks(), FEEDBACK))),
        "exact": ("feedback", statements.as_json(replay_losses(shown, FEEDBACK))),
        "simulation": ("simulation", simulated(worlds, [WORLDS[0], WORLDS[3]], 3000)),
        "drifts": ("simulation", simulated(drifts, DRIFTING[:2], 3000)),
        "claims": ("claims", with_pictures(measured, size)),
    }


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    for name, (kind, figures) in _reports().items():
        (folder / f"{name}.html").write_text(page(kind, figures))
    return {path.stem: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as window:
        yield window


KINDS = ("losses", "long numbers", "clicks", "exact", "simulation", "drifts", "claims")


def _shown(window: Browser, path: Path, *, width: int = 1280, media: str = "screen") -> None:
    """Open a report as it is on a page of this width."""
    window.ask("POST", "/goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params={
        "media": media, "features": [{"name": "prefers-color-scheme", "value": "light"}],
    })  # fmt: skip
    window.ask("POST", "/goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params={
        "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600,
    })  # fmt: skip
    window.open(path.as_uri())
    assert window.complaints() == []


CUT = """
const root = document.documentElement, wide = root.clientWidth, faults = [];
const say = (what, node) => faults.push(`${what}: ${node.textContent.slice(0, 60)}`);
if (root.scrollWidth > wide || wide !== arguments[0]) say(`is ${root.scrollWidth} wide`, root);
for (const node of document.querySelectorAll("main *")) {
  if (["auto", "scroll"].includes(getComputedStyle(node).overflowX)) say("scrolls", node);
  const box = node.getBoundingClientRect(), drawn = node.closest("svg") || !box.width;
  if (!drawn && (box.left < -.5 || box.right > wide + .5)) say("leaves the page", node);
}
const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
const holders = "td, th, li, .row > span, figure, dd, dt, p, h1, h2, .rows";
const range = document.createRange();
const boxes = node => {
  range.selectNodeContents(node);
  return [...range.getClientRects()].filter(box => box.width);
};
while (texts.nextNode()) {
  const text = texts.currentNode;
  const room = text.parentElement.closest(holders).getBoundingClientRect();
  for (const box of boxes(text)) {
    if (box.left < room.left - 1 || box.right > room.right + 1) say("is cut or laps over", text);
  }
}
for (const scale of document.querySelectorAll(".area, .scale")) {
  const ticks = [...scale.querySelectorAll(".tick")].map(tick => [tick, ...boxes(tick)]);
  for (const [at, [tick, a]] of ticks.entries()) for (const [other, b] of ticks.slice(at + 1)) {
    const beside = a.right <= b.left || b.right <= a.left;
    const above = a.bottom <= b.top + 3 || b.bottom <= a.top + 3;
    if (!beside && !above) say(`laps over ${other.textContent}`, tick);
  }
}
return faults;
"""


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("width", "media"), [(1280, "screen"), (390, "screen"), (PAPER, "print")])
def test_nothing_is_cut_or_scrolls_sideways(
    reports: dict[str, Path], window: Browser, name: str, width: int, media: str
) -> None:
    """Not the page, no part of it, no text and no number; labels of an axis do not overlap."""
    _shown(window, reports[name], width=width, media=media)
    keep(f"report-{name}-{width}", window.screenshot())
    assert window.run(CUT, width) == []


@pytest.mark.parametrize("name", KINDS)
def test_it_prints_on_paper(reports: dict[str, Path], window: Browser, name: str) -> None:
    _shown(window, reports[name])
    made = window.ask("POST", "/goog/cdp/execute", cmd="Page.printToPDF", params={
        "paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True,
    })  # fmt: skip
    assert b64decode(made["data"]).startswith(b"%PDF")


LEGIBLE = """
const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
const light = c => {
  const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => linear(v / 255));
  return .2126 * r + .7152 * g + .0722 * b;
};
const below = node => {
  for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if (!/, 0\\)$/.test(colour)) return colour;
  }
};
const faint = new Set();
for (const node of document.querySelectorAll("main *:not(svg, svg *)")) {
  if (![...node.childNodes].some(child => child.nodeType === 3 && child.data.trim())) continue;
  const [one, other] = [light(getComputedStyle(node).color), light(below(node))];
  const ratio = (Math.max(one, other) + .05) / (Math.min(one, other) + .05);
  if (ratio < 4.5) faint.add(`${node.nodeName} ${node.className} ${ratio.toFixed(1)}`);
}
return [[...faint], light(below(document.querySelector("main")))];
"""


@pytest.mark.parametrize("name", KINDS)
def test_every_text_is_legible_in_light_and_dark(
    reports: dict[str, Path], window: Browser, name: str
) -> None:
    """A contrast of 4.5 at least, as WCAG 2.2 asks (1.4.3)."""
    _shown(window, reports[name])
    grounds = []
    for scheme in ("light", "dark"):
        window.scheme(scheme)
        faint, ground = window.run(LEGIBLE)
        assert faint == []
        grounds.append(ground)
    assert grounds[0] > 0.8
    assert grounds[1] < 0.1


HEIGHTS = """
const heights = path => path.getAttribute("d").match(/,[-\\d.]+/g).map(y => Number(y.slice(1)));
return [...document.querySelectorAll(".area > svg")].map(chart => {
  const ys = [...chart.querySelectorAll("path.solid")].flatMap(heights);
  const broken = chart.innerHTML.includes("NaN");
  const lines = [...chart.querySelectorAll(".grid")].map(
    path => parseFloat(path.getAttribute("d").slice(1)));
  const ticks = [...chart.parentNode.querySelectorAll(".tick.x")].map(
    tick => parseFloat(tick.style.left) * 10);
  const apart = ticks.some(tick => !lines.some(line => Math.abs(line - tick) < 1));
  return [chart.getAttribute("aria-label"), broken || apart, Math.max(...ys) - Math.min(...ys)];
});
"""


@pytest.mark.parametrize("name", KINDS)
def test_charts_are_scaled_to_their_data(
    reports: dict[str, Path], window: Browser, name: str
) -> None:
    """Curves fill a quarter of it at least, also rates of thousandths; ticks have their line."""
    _shown(window, reports[name])
    charts = window.run(HEIGHTS)
    assert charts
    for label, broken, height in charts:
        assert not broken, label
        assert height > 250, (label, height)


def test_names_stay_text_and_nothing_is_fetched(reports: dict[str, Path], window: Browser) -> None:
    """Actions, keys and files that are markup are shown as they are, and none of it is run."""
    for name in ("losses", "clicks", "exact"):
        _shown(window, reports[name])
        assert reports[name].read_text().count("</script>") == 2
        assert window.run("return document.querySelectorAll('img').length") == 0
        assert window.run("return document.title") != "run"
        assert MARKUP in window.run("return document.querySelector('main').textContent")
        assert window.run("return performance.getEntriesByType('resource').length") == 0


def test_the_page_says_what_the_figures_say(reports: dict[str, Path], window: Browser) -> None:
    """It begins with what was at stake, says that it is not private, and has every cell."""
    candidates = parse_candidates("prefix_softmax,incumbent_leader")
    replay = replay_log(_keyed(), Question(candidates, parse_epsilons("0.5,2"), seeds_of(5)))
    path = reports["losses"].with_name("alone.html")
    path.write_text(page("losses", as_json(replay)))
    _shown(window, path)
    text = window.text("main").replace("\u00a0", " ")
    places = [text.index(part) for part in (lead(replay)["worth"], "NOT PRIVATE", "All candidates")]
    assert places == sorted(places)
    rows = window.run(
        "return [...document.querySelectorAll('tbody tr')].map("
        "row => [...row.cells].map(cell => cell.textContent.replaceAll('\\u00a0', ' ')))"
    )
    for answer in replay.answers:
        regret = f"{number(answer.mean)} ± {number(1.96 * answer.error)}"
        assert any(row[0] == answer.cell.name and row[2] == regret for row in rows)
    answers = window.run("return figures.cells.length")
    assert answers == len(as_json(replay)["cells"])  # type: ignore[arg-type]
