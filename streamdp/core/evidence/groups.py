"""Groups of keys: which keys of a partition share a prior of their own.

A group is a public feature of a key: how the key begins. It follows from the key alone, which is on
every release, so that anybody can tell to which group a key belongs, and it depends on no loss.

Each group has a number. Group 0 holds all keys that match no prefix; where several match, the
longest decides. A prefix may be a whole key (longer keys that begin with it match it too).

Groups are part of the learner's crowd, `Crowd(…, groups=groups)`, and so of its name in the ledger
and of the learner's digest. A prior then has K bonuses for each group, group 0 first; a draw uses
those of its key's group (`Groups.numbers`). Nothing else changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.events import Key

MOST_GROUPS = 255
"""Besides group 0. A prior holds K numbers for each group, and more groups would be too small."""

MOST_PREFIX_BYTES = 1000
"""The size of all prefixes together: each line of the ledger about a draw names them."""

_NAME = re.compile(
    r"(?:[0-9a-f]{2})+(?:,(?:[0-9a-f]{2})+)*(?:;(?:[0-9a-f]{2})+(?:,(?:[0-9a-f]{2})+)*)*"
)


@dataclass(frozen=True)
class Groups:
    """Assigns keys to groups by their prefixes; `named` restores it from its name.

    >>> groups = Groups.of({"de-": "europe", "fr-": "europe", "us-": "america"})
    >>> groups.numbers([b"de-1", b"us-7", b"fr-2", b"jp-3", None]).tolist()
    [2, 1, 2, 0, 0]
    """

    prefixes: tuple[tuple[bytes, ...], ...] = ()
    """The prefixes of group 1, of group 2, …"""

    titles: tuple[str, ...] = field(default=(), compare=False)
    """The names of group 1, group 2, … in a configuration; for display only."""

    _of: dict[bytes, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a prefix in two groups, and groups without a key."""
        listed = [prefix for group in self.prefixes for prefix in group]
        whole = all(self.prefixes) and all(listed) and len(set(listed)) == len(listed)
        size = sum(map(len, listed))
        if not whole or len(self.prefixes) > MOST_GROUPS or size > MOST_PREFIX_BYTES:
            raise InvalidConfig(
                complaint(
                    "crowd_groups",
                    "wrong prefixes",
                    expected=f"at most {MOST_GROUPS} groups, each of one prefix or more, none"
                    f" empty or twice, of {MOST_PREFIX_BYTES} bytes in all",
                    got=f"{len(self.prefixes)} groups of {len(listed)} prefixes,"
                    f" {len(set(listed) - {b''})} distinct, of {size} bytes",
                )
            )
        of = {prefix: n for n, group in enumerate(self.prefixes, start=1) for prefix in group}
        object.__setattr__(self, "_of", of)

    @classmethod
    def of(cls, groups: Mapping[str, str]) -> Groups:
        """From the group name of each prefix; groups are numbered in the order of their names."""
        names = sorted(set(groups.values()))
        return cls(
            tuple(
                tuple(sorted(prefix.encode() for prefix, of in groups.items() if of == name))
                for name in names
            ),
            tuple(names),
        )

    @property
    def count(self) -> int:
        """How many groups there are, including group 0."""
        return 1 + len(self.prefixes)

    @property
    def name(self) -> str:
        """Their name in the ledger: prefixes as hexadecimal digits, groups separated by `;`."""
        return ";".join(",".join(prefix.hex() for prefix in group) for group in self.prefixes)

    def title(self, number: int) -> str:
        """A group's name for people: as configured, or else its prefixes.

        >>> groups = Groups.of({"de-": "europe", "fr-": "europe"})
        >>> groups.title(1), named(groups.name).title(1), groups.title(0)
        ('europe', 'de-, fr-', 'all other keys')
        """
        if number == 0:
            return "all other keys"
        if self.titles:
            return self.titles[number - 1]
        return ", ".join(prefix.decode(errors="replace") for prefix in self.prefixes[number - 1])

    def numbers(self, keys: Sequence[Key]) -> Ints:
        """The group of each key."""
        if not self.prefixes:
            return np.zeros(len(keys), dtype=np.int64)
        return np.array([self._number(key or b"") for key in keys], dtype=np.int64)

    def _number(self, key: bytes) -> int:
        of = self._of
        return next((of[key[:size]] for size in self._sizes if key[:size] in of), 0)

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        """The lengths of prefixes, the longest first."""
        return tuple(sorted({len(prefix) for prefix in self._of}, reverse=True))


NO_GROUPS = Groups()
"""All keys are in group 0."""


def named(name: str) -> Groups:
    """The groups of this name in the ledger.

    >>> groups = Groups.of({"a:": "one", "b:": "two"})
    >>> groups.name, named(groups.name) == groups, named("") == NO_GROUPS
    ('613a;623a', True, True)
    """
    if name and _NAME.fullmatch(name) is None:
        raise InvalidConfig(
            complaint(
                "crowd_groups", "unknown", expected="a name that this version writes", got=name
            )
        )
    parted = name.split(";") if name else []
    return Groups(tuple(tuple(map(bytes.fromhex, group.split(","))) for group in parted))
