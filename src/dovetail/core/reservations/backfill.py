# SPDX-License-Identifier: Apache-2.0
"""Reservations: room that is held for the first workload that does not fit, and for those that preempt others.

Rules
- A reservation is sticky: it stays until its workload starts, is gone or cannot be tried, or until another workload
  displaces it. In the same line that is one of a higher precedence. From another line it is one that stays within its
  guarantee where the owner does not; or one whose turn it is with a job larger than all that is due to its queue, where
  the owner is smaller and beyond what is due. Precedence counts within a line alone, as in the queue order, and owners
  from other lines can only be larger: else two workloads could displace each other for ever. A reservation for which
  pods are evicted is never displaced; it is given up when an eviction fails or takes too long.
- Its nodes and its start come from one trial: running pods are taken off in the order in which they end, by the limits
  of their run times or by what was learned, until the workload fits. Pods whose end is unknown come last: where their
  room is needed there is no start and no reservation, since it could idle for ever. The trial is made again when the
  start has passed, or when something on the nodes has changed.
- In queues that order by attained service, a workload that has a level of service already gets no reservation:
  workloads on the same level pass it, and are evicted once they had more service than it.
- Other workloads start beside it; or if they end before its start (not where pods are evicted for it); or if the
  workload still fits by its start with them in place, on its nodes or on others, to which the reservation moves: its
  start is kept, not its nodes (EASY backfill, Lifka 1995; Mu'alem and Feitelson 2001).
- Two reservations that wait for pods to end never share a node that both owners could use: then there is only the
  first. Reservations for which pods are evicted hold amounts and devices, not nodes (`preemption.nominated_room`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from dovetail.core.cluster import Cluster
from dovetail.core.cluster.placement import Placement
from dovetail.core.cluster.rejections import FOR_EVER_MS
from dovetail.core.cluster.shapes import Shape
from dovetail.core.model import Pod
from dovetail.core.pipeline.equivalence import EquivalenceCache
from dovetail.core.placing.gangs import GangSearch, Group, SearchLimitReached, shapes_of
from dovetail.core.placing.pods import Placed
from dovetail.core.placing.score_cache import ScoreCache
from dovetail.core.policy import Policy
from dovetail.core.queues.accounts import Line
from dovetail.core.queues.run_times import RunTimes
from dovetail.core.queues.shares import Shares
from dovetail.core.reasons import Expected, Sure
from dovetail.core.workloads.index import Precedence, WorkloadIndex, startable

Slots = NDArray[np.int64]
_Changes = dict[str, dict[str, int]]
"""By queue and class."""


class Reservation(Struct, frozen=True):
    """Room on `slots` (ascending) for `workload`, of `queue`, from `expected` on, as it was worked out at `planned_ms`.
    `waits_for` are the pods on these whose end it waits for. Where pods are evicted for it, `nominated` are its own
    pods (uid) with the slots that are held for them, `evicting` the pods that have to be gone for it by `deadline_ms`,
    and `waits_for` pods that are evicted for others and have to be gone, too; `failure` is why an eviction failed. With
    `moving` the evicted pods come back elsewhere."""

    workload: str
    queue: str
    slots: Slots
    expected: Expected
    made_ms: int
    planned_ms: int = 0
    precedence: Precedence = (0, 0)
    guaranteed: bool = False
    waits_for: frozenset[str] = frozenset()
    evicting: frozenset[str] = frozenset()
    nominated: Placed = ()
    deadline_ms: int = 0
    failure: str = ""
    moving: bool = False

    @property
    def leaving(self) -> frozenset[str]:
        """The pods whose end it waits for, whichever workload evicts them."""
        return self.evicting | self.waits_for

    @property
    def start_ms(self) -> int:
        """When it starts at the latest; for ever where that is not known."""
        return self.expected.start_ms or FOR_EVER_MS


class ReservationPlan(Struct, frozen=True):
    slots: Slots
    expected: Expected
    waits_for: frozenset[str]


class Reservations:
    """Reservations by workload, in the order in which they were made."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        workloads: WorkloadIndex,
        score_cache: ScoreCache,
        shares: Shares,
        run_times: RunTimes,
        equivalence: EquivalenceCache,
        line: Callable[[str], Line],
    ) -> None:
        self._cluster, self._policy, self._workloads = cluster, policy, workloads
        self._score_cache, self._shares, self._run_times = score_cache, shares, run_times
        self._equivalence, self._line = equivalence, line
        self.by_workload: dict[str, Reservation] = {}
        self.spared: dict[str, int] = {}
        """Pods whose eviction failed, with the time until when they are no victims again."""
        self.unknown: dict[str, tuple[int, Expected | None]] = {}
        """Workloads for which no start can be given, with why, and the time until when that is not worked out again."""
        self._version = 0
        self._pledged: tuple[tuple[int, int], tuple[dict[str, _Changes], _Changes]] = ((-1, -1), ({}, {}))
        self._pledges_kept = False
        self._soonest = -1, FOR_EVER_MS
        self._gone: dict[str, tuple[int, list[tuple[int, Placement]]]] = {}
        """By workload, the pods that ran when the step began and end by its start; with that start."""
        self._denied: NDArray[np.bool_] | None = None
        """The slots that workloads could use which may hold no room, since another one does; they are before all that
        come later."""

    def __iter__(self) -> Iterator[Reservation]:
        return iter(self.by_workload.values())

    def begin_step(self) -> None:
        """Forget which pods ran when the last step began."""
        self._gone.clear()

    def put(self, reservation: Reservation) -> None:
        self.by_workload[reservation.workload] = reservation
        self._version += 1
        self._equivalence.recheck()

    def drop(self, workload: str) -> None:
        """Hold nothing for the workload any more: workloads that were refused for its sake may start."""
        self.unknown.pop(workload, None)
        self._gone.pop(workload, None)
        if self.by_workload.pop(workload, None) is not None:
            self._version += 1
            self._cluster.freed += 1
            # For those that are tried later in this step, too.
            self._equivalence.room_given_up()

    def may_hold(self, precedence: Precedence) -> bool:
        """Whether room may be held for jobs of this precedence."""
        return self._policy.reserve and precedence[1] == 0

    def others(self, workload: str) -> list[Reservation]:
        """What is held for others than this workload."""
        return [one for one in self.by_workload.values() if one.workload != workload]

    def eviction_failed(self, uid: str, message: str) -> None:
        """The eviction of a pod failed."""
        for one in self.evictors():
            if uid in one.leaving:
                self.by_workload[one.workload] = replace(one, failure=message)
                self.spare([uid])
                self._cluster.freed += 1

    def withdrawn(self, given_up: Reservation) -> None:
        """Its evictions are off: pods that are not ending yet stay, and reservations that wait for them fail."""
        pods = self._workloads.pods
        staying = [uid for uid in given_up.evicting if uid in pods and not pods[uid].deleting]
        for one in self.evictors():
            if one.workload != given_up.workload and not one.waits_for.isdisjoint(staying):
                name = self._workloads.name_of(given_up.workload)
                self.by_workload[one.workload] = replace(one, failure=f"{name} needs it no more")
                self._cluster.freed += 1

    def evictors(self) -> list[Reservation]:
        """The reservations for which pods are evicted."""
        return [one for one in self.by_workload.values() if one.nominated]

    def spare(self, uids: Iterable[str]) -> None:
        """The eviction of these pods failed: they are no victims for a while."""
        until_ms = self._cluster.now_ms + self._policy.eviction_deadline_ms
        self.spared |= dict.fromkeys(uids, until_ms)

    def left_alone(self, others: Iterable[Reservation]) -> frozenset[str]:
        """Pods that are no victims: others evict them already, or their eviction failed a while ago."""
        now_ms, placements = self._cluster.now_ms, self._cluster.placements
        self.spared = {uid: until for uid, until in self.spared.items() if until > now_ms and uid in placements}
        return frozenset(self.spared).union(*(one.evicting for one in others))

    def pledged(self) -> Mapping[str, Mapping[str, int]]:
        """What queues will hold more, or less, once all decided evictions are done, by queue and class."""
        return self._pledges()[1]

    def pledged_beside(self, workload: str) -> Mapping[str, Mapping[str, int]]:
        """The same for others than this workload."""
        one = self.by_workload.get(workload)
        return self.pledged() if one is None or not one.nominated else _sum(self._pledges()[0], workload)

    def promised_beside(self, workload: str) -> Mapping[str, Mapping[str, int]]:
        """What is kept for others than this workload, by queue and class: what they will hold, less what those hold
        still that are evicted for them."""
        if not self.evictors():
            return {}
        return _sum(self._pledges()[0], workload, least=0)

    def _pledges(self) -> tuple[dict[str, _Changes], _Changes]:
        """By workload what changes with the evictions for it, and all of that together."""
        version = self._version, self._cluster.freed
        if self._pledged[0] != version and not self._pledges_kept:
            workloads: dict[str, _Changes] = {}
            for one in self.evictors():
                left = [uid for uid in one.evicting if uid in self._cluster.placements and not one.moving]
                pods = [pod for uid, _ in one.nominated if (pod := self._workloads.pods.get(uid)) is not None]
                coming = [pod for pod in pods if pod.uid not in self._cluster.placements and startable(pod)]
                moves: list[tuple[str, Mapping[str, int], int]] = [(one.queue, self._shares.wanted(coming), 1)]
                moves += [
                    (self._shares.queue_of(self._workloads.pods[uid]), dict(self._shares.amounts(uid)), -1)
                    for uid in left
                ]
                changes = workloads[one.workload] = {}
                for queue, amounts, sign in moves:
                    for name in self._shares.path(queue):
                        books = changes.setdefault(name, {})
                        for resource, amount in amounts.items():
                            books[resource] = books.get(resource, 0) + sign * amount
            self._pledged = version, (workloads, _sum(workloads))
        return self._pledged[1]

    @contextmanager
    def pledges_kept(self) -> Iterator[None]:
        """Inside, what is pledged is what it was before, whoever is taken off or placed in a trial."""
        self._pledges()
        self._pledges_kept = True
        try:
            yield
        finally:
            self._pledges_kept = False

    def beside(self, others: Iterable[Reservation]) -> Slots:
        """The slots that nobody holds, of those that ever had a node."""
        free = np.ones(self._cluster.nodes.used, dtype=np.bool_)
        for one in others:
            free[one.slots] = False
        return np.flatnonzero(free)

    def next_ms(self) -> int | None:
        """When a reservation has to be looked at again."""
        now_ms = self._cluster.now_ms
        times = [t for one in self for t in (one.deadline_ms, one.expected.start_ms) if t > now_ms]
        return min(times, default=None)

    def stale(self, one: Reservation) -> bool:
        """Whether its nodes and its start have to be worked out anew: its time has come, a pod that it waits for has
        gone, or one of its nodes cannot be used any more."""
        placements, nodes, now_ms = self._cluster.placements, self._cluster.nodes, self._cluster.now_ms
        if now_ms <= one.planned_ms:
            return False
        records = (nodes.records[slot] for slot in one.slots.tolist())
        if any(record is None or record.unschedulable or record.problem is not None for record in records):
            return True
        return now_ms >= one.start_ms or any(uid not in placements for uid in one.waits_for)

    def conflicts(self, shapes: Iterable[Shape], others: Iterable[Reservation]) -> bool:
        """Whether pods of these shapes could use a node that is held for somebody else."""
        held = {int(slot) for one in others for slot in one.slots}
        if not held:
            return False
        slots = np.array(sorted(held), dtype=np.int64)
        return any(bool(self._score_cache.of(shape).suitable[slots].any()) for shape in shapes)

    def bar(self, shapes: Sequence[Shape], queue: str, precedence: Precedence, wanted: Mapping[str, int]) -> bool:
        """Whether a job that has no reservation cannot have one, in whichever line of the queue it waits."""
        guaranteed = self._shares.quota.within_guarantee(queue, wanted)
        staying = [
            one
            for one in self
            if not (any(_beaten(one, queue, precedence, guaranteed)) or self._has_turn(queue, wanted, one))
        ]
        return self.denies(shapes, staying)

    def denies(self, shapes: Sequence[Shape], staying: Iterable[Reservation]) -> bool:
        """Whether a job that wants these shapes may not hold room: what others hold stays, or somebody before it wants
        the same. If so, it is before whoever comes later."""
        suitable = self._suitable(shapes)
        waited = self._denied is not None and bool(
            (self._denied[: len(suitable)] & suitable[: len(self._denied)]).any()
        )
        if not waited and not self.conflicts(shapes, staying):
            return False
        self.deny(shapes)
        return True

    def deny(self, shapes: Sequence[Shape]) -> None:
        """No workload that comes later holds room that such a job could use."""
        suitable = self._suitable(shapes)
        if self._denied is not None:
            suitable[: len(self._denied)] |= self._denied
        self._denied = suitable

    def _suitable(self, shapes: Sequence[Shape]) -> NDArray[np.bool_]:
        suitable = np.zeros(self._cluster.nodes.size, dtype=np.bool_)
        for shape in shapes:
            suitable |= self._score_cache.of(shape).suitable
        return suitable

    def forget_denied(self) -> None:
        """All waiting workloads are tried again, in their order."""
        self._denied = None

    def displaced(
        self, one: Reservation, line: Line, precedence: Precedence, wanted: Mapping[str, int], guaranteed: bool
    ) -> bool:
        """Whether a job of this line and precedence takes the place of a reservation; `guaranteed` says that its queue
        stays within its guarantee with what is `wanted` for it."""
        within, beyond = _beaten(one, line[0], precedence, guaranteed)
        if self._line(one.workload) == line:
            return within
        return beyond or self._has_turn(line[0], wanted, one)

    def _has_turn(self, queue: str, wanted: Mapping[str, int], one: Reservation) -> bool:
        """Whether it is the turn of a job that is larger than all that is due to its queue, so that it takes the place
        of a smaller one that is beyond what is due; not where running jobs would be evicted for it."""
        owner = self._shares.tree.queues.get(one.queue)
        if owner is None or one.nominated or self._cluster.now_ms - one.made_ms < (owner.reclaim_min_runtime_ms or 0):
            return False
        return self._shares.quota.outranks(
            queue, wanted, one.queue, self._shares.wanted(self._workloads.next_pods(one.workload))
        )

    def plan(self, group: Group, others: Iterable[Reservation]) -> ReservationPlan | None:
        """Where and from when on the group fits beside what is held for others; None where it would not fit either if
        all others were gone, or where the search was given up. Nothing is changed."""
        cluster, scope, needed = self._cluster, self.beside(others), least(group)
        ends = [placement for _, placement in self._ends(scope)]
        with cluster.trial():
            marks, few, count = [cluster.mark()], -1, 0
            while (slots := self._fits(needed, scope)) is None:
                if count == len(ends):
                    return None
                # Once many are gone, a few more make little difference: the steps grow with what was taken off.
                few, count = count, min(len(ends), count + max(1, count // 16))
                self._take_off(ends, marks, count)
            while count - few > 1:
                # Not all of the last step may be needed, and the pod that ends last says when it starts.
                middle = (few + count) // 2
                self._take_off(ends, marks, middle)
                if (found := self._fits(needed, scope)) is None:
                    few = middle
                else:
                    slots, count = found, middle
        return self._planned(slots, ends[:count])

    def _take_off(self, ends: list[Placement], marks: list[int], count: int) -> None:
        """Have the first `count` of these gone in the running trial; `marks` are before each that is, and after all."""
        if count < len(marks) - 1:
            self._cluster.rewind(marks[count])
            del marks[count + 1 :]
        for placement in ends[len(marks) - 1 : count]:
            self._cluster.evict(placement.pod.uid)
            marks.append(self._cluster.mark())

    def _planned(self, slots: Slots, gone: list[Placement]) -> ReservationPlan:
        inside = set(slots.tolist())
        waits = [(placement, self.expected_end(placement)) for placement in gone if placement.slot in inside]
        uids = frozenset(placement.pod.uid for placement, _ in waits)
        if not waits:
            return ReservationPlan(
                slots, Expected(Sure.KNOWN, self._cluster.now_ms, "it fits beside what is held now"), uids
            )
        last, expected = waits[-1]
        unknown = sum(1 for _, one in waits if one.sure is Sure.UNKNOWN)
        if unknown:
            what = "one of which it is" if unknown == 1 else f"{unknown} of which it is"
            basis = f"waits for {len(waits)} pods, {what} not known when they end: {last.pod.key} ({expected.basis})"
            return ReservationPlan(slots, Expected(Sure.UNKNOWN, 0, basis), uids)
        sure = Sure.LEARNED if any(one.sure is Sure.LEARNED for _, one in waits) else Sure.KNOWN
        basis = f"when the last of {len(waits)} pods ends, {last.pod.key}: {expected.basis}"
        return ReservationPlan(slots, Expected(sure, expected.start_ms, basis), uids)

    def _ends(self, scope: Slots) -> list[tuple[int, Placement]]:
        """The pods that run in the scope, by when they end."""
        placements, on_slot = self._cluster.placements, self._cluster.on_slot
        inside = [placements[uid] for slot in scope.tolist() for uid in on_slot.get(slot, ())]
        ends = [(self.end_ms(placement), placement) for placement in inside]
        ends.sort(key=lambda one: (one[0], one[1].slot))
        return ends

    def end_ms(self, placement: Placement) -> int:
        """When a placed pod ends; for ever where that is not known."""
        pod, now_ms = placement.pod, self._cluster.now_ms
        if pod.deleting:
            return now_ms
        ran_ms = max(0, now_ms - pod.bound_ms) if pod.node and pod.bound_ms else 0
        if pod.work.max_runtime_ms > ran_ms:
            return now_ms + pod.work.max_runtime_ms - ran_ms
        left = self._run_times.left_ms(pod.work, self._shares.queue_of(pod), ran_ms)
        return FOR_EVER_MS if left.sure is Sure.UNKNOWN else now_ms + max(1, left.ran_ms)

    def expected_end(self, placement: Placement) -> Expected:
        """When a placed pod ends, and how that is known."""
        pod, now_ms = placement.pod, self._cluster.now_ms
        if pod.deleting:
            return Expected(Sure.KNOWN, now_ms, "is ending")
        ran_ms = max(0, now_ms - pod.bound_ms) if pod.node and pod.bound_ms else 0
        left = self._run_times.left_ms(pod.work, self._shares.queue_of(pod), ran_ms)
        start_ms = 0 if left.sure is Sure.UNKNOWN else self.end_ms(placement)
        return Expected(left.sure, start_ms, left.basis)

    def soonest_ms(self, workload: str) -> int:
        """When the first of the others starts that waits for others to end; for ever where that is not known."""
        if workload in self.by_workload:
            return min([one.start_ms for one in self.others(workload) if not one.nominated], default=FOR_EVER_MS)
        if self._soonest[0] != self._version:
            starts_ms = [one.start_ms for one in self if not one.nominated]
            self._soonest = self._version, min(starts_ms, default=FOR_EVER_MS)
        return self._soonest[1]

    def ends_before(self, pods: Iterable[Pod], start_ms: int) -> bool:
        """Whether pods that start now have ended by then."""
        if start_ms == FOR_EVER_MS:
            return False
        for pod in pods:
            ran_ms = pod.work.max_runtime_ms
            if not ran_ms:
                run = self._run_times.estimate(pod.work, self._shares.queue_of(pod))
                ran_ms = FOR_EVER_MS if run.sure is Sure.UNKNOWN else run.ran_ms
            if self._cluster.now_ms + ran_ms > start_ms:
                return False
        return True

    def kept(self, others: Iterable[Reservation], groups: Callable[[str], list[Group]]) -> list[Reservation] | None:
        """Whether each of them that waits for others to end still starts by its time with all that is placed in the
        running trial: on its nodes, or on others. Those that have to move, as they are then; None where one would be
        delayed."""
        moved: dict[str, Reservation] = {}
        for one in others:
            if one.nominated:
                continue
            needed = next(map(least, groups(one.workload)), None)
            if needed is None or self._fits_there(needed, one):
                continue
            staying = [moved.get(other.workload, other) for other in self.others(one.workload)]
            plan = self._elsewhere(needed, one, self.beside(staying))
            if plan is None or plan.expected.start_ms > one.expected.start_ms:
                return None
            moved[one.workload] = replace(
                one, slots=plan.slots, expected=plan.expected, waits_for=plan.waits_for, planned_ms=self._cluster.now_ms
            )
        return list(moved.values())

    def _fits_there(self, needed: Group, one: Reservation) -> bool:
        """Whether the group fits on the nodes of its reservation by its start."""
        gone, start_ms = one.waits_for, one.expected.start_ms
        with self._cluster.trial():
            for end_ms, placement in self._ends(one.slots):
                if end_ms <= start_ms or placement.pod.uid in gone:
                    self._cluster.evict(placement.pod.uid)
            return self._fits(needed, one.slots) is not None

    def _elsewhere(self, needed: Group, one: Reservation, scope: Slots) -> ReservationPlan | None:
        """Where else the group fits by its start, with twice as many gone each time."""
        cluster, start_ms = self._cluster, one.expected.start_ms
        known = self._gone.get(one.workload)
        if known is None or known[0] != start_ms:
            ends = self._ends(np.arange(cluster.nodes.used, dtype=np.int64))
            known = self._gone[one.workload] = start_ms, [end for end in ends if end[0] <= start_ms]
        inside = np.zeros(cluster.nodes.size, dtype=np.bool_)
        inside[scope] = True
        leaving = [p for _, p in known[1] if inside[p.slot] and cluster.placements.get(p.pod.uid) is p]
        with cluster.trial():
            marks, count = [cluster.mark()], min(len(leaving), needed.total_missing())
            self._take_off(leaving, marks, count)
            while (slots := self._fits(needed, scope)) is None and count < len(leaving):
                count = min(len(leaving), 2 * count)
                self._take_off(leaving, marks, count)
        return self._planned(slots, leaving[:count]) if slots is not None else None

    def _might_fit(self, group: Group, scope: Slots) -> bool:
        """A bound by count, which is cheap."""
        rows = self._score_cache
        room = sum(
            min(int(rows.of(shape).copies()[scope].sum()), count) for shape, count in shapes_of(self._cluster, group)
        )
        return room >= group.total_missing()

    def _fits(self, group: Group, scope: Slots) -> Slots | None:
        """The slots that the group would have now; None where it does not fit or the search was given up."""
        if not self._might_fit(group, scope):
            return None
        with self._cluster.trial():
            try:
                fits = GangSearch(self._cluster, self._score_cache, self._policy.search_limit).place(group, scope)
            except SearchLimitReached:
                fits = False
            if not fits:
                return None
            placements = self._cluster.placements
            slots = {placements[pod.uid].slot for pod in group.all_pods() if pod.uid in placements}
        return np.array(sorted(slots), dtype=np.int64)


def _sum(workloads: Mapping[str, _Changes], without: str = "", least: int | None = None) -> _Changes:
    """The changes of all workloads but one, each at `least` so much."""
    total: _Changes = {}
    for workload, changes in workloads.items():
        for name, amounts in changes.items() if workload != without else ():
            books = total.setdefault(name, {})
            for resource, amount in amounts.items():
                books[resource] = books.get(resource, 0) + (amount if least is None else max(least, amount))
    return total


def _beaten(one: Reservation, queue: str, precedence: Precedence, guaranteed: bool) -> tuple[bool, bool]:
    """Whether a job of the queue displaces a reservation if both are of one line, and if they are not."""
    stays = bool(one.nominated)
    return (
        not stays and one.queue == queue and one.precedence < precedence,
        not stays and guaranteed and not one.guaranteed,
    )


def least(group: Group) -> Group:
    """A copy of the group that takes on no more than it needs."""
    return replace(
        group, groups=[least(sub) for sub in group.groups], room=group.missing, scope=None, chosen=False,
        pods=list(group.pods), held=list(group.held),
    )  # fmt: skip
