"""``streamdp replay --observes feedback``: reads a log, answers, prints a table. NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from streamdp.lab.offpolicy.answers import FeedbackAnswer
    from streamdp.lab.offpolicy.files import Stage
    from streamdp.lab.offpolicy.question import FeedbackQuestion, FeedbackReplay
    from streamdp.lab.replay.sources import ReadOptions
    from streamdp.wire.feedback import Feedback

LEARNERS = "policy_blocks,policy_elimination,policy_weights,thompson"
EPSILONS = "0.25,0.5,1"
SEEDS = 20

CONTENTS = ("reward", "loss", "losses")


def check_observes(log: str, observes: str, names: Mapping[str, str]) -> None:
    """Refuse an unknown kind, and shown actions that would be read as losses of all."""
    from streamdp.core.errors import InvalidConfig, complaint
    from streamdp.lab.offpolicy.files import holds_feedback

    if observes not in ("losses", "feedback"):
        expected = "losses | feedback"
        raise InvalidConfig(complaint("--observes", "unknown", expected=expected, got=observes))
    path = Path(log)
    if observes == "losses" and path.is_file() and holds_feedback(path, names):
        what = "holds what was shown, not the losses of all actions"
        raise InvalidConfig(
            complaint(log, what, expected="--observes feedback", got="--observes losses")
        )


@dataclass(frozen=True, slots=True)
class ShownOptions:
    """How a log says what was shown: as a stream's configuration does, and under which name."""

    content: str | None
    pscore: str
    header: str
    played: str
    columns: str | None = None

    @property
    def names(self) -> Mapping[str, str]:
        """What a file calls its columns."""
        return read_columns(self.columns, self.pscore)

    def feedback(self, actions: tuple[str, ...] | None) -> Feedback | None:
        """The format of a topic's records; None if no option names it."""
        from streamdp.core.errors import InvalidConfig, complaint
        from streamdp.wire.feedback import Feedback
        from streamdp.wire.formats import checked_option

        if self.content not in (None, *CONTENTS):
            expected = " | ".join(CONTENTS)
            raise InvalidConfig(
                complaint("--content", "unknown", expected=expected, got=self.content)
            )
        checked_option(self.played, where="--played", allowed=("header", "value"))
        if actions is None or self.content is None or self.content == "losses":
            return None
        return Feedback(
            actions,
            "loss" if self.content == "loss" else "reward",
            "value" if self.played == "value" else "header",
            self.header,
        )


def read_columns(columns: str | None, pscore: str) -> dict[str, str]:
    """What a file calls its columns: ``reward=click,action=item_id,propensity=pscore``.

    >>> read_columns("reward=click,propensity=p", "pscore")
    {'reward': 'click', 'pscore': 'p'}
    """
    from streamdp.core.errors import InvalidConfig, complaint
    from streamdp.lab.offpolicy.files import COLUMNS, PSCORE

    names = {} if pscore == PSCORE else {PSCORE: pscore}
    for pair in (columns or "").split(",") if columns is not None else ():
        ours, equals, theirs = (part.strip() for part in pair.partition("="))
        name = PSCORE if ours == "propensity" else ours
        if not equals or not theirs or name not in COLUMNS:
            expected = "name=column by commas, of " + ", ".join(COLUMNS)
            raise InvalidConfig(complaint("--columns", "unknown", expected=expected, got=pair))
        if name in names:
            raise InvalidConfig(
                complaint("--columns", f"names {name} twice", expected="each once", got=pair)
            )
        names[name] = theirs
    return names


def question(
    learners: str | None,
    epsilon: str | None,
    seeds: int | None,
    first: int,
    stream: str,
    epoch: int,
    logged: str,
    on_bad: str,
    most_key_bytes: int,
) -> FeedbackQuestion:
    """The question in the options."""
    from streamdp.lab.offpolicy.question import FeedbackQuestion, read_logged
    from streamdp.lab.replay.cells import parse_epsilons
    from streamdp.lab.replay.replaying import seeds_of

    texts = tuple(text.strip() for text in (learners or LEARNERS).split(",") if text.strip())
    return FeedbackQuestion(
        texts,
        parse_epsilons(epsilon or EPSILONS),
        seeds_of(SEEDS if seeds is None else seeds, first=first),
        stream,
        epoch,
        read_logged(logged),
        "leave out" if on_bad == "null" else "refuse",
        most_key_bytes,
    )


