"""Broken draws from a policy, which the sampler of `choose` finds."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection
from hashlib import blake2b
from itertools import count
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from streamdp.client import Answer, choosing
from streamdp.client.filtering import allowed, digest
from streamdp.core.evidence.policy import PARTS
from tests.support.mutants.table import BY_HEADER, Patch, mutant


def broken_draw(said: str) -> Callable[[Patch], Patch]:
    """Of any kind with policies: the first fault that is found is this one."""
    return mutant(BY_HEADER, layer="draws", said=f"^{said}$")


def _with_probability(
    patch: pytest.MonkeyPatch, said: Callable[[Answer, str, Answer], float]
) -> None:
    """Say another probability than the draw's."""
    drawn = choosing.choose

    def choose(answer: Answer, request: str, *cell: Any) -> Answer:
        choice = drawn(answer, request)
        return structs.replace(choice, probability=said(answer, request, choice))

    patch.setattr(choosing, "choose", choose)


@broken_draw("a probability is said that the action was not drawn with")
def says_the_likeliest_actions_probability(patch: pytest.MonkeyPatch) -> None:
    def likeliest(answer: Answer, request: str, choice: Answer) -> float:
        assert answer.held is not None
        return float(np.diff([0, *answer.held.ends]).max()) / PARTS

    _with_probability(patch, likeliest)


@broken_draw("a probability is said that the action was not drawn with")
def says_the_probability_as_if_play_were_uniform(patch: pytest.MonkeyPatch) -> None:
    def uniform(answer: Answer, request: str, choice: Answer) -> float:
        assert answer.held is not None
        return 1 / len(answer.held.ends)

    _with_probability(patch, uniform)


@broken_draw("actions do not follow the policy")
def draws_uniformly_and_says_the_policy(patch: pytest.MonkeyPatch) -> None:
    """An override that nobody logs: what is said is the policy's, and it was not drawn from it."""

    def choose(answer: Answer, request: str, *cell: Any) -> Answer:
        assert answer.held is not None
        actions = answer.held.names.actions
        arm = int.from_bytes(blake2b(request.encode()).digest(), "little") % len(actions)
        share = np.diff([0, *answer.held.ends])[arm]
        return Answer(actions[arm], answer.why, probability=float(share) / PARTS)

    patch.setattr(choosing, "choose", choose)


@broken_draw("draws of one request under two releases are not independent")
def hashes_the_request_alone(patch: pytest.MonkeyPatch) -> None:
    """A request keeps its part for ever: who was unlucky once is so under every policy."""
    patch.setattr(choosing, "hashed_prefix", lambda salt, release: salt.encode())


@broken_draw("a request gets another action when it is asked again")
def tosses_a_coin_of_its_own(patch: pytest.MonkeyPatch) -> None:
    drawn, tosses = choosing.choose, count()

    def choose(answer: Answer, request: str, *cell: Any) -> Answer:
        return drawn(answer, f"{request}-{next(tosses)}")

    patch.setattr(choosing, "choose", choose)


def _allowed_ends(answer: Answer, exclude: Collection[str], back: Collection[str]) -> list[int]:
    """The ends of what is allowed, the last two of what `choose` is asked."""
    assert answer.held is not None
    names = answer.held.names.actions
    mask = np.array([name not in exclude for name in names])
    return allowed(answer.held.ends, mask, np.array([name in back for name in names]))


@broken_draw("without an excluded action, actions do not follow the policy over the others")
def hashes_no_filter(patch: pytest.MonkeyPatch) -> None:
    """Who is asked again keeps its part: of two actions that are left, one is nearly certain."""
    drawn = choosing.choose

    def choose(answer: Answer, request: str, *asked: Any) -> Answer:
        assert answer.held is not None
        ends = array("I", _allowed_ends(answer, *asked[2:]))
        kept = structs.replace(answer.held, ends=ends)
        return drawn(structs.replace(answer, held=kept), request)

    patch.setattr(choosing, "choose", choose)


@broken_draw("a probability is said that the action was not drawn with, of those allowed")
def says_the_probability_of_before_the_filter(patch: pytest.MonkeyPatch) -> None:
    drawn = choosing.choose

    def choose(answer: Answer, request: str, *asked: Any) -> Answer:
        assert answer.held is not None
        choice = drawn(answer, request, *asked)
        share = np.diff([0, *answer.held.ends])[int(choice.action)]
        return structs.replace(choice, probability=float(share) / PARTS)

    patch.setattr(choosing, "choose", choose)


@broken_draw("without an excluded action, actions do not follow the policy over the others")
def shows_the_next_one_instead(patch: pytest.MonkeyPatch) -> None:
    """An excluded action's neighbour gets all of its share, and the right one is said."""
    drawn = choosing.choose

    def choose(answer: Answer, request: str, *asked: Any) -> Answer:
        choice, ends = drawn(answer, request), _allowed_ends(answer, *asked[2:])
        arm = int(choice.action)
        while str(arm) in asked[2] or ends[arm] == (ends[arm - 1] if arm else 0):
            arm = (arm + 1) % len(ends)
        share = np.diff([0, *ends])[arm]
        return structs.replace(choice, action=str(arm), probability=float(share) / PARTS)

    patch.setattr(choosing, "choose", choose)


@broken_draw("a probability is said that the action was not drawn with, of those back")
def waits_for_the_next_policy(patch: pytest.MonkeyPatch) -> None:
    """What is back has no part before its key's next policy, however long that takes."""
    drawn = choosing.choose

    def choose(answer: Answer, request: str, *cell: Any) -> Answer:
        return drawn(answer, request, *cell[:3])

    patch.setattr(choosing, "choose", choose)


@broken_draw("what a newer list allows again does not get its share")
def keeps_the_draw_of_before(patch: pytest.MonkeyPatch) -> None:
    """Who got an action under the older list never gets the one that is back, or always."""
    coded = choosing._coded
    patch.setattr(choosing, "digest", lambda mask: b"" if all(mask) else digest(mask))
    patch.setattr(
        choosing, "_coded", lambda parts: b"" if (of := list(parts)) == [b""] else coded(of)
    )
