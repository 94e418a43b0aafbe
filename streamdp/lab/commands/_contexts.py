"""What ``plan --context`` and ``check --traffic`` say of contexts.

The JSON of `context_worlds.as_json` is made first; words and tables are read from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from streamdp.core.kinds.feedback import PolicyLearner
    from streamdp.lab.context_worlds import Table
    from streamdp.lab.report.terminal import Table as Printed

_DAYS = 30
_MOST_EVENTS = 1_000_000


def show(tables: Sequence[Table], *, as_json: bool) -> None:
    """Simulate each table's worlds and print them."""
    from streamdp.lab import context_worlds

    def note(world: str) -> None:
        typer.echo(f"simulating: what is best depends on {world}", err=True)

    reports = [
        context_worlds.as_json(table, context_worlds.learned(table, progress=note))
        for table in tables
    ]
    if as_json:
        typer.echo(json.dumps(reports, indent=1, ensure_ascii=False))
        return
    from streamdp.lab.report.terminal import draw

    for report in reports:
        draw(_table(report))
        typer.echo(verdict(report))


def of_stream(learner: PolicyLearner, *, traffic: float, rate: float, gap: float) -> dict[str, Any]:
    """What to expect of a stream with contexts: of a month, or of a million events if it has more.

    `check` finds this by name.
    """
    from streamdp.lab import context_worlds

    slots = max(1, round(min(traffic * _DAYS, _MOST_EVENTS)))
    table = context_worlds.Table.of_stream(
        learner, rate=rate, gap=gap, slots=slots, traffic=traffic
    )
    return context_worlds.as_json(table, context_worlds.learned(table))


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """A report in a few lines, without a table. `check` finds this by name."""
    yield f"expected of {_events(report, report['events'])} of a key, {_clicks(report)}:"
    for of in report["worlds"]:
        lost = ", ".join(
            f"{name} {choice['regret_percent']:.0f} %" for name, choice in of["choices"].items()
        )
        yield f"  if what is best depends on {of['decides']}: {lost} of what random play loses"
    yield verdict(report)


def verdict(report: Mapping[str, Any]) -> str:
    """What to take where nobody knows which of the worlds it is, and what each choice loses."""
    take, lost = report["take"], report["mean_regret_percent"]
    others = ", ".join(f"{name} {of:.0f} %" for name, of in lost.items() if name != take)
    parts = report["interactions"]
    named = take
    if take == "contexts" and parts != "all":
        named = f"contexts in these parts ({parts})"
    elif take == "each field alone":
        named = f'{take} (interactions = "none")'
    return (
        f"Over {_events(report, report['events'])} of a key take {named}, unless you know which of"
        f" these worlds is yours. The mean of them: it loses {lost[take]:.0f} % of what showing"
        f" actions at random loses, {others}."
    )


def _events(report: Mapping[str, Any], events: int) -> str:
    """So many events, and how long they take where the traffic is given."""
    return f"{events:,} events" + (f" ({_days(report, events)})" if report["events_a_day"] else "")


def _days(report: Mapping[str, Any], events: int) -> str:
    from streamdp.lab.common.words import days_text

    return days_text(events / report["events_a_day"])


def _clicks(report: Mapping[str, Any]) -> str:
    rate = report["rate"]
    return f"where of 1,000 visits {1000 * rate:g} click, {1000 * (rate + report['gap']):g} at best"


def _table(report: Mapping[str, Any]) -> Printed:
    """A row for each world, with a line for each choice."""
    from streamdp.lab.report.terminal import DEPENDS
    from streamdp.lab.report.terminal import Table as Printed

    cells, parts = "x".join(map(str, report["shape"])), report["interactions"]
    rows = []
    for of in report["worlds"]:
        lines = [("at random", "100", f"{1000 * of['random_reward']:.1f}", "")]
        for name, choice in of["choices"].items():
            at = choice["learned_after"]
            when = f"{at or 0:,}" if not report["events_a_day"] else _days(report, at or 0)
            lines.append((
                f"→ {name}" if name in of["not_clearly_worse"] else name,
                f"{choice['regret_percent']:.0f} ± {choice['standard_error']:.0f}",
                f"{1000 * choice['reward']:.1f}",
                "–" if at is None else when,
            ))  # fmt: skip
        lines.append(("at best", "0", f"{1000 * of['best_reward']:.1f}", ""))
        rows.append([of["decides"], *map("\n".join, zip(*lines, strict=True))])
    return Printed(
        f"{cells} cells{'' if parts == 'all' else f' in parts ({parts})'},"
        f" K = {report['actions']}, ε = {report['epsilon']}, over"
        f" {_events(report, report['events'])} of a key",
        (DEPENDS, "taking", "lost, %", "clicks of\n1,000", "learned\nafter"),
        rows,
        f"Made-up visits, {_clicks(report)}; {report['runs']} runs. Lost: of what showing"
        " actions at random loses, against the best one for each visitor. →: no other choice loses"
        " clearly less. Learned: from then on nine runs of ten lose at most a quarter.",
    )
