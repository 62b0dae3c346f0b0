# SPDX-License-Identifier: Apache-2.0
"""The GPUs of all nodes from a Prometheus that scrapes their exporters, in a fixed number of queries.

Rules
- Activities are means over the window (`avg_over_time`), of SM activity also the samples in it; memory and temperature
  are the last values. Counters are read where devices have no rates, and what is constant every minute.
- Queries are by device, so that an answer has two labels per GPU; one query has the names of device and holders, and
  health is read of devices that are not healthy. The
  scrape's own `job` is left out, as the recording rules do; `exported_` labels are read where labels were not honored.
- A node that had metrics in the last hour and has none now is listed with a fault.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from msgspec import Struct
from msgspec.json import Decoder

from dovetail.kube.api.listing import gc_paused
from dovetail.kube.reading import gpu_samples as names
from dovetail.kube.reading.engines import EngineSample, engines_of
from dovetail.kube.reading.exposition import SeriesValues, has_data
from dovetail.kube.reading.gpu_exporters import NodeSamples, Readings
from dovetail.kube.reading.gpu_samples import DeviceSample, devices_of
from dovetail.kube.reading.prometheus_api import TIMEOUT_S, PrometheusAccess, PrometheusAnswer, PrometheusApi

WINDOW_S, STEP_S = 60, 15
_CONSTANT_S = 60.0
_BY = "by (UUID, GPU_I_ID)"
_MEANS = (
    names.UTILIZATION,
    names.MEMORY_COPY,
    names.ENGINE,
    names.SM,
    names.TENSOR,
    names.FP64,
    names.DRAM,
    names.POWER,
)
_SHARED = f"({names.SHARE} > 0 and {names.SHARE} < 1)"
_EXPORTED = "exported_"
_RENAMED = ("namespace", "pod", "container", "job")
_OF_DEVICE = ("UUID", "GPU_I_ID", "GPU_I_PROFILE", "gpu", "modelName", "hostname", "Hostname")


def _mean(metric: str) -> str:
    return f"max {_BY} (avg_over_time({metric}[{WINDOW_S}s]))"


def _rate(metric: str) -> str:
    return f"max {_BY} (rate({metric}[{WINDOW_S}s]))"


def _last(metric: str) -> str:
    return f"max {_BY} ({metric})"


_RATES = names.PCIE_SENT, names.PCIE_RECEIVED, names.NVLINK_SENT, names.NVLINK_RECEIVED
_VALUES = {name: _mean(name) for name in (*_MEANS, *_RATES)} | {
    names.MEMORY_USED: _last(names.MEMORY_USED),
    names.TEMPERATURE: _last(names.TEMPERATURE),
}
_COUNTED = {
    names.PCIE_SENT: _rate(names.PCIE_SENT_TOTAL),
    names.PCIE_RECEIVED: _rate(names.PCIE_RECEIVED_TOTAL),
    names.NVLINK_SENT: f"{_rate(names.NVLINK_TOTAL_KIB)} * 1024",
}
_CONSTANT = {
    names.MEMORY_TOTAL: f"{_last(names.MEMORY_TOTAL)} or {_last(names.MEMORY_USED)} + {_last(names.MEMORY_FREE)}",
    names.POWER_LIMIT: f"{_last(names.POWER_LIMIT)} or {_last(names.POWER_MANAGEMENT_LIMIT)}",
}
_DEVICES = f"{names.SHARE} or ({names.MEMORY_USED} unless on (UUID) {names.SHARE})"
_SM = f"max {_BY} ({names.SM})[{WINDOW_S}s:{STEP_S}s]"
_STATES = f'max by (state, UUID, GPU_I_ID) ({names.HEALTH_STATE}{{state!="healthy"}}) == 1'
_UNHEALTHY = f"max {_BY} ({names.HEALTHY}) == 0"
_PROCESSES = f"sum by (holder, UUID, GPU_I_ID) ({names.PROCESSES}) > 0"
_PODS = (
    f'max by (__name__, UUID, GPU_I_ID, namespace, pod) ({{__name__=~"{names.POD_MEMORY}|{names.POD_SM}"}} '
    f"and on (UUID, GPU_I_ID) {_SHARED})"
)
_GONE = "group by (hostname) (last_over_time(dovetail_gpu_found[1h])) unless on (hostname) dovetail_gpu_found"


class _Named(Struct, frozen=True):
    """A series of an instant vector: its labels, and time and text of its value."""

    metric: dict[str, str]
    value: tuple[float, str] = (0.0, "NaN")


class _Device(Struct, frozen=True):
    """The labels of a query by device."""

    UUID: str = ""
    GPU_I_ID: str = ""


class _Value(Struct, frozen=True):
    """A series of a query by device: time and text of its value, or of its values."""

    metric: _Device
    value: tuple[float, str] = (0.0, "NaN")
    values: tuple[tuple[float, str], ...] = ()


_NAMED, _BY_DEVICE = Decoder(PrometheusAnswer[_Named]), Decoder(PrometheusAnswer[_Value])


class Prometheus:
    """Reads a Prometheus again and again. `async with Prometheus(access) as prometheus:`"""

    def __init__(self, access: PrometheusAccess, *, timeout_s: float = TIMEOUT_S) -> None:
        self._api = PrometheusApi(access, timeout_s=timeout_s)
        self._constant: dict[str, tuple[_Value, ...]] = {}
        self._constant_s = float("-inf")

    async def __aenter__(self) -> Self:
        """Raises PrometheusError if the certificates cannot be read."""
        await self._api.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._api.__aexit__(kind, error, trace)

    async def read(self) -> Readings:
        """All nodes. Raises PrometheusError."""
        headers = self._api.headers()
        with gc_paused():
            named = [self._api.query(one, headers, _NAMED) for one in (_DEVICES, _STATES, _PROCESSES, _PODS, _GONE)]
            answers, (unhealthy, samples), values = await asyncio.gather(
                asyncio.gather(*named),
                asyncio.gather(*(self._api.query(one, headers, _BY_DEVICE) for one in (_UNHEALTHY, _SM))),
                self._values(_VALUES, headers),
            )
            if time.monotonic() - self._constant_s > _CONSTANT_S:
                self._constant = await self._values(_CONSTANT, headers)
                self._constant_s = time.monotonic()
            values |= self._constant | {names.HEALTHY: unhealthy}
            # Those of GPUs without profiling values.
            lacking = {
                name: rate for name, rate in _COUNTED.items() if len(values[name]) < len(values[names.TEMPERATURE])
            }
            counted = await self._values(lacking, headers)
            return _joined(answers, samples, [counted, values])

    async def engines(self) -> tuple[EngineSample, ...]:
        """The replicas of inference engines. Raises PrometheusError."""
        return await engines_of(self._api)

    async def _values(self, queries: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, tuple[_Value, ...]]:
        """The answers to queries by device, by name."""
        answers = await asyncio.gather(*(self._api.query(one, headers, _BY_DEVICE) for one in queries.values()))
        return dict(zip(queries, answers, strict=True))


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _joined(
    named: Sequence[Sequence[_Named]], sm: Sequence[_Value], answers: Sequence[Mapping[str, Sequence[_Value]]]
) -> Readings:
    """The devices by node. A value of later `answers` counts before that of earlier ones."""
    devices, states, processes, pods, gone = named
    series, labels = _devices(devices)
    values: dict[tuple[str, str], dict[str, float]] = {key: {} for key in labels}
    for name, answer in (item for each in answers for item in each.items()):
        for one in answer:
            known = values.get((one.metric.UUID, one.metric.GPU_I_ID))
            if known is not None and has_data(value := _float(one.value[1])):
                known[name] = value
    for extra, name in ((states, names.HEALTH_STATE), (processes, names.PROCESSES), (pods, "")):
        for more in extra:
            metric = more.metric
            base = labels.get((metric.get("UUID", ""), metric.get("GPU_I_ID", "")))
            if base is not None and has_data(value := _float(more.value[1])):
                series.append(SeriesValues(base | metric, {name or metric.get("__name__", ""): value}))
    whole = [SeriesValues(labels[key], known) for key, known in values.items()]
    samples = {
        (one.metric.UUID, one.metric.GPU_I_ID): tuple(100 * _float(text) for _, text in one.values) for one in sm
    }
    lost = {one.metric.get("hostname", "") for one in gone}
    found: dict[str, list[DeviceSample]] = {name: [] for name in lost}
    for device in devices_of([*whole, *series]):
        device.samples = samples.get((device.key.uuid, device.key.instance), ())
        found.setdefault(device.key.node, []).append(device)
    now_s = time.time()
    return Readings(
        tuple(
            NodeSamples(name, tuple(found[name]), now_s, "Prometheus has no new metrics of it" if name in lost else "")
            for name in sorted(found)
        )
    )


def _devices(answer: Sequence[_Named]) -> tuple[list[SeriesValues], dict[tuple[str, str], dict[str, str]]]:
    """The series that name holders, and the labels of each device without those of its holder."""
    series: list[SeriesValues] = []
    found: dict[tuple[str, str], dict[str, str]] = {}
    for one in answer:
        labels = _honored(one.metric)
        key = labels.get("UUID", ""), labels.get("GPU_I_ID", "")
        if key not in found:
            found[key] = {label: labels[label] for label in _OF_DEVICE if label in labels}
        # The value itself is not used but as a share: memory is read by device.
        if labels.get("pod") and has_data(value := _float(one.value[1])):
            series.append(SeriesValues(labels, {names.SHARE: value if labels.get("__name__") == names.SHARE else 1.0}))
    return series, found


def _honored(labels: dict[str, str]) -> dict[str, str]:
    """The exporter's labels, where the scrape renamed them; without the scrape's own `job`."""
    for name in _RENAMED:
        if _EXPORTED + name in labels:
            labels[name] = labels.pop(_EXPORTED + name)
    if "queue" not in labels:
        labels.pop("job", None)
    return labels
