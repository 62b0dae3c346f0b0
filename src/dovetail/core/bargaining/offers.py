# SPDX-License-Identifier: Apache-2.0
"""Which alternatives of a request fit, what is offered of them, and the lease that follows.

Rules
- What fits is held, and offered until `Policy.offer_ms` have passed. Where that is not the first alternative, a second
  one that fits beside it is held, too, so that the agent has a choice; and the later start of the first alternative is
  offered, where room is held for it. A firm request is granted at once.
- A scavenger that would delay a reservation is offered the time until that begins, if it takes so little.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining import placeholders, terms, waiting
from dovetail.core.bargaining.negotiation import Negotiation
from dovetail.core.bargaining.states import RequestEvent
from dovetail.core.bargaining.types import GpuLease, Holding, LeaseAlternative, Offer, ServiceClass
from dovetail.core.decisions import Decision, MakeOffers
from dovetail.core.event_handlers import apply
from dovetail.core.model import Pod
from dovetail.core.pipeline.placement import PlacementPhase
from dovetail.core.pipeline.signature import wanted_by
from dovetail.core.reasons import Refusal
from dovetail.core.state import State

_GANG = "the gang "
"""What reasons of gangs begin with: an agent knows devices, and no gang of placeholders."""
_LATER = "it starts when enough of what holds its room has ended"
"""Why a later start is offered; what that is waits for has names that are not the agent's."""


class Fits(Struct, frozen=True):
    """An alternative, by its number, of which this workload was placed for this term."""

    index: int
    workload: str
    term_ms: int


def terms_of(state: State, one: Negotiation, index: int, workload: str, refusal: Refusal | None) -> list[int]:
    """The terms for which to try an alternative: the whole one, unless that was refused already, and for a scavenger
    the time until the first reservation begins."""
    alternative = one.alternatives[index]
    found = [] if index == one.number else [alternative.duration_ms]
    if alternative.service is ServiceClass.SCAVENGER and alternative.least_duration_ms:
        left_ms = state.reservations.soonest_ms(workload) - state.now_ms
        if alternative.least_duration_ms <= left_ms < alternative.duration_ms:
            found.append(left_ms)
    return found


def tried(state: State, one: Negotiation, index: int, term_ms: int) -> tuple[str, Refusal | None]:
    """Place an alternative that does not wait in the queue. Returns its workload, "" where it does not fit, and why."""
    plane, alternative = state.requests.planes[one.request.plane], one.alternatives[index]
    pod = placeholders.pods_of(plane, one.request, "", replace(alternative, count=alternative.per_node), False, term_ms)
    wanted = wanted_by(state, plane.leaf, placeholders.group_of(alternative, pod[0]))
    if wanted is not None and (known := state.equivalence.no_room.get(wanted)) is not None:
        return "", known
    workload, pods = waiting.put(state, one, index, f"{index}~", term_ms)
    state.queue.forget(workload)
    phase, refusal = PlacementPhase(state, workload, plane.leaf, pods, one.waiting), None
    for group in state.workloads.groups(workload):
        binds, refusal = phase.place(group, wanted)
        if binds:
            return workload, None
    terms.remove(state, workload)
    return "", refusal


def made(state: State, one: Negotiation, fitting: Sequence[Fits], refusal: Refusal | None) -> list[Decision]:
    """These alternatives were placed: offer them, or grant the first. `refusal` is that of the first alternative of the
    request."""
    one.held = tuple([each.workload for each in fitting])
    found = [_whole(state, one, each) for each in fitting]
    if one.firm:
        return grant(state, one, one.held[0], *found[0])
    return [_offer(state, one, fitting, found, refusal)]


def _whole(state: State, one: Negotiation, fits: Fits) -> tuple[LeaseAlternative, tuple[Holding, ...]]:
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
    fitting: Sequence[Fits],
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


def grant(
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
    state.requests.places.leave(request)
    waiting.answer_is_in(state, one)
    return terms.begin(state, lease, workload, state.workloads.members(workload))
