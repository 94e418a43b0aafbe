"""Do replays of feedback make the engine's and the service's releases, and draw as they say?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import scipy

from streamdp.core.engine import Engine
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import SPARE, SUMS, Key
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policy import PARTS, policy_of
from streamdp.core.randomness import SeededRandomness
from streamdp.core.releases import Identity, Release
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.cells import parse_candidates
from streamdp.lab.logs import ReadOptions
from streamdp.lab.logs.log import ArrayLog, key_text
from streamdp.lab.logs.shown import SlotCells, over_cells
from streamdp.lab.logs.shown_topics import topic_log
from streamdp.lab.logs.taken_lists import TakenLists, read_taken_lists
from streamdp.lab.offpolicy.cells import FeedbackCell, cells_of
from streamdp.lab.offpolicy.exact import play_losses
from streamdp.lab.offpolicy.fold import fold, release_as_json
from streamdp.lab.offpolicy.question import FeedbackQuestion, replay_shown
from streamdp.lab.offpolicy.rejection import reject
from streamdp.lab.offpolicy.statements import as_json, summary
from streamdp.lab.offpolicy.weighted import weigh
from streamdp.lab.play import coins_of, drawn
from streamdp.lab.simulation import SimulationSize, simulate
from streamdp.lab.worlds import World
from streamdp.ports import Partition
from streamdp.testing.memory import MemoryTechnology
from streamdp.wire.feedback import Feedback
from streamdp.wire.lines import Charge, PolicyLine, TakenList, from_base64
from streamdp.wire.published import decode_in_force, decode_ledger
from tests.service.test_lists import FIELDS, in_cells
from tests.support.histories import nothing_known, policy_after
from tests.support.publishing import list_record
from tests.support.replayed import Pieces
from tests.support.services import Room
from tests.support.shown_logs import ACTIONS, MEANS, made_up
from tests.support.streams import ACTIONS as SERVED
from tests.support.streams import feedback_spec, shown

HALF = Fraction(1, 2)
TEXTS = (
    "policy_blocks",
    "policy_blocks:schedule=capped 16:forgetting=3/4",
    "policy_elimination:played=value",
    "policy_weights",
    "thompson",
)
CELLS = cells_of(TEXTS, (HALF,), actions=ACTIONS)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_are_policies_on_a_log_those_of_the_engine(cell: FeedbackCell) -> None:
    """The weighted replay's policies of the longest key, parts of 2**24 for parts of 2**24."""
    log = made_up(700, seed=2, keys=(b"fr", b"de", None))
    (answer,) = weigh(log, (cell,), Bench((5,), "clicks", 3))
    _, key = log.learners[int(log.counts.argmax())]
    made = [
        policy_of(release.policy or b"", actions=len(ACTIONS)) / PARTS
        for release in fold(log, cell.learner, seed=5, stream="clicks", epoch=3)
        if release.key == key
    ]
    assert len(made) == len(answer.shares.shares) > 5
    assert (np.array(made) == answer.shares.shares).all()


@pytest.mark.parametrize("cell", CELLS[:3], ids=str)
def test_keys_are_weighed_alone_also_where_they_end_with_a_block(cell: FeedbackCell) -> None:
    """Σ w·r of three keys, whose slots fill their blocks, is the sum of those of each alone."""
    log = made_up(300, seed=2, keys=(b"fr", b"de", None))
    slots = cell.learner.schedule.stop(3) - 1
    kept = log.number <= slots
    columns = {
        name: getattr(log, name)[kept] for name in ("row", "offsets", "played", "gain", "pscore")
    }
    log, bench = replace(log, **columns), Bench((5, 6))
    assert (log.counts == slots).all()
    (together,) = weigh(log, (cell,), bench)
    each = [
        weigh(log.with_learners([at == key for at in range(3)]), (cell,), bench)[0].rewards
        for key in range(3)
    ]
    assert np.allclose(together.rewards * 3, np.sum(each, axis=0), rtol=1e-12)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_is_an_exact_replay_the_engine_on_what_was_drawn(cell: FeedbackCell) -> None:
    """The same coins, each slot put into the shipped engine by itself: the same policies."""
    losses = np.random.default_rng(8).random((150, len(ACTIONS))).astype(np.float32)
    bench = Bench((4,), "home", 2)
    _, _, (answer,) = play_losses(ArrayLog("log", ACTIONS, losses), (cell,), bench)
    engine = Engine(
        stream="home",
        partition=0,
        learner=cell.learner,
        budget=cell.learner.charge,
        randomness=SeededRandomness(4),
        epoch=2,
    )
    (coins,) = coins_of(bench)
    policies = [policy_after(cell.learner, nothing_known(cell.learner), np.zeros(1, np.int64))[0]]
    for row, coin in zip(losses, coins.integers(0, PARTS, len(losses)).tolist(), strict=True):
        arm = int(drawn(policies[-1][None], np.zeros(1, np.int64), np.array([coin]))[0])
        policies += [
            policy_of(release.policy or b"", actions=len(ACTIONS))
            for release in engine.observe(None, action=ACTIONS[arm], loss=float(row[arm]))
            if release.kind == SUMS
        ]
    blocks = len(answer.shares.shares)
    assert (np.array(policies[:blocks]) / PARTS == answer.shares.shares).all()


