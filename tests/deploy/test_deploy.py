# SPDX-License-Identifier: Apache-2.0
"""deploy/ grants the scheduler what its tables list, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail import __version__
from dovetail.cli import scheduler
from dovetail.core.quantities import units
from dovetail.kube import protection
from dovetail.kube.api import resources
from dovetail.kube.api.discovery import Served
from dovetail.kube.api.reviews import METRICS
from dovetail.kube.gangs.dialects import DIALECTS
from dovetail.kube.gangs.owners import OWNER_KINDS
from dovetail.kube.objects.history import COSTS
from dovetail.kube.translate.sources import sources
from dovetail.kube.translate.translator import Translator
from dovetail.recording.folder import MIB
from dovetail.scheduler.serve import SchedulerOptions
from tests.paths import ROOT

DEPLOY = ROOT / "deploy"


def _documents(name: str) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all((DEPLOY / name).read_text()) if d]


def _granted() -> set[tuple[str, str, str]]:
    role = next(d for d in _documents("rbac.yaml") if d["kind"] == "ClusterRole")
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


_LEASES = (resources.CONTROL_PLANES, resources.LEASE_REQUESTS, resources.GPU_LEASES, resources.LEASES)
"""Kinds of the leases of software agents, the last one for heartbeats."""


def _needed() -> set[tuple[str, str, str]]:
    """What the code does, written down from its tables; the tests on the real plane run under the role itself."""
    needed = {
        (source.resource.group, source.resource.plural, verb)
        for source in sources(Translator(), Served(frozenset(), ()))
        for verb in ("get", "list", "watch")
    }
    needed |= {(kind.resource.group, kind.resource.plural, "get") for kind in OWNER_KINDS}
    needed |= {
        (d.resources[0].group, f"{d.resources[0].plural}/status", "patch")
        for d in DIALECTS
        if d.resources[0].group == "scheduling.k8s.io"
    }
    return needed | {
        (protection.POLICIES.group, protection.POLICIES.plural, "get"),
        (protection.BINDINGS.group, protection.BINDINGS.plural, "get"),
        ("", "pods", "delete"),
        ("", "pods/binding", "create"),
        ("", "pods/eviction", "create"),
        ("", "pods/status", "patch"),
        ("", "persistentvolumes", "patch"),
        ("", "persistentvolumeclaims", "patch"),
        (resources.EVENTS.group, resources.EVENTS.plural, "create"),
        (resources.GPU_NODES.group, resources.GPU_NODES.plural, "patch"),
        (resources.QUEUES.group, "queues/status", "patch"),
        (COSTS.group, COSTS.plural, "list"),
        *((kind.group, kind.plural, verb) for kind in _LEASES for verb in ("get", "list", "watch")),
        *((kind.group, f"{kind.plural}/status", "patch") for kind in _LEASES[:3]),
        (resources.GPU_LEASES.group, resources.GPU_LEASES.plural, "create"),
        (resources.GPU_LEASES.group, resources.GPU_LEASES.plural, "delete"),
        ("resource.k8s.io", "resourceclaims", "patch"),
        ("resource.k8s.io", "resourceclaims", "create"),
        ("resource.k8s.io", "resourceclaims", "delete"),
        ("resource.k8s.io", "resourceclaims/status", "patch"),
        # As protobuf: what no patch leaves as it is.
        ("resource.k8s.io", "resourceclaims", "update"),
        ("resource.k8s.io", "resourceclaims/status", "update"),
        ("resource.k8s.io", "resourceclaims/binding", "update"),
        # Asked for by the API server itself (DRAResourceClaimGranularStatusAuthorization).
        ("resource.k8s.io", "resourceclaims/binding", "patch"),
    }


def test_the_role_is_what_the_code_needs() -> None:
    assert _granted() == _needed()


def test_no_wildcards() -> None:
    for document in _documents("rbac.yaml"):
        for rule in document.get("rules", []):
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


def test_the_deployment_runs_this_version_restricted_and_twice() -> None:
    (deployment,) = _documents("deployment.yaml")
    (kustomization,) = _documents("kustomization.yaml")
    assert kustomization["images"][0]["newTag"] == __version__
    assert deployment["spec"]["replicas"] == 2
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][0] == "scheduler"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (volume,) = deployment["spec"]["template"]["spec"]["volumes"]
    (mount,) = container["volumeMounts"]
    (recording,) = [arg.partition("=")[2] for arg in container["args"] if arg.startswith("--recording=")]
    assert (mount["name"], Path(recording).is_relative_to(mount["mountPath"])) == (volume["name"], True)
    assert units(volume["emptyDir"]["sizeLimit"]) > SchedulerOptions().recording_mib * MIB
    lease = next(d for d in _documents("rbac.yaml") if d["kind"] == "Role")["metadata"]["namespace"]
    assert lease == SchedulerOptions().lease_namespace == kustomization["namespace"]
    assert not any(arg.startswith("--lease") for arg in container["args"])


def test_deleting_the_scheduler_deletes_no_queue() -> None:
    """Definitions are applied apart: with one go all objects of its kind, and a Queue's status is its only history."""
    (kustomization,) = _documents("kustomization.yaml")
    kinds = [one["kind"] for name in kustomization["resources"] for one in _documents(name)]
    assert "CustomResourceDefinition" not in kinds
    (crds,) = _documents("crds/kustomization.yaml")
    assert {*crds["resources"], "kustomization.yaml"} == {path.name for path in (DEPLOY / "crds").iterdir()}
    assert {one["kind"] for name in crds["resources"] for one in _documents(f"crds/{name}")} == {
        "CustomResourceDefinition"
    }
    assert {path.name for path in DEPLOY.glob("*.yaml")} == {*kustomization["resources"], "kustomization.yaml"}


