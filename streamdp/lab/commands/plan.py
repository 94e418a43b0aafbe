"""``streamdp plan``: slots until the best action is found, and regret, before there is any data.

With ``--changes-every`` the best action changes, and learners are compared: of losses memory,
growing blocks and capped blocks, of feedback every shipped learner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdp.cli.common import OneStream, chosen, load
from streamdp.lab.commands._contexts import ContextOption, InteractionsOption

if TYPE_CHECKING:
    from streamdp.core.errors import InvalidConfig
    from streamdp.core.kinds.feedback import PolicyLearner
    from streamdp.core.kinds.kind import Kind
    from streamdp.core.regret import Bound
    from streamdp.lab.planning import ChangePlan, LearnerPlan, Wish
    from streamdp.service.config import Configuration

BaseOption = Annotated[
    float | None,
    typer.Option(help="The best action's mean loss, such as 0.97 where 3 in 100 click."),
]

ChangesOption = Annotated[
    int | None,
    typer.Option(
        help="How many slots of a key the best action lasts on average: compares memory,"
        " growing and capped blocks; with feedback all learners."
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
    typer.Option(help="A recipe with options; remembering_leader, with feedback policy_following."),
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
        str | None,
        typer.Option(
            help="ε of an event for the action, exactly, such as 0.5; or several: 0.1,0.3,1,3."
        ),
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
    base: BaseOption = None,
    keys: Annotated[int, typer.Option(help="Number of keys, each with its own learner.")] = 1,
    changes_every: ChangesOption = None,
    rate: RateOption = None,
    traffic: TrafficOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulation.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
    markdown: MarkdownOption = False,
    context: ContextOption = None,
    interactions: InteractionsOption = None,
) -> None:
    """Say what to expect of a learner in a world of independent losses with one gap.

    Without --changes-every the best action never changes. With --observes feedback: after how many
    events the best action is found, from click rate, gap, ε, traffic and the number of actions.

    With --context: after how many events of a key it is learned what is best for whom.

    Examples:
    streamdp plan --actions 5 --epsilon 0.5 --gap 0.1 --changes-every 50000
    streamdp plan --config streamdp.toml --gap 0.1 --changes-every 50000
    streamdp plan --actions 5 --epsilon 0.1,0.3,1,3 --gap 0.1
    """
    of_losses = {"--base": base, "--target-regret": target_regret}
    of_feedback: dict[str, object] = {
        "--rate": rate,
        "--traffic": traffic,
        "--markdown": markdown or None,
    }
    of_feedback |= {"--context": context, "--interactions": interactions}
    if interactions is not None and context is None:
        raise _refused("--interactions", expected="--context with it", got=interactions)
    if as_json and markdown:
        raise _refused("--markdown", expected="no --json with it", got="both")
    if target_regret is not None and not 0 < target_regret < inf:
        raise _refused("--target-regret", expected="losses, above 0", got=str(target_regret))
    several = [] if epsilon is None else epsilon.split(",")
    if len(several) > 1 and (changes_every, target_regret, markdown) != (None, None, False):
        expected = "one ε with --changes-every, --target-regret or --markdown"
        raise _refused("--epsilon", expected=expected, got=f"{len(several)} of them")
    first = several[0] if several else None
    many, exact, text, configured, own = _asked(actions, first, config, stream, learner)
    observes = observes or configured or "losses"
    _check_kind(observes, of_losses, of_feedback)
    if configured not in (None, observes):
        raise _refused(f"--config {config}", expected=f"a stream of {observes}", got=configured)
    from streamdp.core.calibration import parse_epsilon
    from streamdp.core.learners.recipes import OBSERVED
    from streamdp.lab.common.cells import parse_candidate
    from streamdp.lab.planning import Wish

    if context is not None or own is not None:
        from streamdp.lab.commands._contexts import show
        from streamdp.lab.context_worlds import Table

        if own is not None and context is not None:
            raise _refused("--context", expected="none: the stream has its own", got=context)
        given: dict[str, object] = {"--learner": learner, "--changes-every": changes_every}
        for name, value in given.items() | {("--keys", None if keys == 1 else keys)}:
            if value is not None:
                raise _refused(name, expected="no --context with it", got=str(value))
        of_all: dict[str, Any] = {"rate": rate or 0.0, "gap": gap, "slots": horizon, "seed": seed}
        of_all["traffic"] = traffic
        if own is not None:
            table = Table.of_stream(own, **of_all)
        else:
            shape, parts = Table.read(context or ""), interactions or "all"
            table = Table(shape, many, epsilon=exact, interactions=parts, **of_all)
        show([table], as_json=as_json)
        return
    if observes == "feedback":
        text = text or OBSERVED[observes].default
        wish = Wish.of_clicks(text, many, rate or 0.0, gap, horizon, seed, keys, traffic)
    else:
        candidate = parse_candidate(text or OBSERVED[observes].default)
        wish = Wish(candidate, many, gap, horizon, seed, base, keys)
    if len(several) > 1:
        _plan_several(wish, [parse_epsilon(of, "--epsilon") for of in several], as_json=as_json)
    elif markdown:
        typer.echo(_markdown(wish, exact))
    elif changes_every is None:
        _plan(wish, exact, target_regret, as_json=as_json)
    else:
        _check_changes(wish, learner, target_regret)
        _plan_changes(wish, exact, changes_every, as_json=as_json)


def _check_changes(wish: Wish, learner: str | None, target_regret: float | None) -> None:
    """Refuse what has no say where learners are compared."""
    if learner is not None and wish.observes == "losses":
        expected = "no --changes-every with it (memory, growing and capped blocks are compared)"
        raise _refused("--learner", expected=expected, got=learner)
    if target_regret is not None:
        expected = "no --target-regret with it"
        raise _refused("--changes-every", expected=expected, got=str(target_regret))


def _check_kind(
    observes: str, of_losses: Mapping[str, object], of_feedback: Mapping[str, object]
) -> None:
    """Refuse options of the other kind."""
    if observes not in ("losses", "feedback"):
        raise _refused("--observes", expected="losses | feedback", got=observes)
    other = "losses" if observes == "feedback" else "feedback"
    for name, given in (of_losses if observes == "feedback" else of_feedback).items():
        if given is not None:
            raise _refused(name, expected=f"--observes {other} with it", got=observes)
    if observes == "feedback" and of_feedback["--rate"] is None:
        expected = "the mean reward of all actions but the best, such as 0.02"
        raise _refused("--rate", expected=expected, got="none")


def _asked(
    actions: int | None,
    epsilon: str | None,
    config: Path | None,
    stream: str | None,
    learner: str | None,
) -> tuple[int, Fraction, str | None, str | None, PolicyLearner | None]:
    """The number of actions, ε, the learner, what a configured stream observes.

    And its own learner, where it has contexts.
    """
    from streamdp.core.calibration import parse_epsilon

    if config is None:
        if actions is None or epsilon is None or stream is not None:
            given = {"--actions": actions, "--epsilon": epsilon, "--stream": stream}
            got = " and ".join(name for name, value in given.items() if value is not None)
            expected = "--actions and --epsilon, or --config with or without --stream"
            raise _refused("plan", expected=expected, got=got or "neither")
        return actions, parse_epsilon(epsilon, "--epsilon"), learner, None, None
    if actions is not None or epsilon is not None or learner is not None:
        expected = "no --actions, --epsilon or --learner with it"
        got = f"--actions {actions}, --epsilon {epsilon}, --learner {learner}"
        raise _refused("--config", expected=expected, got=got)
    configuration: Configuration = load(config)
    name = chosen(configuration, stream).stream
    planned = configuration.streams[name]
    configured, observes = planned.learner, planned.table.observes
    charge = configured.releases[0].epsilon
    if not charge:
        got = configured.recipe.name
        raise _refused(f"--config {config}", expected="a learner with ε", got=got)
    if planned.contexts is not None:
        from streamdp.core.kinds.feedback import PolicyLearner

        assert isinstance(configured, PolicyLearner)
        actions = len(planned.actions)
        return actions, charge, None, observes, configured
    return len(configured.actions), charge, text_of(configured), observes, None


def text_of(learner: Kind) -> str:
    """A configured learner in the command line's form, without ε.

    >>> from streamdp.core.learners import learner_of
    >>> table = {"recipe": "prefix_softmax", "epsilon": "1", "schedule": "capped 512"}
    >>> text_of(learner_of(table, actions=["a", "b"]))
    'prefix_softmax:schedule=capped 512'
    """
    from streamdp.core.kinds.recipe import config_of
    from streamdp.core.learners.recipes import kind_of

    config = config_of(learner.recipe)
    plain = {"recipe": config["recipe"], "epsilon": config["epsilon"]}
    usual = config_of(kind_of(plain, actions=learner.actions).recipe)
    options = [f"{name}={value}" for name, value in config.items() if value != usual[name]]
    return ":".join([config["recipe"], *options])


def _refused(where: str, *, expected: str, got: str) -> InvalidConfig:
    from streamdp.core.errors import InvalidConfig

    return InvalidConfig(where, "cannot be planned", expected=expected, got=got)


def _plan(wish: Wish, epsilon: Fraction, target: float | None, *, as_json: bool) -> None:
    from streamdp.lab.planning import as_json as for_machines
    from streamdp.lab.planning import least_epsilon, plan_for

    plan, least = plan_for(wish, epsilon), None
    if target is not None:
        least = least_epsilon(wish, regret=target)
    if as_json:
        report = for_machines(plan)
        if target is not None:
            report["least_epsilon"] = None if least is None else float(least.epsilon or 0)
        _print_json(report)
        return
    _print(plan)
    if target is not None:
        _print_least(least, target)


def _plan_several(wish: Wish, epsilons: Sequence[Fraction], *, as_json: bool) -> None:
    """One learner at several ε, beside itself without privacy."""
    from rich.console import Console
    from rich.table import Table

    from streamdp.lab.common.cells import epsilon_text
    from streamdp.lab.common.words import days_text, number
    from streamdp.lab.planning import as_json as for_machines
    from streamdp.lab.planning import plan_for

    free = NO_NOISE if wish.observes == "feedback" else None
    plans = [plan_for(wish, epsilon) for epsilon in (*epsilons, free)]
    if as_json:
        typer.echo(json.dumps([for_machines(plan) for plan in plans], indent=1, ensure_ascii=False))
        return
    feedback = wish.observes == "feedback"
    table = Table(
        title=f"{wish.candidate.text}, K = {wish.actions}, gap {wish.gap:g},"
        f" {wish.horizon:,} slots",
        caption=f"Means of simulated runs of {_world_text(wish)}. Choosing uniformly costs"
        f" {number(wish.uniform)}.",
    )
    table.add_column("")
    for plan in plans:
        name = "without privacy" if plan.epsilon == free else f"ε = {epsilon_text(plan.epsilon)}"
        table.add_column(name, justify="right", overflow="fold")
    table.add_row(
        "events until the best is found" if feedback else "settles at slot",
        *("–" if at is None else f"{at:,}" for at in (
            plan.found_after if feedback else plan.settled for plan in plans
        )),
    )  # fmt: skip
    if wish.traffic is not None:
        table.add_row(
            "time", *("–" if plan.days is None else days_text(plan.days) for plan in plans)
        )
    table.add_row(
        "regret", *(f"{number(plan.regret)} ± {number(1.96 * plan.error)}" for plan in plans)
    )
    table.add_row("of uniform", *(f"{plan.regret / wish.uniform:.1%}" for plan in plans))
    Console().print(table)


def _plan_changes(wish: Wish, epsilon: Fraction, every: int, *, as_json: bool) -> None:
    from streamdp.lab.planning import changes_as_json, plan_changes

    plan = plan_changes(wish, epsilon, every=every)
    if as_json:
        _print_json(changes_as_json(plan))
    else:
        _print_changes(plan)


def _print_json(report: Mapping[str, object]) -> None:
    typer.echo(json.dumps(report, indent=1, ensure_ascii=False))


def _world_text(wish: Wish) -> str:
    """The planned world, for a table's caption."""
    if wish.observes == "feedback":
        return (
            f"clicks: the best action's rate is {wish.rate + wish.gap:g}, all others' {wish.rate:g}"
        )
    return f"Bernoulli losses: the best action's mean is {wish.best:g}, all others' {wish.others:g}"


