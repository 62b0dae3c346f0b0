# SPDX-License-Identifier: Apache-2.0
"""When something is due, by key: the earliest first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class Timers:
    """One time (ms) for each key. What was put later replaces what was put before."""

    def __init__(self) -> None:
        self._due_ms: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def put(self, key: str, due_ms: int) -> None:
        if self._due_ms.get(key) != due_ms:
            self._due_ms[key] = due_ms
            heapq.heappush(self._heap, (due_ms, key))

    def drop(self, key: str) -> None:
        self._due_ms.pop(key, None)

    def next_ms(self) -> int | None:
        """When the next one is due."""
        heap, due_ms = self._heap, self._due_ms
        while heap and due_ms.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def records(self) -> tuple[tuple[str, int], ...]:
        """All of them, as `restore` takes them."""
        return tuple(sorted(self._due_ms.items()))

    def restore(self, records: Iterable[tuple[str, int]]) -> None:
        for key, due_ms in records:
            self.put(key, due_ms)

    def take(self, now_ms: int) -> list[str]:
        """Forget those that are due by now, and return their keys in order of time."""
        due: list[str] = []
        while (next_ms := self.next_ms()) is not None and next_ms <= now_ms:
            key = heapq.heappop(self._heap)[1]
            del self._due_ms[key]
            due.append(key)
        return due
