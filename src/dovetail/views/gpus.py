# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a placed pod, and the bandwidth between them.

Rules: the indices are those that the pod's annotation records, or will record if the pod is not bound yet. Without a
record, or if the record cannot be true, only their number is known. Bandwidths are one way, in MB/s.
"""

from __future__ import annotations

from dovetail.core.model import GPU, Pod
from dovetail.core.placing.links import bandwidth
from dovetail.core.state import State
from dovetail.views.leased import key_of
from dovetail.views.topology_types import PodGpus


def gpus_of(state: State, pod: Pod) -> PodGpus:
    """The GPUs of a placed pod."""
    cluster, placement = state.cluster, state.cluster.placements[pod.uid]
    count = dict(placement.shape.request.resources).get(GPU, 0)
    devices = placement.devices
    written = pod.devices is not None and set(pod.devices) == set(devices)
    decided = not pod.node and cluster.nodes.layout(placement.slot) is not None
    if not written and not decided:
        return PodGpus(key_of(pod), count, None, None, None)
    mbps, ideal_mbps = bandwidth(cluster, placement)
    return PodGpus(key_of(pod), count, devices, mbps or None, ideal_mbps or None)
