"""The report as one page: it needs no network, and is read on wide and narrow screens.

`figures` computes the numbers and `summary` the sentences; this module only lays them out.
"""

from __future__ import annotations

from html import escape
from pathlib import PurePath

import numpy as np

from streamdp.lab.replay import charts, following, tables
from streamdp.lab.replay.cells import epsilon_text
from streamdp.lab.replay.charts import Curve
from streamdp.lab.replay.figures import Z, bounds, gap, helping_cap, line, settled_at, timeline
from streamdp.lab.replay.page_style import (
    BANNER,
    COLOURS,
    EXACT,
    document,
    html_table,
    joined,
    section,
)
from streamdp.lab.replay.replaying import Replay, ReplayAnswer
from streamdp.lab.replay.summary import firsts, interval, middle, number, summary

_MOST_SHOWN = 7  # actions with a colour of their own
_SLICES = 50


def page(replay: Replay) -> str:
    """The whole report."""
    title = f"Replay of {PurePath(replay.log).name}"
    return document(
        title,
        "".join(
            [
                f"<h1>{escape(title)}</h1>",
                f'<p class="facts">{_facts(replay)}</p>',
                BANNER,
                EXACT,
                _summary(replay),
                _following(replay),
                _over_time(replay),
                _against_epsilon(replay),
                _linear(replay),
                _timeline(replay),
                _table(replay),
                _actions(replay),
                _keys(replay),
                _ledger(replay),
                _method(replay),
            ]
        ),
    )


def _facts(replay: Replay) -> str:
    keys, nulls = len(replay.summed.rows), replay.summed.nulls
    facts = [
        f"{replay.slots:,} slots",
        f"{keys:,} keys" if keys > 1 else "one key",
        f"{len(replay.actions)} actions",
        f"{len(replay.question.seeds)} seeds",
        f"the best action loses {gap(replay):.3g} a slot less than the second best"
        + " of the longest key" * (keys > 1),
    ]
    charged = middle(replay).charged
    if charged is not None and charged.open_slots:
        facts.append(f"{charged.open_slots / replay.slots:.0%} of them in open blocks")
    if nulls:
        facts.append(f"{nulls:,} null losses")
    if replay.summed.clipped:
        facts.append(f"{replay.summed.clipped:,} slots clipped to [0, 1]")
    return " · ".join(facts)


def _summary(replay: Replay) -> str:
    items = "".join(
        f"<dt>{escape(statement.about)}</dt><dd>{joined(escape(statement.says))}</dd>"
        for statement in summary(replay)
    )
    return f'<section><h2>In short</h2><dl class="summary">{items}</dl></section>'


def colour_of(replay: Replay, answer: ReplayAnswer) -> str:
    """The colour of a candidate, the same in every chart."""
    return COLOURS[replay.question.candidates.index(answer.cell.candidate) % len(COLOURS)]


def _baselines(replay: Replay) -> list[Curve]:
    points = replay.base.points.astype(float)
    curves = [Curve("uniform choice", points, replay.base.uniform_regret, "--muted", "dashed")]
    for answer, name in (
        (replay.leader, "follow the leader by blocks, not private"),
        (replay.running, "follow the leader, not private"),
    ):
        if answer is not None and answer not in replay.answers:
            mean = answer.curves.regret.mean(axis=0)
            style = "dashed" if answer is replay.leader else "solid"
            curves.append(Curve(name, points, mean, "--ink", style))
    return curves


def _curve(replay: Replay, answer: ReplayAnswer) -> Curve:
    shown = line(answer, replay.base.points)
    colour = colour_of(replay, answer)
    return Curve(shown.name, shown.x, shown.mean, colour, low=shown.low, high=shown.high)


def _over_time(replay: Replay) -> str:
    base = _baselines(replay)
    top = float(replay.base.uniform_regret.max())
    panels, everything = [], list(base)
    for epsilon in dict.fromkeys(answer.cell.epsilon for answer in replay.answers):
        shown = [answer for answer in replay.answers if answer.cell.epsilon == epsilon]
        curves = [*base, *(_curve(replay, answer) for answer in shown)]
        bound = bounds(replay, shown[0].cell)
        if bound is not None:
            name = f"bound of {shown[0].cell.name} if the log were i.i.d."
            curves.append(Curve(name, bound[0], bound[1], colour_of(replay, shown[0]), "dotted"))
        everything += curves
        panels.append((f"ε = {epsilon_text(epsilon)}", curves))
        top = max([top, *(float(curve.y.max()) for curve in curves)])
    x = charts.log_axis("slots", low=1, high=replay.summed.longest)
    y = charts.regret_axis("regret in losses", everything, low=1 if top >= 10 else 0.1)
    plots = [charts.plot(curves, x=x, y=y, title=title) for title, curves in panels]
    return section(
        "Regret over time",
        "Losses beyond those of the best fixed action up to each slot: that action is the floor of"
        " the chart, unless a learner that follows change does better than it. Lines are means over"
        " seeds, bands the middle 80 % of them; both axes are logarithmic, regret on both sides of"
        " 0 where it is negative.",
        charts.panels(plots, charts.legend(everything)),
    )


