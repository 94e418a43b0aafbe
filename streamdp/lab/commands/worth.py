"""``streamdp worth``: what policies would have earned, from what was published: at no ε."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from streamdp.cli._printable import is_asked, word
from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AsJson,
    Config,
    OneStream,
    SingleBroker,
    chosen,
    known_actions,
    load,
    opened,
    print_report,
    wait_for,
)
from streamdp.core.errors import refuse

if TYPE_CHECKING:
    from streamdp.core.arrays import Floats
    from streamdp.core.evidence.block_tables import BlockTables
    from streamdp.core.evidence.context_value import Forward, Value
    from streamdp.core.evidence.contexts import Contexts
    from streamdp.ports import StreamTopics, Technology
    from streamdp.serve.history import KeyHistory, StreamReleases
    from streamdp.service.config import Configuration
    from streamdp.service.config.tables import FeedbackTable

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
    since: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --policy: the first block whose numbers nobody had seen who wrote the rules;"
            " 0 if they saw none. The rules are valued from there on.",
        ),
    ] = None,
    stream: OneStream = None,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Say what policies would have earned, from released numbers alone: it costs no ε.

    Of what was shown, each action for everybody, and the files: the mean reward (1 − loss; where
    the stream's table has `most`, in its unit), and how much more that is than what was shown.
    Intervals of 95 % hold as long as the world does not change; those of single actions hold all at
    once, and so do those of the best actions. Each line is about the blocks whose tables, fine or
    coarse, say something of its policy.

    Where counts are exact all actions alike come first, and without contexts always one of them: in
    the shows that say something of it, whatever changed meanwhile. Without contexts that is over
    all epochs that have the same actions.

    A rule looks better than it is on the blocks that it was chosen by. So the policy and the best
    actions (for everybody, of each level of a field, of each combination) of the first half of all
    events are valued by the other half.

    Example: streamdp worth --stream banners --key home --policy phones-boots.json --since 12
    """
    from streamdp.core.evidence.context_value import forward

    configuration = load(config)
    topics = chosen(configuration, stream)
    contexts = _fields(configuration, topics.stream)
    if (since is None) == bool(policy):
        expected = "the first block that the rules do not know of; 0 if they follow from none"
        refuse("--since", "needed with --policy, and only there", expected, str(since).lower())
    technology, own = opened(configuration, single_broker), configuration.streams[topics.stream]
    actions = list(wait_for(lambda: known_actions(technology, own)))
    asked = [(str(path), _read(path, contexts, actions)) for path in policy or ()]
    releases = wait_for(lambda: _releases(technology, topics, key))
    history = _newest(configuration, topics.stream, key, releases)
    tables, policies = _tables(history, key, named=len(actions))
    feedback = configuration.tables.streams[topics.stream].feedback
    assert feedback is not None, "looked at with the table"
    assert history is not None, "it has tables"
    said = history.earned_beside(most=float(feedback.most or 1), named=len(actions))
    single = actions if contexts or not said else ()
    rows = _rows(tables, forward(tables, policies, contexts), single, asked, since or 0)
    report = _report(rows, tables, said, actions, feedback)
    print_report(report, partial(_lines, always=not single), as_json=as_json)


class Row(NamedTuple):
    """A policy, and its value by the blocks from one on."""

    name: str
    since: int
    value: Value

    @property
    def blocks(self) -> list[int]:
        """The blocks whose tables say something of it: the value is about these."""
        return [self.since + block for block in self.value.blocks]


def _rows(
    tables: BlockTables,
    later: Forward | None,
    actions: Sequence[str],
    asked: Sequence[tuple[str, Floats]],
    since: int,
) -> Iterator[Row]:
    """What was shown, single actions, what the first half of events led to, and the files."""
    import numpy as np

    from streamdp.core.errors import InvalidConfig
    from streamdp.core.evidence.context_value import value_as_shown, value_of

    if since >= tables.blocks:
        got = f"{since}, of {tables.blocks} blocks"
        raise InvalidConfig("--since", "nothing to value by", expected="a block there is", got=got)
    cells, count = tables.shown.shape[1:]
    yield Row("what was shown", 0, value_as_shown(tables))
    for name, one in zip(actions, np.eye(count), strict=False):
        everywhere = np.tile(one, (cells, 1))
        yield Row(f"{word(name)} for everybody", 0, value_of(everywhere, tables, among=count))
    if later is not None:
        blocks = f"of the first {later.since} blocks"
        yield Row(f"the policy {blocks}", later.since, later.policy)
        for whom, (_, value) in later.best.items():
            yield Row(f"the best action for {whom} {blocks}", later.since, value)
    for name, table in asked:
        yield Row(name, since, value_of(table, tables.since(since)))


def _fields(configuration: Configuration, stream: str) -> Contexts | None:
    """The fields of a feedback stream."""
    from streamdp.core.errors import InvalidConfig

    configured = configuration.streams[stream]
    if configured.feedback is None:
        raise InvalidConfig(
            f"stream {stream}",
            "releases no sums",
            expected="a stream with observes = feedback",
            got="observes = losses",
        )
    return configured.contexts


