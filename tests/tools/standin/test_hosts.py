# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's binding reads of each host: identity, wiring, fabric; and that these are the published machines."""

from collections import Counter
from pathlib import Path

import pynvml as nvml
import pytest

from dovetail.core.devices.layout import LEVELS, UNKNOWN
from dovetail.topology.nvidia_smi import parse
from tests.paths import WIRINGS
from tools.standin import HOSTS, HostError, Standin, StandinUnavailable, library
from tools.standin.description import level, load
from tools.standin.fixture import MakeStandin

LEVEL_OF_NVML = dict(zip((0, 10, 20, 30, 40, 50), LEVELS, strict=True))


def handles() -> list[nvml.c_nvmlDevice_t]:
    nvml.nvmlInit()
    return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]


def test_there_is_a_host_for_each_kind_of_machine() -> None:
    assert HOSTS == (
        "dgx-a100", "dgx-h100", "dgx1-v100", "gb200-nvl72", "gh200", "pcie-a100-bridged", "pcie-l40s", "small-2numa",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("host", "gpus", "name", "compute", "driver", "cuda"),
    [
        ("dgx1-v100", 8, "Tesla V100-SXM2-32GB", (7, 0), "570.148.08", 12080),
        ("dgx-a100", 8, "NVIDIA A100-SXM4-40GB", (8, 0), "570.148.08", 12080),
        ("dgx-h100", 8, "NVIDIA H100 80GB HBM3", (9, 0), "580.105.08", 13000),
        ("pcie-l40s", 4, "NVIDIA L40S", (8, 9), "595.91.07", 13020),
        ("pcie-a100-bridged", 4, "NVIDIA A100 80GB PCIe", (8, 0), "570.148.08", 12080),
        ("gh200", 1, "NVIDIA GH200 480GB", (9, 0), "580.105.08", 13000),
        ("gb200-nvl72", 4, "NVIDIA GB200", (10, 0), "580.173.02", 13000),
        ("small-2numa", 8, "NVIDIA A100-SXM4-40GB", (8, 0), "570.148.08", 12080),
    ],
)
def test_identity(
    standin: MakeStandin, host: str, gpus: int, name: str, compute: tuple[int, int], driver: str, cuda: int
) -> None:
    machine = standin(host)
    found = handles()
    assert len(found) == gpus
    assert {nvml.nvmlDeviceGetName(gpu) for gpu in found} == {name}
    assert {nvml.nvmlDeviceGetCudaComputeCapability(gpu) for gpu in found} == {compute}
    assert nvml.nvmlSystemGetDriverVersion() == driver
    assert nvml.nvmlSystemGetNVMLVersion() == f"{cuda // 1000}.{driver}"
    assert nvml.nvmlSystemGetCudaDriverVersion_v2() == nvml.nvmlSystemGetCudaDriverVersion() == cuda
    for index, gpu in enumerate(found):
        expected = machine.description.gpus[index]
        uuid, bus = nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetPciInfo(gpu)
        assert uuid == expected.uuid
        assert bus.busId.lower() == f"0000{expected.device.bdf}"
        assert bus.busIdLegacy.lower() == expected.device.bdf
        assert (bus.domain, bus.bus, bus.device) == tuple(int(part, 16) for part in expected.device.bdf[:-2].split(":"))
        assert bus.pciDeviceId & 0xFFFF == 0x10DE
        assert nvml.nvmlDeviceGetMinorNumber(gpu) == expected.minor
        assert nvml.nvmlDeviceGetModuleId(gpu) == expected.module
        assert nvml.nvmlDeviceGetSerial(gpu) == expected.serial
        for same in (
            nvml.nvmlDeviceGetHandleByUUID(uuid.encode()),
            nvml.nvmlDeviceGetHandleByPciBusId(bus.busId.encode()),
            nvml.nvmlDeviceGetHandleByPciBusId(expected.device.bdf.encode()),
            nvml.nvmlDeviceGetHandleBySerial(expected.serial.encode()),
        ):
            assert nvml.nvmlDeviceGetIndex(same) == index
    assert len({nvml.nvmlDeviceGetUUID(gpu) for gpu in found}) == gpus


