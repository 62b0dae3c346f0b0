# SPDX-License-Identifier: Apache-2.0
"""Ids, structures and their versions are those of NVIDIA's own binding."""

import ctypes
import inspect
import re
from typing import Any

import pynvml as nvml
import pytest

from tools.standin import library
from tools.standin.fixture import MakeStandin

EVERY_LINK = 0xFFFFFFFF
FIELDS = {
    name.removeprefix("NVML_FI_"): number
    for name, number in vars(nvml).items()
    if name.startswith("NVML_FI_") and name != "NVML_FI_MAX"
}
UNION = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


def first(number: int = 0) -> nvml.c_nvmlDevice_t:
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(number)


def values(gpu: nvml.c_nvmlDevice_t, names: list[str], scope: int = 0) -> dict[str, float | None]:
    """The values of fields by their names; None for one that fails."""
    answers = nvml.nvmlDeviceGetFieldValues(gpu, [(FIELDS[name], scope) for name in names])
    return {
        name: None if answer.nvmlReturn else getattr(answer.value, UNION[answer.valueType])
        for name, answer in zip(names, answers, strict=True)
    }


@pytest.mark.parametrize("host", ["dgx1-v100", "dgx-a100", "dgx-h100", "pcie-l40s", "gb200-nvl72"])
def test_every_id_of_the_binding_has_an_answer(standin: MakeStandin, host: str) -> None:
    standin(host)
    names = sorted(FIELDS)
    for scope in (0, EVERY_LINK):
        for answer in nvml.nvmlDeviceGetFieldValues(first(), [(FIELDS[name], scope) for name in names]):
            refused = nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT
            assert answer.nvmlReturn in (nvml.NVML_SUCCESS, *refused)
            assert answer.valueType < nvml.NVML_VALUE_TYPE_COUNT
            assert answer.timestamp > 0


def test_ecc_fields_name_their_type_counter_and_location(standin: MakeStandin) -> None:
    location = {"L1": 0, "L2": 1, "DEV": 2, "REG": 3, "TEX": 4, "CBU": 6}
    for host, supported in (("dgx1-v100", set(location)), ("dgx-a100", {"DEV"})):
        machine = standin(host)
        gpu = first()
        for place, number in location.items():
            if place in supported:
                machine.ecc(0, corrected=10 + number, uncorrected=100 + number, location=number)
        machine.reload()
        nvml.nvmlShutdown()
        gpu = first()
        for place, number in location.items():
            if place in supported:
                machine.ecc(0, corrected=1, uncorrected=2, location=number)
        names = [name for name in FIELDS if re.fullmatch(r"DEV_ECC_[SD]BE_(VOL|AGG)_\w+", name)]
        assert len(names) == 26
        for name, value in values(gpu, names).items():
            kind, counter, place = name.removeprefix("DEV_ECC_").split("_")
            fresh, kept = (1, 10) if kind == "SBE" else (2, 100)
            places = location.values() if place == "TOTAL" else [location[place]]
            if place != "TOTAL" and place not in supported:
                assert value is None
                continue
            counted = [number for number in places if number in {location[each] for each in supported}]
            assert value == sum(fresh + (counter == "AGG") * (kept + number) for number in counted), name


def test_link_fields_name_their_counter_and_link(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    errors = {
        "CRC_FLIT": "crc_flit",
        "CRC_DATA": "crc_data",
        "REPLAY": "replay",
        "RECOVERY": "recovery",
        "ECC_DATA": "ecc_data",
    }
    for number, error in enumerate(errors.values(), start=1):
        for link in range(18):
            machine.link_errors(0, link, **{error: number * 100 + link})
    pattern = re.compile(r"DEV_NVLINK_(\w+?)_ERROR_COUNT_(L\d+|TOTAL)")
    names = [name for name in FIELDS if pattern.fullmatch(name)]
    assert len(names) == 5 * 13
    for name, value in values(gpu, names).items():
        found = pattern.fullmatch(name)
        assert found
        number, link = list(errors).index(found[1]) + 1, found[2]
        assert value == (sum(number * 100 + i for i in range(18)) if link == "TOTAL" else number * 100 + int(link[1:]))
    speeds = [name for name in FIELDS if re.fullmatch(r"DEV_NVLINK_SPEED_MBPS_(L\d+|COMMON)", name)]
    machine.link(0, 7, up=False)
    assert {name: value for name, value in values(gpu, speeds).items() if value != 26562} == {
        "DEV_NVLINK_SPEED_MBPS_L7": 0
    }
    states = [values(gpu, ["DEV_NVLINK_GET_STATE"], link)["DEV_NVLINK_GET_STATE"] for link in range(18)]
    assert states == [link != 7 for link in range(18)]
    assert values(gpu, ["DEV_NVLINK_LINK_COUNT", "DEV_NVSWITCH_CONNECTED_LINK_COUNT"]) == {
        "DEV_NVLINK_LINK_COUNT": 18,
        "DEV_NVSWITCH_CONNECTED_LINK_COUNT": 18,
    }


def test_fields_agree_with_the_calls_for_the_same(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    machine.stop_clock()
    machine.load(0, sm=1, power_w=700, temperature_c=91)
    machine.advance(3)
    machine.set(0, rows_corrected=1, rows_uncorrected=2, rows_pending=1, pcie_replays=6, recovery_action=2)
    policies = "POWER THERMAL SYNC_BOOST BOARD_LIMIT LOW_UTILIZATION RELIABILITY TOTAL_APP_CLOCKS TOTAL_BASE_CLOCKS"
    expected: dict[str, Any] = {
        f"DEV_PERF_POLICY_{policy}": nvml.nvmlDeviceGetViolationStatus(
            gpu, getattr(nvml, f"NVML_PERF_POLICY_{policy}")
        ).violationTime
        for policy in policies.split()
    }
    assert {value for value in expected.values() if value} == {3 * 10**9, 6 * 10**9}
    rows = nvml.nvmlDeviceGetRemappedRows(gpu)
    expected |= dict(zip([f"DEV_REMAPPED_{name}" for name in ("COR", "UNC", "PENDING", "FAILURE")], rows, strict=True))
    expected |= {
        "DEV_TOTAL_ENERGY_CONSUMPTION": nvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
        "DEV_PCIE_REPLAY_COUNTER": nvml.nvmlDeviceGetPcieReplayCounter(gpu),
        "DEV_POWER_AVERAGE": nvml.nvmlDeviceGetPowerUsage(gpu),
        "DEV_POWER_MAX_LIMIT": nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu)[1],
        "DEV_POWER_MIN_LIMIT": nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu)[0],
        "DEV_ECC_CURRENT": nvml.nvmlDeviceGetEccMode(gpu)[0],
        "DEV_GET_GPU_RECOVERY_ACTION": nvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT,
        "DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP": 3 * 10**9,
        "DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": 3 * 10**9,
        "DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": 0,
    }
    assert values(gpu, list(expected)) == expected


