"""``streamdp replay``: what learners and budgets would have achieved on a log. NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from streamdp.core.evidence.contexts import Contexts
    from streamdp.lab.logs import ReadOptions
    from streamdp.lab.logs.shown_files import Fields
    from streamdp.lab.logs.stages import Watch
    from streamdp.lab.offpolicy.answers import FeedbackAnswer
    from streamdp.lab.offpolicy.question import FeedbackQuestion, FeedbackReplay
    from streamdp.lab.replay.replaying import Question, Replay
    from streamdp.lab.workers import Workers
    from streamdp.wire.feedback import Feedback

Observes = Literal["losses", "feedback"]


@dataclass(frozen=True, slots=True)
class Usual:
    """What is asked of a log where nothing else is given."""

    learners: str | None  # None: every private policy, and one without privacy
    epsilons: str
    seeds: int


USUAL: Mapping[Observes, Usual] = MappingProxyType(
    {
        "losses": Usual(
            "remembering_leader,incumbent_leader,prefix_softmax,noisy_leader:noise=exponential",
            "0.1,0.5,1,inf",
            100,
        ),
        "feedback": Usual(None, "0.25,0.5,1", 20),
    }
)

CONTENTS = ("reward", "loss", "losses")

_LOSSES_A_BYTE = 4
"""A byte of a file of feedback takes as long to read as so many losses."""

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


ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Feedback with contexts: a configuration (of the stream --stream), its context table"
        " as JSON, or columns as in device,country=region whose values are levels.",
    ),
]

StreamOption = Annotated[
    str, typer.Option(help="The name of the stream whose seeded bits are drawn.")
]


ExecutorOption = Annotated[
    str,
    typer.Option(
        help="Who reads the log: process (this one), pool or pool:PROCESSES (of this machine),"
        " dask:ADDRESS (a cluster), or auto: a pool for long logs. No answer depends on it."
        " For files."
    ),
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
    wire_format: Annotated[
        str, typer.Option("--format", help="A topic's wire format: NAME, or NAME,option=value,… .")
    ] = "json",
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
    contexts: ContextOption = None,
    executor: ExecutorOption = "auto",
) -> None:
    """Replay a log with a grid of learners, budgets and seeds. NOT PRIVATE.

    The log is read as the service would have read it: finite losses outside [0, 1] are clipped, and
    the report says in how many slots (`streamdp send` refuses them).

    With --observes feedback: what policies would have gained. Logs of all losses are played
    exactly, logs with propensities are weighted, uniform draws are replayed by rejection; other
    logs are refused.
    """
    from streamdp.core.errors import InvalidConfig
    from streamdp.lab.commands._written import check_places, write_report
    from streamdp.lab.common.cells import parse_candidates, parse_epsilons, usual_policies
    from streamdp.lab.offpolicy.question import FeedbackQuestion, read_logged
    from streamdp.lab.replay.replaying import Question, seeds_of

    check_places(report, as_json)
    fields, columns = read_fields(contexts, columns, stream)
    shown = ShownOptions(content, pscore, header, played, columns, fields)
    kind = check_observes(log, observes, shown.names)
    _check_of_use(context, log, kind, content, logged)
    how, usual = reading(actions, on_bad, wire_format, setting), USUAL[kind]
    if not stream:
        raise InvalidConfig("--stream", "no name", expected="a stream's", got="nothing")
    texts = learners or usual.learners or usual_policies(contexts=contexts is not None)
    budgets = parse_epsilons(usual.epsilons if epsilon is None else epsilon)
    which = seeds_of(usual.seeds if seeds is None else seeds, first=first_seed)
    if kind == "losses":
        question = Question(parse_candidates(texts), budgets, which, stream, epoch)
        answer = _of_losses(log, question, how, executor)
    else:
        names = tuple(text.strip() for text in texts.split(",") if text.strip())
        incomplete: Literal["refuse", "leave out"] = "leave out" if on_bad == "null" else "refuse"
        asked = FeedbackQuestion(
            names, budgets, which, stream, epoch, read_logged(logged), incomplete, most_key_bytes
        )
        answer = _of_feedback(log, asked, how, shown, executor)
    write_report(kind, answer.figures, page_at=report, json_at=as_json)
    if str(as_json) != "-":
        answer.show()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a replay found: its figures, and how they are shown as a table."""

    figures: Callable[[], object]
    show: Callable[[], None]


def _of_losses(log: str, asked: Question, how: ReadOptions, executor: str) -> Answer:
    from streamdp.lab.commands._progress import watching
    from streamdp.lab.logs import open_log
    from streamdp.lab.replay.replaying import costs, replay_log
    from streamdp.lab.replay.reported import as_json
    from streamdp.lab.workers import workers_of

    source = open_log(log, how)
    size = source.slots * len(source.actions) if len(source.parts) > 1 else 0
    for cost in costs(source, asked):
        typer.echo(f"cost: {cost}", err=True)
    with watching() as watch, workers_of(executor, size) as workers:
        replay = replay_log(source, asked, watch=watch, workers=workers)
    return Answer(lambda: as_json(replay), lambda: _print(replay))


