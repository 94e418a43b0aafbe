"""The golden files of the engine, made anew: `python -m tests.golden`.

They hold the digest of every learner, and what a seeded engine releases and saves over a small log,
recipe by recipe. A difference means that rows saved by another version cannot be read, or that the
same seed releases something else: a privacy event, to be explained in the commit that makes it.

A recipe that is not named here is in the files with its defaults; name it to add options.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TypeVar

import numpy as np

import streamdp as sd
from streamdp.core.events import Batch, Key
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.lab.learners.follow_the_leader import follow_the_leader
from tests.support.batches import feedback_batch, loss_batch

GOLDEN = Path(__file__).parent / "golden" / "engine"
ACTIONS = ("a", "b", "c")
DEVICES = Contexts.read('{"device":["phone"]}')


L = TypeVar("L", sd.Leader, PolicyLearner)


def by_line(learners: Iterable[L]) -> dict[str, L]:
    """Learners by the lines that they have in the files."""
    return {f"{learner} {'/'.join(learner.actions)}": learner for learner in learners}


def unnamed(recipes: Mapping[str, Callable[..., L]], named: Iterable[L]) -> list[L]:
    """A learner of every other recipe, with its defaults."""
    others = sorted(recipes.keys() - {learner.name for learner in named})
    return [plain(recipes[name], ACTIONS) for name in others]


def plain(made: Callable[..., L], actions: Sequence[str], **options: str) -> L:
    """What a recipe makes of what it cannot do without: arms in two cells, if it has contexts."""
    takes = signature(made).parameters
    if "context" in takes:
        options, actions = {"context": str(DEVICES), **options}, DEVICES.arms(tuple(actions))
    return made(actions=actions, **{"epsilon": "1/2"} if "epsilon" in takes else {}, **options)


def every_learner() -> dict[str, sd.Leader]:
    """Every recipe with every kind of option, by its line."""
    made = [
        sd.incumbent_leader(actions=ACTIONS, epsilon="1/2"),
        sd.incumbent_leader(actions=ACTIONS, epsilon="1/3"),
        sd.incumbent_leader(actions=("a", "b"), epsilon="1/2"),
        sd.incumbent_leader(actions=("b", "a", "c"), epsilon="1/2"),
        sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", bonus=0),
        sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", bonus="0.3"),
        sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", schedule=sd.capped(8)),
        sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", schedule=sd.capped(9)),
        sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", schedule=sd.restarting(9)),
        sd.prefix_softmax(actions=ACTIONS, epsilon="1"),
        sd.prefix_softmax(actions=ACTIONS, epsilon="1", cap=None),
        sd.prefix_softmax(actions=ACTIONS, epsilon="1", cap="1/16"),
        *(
            sd.noisy_leader(actions=ACTIONS, epsilon="1", noise=noise, resample=resample)
            for noise in ("laplace", "gumbel", "exponential")
            for resample in ("none", "bernoulli")
        ),
        sd.naive_noisy_leader(actions=ACTIONS, epsilon="1"),
        follow_the_leader(actions=ACTIONS),
        follow_the_leader(actions=ACTIONS, schedule="geometric 3"),
        follow_the_leader(actions=ACTIONS, window="running"),
        sd.remembering_leader(actions=ACTIONS, epsilon="1/2"),
        sd.remembering_leader(actions=ACTIONS, epsilon="1/2", schedule="geometric 5/2 to 3"),
        sd.remembering_leader(actions=ACTIONS, epsilon="1/2", schedule="capped 1", hazard="1/9"),
        sd.remembering_leader(actions=ACTIONS, epsilon="1/2", schedule="dyadic"),
    ]
    return by_line([*made, *unnamed(sd.RECIPES, made)])


LEARNERS = every_learner()
"""Every learner of the golden set by its line."""


def log(actions: int) -> Batch:
    """Forty slots of three keys, made by arithmetic alone; two of them are bad."""
    slots = np.arange(40)
    losses = (slots[:, None] * 37 + np.arange(actions) * 61 + slots[:, None] ** 2) % 101 / 100
    losses[[7, 23], [0, 1]] = [np.nan, np.inf]
    keys: list[Key] = [b"fr", None, b"\xff"]
    return loss_batch(keys, slots * 5 % 7 % 3, losses.astype(np.float32), slots * 2)


def folded(learner: sd.Leader) -> list[str]:
    """What a seeded engine releases over the log, then the rows that it saves."""
    private = learner.charge is not None
    machine = sd.Engine(
        stream="home",
        partition=3,
        epoch=2,
        learner=learner,
        budget="5" if private else None,
        randomness=sd.SeededRandomness("golden"),
        estimates=[sd.estimate("block_regret", epsilon="1/4", min_length=3)] if private else [],
    )
    lines = [
        f"{release.key!r} {release.kind} {release.identity.block} = {release.value}"
        f" on [{release.start}, {release.stop}) of {release.first_offset} to {release.last_offset}"
        f" for {release.epsilon}" + ("" if release.in_force is None else f", {release.in_force}")
        for release in machine.apply_batch(log(len(learner.actions)))
    ]
    return lines + [f"{key!r} {row.hex()}" for key, row in machine.save()]


CELLS = DEVICES.arms(("a", "b"))


def every_policy() -> dict[str, PolicyLearner]:
    """Every recipe of a feedback learner, by its line."""
    make = FEEDBACK_RECIPES
    made = [
        make["policy_blocks"](actions=ACTIONS, epsilon="1/2"),
        make["policy_blocks"](actions=ACTIONS, epsilon="1/2", schedule="capped 4"),
        make["policy_blocks"](actions=ACTIONS, epsilon="1/2", spread="1", floor="4"),
        make["policy_blocks"](actions=ACTIONS, epsilon="1/2", forgetting="1/2"),
        make["policy_blocks"](actions=ACTIONS, epsilon="1/2", played="value"),
        make["policy_following"](actions=ACTIONS, epsilon="1/2"),
        make["policy_following"](actions=ACTIONS, epsilon="1/2", schedule="capped 4"),
        make["policy_elimination"](actions=ACTIONS, epsilon="1/2"),
        make["policy_weights"](actions=ACTIONS, epsilon="1/2", schedule="capped 4"),
        make["policy_contexts"](
            actions=CELLS, epsilon="1/2", context=DEVICES, schedule="capped 3200"
        ),
        make["policy_contexts"](
            actions=CELLS, epsilon="1/2", context=DEVICES, schedule="capped 6400", played="value"
        ),
        make["thompson"](actions=ACTIONS),
        make["ucb1"](actions=ACTIONS),
    ]
    return by_line([*made, *unnamed(FEEDBACK_RECIPES, made)])


POLICIES = every_policy()
"""Every feedback learner of the golden set by its line."""


def shown_log(actions: int) -> Batch:
    """Forty slots of three keys, made by arithmetic alone; some name no known arm."""
    slots = np.arange(40)
    played = (slots * 7 + slots**2) % (actions + 1) - 1
    gain = (slots * 99_991 + slots**3 * 7) % (UNIT + 1) - UNIT // 2
    keys: list[Key] = [b"fr", None, b"\xff"]
    return feedback_batch(keys, slots * 5 % 7 % 3, played.astype(np.int32), gain, slots * 2)


def folded_policies(learner: PolicyLearner) -> list[str]:
    """What a seeded engine releases over the log, then the rows that it saves."""
    machine = sd.Engine(
        stream="home",
        partition=3,
        epoch=2,
        learner=learner,
        budget="5" if learner.charge else None,
        randomness=sd.SeededRandomness("golden"),
    )
    lines = []
    for release in machine.apply_batch(shown_log(len(learner.actions))):
        sums = [] if release.sums is None else [column.tolist() for column in release.sums]
        parts = np.frombuffer(release.policy or b"", "<u4").tolist()
        lines.append(
            f"{release.key!r} {release.kind} {release.identity.block} = {sums} then {parts}"
            f" on [{release.start}, {release.stop}) of {release.first_offset} to"
            f" {release.last_offset} for {release.epsilon}"
        )
    return lines + [f"{key!r} {row.hex()}" for key, row in machine.save()]


FILES: dict[str, Callable[[], object]] = {
    "learners.json": lambda: {line: learner.recipe.digest for line, learner in LEARNERS.items()},
    "folds.json": lambda: {line: folded(learner) for line, learner in LEARNERS.items()},
    "policies.json": lambda: {line: learner.recipe.digest for line, learner in POLICIES.items()},
    "policy_folds.json": lambda: {
        line: folded_policies(learner) for line, learner in POLICIES.items()
    },
}
"""Every golden file with what makes what must be in it."""


def text(content: object) -> str:
    """A golden file as it is written."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every file."""
    for name, made in FILES.items():
        (GOLDEN / name).write_text(text(made()))
