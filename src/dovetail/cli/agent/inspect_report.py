# SPDX-License-Identifier: Apache-2.0
"""What `dovetail agent inspect` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct

from dovetail.agent.exporter.coverage import MetricCoverage, shortened
from dovetail.agent.health import xids
from dovetail.agent.machine.host import Gpu, Host, Obstacle, Unread
from dovetail.agent.machine.sysfs import SysfsNumaNode
from dovetail.cli.console import Console, Table, prose
from dovetail.cli.markup import escape
from dovetail.cli.output import count
from dovetail.core.devices.layout import LEVELS, UNKNOWN, Matrix

_NOT_KNOWN = "?"


class Inspection(Struct, frozen=True, rename="camel"):
    """The JSON answer: all that was found, the GPUNode that the agent would publish, the number of metrics of each GPU
    with the absent ones by reason, and the version of the table of XIDs."""

    host: Host
    numa_nodes: tuple[SysfsNumaNode, ...]
    gpu_node: dict[str, Any]
    metrics: MetricCoverage
    xid_table: str


def metrics_table(metrics: MetricCoverage) -> Table:
    """How many metrics the GPUs have, and the absent ones by reason."""
    table = Table("GPUs", "number", prose("metrics of the exporter"))
    for number in sorted(set(metrics.read.values()), reverse=True):
        gpus = _ranges(gpu for gpu, read in metrics.read.items() if read == number)
        table.add_row(gpus, str(number), "read")
    for group in metrics.absent:
        table.add_row(
            _ranges(group.gpus), str(len(group.kinds)), escape(f"absent, {group.why}: {shortened(group.kinds)}")
        )
    return table


def show(name: str, host: Host, nodes: Sequence[SysfsNumaNode], unread: Sequence[Unread], console: Console) -> None:
    """Print the host as tables."""
    console.print(f"[bold]{escape(name)}[/bold]: {escape(_head(host, nodes))}")
    for title, table in _tables(host, nodes, unread):
        console.print(f"\n[bold]{title}[/bold]")
        console.print(table)
    console.print(f"\nTable of XIDs: version {xids.default().version}")


def _head(host: Host, nodes: Sequence[SysfsNumaNode]) -> str:
    parts = [host.machine] if host.machine else []
    parts.append(count(len(host.gpus), "GPU") if host.gpus else _no_gpu(host))
    if host.driver:
        parts.append(f"driver {host.driver}")
    if host.cuda is not None:
        parts.append(f"CUDA up to {host.cuda[0]}.{host.cuda[1]}")
    if nodes:
        parts.append(count(len([node for node in nodes if node.cpus]), "NUMA node"))
    parts += [count(len(host.nics), "NIC")] if host.nics is not None else []
    parts += [f"NVLink domain {host.clique}"] if host.clique else []
    return ", ".join(parts) + "."


def _no_gpu(host: Host) -> str:
    from dovetail.agent.machine.discovery import UNLISTED_GPU

    on_the_bus = sum(one.what.startswith("pci[") and one.why.startswith(UNLISTED_GPU) for one in host.unread)
    if not on_the_bus:
        return "no NVIDIA GPU"
    return f"{count(on_the_bus, 'NVIDIA GPU')} on the PCI bus that cannot be used"


def _tables(host: Host, nodes: Sequence[SysfsNumaNode], unread: Sequence[Unread]) -> Iterator[tuple[str, Table]]:
    if host.gpus:
        yield "GPUs", _gpus(host.gpus)
    if any(gpu.mig for gpu in host.gpus):
        yield "MIG instances", _instances(host.gpus)
    if any(gpu.profiles for gpu in host.gpus):
        yield "MIG profiles", _profiles(host.gpus)
    if any(gpu.fabric is not None and gpu.fabric.state != "not-supported" for gpu in host.gpus):
        yield "NVLink fabric", _fabric(host.gpus)
    if len(host.gpus) > 1:
        yield "NVLinks between GPUs", _matrix(host.gpus, host.nvlinks, str)
        yield "PCIe between GPUs", _matrix(host.gpus, host.pcie, _word)
    if host.nics:
        yield "NICs", _nics(host)
    if host.gpu_direct:
        yield "What GPUDirect RDMA lacks", _lacking(host.gpu_direct)
    if nodes:
        yield "NUMA nodes", _numa(host.gpus, nodes)
    if unread:
        yield "Not read", _unread(unread)


def _gpus(gpus: Iterable[Gpu]) -> Table:
    table = Table("GPU", "product", "MiB", "NUMA", "PCI bus id", "PCIe root", "uuid", "MIG")
    for gpu in gpus:
        numbers = (str(gpu.index), gpu.product or _NOT_KNOWN, str(gpu.memory_mib or _NOT_KNOWN), _known(gpu.numa))
        table.add_row(*numbers, gpu.pci_bus_id, gpu.pcie_root or _NOT_KNOWN, gpu.uuid, _mig(gpu))
    return table


def _mig(gpu: Gpu) -> str:
    if not gpu.mig_capable:
        return "unsupported"
    mode = "off" if gpu.mig is None else count(len(gpu.mig), "instance")
    pending = "" if gpu.mig_pending is None else f", {'on' if gpu.mig_pending else 'off'} after a reset"
    return mode + pending


def _instances(gpus: Iterable[Gpu]) -> Table:
    table = Table("GPU", "profile", "slices", "MiB", "GI", "CI", "uuid")
    for gpu in gpus:
        for one in gpu.mig or ():
            slices = f"{one.start}-{one.start + one.size - 1}" if one.size > 1 else str(one.start)
            table.add_row(str(gpu.index), one.profile, slices, str(one.memory_mib), str(one.gi), str(one.ci), one.uuid)
    return table


def _profiles(gpus: Iterable[Gpu]) -> Table:
    """The MIG profiles; GPUs with the same profiles share their rows."""
    table = Table("GPUs", "profile", "id", "most", "MiB", "memory slices", "placements")
    for profiles, equal in groupby((gpu for gpu in gpus if gpu.profiles), key=lambda gpu: gpu.profiles):
        indices = _ranges(gpu.index for gpu in equal)
        for one in profiles:
            starts = ",".join(map(str, one.starts)) or "known only in MIG mode"
            numbers = (str(one.id), str(one.most), str(one.memory_mib), str(one.size or _NOT_KNOWN))
            table.add_row(indices, one.name, *numbers, starts)
            indices = ""
    return table


def _fabric(gpus: Iterable[Gpu]) -> Table:
    table = Table("GPU", "state", "cluster", "clique", "domain")
    for gpu in gpus:
        if gpu.fabric is not None:
            fabric = gpu.fabric
            table.add_row(
                str(gpu.index),
                fabric.state,
                fabric.cluster_uuid,
                str(fabric.clique),
                fabric.domain or "none above the node",
            )
    return table


def _matrix(gpus: Sequence[Gpu], matrix: Matrix | None, shown: Callable[[int], str]) -> Table:
    table = Table("", *(f"GPU{gpu.index}" for gpu in gpus))
    for i, gpu in enumerate(gpus):
        row = ("X" if i == j else _NOT_KNOWN if matrix is None else shown(matrix[i][j]) for j in range(len(gpus)))
        table.add_row(f"GPU{gpu.index}", *row)
    return table


def _nics(host: Host) -> Table:
    table = Table("NIC", "interface", "NUMA", "Gbit/s", "RDMA", "PCI bus id", *(f"GPU{g.index}" for g in host.gpus))
    for nic in host.nics or ():
        speed = f"{nic.speed_mbps * 8 / 1000:g}" if nic.speed_mbps else _NOT_KNOWN
        rdma = "yes" if nic.rdma else "no"
        table.add_row(nic.name, nic.interface, _known(nic.numa), speed, rdma, nic.pci_bus_id, *map(_word, nic.levels))
    return table


def _lacking(obstacles: Iterable[Obstacle]) -> Table:
    table = Table("what", "file", prose("value"))
    for one in obstacles:
        table.add_row(one.code, one.file, escape(one.value))
    return table


def _numa(gpus: Sequence[Gpu], nodes: Sequence[SysfsNumaNode]) -> Table:
    """The NUMA nodes. Those without CPUs share one row: a Grace Hopper has eight of them for its GPU."""
    table = Table("NUMA node", "CPUs", "GiB", prose("huge pages"), "distances", "GPUs")
    places = [i for i, node in enumerate(nodes) if node.cpus]
    for node in (nodes[i] for i in places):
        table.add_row(
            str(node.id),
            _ranges(node.cpus),
            _gib(node.memory_bytes),
            ", ".join(f"{number} of {size} KiB" for size, number in node.huge_pages if number) or "none",
            " ".join(str(node.distances[i]) for i in places if i < len(node.distances)),
            _ranges(gpu.index for gpu in gpus if gpu.numa == node.id),
        )
    memory = [node for node in nodes if not node.cpus]
    if memory:
        table.add_row(_ranges(node.id for node in memory), "none", _gib(sum(node.memory_bytes for node in memory)))
    return table


def _gib(amount: int) -> str:
    return f"{amount / (1 << 30):.1f}"


def _unread(unread: Iterable[Unread]) -> Table:
    table = Table("what", prose("why"))
    for one in unread:
        table.add_row(escape(one.what), escape(one.why))
    return table


def _word(level: int) -> str:
    return _NOT_KNOWN if level == UNKNOWN else LEVELS[level]


def _known(number: int | None) -> str:
    return _NOT_KNOWN if number is None else str(number)


def _ranges(numbers: Iterable[int]) -> str:
    """`0-3,8` for 0, 1, 2, 3 and 8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
