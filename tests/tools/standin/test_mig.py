# SPDX-License-Identifier: Apache-2.0
"""MIG through NVIDIA's binding: what a card can have, and the life of its instances."""

import ctypes
import random

import pynvml as nvml
import pytest

from dovetail.core.devices.mig.geometry import Geometry, MigProfile
from dovetail.core.devices.mig.products import of_product
from tools.standin import HostError, Part
from tools.standin.fixture import MakeStandin

FULL = nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
MIG_HOSTS = ("dgx-a100", "pcie-a100-bridged", "dgx-h100", "gh200", "gb200-nvl72")


def first_gpu(mode: bool = True) -> tuple[nvml.c_nvmlDevice_t, Geometry]:
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    if mode:
        assert nvml.nvmlDeviceSetMigMode(gpu, nvml.NVML_DEVICE_MIG_ENABLE) == nvml.NVML_SUCCESS
    geometry = of_product(nvml.nvmlDeviceGetName(gpu))
    assert geometry is not None
    return gpu, geometry


def infos(gpu: nvml.c_nvmlDevice_t) -> dict[int, nvml.c_nvmlGpuInstanceProfileInfo_v2_t]:
    """The profiles of a card by NVML's enumerator, as an agent finds them."""
    found = {}
    for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            found[index] = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index)
        except nvml.NVMLError_NotSupported:
            continue
    return found


def placements(gpu: nvml.c_nvmlDevice_t, profile_id: int) -> list[tuple[int, int]]:
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, None, ctypes.byref(count))
    room = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, room, ctypes.byref(count))
    return [(place.start, place.size) for place in room]


def create(gpu: nvml.c_nvmlDevice_t, profile: MigProfile, start: int) -> nvml.c_nvmlGpuInstance_t:
    at = nvml.c_nvmlGpuInstancePlacement_t(start, profile.memory_slices)
    return nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile.gi_id, ctypes.byref(at))


def fill(instance: nvml.c_nvmlGpuInstance_t, index: int | None = None) -> nvml.c_nvmlComputeInstance_t:
    """A compute instance: of a profile, or the one that fills the GPU instance."""
    if index is None:
        sizes = {}
        for each in range(FULL):
            try:
                info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, each, 0)
            except nvml.NVMLError_NotSupported:
                continue
            sizes[info.sliceCount] = info.id
        index = sizes[max(sizes)]
    return nvml.nvmlGpuInstanceCreateComputeInstance(instance, index)


def mig_devices(gpu: nvml.c_nvmlDevice_t) -> list[nvml.c_nvmlDevice_t]:
    found = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))
        except nvml.NVMLError_NotFound:
            continue
    return found


@pytest.mark.parametrize("host", MIG_HOSTS)
def test_profiles_and_placements_are_those_of_the_table(standin: MakeStandin, host: str) -> None:
    standin(host)
    gpu, geometry = first_gpu()
    reported = {info.id: info for info in infos(gpu).values()}
    assert sorted(reported) == sorted(profile.gi_id for profile in geometry.profiles)
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == geometry.compute_slices
    for profile in geometry.profiles:
        info = reported[profile.gi_id]
        engines = (info.copyEngineCount, info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount)
        assert (info.sliceCount, info.instanceCount, info.memorySizeMB, info.multiprocessorCount, info.name) == (
            profile.compute_slices, profile.most, profile.memory_mib, profile.sm_count, f"MIG {profile.name}",
        )  # fmt: skip
        assert engines == profile.engines
        assert placements(gpu, profile.gi_id) == [(start, profile.memory_slices) for start in profile.starts]
        old = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, next(i for i, each in infos(gpu).items() if each is not info
                                                                 and each.id == info.id), version=1)  # fmt: skip
        assert (old.id, old.sliceCount, old.memorySizeMB) == (info.id, info.sliceCount, info.memorySizeMB)