def _print_changes(plan: ChangePlan) -> None:
    from rich.console import Console
    from rich.table import Table

    from streamdp.lab.commands._tables import add_columns, show
    from streamdp.lab.common.cells import epsilon_text
    from streamdp.lab.common.words import number
    from streamdp.lab.planning import changes_as_json

    wish, report = plan.wish, changes_as_json(plan)
    feedback = wish.observes == "feedback"
    lost, side = ("rewards", "below") if feedback else ("losses", "above")
    table = Table(
        title=f"K = {wish.actions}, ε = {epsilon_text(plan.epsilon)}, gap {wish.gap:g}, the best"
        f" action changes every {plan.changes_every:,} slots",
        caption=f"Mean of {plan.runs} simulated runs of {wish.horizon:,} slots ± 1.96 standard"
        f" errors; {_world_text(wish)}. Regret: {lost} {side} the best action of each moment.",
    )
    mean, blocks = ("mean reward", "blocks") if feedback else ("mean loss", "votes")
    add_columns(table, ("learner", "regret of a key", "in 1,000 slots", mean, blocks))
    for row in report["learners"]:
        name = row["learner"] if feedback else f"{row['kind']}: {row['learner']}"
        table.add_row(
            name,
            f"{number(row['regret'])} ± {number(row['interval'])}",
            number(row["regret_in_1000_slots"]),
            f"{1 - row['mean_loss'] if feedback else row['mean_loss']:.4f}",
            f"{row['votes_of_a_key']:,}",
        )
    show(table)
    best = report["learners"][0]
    keys = f", {number(best['regret_of_all_keys'])} of {wish.keys:,} keys" * (wish.keys > 1)
    tied = f" It cannot be told from {', '.join(report['cannot_be_told_from'])}."
    Console().print(
        f"Recommended: {report['recommended']}, about {number(best['regret'])} {lost} of each key"
        f" {side} what was possible{keys};"
        f" choosing uniformly costs {number(wish.uniform)} of each."
        f"{tied if report['cannot_be_told_from'] else ''}",
        highlight=False,
    )


