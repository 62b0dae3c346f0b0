# SPDX-License-Identifier: Apache-2.0
"""From a request to offers, answers, and a grant.

Rules
- The placeholders of the first alternative wait in the queue, as a job would. When their turn comes and they do not
  fit, the other alternatives are tried in their order, beside the reservations of others and without evictions.
- What fits is held, and offered until `Policy.offer_ms` have passed. Where that is not the first alternative, a second
  one that fits beside it is held, too, so that the agent has a choice; and the later start of the first alternative is
  offered, where room is held for it. A firm request is granted at once.
- A plane has one offer outstanding. One that it declines, or lets lapse, costs a back-off that doubles.
- A counter-offer stays within what the request named at first: no more devices on a node or in all, no longer term, no
  other model, no better class.
- A scavenger that would delay a reservation is offered the time until that begins, if it takes so little.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining import placeholders, terms
from dovetail.core.bargaining.negotiation import Negotiation
from dovetail.core.bargaining.states import RequestEvent, RequestState
from dovetail.core.bargaining.types import (
    MOST_ROUNDS,
    Answer,
    GpuLease,
    Holding,
    LeaseAlternative,
    LeaseRequest,
    Offer,
    Plane,
    ServiceClass,
)
from dovetail.core.decisions import Bind, Decision, Hold, MakeOffers, RequestStatus
from dovetail.core.event_handlers import apply
from dovetail.core.model import Pod
from dovetail.core.pipeline import pre_enqueue
from dovetail.core.pipeline.attempt import Attempt
from dovetail.core.pipeline.placement import LIMITS, NO_ROOM, PlacementPhase
from dovetail.core.pipeline.signature import wanted_by
from dovetail.core.reasons import Reason, Refusal, When
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE

_MOST_HELD = 2
"""Alternatives that are offered at a time, all of them held."""
_OTHERS_MAY_FIT = NO_ROOM | LIMITS | {Reason.RESERVED, Reason.EVICTING, Reason.SEARCH_LIMIT}
_MOST_BACK_OFF_MS = 60_000
_GANG = "the gang "
"""What reasons of gangs begin with: an agent knows devices, and no gang of placeholders."""
_LATER = "it starts when enough of what holds its room has ended"
"""Why a later start is offered; what that is waits for has names that are not the agent's."""


class _Fits(Struct, frozen=True):
    """An alternative, by its number, of which this workload was placed for this term."""

    index: int
    workload: str
    term_ms: int


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
        withdraw(state, one)
        one.handle(RequestEvent.CHANGED)
        one.alternatives, one.chosen, one.rounds = request.alternatives, -1, 0
        return reconsider(state, one)
    if request.answer is not None and request.answer != before.answer:
        return _answered(state, one, request.answer)
    return []


def drop(state: State, one: Negotiation) -> None:
    """The request is gone."""
    withdraw(state, one)
    state.requests.leave(one)


def reconsider(state: State, one: Negotiation) -> list[Decision]:
    """Have the request wait in its queue, or report why it does not."""
    requests, now_ms = state.requests, state.now_ms
    if one.request.problem is not None:
        one.handle(RequestEvent.INVALID)
        return _report(state, one, Refusal(Reason.INVALID, When.NEVER, str(one.request.problem)))
    due_ms, open_ = _when(one, now_ms)
    if not open_ and not due_ms:
        withdraw(state, one)
        one.handle(RequestEvent.INVALID)
        return _report(state, one, Refusal(Reason.TOO_LATE, When.NEVER))
    if due_ms:
        requests.timers.put(one.request.id, due_ms)
    refusal = _blocked(state, one) if open_ else Refusal(Reason.TOO_EARLY, When.NOT_YET)
    if refusal is not None:
        withdraw(state, one)
        one.handle(RequestEvent.WAITS)
        return _report(state, one, refusal)
    if one.waiting and one.number != open_[0]:
        withdraw(state, one)
    if not one.waiting:
        workload, _ = _put(state, one, open_[0], str(open_[0]), one.alternatives[open_[0]].duration_ms)
        requests.wait(one, workload, open_[0])
    return []