@pytest.mark.parametrize("host", MIG_HOSTS)
def test_each_start_of_the_table_is_taken_and_every_other_refused(standin: MakeStandin, host: str) -> None:
    machine = standin(host)
    gpu, geometry = first_gpu()
    for profile in geometry.profiles:
        for start in range(geometry.memory_slices + 1):
            if start not in profile.starts:
                with pytest.raises(nvml.NVMLError_InvalidArgument):
                    create(gpu, profile, start)
                continue
            instance = create(gpu, profile, start)
            info = nvml.nvmlGpuInstanceGetInfo(instance)
            assert (info.profileId, info.placement.start, info.placement.size) == (
                profile.gi_id, start, profile.memory_slices,
            )  # fmt: skip
            assert machine.parts(0) == (Part(profile.name, start, info.id, ()),)
            nvml.nvmlGpuInstanceDestroy(instance)
    assert machine.parts(0) == ()


@pytest.mark.parametrize("host", MIG_HOSTS)
@pytest.mark.slow
def test_free_placements_follow_the_rules(standin: MakeStandin, host: str) -> None:
    """Random lives of a card: each creation succeeds exactly where the set with it is legal."""
    standin(host)
    gpu, geometry = first_gpu()
    draw = random.Random(7)
    everywhere = [(profile, start) for profile in geometry.profiles for start in profile.starts]
    held: dict[tuple[MigProfile, int], nvml.c_nvmlGpuInstance_t] = {}
    for _ in range(300):
        wanted = draw.choice(everywhere)
        for profile in geometry.profiles:
            left = nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile.gi_id)
            assert bool(left) == any(legal(geometry, [*held, (profile, start)]) for start in profile.starts)
        if wanted in held or draw.random() < 0.3:
            if held:
                nvml.nvmlGpuInstanceDestroy(held.pop(draw.choice(list(held))))
        elif legal(geometry, [*held, wanted]):
            held[wanted] = create(gpu, *wanted)
        else:
            with pytest.raises(nvml.NVMLError_InsufficientResources):
                create(gpu, *wanted)


def legal(geometry: Geometry, parts: list[tuple[MigProfile, int]]) -> bool:
    slices = [at for profile, start in parts for at in range(start, start + profile.memory_slices)]
    engines = [sum(kind) for kind in zip(*(profile.engines for profile, _ in parts), strict=True)]
    return (
        len(slices) == len(set(slices))
        and sum(profile.compute_slices for profile, _ in parts) <= geometry.compute_slices
        and all(sum(other is profile for other, _ in parts) <= profile.most for profile, _ in parts)
        and all(own <= whole for own, whole in zip(engines, geometry.engines, strict=True))
    )


def test_the_life_of_an_instance(standin: MakeStandin) -> None:
    machine = standin("dgx-a100")
    gpu, geometry = first_gpu()
    profile = geometry.profiles[geometry.index("3g.20gb")]
    instance = create(gpu, profile, 4)
    assert mig_devices(gpu) == []
    compute = fill(instance)
    gi = nvml.nvmlGpuInstanceGetInfo(instance).id
    assert machine.parts(0) == (Part("3g.20gb", 4, gi, (0,)),)
    (device,) = mig_devices(gpu)
    assert nvml.nvmlDeviceIsMigDeviceHandle(device).value
    assert not nvml.nvmlDeviceIsMigDeviceHandle(gpu).value
    assert nvml.nvmlDeviceGetName(device) == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    uuid = nvml.nvmlDeviceGetUUID(device)
    assert uuid.startswith("MIG-")
    assert (nvml.nvmlDeviceGetGpuInstanceId(device), nvml.nvmlDeviceGetComputeInstanceId(device)) == (gi, 0)
    parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml.nvmlDeviceGetHandleByUUID(uuid.encode()))
    assert nvml.nvmlDeviceGetUUID(parent) == nvml.nvmlDeviceGetUUID(gpu)
    attributes = nvml.nvmlDeviceGetAttributes(device)
    assert (attributes.multiprocessorCount, attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (
        42, 3, 3,
    )  # fmt: skip
    assert attributes.memorySizeMB == nvml.nvmlDeviceGetMemoryInfo(device).total >> 20 == profile.memory_mib
    for refused in (nvml.nvmlDeviceGetMigMode, nvml.nvmlDeviceGetPciInfo, nvml.nvmlDeviceGetSerial):
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            refused(device)
    with pytest.raises(nvml.NVMLError_InUse):
        nvml.nvmlGpuInstanceDestroy(instance)
    nvml.nvmlComputeInstanceDestroy(compute)
    nvml.nvmlGpuInstanceDestroy(instance)
    assert (machine.parts(0), mig_devices(gpu)) == ((), [])
    for gone in (lambda: nvml.nvmlDeviceGetUUID(device), lambda: nvml.nvmlGpuInstanceDestroy(instance)):
        with pytest.raises(nvml.NVMLError_InvalidArgument):
            gone()
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetHandleByUUID(uuid.encode())


def test_smaller_compute_instances_share_a_gpu_instance(standin: MakeStandin) -> None:
    machine = standin("dgx-a100")
    gpu, geometry = first_gpu()
    instance = create(gpu, geometry.profiles[geometry.index("3g.20gb")], 0)
    fill(instance, nvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)
    fill(instance, nvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)
    with pytest.raises(nvml.NVMLError_InsufficientResources):
        fill(instance, nvml.NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE)
    with pytest.raises(nvml.NVMLError_NotSupported):
        fill(instance, nvml.NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE)
    assert machine.parts(0)[0].cis == (0, 1)
    names = [nvml.nvmlDeviceGetName(device) for device in mig_devices(gpu)]
    assert names == ["NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"] * 2
    uuids = {nvml.nvmlDeviceGetUUID(device) for device in mig_devices(gpu)}
    assert len(uuids) == 2
    info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 0, 0)
    assert (info.name, info.instanceCount, info.multiprocessorCount) == ("MIG 1c.3g.20gb", 3, 14)


