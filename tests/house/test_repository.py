"""Is the repository what it says: portable, pinned, small roomed, honest about what it imports?"""

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import streamdp
from streamdp.lab.common.cells import PLAYS_ITSELF
from streamdp.lab.papers.learners import BANDIT_RECIPES

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HEAVY = {"aiokafka", "pydantic", "starlette", "prometheus_client", "matplotlib", "uvicorn", "typer"}


def own_files() -> list[Path]:
    """Every file that belongs to the project, as its version control would list them."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def own_texts() -> Iterator[tuple[Path, str]]:
    """Every file that is text."""
    for path in own_files():
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def python_files() -> list[Path]:
    return [path for path in own_files() if path.suffix == ".py"]


def imports_of(path: Path) -> set[str]:
    """The top-level names that a file imports, wherever it does."""
    imports: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                imports.update(alias.name.partition(".")[0] for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                imports.add(module.partition(".")[0])
    return imports


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    place = re.compile(r"(?<![\w.])/(?:work|root|farm|home/\w+|Users/\w+|tmp/\w+)/")
    guilty = [
        str(path.relative_to(ROOT))
        for path, text in own_texts()
        if path != Path(__file__) and place.search(text)
    ]
    assert guilty == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_holds_names_versions_and_hashes_only(lock: Path) -> None:
    entry = re.compile(r"[a-z0-9-]+==[\w.!+]+( ; [\w.'\" ()=!<>]+)? \\")
    digest = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
    strange = [
        line
        for line in lock.read_text().splitlines()
        if not entry.fullmatch(line) and not digest.fullmatch(line)
    ]
    assert strange == []


def locked(name: str) -> dict[str, str]:
    """The versions that a lock pins."""
    text = (ROOT / "requirements" / f"{name}.lock").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", text, re.MULTILINE))


def test_the_locks_agree_with_each_other() -> None:
    """So that the environment of the tests contains the one that users get."""
    assert locked("runtime").items() <= locked("test").items()
    assert locked("build").items() <= locked("test").items()
    assert locked("test").items() <= locked("bench").items()
    assert locked("test").items() <= locked("docs").items()


def test_the_locks_are_in_step_with_the_project() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = {
        "runtime": PROJECT["project"]["dependencies"],
        "bench": [line for extra in extras.values() for line in extra],
        "test": extras["test"],
        "build": PROJECT["build-system"]["requires"],
        "docs": (ROOT / "requirements" / "docs.in").read_text().splitlines(),
    }
    for name, lines in wanted.items():
        pins = locked(name)
        for requirement in map(Requirement, lines):
            if requirement.name == "streamdp":
                continue
            pin = pins.get(canonicalize_name(requirement.name))
            assert pin is not None, f"{name}.lock lacks {requirement}: sh requirements/lock.sh"
            assert requirement.specifier.contains(pin), f"{name}.lock: {requirement} is {pin}"


def imported_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after one statement."""
    program = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    return {str(name).partition(".")[0] for name in json.loads(run.stdout)}


def provided_by(requirements: list[str]) -> set[str]:
    """The top-level names that these requirements bring."""
    wanted = {canonicalize_name(Requirement(line).name) for line in requirements}
    return {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if wanted & {canonicalize_name(owner) for owner in owners}
    }


@pytest.mark.slow
def test_the_product_imports_only_what_it_declares() -> None:
    """The service runs on the runtime's dependencies; the lab and the kits may use their extras."""
    extras = PROJECT["project"]["optional-dependencies"]
    always = provided_by(PROJECT["project"]["dependencies"]) | sys.stdlib_module_names
    always |= {"streamdp", "streamdp_adapters"}
    beyond = {
        "lab": provided_by(extras["replay"] + extras["examples"] + extras["dask"]),
        "testing": provided_by(extras["test"] + extras["broker"]),
        "streamdp_adapters/registry": provided_by(extras["registry"]),
        "core/frames.py": provided_by(extras["frames"]),
        "serve/otlp.py": provided_by(extras["otel"]),
    }
    strange = {}
    for path in [*ROOT.glob("streamdp/**/*.py"), *ROOT.glob("adapters/**/*.py")]:
        place = path.relative_to(ROOT).as_posix().partition("/")[2]
        extra = [names for room, names in beyond.items() if f"{place}/".startswith(f"{room}/")]
        if unknown := imports_of(path) - always.union(*extra):
            strange[str(path.relative_to(ROOT))] = sorted(unknown)
    assert strange == {}


def test_importing_streamdp_loads_no_service() -> None:
    loaded = imported_by("import streamdp")
    assert "streamdp" in loaded
    assert loaded & (HEAVY | {"streamdp_adapters"}) == set()


def test_streamdp_exports_what_it_says() -> None:
    names = vars(streamdp)["__all__"]
    assert [name for name in names if not hasattr(streamdp, name)] == []


def test_the_version_stands_in_one_place() -> None:
    assert importlib.metadata.version("streamdp") == streamdp.__version__
    literal = re.compile(rf"""["']{re.escape(streamdp.__version__)}["']""")
    places = [path for path in python_files() if literal.search(path.read_text())]
    assert places == [ROOT / "streamdp" / "__init__.py"]


def test_every_entry_point_can_be_loaded() -> None:
    points = importlib.metadata.distribution("streamdp").entry_points
    assert {point.group for point in points} >= {"console_scripts"}
    for point in points:
        loaded = point.load()
        if point.group == "streamdp.commands":
            assert callable(loaded.register)
        elif point.group == "streamdp.laboratory":
            assert PLAYS_ITSELF.keys() >= BANDIT_RECIPES.keys()
        else:
            assert callable(loaded) or callable(loaded.configure), point


def test_the_wheel_holds_the_packages_and_nothing_else(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    roots = {name.partition("/")[0] for name in names}
    about = f"streamdp-{streamdp.__version__}.dist-info"
    assert roots == {"streamdp", "streamdp_adapters", about}
    assert {"streamdp/py.typed", "streamdp_adapters/py.typed"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    sources = {
        path.relative_to(ROOT / base).as_posix()
        for base in (".", "adapters")
        for package in ("streamdp", "streamdp_adapters")
        for path in (ROOT / base / package).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == sources


@pytest.mark.parametrize("target", ["demo", "test", "check", "docs", "bench", "soak"])
def test_the_makefile_refuses_an_old_python_in_plain_words(target: str, tmp_path: Path) -> None:
    old = tmp_path / "python2"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 2.7.18" && exit 0\nexit 1\n')
    old.chmod(0o755)
    run = subprocess.run(
        ["make", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}", target],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "MAKEFLAGS": ""},
    )
    assert run.returncode != 0
    assert "streamdp needs Python 3.11 or newer" in run.stderr
    assert "Python 2.7.18" in run.stderr
    assert f"make PYTHON=python3.12 {target}" in run.stderr
