# SPDX-License-Identifier: Apache-2.0
"""One step of the scheduler: events in, decisions out. The live scheduler and the simulator both call this."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from dovetail.core.bargaining import broker
from dovetail.core.decisions import Decision
from dovetail.core.event_handlers import apply
from dovetail.core.events import Event
from dovetail.core.headroom import rooms
from dovetail.core.pipeline import known_refusals
from dovetail.core.pipeline.attempt import Attempt
from dovetail.core.preemption import draining, queue_draining
from dovetail.core.state import State


def apply_events(state: State, events: Iterable[Event], now_ms: int) -> None:
    """Apply the events at this time, and decide nothing. A back-off that an event begins starts at this time."""
    state.advance(now_ms)
    for event in events:
        apply(state, event)
    state.cluster.settle(state.promised_slots())


def enter(state: State, events: Iterable[Event], now_ms: int) -> None:
    """Apply the events at this time to a state in which nothing is decided, with what the next step enters first: the
    leases that were read, the requests in their queues, and where headroom lies. What is due is dropped."""
    apply_events(state, events, now_ms)
    state.advance(now_ms)
    if state.headrooms:
        state.lending.renew(state.budgets.values())
        rooms.settle(state)
    if broker.active(state):
        broker.due(state)
        # Planes are queues now, which are charged for the leases that were read.
        state.queue_order.renew()


def step(state: State, events: Iterable[Event], now_ms: int) -> list[Decision]:
    """Apply the events, then try the waiting workloads in order, within the policy's bound of work.

    The state counts each decision as carried out; for a bind that failed the driver passes `BindFailed` to a later
    step. `state.busy`: another step is due at once. `state.next_wake_ms()`: when one is due at the latest.
    """
    apply_events(state, events, now_ms)
    state.advance(now_ms)
    state.begin_step()
    if state.headrooms:
        rooms.settle(state)
        # What it gave up, others may have at once.
        state.advance(now_ms)
    bargains = broker.active(state)
    decisions: list[Decision] = broker.due(state) if bargains else []
    passed_over = partial(known_refusals.passed_over, state, decisions=decisions)
    work = 0
    while max(work, len(decisions)) < state.policy.attempts_per_step:
        workload = state.queue.pop(passed_over)
        if workload is None:
            break
        if bargains and (bargained := broker.attempt(state, workload)) is not None:
            decisions += bargained
            work += 1
            continue
        attempt = Attempt(state, workload)
        if state.moves.rooms:
            with state.moves.lent(state.workloads.members(workload)):
                decisions += attempt.decide()
        else:
            decisions += attempt.decide()
        work += attempt.work
    decisions += state.broken.release(state.now_ms, state.steps)
    decisions += draining.decide(state)
    decisions += queue_draining.decide(state)
    state.resume()
    return broker.revoking(state, decisions) if state.leases.live else decisions
