"""Checks what a program hands to an engine: types and ranges only, never what an event holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sized
from itertools import islice
from operator import index
from warnings import warn

from streamdp.core.arrays import Bools
from streamdp.core.errors import complaint, refuse
from streamdp.core.evidence.contexts import Contexts, level
from streamdp.core.kinds.kind import Kind

_MOST = 2**63 - 1
_MOST_NAMED = 20  # actions in a message


def check_randomness(randomness: object) -> None:
    """Refuse what is no source of bits."""
    parts = all(hasattr(randomness, part) for part in ("seeded", "tag", "bits"))
    if not parts or isinstance(randomness, type):
        expected = "SystemRandomness(), or SeededRandomness(…) in tests"
        refuse("randomness", "no source of bits", expected, type(randomness).__name__)


def check_place(stream: object, *, partition: object, epoch: object) -> None:
    """Refuse names and numbers that no ledger line could have."""
    if not isinstance(stream, str) or not stream:
        refuse("stream", "no name", "text", repr(stream))
    for name, number in ("partition", partition), ("epoch", epoch):
        if not isinstance(number, int) or not 0 <= number <= _MOST:
            refuse(name, "no number", "a whole number, at least 0", repr(number))


def check_action(action: object, actions: Collection[str] | None = None) -> None:
    """Refuse a name of another type than the names of actions, or that is none of `actions`."""
    if action is not None and not isinstance(action, str):
        refuse("action", "no name", "text, or None", type(action).__name__)
    if action is not None and actions is not None and action not in actions:
        expected = f"{', '.join(islice(actions, _MOST_NAMED))}{' …' * (len(actions) > _MOST_NAMED)}"
        refuse("action", "unknown", f"{expected}, or None", "another text")


def check_allowed(allowed: Bools, kind: Kind) -> None:
    """Refuse what allows no action, or is not of these actions."""
    if not (many := kind.evidence.listed):
        refuse("batch.allowed", "not of this stream", "a feedback stream", "one of losses")
    if allowed.shape != (many,) or not allowed.any():
        expected, got = f"{many} of which some are allowed", f"{allowed.sum()} of {allowed.size}"
        refuse("batch.allowed", "allows no action", expected, got)


def cell_of(context: object, contexts: Contexts | None) -> int:
    """The cell of a context; refuse fields that are not declared, never what a field holds."""
    if contexts is None:
        if context is not None:
            expected = "none; a learner with contexts is one of `Contexts.arms(actions)`"
            refuse("context", "of a learner without contexts", expected, "a context")
        return 0
    if not isinstance(context, Mapping) or not context.keys() <= contexts.declared:
        expected = f"a mapping of {', '.join(contexts.names)}; each may be left out"
        got = "another field" if isinstance(context, Mapping) else type(context).__name__
        refuse("context", "of other fields", expected, got)
    return contexts.cell({name: level(value) for name, value in context.items()})


def warn_of_shape(losses: object, *, actions: int) -> None:
    """Warn of a vector of another length, or with a text in it: a null loss, but by a mistake.

    Python shows a warning once for each place that calls. No number is looked at.
    """
    if losses is None:
        return
    length = len(losses) if isinstance(losses, Sized) else actions
    texts = isinstance(losses, list | tuple) and any(isinstance(of, str | bytes) for of in losses)
    if length != actions or texts:
        got = "texts among them" if texts else f"{length}"
        expected = f"{actions} numbers, one for each action"
        what = "not the learner's vector, so the slot counts as a null loss"
        warn(complaint("losses", what, expected=expected, got=got), stacklevel=3)


def check_offset(offset: object) -> int:
    """A record's offset.

    >>> check_offset(1.5)
    Traceback (most recent call last):
    streamdp.core.errors.InvalidConfig: offset: no offset; expected a whole number, at least 0, \
got float
    """
    try:
        number = index(offset)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number <= _MOST:
        got = type(offset).__name__ if number < 0 else number
        refuse("offset", "no offset", "a whole number, at least 0", got)
    return int(number)
