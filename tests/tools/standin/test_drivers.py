# SPDX-License-Identifier: Apache-2.0
"""Machines with older drivers lack what these lacked: calls, field values and GPM metrics."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pynvml as nvml
import pytest

from tools.standin import DRIVERS, HostError
from tools.standin.fixture import MakeStandin


def first() -> nvml.c_nvmlDevice_t:
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(0)


def has(call: Callable[[], Any]) -> bool:
    """Whether the driver has the call, or the id that it asks for."""
    try:
        return call() is not False
    except nvml.NVMLError_FunctionNotFound:
        return False


CALLS: dict[str, tuple[int, Callable[[nvml.c_nvmlDevice_t], Any]]] = {
    "utilization": (470, nvml.nvmlDeviceGetUtilizationRates),
    "power": (470, nvml.nvmlDeviceGetPowerUsage),
    "processes of 470": (470, nvml.nvmlDeviceGetComputeRunningProcesses_v2),
    "processes": (515, nvml.nvmlDeviceGetComputeRunningProcesses_v3),
    "reserved memory": (515, lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2)),
    "GPM": (525, nvml.nvmlGpmQueryDeviceSupport),
    "power now": (525, lambda gpu: known(gpu, nvml.NVML_FI_DEV_POWER_INSTANT)),
    "event reasons": (535, nvml.nvmlDeviceGetCurrentClocksEventReasons),
    "JPEG": (535, nvml.nvmlDeviceGetJpgUtilization),
    "PCIe bytes": (550, lambda gpu: known(gpu, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES)),
    "margin": (570, nvml.nvmlDeviceGetMarginTemperature),
    "recovery action": (570, lambda gpu: known(gpu, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)),
    "thermal slowdown": (580, lambda gpu: known(gpu, nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN)),
}


def known(gpu: nvml.c_nvmlDevice_t, field: int) -> bool:
    (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [field])
    return bool(answer.nvmlReturn != nvml.NVML_ERROR_INVALID_ARGUMENT)


@pytest.mark.parametrize("branch", DRIVERS)
def test_a_branch_has_what_came_with_it_and_before(standin: MakeStandin, branch: str) -> None:
    machine = standin({"like": "dgx-h100", "branch": branch})
    gpu = first()
    assert nvml.nvmlSystemGetDriverVersion() == machine.description.driver
    assert machine.description.driver.startswith(f"{branch}.")
    assert {name for name, (_, call) in CALLS.items() if has(lambda call=call: call(gpu))} == {
        name for name, (since, _) in CALLS.items() if since <= int(branch)
    }


def test_each_branch_has_more_than_the_one_before(standin: MakeStandin) -> None:
    missing = [set(standin({"like": "dgx-h100", "branch": branch}).description.missing) for branch in DRIVERS]
    assert all(later < before for before, later in pairwise(missing))
    assert missing[-1] == set()
    with pytest.raises(HostError, match="did you mean 470"):
        standin({"like": "dgx-h100", "branch": "471"})


def test_metrics_that_came_later_are_none_to_an_older_driver(standin: MakeStandin) -> None:
    codes = {}
    for branch in ("570", "580"):
        machine = standin({"like": "gh200", "branch": branch})
        machine.stop_clock()
        gpu = first()
        one = nvml.nvmlGpmSampleGet(gpu, nvml.nvmlGpmSampleAlloc())
        machine.advance(1)
        other = nvml.nvmlGpmSampleGet(gpu, nvml.nvmlGpmSampleAlloc())
        get = nvml.c_nvmlGpmMetricsGet_t()
        get.version, get.numMetrics, get.sample1, get.sample2 = nvml.NVML_GPM_METRICS_GET_VERSION, 2, one, other
        get.metrics[0].metricId, get.metrics[1].metricId = 2, nvml.NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC
        nvml.nvmlGpmMetricsGet(get)
        codes[branch] = [entry.nvmlReturn for entry in get.metrics[:2]]
    assert codes == {"570": [0, nvml.NVML_ERROR_INVALID_ARGUMENT], "580": [0, 0]}
