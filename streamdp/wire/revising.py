"""Makes the next list of a stream: pauses actions, or resumes them.

The functions are pure: a writer of the catalogue (`ports.Administrator.revise`) calls them with the
list that is there, so that two writers at once lose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from streamdp.core.errors import InvalidConfig
from streamdp.wire.lines import ACTION_SCHEMA, LIVE, ListLine
from streamdp.wire.published import decode_list, encode_list


def next_list(
    before: bytes | None,
    *,
    stream: str,
    at: datetime,
    actions: Sequence[str],
    paused: Callable[[Sequence[str]], Sequence[str]] = list,
    mode: str | None = None,
) -> bytes:
    """The record after this one: with other names paused, or in another mode."""
    known = None if before is None else decode_list(before)
    line = ListLine(
        schema=ACTION_SCHEMA,
        stream=stream,
        ordinal=1 if known is None else known.ordinal + 1,
        at=at,
        mode=mode or (LIVE if known is None else known.mode),
        actions=list(actions),
        paused=list(paused([] if known is None else known.paused)),
    )
    return encode_list(line)


def with_paused(
    configured: Sequence[str], names: Sequence[str], paused: Sequence[str]
) -> list[str]:
    """The paused names, with these among them; one of the configured must be left.

    >>> with_paused(["a", "b", "c"], ["c"], ["a"])
    ['a', 'c']
    """
    after = list(dict.fromkeys([*paused, *names]))
    _check_known(names, configured, configured)
    if set(configured) <= set(after):
        raise InvalidConfig(
            "actions", "all would be paused",
            expected="one that is not; `streamdp mode` switches to the fallback action",
            got=", ".join(names),
        )  # fmt: skip
    return after


def with_resumed(
    configured: Sequence[str], names: Sequence[str], paused: Sequence[str]
) -> list[str]:
    """The paused names without these, which may be of an earlier configuration.

    >>> with_resumed(["a", "b"], ["gone"], ["a", "gone"])
    ['a']
    """
    _check_known(names, [*configured, *paused], configured)
    return [name for name in paused if name not in names]


def _check_known(names: Sequence[str], known: Sequence[str], configured: Sequence[str]) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        expected, got = f"some of {', '.join(configured)}", ", ".join(map(repr, unknown))
        raise InvalidConfig("actions", "unknown names", expected=expected, got=got)