# From captures of nvidia-smi -q -x: memory, reserved and BAR1 in MiB, PCIe, power in W, SM and memory clock in MHz.
@pytest.mark.parametrize(
    ("host", "memory", "reserved", "bar1", "generation", "power", "clocks"),
    [
        ("dgx-a100", 40960, 518, 65536, 4, 400, (1410, 1215)),
        ("dgx-h100", 81559, 480, 131072, 5, 700, (1980, 2619)),
        ("pcie-l40s", 46068, 609, 65536, 4, 350, (2520, 9001)),
        ("gb200-nvl72", 189471, 742, 262144, 5, 1200, (2062, 3996)),
    ],
)
def test_numbers_of_real_cards(
    standin: MakeStandin, host: str, memory: int, reserved: int, bar1: int, generation: int, power: int,
    clocks: tuple[int, int],
) -> None:  # fmt: skip
    standin(host)
    gpu = handles()[0]
    whole = nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2)
    assert (whole.total >> 20, whole.reserved >> 20, whole.used) == (memory, reserved, 0)
    assert whole.free == whole.total - whole.reserved
    assert nvml.nvmlDeviceGetMemoryInfo(gpu).used == whole.reserved
    assert nvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Total >> 20 == bar1
    assert nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu) == generation
    assert nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) == power * 1000
    assert (nvml.nvmlDeviceGetMaxClockInfo(gpu, 1), nvml.nvmlDeviceGetMaxClockInfo(gpu, 2)) == clocks


def nvlinks(found: list[nvml.c_nvmlDevice_t], index: int) -> Counter[int]:
    """Links that work, by the GPU at the other end; those to switches lead to every other GPU."""
    bus = {nvml.nvmlDeviceGetPciInfo(gpu).busId: i for i, gpu in enumerate(found)}
    counted: Counter[int] = Counter()
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(found[index], number):
                continue
        except (nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotSupported):
            break
        if nvml.nvmlDeviceGetNvLinkRemoteDeviceType(found[index], number) == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            counted.update(set(range(len(found))) - {index})
        else:
            counted[bus[nvml.nvmlDeviceGetNvLinkRemotePciInfo(found[index], number).busId]] += 1
    return counted


@pytest.mark.parametrize(
    ("host", "sample", "nics"),
    [
        ("dgx1-v100", "dgx1-v100", (0, 2, 1, 3)),
        ("dgx-a100", "dgx-a100-12nic", range(12)),
        ("dgx-h100", "dgx-h100-h200-8gpu-12nic", range(12)),
        ("pcie-l40s", "l40s-4gpu-two-numa", range(2)),
        ("pcie-a100-bridged", "a100-pcie-4gpu-one-bridge", range(2)),
        ("gb200-nvl72", "gb200-4gpu-8nic", range(8)),
    ],
)
def test_wiring_is_that_of_the_published_machine(
    standin: MakeStandin, host: str, sample: str, nics: tuple[int, ...]
) -> None:
    published = parse((WIRINGS / f"{sample}.txt").read_text())
    machine = standin(host).description
    found = handles()
    for i, gpu in enumerate(found):
        assert [nvlinks(found, i)[j] for j in range(len(found))] == list(published.nvlinks[i])
        for j, other in enumerate(found):
            expected = LEVEL_OF_NVML[nvml.nvmlDeviceGetTopologyCommonAncestor(gpu, other)]
            assert published.pcie[i][j] == UNKNOWN or expected == LEVELS[published.pcie[i][j]]
    assert tuple(gpu.device.numa for gpu in machine.gpus) == published.numa
    by_name = {nic.name: nic for nic in machine.nics}
    for number, nic in zip(nics, published.nics, strict=True):
        device = by_name[f"mlx5_{number}"].device
        assert tuple(level(device, gpu.device) for gpu in machine.gpus) == nic.levels


def test_links_through_switches_end_at_a_switch_and_direct_ones_at_a_gpu(standin: MakeStandin) -> None:
    standin("dgx-a100")
    gpu = handles()[0]
    remotes = Counter(nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link).busId for link in range(12))
    assert sorted(remotes.values()) == [2] * 6
    assert nvml.nvmlDeviceGetNvLinkVersion(gpu, 0) == nvml.NVML_NVLINK_VERSION_3_0
    assert nvml.nvmlDeviceGetNvLinkCapability(gpu, 0, nvml.NVML_NVLINK_CAP_P2P_SUPPORTED) == 1
    assert nvml.nvmlDeviceGetFieldValues(gpu, [nvml.NVML_FI_DEV_NVLINK_LINK_COUNT])[0].value.uiVal == 12
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetNvLinkState(gpu, 12)


def test_links_without_a_bridge_are_there_and_lead_nowhere(standin: MakeStandin) -> None:
    standin("pcie-a100-bridged")
    gpu = handles()[2]
    assert nvml.nvmlDeviceGetNvLinkState(gpu, 11) == 0
    assert nvml.nvmlDeviceGetNvLinkCapability(gpu, 11, nvml.NVML_NVLINK_CAP_P2P_SUPPORTED) == 0
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, 11)


