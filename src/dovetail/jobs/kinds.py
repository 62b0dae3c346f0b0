# SPDX-License-Identifier: Apache-2.0
"""The kinds of object that a job can be: one table.

Rules
- The pods of an object are found by a label with its name, or by its own selector.
- A kind ends, or serves until it is deleted. One that ends has a condition for success and one for failure.
- A job is held by an annotation (see `holds`), which keeps its pods waiting. `suspend` is a field of the object itself,
  which keeps it from having pods; Kueue sets it, too.
Sources: the API types of each project, as in `kube.manifests.templates`; of RayJob and RayService
ray-operator/apis/ray/v1, of TrainJob github.com/kubeflow/trainer, pkg/apis/trainer/v1alpha1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from dovetail.kube.api.resources import DEPLOYMENTS, JOBS, Resource
from dovetail.kube.gangs.owners import (
    DISAGGREGATED_LABEL,
    JOBSET_LABEL,
    LWS_LABEL,
    OWNER_KINDS,
    POD_SET_LABEL,
    RAY_LABEL,
    ROLE_SET_LABEL,
    TRAINING_LABEL,
)
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
)

Document = Mapping[str, Any]
Ended = Literal["", "succeeded", "failed"]

ANY, POD = "", "pod"
JOB = "job"
"""Before a name: an object of any kind, and of several a Job."""

_STATEFUL_SETS = Resource("apps", "v1", "statefulsets", True, "StatefulSet")
_REPLICA_SETS = Resource("apps", "v1", "replicasets", True, "ReplicaSet")
_TRAIN_JOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", True, "TrainJob")
_RAY_JOBS = Resource("ray.io", "v1", "rayjobs", True, "RayJob")
_RAY_SERVICES = Resource("ray.io", "v1", "rayservices", True, "RayService")
_SUSPEND = "spec.suspend"
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Of objects that Kueue suspends and resumes."""


class JobKind(Struct, frozen=True):
    """`pods_label` is the label of its pods that has the text at `named_by` in the object; "": they are those of
    `spec.selector`. `suspend` is the path of the field that keeps it from having pods, "" for none. `succeeded` and
    `failed` are types of conditions, or values of the field `phase`; none: it does not end by itself."""

    resource: Resource
    pods_label: str = ""
    named_by: str = "metadata.name"
    suspend: str = ""
    succeeded: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    phase: str = ""

    @property
    def name(self) -> str:
        """What stands before /NAME: `job`, `jobset`."""
        return self.resource.kind.lower()

    @property
    def ends(self) -> bool:
        return bool(self.succeeded)

    @property
    def declares(self) -> bool:
        """Whether the scheduler reads labels and annotations of such an object for the pods that it owns."""
        return self.resource in _DECLARING

    def ended(self, document: Document) -> Ended:
        """How the object has ended, by its status."""
        found = {str(text_at(document, self.phase))} if self.phase else set(_conditions(document))
        if not found.isdisjoint(self.succeeded):
            return "succeeded"
        return "failed" if not found.isdisjoint(self.failed) else ""

    def suspended(self, document: Document) -> bool:
        return bool(self.suspend) and at(document, self.suspend) is True

    def selector(self, document: Document) -> str:
        """The label selector of its pods; "" where it has none yet."""
        if self.pods_label:
            name = text_at(document, self.named_by)
            return f"{self.pods_label}={name}" if name else ""
        labels = at(document, "spec.selector.matchLabels")
        return ",".join(f"{key}={value}" for key, value in labels.items()) if isinstance(labels, dict) else ""


def _training(resource: Resource) -> JobKind:
    return JobKind(resource, TRAINING_LABEL, suspend="spec.runPolicy.suspend", succeeded=("Succeeded",), failed=_FAILED)


_COMPLETE, _FAILED = ("Complete",), ("Failed",)
JOB_KINDS: tuple[JobKind, ...] = (
    JobKind(JOBS, "batch.kubernetes.io/job-name", suspend=_SUSPEND, succeeded=_COMPLETE, failed=_FAILED),
    JobKind(JOB_SETS.resource, JOBSET_LABEL, suspend=_SUSPEND, succeeded=("Completed",), failed=_FAILED),
    # It makes a JobSet of its name.
    JobKind(_TRAIN_JOBS, JOBSET_LABEL, suspend=_SUSPEND, succeeded=_COMPLETE, failed=_FAILED),
    *(
        _training(one.resource)
        for one in (PYTORCH_JOBS, MPI_JOBS, TF_JOBS, XGBOOST_JOBS, PADDLE_JOBS, JAX_JOBS)
    ),
    JobKind(
        _RAY_JOBS, RAY_LABEL, "status.rayClusterName", _SUSPEND, ("SUCCEEDED",), ("FAILED", "STOPPED"),
        "status.jobStatus",
    ),
    JobKind(_RAY_SERVICES, RAY_LABEL, "status.activeServiceStatus.rayClusterName"),
    JobKind(RAY_CLUSTERS.resource, RAY_LABEL, suspend=_SUSPEND),
    JobKind(LEADER_WORKER_SETS.resource, LWS_LABEL),
    JobKind(DISAGGREGATED_SETS.resource, DISAGGREGATED_LABEL),
    JobKind(ROLE_SETS.resource, ROLE_SET_LABEL),
    JobKind(POD_SETS.resource, POD_SET_LABEL),
    JobKind(DEPLOYMENTS),
    JobKind(_STATEFUL_SETS),
    JobKind(_REPLICA_SETS),
)  # fmt: skip
_DECLARING = {one.resource for one in OWNER_KINDS}
_BY_NAME = {one.name: one for one in JOB_KINDS}
_BY_KIND = {(one.resource.group, one.resource.kind): one for one in JOB_KINDS}


def kind_named(name: str) -> JobKind | None:
    """The kind of this name, in upper or lower case, also in the plural; None where the table has none."""
    name = name.lower()
    return _BY_NAME.get(name) or next((one for one in JOB_KINDS if one.resource.plural == name), None)


def group_of(kind: str) -> str:
    """The API group of the object that a pod was made for, by its kind (`kube.gangs.made_for`), of which each is in one
    group; "" for pods without an object."""
    known = _BY_NAME.get(kind.lower())
    return known.resource.group if known is not None else ""


def kind_of(group: str, kind: str) -> JobKind | None:
    """The kind of this API group and name; None where the table has none: other groups have kinds of the same name,
    as Volcano has its Job."""
    return _BY_KIND.get((group, kind))


def controller_of(document: Document) -> tuple[JobKind, str] | None:
    """The kind and name of the object's controller; None where it has none, or one of a kind that is no job."""
    for reference in at(document, "metadata.ownerReferences") or ():
        if isinstance(reference, dict) and reference.get("controller"):
            group = str(reference.get("apiVersion", "")).rpartition("/")[0]
            kind = kind_of(group, str(reference.get("kind", "")))
            return (kind, str(reference.get("name", ""))) if kind is not None else None
    return None


def at(document: Document, path: str) -> Any:
    """The value at a path such as `spec.suspend`; None where there is none."""
    value: Any = document
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def text_at(document: Document, path: str) -> str:
    """The text at a path; "" where there is none."""
    value = at(document, path)
    return value if isinstance(value, str) else ""


def _conditions(document: Document) -> Iterator[str]:
    """The types of the conditions that are true."""
    for one in at(document, "status.conditions") or ():
        if isinstance(one, dict) and one.get("status") == "True":
            yield str(one.get("type", ""))
