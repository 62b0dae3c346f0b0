# SPDX-License-Identifier: Apache-2.0
"""What is reported of a request: its state and why it is not granted."""

from __future__ import annotations

from dovetail.core.bargaining.negotiation import Negotiation
from dovetail.core.bargaining.states import RequestState
from dovetail.core.decisions import Decision, RequestStatus
from dovetail.core.reasons import Refusal
from dovetail.core.state import State


def report(state: State, one: Negotiation, refusal: Refusal | None, keep: bool = False) -> list[Decision]:
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