def test_does_it_matter_how_a_log_of_losses_is_cut() -> None:
    """Keys over two partitions, read in pieces of 13 rows and of 577: the same regrets, with
    contexts as well."""
    chance = np.random.default_rng(3)
    losses = chance.random((900, 4)).astype(np.float32)
    keys = [[b"a", b"b", None][at] for at in chance.integers(0, 3, 900).tolist()]
    partitions = np.sort(chance.integers(0, 2, 900))
    contexts = Contexts.read({"device": ["phone", "desktop"]})
    within = SlotCells(contexts, chance.integers(0, contexts.cells, 900))
    texts = (*TEXTS[:3], "policy_contexts:schedule=capped 32")
    grid = cells_of(texts, (HALF,), actions=("a", "b", "c", "d"), contexts=contexts)
    cells = grid
    regrets = []
    for step in (577, 13):
        log_keys, _, answers = play_losses(
            Pieces(losses, keys, partitions, step=step), cells, Bench((1, 2, 3)), within=within
        )
        assert log_keys.slots == 900
        regrets.append([answer.regret for answer in answers])
    for whole, small in zip(*regrets, strict=True):
        assert whole is not None
        assert np.allclose(whole, small, rtol=1e-12)


def test_is_exact_regret_that_of_the_simulation() -> None:
    """Another program for the same world (binomial sums): mean regrets within 6 errors (2e-9)."""
    world = World.of_rewards("three", MEANS.tolist())
    candidates = parse_candidates("policy_blocks", observes="feedback")
    (expected,) = simulate(candidates, [HALF], [world], SimulationSize(400, 2000))
    clicks = np.random.default_rng(1).random((40, 2000, 3)) < MEANS
    regrets = []
    for run, own in enumerate(clicks):
        log = ArrayLog("log", ACTIONS, 1 - own.astype(np.float32))
        _, _, (answer,) = play_losses(log, CELLS[:1], Bench((run,)))
        # against the best action of the world, as the simulation has it
        shares, starts = answer.shares.shares, answer.shares.starts
        lengths = np.diff(starts, append=2001)
        regrets.append(float(((MEANS.max() - shares @ MEANS) * lengths).sum()))
    error = np.hypot(scipy.stats.sem(regrets), expected.error)
    assert abs(np.mean(regrets) - expected.mean) < 6 * error


def test_is_rejection_a_live_run_on_a_part_of_the_records() -> None:
    """Uniform draws: about a third of the records are met, and the mean reward is that of the
    simulation over as many slots (6 errors, 2e-9); even draws weighed alone would be lower."""
    world = World.of_rewards("three", MEANS.tolist())
    even = np.full(3, 1 / 3)
    rewards, met = [], []
    for seed in range(40):
        log = made_up(3000, seed=seed, draws=even)
        (answer,) = reject(log, CELLS[:1], Bench((seed,)))
        assert answer.accepted is not None
        met.append(int(answer.accepted[0]))
        rewards.append(float(answer.rewards[0]))
    assert abs(np.mean(met) - 1000) < 6 * np.sqrt(3000 * 2 / 9 / 40)
    candidates = parse_candidates("policy_blocks", observes="feedback")
    size = SimulationSize(400, int(np.mean(met)))
    (expected,) = simulate(candidates, [HALF], [world], size)
    value = MEANS.max() - expected.mean / int(np.mean(met))
    error = np.hypot(scipy.stats.sem(rewards), expected.error / 1000)
    assert abs(np.mean(rewards) - value) < 6 * error
    assert value > MEANS.mean() + 12 * error


