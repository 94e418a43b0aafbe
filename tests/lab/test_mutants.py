"""Is every broken engine, learner and draw found, by the layer of the audit that is to find it?

`tests.support.mutants` is the table of them. Seeds are fixed, but where the system's bits are what
is tested; a sound engine fails one of these tests with probability at most 1e-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import pytest

from streamdp.client import choosing
from streamdp.core.kinds.kind import Kind
from streamdp.lab.audit import LAYERS, Findings, Memo, flaws_of_choosing, misdeeds
from streamdp.lab.audit.exposure import Design, designs
from streamdp.lab.audit.neighbours import innermost
from tests.support.mutants import MUTANTS, Mutant

pytestmark = pytest.mark.slow


def two_ends(kind: Kind) -> list[Design]:
    """The longer design with only boundary slots varied: quick for a slow reader."""
    long, schedule = designs(kind)[1], kind.schedule
    ends = sorted({1, schedule.stop(1) - 1, schedule.start(2)})
    return [replace(long, varied=tuple(ends))]


def of_draws(findings: Findings) -> Iterator[str]:
    """Salts for which the shipped draw would not pass are one in 10⁸."""
    draw = partial(choosing.chosen_arm, salt="pepper")
    return flaws_of_choosing(draw, samples=1000)


ASKED: Mapping[str, Callable[[Findings], Iterator[str]]] = {
    **LAYERS,
    "ends of blocks": lambda findings: findings.of_designs(two_ends),
    "draws": of_draws,
}
"""The layers of the audit, a part of one, and the sampler of `choose`."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_by_its_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the reason that its row states."""
    mutant = MUTANTS[name]
    mutant.patch(monkeypatch)
    found: list[str] = []
    for what in ASKED[mutant.layer](Findings(mutant.kind, mutant.samples, mutant.longest)):
        found.append(what)
        if re.search(mutant.said, what):
            return
    pytest.fail(f"found {found}")


@pytest.mark.parametrize(
    "name",
    [
        name for name, of in MUTANTS.items()
        if of.layer == "new names" and of.kind.recipe.name == "policy_elimination"
    ],
)  # fmt: skip
def test_only_the_story_of_new_names_finds_what_is_wrong_with_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant = MUTANTS[name]
    mutant.patch(monkeypatch)
    found = list(misdeeds(mutant.kind, longest=mutant.longest))
    assert found
    assert all(what.startswith("new names, seeded: ") for what in found)


SHARED = Memo()
SOUND = {(innermost(of.kind), of.layer, of.longest, of.samples): of for of in MUTANTS.values()}
"""What is asked of mutants, once of each kind that is not broken."""


@pytest.mark.parametrize(
    "mutant", SOUND.values(), ids=lambda of: f"{of.layer} of {of.kind.recipe.name}"
)
def test_the_layer_that_finds_a_mutant_finds_nothing_else(mutant: Mutant) -> None:
    """The shipped engine and the kind as it was before it was broken."""
    findings = Findings(innermost(mutant.kind), mutant.samples, mutant.longest, SHARED)
    assert list(ASKED[mutant.layer](findings)) == []
