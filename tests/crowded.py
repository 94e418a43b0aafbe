"""A learner whose keys form a crowd, and what an outsider makes of its releases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

import streamdp as sd
from streamdp.core.events import ACTION, OPENING, CrowdPrior, Key, Release
from streamdp.core.evidence.crowd import Crowd, cast, due, newest


def crowded(learner: sd.Leader, *, floor: str = "1/20") -> sd.Leader:
    """The same learner with a crowd."""
    crowd = Crowd(len(learner.actions), learner.choose.rate, learner.bonus, Fraction(floor))
    return replace(learner, crowd=crowd)


@dataclass
class Outsider:
    """Makes the priors again, from releases in order and from nothing else."""

    learner: sd.Leader
    votes: int = 0
    priors: dict[int, CrowdPrior] = field(default_factory=dict)
    kept: dict[Key, np.ndarray] = field(default_factory=dict)
    in_force: dict[Key, int] = field(default_factory=dict)

    def read(self, releases: Iterable[Release]) -> None:
        """Each record's releases together: a prior is made behind the record that makes it due."""
        crowd = self.learner.crowd
        assert crowd is not None
        self.priors.setdefault(0, crowd.nothing)
        told = list(releases)
        for at, release in enumerate(told):
            if release.kind in (OPENING, ACTION):
                self._one(crowd, release)
            last = at + 1 == len(told) or told[at + 1].last_offset != release.last_offset
            if last and self.votes >= due(self.priors[len(self.priors) - 1].after):
                votes = newest(np.array(list(self.kept.values())))
                made = crowd.made(votes, self.priors, after=self.votes)
                self.priors[made.number] = made

    def _one(self, crowd: Crowd, release: Release) -> None:
        assert release.prior is not None
        if release.kind == OPENING:
            self.kept.pop(release.key, None)
        else:
            self.votes += 1
            self.kept[release.key] = cast(
                crowd,
                prior=np.array([release.prior]),
                stayed=np.array([self.in_force[release.key] == release.value]),
                vote=np.array([release.value]),
                length=np.array([release.stop - release.start]),
            )[0]
        self.in_force[release.key] = release.standing
