# SPDX-License-Identifier: Apache-2.0
"""Translates changes of Kubernetes objects to the events of the core: the state between the reflectors and `core.step`.

Rules
- An event is reported only if the translated record differs from the last one reported: heartbeats and status writes
  that the core does not read end here. A finished pod is reported as removed; if its kubelet rejected it, the rejection
  with the owner of the pod comes first. Pods that were finished when first seen are in `finished`, objects that are
  translated independently in `standalone`.
- Gangs are settled at the end of each batch: a gang depends on the object that declares it and on its pods. When the
  sub-gang of a pod becomes known, the pod is reported again.
- A pod without a queue or user takes that of its PodGroup or workload object.
- For a pod that is bound or has a decision, only the record counts (see `bound`). Later changes of its metadata, its
  PodGroup, its owner or its namespace are kept, and used if the bind fails.
- An owner is requested once. It is requested again when pods of its gang appear or disappear while some are unbound:
  controllers change the number of pods in their object before they change the pods. A pod without a gang does not wait
  for its owner. A gang without object and without pods is forgotten.
- Only pods with the name of this scheduler belong to gangs; the others count for the resources that they hold.
- A node is reported with the hardware data of other objects (see `wiring`). Contradictions in them, and other unused
  values that block no pod, are in `findings`; `on_findings` is called when they change.
No input or output here: the driver fetches the requested owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.model import Gang, Node
from dovetail.kube.gangs import declared as gangs
from dovetail.kube.gangs import owners
from dovetail.kube.gangs.declared import Declared, Membership, OwnerRef
from dovetail.kube.gangs.dialects import Dialect
from dovetail.kube.gangs.members import MemberCounts
from dovetail.kube.nodes.admissions import Admissions
from dovetail.kube.nodes.device_differences import DeviceDifferences
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.nodes.wiring import Wiring, Wirings
from dovetail.kube.objects import base, storage, topology
from dovetail.kube.objects.claims import DeviceTaintRule, ResourceSlice
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.translate import pods as translate
from dovetail.kube.translate.bound import BoundRecords, read
from dovetail.kube.translate.finished import Finished
from dovetail.kube.translate.known import KnownPod, pod_known
from dovetail.kube.translate.pools import Pools
from dovetail.kube.translate.standalone import AnyChange, Records

T = TypeVar("T")
OnFindings = Callable[[str, tuple[LayoutFinding, ...]], None]


class PodRef(Struct, frozen=True):
    """The identity of a pod in requests to the API server."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class GangRef(Struct, frozen=True):
    """The object with the status of a gang."""

    dialect: Dialect[Any]
    namespace: str
    name: str


def _nobody(node: topology.GPUNode) -> None:
    """The listener until one is set."""


