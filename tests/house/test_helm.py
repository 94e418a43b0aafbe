"""Does the chart render to objects that would be accepted, around a configuration that is valid?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

import streamdp
from streamdp.ports import StreamTopics
from streamdp.service.config import Configuration
from streamdp_adapters.kafka.owner import group
from tests.support.deployment import DEPLOY, TOOLS, accepted, documents, run

CHART = DEPLOY / "helm" / "streamdp"
EXAMPLES = {path.stem: path for path in sorted((DEPLOY / "helm" / "examples").glob("*.yaml"))}

DEFINITIONS = {
    "ServiceMonitor": (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
    "PrometheusRule": (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    "ScaledObject": (
        "github.com/kedacore/keda/v2@v2.21.0",
        "config/crd/bases/keda.sh_scaledobjects.yaml",
    ),
}
"""Where operators define the kinds that Kubernetes has no schema for: Go module and file."""

MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
DIGEST = {"repository": "registry/streamdp", "digest": "sha256:" + "0" * 64}

pytestmark = [pytest.mark.slow, pytest.mark.system("helm")]


def objects(example: str, **values: object) -> list[dict[str, Any]]:
    """What the chart makes of an example, with some values over it."""
    over = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
    return rendered("-f", EXAMPLES[example], *over)


@cache
def rendered(*values: str | Path) -> list[dict[str, Any]]:
    text = accepted("helm", "template", "shop", CHART, *values)
    return [made for made in yaml.load_all(text, yaml.CSafeLoader) if made]


def of_kind(made: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in made if document["kind"] == kind]


def pods(made: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pod templates by the component that they are of."""
    templates = [of["spec"]["template"] for of in made if of["kind"] in ("Deployment", "Job")]
    return {of["metadata"]["labels"]["app.kubernetes.io/component"]: of for of in templates}