def test_the_links_of_gpm_have_the_ids_of_the_binding(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    machine.stop_clock()
    machine.link(0, 5, up=False)
    machine.load(0, nvlink_tx_mbps=1700, nvlink_rx_mbps=170)
    one = nvml.nvmlGpmSampleGet(gpu, nvml.nvmlGpmSampleAlloc())
    machine.advance(1)
    other = nvml.nvmlGpmSampleGet(gpu, nvml.nvmlGpmSampleAlloc())
    pattern = re.compile(r"NVML_GPM_METRIC_NVLINK_L(\d+)_([RT]X)_PER_SEC")
    links = {found.groups(): number for name, number in vars(nvml).items() if (found := pattern.fullmatch(name))}
    assert len(links) == 2 * 72
    get = nvml.c_nvmlGpmMetricsGet_t()
    get.version, get.numMetrics, get.sample1, get.sample2 = nvml.NVML_GPM_METRICS_GET_VERSION, len(links), one, other
    for entry, number in zip(get.metrics, links.values(), strict=False):
        entry.metricId = number
    nvml.nvmlGpmMetricsGet(get)
    for entry, (link, way) in zip(get.metrics, links, strict=False):
        if int(link) >= 18:
            assert entry.nvmlReturn == nvml.NVML_ERROR_NOT_SUPPORTED
        else:
            per_link = 100 if way == "TX" else 10
            assert round(entry.value, 6) == (0 if link == "5" else per_link)
            assert entry.metricInfo.unit == b"MiB/s"


VERSIONED = {
    "nvmlDeviceGetTemperatureV": nvml.c_nvmlTemperature_v1_t,
    "nvmlDeviceGetMarginTemperature": nvml.c_nvmlMarginTemperature_v1_t,
    "nvmlDeviceGetSramEccErrorStatus": nvml.c_nvmlEccSramErrorStatus_v1_t,
    "nvmlDeviceGetRepairStatus": nvml.c_nvmlRepairStatus_t,
    "nvmlDeviceGetFanSpeedRPM": nvml.c_nvmlFanSpeedInfo_t,
    "nvmlDeviceGetRunningProcessDetailList": nvml.c_nvmlProcessDetailList_v1_t,
    "nvmlDeviceGetProcessesUtilizationInfo": nvml.c_nvmlProcessesUtilizationInfo_v1_t,
}


@pytest.mark.parametrize("call", VERSIONED)
def test_structures_have_the_size_and_version_of_the_binding(standin: MakeStandin, call: str) -> None:
    standin("dgx-h100")
    gpu = first()
    size = ctypes.sizeof(VERSIONED[call])

    def asked(version: int) -> int:
        structure = VERSIONED[call].from_buffer(bytearray(size))
        structure.version = version
        return int(getattr(nvml.nvmlLib, call)(gpu, ctypes.byref(structure)))

    for version in (0, size, size | 2 << 24, (size + 4) | 1 << 24):
        assert asked(version) == nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    accepted = nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NOT_FOUND
    assert asked(size | 1 << 24) in accepted


def test_every_call_of_the_library_is_one_of_the_binding() -> None:
    source = inspect.getsource(nvml)
    unknown = [call for call in library.symbols() if f'"{call}"' not in source]
    assert unknown == ["nvmlInit", "nvmlInit_v2"]
