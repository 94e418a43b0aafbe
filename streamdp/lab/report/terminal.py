"""The report on a terminal: tables and sentences from the figures that the page is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Drawn

from streamdp.lab.common.estimates import MeanReward
from streamdp.lab.common.words import interval, number, plus_minus
from streamdp.lab.report import Kind
from streamdp.wire.unprotected import NOT_PRIVATE

Json = dict[str, Any]

NAMES = ("world", "learner", "ε", "taking")
"""Columns of names, which stand to the left and are never broken."""

DEPENDS = "what is best depends on"
"""The column of words: it stands to the left as well."""


class Table(NamedTuple):
    """A table: a header, and a row of cells for each line."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


def show(kind: Kind, figures: Json) -> None:
    """Print the tables of these figures, and the sentences."""
    for table in TABLES[kind](figures):
        draw(table)
    console = Console()
    for sentence in (*figures["lead"].values(), *figures.get("said", ())):
        console.print(sentence, highlight=False, soft_wrap=True)
    for said in figures.get("summary", ()):
        text = f"[bold]{said['about']}.[/] {said['says']}"
        console.print(text, highlight=False, soft_wrap=True)


def draw(table: Table) -> None:
    """Print a table: wider than the terminal, if its names and numbers are."""
    drawn = Drawn(title=table.title, caption=table.caption or None)
    for name in table.header:
        left: Literal["left", "right"] = "left" if name in (*NAMES, DEPENDS) else "right"
        drawn.add_column(name, justify=left, no_wrap=name in NAMES, overflow="fold")
    for at, row in enumerate(table.rows):
        if table.header[0] in ("world", DEPENDS) and at and row[0] != table.rows[at - 1][0]:
            drawn.add_section()
        drawn.add_row(*row)
    for column in drawn.columns:  # rich would break words, and numbers
        lines = [line for cell in column.cells for line in str(cell).splitlines()]
        whole = lines if column.no_wrap else [word for line in lines for word in line.split()]
        column.min_width = max(map(len, whole), default=0)
    console = Console()
    least = Measurement.get(console, console.options.update(max_width=1 << 12), drawn).minimum
    Console(width=max(console.width, least)).print(drawn)


def markdown(tables: Iterable[Table]) -> str:
    """The same tables as Markdown."""
    lines = []
    for table in tables:
        marks = ["---" if name in NAMES else "--:" for name in table.header]
        lines += [f"{table.title}:\n"] if table.title else []
        lines += [f"| {' | '.join(row)} |" for row in (table.header, marks, *table.rows)]
        lines += [""]
    return "\n".join(lines).rstrip()


# -- logs ----------------------------------------------------------------------------------------


def of_losses(d: Json) -> list[Table]:
    """Every cell's regret, and what uniform choice costs."""
    rows = []
    for cell in d["cells"]:
        share, at = cell["share_of_stake"], cell["settled_at"]
        rows.append(
            [
                cell["learner"],
                epsilon_text(cell["epsilon"]),
                plus_minus(cell["regret"], cell["standard_error"]),
                "" if share is None else f"{share:.0%}",
                "never" if at is None else f"{at:,}",
                cell["charge"] or "not private",
            ]
        )
    rows.append(["uniform choice", "0", number(d["uniform_regret"][-1]), "0%", "", "0"])
    return [
        Table(
            f"{d['log']}: {d['slots']:,} slots, {len(d['actions'])} actions",
            ("learner", "ε", "regret", "reached", "settled at slot", "charge of an event"),
            rows,
            f"{NOT_PRIVATE}. Regret against the best fixed action of each key, mean over seeds"
            " ± 1.96 standard errors; reached: the share of what that action gains over uniform"
            " choice. Exact if the log holds every action's loss as it would have been.",
        )
    ]


def of_feedback(d: Json) -> list[Table]:
    """What each candidate won, as far as the log tells."""
    figures: dict[str, Callable[[Json], list[str]]] = {
        "regret, mean reward": lambda a: [number(a["regret"]), _reward(a)],
        "blocks, likeliest the best": lambda a: [f"{a['ledger']['blocks']:,}", _likeliest(a, d)],
        "mean reward, records met": lambda a: [
            _reward(a), f"{int(sum(a['records_met']) / len(d['seeds'])):,}",
        ],
        "mean reward (DR), effective clicks, mean weight, SNIPS, IPS, for certain": _estimates,
    }  # fmt: skip
    methods = ("exact", "service", "uniform", "propensities")
    head, cells = list(figures.items())[methods.index(d["method"])]
    rows = [
        [
            answer["learner"],
            epsilon_text(answer["epsilon"]),
            *cells(answer),
            answer["ledger"]["epsilon_per_event"] or "not private",
        ]
        for answer in d.get("as_live") or d["cells"]
    ]
    return [
        Table(
            f"{d['log']}: {d['slots']:,} slots, {len(d['actions'])} actions",
            ("learner", "ε", *head.split(", "), "charge of an event"),
            rows,
            f"{NOT_PRIVATE}. {d['summary'][0]['about']}.",
        )
    ]


def _reward(answer: Json) -> str:
    return str(MeanReward.read(answer["mean_reward"]))


