# SPDX-License-Identifier: Apache-2.0
"""Settings that prevent the alignment of GPUs, CPUs and memory of a pod on one NUMA node.

Rules
- Each setting of a kubelet comes from its GPUNode, else from its NodeResourceTopology. A policy that neither has is not
  checked: only the kubelet's `configz` has it, which needs the permission nodes/proxy and so is not read.
- Nodes with all GPUs on one NUMA node need no alignment.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.advice.doctor.records import Check, ClusterFacts, KubeletRecord, NodeRecord, Problems, some

_ALIGN = ("best-effort", "restricted", "single-numa-node")
_CONFIGURATION = "in the KubeletConfiguration and restart the kubelet"


def _kubelets(seen: ClusterFacts) -> Iterator[tuple[NodeRecord, KubeletRecord]]:
    """(node, kubelet settings) of nodes with GPUs, as far as the settings are known."""
    for node in seen.nodes or ():
        kubelet, zones = seen.gpu_node(node.name).kubelet, (seen.topologies or {}).get(node.name)
        first, second = kubelet or zones, zones or kubelet
        if not node.has_gpus or first is None or second is None:
            continue
        source = first if first.topology_policy else second
        yield (
            node,
            KubeletRecord(
                source.source, source.topology_policy, first.cpu_policy, first.gpu_numa or second.gpu_numa, first.blind
            ),
        )


def _no_alignment(seen: ClusterFacts) -> Problems:
    for node, kubelet in _kubelets(seen):
        if kubelet.topology_policy == "none" and len(kubelet.gpu_numa) > 1:
            evidence = f"{kubelet.source}: topologyManagerPolicy none; {_on(kubelet)}"
            policies = "best-effort, restricted or single-numa-node"
            yield f"node/{node.name}", evidence, f"set topologyManagerPolicy: {policies} {_CONFIGURATION}"


def _cpus_float(seen: ClusterFacts) -> Problems:
    for node, kubelet in _kubelets(seen):
        if kubelet.topology_policy in _ALIGN and kubelet.cpu_policy == "none" and len(kubelet.gpu_numa) > 1:
            policies = f"topologyManagerPolicy {kubelet.topology_policy}, cpuManagerPolicy none"
            fix = f"drain the node, remove its cpu_manager_state, set cpuManagerPolicy: static {_CONFIGURATION}"
            yield f"node/{node.name}", f"{kubelet.source}: {policies}; {_on(kubelet)}", fix


def _blind(seen: ClusterFacts) -> Problems:
    for node, kubelet in _kubelets(seen):
        if kubelet.blind and len(kubelet.gpu_numa) > 1:
            evidence = f"GPUNode {node.name}: {_on(kubelet)}, and the kubelet knows the NUMA node of none"
            fix = "use a device plugin that reports NUMA nodes to the kubelet, such as dovetail's agent or NVIDIA's"
            yield f"node/{node.name}", evidence, fix


def _misaligned(seen: ClusterFacts) -> Problems:
    for node, pods in sorted(seen.pods.misaligned.items()) if seen.pods is not None else ():
        fix = (
            "let dovetail place them, which checks the kubelet's rules first, or request no more than one NUMA "
            "node has; then delete the failed pods"
        )
        yield f"node/{node}", f"status.reason TopologyAffinityError of {some(list(pods))}", fix


def _not_guaranteed(seen: ClusterFacts) -> Problems:
    static = {node.name: one for node, one in _kubelets(seen) if one.cpu_policy == "static" and len(one.gpu_numa) > 1}
    found: dict[str, list[str]] = {}
    for pod in seen.pods.running if seen.pods is not None else ():
        if pod.node in static and pod.quality not in ("", "Guaranteed"):
            found.setdefault(pod.node, []).append(f"{pod.pod} ({pod.quality})")
    for node, pods in found.items():
        fix = "give every container of these pods limits equal to requests, and whole CPUs"
        yield f"node/{node}", f"GPUNode {node}: cpuManagerPolicy static; status.qosClass of {some(pods)}", fix


def _on(kubelet: KubeletRecord) -> str:
    return f"GPUs are on NUMA nodes {', '.join(map(str, kubelet.gpu_numa))}"


_LISTS = ("nodes", "gpu_nodes", "topologies")
CHECKS = (
    Check("numa/no-alignment", "warning", "the kubelet does not align, and the GPUs are on several NUMA nodes",
          _LISTS, _no_alignment),
    Check("numa/cpus-float", "warning", "the kubelet aligns GPUs, but not CPUs", _LISTS, _cpus_float),
    Check("numa/blind-plugin", "warning", "the kubelet does not know the NUMA nodes of the GPUs", _LISTS, _blind),
    Check("numa/pods-rejected", "warning", "the kubelet rejected pods that it could not align",
          ("pods",), _misaligned),
    Check("numa/pods-not-pinned", "warning", "pods with GPUs get no exclusive CPUs, although the kubelet pins CPUs",
          (*_LISTS, "pods"), _not_guaranteed),
)  # fmt: skip