def plane_moved(state: State, one: Negotiation) -> list[Decision]:
    """The plane of the request has changed, is silent, or is gone."""
    if one.state is RequestState.BACKING_OFF:
        return []
    if one.state is RequestState.OFFERED and _blocked(state, one) is None:
        return []
    return reconsider(state, one)


def due(state: State, one: Negotiation) -> list[Decision]:
    """The time has come: offers lapse, a back-off ends, or an alternative may start, or may not any more."""
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
            return _report(state, one, Refusal(Reason.PLANE_LIMIT, When.NOT_YET, f"leases: {plane.most_leases}"))
        return _report(state, one, Refusal(Reason.OFFER_OUTSTANDING, When.NOT_YET, requests.offered[plane.id]))
    tried = Attempt(state, workload).decide()
    decisions: list[Decision] = [decision for decision in tried if not isinstance(decision, Bind | Hold)]
    first = one.number
    if len(decisions) != len(tried) and any(isinstance(decision, Bind) for decision in tried):
        return decisions + _placed(state, one, [_Fits(first, workload, one.alternatives[first].duration_ms)], None)
    refusal, fitting = state.queue.refusal(workload), list[_Fits]()
    if refusal is None or refusal.reason in _OTHERS_MAY_FIT:
        for index in _when(one, state.now_ms)[1]:
            for term_ms in _terms(state, one, index, workload, refusal):
                other, why = _try(state, one, index, term_ms)
                if other:
                    fitting.append(_Fits(index, other, term_ms))
                    break
                if why is not None and index == first:
                    refusal = why
            if len(fitting) == (1 if one.firm else _MOST_HELD):
                break
    if fitting:
        return decisions + _placed(state, one, fitting, refusal)
    if refusal is None:
        return decisions
    held = workload in state.reservations.by_workload
    one.handle(RequestEvent.ROOM_HELD if held else RequestEvent.REFUSED)
    return decisions + _report(state, one, refusal)


def _terms(state: State, one: Negotiation, index: int, workload: str, refusal: Refusal | None) -> list[int]:
    """The terms for which to try an alternative: the whole one, unless that was refused already, and for a scavenger
    the time until the first reservation begins."""
    alternative = one.alternatives[index]
    found = [] if index == one.number else [alternative.duration_ms]
    if alternative.service is ServiceClass.SCAVENGER and alternative.least_duration_ms:
        left_ms = state.reservations.soonest_ms(workload) - state.now_ms
        if alternative.least_duration_ms <= left_ms < alternative.duration_ms:
            found.append(left_ms)
    return found


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
    """Why the request does not wait in a queue."""
    requests = state.requests
    plane = requests.planes.get(one.request.plane)
    if plane is None:
        return Refusal(Reason.PLANE_MISSING, When.NOT_YET, repr(one.request.plane))
    if plane.problem is not None:
        return Refusal(Reason.PLANE_INVALID, When.NOT_YET, str(plane.problem))
    if not takes_planes(state, plane):
        what = f"the queue {plane.queue!r} does not exist or takes no control planes (spec.planes)"
        return Refusal(Reason.PLANE_INVALID, When.NOT_YET, what)
    if (refusal := pre_enqueue.stopped(state, plane.queue, ())) is not None:
        return refusal
    if plane.id in requests.silent:
        return Refusal(Reason.PLANE_SILENT, When.NOT_YET, f"for {3 * plane.heartbeat_ms // 1000} s")
    if not one.waiting and requests.waiting_of(plane.id) >= plane.most_requests:
        return Refusal(Reason.PLANE_LIMIT, When.NOT_YET, f"requests that wait: {plane.most_requests}")
    return None


def takes_planes(state: State, plane: Plane) -> bool:
    """Whether the queue of the plane lets control planes be its leaves. Others would lose their jobs by one: a queue
    with leaves holds none."""
    queue = state.shares.tree.written.get(plane.queue)
    return queue is not None and queue.planes


