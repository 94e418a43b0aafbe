"""Does what is in force follow from releases alone, whatever the kind?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest

import streamdp as sd
from streamdp.core.arrays import Bools, Columns, Ints
from streamdp.core.bank import Gathered
from streamdp.core.engine import Rebuilding, plan
from streamdp.core.events import ACTION, OPENING, SUMS, After, Batch, Carried, Key
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.votes import Votes
from streamdp.core.grid import UNIT
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.losses import Leader
from streamdp.core.randomness import Bits
from streamdp.core.releases import RecordedReleases
from tests.golden_engine import LEARNERS, POLICIES, log, shown_log
from tests.support.batches import changed
from tests.support.remembering import remembering

KINDS: dict[str, Kind] = {**LEARNERS, **POLICIES}
PRIVATE = {name: kind for name, kind in KINDS.items() if kind.releases[0].epsilon}
KEYS: list[Key] = [b"fr", None, b"\xff"]


def engine(kind: Kind, seed: str = "kinds") -> sd.Engine:
    """A seeded engine of this kind."""
    return sd.Engine(
        stream="home", partition=0, learner=kind, randomness=sd.SeededRandomness(seed),
        budget="9" if kind.releases[0].epsilon else None,
    )  # fmt: skip


def log_of(kind: Kind) -> Batch:
    """Forty slots of three keys."""
    policies = kind.evidence.answers == "policy"
    return (shown_log if policies else log)(len(kind.actions))


def neighbour_of(batch: Batch) -> Any:
    """The same records with other contents everywhere."""
    if "losses" in batch.content:
        return changed(batch, losses=batch.content["losses"][::-1].copy())
    return changed(batch, gain=UNIT // 2 - np.abs(batch.content["gain"]))


def answers(machine: sd.Engine) -> list[Any]:
    """What is in force for each key."""
    if machine.kind.evidence.answers == "action":
        return [machine.action(key) for key in KEYS]
    policies = [machine.in_force(key) for key in KEYS]
    return [None if policy is None else policy.tolist() for policy in policies]


def rebuilt_over_a_neighbour(kind: Kind) -> tuple[list[Any], list[Any]]:
    """What is in force live, and after a rebuild that reads other contents and these releases."""
    batch, machine = log_of(kind), engine(kind)
    releases = machine.apply_batch(batch)
    rebuilding = Rebuilding(engine(kind, "others"), rows=[], releases=releases)
    rebuilding.feed(neighbour_of(batch))
    again = rebuilding.finish(position=machine.position, rows=len(machine))
    return answers(machine), answers(again)


@pytest.mark.parametrize("name", KINDS)
def test_what_is_in_force_is_the_same_for_other_contents_with_the_same_releases(name: str) -> None:
    live, again = rebuilt_over_a_neighbour(KINDS[name])
    assert live == again


@dataclass(frozen=True)
class Peeking(Leader):
    """A broken kind: it remembers sums where it draws, and its evidence puts in force the best."""

    seen: list[Ints] = field(default_factory=list, compare=False)

    def draw(
        self, name: str, private: Columns, public: Columns, bits: Callable[[int], Bits]
    ) -> Ints:
        """The vote as shipped; its sums are kept."""
        self.seen[:] = [private["sums"]]
        return super().draw(name, private, public, bits)

    @property
    def evidence(self) -> Votes:
        """Votes that know the sums."""
        return PeekingVotes(self.memory, seen=self.seen)


@dataclass(frozen=True)
class PeekingVotes(Votes):
    """Evidence that shares a list with a kind's draws."""

    seen: list[Ints] = field(default_factory=list)

    def fold(
        self, public: Columns, released: Ints, lengths: Ints, allowed: Bools | None = None
    ) -> Columns:
        """The best of the sums that were drawn from."""
        now = super().fold(public, released, lengths, allowed)
        return {**now, "action": self.seen.pop().argmin(axis=1)} if self.seen else now


def test_a_kind_that_folds_sums_that_it_remembers_is_caught() -> None:
    """The imports of evidence forbid it; a rebuild, which draws nothing, shows it."""
    sound = remembering(sd.incumbent_leader(actions=("a", "b", "c"), epsilon="1/2"))
    parts: dict[str, Any] = {of.name: getattr(sound, of.name) for of in fields(sound)}
    live, again = rebuilt_over_a_neighbour(sound)
    assert live == again
    with pytest.raises(sd.StateMismatch, match="another action was in force"):
        rebuilt_over_a_neighbour(Peeking(**parts))


