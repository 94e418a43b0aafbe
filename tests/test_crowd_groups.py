"""Is a key's group a function of the key alone, and can anybody tell which one it is?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdp as sd
from streamdp.core.evidence.groups import MOST_GROUPS, NO_GROUPS, Groups, named

KEYS = st.none() | st.binary(max_size=6)
PREFIXES = st.lists(
    st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=4).map(tuple), max_size=4
).filter(lambda groups: len({p for g in groups for p in g}) == sum(map(len, groups)))


@given(PREFIXES, st.lists(KEYS, max_size=20))
def test_does_the_longest_prefix_decide(
    prefixes: list[tuple[bytes, ...]], keys: list[bytes | None]
) -> None:
    """The null key is in group 0; and whoever has the name of the groups finds the same numbers."""
    groups = Groups(tuple(prefixes))
    numbers = groups.numbers(keys).tolist()
    for key, number in zip(keys, numbers, strict=True):
        fits = [
            (len(p), n) for n, g in enumerate(prefixes, 1) for p in g if (key or b"").startswith(p)
        ]
        assert number == max(fits, default=(0, 0))[1]
    assert named(groups.name) == groups
    assert named(groups.name).numbers(keys).tolist() == numbers
    assert groups.count == len(prefixes) + 1


def test_are_groups_numbered_by_their_names() -> None:
    """Whatever the order of a configuration's lines."""
    lines = {"it-": "south", "de-": "north", "es-": "south"}
    groups = Groups.of(lines)
    assert groups.prefixes == ((b"de-",), (b"es-", b"it-"))
    assert Groups.of(dict(reversed(lines.items()))) == groups
    assert Groups.of({}) == NO_GROUPS


@pytest.mark.parametrize(
    "prefixes",
    [
        ((),), ((b"",),), ((b"a",), (b"a",)), ((b"a", b"a"),),
        tuple((b"%d" % n,) for n in range(MOST_GROUPS + 1)),
        (tuple(b"%d" % n for n in range(10_001)),),
    ],
    ids=["no prefix", "empty", "in two groups", "twice", "too many groups", "too many prefixes"],
)  # fmt: skip
def test_are_groups_refused_that_name_no_keys(prefixes: tuple[tuple[bytes, ...], ...]) -> None:
    """A prefix decides for one group, and the number of groups is bounded."""
    with pytest.raises(sd.InvalidConfig, match="no groups"):
        Groups(prefixes)


@pytest.mark.parametrize("name", ["6", "61;", "zz", "61,,62", " 61", "61;61"])
def test_is_a_name_refused_that_none_has(name: str) -> None:
    """The ledger's name says all prefixes, in hexadecimal digits."""
    with pytest.raises(sd.InvalidConfig, match="crowd: groups"):
        named(name)