def _of_feedback(
    log: str, asked: FeedbackQuestion, how: ReadOptions, shown: ShownOptions, executor: str
) -> Answer:
    from streamdp.lab.commands._progress import watching
    from streamdp.lab.logs import bytes_of
    from streamdp.lab.offpolicy.statements import as_json
    from streamdp.lab.workers import workers_of

    with watching() as watch, workers_of(executor, _LOSSES_A_BYTE * bytes_of(log)) as workers:
        replay = _replayed(log, asked, how, shown, watch, workers)
    return Answer(lambda: as_json(replay), lambda: _print_feedback(replay))


def check_observes(log: str, observes: str, names: Mapping[str, str]) -> Observes:
    """What is observed; refuse shown actions that would be read as losses of all."""
    from streamdp.core.errors import InvalidConfig

    if observes not in ("losses", "feedback"):
        expected = "losses | feedback"
        raise InvalidConfig("--observes", "unknown", expected=expected, got=observes)
    if observes == "losses" and shows(log, names):
        what = "holds what was shown, not the losses of all actions"
        raise InvalidConfig(log, what, expected="--observes feedback", got="--observes losses")
    return "feedback" if observes == "feedback" else "losses"


def shows(log: str, names: Mapping[str, str] = MappingProxyType({})) -> bool:
    """Whether a log is of files that hold what was shown, by the first of them."""
    from streamdp.lab.logs import files_of, is_topic
    from streamdp.lab.logs.shown_files import holds_feedback

    topic = is_topic(log) and not Path(log).exists()
    return not topic and holds_feedback(files_of(log)[0], names)


def _check_of_use(
    context: typer.Context, log: str, observes: str, content: str | None, logged: str
) -> None:
    """Refuse options that change nothing in this kind of replay."""
    from streamdp.lab.commands._of_use import refuse_useless
    from streamdp.lab.logs import is_topic

    feedback, topic = observes == "feedback", is_topic(log) and not Path(log).exists()
    shown = "--observes feedback"
    refuse_useless(
        context,
        [
            (["--most-key-bytes"], feedback and logged == "service", "--logged service"),
            (["--logged", "--pscore"], feedback, shown),
            (["--context"], feedback and content != "losses", f"{shown}, no --content losses"),
            (["--columns"], feedback and not topic, f"a file and {shown}"),
            (["--content", "--header", "--played"], feedback and topic, f"a topic and {shown}"),
            (["--pscore", "--header", "--played"], content != "losses", "no --content losses"),
            (["--format", "--set"], topic, "a topic"),
            (["--on-bad"], feedback or not topic, "a file (a topic is read as live)"),
            (["--executor"], not topic, "a file"),
        ],
        got=f"{'a topic' if topic else 'a file'} and --observes {observes}",
    )


@dataclass(frozen=True, slots=True)
class ShownOptions:
    """How a log says what was shown: as a stream's configuration does, and under which name."""

    content: str | None
    pscore: str
    header: str
    played: str
    columns: str | None = None
    fields: Fields = None

    @property
    def names(self) -> Mapping[str, str]:
        """What a file calls its columns."""
        more = () if self.fields is None else names_of(self.fields)
        return read_columns(self.columns, self.pscore, more)

    def feedback(self, actions: tuple[str, ...] | None) -> Feedback | None:
        """The format of a topic's records; None if no option names it."""
        from streamdp.core.errors import InvalidConfig
        from streamdp.wire.decoded import checked_option
        from streamdp.wire.feedback import Feedback

        if self.content not in (None, *CONTENTS):
            expected = " | ".join(CONTENTS)
            raise InvalidConfig("--content", "unknown", expected=expected, got=self.content)
        checked_option(self.played, where="--played", allowed=("header", "value"))
        if actions is None or self.content is None or self.content == "losses":
            return None
        return Feedback(
            actions,
            "loss" if self.content == "loss" else "reward",
            "value" if self.played == "value" else "header",
            self.header,
            self._contexts(),
        )

    def _contexts(self) -> Contexts | None:
        """The fields of a topic's contexts, with their levels."""
        from streamdp.core.errors import InvalidConfig

        if isinstance(self.fields, tuple):
            expected = "a configuration, or its context table as JSON: a topic has no columns"
            raise InvalidConfig(
                "--context", "no levels", expected=expected, got=", ".join(self.fields)
            )
        return self.fields


