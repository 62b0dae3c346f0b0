# SPDX-License-Identifier: Apache-2.0
"""The record of a bound pod: the scheduler writes it with the Binding, and it is in force for the life of the pod.

Rules
- The record is the annotation `dovetail.dev/bound`: compact JSON of the values in force when the pod was bound, merged
  from its labels and annotations, its PodGroup or owner, and its namespace. Later changes of these objects do not
  affect a bound pod. Only `last-checkpoint` is still read: it can only make a pod cheaper to evict.
- A process uses one record for a pod: that of the decision to bind it, or else the annotation when the pod was first
  seen on its node. A later change of the annotation is not used, and is reported.
- A record is valid for the pod with its uid. If it is missing, damaged or of another pod, as on pods that another
  component bound, only values that give no advantage are read: queue and user of the pod. The core checks their rights
  (`Pod.recorded` is false). The queue decides whether the pod may be preempted; the pod has the whole GPUs and replicas
  that its containers request, and no particular devices.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from dovetail.core.bounded_cache import Remembered, remembered, same
from dovetail.core.devices.gpu_sharing import Isolation
from dovetail.core.devices.mig.geometry import RESOURCE_PREFIX
from dovetail.core.json_text import JsonError, decode_json_by
from dovetail.core.model import GPU, SHARED_GPU, WHOLE_GPU_MILLI, Gang, Instance, Pod, Problem
from dovetail.kube.nodes import instances
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects.pods import Pod as PodObject
from dovetail.kube.translate.annotations import BOUND, WorkloadOptions, indices_of
from dovetail.kube.translate.problems import shown
from dovetail.kube.translate.requests import Resources

_VERSION = 1
_LONGEST = 4096
_Count = Annotated[int, Meta(ge=0, le=2**53)]


class Bound(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The values in force when the pod was bound. `version` is 0 if there is no record. `queue` is the queue of the
    decision; `gang` the id of the gang ("" for none), `gang_min` its minimum of pods that start together, and
    `gang_priority` its priority (None: that of its pods). `gpu_milli` or `gpu_memory_mib` is the pod's share of each
    GPU (0: all of it), and `gpu_asleep_mib` what it needs of that while it sleeps. `devices` are the chosen ones, in
    the format of the annotation dovetail.dev/devices. `owner` is the uid of the controller, `made_for` the object that
    names the job, as in Pod. `lease` is the name of the GPULease within which it is placed, `fence` the fence of that.
    `headroom` and `headroom_within_ms` are as in Work."""

    version: int = 0
    uid: str = ""
    queue: str = ""
    user: str = ""
    preemptible: bool | None = None
    gang: str = ""
    gang_min: _Count = 0
    gang_priority: int | None = None
    owner: str = ""
    devices: str = ""
    gpu_milli: Annotated[int, Meta(ge=0, le=WHOLE_GPU_MILLI)] = 0
    gpu_memory_mib: _Count = 0
    isolation: Isolation | Literal[""] = ""
    nvlink: bool = False
    max_runtime_ms: _Count = 0
    checkpoint_interval_ms: _Count = 0
    startup_ms: _Count = 0
    movable: bool | None = None
    lease: str = ""
    fence: _Count = 0
    made_for: str = ""
    headroom: _Count = 0
    headroom_within_ms: _Count = 0
    gpu_asleep_mib: _Count = 0

    @property
    def recorded(self) -> bool:
        """Whether a scheduler wrote the record."""
        return self.version > 0

    @property
    def options(self) -> WorkloadOptions:
        """The record in the form of the pod's own labels and annotations."""
        return _shared(
            WorkloadOptions(
                queue=self.queue, user=self.user, nvlink="required" if self.nvlink else "",
                gpu_memory_mib=self.gpu_memory_mib, gpu_milli=self.gpu_milli, isolation=self.isolation,
                max_runtime_ms=self.max_runtime_ms, checkpoint_interval_ms=self.checkpoint_interval_ms,
                startup_ms=self.startup_ms, preemptible=self.preemptible, movable=self.movable,
                lease=self.lease, fence=self.fence, headroom=self.headroom,
                headroom_return_ms=self.headroom_within_ms, gpu_asleep_mib=self.gpu_asleep_mib,
            )
        )  # fmt: skip


NOT_RECORDED = Bound()


_shared: Remembered[WorkloadOptions] = remembered(4096)(same)
"""One object for all pods of a job."""


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Bound)


class Kept(Struct):
    """The record of a pod, with the text of its annotation ("" for none) and the node; `problem` is what is wrong with
    the annotation."""

    bound: Bound
    text: str
    node: str
    problem: Problem | None = None


