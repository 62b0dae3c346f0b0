# SPDX-License-Identifier: Apache-2.0
"""Rules about the kubelet's handling of a pod: exclusive CPUs, NUMA nodes, shared memory, and replicas of GPUs.

CPU alignment (G17, G18): a pod needs CPUs close to its GPUs if it requests whole GPUs and either states so (annotations
of CRI-O for exclusive CPUs, Volcano's NUMA policy, the node label `cpumanager`), or the kubelet of each node that may
run it rejects pods that are not aligned (`kubelets.KubeletVersion.aligns`). All other pods may have any QoS class. Pods
with pod-level resources are not checked.
Shared memory (G20): several whole GPUs in one container of a framework mean several processes that communicate; one
GPU per pod of a distributed job does not, as its processes are on other nodes. KubeRay mounts /dev/shm itself.
Replicas (G14): only Karpenter is recognised, by the label of its nodes; Cluster Autoscaler uses existing nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from dovetail.advice.lint.edits import Edit, append, put
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.kubelets import SINGLE_NUMA, KubeletVersion, kubelets
from dovetail.advice.lint.pods import Template, amount, cards_of, count, gpus_of, mounts_of, runs_framework, same
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.lint.selection import gpu_nodes_for
from dovetail.core.model import GPU

_CPU, _MEMORY = "cpu", "memory"
_COMPUTE = (_CPU, _MEMORY)
_CRIO = ("cpu-load-balancing.crio.io", "cpu-quota.crio.io", "irq-load-balancing.crio.io")
_VOLCANO_NUMA = "volcano.sh/numa-topology-policy"
_CPU_MANAGER = "cpumanager"
_CRIO_SHM = "io.kubernetes.cri-o.ShmSize"
_SHM = "/dev/shm"
_NO_VOLUME = (
    "The API server refuses the pods, unless a webhook adds the volume: `spec.containers[0].volumeMounts[0].name: Not "
    "found`."
)
_SHM_VOLUME = "dshm"
_POOLS = ("karpenter.sh/nodepool", "karpenter.sh/provisioner-name")
_CARDS = "nvidia.com/gpu.count"
_GIB = 2**30
_DEFAULT_SHM = 64 * 2**20


def _replicas_across_containers(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    asking = [found for container in pod.containers for name, found in gpus_of(container) if name == GPU]
    if len(asking) < 2 or not facts.nodes:
        return
    wanted = sum(count(one) or 0 for one in asking)
    nodes = gpu_nodes_for(pod, facts)
    if not all(any(label in node.labels for label in _POOLS) for node in nodes):
        return
    cards = [int(node.labels[_CARDS]) for node in nodes if node.labels.get(_CARDS, "").isdecimal()]
    if not cards or len(cards) < len(nodes) or wanted <= max(cards):
        return
    if any(wanted <= (amount(Field(node.allocatable.get(GPU))) or 0) for node in nodes):
        message = (
            f"{len(asking)} containers request {wanted} {GPU} together, and the nodes have replicas of at most "
            f"{max(cards)} cards: use one container, or one pod for each"
        )
        yield RuleMatch(asking[-1], message)


def _is_aligned(pod: Template, facts: Facts) -> bool:
    """Whether the pod needs CPUs close to its GPUs: see the rules above."""
    if pod.spec.at("resources") or not any(name == GPU for one in pod.gpu_containers for name, _ in gpus_of(one)):
        return False
    annotations = pod.meta.at("annotations")
    requested = pod.spec.at("nodeSelector", _CPU_MANAGER).text == "true" or (
        bool(annotations)
        and (
            any(annotations.at(name).text == "disable" for name in _CRIO)
            or annotations.at(_VOLCANO_NUMA).text not in ("", "none")
        )
    )
    found = kubelets(pod, facts)
    return requested or (bool(found) and all(one.aligns for one in found))


def _request(container: Field, resource: str) -> Field:
    """The effective request of the container: without a request, the API server copies the limit."""
    request = container.at("resources", "requests", resource)
    return request if request else container.at("resources", "limits", resource)


def _breaks_guarantee(container: Field) -> Iterator[str]:
    """The resources, of CPU and memory, that prevent QoS class Guaranteed."""
    for resource in _COMPUTE:
        written, request = container.at("resources", "limits", resource), _request(container, resource)
        limit = amount(written)
        if not limit or (not same(request, written) and amount(request) != limit):
            yield resource


def _not_guaranteed(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    if not _is_aligned(pod, facts):
        return
    broken = [(container, list(_breaks_guarantee(container))) for container in pod.all_containers]
    broken = [(container, resources) for container, resources in broken if resources]
    if not broken:
        return
    container, resources = broken[0]
    pairs = [
        (one.at("resources", "requests", name), one.at("resources", "limits", name))
        for one, names in broken
        for name in names
    ]
    # No edits without a limit, as the right amount is unknown.
    edits = [put(request, limit.value) for request, limit in pairs] if all(amount(limit) for _, limit in pairs) else []
    others = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
    message = (
        f"container {container.at('name').text}{others}: {' and '.join(resources)} have no equal request and limit: "
        "the pod is not Guaranteed; set equal limits and requests for every container, also init containers"
    )
    yield RuleMatch(container.at("resources"), message, tuple(edits))


def _part_of_a_cpu(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    limits = [(one, one.at("resources", "limits", _CPU)) for one in pod.gpu_containers]
    parts = [(one, limit, cpus) for one, limit in limits if (cpus := amount(limit)) and cpus.denominator > 1]
    if not parts or not _is_aligned(pod, facts):
        return
    if any(any(_breaks_guarantee(container)) for container in pod.all_containers):
        return
    for container, limit, cpus in parts:
        more = math.ceil(cpus)
        nearest = f"{more - 1} or {more}" if more > 1 else "1"
        message = f"{limit.value} CPUs are not a whole number, so none is exclusive: write {nearest}"
        request = container.at("resources", "requests", _CPU)
        edits = (put(limit, more), *([put(request, more)] if request else []))
        yield RuleMatch(limit, message, edits if _fits_beside(pod, facts, more - cpus) else ())


def _fits_beside(pod: Template, facts: Facts, more_cpus: Fraction) -> bool:
    """Whether the nodes have CPUs for as many of these pods as GPUs allow, if each pod takes `more_cpus` more."""
    cpus = sum((amount(_request(container, _CPU)) or Fraction(0) for container in pod.containers), more_cpus)
    nodes = gpu_nodes_for(pod, facts)
    for node in nodes:
        free, gpus = (amount(Field(node.allocatable.get(name))) or 0 for name in (_CPU, GPU))
        if cpus * (gpus // max(pod.gpus, 1)) > free:
            return False
    return bool(nodes)


def _larger_than_numa(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    found = kubelets(pod, facts)
    if not found or not all(one.topology_policy == SINGLE_NUMA for one in found) or pod.spec.at("resources"):
        return
    guaranteed = not any(any(_breaks_guarantee(container)) for container in pod.all_containers)
    for group in [pod.containers] if all(one.pod_scope for one in found) else [(one,) for one in pod.containers]:
        for resource in (_CPU, _MEMORY, GPU):
            fields = [_request(one, resource) for one in group if _request(one, resource)]
            amounts = [amount(field) or Fraction(0) for field in fields]
            if resource == _CPU:
                amounts = [one for one in amounts if one.denominator == 1]
            wanted = sum(amounts, Fraction(0))
            if (resource != GPU and not guaranteed) or not all(_refuses(one, resource, wanted) for one in found):
                continue
            most = max(one.most(resource) or Fraction(0) for one in found)
            limit = _shown(resource, most)
            message = (
                f"{_shown(resource, wanted)} of {resource}: one NUMA node has at most {limit}, and the kubelet "
                f"allocates all of a {'pod' if len(group) > 1 else 'container'} on one node: write {limit} or less"
            )
            guess = resource == _CPU and not all(one.cpu_policy for one in found)
            yield RuleMatch(fields[0], message, guess=guess)


def _shown(resource: str, value: Fraction) -> str:
    return f"{float(value / _GIB):.4g}Gi" if resource == _MEMORY else f"{float(value):.6g}"


def _refuses(kubelet: KubeletVersion, resource: str, wanted: Fraction) -> bool:
    """Whether no NUMA node has this amount. Memory counts only if the kubelet's Memory Manager policy is Static."""
    if resource == _CPU and kubelet.cpu_policy not in ("static", ""):
        return False
    if resource == _MEMORY and kubelet.memory_policy != "Static":
        return False
    most = kubelet.most(resource)
    return most is not None and wanted > most


