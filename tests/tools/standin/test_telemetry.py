# SPDX-License-Identifier: Apache-2.0
"""What a GPU reports of itself follows from its load, and what it counts grows with the time of the machine."""

import math
import time
from concurrent.futures import ThreadPoolExecutor

import pynvml as nvml
import pytest

from tests.patience import PATIENCE_S
from tools.standin import HOSTS, HostError
from tools.standin.fixture import MakeStandin


def first() -> nvml.c_nvmlDevice_t:
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(0)


def field(gpu: nvml.c_nvmlDevice_t, number: int, scope: int = 0) -> tuple[int, int, int | float | None]:
    """The return code, the type and the value of a field value."""
    (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [(number, scope)])
    names = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    failed = answer.nvmlReturn != nvml.NVML_SUCCESS
    return answer.nvmlReturn, answer.valueType, None if failed else getattr(answer.value, names[answer.valueType])


@pytest.mark.parametrize("host", HOSTS)
def test_an_idle_gpu_reads_as_a_real_one(standin: MakeStandin, host: str) -> None:
    machine = standin(host)
    gpu, product = first(), machine.description.gpus[0].product
    assert nvml.nvmlDeviceGetPowerUsage(gpu) == round(product["idle_w"] * 1000)
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    assert (rates.gpu, rates.memory) == (0, 0)
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) == nvml.nvmlClocksEventReasonGpuIdle
    assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) == product["idle_clock"]
    assert nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM) == product["sm_clock_mhz"]
    limits = [nvml.nvmlDeviceGetTemperatureThreshold(gpu, threshold) for threshold in (3, 1, 0)]
    assert nvml.nvmlDeviceGetTemperature(gpu, 0) < limits[0] < limits[1] < limits[2]
    assert nvml.nvmlDeviceGetTemperatureV(gpu, 0) == nvml.nvmlDeviceGetTemperature(gpu, 0)


def test_readings_follow_from_the_load(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    power, temperatures = [], []
    for sm in (0.0, 0.25, 0.5, 1.0):
        machine.load(0, sm=sm, tensor=sm, dram=sm / 2)
        rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
        assert (rates.gpu, rates.memory) == (round(sm * 100), round(sm * 50))
        power.append(nvml.nvmlDeviceGetPowerUsage(gpu))
        temperatures.append(nvml.nvmlDeviceGetTemperature(gpu, 0))
    assert power == sorted(set(power))
    assert temperatures == sorted(set(temperatures))
    assert nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM) == 1980
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) == 0
    machine.load(0, sm=1, power_w=700, temperature_c=90)
    hot = nvml.nvmlClocksEventReasonHwSlowdown | nvml.nvmlClocksEventReasonHwThermalSlowdown
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu) == nvml.nvmlClocksEventReasonSwPowerCap | hot
    assert nvml.nvmlDeviceGetMarginTemperature(gpu) == -3
    with pytest.raises(ValueError, match=r"tensor: 1\.5 is neither"):
        machine.load(0, tensor=1.5)
    machine.load(0)
    assert nvml.nvmlDeviceGetPowerUsage(gpu) == power[0]


def test_counters_grow_at_the_rates_of_their_time(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    machine.stop_clock()
    machine.set(0, energy_mj=0)
    machine.load(0, sm=1, power_w=500, pcie_tx_mbps=2, nvlink_tx_mbps=18, nvlink_rx_mbps=9)
    machine.advance(10)
    machine.load(0, sm=1, power_w=700, temperature_c=92)
    machine.advance(5)
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) == 500_000 * 10 + 700_000 * 5
    assert field(gpu, nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION) == (0, 3, 8_500_000)
    assert field(gpu, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES) == (0, 3, 20 << 20)
    whole = nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF
    assert field(gpu, *whole) == (0, 3, 180 * 1024)
    assert field(gpu, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 17) == (0, 3, 10 * 1024)
    assert field(gpu, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 3) == (0, 3, 5 * 1024)
    thermal = nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_THERMAL).violationTime
    power = nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_POWER).violationTime
    assert (thermal, power) == (5 * 10**9, 5 * 10**9)
    assert field(gpu, nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN) == (0, 3, 5 * 10**9)
    machine.link(0, 17, up=False)
    machine.load(0, nvlink_tx_mbps=17)
    machine.advance(1)
    assert field(gpu, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 17) == (0, 3, 10 * 1024)
    assert field(gpu, *whole) == (0, 3, (180 + 17) * 1024)
    machine.reload()
    with pytest.raises(nvml.NVMLError_Unknown):
        nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    nvml.nvmlShutdown()
    gpu = first()
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) == 0
    assert field(gpu, *whole) == (0, 3, 0)


def test_counters_grow_by_themselves(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    before = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    for _ in range(2_000_000):
        if nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) > before:
            break
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) > before
    machine.stop_clock()
    before = nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    machine.advance(1)
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) - before == nvml.nvmlDeviceGetPowerUsage(gpu)


