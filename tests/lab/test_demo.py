"""Does the demonstration show the real service at work, end by itself, and sum up truthfully?"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import pytest
from rich.console import Console

from streamdp.lab.demo import screen
from streamdp.lab.demo.show import BANNER_INPUT, INPUT, configuration
from streamdp.lab.demo.world import BANNERS, CLICK_RATES, SEGMENTS, SHELVES, ShopWorld
from streamdp.service.config import Configuration
from tests.support.asking import free_port

pytestmark = pytest.mark.slow


def text(*drawn: object, width: int = 100) -> str:
    """What a terminal shows."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(*drawn)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_do_visits_score_what_the_simulator_alone_knows() -> None:
    world = ShopWorld(1)
    campers = SEGMENTS[2]
    before, after = world.best(campers, 0.1), world.best(campers, 0.9)
    assert before != after  # taste drifts
    world.visits(campers, 4000, progress=0.1, shown=before)
    world.visits(campers, 4000, progress=0.9, shown=before)
    score = world.scores[campers.name]
    assert score.visits == 8000
    assert score.best_then < score.best_fixed <= score.shown < score.random + 8000
    assert score.random == pytest.approx(sum(score.totals) / len(SHELVES))


def test_is_a_visit_made_again_by_the_same_seed() -> None:
    one, other = (
        ShopWorld(7).visits(SEGMENTS[0], 20, progress=0, shown=SHELVES[0]) for _ in range(2)
    )
    assert one == other


def test_is_the_configuration_one_that_run_takes(tmp_path: Path) -> None:
    path = tmp_path / "streamdp.toml"
    transport = f'kind = "sqlite"\npath = "{tmp_path / "log.db"}"'
    path.write_text(configuration(path, transport=transport, listen="127.0.0.1:1"))
    loaded = Configuration.load(path, environment={})
    assert loaded.charged(INPUT) == Fraction(3, 4)
    assert loaded.charged(BANNER_INPUT) == 1
    assert tomllib.loads(path.read_text())["topics"][INPUT]["budget"] == "1.0"


def test_does_the_screen_part_what_is_public_from_what_only_a_simulator_knows() -> None:
    rows = [
        screen.Row("families", None, 0, 0, [], 0.0, None),
        screen.Row("campers", "outdoor", 9, 5000, [0.3, 0.1, -0.01], 0.02, False),
    ]
    half, one = Fraction(1, 2), Fraction(1)
    frame = screen.Frame(rows, half, one, 6000, 0.5, 10.0, "http://x")
    shown = text(screen.drawn(frame))
    assert "1/2 of 1" in shown
    assert "does not grow with time" in shown
    assert "-0.010 ± 0.020" in shown
    assert "no long block yet" in shown
    assert "simulator only" in shown
    assert "outdoor (block 9)" in screen.as_line(frame)


def test_are_banners_told_by_what_was_published_alone() -> None:
    half, one = Fraction(1, 2), Fraction(1)
    known = screen.Banner("free delivery", 0.75, 3000, (9.25, 11.5))
    banners = [screen.Banner("gift cards", None, 0, None), known]
    frame = screen.Frame([], half, one, 6000, 0.5, 10.0, "http://x", banners)
    shown = text(screen.drawn(frame))
    assert "only clicks on the shown banner are known" in shown
    assert "9.2 to 11.5" in shown
    assert "75%" in shown
    assert "banners free delivery: 75%  ε" in screen.as_line(frame)
    assert "banners …" in screen.as_line(screen.Frame([], half, one, 0, 0.0, 1.0, "", banners[:1]))


def test_are_clicks_scored_by_what_the_simulator_alone_knows() -> None:
    """20,000 visits of the best banner: a tenth click it, ± 0.2 %; the limit is seven of these."""
    world = ShopWorld(1)
    clicked = world.clicked([BANNERS[1]] * 20_000)
    assert sum(clicked) == world.clicks.clicked == world.clicks.best_fixed
    assert abs(sum(clicked) / 20_000 - max(CLICK_RATES)) < 0.015
    assert world.clicks.random < 0.7 * world.clicks.best_fixed
    assert "NOT PRIVATE" in text(screen.clicks_summary(world.clicks, charged=Fraction(1)))


def test_does_the_summary_say_that_it_is_not_private() -> None:
    world = ShopWorld(1)
    for segment in SEGMENTS:
        world.visits(segment, 500, progress=0.9, shown=world.best(segment, 0.9))
    shown = text(screen.summary(world.scores, charged=Fraction(3, 4), budget=Fraction(1)))
    assert "NOT PRIVATE" in shown
    assert "gained 100%" in shown
    assert "ε = 3/4 of an allowed 1" in shown


def test_does_it_run_and_end_by_itself(tmp_path: Path) -> None:
    """As `make demo` runs it, only shorter; its files can be run and verified afterwards."""
    port, folder = free_port(), tmp_path / "shop"
    run = "from streamdp.cli import main; main()"
    asked = ["demo", "--seconds", "12", "--folder", str(folder), "--listen", f"127.0.0.1:{port}"]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    page, printed = "", []
    with subprocess.Popen(
        [sys.executable, "-c", run, *asked], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            if "block" in line and "…" not in line and not page:
                address = f"http://127.0.0.1:{port}/v1/status"
                while not page and process.poll() is None:
                    with (
                        suppress(urllib.error.URLError),  # `serve` is still starting
                        urllib.request.urlopen(address, timeout=5) as answer,
                    ):
                        page = answer.read().decode()
    assert process.returncode == 0
    said = "".join(printed)
    assert "the simulator's own" in said.lower()
    assert "first action was on the screen" in said
    assert "Where to look next" in said
    assert '"name":"shelves"' in page
    assert '"name":"banners"' in page
    assert "free delivery: " in said
    assert "Clicks of 100 visits" in said
    assert (folder / "streamdp.toml").exists()
    log = (folder / "log.json").read_text()
    assert '"partition_drained"' in log
    assert '"level": "error"' not in log


def test_does_a_terminal_of_24_lines_hold_the_picture() -> None:
    """What is higher is cut off below, where the budget is."""
    rows = [
        screen.Row(segment.name, "outdoor", 9, 5000, [0.3], 0.02, False) for segment in SEGMENTS
    ]
    banners = [screen.Banner(name, 0.25, 3000, (9.25, 11.5)) for name in BANNERS]
    one = Fraction(1)
    frame = screen.Frame(rows, one, one, 6000, 0.5, 10.0, "http://x", banners, one)
    for width in (80, 100):
        shown = text(screen.drawn(frame), width=width)
        assert shown.count("\n") <= 23
        assert "free delivery" in shown
