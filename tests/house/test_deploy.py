"""Would what is shipped for deployment be accepted, and does it keep to what it promises?"""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from streamdp.cli.exit_codes import ExitCode
from streamdp.service.config.tables import HttpTable
from tests.conftest import ROOT
from tests.support.deployment import DEPLOY, TOOLS, accepted, documents, run

RULES = DEPLOY / "prometheus" / "streamdp.rules.yml"
RULE_TESTS = DEPLOY / "prometheus" / "streamdp.rules.test.yml"
UNITS = [
    DEPLOY / "systemd" / f"{name}.service"
    for name in ("streamdp", "streamdp-assemble", "streamdp-serve")
]
UNIT = UNITS[0]
RUNBOOK = (DEPLOY / "RUNBOOK.md").read_text()
LARGEST_EXPOSURE = 1.5  # of 10, by `systemd-analyze security`; it was 1.2


def rules() -> list[dict[str, Any]]:
    (objects,) = documents(RULES)
    return [rule for group in objects["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


# What all of them set


def test_does_every_process_have_a_name_that_it_keeps() -> None:
    """So a killed one takes its partitions back at once. (Pods have theirs: `test_helm`.)"""
    working = {
        f"{path.parent.name} {name}": service["environment"]
        for path in DEPLOY.glob("*/compose.yaml")
        for name, service in documents(path)[0]["services"].items()
        if service.get("command", [""])[0] in ("run", "assemble")
    }
    assert len(working) == 3
    for name, environment in working.items():
        assert environment.get("STREAMDP__SERVICE__WORKER"), name
    for unit in UNITS[:2]:
        assert "Environment=STREAMDP__SERVICE__WORKER=%H" in unit.read_text()


# The image


def test_a_linter_accepts_the_container_file() -> None:
    accepted(TOOLS / "hadolint", DEPLOY / "Containerfile")


def instructions() -> list[tuple[str, str]]:
    """The container file's instructions, as (word, rest)."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines) if word]


def test_the_image_runs_without_rights_and_installs_only_what_is_locked() -> None:
    steps = instructions()
    users = [rest for word, rest in steps if word == "USER"]
    assert users == ["10001:10001"]
    assert [word for word, _ in steps].count("FROM") == 2
    last_stage = steps[max(at for at, (word, _) in enumerate(steps) if word == "FROM") :]
    assert not [rest for word, rest in last_stage if word in ("RUN", "ADD")]
    text = " ".join(rest for _, rest in steps)
    installs = re.findall(r"pip (?:--python \S+ )?install ([^&]+)", text)
    assert installs
    assert all("--require-hashes" in line or "--no-index" in line for line in installs)


def code_of(path: Path) -> str:
    """A module without what it says of itself."""
    return path.read_text().split('"""', 2)[-1]


def left_out() -> list[str]:
    """The files of the tree that no image gets."""
    lines = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    return [line for line in lines if line.startswith("streamdp/")]


def test_the_image_has_no_test_broker_and_its_health_check_reads_the_configuration() -> None:
    """Everything that starts or fetches a broker; the check has no address of its own."""
    files = {str(path.relative_to(ROOT)): path for path in (ROOT / "streamdp/testing").iterdir()}
    of_brokers = {
        name
        for name, path in files.items()
        if path.is_file() and re.search(r"\b(own_broker|class Broker|kafka_jars)\b", code_of(path))
    }
    assert set(left_out()) == of_brokers | {"streamdp/testing/kafka_jars.sha256"}
    words = dict(instructions())
    assert words["HEALTHCHECK"].endswith('CMD ["streamdp", "health"]')
    assert "STREAMDP_CONFIG=/etc/streamdp/streamdp.toml" in words["ENV"]
    assert words["CMD"] == '["run"]'


def test_no_secret_and_no_environment_gets_into_the_image() -> None:
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    lines = [line for line in ignored if line and not line.startswith("#")]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        name
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for name in rest.split()[:-1]
    }
    assert copied <= let_in | {"requirements/runtime.lock", "requirements/build.lock"}


# Compose


def test_the_compose_file_keeps_to_its_schema() -> None:
    compose = DEPLOY / "compose" / "compose.yaml"
    accepted(TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", compose)


def test_the_compose_file_opens_ports_on_loopback_only_and_pins_its_images() -> None:
    (compose,) = documents(DEPLOY / "compose" / "compose.yaml")
    for name, service in compose["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert "build" in service or re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
    ours = compose["services"]["streamdp"]
    assert ours["read_only"] is True
    assert ours["cap_drop"] == ["ALL"]


def test_every_file_that_compose_mounts_exists() -> None:
    (compose,) = documents(DEPLOY / "compose" / "compose.yaml")
    mounts = [
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", [])
        if volume.startswith(".")
    ]
    assert mounts
    assert [name for name in mounts if not (DEPLOY / "compose" / name).exists()] == []


# systemd


@pytest.fixture(params=UNITS, ids=lambda path: path.stem)
def unit(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A unit with a command that exists on this machine."""
    path: Path = tmp_path / request.param.name
    path.write_text(request.param.read_text().replace("/opt/streamdp/bin/streamdp", "/bin/true"))
    return path


@pytest.mark.system("systemd-analyze")
def test_systemd_accepts_the_unit_without_a_word(unit: Path) -> None:
    result = run("systemd-analyze", "verify", unit)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@pytest.mark.system("systemd-analyze")
def test_the_unit_is_hardened(unit: Path) -> None:
    verdict = accepted(
        "systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", unit
    )
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", verdict)
    assert exposure is not None
    assert float(exposure[1]) <= LARGEST_EXPOSURE


def test_the_unit_does_not_restart_what_a_person_must_mend() -> None:
    """The exit codes count for the main process; any other that fails is restarted for ever."""
    for unit in UNITS:
        text = unit.read_text()
        assert "RestartPreventExitStatus=2 4 5\n" in text
        assert re.findall(r"^ExecStart\w+=", text, re.MULTILINE) == []


def test_the_units_run_on_one_machine_with_one_configuration() -> None:
    """What has to differ is said over it, in words that a configuration takes."""
    first, second, third = (
        set(re.findall(r"^Environment=(\w+)=", unit.read_text(), re.MULTILINE)) for unit in UNITS
    )
    assert second - first == {"STREAMDP__TRANSPORT__PASSWORD_FILE", "STREAMDP__OPERATIONS__LISTEN"}
    assert third == {"STREAMDP__TRANSPORT__PASSWORD_FILE"}
    assert "streamdp assemble --config /etc/streamdp/streamdp.toml" in UNITS[1].read_text()


def test_the_unit_allows_files_for_every_connection() -> None:
    """Its filter keeps the service from raising the limit itself."""
    (allowed,) = re.findall(r"^LimitNOFILE=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert f"LimitNOFILE={allowed}\n" in UNITS[1].read_text()
    assert int(allowed) >= HttpTable().most_connections + 256  # brokers, logs, the embedded log


# Prometheus and Grafana


@pytest.mark.system("promtool")
def test_promtool_accepts_the_rules_and_each_behaves_as_tested() -> None:
    accepted("promtool", "check", "rules", RULES)
    accepted("promtool", "test", "rules", *sorted(RULES.parent.glob("*.test.yml")))


@pytest.mark.system("promtool")
def test_promtool_accepts_the_scrape_configuration(tmp_path: Path) -> None:
    text = (DEPLOY / "compose" / "prometheus.yml").read_text()
    path = tmp_path / "prometheus.yml"
    path.write_text(text.replace("/etc/prometheus/rules", str(RULES.parent)))
    accepted("promtool", "check", "config", path)


def test_every_alert_has_a_test_that_sees_it_fire_and_one_that_sees_it_silent() -> None:
    (tests,) = documents(RULE_TESTS)
    cases = [case for test in tests["tests"] for case in test.get("alert_rule_test", [])]
    names = {rule["alert"] for rule in alerts()}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names


def test_every_alert_has_its_entry_in_the_runbook() -> None:
    for rule in alerts():
        assert f"\n### {rule['alert']}\n" in RUNBOOK
        assert rule["annotations"]["runbook"] == f"deploy/RUNBOOK.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("page", "ticket")
    entries = set(re.findall(r"^### (Streamdp\w+)$", RUNBOOK, re.MULTILINE))
    assert entries == {rule["alert"] for rule in alerts()}


def test_every_exit_code_has_its_entry_in_the_runbook() -> None:
    codes = {int(code) for code in re.findall(r"^### Exit code (\d+)$", RUNBOOK, re.MULTILINE)}
    assert codes == set(ExitCode)


def test_the_dashboard_is_what_its_code_makes(dashboard: ModuleType) -> None:
    written = (DEPLOY / "grafana" / "streamdp.json").read_text(encoding="utf-8")
    assert written == dashboard.text(), "run: python deploy/grafana/dashboard.py"


def test_the_dashboard_fills_its_rows_and_numbers_its_panels(dashboard: ModuleType) -> None:
    for _, row in dashboard.ROWS:
        assert dashboard.COLUMNS % len(row) == 0
    numbers = [panel["id"] for panel in dashboard.dashboard()["panels"]]
    assert len(set(numbers)) == len(numbers)
    assert all(panel.about for panel in dashboard.panels())


def test_the_dashboard_shows_no_gauge_that_runs_down(dashboard: ModuleType) -> None:
    """Time does not use the budget up, so nothing may look as if it did."""
    assert all(panel.kind != "gauge" for panel in dashboard.panels())
    assert not re.search(r"budget[^)]*\) *-|1 *- *\S*epsilon", " ".join(dashboard.queries()))
