# SPDX-License-Identifier: Apache-2.0
"""What is known about one node, as values: the input of the walk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct, field

from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.stack import NodePool, StackSpec
from dovetail.kube.objects.topology import DeviceDifference, Evidence, NodeBoots, NodeReadiness
from dovetail.kube.objects.topology import Validation as LastValidation
from dovetail.operator.nodes.evidence import Trouble
from dovetail.operator.watched.nodes import WatchedGPUNode, WatchedNode, is_gpu_resource

STARTUP_TAINT, STARTUP_EFFECT = "dovetail.dev/not-ready", "NoSchedule"
AGENT_STALE_MS = 660_000
"""An agent writes its GPUNode every 300 s at the latest; after two missed writes it is not heard of."""
_LONGEST_KEY = 128
_NUMBER = re.compile(r"\d{1,9}")


class NodeComponent(Struct, frozen=True):
    """A component with a pod on each node. `daemon_set`: its DaemonSet exists. `ready`:
    its pod is ready. `trouble`: why it is not, None without a pod. `refused`: what the API server answered when the pod
    was made, if it was refused. `name` is that of the DaemonSet,
    `image` that of the pod's first container."""

    name: str = ""
    namespace: str = ""
    daemon_set: bool = False
    ready: bool = False
    trouble: Trouble | None = None
    refused: str = ""
    started_ms: int = 0
    image: str = ""


class AgentReport(Struct, frozen=True):
    """What the agent reports in the GPUNode of the node. `reported`: it has written a status, for this very Node.
    `fresh`: within AGENT_STALE_MS. Conditions are (status, reason, message), all "" if there is none."""

    reported: bool = False
    fresh: bool = False
    driver: tuple[str, str, str] = ("", "", "")
    plugin: tuple[str, str, str] = ("", "", "")
    driver_version: str = ""
    version: str = ""
    uuids: Mapping[int, str] = field(default_factory=dict)
    healthy: int = 0
    quarantine: str = ""
    mig: tuple[str, str] = ("", "")
    """State and message of the layout."""
    fail_above_one: bool = False
    differences: tuple[DeviceDifference, ...] = ()


class ValidationProgress(Struct, frozen=True):
    """How far the validation of the node is, as the driver of it found: a reason of the table, or "" with `passed` for
    a validation of this key, or "" without for one that has not been begun."""

    reason: str = ""
    message: str = ""
    evidence: Evidence | None = None
    passed: LastValidation | None = None


class WalkFacts(Struct, frozen=True):
    """`gpu_signs`: what shows that it is a GPU node. `boots` are those that were seen, `reboots` whether they are a
    loop. `kept_off`: whether the start-up taint keeps pods of NVIDIA's stack off, or would; None where that is not
    known. `slices`: whether a ResourceSlice offers its GPUs, None where that is not known or not needed.
    `runtime_class`: whether the RuntimeClass exists, None where the API does not report it. `before` is the readiness
    as it was written last."""

    name: str
    spec: StackSpec = StackSpec()
    pool: NodePool | None = None
    gpu_signs: tuple[str, ...] = ()
    kubelet: tuple[str, str] = ("True", "")
    """Status and message of the condition Ready."""
    boots: NodeBoots | None = None
    reboots: bool = False
    cordoned: bool = False
    maintenance: bool = False
    tainted: bool = False
    kept_off: bool | None = False
    allocatable: Mapping[str, int] = field(default_factory=dict)
    labelled: bool = False
    runtime_class: bool | None = None
    driver: NodeComponent = NodeComponent()
    toolkit: NodeComponent = NodeComponent()
    agent_pod: NodeComponent = NodeComponent()
    agent: AgentReport = AgentReport()
    slices: bool | None = None
    validation: ValidationProgress = ValidationProgress()
    before: NodeReadiness | None = None


