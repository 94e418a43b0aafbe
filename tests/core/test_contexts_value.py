"""Do the intervals of a policy's value hold, from released tables alone?"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from streamdp.core.arrays import Floats
from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.context_value import (
    BlockTables,
    Value,
    forward,
    value_as_shown,
    value_of,
)
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policies import gains_and_counts
from streamdp.core.evidence.policy_posterior import NoiseVariance
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.lab.context_worlds import TableShows, shares_of
from streamdp.lab.play import RunBits, play
from tests.serve.test_contexts_page import ACTIONS as SHOWN_ACTIONS
from tests.serve.test_contexts_page import FIELDS, drawn, rewards, spec
from tests.support.calling import Streamdp
from tests.support.publishing import Reader, Topic, charge

RUNS = 300
LEAST = 263  # of 300 within an interval of 95 %: fewer with a probability below 10⁻⁶
SHAPE = (4, 3)
TWO = Contexts.read({"f1": ["1", "2", "3"], "f2": ["1", "2"]})


class Logs(NamedTuple):
    """Many runs of one learner: what each released, and what was in force."""

    tables: list[BlockTables]
    policies: Floats  # runs × blocks × cells × actions
    rates: Floats  # runs × cells × actions
    occurs: Floats  # cells

    def truth(self, run: int, policy: Floats) -> float:
        return float((self.occurs[:, None] * policy * self.rates[run]).sum())

    def of_actions(self) -> Floats:
        """One action for everybody, each."""
        cells, count = self.rates.shape[1:]
        return np.repeat(np.eye(count)[:, None], cells, axis=1)


@lru_cache
def logs(played: str = "header", *, slots: int = 1 << 15) -> Logs:
    """A learner with 12 cells and 4 actions shows what its own releases led to."""
    learner = FEEDBACK_RECIPES["policy_contexts"](
        actions=TWO.arms(("a", "b", "c", "d")), context=TWO, epsilon="1", played=played,
        schedule="geometric 2",
    )  # fmt: skip
    rng = np.random.default_rng(20261127)
    rates = np.clip(0.05 + 0.03 * rng.standard_normal((RUNS, TWO.cells, 4)), 0.005, 0.5)
    shows = TableShows(rates, shares_of(SHAPE), learner, (3, 1), slots)
    released, policies = [], []
    for step in play(learner, RUNS, shows, RunBits.of(3, range(RUNS))):
        if len(step.ended):
            released.append(step.released)
            policies.append(shows.policies(step.in_force))
    gains, shown = (
        np.stack(of, axis=1).reshape(RUNS, len(released), -1, 4)
        for of in zip(*(gains_and_counts(of, pairs=learner.pairs) for of in released), strict=True)
    )
    tables = [BlockTables(*of, learner.noise) for of in zip(gains, shown, strict=True)]
    return Logs(tables, np.stack(policies, axis=1), rates, shows.shares)


Found = tuple[Value, float]


def newest(of: Logs, run: int, half: int) -> list[Found]:
    """The policy of the first half of all events, by the other half."""
    policy = of.policies[run, half]
    return [(value_of(policy, of.tables[run].since(half)), of.truth(run, policy))]


def picked(of: Logs, run: int, half: int) -> list[Found]:
    """The best action of each cell in one half, by the other."""
    tables = of.tables[run]
    policy = tables.until(half).best()
    return [(value_of(policy, tables.since(half)), of.truth(run, policy))]


def everybody(of: Logs, run: int, half: int) -> list[Found]:
    """Each action for everybody, in the learner's own draws."""
    tables = of.tables[run]
    return [
        (value_of(one, tables, among=len(of.of_actions())), of.truth(run, one))
        for one in of.of_actions()
    ]


Setting = Callable[[Logs, int, int], list[Found]]


