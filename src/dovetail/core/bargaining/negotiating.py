# SPDX-License-Identifier: Apache-2.0
"""From a request to offers, answers, and a grant.

Rules
- The placeholders of the first alternative wait in the queue, as a job would. When their turn comes and they do not
  fit, the other alternatives are tried in their order, beside the reservations of others and without evictions.
- A plane has one offer outstanding. One that it declines, or lets lapse, costs a back-off that doubles.
- While a lease of its id is live, which an older request of its name led to, a request waits: its placeholders would be
  those of the lease.
- Of a plane at most `most_requests` requests have a place (`places`); the others get that reason once, and cost nothing
  more until they have one.
"""

from __future__ import annotations

from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining import counter_offers, offers, waiting
from dovetail.core.bargaining.negotiation import Negotiation
from dovetail.core.bargaining.offers import Fits
from dovetail.core.bargaining.reports import report
from dovetail.core.bargaining.states import RequestEvent, RequestState
from dovetail.core.bargaining.types import MOST_ROUNDS, NAME_TAKEN, Answer, LeaseAlternative, LeaseRequest, Plane
from dovetail.core.decisions import Bind, Decision, Hold
from dovetail.core.event_handlers import apply
from dovetail.core.model import Problem
from dovetail.core.pipeline import pre_enqueue
from dovetail.core.pipeline.attempt import Attempt
from dovetail.core.pipeline.placement import LIMITS, NO_ROOM
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.state import State

_MOST_HELD = 2
"""Alternatives that are offered at a time, all of them held."""
_OTHERS_MAY_FIT = NO_ROOM | LIMITS | {Reason.RESERVED, Reason.EVICTING, Reason.SEARCH_LIMIT}
_MOST_BACK_OFF_MS = 60_000


def read(state: State, request: LeaseRequest) -> list[Decision]:
    """A request is new, has changed, or was answered."""
    one = state.requests.negotiations.get(request.id)
    if one is None:
        one = state.requests.enter(request)
        return reconsider(state, one)
    before, one.request = one.request, request
    if one.state is RequestState.GRANTED:
        return []
    if before.alternatives != request.alternatives or before.problem != request.problem or before.firm != request.firm:
        waiting.withdraw(state, one)
        one.handle(RequestEvent.CHANGED)
        one.alternatives, one.chosen, one.rounds = request.alternatives, -1, 0
        return reconsider(state, one)
    if request.answer is not None and request.answer != before.answer:
        return _answered(state, one, request.answer)
    return []


def drop(state: State, one: Negotiation) -> None:
    """The request is gone."""
    waiting.withdraw(state, one)
    state.requests.leave(one)


def reconsider(state: State, one: Negotiation) -> list[Decision]:
    """Have the request wait in its queue, or report why it does not."""
    requests, now_ms = state.requests, state.now_ms
    if one.request.problem is not None:
        requests.places.leave(one.request)
        one.handle(RequestEvent.INVALID)
        return report(state, one, Refusal(Reason.INVALID, When.NEVER, str(one.request.problem)))
    due_ms, open_ = _when(one, now_ms)
    if not open_:
        requests.places.leave(one.request)
    if not open_ and not due_ms:
        waiting.withdraw(state, one)
        one.handle(RequestEvent.INVALID)
        return report(state, one, Refusal(Reason.TOO_LATE, When.NEVER))
    if due_ms:
        requests.timers.put(one.request.id, due_ms)
    refusal = _blocked(state, one) if open_ else Refusal(Reason.TOO_EARLY, When.NOT_YET)
    if refusal is not None:
        waiting.withdraw(state, one)
        one.handle(RequestEvent.WAITS)
        return report(state, one, refusal)
    if one.waiting and one.number != open_[0]:
        waiting.withdraw(state, one)
    if not one.waiting:
        workload, _ = waiting.put(state, one, open_[0], str(open_[0]), one.alternatives[open_[0]].duration_ms)
        requests.wait(one, workload, open_[0])
    return []