def _against_epsilon(replay: Replay) -> str:
    epsilons = replay.question.epsilons
    if len(epsilons) < 2:
        return ""
    curves = []
    for candidate in replay.question.candidates:
        own = [answer for answer in replay.answers if answer.cell.candidate == candidate]
        if not candidate.private:
            continue
        mean = np.array([answer.mean for answer in own])
        half = np.array([Z * answer.error for answer in own])
        at = np.array([epsilons.index(answer.cell.epsilon) for answer in own], dtype=float)
        colour = colour_of(replay, own[0])
        curves.append(
            Curve(candidate.text, at, mean, colour, low=mean - half, high=mean + half, marks=True)
        )
    whole = np.array([-0.5, len(epsilons) - 0.5])
    for curve in _baselines(replay):
        level = np.full(2, curve.y[-1])
        curves.append(Curve(curve.name, whole, level, curve.colour, curve.style))
    low = max(1e-2, min(float(curve.y.min()) for curve in curves) / 1.5)
    x = charts.ordinal_axis("ε", [epsilon_text(epsilon) for epsilon in epsilons])
    y = charts.regret_axis("regret at the end", curves, low=low)
    return section(
        "Regret against ε",
        "Regret at the end of the log, mean and 95 % interval of the mean over seeds. ε = ∞ is the"
        " same learner with the smallest sum chosen: its schedule and window without its privacy.",
        charts.legend(curves) + charts.plot(curves, x=x, y=y),
    )


def _linear(replay: Replay) -> str:
    shown = middle(replay)
    curves = [_curve(replay, shown)]
    capped = helping_cap(replay, shown)
    rivals = [probe for probe in replay.probes if probe.cell.epsilon == shown.cell.epsilon]
    if capped is None and rivals:
        capped = min(rivals, key=lambda probe: probe.mean)
    if capped is not None:
        best = line(capped, replay.base.points)
        curves.append(
            Curve(best.name, best.x, best.mean, "--c8", "solid", low=best.low, high=best.high)
        )
    curves += _baselines(replay)
    top = 1.25 * max(float(curve.y.max()) for curve in curves[: 2 if capped else 1])
    low = min(0.0, *(float(curve.y.min()) for curve in curves))
    x = charts.linear_axis("slots", low=0, high=replay.summed.longest)
    y = charts.linear_axis("regret in losses", low=low, high=max(top, 1.0))
    return section(
        f"Would it have noticed a drift? ε = {epsilon_text(shown.cell.epsilon)}",
        "The same on linear axes, with the best of the capped schedules that were tried. A curve"
        " that keeps rising lags behind a best action that changed; one that falls earns back what"
        " it lost, because the action in force is better just now than the best of the whole log.",
        charts.legend(curves) + charts.plot(curves, x=x, y=y),
    )


def _timeline(replay: Replay) -> str:
    shown = firsts(replay)
    slots = replay.summed.longest
    capped = helping_cap(replay, middle(replay))
    runs = [(f"ε = {epsilon_text(a.cell.epsilon)}", timeline(a, slots=slots)) for a in shown]
    if capped is not None:
        cap = capped.cell.leader.schedule.parameter
        text = f"capped {cap}, ε = {epsilon_text(capped.cell.epsilon)}"
        runs.append((text, timeline(capped, slots=slots)))
    hindsight = _best_by_slice(replay)
    weight = np.zeros(len(replay.actions))
    for width, action in hindsight:
        weight[action] += width
    for _, stretches in runs:
        for stretch in stretches:
            weight[stretch.action] += (stretch.stop - stretch.start) / slots
    ranked = [int(action) for action in np.argsort(-weight, kind="stable") if weight[action] > 0]
    colours = {action: f"var({COLOURS[at]})" for at, action in enumerate(ranked[:_MOST_SHOWN])}
    rows = [
        charts.strip(
            "least loss in each 1/50",
            [(width, colours.get(a, "var(--muted)"), replay.actions[a]) for width, a in hindsight],
        )
    ]
    for name, stretches in runs:
        parts = [
            (
                (stretch.stop - stretch.start) / slots,
                colours.get(stretch.action, "var(--muted)"),
                f"slots {stretch.start:,}–{stretch.stop - 1:,}: {replay.actions[stretch.action]}"
                f" in {stretch.share:.0%} of seeds",
            )
            for stretch in stretches
        ]
        rows.append(charts.strip(name, parts))
    names = "".join(
        f'<li><i class="box" style="background:{colour}"></i>{escape(replay.actions[action])}</li>'
        for action, colour in colours.items()
    )
    if len(ranked) > _MOST_SHOWN:
        names += '<li><i class="box" style="background:var(--muted)"></i>others</li>'
    key = " of the longest key" if len(replay.summed.rows) > 1 else ""
    return section(
        "Who was in force",
        f"The action that {replay.question.candidates[0].text} had in force most often over the"
        f" seeds{key}, block by block, over {slots:,} slots; above it, which action had the least"
        " loss in each fiftieth of the log.",
        f'<ul class="legend">{names}</ul><div class="strips">{"".join(rows)}</div>',
    )


