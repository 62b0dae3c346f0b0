# SPDX-License-Identifier: Apache-2.0
"""Parser of the output of `nvidia-smi topo -m` into a node's layout.

The first line whose columns begin with GPU0 is the header. The parser ignores text before it, lines that begin with
`#`, terminal colours and the legend. Cells are separated by any white space. Every device of the header must have a
row, and the matrix must be symmetric.

- `NV#` counts NVLinks and hides the PCIe level, which is then UNKNOWN.
- NUMA Affinity is a list of NUMA nodes. If the first item is a single node (`0`, `0,2-17`), it is the one with CPUs: on
  Grace the others are the memory of GPUs. If the list begins with a range (`0-1`), several nodes are equally near: the
  node is UNKNOWN, unless the GPU has its own NUMA node (GPU NUMA ID), which means Grace.
- Without that column the NUMA nodes follow from the CPU affinities, if that is certain: the CPU lists of two GPUs are
  equal or disjoint, there are at least two lists, together they cover all CPUs, and the matrix has SYS exactly between
  GPUs with different lists. They are numbered by their first CPU, as in Linux.
- A NIC is in the NUMA node of the GPUs that it reaches without SYS, if that is one node.
- The text has no link rates: they come from the product or are defaults.
"""

from __future__ import annotations

import re
from itertools import combinations

from msgspec import Struct

from dovetail.core.devices import products
from dovetail.core.devices.layout import (
    BOARD,
    MAX_NUMA,
    NODE,
    PHB,
    PIX,
    PXB,
    SYS,
    UNKNOWN,
    Layout,
    LayoutError,
    Matrix,
    Nic,
)
from dovetail.topology.reading import Reading

_LEVEL_OF = {"PSB": BOARD, "PIX": PIX, "PXB": PXB, "PHB": PHB, "NODE": NODE, "SYS": SYS, "SOC": SYS}
"""DCGM prints PSB for two GPUs of one board. Old drivers print SOC for SYS."""
_MOST_LINKS = 36
_VALID = f"X, NV1 to NV{_MOST_LINKS}, {', '.join(_LEVEL_OF)}"
_CPU, _NUMA, _GPU_NUMA = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
_COLUMN = re.compile(f"{_CPU}|{_NUMA}|{_GPU_NUMA}")
_COLOUR = re.compile(r"\x1b?\[[0-9;]*m")
"""The escape character is optional: text copied from an issue has often lost it."""
_NVLINKS = re.compile(r"NV([1-9]\d?)", re.ASCII)
_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", re.ASCII)

Line = tuple[int, str]


class _Head(Struct, frozen=True):
    """The columns: the devices, of which the first `gpus` are GPUs, then the `named` columns."""

    line: int
    devices: tuple[str, ...]
    gpus: int
    named: tuple[str, ...]


class _Row(Struct, frozen=True):
    """The cells of a device and the values of its named columns. Columns that are empty or N/A are left out."""

    line: int
    cells: tuple[str, ...]
    named: dict[str, str]


def parse(text: str, product: str | None = None) -> Layout:
    """The layout. `product` determines the link rates: a model (H100-SXM5), a GFD label or nvidia-smi's name.

    Raises LayoutError with line and column if any part of the text cannot be parsed."""
    return read(text, product).layout


def read(text: str, product: str | None = None) -> Reading:
    """Like `parse`, with notes about missing values."""
    lines = [(number, _COLOUR.sub("", line)) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]
    head, below = _head(lines)
    _not_pcie_alone(below)
    rows = _rows(head, below)
    levels, links = _matrices(head, rows)
    gpus = range(head.gpus)
    pcie = tuple(levels[i][: head.gpus] for i in gpus)
    nvlinks = tuple(links[i][: head.gpus] for i in gpus)
    notes: list[str] = []
    numa = _numa(head, rows, pcie, notes)
    rates = products.rates(product, max(map(max, nvlinks)))
    layout = Layout(
        numa=numa,
        pcie=pcie,
        nvlinks=nvlinks,
        nics=tuple(_nic(row[: head.gpus], numa) for row in levels[head.gpus :]),
        nvlink_mbps=rates.nvlink_mbps,
        pcie_mbps=rates.pcie_mbps,
    )
    assumed = [*rates.assumed, *[f"{layout.socket_mbps} MB/s between NUMA nodes"] * any(SYS in row for row in pcie)]
    if assumed:
        notes.append(f"the text has no rates; assumed: {', '.join(assumed)}")
    return Reading(layout, tuple(notes))


