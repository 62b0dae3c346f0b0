# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's binding on drivers older than it."""

from __future__ import annotations

import pytest

from dovetail.agent.machine.nvml import FUNCTION_NOT_FOUND, Nvml, NvmlError
from tools.standin import DRIVERS
from tools.standin.fixture import MakeStandin

PROCESSES = "nvmlDeviceGetComputeRunningProcesses"


@pytest.mark.parametrize("branch", DRIVERS)
def test_processes_are_read_on_every_branch_of_the_driver(standin: MakeStandin, branch: str) -> None:
    machine = standin({"like": "dgx-a100", "branch": branch})
    machine.process(2, 77, memory_mib=10)
    with Nvml() as nvml:
        found = nvml.call(PROCESSES, nvml.call("nvmlDeviceGetHandleByIndex", 2))
    assert [(process.pid, process.usedGpuMemory >> 20) for process in found] == [(77, 10)]


def test_a_call_that_the_driver_has_in_no_version_is_an_error(standin: MakeStandin) -> None:
    standin({"like": "dgx-a100", "missing": [PROCESSES]})
    with Nvml() as nvml, pytest.raises(NvmlError) as refused:
        nvml.call(PROCESSES, nvml.call("nvmlDeviceGetHandleByIndex", 0))
    assert refused.value.code == FUNCTION_NOT_FOUND
