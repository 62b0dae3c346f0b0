# SPDX-License-Identifier: Apache-2.0
"""The live leases, and the pods that run in each.

Rules: the devices of a live lease are held by its placeholders and by the pods inside, never by both. A lease leaves
this table when it ends; pods of it that still run hold their devices until they are gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dovetail.core.bargaining import placeholders
from dovetail.core.bargaining.states import LEASES, GpuLeaseState, LeaseEvent
from dovetail.core.bargaining.timers import Timers
from dovetail.core.bargaining.types import GpuLease, Holding, LeaseAction
from dovetail.core.events import LeaseRan
from dovetail.core.model import Instance, Pod


class LiveLease(Struct):
    """`whole` are its placeholders as if no pod was inside, by uid. `inside` has by pod (uid) what it took, of which
    placeholder each. `action` is the number of the agent's last action that was read. `idle_ms` is since when no pod
    is inside (0: some is). `workload` is the workload of its placeholders."""

    lease: GpuLease
    workload: str
    whole: dict[str, Pod]
    state: GpuLeaseState = GpuLeaseState.ACTIVE
    inside: dict[str, tuple[Holding, ...]] = {}
    action: int = 0
    idle_ms: int = 0

    def handle(self, event: LeaseEvent) -> None:
        """Raises KeyError where the state has no such event."""
        self.state = LEASES[self.state][event]

    def left(self, uid: str) -> Pod:
        """A placeholder with what the pods inside leave of it."""
        taken = [part for parts in self.inside.values() for part in parts if part.uid == uid]
        whole = self.whole[uid]
        return placeholders.left(whole, self.lease.alternative, taken) if taken else whole

    @property
    def free(self) -> list[Pod]:
        """Its placeholders as they are now, those without devices left out."""
        return [pod for pod in map(self.left, self.whole) if pod.devices or pod.instances]

    def parts(self, node: str, gpus: Sequence[int], instances: Sequence[Instance]) -> tuple[Holding, ...]:
        """These devices of a node as parts of its placeholders; empty where these do not have them all."""
        found: list[Holding] = []
        gpus_left, instances_left = set(gpus), list(instances)
        for pod in self.free:
            if pod.node != node:
                continue
            own = () if instances else tuple([gpu for gpu in pod.devices or () if gpu in gpus_left])
            slices = tuple([one for one in pod.instances if one in instances_left])
            if own or slices:
                found.append(Holding(pod.uid, node, own, slices))
                gpus_left.difference_update(own)
                instances_left = [one for one in instances_left if one not in slices]
        return () if instances_left or (gpus_left and not instances) else tuple(found)


class Leases:
    """`live` by id, `by_workload` the same by the workload of the placeholders, `by_pod` the lease of each pod inside.
    `recorded` are leases that a driver read, `removed` those whose object is gone, with whether there was one,
    `actions` what agents want. `fence` is the last one that was used."""

    def __init__(self) -> None:
        self.live: dict[str, LiveLease] = {}
        self.by_workload: dict[str, LiveLease] = {}
        self.by_pod: dict[str, LiveLease] = {}
        self.by_plane: dict[str, dict[str, None]] = {}
        self.recorded: dict[str, GpuLease] = {}
        self.removed: dict[str, bool] = {}
        self.actions: dict[str, LeaseAction] = {}
        self.ran: dict[str, LeaseRan] = {}
        """Leases that were over when they were first read."""
        self.nodes_changed: dict[str, None] = {}
        """Nodes that changed or went while leases are live."""
        self.timers = Timers()
        self.fence = 0

    def __bool__(self) -> bool:
        """Whether something is to be read in the next step."""
        return bool(self.recorded or self.removed or self.actions or self.ran or self.nodes_changed)

    def next_fence(self, now_ms: int) -> int:
        """Greater than all before, also than those of a process that is gone, as far as clocks go forward."""
        self.fence = max(self.fence + 1, now_ms)
        return self.fence

    def add(self, one: LiveLease) -> None:
        self.live[one.lease.id] = one
        self.by_workload[one.workload] = one
        self.by_plane.setdefault(one.lease.plane, {})[one.lease.id] = None
        for uid in one.inside:
            self.by_pod[uid] = one
        self.fence = max(self.fence, one.lease.fence)

    def end(self, one: LiveLease) -> None:
        """Forget a lease that is over."""
        one.handle(LeaseEvent.OVER)
        del self.live[one.lease.id]
        del self.by_workload[one.workload]
        own = self.by_plane[one.lease.plane]
        del own[one.lease.id]
        if not own:
            del self.by_plane[one.lease.plane]
        for uid in one.inside:
            del self.by_pod[uid]
        self.timers.drop(one.lease.id)

    def record(self, lease: GpuLease) -> None:
        """A driver has read the lease."""
        known = self.live.get(lease.id)
        self.removed.pop(lease.id, None)
        if known is None or known.lease != lease:
            self.recorded[lease.id] = lease

    def remove(self, lease_id: str, fence: int, made: bool) -> None:
        """The object of the lease with this fence (0: any) is gone, or was not `made`."""
        self.actions.pop(lease_id, None)
        recorded, live = self.recorded.get(lease_id), self.live.get(lease_id)
        if recorded is not None and fence in (0, recorded.fence):
            del self.recorded[lease_id]
        if live is not None and fence in (0, live.lease.fence):
            self.removed[lease_id] = made

    def node_changed(self, name: str) -> None:
        if self.live:
            self.nodes_changed[name] = None

    def ended(self, lease: LeaseRan) -> None:
        """A lease was over when it was first read."""
        self.ran[lease.id] = lease

    def act(self, action: LeaseAction) -> None:
        self.actions[action.lease] = action

    def enter(self, pod: Pod, parts: tuple[Holding, ...]) -> list[Pod]:
        """The pod takes these parts of its lease. Returns the placeholders as they are then."""
        one = self.live[pod.lease]
        one.inside[pod.uid] = parts
        one.idle_ms = 0
        self.by_pod[pod.uid] = one
        return [one.left(uid) for uid in dict.fromkeys(part.uid for part in parts)]

    def leave(self, uid: str, now_ms: int) -> list[Pod]:
        """The pod is gone from its lease. Returns the placeholders that hold its devices again; none where the lease
        is over, or never had the pod."""
        one = self.by_pod.pop(uid, None)
        if one is None:
            return []
        parts = one.inside.pop(uid)
        if not one.inside:
            one.idle_ms = now_ms
            # When it has been idle for too long is worked out in the next step.
            self.timers.put(one.lease.id, now_ms)
        return [one.left(part) for part in dict.fromkeys(part.uid for part in parts)]

    def pod_idle_changed(self, uid: str, now_ms: int) -> None:
        """Since when the pod uses none of its GPUs has changed: what follows is worked out in the next step."""
        one = self.by_pod.get(uid)
        if one is not None:
            self.timers.put(one.lease.id, now_ms)

    def end_ms(self, lease_id: str) -> int:
        """When a live lease ends; 0 where none of this id is live."""
        one = self.live.get(lease_id)
        if one is None:
            return 0
        return one.lease.revocation.deadline_ms if one.lease.revocation is not None else one.lease.end_ms

    def next_ms(self) -> int | None:
        """When something is due, although nothing happens."""
        return self.timers.next_ms()
