# SPDX-License-Identifier: Apache-2.0
"""Checks of the values that the exporter's sampler reads: what makes a GPU degraded, or worse, without an event.

Rules
- `CHECKS` is the table: what is compared, with which limit, and the action. A value that a GPU does not have is not
  checked.
- A counter that goes back has started again: its history begins anew.
- A check looks at the readings of a window. Until there are readings of `_ENOUGH` of the window it finds nothing.
Pure: from readings to findings. Sources: NVIDIA's XID catalogue (63: informational, 64: reset), NVIDIA GPU Memory Error
Management, thresholds of VESSL and gpud as published in 2026.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from dovetail.agent.exporter.reading import DeviceReading, GpuReading
from dovetail.agent.health.health import Finding
from dovetail.agent.health.xids import Action

_ENOUGH = 0.8
_PRUNE_S = 15.0
_NS_PER_S = 1e9
Comparison = Literal["grows", "is", "part", "rises", "busy", "count"]


class ValueCheck(Struct, frozen=True):
    """`kinds` are summed. The comparison:

    grows: more than `limit` were added in `window_s`.
    is: the value is `limit`, during all of `window_s`.
    part: the counter of nanoseconds grew by more than this part of `window_s`.
    rises: at least `limit` were added in `window_s`, and more than in the window before.
    busy: the value is at least `limit` during all of `window_s`, and NVML lists no process.
    count: the node has fewer GPUs than it should."""

    code: str
    comparison: Comparison
    kinds: tuple[str, ...]
    limit: float
    window_s: float
    unit: str
    action: Action
    message: str


_THROTTLED = (
    "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",
)
_NVLINK_ERRORS = (
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS",
    "DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS",
)  # fmt: skip

CHECKS = (
    ValueCheck("ecc-uncorrected", "grows", ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",), 0, 3600, "errors", Action.NOTE,
          "{value:g} uncorrected ECC errors in an hour"),
    ValueCheck("row-remap-pending", "is", ("DCGM_FI_DEV_ROW_REMAP_PENDING",), 1, 0, "", Action.NOTE,
          "a memory row waits to be remapped: reset the GPU when it is free"),
    ValueCheck("row-remap-failed", "is", ("DCGM_FI_DEV_ROW_REMAP_FAILURE",), 1, 0, "", Action.QUARANTINE_GPU,
          "a memory row could not be remapped: have the GPU replaced"),
    ValueCheck("throttling", "part", _THROTTLED, 0.05, 900, "of the time", Action.NOTE,
          "the hardware lowered the clocks for {value:.0%} of 15 min: check cooling and power"),
    ValueCheck("nvlink-errors", "rises", _NVLINK_ERRORS, 10, 900, "errors", Action.NOTE,
          "{value:g} NVLink errors in 15 min, more than in the 15 min before: check the links"),
    ValueCheck("fabric-not-ready", "is", ("dovetail_gpu_fabric_ready",), 0, 300, "", Action.NOTE,
          "the GPU has not joined its NVLink fabric for 5 min: check the fabric manager"),
    ValueCheck("busy-without-process", "busy", ("DCGM_FI_DEV_GPU_UTIL",), 50, 600, "percent", Action.NOTE,
          "the GPU is busy (at least {value:g} %) for 10 min, and NVML lists no process on it"),
    ValueCheck("gpus-missing", "count", (), 0, 0, "GPUs", Action.NOTE,
          "{value:g} GPUs fewer than expected are there"),
)  # fmt: skip
KINDS = frozenset(kind for check in CHECKS for kind in check.kinds)
"""The kinds of values that the checks need."""


class _History:
    """The values of one check of one GPU, oldest first, over twice its window."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._values: deque[tuple[float, float, bool]] = deque()

    def add(self, read_s: float, value: float, processes: bool, *, counts: bool) -> None:
        values = self._values
        if counts and values and value < values[-1][1]:
            values.clear()
        if not values or read_s > values[-1][0]:
            values.append((read_s, value, processes))
        # One value older than both windows stays: they begin there.
        while len(values) > 1 and values[1][0] <= read_s - 2 * self._window_s - _PRUNE_S:
            values.popleft()

    def windows(self) -> tuple[float | None, float | None]:
        """How much was added in the last window, and in the one before; None if the readings do not reach back."""
        end_s, end, _ = self._values[-1]
        middle = self._at(end_s - self._window_s)
        first = self._at(end_s - 2 * self._window_s)
        last = end - middle if middle is not None else None
        return last, middle - first if middle is not None and first is not None else None

    def _at(self, moment_s: float) -> float | None:
        """The value at about that time."""
        slack_s = self._window_s * (1 - _ENOUGH)
        near = [(abs(read_s - moment_s), value) for read_s, value, _ in self._values]
        distance_s, value = min(near)
        return value if distance_s <= slack_s else None

    def added(self) -> float:
        """How much was added since the oldest reading of the window."""
        end_s, end, _ = self._values[-1]
        return end - next(value for read_s, value, _ in self._values if read_s >= end_s - self._window_s)

    def throughout(self) -> list[tuple[float, bool]] | None:
        """The values of the window, and whether there were processes; None if the readings do not reach back."""
        end_s = self._values[-1][0]
        if end_s - self._values[0][0] < self._window_s * _ENOUGH:
            return None
        return [(value, used) for read_s, value, used in self._values if read_s >= end_s - self._window_s]


