# SPDX-License-Identifier: Apache-2.0
"""What `dovetail doctor` reads of a cluster: one list for each row of LISTS, and what the checks are told of each.

Rules
- Lists, and nothing else: `list` on these resources is all that the checks need.
- A list that is forbidden tells nothing (None); a kind that the server does not have has no objects.
- Who a pod is (device plugin, driver, scheduler) is known by names of containers and pods as the projects' own charts
  and operators give them; renamed ones are not known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Struct, field

from dovetail.advice.doctor.records import (
    ClusterFacts,
    GpuNode,
    KubeletRecord,
    Lease,
    NodeRecord,
    PartRecord,
    PendingRecord,
    Pods,
    QueueRecord,
    Running,
    Scheduler,
    Webhook,
)
from dovetail.core.quantities import QuantityError, units
from dovetail.core.queues.tree import Tree
from dovetail.kube import protection
from dovetail.kube.api.client import Client
from dovetail.kube.api.discovery import Served, discover
from dovetail.kube.api.errors import Forbidden, NotFound
from dovetail.kube.api.lease import LEASE_LABEL, SCHEDULER_NAME
from dovetail.kube.api.listing import list_all
from dovetail.kube.api.resources import (
    GPU_NODES,
    LEASES,
    NODE_TOPOLOGIES,
    NODES,
    PODS,
    QUEUES,
    RESOURCE_SLICES,
    Resource,
)
from dovetail.kube.nodes.inventories import zones_of
from dovetail.kube.objects.base import ObjectMeta, Quantities, Wire, epoch_ms
from dovetail.kube.objects.queues import Queue as QueueObject
from dovetail.kube.objects.topology import GPUNode, NodeResourceTopology
from dovetail.kube.translate.queues import queue

MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", False, "MutatingWebhookConfiguration"
)
T = TypeVar("T")
_LAPSED = 3
"""After so many times its duration a lease is held by nobody, whatever stands in it."""
_AGENT = "dovetail-agent"
_HAMI = "hami-device-plugin"
_ROLES = (
    ("nvidia-device-plugin", "plugin", "NVIDIA"),
    ("nvidia-gpu-device-plugin", "plugin", "GKE"),
    ("nvidia-driver-ctr", "driver", "NVIDIA"),
    ("nvidia-container-toolkit-ctr", "toolkit", "NVIDIA"),
    ("nvidia-operator-validator", "validator", "NVIDIA"),
    ("gpu-feature-discovery", "discovery", "NVIDIA"),
)
"""How the name of a container begins, the role of its pod, and whose it is."""
_SCHEDULERS = (
    ("kai-scheduler-", "KAI"),
    ("volcano-scheduler-", "Volcano"),
    ("kueue-controller-manager-", "Kueue"),
    ("yunikorn-scheduler-", "YuniKorn"),
    ("runai-scheduler-", "Run:ai"),
    ("hami-scheduler-", "HAMi"),
    ("dovetail-scheduler-", "Dovetail"),
)
"""How the name of a pod begins, and of whom it is."""


class _Condition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _NodeStatus(Wire, frozen=True):
    allocatable: Quantities = field(default_factory=dict)
    conditions: tuple[_Condition, ...] = ()


class _Node(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _NodeStatus = _NodeStatus()


class _Needs(Wire, frozen=True):
    limits: Quantities = field(default_factory=dict)


class _Container(Wire, frozen=True):
    name: str = ""
    args: tuple[str, ...] = ()
    resources: _Needs = _Needs()


class _PodSpec(Wire, frozen=True):
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    node_selector: dict[str, str] = field(default_factory=dict)
    containers: tuple[_Container, ...] = ()


class _Waiting(Wire, frozen=True):
    reason: str = ""
    message: str = ""


class _Started(Wire, frozen=True):
    started_at: str = ""


class _Ended(Wire, frozen=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class _State(Wire, frozen=True):
    waiting: _Waiting | None = None
    running: _Started | None = None
    terminated: _Ended | None = None


class _ContainerStatus(Wire, frozen=True):
    name: str = ""
    ready: bool = False
    state: _State = _State()
    last_state: _State = _State()


class _PodStatus(Wire, frozen=True):
    phase: str = ""
    reason: str = ""
    qos_class: str = ""
    conditions: tuple[_Condition, ...] = ()
    init_container_statuses: tuple[_ContainerStatus, ...] = ()
    container_statuses: tuple[_ContainerStatus, ...] = ()


class _Pod(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class _SliceSpec(Wire, frozen=True):
    driver: str = ""
    node_name: str = ""


class _Slice(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _SliceSpec = _SliceSpec()


class _Hook(Wire, frozen=True):
    name: str = ""


class _Hooks(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[_Hook, ...] = ()


class _LeaseSpec(Wire, frozen=True):
    holder_identity: str = ""
    lease_duration_seconds: int = 0
    renew_time: datetime | None = None


class _Lease(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _LeaseSpec = _LeaseSpec()


class List(Struct, frozen=True):
    """`told` makes of the objects what a field of Seen has; `labels` selects them."""

    resource: Resource
    kind: type[Any]
    told: Callable[[list[Any], str], Any]
    labels: Mapping[str, str] = {}


class UnreadKind(Struct, frozen=True):
    """What could not be read, as `kind/name`, and why."""

    object: str
    why: str


async def read(
    client: Client, scheduler_name: str, fabric: tuple[str, ...]
) -> tuple[ClusterFacts, tuple[UnreadKind, ...]]:
    """What was seen, and what could not be. Raises ApiError."""
    unread: list[UnreadKind] = []
    served = await discover(client)
    seen = {name: await _told(client, served, one, scheduler_name, unread) for name, one in LISTS.items()}
    return ClusterFacts(**seen, fabric=fabric), tuple(unread)


async def _told(client: Client, served: Served, one: List, scheduler_name: str, unread: list[UnreadKind]) -> Any:
    if one.resource.api_version in served.failed:
        unread.append(
            UnreadKind(f"list/{one.resource.plural}", f"the server of {one.resource.api_version} did not answer")
        )
        return None
    if not served.has(one.resource):
        return one.told([], scheduler_name)
    params = {"labelSelector": ",".join(f"{key}={value}" for key, value in one.labels.items())} if one.labels else {}
    try:
        listing = await list_all(client, one.resource, one.kind, params=params)
    except NotFound:
        return one.told([], scheduler_name)
    except Forbidden as error:
        unread.append(UnreadKind(f"list/{one.resource.plural}", str(error)))
        return None
    for bad in listing.bad:
        unread.append(UnreadKind(f"{one.resource.kind}/{'/'.join(bad.key or ('?',))}".lower(), bad.problem))
    return one.told(list(listing.objects.values()), scheduler_name)


def _nodes(nodes: Iterable[_Node], _: str) -> tuple[NodeRecord, ...]:
    return tuple(
        NodeRecord(
            one.metadata.name,
            one.metadata.labels or {},
            {name: _units(value) for name, value in one.status.allocatable.items() if _is_gpu(name)},
            _unready(one.status.conditions),
        )
        for one in nodes
    )


def _unready(conditions: Iterable[_Condition]) -> str:
    said = next((one for one in conditions if one.type == "Ready" and one.status != "True"), None)
    return "" if said is None else f"{said.status}, {said.reason}: {said.message}"


def _is_gpu(resource: str) -> bool:
    return resource == "nvidia.com/gpu" or resource.startswith(("nvidia.com/gpu.", "nvidia.com/mig-"))


def _units(value: str | float) -> int:
    try:
        return units(str(value))
    except QuantityError:
        return 0


def _pods(pods: list[_Pod], scheduler_name: str) -> Pods:
    now_ms = time.time_ns() // 1_000_000
    parts: dict[str, tuple[PartRecord, ...]] = {}
    misaligned: dict[str, tuple[str, ...]] = {}
    for one in pods:
        node, role = one.spec.node_name, _role(one)
        if role is not None and node and one.status.phase not in ("Succeeded", "Failed"):
            part = PartRecord(role[0], _name(one), node, role[1], *_trouble(one))
            parts[node] = (*parts.get(node, ()), part)
        if one.status.phase == "Failed" and one.status.reason == "TopologyAffinityError":
            misaligned[node] = (*misaligned.get(node, ()), _name(one))
    wanting = [one for one in pods if _asks(one) and one.status.phase in ("", "Pending", "Running")]
    return Pods(
        parts,
        tuple(_pending(one, scheduler_name, now_ms) for one in wanting if not one.spec.node_name),
        tuple(
            Running(_name(one), one.spec.node_name, one.spec.scheduler_name, one.status.qos_class)
            for one in wanting
            if one.spec.node_name
        ),
        tuple(_schedulers(pods)),
        misaligned,
    )


def _name(pod: _Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _role(pod: _Pod) -> tuple[str, str] | None:
    """What it does for the GPUs of its node, and whose it is."""
    labels = pod.metadata.labels or {}
    if labels.get("app.kubernetes.io/name") == _AGENT:
        claims = any({"--claims", "--no-device-plugin"} & set(one.args) for one in pod.spec.containers)
        return None if claims else ("plugin", _AGENT)
    if labels.get("app.kubernetes.io/component") == _HAMI:
        return "plugin", "HAMi"
    names = [one.name for one in pod.spec.containers]
    found = (role[1:] for role in _ROLES if any(name.startswith(role[0]) for name in names))
    return next(found, None)


def _schedulers(pods: Iterable[_Pod]) -> Iterator[Scheduler]:
    for one in pods:
        name = next((name for prefix, name in _SCHEDULERS if one.metadata.name.startswith(prefix)), None)
        if name is not None and one.status.phase == "Running":
            yield Scheduler(name, _name(one))


def _trouble(pod: _Pod) -> tuple[str, str]:
    """The container that keeps a pod from being ready, and what it says; empty for one that is."""
    for one in pod.status.init_container_statuses:
        ended = one.state.terminated
        if one.ready or (ended is not None and ended.exit_code == 0):
            continue
        since = one.state.running.started_at if one.state.running is not None else ""
        return one.name, f"init container {one.name} " + (f"has run since {since}" if since else _said(one))
    for one in pod.status.container_statuses:
        if not one.ready:
            since = one.state.running.started_at if one.state.running is not None else ""
            return one.name, f"container {one.name} " + (f"is not ready, started {since}" if since else _said(one))
    return ("", "") if pod.status.phase == "Running" else ("", f"phase {pod.status.phase}, no container was started")


def _said(status: _ContainerStatus) -> str:
    """Why it does not run, and how it ended before."""
    waits, ended = status.state.waiting, status.state.terminated or status.last_state.terminated
    parts = []
    if waits is not None:
        parts.append(f"waits, {waits.reason}: {waits.message}" if waits.message else f"waits, {waits.reason}")
    if ended is not None:
        told = f": {ended.message.strip()}" if ended.message else f" ({ended.reason})" if ended.reason else ""
        parts.append(f"ended with exit code {ended.exit_code}{told}")
    return "; ".join(parts) or "has not started"


def _asks(pod: _Pod) -> tuple[str, ...]:
    names = (name for one in pod.spec.containers for name in one.resources.limits if _is_gpu(name))
    return tuple(dict.fromkeys(names))


def _pending(pod: _Pod, scheduler_name: str, now_ms: int) -> PendingRecord:
    said = next((c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"), _Condition())
    scheduler, born_ms = pod.spec.scheduler_name, epoch_ms(pod.metadata.creation_timestamp)
    return PendingRecord(
        _name(pod),
        scheduler,
        scheduler == scheduler_name,
        said.reason,
        said.message,
        _asks(pod),
        pod.spec.node_selector,
        max(0, now_ms - born_ms) // 1000 if born_ms else 0,
    )


def _drivers(slices: Iterable[_Slice], _: str) -> Mapping[str, set[str]]:
    drivers: dict[str, set[str]] = {}
    for one in slices:
        drivers.setdefault(one.spec.driver, set()).add(one.spec.node_name)
    return drivers


def _gpu_nodes(objects: Iterable[GPUNode], _: str) -> Mapping[str, GpuNode]:
    return {one.metadata.name: _gpu_node(one) for one in objects}


def _gpu_node(one: GPUNode) -> GpuNode:
    status = one.status
    driver = next((c for c in status.conditions if c.type == "DriverReady" and c.status == "False"), None)
    mig = status.mig
    told = None
    if status.kubelet is not None:
        numa = tuple(sorted({gpu.numa_node for gpu in status.gpus if gpu.numa_node is not None}))
        devices = [device for plugin in status.kubelet.devices if _is_gpu(plugin.resource) for device in plugin.devices]
        told = KubeletRecord(
            f"GPUNode {one.metadata.name}",
            status.kubelet.topology_manager_policy,
            status.kubelet.cpu_manager_policy,
            numa,
            bool(numa and devices) and not any(device.numa_nodes for device in devices),
        )
    return GpuNode(
        "" if driver is None else driver.message or driver.reason or "no reason is told",
        "" if mig is None else mig.state,
        "" if mig is None else mig.message,
        told,
    )


def _topologies(objects: Iterable[NodeResourceTopology], _: str) -> Mapping[str, KubeletRecord]:
    found = {}
    for one in objects:
        zones, _problems = zones_of(one)
        numa = {number for name, counts in zones.devices if _is_gpu(name) for number, count in counts if count}
        source = f"NodeResourceTopology {one.metadata.name}"
        found[one.metadata.name] = KubeletRecord(source, zones.policy, gpu_numa=tuple(sorted(numa)))
    return found


def _queues(objects: Iterable[QueueObject], _: str) -> tuple[QueueRecord, ...]:
    tree = Tree()
    for one in objects:
        tree.put(queue(one))
    names = tree.in_order()
    return tuple(QueueRecord(name, str(tree.problem(name) or ""), tree.scaled_down(name)) for name in names)


def _webhooks(objects: Iterable[_Hooks], _: str) -> tuple[Webhook, ...]:
    return tuple(Webhook(one.metadata.name, hook.name) for one in objects for hook in one.webhooks)


def _leases(leases: Iterable[_Lease], _: str) -> tuple[Lease, ...]:
    """Those that are held. Whoever does not renew for a while leads no more; clocks may differ a little."""
    now_ms = time.time_ns() // 1_000_000
    found = []
    for one in leases:
        name = one.metadata.annotations.get(SCHEDULER_NAME, "")
        renewed_s = max(0, now_ms - epoch_ms(one.spec.renew_time)) // 1000
        if name and one.spec.holder_identity and renewed_s <= _LAPSED * one.spec.lease_duration_seconds:
            where = f"{one.metadata.namespace}/{one.metadata.name}"
            found.append(Lease(where, name, one.spec.holder_identity, renewed_s))
    return tuple(sorted(found, key=lambda one: one.name))


def _as_read(objects: Iterable[T], _: str) -> tuple[T, ...]:
    return tuple(objects)


LISTS: Mapping[str, List] = {
    "nodes": List(NODES, _Node, _nodes),
    "pods": List(PODS, _Pod, _pods),
    "drivers": List(RESOURCE_SLICES, _Slice, _drivers),
    "gpu_nodes": List(GPU_NODES, GPUNode, _gpu_nodes),
    "topologies": List(NODE_TOPOLOGIES, NodeResourceTopology, _topologies),
    "queues": List(QUEUES, QueueObject, _queues),
    "webhooks": List(MUTATING_WEBHOOKS, _Hooks, _webhooks),
    "leases": List(LEASES, _Lease, _leases, LEASE_LABEL),
    "policies": List(protection.POLICIES, protection.ProtectionPolicy, _as_read),
    "bindings": List(protection.BINDINGS, protection.Binding, _as_read),
}
"""What is read for each field of Seen."""
