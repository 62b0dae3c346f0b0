# SPDX-License-Identifier: Apache-2.0
"""Workload objects whose pods start together: a table over the kinds of `templates`.

Rules
- A row has which controller makes the pods, which of their labels name the object, the role of a pod in it, and how
  many pods the object makes. A kind that is not in the table makes pods that are on their own.
- The labels are used at once; the numbers need the object itself, which is read once, and again after pods came
  or went. Until then only the gang's name is known, and its pods wait.
- A Job is a gang where it is indexed and runs all its indices at once; else its pods are on their own, and the Job is
  read only for its queue, its limits and its annotations: the pods do not wait for that.
- A Job with a limit of failures for each index goes on with the indices that are left.
- Controllers that make some pods only when others run are respected: parts in order become gangs of their own, and
  where the first pod must run before the rest is made, the minimum is one.
Not known here: Spark, Grove, Volcano's Job (its PodGroup is read), StatefulSets that are no LeaderWorkerSet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.model import Gang, Problem
from dovetail.kube.api.resources import JOBS, NAME, VERSION, Resource
from dovetail.kube.gangs.declared import Declared, DeclaredPart, Membership, OwnerRef, divided
from dovetail.kube.manifests.templates import (
    JAX_JOBS,
    JOB_SETS,
    LEADER_WORKER_SETS,
    MPI_JOBS,
    PADDLE_JOBS,
    PYTORCH_JOBS,
    RAY_CLUSTERS,
    TF_JOBS,
    XGBOOST_JOBS,
    Holder,
)
from dovetail.kube.objects.base import ObjectMeta, epoch_ms
from dovetail.kube.objects.owners import Job, JobSet, LeaderWorkerSet, RayCluster, TrainingJob
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.annotations import NOTHING, WorkloadOptions, options_of

D = TypeVar("D")

# https://github.com/kubernetes/api: batch/v1/types.go. On pods as an annotation, since 1.28 as a label too.
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
# The second one is older, and written as well.
JOB_LABEL, OLD_JOB_LABEL = "batch.kubernetes.io/job-name", "job-name"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
NODE_SELECTOR_STRATEGY = "alpha.jobset.sigs.k8s.io/node-selector"
LWS_LABEL = "leaderworkerset.sigs.k8s.io/name"
_LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
# https://github.com/kubeflow/training-operator: pkg/apis/kubeflow.org/v1/common_types.go; the mpi-operator (v2beta1)
# has the role instead of the replica type.
TRAINING_LABEL = "training.kubeflow.org/job-name"
_REPLICA_TYPE = "training.kubeflow.org/replica-type"
_JOB_ROLE = "training.kubeflow.org/job-role"
# https://github.com/ray-project/kuberay: ray-operator/controllers/ray/utils/constant.go.
RAY_LABEL = "ray.io/cluster"
_RAY_GROUP = "ray.io/group"
_RAY_HEAD = "headgroup"

_BATCH_JOB = ("batch", "Job")


class GangSize(Struct, frozen=True):
    """How many pods an object makes and how many must start together (see `gangs.Declared`). `survives` is as in
    Gang."""

    min_field: str
    min_count: int = 0
    pods: int | None = None
    parts: tuple[DeclaredPart, ...] = ()
    together: bool = True
    survives: bool = False


class OwnerKind(Struct, Generic[D], frozen=True):
    """`controllers` are the (group, kind) of the pods' own controllers. Pods must carry `marked_by`, as a label or an
    annotation. `named_by` is the label with the object's name ("": it is the controller itself); `split_by` a label
    whose every value is a gang of its own. `size` None means that the pods are on their own; so are pods that do
    not carry `gang_by`. `deadline_s` is how long the object may run."""

    resource: Resource
    wire: type[D]
    size: Callable[[D], GangSize | None]
    controllers: tuple[tuple[str, str], ...]
    marked_by: str = ""
    gang_by: str = ""
    named_by: str = ""
    split_by: str = ""
    part_in: Callable[[Mapping[str, str]], str] = lambda _: ""
    deadline_s: Callable[[D], int | None] = lambda _: None


def owned_by(pod: Pod) -> Membership | None:
    """The gang that the pod is in by its controller and labels; None where the table has nothing for it."""
    meta = pod.metadata
    for reference in meta.owner_references:
        if not reference.controller:
            continue
        group, _, version = reference.api_version.rpartition("/")
        for kind in _BY_CONTROLLER.get((group, reference.kind), ()):
            if not _carries(pod, kind.marked_by):
                continue
            if not (VERSION.fullmatch(version) and NAME.fullmatch(meta.labels.get(kind.named_by) or reference.name)):
                # The API server takes anything for the apiVersion and the name of an owner; no object is called so.
                continue
            resource = kind.resource
            if reference.kind == resource.kind and version != resource.version:
                resource = replace(resource, version=version)
            name = meta.labels.get(kind.named_by) or reference.name
            split = f"{name}/{meta.labels.get(kind.split_by, '')}" if kind.split_by else name
            return Membership(
                id=f"{resource.kind.lower()}.{resource.group}/{meta.namespace}/{split}",
                namespace=meta.namespace,
                name=split,
                part=kind.part_in(meta.labels),
                owner=OwnerRef(resource, meta.namespace, name),
                alone=not _carries(pod, kind.gang_by),
            )
    return None


def _carries(pod: Pod, mark: str) -> bool:
    """Whether the pod has this label or annotation, where one is required."""
    return not mark or mark in pod.metadata.labels or mark in pod.metadata.annotations


def wire_of(owner: OwnerRef) -> type[Any]:
    """What is read of the owner's object."""
    wire: type[Any] = _BY_RESOURCE[owner.resource.group, owner.resource.kind].wire
    return wire