def _head(lines: list[Line]) -> tuple[_Head, list[Line]]:
    at = next((at for at, (_, line) in enumerate(lines) if _is_head(line.split())), None)
    if at is None:
        raise LayoutError("text", "no line has the columns GPU0, GPU1 ...: is this what `nvidia-smi topo -m` prints?")
    number, line = lines[at]
    first = _COLUMN.search(line)
    devices = line[: first.start() if first else None].split()
    named = _COLUMN.findall(line)
    left = _COLUMN.sub("", line[first.start() :]).split() if first else []
    gpus = [device for device in devices if re.fullmatch(r"GPU\d+", device)]
    if left or len(set(named)) < len(named):
        known = ", ".join((_CPU, _NUMA, _GPU_NUMA))
        raise LayoutError(
            f"line {number}", f"{' '.join(left) or 'a column'} is not expected after the devices: {known}"
        )
    if gpus != [f"GPU{i}" for i in range(len(gpus))] or devices[: len(gpus)] != gpus:
        raise LayoutError(f"line {number}", "the columns must begin with GPU0, GPU1 and so on, without a gap")
    if len(set(devices)) < len(devices):
        raise LayoutError(f"line {number}", "a device has two columns")
    return _Head(number, tuple(devices), len(gpus), tuple(named)), lines[at + 1 :]


def _is_head(words: list[str]) -> bool:
    return words[0] == "GPU0" and words[1:2] != ["X"]


def _not_pcie_alone(below: list[Line]) -> None:
    legend = {words[0] for _, line in below if (words := line.split())[1:2] == ["="]}
    if {"SYS", "PIX"} <= legend and "NV#" not in legend:
        message = "the legend has no NV#: this is `nvidia-smi topo -mp`, which leaves NVLinks out; use `topo -m`"
        raise LayoutError("legend", message)


def _rows(head: _Head, below: list[Line]) -> list[_Row]:
    rows: dict[str, _Row] = {}
    after = "the text ends"
    for number, line in below:
        name = line.split(maxsplit=1)[0]
        if name in rows:
            raise LayoutError(f"line {number}", f"a second row of {name}, after line {rows[name].line}")
        if name not in head.devices:
            after = f"line {number} is {line.strip()[:40]!r}"
            break
        rows[name] = _row(head, number, line)
        if len(rows) == len(head.devices):
            break
    missing = [device for device in head.devices if device not in rows]
    if missing:
        last = max((row.line for row in rows.values()), default=head.line)
        message = f"{after} where rows are missing: {', '.join(missing)} (columns of line {head.line})"
        raise LayoutError(f"after line {last}", message)
    return [rows[device] for device in head.devices]


def _row(head: _Head, number: int, line: str) -> _Row:
    name, *words = line.split()
    count = len(head.devices)
    cells, rest = tuple(words[:count]), words[count:]
    if len(cells) < count:
        raise LayoutError(f"line {number}, {name}", f"has {len(cells)} of {count} cells")
    if name not in head.devices[: head.gpus]:
        if rest:
            raise LayoutError(f"line {number}, {name}", f"has {rest[0]!r} after its {count} cells")
        return _Row(number, cells, {})
    tabbed = [part.strip() for part in line.split("\t")]
    if tuple(tabbed[1 : count + 1]) == cells:
        # Between tabs a cell may be empty. Two tabs precede the last of the named columns.
        values = tabbed[count + 1 :]
        values = [*values[: len(head.named) - 1], " ".join(values[len(head.named) - 1 :]).strip()]
        values += [""] * (len(head.named) - len(values))
    elif head.named[-1:] == (_GPU_NUMA,) and len(rest) == 1:
        values = [*[""] * (len(head.named) - 1), *rest]
    else:
        values = rest
    if (rest and len(values) != len(head.named)) or any(" " in value for value in values):
        message = f"has {len(rest)} cells after its devices: {' '.join(rest)}; line {head.line} has {len(head.named)}"
        raise LayoutError(f"line {number}, {name}", message)
    named = {column: value for column, value in zip(head.named, values, strict=False) if value not in ("", "N/A")}
    for column, value in named.items():
        if not _LIST.fullmatch(value) or not _numbers(value):
            message = f"{value!r} is no list of numbers such as 0-15,32-47, nor N/A"
            raise LayoutError(f"line {number}, {name}, column {column}", message)
    return _Row(number, cells, named)


