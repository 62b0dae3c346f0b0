# SPDX-License-Identifier: Apache-2.0
"""`dovetail topology`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dovetail.core.devices.layout import LayoutError
from dovetail.views.topology import Topology, equal_sets, nearest, numa_groups, topology

_STYLES = {"PIX": "cyan", "PXB": "cyan", "BOARD": "cyan", "PHB": "yellow", "NODE": "yellow", "SYS": "dim", "?": "dim"}
_NVLINK_STYLE = "green"


@click.command(name="topology")
@click.argument("file")
@click.option(
    "--product", metavar="NAME", help="The GPUs' model, GFD label or nvidia-smi name: gives the links' rates."
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help="Also draw a picture."
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(file: str, product: str | None, plot: Path | None, output: str) -> None:
    """Show how the GPUs of a node are wired, and the bandwidth of every set of them.

    FILE is what `nvidia-smi topo -m` printed, or a topology XML of NCCL (NCCL_TOPO_DUMP_FILE); - is stdin.
    """
    if plot is not None and not plot.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(plot.parent)!r}", param_hint="--plot")
    try:
        found = topology(_read(file), product)
    except LayoutError as error:
        if error.field == "product":
            raise click.BadParameter(error.message, param_hint="--product") from error
        raise click.ClickException(f"{file}: {error}") from error
    if output == "json":
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    else:
        show(found, Console())
    if plot is not None:
        # Imported here: matplotlib takes half a second to load.
        from dovetail.views.topology_plot import draw

        try:
            draw(found, plot)
        except OSError as error:
            raise click.ClickException(f"cannot write the picture: {error}") from error
        Console(stderr=True).print(f"drawn: {plot}", highlight=False)


def _read(file: str) -> str:
    try:
        with click.open_file(file, "rb") as stream:
            return bytes(stream.read()).decode()
    except OSError as error:
        raise click.ClickException(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}") from error


def show(found: Topology, console: Console) -> None:
    """Print the topology for a person."""
    console.print(_head(found), highlight=False)
    for note in found.notes:
        console.print(f"[yellow]attention:[/yellow] {escape(note)}", highlight=False)
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
    """What is between any two GPUs, in as many blocks of columns as the terminal needs."""
    count = len(found.numa)
    cells = [[_cell(found, i, j) for j in range(count)] for i in range(count)]
    wide = max(len(cell) for row in cells for cell in row) if count > 1 else 1
    column = max(wide, len(f"GPU{count - 1}")) + 2
    fits = max(1, (width - 14) // column)
    blocks = -(-count // fits)
    for first in range(0, count, -(-count // blocks)):
        columns = range(first, min(first + -(-count // blocks), count))
        table = Table("", "NUMA", *(f"GPU{j}" for j in columns), box=None, pad_edge=False)
        for node, gpus in numa_groups(found).items():
            for gpu in gpus:
                texts = [Text(cells[gpu][j], _style(cells[gpu][j])) for j in columns]
                table.add_row(f"GPU{gpu}", "?" if node is None else str(node), *texts)
        yield table


def _cell(found: Topology, i: int, j: int) -> str:
    if i == j:
        return "X"
    return f"NV{found.nvlinks[i][j]}" if found.nvlinks[i][j] else found.pcie[i][j] or "?"


def _style(cell: str) -> str:
    return _NVLINK_STYLE if cell.startswith("NV") else _STYLES.get(cell, "")


def _nics(found: Topology) -> Iterator[Table]:
    if not found.nics:
        return
    table = Table("", "NUMA", "Gbit/s", "RDMA", "nearest GPUs", box=None, pad_edge=False)
    for i, nic in enumerate(found.nics):
        level, gpus = nearest(nic)
        everybody = len(gpus) == len(found.numa) and len(gpus) > 1
        table.add_row(
            f"NIC{i}",
            "?" if nic.numa is None else str(nic.numa),
            "?" if nic.speed_mbps is None else f"{nic.speed_mbps * 8 / 1000:g}",
            "yes" if nic.rdma else "no",
            Text.assemble((f"{level or '?'} ", _style(level or "?")), "all" if everybody else _ranges(gpus)),
        )
    yield table


def _sets(found: Topology, width: int) -> Iterator[Table]:
    if not found.sets:
        return
    table = Table("GPUs", "GB/s", "sets", "which", box=None, pad_edge=False)
    for size, groups in groupby(equal_sets(found), key=lambda each: each.size):
        equal = list(groups)
        for each in equal:
            sets = len(each.sets)
            which = "all" if len(equal) == 1 else _some([_ranges(gpus) for gpus in each.sets], width - 24)
            table.add_row(str(size), f"{each.mbps / 1000:.1f}", str(sets), which)
    yield table


def _some(names: list[str], width: int) -> str:
    """As many of the names as fit on a line, and how many more there are."""
    line = ""
    for shown, name in enumerate(names):
        longer = f"{line}  {name}" if line else name
        more = len(names) - shown - 1
        if len(longer) + (len(f"  +{more}") if more else 0) > width and line:
            return f"{line}  +{len(names) - shown}"
        line = longer
    return line


def _ranges(gpus: Iterable[int]) -> str:
    """0, 1, 2 and 5 are 0-2,5; 0 and 1 are 0,1."""
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
