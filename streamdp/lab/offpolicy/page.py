"""The report of a replay of feedback as one page; the parts are shared with simulations.

Other modules compute the numbers and `statements` the sentences; this one only lays them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import PurePath

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats
from streamdp.core.evidence.experiment import Arms
from streamdp.lab.offpolicy.answers import FeedbackAnswer
from streamdp.lab.offpolicy.estimators import Z
from streamdp.lab.offpolicy.question import FeedbackReplay
from streamdp.lab.offpolicy.statements import (
    VALUE_HEADS,
    best_always,
    charge_text,
    headline,
    interval,
    likeliest,
    summary,
    value_columns,
)
from streamdp.lab.replay import charts
from streamdp.lab.replay.cells import Epsilon, epsilon_text
from streamdp.lab.replay.charts import Curve
from streamdp.lab.replay.course import Shares, Trajectory
from streamdp.lab.replay.page_style import BANNER, COLOURS, document, html_table, section
from streamdp.lab.replay.spread import standard_error
from streamdp.lab.replay.summary import number

MOST_SHOWN = 7  # actions with a colour of their own
MOST_ARMS = 30
FIRST = 30
"""Charts begin at this slot: the mean of fewer slots says nothing."""


def page(replay: FeedbackReplay) -> str:
    """The whole report."""
    title = f"Replay of {PurePath(replay.log).name} as feedback"
    return document(
        title,
        "".join(
            [
                f"<h1>{escape(title)}</h1>",
                f'<p class="facts">{_facts(replay)}</p>',
                BANNER,
                _summary(replay),
                _live(replay),
                _courses(replay),
                _cells(replay),
                _fixed(replay),
                _policies(replay),
                _experiment(replay),
                _ledger(replay),
                _method(replay),
            ]
        ),
    )


def _facts(replay: FeedbackReplay) -> str:
    log = replay.findings
    facts = [
        f"{log.slots:,} slots",
        f"{log.keys:,} keys" if log.keys > 1 else "one key",
        f"{len(replay.actions)} actions",
        f"{len(replay.question.seeds)} seeds",
    ]
    return " · ".join(facts)


def _summary(replay: FeedbackReplay) -> str:
    items = "".join(f"<dt>{escape(s.about)}</dt><dd>{escape(s.says)}</dd>" for s in summary(replay))
    return f'<section><h2>In short</h2><dl class="summary">{items}</dl></section>'


def over_time(
    courses: Mapping[Epsilon, Sequence[tuple[str, Trajectory]]],
    *,
    y: Callable[[Sequence[Curve]], charts.Axis],
    levels: Sequence[tuple[str, float]] = (),
) -> str:
    """Learners side by side: a panel for each ε, levels as dashed lines."""
    names = list(dict.fromkeys(name for shown in courses.values() for name, _ in shown))
    every = [course for shown in courses.values() for _, course in shown]
    first = min(int(course.slots[0]) for course in every)
    longest = max(int(course.slots[-1]) for course in every)
    whole = np.array([1.0, max(2.0, longest)])
    base = [
        Curve(name, whole, np.full(2, level), "--muted" if at else "--ink", "dashed")
        for at, (name, level) in enumerate(levels)
    ]
    panels, everything = [], list(base)
    for epsilon, shown in courses.items():
        curves = [
            Curve(
                name,
                course.slots.astype(float),
                course.mean,
                COLOURS[names.index(name) % len(COLOURS)],
                low=course.low,
                high=course.high,
            )
            for name, course in shown
        ]
        everything += curves
        panels.append((f"ε = {epsilon_text(epsilon)}", [*base, *curves]))
    x = charts.log_axis("slots of a key", low=first, high=float(longest))
    axis = y(everything)
    plots = [charts.plot(curves, x=x, y=axis, title=title) for title, curves in panels]
    return charts.panels(plots, charts.legend(everything))


def value_axis(label: str) -> Callable[[Sequence[Curve]], charts.Axis]:
    """A linear axis over the range of the curves' later halves: the first records say little."""

    def axis(curves: Sequence[Curve]) -> charts.Axis:
        late = [
            values[len(values) // 2 :]
            for curve in curves
            for values in (curve.y, curve.low, curve.high)
            if values is not None
        ]
        every = np.concatenate(late)
        every = every[np.isfinite(every)]
        low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)
        room = max(0.1 * (high - low), 1e-3)
        return charts.linear_axis(label, low=max(0.0, low - room), high=min(1.0, high + room))

    return axis


def by_epsilon(
    answers: Sequence[FeedbackAnswer], epsilons: Sequence[Epsilon]
) -> dict[Epsilon, list[FeedbackAnswer]]:
    """The answers of each ε; baselines stand beside every one."""
    return {
        epsilon: [
            answer
            for answer in answers
            if answer.cell.epsilon == epsilon or not answer.cell.learner.private
        ]
        for epsilon in epsilons
    }


