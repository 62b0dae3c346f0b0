# SPDX-License-Identifier: Apache-2.0
"""Discovery of a machine: its GPUs, NICs and links, from NVML and from the kernel.

Rules
- Nothing is assumed. A field that cannot be read is an `Unread` with the call or the file and the reason.
- A GPU that cannot be read, or is lost between two calls, is left out, with an `Unread` of the field `gpus[INDEX]`. The
  others keep their indices. If NVML itself does not answer, the field is `gpus`.
- A GPU that is on the PCI bus and not in NVML's list is an `Unread`, too, with the driver that it is bound to.
- If NVML does not answer or lists nothing, the kernel's list of PCI devices decides whether there are GPUs
  (`Host.sight`). A GPU that is bound to a driver for virtual machines (vfio) does not count as one of this host.
- An NVLink counts if its state is active and its remote device is known. Between two GPUs the smaller of the two ends'
  counts is taken. Links to NVSwitches are added up per GPU; two GPUs have the smaller of their sums between them.
- The distance of two devices comes from the kernel (`sysfs`), and of two GPUs from NVML if the kernel has none.
Sources: NVML API reference; NCCL, src/graph/xml.cc (NVLinks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import pynvml
from msgspec.structs import replace

from dovetail.agent.machine.gpu_direct import obstacles
from dovetail.agent.machine.gpus import GpuReader, Links, Observed
from dovetail.agent.machine.host import Gpu, Host, HostNic, Sight, Unread
from dovetail.agent.machine.nvml import Nvml, NvmlError
from dovetail.agent.machine.pci_device import level
from dovetail.agent.machine.sysfs import Hca, HostInterface, Port, Sysfs, SysfsError
from dovetail.core.devices.layout import BOARD, NODE, PHB, PIX, PXB, SYS, UNKNOWN, Matrix

UNLISTED_GPU = "is an NVIDIA GPU"
"""The start of the reason of an `Unread` for a GPU on the PCI bus that NVML does not list."""
_ANCESTORS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: BOARD,
    pynvml.NVML_TOPOLOGY_SINGLE: PIX,
    pynvml.NVML_TOPOLOGY_MULTIPLE: PXB,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: PHB,
    pynvml.NVML_TOPOLOGY_NODE: NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: SYS,
}


def discover(nvml: Nvml | NvmlError, sysfs: Sysfs, observed: Observed | None = None) -> Host:
    """The machine as it can be read now. If NVML is not available, `nvml` is its error, and no GPU is usable: those on
    the PCI bus are in `unread`. `observed` queries the MIG observer, for a process that may not read MIG. Blocks."""
    return _Discovery(sysfs, observed).host(nvml)


class _Discovery:
    """One discovery."""

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
        hcas = self._hcas()
        host = Host(
            driver=driver or self._read("driver", self._sysfs.module_version),
            nvml=library,
            cuda=cuda,
            machine=self._read("machine", self._sysfs.machine),
            gpus=gpus,
            pcie=self._pcie(gpus),
            nvlinks=self._nvlinks(gpus, [links for _, links in seen]),
            nics=self._nics(gpus),
            hcas=hcas,
            interfaces=self._interfaces(),
            gpu_direct=obstacles(self._sysfs, gpus, hcas, self._miss),
            sight=sight,
        )
        for what, why in self._sysfs.failures.items():
            self._miss(f"pci[{what}]" if ":" in what else f"nics[{what}]", why)
        return replace(host, unread=tuple(self._unread))

    def _miss(self, what: str, why: Exception | str) -> None:
        self._unread.append(Unread(what, str(why)))

    def _read(self, what: str, read: Callable[[], str]) -> str:
        try:
            return read()
        except SysfsError as error:
            self._miss(what, error)
            return ""

    def _gpus(self, reader: GpuReader, count: int) -> list[tuple[Gpu, Links | None]]:
        """Each GPU with its NVLinks; None if they cannot be read."""
        found = []
        for index in range(count):
            before = len(self._unread)
            try:
                found.append(reader.read(index))
            except NvmlError as error:
                # Its unread fields are part of that failure.
                del self._unread[before:]
                self._miss(f"gpus[{index}]", error)
        return found

    def _nvlinks(self, gpus: Sequence[Gpu], links: Sequence[Links | None]) -> Matrix | None:
        if None in links:
            return None
        known = [each for each in links if each is not None]
        count = [[0] * len(gpus) for _ in gpus]
        for i, j in combinations(range(len(gpus)), 2):
            here, there = known[i].to[gpus[j].pci_bus_id], known[j].to[gpus[i].pci_bus_id]
            if here != there:
                numbers = f"GPU {gpus[i].index} counts {here} to GPU {gpus[j].index}, which counts {there} back"
                self._miss(f"gpus[{gpus[i].index}].nvlinks", f"{numbers}: the smaller number is used")
            count[i][j] = count[j][i] = min(here, there) + min(known[i].to_switches, known[j].to_switches)
        listed = {gpu.pci_bus_id for gpu in gpus}
        for gpu, each in zip(gpus, known, strict=True):
            for target in sorted(each.to.keys() - listed):
                why = f"{each.to[target]} of them lead to GPU {target}, which is not listed"
                self._miss(f"gpus[{gpu.index}].nvlinks", why)
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
        """The distance of two GPUs according to NVML."""
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

    def _hcas(self) -> tuple[Hca, ...]:
        try:
            return self._sysfs.hcas()
        except SysfsError as error:
            self._miss("hcas", error)
            return ()

    def _interfaces(self) -> tuple[HostInterface, ...]:
        try:
            return self._sysfs.interfaces()
        except SysfsError as error:
            self._miss("interfaces", error)
            return ()

    def _nic(self, port: Port, gpus: Sequence[Gpu]) -> HostNic:
        device = self._pci.get(port.bus_id)
        if device is None:
            self._miss(f"nics[{port.name}].levels", f"the kernel lists no PCI device {port.bus_id}")
        elif device.numa is None:
            self._miss(f"nics[{port.name}].numa", f"numa_node of {port.bus_id} is -1: the firmware sets none")
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
        """Report the GPUs of the PCI bus that are not among `gpus`, and count those that are not bound to vfio."""
        known, own = {gpu.pci_bus_id for gpu in gpus}, 0
        for device in self._pci.values():
            if device.is_gpu and not device.virtual and device.bus_id not in known:
                bound = f"has the driver {device.driver}" if device.driver else "has no driver"
                self._miss(f"pci[{device.bus_id}]", f"{UNLISTED_GPU}, {bound}, and is not listed by NVML")
                own += "vfio" not in device.driver
        return own

    def _sight(self, gpus: Sequence[Gpu], count: int | None, not_listed: int) -> Sight:
        if len(gpus) == (count or 0) and not not_listed and (count is not None or self._pci_read):
            return "all"
        return "some" if gpus else "none"
