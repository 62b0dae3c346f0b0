# SPDX-License-Identifier: Apache-2.0
"""From changes of Kubernetes objects to the events of the core: the memory between the reflectors and `core.step`.

Rules
- An event is told only where the translated record differs from the one told last: heartbeats and status writes that
  the core does not read end here. A finished pod is told as removed, and before that who made it and which kubelet did
  not admit it. What is told of pods that had finished before is in `finished`, what each object tells by itself in
  `records`.
- Gangs are settled at the end of each batch: a gang changes with what declares it and with what its pods say. When it
  becomes known into which sub-gang a pod belongs, the pod is told again.
- A pod that names no queue or no user takes that of its PodGroup or workload object.
- Of a pod that is bound, and of one that was decided, only the record counts (see `bound`): what its metadata, its
  PodGroup, its owner or its namespace say later is kept aside, and used where the bind fails.
- An owner is wanted once, and while its gang has pods that are not bound again after pods came or went: controllers
  change the number of pods in their object before they change the pods. Who is in no gang does not wait for it. A gang
  without object and without pods is forgotten.
- Only pods that name this scheduler belong to gangs; the others are told for what they hold.
- A node is told with what other objects tell of its inside (see `wiring`). What is contradictory in them, and what else
  is not used and yet keeps nothing from being scheduled, is in `findings`, and told to `on_findings` when it changes.
No input or output here: the driver fetches the wanted owners.
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
from dovetail.kube.nodes.given import Given
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
    """A pod, as requests to the API server name it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class GangRef(Struct, frozen=True):
    """The object whose status tells about a gang."""

    dialect: Dialect[Any]
    namespace: str
    name: str


def _nobody(node: topology.GPUNode) -> None:
    """Nobody listens."""


