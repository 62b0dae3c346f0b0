# SPDX-License-Identifier: Apache-2.0
"""Leases that ended before a process began are charged as if it had seen them."""

from __future__ import annotations

import pytest

from dovetail.core import events as ev
from dovetail.core.bargaining.terms import LEAST_CHARGED_MS
from dovetail.core.bargaining.types import LeaseAlternative, ServiceClass
from dovetail.core.queues.types import Usage
from tests.core.bargaining.market import MINUTE, Market
from tests.core.gang_oracle import gpu_node


def used(market: Market) -> int:
    (snapshot,) = [one for one in market.state.queue_snapshots(market.now_ms) if one.name == "planes/a/a"]
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
