# SPDX-License-Identifier: Apache-2.0
"""The requests of a plane to its broker, beside what tests of the carrier see of them."""

from __future__ import annotations

import asyncio
from typing import Any

from dovetail.agentplanes.facts import RequestKey
from dovetail.agentplanes.leases import PlaneLeases
from dovetail.agentplanes.wants import PodWant
from dovetail.plane.fake_clock import FakeClock
from dovetail.plane.lease import NotGranted

KEY = RequestKey("0123456789ab", PodWant(2))


class Denying:
    """A plane whose requests are all denied."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.asked: list[Any] = []

    async def negotiate(self, request: Any) -> None:
        self.asked.append(request)
        raise NotGranted("denied: it is late")


async def test_what_is_denied_is_asked_for_less_and_less_often() -> None:
    plane: Any = Denying()
    leases = PlaneLeases(plane, lambda: None)
    waits = []
    for _ in range(9):
        leases.negotiate(KEY, 3)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        one = leases.requests[KEY]
        assert one.failed and one.why == "denied: it is late"
        waits.append((one.retry_ms - plane.clock.now_ms()) // 1000)
        plane.clock.move(one.retry_ms)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    (option,) = plane.asked[0].options
    assert (option.gpus, option.per_node, plane.asked[0].name) == (6, 2, "gang-0123456789ab")
    leases.withdraw(KEY)
    leases.negotiate(KEY, 3)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert leases.requests[KEY].retry_ms - plane.clock.now_ms() == 5_000
