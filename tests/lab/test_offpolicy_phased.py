"""Do the papers' learners play on a log what they would have played live, and what is refused?"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.core.randomness import SeededRandomness
from streamdp.lab.common.cells import parse_candidate
from streamdp.lab.logs import ReadOptions, open_log
from streamdp.lab.logs.log import ArrayLog
from streamdp.lab.offpolicy.question import (
    FeedbackQuestion,
    FeedbackReplay,
    Logged,
    replay_losses,
    replay_shown,
    seconds_for,
)
from streamdp.lab.offpolicy.statements import as_json
from streamdp.lab.papers import on_logs
from streamdp.lab.papers.bandit import BanditEngine
from streamdp.lab.papers.learners import Bandit
from streamdp.lab.papers.on_logs import ShownLosses
from streamdp.lab.papers.play import BanditRun, simulate_bandit, steady
from streamdp.lab.papers.registered import PaperLearner
from tests.support.command_line import run_command
from tests.support.shown_logs import ACTIONS, MEANS, made_up

ONE = Fraction(1)
EVEN = np.full(3, 1 / 3)
LEARNERS = ("lazy_thompson:play=held", "lazy_ucb", "adap_klucb", "converted", "hybrid_ucb")


def bandit(text: str) -> Bandit:
    """One of the papers' learners at ε = 1."""
    made = parse_candidate(text, observes="feedback").learner(ONE, actions=ACTIONS)
    assert isinstance(made, PaperLearner)
    return made.bandit


def losses(slots: int, *, seed: int = 1) -> ArrayLog:
    drawn = np.random.default_rng(seed).random((slots, 3)) >= MEANS
    return ArrayLog("losses", ACTIONS, drawn.astype(np.float32))


def asked(
    *learners: str,
    seeds: int = 2,
    epsilons: tuple[Fraction | None, ...] = (ONE,),
    logged: Logged = "auto",
) -> FeedbackQuestion:
    return FeedbackQuestion(learners or LEARNERS, epsilons, tuple(range(seeds)), logged=logged)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["lazy_thompson:play=held", "lazy_ucb"])
def test_is_an_exact_replay_the_engine_on_the_same_losses(text: str) -> None:
    """Mean losses over seeds, against the shipped engine: within five standard errors."""
    log, slots = losses(150), 150
    (answer,) = replay_losses(log, asked(text, seeds=200)).answers
    learner = bandit(text)
    rewards = []
    for seed in range(60):
        engine = BanditEngine(learner, budget=1, randomness=SeededRandomness(seed))
        lost = 0.0
        for row in log.losses:
            action = engine.action()
            loss = float(row[ACTIONS.index(action)])
            engine.observe(action, loss)
            lost += loss
        rewards.append(1 - lost / slots)
    error = np.hypot(np.std(rewards) / 60**0.5, answer.rewards.std() / 200**0.5)
    assert abs(answer.rewards.mean() - np.mean(rewards)) < 5 * error


