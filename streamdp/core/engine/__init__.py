"""The state machine: apply, save, rebuild. One module for each step that a batch goes through.

`plan` lays a batch out over rows and blocks, `charging` marks the slots of ended blocks paid,
`releasing` says where releases come from and makes columns of them, `machine` is the engine that
holds these together, `idleness` says which keys leave, and `rebuilding` restores an engine.
`arguments` checks what a program hands to an engine. What is kept, drawn and put in force is the
kind's (`core.kinds`).

A name is imported at its first use: a command that only checks a configuration needs the layout of
its rows but no engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamdp.core.engine.charging import Charges
    from streamdp.core.engine.idleness import Ages
    from streamdp.core.engine.machine import Engine
    from streamdp.core.engine.rebuilding import Rebuilding, rebuild
    from streamdp.core.snapshot import configuration_digest, row_layout

__all__ = [
    "Ages",
    "Charges",
    "Engine",
    "Rebuilding",
    "configuration_digest",
    "rebuild",
    "row_layout",
]

_HOMES = {
    "streamdp.core.engine.idleness": ("Ages",),
    "streamdp.core.snapshot": ("configuration_digest", "row_layout"),
    "streamdp.core.engine.charging": ("Charges",),
    "streamdp.core.engine.machine": ("Engine",),
    "streamdp.core.engine.rebuilding": ("Rebuilding", "rebuild"),
}
"""The module of each name. No module here may have the name of a member: it would hide that."""


def __getattr__(name: str) -> object:
    """Import a name at its first use."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    member: object = getattr(import_module(home), name)
    globals()[name] = member
    return member
