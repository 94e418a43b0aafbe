"""Is a key's group a function of the key alone, and can anybody tell which one it is?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core.engine.crowding import PartitionCrowd
from streamdp.core.evidence.groups import MOST_GROUPS, NO_GROUPS, Groups, named
from streamdp.wire.lines import PriorLine
from streamdp.wire.state import largest_recorded
from tests.support.carrying import leader, live, store_of, stream, verified
from tests.support.crowd_lines import lines_of, scripted, seen
from tests.support.crowded import crowded

pytestmark = pytest.mark.usefixtures("priors_are_made_once")

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


def test_is_a_group_called_as_configured_else_by_how_its_keys_begin() -> None:
    """The ledger knows no names of groups; equal groups may have others."""
    groups = Groups.of({"de-": "europe", "us-": "america", "fr-": "europe"})
    assert [groups.title(number) for number in range(3)] == ["all other keys", "america", "europe"]
    read = named(groups.name)
    assert [read.title(number) for number in range(3)] == ["all other keys", "us-", "de-, fr-"]
    assert read == groups


@pytest.mark.parametrize(
    "prefixes",
    [
        ((),), ((b"",),), ((b"a",), (b"a",)), ((b"a", b"a"),),
        tuple((b"%d" % n,) for n in range(MOST_GROUPS + 1)),
        (tuple(b"%03d" % n for n in range(334)),),
    ],
    ids=["no prefix", "empty", "in two groups", "twice", "too many groups", "too long"],
)  # fmt: skip
def test_are_groups_refused_that_name_no_keys(prefixes: tuple[tuple[bytes, ...], ...]) -> None:
    """A prefix decides for one group, and the number of groups is bounded."""
    with pytest.raises(sd.InvalidConfig, match="wrong prefixes"):
        Groups(prefixes)


@pytest.mark.parametrize("name", ["6", "61;", "zz", "61,,62", " 61", "61;61"])
def test_is_a_name_refused_that_none_has(name: str) -> None:
    """The ledger's name says all prefixes, in hexadecimal digits."""
    with pytest.raises(sd.InvalidConfig, match="crowd_groups"):
        named(name)


FRENCH = Groups.of({"f": "french", "de": "german"})


def test_does_a_prior_hold_bonuses_for_each_group() -> None:
    """On its line and in the state, whose largest entry is known beforehand; without groups: K."""
    learner = crowded(leader(), groups=FRENCH)
    store, of = store_of(learner), stream(learner)
    live(store, of, 120)
    priors = [line.prior() for line in lines_of(store) if isinstance(line, PriorLine)]
    assert {len(prior.encoded) for prior in priors} == {3 * 3 * 8}
    by_group = priors[-1].bonuses.reshape(3, 3)
    assert len(np.unique(by_group, axis=0)) == 3
    assert verified(store, of) == []
    largest = max(len(entry) + len(value) for entry, value in store.state.items())
    assert largest < largest_recorded(of.lines, key_bytes=8)
    many = Groups(tuple((b"%d" % group,) for group in range(60)))
    of_many = stream(crowded(leader(), groups=many)).lines
    assert largest_recorded(of_many, key_bytes=8) > 60 * 3 * 8 * 4 // 3
    plain, without = stream(crowded(leader())), stream(crowded(leader(), groups=NO_GROUPS))
    assert plain.digest == without.digest != of.digest
    assert plain.lines.crowd == without.lines.crowd


def by_place(self: PartitionCrowd, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Mutant: the group of a key follows from when it came."""
    return rows % 3


def by_sums(self: PartitionCrowd, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Mutant: it follows from the losses of its open block."""
    return np.asarray(self.bank.sums[rows, 0] % 3)


@pytest.mark.parametrize("mutant", [by_place, by_sums])
def test_are_groups_found_that_do_not_follow_from_the_key(
    mutant: Callable[..., NDArray[np.int64]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever computes the priors again has the keys alone."""
    learner = crowded(leader(), groups=FRENCH)
    store, of = store_of(learner), stream(learner)
    monkeypatch.setattr(PartitionCrowd, "_groups", mutant)
    live(store, of, 120)
    assert "does not follow from the votes" in verified(store, of)[0]


def test_is_all_that_groups_let_be_seen_the_same_for_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One record's content changes: the same lines and sizes, where draws are the same."""
    learner = crowded(leader(), groups=FRENCH)
    scripted(monkeypatch, 0)
    plain = seen(90, None, False, learner)
    for changed in (3, 20, 50):
        assert seen(90, changed, False, learner) == plain
    monkeypatch.setattr(PartitionCrowd, "_groups", by_sums)
    mutated = seen(90, None, False, learner)
    assert any(seen(90, changed, False, learner) != mutated for changed in (3, 20, 50))


@pytest.mark.slow
def test_does_a_group_s_prior_follow_its_own_keys() -> None:
    """Keys of two groups with other best actions; a group without votes has that of all keys."""
    groups = Groups.of({"a": "one", "b": "two"})
    learner = crowded(sd.incumbent_leader(actions=["x", "y"], epsilon="2"), groups=groups)
    engine = sd.Engine(
        stream="home", partition=0, learner=learner, budget="2",
        randomness=sd.SeededRandomness(5),
    )  # fmt: skip
    for number in range(60):
        for _ in range(11):
            engine.apply(b"a%d" % number, [0, 1])
            engine.apply(b"b%d" % number, [1, 0])
    standing = engine.crowd()
    assert standing is not None
    assert learner.crowd is not None
    others, one, two = learner.crowd.believed(standing.priors[-1]).tolist()
    assert abs(others[0] - others[1]) < 0.1
    assert one[0] - one[1] > 0.3
    assert two[1] - two[0] > 0.3
