# SPDX-License-Identifier: Apache-2.0
"""AgentControlPlane, LeaseRequest and GPULease, as they are read. Rules of the structs: see `objects`.

They are ours; the schemas are deploy/crds/agentcontrolplane.yaml, leaserequest.yaml and gpulease.yaml, the reference is
docs/reference/leases.md. Durations and amounts are texts here; `translate.leases` reads them.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from dovetail.kube.objects.base import Quantity, Wire
from dovetail.kube.objects.queues import Amounts, DayUsage, QueueCondition, Resources


class LeaseMeta(Wire, frozen=True):
    """Without labels and annotations: they decide nothing, and may be long."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None


class AgentControlPlaneSpec(Wire, frozen=True):
    queue: str = ""
    weight: int = 1
    guarantee: Resources = field(default_factory=dict)
    limit: Resources = field(default_factory=dict)
    max_leases: int = 64
    max_requests: int = 64
    heartbeat: str = "10s"
    grace: str = "2m"
    idle: str = "5m"
    backend: str = "namespace"


class PlaneUsage(Wire, frozen=True):
    """As that of a Queue, without users and jobs."""

    as_of: datetime | None = None
    used: str = ""
    rate: str = ""
    share: str = ""
    credit: str = ""
    days: tuple[DayUsage, ...] = ()


class AgentControlPlaneStatus(Wire, frozen=True):
    """What the scheduler writes. `phase` is Ready, Silent (heartbeats are missing), Invalid, or Ignored, where an older
    control plane of the namespace counts. `last_heartbeat` is when the agent was last heard, by the scheduler's clock,
    `renew_time` what that heartbeat had; all that was decided until then is written."""

    phase: str = ""
    last_heartbeat: datetime | None = None
    renew_time: datetime | None = None
    leases: int = 0
    requests: int = 0
    held: Amounts = Amounts()
    usage: PlaneUsage | None = None
    conditions: tuple[QueueCondition, ...] = ()


class AgentControlPlane(Wire, frozen=True):
    metadata: LeaseMeta = LeaseMeta()
    spec: AgentControlPlaneSpec = AgentControlPlaneSpec()
    status: AgentControlPlaneStatus | None = None


class LeaseAlternative(Wire, frozen=True):
    """One thing that would do. `service` is `class` on the wire."""

    count: int = 1
    least: int | None = None
    per_node: int = 1
    resource: str = "nvidia.com/gpu"
    gpu_fraction: str = ""
    gpu_memory: Quantity | None = None
    models: tuple[str, ...] = ()
    nvlink: bool | None = None
    within: tuple[str, ...] = ()
    cpu: Quantity | None = None
    memory: Quantity | None = None
    duration: str = "10m"
    least_duration: str | None = None
    earliest: datetime | None = None
    latest: datetime | None = None
    service: str = field(default="Burst", name="class")


class LeaseAnswer(Wire, frozen=True):
    offer: str = ""
    action: str = ""
    counter: LeaseAlternative | None = None


class LeaseRequestSpec(Wire, frozen=True):
    plane: str = ""
    alternatives: tuple[LeaseAlternative, ...] = ()
    firm: bool = False
    grace: str | None = None
    checkpoint_interval: str | None = None
    startup: str | None = None
    answer: LeaseAnswer | None = None


class LeaseOffer(Wire, frozen=True):
    id: str = ""
    now: bool | None = None
    alternative: LeaseAlternative = LeaseAlternative()
    start: datetime | None = None
    why: str = ""


class LeaseRequestStatus(Wire, frozen=True):
    """What the scheduler writes."""

    observed_generation: int = 0
    state: str = ""
    reason: str = ""
    message: str = ""
    expected_start: datetime | None = None
    tried: datetime | None = None
    lease: str = ""
    offers_until: datetime | None = None
    offers: tuple[LeaseOffer, ...] = ()


class LeaseRequest(Wire, frozen=True):
    metadata: LeaseMeta = LeaseMeta()
    spec: LeaseRequestSpec = LeaseRequestSpec()
    status: LeaseRequestStatus | None = None


class LeasedDevice(Wire, frozen=True):
    """A GPU, or with `profile` and `slice` a MIG instance of one."""

    part: str = ""
    node: str = ""
    gpu: int = 0
    uuid: str = ""
    profile: str = ""
    slice: int | None = None


class LeaseActionSpec(Wire, frozen=True):
    number: int = 0
    fence: int = 0
    action: str = ""
    until: datetime | None = None


class GPULeaseSpec(Wire, frozen=True):
    """`action` is the agent's, the rest the scheduler's. `request_uid` is that of the LeaseRequest that led to it."""

    plane: str = ""
    request_uid: str = ""
    alternative: LeaseAlternative = LeaseAlternative()
    devices: tuple[LeasedDevice, ...] = ()
    start: datetime | None = None
    fence: int = 0
    grace: str = ""
    checkpoint_interval: str = ""
    startup: str = ""
    action: LeaseActionSpec | None = None


class LeaseRevocation(Wire, frozen=True):
    cause: str = ""
    deadline: datetime | None = None
    message: str = ""


class GPULeaseStatus(Wire, frozen=True):
    """What the scheduler writes. `rate` is what the lease charged, in milli-GPU."""

    state: str = ""
    end: datetime | None = None
    renewals: int = 0
    action: int = 0
    refused: str = ""
    revocation: LeaseRevocation | None = None
    cause: str = ""
    ended: datetime | None = None
    rate: int = 0


class GPULease(Wire, frozen=True):
    metadata: LeaseMeta = LeaseMeta()
    spec: GPULeaseSpec = GPULeaseSpec()
    status: GPULeaseStatus | None = None


class HeartbeatSpec(Wire, frozen=True):
    holder_identity: str = ""
    renew_time: datetime | None = None


class Heartbeat(Wire, frozen=True):
    """A Lease (coordination.k8s.io), which an agent renews."""

    metadata: LeaseMeta = LeaseMeta()
    spec: HeartbeatSpec = HeartbeatSpec()