def test_would_learning_from_every_record_be_noticed() -> None:
    """The mutant: were records that it did not draw learned from, it would be further after the
    same number of records met."""
    even = np.full(3, 1 / 3)
    log = made_up(3000, seed=1, draws=even)
    (lived,), (fed,) = (
        method(log, CELLS[:1], Bench(tuple(range(20)))) for method in (reject, weigh)
    )
    assert lived.charge.slots < fed.charge.slots / 2
    assert lived.accepted is not None
    assert lived.accepted.max() < 1300


@pytest.mark.parametrize(
    ("played", "room", "contexts"),
    [
        ("header", 0, None),
        ("value", 0, None),
        ("header", 2, None),
        ("header", 2, FIELDS),
        ("value", 2, FIELDS),
    ],
)
def test_is_the_fold_what_a_live_service_released(
    played: str, room: int, contexts: Contexts | None, tmp_path: Path
) -> None:
    """The real service on its topic, with garbage headers and payloads and a key of 2,000 bytes,
    which gets no learner, and a list that it takes, maybe with a name that records had before:
    each line and policy."""
    recipe = "policy_contexts" if contexts else "policy_blocks"
    text = f"{recipe}:schedule=capped 8:played={played}"
    of_room, spare = (f":room={room}" if room else ""), [SPARE] * room
    (cell,) = cells_of((text + of_room,), (HALF,), actions=(*SERVED, *spare), contexts=contexts)
    learner = cell.learner
    padding: dict[str, Any] = {"padding": "fixed"} if contexts and played == "value" else {}
    made = feedback_spec(learner=learner, **padding)
    listed = {"actions": (*SERVED, "d"), "epoch": 1} if room else {"actions": SERVED}

    def newer(line: bytes, _: bytes | None) -> bytes:
        return line

    async def run() -> Room:
        life = Room([made], partitions=2)
        async with life.worker():
            for paused in ([], [SERVED[1]]):
                of = listed if paused else {"actions": SERVED}
                line = list_record(1 + len(paused), paused=paused, **of).value
                life.log.revise(made.topics, partial(newer, line))
                records, headers = shown(200, keys=(b"fr", b"de", None, b"x" * 2000))
                headers[::5] = [[("streamdp-action", b"d")] for _ in headers[::5]]
                if contexts:
                    records, headers = in_cells(records, headers, played)
                life.send("clicks", records, headers)
                await life.until(life.is_read)
        return life

    life = asyncio.run(run())
    lines = [
        decode_ledger(record.value)
        for number in range(2)
        for record in life.evidence(Partition("clicks", number)).ledger
    ]
    (tmp_path / "lines").write_bytes(
        b"\n".join(
            record.value
            for number in range(2)
            for record in life.evidence(Partition("clicks", number)).ledger
        )
    )
    taken = read_taken_lists(tmp_path / "lines", "clicks", 1, configured=SERVED)
    assert len(taken.lists) == 4
    assert taken.columns == ((*SERVED, "d", SPARE) if room else ())
    names = (*SERVED, "d") if room else SERVED
    feedback = Feedback(names, "reward", learner.played, contexts=contexts)
    log = topic_log(
        MemoryTechnology(life.log),
        "clicks-shown",
        ReadOptions(actions=names, format_options=padding),
        feedback,
        name="topic",
    )
    asked = FeedbackQuestion(
        (taken.learner(text),), (HALF,), (7,), stream="clicks", logged="service", taken=taken
    )
    replayed = replay_shown(log, asked)
    ((_, _, releases),) = replayed.releases
    made_offline = {release.identity: release for release in releases}
    assert replayed.findings.refused == 400 - replayed.findings.slots > 50
    assert any("too long for a learner" in said.says for said in summary(replayed))
    longer = replay_shown(log, replace(asked, most_key_bytes=2000)).findings
    assert (longer.refused, longer.slots, longer.keys) == (0, 400, replayed.findings.keys + 1)
    with pytest.raises(InvalidConfig, match="keys too long"):
        replay_shown(log.with_learners([len(key or b"") > 9 for _, key in log.learners]), asked)
    charged = [line for line in lines if isinstance(line, Charge)]
    assert len(charged) == len(made_offline) > 30
    for line in charged:
        offline = made_offline[line.identity]
        drawn = line.released()
        assert (() if drawn is None else tuple(drawn)) == offline.numbers
    for number in range(2):
        for record in life.evidence(Partition("clicks", number)).actions:
            policy = decode_in_force(record.value)
            assert isinstance(policy, PolicyLine)
            assert from_base64(policy.policy, "policy") == made_offline[policy.identity].policy
    (answer,), longest = replayed.answers, replayed.findings.watched
    log = log.with_learners([len(key or b"") < 9 for _, key in log.learners])
    if room:
        log = log.in_columns(taken.columns)
    policies = [
        policy_of(of.policy or b"", actions=len(log.actions), cells=log.cells) / PARTS
        for of in releases
        if key_text(of.key, of.identity.partition) == longest
    ]
    shown_by = over_cells(np.array(policies), log.in_cells)
    assert answer.shares.shares.tolist() == shown_by[:, : len(names)].tolist()
    assert not shown_by[:, len(names) :].any()
    assert (answer.shares.shares[-1] == 0).sum() == 1  # what is paused
    (told,) = cast("list[dict[str, Any]]", as_json(replayed)["cells"])
    assert as_json(replayed)["actions"] == [*names]
    assert {*map(len, told["policy_over_time"]["policy"])} == {len(names)}
    assert contexts or len(told["experiment"]["chance_of_best"]) == len(names)
    unlisted = fold(log, learner, seed=7, stream="clicks", epoch=1)
    assert [r.policy for r in unlisted] != [r.policy for r in made_offline.values()]
    other = fold(log, learner, seed=8, stream="clicks", epoch=1)
    assert [r.numbers for r in other] != [r.numbers for r in made_offline.values()]


