"""Is a service that carries over what it must not caught by what anybody can compute?

Each mutant breaks one rule of `core.evidence.carrying` or of `service.carrying`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from streamdp.core.engine import Engine, row_layout
from streamdp.core.events import After, Carried, Key
from streamdp.core.evidence import VoteFilter
from streamdp.core.evidence.carrying import Passage
from streamdp.core.evidence.evidence import Known
from streamdp.core.evidence.policies import ReleasedSums
from streamdp.core.snapshot import Loading
from streamdp.service import carrying
from streamdp.wire.state import read_state
from tests.support.carrying import (
    MORE,
    last_open,
    leader,
    live,
    policies,
    remembers,
    store_of,
    stream,
    verified,
)

# -- what is broken ------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[Patch, str, list[Callable[..., Any]]]] = {}


def mutant(said: str, *made: Callable[..., Any]) -> Callable[[Patch], Patch]:
    """Register a broken variant, what `verify` says of it, and the learners that it breaks."""

    def registered(patch: Patch) -> Patch:
        MUTANTS[patch.__name__] = patch, said, list(made)
        return patch

    return registered


@mutant("carried over where", leader, remembers)
def carries_the_best_of_the_open_sums(patch: pytest.MonkeyPatch) -> None:
    put = Loading.put

    def peeking(self: Loading, saved: Mapping[Key, bytes]) -> None:
        put(self, saved)
        if not self.bank.private:  # of an earlier epoch
            for key, row in saved.items():
                sums = np.frombuffer(row, self._layout.dtype, count=1)["sums"][0]
                self.bank.public["action"][self.row(key)] = sums.argmax()

    patch.setattr(Loading, "put", peeking)


@mutant("carried over where", leader, remembers)
def carries_by_number_instead_of_name(patch: pytest.MonkeyPatch) -> None:
    moves = property(lambda self: np.arange(len(self.before.actions)))
    patch.setattr(Passage, "moves", moves)


@mutant("another history carried over", policies)
def carries_histories_by_number(patch: pytest.MonkeyPatch) -> None:
    def unmoved(self: ReleasedSums, known: Known, moves: Any, before: Any) -> Known:
        history = np.frombuffer(known.history or b"").reshape(2, -1)
        padded = np.pad(history, ((0, 0), (0, self.numbers - history.shape[1])))
        return Known(0, padded.tobytes())

    patch.setattr(ReleasedSums, "moved", unmoved)


@mutant("the key's newest learner", leader, remembers, policies)
def carries_from_an_earlier_learner(patch: pytest.MonkeyPatch) -> None:
    carried = Passage.carried

    def early(self: Passage, after: After, known: Known) -> Carried | None:
        return carried(self, after._replace(born=max(0, after.born - 1)), known)

    patch.setattr(Passage, "carried", early)


@mutant("carries nothing over, where", leader, remembers, policies)
def forgets_to_carry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(carrying.Heritage, "add", lambda self, rows, made: None)


@mutant("expected block", leader, remembers, policies)
def begins_with_short_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Passage, "first_block", lambda self, due: 0)


@mutant("the votes put action|carried over where", remembers)
def begins_with_a_memory_of_its_own(patch: pytest.MonkeyPatch) -> None:
    sure = VoteFilter.sure_of

    def elsewhere(self: Any, actions: Any, lengths: Any) -> Any:
        return sure(self, (actions + 1) % self.actions, lengths)

    patch.setattr(VoteFilter, "sure_of", elsewhere)


CASES = [(name, made) for name, (_, _, learners) in MUTANTS.items() for made in learners]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "made"), CASES)
def test_is_a_broken_variant_caught(
    name: str, made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what anybody can compute from the ledger."""
    patch, said, _ = MUTANTS[name]
    store, second = store_of(made(), 400), stream(made(MORE), epoch=2)
    live(store, stream(made()), 61)
    with monkeypatch.context() as broken:
        patch(broken)
        live(store, second, 400)
    faults = verified(store, second)
    assert any(re.search(said, fault) for fault in faults), faults


def test_does_the_open_block_of_a_broken_variant_leave_a_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A learner that begins with the open sums of the one before: what P9 forbids shows."""
    give_birth = Engine._give_birth
    kept: dict[Key, Any] = {}

    def keeping(self: Any, plan: Any, draws: Any) -> Any:
        wave = give_birth(self, plan, draws)
        for row in self._bank.rows(wave.keys).tolist():
            self._bank.private["sums"][row] += kept.get(self._bank.keys[row], 0)
        return wave

    ledgers = []
    for other in (False, True):
        store = store_of(leader())
        at = last_open(store, leader())
        best = b"b" if other else b"a"
        losses = b'{"losses":{"a":1,"b":1,"c":1,"new":0}}'.replace(
            b'"%b":1' % best, b'"%b":0' % best
        )
        store.input[at] = (store.input[at][0], losses)
        live(store, stream(leader()), 60)
        layout = row_layout(leader(), epoch=1)
        kept |= {
            key: np.append(1000 * np.frombuffer(row, layout.dtype, count=1)["sums"][0], 1 << 40)
            for key, row in read_state(store.state, stream="home", partition=0).rows.items()
        }
        with monkeypatch.context() as broken:
            broken.setattr(Engine, "_give_birth", keeping)
            live(store, stream(leader(MORE), epoch=2), 120)
        ledgers.append([record.value for record in store.ledger])
    assert ledgers[0] != ledgers[1]
