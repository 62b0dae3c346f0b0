# SPDX-License-Identifier: Apache-2.0
"""Event handlers: how each event changes the state.

Rules: an event for an object replaces the record of that object. An event that changes nothing leaves no trace; one
that may let a refused workload fit is announced in `Cluster.changes`. A bound pod holds resources on its node, whatever
was decided for it. The GPUs of a bound pod are those that its bind wrote; a pod without such a record gets what the
others leave, and the same in whatever order the pods come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.cluster.changes import ClusterChange
from dovetail.core.model import Pod
from dovetail.core.preemption import draining
from dovetail.core.queues.calendars import at_time
from dovetail.core.queues.types import QUEUE_LABEL
from dovetail.core.state import State
from dovetail.core.workloads.index import startable

Handler = Callable[[State, Any], object]


def apply(state: State, event: ev.Event) -> None:
    _HANDLERS[type(event)](state, event)
    if type(event) not in _FOLLOWED:
        state.headrooms.unsettle()


def _put_pod(state: State, event: ev.PodChanged) -> None:
    pod, cluster = event.pod, state.cluster
    old = state.workloads.pods.get(pod.uid)
    if old == pod:
        return
    if old is None and pod.managed:
        cluster.mix.see(pod)
    if old is None or old.request != pod.request:
        if old is not None:
            cluster.unplace_if_bound(old)
            _release(state, old)
        cluster.shapes.retain(pod.request)
        if pod.managed:
            cluster.peers.retain(pod.request, cluster.placed())
    if pod.device_claims and (old is None or old.device_claims != pod.device_claims):
        if old is not None:
            cluster.claims.forget(old)
        cluster.claims.know(pod)
    state.workloads.put_pod(pod)
    if pod.work.headroom or (old is not None and old.work.headroom):
        state.headrooms.see(old, pod)
        state.headrooms.unsettle()
    elif state.headrooms:
        state.headrooms.touch(state.workloads.workload_of(pod))
        if old is not None and old.gang != pod.gang:
            state.headrooms.touch(state.workloads.workload_of(old))
    if pod.node:
        if pod.lease and pod.uid not in state.leases.by_pod:
            _enter_lease(state, pod)
        if old is not None and old.idle_since_ms != pod.idle_since_ms:
            state.leases.pod_idle_changed(pod.uid, state.now_ms)
        _hold(state, pod)
    nominated = pod.nominated_node and not pod.node and pod.uid not in cluster.placements
    if nominated and not (pod.managed and state.workloads.workload_of(pod) in state.reservations.by_workload):
        cluster.nominated[pod.uid] = pod
    elif cluster.nominated.pop(pod.uid, None) is not None:
        cluster.changes.announce(ClusterChange.NOMINATION)
    state.sync(pod)
    if pod.managed:
        workload = state.workloads.workload_of(pod)
        if old is not None and old.gang != pod.gang:
            state.touch(state.workloads.workload_of(old))
        if pod.gang and pod.node:
            state.workloads.note_start(workload)
        if pod.gang:
            state.broken.look(workload, state.now_ms)
        if not pod.node or (old is not None and startable(old)):
            state.touch(workload)


def _enter_lease(state: State, pod: Pod) -> None:
    """A pod is bound within a lease, as a record has it: its devices are those of the lease's placeholders."""
    live = state.leases.live.get(pod.lease)
    if live is None or pod.uid in live.whole:
        return
    if parts := live.parts(pod.node, pod.devices or (), pod.instances):
        state.shares.since_ms[pod.uid] = live.lease.start_ms
        for placeholder in state.leases.enter(pod, parts):
            _put_pod(state, ev.PodChanged(placeholder))


def _leave_lease(state: State, uid: str) -> None:
    """A pod is gone from its lease, or was not bound: placeholders hold its devices again."""
    if uid in state.leases.by_pod:
        for placeholder in state.leases.leave(uid, state.now_ms):
            _put_pod(state, ev.PodChanged(placeholder))


