# SPDX-License-Identifier: Apache-2.0
"""The types of bargaining: control planes of software agents, their requests, what is offered to them, and leases.

Rules: times are epoch milliseconds of the broker's clock; an agent's own clock decides nothing. A request leads to one
lease at most, and the lease has the id of its request. A driver makes these records from objects; what an agent wrote
that cannot be honoured is a `Problem` of the record.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from dovetail.core.model import GPU, Instance, Problem
from dovetail.core.queues.types import Amounts, Usage

PREFIX = "lease/"
"""How the ids of placeholder pods, which hold devices for leases, and of their gangs begin. No pod has such a uid."""
MOST_ALTERNATIVES = 8
MOST_ROUNDS = 3
"""Counter-offers to one request."""
LEAVES = "planes/"
"""How the names of the queues of control planes begin."""
NAME_TAKEN = "must be another name, or wait: a lease of this name, of an older request, is live"


class ServiceClass(StrEnum):
    """How firm a lease is. Guaranteed: within the guarantee of its plane, never revoked for others. Burst: beyond it;
    others may reclaim what is due to them. Scavenger: what is idle, taken back for any other lease of the plane, and
    shortened so that it ends before a reservation begins."""

    GUARANTEED = "Guaranteed"
    BURST = "Burst"
    SCAVENGER = "Scavenger"


class Plane(Struct, frozen=True):
    """The control plane of one software agent. `id` is "namespace/name"; pods of its namespace belong to it. `queue` is
    the queue that it is a leaf of, with `weight`, `guarantee` and `limit` there. At most `most_leases` leases are live
    and `most_requests` requests wait at a time. It sends a heartbeat every `heartbeat_ms` (0: none is expected); its
    leases are lost after three are missing. `grace_ms` is the time that it has after a revocation. A lease without pods
    is idle after `idle_ms` (0: never), and revoked. `uid` differs from that of an older plane of its name. `usage` is
    what it used before it was first read."""

    id: str
    queue: str
    weight: int = 1
    guarantee: Amounts = ()
    limit: Amounts = ()
    most_leases: int = 64
    most_requests: int = 64
    heartbeat_ms: int = 10_000
    grace_ms: int = 120_000
    idle_ms: int = 300_000
    created_ms: int = 0
    uid: str = ""
    usage: Usage | None = None
    problem: Problem | None = None

    @property
    def namespace(self) -> str:
        return self.id.partition("/")[0]

    @property
    def leaf(self) -> str:
        """The name of its queue, which no Queue object can have."""
        return LEAVES + self.id


class LeaseAlternative(Struct, frozen=True):
    """One thing that would do. `count` devices, but at least `least` (0: all of them); `per_node` of them together on
    one node each time. A device is one of `resource`: a whole GPU, a MIG instance, or with `gpu_milli` or
    `gpu_memory_mib` a share of a GPU. `models` are the products that will do (none: any). `nvlink`: those on one node
    are connected by NVLinks. `within` are node label keys: all devices lie in one value of each. For each device the
    lease holds `cpu_milli` and `memory_bytes` of its node. `duration_ms` is the term; for a scavenger one of
    `least_duration_ms` will do (0: no shorter one). It starts from `earliest_ms` on, and until `latest_ms` (0: any
    time)."""

    count: int = 1
    least: int = 0
    per_node: int = 1
    resource: str = GPU
    gpu_milli: int = 0
    gpu_memory_mib: int = 0
    models: tuple[str, ...] = ()
    nvlink: bool = False
    within: tuple[str, ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    duration_ms: int = 600_000
    least_duration_ms: int = 0
    earliest_ms: int = 0
    latest_ms: int = 0
    service: ServiceClass = ServiceClass.BURST


class Answer(Struct, frozen=True):
    """The agent's answer to an offer: `offer` is the id of the offer that it answers. `counter` is what it would
    rather have."""

    offer: str
    action: Literal["accept", "decline", "counter"]
    counter: LeaseAlternative | None = None


class LeaseRequest(Struct, frozen=True):
    """A request of `plane` for one of the `alternatives`, the most wanted first. `firm`: the first of them that can be
    had is granted at once, without an offer; only such a request evicts others. `checkpoint_interval_ms` and
    `startup_ms` are those of the work that it is for. `grace_ms` is asked for after a revocation, at most that of the
    plane (0: that). Within its plane a higher `priority` (-1000 to 1000) goes first, and may evict a lower one of the
    same class. `answer` is the last answer to an offer."""

    id: str
    plane: str
    name: str
    alternatives: tuple[LeaseAlternative, ...]
    firm: bool = False
    created_ms: int = 0
    grace_ms: int = 0
    checkpoint_interval_ms: int = 0
    startup_ms: int = 0
    priority: int = 0
    answer: Answer | None = None
    problem: Problem | None = None


class Holding(Struct, frozen=True):
    """Devices of one node: the indices of GPUs, or MIG instances. `uid` is the placeholder pod that holds them."""

    uid: str
    node: str
    devices: tuple[int, ...] = ()
    instances: tuple[Instance, ...] = ()


class Offer(Struct, frozen=True):
    """An offer. `now`: the devices are held for it until it ends; else they are from `start_ms` on, at the latest.
    `alternative` is the one that it is for, with the number of devices and the term that are offered. `holdings` are
    the devices that are held. `why` is why nothing better is offered, "" for the first alternative, whole and now."""

    id: str
    now: bool
    alternative: LeaseAlternative
    start_ms: int
    holdings: tuple[Holding, ...] = ()
    why: str = ""


class EndCause(StrEnum):
    """Why a lease ends before its term, or at it."""

    EXPIRED = "Expired"
    RETURNED = "Returned"
    RECLAIMED = "Reclaimed"
    """Another workload has a better right to the devices."""
    MAINTENANCE = "NodeMaintenance"
    HARDWARE = "DeviceLost"
    IDLE = "Idle"
    LOST = "HeartbeatLost"
    PLANE_GONE = "PlaneDeleted"


class Revocation(Struct, frozen=True):
    """The devices are taken back at `deadline_ms`."""

    cause: EndCause
    deadline_ms: int
    message: str


class GpuLease(Struct, frozen=True):
    """A lease of `plane`. Whatever acts under it shows `fence`: of two leases of a device the later one has the greater
    fence. `alternative` is what was granted: `count` devices until `end_ms`. `granted_end_ms` is the end without
    renewals."""

    id: str
    plane: str
    name: str
    alternative: LeaseAlternative
    holdings: tuple[Holding, ...]
    start_ms: int
    end_ms: int
    fence: int
    grace_ms: int
    checkpoint_interval_ms: int = 0
    startup_ms: int = 0
    renewals: int = 0
    revocation: Revocation | None = None


class LeaseAction(Struct, frozen=True):
    """What the agent wants of a live lease. Of two equal `number`s the second changes nothing; a `fence` that is not
    the lease's is stale. renew: the end is to be `until_ms`. return: it is over."""

    lease: str
    number: int
    fence: int
    action: Literal["renew", "return"]
    until_ms: int = 0
