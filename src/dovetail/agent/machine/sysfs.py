# SPDX-License-Identifier: Apache-2.0
"""A machine as the kernel describes it in sysfs and procfs: PCI devices, NICs, NUMA nodes, CPUs.

Rules
- A device without a NUMA node (-1) is on the machine's only NUMA node; on a machine with several its node is unknown.
- A NUMA node may have memory and no CPUs, for example that of a Grace GPU. The kubelet counts such a node, but no
  process can run there. `zones` leaves it out.
- CPUs, cores and L3 caches are numbered as in the kubelet: a core by its lowest CPU; the L3 cache by its id, or by the
  socket if a whole NUMA node shares the cache or there is no L3 cache (cAdvisor, addCacheInfo; cpumanager/topology).
- A virtual function of a NIC (SR-IOV) is part of the NIC and not listed.
- The character devices of an RDMA device are those whose `ibdev` names it. `rdma_cm` serves all of them.
Sources: Documentation/ABI of the Linux kernel; cAdvisor v0.60, utils/sysinfo.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from dovetail.agent.machine.pci_device import PciDevice
from dovetail.core.devices.kubelet.inventory import Cpu

T = TypeVar("T")
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_NODE_DIR = re.compile(r"node(\d+)")
_HUGE = re.compile(r"hugepages-(\d+)kB")
_MEM_TOTAL = re.compile(r"MemTotal:\s*(\d+) kB")
_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")
_KERNEL_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_ACTIVE = "4:"
_CHARACTER_DEVICES = ("class/infiniband_verbs", "class/infiniband_mad")
_LINK_TYPES = {1: "ether", 32: "infiniband"}
"""By the hardware type of an interface (include/uapi/linux/if_arp.h), as netlink names them."""


class SysfsError(Exception):
    """A file of the kernel cannot be read; the message names the file and the reason."""


class Port(Struct, frozen=True):
    """A NIC. `name` is the RDMA device, or the network interface of a NIC without RDMA. `speed_mbps` is 0 if it is
    unknown, for example without a cable."""

    name: str
    interface: str
    bus_id: str
    speed_mbps: int
    rdma: bool


class Hca(Struct, frozen=True):
    """An RDMA device. `vendor` and `device` are its PCI ids as four hexadecimal digits. `link_types` are those of its
    network interfaces (`ether`, `infiniband`). `active`: a port is. `device_nodes` are paths of character devices."""

    name: str
    bus_id: str
    vendor: str
    device: str
    driver: str
    numa: int | None
    active: bool
    interfaces: tuple[str, ...] = ()
    link_types: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()
    active_ports: tuple[str, ...] = ()


class HostInterface(Struct, frozen=True):
    """A network interface of the host. `bus_id` is "" if it is of no PCI device. `master` is the bond or bridge that it
    is part of, `above` are the interfaces on top of it, such as VLANs."""

    name: str
    bus_id: str
    up: bool
    master: str = ""
    above: tuple[str, ...] = ()


class SysfsNumaNode(Struct, frozen=True):
    """`distances[i]` is the distance to the i-th node. `memory_bytes` includes huge pages; `huge_pages` lists (size in
    KiB, number)."""

    id: int
    cpus: tuple[int, ...]
    distances: tuple[int, ...]
    memory_bytes: int
    huge_pages: tuple[tuple[int, int], ...] = ()


class Sysfs:
    """The kernel's files below `root` and `proc`. PCI devices and NUMA nodes are read once: create a new object to read
    them again. `failures` has the reason for each PCI device and NIC that cannot be read. Raises SysfsError."""

    def __init__(self, root: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self.root, self.proc = root, proc
        # A large machine has some thousand files, and paths as text take half the time of `Path`.
        self._folder = str(root)
        self.failures: dict[str, str] = {}
        self._cpus_of: dict[tuple[SysfsNumaNode, ...], tuple[Cpu, ...]] = {}

    def renewed(self) -> Sysfs:
        """A new object, which reads all again except the topology of CPUs while the same ones are online: the kernel
        does not change it, and on a large node it is a thousand files."""
        fresh = Sysfs(self.root, self.proc)
        fresh._cpus_of = self._cpus_of
        return fresh

    @cached_property
    def pci(self) -> dict[str, PciDevice]:
        """All PCI devices by bus id."""
        names = [name for name in self.names("bus/pci/devices") if _BUS_ID.fullmatch(name)]
        return {device.bus_id: device for device in self._each(self._pci, names)}

    @cached_property
    def numa_nodes(self) -> tuple[SysfsNumaNode, ...]:
        """In the order of their ids, with those without CPUs."""
        found = (_NODE_DIR.fullmatch(name) for name in self.names("devices/system/node"))
        return tuple(self._numa(number) for number in sorted(int(match[1]) for match in found if match))

    @property
    def zones(self) -> tuple[SysfsNumaNode, ...]:
        """The NUMA nodes that have CPUs."""
        return tuple(node for node in self.numa_nodes if node.cpus)

    def cpus(self) -> tuple[Cpu, ...]:
        """The CPUs that are online, in the order of their ids."""
        zones = self.zones
        if (known := self._cpus_of.get(zones)) is not None:
            return known
        found = tuple(sorted((cpu for node in zones for cpu in self._cpus(node)), key=lambda cpu: cpu.id))
        self._cpus_of = {zones: found}
        return found

    def ports(self) -> tuple[Port, ...]:
        """The NICs: RDMA devices in the order of their names, then interfaces of other PCI devices."""
        found = [*self._each(self._rdma, self.names("class/infiniband", must=False))]
        with_rdma = {port.bus_id for port in found}
        interfaces = self._each(self._interface, self.names("class/net", must=False))
        found += [port for port in interfaces if port.bus_id not in with_rdma]
        physical = (port for port in found if port.bus_id and not self._is_virtual(port.bus_id))
        return tuple(sorted(physical, key=lambda port: (not port.rdma, natural(port.name))))

    def hcas(self) -> tuple[Hca, ...]:
        """The RDMA devices that are PCI devices and no virtual functions, in the order of their names."""
        nodes: dict[str, list[str]] = {}
        for group in _CHARACTER_DEVICES:
            for node in self.names(group, must=False):
                nodes.setdefault(self._text(group, node, "ibdev", default=""), []).append(f"/dev/infiniband/{node}")
        of_all = ["/dev/infiniband/rdma_cm"] if "rdma_cm" in self.names("class/misc", must=False) else []
        names = sorted(self.names("class/infiniband", must=False), key=natural)
        found = self._each(lambda name: self._hca(name, (*sorted(nodes.get(name, ()), key=natural), *of_all)), names)
        return tuple(hca for hca in found if hca.bus_id in self.pci and not self._is_virtual(hca.bus_id))

    def interfaces(self) -> tuple[HostInterface, ...]:
        """The network interfaces, in the order of their names."""
        return tuple(map(self._host_interface, sorted(self.names("class/net", must=False), key=natural)))

    def machine(self) -> str:
        """The product name of the machine in its firmware."""
        return self._text("class/dmi/id/product_name")

    def module_version(self) -> str:
        """The version of the nvidia kernel module, "" if it is not loaded."""
        version = self._text("module/nvidia/version", default="")
        found = _KERNEL_MODULE.search(version or self.read(self.proc / "driver/nvidia/version", default=""))
        return version or (found[1] if found else "")

    def _each(self, read: Callable[[str], T], names: Iterable[str]) -> Iterator[T]:
        for name in names:
            try:
                yield read(name)
            except SysfsError as error:
                self.failures[name] = str(error)

    def _pci(self, name: str) -> PciDevice:
        folder = f"bus/pci/devices/{name}"
        at = _linked(self._at(folder), _ROOT)
        roots = [i for i, part in enumerate(at) if _ROOT.fullmatch(part)]
        numa = self._number(folder, "numa_node", default=-1)
        return PciDevice(
            bus_id=name,
            vendor=self._number(folder, "vendor"),
            kind=self._number(folder, "class") >> 8,
            driver=_link_name(self._at(folder, "driver")),
            numa=numa if numa >= 0 else self._only_node,
            place=tuple(at[roots[-1] :]) if roots else (),
            virtual=bool(_link_name(self._at(folder, "physfn"))),
        )

    @cached_property
    def _only_node(self) -> int | None:
        try:
            nodes = self.zones
        except SysfsError:
            return None
        return nodes[0].id if len(nodes) == 1 else None

    def _numa(self, number: int) -> SysfsNumaNode:
        folder = Path(f"devices/system/node/node{number}")
        total = _MEM_TOTAL.search(self._text(folder, "meminfo"))
        if total is None:
            raise SysfsError(f"{self.root / folder}/meminfo has no line MemTotal")
        sizes = (_HUGE.fullmatch(name) for name in self.names(folder / "hugepages", must=False))
        return SysfsNumaNode(
            id=number,
            cpus=self._numbers(folder, "cpulist"),
            distances=self._numbers(folder, "distance"),
            memory_bytes=int(total[1]) * 1024,
            huge_pages=tuple(
                sorted(
                    (int(size[1]), self._number(folder, f"hugepages/{size[0]}/nr_hugepages")) for size in sizes if size
                )
            ),
        )

    def _cpus(self, node: SysfsNumaNode) -> Iterator[Cpu]:
        core_of: dict[tuple[int, int], list[int]] = {}
        for cpu in node.cpus:
            topology = f"devices/system/cpu/cpu{cpu}/topology"
            socket = self._number(topology, "physical_package_id")
            core_of.setdefault((socket, self._number(topology, "core_id")), []).append(cpu)
        for (socket, _), threads in core_of.items():
            uncore = self._uncore(threads[0], len(core_of) * len(threads), socket)
            yield from (Cpu(cpu, threads[0], socket, node.id, uncore) for cpu in threads)

    def _uncore(self, cpu: int, of_node: int, socket: int) -> int:
        caches = f"devices/system/cpu/cpu{cpu}/cache"
        for name in self.names(caches, must=False):
            if name.startswith("index") and self._number(caches, name, "level") > 2:
                sharing = self._numbers(caches, name, "shared_cpu_list")
                if len(sharing) != of_node:
                    return self._number(caches, name, "id", default=socket)
        return socket

    def _rdma(self, name: str) -> Port:
        folder = Path("class/infiniband", name)
        texts = (self._text(folder, "ports", port, "rate", default="") for port in self._active_ports(folder))
        gbit = sum(float(rate[1]) for rate in map(_RATE.match, texts) if rate)
        interfaces = self._interfaces_of(folder)
        bus_id = self._bus_id_of("class/infiniband", name)
        return Port(name, interfaces[0] if interfaces else "", bus_id, round(gbit * 1000) // 8, rdma=True)

    def _hca(self, name: str, device_nodes: tuple[str, ...]) -> Hca:
        folder, bus_id = Path("class/infiniband", name), self._bus_id_of("class/infiniband", name)
        device = self.pci.get(bus_id)
        interfaces = self._interfaces_of(folder)
        kinds = {self._number(folder, "device/net", one, "type", default=0) for one in interfaces}
        return Hca(
            name=name,
            bus_id=bus_id,
            vendor=f"{device.vendor:04x}" if device else "",
            device=f"{self._number('bus/pci/devices', bus_id, 'device', default=0):04x}" if device else "",
            driver=device.driver if device else "",
            numa=device.numa if device else None,
            active=bool(self._active_ports(folder)),
            active_ports=tuple(self._active_ports(folder)),
            interfaces=tuple(interfaces),
            link_types=tuple(sorted(_LINK_TYPES[kind] for kind in kinds & _LINK_TYPES.keys())),
            device_nodes=device_nodes,
        )

    def _interfaces_of(self, folder: Path) -> list[str]:
        """The network interfaces of the RDMA device in this folder."""
        return sorted(self.names(folder / "device/net", must=False), key=natural)

    def _active_ports(self, folder: Path) -> list[str]:
        ports = self.names(folder / "ports", must=False)
        return [port for port in ports if self._text(folder, "ports", port, "state", default="").startswith(_ACTIVE)]

    def _interface(self, name: str) -> Port:
        # A link that is down has no speed: the kernel returns -1 or EINVAL.
        speed = self._number("class/net", name, "speed", default=0)
        return Port(name, name, self._bus_id_of("class/net", name), max(0, speed) // 8, rdma=False)

    def _host_interface(self, name: str) -> HostInterface:
        folder = Path("class/net", name)
        entries = self.names(folder, must=False) if (self.root / folder).is_dir() else []
        above = (entry.removeprefix("upper_") for entry in entries if entry.startswith("upper_"))
        return HostInterface(
            name=name,
            bus_id=self._bus_id_of("class/net", name),
            up=self._text(folder, "operstate", default="") == "up",
            master=_link_name(self._at(folder, "master")),
            above=tuple(above),
        )

    def _bus_id_of(self, group: str, name: str) -> str:
        """The bus id of the nearest PCI device: the device itself, or the parent of a virtio device; "" without one."""
        at = _linked(self._at(group, name, "device"), _BUS_ID)
        return next((part for part in reversed(at) if _BUS_ID.fullmatch(part)), "")

    def _is_virtual(self, bus_id: str) -> bool:
        return bus_id in self.pci and self.pci[bus_id].virtual

    def names(self, folder: str | Path, must: bool = True) -> list[str]:
        """The entries of a folder below `root`, sorted. Without `must` a folder that does not exist has none."""
        try:
            return sorted(os.listdir(self._at(folder)))  # noqa: PTH208
        except FileNotFoundError as error:
            if not must:
                return []
            raise SysfsError(f"there is no {self.root / folder}") from error
        except OSError as error:
            raise SysfsError(f"cannot read {self.root / folder}: {error.strerror}") from error

    def _at(self, *parts: str | Path) -> str:
        return "/".join((self._folder, *map(str, parts)))

    def _text(self, *parts: str | Path, default: str | None = None) -> str:
        return self.read(self._at(*parts), default)

    def read(self, path: str | Path, default: str | None = None) -> str:
        """The text of a file. `default` is returned if the file does not exist or reading it fails, except for want of
        permission."""
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                return file.read().decode(errors="replace").strip()
        except OSError as error:
            if default is not None and not isinstance(error, PermissionError):
                return default
            raise SysfsError(f"cannot read {path}: {error.strerror}") from error

    def _numbers(self, *parts: str | Path) -> tuple[int, ...]:
        """The numbers of a list of CPUs ("0-3,64") or distances ("10 21")."""
        text = self._text(*parts)
        found: list[int] = []
        for part in re.split("[ ,]+", text) if text else ():
            first, _, last = part.partition("-")
            if not first.isdecimal() or (last and not last.isdecimal()):
                raise SysfsError(f"{self._at(*parts)}: {text!r} is not a list of whole numbers")
            found.extend(range(int(first), int(last or first) + 1))
        return tuple(found)

    def _number(self, *parts: str | Path, default: int | None = None) -> int:
        text = self._text(*parts, default=None if default is None else str(default))
        try:
            return int(text, 0)
        except ValueError:
            raise SysfsError(f"{self._at(*parts)}: {text!r} is not a whole number") from None


def _linked(path: str, wanted: re.Pattern[str]) -> list[str]:
    """The parts of the path to which a link leads, at least from the last part of this form on. The kernel's links lead
    from one device to another without a detour, so the text of most is enough."""
    with suppress(OSError):
        parts = os.readlink(path).split("/")  # noqa: PTH115
        if any(map(wanted.fullmatch, parts)):
            return parts
    return os.path.realpath(path).split("/")


def _link_name(path: str) -> str:
    """The last part of what a symbolic link names; "" where there is no link."""
    try:
        return os.readlink(path).rpartition("/")[2]  # noqa: PTH115
    except OSError:
        return ""


def natural(name: str) -> list[str | int]:
    """A sort key by which mlx5_2 comes before mlx5_10. Splitting by digits puts text and numbers at alternating places,
    so that two keys can be compared."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
