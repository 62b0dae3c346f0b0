# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's components are recognised by what runs, whatever they are called, and by no other way."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from msgspec.structs import replace

from dovetail.kube.objects.base import LabelSelector
from dovetail.kube.objects.stack import NodePool
from dovetail.operator.coexistence.found_components import (
    ForeignDaemon,
    agent_functions,
    components_in,
    foreign_daemons,
    foreign_status,
    kept_off,
    pods_on_nodes,
    rivals_of,
    with_foreign,
)
from dovetail.operator.coexistence.table import COMPONENTS, TAKEN_OVER, AgentFunction
from dovetail.operator.found import Found, Rival
from dovetail.operator.watched.pods import WatchedContainerSpec, WatchedOwner, WatchedPod, WatchedPodSpec
from tests.operator.coexistence import shapes

PCI = {"feature.node.kubernetes.io/pci-10de.present": "true"}
OPERATED = {**PCI, "nvidia.com/gpu.present": "true", **{f"{shapes.DEPLOY}{name}": "true" for name in shapes.OPERANDS}}

POOLS = (NodePool("h100", LabelSelector(match_labels={"gpu": "h100"})), NodePool())


def daemon(owner: WatchedOwner) -> ForeignDaemon:
    (found,) = foreign_daemons([owner], [])
    return found


def names(found: ForeignDaemon) -> list[str]:
    return [one.name for one in found.components]


@pytest.mark.parametrize("name", shapes.OPERANDS)
def test_what_the_gpu_operator_makes(name: str) -> None:
    found = daemon(shapes.OPERANDS[name])
    assert names(found) == [name]
    assert found.managed_by == "ClusterPolicy cluster-policy"


@pytest.mark.parametrize(
    ("owner", "components", "managed_by", "version"),
    [
        (shapes.STATIC_PLUGIN, ["device-plugin"], "", "v0.17.1"),
        (shapes.CHART_PLUGIN, ["device-plugin"], "Helm release nvdp", "v0.19.3"),
        (shapes.CHART_GFD, ["gpu-feature-discovery"], "Helm release nvdp", "v0.19.3"),
        (shapes.DRA_DRIVER, ["dra-driver", "compute-domains"], "Helm release nvdp", "v0.5.0"),
        (shapes.DCGM_CHART, ["dcgm-exporter"], "Helm release nvdp", "4.5.1-4.8.0"),
        (shapes.NFD_WORKER, ["node-feature-discovery"], "", "v0.18.0"),
        (shapes.GKE_PLUGIN, ["device-plugin"], "the cluster's addon manager", "sha256:0123"),
    ],
    ids=lambda value: value.metadata.name if isinstance(value, WatchedOwner) else None,
)
def test_other_installations(owner: WatchedOwner, components: list[str], managed_by: str, version: str) -> None:
    found = daemon(owner)
    assert (names(found), found.managed_by, found.version) == (components, managed_by, version)


def test_a_deployment_is_the_operator_itself() -> None:
    (found,) = foreign_daemons([], [shapes.OPERATOR])
    assert names(found) == ["gpu-operator"]
    assert not found.selects(OPERATED, "a")


def test_other_programs_are_no_part_of_the_stack() -> None:
    assert foreign_daemons([shapes.OTHER], []) == []
    ours = WatchedContainerSpec("agent", "dovetail:0.1.0", (), ("agent", "run", "--labels"))
    assert components_in([ours]) == ()


def test_what_the_operator_made_is_not_of_the_stack() -> None:
    ours = {"labels": {"app.kubernetes.io/managed-by": "dovetail-operator"}}
    container = {"name": "nvidia-driver", "image": "driver", "command": ["nvidia-driver"]}
    own = shapes.owner("dovetail-driver", "dovetail-agent", {"a": "b"}, [container], metadata=ours)
    assert foreign_daemons([own], []) == []
    made = pod(shapes.OPERANDS["driver"], "a")
    mine = replace(made, metadata=replace(made.metadata, namespace="dovetail-agent"))
    assert pods_on_nodes([mine]).foreign == {}


def test_every_component_that_is_switched_or_replaced_has_a_shape() -> None:
    seen = set(shapes.OPERANDS)
    for one in (shapes.DRA_DRIVER, shapes.NFD_WORKER):
        seen |= set(names(daemon(one)))
    assert seen | {"gpu-operator"} == {one.name for one in COMPONENTS}


def test_a_daemon_set_selects_by_its_selector_and_affinity() -> None:
    operand, static, chart = (
        daemon(shapes.OPERANDS["device-plugin"]),
        daemon(shapes.STATIC_PLUGIN),
        daemon(shapes.CHART_PLUGIN),
    )
    assert [one.selects(OPERATED, "a") for one in (operand, static, chart)] == [True, True, True]
    assert [one.selects({}, "a") for one in (static, chart)] == [True, False]


