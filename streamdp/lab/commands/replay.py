"""``streamdp replay``: what learners and budgets would have achieved on a log. NOT PRIVATE."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from streamdp.lab.replay.replaying import Question, Replay
    from streamdp.lab.replay.sources import ReadOptions

LEARNERS = "remembering_leader,incumbent_leader,prefix_softmax,noisy_leader:noise=exponential"
EPSILONS = "0.1,0.5,1,inf"
SEEDS = 100

LogArgument = Annotated[
    str,
    typer.Argument(
        help="A file (.ndjson .parquet .arrow .npy .npz) or a topic (sqlite:file.db#topic,"
        " kafka:server:9092#topic)."
    ),
]

LearnersOption = Annotated[
    str | None,
    typer.Option(help="Recipes with options, as in noisy_leader:noise=laplace, by commas."),
]

EpsilonsOption = Annotated[
    str | None, typer.Option(help="Budgets by commas; inf is without privacy (of losses only).")
]

PlayedOption = Annotated[
    str, typer.Option(help="Feedback of a topic: where the action stands, header or value.")
]

HeaderOption = Annotated[
    str, typer.Option(help="Feedback of a topic: the header of the shown action.")
]

MostKeyBytesOption = Annotated[
    int, typer.Option(min=1, help="With --logged service: the stream's limits.most_key_bytes.")
]

ColumnsOption = Annotated[
    str | None,
    typer.Option(
        help="Feedback of a file: what it calls its columns, as in"
        " reward=click,action=item_id,propensity=pscore."
    ),
]

PscoreOption = Annotated[str, typer.Option(help="Feedback: the column or header of propensities.")]

ContentOption = Annotated[
    str | None, typer.Option(help="Feedback of a topic: reward, loss, or losses (of all).")
]

LoggedDraws = Annotated[
    str,
    typer.Option(
        help="Feedback: how shown actions were drawn: auto (by their propensities),"
        " propensities, uniform, or service (what one released, without values)."
    ),
]


StreamOption = Annotated[
    str, typer.Option(help="The name of the stream whose seeded bits are drawn.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay")(replay)


def replay(
    context: typer.Context,
    log: LogArgument,
    observes: Annotated[
        str, typer.Option(help="losses (of all actions), or feedback (of the shown action).")
    ] = "losses",
    learners: LearnersOption = None,
    epsilon: EpsilonsOption = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds; 100, with feedback 20.")
    ] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of the seeds.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Write the report's page here.")] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write all figures here; - prints them.")
    ] = None,
    actions: Annotated[
        str | None, typer.Option(help="Names of the actions by commas, where the log has none.")
    ] = None,
    on_bad: Annotated[
        str, typer.Option(help="Rows that cannot be used: refuse, or null (as live).")
    ] = "refuse",
    wire_format: Annotated[str, typer.Option("--format", help="A topic's wire format.")] = "json",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="name=value for a topic's transport.")
    ] = None,
    stream: StreamOption = "replay",
    epoch: Annotated[int, typer.Option(min=1, help="The stream's epoch, for the same bits.")] = 1,
    logged: LoggedDraws = "auto",
    content: ContentOption = None,
    most_key_bytes: MostKeyBytesOption = 1024,
    columns: ColumnsOption = None,
    pscore: PscoreOption = "pscore",
    header: HeaderOption = "streamdp-action",
    played: PlayedOption = "header",
) -> None:
    """Replay a log with a grid of learners, budgets and seeds. NOT PRIVATE.

    The log is read as the service would have read it: finite losses outside [0, 1] are clipped, and
    the report says in how many slots (`streamdp send` refuses them).

    With --observes feedback: what policies would have gained. Logs of all losses are played
    exactly, logs with propensities are weighted, uniform draws are replayed by rejection; other
    logs are refused.
    """
    from streamdp.lab.commands import _feedback_replay
    from streamdp.lab.commands._written import check_places, write_report
    from streamdp.lab.replay.reported import as_json as figures

    shown = _feedback_replay.ShownOptions(content, pscore, header, played, columns)
    _feedback_replay.check_observes(log, observes, shown.names)
    _check_of_use(context, log, observes, content, logged)
    check_places(report, as_json)
    how = reading(actions, on_bad, wire_format, setting)
    if observes == "feedback":
        _feedback_replay.run(
            log,
            _feedback_replay.question(
                learners,
                epsilon,
                seeds,
                first_seed,
                stream,
                epoch,
                logged,
                on_bad,
                most_key_bytes,
            ),
            how,
            shown,
            report=report,
            as_json=as_json,
        )
        return
    asked = _asked(learners, epsilon, seeds, first_seed, stream, epoch)
    answered = _replayed(log, asked, how)
    write_report("losses", lambda: figures(answered), page_at=report, json_at=as_json)
    if str(as_json) != "-":
        _print(answered)


def _check_of_use(
    context: typer.Context, log: str, observes: str, content: str | None, logged: str
) -> None:
    """Refuse options that change nothing in this kind of replay."""
    from streamdp.lab.commands._of_use import refuse_useless
    from streamdp.lab.replay.sending import is_topic

    feedback, topic = observes == "feedback", is_topic(log) and not Path(log).exists()
    shown = "--observes feedback"
    refuse_useless(
        context,
        [
            (["--most-key-bytes"], feedback and logged == "service", "--logged service"),
            (["--logged", "--pscore"], feedback, shown),
            (["--columns"], feedback and not topic, f"a file and {shown}"),
            (["--content", "--header", "--played"], feedback and topic, f"a topic and {shown}"),
            (["--pscore", "--header", "--played"], content != "losses", "no --content losses"),
            (["--format", "--set"], topic, "a topic"),
            (["--on-bad"], feedback or not topic, "a file (a topic is read as live)"),
        ],
        got=f"{'a topic' if topic else 'a file'} and --observes {observes}",
    )


def _asked(
    learners: str | None,
    epsilon: str | None,
    seeds: int | None,
    first: int,
    stream: str,
    epoch: int,
) -> Question:
    from streamdp.core.errors import InvalidConfig, complaint
    from streamdp.lab.replay.cells import parse_candidates, parse_epsilons
    from streamdp.lab.replay.replaying import Question, seeds_of

    if not stream:
        raise InvalidConfig(complaint("--stream", "no name", expected="a stream's", got="nothing"))
    return Question(
        parse_candidates(LEARNERS if learners is None else learners),
        parse_epsilons(EPSILONS if epsilon is None else epsilon),
        seeds_of(SEEDS if seeds is None else seeds, first=first),
        stream,
        epoch,
    )


def _replayed(log: str, asked: Question, how: ReadOptions) -> Replay:
    from streamdp.lab.commands import _progress
    from streamdp.lab.replay.replaying import costs, replay_log
    from streamdp.lab.replay.sources import open_log

    source = open_log(log, how)
    for cost in costs(source, asked):
        typer.echo(f"cost: {cost}", err=True)
    with _progress.watching() as watcher:
        return replay_log(source, asked, watcher=watcher)


def reading(
    actions: str | None, on_bad: str, wire_format: str, setting: list[str] | None
) -> ReadOptions:
    """How to read a log, by the options that all commands on logs share."""
    from streamdp.core.errors import InvalidConfig, complaint
    from streamdp.lab.replay.sources import ReadOptions

    if on_bad not in ("refuse", "null"):
        raise InvalidConfig(complaint("--on-bad", "unknown", expected="refuse | null", got=on_bad))
    settings: dict[str, object] = {}
    for setting_ in setting or ():
        name, equals, value = setting_.partition("=")
        if not equals:
            raise InvalidConfig(complaint("--set", "no value", expected="name=value", got=setting_))
        settings[name] = value
    names = tuple(name.strip() for name in actions.split(",")) if actions else None
    if names is not None and (len(names) < 2 or not all(names)):
        expected = "2 or more names by commas"
        raise InvalidConfig(complaint("--actions", "too few", expected=expected, got=actions))
    return ReadOptions(
        actions=names,
        on_bad="null" if on_bad == "null" else "refuse",
        format=wire_format,
        settings=settings,
    )


def _print(replay: Replay) -> None:
    from rich.console import Console
    from rich.table import Table

    from streamdp.lab.replay.cells import epsilon_text
    from streamdp.lab.replay.figures import settled_at, share_reached
    from streamdp.lab.replay.reported import lead
    from streamdp.lab.replay.summary import interval, number, summary
    from streamdp.wire.unprotected import NOT_PRIVATE

    table = Table(
        title=f"{replay.log}: {replay.slots:,} slots, {len(replay.actions)} actions",
        caption=f"{NOT_PRIVATE}. Regret against the best fixed action of each key, mean over seeds"
        " ± 1.96 standard errors; reached: the share of what that action gains over uniform choice."
        " Exact if the log holds every action's loss as it would have been.",
    )
    for name in ("learner", "ε", "regret", "reached", "settled at slot", "charge of an event"):
        table.add_column(name, justify="left" if name == "learner" else "right", overflow="fold")
    extra = [replay.leader, *([replay.running] if replay.running else [])]
    for answer in (*replay.answers, *(answer for answer in extra if answer not in replay.answers)):
        at = settled_at(answer, replay.base.points)
        charge = answer.cell.leader.charge
        table.add_row(
            answer.cell.name,
            epsilon_text(answer.cell.epsilon),
            interval(answer),
            "" if (share := share_reached(answer, replay)) is None else f"{share:.0%}",
            "never" if at is None else f"{at:,}",
            "not private" if charge is None else str(charge),
        )
    table.add_row(
        "uniform choice", "0", number(float(replay.base.uniform_regret[-1])), "0%", "", "0"
    )
    console = Console()
    console.print(table)
    for sentence in lead(replay).values():
        console.print(sentence, highlight=False)
    for statement in summary(replay):
        console.print(f"[bold]{statement.about}.[/] {statement.says}", highlight=False)
