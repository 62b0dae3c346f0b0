# SPDX-License-Identifier: Apache-2.0
"""Slurm's `topology.conf` and `topology.yaml` (topology/tree and topology/block), read and written.

Rules
- A switch of a tree is a domain; so is a block. The sizes of aggregated blocks name no domains and are left out.
- Of a topology.yaml with several topologies the one with `cluster_default` counts, else the first that is not flat.
- A switch below several others is below the first of them, which Slurm does not forbid; below itself it is an error.
- Parameter names of topology.conf are in any case, `#` begins a comment, and `\\` at the end joins lines. What other
  programs write into comments (topograph: `# spine-01=d-0001`) is not read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, ValidationError, convert

from dovetail.topology.fabric import (
    MOST_LEVELS,
    MOST_NODES,
    FabricError,
    FabricFinding,
    FabricPlacement,
    FabricReading,
    filled,
    in_order,
    label_value,
    one_place_each,
    switch_keys,
)
from dovetail.topology.hostlist import compress, expand

BLOCK_KEYS = ("dovetail.dev/block",)
_PAIR = re.compile(r"([A-Za-z]+)\s*=\s*(\S+)")
_IGNORED = {"linkspeed", "level", "blocksizes"}
_ABOVE = "fabric"
"""The switch above several tops."""


class SlurmSwitch(Struct):
    """A switch, or a block, of topology.yaml; `children` and `nodes` are hostlists."""

    switch: str = ""
    block: str = ""
    children: str = ""
    nodes: str = ""
    line: int = 0

    @property
    def name(self) -> str:
        return self.switch or self.block


class SlurmTree(Struct):
    switches: list[SlurmSwitch] = []


class SlurmBlocks(Struct):
    blocks: list[SlurmSwitch] = []


class SlurmTopology(Struct):
    """One topology of topology.yaml."""

    topology: str = ""
    cluster_default: bool = False
    tree: SlurmTree | None = None
    block: SlurmBlocks | None = None


def read_conf(text: str) -> FabricReading:
    """Raises FabricError."""
    found = []
    for number, line in _lines(text):
        pairs = {key.lower(): value for key, value in _PAIR.findall(line)}
        unknown = pairs.keys() - {"switchname", "blockname", "switches", "nodes"} - _IGNORED
        if _PAIR.sub("", line).strip() or unknown:
            fault = f"parameter {min(unknown)}" if unknown else repr(line.strip()[:60])
            raise FabricError(
                f"line {number}: {fault} is none of topology.conf: SwitchName, BlockName, Switches, Nodes"
            )
        if pairs.keys() <= _IGNORED:
            continue
        one = SlurmSwitch(
            pairs.get("switchname", ""),
            pairs.get("blockname", ""),
            pairs.get("switches", ""),
            pairs.get("nodes", ""),
            number,
        )
        if not one.name:
            raise FabricError(f"line {number}: no SwitchName or BlockName: put it first")
        found.append(one)
    return _reading(found, "line {}: ")


def read_yaml_value(value: Any) -> FabricReading:
    """The reading of the decoded topology.yaml. Raises FabricError."""
    try:
        topologies = convert(value, list[SlurmTopology])
    except ValidationError as error:
        raise FabricError(f"no topology.yaml of Slurm: {error}: see topology.yaml(5)") from error
    usable = [one for one in topologies if one.tree is not None or one.block is not None]
    chosen = next((one for one in usable if one.cluster_default), usable[0] if usable else None)
    if chosen is None:
        raise FabricError("no topology with `tree` or `block`: a flat one has no places")
    return _reading(chosen.tree.switches if chosen.tree else chosen.block.blocks if chosen.block else [], "")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with something in them, joined, with the number of their first."""
    before, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        content = before + line.partition("#")[0]
        first = first if before else number
        if content.rstrip().endswith("\\"):
            before = content.rstrip()[:-1] + " "
            continue
        before = ""
        if content.strip():
            yield first, content
    if before.strip():
        yield first, before


