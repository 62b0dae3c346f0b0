# SPDX-License-Identifier: Apache-2.0
"""Rules about devices that do not work together as the job expects: shared GPUs, MIG instances, network cards.

The configuration of NVIDIA's device plugin states whether a pod may request more than one replica of a shared GPU. It
is looked up in the linted files, as a file or in a ConfigMap; without it the finding is a guess. For these rules a job
spans nodes if several pods work together and each requests all GPUs of every node that it fits on. The program of a
container is known only from its command and arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import yaml

from dovetail.advice.lint.field import Field
from dovetail.advice.lint.peers import peers_of
from dovetail.advice.lint.pods import Template, amounts_of, count, env_of, gpus_of, is_gpu, words_of
from dovetail.advice.lint.rule import Facts, KnownNode, Rule, RuleMatch, Severity
from dovetail.advice.lint.selection import allows, offers
from dovetail.core.bounded_cache import remembered
from dovetail.core.model import GPU
from dovetail.kube.yaml_text import read_yaml

_SHARED = ".shared"
_MIG = "nvidia.com/mig-"
_COLLECTIVE = re.compile(
    r"--nproc[-_]per[-_]node[ =]+(?!1\b)\w+|--tensor-parallel-size[ =]+(?!1\b)\d+|--multi[-_]gpu\b|"
    r"(?<!\S)(mpirun|mpiexec|horovodrun|all_reduce_perf|deepspeed)(?!\S)"
)
_RDMA = re.compile(r"rdma/.+|vpc\.amazonaws\.com/efa|nvidia\.com/hostdev\w*|[\w.-]+/[\w.-]*(rdma|infiniband)[\w.-]*")
_CHOOSE = ("NCCL_IB_HCA", "NVSHMEM_HCA_LIST")
_TRANSPORTS = frozenset({("NCCL_NET", "IB"), ("FI_PROVIDER", "efa"), ("NCCL_NET_PLUGIN", "aws-ofi")})
"""Variables that choose cards, and those of which one value does."""
_OF_CARDS = ("NCCL_", "NVSHMEM_", "FI_", "NVIDIA_MOFED")
_IB_DISABLED, _MOFED = "NCCL_IB_DISABLE", "NVIDIA_MOFED"
"""The second lets NVIDIA's container runtime mount the cards: nvidia-container-toolkit, internal/modifier/gated.go."""
_HOST_RDMA = "rdma/"
"""The prefix of the shared RDMA device plugin. Its containers register memory with the card themselves."""


