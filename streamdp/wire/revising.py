"""Makes the next list of a stream: adds actions, pauses them, resumes them, or removes them.

The functions are pure: a writer of the catalogue (`ports.Administrator.revise`) calls them with the
list that is there, so that two writers at once lose nothing.

The configuration names the actions that an epoch begins with. Those that are added get the spare
columns of the stream (`room`), one after the other, for the rest of the epoch: nothing takes a
column from a name again. So what leaves is no longer shown, may come back to its own column, and
makes no room. A configuration that begins a new epoch says which names there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec import UNSET

from streamdp.core.errors import InvalidConfig
from streamdp.core.kinds.names import MOST_NAME_BYTES, is_name
from streamdp.wire.lines import ACTION_SCHEMA, LIVE, ROOM_SCHEMA, ListLine
from streamdp.wire.published import decode_list, encode_list

LONGEST_NAME = '"' * MOST_NAME_BYTES
"""One that takes most in a line."""


class Configured(NamedTuple):
    """What a configuration says of a stream's actions."""

    stream: str
    actions: Sequence[str]
    epoch: int
    room: int = 0

    def names(self, line: ListLine | None) -> Sequence[str]:
        """The names that have a column by the newest list, if there is one."""
        return (() if line is None else line.named_in(self.epoch)) or self.actions


class Listed(NamedTuple):
    """The names of a list."""

    actions: Sequence[str]  # that have a column, in their order
    paused: Sequence[str] = ()  # not shown now; some may be of an earlier epoch
    removed: Sequence[str] = ()  # those of them that have left


Change = Callable[[Listed], Listed]


def unchanged(listed: Listed) -> Listed:
    """The same names."""
    return listed


def next_list(
    before: bytes | None,
    configured: Configured,
    *,
    at: datetime,
    change: Change = unchanged,
    mode: str | None = None,
) -> bytes:
    """The record after this one: with other names, or in another mode."""
    known = None if before is None else decode_list(before)
    listed = change(_listed(known, configured))
    added, there = len(listed.actions) - len(configured.actions), listed.removed
    line = ListLine(
        schema=ROOM_SCHEMA if added or there else ACTION_SCHEMA,
        stream=configured.stream,
        ordinal=1 if known is None else known.ordinal + 1,
        at=at,
        mode=mode or (LIVE if known is None else known.mode),
        actions=list(listed.actions),
        paused=list(listed.paused),
        removed=list(there) or UNSET,
        epoch=configured.epoch if added else UNSET,
    )
    return encode_list(line)


def _listed(known: ListLine | None, configured: Configured) -> Listed:
    """The names that are there; a new epoch has those of its configuration."""
    actions = list(configured.actions)
    if known is None:
        return Listed(actions)
    if known.epoch is not UNSET and known.epoch > configured.epoch:
        raise InvalidConfig(
            f"stream {configured.stream}", "the configuration is of an earlier epoch than its list",
            expected=f"epoch {known.epoch} or a later one", got=configured.epoch,
        )  # fmt: skip
    if known.epoch == configured.epoch:
        if known.actions[: len(actions)] != actions:
            raise InvalidConfig(
                f"stream {configured.stream}", "its actions were edited within an epoch",
                expected=f"those that it began with ({', '.join(known.actions)} are there by now),"
                f" and `streamdp actions {configured.stream} add NAME`, or a new epoch",
                got=", ".join(actions),
            )  # fmt: skip
        actions = known.actions
    left = [] if known.removed is UNSET else known.removed
    removed = [name for name in left if name in actions]
    paused = [name for name in known.paused if name not in left or name in removed]
    return Listed(actions, paused, removed)


def with_added(configured: Configured, names: Sequence[str], listed: Listed) -> Listed:
    """With these names too; one that was removed is back.

    >>> of = Configured("home", ["a", "b"], epoch=1, room=1)
    >>> with_added(of, ["c"], Listed(["a", "b"]))
    Listed(actions=['a', 'b', 'c'], paused=(), removed=())
    >>> with_added(of, ["b"], Listed(["a", "b"], ["b"], ["b"]))
    Listed(actions=['a', 'b'], paused=[], removed=[])
    """
    for name in names:
        if not is_name(name):
            expected = f"1 … {MOST_NAME_BYTES} bytes, without control characters"
            got = f"{len(name.encode())} bytes"
            raise InvalidConfig("actions", "not a name", expected=expected, got=got)
    actions = list(dict.fromkeys([*listed.actions, *names]))
    columns = len(configured.actions) + configured.room
    if len(actions) > columns:
        taken = len(listed.actions) - len(configured.actions)
        raise InvalidConfig(
            "actions", "no room" if configured.room else "the stream has no room",
            expected=f"at most {columns - len(listed.actions)} new ones in this epoch (room ="
            f" {configured.room}, of which {taken} are taken); a new epoch, with the names in its"
            " configuration, carries over by name",
            got=f"{len(actions) - len(listed.actions)} new",
        )  # fmt: skip
    removed = [name for name in listed.removed if name not in names]
    back = {*listed.removed} - {*removed}
    if not back:
        return listed._replace(actions=actions)
    return Listed(actions, [name for name in listed.paused if name not in back], removed)


def with_paused(configured: Configured, names: Sequence[str], listed: Listed) -> Listed:
    """With these names paused too; one must be left.

    >>> of = Configured("home", ["a", "b", "c"], epoch=1)
    >>> with_paused(of, ["c"], Listed(["a", "b", "c"], ["a"])).paused
    ['a', 'c']
    """
    after = list(dict.fromkeys([*listed.paused, *names]))
    _check_known(names, listed.actions, listed)
    if set(listed.actions) <= set(after):
        raise InvalidConfig(
            "actions", "all would be paused",
            expected="one that is not; `streamdp mode` switches to the fallback action",
            got=", ".join(names),
        )  # fmt: skip
    return listed._replace(paused=after)


def with_resumed(configured: Configured, names: Sequence[str], listed: Listed) -> Listed:
    """Without these among the paused; they may be of an earlier configuration.

    >>> of = Configured("home", ["a", "b"], epoch=1)
    >>> with_resumed(of, ["gone"], Listed(["a", "b"], ["a", "gone"])).paused
    ['a']
    """
    _check_known(names, [*listed.actions, *listed.paused], listed)
    gone = sorted(set(names) & set(listed.removed))
    if gone:
        expected = f"`streamdp actions {configured.stream} add {gone[0]}`"
        raise InvalidConfig("actions", "was removed", expected=expected, got=gone[0])
    return listed._replace(paused=[name for name in listed.paused if name not in names])


def with_removed(configured: Configured, names: Sequence[str], listed: Listed) -> Listed:
    """Without these: paused, and said to have left.

    >>> of = Configured("home", ["a", "b"], epoch=1)
    >>> with_removed(of, ["b"], Listed(["a", "b"]))
    Listed(actions=['a', 'b'], paused=['b'], removed=['b'])
    """
    paused = with_paused(configured, names, listed).paused
    return listed._replace(paused=paused, removed=list(dict.fromkeys([*listed.removed, *names])))


def _check_known(names: Sequence[str], known: Sequence[str], listed: Listed) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        expected, got = f"some of {', '.join(listed.actions)}", ", ".join(map(repr, unknown))
        raise InvalidConfig("actions", "unknown names", expected=expected, got=got)
