"""``streamdp watch``: follows the actions as they are published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamdp.cli._printable import is_asked, key_word, word
from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    OneStream,
    SingleBroker,
    actions_of,
    chosen,
    listed,
    lists_of,
    load,
    opened,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamdp.ports import StreamTopics, Technology
    from streamdp.wire.lines import LineOfKey, ListLine

    Show = Callable[[LineOfKey | ListLine], bool]

MOST_TOLD = 3
"""Actions of a policy that a line shows."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch")(watch)


def watch(
    stream: OneStream = None,
    key: Annotated[list[str] | None, typer.Option(help="Only these keys.")] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print each key's action in force, then exit.")
    ] = False,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Follow a stream's actions: published lines, nothing private.

    The stream's newest list comes first, if there is one: what readers may show.

    Examples:
    streamdp watch --stream home
    streamdp watch --stream home --key fr --once --json
    """
    configuration = load(config)
    topics = chosen(configuration, stream)
    technology = opened(configuration, single_broker)
    wanted = frozenset(key or ())

    def show(line: LineOfKey | ListLine) -> bool:
        """Print a line at once, if it was asked for; the stream's list always."""
        from streamdp.wire.lines import ListLine, key_bytes

        if wanted and not isinstance(line, ListLine):
            name = key_bytes(line)
            if not any(is_asked(name, one) for one in wanted):
                return False
        if as_json:
            import msgspec

            typer.echo(msgspec.json.encode(line))
        else:
            typer.echo(_in_words(line))
        return True

    try:
        wait_for(lambda: (_once if once else _follow)(technology, topics, show))
    except KeyboardInterrupt:
        return


async def _follow(technology: Technology, topics: StreamTopics, show: Show) -> None:
    """The stream's list, if there is one, and only then actions: it may keep readers from them."""
    from asyncio import TaskGroup

    first = await listed(technology, topics)
    if first is not None:
        show(first)

    async def lists() -> None:
        async for line in lists_of(technology, topics, follow=True):
            if first is None or line.ordinal > first.ordinal:
                show(line)

    async def actions() -> None:
        async for line in actions_of(technology, topics, follow=True):
            show(line)

    async with TaskGroup() as both:
        both.create_task(lists())
        both.create_task(actions())


async def _once(technology: Technology, topics: StreamTopics, show: Show) -> None:
    """Each key's action in force: of the latest epoch, then most slots, then lowest partition.

    Before them the stream's list, if it keeps readers from any of it.
    """
    from streamdp.wire.lines import key_bytes

    latest: dict[tuple[bytes | None, int], LineOfKey] = {}
    mode = await listed(technology, topics)
    async for line in actions_of(technology, topics):
        latest[key_bytes(line), line.partition] = line
    lines: dict[bytes | None, LineOfKey] = {}
    for (name, _), of_key in sorted(latest.items(), key=lambda item: _rank(item[1]), reverse=True):
        lines.setdefault(name, of_key)
    if mode is not None and (mode.paused or not mode.live):
        show(mode)
    shown = [show(lines[name]) for name in sorted(lines, key=lambda key: key or b"")]
    if not any(shown):
        typer.echo("nothing is published of what was asked for", err=True)


def _rank(line: LineOfKey) -> tuple[int, int, int]:
    return line.epoch, line.stop, -line.partition


def _in_words(line: LineOfKey | ListLine) -> str:
    """A line as text; of a policy its likeliest actions."""
    from msgspec import UNSET

    from streamdp.client.table import names_of
    from streamdp.core.evidence.policy import PARTS, policy_of
    from streamdp.wire.lines import ListLine, PolicyLine, from_base64, key_bytes

    if isinstance(line, ListLine):
        used = "each key's own action" if line.live else "the fallback action"
        left = [] if line.removed is UNSET else line.removed
        away = {"paused": [name for name in line.paused if name not in left], "removed": left}
        said = [f"; {what}: {', '.join(map(word, names))}" for what, names in away.items() if names]
        at = f"{line.at:%Y-%m-%dT%H:%M:%SZ}"
        return f"list {line.ordinal} of {at}: all readers use {used}{''.join(said)}"
    if isinstance(line, PolicyLine):
        names = names_of(line, salt="")
        actions, cells = line.actions, names.cells  # a column without a name has no parts
        parts = from_base64(line.policy, "policy")
        policies = policy_of(parts, actions=len(actions), cells=cells).reshape(cells, -1)
        means = policies.sum(axis=0, dtype="int64") / (cells * PARTS)  # of its cells, all alike
        likeliest = means.argsort(kind="stable")[::-1][:MOST_TOLD].tolist()
        text = ", ".join(f"{word(actions[arm])} {means[arm]:.1%}" for arm in likeliest)
        text += "" if cells == 1 else f" on average over {cells} cells"
    else:
        text = word(line.action)
    name = key_word(key_bytes(line))
    return f"{name:<24} {text:<24} block {line.block}, in force from slot {line.stop}"
