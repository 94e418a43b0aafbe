"""Do a feedback stream's priors live through crashes, and can anybody compute policies again?"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import replace
from fractions import Fraction

import msgspec
import numpy as np
import pytest
from msgspec import UNSET
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core.bank import Bank
from streamdp.core.engine.crowding import PartitionCrowd
from streamdp.core.engine.draws import Fresh
from streamdp.core.evidence.control import NO_CONTROL, Control
from streamdp.core.evidence.experiment import Scales
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.learners.feedback.learner import pooling
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.service.agreements import told_of
from streamdp.service.batches import decode
from streamdp.service.history import StreamReleases
from streamdp.service.spec import StreamSpec
from streamdp.service.verification import Verification
from streamdp.testing.judge import judge
from streamdp.wire.lines import Charge, PriorLine
from streamdp.wire.published import Mode, decode_ledger
from streamdp.wire.recording import Lasts, record_all
from streamdp.wire.state import encode_recorded, largest_recorded, record
from tests.support.carrying import live, lives_the_same, openings, policies, store_of, stream
from tests.support.crowd_lines import lines_of, seen
from tests.support.crowd_mutants import everybody_is_told
from tests.support.protocol_model import Store, evidence, restore
from tests.support.streams import ACTIONS

APART = Control(Fraction(1, 4))
"""Two of the three keys."""


def crowded(control: Control = NO_CONTROL, **options: str) -> PolicyLearner:
    """Short blocks, with a crowd."""
    given = {"epsilon": "1/2", "schedule": "capped 3"} | options
    return pooling(policy_blocks(actions=ACTIONS, **given), control=control)


def read_by(verification: Verification, store: Store, of: StreamSpec) -> list[str]:
    """What `ledger verify` has against ledger and policies, all of them."""
    verification.read_published(of.topics, store.actions)
    verification.read(of.topics, store.ledger)
    verification.finish()
    verification.verdicts({of.topics.input: of.charge}, {})
    return verification.violations


def verified(store: Store, of: StreamSpec) -> list[str]:
    verification = Verification()
    violations = read_by(verification, store, of)
    assert violations or verification.compared.policies == len(store.actions)
    return violations


@pytest.mark.parametrize("control", [NO_CONTROL, APART])
def test_does_each_policy_name_the_newest_prior_on_the_ledger(control: Control) -> None:
    """A prior's line comes before the first that names it; whoever has the ledger computes it."""
    learner = crowded(control)
    store, of = store_of(learner), stream(learner)
    for stop in (7, 8, 40, 120):
        live(store, of, stop)
    newest = 0
    for line in lines_of(store):
        if isinstance(line, PriorLine):
            newest += 1
            assert line.number == newest
        else:
            assert line.prior == (0 if control.holds(line.identity.key) else newest)
    assert newest > 10
    assert verified(store, of) == []
    assert {line.mechanism for line in openings(store, 1).values()} == {"prior"}


@pytest.mark.parametrize(
    ("seed", "control", "played"),
    [
        pytest.param(0, NO_CONTROL, "header", marks=pytest.mark.slow),
        (1, APART, "header"),
        pytest.param(2, NO_CONTROL, "value", marks=pytest.mark.slow),
    ],
)
def test_is_a_life_with_crashes_the_life_without(seed: int, control: Control, played: str) -> None:
    """Whatever is lost: the same priors, the same policies, each line once."""
    learner = crowded(control, played=played)
    of = stream(learner)
    calm, _ = lives_the_same(lambda: store_of(learner), of, seed)
    assert verified(calm, of) == []


def test_is_every_entry_that_of_the_plain_encoder() -> None:
    """Templates and the plain encoder write the same bytes, priors between them; none is larger."""
    learner = crowded()
    store, of = store_of(learner), stream(learner)
    for mode in (Mode.LIVE,):
        machine = of.engine(0)
        batch, _ = decode(of.format, [store.records(0, 60)], most_key_bytes=64)
        releases = machine.apply_batch(batch)
        entries = record_all(releases, lines=of.lines, mode=mode, ordinal=7)
        drawn = [entry for entry in entries if entry.lasts is Lasts.UNTIL_SAVED]
        assert len(entries) - len(drawn) == len(releases.priors) > 5
        numbers = [decode_ledger(entry.ledger).ordinal for entry in entries]
        assert numbers == list(range(7, 7 + len(entries)))
        for release, entry in zip(releases, drawn, strict=True):
            line = decode_ledger(entry.ledger)
            assert isinstance(line.ordinal, int)
            plain = record(release, lines=of.lines, mode=mode, ordinal=line.ordinal)
            assert (plain.ledger, plain.action) == (entry.ledger, entry.action)
            assert encode_recorded(plain) == entry.recorded
        most = largest_recorded(of.lines, key_bytes=64)
        assert (
            max(len(entry.place) + len(entry.recorded or entry.ledger) for entry in entries) <= most
        )


