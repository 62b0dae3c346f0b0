# SPDX-License-Identifier: Apache-2.0
"""deploy/functions/history: a collector that only reads, once, with a volume that it may write."""

from __future__ import annotations

from typing import Any

import click
import yaml

from dovetail.aggregated.registration import AUTHENTICATION
from dovetail.cli import collector
from dovetail.history.collector.run import HISTORY, CollectorOptions
from dovetail.kube.objects.history import HISTORIES, HISTORY_GROUP
from tests.paths import ROOT

FOLDER, PEOPLE = ROOT / "deploy/functions/history", ROOT / "deploy/people/roles.yaml"


def documents(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((FOLDER / name).read_text()) if one]


def granted(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_it_may_read_what_the_scheduler_reads_and_write_nothing() -> None:
    (role,) = [one for one in documents("rbac.yaml") if one["kind"] == "ClusterRole"]
    scheduler = yaml.safe_load_all((ROOT / "deploy/rbac.yaml").read_text())
    rules = next(one for one in scheduler if one["kind"] == "ClusterRole")["rules"]
    reads = {one for one in granted(rules) if one[2] in ("get", "list", "watch")}
    plain = [one for one in role["rules"] if "resourceNames" not in one]
    # The scheduler reads of the collector itself what budgets cost.
    assert granted(plain) == {one for one in reads if one[0] not in ("admissionregistration.k8s.io", HISTORY_GROUP)}


def test_what_it_writes_is_where_the_api_server_finds_it_by_name() -> None:
    (cluster,) = [one for one in documents("rbac.yaml") if one["kind"] == "ClusterRole"]
    (local,) = [one for one in documents("rbac.yaml") if one["kind"] == "Role"]
    named = [one for one in (*cluster["rules"], *local["rules"]) if "resourceNames" in one]
    slices = [one["metadata"]["name"] for one in documents("service.yaml") if one["kind"] == "EndpointSlice"]
    assert [(one["resources"], one["resourceNames"], one["verbs"]) for one in named] == [
        (["configmaps"], [AUTHENTICATION[1]], ["get"]),
        (["apiservices"], [HISTORY.api_service], ["patch"]),
        (["endpointslices"], slices, ["patch"]),
    ]
    (api,) = documents("apiservice.yaml")
    (service,) = [
        one for one in documents("service.yaml") if one["metadata"]["name"] == HISTORY.service and "spec" in one
    ]
    assert (api["metadata"]["name"], api["spec"]["group"]) == (HISTORY.api_service, HISTORY_GROUP)
    assert api["spec"]["service"]["name"] == HISTORY.service and "selector" not in service["spec"]
    assert slices == [f"{HISTORY.service}-ipv4", f"{HISTORY.service}-ipv6"]
    # Without a certificate it is trusted by nobody, and never without a check.
    assert not {"caBundle", "insecureSkipTLSVerify"} & api["spec"].keys()


def test_the_roles_of_people_list_every_answer() -> None:
    roles = {one["metadata"]["name"]: one["rules"] for one in yaml.safe_load_all(PEOPLE.read_text())}
    for name in ("dovetail-viewer", "dovetail-cluster-operator"):
        (rule,) = [one for one in roles[name] if HISTORY_GROUP in one["apiGroups"]]
        assert (set(rule["resources"]), rule["verbs"]) == ({one.plural for one in HISTORIES}, ["list"])


def test_it_runs_once_restricted_with_the_options_of_the_command() -> None:
    (stateful_set,), (service, *_) = documents("statefulset.yaml"), documents("service.yaml")
    spec = stateful_set["spec"]
    assert (spec["replicas"], spec["serviceName"]) == (1, service["metadata"]["name"])
    assert service["spec"]["selector"] == spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
    name, *options = container["args"]
    assert name == collector.command.name
    known = {option for one in collector.command.params if isinstance(one, click.Option) for option in one.opts}
    assert {option.partition("=")[0] for option in options} <= known
    health, answers = [port["containerPort"] for port in container["ports"]]
    assert CollectorOptions(FOLDER).listen.endswith(f":{health}") and f"--answers=0.0.0.0:{answers}" in options
    (store,) = [option.partition("=")[2] for option in options if option.startswith("--store=")]
    (mount,) = container["volumeMounts"]
    assert store.startswith(f"{mount['mountPath']}/")
    (claim,) = spec["volumeClaimTemplates"]
    assert mount["name"] == claim["metadata"]["name"]


def test_only_prometheus_reaches_its_metrics_and_the_api_server_its_answers() -> None:
    (stateful_set,), (policy,) = documents("statefulset.yaml"), documents("network-policy.yaml")
    assert policy["spec"]["podSelector"] == stateful_set["spec"]["selector"]
    rule, answers = policy["spec"]["ingress"]
    assert answers == {"ports": [{"port": "answers", "protocol": "TCP"}]}
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}]


def test_the_component_has_every_file() -> None:
    (component,) = documents("kustomization.yaml")
    files = {path.name for path in FOLDER.iterdir()} - {"kustomization.yaml"}
    assert set(component["resources"]) == files
    assert "# - functions/history" in (ROOT / "deploy/kustomization.yaml").read_text()