class Translator:
    """Every method takes what changed and returns the events that it means, in order."""

    def __init__(
        self, scheduler_name: str = "dovetail", on_findings: OnFindings | None = None, *, believes: bool = False
    ) -> None:
        """believes: what stands on bound pods that have no record counts as if they waited, as in files that people
        wrote."""
        self.findings: dict[str, tuple[LayoutFinding, ...]] = {}
        """By "Node NAME", "Pod NAMESPACE/NAME", "ResourceSlice NAME", "Queue NAME" and so on."""
        self._on_findings = on_findings
        self._scheduler_name = scheduler_name
        self._pods: dict[str, KnownPod] = {}
        self._finished = Finished(scheduler_name)
        self._nodes: dict[str, tuple[base.Node, Node]] = {}
        self._csi_nodes: dict[str, storage.CSINode] = {}
        self._wirings = Wirings()
        self.gpu_node = self._wirings.gpu_node
        """The GPUNode of a node, as it was read."""
        self.pools = Pools(self._find)
        self.admissions = Admissions()
        self.given = Given()
        self.memory = BoundRecords(believes)
        self.gpu_node_told: Callable[[topology.GPUNode], None] = _nobody
        """Hears of every GPUNode that is told."""
        self.schedulers: dict[str, str] | None = None
        """Where it is given: by pod that is not ours, the schedulerName that it has."""
        self.records = Records(self._find)
        # Gangs: pods by the id of what they belong to, what is known of it, what was when its pods were told last, the
        # objects that declare some, and the gangs that were told for each.
        self._members: dict[str, MemberCounts] = {}
        self._declared: dict[str, Declared] = {}
        self._settled: dict[str, Declared] = {}
        self._objects: dict[str, GangRef] = {}
        self._told: dict[str, dict[str, Gang]] = {}
        # Owners: that of each gang (pods may name it in several API versions: the first counts), the gangs that hang on
        # each, what was fetched, and those that are to be fetched, unless none of their pods waits (see wanted_owners).
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
        """A pod that is deleted or finished."""
        obj, uid = change.object, change.object.metadata.uid
        known = self._pods.pop(uid, None)
        self.admissions.drop(uid)
        self.memory.drop(uid)
        events += self._finished.rejection(change, known is not None)
        if known is None:
            return
        self._find(f"Pod {known.told.key}", ())
        if known.member is not None:
            self._leave(uid, known.member, unsettled)
        events.append(_removed(obj) if translate.is_finished(obj) else ev.PodRemoved(uid))

    def decided(self, uid: str, queue: str, node: str, devices: str) -> str:
        """The pod is to be bound to the node, for the queue, with these devices: from now on what it is told with
        counts, until it is gone or `not_bound`. Returns its record, to be written with the Binding."""
        known = self._pods[uid]
        gang = self._told.get(known.member.id, {}).get(known.told.gang) if known.member is not None else None
        kept = self.memory.decide(known.told, queue, gang, devices, node)
        known.bound = kept.bound
        self._say(uid, known)
        return kept.text

    def not_bound(self, uid: str) -> list[ev.Event]:
        """The pod was not bound after all: it is told as it is now."""
        known = self._pods.get(uid)
        if known is None or known.bound is None or known.told.node:
            return []
        self.memory.drop(uid)
        known.bound = None
        self._say(uid, known)
        if known.late is not None:
            events: list[ev.Event] = []
            unsettled: dict[str, None] = {}
            self._put(known.late, events, unsettled)
            return events + [event for declared_id in unsettled for event in self._settle(declared_id)]
        return [ev.PodChanged(known.told)] if self._add_gang(known) else []

    def _ran_before(self, obj: PodObject) -> list[ev.Event]:
        known = pod_known(obj, self._scheduler_name, read(obj))
        self._add_gang(known)
        told = replace(known.told, gang="", devices=None, instances=())
        return [ev.PodChanged(told), _removed(obj, known.told.gang)]

    def _put(self, obj: PodObject, events: list[ev.Event], unsettled: dict[str, None]) -> None:
        uid = obj.metadata.uid
        ours = obj.spec.scheduler_name == self._scheduler_name
        old = self._pods.get(uid)
        known = pod_known(obj, self._scheduler_name, self.memory.of(obj, ours), old)
        if self.schedulers is not None and not ours:
            self.schedulers[known.told.key] = obj.spec.scheduler_name
        member, before = known.member, old.member if old is not None else None
        if before is not None and before != member:
            self._leave(uid, before, unsettled)
        if member is not None:
            if before != member:
                self._join(uid, member, unsettled)
            elif old is not None and old.wishes != known.wishes:
                unsettled[member.id] = None
            self._say(uid, known)
            self._add_gang(known)
        self._pods[uid] = known
        self.admissions.put(obj)
        if obj.spec.node_name:
            self._add_given(known)
        elif known.bound is not None:
            known.late = obj
        if old is None or old.told != known.told:
            events.append(ev.PodChanged(known.told))

    def _say(self, uid: str, known: KnownPod) -> None:
        """What the pod says for its gang is as it is now."""
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
        """Bring what a pod's gang adds to it up to date; whether that changed the pod."""
        return pod.add(self._declared.get(pod.member.id) if pod.member is not None else None)

    def _add_given(self, pod: KnownPod) -> bool:
        """Correct the devices of a pod that has others than were chosen; whether that changed the pod."""
        before = pod.told
        pod.told, findings = self.given.corrected(before, pod.written)
        self._find(f"Pod {before.key}", pod.findings + findings)
        return pod.told != before

    def _settle(self, declared_id: str) -> list[ev.Event]:
        """Tell the gangs of a declared thing and its pods, as far as they differ from what was told. Each pod was told
        with what was known when it came: all are looked at again where that is another thing now."""
        events: list[ev.Event] = []
        members, declared = self._members.get(declared_id), self._declared.get(declared_id)
        now: list[Gang] = []
        if declared is not None:
            now = gangs.records(declared, *((members.wishes(), members.begun()) if members is not None else ((),)))
        before = self._told.pop(declared_id, {})
        if now:
            self._told[declared_id] = {gang.id: gang for gang in now}
        events += [ev.GangChanged(gang) for gang in now if before.get(gang.id) != gang]
        events += [ev.GangRemoved(gone) for gone in before if gone not in self._told.get(declared_id, {})]
        if members is not None and declared != self._settled.get(declared_id):
            known = [self._pods[uid] for uid in members]
            events += [ev.PodChanged(pod.told) for pod in known if self._add_gang(pod)]
            if declared is not None:
                self._settled[declared_id] = declared
            else:
                del self._settled[declared_id]
        return events

    def pod_groups(self, dialect: Dialect[T], changes: Iterable[AnyChange[T]]) -> list[ev.Event]:
        """Changes of a dialect's objects, of whatever version is served."""
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
        """Objects to be fetched and told to `owner`; they stay wanted until then."""
        for ref in [ref for ref in self.stale if ref in self._read and not self._has_pending(ref)]:
            del self.stale[ref]
        return list(self.stale)

    def _has_pending(self, ref: OwnerRef) -> bool:
        return any(self._members[gang].waiting for gang in self._owned[ref])

    def owner(self, ref: OwnerRef, document: Mapping[str, object] | None) -> list[ev.Event]:
        """What a wanted owner is; None where it does not exist. Owners that nobody needs any more are ignored."""
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
        """The attach limits of nodes, which are told with the nodes."""
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
        """GPUNodes tell of the inside of nodes, and of pods that were given other devices than were chosen."""
        changes = list(changes)
        events = self._wired(changes, self._wirings.put_gpu_node)
        uids = [uid for change in changes for uid in self.given.put(change.object, change.kind == "deleted")]
        known = [self._pods[uid] for uid in uids if uid in self._pods]
        for change in changes:
            self.gpu_node_told(change.object)
        return events + [ev.PodChanged(pod.told) for pod in known if self._add_given(pod)]

    def node_topologies(self, changes: Iterable[AnyChange[topology.NodeResourceTopology]]) -> list[ev.Event]:
        return self._wired(changes, self._wirings.put_topology)

    def resource_slices(self, changes: Iterable[AnyChange[ResourceSlice]]) -> list[ev.Event]:
        """Slices are pools of devices, and those of GPUs also tell of the inside of their node."""
        changes = list(changes)
        events = [event for c in changes for event in self.pools.put_slice(c.object, c.kind == "deleted")]
        return events + self._wired(changes, self._wirings.put_slice)

    def taint_rules(self, changes: Iterable[AnyChange[DeviceTaintRule]]) -> list[ev.Event]:
        return [event for c in changes for event in self.pools.put_rule(c.object, c.kind == "deleted")]

    def _wired(self, changes: Iterable[AnyChange[T]], put: Callable[[T, bool], str]) -> list[ev.Event]:
        """Objects that tell of the inside of nodes: each node that a batch is about is told once."""
        names = dict.fromkeys([put(change.object, change.kind == "deleted") for change in changes])
        return [event for name in names for event in self._node_again(name)]

    def wiring(self, node: str) -> Wiring:
        """What is known of the inside of a node, and from where."""
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
        told = self._nodes.get(name)
        self._nodes[name] = (obj, record)
        return [ev.NodeChanged(record)] if told is None or told[1] != record else []

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
        """How to name a pod to the API server; None where it is gone or finished."""
        known = self._pods.get(uid)
        return PodRef(known.told.namespace, known.told.name, uid) if known is not None else None

    def gang_ref(self, gang_id: str) -> GangRef | None:
        """The object whose status tells about a gang or sub-gang; None where no PodGroup declares it."""
        return self._objects.get(gang_id) or self._objects.get(gang_id.rpartition("/")[0])


def _last_ones(changes: list[AnyChange[PodObject]]) -> list[AnyChange[PodObject]]:
    """The changes without those of pods that have changed again since: somebody may write the same pod all the time. A
    pod that is new, finished or deleted is looked at as it was."""
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
    """A finished pod."""
    ended_ms = translate.ended_ms(obj)
    return ev.PodRemoved(obj.metadata.uid, ended_ms, translate.succeeded(obj), translate.failed(obj), gang)