def test_every_field_value_has_its_own_answer(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    wanted = [nvml.NVML_FI_DEV_MEMORY_TEMP, 0, nvml.NVML_FI_DEV_RETIRED_SBE, nvml.NVML_FI_MAX, nvml.NVML_FI_DEV_ENERGY]
    codes = [answer.nvmlReturn for answer in nvml.nvmlDeviceGetFieldValues(gpu, wanted)]
    invalid, missing = nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_SUPPORTED
    assert codes == [0, invalid, missing, invalid, 0]
    assert field(gpu, nvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT) == (0, nvml.NVML_VALUE_TYPE_SIGNED_INT, -8)
    assert field(gpu, nvml.NVML_FI_DEV_POWER_INSTANT, 1)[0] == missing
    assert field(gpu, nvml.NVML_FI_DEV_POWER_INSTANT) == (0, 1, 68_920)
    assert field(gpu, nvml.NVML_FI_DEV_NVLINK_GET_STATE, 18)[0] == invalid
    machine.field(0, nvml.NVML_FI_DEV_MEMORY_TEMP, math.nan, value_type=nvml.NVML_VALUE_TYPE_DOUBLE)
    assert math.isnan(field(gpu, nvml.NVML_FI_DEV_MEMORY_TEMP)[2] or 0)
    machine.field(0, nvml.NVML_FI_DEV_MEMORY_TEMP, 2**63 - 1)
    assert field(gpu, nvml.NVML_FI_DEV_MEMORY_TEMP)[2] == 2**63 - 1
    machine.field(0, nvml.NVML_FI_DEV_ENERGY, code=nvml.NVML_ERROR_UNKNOWN)
    assert field(gpu, nvml.NVML_FI_DEV_ENERGY)[0] == nvml.NVML_ERROR_UNKNOWN
    machine.clear()
    assert field(gpu, nvml.NVML_FI_DEV_MEMORY_TEMP) == (0, 1, 37)


def test_errors_are_counted_where_they_are(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    machine.ecc(0, corrected=4)
    machine.ecc(0, uncorrected=1, location=nvml.NVML_MEMORY_LOCATION_SRAM)
    assert nvml.nvmlDeviceGetMemoryErrorCounter(gpu, 0, 0, nvml.NVML_MEMORY_LOCATION_DRAM) == 4
    assert nvml.nvmlDeviceGetMemoryErrorCounter(gpu, 1, 1, nvml.NVML_MEMORY_LOCATION_SRAM) == 1
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetMemoryErrorCounter(gpu, 0, 0, nvml.NVML_MEMORY_LOCATION_L1_CACHE)
    fields = (nvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, nvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL)
    assert [field(gpu, number) for number in fields] == [(0, 3, 4), (0, 3, 1)]
    machine.link_errors(0, 2, crc_flit=3, replay=1)
    machine.link_errors(0, 7, crc_flit=2)
    assert nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, 2, nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT) == 3
    totals = [nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L7]
    assert [field(gpu, number)[2] for number in totals] == [5, 2]
    machine.reload()
    nvml.nvmlShutdown()
    gpu = first()
    assert [nvml.nvmlDeviceGetTotalEccErrors(gpu, 0, counter) for counter in (0, 1)] == [0, 4]
    assert nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, 2, nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT) == 0


def test_old_cards_retire_pages_and_new_ones_remap_rows(standin: MakeStandin) -> None:
    machine = standin("dgx1-v100")
    gpu = first()
    machine.set(0, retired_double=2, retired_single=1, retired_pending=1)
    cause = nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
    assert len(nvml.nvmlDeviceGetRetiredPages_v2(gpu, cause)) == len(nvml.nvmlDeviceGetRetiredPages(gpu, cause)) == 2
    assert nvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu) == 1
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetRemappedRows(gpu)
    standin("dgx-a100").set(0, rows_corrected=3)
    gpu = first()
    assert nvml.nvmlDeviceGetRemappedRows(gpu) == (3, 0, 0, 0)
    assert nvml.nvmlDeviceGetRowRemapperHistogram(gpu).max == 640
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetRetiredPages(gpu, cause)


