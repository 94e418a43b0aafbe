"""``streamdp plan --observes feedback``: events until the best action is found."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import typer

if TYPE_CHECKING:
    from streamdp.lab.replay.feedback_planning import FeedbackPlan, FeedbackWish

LEARNER = "policy_blocks"


@dataclass(frozen=True, slots=True)
class AssumedEvents:
    """The assumptions about the events."""

    rate: float
    gap: float
    horizon: int
    seed: int
    keys: int
    traffic: float | None


def run(
    text: str,
    epsilon: Fraction,
    actions: int,
    world: AssumedEvents,
    *,
    output: Literal["people", "json", "markdown"],
) -> None:
    """Plan, and print the plan."""
    from streamdp.lab.replay.feedback_planning import FeedbackWish, plan_feedback
    from streamdp.lab.replay.feedback_planning import as_json as for_machines

    wish = FeedbackWish(
        text,
        epsilon,
        actions,
        world.rate,
        world.gap,
        world.horizon,
        world.seed,
        world.keys,
        world.traffic,
    )
    if output == "markdown":
        typer.echo(markdown(wish))
        return
    plan = plan_feedback(wish)
    if output == "json":
        import json

        typer.echo(json.dumps(for_machines(plan), indent=1, ensure_ascii=False))
        return
    _print_blocks(plan)
    _print_table(plan)
    typer.echo(answer(plan))


def answer(plan: FeedbackPlan) -> str:
    """The answer, in a sentence or two."""
    from streamdp.lab.replay.summary import number

    wish = plan.wish
    if plan.found_after is None:
        text = f"The best action is not found within {wish.horizon:,} events of a key"
    else:
        text = f"The best action is found after {plan.found_after:,} events of a key"
        if plan.days is not None:
            text += f", {days_text(plan.days)} at {wish.traffic:,g} a day"
    of_all = f" and {number(plan.regret * wish.keys)} over {wish.keys:,} keys" * (wish.keys > 1)
    return (
        f"{text} (from then on it is shown in at least 3 of 4 requests, in 9 of 10 runs)."
        f" Until {wish.horizon:,} events learning costs {number(plan.regret)}"
        f" ± {number(1.96 * plan.error)} in rewards{of_all}; showing all equally costs"
        f" {number(plan.uniform)}."
    )


def markdown(wish: FeedbackWish) -> str:
    """Events of a key until the best action is found, for rates and gaps around the given ones."""
    from streamdp.core.errors import InvalidConfig, complaint
    from streamdp.lab.replay.feedback_planning import FORMULAS, around

    tables = around(wish)
    if not tables:
        expected = " or ".join(FORMULAS)
        raise InvalidConfig(
            complaint("--markdown", "no formula", expected=expected, got=repr(wish.text))
        )
    epsilons = tables[0][1].epsilons
    heads = ["others' rate", "the best's", *(f"ε = {epsilon}" for epsilon in epsilons)]
    lines = [f"| {' | '.join(heads)} |", "|--:|--:|" + "--:|" * len(epsilons)]
    for rate, table in tables:
        for gap, row in zip(table.gaps, table.events, strict=True):
            cells = [f"{rate:.3g}", f"{rate + gap:.3g}", *map(two_digits, row)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def two_digits(events: float) -> str:
    """Round to what a formula can say that is right within a factor of two.

    >>> two_digits(12_345.6)
    '12,000'
    """
    return f"{float(f'{events:.2g}'):,.0f}"


def days_text(days: float) -> str:
    """A duration, for people.

    >>> days_text(0.0001), days_text(0.02), days_text(0.5), days_text(9.6)
    ('about 1 minute', 'about 29 minutes', 'about 12 hours', 'about 10 days')
    """
    for size, unit in ((1, "days"), (1 / 24, "hours"), (1 / 1440, "minutes")):
        if days >= 2 * size or unit == "minutes":
            break
    count = max(1, round(days / size))
    return f"about {count} {unit if count > 1 else unit.removesuffix('s')}"


def _print_blocks(plan: FeedbackPlan) -> None:
    from rich.console import Console
    from rich.table import Table

    from streamdp.lab.replay.cells import epsilon_text
    from streamdp.lab.replay.summary import number

    wish = plan.wish
    table = Table(
        title=f"{wish.text}, K = {wish.actions}, ε = {epsilon_text(wish.epsilon)}",
        caption=f"Mean of {plan.runs} simulated runs of clicks: the best action's rate is"
        f" {wish.rate + wish.gap:g}, all others' {wish.rate:g}.",
    )
    for name in ("block", "slots", "runs that have found it", "best shown", "regret so far"):
        table.add_column(name, justify="right")
    for place in rows_shown(len(plan.blocks)):
        block = plan.blocks[place]
        table.add_row(
            str(place),
            f"{block.first:,} – {block.last:,}",
            f"{block.found_share:.0%}",
            f"{block.best:.0%}",
            number(block.regret),
        )
    Console().print(table)


_FIRST = 24
_ROWS = 12


def rows_shown(blocks: int) -> list[int]:
    """The blocks that a table has rows for: the first ones, some of the rest, and the last.

    >>> rows_shown(3), rows_shown(1000)[23:26], rows_shown(1000)[-1]
    ([0, 1, 2], [23, 83, 166], 999)
    """
    every = max(1, blocks // _ROWS)
    return [at for at in range(blocks) if at < _FIRST or at % every == 0 or at == blocks - 1]


def _print_table(plan: FeedbackPlan) -> None:
    from rich.console import Console
    from rich.table import Table

    from streamdp.lab.replay.feedback_planning import table_for

    events_table = table_for(plan.wish)
    if events_table is None:
        return
    table = Table(
        title=f"Events of a key until the best of {plan.wish.actions} is found",
        caption="By a formula that was fitted to simulations: right within a factor of two.",
    )
    table.add_column("gap", justify="right")
    for epsilon in events_table.epsilons:
        table.add_column(f"ε = {epsilon}", justify="right")
    for gap, row in zip(events_table.gaps, events_table.events, strict=True):
        table.add_row(f"{gap:g}", *map(two_digits, row))
    Console().print(table)
