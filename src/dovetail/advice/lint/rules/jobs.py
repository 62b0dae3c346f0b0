# SPDX-License-Identifier: Apache-2.0
"""Rules about interruptions of GPU jobs, and about their priority.

They report only where work is lost:
- G29: pods that run to completion, require spot nodes by node selector or affinity, and have no deadline within an
  hour. `fault_tolerance` checks what such a pod lacks. A pod that stores checkpoints also needs a hook or a grace
  period as long as the notice of its cloud.
- G30: pods that run to completion, are long (a deadline of four hours or more, or several pods that work together) and
  store nothing that outlives them, if the node selector or the nodes of the inventory have Karpenter's labels. Cluster
  Autoscaler is not checked: no object shows whether it runs.
- G31: Jobs on spot nodes, where interruptions are expected; and GPU Jobs that are deleted as soon as they end.
- G35: pods without a priority class, if the classes are among the linted objects and none is the default; and batch
  pods of a class that may preempt serving: a system class, or one above a Deployment or StatefulSet with GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from dovetail.advice.fault_tolerance import RULES as TO_AN_END
from dovetail.advice.fault_tolerance import Means, pod_lacks
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.peers import work_together
from dovetail.advice.lint.pods import Template, templates_of
from dovetail.advice.lint.rule import Facts, Rule, RuleMatch, Severity
from dovetail.advice.spot_nodes import required_labels, spot_nodes
from dovetail.kube.manifests.templates import group_kind

_SHORT_S, _LONG_S = 3600, 4 * 3600
_KARPENTER = "karpenter.sh/"
_STAYS = ("karpenter.sh/do-not-disrupt", "karpenter.sh/do-not-evict")
_JOB, _CRON_JOB = ("batch", "Job"), ("batch", "CronJob")
ENDING = {
    *TO_AN_END.keys() - {("ray.io", "RayCluster"), ("leaderworkerset.x-k8s.io", "LeaderWorkerSet")},
    *(("trainer.kubeflow.org", kind) for kind in ("TrainingRuntime", "ClusterTrainingRuntime")),
    *(("argoproj.io", kind) for kind in ("Workflow", "CronWorkflow")),
    *(("tekton.dev", kind) for kind in ("TaskRun", "PipelineRun")),
}
"""Kinds that run to an end."""
_SERVES = ("Deployment", "StatefulSet")
_SYSTEM_CLASSES = ("system-node-critical", "system-cluster-critical")


def _to_an_end(pod: Template) -> bool:
    """Whether the pod runs to completion, with GPUs."""
    kind = pod.group_kind
    alone = kind == ("", "Pod")
    return (
        pod.uses_gpu
        and kind in ENDING
        and not (alone and pod.spec.at("restartPolicy").text not in ("Never", "OnFailure"))
    )


def _deadline_s(pod: Template) -> int | None:
    """The deadline of the pod or its Job, in seconds."""
    whole = pod.whole
    deadlines = [pod.spec.at("activeDeadlineSeconds").whole]
    if pod.group_kind in (_JOB, _CRON_JOB):
        deadlines.append(_job_spec(whole).at("activeDeadlineSeconds").whole)
    if pod.group_kind[0] == "kubeflow.org":
        deadlines.append(whole.at("spec", "runPolicy", "activeDeadlineSeconds").whole)
    return min((seconds for seconds in deadlines if seconds is not None), default=None)


def _job_spec(whole: Field) -> Field:
    return whole.at("spec") if group_kind(whole.value) == _JOB else whole.at("spec", "jobTemplate", "spec")


def _on_spot(pod: Template, _: Facts) -> Iterator[RuleMatch]:
    spot = spot_nodes(pod.spec)
    if spot is None or not _to_an_end(pod) or not pod.gpu_containers:
        return
    deadline_s = _deadline_s(pod)
    if deadline_s is not None and deadline_s <= _SHORT_S:
        return
    nodes, field = spot
    missing = {lack.field.name: lack for lack in pod_lacks(pod.spec, Means(nodes.notice_s))}
    if "volumeMounts" in missing:
        yield RuleMatch(field, f"a spot node can be reclaimed at any time, and {missing['volumeMounts'].what}")
    elif "preStop" in missing and "terminationGracePeriodSeconds" in missing:
        grace = missing["terminationGracePeriodSeconds"].field
        message = (
            f"{nodes.cloud} reclaims a spot node {nodes.notice_s} s after a notice; the pod has {grace.whole or 30} s "
            f"to end, and no preStop hook that saves: write terminationGracePeriodSeconds: {nodes.notice_s}"
        )
        yield RuleMatch(grace if grace else field, message)


def _disrupted(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    chosen = next((field for key, field in required_labels(pod.spec) if key.startswith(_KARPENTER)), None)
    with_gpus = [node for node in facts.nodes or () if any(name.startswith("nvidia.com/") for name in node.allocatable)]
    everywhere = bool(with_gpus) and all(f"{_KARPENTER}nodepool" in node.labels for node in with_gpus)
    if chosen is None and not everywhere:
        return
    if not _to_an_end(pod) or not pod.gpu_containers or any(pod.meta.at("annotations", key) for key in _STAYS):
        return
    deadline_s = _deadline_s(pod)
    if not (work_together(pod.whole) if deadline_s is None else deadline_s >= _LONG_S):
        return
    stored = all(lack.field.name != "volumeMounts" for lack in pod_lacks(pod.spec, Means(0)))
    if not stored:
        message = (
            "Karpenter may remove the node to save cost, and the job stores no progress: annotate its pods with "
            f'{_STAYS[0]}: "true"'
        )
        yield RuleMatch(pod.meta.at("annotations"), message)


def _failures(whole: Field, _: Facts) -> Iterator[RuleMatch]:
    if group_kind(whole.value) not in (_JOB, _CRON_JOB):
        return
    pods, spec = [pod for pod in templates_of(whole) if pod.uses_gpu], _job_spec(whole)
    if not pods:
        return
    kept = spec.at("ttlSecondsAfterFinished")
    if kept.whole == 0:
        yield RuleMatch(kept, "ttlSecondsAfterFinished is 0: write how long to keep its status and logs, such as 86400")
    limit, policy = spec.at("backoffLimit"), spec.at("podFailurePolicy")
    if policy or limit or not any(spot_nodes(pod.spec) for pod in pods):
        return
    job = whole if group_kind(whole.value) == _JOB else whole.at("spec", "jobTemplate")
    for lack in TO_AN_END[_JOB](job):
        yield RuleMatch(lack.field, lack.what, lack.edits)


def _priority(pod: Template, facts: Facts) -> Iterator[RuleMatch]:
    if not pod.uses_gpu:
        return
    classes = {one.at("metadata", "name").text: one for one in facts.of_kind("PriorityClass")}
    name = pod.spec.at("priorityClassName")
    if not name.text:
        default = any(one.at("globalDefault").value for one in classes.values())
        if classes and not default and not pod.spec.at("priority") and not pod.partial:
            known = ", ".join(sorted(classes))
            yield RuleMatch(name, f"no priorityClassName, and no class is the default: write one of {known}")
        return
    if not _to_an_end(pod):
        return
    if name.text in _SYSTEM_CLASSES:
        yield RuleMatch(name, f"{name.text} is for components of the cluster: use a class for batch work")
        return
    own = classes.get(name.text)
    value = own.at("value").whole if own is not None and own.at("preemptionPolicy").text != "Never" else None
    other, serving = _least_serving(facts)
    if value is not None and serving and value > other:
        message = f"class {name.text} ({value}) may evict {serving} ({other}): use a lower class, or one that never"
        yield RuleMatch(name, f"{message} preempts")


@lru_cache(maxsize=1)
def _least_serving(facts: Facts) -> tuple[int, str]:
    """(priority, name) of the serving workload with GPUs and the lowest priority, among those with a known class. The
    name is "" if there is none."""
    values = {one.at("metadata", "name").text: one.at("value").whole for one in facts.of_kind("PriorityClass")}
    found = [
        (value, f"{kind} {whole.at('metadata', 'name').text}")
        for kind in _SERVES
        for whole in facts.of_kind(kind)
        for pod in templates_of(whole)
        if (value := values.get(pod.spec.at("priorityClassName").text)) is not None and pod.uses_gpu
    ]
    return min(found, default=(0, ""))


_TRAIN = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  parallelism: 4
  completions: 4
  completionMode: Indexed
  backoffLimit: 4
  template:
    metadata: {{annotations: {{{1}}}}}
    spec:
      restartPolicy: Never
      priorityClassName: batch
      nodeSelector: {{karpenter.sh/capacity-type: {0}}}
      containers:
      - name: train
        image: registry.example.com/train:1.4
        args: [{2}]
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
      terminationGracePeriodSeconds: 150
"""
_JOB_TEXT = """\
apiVersion: batch/v1
kind: Job
metadata: {{name: train, labels: {{team: vision}}}}
spec:
{0}  template:
    spec:
      restartPolicy: Never
      priorityClassName: batch
      terminationGracePeriodSeconds: 150
      nodeSelector: {{karpenter.sh/capacity-type: spot}}
      containers:
      - name: train
        image: registry.example.com/train:1.4
        args: [--save=s3://models/train]
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""
_CLASSES = """\
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: batch}}
value: 100
preemptionPolicy: Never
---
apiVersion: v1
kind: Pod
metadata: {{name: train, labels: {{team: vision}}}}
spec:
  restartPolicy: Never
{0}  containers:
  - name: train
    image: registry.example.com/train:1.4
    resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""
