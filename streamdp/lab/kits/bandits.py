"""`check_bandit`: does a learner of bandit feedback keep the promises that its engine relies on?

    def test_my_bandit() -> None:
        check_bandit(my_bandit(actions=["a", "b", "c"], epsilon="1"), audit=audit_bandit)

The promises, in the order in which they are checked:

1. *A value.* Its recipe is registered; its options are text, and reading them back gives its equal.
2. *Plays* are actions of the learner, asked twice the same.
3. *Parts.* Each ends with the observation that was due, begins where one was open, and lies in the
   arm's own numbering; an arm without an open part is not entered.
4. *Charges.* The account of each arm has the charges of its releases, never more than the charge.
5. *Content.* Given the released numbers, releases and plays do not depend on content; unusable
   content is the loss 1/2.
6. *Determinism.* The same seed gives the same plays and releases.

`audit`, if given, runs last: pass `streamdp.lab.audit.audit_bandit`. A failure is an
`AssertionError` that names the broken promise.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from streamdp.core.randomness import SeededRandomness
from streamdp.lab.kits.kinds import Audited, require
from streamdp.lab.papers.bandit import BanditEngine, BanditRelease
from streamdp.lab.papers.learners import BANDIT_RECIPES, Bandit, bandit_of

_SLOTS = 400


def check_bandit(bandit: Bandit, *, audit: Callable[[Bandit], Audited] | None = None) -> None:
    """Check the promises; raise `AssertionError` at the first broken one."""
    _check_value(bandit)
    releases = _check_run(bandit)
    _check_parts(bandit, releases)
    _check_unusable(bandit)
    again = _check_run(bandit)
    require(again == releases, "the same seed, the same releases", bandit)
    if audit is not None:
        verdict = audit(bandit)
        require(verdict.passed, f"the audit: {verdict}", bandit)


def _engine(bandit: Bandit) -> BanditEngine:
    return BanditEngine(bandit, budget=bandit.charge, randomness=SeededRandomness("kit"))


def _check_value(bandit: Bandit) -> None:
    """Promise 1."""
    require(bandit.recipe in BANDIT_RECIPES, "a recipe that is registered", bandit)
    again = bandit_of(bandit.to_config(), actions=bandit.actions)
    same = (again.recipe, again.options, again.charge) == (
        bandit.recipe,
        bandit.options,
        bandit.charge,
    )
    require(same, "options, read back, give an equal learner", bandit)


def _check_run(bandit: Bandit) -> list[BanditRelease]:
    """Promises 2 and 4, over a run with late, foreign and missing names."""
    engine, releases, names = _engine(bandit), list[BanditRelease](), bandit.actions
    for slot in range(_SLOTS):
        played = engine.action()
        require(played in names and engine.action() == played, "plays are actions", bandit)
        named = (played, played, names[slot % len(names)], None, "nobody")[slot % 5]
        releases += engine.observe(named, (slot * 37 % 101) / 100)
    for name in names:
        own = [release for release in releases if release.action == name]
        for observation in range(1, max((release.stop for release in own), default=1)):
            holding = [r for r in own if r.start <= observation < r.stop]
            cost = sum((r.epsilon or Fraction(0) for r in holding), Fraction(0))
            agrees = engine.spent(name, observation) == cost
            require(agrees, "an account holds what its releases cost", bandit)
            require(bandit.charge is None or cost <= bandit.charge, "at most the charge", bandit)
    return releases


def _check_parts(bandit: Bandit, releases: list[BanditRelease]) -> None:
    """Promise 3."""
    for release in releases:
        require(1 <= release.start < release.stop, "a part has observations", bandit)
        require(0 <= release.arm < len(bandit.actions), "a part is of an arm", bandit)


def _check_unusable(bandit: Bandit) -> None:
    """Promise 5: text, NaN and 1/2 are one content."""
    runs = []
    for content in (0.5, float("nan"), "text", None):
        engine = _engine(bandit)
        runs.append([engine.observe(engine.action(), content) for _ in range(60)])
    require(all(run == runs[0] for run in runs), "unusable content is the loss 1/2", bandit)
