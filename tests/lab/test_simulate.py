"""Does the simulation draw what playing slot by slot draws, and is the default as good as said?"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from math import comb, sqrt
from pathlib import Path

import numpy as np
import pytest

import streamdp as sd
from streamdp.core.evidence.policy import PARTS
from streamdp.core.grid import NULL, UNIT
from streamdp.core.kinds.kind import Kind
from streamdp.lab.baselines import BASELINES, BLOCK
from streamdp.lab.common.cells import DEFAULT, parse_candidate, parse_candidates, parse_epsilons
from streamdp.lab.play import Walk, walks
from streamdp.lab.report.terminal import Table, draw
from streamdp.lab.simulation import (
    PAPERS,
    SimulationSize,
    best_paper,
    relative,
    simulate,
)
from streamdp.lab.worlds import World
from streamdp.lab.worlds.binomials import binomials
from streamdp.lab.worlds.families import DRIFTING, OTHERS, STATIONARY
from streamdp.lab.worlds.held_out import HELD_OUT_DRIFTING, HELD_OUT_STATIONARY
from tests.support.batches import feedback_batch, loss_batch
from tests.support.command_line import run_command

LEARNING = (Path(__file__).parents[2] / "docs" / "learning.md").read_text()
SMALL = World("small", (0.2, 0.5, 0.4))
SLOTS, RUNS = 150, 600


def by_slots(kind: Kind, *, seed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The regret of as many keys as runs: every slot is drawn, and applied by the engine."""
    machine = sd.Engine(
        stream="s", partition=0, learner=kind, budget="9",
        randomness=sd.SeededRandomness(seed), limit=RUNS,
    )  # fmt: skip
    generator, regrets = np.random.default_rng(seed), np.zeros(RUNS)
    keys: list[bytes | None] = [b"%d" % run for run in range(RUNS)]
    shares = np.full((RUNS, 3), 1 / 3)  # what is in force; before anything is known
    for block in range(kind.schedule.block_of(SLOTS) + 1):
        length = min(kind.schedule.stop(block) - 1, SLOTS) - kind.schedule.start(block) + 1
        index, offsets = np.repeat(np.arange(RUNS), length), np.arange(RUNS * length)
        losses = generator.random((RUNS * length, 3)) < np.array(SMALL.means)
        batch: sd.Batch
        if kind.recipe.played is None:
            batch = loss_batch(keys, index, losses.astype(np.float32), machine.position + offsets)
        else:
            coins = generator.random(len(index))[:, None]
            arms = (np.cumsum(shares[index], axis=1) < coins).sum(axis=1)
            gain = NULL - losses[offsets, arms] * UNIT
            batch = feedback_batch(
                keys, index, arms.astype(np.int32), gain, machine.position + offsets
            )
        after = shares.copy()
        for release in machine.apply_batch(batch):
            now = shares if release.kind == "opening" else after
            if release.policy is None:
                now[int(release.key or b"")] = np.arange(3) == release.standing
            else:
                now[int(release.key or b"")] = np.frombuffer(release.policy, "<u4") / PARTS
        regrets += shares @ SMALL.gaps[0] * length
        shares = after
    return regrets


@pytest.mark.parametrize(
    "text",
    [
        "incumbent_leader",
        "remembering_leader",
        "prefix_softmax:cap=none",
        "noisy_leader:noise=laplace:resample=bernoulli",
        "policy_blocks",
        "policy_following",
        "policy_weights:played=value",
    ],
)
def test_a_simulation_of_blocks_has_the_regret_of_an_engine_that_gets_single_slots(
    text: str,
) -> None:
    """Two-sample z-test of mean regret, for learners of each kind; false alarm 1e-6.

    5.2 standard errors hold 1 − 2e-7 of a normal law; 600 runs are near enough to normal.
    """
    observes = "losses" if text.split(":")[0] in sd.RECIPES else "feedback"
    candidate = parse_candidate(text, observes=observes)
    (outcome,) = simulate([candidate], [Fraction(1)], [SMALL], SimulationSize(RUNS, SLOTS, seed=3))
    kind = candidate.learner(Fraction(1), actions=["0", "1", "2"])
    other = by_slots(kind, seed=4)
    spread = sqrt(outcome.error**2 + other.var(ddof=1) / len(other))
    assert abs(outcome.mean - other.mean()) < 5.2 * spread
    assert spread < 0.1 * outcome.mean