def test_instances_of_a_profile_are_listed(standin: MakeStandin) -> None:
    standin("dgx-h100")
    gpu, geometry = first_gpu()
    small = geometry.profiles[geometry.index("1g.10gb")]
    made = {nvml.nvmlGpuInstanceGetInfo(create(gpu, small, start)).id for start in (6, 0, 3)}
    room, count = (nvml.c_nvmlGpuInstance_t * small.most)(), ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstances(gpu, small.gi_id, room, ctypes.byref(count))
    assert count.value == 3
    assert {nvml.nvmlGpuInstanceGetInfo(each).id for each in room[:3]} == made
    for gi in made:
        assert nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceGetGpuInstanceById(gpu, gi)).id == gi
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetGpuInstanceById(gpu, 0)


def test_without_a_place_the_last_free_one_is_taken(standin: MakeStandin) -> None:
    machine = standin("dgx-a100")
    gpu, _ = first_gpu()
    for _ in range(7):
        nvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    assert sorted(part.start for part in machine.parts(0)) == list(range(7))
    with pytest.raises(nvml.NVMLError_InsufficientResources):
        nvml.nvmlDeviceCreateGpuInstance(gpu, 19)


def test_a_used_instance_cannot_be_destroyed(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu, geometry = first_gpu()
    used, idle = (create(gpu, geometry.profiles[geometry.index("1g.10gb")], start) for start in (0, 1))
    computes = [fill(used), fill(idle)]
    gi = nvml.nvmlGpuInstanceGetInfo(used).id
    machine.process(0, gi=gi, ci=0, pid=77, memory_mib=100)
    with pytest.raises(nvml.NVMLError_InUse):
        nvml.nvmlComputeInstanceDestroy(computes[0])
    nvml.nvmlComputeInstanceDestroy(computes[1])
    nvml.nvmlGpuInstanceDestroy(idle)
    (device,) = mig_devices(gpu)
    (process,) = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    assert (process.pid, process.usedGpuMemory >> 20, process.gpuInstanceId) == (77, 100, gi)
    assert nvml.nvmlDeviceGetMemoryInfo(device).used >> 20 == 100
    machine.release(77)
    nvml.nvmlComputeInstanceDestroy(computes[0])
    nvml.nvmlGpuInstanceDestroy(used)


def test_ampere_changes_its_mode_by_a_reset_which_waits_for_processes(standin: MakeStandin) -> None:
    machine = standin("dgx-a100")
    gpu, geometry = first_gpu(mode=False)
    assert nvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
    machine.process(0)
    assert nvml.nvmlDeviceSetMigMode(gpu, 1) == nvml.NVML_ERROR_IN_USE
    assert nvml.nvmlDeviceGetMigMode(gpu) == [0, 1]
    with pytest.raises(nvml.NVMLError_NotSupported):
        create(gpu, geometry.profiles[0], 0)
    machine.release()
    assert nvml.nvmlDeviceGetMigMode(gpu) == [0, 1]
    machine.reset(0)
    assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
    create(gpu, geometry.profiles[0], 0)
    assert nvml.nvmlDeviceSetMigMode(gpu, 0) == nvml.NVML_SUCCESS
    assert (machine.mig_mode(0), machine.parts(0)) == ((False, False), ())
    machine.reset(0)
    first_gpu()
    machine.reboot()
    assert machine.mig_mode(0) == (True, True)


def test_hopper_changes_its_mode_at_once_and_only_where_nothing_is_left(standin: MakeStandin) -> None:
    machine = standin("dgx-h100")
    gpu, geometry = first_gpu()
    instance = create(gpu, geometry.profiles[0], 0)
    assert nvml.nvmlDeviceSetMigMode(gpu, 0) == nvml.NVML_ERROR_IN_USE
    assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 0]
    assert machine.parts(0)
    nvml.nvmlGpuInstanceDestroy(instance)
    assert nvml.nvmlDeviceSetMigMode(gpu, 0) == nvml.NVML_SUCCESS
    assert nvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    machine.reboot()
    assert machine.mig_mode(0) == (False, False)


