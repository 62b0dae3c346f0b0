# SPDX-License-Identifier: Apache-2.0
"""Leases, requests for them and control planes, as answers have them."""

from __future__ import annotations

from msgspec import Struct, field

from dovetail.core.queues.amounts import Amounts


class LeaseEnd(Struct, frozen=True):
    """A lease is taken back at `deadline_ms`."""

    cause: str
    deadline_ms: int
    message: str


class LeaseRow(Struct, frozen=True):
    """The lease "namespace/name". `what` are its devices in words, `devices` where they are. `state` is "" if none is
    written. `refused` is why the last action of the agent was refused. `pods` run inside, `waiting` name it and wait.
    `cause` and `ended_ms` are those of a lease that is over; `problem` is why the object is no lease."""

    lease: str
    plane: str
    service: str = field(name="class")
    what: str
    devices: tuple[NodeDevices, ...]
    state: str
    start_ms: int
    end_ms: int
    grace_ms: int
    renewals: int
    fence: int
    pods: tuple[str, ...]
    waiting: tuple[str, ...]
    revocation: LeaseEnd | None
    refused: str
    cause: str
    ended_ms: int
    problem: str


class OfferRow(Struct, frozen=True):
    """An offer. `now`: the devices are held for it. `why` is why nothing better is offered."""

    id: str
    now: bool
    alternative: str
    start_ms: int
    why: str


class RequestRow(Struct, frozen=True):
    """The request "namespace/name", created at `since_ms`. `state` is "" if none is written; `current`: it is about the
    spec as it is now. `code` and `message` are why it is not granted, `expected_start_ms` is its latest start and
    `tried_ms` when it is tried again at the latest, 0 where that is not known. Offers lapse at `offers_until_ms`."""

    request: str
    plane: str
    alternatives: tuple[str, ...]
    firm: bool
    since_ms: int
    state: str
    current: bool
    code: str
    message: str
    expected_start_ms: int
    tried_ms: int
    offers: tuple[OfferRow, ...]
    offers_until_ms: int


class PlaneRow(Struct, frozen=True):
    """The control plane "namespace/name". `phase` is "" if none is written, `message` what is wrong with it. Amounts
    are by class; `credit_gpu_hours` is what it was due by weight less what it used, None where it has no queue. A
    heartbeat is expected every `heartbeat_ms`, 0 for never; `heard_ms` is when the last one was acknowledged, 0 for
    never."""

    plane: str
    queue: str
    phase: str
    message: str
    held: Amounts
    guarantee: Amounts
    limit: Amounts
    credit_gpu_hours: float | None
    weight: int
    leases: int
    most_leases: int
    requests: int
    most_requests: int
    heartbeat_ms: int
    heard_ms: int
    backend: str


class LeaseTotals(Struct, frozen=True):
    """How many there are, and the GPUs that the planes hold."""

    planes: int
    requests: int
    leases: int
    gpus_milli: int


class LeasesView(Struct, frozen=True):
    """Everything, or what belongs to one namespace or plane, by name. `elsewhere` are the totals of namespaces that the
    asker may not see, None for one that sees all."""

    now_ms: int
    planes: tuple[PlaneRow, ...]
    requests: tuple[RequestRow, ...]
    leases: tuple[LeaseRow, ...]
    elsewhere: LeaseTotals | None = None


LEASE, REQUEST = "gpulease/", "leaserequest/"
"""How the names of leases and of requests begin where pods may be meant, too."""


class NodeDevices(Struct, frozen=True):
    """Devices of a lease on one node: the indices of GPUs, or MIG instances as GPU/PROFILE@START."""

    node: str
    gpus: tuple[int, ...] = ()
    instances: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.node} {','.join(self.instances or map(str, self.gpus))}"
