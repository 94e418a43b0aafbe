"""What seeded engines do over long, eventful logs: `python -m tests.golden` writes it anew.

Each story runs one configuration through frames, bad rows, a limit of rows, saves of a few rows,
kills with a rebuild from what was saved, and, where its name says so, keys that go idle or an epoch
that carries over. After each step everything that can be observed is noted as decoded fields:
releases, what is in force, charges, positions, and the fields of saved rows, but no bytes of a
format.

The golden file holds a digest of each step. Where a digest differs, run
`python -m tests.golden_corpus NAME` here and in a checkout of the commit before, and compare the
lines. A difference is a privacy event: the same seed releases something else, or another state
follows from the same releases.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import streamdp as sd
from streamdp.core.engine import Rebuilding
from streamdp.core.events import Batch, Key
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.core.releases import Release, Releases
from tests.golden_engine import LEARNERS, POLICIES
from tests.support.batches import feedback_batch, loss_batch
from tests.support.bequeathing import heritage_of
from tests.support.remembering import remembering

GOLDEN = Path(__file__).parent / "golden" / "corpus.json"
KEYS: tuple[Key, ...] = (b"fr", None, b"", b"\xff\x00", b"de", b"it", b"late", b"later")
MANY = tuple(f"action {number}" for number in range(130))
IDLE = 1000
"""Milliseconds after which keys leave, in the stories of idle keys."""

_FIELDS = (
    "epoch", "born", "valid_at", "slots", "block", "window", "first_offset", "nulls", "action",
    "sums", "totals", "remembered", "shown", "rewards", "losses", "seen",
)  # fmt: skip
"""Fields of saved rows, in the order in which the golden file has them."""


@dataclass(frozen=True)
class Story:
    """One configuration, and what happens to it."""

    learner: Any
    observes: str = "losses"
    estimates: tuple[sd.Estimate, ...] = ()
    idle: bool = False
    next_learner: Any = None  # of the second epoch
    slots: int = 420
    limit: int = 7
    seed: int = 1


def every_story() -> dict[str, Story]:
    """Every story by its name."""
    return {**stories_of_losses(), **eventful_losses(), **stories_of_feedback()}


def filtered() -> sd.Leader:
    """A learner whose votes are filtered from the first long blocks on."""
    return sd.remembering_leader(
        actions=("a", "b", "c"), epsilon="2", schedule="capped 4", hazard="1/9"
    )


def stories_of_losses() -> dict[str, Story]:
    """Every recipe, with frames, bad rows, a limit, saves and kills."""
    losses = {f"{name}": learner for name, learner in LEARNERS.items()}
    losses["twice in a row"] = remembering(
        sd.incumbent_leader(actions=("a", "b", "c"), epsilon="1/2", schedule=sd.capped(4))
    )
    losses["filtered"] = filtered()
    losses["many actions"] = sd.incumbent_leader(actions=MANY, epsilon="4")
    losses["many resampled"] = sd.noisy_leader(
        actions=MANY, epsilon="4", noise="laplace", resample="bernoulli"
    )
    return {f"losses: {name}": Story(learner) for name, learner in losses.items()}


def eventful_losses() -> dict[str, Story]:
    """A few recipes with estimates, idle keys and epochs."""
    regret = sd.estimate("block_regret", epsilon="1/4", min_length=3)
    estimates = (
        regret,
        sd.estimate("mean_loss", epsilon="1/8", min_length=7),
        sd.estimate("null_share", epsilon="1/8", min_length=1),
        sd.estimate("regret_vs_uniform", epsilon="1/8", min_length=3),
    )
    some = {
        "incumbent": sd.incumbent_leader(actions=("a", "b", "c"), epsilon="1/2"),
        "filtered": filtered(),
        "prefix": sd.prefix_softmax(actions=("a", "b", "c"), epsilon="1", cap=None),
        "resampled": sd.noisy_leader(
            actions=("a", "b", "c"), epsilon="1", noise="gumbel", resample="bernoulli"
        ),
    }
    other = sd.remembering_leader(
        actions=("new", "c", "a"), epsilon="2", schedule="capped 8", hazard="1/9"
    )
    stories: dict[str, Story] = {}
    for name, learner in some.items():
        stories |= {
            f"estimates: {name}": Story(learner, estimates=estimates),
            f"idle: {name}": Story(learner, idle=True, slots=600),
            f"idle, estimates: {name}": Story(
                learner, idle=True, estimates=(regret,), slots=600, seed=2
            ),
            f"epoch: {name}": Story(learner, next_learner=other, slots=600),
            f"epoch, idle: {name}": Story(
                learner, next_learner=replace(other, bonus=learner.bonus), idle=True, slots=700
            ),
        }
    return stories


def stories_of_feedback() -> dict[str, Story]:
    """Every recipe of feedback; some with idle keys and epochs."""
    make, actions = FEEDBACK_RECIPES, ("a", "b", "c")
    feedback = {
        **POLICIES,
        "many arms": make["policy_blocks"](actions=MANY, epsilon="2", schedule="capped 64"),
    }
    stories = {f"feedback: {name}": Story(of, observes="feedback") for name, of in feedback.items()}
    blocks = {
        "blocks": make["policy_blocks"](actions=actions, epsilon="1/2"),
        "value": make["policy_blocks"](actions=actions, epsilon="2", played="value"),
        "weights": make["policy_weights"](actions=actions, epsilon="1", schedule="capped 4"),
    }
    then = make["policy_elimination"](actions=("c", "new", "a"), epsilon="1", schedule="capped 8")
    for name, of in blocks.items():
        stories |= {
            f"feedback, idle: {name}": Story(of, "feedback", idle=True, slots=600),
            f"feedback, epoch: {name}": Story(of, "feedback", next_learner=then, slots=600),
        }
    return stories


def log(story: Story) -> Batch:
    """The whole log: frames of up to nine rows, gaps in the offsets, bad and extreme content."""
    rng = np.random.default_rng(story.seed)
    frames = np.where(rng.random(story.slots) < 0.15, rng.integers(2, 10, story.slots), 1)
    frames = frames[: int(np.searchsorted(np.cumsum(frames), story.slots)) + 1]
    weights = np.array([8, 6, 5, 4, 2, 1, 1, 1])
    of_record = rng.choice(len(KEYS), len(frames), p=weights / weights.sum())
    of_record[: len(frames) // 4] = of_record[: len(frames) // 4] % (len(KEYS) - 2)
    offsets = np.cumsum(rng.integers(1, 4, len(frames)))
    steps = rng.choice([0, 3, 40, 2 * IDLE], len(frames), p=[0.3, 0.5, 0.17, 0.03])
    times = np.cumsum(steps) + 5 - 20 * (rng.random(len(frames)) < 0.1)  # some come late
    index, offsets, times = (np.repeat(column, frames) for column in (of_record, offsets, times))
    n, actions = len(index), len(story.learner.actions)
    stamps = times if story.idle else None
    if story.observes == "losses":
        losses = (rng.random((n, actions)) * 1.2 - 0.1).astype(np.float32)
        bad = np.flatnonzero(rng.random(n) < 0.08)
        losses[bad, rng.integers(0, actions, len(bad))] = rng.choice(
            [np.nan, np.inf, -np.inf, 7.0], len(bad)
        )
        return loss_batch(list(KEYS), index, losses, offsets, stamps)
    played = rng.integers(-1, actions + 1, n).astype(np.int32)
    gain = rng.integers(-UNIT, UNIT, n)  # some beyond what a loss can be
    return feedback_batch(list(KEYS), index, played, gain, offsets, times=stamps)


@dataclass
class Run:
    """An engine, and what a service would keep of it."""

    story: Story
    learner: Any
    epoch: int = 1
    heritage: dict[Key, Any] = field(default_factory=dict)
    rows: dict[Key, bytes] = field(default_factory=dict)
    releases: list[Release] = field(default_factory=list)
    begins: int = 0
    engine: Any = None

    def fresh(self) -> sd.Engine:
        """A new engine of the epoch."""
        story = self.story
        return sd.Engine(
            stream="corpus",
            partition=2,
            epoch=self.epoch,
            learner=self.learner,
            budget="5" if self.learner.charge else None,
            randomness=sd.SeededRandomness(f"corpus {story.seed}"),
            estimates=story.estimates if self.learner.charge else (),
            limit=story.limit,
            heritage=dict(self.heritage),
            idle=IDLE if story.idle else None,
        )

    def apply(self, batch: Any) -> Releases:
        """Apply a batch."""
        released: Releases = self.engine.apply_batch(batch)
        self.releases += released
        return released

    def kill(self, whole: Any, cuts: Callable[[int, int], list[int]]) -> None:
        """Rebuild an engine from what was saved and recorded."""
        dead = self.engine
        rebuilding = Rebuilding(
            self.fresh(), rows=list(self.rows.items()), releases=self.releases, ages=dead.ages()
        )
        low = int(np.searchsorted(whole.offsets, max(dead.low_water(), self.begins)))
        end = int(np.searchsorted(whole.offsets, dead.position))
        for begin, stop in pairwise(cuts(low, end)):
            rebuilding.feed(part(whole, begin, stop))
        refused = dead.slots_refused
        self.engine = rebuilding.finish(position=dead.position, rows=dead.rows)
        self.engine.slots_refused = refused

    def next_epoch(self) -> None:
        """Begin the second epoch with what the first one's keys carry over."""
        story = self.story
        self.heritage = heritage_of(self.engine, story.next_learner)
        position = self.engine.position
        self.learner, self.epoch, self.begins = story.next_learner, 2, position
        self.rows, self.releases = {}, []
        self.engine = self.fresh()
        self.engine.skip_to(position)


