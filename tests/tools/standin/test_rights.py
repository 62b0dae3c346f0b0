# SPDX-License-Identifier: Apache-2.0
"""What a process may see: the GPUs whose device nodes it has, and calls that NVML refuses to an unprivileged user (its
reference)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml as nvml
import pytest

from tools.standin.fixture import MakeStandin
from tools.standin.standin import DEVICE_NODES, RIGHTS

LEVELS = ("none", "monitor", "config", "admin")
GI, CI, COUNT = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint


def _array(kind: Any) -> Any:
    return (kind * 8)()


# nvml.h 12.2: "Requires privileged user" of all but the last two, "Requires root user" or "root/admin permissions" of
# those. Reading is what mig/monitor is for, changing what mig/config is for.
CALLS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "possible placements": (
        "monitor",
        lambda gpu, gi: nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, 19, None, ctypes.byref(COUNT())),
    ),
    "remaining capacity": ("monitor", lambda gpu, gi: nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 19)),
    "instances of a profile": (
        "monitor",
        lambda gpu, gi: nvml.nvmlDeviceGetGpuInstances(
            gpu, 19, _array(nvml.c_nvmlGpuInstance_t), ctypes.byref(COUNT())
        ),
    ),
    "instance by id": ("monitor", lambda gpu, gi: nvml.nvmlDeviceGetGpuInstanceById(gpu, 7)),
    "compute instances": (
        "monitor",
        lambda gpu, gi: nvml.nvmlGpuInstanceGetComputeInstances(
            gi, 0, _array(nvml.c_nvmlComputeInstance_t), ctypes.byref(COUNT())
        ),
    ),
    "create an instance": ("config", lambda gpu, gi: nvml.nvmlDeviceCreateGpuInstance(gpu, 19)),
    "destroy an instance": ("config", lambda gpu, gi: nvml.nvmlGpuInstanceDestroy(gi)),
    "MIG mode": ("admin", lambda gpu, gi: nvml.nvmlDeviceSetMigMode(gpu, 1)),
    "compute mode": ("admin", lambda gpu, gi: nvml.nvmlDeviceSetComputeMode(gpu, 3)),
    # "Aggregate information, only if the caller has appropriate privileges."
    "memory of all instances": ("monitor", lambda gpu, gi: nvml.nvmlDeviceGetMemoryInfo(gpu)),
    "processes of all instances": ("monitor", lambda gpu, gi: nvml.nvmlDeviceGetComputeRunningProcesses(gpu)),
    # Without a word on privilege.
    "memory of an instance": (
        "none",
        lambda gpu, gi: nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)),
    ),
    "profile": ("none", lambda gpu, gi: nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0)),
    "instance info": ("none", lambda gpu, gi: nvml.nvmlGpuInstanceGetInfo(gi)),
    "MIG device": ("none", lambda gpu, gi: nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)),
    "its uuid": ("none", lambda gpu, gi: nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))),
    "its attributes": (
        "none",
        lambda gpu, gi: nvml.nvmlDeviceGetAttributes(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)),
    ),
    "MIG mode as it is": ("none", lambda gpu, gi: nvml.nvmlDeviceGetMigMode(gpu)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("rights", LEVELS)
@pytest.mark.slow
def test_each_call_requires_its_privilege(
    call: str, rights: str, standin: MakeStandin, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = standin("dgx-a100")
    machine.divide(0, [("1g.5gb", 0)])
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    instance = nvml.nvmlDeviceGetGpuInstanceById(gpu, 7)
    needs, ask = CALLS[call]
    monkeypatch.setenv(RIGHTS, rights)
    refused = False
    try:
        ask(gpu, instance)
    except nvml.NVMLError_NoPermission:
        refused = True
    except nvml.NVMLError as error:
        # It was let in, and has its own reasons.
        assert error.value in (nvml.NVML_ERROR_IN_USE, nvml.NVML_ERROR_NOT_SUPPORTED)
    assert refused == (LEVELS.index(rights) < LEVELS.index(needs))


def test_a_process_sees_the_gpus_whose_device_nodes_it_has(
    standin: MakeStandin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = standin("dgx-a100")
    nvml.nvmlInit()
    uuids = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(8)]
    minors = [nvml.nvmlDeviceGetMinorNumber(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(8)]
    nvml.nvmlShutdown()
    for index in (6, 3):
        (machine.dev / f"nvidia{minors[index]}").rename(tmp_path / f"nvidia{minors[index]}")
    monkeypatch.setenv(DEVICE_NODES, str(tmp_path))
    nvml.nvmlInit()
    seen = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    assert [nvml.nvmlDeviceGetUUID(gpu) for gpu in seen] == [uuids[3], uuids[6]]
    monkeypatch.setenv(DEVICE_NODES, str(machine.dev))
    # The driver looks when it is opened.
    assert nvml.nvmlDeviceGetCount() == 2
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 6