def plane_moved(state: State, one: Negotiation) -> list[Decision]:
    """The plane of the request has changed, is silent, or is gone."""
    if one.state is RequestState.BACKING_OFF:
        return []
    if one.state is RequestState.OFFERED and _blocked(state, one) is None:
        return []
    return reconsider(state, one)


def admit(state: State, plane_id: str) -> list[Decision]:
    """Give free places of the plane to the oldest requests that are beyond."""
    requests, decisions = state.requests, list[Decision]()
    plane = requests.planes.get(plane_id)
    most = plane.most_requests if plane is not None else 0
    while (request_id := requests.places.next(plane_id, most)) is not None:
        decisions += reconsider(state, requests.negotiations[request_id])
    return decisions


def due(state: State, one: Negotiation) -> list[Decision]:
    """The time has come: offers lapse, a back-off ends, an alternative may start, or may not any more, or the lease of
    an older request of the name is over."""
    if one.state is RequestState.OFFERED:
        if state.now_ms < one.until_ms:
            return []
        return _back_off(state, one, RequestEvent.LAPSED)
    if one.state is RequestState.BACKING_OFF:
        one.handle(RequestEvent.TRIED_AGAIN)
    return reconsider(state, one)


def attempt(state: State, one: Negotiation) -> list[Decision]:
    """It is the turn of the request: offers, a grant, or why it waits."""
    requests, plane = state.requests, state.requests.planes[one.request.plane]
    workload = one.waiting
    full = len(state.leases.by_plane.get(plane.id, ())) >= plane.most_leases
    if plane.id in requests.offered or full:
        state.queue.park(workload, state.rank(workload), state.queue_order.queue_user(workload))
        if full:
            return report(state, one, Refusal(Reason.PLANE_LIMIT, When.NOT_YET, f"leases: {plane.most_leases}"))
        return report(state, one, Refusal(Reason.OFFER_OUTSTANDING, When.NOT_YET, requests.offered[plane.id]))
    tried = Attempt(state, workload).decide()
    decisions: list[Decision] = [decision for decision in tried if not isinstance(decision, Bind | Hold)]
    first = one.number
    if len(decisions) != len(tried) and any(isinstance(decision, Bind) for decision in tried):
        return decisions + offers.made(state, one, [Fits(first, workload, one.alternatives[first].duration_ms)], None)
    refusal, fitting = state.queue.refusal(workload), list[Fits]()
    if refusal is None or refusal.reason in _OTHERS_MAY_FIT:
        for index in _when(one, state.now_ms)[1]:
            for term_ms in offers.terms_of(state, one, index, workload, refusal):
                other, why = offers.tried(state, one, index, term_ms)
                if other:
                    fitting.append(Fits(index, other, term_ms))
                    break
                if why is not None and index == first:
                    refusal = why
            if len(fitting) == (1 if one.firm else _MOST_HELD):
                break
    if fitting:
        return decisions + offers.made(state, one, fitting, refusal)
    if refusal is None:
        return decisions
    held = workload in state.reservations.by_workload
    one.handle(RequestEvent.ROOM_HELD if held else RequestEvent.REFUSED)
    return decisions + report(state, one, refusal)


def _when(one: Negotiation, now_ms: int) -> tuple[int, list[int]]:
    """When that changes next (0: never), and which alternatives may start now, by their numbers."""
    open_, times = list[int](), list[int]()
    for index, alternative in enumerate(one.alternatives):
        if one.chosen >= 0 and index != one.chosen:
            continue
        if now_ms < alternative.earliest_ms:
            times.append(alternative.earliest_ms)
        elif not alternative.latest_ms or now_ms <= alternative.latest_ms:
            open_.append(index)
            if alternative.latest_ms:
                times.append(alternative.latest_ms + 1)
    return min(times, default=0), open_


