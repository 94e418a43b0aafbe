"""What do neighbouring logs through the real service prove of ε, and do broken ones show?

The shipped learners prove no more than they charge; noise of half the scale, a sum that is carried
over and a bad record that is dropped prove more. Bits are seeded by the test, so that it says the
same each time; at the confidence of the shipped verdicts one in a million audits is a false alarm.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from typer.testing import CliRunner

import streamdp as sd
from streamdp import cli
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import LossBatch
from streamdp.core.learners import Leader, incumbent_leader, learner_of
from streamdp.core.selection import Exponential, NoisyMaxLaplace, PermuteAndFlip
from streamdp.lab import audit
from streamdp.lab.audit.blackbox import (
    CONFIDENCE,
    EpsilonBound,
    Record,
    highest,
    lower_bound,
    lowest,
    pairs,
)
from streamdp.lab.commands._black_box import served, spec_of
from streamdp.lab.commands.audit import SHIPPED
from streamdp.ports import Records, Technology
from streamdp.service import batches, protocol
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp.wire.formats import Format
from streamdp_adapters.sqlite import Settings, Sqlite
from tests.support.kind_mutants import keeps_sums

pytestmark = pytest.mark.slow

Patch = pytest.MonkeyPatch
PATIENT = 0.95  # confidence at which the published numbers of runs are stated


def shipped(options: dict[str, str]) -> Leader:
    return learner_of({**options, "epsilon": "1"}, actions=["x", "y"])


HONEST = shipped({"recipe": "noisy_leader", "noise": "exponential"})


def memory() -> Technology:
    """A new cluster for each pair."""
    return MemoryTechnology(MemoryLog(gap=1))


def proven(
    learner: Leader,
    *,
    runs: int,
    confidence: float = CONFIDENCE,
    make: Callable[[], Technology] = memory,
    seed: int = 5,
    which: slice = slice(None),
) -> list[EpsilonBound]:
    """What each pair proves of a learner behind the real service, its bits by a seed."""
    names = itertools.count()
    bounds = []
    for pair in pairs(learner.schedule, spec_of(learner, stream="x").loss_format)[which]:
        spec = spec_of(learner, stream=f"pair-{next(names)}")
        spec = replace(spec, randomness=sd.SeededRandomness(seed))
        technology = make()

        def run(log: Sequence[Record], spec: object = spec, on: object = technology) -> list[bytes]:
            return asyncio.run(served(spec, on, log))  # type: ignore[arg-type]

        bounds.append(lower_bound(pair, run, runs=runs, confidence=confidence))
    return bounds


@pytest.mark.parametrize("options", SHIPPED, ids=lambda options: "-".join(options.values()))
def test_do_shipped_learners_prove_no_more_than_they_charge(options: dict[str, str]) -> None:
    learner = shipped(options)
    bounds = proven(learner, runs=300)
    assert len(bounds) == 3
    assert learner.charge is not None
    assert max(bound.epsilon for bound in bounds) <= learner.charge


def test_is_the_bound_close_to_what_is_charged() -> None:
    """The audit would see a little more than it may: the honest learner is near its ε."""
    (bound,) = proven(HONEST, runs=3000, confidence=PATIENT, which=slice(1))
    assert 0.7 < bound.epsilon <= 1


@pytest.mark.parametrize(
    ("choose", "runs"),
    [
        (PermuteAndFlip(Fraction(1)), 300),  # Exp(1/ε)
        (NoisyMaxLaplace(Fraction(1)), 1400),  # Lap(1/ε)
        (Exponential(Fraction(1)), 1400),  # softmax at η = ε
    ],
    ids=lambda value: str(value),
)
def test_is_noise_of_half_the_scale_refuted(
    choose: PermuteAndFlip | NoisyMaxLaplace | Exponential, runs: int
) -> None:
    """By so many runs on each side, at 95 % confidence, as the papers print them."""
    bound = proven(replace(HONEST, choose=choose), runs=runs, confidence=PATIENT, which=slice(1))[0]
    assert bound.epsilon > 1, bound


def test_is_the_default_learner_with_half_the_noise_refuted(tmp_path: Path) -> None:
    """With its bonus, on the embedded files, at the confidence of verdicts."""
    broken = replace(shipped({"recipe": "incumbent_leader"}), choose=PermuteAndFlip(Fraction(1)))
    where = itertools.count()

    def files() -> Technology:
        path = str(tmp_path / f"{next(where)}.db")
        return Sqlite(Settings.from_mapping({"path": path}))

    honest = proven(shipped({"recipe": "incumbent_leader"}), runs=500, make=files, which=slice(1))
    bound = proven(broken, runs=2000, make=files, which=slice(1))[0]
    assert honest[0].epsilon <= 1 < bound.epsilon


def test_is_a_dropped_record_refuted(monkeypatch: Patch) -> None:
    """A service that leaves unusable records out ends the block later: a release is missing."""
    decode = batches.decode

    def dropping(format_: Format, records: Sequence[Records], **limits: Any):  # type: ignore[no-untyped-def]
        batch, refused = decode(format_, records, **limits)
        assert isinstance(batch, LossBatch)
        keep = np.asarray(np.isfinite(batch.losses).all(axis=1))
        columns = (batch.index[keep], batch.losses[keep], batch.offsets[keep])
        return type(batch)(batch.keys, *columns), refused

    monkeypatch.setattr(protocol, "decode", dropping)
    bound = proven(HONEST, runs=100, which=slice(1, 2))[0]
    assert bound.event == "a release is missing"
    assert bound.epsilon > 1


def test_is_a_block_that_is_not_reset_refuted(monkeypatch: Patch) -> None:
    """An event is in the sums of the next block too: both releases together tell more than ε."""
    keeps_sums(monkeypatch)
    bound = proven(HONEST, runs=2500, confidence=PATIENT, which=slice(1))[0]
    assert "before" in bound.event
    assert bound.epsilon > 1


# The numbers


@pytest.mark.parametrize(("count", "runs"), [(0, 1), (0, 300), (7, 300), (150, 300), (299, 300)])
def test_are_the_bounds_those_of_clopper_and_pearson(count: int, runs: int) -> None:
    for error in (0.025, 1e-7):
        exact = scipy.stats.binomtest(count, runs).proportion_ci(1 - 2 * error, "exact")
        assert highest(count, runs, error=error) == pytest.approx(exact.high, rel=1e-9)
        assert lowest(count, runs, error=error) == pytest.approx(exact.low, rel=1e-9, abs=1e-15)


def test_is_a_certain_event_never_more_than_seen() -> None:
    assert (highest(10, 10, error=0.1), lowest(0, 10, error=0.1)) == (1, 0)


def test_is_an_event_that_one_side_never_shows_bounded_all_the_same() -> None:
    """Never seen is not impossible: the bound is finite."""
    (pair, *_) = pairs(HONEST.schedule, spec_of(HONEST, stream="x").loss_format)
    bound = lower_bound(pair, lambda log: [], runs=50)
    assert (bound.epsilon, bound.event) == (0.0, "none")
    assert log(lowest(50, 50, error=1e-6) / highest(0, 50, error=1e-6)) < inf


def test_are_the_logs_neighbours() -> None:
    """One record differs, and nothing that is public about it but its length."""
    for pair in pairs(HONEST.schedule, spec_of(HONEST, stream="x").loss_format):
        differ = [one != other for one, other in zip(*pair.streams, strict=True)]
        assert sum(differ) == 1
        assert len(pair.streams[0]) == HONEST.schedule.stop(pair.block + 1) - 1


def test_is_a_box_of_three_actions_refused() -> None:
    with pytest.raises(InvalidConfig, match="black box: actions; expected two, got 3"):
        pairs(HONEST.schedule, sd_format(3))


def sd_format(actions: int) -> Format:
    learner = sd.incumbent_leader(actions=[str(n) for n in range(actions)], epsilon="1")
    return spec_of(learner, stream="x").loss_format


# The command


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.application(), list(args))
    return result.exit_code, result.output


SHARED = audit.Memo()
"""What does not depend on a rate; no command is run on a broken engine."""


@pytest.fixture
def the_engine_is_audited_once(monkeypatch: Patch) -> None:
    """By the first command that is run."""
    monkeypatch.setattr(audit, "Memo", lambda: SHARED)


once = pytest.mark.usefixtures("the_engine_is_audited_once")

QUICK = ("audit", "--recipe", "incumbent_leader", "--epsilon", "1", "--actions", "2",
         "--samples", "1000", "--black-box", "--runs", "250")  # fmt: skip


@once
def test_does_the_command_tell_what_the_service_proves() -> None:
    code, out = run(*QUICK, "--json")
    (audit,) = json.loads(out)
    assert code == 0
    assert 0 <= audit["epsilon_proven"] <= 1


@once
def test_does_the_table_have_a_column_for_it(monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    code, out = run(*QUICK[:-1], "100")
    assert code == 0
    assert "seen from outside" in out
    assert "ε ≥" in out


@once
def test_does_the_command_fail_for_a_service_that_proves_more(monkeypatch: Patch) -> None:
    monkeypatch.setattr(incumbent_leader, "permute_and_flip_rate", lambda epsilon: 4 * epsilon)
    code, out = run(*QUICK, "--json")
    (audit,) = json.loads(out)
    assert code == 1
    assert any("from outside" in failure for failure in audit["failures"])


def test_is_a_service_that_halts_no_proof(monkeypatch: Patch) -> None:
    """The audit says why instead of taking silence for privacy."""

    def refuse(*args: object, **more: object) -> None:
        raise StateMismatch("on purpose")

    monkeypatch.setattr(protocol, "open_partition", refuse)
    with pytest.raises(StateMismatch, match="on purpose"):
        proven(HONEST, runs=10)
