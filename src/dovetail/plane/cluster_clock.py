# SPDX-License-Identifier: Apache-2.0
"""The scheduler's time as an agent knows it: from the scheduler's answers to heartbeats, and a clock that is never set.

Rules
- A heartbeat was sent at `sent_ms` of our steady clock, and acknowledged at `at_ms` of the scheduler's, which is later,
  and its answer was seen later still. So the scheduler's time is at most at_ms + (now - sent_ms): that is the time
  here. It is never behind, and ahead by what the heartbeat took to be acknowledged.
- Only the last answer counts: another scheduler that leads now has another clock.
- Rates differ by at most one in DRIFT (NTP slews a clock by 500 ppm), so that much is added for the time since.
- The wall clock of this machine decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dovetail.kube.api.lease import monotonic_ms

DRIFT = 1000


class ClusterClock:
    """`steady_ms` is our clock: it is never set, and goes on while the machine is suspended."""

    def __init__(self, steady_ms: Callable[[], int] = monotonic_ms) -> None:
        self._steady_ms = steady_ms
        self._sent_ms = 0
        self._at_ms = 0
        self._seen_ms = 0
        self.known = False
        """Whether the scheduler has answered. Before that the time here has no relation to its time."""

    def steady_ms(self) -> int:
        return self._steady_ms()

    def now_ms(self) -> int:
        passed_ms = self._steady_ms() - self._sent_ms
        return self._at_ms + passed_ms + passed_ms // DRIFT

    def least_ms(self) -> int:
        """The scheduler's time is this or later."""
        passed_ms = self._steady_ms() - self._seen_ms
        return self._at_ms + passed_ms - passed_ms // DRIFT

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(max(0, ms) / 1000)

    def answered(self, sent_ms: int, at_ms: int) -> None:
        """The heartbeat that was sent at `sent_ms` of our clock was acknowledged at `at_ms` of the scheduler's."""
        self._sent_ms, self._at_ms, self._seen_ms, self.known = sent_ms, at_ms, self._steady_ms(), True