def containers(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    specs = [template["spec"] for template in pods(made).values()]
    return [each for spec in specs for each in spec.get("initContainers", []) + spec["containers"]]


def closed(schema: Any) -> Any:
    """A custom resource's schema that refuses fields which it does not know."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(part) for name, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


@pytest.fixture(scope="module")
def operators() -> dict[str, Draft202012Validator]:
    """What judges the objects of operators: their own definitions."""
    judges = {}
    for kind, (module, file) in DEFINITIONS.items():
        folder = json.loads(accepted("go", "mod", "download", "-json", module, folder=Path("/")))[
            "Dir"
        ]
        (definition,) = documents(Path(folder) / file)
        schema = closed(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"]["additionalProperties"] = True
        judges[kind] = Draft202012Validator(schema)
    return judges


@pytest.mark.system("go")
def test_the_examples_render_to_what_kubernetes_and_its_operators_accept(
    tmp_path: Path, operators: dict[str, Draft202012Validator]
) -> None:
    foreign = []
    for name in EXAMPLES:
        made = objects(name)
        own = [of for of in made if of["kind"] not in operators]
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(own))
        foreign += [of for of in made if of["kind"] in operators]
    assert {of["kind"] for of in foreign} == set(operators)
    for of in foreign:
        operators[of["kind"]].validate(of)
    for version in ("1.31.0", "1.37.0"):
        files = sorted(tmp_path.iterdir())
        accepted(TOOLS / "kubernetes-validate", "--strict", "-k", version, *files)


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_has_a_configuration_that_its_pods_accept(
    tmp_path: Path, example: str
) -> None:
    made = objects(example)
    (config,) = of_kind(made, "ConfigMap")
    path = tmp_path / "streamdp.toml"
    text = config["data"]["streamdp.toml"]
    for folder in ("/run/secrets/streamdp", "/run/kafka-ca", "/run/kafka"):
        text = text.replace(folder, str(tmp_path))
    for name in (
        "kafka-password",
        "kafka-ca.pem",
        "listener.pem",
        "listener.key",
        "token",
        "ca.crt",
    ):
        (tmp_path / name).write_text("0" * 16)
    path.write_text(text)
    for container in containers(made):
        environment = {of["name"]: of.get("value", "shop-7d9f") for of in container["env"]}
        configuration = Configuration.load(path, environment)
        assert configuration.specs()
        assert configuration.tables.http.listen == "0.0.0.0:8080"
        assert configuration.tables.operations.listen == "0.0.0.0:8081"
        if container["args"][0] in ("run", "assemble"):
            assert environment["STREAMDP__SERVICE__WORKER"] == "shop-7d9f"
        assert container["args"][-1] == "/etc/streamdp/streamdp.toml"


def test_pods_have_no_rights_and_selectors_find_them() -> None:
    made = objects("no-serve", serve={"enabled": True}, secretsName="shop", image=DIGEST)
    templates = pods(made)
    assert set(templates) == {"run", "assemble", "serve", "topics"}
    for template in templates.values():
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        assert template["spec"]["automountServiceAccountToken"] is False
    for container in containers(made):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["image"] == "registry/streamdp@sha256:" + "0" * 64
    for kind in ("Deployment", "PodDisruptionBudget", "Service"):
        found = of_kind(made, kind)
        assert len(found) == 3
        for of in found:
            selector = of["spec"]["selector"].get("matchLabels", of["spec"]["selector"])
            chosen = [
                part
                for part, template in templates.items()
                if selector.items() <= template["metadata"]["labels"].items()
            ]
            assert chosen == [of["metadata"]["labels"]["app.kubernetes.io/component"]]
    everyone, clients = of_kind(made, "NetworkPolicy")
    for template in templates.values():
        found_by = everyone["spec"]["podSelector"]["matchLabels"].items()
        assert found_by <= template["metadata"]["labels"].items()
    assert clients["spec"]["podSelector"] == of_kind(made, "Deployment")[-1]["spec"]["selector"]


def test_nobody_but_the_named_is_let_in_or_out() -> None:
    """In: the monitoring, and clients of `serve`. Out: names, brokers and the collector."""
    (policy,) = of_kind(objects("no-serve"), "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    ports = [[port["port"] for port in rule["ports"]] for rule in policy["spec"]["egress"]]
    assert ports == [[53, 53], [9093], [4318]]
    (scraped,) = policy["spec"]["ingress"]
    assert scraped["from"] == [{"namespaceSelector": {"matchLabels": MONITORING}}]
    _, clients = of_kind(objects("tls"), "NetworkPolicy")
    (asked,) = clients["spec"]["ingress"]
    assert asked["from"][0]["podSelector"] == {"matchLabels": {"streamdp-client": "true"}}
    assert [port["port"] for port in asked["ports"]] == [8080]


def test_no_pod_starts_with_a_configuration_that_needs_a_new_epoch() -> None:
    """An init container asks, with the same files and as few rights; readiness asks again."""
    for part in ("run", "assemble"):
        pod = pods(objects("no-serve"))[part]["spec"]
        (check,), (service,) = pod["initContainers"], pod["containers"]
        assert check["args"] == ["check", "--with-state", "--wait", *service["args"][1:]]
        for what in ("image", "securityContext", "volumeMounts"):
            assert check[what] == service[what]
        assert service["readinessProbe"]["httpGet"]["path"] == "/readyz"
    for deployment in of_kind(objects("no-serve"), "Deployment"):
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_tls_and_tokens_of_a_listener_reach_probes_and_scrapes() -> None:
    made = objects("tls")
    for template in pods(made).values():
        (container,) = template["spec"]["containers"]
        asked = [of["httpGet"]["scheme"] for name, of in container.items() if "Probe" in name]
        assert asked == ["HTTPS"] * 3
    monitors = of_kind(made, "ServiceMonitor")
    assert len(monitors) == 2
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["endpoints"]
        assert (endpoint["scheme"], endpoint["tlsConfig"]["serverName"]) == (
            "https",
            "streamdp.example",
        )
        assert endpoint["authorization"] == {"credentials": {"name": "streamdp", "key": "token"}}
    plain = objects("oauth", serviceMonitor={"enabled": True})
    assert '"HTTPS"' not in json.dumps(plain)
    assert {
        of["spec"]["endpoints"][0].get("scheme") for of in of_kind(plain, "ServiceMonitor")
    } == {None}


def test_the_rules_are_those_of_prometheus() -> None:
    (rule,) = of_kind(objects("tls"), "PrometheusRule")
    (written,) = documents(DEPLOY / "prometheus" / "streamdp.rules.yml")
    assert rule["spec"] == written


def test_a_changed_configuration_rolls_out_and_makes_its_topics() -> None:
    def rolled(**values: Any) -> tuple[str, str]:
        made = objects("no-serve", **values)
        annotations = pods(made)["run"]["metadata"]["annotations"]
        return annotations["checksum/config"], of_kind(made, "Job")[0]["metadata"]["name"]

    text = documents(EXAMPLES["no-serve"])[0]["config"]
    before, changed = rolled(), rolled(config=f"{text}\n[service]\npoll_records = 100\n")
    assert all(was != now for was, now in zip(before, changed, strict=True))


def test_scalers_own_the_replicas_and_follow_the_groups_of_the_streams() -> None:
    made = objects("autoscaling")
    assert all("replicas" not in of["spec"] for of in of_kind(made, "Deployment"))
    (scaler,) = of_kind(made, "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "shop-serve"
    (scaled,) = of_kind(objects("two-streams", keda={"enabled": True}), "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] == "shop"
    followed = [
        (of["metadata"]["consumerGroup"], of["metadata"]["topic"])
        for of in scaled["spec"]["triggers"]
    ]
    names = ("home", "trial")
    assert followed == [(group(StreamTopics("shop", of, "feedback")), "feedback") for of in names]


def test_what_a_part_sets_stands_over_what_all_have() -> None:
    made = pods(objects("autoscaling"))
    run, serve = made["run"]["spec"], made["serve"]["spec"]
    assert (run["terminationGracePeriodSeconds"], serve["terminationGracePeriodSeconds"]) == (
        60,
        30,
    )
    assert run["tolerations"] == serve["tolerations"] != []
    assert "lifecycle" in serve["containers"][0]
    assert "lifecycle" not in json.dumps(run)


STREAM = '[transport]\nkind = "kafka"\n[streams.home]\ninput = "feedback"\n'
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no configuration": ({}, "config: expected the text of streamdp.toml"),
    "no stream": ({"config": 'app = "shop"'}, "config: expected a table [streams.NAME], got none"),
    "no TOML": ({"config": "app = "}, "config: expected TOML, got toml: line 1"),
    "a table": ({"config": {"app": "shop"}}, "at '/config': got object, want string"),
    "files, which pods lose": (
        {"config": STREAM.replace("kafka", "sqlite")},
        'config: [transport] kind: expected "kafka", for pods have no disk that lasts; got "sqlite',
    ),
    "an unknown value": ({"secrets": "x"}, "additional properties 'secrets' not allowed"),
    "a digest that is none": ({"image": {"digest": "latest"}}, "'latest' does not match pattern"),
    "a variable that the chart sets": (
        {"extraEnv": [{"name": "STREAMDP__HTTP__LISTEN"}]},
        "at '/extraEnv/0/name'",
    ),
    "volumes in place of extraVolumes": ({"pod": {"volumes": []}}, "at '/pod/volumes'"),
    "a probe": ({"run": {"container": {"livenessProbe": {}}}}, "/run/container/livenessProbe'"),
    "two scalers": (
        {"config": STREAM, "keda": {"enabled": True}, "run": {"autoscaling": {"maxReplicas": 2}}},
        "keda.enabled: expected no run.autoscaling beside it, got both",
    ),
}


@pytest.mark.parametrize(("values", "said"), WRONG.values(), ids=WRONG.keys())
def test_wrong_values_are_refused_with_the_reason(
    tmp_path: Path, values: Mapping[str, Any], said: str
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    result = run("helm", "template", "shop", CHART, "-f", file)
    assert result.returncode != 0
    assert said in result.stderr


def test_a_linter_accepts_the_chart_with_its_examples() -> None:
    for path in EXAMPLES.values():
        accepted("helm", "lint", "--strict", CHART, "-f", path)


def test_the_chart_is_of_this_version() -> None:
    (chart,) = documents(CHART / "Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (streamdp.__version__,) * 2


def test_the_chart_installs_the_example_s_loop_from_its_file() -> None:
    """`--set-file config=streamdp.toml`: every process has the text as it was written."""
    file = DEPLOY / "example" / "streamdp.toml"
    made = rendered("--set-file", f"config={file}")
    assert of_kind(made, "ConfigMap")[0]["data"] == {"streamdp.toml": file.read_text()}
    assert set(pods(made)) == {"run", "assemble", "serve"}
