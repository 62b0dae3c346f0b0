# SPDX-License-Identifier: Apache-2.0
"""A lease from its start to its end: renewal, return, revocation, expiry.

Rules
- The broker's clock decides. A lease ends at its end, or at the deadline of its revocation; the agent has at least its
  grace between the notice and that.
- A renewal is for the last part of the term, for at most one more term, and is refused where a reservation would start
  later for it.
- A lease counts for LEAST_CHARGED_MS at least, so that asking and returning all the time gains nothing. One that the
  API server refused, which no pod was in, counts for the time that its devices were held.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining import placeholders
from dovetail.core.bargaining.leases import LiveLease
from dovetail.core.bargaining.states import GpuLeaseState, LeaseEvent, RequestState
from dovetail.core.bargaining.types import EndCause, GpuLease, LeaseAction, Revocation, ServiceClass
from dovetail.core.decisions import Decision, EndLease, GrantLease, LeaseStatus, RevokeLease
from dovetail.core.event_handlers import apply
from dovetail.core.model import Pod
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE

LEAST_CHARGED_MS = 60_000
_RENEWED_MILLI = 333
"""The last part of a term, in which it can be renewed."""


def remove(state: State, workload: str) -> None:
    """Take the placeholders of a workload out of everything, with what they hold."""
    for pod in state.workloads.members(workload):
        apply(state, ev.PodRemoved(pod.uid))
    if not workload.startswith(LONE):
        apply(state, ev.GangRemoved(workload))


def begin(state: State, lease: GpuLease, workload: str, pods: Sequence[Pod]) -> list[Decision]:
    """The lease is live from now on; its placeholders, which are placed, are bound."""
    by_uid = {pod.uid: pod for pod in pods}
    whole = {one.uid: placeholders.bound(by_uid[one.uid], one, lease) for one in lease.holdings}
    _enter(state, LiveLease(lease, workload, whole))
    return [GrantLease(lease, state.steps)]


def _enter(state: State, live: LiveLease) -> None:
    state.leases.add(live)
    live.idle_ms = 0 if live.inside else state.now_ms
    _put(state, live)


def _put(state: State, live: LiveLease) -> None:
    """The placeholders and the timer are those of the lease as it is now."""
    for uid in live.whole:
        apply(state, ev.PodChanged(live.left(uid)))
    _set_timer(state, live)


def resume(state: State, lease: GpuLease) -> list[Decision]:
    """A lease was read that is not known: it goes on where it was, with the pods that run in it."""
    plane = state.requests.planes.get(lease.plane)
    if lease.id in state.leases.live:
        return []
    if plane is None:
        return [EndLease(lease.id, EndCause.PLANE_GONE, (), state.steps)]
    gang, pods = placeholders.of_lease(plane, lease)
    if gang is not None:
        apply(state, ev.GangChanged(gang))
    live = LiveLease(lease, gang.id if gang is not None else LONE + pods[0].uid, {pod.uid: pod for pod in pods})
    if lease.revocation is not None:
        live.handle(LeaseEvent.REVOKED)
    for pod in list(state.workloads.pods.values()):
        inside = pod.lease == lease.id and pod.node and pod.uid not in live.whole
        if inside and (parts := live.parts(pod.node, pod.devices or (), pod.instances)):
            live.inside[pod.uid] = parts
            _charge_since(state, plane.leaf, pod, lease.start_ms)
    _enter(state, live)
    return []


def _charge_since(state: State, queue: str, pod: Pod, since_ms: int) -> None:
    """Charge the queue for what a bound pod within a lease holds since then, in place of since its start."""
    rate, accounts = state.shares.rate(pod.uid), state.shares.accounts
    accounts.charge_late(queue, pod.user, rate, since_ms)
    accounts.take_back(queue, pod.user, rate, pod.bound_ms)
    state.shares.since_ms[pod.uid] = since_ms


def _set_timer(state: State, live: LiveLease) -> None:
    """When something is due: the notice, the end, or that nothing uses it for too long."""
    lease, times = live.lease, [state.leases.end_ms(live.lease.id)]
    if live.state is GpuLeaseState.ACTIVE:
        times.append(lease.end_ms - lease.grace_ms)
    if (idle_ms := _idle_ms(state, live)) and live.state is not GpuLeaseState.REVOKING:
        times.append(idle_ms)
    state.leases.timers.put(lease.id, min(times))


def _idle_ms(state: State, live: LiveLease) -> int:
    """When the lease is idle for too long; 0 while it is used, or where that does not matter."""
    plane, since_ms = state.requests.planes.get(live.lease.plane), _unused_since_ms(state, live)
    return since_ms + plane.idle_ms if plane is not None and plane.idle_ms and since_ms else 0


def _unused_since_ms(state: State, live: LiveLease) -> int:
    """Since when no pod is inside, or none of those inside uses the GPUs that it holds; 0 while one does."""
    if not live.inside:
        return live.idle_ms
    since_ms = [state.workloads.pods[uid].idle_since_ms for uid in live.inside]
    return max(live.lease.start_ms, *since_ms) if all(since_ms) else 0


def due(state: State, live: LiveLease) -> list[Decision]:
    """Its notice, its end, its deadline, or the end of its patience with an idle lease has come."""
    now_ms, lease = state.now_ms, live.lease
    if now_ms >= state.leases.end_ms(lease.id):
        return end(state, live, lease.revocation.cause if lease.revocation is not None else EndCause.EXPIRED)
    decisions: list[Decision] = []
    idle_ms = _idle_ms(state, live)
    if idle_ms and now_ms >= idle_ms and live.state is not GpuLeaseState.REVOKING:
        what = "none of its pods has used a GPU" if live.inside else "no pod has run in it"
        unused_s = (now_ms - _unused_since_ms(state, live)) // 1000
        decisions += revoke(state, live, EndCause.IDLE, f"{what} for {unused_s} s")
    elif live.state is GpuLeaseState.ACTIVE and now_ms >= lease.end_ms - lease.grace_ms:
        live.handle(LeaseEvent.END_IS_NEAR)
        decisions.append(LeaseStatus(lease, live.state.value, state.steps))
    _set_timer(state, live)
    return decisions


def revoke(state: State, live: LiveLease, cause: EndCause, message: str) -> list[Decision]:
    """Take the lease back after its grace, or when it ends anyway."""
    lease = live.lease
    deadline_ms = min(state.now_ms + lease.grace_ms, state.leases.end_ms(lease.id))
    if lease.revocation is not None and deadline_ms >= lease.revocation.deadline_ms:
        return []
    live.handle(LeaseEvent.REVOKED)
    revocation = Revocation(cause, deadline_ms, message)
    live.lease = replace(lease, revocation=revocation)
    live.whole = {uid: replace(pod, deleting=True) for uid, pod in live.whole.items()}
    _put(state, live)
    return [RevokeLease(lease.id, revocation, state.steps)]


def act(state: State, action: LeaseAction) -> list[Decision]:
    """What the agent wants of a lease; a stale fence and a repeated number change nothing."""
    live = state.leases.live.get(action.lease)
    if live is None or action.number <= live.action:
        return []
    live.action = action.number
    if action.fence != live.lease.fence:
        return [_refused(state, live, f"the fence of the lease is {live.lease.fence}, not {action.fence}")]
    if action.action == "return":
        return end(state, live, EndCause.RETURNED)
    return _renew(state, live, action.until_ms)


def _renew(state: State, live: LiveLease, until_ms: int) -> list[Decision]:
    lease, now_ms = live.lease, state.now_ms
    term_ms = lease.alternative.duration_ms
    if lease.revocation is not None:
        return [_refused(state, live, "it is being taken back")]
    if until_ms <= lease.end_ms:
        return [_refused(state, live, "it ends later than that already")]
    plane = state.requests.planes.get(lease.plane)
    if plane is not None and (by := state.shares.tree.stopped_by(plane.queue)) is not None:
        why = "is stopped" if by.stop else "has used its budget"
        return [_refused(state, live, f"the queue {by.name!r} {why}: it ends at its end")]
    if 1000 * (lease.end_ms - now_ms) > _RENEWED_MILLI * term_ms:
        from_ms = lease.end_ms - _RENEWED_MILLI * term_ms // 1000
        return [_refused(state, live, f"it can be renewed in the last third of its term, in {from_ms - now_ms} ms")]
    if until_ms > now_ms + term_ms:
        return [_refused(state, live, f"a renewal is for {term_ms} ms from now at most")]
    renewed = replace(lease, end_ms=until_ms, renewals=lease.renewals + 1)
    live.lease = renewed
    staying = {*live.whole, *live.inside}
    waiting = [
        replace(one, waits_for=one.waits_for - staying)
        for one in state.reservations.others(live.workload)
        if not one.evicts
    ]
    kept = state.planner.kept(waiting, state.workloads.groups) if waiting else []
    if kept is None:
        live.lease = lease
        return [_refused(state, live, "the devices are reserved for another workload")]
    for one in kept:
        state.reservations.put(one)
    live.handle(LeaseEvent.RENEWED)
    live.whole = {
        uid: replace(pod, work=replace(pod.work, max_runtime_ms=until_ms - lease.start_ms))
        for uid, pod in live.whole.items()
    }
    _put(state, live)
    return [LeaseStatus(renewed, live.state.value, state.steps)]


def _refused(state: State, live: LiveLease, why: str) -> Decision:
    return LeaseStatus(live.lease, live.state.value, state.steps, why)


def end(state: State, live: LiveLease, cause: EndCause, *, made: bool = True) -> list[Decision]:
    """The lease is over. The pods inside hold their devices until they are gone. Where its object was not `made`, its
    agent had nothing of it."""
    lease, now_ms = live.lease, state.now_ms
    uids = tuple(live.inside)
    rate = sum([state.shares.rate(uid) for uid in (*live.whole, *live.inside)])
    if lease.alternative.service is not ServiceClass.SCAVENGER and (made or uids):
        # The clock of the process that began the lease may have been ahead.
        _charge_least(state, lease.plane, rate, max(0, now_ms - lease.start_ms))
    state.leases.end(live)
    remove(state, live.workload)
    state.shares.since_ms.update(dict.fromkeys(uids, now_ms))
    newer = state.requests.negotiations.get(lease.id)
    if newer is not None and newer.state is RequestState.PENDING:
        state.requests.timers.put(lease.id, now_ms)
    return [EndLease(lease.id, cause, uids, state.steps, rate)]


def _charge_least(state: State, plane_id: str, rate: int, ran_ms: int, ended_ms: int | None = None) -> None:
    """Charge the queue of the plane for what is missing to the least charge, although the lease is over. `ended_ms`: it
    was charged then, by another process."""
    plane = state.requests.planes.get(plane_id)
    if plane is not None and ran_ms < LEAST_CHARGED_MS:
        state.shares.accounts.charge_more(plane.leaf, rate, LEAST_CHARGED_MS - ran_ms, ended_ms)


def charge_past(state: State, lease: ev.LeaseRan) -> None:
    """Charge what a lease that is over charged after the last record of its plane's usage."""
    plane, accounts = state.requests.planes.get(lease.plane), state.shares.accounts
    if plane is None:
        return
    for pod in state.workloads.pods.values():
        if pod.lease == lease.id and pod.node and pod.uid not in state.shares.since_ms:
            # It runs on for its grace.
            _charge_since(state, plane.leaf, pod, max(pod.bound_ms, lease.ended_ms))
    if lease.ended_ms <= accounts.recorded_until_ms.get(plane.leaf, lease.ended_ms):
        return
    accounts.charge_late(plane.leaf, "", lease.rate_milli, lease.start_ms)
    accounts.take_back(plane.leaf, "", lease.rate_milli, max(lease.start_ms, lease.ended_ms))
    if not lease.scavenged:
        _charge_least(state, lease.plane, lease.rate_milli, lease.ended_ms - lease.start_ms, lease.ended_ms)