async def _releases(technology: Technology, topics: StreamTopics, key: str) -> StreamReleases:
    """What the ledger says of one key, and of the lists that its policies followed."""
    from streamdp.ports import closing
    from streamdp.serve.history import StreamReleases

    releases = StreamReleases()
    async with closing(technology.publications()) as publications:
        async for batch in publications.ledger(topics, follow=False):
            some = (of for of in batch if of.key is None or is_asked(of.key, key))
            releases.apply([*some])
    return releases


def _newest(
    configuration: Configuration, stream: str, key: str, releases: StreamReleases
) -> KeyHistory | None:
    """The key's newest learner of a configured epoch."""
    table = configuration.streams[stream].table
    known = (
        history
        for (number, of), history in releases.keys.items()
        if is_asked(of, key) and history.epoch == table.partition_epochs.get(number, table.epoch)
    )
    return max(known, key=lambda of: of.stop, default=None)


def _tables(
    history: KeyHistory | None, key: str, *, named: int
) -> tuple[BlockTables, dict[int, Floats]]:
    """The released tables of a learner, and its policies by their first block.

    Of actions; columns that have no name yet, which come after those, are left out.
    """
    from streamdp.core.errors import InvalidConfig

    kept = None if history is None else history.policies
    found = None if kept is None else kept.tables(named=named)
    if found is None:
        raise InvalidConfig(
            f"key {word(key)}",
            "its releases cannot be added up",
            expected="published blocks of the configured epoch, at most 128",
            got="no such learner" if history is None else f"{history.blocks} blocks",
        )
    return found


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


def _report(
    rows: Iterator[Row],
    tables: BlockTables,
    said: dict[str, Any] | None,
    actions: Sequence[str],
    feedback: FeedbackTable,
) -> dict[str, Any]:
    """What was earned beside other shares, and the values, in the rewards' unit."""
    values = [(row, row.value.of(float(feedback.most or 1))) for row in rows]
    return {
        "blocks": tables.blocks,
        "blocks_of_all_cells": tables.whole,
        "events": float(tables.shown.sum()),
        "unit": None if feedback.most is None else feedback.reward_unit,
        "lift": said and said | {"always": dict(zip(actions, said["always"], strict=True))},
        "policies": [
            {
                "policy": row.name,
                "since_block": row.since,
                "blocks": row.blocks,
                "mean_reward": value.reward.mean if row.blocks else None,
                "low": value.reward.low,
                "high": value.reward.high,
                "more_than_shown": value.lift and asdict(value.lift),
                "unknown": value.unknown,
                "pooled": value.pooled,
            }
            for row, value in values
        ],
    }


def _lines(report: dict[str, Any], *, always: bool) -> Iterator[str]:
    """The report as columns, maybe with always one action where all are alike."""
    coarse = report["blocks"] - report["blocks_of_all_cells"]
    of = f"; {coarse} of them released coarser tables" if coarse else ""
    yield f"{report['blocks']} blocks with {report['events']:,.0f} events (public){of}:"
    called = "mean reward" if report["unit"] is None else f"{report['unit']} a show"
    if said := report["lift"]:
        yield f"{called:<26}{'more than was shown':<30}{'by shows':<12}"
        yield _beside(said["alike"]) + "all actions alike"
        for name, beside in said["always"].items() if always else ():
            yield f"{_beside(beside)}always {word(name)}"
    yield f"{called:<26}{'more than was shown':<30}{'by blocks':<12}"
    for row in report["policies"]:
        lift, notes, mean, by = row["more_than_shown"], "", "unknown", "none"
        more = ""
        if lift is not None:
            more = f"{lift['mean']:+.4f} ({lift['low']:+.4f} … {lift['high']:+.4f})"
        if row["blocks"]:
            mean = f"{row['mean_reward']:.4f} ({row['low']:.4f} … {row['high']:.4f})"
            by = _ranges(row["blocks"])
            parts = [(row["unknown"], "never shown"), (row["pooled"], "from pooled cells")]
            notes = "".join(f", {share:.0%} {what}" for share, what in parts if share >= 0.005)
        yield f"{mean:<26}{more:<30}{by:<12}{row['policy']}{notes}"
    if not all(row["blocks"] for row in report["policies"]):
        yield "none: of the blocks that may value it none released a table that says it"


def _beside(of: dict[str, Any] | None) -> str:
    """What other shares would have earned, as columns."""
    if of is None:
        return f"{'unknown':<26}{'':<30}{'none':<12}"
    mean, more = f"{of['mean']:.4f} ({of['low']:.4f} … {of['high']:.4f})", of["more"]
    less = f"{-more['mean']:+.4f} ({-more['high']:+.4f} … {-more['low']:+.4f})"
    return f"{mean:<26}{less:<30}{of['shows']:<12,}"


def _ranges(blocks: Sequence[int]) -> str:
    """The numbers of blocks, in short: of more than two stretches only how many.

    >>> _ranges([0, 1, 2, 14]), _ranges([3, 5, 7, 8]), _ranges([])
    ('0–2, 14', '4 of 3–8', '')
    """
    found = list[tuple[int, int]]()
    for block in blocks:
        if found and found[-1][1] == block - 1:
            found[-1] = found[-1][0], block
        else:
            found.append((block, block))
    if len(found) > 2:
        return f"{len(blocks)} of {blocks[0]}–{blocks[-1]}"
    return ", ".join(f"{first}–{last}" if first < last else f"{first}" for first, last in found)