_STAYING = f'{_STAYS[0]}: "true"'
_SAVING = "--save=s3://models/train"

RULES = (
    Rule(
        id="G29",
        level=Severity.WARNING,
        title="A job on spot nodes cannot save its progress",
        effect="When the node is reclaimed, the progress since the last checkpoint is lost.",
        bad=_TRAIN.format("spot", _STAYING, ""),
        good=_TRAIN.format("spot", _STAYING, _SAVING),
        template=_on_spot,
        source="https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-interruptions.html",
    ),
    Rule(
        id="G30",
        level=Severity.WARNING,
        title="An autoscaler may remove the node of a long job that stores no progress",
        effect="Karpenter drains nodes that are not needed, can be replaced by cheaper ones, or are outdated.",
        bad=_TRAIN.format("on-demand", "", ""),
        good=_TRAIN.format("on-demand", _STAYING, ""),
        template=_disrupted,
        source="https://karpenter.sh/docs/concepts/disruption/#pod-level-controls",
    ),
    Rule(
        id="G31",
        level=Severity.WARNING,
        title="Interruptions count as failures of the Job, or the Job is deleted when it ends",
        effect=(
            "After the seventh interruption the Job fails with `BackoffLimitExceeded`; with a TTL of 0 the Job, its "
            "pods and their logs are deleted when it ends."
        ),
        bad=_JOB_TEXT.format(""),
        good=_JOB_TEXT.format(
            "  backoffLimit: 4\n  podFailurePolicy:\n    rules:\n    - action: Ignore\n"
            "      onPodConditions: [{type: DisruptionTarget}]\n"
        ),
        whole=_failures,
        fixable=True,
        source="https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy",
    ),
    Rule(
        id="G35",
        level=Severity.WARNING,
        title="The pod has no priority class, or a batch job may evict serving pods",
        effect=(
            "Without a class the pod has priority 0, and any pod with a higher priority may evict it. A batch job of a "
            "high class evicts serving pods."
        ),
        bad=_CLASSES.format(""),
        good=_CLASSES.format("  priorityClassName: batch\n"),
        template=_priority,
        source="https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/",
    ),
)
