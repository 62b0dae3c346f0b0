# SPDX-License-Identifier: Apache-2.0
"""The answers of `dovetail fabric show` and `check` as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dovetail.topology.fabric import FabricFinding, FabricReading, in_order
from dovetail.topology.fabric_record import LabelWriter, MeasuredLevel, MeasuredPart, RecordedFabric, StatedLevel
from dovetail.views.spares import DomainSpares


class PlacedNode(Struct, frozen=True):
    """A node and the domains that hold it, the widest first."""

    node: str
    path: tuple[str, ...]


class SourceTree(Struct, frozen=True):
    """What one source describes. `source` is its file, or `cluster`; `keys` are the label keys of its levels, the
    widest first, none if the source names none."""

    source: str
    keys: tuple[str, ...]
    nodes: tuple[PlacedNode, ...]


class FabricTrees(Struct, frozen=True):
    """The places of nodes, by source, and what the Fabric of the cluster states: how fast its `levels` are, the
    writers of the `labels` of nodes, what was `measured` and found `slow`, and the `spares` of each domain. Empty
    without a cluster or a Fabric."""

    sources: tuple[SourceTree, ...]
    levels: tuple[StatedLevel, ...] = ()
    labels: tuple[LabelWriter, ...] = ()
    measured: tuple[MeasuredLevel, ...] = ()
    slow: tuple[MeasuredPart, ...] = ()
    spares: tuple[DomainSpares, ...] = ()


class CheckedSource(Struct, frozen=True):
    """A source and the number of nodes that it places."""

    source: str
    nodes: int


class SourceFinding(Struct, frozen=True):
    """A finding in a source, or between two (`a, b`). `severity` is error or warning, `node` is "" if it is about no
    single node."""

    source: str
    severity: str
    code: str
    what: str
    fix: str
    node: str


class FabricCheck(Struct, frozen=True):
    """What is wrong in the sources, and between each two of them."""

    sources: tuple[CheckedSource, ...]
    findings: tuple[SourceFinding, ...]


def trees_of(
    sources: Mapping[str, FabricReading],
    fabric: RecordedFabric | None = None,
    spares: tuple[DomainSpares, ...] = (),
) -> FabricTrees:
    trees = tuple(_tree(name, reading) for name, reading in sources.items())
    if fabric is None:
        return FabricTrees(trees)
    status = fabric.status
    return FabricTrees(trees, fabric.spec.levels, status.labels, status.measured, status.slow, spares)


def _tree(name: str, reading: FabricReading) -> SourceTree:
    nodes = tuple(PlacedNode(one.node, one.path) for one in in_order(reading.placements))
    return SourceTree(name, reading.keys, nodes)


def check_of(sources: Mapping[str, FabricReading], findings: Mapping[str, Sequence[FabricFinding]]) -> FabricCheck:
    found = (
        SourceFinding(name, one.severity, one.code, one.what, one.kind.fix, one.node)
        for name, each in findings.items()
        for one in each
    )
    return FabricCheck(tuple(CheckedSource(name, len(one.placements)) for name, one in sources.items()), tuple(found))
