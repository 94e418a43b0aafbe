"""``streamdp ledger``: shows what was charged, and verifies the guarantee."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdp.cli._printable import is_asked, key_word, printable, word
from streamdp.cli.common import (
    DEFAULT_CONFIG,
    AnyStream,
    AsJson,
    Config,
    SingleBroker,
    everything,
    load,
    narrowed,
    opened,
    print_json,
    seeds,
    wait_for,
)
from streamdp.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamdp.ports import StreamTopics, Technology
    from streamdp.service.assembled import PersonsClaim
    from streamdp.service.config import Configuration
    from streamdp.service.spec import StreamSpec
    from streamdp.service.verification import TopicVerdict, Verification


def register(app: typer.Typer) -> None:
    """Add the commands."""
    ledger = typer.Typer(help="Show what was charged, and verify it.", no_args_is_help=True)
    ledger.command("show")(show)
    ledger.command("verify")(verify)
    app.add_typer(ledger, name="ledger")


def show(
    stream: AnyStream = None,
    key: Annotated[str | None, typer.Option(help="Only the lines of this key.")] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Only so many last lines of each partition.")
    ] = None,
    config: Config = DEFAULT_CONFIG,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Show ledger lines as they are published: each partition's, in their order.

    Example: streamdp ledger show --stream home --key fr --last 10
    """
    configuration = load(config)
    known = [topics for topics in everything(configuration) if stream in (None, topics.stream)]
    streams = known or narrowed(configuration, stream)
    technology = opened(configuration, single_broker)
    lines = wait_for(lambda: _lines(technology, streams, key, last))
    for line in lines:
        typer.echo(line if as_json else _in_words(line))
    if not lines:
        typer.echo("nothing is published of what was asked for", err=True)


async def _lines(
    technology: Technology, streams: Sequence[StreamTopics], key: str | None, last: int | None
) -> list[bytes]:
    """The lines that were asked for, partition by partition: nothing orders those of several."""
    from collections import defaultdict, deque

    from streamdp.ports import closing

    lines: list[bytes] = []
    async with closing(technology.publications()) as publications:
        for topics in streams:
            parts: defaultdict[int, deque[bytes]] = defaultdict(lambda: deque(maxlen=last))
            async for batch in publications.ledger(topics, follow=False):
                for record in batch:
                    if key is None or is_asked(record.key, key):
                        parts[record.partition].append(record.value)
            lines += (line for _, part in sorted(parts.items()) for line in part)
    return lines


def _in_words(value: bytes) -> str:
    """A ledger line in words."""
    from streamdp.wire.lines import Assembled, EpochMark, key_bytes
    from streamdp.wire.published import decode_any_ledger

    line = decode_any_ledger(value)
    place = f"{printable(line.stream)}/{line.partition}"
    if isinstance(line, Assembled):
        return (
            f"{place:<12} epoch {line.epoch}: requests {line.start} … {line.stop - 1} of"
            f" {printable(line.input)} become events of {printable(line.output)}"
        )
    if isinstance(line, EpochMark):
        return f"{place:<12} epoch {line.epoch} begins at record {line.next_offset}"
    name, kind = key_word(key_bytes(line)), word(line.kind)
    drawn = line.estimate if isinstance(line.estimate, float) else word(str(line.action))
    return (
        f"{place:<12} {name:<20} block {line.block:<3} {kind:<14} ε {line.epsilon:<8}"
        f" slots [{line.start}, {line.stop})  records {line.first_offset} … {line.last_offset}"
        f"  {drawn}"
    )


def verify(
    config: Annotated[
        list[Path],
        typer.Option(
            "--config",
            "-c",
            envvar="STREAMDP_CONFIG",
            help="One for each application; repeat it. (Several in the variable: a:b.)",
        ),
    ] = [DEFAULT_CONFIG],  # noqa: B006  # typer copies it
    persons: Annotated[
        bool,
        typer.Option("--persons", help="Also what assemblies' caps bound for one person, in ε."),
    ] = False,
    single_broker: SingleBroker = False,
    as_json: AsJson = False,
) -> None:
    """Recompute the guarantee from ledgers alone; exit code 1 if it does not hold.

    Give the configurations of all applications that read a topic: their charges add up. With one
    application alone, the charges that its configuration calls `elsewhere` are added. Streams that
    are no longer configured are found by their ledgers, and their charges count.

    Example: streamdp ledger verify --config shop.toml --config search.toml
    """
    from streamdp.service.verification import Verification, shortened

    configurations = [load(path) for path in config]
    _check_once(configurations)
    configured = [topics for app in configurations for topics in everything(app)]
    specs, unread = _specs(configurations)
    outputs = {topics.output for topics in configured} - {""}
    verification = Verification(assembled=outputs, configured=specs)
    read: set[str] = {topics.ledger for topics in configured}
    retired: list[StreamTopics] = []
    for configuration in configurations:
        technology = opened(configuration, single_broker)
        unread += wait_for(
            partial(_read_state, technology, everything(configuration), verification)
        )
        unread += wait_for(partial(_read_shown, technology, configuration.topics(), verification))
        wait_for(partial(_read, technology, configuration.topics(), verification))
        others = wait_for(partial(_others, technology, configuration.app, read))
        wait_for(partial(_read, technology, others, verification))
        read |= {topics.ledger for topics in others}
        retired += others
    for configuration in configurations:  # requests are declared before a stream reads their events
        technology = opened(configuration, single_broker)
        wait_for(partial(_read, technology, configuration.assembly_topics(), verification))
    foreign = {topics.app for topics in retired} - {own.app for own in configurations}
    verification.finish()
    uncovered = verification.uncovered(_budgets(configurations)[0])
    verdicts = verification.verdicts(*_budgets(configurations), foreign=foreign)
    violations = shortened(verification.violations, verification.unlisted)
    claims = verification.persons(_budgets(configurations)[1]) if persons else []
    held = {**asdict(verification.compared), "not_read": unread}
    ledgers = [topics.ledger for topics in retired]
    _report(verdicts, violations, ledgers, uncovered, held, claims, as_json)
    if violations or not all(verdict.kept for verdict in verdicts):
        raise typer.Exit(ExitCode.WRONG)


