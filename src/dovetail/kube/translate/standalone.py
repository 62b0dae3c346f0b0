# SPDX-License-Identifier: Apache-2.0
"""Objects that are translated independently: namespaces, storage, device classes and claims, queues, budgets.

Rules
- An event is reported only if the record differs from the last one reported.
- The usage of a queue is read when the queue is first reported: later writes of its status are no event. A queue that
  was recreated under the name is reported as a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol, TypeVar

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.dra.types import Claim
from dovetail.core.queues.types import Budget, Queue
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects import base, storage
from dovetail.kube.objects import queues as objects_queue
from dovetail.kube.objects.claims import DeviceClass, ResourceClaim
from dovetail.kube.objects.fabric import Fabric
from dovetail.kube.translate import budgets, nodes, queues, volumes
from dovetail.kube.translate.claims import claim, device_class
from dovetail.kube.translate.fabrics import fabric_speeds

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
R = TypeVar("R")


class Find(Protocol):
    """Called with the findings of an object ("Node NAME"), and of a node with the kind of the object that describes its
    GPUs."""

    def __call__(self, about: str, findings: tuple[LayoutFinding, ...], origin: str = "") -> None: ...


class AnyChange(Protocol[T_co]):
    """A change from a reflector; for "deleted", `object` is the last state."""

    @property
    def kind(self) -> Literal["added", "modified", "deleted"]: ...
    @property
    def object(self) -> T_co: ...


class Records:
    """Each method takes the changes of one resource and returns their events, in order. `find` receives the findings of
    an object ("Queue NAME"): values that are not used."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._reported: dict[type, dict[str, Any]] = {}

    def namespaces(self, changes: Iterable[AnyChange[base.Namespace]]) -> list[ev.Event]:
        return self._report(changes, nodes.namespace, lambda r: r.name, ev.NamespaceChanged, ev.NamespaceRemoved)

    def claims(self, changes: Iterable[AnyChange[storage.PersistentVolumeClaim]]) -> list[ev.Event]:
        return self._report(changes, volumes.claim, lambda r: r.key, ev.VolumeClaimChanged, ev.VolumeClaimRemoved)

    def volumes(self, changes: Iterable[AnyChange[storage.PersistentVolume]]) -> list[ev.Event]:
        return self._report(changes, volumes.volume, lambda r: r.name, ev.VolumeChanged, ev.VolumeRemoved)

    def storage_classes(self, changes: Iterable[AnyChange[storage.StorageClass]]) -> list[ev.Event]:
        translated = volumes.storage_class
        return self._report(changes, translated, lambda r: r.name, ev.StorageClassChanged, ev.StorageClassRemoved)

    def fabrics(self, changes: Iterable[AnyChange[Fabric]]) -> list[ev.Event]:
        return self._report(changes, fabric_speeds, lambda r: r.name, ev.FabricChanged, ev.FabricRemoved)

    def device_classes(self, changes: Iterable[AnyChange[DeviceClass]]) -> list[ev.Event]:
        return self._report(changes, device_class, lambda r: r.name, ev.DeviceClassChanged, ev.DeviceClassRemoved)

    def resource_claims(self, changes: Iterable[AnyChange[ResourceClaim]]) -> list[ev.Event]:
        reported = self._reported.setdefault(Claim, {})

        def translated(obj: ResourceClaim) -> Claim:
            return claim(obj, reported.get(f"{obj.metadata.namespace}/{obj.metadata.name}"))

        return self._report(changes, translated, lambda r: r.key, ev.ClaimChanged, ev.ClaimRemoved)

    def queues(self, changes: Iterable[AnyChange[objects_queue.Queue]]) -> list[ev.Event]:
        changes = list(changes)
        for change in changes:
            findings = queues.read_usage(change.object)[1] if change.kind != "deleted" else ()
            self._find(f"Queue {change.object.metadata.name}", findings)
        reported = self._reported.setdefault(Queue, {})

        def translated(obj: objects_queue.Queue) -> Queue:
            record = queues.queue(obj)
            before: Queue | None = reported.get(record.name)
            return record if before is None or before.uid != record.uid else replace(record, usage=before.usage)

        return self._report(changes, translated, lambda r: r.name, ev.QueueChanged, ev.QueueRemoved)

    def usages(self, written: Iterable[objects_queue.Queue]) -> list[ev.Event]:
        """These queues begin again with the usage that their status has now."""
        events, reported = list[ev.Event](), self._reported.setdefault(Queue, {})
        for record in map(queues.queue, written):
            if record.usage is not None and record.name in reported and reported[record.name] != record:
                reported[record.name] = record
                events += ev.QueueRemoved(record.name), ev.QueueChanged(record)
        return events

    def budgets(self, changes: Iterable[AnyChange[base.PodDisruptionBudget]]) -> list[ev.Event]:
        changes = list(changes)
        for change in changes:
            record, findings = budgets.budget(change.object)
            self._find(f"PodDisruptionBudget {record.key}", () if change.kind == "deleted" else findings)

        def translated(obj: base.PodDisruptionBudget) -> Budget:
            return budgets.budget(obj)[0]

        return self._report(changes, translated, lambda r: r.key, ev.BudgetChanged, ev.BudgetRemoved)

    def _report(
        self,
        changes: Iterable[AnyChange[T]],
        translated: Callable[[T], R],
        key_of: Callable[[R], str],
        changed: Callable[[R], ev.Event],
        removed: Callable[[str], ev.Event],
    ) -> list[ev.Event]:
        events: list[ev.Event] = []
        for change in changes:
            record = translated(change.object)
            key, reported = key_of(record), self._reported.setdefault(type(record), {})
            if change.kind == "deleted":
                if reported.pop(key, None) is not None:
                    events.append(removed(key))
            elif reported.get(key) != record:
                reported[key] = record
                events.append(changed(record))
        return events
