# SPDX-License-Identifier: Apache-2.0
"""The post-filter: a workload that does not fit preempts other pods, or gets a reservation.

Rules
- A search for victims comes first (`preemption.search`). Where it finds some, they are evicted, and the workload has
  nominated nodes until they are gone. That ends in a start, or the reservation is released and the nominations are
  cleared.
- Else the first workload in queue order that does not fit gets a reservation (`reservations.backfill`). A later
  workload that wants the same nodes gets none, except by displacing the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from dovetail.core.cluster.changes import ClusterChange
from dovetail.core.decisions import Decision, Evict, Unnominate
from dovetail.core.headroom import rooms, scale_up
from dovetail.core.model import Pod
from dovetail.core.pipeline.known_refusals import may_preempt
from dovetail.core.pipeline.pre_enqueue import within_models
from dovetail.core.placing.gangs import Group, fewest, shapes_of
from dovetail.core.placing.pods import Scope
from dovetail.core.preemption import consolidation, nominated_room, search, within_limit
from dovetail.core.preemption.defragmentation import MovePlan
from dovetail.core.reasons import Expected, Reason, Refusal, Sure, When
from dovetail.core.reservations.reservation import Reservation, ReservationEvent
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE, startable

_NOBODY_WAITS = "the pods that room was made for do not wait for it any more"
_IN_PIECES = {Reason.NO_NODE_FITS, Reason.GANG_DOES_NOT_FIT}
_ROOM_HELPS = {Reason.NO_NODE_FITS, Reason.GANG_DOES_NOT_FIT, Reason.RESERVED, Reason.HEADROOM}


class PostFilter:
    """`again`: the workload is to be tried in the next step, since this one had no time for it."""

    def __init__(self, state: State, workload: str, queue: str) -> None:
        self._state = state
        self._workload = workload
        self._queue = queue
        self.again = False
        self._lacking = False
        """Whether a group lacks room that is held for it, or that it tried to get."""
        self._why = _NOBODY_WAITS

    @property
    def _gang(self) -> str:
        return "" if self._workload.startswith(LONE) else self._workload

    def close(self) -> list[Decision]:
        """All groups of the workload were tried: the reservation stays only where one of them still lacks room."""
        return [] if self._lacking else self.give_up(self._why)

    def give_up(self, why: str) -> list[Decision]:
        """Hold nothing for the workload any more."""
        own = self._state.reservations.by_workload.get(self._workload)
        left = tuple(pod.uid for pod in self._nominated(own)) if own is not None else ()
        self._state.reservations.release(self._workload)
        if own is not None and left:
            self._state.reservations.withdrawn(own)
        if own is not None and own.moving:
            self._state.moves.give_up(own.evicting)
        evicted = own is not None and own.evicting
        return [Unnominate(self._gang, left, why, self._state.steps)] if left and evicted else []

    def _nominated(self, own: Reservation) -> list[Pod]:
        """The pods with a nominated node that are not placed yet."""
        pods, placements = self._state.workloads.pods, self._state.cluster.placements
        return [pods[uid] for uid, _ in own.nominated if uid in pods and uid not in placements]

    def make(self, group: Group, refusal: Refusal, kind: object) -> tuple[list[Decision], Refusal]:
        """Decisions that make room, and why the workload waits now. `kind` is the signature of the workload, whose
        search for victims ends the same for all of it; None: it has none."""
        decisions: list[Decision] = []
        own = self._state.reservations.by_workload.get(self._workload)
        if own is not None and own.evicts:
            waiting = {pod.uid for pod in self._nominated(own) if startable(pod)}
            if not waiting:
                decisions = self.give_up(_NOBODY_WAITS)
                own = None
            elif waiting.isdisjoint(pod.uid for pod in group.all_pods()):
                # Other pods of the gang wait for the victims to end: one group after another.
                return [], refusal
        limited = refusal.reason is Reason.QUEUE_LIMIT
        if not (limited or refusal.reason in _ROOM_HELPS) or refusal.when is When.NEVER or not group.all_pods():
            # Others of the gang may lack room all the same: `close` knows.
            self._why = str(refusal)
            return decisions, refusal
        if own is not None and own.evicts:
            why = self._failed(own)
            if not why:
                self._lacking = True
                return [], self._evicting(own, refusal)
            decisions += self.give_up(why)
            refusal = replace(refusal, reclaim=why)
        evictions, refusal = self._evict(group, refusal, kind)
        making = refusal.reason is Reason.EVICTING
        self._lacking |= making or not limited
        if making:
            return [*decisions, *evictions], refusal
        return decisions, refusal if limited else self._hold(group, refusal)

    def _failed(self, own: Reservation) -> str:
        """Why the eviction for the workload has come to nothing, "" where it has not."""
        if own.failure:
            return f"an eviction failed: {own.failure}"
        left = sorted(own.leaving.intersection(self._state.cluster.placements))
        if left and self._state.now_ms >= own.deadline_ms:
            self._state.reservations.spare(left)
            return f"of {_pods(len(own.leaving))} to be evicted {len(left)} did not end"
        # All are gone and it still does not fit: another pod has come, or a node has gone.
        return "" if left else "the room that was made is not there any more"

    def _evicting(self, own: Reservation, refusal: Refusal) -> Refusal:
        left = own.leaving.intersection(self._state.cluster.placements)
        detail = f"of {_pods(len(own.leaving))} {len(left)} still to end"
        return replace(refusal, reason=Reason.EVICTING, detail=detail, nodes=(), expected=own.expected)

    def _evict(self, group: Group, refusal: Refusal, kind: object) -> tuple[list[Decision], Refusal]:
        state = self._state
        if refusal.reason is not Reason.QUEUE_LIMIT and state.policy.preempt:
            made = self._take_headroom(group, refusal)
            if made is not None:
                return made
        # Parts of a workload are searched for one by one.
        key = kind or (self._workload, next(iter(group.all_pods())).uid)
        if not state.policy.preempt or key in state.equivalence.sought:
            return [], replace(refusal, reclaim=state.equivalence.sought.get(key, ""))
        limited, precedence = refusal.reason is Reason.QUEUE_LIMIT, state.precedence(self._workload)
        wanted = state.shares.wanted(fewest(group))
        if not may_preempt(state, self._queue, precedence, wanted):
            return [], refusal
        if state.searches >= state.policy.searches_per_step:
            self.again = True
            return [], refusal
        state.searches += 1
        others = state.reservations.others(self._workload)
        ending = state.reservations.excluded(others)
        moves: MovePlan | str = ""
        if state.policy.moves_per_hour and refusal.reason in _IN_PIECES:
            own = state.reservations.by_workload.get(self._workload)
            away = state.headrooms.slots(rooms.respected(state, group.all_pods(), self._queue))
            scope = _without(state, self._away_from(others, wanted), np.array(sorted(away), dtype=np.int64))
            moves = consolidation.find(state, self._workload, group, scope, ending, own)
            if isinstance(moves, MovePlan):
                return self._moved(moves, refusal)
        find = within_limit.find if limited else search.find
        kept = rooms.respected(state, group.all_pods(), self._queue)
        with nominated_room.ahead(state, others), rooms.occupied(state, kept) as lent:
            scope = self._away_from([one for one in others if not one.evicts], wanted)
            found = find(state, self._workload, group, _without(state, scope, lent), ending)
        if isinstance(found, search.PreemptionPlan):
            evict = self._evicted(found)
            if (own := self._made(evict, others)) is not None:
                return self._make(evict, own, refusal)
            found = search.NoPreemption("others that have room made for them on the same nodes would be delayed")
        why = f"{found}; {moves}" if moves else str(found)
        ripe_ms = max(found.ripe_ms, state.now_ms + state.policy.tell_again_ms) if found.ripe_ms else 0
        state.equivalence.search_failed(key, why, state.now_ms, ripe_ms)
        return [], replace(refusal, reclaim=why)

    def _take_headroom(self, group: Group, refusal: Refusal) -> tuple[list[Decision], Refusal] | None:
        """Have those go that run in the headroom of the workload; None where that makes no room for it."""
        state = self._state
        pods = group.all_pods()
        room = state.headrooms.of(pods[0]) if pods else None
        if room is None or room.queue != self._queue or not all(pod.work.preempts for pod in pods):
            return None
        others = state.reservations.others(self._workload)
        # What runs now decides whose eviction failed lately, so not inside of the trial.
        kept, ending = rooms.respected(state, pods, self._queue), state.reservations.excluded(others)
        with nominated_room.ahead(state, others):
            found = scale_up.find(state, self._workload, group, ending, kept)
        if isinstance(found, int):
            if found:
                why = "jobs in its headroom have not run for the least time that their queue promises them"
                state.equivalence.search_failed(("headroom", self._workload), why, state.now_ms, found)
            return None
        names = state.cluster.nodes.names
        evict = Evict(
            self._gang, found.uids, found.cause, tuple([(uid, names[slot]) for uid, slot in found.nominations]),
            found.lost_milli_ms,
            f"queue {self._queue!r} needs its headroom: {state.workloads.name_of(self._workload)} is to start here",
            state.steps,
        )  # fmt: skip
        own = self._made(evict, others)
        return self._make(evict, own, refusal) if own is not None else None

    def _away_from(self, others: Sequence[Reservation], wanted: Mapping[str, int]) -> Scope | None:
        """The nodes that none of these holds and that stay in use, of models that the queue may have."""
        state = self._state
        held = others or state.cluster.nodes.in_maintenance
        beside = state.reservations.beside(others, later=True) if held else None
        return within_models(self._state, self._queue, wanted, beside)

    def _evicted(self, found: search.PreemptionPlan) -> Evict:
        what = "takes back what is due to it" if found.cause == "reclaim" else "has jobs of a higher priority"
        message = f"queue {self._queue!r} {what}: {self._state.workloads.name_of(self._workload)} is to start here"
        names = self._state.cluster.nodes.names
        nominations = tuple([(uid, names[slot]) for uid, slot in found.nominations])
        return Evict(self._gang, found.uids, found.cause, nominations, found.lost_milli_ms, message, self._state.steps)

    def _moved(self, found: MovePlan, refusal: Refusal) -> tuple[list[Decision], Refusal]:
        state = self._state
        moves = [move for step in found.steps for move in step.moves]
        uids, targets = tuple([move.uid for move in moves]), tuple([move.target for move in moves])
        message = f"it has room elsewhere, and where it was {state.workloads.name_of(self._workload)} is to start"
        lost = found.lost_milli_ms
        evict = Evict(self._gang, uids, "move", found.placed, lost, message, state.steps, targets)
        # Its owner has as long to replace each pod as the pod may take to end.
        until_ms = state.now_ms + self._grace_ms(uids) + 2 * state.policy.eviction_deadline_ms
        pairs = zip(uids, targets, strict=True)
        state.moves.begin(pairs, state.now_ms, until_ms, state.policy.move_again_ms)
        return self._make(evict, self._alone(evict), refusal)

    def _grace_ms(self, uids: Iterable[str]) -> int:
        placements = self._state.cluster.placements
        return max([placements[uid].pod.work.grace_ms for uid in uids], default=0)

    def _alone(self, evict: Evict, start_ms: int = 0, waits_for: frozenset[str] = frozenset()) -> Reservation:
        """The reservation until the victims are gone, and with them the victims of others that it `waits_for`, until
        `start_ms`."""
        state = self._state
        start_ms = max(start_ms, state.now_ms + self._grace_ms(evict.uids))
        nominated = tuple([(uid, state.cluster.nodes.slots[node]) for uid, node in evict.nominations])
        return Reservation(
            self._workload,
            self._queue,
            np.array(sorted({slot for _, slot in nominated}), dtype=np.int64),
            Expected(Sure.LEARNED, start_ms, f"when the {_pods(len(evict.uids) + len(waits_for))} to be evicted ended"),
            state.now_ms,
            state.now_ms,
            state.precedence(self._workload),
            guaranteed=True,
            waits_for=waits_for,
            evicting=frozenset(evict.uids),
            nominated=nominated,
            deadline_ms=start_ms + state.policy.eviction_deadline_ms,
            moving=evict.cause == "move",
        )

    def _made(self, evict: Evict, others: Sequence[Reservation]) -> Reservation | None:
        """The reservation beside those of others; None where one of them would be delayed, or nothing is evicted."""
        state, own = self._state, self._alone(evict)
        awaited = nominated_room.awaited(state, own, others)
        if awaited is None or not (awaited or evict.uids):
            return None
        placements, held = state.cluster.placements, set(own.slots.tolist())
        leaving = {uid for one in awaited for uid in one.leaving if uid in placements}
        waits_for = frozenset([uid for uid in leaving if placements[uid].slot in held])
        return self._alone(evict, max([one.start_ms for one in awaited], default=0), waits_for)

    def _make(self, evict: Evict, own: Reservation, refusal: Refusal) -> tuple[list[Decision], Refusal]:
        """Have these go, and hold the room until they are gone."""
        state = self._state
        state.reservations.put(own)
        state.eviction_counts.note(
            (state.workloads.job_of(state.workloads.pods[uid]) for uid in evict.uids), state.now_ms
        )
        for uid, _ in own.nominated:
            state.cluster.nominated.pop(uid, None)
        return [evict] if evict.uids else [], self._evicting(own, refusal)

    def _hold(self, group: Group, refusal: Refusal) -> Refusal:
        """Hold room for the workload if it is its turn; the refusal with when it starts then."""
        state = self._state
        reservations, precedences = state.reservations, state.precedences
        own = reservations.by_workload.get(self._workload)
        precedence = state.precedence(self._workload)
        if not precedences.may_hold(precedence) or state.requests.scavenges(self._workload):
            reservations.release(self._workload)
            return refusal
        shapes = [shape for shape, _ in shapes_of(state.cluster, group)]
        until_ms, unknown = reservations.unknown.get(self._workload, (0, None))
        if state.now_ms < until_ms:
            precedences.bar(shapes)
            return replace(refusal, expected=unknown)
        if own is None or reservations.stale(own):
            wanted = state.shares.wanted_next(self._workload)
            guaranteed = state.shares.quota.within_guarantee(self._queue, wanted)
            others = reservations.others(self._workload)
            displaced = precedences.displaced(self._workload, precedence, wanted, guaranteed, others)
            staying = [one for one in others if not any(one is other for other in displaced)]
            if own is None and precedences.denies(shapes, precedences.in_the_way(self._queue, wanted, staying)):
                if displaced and state.queue.refusal(self._workload) is None:
                    # It is new, and may be before workloads that were refused: all are tried in their order.
                    state.cluster.changes.announce(ClusterChange.RESERVATION)
                return refusal
            with rooms.occupied(state, rooms.respected(state, group.all_pods(), self._queue)) as lent:
                plan = state.planner.plan(group, staying, lent)
            if plan is None or plan.expected.sure is Sure.UNKNOWN:
                # It is still before the others, whose plans would be worked out for nothing.
                precedences.bar(shapes)
                reservations.release(self._workload)
                expected = plan.expected if plan is not None else None
                reservations.unknown[self._workload] = state.now_ms + state.policy.tell_again_ms, expected
                return replace(refusal, expected=expected)
            for one in displaced:
                if np.intersect1d(one.slots, plan.slots).size:
                    reservations.release(one.workload, ReservationEvent.DISPLACED)
            own = Reservation(
                self._workload, self._queue, plan.slots, plan.expected,
                own.made_ms if own is not None else state.now_ms, state.now_ms, precedence, guaranteed,
                waits_for=plan.waits_for,
            )  # fmt: skip
            reservations.put(own)
        return replace(refusal, expected=own.expected)


def _without(state: State, scope: Scope | None, slots: Scope) -> Scope | None:
    """The scope (None: anywhere) without these slots."""
    if not slots.size:
        return scope
    return np.setdiff1d(np.arange(state.cluster.nodes.used) if scope is None else scope, slots)


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"