class BoundRecords:
    """The records of pods that are bound or about to be bound, by uid. `changed` are the pods with another annotation
    than the one written with the Binding. With `believes`, the labels and annotations of a bound pod without a record
    count as those of a waiting pod."""

    def __init__(self, believes: bool = False) -> None:
        self._believes = believes
        self.changed: set[str] = set()
        self._kept: dict[str, Kept] = {}

    def decide(self, pod: Pod, queue: str, gang: Gang | None, devices: str, node: str) -> Kept:
        """Make the record of a pod of this gang that is about to be bound to the node, for this queue and with these
        devices. It is in force from now on."""
        request, work = pod.request, pod.work
        least, priority = (gang.min_count, gang.priority) if gang is not None else (0, None)
        bound = Bound(
            _VERSION, pod.uid, queue, pod.user, work.preemptible, pod.gang, least, priority,
            pod.owner.rpartition("/")[2], devices,
            request.gpu_milli, request.gpu_memory_mib, request.isolation, request.nvlink_required, work.max_runtime_ms,
            work.checkpoint_interval_ms, work.startup_ms, work.movable, pod.lease.rpartition("/")[2], pod.fence,
            pod.made_for, work.headroom, work.headroom_within_ms, request.gpu_asleep_mib,
        )  # fmt: skip
        kept = self._kept[pod.uid] = Kept(bound, _encode(bound).decode(), node)
        return kept

    def drop(self, uid: str) -> None:
        """Forget the record: the pod is gone, or its bind has failed."""
        self._kept.pop(uid, None)
        self.changed.discard(uid)

    def of(self, obj: PodObject, ours: bool) -> Kept | None:
        """The record in force for a pod. None for a waiting pod without a decision, and for a pod of another scheduler
        (not `ours`) that writes no records."""
        uid, node = obj.metadata.uid, obj.spec.node_name
        kept = self._kept.get(uid)
        if not node or ((self._believes or not ours) and BOUND not in obj.metadata.annotations):
            return kept
        text = obj.metadata.annotations.get(BOUND, "")
        if kept is None or kept.node != node:
            # Another component may have bound it to another node.
            kept = self._kept[uid] = read(obj)
        elif text != kept.text:
            if uid not in self.changed:
                self.changed.add(uid)
                kept.problem = _problem(text, "is not what was written when the pod was bound: not used")
        elif uid in self.changed:
            self.changed.discard(uid)
            kept.problem = None
        return kept


def read(obj: PodObject) -> Kept:
    """The record in the annotation of a bound pod, or NOT_RECORDED with the problem."""
    meta = obj.metadata
    text = meta.annotations.get(BOUND, "")
    try:
        if len(text) > _LONGEST:
            raise JsonError(f"has more than {_LONGEST} characters")
        bound = decode_json_by(_decoder, text) if text else NOT_RECORDED
        if bound is NOT_RECORDED:
            return Kept(bound, text, obj.spec.node_name)
        if bound.version != _VERSION:
            rule = f"is of version {bound.version}, this release reads {_VERSION}"
        elif bound.uid == meta.uid and bound.queue:
            return Kept(bound, text, obj.spec.node_name)
        else:
            rule = "is of another pod" if bound.queue else "names no queue"
    except JsonError as error:
        rule = str(error)
    problem = _problem(text, f"{rule}: not used; only the scheduler writes it")
    return Kept(NOT_RECORDED, text, obj.spec.node_name, problem)


def devices_of(text: str, resources: Resources) -> tuple[tuple[int, ...] | None, tuple[Instance, ...]]:
    """The GPUs (None: no usable ones) and MIG instances in the text of a record, for a bound pod that requests these
    resources."""
    amounts, devices = dict(resources), indices_of(text)
    if devices is not None and len(devices) == (amounts.get(GPU) or amounts.get(SHARED_GPU, 0)):
        return devices, ()
    return None, instances.written(text) or ()


def unused_devices(pod: Pod, bound: Bound) -> tuple[LayoutFinding, ...]:
    """Why the devices in the record of a bound pod are not used; empty if they are."""
    if not bound.devices or not pod.node or pod.devices is not None:
        return ()
    amounts = dict(pod.request.resources)
    slices = sum(amount for name, amount in amounts.items() if name.startswith(RESOURCE_PREFIX))
    if pod.instances and len(pod.instances) == slices:
        return ()
    rule = "the pod asks for no GPUs: not used"
    if asked := amounts.get(GPU) or amounts.get(SHARED_GPU, 0):
        rule = f"must name {asked} different GPUs by their indices, as in 0,1: not used"
    problem = Problem(f"metadata.annotations[{BOUND}].devices", shown(bound.devices), rule)
    return (LayoutFinding("Pod", pod.key, problem),)


def _problem(text: str, rule: str) -> Problem:
    return Problem(f"metadata.annotations[{BOUND}]", shown(text), rule)