@pytest.mark.parametrize(
    ("labels", "selects"),
    [
        ({}, True),
        ({f"{shapes.DEPLOY}device-plugin": "false"}, False),
        ({f"{shapes.DEPLOY}device-plugin": "paused-for-mig-change"}, True),
        ({"nvidia.com/gpu.deploy.operands": "false"}, False),
        ({"nvidia.com/gpu.workload.config": "vm-passthrough"}, False),
        ({"nvidia.com/gpu.workload.config": "container"}, True),
    ],
)
def test_a_switch_that_is_not_there_yet_counts_as_on(labels: dict[str, str], selects: bool) -> None:
    assert daemon(shapes.OPERANDS["device-plugin"]).selects({**PCI, **labels}, "a") is selects


def test_the_gpu_operator_is_switched_by_its_own_label() -> None:
    assert daemon(shapes.OPERANDS["mig-manager"]).switch_off(OPERATED, "a") == {
        f"{shapes.DEPLOY}mig-manager": "false",
        f"{TAKEN_OVER}mig-manager": "true",
    }


def test_gke_has_a_label_of_its_own() -> None:
    labels = {**PCI, "cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert daemon(shapes.GKE_PLUGIN).switch_off(labels, "a") == {
        "gke-no-default-nvidia-gpu-device-plugin": "true",
        f"{TAKEN_OVER}device-plugin": "true",
    }


@pytest.mark.parametrize("owner", [shapes.STATIC_PLUGIN, shapes.CHART_PLUGIN, shapes.CHART_GFD, shapes.DRA_DRIVER])
def test_without_a_rule_of_its_owner_no_label_keeps_a_plain_daemon_set_away(owner: WatchedOwner) -> None:
    assert daemon(owner).switch_off(OPERATED, "a") is None


def test_with_the_rule_that_its_owner_was_asked_for_our_label_does() -> None:
    rule = {"key": f"{TAKEN_OVER}device-plugin", "operator": "NotIn", "values": ["true"]}
    terms = [{"matchExpressions": [*term["matchExpressions"], rule]} for term in shapes.CHART_TERMS]
    containers = msgspec.to_builtins(shapes.CHART_PLUGIN.spec.template.spec.containers)
    changed = shapes.owner("nvdp", "nvidia", {"a": "b"}, containers, terms=terms)
    assert daemon(changed).switch_off(OPERATED, "a") == {f"{TAKEN_OVER}device-plugin": "true"}


def pod(owner: WatchedOwner, node: str, phase: str = "Running") -> WatchedPod:
    document = msgspec.to_builtins(owner.spec.template)
    document["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": owner.metadata.name}]
    document["spec"]["nodeName"] = node
    return msgspec.convert({**document, "status": {"phase": phase}}, WatchedPod)


