# SPDX-License-Identifier: Apache-2.0
"""How jobs used their GPUs over a window: runs, GPUs, coverage, and the distribution of real use.

Rules
- A job is what its pods name in their namespace. Its name may come again: pods that were there at the same time are one
  run, and so is a pod that takes the place of one that failed or was evicted at most `REPLACED_MS` before.
- Amounts are exact integers: sums of hours of use, weighted by the time that was measured. A quantile is the upper edge
  of its bin: real use was at or below it for at least that part of the time.
- `held_ms` is the time for which a pod held a device in the window, `measured_ms` the part of it with samples.
- The window consists of whole hours, as use is kept by the hour.
- A GPU is in the node, and of the model, that it was when the pod first held it in the window: a GPU can be moved, and
  a node renamed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from math import sqrt

from msgspec import Struct
from msgspec.structs import replace

from dovetail.history.records import (
    DAY_MS,
    HOST_CPU,
    HOST_MEMORY,
    HOUR_MS,
    USE_BINS,
    GpuHold,
    GpuSpan,
    Period,
    PodRecord,
    UseHour,
)
from dovetail.history.store import HistoryReader
from dovetail.monitoring.bottleneck import Activity, balance, hangs

REPLACED_MS = 10 * 60_000
BIN_MILLI = 1000 // USE_BINS
_BUSY_BIN = USE_BINS // 2
_BUSY_PART, _GAP_PART = 4, 20
"""An hour is one of work with gaps if at least a quarter of it was busy, and a twentieth idle."""
_REPLACED = frozenset(("Failed", "Preempted", "Evicted", "Lost"))
JobKey = tuple[str, str]
"""Namespace and name."""


class DeviceUse(Struct, frozen=True):
    """What pods held of a GPU, and how they used it. `milli` are thousandths of the GPU, `kind` is that of the hold.

    `host_cpu_milli` is the mean of the hour in which the pod used most of its node's CPUs, `host_memory_mib` the most
    memory, both for each device that it held, of hours of `host_ms` in all; 0 where that was not measured.
    `gap_ms` is idle time within hours of work; `hung_ms` the time in hours in which the GPU hung; `activity` has
    integrals as UseHour. `days` are the days, since 1970, in which something was measured. `place` is the GPU in its
    node; None where that is not known."""

    run: int
    pod_uid: str
    gpu: str
    model: str
    kind: str
    milli: int
    held_ms: int
    measured_ms: int = 0
    use: int = 0
    idle_ms: int = 0
    gap_ms: int = 0
    hung_ms: int = 0
    memory_peak_mib: int = 0
    histogram: tuple[int, ...] = (0,) * USE_BINS
    activity: dict[str, int] = {}
    days: frozenset[int] = frozenset()
    place: GpuSpan | None = None
    host_cpu_milli: int = 0
    host_memory_mib: int = 0
    host_ms: int = 0

    @property
    def mean_milli(self) -> int:
        return self.use // self.measured_ms if self.measured_ms else 0

    @property
    def idle_milli(self) -> int:
        return self.idle_ms * 1000 // self.measured_ms if self.measured_ms else 0

    def quantile_milli(self, per_mille: int) -> int:
        """See the rules; 0 where nothing was measured."""
        total, below = sum(self.histogram), 0
        for i, ms in enumerate(self.histogram):
            below += ms
            if total and below * 1000 >= total * per_mille:
                return (i + 1) * BIN_MILLI
        return 0

    def means(self) -> Activity:
        """Its activity over the window."""
        return activity_of(self.activity, self.measured_ms, self.histogram)


class JobUse(Struct, frozen=True):
    """A job over a window. `window` is from its first to its last hold in it. `latest` is the pod that was submitted
    last. `held_gpu` is the integral of what it held, in thousandths of a GPU times ms; `active_ms` the time for which
    it held something; `most_per_pod` the most devices that one pod held. `spot`: all its GPUs were of nodes that can be
    interrupted. `interrupted`: runs that went on after an eviction, and completed. `messages` are those of pods that
    failed."""

    namespace: str
    name: str
    latest: PodRecord
    window: Period
    runs: int
    pods: int
    devices: tuple[DeviceUse, ...]
    held_gpu: int
    active_ms: int
    most_per_pod: int
    spot: bool = False
    interrupted: int = 0
    messages: tuple[str, ...] = ()

    @property
    def total(self) -> DeviceUse:
        """All devices as one."""
        return merged(self.devices)

    @property
    def gpus_milli(self) -> int:
        """The devices that it held at a time, in thousandths: the mean over the time for which it held any."""
        return sum(one.held_ms for one in self.devices) * 1000 // self.active_ms if self.active_ms else 0

    @property
    def coverage_milli(self) -> int:
        """The part of the time for which devices were held that was measured."""
        held_ms = sum(one.held_ms for one in self.devices)
        return min(1000, sum(one.measured_ms for one in self.devices) * 1000 // held_ms) if held_ms else 0

    def members(self) -> list[DeviceUse]:
        """Of each run and GPU what its pods did, one after the other."""
        by_gpu = sorted(self.devices, key=_run_and_gpu)
        return [merged(list(group)) for _, group in groupby(by_gpu, _run_and_gpu)]


class JobsUse(Struct, frozen=True):
    """The jobs of a window, by namespace and name; the models of GPUs that there were, and those of spot nodes."""

    window: Period
    jobs: tuple[JobUse, ...]
    models: frozenset[str]
    spot_models: frozenset[str]


def activity_of(activity: Mapping[str, int], measured_ms: int, histogram: Sequence[int]) -> Activity:
    """The means of integrals, as `monitoring.bottleneck` has them: percent, bytes per second, and power as a ratio."""

    def mean(name: str, unit: int) -> float | None:
        return activity[name] / (measured_ms * unit) if name in activity and measured_ms else None

    def total(*names: str) -> float | None:
        known = [value for value in (mean(name, 1) for name in names) if value is not None]
        return sum(known) if known else None

    return Activity(
        utilization=mean("utilization", 10), memory_copy=mean("memory_copy", 10), engine=mean("engine", 10),
        sm=mean("sm", 10), tensor=mean("tensor", 10), fp64=mean("fp64", 10), dram=mean("dram", 10),
        pcie_bytes_s=total("pcie_tx", "pcie_rx"), pcie_balance=balance(mean("pcie_tx", 1), mean("pcie_rx", 1)),
        nvlink_bytes_s=total("nvlink_tx", "nvlink_rx"),
        power=mean("power", 1000), spread=_spread(histogram),
    )  # fmt: skip


def _spread(histogram: Sequence[int]) -> float | None:
    """The standard deviation of real use in points; None where there is nothing."""
    total = sum(histogram)
    if not total:
        return None
    first = sum(i * ms for i, ms in enumerate(histogram))
    second = sum(i * i * ms for i, ms in enumerate(histogram))
    return BIN_MILLI / 10 * sqrt(second * total - first * first) / total


def merged(devices: Sequence[DeviceUse]) -> DeviceUse:
    """The sums of devices, of which there is at least one, as one; it is named as the first."""
    activity: defaultdict[str, int] = defaultdict(int)
    for one in devices:
        for name, amount in one.activity.items():
            activity[name] += amount
    return replace(
        devices[0],
        held_ms=sum(one.held_ms for one in devices),
        measured_ms=sum(one.measured_ms for one in devices),
        use=sum(one.use for one in devices),
        idle_ms=sum(one.idle_ms for one in devices),
        gap_ms=sum(one.gap_ms for one in devices),
        hung_ms=sum(one.hung_ms for one in devices),
        memory_peak_mib=max(one.memory_peak_mib for one in devices),
        host_cpu_milli=max(one.host_cpu_milli for one in devices),
        host_memory_mib=max(one.host_memory_mib for one in devices),
        host_ms=sum(one.host_ms for one in devices),
        histogram=tuple(map(sum, zip(*(one.histogram for one in devices), strict=True))),
        activity=dict(activity),
        days=frozenset[int]().union(*(one.days for one in devices)),
    )


def _run_and_gpu(one: DeviceUse) -> tuple[int, str]:
    return one.run, one.gpu


def job_uses(reader: HistoryReader, period: Period, wanted: Collection[JobKey] = ()) -> JobsUse:
    """The jobs that held GPUs in the period, or those of them that are `wanted`. Raises StoreError."""
    whole = Period(period.start_ms - period.start_ms % HOUR_MS, -(-period.end_ms // HOUR_MS) * HOUR_MS)
    whole = Period(whole.start_ms, max(whole.start_ms, min(whole.end_ms, reader.known().end_ms)))
    spans = list(reader.spans(whole))
    pods: dict[str, PodRecord] = {}
    for pod in reader.pods(whole):
        if not wanted or key_of(pod) in wanted:
            pods[pod.uid] = pod
    held: defaultdict[JobKey, list[tuple[Period, GpuHold]]] = defaultdict(list)
    for hold in reader.holds(whole):
        if hold.pod_uid in pods and (covered := whole.clipped(hold.start_ms, hold.end_ms)).ms:
            held[key_of(pods[hold.pod_uid])].append((covered, hold))
    sums: dict[tuple[str, str], _Sums] = {}
    for hour in reader.use(whole):
        if hour.pod_uid in pods:
            sums.setdefault((hour.pod_uid, hour.gpu), _Sums()).add(hour)
    by_job: defaultdict[JobKey, list[PodRecord]] = defaultdict(list)
    for pod in pods.values():
        by_job[key_of(pod)].append(pod)
    places: defaultdict[str, list[GpuSpan]] = defaultdict(list)
    for span in spans:
        places[span.gpu].append(span)
    jobs = tuple(_job(key, by_job[key], held[key], sums, places) for key in sorted(held))
    return JobsUse(whole, jobs, _models(spans), _models(one for one in spans if one.spot))


def _models(spans: Iterable[GpuSpan]) -> frozenset[str]:
    return frozenset(span.model for span in spans if span.model)


def key_of(pod: PodRecord) -> JobKey:
    """A pod without a job is one of its own."""
    return pod.namespace, pod.job or pod.name


def runs_of(pods: Iterable[PodRecord]) -> list[list[PodRecord]]:
    """The pods of a job, run by run."""
    runs: list[list[PodRecord]] = []
    until_ms: int | None = 0
    """The time up to which a pod still belongs to the last run; None while one of its pods is there."""
    for pod in sorted(pods, key=lambda one: (one.submitted_ms, one.uid)):
        if not runs or (until_ms is not None and pod.submitted_ms > until_ms):
            runs.append([])
            until_ms = 0
        runs[-1].append(pod)
        if not pod.ended_ms:
            until_ms = None
        elif until_ms is not None:
            until_ms = max(until_ms, pod.ended_ms + REPLACED_MS * (pod.outcome in _REPLACED))
    return runs


def _job(
    key: JobKey, pods: Sequence[PodRecord], held: Sequence[tuple[Period, GpuHold]],
    sums: Mapping[tuple[str, str], _Sums], places: Mapping[str, Sequence[GpuSpan]],
) -> JobUse:  # fmt: skip
    runs = runs_of(pods)
    run_of = {pod.uid: number for number, run in enumerate(runs) for pod in run}
    by_device: defaultdict[tuple[str, str], list[tuple[Period, GpuHold]]] = defaultdict(list)
    per_pod: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for covered, hold in held:
        by_device[hold.pod_uid, hold.gpu].append((covered, hold))
        per_pod[hold.pod_uid].add((hold.gpu, hold.device))
    devices = []
    for (uid, gpu), holds in sorted(by_device.items(), key=lambda item: (run_of[item[0][0]], item[0])):
        covered, first = holds[0]
        place = _place(places.get(gpu, ()), covered)
        bare = DeviceUse(
            run_of[uid], uid, gpu, place.model if place is not None else "", first.kind, first.milli,
            sum(one.ms for one, _ in holds), place=place,
        )  # fmt: skip
        found = sums.get((uid, gpu))
        devices.append(found.of(bare) if found is not None else bare)
    starts, ends = [one.start_ms for one, _ in held], [one.end_ms for one, _ in held]
    return JobUse(
        *key, max(pods, key=lambda one: (one.submitted_ms, one.uid)), Period(min(starts), max(ends)),
        len({one.run for one in devices}), len(per_pod), tuple(devices),
        sum(hold.milli * covered.ms for covered, hold in held), _length_ms(one for one, _ in held),
        max(map(len, per_pod.values())), all(one.place is not None and one.place.spot for one in devices),
        sum(map(_went_on, runs)),
        tuple(dict.fromkeys(pod.message for pod in pods if pod.outcome == "Failed" and pod.message)),
    )  # fmt: skip


def _place(spans: Sequence[GpuSpan], held: Period) -> GpuSpan | None:
    """The GPU as it was when it was first held; of a time without a record, as it was before or after."""
    began = [span for span in spans if span.start_ms <= held.start_ms]
    return max(began, key=_start_ms) if began else min(spans, key=_start_ms, default=None)


def _start_ms(span: GpuSpan) -> int:
    return span.start_ms


def _went_on(run: Sequence[PodRecord]) -> bool:
    """Whether the run was interrupted, went on, and completed."""
    outcomes = {pod.outcome for pod in run}
    return "Completed" in outcomes and not outcomes.isdisjoint(("Evicted", "Preempted"))


def _length_ms(periods: Iterable[Period]) -> int:
    """The time that at least one of the periods covers."""
    total = until_ms = 0
    for one in sorted(periods, key=lambda one: one.start_ms):
        total += max(0, one.end_ms - max(one.start_ms, until_ms))
        until_ms = max(until_ms, one.end_ms)
    return total


class _Sums:
    """Sums of hours, of one pod on one GPU."""

    def __init__(self) -> None:
        self._measured_ms = self._use = self._idle_ms = self._gap_ms = self._hung_ms = self._peak_mib = 0
        self._bins = [0] * USE_BINS
        self._activity: defaultdict[str, int] = defaultdict(int)
        self._days: set[int] = set()
        self._host_cpu_milli = self._host_memory_mib = self._host_ms = 0

    def add(self, hour: UseHour) -> None:
        if not hour.measured_ms:
            return
        self._measured_ms += hour.measured_ms
        self._use += hour.use
        self._idle_ms += hour.idle_ms
        self._peak_mib = max(self._peak_mib, hour.memory_peak_mib)
        self._days.add(hour.hour_ms // DAY_MS)
        for i, ms in enumerate(hour.histogram[:USE_BINS]):
            self._bins[i] += ms
        for name, amount in hour.activity.items():
            self._activity[name] += amount
        self._host_cpu_milli = max(self._host_cpu_milli, hour.activity.get(HOST_CPU, 0) // hour.measured_ms)
        self._host_memory_mib = max(self._host_memory_mib, -(-hour.activity.get(HOST_MEMORY, 0) // hour.measured_ms))
        self._host_ms += hour.measured_ms * (HOST_MEMORY in hour.activity)
        busy_ms = sum(hour.histogram[_BUSY_BIN:])
        if busy_ms * _BUSY_PART >= hour.measured_ms and hour.idle_ms * _GAP_PART >= hour.measured_ms:
            self._gap_ms += hour.idle_ms
        if hangs(activity_of(hour.activity, hour.measured_ms, hour.histogram)):
            self._hung_ms += hour.measured_ms

    def of(self, bare: DeviceUse) -> DeviceUse:
        return replace(
            bare, measured_ms=self._measured_ms, use=self._use, idle_ms=self._idle_ms, gap_ms=self._gap_ms,
            hung_ms=self._hung_ms, memory_peak_mib=self._peak_mib, histogram=tuple(self._bins),
            activity=dict(self._activity), days=frozenset(self._days), host_cpu_milli=self._host_cpu_milli,
            host_memory_mib=self._host_memory_mib, host_ms=self._host_ms,
        )  # fmt: skip