class OwnerRead(Struct, frozen=True):
    """The declarations of an object about its pods, the only part of the document that is kept. `size` None means that
    the pods are on their own; `exists` is false where there is no such object."""

    owner: OwnerRef
    exists: bool = True
    size: GangSize | None = None
    options: WorkloadOptions = NOTHING
    deadline_ms: int = 0
    created_ms: int = 0
    problem: Problem | None = None


def read(owner: OwnerRef, document: Mapping[str, object] | None) -> OwnerRead:
    """The declarations of an owner's object; None where it does not exist."""
    if document is None:
        return OwnerRead(owner, exists=False)
    kind = _BY_RESOURCE[owner.resource.group, owner.resource.kind]
    try:
        obj = msgspec.convert(document, kind.wire)
        size = kind.size(obj)
    except msgspec.ValidationError as error:
        return OwnerRead(owner, problem=Problem(str(owner), "", f"cannot be read: {error}"))
    meta: ObjectMeta = obj.metadata
    options, deadline_ms = options_of(meta), 1000 * (kind.deadline_s(obj) or 0)
    if size is None:
        return OwnerRead(owner, options=options, deadline_ms=deadline_ms)
    parts, problem = divided(f"{owner} {size.min_field}", size.parts)
    return OwnerRead(
        owner, True, replace(size, parts=parts), options, deadline_ms, epoch_ms(meta.creation_timestamp), problem
    )


def declare(member: Membership, read: OwnerRead) -> Declared | None:
    """The gang by the owner's object, or the declaration for pods without a gang. Without the object the number of pods
    is not known: then None, unless the pods do not wait for it."""
    owner, size = read.owner, read.size
    gang = Gang(member.id, member.namespace, member.name, problem=read.problem)
    if not read.exists:
        return Declared(gang, "", alone=True) if member.alone else None
    if size is None and read.problem is not None:
        return Declared(gang, "")
    if size is None:
        return Declared(gang, "", options=read.options, deadline_ms=read.deadline_ms, alone=True)
    gang = replace(gang, min_count=size.min_count, created_ms=read.created_ms, survives=size.survives)
    field = f"{owner} {size.min_field}"
    return Declared(gang, field, size.parts, size.together, size.pods, read.options, read.deadline_ms)


def _job(job: Job) -> GangSize | None:
    spec = job.spec
    # As the Job controller of 1.36 did for its own PodGroups (KEP-5547): fewer pods than indices are a work queue.
    if spec.completion_mode == "Indexed" and spec.completions == spec.parallelism > 1:
        by_index = spec.backoff_limit_per_index is not None
        return GangSize("spec.parallelism", spec.parallelism, spec.parallelism, survives=by_index)
    return None


def _jobset(jobset: JobSet) -> GangSize:
    spec = jobset.spec
    in_order = spec.startup_policy.startup_policy_order == "InOrder" or any(r.depends_on for r in spec.replicated_jobs)
    parts, leaders_first = [], False
    for replicated in spec.replicated_jobs:
        job = replicated.template.spec
        pods = replicated.replicas * min(job.parallelism, job.completions or job.parallelism)
        marks = jobset.metadata.annotations, replicated.template.metadata.annotations
        # Its webhook refuses all pods but the leader of each Job until that one is bound.
        leader_first = any(EXCLUSIVE in one for one in marks) and all(
            NODE_SELECTOR_STRATEGY not in one for one in marks
        )
        leaders_first |= leader_first
        parts.append(DeclaredPart(replicated.name, min(pods, 1) if leader_first else pods, pods))
    if len(parts) == 1:
        return GangSize("spec.replicatedJobs", parts[0].min_count, parts[0].pods)
    return GangSize("spec.replicatedJobs", parts=tuple(parts), together=not (in_order or leaders_first))


def _leader_worker_set(lws: LeaderWorkerSet) -> GangSize:
    size, field = lws.spec.leader_worker_template.size, "spec.leaderWorkerTemplate.size"
    if lws.spec.startup_policy == "LeaderReady":
        return GangSize(
            field, parts=(DeclaredPart("leader", 1, 1), DeclaredPart("workers", size - 1, size - 1)), together=False
        )
    return GangSize(field, size, size)


