# SPDX-License-Identifier: Apache-2.0
"""A picture of a node's topology, as a PNG file: GPUs in a circle by NUMA node, NVLinks as chords, NICs outside.

matplotlib is slow to load, so this module is imported only for a picture.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import cos, pi, sin
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Wedge

from dovetail.views.topology_types import Topology, nearest, numa_groups

_BLUE, _GREY, _ORANGE, _GREEN = "#2563eb", "#9ca3af", "#d97706", "#15803d"
_SHADES = ("#eff6ff", "#fef3c7", "#ecfdf5", "#fdf2f8", "#f5f3ff", "#f1f5f9", "#fff7ed", "#f0fdfa")
_GPUS, _NICS, _WEDGE_FROM, _WEDGE_TO, _NAMES = 1.0, 1.42, 0.8, 1.2, 1.77
"""Distances from the centre."""
_THINNEST, _THICKEST = 0.8, 5.0
_NEAR = ("BOARD", "PIX", "PXB")


def draw(found: Topology, path: Path) -> None:
    """Draw the topology. Raises OSError."""
    figure = Figure(figsize=(8, 7.4), layout="constrained")
    axes = figure.subplots()
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_xlim(-2, 2)
    axes.set_ylim(-2.1, 1.6)
    figure.suptitle(f"{len(found.numa)} GPUs, from {found.source}", x=0.01, ha="left")
    angles = _angles(found)
    legend = [*_links(axes, found, angles), *_nics(axes, found, angles)]
    _groups(axes, found, angles)
    for gpu, angle in enumerate(angles):
        x, y = _at(angle, _GPUS)
        axes.text(
            x,
            y,
            f"GPU{gpu}",
            ha="center",
            va="center",
            color="white",
            fontsize=9,
            zorder=5,
            bbox={"boxstyle": "round,pad=0.4", "facecolor": _BLUE, "edgecolor": "white"},
        )
    if legend:
        axes.legend(handles=legend, frameon=False, loc="lower left", fontsize=9)
    figure.savefig(path, format="png", dpi=120)


def _angles(found: Topology) -> list[float]:
    """The angle of each GPU on the circle: GPUs of a NUMA node are neighbours, the first node is on the left, and there
    is a gap between two nodes."""
    groups = list(numa_groups(found).values())
    slots = len(found.numa) + (len(groups) if len(groups) > 1 else 0)
    angles, slot = [0.0] * len(found.numa), 0.5 if len(groups) > 1 else 0.0
    for gpus in groups:
        for gpu in gpus:
            angles[gpu] = pi / 2 + 2 * pi * (slot + 0.5) / slots
            slot += 1
        slot += 1
    return angles


def _at(angle: float, radius: float) -> tuple[float, float]:
    return radius * cos(angle), radius * sin(angle)


def _groups(axes: Axes, found: Topology, angles: list[float]) -> None:
    groups = numa_groups(found)
    half = 0.75 * pi / (len(angles) + (len(groups) if len(groups) > 1 else 0))
    for at, (node, gpus) in enumerate(groups.items()):
        first, last = (180 / pi * angle for angle in (angles[gpus[0]] - half, angles[gpus[-1]] + half))
        shade = Wedge((0, 0), _WEDGE_TO, first, last, width=_WEDGE_TO - _WEDGE_FROM, color=_SHADES[at % len(_SHADES)])
        shade.set_zorder(0)
        axes.add_patch(shade)
        x, y = _at((angles[gpus[0]] + angles[gpus[-1]]) / 2, _NAMES)
        name = "NUMA node unknown" if node is None else f"NUMA {node}"
        axes.text(x, y, name, ha="center", va="center", color="#4b5563", fontsize=10, fontweight="bold")


def _links(axes: Axes, found: Topology, angles: list[float]) -> list[Line2D]:
    """Draw NVLinks, the wider the faster, and for GPUs without NVLinks a common PCIe switch. Returns the legend."""
    pairs = list(combinations(range(len(angles)), 2))
    counts = sorted({found.nvlinks[i][j] for i, j in pairs} - {0}, reverse=True)
    legend = []
    for at, count in enumerate(counts):
        width = _THINNEST + (_THICKEST - _THINNEST) * count / counts[0] if len(counts) > 1 else 1.6
        style: dict[str, Any] = {"color": _GREEN, "linewidth": width, "alpha": 0.85 - 0.35 * at / len(counts)}
        for i, j in pairs:
            if found.nvlinks[i][j] == count:
                _line(axes, _at(angles[i], _GPUS), _at(angles[j], _GPUS), style)
        number = sum(found.nvlinks[i][j] == count for i, j in pairs)
        which = "all pairs" if number == len(pairs) else f"{number} pairs" if number > 1 else "1 pair"
        legend.append(Line2D([], [], **style, label=f"NV{count}: {count * found.nvlink_mbps / 1000:.1f} GB/s, {which}"))
    for level, dashes in zip(_NEAR, ("solid", "solid", "dashed"), strict=True):
        style = {"color": _ORANGE, "linewidth": 1.6, "linestyle": dashes}
        near = [(i, j) for i, j in pairs if found.pcie[i][j] == level and not found.nvlinks[i][j]]
        for i, j in near:
            _line(axes, _at(angles[i], _GPUS), _at(angles[j], _GPUS), style)
        if near:
            legend.append(Line2D([], [], **style, label=f"{level}: {found.pcie_mbps / 1000:.1f} GB/s"))
    rest = {found.pcie[i][j] or "unknown" for i, j in pairs if not found.nvlinks[i][j]} - set(_NEAR)
    if rest:
        legend.append(Line2D([], [], linestyle="none", label=f"no line: {', '.join(sorted(rest))}"))
    return legend


def _line(axes: Axes, a: tuple[float, float], b: tuple[float, float], style: dict[str, Any]) -> None:
    axes.plot([a[0], b[0]], [a[1], b[1]], zorder=1, solid_capstyle="round", **style)


def _nics(axes: Axes, found: Topology, angles: list[float]) -> list[Line2D]:
    """Draw NICs beside the GPUs of their PCIe switch, else beside their NUMA node, else in a line below. Returns the
    legend."""
    wanted: list[tuple[float, int]] = []
    far = []
    for nic, view in enumerate(found.nics):
        level, gpus = nearest(view)
        if level not in _NEAR:
            gpus = [gpu for gpu, node in enumerate(found.numa) if node == view.numa and node is not None]
        if gpus:
            wanted.append((sum(angles[gpu] for gpu in gpus) / len(gpus), nic))
        else:
            far.append(nic)
    style: dict[str, Any] = {"color": _GREY, "linewidth": 1.2}
    levels = Counter[str]()
    for angle, nic in _spread(sorted(wanted)):
        x, y = _at(angle, _NICS)
        level, gpus = nearest(found.nics[nic])
        for gpu in gpus if level in _NEAR else ():
            levels[str(level)] += 1
            _line(axes, (x, y), _at(angles[gpu], _GPUS), style)
        box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": _GREY}
        axes.text(x, y, f"NIC{nic}", ha="center", va="center", fontsize=8, color="#374151", zorder=5, bbox=box)
    if far:
        names = ", ".join(f"NIC{nic}" for nic in far)
        axes.text(1.95, -2.05, f"near no GPU: {names}", ha="right", fontsize=9, color="#374151")
    return [Line2D([], [], **style, label=f"NIC and GPU: {', '.join(sorted(levels))}")] if levels else []


def _spread(wanted: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The angles in the same order, moved apart so that no two NICs overlap."""
    room = 2 * pi / max(20, len(wanted) + 2)
    angles = [angle for angle, _ in wanted]
    for _ in range(60):
        for at in range(1, len(angles)):
            lacks = room - (angles[at] - angles[at - 1])
            if lacks > 0:
                angles[at - 1] -= lacks / 2
                angles[at] += lacks / 2
    return [(angle, nic) for angle, (_, nic) in zip(angles, wanted, strict=True)]
