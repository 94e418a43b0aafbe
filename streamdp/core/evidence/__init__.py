"""What follows from releases alone: what is in force, and what the next draw knows beforehand.

A release is evidence. The action in force, which readers use, and the bonus that the next private
choice gets may be any function of the evidence so far: everybody who has the ledger can compute
them too, so they cost no ε.

Privacy rests on the imports of this package: nothing here can reach a sum of losses, or noise that
is not released yet. A contract of import-linter (`pyproject.toml`) refuses such an import. The
engine passes in plain arrays of votes, lengths and remembered numbers, never its bank.

Everything is integer arithmetic, or one correctly rounded operation at a time: a rebuild, a replay
and ``streamdp ledger verify`` must arrive at the same bits on every platform, and in every later
version. The ledger names the method (a memory's name, a feedback learner's recipe with its
options), and **a name stands for one arithmetic**: a method whose result differs by a single bit
gets a new name, and the old name keeps its old results (`tests/golden_arithmetic.py` checks each).

`evidence` is the interface. Of losses: `votes`, and `vote_filter`, a memory of them. Of feedback:
`policies` is the evidence, `policy_rule` the port of rules and `policy_rules` the rules, with
`policy_posterior` (what a block says of an arm), `policy_regimes` (the same where the world
changes), `policy_best` (which arm is best), `policy` (parts of 2**24) and `policy_arithmetic`. Of
contexts: `contexts` has the cells, `context_model` is the rule, `context_fields` and
`context_value` are what pages show, with `block_tables`. `carrying` is what a new learner begins
with, `experiment` reads a stream as an experiment.
"""

from streamdp.core.arrays import Ints
from streamdp.core.evidence.vote_filter import VoteFilter, named
from streamdp.core.evidence.votes import NEWEST, Memory, NewestVote, Standing

__all__ = ["NEWEST", "Ints", "Memory", "NewestVote", "Standing", "VoteFilter", "named"]
