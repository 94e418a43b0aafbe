"""Would what is shipped for deployment be accepted, and does it keep to what it promises?"""

import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import streamdp
from streamdp.cli.exit_codes import ExitCode
from streamdp.service.config import Configuration
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
KUBERNETES = DEPLOY / "kubernetes"
ASSEMBLE = DEPLOY / "kubernetes-assemble"
RUNBOOK = (DEPLOY / "RUNBOOK.md").read_text()
LARGEST_EXPOSURE = 1.5  # of 10, by `systemd-analyze security`; it was 1.2


def kinds(folder: Path = KUBERNETES, *, serves: bool = False) -> dict[str, dict[str, Any]]:
    """The Kubernetes objects by their kind: of who learns or assembles, or of who serves."""
    paths = [
        path
        for path in folder.glob("*.yaml")
        if path.name != "kustomization.yaml" and (path.name == "serve.yaml") is serves
    ]
    return {resource["kind"]: resource for path in paths for resource in documents(path)}


def rules() -> list[dict[str, Any]]:
    (objects,) = documents(RULES)
    return [rule for group in objects["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


# What all of them set


def containers() -> dict[str, Mapping[str, Any]]:
    """The environment of each container that works on partitions, by its file and name."""
    working: dict[str, Mapping[str, Any]] = {}
    for path in DEPLOY.rglob("*.yaml"):
        if "helm" in path.parts:
            continue  # templates: `test_helm` renders them
        for document in documents(path):
            services = document["services"] if path.name == "compose.yaml" else {}
            for name, service in services.items():
                if service.get("command", [""])[0] in ("run", "assemble"):
                    working[f"{path.parent.name} {name}"] = service.get("environment", {})
            if document.get("kind") == "Deployment":
                for container in document["spec"]["template"]["spec"]["containers"]:
                    if container.get("args", [""])[0] in ("run", "assemble"):
                        pairs = {env["name"]: env for env in container.get("env", [])}
                        working[f"{path.parent.name} {container['name']} (pod)"] = pairs
    return working


def test_does_every_process_have_a_name_that_it_keeps() -> None:
    """So a killed one takes its partitions back at once; a pod's name tells it from its likes."""
    working = containers()
    assert len(working) == 7  # `serve` works on no partition
    for name, environment in working.items():
        worker = environment.get("STREAMDP__SERVICE__WORKER")
        assert worker, name
        if name.endswith("(pod)"):
            assert worker["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
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
        if path.is_file()
        and re.search(r"\b(own_broker|class Broker|kafka_jars)\b", path.read_text())
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


# Kubernetes


def test_every_kubernetes_object_keeps_to_its_schema() -> None:
    files = [*KUBERNETES.glob("*.yaml"), *ASSEMBLE.glob("*.yaml")]
    paths = sorted(path for path in files if path.name != "kustomization.yaml")
    for version in ("1.31.0", "1.37.0"):
        accepted(TOOLS / "kubernetes-validate", "--strict", "-k", version, *paths)


@pytest.mark.system("kubectl")
def test_kustomize_builds_a_whole_that_keeps_to_the_schemas(tmp_path: Path) -> None:
    home = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, home)
    (home / "secrets").mkdir()
    (home / "secrets" / "kafka-password").write_text("not a real one")
    built = tmp_path / "built.yaml"
    built.write_text(accepted("kubectl", "kustomize", home))
    accepted(TOOLS / "kubernetes-validate", "--strict", built)
    objects = {resource["kind"]: resource for resource in documents(built)}
    assert set(objects) == {*kinds(), *kinds(serves=True), "ConfigMap", "Secret"}
    for resource in documents(built):
        if resource["kind"] == "Deployment":
            volumes = resource["spec"]["template"]["spec"]["volumes"]
            assert volumes[0]["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
            assert volumes[1]["secret"]["secretName"] == objects["Secret"]["metadata"]["name"]


@pytest.mark.system("kubectl")
def test_kustomize_builds_what_assembles_around_one_configuration(tmp_path: Path) -> None:
    """All processes read the folder's own file, whose topics and streams go together."""
    home = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, home)
    (home / "secrets").mkdir()
    (home / "secrets" / "kafka-password").write_text("not a real one")
    built = tmp_path / "built.yaml"
    shutil.copytree(ASSEMBLE, tmp_path / ASSEMBLE.name)
    built.write_text(accepted("kubectl", "kustomize", tmp_path / ASSEMBLE.name))
    accepted(TOOLS / "kubernetes-validate", "--strict", built)
    objects = documents(built)
    (config,) = [resource for resource in objects if resource["kind"] == "ConfigMap"]
    assert config["data"] == {"streamdp.toml": (ASSEMBLE / "streamdp.toml").read_text()}
    pods = {
        resource["metadata"]["name"]: resource["spec"]["template"]["spec"]
        for resource in objects
        if resource["kind"] == "Deployment"
    }
    assert set(pods) == {"streamdp", "streamdp-assemble", "streamdp-serve"}
    mounted = {pod["volumes"][0]["configMap"]["name"] for pod in pods.values()}
    assert mounted == {config["metadata"]["name"]}
    text = (ASSEMBLE / "streamdp.toml").read_text()
    path = tmp_path / "streamdp.toml"
    secret = home / "secrets" / "kafka-password"
    path.write_text(text.replace("/run/secrets/streamdp/kafka-password", str(secret)))
    (spec,) = Configuration.load(path, {}).assemblies()
    partitions = tomllib.loads(text)["topics"][spec.topics.input]["partitions"]
    assert kinds(ASSEMBLE)["Deployment"]["spec"]["replicas"] <= partitions


@pytest.mark.parametrize(
    ("folder", "serves"), [(KUBERNETES, False), (KUBERNETES, True), (ASSEMBLE, False)]
)
def test_the_pods_have_no_rights(folder: Path, serves: bool) -> None:
    pod = kinds(folder, serves=serves)["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {probe for probe in container if probe.endswith("Probe")} == {
        "startupProbe",
        "livenessProbe",
        "readinessProbe",
    }


@pytest.mark.parametrize("folder", [KUBERNETES, ASSEMBLE], ids=lambda folder: folder.name)
def test_no_pod_starts_with_a_configuration_that_needs_a_new_epoch(folder: Path) -> None:
    """An init container asks, with the same files and as few rights; readiness asks again."""
    pod = kinds(folder)["Deployment"]["spec"]["template"]["spec"]
    (check,), (service,) = pod["initContainers"], pod["containers"]
    assert check["args"] == ["check", "--with-state", "--wait", *service["args"][1:]]
    for what in ("image", "securityContext", "volumeMounts"):
        assert check[what] == service[what]
    assert service["readinessProbe"]["httpGet"]["path"] == "/readyz"
    strategy = kinds(folder)["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert strategy["maxUnavailable"] == 0


def test_every_selector_finds_the_pods() -> None:
    objects = kinds()
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "streamdp"
    assert "replicas" not in objects["Deployment"]["spec"]
    second_input = kinds(ASSEMBLE)
    own = second_input["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert second_input["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == own
    assert second_input["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == own
    assert own != labels
    served = kinds(serves=True)
    serving = served["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert served["Service"]["spec"]["selector"] == serving  # nobody else can answer look-ups
    assert served["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == serving
    assert served["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == serving
    assert serving not in (own, labels)


def test_the_manifests_name_this_version() -> None:
    for folder in (KUBERNETES, ASSEMBLE):
        (kustomization,) = documents(folder / "kustomization.yaml")
        assert kustomization["images"] == [{"name": "streamdp", "newTag": streamdp.__version__}]


def test_no_more_processes_than_partitions() -> None:
    """A partition is the unit of work: a process beyond their number learns nothing."""
    configuration = tomllib.loads((KUBERNETES / "streamdp.toml").read_text())
    partitions = sum(topic["partitions"] for topic in configuration["topics"].values())
    assert kinds()["HorizontalPodAutoscaler"]["spec"]["maxReplicas"] == partitions


def test_no_secret_is_committed() -> None:
    assert not (KUBERNETES / "secrets").exists()
    assert "secrets/" in (ROOT / ".gitignore").read_text()


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
