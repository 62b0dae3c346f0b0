# SPDX-License-Identifier: Apache-2.0
"""All ways of looking at requests for leases give one answer: the verdict, the reason, the start, the position.

Random markets with jobs: what `why`, `queue`, `priority`, `whatif` and `share` have of each request is compared.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.checkpoint import restore, take
from dovetail.core.cycle import enter
from dovetail.core.reasons import When
from dovetail.core.state import State
from dovetail.views.forecast_types import PLACED
from dovetail.views.queue_positions import queue_positions
from dovetail.views.queue_shares import share
from dovetail.views.queue_types import WaitingWorkload
from dovetail.views.rank import rank
from dovetail.views.whatif import Hypothesis, submit, whatif
from dovetail.views.why import why_request
from tests.views.agent_market import World, world


def copy(state: State) -> State:
    return restore(state.policy, take(state))


def of_requests(market: World) -> dict[str, WaitingWorkload]:
    """The requests in the queue, by their ids."""
    found = {one.job.rpartition("/")[2]: one for one in queue_positions(copy(market.state), market.now_ms).jobs}
    return {name: one for name, one in found.items() if name in market.requests}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_the_answers_agree(seed: int) -> None:
    market = world(seed)
    state, now_ms, found = market.state, market.now_ms, of_requests(market)
    order = [one.job for one in queue_positions(copy(state), now_ms).jobs]
    for name, one in found.items():
        answer = why_request(copy(state), state.requests.negotiations[name], now_ms)
        assert (answer.state, answer.queue) == (one.state, one.queue)
        if one.state == PLACED:
            assert answer.node
        else:
            assert (answer.code, answer.message) == (one.code, one.message)
            never = one.state == When.NEVER
            assert answer.expected == (None if never else one.expected)
            assert answer.ahead == (0 if never else one.position - 1)
        place = rank(copy(state), name, now_ms)
        assert place.position == one.position
        for level in place.levels:
            assert [term.head for term in level.terms] == sorted([term.head for term in level.terms], key=order.index)
    changed = whatif(copy(state), Hypothesis(()), now_ms)
    assert (changed.jobs, changed.evicted, changed.spared) == ((), (), ())
    shares = {one.queue: one for one in share(copy(state), now_ms)}
    for plane in state.requests.planes.values():
        waiting = [one for one in found.values() if one.queue == plane.leaf]
        assert shares[plane.leaf].pending_jobs == len(waiting)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_what_a_submitted_request_gets_is_what_it_gets_once_it_is_there(seed: int) -> None:
    market = world(seed)
    state, now_ms = market.state, market.now_ms
    for name in of_requests(market):
        request = replace(state.requests.negotiations[name].request, id="a/new", name="new", created_ms=0)
        change = submit(copy(state), [ev.LeaseRequestChanged(request)], now_ms)
        job = next(one for one in whatif(copy(state), change, now_ms).jobs if one.job.endswith("/new"))
        there = copy(state)
        enter(there, change.events, now_ms)
        answer = why_request(there, there.requests.negotiations["a/new"], now_ms)
        assert (job.state, job.granted if job.state != PLACED else "") == (answer.state, answer.granted)
        if job.state != PLACED:
            assert (job.code, None if job.state == When.NEVER else job.after) == (answer.code, answer.expected)