def agent_of(gpu_node: WatchedGPUNode | None, node: WatchedNode, now_ms: int, heard_ms: int = 0) -> AgentReport:
    """What the agent reports; `heard_ms` is when this process saw it write, 0 if it did not yet: the clock of the node
    may be another one. A GPUNode of an earlier Node of this name counts as none."""
    if gpu_node is None or is_of_another(gpu_node, node):
        return AgentReport()
    status = gpu_node.status
    observed_ms = epoch_ms(status.observed_time)
    return AgentReport(
        reported=bool(observed_ms),
        fresh=bool(observed_ms) and now_ms - max(observed_ms, heard_ms) < AGENT_STALE_MS,
        driver=_condition(gpu_node, "DriverReady"),
        plugin=_condition(gpu_node, "PluginRegistered"),
        driver_version=status.driver_version,
        version=status.agent.version if status.agent is not None else "",
        uuids={gpu.index: gpu.uuid for gpu in status.gpus},
        healthy=sum(gpu.healthy for gpu in status.gpus),
        quarantine=status.quarantine.reason if status.quarantine is not None else "",
        mig=(status.mig.state, status.mig.message) if status.mig is not None else ("", ""),
        fail_above_one=status.sharing.fail_requests_greater_than_one if status.sharing is not None else False,
        differences=status.differences,
    )


def is_of_another(gpu_node: WatchedGPUNode, node: WatchedNode) -> bool:
    """Whether the GPUNode belongs to a Node of this name that was deleted: its garbage collection is under way."""
    owners = [one.uid for one in gpu_node.metadata.owner_references if one.kind == "Node"]
    return bool(owners) and node.metadata.uid not in owners


def _condition(gpu_node: WatchedGPUNode, kind: str) -> tuple[str, str, str]:
    found = (one for one in gpu_node.status.conditions if one.type == kind)
    return next(((one.status, one.reason, one.message) for one in found), ("", "", ""))


def gpu_signs(
    node: WatchedNode, labelled: bool, gpu_node: WatchedGPUNode | None, allocatable: Mapping[str, int]
) -> tuple[str, ...]:
    """What shows that the node has GPUs, of `labelled` (a label does), its GPUNode, and what it offers."""
    signs = (
        ("labels", labelled),
        ("GPUNode", gpu_node is not None and not is_of_another(gpu_node, node) and bool(gpu_node.status.gpus)),
        ("allocatable", any(allocatable.values())),
    )
    return tuple(name for name, holds in signs if holds)


def gpus_of(node: WatchedNode) -> dict[str, int]:
    """The GPUs, replicas and MIG instances that the node offers, by resource; those of which it offers none too."""
    amounts = node.status.allocatable.items()
    return {name: int(text) if _NUMBER.fullmatch(str(text)) else 0 for name, text in amounts if is_gpu_resource(name)}


def kubelet_of(node: WatchedNode) -> tuple[str, str]:
    """Status and message of the condition Ready; Unknown without one."""
    found = (one for one in node.status.conditions if one.type == "Ready")
    return next(((one.status, one.message) for one in found), ("Unknown", "the kubelet has not reported yet"))


def has_startup_taint(taints: Iterable[Mapping[str, Any]]) -> bool:
    return any((one.get("key"), one.get("effect")) == (STARTUP_TAINT, STARTUP_EFFECT) for one in taints)


def validation_digest(facts: WalkFacts) -> str:
    """Of what the stack asks a validation to do."""
    return sha256(msgspec.json.encode(facts.spec.validation)).hexdigest()[:8]


def validation_key(facts: WalkFacts) -> str:
    """What a validation is good for: the driver, the agent, and what the pool configures of the devices. Counts of GPUs
    are not part of it: one that fails, or a layout that the scheduler changes for a pod, needs no new validation."""
    pool = facts.pool or NodePool()
    layout = msgspec.json.encode((pool.allocation, pool.sharing, pool.mig))
    parts = (facts.agent.driver_version or "-", facts.agent.version or "-", sha256(layout).hexdigest()[:8])
    return "driver={},agent={},layout={}".format(*parts)[:_LONGEST_KEY]
