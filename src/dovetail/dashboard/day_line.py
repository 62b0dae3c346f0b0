# SPDX-License-Identifier: Apache-2.0
"""What the time bar of a day shows: how many GPUs were in use, how many jobs waited, when jobs were evicted."""

from __future__ import annotations

from msgspec import Struct

MOST_POINTS = 1024
MOST_MARKS = 1000
LONGEST_MARK = 300


class DayPoint(Struct, array_like=True):
    """From `at_ms` to the next point, at its end: GPUs in use, GPUs, waiting jobs and lone pods."""

    at_ms: int
    used: int
    gpus: int
    waiting: int


class DayMark(Struct, frozen=True, array_like=True):
    """Something that somebody may look for: `kind` is evicted, drained or node."""

    at_ms: int
    kind: str
    text: str


class DayLine:
    """Points, at most MOST_POINTS: where there are more, two become one. And the first MOST_MARKS marks."""

    def __init__(self) -> None:
        self.points: list[DayPoint] = []
        self.marks: list[DayMark] = []
        self.marks_left_out = 0
        self._width_ms = 1

    def add(self, point: DayPoint) -> None:
        """The values from a time on, which is not before the last one."""
        last = self.points[-1] if self.points else None
        if last is not None and (last.used, last.gpus, last.waiting) == (point.used, point.gpus, point.waiting):
            return
        if last is not None and point.at_ms < last.at_ms + self._width_ms:
            last.used, last.gpus, last.waiting = point.used, point.gpus, point.waiting
            return
        points = [*self.points, point] if len(self.points) >= MOST_POINTS else self.points
        if points is self.points:
            points.append(point)
            return
        while len(points) > MOST_POINTS // 2:
            self._width_ms = max(2 * self._width_ms, (points[-1].at_ms - points[0].at_ms) // MOST_POINTS)
            points = self._merged(points)
        self.points = points

    def mark(self, at_ms: int, kind: str, text: str) -> None:
        if len(self.marks) >= MOST_MARKS:
            self.marks_left_out += 1
            return
        self.marks.append(DayMark(at_ms, kind, text if len(text) <= LONGEST_MARK else f"{text[:LONGEST_MARK]}..."))

    def _merged(self, points: list[DayPoint]) -> list[DayPoint]:
        found: list[DayPoint] = []
        for one in points:
            if found and one.at_ms < found[-1].at_ms + self._width_ms:
                last = found[-1]
                last.used, last.gpus, last.waiting = one.used, one.gpus, one.waiting
            else:
                found.append(DayPoint(one.at_ms, one.used, one.gpus, one.waiting))
        return found
