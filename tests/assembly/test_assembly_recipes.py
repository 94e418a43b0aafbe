"""What do requests' and outcomes' contents say, and can hostile bytes say more?"""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdp.assembly.join import Join, Positions
from streamdp.assembly.persons import Cap, Persons
from streamdp.assembly.recipes import (
    AssemblyRecipe,
    Categories,
    Errors,
    PrivateRewards,
    Rankers,
    Rewards,
    Unreadable,
)
from streamdp.assembly.rules import Combine, Rules
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.evidence.contexts import Contexts
from streamdp.wire.formats import Format, configure
from tests.wire.test_formats import nested

ACTIONS = ("a", "b", "c")
RECIPES: list[AssemblyRecipe] = [
    Rewards(), Rankers(ACTIONS), Rankers(ACTIONS, by_rank=True), Categories(ACTIONS),
    Errors(ACTIONS, scale=2.0),
]  # fmt: skip
FIELDS = Contexts.read('{"device":["phone"]}')
LISTS = b'{"items": {"a": ["x", "y"], "c": ["y", "x", "x"], "other": ["x"]}, "more": [1]}'
GUESSES = b'{"predictions": {"a": 1.0, "b": 3.0, "other": 0}}'


@pytest.mark.parametrize(
    ("recipe", "request_", "outcome", "gains"),
    [
        (Rewards(), b"anything", b'{"reward": 0.25, "more": {}}', [0.25]),
        (Rewards(), None, b'{"reward": 7}', [1.0]),
        (Rewards(), None, b'{"reward": -1e300}', [0.0]),
        (Rewards(Fraction(200)), None, b'{"reward": 50}', [0.25]),
        (Rewards(Fraction(200)), None, b'{"reward": 201}', [1.0]),
        (Rewards(Fraction(1, 10**6)), None, b'{"reward": 1e308}', [1.0]),
        (PrivateRewards(ACTIONS, rewards=Rewards(Fraction(200))), b'{"action": "b"}',
         b'{"reward": 50}', [0.25]),
        (Rankers(ACTIONS), LISTS, b'{"item": "x"}', [1.0, 0.0, 1.0]),
        (Rankers(ACTIONS), LISTS, b'{"item": "z"}', [0.0, 0.0, 0.0]),
        (Rankers(ACTIONS, by_rank=True), LISTS, b'{"item": "y"}', [0.5, 0.0, 1.0]),
        (Categories(ACTIONS), None, b'{"categories": ["c", "a", "z", "a"]}', [1.0, 0.0, 1.0]),
        (Categories(ACTIONS), None, b'{"categories": []}', [0.0, 0.0, 0.0]),
        (Errors(ACTIONS, scale=2.0), GUESSES, b'{"truth": 1.5}', [0.75, 0.25, 0.0]),
        (Errors(ACTIONS, scale=2.0), GUESSES, b'{"truth": 1e300}', [0.0, 0.0, 0.0]),
    ],
)  # fmt: skip
def test_gains_are_those_of_the_table(
    recipe: AssemblyRecipe, request_: bytes | None, outcome: bytes, gains: list[float]
) -> None:
    assert recipe.answer(recipe.question(request_), outcome) == gains


@pytest.mark.parametrize(
    "outcome",
    [
        None, b"", b"{}", b"nonsense", b"\xff\xfe", b'{"reward": "1"}', b'{"reward": true}',
        b'{"reward": null}', b'{"reward": NaN}', b'{"reward": 1e999}', b'{"truth": "1"}',
        b'{"item": 3}', b'{"categories": "a"}', b"[" * 100_000, b'{"reward": 1} x',
    ],
)  # fmt: skip
@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_an_outcome_that_cannot_be_read_is_none(
    recipe: AssemblyRecipe, outcome: bytes | None
) -> None:
    asked: list[Any] = [LISTS, GUESSES]
    for content in asked:
        try:
            question = recipe.question(content)
        except Unreadable:
            continue
        assert recipe.answer(question, outcome) is None


@pytest.mark.parametrize(
    "content",
    [None, b"", b'{"items": {"a": [1]}}', b'{"items": []}', b'{"predictions": {"a": "1"}}',
     b'{"predictions": {"a": null}}', b"[" * 100_000],
)  # fmt: skip
@pytest.mark.parametrize("recipe", [Rankers(ACTIONS), Errors(ACTIONS, scale=1.0)], ids=repr)
def test_a_request_that_cannot_be_read_is_a_null_event(
    recipe: AssemblyRecipe, content: bytes | None
) -> None:
    """Whatever came of it: it has its slot, and 1/2 for every action."""
    with pytest.raises(Unreadable):
        recipe.question(content)
    outcome = b'{"item": "x", "truth": 1, "reward": 1}'
    assert _losses(recipe, content, [outcome]) == [0.5, 0.5, 0.5]


