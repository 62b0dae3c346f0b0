# SPDX-License-Identifier: Apache-2.0
"""Translates changes of Kubernetes objects to the events of the core: the state between the reflectors and `core.step`.

Rules
- An event is reported only if the translated record differs from the last one reported: heartbeats and status writes
  that the core does not read end here. A finished pod is reported as removed; if its kubelet rejected it, the rejection
  with the owner of the pod comes first. Pods that were finished when first seen are in `finished`.
- Pods are translated here, their gangs in `gang_records`, nodes in `node_records`, leases of software agents in
  `lease_records`, and objects that depend on no others in `standalone`. Gangs are settled at the end of each batch of
  pods.
- For a pod that is bound or has a decision, only the record counts (see `bound`). Later changes of its metadata, its
  PodGroup, its owner or its namespace are kept, and used if the bind fails.
- Only pods with the name of this scheduler belong to gangs; the others count for the resources that they hold.
- Values that are not used and block no pod, such as contradictions in hardware data, are in `findings`; `on_findings`
  is called when they change.
No input or output here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.model import Pod
from dovetail.kube.nodes.admissions import Admissions
from dovetail.kube.nodes.device_differences import DeviceDifferences
from dovetail.kube.nodes.idle_pods import IdlePods
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects import topology
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.translate import pod_status
from dovetail.kube.translate.bound import BoundRecords, read
from dovetail.kube.translate.ended import EndedPod, ended_pod
from dovetail.kube.translate.finished import Finished
from dovetail.kube.translate.gang_records import GangRecords
from dovetail.kube.translate.known import KnownPod, pod_known
from dovetail.kube.translate.lease_records import LeaseRecords
from dovetail.kube.translate.node_records import NodeRecords
from dovetail.kube.translate.read_notes import ReadNotes
from dovetail.kube.translate.standalone import AnyChange, Records

T = TypeVar("T")
OnFindings = Callable[[str, tuple[LayoutFinding, ...]], None]


def _nobody(changed: object) -> None:
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
        self._origins: dict[str, str] = {}
        self.on_notes: Callable[[str], None] = _nobody
        """Called with the object of which `notes` have changed."""
        self._on_findings = on_findings
        self._scheduler_name = scheduler_name
        self._pods: dict[str, KnownPod] = {}
        self._finished = Finished(scheduler_name)
        self.admissions = Admissions()
        self.device_differences = DeviceDifferences()
        self._idle_pods = IdlePods()
        self.memory = BoundRecords(believes)
        self.on_gpu_node: Callable[[topology.GPUNode], None] = _nobody
        """Called with each changed GPUNode."""
        self.schedulers: dict[str, str] | None = None
        """If set: collects the schedulerName of each pod of another scheduler."""
        self.over: list[PodObject] | None = None
        """If set: collects the pods that were finished when first seen."""
        self.records = Records(self._find)
        self.node_records = NodeRecords(self._find)
        self.gangs = GangRecords(self._pods)
        self.leases = LeaseRecords(self._find)

    def pods(self, changes: Iterable[AnyChange[PodObject]]) -> list[ev.Event]:
        changes = list(changes)
        if len(changes) > 1:
            changes = _last_ones(changes)
        events: list[ev.Event] = []
        unsettled: dict[str, None] = {}
        over = [change for change in changes if change.object.status.phase in pod_status.FINISHED]
        if over:
            events += [event for obj in self._finished.missed(over) for event in self._ran_before(obj)]
        if self.over is not None:
            self.over += [change.object for change in over if change.kind == "added"]
        for change in changes:
            if change.kind == "deleted" or change.object.status.phase in pod_status.FINISHED:
                self._remove(change, events, unsettled)
            else:
                self._put(change.object, events, unsettled)
        for declared_id in unsettled:
            events += self.gangs.settle(declared_id)
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
            self.gangs.leave(uid, known.member, unsettled)
        events.append(_removed(obj) if pod_status.is_finished(obj) else ev.PodRemoved(uid))

    def decided(self, uid: str, queue: str, node: str, devices: str) -> str | None:
        """The core has decided to bind the pod to the node, for the queue and with these devices. From now on its
        reported values are fixed, until it is gone or `not_bound`. Returns its record, to write with the Binding; None
        if the pod is gone or finished."""
        known = self._pods.get(uid)
        if known is None:
            return None
        gang = self.gangs.reported(known.member, known.reported.gang) if known.member is not None else None
        kept = self.memory.decide(known.reported, queue, gang, devices, node)
        known.bound = kept.bound
        if known.member is not None:
            self.gangs.count(uid, known.member, known)
        return kept.text

    def not_bound(self, uid: str) -> list[ev.Event]:
        """The bind has failed: report the pod in its current state."""
        known = self._pods.get(uid)
        if known is None or known.bound is None or known.reported.node:
            return []
        self.memory.drop(uid)
        known.bound = None
        if known.member is not None:
            self.gangs.count(uid, known.member, known)
        if known.late is not None:
            events: list[ev.Event] = []
            unsettled: dict[str, None] = {}
            self._put(known.late, events, unsettled)
            return events + [event for declared_id in unsettled for event in self.gangs.settle(declared_id)]
        return [ev.PodChanged(known.reported)] if self.gangs.add_to(known) else []

    def _ran_before(self, obj: PodObject) -> list[ev.Event]:
        known = pod_known(obj, self._scheduler_name, read(obj))
        self.gangs.add_to(known)
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
            self.gangs.leave(uid, before, unsettled)
        if member is not None:
            if before != member:
                self.gangs.join(uid, member, unsettled)
            elif old is not None and old.options != known.options:
                unsettled[member.id] = None
                if old.options.hold != known.options.hold:
                    self.gangs.read_again(member)
            self.gangs.count(uid, member, known)
            self.gangs.add_to(known)
        self._pods[uid] = known
        self.admissions.put(obj)
        if obj.spec.node_name:
            self._correct(known)
        elif known.bound is not None:
            known.late = obj
        if old is None or old.reported != known.reported:
            events.append(ev.PodChanged(known.reported))

    def _correct(self, pod: KnownPod) -> bool:
        """Take what the node reports of a pod: other devices than chosen, and that it is idle. Whether that changed the
        pod."""
        before = pod.reported
        reported, findings = self.device_differences.corrected(before, pod.written)
        idle_since_ms = self._idle_pods.since_ms(reported)
        if idle_since_ms != reported.idle_since_ms:
            reported = replace(reported, idle_since_ms=idle_since_ms)
        pod.reported = reported
        self._find(f"Pod {before.key}", pod.findings + findings)
        return reported != before

    def gpu_nodes(self, changes: Iterable[AnyChange[topology.GPUNode]]) -> list[ev.Event]:
        """GPUNodes have the hardware data of nodes, the pods that got other devices than chosen, and those that are
        idle."""
        changes = list(changes)
        events = self.node_records.gpu_nodes(changes)
        uids: dict[str, None] = {}
        for change in changes:
            for reports in (self.device_differences, self._idle_pods):
                uids |= dict.fromkeys(reports.put(change.object, change.kind == "deleted"))
        known = [self._pods[uid] for uid in uids if uid in self._pods]
        for change in changes:
            self.on_gpu_node(change.object)
        return events + [ev.PodChanged(pod.reported) for pod in known if self._correct(pod)]

    def ended(self) -> Iterator[EndedPod]:
        """The pods of this scheduler that were finished when first seen; none unless `over` was set before that."""
        for obj in self.over or ():
            if obj.spec.scheduler_name == self._scheduler_name:
                known = pod_known(obj, self._scheduler_name, self.memory.of(obj, True))
                self.memory.drop(obj.metadata.uid)
                self.gangs.add_to(known)
                yield ended_pod(obj, known)

    def notes(self, about: str) -> ReadNotes:
        """What was noted while an object was read."""
        return ReadNotes(self._origins.get(about, ""), tuple(map(str, self.findings.get(about, ()))))

    def noted(self) -> set[str]:
        """The objects with notes."""
        return self._origins.keys() | self.findings.keys()

    def _find(self, about: str, findings: tuple[LayoutFinding, ...], origin: str = "") -> None:
        known, described = self.findings.get(about, ()), self._origins.get(about, "")
        if (known, described) == (findings, origin):
            return
        _put(self.findings, about, findings)
        _put(self._origins, about, origin)
        self.on_notes(about)
        if known != findings and self._on_findings is not None:
            self._on_findings(about, findings)

    def reported(self, uid: str) -> Pod | None:
        """The pod as last reported to the core; None if it is gone or finished."""
        known = self._pods.get(uid)
        return known.reported if known is not None else None


def _put(book: dict[str, T], about: str, value: T) -> None:
    """Keep a value that is not empty."""
    if value:
        book[about] = value
    else:
        book.pop(about, None)


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
    return change.kind == "modified" and not pod_status.is_finished(change.object)


def _removed(obj: PodObject, gang: str = "") -> ev.PodRemoved:
    """The event for a finished pod."""
    ended_ms = pod_status.ended_ms(obj)
    return ev.PodRemoved(obj.metadata.uid, ended_ms, pod_status.succeeded(obj), pod_status.failed(obj), gang)
