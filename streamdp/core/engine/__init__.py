"""The state machine: apply, save, rebuild. One room for each step of a batch's way.

`plan` lays a batch out over rows and blocks, `charges` says what a block costs, `waves` applies and
`draws` releases, `machine` is the engine that holds them together, `rebuild` makes it again, and
`operator` is NOT PRIVATE.
"""

from streamdp.core.engine.charges import Charges, Tariff
from streamdp.core.engine.draws import Drawn, Kept, Recorded, recorded
from streamdp.core.engine.machine import Engine, configuration_digest, row_layout
from streamdp.core.engine.operator import NotPrivate
from streamdp.core.engine.rebuild import Rebuilding, rebuild

__all__ = [
    "Charges",
    "Drawn",
    "Engine",
    "Kept",
    "NotPrivate",
    "Rebuilding",
    "Recorded",
    "Tariff",
    "configuration_digest",
    "rebuild",
    "recorded",
    "row_layout",
]
