# SPDX-License-Identifier: Apache-2.0
"""What is to be done for one plane, from the facts of a moment: pure, and the same however often it is asked.

Rules
- A pod of the endpoint has at most one pod on the host, of a name that follows from its uid. One on the host without
  its pod on the endpoint is deleted, and one whose pod has finished there: at once where it still runs, else after the
  time for which its logs are kept.
- What the endpoint shows of an end comes before the deletion on the host: so no end is lost.
- A pod with devices is created on the host once a held lease has room for it; the waiting pods of a gang that want the
  same negotiate together. One without devices needs no lease.
- A lease is used by the gang for which it was negotiated, is renewed while its pods run, and returned when no pod needs
  it. At its end its pods fail with the cause; before that they show that it ends.
- A pod whose pod on the host has vanished has failed.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dovetail.agentplanes import statuses
from dovetail.agentplanes.carry_actions import (
    Announce,
    BindOnEndpoint,
    CarryAction,
    CarryPlan,
    CreateOnHost,
    DeleteOnHost,
    GiveBack,
    Negotiate,
    RemoveFromEndpoint,
    Renew,
    ShowStatus,
    Withdraw,
)
from dovetail.agentplanes.facts import CarriedLease, HostPod, PlaneFacts, RequestKey
from dovetail.agentplanes.host_pod import HostPodPlan, NotCarried, host_pod, with_lease
from dovetail.agentplanes.wants import MOST_DEVICES, PodGang, PodWant, gang_of, want_of
from dovetail.apiserver.objects import Object, condition_of, key_of, objects_at, text_at, value_at
from dovetail.kube.objects.base import time_text
from dovetail.plane.placement import AgentPod, Assignment, HeldDevice, devices_of, place


class _Waiting(Struct, frozen=True):
    """A pod with devices that is not on the host."""

    pod: Object
    plan: HostPodPlan
    want: PodWant
    gang: PodGang


def decide(facts: PlaneFacts) -> CarryPlan:
    """The actions, in the order in which they are to be carried out."""
    return _Decision(facts).plan()


class _Decision:
    def __init__(self, facts: PlaneFacts) -> None:
        self._facts = facts
        self._actions: list[CarryAction] = []
        self._times: list[int] = []
        self._left = facts.creations
        self._kept = 0
        self._leases = {(lease.record.name, lease.record.fence): lease for lease in facts.leases}
        self._used: set[str] = set()
        self._running: set[str] = set()
        """Leases that pods name, and of these the ones that pods still need."""

    def plan(self) -> CarryPlan:
        facts = self._facts
        waiting: list[Object] = []
        present = 0
        for pod in facts.pods:
            host = facts.hosts.get(text_at(pod, "metadata.uid"))
            present += host is not None and not host.finished
            if host is not None and not host.finished and host.lease:
                self._used.add(host.lease)
            if self._there(pod, host):
                waiting.append(pod)
        known = {text_at(pod, "metadata.uid") for pod in facts.pods}
        for uid, host in facts.hosts.items():
            if uid not in known and not host.deleting:
                self._actions.append(DeleteOnHost(host.name, host.uid, facts.target.most_grace_s))
        self._carry(waiting, facts.limits.pods - present)
        unused = self._keep_leases()
        return CarryPlan(tuple(self._actions), unused, min(self._times, default=None))

    # Pods that are, or were, on the host.

    def _there(self, pod: Object, host: HostPod | None) -> bool:
        """Deal with a pod that needs none on the host; True for one that waits for it."""
        deleted = bool(text_at(pod, "metadata.deletionTimestamp"))
        if statuses.finished(pod) or deleted:
            if host is None:
                if deleted:
                    self._actions.append(RemoveFromEndpoint(key_of(pod), text_at(pod, "metadata.uid")))
                return False
            if not host.deleting and not (host.finished and not deleted and self._keeps(host)):
                self._actions.append(DeleteOnHost(host.name, host.uid, self._grace_s(pod, deleted)))
            if not statuses.finished(pod):
                self._show(pod, host)
            return False
        if host is not None:
            self._follow(pod, host)
            return False
        if statuses.was_carried(pod):
            self._set(pod, statuses.failed(pod, *self._why_gone(pod), self._facts.now_s))
            return False
        return True

    def _keeps(self, host: HostPod) -> bool:
        """Whether a pod that has ended is still kept on the host, for its logs."""
        left_s = host.ended_s + self._facts.limits.logs_s - self._facts.now_s
        if left_s <= 0 or self._kept >= self._facts.limits.pods:
            return False
        self._kept += 1
        self._times.append(self._facts.now_ms + int(1000 * left_s) + 1)
        return True

    def _grace_s(self, pod: Object, deleted: bool) -> int:
        field = "metadata.deletionGracePeriodSeconds" if deleted else "spec.terminationGracePeriodSeconds"
        period_s = value_at(pod, field)
        most_s = self._facts.target.most_grace_s
        return min(most_s, max(0, period_s)) if isinstance(period_s, int) else most_s

    def _follow(self, pod: Object, host: HostPod) -> None:
        lease = self._leases.get((host.lease, host.fence))
        stopped = host.deleting and host.finished
        if host.lease and self._facts.leases_known and (not host.finished or stopped):
            over = "LeaseOver" if lease is None else lease.over
            if lease is not None and not over and self._facts.now_ms >= lease.end_ms:
                over = lease.revoked or "Expired"
            if over:
                message = lease.message if lease is not None and lease.message else f"the lease has ended: {over}"
                self._set(pod, statuses.failed(pod, over, message, self._facts.now_s))
                return
        if stopped:
            reason, message = self._why_ended(host)
            self._set(pod, statuses.failed(pod, reason, message, self._facts.now_s))
            return
        if host.node and not text_at(pod, "spec.nodeName"):
            self._actions.append(BindOnEndpoint(key_of(pod), text_at(pod, "metadata.uid"), host.node))
        if not host.finished and host.lease:
            self._running.add(host.lease)
        self._show(pod, host)

    def _show(self, pod: Object, host: HostPod) -> None:
        lease = self._leases.get((host.lease, host.fence)) if host.lease else None
        ending = _ending(lease, self._facts.now_ms) if lease is not None and not host.finished else None
        how = ""
        if not condition_of(pod, statuses.CARRIED):
            plan = host_pod(pod, self._facts.target, self._facts.config_maps)
            without = plan.without if isinstance(plan, HostPodPlan) else ()
            how = f"as {host.name}" + (f", without {', '.join(without)}" if without else "")
        self._set(pod, statuses.shown(pod, host, how, ending, self._facts.now_s))
        if ending is not None and lease is not None and condition_of(pod, statuses.ENDING).get("message") != ending[1]:
            uid = text_at(pod, "metadata.uid")
            self._actions.append(Announce(key_of(pod), uid, ending[0], ending[1], lease.end_ms))

    def _why_gone(self, pod: Object) -> tuple[str, str]:
        host = self._facts.last.get(text_at(pod, "metadata.uid"))
        return self._why_ended(host) if host is not None else _GONE

    def _why_ended(self, host: HostPod) -> tuple[str, str]:
        """Why a pod of the host was deleted by others."""
        lease = self._leases.get((host.lease, host.fence))
        if lease is not None and (cause := lease.over or lease.revoked):
            return cause, lease.message or f"the lease has ended: {cause}"
        for condition in objects_at({"s": host.status}, "s.conditions"):
            if condition.get("type") == "DisruptionTarget" and condition.get("reason"):
                reason = str(condition["reason"])
                return reason, f"the pod on the host was evicted: {reason}"
        return _GONE

    def _set(self, pod: Object, status: Object) -> None:
        if status != pod.get("status"):
            self._actions.append(ShowStatus(key_of(pod), text_at(pod, "metadata.uid"), status))

    # Pods that wait.

    def _carry(self, pods: Iterable[Object], room: int) -> None:
        waiting: dict[RequestKey, list[_Waiting]] = {}
        for pod in sorted(pods, key=lambda one: (text_at(one, "metadata.creationTimestamp"), key_of(one))):
            if objects_at(pod, "spec.schedulingGates"):
                continue
            # Those that are refused count as well: so what a decision costs has a bound.
            room -= 1
            if room < 0:
                self._too_many(pod)
                continue
            plan = host_pod(pod, self._facts.target, self._facts.config_maps)
            want = want_of(pod)
            if isinstance(plan, NotCarried):
                self._wait(pod, plan.reason, plan.message)
            elif isinstance(want, NotCarried):
                self._wait(pod, want.reason, want.message)
            elif want is None:
                self._create(pod, plan.document)
            else:
                gang = gang_of(pod, self._facts.groups)
                one = _Waiting(pod, plan, want, gang)
                waiting.setdefault(RequestKey(gang.digest, want), []).append(one)
        sizes: dict[str, int] = {}
        for key, group in waiting.items():
            sizes[key.gang] = sizes.get(key.gang, 0) + len(group)
        open_now = sum(not one.failed for one in self._facts.negotiations.values())
        for key, group in waiting.items():
            rest = self._into_leases(key, group)
            open_now += self._negotiate(key, rest, sizes[key.gang], open_now)
        for key in self._facts.negotiations:
            if key not in waiting:
                self._actions.append(Withdraw(key))

    def _too_many(self, pod: Object) -> None:
        if text_at(pod, "status.reason") != _TOO_MANY:
            most = self._facts.limits.pods
            self._wait(pod, _TOO_MANY, f"this control plane has {most} pods on the host or waiting for it, its limit")

    def _into_leases(self, key: RequestKey, group: list[_Waiting]) -> list[_Waiting]:
        """Create as many as the leases of the gang have room for; returns the others."""
        now_ms = self._facts.now_ms
        leases = [
            lease
            for lease in self._facts.leases
            if lease.gang == key.gang and lease.live and not lease.over and not lease.revoked
            and now_ms < (lease.end_ms if not lease.refused else lease.notice_ms)
            and key.want.held_by(lease.record.alternative)
        ]  # fmt: skip
        if not leases:
            return group
        beside = [one for lease in leases for one in self._beside(lease)]
        free = _free_pods(leases, beside, key.want.gpus)
        going = group[:free]
        if not going:
            return group
        assigned = place(
            [AgentPod(text_at(one.pod, "metadata.uid"), key.want.gpus) for one in going],
            [lease.record for lease in leases], beside,
        )  # fmt: skip
        by_id = {lease.record.id: lease.record for lease in leases}
        for one, assignment in zip(going, assigned or (), strict=False):
            record = by_id[assignment.lease]
            self._used.add(record.name)
            self._create(one.pod, with_lease(one.plan, record.name, record.fence, key.gang))
        return group[len(going) if assigned is not None else 0 :]

    def _beside(self, lease: CarriedLease) -> list[Assignment]:
        """The devices that pods on the host have of the lease. Which of a node they are makes no difference here."""
        record, found = lease.record, list[Assignment]()
        free: dict[str, list[HeldDevice]] = {}
        for device in devices_of(record):
            free.setdefault(device.node, []).append(device)
        inside = [
            host
            for host in self._facts.hosts.values()
            if (host.lease, host.fence) == (record.name, record.fence) and not host.finished
        ]
        size = record.alternative.per_node
        for host in sorted(inside, key=lambda one: (not one.node, one.name)):
            node = host.node if host.node in free else max(free, key=lambda one: (len(free[one]), one))
            taken, free[node] = free[node][:size], free[node][size:]
            found.append(Assignment(host.pod_uid, record.id, record.fence, node, tuple(taken)))
        return found

    def _negotiate(self, key: RequestKey, rest: list[_Waiting], in_gang: int, open_now: int) -> int:
        """Ask for what has no lease. Returns how many requests more are open."""
        facts, now = self._facts, self._facts.negotiations.get(key)
        if not rest:
            if now is not None:
                self._actions.append(Withdraw(key))
            return 0
        gang, more, reason, message = rest[0].gang, 0, "WaitingForLease", "the broker is asked for a lease"
        begun = any(lease.gang == key.gang and not lease.over for lease in facts.leases)
        if not facts.leases_known:
            reason, message = "BrokerUnavailable", "the broker has not been heard"
        elif gang.missing:
            reason, message = "PodGroupMissing", f"the PodGroup {gang.missing} is not there"
        elif in_gang < gang.least and not begun:
            reason, message = "GangIncomplete", f"{in_gang} of {gang.least} pods of the gang are there"
        elif len(rest) * key.want.gpus > MOST_DEVICES:
            reason = "NotCarried"
            message = (
                f"{len(rest)} pods of the gang ask for {len(rest) * key.want.gpus} devices; at most {MOST_DEVICES}"
            )
        elif now is not None and not now.failed:
            message = now.why or message
        elif now is not None and now.retry_ms > facts.now_ms:
            reason, message = "LeaseNotGranted", now.why
            self._times.append(now.retry_ms)
        elif open_now >= facts.limits.requests:
            most = facts.limits.requests
            reason, message = "TooManyRequests", f"this control plane has {most} requests open, the most it may have"
        else:
            self._actions.append(Negotiate(key, len(rest)))
            more = 1
        for one in rest:
            self._wait(one.pod, reason, message)
        return more

    def _create(self, pod: Object, document: Object) -> None:
        uid = text_at(pod, "metadata.uid")
        refusal = self._facts.refusals.get(uid)
        if refusal is not None and refusal.retry_ms > self._facts.now_ms:
            self._times.append(refusal.retry_ms)
            self._wait(pod, "HostRefused", refusal.message)
        elif self._left <= 0:
            self._times.append(self._facts.now_ms + 1000)
            rate = self._facts.limits.creations_per_s
            self._wait(pod, "TooManyWrites", f"this control plane may create {rate:g} pods a second on the host")
        else:
            self._left -= 1
            self._actions.append(CreateOnHost(uid, document))

    def _wait(self, pod: Object, reason: str, message: str) -> None:
        self._set(pod, statuses.waiting(pod, reason, message, self._facts.now_s))

    # Leases.

    def _keep_leases(self) -> frozenset[str]:
        """Renew and return leases. Returns the names of those that no pod needs."""
        unused = set[str]()
        for lease in self._facts.leases:
            name = lease.record.name
            if lease.over:
                continue
            self._times += [at_ms for at_ms in (lease.notice_ms, lease.end_ms) if at_ms > self._facts.now_ms]
            if name not in self._used:
                unused.add(name)
                due_ms = (lease.unused_ms or self._facts.now_ms) + self._facts.limits.linger_ms
                if lease.gang and due_ms > self._facts.now_ms:
                    self._times.append(due_ms)
                else:
                    self._actions.append(GiveBack(name))
            elif self._renewable(lease):
                self._actions.append(Renew(name, lease.record.alternative.duration_ms))
        return frozenset(unused)

    def _renewable(self, lease: CarriedLease) -> bool:
        """Whether a renewal is due, and nothing is known against it."""
        runs = lease.record.name in self._running and lease.live
        return runs and not lease.revoked and not lease.refused and self._facts.now_ms >= lease.notice_ms


_TOO_MANY = "TooManyPods"
_GONE = "HostPodGone", "the pod on the host was deleted"


def _ending(lease: CarriedLease, now_ms: int) -> tuple[str, str] | None:
    """Reason and message for the pods of a lease that ends."""
    if lease.over or not (lease.revoked or (lease.refused and now_ms >= lease.notice_ms)):
        return None
    at = time_text(lease.end_ms)
    why = lease.message or f"the term cannot be renewed: {lease.refused}"
    return lease.revoked or "Expired", f"save a checkpoint now: the pod is deleted at {at} ({why})"


def _free_pods(leases: Iterable[CarriedLease], beside: Iterable[Assignment], gpus: int) -> int:
    """How many pods of so many devices the leases still hold, node by node."""
    free: dict[tuple[str, str], int] = {}
    for lease in leases:
        for device in devices_of(lease.record):
            key = lease.record.id, device.node
            free[key] = free.get(key, 0) + 1
    for one in beside:
        free[one.lease, one.node] -= len(one.devices)
    return sum(left // gpus for left in free.values())
