"""``streamdp plan``: slots until the best action is found, and regret, before there is any data.

It is `simulate` in one world, made from what is known of a stream. With ``--changes-every`` the
best action changes, and learners are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from streamdp.cli.common import OneStream, chosen, load

if TYPE_CHECKING:
    from streamdp.core.errors import InvalidConfig
    from streamdp.core.kinds.feedback import PolicyLearner
    from streamdp.core.kinds.kind import Kind
    from streamdp.lab.planning import Wish
    from streamdp.service.config import Configuration

BaseOption = Annotated[
    float | None,
    typer.Option(help="The best action's mean loss, such as 0.97 where 3 in 100 click."),
]

ChangesOption = Annotated[
    int | None,
    typer.Option(
        help="How many slots of a key the best action lasts on average; compares learners."
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

ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Feedback with contexts: how many levels each field has, such as 8,3,4,6: what each of"
        " some worlds loses with contexts and without, and after how many events it is learned.",
    ),
]

InteractionsOption = Annotated[
    str | None,
    typer.Option(
        help="With --context: a table in parts, of fields that are called f1, f2 and so on, such as"
        " 'f1 x f2', or none: each field by itself."
    ),
]

MarkdownOption = Annotated[
    bool,
    typer.Option(
        "--markdown", help="Feedback: only a table over rates and gaps around these, by a formula."
    ),
]


RewardsOption = Annotated[
    Path | None,
    typer.Option(help="A file of what shows earned, one a line, 0 for nothing. NOT PRIVATE."),
]

ColumnOption = Annotated[
    str | None, typer.Option(help="--rewards: the column's name, of a CSV file.")
]

_HORIZON = 1_000_000


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
    gap: Annotated[
        float,
        typer.Option(
            help="How much worse all other actions are, in mean loss per slot; with --rewards in"
            " their unit."
        ),
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
    horizon: Annotated[int, typer.Option(help="Slots of one key.")] = _HORIZON,
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
    rewards: RewardsOption = None,
    column: ColumnOption = None,
) -> None:
    """Say what to expect of a learner in a world of independent losses with one gap.

    Without --changes-every the best action never changes. With --observes feedback: after how many
    events the best action is found, from click rate, gap, ε, traffic and the number of actions.

    With --context: after how many events of a key it is learned what is best for whom.

    With --rewards, a file of what shows earned: which `most` loses least. NOT PRIVATE.

    Examples:
    streamdp plan --actions 5 --epsilon 0.5 --gap 0.1 --changes-every 50000
    streamdp plan --config streamdp.toml --gap 0.1 --changes-every 50000
    streamdp plan --actions 5 --epsilon 0.1,0.3,1,3 --gap 0.1
    streamdp plan --actions 5 --epsilon 1 --gap 0.5 --rewards amounts.txt
    """
    named = {
        "--base": base, "--target-regret": target_regret, "--rate": rate, "--traffic": traffic,
        "--markdown": markdown or None, "--context": context, "--interactions": interactions,
        "--changes-every": changes_every, "--learner": learner, "--column": column,
        "--rewards": rewards, "--keys": None if keys == 1 else keys,
        "--horizon": None if horizon == _HORIZON else horizon,
        "--seed": None if seed == 1 else seed,
    }  # fmt: skip
    given = {name: value for name, value in named.items() if value is not None}
    for name, needed, there in (
        ("--column", "--rewards", rewards), ("--interactions", "--context", context),
    ):  # fmt: skip
        if name in given and there is None:
            raise _refused(name, expected=f"{needed} with it", got=str(given[name]))
    if as_json:
        _refuse_beside("--json", given, ("--markdown",))
    if target_regret is not None and not 0 < target_regret < inf:
        raise _refused("--target-regret", expected="losses, above 0", got=str(target_regret))
    several = [] if epsilon is None else epsilon.split(",")
    if len(several) > 1 and (alone := given.keys() & _OF_ONE_EPSILON):
        expected = f"one ε with {' and '.join(sorted(alone))}"
        raise _refused("--epsilon", expected=expected, got=f"{len(several)} of them")
    asked = _asked(actions, several[0] if several else None, config, stream, learner)
    if rewards is not None:
        _refuse_beside("--rewards", given, (*_OF["losses"], *_OF["feedback"], *_SIMULATED))
        _most(rewards, column, asked, gap, as_json=as_json)
        return
    kind = observes or asked.observes or "losses"
    _check_kind(kind, given)
    if asked.observes not in (None, kind):
        raise _refused(f"--config {config}", expected=f"a stream of {kind}", got=asked.observes)
    if asked.most != 1.0:
        rate, gap = (None if rate is None else rate / asked.most), gap / asked.most
        if not as_json:
            one = f"{asked.most:g} {asked.unit}"
            typer.echo(
                f"1 stands for {one} here: --rate and --gap are in {asked.unit}, and a regret times"
                f" {asked.most:g} is too. Each order is taken for one of {one}, which is the"
                " hardest case."
            )
    from streamdp.core.calibration import parse_epsilon
    from streamdp.core.learners.recipes import OBSERVED
    from streamdp.lab.commands._written import report
    from streamdp.lab.common.cells import parse_candidate
    from streamdp.lab.planning import NO_NOISE, Wish, least, plan_changes, plan_for
    from streamdp.lab.planning import as_json as figures_of

    budgets = [asked.epsilon, *(parse_epsilon(of, "--epsilon") for of in several[1:])]
    if context is not None or asked.own is not None:
        from streamdp.lab.commands._contexts import show
        from streamdp.lab.context_worlds import Table

        _refuse_beside("--context", given, ("--learner", "--changes-every", "--markdown", "--keys"))
        world: dict[str, Any] = {"rate": rate or 0.0, "gap": gap, "slots": horizon, "seed": seed}
        world["traffic"] = traffic
        if asked.own is None:
            shape, parts = Table.read(context or ""), interactions or "all"
            world |= {"shape": shape, "actions": asked.actions, "interactions": parts}
            tables = [Table(epsilon=of, **world) for of in budgets]
        elif context is not None:
            raise _refused("--context", expected="none: the stream has its own", got=context)
        else:
            tables = [Table.of_stream(asked.own, **world)]
        show(tables, as_json=as_json)
        return
    text = asked.learner or OBSERVED[kind].default
    if kind == "feedback":
        wish = Wish.of_clicks(text, asked.actions, rate or 0.0, gap, horizon, seed, keys, traffic)
    else:
        wish = Wish(parse_candidate(text), asked.actions, gap, horizon, seed, base, keys)
    if markdown:
        typer.echo(_markdown(wish, asked.epsilon))
        return
    if changes_every is not None:
        if kind == "losses":  # ways to go on are compared, whatever the learner
            _refuse_beside("--changes-every", given, ("--learner",))
        _refuse_beside("--changes-every", given, ("--target-regret", "--traffic"))
        changing, answers = plan_changes(wish, asked.epsilon, every=changes_every)
        figures = figures_of(wish, answers, changing, changes_every)
    else:
        free = NO_NOISE if kind == "feedback" else None
        every: list[Fraction | None] = [*budgets, *([free] if len(budgets) > 1 else [])]
        figures = figures_of(wish, [plan_for(wish, of) for of in every])
    if target_regret is not None:
        figures |= least(wish, target_regret)
    report("simulation", figures, json_at=Path("-") if as_json else None)


_OF = {
    "losses": ("--base", "--target-regret"),
    "feedback": ("--rate", "--traffic", "--markdown", "--context", "--interactions"),
}
"""Options of each kind of stream."""

_SIMULATED = ("--changes-every", "--keys", "--horizon", "--seed")
"""Options of what is played, where no formula answers."""

_OF_ONE_EPSILON = {"--changes-every", "--target-regret", "--markdown", "--rewards"}


def _refuse_beside(option: str, given: Mapping[str, object], others: Iterable[str]) -> None:
    """Refuse options that say nothing beside another."""
    for name in others:
        if name in given:
            raise _refused(name, expected=f"no {option} with it", got=str(given[name]))


def _most(path: Path, column: str | None, asked: _Asked, gap: float, *, as_json: bool) -> None:
    """Say which `most` loses least for these rewards."""
    from streamdp.cli.common import print_report
    from streamdp.lab.most import compared, read, told

    if not 0 < gap < inf:
        raise _refused("--gap", expected="above 0, in the unit of the rewards", got=str(gap))
    rewards = read(path, column)
    found = compared(rewards, actions=asked.actions, epsilon=asked.epsilon, gap=gap)
    print_report(found, told, as_json=as_json)


def _check_kind(observes: str, given: Mapping[str, object]) -> None:
    """Refuse options of the other kind."""
    if observes not in _OF:
        raise _refused("--observes", expected="losses | feedback", got=observes)
    (other,) = _OF.keys() - {observes}
    for name in _OF[other]:
        if name in given:
            raise _refused(name, expected=f"--observes {other} with it", got=observes)
    if observes == "feedback" and "--rate" not in given:
        expected = "the mean reward of all actions but the best, such as 0.02"
        raise _refused("--rate", expected=expected, got="none")


class _Asked(NamedTuple):
    """What is planned: as the options say, or as a stream is configured."""

    actions: int
    epsilon: Fraction
    learner: str | None
    observes: str | None = None
    own: PolicyLearner | None = None  # a configured learner with contexts
    most: float = 1.0  # the largest reward
    unit: str = ""


def _asked(
    actions: int | None,
    epsilon: str | None,
    config: Path | None,
    stream: str | None,
    learner: str | None,
) -> _Asked:
    """Read the options, or the configuration."""
    from streamdp.core.calibration import parse_epsilon

    if config is None:
        if actions is None or epsilon is None or stream is not None:
            named = {"--actions": actions, "--epsilon": epsilon, "--stream": stream}
            got = " and ".join(name for name, value in named.items() if value is not None)
            expected = "--actions and --epsilon, or --config with or without --stream"
            raise _refused("plan", expected=expected, got=got or "neither")
        return _Asked(actions, parse_epsilon(epsilon, "--epsilon"), learner)
    if actions is not None or epsilon is not None or learner is not None:
        expected = "no --actions, --epsilon or --learner with it"
        got = f"--actions {actions}, --epsilon {epsilon}, --learner {learner}"
        raise _refused("--config", expected=expected, got=got)
    configuration: Configuration = load(config)
    name = chosen(configuration, stream).stream
    planned, feedback = configuration.streams[name], configuration.tables.streams[name].feedback
    configured, observes = planned.learner, planned.table.observes
    charge, most, unit = configured.releases[0].epsilon, 1.0, ""
    if not charge:
        got = configured.recipe.name
        raise _refused(f"--config {config}", expected="a learner with ε", got=got)
    if feedback is not None and feedback.most is not None:
        most, unit = float(feedback.most), feedback.reward_unit
    if planned.contexts is None:
        many, text = len(configured.actions), text_of(configured)
        return _Asked(many, charge, text, observes, most=most, unit=unit)
    from streamdp.core.kinds.feedback import PolicyLearner

    assert isinstance(configured, PolicyLearner)
    return _Asked(len(planned.actions), charge, None, observes, configured, most, unit)


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


def _markdown(wish: Wish, epsilon: Fraction) -> str:
    """Events of a key until the best action is found, for rates and gaps around the given ones."""
    from streamdp.core.errors import InvalidConfig
    from streamdp.lab.planning import FORMULAS, around
    from streamdp.lab.report.terminal import Table, markdown, two_digits

    tables = around(wish, epsilon)
    if not tables:
        expected = " or ".join(FORMULAS)
        raise InvalidConfig(
            "--markdown", "no formula", expected=expected, got=repr(wish.candidate.text)
        )
    epsilons = tables[0].epsilons
    return markdown(
        [
            Table(
                "",
                ["others' rate", "the best's", *(f"ε = {epsilon}" for epsilon in epsilons)],
                [
                    [f"{table.rate:.3g}", f"{table.rate + gap:.3g}", *map(two_digits, row)]
                    for table in tables
                    for gap, row in zip(table.gaps, table.events, strict=True)
                ],
            )
        ]
    )
