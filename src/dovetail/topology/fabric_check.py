# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the places of nodes: in one source, and between two.

Rules
- Two sources agree if no domain of the one crosses a domain of the other: of the nodes that both know, the one domain
  holds the other, or they have no node in common. Names and numbers of levels may differ.
- Where two domains cross, the nodes that are most likely wrong are the smallest of the three parts: what both have, and
  what only the one or the other has.
- A domain is unequal if it has fewer nodes than most others of the narrowest level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import TypeAlias

from dovetail.topology.fabric import FabricFinding, FabricPlacement, FabricReading

_MOST_SHOWN = 3
_Path: TypeAlias = tuple[str, ...]


def findings_of(sources: Mapping[str, FabricReading]) -> dict[str, list[FabricFinding]]:
    """The findings by source, or by the two sources that are compared (`a, b`)."""
    found = {name: [*reading.findings, *_unequal(reading)] for name, reading in sources.items()}
    for (a, one), (b, other) in combinations(sources.items(), 2):
        between = [*_renamed(one, other), *_crossing(a, one, b, other), *_only_one(a, one, b, other)]
        found[f"{a}, {b}"] = between
    return found


def _unequal(reading: FabricReading) -> Iterator[FabricFinding]:
    sizes = Counter(one.path for one in reading.placements)
    if len(sizes) > 2:
        usual = Counter(sizes.values()).most_common(1)[0][0]
        for path, size in sizes.items():
            if size < usual:
                yield FabricFinding("unequal", f"{' / '.join(path)} has {size} of the {usual} nodes that most have")


def _renamed(one: FabricReading, other: FabricReading) -> Iterator[FabricFinding]:
    for guid, name in one.switches.items():
        now = other.switches.get(guid, name)
        if now != name:
            yield FabricFinding("renamed-switch", f"{guid} is {name} in the first and {now} in the second")


def _only_one(a: str, one: FabricReading, b: str, other: FabricReading) -> Iterator[FabricFinding]:
    nodes, others = ({place.node for place in reading.placements} for reading in (one, other))
    for name, only in ((a, nodes - others), (b, others - nodes)):
        if only:
            shown = ", ".join(sorted(only)[:_MOST_SHOWN])
            yield FabricFinding("one-source", f"{len(only)} nodes are only in {name}, such as {shown}")


def _crossing(a: str, one: FabricReading, b: str, other: FabricReading) -> Iterator[FabricFinding]:
    """Pairs of domains that cross, from the narrowest up; a node is named once."""
    first = {place.node: place for place in one.placements}
    second = {place.node: place for place in other.placements}
    both = [node for node in first if node in second]
    if not both:
        yield FabricFinding(
            "disagreement", f"{a} and {b} have no node in common: are they of one cluster, with one kind of name?"
        )
        return
    named: set[str] = set()
    depths = [(i, j) for i in range(1, _levels(first) + 1) for j in range(1, _levels(second) + 1)]
    for i, j in sorted(depths, key=sum, reverse=True):
        left, right = (
            {node: places[node].path[:depth] for node in both} for places, depth in ((first, i), (second, j))
        )
        sizes, others = Counter(left.values()), Counter(right.values())
        shared = Counter((left[node], right[node]) for node in both)
        # The domains of the other source that share nodes with a domain, by which part of the two is the smallest.
        suspects: dict[tuple[str, _Path], set[_Path]] = {}
        for (x, y), n in shared.items():
            # Of domains that do not cross, the smallest part is empty: no node is in it.
            part = min(("both", n), ("first", sizes[x] - n), ("second", others[y] - n), key=lambda one: one[1])[0]
            key, value = (y, x) if part == "second" else (x, y)
            suspects.setdefault((part, key), set()).add(value)
        for node in both:
            x, y = left[node], right[node]
            crosses = (
                y in suspects.get(("both", x), ())
                or suspects.get(("first", x), set()) - {y}
                or suspects.get(("second", y), set()) - {x}
            )
            if crosses and node not in named:
                named.add(node)
                what = f"{node}: {a} has it in {' / '.join(x)}, {b} in {' / '.join(y)}"
                yield FabricFinding("disagreement", what, node)


def _levels(places: Mapping[str, FabricPlacement]) -> int:
    return max(len(place.path) for place in places.values())
