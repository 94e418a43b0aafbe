"""Which arm, which gain does a feedback record come to? And does each format keep the rules?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.core.events import NO_ARM
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.grid import UNIT
from streamdp.testing.formats import HOSTILE, check_format
from streamdp.wire import feedback as feedback_records
from streamdp.wire.decoded import Decoded, Headers, Value
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import Format, configure, renamed
from streamdp.wire.json_format import JsonRows
from tests.support.batches import Seen, headers_of, observe
from tests.wire.test_formats import LONGEST, nested

ACTIONS = ("a", "b", "ünï")
LOSS, REWARD = Feedback(ACTIONS), Feedback(ACTIONS, content="reward")
IN_VALUE = Feedback(ACTIONS, content="reward", played="value")
PRICES = replace(REWARD, most=Fraction(200))


def made(name: str, feedback: Feedback = LOSS, **options: object) -> Format:
    return configure(name, feedback=feedback, options=options)


SHIPPED = [
    made("json"),
    made("json", REWARD),
    made("json", REWARD, prefix="confluent"),
    made("json", padding="fixed"),
    made("json", IN_VALUE),
    made("json", IN_VALUE, padding="fixed"),
    made("float32"),
    made("float32", REWARD, frames=True),
    made("float32", frames=True, prefix="confluent"),
    made("float16", frames=True),
    made("json", PRICES, padding="fixed"),
    made("json", replace(IN_VALUE, most=Fraction("19.99"))),
    made("float32", PRICES, frames=True),
    made("float16", PRICES),
]


def arms_and_gains(observed: Seen) -> list[tuple[int, float]]:
    """Each slot's arm and gain."""
    return list(zip(observed.played.tolist(), (observed.gain / UNIT).tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("format_", SHIPPED, ids=repr)
def test_every_shipped_format_keeps_the_rules(format_: Format) -> None:
    check_format(format_, examples=30)


@pytest.mark.parametrize("feedback", [REWARD, IN_VALUE], ids=["header", "value"])
def test_a_format_that_takes_the_action_from_elsewhere_is_caught(feedback: Feedback) -> None:
    """From payloads where headers name it, or the other way round: the noise is for one of them."""
    with pytest.raises(AssertionError, match=r"names the shown action|a named action"):
        check_format(_Telling(made("json", feedback)), examples=5)


class _Telling:
    """A stranger's format: the second action, whatever headers or payloads say."""

    def __init__(self, format_: Format) -> None:
        self._format = format_

    def decode(self, values: Sequence[Value], headers: Sequence[Headers] = ()) -> Decoded:
        """With another action than the one that is named where it must be."""
        decoded = self._format.decode(values, headers)
        others = np.ones(len(values), dtype=np.int32)
        return decoded._replace(content={**decoded.content, "played": others})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._format, name)


@pytest.mark.parametrize(
    ("reward", "gain"),
    [(0, -0.5), (50, -0.25), (100, 0), (200, 0.5), (201, 0.5), (1e30, 0.5), (-3, -0.5)],
)
@pytest.mark.parametrize("name", ["json", "float32"])
def test_a_reward_counts_as_its_share_of_the_largest(name: str, reward: float, gain: float) -> None:
    """And one above it as the largest: whatever an event earned, it moves a sum by no more."""
    format_ = made(name, PRICES)
    value = b'{"reward":%g}' % reward if name == "json" else np.float32(reward).tobytes()
    assert arms_and_gains(observe(format_, [value], [headers_of(format_, [0])])) == [(0, gain)]


@pytest.mark.parametrize("format_", [made("json", PRICES), made("float32", PRICES)], ids=repr)
def test_a_format_that_forgets_to_clip_rewards_is_caught(
    format_: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant that divides and adds up what comes: one large order would be seen in the sum."""

    def unclipped(numbers: Any, most: float) -> Any:
        return np.asarray(numbers, dtype=np.float64) / most

    def gains(losses: Any) -> Any:
        gain = np.rint((0.5 - losses) * UNIT)
        return np.clip(np.nan_to_num(gain), -1e15, 1e15).astype(np.int64)

    def as_they_come(self: JsonRows, texts: Sequence[Value], **_: object) -> Any:
        events = self.events(texts)
        return np.array([np.nan if of is None else of.of for of in events]).reshape(-1, 1)

    monkeypatch.setattr(feedback_records, "shares_of", unclipped)
    monkeypatch.setattr(feedback_records, "centred_gains", gains)
    monkeypatch.setattr(JsonRows, "clipped", as_they_come)
    with pytest.raises(AssertionError, match="beyond a half"):
        check_format(format_, examples=5)


def test_the_largest_reward_is_of_rewards_and_fits_the_format() -> None:
    with pytest.raises(InvalidConfig, match='most: is of rewards; expected content = "reward"'):
        replace(LOSS, most=Fraction(2))
    with pytest.raises(InvalidConfig, match="more than float16 holds; expected at most 65504"):
        made("float16", replace(REWARD, most=Fraction(70_000)))


@pytest.mark.parametrize("format_", SHIPPED, ids=repr)
def test_what_is_sent_is_observed(format_: Format) -> None:
    """Payload and headers of every arm come back as that arm and its gain."""
    arms = [2, 0, 1] if format_.frames else [2]
    assert format_.feedback is not None
    numbers = np.array([0.25 * format_.feedback.largest] * len(arms), dtype=np.float32)
    payload, headers = format_.encode(numbers, played=arms), headers_of(format_, arms)
    gain = 0.25 if format_.feedback.content == "loss" else -0.25
    assert arms_and_gains(observe(format_, [payload], [headers])) == [(arm, gain) for arm in arms]


@pytest.mark.parametrize(
    ("headers", "arm"),
    [
        ([("streamdp-action", b"b")], 1),
        ([("streamdp-action", "ünï".encode())], 2),
        ([("trace", b"b"), ("streamdp-action", b"a")], 0),
        ([], NO_ARM),
        ([("streamdp-action", b"c")], NO_ARM),
        ([("streamdp-action", None)], NO_ARM),
        ([("streamdp-action", b"\xff")], NO_ARM),
        ([("streamdp-action", b"a"), ("streamdp-action", b"a")], NO_ARM),
        ([("Streamdp-Action", b"a")], NO_ARM),
    ],
)
def test_the_header_names_the_arm(headers: Headers, arm: int) -> None:
    """A missing, doubled or unknown header is the null observation; the slot is taken."""
    assert arms_and_gains(observe(made("json"), [b'{"loss":0.25}'], [headers])) == [(arm, 0.25)]


def test_another_header_can_be_configured() -> None:
    format_ = made("json", Feedback(ACTIONS, header="shown"))
    headers: list[Headers] = [[("shown", b"b")], [("streamdp-action", b"b")]]
    assert arms_and_gains(observe(format_, [b'{"loss":1}'] * 2, headers)) == [
        (1, -0.5),
        (NO_ARM, -0.5),
    ]


@pytest.mark.parametrize(
    ("payload", "gain"),
    [
        (b'{"loss":0}', 0.5),
        (b'{"loss":1}', -0.5),
        (b'{"loss":7}', -0.5),
        (b'{"loss":-1e300}', 0.5),
        (b'{"loss":0.25,"ts":"yesterday","reward":9}', 0.25),
        (b'{"reward":1}', 0.0),
        (None, 0.0),
        *((value, 0.0) for value in HOSTILE if value is None or b'"loss":0.5' not in value),
    ],
)
def test_an_unusable_loss_is_the_gain_0_of_its_arm(payload: Value, gain: float) -> None:
    """The arm was shown, which is public, so its slot counts for it whatever the payload is."""
    headers: list[Headers] = [[("streamdp-action", b"a")]]
    assert arms_and_gains(observe(made("json"), [payload], headers)) == [(0, gain)]


def test_a_reward_is_one_minus_a_loss() -> None:
    """The same gains on the grid, for each of many numbers."""
    losses = (np.arange(1025) / 1024).astype(np.float32)
    headers: Sequence[Headers] = [[("streamdp-action", b"a")]] * len(losses)
    written = made("float32")
    one = [written.encode(losses[at : at + 1], played=[0]) for at in range(len(losses))]
    rewards = (1 - losses).astype(np.float32)
    other = [written.encode(rewards[at : at + 1], played=[0]) for at in range(len(losses))]
    by_loss = observe(made("float32"), one, headers)
    by_reward = observe(made("float32", REWARD), other, headers)
    assert by_loss.gain.tolist() == by_reward.gain.tolist()


@pytest.mark.parametrize(
    ("header", "arms"),
    [
        (np.array([1, 0, 2], dtype="<u4").tobytes(), [1, 0, 2]),
        (np.array([1, 3, 2**32 - 1], dtype="<u4").tobytes(), [1, NO_ARM, NO_ARM]),
        (np.array([1, 0], dtype="<u4").tobytes(), [NO_ARM] * 3),
        (b"\0" * 13, [NO_ARM] * 3),
        (b"", [NO_ARM] * 3),
        (None, [NO_ARM] * 3),
    ],
)
def test_a_frames_header_names_every_row(header: bytes | None, arms: list[int]) -> None:
    """A header of a wrong length names no row; a row that is unknown is null alone."""
    frame = np.array([0, 0.25, np.nan], dtype="<f4").tobytes()
    observed = observe(made("float32", frames=True), [frame], [[("streamdp-actions", header)]])
    assert arms_and_gains(observed) == list(zip(arms, [0.5, 0.25, 0.0], strict=True))


def test_a_frame_of_a_wrong_length_still_counts_its_arms() -> None:
    """Its payload is null, its header is public and fits the slots that its length gives."""
    frame = np.array([0, 0.25], dtype="<f4").tobytes() + b"x"
    header = np.array([1, 2], dtype="<u4").tobytes()
    observed = observe(made("float32", frames=True), [frame], [[("streamdp-actions", header)]])
    assert arms_and_gains(observed) == [(1, 0.0), (2, 0.0)]


def test_the_value_may_name_the_arm() -> None:
    values = [b'{"action":"b","reward":1}', b'{"action":"z","reward":1}', b'{"reward":1}']
    observed = observe(made("json", IN_VALUE), values, [[("streamdp-action", b"a")]] * 3)
    assert arms_and_gains(observed) == [(1, 0.5), (NO_ARM, 0.5), (NO_ARM, 0.0)]


@pytest.mark.parametrize("name", ["json", "float32"])
def test_in_contexts_contents_name_columns_whatever_has_a_name(name: str) -> None:
    """An arm keeps its number when a name comes; before, what names it names nothing."""
    fields = Contexts.read('{"device":["phone"]}')
    feedback = replace(IN_VALUE, contexts=fields, columns=5)
    before = made(name, feedback, **({"padding": "fixed"} if name == "json" else {}))
    after = renamed(before, (*ACTIONS, "d"))
    arms = [0, 1, 2, 3, 5, 6, 7, 8, NO_ARM]
    payloads = [after.encode(np.ones(1, dtype=np.float32), played=[arm]) for arm in arms]
    assert observe(after, payloads, [[]] * len(arms)).played.tolist() == arms
    known = [NO_ARM if arm in (3, 8) else arm for arm in arms]
    assert observe(before, payloads, [[]] * len(arms)).played.tolist() == known


@pytest.mark.parametrize("format_", [made("json"), made("json", IN_VALUE)], ids=repr)
def test_fixed_padding_has_one_width(format_: Format) -> None:
    assert format_.feedback is not None
    fixed = made("json", format_.feedback, padding="fixed")
    widths = {
        len(fixed.encode(np.array([number], dtype=np.float32), played=[arm]))
        for number in (0, 1, 1e-30, 0.1, LONGEST)
        for arm in range(len(ACTIONS))
    }
    assert len(widths) == 1


@pytest.mark.parametrize("format_", [of for of in SHIPPED if "Json" in repr(of)], ids=repr)
def test_an_event_that_is_nested_too_deeply_is_unusable(format_: Format) -> None:
    """From a deep stack a decoder would refuse what it reads from a shallow one."""
    good = format_.encode(np.array([0.25], dtype=np.float32), played=[1])
    values = [good, nested(128, good), nested(129, good), good, nested(600, good), None]
    assert format_.decode(values, [[]] * len(values)).unusable.tolist() == [
        False,
        False,
        True,
        False,
        True,
        True,
    ]
    assert [format_.explain(value) is None for value in values] == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]


def test_the_digest_knows_how_records_are_read() -> None:
    """Everything that changes an arm or a gain changes the settings."""
    formats = [*SHIPPED, made("json", Feedback(ACTIONS, header="shown"))]
    seen = [tuple(sorted(format_.settings().items())) for format_ in formats]
    same = {repr(made("json", padding="fixed")), repr(made("json", IN_VALUE, padding="fixed"))}
    assert len(set(seen)) == len(formats) - len(same)


def test_what_is_no_configuration_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="content"):
        Feedback(ACTIONS, content="clicks")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="played"):
        Feedback(ACTIONS, played="guess")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="action_header"):
        Feedback(ACTIONS, header="")
    with pytest.raises(InvalidConfig, match="hold one number and no action"):
        made("float32", IN_VALUE)
    with pytest.raises(InvalidConfig, match="unknown option"):
        made("json", layout="mapping")
    with pytest.raises(InvalidConfig, match="loss: too many rows; expected 1 in a record"):
        made("json").encode(np.zeros(2, dtype=np.float32), played=[0, 0])
    with pytest.raises(InvalidConfig, match="unknown format"):
        made("xml")
