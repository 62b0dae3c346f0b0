# SPDX-License-Identifier: Apache-2.0
"""Workload objects whose pods start together: a table over the kinds of `templates`.

Rules
- A row has which controller makes the pods, which of their labels name the object, the role of a pod in it, and how
  many pods the object makes (`sizes`, `serving`). A kind that is not in the table makes pods that are on their own.
- The labels are used at once; the numbers need the object itself, which is read once, and again after pods came
  or went. Until then only the gang's name is known, and its pods wait.
- An object can be made by another one that the table has: then its gang lies in a gang of that one (`above`), which is
  known by labels of the pods. A label that names no object of its own namespace changes nothing.
Made of others, and so without a row: TrainJob (a JobSet), RayJob and RayService (a RayCluster), KServe's
LLMInferenceService (LeaderWorkerSets, Deployments), Dynamo's graphs and Grove's sets (PodGangs, see `dialects`), the
runtimes of the vLLM production stack (Deployments).
Not known here: Spark, Volcano's Job (its PodGroup is read), StatefulSets that are no LeaderWorkerSet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.model import Gang, Problem
from dovetail.kube.api.resources import JOBS, NAME, VERSION, Resource
from dovetail.kube.gangs import serving, sizes
from dovetail.kube.gangs.declared import Declared, Membership, OwnerRef, divided
from dovetail.kube.gangs.sizes import GangSize
from dovetail.kube.manifests.templates import (
    DISAGGREGATED_SETS,
    JAX_JOBS,
    JOB_SETS,
    LEADER_WORKER_SETS,
    MPI_JOBS,
    PADDLE_JOBS,
    POD_SETS,
    PYTORCH_JOBS,
    RAY_CLUSTERS,
    ROLE_SETS,
    TF_JOBS,
    XGBOOST_JOBS,
    Holder,
)
from dovetail.kube.objects.base import ObjectMeta, epoch_ms
from dovetail.kube.objects.owners import (
    DisaggregatedSet,
    Job,
    JobSet,
    LeaderWorkerSet,
    PodSet,
    RayCluster,
    RoleSet,
    TrainingJob,
)
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.annotations import NOTHING, WorkloadOptions, options_of

D = TypeVar("D")

# https://github.com/kubernetes/api: batch/v1/types.go. On pods as an annotation, since 1.28 as a label too.
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
# The second one is older, and written as well.
JOB_LABEL, OLD_JOB_LABEL = "batch.kubernetes.io/job-name", "job-name"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
LWS_LABEL = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SUBGROUP = "leaderworkerset.sigs.k8s.io/subgroup-index"
DISAGGREGATED_LABEL = "disaggregatedset.x-k8s.io/name"
DISAGGREGATED_SLICE = "disaggregatedset.x-k8s.io/slice"
DISAGGREGATED_ROLE = "disaggregatedset.x-k8s.io/role"
# https://github.com/vllm-project/aibrix: pkg/controller/constants. Labels without a domain, as they are.
ROLE_SET_LABEL, ROLE_LABEL = "roleset-name", "role-name"
POD_SET_LABEL = "stormservice.orchestration.aibrix.ai/podset-name"
# https://github.com/kubeflow/training-operator: pkg/apis/kubeflow.org/v1/common_types.go; the mpi-operator (v2beta1)
# has the role instead of the replica type.
TRAINING_LABEL = "training.kubeflow.org/job-name"
_REPLICA_TYPE = "training.kubeflow.org/replica-type"
_JOB_ROLE = "training.kubeflow.org/job-role"
# https://github.com/ray-project/kuberay: ray-operator/controllers/ray/utils/constant.go.
RAY_LABEL = "ray.io/cluster"
_RAY_GROUP = "ray.io/group"

_BATCH_JOB = ("batch", "Job")


class OwnerKind(Struct, Generic[D], frozen=True):
    """`controllers` are the (group, kind) of the pods' own controllers. Pods must carry `marked_by`, as a label or an
    annotation. `named_by` is the label with the object's name ("": it is the controller itself); `split_by` a label
    whose every value is a gang of its own. `size` None means that the pods are on their own; so are pods that do
    not carry `gang_by`. `deadline_s` is how long the object may run. `above` is the kind that may have made the object:
    it has for pods that carry that kind's `named_by`."""

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
    above: OwnerKind[Any] | None = None


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
            name = meta.labels.get(kind.named_by) or reference.name
            if not (VERSION.fullmatch(version) and NAME.fullmatch(name)):
                # The API server takes anything for the apiVersion and the name of an owner; no object is called so.
                continue
            resource = kind.resource
            if reference.kind == resource.kind and version != resource.version:
                resource = replace(resource, version=version)
            return _membership(kind, resource, meta, name, not _carries(pod, kind.gang_by))
    return None


