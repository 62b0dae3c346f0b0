# SPDX-License-Identifier: Apache-2.0
"""Workload objects in manifests, each followed by the pods that its controller would make of it.

Rules
- `makers` has the pods of each kind: as many as run at the same time.
- A workload makes no pods if it is suspended or paused, or if pods of it are among the documents. In what describes a
  cluster, neither does one with a uid: it comes from an API server, where its controller has made them.
- Pods are counted before the first is made. All workloads together make at most MOST_PODS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.kube.gangs.dialects import GROVE_LABEL
from dovetail.kube.gangs.owners import (
    DISAGGREGATED_LABEL,
    JOBSET_LABEL,
    LWS_LABEL,
    OWNER_KINDS,
    RAY_LABEL,
    TRAINING_LABEL,
)
from dovetail.kube.manifests.documents import Document
from dovetail.kube.manifests.made import MadePod, MadePods, Manifest, WorkloadObject
from dovetail.kube.manifests.makers import MAKERS
from dovetail.kube.manifests.parts import MOST_PODS, ManifestPart, WrongField
from dovetail.kube.manifests.serving_workloads import PART_OF, STORM_LABEL
from dovetail.kube.manifests.templates import group_kind

_NAMESPACE = "default"
_NAMING = (JOBSET_LABEL, LWS_LABEL, DISAGGREGATED_LABEL, STORM_LABEL, TRAINING_LABEL, RAY_LABEL)
_KEPT = {(kind.resource.group, kind.resource.kind) for kind in OWNER_KINDS}


class WorkloadFault(Exception):
    """The pods of a workload cannot be made. `field` is the path of the value that is to blame."""

    def __init__(self, document: Document, field: str, message: str) -> None:
        super().__init__(document, field, message)
        self.document = document
        self.field = field
        self.message = message

    @property
    def workload(self) -> str:
        return _shown(self.document.value)

    def __str__(self) -> str:
        line = self.document.line(self.field)
        place = f"{self.document.file}:{line}" if line else f"{self.document.file} {self.document.path}".rstrip()
        return f"{place}: {self.workload}: {self.field}: {self.message}"


class Expansion(Struct, frozen=True):
    """The documents with the pods that were made, and the workloads of which none could be made."""

    documents: list[Document]
    faults: tuple[WorkloadFault, ...]


def expanded(documents: Iterable[Document], *, of_cluster: bool = False) -> Expansion:
    """The documents, each workload followed by its pods. `of_cluster`: they describe a cluster, and workloads with a
    uid have their pods already. Objects that matter only for their pods are replaced by these."""
    documents = list(documents)
    if not any(_makes_pods(document, of_cluster) for document in documents):
        return Expansion(documents, ())
    owned = {owner for document in documents for owner in _owners(document.value)}
    found: list[Document] = []
    faults: list[WorkloadFault] = []
    room = MOST_PODS
    for document in documents:
        name, kind = _called(document.value)
        has_pods = (name, kind) in owned or (name, "") in owned
        try:
            made = _made(document, room) if _makes_pods(document, of_cluster) and not has_pods else []
        except WrongField as wrong:
            faults.append(WorkloadFault(document, *wrong.args))
            made = []
        room -= len(made)
        if not made or group_kind(document.value) in _KEPT:
            found.append(document)
        found += made
    return Expansion(found, tuple(faults))


def _metadata(value: Any) -> Mapping[str, Any]:
    meta = value.get("metadata") if isinstance(value, dict) else None
    return meta if isinstance(meta, dict) else {}


def _called(value: Any) -> tuple[str, str]:
    meta = _metadata(value)
    return f"{meta.get('namespace') or _NAMESPACE}/{meta.get('name')}", group_kind(value)[1]


def _shown(value: Any) -> str:
    name, kind = _called(value)
    return f"{kind} {name}"


def _owners(value: Any) -> Iterator[tuple[str, str]]:
    """("namespace/name", kind) of the workloads that the object belongs to, by its owners and labels. A ReplicaSet is
    called after its Deployment; a label names an object of any kind ("")."""
    meta = _metadata(value)
    namespace = meta.get("namespace") or _NAMESPACE
    references, labels = meta.get("ownerReferences"), meta.get("labels")
    for one in references if isinstance(references, list) else ():
        name, kind = (str(one.get("name")), str(one.get("kind"))) if isinstance(one, dict) else ("", "")
        yield f"{namespace}/{name}", kind
        if kind == "ReplicaSet":
            yield f"{namespace}/{name.rpartition('-')[0]}", "Deployment"
    if group_kind(value) == ("", "Pod") and isinstance(labels, dict):
        yield from ((f"{namespace}/{labels[label]}", "") for label in _NAMING if label in labels)
        if GROVE_LABEL in labels:
            yield f"{namespace}/{labels.get(PART_OF)}", "PodCliqueSet"


def _makes_pods(document: Document, of_cluster: bool) -> bool:
    return group_kind(document.value) in MAKERS and not (of_cluster and _metadata(document.value).get("uid"))


def _made(document: Document, room: int) -> list[Document]:
    """The pods of a workload, and the group that they start in. Raises WrongField."""
    value = document.value
    name = _metadata(value).get("name")
    if not isinstance(name, str):
        return []
    whole = ManifestPart({"spec": {}, **value}, "")
    spec = whole.inner("spec")
    policy = spec.inner("runPolicy", {}).value
    if True in (spec.value.get("suspend"), policy.get("suspend"), spec.value.get("paused")):
        return []
    namespace = _called(value)[0].partition("/")[0]
    workload = WorkloadObject(name, namespace, value["apiVersion"], value["kind"], whole, spec)
    parts: list[MadePods | Manifest] = []
    total = 0
    for part in MAKERS[group_kind(value)](workload):
        # Before the next one is made: a set of sets can have any number of them.
        if isinstance(part, MadePods) and (total := total + part.count) > room:
            left = f"{room} are left of the {MOST_PODS} that all workloads of an input may make"
            raise WrongField(part.field, f"makes {total} pods, and {left}")
        parts.append(part)
    own = replace(document, maker=_shown(value))
    return [
        one
        for part in parts
        for one in (
            (
                replace(own, value=_manifest(workload, part, part.pod(i)), template=part.template.path)
                for i in range(part.count)
            )
            if isinstance(part, MadePods)
            else (replace(own, value=part),)
        )
    ]


def _manifest(workload: WorkloadObject, part: MadePods, pod: MadePod) -> Manifest:
    template = part.template.inner("metadata", {})
    api_version, kind, name = pod.controller
    owner = {
        "apiVersion": api_version, "kind": kind, "name": name,
        "uid": f"{api_version.rpartition('/')[0]}/{kind}/{workload.namespace}/{name}",
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod.name, "namespace": workload.namespace,
            "labels": {**template.inner("labels", {}).value, **pod.labels},
            "annotations": {**template.inner("annotations", {}).value, **pod.annotations},
            "ownerReferences": [owner],
        },
        "spec": {**part.template.inner("spec").value, **pod.spec},
    }  # fmt: skip
