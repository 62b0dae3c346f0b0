# SPDX-License-Identifier: Apache-2.0
"""Volcano.

Dovetail reads its PodGroups unchanged. Its Jobs become Jobs or JobSets, as Volcano's controller creates their pods only
after Volcano's scheduler has admitted the PodGroup.
Sources: https://github.com/volcano-sh/apis: pkg/apis/{scheduling/v1beta1,batch/v1alpha1};
https://github.com/volcano-sh/volcano: docs/user-guide/how_to_use_volcano_vgpu.md; https://jobset.sigs.k8s.io.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.advice.lint.edits import drop, put
from dovetail.advice.lint.field import Field
from dovetail.advice.lint.pods import Template
from dovetail.advice.migrate.dialects import queues
from dovetail.advice.migrate.dialects.pods import (
    OURS,
    READ,
    ShareNames,
    annotated,
    moved,
    native,
    native_member,
    scheduled,
    shares,
)
from dovetail.advice.migrate.dialects.volcano_names import NO_EQUAL
from dovetail.advice.migrate.step import (
    Left,
    MigrationStep,
    MigrationTarget,
    SourceDialect,
    World,
    group_of,
    left,
    namespace_of,
    unknown,
    without_status,
)
from dovetail.core.queues.types import QUEUE_LABEL
from dovetail.kube.translate.annotation_values import LEVELS, level
from dovetail.kube.translate.annotations import PREFIX

_GROUP, _BATCH = "scheduling.volcano.sh", "batch.volcano.sh"
_QUEUES = ("scheduling.volcano.sh/queue-name", "volcano.sh/queue-name")
_GROUP_NAMES = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_SHARES = ShareNames("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage",
                     "volcano.sh/vgpu-cores", "Volcano's vGPU")  # fmt: skip
_NO_KINDS = {
    ("topology.volcano.sh", "HyperNode"): "levels are node labels: see dovetail.dev/topology-required",
    ("nodeinfo.volcano.sh", "Numatopology"): "the kubelet's Topology Manager decides; Dovetail reads its state",
    ("flow.volcano.sh", "JobFlow"): "use a workflow engine",
    ("flow.volcano.sh", "JobTemplate"): "use a workflow engine",
    ("training.volcano.sh", "HyperJob"): "write a job for each cluster",
}
_RESTARTED = {"PodFailed", "PodEvicted", "*", "TaskFailed"}
_RETRIES = 3
"""Volcano's default of maxRetry, of jobs and of tasks; 0 is the default, too."""
_ENDLESS = 2**31 - 1
"""The most that backoffLimit can be."""
_INDEX = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
_PLUGINS = {
    "svc": "hosts are JOB-TASK-0-INDEX.JOB in a JobSet, without VC_TASK_HOSTS: change the program that reads it",
    "ssh": "no SSH keys are created: create a Secret, or start over the network (torchrun, MPIJob)",
    "pytorch": "MASTER_ADDR and RANK are not set: use a PyTorchJob or TrainJob, or set them from JOB_COMPLETION_INDEX",
    "tensorflow": "TF_CONFIG is not set: use a TFJob",
    "mpi": "no host file is created: use an MPIJob",
    "ray": "use a RayJob",
}
_JOB_FIELDS = (
    "minAvailable", "tasks", "queue", "priorityClassName", "ttlSecondsAfterFinished", "maxRetry", "policies", "plugins",
    "schedulerName", "volumes", "runningEstimate", "networkTopology", "minSuccess",
)  # fmt: skip
_TASK_FIELDS = (
    "name", "replicas", "template", "policies", "minAvailable", "dependsOn", "topologyPolicy", "maxRetry",
    "partitionPolicy",
)  # fmt: skip
_QUEUE_LEFT = {
    "reclaimable": "preemptible: false of the queue protects its pods, but keeps them within the guarantee",
    "type": "has no effect",
    "affinity": "pods choose nodes: write nodeSelector or affinity",
    "dequeueStrategy": "jobs that fit start before waiting ones, within their run times",
    "extendClusters": "Dovetail manages one cluster",
}  # fmt: skip


def _whole(whole: Field, world: World) -> Iterator[MigrationStep]:
    group, kind = group_of(whole), whole.at("kind").text
    if (group, kind) in _NO_KINDS:
        yield left(whole.at("kind"), f"{kind}: {_NO_KINDS[group, kind]}")
    elif (group, kind) == (_BATCH, "Job"):
        yield _job(whole)
    elif (group, kind) == (_BATCH, "CronJob"):
        yield left(whole.at("kind"), "write a CronJob of batch/v1; `dovetail migrate` converts its Job")
    elif (group, kind) == (_GROUP, "Queue"):
        yield _queue(whole)
    elif (group, kind) == (_GROUP, "PodGroup"):
        yield from _pod_group(whole, world)
    elif group == "kubeflow.org":
        yield from _of_kubeflow(whole)
    for place in ("annotations", "labels"):
        for name in _QUEUES:
            old = whole.at("metadata", place, name)
            if old and kind != "Pod" and group != _GROUP:
                yield moved(whole, old, old.text, f"queue {old.value}")