def run(
    log: str,
    asked: FeedbackQuestion,
    how: ReadOptions,
    shown: ShownOptions,
    *,
    report: Path | None,
    as_json: Path | None,
) -> None:
    """Replay a log, and print the answer."""
    from streamdp.lab.commands import _progress
    from streamdp.lab.commands._written import write_report
    from streamdp.lab.offpolicy.statements import as_json as figures

    with _progress.watching() as watcher:
        answered = replayed(log, asked, how, shown, watcher.stoppable)
    write_report("feedback", lambda: figures(answered), page_at=report, json_at=as_json)
    if str(as_json) != "-":
        show(answered)


def replayed(
    log: str, asked: FeedbackQuestion, how: ReadOptions, shown: ShownOptions, stage: Stage
) -> FeedbackReplay:
    """Replay a log of shown actions, or one of the losses of all."""
    from streamdp.core.errors import InvalidConfig, complaint
    from streamdp.lab.offpolicy.files import CSV, holds_feedback, open_file
    from streamdp.lab.offpolicy.question import replay_losses, replay_shown, seconds_for
    from streamdp.lab.offpolicy.topics import open_topic
    from streamdp.lab.replay.replaying import WORTH_SAYING, duration
    from streamdp.lab.replay.sources import open_log

    path, feedback, names = Path(log), shown.feedback(how.actions), shown.names
    chosen = shown.columns is not None or path.suffix.lower() == CSV
    if path.is_file() and (chosen or holds_feedback(path, names)):
        return replay_shown(open_file(path, how, names=names, stage=stage), asked, stage=stage)
    if not path.exists() and "#" in log and shown.content != "losses":
        topic = open_topic(log, how, feedback, pscore=shown.pscore)
        return replay_shown(topic, asked, stage=stage)
    if asked.logged != "auto":
        what = "holds the losses of all actions, and no draws"
        raise InvalidConfig(
            complaint(log, what, expected="no --logged", got=f"--logged {asked.logged}")
        )
    losses = open_log(log, how)
    seconds = seconds_for(losses, asked)
    if seconds >= WORTH_SAYING:
        typer.echo(f"every slot is drawn for every seed: {duration(seconds)}", err=True)
    return replay_losses(losses, asked, stage=stage)


def show(replay: FeedbackReplay) -> None:
    """Print the table of all cells, and its conclusion."""
    from rich.console import Console
    from rich.table import Table

    from streamdp.lab.offpolicy.statements import METHODS, charge_text, lead, summary
    from streamdp.lab.replay.cells import epsilon_text
    from streamdp.wire.unprotected import NOT_PRIVATE

    table = Table(
        title=f"{replay.log}: {replay.findings.slots:,} slots, {len(replay.actions)} actions",
        caption=f"{NOT_PRIVATE}. {METHODS[replay.method].about}.",
    )
    head = _head(replay)
    for name in ("learner", "ε", *head, "charge of an event"):
        table.add_column(name, justify="left" if name == "learner" else "right", overflow="fold")
    for answer in replay.rejected or replay.answers:
        name, budget = answer.cell.text, epsilon_text(answer.cell.epsilon)
        table.add_row(name, budget, *_figures(answer, replay), charge_text(answer))
    console = Console()
    console.print(table)
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
    from streamdp.lab.offpolicy.statements import headline, interval, likeliest, value_columns
    from streamdp.lab.replay.summary import number

    if replay.method == "service":
        return [f"{answer.charge.blocks:,}", likeliest(answer, replay.actions)]
    if answer.regret is not None:
        return [number(float(answer.regret.mean())), interval(headline(answer))]
    if answer.accepted is not None:
        return [interval(headline(answer)), f"{int(answer.accepted.mean()):,}"]
    value = answer.value
    assert value is not None
    return value_columns(value)
