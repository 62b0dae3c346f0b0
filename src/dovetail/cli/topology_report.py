# SPDX-License-Identifier: Apache-2.0
"""What `dovetail topology` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from dovetail.cli.console import Console, Table
from dovetail.cli.markup import escape
from dovetail.views.topology_types import NodeInside, PodGpus, Policies, Topology, equal_sets, nearest, numa_groups

_STYLES = {"PIX": "cyan", "PXB": "cyan", "BOARD": "cyan", "PHB": "yellow", "NODE": "yellow", "SYS": "dim", "?": "dim"}
_NVLINK_STYLE = "green"
_NOT_KNOWN = "not known"


def show_node(found: NodeInside, console: Console) -> None:
    """Print a node of the cluster."""
    gpus = f"offers {_count(found.gpus, 'GPU')}, {found.free or 'none'} free" if found.gpus else "offers no GPUs"
    console.print(f"[bold]Node {found.node}[/bold] {gpus}. {escape(_kubelet(found.policies))}")
    for finding in found.findings:
        console.print(f"[yellow]attention:[/yellow] {escape(finding)}")
    if found.pods:
        console.print()
        console.print(_holders(found.pods))
    console.print()
    if found.topology is None:
        console.print("The wiring of its GPUs is not known: only their number counts.")
    else:
        show(found.topology, console)


def _kubelet(policies: Policies) -> str:
    scope = f" per {policies.topology_manager_scope}" if policies.topology_manager_scope else ""
    options = f" ({', '.join(policies.cpu_manager_options)})" if policies.cpu_manager_options else ""
    managers = (
        ("topology", policies.topology_manager, scope),
        ("CPU", policies.cpu_manager, options),
        ("memory", policies.memory_manager, ""),
    )
    texts = (f"{name} {policy}{more}" if policy else f"{name} {_NOT_KNOWN}" for name, policy, more in managers)
    return f"Policies of its kubelet's managers: {', '.join(texts)}."


def _holders(pods: Iterable[PodGpus]) -> Table:
    table = Table("pod", "GPUs", "which", "GB/s", "best GB/s")
    for held in pods:
        which = _NOT_KNOWN if held.gpus is None else _ranges(held.gpus)
        rates = ("" if mbps is None else f"{mbps / 1000:.1f}" for mbps in (held.mbps, held.ideal_mbps))
        table.add_row(held.pod, str(held.count), which, *rates)
    return table


def show(found: Topology, console: Console) -> None:
    """Print the topology."""
    console.print(_head(found))
    for note in found.notes:
        console.print(f"[yellow]attention:[/yellow] {escape(note)}")
    for table in (*_matrix(found, console.width), *_nics(found), *_sets(found, console.width)):
        console.print()
        console.print(table)


def _head(found: Topology) -> str:
    rates = [f"PCIe {_gb(found.pcie_mbps)}", f"between NUMA nodes {_gb(found.socket_mbps)}"]
    if any(map(any, found.nvlinks)):
        rates.insert(0, f"NVLink {_gb(found.nvlink_mbps)} per link{' (wiring assumed)' if found.assumed else ''}")
    parts = [_count(len(found.numa), "GPU")]
    nodes = [node for node in numa_groups(found) if node is not None]
    if nodes:
        parts.append(_count(len(nodes), "NUMA node"))
    parts.append(_count(len(found.nics), "NIC"))
    return f"[bold]{', '.join(parts)}[/bold], from {found.source}. {'; '.join(rates)}."


def _matrix(found: Topology, width: int) -> Iterator[Table]:
    """The link between each two GPUs, in as many blocks of columns as the width of the terminal needs."""
    count = len(found.numa)
    cells = [[_cell(found, i, j) for j in range(count)] for i in range(count)]
    wide = max(len(cell) for row in cells for cell in row) if count > 1 else 1
    column = max(wide, len(f"GPU{count - 1}")) + 2
    fits = max(1, (width - 14) // column)
    blocks = -(-count // fits)
    for first in range(0, count, -(-count // blocks)):
        columns = range(first, min(first + -(-count // blocks), count))
        table = Table("", "NUMA", *(f"GPU{j}" for j in columns))
        for node, gpus in numa_groups(found).items():
            for gpu in gpus:
                texts = [_styled(cells[gpu][j], _style(cells[gpu][j])) for j in columns]
                table.add_row(f"GPU{gpu}", "?" if node is None else str(node), *texts)
        yield table


def _cell(found: Topology, i: int, j: int) -> str:
    if i == j:
        return "X"
    return f"NV{found.nvlinks[i][j]}" if found.nvlinks[i][j] else found.pcie[i][j] or "?"


def _styled(text: str, style: str) -> str:
    return f"[{style}]{text}[/]" if style else text


def _style(cell: str) -> str:
    return _NVLINK_STYLE if cell.startswith("NV") else _STYLES.get(cell, "")


def _nics(found: Topology) -> Iterator[Table]:
    if not found.nics:
        return
    table = Table("", "NUMA", "Gbit/s", "RDMA", "nearest GPUs")
    for i, nic in enumerate(found.nics):
        level, gpus = nearest(nic)
        all_gpus = len(gpus) == len(found.numa) and len(gpus) > 1
        table.add_row(
            f"NIC{i}",
            "?" if nic.numa is None else str(nic.numa),
            "?" if nic.speed_mbps is None else f"{nic.speed_mbps * 8 / 1000:g}",
            "yes" if nic.rdma else "no",
            _styled(level or "?", _style(level or "?")) + (" all" if all_gpus else f" {_ranges(gpus)}"),
        )
    yield table


def _sets(found: Topology, width: int) -> Iterator[Table]:
    if not found.sets:
        return
    table = Table("GPUs", "GB/s", "sets", "which")
    for size, groups in groupby(equal_sets(found), key=lambda each: each.size):
        equal = list(groups)
        for each in equal:
            sets = len(each.sets)
            which = "all" if len(equal) == 1 else _some([_ranges(gpus) for gpus in each.sets], width - 24)
            table.add_row(str(size), f"{each.mbps / 1000:.1f}", str(sets), which)
    yield table


def _some(names: list[str], width: int) -> str:
    """As many of the names as fit on a line, and the number of the others."""
    line = ""
    for shown, name in enumerate(names):
        longer = f"{line}  {name}" if line else name
        more = len(names) - shown - 1
        if len(longer) + (len(f"  +{more}") if more else 0) > width and line:
            return f"{line}  +{len(names) - shown}"
        line = longer
    return line


def _ranges(gpus: Iterable[int]) -> str:
    """`0-2,5` for 0, 1, 2 and 5; `0,1` for 0 and 1."""
    parts: list[list[int]] = []
    for gpu in gpus:
        if parts and parts[-1][-1] == gpu - 1:
            parts[-1].append(gpu)
        else:
            parts.append([gpu])
    return ",".join(",".join(map(str, part)) if len(part) < 3 else f"{part[0]}-{part[-1]}" for part in parts)


def _gb(mbps: int) -> str:
    return f"{mbps / 1000:.1f} GB/s"


def _count(number: int, one: str) -> str:
    return f"{number or 'no'} {one if number == 1 else one + 's'}"