def _release(state: State, pod: Pod) -> None:
    """Forget the request of a pod that is gone, unless other pods have the same."""
    if pod.managed:
        state.cluster.peers.release(pod.request)
    state.cluster.shapes.release(pod.request)


def _hold(state: State, pod: Pod) -> None:
    """A bound pod holds resources on its node, whatever was decided for it."""
    cluster = state.cluster
    slot = cluster.nodes.slot_of(pod.node)
    placement = cluster.placements.get(pod.uid)
    if (
        placement is None
        or placement.slot != slot
        or placement.shape.request != cluster.shapes.without(pod.request, pod.by_claim).request
    ):
        picks = placement.picks if placement is not None else ()
        cluster.unplace(pod.uid)
        if placement is not None:
            cluster.leave(placement.slot)
        cluster.seat(pod, slot, picks)
        return
    contradicts = placement.contradicts(pod)
    if _same_to_others(placement.pod, pod):
        placement.pod = pod
    else:
        cluster.recount(placement, pod)
    if contradicts:
        cluster.reallocation.unsettled[slot] = None


def _remove_pod(state: State, event: ev.PodRemoved) -> None:
    cluster = state.cluster
    pod = state.workloads.pods.get(event.uid)
    if pod is None:
        return
    state.broken.ended(event.gang or pod.gang, event.succeeded, event.failed)
    if event.ended_ms and event.uid not in state.leases.by_pod:
        # The devices of a live lease are charged on.
        state.shares.ended(event.uid, event.ended_ms)
    if event.succeeded and pod.bound_ms:
        ran_ms = max(0, (event.ended_ms or state.now_ms) - pod.bound_ms)
        state.run_times.learn(pod.work.family, state.shares.pod_queues.of(pod), ran_ms)
    state.headrooms.touch(state.workloads.workload_of(pod))
    state.workloads.remove_pod(event.uid)
    if pod.work.headroom:
        state.headrooms.forget(pod)
        state.headrooms.unsettle()
    placement = cluster.placements.get(event.uid)
    cluster.unplace(event.uid)
    _leave_lease(state, event.uid)
    if placement is not None:
        cluster.mix.end(placement)
        cluster.leave(placement.slot)
    _release(state, pod)
    cluster.claims.forget(pod)
    cluster.avoided.pop(event.uid, None)
    state.shares.since_ms.pop(event.uid, None)
    if cluster.nominated.pop(event.uid, None) is not None:
        cluster.changes.announce(ClusterChange.NOMINATION)
    state.sync(pod)
    workload = state.workloads.workload_of(pod)
    if pod.gang:
        state.workloads.note_start(workload)
        state.broken.look(workload, state.now_ms)
    state.touch(workload)


def _put_gang(state: State, event: ev.GangChanged) -> None:
    before = state.workloads.top(event.gang.id)
    if state.workloads.put_gang(event.gang):
        workload = state.workloads.top(event.gang.id)
        state.headrooms.touch(before, workload)
        # A gang may come after its pods, some of them bound.
        state.workloads.note_start(workload)
        state.broken.look(workload, state.now_ms)
        for touched in dict.fromkeys((before, workload)):
            state.touch(touched)


def _remove_gang(state: State, event: ev.GangRemoved) -> None:
    workload = state.workloads.top(event.id)
    state.workloads.remove_gang(event.id)
    state.headrooms.touch(workload, event.id)
    for gang_id in dict.fromkeys((workload, event.id)):
        state.touch(gang_id)


def _bind_failed(state: State, event: ev.BindFailed) -> None:
    pod = state.workloads.pods.get(event.uid)
    if pod is None or pod.node:
        return
    placement = state.cluster.placements.get(event.uid)
    state.cluster.unplace(event.uid)
    _leave_lease(state, event.uid)
    if placement is not None:
        state.cluster.leave(placement.slot)
    state.cluster.avoided.setdefault(event.uid, {})[event.node] = event.retry_at_ms
    state.sync(pod)
    state.touch(state.workloads.workload_of(pod))


