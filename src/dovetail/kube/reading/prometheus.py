# SPDX-License-Identifier: Apache-2.0
"""The GPUs of all nodes from a Prometheus that scrapes their exporters, in a fixed number of queries.

Rules
- Activities are means over the window (`avg_over_time`), of SM activity also the samples in it; memory, temperature and
  limits are the last values. Counters stand in for rates that an exporter does not have.
- Queries are by device, so that an answer has a few labels per GPU; one query has the names of device and holders. The
  scrape's own `job` is left out, as the recording rules do; `exported_` labels are read where labels were not honored.
- A node that had metrics in the last hour and has none now is listed with a fault.
- An answer of more than MOST_BYTES is not read. Redirects are not followed: a token goes to no other server.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api.errors import KubeError
from dovetail.kube.reading import gpu_samples as names
from dovetail.kube.reading.exposition import SeriesValues, has_data
from dovetail.kube.reading.gpu_exporters import NodeSamples, Readings
from dovetail.kube.reading.gpu_samples import DeviceSample, devices_of

T = TypeVar("T")
WINDOW_S, STEP_S = 60, 15
MOST_BYTES = 128 << 20
_AT_ONCE = 4
_TIMEOUT_S = 30.0
_BY = "by (UUID, GPU_I_ID)"
_LAST = (
    names.MEMORY_USED, names.MEMORY_FREE, names.MEMORY_RESERVED, names.MEMORY_TOTAL, names.TEMPERATURE,
    names.POWER_LIMIT, names.POWER_MANAGEMENT_LIMIT, names.HEALTHY,
)  # fmt: skip
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


def _mean(metric: str) -> str:
    return f"max {_BY} (avg_over_time({metric}[{WINDOW_S}s]))"


def _rate(metric: str) -> str:
    return f"max {_BY} (rate({metric}[{WINDOW_S}s]))"


_VALUES = {name: _mean(name) for name in _MEANS} | {
    names.PCIE_SENT: f"{_mean(names.PCIE_SENT)} + {_mean(names.PCIE_RECEIVED)} "
    f"or {_rate(names.PCIE_SENT_TOTAL)} + {_rate(names.PCIE_RECEIVED_TOTAL)}",
    names.NVLINK_SENT: f"{_mean(names.NVLINK_SENT)} + {_mean(names.NVLINK_RECEIVED)} "
    f"or {_rate(names.NVLINK_TOTAL_KIB)} * 1024",
}
_DEVICES = f"{names.SHARE} or ({names.MEMORY_USED} unless on (UUID) {names.SHARE})"
_LAST_VALUES = f'max by (__name__, UUID, GPU_I_ID) ({{__name__=~"{"|".join(_LAST)}"}})'
_SM = f"max {_BY} ({names.SM})[{WINDOW_S}s:{STEP_S}s]"
_STATES = f"max by (state, UUID, GPU_I_ID) ({names.HEALTH_STATE}) == 1"
_PROCESSES = f"sum by (holder, UUID, GPU_I_ID) ({names.PROCESSES}) > 0"
_PODS = (
    f'max by (__name__, UUID, GPU_I_ID, namespace, pod) ({{__name__=~"{names.POD_MEMORY}|{names.POD_SM}"}} '
    f"and on (UUID, GPU_I_ID) {_SHARED})"
)
_GONE = "group by (hostname) (last_over_time(dovetail_gpu_found[1h])) unless on (hostname) dovetail_gpu_found"


class PrometheusError(KubeError):
    """The server cannot be reached, or refuses a query; the text has the reason."""


class PrometheusAccess(Struct, frozen=True):
    """A server and how to log in: a file with a bearer token (read again for each reading, as tokens rotate), and one
    with the certificates of its authority. `user:password@` in the URL is basic authentication."""

    url: str
    token_file: str = ""
    ca_file: str = ""

    @property
    def shown(self) -> str:
        """The URL without a password."""
        url = urlsplit(self.url)
        return url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()


class _Series(Struct):
    """A series of an answer: `value` of an instant vector, `values` of a matrix, as pairs of time and text."""

    metric: dict[str, str]
    value: tuple[float, str] = (0.0, "NaN")
    values: list[tuple[float, str]] = []


class _Data(Struct, frozen=True):
    result: tuple[_Series, ...] = ()


class _Answer(Struct):
    status: str = ""
    data: _Data = _Data()
    error: str = ""


class Prometheus:
    """Reads a Prometheus again and again. `async with Prometheus(access) as prometheus:`"""

    def __init__(self, access: PrometheusAccess, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._access = access
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        """Raises PrometheusError if the certificates cannot be read."""
        tls: ssl.SSLContext | bool = True
        if self._access.ca_file:
            try:
                tls = ssl.create_default_context(cafile=self._access.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise PrometheusError(f"{self._access.ca_file}: no certificates: {error}") from error
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def read(self) -> Readings:
        """All nodes. Raises PrometheusError."""
        headers = self._headers()
        expressions = [_DEVICES, _LAST_VALUES, _SM, _STATES, _PROCESSES, _PODS, _GONE, *_VALUES.values()]
        tasks = [asyncio.ensure_future(self._query(one, headers)) for one in expressions]
        try:
            devices, last, sm, states, processes, pods, gone, *means = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        parts = _Parts(devices)
        for one in last:
            parts.add(one, one.metric.get("__name__", ""))
        for name, answer in zip(_VALUES, means, strict=True):
            for one in answer:
                parts.add(one, name)
        for one in states:
            parts.add(one, names.HEALTH_STATE)
        for one in processes:
            parts.add(one, names.PROCESSES)
        for one in pods:
            parts.add(one, one.metric.get("__name__", ""))
        lost = [one.metric.get("hostname", "") for one in gone]
        return Readings(parts.nodes(_samples(sm), lost))

    def _headers(self) -> dict[str, str]:
        if not self._access.token_file:
            return {}
        try:
            return {"Authorization": f"Bearer {Path(self._access.token_file).read_text().strip()}"}
        except (OSError, UnicodeError) as error:
            raise PrometheusError(f"{self._access.token_file}: no token: {error}") from error

    async def _query(self, expression: str, headers: Mapping[str, str]) -> tuple[_Series, ...]:
        url = f"{self._access.url.rstrip('/')}/api/v1/query"
        try:
            async with (
                self._free,
                self._session.post(url, data={"query": expression}, headers=headers, allow_redirects=False) as reply,
            ):
                body = bytearray()
                async for chunk in reply.content.iter_chunked(1 << 16):
                    body += chunk
                    if len(body) > MOST_BYTES:
                        raise PrometheusError(f"an answer has more than {MOST_BYTES} bytes")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            reason = f"no answer within {self._timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            raise PrometheusError(f"cannot be read: {reason}") from error
        try:
            answer = decode_json(bytes(body), _Answer)
        except JsonError as error:
            raise PrometheusError(f"answers {reply.status}, and not as a Prometheus does: {error}") from error
        if answer.status != "success":
            raise PrometheusError(f"refuses a query ({reply.status}): {answer.error}")
        return answer.data.result


def _samples(series: tuple[_Series, ...]) -> dict[tuple[str, str], tuple[float, ...]]:
    """The samples of each device in percent, by UUID and instance."""
    found = {}
    for one in series:
        values = tuple(100 * value for value in map(_float, (text for _, text in one.values)) if has_data(value))
        found[one.metric.get("UUID", ""), one.metric.get("GPU_I_ID", "")] = values
    return found


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


class _Parts:
    """The series of all answers, joined by device."""

    def __init__(self, devices: tuple[_Series, ...]) -> None:
        self._series: list[SeriesValues] = []
        self._labels: dict[tuple[str, str], dict[str, str]] = {}
        self._values: dict[tuple[str, str], dict[str, float]] = {}
        for one in devices:
            labels = _honored(one.metric)
            key = labels.get("UUID", ""), labels.get("GPU_I_ID", "")
            self._labels.setdefault(key, {k: v for k, v in labels.items() if k not in ("pod", "namespace")})
            value = _float(one.value[1])
            if has_data(value):
                self._series.append(SeriesValues(labels, {labels.get("__name__", ""): value}))

    def add(self, one: _Series, name: str) -> None:
        """A value of a device, or of a pod, process or state of it."""
        key = one.metric.get("UUID", ""), one.metric.get("GPU_I_ID", "")
        labels, value = self._labels.get(key), _float(one.value[1])
        if labels is None or not has_data(value):
            return
        if len(one.metric) - ("__name__" in one.metric) - ("GPU_I_ID" in one.metric) > 1:
            self._series.append(SeriesValues(labels | one.metric, {name: value}))
        else:
            self._values.setdefault(key, {})[name] = value

    def nodes(self, sm: Mapping[tuple[str, str], tuple[float, ...]], lost: list[str]) -> tuple[NodeSamples, ...]:
        """The devices by node. The nodes `lost` have none."""
        now_s = time.time()
        # The values of a device first: those of its holders are from the processes.
        whole = [SeriesValues(self._labels[key], values) for key, values in self._values.items()]
        found: dict[str, list[DeviceSample]] = {name: [] for name in lost}
        for device in devices_of([*whole, *self._series]):
            device.samples = sm.get((device.key.uuid, device.key.instance), ())
            found.setdefault(device.key.node, []).append(device)
        return tuple(
            NodeSamples(name, tuple(found[name]), now_s, "Prometheus has no new metrics of it" if name in lost else "")
            for name in sorted(found)
        )


def _honored(labels: dict[str, str]) -> dict[str, str]:
    """The exporter's labels, where the scrape renamed them; without the scrape's own `job`."""
    for name in [name for name in labels if name.startswith(_EXPORTED)]:
        labels[name.removeprefix(_EXPORTED)] = labels.pop(name)
    if "queue" not in labels:
        labels.pop("job", None)
    return labels
