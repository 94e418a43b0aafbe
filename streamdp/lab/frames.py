"""Results of replays, simulations and plans as data frames: a row for each learner or block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamdp.core.errors import InvalidConfig
from streamdp.core.frames import load_narwhals
from streamdp.lab.planning import ChangePlan, LearnerPlan, as_json, changes_as_json
from streamdp.lab.replay.replaying import Replay
from streamdp.lab.replay.reported import as_json as replayed
from streamdp.lab.simulation import Outcome

Result = Replay | Sequence[Outcome] | LearnerPlan | ChangePlan


def frame_of(result: Result, *, backend: str = "pandas") -> Any:
    """A result as a frame of `backend`: pandas, polars or pyarrow.

    A replay or a simulation has a row for each learner at each ε, a plan one for each block, a plan
    with changes one for each learner. Curves stay in the results themselves.
    """
    rows = [
        {
            name: value
            for name, value in row.items()
            if value is None or isinstance(value, str | int | float)
        }
        for row in _rows(result)
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    narwhals = load_narwhals()
    if backend not in ("pandas", "polars", "pyarrow"):
        expected = "pandas, polars or pyarrow"
        raise InvalidConfig("backend", "unknown", expected=expected, got=repr(backend))
    columns = {name: [row.get(name) for row in rows] for name in names}
    return narwhals.from_dict(columns, backend=backend).to_native()


def _rows(result: Result) -> Iterator[Mapping[str, Any]]:
    match result:
        case Replay():
            cells: Any = replayed(result)["cells"]
            yield from cells
        case LearnerPlan():
            about = {"learner": result.wish.candidate.text, "epsilon": as_json(result)["epsilon"]}
            yield from (about | block for block in as_json(result)["blocks"])
        case ChangePlan():
            yield from changes_as_json(result)["learners"]
        case _:
            for outcome in result:
                yield {
                    "instance": outcome.world.name,
                    "actions": outcome.world.actions,
                    "learner": outcome.learner,
                    "epsilon": None if outcome.epsilon is None else float(outcome.epsilon),
                    "runs": len(outcome.regrets),
                    "mean_regret": outcome.mean,
                    "standard_error": outcome.error,
                    "worst_percent": outcome.worst,
                }
