"""Does a key's history list the actions that readers were told, and no others?"""

from __future__ import annotations

import json
from typing import Any

from streamdp.ports import Published
from streamdp.serve.history import ACTIONS_A_KEY, Acted, StreamReleases
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from tests.support.lived import lived
from tests.support.streams import spec


def _line(block: int, **changes: Any) -> Published:
    """A real ledger line of an action, of another block and otherwise changed; None removes."""
    real = next(
        record
        for record in lived(spec()).ledger
        if isinstance(line := decode_ledger(record.value), Charge) and line.kind == "action"
    )
    members = json.loads(real.value) | {"block": block, "start": block, "stop": block + 1}
    members = {name: value for name, value in (members | changes).items() if value is not None}
    return Published(0, block, real.key, json.dumps(members).encode())


def _actions(lines: list[Published]) -> list[Acted]:
    releases = StreamReleases()
    releases.apply(lines)
    assert releases.refused == 0
    (history,) = releases.of_key(lines[0].key).values()
    assert history.actions is not None
    return list(history.actions)


def test_are_the_newest_actions_kept_in_order() -> None:
    """A bounded number of them, oldest first, each with its block and where it begins to count."""
    actions = _actions([_line(block, index=block % 2) for block in range(1, ACTIONS_A_KEY + 6)])
    assert actions == [Acted(block, block + 1, block % 2) for block in range(6, ACTIONS_A_KEY + 6)]


def test_is_the_action_in_force_shown_where_a_memory_decides() -> None:
    """The vote that was drawn may be another."""
    assert _actions([_line(1, index=0, memory="votes", in_force=1)]) == [Acted(1, 2, 1)]