def _curves(answers: Sequence[FeedbackAnswer], replay: FeedbackReplay, label: str) -> str:
    shown = by_epsilon(answers, replay.question.epsilons)
    first = 1 if replay.method == "exact" else FIRST
    courses = {
        epsilon: [(answer.cell.text, answer.course.since(first)) for answer in some]
        for epsilon, some in shown.items()
    }
    if replay.method == "exact":
        return over_time(courses, y=lambda curves: charts.regret_axis(label, curves, low=1))
    levels = []
    if replay.fixed is not None:
        if (best := best_always(replay)) is not None:
            levels = [("always the best action, estimated", best[1].value)]
        levels.append(("the log's own draws", replay.fixed.logged.value))
    return over_time(courses, y=value_axis(label), levels=levels)


def _live(replay: FeedbackReplay) -> str:
    if not replay.rejected:
        return ""
    rows = [
        [
            answer.cell.text,
            epsilon_text(answer.cell.epsilon),
            interval(headline(answer)),
            f"{int(np.median(answer.accepted)) if answer.accepted is not None else 0:,}",
        ]
        for answer in replay.rejected
    ]
    head = ["learner", "ε", "mean reward", "records met"]
    return section(
        "As it would have run live",
        "Each learner drew its own actions and learned from the records where the log's uniform"
        " draw was the same. Mean over seeds, with the mean of the seeds' intervals.",
        html_table(head, rows) + _curves(replay.rejected, replay, "mean reward so far"),
    )


def _courses(replay: FeedbackReplay) -> str:
    if replay.method == "service" or not replay.answers:
        return ""
    if replay.method == "exact":
        return section(
            "Regret over time",
            "Losses beyond those of the best fixed action of each key. Lines are means over seeds,"
            " bands the middle 80 % of them.",
            _curves(replay.answers, replay, "regret in losses"),
        )
    return section(
        "Value over time",
        "Doubly robust estimate of the mean reward of a record so far, with its 95 % interval:"
        " each block weighed by the policy that earlier blocks of the log have made.",
        _curves(replay.answers, replay, "mean reward so far"),
    )


def _cells(replay: FeedbackReplay) -> str:
    if replay.method == "service" or not replay.answers:
        return ""
    rows = []
    for answer in replay.answers:
        row = [answer.cell.text, epsilon_text(answer.cell.epsilon)]
        if answer.regret is not None:
            half = Z * standard_error(answer.regret)
            row.append(f"{number(float(answer.regret.mean()))} ± {number(half)}")
            row.append(interval(headline(answer)))
        elif answer.value is not None:
            value = answer.value
            row += value_columns(value)
        rows.append([*row, charge_text(answer)])
    head = ["learner", "ε"]
    if replay.method == "exact":
        head += ["regret", "mean reward"]
        text = "Mean over seeds ± 1.96 standard errors."
    else:
        head += VALUE_HEADS
        text = (
            "Mean reward of a record: the doubly robust estimate with its 95 % interval by"
            " empirical likelihood, right from 10 effective clicks on. The bounds for certain hold"
            " with 95 % at every number of records at once, and assume only that the propensities"
            " are right. The mean weight is 1 but for chance."
        )
    return section("All cells", text, html_table([*head, "charge of an event"], rows))


def _fixed(replay: FeedbackReplay) -> str:
    if replay.fixed is None:
        return ""
    rows = [
        ["the log's own draws", interval(replay.fixed.logged), *[""] * (len(VALUE_HEADS) - 1)],
        ["uniform play", *value_columns(replay.fixed.uniform)],
    ]
    order = np.argsort([-value.dr.value for value in replay.fixed.always], kind="stable")
    rows += [
        [f"always {replay.actions[at]}", *value_columns(replay.fixed.always[at])]
        for at in order[:MOST_ARMS].tolist()
    ]
    return section(
        "Yardsticks",
        "What the same records say of showing always one action, and of showing by chance.",
        html_table(["policy", *VALUE_HEADS], rows),
    )


def policy_panels(
    shares: Sequence[tuple[str, Shares]], actions: Sequence[str], *, longest: int
) -> str:
    """How often each action is shown, block by block: a panel for each learner."""
    weight = sum(course.shares[-1] for _, course in shares)
    ranked = np.argsort(-np.asarray(weight), kind="stable")[:MOST_SHOWN].tolist()
    x = charts.log_axis("slots of the key", low=1, high=float(longest))
    y = charts.linear_axis("probability", low=0.0, high=1.0)
    panels, everything = [], []
    for title, course in shares:
        curves = []
        for at, action in enumerate(ranked):
            starts, steps = _steps(course.starts, course.shares[:, action], longest)
            curves.append(Curve(actions[action], starts, steps, COLOURS[at]))
        everything += curves
        panels.append(charts.plot(curves, x=x, y=y, title=title))
    return charts.panels(panels, charts.legend(everything))


