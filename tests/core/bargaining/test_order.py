# SPDX-License-Identifier: Apache-2.0
"""Which control plane comes next."""

import pytest

from dovetail.core import events as ev
from dovetail.core.bargaining.types import LeaseAlternative, ServiceClass
from dovetail.core.queues.types import Queue
from tests.core.bargaining.market import MINUTE, Market, nodes
from tests.core.gang_oracle import gpu_pod

HOUR = 60 * MINUTE


def full(until_ms: int = 10 * MINUTE) -> Market:
    """One node, that a plane has until then, and others that have used nothing."""
    market = Market(*nodes(1))
    for name in "abcz":
        market.plane(name)
    market.ask("all", LeaseAlternative(count=8, duration_ms=until_ms), plane="z", firm=True)
    return market


def wants(market: Market, name: str, plane: str, minutes: int, count: int = 8, **more: object) -> None:
    wanted = LeaseAlternative(count=count, duration_ms=minutes * MINUTE, **more)
    market.ask(name, wanted, plane=plane, firm=True)


def starts(market: Market, count: int) -> list[str]:
    """The leases in the order in which they begin."""
    order: list[str] = []
    for _ in range(24 * 60):
        market.wait(MINUTE)
        order += [name for name in market.leases if name not in (*order, "all")]
        if len(order) == count:
            return order
    raise AssertionError(f"only {order} began")


def test_of_planes_with_equal_usage_the_one_that_asks_for_less_comes_first() -> None:
    market = full()
    # The first has a reservation, which is sticky.
    wants(market, "first", "z", 1)
    wants(market, "long", "a", 60)
    market.wait(1000)
    wants(market, "short", "b", 20)
    assert starts(market, 3) == ["first", "short", "long"]


@pytest.mark.slow
def test_a_request_that_has_waited_for_its_term_is_compared_by_usage_alone() -> None:
    market = full(2 * HOUR)
    wants(market, "first", "z", 1)
    wants(market, "long", "a", 60)
    market.wait(61 * MINUTE)
    wants(market, "earlier", "b", 5, count=4)
    wants(market, "short", "c", 5)
    # Nobody of a, b and c has used anything: a's request is as good as free by now.
    assert starts(market, 4)[:2] == ["first", "long"]


@pytest.mark.parametrize("what", ["plane", "job"])
def test_scavengers_come_after_all_others(what: str) -> None:
    market = Market(*nodes(1))
    market.step(ev.QueueChanged(Queue("team", planes=True, weight=1000)), ev.QueueChanged(Queue("jobs")))
    for name in "abz":
        market.plane(name)
    # The plane that has used nothing, and the queue with the greater weight, would come first.
    wants(market, "used", "b", 30)
    market.act("used", "return")
    market.step(ev.PodChanged(gpu_pod("used", 8, queue="jobs", created_ms=market.now_ms)))
    market.wait(MINUTE)
    market.step(ev.PodRemoved("used", succeeded=True))
    wants(market, "all", "z", 10)
    wants(market, "reserved", "z", 10, count=4)
    wants(market, "idle", "a", 5, count=4, service=ServiceClass.SCAVENGER)
    if what == "plane":
        wants(market, "other", "b", 10, count=4)
    else:
        market.step(ev.PodChanged(gpu_pod("other", 4, queue="jobs", created_ms=market.now_ms)))
    market.wait(10 * MINUTE)
    assert "reserved" in market.leases and "idle" not in market.leases
    assert "other" in market.leases or "other" in market.bound


def test_the_usage_of_a_plane_decays_as_that_of_its_queue() -> None:
    market = Market(*nodes(1))
    market.step(ev.QueueChanged(Queue("team", planes=True, half_life_ms=HOUR)))
    market.plane()
    wants(market, "r", "a", 60)
    market.wait(HOUR)
    of = market.state.shares.accounts.of
    used = of("planes/a/a").at(market.now_ms)
    assert used == pytest.approx(of("team").at(market.now_ms), rel=1e-6) and used > 0
    market.wait(HOUR)
    assert of("planes/a/a").at(market.now_ms) == pytest.approx(used / 2, rel=1e-3)
