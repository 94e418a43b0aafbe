"""``streamdp actions``: which of a stream's actions readers may show; pauses and resumes them."""

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
    from collections.abc import Sequence

    from streamdp.wire.lines import ListLine


class Step(StrEnum):
    """What happens to the named actions."""

    PAUSE = "pause"
    RESUME = "resume"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("actions")(actions)


def actions(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    step: Annotated[
        Step | None, typer.Argument(help="pause, or resume; without it, print the list.")
    ] = None,
    name: Annotated[list[str] | None, typer.Argument(help="The actions' names.")] = None,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Show which actions readers may show, pause some at once, or resume them.

    Publishes the stream's list, with its time and no reason. The policies of a feedback stream
    follow it, key by key, from the next block's end on; charges are not affected. Whoever
    decides this by what is NOT PRIVATE leaves the guarantee.

    Examples:
    streamdp actions home
    streamdp actions home pause carousel
    streamdp actions home resume carousel
    """
    from streamdp.core.errors import InvalidConfig
    from streamdp.wire.revising import with_paused, with_resumed

    configuration = load(config)
    topics = chosen(configuration, stream)
    names, configured = name or [], list(configuration.streams[topics.stream].actions)
    if (step is None) != (not names):
        raise InvalidConfig(
            "actions", "names without a step, or a step without names",
            expected="pause NAME …, resume NAME …, or neither", got=step or ", ".join(names),
        )  # fmt: skip
    technology = opened(configuration, single_broker)
    if step is None:
        line = wait_for(lambda: listed(technology, topics))
    else:
        change = partial(with_paused if step is Step.PAUSE else with_resumed, configured, names)
        line = wait_for(lambda: revised(technology, topics, configured, change))
    print_report(_report(topics.stream, configured, line), _text, as_json=as_json)


def _report(stream: str, configured: Sequence[str], line: ListLine | None) -> dict[str, Any]:
    paused = [] if line is None else line.paused
    return {
        "stream": stream,
        "list": 0 if line is None else line.ordinal,
        "at": None if line is None else f"{line.at:%Y-%m-%dT%H:%M:%SZ}",
        "actions": [{"action": name, "paused": name in paused} for name in configured],
        "others_paused": [name for name in paused if name not in configured],
    }


def _text(report: dict[str, Any]) -> Iterator[str]:
    since = f" of {report['at']}" if report["at"] else ""
    yield f"{report['stream']}: list {report['list']}{since}"
    for of in report["actions"]:
        yield f"  {word(of['action'])}{'  paused' if of['paused'] else ''}"
    for name in report["others_paused"]:
        yield f"  {word(name)}  paused, and not configured"
