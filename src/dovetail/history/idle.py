# SPDX-License-Identifier: Apache-2.0
"""The pods that hold GPUs and do not use them, as of the time up to which all is known.

Rules
- A GPU is idle for a pod since the last reading that showed use (`UseHour.used_until_ms`), or since the pod holds it.
- A pod is idle for as long as all of its GPUs are; its unused GPUs are those that it has not used for as long as
  `IdleRules` has it.
- Time before the containers run, and `grace_ms` after that, counts as start-up, not as idleness.
- What was not measured is not idle: at least `coverage` thousandths of the idle time must have been measured, else the
  pod is listed as not measured. GPUs that several pods share are measured where the agent sees processes.
- Use is searched in the last day, and if a pod was idle all that time in the last `look_back_ms`: a pod that was idle
  all that time is idle at least since then.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dovetail.history.records import HOUR_MS, GpuHold, Period, PodRecord, UseHour
from dovetail.history.store import HistoryReader

_MINUTE_MS = 60_000
_DAY_MS = 24 * HOUR_MS
WHOLE = 1000


class IdleRules(Struct, frozen=True):
    """`least_ms`: what is idle for a shorter time is not listed. `exempt` are namespaces, or labels KEY=VALUE of pods,
    that are never listed."""

    least_ms: int = 60 * _MINUTE_MS
    grace_ms: int = 10 * _MINUTE_MS
    coverage: int = 800
    look_back_ms: int = 7 * _DAY_MS
    exempt: frozenset[str] = frozenset()


class UnusedGpu(Struct, frozen=True):
    """A GPU that a pod holds and has not used since `since_ms`; `ever`: it used it before."""

    hold: GpuHold
    since_ms: int
    ever: bool
    measured_ms: int


class IdlePod(Struct, frozen=True):
    """A pod with the GPUs that it does not use. `idle`: these are all that it holds. `since_ms` is the latest begin of
    their idleness, and `amount` is what it held idle since then: thousandths times ms. `at_least`: it may be idle for
    longer. `coverage` is the part of the idle time that was measured, in thousandths."""

    pod: PodRecord
    unused: tuple[UnusedGpu, ...]
    held: int
    since_ms: int
    amount: int
    coverage: int
    at_least: bool

    @property
    def idle(self) -> bool:
        return len(self.unused) == self.held


class Idleness(Struct, frozen=True):
    """Idle pods, those that waste most first; pods of which too little was measured; and the time of both."""

    now_ms: int
    idle: tuple[IdlePod, ...]
    not_measured: tuple[PodRecord, ...]


def idleness(reader: HistoryReader, rules: IdleRules) -> Idleness:
    """The idle pods at the end of the history. Raises StoreError."""
    first_ms = min(rules.look_back_ms, max(_DAY_MS, 2 * rules.least_ms))
    found = _within(reader, rules, first_ms)
    if first_ms < rules.look_back_ms and any(one.at_least for one in found.idle):
        return _within(reader, rules, rules.look_back_ms)
    return found


def _within(reader: HistoryReader, rules: IdleRules, look_back_ms: int) -> Idleness:
    """The same, for use in the last `look_back_ms`."""
    known = reader.known()
    now = Period(max(known.start_ms, known.end_ms - 1), known.end_ms)
    holds: dict[str, list[GpuHold]] = {}
    for hold in reader.holds(now):
        if not hold.end_ms or hold.end_ms > now.start_ms:
            holds.setdefault(hold.pod_uid, []).append(hold)
    pods = {pod.uid: pod for pod in reader.pods_of(list(holds)) if not exempted(pod, rules.exempt)}
    since_ms = max(0, known.end_ms - look_back_ms)
    used = _by_holder(reader.use(Period(since_ms - since_ms % HOUR_MS, known.end_ms)), pods)
    idle, not_measured = [], []
    for uid, pod in pods.items():
        gpus = [_unused(hold, pod, used.get((hold.gpu, uid), ()), since_ms, rules) for hold in holds[uid]]
        late = [gpu for gpu in gpus if known.end_ms - gpu.since_ms >= rules.least_ms]
        if not late:
            continue
        found = _idle(pod, late, len(gpus), known.end_ms, since_ms)
        if found.coverage >= rules.coverage:
            idle.append(found)
        elif not any(gpu.measured_ms for gpu in gpus):
            not_measured.append(pod)
    idle.sort(key=lambda one: (-one.amount, one.pod.namespace, one.pod.name))
    not_measured.sort(key=lambda pod: (pod.namespace, pod.name))
    return Idleness(known.end_ms, tuple(idle), tuple(not_measured))


def exempted(pod: PodRecord, exempt: frozenset[str]) -> bool:
    """Whether the pod is of a namespace, or has a label, that is exempt."""
    return pod.namespace in exempt or any(f"{key}={value}" in exempt for key, value in pod.labels.items())


def _by_holder(use: Iterable[UseHour], pods: dict[str, PodRecord]) -> dict[tuple[str, str], list[UseHour]]:
    found: dict[tuple[str, str], list[UseHour]] = {}
    for hour in use:
        if hour.pod_uid in pods:
            found.setdefault((hour.gpu, hour.pod_uid), []).append(hour)
    return found


def _unused(hold: GpuHold, pod: PodRecord, hours: Iterable[UseHour], begin_ms: int, rules: IdleRules) -> UnusedGpu:
    """The idleness of one GPU that a pod holds."""
    hours = list(hours)
    used_ms = max((hour.used_until_ms for hour in hours), default=0)
    ready_ms = (pod.started_ms or hold.start_ms) + rules.grace_ms
    since_ms = max(used_ms, hold.start_ms, ready_ms, begin_ms)
    return UnusedGpu(hold, since_ms, bool(used_ms), sum(hour.measured_since(since_ms) for hour in hours))


def _idle(pod: PodRecord, unused: list[UnusedGpu], held: int, now_ms: int, begin_ms: int) -> IdlePod:
    since_ms = max(gpu.since_ms for gpu in unused)
    ms = sum(now_ms - gpu.since_ms for gpu in unused)
    coverage = sum(min(gpu.measured_ms, now_ms - gpu.since_ms) for gpu in unused) * WHOLE // ms
    amount = sum(gpu.hold.milli * (now_ms - since_ms) for gpu in unused)
    at_least = all(gpu.since_ms == begin_ms for gpu in unused)
    return IdlePod(pod, tuple(unused), held, since_ms, amount, coverage, at_least)
