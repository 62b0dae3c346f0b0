# SPDX-License-Identifier: Apache-2.0
"""What this machine has: NVML's answers and the kernel's, put together.

Rules
- Nothing is assumed. What cannot be read is an `Unread` with the call or the file and the reason.
- A GPU that cannot be read, or is lost between two calls, is left out, and an `Unread` of the field `gpus[INDEX]` says
  why. The others keep their indices. Where NVML itself does not answer, that field is `gpus`.
- A GPU that the kernel sees on the PCI bus and NVML does not list is named too, with the driver that has it.
- That NVML does not answer, or lists nothing, does not say that there is no GPU: the kernel's list of PCI devices does
  (`Host.sight`). A GPU that a driver of virtual machines has (vfio) is none of this host's.
- An NVLink counts where its state is active and what is at its other end is known. Links to another GPU count as far as
  both ends count them. Links to NVSwitches are added up, and two GPUs have the lesser of their sums between them.
- How far apart devices are is what the kernel tells (`sysfs`); for two GPUs NVML is asked where it does not.
Sources: NVML API reference; NCCL, src/graph/xml.cc (NVLinks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import pynvml
from msgspec.structs import replace

from dovetail.agent.machine.gpus import GpuReader, Links, Observed
from dovetail.agent.machine.host import Gpu, Host, HostNic, Sight, Unread
from dovetail.agent.machine.nvml import Nvml, NvmlError
from dovetail.agent.machine.sysfs import Port, Sysfs, SysfsError, level
from dovetail.core.devices.layout import BOARD, NODE, PHB, PIX, PXB, SYS, UNKNOWN, Matrix

_ANCESTORS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: BOARD,
    pynvml.NVML_TOPOLOGY_SINGLE: PIX,
    pynvml.NVML_TOPOLOGY_MULTIPLE: PXB,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: PHB,
    pynvml.NVML_TOPOLOGY_NODE: NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: SYS,
}


def discover(nvml: Nvml | NvmlError, sysfs: Sysfs, observed: Observed | None = None) -> Host:
    """What can be read now. Without NVML (`nvml` is why) there are no GPUs that could be used: those on the PCI bus are
    named in `unread`. `observed` asks who may read MIG where this process may not. Blocks while all these answer."""
    return _Discovery(sysfs, observed).host(nvml)


class _Discovery:
    """One look at the machine."""

    def __init__(self, sysfs: Sysfs, observed: Observed | None) -> None:
        self._sysfs, self._observed = sysfs, observed
        self._unread: list[Unread] = []
        self._nvml: Nvml
        self._pci_read = True
        try:
            self._pci = sysfs.pci
        except SysfsError as error:
            self._pci, self._pci_read = {}, False
            self._miss("pci", error)

    def host(self, nvml: Nvml | NvmlError) -> Host:
        driver, library, cuda = "", "", None
        seen: list[tuple[Gpu, Links | None]] = []
        count: int | None = None
        try:
            if isinstance(nvml, NvmlError):
                raise nvml
            self._nvml = nvml
            reader = GpuReader(nvml, self._pci, self._unread, self._observed)
            driver = reader.ask("driver", "", "nvmlSystemGetDriverVersion")
            library = reader.ask("nvml", "", "nvmlSystemGetNVMLVersion")
            number = reader.ask("cuda", None, "nvmlSystemGetCudaDriverVersion_v2")
            cuda = None if number is None else (number // 1000, number % 1000 // 10)
            count = int(nvml.call("nvmlDeviceGetCount"))
            seen = self._gpus(reader, count)
        except NvmlError as error:
            self._miss("gpus", error)
        gpus = tuple(gpu for gpu, _ in seen)
        not_listed = self._not_listed(gpus)
        sight = self._sight(gpus, count, not_listed)
        if sight == "none" and count == 0:
            self._miss("gpus", "NVML lists none of the GPUs that the kernel sees")
        host = Host(
            driver=driver or self._told("driver", self._sysfs.module_version),
            nvml=library,
            cuda=cuda,
            machine=self._told("machine", self._sysfs.machine),
            gpus=gpus,
            pcie=self._pcie(gpus),
            nvlinks=self._nvlinks(gpus, [links for _, links in seen]),
            nics=self._nics(gpus),
            sight=sight,
        )
        for what, why in self._sysfs.failures.items():
            self._miss(f"pci[{what}]" if ":" in what else f"nics[{what}]", why)
        return replace(host, unread=tuple(self._unread))

    def _miss(self, what: str, why: Exception | str) -> None:
        self._unread.append(Unread(what, str(why)))

    def _told(self, what: str, read: Callable[[], str]) -> str:
        try:
            return read()
        except SysfsError as error:
            self._miss(what, error)
            return ""

    def _gpus(self, reader: GpuReader, count: int) -> list[tuple[Gpu, Links | None]]:
        """Each with its NVLinks; None where they cannot be read."""
        found = []
        for index in range(count):
            before = len(self._unread)
            try:
                found.append(reader.read(index))
            except NvmlError as error:
                # What was missed before it was lost is part of that.
                del self._unread[before:]
                self._miss(f"gpus[{index}]", error)
        return found

    def _nvlinks(self, gpus: Sequence[Gpu], links: Sequence[Links | None]) -> Matrix | None:
        if None in links:
            return None
        told = [each for each in links if each is not None]
        count = [[0] * len(gpus) for _ in gpus]
        for i, j in combinations(range(len(gpus)), 2):
            here, there = told[i].to[gpus[j].pci_bus_id], told[j].to[gpus[i].pci_bus_id]
            if here != there:
                numbers = f"GPU {gpus[i].index} counts {here} to GPU {gpus[j].index}, which counts {there} back"
                self._miss(f"gpus[{gpus[i].index}].nvlinks", f"{numbers}: the lesser counts")
            count[i][j] = count[j][i] = min(here, there) + min(told[i].to_switches, told[j].to_switches)
        there_are = {gpu.pci_bus_id for gpu in gpus}
        for gpu, each in zip(gpus, told, strict=True):
            for target in sorted(each.to.keys() - there_are):
                self._miss(
                    f"gpus[{gpu.index}].nvlinks", f"{each.to[target]} of them lead to the GPU {target}, not listed"
                )
        return tuple(map(tuple, count))

    def _pcie(self, gpus: Sequence[Gpu]) -> Matrix:
        levels = [[BOARD] * len(gpus) for _ in gpus]
        for i, j in combinations(range(len(gpus)), 2):
            a, b = gpus[i], gpus[j]
            found = level(self._pci.get(a.pci_bus_id), self._pci.get(b.pci_bus_id))
            if found == UNKNOWN:
                found = self._ancestor(a.index, b.index)
            levels[i][j] = levels[j][i] = found
        return tuple(map(tuple, levels))

    def _ancestor(self, a: int, b: int) -> int:
        """How far apart NVML says that two GPUs are, where the kernel does not tell."""
        try:
            handles = [self._nvml.call("nvmlDeviceGetHandleByIndex", index) for index in (a, b)]
            return _ANCESTORS.get(self._nvml.call("nvmlDeviceGetTopologyCommonAncestor", *handles), UNKNOWN)
        except NvmlError as error:
            self._miss(f"pcie[{a}][{b}]", error)
            return UNKNOWN

    def _nics(self, gpus: Sequence[Gpu]) -> tuple[HostNic, ...] | None:
        try:
            ports = self._sysfs.ports()
        except SysfsError as error:
            self._miss("nics", error)
            return None
        return tuple(self._nic(port, gpus) for port in ports)

    def _nic(self, port: Port, gpus: Sequence[Gpu]) -> HostNic:
        device = self._pci.get(port.bus_id)
        if device is None:
            self._miss(f"nics[{port.name}].levels", f"the kernel tells of no PCI device {port.bus_id}")
        elif device.numa is None:
            self._miss(f"nics[{port.name}].numa", f"numa_node of {port.bus_id} is -1: the firmware does not tell")
        return HostNic(
            name=port.name,
            interface=port.interface,
            pci_bus_id=port.bus_id,
            pcie_root=device.root if device is not None else "",
            numa=device.numa if device is not None else None,
            speed_mbps=port.speed_mbps,
            rdma=port.rdma,
            levels=tuple(level(device, self._pci.get(gpu.pci_bus_id)) for gpu in gpus),
        )

    def _not_listed(self, gpus: Sequence[Gpu]) -> int:
        """Names the GPUs of the PCI bus that are not among these; how many of them are this host's own."""
        known, own = {gpu.pci_bus_id for gpu in gpus}, 0
        for device in self._pci.values():
            if device.is_gpu and not device.virtual and device.bus_id not in known:
                bound = f"has the driver {device.driver}" if device.driver else "has no driver"
                self._miss(f"pci[{device.bus_id}]", f"is a GPU of NVIDIA, {bound}, and NVML does not tell of it")
                own += "vfio" not in device.driver
        return own

    def _sight(self, gpus: Sequence[Gpu], count: int | None, not_listed: int) -> Sight:
        if len(gpus) == (count or 0) and not not_listed and (count is not None or self._pci_read):
            return "all"
        return "some" if gpus else "none"
