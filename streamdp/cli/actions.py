"""``streamdp actions``: which actions readers of a stream may show, and changes of that."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdp.cli._printable import word
from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    SingleBroker,
    chosen,
    listed,
    load,
    opened,
    print_report,
    revised,
    wait_for,
)

if TYPE_CHECKING:
    from streamdp.wire.lines import ListLine
    from streamdp.wire.revising import Configured


class Step(StrEnum):
    """What happens to the named actions."""

    ADD = "add"
    PAUSE = "pause"
    RESUME = "resume"
    REMOVE = "remove"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("actions")(actions)


def actions(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    step: Annotated[
        Step | None,
        typer.Argument(help="add, pause, resume or remove; without it, print the list."),
    ] = None,
    name: Annotated[list[str] | None, typer.Argument(help="The actions' names.")] = None,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Show which actions readers may show; add some at once, pause, resume or remove them.

    A feedback stream with `room` has columns for actions that come within an epoch: it goes on
    without a restart. Its configuration keeps the names that the epoch began with.

    Publishes the stream's list, with its time and no reason. The policies of a feedback stream
    follow it, key by key, from the next block's end on; charges are not affected. Whoever
    decides this by what is NOT PRIVATE leaves the guarantee.

    Examples:
    streamdp actions home
    streamdp actions home add banner-2
    streamdp actions home pause carousel
    streamdp actions home resume carousel
    """
    from streamdp.core.errors import InvalidConfig
    from streamdp.wire.revising import with_added, with_paused, with_removed, with_resumed

    configuration = load(config)
    topics = chosen(configuration, stream)
    names, configured = name or [], configuration.streams[topics.stream].configured
    if (step is None) != (not names):
        raise InvalidConfig(
            "actions", "names without a step, or a step without names",
            expected="add, pause, resume or remove with a NAME …, or neither",
            got=step or ", ".join(names),
        )  # fmt: skip
    technology = opened(configuration, single_broker)
    if step is None:
        line = wait_for(lambda: listed(technology, topics))
    else:
        steps = {
            Step.ADD: with_added, Step.PAUSE: with_paused,
            Step.RESUME: with_resumed, Step.REMOVE: with_removed,
        }  # fmt: skip
        change = partial(steps[step], configured, names)
        line = wait_for(lambda: revised(technology, topics, configured, change))
    print_report(_report(configured, line), _text, as_json=as_json)


def _report(configured: Configured, line: ListLine | None) -> dict[str, Any]:
    from msgspec import UNSET

    paused = [] if line is None else line.paused
    removed = [] if line is None or line.removed is UNSET else line.removed
    actions = configured.names(line)
    left = configured.room + len(configured.actions) - len(actions)
    return {
        "stream": configured.stream,
        "list": 0 if line is None else line.ordinal,
        "at": None if line is None else f"{line.at:%Y-%m-%dT%H:%M:%SZ}",
        "actions": [
            {"action": name, "paused": name in paused} for name in actions if name not in removed
        ],
        "removed": [name for name in actions if name in removed],
        "room": left,
        "others_paused": [name for name in paused if name not in actions and name not in removed],
    }


def _text(report: dict[str, Any]) -> Iterator[str]:
    since = f" of {report['at']}" if report["at"] else ""
    yield f"{report['stream']}: list {report['list']}{since}"
    for of in report["actions"]:
        yield f"  {word(of['action'])}{'  paused' if of['paused'] else ''}"
    for name in report["removed"]:
        yield f"  {word(name)}  removed"
    if report["room"]:
        yield f"  room for {report['room']} more"
    for name in report["others_paused"]:
        yield f"  {word(name)}  paused, and not configured"