DEEP: list[tuple[AssemblyRecipe, bytes, bytes]] = [
    (Rewards(), b"{}", b'{"reward": 1}'),
    (PrivateRewards(ACTIONS), b'{"action": "a"}', b'{"reward": 1}'),
    (PrivateRewards(ACTIONS, FIELDS), b'{"action": "a", "context": {}}', b'{"reward": 1}'),
    (Rankers(ACTIONS), LISTS, b'{"item": "x"}'),
    (Categories(ACTIONS), b"{}", b'{"categories": ["a"]}'),
    (Errors(ACTIONS, scale=2.0), GUESSES, b'{"truth": 1.5}'),
]


@pytest.mark.parametrize(("recipe", "content", "outcome"), DEEP, ids=repr)
def test_contents_that_are_nested_too_deeply_cannot_be_read(
    recipe: AssemblyRecipe, content: bytes, outcome: bytes
) -> None:
    """Their events would depend on how deep the stack was when they were joined."""
    question = recipe.question(nested(128, content))
    assert recipe.answer(question, nested(128, outcome)) is not None
    assert recipe.answer(question, nested(129, outcome)) is None
    assert recipe.answer(question, nested(600, outcome)) is None
    if recipe.asks:
        for depth in (129, 600):
            with pytest.raises(Unreadable):
                recipe.question(nested(depth, content))


@pytest.mark.slow
@given(content=st.binary(max_size=60), outcome=st.binary(max_size=60), data=st.data())
def test_no_bytes_are_more_than_gains(content: bytes, outcome: bytes, data: Any) -> None:
    """Each event is K losses in [0, 1] of one length, for arbitrary bytes and almost JSON."""
    for recipe in RECIPES:
        for text in (content, LISTS, GUESSES):
            losses = _losses(recipe, text, [outcome, data.draw(ALMOST)])
            assert len(losses) == recipe.gains
            assert all(0.0 <= loss <= 1.0 for loss in losses)


ALMOST = st.dictionaries(
    st.sampled_from(["reward", "item", "categories", "truth"]),
    st.one_of(st.floats(), st.text(max_size=3), st.lists(st.sampled_from(ACTIONS)), st.none()),
).map(lambda value: json.dumps(value).encode())


@cache
def _of_actions(many: int) -> Format:
    return configure("float32", actions=[f"action {number}" for number in range(many)], options={})


def _losses(recipe: AssemblyRecipe, content: bytes | None, outcomes: list[bytes]) -> list[float]:
    """The losses of one request's event, by the raw format, whose events have one length."""
    many = max(2, recipe.gains)
    rows = _of_actions(many)

    def encode(losses: Any) -> bytes:
        filled = [*losses, *[0.0] * (many - len(losses))]
        return rows.encode(np.array([filled], dtype=np.float32))

    rules = Rules(window=10, grace=1, combine=Combine.SUM, default=1.0)
    join = Join(rules, recipe, encode, positions=Positions(0, 0, 0))
    headers = [("streamdp-request", b"r")]
    join.request(0, 0, None, headers, content)
    count = len(outcomes)
    join.outcomes([5] * count, [None] * count, [headers] * count, outcomes, next_offset=count)
    [(_, value, _)] = join.emit(1)
    row = rows.decode([value]).content["losses"][0].tolist()
    return [float(loss) for loss in row[: recipe.gains]]


def test_wrong_rules_are_refused() -> None:
    good: dict[str, Any] = {"window": 1, "grace": 1, "combine": Combine.MAX, "default": 0.5}
    Rules(**good)
    for wrong in ({"window": 0}, {"grace": 0}, {"default": 1.5}, {"default": float("nan")}):
        with pytest.raises(InvalidConfig):
            Rules(**{**good, **wrong})
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidConfig, match="scale"):
            Errors(ACTIONS, scale=scale)
    for most, slots, secret in ((0, 5, b"x" * 16), (5, 5, b"x" * 16), (1, 5, b"x" * 15)):
        with pytest.raises(InvalidConfig, match="persons"):
            Cap(most, slots, secret)


def test_persons_are_saved_under_the_secret_s_hash() -> None:
    """Whoever reads the state and guesses an id cannot look whether that person was there."""
    saved = []
    for secret in (b"a secret of the tests", b"another one of theirs"):
        persons = Persons(Cap(3, 200, secret), {})
        assert persons.counts(b"k", b"p-7", 0)
        (value,) = persons.save().values()
        assert b"p-7" not in value
        saved.append(value)
    assert saved[0] != saved[1]


def test_a_key_s_counts_fit_what_was_promised() -> None:
    """The largest entry of a key, with a person of its own in each slot; and what is none halts."""
    cap = Cap(3, 200, b"a secret of the tests")
    persons = Persons(cap, {})
    for number in range(3 * cap.persons):
        persons.counts(b"k", b"person %d" % number, 0)
        (saved,) = persons.save().values()
        assert len(saved) <= Persons.largest(cap)
    with pytest.raises(StateMismatch, match="persons"):
        Persons(cap, {b"k": b"other bytes"})
