"""Do the lines of a feedback stream come back, of one length whatever was drawn, in each mode?"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

from streamdp.core.engine import row_layout
from streamdp.core.errors import StateMismatch
from streamdp.core.events import SUMS
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.core.learners.feedback.policy_following import policy_following
from streamdp.wire import state
from streamdp.wire.lines import Charge, PolicyLine, from_base64
from streamdp.wire.published import (
    decode_action,
    decode_in_force,
    decode_ledger,
)
from tests.conftest import ROOT
from tests.golden_wire import ACTIONS, FEEDBACK, LINES, SHOWN, SHOWN_FEEDBACK

SUMMED = SHOWN_FEEDBACK["sums"]
WIDEST = np.array([-(2**63), 2**63 - 1, 0, -1])


@pytest.mark.parametrize("name", list(SHOWN_FEEDBACK))
def test_what_was_recorded_comes_back(name: str) -> None:
    shown = SHOWN_FEEDBACK[name]
    recorded = state.record(shown, lines=FEEDBACK, ordinal=9)
    decoded = state.decode_recorded(shown.identity, state.encode_recorded(recorded))
    assert decoded == recorded


def test_readers_are_told_the_policy_and_what_it_is_about() -> None:
    line = decode_in_force(FEEDBACK.action(SUMMED) or b"")
    assert isinstance(line, PolicyLine)
    assert line.identity == SUMMED.identity
    assert (line.actions, line.context, line.played) == (list(ACTIONS), UNSET, "header")
    assert from_base64(line.policy, "policy") == SUMMED.policy


def test_the_ledger_tells_sums_and_counts() -> None:
    line = decode_ledger(FEEDBACK.ledger(SUMMED, ordinal=9))
    assert isinstance(line, Charge)
    assert np.array_equal(np.array(line.released()), SUMMED.numbers)
    assert (line.kind, line.epsilon, line.mechanism) == (SUMS, "1/2", "discrete_laplace")


def test_every_length_is_a_function_of_the_number_of_actions() -> None:
    """Whatever the noise and the counts are; the largest that is asked for at start is as long."""
    policies = [bytes(16), b"\xff" * 16]
    drawn = [
        replace(SUMMED, numbers=(*gains.tolist(), *shown.tolist()), policy=policy)
        for gains in (WIDEST, WIDEST[::-1].copy(), np.zeros(4, dtype=np.int64))
        for shown in (np.zeros(4, dtype=np.int64), np.full(4, 2**62))
        for policy in policies
    ]
    kept = [state.record(release, lines=FEEDBACK, ordinal=9) for release in drawn]
    assert len({len(state.encode_recorded(recorded)) for recorded in kept}) == 1
    assert len({len(recorded.ledger) for recorded in kept}) == 1
    assert len({len(recorded.action or b"") for recorded in kept}) == 1
    kind = policy_blocks(actions=FEEDBACK.actions, epsilon="1/2")
    largest = state.largest_recorded(FEEDBACK, kind, key_bytes=8)
    assert len(state.encode_recorded(kept[0])) < largest


@pytest.mark.parametrize("actions", [10, 100, 1000])
def test_the_documents_say_how_large_lines_and_rows_are(actions: int) -> None:
    """The table of sizes, in kB to one place, for a short key and short names."""
    learner = policy_following(actions=[f"a{at}" for at in range(actions)], epsilon="1/2")
    lines = replace(FEEDBACK, actions=learner.actions, learner=learner.recipe.learner)
    drawn = replace(SUMMED, numbers=(0,) * 2 * actions, policy=bytes(4 * actions))
    sizes = (
        len(lines.ledger(drawn, ordinal=9)),
        len(lines.action(drawn) or b""),
        row_layout(learner, epoch=1).size,
    )
    row = " | ".join(f"{size / 1000:.1f} kB" for size in sizes)
    assert f"| {actions:,} | {row} |" in (ROOT / "docs" / "feedback.md").read_text()


def test_a_policy_line_is_no_action_line() -> None:
    """A reader of actions says that it cannot read it; it never takes it for an action."""
    with pytest.raises(StateMismatch, match="unreadable"):
        decode_action(FEEDBACK.action(SUMMED) or b"")
    action = LINES.action(SHOWN["action"]) or b""
    assert decode_in_force(action) == decode_action(action)


def test_lines_of_another_release_are_refused() -> None:
    """The three parts must be of one release, also where two are of the same key."""
    recorded = state.record(SUMMED, lines=FEEDBACK, ordinal=9)
    other = replace(SUMMED, identity=SUMMED.identity._replace(block=4))
    moved = state.record(other, lines=FEEDBACK, ordinal=9)
    mixed = replace(recorded, action=moved.action)
    with pytest.raises(StateMismatch, match="damaged"):
        state.decode_recorded(SUMMED.identity, state.encode_recorded(mixed))


def test_what_is_no_base64_is_said_to_be_unreadable() -> None:
    line = msgspec.json.decode(FEEDBACK.ledger(SUMMED, ordinal=9))
    broken = decode_ledger(msgspec.json.encode({**line, "sums": "§"}))
    assert isinstance(broken, Charge)
    with pytest.raises(StateMismatch, match="published sums"):
        broken.released()