def _of_kubeflow(whole: Field) -> Iterator[MigrationStep]:
    """The steps for the schedulingPolicy of Kubeflow's jobs, which Kubeflow copies to a PodGroup. Dovetail reads
    minAvailable itself."""
    policy, label = whole.at("spec", "runPolicy", "schedulingPolicy"), whole.at("metadata", "labels", QUEUE_LABEL)
    queue = policy.at("queue")
    if queue and label and label.value != queue.value:
        yield left(queue, f"the label {QUEUE_LABEL} has another value: drop one of them")
    elif queue:
        yield MigrationStep(
            queue, f"queue {queue.value}: the label {QUEUE_LABEL}", (put(label, queue.value), drop(queue))
        )
    if policy.at("priorityClass"):
        yield left(policy.at("priorityClass"), "the priority of the pods counts: set priorityClassName of the pods")


def _template(pod: Template, world: World) -> Iterator[MigrationStep]:
    if pod.group_kind == (_BATCH, "Job"):
        return
    annotations = pod.meta.at("annotations")
    marks = [annotations.at(name) for name in (*_QUEUES, *_GROUP_NAMES)]
    yield from scheduled(pod, VOLCANO.schedulers, marked=any(marks))
    for old in (annotations.at(_QUEUES[0]), annotations.at(_QUEUES[1]), pod.meta.at("labels", _QUEUES[1])):
        if old:
            yield moved(pod.whole, old, old.text, f"queue {old.value}")
    for name in _GROUP_NAMES:
        old = annotations.at(name)
        if old and MigrationTarget.NATIVE in world.targets:
            found = world.named(_GROUP, "PodGroup", old.text, namespace_of(pod.whole))
            yield native_member(pod, annotations, old, bool(found.at("spec", "minMember").whole))
        elif old:
            yield MigrationStep(old, "Dovetail reads this name of the PodGroup", understood=True)
    yield from shares(pod, _SHARES)


def _pod_group(whole: Field, world: World) -> Iterator[MigrationStep]:
    spec, labels = whole.at("spec"), whole.at("metadata", "labels")
    queue = spec.at("queue")
    if queue and not labels.at(QUEUE_LABEL):
        yield MigrationStep(
            queue,
            f"queue {queue.value}: the label {QUEUE_LABEL}",
            (put(labels.at(QUEUE_LABEL), queue.value), drop(queue)),
        )
    elif queue and labels.at(QUEUE_LABEL).value == queue.value:
        yield MigrationStep(queue, f"the label {QUEUE_LABEL} names queue {queue.value}", (drop(queue),))
    elif queue:
        yield left(queue, f"the label {QUEUE_LABEL} has another value: drop one of them")
    if spec.at("minResources"):
        yield MigrationStep(
            spec.at("minResources"),
            "minResources is not needed: the requests of the pods count",
            (drop(spec.at("minResources")),),
        )
    lost = [Left(spec.at(name), why) for name, why in (
        ("priorityClassName", "the priority of its pods counts: set priorityClassName of the pods"),
        ("subGroupPolicy", "has no equivalent: make a PodGroup for each of its groups, below a CompositePodGroup"),
    ) if spec.at(name)]  # fmt: skip
    topology = spec.at("networkTopology")
    name, hard = topology.at("highestTierName").text, topology.at("mode").text != "soft"
    key = LEVELS.get(name) or (level(name) if "/" in name else "")
    if topology and not key:
        lost.append(Left(topology, f"tiers are numbers of HyperNodes: write a node label in {PREFIX}topology-required"))
    if MigrationTarget.NATIVE not in world.targets:
        yield from (left(one.field, one.message) for one in lost)
        yield MigrationStep(whole.at("apiVersion"), READ, understood=True)
        return
    if spec.at("minTaskMember"):
        lost.append(
            Left(spec.at("minTaskMember"), "minCount counts the pods of all tasks: make a PodGroup for each task")
        )
    lost += unknown(
        spec, "minMember", "minTaskMember", "queue", "minResources", "priorityClassName", "subGroupPolicy",
        "networkTopology",
    )  # fmt: skip
    step = native(whole, spec.at("minMember"), lost, key if hard else "")
    if key and not hard and step.edits:
        step = MigrationStep(
            step.field,
            step.message,
            annotated(whole.at("metadata"), topology_preferred=key) + step.edits,
            (),
            step.left,
        )
    yield step


