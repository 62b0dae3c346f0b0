# SPDX-License-Identifier: Apache-2.0
"""The expected run time of work, learned from earlier runs.

Rules: a run time limit is used where there is one. Else it is the time that 90 % of the last 32 runs of the work's
family did not exceed, if there were at least 3; else the same of the last 256 runs of its queue, then of all work, if
there were at least 8; else it is unknown. For work that runs already, only the runs count that lasted longer than it
has run so far; if there are none, it is expected to run as long again. The families and queues with the latest runs are
kept, 4,096 each.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from dovetail.core.model import Work
from dovetail.core.reasons import Sure

QUANTILE_PERCENT = 90
FAMILY_RUNS = 32
WIDE_RUNS = 256
FEWEST_OF_FAMILY = 3
FEWEST_OF_OTHERS = 8
KEPT = 4096
OVERTIME_MS = 60_000
"""Work that exceeds its limit by less than this is about to be ended. After that it may run for any time."""
_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))

Record = tuple[str, str, tuple[int, ...]]
"""The group (`family`, `queue` or `all`), its name, and the run times, the oldest first."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A run time, total or left (0 where unknown), how sure it is, and in words what it is derived from."""

    ran_ms: int
    sure: Sure
    _words: Callable[[], str] = field(compare=False)

    @property
    def basis(self) -> str:
        # Thousands of estimates are made, and few are shown.
        return self._words()


_UNKNOWN = Estimate(0, Sure.UNKNOWN, lambda: "no run time limit, and too few earlier runs to learn from")


class _Runs:
    """The last run times, by age and by length."""

    __slots__ = ("last", "lengths")

    def __init__(self) -> None:
        self.last: deque[int] = deque()
        self.lengths: list[int] = []

    def add(self, ran_ms: int, most: int) -> None:
        if len(self.last) == most:
            oldest = self.last.popleft()
            del self.lengths[bisect_right(self.lengths, oldest) - 1]
        self.last.append(ran_ms)
        insort(self.lengths, ran_ms)


class _Kind:
    """The runs of families, of queues or of all work, by name. The name with the latest run is at the end."""

    __slots__ = ("fewest", "most", "runs", "words")

    def __init__(self, fewest: int, most: int, words: str) -> None:
        self.fewest = fewest
        self.most = most
        self.words = words
        self.runs: OrderedDict[str, _Runs] = OrderedDict()

    def add(self, name: str, ran_ms: int) -> None:
        runs = self.runs.get(name)
        if runs is None:
            runs = self.runs[name] = _Runs()
            if len(self.runs) > KEPT:
                self.runs.popitem(last=False)
        else:
            self.runs.move_to_end(name)
        runs.add(ran_ms, self.most)


class RunTimes:
    def __init__(self) -> None:
        self._kinds = {
            "family": _Kind(FEWEST_OF_FAMILY, FAMILY_RUNS, " of {}"),
            "queue": _Kind(FEWEST_OF_OTHERS, WIDE_RUNS, " in queue {}"),
            "all": _Kind(FEWEST_OF_OTHERS, WIDE_RUNS, " of any kind"),
        }

    def learn(self, family: str, queue: str, ran_ms: int) -> None:
        """Learn from work that ran for so long and ended by itself. The family "" means none."""
        for kind, name in (("family", family), ("queue", queue), ("all", "")):
            if name or kind == "all":
                self._kinds[kind].add(name, max(0, ran_ms))

    def estimate(self, work: Work, queue: str) -> Estimate:
        """The run time of the work from start to end."""
        return self.left_ms(work, queue, 0)

    def left_ms(self, work: Work, queue: str, ran_ms: int) -> Estimate:
        """The time that work will run on after it has run for `ran_ms`."""
        limit_ms = work.max_runtime_ms
        if limit_ms > 0 and ran_ms < limit_ms + OVERTIME_MS:
            return Estimate(max(0, limit_ms - ran_ms), Sure.KNOWN, lambda: f"run time limit: {_span(limit_ms)}")
        if limit_ms > 0:
            over = "it runs longer than its run time limit"
            return Estimate(0, Sure.UNKNOWN, lambda: f"{over}: {_span(limit_ms)}")
        for kind, name in zip(self._kinds.values(), (work.family, queue, ""), strict=True):
            runs = kind.runs.get(name)
            if runs is None or len(runs.lengths) < kind.fewest:
                continue
            lengths = runs.lengths
            shorter = bisect_right(lengths, ran_ms) if ran_ms > 0 else 0
            longer = len(lengths) - shorter
            words = partial(_learned, kind.words.format, name, len(lengths), longer, ran_ms)
            if not longer:
                return Estimate(ran_ms, Sure.LEARNED, words)
            rank = shorter + -(-longer * QUANTILE_PERCENT // 100) - 1
            return Estimate(lengths[rank] - max(0, ran_ms), Sure.LEARNED, words)
        return _UNKNOWN

    def records(self) -> tuple[Record, ...]:
        """All that was learned, as `restore` takes it."""
        return tuple(
            (kind, name, tuple(runs.last))
            for kind, of_kind in self._kinds.items()
            for name, runs in of_kind.runs.items()
        )

    def restore(self, records: Iterable[Record]) -> None:
        """Replace all that was learned. Raises KeyError for a group that does not exist."""
        for of_kind in self._kinds.values():
            of_kind.runs.clear()
        for kind, name, lengths in records:
            for ran_ms in lengths:
                self._kinds[kind].add(name, ran_ms)


def _learned(what: Callable[[str], str], name: str, runs: int, longer: int, ran_ms: int) -> str:
    """The basis of an estimate from `runs` runs, of which `longer` lasted longer than the work has run."""
    if not longer:
        return f"longer than all {runs} runs{what(name)}: as long again as it has run"
    which = f" that lasted more than {_span(ran_ms)}" if longer < runs else ""
    return f"{QUANTILE_PERCENT} % of {longer} runs{what(name)}{which} took no longer"


def _span(ms: int) -> str:
    """An exact time in words: `1 h 30 min`."""
    words = []
    for unit, size_ms in _UNITS_MS:
        count, ms = divmod(ms, size_ms)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words) or "0 s"
