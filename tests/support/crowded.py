"""A learner whose keys form a crowd, and what an outsider makes of its releases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction

import numpy as np
import pytest

import streamdp as sd
from streamdp.core.events import ACTION, OPENING, CrowdPrior, Key, Release, Releases
from streamdp.core.evidence.control import NO_CONTROL, Control
from streamdp.core.evidence.crowd import Crowd, Votes, cast, due, newest
from streamdp.core.evidence.groups import NO_GROUPS, Groups


def crowded(
    learner: sd.Leader, *, floor: str = "1/20", donates: int = 0, groups: Groups = NO_GROUPS,
    control: Control = NO_CONTROL,
) -> sd.Leader:  # fmt: skip
    """The same learner with a crowd, whose keys donate blocks of fewer slots."""
    rate, bonus = learner.choose.rate, learner.bonus
    crowd = Crowd(len(learner.actions), rate, bonus, Fraction(floor), donates, groups, control)
    return replace(learner, crowd=crowd)


@pytest.fixture(scope="module")
def priors_are_made_once() -> Iterator[None]:
    """Compute a prior once for the same votes and the same priors before it.

    It is a function of nothing else, and the same ones are asked for again and again: by every
    transcript of an enumeration, by a life without crashes and the same one with them.
    """
    plain, known = Crowd.made, dict[object, CrowdPrior]()

    def made(
        self: Crowd, votes: Votes, priors: Mapping[int, CrowdPrior], *, after: int
    ) -> CrowdPrior:
        columns = tuple(getattr(votes, column.name).tobytes() for column in fields(votes))
        encoded = tuple((number, prior.encoded) for number, prior in priors.items())
        if (self, columns, encoded, after) not in known:
            known[self, columns, encoded, after] = plain(self, votes, priors, after=after)
        return known[self, columns, encoded, after]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Crowd, "made", made)
        yield


@dataclass
class Outsider:
    """Makes the priors again, from releases in order and from nothing else."""

    learner: sd.Leader
    votes: int = 0
    priors: dict[int, CrowdPrior] = field(default_factory=dict)
    kept: dict[Key, np.ndarray] = field(default_factory=dict)
    in_force: dict[Key, int] = field(default_factory=dict)
    pooled: list[np.ndarray] = field(default_factory=list)

    def read(self, releases: Iterable[Release], pooled: Iterable[Releases] = ()) -> None:
        """Each record's releases together: a prior is made behind the record that makes it due."""
        crowd = self.learner.crowd
        assert crowd is not None
        self.priors.setdefault(0, crowd.nothing)
        votes = {id(vote): vote for votes_of_part in pooled for vote in votes_of_part}
        in_order = sorted([*releases, *votes.values()], key=lambda release: release.last_offset)
        for at, release in enumerate(in_order):
            if id(release) in votes:
                self.votes += 1
                self.pooled = [self._vote(crowd, release, prior=0, stayed=False), *self.pooled[:63]]
            elif release.kind in (OPENING, ACTION):
                self._one(crowd, release)
            last = at + 1 == len(in_order) or in_order[at + 1].last_offset != release.last_offset
            if last and self.votes >= due(self.priors[len(self.priors) - 1].after):
                kept = newest(np.array([*self.kept.values(), *self.pooled]))
                made = crowd.made(kept, self.priors, after=self.votes)
                self.priors[made.number] = made

    def _one(self, crowd: Crowd, release: Release) -> None:
        assert release.prior is not None
        if release.kind == OPENING:
            self.kept.pop(release.key, None)
        else:
            self.votes += 1
            identity = release.identity
            plain = crowd.control.plain(release.key, identity.born, identity.block)
            stayed = self.in_force[release.key] == release.value and not plain
            self.kept[release.key] = self._vote(crowd, release, prior=release.prior, stayed=stayed)
        self.in_force[release.key] = release.standing

    def _vote(self, crowd: Crowd, release: Release, *, prior: int, stayed: bool) -> np.ndarray:
        """What is kept of one vote."""
        kept: np.ndarray = cast(
            crowd,
            prior=np.array([prior]),
            stayed=np.array([stayed]),
            vote=np.array([release.value]),
            length=np.array([release.stop - release.start]),
            group=crowd.groups.numbers([release.key]),
        )[0]
        return kept
