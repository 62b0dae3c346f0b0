# SPDX-License-Identifier: Apache-2.0
"""The kubelets that may run a pod: their policies, and the resources of each NUMA node.

A node may run a pod if it offers the GPU resources of the pod and has the labels of its nodeSelector. Affinity, taints
and free resources are ignored, so the result has too many nodes rather than too few. A GPUNode has all policies; a
NodeResourceTopology has neither the CPU Manager policy nor the Memory Manager policy.
A KubeletConfiguration is that of all nodes of which nothing else is known, also without nodes, if there is one alone.
Sources: docs/reference/gpunode.md; NodeResourceTopology (topology.node.k8s.io/v1alpha2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from msgspec import Struct

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, amount
from dovetail.advice.lint.rule import Facts
from dovetail.advice.lint.selection import gpu_nodes_for

SINGLE_NUMA = "single-numa-node"


class KubeletVersion(Struct, frozen=True):
    """Settings of a kubelet. Unknown policies are "". `numa` has the allocatable resources of each NUMA node, in CPUs,
    bytes or devices; a resource that is in none of them is unknown."""

    topology_policy: str
    pod_scope: bool
    cpu_policy: str
    memory_policy: str
    numa: tuple[Mapping[str, Fraction], ...]

    @property
    def aligns(self) -> bool:
        """Whether the kubelet aligns CPUs with GPUs and rejects pods that it cannot align."""
        if self.cpu_policy:
            return self.cpu_policy == "static" and self.topology_policy in ("restricted", SINGLE_NUMA)
        return self.topology_policy == SINGLE_NUMA

    def most(self, resource: str) -> Fraction | None:
        """The amount of the resource on the largest NUMA node; None if unknown."""
        return max((one[resource] for one in self.numa if resource in one), default=None)


def kubelets(pod: Template, facts: Facts) -> tuple[KubeletVersion, ...]:
    """The kubelets of all nodes that may run the pod; none if one of them is unknown."""
    usual = _usual(facts)
    if facts.nodes is None:
        return (usual,) if usual is not None else ()
    nodes, known = gpu_nodes_for(pod, facts), _known(facts)
    found = [known.get(node.name, usual) for node in nodes]
    return tuple(one for one in found if one is not None) if None not in found else ()


@lru_cache(maxsize=1)
def _usual(facts: Facts) -> KubeletVersion | None:
    """The kubelet of the KubeletConfigurations, if all are the same."""
    found = {_of_file(whole) for whole in facts.of_kind("KubeletConfiguration")}
    return found.pop() if len(found) == 1 else None


def _of_file(whole: Field) -> KubeletVersion:
    """The defaults are the kubelet's own."""
    return KubeletVersion(
        whole.at("topologyManagerPolicy").text or "none",
        whole.at("topologyManagerScope").text == "pod",
        whole.at("cpuManagerPolicy").text or "none",
        whole.at("memoryManagerPolicy").text or "None",
        (),
    )


@lru_cache(maxsize=1)
def _known(facts: Facts) -> Mapping[str, KubeletVersion]:
    """The kubelets by node. A GPUNode takes precedence over a NodeResourceTopology."""
    found: dict[str, KubeletVersion] = {}
    for kind, read in (("NodeResourceTopology", _of_zones), ("GPUNode", _of_gpu_node)):
        for whole in facts.of_kind(kind):
            kubelet = read(whole)
            if kubelet is not None:
                found[whole.at("metadata", "name").text] = kubelet
    return found


def _of_gpu_node(whole: Field) -> KubeletVersion | None:
    settings = whole.at("status", "kubelet")
    if not settings:
        return None
    reserved = set(_cpus(settings.at("reservedSystemCPUs").text))
    numa: dict[int, Counter[str]] = {}
    for one in settings.at("numaNodes").each():
        resources = numa.setdefault(one.at("id").whole or 0, Counter())
        for memory in one.at("memory").each():
            free_bytes = (memory.at("totalBytes").whole or 0) - (memory.at("reservedBytes").whole or 0)
            resources[memory.at("type").text] += free_bytes
    for group in settings.at("cpus").each():
        cpus = [cpu for core in group.at("cores").each() for cpu in _cpus(core.text)]
        numa.setdefault(group.at("numaNode").whole or 0, Counter())["cpu"] += len(set(cpus) - reserved)
    for plugin in settings.at("devices").each():
        for device in plugin.at("devices").each():
            for near in device.at("numaNodes").each():
                numa.setdefault(near.whole or 0, Counter())[plugin.at("resource").text] += 1
    return KubeletVersion(
        settings.at("topologyManagerPolicy").text,
        settings.at("topologyManagerScope").text == "pod",
        settings.at("cpuManagerPolicy").text,
        settings.at("memoryManagerPolicy").text,
        tuple({name: Fraction(value) for name, value in one.items()} for one in numa.values()),
    )


def _of_zones(whole: Field) -> KubeletVersion:
    attributes = {one.at("name").text: one.at("value").text for one in whole.at("attributes").each()}
    numa = []
    for zone in whole.at("zones").each():
        if zone.at("type").text == "Node":
            amounts = ((one.at("name").text, amount(one.at("allocatable"))) for one in zone.at("resources").each())
            numa.append({name: value for name, value in amounts if value is not None})
    policy, pod_scope = attributes.get("topologyManagerPolicy", ""), attributes.get("topologyManagerScope") == "pod"
    if not policy and whole.at("topologyPolicies", 0).text.startswith("SingleNUMANode"):
        policy, pod_scope = SINGLE_NUMA, whole.at("topologyPolicies", 0).text.endswith("PodLevel")
    return KubeletVersion(policy, pod_scope, "", "", tuple(numa))


def _cpus(text: str) -> list[int]:
    """The CPUs of a list such as `0-3,8`; none if the text is invalid."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.extend(range(int(first), int(last or first) + 1))
    return found
