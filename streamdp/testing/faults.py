"""Injected faults: a transport calls one at each step of its protocol.

A transport calls a `streamdp.ports.Reached` with the name of each step of its protocol. A fault is
such a callable: it raises (by default `TransportLost`: the outcome is unknown), kills the process,
or counts. Everything is a function of a seed and of how often a step was passed, so that a failure
can be repeated.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from hashlib import blake2b

from streamdp.core.errors import TransportLost
from streamdp.ports import Partition

Failure = Callable[[str], BaseException]
"""Makes the exception from a message that names the step."""


class Count:
    """Counts how often each step is passed, and does nothing else."""

    def __init__(self) -> None:
        self.passages: Counter[str] = Counter()

    def __call__(self, step: str, partition: Partition) -> None:
        """Count one passage."""
        self.passages[step] += 1


class FaultPlan:
    """Faults at chosen passages: `FaultPlan({"commit: sent": {1, 4}})` fails the 1st and 4th."""

    def __init__(
        self, passages: Mapping[str, Collection[int]], *, failure: Failure = TransportLost
    ) -> None:
        self._plan = {step: frozenset(at) for step, at in passages.items()}
        self._failure = failure
        self._passed: Counter[str] = Counter()

    def __call__(self, step: str, partition: Partition) -> None:
        """Fail if this passage is in the plan."""
        self._passed[step] += 1
        if self._passed[step] in self._plan.get(step, ()):
            raise self._failure(f"{partition}: planned at {step}, passage {self._passed[step]}")


class Dice:
    """A fault at each passage with a fixed chance, drawn from a seed."""

    def __init__(
        self,
        *,
        seed: int,
        chance: Fraction,
        steps: Collection[str] | None = None,
        failure: Failure = TransportLost,
    ) -> None:
        self._seed = seed
        self._below = chance * (1 << 64)
        self._steps = None if steps is None else frozenset(steps)
        self._failure = failure
        self._passed = 0
        self.thrown: Counter[str] = Counter()

    def __call__(self, step: str, partition: Partition) -> None:
        """Throw the dice, and fail if they say so."""
        if self._steps is not None and step not in self._steps:
            return
        self._passed += 1
        digest = blake2b(f"{self._seed}/{self._passed}".encode(), digest_size=8).digest()
        if int.from_bytes(digest) < self._below:
            self.thrown[step] += 1
            raise self._failure(f"{partition}: thrown at {step}, passage {self._passed}")


class Kill:
    """Kills its own process with SIGKILL when a step is passed for the n-th time."""

    def __init__(self, step: str, *, passage: int) -> None:
        self._step = step
        self._left = passage

    def __call__(self, step: str, partition: Partition) -> None:
        """Die if the time has come."""
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