def _print(plan: LearnerPlan) -> None:
    from rich.console import Console
    from rich.table import Table

    from streamdp.lab.common.cells import epsilon_text
    from streamdp.lab.common.words import number

    wish, feedback = plan.wish, plan.wish.observes == "feedback"
    title = f"{wish.candidate.text}, K = {wish.actions}, ε = {epsilon_text(plan.epsilon)}"
    table = Table(
        title=title if feedback else f"{title}, gap {wish.gap:g}",
        caption=f"Mean of {plan.runs} simulated runs of {_world_text(wish)}.",
    )
    shown = ["runs that have found it", "best shown"] if feedback else ["best action in force"]
    for name in ("block", "slots", *shown, "regret so far"):
        table.add_column(name, justify="right")
    blocks = plan.blocks()
    for at in rows_shown(len(blocks)):
        block = blocks[at]
        shares = [block.found, block.best_shown] if feedback else [block.best_shown]
        table.add_row(
            str(at),
            f"{block.first:,} – {block.last:,}",
            *(f"{share:.0%}" for share in shares),
            number(block.regret_so_far),
        )
    Console().print(table)
    if feedback:
        _print_events(plan)
    typer.echo(answer(plan))
    if plan.bound is not None:
        typer.echo(_proved(plan.bound, wish.uniform))


