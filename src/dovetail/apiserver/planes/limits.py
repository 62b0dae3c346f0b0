# SPDX-License-Identifier: Apache-2.0
"""What one plane may use of the process that it shares with others."""

from __future__ import annotations

import math

from msgspec import Struct

from dovetail.apiserver.quota import QuotaLimits

COMPUTING_S = 0.005
"""Seconds of CPU for which a request counts once more."""


class PlaneLimits(Struct, frozen=True):
    """The limits of each plane. Sizes are bytes as JSON."""

    objects: int = 5_000
    size: int = 8 << 20
    object_size: int = 1 << 20
    body_size: int = 3 << 20
    requests_per_s: float = 50.0
    burst: int = 200
    """Requests that may come at once after a pause."""
    in_flight: int = 10
    """Requests at a time, watches not counted."""
    watches: int = 50
    history: int = 1_000
    """Changes from which watches resume."""
    history_s: float = 300.0
    history_size: int = 4 << 20

    @property
    def quota(self) -> QuotaLimits:
        return QuotaLimits(self.objects, self.size, self.object_size)


class RequestBudget:
    """A token bucket: it fills at a rate and holds a burst. What was spent on a request is charged afterwards, so that
    requests that compute long make the next ones wait."""

    def __init__(self, limits: PlaneLimits, now_s: float) -> None:
        self._limits = limits
        self._left = float(limits.burst)
        self._at_s = now_s

    def take(self, now_s: float) -> int:
        """0 for a request that may be carried out, and is counted; else whole seconds until the next one may."""
        limits = self._limits
        self._left = min(limits.burst, self._left + (now_s - self._at_s) * limits.requests_per_s)
        self._at_s = now_s
        if self._left < 1:
            return max(1, math.ceil((1 - self._left) / limits.requests_per_s))
        self._left -= 1
        return 0

    def charge(self, computing_s: float) -> None:
        """Counts a request once more for each whole COMPUTING_S of CPU."""
        self._left -= computing_s // COMPUTING_S