def _membership(kind: OwnerKind[Any], resource: Resource, meta: ObjectMeta, name: str, alone: bool) -> Membership:
    # Older DisaggregatedSets have one slice, and no label of it.
    split = f"{name}/{meta.labels.get(kind.split_by, '0')}" if kind.split_by else name
    above, over = kind.above, None
    if above is not None and NAME.fullmatch(maker := meta.labels.get(above.named_by, "")):
        over = _membership(above, above.resource, meta, maker, False)
    return Membership(
        id=f"{resource.kind.lower()}.{resource.group}/{meta.namespace}/{split}",
        namespace=meta.namespace,
        name=split,
        part=kind.part_in(meta.labels),
        owner=OwnerRef(resource, meta.namespace, name),
        alone=alone,
        above=over,
    )


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
    if size.problem is not None:
        problem = replace(size.problem, field=f"{owner} {size.problem.field}")
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
    gang = replace(
        gang, min_count=size.min_count, created_ms=read.created_ms, survives=size.survives, required=size.required
    )
    field = f"{owner} {size.min_field}"
    return Declared(gang, field, size.parts, size.together, size.pods, read.options, read.deadline_ms)


def _label(key: str) -> Callable[[Mapping[str, str]], str]:
    return lambda labels: labels.get(key, "")


def _replica_type(labels: Mapping[str, str]) -> str:
    return (labels.get(_REPLICA_TYPE) or labels.get(_JOB_ROLE, "")).lower()


def _leader_or_worker(labels: Mapping[str, str]) -> str:
    if labels.get(LWS_WORKER_INDEX) == "0":
        return serving.LEADER
    return labels.get(LWS_SUBGROUP) or serving.WORKERS


def _training_kind(holder: Holder, *more: tuple[str, str]) -> OwnerKind[TrainingJob]:
    return OwnerKind(
        holder.resource,
        TrainingJob,
        sizes.training,
        (("kubeflow.org", holder.resource.kind), *more),
        marked_by=TRAINING_LABEL,
        named_by=TRAINING_LABEL,
        part_in=_replica_type,
        deadline_s=lambda job: job.spec.run_policy.active_deadline_seconds,
    )


_DISAGGREGATED_KIND = OwnerKind(
    DISAGGREGATED_SETS.resource,
    DisaggregatedSet,
    serving.disaggregated_set,
    (),
    named_by=DISAGGREGATED_LABEL,
    split_by=DISAGGREGATED_SLICE,
    part_in=_label(DISAGGREGATED_ROLE),
)
_ROLE_SET_KIND = OwnerKind(
    ROLE_SETS.resource,
    RoleSet,
    serving.role_set,
    ((ROLE_SETS.resource.group, ROLE_SETS.resource.kind),),
    named_by=ROLE_SET_LABEL,
    part_in=_label(ROLE_LABEL),
)
OWNER_KINDS: tuple[OwnerKind[Any], ...] = (
    # Also for Kubeflow's TrainJob, which makes a JobSet.
    OwnerKind(
        JOB_SETS.resource,
        JobSet,
        sizes.jobset,
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
        sizes.job,
        (_BATCH_JOB,),
        gang_by=COMPLETION_INDEX,
        deadline_s=lambda job: job.spec.active_deadline_seconds,
    ),
    _DISAGGREGATED_KIND,
    OwnerKind(
        LEADER_WORKER_SETS.resource,
        LeaderWorkerSet,
        serving.leader_worker_set,
        (("apps", "StatefulSet"),),
        marked_by=LWS_LABEL,
        named_by=LWS_LABEL,
        split_by=LWS_GROUP,
        part_in=_leader_or_worker,
        above=_DISAGGREGATED_KIND,
    ),
    _ROLE_SET_KIND,
    OwnerKind(
        POD_SETS.resource,
        PodSet,
        serving.pod_set,
        ((POD_SETS.resource.group, POD_SETS.resource.kind),),
        above=_ROLE_SET_KIND,
    ),
    OwnerKind(
        RAY_CLUSTERS.resource,
        RayCluster,
        sizes.ray_cluster,
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