def _specs(configurations: Sequence[Configuration]) -> tuple[list[StreamSpec], list[str]]:
    """What configured streams are to write; and why that of some is not known."""
    from streamdp.core.errors import InvalidConfig

    specs: list[StreamSpec] = []
    unknown: list[str] = []
    for configuration in configurations:
        for name in configuration.tables.streams:
            try:
                specs.append(configuration.spec(name, seeds=seeds(True)))
            except InvalidConfig as error:  # a file that it names may not be here
                unknown.append(str(error))
    return specs, unknown


async def _read(
    technology: Technology, streams: Sequence[StreamTopics], verification: Verification
) -> None:
    """Read an application's ledgers."""
    from streamdp.ports import closing

    async with closing(technology.publications()) as publications:
        for topics in streams:
            async for batch in publications.ledger(topics, follow=False):
                verification.read(topics, batch)


async def _read_state(
    technology: Technology, streams: Sequence[StreamTopics], verification: Verification
) -> list[str]:
    """Read how far each partition has come; return why some state could not be read."""
    from streamdp.core.errors import InvalidConfig, StateMismatch
    from streamdp.ports import closing
    from streamdp.wire.entries import checkpoints

    unread = list[str]()
    async with closing(technology.administrator()) as tools:
        for topics in streams:
            there = False
            try:
                async for commit in tools.last_commits(
                    topics, marks=partial(checkpoints, topics.stream)
                ):
                    verification.read_state(topics, commit)
                    there = True
                if not there:
                    unread.append(f"{topics.state}: there is none, or you may not see it")
            except (InvalidConfig, StateMismatch) as error:
                unread.append(f"{topics.state}: {error}")
    return unread


async def _read_shown(
    technology: Technology, streams: Sequence[StreamTopics], verification: Verification
) -> list[str]:
    """Read what one application's actions topics still have; return why some could not be read.

    The proof is in the ledgers: whoever may read nothing else still gets it, and learns what was
    not compared with it.
    """
    from streamdp.core.errors import InvalidConfig
    from streamdp.ports import closing

    unread = list[str]()
    async with closing(technology.publications()) as publications:
        for topics in streams:
            try:
                async for batch in publications.actions(topics, follow=False):
                    verification.read_published(topics, batch)
                verification.read_all_published(topics)
            except InvalidConfig as error:
                unread.append(f"{topics.actions}: {error}")
    return unread


async def _others(technology: Technology, app: str, read: set[str]) -> list[StreamTopics]:
    """The ledgers that no given configuration names."""
    from streamdp.ports import closing

    async with closing(technology.publications()) as publications:
        return [topics for topics in await publications.ledgers(app) if topics.ledger not in read]


def _check_once(configurations: Sequence[Configuration]) -> None:
    """Refuse to read a ledger twice: every charge would be counted again."""
    from streamdp.core.errors import InvalidConfig

    given: dict[str, Path] = {}
    for configuration in configurations:
        for topics in everything(configuration):
            if topics.ledger in given:
                kind = "assemblies" if topics.output else "streams"
                where = f"--config {configuration.path}: {kind}.{topics.stream}"
                got = f"{topics.ledger}, as in {given[topics.ledger]}"
                raise InvalidConfig(where, "a ledger is given twice", expected="each once", got=got)
            given[topics.ledger] = configuration.path


