"""`check_bandit`: does a learner of bandit feedback keep the promises that its engine relies on?

    def test_my_bandit() -> None:
        check_bandit(my_bandit(actions=["a", "b", "c"], epsilon="1"))

The promises, in the order in which they are checked:

1. *A value.* Its recipe is registered; its options are text, and reading them back gives its equal.
2. *Plays* are actions of the learner, asked twice the same.
3. *Content.* Unusable content is the loss 1/2.
4. *Determinism.* The same seed gives the same plays and releases.
5. *The audit* (`streamdp.lab.papers.audit`) finds nothing: parts, accounts, charges, and what may
   depend on content.

A failure is an `AssertionError` that names the broken promise.
"""

from __future__ import annotations

from streamdp.core.kinds.recipe import config_of
from streamdp.core.randomness import SeededRandomness
from streamdp.lab.kits.kinds import require
from streamdp.lab.papers.audit import audit_bandit
from streamdp.lab.papers.bandit import BanditEngine, BanditRelease
from streamdp.lab.papers.learners import BANDIT_RECIPES, Bandit, bandit_of

_SLOTS = 400
_SAMPLES = 1_000  # of noise


def check_bandit(bandit: Bandit) -> None:
    """Check the promises; raise `AssertionError` at the first broken one."""
    _check_value(bandit)
    _check_unusable(bandit)
    require(_run(bandit) == _run(bandit), "the same seed, the same releases", bandit)
    verdict = audit_bandit(bandit, samples=_SAMPLES)
    require(verdict.passed, "; ".join(["the audit", *verdict.failures]), bandit)


def _engine(bandit: Bandit) -> BanditEngine:
    return BanditEngine(bandit, budget=bandit.charge, randomness=SeededRandomness("kit"))


def _check_value(bandit: Bandit) -> None:
    """Promise 1."""
    require(bandit.name in BANDIT_RECIPES, "a recipe that is registered", bandit)
    again = bandit_of(config_of(bandit), actions=bandit.actions)
    require(again == bandit, "options, read back, give an equal learner", bandit)


def _run(bandit: Bandit) -> list[BanditRelease]:
    """Promise 2, over a run with late, foreign and missing names."""
    engine, releases, names = _engine(bandit), list[BanditRelease](), bandit.actions
    for slot in range(_SLOTS):
        played = engine.action()
        require(played in names and engine.action() == played, "plays are actions", bandit)
        named = (played, played, names[slot % len(names)], None, "nobody")[slot % 5]
        releases += engine.observe(named, (slot * 37 % 101) / 100)
    return releases


def _check_unusable(bandit: Bandit) -> None:
    """Promise 3: text, NaN and 1/2 are one content."""
    runs = []
    for content in (0.5, float("nan"), "text", None):
        engine = _engine(bandit)
        runs.append([engine.observe(engine.action(), content) for _ in range(60)])
    require(all(run == runs[0] for run in runs), "unusable content is the loss 1/2", bandit)
