"""``streamdp audit``: does every shipped learner cost each event at most what its ledger says?

``--config`` asks the same of a configuration's feedback streams, with their own options, ε, actions
and format.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamdp.core.kinds.kind import Kind
    from streamdp.core.randomness import Randomness
    from streamdp.lab.audit import Audit, Memo
    from streamdp.lab.report.terminal import Table

SHIPPED = (
    {"recipe": "incumbent_leader"},
    {"recipe": "remembering_leader"},
    {"recipe": "remembering_leader", "schedule": "geometric 5/2 to 2", "hazard": "1/9"},
    {"recipe": "prefix_softmax"},
    {"recipe": "prefix_softmax", "cap": "none"},
    *(
        {"recipe": "noisy_leader", "noise": noise, "resample": resample}
        for noise in ("laplace", "gumbel", "exponential")
        for resample in ("none", "bernoulli")
    ),
    {"recipe": "naive_noisy_leader"},
)
"""Every private recipe with the options that change its mechanism; recipes added later follow."""

_TABLES = (
    {"context": '{"device":["phone"]}'},
    {"context": '{"device":["phone"],"country":["fr"]}', "interactions": "none"},
)
"""Of a recipe with contexts: a table of two cells, and one of four in two parts."""

_BLACK_BOX_ACTIONS = 2


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit")(audit)


def audit(
    recipe: Annotated[
        list[str] | None, typer.Option(help="Only these recipes; all without it.")
    ] = None,
    epsilon: Annotated[
        list[str] | None, typer.Option(help="ε to audit at, exactly: 0.1, 1 and 3 without it.")
    ] = None,
    actions: Annotated[
        list[int] | None, typer.Option(help="Numbers of actions: 2 and 3 without it.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Instead: a configuration's feedback streams."),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1000, help="Transcripts drawn for each, and requests for a policy.")
    ] = 20_000,
    seed: Annotated[str, typer.Option(help="Seed of the sampled transcripts.")] = "audit",
    black_box: Annotated[
        bool,
        typer.Option("--black-box", help="Also run the real service on files, seen from outside."),
    ] = False,
    runs: Annotated[int, typer.Option(min=100, help="Runs of the service on each side.")] = 4_000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list, not a table.")] = False,
) -> None:
    """Audit the shipped learners: exact log-ratios, every draw in long blocks, sampled transcripts,
    non-interference.

    With --black-box the releases of the real service are looked at from outside too: neighbouring
    logs, real commits, and a lower bound on ε that must not exceed what is charged. Learners of
    losses are looked at with two actions, those of feedback with the fewest that are asked for.

    The papers' bandit learners, which the service does not run, are audited where they are named.

    With --config the feedback streams of a configuration are audited, as they are configured.

    Example: streamdp audit --recipe incumbent_leader --epsilon 0.5 --black-box
    """
    from streamdp.core.randomness import SeededRandomness
    from streamdp.lab.report.terminal import draw

    outside, randomness = runs if black_box else None, SeededRandomness(seed)
    if config is None:
        sizes = actions or [2, 3]
        chosen = product(_chosen(recipe), sizes, epsilon or ["0.1", "1", "3"])
        audits = list(_of_recipes(chosen, samples, randomness, outside, fewest=min(sizes)))
    else:
        _refuse_beside_config(recipe=recipe, epsilon=epsilon, actions=actions)
        audits = list(_of_configuration(config, samples, randomness, outside))
    figures = [_figures(result) for result in audits]
    if as_json:
        typer.echo(json.dumps(figures, indent=2, ensure_ascii=False))
    else:
        draw(_table(figures))
    if not all(result.passed for result in audits):
        raise typer.Exit(1)


def _of_recipes(
    chosen: product[tuple[dict[str, str], int, str]],
    samples: int,
    randomness: Randomness,
    runs: int | None,
    *,
    fewest: int,
) -> Iterator[Audit]:
    """Each recipe's options, with this many actions, at this ε."""
    from streamdp.core.evidence.contexts import Contexts
    from streamdp.core.learners import learner_of
    from streamdp.core.learners.feedback import FEEDBACK_RECIPES, feedback_learner_of
    from streamdp.lab.audit import Memo
    from streamdp.lab.commands._black_box import seen_from_outside
    from streamdp.lab.common.cells import PLAYS_ITSELF

    memo = Memo()
    for options, many, size in chosen:
        names = tuple(f"action {i}" for i in range(1, many + 1))
        config = {**options, "epsilon": size}
        if (itself := PLAYS_ITSELF.get(options["recipe"])) is not None:
            own = itself(actions=names, epsilon=size)
            yield own.audited(samples=samples, randomness=randomness)
            continue
        learner: Kind
        if options["recipe"] in FEEDBACK_RECIPES:
            fields = options.get("context")
            arms = names if fields is None else Contexts.read(fields).arms(names)
            learner, outside = feedback_learner_of(config, actions=arms), fewest
        else:
            learner, outside = learner_of(config, actions=names), _BLACK_BOX_ACTIONS
        result = _audited(learner, samples, randomness, memo)
        if runs is not None and many == outside:
            result = seen_from_outside(learner, result, runs=runs)
        yield result