def names_of(fields: Contexts | tuple[str, ...]) -> tuple[str, ...]:
    """The names of fields."""
    return fields if isinstance(fields, tuple) else tuple(of.name for of in fields.fields)


def read_fields(text: str | None, columns: str | None, stream: str) -> tuple[Fields, str | None]:
    """The fields of a log's contexts, and all names of columns.

    >>> read_fields("device,country=region", None, "home")
    (('device', 'country'), 'country=region')
    >>> read_fields('{"device": ["phone"]}', None, "home")[0].cells
    2
    """
    import tomllib

    from streamdp.core.errors import InvalidConfig
    from streamdp.core.evidence.contexts import Contexts

    if text is None:
        return None, columns
    if text.lstrip().startswith("{"):
        return Contexts.read(text), columns
    if Path(text).is_file():
        try:
            table = tomllib.loads(Path(text).read_text())["streams"][stream]["context"]
        except (ValueError, KeyError, TypeError):
            expected = f"a configuration with [streams.{stream}.context] (--stream names it)"
            raise InvalidConfig("--context", "no fields", expected=expected, got=text) from None
        return Contexts.read(table), columns
    pairs = [[part.strip() for part in of.partition("=")] for of in text.split(",")]
    names = tuple(name for name, _, _ in pairs)
    if not all(name and bool(equals) == bool(column) for name, equals, column in pairs):
        expected = "a file, JSON, or field or field=column by commas"
        raise InvalidConfig("--context", "no fields", expected=expected, got=text)
    renamed = [f"{name}={column}" for name, equals, column in pairs if equals]
    return names, ",".join([*([columns] if columns else []), *renamed]) or None


def read_columns(columns: str | None, pscore: str, fields: Sequence[str] = ()) -> dict[str, str]:
    """What a file calls its columns: ``reward=click,action=item_id,propensity=pscore``.

    >>> read_columns("reward=click,propensity=p", "pscore")
    {'reward': 'click', 'pscore': 'p'}
    """
    from streamdp.core.errors import InvalidConfig
    from streamdp.lab.logs.shown_files import COLUMNS, PSCORE

    names = {} if pscore == PSCORE else {PSCORE: pscore}
    for pair in (columns or "").split(",") if columns is not None else ():
        ours, equals, theirs = (part.strip() for part in pair.partition("="))
        name = PSCORE if ours == "propensity" else ours
        if not equals or not theirs or name not in (*COLUMNS, *fields):
            expected = "name=column by commas, of " + ", ".join((*COLUMNS, *fields))
            raise InvalidConfig("--columns", "unknown", expected=expected, got=pair)
        if name in names:
            raise InvalidConfig("--columns", f"names {name} twice", expected="each once", got=pair)
        names[name] = theirs
    return names


def _replayed(
    log: str,
    asked: FeedbackQuestion,
    how: ReadOptions,
    shown: ShownOptions,
    watch: Watch,
    workers: Workers,
) -> FeedbackReplay:
    """Replay a log of shown actions, or one of the losses of all."""
    from streamdp.core.errors import InvalidConfig
    from streamdp.lab.common.words import WORTH_SAYING, duration
    from streamdp.lab.logs import ending, is_topic, open_log
    from streamdp.lab.logs.shown_files import CSV, PSCORE, open_cells, open_shown
    from streamdp.lab.logs.shown_topics import open_topic
    from streamdp.lab.offpolicy.question import replay_losses, replay_shown, seconds_for

    feedback, names = shown.feedback(how.actions), shown.names
    of_files = not is_topic(log) or Path(log).exists()
    of_fields = () if shown.fields is None else names_of(shown.fields)
    chosen = bool(names.keys() - {PSCORE, *of_fields}) or ending(log) == CSV
    if of_files and (chosen or shows(log, names)):
        read = open_shown(log, how, names=names, fields=shown.fields, watch=watch, workers=workers)
        return replay_shown(read, asked, watch=watch)
    if not of_files and "#" in log and shown.content != "losses":
        topic = open_topic(log, how, feedback, pscore=shown.pscore)
        return replay_shown(topic, asked, watch=watch)
    if asked.logged != "auto":
        what = "holds the losses of all actions, and no draws"
        raise InvalidConfig(log, what, expected="no --logged", got=f"--logged {asked.logged}")
    within = None
    if shown.fields is not None and of_files:
        within, beside = open_cells(log, how, shown.fields, names, watch, workers)
        how = replace(how, beside=beside)
    losses = open_log(log, how)
    seconds = seconds_for(losses, asked, within)
    if seconds >= WORTH_SAYING:
        typer.echo(f"every slot is drawn for every seed: {duration(seconds)}", err=True)
    return replay_losses(losses, asked, watch=watch, within=within)


