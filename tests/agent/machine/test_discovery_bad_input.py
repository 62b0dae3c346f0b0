# SPDX-License-Identifier: Apache-2.0
"""Drivers that are missing, too old or broken, GPUs that vanish, unreadable files: all is reported, none assumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dovetail.agent.machine import nvml as codes
from dovetail.agent.machine.discovery import discover
from dovetail.agent.machine.host import GpuFabric, Host
from dovetail.agent.machine.nvml import Nvml, NvmlError
from dovetail.agent.machine.sysfs import Sysfs, SysfsError
from dovetail.agent.publish.gpunode import document
from dovetail.agent.publish.gpunode_status import status_of
from dovetail.core.devices.layout import NODE, PXB, SYS, UNKNOWN
from dovetail.kube.nodes.layouts import of_gpu_node
from dovetail.kube.objects.topology import GPUNode, ObjectMeta
from tools.standin import Standin

Machine = Callable[[Any], Standin]


def look(machine: Standin) -> Host:
    sysfs = Sysfs(machine.sysfs, machine.proc)
    try:
        with Nvml() as nvml:
            return discover(nvml, sysfs)
    except NvmlError as error:
        return discover(error, sysfs)


def why(host: Host) -> dict[str, str]:
    return {one.what: one.why for one in host.unread}


def condition(host: Host, name: str) -> tuple[str, str, str]:
    (found,) = (one for one in status_of(host).conditions if one.type == name)
    return found.status, found.reason, found.message


def test_without_a_driver_the_kernel_s_fields_are_read(standin: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = standin("dgx-h100")
    shutil.rmtree(machine.sysfs / "module/nvidia")
    shutil.rmtree(machine.proc / "driver")
    for device in (machine.sysfs / "bus/pci/devices").iterdir():
        (device / "driver").unlink(missing_ok=True)
    monkeypatch.setattr(pynvml, "nvmlLib", None)

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "CDLL", missing)
    host = look(machine)
    assert (host.gpus, host.pcie, host.nvlinks, host.driver) == ((), (), (), "")
    assert host.machine == "DGXH100"
    assert host.nics is not None
    assert len(host.nics) == 12
    reasons = why(host)
    assert reasons["gpus"].startswith("nvmlInit: libnvidia-ml.so.1 is not found")
    named = [what for what in reasons if what.startswith("pci[")]
    assert len(named) == 8
    assert reasons["pci[0000:53:00.0]"] == "is an NVIDIA GPU, has no driver, and is not listed by NVML"
    assert condition(host, "DriverReady") == ("False", "NvmlFailed", reasons["gpus"])
    assert condition(host, "Ready")[:2] == ("False", "DriverNotReady")


@pytest.mark.slow
def test_a_kernel_module_and_a_library_of_different_versions(standin: Machine) -> None:
    machine = standin("dgx-a100")
    machine.mismatch()
    (machine.sysfs / "module/nvidia/version").write_text("570.148.08\n")
    host = look(machine)
    assert host.gpus == ()
    assert host.driver == "570.148.08"
    assert "of different versions" in why(host)["gpus"]
    assert "of different versions" in condition(host, "DriverReady")[2]
    machine.clear()
    assert len(look(machine).gpus) == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "field", "lost"),
    [
        ("nvmlDeviceGetArchitecture", "architecture", ""),
        ("nvmlDeviceGetModuleId", "module", None),
        ("nvmlDeviceGetAddressingMode", "addressing", ""),
        ("nvmlDeviceGetBrand", "brand", ""),
        ("nvmlDeviceGetSerial", "serial", ""),
        ("nvmlDeviceGetName", "product", ""),
        ("nvmlDeviceGetMemoryInfo", "memory_mib", 0),
        ("nvmlDeviceGetMigMode", "mig", None),
        ("nvmlDeviceGetGpuInstanceProfileInfo", "profiles", ()),
        ("nvmlDeviceGetCudaComputeCapability", "compute", None),
    ],
)
def test_a_call_that_the_driver_lacks_leaves_one_field_empty(
    standin: Machine, call: str, field: str, lost: object
) -> None:
    whole = look(standin("pcie-a100-bridged"))
    host = look(standin({"like": "pcie-a100-bridged", "missing": [call]}))
    assert len(host.gpus) == 4
    assert [getattr(gpu, field) for gpu in host.gpus] == [lost] * 4
    reasons = why(host)
    assert {what for what in reasons if what.startswith("gpus[0]")} == {f"gpus[0].{field}"}
    assert f"{call}: the driver is too old for this call" in reasons[f"gpus[0].{field}"]
    assert (host.pcie, host.nvlinks, host.nics) == (whole.pcie, whole.nvlinks, whole.nics)


def test_a_driver_with_only_the_older_fabric_call(standin: Machine) -> None:
    host = look(standin({"like": "gb200-nvl72", "missing": ["nvmlDeviceGetGpuFabricInfoV"]}))
    assert [gpu.fabric for gpu in host.gpus] == [GpuFabric("completed", "f2a8d3b1-5c57-4a0e-9f3c-1d2e6b7a8c90", 2)] * 4
    machine = standin("gb200-nvl72")
    machine.fail("nvmlDeviceGetGpuFabricInfoV", pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    assert (look(machine).clique, look(machine).unread) == (host.clique, host.unread)
    neither = ["nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"]
    host = look(standin({"like": "gb200-nvl72", "missing": neither}))
    assert (host.clique, host.gpus[0].fabric) == ("", None)
    assert "too old" in why(host)["gpus[0].fabric"]


def test_without_link_states_the_number_of_links_is_unknown(standin: Machine) -> None:
    host = look(standin({"like": "dgx-a100", "missing": ["nvmlDeviceGetNvLinkState"]}))
    assert host.nvlinks is None
    assert document(status_of(host))["nvlinks"] == []
    assert "nvmlDeviceGetNvLinkState" in why(host)["gpus[0].nvlinks"]


def test_without_the_kind_of_a_remote_device_the_kernel_s_is_used(standin: Machine) -> None:
    missing = ["nvmlDeviceGetNvLinkRemoteDeviceType"]
    assert look(standin({"like": "dgx-a100", "missing": missing})).nvlinks == look(standin("dgx-a100")).nvlinks
    assert look(standin({"like": "dgx1-v100", "missing": missing})).nvlinks == look(standin("dgx1-v100")).nvlinks


def test_links_to_unknown_devices_are_not_counted(standin: Machine) -> None:
    # The NVSwitches of a rack are in other machines: the kernel here has no PCI device of them.
    host = look(standin({"like": "gb200-nvl72", "missing": ["nvmlDeviceGetNvLinkRemoteDeviceType"]}))
    assert host.nvlinks == ((0,) * 4,) * 4
    assert why(host)["gpus[0].nvlinks"].startswith("18 of them lead to ")


@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetNvLinkState"])
def test_a_gpu_that_vanishes_during_a_look_is_left_out_and_reported(standin: Machine, call: str) -> None:
    machine = standin("dgx-h100")
    machine.fail(call, codes.GPU_IS_LOST, gpu=5)
    host = look(machine)
    assert [gpu.index for gpu in host.gpus] == [0, 1, 2, 3, 4, 6, 7]
    assert len(host.pcie) == len(host.nvlinks or ()) == 7
    assert why(host)["gpus[5]"] == f"{call}: the GPU has fallen off the bus"
    assert not any(what.startswith("gpus[5].") for what in why(host))
    assert "pci[0000:b9:00.0]" not in why(host)
    assert "pci[0000:a8:00.0]" in why(host)


def test_a_lost_gpu_keeps_its_index_in_the_gpunode(standin: Machine) -> None:
    machine = standin("dgx-a100")
    whole = look(machine)
    machine.lose(7)
    machine.lose(2)
    host = look(machine)
    status = status_of(host)
    assert [(gpu.index, bool(gpu.uuid), gpu.healthy) for gpu in status.gpus] == [
        (i, i not in (2, 7), i not in (2, 7)) for i in range(8)
    ]
    found, findings = of_gpu_node(GPUNode(metadata=ObjectMeta(name="n1"), status=status))
    assert findings == ()
    assert found is not None
    assert found.unhealthy == (2, 7)
    assert found.uuids[3] == whole.gpus[3].uuid
    assert found.pcie[0][:4] == (0, PXB, UNKNOWN, SYS)
    assert found.nvlinks is not None
    assert found.nvlinks[0] == (0, 12, 0, 12, 12, 12, 12, 0)
    assert condition(host, "HealthOk")[:2] == ("False", "GpuIll")
    assert "GPU 2: " in condition(host, "HealthOk")[2]
    assert condition(host, "Ready")[:2] == ("False", "GpuUnread")
    assert condition(host, "DriverReady")[0] == "True"


def test_nvml_that_fails_during_a_look_is_reported(standin: Machine) -> None:
    machine = standin("pcie-l40s")
    machine.fail("nvmlDeviceGetCount", codes.UNINITIALIZED)
    host = look(machine)
    assert host.gpus == ()
    assert why(host)["gpus"].startswith("nvmlDeviceGetCount: ")
    machine.clear()
    machine.fail("nvmlSystemGetDriverVersion", codes.UNINITIALIZED)
    assert why(look(machine))["gpus"].startswith("nvmlSystemGetDriverVersion: ")


def test_a_call_without_permission_is_reported(standin: Machine) -> None:
    machine = standin("dgx-a100")
    machine.divide(0, [("1g.5gb", 0), ("2g.10gb", 2)])
    machine.fail("nvmlDeviceGetGpuInstanceById", codes.NO_PERMISSION)
    host = look(machine)
    assert host.gpus[0].mig == ()
    assert why(host)["gpus[0].mig"].startswith("nvmlDeviceGetGpuInstanceById: no permission")


def test_an_nvlink_that_does_not_answer_is_not_counted(standin: Machine) -> None:
    machine = standin("pcie-a100-bridged")
    machine.fail("nvmlDeviceGetNvLinkState", 999, gpu=0, times=1)
    host = look(machine)
    assert host.nvlinks is not None
    assert host.nvlinks[0][1] == host.nvlinks[1][0] == 11
    assert "gpus[0].nvlinks[0]" in why(host)
    assert "GPU 0 counts 11 to GPU 1, which counts 12 back: the smaller number is used" in why(host)["gpus[0].nvlinks"]


def test_a_gpu_bound_to_another_driver_is_reported(standin: Machine) -> None:
    machine = standin("small-2numa")
    whole = {gpu.pci_bus_id: gpu for gpu in look(machine).gpus}
    machine.set(3, gone=1)
    driver = machine.sysfs / "bus/pci/devices/0000:09:00.0/driver"
    driver.unlink()
    (machine.sysfs / "bus/pci/drivers/vfio-pci").mkdir()
    driver.symlink_to(machine.sysfs / "bus/pci/drivers/vfio-pci")
    host = look(machine)
    assert [gpu.uuid for gpu in host.gpus] == [gpu.uuid for bus, gpu in whole.items() if bus != "0000:09:00.0"]
    assert why(host)["pci[0000:09:00.0]"] == "is an NVIDIA GPU, has the driver vfio-pci, and is not listed by NVML"


def test_without_a_numa_node_in_the_firmware_that_of_the_gpu_is_unknown(standin: Machine) -> None:
    machine = standin("pcie-l40s")
    (machine.sysfs / "bus/pci/devices/0000:41:00.0/numa_node").write_text("-1\n")
    host = look(machine)
    assert [gpu.numa for gpu in host.gpus] == [0, None, 1, 1]
    assert why(host)["gpus[1].numa"] == "numa_node of 0000:41:00.0 is -1: the firmware sets none"
    # The distance comes from NVML then.
    assert host.pcie[0][1] == NODE
    machine.fail("nvmlDeviceGetTopologyCommonAncestor", 999)
    assert look(machine).pcie[0][1] == UNKNOWN
    assert "pcie[0][1]" in why(look(machine))


def test_on_a_machine_with_one_numa_node_every_device_is_on_it(standin: Machine) -> None:
    machine = standin("gh200")
    (machine.sysfs / "bus/pci/devices/0009:01:00.0/numa_node").write_text("-1\n")
    assert look(machine).gpus[0].numa == 0


def broken(path: Path) -> None:
    """Make a file unreadable, also for root."""
    path.unlink()
    path.mkdir()


def test_an_unreadable_pci_device_is_reported_and_the_others_are_used(standin: Machine) -> None:
    machine = standin("dgx-h100")
    broken(machine.sysfs / "bus/pci/devices/0000:64:00.0/vendor")
    host = look(machine)
    assert "Is a directory" in why(host)["pci[0000:64:00.0]"]
    assert (host.gpus[1].numa, host.gpus[1].pcie_root) == (None, "")
    assert host.gpus[2].numa == 0
    assert [level for level in host.pcie[2] if level == UNKNOWN] == []


def test_an_unreadable_nic_is_reported_and_the_others_are_used(standin: Machine) -> None:
    machine = standin("small-2numa")
    broken(machine.sysfs / "class/net/eth0/speed")
    (machine.sysfs / "class/net/eth0/speed").rmdir()
    (machine.sysfs / "class/net/eth0/speed").write_text("fast\n")
    host = look(machine)
    assert host.nics is not None
    assert [nic.name for nic in host.nics] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert why(host)["nics[eth0]"].endswith("'fast' is not a whole number")


def test_without_a_pci_bus_in_sysfs_gpus_are_still_found(standin: Machine, tmp_path: Path) -> None:
    standin("dgx-a100")
    empty = tmp_path / "nothing"
    empty.mkdir()
    with Nvml() as nvml:
        host = discover(nvml, Sysfs(empty, empty))
    assert len(host.gpus) == 8
    assert {gpu.numa for gpu in host.gpus} == {None}
    assert why(host)["pci"] == f"there is no {empty}/bus/pci/devices"
    # The distance comes from NVML.
    assert host.pcie[0][1] == PXB
    assert host.nics == ()


@pytest.mark.parametrize(
    ("file", "content", "what"),
    [
        ("node0/cpulist", "0-x", "is not a list of whole numbers"),
        ("node0/meminfo", "none", "has no line MemTotal"),
        ("node1/hugepages/hugepages-2048kB/nr_hugepages", "many", "'many' is not a whole number"),
    ],
)
def test_the_error_for_a_bad_numa_node_names_the_file(standin: Machine, file: str, content: str, what: str) -> None:
    machine = standin("pcie-l40s")
    (machine.sysfs / "devices/system/node" / file).write_text(content)
    with pytest.raises(SysfsError, match=what) as caught:
        _ = Sysfs(machine.sysfs).numa_nodes
    assert file.rpartition("/")[2] in str(caught.value)
    # The other fields do not need it.
    assert len(look(machine).gpus) == 4
