# SPDX-License-Identifier: Apache-2.0
"""What GPUDirect RDMA lacks on a machine: the NIC reads and writes the memory of a GPU, without the host's memory.

Rules
- A machine is examined if it has a GPU, and an HCA with an active port and character devices.
- The NIC reaches the memory of GPUs through the module nvidia_peermem (or nv_peer_mem), or by DMA-BUF: NVIDIA's open
  kernel modules, and Linux 5.12 or later.
- Between a GPU and an HCA below one switch no bridge redirects peer-to-peer traffic to the root complex (ACS: the bits
  request redirect, completion redirect and egress control). With the root complex between them ACS changes nothing.
- The IOMMU does not translate addresses of an HCA: its group is in passthrough (identity), or it has none.
- PCIe relaxed ordering is enabled for an HCA.
- Containers may lock memory without limit. That is the limit of this process: a container inherits that of the
  runtime. The capability IPC_LOCK lifts it.
- An active port of an Ethernet HCA (RoCE) has a GID of an IP address. With those of link-local addresses alone packets
  reach no other network. Of the table of GIDs the first MOST_GIDS are read: the kernel fills it from the begin.
- If the CPU translates the addresses of the GPUs (ATS: Grace), ACS and IOMMU are not examined.
- What could not be read is reported as unread, and is no obstacle. The configuration of a PCI device beyond 64 bytes is
  readable only with the capability SYS_ADMIN.
Sources: CUDA, GPUDirect RDMA (IOMMU); NCCL, troubleshooting (ACS, DMA-BUF); GPU Operator, GPUDirect RDMA. Of Linux:
drivers/pci/p2pdma.c (bits of ACS), drivers/infiniband/core/roce_gid_mgmt.c, ABI of sysfs-class-infiniband and of
sysfs-kernel-iommu_groups, include/uapi/linux/pci_regs.h.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from msgspec import Struct

from dovetail.agent.machine.host import Gpu, Obstacle
from dovetail.agent.machine.sysfs import Hca, Sysfs, SysfsError, natural

NO_PEER_MEMORY, ACS_REDIRECTS, IOMMU_TRANSLATES, NOT_RELAXED, MEMORY_LOCK, NO_ADDRESS = (
    "NoPeerMemory", "AcsRedirects", "IommuTranslates", "StrictOrdering", "MemoryLockLimited", "NoNicAddress",
)  # fmt: skip
MOST_GIDS = 32
_NO_GID, _LINK_LOCAL = re.compile(r"[0:]*"), ("fe8", "fe9", "fea", "feb")
_MODULES = ("nvidia_peermem", "nv_peer_mem")
_DMA_BUF_SINCE = (5, 12)
_OPEN = "Open Kernel Module"
_KERNEL = re.compile(r"(\d+)\.(\d+)")
_LOCKED = re.compile(r"Max locked memory\s+(\S+)")

_READABLE = 64
"""Bytes of the configuration of a PCI device that every process may read."""
_CAPABILITIES, _EXTENDED = 0x34, 0x100
_PCI_EXPRESS, _ACS = 0x10, 0x0D
_DEVICE_CONTROL, _ACS_CONTROL = 8, 6
_RELAXED = 0x0010
_REDIRECTS = 0x0004 | 0x0008 | 0x0020


class _Machine(Struct, frozen=True):
    sysfs: Sysfs
    gpus: Sequence[Gpu]
    hcas: Sequence[Hca]


def obstacles(
    sysfs: Sysfs, gpus: Sequence[Gpu], hcas: Sequence[Hca], miss: Callable[[str, Exception], None]
) -> tuple[Obstacle, ...] | None:
    """The obstacles, in the order of the rules; None if the machine is not examined. `miss` is called with what could
    not be read, and why."""
    usable = [hca for hca in hcas if hca.active and hca.device_nodes]
    if not gpus or not usable:
        return None
    machine, found = _Machine(sysfs, gpus, usable), list[Obstacle]()
    for what, examine in _EXAMINED.items():
        try:
            found += examine(machine)
        except SysfsError as error:
            miss(f"gpuDirect.{what}", error)
    return tuple(found)


def _peer_memory(machine: _Machine) -> Iterator[Obstacle]:
    sysfs = machine.sysfs
    if not {*_MODULES}.isdisjoint(sysfs.names("module")):
        return
    driver = sysfs.read(sysfs.proc / "driver/nvidia/version").partition("\n")[0]
    kernel = sysfs.read(sysfs.proc / "sys/kernel/osrelease")
    version = _KERNEL.match(kernel)
    if _OPEN not in driver:
        yield Obstacle(NO_PEER_MEMORY, "/proc/driver/nvidia/version", driver.removeprefix("NVRM version: "))
    elif version is not None and (int(version[1]), int(version[2])) < _DMA_BUF_SINCE:
        yield Obstacle(NO_PEER_MEMORY, "/proc/sys/kernel/osrelease", kernel)


def _acs(machine: _Machine) -> Iterator[Obstacle]:
    if _translated_by_cpu(machine):
        return
    pci = machine.sysfs.pci
    ends = [(pci.get(gpu.pci_bus_id), pci.get(hca.bus_id)) for gpu in machine.gpus for hca in machine.hcas]
    bridges = {bridge for gpu, hca in ends if gpu and hca for bridge in _between(gpu.place, hca.place)}
    for bridge in sorted(bridges):
        config = _config(machine.sysfs, bridge)
        at = _extended(config, _ACS)
        control = _word(config, at + _ACS_CONTROL) if at else 0
        if control & _REDIRECTS:
            yield Obstacle(ACS_REDIRECTS, _shown(bridge, "config"), f"ACS control {control:#06x}")


def _between(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    """The bridges between two places below one bridge: the ports of the switch that lead to them, and all below."""
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return (*one[shared:-1], *other[shared:-1]) if shared > 1 else ()


def _iommu(machine: _Machine) -> Iterator[Obstacle]:
    if _translated_by_cpu(machine):
        return
    sysfs = machine.sysfs
    for hca in machine.hcas:
        group = sysfs.root / "bus/pci/devices" / hca.bus_id / "iommu_group"
        kind = sysfs.read(group / "type") if group.exists() else ""
        if kind.startswith("DMA"):
            yield Obstacle(IOMMU_TRANSLATES, _shown(hca.bus_id, "iommu_group/type"), kind)


def _translated_by_cpu(machine: _Machine) -> bool:
    return all(gpu.addressing == "ATS" for gpu in machine.gpus)


def _ordering(machine: _Machine) -> Iterator[Obstacle]:
    for hca in machine.hcas:
        config = _config(machine.sysfs, hca.bus_id)
        at = _capability(config, _PCI_EXPRESS)
        if at and not (control := _word(config, at + _DEVICE_CONTROL)) & _RELAXED:
            yield Obstacle(NOT_RELAXED, _shown(hca.bus_id, "config"), f"PCIe device control {control:#06x}")


def _memory_lock(machine: _Machine) -> Iterator[Obstacle]:
    found = _LOCKED.search(machine.sysfs.read(machine.sysfs.proc / "self/limits"))
    if found and found[1] != "unlimited":
        yield Obstacle(MEMORY_LOCK, "/proc/self/limits", f"Max locked memory {found[1]} bytes")


def _addresses(machine: _Machine) -> Iterator[Obstacle]:
    for hca in machine.hcas:
        for port in hca.active_ports:
            gids = Path("class/infiniband", hca.name, "ports", port, "gids")
            if machine.sysfs.read(machine.sysfs.root / gids.with_name("link_layer"), default="") != "Ethernet":
                continue
            entries = sorted(machine.sysfs.names(gids, must=False), key=natural)[:MOST_GIDS]
            found = [gid for entry in entries if (gid := _gid(machine.sysfs, gids / entry))]
            if entries and all(gid.startswith(_LINK_LOCAL) for gid in found):
                yield Obstacle(NO_ADDRESS, f"/sys/{gids}", f"only link-local: {found[0]}" if found else "no GID")


def _gid(sysfs: Sysfs, entry: Path) -> str:
    """A GID, "" where there is none: the kernel returns zeros, or an error."""
    try:
        gid = sysfs.read(sysfs.root / entry).lower()
    except SysfsError:
        return ""
    return "" if _NO_GID.fullmatch(gid) else gid


_EXAMINED: dict[str, Callable[[_Machine], Iterator[Obstacle]]] = {
    "peerMemory": _peer_memory,
    "acs": _acs,
    "iommu": _iommu,
    "relaxedOrdering": _ordering,
    "memoryLock": _memory_lock,
    "nicAddresses": _addresses,
}


def _shown(bus_id: str, file: str) -> str:
    return f"/sys/bus/pci/devices/{bus_id}/{file}"


def _config(sysfs: Sysfs, bus_id: str) -> bytes:
    """The configuration of a PCI device. Raises SysfsError also if only its begin is readable."""
    path = sysfs.root / "bus/pci/devices" / bus_id / "config"
    try:
        config = path.read_bytes()
    except OSError as error:
        raise SysfsError(f"cannot read {path}: {error.strerror}") from error
    if len(config) <= _READABLE:
        raise SysfsError(f"cannot read {path} beyond {len(config)} bytes, for want of the capability SYS_ADMIN")
    return config


def _word(config: bytes, at: int) -> int:
    return int.from_bytes(config[at : at + 2], "little")


def _capability(config: bytes, wanted: int) -> int:
    """Where a capability begins, 0 if the device has none. A list that runs in a circle ends."""
    at, passed = config[_CAPABILITIES] & ~3, set[int]()
    while at and at not in passed and at + 1 < len(config):
        if config[at] == wanted:
            return at
        passed.add(at)
        at = config[at + 1] & ~3
    return 0


def _extended(config: bytes, wanted: int) -> int:
    """The same of a capability of PCI Express."""
    at, passed = _EXTENDED, set[int]()
    while at >= _EXTENDED and at not in passed and at + 3 < len(config):
        if _word(config, at) == wanted:
            return at
        passed.add(at)
        at = _word(config, at + 2) >> 4 & ~3
    return 0
