# SPDX-License-Identifier: Apache-2.0
"""A picture of the network above the nodes, as a PNG file: a bar for each domain, as wide as its nodes, below that of
the domain that holds it.

Rules: the domains next to the nodes are blue, those with fewer nodes than most are orange. A name stands where there is
room for it. Several sources are one below the other.

matplotlib is slow to load, so this module is imported only for a picture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from msgspec import Struct

from dovetail.topology.fabric import FabricReading, filled, in_order

_BLUE, _ORANGE, _GREY = "#2563eb", "#d97706", "#e5e7eb"
_WIDTH_INCHES, _LEVEL_INCHES, _HEAD_INCHES = 12.0, 0.5, 0.9
_CHARACTERS = 150
"""Of a small font over the whole width."""


class _Bar(Struct, frozen=True):
    """A domain at a level, 0 the widest, that holds the nodes from `first` on."""

    level: int
    first: int
    nodes: int
    name: str


def draw(sources: Mapping[str, FabricReading], path: Path) -> None:
    """Draw the tree of each source. Raises OSError."""
    drawn(sources).savefig(path, format="png", dpi=120)


def drawn(sources: Mapping[str, FabricReading]) -> Figure:
    """The picture."""
    levels = {source: max((len(one.path) for one in found.placements), default=0) for source, found in sources.items()}
    heights = [_HEAD_INCHES + _LEVEL_INCHES * max(1, count) for count in levels.values()]
    figure = Figure(figsize=(_WIDTH_INCHES, sum(heights)), layout="constrained")
    every = figure.subplots(len(sources), squeeze=False, height_ratios=heights)
    for axes, (source, found) in zip(every[:, 0], sources.items(), strict=True):
        _draw_one(axes, source, found, levels[source])
    return figure


def _draw_one(axes: Axes, source: str, found: FabricReading, levels: int) -> None:
    count = len(found.placements)
    bars = list(_bars(found, levels))
    narrowest = [bar.nodes for bar in bars if bar.level == levels - 1]
    usual = max(Counter(narrowest).most_common(1), default=(0, 0))[0]
    axes.set_title(f"{source}: {count} node{'' if count == 1 else 's'}", loc="left", fontsize=9, parse_math=False)
    for bar in bars:
        leaf = bar.level == levels - 1
        color = (_ORANGE if bar.nodes < usual else _BLUE) if leaf else _GREY
        axes.barh(-bar.level, bar.nodes, 0.9, left=bar.first, color=color, edgecolor="white", linewidth=0.5)
        text = f"{bar.name} ({bar.nodes})"
        if len(text) * count <= _CHARACTERS * bar.nodes:
            axes.text(
                bar.first + bar.nodes / 2,
                -bar.level,
                text,
                ha="center",
                va="center",
                fontsize=7,
                color="white" if leaf else "black",
                parse_math=False,
            )
    axes.set_xlim(0, max(count, 1))
    axes.set_axis_off()


def _bars(found: FabricReading, levels: int) -> Iterator[_Bar]:
    paths = [filled(one.path, levels) for one in in_order(found.placements)]
    for level in range(levels):
        first = 0
        for path, group in groupby(paths, key=lambda path: path[: level + 1]):
            nodes = len(list(group))
            yield _Bar(level, first, nodes, path[-1])
            first += nodes
