# SPDX-License-Identifier: Apache-2.0
"""The time of GPUs in a part of a day, with what of it was start-up, used and idle.

Rules
- What a pod used is divided UTC day by UTC day, and within a day part by part where it is cut: so what a period has is
  exactly what its days have together. `day_parts` has the parts.
- It is divided over what the pod held in the part, in proportion to time: over all its GPUs together, or of each GPU by
  itself. What was measured is at most what was held; each amount is rounded down. Used, idle and not measured add up to
  allocated.
- An hour of use, or a day where hours are not kept any more, counts for the part in which it begins.
- The start-up of a pod is from its bind until its containers have started; without a start, until it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from dovetail.history.ledger import GpuTime, Unknown
from dovetail.history.records import DAY_MS, GpuHold, Period, PodRecord

USE_OF_WHOLE = 1000
"""The use of a GPU that is used wholly, per millisecond."""
NEVER_MS = 1 << 62


class UseOfPods:
    """What pods used in a part of a day. `measured` has the time with samples and the use, by pod, or by GPU and pod
    with `by_gpu`. First all times are taken in by `hold`; then the `parts` of each are known."""

    def __init__(
        self,
        measured: Mapping[tuple[str, str], tuple[int, int]],
        pods: Mapping[str, PodRecord],
        by_gpu: bool = False,
    ) -> None:
        self._measured, self._pods, self._by_gpu = measured, pods, by_gpu
        self._held_ms: dict[tuple[str, str], int] = {}
        self._of: dict[tuple[str, str], tuple[int, int, int, int, int]] = {}
        """Start and end of the start-up; of what was held the time, the use of it, and the time with samples."""

    def hold(self, times: Iterable[GpuTime | Unknown]) -> None:
        held_ms, by_gpu = self._held_ms, self._by_gpu
        for one in times:
            if isinstance(one, GpuTime) and (hold := one.hold) is not None:
                key = hold.gpu if by_gpu else "", hold.pod_uid
                held_ms[key] = held_ms.get(key, 0) + one.end_ms - one.start_ms

    def parts(self, time: GpuTime, hold: GpuHold) -> tuple[int, int, int]:
        """What of the amount of a time, which is allocated to this hold, was start-up, used and idle."""
        key = hold.gpu if self._by_gpu else "", hold.pod_uid
        first_ms, until_ms, held_ms, use, measured_ms = self._of.get(key) or self._find(key)
        start_ms, end_ms = time.start_ms, time.end_ms
        start_up = 0
        if start_ms < until_ms and end_ms > first_ms:
            start_up = time.milli * (min(end_ms, until_ms) - max(start_ms, first_ms))
        if not measured_ms:
            return start_up, 0, 0
        amount = time.milli * (end_ms - start_ms)
        used = amount * use // (held_ms * USE_OF_WHOLE)
        return start_up, used, amount * measured_ms // held_ms - used

    def _find(self, key: tuple[str, str]) -> tuple[int, int, int, int, int]:
        pod, held_ms = self._pods.get(key[1]), self._held_ms[key]
        measured_ms, use = self._measured.get(key, (0, 0))
        measured_ms = min(measured_ms, held_ms)
        use = min(use, measured_ms * USE_OF_WHOLE)
        start_up = start_up_of(pod) if pod is not None else (NEVER_MS, NEVER_MS)
        found = self._of[key] = *start_up, held_ms, use, measured_ms
        return found


def start_up_of(pod: PodRecord) -> tuple[int, int]:
    """From when to when a pod started up; never if it was not bound."""
    if not pod.bound_ms:
        return NEVER_MS, NEVER_MS
    return pod.bound_ms, pod.started_ms or pod.ended_ms or NEVER_MS


def day_parts(period: Period, cuts: Iterable[int] = ()) -> Iterator[Period]:
    """The period in parts that end with each UTC day, and at the cuts."""
    first_ms = (period.start_ms // DAY_MS + 1) * DAY_MS
    inner = {cut for cut in cuts if period.start_ms < cut < period.end_ms}
    times = {period.start_ms, *inner, *range(first_ms, period.end_ms, DAY_MS), period.end_ms}
    for start_ms, end_ms in pairwise(sorted(times)):
        yield Period(start_ms, end_ms)