@pytest.mark.parametrize("name", KINDS)
def test_evidence_alone_arrives_at_what_is_in_force(name: str) -> None:
    """Anybody who has the releases of a key computes what the engine says."""
    kind = KINDS[name]
    machine, evidence = engine(kind), kind.evidence
    releases = list(machine.apply_batch(log_of(kind)))
    for key, said in zip(KEYS, answers(machine), strict=True):
        public = {of.name: np.zeros((1, *of.shape), dtype=of.dtype) for of in evidence.fields}
        block = 0
        for release in (release for release in releases if release.key == key):
            drawn = np.array([release.numbers])
            if release.kind == OPENING:
                public |= evidence.opened(drawn)
            else:
                length = np.array([release.stop - release.start])
                public |= evidence.fold(public, drawn, length)
                block = release.identity.block + 1
        lengths = kind.schedule.lengths(np.array([block]))
        (in_force,) = evidence.in_force(public, lengths)
        expected = (
            kind.actions[int(in_force)] if evidence.answers == "action" else in_force.tolist()
        )
        assert said == expected


@pytest.mark.parametrize("name", KINDS)
def test_recorded_releases_are_read_back_as_they_were_drawn(name: str) -> None:
    """As rows of a table, and as a `Release` each: the same table again, and searched by name."""
    machine = engine(KINDS[name])
    drawn = machine.apply_batch(log_of(KINDS[name]))
    assert len(drawn) > 5
    again, recorded = machine.no_releases.of(list(drawn)), RecordedReleases(machine.no_releases)
    recorded.add(drawn)
    found = recorded.at(recorded.places(drawn))
    assert list(drawn) == list(again) == list(found)
    assert again.numbers.tolist() == found.numbers.tolist() == drawn.numbers.tolist()


@pytest.mark.parametrize("name", PRIVATE)
def test_the_first_release_is_the_only_evidence(name: str) -> None:
    """Every block has it."""
    kind = PRIVATE[name]
    first, *others = kind.releases
    assert first.shortest == 1
    assert others == []
    assert kind.with_estimates([]) == kind


def test_estimates_are_further_releases_of_a_stream_of_losses() -> None:
    regret = sd.estimate("block_regret", epsilon="1/4", min_length=3)
    kind = LEARNERS[next(iter(LEARNERS))].with_estimates([regret])
    assert [(of.name, str(of.epsilon), of.shortest) for of in kind.releases] == [
        (ACTION, "1/2", 1), ("block_regret", "1/4", 3),
    ]  # fmt: skip
    assert {of.name for of in kind.fields} == {"sums", "totals", "nulls"}
    with pytest.raises(sd.InvalidConfig, match="not on a feedback stream"):
        next(iter(POLICIES.values())).with_estimates([regret])


def worst_deviation(kind: Kind, name: str, private: Columns) -> float:
    """How far frequencies of one row's draws are from the law, in standard deviations.

    Of each draw's number j of possible ones; where there is noise, of p(x + s)/p(x) for a shift s,
    whose mean is Σ p(x + s) = 1.
    """
    rows, actions = 20_000, len(kind.actions)
    private = {of: np.repeat(column[None], rows, axis=0) for of, column in private.items()}
    rule = kind.rule if isinstance(kind, PolicyLearner) else None
    finest = len(rule.tables) - 1 if isinstance(rule, ContextModel) else 0
    public = {
        "action": np.zeros(rows, dtype=np.int32),
        "table": np.full(rows, finest, dtype=np.int32),
    }
    source = sd.SeededRandomness("law")
    tag = source.tag("home", 0, b"fr", 1, 0)
    tags = np.frombuffer(tag, np.uint8)[None].repeat(rows, axis=0)

    def bits(purpose: int) -> Bits:
        return source.bits("home", purpose, tags, np.arange(rows))

    drawn = kind.draw(name, private, public, bits)
    if name == ACTION:
        few = {of: column[:actions] for of, column in (private | public).items()}
        chances = np.exp(kind.law(name, few, few, np.arange(actions)[:, None]))
        assert chances.sum() == pytest.approx(1)
        shares = np.bincount(drawn[:, 0], minlength=actions) / rows
        errors = np.sqrt(chances * (1 - chances) / rows) + 1e-9
        return float((np.abs(shares - chances) / errors).max())
    law, deviations = kind.law(name, private, public, drawn), []
    for at in range(drawn.shape[1]):
        shifted = drawn.copy()
        shifted[:, at] += UNIT if at < actions else 1
        ratios = np.exp(kind.law(name, private, public, shifted) - law)
        if not ratios.any():  # an exact count
            continue
        deviations.append(abs(ratios.mean() - 1) / (ratios.std() / np.sqrt(rows) + 1e-9))
    return float(max(deviations))


