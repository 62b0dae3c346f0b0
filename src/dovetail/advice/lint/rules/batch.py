# SPDX-License-Identifier: Apache-2.0
"""Rules about work that runs to an end: what ends it before its time, and what it needs to run on several nodes.

They speak of the kinds of `BATCH` with GPUs alone, and of Pods that are never restarted.
- G30 where the pod chooses, or its nodes are known to be, nodes that an autoscaler of the table takes away; not of
  pods that say that they run less than an hour.
- G31 where every interruption counts, and the Job has not said how many it stands; or where it vanishes when it ends.
- G39 of jobs of several pods that each take all GPUs of a node: others may be anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dovetail.advice.lint.edits import append
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template, count
from dovetail.advice.lint.rule import Facts, Found, Level, Rule
from dovetail.core.model import GPU
from dovetail.core.quantities import QuantityError, units
from dovetail.kube.annotations import duration_ms

BATCH = {
    ("batch", "Job"), ("batch", "CronJob"), ("jobset.x-k8s.io", "JobSet"), ("ray.io", "RayJob"),
    ("batch.volcano.sh", "Job"), ("trainer.kubeflow.org", "TrainingRuntime"),
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"),
    *(("kubeflow.org", f"{kind}Job") for kind in ("MPI", "PyTorch", "TF", "XGBoost", "Paddle", "JAX")),
}  # fmt: skip
_SYSTEM_CLASSES = ("system-cluster-critical", "system-node-critical")
_SHORT_MS = 3_600_000
_AUTOSCALED = {
    "karpenter.sh/": ("karpenter.sh/do-not-disrupt", "true"),
    "cloud.google.com/gke-": ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    "eks.amazonaws.com/nodegroup": ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    "kubernetes.azure.com/agentpool": ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
}
"""The labels of nodes that an autoscaler made, and what keeps it from taking a node away under a pod. Sources:
https://karpenter.sh/docs/concepts/disruption/#pod-level-controls, and the FAQ of kubernetes/autoscaler's
cluster-autoscaler, "What types of pods can prevent CA from removing a node?"."""
_RDMA = re.compile(r"rdma/.+|vpc\.amazonaws\.com/efa|nvidia\.com/(hostdev|mlnxnics|.*rdma).*|.*/.*(roce|infiniband).*")
_VERBS = re.compile(r"rdma/.+")


def is_batch(pod: Template) -> bool:
    """Whether it runs to an end, and has GPUs."""
    alone = pod.group_kind == ("", "Pod") and pod.spec.at("restartPolicy").text == "Never"
    return pod.uses_gpu and (alone or pod.group_kind in BATCH)


def _no_class(pod: Template, _: Facts) -> Iterator[Found]:
    name = pod.spec.at("priorityClassName")
    if not is_batch(pod):
        return
    if name.text in _SYSTEM_CLASSES:
        yield Found(
            name, f"{name.text} is for what keeps the cluster alive: it makes any other pod give way to this job"
        )
    elif not name and not pod.spec.at("priority"):
        yield Found(name, "no priorityClassName: say which jobs go first, or that this one makes nobody give way")


def _taken_away(pod: Template, facts: Facts) -> Iterator[Found]:
    if not is_batch(pod) or _said_ms(pod) < _SHORT_MS:
        return
    annotations = pod.meta.at("annotations")
    for prefix, (key, value) in _AUTOSCALED.items():
        chosen = any(label.startswith(prefix) for label in _chosen_labels(pod))
        gpu_nodes = [node for node in facts.nodes or () if (node.allocatable.get(GPU) or "0") != "0"]
        known = bool(gpu_nodes) and all(any(label.startswith(prefix) for label in node.labels) for node in gpu_nodes)
        if (chosen or known) and str(annotations.at(key).value).lower() != value:
            yield Found(
                annotations.at(key), f'the autoscaler may take its node away while it runs: write {key}: "{value}"'
            )
            return


def _said_ms(pod: Template) -> int:
    """How long it runs at most, as it says; very long where it does not say."""
    said = [meta.at("annotations", "dovetail.dev/max-runtime").text for meta in (pod.meta, pod.whole.at("metadata"))]
    deadlines = [spec.at("activeDeadlineSeconds").whole for spec in (pod.spec, pod.whole.at("spec"))]
    spans = [1000 * seconds for seconds in deadlines if seconds]
    for text in filter(None, said):
        try:
            spans.append(duration_ms(text))
        except ValueError:
            continue
    return min(spans, default=2**62)


def _chosen_labels(pod: Template) -> Iterator[str]:
    yield from (key for key, _ in pod.spec.at("nodeSelector").entries())
    affinity = pod.spec.at("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    for term in affinity.at("nodeSelectorTerms").each():
        yield from (expression.at("key").text for expression in term.at("matchExpressions").each())


def _counts_interruptions(pod: Template, _: Facts) -> Iterator[Found]:
    group, kind = pod.group_kind
    if group != "batch" or not pod.uses_gpu:
        return
    job = pod.whole.at("spec", "jobTemplate", "spec") if kind == "CronJob" else pod.whole.at("spec")
    ttl = job.at("ttlSecondsAfterFinished")
    if ttl.whole == 0:
        yield Found(ttl, "the Job, its pods and their logs vanish when it ends: leave it some time to be looked at")
    limit, policy = job.at("backoffLimit"), job.at("podFailurePolicy")
    if (limit.whole or 0) > 0 or _ignores_disruptions(policy):
        return
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    never = pod.spec.at("restartPolicy").text == "Never"
    stands = "none" if limit else "6, the default"
    message = (
        f"an eviction counts as a failure, of which it stands {stands}: ignore DisruptionTarget in podFailurePolicy "
        "(needs restartPolicy: Never), or set backoffLimit"
    )
    yield Found(policy if limit is None else limit, message, (append(policy.at("rules"), ignore),) if never else ())


def _ignores_disruptions(policy: Field) -> bool:
    return any(
        rule.at("action").text == "Ignore"
        and any(one.at("type").text == "DisruptionTarget" for one in rule.at("onPodConditions").each())
        for rule in policy.at("rules").each()
    )


def _without_rdma(pod: Template, facts: Facts) -> Iterator[Found]:
    asked = [
        (name, amount)
        for container in pod.containers
        for name, amount in container.at("resources", "limits").entries()
        if _RDMA.fullmatch(name)
    ]
    for container in pod.containers:
        capabilities = container.at("securityContext", "capabilities", "add")
        added = {one.text for one in capabilities.each()}
        verbs = [name for name, _ in container.at("resources", "limits").entries() if _VERBS.fullmatch(name)]
        privileged = container.at("securityContext", "privileged").value is True
        if verbs and not privileged and not {"IPC_LOCK", "ALL"} & added:
            yield Found(capabilities, f"{verbs[0]} without the capability IPC_LOCK: memory for RDMA cannot be pinned")
    if facts.nodes is None:
        return
    offered = {name for node in facts.nodes for name, amount in node.allocatable.items() if amount != "0"}
    for name, amount in asked:
        if name not in offered:
            near = sorted(one for one in offered if _RDMA.fullmatch(one))
            yield Found(amount, f"no node offers {name}" + (f": they have {', '.join(near)}" if near else ""))
    whole_nodes = [node for node in facts.nodes if 0 < pod.gpus <= _gpus(node.allocatable.get(GPU, "0"))]
    fabric = [
        {name for name, amount in n.allocatable.items() if _RDMA.fullmatch(name) and amount != "0"} for n in whole_nodes
    ]
    fills = whole_nodes and all(_gpus(node.allocatable.get(GPU, "0")) == pod.gpus for node in whole_nodes)
    if not asked and fills and all(fabric) and pods_of(pod) > 1:
        names = ", ".join(sorted(set.union(*fabric)))
        message = f"its pods speak to each other by TCP: the nodes that fit it offer {names}"
        yield Found(pod.containers[0].at("resources", "limits"), message)


def _gpus(text: str) -> int:
    try:
        return units(text)
    except QuantityError:
        return 0


def pods_of(pod: Template) -> int:
    """How many pods of this template work together, as far as the object says; 1 where it does not."""
    whole, path = pod.whole, pod.field.path[len(pod.whole.path) :]
    above = Field(whole.value, whole.path)
    found = 1
    for step in ((), *(path[: at + 1] for at in range(len(path)))):
        here = above.at(*step)
        for name in ("parallelism", "replicas", "size"):
            number = count(here.at(name))
            # Copies of a whole server do not work together.
            together = name != "replicas" or pod.group_kind in BATCH or pod.group_kind[0] == "ray.io"
            if number and together and here.at(name).path != ("spec", "replicas"):
                found *= number
    return found


_JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: train, labels: {{team: vision}}}}
spec:
{job}  template:
    metadata: {{labels: {{team: vision}}{meta}}}
    spec:
      restartPolicy: Never
{pod}      containers:
      - name: train
        image: registry.example.com/train:1.4
        resources: {{limits: {{nvidia.com/gpu: 8{more}}}}}
"""
_CLASS = "      priorityClassName: batch\n"
_POLICY = "  podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}\n"
_KARPENTER = _CLASS + "      nodeSelector: {karpenter.sh/nodepool: gpus}\n"
_WIDE = _POLICY + "  completionMode: Indexed\n  parallelism: 4\n  completions: 4\n"
_NODE = """\
---
apiVersion: v1
kind: Node
metadata: {name: a}
status: {allocatable: {nvidia.com/gpu: "8", rdma/ib: "4"}}
"""
_LOCK = """\
        securityContext: {capabilities: {add: [IPC_LOCK]}}
"""