def _blocked(state: State, one: Negotiation) -> Refusal | None:
    """Why the request does not wait in a queue. It has a place, or is beyond, where it may start now."""
    requests = state.requests
    if one.request.id in state.leases.live:
        return Refusal(Reason.INVALID, When.NOT_YET, str(Problem("metadata.name", one.request.name, NAME_TAKEN)))
    plane = requests.planes.get(one.request.plane)
    if plane is None:
        return Refusal(Reason.PLANE_MISSING, When.NOT_YET, repr(one.request.plane))
    if not requests.places.take(one.request, plane.most_requests):
        return Refusal(Reason.PLANE_LIMIT, When.NOT_YET, f"requests that wait: {plane.most_requests}")
    if plane.problem is not None:
        return Refusal(Reason.PLANE_INVALID, When.NOT_YET, str(plane.problem))
    if not takes_planes(state, plane):
        what = f"the queue {plane.queue!r} does not exist or takes no control planes (spec.planes)"
        return Refusal(Reason.PLANE_INVALID, When.NOT_YET, what)
    if (refusal := pre_enqueue.stopped(state, plane.queue, ())) is not None:
        return refusal
    if plane.id in requests.silent:
        return Refusal(Reason.PLANE_SILENT, When.NOT_YET, f"for {3 * plane.heartbeat_ms // 1000} s")
    return None


def takes_planes(state: State, plane: Plane) -> bool:
    """Whether the queue of the plane lets control planes be its leaves. Others would lose their jobs by one: a queue
    with leaves holds none."""
    queue = state.shares.tree.written.get(plane.queue)
    return queue is not None and queue.planes


def _answered(state: State, one: Negotiation, answer: Answer) -> list[Decision]:
    offer = next((offer for offer in one.offers if offer.id == answer.offer), None)
    if offer is None:
        return report(state, one, Refusal(Reason.OFFER_GONE, When.NOT_YET, repr(answer.offer)), keep=True)
    if answer.action == "decline":
        return _back_off(state, one, RequestEvent.DECLINED)
    if answer.action == "counter":
        return _countered(state, one, answer.counter)
    if offer.now:
        nodes = state.cluster.nodes
        if all(holding.node in nodes.slots and nodes.records[nodes.slots[holding.node]] for holding in offer.holdings):
            return offers.grant(state, one, one.held[one.offers.index(offer)], offer.alternative, offer.holdings)
        waiting.withdraw(state, one)
        one.handle(RequestEvent.WAITS)
        return reconsider(state, one)
    one.chosen = one.number
    waiting.release(state, one)
    one.handle(RequestEvent.ACCEPTED_LATER)
    state.requests.timers.drop(one.request.id)
    for pod in state.workloads.members(one.waiting):
        # It is to start at the time that it was promised, like any job that is next.
        apply(state, ev.PodChanged(replace(pod, work=replace(pod.work, preempts=True))))
    return report(state, one, None)


def _countered(state: State, one: Negotiation, counter: LeaseAlternative | None) -> list[Decision]:
    why = "no alternative is named" if counter is None else counter_offers.beyond(one.request.alternatives, counter)
    if one.rounds >= MOST_ROUNDS:
        why = f"it is one more than {MOST_ROUNDS}"
    if why or counter is None:
        return report(state, one, Refusal(Reason.COUNTER_REFUSED, When.NEVER, why), keep=True)
    waiting.withdraw(state, one)
    one.rounds += 1
    one.alternatives = (counter,)
    one.handle(RequestEvent.COUNTERED)
    return reconsider(state, one)


def _back_off(state: State, one: Negotiation, event: RequestEvent) -> list[Decision]:
    waiting.withdraw(state, one)
    state.requests.places.leave(one.request)
    one.handle(event)
    back_off_ms = min(_MOST_BACK_OFF_MS, 1000 << min(one.lapses, 16))
    if event is RequestEvent.LAPSED:
        # It held devices for so long, and pays nothing for that.
        back_off_ms = max(back_off_ms, state.policy.offer_ms)
    one.until_ms = state.now_ms + back_off_ms
    one.lapses += 1
    state.requests.timers.put(one.request.id, one.until_ms)
    what = "an offer was declined" if event is RequestEvent.DECLINED else "no answer came in time"
    return report(state, one, Refusal(Reason.BACKING_OFF, When.NOT_YET, what))