def _budgets(
    configurations: Sequence[Configuration],
) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    """The budget of each topic that is read, the smallest if they differ; and charges elsewhere."""
    budgets: dict[str, Fraction] = {}
    readers: dict[str, set[str]] = {}
    elsewhere: dict[str, Fraction] = {}
    for configuration in configurations:
        ends = [end for t in everything(configuration) for end in (t.input, t.second_input)]
        for topic in dict.fromkeys(end for end in ends if end in configuration.tables.topics):
            table = configuration.tables.topics[topic]
            budgets[topic] = min(table.budget, budgets.get(topic, table.budget))
            readers.setdefault(topic, set()).add(configuration.app)
            elsewhere[topic] = table.elsewhere
    alone = {topic: amount for topic, amount in elsewhere.items() if len(readers[topic]) == 1}
    return budgets, alone


def _report(
    verdicts: Sequence[TopicVerdict],
    violations: list[str],
    retired: list[str],
    uncovered: list[str],
    compared: dict[str, Any],
    claims: Sequence[PersonsClaim],
    as_json: bool,
) -> None:
    """Print the verification, as JSON or as text."""
    if as_json:
        print_json(
            {
                "topics": [_as_dict(verdict, violations) for verdict in verdicts],
                "violations": violations,
                "not_configured": retired,
                "without_budget": uncovered,
                "compared": compared,
                "persons": [_claim_as_dict(claim) for claim in claims],
            }
        )
        return
    for topic in uncovered:
        typer.echo(
            f"not judged: {printable(topic)}, which former streams read and no budget covers"
        )
    for ledger in retired:
        typer.echo(f"also counted: {printable(ledger)}, of a stream that is no longer configured")
    _tell_compared(compared)
    for violation in violations:
        typer.echo(f"VIOLATION  {printable(violation)}")
    for verdict in verdicts:
        beside = f" + {verdict.elsewhere} elsewhere" if verdict.elsewhere else ""
        if beside and verdict.own != verdict.highest:
            beside = f" (without other applications: {verdict.own}{beside})"
        record = "request with its outcomes" if verdict.assembled else "record"
        typer.echo(
            f"topic {verdict.topic}: the highest charge on any {record} is ε = {verdict.highest}"
            f"{beside}, of a budget of {verdict.budget}, by {verdict.lines} lines:"
            f" {_verdict(verdict, violations)}"
        )

    for claim in claims:
        typer.echo(_claimed(claim))


def _claimed(claim: PersonsClaim) -> str:
    """What one cap bounds, in words."""
    name = f"persons of assembly {claim.app}.{claim.assembly}"
    if claim.most is None:
        return f"{name}: no cap; a person with m requests has m times ε = {claim.epsilon}"
    if claim.slots is None:
        return (
            f"{name}: {claim.most} events count in each calendar day (UTC) of a key, each charged"
            f" ε = {claim.epsilon} at most: ε = {claim.of_stretch} for a person in a key and day,"
            f" {claim.of_any} over any 24 hours of a key in one epoch, however many slots these"
            " have, times the keys that the person touches"
        )
    return (
        f"{name}: {claim.most} events count in each stretch of {claim.slots} slots of a key, each"
        f" charged ε = {claim.epsilon} at most: ε = {claim.of_stretch} for a person in a key and"
        f" stretch, {claim.of_any} over any {claim.slots} consecutive slots of a key in one"
        " epoch, times the keys that the person touches"
    )


def _claim_as_dict(claim: PersonsClaim) -> dict[str, Any]:
    return {
        "app": claim.app,
        "assembly": claim.assembly,
        "most": claim.most,
        "slots": claim.slots,
        "per": "day" if claim.most is not None and claim.slots is None else None,
        "epsilon": str(claim.epsilon),
        "of_stretch": _text(claim.of_stretch),
        "of_any_slots": None if claim.slots is None else _text(claim.of_any),
        "of_any_24_hours": None if claim.slots is not None else _text(claim.of_any),
    }


def _text(epsilon: Fraction | None) -> str | None:
    return None if epsilon is None else str(epsilon)


def _tell_compared(compared: dict[str, Any]) -> None:
    """Print what was compared with the ledgers, which is what the proof covers."""
    for reason in compared["not_read"]:
        typer.echo(f"not compared with the ledger: {printable(reason)}")
    if compared["policies"]:
        typer.echo(
            f"{compared['policies']} published policies were computed again from the ledger's sums:"
            " they are the same"
        )
    if compared["actions"]:
        count = compared["actions"]
        typer.echo(f"{count} published actions are those that the ledger puts in force")


def _verdict(verdict: TopicVerdict, violations: list[str]) -> str:
    if verdict.seeded:
        return f"NO GUARANTEE, {verdict.seeded} lines were drawn from a seed"
    if not verdict.kept:
        return "OVER BUDGET"
    return "NOT PROVEN, see the violations" if violations else "kept"


def _as_dict(verdict: TopicVerdict, violations: list[str]) -> dict[str, Any]:
    return {
        "topic": verdict.topic,
        "highest": str(verdict.highest),
        "own": str(verdict.own),
        "elsewhere": str(verdict.elsewhere),
        "budget": str(verdict.budget),
        "lines": verdict.lines,
        "seeded_lines": verdict.seeded,
        "assembled_into": list(verdict.assembled),
        "kept": verdict.kept and not violations,
    }
