"""Makes the virtual environment that the Makefile works in, from the hashed locks.

    python requirements/environment.py .venv runtime|broker|test|docs|bench|peers

`runtime` is what users get, and quick; `broker` is that and what lends a Kafka; `test` is that and
every tool of the suite; `docs` and `bench` each add to `test`: what builds the API documentation,
and what benchmarks compare with in one process. The locks agree on what they share. `peers` holds
systems to measure beside streamdp and not streamdp: they need other versions of what it stands on,
hence an environment of their own.

Each package is checked against its hash. What installs them is a pip with a lock of its own: the
one that Python brings takes twice as long where many packages are locked. A stamp in the
environment tells what it was made from: nothing is done while that holds, another interpreter makes
it anew, and a changed lock or `pyproject.toml` installs what differs.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = {
    "runtime": ("runtime.lock", "build.lock"),
    "broker": ("broker.lock", "build.lock"),
    "test": ("test.lock",),
    "docs": ("docs.lock",),
    "bench": ("bench.lock",),
    "peers": ("peers.lock",),
}
PIP = ROOT / "requirements" / "pip.lock"
COMPILED = ("runtime", "broker")
"""What users run: whose packages are compiled when they are installed. The tools are many times as
large, most of it is never imported, and Python compiles the rest when it first does."""

CONTAINED_IN = {
    "runtime": ("broker", "test", "docs", "bench"),
    "broker": ("test", "docs", "bench"),
    "test": ("docs", "bench"),
}


def stamp_of(kind: str) -> str:
    """What an environment of this kind is made from, as one line: interpreter, locks, project."""
    digest = hashlib.sha256()
    project = ROOT / "pyproject.toml", ROOT / "streamdp" / "__init__.py"
    for path in (*locks_of(kind), PIP, *project):
        digest.update(path.read_bytes())
    return f"{sys.version.split()[0]} {sys.base_prefix} {ROOT} {digest.hexdigest()}"


def locks_of(kind: str) -> list[Path]:
    """The lock files of one kind."""
    return [ROOT / "requirements" / name for name in LOCKS[kind]]


def is_current(home: Path, kind: str) -> bool:
    """Whether the environment already offers this kind."""
    offers = (kind, *CONTAINED_IN.get(kind, ()))
    return any(read(home / f".streamdp-{offer}") == stamp_of(offer) for offer in offers)


def interpreter_of(stamp: str) -> list[str]:
    """The part of a stamp without which nothing installed is usable: interpreter and place."""
    return stamp.split(" ")[:-1]


def read(path: Path) -> str:
    """A file's text, or nothing if there is none."""
    return path.read_text() if path.is_file() else ""


def pip(home: Path, *arguments: str) -> None:
    """Run the environment's own pip; its output is shown only when it fails."""
    command = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *arguments]
    if subprocess.run([*command, "--disable-pip-version-check"], check=False).returncode:
        sys.exit(f"streamdp: could not install what the environment {home} needs; see above.")


def make(home: Path, kind: str) -> None:
    """Make the environment, or bring it up to date."""
    print(
        f"streamdp: setting up {home} ({kind}) with Python {sys.version.split()[0]} …", flush=True
    )
    stamps = [home / f".streamdp-{name}" for name in LOCKS]
    if not any(interpreter_of(read(path)) == interpreter_of(stamp_of(kind)) for path in stamps):
        create(home)
    for path in stamps:
        path.unlink(missing_ok=True)
    pip(home, "--require-hashes", "--requirement", str(PIP))
    requirements = [part for lock in locks_of(kind) for part in ("--requirement", str(lock))]
    how = ("--compile",) if kind in COMPILED else ("--no-compile",)
    pip(home, *how, "--require-hashes", *requirements)
    if kind != "peers":
        pip(home, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    (home / f".streamdp-{kind}").write_text(stamp_of(kind))


def create(home: Path) -> None:
    """Make an empty environment, or say which package brings what Python lacks for it."""
    if importlib.util.find_spec("ensurepip") is None:
        name = f"python3.{sys.version_info.minor}-venv"
        sys.exit(f"streamdp: this Python comes without venv; on Debian: apt-get install {name}")
    venv.create(home, clear=True, with_pip=True, symlinks=True)


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """Let one process at a time set up an environment."""
    with home.with_name(f"{home.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Bring the environment of the first argument to the kind of the second."""
    home, kind = Path(sys.argv[1]).absolute(), sys.argv[2]
    if is_current(home, kind):
        return
    with alone(home):
        if not is_current(home, kind):
            make(home, kind)


if __name__ == "__main__":
    main()
