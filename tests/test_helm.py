"""Does the chart render to objects that would be accepted, around a configuration that is valid?"""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import streamdp
from streamdp.ports import StreamTopics
from streamdp.service.config import Configuration
from streamdp_adapters.kafka.owner import group
from tests.support.deployment import DEPLOY, TOOLS, accepted, documents, run

CHART = DEPLOY / "helm" / "streamdp"
FOREIGN = {"ScaledObject", "ServiceMonitor"}
"""Kinds of operators that a cluster may have: Kubernetes has no schema for them."""

COLLECTOR = {
    "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "otel"}}}],
    "ports": [{"protocol": "TCP", "port": 4318}],
}
ENDPOINT = {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector.otel:4318"}

ALL = {
    "keda": {"enabled": True, "authenticationRef": "kafka"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "assemble": {"enabled": True},
    "image": {"repository": "registry/streamdp", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "shop", "operator": "Exists"}],
    "podAnnotations": {"team": "shop"},
    "extraEnv": [ENDPOINT],
    "networkPolicy": {"extraEgress": [COLLECTOR]},
    "kafka": {"tls": {"caKey": "kafka-ca"}},
    "config": {"streams": {"home": {"limits": {"most_keys": 1000000}, "gap": 0.25}}},
}

pytestmark = [pytest.mark.slow, pytest.mark.system("helm")]


def rendered(tmp_path: Path, values: Mapping[str, Any]) -> Path:
    """The objects of one file; those of operators are left out of what Kubernetes judges."""
    file, out = tmp_path / "values.yaml", tmp_path / "out.yaml"
    file.write_text(yaml.safe_dump(dict(values)))
    command = ("helm", "template", "shop", CHART, "-f", file)
    out.write_text(accepted(*command))
    return out


def of_kind(path: Path, kind: str) -> list[dict[str, Any]]:
    return [document for document in documents(path) if document["kind"] == kind]


@pytest.mark.parametrize("values", [{}, ALL], ids=["as it is", "everything"])
def test_the_chart_renders_what_kubernetes_accepts(
    tmp_path: Path, values: Mapping[str, Any]
) -> None:
    out = rendered(tmp_path, values)
    own = [of for of in documents(out) if of["kind"] not in FOREIGN]
    judged = tmp_path / "judged.yaml"
    judged.write_text(yaml.safe_dump_all(own))
    for version in ("1.25.0", "1.31.0", "1.37.0"):
        accepted(TOOLS / "kubernetes-validate", "--strict", "-k", version, judged)
    parts = 3 if values else 2
    counts = {kind: len(of_kind(out, kind)) for kind in ("Deployment", "NetworkPolicy", "Service")}
    assert counts == dict.fromkeys(counts, parts)
    assert len(of_kind(out, "PodDisruptionBudget")) == parts
    assert len(of_kind(out, "ServiceMonitor")) == (3 if values else 0)


def test_a_linter_accepts_the_chart() -> None:
    accepted("helm", "lint", "--strict", CHART)


def test_the_chart_is_of_this_version() -> None:
    (chart,) = documents(CHART / "Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (streamdp.__version__,) * 2


@pytest.mark.parametrize("values", [{}, ALL], ids=["as it is", "everything"])
def test_its_configuration_is_valid(tmp_path: Path, values: Mapping[str, Any]) -> None:
    """Helm reads numbers as floats: what is whole must come out whole."""
    (config,) = of_kind(rendered(tmp_path, values), "ConfigMap")
    text = config["data"]["streamdp.toml"]
    for name in ("kafka-password", "kafka-ca"):
        (tmp_path / name).write_text("x")
    path = tmp_path / "streamdp.toml"
    path.write_text(text.replace("/run/secrets/streamdp", str(tmp_path)))
    configuration = Configuration.load(path, {})
    configuration.specs()
    transport = tomllib.loads(text)["transport"]
    assert transport["security_protocol"] == "SASL_SSL"
    assert ("ca_file" in transport) is bool(values)
    if values:
        assert configuration.stream("home").limits.most_keys == 1_000_000
        assert configuration.stream("home").gap == 0.25
    assert "password =" not in text


@pytest.mark.parametrize(
    ("mechanism", "tls", "protocol"),
    [("", False, None), ("", True, "SSL"), ("PLAIN", False, "SASL_PLAINTEXT")],
)
def test_tls_and_sasl_follow_from_values(
    tmp_path: Path, mechanism: str, tls: bool, protocol: str | None
) -> None:
    values = {"kafka": {"tls": {"enabled": tls}, "sasl": {"mechanism": mechanism}}}
    (config,) = of_kind(rendered(tmp_path, values), "ConfigMap")
    transport = tomllib.loads(config["data"]["streamdp.toml"])["transport"]
    assert transport.get("security_protocol") == protocol
    assert ("password_file" in transport) is bool(mechanism)


def test_pods_have_no_rights_and_selectors_find_them(tmp_path: Path) -> None:
    out = rendered(tmp_path, ALL)
    for deployment in of_kind(out, "Deployment"):
        name, template = deployment["metadata"]["name"], deployment["spec"]["template"]
        pod, labels = template["spec"], template["metadata"]["labels"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["image"] == "registry/streamdp@sha256:" + "0" * 64
        selectors = [
            deployment["spec"]["selector"]["matchLabels"],
            pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
            *(of["spec"]["podSelector"]["matchLabels"] for of in of_kind(out, "NetworkPolicy")
              if of["metadata"]["name"] == name),
            *(of["spec"]["selector"]["matchLabels"] for of in of_kind(out, "PodDisruptionBudget")
              if of["metadata"]["name"] == name),
            *(of["spec"]["selector"] for of in of_kind(out, "Service")
              if of["metadata"]["name"] == name),
        ]  # fmt: skip
        assert len(selectors) == 5
        for selector in selectors:
            assert selector.items() <= labels.items()
        others = [of for of in of_kind(out, "Deployment") if of["metadata"]["name"] != name]
        for other in others:
            assert not (
                deployment["spec"]["selector"]["matchLabels"].items()
                <= other["spec"]["template"]["metadata"]["labels"].items()
            )


def test_a_collector_is_named_and_reached_by_every_pod(tmp_path: Path) -> None:
    out = rendered(tmp_path, ALL)
    for deployment in of_kind(out, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert ENDPOINT in container["env"]
    assert all(of["spec"]["egress"][-1] == COLLECTOR for of in of_kind(out, "NetworkPolicy"))
    for of in of_kind(rendered(tmp_path, {}), "NetworkPolicy"):
        assert len(of["spec"]["egress"]) == 2


def test_no_pod_starts_with_a_configuration_that_needs_a_new_epoch(tmp_path: Path) -> None:
    (learns, *_) = [
        of
        for of in of_kind(rendered(tmp_path, {}), "Deployment")
        if of["metadata"]["name"] == "shop"
    ]
    (check,), (service,) = (
        learns["spec"]["template"]["spec"][of] for of in ("initContainers", "containers")
    )
    assert check["args"] == ["check", "--with-state", "--wait", *service["args"][1:]]
    assert check["volumeMounts"] == service["volumeMounts"]
    assert learns["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_a_changed_configuration_rolls_out(tmp_path: Path) -> None:
    def checksum(values: Mapping[str, Any]) -> str:
        deployment = of_kind(rendered(tmp_path, values), "Deployment")[0]
        annotations = deployment["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["checksum/config"])

    assert checksum({}) != checksum({"config": {"streams": {"home": {"epoch": 2}}}})
    assert checksum({}) == checksum({"run": {"replicas": 3}})


def test_keda_follows_the_groups_of_the_streams(tmp_path: Path) -> None:
    out = rendered(tmp_path, {**ALL, "app": "shop"})
    (scaled,) = of_kind(out, "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    topics = StreamTopics("shop", "home", "feedback")
    assert trigger["metadata"]["consumerGroup"] == group(topics)
    assert trigger["metadata"]["topic"] == "feedback"
    (learns,) = [of for of in of_kind(out, "Deployment") if of["metadata"]["name"] == "shop"]
    assert "replicas" not in learns["spec"]  # the scaler owns them
    assert scaled["spec"]["scaleTargetRef"]["name"] == "shop"


WRONG: dict[str, Mapping[str, Any]] = {
    "an ε that is a float": {"config": {"streams": {"home": {"learner": {"epsilon": 0.5}}}}},
    "a budget that is a float": {"config": {"topics": {"feedback": {"budget": 0.5}}}},
    "a transport of its own": {"config": {"transport": {"kind": "kafka"}}},
    "an unknown value": {"kafka": {"bootstraps": "x"}},
    "a digest that is none": {"image": {"digest": "latest"}},
    "a variable that the chart sets": {"extraEnv": [{"name": "STREAMDP__SERVICE__WORKER"}]},
    "a rule of another name": {"networkPolicy": {"egress": [COLLECTOR]}},
}


@pytest.mark.parametrize("values", WRONG.values(), ids=WRONG.keys())
def test_wrong_values_are_refused(tmp_path: Path, values: Mapping[str, Any]) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    result: subprocess.CompletedProcess[str] = run("helm", "template", "shop", CHART, "-f", file)
    assert result.returncode != 0
    assert "values don't meet the specifications of the schema" in result.stderr