def _put(state: State, one: Negotiation, index: int, number: str, term_ms: int) -> tuple[str, list[Pod]]:
    """Enter the placeholders of an alternative for this term. Returns their workload."""
    plane, request, alternative = state.requests.planes[one.request.plane], one.request, one.alternatives[index]
    # A request that is tried again has new placeholders: what was remembered of the old ones counts no more.
    number = f"{one.revision}.{number}"
    pods = placeholders.pods_of(plane, request, number, alternative, one.firm, term_ms)
    gang = placeholders.gang_of(plane, request, number, alternative)
    if gang is not None:
        apply(state, ev.GangChanged(gang))
    for pod in pods:
        apply(state, ev.PodChanged(pod))
    return gang.id if gang is not None else LONE + pods[0].uid, pods


def _try(state: State, one: Negotiation, index: int, term_ms: int) -> tuple[str, Refusal | None]:
    """Place an alternative that does not wait in the queue. Returns its workload, "" where it does not fit, and why."""
    plane, alternative = state.requests.planes[one.request.plane], one.alternatives[index]
    pod = placeholders.pods_of(plane, one.request, "", replace(alternative, count=alternative.per_node), False, term_ms)
    wanted = wanted_by(state, plane.leaf, placeholders.group_of(alternative, pod[0]))
    if wanted is not None and (known := state.equivalence.no_room.get(wanted)) is not None:
        return "", known
    workload, pods = _put(state, one, index, f"{index}~", term_ms)
    state.queue.forget(workload)
    phase, refusal = PlacementPhase(state, workload, plane.leaf, pods, one.waiting), None
    for group in state.workloads.groups(workload):
        binds, refusal = phase.place(group, wanted)
        if binds:
            return workload, None
    terms.remove(state, workload)
    return "", refusal


def withdraw(state: State, one: Negotiation) -> None:
    """Nothing waits and nothing is held for the request any more."""
    _release(state, one)
    if one.waiting:
        terms.remove(state, one.waiting)
        state.requests.wait(one, "", -1)
    one.revision += 1


def _release(state: State, one: Negotiation) -> None:
    """Release what is offered."""
    for workload in one.held:
        terms.remove(state, workload)
        if workload == one.waiting:
            state.requests.wait(one, "", -1)
    one.held, one.offers = (), ()
    _answer_is_in(state, one)


def _answer_is_in(state: State, one: Negotiation) -> None:
    """The plane may have another offer, if it was this request that had one."""
    if state.requests.offered.get(one.request.plane) == one.request.id:
        del state.requests.offered[one.request.plane]
        _wake(state, one.request.plane)


def _wake(state: State, plane_id: str) -> None:
    """Try the requests of the plane again, which waited for an answer to its offer."""
    parked = [one.waiting for one in state.requests.by_age(plane_id) if one.waiting]
    state.queue.wake([workload for workload in parked if state.queue.parked(workload)])


def _placed(state: State, one: Negotiation, fitting: Sequence[_Fits], refusal: Refusal | None) -> list[Decision]:
    """These alternatives were placed: offer them, or grant the first. `refusal` is that of the first alternative of the
    request."""
    one.held = tuple([each.workload for each in fitting])
    found = [_whole(state, one, each) for each in fitting]
    if one.firm:
        return _grant(state, one, one.held[0], *found[0])
    return [_offer(state, one, fitting, found, refusal)]


def _whole(state: State, one: Negotiation, fits: _Fits) -> tuple[LeaseAlternative, tuple[Holding, ...]]:
    """The alternative as it was placed, without what found no place."""
    members, placements = state.workloads.members(fits.workload), state.cluster.placements
    placed = [pod for pod in members if pod.uid in placements]
    for pod in members:
        if pod.uid not in placements:
            apply(state, ev.PodRemoved(pod.uid))
    gang = state.workloads.gangs.get(fits.workload)
    if gang is not None and gang.min_count != len(placed):
        # All of a lease is evicted, or nothing.
        apply(state, ev.GangChanged(replace(gang, min_count=len(placed), max_count=len(placed))))
    asked = one.alternatives[fits.index]
    offered = replace(asked, count=len(placed) * asked.per_node, least=0, duration_ms=fits.term_ms)
    return offered, tuple([_holding(state, pod) for pod in placed])


