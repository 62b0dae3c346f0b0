# SPDX-License-Identifier: Apache-2.0
"""Readings of GPUs and MIG instances under load, on the stand-in library."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from dovetail.agent.exporter.counter_list import default
from dovetail.agent.exporter.reading import GpuReading
from dovetail.agent.exporter.readings import DeviceReader
from dovetail.agent.machine.nvml import Nvml
from tools.standin import Standin
from tools.standin.fixture import MakeStandin

MIB = 1 << 20


def read(standin: Standin, index: int = 0, after: Callable[[], None] = lambda: None) -> GpuReading:
    """The second reading, so that means are over the time since the first."""
    with Nvml() as nvml:
        reader = DeviceReader(nvml, index, default().values())
        try:
            reader.read()
            after()
            standin.advance(10)
            return reader.read()
        finally:
            reader.close()


def test_a_load_is_read_in_dcgms_units(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    machine.stop_clock()
    machine.load(0, sm=0.8, graphics=0.9, tensor=0.5, dram=0.4, pcie_tx_mbps=100, nvlink_rx_mbps=300, power_w=650.0)
    values = read(machine).devices[0].values
    assert values["DCGM_FI_PROF_SM_ACTIVE"] == pytest.approx(0.8, abs=0.01)
    assert values["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] == pytest.approx(0.9, abs=0.01)
    assert values["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] == pytest.approx(0.5, abs=0.01)
    assert values["DCGM_FI_PROF_DRAM_ACTIVE"] == pytest.approx(0.4, abs=0.01)
    assert values["DCGM_FI_PROF_PCIE_TX_BYTES"] == pytest.approx(100 * MIB, rel=0.02)
    assert values["DCGM_FI_PROF_NVLINK_RX_BYTES"] == pytest.approx(300 * MIB, rel=0.02)
    assert values["DCGM_FI_DEV_GPU_UTIL"] == 90
    assert values["DCGM_FI_DEV_POWER_USAGE"] == pytest.approx(650.0)
    assert values["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] >= 650 * 10 * 1000


def test_a_mean_is_over_the_time_since_the_reading_before(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    machine.stop_clock()
    machine.load(0, sm=1.0)
    idle = read(machine, after=lambda: machine.load(0)).devices[0].values
    assert idle["DCGM_FI_PROF_SM_ACTIVE"] == pytest.approx(0.0, abs=0.01)


def test_mig_instances_have_their_memory_and_their_profiling_values(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    machine.divide(0, [("3g.40gb", 0), ("3g.40gb", 4)])
    one, other = machine.parts(0)
    machine.stop_clock()
    machine.load(0, gi=one.gi, sm=0.6)
    gpu, *instances = read(machine).devices
    assert not gpu.parent
    assert [(each.parent, each.profile, each.gi) for each in instances] == [
        (gpu.uuid, "3g.40gb", part.gi) for part in (one, other)
    ]
    active = {each.gi: each.values["DCGM_FI_PROF_SM_ACTIVE"] for each in instances}
    assert active == {one.gi: pytest.approx(0.6, abs=0.01), other.gi: pytest.approx(0.0, abs=0.01)}
    for each in instances:
        assert 0 < each.values["DCGM_FI_DEV_FB_TOTAL"] < gpu.values["DCGM_FI_DEV_FB_TOTAL"]
        assert each.uuid.startswith("MIG-")


def test_processes_have_memory_and_use(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    machine.process(0, pid=77, memory_mib=2048, sm=40)
    (process,) = read(machine).processes
    assert (process.pid, process.uuid, process.memory_bytes) == (77, machine.description.gpus[0].uuid, 2048 * MIB)
    assert process.sm_percent == 40


class Crowded(Nvml):
    """A thousand processes on each GPU, of which each second one works."""

    def call(self, name: str, *arguments: Any) -> Any:
        if name == "nvmlDeviceGetComputeRunningProcesses":
            return [SimpleNamespace(pid=pid, usedGpuMemory=None if pid % 3 else MIB) for pid in range(1000)]
        if name == "nvmlDeviceGetProcessUtilization":
            return [SimpleNamespace(pid=pid, smUtil=pid % 100, timeStamp=pid) for pid in range(0, 1000, 2)]
        return super().call(name, *arguments)


def test_a_thousand_processes_are_read(standin: MakeStandin) -> None:
    standin("dgx-h100")
    with Crowded() as nvml:
        processes = DeviceReader(nvml, 0, default().values()).read().processes
    assert {(each.pid, each.memory_bytes, each.sm_percent) for each in processes} == {
        (pid, None if pid % 3 else MIB, 0 if pid % 2 else pid % 100) for pid in range(1000)
    }


def test_sentinels_of_the_library_are_no_values(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    machine.field(0, 82, 0xFFFFFFFF, value_type=pynvml.NVML_VALUE_TYPE_UNSIGNED_INT)
    machine.metric(0, 2)  # NaN
    values = read(machine).devices[0].values
    assert "DCGM_FI_DEV_MEMORY_TEMP" not in values
    assert "DCGM_FI_PROF_SM_ACTIVE" not in values
    assert "DCGM_FI_PROF_DRAM_ACTIVE" in values