@pytest.mark.parametrize("name", PRIVATE)
def test_draws_follow_the_law_that_a_kind_states(name: str) -> None:
    """Within 6 standard deviations (false alarms below 10⁻⁷); counts without noise are exact."""
    kind = PRIVATE[name]
    if kind.evidence.answers == "action":
        kind = kind.with_estimates([sd.estimate("mean_loss", epsilon=1, min_length=1)])
    arms = np.arange(1, len(kind.actions) + 1)
    private = {
        of.name: (arms if of.shape else np.array(2)).astype(of.dtype)
        * (UNIT if of.name != "shown" else 1)
        for of in kind.fields
    }
    for release in kind.releases:
        assert worst_deviation(kind, release.name, private) < 6


def test_the_law_allows_no_count_but_the_exact_one() -> None:
    kind = sd.policy_blocks(actions=("a", "b"), epsilon=1)
    private = {"sums": np.array([[5, 7]]), "shown": np.array([[2, 3]])}
    laws = [kind.law(SUMS, private, {}, np.array([[5, 7, 2, count]])).item() for count in (3, 4)]
    assert np.isfinite(laws[0])
    assert laws[1] == -np.inf


def test_a_recorded_release_has_its_name() -> None:
    machine = engine(next(iter(LEARNERS.values())))
    names = [of.identity[2:] for of in machine.apply(b"fr", [0.1, 0.2, 0.3])]
    assert names == [(b"fr", 1, 0, 0, OPENING), (b"fr", 1, 0, 0, ACTION)]


def test_columns_of_some_rows_are_gathered_by_name() -> None:
    columns = {"sums": np.arange(8).reshape(4, 2), "nulls": np.arange(4)}
    some = Gathered(columns, np.array([3, 1]))
    assert {name: column.tolist() for name, column in some.items()} == {
        "sums": [[6, 7], [2, 3]], "nulls": [3, 1],
    }  # fmt: skip
    assert len(some) == 2


def test_a_row_laid_out_alone_in_very_many_blocks_is_what_it_is_in_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bounds of few blocks are remembered at a time."""
    monkeypatch.setattr(plan, "_BLOCKS_REMEMBERED", 3)
    kind = sd.incumbent_leader(actions=("a", "b", "c"), epsilon="1/2", schedule=sd.capped(4))
    batch = log(3)
    alone, together = engine(kind), engine(kind)
    one_by_one = [
        release
        for at in range(len(batch.index))
        for release in alone.apply_batch(batch.part(slice(at, at + 1)))
    ]
    assert one_by_one == list(together.apply_batch(batch))


def test_evidence_says_which_releases_cannot_be() -> None:
    """Whoever reads a ledger asks before it folds: numbers of another shape or out of range."""
    votes = Votes(LEARNERS[next(iter(LEARNERS))].memory, actions=3)
    assert votes.wrong({}, np.array([2]), 1) == ""
    assert votes.wrong({}, np.array([3]), 1) == "a vote for action 3 of 3"
    assert votes.wrong({}, np.array([0, 1]), 1) == "a vote of 2 numbers"
    sums = sd.policy_blocks(actions=("a", "b"), epsilon=1).evidence
    assert sums.wrong({}, np.array([5, -9, 1, 2]), 3) == ""
    assert "more often than it has slots" in sums.wrong({}, np.array([5, -9, 1, 3]), 3)
    assert "below 0" in sums.wrong({}, np.array([5, -9, 3, -1]), 3)
    assert "another number of actions" in sums.wrong({}, np.array([5, 1]), 3)


def test_a_history_of_another_length_is_not_resumed() -> None:
    kind = sd.policy_blocks(actions=("a", "b"), epsilon=1)
    with pytest.raises(sd.StateMismatch, match="carried history: length; expected 32 bytes"):
        kind.evidence.resumed([Carried(0, 1, After(1, 0, 1), bytes(16))], np.array([2]))
    experiment = kind.recipe.experiment(actions=len(kind.actions))
    assert experiment is not None
    with pytest.raises(sd.StateMismatch, match="sums: length; expected 4 numbers, got 6"):
        experiment.add(np.arange(6))
