"""``streamdp replay``: what learners and budgets would have achieved on a log. NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from streamdp.core.evidence.contexts import Contexts
    from streamdp.lab.logs import ReadOptions
    from streamdp.lab.logs.shown_files import Fields
    from streamdp.lab.logs.stages import Watch
    from streamdp.lab.offpolicy.question import FeedbackQuestion, FeedbackReplay
    from streamdp.lab.workers import Workers
    from streamdp.wire.feedback import Feedback

CONTENTS = ("reward", "loss", "losses")

_LOSSES_A_ROW, _LOSSES_A_DRAW = 512, 16
"""A row of feedback takes as long to read as so many losses, and to play by a learner and seed."""

_BYTES_A_ROW = 128
"""Of a file that does not say how many rows it has."""

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
    str, typer.Option(help="Budgets by commas; inf is without privacy (of losses only).")
]

PlayedOption = Annotated[
    str, typer.Option(help="Of a topic: where the action stands, header or value.")
]

HeaderOption = Annotated[str, typer.Option(help="Of a topic: the header of the shown action.")]

MostKeyBytesOption = Annotated[
    int, typer.Option(min=1, help="With --logged service: the stream's limits.most_key_bytes.")
]

LedgerOption = Annotated[
    Path | None,
    typer.Option(
        help="Of a service's records: a file of `streamdp ledger show --json`, which says when the"
        " stream's owners took which list."
    ),
]

ColumnsOption = Annotated[
    str | None,
    typer.Option(
        help="Of a file: what it calls its columns, as in"
        " reward=click,action=item_id,propensity=pscore."
    ),
]

PscoreOption = Annotated[str, typer.Option(help="The column or header of propensities.")]

ContentOption = Annotated[
    str | None, typer.Option(help="Of a topic: reward, loss, or losses (of all).")
]

LoggedDraws = Annotated[
    str,
    typer.Option(
        help="How shown actions were drawn: auto (by their propensities),"
        " propensities, uniform, or service (what one released, without values)."
    ),
]


ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Contexts: a configuration (of the stream --stream), its context table"
        " as JSON, or columns as in device,country=region whose values are levels.",
    ),
]

StreamOption = Annotated[
    str, typer.Option(help="The name of the stream whose seeded bits are drawn.")
]


MostOption = Annotated[
    str | None,
    typer.Option(
        "--most", help="Of rewards in a unit: the largest that counts, as the stream's `most`."
    ),
]

ExecutorOption = Annotated[
    str,
    typer.Option(
        help="Who reads files: process (this one), pool or pool:PROCESSES (of this machine),"
        " dask:ADDRESS (a cluster), or auto: a pool for long logs. No answer depends on it."
    ),
]

SeedsOption = Annotated[int, typer.Option(min=1, help="How many seeds.")]

FirstSeedOption = Annotated[int, typer.Option(min=0, help="The first of the seeds.")]

ReportOption = Annotated[Path | None, typer.Option(help="Write the report's page here.")]

JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write all figures here; - prints them.")
]

ActionsOption = Annotated[
    str | None, typer.Option(help="Names of the actions by commas, where the log has none.")
]

BadOption = Annotated[
    str,
    typer.Option("--on-bad", help="Rows of a file that cannot be used: refuse, or null (as live)."),
]

FormatOption = Annotated[
    str, typer.Option("--format", help="A topic's wire format: NAME, or NAME,option=value,… .")
]

SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="name=value for a topic's transport.")
]

EpochOption = Annotated[int, typer.Option(min=1, help="The stream's epoch, for the same bits.")]


def register(app: typer.Typer) -> None:
    """Add the two commands."""
    group = typer.Typer(no_args_is_help=True, help=(
        "Replay a log with a grid of learners, budgets and seeds. NOT PRIVATE."
    ))  # fmt: skip
    group.command("losses")(losses)
    group.command("shown")(shown)
    app.add_typer(group, name="replay")


def losses(
    log: LogArgument,
    learners: LearnersOption = None,
    epsilon: EpsilonsOption = "0.1,0.5,1,inf",
    seeds: SeedsOption = 100,
    first_seed: FirstSeedOption = 0,
    report: ReportOption = None,
    as_json: JsonOption = None,
    actions: ActionsOption = None,
    on_bad: BadOption = "refuse",
    wire_format: FormatOption = "json",
    setting: SetOption = None,
    stream: StreamOption = "replay",
    epoch: EpochOption = 1,
    executor: ExecutorOption = "auto",
) -> None:
    """Replay a log of the losses of all actions, with learners that see them. NOT PRIVATE.

    The log is read as the service would have read it: finite losses outside [0, 1] are clipped, and
    the report says in how many slots (`streamdp send` refuses them).
    """
    from streamdp.core.errors import InvalidConfig
    from streamdp.lab.commands._progress import watching
    from streamdp.lab.commands._written import check_places
    from streamdp.lab.commands._written import report as shown_as
    from streamdp.lab.common.cells import USUAL_LEARNERS, parse_candidates, parse_epsilons
    from streamdp.lab.logs import open_log
    from streamdp.lab.replay.replaying import Question, as_read, costs, replay_log, seeds_of
    from streamdp.lab.replay.reported import as_json as figures
    from streamdp.lab.workers import workers_of

    check_places(report, as_json)
    if shows(log):
        what = "holds what was shown, not the losses of all actions"
        raise InvalidConfig(log, what, expected="replay shown", got="replay losses")
    how, budgets = reading(actions, on_bad, wire_format, setting), parse_epsilons(epsilon)
    candidates, which = parse_candidates(learners or USUAL_LEARNERS), seeds_of(seeds, first_seed)
    question = Question(candidates, budgets, which, _named(stream), epoch)
    source = open_log(log, how)
    size = as_read(source, question) if len(source.parts) > 1 else 0
    for cost in costs(source, question):
        typer.echo(f"cost: {cost}", err=True)
    with watching() as watch, workers_of(executor, size) as workers:
        replay = replay_log(source, question, watch=watch, workers=workers)
    shown_as("losses", figures(replay), page_at=report, json_at=as_json)


def shown(
    log: LogArgument,
    learners: LearnersOption = None,
    epsilon: EpsilonsOption = "0.25,0.5,1",
    seeds: SeedsOption = 20,
    first_seed: FirstSeedOption = 0,
    report: ReportOption = None,
    as_json: JsonOption = None,
    actions: ActionsOption = None,
    on_bad: BadOption = "refuse",
    wire_format: FormatOption = "json",
    setting: SetOption = None,
    stream: StreamOption = "replay",
    epoch: EpochOption = 1,
    logged: LoggedDraws = "auto",
    content: ContentOption = None,
    most_key_bytes: MostKeyBytesOption = 1024,
    ledger: LedgerOption = None,
    columns: ColumnsOption = None,
    pscore: PscoreOption = "pscore",
    header: HeaderOption = "streamdp-action",
    played: PlayedOption = "header",
    contexts: ContextOption = None,
    executor: ExecutorOption = "auto",
    most: MostOption = None,
) -> None:
    """Say what learners would have won that see only what was shown. NOT PRIVATE.

    Logs of all losses are played exactly, logs with propensities are weighted, uniform draws are
    replayed by rejection; other logs are refused.
    """
    from streamdp.lab.commands._progress import watching
    from streamdp.lab.commands._written import check_places
    from streamdp.lab.commands._written import report as shown_as
    from streamdp.lab.common.cells import parse_epsilons, usual_policies
    from streamdp.lab.logs import bytes_of, rows_in
    from streamdp.lab.logs.taken_lists import NO_LISTS, read_taken_lists
    from streamdp.lab.offpolicy.question import FeedbackQuestion, read_logged
    from streamdp.lab.offpolicy.statements import as_json as figures
    from streamdp.lab.replay.replaying import seeds_of
    from streamdp.lab.workers import workers_of

    check_places(report, as_json)
    fields, columns = read_fields(contexts, columns, stream)
    largest = None if most is None else _largest(most)
    options = ShownOptions(content, pscore, header, played, columns, fields, largest)
    how, budgets = reading(actions, on_bad, wire_format, setting), parse_epsilons(epsilon)
    texts = learners or usual_policies(contexts=contexts is not None)
    taken = NO_LISTS
    if ledger is not None:
        taken = read_taken_lists(ledger, stream, epoch, configured=how.actions)
        how = replace(how, actions=taken.names or how.actions)
    candidates = [text.strip() for text in texts.split(",") if text.strip()]
    question = FeedbackQuestion(
        tuple(map(taken.learner, candidates) if logged == "service" else candidates),
        budgets,
        seeds_of(seeds, first_seed),
        _named(stream),
        epoch,
        read_logged(logged),
        "leave out" if on_bad == "null" else "refuse",
        most_key_bytes,
        taken,
    )
    rows = rows_in(log) or bytes_of(log) // _BYTES_A_ROW
    plays = len(question.learners) * len(budgets) * len(question.seeds)
    size = rows * (_LOSSES_A_ROW + _LOSSES_A_DRAW * plays)
    with watching() as watch, workers_of(executor, size) as workers:
        replay = _replayed(log, question, how, options, watch, workers)
    if most is not None:
        typer.echo(
            f"rewards are shares of {most} (--most): times {most} they are amounts", err=True
        )
    shown_as("feedback", figures(replay), page_at=report, json_at=as_json)


def shows(log: str, names: Mapping[str, str] = MappingProxyType({})) -> bool:
    """Whether a log is of files that hold what was shown, by the first of them."""
    from streamdp.lab.logs import files_of, is_topic
    from streamdp.lab.logs.shown_files import holds_feedback

    topic = is_topic(log) and not Path(log).exists()
    return not topic and holds_feedback(files_of(log)[0], names)


def _largest(most: str) -> Fraction:
    """The largest reward that counts."""
    from streamdp.core.errors import InvalidConfig
    from streamdp.service.config.tables import read_most

    try:
        return read_most(most)
    except InvalidConfig as error:
        raise error.at("--most") from None


def _named(stream: str) -> str:
    """The name of a stream."""
    from streamdp.core.errors import InvalidConfig

    if not stream:
        raise InvalidConfig("--stream", "no name", expected="a stream's", got="nothing")
    return stream


@dataclass(frozen=True, slots=True)
class ShownOptions:
    """How a log says what was shown: as a stream's configuration does, and under which name."""

    content: str | None
    pscore: str
    header: str
    played: str
    columns: str | None = None
    fields: Fields = None
    most: Fraction | None = None

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
            self.most,
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
    if of_files and asked.taken.lists and asked.logged != "service":
        expected = "--logged service, or a topic: files have no filters"
        raise InvalidConfig("--ledger", "of a file", expected=expected, got=log)
    if of_files and (chosen or shows(log, names)):
        read = open_shown(
            log, how, names=names, fields=shown.fields, most=shown.most, watch=watch,
            workers=workers,
        )  # fmt: skip
        return replay_shown(read, asked, watch=watch, workers=workers)
    if not of_files and "#" in log and shown.content != "losses":
        topic = open_topic(log, how, feedback, pscore=shown.pscore, taken=asked.taken)
        return replay_shown(topic, asked, watch=watch, workers=workers)
    if shown.most is not None:
        what = "holds the losses of all actions, and no rewards"
        raise InvalidConfig(log, what, expected="no --most", got=f"--most {shown.most}")
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
    return replay_losses(losses, asked, watch=watch, within=within, workers=workers)


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
