"""streamdp: streaming, differentially private online learning.

Loss vectors go in, one action per key comes out, and the output is exactly ε-differentially private
for every single event. This package exports the core's names; the rest is in packages of its own:

    streamdp.core       the private core: pure, no clock, no network, no file
    streamdp.client     the recommender's side: a cache of published actions
    streamdp.testing    conformance kits for transports and formats
    streamdp.service    the long-running service
    streamdp.lab        offline: replays, simulations, plans, audits, the papers' experiments

>>> import streamdp as sd
>>> learner = sd.incumbent_leader(actions=["a", "b", "c"], epsilon="0.5")
>>> engine = sd.Engine(stream="home", partition=0, learner=learner, budget="1.0",
...                    randomness=sd.SystemRandomness())
>>> releases = engine.apply(b"fr", [0.1, 0.9, 0.3])
>>> engine.action(b"fr") in {"a", "b", "c"}
True

If only the loss of the shown action is seen, a policy comes out:

>>> learner = sd.policy_blocks(actions=["a", "b", "c"], epsilon="0.5")
>>> engine = sd.Engine(stream="ads", partition=0, learner=learner, budget="1.0",
...                    randomness=sd.SystemRandomness())
>>> releases = engine.observe(b"fr", action="b", loss=0.25)
>>> sum(engine.policy(b"fr").values())
1.0
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamdp.core.engine import Engine, Rebuilding, rebuild
    from streamdp.core.errors import (
        BudgetExceeded,
        Fenced,
        InvalidConfig,
        StateMismatch,
        StreamdpError,
        TransportLost,
    )
    from streamdp.core.events import Batch
    from streamdp.core.kinds.estimates import Estimate, estimate
    from streamdp.core.learners import RECIPES, Leader, PolicyLearner, learner_of, recipe
    from streamdp.core.learners.feedback import (
        FEEDBACK_RECIPES,
        feedback_learner_of,
        feedback_recipe,
    )
    from streamdp.core.learners.feedback.policy_blocks import policy_blocks
    from streamdp.core.learners.feedback.policy_contexts import policy_contexts
    from streamdp.core.learners.feedback.policy_elimination import policy_elimination
    from streamdp.core.learners.feedback.policy_following import policy_following
    from streamdp.core.learners.feedback.policy_weights import policy_weights
    from streamdp.core.learners.incumbent_leader import incumbent_leader
    from streamdp.core.learners.naive_noisy_leader import naive_noisy_leader
    from streamdp.core.learners.noisy_leader import noisy_leader
    from streamdp.core.learners.prefix_softmax import prefix_softmax
    from streamdp.core.learners.remembering_leader import remembering_leader
    from streamdp.core.randomness import SeededRandomness, SystemRandomness
    from streamdp.core.releases import Identity, Release, Releases
    from streamdp.core.schedule import Schedule, capped, dyadic, geometric, restarting

__version__ = "0.1.0"

__all__ = [
    "FEEDBACK_RECIPES",
    "RECIPES",
    "Batch",
    "BudgetExceeded",
    "Engine",
    "Estimate",
    "Fenced",
    "Identity",
    "InvalidConfig",
    "Leader",
    "PolicyLearner",
    "Rebuilding",
    "Release",
    "Releases",
    "Schedule",
    "SeededRandomness",
    "StateMismatch",
    "StreamdpError",
    "SystemRandomness",
    "TransportLost",
    "capped",
    "dyadic",
    "estimate",
    "feedback_learner_of",
    "feedback_recipe",
    "geometric",
    "incumbent_leader",
    "learner_of",
    "naive_noisy_leader",
    "noisy_leader",
    "policy_blocks",
    "policy_contexts",
    "policy_elimination",
    "policy_following",
    "policy_weights",
    "prefix_softmax",
    "rebuild",
    "recipe",
    "remembering_leader",
    "restarting",
]

_HOMES = {
    "streamdp.core.engine": ("Engine", "Rebuilding", "rebuild"),
    "streamdp.core.errors": (
        "BudgetExceeded",
        "Fenced",
        "InvalidConfig",
        "StateMismatch",
        "StreamdpError",
        "TransportLost",
    ),
    "streamdp.core.events": ("Batch",),
    "streamdp.core.kinds.estimates": ("Estimate", "estimate"),
    "streamdp.core.learners": ("RECIPES", "Leader", "PolicyLearner", "learner_of", "recipe"),
    "streamdp.core.learners.feedback": (
        "FEEDBACK_RECIPES",
        "feedback_learner_of",
        "feedback_recipe",
    ),
    "streamdp.core.randomness": ("SeededRandomness", "SystemRandomness"),
    "streamdp.core.releases": ("Identity", "Release", "Releases"),
    "streamdp.core.schedule": ("Schedule", "capped", "dyadic", "geometric", "restarting"),
}
"""Where each name is at home: it is imported when it is first asked for, so that a command or a
client that needs no engine does not load one. Every other name is a recipe's, found by its file or
by its entry point."""


def __getattr__(name: str) -> object:
    """A name of the core, at its first use."""
    member: object = None
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is not None:
        member = getattr(import_module(home), name)
    elif not name.startswith("_"):
        learners = import_module("streamdp.core.learners")
        member = learners.RECIPES.get(name) or learners.FEEDBACK_RECIPES.get(name)
    if member is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = member
    return member


def __dir__() -> list[str]:
    """All names, those too that nobody has asked for."""
    return sorted({*globals(), *__all__})