def test_profiles_are_known_without_the_mode_and_with_an_older_driver_no_placements(standin: MakeStandin) -> None:
    standin("dgx-a100")
    gpu, geometry = first_gpu(mode=False)
    assert {info.id for info in infos(gpu).values()} == {profile.gi_id for profile in geometry.profiles}
    assert placements(gpu, 0) == [(0, 8)]
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) == 0
    standin({"like": "dgx-a100", "placements_need_mode": True})
    gpu, _ = first_gpu(mode=False)
    assert len(infos(gpu)) == len(geometry.profiles)
    with pytest.raises(nvml.NVMLError_NotSupported):
        placements(gpu, 0)
    first_gpu()
    assert placements(gpu, 0) == [(0, 8)]


@pytest.mark.parametrize("host", ["dgx1-v100", "pcie-l40s"])
def test_cards_without_mig_report_not_supported(standin: MakeStandin, host: str) -> None:
    machine = standin(host)
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    for call in (
        lambda: nvml.nvmlDeviceGetMigMode(gpu),
        lambda: nvml.nvmlDeviceSetMigMode(gpu, 1),
        lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0),
    ):
        with pytest.raises(nvml.NVMLError_NotSupported):
            call()
    assert (infos(gpu), nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)) == ({}, 0)
    with pytest.raises(HostError, match="it has none"):
        machine.divide(0, [("1g.5gb", 0)])


def test_a_machine_can_be_divided_from_the_start_and_from_outside(standin: MakeStandin) -> None:
    machine = standin({"like": "small-2numa", "mig": {"1": [["3g.20gb", 0], ["1g.5gb", 6]]}})
    gpu, _ = first_gpu(mode=False)
    second = nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
    names = {nvml.nvmlDeviceGetName(device).rpartition(" ")[2] for device in mig_devices(second)}
    assert names == {"3g.20gb", "1g.5gb"}
    machine.divide(0, [("1g.5gb+me", 3)])
    (device,) = mig_devices(gpu)
    assert nvml.nvmlDeviceGetAttributes(device).sharedOfaCount == 1
    with pytest.raises(HostError, match=r"no MIG profile 1g\.6gb: it has 1g\.5gb"):
        machine.divide(0, [("1g.6gb", 3)])


def test_a_divided_gpu_has_no_utilization_and_no_peers(standin: MakeStandin) -> None:
    standin("dgx-a100")
    gpu, _ = first_gpu()
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetUtilizationRates(gpu)
    other = nvml.nvmlDeviceGetHandleByIndex(1)
    assert (
        nvml.nvmlDeviceGetP2PStatus(gpu, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_NOT_SUPPORTED
    )