def _matrices(head: _Head, rows: list[_Row]) -> tuple[Matrix, Matrix]:
    """The levels and the NVLink counts between all devices."""
    for i, row in enumerate(rows):
        for j, cell in enumerate(row.cells):
            where = f"line {row.line}, {head.devices[i]}, column {head.devices[j]}"
            links = _NVLINKS.fullmatch(cell)
            if cell not in ("X", *_LEVEL_OF) and not (links and int(links[1]) <= _MOST_LINKS):
                raise LayoutError(where, f"{cell!r} is not one of {_VALID}")
            if (cell == "X") != (i == j):
                raise LayoutError(where, f"{cell!r}: X stands where a device meets itself, and only there")
            other = rows[j].cells[i]
            if j < i and cell != other:
                raise LayoutError(where, f"is {cell}, and {other} the other way, in line {rows[j].line}")
            if links and max(i, j) >= head.gpus:
                raise LayoutError(where, f"{cell} is between GPUs, and {head.devices[max(i, j)]} is none")
    levels = tuple(tuple(BOARD if cell == "X" else _LEVEL_OF.get(cell, UNKNOWN) for cell in row.cells) for row in rows)
    links_of = [[_NVLINKS.fullmatch(cell) for cell in row.cells] for row in rows]
    return levels, tuple(tuple(int(found[1]) if found else 0 for found in row) for row in links_of)


def _numa(head: _Head, rows: list[_Row], pcie: Matrix, notes: list[str]) -> tuple[int, ...]:
    gpus = rows[: head.gpus]
    if _NUMA not in head.named:
        numa = _numa_of_cpus(gpus, pcie)
        notes.append(
            "the text has no NUMA nodes: they follow from the CPU affinities"
            if UNKNOWN not in numa
            else "the text has no NUMA nodes, and they do not follow from the CPU affinities"
        )
        return numa
    numa = tuple(_first_node(head.devices[i], row) for i, row in enumerate(gpus))
    unknown = [head.devices[i] for i, node in enumerate(numa) if node == UNKNOWN]
    if unknown:
        notes.append(f"the text has no NUMA node of {', '.join(unknown)}")
    return numa


def _first_node(name: str, row: _Row) -> int:
    value = row.named.get(_NUMA, "")
    nodes = _numbers(value)
    if nodes and nodes[0] >= MAX_NUMA:
        message = f"NUMA node {nodes[0]} is not from 0 to {MAX_NUMA - 1}"
        raise LayoutError(f"line {row.line}, {name}, column {_NUMA}", message)
    alone = "-" not in value.partition(",")[0]
    return nodes[0] if nodes and (alone or _GPU_NUMA in row.named) else UNKNOWN


def _numa_of_cpus(gpus: list[_Row], pcie: Matrix) -> tuple[int, ...]:
    unknown = (UNKNOWN,) * len(gpus)
    cpus = [frozenset(_numbers(row.named.get(_CPU, ""))) for row in gpus]
    groups = sorted(set(cpus), key=sorted)
    everything = frozenset[int]().union(*groups)
    if len(groups) < 2 or any(a & b for a, b in combinations(groups, 2)) or not all(groups):
        return unknown
    if everything != frozenset(range(len(everything))):
        return unknown
    for i, j in combinations(range(len(gpus)), 2):
        if pcie[i][j] != UNKNOWN and (pcie[i][j] == SYS) != (cpus[i] != cpus[j]):
            return unknown
    return tuple(map(groups.index, cpus))


def _nic(levels: tuple[int, ...], numa: tuple[int, ...]) -> Nic:
    # nvidia-smi lists the devices of the RDMA subsystem, so all of them support RDMA.
    near = {node for node, level in zip(numa, levels, strict=True) if level < SYS}
    return Nic(levels, near.pop() if len(near) == 1 else UNKNOWN)


def _numbers(text: str) -> list[int]:
    """The numbers of a list, in its order: `0-2,7` is 0, 1, 2, 7."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found