def answer(plan: LearnerPlan) -> str:
    """The answer, in a sentence or two."""
    from streamdp.lab.common.words import days_text, number

    wish, cost = plan.wish, f"{number(plan.regret)} ± {number(1.96 * plan.error)}"
    if wish.observes == "losses":
        when = (
            f"It does not settle within {wish.horizon:,} slots"
            if plan.settled is None
            else f"It settles at slot {plan.settled:,} (from there on 9 of 10 runs have the best"
            f" action in force at any moment, {plan.always:.0%} of all always)"
        )
        of_all = (
            f" {wish.keys:,} keys learn apart, each from its own slots: together"
            f" {number(plan.regret * wish.keys)} after {wish.horizon:,} slots of each."
        ) * (wish.keys > 1)
        return (
            f"{when}. Regret after {wish.horizon:,} slots: {cost};"
            f" choosing uniformly costs {number(wish.uniform)}.{of_all}"
        )
    if plan.found_after is None:
        text = f"The best action is not found within {wish.horizon:,} events of a key"
    else:
        text = f"The best action is found after {plan.found_after:,} events of a key"
        if plan.days is not None:
            text += f", {days_text(plan.days)} at {wish.traffic:,g} a day"
        text += (
            " (from then on 9 of 10 runs show it in at least 3 of 4 requests at any moment,"
            f" {plan.always:.0%} of all always)"
        )
    of_all = f" and {number(plan.regret * wish.keys)} over {wish.keys:,} keys" * (wish.keys > 1)
    return (
        f"{text}. Until {wish.horizon:,} events learning costs {cost} in rewards{of_all};"
        f" showing all equally costs {number(wish.uniform)}."
    )