def _queue(whole: Field) -> MigrationStep:
    spec = whole.at("spec")
    lost = [Left(spec.at(name), why) for name, why in _QUEUE_LEFT.items() if spec.at(name)]
    lost += unknown(spec, *_QUEUE_LEFT, "deserved", "guarantee", "capability", "parent", "weight", "priority")
    deserved, reserved = spec.at("deserved"), spec.at("guarantee", "resource")
    if deserved and reserved:
        lost.append(Left(reserved, "deserved is the guarantee here; no room is kept free for a queue without jobs"))
    parent = spec.at("parent").text
    made = {
        "parent": "" if parent == "root" else parent,
        "guarantee": queues.amounts(deserved or reserved, lost),
        "limit": queues.amounts(spec.at("capability"), lost),
        "weight": spec.at("weight").value,
        "priority": spec.at("priority").value,
    }
    return queues.became(whole, made, lost)


def _job(whole: Field) -> MigrationStep:
    spec, tasks = whole.at("spec"), list(whole.at("spec", "tasks").each())
    kind = whole.at("kind")
    if not tasks:
        return left(kind, "has no tasks, so it cannot be converted")
    for task in tasks:
        if not _complete(task):
            return left(task, "replicas must be a number from 0, and template must have a spec with containers")
    lost = _left_of_job(spec, tasks)
    restarts = [one for one in spec.at("policies").each() if _restarts(one)]
    completing = [task.at("name").text for task in tasks if any(_completes(one) for one in task.at("policies").each())]
    plugins = [name for name, _ in spec.at("plugins").entries() if name != "env"]
    as_set = len(tasks) > 1 or bool(restarts or plugins)
    jobs = [_of_task(task, spec, restarts, lost) for task in tasks]
    retries, success = spec.at("maxRetry"), spec.at("minSuccess")
    made: dict[str, Any]
    if as_set:
        made = {"failurePolicy": {"maxRestarts": retries.whole or _RETRIES}} if restarts else {}
        if completing and len(tasks) > 1:
            made["successPolicy"] = {"operator": "Any", "targetReplicatedJobs": completing}
        made["replicatedJobs"] = [
            {"name": task.at("name").text or f"task-{at}", "replicas": 1, "template": {"spec": job}}
            for at, (task, job) in enumerate(zip(tasks, jobs, strict=True))
        ]
    else:
        made = jobs[0] | ({"successPolicy": {"rules": [{"succeededCount": success.whole}]}} if success.whole else {})
    if success and as_set:
        lost.append(Left(success, "a JobSet counts jobs, not pods: write successPolicy of the job that decides"))
    if retries and not restarts:
        lost.append(Left(retries, "counts restarts of the whole job by a policy, and no policy has the action "
                                  "RestartJob: write failurePolicy.maxRestarts, or backoffLimit"))  # fmt: skip
    if spec.at("ttlSecondsAfterFinished"):
        made["ttlSecondsAfterFinished"] = spec.at("ttlSecondsAfterFinished").value
    meta = whole.at("metadata")
    pods = sum(_replicas(task) for task in tasks)
    least = spec.at("minAvailable").whole
    annotations: dict[str, str] = {}
    if least and least < pods and len(tasks) == 1:
        annotations["gang_min"] = str(least)
    elif least and least < pods:
        lost.append(Left(spec.at("minAvailable"), f"all {pods} pods start together: a JobSet of several jobs has no "
                                                  "minimum"))  # fmt: skip
    queue = spec.at("queue").text
    label = (put(meta.at("labels", QUEUE_LABEL), queue),) if queue else ()
    new = ("jobset.x-k8s.io/v1alpha2", "JobSet") if as_set else ("batch/v1", "Job")
    edits = (
        *without_status(whole),
        *label,
        *annotated(meta, **annotations),
        put(whole.at("spec"), made),
        put(kind, new[1]),
    )
    message = f"{_BATCH} Job is a {new[1]} of {new[0]}; comments in its spec are not kept"
    version = whole.at("apiVersion")
    return MigrationStep(version, message, (*edits, put(version, new[0])), left=tuple(lost))


def _complete(task: Field) -> bool:
    """Whether the task has all required fields of a Job, with the right types."""
    replicas, containers = task.at("replicas"), task.at("template", "spec", "containers")
    whole = not replicas or (replicas.whole is not None and replicas.whole >= 0)
    variables = [one.at("env") for one in containers.each()]
    listed = isinstance(containers.value, list) and all(isinstance(one.value, dict) for one in containers.each())
    return whole and listed and all(not one or isinstance(one.value, list) for one in variables)


def _replicas(task: Field) -> int:
    return task.at("replicas").whole or 1


