# SPDX-License-Identifier: Apache-2.0
"""A pod as reported to the core: from its own metadata or from its record, plus the values of its gang.

Rules: for a waiting pod its labels and annotations count, together with those of the object that declares its gang. For
a pod that is bound, or has a decision, the record counts (see `bound`); its metadata when first seen in that state only
serves the waiting pods of its gang. Its gang is the recorded one, and no object changes recorded values.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.model import Pod, Problem, Work
from dovetail.kube.gangs import declared as gangs
from dovetail.kube.gangs.declared import Declared, Membership
from dovetail.kube.gangs.dialects import membership
from dovetail.kube.gangs.owners import owned_by
from dovetail.kube.nodes.device_differences import HeldDevices
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.translate import pods
from dovetail.kube.translate.annotations import NOTHING, WorkloadOptions
from dovetail.kube.translate.bound import NOT_RECORDED, Bound, Kept, unused_devices
from dovetail.kube.translate.pods import MetadataRecord, metadata_of
from dovetail.kube.translate.work import with_declared


class KnownPod(Struct):
    """A pod as last reported to the core (`reported`). `problem` and `work` are its own, without the values of its
    gang; `written` are the devices in its record, `findings` the problems of the record. `bound` is the record, None
    for a waiting pod; `late` is the latest object of a pod while its bind is in flight."""

    reported: Pod
    problem: Problem | None
    work: Work
    options: WorkloadOptions
    member: Membership | None
    findings: tuple[LayoutFinding, ...]
    bound: Bound | None
    written: HeldDevices
    late: PodObject | None = None

    def add(self, declared: Declared | None) -> bool:
        """Update the values that come from the pod's gang; whether that changed the pod."""
        added = self._of_bound(declared) if self.bound is not None else self._of_waiting(declared)
        reported = self.reported
        # Mostly nothing has changed, and a new record is a tenth of the cost of a change of a pod.
        for field, value in added.items():
            if getattr(reported, field) != value:
                self.reported = replace(reported, **added)
                return True
        return False

    def _of_waiting(self, declared: Declared | None) -> dict[str, Any]:
        own, theirs, deadline_ms = self.options, NOTHING, 0
        gang, problem = self._gang(declared), self.problem
        if declared is not None:
            theirs, deadline_ms = declared.options, declared.deadline_ms
        if not gang:
            problem = problem or gangs.lonely(own) or gangs.lonely(theirs, self.member)
        return {
            "gang": gang,
            "queue": own.queue or theirs.queue,
            "user": own.user or theirs.user,
            "problem": problem,
            "request": pods.with_nvlink(self.reported.request, theirs.nvlink or own.nvlink),
            "checkpoint_ms": max(own.last_checkpoint_ms, theirs.last_checkpoint_ms),
            "work": with_declared(self.work, theirs, deadline_ms),
            "held": bool(theirs.hold) if own.hold is None else own.hold,
        }

    def _of_bound(self, declared: Declared | None) -> dict[str, Any]:
        own, theirs = self.options, declared.options if declared is not None else NOTHING
        added: dict[str, Any] = {"checkpoint_ms": max(self.reported.checkpoint_ms, theirs.last_checkpoint_ms)}
        if self.bound is NOT_RECORDED:
            added["gang"] = self._gang(declared)
            added["queue"], added["user"] = own.queue or theirs.queue, own.user or theirs.user
        return added

    def _gang(self, declared: Declared | None) -> str:
        if self.member is None:
            return ""
        if declared is not None:
            return declared.gang_of(self.member.part)
        return "" if self.member.alone else self.member.id


def pod_known(obj: PodObject, scheduler_name: str, kept: Kept | None, old: KnownPod | None = None) -> KnownPod:
    """Translate a pod of any scheduler, from its own object or from its record `kept`, without the values of its gang.
    `old` is the result for its previous version."""
    bound = kept.bound if kept is not None else None
    options, member, own = NOTHING, None, None
    if bound is not None and old is not None and old.bound is bound:
        # The same record as before: the current metadata has no effect.
        options, member = old.options, old.member
        if old.reported.managed:
            own = MetadataRecord(options, owned_by(obj) if obj.metadata.owner_references else None)
        pod = pods.pod(obj, scheduler_name, bound, own)
    else:
        if obj.spec.scheduler_name == scheduler_name:
            own = metadata_of(obj)
            options, member = own.options, membership(obj, own.options, own.owned)
        pod = pods.pod(obj, scheduler_name, bound, own)
        if bound is not None:
            options = replace(options, problems=()) if options.problems else options
            member = gangs.restored(member, pod) if bound.version > 0 else member
        elif member is None and options is not NOTHING and pod.problem is None and (problem := gangs.lonely(options)):
            pod = replace(pod, problem=problem)
    findings: tuple[LayoutFinding, ...] = ()
    if kept is not None:
        findings = unused_devices(pod, kept.bound)
        if kept.problem is not None:
            findings += (LayoutFinding("Pod", pod.key, kept.problem),)
    return KnownPod(
        pod, pod.problem, pod.work, options, member, findings, bound, HeldDevices(pod.devices, pod.instances)
    )
