# SPDX-License-Identifier: Apache-2.0
"""Which pods use none of the GPUs that they hold on this node, and since when: for the scheduler, in the GPUNode.

Rules
- A pod is idle since the last reading that showed use of one of its GPUs. Of a GPU that it has not used in the hours
  that are kept, it is idle since the end of the first of them: in that hour its containers may have started.
- A pod is idle if that is `LEAST_MS` ago, and `COVERAGE` thousandths of the time since then were measured: what was not
  measured is not idle. Of a device that several pods share each is measured, or none (`shared_use`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from dovetail.history.records import HOUR_MS, UseHour

LEAST_MS = 600_000
COVERAGE = 800
_WHOLE = 1000


def idle_pods(hours: Iterable[UseHour], held: Mapping[str, Set[str]], now_ms: int) -> dict[str, int]:
    """The idle pods by uid, each with the time since which it is idle in epoch ms, the earliest first. `held` has the
    GPUs (uuid) of each pod (uid)."""
    by_holder: dict[tuple[str, str], list[UseHour]] = {}
    for hour in hours:
        by_holder.setdefault((hour.pod_uid, hour.gpu), []).append(hour)
    found = {}
    for uid, gpus in held.items():
        since_ms = [_since_ms(by_holder.get((uid, gpu), ()), now_ms) for gpu in gpus]
        if since_ms and max(since_ms) <= now_ms - LEAST_MS:
            found[uid] = max(since_ms)
    return dict(sorted(found.items(), key=lambda one: (one[1], one[0])))


def _since_ms(hours: Iterable[UseHour], now_ms: int) -> int:
    """Since when a pod does not use a GPU; now if it does, or if too little of the time was measured."""
    hours = list(hours)
    if not hours:
        return now_ms
    since_ms = max(hour.used_until_ms for hour in hours) or min(hour.hour_ms for hour in hours) + HOUR_MS
    measured_ms = sum(hour.measured_since(since_ms) for hour in hours)
    return since_ms if measured_ms * _WHOLE >= (now_ms - since_ms) * COVERAGE else now_ms
