# SPDX-License-Identifier: Apache-2.0
"""Profiling values of a GPU or GPU instance from NVML's GPM samples: Hopper and later.

Rules: a value is the mean between this sample and the one before, whatever their distance. The first reading takes two
samples at `_FIRST_S`. Samples that do not fit together (the driver was reloaded between
  them) have no means. After an error both samples are freed, and the next reading begins anew.
Source: NVML API reference, "GPM Functions"; percentages are 0 to 100, rates in MiB per second.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import pynvml
from msgspec import Struct

from dovetail.agent.exporter.field_values import plausible
from dovetail.agent.machine.nvml import INVALID_ARGUMENT, Nvml, NvmlError

_FIRST_S = 0.1


class GpmValues(Struct, frozen=True):
    """Values by metric, over the time since `since_s` of the monotonic clock; `failed` has NVML's result code of
    those that failed. The others have no data."""

    values: dict[int, float]
    failed: dict[int, int]
    since_s: float


class GpmSamples:
    """The samples of a GPU, or (`gi`) of one of its GPU instances."""

    def __init__(self, nvml: Nvml, handle: Any, gi: int | None = None) -> None:
        self._nvml, self._handle, self._gi = nvml, handle, gi
        self._last: Any = None
        self._spare: Any = None
        self._last_s = 0.0
        self._request = pynvml.c_nvmlGpmMetricsGet_t()

    def read(self, metrics: Sequence[int]) -> GpmValues:
        """Raises NvmlError."""
        try:
            if self._last is None:
                self._spare = self._nvml.call("nvmlGpmSampleAlloc")
                self._last = self._sample(self._nvml.call("nvmlGpmSampleAlloc"))
                self._last_s = time.monotonic()
                time.sleep(_FIRST_S)
            now = self._sample(self._spare)
            since_s, self._last_s = self._last_s, time.monotonic()
            request = self._request
            request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(metrics)
            request.sample1, request.sample2 = self._last, now
            for entry, metric in zip(request.metrics, metrics, strict=False):
                entry.metricId = metric
            self._spare, self._last = self._last, now
            try:
                self._nvml.call("nvmlGpmMetricsGet", request)
            except NvmlError as error:
                if error.code != INVALID_ARGUMENT:
                    raise
                return GpmValues({}, {}, since_s)
        except NvmlError:
            self.close()
            raise
        values, failed = {}, {}
        for number, metric in enumerate(metrics):
            entry = request.metrics[number]
            value = plausible(entry.value)
            if entry.nvmlReturn:
                failed[metric] = entry.nvmlReturn
            elif value is not None:
                values[metric] = value
        return GpmValues(values, failed, since_s)

    def _sample(self, into: Any) -> Any:
        if self._gi is None:
            return self._nvml.call("nvmlGpmSampleGet", self._handle, into)
        return self._nvml.call("nvmlGpmMigSampleGet", self._handle, self._gi, into)

    def close(self) -> None:
        """Free the samples, as long as the library that made them is open."""
        for sample in (self._last, self._spare):
            if sample is not None:
                with contextlib.suppress(NvmlError):
                    self._nvml.call("nvmlGpmSampleFree", sample)
        self._last = self._spare = None


def supported(nvml: Nvml, handle: Any) -> bool:
    """Whether NVML measures this GPU. Raises NvmlError if the driver has no such call."""
    return bool(nvml.call("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice)
