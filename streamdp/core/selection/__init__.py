"""Private choice of one among K: exact mechanisms at array speed.

`mechanism` is the port; `permute_and_flip`, `noisy_max` and `exponential` are the mechanisms, and
`prior` what they know beforehand. `race` is the algorithm that all three share, `laws` their closed
forms. `smallest` is not private.
"""

from streamdp.core.selection.exponential import Exponential
from streamdp.core.selection.mechanism import Mechanism
from streamdp.core.selection.noisy_max import NoisyMaxLaplace
from streamdp.core.selection.permute_and_flip import PermuteAndFlip
from streamdp.core.selection.prior import Prior
from streamdp.core.selection.smallest import Smallest

__all__ = [
    "Exponential",
    "Mechanism",
    "NoisyMaxLaplace",
    "PermuteAndFlip",
    "Prior",
    "Smallest",
]