def test_adds_regret_up_over_keys(tmp_path: Path) -> None:
    """Each key has a run of its own; losses, regret and charges are those of all keys together."""
    path = tmp_path / "log.ndjson"
    drawn = losses(60).losses.tolist()
    rows = [{"losses": row, "key": "fr" if at % 3 else "de"} for at, row in enumerate(drawn)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    replayed = replay_losses(open_log(str(path), ReadOptions()), asked(*LEARNERS, seeds=3))
    assert replayed.findings.keys == 2
    assert [answer.cell.name for answer in replayed.answers] == list(LEARNERS)
    for answer in replayed.answers:
        assert answer.regret is not None
        assert answer.course.mean[-1] == pytest.approx(answer.regret.mean())
        assert answer.charge.slots + answer.charge.open_slots == 60
        assert answer.charge.epsilon == 1
        assert replayed.best is not None
        assert answer.rewards == pytest.approx(replayed.best - answer.regret / 60)
        assert answer.shares.shares.sum(axis=1) == pytest.approx(1)


def test_waits_a_rejected_run_for_records_that_show_what_it_plays() -> None:
    """Records are taken in order, each once, and each shows the arm that was played."""
    log = made_up(2_000, seed=2, draws=EVEN)
    for text in LEARNERS:
        records = ShownLosses(log.by_key.of(0, log.slots), len(log.actions))
        learner = bandit(text)
        run = BanditRun(
            learner, records.loss, np.random.default_rng(1), log.slots, meet=records.meet
        )
        played = run.played()
        taken = records.taken[: len(played)]
        assert (log.played[taken] == played).all()
        assert (np.diff(taken) > 0).all()
        assert 500 < len(played) < 800
        assert (played == 1).mean() > 0.25


@pytest.mark.slow
def test_is_a_rejected_run_a_live_run() -> None:
    """Regret after 120 slots, over logs of uniform draws: within five standard errors of live."""
    world, text, slots = steady(MEANS.tolist()), "lazy_thompson:play=held", 120
    learner = bandit(text)
    regrets = []
    for seed in range(150):
        log = made_up(600, seed=seed, draws=EVEN)
        records = ShownLosses(log.by_key.of(0, log.slots), len(log.actions))
        run = BanditRun(
            learner, records.loss, np.random.default_rng(seed), log.slots, meet=records.meet
        )
        regrets.append(float(world.regret_of(run.played(), (slots,))[0]))
    live = simulate_bandit(learner, world, runs=300, horizon=slots)
    error = np.hypot(np.std(regrets) / 150**0.5, live.error)
    assert abs(np.mean(regrets) - live.mean) < 5 * error


def test_would_records_that_show_another_action_be_noticed() -> None:
    """The control: a run that takes every record as its own has another regret."""
    learner = bandit("lazy_thompson:play=held")
    log = made_up(600, seed=1, draws=EVEN)
    records = ShownLosses(log.by_key.of(0, log.slots), len(log.actions))
    records.taken[:] = np.arange(log.slots)
    played = BanditRun(learner, records.loss, np.random.default_rng(1), log.slots).played()
    assert (log.played[: len(played)] != played).any()


@pytest.mark.parametrize(
    ("learners", "logged", "said"),
    [
        (("policy_blocks", "lazy_ucb"), "propensities", "end by the count of what a learner"),
        (("lazy_ucb",), "service", "end by the count of what a learner"),
        (("batched_exp4",), "auto", "learners: unknown"),
    ],
)
def test_is_what_no_log_can_answer_refused(
    learners: tuple[str, ...], logged: Logged, said: str
) -> None:
    with pytest.raises(InvalidConfig, match=said):
        replay_shown(made_up(100, seed=1, draws=EVEN), asked(*learners, logged=logged))


def test_are_phases_without_noise_and_logs_beyond_memory_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidConfig, match="no policy without noise"):
        replay_losses(losses(10), asked("lazy_ucb", epsilons=(None,)))
    monkeypatch.setattr(on_logs, "MOST_BYTES", 100)
    with pytest.raises(InvalidConfig, match="held in memory"):
        replay_losses(losses(10), asked("lazy_ucb"))
    assert replay_losses(losses(10), asked("policy_blocks")).answers


def test_stand_phases_beside_policies() -> None:
    """On losses of all actions and on uniform draws: in the order asked, on page and in figures."""
    exact = replay_losses(losses(200), asked("lazy_ucb", "policy_blocks", "converted"))
    uniform = replay_shown(made_up(300, seed=1, draws=EVEN), asked("lazy_ucb", "policy_blocks"))
    alone = replay_shown(made_up(300, seed=1, draws=EVEN), asked("lazy_ucb"))
    for replayed in (exact, uniform, alone):
        check_told(replayed)
    assert [answer.cell.name for answer in uniform.answers] == ["policy_blocks"]
    assert [answer.cell.name for answer in uniform.rejected] == ["lazy_ucb", "policy_blocks"]
    assert not alone.answers
    for replayed, has in ((alone, False), (uniform, True)):
        assert any(answer.arms is not None for answer in replayed.rejected) is has


def check_told(replayed: FeedbackReplay) -> None:
    assert "lazy_ucb" in json.dumps(as_json(replayed), allow_nan=False)


def test_says_the_command_what_it_costs_before(tmp_path: Path) -> None:
    """Learners that release at every slot take longer, and the table names them."""
    path = tmp_path / "log.npy"
    np.save(path, losses(300).losses)
    words = ["replay", "shown", str(path), "--learners", "lazy_ucb,hybrid_ucb"]
    result = run_command([*words, "--seeds", "2", "--epsilon", "1/2"])
    assert result.exit_code == 0, result.output
    assert "hybrid_ucb" in result.stdout
    slow = seconds_for(losses(300), asked("hybrid_ucb"))
    assert slow > 100 * seconds_for(losses(300), asked("lazy_ucb"))


def test_says_a_log_without_a_record_to_meet_nothing() -> None:
    """Uniform draws of which a key has one record: the rejected run may end before it began."""
    log = made_up(60, seed=1, draws=EVEN, keys=[b"a", *[b"b"] * 30])
    replayed = replay_shown(log, asked("lazy_ucb", seeds=1))
    assert replayed.rejected[0].accepted is not None
    assert replayed.rejected[0].accepted[0] > 3
