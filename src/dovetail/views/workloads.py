# SPDX-License-Identifier: Apache-2.0
"""Workload objects in manifests, and the pods that their controllers would make of them.

Rules
- One table of kinds has the function that makes the pods of each kind: as many as run at the same time, with the
  labels, annotations and owners that Dovetail reads. Volume claim templates and host names are left out, as no
  scheduling decision depends on them.
- A workload whose pods are among the documents makes no further pods. A suspended workload makes none.
- Kinds that make pods later or elsewhere (CronJob, DaemonSet, autoscalers) make none here. Kinds that are not in the
  table are reported by the reader of the documents.
Sources: the controllers of Kubernetes (job, replicaset, deployment, statefulset), JobSet, LeaderWorkerSet, Kubeflow's
training operator, KubeRay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.kube.gangs.made_for import TEMPLATE_HASH
from dovetail.kube.gangs.owners import COMPLETION_INDEX
from dovetail.kube.manifests.documents import Document
from dovetail.views.jobs import OWNER_LABELS

_JOB, _OLD_JOB, _JOBSET, _LWS, _TRAINING, _RAY = OWNER_LABELS
_MOST_PODS = 100_000
Manifest = dict[str, Any]


class WorkloadError(Exception):
    """The pods of a workload cannot be made; the message has the place and the reason."""


class _Pod(Struct, frozen=True):
    """A pod of a workload. Its name is that of the workload + `suffix`. Its controller is of this `kind` and `group`,
    with the name of the workload + `owner`."""

    suffix: str
    template: Mapping[str, Any]
    labels: Mapping[str, str]
    group: str
    kind: str
    owner: str = ""
    annotations: Mapping[str, str] | None = None


def with_pods(documents: Iterable[Document]) -> list[Document]:
    """The documents, each workload followed by its pods. Raises WorkloadError."""
    documents = list(documents)
    owned = {
        reference.get("uid") or reference.get("name")
        for document in documents
        for reference in _metadata(document.value).get("ownerReferences") or ()
        if isinstance(reference, dict)
    }
    found: list[Document] = []
    for document in documents:
        found.append(document)
        meta = _metadata(document.value)
        if not owned & {meta.get("uid"), meta.get("name")} - {None}:
            found += _pods(document)
    return found


def _metadata(value: Any) -> Mapping[str, Any]:
    meta = value.get("metadata") if isinstance(value, dict) else None
    return meta if isinstance(meta, dict) else {}


def _pods(document: Document) -> Iterator[Document]:
    value = document.value if isinstance(document.value, dict) else {}
    group = str(value.get("apiVersion", "")).rpartition("/")[0]
    make = _MAKERS.get((group, str(value.get("kind", ""))))
    meta = _metadata(value)
    name, spec = meta.get("name"), value.get("spec")
    if make is None or not isinstance(spec, dict) or not isinstance(name, str) or spec.get("suspend") is True:
        return
    try:
        made = list(make(name, spec))
    except (AttributeError, TypeError, ValueError) as error:
        place = f"{document.file}:{document.line('spec')}" if document.line() else document.file
        raise WorkloadError(f"{place}: {value['kind']} {name}: its pods cannot be made: {error}") from error
    namespace = meta.get("namespace") or "default"
    for pod in made:
        template = _metadata(pod.template)
        own = pod.kind == value["kind"]
        uid = f"{pod.group}/{pod.kind}/{namespace}/{name}{pod.owner}"
        owner = {
            "apiVersion": value["apiVersion"] if own else f"{pod.group}/v1", "kind": pod.kind,
            "name": name + pod.owner, "uid": (own and meta.get("uid")) or uid, "controller": True,
        }  # fmt: skip
        manifest = {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name + pod.suffix, "namespace": namespace,
                "labels": {**(template.get("labels") or {}), **pod.labels},
                "annotations": {**(template.get("annotations") or {}), **(pod.annotations or {})},
                "ownerReferences": [owner],
            },
            "spec": pod.template.get("spec") or {},
        }  # fmt: skip
        yield replace(document, value=manifest)


def _number(spec: Mapping[str, Any], field: str, default: int) -> int:
    number = spec.get(field, default)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MOST_PODS:
        raise ValueError(f"{field} is {number!r}: it must be a whole number from 0 to {_MOST_PODS}")
    return number


def _template(spec: Mapping[str, Any], field: str = "template") -> Mapping[str, Any]:
    template = spec.get(field)
    if not isinstance(template, dict):
        raise ValueError(f"{field} is missing")
    return template


def _job(name: str, spec: Mapping[str, Any], suffix: str = "", more: Mapping[str, str] | None = None) -> Iterator[_Pod]:
    parallelism = _number(spec, "parallelism", 1)
    count = min(parallelism, _number(spec, "completions", parallelism))
    labels = {_JOB: name + suffix, _OLD_JOB: name + suffix, **(more or {})}
    for i in range(count):
        index = {COMPLETION_INDEX: str(i)} if spec.get("completionMode") == "Indexed" else {}
        yield _Pod(f"{suffix}-{i}", _template(spec), {**labels, **index}, "batch", "Job", suffix, index)


def _jobset(name: str, spec: Mapping[str, Any]) -> Iterator[_Pod]:
    for replicated in spec.get("replicatedJobs") or ():
        part = str(replicated.get("name", ""))
        template = _template(replicated)
        marks = _metadata(template).get("labels") or {}
        for k in range(_number(replicated, "replicas", 1)):
            labels = {**marks, _JOBSET: name, "jobset.sigs.k8s.io/replicatedjob-name": part}
            yield from _job(name, template.get("spec") or {}, f"-{part}-{k}", labels)


def _replicas(kind: str, owner: str = "") -> Callable[[str, Mapping[str, Any]], Iterator[_Pod]]:
    def make(name: str, spec: Mapping[str, Any]) -> Iterator[_Pod]:
        labels = {TEMPLATE_HASH: owner.removeprefix("-")} if owner else {}
        for i in range(_number(spec, "replicas", 1)):
            yield _Pod(f"{owner}-{i}", _template(spec), labels, "apps", kind, owner)

    return make


def _leader_workers(name: str, spec: Mapping[str, Any]) -> Iterator[_Pod]:
    both = _template(spec, "leaderWorkerTemplate")
    worker = _template(both, "workerTemplate")
    leader = both.get("leaderTemplate") or worker
    for group in range(_number(spec, "replicas", 1)):
        for i in range(_number(both, "size", 1)):
            labels = {
                _LWS: name,
                "leaderworkerset.sigs.k8s.io/group-index": str(group),
                "leaderworkerset.sigs.k8s.io/worker-index": str(i),
            }
            suffix = f"-{group}-{i}" if i else f"-{group}"
            yield _Pod(suffix, worker if i else leader, labels, "apps", "StatefulSet", f"-{group}" if i else "")


def _training(kind: str) -> Callable[[str, Mapping[str, Any]], Iterator[_Pod]]:
    def make(name: str, spec: Mapping[str, Any]) -> Iterator[_Pod]:
        for field, specs in spec.items():
            for role, replica in specs.items() if field.endswith("ReplicaSpecs") else ():
                labels = {_TRAINING: name, "training.kubeflow.org/replica-type": role.lower()}
                for i in range(_number(replica, "replicas", 1)):
                    yield _Pod(f"-{role.lower()}-{i}", _template(replica), labels, "kubeflow.org", kind)

    return make


def _ray_cluster(name: str, spec: Mapping[str, Any]) -> Iterator[_Pod]:
    head = _template(_template(spec, "headGroupSpec"))
    yield _Pod("-head", head, {_RAY: name, "ray.io/group": "headgroup"}, "ray.io", "RayCluster")
    for group in spec.get("workerGroupSpecs") or ():
        group_name = str(group.get("groupName", ""))
        for i in range(_number(group, "replicas", 0) * _number(group, "numOfHosts", 1)):
            labels = {_RAY: name, "ray.io/group": group_name}
            yield _Pod(f"-{group_name}-worker-{i}", _template(group), labels, "ray.io", "RayCluster")


_MAKERS: dict[tuple[str, str], Callable[[str, Mapping[str, Any]], Iterator[_Pod]]] = {
    ("batch", "Job"): _job,
    ("apps", "Deployment"): _replicas("ReplicaSet", "-new"),
    ("apps", "ReplicaSet"): _replicas("ReplicaSet"),
    ("apps", "StatefulSet"): _replicas("StatefulSet"),
    ("jobset.x-k8s.io", "JobSet"): _jobset,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _leader_workers,
    ("ray.io", "RayCluster"): _ray_cluster,
    **{
        ("kubeflow.org", kind): _training(kind)
        for kind in ("PyTorchJob", "MPIJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob")
    },
}
KINDS = tuple(kind for _, kind in _MAKERS)
"""The kinds whose pods are made here."""
