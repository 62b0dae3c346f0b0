# SPDX-License-Identifier: Apache-2.0
"""GPUs and MIG instances with the pods on them, their activity over a window, and what bounds them.

Rules
- Values are means over a window, of the samples in it; memory, power and temperature are the last ones. Counters are
  turned into rates by the difference of two samples; one that was set back begins again.
- The class of a GPU (`monitoring.bottleneck`) compares it with the other GPUs of its job; MIG instances and GPUs that
  several containers share are compared with none.
- A GPU with MIG instances is not listed beside them: they have its power, temperature and health.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean

from msgspec import Struct

from dovetail.kube.reading import gpu_samples as names
from dovetail.kube.reading.gpu_exporters import NodeSamples
from dovetail.kube.reading.gpu_samples import DeviceKey, DeviceSample, SampleHolder
from dovetail.monitoring.bottleneck import IDLE, Activity, Bottleneck, balance, classify, real_utilization
from dovetail.monitoring.engine_load import EngineLoad

WINDOW_S = 30.0
_GAP_S = 120.0
"""Samples further apart than this make no rate."""
_KIB = 1 << 10
_RATES = {
    names.PCIE_SENT: (names.PCIE_SENT_TOTAL, 1),
    names.PCIE_RECEIVED: (names.PCIE_RECEIVED_TOTAL, 1),
    names.NVLINK_SENT: (names.NVLINK_TOTAL_KIB, _KIB),
}
"""The rates that counters can replace: counter, bytes of its unit."""


class GpuHolder(Struct, frozen=True, rename="camel", gc=False):
    """A container on a GPU or MIG instance: the `share` that it holds; percent and MiB of the device that it uses."""

    pod: str
    container: str
    share: float
    used_percent: float | None
    memory_mib: float | None
    job: str
    queue: str
    user: str


class GpuRow(Struct, frozen=True, rename="camel", gc=False):
    """A GPU, or a MIG instance of one (`profile`). Activities are percent of the peak, None where they are not
    reported; `used` is the real use. `health` is "" where no exporter has it. `sm_samples` are those of `sm` in the
    window, the oldest first."""

    node: str
    gpu: int
    uuid: str
    instance: str
    profile: str
    product: str
    holders: tuple[GpuHolder, ...]
    used: float | None
    utilization: float | None
    engine: float | None
    sm: float | None
    tensor: float | None
    fp64: float | None
    dram: float | None
    pcie_bytes_s: float | None
    nvlink_bytes_s: float | None
    memory_used_mib: float | None
    memory_total_mib: float | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: float | None
    bottleneck: str
    meaning: str
    advice: str
    health: str
    age_s: float
    processes: Mapping[str, int]
    sm_samples: tuple[float, ...]

    @property
    def allocated(self) -> bool:
        """Whether a container holds it or a part of it."""
        return bool(self.holders)

    @property
    def idle(self) -> bool:
        """Whether nothing computes on it."""
        return self.used is None or self.used < IDLE

    @property
    def idle_allocated(self) -> bool:
        """Whether a container holds it, and is known not to use it."""
        return self.allocated and self.used is not None and self.idle

    @property
    def healthy(self) -> bool:
        """False if its exporter reports another state than healthy."""
        return self.health in ("", "healthy")


class TopReading(Struct, frozen=True):
    """The devices at `at_s` (epoch seconds), read from `source`; values are means over `window_s`. `engines` are the
    replicas of inference engines, None where their metrics were not read."""

    source: str
    at_s: float
    window_s: float
    rows: tuple[GpuRow, ...]
    nodes: tuple[NodeSamples, ...]
    notes: tuple[str, ...] = ()
    engines: tuple[EngineLoad, ...] | None = None


class _Values(Struct, gc=False):
    """The values of a device at a time."""

    at_s: float
    values: dict[str, float]


class TopWindow:
    """The samples of each device of the last `window_s` seconds. `averaged`: samples are means over that time already,
    so the last one is used."""

    def __init__(self, window_s: float = WINDOW_S, *, averaged: bool = False) -> None:
        self._window_s = window_s
        self._kept_s = 0.0 if averaged else window_s
        self._samples: dict[DeviceKey, deque[_Values]] = {}
        self._counters: dict[DeviceKey, _Values] = {}
        self._read_s: dict[str, float] = {}
        self._nodes: tuple[NodeSamples, ...] = ()

    def add(self, nodes: Sequence[NodeSamples]) -> None:
        """Add a reading of all nodes. A node without a new sample keeps those in the window."""
        self._nodes = tuple(nodes)
        listed = {device.key for node in nodes for device in node.devices}
        for key in self._samples.keys() - listed:
            del self._samples[key]
            self._counters.pop(key, None)
        for node in nodes:
            if node.at_s > self._read_s.get(node.node, 0.0):
                self._read_s[node.node] = node.at_s
                for device in node.devices:
                    self._add(device, node.at_s)

    def _add(self, device: DeviceSample, at_s: float) -> None:
        values = dict(device.values)
        before = self._counters.get(device.key)
        if before is not None and 0 < at_s - before.at_s <= _GAP_S:
            for rate, (counter, unit) in _RATES.items():
                rise = _rise(before.values.get(counter), values.get(counter))
                if rate not in values and rise is not None:
                    values[rate] = rise * unit / (at_s - before.at_s)
        self._counters[device.key] = _Values(at_s, {name: values[name] for name in names.COUNTERS if name in values})
        samples = self._samples.setdefault(device.key, deque())
        samples.append(_Values(at_s, values))
        while samples[0].at_s < at_s - self._kept_s:
            samples.popleft()

    @property
    def needs_rates(self) -> bool:
        """Whether a device has counters in place of rates, and one sample only."""
        return any(
            rate not in samples[-1].values and counter in samples[-1].values
            for samples in self._samples.values()
            if len(samples) == 1
            for rate, (counter, _) in _RATES.items()
        )

    def rows(self, now_s: float) -> list[GpuRow]:
        """The GPUs and MIG instances of all nodes."""
        divided = {(key.node, key.uuid) for key in self._samples if key.instance}
        found: list[tuple[DeviceSample, DeviceSample, Activity, float]] = []
        for node in self._nodes:
            parents = {device.key.uuid: device for device in node.devices if not device.key.instance}
            for device in node.devices:
                key = device.key
                if not key.instance and (key.node, key.uuid) in divided:
                    continue
                parent = parents.get(key.uuid, device)
                samples = self._samples.get(key)
                if samples is None:
                    continue
                activity = _activity(device, parent, samples)
                found.append((device, parent, activity, now_s - node.at_s))
        classes = _classes([(device, activity) for device, _, activity, _ in found])
        return [_row(*one, bottleneck) for one, bottleneck in zip(found, classes, strict=True)]

    def reading(self, now_s: float, source: str, notes: tuple[str, ...] = ()) -> TopReading:
        """All that is known at `now_s`."""
        return TopReading(source, now_s, self._window_s, tuple(self.rows(now_s)), self._nodes, notes)


def _rise(before: float | None, now: float | None) -> float | None:
    if before is None or now is None:
        return None
    return now - before if now >= before else now


def _activity(device: DeviceSample, parent: DeviceSample, samples: Sequence[_Values]) -> Activity:
    def mean(name: str) -> float | None:
        if len(samples) == 1:
            return samples[0].values.get(name)
        known = [one.values[name] for one in samples if name in one.values]
        return fmean(known) if known else None

    def percent(name: str) -> float | None:
        value = mean(name)
        return None if value is None else 100 * value

    def total(*of: str) -> float | None:
        known = [value for value in map(mean, of) if value is not None]
        return sum(known) if known else None

    limit = _limit(parent)
    power = mean(names.POWER)
    sms = device.samples or tuple(100 * one.values[names.SM] for one in samples if names.SM in one.values)
    return Activity(
        utilization=mean(names.UTILIZATION), memory_copy=mean(names.MEMORY_COPY), engine=percent(names.ENGINE),
        sm=percent(names.SM), tensor=percent(names.TENSOR), fp64=percent(names.FP64), dram=percent(names.DRAM),
        pcie_bytes_s=total(names.PCIE_SENT, names.PCIE_RECEIVED),
        pcie_balance=balance(mean(names.PCIE_SENT), mean(names.PCIE_RECEIVED)),
        nvlink_bytes_s=total(names.NVLINK_SENT, names.NVLINK_RECEIVED),
        power=power / limit if power is not None and limit else None, sm_samples=sms,
    )  # fmt: skip


def _limit(device: DeviceSample) -> float | None:
    return device.values.get(names.POWER_LIMIT) or device.values.get(names.POWER_MANAGEMENT_LIMIT)


def _row(
    device: DeviceSample, parent: DeviceSample, activity: Activity, age_s: float, bottleneck: Bottleneck
) -> GpuRow:
    values, key = device.values, device.key
    used, free = values.get(names.MEMORY_USED), values.get(names.MEMORY_FREE)
    total = values.get(names.MEMORY_TOTAL)
    if total is None and used is not None and free is not None:
        total = used + free + values.get(names.MEMORY_RESERVED, 0.0)
    return GpuRow(
        key.node, device.index, key.uuid, key.instance, device.profile, device.product,
        tuple(_holder(holder) for holder in device.holders), real_utilization(activity), activity.utilization,
        activity.engine, activity.sm, activity.tensor, activity.fp64, activity.dram, activity.pcie_bytes_s,
        activity.nvlink_bytes_s, used, total, values.get(names.POWER, parent.values.get(names.POWER)), _limit(parent),
        values.get(names.TEMPERATURE, parent.values.get(names.TEMPERATURE)), bottleneck.name, bottleneck.meaning,
        bottleneck.advice, device.state or parent.state,
        round(max(0.0, age_s), 1), device.processes or parent.processes, activity.sm_samples,
    )  # fmt: skip


def _holder(holder: SampleHolder) -> GpuHolder:
    return GpuHolder(
        f"{holder.namespace}/{holder.pod}", holder.container, holder.share, holder.utilization, holder.memory_mib,
        _job(holder), holder.queue, holder.user,
    )  # fmt: skip


def _job(holder: SampleHolder) -> str:
    return f"{holder.namespace}/{holder.job or holder.pod}"


def _classes(found: Sequence[tuple[DeviceSample, Activity]]) -> list[Bottleneck]:
    """The class of each device."""
    jobs: dict[object, list[int]] = {}
    for number, (device, _) in enumerate(found):
        # Instances and shared GPUs differ by what they are, so they are not compared.
        alone = device.key.instance or len(device.holders) != 1 or device.holders[0].share != 1
        jobs.setdefault(number if alone else _job(device.holders[0]), []).append(number)
    classes: dict[int, Bottleneck] = {}
    for members in jobs.values():
        classes.update(zip(members, classify([found[number][1] for number in members]), strict=True))
    return [classes[number] for number in range(len(found))]