def _shared(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    asked = [
        (name, amount)
        for container in pod.all_containers
        for name, amount in gpus_of(container)
        if name.endswith(_SHARED) and (count(amount) or 0) > 1
    ]
    fails = _refusals(facts) if asked else ()
    if any(fails) or not fails:
        for name, amount in asked:
            message = f"{name}: {amount.value} replicas give no more of a GPU than one: write 1"
            yield RuleMatch(amount, message, guess=not fails or not all(fails))


@lru_cache(maxsize=1)
def _refusals(facts: Facts) -> tuple[bool, ...]:
    return tuple(one for whole in facts.objects for one in _configured(whole))


def _configured(whole: Field) -> Iterator[bool]:
    """For each configuration of the device plugin that shares GPUs, whether it rejects requests for more than one."""
    texts = [text.text for _, text in whole.at("data").entries()] if whole.at("kind").text == "ConfigMap" else []
    for config in (whole, *(Field(value) for value in map(_read, texts))):
        sharing = config.at("sharing")
        if sharing.at("mps", "resources"):
            yield True
        elif sharing.at("timeSlicing", "resources"):
            yield sharing.at("timeSlicing", "failRequestsGreaterThanOne").value is True


def _read(text: str) -> Any:
    if "sharing" not in text:
        return None
    try:
        return read_yaml(text)
    except yaml.YAMLError:
        return None


def _mig_collective(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    for container in pod.containers:
        instances = [amount for name, amount in gpus_of(container) if name.startswith(_MIG)]
        words = words_of(container)
        collective = _COLLECTIVE.search(words)
        if collective and sum(count(amount) or 0 for amount in instances) > 1:
            message = f"`{collective[0]}` needs peer-to-peer access, which MIG devices do not have: request {GPU}"
            yield RuleMatch(instances[0], message)


def _rdma_of(pod: Template) -> Iterator[tuple[Field, str, Field]]:
    """(container, resource, amount) of each RDMA resource of the pod."""
    for container in pod.containers:
        for side, name, amount in amounts_of(container):
            if "/" in name and _is_rdma(name) and (side == "limits" or not container.at("resources", "limits", name)):
                yield container, name, amount


@remembered(64)
def _is_rdma(resource: str) -> bool:
    return _RDMA.fullmatch(resource) is not None


def _rdma(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    if not pod.uses_gpu:
        return
    asked = list(_rdma_of(pod))
    offered = sorted({name for node in facts.nodes or () for name in node.allocatable if _is_rdma(name)})
    for container, name, amount in asked:
        security = container.at("securityContext")
        added = {one.text for one in security.at("capabilities", "add").each()}
        if offered and name not in offered:
            yield RuleMatch(amount, f"no node offers {name}; the nodes offer {', '.join(offered)}")
        elif (
            name.startswith(_HOST_RDMA)
            and not (pod.partial or security.at("privileged").value)
            and not added & {"IPC_LOCK", "ALL"}
        ):
            message = (
                f"{name} needs the capability IPC_LOCK: add it, unless the container runtime raises RLIMIT_MEMLOCK"
            )
            yield RuleMatch(amount, message, guess=True)
    if not asked and facts.nodes and peers_of(pod) > 1:
        yield from _left_out(pod, facts)
    if not asked:
        for container in pod.gpu_containers:
            chosen = _chosen(container)
            if chosen is not None and not _has_cards(pod):
                name, value = chosen
                message = (
                    f"{name} is {value.text}, and the pod requests no RDMA device: add the one that the nodes offer to "
                    "the limits, such as rdma/hca_shared_devices_a or vpc.amazonaws.com/efa"
                )
                yield RuleMatch(value, message, guess=True)


def _has_cards(pod: Template) -> bool:
    """Whether something else may give the pod its network cards: a privileged container, a directory of the node, a
    claim, another device, or a webhook that reads the pod's networks."""
    annotations = [key for meta in (pod.meta, pod.whole.at("metadata")) for key, _ in meta.at("annotations").entries()]
    return (
        pod.partial
        or bool(pod.spec.at("resourceClaims"))
        or any("network" in key or "nic" in key.partition("/")[2] for key in annotations)
        or any(volume.at("hostPath") for volume in pod.spec.at("volumes").each())
        or any(
            container.at("securityContext", "privileged").value
            or any("/" in name and not is_gpu(name) for _, name, _ in amounts_of(container))
            for container in pod.containers
        )
    )


def _chosen(container: Field) -> tuple[str, Field] | None:
    """The first variable that chooses cards, and its value."""
    entries = [(name, entry) for name, entry in env_of(container) if name.startswith(_OF_CARDS)]
    off = any(name == _IB_DISABLED and entry.at("value").text not in ("", "0") for name, entry in entries)
    if off or any(name == _MOFED for name, _ in entries):
        return None
    for name, entry in entries:
        value = entry.at("value")
        if (name in _CHOOSE and value.text) or (name, value.text) in _TRANSPORTS:
            return name, value
    return None


def _left_out(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    """A match if every node that the pod may fill offers the same RDMA resource."""
    if any(one.at("securityContext", "privileged").value for one in pod.containers) or not pod.gpu_containers:
        return
    if pod.spec.at("hostNetwork").value or pod.spec.at("affinity", "nodeAffinity") or pod.spec.at("resourceClaims"):
        return
    nodes = [node for node in facts.nodes or () if _fits(pod, node)]
    whole = [node for node in nodes if offers(node, GPU) == pod.gpus]
    common = [
        name
        for name in (nodes[0].allocatable if nodes else ())
        if _is_rdma(name) and all((count(Field(node.allocatable.get(name))) or 0) > 0 for node in nodes)
    ]
    if common and len(whole) == len(nodes):
        container = pod.gpu_containers[0]
        message = f"the job spans nodes that all offer {common[0]}, and does not request it: add it to the limits"
        yield RuleMatch(container.at("resources", "limits"), message)


def _fits(pod: Template, node: KnownNode) -> bool:
    return pod.gpus > 1 and allows(pod, node) and offers(node, GPU) >= pod.gpus


_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  containers:
  - name: train
    image: registry.example.com/train:1.4
    args: [{0}]
    resources: {{limits: {{{1}}}}}
    volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
  volumes: [{{name: shm, emptyDir: {{medium: Memory, sizeLimit: 8Gi}}}}]
"""
_NODE_AND_JOB = """\
apiVersion: v1
kind: Node
metadata: {{name: gpu-1}}
status: {{allocatable: {{nvidia.com/gpu: 8, rdma/hca_shared_devices_a: 63}}}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  parallelism: 4
  completions: 4
  completionMode: Indexed
  backoffLimit: 4
  template:
    spec:
      restartPolicy: Never
      priorityClassName: batch
      containers:
      - name: train
        image: registry.example.com/train:1.4
        securityContext: {{capabilities: {{add: [IPC_LOCK]}}}}
        resources: {{limits: {{nvidia.com/gpu: 8{0}}}}}
        volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
      volumes: [{{name: shm, emptyDir: {{medium: Memory, sizeLimit: 8Gi}}}}]
"""

RULES = (
    Rule(
        id="G16",
        level=Severity.ERROR,
        title="The pod requests more than one replica of a shared GPU",
        effect=(
            "With failRequestsGreaterThanOne, and with MPS always, the pod fails with `UnexpectedAdmissionError`: "
            "`maximum request size for shared resources is 1; found 2`. Otherwise "
            "NVIDIA's plugin may allocate replicas of the same GPU."
        ),
        bad=_POD.format("", "nvidia.com/gpu.shared: 2"),
        good=_POD.format("", "nvidia.com/gpu.shared: 1"),
        template=_shared,
        source="https://github.com/NVIDIA/k8s-device-plugin: internal/rm/rm.go, ValidateRequest",
    ),
    Rule(
        id="G27",
        level=Severity.WARNING,
        title="A collective runs on several MIG devices",
        effect=(
            "MIG devices have no peer-to-peer access, and a process sees one of them alone: NCCL fails or goes through "
            "the host's memory."
        ),
        bad=_POD.format("--nproc-per-node=2", "nvidia.com/mig-3g.40gb: 2"),
        good=_POD.format("--nproc-per-node=2", "nvidia.com/gpu: 2"),
        template=_mig_collective,
        source="https://docs.nvidia.com/datacenter/tesla/mig-user-guide/: application considerations",
    ),
    Rule(
        id="G39",
        level=Severity.WARNING,
        title="A job on several nodes does not request RDMA, or cannot use it",
        effect=(
            "NCCL falls back to TCP, or fails with `ibv_reg_mr failed: Cannot allocate memory`. If no node offers the "
            "resource, the pod stays Pending."
        ),
        bad=_NODE_AND_JOB.format(""),
        good=_NODE_AND_JOB.format(", rdma/hca_shared_devices_a: 1"),
        template=_rdma,
        needs_nodes=True,
        source="https://github.com/Mellanox/k8s-rdma-shared-dev-plugin: example/test-hca-pod.yaml",
    ),
)
