"""`check_kind`: does a learner keep the promises that engine and ledger rely on? Ours or yours.

    def test_my_learner() -> None:
        check_kind(my_learner(actions=["a", "b", "c"], epsilon="1"))

The promises, in the order in which they are checked:

1. *A value.* Its recipe is registered; its configuration is text, and reading it back gives an
   equal learner with the same digest; another ε or other actions give another digest.
2. *Determinism.* The same seed gives the same releases and saved rows; a policy adds up.
3. *Batches.* Batches cut anywhere, or slot by slot, give the same releases and saved rows.
4. *The audit* (`streamdp.lab.audit.audit_kind`) finds nothing, in blocks of up to 64 slots: a
   replaced content costs at most the charge; each release is drawn once, from what the log adds up
   to, is what the drawn bits say and follows the stated law, also after saves and rebuilds; ledger
   and what is in force follow from releases; nothing else depends on content. `streamdp audit`
   goes to 256 slots.

Check a selection mechanism of your own with `streamdp.lab.kits.selection.check_selection` as well.

A failure is an `AssertionError` that names the broken promise. Seeds are fixed, but for the
system's bits, under which a sound learner fails once in 10⁷ runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Batch, Key
from streamdp.core.evidence.policy import PARTS
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.recipe import config_of
from streamdp.core.learners.recipes import OBSERVED, kind_of
from streamdp.core.randomness import SeededRandomness
from streamdp.core.releases import Release
from streamdp.lab.audit import Findings, Memo, neighbours_of
from streamdp.lab.audit.around import engine_of
from streamdp.lab.audit.neighbours import in_short_blocks
from streamdp.lab.audit.stories import made_up

KEYS: tuple[Key, ...] = (b"fr", None, b"", b"\xff")
SLOTS = 132  # enough for several blocks of 16 slots of each key
_DRAWN_KEYS = 10_000
_LONG_BLOCK = 64  # slots


def require(held: object, promise: str, learner: object) -> None:
    """Raise with the broken promise; `python -O` would strip an `assert`."""
    if not held:
        raise AssertionError(f"{promise} ({learner})")


def check_kind(learner: Kind, *, memo: Memo | None = None) -> None:
    """Raise `AssertionError` unless the learner keeps every promise.

    `memo` shares with checks of other learners what an audit finds of both.
    """
    _check_value(learner)
    learner = in_short_blocks(learner)
    log = _log(learner)
    whole = _run(learner, [log])
    require(_run(learner, [log]) == whole, "the same seed, the same releases and rows", learner)
    policies = (np.frombuffer(of.policy, "<u4") for of in whole[0] if of.policy)
    whole_cells = not any(of.sum(dtype=np.int64) % PARTS for of in policies)
    require(whole_cells, "a policy adds up", learner)
    for step in (1, 2, 7, 32):
        cut = _run(learner, [log.part(slice(at, at + step)) for at in range(0, SLOTS, step)])
        require(cut == whole, "no cut changes a release or a row", learner)
    findings = Findings(learner, _DRAWN_KEYS, _LONG_BLOCK, Memo() if memo is None else memo)
    failure = next(findings.failures(), None)
    require(failure is None, f"the audit: {failure}", learner)


def _run(learner: Kind, batches: Sequence[Batch]) -> tuple[list[Release], dict[Key, bytes]]:
    """The releases of a new seeded engine over some batches, and its saved rows."""
    engine = engine_of(learner, SeededRandomness(1))
    releases = [release for batch in batches for release in engine.apply_batch(batch)]
    return releases, dict(engine.save())


def _log(learner: Kind) -> Batch:
    """Slots of a few keys, two of them null, with gaps in the offsets."""
    row, numbers = neighbours_of(learner), np.arange(SLOTS)
    slots = made_up(row, "kit log", 1, SLOTS)[0]
    slots[[11, 40], row.headers.shape[1] :] = row.contents[[-1, row.extremes]]
    return row.batch(KEYS, numbers * 5 % 7 % len(KEYS), slots, numbers * 2, None)


def _check_value(learner: Kind) -> None:
    """Promise 1."""
    recipe = learner.recipe
    config = config_of(recipe)
    text = all(isinstance(word, str) for pair in config.items() for word in pair)
    registered = any(recipe.name in recipes for recipes in OBSERVED.values())
    require(registered, "a recipe that is registered", learner)
    require(text, "a configuration is text", learner)
    again = _read(learner, config, learner.actions)
    require(again == learner, "its configuration is the learner again", learner)
    require(hash(again) == hash(learner), "equal learners have equal hashes", learner)
    require(again.recipe.digest == recipe.digest, "equal learners have equal digests", learner)
    require(str(learner).startswith(recipe.name), "its line begins with its recipe", learner)
    others = [_read(learner, config, learner.actions[::-1])]
    if "epsilon" in config:
        others.append(_read(learner, config | {"epsilon": "0.0625"}, learner.actions))
    for other in others:
        distinct = other.recipe.digest != recipe.digest and other != learner
        require(distinct, "another learner has another digest", learner)


def _read(learner: Kind, config: Mapping[str, str], actions: Sequence[str]) -> Kind:
    """The learner of a configuration for these actions."""
    try:
        return kind_of(config, actions=actions)
    except InvalidConfig as error:
        raise AssertionError(f"its configuration can be read: {error} ({learner})") from error
