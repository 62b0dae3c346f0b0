# SPDX-License-Identifier: Apache-2.0
"""How often the objects of one node are written, whatever the node does. Pure: the caller has the clock.

A token bucket for each node: the steps of an installation follow each other at once, and a node that flaps for hours is
written a few times an hour, each time as it is then.
"""

from __future__ import annotations

from msgspec import Struct

BURST = 30
"""Writes that may follow each other at once: several times as many as a node has steps, as an admin tries things."""
EVERY_MS = 240_000
"""From then on one write in this time: 15 an hour."""


class _Bucket(Struct):
    tokens: int
    since_ms: int


class WritePace:
    """`burst` writes at once for each name, then one in `every_ms`."""

    def __init__(self, burst: int = BURST, every_ms: int = EVERY_MS) -> None:
        self._burst, self._every_ms = burst, every_ms
        self._buckets: dict[str, _Bucket] = {}

    def due_ms(self, name: str, now_ms: int) -> int:
        """When the next write of this name may be: `now_ms`, or later."""
        bucket = self._filled(name, now_ms)
        return now_ms if bucket.tokens else bucket.since_ms + self._every_ms

    def count(self, name: str, now_ms: int) -> None:
        """A write of this name was sent, whether it worked or not."""
        bucket = self._filled(name, now_ms)
        if bucket.tokens == self._burst:
            bucket.since_ms = now_ms
        bucket.tokens = max(0, bucket.tokens - 1)

    def forget(self, name: str) -> None:
        self._buckets.pop(name, None)

    def _filled(self, name: str, now_ms: int) -> _Bucket:
        bucket = self._buckets.setdefault(name, _Bucket(self._burst, now_ms))
        # A clock that goes back must not lock a node out.
        passed_ms = max(0, now_ms - bucket.since_ms)
        bucket.since_ms = min(bucket.since_ms, now_ms)
        earned = passed_ms // self._every_ms
        bucket.tokens = min(self._burst, bucket.tokens + earned)
        bucket.since_ms = now_ms if bucket.tokens == self._burst else bucket.since_ms + earned * self._every_ms
        return bucket