class Translator:
    """Each method takes the changes of one resource and returns their events, in order."""

    def __init__(
        self, scheduler_name: str = "dovetail", on_findings: OnFindings | None = None, *, believes: bool = False
    ) -> None:
        """believes: the labels and annotations of a bound pod without a record count as those of a waiting pod, as in
        files written by hand."""
        self.findings: dict[str, tuple[LayoutFinding, ...]] = {}
        """The findings by object: "Node NAME", "Pod NAMESPACE/NAME", "ResourceSlice NAME", "Queue NAME" and so on."""
        self._on_findings = on_findings
        self._scheduler_name = scheduler_name
        self._pods: dict[str, KnownPod] = {}
        self._finished = Finished(scheduler_name)
        self._nodes: dict[str, tuple[base.Node, Node]] = {}
        self._csi_nodes: dict[str, storage.CSINode] = {}
        self._wirings = Wirings()
        self.gpu_node = self._wirings.gpu_node
        """Returns the GPUNode of a node as last read."""
        self.pools = Pools(self._find)
        self.admissions = Admissions()
        self.device_differences = DeviceDifferences()
        self.memory = BoundRecords(believes)
        self.on_gpu_node: Callable[[topology.GPUNode], None] = _nobody
        """Called with each changed GPUNode."""
        self.schedulers: dict[str, str] | None = None
        """If set: collects the schedulerName of each pod of another scheduler."""
        self.records = Records(self._find)
        # Gangs, all by the id of the declaration: the member pods, the declaration, the declaration when its pods were
        # last reported, the object that declares it, and the gangs reported for it.
        self._members: dict[str, MemberCounts] = {}
        self._declared: dict[str, Declared] = {}
        self._settled: dict[str, Declared] = {}
        self._objects: dict[str, GangRef] = {}
        self._gangs: dict[str, dict[str, Gang]] = {}
        # Owners: that of each gang (pods may name it in several API versions: the first counts), the gangs of each
        # owner, the fetched objects, and the owners to fetch, unless none of their pods waits (see wanted_owners).
        self._owner_of: dict[str, OwnerRef] = {}
        self._owned: dict[OwnerRef, dict[str, Membership]] = {}
        self._read: dict[OwnerRef, owners.OwnerRead] = {}
        self.stale: dict[OwnerRef, None] = {}

    def pods(self, changes: Iterable[AnyChange[PodObject]]) -> list[ev.Event]:
        changes = list(changes)
        if len(changes) > 1:
            changes = _last_ones(changes)
        events: list[ev.Event] = []
        unsettled: dict[str, None] = {}
        over = [change for change in changes if change.object.status.phase in translate.FINISHED]
        if over:
            events += [event for obj in self._finished.missed(over) for event in self._ran_before(obj)]
        for change in changes:
            if change.kind == "deleted" or change.object.status.phase in translate.FINISHED:
                self._remove(change, events, unsettled)
            else:
                self._put(change.object, events, unsettled)
        for declared_id in unsettled:
            events += self._settle(declared_id)
        return events

    def _remove(self, change: AnyChange[PodObject], events: list[ev.Event], unsettled: dict[str, None]) -> None:
        """Process a pod that is deleted or finished."""
        obj, uid = change.object, change.object.metadata.uid
        known = self._pods.pop(uid, None)
        self.admissions.drop(uid)
        self.memory.drop(uid)
        events += self._finished.rejection(change, known is not None)
        if known is None:
            return
        self._find(f"Pod {known.reported.key}", ())
        if known.member is not None:
            self._leave(uid, known.member, unsettled)
        events.append(_removed(obj) if translate.is_finished(obj) else ev.PodRemoved(uid))

    def decided(self, uid: str, queue: str, node: str, devices: str) -> str:
        """The core has decided to bind the pod to the node, for the queue and with these devices. From now on its
        reported values are fixed, until it is gone or `not_bound`. Returns its record, to write with the Binding."""
        known = self._pods[uid]
        gang = self._gangs.get(known.member.id, {}).get(known.reported.gang) if known.member is not None else None
        kept = self.memory.decide(known.reported, queue, gang, devices, node)
        known.bound = kept.bound
        self._count_member(uid, known)
        return kept.text

    def not_bound(self, uid: str) -> list[ev.Event]:
        """The bind has failed: report the pod in its current state."""
        known = self._pods.get(uid)
        if known is None or known.bound is None or known.reported.node:
            return []
        self.memory.drop(uid)
        known.bound = None
        self._count_member(uid, known)
        if known.late is not None:
            events: list[ev.Event] = []
            unsettled: dict[str, None] = {}
            self._put(known.late, events, unsettled)
            return events + [event for declared_id in unsettled for event in self._settle(declared_id)]
        return [ev.PodChanged(known.reported)] if self._add_gang(known) else []

    def _ran_before(self, obj: PodObject) -> list[ev.Event]:
        known = pod_known(obj, self._scheduler_name, read(obj))
        self._add_gang(known)
        reported = replace(known.reported, gang="", devices=None, instances=())
        return [ev.PodChanged(reported), _removed(obj, known.reported.gang)]

    def _put(self, obj: PodObject, events: list[ev.Event], unsettled: dict[str, None]) -> None:
        uid = obj.metadata.uid
        ours = obj.spec.scheduler_name == self._scheduler_name
        old = self._pods.get(uid)
        known = pod_known(obj, self._scheduler_name, self.memory.of(obj, ours), old)
        if self.schedulers is not None and not ours:
            self.schedulers[known.reported.key] = obj.spec.scheduler_name
        member, before = known.member, old.member if old is not None else None
        if before is not None and before != member:
            self._leave(uid, before, unsettled)
        if member is not None:
            if before != member:
                self._join(uid, member, unsettled)
            elif old is not None and old.options != known.options:
                unsettled[member.id] = None
            self._count_member(uid, known)
            self._add_gang(known)
        self._pods[uid] = known
        self.admissions.put(obj)
        if obj.spec.node_name:
            self._correct_devices(known)
        elif known.bound is not None:
            known.late = obj
        if old is None or old.reported != known.reported:
            events.append(ev.PodChanged(known.reported))

    def _count_member(self, uid: str, known: KnownPod) -> None:
        """Update the pod's contribution to its gang."""
        if known.member is not None:
            self._members.setdefault(known.member.id, MemberCounts()).put(uid, known)

    def _join(self, uid: str, member: Membership, unsettled: dict[str, None]) -> None:
        unsettled[member.id] = None
        if member.owner is not None:
            owner = self._owner_of.setdefault(member.id, member.owner)
            self._owned.setdefault(owner, {})[member.id] = member
            if not member.alone or owner not in self._read:
                self.stale[owner] = None
            if owner in self._read and member.id not in self._declared:
                self._declare(member, owner)
        elif member.id.startswith(gangs.NAMED):
            self._declared.setdefault(member.id, gangs.named(member))

    def _leave(self, uid: str, member: Membership, unsettled: dict[str, None]) -> None:
        unsettled[member.id] = None
        members = self._members[member.id]
        members.drop(uid)
        owner = self._owner_of.get(member.id)
        if owner is not None and not member.alone:
            self.stale[owner] = None
        if members:
            return
        del self._members[member.id]
        self._settled.pop(member.id, None)
        if member.id not in self._objects:
            self._declared.pop(member.id, None)
        if owner is not None:
            del self._owner_of[member.id], self._owned[owner][member.id]
            if not self._owned[owner]:
                for books in (self._owned, self._read, self.stale):
                    books.pop(owner, None)

    def _add_gang(self, pod: KnownPod) -> bool:
        """Update the values that come from the pod's gang; whether that changed the pod."""
        return pod.add(self._declared.get(pod.member.id) if pod.member is not None else None)

    def _correct_devices(self, pod: KnownPod) -> bool:
        """Correct the devices of a pod that has others than chosen; whether that changed the pod."""
        before = pod.reported
        pod.reported, findings = self.device_differences.corrected(before, pod.written)
        self._find(f"Pod {before.key}", pod.findings + findings)
        return pod.reported != before

    def _settle(self, declared_id: str) -> list[ev.Event]:
        """Report the gangs of one declaration and its pods, as far as they have changed. Each pod was reported with the
        declaration at that time; if the declaration has changed since, all of them are checked again."""
        events: list[ev.Event] = []
        members, declared = self._members.get(declared_id), self._declared.get(declared_id)
        now: list[Gang] = []
        if declared is not None:
            now = gangs.records(declared, *((members.options(), members.begun()) if members is not None else ((),)))
        before = self._gangs.pop(declared_id, {})
        if now:
            self._gangs[declared_id] = {gang.id: gang for gang in now}
        events += [ev.GangChanged(gang) for gang in now if before.get(gang.id) != gang]
        events += [ev.GangRemoved(gone) for gone in before if gone not in self._gangs.get(declared_id, {})]
        if members is not None and declared != self._settled.get(declared_id):
            known = [self._pods[uid] for uid in members]
            events += [ev.PodChanged(pod.reported) for pod in known if self._add_gang(pod)]
            if declared is not None:
                self._settled[declared_id] = declared
            else:
                del self._settled[declared_id]
        return events

    def pod_groups(self, dialect: Dialect[T], changes: Iterable[AnyChange[T]]) -> list[ev.Event]:
        """Changes of a dialect's objects, in any served version."""
        events: list[ev.Event] = []
        for change in changes:
            declared = dialect.declare(change.object)
            gang = declared.gang
            if change.kind == "deleted":
                self._declared.pop(gang.id, None)
                self._objects.pop(gang.id, None)
            else:
                self._declared[gang.id] = declared
                self._objects[gang.id] = GangRef(dialect, gang.namespace, gang.name)
            events += self._settle(gang.id)
        return events

    def wanted_owners(self) -> list[OwnerRef]:
        """The owners to fetch and pass to `owner`; each stays in the list until then."""
        for ref in [ref for ref in self.stale if ref in self._read and not self._has_pending(ref)]:
            del self.stale[ref]
        return list(self.stale)

    def _has_pending(self, ref: OwnerRef) -> bool:
        return any(self._members[gang].waiting for gang in self._owned[ref])

    def owner(self, ref: OwnerRef, document: Mapping[str, object] | None) -> list[ev.Event]:
        """Take the object of a requested owner; None if it does not exist. An owner without pods is ignored."""
        if ref not in self._owned:
            return []
        self.stale.pop(ref, None)
        self._read[ref] = owners.read(ref, document)
        events: list[ev.Event] = []
        for member in self._owned[ref].values():
            self._declare(member, ref)
            events += self._settle(member.id)
        return events

    def _declare(self, member: Membership, owner: OwnerRef) -> None:
        declared = owners.declare(member, self._read[owner])
        if declared is not None:
            self._declared[member.id] = declared
        else:
            self._declared.pop(member.id, None)

    def nodes(self, changes: Iterable[AnyChange[base.Node]]) -> list[ev.Event]:
        events: list[ev.Event] = []
        for change in changes:
            name = change.object.metadata.name
            if change.kind != "deleted":
                events += self._node(change.object)
            elif self._nodes.pop(name, None) is not None:
                self._wirings.forget(name)
                self._find(f"Node {name}", ())
                events.append(ev.NodeRemoved(name))
        return events

    def csi_nodes(self, changes: Iterable[AnyChange[storage.CSINode]]) -> list[ev.Event]:
        """CSINodes have the attach limits of nodes, which are reported with the nodes."""
        events: list[ev.Event] = []
        for change in changes:
            name = change.object.metadata.name
            if change.kind == "deleted":
                self._csi_nodes.pop(name, None)
            else:
                self._csi_nodes[name] = change.object
            events += self._node_again(name)
        return events

    def gpu_nodes(self, changes: Iterable[AnyChange[topology.GPUNode]]) -> list[ev.Event]:
        """GPUNodes have the hardware data of nodes, and the pods that got other devices than chosen."""
        changes = list(changes)
        events = self._wired(changes, self._wirings.put_gpu_node)
        uids = [
            uid for change in changes for uid in self.device_differences.put(change.object, change.kind == "deleted")
        ]
        known = [self._pods[uid] for uid in uids if uid in self._pods]
        for change in changes:
            self.on_gpu_node(change.object)
        return events + [ev.PodChanged(pod.reported) for pod in known if self._correct_devices(pod)]

    def node_topologies(self, changes: Iterable[AnyChange[topology.NodeResourceTopology]]) -> list[ev.Event]:
        return self._wired(changes, self._wirings.put_topology)

    def resource_slices(self, changes: Iterable[AnyChange[ResourceSlice]]) -> list[ev.Event]:
        """Slices form pools of devices; those of GPUs also have hardware data of their node."""
        changes = list(changes)
        events = [event for c in changes for event in self.pools.put_slice(c.object, c.kind == "deleted")]
        return events + self._wired(changes, self._wirings.put_slice)

    def taint_rules(self, changes: Iterable[AnyChange[DeviceTaintRule]]) -> list[ev.Event]:
        return [event for c in changes for event in self.pools.put_rule(c.object, c.kind == "deleted")]

    def _wired(self, changes: Iterable[AnyChange[T]], put: Callable[[T, bool], str]) -> list[ev.Event]:
        """Apply a batch of objects with hardware data of nodes; each of the nodes is reported once."""
        names = dict.fromkeys([put(change.object, change.kind == "deleted") for change in changes])
        return [event for name in names for event in self._node_again(name)]

    def wiring(self, node: str) -> Wiring:
        """The hardware data of a node, with its source."""
        return self._wirings.of(self._nodes[node][0]) if node in self._nodes else Wiring()

    def _node_again(self, name: str) -> list[ev.Event]:
        return self._node(self._nodes[name][0]) if name in self._nodes else []

    def _node(self, obj: base.Node) -> list[ev.Event]:
        name = obj.metadata.name
        wiring = self._wirings.of(obj)
        self._find(f"Node {name}", wiring.findings)
        gpu_node = self.gpu_node(name)
        gone = gpu_node is not None and gpu_node.status.plugin_gone
        record = translate.node(obj, self._csi_nodes.get(name), wiring.layout, wiring.inventory, wiring.parts, gone)
        reported = self._nodes.get(name)
        self._nodes[name] = (obj, record)
        return [ev.NodeChanged(record)] if reported is None or reported[1] != record else []

    def _find(self, about: str, findings: tuple[LayoutFinding, ...]) -> None:
        if self.findings.get(about, ()) == findings:
            return
        if findings:
            self.findings[about] = findings
        else:
            del self.findings[about]
        if self._on_findings is not None:
            self._on_findings(about, findings)

    def pod_ref(self, uid: str) -> PodRef | None:
        """The identity of a pod in requests to the API server; None if the pod is gone or finished."""
        known = self._pods.get(uid)
        return PodRef(known.reported.namespace, known.reported.name, uid) if known is not None else None

    def gang_ref(self, gang_id: str) -> GangRef | None:
        """The object with the status of a gang or sub-gang; None if no PodGroup declares it."""
        return self._objects.get(gang_id) or self._objects.get(gang_id.rpartition("/")[0])


def _last_ones(changes: list[AnyChange[PodObject]]) -> list[AnyChange[PodObject]]:
    """The changes, without a modification of a pod that is followed by a later one: a client may write the same pod at
    a high rate. Changes to new, finished or deleted are all kept."""
    later: dict[str, AnyChange[PodObject]] = {}
    found = []
    for change in reversed(changes):
        uid = change.object.metadata.uid
        if uid not in later or not (_passes(change) and _passes(later[uid])):
            found.append(change)
        later[uid] = change
    found.reverse()
    return found


def _passes(change: AnyChange[PodObject]) -> bool:
    return change.kind == "modified" and not translate.is_finished(change.object)


def _removed(obj: PodObject, gang: str = "") -> ev.PodRemoved:
    """The event for a finished pod."""
    ended_ms = translate.ended_ms(obj)
    return ev.PodRemoved(obj.metadata.uid, ended_ms, translate.succeeded(obj), translate.failed(obj), gang)