@pytest.mark.parametrize("setting", [newest, picked, everybody])
def test_intervals_hold_as_often_as_they_say(setting: Setting) -> None:
    """All of a log's intervals at once, in at least `LEAST` of 300 logs; and nearly no bias.

    A false alarm where coverage is 95 % has a probability below 10⁻⁶. Of 1,000 logs .97, .97 and
    .99 hold, with a bias of .01, .03 and .10 half-widths. Without `since` the picked rule holds in
    .68, and a plain mean of all shows has a bias of .26.
    """
    of, held, off, widths = logs(), 0, 0.0, 0.0
    for run, tables in enumerate(of.tables):
        found = setting(of, run, tables.half())
        held += all(value.reward.low <= truth <= value.reward.high for value, truth in found)
        off += sum(value.reward.mean - truth for value, truth in found)
        widths += sum(value.reward.high - value.reward.low for value, truth in found) / 2
    assert held >= LEAST
    assert abs(off) < 0.17 * widths  # a tenth, and four deviations of a mean of 300


def test_the_best_actions_by_each_field_hold_all_at_once() -> None:
    """Rewards, and what they are more than was shown in the same blocks."""
    of, held = logs(), np.zeros(2)
    everyone = np.zeros(12, dtype=int)
    alike = [everyone, np.arange(12) // 3, np.arange(12) % 3, np.arange(12)]
    for run, tables in enumerate(of.tables):
        found = forward(tables, dict(enumerate(of.policies[run])), TWO)
        assert found is not None
        later, right = tables.since(found.since), np.ones(2, dtype=bool)
        as_shown = float((later.shown.sum(axis=0) * of.rates[run]).sum()) / later.events
        for (shows, value), cells in zip(found.best.values(), alike, strict=True):
            truth, lift = of.truth(run, np.eye(4)[shows[cells]]), value.lift
            assert lift is not None
            right &= (
                value.reward.low <= truth <= value.reward.high,
                lift.low <= truth - as_shown <= lift.high,
            )
        held += right
    assert (held >= LEAST).all(), held
    assert forward(tables.until(1), {0: of.policies[0, 0]}, TWO) is None


def test_a_rule_looks_better_on_the_blocks_that_it_was_chosen_by() -> None:
    """What `since` is for: on its own blocks the same rule's interval misses in a tenth or more."""
    of, held = logs(), 0
    for run, tables in enumerate(of.tables):
        best = tables.best()
        reward = value_of(best, tables).reward
        held += reward.low <= of.truth(run, best) <= reward.high
    assert held < 0.9 * RUNS


def test_a_level_that_drifts_cancels_from_the_lift() -> None:
    """Rewards fall from .6 to .1 while shares move from one action to the other; both are alike."""
    rng, shares = np.random.default_rng(5), np.linspace(0.1, 0.9, 12)
    levels, held = np.linspace(0.6, 0.1, 12)[:, None, None], np.zeros(2)
    one = np.array([[1.0, 0.0]])
    for _ in range(RUNS):
        shown = rng.binomial(2000, shares)[:, None, None] * np.array([1.0, 0.0])
        shown[:, 0, 1] = 2000 - shown[:, 0, 0]
        gains = rng.binomial(shown.astype(int), levels) - shown / 2 + rng.laplace(0, 1, shown.shape)
        found = value_of(one, BlockTables(gains, shown, NoiseVariance(2.0)))
        assert found.lift is not None
        held += (
            found.lift.low <= 0 <= found.lift.high,
            found.reward.low <= 0.35 <= found.reward.high,
        )
    assert held[0] >= LEAST
    assert held[1] < 0.1 * RUNS  # the reward's interval supposes that nothing changes


@pytest.mark.parametrize("slots", [1 << 15, 1 << 12])
def test_intervals_hold_where_counts_are_noisy(slots: int) -> None:
    """Of a policy and a picked rule, by blocks that came later; rare cells are pooled."""
    of, held = logs("value", slots=slots), np.zeros(2)
    for run, tables in enumerate(of.tables):
        for at, setting in enumerate((newest, picked)):
            ((value, truth),) = setting(of, run, tables.half())
            held[at] += value.reward.low <= truth <= value.reward.high
            assert value.lift is None
    assert (held >= LEAST).all(), held


def test_without_contexts_a_policy_is_valued_beside_one_action_for_everybody() -> None:
    shown = np.full((8, 1, 2), 100.0)
    of = BlockTables(shown * [0.1, -0.1], shown, NoiseVariance(0.0))
    found = forward(of, {4: np.array([[0.5, 0.5]])}, None)
    assert found is not None
    assert list(found.best) == ["everybody"]
    assert found.since == 4


def test_nothing_known_is_said_to_be_unknown() -> None:
    """An action that was never shown may earn anything; rare cells are pooled, and counted."""
    shown = np.array([[[900.0, 0.0], [90.0, 10.0]]])
    of = BlockTables(-0.4 * shown, shown, NoiseVariance(0.0))
    never = value_of(np.array([[0.0, 1.0], [1.0, 0.0]]), of)
    assert never.unknown == pytest.approx(0.9)
    assert never.reward.low < 0.02 < 0.9 < never.reward.high
    assert never.lift is not None
    assert never.lift.low < -0.08 < 0.78 < never.lift.high
    nobody = BlockTables(np.zeros((0, 2, 2)), np.zeros((0, 2, 2)), NoiseVariance(0.0))
    assert value_of(np.full((2, 2), 0.5), nobody).reward.low == 0.0
    assert (value_as_shown(nobody).reward.low, nobody.half()) == (0.0, 0)
    noisy = BlockTables(-0.4 * shown, shown, NoiseVariance(2.0, 4.0))
    found = value_of(np.array([[1.0, 0.0], [0.0, 1.0]]), noisy)
    assert found.pooled == pytest.approx(0.1)
    assert found.unknown == pytest.approx(0.1)


@pytest.mark.parametrize("policy", [np.ones((2, 3)) / 3, np.full((2, 2), 0.4)])
def test_a_policy_of_another_table_is_refused(policy: Floats) -> None:
    of = BlockTables(np.zeros((1, 2, 2)), np.ones((1, 2, 2)), NoiseVariance(0.0))
    with pytest.raises(InvalidConfig, match="policy: not one of this table"):
        value_of(policy, of)


# -- the command ---------------------------------------------------------------------------------

SHOP = f"""
app = "shop"
[transport]
kind = "memory"
[topics.clicks-shown]
budget = "1"
[streams.clicks]
input = "clicks-shown"
start = "earliest"
observes = "feedback"
actions = {json.dumps(SHOWN_ACTIONS)}
[streams.clicks.learner]
epsilon = "1"
schedule = "geometric 2"
[streams.clicks.feedback]
content = "reward"
[streams.clicks.context]
device = ["phone", "desktop"]
country = ["de", "fr", "it"]
"""


@lru_cache
def published(played: str = "header") -> Topic:
    of = spec(played)
    return Topic(
        [charge(release, ordinal=at, lines=of.lines) for at, release in enumerate(drawn(of), 1)]
    )


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration whose ledger is the one of `drawn`."""
    technology = SimpleNamespace(publications=lambda: Reader(Topic([]), published()))
    monkeypatch.setattr("streamdp.lab.commands.worth.opened", lambda *_: technology)
    path = tmp_path / "shop.toml"
    path.write_text(SHOP)
    return path


def test_the_command_says_what_policies_are_worth(shop: Path, streamdp: Streamdp) -> None:
    """What phones-boots would have earned, within its interval, and better than one for all."""
    rules = shop.with_name("rules.json")
    rules.write_text(
        '[{"context": {"device": "phone"}, "show": "boots"}, {"show": {"coats": 0.9, "hats": 0.1}}]'
    )
    ended = streamdp(
        "worth",
        "--config",
        str(shop),
        "--key",
        "home",
        "--policy",
        str(rules),
        "--since",
        "0",
        "--json",
    )
    assert ended.code == 0, ended
    found = {line["policy"]: line for line in ended.json["policies"]}
    occurs = np.outer([0.6, 0.4, 0.0], [0.5, 0.3, 0.2, 0.0]).ravel()
    table = np.zeros((FIELDS.cells, 3))
    table[:, 1:] = [0.9, 0.1]
    table[:4] = [1.0, 0.0, 0.0]
    truth = float((occurs[:, None] * table * rewards()).sum())
    assert found[str(rules)]["low"] < truth < found[str(rules)]["high"]
    assert found[str(rules)]["mean_reward"] > found["boots for everybody"]["mean_reward"] + 0.02
    assert found["the policy of the first 14 blocks"]["mean_reward"] == pytest.approx(
        0.25, abs=0.02
    )
    assert found["the best action for each device of the first 14 blocks"]["since_block"] == 14
    assert found[str(rules)]["more_than_shown"]["high"] > 0
    text = streamdp("worth", "--config", str(shop), "--key", "home")
    assert "Of 15 blocks with 32,767 events (public):\nmean reward" in text.out
    shop.write_text(SHOP.replace('"reward"', '"reward"\nunit = "€"\nmost = "200"'))
    assert "€ a show" in streamdp("worth", "--config", str(shop), "--key", "home").out
    euros = streamdp("worth", "--config", str(shop), "--key", "home", "--json").json
    assert euros["unit"] == "€"
    for line in euros["policies"]:
        share = found[line["policy"]]
        assert line["mean_reward"] == pytest.approx(200 * share["mean_reward"])
        if line["more_than_shown"] is not None:
            low = 200 * share["more_than_shown"]["low"]
            assert line["more_than_shown"]["low"] == pytest.approx(low)


def test_noisy_counts_are_counts(
    shop: Path, streamdp: Streamdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where contents name the action: within seven deviations of the noise of all numbers."""
    of = spec("value")
    technology = SimpleNamespace(publications=lambda: Reader(Topic([]), published("value")))
    monkeypatch.setattr("streamdp.lab.commands.worth.opened", lambda *_: technology)
    private = '[streams.clicks.format]\nname = "float32"\n'
    shop.write_text(SHOP.replace('epsilon = "1"', 'epsilon = "1"\nplayed = "value"') + private)
    ended = streamdp("worth", "--config", str(shop), "--key", "home", "--json")
    assert ended.code == 0, ended
    assert isinstance(of.learner, PolicyLearner)
    noise = (ended.json["blocks"] * of.learner.noise.on_counts * FIELDS.cells * 3) ** 0.5
    assert abs(ended.json["events"] - 32_767) < 7 * noise < 2500
    shown = ended.json["policies"][0]
    assert 0.1 < shown["low"] < shown["mean_reward"] < shown["high"] < 0.3


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "is no list of rules"),
        ('[{"context": {}}]', "rule 1: is no rule"),
        ('[{"context": {"device": "phone"}, "show": "boots"}]', "does not say what to show every"),
        ('[{"context": {"device": "fridge"}, "show": "boots"}]', "device: unknown level"),
        ('[{"context": {"colour": "red"}, "show": "boots"}]', "context: not usable"),
        ('[{"show": "gloves"}]', "show: not usable; expected one of boots, coats, hats"),
        ('[{"show": {"boots": 0.5}}]', "show: not usable"),
        ('[{"show": {"boots": "1"}}]', "show: not usable"),
    ],
)
def test_a_file_that_is_no_policy_is_refused(
    shop: Path, streamdp: Streamdp, rules: str, said: str
) -> None:
    path = shop.with_name("rules.json")
    path.write_text(rules)
    ended = streamdp("worth", "--config", str(shop), "--key", "home", "--policy", str(path),
                     "--since", "0")  # fmt: skip
    assert ended.code == 2
    assert said in ended.err


def test_a_stream_of_losses_is_refused(shop: Path, streamdp: Streamdp) -> None:
    plain = SHOP[: SHOP.index("[streams.clicks.feedback]")].replace('"feedback"', '"losses"')
    shop.write_text(plain)
    ended = streamdp("worth", "--config", str(shop), "--key", "home")
    assert (
        "stream clicks: releases no sums; expected a stream with observes = feedback" in ended.err
    )


def test_a_key_without_releases_is_refused(shop: Path, streamdp: Streamdp) -> None:
    ended = streamdp("worth", "--config", str(shop), "--key", "elsewhere")
    assert "key elsewhere: its releases cannot be added up" in ended.err


def test_a_table_in_parts_is_refused(shop: Path, streamdp: Streamdp) -> None:
    """Its parts do not say what a cell earned."""
    shop.write_text(SHOP.replace('epsilon = "1"', 'epsilon = "1"\ninteractions = "none"'))
    ended = streamdp("worth", "--config", str(shop), "--key", "home")
    assert ended.code == 2, ended
    assert "its table is in parts" in ended.err