def _best_by_slice(replay: Replay) -> list[tuple[float, int]]:
    """The best action of each fiftieth of the longest key, as widths."""
    row, slots = int(replay.summed.slots.argmax()), replay.summed.longest
    points = replay.base.points[replay.base.points <= slots]
    wanted = np.linspace(0, slots, _SLICES + 1)[1:]
    cuts = np.unique(points[np.minimum(np.searchsorted(points, wanted), len(points) - 1)])
    sums = replay.summed.sums.at(replay.summed.sums.places(np.full(len(cuts), row), cuts))
    parts = np.diff(sums, axis=0, prepend=0)
    widths = np.diff(cuts, prepend=0) / slots
    return list(zip(widths.tolist(), parts.argmin(axis=1).tolist(), strict=True))


def _following(replay: Replay) -> str:
    if not replay.followed:
        return ""
    head, rows = tables.by_following(replay)
    return section(
        "Memory, growing or capped blocks",
        "The same private choice with three ways to go on: votes filtered by a memory (the"
        " default), blocks that grow for ever, and memory's blocks with the newest vote in force."
        " Regret against the best fixed action of each key, and against the best action of each"
        f" stretch ({following.STRETCHES} of the longest key, of 100 slots at least), which no"
        " learner reaches: what was best in a short stretch is partly luck. The winner of each ε"
        " comes first; differences are taken seed by seed.",
        html_table(head, rows),
    )


def _table(replay: Replay) -> str:
    rows = []
    for answer in (*replay.answers, *_others(replay)):
        bound = bounds(replay, answer.cell)
        at = settled_at(answer, replay.base.points)
        charged = answer.charged
        rows.append(
            [
                answer.cell.name,
                epsilon_text(answer.cell.epsilon),
                interval(answer),
                number(1000 * answer.mean / replay.slots),
                "never for good" if at is None else f"{at:,}",
                "—" if bound is None else number(float(bound[1][-1])),
                "not private" if charged is None else str(charged.epsilon),
            ]
        )
    uniform = float(replay.base.uniform_regret[-1])
    rows.append(
        [
            "uniform choice",
            "0",
            number(uniform),
            number(1000 * uniform / replay.slots),
            *("—", "—", "0"),
        ]
    )
    head = [
        "learner",
        "ε",
        "regret",
        "in 1,000 slots",
        "settled at slot",
        "bound if i.i.d.",
        "charge of an event",
    ]
    return section(
        "All cells",
        "Regret at the end: mean over seeds ± 1.96 standard errors. The bound holds for the"
        " expected regret on independent, identically distributed losses with this log's gap in"
        " hindsight; on a log that drifts it promises nothing.",
        html_table(head, rows),
    )


def _actions(replay: Replay) -> str:
    head, rows = tables.by_action(replay)
    more = len(replay.actions) - len(rows)
    rest = f" The {more:,} with the most are left out." if more else ""
    return section(
        "Loss by action",
        f"What each action would have lost, had it been in force in every slot of every key.{rest}",
        html_table(head, rows),
    )


def _keys(replay: Replay) -> str:
    if len(replay.summed.rows) == 1:
        return ""
    head, rows = tables.by_key(replay)
    more = len(replay.summed.rows) - len(rows)
    rest = f" {more:,} keys with fewer slots are left out." if more else ""
    return section(
        "Keys",
        f"The keys with the most slots; regret is {middle(replay).cell.name}'s at"
        f" ε = {epsilon_text(middle(replay).cell.epsilon)}, the mean over seeds.{rest}",
        html_table(head, rows),
    )


def _others(replay: Replay) -> list[ReplayAnswer]:
    extra = [replay.leader, *([replay.running] if replay.running else []), *replay.probes]
    return [answer for answer in extra if answer not in replay.answers]


def _ledger(replay: Replay) -> str:
    rows = []
    for answer in replay.answers:
        charged = answer.charged
        if charged is not None:
            rows.append(
                [
                    answer.cell.name,
                    epsilon_text(answer.cell.epsilon),
                    str(charged.epsilon),
                    f"{charged.blocks:,}",
                    f"{charged.slots:,}",
                    f"{charged.open_slots:,}",
                ]
            )
    if not rows:
        return ""
    head = ["learner", "ε asked", "highest charge of an event", "blocks", "slots charged"]
    return section(
        "Ledger",
        "What the live ledger would hold. Blocks have different slots, so charges do not add up"
        " over time: the guarantee is the highest charge of any one event. A block that has not"
        " ended is not charged yet.",
        html_table([*head, "slots of open blocks"], rows),
    )


def _method(replay: Replay) -> str:
    seeds = replay.question.seeds
    text = (
        f"Seeds {seeds[0]} … {seeds[-1]} of SeededRandomness, stream {replay.question.stream!r},"
        f" epoch {replay.question.epoch}. Under the same seed, stream, epoch and offsets the live"
        " engine makes the same releases, bit for bit. Sums are exact integers of 2⁻²⁰ losses."
    )
    return section("How it was computed", text, "")
