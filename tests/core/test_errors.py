"""Do errors say where, what, expected and got, and nothing that they must not say?"""

from __future__ import annotations

from streamdp.core.errors import OTHER_TOPICS, Refused, TransportLost, Unexpanded, beyond


def test_does_a_short_second_input_s_error_say_the_way_out_and_no_offset() -> None:
    """How many outcomes there are is content."""
    text = str(beyond("clicks/0"))
    assert text.startswith("partition clicks/0: second input: was truncated or replaced; ")
    assert OTHER_TOPICS in text
    assert [sign for sign in text if sign.isdigit()] == ["0"]


def test_a_topic_that_lacks_partitions_is_named_with_its_command() -> None:
    error = Unexpanded("home/3", "shop.home.actions", expected=4, got=2)
    assert "streamdp topics expand --partitions 4; expected 4, got 2" in str(error).replace("`", "")
    assert error.topic == "shop.home.actions"


def test_what_went_wrong_below_is_named_by_its_class_alone() -> None:
    """For labels; a refusal names whose right is missing."""
    alone, caused = TransportLost("gone"), Refused("no right to a/0", named="topic a")
    caused.__cause__ = OSError("xyzzy")
    assert (alone.kind, caused.kind, caused.named) == ("TransportLost", "OSError", "topic a")
