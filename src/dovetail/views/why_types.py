# SPDX-License-Identifier: Apache-2.0
"""What `why` is asked, and its answers."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct, field

from dovetail.core.devices.collectives import AllReduce
from dovetail.core.queues.amounts import Amounts
from dovetail.core.reasons import Expected, Repartition, When
from dovetail.monitoring.engine_load import EngineLoad
from dovetail.views.held_types import DeviceHolder, HeldPart, HolderRefused
from dovetail.views.lease_types import LEASE, REQUEST, LeaseRow, RequestRow
from dovetail.views.names import ANY, JOB, POD
from dovetail.views.queue_types import QueueShare


class RuleView(Struct, frozen=True):
    """The nodes that one rule refuses. `code` is that of the reason, `when` Never or NotYet."""

    code: str
    when: When
    text: str
    nearest: str
    nodes: tuple[str, ...]


class GangView(Struct, frozen=True):
    """The gang of a pod. `needs` is its minimum number of pods, None if the object of the gang does not exist or was
    not read."""

    id: str
    needs: int | None
    exist: int
    bound: int
    required: tuple[str, ...]
    preferred: tuple[str, ...]


class QueueTerm(Struct, frozen=True):
    """The queue of the job, or one above it. Amounts are by class; `due` is the fair share. `share_class` is its class
    with the job, "" if the queue cannot be used (`problem`); `beyond` is by how much the job would exceed its
    limits."""

    queue: str
    allocated: Amounts
    guarantee: Amounts
    limit: Amounts
    due: Amounts
    share_class: str = field(name="standing")
    beyond: Amounts
    problem: str


class Reserved(Struct, frozen=True):
    """A reservation for `job` of a `queue` on `nodes`, made at `since_ms`; its start is `expected`. `evicting` are the
    pods that are evicted for it and still exist."""

    job: str
    queue: str
    nodes: tuple[str, ...]
    since_ms: int
    expected: Expected
    evicting: tuple[str, ...]


class PodLease(Struct, frozen=True):
    """The lease "namespace/name" that a pod names, until `end_ms`. `state` is "" where it is not live. The pod shows
    the fence `shown`; `fence` is that of the lease."""

    lease: str
    plane: str
    state: str
    end_ms: int
    fence: int
    shown: int


class NetworkNote(Struct, frozen=True):
    """What an agent reported of the network of the containers of `pod` "namespace/name". `warns`: something is
    wrong."""

    pod: str
    warns: bool
    note: str


class Why(Struct, frozen=True):
    """The answer for a pod. `state` is Bound (to `node`), Placed (the next step binds it to `node`), Never or NotYet.
    The last two have a `code`, a `message`, and `head`, the message without the counts of nodes, which `rules` has.
    `ahead` is the number of workloads before it in queue order.

    `gpus` are the indices of the GPUs that are or will be recorded for it. `mbps` is the bandwidth between them, and
    `ideal_mbps` the most that as many GPUs of the node can have; None for fewer than two or unknown wiring. `parts` are
    its MIG instances, shares and claimed devices. For a refused pod, `holders` hold what is missing, `devices` are the
    GPUs and devices that are closest to fitting, and `repartition` is how idle GPUs could be repartitioned for it.

    `job` is its gang, or the pod itself; `others` is the number of further jobs with the name that was asked for.
    `terms` are its `queue` and those above it, the top first; `wanted` is what its waiting pods will be charged.
    `expected` is its start, `reclaim` the result of the search for victims. `reserved` are the reservations for it, or,
    if these are why it waits, for others. `hints` name what is similar to a name that does not exist. `lease` is the
    one that the pod names. `granted` is what a request for a lease has from its start on, in words. `all_reduce` is
    what its job can expect where it is or will be; None where that is not known. `bound` are the first pods of all that
    has the name that are on nodes, `bound_uids` their uids. `engines` is the load of the inference engines in them,
    None where their metrics were not read. `network` is what their containers got for their network, None where the
    Events were not read."""

    pod: str
    state: str
    node: str = ""
    code: str = ""
    message: str = ""
    head: str = ""
    rules: tuple[RuleView, ...] = ()
    holders: tuple[DeviceHolder, ...] = ()
    gang: GangView | None = None
    ahead: int = 0
    gpus: tuple[int, ...] = ()
    mbps: int | None = None
    ideal_mbps: int | None = None
    parts: tuple[HeldPart, ...] = ()
    devices: tuple[HolderRefused, ...] = ()
    repartition: Repartition | None = None
    job: str = ""
    others: int = 0
    queue: str = ""
    terms: tuple[QueueTerm, ...] = ()
    wanted: Amounts = ()
    expected: Expected | None = None
    reclaim: str = ""
    reserved: tuple[Reserved, ...] = ()
    hints: tuple[str, ...] = ()
    lease: PodLease | None = None
    granted: str = ""
    all_reduce: AllReduce | None = None
    bound: tuple[str, ...] = ()
    bound_uids: tuple[str, ...] = ()
    engines: tuple[EngineLoad, ...] | None = None
    network: tuple[NetworkNote, ...] | None = None


class WhyQueue(Struct, frozen=True):
    """The answer for a queue. `below` are its children. `reasons` has the number of its waiting jobs by reason code,
    the largest first; `head` explains the first of them, None if none waits."""

    queue: QueueShare
    below: tuple[str, ...]
    reasons: tuple[tuple[str, int], ...]
    head: Why | None


class AlternativeNow(Struct, frozen=True):
    """An alternative, tried on its own. `state` is Placed where the next step would offer or grant it, with the devices
    `granted` in words; else NotYet or Never, with a `code` and a `message`."""

    alternative: str
    state: str
    granted: str = ""
    code: str = ""
    message: str = ""


class WhyRequest(Struct, frozen=True):
    """The answer for a request. `written` is what the scheduler wrote last. `answer` is that of the next step, None for
    a request that is settled. `lease` is what a granted request led to."""

    written: RequestRow
    answer: Why | None
    alternatives: tuple[AlternativeNow, ...]
    lease: str = ""


class WhyLease(Struct, frozen=True):
    """The answer for a lease. It can be renewed from `renewable_ms` on, until `renewed_ms` at most from now on; 0 where
    it cannot be any more. Without a pod for `idle_ms` it is revoked, 0 for never."""

    lease: LeaseRow
    renewable_ms: int
    renewed_ms: int
    idle_ms: int


AnyWhy: TypeAlias = Why | WhyQueue | WhyRequest | WhyLease
KINDS = (ANY, POD, JOB, REQUEST, LEASE)
"""What a name can be the name of."""
OF_QUEUE = "queue:"
"""How the NAME begins where only the queue is meant: no pod and no job has such a name."""


class WhyQuestion(Struct, frozen=True):
    """What is to be explained: what is called `key`, NAMESPACE/NAME, of one of the KINDS; or the `queue`, if nothing
    else is called so ("": no queue is meant)."""

    key: str
    kind: str = ANY
    queue: str = ""


class Explanation(Struct, frozen=True):
    """What was found; at least one is not None. `pod` is a pod of the name of a job to which it does not belong."""

    job: Why | None = None
    queue: WhyQueue | None = None
    pod: Why | None = None
    request: WhyRequest | None = None
    lease: WhyLease | None = None

    @property
    def answers(self) -> list[AnyWhy]:
        found: list[AnyWhy | None] = [self.pod, self.job, self.queue, self.request, self.lease]
        return [one for one in found if one is not None]
