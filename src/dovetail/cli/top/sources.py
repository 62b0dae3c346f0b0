# SPDX-License-Identifier: Apache-2.0
"""Where `dovetail top` reads: the exporters of the nodes through the API server, or a Prometheus."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from msgspec.structs import replace

from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.api.errors import Forbidden, KubeError
from dovetail.kube.api.rights import missing_right
from dovetail.kube.objects.views import GPU_HOLDERS
from dovetail.kube.reading.gpu_exporters import GpuExporters
from dovetail.kube.reading.prometheus import WINDOW_S, Prometheus
from dovetail.kube.reading.prometheus_api import PrometheusAccess, PrometheusError
from dovetail.kube.reading.views import NoSuchObject, NoView, ViewRequest, read_view
from dovetail.views.engines import loads_of
from dovetail.views.held_types import HeldGpus
from dovetail.views.top_holders import reading_of
from dovetail.views.top_rows import TopReading, TopWindow

Read = Callable[[], Awaitable[TopReading]]


class TopSource(Protocol):
    """A source by name, read each `interval_s` into `window`. `opened` is the function that reads it; both raise
    KubeError."""

    name: str
    interval_s: float
    window: TopWindow

    def opened(self) -> AbstractAsyncContextManager[Read]: ...


class ExporterSource:
    """The exporters of a cluster; for users that may not read them, the running scheduler, which knows the holders of
    GPUs. The first reading waits `first_s` for slow exporters, later ones until the next."""

    interval_s = 2.0
    first_s = 3.0

    def __init__(self, config: ClusterConfig) -> None:
        self.name = config.server
        self.window = TopWindow()
        self._config = config

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Read]:
        patience_s = self.first_s
        refused: Forbidden | None = None

        async def read() -> TopReading:
            nonlocal patience_s, refused
            if refused is not None:
                return await _holders(self._config, refused)
            try:
                readings = await exporters.read(patience_s)
            except Forbidden as error:
                refused = error
                return await _holders(self._config, refused)
            patience_s = self.interval_s
            self.window.add(readings.nodes)
            return self.window.reading(time.time(), self.name, readings.notes)

        async with GpuExporters(self._config) as exporters:
            yield read


async def _holders(config: ClusterConfig, refused: Forbidden) -> TopReading:
    """What the running scheduler answers. Raises KubeError, with both reasons where it does not."""
    try:
        document = await read_view(config, ViewRequest(GPU_HOLDERS, config.namespace))
        answer = decode_json(document.answer, HeldGpus)
    except (NoView, NoSuchObject, JsonError) as error:
        raise KubeError(f"{missing_right(refused)}; {error}") from error
    return reading_of(answer, f"the scheduler of {config.server}")


class PrometheusSource:
    """A Prometheus, whose values are means already. It has the metrics of inference engines, too; without them GPUs
    are still shown."""

    interval_s = 5.0

    def __init__(self, access: PrometheusAccess) -> None:
        self.name = access.shown
        self.window = TopWindow(WINDOW_S, averaged=True)
        self._access = access

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Read]:
        async def read() -> TopReading:
            readings = await prometheus.read()
            self.window.add(readings.nodes)
            reading = self.window.reading(time.time(), self.name, readings.notes)
            try:
                return replace(reading, engines=loads_of(await prometheus.engines()))
            except PrometheusError as error:
                return replace(reading, notes=(*reading.notes, f"the metrics of inference engines: {error}"))

        async with Prometheus(self._access) as prometheus:
            yield read
