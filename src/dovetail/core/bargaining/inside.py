# SPDX-License-Identifier: Apache-2.0
"""Pods are placed within the lease that they name, on its devices alone.

Rules: a pod shows the fence of its lease. It takes its devices from the placeholders of the lease, and the queue that
is charged is the same as before. The search is that of all workloads, with all other devices of the nodes blocked. A
pod of a plane that asks for devices and names no lease is refused: it would pass by the negotiation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining.leases import LiveLease
from dovetail.core.bargaining.states import GpuLeaseState
from dovetail.core.bargaining.types import PREFIX
from dovetail.core.cluster.placement import Placement, indices
from dovetail.core.decisions import Decision, VolumePick
from dovetail.core.event_handlers import apply
from dovetail.core.model import GPU, NVIDIA, Instance, Pod, Request
from dovetail.core.pipeline import pre_enqueue
from dovetail.core.pipeline.binding import binds_of
from dovetail.core.pipeline.holds import hold
from dovetail.core.placing import ranks
from dovetail.core.placing.gangs import GangSearch, Group, SearchLimitReached
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.state import State
from dovetail.core.workloads.index import complete


class _Found(Struct, frozen=True):
    """Where a pod goes within its lease."""

    pod: Pod
    slot: int
    gpus: tuple[int, ...]
    instances: tuple[Instance, ...]
    picks: tuple[VolumePick, ...]


def concerns(state: State, pod: Pod) -> bool:
    """Whether the pod is placed within a lease, or not at all."""
    if pod.uid.startswith(PREFIX):
        return False
    return bool(pod.lease) or (state.requests.plane_of(pod.namespace) is not None and _asks_devices(pod))


def _asks_devices(pod: Pod) -> bool:
    return pod.request.asks_devices or bool(pod.device_claims)


def attempt(state: State, workload: str) -> list[Decision]:
    """Binds for what fits in the lease; a Hold where the refusal is new."""
    members, by_uid = state.workloads.members(workload), state.workloads.waiting(workload)
    decisions, refusal = _phases(state, workload, members, list(by_uid.values()))
    waiting = [pod for uid, pod in by_uid.items() if uid not in state.cluster.placements]
    if not waiting:
        state.queue.forget(workload)
        return decisions
    state.queue.park(workload, state.rank(workload), state.queue_order.queue_user(workload))
    if refusal is None:
        refusal = Refusal(Reason.GANG_FULL, When.NOT_YET)
    return decisions + hold(state, workload, refusal, tuple([pod.uid for pod in waiting]))


def _phases(
    state: State, workload: str, members: Sequence[Pod], waiting: Sequence[Pod]
) -> tuple[list[Decision], Refusal | None]:
    queue = state.shares.pod_queues.of(members[0]) if members else ""
    refusal = pre_enqueue.blocked(state, workload, queue, waiting, waiting) or _blocked(state, waiting)
    if refusal is not None or not waiting:
        return [], refusal
    live, decisions = state.leases.live[waiting[0].lease], list[Decision]()
    for group in state.workloads.groups(workload):
        found = _search(state, live, group)
        if isinstance(found, Refusal):
            refusal = refusal or found
        elif found:
            decisions += _bind(state, live, workload, members, found)
    return decisions, refusal


def _blocked(state: State, pods: Iterable[Pod]) -> Refusal | None:
    """Why these pods may not use the lease that they name."""
    names: dict[str, None] = {}
    for pod in pods:
        names[pod.lease] = None
        plane = state.requests.plane_of(pod.namespace)
        if not pod.lease:
            return Refusal(Reason.LEASE_NEEDED, When.NEVER, plane.id if plane is not None else "")
        live = state.leases.live.get(pod.lease)
        if live is None:
            return Refusal(Reason.LEASE_MISSING, When.NOT_YET, repr(pod.lease))
        if plane is None or plane.id != live.lease.plane:
            return Refusal(Reason.LEASE_FORBIDDEN, When.NEVER, f"{pod.lease!r} belongs to {live.lease.plane}")
        if pod.fence != live.lease.fence:
            return Refusal(Reason.LEASE_FENCED, When.NEVER, f"{live.lease.fence}, the pod shows {pod.fence}")
        if live.state is GpuLeaseState.REVOKING:
            return Refusal(Reason.LEASE_ENDING, When.NEVER, repr(pod.lease))
        if pod.device_claims:
            return Refusal(Reason.INVALID, When.NEVER, f"{pod.key}: a pod within a lease has no device claims")
    if len(names) > 1:
        return Refusal(Reason.INVALID, When.NEVER, f"the pods name several leases: {', '.join(map(repr, names))}")
    return None


def _search(state: State, live: LiveLease, group: Group) -> list[_Found] | Refusal:
    """Where the group goes within the lease; the cluster is left as it was."""
    if not complete(group):
        return Refusal(Reason.GANG_INCOMPLETE, When.NOT_YET)
    cluster, free = state.cluster, live.free
    slots = sorted({cluster.nodes.slots[pod.node] for pod in free if pod.node in cluster.nodes.slots})
    scope = np.array(slots, dtype=np.int64)
    with cluster.trial():
        own: dict[int, int] = dict.fromkeys(slots, 0)
        for pod in free:
            placement = cluster.placements[pod.uid]
            own[placement.slot] |= placement.gpu_bits
            cluster.evict(pod.uid)
        for slot in slots:
            _block(state, slot, int(cluster.nodes.gpu_free_bits[slot]) & ~own[slot])
        try:
            fits = GangSearch(cluster, state.score_cache, state.policy.search_limit).place(group, scope)
        except SearchLimitReached:
            fits = False
        if fits:
            ranks.settle(cluster, group)
        there = [cluster.placements[pod.uid] for pod in group.all_pods() if pod.uid in cluster.placements]
        found = _assigned(state, live, there) if fits else None
    return found if found is not None else _full(live, free)


def _block(state: State, slot: int, gpus: int) -> None:
    """Have these GPUs taken, in the running trial."""
    if not gpus:
        return
    request = Request(resources=((GPU, gpus.bit_count()),))
    name = state.cluster.nodes.names[slot]
    blocker = Pod(f"{PREFIX}blocker/{name}", "", "", request, node=name, devices=indices(gpus), managed=False)
    state.cluster.place(blocker, slot)


def _assigned(state: State, live: LiveLease, there: Sequence[Placement]) -> list[_Found] | None:
    """The pods with devices of the lease; None where one would get others. Whole GPUs are those of the search. Shares
    and MIG instances of one kind are equal: a pod gets the first that is left on its node."""
    names, found = state.cluster.nodes.names, list[_Found]()
    left = {pod.uid: pod for pod in live.free}
    for placement in there:
        gpus, instances = indices(placement.gpu_bits), tuple[Instance, ...]()
        if placement.share_bits or placement.slices:
            same = (
                pod
                for pod in left.values()
                if pod.node == names[placement.slot] and _same_devices(pod.request, placement.pod.request)
            )
            part = next(same, None)
            if part is None:
                return None
            del left[part.uid]
            gpus, instances = part.devices or (), part.instances
        found.append(_Found(placement.pod, placement.slot, gpus, instances, placement.picks))
    return found


def _same_devices(held: Request, asked: Request) -> bool:
    def devices(request: Request) -> object:
        named = [amount for amount in request.resources if amount[0].startswith(NVIDIA)]
        return named, request.gpu_milli, request.gpu_memory_mib

    return devices(held) == devices(asked)


def _full(live: LiveLease, free: Collection[Pod]) -> Refusal:
    by_node: dict[str, int] = {}
    for pod in free:
        by_node[pod.node] = by_node.get(pod.node, 0) + len(pod.instances or pod.devices or ())
    left = ", ".join(f"{count} on {node}" for node, count in sorted(by_node.items())) or "none"
    return Refusal(Reason.LEASE_FULL, When.NOT_YET, f"{live.lease.name!r} has these devices free: {left}")


def _bind(
    state: State, live: LiveLease, workload: str, members: Sequence[Pod], found: Sequence[_Found]
) -> list[Decision]:
    """Place the pods where they were found to go, on the devices of the placeholders."""
    cluster, placed = state.cluster, list[Placement]()
    for one in found:
        node = cluster.nodes.names[one.slot]
        parts = live.parts(node, one.gpus, one.instances)
        state.shares.since_ms[one.pod.uid] = live.lease.start_ms
        for pod in state.leases.enter(one.pod, parts):
            apply(state, ev.PodChanged(pod))
        exact = replace(one.pod, node=node, devices=one.gpus, instances=one.instances)
        placement = cluster.place(exact, one.slot, one.picks, cluster.shape_of(one.pod))
        placement.pod = one.pod
        placed.append(placement)
    state.shares.placed(placed)
    state.queue_order.counted(state.workloads.distinct([placement.pod for placement in placed]))
    return binds_of(state, workload, members, placed)
