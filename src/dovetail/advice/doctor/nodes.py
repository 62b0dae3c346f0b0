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

from dovetail.advice.doctor.accelerators import gpus_of_type
from dovetail.advice.doctor.mig import mig_failed, mig_pending
from dovetail.advice.doctor.records import (
    DRIVERS,
    PRODUCT,
    Check,
    ClusterFacts,
    NodeRecord,
    PartRecord,
    Problems,
    RefusedPod,
    logs_of,
    some,
)
from dovetail.core.model import GPU

GPU_COUNT = "nvidia.com/gpu.count"
REPLICAS = "nvidia.com/gpu.replicas"
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
_WAIT_FOR_DRIVER = ("driver-validation", "k8s-driver-manager")
_WAIT_FOR_TOOLKIT = ("toolkit-validation",)
_WAIT_FOR_PLUGIN = ("plugin-validation",)
_MOST_SHOWN = 300
"""The length of a message of a runtime, which may hold a whole command line."""
_TOOLKIT_FIX = (
    "install NVIDIA's container toolkit on the node and set up its container runtime: nvidia-ctk runtime configure; "
    "check that nvidia-smi runs there"
)
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
        if node.sign_of_gpus and not any(node.gpus.values()) and not seen.claimed(node.name):
            yield node


def _caused_by(wanted: str, seen: ClusterFacts) -> Problems:
    for node in _bare(seen):
        causes = ((name, cause(node, seen)) for name, _, _, cause in CAUSES)
        name, problem = next((name, found) for name, found in causes if found is not None)
        if name == wanted:
            evidence = f"label {node.sign_of_gpus}; no nvidia.com/ resource is allocatable; {problem[0]}"
            yield f"node/{node.name}", evidence, problem[1]


def _unready(seen: ClusterFacts) -> Problems:
    """Nodes that are not ready and still offer GPUs: the last status of their kubelet stays."""
    for node in seen.nodes or ():
        offered = ", ".join(f"{name}: {number}" for name, number in node.gpus.items() if number)
        if node.unready and (offered or seen.claimed(node.name)):
            evidence = f"its condition Ready: {node.unready}; " + (
                f"allocatable {offered}" if offered else "a ResourceSlice for GPUs names the node"
            )
            yield f"node/{node.name}", evidence, f"kubectl describe node {node.name}; check its kubelet first"


def _fewer(seen: ClusterFacts) -> Problems:
    """Nodes that offer whole GPUs, but fewer than there are. The highest number that something states counts."""
    for node in seen.nodes or ():
        offered, status = node.gpus.get(GPU, 0), seen.gpu_node(node.name)
        if not offered or node.unready or seen.claimed(node.name) or _divided(node) or status.split:
            continue
        counts = (
            (status.physical, f"status.gpus of GPUNode {node.name} has"),
            (node.capacity.get(GPU, 0), f"status.capacity, with unhealthy devices, has {GPU}:"),
            (_number(node.labels.get(GPU_COUNT, "")), f"label {GPU_COUNT} is"),
            (gpus_of_type(node.labels), "its instance type has"),
        )
        number, source = max(counts, key=lambda one: one[0])
        if number > offered:
            unhealthy = f"; not healthy: {', '.join(status.unhealthy)}" if status.unhealthy else ""
            logs = next((f"{logs_of(one.pod)}; " for one in seen.parts(node.name, "plugin")), "")
            fix = f"{logs}on the node: nvidia-smi -L, and Xid in dmesg; a GPU that is lost needs a reset or a reboot"
            yield f"node/{node.name}", f"allocatable {GPU}: {offered}; {source} {number}{unhealthy}", fix


def _divided(node: NodeRecord) -> bool:
    """Whether its GPUs are shared or are MIG instances, so that their number is another one."""
    others = any(number for name, number in node.gpus.items() if name != GPU)
    return others or _number(node.labels.get(REPLICAS, "")) > 1 or "-MIG-" in node.labels.get(PRODUCT, "")


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) <= 6 else 0


def _unexpected(seen: ClusterFacts) -> Problems:
    for node, pods in sorted(seen.pods.unexpected.items()) if seen.pods is not None else ():
        fix = (
            "two schedulers on the node, or a device plugin that restarted or lost a GPU: check the other findings "
            "about it; then delete the failed pods"
        )
        yield f"node/{node}", f"status.reason UnexpectedAdmissionError of {_refusals(pods)}", fix


def _toolkit_fails(seen: ClusterFacts) -> Problems:
    for node, pods in sorted(seen.pods.unstarted.items()) if seen.pods is not None else ():
        yield f"node/{node}", _refusals(pods), _TOOLKIT_FIX


def _sandbox_fails(seen: ClusterFacts) -> Problems:
    for node, pods in sorted((seen.sandboxes or {}).items()):
        thing = f"node/{node}" if node else f"pod/{pods[0].pod}"
        yield thing, f"event FailedCreatePodSandBox of {_refusals(pods)}", _TOOLKIT_FIX


def _refusals(pods: tuple[RefusedPod, ...]) -> str:
    """The pods, with the message of the first."""
    return f"{some([one.pod for one in pods])}: {' '.join(pods[0].message.split())[:_MOST_SHOWN]}"


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
    Check("nodes/not-ready", "error", "a node that offers GPUs is not ready", ("nodes",), _unready),
    Check("nodes/fewer-gpus", "error", "the node offers fewer GPUs than it has", ("nodes",), _fewer),
    Check("nodes/pods-rejected", "warning", "the kubelet rejected pods, as it had not the devices for them",
          ("pods",), _unexpected),
    Check("container-toolkit/fails", "error", "NVIDIA's container toolkit keeps containers of the node from starting",
          ("pods",), _toolkit_fails),
    Check("container-toolkit/no-sandbox", "error", "the container runtime of the node is not set up for NVIDIA's GPUs",
          ("sandboxes",), _sandbox_fails),
    Check("driver/upgrade-failed", "error", "an upgrade of the driver has failed on the node",
          ("nodes",), _upgrade_failed),
    Check("device-plugins/two-on-one-node", "error", "two device plugins offer the GPUs of one node",
          ("pods",), _two_plugins),
    Check("device-plugins/beside-dra", "error", "the device plugin and the DRA driver may allocate one GPU twice",
          ("nodes", "drivers"), _beside_dra),
)  # fmt: skip
