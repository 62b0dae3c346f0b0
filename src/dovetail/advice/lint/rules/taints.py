# SPDX-License-Identifier: Apache-2.0
"""The rule about taints of GPU nodes: GPU pods that do not tolerate them, and pods without GPUs that do.

Rules
- A GPU taint has GPUs in its key or value. Other taints (`dedicated=team-a`) may be meant to keep the pod away, and
  those of Kubernetes itself are temporary: neither are reported.
- The tolerations that GKE's admission plugin adds to a pod count.
- Pods for the node itself (DaemonSets, system priority, devices of the host, NVIDIA's runtime) may tolerate GPU taints.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from dovetail.advice.lint.edits import append
from dovetail.advice.lint.pods import Template, templates_of
from dovetail.advice.lint.rule import Facts, KnownNode, Rule, RuleMatch, Severity
from dovetail.advice.lint.selection import SYSTEM_NAMESPACES, asked, hard_taints, suited, tolerations
from dovetail.core.labels import tolerates
from dovetail.core.model import GPU, Taint, Toleration

_OF_GPUS = re.compile(r"(?i)(.*[^a-z])?(gpus?|nvidia|accelerators?)([^a-z].*)?")
_OF_KUBERNETES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_GKE = "cloud.google.com/gke-"
_NEAR_GPUS = re.compile(r"(?i)nvidia|gpu|accelerator|cuda|\bmig\b")


def _taints(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    if pod.partial:
        return
    if not pod.uses_gpu:
        yield from _tolerated_in_vain(pod, facts)
    elif facts.nodes:
        yield from _not_tolerated(pod, facts)


def _not_tolerated(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    wanted = asked(pod)
    nodes = suited(pod, facts)
    hindering = [_hindering(pod, node, tuple(wanted)) for node in nodes]
    nearest = Counter(taints for taints in hindering if all(map(_of_gpus, taints)))
    if not wanted or not hindering or () in hindering or not nearest:
        return
    taints = nearest.most_common(1)[0][0]
    field = pod.spec.at("tolerations")
    names = " and ".join(f"{t.key}{f'={t.value}' if t.value else ''}:{t.effect}" for t in taints)
    missing = taints if isinstance(field.value, list | None) else ()
    adds = tuple(append(field, {"key": t.key, "operator": "Exists", "effect": t.effect}) for t in missing)
    # The admission plugin ExtendedResourceToleration (off by default) tolerates taints with the resource name as key.
    guess = all(t.key in wanted and t.effect == "NoSchedule" for t in taints)
    message = f"the GPU nodes have the taint {names}, which the pod does not tolerate: add a toleration"
    yield RuleMatch(field, message, adds, guess=guess)


def _hindering(pod: Template, node: KnownNode, resources: tuple[str, ...]) -> tuple[Taint, ...]:
    """The taints of the node that keep the pod away, except those of Kubernetes itself."""
    tolerated = list(tolerations(pod))
    if any(label.startswith(_GKE) for label in node.labels):
        tolerated += [Toleration(name, "Exists", "", "NoSchedule") for name in resources]
    return tuple(
        taint
        for taint in hard_taints(node)
        if not taint.key.startswith(_OF_KUBERNETES) and not any(tolerates(one, taint) for one in tolerated)
    )


def _of_gpus(taint: Taint) -> bool:
    return any(_OF_GPUS.fullmatch(word) for word in (taint.key, taint.value))


def _tolerated_in_vain(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    if _for_the_node(pod) or any(other.uses_gpu for other in templates_of(pod.whole)):
        return
    nodes = facts.nodes or ()
    taints = {taint for node in nodes for taint in hard_taints(node) if _of_gpus(taint)}
    elsewhere = any(not _hindering(pod, node, ()) and not any(map(_of_gpus, hard_taints(node))) for node in nodes)
    for field, one in zip(pod.spec.at("tolerations").each(), tolerations(pod), strict=True):
        of_gpus = any(one.key == taint.key and tolerates(one, taint) for taint in taints)
        if (of_gpus and elsewhere) if nodes else one.key == GPU:
            message = f"the pod requests no GPU, and tolerates the taint {one.key} of GPU nodes: remove the toleration"
            yield RuleMatch(field, message, guess=not nodes)


def _for_the_node(pod: Template) -> bool:
    """Whether a field shows that the pod belongs on GPU nodes, or on every node."""
    spec, meta = pod.spec, (pod.meta, pod.whole.at("metadata"))
    selected = (spec.at("nodeSelector"), spec.at("affinity", "nodeAffinity"), spec.at("runtimeClassName"))
    containers = [
        part for one in pod.all_containers for part in (one.at("resources"), one.at("env"), one.at("image"))
    ]  # fmt: skip
    return (
        pod.group_kind[1] == "DaemonSet"
        or bool(spec.at("nodeName"))
        or spec.at("priorityClassName").text.startswith("system-")
        or any(one.at("namespace").text in SYSTEM_NAMESPACES for one in meta)
        or any(volume.at("hostPath") for volume in spec.at("volumes").each())
        or any(one.at("securityContext", "privileged").value is True for one in pod.all_containers)
        or any(_NEAR_GPUS.search(str(field.value)) for field in (*selected, *containers) if field)
    )


_POD = """\
apiVersion: v1
kind: Pod
metadata: {name: train, labels: {team: vision}}
spec:
  restartPolicy: Never
  priorityClassName: batch
  %scontainers:
  - name: train
    image: registry.example.com/train:1.4
    resources: {limits: {nvidia.com/gpu: 1}}
---
apiVersion: v1
kind: Node
metadata: {name: gpu-1}
spec: {taints: [{key: sku, value: gpu, effect: NoSchedule}]}
status: {allocatable: {nvidia.com/gpu: 8}}
"""

RULES = (
    Rule(
        id="G26",
        level=Severity.WARNING,
        title="A GPU pod does not tolerate the taint of the GPU nodes, or a pod without GPUs does",
        effect=(
            "The GPU pod stays Pending: `0/4 nodes are available: 4 node(s) had untolerated taint(s)`. The "
            "other pod uses CPU and memory of GPU nodes, so that GPUs stay idle."
        ),
        bad=_POD % "",
        good=_POD % "tolerations:\n  - {key: sku, operator: Equal, value: gpu, effect: NoSchedule}\n  ",
        template=_taints,
        fixable=True,
        needs_nodes=True,
        source="https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/",
    ),
)
