# SPDX-License-Identifier: Apache-2.0
"""What is known of one plane at a moment: the pods of its endpoint, their pods on the host, leases and requests.

All of it follows from objects: of the endpoint, of the host, and of the broker. What a process remembers besides (the
last state of pods that are gone, back-offs) only makes reasons more exact and repetitions rarer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dovetail.agentplanes.endpoint_pod import ConfigMaps
from dovetail.agentplanes.host_pod import HostTarget
from dovetail.agentplanes.wants import GroupMinima, PodWant
from dovetail.apiserver.objects import Object, objects_at, seconds_of, text_at
from dovetail.core.bargaining.types import GpuLease

FINISHED = ("Succeeded", "Failed")


class CarryLimits(Struct, frozen=True):
    """What one plane can cost the host. An unused lease is kept for `linger_ms`, in which the next pod of its gang may
    come. A pod that has ended is kept on the host for `logs_s`, so that its logs can be read."""

    pods: int = 200
    """On the host, or waiting for it, at a time."""
    requests: int = 16
    """To the broker at a time."""
    creations_per_s: float = 5.0
    creation_burst: int = 50
    """Pods that may be created on the host at once after a pause."""
    linger_ms: int = 5_000
    logs_s: int = 600


class HostPod(Struct, frozen=True):
    """A pod on the host. `pod_uid` is that of the endpoint's pod."""

    name: str
    uid: str
    pod_uid: str
    phase: str = "Pending"
    node: str = ""
    deleting: bool = False
    lease: str = ""
    fence: int = 0
    gang: str = ""
    status: Object = {}

    @property
    def finished(self) -> bool:
        return self.phase in FINISHED

    @property
    def ended_s(self) -> float:
        """When its last container ended; 0 where that is not known."""
        ends = [
            seconds_of(text_at(one, "state.terminated.finishedAt"))
            for one in objects_at(self.status, "containerStatuses")
        ]
        return max((end for end in ends if end is not None), default=0.0)


class CarriedLease(Struct, frozen=True):
    """A lease of the plane, negotiated for `gang` ("": not known). `live`: surely. `over` is why it ended ("": it has
    not, as far as is known), `end_ms` when it ends, by a revocation or by its term. `refused` is why it cannot be
    renewed ("": that was not tried). `revoked` is the cause of a revocation, and `message` its text. `unused_ms`: since
    when no pod needs it (0: one does)."""

    record: GpuLease
    gang: str = ""
    live: bool = True
    over: str = ""
    end_ms: int = 0
    refused: str = ""
    revoked: str = ""
    message: str = ""
    unused_ms: int = 0

    @property
    def notice_ms(self) -> int:
        """When its end is near: one grace before it, but not before its last third."""
        record = self.record
        return self.end_ms - min(record.grace_ms, record.alternative.duration_ms // 3)


class OpenRequest(Struct, frozen=True):
    """A request to the broker for so many pods; `why` it waits. One that has failed is made again from `retry_ms`."""

    pods: int
    why: str = ""
    failed: bool = False
    retry_ms: int = 0


class HostRefusal(Struct, frozen=True):
    """The host's API server has refused to create the pod, which is tried again from `retry_ms`."""

    message: str
    retry_ms: int


class RequestKey(Struct, frozen=True):
    """Pods of one gang that want the same."""

    gang: str
    want: PodWant


class PlaneFacts(Struct, frozen=True):
    """`now_ms` is the broker's time, `now_s` that of this machine. `hosts` are by the uid of the endpoint's pod, `last`
    the last states of those that are gone. `leases` are complete if they are `leases_known`: what is not among them is
    over. `creations` is how many pods may be created now."""

    now_ms: int
    now_s: float
    target: HostTarget
    limits: CarryLimits
    pods: Sequence[Object] = ()
    groups: GroupMinima = {}
    config_maps: ConfigMaps = {}
    hosts: Mapping[str, HostPod] = {}
    last: Mapping[str, HostPod] = {}
    leases: Sequence[CarriedLease] = ()
    leases_known: bool = True
    negotiations: Mapping[RequestKey, OpenRequest] = {}
    refusals: Mapping[str, HostRefusal] = {}
    creations: int = 1_000