def _of_task(task: Field, spec: Field, restarts: list[Field], lost: list[Left]) -> dict[str, Any]:
    """The spec of an indexed Job for the task. `restarts` are the policies that restart the whole job."""
    template = dict(task.at("template").value)
    pod: dict[str, Any] = {**template["spec"], "schedulerName": OURS}
    if pod.get("restartPolicy", "Always") == "Always":
        pod["restartPolicy"] = "OnFailure"
        lost.append(Left(task.at("template", "spec"), "restartPolicy was Always, which no Job has: it is OnFailure"))
    if spec.at("priorityClassName") and "priorityClassName" not in pod:
        pod["priorityClassName"] = spec.at("priorityClassName").value
    if spec.at("plugins", "env"):
        index = [{"name": name, "valueFrom": _INDEX} for name in ("VC_TASK_INDEX", "VK_TASK_INDEX")]
        pod["containers"] = [{**one, "env": [*(one.get("env") or ()), *index]} for one in pod.get("containers") or ()]
    pods = _replicas(task)
    if pods == 1 and task.at("replicas").whole == 0:
        lost.append(Left(task.at("replicas"), "a task without pods becomes one of one pod: drop it"))
    counts = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
    retries = {"backoffLimit": _retries(task, pod["restartPolicy"], restarts, lost)}
    return {**counts, **retries, "template": {**template, "spec": pod}}


def _retries(task: Field, restart: object, restarts: list[Field], lost: list[Left]) -> int:
    """The backoffLimit that lets the task fail when it failed in Volcano: that makes no new pod for a failed one, and
    lets the kubelet restart containers without end, unless a policy acts on TaskFailed.

    Source: https://github.com/volcano-sh/volcano: pkg/controllers/cache/cache.go (TaskFailed), job/state/running.go."""
    most = task.at("maxRetry")
    counted = any(_events(one) & {"TaskFailed", "*"} for one in restarts)
    if most and (restart == "Never" or not counted):
        lost.append(Left(most, "counts restarts of containers for a policy on TaskFailed: write backoffLimit"))
    if restart == "Never":
        return 0
    least = most.whole or _RETRIES
    return least if counted and least > 0 else _ENDLESS


def _left_of_job(spec: Field, tasks: list[Field]) -> list[Left]:
    lost = [Left(spec.at("plugins", name), why) for name, why in _PLUGINS.items() if spec.at("plugins", name)]
    lost += unknown(spec.at("plugins"), *_PLUGINS, "env") + unknown(spec, *_JOB_FIELDS)
    lost += [Left(one, "no policy of a Job or JobSet is known that does this") for one in spec.at("policies").each()
             if not _restarts(one)]  # fmt: skip
    for name, why in (
        ("volumes", "write them as volumes and volumeMounts of the pods"),
        ("runningEstimate", "write dovetail.dev/max-runtime: the maximum run time of pods"),
        ("networkTopology", "write a node label in dovetail.dev/topology-required"),
    ):
        if spec.at(name):
            lost.append(Left(spec.at(name), why))
    if spec.at("schedulerName") and spec.at("schedulerName").text not in (*VOLCANO.schedulers, OURS):
        lost.append(Left(spec.at("schedulerName"), f"is {OURS} in the pods of a migrated Job"))
    for task in tasks:
        lost += unknown(task, *_TASK_FIELDS)
        lost += [Left(one, "no policy of a Job or JobSet is known that does this") for one in task.at("policies").each()
                 if not _completes(one)]  # fmt: skip
        for name, why in (
            ("minAvailable", "all pods of a task start together"),
            ("dependsOn", "a JobSet has dependsOn, which waits for Ready or Complete: write which"),
            ("topologyPolicy", "the Topology Manager of the kubelet decides this"),
            ("partitionPolicy", "has no known equivalent"),
        ):
            least = task.at(name)
            if least and not (name == "minAvailable" and least.whole == _replicas(task)):
                lost.append(Left(least, why))
    return lost


def _events(policy: Field) -> set[str]:
    return {policy.at("event").text, *(each.text for each in policy.at("events").each())} - {""}


def _restarts(policy: Field) -> bool:
    """Whether the policy restarts the whole job when a pod fails, without further conditions."""
    events = _events(policy)
    plain = not policy.at("timeout") and not policy.at("exitCode")
    return policy.at("action").text == "RestartJob" and bool(events) and events <= _RESTARTED and plain


def _completes(policy: Field) -> bool:
    """Whether the policy completes the job when this task completes."""
    return policy.at("action").text == "CompleteJob" and _events(policy) == {"TaskCompleted"}


VOLCANO = SourceDialect("Volcano", _whole, _template, ("volcano",), ("volcano.sh",), NO_EQUAL)
