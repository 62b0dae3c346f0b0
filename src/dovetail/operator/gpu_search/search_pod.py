# SPDX-License-Identifier: Apache-2.0
"""The search for GPUs on one node: which nodes are searched, by which pod, and what its end means. Pure.

Rules
- A node is searched once per boot, if its kubelet is ready and nothing reports whether it has GPUs: no label of
  NVIDIA's GPU Feature Discovery or of Node Feature Discovery, no dovetail.dev/agent, and no GPU resource.
- The result is written to the node: the annotation dovetail.dev/gpu-search with the number and the boot, and where the
  number is not 0 the label dovetail.dev/agent=true, which makes it a GPU node.
- The pod reads the PCI bus in sysfs, which every container may read. It meets Pod Security `restricted`, names its node
  (so no scheduler is needed, and no taint is in the way), and ends by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from dovetail.kube.objects.stack import GPUStack
from dovetail.operator.nodes.validation import owner
from dovetail.operator.pools import AGENT_LABEL, is_gpu_node
from dovetail.operator.rendering.stack_objects import MANAGED_BY, PART_OF, SYSTEM_NAMESPACE
from dovetail.operator.restricted_pod import restricted_body, restricted_context
from dovetail.operator.watched.nodes import WatchedNode, is_gpu_resource
from dovetail.operator.watched.pods import WatchedPod

SEARCH_LABEL = "operator.dovetail.dev/gpu-search"
"""On pods of the search."""
SEARCHED = "dovetail.dev/gpu-search"
"""Annotation of a node: the number of GPUs that were found, and the boot in which."""
FOUND = "NVIDIA GPUs on the PCI bus: "
"""How the report of `dovetail agent find` begins; the number follows."""
_DEADLINE_S = 300


def is_searched(node: WatchedNode) -> bool:
    """Whether the node is to be searched now. A node without a boot has no kubelet of its own (a virtual node)."""
    meta, status = node.metadata, node.status
    info = status.node_info
    if not info.boot_id or info.operating_system not in ("", "linux") or meta.deletion_timestamp is not None:
        return False
    if AGENT_LABEL in meta.labels or is_gpu_node(meta.labels) or any(map(is_gpu_resource, status.allocatable)):
        return False
    ready = any(one.type == "Ready" and one.status == "True" for one in status.conditions)
    return ready and searched(node)[1] != info.boot_id


def searched(node: WatchedNode) -> tuple[int, str]:
    """The number of GPUs that a search has found, and the boot in which; -1 and "" without one."""
    number, _, boot = node.metadata.annotations.get(SEARCHED, "").partition(" ")
    return (int(number), boot) if number.isascii() and number.isdecimal() and len(number) < 5 else (-1, "")


def search_name(node: str) -> str:
    """The name of the pod that searches a node; names of nodes are longer than those that a host may have."""
    return f"dovetail-gpu-search-{sha256(node.encode()).hexdigest()[:10]}"


def search_pod(stack: GPUStack, node: str, image: str) -> dict[str, Any]:
    """The pod that searches a node."""
    container = {
        "name": "find",
        "image": image,
        "args": ["agent", "find", "--report=/dev/termination-log"],
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi"},
            # It is over after some 300 ms of CPU, and until then no GPU of the node can be used.
            "limits": {"cpu": "1", "memory": "64Mi"},
        },
        "securityContext": restricted_context(),
    }
    body = restricted_body(container, _DEADLINE_S, stack.spec.image.pull_secrets) | {
        "nodeName": node,
        "tolerations": [{"operator": "Exists"}],
    }
    metadata = {
        "name": search_name(node),
        "namespace": SYSTEM_NAMESPACE,
        "labels": {**dict((MANAGED_BY, PART_OF)), SEARCH_LABEL: "true"},
        "ownerReferences": [owner(stack)],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def gpus_found(pod: WatchedPod) -> int | None:
    """The number of GPUs that a pod has found; -1: it has failed; None: it has not ended."""
    if pod.status.phase == "Failed":
        return -1
    if pod.status.phase != "Succeeded":
        return None
    ended = (one.state.terminated for one in pod.status.container_statuses)
    return _number(one.message for one in ended if one is not None)


def _number(reports: Iterable[str]) -> int:
    for report in reports:
        for line in report.splitlines():
            number = line.removeprefix(FOUND)
            if number != line and number.isascii() and number.isdecimal() and len(number) < 5:
                return int(number)
    return -1


def result_patch(number: int, boot: str) -> dict[str, Any]:
    """The merge patch of a node for a result."""
    labels = {AGENT_LABEL: "true"} if number else {}
    return {"metadata": {"annotations": {SEARCHED: f"{number} {boot}"}, "labels": labels}}


def removal_patch(node: WatchedNode) -> dict[str, Any] | None:
    """The merge patch that takes the result back; None where there is none."""
    if SEARCHED not in node.metadata.annotations:
        return None
    ours = searched(node)[0] > 0 and node.metadata.labels.get(AGENT_LABEL) == "true"
    return {"metadata": {"annotations": {SEARCHED: None}, "labels": {AGENT_LABEL: None} if ours else {}}}
