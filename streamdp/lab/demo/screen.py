"""The demonstration's terminal: what streamdp published and, apart, the simulator's facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from streamdp.lab.demo.world import Clicks, Score
from streamdp.wire.unprotected import NOT_PRIVATE

_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Row:
    """One segment: its public facts, and whether the shelf is really best."""

    name: str
    action: str | None  # None until the first one is published
    block: int
    slots: int
    regrets: Sequence[float]  # per slot, block by block: released, noisy
    standard_error: float  # of the newest regret
    is_best: bool | None  # only the simulator knows


@dataclass(frozen=True, slots=True)
class Banner:
    """One banner, by public facts alone."""

    name: str
    share: float | None  # part of the visitors that are shown it; None before the first policy
    shown: int  # so far, in blocks that have ended
    clicks: tuple[float, float] | None  # per 100 shown: bounds of a 95 % interval; released, noisy


@dataclass(frozen=True, slots=True)
class Frame:
    """One picture."""

    rows: Sequence[Row]
    charged: Fraction
    budget: Fraction
    visits: int
    progress: float  # 0 … 1
    seconds: float  # left
    address: str
    banners: Sequence[Banner] = ()
    banner_charged: Fraction = Fraction(0)


def sparkline(values: Iterable[float], *, top: float) -> str:
    """Numbers as bars; one below zero, which is noise, is the lowest bar.

    >>> sparkline([-0.1, 0.0, 0.2, 0.4], top=0.4)
    '▁▁▅█'
    """
    return "".join(
        _BARS[round(min(1.0, max(0.0, value / top)) * (len(_BARS) - 1))] for value in values
    )


def drawn(frame: Frame) -> RenderableType:
    """The picture."""
    return Panel(
        Group(_segments(frame.rows), _banners(frame), _cost(frame), _time(frame)),
        title="[bold]streamdp[/] learns which shelf and which banner to show, privately",
        subtitle=f"status page: [link={frame.address}]{frame.address}[/link]",
        padding=(0, 2),  # a terminal of 24 lines holds it
    )


def _running_table(caption: str) -> Table:
    return Table(box=SIMPLE_HEAD, expand=True, pad_edge=False, caption=caption, caption_style="dim")


def _final_table(title: str, known: str) -> Table:
    """A table of what only the simulator can know, marked as such."""
    return Table(
        box=SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        caption=f"The simulator's own, exact knowledge: {NOT_PRIVATE}{known}",
        caption_justify="left",
        pad_edge=False,
    )


def _segments(rows: Sequence[Row]) -> Table:
    table = _running_table("regret: with noise, ± one standard error; last column: simulator only")
    table.add_column("segment", style="bold", no_wrap=True)
    table.add_column("shelf shown", no_wrap=True)
    table.add_column("block", justify="right", min_width=5)
    table.add_column("visits", justify="right", min_width=6)
    table.add_column("regret a visit, private", no_wrap=True)
    table.add_column("best?", style="dim", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            Text("…", "dim") if row.action is None else Text(row.action, "cyan"),
            str(row.block),
            f"{row.slots:,}",
            _regret(row),
            {None: "", True: "yes", False: "not yet"}[row.is_best],
        )
    return table


def _regret(row: Row) -> Text:
    if not row.regrets:
        return Text("no long block yet", "dim")
    line = sparkline(row.regrets[-8:], top=0.4).ljust(8)
    return Text.assemble(
        (line, "magenta"), f"  {row.regrets[-1]:+.3f} ", (f"± {row.standard_error:.3f}", "dim")
    )


def _banners(frame: Frame) -> Table:
    table = _running_table(
        f"only clicks on the shown banner are known; intervals of 95 %; ε = {frame.banner_charged}"
    )
    table.add_column("banner", style="bold", no_wrap=True)
    table.add_column("shown to", no_wrap=True)
    table.add_column("visits", justify="right", min_width=6)
    table.add_column("clicks of 100, private", justify="right", no_wrap=True)
    for banner in frame.banners:
        share = banner.share
        bar = "" if share is None else "█" * round(12 * share)
        percent = "…" if share is None else f" {share:.0%}"
        clicks = banner.clicks
        table.add_row(
            banner.name,
            Text.assemble((bar, "cyan"), percent),
            f"{banner.shown:,}",
            "" if clicks is None else f"{clicks[0]:.1f} to {clicks[1]:.1f}",
        )
    return table


def _cost(frame: Frame) -> Table:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(width=24)
    grid.add_column(ratio=1)
    grid.add_row(
        Text.assemble(("ε per event, shelves ", "bold"), f"{frame.charged} of {frame.budget}"),
        ProgressBar(total=float(frame.budget), completed=float(frame.charged), width=24),
        Text("exact; does not grow with time", "dim"),
    )
    return grid


def _time(frame: Frame) -> Table:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_row(
        Text(f"{frame.visits:,} visits, {max(0, round(frame.seconds))} s to go", "dim"),
        ProgressBar(total=1.0, completed=frame.progress, complete_style="dim"),
    )
    return grid


def as_line(frame: Frame) -> str:
    """The frame in one line, for output that is not a terminal."""
    shelves = ", ".join(
        f"{row.name}: {row.action or '…'} (block {row.block})" for row in frame.rows
    )
    policies = ", ".join(
        f"{banner.name}: {banner.share:.0%}" for banner in frame.banners if banner.share is not None
    )
    visits = f"{frame.visits:>7,} visits  {shelves}  banners {policies or '…'}"
    return f"{visits}  ε per event {frame.charged} of {frame.budget}"


def summary(scores: dict[str, Score], *, charged: Fraction, budget: Fraction) -> RenderableType:
    """The result, from the simulator's own knowledge."""
    table = _final_table("Visits without a sale, in 100", ", no real service shows this")
    for name in ("segment", "streamdp", "random shelf", "best fixed shelf", "best at each moment"):
        table.add_column(name, justify="left" if name == "segment" else "right")
    for name, score in scores.items():
        table.add_row(name, *_per_hundred(score.ways, score.visits))
    lost = [sum(ways) for ways in zip(*(score.ways for score in scores.values()), strict=True)]
    visits = sum(score.visits for score in scores.values())
    table.add_section()
    table.add_row("all", *_per_hundred(lost, visits), style="bold")
    shown, at_random, _, best_then = lost
    gained = (at_random - shown) / max(1e-9, at_random - best_then)
    return Group(
        table,
        Text(
            f"Of what there was to gain over a random shelf, streamdp gained {gained:.0%},"
            " drift and all."
        ),
        Text(
            f"Each event of the shelves was charged ε = {charged} of an allowed {budget}, the first"
            " and the last alike: time does not use a budget up."
        ),
    )


def clicks_summary(clicks: Clicks, *, charged: Fraction) -> RenderableType:
    """The banners' result, from the simulator's own knowledge."""
    table = _final_table("Clicks of 100 visits; streamdp saw only those on the shown banner", "")
    table.min_width = 70
    ways = {
        "streamdp": clicks.clicked,
        "random banner": clicks.random,
        "best fixed banner": clicks.best_fixed,
    }
    for name in ways:
        table.add_column(name, justify="right")
    table.add_row(*_per_hundred(ways.values(), clicks.visits))
    return Group(table, Text(f"Each event of the banners was charged ε = {charged}."))


def _per_hundred(counts: Iterable[float], visits: int) -> list[str]:
    return [f"{100 * count / max(1, visits):.1f}" for count in counts]