def _holding(state: State, pod: Pod) -> Holding:
    placement, cluster = state.cluster.placements[pod.uid], state.cluster
    instances = cluster.slices.instances(placement) if placement.slices else ()
    return Holding(pod.uid, cluster.nodes.names[placement.slot], placement.devices, instances)


def _offer(
    state: State,
    one: Negotiation,
    fitting: Sequence[_Fits],
    found: Sequence[tuple[LeaseAlternative, tuple[Holding, ...]]],
    refusal: Refusal | None,
) -> Decision:
    now_ms = state.now_ms
    # Unique also after a restart: an answer to an older offer is no answer to this one.
    one.made = max(one.made + 1, now_ms)
    name, offers = f"{one.request.id}.{one.made}", list[Offer]()
    for fits, (offered, holdings) in zip(fitting, found, strict=True):
        asked, why = one.alternatives[fits.index], ""
        if refusal is not None:
            # Without the details: they may name workloads of others.
            why = f"alternative {one.number}: {refusal.reason.text.removeprefix(_GANG)}"
        elif offered.count < asked.count:
            why = f"{offered.count} of {asked.count} devices are free"
        offers.append(Offer(f"{name}.{len(offers)}", True, offered, now_ms, holdings, why))
    expected = refusal.expected if refusal is not None else None
    if expected is not None and expected.start_ms and one.waiting:
        first = one.alternatives[one.number]
        offers.append(Offer(f"{name}.{len(offers)}", False, first, expected.start_ms, (), _LATER))
    one.offers, one.until_ms = tuple(offers), now_ms + state.policy.offer_ms
    one.handle(RequestEvent.OFFER_MADE)
    one.reported = None
    state.requests.offered[one.request.plane] = one.request.id
    state.requests.timers.put(one.request.id, one.until_ms)
    return MakeOffers(one.request.id, one.offers, one.until_ms, state.steps)


def _answered(state: State, one: Negotiation, answer: Answer) -> list[Decision]:
    offer = next((offer for offer in one.offers if offer.id == answer.offer), None)
    if offer is None:
        return _report(state, one, Refusal(Reason.OFFER_GONE, When.NOT_YET, repr(answer.offer)), keep=True)
    if answer.action == "decline":
        return _back_off(state, one, RequestEvent.DECLINED)
    if answer.action == "counter":
        return _countered(state, one, answer.counter)
    if offer.now:
        nodes = state.cluster.nodes
        if all(holding.node in nodes.slots and nodes.records[nodes.slots[holding.node]] for holding in offer.holdings):
            return _grant(state, one, one.held[one.offers.index(offer)], offer.alternative, offer.holdings)
        withdraw(state, one)
        one.handle(RequestEvent.WAITS)
        return reconsider(state, one)
    one.chosen = one.number
    _release(state, one)
    one.handle(RequestEvent.ACCEPTED_LATER)
    state.requests.timers.drop(one.request.id)
    for pod in state.workloads.members(one.waiting):
        # It is to start at the time that it was promised, like any job that is next.
        apply(state, ev.PodChanged(replace(pod, work=replace(pod.work, preempts=True))))
    return _report(state, one, None)


def _countered(state: State, one: Negotiation, counter: LeaseAlternative | None) -> list[Decision]:
    why = "no alternative is named" if counter is None else _beyond(one.request.alternatives, counter)
    if one.rounds >= MOST_ROUNDS:
        why = f"it is one more than {MOST_ROUNDS}"
    if why or counter is None:
        return _report(state, one, Refusal(Reason.COUNTER_REFUSED, When.NEVER, why), keep=True)
    withdraw(state, one)
    one.rounds += 1
    one.alternatives = (counter,)
    one.handle(RequestEvent.COUNTERED)
    return reconsider(state, one)


