"""The names of actions, checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from streamdp.core.errors import InvalidConfig

MOST_ACTIONS = 10**6

MOST_NAME_BYTES = 100
"""Bytes of the name of an action that is added: the size of lines must be known before."""


def is_name(text: str) -> bool:
    """Whether an action that is added may be called so.

    >>> is_name("grid"), is_name(""), is_name("a\\n")
    (True, False, False)
    """
    return 0 < len(text.encode()) <= MOST_NAME_BYTES and min(text) >= " "


def read_actions(actions: Sequence[str]) -> tuple[str, ...]:
    """The actions' names, checked.

    >>> read_actions(["a", "b"])
    ('a', 'b')
    """
    listed = isinstance(actions, Sequence) and not isinstance(actions, str)
    names = tuple(actions) if listed else ()
    texts = all(issubclass(kind, str) for kind in set(map(type, names))) and all(names)
    if not listed or not texts:
        raise InvalidConfig(
            "actions",
            "not names",
            expected="a list of non-empty strings",
            got=type(actions).__name__,
        )
    if not 2 <= len(names) <= MOST_ACTIONS:
        raise InvalidConfig("actions", "count", expected=f"2 … {MOST_ACTIONS}", got=len(names))
    twice, times = Counter(names).most_common(1)[0]
    if times > 1:
        places = [str(at) for at, name in enumerate(names, 1) if name == twice]
        got = f"{twice!r} as no. {' and '.join(places)}"
        raise InvalidConfig("actions", "a name twice", expected="distinct names", got=got)
    return names
