"""``streamdp worth``: what policies would have earned, from what was published: at no ε."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdp.cli._events import refuse
from streamdp.cli._printable import is_asked, word
from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    OneStream,
    SingleBroker,
    chosen,
    load,
    opened,
    print_json,
    wait_for,
)

if TYPE_CHECKING:
    from streamdp.core.arrays import Floats
    from streamdp.core.evidence.context_value import Totals, Value
    from streamdp.core.evidence.contexts import Contexts
    from streamdp.core.kinds.feedback import PolicyLearner
    from streamdp.ports import StreamTopics, Technology
    from streamdp.serve.history import KeyHistory, StreamReleases
    from streamdp.service.config import Configuration

_RULES = (
    '[{"context": {"device": "phone"}, "show": "boots"}, {"show": {"coats": 0.5, "hats": 0.5}}]'
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("worth")(worth)


def worth(
    key: Annotated[str, typer.Option(help="The key whose releases are read.")],
    policy: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file of rules, the first that fits counts: levels by field, and what to show,"
            " an action or probabilities. Repeat it for more policies."
        ),
    ] = None,
    stream: OneStream = None,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Say what policies would have earned, from released numbers alone: it costs no ε.

    Also what was shown, each action for everybody, and the newest policy. Each is a mean reward
    (1 − loss) with an interval of 95 %, as long as the world does not change.

    Example: streamdp worth --stream banners --key home --policy phones-boots.json
    """
    from streamdp.core.evidence.context_value import value_as_shown, value_of

    configuration = load(config)
    topics = chosen(configuration, stream)
    contexts, actions = _table(configuration, topics.stream)
    asked = [(str(path), _read(path, contexts, actions)) for path in policy or ()]
    technology = opened(configuration, single_broker)
    releases = wait_for(lambda: _releases(technology, topics, key))
    totals, newest, blocks = _totals(configuration, topics.stream, releases, key)
    found: list[tuple[str, Value]] = [("what was shown", value_as_shown(totals))]
    for arm, action in enumerate(actions):
        found.append((f"{word(action)} for everybody", value_of(_everywhere(totals, arm), totals)))
    found.append(("the newest policy", value_of(newest, totals)))
    found += [(name, value_of(table, totals)) for name, table in asked]
    _tell(found, events=totals.events, blocks=blocks, as_json=as_json)


def _table(configuration: Configuration, stream: str) -> tuple[Contexts | None, list[str]]:
    """The fields and actions of a feedback stream."""
    from streamdp.core.errors import InvalidConfig

    if configuration.learner(stream).played is None:
        raise InvalidConfig(
            f"stream {stream}",
            "releases no sums",
            expected="a stream with observes = feedback",
            got="observes = losses",
        )
    return configuration.contexts(stream), configuration.actions(stream)


async def _releases(technology: Technology, topics: StreamTopics, key: str) -> StreamReleases:
    """What the ledger says of one key."""
    from streamdp.ports import closing
    from streamdp.serve.history import StreamReleases

    releases = StreamReleases()
    async with closing(technology.publications()) as publications:
        async for batch in publications.ledger(topics, follow=False):
            releases.apply([record for record in batch if is_asked(record.key, key)])
    return releases


def _totals(
    configuration: Configuration, stream: str, releases: StreamReleases, key: str
) -> tuple[Totals, Floats, int]:
    """The released tables of the key's newest learner, its newest policy, and how many blocks."""
    import numpy as np

    from streamdp.core.errors import InvalidConfig
    from streamdp.core.evidence.context_value import Totals
    from streamdp.core.evidence.policies import told
    from streamdp.core.evidence.policy_posterior import NoiseVariance
    from streamdp.core.kinds.feedback import PolicyLearner

    learner, table = configuration.learner(stream), configuration.stream(stream)
    assert isinstance(learner, PolicyLearner)
    known = [
        (number, history)
        for (number, _), history in releases.keys.items()
        if history.epoch == table.partition_epochs.get(number, table.epoch)
    ]
    history = max((of for _, of in known), key=lambda of: of.stop, default=None)
    if learner.parts is not None:
        raise InvalidConfig(
            f"stream {word(stream)}",
            "its table is in parts, which do not say what a cell earned",
            expected='a stream with the whole table: interactions = "all"',
            got=f"{len(learner.parts)} parts",
        )
    points = [] if history is None or history.policies is None else _points(history, learner)
    released = None if history is None or history.policies is None else history.policies.totals()
    if not points or released is None:
        raise InvalidConfig(
            f"key {word(key)}",
            "its releases cannot be added up",
            expected="published blocks of the configured epoch, at most 128, none withheld",
            got="no such learner" if history is None else f"{history.blocks} blocks",
        )
    count = len(configuration.actions(stream))
    blocks, noise = points[-1].blocks, learner.noise
    gains, shown = told(released, pairs=learner.pairs)
    of = NoiseVariance(blocks * noise.on_sums, blocks * noise.on_counts)
    totals = Totals(gains.reshape(-1, count), shown.reshape(-1, count), of)
    return totals, np.reshape(points[-1].shares, (-1, count)), blocks


