"""The report of a simulation of feedback learners, as one page. Its events are made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape

from streamdp.lab.offpolicy.page import experiment, middle, over_time, policy_panels
from streamdp.lab.replay import charts
from streamdp.lab.replay.cells import Epsilon, epsilon_text
from streamdp.lab.replay.feedback import FeedbackOutcome
from streamdp.lab.replay.page_style import document, html_table, section

INVENTED = (
    '<p class="exact"><strong>Everything here is made up:</strong> rewards are drawn from worlds'
    " with known means, so regret is exact and nothing needs protection. A request's outcome is"
    " seen when its block ends: every policy has waited a whole block.</p>"
)


def simulation_page(outcomes: Sequence[FeedbackOutcome]) -> str:
    """All worlds, learners side by side."""
    title = "Simulation of feedback learners"
    worlds = list(dict.fromkeys(outcome.environment.name for outcome in outcomes))
    runs, slots = len(outcomes[0].regrets), int(outcomes[0].course.slots[-1])
    facts = f"{len(worlds)} worlds · {slots:,} slots · {runs:,} runs"
    parts = [
        _world(name, [outcome for outcome in outcomes if outcome.environment.name == name])
        for name in worlds
    ]
    head = f'<h1>{escape(title)}</h1><p class="facts">{facts}</p>{INVENTED}'
    return document(title, head + "".join(parts))


def _world(name: str, outcomes: Sequence[FeedbackOutcome]) -> str:
    """One world: regret over time, policies over time, the table."""
    shown = _by_epsilon(outcomes)
    courses = {epsilon: [(o.learner, o.course) for o in some] for epsilon, some in shown.items()}
    epsilon = middle(list(shown))
    policies = [(e.learner, e.shares) for e in shown[epsilon] if e.shares is not None]
    longest = int(outcomes[0].course.slots[-1])
    names = [f"arm {arm}" for arm in range(outcomes[0].environment.arms)]
    rows = [
        [
            outcome.learner,
            epsilon_text(outcome.epsilon),
            f"{outcome.mean:,.0f} ± {1.96 * outcome.error:,.0f}",
            f"{outcome.worst / outcome.mean:.1f}" if outcome.mean else "—",
            _charge(outcome),
        ]
        for outcome in outcomes
    ]
    head = ["learner", "ε", "regret", "worst 1 % ÷ mean", "charge of an event"]
    return section(
        name,
        f"{_means(outcomes[0])} Regret against the best arm of each moment: lines are means over"
        f" runs, bands the middle 80 % of them. Below, how likely each arm was to be shown at"
        f" ε = {epsilon_text(epsilon)}, mean over runs.",
        over_time(courses, y=partial(charts.regret_axis, "regret in rewards", low=1))
        + (policy_panels(policies, names, longest=longest) if policies else "")
        + _experiment(outcomes, names)
        + html_table(head, rows),
    )


def _experiment(outcomes: Sequence[FeedbackOutcome], names: Sequence[str]) -> str:
    """The first learner's releases for each arm."""
    private = [o for o in outcomes if o.epsilon is not None and o.arms is not None]
    if not private or len(outcomes[0].environment.stretches) > 1:
        return ""
    first = private[0].learner
    arms = [
        (f"ε = {epsilon_text(o.epsilon)}", o.arms)
        for o in private
        if o.learner == first and o.arms is not None
    ]
    return (
        f"<p>The private experiment of one run of {escape(first)}: each arm's mean reward, with an"
        " interval that holds at all block ends and for all arms at once, and how likely it is the"
        f" best.</p>{experiment(arms, names)}"
    )


def _by_epsilon(outcomes: Sequence[FeedbackOutcome]) -> Mapping[Epsilon, list[FeedbackOutcome]]:
    """The outcomes of each budget; a baseline stands beside every budget."""
    private: list[Epsilon] = [o.epsilon for o in outcomes if o.epsilon is not None]
    return {
        budget: [o for o in outcomes if o.epsilon in (budget, None)]
        for budget in dict.fromkeys(private or [None])
    }


def _charge(outcome: FeedbackOutcome) -> str:
    """A slot is charged once, for all arms together."""
    return "not private" if outcome.epsilon is None else epsilon_text(outcome.epsilon)


def _means(outcome: FeedbackOutcome) -> str:
    """A world in one sentence."""
    world = outcome.environment
    means = ", ".join(f"{mean:g}" for mean in world.stretches[0][:6])
    more = ", …" if world.arms > 6 else ""
    kind = "clicks" if world.rewards == "bernoulli" else "rewards of a beta law"
    parts = [f"{kind} with the means {means}{more}"]
    if len(world.stretches) > 1:
        parts.append(f"which change {len(world.stretches) - 1} times")
    if world.late:
        parts.append(f"{world.late:.0%} of the feedback a block late")
    text = ", ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
