# SPDX-License-Identifier: Apache-2.0
"""The kinds of object that hold pod templates, and where: one table for all that reads manifests.

`owners` adds to some of them how the pods that they make are known again. A path is steps joined by dots; `*` is every
item of a list or every value of a mapping; an empty path is the object itself.
Sources: the API types of each project, named at its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from dovetail.kube.api.resources import JOBS, PODS, Resource

Path = tuple[str | int, ...]


class Holder(Struct, frozen=True):
    """A kind that holds pod templates at `paths`. `version` of the resource is the one that is served today: objects of
    any version are read in the same way."""

    resource: Resource
    paths: tuple[str, ...]


def _holder(group: str, version: str, plural: str, kind: str, *paths: str) -> Holder:
    return Holder(Resource(group, version, plural, True, kind), paths)


def _training(kind: str, replicas: str, version: str = "v1") -> Holder:
    return _holder("kubeflow.org", version, f"{kind.lower()}s", kind, f"spec.{replicas}.*.template")


def _ray(spec: str) -> tuple[str, str]:
    return f"{spec}.headGroupSpec.template", f"{spec}.workerGroupSpecs.*.template"


_JOB_TEMPLATES = "replicatedJobs.*.template.spec.template"

# https://github.com/kubernetes-sigs/jobset: api/jobset/v1alpha2/jobset_types.go.
JOB_SETS = _holder("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", f"spec.{_JOB_TEMPLATES}")
# https://github.com/kubernetes-sigs/lws: api/leaderworkerset/v1/leaderworkerset_types.go.
LEADER_WORKER_SETS = _holder(
    "leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet",
    "spec.leaderWorkerTemplate.leaderTemplate", "spec.leaderWorkerTemplate.workerTemplate",
)  # fmt: skip
# https://github.com/kubernetes-sigs/lws: api/disaggregatedset/v1/disaggregatedset_types.go.
DISAGGREGATED_SETS = _holder(
    "disaggregatedset.x-k8s.io", "v1", "disaggregatedsets", "DisaggregatedSet",
    "spec.roles.*.spec.leaderWorkerTemplate.leaderTemplate", "spec.roles.*.spec.leaderWorkerTemplate.workerTemplate",
)  # fmt: skip
# https://github.com/vllm-project/aibrix: api/orchestration/v1alpha1.
_AIBRIX = "orchestration.aibrix.ai"
ROLE_SETS = _holder(_AIBRIX, "v1alpha1", "rolesets", "RoleSet", "spec.roles.*.template")
POD_SETS = _holder(_AIBRIX, "v1alpha1", "podsets", "PodSet", "spec.template")
# https://github.com/ray-project/kuberay: ray-operator/apis/ray/v1.
RAY_CLUSTERS = _holder("ray.io", "v1", "rayclusters", "RayCluster", *_ray("spec"))
# https://github.com/kubeflow/trainer, branch release-1.9: pkg/apis/kubeflow.org/v1; the mpi-operator: v2beta1.
MPI_JOBS = _training("MPIJob", "mpiReplicaSpecs", "v2beta1")
PYTORCH_JOBS = _training("PyTorchJob", "pytorchReplicaSpecs")
TF_JOBS = _training("TFJob", "tfReplicaSpecs")
XGBOOST_JOBS = _training("XGBoostJob", "xgbReplicaSpecs")
PADDLE_JOBS = _training("PaddleJob", "paddleReplicaSpecs")
JAX_JOBS = _training("JAXJob", "jaxReplicaSpecs")
BATCH_JOBS = Holder(JOBS, ("spec.template",))

HOLDERS: tuple[Holder, ...] = (
    Holder(PODS, ("",)),
    _holder("", "v1", "podtemplates", "PodTemplate", "template"),
    _holder("", "v1", "replicationcontrollers", "ReplicationController", "spec.template"),
    _holder("apps", "v1", "deployments", "Deployment", "spec.template"),
    _holder("apps", "v1", "statefulsets", "StatefulSet", "spec.template"),
    _holder("apps", "v1", "daemonsets", "DaemonSet", "spec.template"),
    _holder("apps", "v1", "replicasets", "ReplicaSet", "spec.template"),
    BATCH_JOBS,
    _holder("batch", "v1", "cronjobs", "CronJob", "spec.jobTemplate.spec.template"),
    JOB_SETS,
    LEADER_WORKER_SETS,
    DISAGGREGATED_SETS,
    ROLE_SETS,
    POD_SETS,
    _holder(_AIBRIX, "v1alpha1", "stormservices", "StormService", "spec.template.spec.roles.*.template"),
    MPI_JOBS,
    PYTORCH_JOBS,
    TF_JOBS,
    XGBOOST_JOBS,
    PADDLE_JOBS,
    JAX_JOBS,
    # https://github.com/kubeflow/trainer: pkg/apis/trainer/v1alpha1.
    Holder(
        Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", True, "TrainingRuntime"),
        (f"spec.template.spec.{_JOB_TEMPLATES}",),
    ),
    Holder(
        Resource("trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", False, "ClusterTrainingRuntime"),
        (f"spec.template.spec.{_JOB_TEMPLATES}",),
    ),
    RAY_CLUSTERS,
    _holder("ray.io", "v1", "rayjobs", "RayJob", *_ray("spec.rayClusterSpec"), "spec.submitterPodTemplate"),
    _holder("ray.io", "v1", "rayservices", "RayService", *_ray("spec.rayClusterConfig")),
    # https://github.com/volcano-sh/apis: pkg/apis/batch/v1alpha1/job.go.
    _holder("batch.volcano.sh", "v1alpha1", "jobs", "Job", "spec.tasks.*.template"),
    # https://github.com/knative/serving: pkg/apis/serving/v1.
    _holder("serving.knative.dev", "v1", "services", "Service", "spec.template"),
    _holder("serving.knative.dev", "v1", "configurations", "Configuration", "spec.template"),
    # https://github.com/kubeflow/notebooks: components/notebook-controller/api/v1.
    _holder("kubeflow.org", "v1", "notebooks", "Notebook", "spec.template"),
    # https://github.com/argoproj/argo-rollouts: pkg/apis/rollouts/v1alpha1.
    _holder("argoproj.io", "v1alpha1", "rollouts", "Rollout", "spec.template"),
)  # fmt: skip
_PATHS = {(holder.resource.group, holder.resource.kind): holder.paths for holder in HOLDERS}


def group_kind(document: Any) -> tuple[str, str]:
    """(group, kind) of an object; empty where the object has none."""
    value = document if isinstance(document, dict) else {}
    return str(value.get("apiVersion") or "").rpartition("/")[0], str(value.get("kind") or "")


def holds_templates(document: Any) -> bool:
    """Whether the table has the object's kind."""
    return group_kind(document) in _PATHS


def templates(document: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """(path, template) of each kind of pod that the object makes. Of a kind that is not in the table, whatever has a
    `spec` with `containers`."""
    paths = _PATHS.get(group_kind(document))
    if paths is None:
        yield from _by_shape(document, ())
        return
    for path in paths:
        for at, found in _reached(document, (), tuple(path.split(".")) if path else ()):
            if isinstance(found, dict):
                yield at, found


def _reached(value: Any, path: Path, steps: tuple[str, ...]) -> Iterator[tuple[Path, Any]]:
    if not steps:
        yield path, value
    elif steps[0] == "*":
        for key, inner in _children(value):
            yield from _reached(inner, (*path, key), steps[1:])
    elif isinstance(value, dict) and steps[0] in value:
        yield from _reached(value[steps[0]], (*path, steps[0]), steps[1:])


def _by_shape(value: Any, path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    if isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            yield path, value
            return
    for key, inner in _children(value):
        yield from _by_shape(inner, (*path, key))


def _children(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, dict):
        yield from ((str(key), inner) for key, inner in value.items())
    elif isinstance(value, list):
        yield from enumerate(value)
