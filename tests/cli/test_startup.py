"""Does a command load what it needs, and nothing that is heavy beside it?

Start-up is imports. What is counted here is modules, never time: a command that only checks, reads
or asks must not load servers, plots, a broker's client, the logging of a service or its engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from streamdp.cli import application
from streamdp.core import engine
from tests.support.calling import written
from tests.support.learned_shop import learned

CALL = """
import json, sys
from streamdp.cli import main
told, sys.argv = sys.argv[1], ["streamdp", *sys.argv[2:]]
try:
    main()
except SystemExit as ended:
    modules = sorted(sys.modules)
    with open(told, "w") as file:
        json.dump([ended.code or 0, modules], file)
"""

SERVICE = ("aiokafka", "structlog", "uvicorn", "prometheus_client", "streamdp.core.engine.machine",
           "streamdp.service.run", "streamdp.service.worker")  # fmt: skip
"""What moves a service, which none of these commands does."""

ENTROPY, JOIN = "cryptography", "streamdp.assembly.join"
"""What draws, and what joins: neither is done where nothing is drawn or assembled."""

PLOTS = ("rich", "pyarrow", "pandas", "matplotlib", "streamdp.lab.replay", "streamdp.lab.audit")

LOOKS = (
    ["check"],
    ["ledger", "verify"],
    ["ledger", "show", "--last", "3"],
    ["state", "inspect"],
    ["topics", "check"],
    ["doctor"],
    ["send", "events.ndjson"],
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small SQLite shop that has lived, its HTTP listener configured."""
    folder = tmp_path_factory.mktemp("shop")
    path = written(folder, name="streamdp.toml")
    learned(path)
    path.write_text(f'{path.read_text()}[http]\nlisten = "127.0.0.1:0"\n')
    (folder / "events.ndjson").write_text('{"key": "fr", "losses": [0, 0.5, 1]}\n')
    return folder


def loaded(arguments: list[str], folder: Path) -> tuple[int, set[str]]:
    """A command's exit code, and every module that a process of its own holds at its end."""
    file = folder / "told.json"
    program = [sys.executable, "-c", CALL, str(file), *arguments]
    subprocess.run(program, cwd=folder, capture_output=True, check=False)
    code, modules = json.loads(file.read_text())
    return code, set(modules)


LAB_COMMANDS = "streamdp.lab.commands"
"""The package in which the offline commands are found by name."""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", LOOKS, ids=" ".join)
def test_does_a_command_that_looks_load_no_service(arguments: list[str], shop: Path) -> None:
    """And it does its work: an exit code of a failure would make this easy."""
    code, modules = loaded(arguments, shop)
    assert code == 0
    heavy = {*SERVICE, *PLOTS, ENTROPY, JOIN} - (
        {"prometheus_client"} if arguments == ["check"] else set()
    )
    assert modules & heavy == set()
    others = {f"streamdp.cli.{name}" for name in ("run", "serve")}
    assert modules & others == set()
    assert {name for name in modules if name.startswith("streamdp.lab.")} <= {LAB_COMMANDS}


@pytest.mark.parametrize(
    "arguments", [["watch", "--help"], ["replay", "losses", "--help"]], ids=" ".join
)
def test_does_help_load_no_room(arguments: list[str], tmp_path: Path) -> None:
    """Only the command line itself, and what prints boxes."""
    code, modules = loaded(arguments, tmp_path)
    assert code == 0
    rooms = {name for name in modules if name.startswith("streamdp.")}
    assert {name for name in rooms if not name.startswith(("streamdp.cli", LAB_COMMANDS))} <= {
        "streamdp.lab",
        "streamdp.core",
        "streamdp.core.errors",
    }
    assert modules & {"numpy", "msgspec", "cryptography", "asyncio", *SERVICE} == set()


def test_does_the_version_load_no_validation(tmp_path: Path) -> None:
    """No parameters are read, so nothing that reads them is needed."""
    code, modules = loaded(["--version"], tmp_path)
    assert code == 0
    assert modules & {"numpy", "pydantic", "rich", "msgspec", *SERVICE} == set()


def test_does_linear_algebra_start_no_threads(tmp_path: Path) -> None:
    """They would cost every command .06 s of processor, and round sums by their number."""
    program = (
        "import os, sys; from streamdp.cli import main; sys.argv = ['streamdp', '--version']\n"
        "try: main()\n"
        "except SystemExit: import numpy; print(len(os.listdir('/proc/self/task')))"
    )
    environment = {name: value for name, value in os.environ.items() if "THREADS" not in name}
    call = [sys.executable, "-c", program]
    run = subprocess.run(
        call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.split()[-1] == "1"


def test_does_planning_load_no_service(tmp_path: Path) -> None:
    """It simulates, so it needs learners and the replay: no engine, no transport."""
    code, modules = loaded(
        ["plan", "--actions", "3", "--epsilon", "1", "--gap", "0.2", "--horizon", "100", "--json"],
        tmp_path,
    )
    assert code == 0
    assert modules & {*SERVICE, "streamdp_adapters", "pyarrow", "rich"} == set()


def test_has_each_file_of_commands_its_own_name() -> None:
    """The first word of a command line is the one file that is imported."""
    whole = application()
    names = [command.name for command in whole.registered_commands]
    names += [group.name for group in whole.registered_groups]
    for name in names:
        alone = application(only=str(name))
        assert [command.name for command in alone.registered_commands] in ([], [name])
        assert [group.name for group in alone.registered_groups] in ([], [name])
        assert alone.registered_commands or alone.registered_groups


def test_has_each_lazy_name_its_home() -> None:
    """What a room exports is there, and no module of the same name hides it."""
    for name in engine.__all__:
        assert not isinstance(getattr(engine, name), ModuleType)