def reading(
    actions: str | None, on_bad: str, wire_format: str, setting: list[str] | None
) -> ReadOptions:
    """How to read a log, by the options that all commands on logs share."""
    from streamdp.core.errors import InvalidConfig
    from streamdp.lab.logs import ReadOptions

    if on_bad not in ("refuse", "null"):
        raise InvalidConfig("--on-bad", "unknown", expected="refuse | null", got=on_bad)
    settings: dict[str, object] = {}
    for setting_ in setting or ():
        name, equals, value = setting_.partition("=")
        if not equals:
            raise InvalidConfig("--set", "no value", expected="name=value", got=setting_)
        settings[name] = value
    format_name, *parts = wire_format.split(",")
    options: dict[str, object] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals:
            raise InvalidConfig("--format", "no value", expected="option=value", got=part)
        options[name] = {"true": True, "false": False}.get(value, value)
    names = tuple(name.strip() for name in actions.split(",")) if actions else None
    if names is not None and (len(names) < 2 or not all(names)):
        expected = "2 or more names by commas"
        raise InvalidConfig("--actions", "too few", expected=expected, got=actions)
    return ReadOptions(
        actions=names,
        on_bad="null" if on_bad == "null" else "refuse",
        format=format_name,
        format_options=options,
        settings=settings,
    )


def _print(replay: Replay) -> None:
    from rich.console import Console
    from rich.table import Table

    from streamdp.lab.commands._tables import add_columns, show
    from streamdp.lab.common.cells import epsilon_text
    from streamdp.lab.common.words import number
    from streamdp.lab.replay.figures import settled_at, share_reached
    from streamdp.lab.replay.reported import lead
    from streamdp.lab.replay.summary import interval, summary
    from streamdp.wire.unprotected import NOT_PRIVATE

    table = Table(
        title=f"{replay.log}: {replay.slots:,} slots, {len(replay.actions)} actions",
        caption=f"{NOT_PRIVATE}. Regret against the best fixed action of each key, mean over seeds"
        " ± 1.96 standard errors; reached: the share of what that action gains over uniform choice."
        " Exact if the log holds every action's loss as it would have been.",
    )
    add_columns(
        table, ("learner", "ε", "regret", "reached", "settled at slot", "charge of an event")
    )
    extra = [replay.leader, *([replay.running] if replay.running else [])]
    for answer in (*replay.answers, *(answer for answer in extra if answer not in replay.answers)):
        at = settled_at(answer, replay.base.points)
        charge = answer.cell.learner.charge
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
    show(table)
    console = Console()
    for sentence in lead(replay).values():
        console.print(sentence, highlight=False)
    for statement in summary(replay):
        console.print(f"[bold]{statement.about}.[/] {statement.says}", highlight=False)


def _print_feedback(replay: FeedbackReplay) -> None:
    """Print the table of all cells, and its conclusion."""
    from rich.console import Console
    from rich.table import Table

    from streamdp.lab.commands._tables import add_columns, show
    from streamdp.lab.common.cells import epsilon_text
    from streamdp.lab.offpolicy.statements import METHODS, charge_text, lead, summary
    from streamdp.wire.unprotected import NOT_PRIVATE

    table = Table(
        title=f"{replay.log}: {replay.findings.slots:,} slots, {len(replay.actions)} actions",
        caption=f"{NOT_PRIVATE}. {METHODS[replay.method].about}.",
    )
    head = _head(replay)
    add_columns(table, ("learner", "ε", *head, "charge of an event"))
    for answer in replay.rejected or replay.answers:
        name, budget = answer.cell.name, epsilon_text(answer.cell.epsilon)
        table.add_row(name, budget, *_figures(answer, replay), charge_text(answer))
    show(table)
    console = Console()
    for sentence in lead(replay).values():
        console.print(sentence, highlight=False)
    for statement in summary(replay):
        console.print(f"[bold]{statement.about}.[/] {statement.says}", highlight=False)


def _head(replay: FeedbackReplay) -> list[str]:
    from streamdp.lab.offpolicy.statements import VALUE_HEADS

    if replay.method == "exact":
        return ["regret", "mean reward"]
    if replay.method == "service":
        return ["blocks", "likeliest the best"]
    if replay.method == "uniform":
        return ["mean reward", "records met"]
    return VALUE_HEADS


def _figures(answer: FeedbackAnswer, replay: FeedbackReplay) -> list[str]:
    from streamdp.lab.common.words import number
    from streamdp.lab.offpolicy.statements import headline, interval, likeliest, value_columns

    if replay.method == "service":
        return [f"{answer.charge.blocks:,}", likeliest(answer, replay.actions)]
    if answer.regret is not None:
        return [number(float(answer.regret.mean())), interval(headline(answer))]
    if answer.accepted is not None:
        return [interval(headline(answer)), f"{int(answer.accepted.mean()):,}"]
    value = answer.value
    assert value is not None
    return value_columns(value)
