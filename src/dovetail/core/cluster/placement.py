# SPDX-License-Identifier: Apache-2.0
"""A pod on a node, and the GPUs that it holds there."""

from __future__ import annotations

from functools import lru_cache

from mypy_extensions import mypyc_attr

from dovetail.core.cluster.kubelets import KubeletEntry
from dovetail.core.cluster.shapes import Shape
from dovetail.core.decisions import ClaimGrant, VolumePick
from dovetail.core.model import Pod


@lru_cache(maxsize=4096)
def indices(bits: int) -> tuple[int, ...]:
    """The set bits, lowest first."""
    return tuple(i for i in range(bits.bit_length()) if bits >> i & 1)


def written_bits(pod: Pod) -> int:
    """The GPUs that were written down for a pod, as bits; 0 for none."""
    return sum(1 << gpu for gpu in set(pod.devices)) if pod.devices else 0


@mypyc_attr(acyclic=True)
class Placement:
    """A pod on a node slot, with the shape that it has there. `gpu_bits` are the whole GPUs it holds, `share_bits`
    those of which it has `share` each, in units of the node's `gpu_whole`, and `extra` more while it is awake, if it is
    an instance that can sleep; `share_milli` is both in thousandths, rounded up. `picks` are the volumes chosen with
    it. `entry` is its entry in the kubelet's books, `grants` what was allocated for its claims with it, `slices` its
    MIG instances, as bits for each card of the node."""

    __slots__ = (
        "entry", "extra", "gpu_bits", "grants", "picks", "pod", "shape", "share", "share_bits", "share_milli",
        "slices", "slot", "uid",
    )  # fmt: skip

    def __init__(self, pod: Pod, slot: int, shape: Shape) -> None:
        self.pod = pod
        self.uid = pod.uid
        self.slot = slot
        self.shape = shape
        self.gpu_bits = 0
        self.share_bits = 0
        self.share = 0
        self.extra = 0
        self.share_milli = 0
        self.picks: tuple[VolumePick, ...] = ()
        self.entry: KubeletEntry | None = None
        self.grants: tuple[ClaimGrant, ...] = ()
        self.slices: tuple[int, ...] = ()

    @property
    def has_gpus(self) -> bool:
        """Whether it holds whole GPUs, or a share of some."""
        return bool(self.gpu_bits or self.share_bits)

    @property
    def by_claim(self) -> tuple[str, ...]:
        """The resources that it asks for and has by a claim."""
        asked, counted = self.pod.request, self.shape.request
        if asked is counted or asked.resources == counted.resources:
            return ()
        names = dict(counted.resources)
        return tuple(name for name, _ in asked.resources if name not in names)

    @property
    def devices(self) -> tuple[int, ...]:
        return indices(self.gpu_bits | self.share_bits)

    def contradicts(self, pod: Pod) -> bool:
        """Whether other devices are written down for the pod now than were before and than it holds."""
        if (pod.devices, pod.instances) == (self.pod.devices, self.pod.instances):
            return False
        return bool(self.pod.node) or (pod.devices is not None and pod.devices != self.devices)
