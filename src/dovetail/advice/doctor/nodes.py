# SPDX-License-Identifier: Apache-2.0
"""Nodes that have GPUs but no allocatable ones, with the cause nearest to the hardware; and conflicting device plugins.

Rules
- A node with a DRA driver for GPUs does not need allocatable GPUs.
- Each node gets one cause, the first of CAUSES that applies. Causes that need lists that were not read are skipped; a
  later cause is still true, but farther from the root cause.
- Containers are recognised by their names in NVIDIA's GPU Operator (its assets/, November 2026). If an init container
  waits for an earlier step, that step is the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from dovetail.advice.doctor.mig import mig_failed, mig_pending
from dovetail.advice.doctor.records import DRIVERS, Check, ClusterFacts, NodeRecord, PartRecord, Problems, logs_of

GPU_COUNT = "nvidia.com/gpu.count"
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
_WAIT_FOR_DRIVER = ("driver-validation", "k8s-driver-manager")
_WAIT_FOR_TOOLKIT = ("toolkit-validation",)
_WAIT_FOR_PLUGIN = ("plugin-validation",)
_ROLES = ("driver", "toolkit", "validator", "plugin", "discovery")

Cause = Callable[[NodeRecord, ClusterFacts], tuple[str, str] | None]
"""Returns (evidence, fix) if this is the cause, else None."""


def _not_ready(node: NodeRecord, _: ClusterFacts) -> tuple[str, str] | None:
    if not node.unready:
        return None
    return f"its condition Ready: {node.unready}", f"kubectl describe node {node.name}; check its kubelet first"


def _driver_missing(node: NodeRecord, seen: ClusterFacts) -> tuple[str, str] | None:
    message = seen.gpu_node(node.name).driver
    if not message:
        return None
    fix = "install or load NVIDIA's driver there; kernel module and library must be of one version"
    return f"GPUNode {node.name}, condition DriverReady is False: {message}", fix


def _stuck(found: Iterator[PartRecord]) -> tuple[str, str] | None:
    one = next(found, None)
    return None if one is None else (f"pod {one.pod}: {one.trouble}", logs_of(one.pod, one.container))


def _driver_pod(node: NodeRecord, seen: ClusterFacts) -> tuple[str, str] | None:
    """The driver pod itself comes before pods that wait for the driver."""
    parts = [one for one in seen.parts(node.name, *_ROLES) if one.trouble]
    own = [one for one in parts if one.role == "driver"]
    return _stuck(iter(own or [one for one in parts if one.container in _WAIT_FOR_DRIVER]))


def _toolkit_pod(node: NodeRecord, seen: ClusterFacts) -> tuple[str, str] | None:
    parts = [one for one in seen.parts(node.name, *_ROLES) if one.trouble]
    own = [one for one in parts if one.role == "toolkit"]
    return _stuck(iter(own or [one for one in parts if one.container in _WAIT_FOR_TOOLKIT]))


def _validation(node: NodeRecord, seen: ClusterFacts) -> tuple[str, str] | None:
    parts = seen.parts(node.name, "validator")
    return _stuck(one for one in parts if one.trouble and one.container not in _WAIT_FOR_PLUGIN)


def _plugin_pod(node: NodeRecord, seen: ClusterFacts) -> tuple[str, str] | None:
    parts = seen.parts(node.name, "plugin")
    return _stuck(one for one in parts if one.trouble) if all(one.trouble for one in parts) else None


def _driver_unseen(node: NodeRecord, seen: ClusterFacts) -> tuple[str, str] | None:
    looking = next((one for one in seen.parts(node.name, "discovery") if not one.trouble), None)
    if looking is None or GPU_COUNT in node.labels:
        return None
    evidence = f"GPU Feature Discovery ({looking.pod}) runs there and has set no label {GPU_COUNT}"
    fix = f"{logs_of(looking.pod)}: it states whether it finds the driver; if it does, check Node Feature Discovery"
    return evidence, fix


def _layout(node: NodeRecord, seen: ClusterFacts) -> tuple[str, str] | None:
    """Reported by the checks of MIG, so empty here."""
    return ("", "") if any(True for _ in (*mig_failed(node, seen), *mig_pending(node, seen))) else None


def _silent_plugin(node: NodeRecord, seen: ClusterFacts) -> tuple[str, str] | None:
    plugins = seen.parts(node.name, "plugin")
    if not plugins:
        return None
    count = node.labels.get(GPU_COUNT)
    known = f"; label {GPU_COUNT}={count}, so the driver has answered" if count is not None else ""
    fix = f"{logs_of(plugins[0].pod)}: it states whether the driver or the container toolkit is missing"
    return f"{plugins[0].pod} runs there{known}", fix


def _no_plugin(_: NodeRecord, __: ClusterFacts) -> tuple[str, str] | None:
    return "no device plugin runs there", "kubectl apply -k deploy/agent/, or install NVIDIA's device plugin"


_LISTS = ("nodes", "pods", "drivers")
CAUSES: tuple[tuple[str, str, tuple[str, ...], Cause], ...] = (
    ("not-ready", "the node has GPUs and is not ready", ("nodes", "drivers"), _not_ready),
    ("driver-missing", "NVIDIA's driver does not answer on the node", ("nodes", "drivers", "gpu_nodes"),
     _driver_missing),
    ("driver-pod", "the driver pod is not ready on the node", _LISTS, _driver_pod),
    ("toolkit-pod", "the container toolkit is not ready on the node", _LISTS, _toolkit_pod),
    ("validation", "the validation of driver and toolkit fails on the node", _LISTS, _validation),
    ("plugin-pod", "the device plugin of the node does not run", _LISTS, _plugin_pod),
    ("driver-unseen", "GPU Feature Discovery reports no GPU on the node", _LISTS, _driver_unseen),
    ("", "", (), _layout),
    ("silent-plugin", "a device plugin runs on the node and offers no GPU", _LISTS, _silent_plugin),
    ("no-plugin", "the node has GPUs, and no device plugin offers them", _LISTS, _no_plugin),
)  # fmt: skip
"""(id, problem, needed lists, cause). A cause without an id is reported by another check."""


def _bare(seen: ClusterFacts) -> Iterator[NodeRecord]:
    """Nodes that have GPUs but offer none."""
    for node in seen.nodes or ():
        if node.label_of_gpus and not any(node.gpus.values()) and not seen.claimed(node.name):
            yield node


def _caused_by(wanted: str, seen: ClusterFacts) -> Problems:
    for node in _bare(seen):
        causes = ((name, cause(node, seen)) for name, _, _, cause in CAUSES)
        name, problem = next((name, found) for name, found in causes if found is not None)
        if name == wanted:
            evidence = f"label {node.label_of_gpus}=true; no nvidia.com/ resource is allocatable; {problem[0]}"
            yield f"node/{node.name}", evidence, problem[1]


def _upgrade_failed(seen: ClusterFacts) -> Problems:
    for node in seen.nodes or ():
        if node.labels.get(UPGRADE) == "upgrade-failed":
            again = f"kubectl label --overwrite node {node.name} {UPGRADE}=upgrade-required"
            yield f"node/{node.name}", f"label {UPGRADE}=upgrade-failed", f"repair its driver pod, then {again}"


def _two_plugins(seen: ClusterFacts) -> Problems:
    for node in seen.pods.parts if seen.pods is not None else ():
        plugins = [one for one in seen.parts(node, "plugin") if not one.trouble]
        if len(plugins) > 1:
            pods = ", ".join(f"{one.pod} ({one.name})" for one in plugins)
            yield f"node/{node}", f"pods {pods}", "keep one of them off this node by a node selector"


def _beside_dra(seen: ClusterFacts) -> Problems:
    for driver, nodes in (seen.drivers or {}).items():
        for node in seen.nodes or ():
            offered = ", ".join(f"{name}: {number}" for name, number in node.gpus.items() if number)
            if driver in DRIVERS and node.name in nodes and offered:
                evidence = f"allocatable {offered}; a ResourceSlice of {driver} names the node"
                yield f"node/{node.name}", evidence, "keep the device plugin or the DRA driver off this node"


CHECKS = (
    *(
        Check(f"node-without-gpus/{name}", "error", wrong, needs, partial(_caused_by, name))
        for name, wrong, needs, _ in CAUSES
        if name
    ),
    Check("driver/upgrade-failed", "error", "an upgrade of the driver has failed on the node",
          ("nodes",), _upgrade_failed),
    Check("device-plugins/two-on-one-node", "error", "two device plugins offer the GPUs of one node",
          ("pods",), _two_plugins),
    Check("device-plugins/beside-dra", "error", "the device plugin and the DRA driver may allocate one GPU twice",
          ("nodes", "drivers"), _beside_dra),
)  # fmt: skip