def test_cards_without_nvlink_do_not_support_the_question(standin: MakeStandin) -> None:
    standin("pcie-l40s")
    one, other, *_ = handles()
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetNvLinkState(one, 0)
    assert nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_WRITE) == nvml.NVML_P2P_STATUS_OK
    status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    assert status == nvml.NVML_P2P_STATUS_NOT_SUPPORTED


@pytest.mark.parametrize(("host", "other_end"), [("dgx1-v100", True), ("dgx-a100", False)])
def test_a_link_goes_down_at_both_ends(standin: MakeStandin, host: str, other_end: bool) -> None:
    machine = standin(host)
    found = handles()
    before = [sum(nvlinks(found, i).values()) for i in (0, 1)]
    machine.link(0, 0, up=False)
    assert nvml.nvmlDeviceGetNvLinkState(found[0], 0) == 0
    lost = 1 if other_end else len(found) - 1
    after = [sum(nvlinks(found, i).values()) for i in (0, 1)]
    assert after == [before[0] - lost, before[1] - other_end]
    machine.link(0, 0, up=True)
    assert [sum(nvlinks(found, i).values()) for i in (0, 1)] == before


def test_links_that_are_down_from_the_start(standin: MakeStandin) -> None:
    standin({"like": "dgx-h100", "links_down": [[3, 17], [3, 0]]})
    found = handles()
    assert nvlinks(found, 3)[0] == 16
    assert nvlinks(found, 0)[3] == 18


@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
@pytest.mark.parametrize(
    ("host", "state", "cluster", "clique"),
    [
        ("dgx-h100", nvml.NVML_GPU_FABRIC_STATE_COMPLETED, "0" * 32, 0),
        ("gh200", nvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, "0" * 32, 0),
        ("gb200-nvl72", nvml.NVML_GPU_FABRIC_STATE_COMPLETED, "f2a8d3b15c574a0e9f3c1d2e6b7a8c90", 2),
    ],
)
def test_fabric(standin: MakeStandin, version: str, host: str, state: int, cluster: str, clique: int) -> None:
    standin(host)
    gpu = handles()[0]
    if version == "v1":
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(gpu, nvml.byref(info))
    else:
        info = {"v2": nvml.c_nvmlGpuFabricInfo_v2_t, "v3": nvml.c_nvmlGpuFabricInfo_v3_t}[version]()
        nvml.nvmlDeviceGetGpuFabricInfoV(gpu, nvml.byref(info))
        assert bool(info.healthMask) == (state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED)
    assert (info.state, bytes(info.clusterUuid).hex(), info.cliqueId, info.status) == (state, cluster, clique, 0)


def test_a_gpu_from_before_fabrics_does_not_support_them(standin: MakeStandin) -> None:
    standin("dgx-a100")
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetGpuFabricInfoV(handles()[0], nvml.byref(nvml.c_nvmlGpuFabricInfoV_t()))