def _training(job: TrainingJob) -> GangSize:
    spec = job.spec
    maps = (
        spec.tf_replica_specs,
        spec.pytorch_replica_specs,
        spec.mpi_replica_specs,
        spec.xgb_replica_specs,
        spec.paddle_replica_specs,
        spec.jax_replica_specs,
    )
    replicas = {name.lower(): replica.replicas for specs in maps for name, replica in specs.items()}
    policy = spec.run_policy.scheduling_policy
    at_least = policy.min_available if policy is not None else None
    launcher_last = spec.wait_for_workers or spec.launcher_creation_policy == "WaitForWorkersReady"
    if at_least is not None and not launcher_last:
        return GangSize("spec.runPolicy.schedulingPolicy.minAvailable", at_least, sum(replicas.values()))
    workers = replicas.get("worker", 0)
    fewest = spec.elastic_policy.min_replicas if at_least is None else min(at_least, workers)
    wanted = replicas if fewest is None else {**replicas, "worker": fewest}
    parts = [DeclaredPart(name, wanted[name], count) for name, count in sorted(replicas.items())]
    if len(parts) == 1:
        return GangSize("spec replicas", parts[0].min_count, parts[0].pods)
    return GangSize("spec replicas", parts=tuple(parts), together=not launcher_last)


def _ray_cluster(cluster: RayCluster) -> GangSize:
    parts = [DeclaredPart(_RAY_HEAD, 1, 1)]
    for group in cluster.spec.worker_group_specs:
        # Of a group that may grow and shrink only the minimum has to start with the head.
        count = 0 if group.suspend else group.num_of_hosts * (group.min_replicas or group.replicas)
        parts.append(DeclaredPart(group.group_name, count))
    return GangSize("spec.workerGroupSpecs", parts=tuple(parts))


def _label(key: str) -> Callable[[Mapping[str, str]], str]:
    return lambda labels: labels.get(key, "")


def _replica_type(labels: Mapping[str, str]) -> str:
    return (labels.get(_REPLICA_TYPE) or labels.get(_JOB_ROLE, "")).lower()


def _leader_or_worker(labels: Mapping[str, str]) -> str:
    return "leader" if labels.get(LWS_WORKER_INDEX) == "0" else "workers"


def _training_kind(holder: Holder, *more: tuple[str, str]) -> OwnerKind[TrainingJob]:
    return OwnerKind(
        holder.resource,
        TrainingJob,
        _training,
        (("kubeflow.org", holder.resource.kind), *more),
        marked_by=TRAINING_LABEL,
        named_by=TRAINING_LABEL,
        part_in=_replica_type,
        deadline_s=lambda job: job.spec.run_policy.active_deadline_seconds,
    )


OWNER_KINDS: tuple[OwnerKind[Any], ...] = (
    # Also for Kubeflow's TrainJob, which makes a JobSet.
    OwnerKind(
        JOB_SETS.resource,
        JobSet,
        _jobset,
        (_BATCH_JOB,),
        marked_by=JOBSET_LABEL,
        named_by=JOBSET_LABEL,
        part_in=_label(_REPLICATED_JOB),
    ),
    # The launcher of v2beta1 is made by a Job.
    _training_kind(MPI_JOBS, _BATCH_JOB),
    _training_kind(PYTORCH_JOBS),
    _training_kind(TF_JOBS),
    _training_kind(XGBOOST_JOBS),
    _training_kind(PADDLE_JOBS),
    _training_kind(JAX_JOBS),
    OwnerKind(
        JOBS,
        Job,
        _job,
        (_BATCH_JOB,),
        gang_by=COMPLETION_INDEX,
        deadline_s=lambda job: job.spec.active_deadline_seconds,
    ),
    OwnerKind(
        LEADER_WORKER_SETS.resource,
        LeaderWorkerSet,
        _leader_worker_set,
        (("apps", "StatefulSet"),),
        marked_by=LWS_LABEL,
        named_by=LWS_LABEL,
        split_by=_LWS_GROUP,
        part_in=_leader_or_worker,
    ),
    OwnerKind(
        RAY_CLUSTERS.resource,
        RayCluster,
        _ray_cluster,
        (("ray.io", "RayCluster"),),
        marked_by=RAY_LABEL,
        named_by=RAY_LABEL,
        part_in=_label(_RAY_GROUP),
    ),
)
_BY_RESOURCE = {(kind.resource.group, kind.resource.kind): kind for kind in OWNER_KINDS}
_BY_CONTROLLER: dict[tuple[str, str], list[OwnerKind[Any]]] = {}
for _kind in OWNER_KINDS:
    for _controller in _kind.controllers:
        _BY_CONTROLLER.setdefault(_controller, []).append(_kind)
