"""Do made-up worlds with contexts say when contexts are worth it?"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import UNIT
from streamdp.lab.commands._contexts import compared, verdict
from streamdp.lab.context_worlds import WORLDS, Table, TableShows, as_json, learned, shares_of
from tests.service.test_contexts_stream import SHOP
from tests.support.command_line import run_command

TABLE = Table((2, 3), 2, 0.1, 0.2, Fraction(1), slots=20_000)


def test_contexts_are_worth_it_where_they_decide() -> None:
    """Where nothing depends on them they cost; where a field decides they gain, and are learned."""
    found = {of.world: of for of in learned(TABLE)}
    assert list(found) == TABLE.worlds()
    assert not found["nothing"].worth
    assert found["the first field"].worth
    assert 0 < (found["nothing"].contexts.learned or 0) < 10_000
    assert found["the first field"].contexts.regret < 15 < found["the first field"].without.regret
    again = as_json(TABLE, learned(TABLE))
    assert again == as_json(TABLE, found.values())


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("which", ["with", "without"])
def test_a_block_has_all_its_events_at_the_rates_of_their_cells(name: str, which: str) -> None:
    """Sums and shows of a large block; without contexts those of all cells together."""
    table = Table((2, 3, 2), 2, 0.1, 0.2, Fraction(1))
    learner, block = table.learners()[which], 30
    cells = WORLDS[name](table.shape, 2, np.random.default_rng(3)).reshape(1, -1, 2)
    rates = np.clip(0.1 + 0.2 * cells, 0, 1)
    shares = shares_of(table.shape)
    fill = TableShows(rates, shares, learner, (1, 2), table.slots)
    width = len(learner.actions)
    in_force = np.full((1, width), PARTS // 2, dtype=np.uint32)
    _, columns = fill(block, np.arange(1), in_force)
    shown, events = columns["shown"], learner.schedule.stop(block) - learner.schedule.start(block)
    assert shown.shape == (1, width)
    assert shown.sum() == events
    clicks = columns["sums"] / UNIT + shown / 2
    assert abs(clicks.sum() / events - (shares @ rates[0]).mean()) < 6 * 0.5 / events**0.5


@pytest.mark.parametrize("text", ["", "8,", "8,1", "x", "-2"])
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="--context: no fields"):
        Table.read(text)


def test_rates_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="no rates"):
        Table((2,), 2, 0.9, 0.2, Fraction(1))


def run(*arguments: str) -> str:
    ran = run_command(arguments)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


CLICKS = ["--observes", "feedback", "--context", "2", "--json"]


def test_both_commands_print_the_worlds() -> None:
    """`plan` the asked table, `simulate` one for each ε; without --json tables and a verdict."""
    asked = [
        "--actions",
        "2",
        "--epsilon",
        "1",
        "--rate",
        "0.2",
        "--gap",
        "0.2",
        "--horizon",
        "4000",
    ]
    planned = json.loads(run("plan", *CLICKS, *asked))
    simulated = json.loads(run("simulate", *CLICKS, "--slots", "500", "--epsilon", "1,2"))
    assert [of["epsilon"] for of in planned + simulated] == ["1", "1", "2"]
    assert [of["decides"] for of in planned[0]["worlds"]] == ["nothing", "the first field"]
    drawn = run("plan", *CLICKS[:-1], *asked)
    assert "Contexts are not worth it where what is best depends on nothing" in drawn
    assert verdict([]) == "Contexts are worth it in each of these worlds."


def test_both_commands_take_a_table_in_parts() -> None:
    """It is of the named fields, and its noise is another one; other names are refused."""
    parts = ["--context", "2,2,2", "--interactions", "f1 x f2"]
    asked = ["plan", *CLICKS, "--actions", "2", "--epsilon", "1", "--rate", "0.2", "--gap", "0.2"]
    planned = json.loads(run(*asked, "--horizon", "500", *parts))
    (simulated,) = json.loads(run("simulate", *CLICKS, "--slots", "500", "--epsilon", "1", *parts))
    assert planned[0]["interactions"] == simulated["interactions"] == "f1 x f2"
    learner = Table((2, 2, 2), 2, 0.2, 0.2, Fraction(1), interactions="f1 x f2").learners()["with"]
    assert learner.numbers == 2 * (4 + 2)
    said = run(*asked[:3], *asked[6:], "--horizon", "500", *parts)
    assert "in parts (f1 x f2)" in said
    for command, more, error in (
        (asked, ["--interactions", "f1 x f9", "--context", "2,2"], "no interaction"),
        ([*asked[:3], *asked[5:]], ["--interactions", "none"], "--interactions"),
        (["simulate", *CLICKS[:2]], ["--interactions", "none"], "--context with it"),
    ):
        refused = run_command([*command, *more])
        assert refused.exit_code != 0
        assert error in str(refused.exception) + refused.output


def test_a_stream_is_planned_with_its_own_table(tmp_path: Path) -> None:
    """Its fields, parts, ε and mode; another table beside it is refused."""
    config = tmp_path / "shop.toml"
    options = 'epsilon = "1/2"\ninteractions = "none"\nplayed = "value"'
    form = '\n[streams.clicks.format]\nname = "float32"\n'
    config.write_text(SHOP.replace('epsilon = "1/2"', options) + form)
    asked = ["plan", "-c", str(config), "--rate", "0.2", "--gap", "0.2", "--horizon", "300"]
    (planned,) = json.loads(run(*asked, "--json"))
    told = {name: planned[name] for name in ("shape", "actions", "epsilon", "played")}
    assert told == {"shape": [3, 4], "actions": 2, "epsilon": "1/2", "played": "value"}
    assert planned["interactions"] == "none"
    refused = run_command([*asked, "--context", "3,4"])
    assert "the stream has its own" in str(refused.exception) + refused.output


def test_fields_apart_are_considered_beside_the_whole_table() -> None:
    """With few events they do better where nothing matters; traffic turns events into days."""
    table = replace(TABLE, shape=(3, 3), slots=4000, traffic=1000)
    assert {name: of.numbers for name, of in table.learners().items()} == {
        "with": 18, "without": 2, "apart": 12,
    }  # fmt: skip
    assert "apart" not in replace(table, interactions="none").learners()
    nothing = next(learned(table))
    assert nothing.apart is not None
    assert nothing.best is nothing.apart
    assert nothing.apart.regret < nothing.contexts.regret - 1
    assert compared(table, [nothing]) == (
        "Over 4,000 events of a key (about 4 days), where what is best depends on"
        f' nothing, interactions = "none" loses less ({nothing.contexts} % whole,'
        f" {nothing.apart} % with none)."
    )
    alike = replace(nothing, apart=nothing.contexts)
    assert "on nothing, no difference is clear" in compared(replace(table, traffic=None), [alike])
    asked = ["--actions", "2", "--epsilon", "1", "--rate", "0.2", "--gap", "0.2"]
    clicks = [*CLICKS[:3], "2,2", "--horizon", "500", "--traffic"]
    said = run("plan", *clicks, "250", *asked)
    assert "Over 500 events of a key (about 2 days)" in said
    (planned,) = json.loads(run("plan", *clicks, "250", "--json", *asked))
    assert planned["events_a_day"] == 250
    assert planned["worlds"][0]["interactions_none"]["regret_percent"] > 0
    assert run_command(["plan", *clicks, "0", *asked]).exit_code != 0


@pytest.mark.parametrize("more", [["--learner", "policy_blocks"], ["--keys", "3"]])
def test_options_that_change_nothing_are_refused(more: list[str]) -> None:
    asked = ["--actions", "2", "--epsilon", "1", "--rate", "0.2", "--gap", "0.2"]
    refused = run_command(["plan", *CLICKS, *asked, *more])
    assert refused.exit_code != 0
    assert "no --context with it" in str(refused.exception) + refused.output