def test_would_verification_see_another_prior_policy_or_number() -> None:
    """A prior's number changed by a unit; a line that names another prior; a missing one."""
    learner = crowded()
    store, of = store_of(learner), stream(learner)
    live(store, of, 90)
    lines = [decode_ledger(record.value) for record in store.ledger]
    priors = [at for at, line in enumerate(lines) if isinstance(line, PriorLine)]
    sums = next(at for at, line in enumerate(lines) if at > 30 and isinstance(line, Charge))

    def violations_of(at: int, *, drop: bool = False, **change: object) -> str:
        changed = list(store.ledger)
        line = msgspec.json.decode(changed[at].value) | change
        changed[at] = replace(changed[at], value=msgspec.json.encode(line))
        if drop:
            del changed[at]
        other = Store(store.input, actions=store.actions, ledger=changed)
        return "\n".join(read_by(Verification(), other, of))

    at = priors[4]
    prior_line = lines[at]
    assert isinstance(prior_line, PriorLine)
    assert violations_of(at) == ""
    moved = bytearray(prior_line.prior().encoded)
    moved[0] ^= 1
    assert "does not follow" in violations_of(at, bonuses=b64encode(bytes(moved)).decode())
    assert "does not follow" in violations_of(at, bonuses=b64encode(bytes(8)).decode())
    assert "was due" in violations_of(sums, prior=0)
    assert "the published policy does not follow" in violations_of(sums, prior=1)
    assert "another crowd" in violations_of(sums, crowd="means of 4 actions")
    assert "is missing" in violations_of(at, drop=True)
    assert "a prior, but no crowd" in "\n".join(_without_a_crowd(store, of))


def _without_a_crowd(store: Store, of: StreamSpec) -> list[str]:
    """The ledger whose lines name priors and no crowd."""
    changed = []
    for published in store.ledger:
        line = msgspec.json.decode(published.value)
        if line["type"] == "charge":
            line.pop("crowd")
            changed.append(replace(published, value=msgspec.json.encode(line)))
    return read_by(Verification(), Store(store.input, ledger=changed), of)