def _steps(starts: NDArray[np.int64], values: Floats, longest: int) -> tuple[Floats, Floats]:
    """A step for each block."""
    stops = np.append(starts[1:], max(longest, int(starts[-1]) + 1))
    return np.stack([starts, stops], axis=1).ravel().astype(float), np.repeat(values, 2)


def _policies(replay: FeedbackReplay) -> str:
    shown = replay.rejected or replay.answers
    epsilon = middle(replay.question.epsilons)
    some = by_epsilon(shown, [epsilon])[epsilon]
    longest = max(int(answer.course.slots[-1]) for answer in some)
    return section(
        f"Policy over time, ε = {epsilon_text(epsilon)}",
        f"How likely each action was to be shown for the key {replay.findings.watched!r}, which has"
        " the most slots: mean over seeds, block by block.",
        policy_panels([(e.cell.text, e.shares) for e in some], replay.actions, longest=longest),
    )


def middle(epsilons: Sequence[Epsilon]) -> Epsilon:
    """The budget that is shown where one must be chosen."""
    return epsilons[len(epsilons) // 2]


def experiment(arms: Sequence[tuple[str, Arms]], actions: Sequence[str]) -> str:
    """Each arm's private mean with its interval, and the probability that it is the best."""
    kept = range(min(len(actions), MOST_ARMS))
    axis = charts.ordinal_axis("action", [actions[at] for at in kept])
    curves = []
    for place, (name, estimates) in enumerate(arms):
        shift = (place + 0.5) / len(arms) - 0.5
        at = np.array([arm + 0.6 * shift for arm in kept])
        part = slice(0, len(at))
        means = np.nan_to_num(1 - estimates.means[part], nan=0.5)
        curves.append(
            Curve(
                name,
                at,
                means,
                COLOURS[place % len(COLOURS)],
                "points",
                low=1 - estimates.high[part],
                high=1 - estimates.low[part],
                marks=True,
            )
        )
    highest = max(float((1 - estimates.low).max()) for _, estimates in arms)
    y = charts.linear_axis("mean reward", low=0.0, high=highest)
    head = ["action", *(f"{name}: {what}" for name, _ in arms for what in ("mean", "best"))]
    rows = []
    for arm in kept:
        row = [actions[arm]]
        for _, estimates in arms:
            mean = "—" if np.isnan(estimates.means[arm]) else f"{1 - estimates.means[arm]:.4f}"
            row.append(f"{mean} [{1 - estimates.high[arm]:.4f}, {1 - estimates.low[arm]:.4f}]")
            row.append(f"{estimates.chances[arm]:.0%}")
        rows.append(row)
    return charts.legend(curves) + charts.plot(curves, x=axis, y=y) + html_table(head, rows)


def _experiment(replay: FeedbackReplay) -> str:
    answers = [answer for answer in (replay.rejected or replay.answers) if answer.arms is not None]
    if not answers:
        return ""
    first = answers[0].cell.text
    arms = [
        (f"ε = {epsilon_text(answer.cell.epsilon)}", answer.arms)
        for answer in answers
        if answer.cell.text == first and answer.arms is not None
    ]
    return section(
        "The private experiment",
        f"What the releases of {first} (first seed, key {replay.findings.watched!r}) say of each"
        " action: its mean reward with an interval that holds at all block ends and for all actions"
        " at once with 95 %, and how likely it is the best. Live, this is all that anybody sees;"
        " here it was drawn with known seeds, so it is not private either.",
        experiment(arms, replay.actions),
    )


def _ledger(replay: FeedbackReplay) -> str:
    rows = [
        [
            answer.cell.text,
            epsilon_text(answer.cell.epsilon),
            charge_text(answer),
            f"{answer.charge.blocks:,}",
            f"{answer.charge.slots:,}",
            f"{answer.charge.open_slots:,}",
            likeliest(answer, replay.actions),
        ]
        for answer in (replay.rejected or replay.answers)
    ]
    head = ["learner", "ε", "charge of an event", "blocks", "slots charged"]
    return section(
        "What it costs",
        "A block's release charges ε once for the sums of all actions together; blocks have"
        " different slots, so charges do not add up over time. A phase is one action's.",
        html_table([*head, "slots of open blocks", "likeliest the best"], rows),
    )


def _method(replay: FeedbackReplay) -> str:
    question = replay.question
    return section(
        "How it was computed",
        f"Seeds {question.seeds[0]} … {question.seeds[-1]} of SeededRandomness, stream"
        f" {question.stream!r}, epoch {question.epoch}: noise is drawn as the live engine draws it"
        " (of the papers' learners, which no service runs: of the same law, by numpy's generator)."
        " A policy is computed from earlier blocks alone, so estimates are martingale averages."
        " Estimators are those of Open Bandit Pipeline; bounds for certain are empirical Bernstein"
        " confidence sequences.",
        "",
    )
