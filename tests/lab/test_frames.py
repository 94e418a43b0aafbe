"""Do frames of pandas, polars and pyarrow give the same batches? Are mistakes of code refused?"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

import streamdp as sd
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import NO_ARM
from streamdp.core.evidence.contexts import Contexts
from streamdp.lab.common.cells import parse_candidate
from streamdp.lab.frames import frame_of
from streamdp.lab.planning import Wish, plan_for
from streamdp.lab.planning import as_json as planned
from streamdp.lab.simulation import SimulationSize, simulate
from streamdp.lab.simulation import as_json as simulated
from streamdp.lab.worlds import World
from streamdp.wire.feedback import Feedback
from tests.conftest import ROOT

BACKENDS: list[Callable[[dict[str, Any]], Any]] = [pd.DataFrame, pl.DataFrame, pa.table]
every_backend = pytest.mark.parametrize("frame", BACKENDS, ids=["pandas", "polars", "pyarrow"])
ACTIONS = ["a", "b"]
ROWS: dict[str, Any] = {"key": ["fr", "de", None], "a": [0.25, 7.0, None], "b": [0, 1, 1]}
ROWS_AS_LOSSES = np.array([[0.25, 0], [7, 1], [np.nan, 1]])


def engine(learner: Any) -> sd.Engine:
    return sd.Engine(
        stream="home", partition=0, learner=learner, budget="1",
        randomness=sd.SeededRandomness(1),
    )  # fmt: skip


def losing() -> sd.Engine:
    return engine(sd.incumbent_leader(actions=ACTIONS, epsilon="1"))


def shown() -> sd.Engine:
    return engine(sd.policy_blocks(actions=ACTIONS, epsilon="1"))


@every_backend
def test_rows_of_a_frame_are_slots(frame: Callable[[Any], Any]) -> None:
    batch = sd.Batch.losses_from_frame(frame(ROWS), key="key", losses=ACTIONS, first=5)
    assert [batch.keys[at] for at in batch.index] == [b"fr", b"de", None]
    assert np.allclose(batch.content["losses"], ROWS_AS_LOSSES, equal_nan=True)
    assert batch.offsets.tolist() == [5, 6, 7]
    by_frame, by_lists = losing(), losing()
    same = sd.Batch.of_losses([b"fr", b"de", None], ROWS_AS_LOSSES, range(5, 8))
    assert list(by_frame.apply_batch(batch)) == list(by_lists.apply_batch(same))


def test_keys_may_be_bytes() -> None:
    rows = pl.DataFrame({"k": [b"\xff", b"x", None], "a": [0.0, 0.5, 1.0]})
    batch = sd.Batch.losses_from_frame(rows, key="k", losses=["a"])
    assert [batch.keys[at] for at in batch.index.tolist()] == [b"\xff", b"x", None]


@every_backend
def test_rows_of_feedback_are_slots(frame: Callable[[Any], Any]) -> None:
    shown_actions, clicks = ["a", "b", "c", None], [1.0, None, 1.0, 0.0]
    rows = {"key": ["fr"] * 4, "shown": shown_actions, "click": clicks}
    by_frame, by_hand = shown(), shown()
    batch = sd.Batch.feedback_from_frame(
        frame(rows), key="key", action="shown", actions=ACTIONS, reward="click"
    )
    releases = list(by_frame.apply_batch(batch))
    expected = [
        release
        for action, click in zip(shown_actions, clicks, strict=True)
        for release in by_hand.observe(
            b"fr", action=None if action == "c" else action, reward=click
        )
    ]
    assert releases == expected
    prices = frame({**rows, "click": [250.0, None, 200.0, 0.0]})
    priced = sd.Batch.feedback_from_frame(
        prices, key="key", action="shown", actions=ACTIONS, reward="click", most=200
    )
    assert np.array_equal(batch.content["gain"], priced.content["gain"])
    losses = frame({**rows, "click": [0.0, None, 0.0, 1.0]})
    same = sd.Batch.feedback_from_frame(
        losses, key="key", action="shown", actions=ACTIONS, loss="click"
    )
    assert np.array_equal(batch.content["gain"], same.content["gain"])
    assert np.array_equal(batch.content["played"], same.content["played"])


def test_a_reward_has_the_same_gain_in_a_frame_a_call_and_a_record() -> None:
    """Even where 1 − reward, as a float32, has fewer digits than the reward."""
    rewards = [(at + 0.5) * 2.0**-20 + 2.0**-27 for at in range(200)]
    rows = {"key": ["fr"] * 200, "shown": ["a"] * 200, "click": rewards}
    batch = sd.Batch.feedback_from_frame(
        pl.DataFrame(rows), key="key", action="shown", actions=ACTIONS, reward="click"
    )
    records = Feedback(("a", "b"), "reward").observed(
        np.array(rewards, np.float32), np.ones(200, np.int64),
        [[("streamdp-action", b"a")]] * 200, frames=False,
    )  # fmt: skip
    assert np.array_equal(batch.content["gain"], records.content["gain"])
    by_frame, by_calls = shown(), shown()
    released = [
        of for reward in rewards for of in by_calls.observe(b"fr", action="a", reward=reward)
    ]
    assert list(by_frame.apply_batch(batch)) == released


FIELDS = Contexts.read({"device": ["phone", "1"], "age": {"cuts": [18, 65]}})


@every_backend
def test_columns_of_contexts_are_cells(frame: Callable[[Any], Any]) -> None:
    """As live: what is missing or not listed is `other`; an unknown action is no arm."""
    rows: dict[str, Any] = {
        "key": ["fr"] * 4, "shown": ["a", "b", "b", "c"], "click": [1.0, 0.0, None, 1.0],
        "device": ["phone", "1", "fridge", "phone"], "years": [17.5, 65.0, None, 31.0],
    }  # fmt: skip
    batch = sd.Batch.feedback_from_frame(
        frame(rows), key="key", action="shown", actions=ACTIONS, reward="click", contexts=FIELDS,
        context={"age": "years"},
    )  # fmt: skip
    levels: list[dict[str, object]] = [
        {"device": "phone", "age": 3}, {"device": 1, "age": "70"}, {"device": "fridge"},
    ]  # fmt: skip
    cells = [
        FIELDS.cell({"device": "phone", "age": 3}),
        FIELDS.cell({"device": "1", "age": 70}),
        11,
    ]
    assert batch.content["played"].tolist() == [
        2 * cells[0],
        2 * cells[1] + 1,
        2 * cells[2] + 1,
        NO_ARM,
    ]
    by_hand, machine = (
        engine(sd.policy_contexts(actions=FIELDS.arms(("a", "b")), epsilon="1", context=FIELDS))
        for _ in range(2)
    )
    called = zip(["a", "b", "b", None], rows["click"], [*levels, {}], strict=True)
    expected = [
        release for action, click, of in called
        for release in by_hand.observe(b"fr", action=action, reward=click, context=of)
    ]  # fmt: skip
    assert list(machine.apply_batch(batch)) == expected


def of_contexts(**options: Any) -> sd.Batch:
    rows = {"key": ["fr"], "shown": ["a"], "click": [1], "device": [1], "age": [20]}
    asked: dict[str, Any] = {"actions": ACTIONS, "contexts": FIELDS, **options}
    return sd.Batch.feedback_from_frame(
        pd.DataFrame(rows), key="key", action="shown", reward="click", **asked
    )


def test_whole_numbers_are_levels() -> None:
    """As in replays of files."""
    (arm,) = of_contexts().content["played"]
    assert arm == 2 * FIELDS.cell({"device": "1", "age": 20})


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no frame": (lambda: sd.Batch.losses_from_frame([1], key="key", losses=ACTIONS), "no frame"),
    "a wrong name": (
        lambda: sd.Batch.losses_from_frame(pd.DataFrame(ROWS), key="key", losses=["a", "c"]),
        "no such column.* got 'c'"),
    "a name twice": (
        lambda: sd.Batch.losses_from_frame(pd.DataFrame(ROWS), key="key", losses=["a", "a"]),
        "twice"),
    "a column of texts": (
        lambda: sd.Batch.losses_from_frame(pd.DataFrame(ROWS), key="a", losses=["key"]), "no keys"),
    "losses that are texts": (
        lambda: sd.Batch.losses_from_frame(pl.DataFrame({"k": ["x"], "a": ["0"]}), key="k",
                                        losses=["a"]), "no numbers"),
    "keys that are numbers": (
        lambda: sd.Batch.losses_from_frame(pl.DataFrame({"k": [1.5], "a": [0.5]}), key="k",
                                        losses=["a"]), "no keys"),
    "names that are numbers": (
        lambda: sd.Batch.feedback_from_frame(
            pd.DataFrame(ROWS), key="key", action="b", actions=ACTIONS, loss="a"), "no names"),
    "loss and reward": (
        lambda: sd.Batch.feedback_from_frame(
            pd.DataFrame(ROWS), key="key", action="a", actions=ACTIONS), "got neither"),
    "the most of losses": (
        lambda: sd.Batch.feedback_from_frame(
            pl.DataFrame({"key": ["x"], "a": ["a"], "b": [1.0]}), key="key", action="a",
            actions=ACTIONS, loss="b", most=2),
        "most: is of rewards"),
    "both in a call": (lambda: shown().observe(b"k", action="a", loss=0, reward=1), "got both"),
    "neither in a call": (lambda: shown().observe(b"k", action="a"), "got neither"),
    "a reward of text": (
        lambda: shown().observe(b"k", action="a", reward="1"), "reward: no number"),  # type: ignore[arg-type]
    "fields without their levels": (
        lambda: of_contexts(contexts=None, context={"age": "age"}), "the learner's fields"),
    "an unknown field": (lambda: of_contexts(context={"size": "age"}), "unknown field.*'size'"),
    "no column of a field": (lambda: of_contexts(context={"age": "x"}), "no such column.*'x'"),
    "arms in place of actions": (
        lambda: of_contexts(actions=FIELDS.arms(("a", "b"))), "the actions of one cell"),
    "an unknown backend": (
        lambda: frame_of({"cells": []}, backend="dask"), "pandas, polars or pyarrow"),
}  # fmt: skip


@pytest.mark.parametrize(("use", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_mistakes_of_code_are_refused(use: Callable[[], object], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        use()


def test_without_the_extra_frames_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "narwhals", None)
    with pytest.raises(InvalidConfig, match=r"streamdp\[frames\]"):
        sd.Batch.losses_from_frame(pd.DataFrame(ROWS), key="key", losses=["a"])


def test_a_reward_is_one_minus_a_loss() -> None:
    by_loss, by_reward = shown(), shown()
    for number in (0.0, 0.25, 1.0, 7.0, None, float("nan")):
        loss = None if number is None else 1.0 - number
        releases = list(by_loss.observe(b"k", action="a", loss=loss))
        assert list(by_reward.observe(b"k", action="a", reward=number)) == releases


@pytest.mark.parametrize("losses", [[0.1], [0.1, 0.2, 0.3], ["0.1", "0.2"]])
def test_a_vector_that_only_a_program_makes_warns_and_takes_its_slot(losses: Any) -> None:
    machine = losing()
    with pytest.warns(UserWarning, match="not the learner's vector"):
        machine.apply(b"k", losses)
    assert machine.position == 1


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"reward": "paid"}, "'paid': clipped .* most of them outside"),
        ({"reward": "click", "action": "country"}, "column 'country': no row names an action"),
        ({"reward": "click"}, None),
    ],
)
def test_a_frame_that_only_a_mistake_makes_warns_once(
    columns: dict[str, str], said: str | None
) -> None:
    """Losses in the wrong unit too. A single number outside, or a single unknown name, is data."""
    rows = {"key": ["fr"] * 3, "shown": ["a", "b", "x"], "click": [1.0, 7.0, None],
            "paid": [150.0, 20.0, 0.5], "country": ["fr"] * 3}  # fmt: skip
    asked: dict[str, Any] = {"key": "key", "action": "shown", "actions": ACTIONS, **columns}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        for _ in range(2):
            sd.Batch.feedback_from_frame(pl.DataFrame(rows), **asked)
    assert len(warned) == (said is not None)
    if said is not None:
        assert warned[0].filename == __file__
        with pytest.warns(UserWarning, match=said):
            sd.Batch.feedback_from_frame(pl.DataFrame(rows), **asked)
    with pytest.warns(UserWarning, match="losses: clipped"):
        sd.Batch.losses_from_frame(pl.DataFrame(rows), key="key", losses=["paid"])


@pytest.mark.parametrize("losses", [None, [np.nan, 1], [7, -7], [None, 0.5], [np.inf, 0]])
def test_data_never_warns(losses: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losing().apply(b"k", losses)


@pytest.mark.parametrize("backend", ["pandas", "polars", "pyarrow"])
def test_results_are_frames(backend: str) -> None:
    candidate = parse_candidate("incumbent_leader")
    wish = Wish(candidate, 2, 0.2, 500, 1, None, 1)
    plan = frame_of(planned(wish, [plan_for(wish, Fraction(1), runs=4)]), backend=backend)
    worlds, size = [World("even", (1.0,), (), ((0.4, 0.6),))], SimulationSize(4, 300, 1)
    answers = simulate([candidate], [Fraction(1)], worlds, size)
    played = frame_of(simulated(answers, worlds, 300), backend=backend)
    names = "column_names" if backend == "pyarrow" else "columns"
    assert list(getattr(played, names))[:3] == ["world", "learner", "epsilon"]
    assert "found_after_days" in getattr(plan, names)
    assert len(played) == len(plan) == 1


def test_the_notebook_runs() -> None:
    """Cell by cell, as a reader would, in one name space."""
    cells = json.loads((ROOT / "docs" / "frames.ipynb").read_text())["cells"]
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), names)
    assert names["feedback"].position == 5
    assert {"remembering_leader"} <= set(names["replayed"]["learner"])
    assert names["planned"]["found_for_good"].iloc[-1] > 0.5