def test_a_drain_leaves_one_replica_and_both_are_found_for_their_metrics() -> None:
    (deployment,), (budget,), (service,) = map(_documents, ("deployment.yaml", "budget.yaml", "service.yaml"))
    labels, replicas = deployment["spec"]["selector"]["matchLabels"], deployment["spec"]["replicas"]
    assert budget["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert replicas - budget["spec"]["maxUnavailable"] == 1
    (port,), (container,) = service["spec"]["ports"], deployment["spec"]["template"]["spec"]["containers"]
    assert port["targetPort"] in {one["name"] for one in container["ports"]}
    assert {one["containerPort"] for one in container["ports"]} == {port["port"]}
    assert SchedulerOptions().listen.endswith(f":{port['port']}")


@pytest.mark.parametrize("workload", ["deployment.yaml", "agent/daemonset.yaml"])
def test_only_prometheus_the_collector_and_the_pages_reach_it_and_probes_need_no_rule(workload: str) -> None:
    (deployment,), (policy,) = _documents(workload), _documents(str(Path(workload).with_name("network-policy.yaml")))
    assert policy["metadata"]["namespace"] == deployment["metadata"]["namespace"]
    assert policy["spec"]["podSelector"] == deployment["spec"]["selector"]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    (rule,), (container,) = policy["spec"]["ingress"], deployment["spec"]["template"]["spec"]["containers"]
    assert [one["port"] for one in rule["ports"]] == [one["name"] for one in container["ports"]]
    prometheus = {"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}
    (collector,) = _documents("functions/history/statefulset.yaml")
    reads_use = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": collector["metadata"]["namespace"]}},
        "podSelector": collector["spec"]["selector"],
    }
    (pages,) = _documents("dashboard/deployment.yaml")
    shows_it = {"podSelector": pages["spec"]["selector"]}
    assert rule["from"] == [prometheus, reads_use if "agent" in workload else shows_it]


def test_authorized_metrics_bring_the_option_the_right_to_ask_and_a_role_to_read() -> None:
    folder = "functions/authorized-metrics"
    (component,) = _documents(f"{folder}/kustomization.yaml")
    assert component["kind"] == "Component"
    (patch,) = component["patches"]
    (line,) = yaml.safe_load(patch["patch"])
    assert line["value"] in [option for param in scheduler.command.params for option in param.opts]
    reviews, binding, reader = _documents(f"{folder}/role.yaml")
    assert [(*rule["apiGroups"], *rule["resources"], *rule["verbs"]) for rule in reviews["rules"]] == [
        ("authentication.k8s.io", "tokenreviews", "create"),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
    ]
    assert binding["roleRef"]["name"] == reviews["metadata"]["name"]
    assert reader["rules"] == [{"nonResourceURLs": [dict(METRICS.attributes)["path"]], "verbs": ["get"]}]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl puts the manifests together")
@pytest.mark.parametrize("function", [None, "authorized-metrics"])
def test_the_manifests_can_be_put_together(tmp_path: Path, function: str | None) -> None:
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    file = tmp_path / "deploy" / "kustomization.yaml"
    document = yaml.safe_load(file.read_text())
    if function is not None:
        document["components"] = [f"functions/{function}"]
        file.write_text(yaml.safe_dump(document))
    done = subprocess.run(["kubectl", "kustomize", str(file.parent)], capture_output=True, text=True, check=True)
    deployment = next(d for d in yaml.safe_load_all(done.stdout) if d["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert ("--authorize-metrics" in container["args"]) == (function is not None)
