# SPDX-License-Identifier: Apache-2.0
"""The pre-filter: workloads that are refused as others of their signature were, by a look-up.

Rules: a workload is refused without an attempt where there is no room for what it wants and the post-filter can do
nothing about it: it may not preempt, or no victims were found; and it may hold no room, or has not the turn to. A
workload waits for the next step where the post-filter would search for victims and this step has no time left for that.
"""

from __future__ import annotations

from dovetail.core.decisions import Decision
from dovetail.core.pipeline.equivalence import Known, Signature
from dovetail.core.pipeline.holds import hold_all, is_held
from dovetail.core.placing.gangs import Group, fewest, shapes_of
from dovetail.core.reasons import Refusal
from dovetail.core.state import State
from dovetail.core.workloads.index import Precedence


def know(state: State, workload: str, signature: Signature, group: Group) -> None:
    """The workload has this signature as long as nothing about it changes."""
    known = state.equivalence.find(signature)
    if known is None:
        shapes = [shape for shape, _ in shapes_of(state.cluster, group)]
        known = state.equivalence.add(signature, shapes, state.shares.wanted(fewest(group)))
    state.equivalence.assign(workload, known)


def refuse(state: State, workload: str, refusal: Refusal) -> None:
    """All workloads of the signature of this one are refused so."""
    known = state.equivalence.of(workload)
    assert known is not None
    state.equivalence.refuse(known, refusal)


def refusal(state: State, workload: str) -> Refusal | None:
    """Why workloads of the signature of this one are refused; None where it has to be tried."""
    known = state.equivalence.of(workload)
    return _refusal(state, known) if known is not None else None


def _refusal(state: State, known: Known) -> Refusal | None:
    if known.refused is None:
        refusal = state.equivalence.no_room.get(known.signature.requests)
        if refusal is not None and _final(state, known):
            known.refused = refusal
    return known.refused


def _reserved(state: State, workload: str, known: Known) -> Refusal | None:
    """Why the reservations of others are in its way."""
    refusal = state.equivalence.reserved.get(known.signature.requests)
    if refusal is None or known.final is False:
        return None
    if state.expected_ends.all_before(state.workloads.members(workload), state.reservations.soonest_ms(workload)):
        return None
    if known.final is None:
        known.final = _final(state, known)
    return refusal if known.final else None


def _final(state: State, known: Known) -> bool:
    """Whether the post-filter can do nothing for it."""
    signature, quota = known.signature, state.shares.quota
    if known.asks and signature not in state.equivalence.sought:
        return False
    if signature.fixed and quota.limited(signature.queue):
        return False
    promised = state.pledges.promised("")
    if quota.beyond_limit(signature.queue, known.wanted, promised) is not None:
        return False
    if _asks(state, known):
        return False
    precedences = state.precedences
    return not precedences.may_hold(signature.precedence) or precedences.never(
        known.shapes, signature.queue, signature.precedence, known.wanted
    )


def passed_over(state: State, workload: str, decisions: list[Decision]) -> bool:
    """Whether the workload is refused as others of its signature are, or waits for a step that has time for its
    search; a Hold is added to the decisions where the refusal is new."""
    known = state.equivalence.of(workload)
    if known is not None and (first := state.workloads.first(workload)) and state.headrooms.of(first) is not None:
        # Each takes other room of its headroom.
        return False
    if known is None or workload in state.reservations.by_workload or workload in state.requests.by_workload:
        return False
    refusal = _refusal(state, known) or _reserved(state, workload, known)
    if refusal is None:
        if state.searches < state.policy.searches_per_step or not _asks(state, known):
            return False
        requests = known.signature.requests
        refusal = state.equivalence.no_room.get(requests) or state.equivalence.reserved.get(requests)
        if refusal is None:
            return False
        state.postpone(workload)
    # The waiting pods of the workload got their reason when its signature was last noted.
    if not is_held(state, workload, refusal):
        pods, placements = state.workloads.members(workload), state.cluster.placements
        uids = tuple([pod.uid for pod in pods if not pod.node and pod.uid not in placements])
        decisions += hold_all(state, workload, refusal, uids)
    return True


def _asks(state: State, known: Known) -> bool:
    """Whether the post-filter would search for victims."""
    if not state.policy.preempt or known.signature in state.equivalence.sought:
        return False
    if known.asks is None:
        signature = known.signature
        known.asks = signature.preempts and may_preempt(state, signature.queue, signature.precedence, known.wanted)
    return known.asks


def may_preempt(state: State, queue: str, precedence: Precedence, wanted: dict[str, int]) -> bool:
    """Whether there can be victims at all: of a lower precedence in the queue, or in queues that hold more than is due
    to them where this one is due more than it has; or pods that may be moved."""
    if state.policy.moves_per_hour:
        return True
    return state.shares.holds_below(queue, precedence) or any(
        state.shares.quota.reclaimable_queues(queue, wanted, state.pledges.total())
    )
