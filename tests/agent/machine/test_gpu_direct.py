# SPDX-License-Identifier: Apache-2.0
"""What GPUDirect RDMA lacks on a machine: each obstacle with its evidence, and nothing of what could not be read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.agent.machine import gpu_direct
from dovetail.agent.machine.gpu_direct import obstacles
from dovetail.agent.machine.host import Gpu, Obstacle
from dovetail.agent.machine.pci_device import PciDevice, level
from dovetail.agent.machine.sysfs import Hca, Sysfs
from dovetail.core.devices.layout import BOARD, PIX, PXB
from tools.standin import Standin
from tools.standin.machine import pci_config

Machine = Callable[[Any], Standin]
PROPRIETARY = "NVIDIA UNIX x86_64 Kernel Module  570.148.08  Mon Jul  7 02:14:10 UTC 2025"
OPEN = "NVIDIA UNIX Open Kernel Module for x86_64  570.148.08  Release Build"
DEVICES = "/sys/bus/pci/devices"


def gpus_of(sysfs: Sysfs, addressing: str = "") -> list[Gpu]:
    found = sorted(device.bus_id for device in sysfs.pci.values() if device.is_gpu)
    return [Gpu(i, i, f"GPU-{i}", "H100", bus_id, 80_000, addressing=addressing) for i, bus_id in enumerate(found)]


def look(machine: Standin, **more: Any) -> tuple[tuple[Obstacle, ...] | None, dict[str, str]]:
    """The obstacles, and what could not be read."""
    sysfs, missed = Sysfs(machine.sysfs, machine.proc), dict[str, str]()

    def miss(what: str, why: Exception) -> None:
        missed[what] = str(why)

    return obstacles(sysfs, gpus_of(sysfs, **more), sysfs.hcas(), miss), missed


def hcas_of(machine: Standin) -> list[Hca]:
    return [hca for hca in Sysfs(machine.sysfs, machine.proc).hcas() if hca.active]


def without_module(machine: Standin, driver: str = PROPRIETARY, kernel: str = "6.8.0-60-generic") -> None:
    shutil.rmtree(machine.sysfs / "module/nvidia_peermem")
    (machine.proc / "driver/nvidia/version").write_text(f"NVRM version: {driver}\nGCC version:  12\n")
    (machine.proc / "sys/kernel/osrelease").write_text(f"{kernel}\n")


def config(machine: Standin, bus_id: str, content: bytes) -> None:
    (machine.sysfs / "bus/pci/devices" / bus_id / "config").write_bytes(content)


def iommu_group(machine: Standin, bus_id: str, kind: str | None) -> None:
    group = machine.sysfs / f"kernel/iommu_groups/{bus_id}"
    group.mkdir(parents=True)
    if kind is not None:
        (group / "type").write_text(f"{kind}\n")
    (machine.sysfs / "bus/pci/devices" / bus_id / "iommu_group").symlink_to(group)


def test_a_machine_that_lacks_nothing_and_one_that_is_not_examined(standin: Machine) -> None:
    machine = standin("dgx-h100")
    assert look(machine) == ((), {})
    for port in (machine.sysfs / "class/infiniband").glob("*/ports/1/state"):
        port.write_text("1: DOWN\n")
    assert look(machine) == (None, {})


@pytest.mark.parametrize(
    ("driver", "kernel", "file", "value"),
    [
        (PROPRIETARY, "6.8.0-60-generic", "/proc/driver/nvidia/version", PROPRIETARY),
        (OPEN, "5.4.0-200-generic", "/proc/sys/kernel/osrelease", "5.4.0-200-generic"),
        (OPEN, "5.11.22", "/proc/sys/kernel/osrelease", "5.11.22"),
        (OPEN, "5.12.0", "", ""),
        (OPEN, "6.8.0-60-generic", "", ""),
        (OPEN, "unknown", "", ""),
    ],
)
@pytest.mark.slow
def test_without_a_module_the_driver_and_the_kernel_decide(
    standin: Machine, driver: str, kernel: str, file: str, value: str
) -> None:
    machine = standin("dgx-h100")
    without_module(machine, driver, kernel)
    assert look(machine) == (((Obstacle("NoPeerMemory", file, value),) if file else ()), {})


def test_the_older_module_is_as_good(standin: Machine) -> None:
    machine = standin("dgx-h100")
    without_module(machine)
    (machine.sysfs / "module/nv_peer_mem").mkdir()
    assert look(machine) == ((), {})


@pytest.mark.parametrize(("control", "redirects"), [(0x1D, True), (4, True), (8, True), (0x20, True), (0x53, False)])
@pytest.mark.slow
def test_acs_counts_on_the_bridges_between_a_gpu_and_an_hca_alone(
    standin: Machine, control: int, redirects: bool
) -> None:
    machine = standin("dgx-h100")
    sysfs = Sysfs(machine.sysfs, machine.proc)
    bridges = [bus_id for bus_id, device in sysfs.pci.items() if device.kind == 0x0604]
    for bus_id in bridges:
        config(machine, bus_id, pci_config(acs_control=control))
    ends = [[sysfs.pci[bus_id].place for bus_id in ids] for ids in (
        [gpu.pci_bus_id for gpu in gpus_of(sysfs)], [hca.bus_id for hca in hcas_of(machine)]
    )]  # fmt: skip
    pairs = [({*gpu[:-1]}, {*hca[:-1]}) for gpu in ends[0] for hca in ends[1]]
    # On the way of one of the two alone: neither the root port nor the switch's port to it, which both share.
    between = {bridge for gpu, hca in pairs if len(gpu & hca) > 1 for bridge in gpu ^ hca}
    assert 0 < len(between) < len(bridges)
    wanted = [Obstacle("AcsRedirects", f"{DEVICES}/{bus_id}/config", f"ACS control {control:#06x}")
              for bus_id in sorted(between)]  # fmt: skip
    assert look(machine) == (tuple(wanted) if redirects else (), {})


def test_bridges_follow_from_the_level() -> None:
    def device(*place: str) -> PciDevice:
        return PciDevice(place[-1], 0, 0, "", 0, ("pci0000:00", *place))

    near = (
        device("0000:01:00.0", "0000:02:00.0", "0000:03:00.0"),
        device("0000:01:00.0", "0000:02:01.0", "0000:04:00.0"),
    )
    other = device("0000:11:00.0", "0000:12:00.0")
    assert (level(*near), gpu_direct._between(near[0].place, near[1].place)) == (PIX, ("0000:02:00.0", "0000:02:01.0"))
    assert gpu_direct._between(near[0].place, other.place) == ()
    far = device("0000:01:00.0", "0000:05:00.0", "0000:06:00.0", "0000:07:00.0")
    assert level(near[0], far) == PXB and len(gpu_direct._between(near[0].place, far.place)) == 3
    assert (level(near[0], near[0]), gpu_direct._between(near[0].place, near[0].place)) == (BOARD, ())


@pytest.mark.parametrize(
    ("kind", "translates"), [("DMA", True), ("DMA-FQ", True), ("identity", False), ("auto", False)]
)
@pytest.mark.slow
def test_the_iommu_of_an_hca_is_in_passthrough(standin: Machine, kind: str, translates: bool) -> None:
    machine = standin("dgx-h100")
    hca = hcas_of(machine)[0]
    iommu_group(machine, hca.bus_id, kind)
    iommu_group(machine, gpus_of(Sysfs(machine.sysfs))[0].pci_bus_id, "DMA")
    wanted = Obstacle("IommuTranslates", f"{DEVICES}/{hca.bus_id}/iommu_group/type", kind)
    assert look(machine) == ((wanted,) if translates else (), {})


def test_gpus_whose_addresses_the_cpu_translates_need_no_passthrough(standin: Machine) -> None:
    machine = standin("dgx-h100")
    iommu_group(machine, hcas_of(machine)[0].bus_id, "DMA")
    assert look(machine, addressing="ATS") == ((), {})


def test_relaxed_ordering_and_the_lock_limit(standin: Machine) -> None:
    machine = standin("dgx-h100")
    hca = hcas_of(machine)[1]
    config(machine, hca.bus_id, pci_config(device_control=0x2900))
    (machine.proc / "self/limits").write_text(
        "Limit              Soft Limit  Hard Limit  Units\nMax locked memory  8388608     8388608     bytes\n"
    )
    assert look(machine) == (
        (
            Obstacle("StrictOrdering", f"{DEVICES}/{hca.bus_id}/config", "PCIe device control 0x2900"),
            Obstacle("MemoryLockLimited", "/proc/self/limits", "Max locked memory 8388608 bytes"),
        ),
        {},
    )


def test_what_cannot_be_read_is_reported_and_is_no_obstacle(standin: Machine) -> None:
    machine = standin("dgx-h100")
    without_module(machine)
    (machine.proc / "driver/nvidia/version").unlink()
    (machine.proc / "self/limits").unlink()
    for path in (machine.sysfs / "bus/pci/devices").glob("*/config"):
        path.write_bytes(pci_config(0x1D, 0)[:64])
    iommu_group(machine, hcas_of(machine)[0].bus_id, None)
    found, missed = look(machine)
    assert found == ()
    assert missed.keys() == {f"gpuDirect.{what}" for what in gpu_direct._EXAMINED if what != "nicAddresses"}
    assert missed["gpuDirect.acs"].endswith("config beyond 64 bytes, for want of the capability SYS_ADMIN")


def test_configurations_without_or_with_circular_lists_of_capabilities() -> None:
    circle = bytearray(pci_config(0x1D, 0))
    circle[0x60], circle[0x61] = 0x05, 0x40
    circle[0x148:0x14C] = (0x100 << 20 | 1 << 16 | 0x000B).to_bytes(4, "little")
    for content in (bytes(circle), bytes(256), bytes(4096), b"\xff" * 4096, pci_config()[:0x41]):
        assert gpu_direct._capability(content, 0x10) == 0 and gpu_direct._extended(content, 0x0D) == 0
    assert gpu_direct._capability(pci_config(), 0x10) == 0x60 and gpu_direct._extended(pci_config(), 0x0D) == 0x148


def test_an_hca_without_character_devices_is_not_in_use(standin: Machine, tmp_path: Path) -> None:
    sysfs = Sysfs(standin("dgx-h100").sysfs, tmp_path)
    bare = [replace(hca, device_nodes=()) for hca in sysfs.hcas()]
    assert obstacles(sysfs, gpus_of(sysfs), bare, lambda what, why: None) is None
    assert obstacles(sysfs, [], sysfs.hcas(), lambda what, why: None) is None


EMPTY, LOCAL = "0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0ac0:ebff:fe9a:1f00"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a00:0001"


@pytest.mark.parametrize(
    ("layer", "gids", "value"),
    [
        ("Ethernet", [LOCAL, LOCAL, EMPTY, EMPTY], f"only link-local: {LOCAL}"),
        ("Ethernet", [EMPTY, None, EMPTY], "no GID"),
        ("Ethernet", [*[EMPTY] * gpu_direct.MOST_GIDS, MAPPED], "no GID"),
        ("Ethernet", [LOCAL, LOCAL, EMPTY, MAPPED], ""),
        ("Ethernet", [LOCAL, "2001:0db8:0000:0000:0000:0000:0000:0001"], ""),
        ("Ethernet", [], ""),
        ("InfiniBand", ["fe80:0000:0000:0000:0ac0:ebff:fe9a:1f00"], ""),
    ],
)
@pytest.mark.slow
def test_a_roce_nic_needs_an_address(standin: Machine, layer: str, gids: list[str | None], value: str) -> None:
    machine = standin("dgx-h100")
    hca = hcas_of(machine)[0]
    port = machine.sysfs / "class/infiniband" / hca.name / "ports" / hca.active_ports[0]
    (port / "link_layer").write_text(f"{layer}\n")
    (port / "gids").mkdir()
    for number, gid in enumerate(gids):
        # The kernel refuses to read an entry that was never set; a folder cannot be read either.
        (port / f"gids/{number}").write_text(f"{gid}\n") if gid else (port / f"gids/{number}").mkdir()
    file = f"/sys/class/infiniband/{hca.name}/ports/{hca.active_ports[0]}/gids"
    assert look(machine) == (((Obstacle("NoNicAddress", file, value),) if value else ()), {})
