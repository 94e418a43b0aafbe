"""Replay: what learners and budgets would have done on a log, before anything goes live.

Full-information replay is exact: a loss vector does not depend on the action that was played, so
playing another action over the same log needs no importance weights and has no variance but the
learner's own. This is not true of vectors that were assembled from a bandit log, where the losses
of actions that were not played are guesses.

Everything that replay computes is NOT PRIVATE: it reads the log itself.
"""

from streamdp.lab.logs import ReadOptions, open_log
from streamdp.lab.logs.log import Log, Portion

__all__ = ["Log", "Portion", "ReadOptions", "open_log"]
"""`replay_log` is in `streamdp.lab.replay.replaying`."""