def _reading(switches: Sequence[SlurmSwitch], where: str) -> FabricReading:
    """`where` is what comes before a message about a line, "" for sources without lines."""
    children_of: dict[str, list[str]] = {}
    nodes_of: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    size = 0
    for one in switches:
        at = where.format(one.line)
        try:
            children, nodes = expand(one.children), expand(one.nodes)
        except FabricError as error:
            raise FabricError(f"{at}{one.name or 'a switch without name'}: {error}") from error
        size += len(children) + len(nodes)
        if size > MOST_NODES:
            raise FabricError(f"{at}more than {MOST_NODES:,} nodes and switches: split the file")
        for name in expand(one.name) if "[" in one.name else [one.name]:
            if not name or name in lines:
                fault = (
                    f"{name} is there twice, first in line {lines[name]}" if where and name else f"{name!r} as a name"
                )
                raise FabricError(f"{at}{fault}: give each switch a line and a name of its own")
            lines[name] = one.line
            children_of[name], nodes_of[name] = children, nodes
    if not any(nodes_of.values()):
        raise FabricError("no switch or block has nodes: add Nodes=")
    parents, findings = _parents(children_of)
    paths = {name: _path(name, parents) for name in children_of}
    findings += [
        _loop(name, parents) for name, path in paths.items() if path is None and name == min(_cycle(name, parents))
    ]
    deepest = max((len(path) for path in paths.values() if path), default=0)
    if deepest > MOST_LEVELS:
        raise FabricError(f"switches are nested deeper than {MOST_LEVELS} levels: make the tree flatter")
    placements, twice = one_place_each(
        [
            FabricPlacement(node.lower(), path, lines[name])
            for name, path in paths.items()
            if path
            for node in nodes_of[name]
        ]
    )
    levels = max((len(one.path) for one in placements), default=0)
    placements = tuple(FabricPlacement(one.node, filled(one.path, levels), one.line) for one in placements)
    empty = [name for name in children_of if not children_of[name] and not nodes_of[name]]
    findings += [FabricFinding("orphan", f"{name} has neither nodes nor switches") for name in empty]
    keys = BLOCK_KEYS if all(one.block for one in switches) else switch_keys(levels)
    return FabricReading(placements, keys, (*findings, *twice))


def _parents(children_of: Mapping[str, list[str]]) -> tuple[dict[str, str], list[FabricFinding]]:
    parents: dict[str, str] = {}
    findings = []
    for name, children in children_of.items():
        for child in children:
            if child not in children_of:
                findings.append(FabricFinding("orphan", f"{name} has a switch {child}, which no line describes"))
            elif parents.setdefault(child, name) != name:
                findings.append(FabricFinding("several-parents", f"{child} is below {parents[child]} and below {name}"))
    return parents, findings


def _path(name: str, parents: Mapping[str, str]) -> tuple[str, ...] | None:
    """The switches from the top down to this one; None if it is below itself, or below such a switch."""
    path = [name]
    while (above := parents.get(path[-1])) is not None:
        path.append(above)
        if len(path) > MOST_LEVELS + 1:
            return _deep(name, parents)
    return tuple(reversed(path))


def _deep(name: str, parents: Mapping[str, str]) -> tuple[str, ...] | None:
    """Raises FabricError for a path that is too long, unless it has no end."""
    seen = {name}
    while (above := parents.get(name)) is not None:
        if above in seen:
            return None
        seen.add(name := above)
    raise FabricError(f"switches are nested deeper than {MOST_LEVELS} levels below {name}: make the tree flatter")


def _cycle(name: str, parents: Mapping[str, str]) -> list[str]:
    """The switches of the loop above, without those below it."""
    seen: dict[str, int] = {}
    while name not in seen:
        seen[name] = len(seen)
        name = parents[name]
    return [one for one, at in seen.items() if at >= seen[name]]


def _loop(name: str, parents: Mapping[str, str]) -> FabricFinding:
    return FabricFinding("loop", f"{' is below '.join([*_cycle(name, parents), name])}")


def conf_of(reading: FabricReading) -> str:
    """A topology.conf for topology/tree with these places."""
    lines = (
        f"SwitchName={name} {f'Switches={children}' if children else f'Nodes={nodes}'}"
        for name, children, nodes in _tree(reading.placements)
    )
    return "\n".join(lines) + "\n"


def yaml_value_of(reading: FabricReading) -> list[dict[str, Any]]:
    """The value of a topology.yaml with one tree of these places."""
    switches = [
        {"switch": name} | ({"children": children} if children else {"nodes": nodes})
        for name, children, nodes in _tree(reading.placements)
    ]
    return [{"topology": "dovetail", "cluster_default": True, "tree": {"switches": switches}}]


def _tree(placements: Sequence[FabricPlacement]) -> Iterator[tuple[str, str, str]]:
    """(switch, children, nodes) as hostlists, the highest first. Slurm's names are unique: where one is there twice,
    the names above it come before it."""
    inner: dict[tuple[str, ...], dict[tuple[str, ...], None]] = {}
    nodes: dict[tuple[str, ...], list[str]] = {}
    for one in in_order(placements):
        nodes.setdefault(one.path, []).append(one.node)
        for depth in range(len(one.path)):
            inner.setdefault(one.path[:depth], {})[one.path[: depth + 1]] = None
    plain = {path: label_value(path[-1]) for below in inner.values() for path in below}
    often = Counter(plain.values())
    names: dict[tuple[str, ...], str] = {}
    taken = {name for name, count in often.items() if count == 1}
    for path, name in plain.items():
        own = name if often[name] == 1 else "-".join(map(label_value, path))
        names[path] = own = f"{own}-{len(taken)}" if (own in taken and own != name) or own == _ABOVE else own
        taken.add(own)
    tops = inner.pop((), {})
    if len(tops) > 1:
        yield _ABOVE, compress(names[top] for top in tops), ""
    for path in sorted(names, key=len):
        below = inner.get(path)
        yield names[path], compress(names[one] for one in below) if below else "", compress(nodes.get(path, []))
