"""``streamdp watch``: follows the actions as they are published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from streamdp.cli._printable import is_asked, key_word, word
from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    OneStream,
    SingleBroker,
    chosen,
    load,
    opened,
    wait_for,
)

if TYPE_CHECKING:
    from streamdp.ports import Published, StreamTopics, Technology
    from streamdp.wire.lines import InForce, PublishedLine


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

    Examples:
    streamdp watch --stream home
    streamdp watch --stream home --key fr --once --json
    """
    configuration = load(config)
    topics = chosen(configuration, stream)
    technology = opened(configuration, single_broker)
    printer = _Printer(frozenset(key or ()), as_json)
    try:
        wait_for(lambda: _once(technology, topics, printer) if once
                 else _follow(technology, topics, printer))  # fmt: skip
    except KeyboardInterrupt:
        return


async def _follow(technology: Technology, topics: StreamTopics, printer: _Printer) -> None:
    from streamdp.ports import closing

    async with closing(technology.publications()) as publications:
        async for batch in publications.actions(topics, follow=True):
            for line in _lines(batch):
                printer.show(line)


async def _once(technology: Technology, topics: StreamTopics, printer: _Printer) -> None:
    """Each key's action in force: of the latest epoch, then most slots, then lowest partition.

    Before them the stream's mode, unless it is live.
    """
    from streamdp.ports import closing
    from streamdp.wire.lines import ModeLine, key_bytes

    latest: dict[tuple[bytes | None, int], InForce] = {}
    mode = None
    async with closing(technology.publications()) as publications:
        async for batch in publications.actions(topics, follow=False):
            for line in _lines(batch):
                if isinstance(line, ModeLine):
                    mode = line
                else:
                    latest[key_bytes(line), line.partition] = line
    lines: dict[bytes | None, InForce] = {}
    for (name, _), line in sorted(latest.items(), key=lambda item: _rank(item[1]), reverse=True):
        lines.setdefault(name, line)
    if mode is not None and not mode.live:
        printer.show(mode)
    shown = [printer.show(lines[name]) for name in sorted(lines, key=lambda key: key or b"")]
    if not any(shown):
        typer.echo("nothing is published of what was asked for", err=True)


def _rank(line: InForce) -> tuple[int, int, int]:
    return line.epoch, line.stop, -line.partition


def _lines(batch: Sequence[Published]) -> list[PublishedLine]:
    from streamdp.wire.published import decode_published

    return [decode_published(record.value) for record in batch]


class _Printer:
    """Prints the lines of the keys that were asked for."""

    def __init__(self, keys: frozenset[str], as_json: bool) -> None:
        self._keys = keys
        self._as_json = as_json

    def show(self, line: PublishedLine) -> bool:
        """Print a line at once, if it was asked for; the stream's own always."""
        from streamdp.wire.lines import ModeLine, key_bytes

        key = None if isinstance(line, ModeLine) else key_bytes(line)
        if (
            self._keys
            and not isinstance(line, ModeLine)
            and not any(is_asked(key, asked) for asked in self._keys)
        ):
            return False
        if self._as_json:
            import msgspec

            typer.echo(msgspec.json.encode(line))
            return True
        if isinstance(line, ModeLine):
            used = "each key's own action" if line.live else "the fallback action"
            typer.echo(f"since {line.at:%Y-%m-%dT%H:%M:%SZ} all readers use {used}")
            return True
        text = self._in_words(line)
        typer.echo(
            f"{key_word(key):<24} {text:<24} block {line.block}, in force from slot {line.stop}"
        )
        return True

    def _in_words(self, line: InForce) -> str:
        """The action in force, or the likeliest ones of a policy."""
        from streamdp.client.table import names_of
        from streamdp.core.evidence.policy import PARTS, policy_of
        from streamdp.wire.lines import PolicyLine, from_base64

        if not isinstance(line, PolicyLine):
            return word(line.action)
        names = names_of(line, salt="")
        actions, cells = names.actions, names.cells
        parts = from_base64(line.policy, "policy")
        policies = policy_of(parts, actions=len(actions), cells=cells).reshape(cells, -1)
        means = policies.sum(axis=0, dtype="int64") / (cells * PARTS)  # of its cells, all alike
        likeliest = means.argsort(kind="stable")[::-1][:MOST_TOLD].tolist()
        text = ", ".join(f"{word(actions[arm])} {means[arm]:.1%}" for arm in likeliest)
        return text if cells == 1 else f"{text} on average over {cells} cells"