def _beyond(asked: Sequence[LeaseAlternative], counter: LeaseAlternative) -> str:
    """In what the counter-offer goes beyond each of the alternatives; "" where it stays within one of them."""
    reasons = [_beyond_one(alternative, counter) for alternative in asked]
    return "" if "" in reasons else reasons[0]


def _beyond_one(asked: LeaseAlternative, counter: LeaseAlternative) -> str:
    ranks = list(ServiceClass)
    if counter.resource != asked.resource or (counter.gpu_milli or 1000) > (asked.gpu_milli or 1000):
        return "another or a greater device"
    if counter.gpu_memory_mib > asked.gpu_memory_mib:
        return "more memory of a GPU"
    if counter.count > asked.count or counter.per_node > max(asked.per_node, asked.count):
        return "more devices"
    if counter.duration_ms > asked.duration_ms:
        return "a longer term"
    if asked.models and not set(counter.models) <= set(asked.models):
        return "another model"
    if counter.cpu_milli > asked.cpu_milli or counter.memory_bytes > asked.memory_bytes:
        return "more CPU or memory"
    if ranks.index(counter.service) < ranks.index(asked.service):
        return "a better class"
    return ""


def _back_off(state: State, one: Negotiation, event: RequestEvent) -> list[Decision]:
    withdraw(state, one)
    one.handle(event)
    back_off_ms = min(_MOST_BACK_OFF_MS, 1000 << min(one.lapses, 16))
    if event is RequestEvent.LAPSED:
        # It held devices for so long, and pays nothing for that.
        back_off_ms = max(back_off_ms, state.policy.offer_ms)
    one.until_ms = state.now_ms + back_off_ms
    one.lapses += 1
    state.requests.timers.put(one.request.id, one.until_ms)
    what = "an offer was declined" if event is RequestEvent.DECLINED else "no answer came in time"
    return _report(state, one, Refusal(Reason.BACKING_OFF, When.NOT_YET, what))


def _grant(
    state: State, one: Negotiation, workload: str, offered: LeaseAlternative, holdings: tuple[Holding, ...]
) -> list[Decision]:
    request, now_ms = one.request, state.now_ms
    plane = state.requests.planes[request.plane]
    lease = GpuLease(
        request.id, plane.id, request.name, offered, holdings, now_ms, now_ms + offered.duration_ms,
        state.leases.next_fence(now_ms), placeholders.grace_of(plane, request, offered.duration_ms),
        request.checkpoint_interval_ms, request.startup_ms,
    )  # fmt: skip
    for other in (*one.held, one.waiting):
        if other and other != workload:
            terms.remove(state, other)
    state.requests.wait(one, "", -1)
    one.held, one.offers, one.lapses = (), (), 0
    one.handle(RequestEvent.ACCEPTED)
    state.requests.timers.drop(request.id)
    _answer_is_in(state, one)
    return terms.begin(state, lease, workload, state.workloads.members(workload))


def _report(state: State, one: Negotiation, refusal: Refusal | None, keep: bool = False) -> list[Decision]:
    """The state of the request, where the reason is new or its numbers are old. `keep`: it is the answer to something
    that the agent did, and not why the request waits."""
    last, now_ms = one.reported, state.now_ms
    if not keep:
        same = last is not None and refusal is not None and (last.reason, last.when) == (refusal.reason, refusal.when)
        if same and (last == refusal or now_ms - one.reported_ms < state.policy.tell_again_ms):
            return []
        one.reported, one.reported_ms = refusal, now_ms
    until_ms = one.until_ms if one.state in (RequestState.BACKING_OFF, RequestState.OFFERED) else 0
    return [RequestStatus(one.request.id, one.state.value, refusal, state.steps, until_ms)]