def _points(history: KeyHistory, learner: PolicyLearner) -> list[Any]:
    assert history.policies is not None
    return list(history.policies.points(len(learner.actions)))


def _everywhere(totals: Totals, arm: int) -> Floats:
    """One action for everybody."""
    import numpy as np

    table = np.zeros_like(totals.shown)
    table[:, arm] = 1.0
    return table


def _read(path: Path, contexts: Contexts | None, actions: list[str]) -> Floats:
    """The policy in a file of rules, cells × actions."""
    import numpy as np

    try:
        rules = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        refuse(str(path), "cannot be read", _RULES, type(error).__name__)
    if not isinstance(rules, list) or not rules:
        refuse(str(path), "is no list of rules", _RULES, type(rules).__name__)
    cells = 1 if contexts is None else contexts.cells
    table, open_ = np.zeros((cells, len(actions))), np.ones(cells, dtype=bool)
    for number, rule in enumerate(rules, start=1):
        where = f"{path} rule {number}"
        if not isinstance(rule, dict) or not {"show"} <= rule.keys() <= {"show", "context"}:
            refuse(where, "is no rule", "show, and maybe context", word(str(rule)))
        fits = open_ & _cells(where, rule.get("context", {}), contexts)
        table[fits] = _shares(where, rule["show"], actions)
        open_ &= ~fits
    if open_.any():
        refuse(str(path), "does not say what to show everybody", "a last rule without context",
                f"{int(open_.sum())} of {cells} cells without a rule")  # fmt: skip
    return table


def _cells(where: str, levels: Any, contexts: Contexts | None) -> Any:
    """Which cells have these levels."""
    import numpy as np

    names = {} if contexts is None else {field.name: field.names for field in contexts.fields}
    fits = np.ones(tuple(map(len, names.values())), dtype=bool)
    if not isinstance(levels, dict) or not levels.keys() <= names.keys():
        refuse(f"{where}: context", "not usable", f"levels of {', '.join(names) or 'no field'}",
                word(str(levels)))  # fmt: skip
    for axis, (name, known) in enumerate(names.items()):
        if name not in levels:
            continue
        if levels[name] not in known:
            refuse(f"{where}: {name}", "unknown level", ", ".join(known), word(str(levels[name])))
        wrong = [at for at in range(len(known)) if at != known.index(levels[name])]
        fits[(slice(None),) * axis + (wrong,)] = False
    return fits.reshape(-1)


def _shares(where: str, show: Any, actions: list[str]) -> list[float]:
    """The probabilities of what a rule shows."""
    given = {show: 1.0} if isinstance(show, str) else show
    sound = isinstance(given, dict) and all(
        isinstance(share, int | float) and 0 <= share <= 1 for share in given.values()
    )
    if not sound or not given.keys() <= set(actions) or abs(sum(given.values()) - 1) > 1e-9:
        expected = f"one of {', '.join(map(word, actions))}, or probabilities that add up to 1"
        refuse(f"{where}: show", "not usable", expected, word(str(show)))
    return [float(given.get(action, 0.0)) for action in actions]


def _tell(found: list[tuple[str, Value]], *, events: float, blocks: int, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "blocks": blocks,
                "events": events,
                "policies": [
                    {"policy": name, "mean_reward": of.mean, "low": of.low, "high": of.high,
                     "pooled": of.pooled}
                    for name, of in found
                ],
            }
        )  # fmt: skip
        return
    typer.echo(f"Mean reward of an event, from {blocks} blocks of {events:,.0f} events (public):")
    wide = max(len(name) for name, _ in found)
    for name, of in found:
        pooled = f"   {of.pooled:.0%} from pooled cells" if of.pooled >= 0.005 else ""
        typer.echo(f"  {name:<{wide}}  {of.mean:.4f}  ({of.low:.4f} … {of.high:.4f}){pooled}")
