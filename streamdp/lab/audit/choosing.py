"""The sampler of `choose`: do actions follow the policy, and are their stated probabilities right?

The audited function, the client's `choose` or a broken one, draws an action for a request from a
policy under a release, and states the probability of the action. Recommenders log that probability,
and every off-policy estimate divides by it; and if draws did not follow the policy, the shown
action would depend on something that is not public. The checks, for a few policies:

1. The stated probability is exactly that of the drawn action in the policy.
2. The actions follow the policy (χ²).
3. The draws of one request under two releases are independent (χ²), so that a new policy really
   changes the draws.
4. A request gets the same action again.
5. Where some actions are excluded, all of this holds of the policy over the others. And the request
   may be one that got an excluded action before: over all requests that got it, the draws without
   it follow the policy without it (χ²).

Requests are numbered and draws are a hash, so a verdict is always the same. Over all salts that
could be configured, each χ² would accuse a sound draw for one in 10⁹ (`FALSE_ALARM`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from streamdp.client.filtering import allowed
from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.events import SUMS
from streamdp.core.evidence.policy import PARTS, Policy, uniform_policy
from streamdp.core.releases import Identity
from streamdp.lab.audit.sampler import chi2

Draw = Callable[..., tuple[int, float]]
"""Returns the action's place and stated probability for a policy, its release and a request, from
the actions that a `mask` allows, some of them `back` again: `client.choosing.chosen_arm`."""

_SKEWED = (PARTS // 2, PARTS // 4, 0, PARTS // 8, 1, PARTS // 8 - 1)
_AGAIN = 100  # requests that ask a second time


def flaws_of_choosing(draw: Draw, *, samples: int = 20_000) -> Iterator[str]:
    """Yield the faults of how requests are answered, some of them more than once."""
    policies = [np.array(_SKEWED, dtype=np.uint32), uniform_policy(2), uniform_policy(7)]
    for number, policy in enumerate(policies):
        chances = policy / PARTS
        key = None if number == 1 else b"k%d" % number
        releases = [Identity("audit", 0, key, 1, 5, block, SUMS) for block in (3, 4)]
        then, now = (_drawn(draw, policy, release, samples) for release in releases)
        for arms, said in (then, now):
            yield from _flaws(arms, said, policy, [arms], "", "actions do not follow the policy")
        joint = np.outer(chances, chances).ravel() * samples
        both = np.bincount(then[0] * len(policy) + now[0], minlength=len(joint))
        if not _follows(both, joint):
            yield "draws of one request under two releases are not independent"
        again, _ = _drawn(draw, policy, releases[0], _AGAIN)
        if (again != then[0][:_AGAIN]).any():
            yield "a request gets another action when it is asked again"
        yield from _flaws_of_filters(draw, policy, releases[0], then[0])
        if not policy.all():
            yield from _flaws_of_what_is_back(draw, policy, releases[0], then[0])


def _flaws_of_filters(draw: Draw, policy: Policy, release: Identity, before: Ints) -> Iterator[str]:
    """The faults of draws without the action that a request got before, which is public."""
    for arm in range(len(policy)):
        mask = np.arange(len(policy)) != arm
        ends = allowed(np.cumsum(policy, dtype=np.int64).tolist(), mask)
        arms, said = _drawn(draw, policy, release, len(before), mask=mask)
        what = "without an excluded action, actions do not follow the policy over the others"
        groups = [arms, arms[before == arm]]
        yield from _flaws(arms, said, np.diff(ends, prepend=0), groups, ", of those allowed", what)


def _flaws_of_what_is_back(
    draw: Draw, policy: Policy, release: Identity, before: Ints
) -> Iterator[str]:
    """The faults of draws after a list that allows again what the policy has no part of."""
    back, mask = policy == 0, np.ones(len(policy), dtype=np.bool_)
    shares = np.diff(allowed(np.cumsum(policy, dtype=np.int64).tolist(), mask, back), prepend=0)
    arms, said = _drawn(draw, policy, release, len(before), mask=mask, back=back)
    groups = [arms, *(arms[before == arm] for arm in np.flatnonzero(policy > PARTS // 16))]
    what = "what a newer list allows again does not get its share"
    yield from _flaws(arms, said, shares, groups, ", of those back", what)


def _flaws(
    arms: Ints, said: Floats, parts: Any, groups: Iterable[Ints], of: str, what: str
) -> Iterator[str]:
    """The faults of draws whose actions have these parts, in all of them and in groups."""
    if (said * PARTS != parts[arms]).any():
        yield f"a probability is said that the action was not drawn with{of}"
    for chosen in groups:
        counts = np.bincount(chosen, minlength=len(parts))
        if not _follows(counts, parts / PARTS * len(chosen)):
            yield what


def _follows(observed: Ints, expected: Floats) -> bool:
    """Whether counts follow their law; actions without a chance must not occur."""
    possible = expected > 0
    if observed[~possible].any() or len(observed) > len(expected):
        return False
    return chi2(observed[possible], expected[possible]).passed


def _drawn(
    draw: Draw, policy: Policy, release: Identity, requests: int, **masks: Bools
) -> tuple[Ints, Floats]:
    """The actions and stated probabilities that a number of requests get."""
    drawn = [draw(policy, release, f"r-{at}", **masks) for at in range(requests)]
    arms, said = zip(*drawn, strict=True)
    return np.array(arms, dtype=np.int64), np.array(said)
