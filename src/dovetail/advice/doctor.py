# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the GPUs of a cluster, told by what its API server says; pure.

Rules
- A finding rests on a label, a number or a condition that is quoted in it. What was not read (None) is not judged.
- A node has GPUs if a label of Node Feature Discovery or of the GPU Operator says so. Without these nobody knows.
- A node whose devices are offered to claims need not have allocatable ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass

HAS_GPUS = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
MIG_STATE = "nvidia.com/mig.config.state"
DRIVERS = frozenset({"gpu.nvidia.com"})


@dataclass(frozen=True, slots=True)
class Node:
    """`gpus` is allocatable by resource name."""

    name: str
    labels: Mapping[str, str]
    gpus: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Plugin:
    """A running pod that is a device plugin for GPUs: NVIDIA's, or our agent."""

    pod: str
    node: str


@dataclass(frozen=True, slots=True)
class Pending:
    """A pod that asks for GPUs and is on no node. `reason` and `message` are those of its condition PodScheduled."""

    pod: str
    scheduler: str
    ours: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read; None is what could not be. `drivers` are nodes by the DRA drivers that offer devices there."""

    nodes: tuple[Node, ...] | None
    plugins: tuple[Plugin, ...] | None
    pending: tuple[Pending, ...] | None
    drivers: Mapping[str, Set[str]] | None


@dataclass(frozen=True, slots=True)
class Finding:
    """`object` is `kind/name`; `evidence` what says so; `fix` a command or a setting."""

    id: str
    level: str
    object: str
    wrong: str
    evidence: str
    fix: str


Told = Iterator[tuple[str, str, str]]
"""Object, evidence, fix."""


@dataclass(frozen=True, slots=True)
class Check:
    """`needs` are the fields of Seen without which it is left out."""

    id: str
    level: str
    wrong: str
    needs: tuple[str, ...]
    look: Callable[[Seen], Told]


def _bare(seen: Seen) -> Iterator[tuple[Node, str, list[str]]]:
    """Nodes that have GPUs and offer none, the label that says so, and the plugins that run there."""
    plugins = _plugins(seen)
    claimed = {name for driver, nodes in (seen.drivers or {}).items() if driver in DRIVERS for name in nodes}
    for node in seen.nodes or ():
        label = next((key for key in HAS_GPUS if node.labels.get(key) == "true"), "")
        if label and not any(node.gpus.values()) and node.name not in claimed:
            yield node, label, plugins.get(node.name, [])


def _plugins(seen: Seen) -> dict[str, list[str]]:
    """Pods by node."""
    found: dict[str, list[str]] = {}
    for one in seen.plugins or ():
        found.setdefault(one.node, []).append(one.pod)
    return found


def _no_plugin(seen: Seen) -> Told:
    for node, label, plugins in _bare(seen):
        if not plugins:
            evidence = f"label {label}=true; no nvidia.com/ resource is allocatable; no device plugin runs there"
            yield f"node/{node.name}", evidence, "kubectl apply -k deploy/agent/, or install NVIDIA's device plugin"


def _silent_plugin(seen: Seen) -> Told:
    for node, label, plugins in _bare(seen):
        if plugins:
            namespace, _, pod = plugins[0].partition("/")
            evidence = f"label {label}=true; no nvidia.com/ resource is allocatable; {plugins[0]} runs there"
            fix = f"kubectl logs -n {namespace} {pod}: it says if driver or container toolkit is missing"
            yield f"node/{node.name}", evidence, fix


def _mig_failed(seen: Seen) -> Told:
    for node in seen.nodes or ():
        if node.labels.get(MIG_STATE) == "failed":
            fix = "read the log of the MIG manager on that node, then set the label nvidia.com/mig.config again"
            yield f"node/{node.name}", f"label {MIG_STATE}=failed", fix


def _two_plugins(seen: Seen) -> Told:
    for node, pods in _plugins(seen).items():
        if len(pods) > 1:
            yield f"node/{node}", f"pods {', '.join(sorted(pods))}", "keep one of them off this node by a node selector"


def _beside_dra(seen: Seen) -> Told:
    for driver, nodes in (seen.drivers or {}).items():
        for node in seen.nodes or ():
            offered = ", ".join(f"{name}: {number}" for name, number in node.gpus.items() if number)
            if driver in DRIVERS and node.name in nodes and offered:
                evidence = f"allocatable {offered}; a ResourceSlice of {driver} names the node"
                yield f"node/{node.name}", evidence, "keep the device plugin or the DRA driver off this node"


def _pending(seen: Seen) -> Told:
    for one in seen.pending or ():
        if one.reason:
            namespace, _, pod = one.pod.partition("/")
            ask = f"dovetail why -n {namespace} {pod}" if one.ours else f"kubectl describe pod -n {namespace} {pod}"
            said = f"{one.reason}: {one.message}" if one.message else one.reason
            yield f"pod/{one.pod}", f"{one.scheduler} says in PodScheduled: {said}", ask


CHECKS = (
    Check("node-without-gpus/no-plugin", "error", "the node has GPUs, and nobody offers them",
          ("nodes", "plugins", "drivers"), _no_plugin),
    Check("node-without-gpus/silent-plugin", "error", "a device plugin runs on the node and offers no GPU",
          ("nodes", "plugins", "drivers"), _silent_plugin),
    Check("node-without-gpus/mig-failed", "error", "the MIG layout of the node could not be made",
          ("nodes",), _mig_failed),
    Check("device-plugins/two-on-one-node", "error", "two device plugins offer the GPUs of one node",
          ("plugins",), _two_plugins),
    Check("device-plugins/beside-dra", "error", "device plugin and DRA driver may give one GPU away twice",
          ("nodes", "drivers"), _beside_dra),
    Check("pod-pending/unscheduled", "warning", "the pod waits for a GPU", ("pending",), _pending),
)  # fmt: skip


def examine(seen: Seen) -> tuple[Finding, ...]:
    """What is wrong, in the order of CHECKS."""
    return tuple(
        Finding(check.id, check.level, thing, check.wrong, evidence, fix)
        for check in CHECKS
        if not left_out(check, seen)
        for thing, evidence, fix in check.look(seen)
    )


def left_out(check: Check, seen: Seen) -> bool:
    """Whether something that the check needs was not read."""
    return any(getattr(seen, name) is None for name in check.needs)
