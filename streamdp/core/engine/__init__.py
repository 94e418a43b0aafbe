"""The state machine: apply, save, rebuild. One room for each step of a batch's way.

`plan` lays a batch out over rows and blocks, `charges` says what a block costs, `waves` applies and
`draws` releases, `crowding` makes what draws are told of other keys, `machine` is the engine that
holds them together, `rebuilding` makes it again, `layout` says what saved rows look like, and
`operator` is NOT PRIVATE.

A name is imported when it is first asked for: a command that only checks a configuration needs the
layout of its rows and no machine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamdp.core.engine.charges import Charges, Tariff
    from streamdp.core.engine.crowding import CrowdStanding
    from streamdp.core.engine.draws import Drawn, Kept, Recorded, recorded
    from streamdp.core.engine.idleness import Ages
    from streamdp.core.engine.layout import configuration_digest, row_layout
    from streamdp.core.engine.machine import Engine
    from streamdp.core.engine.operator import NotPrivate
    from streamdp.core.engine.rebuilding import Rebuilding, rebuild

__all__ = [
    "Ages",
    "Charges",
    "CrowdStanding",
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

_HOMES = {
    "charges": ("Charges", "Tariff"),
    "crowding": ("CrowdStanding",),
    "draws": ("Drawn", "Kept", "Recorded", "recorded"),
    "idleness": ("Ages",),
    "layout": ("configuration_digest", "row_layout"),
    "machine": ("Engine",),
    "operator": ("NotPrivate",),
    "rebuilding": ("Rebuilding", "rebuild"),
}
"""Where each name is at home. No module may have the name of something in one: it would hide it."""


def __getattr__(name: str) -> object:
    """A name of this room, at its first use."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    member: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = member
    return member