def _of_configuration(
    path: Path, samples: int, randomness: Randomness, runs: int | None
) -> Iterator[Audit]:
    """Each feedback stream, as configured."""
    from dataclasses import replace

    from streamdp.cli.common import load, seeds
    from streamdp.core.errors import InvalidConfig
    from streamdp.core.randomness import SystemRandomness
    from streamdp.lab.audit import Memo
    from streamdp.lab.commands._black_box import seen_from_outside

    specs = load(path).specs(seeds=seeds(allowed=True))
    asked = [spec for spec in specs if spec.learner.recipe.played is not None]
    if not asked:
        wanted = 'a stream with observes = "feedback"'
        got = ", ".join(spec.name for spec in specs)
        raise InvalidConfig(str(path), "no feedback", expected=wanted, got=got)
    memo = Memo()
    for spec in asked:
        result = _audited(spec.learner, samples, randomness, memo)
        if runs is not None:
            fresh = replace(spec, randomness=SystemRandomness())
            result = seen_from_outside(spec.learner, result, runs=runs, spec=fresh)
        yield replace(result, learner=f"{spec.name}: {result.learner}")


def _audited(learner: Kind, samples: int, randomness: Randomness, memo: Memo) -> Audit:
    """The audit of a learner; of one with policies, with the faults of draws from them."""
    from dataclasses import replace

    from streamdp.lab.audit import audit_kind

    result = audit_kind(learner, samples=samples, randomness=randomness, memo=memo)
    if learner.evidence.answers == "action":
        return result
    return replace(result, failures=(*result.failures, *_flaws_of_choices(samples)))


@lru_cache(maxsize=1)
def _flaws_of_choices(samples: int) -> tuple[str, ...]:
    """The faults of the client's `choose`, which every cache and the service use."""
    from streamdp.client import choosing
    from streamdp.lab.audit import flaws_of_choosing

    draw = partial(choosing.chosen_arm, salt="audit")
    return tuple(dict.fromkeys(flaws_of_choosing(draw, samples=samples)))


def _refuse_beside_config(**options: object) -> None:
    """Refuse options that a configuration answers: recipes, ε and actions."""
    from streamdp.core.errors import InvalidConfig

    given = [f"--{name}" for name, value in options.items() if value]
    if given:
        expected = "none of --recipe, --epsilon and --actions: it says these itself"
        got = " and ".join(given)
        raise InvalidConfig("--config", "not alone", expected=expected, got=got)


def _chosen(recipes: list[str] | None) -> list[dict[str, str]]:
    """The shipped configurations, and those of private recipes that were added."""
    from streamdp.core.errors import InvalidConfig
    from streamdp.core.learners import RECIPES
    from streamdp.core.learners.feedback import FEEDBACK_RECIPES
    from streamdp.lab.common.cells import plays_itself

    named = [options["recipe"] for options in SHIPPED]
    others = {**RECIPES, **FEEDBACK_RECIPES}
    added = [
        {"recipe": name, **options}
        for name, made in others.items()
        if name not in named and _takes(made, "epsilon")
        for where in ([{}, {"played": "value"}] if _takes(made, "played") else [{}])
        for options in ([{**where, **of} for of in _TABLES] if _takes(made, "context") else [where])
    ]
    known = [*SHIPPED, *added]
    rest = set(recipes or ()) - {options["recipe"] for options in known}
    known += [{"recipe": name} for name in (plays_itself() if rest else ()) if name in rest]
    for name in recipes or []:
        if all(options["recipe"] != name for options in known):
            expected = ", ".join(dict.fromkeys(options["recipe"] for options in known))
            raise InvalidConfig("--recipe", "unknown", expected=expected, got=name)
    return [options for options in known if not recipes or options["recipe"] in recipes]


def _takes(recipe: Callable[..., object], option: str) -> bool:
    import inspect

    return option in inspect.signature(recipe).parameters


def _figures(result: Audit) -> dict[str, Any]:
    return {
        "learner": result.learner,
        "actions": result.actions,
        "epsilon_configured": result.configured,
        "epsilon_charged": str(result.charged),
        "worst_log_ratio": result.worst,
        "samples": result.samples,
        "epsilon_proven": result.outside,
        "verdict": result.verdict,
        "failures": list(result.failures),
    }


def _table(figures: list[dict[str, Any]]) -> Table:
    """A row for each learner, number of actions and ε."""
    from streamdp.lab.report.terminal import Table

    outside = any(of["epsilon_proven"] is not None for of in figures)
    header = ["learner", "K", "ε configured", "ε charged", "worst exact log-ratio", "samples"]
    rows = [
        [
            _name(of["learner"]),
            str(of["actions"]),
            of["epsilon_configured"],
            of["epsilon_charged"],
            f"{of['worst_log_ratio']:.9f}",
            str(of["samples"]),
            *([_proven(of["epsilon_proven"])] if outside else []),
            "\n".join([of["verdict"], *of["failures"]]),
        ]
        for of in figures
    ]
    header += [*(["seen from outside"] if outside else []), "verdict"]
    return Table("What the shipped learners cost each event", header, rows, _CAPTION)


def _proven(epsilon: float | None) -> str:
    """The bound that the service's releases prove."""
    return "" if epsilon is None else f"ε ≥ {epsilon:.3f}"


def _name(learner: str) -> str:
    """The recipe and, below it, the options that distinguish it."""
    recipe, _, rest = learner.partition("(")
    options = rest.partition(")")[0].split(", ")
    shown = [option.removeprefix("schedule=") for option in options if option != "resample=none"]
    return "\n  ".join([recipe, *(option for option in shown if not option.startswith("epsilon="))])


_CAPTION = (
    "All short streams on the shipped engine with every replacement, and base sums of up to 256 "
    "slots; tolerance 1e-9. For feedback every header, content and replacement, noise in closed "
    "form. Every draw in blocks of up to 256 slots, computed again from the log. "
    "Transcripts against their law by χ², false alarms 1e-9 each."
)