def _put_queue(state: State, event: ev.QueueChanged) -> None:
    old = state.shares.tree.written.get(event.queue.name)
    state.shares.put_queue(event.queue)
    if old is None or replace(old, usage=None) != replace(at_time(event.queue, state.now_ms), usage=None):
        state.requests.queue_changed(event.queue.name, state.shares.tree)
        state.queues_changed()


def _remove_queue(state: State, event: ev.QueueRemoved) -> None:
    if event.name in state.shares.tree.written:
        state.shares.remove_queue(event.name)
        state.requests.queue_changed(event.name, state.shares.tree)
        state.queues_changed()


def _put_node(state: State, event: ev.NodeChanged) -> None:
    state.cluster.put_node(event.node)
    state.leases.node_changed(event.node.name)


def _put_plane(state: State, event: ev.PlaneChanged) -> None:
    state.requests.put_plane(event.plane)


def _remove_plane(state: State, event: ev.PlaneRemoved) -> None:
    state.requests.remove_plane(event.id)


def _remove_node(state: State, event: ev.NodeRemoved) -> None:
    state.leases.node_changed(event.name)
    slot = state.cluster.nodes.slots.get(event.name)
    state.cluster.remove_node(event.name)
    if any(slot in one.slots for one in state.reservations):
        state.cluster.changes.announce(ClusterChange.RESERVATION)


def _put_budget(state: State, event: ev.BudgetChanged) -> None:
    old = state.budgets.get(event.budget.key)
    state.budgets[event.budget.key] = event.budget
    if old is None or old.selector != event.budget.selector:
        state.headrooms.unsettle()
    if old is None or event.budget.allowed > old.allowed:
        state.cluster.changes.announce(ClusterChange.BUDGET)


def _put_namespace(state: State, event: ev.NamespaceChanged) -> None:
    cluster, name = state.cluster, event.namespace.name
    before = cluster.peers.labels_of(name)
    cluster.peers.set_namespace(event.namespace, cluster.placed())
    now = cluster.peers.labels_of(name)
    if now == before:
        return
    state.headrooms.unsettle()
    # Which queue its pods are in, and which ones they may use, may have changed.
    state.shares.count_again()
    if now.get(QUEUE_LABEL) != before.get(QUEUE_LABEL):
        state.queues_changed()
    cluster.changes.announce(ClusterChange.NAMESPACE)


def _put_claim(state: State, event: ev.ClaimChanged) -> None:
    if state.cluster.claims.put_claim(event.claim):
        state.cluster.changes.announce(ClusterChange.CLAIM)
        state.shares.claim_changed(event.claim.key, event.claim.owner_pod)


def _remove_claim(state: State, event: ev.ClaimRemoved) -> None:
    if state.cluster.claims.remove_claim(event.key):
        state.cluster.changes.announce(ClusterChange.CLAIM)
    state.shares.claim_changed(event.key)


def _remove_namespace(state: State, event: ev.NamespaceRemoved) -> None:
    if state.cluster.peers.forget_namespace(event.name, state.cluster.placed()):
        state.cluster.changes.announce(ClusterChange.NAMESPACE)


def _eviction_failed(state: State, event: ev.EvictionFailed) -> None:
    state.reservations.eviction_failed(event.uid, event.message)
    if event.uid in state.drains.leaving:
        draining.stay(state, [event.uid])


def _same_to_others(old: Pod, new: Pod) -> bool:
    """Whether the two are the same to other pods and to volumes."""
    return old.deleting == new.deleting and old.labels == new.labels and old.claims == new.claims


def _announcing(change: ClusterChange, handler: Handler) -> Handler:
    """A handler whose event always changes something, or that returns whether it did."""

    def handle(state: State, event: ev.Event) -> None:
        if handler(state, event) is not False:
            state.cluster.changes.announce(change)

    return handle