def _estimates(answer: Json) -> list[str]:
    value = answer["value"]
    low, high = value["certain_bounds"]
    return [
        _reward(answer),
        f"{value['effective_clicks']:,.0f}",
        f"{value['mean_weight']['value']:.2f}",
        f"{value['snips']['value']:.3g}",
        f"{value['ips']['value']:.3g}",
        interval(low, high),
    ]


def _likeliest(answer: Json, d: Json) -> str:
    """The action that is most likely the best, by the released sums of the watched key."""
    arms = answer["experiment"]
    if arms is None:
        return "by context" if "context" in answer["config"] else "—"
    chances = arms["chance_of_best"]
    best = max(range(len(chances)), key=chances.__getitem__)
    return f"{d['actions'][best]} ({chances[best]:.0%})"


# -- made-up worlds ------------------------------------------------------------------------------


def of_simulation(d: Json) -> list[Table]:
    """Regret by world and learner, and what else is known of it: a column for each ε."""
    budgets = list(dict.fromkeys(of["epsilon"] for of in d["answers"]))
    rows: dict[tuple[str, str], dict[str, Json]] = {}
    for of in d["answers"]:
        rows.setdefault((of["world"], of["learner"]), {})[of["epsilon"]] = of
    header = [
        "world",
        "learner",
        *("without privacy" if of == "inf" else f"ε = {of}" for of in budgets),
    ]

    def table(title: str, cell: Callable[[Json], str]) -> Table:
        return Table(
            title,
            header,
            [
                [*name, *(cell(own[at]) if at in own else "" for at in budgets)]
                for name, own in rows.items()
            ],
        )

    tables = [table("Mean regret", lambda of: plus_minus(of["regret"], of["standard_error"]))]
    if any(of["found_after"] is not None for of in d["answers"]):
        tables.append(
            table(
                "The best action is found after so many events of a key",
                lambda of: "–" if of["found_after"] is None else f"{of['found_after']:,}",
            )
        )
    tables.append(
        table(
            "Worst 1 % of the runs, relative to the mean",
            lambda of: f"{of['worst_percent'] / of['regret']:.1f}" if of["regret"] else "–",
        )
    )
    return [*_relative(d), *tables, *_by_formula(d), *_by_block(d)]


def _relative(d: Json) -> list[Table]:
    if (relative := d["relative"]) is None:
        return []
    header = ["learner", *(f"ε = {epsilon_text(of)}" for of in relative["epsilons"]), "all"]
    rows = [
        [of["learner"], *(f"{ratio:.3f} ± {error:.3f}" for ratio, error in of["ratios"])]
        for of in relative["learners"]
    ]
    title = f"Regret relative to {relative['to']}, geometric mean over instances"
    return [Table(title, header, rows)]


def _by_formula(d: Json) -> list[Table]:
    """Events until the best is found, around a plan."""
    if (table := d.get("table")) is None:
        return []
    return [
        Table(
            f"Events of a key until the best of {d['actions']} is found",
            ["gap", *(f"ε = {epsilon}" for epsilon in table["epsilons"])],
            [
                [f"{gap:g}", *map(two_digits, events)]
                for gap, events in zip(table["gaps"], table["events"], strict=True)
            ],
            "By a formula that was fitted to simulations: right within a factor of two.",
        )
    ]


_FIRST, _ROWS = 24, 12


def _by_block(d: Json) -> list[Table]:
    """A single learner's blocks: the first ones, some of the rest, and the last."""
    if len(d["answers"]) > 1 or (found := d["answers"][0]["found_over_time"]) is None:
        return []
    over = d["answers"][0]["regret_over_time"]
    every, last = max(1, len(found) // _ROWS), len(found) - 1
    rows = [
        [f"{slot:,}", f"{found[at]:.0%}", number(over["mean"][at])]
        for at, slot in enumerate(over["slots"])
        if at < _FIRST or at % every == 0 or at == last
    ]
    return [
        Table(
            "Block by block",
            ("until slot", "runs that show the best action", "regret so far"),
            rows,
        )
    ]


def of_claims(d: Json) -> list[Table]:
    """A table for each of the papers' claims: what was measured of each learner, and judged."""
    rows: dict[str, list[list[str]]] = {}
    for of in d["findings"]:
        low, high = of["interval"]
        judged = [f"{low:.3g} … {high:.3g}", f"{of['runs']:,}", of["verdict"]]
        claim = f"{of['claim']} ({of['source']}): {of['rule']}"
        rows.setdefault(claim, []).append([of["learner"], of["measured"], *judged])
    header = ("learner", "measured", "interval", "runs", "verdict")
    return [Table(claim, header, of) for claim, of in rows.items()]


def two_digits(events: float) -> str:
    """Round to what a formula can say that is right within a factor of two.

    >>> two_digits(12_345.6)
    '12,000'
    """
    return f"{float(f'{events:.2g}'):,.0f}"


def epsilon_text(epsilon: str) -> str:
    """An ε of the figures, as people write it."""
    return "∞" if epsilon == "inf" else epsilon


TABLES: Mapping[Kind, Callable[[Json], list[Table]]] = {
    "losses": of_losses,
    "feedback": of_feedback,
    "simulation": of_simulation,
    "claims": of_claims,
}