def agent(node: str, *args: str, ready: bool) -> WatchedPod:
    return msgspec.convert(
        {
            "metadata": {"labels": {"app.kubernetes.io/name": "dovetail-agent"}},
            "spec": {"nodeName": node, "containers": [{"name": "agent", "args": ["agent", "run", *args]}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
        },
        WatchedPod,
    )


def test_pods_are_sorted_by_node() -> None:
    found = pods_on_nodes([
        pod(shapes.CHART_PLUGIN, "a"), pod(shapes.CHART_GFD, "a"), pod(shapes.STATIC_PLUGIN, "b", "Failed"),
        pod(shapes.OTHER, "a"), pod(shapes.DRA_DRIVER, ""),
        agent("a", "--no-device-plugin", "--exporter=", ready=True), agent("b", "--labels", ready=False),
    ])  # fmt: skip
    assert found.foreign == {"a": {"device-plugin", "gpu-feature-discovery"}}
    assert found.agents["a"].does == found.agents["a"].ready == frozenset()
    assert found.agents["b"].does == {AgentFunction.ALLOCATION, AgentFunction.EXPORTER, AgentFunction.LABELS}
    assert found.agents["b"].ready == frozenset()


@pytest.mark.parametrize(
    ("args", "offers"), [((), True), (("--no-device-plugin",), False), (("--no-device-plugin", "--claims"), True)]
)
def test_an_agent_offers_by_its_options(args: tuple[str, ...], offers: bool) -> None:
    agent_container = WatchedContainerSpec("agent", "dovetail", (), args)
    assert (AgentFunction.ALLOCATION in agent_functions([agent_container])) is offers


def test_rivals_are_the_allocators_whose_labels_are_their_own() -> None:
    known = foreign_daemons([shapes.STATIC_PLUGIN, shapes.CHART_PLUGIN, shapes.DCGM_CHART], [])
    assert rivals_of(known) == (
        Rival("kube-system", (("name", "nvidia-device-plugin-ds"),)),
        Rival("nvidia", tuple(sorted(shapes.CHART_PLUGIN.spec.selector.match_labels.items()))),
    )
    with_gfd = foreign_daemons([shapes.CHART_PLUGIN, shapes.CHART_GFD], [])
    assert rivals_of(with_gfd) == ()


def test_the_facts_for_the_manifests() -> None:
    plugin = foreign_daemons([shapes.STATIC_PLUGIN], [])
    found = with_foreign(Found(runtime_classes=frozenset({"nvidia"})), plugin, POOLS, {})
    assert found.foreign_allocation == {"h100", "default"}
    assert (found.foreign_exporters, found.runtime_classes) == (frozenset(), {"nvidia"})
    exporter = with_foreign(Found(), foreign_daemons([shapes.DCGM_CHART], []), POOLS, {})
    assert (exporter.foreign_allocation, exporter.foreign_exporters) == (frozenset(), {"h100", "default"})


def test_agents_find_the_driver_of_a_container_in_the_pools_that_have_it() -> None:
    driver = foreign_daemons([shapes.OPERANDS["driver"]], [])
    installed = {**OPERATED, f"{shapes.DEPLOY}driver": "pre-installed"}
    nodes = {"a": {**OPERATED, "gpu": "h100"}, "b": installed}
    assert with_foreign(Found(), driver, POOLS, nodes).driver_containers == {"h100"}
    assert with_foreign(Found(), [], POOLS, nodes).driver_containers == frozenset()


def test_the_status_counts_nodes_and_reports_what_is_taken_over() -> None:
    known = foreign_daemons([shapes.OPERANDS["device-plugin"]], [])
    off = {**OPERATED, f"{shapes.DEPLOY}device-plugin": "false", f"{TAKEN_OVER}device-plugin": "true"}
    pods = pods_on_nodes([pod(shapes.OPERANDS["device-plugin"], "a")])
    (both,) = foreign_status(known, {"a": off, "b": OPERATED, "c": {}}, pods)
    assert (both.component, both.namespace, both.nodes, both.taken_over) == ("device-plugin", "gpu-operator", 3, False)
    (taken,) = foreign_status(known, {"a": off}, pods_on_nodes([]))
    assert (taken.nodes, taken.taken_over) == (0, True)
    assert replace(taken, nodes=0, taken_over=False).managed_by == "ClusterPolicy cluster-policy"


def tolerating(*tolerations: dict[str, str]) -> ForeignDaemon:
    plugin = shapes.OPERANDS["device-plugin"]
    spec = msgspec.convert({"tolerations": list(tolerations)}, WatchedPodSpec)
    template = replace(plugin.spec.template, spec=replace(plugin.spec.template.spec, tolerations=spec.tolerations))
    return daemon(replace(plugin, spec=replace(plugin.spec, template=template)))


@pytest.mark.parametrize(
    ("tolerations", "starts"),
    [
        ([], False),
        ([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}], False),
        ([{"operator": "Exists"}], True),
        ([{"operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "dovetail.dev/not-ready", "operator": "Exists", "effect": "NoSchedule"}], True),
        ([{"key": "dovetail.dev/not-ready"}], True),
        ([{"key": "dovetail.dev/not-ready", "value": "x"}], False),
    ],
)
def test_the_start_up_taint_keeps_off_what_does_not_tolerate_it(
    tolerations: list[dict[str, str]], starts: bool
) -> None:
    found, nothing = tolerating(*tolerations), pods_on_nodes([])
    assert found.starts_tainted is starts
    assert kept_off([found], OPERATED, "a", nothing) is not starts
    assert not kept_off([found], {**OPERATED, f"{shapes.DEPLOY}device-plugin": "false"}, "a", nothing)


def test_a_pod_that_is_there_is_not_kept_off_until_it_ends() -> None:
    there = pod(shapes.OPERANDS["device-plugin"], "a")
    ending = replace(there, metadata=replace(there.metadata, deletion_timestamp=datetime(2026, 11, 26, tzinfo=UTC)))
    plugin, gfd = daemon(shapes.OPERANDS["device-plugin"]), daemon(shapes.OPERANDS["gpu-feature-discovery"])
    assert not kept_off([plugin], OPERATED, "a", pods_on_nodes([there]))
    assert kept_off([plugin], OPERATED, "b", pods_on_nodes([there]))
    assert kept_off([plugin], OPERATED, "a", pods_on_nodes([ending]))
    assert kept_off([plugin, gfd], OPERATED, "a", pods_on_nodes([there]))