_FOLLOWED = frozenset({
    ev.NodeChanged, ev.NodeRemoved, ev.PodChanged, ev.PodRemoved, ev.GangChanged, ev.GangRemoved, ev.BudgetChanged,
    ev.QueueChanged, ev.NamespaceChanged, ev.ClaimChanged, ev.ClaimRemoved, ev.VolumeClaimChanged,
    ev.VolumeClaimRemoved, ev.VolumeChanged, ev.VolumeRemoved, ev.StorageClassChanged, ev.StorageClassRemoved,
    ev.FabricChanged, ev.FabricRemoved, ev.PlaneHeartbeat, ev.LeaseRequestChanged, ev.LeaseRequestRemoved,
})  # fmt: skip
"""Events of which headroom follows what they change, or does not depend on it; any other may change all of it."""
_VOLUME, _DEVICES = ClusterChange.VOLUME, ClusterChange.DEVICES
_HANDLERS: dict[type, Handler] = {
    ev.NodeChanged: _put_node,
    ev.NodeRemoved: _remove_node,
    ev.PodChanged: _put_pod,
    ev.PodRemoved: _remove_pod,
    ev.GangChanged: _put_gang,
    ev.GangRemoved: _remove_gang,
    ev.NamespaceChanged: _put_namespace,
    ev.NamespaceRemoved: _remove_namespace,
    ev.VolumeClaimChanged: _announcing(_VOLUME, lambda state, event: state.cluster.volumes.put_claim(event.claim)),
    ev.VolumeClaimRemoved: _announcing(_VOLUME, lambda state, event: state.cluster.volumes.claims.pop(event.key, None)),
    ev.VolumeChanged: _announcing(_VOLUME, lambda state, event: state.cluster.volumes.put_volume(event.volume)),
    ev.VolumeRemoved: _announcing(_VOLUME, lambda state, event: state.cluster.volumes.volumes.pop(event.name, None)),
    ev.StorageClassChanged: _announcing(
        _VOLUME, lambda state, event: state.cluster.volumes.put_class(event.storage_class)
    ),
    ev.StorageClassRemoved: _announcing(
        _VOLUME, lambda state, event: state.cluster.volumes.classes.pop(event.name, None)
    ),
    # Speeds forbid nothing, and of nodes that are no spares any more those announce that hold them back.
    ev.FabricChanged: lambda state, event: state.cluster.put_fabric(event.fabric),
    ev.FabricRemoved: lambda state, event: state.cluster.remove_fabric(event.name),
    ev.SliceChanged: _announcing(_DEVICES, lambda state, event: state.cluster.claims.put_slice(event.slice)),
    ev.SliceRemoved: _announcing(_DEVICES, lambda state, event: state.cluster.claims.remove_slice(event.name)),
    ev.DeviceClassChanged: _announcing(
        _DEVICES, lambda state, event: state.cluster.claims.put_class(event.device_class)
    ),
    ev.DeviceClassRemoved: _announcing(_DEVICES, lambda state, event: state.cluster.claims.remove_class(event.name)),
    ev.ClaimChanged: _put_claim,
    ev.ClaimRemoved: _remove_claim,
    ev.QueueChanged: _put_queue,
    ev.QueueRemoved: _remove_queue,
    ev.BudgetChanged: _put_budget,
    ev.BudgetRemoved: _announcing(ClusterChange.BUDGET, lambda state, event: state.budgets.pop(event.key, None)),
    ev.EvictionFailed: _eviction_failed,
    ev.BindFailed: _bind_failed,
    ev.PlaneChanged: _put_plane,
    ev.PlaneRemoved: _remove_plane,
    ev.PlaneHeartbeat: lambda state, event: state.requests.heartbeat(event.plane, state.now_ms),
    ev.PlaneSilent: lambda state, event: state.requests.silence(event.plane),
    ev.LeaseRequestChanged: lambda state, event: state.requests.put(event.request),
    ev.LeaseRequestRemoved: lambda state, event: state.requests.remove(event.id),
    ev.LeaseChanged: lambda state, event: state.leases.record(event.lease),
    ev.LeaseRemoved: lambda state, event: state.leases.remove(event.id, event.fence, event.made),
    ev.LeaseRan: lambda state, event: state.leases.ended(event),
    ev.LeaseActed: lambda state, event: state.leases.act(event.action),
    ev.PodRejected: lambda state, event: state.cluster.rejections.add(
        event.owner, event.node, event.reason, state.now_ms
    ),
}
