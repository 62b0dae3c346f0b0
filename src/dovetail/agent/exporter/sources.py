# SPDX-License-Identifier: Apache-2.0
"""Which source yields each kind of one device, and their values.

Rules
- A kind begins with the first of its alternatives. If the device does not support one, the next takes its place; after
  the last the kind is absent, with the reason of the last. All are tried anew after `_AGAIN_S`.
- Any other failure leaves the value out of this reading, and counts as an error of the call.
- A value that stands for no data leaves the kind out, too.
- Errors after which no other answer of the device counts are raised.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pynvml

from dovetail.agent.exporter.field_values import FieldBatch, plausible
from dovetail.agent.exporter.gpm import GpmSamples, supported
from dovetail.agent.exporter.kinds import CallSource, FieldSource, GpmSource, Kind, OwnSource, Source
from dovetail.agent.machine import nvml as codes
from dovetail.agent.machine.nvml import Nvml, NvmlError

GONE = frozenset(
    {codes.GPU_IS_LOST, codes.UNINITIALIZED, codes.DRIVER_NOT_LOADED, codes.MISMATCH, codes.RESET_REQUIRED}
)
UNSUPPORTED = frozenset(
    {
        codes.NOT_SUPPORTED,
        codes.FUNCTION_NOT_FOUND,
        codes.INVALID_ARGUMENT,
        codes.NO_PERMISSION,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_CORRUPTED_INFOROM,
    }
)
_AGAIN_S = 600.0
_MINUTE_S = 60.0
_WHY = {
    codes.NOT_SUPPORTED: "this GPU does not have it",
    codes.FUNCTION_NOT_FOUND: "the driver is too old",
    codes.NO_PERMISSION: "no permission",
    codes.INVALID_ARGUMENT: "driver or GPU do not know it",
    pynvml.NVML_ERROR_CORRUPTED_INFOROM: "the InfoROM is corrupted",
}
_PASSES = 4
"""More than the largest number of alternatives."""


class DeviceSources:
    """The sources of `kinds` for the device `handle`; `gi` is the GPU instance of a MIG instance, whose samples are
    read through its GPU `parent`. `links` is the number of NVLinks."""

    def __init__(
        self,
        nvml: Nvml,
        handle: Any,
        kinds: Iterable[Kind],
        *,
        links: int = 0,
        parent: Any = None,
        gi: int | None = None,
    ) -> None:
        self._nvml, self._handle, self._links = nvml, handle, links
        self._kinds = [kind for kind in kinds if kind.type != "label" and not isinstance(kind.sources[0], OwnSource)]
        self._samples = GpmSamples(nvml, handle if parent is None else parent, gi)
        self._gpm: bool | None = None
        self._gpm_device = handle if parent is None else parent
        self._slow: dict[str, float] = {}
        self.errors: Counter[str] = Counter()
        self.absent: dict[str, str] = {}
        """The kinds without a source, and why."""
        self._begin()
        self.since_s = 0.0
        """The begin of the time over which the profiling values are means."""

    def _begin(self) -> None:
        self._at = dict.fromkeys((kind.name for kind in self._kinds), 0)
        self._again_s = time.monotonic() + _AGAIN_S
        self._slow_s = 0.0
        self.absent = {}
        self._compile()

    def close(self) -> None:
        self._samples.close()

    def own(self, part: str) -> bool:
        """Whether a kind's remaining alternative is this part."""
        return part in self._own

    @property
    def gpm(self) -> bool:
        return bool(self._gpm)

    def read(self) -> dict[str, float]:
        """Raises NvmlError if the device or NVML as a whole fails."""
        if time.monotonic() >= self._again_s:
            self._begin()
        values: dict[str, float] = {}
        for number in range(_PASSES):
            refused: dict[str, str] = {}
            self._read_fields(values, refused)
            self._read_calls(values, refused)
            if not number:
                # Profiling values have no alternatives, and a second sample would end their mean too early.
                self._read_gpm(values, refused)
            if not refused:
                break
            for name, why in refused.items():
                self._at[name] += 1
                self.absent[name] = why
            self._compile()
        values.update(self._slow)
        return values

    def _compile(self) -> None:
        """Sort the chosen alternatives by how they are read."""
        fields: list[tuple[int, int]] = []
        self._field_kinds: list[tuple[str, float, int, int]] = []
        self._calls: dict[tuple[str, tuple[int, ...]], list[tuple[str, str | int | None, float]]] = defaultdict(list)
        self._slow_calls: dict[tuple[str, tuple[int, ...]], list[tuple[str, str | int | None, float]]]
        self._slow_calls = defaultdict(list)
        self._metrics: list[tuple[str, int, float]] = []
        self._own: set[str] = set()
        for kind in self._kinds:
            source: Source | None = next(iter(kind.sources[self._at[kind.name] :]), None)
            match source:
                case FieldSource():
                    wanted = source.fields
                    if source.per_link:
                        wanted = tuple((number, link) for number, _ in wanted for link in range(self._links))
                    if not wanted:
                        self.absent[kind.name] = "the GPU has no NVLinks"
                        continue
                    self._field_kinds.append((kind.name, source.factor, len(fields), len(fields) + len(wanted)))
                    fields.extend(wanted)
                case CallSource():
                    into = self._slow_calls if source.slow else self._calls
                    into[source.name, source.arguments].append((kind.name, source.part, source.factor))
                case GpmSource():
                    self._metrics.append((kind.name, source.metric, source.factor))
                case OwnSource():
                    self._own.add(source.part)
        self._batch = FieldBatch(fields) if fields else None
        self._slow_s = 0.0

    def _read_fields(self, values: dict[str, float], refused: dict[str, str]) -> None:
        if self._batch is None:
            return
        call = "nvmlDeviceGetFieldValues"
        try:
            found = list(self._batch.read(self._nvml, self._handle))
        except NvmlError as error:
            for name, *_ in self._field_kinds:
                self._refuse(name, error, refused)
            return
        for name, factor, start, end in self._field_kinds:
            total = 0.0
            for code, value in found[start:end]:
                if code:
                    self._refuse(name, NvmlError(call, code, _text(code)), refused)
                    break
                if value is None:
                    break
                total += value
            else:
                values[name] = total * factor

    def _read_calls(self, values: dict[str, float], refused: dict[str, str]) -> None:
        self._read_these(self._calls, values, refused)
        if time.monotonic() - self._slow_s >= _MINUTE_S or not self._slow_s:
            slow: dict[str, float] = {}
            self._read_these(self._slow_calls, slow, refused)
            self._slow, self._slow_s = slow, time.monotonic()

    def _read_these(
        self,
        calls: Mapping[tuple[str, tuple[int, ...]], list[tuple[str, str | int | None, float]]],
        values: dict[str, float],
        refused: dict[str, str],
    ) -> None:
        for (call, arguments), wanted in calls.items():
            try:
                answer = self._nvml.call(call, self._handle, *arguments)
            except NvmlError as error:
                for name, _, _ in wanted:
                    self._refuse(name, error, refused)
                continue
            for name, part, factor in wanted:
                if part is None:
                    value = plausible(answer)
                else:
                    value = plausible(answer[part] if isinstance(part, int) else getattr(answer, part))
                if value is not None:
                    values[name] = value * factor if factor != 1 else value

    def _read_gpm(self, values: dict[str, float], refused: dict[str, str]) -> None:
        if not self._metrics:
            return
        try:
            if self._gpm is None:
                self._gpm = supported(self._nvml, self._gpm_device)
            if not self._gpm:
                raise NvmlError("nvmlGpmQueryDeviceSupport", codes.NOT_SUPPORTED, "")
            found = self._samples.read([metric for _, metric, _ in self._metrics])
        except NvmlError as error:
            if error.code in UNSUPPORTED:
                self._gpm = False
            for name, _, _ in self._metrics:
                self._refuse(name, error, refused)
            return
        self.since_s = found.since_s
        for name, metric, factor in self._metrics:
            if metric in found.values:
                values[name] = found.values[metric] * factor
            elif code := found.failed.get(metric, 0):
                self._refuse(name, NvmlError("nvmlGpmMetricsGet", code, _text(code)), refused)

    def _refuse(self, name: str, error: NvmlError, refused: dict[str, str]) -> None:
        """Record why the kind has no value now. Raises the error if no other answer of the device counts."""
        if error.code in GONE:
            raise error
        if error.code in UNSUPPORTED:
            refused[name] = f"{error.call}: {_WHY.get(error.code) or error.text or _text(error.code)}"
        else:
            self.errors[error.call] += 1


def _text(code: int) -> str:
    return str(pynvml.NVMLError(code))