def test_processes_are_listed_by_mode_and_instance(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    machine.process(0, 10, memory_mib=100, sm=30)
    machine.process(0, 11, memory_mib=None)
    machine.process(0, 12, mode=nvml.NVML_PROCESS_MODE_GRAPHICS)
    machine.process(0, 10, memory_mib=200, sm=40)
    seen = {each.pid: each.usedGpuMemory for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
    assert seen == {10: 200 << 20, 11: None}
    assert [each.pid for each in nvml.nvmlDeviceGetGraphicsRunningProcesses(gpu)] == [12]
    assert [(each.pid, each.smUtil) for each in nvml.nvmlDeviceGetProcessUtilization(gpu, 0)] == [(10, 40)]
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetProcessUtilization(gpu, 2**62)
    machine.divide(1, [("1g.10gb", 0), ("1g.10gb", 1)])
    second = nvml.nvmlDeviceGetHandleByIndex(1)
    one = machine.parts(1)[1]
    machine.process(1, 20, memory_mib=5, gi=one.gi, ci=0)
    (process,) = nvml.nvmlDeviceGetComputeRunningProcesses(second)
    assert (process.pid, process.gpuInstanceId, process.computeInstanceId) == (20, one.gi, 0)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetProcessUtilization(second, 0)


def test_pcie_throughput_takes_its_time_and_follows_the_load(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    machine.load(0, pcie_tx_mbps=3, pcie_rx_mbps=5)
    before = time.monotonic()
    assert nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES) == 3 * 1024
    assert time.monotonic() - before >= 0.02
    assert nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES) == 5 * 1024


def test_a_hanging_call_hangs_its_gpu_alone_until_it_is_cleared(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    nvml.nvmlInit()
    gpus = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(2)]
    machine.hang("nvmlDeviceGetPowerUsage", gpu=0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(nvml.nvmlDeviceGetPowerUsage, gpus[0])
        assert nvml.nvmlDeviceGetPowerUsage(gpus[1]) == 68_920
        machine.process(1, 5)
        assert nvml.nvmlDeviceGetTemperature(gpus[0], 0) == 31
        assert not waiting.done()
        machine.clear()
        assert waiting.result(PATIENCE_S) == 68_920


def test_what_a_load_is_not_is_refused(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    with pytest.raises(ValueError, match="nvlink_tx: no part of a load"):
        machine.load(0, nvlink_tx=5)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="dram: nan is neither"):
        machine.load(0, dram=math.nan)
    with pytest.raises(HostError, match="has no instance 3"):
        machine.load(0, gi=3)
    machine.divide(0, [("3g.40gb", 0)])
    gi = machine.parts(0)[0].gi
    with pytest.raises(HostError, match="is divided"):
        machine.load(0, sm=1)
    gpu = first()
    machine.load(0, gi=gi, sm=1)
    assert nvml.nvmlDeviceGetPowerUsage(gpu) > 68_920
    machine.load(0)
    assert nvml.nvmlDeviceGetPowerUsage(gpu) == 68_920


def test_an_instance_has_its_part_of_the_bar1(standin: MakeStandin) -> None:
    machine = standin("dgx-a100")
    machine.divide(0, [("3g.20gb", 0), ("1g.5gb", 4)])
    gpu = first()
    whole = nvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total
    parts = [nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number) for number in range(2)]
    assert sorted(nvml.nvmlDeviceGetBAR1MemoryInfo(part).bar1Total for part in parts) == [whole // 8, whole // 2]


def test_encoders_have_sessions_and_a_divided_gpu_has_none(standin: MakeStandin) -> None:
    machine = standin("pcie-l40s")
    gpu = first()
    machine.set(0, encoder_sessions=2, encoder_fps=60, encoder_latency_us=900, capture_sessions=1)
    assert nvml.nvmlDeviceGetEncoderStats(gpu) == (2, 60, 900)
    assert nvml.nvmlDeviceGetFBCStats(gpu).sessionsCount == 1
    machine.load(0, encoder=0.25, decoder=0.5, jpeg=0.75, ofa=1)
    calls = [
        nvml.nvmlDeviceGetEncoderUtilization,
        nvml.nvmlDeviceGetDecoderUtilization,
        nvml.nvmlDeviceGetJpgUtilization,
        nvml.nvmlDeviceGetOfaUtilization,
    ]
    assert [call(gpu)[0] for call in calls] == [25, 50, 75, 100]
    standin("dgx-a100").divide(0, [("1g.5gb", 0)])
    gpu = first()
    for call in (*calls, nvml.nvmlDeviceGetEncoderStats):
        with pytest.raises(nvml.NVMLError_NotSupported):
            call(gpu)


def test_a_divided_gpu_reports_errors_by_instance(standin: MakeStandin) -> None:
    machine = standin("dgx-a100")
    gpu = first()
    machine.set(0, rows_corrected=2)
    sram = nvml.NVML_MEMORY_LOCATION_SRAM
    machine.divide(0, [])
    assert nvml.nvmlDeviceGetRemappedRows(gpu) == (2, 0, 0, 0)
    machine.divide(0, [("3g.20gb", 0), ("3g.20gb", 4)])
    left = machine.parts(0)[0].gi
    machine.ecc(0, uncorrected=3, location=sram, gi=left)
    assert nvml.nvmlDeviceGetMemoryErrorCounter(gpu, 1, nvml.NVML_AGGREGATE_ECC, sram) == 3
    parts = [nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number) for number in range(2)]
    for refused in (
        lambda: nvml.nvmlDeviceGetRemappedRows(gpu),
        lambda: nvml.nvmlDeviceGetMemoryErrorCounter(gpu, 1, nvml.NVML_VOLATILE_ECC, sram),
        lambda: nvml.nvmlDeviceGetMemoryErrorCounter(parts[0], 0, nvml.NVML_VOLATILE_ECC, sram),
    ):
        with pytest.raises(nvml.NVMLError_NotSupported):
            refused()
    counted = [nvml.nvmlDeviceGetMemoryErrorCounter(part, 1, nvml.NVML_VOLATILE_ECC, sram) for part in parts]
    assert counted == [3, 0]
    assert field(gpu, nvml.NVML_FI_DEV_REMAPPED_COR)[0] == nvml.NVML_ERROR_NOT_SUPPORTED
