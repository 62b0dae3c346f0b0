# SPDX-License-Identifier: Apache-2.0
"""Which groups of nodes measure a fabric, and what is slow by their results.

Rules
- A level is measured inside its domains: between the parts that the next narrower level makes of one, or between its
  nodes at the narrowest. The level "" is all nodes.
- Pairs: the parts of a domain in a ring, each with the next one, so that a part is in two pairs. Ring: a node of every
  part at once.
- A part is slow if all pairs that it is in are: the neighbours of a slow one have a fast pair with their other
  neighbour. Of two parts alone both are slow: which one it is stays open.
- A pair of wider parts with a slow node in it does not count for their links.
- A group whose job gave no result is failed, and slows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

PAIR, RING = "pair", "ring"


class PlacedGpuNode(Struct, frozen=True):
    """A node and its domain at each level, the widest first; "" where it has none."""

    name: str
    domains: tuple[str, ...]


class FabricGroup(Struct, frozen=True):
    """Nodes to measure between: one for each of the `parts` of a domain at `level`. The parts are domains of the level
    `of`, or nodes that have none there; "": nodes."""

    level: str
    shape: str
    nodes: tuple[str, ...]
    parts: tuple[str, ...]
    of: str = ""

    def marks(self) -> tuple[tuple[str, str], ...]:
        """The parts as they are marked: the level of a domain, "" for a node, and the name."""
        return tuple(("" if part in self.nodes else self.of, part) for part in self.parts)


class GroupResult(Struct, frozen=True):
    """`mbps` is the bus bandwidth, None where the job gave none, for the reason in `why`; `expected_mbps` 0 where
    nothing is expected."""

    group: FabricGroup
    mbps: int | None
    expected_mbps: int = 0
    why: str = ""


class SlowResult(Struct, frozen=True):
    """A node (`level` "") or a domain: the best that was measured of it, and what was expected."""

    level: str
    name: str
    mbps: int
    expected_mbps: int


def groups_of(
    nodes: Sequence[PlacedGpuNode], levels: Sequence[str], wanted: Iterable[str], shapes: Iterable[str]
) -> Iterator[FabricGroup]:
    """The groups of the wanted levels, of which "" is all nodes, from the narrowest on; `levels` are those of the
    nodes, the widest first."""
    wanted, shapes = set(wanted), tuple(shapes)
    for at in range(len(levels) - 1, -2, -1):
        level = levels[at] if at >= 0 else ""
        if level in wanted:
            of = levels[at + 1] if at + 1 < len(levels) else ""
            domains: dict[str, dict[str, list[str]]] = {}
            for node in nodes:
                if at < 0 or node.domains[at]:
                    part = node.domains[at + 1] if of and node.domains[at + 1] else node.name
                    domains.setdefault(node.domains[at] if at >= 0 else "", {}).setdefault(part, []).append(node.name)
            for parts in domains.values():
                yield from _inside(level, of, parts, shapes)


def _inside(level: str, of: str, parts: Mapping[str, Sequence[str]], shapes: Sequence[str]) -> Iterator[FabricGroup]:
    names = list(parts)
    if len(names) < 2:
        return
    if PAIR in shapes:
        pairs = zip(names, [*names[1:], names[0]], strict=True)
        for at, (one, other) in enumerate(pairs):
            if len(names) > 2 or at == 0:
                # Another node of a part in each of its pairs, where it has several.
                nodes = parts[one][0], parts[other][-1]
                yield FabricGroup(level, PAIR, nodes, (one, other), of)
    if RING in shapes and (len(names) > 2 or PAIR not in shapes):
        yield FabricGroup(level, RING, tuple(parts[name][0] for name in names), tuple(names), of)


def with_expected(results: Sequence[GroupResult]) -> list[GroupResult]:
    """Where nothing is expected of a group, the upper quartile of what groups of its shape reached at its level is: a
    slow node is in two of them, so that the median of few is not enough."""
    known: dict[tuple[str, str], list[int]] = {}
    for one in results:
        if one.mbps is not None:
            known.setdefault((one.group.level, one.group.shape), []).append(one.mbps)
    return [
        one
        if one.expected_mbps or not (found := known.get((one.group.level, one.group.shape)))
        else GroupResult(one.group, one.mbps, sorted(found)[len(found) * 3 // 4], one.why)
        for one in results
    ]


def slow_of(results: Sequence[GroupResult], percent: int) -> tuple[SlowResult, ...]:
    """What stays below so many percent of what is expected, nodes first. All results need an expected bandwidth."""
    pairs = [one for one in results if one.group.shape == PAIR and one.mbps is not None and one.expected_mbps]
    nodes = list(_slow(pairs, percent, nodes=True))
    names = {one.name for one in nodes}
    wider = [one for one in pairs if one.group.of and names.isdisjoint(one.group.nodes)]
    return (*nodes, *_slow(wider, percent, nodes=False))


def _slow(pairs: Iterable[GroupResult], percent: int, *, nodes: bool) -> Iterator[SlowResult]:
    found: dict[tuple[str, str], list[GroupResult]] = {}
    for one in pairs:
        if bool(one.group.of) != nodes:
            for mark in one.group.marks():
                found.setdefault(mark, []).append(one)
    for (of, part), of_part in found.items():
        best = max(of_part, key=lambda one: (one.mbps or 0) * 1000 // one.expected_mbps)
        mbps = best.mbps or 0
        if mbps * 100 < best.expected_mbps * percent:
            yield SlowResult(of, part, mbps, best.expected_mbps)