class Checks:
    """The checks of all GPUs of a node. `expected`: how many it should have, 0 if that is not configured."""

    def __init__(self, expected: int = 0) -> None:
        self._expected = expected
        self._histories: dict[tuple[str, str], _History] = {}

    def look(
        self, readings: Sequence[GpuReading], found: int | None, now_ms: int, *, sees_processes: bool = True
    ) -> tuple[Finding, ...]:
        """The findings now (Unix time in ms). `found`: the GPUs that are there, None before NVML has answered.
        `sees_processes`: NVML lists the processes of the host."""
        return (*self._of_gpus(readings, now_ms, sees_processes), *self._of_node(found, now_ms))

    def _of_node(self, found: int | None, now_ms: int) -> Iterator[Finding]:
        if found is None:
            return
        for check in CHECKS:
            if check.comparison == "count" and self._expected - found > check.limit:
                yield _finding("", check, self._expected - found, now_ms)

    def _of_gpus(self, readings: Iterable[GpuReading], now_ms: int, sees_processes: bool) -> Iterator[Finding]:
        for reading in readings:
            device = reading.devices[0]
            for check in CHECKS:
                value = _value(device, check)
                if value is None or (check.comparison == "busy" and not sees_processes):
                    self._histories.pop((device.uuid, check.code), None)
                    continue
                history = self._histories.setdefault((device.uuid, check.code), _History(check.window_s))
                counts = check.comparison in ("grows", "part", "rises")
                history.add(reading.read_s, value, bool(reading.processes), counts=counts)
                amount = _exceeds(check, history)
                if amount is not None:
                    yield _finding(device.uuid, check, amount, now_ms)


def _value(device: DeviceReading, check: ValueCheck) -> float | None:
    """The sum of the kinds that the GPU has; None if it has none of them."""
    found = [device.values[kind] for kind in check.kinds if kind in device.values]
    return sum(found) if found else None


def _exceeds(check: ValueCheck, history: _History) -> float | None:
    """The amount that exceeds the limit; None if none does."""
    match check.comparison:
        case "grows":
            added = history.added()
            return added if added > check.limit else None
        case "part":
            last, _ = history.windows()
            part = last / (check.window_s * _NS_PER_S) if last is not None else 0.0
            return part if part > check.limit else None
        case "rises":
            last, before = history.windows()
            return last if last is not None and last >= check.limit and last > (before or 0) else None
        case "is":
            window = history.throughout()
            return check.limit if window and all(value == check.limit for value, _ in window) else None
        case "busy":
            window = history.throughout()
            idle = not window or any(used or value < check.limit for value, used in window)
            return None if idle else min(value for value, _ in window or ())
        case _:
            return None


def _finding(uuid: str, check: ValueCheck, amount: float, now_ms: int) -> Finding:
    return Finding(uuid, check.code, check.action, check.message.format(value=amount), now_ms)
