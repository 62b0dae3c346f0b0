# SPDX-License-Identifier: Apache-2.0
"""The workloads of a request: what waits in the queue of its plane, and what holds the devices of its offers."""

from __future__ import annotations

from dovetail.core import events as ev
from dovetail.core.bargaining import placeholders, terms
from dovetail.core.bargaining.negotiation import Negotiation
from dovetail.core.event_handlers import apply
from dovetail.core.model import Pod
from dovetail.core.state import State
from dovetail.core.workloads.index import LONE


def put(state: State, one: Negotiation, index: int, number: str, term_ms: int) -> tuple[str, list[Pod]]:
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


def withdraw(state: State, one: Negotiation) -> None:
    """Nothing waits and nothing is held for the request any more."""
    release(state, one)
    if one.waiting:
        terms.remove(state, one.waiting)
        state.requests.wait(one, "", -1)
    one.revision += 1


def release(state: State, one: Negotiation) -> None:
    """Release what is offered."""
    for workload in one.held:
        terms.remove(state, workload)
        if workload == one.waiting:
            state.requests.wait(one, "", -1)
    one.held, one.offers = (), ()
    answer_is_in(state, one)


def answer_is_in(state: State, one: Negotiation) -> None:
    """The plane may have another offer, if it was this request that had one."""
    if state.requests.offered.get(one.request.plane) == one.request.id:
        del state.requests.offered[one.request.plane]
        _wake(state, one.request.plane)


def _wake(state: State, plane_id: str) -> None:
    """Try the requests of the plane again, which waited for an answer to its offer."""
    parked = [one.waiting for one in state.requests.placed(plane_id) if one.waiting]
    state.queue.wake([workload for workload in parked if state.queue.parked(workload)])
