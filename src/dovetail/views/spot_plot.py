# SPDX-License-Identifier: Apache-2.0
"""A picture of the cost of spot by checkpoint interval, as a PNG file. matplotlib is slow to load, so this module is
imported only for a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

_BLUE, _GREY = "#2563eb", "#9ca3af"
_SHADES = ("#d97706", "#15803d", "#7c3aed")
_ABOVE = 1.25


def draw(
    title: str, curve: Sequence[tuple[float, float]], marked: Mapping[str, tuple[float, float]], path: Path
) -> None:
    """Draw a curve of (interval in seconds, cost as a multiple of that on demand), with named points. Raises
    OSError."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(title, x=0.01, ha="left")
    minutes, costs = [interval / 60 for interval, _ in curve], [cost for _, cost in curve]
    axes.plot(minutes, costs, color=_BLUE, label="spot")
    axes.axhline(1, color=_GREY, linestyle="dashed", label="on demand")
    for (name, (interval, cost)), shade in zip(marked.items(), _SHADES, strict=False):
        axes.plot([interval / 60], [cost], "o", color=shade, label=f"{name}: {interval / 60:.1f} min, {cost:.3f}")
    most = max(1.0, *(cost for _, cost in marked.values()))
    axes.set_ylim(0, min(_ABOVE * most, max(1.1, *costs)))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("checkpoint interval, in minutes")
    axes.set_ylabel("expected cost, on demand = 1")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, format="png", dpi=120)