RULES = (
    Rule(
        id="G30",
        level=Level.WARNING,
        title="An autoscaler may take the node away from long work",
        effect="To save nodes it evicts the pod (`DisruptionTarget`), and all since the last checkpoint is lost.",
        bad=_JOB.format(job=_POLICY, meta="", pod=_KARPENTER, more=""),
        good=_JOB.format(
            job=_POLICY, meta=', annotations: {karpenter.sh/do-not-disrupt: "true"}', pod=_KARPENTER, more=""
        ),
        template=_taken_away,
        needs_nodes=True,
        source="https://karpenter.sh/docs/concepts/disruption/#pod-level-controls",
    ),
    Rule(
        id="G31",
        level=Level.WARNING,
        title="A Job counts interruptions as failures, or vanishes when it ends",
        effect=(
            "After some evictions the Job is `Failed` with `BackoffLimitExceeded`, though nothing was wrong with it; "
            "with a ttl of 0 nobody can see how it ended."
        ),
        bad=_JOB.format(job="", meta="", pod=_CLASS, more=""),
        good=_JOB.format(job=_POLICY, meta="", pod=_CLASS, more=""),
        template=_counts_interruptions,
        fixable=True,
        source="https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy",
    ),
    Rule(
        id="G35",
        level=Level.WARNING,
        title="Batch work has no priority class, or one of the system's",
        effect=(
            "Without a class the job has the priority of everything that says nothing, and any later pod with one "
            "makes it give way (`Preempted`); with a class of the system it makes others give way."
        ),
        bad=_JOB.format(job=_POLICY, meta="", pod="", more=""),
        good=_JOB.format(job=_POLICY, meta="", pod=_CLASS, more=""),
        template=_no_class,
        source="https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/",
    ),
    Rule(
        id="G39",
        level=Level.WARNING,
        title="Work on several nodes does not get their fast network",
        effect=(
            "NCCL falls back to TCP (`NET/Socket` in its log), which is slower than RDMA; a resource that no node "
            "offers leaves the pod Pending; without IPC_LOCK `ibv_reg_mr` fails with `Cannot allocate memory`."
        ),
        bad=_JOB.format(job=_WIDE, meta="", pod=_CLASS, more="") + _NODE,
        good=_JOB.format(job=_WIDE, meta="", pod=_CLASS, more=", rdma/ib: 4") + _LOCK + _NODE,
        template=_without_rdma,
        needs_nodes=True,
        source="https://docs.nvidia.com/networking/display/kubernetes/",
    ),
)  # fmt: skip
