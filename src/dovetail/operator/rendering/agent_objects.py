# SPDX-License-Identifier: Apache-2.0
"""The objects of the agents: `deploy/agent/` with the functions that the pools need, and for each pool its DaemonSets.

A pool has one DaemonSet, and more where parts of NVIDIA's stack stay on some of its nodes (`found`): on these another
DaemonSet runs agents that do not offer GPUs, or do not export their metrics. Roles are those of all functions that any
pool has, as agents have one ServiceAccount.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from msgspec import Struct

from dovetail.core.model import Problem, Requirement
from dovetail.kube.objects.stack import DEVICE_PLUGIN, DRA, DRIVER_CONTAINER, NodePool, StackSpec
from dovetail.operator.found import ALLOCATION_LABEL, EXPORTER_LABEL, OURS, Found
from dovetail.operator.pools import POOL_LABEL, pools_of
from dovetail.operator.rendering.kustomize import containers, pod_spec, select
from dovetail.operator.rendering.pool_affinity import TooManyTerms, node_terms, required
from dovetail.operator.rendering.scheduler_objects import resource_problems
from dovetail.operator.rendering.sources import image_name, set_images, set_resources, tree

Document = dict[str, Any]

NAME, MPS = "dovetail-agent", "dovetail-mps"
COMPONENT_LABEL = "app.kubernetes.io/component"
DRIVER_FOLDER = "/run/nvidia/driver"
"""Where a driver container puts the driver on the host."""
_SHARED = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "NetworkPolicy",
           "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")  # fmt: skip
"""The kinds that all pools share; each has DaemonSets and ConfigMaps of its own. The namespace is there already."""


class Variant(Struct, frozen=True):
    """Agents of a pool that offer GPUs or do not, and export their metrics or do not. `nodes` has the labels that
    select their nodes among those of the pool, `suffix` is the end of the name of their DaemonSet."""

    allocates: bool = True
    exports: bool = True
    nodes: tuple[Requirement, ...] = ()
    suffix: str = ""


def agent_objects(spec: StackSpec, found: Found, operator_image: str) -> tuple[list[Document], list[Problem]]:
    """The objects, and what cannot be as the spec asks."""
    if not spec.agent.enabled:
        return [], []
    pools = pools_of(spec.agent)
    functions = list(dict.fromkeys(one for pool in pools for one in functions_of(pool, spec)))
    objects = [document for document in tree("agent", functions) if document["kind"] in _SHARED]
    problems: list[Problem] = []
    for pool in pools:
        try:
            for variant in variants(pool, found):
                objects += _of_pool(spec, found, pool, variant, image_name(spec.image, operator_image))
        except TooManyTerms as error:
            rule = (
                f"must select nodes by fewer labels: no affinity describes all nodes that pool {error} does not select"
            )
            problems.append(Problem("spec.agent.pools", pool.name, rule))
    for daemon_set in (document for document in objects if document["metadata"]["name"] == NAME):
        if daemon_set["kind"] == "DaemonSet":
            problems += resource_problems(_agent(daemon_set), "spec.agent.resources")
    return objects, problems


def functions_of(pool: NodePool, spec: StackSpec) -> Iterator[str]:
    """The functions of deploy/agent that the agents of a pool have, in the order in which they are applied."""
    mig, claims = pool.mig, pool.allocation == DRA
    if pool.labels:
        yield "labels"
    if spec.agent.topology_objects:
        yield "topology-objects"
    if spec.agent.kubelet_certificate:
        yield "kubelet-certificate"
    if configuration(pool, spec):
        yield "config"
    if pool.processes:
        yield "processes"
    if claims:
        yield "claims"
    if claims and mig.repartition:
        yield "partitionable"
    if mig.layout or (mig.repartition and not claims):
        yield "mig"
    elif mig.strategy != "none":
        # Instances that somebody else makes.
        yield "mig-observer"
    if pool.sharing.strategy == "mps":
        yield "mps"


def variants(pool: NodePool, found: Found) -> Iterator[Variant]:
    """Which DaemonSets a pool has: one, and for each component that stays on some of its nodes twice as many."""
    offers = pool.allocation in (DEVICE_PLUGIN, DRA)
    beside = _sides(ALLOCATION_LABEL, "-no-devices", offers and pool.name in found.foreign_allocation)
    metrics = _sides(EXPORTER_LABEL, "-no-metrics", pool.name in found.foreign_exporters)
    for allocates, nodes, suffix in beside:
        for exports, more, end in metrics:
            yield Variant(allocates and offers, exports, (*nodes, *more), f"{suffix}{end}")


def _sides(label: str, suffix: str, foreign: bool) -> list[tuple[bool, tuple[Requirement, ...], str]]:
    """Whether it is ours to do, on which nodes, and the end of the name; with `foreign` also where it is not."""
    if not foreign:
        return [(True, (), "")]
    ours, others = Requirement(label, "In", (OURS,)), Requirement(label, "NotIn", (OURS,))
    return [(True, (ours,), ""), (False, (others,), suffix)]


def name_of(pool: NodePool, variant: Variant | None = None, base: str = NAME) -> str:
    """The name of a pool's DaemonSet."""
    return f"{base}{'' if pool.name == 'default' else f'-{pool.name}'}{variant.suffix if variant else ''}"


