# SPDX-License-Identifier: Apache-2.0
"""Devices that a kubelet gave to pods instead of those that were chosen, as the agents of the nodes tell it.

Rules: what was given counts, as it is true; what was written down with the bind was a wish. It is told by the GPUNode
of the node that the pod is on, for as long as the pod is there; no other node's says anything of it. A text that names
no devices is not used, and said.
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


class GivenDevices(Struct, frozen=True):
    """GPUs by index, or MIG instances, of a bound pod."""

    gpus: tuple[int, ...] | None = None
    instances: tuple[Instance, ...] = ()


def _nobody(node: str) -> None:
    """Nobody listens."""


class Given:
    """What GPUNodes tell, by node and uid of the pod. `changed` is called with the node where that has changed."""

    def __init__(self) -> None:
        self.changed: Callable[[str], None] = _nobody
        self._told: dict[str, dict[str, DeviceDifference]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._told.values()))

    def put(self, obj: GPUNode, deleted: bool) -> Iterable[str]:
        """The uids of the pods for which something else counts now."""
        name = obj.metadata.name
        before = self._told.pop(name, {})
        now = {} if deleted else {one.uid: one for one in obj.status.differences}
        if now:
            self._told[name] = now
        differing = [uid for uid in before | now if before.get(uid) != now.get(uid)]
        if differing:
            self.changed(name)
        return differing

    def corrected(self, pod: Pod, written: GivenDevices) -> tuple[Pod, tuple[LayoutFinding, ...]]:
        """The pod with the devices that it has, and what is to be said of it; `written` are those of its annotation."""
        node = pod.node
        told = self._told[node].get(pod.uid) if node in self._told else None
        if told is None:
            return _with(pod, written), ()
        given = GivenDevices(indices_of(told.given), instances.written(told.given) or ())
        field = f"status.differences[{told.namespace}/{told.pod}].given"
        if given == GivenDevices():
            rule = "must name devices as the annotation dovetail.dev/devices does: not used"
            return _with(pod, written), (LayoutFinding("GPUNode", node, Problem(field, told.given, rule)),)
        rule = f"the kubelet gave these where {told.chosen or 'nothing'} was chosen: what was given counts"
        return _with(pod, given), (LayoutFinding("GPUNode", node, Problem(field, told.given, rule)),)


def _with(pod: Pod, devices: GivenDevices) -> Pod:
    if pod.devices == devices.gpus and pod.instances == devices.instances:
        return pod
    return replace(pod, devices=devices.gpus, instances=devices.instances)
