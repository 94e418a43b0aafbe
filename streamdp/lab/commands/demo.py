"""``streamdp demo``: a made-up shop whose recommender learns privately while you watch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from streamdp.lab.demo.show import Show
    from streamdp.ports import Technology
    from streamdp.service.config import Configuration

PORT = 8080


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    seconds: Annotated[float, typer.Option(min=1, help="How many seconds visits come.")] = 45.0,
    kafka: Annotated[
        bool, typer.Option("--kafka", help="On a real broker instead of the embedded log.")
    ] = False,
    bootstrap: Annotated[
        str | None,
        typer.Option(help="With --kafka: your broker; else a temporary one."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Keep configuration and data in this folder."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="host:port of the status page; by default a free one.")
    ] = None,
) -> None:
    """Watch a made-up shop learn privately which shelf and which banner to show; ends by itself.

    Visits of three segments, one of which changes its taste half-way, go into a log; the real
    service learns from them; the shop shows what it publishes. The shop says for every shelf what
    it would have sold, but of banners only whether the shown one was clicked. A status page runs in
    the browser. On a broker of yours all its topics begin with streamdp-demo; it refuses to start
    where one exists, and deletes them at the end unless --folder keeps its files.

    Example: streamdp demo --seconds 60
    """
    from rich.console import Console

    from streamdp.lab.demo.show import configuration
    from streamdp.testing.free_ports import free_address

    console = Console(highlight=False)
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamdp-")))
        place.mkdir(parents=True, exist_ok=True)
        transport = stack.enter_context(_transport(place, kafka=kafka, bootstrap=bootstrap))
        address = listen or free_address(PORT)
        path = place / "streamdp.toml"
        settings = configuration(path, transport=transport, listen=address)
        path.write_text(settings, encoding="utf-8")
        console.print(f"The status page is at [link]http://{address}[/link]; it learns for"
                      f" {seconds:.0f} s.")  # fmt: skip
        foreign = kafka and bootstrap is not None
        show = _shown(path, console, seconds=seconds, address=address, refuse=foreign)
        if foreign and folder is None:
            import asyncio

            asyncio.run(_remove(path))
        stays = folder is not None and (not kafka or foreign)
        _conclude(console, show, kept=path if stays else None)


def _shown(path: Path, console: Console, *, seconds: float, address: str, refuse: bool) -> Show:
    """Run the service and the demonstration beside it."""
    import asyncio

    from streamdp.cli._serving import serve_as_child
    from streamdp.lab.demo.show import Show
    from streamdp.service.config import Configuration
    from streamdp.service.logs import set_up
    from streamdp.service.observers import observers_of
    from streamdp.service.process import run
    from streamdp.service.run import run_service

    configuration = Configuration.load(path, environment={})
    technology = configuration.technology()
    asyncio.run(_prepare(configuration, technology, refuse=refuse))
    serve_child = serve_as_child(configuration, single_broker=False)
    show = Show(console, seconds=seconds, address=f"http://{address}")
    with path.with_name("log.json").open("a", encoding="utf-8") as written:
        log = set_up(level="info", style="json", stream=written)

        async def served() -> object:
            return await run_service(
                configuration,
                technology=technology,
                log=log,
                observers=[*observers_of(configuration), serve_child, show.observer],
            )

        run(served, log=log)
    return show


async def _prepare(configuration: Configuration, technology: Technology, *, refuse: bool) -> None:
    """Create topics, as `streamdp topics create` does; maybe refuse those of somebody else."""
    from streamdp.core.errors import InvalidConfig
    from streamdp.ports import RemovingAdministrator, closing

    async with closing(technology.administrator()) as administrator:
        if refuse:
            assert isinstance(administrator, RemovingAdministrator)
            if there := await administrator.existing(configuration.topics()):
                expected = "none of the demonstration's topics on this cluster; delete them, or go"
                expected += " on with the configuration that an earlier --folder kept"
                got = ", ".join(there)
                raise InvalidConfig("--bootstrap", "topics exist", expected=expected, got=got)
        await administrator.create(configuration.topics(), partitions=1)


async def _remove(path: Path) -> None:
    """Delete the topics of the demonstration."""
    from streamdp.ports import RemovingAdministrator, closing
    from streamdp.service.config import Configuration

    configuration = Configuration.load(path, environment={})
    async with closing(configuration.technology().administrator()) as administrator:
        assert isinstance(administrator, RemovingAdministrator)
        await administrator.remove(configuration.topics())


def _conclude(console: Console, show: Show, *, kept: Path | None) -> None:
    from streamdp.lab.demo import screen

    frame = show.frame
    if frame is None:
        console.print("Nothing was shown; the log says why.")
        raise typer.Exit(1)
    if console.is_terminal:
        console.print(screen.drawn(frame))
    else:
        console.print(screen.as_line(frame), soft_wrap=True)
    console.print(screen.summary(show.world.scores, charged=frame.charged, budget=frame.budget))
    console.print(screen.clicks_summary(show.world.clicks, charged=frame.banner_charged))
    if show.first_action is not None:
        console.print(f"The first action was on the screen after {show.first_action:.1f} s.",
                      style="dim")  # fmt: skip
    console.print("\n[bold]Where to look next[/]")
    files = {
        f"streamdp run --with-serve --config {kept}": "goes on learning, with the status page",
        f"streamdp ledger verify --config {kept}": "recomputes the guarantee from the ledger",
    }
    again = {"streamdp demo --folder shop": "the same, but keeps its files"}
    for command, meaning in ((again if kept is None else files) | _NEXT).items():
        console.print(f"  [cyan]{command}[/]\n      {meaning}", soft_wrap=True)


_NEXT = {
    "make example": "clicks that come later, on a real Kafka, with a shop to click in (in a"
    " checkout)",
    "streamdp check --example": "a configuration that explains every key",
    "streamdp audit": "does each learner cost an event what its ledger says?",
}
"""Commands to type next, and their reasons."""


@contextmanager
def _transport(place: Path, *, kafka: bool, bootstrap: str | None) -> Iterator[str]:
    """The transport's table of the configuration."""
    if not kafka:
        yield f'kind = "sqlite"\npath = "{place / "streamdp.db"}"'
        return
    with ExitStack() as stack:
        if bootstrap is None:
            try:
                from streamdp.testing.broker import borrow_broker
            except ModuleNotFoundError:  # the image of production is made without it
                from streamdp.core.errors import refuse

                got = "an installation without the test broker"
                refuse("--kafka", "no broker", "--bootstrap HOST:PORT", got)
            bootstrap = stack.enter_context(borrow_broker()).bootstrap
        yield f'kind = "kafka"\nbootstrap = "{bootstrap}"\nsingle_broker = true'