def _shared_memory(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    if pod.group_kind[0] == "ray.io" or pod.spec.at("hostIPC").value is True or pod.meta.at("annotations", _CRIO_SHM):
        return
    for container in pod.gpu_containers:
        gpus = cards_of(container)
        mounted = [(name, one) for name, one in mounts_of(container) if _path(one) in (_SHM, "/dev")]
        if not mounted:
            if gpus > 1 and runs_framework(container) and not pod.partial:
                message = f"{gpus} GPUs, and /dev/shm has only 64 MiB: mount a memory volume there"
                yield RuleMatch(container, message, _with_shm(pod, container, gpus))
            continue
        name, mount = mounted[0]
        if _path(mount) != _SHM:
            continue
        volume = pod.volumes.get(name)
        if volume is not None:
            yield from _volume(pod, container, volume.at("emptyDir")) if volume.at("emptyDir") else ()
        elif container.at("image") and not pod.partial and not pod.whole.at("spec", "volumeClaimTemplates"):
            message = f"the pod has no volume {name}: add a memory volume of this name, or remove the mount"
            yield RuleMatch(mount.at("name"), message, guess=True, effect=_NO_VOLUME)


def _path(mount: Field) -> str:
    return mount.at("mountPath").text.rstrip("/")


def _volume(pod: Template, container: Field, empty_dir: Field) -> Iterator[RuleMatch]:
    """The problems of the volume at /dev/shm."""
    limit = container.at("resources", "limits", _MEMORY)
    memory = amount(limit) or amount(pod.spec.at("resources", "limits", _MEMORY))
    size = amount(empty_dir.at("sizeLimit"))
    medium = empty_dir.at("medium").text
    if not medium:
        yield RuleMatch(empty_dir, "/dev/shm is a directory on the node's disk: write medium: Memory")
    elif medium == "Memory" and not memory and not size:
        yield RuleMatch(empty_dir, "/dev/shm may use all memory of the node: write a sizeLimit, or a memory limit")
    elif size and cards_of(container) > 1 and size <= _DEFAULT_SHM and runs_framework(container):
        message = f"sizeLimit {empty_dir.at('sizeLimit').value} is no more than a container has without the volume"
        yield RuleMatch(empty_dir.at("sizeLimit"), f"{message}: write 1Gi for each GPU at least")
    elif memory and size and size > memory:
        message = f"sizeLimit {empty_dir.at('sizeLimit').value} exceeds the memory of the container"
        yield RuleMatch(empty_dir.at("sizeLimit"), f"{message}: write {limit.value or 'that of the pod'} or less")


def _with_shm(pod: Template, container: Field, gpus: int) -> tuple[Edit, ...]:
    """The edits that add a memory volume at /dev/shm, as large as the container's memory limit. Without a limit: 1 GiB
    per GPU, as NCCL's documentation starts containers with --shm-size=1g."""
    names = [volume.at("name").text for volume in pod.spec.at("volumes").each()]
    name = next(
        one for at in range(len(names) + 1) if (one := f"{_SHM_VOLUME}-{at}" if at else _SHM_VOLUME) not in names
    )
    bounded = container.at("resources", "limits", _MEMORY)
    empty_dir = {"medium": "Memory"} | ({} if bounded else {"sizeLimit": f"{gpus}Gi"})
    return (
        append(container.at("volumeMounts"), {"name": name, "mountPath": _SHM}),
        append(pod.spec.at("volumes"), {"name": name, "emptyDir": empty_dir}),
    )


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: train, labels: {{team: vision}}{0}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  containers:
  - name: train
    image: registry.example.com/train:1.4
    resources: {1}
{2}"""
_ALIGNED = ", annotations: {volcano.sh/numa-topology-policy: single-numa-node}"
_NODE = """\
---
apiVersion: v1
kind: Node
metadata: {{name: gpu-1{0}}}
status: {{allocatable: {{cpu: '64', memory: 512Gi, nvidia.com/gpu: '4'}}}}
"""
_SLICED = _NODE.format(", labels: {karpenter.sh/nodepool: l4, nvidia.com/gpu.count: '1', nvidia.com/gpu.replicas: '4'}")
_TOPOLOGY = """\
---
apiVersion: dovetail.dev/v1alpha1
kind: GPUNode
metadata: {name: gpu-1}
status:
  kubelet:
    version: v1.37.1
    topologyManagerPolicy: single-numa-node
    cpuManagerPolicy: static
    memoryManagerPolicy: None
    reservedSystemCPUs: "0,4"
    numaNodes: [{id: 0}, {id: 1}]
    cpus:
    - {uncore: 0, socket: 0, numaNode: 0, cores: ["0,4", "1,5", "2,6", "3,7"]}
    - {uncore: 1, socket: 1, numaNode: 1, cores: ["8,12", "9,13", "10,14", "11,15"]}
"""
_MOUNT = "    volumeMounts: [{name: shm, mountPath: /dev/shm}]\n  volumes: [{name: shm, emptyDir: {medium: Memory}}]\n"

RULES = (
    Rule(
        id="G14",
        level=Severity.WARNING,
        title="Containers of one pod request more GPUs together than the nodes have cards",
        effect=(
            "Karpenter counts the cards of a machine, not the replicas of time-slicing: it starts a larger machine, or "
            "none (`no instance type has enough resources`), although the pod fits existing nodes."
        ),
        bad=_POD.format(
            "",
            "{limits: {nvidia.com/gpu: 1}}",
            "  - name: video\n    image: registry.example.com/video:2\n    resources: {limits: {nvidia.com/gpu: 1}}\n",
        )
        + _SLICED,
        good=_POD.format("", "{limits: {nvidia.com/gpu: 1}}", "") + _SLICED,
        template=_replicas_across_containers,
        needs_nodes=True,
        source="https://github.com/kubernetes-sigs/karpenter/issues/2960",
    ),
    Rule(
        id="G17",
        level=Severity.WARNING,
        title="The pod requests CPUs close to its GPUs, and is not Guaranteed",
        effect=(
            "The kubelet aligns CPUs and memory only for Guaranteed pods: this pod runs on the shared CPUs of all "
            "sockets."
        ),
        bad=_POD.format(
            _ALIGNED, "{limits: {nvidia.com/gpu: 1, cpu: 8, memory: 64Gi}, requests: {cpu: 4, memory: 64Gi}}", ""
        ),
        good=_POD.format(_ALIGNED, "{limits: {nvidia.com/gpu: 1, cpu: 8, memory: 64Gi}}", ""),
        template=_not_guaranteed,
        fixable=True,
        source="https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/; "
        "https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/",
    ),
    Rule(
        id="G18",
        level=Severity.WARNING,
        title="The pod requests CPUs close to its GPUs, and not a whole number of them",
        effect=(
            "The CPU Manager allocates exclusive CPUs only to containers with a whole number of CPUs: this container "
            "runs on the shared CPUs."
        ),
        bad=_POD.format(_ALIGNED, "{limits: {nvidia.com/gpu: 1, cpu: 7500m, memory: 64Gi}}", "") + _NODE.format(""),
        good=_POD.format(_ALIGNED, "{limits: {nvidia.com/gpu: 1, cpu: 8000m, memory: 64Gi}}", "") + _NODE.format(""),
        template=_part_of_a_cpu,
        fixable=True,
        source="https://kubernetes.io/docs/tasks/administer-cluster/cpu-management-policies/#static-policy",
    ),
    Rule(
        id="G19",
        level=Severity.WARNING,
        title="The pod requests more than one NUMA node has, and the kubelet requires one NUMA node",
        effect=(
            "The kubelet refuses the pod on each node: `TopologyAffinityError`, `Resources cannot be allocated with "
            "Topology locality`. The pod is Failed, and its controller creates the next one."
        ),
        bad=_POD.format("", "{limits: {nvidia.com/gpu: 1, cpu: 12, memory: 64Gi}}", "") + _NODE.format("") + _TOPOLOGY,
        good=_POD.format("", "{limits: {nvidia.com/gpu: 1, cpu: 8, memory: 64Gi}}", "") + _NODE.format("") + _TOPOLOGY,
        template=_larger_than_numa,
        needs_nodes=True,
        source="https://github.com/kubernetes/kubernetes: pkg/kubelet/cm/topologymanager, single-numa-node",
    ),
    Rule(
        id="G20",
        level=Severity.WARNING,
        title="Shared memory is too small, on disk, unlimited, or a volume that is missing",
        effect=(
            "The default of the container runtime is 64 MiB: NCCL fails with `Error while creating shared memory "
            "segment`, a DataLoader of PyTorch with `Bus error`. Unlimited files there use the memory of the node."
        ),
        bad=_POD.format("", "{limits: {nvidia.com/gpu: 8, memory: 256Gi}}", ""),
        good=_POD.format("", "{limits: {nvidia.com/gpu: 8, memory: 256Gi}}", _MOUNT),
        template=_shared_memory,
        fixable=True,
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html; "
        "https://kubernetes.io/docs/concepts/storage/volumes/#emptydir",
    ),
)
