# SPDX-License-Identifier: Apache-2.0
"""Which source yields a kind: alternatives, sentinels, errors. On a fake of the library."""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import Array
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from dovetail.agent.exporter.kinds import table
from dovetail.agent.exporter.sources import DeviceSources
from dovetail.agent.machine.nvml import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    TIMEOUT,
    Nvml,
    NvmlError,
)

POWER, TEMPERATURE, UTIL = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_GPU_UTIL"
REMAPPED, TOTAL = "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_NVLINK_ERROR_DL_CRC"
UINT, DOUBLE, ULL = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, pynvml.NVML_VALUE_TYPE_DOUBLE, 3


class FakeNvml(Nvml):
    """Answers `calls`, and field values `fields` as (type, value), by id or by (id, scope)."""

    def __init__(self, calls: dict[str, Any], fields: dict[Any, tuple[int, Any]] | None = None) -> None:
        self.calls, self.fields = calls, fields
        self.asked: list[str] = []

    def call(self, name: str, *arguments: Any) -> Any:
        self.asked.append(name)
        answer = self.calls.get(name, FUNCTION_NOT_FOUND)
        if isinstance(answer, Callable):  # type: ignore[arg-type]
            return answer(*arguments)
        if isinstance(answer, int) and answer in pynvml.NVMLError._errcode_to_string:
            raise NvmlError(name, answer, "fails")
        return answer

    def fill(self, handle: Any, values: Array[Any]) -> None:
        if self.fields is None:
            raise NvmlError("nvmlDeviceGetFieldValues", FUNCTION_NOT_FOUND, "fails")
        for value in values:
            kind, number = self.fields.get((value.fieldId, value.scopeId), self.fields.get(value.fieldId, (-1, 0)))
            value.nvmlReturn = NOT_SUPPORTED if kind < 0 else 0
            value.valueType = max(kind, 0)
            if kind == DOUBLE:
                value.value.dVal = number
            elif kind == UINT:
                value.value.uiVal = number
            else:
                value.value.ullVal = number


def sources(nvml: Nvml, *names: str, links: int = 0) -> DeviceSources:
    return DeviceSources(nvml, None, [table()[name] for name in names], links=links)


def test_values_have_the_unit_of_the_kind() -> None:
    nvml = FakeNvml({"nvmlDeviceGetPowerUsage": lambda _: 84500}, {82: (UINT, 40)})
    assert sources(nvml, POWER, TEMPERATURE).read() == {POWER: 84.5, TEMPERATURE: 40.0}


@pytest.mark.parametrize(
    "field", [(UINT, 0xFFFFFFFF), (ULL, 2**64 - 1), (ULL, 9223372036854775794), (DOUBLE, math.nan)]
)
def test_a_field_without_data_is_left_out(field: tuple[int, Any]) -> None:
    assert sources(FakeNvml({}, {82: field}), TEMPERATURE).read() == {}


@pytest.mark.parametrize("number", [0xFFFFFFFF, 2**64 - 1, 9223372036854775794, math.nan, math.inf, None, "N/A"])
def test_a_call_without_data_is_left_out(number: Any) -> None:
    rates = SimpleNamespace(gpu=number, memory=3)
    nvml = FakeNvml({"nvmlDeviceGetUtilizationRates": lambda _: rates})
    assert sources(nvml, UTIL, "DCGM_FI_DEV_MEM_COPY_UTIL").read() == {"DCGM_FI_DEV_MEM_COPY_UTIL": 3}


@pytest.mark.parametrize("fields", [None, {}])
def test_the_next_alternative_takes_the_place_of_what_is_not_supported(fields: dict[Any, Any] | None) -> None:
    nvml = FakeNvml({"nvmlDeviceGetRemappedRows": lambda _: (0, 0, 0, 1)}, fields)
    one = sources(nvml, REMAPPED)
    assert one.read() == {REMAPPED: 1}
    nvml.asked.clear()
    assert one.read() == {REMAPPED: 1}
    assert nvml.asked == ["nvmlDeviceGetRemappedRows"]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (FUNCTION_NOT_FOUND, "the driver is too old"),
        (NOT_SUPPORTED, "this GPU does not have it"),
        (NO_PERMISSION, "no permission"),
    ],
)
def test_what_no_alternative_has_is_absent_with_the_reason_and_not_read_again(code: int, why: str) -> None:
    nvml = FakeNvml({"nvmlDeviceGetRemappedRows": code}, {})
    one = sources(nvml, REMAPPED)
    assert one.read() == {}
    assert one.absent == {REMAPPED: f"nvmlDeviceGetRemappedRows: {why}"}
    nvml.asked.clear()
    assert one.read() == {}
    assert not nvml.asked
    assert not one.errors


def test_another_failure_counts_and_is_tried_again() -> None:
    nvml = FakeNvml({"nvmlDeviceGetPowerUsage": TIMEOUT})
    one = sources(nvml, POWER)
    assert one.read() == {}
    assert one.errors == {"nvmlDeviceGetPowerUsage": 1}
    nvml.calls["nvmlDeviceGetPowerUsage"] = lambda _: 1000
    assert one.read() == {POWER: 1.0}


def test_a_lost_gpu_raises() -> None:
    with pytest.raises(NvmlError):
        sources(FakeNvml({"nvmlDeviceGetPowerUsage": GPU_IS_LOST}), POWER).read()


def test_links_are_summed() -> None:
    nvml = FakeNvml({}, {(163, link): (ULL, 10 + link) for link in range(3)})
    assert sources(nvml, TOTAL, links=3).read() == {TOTAL: 33}
    alone = sources(nvml, TOTAL)
    assert alone.read() == {}
    assert alone.absent == {TOTAL: "the GPU has no NVLinks"}
