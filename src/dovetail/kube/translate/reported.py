# SPDX-License-Identifier: Apache-2.0
"""What objects report that the core decides nothing by, for a process that shows it: the health of GPUs, the objects of
leases, finished pods, and what was noted while objects were read. As batches of changes from the process that reads the
cluster.

Rules
- A batch is JSON: the objects of one resource, as on the wire, each under its key; null for one that is gone. Of a
  GPUNode it has only what views show; of pods only those that are finished.
- The newest MOST_ENDED finished pods are kept. Where there are more, the namespace with the most loses its oldest one:
  a namespace with many takes nothing from the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dovetail.core.json_text import decode_json
from dovetail.kube.api.changes import Change
from dovetail.kube.api.resources import CONTROL_PLANES, GPU_LEASES, GPU_NODES, LEASE_REQUESTS, PODS, Resource
from dovetail.kube.objects.leases import AgentControlPlane, GPULease, LeaseRequest
from dovetail.kube.objects.pods import Pod
from dovetail.kube.objects.topology import GPUNode, GPUNodeSpec, GPUNodeStatus
from dovetail.kube.translate import pod_status
from dovetail.kube.translate.ended import EndedPod
from dovetail.kube.translate.lease_records import LeaseObjects
from dovetail.kube.translate.read_notes import ReadNotes
from dovetail.kube.translate.translator import Translator

T = TypeVar("T")
_GONE = Raw(b"null")
_NOTES = "notes"
_NOTHING = ReadNotes()
MOST_ENDED = 20_000
WHOLE = (GPU_NODES, CONTROL_PLANES, LEASE_REQUESTS, GPU_LEASES)
"""The resources of which all objects are reported."""
RESOURCES = frozenset({PODS, *WHOLE})


class _Batch(Struct, frozen=True):
    resource: str
    objects: tuple[tuple[str, Raw], ...]


def of_interest(resource: Resource, changes: Iterable[Change[Any]], scheduler_name: str) -> list[Change[Any]]:
    """The changes that belong into a batch."""
    if resource != PODS:
        return list(changes) if resource in RESOURCES else []
    return [
        one
        for one in changes
        if one.kind == "deleted"
        or (pod_status.is_finished(one.object) and one.object.spec.scheduler_name == scheduler_name)
    ]


def batch_of(resource: Resource, changes: Iterable[Change[Any]]) -> bytes:
    """The batch of these changes, in their order."""
    objects = tuple(
        (
            f"{one.object.metadata.namespace}/{one.object.metadata.name}" if resource.namespaced else
            one.object.metadata.name,
            _GONE if one.kind == "deleted" else Raw(msgspec.json.encode(_part(one.object))),
        )
        for one in changes
    )  # fmt: skip
    return msgspec.json.encode(_Batch(resource.plural, objects))


def notes_batch(notes: Iterable[tuple[str, ReadNotes]]) -> bytes:
    """The batch of what is noted of these objects now: "Node NAME", "Pod NAMESPACE/NAME"."""
    rows = tuple((about, Raw(msgspec.json.encode(one)) if one != _NOTHING else _GONE) for about, one in notes)
    return msgspec.json.encode(_Batch(_NOTES, rows))


def _part(object: Any) -> Any:
    """What is shown of an object."""
    if not isinstance(object, GPUNode):
        return object
    status = object.status
    shown = GPUNodeStatus(
        gpus=status.gpus, nics=status.nics, quarantine=status.quarantine, readiness=status.readiness,
        foreign_processes=status.foreign_processes, holder_processes=status.holder_processes,
    )  # fmt: skip
    return replace(object, spec=GPUNodeSpec(maintenance=object.spec.maintenance), status=shown)


class ReportedObjects:
    """The objects as they were reported last."""

    def __init__(self, scheduler_name: str) -> None:
        self._translator = Translator(scheduler_name)
        self._gpu_nodes: dict[str, GPUNode] = {}
        self._planes: dict[str, AgentControlPlane] = {}
        self._requests: dict[str, LeaseRequest] = {}
        self._leases: dict[str, GPULease] = {}
        self._notes: dict[str, ReadNotes] = {}
        self._ended: dict[str, dict[str, EndedPod]] = {}
        self._count = 0

    def take(self, batch: bytes) -> None:
        """Follow one batch. Raises JsonError."""
        found = decode_json(batch, _Batch)
        if found.resource == PODS.plural:
            for key, text in found.objects:
                self._forget(key)
                if text != _GONE:
                    self._keep(key, decode_json(text, Pod))
            return
        books: dict[str, tuple[dict[str, Any], type[Any]]] = {
            GPU_NODES.plural: (self._gpu_nodes, GPUNode),
            CONTROL_PLANES.plural: (self._planes, AgentControlPlane),
            LEASE_REQUESTS.plural: (self._requests, LeaseRequest),
            GPU_LEASES.plural: (self._leases, GPULease),
            _NOTES: (self._notes, ReadNotes),
        }
        book, kind = books[found.resource]
        for key, text in found.objects:
            if text == _GONE:
                book.pop(key, None)
            else:
                book[key] = decode_json(text, kind)

    def gpu_node(self, name: str) -> GPUNode | None:
        """The GPUNode of a node."""
        return self._gpu_nodes.get(name)

    def notes(self, about: str) -> ReadNotes:
        """What was noted while an object was read."""
        return self._notes.get(about, _NOTHING)

    @property
    def leases(self) -> LeaseObjects:
        """The objects of leases."""
        return LeaseObjects(
            tuple(self._planes.values()), tuple(self._requests.values()), tuple(self._leases.values())
        )  # fmt: skip

    @property
    def namespaces(self) -> set[str]:
        """Those of all these objects."""
        found = {key.partition("/")[0] for book in (self._planes, self._requests, self._leases) for key in book}
        return found | set(self._ended)

    def ended(self, namespace: str = "") -> Iterator[EndedPod]:
        """The finished pods of our scheduler: all, or those of a namespace."""
        for there in (self._ended.get(namespace, {}),) if namespace else self._ended.values():
            yield from there.values()

    def _keep(self, key: str, obj: Pod) -> None:
        self._translator.over = [obj]
        for pod in self._translator.ended():
            self._ended.setdefault(key.partition("/")[0], {})[key] = pod
            self._count += 1
        if self._count > MOST_ENDED:
            most = max(self._ended.values(), key=len)
            self._forget(next(iter(most)))

    def _forget(self, key: str) -> None:
        namespace = key.partition("/")[0]
        there = self._ended.get(namespace, {})
        if there.pop(key, None) is not None:
            self._count -= 1
            if not there:
                del self._ended[namespace]
