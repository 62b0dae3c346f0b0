# SPDX-License-Identifier: Apache-2.0
"""The time that the core receives: epoch milliseconds that never go back.

The wall clock is read once; after that the monotonic clock counts. So a step of the wall clock (NTP, a resumed machine)
neither ends back-offs early nor releases gangs, and the times still compare with those of the API server.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    def __init__(self, wall_s: Callable[[], float] = time.time, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._steady_s = steady_s
        self._offset_s = wall_s() - steady_s()

    def now_ms(self) -> int:
        return int((self._offset_s + self._steady_s()) * 1000)