def configuration(pool: NodePool, spec: StackSpec) -> Document:
    """The device plugin's configuration (docs/reference/agent-config.md); empty where every default is right."""
    flags: Document = {}
    if pool.mig.strategy != "none":
        flags["migStrategy"] = pool.mig.strategy
    if not spec.runtime.cdi:
        flags["plugin"] = {"deviceListStrategy": "volume-mounts"}
    if pool.sharing.strategy == "mps":
        flags["mpsRoot"] = "/run/dovetail/mps"
    sharing: Document = {}
    if pool.sharing.strategy != "none":
        resources = [{"name": one.name, "replicas": one.replicas} for one in pool.sharing.resources]
        shared: Document = {"resources": resources}
        if pool.sharing.fail_requests_greater_than_one is not None:
            shared["failRequestsGreaterThanOne"] = pool.sharing.fail_requests_greater_than_one
        sharing = {"mps" if pool.sharing.strategy == "mps" else "timeSlicing": shared}
    if not flags and not sharing:
        return {}
    return {"version": "v1"} | ({"flags": flags} if flags else {}) | ({"sharing": sharing} if sharing else {})


def _of_pool(spec: StackSpec, found: Found, pool: NodePool, variant: Variant, image: str) -> Iterator[Document]:
    """The DaemonSet of a variant, and with the first one what all of the pool share."""
    functions = list(functions_of(pool, spec))
    if not variant.allocates:
        functions = [one for one in functions if one not in ("claims", "partitionable", "mps")]
    made = tree("agent", functions)
    daemon_set = select(made, "DaemonSet", NAME)
    terms = node_terms(pools_of(spec.agent), pool, variant.nodes)
    _identify(daemon_set, pool, variant)
    pods = pod_spec(daemon_set)
    assert pods is not None
    pods["affinity"]["nodeAffinity"] = required(terms)
    if variant.allocates:
        pods["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] += _apart(found)
    _set_agent(daemon_set, spec, pool, variant)
    if spec.driver.mode == DRIVER_CONTAINER or pool.name in found.driver_containers:
        _set_driver(daemon_set)
    _set_runtime(daemon_set, spec)
    set_images(daemon_set, spec.image, image)
    yield daemon_set
    if "config" in functions and variant == next(variants(pool, found)):
        config = select(made, "ConfigMap", NAME)
        config["metadata"]["name"] = name_of(pool)
        config["data"] = {"config.yaml": yaml.safe_dump(configuration(pool, spec), sort_keys=False)}
        yield config
    for volume in pods["volumes"]:
        if volume["name"] == "config":
            volume["configMap"]["name"] = name_of(pool)
    if "mps" in functions:
        daemons = select(made, "DaemonSet", MPS)
        _identify(daemons, pool, variant, MPS)
        spec_of_pods = pod_spec(daemons)
        assert spec_of_pods is not None
        spec_of_pods["affinity"] = {"nodeAffinity": required(terms)}
        _set_runtime(daemons, spec)
        set_images(daemons, spec.image, image)
        yield daemons


def _identify(daemon_set: Document, pool: NodePool, variant: Variant, base: str = NAME) -> None:
    """Name and labels of its own; no selector finds pods of another pool or variant."""
    labels = {POOL_LABEL: pool.name, COMPONENT_LABEL: f"{base.removeprefix('dovetail-')}{variant.suffix}"}
    daemon_set["metadata"]["name"] = name_of(pool, variant, base)
    daemon_set["metadata"]["labels"] |= labels
    daemon_set["spec"]["selector"]["matchLabels"] |= labels
    daemon_set["spec"]["template"]["metadata"]["labels"] |= labels
    # The rollout replaces pods, within budgets.
    daemon_set["spec"]["updateStrategy"] = {"type": "OnDelete"}


def _apart(found: Found) -> list[Document]:
    return [
        {
            "topologyKey": "kubernetes.io/hostname",
            "namespaces": [rival.namespace],
            "labelSelector": {"matchLabels": dict(rival.labels)},
        }
        for rival in found.rivals
    ]


def _agent(daemon_set: Document) -> Document:
    return next(one for one in containers(daemon_set) if one["name"] == "agent")


def _set_agent(daemon_set: Document, spec: StackSpec, pool: NodePool, variant: Variant) -> None:
    agent = _agent(daemon_set)
    if not variant.allocates:
        agent["args"].append("--no-device-plugin")
    if not variant.exports:
        agent["args"].append("--exporter=")
        agent["ports"] = [port for port in agent["ports"] if port["name"] != "gpu-metrics"]
    agent["args"] += pool.extra_args
    set_resources(agent, spec.agent.resources)


def _set_driver(daemon_set: Document) -> None:
    """The root of a driver container instead of the host's."""
    agent, pods = _agent(daemon_set), pod_spec(daemon_set)
    assert pods is not None
    agent["args"] = [
        f"--driver-root-on-host={DRIVER_FOLDER}" if one.startswith("--driver-root-on-host=") else one
        for one in agent["args"]
    ]
    _replace(agent["volumeMounts"], ("usr", "firmware"), {
        "name": "driver", "mountPath": "/host", "readOnly": True, "mountPropagation": "HostToContainer",
    })  # fmt: skip
    _replace(pods["volumes"], ("usr", "firmware"), {
        "name": "driver", "hostPath": {"path": DRIVER_FOLDER, "type": "DirectoryOrCreate"},
    })  # fmt: skip
    # What is below /host is mounted after it.
    agent["volumeMounts"].sort(
        key=lambda mount: mount["mountPath"] != "/host" and mount["mountPath"].startswith("/host")
    )


def _replace(items: list[Document], names: tuple[str, ...], item: Document) -> None:
    items[:] = [*(one for one in items if one["name"] not in names), item]


def _set_runtime(daemon_set: Document, spec: StackSpec) -> None:
    pods = pod_spec(daemon_set)
    assert pods is not None
    if spec.runtime.class_name:
        pods["runtimeClassName"] = spec.runtime.class_name
        return
    # Without NVIDIA's runtime only a privileged container may open the devices (docs/how-to/install-agent.md).
    del pods["runtimeClassName"]
    for container in containers(daemon_set):
        container["securityContext"] = {"privileged": True}
        paths = "/host/usr/lib/x86_64-linux-gnu:/host/usr/lib/aarch64-linux-gnu:/host/usr/lib64"
        container.setdefault("env", []).append({"name": "LD_LIBRARY_PATH", "value": paths})
