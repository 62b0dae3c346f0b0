# SPDX-License-Identifier: Apache-2.0
"""One attempt to place one workload: a gang, or a pod on its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from dovetail.core.cluster.fabric import Fabric
from dovetail.core.cluster.placement import Placement, indices
from dovetail.core.decisions import Bind, Decision, Hold, Release
from dovetail.core.model import Pod
from dovetail.core.pipeline import pre_enqueue
from dovetail.core.pipeline.equivalence import Signature
from dovetail.core.pipeline.post_filter import PostFilter
from dovetail.core.placing import filters, links, refusals, repartition
from dovetail.core.placing.gangs import GangSearch, Group, SearchLimitReached, fewest, shapes_of
from dovetail.core.placing.pods import Scope
from dovetail.core.preemption import nominated_room
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.reservations.backfill import Reservation, least
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE, complete, startable

_NO_ROOM = {Reason.NO_NODE_FITS, Reason.GANG_DOES_NOT_FIT, Reason.GANG_TOO_LARGE}
_LIMITS = {Reason.QUEUE_LIMIT, Reason.BEYOND_GUARANTEE}
_TOO_MUCH = {*_LIMITS, Reason.RESERVED}
_ALIKE = _NO_ROOM | _LIMITS
"""Reasons that all workloads of a kind have, how long ever they run."""


class Attempt:
    def __init__(self, state: State, workload: str) -> None:
        self._state = state
        self._workload = workload
        self._members = state.workloads.members(workload)
        self._kinds = state.workloads.kinds_among(workload) if len(self._members) > 1 else self._members
        self._queue = state.shares.queue_of(self._members[0]) if self._members else ""
        self._limited = state.shares.quota.limited(self._queue)
        self._failures = state.equivalence
        self._took_least = False
        """Whether an elastic gang was given no more than it needs: what else its queue may have it gets one by one."""
        self._crowded: set[int] = set()
        """The nodes where it was placed last and would have taken room that others make for somebody."""

    @property
    def work(self) -> int:
        """How much the attempt counts: pods that look at other pods are placed one at a time, each at a cost."""
        if not any(pod.request.scattered for pod in self._kinds):
            return 1
        return 1 + sum([pod.request.scattered for pod in self._members])

    def decide(self) -> list[Decision]:
        """Binds for what could be placed, evictions for what could be if others left; a Hold where that is news; a
        Release where a half start is overdue."""
        state, placements = self._state, self._state.cluster.placements
        by_uid = state.workloads.waiting(self._workload)
        waiting = list(by_uid.values())
        decisions: list[Decision] = []
        room = PostFilter(state, self._workload, self._queue)
        kinds = self._kinds if len(waiting) == len(self._members) else state.workloads.distinct(waiting)
        refusal = pre_enqueue.blocked(state, self._workload, self._queue, waiting, kinds)
        if refusal is not None:
            decisions += room.give_up(str(refusal))
        for group in state.workloads.groups(self._workload) if refusal is None else ():
            # A gang that lacks pods is refused by their number, whatever they want.
            alike = self._alike(group) if group.groups or len(group.pods) >= group.missing else None
            # Of what kind it is matters to those alone that are refused.
            kind = self._know(group, alike) if self._failures.concern(alike) else None
            placed: list[Decision] = []
            lacking = self._failures.refusal(self._workload) if kind is not None else None
            if lacking is None:
                placed, lacking = self._place(group, alike)
                if lacking is not None and not placed:
                    kind = kind or self._know(group, alike)
                    made, lacking = room.make(group, lacking, kind)
                    decisions += made
            if lacking is not None and kind is not None and not placed and lacking.reason in _ALIKE and not room.again:
                self._failures.refuse(self._workload, lacking)
            decisions += placed
            refusal = refusal or lacking
        decisions += room.close()
        waiting = [pod for uid, pod in by_uid.items() if uid not in placements]
        if refusal is None and any(map(startable, waiting)):
            refusal = Refusal(Reason.GANG_FULL, When.NOT_YET)
        overdue = self._overdue(decisions, waiting)
        if not waiting:
            state.queue.forget(self._workload)
            return decisions
        state.queue.park(self._workload, state.rank(self._workload), state.line(self._workload))
        if room.again or self._took_least:
            state.postpone(self._workload)
        if refusal is not None and overdue:
            decisions.append(Release(self._workload, tuple(pod.uid for pod in overdue), refusal, state.steps))
        elif refusal is not None:
            uids = tuple(pod.uid for pod in waiting)
            news = state.queue.tell(self._workload, refusal, uids, state.now_ms, state.policy.tell_again_ms)
            if news:
                decisions.append(Hold(self._workload, news, refusal, state.steps))
        return decisions

    def _incomplete(self, group: Group) -> Refusal:
        need = group.total_missing() + len(group.all_held())
        exist = sum(1 for pod in self._members if startable(pod) or pod.node)
        return Refusal(Reason.GANG_INCOMPLETE, When.NOT_YET, f"needs {need} pods, {exist} can start")

    def _place(self, group: Group, alike: object | None) -> tuple[list[Decision], Refusal | None]:
        """Binds, and why the rest (or all of it) was not placed."""
        if not complete(group):
            return [], self._incomplete(group)
        whole = group
        if self._limited:
            refusal = self._beyond(fewest(group))
            if refusal is not None:
                return [], refusal
            if _elastic(group) and self._beyond(group.all_pods()) is not None:
                group = least(group)
                alike = self._alike(group)
        if alike is not None and (known := self._failures.no_room.get(alike)) is not None:
            return [], known
        binds, refusal = self._beside_reserved(group, alike)
        if not binds and refusal is not None and refusal.reason in _TOO_MUCH and _elastic(group):
            # Only where it would go shows what it has of a model, or of memory, or of what is held for others: too much
            # all together.
            group = least(group)
            alike = self._alike(group)
            binds, refusal = self._beside_reserved(group, alike)
        self._took_least |= group is not whole and bool(binds)
        if not binds and alike is not None and refusal is not None and refusal.reason in _NO_ROOM:
            self._failures.no_room[alike] = refusal
        return binds, refusal

    def _beyond(self, pods: Sequence[Pod]) -> Refusal | None:
        """What of the queue's limits and guarantees these pods would break, wherever they went."""
        if not self._limited:
            return None
        return pre_enqueue.beyond(
            self._state, self._workload, self._queue, self._state.shares.wanted(pods), self._fixed(pods)
        )

    def _fixed(self, pods: Sequence[Pod]) -> bool:
        """Whether some of them must not be preempted."""
        return not all(map(self._state.shares.preemptible, self._state.workloads.distinct(pods)))

    def _beside_reserved(self, group: Group, alike: object | None) -> tuple[list[Decision], Refusal | None]:
        """Place the group so that what is held for others is not delayed."""
        state, held = self._state, self._state.reservations.by_workload
        others = state.reservations.others(self._workload) if held else []
        if self._workload in held:
            # What is held for the workload itself is in the way of others alone.
            alike = None
        if not others:
            return self._within_limits(group, None)
        makers, waiting = [one for one in others if one.nominated], [one for one in others if not one.nominated]
        beside = self._failures.beside.get(alike) if alike is not None else None
        if beside is None:
            scope = state.reservations.beside(waiting) if waiting else None
            binds, beside = self._leaving_room(group, scope, makers)
            if binds or beside is None:
                return binds, beside
            if alike is not None:
                self._failures.beside[alike] = beside
        shapes = [shape for shape, _ in shapes_of(state.cluster, group)]
        if not state.reservations.conflicts(shapes, waiting):
            return [], beside
        if state.reservations.ends_before(group.all_pods(), state.reservations.soonest_ms(self._workload)):
            return self._leaving_room(group, None, makers)
        known = self._failures.reserved.get(alike) if alike is not None else None
        if known is not None:
            return [], known
        binds, refusal = self._leaving_room(group, None, makers, waiting)
        if alike is not None and refusal is not None and refusal.reason is Reason.RESERVED:
            self._failures.reserved[alike] = refusal
        return binds, refusal

    def _leaving_room(
        self, group: Group, scope: Scope | None, makers: Sequence[Reservation], waiting: Sequence[Reservation] = ()
    ) -> tuple[list[Decision], Refusal | None]:
        """Place the group inside the scope so that none of those is delayed for whom others `make` room or whom room
        `waits` for: where it would take what others make, without these nodes, as often as there are `probes`."""
        state = self._state
        binds, refusal = self._within_limits(group, scope, makers, waiting)
        for _ in range(state.policy.probes):
            if not self._crowded:
                break
            crowded = np.fromiter(self._crowded, np.int64, len(self._crowded))
            scope = np.setdiff1d(np.arange(state.cluster.nodes.used) if scope is None else scope, crowded)
            self._crowded = set()
            binds, elsewhere = self._within_limits(group, scope, makers, waiting)
            refusal = elsewhere if binds else refusal
        self._crowded = set()
        return binds, refusal

    def _within_limits(
        self,
        group: Group,
        scope: Scope | None,
        makers: Sequence[Reservation] = (),
        waiting: Sequence[Reservation] = (),
    ) -> tuple[list[Decision], Refusal | None]:
        """Place the group inside the scope, away from GPU models of which its queue may have no more."""
        if self._limited:
            scope = pre_enqueue.within_models(self._state, self._queue, self._state.shares.wanted(fewest(group)), scope)
        return self._search(group, scope, makers, waiting)

    def _search(
        self, group: Group, scope: Scope | None, makers: Sequence[Reservation], waiting: Sequence[Reservation]
    ) -> tuple[list[Decision], Refusal | None]:
        """Binds, and why there are none or not for all."""
        state, pods = self._state, group.all_pods()
        placed: list[Placement] = []
        with state.cluster.trial() as trial:
            try:
                fits = GangSearch(state.cluster, state.score_cache, state.policy.search_limit).place(group, scope)
            except SearchLimitReached:
                words = f"after {state.policy.search_limit} domains"
                return [], Refusal(Reason.SEARCH_LIMIT, When.NOT_YET, words)
            if fits and (placed := trial.placed()):
                over = self._over(placed)
                if over is not None:
                    return [], over
                slots = {one.slot for one in placed} if makers else set[int]()
                if makers and not nominated_room.left(state, slots, makers):
                    self._crowded = {slot for one in makers for slot in one.slots.tolist()} & slots
                    return [], _reserved(state, makers[0])
                kept = state.reservations.kept(waiting, state.workloads.groups)
                if kept is None:
                    return [], _reserved(state, waiting[0])
                binds = self._binds(placed)
                trial.keep()
                for one in kept:
                    state.reservations.put(one)
        if not pods:
            return [], None
        if not placed:
            return [], self._no_room(group, scope)
        state.shares.placed(placed)
        state.queue_order.counted(state.workloads.distinct([placement.pod for placement in placed]))
        return binds, None if len(binds) == len(pods) else self._left_over(group)

    def _over(self, placed: Sequence[Placement]) -> Refusal | None:
        """What limit is broken now that it is known what the pods get."""
        state = self._state
        if not self._limited:
            return None
        more: dict[str, int] = {}
        for amounts in state.shares.accounting.held_by(placed):
            for name, amount in amounts:
                more[name] = more.get(name, 0) + amount
        return pre_enqueue.beyond(state, self._workload, self._queue, more, self._fixed([p.pod for p in placed]))

    def _no_room(self, group: Group, scope: Scope | None) -> Refusal:
        state = self._state
        if (lately := self._told_lately()) is not None:
            return lately
        refusal = refusals.for_gang(state.cluster, state.score_cache, group)
        if scope is not None and refusal.when is When.NEVER and refusal.reason not in _NO_ROOM:
            return refusal
        proposal = repartition.proposal(state.cluster, state.cluster.shape_of(group.all_pods()[0]))
        return refusal if proposal is None else replace(refusal, repartition=proposal)

    def _left_over(self, group: Group) -> Refusal | None:
        """Why a pod is not placed although its gang starts without it."""
        cluster = self._state.cluster
        for part in group.walk():
            waiting = [pod for pod in part.pods if pod.uid not in cluster.placements]
            if waiting and not part.chosen:
                return refusals.for_gang(cluster, self._state.score_cache, part)
            if waiting and part.room is not None and len(part.pods) - len(waiting) >= part.room:
                return self._beyond(waiting) or Refusal(Reason.GANG_FULL, When.NOT_YET)
            if waiting:
                return refusals.for_pod(cluster, waiting[0], part.scope)
        raise AssertionError("every pod was placed")

    def _told_lately(self) -> Refusal | None:
        """The numbers of a search that failed need not be worked out anew every time; that it can never succeed must
        be taken back at once."""
        lately = self._state.queue.told_lately(self._workload, self._state.now_ms, self._state.policy.tell_again_ms)
        return lately if lately is not None and lately.reason in _NO_ROOM and lately.when is When.NOT_YET else None

    def _binds(self, placed: Sequence[Placement]) -> list[Decision]:
        state = self._state
        gang = "" if self._workload.startswith(LONE) else self._workload
        there = placed if not gang or len(placed) == len(self._members) else self._placements()
        level = state.cluster.fabric.narrowest([p.slot for p in there]) if gang else ""
        names, nominated = state.cluster.nodes.names, state.cluster.nominated
        for p in placed if nominated else ():
            nominated.pop(p.uid, None)
        # Those that join others have no rank: theirs are given.
        ranks = _ranks(state.cluster.fabric, placed) if gang and there is placed else []
        wired, books = len(state.cluster.nodes.layouts) > 1, bool(state.cluster.kubelets.books)
        binds: list[Decision] = []
        bits, devices = 0, tuple[int, ...]()
        for number, p in enumerate(placed):
            pod, rank = p.pod, ranks[number] if ranks else -1
            if p.gpu_bits | p.share_bits != bits:
                bits = p.gpu_bits | p.share_bits
                devices = indices(bits)
            mbps, ideal_mbps = links.bandwidth(state.cluster, p) if wired else (0, 0)
            unsure = self._unsure(p) if books else ""
            instances = state.cluster.slices.instances(p) if p.slices else ()
            made = state.cluster.claims.to_make(pod, p.by_claim) if p.by_claim else None
            binds.append(
                Bind(
                    p.uid, names[p.slot], state.steps, gang, devices, p.picks, level, rank, mbps, ideal_mbps,
                    unsure, p.grants, instances, pod.device_claims, made,
                )
            )  # fmt: skip
        return binds

    def _unsure(self, placement: Placement) -> str:
        if placement.entry is not None or placement.pod.request.managed is None:
            return ""
        answer = self._state.cluster.kubelets.ask(placement.slot, placement.shape)
        return "" if answer is None else answer.message

    def _placements(self) -> list[Placement]:
        """Those of the members that have one."""
        placements = self._state.cluster.placements
        return [placements[pod.uid] for pod in self._members if pod.uid in placements]

    def _alike(self, group: Group) -> object | None:
        """What the group wants; None where its pods differ beyond their shapes."""
        cluster = self._state.cluster
        if not self._state.policy.remember_refusals:
            return None
        pods: Sequence[Pod] = group.pods[:1] if group.alike else self._state.workloads.distinct(group.pods)
        if group.groups or group.held:
            return None
        if cluster.avoided or cluster.rejections or cluster.peers.carriers:
            # Which nodes refused them, and who keeps them away, tells pods of one kind apart.
            pods = group.pods
        if any(pod.claims for pod in pods):
            return None
        if len(group.pods) == 1 and group.missing == 1 and not group.required:
            # Preferred levels keep no pod on its own from a node.
            shape = cluster.shape_of(pods[0])
            return None if filters.hindered(cluster, shape, pods) else (shape.id, self._barred(group.pods))
        wanted = shapes_of(cluster, group)
        if any(filters.hindered(cluster, shape, pods) for shape, _ in wanted):
            return None
        counts = tuple([(shape.id, count) for shape, count in wanted])
        barred = self._barred(fewest(group))
        return counts, group.missing, group.room, group.required, group.preferred, barred

    def _barred(self, pods: Sequence[Pod]) -> frozenset[str]:
        """The GPU models of which the queue may have no more: what does not fit away from them may fit for others."""
        if not self._limited:
            return frozenset()
        return pre_enqueue.barred_models(self._state, self._queue, self._state.shares.wanted(pods))

    def _know(self, group: Group, alike: object | None) -> Signature | None:
        """Note the kind of the workload: equal for workloads of which none is placed, and nobody gives way to, when
        that is so for one of them."""
        if alike is None or self._workload in self._state.reservations.by_workload:
            return None
        precedence = self._state.precedence(self._workload)
        preempts = all(pod.work.preempts for pod in self._kinds)
        work = next(iter(fewest(group)), group.pods[0]).work if self._state.policy.moves_per_hour else None
        kind = Signature(alike, self._queue, precedence, self._fixed(group.pods), preempts, work)
        self._failures.know(self._workload, kind, group)
        return kind

    def _overdue(self, decisions: list[Decision], waiting: list[Pod]) -> list[Pod]:
        """The bound members of a gang that started by half and is past its deadline, else nothing.

        A half start shows even after a restart: a pod waits that existed when the last of the others was bound. (A pod
        created later replaces one that ran: then the gang had started whole.)
        """
        state, starting = self._state, self._state.workloads.starting
        if self._workload.startswith(LONE) or state.workloads.has_started(self._workload):
            return []
        bound = state.workloads.bound(self._workload)
        deadline_ms = state.policy.start_deadline_ms
        newest = max((pod.bound_ms for pod in bound), default=0)
        if any(isinstance(decision, Bind) for decision in decisions):
            starting.setdefault(self._workload, state.now_ms + deadline_ms)
        elif bound and any(pod.created_ms <= newest for pod in waiting):
            starting.setdefault(self._workload, newest + deadline_ms)
        if starting.get(self._workload, state.now_ms + 1) > state.now_ms:
            return []
        starting[self._workload] = state.now_ms + deadline_ms
        return [pod for pod in bound if not pod.deleting]


def _ranks(fabric: Fabric, placed: Sequence[Placement]) -> list[int]:
    """Of each pod of a gang that starts its place in the order in which they lie in the fabric: domain by domain from
    the widest level down, node by node, GPU by GPU."""
    order = fabric.order()
    where = [(order[p.slot], p.gpu_bits, p.share_bits, number) for number, p in enumerate(placed)]
    where.sort()
    ranks = [0] * len(placed)
    for rank, (_, _, _, number) in enumerate(where):
        ranks[number] = rank
    return ranks


def _elastic(group: Group) -> bool:
    """Whether it may be given more pods than it needs."""
    return len(fewest(group)) < len(group.all_pods())


def _reserved(state: State, first: Reservation) -> Refusal:
    """That somebody waits longer for the room."""
    until = f", which starts {first.expected.basis} at the latest" if first.expected.start_ms else ""
    return Refusal(Reason.RESERVED, When.NOT_YET, f"for {state.workloads.name_of(first.workload)}{until}")
