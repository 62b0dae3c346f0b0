# SPDX-License-Identifier: Apache-2.0
"""The kinds of workload, and how each is stopped: one table.

Rules
- The value of `dovetail.dev/when-idle` that is the owner's consent depends on the kind: `suspend` where it has a field
  for that, `scale-to-zero` where it has replicas. Any other value is no consent.
- What cannot be suspended by hand (`jobs.suspending`) is not suspended.
- What something else starts again is not stopped once more (`put_back`).
- A kind without a way is known, so that what owns it is found, and is never stopped.
Sources: of JobSet kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go; of TrainJob kubeflow/trainer,
pkg/apis/trainer/v1alpha1/trainjob_types.go (both: `suspend` of the spec may change, of much else "field is immutable");
of Notebook
github.com/kubeflow/notebooks, components/notebook-controller: with that annotation it keeps its
StatefulSet at no replicas, and its pods have the label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from dovetail.idlepolicy.put_back import put_back
from dovetail.jobs.kinds import JOB_KINDS, Document, JobKind, at
from dovetail.jobs.suspending import by_kueue, ray_job_hindrance
from dovetail.kube.api.resources import DEPLOYMENTS, PODS, STATEFUL_SETS, Resource
from dovetail.kube.manifests.templates import LEADER_WORKER_SETS
from dovetail.kube.translate.annotations import IDLE_CHOICES

SUSPEND, SCALE_TO_ZERO, NOTHING = IDLE_CHOICES
NOTEBOOKS = Resource("kubeflow.org", "v1", "notebooks", True, "Notebook")
STOPPED_NOTEBOOK = "kubeflow-resource-stopped"


class Way(Struct, frozen=True):
    """How a workload is stopped: `value` of the time now, as text, is written at `path`; it is stopped where `holds` is
    true of what is there. `undo` is the command for it, of the resource, the name and the value before."""

    consent: str
    path: str
    value: Callable[[str], Any]
    holds: Callable[[Any], bool]
    undo: Callable[[str, str, Any], str]
    done: str


def _nothing(_: Document) -> str:
    return ""


class Stoppable(Struct, frozen=True):
    """A kind of workload. `way` None: it is not stopped. `hindrance` is why an object of this kind cannot be, "" for
    none."""

    job: JobKind
    way: Way | None = None
    hindrance: Callable[[Document], str] = _nothing

    @property
    def resource(self) -> Resource:
        return self.job.resource

    def consents(self, document: Document, when_idle: str) -> bool:
        """Whether a workload whose owner wrote this may be stopped, and is not."""
        return self.way is not None and when_idle == self.way.consent and not self.why_not(document)

    def why_not(self, document: Document) -> str:
        """Why a workload is not stopped whose owner consents; "" where it is."""
        way = self.way
        if way is None:
            return "it is of a kind that is never stopped"
        if way.holds(at(document, way.path)):
            return f"it is {way.done} already"
        if way.consent == SUSPEND and by_kueue(document):
            return "Kueue would resume it"
        back = put_back(document, way.path)
        return back.why_not if back is not None else self.hindrance(document)


def _suspend(path: str) -> Way:
    def undo(resource: str, name: str, _: Any) -> str:
        patch = "false"
        for step in reversed(path.split(".")):
            patch = f'{{"{step}":{patch}}}'
        return f"kubectl patch {resource} {name} --type=merge -p '{patch}'"

    return Way(SUSPEND, path, lambda _: True, lambda value: value is True, undo, "suspended")


_SCALE = Way(
    SCALE_TO_ZERO, "spec.replicas", lambda _: 0, lambda value: value == 0,
    lambda resource, name, before: f"kubectl scale {resource} {name} --replicas={1 if before is None else before}",
    "scaled to zero",
)  # fmt: skip
_NOTEBOOK = Way(
    SCALE_TO_ZERO, f"metadata.annotations.{STOPPED_NOTEBOOK}", lambda now: now, lambda value: value is not None,
    lambda resource, name, _: f"kubectl annotate {resource} {name} {STOPPED_NOTEBOOK}-", "scaled to zero",
)  # fmt: skip
_SCALED = (DEPLOYMENTS, STATEFUL_SETS, LEADER_WORKER_SETS.resource)


def _way(job: JobKind) -> Way | None:
    return _suspend(job.suspend) if job.suspend else _SCALE if job.resource in _SCALED else None


_HINDRANCES = {"RayJob": ray_job_hindrance}
STOPPABLE: tuple[Stoppable, ...] = (
    *(Stoppable(job, _way(job), _HINDRANCES.get(job.resource.kind, _nothing)) for job in JOB_KINDS),
    Stoppable(JobKind(NOTEBOOKS, "notebook-name"), _NOTEBOOK),
    # Of a LeaderWorkerSet the leader owns the StatefulSet of its workers.
    Stoppable(JobKind(PODS)),
)
_BY_KIND = {(one.resource.group, one.resource.kind): one for one in STOPPABLE}


def stoppable(group: str, kind: str) -> Stoppable | None:
    """The row of this kind; None where the table has none."""
    return _BY_KIND.get((group, kind))