def _proved(bound: Bound, uniform: float) -> str:
    """What a theorem adds to the simulation."""
    if bound.regret >= uniform:
        return "No bound below the regret of choosing uniformly is proved for this learner here."
    from streamdp.lab.common.words import number

    return f"Proved: expected regret is at most {number(bound.regret)} ({bound.source})."


def _print_least(plan: LearnerPlan | None, regret: float) -> None:
    from streamdp.lab.common.cells import epsilon_text
    from streamdp.lab.common.words import number

    target = f"a regret of {number(regret)}"
    if plan is None:
        typer.echo(f"No ε reaches {target} here: not even without privacy, or not up to ε = 100.")
        return
    at = "not at all" if plan.settled is None else f"at slot {plan.settled:,}"
    typer.echo(
        f"The least ε for {target} is about {epsilon_text(plan.epsilon)}: regret"
        f" {number(plan.regret)}, settled {at}."
    )


def _print_events(plan: LearnerPlan) -> None:
    from rich.console import Console
    from rich.table import Table

    from streamdp.lab.planning import table_for

    events_table = table_for(plan.wish, plan.epsilon)
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


def _markdown(wish: Wish, epsilon: Fraction) -> str:
    """Events of a key until the best action is found, for rates and gaps around the given ones."""
    from streamdp.core.errors import InvalidConfig
    from streamdp.lab.planning import FORMULAS, around

    tables = around(wish, epsilon)
    if not tables:
        expected = " or ".join(FORMULAS)
        raise InvalidConfig(
            "--markdown", "no formula", expected=expected, got=repr(wish.candidate.text)
        )
    epsilons = tables[0].epsilons
    heads = ["others' rate", "the best's", *(f"ε = {epsilon}" for epsilon in epsilons)]
    lines = [f"| {' | '.join(heads)} |", "|--:|--:|" + "--:|" * len(epsilons)]
    for table in tables:
        for gap, row in zip(table.gaps, table.events, strict=True):
            cells = [f"{table.rate:.3g}", f"{table.rate + gap:.3g}", *map(two_digits, row)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def two_digits(events: float) -> str:
    """Round to what a formula can say that is right within a factor of two.

    >>> two_digits(12_345.6)
    '12,000'
    """
    return f"{float(f'{events:.2g}'):,.0f}"


NO_NOISE = Fraction(10**6)
"""The ε that stands for no privacy where a policy needs a noise: of a millionth of a loss."""

_FIRST = 24
_ROWS = 12


def rows_shown(blocks: int) -> list[int]:
    """The blocks that a table has rows for: the first ones, some of the rest, and the last.

    >>> rows_shown(3), rows_shown(1000)[23:26], rows_shown(1000)[-1]
    ([0, 1, 2], [23, 83, 166], 999)
    """
    every = max(1, blocks // _ROWS)
    return [at for at in range(blocks) if at < _FIRST or at % every == 0 or at == blocks - 1]
