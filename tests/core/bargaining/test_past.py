# SPDX-License-Identifier: Apache-2.0
"""Leases that ended before a process began are charged as if it had seen them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dovetail.core import events as ev
from dovetail.core.bargaining.terms import LEAST_CHARGED_MS
from dovetail.core.bargaining.types import LeaseAlternative, ServiceClass
from dovetail.core.decisions import Decision, EndLease
from dovetail.core.queues.types import Queue, Usage
from tests.core.bargaining.market import MINUTE, Market
from tests.core.gang_oracle import gpu_node


def used(market: Market, queue: str = "planes/a/a") -> int:
    (snapshot,) = [one for one in market.state.queue_snapshots(market.now_ms) if one.name == queue]
    return sum(ms for _, ms in snapshot.days)


@pytest.mark.parametrize("service", [ServiceClass.BURST, ServiceClass.SCAVENGER])
@pytest.mark.parametrize("ran_ms", [5_000, 3 * MINUTE])
@pytest.mark.parametrize("recorded_ms", [0, 1, MINUTE, 10 * MINUTE])
def test_what_the_record_does_not_have_is_charged(service: ServiceClass, ran_ms: int, recorded_ms: int) -> None:
    """The record of the usage was written so long after the start of the lease."""
    seen = Market(gpu_node("n", 8))
    seen.plane("a")
    seen.wait(MINUTE)
    start_ms = seen.now_ms
    seen.ask("one", LeaseAlternative(4, duration_ms=10 * MINUTE, service=service), firm=True)
    if recorded_ms < ran_ms:
        seen.wait(recorded_ms)
        record = Usage(seen.now_ms, 0, 0, ((0, used(seen)),))
        seen.wait(ran_ms - recorded_ms)
        seen.act("one", "return")
    else:
        seen.wait(ran_ms)
        seen.act("one", "return")
        seen.wait(recorded_ms - ran_ms)
        record = Usage(seen.now_ms, 0, 0, ((0, used(seen)),))
    seen.wait(MINUTE)
    later = Market(gpu_node("n", 8))
    later.at(seen.now_ms)
    later.plane("a", usage=record)
    scavenged = service is ServiceClass.SCAVENGER
    later.step(ev.LeaseRan("one", "a/a", 4_000, start_ms, start_ms + ran_ms, scavenged))
    assert used(later) == used(seen) == 4_000 * (ran_ms if scavenged else max(ran_ms, LEAST_CHARGED_MS))


@pytest.mark.parametrize("queue_first", [False, True])
def test_a_queue_whose_record_has_the_least_charge_is_not_charged_again(queue_first: bool) -> None:
    """The status of the queue above the plane was written between the end of the lease and that of the plane
    (`queue_first`), or before the end."""
    seen = Market(gpu_node("n", 8))
    seen.plane("a")
    seen.wait(MINUTE)
    start_ms = seen.now_ms
    seen.ask("one", LeaseAlternative(4, duration_ms=10 * MINUTE), firm=True)
    seen.wait(3_000)
    of_queue = record = Usage(seen.now_ms, 0, 0, ((0, used(seen)),))
    seen.wait(2_000)
    seen.act("one", "return")
    if queue_first:
        seen.wait(1)
        of_queue = Usage(seen.now_ms, 0, 0, ((0, used(seen, "team")),))
    later = Market(gpu_node("n", 8))
    later.at(seen.now_ms + MINUTE, ev.QueueRemoved("team"), ev.QueueChanged(Queue("team", planes=True, usage=of_queue)))
    later.plane("a", usage=record)
    later.step(ev.LeaseRan("one", "a/a", 4_000, start_ms, start_ms + 5_000))
    assert used(later) == used(later, "team") == 4_000 * LEAST_CHARGED_MS


NAMES = ("first", "second", "last")


RECORDED_AND_READ = [(r, at) for at in (2, 4, 6, 8) for r in (0, 1, 3, 5, 7) if r <= at]
"""In minutes: a process reads what was written before."""


@pytest.mark.parametrize(("recorded", "read"), RECORDED_AND_READ)
@pytest.mark.parametrize("pods_first", [True, False])
@pytest.mark.slow
def test_a_lease_is_charged_whole_whatever_ran_in_it_and_whenever_a_process_began(
    recorded: int, read: int, pods_first: bool
) -> None:
    """A lease of four GPUs for eight minutes. Pods run in it from the first minute to the third, from the second, and
    from the fifth on; the last one runs on for a minute after its end. A process that begins at any time with any
    record of before charges in all what one does that sees it all."""
    seen, later = Market(gpu_node("n", 8)), Market(gpu_node("n", 8))
    seen.plane("a")
    seen.wait(MINUTE)
    start_ms = seen.now_ms
    seen.ask("one", LeaseAlternative(4, per_node=4, duration_ms=60 * MINUTE), firm=True)
    lease = seen.leases["one"]
    for market in (seen, later):
        market._carry_out = _kept(market._carry_out)  # type: ignore[method-assign]

    def at(minute: int) -> None:
        acting = [later] if later.state.requests.planes else []
        for market in (seen, *acting):
            if minute in (1, 2, 5):
                name, gpus = {1: ("first", 1), 2: ("second", 2), 5: ("last", 1)}[minute]
                market.pod(name, "one", gpus)
            if minute == 3:
                market.step(ev.PodRemoved("first", ended_ms=market.now_ms - 10_000))
            if minute == 8:
                market.act("one", "return")
                market.step(ev.PodRemoved("second"))
            if minute == 9:
                market.step(ev.PodRemoved("last"))

    record = None
    for minute in range(11):
        seen.at(start_ms + minute * MINUTE)
        later.at(start_ms + minute * MINUTE)
        at(minute)
        if minute == recorded:
            record = Usage(seen.now_ms, 0, 0, ((0, used(seen)),))
        if minute == read:
            pods = [ev.PodChanged(pod) for pod in seen.state.workloads.pods.values() if pod.uid in NAMES]
            ran = ev.LeaseRan("one", "a/a", 4_000, start_ms, start_ms + 8 * MINUTE)
            leases = [ev.LeaseChanged(lease) if minute < 8 else ran]
            later.leases |= {"one": lease} if minute < 8 else {}
            plane = replace(seen.state.requests.planes["a/a"], usage=record)
            later.step(*(pods + leases if pods_first else leases + pods), ev.PlaneChanged(plane))
    assert used(later) == used(seen) == 4_000 * 8 * MINUTE + 1_000 * MINUTE


def _kept(carry_out: Callable[[Decision], list[ev.Event]]) -> Callable[[Decision], list[ev.Event]]:
    """Pods run on when their lease has ended."""

    def kept(decision: Decision) -> list[ev.Event]:
        found = carry_out(decision)
        return [] if isinstance(decision, EndLease) else found

    return kept
