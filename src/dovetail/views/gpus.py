# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of its node a pod has, and how well they work together.

Rules: the indices are those that were written down for the pod, or, while it is not bound, will be. Where nobody wrote
any, or what is written cannot be true, they are not known, and only counted. Bandwidths are one way, in MB/s.
"""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.model import GPU, Pod
from dovetail.core.placing.links import bandwidth
from dovetail.core.state import State


class PodGpus(Struct, frozen=True):
    """`gpus` is None where it is not known which ones they are. `mbps` is the bandwidth between them and `ideal_mbps`
    the most that as many GPUs of such a node can have; None for fewer than two, and where their wiring is not known."""

    pod: str
    count: int
    gpus: tuple[int, ...] | None
    mbps: int | None
    ideal_mbps: int | None


def gpus_of(state: State, pod: Pod) -> PodGpus:
    """Of a pod that is placed."""
    cluster, placement = state.cluster, state.cluster.placements[pod.uid]
    count = dict(placement.shape.request.resources).get(GPU, 0)
    devices = placement.devices
    written = pod.devices is not None and set(pod.devices) == set(devices)
    decided = not pod.node and cluster.nodes.layout(placement.slot) is not None
    if not written and not decided:
        return PodGpus(pod.key, count, None, None, None)
    mbps, ideal_mbps = bandwidth(cluster, placement)
    return PodGpus(pod.key, count, devices, mbps or None, ideal_mbps or None)