def test_are_runs_the_same_again_and_common_to_all() -> None:
    """One seed, one table; below the cap both prefix softmaxes are one learner."""
    candidates = parse_candidates("prefix_softmax,prefix_softmax:cap=none,follow_the_leader")
    bench = SimulationSize(runs=20, horizon=500, seed=5)
    first, second = (
        simulate(candidates, parse_epsilons("0.1,1"), [SMALL], bench) for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.regret, other.regret)
    outcomes = {(outcome.cell.name, outcome.cell.epsilon): outcome for outcome in first}
    assert len(outcomes) == 5
    (low, high) = parse_epsilons("0.1,1")
    capped, free = "prefix_softmax", "prefix_softmax:cap=none"
    np.testing.assert_array_equal(outcomes[capped, low].regret, outcomes[free, low].regret)
    assert (outcomes[capped, high].regret != outcomes[free, high].regret).any()


@pytest.mark.slow
def test_is_the_default_at_most_096_of_the_best_paper_learner() -> None:
    """Geometric mean over five instances and four ε, as in docs/learning.md at fewer runs.

    A run of 1000 actions takes as long as fifty of five, and its ratio varies half as much: so
    there are fewer of it.
    """
    epsilons = parse_epsilons("0.1,0.5,1,4")
    few = [instance for instance in STATIONARY if instance.actions <= 100]
    many = [instance for instance in STATIONARY if instance.actions > 100]
    sizes = (  # other draws: instances are independent
        (few, SimulationSize(runs=140)), (many, SimulationSize(runs=20, seed=2)),
    )  # fmt: skip
    outcomes = [
        outcome
        for instances, size in sizes
        for outcome in simulate(parse_candidates((DEFAULT, *PAPERS)), epsilons, instances, size)
    ]
    assert len(outcomes) == len(STATIONARY) * 4 * (1 + len(PAPERS))
    best = best_paper(outcomes)
    table = {r.learner: r for r in relative(outcomes, reference=best)}
    behind = [table[name].ratio for name in PAPERS if name != best]
    assert min(behind) > 1.04
    assert table[DEFAULT].ratio <= 0.96
    assert table[DEFAULT].error < 0.03


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--runs", "1"], "simulate: size; expected 2 runs"),
        (["--slots", "0"], "simulate: size"),
        (["--learners", "follow_the_leader:window=running"], "simulate: a running window"),
        (["--learners", "incumbent_leader:schedule=capped 1"], "too many blocks; .* got 131072"),
        (["--learners", "none"], "learners: unknown"),
        (["--delay", "5"], "--delay: of feedback; expected --observes feedback with it"),
    ],
)
def test_is_what_cannot_be_simulated_refused(arguments: list[str], said: str) -> None:
    result = run_command(["simulate", *arguments])
    assert isinstance(result.exception, sd.InvalidConfig)
    assert re.search(said, str(result.exception))


def test_is_a_comparison_with_what_was_not_simulated_refused() -> None:
    naive = simulate(
        parse_candidates("naive_noisy_leader"), parse_epsilons("1"), [SMALL],
        SimulationSize(runs=3),
    )  # fmt: skip
    with pytest.raises(sd.InvalidConfig, match="nothing to compare with"):
        best_paper(naive)
    with pytest.raises(sd.InvalidConfig, match="no such learner"):
        relative(naive, reference=DEFAULT)
    flat = simulate(
        parse_candidates("naive_noisy_leader"), parse_epsilons("1"),
        [World("flat", (0.5, 0.5))], SimulationSize(runs=3),
    )  # fmt: skip
    assert (flat[0].mean, flat[0].error) == (0, 0)
    with pytest.raises(sd.InvalidConfig, match="without any regret"):
        relative(flat, reference="naive_noisy_leader")