def set_bits(words: list[int]) -> list[int]:
    return [at for at in range(64 * len(words)) if words[at // 64] >> at % 64 & 1]


def test_affinities(standin: MakeStandin) -> None:
    standin("dgx-a100")
    gpu = handles()[0]
    assert set_bits(nvml.nvmlDeviceGetCpuAffinity(gpu, 4)) == [*range(48, 64), *range(176, 192)]
    socket = nvml.nvmlDeviceGetCpuAffinityWithinScope(gpu, 4, nvml.NVML_AFFINITY_SCOPE_SOCKET)
    assert set_bits(socket) == [*range(64), *range(128, 192)]
    assert set_bits(nvml.nvmlDeviceGetMemoryAffinity(gpu, 1, nvml.NVML_AFFINITY_SCOPE_NODE)) == [3]
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetNumaNodeId(gpu)


def test_the_memory_of_a_coherent_gpu_is_numa_nodes_without_cpus(standin: MakeStandin) -> None:
    standin("gb200-nvl72")
    found = handles()
    assert [nvml.nvmlDeviceGetNumaNodeId(gpu) for gpu in found] == [2, 10, 18, 26]
    near = nvml.nvmlDeviceGetMemoryAffinity(found[2], 1, nvml.NVML_AFFINITY_SCOPE_NODE)
    assert set_bits(near) == [1, *range(18, 34)]
    assert nvml.nvmlDeviceGetAddressingMode(found[0]) == nvml.NVML_DEVICE_ADDRESSING_MODE_ATS
    assert nvml.nvmlDeviceGetC2cModeInfoV(found[0]).isC2cEnabled
    platform = nvml.c_nvmlPlatformInfo_v2_t()
    nvml.nvmlDeviceGetPlatformInfo(found[0], nvml.byref(platform))
    assert platform.chassisSerialNumber == "1821125190130"


def test_the_nearest_gpus(standin: MakeStandin) -> None:
    standin("small-2numa")
    found = handles()
    near = nvml.nvmlDeviceGetTopologyNearestGpus(found[0], nvml.NVML_TOPOLOGY_HOSTBRIDGE)
    assert [nvml.nvmlDeviceGetIndex(gpu) for gpu in near] == [2, 3]


def test_a_struct_of_a_version_that_is_not_known_is_refused(standin: MakeStandin) -> None:
    standin("dgx-h100")
    gpu = handles()[0]
    info = nvml.c_nvmlGpuFabricInfoV_t()
    info.version = 0x05000024
    with pytest.raises(nvml.NVMLError_ArgumentVersionMismatch):
        nvml.nvmlDeviceGetGpuFabricInfoV(gpu, nvml.byref(info))
    with pytest.raises(nvml.NVMLError_ArgumentVersionMismatch):
        nvml.nvmlDeviceGetMemoryInfo(gpu, version=0x03000028)


def test_nothing_answers_before_the_library_is_opened_or_after_it_was_closed(standin: MakeStandin) -> None:
    standin("dgx-h100")
    with pytest.raises(nvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetCount()
    gpu = handles()[0]
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    assert nvml.nvmlDeviceGetIndex(gpu) == 0
    nvml.nvmlShutdown()
    for call in (lambda: nvml.nvmlDeviceGetIndex(gpu), nvml.nvmlShutdown):
        with pytest.raises(nvml.NVMLError_Uninitialized):
            call()


def test_handles_that_are_none_are_refused(standin: MakeStandin) -> None:
    standin("dgx-h100")
    handles()
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetHandleByIndex(8)
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetHandleByUUID(b"GPU-00000000-0000-0000-0000-000000000000")
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetHandleByPciBusId(b"00000000:FF:00.0")
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetIndex(nvml.c_nvmlDevice_t())


def test_every_call_of_an_agent_or_an_exporter_resolves_unless_the_driver_is_old(standin: MakeStandin) -> None:
    machine = standin({"like": "dgx-h100", "missing": ["nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetModuleId"]})
    missing = [name for name in library.symbols() if not hasattr(nvml.nvmlLib, name)]
    assert sorted(missing) == sorted(machine.description.missing)
    with pytest.raises(nvml.NVMLError_FunctionNotFound):
        nvml.nvmlDeviceGetModuleId(handles()[0])
    whole = standin("dgx-h100")
    assert all(hasattr(nvml.nvmlLib, name) for name in library.symbols())
    assert nvml.nvmlDeviceGetModuleId(handles()[0]) == whole.description.gpus[0].module


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("dgx-a10", "host: 'dgx-a10' is not known; did you mean dgx-a100?"),
        ({"like": "dgx-a100", "nvlink": {}}, "'nvlink' is not known; did you mean nvlinks?"),
        ({"like": "dgx-a100", "product": "A100-SXM4-40G"}, "did you mean A100-SXM4-40GB?"),
        ({"like": "small-2numa", "pcie": [{"root": "0000:00", "numa": 2, "below": []}]}, "no NUMA node 2"),
        ({"like": "small-2numa", "pcie": [{"root": "0000:00", "numa": 0, "below": ["gpu0"]}]}, "gpu1 is nowhere"),
        ({"like": "pcie-l40s", "nvlinks": {"pairs": [[0, 1, 1]]}}, "GPU 0 has 1 of 0"),
        ({"like": "pcie-l40s", "cuda": "13"}, "'13' is no version"),
    ],
)
def test_a_description_that_is_no_machine_is_refused(host: str | dict[str, object], message: str) -> None:
    with pytest.raises(HostError) as refused:
        load(host)
    assert message in str(refused.value)


def test_a_call_that_there_is_not_cannot_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean nvmlDeviceGetUUID"):
        Standin(tmp_path, {"like": "pcie-l40s", "missing": ["nvmlDeviceGetUuid"]})


def test_without_a_compiler_the_error_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(StandinUnavailable, match="install gcc"):
        library.build()
    monkeypatch.setenv("CC", "/bin/false")
    with pytest.raises(StandinUnavailable, match="ended with 1"):
        library.build()
