# SPDX-License-Identifier: Apache-2.0
"""What Prometheus reads of leases: how many, of which state and class, and what is waited for."""

from __future__ import annotations

from prometheus_client import REGISTRY

from dovetail.core import events as ev
from dovetail.core.bargaining.types import LeaseAlternative, ServiceClass
from dovetail.scheduler import lease_metrics
from tests.core.bargaining.market import MINUTE, Market
from tests.core.gang_oracle import gpu_node


def read(name: str) -> dict[tuple[str, ...], float]:
    samples = (sample for family in REGISTRY.collect() for sample in family.samples if sample.name == name)
    return {tuple(sample.labels.values()): sample.value for sample in samples}


def test_leases_and_requests_are_counted_by_state_and_class() -> None:
    market = Market(gpu_node("n", 8))
    market.plane("a")
    market.ask("burst", LeaseAlternative(4, duration_ms=10 * MINUTE), firm=True)
    market.ask("idle", LeaseAlternative(2, duration_ms=10 * MINUTE, service=ServiceClass.SCAVENGER), firm=True)
    market.ask("offer", LeaseAlternative(1))
    lease_metrics.measure(market.state)
    assert read("dovetail_leases") == {("Active", "Burst"): 1, ("Active", "Scavenger"): 1}
    assert read("dovetail_leased_devices") == {("Burst",): 4, ("Scavenger",): 2}
    assert read("dovetail_lease_requests") == {("Offered",): 1}
    assert read("dovetail_lease_idle_devices") == {("Burst",): 4, ("Scavenger",): 2}
    market.pod("p", "burst", 1)
    lease_metrics.measure(market.state)
    assert read("dovetail_lease_idle_devices") == {("Burst",): 0, ("Scavenger",): 2}
    market.step(ev.PodRemoved("p"))
    market.act("burst", "return")
    market.withdraw("offer")
    lease_metrics.measure(market.state)
    assert read("dovetail_leases") == {("Active", "Scavenger"): 1}
    assert read("dovetail_lease_requests") == {}
