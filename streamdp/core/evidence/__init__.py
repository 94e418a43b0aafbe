"""What follows from releases alone: what is in force, and what the next draw is told beforehand.

A release is evidence. What readers are told (the action in force) and what the next private choice
knows beforehand (a bonus) may be any function of the evidence so far: whoever has the ledger can
compute them too, so they cost no ε.

Privacy rests on the imports of this room: nothing here can reach a sum of losses, or noise that is
not released yet. A contract of import-linter (`pyproject.toml`) refuses such an import. The engine
calls in with plain arrays of votes, lengths and what was remembered, never with its bank.

Everything is integer arithmetic, or one correctly rounded operation at a time: a rebuild, a replay
and ``streamdp ledger verify`` must arrive at the same bits on every platform, and in every later
version. A ledger names how (a memory's name, a feedback learner's recipe with its options), and **a
name stands for one arithmetic**: what is computed otherwise, by a single bit, gets a new name, and
the old name goes on computing the old thing (`tests/golden_arithmetic.py` holds each to it).
"""

from streamdp.core.arrays import Ints
from streamdp.core.evidence.memory import NEWEST, Memory, NewestVote, Standing
from streamdp.core.evidence.vote_filter import VoteFilter, named

__all__ = ["NEWEST", "Ints", "Memory", "NewestVote", "Standing", "VoteFilter", "named"]