def run(*arguments: str) -> str:
    """What the command prints."""
    result = run_command(["simulate", "--runs", "3", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_does_the_command_print_tables_and_json() -> None:
    rows = json.loads(
        run("--json", "--epsilon", "1,inf", "--learners", "incumbent_leader", "--slots", "9000")
    )["answers"]
    assert len(rows) == 2 * len(STATIONARY)
    assert {row["epsilon"] for row in rows} == {"1", "inf"}
    assert all(row["regret"] > 0 and row["runs"] == 3 for row in rows)
    for arguments in ([], ["--learners", "naive_noisy_leader"]):
        text = run("--slots", "9000", "--epsilon", "1", *arguments)
        assert "naive_noisy_leader" in text
        assert "K = 1000" in text.replace("\n", " ") or "1000" in text


def test_does_the_command_compare_what_follows_change() -> None:
    """Memory beside blocks that grow for ever, where another action is best again and again."""
    text = run("--worlds", "drifting", "--markdown", "--epsilon", "1", "--slots", "65536")
    assert "Regret relative to incumbent_leader" in text
    ratio = re.search(r"\| remembering_leader \| ([\d.]+) ± [\d.]+ \|", text)
    assert ratio is not None
    assert float(ratio[1]) < 0.5
    result = run_command(["simulate", "--worlds", "sunny"])
    assert "--worlds: unknown; expected stationary | drifting | others | held-out" in str(
        result.exception
    )


def test_are_phases_where_they_belong() -> None:
    """Regret is against the best action of each moment; sums between cuts are of their phase."""
    changing = World("two", (0.0, 1.0, 0.5), ((0.25, (1.0, 0.0, 0.5)),))
    assert changing.starts(1000).tolist() == [0, 250]
    costs = changing.costs(np.array([0, 250, 300, 1000]), 1000)
    assert costs.tolist() == [[0, 250, 125], [50, 0, 25], [700, 0, 350]]
    assert changing.best_in(np.array([200, 300]), 1000).tolist() == [[0.5, 0.5, 0]]
    both = World("both", (0.5, 0.5), (), ((0.0, 1.0), (1.0, 0.5)))
    assert both.table.tolist() == [[0.5, 0.75]]
    sums = both.sums(np.array([[1000]]), np.array([[0]]), np.random.default_rng(1))
    assert sums[0, 0, 0] + 2 * sums[0, 0, 1] == 2000 * 2**20  # one or the other, slot by slot


def test_does_a_growing_learner_stay_blind_and_a_remembering_one_follow() -> None:
    """At a change in the middle of 2¹⁶ slots: half of all events against a few blocks."""
    once = World("once", (0.3, 0.5, 0.5), ((0.5, (0.5, 0.3, 0.5)),))
    outcomes = simulate(
        parse_candidates(f"{DEFAULT},incumbent_leader"), parse_epsilons("1"), [once],
        SimulationSize(runs=4, horizon=1 << 16),
    )  # fmt: skip
    remembering, growing = (outcome.mean for outcome in outcomes)
    assert remembering < 1500
    assert growing > 3000


@pytest.mark.slow
def test_does_the_page_on_learning_show_the_commands_own_table() -> None:
    """The first table's header; the numbers are those of more runs."""
    text = run("--markdown", "--slots", "9000")
    headers = [line for line in text.splitlines() if line.startswith(("| learner", "| world"))]
    assert len(headers) == 4
    assert headers[0] in LEARNING
    assert "streamdp simulate --runs 2000 --markdown" in LEARNING
    shown = re.search(r"remembering_leader`\*\* \(default\) \|.* ([\d.]+) ± [\d.]+ \|\n", LEARNING)
    assert shown is not None
    assert float(shown[1]) <= 0.96


def test_does_each_baseline_look_at_the_blocks_that_it_names() -> None:
    """Four changes in 2¹⁷ slots without noise: what each loses follows from how far it looks back.

    A window of 32 blocks prefers the new action about half a window late; restarts hang on until
    the next one; fixed share follows after a few votes, and all of them beat growing blocks.
    """
    turns = World(
        "turns",
        (0.2, 0.8),
        tuple((at / 5 + 0.003, ((0.2, 0.8), (0.8, 0.2))[at % 2]) for at in range(1, 5)),
    )
    outcomes = simulate(
        parse_candidates("incumbent_leader"), parse_epsilons("4"), [turns],
        SimulationSize(runs=4, horizon=1 << 17), baselines=BASELINES,
    )  # fmt: skip
    lost = {outcome.cell.name: outcome.mean / (4 * 0.6) for outcome in outcomes}  # slots a change
    assert all(name.endswith("NOT PRIVATE") for name in list(lost)[1:])
    sliding, restarting, shared = list(lost.values())[1:]
    assert 0.4 * 32 * BLOCK < sliding < 0.6 * 32 * BLOCK
    assert 4 * BLOCK < restarting < 64 * BLOCK
    assert shared < 8 * BLOCK
    assert max(sliding, shared) < lost["incumbent_leader"]
    table = relative(outcomes, reference="incumbent_leader", beside=[*lost][1:])
    assert [row.learner for row in table] == [*lost]
    assert table[1].ratio == pytest.approx(sliding / lost["incumbent_leader"])


@pytest.mark.slow
def test_does_the_default_follow_change_in_worlds_that_it_was_not_chosen_by() -> None:
    """Three runs of the held-out worlds at 2¹⁷ slots; the documentation's table is of 2²⁰."""
    rows = json.loads(
        run("--worlds", "held-out-drifting", "--epsilon", "1", "--slots", str(1 << 17), "--json",
            "--learners", f"{DEFAULT},incumbent_leader")
    )["answers"]  # fmt: skip
    lost = {(row["world"], row["learner"]): row["regret"] for row in rows}
    instances = list(dict.fromkeys(instance for instance, _ in lost))
    assert len(instances) == len(HELD_OUT_DRIFTING) == 10
    ratios = [lost[name, DEFAULT] / lost[name, "incumbent_leader"] for name in instances]
    assert np.exp(np.mean(np.log(ratios))) < 0.4
    assert not {instance.name for instance in (*HELD_OUT_DRIFTING, *HELD_OUT_STATIONARY)} & {
        instance.name for family in (STATIONARY, DRIFTING, OTHERS) for instance in family
    }


def test_are_the_held_out_worlds_what_they_are_called() -> None:
    """Stationary ones keep one best action; the best one of the others changes; chances add up."""
    for instance in (*HELD_OUT_STATIONARY, *HELD_OUT_DRIFTING):
        assert 0 <= instance.table.min() <= instance.table.max() <= 1
        if instance.outcomes:
            chances = np.array([instance.means, *(means for _, means in instance.later)])
            assert chances.sum(axis=1) == pytest.approx(1)
        best = set(instance.table.argmin(axis=1).tolist())
        assert (len(best) == 1) == (instance in HELD_OUT_STATIONARY), instance.name


def test_a_table_of_numbers_is_whole_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells are folded, never cut: each digit is there."""
    monkeypatch.setenv("COLUMNS", "80")
    numbers = [f"{at}.234567 ± {at}.123456" for at in range(1, 8)]
    header = ["learner", *(f"ε = {at}" for at in range(7))]
    draw(Table("title", header, [["noisy_leader:noise=exponential", *numbers]]))
    printed = capsys.readouterr().out
    assert "…" not in printed
    cells = [line.split("│")[1:-1] for line in printed.splitlines() if line.startswith("│")]
    whole = ["".join("".join(column).split()) for column in zip(*cells, strict=True)]
    assert whole == ["noisy_leader:noise=exponential", *(text.replace(" ", "") for text in numbers)]


@pytest.mark.parametrize("chances", [(0.3, 0.98, 0.3), (0.0, 1.0, 0.5)])
def test_tabled_draws_have_the_binomial_law(chances: tuple[float, ...]) -> None:
    """By the distance of distribution functions (Dvoretzky–Kiefer–Wolfowitz); 10⁻⁶ in all."""
    counts = np.repeat([1, 9, 40], many := 50_000)
    drawn = binomials(counts, np.zeros_like(counts), np.array([chances]), np.random.default_rng(1))
    for count in (1, 9, 40):
        for arm, chance in enumerate(chances):
            law = [
                comb(count, k) * chance**k * (1 - chance) ** (count - k) for k in range(count + 1)
            ]
            seen = np.bincount(drawn[counts == count, arm], minlength=count + 1) / many
            assert len(seen) == count + 1
            distance = np.abs(np.cumsum(seen) - np.cumsum(law)).max()
            assert distance < sqrt(np.log(2 * 18 / 1e-6) / (2 * many))


def test_what_is_played_in_part_counts_as_what_is_played_whole() -> None:
    """Two-phase sampling: mean and variance are those of heads and tails apart, added up."""
    kind = parse_candidate("remembering_leader").at(Fraction(1), actions=["a", "b"])
    generator = np.random.default_rng(1)
    costs = generator.uniform(size=(12, 10))
    costs[8:, 4:] = costs[8:, :4].mean(axis=1, keepdims=True)
    best = costs.astype(np.float32)
    walk = Walk(kind, 4096, costs, best, None, np.zeros((0, 1), np.int64), head=8, whole=4)
    heads, tails = costs[:8].sum(axis=0), costs[8:, :4].sum(axis=0)
    assert walk.regret.mean() == pytest.approx(heads.mean() + tails.mean())
    moved = heads - heads.mean()
    moved[:4] += 10 / 4 * (tails - tails.mean())
    assert walk.regret.var() == pytest.approx((moved**2).mean())
    assert walk.found(0.5)[-1] == (best[-1, :4] >= 0.5).mean()


def test_tails_are_played_by_few_runs_where_they_vary_little() -> None:
    """A fifth of the work; the figures are those of all runs, within their errors (5 of them)."""
    kind = parse_candidate("incumbent_leader:schedule=capped 16").at(
        Fraction(4), actions=["a", "b"]
    )
    easy = World("easy", (0.1, 0.9))
    walk, hard = (
        walks([kind], world, runs=400, horizon=4096, seed=1)[0]
        for world in (easy, World("hard", (0.45, 0.55)))
    )
    assert (walk.whole, hard.whole, len(walk.regret)) == (50, 400, 400)
    assert walk.shares is not None
    assert walk.shares.sum(axis=1) == pytest.approx(1)
    whole = walks([kind], easy, runs=50, horizon=4096, seed=2)[0]
    error = np.hypot(walk.regret.std() / 20, whole.regret.std() / np.sqrt(50))
    assert abs(walk.regret.mean() - whole.regret.mean()) < 5 * error
