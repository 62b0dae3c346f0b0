# SPDX-License-Identifier: Apache-2.0
"""Devices that a kubelet allocated to pods instead of the chosen ones, as the nodes' agents report them.  Rules: the
allocated devices count; the annotation that was written with the bind is only the choice. Only the GPUNode of the pod's
node counts, for as long as the pod is there. A text that names no devices is not used, and becomes a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.model import Instance, Pod, Problem
from dovetail.kube.nodes import instances
from dovetail.kube.nodes.layouts import LayoutFinding
from dovetail.kube.objects.topology import DeviceDifference, GPUNode
from dovetail.kube.translate.annotations import indices_of


class HeldDevices(Struct, frozen=True):
    """GPUs by index, or MIG instances, of a bound pod."""

    gpus: tuple[int, ...] | None = None
    instances: tuple[Instance, ...] = ()


def _no_listener(node: str) -> None:
    """The listener until one is set."""


class DeviceDifferences:
    """The differences that GPUNodes report, by node and uid of the pod. `changed` is called with each node where they
    have changed."""

    def __init__(self) -> None:
        self.changed: Callable[[str], None] = _no_listener
        self._reported: dict[str, dict[str, DeviceDifference]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._reported.values()))

    def put(self, obj: GPUNode, deleted: bool) -> Iterable[str]:
        """The uids of the pods with other devices than before."""
        name = obj.metadata.name
        before = self._reported.pop(name, {})
        now = {} if deleted else {one.uid: one for one in obj.status.differences}
        if now:
            self._reported[name] = now
        differing = [uid for uid in before | now if before.get(uid) != now.get(uid)]
        if differing:
            self.changed(name)
        return differing

    def corrected(self, pod: Pod, written: HeldDevices) -> tuple[Pod, tuple[LayoutFinding, ...]]:
        """The pod with the devices that it has, and the findings; `written` are the devices of its annotation."""
        node = pod.node
        difference = self._reported[node].get(pod.uid) if node in self._reported else None
        if difference is None:
            return _with(pod, written), ()
        allocated = HeldDevices(indices_of(difference.given), instances.written(difference.given) or ())
        field = f"status.differences[{difference.namespace}/{difference.pod}].given"
        if allocated == HeldDevices():
            rule = "must name devices as the annotation dovetail.dev/devices does: not used"
            return _with(pod, written), (LayoutFinding("GPUNode", node, Problem(field, difference.given, rule)),)
        rule = f"the kubelet allocated these where {difference.chosen or 'nothing'} was chosen: the allocation counts"
        return _with(pod, allocated), (LayoutFinding("GPUNode", node, Problem(field, difference.given, rule)),)


def _with(pod: Pod, devices: HeldDevices) -> Pod:
    if pod.devices == devices.gpus and pod.instances == devices.instances:
        return pod
    return replace(pod, devices=devices.gpus, instances=devices.instances)