def test_a_list_of_other_actions_than_the_log_has_is_refused(tmp_path: Path) -> None:
    """Whether names came and went within the epoch, or the log is another stream's."""
    line = TakenList(
        schema=1, stream="clicks", partition=0, epoch=1, input="in", next_offset=9,
        list_ordinal=3, actions=[*SERVED, "d", SPARE], paused=["d"], ordinal=1, digest="",
        version="", seeded=True,
    )  # fmt: skip
    asked = FeedbackQuestion(
        ("policy_blocks",), (HALF,), (7,), stream="clicks", logged="service",
        taken=TakenLists((line,)),
    )  # fmt: skip
    with pytest.raises(InvalidConfig, match="list 3 of partition 0 has other actions"):
        replay_shown(made_up(300, seed=1), asked)
    taken = TakenLists.of([line], 2, configured=SERVED)
    assert taken.columns == (*SERVED, "d", SPARE)
    assert TakenLists.of([], 2, configured=SERVED).columns == (*SERVED, SPARE, SPARE)
    assert taken.learner("thompson") == "thompson:room=2"
    with pytest.raises(InvalidConfig, match=r"--actions: others.*as when the epoch began"):
        TakenLists.of([line], 2, configured=(*SERVED, "d"))
    with pytest.raises(InvalidConfig, match="which has room for 2 more"):
        TakenLists.of([line], 2, configured=None)


def test_a_ledger_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"{}")
    with pytest.raises(InvalidConfig, match="--ledger: unreadable"):
        read_taken_lists(tmp_path / "lines", "clicks", 1, configured=SERVED)


def test_says_a_log_without_propensities_what_was_released_all_the_same() -> None:
    """Policies need no propensities: those of the log are not looked at."""
    log = made_up(300, seed=1)
    bare = replace(log, pscore=np.full(log.slots, np.nan))
    (with_, without) = (weigh(either, CELLS[:1], Bench((1,)))[0] for either in (log, bare))
    assert (with_.shares.shares == without.shares.shares).all()
    assert without.reward is None
    assert without.value is None


@pytest.mark.parametrize(
    ("key", "shown"),
    [(None, {"key": None}), (b"fr", {"key": "fr"}), (b"\xff\x00", {"key_base64": "/wA="})],
)
def test_a_key_is_written_as_in_the_ledger(key: Key, shown: dict[str, str | None]) -> None:
    """Text, or base64 if it is not UTF-8: two keys are never written alike."""
    identity = Identity("clicks", 0, key, 1, 0, 0, SUMS)
    written = release_as_json(Release(identity, (0, 0), 1, 2, 0, 0, Fraction(1)), pairs=False)
    assert {name: written[name] for name in written if name.startswith("key")} == shown