def part(batch: Batch, begin: int, end: int) -> Batch:
    """Consecutive slots, with only the keys that occur in them."""
    some = batch.part(slice(begin, end))
    used, again = np.unique(some.index, return_inverse=True)
    keys = [batch.keys[key] for key in used.tolist()]
    return replace(some, keys=keys, index=again.astype(np.int64))


def cut(offsets: Any, rng: np.random.Generator, low: int, end: int) -> list[int]:
    """Borders between records from `low` to `end`: runs of single records, and longer batches."""
    borders, at = [low], low
    while at < end:
        size = int(rng.choice([1, 1, 1, 5, 40]))
        at = int(np.searchsorted(offsets, offsets[min(at + size, end) - 1], side="right"))
        borders.append(at)
    return borders


def lived(story: Story) -> Iterator[list[Any]]:
    """What can be observed after each step of a story, as decoded fields."""
    whole, rng = log(story), np.random.default_rng(story.seed + 1000)
    run = Run(story, story.learner)
    run.engine = run.fresh()
    borders = cut(whole.offsets, rng, 0, len(whole.index))
    middle = borders[len(borders) // 2]
    for begin, end in pairwise(borders):
        if begin == middle and story.next_learner is not None:
            run.next_epoch()
        released = run.apply(part(whole, begin, end))
        noted: list[Any] = [fields_of(release) for release in released]
        if rng.random() < 0.2:
            saved = run.engine.save(most=int(rng.integers(1, 4)))
            run.rows |= dict(saved)
            noted += [["row", repr(key), row_fields(run.engine, row)] for key, row in saved]
        if rng.random() < 0.08:
            run.kill(whole, lambda low, stop: cut(whole.offsets, rng, low, stop))
            noted.append("rebuilt")
        yield [*noted, state(run)]
    yield [
        ["row", repr(key), row_fields(run.engine, row)] for key, row in sorted_rows(run.engine)
    ] + [
        [repr(key), charge.start, charge.stop, str(charge.epsilon)]
        for key, charge in run.engine.ledger.export()
    ]


def sorted_rows(engine: sd.Engine) -> list[tuple[Key, bytes]]:
    """All unsaved rows, by key."""
    return sorted(engine.save(), key=lambda pair: repr(pair[0]))


def fields_of(release: Release) -> list[Any]:
    """A release as decoded fields; absent ones are left out."""
    sums = None if release.sums is None else [column.tolist() for column in release.sums]
    policy = None if release.policy is None else np.frombuffer(release.policy, "<u4").tolist()
    carried = release.carried
    optional = {
        "in force": release.in_force,
        "sums": sums,
        "policy": policy,
        "action": release.action,
        "carried": None
        if carried is None
        else [carried.action, carried.block, list(carried.after), (carried.history or b"").hex()],
    }
    key, rest = repr(release.key), release.identity
    name = [key, rest.epoch, rest.born, rest.block, rest.kind]
    slots = [release.start, release.stop, release.first_offset, release.last_offset]
    return [
        *name, release.value, *slots, str(release.epsilon),
        {what: value for what, value in optional.items() if value is not None},
    ]  # fmt: skip


def row_fields(engine: sd.Engine, row: bytes) -> dict[str, Any]:
    """The fields of a saved row, floats as the integers of their bits; zeros are left out."""
    layout = engine.layout
    table = np.frombuffer(row[: layout.dtype.itemsize], layout.dtype)
    named = {name: table[name] for name in _FIELDS if name in (layout.dtype.names or ())}
    bits = {
        name: np.ascontiguousarray(column).view("<i8") if column.dtype.kind == "f" else column
        for name, column in named.items()
    }
    return {
        name: column.tolist() if name == "seen" else column[0].tolist()
        for name, column in bits.items()
        if column.any()
    }


def state(run: Run) -> list[Any]:
    """What an engine says of itself."""
    engine: sd.Engine = run.engine
    ages = engine.ages()
    at = [engine.position, engine.low_water(), engine.open_since(), engine.rows, len(engine)]
    answers = engine.action if run.story.observes == "losses" else engine.in_force
    force = [answers(key) for key in KEYS]
    shown = [of.tolist() if isinstance(of, np.ndarray) else of for of in force]
    slots = [[engine.slots(key), engine.knows(key)] for key in KEYS]
    unsaved = engine.unsaved(before=engine.position - 10)
    return [
        *at, unsaved, engine.slots_refused, str(engine.ledger.highest()), shown, slots,
        None if ages is None else list(ages),
    ]  # fmt: skip


def text(step: list[Any]) -> str:
    """A step as one line."""
    return json.dumps(step, separators=(",", ":"))


def digests(story: Story) -> str:
    """A short digest of each step."""
    return " ".join(sha256(text(step).encode()).hexdigest()[:8] for step in lived(story))


def known() -> dict[str, str]:
    """The digests on record, by story."""
    recorded: dict[str, str] = json.loads(GOLDEN.read_text())
    return recorded


def main() -> None:
    """Write the golden file."""
    made = {name: digests(story) for name, story in every_story().items()}
    GOLDEN.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    for number, step in enumerate(lived(every_story()[sys.argv[1]])):
        print(number, text(step))
