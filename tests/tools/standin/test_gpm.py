# SPDX-License-Identifier: Apache-2.0
"""GPU performance monitoring of the stand-in: means between two samples, of a GPU and of its instances."""

import math
from typing import Any

import pynvml as nvml
import pytest

from tools.standin.fixture import MakeStandin

SM, TENSOR, DRAM = nvml.NVML_GPM_METRIC_SM_UTIL, nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, nvml.NVML_GPM_METRIC_DRAM_BW_UTIL
PCIE, NVLINK = nvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, nvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC


def first() -> nvml.c_nvmlDevice_t:
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(0)


def sample(gpu: nvml.c_nvmlDevice_t, gi: int | None = None) -> Any:
    taken = nvml.nvmlGpmSampleAlloc()
    if gi is None:
        return nvml.nvmlGpmSampleGet(gpu, taken)
    return nvml.nvmlGpmMigSampleGet(gpu, gi, taken)


def asked(one: Any, other: Any, *metrics: int) -> Any:
    get = nvml.c_nvmlGpmMetricsGet_t()
    get.version, get.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(metrics)
    get.sample1, get.sample2 = one, other
    for entry, metric in zip(get.metrics, metrics, strict=False):
        entry.metricId = metric
    return get


def means(one: Any, other: Any, *metrics: int) -> list[tuple[int, float]]:
    get = nvml.nvmlGpmMetricsGet(asked(one, other, *metrics))
    return [(entry.nvmlReturn, round(entry.value, 6)) for entry in get.metrics[: len(metrics)]]


def test_a_metric_is_the_mean_between_two_samples(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    machine.stop_clock()
    machine.load(0, sm=0.8, tensor=0.4, dram=0.2, pcie_tx_mbps=100, nvlink_tx_mbps=3600)
    one = sample(gpu)
    machine.advance(3)
    machine.load(0)
    machine.advance(1)
    other = sample(gpu)
    assert means(one, other, SM, TENSOR, DRAM, PCIE) == [(0, 60), (0, 30), (0, 15), (0, 75)]
    link = nvml.NVML_GPM_METRIC_NVLINK_L17_TX_PER_SEC
    assert means(one, other, NVLINK, link) == [(0, 2700), (0, 150)]
    unsupported, invalid = nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT
    codes = [code for code, _ in means(one, other, nvml.NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC, 0, link + 2)]
    assert codes == [unsupported, invalid, unsupported]
    machine.metric(0, SM)
    machine.metric(0, DRAM, code=nvml.NVML_ERROR_UNKNOWN)
    (_, value), (code, _) = means(one, other, SM, DRAM)
    assert math.isnan(value)
    assert code == nvml.NVML_ERROR_UNKNOWN


def test_each_instance_has_its_own_and_the_gpu_has_their_sum(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    machine.divide(0, [("3g.40gb", 0), ("3g.40gb", 4)])
    left, right = (part.gi for part in machine.parts(0))
    machine.stop_clock()
    machine.load(0, gi=left, sm=1.0, dram=0.5)
    machine.load(0, gi=right, sm=0.5)
    before = [sample(gpu, left), sample(gpu, right), sample(gpu)]
    machine.advance(2)
    after = [sample(gpu, left), sample(gpu, right), sample(gpu)]
    (one, other, whole) = (means(a, b, SM, DRAM) for a, b in zip(before, after, strict=True))
    assert one == [(0, 100), (0, 50)]
    assert other == [(0, 50), (0, 0)]
    share = 60 / 132
    assert whole == [(0, pytest.approx(150 * share)), (0, 25)]
    assert means(before[0], after[0], PCIE)[0][0] == nvml.NVML_ERROR_NOT_SUPPORTED
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        means(before[0], after[1], SM)
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        sample(gpu, 0)


def test_samples_and_versions_are_checked(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    machine.stop_clock()
    one, never = sample(gpu), nvml.nvmlGpmSampleAlloc()
    same = sample(gpu)
    machine.advance(1)
    other = sample(gpu)
    for pair in ((one, never), (one, same), (other, one)):
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            means(*pair, SM)
    wrong = asked(one, other, SM)
    wrong.version = 2
    with pytest.raises(nvml.NVMLError_ArgumentVersionMismatch):
        nvml.nvmlGpmMetricsGet(wrong)
    nvml.nvmlGpmSampleFree(one)
    for call in (lambda: nvml.nvmlGpmSampleFree(one), lambda: means(one, other, SM)):
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            call()


def test_only_hopper_and_later_have_it(standin: MakeStandin) -> None:
    for host, supported in (("dgx-a100", 0), ("pcie-l40s", 0), ("dgx-h100", 1), ("gb200-nvl72", 1)):
        standin(host)
        gpu = first()
        assert nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice == supported
        if not supported:
            with pytest.raises(nvml.NVMLError_NotSupported):
                sample(gpu)


def test_each_engine_that_there_is_has_a_metric(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu = first()
    machine.divide(1, [("1g.10gb", 0), ("1g.10gb+me", 1)])
    machine.stop_clock()
    machine.load(0, decoder=0.5, jpeg=0.25, ofa=1)
    second = nvml.nvmlDeviceGetHandleByIndex(1)
    parts = [part.gi for part in machine.parts(1)]
    before = [sample(gpu), *(sample(second, gi) for gi in parts)]
    machine.advance(1)
    after = [sample(gpu), *(sample(second, gi) for gi in parts)]

    def engines(number: int, name: str, most: int) -> list[float]:
        ids = [getattr(nvml, f"NVML_GPM_METRIC_{name}_{engine}_UTIL") for engine in range(most)]
        return [value for code, value in means(before[number], after[number], *ids) if code == nvml.NVML_SUCCESS]

    assert engines(0, "NVDEC", 8) == [50] * 7
    assert engines(0, "NVJPG", 8) == [25] * 7
    assert engines(0, "NVOFA", 2) == [100]
    assert engines(0, "NVENC", 4) == []
    assert [len(engines(number, "NVOFA", 2)) for number in (1, 2)] == [0, 1]
    assert [len(engines(number, "NVDEC", 8)) for number in (1, 2)] == [1, 1]
