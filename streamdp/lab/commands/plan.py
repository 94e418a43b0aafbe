"""``streamdp plan``: slots until settled, regret and blocks, before there is any data.

With ``--changes-every`` the best action changes, and memory, growing blocks and capped blocks are
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from streamdp.cli.common import OneStream, chosen, load
from streamdp.lab.commands._feedback_plan import rows_shown

if TYPE_CHECKING:
    from streamdp.core.errors import InvalidConfig
    from streamdp.core.learners import Learner
    from streamdp.core.regret import Bound
    from streamdp.lab.replay.cells import Epsilon
    from streamdp.lab.replay.changing import ChangePlan
    from streamdp.lab.replay.planning import LearnerPlan, Wish
    from streamdp.service.config import Configuration

BaseOption = Annotated[
    float | None,
    typer.Option(help="The best action's mean loss, such as 0.97 where 3 in 100 click."),
]

ChangesOption = Annotated[
    int | None,
    typer.Option(
        help="How many slots of a key the best action lasts on average: compares memory,"
        " growing and capped blocks."
    ),
]

ObservesOption = Annotated[
    str | None,
    typer.Option(
        help="losses (of all actions), or feedback (of the shown action); by default as the stream"
        " of --config, else losses."
    ),
]

LearnerOption = Annotated[
    str | None,
    typer.Option(help="A recipe with options; remembering_leader, with feedback policy_blocks."),
]

RateOption = Annotated[
    float | None,
    typer.Option(help="Feedback: the mean reward of all other actions, such as 0.02."),
]

TrafficOption = Annotated[float | None, typer.Option(help="Feedback: events of one key in a day.")]


MarkdownOption = Annotated[
    bool,
    typer.Option(
        "--markdown", help="Feedback: only a table over rates and gaps around these, by a formula."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
    gap: Annotated[
        float, typer.Option(help="How much worse all other actions are, in mean loss per slot.")
    ],
    actions: Annotated[int | None, typer.Option(help="How many actions.")] = None,
    epsilon: Annotated[
        str | None, typer.Option(help="ε of an event for the action, exactly, such as 0.5.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Take learner, actions and ε from here.")
    ] = None,
    stream: OneStream = None,
    observes: ObservesOption = None,
    learner: LearnerOption = None,
    horizon: Annotated[int, typer.Option(help="Slots of one key.")] = 1_000_000,
    target_regret: Annotated[
        float | None, typer.Option(help="Find the ε that keeps the regret below this.")
    ] = None,
    target_slots: Annotated[
        int | None, typer.Option(min=1, help="Find the ε that settles within this many slots.")
    ] = None,
    base: BaseOption = None,
    keys: Annotated[int, typer.Option(help="Number of keys, each with its own learner.")] = 1,
    changes_every: ChangesOption = None,
    rate: RateOption = None,
    traffic: TrafficOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulation.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
    markdown: MarkdownOption = False,
) -> None:
    """Say what to expect of a learner in a world of independent losses with one gap.

    Without --changes-every the best action never changes. With --observes feedback: after how many
    events the best action is found, from click rate, gap, ε, traffic and the number of actions.

    Examples:
    streamdp plan --actions 5 --epsilon 0.5 --gap 0.1 --changes-every 50000
    streamdp plan --config streamdp.toml --gap 0.1 --changes-every 50000
    """
    of_losses = {
        "--base": base,
        "--target-regret": target_regret,
        "--target-slots": target_slots,
        "--changes-every": changes_every,
    }
    if as_json and markdown:
        raise _refused("--markdown", expected="no --json with it", got="both")
    of_feedback = {"--rate": rate, "--traffic": traffic, "--markdown": markdown or None}
    if observes is None and config is not None:
        configuration, name = _configured(config, stream, actions, epsilon, learner)
        observes = _observes(configuration, name)
    if _is_feedback(observes or "losses", of_losses, of_feedback):
        from streamdp.lab.commands import _feedback_plan

        many, exact, text = _asked_of_feedback(actions, epsilon, config, stream, learner)
        world = _feedback_plan.AssumedEvents(rate or 0.0, gap, horizon, seed, keys, traffic)
        output: Literal["people", "json", "markdown"] = "json" if as_json else "people"
        _feedback_plan.run(text, exact, many, world, output="markdown" if markdown else output)
        return
    from streamdp.lab.replay.cells import parse_candidate
    from streamdp.lab.replay.planning import Wish

    if target_regret is not None and not 0 < target_regret < inf:
        raise _refused("--target-regret", expected="losses, above 0", got=str(target_regret))
    many, exact, text = _asked(actions, epsilon, config, stream, learner)
    wish = Wish(parse_candidate(text), many, gap, horizon, seed, base, keys)
    if changes_every is None:
        _plan(wish, exact, target_regret, target_slots, as_json=as_json)
        return
    _check_changes(learner, target_regret, target_slots)
    _plan_changes(wish, exact, changes_every, as_json=as_json)


def _check_changes(
    learner: str | None, target_regret: float | None, target_slots: int | None
) -> None:
    """Refuse what has no say where three learners are compared."""
    if learner is not None:
        expected = "no --changes-every with it (memory, growing and capped blocks are compared)"
        raise _refused("--learner", expected=expected, got=learner)
    if target_regret is not None or target_slots is not None:
        target = target_slots if target_regret is None else target_regret
        expected = "no --target-regret and no --target-slots with it"
        raise _refused("--changes-every", expected=expected, got=str(target))


def _observes(configuration: Configuration, stream: str) -> str:
    """What a configured stream observes."""
    from streamdp.core.learners.feedback import PolicyLearner

    feedback = isinstance(configuration.learner(stream), PolicyLearner)
    return "feedback" if feedback else "losses"


def _is_feedback(
    observes: str,
    of_losses: Mapping[str, float | None],
    of_feedback: Mapping[str, float | None],
) -> bool:
    """Whether feedback is planned for; refuse options of the other kind."""
    if observes not in ("losses", "feedback"):
        raise _refused("--observes", expected="losses | feedback", got=observes)
    for name, given in (of_losses if observes == "feedback" else of_feedback).items():
        if given is not None:
            other = "losses" if observes == "feedback" else "feedback"
            raise _refused(name, expected=f"--observes {other} with it", got=observes)
    if observes == "feedback" and of_feedback["--rate"] is None:
        expected = "the mean reward of all actions but the best, such as 0.02"
        raise _refused("--rate", expected=expected, got="none")
    return observes == "feedback"


def _plan(
    wish: Wish,
    epsilon: Fraction,
    target_regret: float | None,
    target_slots: int | None,
    *,
    as_json: bool,
) -> None:
    from streamdp.lab.replay.planning import as_json as for_machines
    from streamdp.lab.replay.planning import plan_for

    plan = plan_for(wish, epsilon)
    if as_json:
        import json

        report = for_machines(plan)
        if target_regret is not None or target_slots is not None:
            least = _least(wish, target_regret, target_slots)
            report["least_epsilon"] = None if least is None else float(least.epsilon or 0)
        typer.echo(json.dumps(report, indent=1, ensure_ascii=False))
        return
    _print(plan)
    if target_regret is not None or target_slots is not None:
        _print_least(_least(wish, target_regret, target_slots), target_regret, target_slots)


def _asked(
    actions: int | None,
    epsilon: str | None,
    config: Path | None,
    stream: str | None,
    learner: str | None,
) -> tuple[int, Fraction, str]:
    """The number of actions, ε and the learner, by the options or by a configured stream."""
    from streamdp.core.learners import learner_of
    from streamdp.core.learners.leader import DEFAULT_RECIPE

    if config is None:
        return *_by_options(actions, epsilon, stream), learner or DEFAULT_RECIPE
    configuration, name = _configured(config, stream, actions, epsilon, learner)
    configured = configuration.leader(name)
    if configured.charge is None:
        raise _refused(f"--config {config}", expected="a learner with ε", got=configured.recipe)
    return len(configured.actions), configured.charge, text_of(configured, learner_of)


def _by_options(
    actions: int | None, epsilon: str | None, stream: str | None
) -> tuple[int, Fraction]:
    from streamdp.core.calibration import parse_epsilon

    if actions is None or epsilon is None or stream is not None:
        given = {"--actions": actions, "--epsilon": epsilon, "--stream": stream}
        got = " and ".join(name for name, value in given.items() if value is not None)
        expected = "--actions and --epsilon, or --config with or without --stream"
        raise _refused("plan", expected=expected, got=got or "neither")
    return actions, parse_epsilon(epsilon, "--epsilon")


def _asked_of_feedback(
    actions: int | None,
    epsilon: str | None,
    config: Path | None,
    stream: str | None,
    learner: str | None,
) -> tuple[int, Fraction, str]:
    """The same for feedback."""
    from streamdp.core.learners.feedback import PolicyLearner, feedback_learner_of
    from streamdp.lab.commands import _feedback_plan

    if config is None:
        return *_by_options(actions, epsilon, stream), learner or _feedback_plan.LEARNER
    configuration, name = _configured(config, stream, actions, epsilon, learner)
    configured = configuration.learner(name)
    if not isinstance(configured, PolicyLearner) or configured.charge is None:
        raise _refused(
            f"--config {config}", expected="a feedback stream with ε", got=configured.recipe
        )
    return len(configured.actions), configured.charge, text_of(configured, feedback_learner_of)


def _configured(
    config: Path,
    stream: str | None,
    actions: int | None,
    epsilon: str | None,
    learner: str | None,
) -> tuple[Configuration, str]:
    """The configuration and the stream that is planned for; no option may say the same."""
    if actions is not None or epsilon is not None or learner is not None:
        expected = "no --actions, --epsilon or --learner with it"
        got = f"--actions {actions}, --epsilon {epsilon}, --learner {learner}"
        raise _refused("--config", expected=expected, got=got)
    configuration = load(config)
    return configuration, chosen(configuration, stream).stream


def text_of(learner: Learner, made: Callable[..., Learner]) -> str:
    """A configured learner in the command line's form, without ε; `made`: from a table.

    >>> from streamdp.core.learners import learner_of
    >>> table = {"recipe": "prefix_softmax", "epsilon": "1", "schedule": "capped 512"}
    >>> text_of(learner_of(table, actions=["a", "b"]), learner_of)
    'prefix_softmax:schedule=capped 512'
    """
    config = learner.to_config()
    plain = {name: config[name] for name in ("recipe", "epsilon")}
    usual = made(plain, actions=learner.actions).to_config()
    options = [f"{name}={value}" for name, value in config.items() if value != usual[name]]
    return ":".join([config["recipe"], *options])


def _refused(where: str, *, expected: str, got: str) -> InvalidConfig:
    from streamdp.core.errors import InvalidConfig, complaint

    return InvalidConfig(complaint(where, "cannot be planned", expected=expected, got=got))


def _plan_changes(wish: Wish, epsilon: Epsilon, every: int, *, as_json: bool) -> None:
    from streamdp.lab.replay.changing import as_json as for_machines
    from streamdp.lab.replay.changing import plan_changes

    plan = plan_changes(wish, epsilon, every=every)
    if as_json:
        import json

        typer.echo(json.dumps(for_machines(plan), indent=1, ensure_ascii=False))
    else:
        _print_changes(plan)


def _print_changes(plan: ChangePlan) -> None:
    from rich.console import Console
    from rich.table import Table

    from streamdp.lab.replay.cells import epsilon_text
    from streamdp.lab.replay.changing import as_json as told_of
    from streamdp.lab.replay.summary import number

    wish, report = plan.wish, told_of(plan)
    table = Table(
        title=f"K = {wish.actions}, ε = {epsilon_text(plan.epsilon)}, gap {wish.gap:g}, the best"
        f" action changes every {plan.changes_every:,} slots",
        caption=f"Mean of {plan.runs} simulated runs of {wish.horizon:,} slots ± 1.96 standard"
        f" errors; Bernoulli losses: the best action's mean is {wish.best:g}, all others'"
        f" {wish.others:g}. Regret: losses above the best action of each moment.",
    )
    for name in ("learner", "regret of a key", "in 1,000 slots", "mean loss", "votes"):
        table.add_column(name, justify="left" if name == "learner" else "right", overflow="fold")
    for row in report["learners"]:
        table.add_row(
            f"{row['kind']}: {row['learner']}",
            f"{number(row['regret'])} ± {number(row['interval'])}",
            number(row["regret_in_1000_slots"]),
            f"{row['mean_loss']:.4f}",
            f"{row['votes_of_a_key']:,}",
        )
    console = Console()
    console.print(table)
    best = report["learners"][0]
    keys = f", {number(best['regret_of_all_keys'])} of {wish.keys:,} keys" * (wish.keys > 1)
    tied = f" It cannot be told from {', '.join(report['cannot_be_told_from'])}."
    console.print(
        f"Recommended: {report['recommended']}, about {number(best['regret'])} losses of each key"
        f" above what was possible{keys};"
        f" choosing uniformly costs {number(wish.gap * wish.horizon * (1 - 1 / wish.actions))} of"
        f" each.{tied if report['cannot_be_told_from'] else ''}",
        highlight=False,
    )


def _least(wish: Wish, regret: float | None, slots: int | None) -> LearnerPlan | None:
    from streamdp.lab.replay.planning import least_epsilon

    return least_epsilon(wish, regret=regret, slots=slots)


def _print(plan: LearnerPlan) -> None:
    from rich.console import Console
    from rich.table import Table

    from streamdp.lab.replay.cells import epsilon_text
    from streamdp.lab.replay.summary import number

    wish = plan.wish
    runs = len(plan.walk.regret)
    title = f"{wish.candidate.text}, K = {wish.actions}, ε = {epsilon_text(plan.epsilon)}"
    table = Table(
        title=f"{title}, gap {wish.gap:g}",
        caption=f"Mean of {runs} simulated runs of Bernoulli losses: the best action's mean is"
        f" {wish.best:g}, all others' {wish.others:g}.",
    )
    for name in ("block", "slots", "best action in force", "regret so far"):
        table.add_column(name, justify="right")
    blocks = plan.blocks()
    for block in rows_shown(len(blocks)):
        first, last, right, cost = blocks[block]
        table.add_row(str(block), f"{first:,} – {last:,}", f"{right:.0%}", number(cost))
    console = Console()
    console.print(table)
    settled, uniform = plan.settled, wish.gap * wish.horizon * (1 - 1 / wish.actions)
    when = (
        f"It does not settle within {wish.horizon:,} slots"
        if settled is None
        else f"It settles at slot {settled:,}"
    )
    console.print(
        f"{when} (best action in force with probability 0.9 from there on). Regret after"
        f" {wish.horizon:,} slots: {number(plan.regret)} ± {number(1.96 * plan.error)}; choosing"
        f" uniformly costs {number(uniform)}.",
        highlight=False,
    )
    if wish.keys > 1:
        console.print(
            f"{wish.keys:,} keys learn apart, each from its own slots: together"
            f" {number(plan.regret * wish.keys)} after {wish.horizon:,} slots of each.",
            highlight=False,
        )
    if plan.bound is not None:
        console.print(_proved(plan.bound, uniform), highlight=False)


def _proved(bound: Bound, uniform: float) -> str:
    """What a theorem adds to the simulation."""
    if bound.regret >= uniform:
        return "No bound below the regret of choosing uniformly is proved for this learner here."
    from streamdp.lab.replay.summary import number

    return f"Proved: expected regret is at most {number(bound.regret)} ({bound.source})."


def _print_least(plan: LearnerPlan | None, regret: float | None, slots: int | None) -> None:
    from streamdp.lab.replay.cells import epsilon_text
    from streamdp.lab.replay.summary import number

    asked = [f"a regret of {number(regret)}"] if regret is not None else []
    asked += [f"settling within {slots:,} slots"] if slots is not None else []
    target = " and ".join(asked)
    if plan is None:
        typer.echo(f"No ε reaches {target} here: not even without privacy, or not up to ε = 100.")
        return
    at = "not at all" if plan.settled is None else f"at slot {plan.settled:,}"
    typer.echo(
        f"The least ε for {target} is about {epsilon_text(plan.epsilon)}: regret"
        f" {number(plan.regret)}, settled {at}."
    )
