# SPDX-License-Identifier: Apache-2.0
"""Possible victims: the running pods, divided into units of eviction, with the work that each unit would lose.

Rules: a unit is evicted as a whole. Each workload is a unit; a single pod is a gang of one. In a gang with more pods
than its minimum each pod is a unit too, and in a gang with more sub-gangs than it needs each sub-gang is: no more of
them are evicted than can be spared (a pool), unless the whole gang is. These pods are never victims: pods of other
schedulers, pods that are ending, pods whose bind is not confirmed, pods that must not be preempted, pods that have run
for less than the least run time of their queue, and pods whose disruption budget has no disruption left.

Lost work is the charged rate times the work to repeat: the time since the last checkpoint (else since the start) plus
the start-up. A checkpoint in the future counts as one of now. If only the interval between checkpoints is known, the
last one counts as a whole interval ago, or as the start where that is later. While a pod uses none of its GPUs it does
no work that could be lost, unless its queue declares otherwise: so among equals the pod that leaves its GPUs idle is
evicted first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from dovetail.core import labels
from dovetail.core.bargaining.types import ServiceClass
from dovetail.core.cluster.placement import Placement
from dovetail.core.model import Pod
from dovetail.core.preemption.cascades import follow, follow_beyond
from dovetail.core.preemption.units import Unit
from dovetail.core.queues.reclaim import LONG_SETTLED, Reclaim
from dovetail.core.queues.shares import Shares
from dovetail.core.queues.types import Budget
from dovetail.core.reasons import Sure
from dovetail.core.state import State
from dovetail.core.workloads.index import Precedence, WorkloadIndex

_CHEAP = 10
"""A unit is cheap if it loses at most one part in so many of what it did since it started."""
_STARTUP_MS = 300_000
"""The assumed start-up time of a pod that does not declare one, for the question whether a unit is cheap."""


def lost_milli_ms(shares: Shares, pod: Pod, now_ms: int) -> int:
    """The work that the pod loses if it is evicted now, in milli-GPU times ms."""
    queue = shares.tree.queues.get(shares.pod_queues.of(pod))
    started_ms = min(pod.bound_ms or pod.created_ms, now_ms)
    worked_until_ms = now_ms
    if pod.idle_since_ms and queue is not None and queue.idle_first:
        worked_until_ms = min(pod.idle_since_ms, now_ms)
    ran_ms = max(0, worked_until_ms - started_ms)
    if pod.checkpoint_ms:
        ran_ms = max(0, worked_until_ms - max(started_ms, pod.checkpoint_ms))
    elif pod.work.checkpoint_interval_ms:
        ran_ms = min(ran_ms, pod.work.checkpoint_interval_ms)
    return shares.rate(pod.uid) * (ran_ms + pod.work.startup_ms)


def subgangs(workload_index: WorkloadIndex, workload: str) -> dict[str, list[str]]:
    """The gangs right below each gang of a tree, by gang."""
    below: dict[str, list[str]] = {}
    for gang_id in workload_index.tree(workload):
        gang = workload_index.gangs.get(gang_id)
        if gang is not None and gang_id != workload:
            below.setdefault(gang.parent, []).append(gang_id)
    return below


class Allowances:
    """The disruptions that budgets still allow. A pod of several budgets is never evicted: the API server refuses."""

    def __init__(self, budgets: Iterable[Budget]) -> None:
        self._by_namespace: dict[str, list[Budget]] = {}
        self._left: dict[str, int] = {}
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[str, ...]] = {}
        for budget in budgets:
            self._by_namespace.setdefault(budget.namespace, []).append(budget)
            self._left[budget.key] = budget.allowed

    def of(self, pod: Pod) -> tuple[str, ...]:
        """The keys of the pod's budgets."""
        budgets = self._by_namespace.get(pod.namespace)
        if budgets is None:
            return ()
        identity = pod.namespace, pod.labels
        if identity not in self._known:
            own = dict(pod.labels)
            self._known[identity] = tuple(b.key for b in budgets if labels.matches(b.selector, own))
        return self._known[identity]

    def admit(self, pods: Iterable[Pod]) -> bool:
        """Whether all these pods together may be evicted now."""
        if not self._by_namespace:
            return True
        wanted: Counter[str] = Counter()
        for pod in pods:
            keys = self.of(pod)
            if len(keys) > 1:
                return False
            wanted.update(keys)
        return all(self._left[key] >= count for key, count in wanted.items())

    def take(self, pods: Iterable[Pod]) -> None:
        """Count these pods as evicted."""
        for pod in pods:
            for key in self.of(pod):
                self._left[key] -= 1