def test_is_a_control_group_that_is_told_priors_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutant: the hash is not asked where policies are told priors. Its lines say so themselves."""
    everybody_is_told(monkeypatch)
    learner = crowded(APART)
    store, of = store_of(learner), stream(learner)
    live(store, of, 120)
    assert "where 0 was due" in read_by(Verification(), store, of)[0]
    assert "is the newest" in judge(evidence(store))[0]


def test_does_the_judge_hold_policies_against_priors() -> None:
    """A policy that was computed under another prior than its line names."""
    learner = crowded()
    store, of = store_of(learner), stream(learner)
    live(store, of, 60)
    other = [
        replace(record, value=record.value.replace(b'"prior":5', b'"prior":1'))
        for record in store.ledger
    ]
    violations = judge(evidence(Store(store.input, actions=store.actions, ledger=other)))
    assert any("does not follow from the sums" in violation for violation in violations)


@pytest.mark.parametrize("carry", [True, False])
def test_does_an_epoch_carry_histories_and_begin_priors_anew(carry: bool) -> None:
    """From a stream without a crowd, to one with, and to one of other actions, and back."""
    store = store_of(policies())
    lives: list[tuple[PolicyLearner, int]] = [
        (policies(), 40), (crowded(), 80), (crowded(APART), 100), (policies(), 120),
    ]  # fmt: skip
    for epoch, (learner, stop) in enumerate(lives, start=1):
        live(store, stream(learner, epoch=epoch, carry=carry), stop)
        if epoch < len(lives):
            with pytest.raises(sd.StateMismatch, match="needs a new epoch"):
                restore(store, stream(lives[epoch][0], epoch=epoch, carry=carry))
    assert verified(store, stream(policies(), epoch=4, carry=carry)) == []
    carried = {epoch: [] for epoch in (2, 3, 4)}  # type: dict[int, list[bool]]
    for epoch, flags in carried.items():
        for line in openings(store, epoch).values():
            flags.append(line.carried is not UNSET)
            assert line.prior == 0 or epoch < 4 or line.prior is UNSET
    assert all(any(flags) == carry for flags in carried.values())
    assert not [entry for entry in store.state if b'"prior"' in entry]


def test_what_does_the_status_page_know() -> None:
    """Both sides' losses, the newest prior, and each key's policies under the priors they named."""
    learner = crowded(APART)
    store, of = store_of(learner), stream(learner)
    live(store, of, 120)
    scales = Scales(on_sums=Fraction(2))
    whole = StreamReleases(scales=scales, actions=3)
    whole.apply(store.ledger)
    part = whole.partitions[0]
    assert part.prior is not None
    assert set(part.priors) == set(range(1, part.prior.number + 1))
    lost = dict.fromkeys((True, False), 0.0)
    shows = dict.fromkeys((True, False), 0)
    for line in lines_of(store):
        if isinstance(line, Charge) and (sums := line.block_sums()) is not None:
            gains, shown = sums.arrays()
            side = APART.holds(line.identity.key)
            shows[side] += int(shown.sum())
            lost[side] += shown.sum() / 2 - gains.sum() / 2**20
    for side, of_side in ((True, part.agreements.alone), (False, part.agreements.together)):
        summary = told_of(of_side, part.agreements.unit)
        assert summary["votes"] == shows[side] > 0
        assert summary["rate"] == pytest.approx(lost[side] / shows[side])
    verification = Verification()
    assert read_by(verification, store, of) == []
    (both,) = verification.agreements().values()
    assert both.together.votes == shows[False]
    newest = {
        json.loads(record.value).get("key"): json.loads(record.value)["policy"]
        for record in store.actions
    }
    for (_, key), history in whole.keys.items():
        assert history.policies is not None
        shares = history.policies.points(3)[-1].shares
        policy = np.frombuffer(b64decode(newest[None if key is None else key.decode()]), "<u4")
        assert list(shares) == (policy / 2**24).tolist()
    named = next(
        line.prior for line in lines_of(store)[30:] if isinstance(line, Charge) and line.prior
    )
    late = StreamReleases(scales=scales, actions=3)
    late.apply([record for record in store.ledger if b'"number":%d,' % named not in record.value])
    unknown = [history.policies for history in late.keys.values() if history.policies is not None]
    assert [] in [history.points(3) for history in unknown]


def test_is_a_prior_of_other_sizes_computed_by_nobody() -> None:
    """The ledger is read, not trusted: sums of a prior that fits no arms give no policy."""
    learner = crowded()
    store, of = store_of(learner), stream(learner)
    live(store, of, 60)
    changed = []
    for published in store.ledger:
        line = msgspec.json.decode(published.value)
        if line["type"] == "prior":
            line["bonuses"] = "AAAAAAAAAAA="
        changed.append(replace(published, value=msgspec.json.encode(line)))
    read = StreamReleases(scales=Scales(on_sums=Fraction(2)), actions=3)
    read.apply(changed)
    for history in read.keys.values():
        assert history.policies is None or history.policies.points(3) == []


# -- neighbours ----------------------------------------------------------------------------------


def scripted(patch: pytest.MonkeyPatch) -> None:
    """Sums that follow from names alone: what is released is the same whatever the content."""

    def sums(
        self: Fresh, bank: Bank, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        names = (bank.block[rows] * 7919 + bank.born[rows] * 104729)[:, None]
        gains = (names + np.arange(3) * 77_777) % (1 << 21) - (1 << 20)
        return gains, bank.shown[rows].copy()

    patch.setattr(Fresh, "sums", sums)


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True])
def test_is_all_that_is_seen_the_same_for_neighbours(
    crash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record's content changes: the same lines, policies and sizes, if sums are the same."""
    scripted(monkeypatch)
    plain = seen(90, None, crash, crowded())
    for changed in (3, 20, 50, 88):
        assert seen(90, changed, crash, crowded()) == plain
    made = PartitionCrowd.released

    def reads_sums(self: PartitionCrowd, votes: int) -> object:
        self.votes += int(self.bank.sums[0, 0] > 0)
        return made(self, votes)

    monkeypatch.setattr(PartitionCrowd, "released", reads_sums)
    store, of = store_of(crowded(), 90), stream(crowded())
    live(store, of, 90)
    assert judge(evidence(store)) + read_by(Verification(), store, of) != []