class Victims:
    """The units of all pods that run in the queues `of` (None: in any) except those of `workload`, as jobs of `queue`
    see them, sorted by `Unit.order`; with `among` only those of the workloads of these pods. The pods (uid) `ending`
    are being evicted already. `at_once`: after their start nothing protects them but a least run time that an admin
    has set. `spare` has the size of each pool."""

    def __init__(
        self, state: State, queue: str, workload: str, ending: Collection[str] = (), of: Collection[str] | None = None,
        among: Collection[Placement] | None = None, at_once: bool = False,
    ) -> None:  # fmt: skip
        self._state = state
        self._at_once = at_once
        self._queue = queue
        self._ending = ending
        self._allowances = Allowances(state.budgets.values())
        self._precedence: Precedence = (0, 0)
        self.spare: list[int] = []
        self.units: list[Unit] = []
        self.ripe_ms = 0
        """When the first unit that has not run long enough may be taken, or taken with less right; 0 for none."""
        workload_of, queue_of = state.workloads.workload_of, state.shares.pod_queues.of
        queues = None if of is None else frozenset(of)
        seen = {workload}
        for placement in state.cluster.placements.values() if among is None else among:
            pod = placement.pod
            if not pod.managed or (queues is not None and queue_of(pod) not in queues):
                continue
            live = state.leases.live.get(pod.lease) if pod.lease else None
            other = workload_of(pod) if live is None else live.workload
            if other in seen:
                continue
            seen.add(other)
            self._precedence = state.precedence(other)
            if live is not None:
                # A lease is taken back as a whole, with the pods that run in it.
                uids = [*live.whole, *live.inside]
                self._add(other, [state.cluster.placements[uid] for uid in uids if uid in state.cluster.placements])
            elif pod.gang:
                self._cut(other, state.workloads.members(other))
            else:
                self._add(other, [placement])
        follow(self.units)
        if queues is not None:
            shares, quota, pledged = state.shares, state.shares.quota, state.pledges.total()
            follow_beyond(
                self.units, queue, quota.exceeds_due, lambda unit: amounts_of(shares, unit.uids),
                lambda name, lost: quota.claim_back(name, lost, pledged, less=lost),
            )  # fmt: skip
        self.units.sort(key=lambda unit: unit.order)

    def _cut(self, workload: str, members: Sequence[Pod]) -> None:
        """Add the units of a gang."""
        state = self._state
        placements = state.cluster.placements
        own: dict[str, list[Placement]] = {}
        for pod in members:
            placement = placements.get(pod.uid)
            if placement is not None and not (pod.deleting or pod.uid in self._ending):
                own.setdefault(pod.gang, []).append(placement)
        below = subgangs(state.workloads, workload)
        first = len(self.units)
        running, _ = self._parts(workload, workload, own, below)
        self._add(workload, running, covers=tuple(range(first, len(self.units))))

    def _parts(
        self, workload: str, gang_id: str, own: Mapping[str, list[Placement]], below: Mapping[str, list[str]]
    ) -> tuple[list[Placement], bool]:
        """Add the units that the gang, and those below it, can spare. Returns its running pods, and whether they are
        enough for it to run."""
        gang = self._state.workloads.gangs.get(gang_id)
        pods, children = own.get(gang_id, []), below.get(gang_id, [])
        if gang is None:
            return pods, False
        least = gang.min_count if pods or not children else 0
        pool = self._pool(len(pods) - least)
        for placement in pods if pool >= 0 else ():
            self._add(workload, [placement], pool)
        running = list(pods)
        whole: list[tuple[list[Placement], tuple[int, ...]]] = []
        for child in children:
            first = len(self.units)
            part, enough = self._parts(workload, child, own, below)
            running += part
            if enough:
                whole.append((part, tuple(range(first, len(self.units)))))
        needed = gang.min_groups or len(children)
        pool = self._pool(len(whole) - needed)
        for part, covers in whole if pool >= 0 else ():
            self._add(workload, part, pool, covers)
        return running, len(pods) >= least and len(whole) >= needed

    def _pool(self, spare: int) -> int:
        if spare <= 0:
            return -1
        self.spare.append(spare)
        return len(self.spare) - 1

    def _add(
        self, workload: str, placements: Sequence[Placement], pool: int = -1, covers: tuple[int, ...] = ()
    ) -> None:
        """Add a unit, unless its pods may not be evicted at all."""
        if not placements:
            return
        shares, now_ms = self._state.shares, self._state.now_ms
        first = placements[0].pod
        name = shares.pod_queues.of(first)
        queue = shares.tree.queues.get(name)
        if queue is None:
            return
        pods, slots, started_ms, lost, cost, done = [], [], [], 0, 0, 0
        for placement in placements:
            pod = placement.pod
            if (
                not (pod.managed and pod.node and shares.pod_queues.preemptible(pod))
                or pod.deleting
                or pod.uid in self._ending
            ):
                return
            pods.append(pod)
            slots.append(placement.slot)
            since_ms, rate = pod.bound_ms or pod.created_ms, shares.rate(pod.uid)
            started_ms.append(since_ms)
            lost_here = lost_milli_ms(shares, pod, now_ms)
            lost += lost_here
            cost += lost_here if pod.work.startup_ms else lost_here + rate * _STARTUP_MS
            done += rate * max(0, now_ms - since_ms)
        # A member that came later does not protect those that have run for long.
        ran_ms, job, evictions = (
            now_ms - min(started_ms),
            self._state.workloads.job_of(first),
            self._state.eviction_counts,
        )
        least_ms = queue.preempt_min_runtime_ms if name == self._queue else queue.reclaim_min_runtime_ms or 0
        least_ms = least_ms if self._at_once else max(least_ms, evictions.spared_ms(job, now_ms))
        settled_ms = max(least_ms, evictions.settled_ms(job, queue.least_run_ms, now_ms))
        if ran_ms < settled_ms:
            ripe_ms = now_ms - ran_ms + (least_ms if ran_ms < least_ms else settled_ms)
            self.ripe_ms = min(self.ripe_ms, ripe_ms) if self.ripe_ms else ripe_ms
        if ran_ms < least_ms or not self._allowances.admit(pods):
            return
        settled = min(LONG_SETTLED, ran_ms // settled_ms) if settled_ms else LONG_SETTLED
        if settled and self._ends_soon(pods, name, lost):
            settled = 0
        live = self._state.leases.by_workload.get(workload)
        if live is not None:
            # A lease ends by itself: beyond their guarantee others wait for that, unless it is a scavenger's.
            settled = LONG_SETTLED if live.lease.alternative.service is ServiceClass.SCAVENGER else 0
        unit = Unit(
            len(self.units), workload, name, self._precedence, tuple([pod.uid for pod in pods]), tuple(slots), lost,
            max(started_ms), pool, covers, settled, _CHEAP * cost <= done,
            sum([shares.rate(pod.uid) for pod in pods]), all(pod.work.preempts for pod in pods),
            core=self._core(pods, covers) if covers else {},
        )  # fmt: skip
        self.units.append(unit)

    def _ends_soon(self, pods: Iterable[Pod], queue: str, lost_milli_ms: int) -> bool:
        """Whether the pods have no more work left than they would lose, as far as run times are declared or learned."""
        run_times, shares, left_milli_ms = self._state.run_times, self._state.shares, 0
        for pod in pods:
            left = run_times.left_ms(pod.work, queue, max(0, self._state.now_ms - (pod.bound_ms or pod.created_ms)))
            if left.sure is Sure.UNKNOWN:
                return False
            left_milli_ms += shares.rate(pod.uid) * left.ran_ms
        return left_milli_ms <= lost_milli_ms

    def _core(self, pods: Iterable[Pod], covers: Iterable[int]) -> dict[str, int]:
        """The amounts of these pods once as many of the units among them as can be spared are gone."""
        gone: set[str] = set()
        left: dict[int, int] = {}
        for unit in sorted([self.units[number] for number in covers], key=lambda unit: (-unit.rate_milli, unit.number)):
            spare = left.get(unit.pool, self.spare[unit.pool])
            if spare and gone.isdisjoint(unit.uids):
                gone.update(unit.uids)
                left[unit.pool] = spare - 1
        return amounts_of(self._state.shares, [pod.uid for pod in pods if pod.uid not in gone])


class Together:
    """What may be evicted at the same time: within all budgets, and of each pool at most what can be spared."""

    def __init__(self, state: State, spare: Sequence[int]) -> None:
        self._placements = state.cluster.placements
        self._allowances = Allowances(state.budgets.values())
        self._spare = list(spare)
        self._gone: set[str] = set()

    def left(self, unit: Unit) -> list[str]:
        """The pods of the unit that are not taken yet."""
        return [uid for uid in unit.uids if uid not in self._gone]

    def admits(self, unit: Unit) -> bool:
        pods = (self._placements[uid].pod for uid in self.left(unit))
        return (not unit.elastic or self._spare[unit.pool] > 0) and self._allowances.admit(pods)

    def take(self, unit: Unit) -> None:
        left = self.left(unit)
        self._allowances.take(self._placements[uid].pod for uid in left)
        self._gone.update(left)
        if unit.elastic:
            self._spare[unit.pool] -= 1


def amounts_of(shares: Shares, uids: Iterable[str]) -> Counter[str]:
    """The sum of the amounts of these placed pods, by resource class."""
    counted: Counter[str] = Counter()
    for uid in uids:
        for name, amount in shares.amounts(uid):
            counted[name] += amount
    return counted


def reclaims(claim: Reclaim | None, unit: Unit, amounts: Mapping[str, int]) -> bool:
    """Whether the claim takes the unit, of which these amounts are left. If so, they count as taken."""
    pieces = {name: max(0, amount - unit.core.get(name, 0)) for name, amount in amounts.items()} if unit.core else {}
    return claim is not None and claim.takes(
        unit.queue, amounts, settled=unit.settled, cheap=unit.cheap, pieces=pieces
    )  # fmt: skip


def lower_precedence(state: State, queue: str) -> str:
    """The possible victims within a queue, as part of a message."""
    record = state.shares.tree.queues.get(queue)
    served = ", or with more attained service," if record is not None and record.least_served_first else ""
    return f"of a lower priority{served}"
