# SPDX-License-Identifier: Apache-2.0
"""The network above nodes, as one source describes it: the place of each node, from the widest to the narrowest domain.

Rules
- Domains are nested: a domain is the whole path down to it, and a node is in one domain of each level.
- A label value has at most 63 characters: letters, digits, `-`, `_` and `.`, a letter or digit at both ends. Other
  characters of a name become `-`; a longer name is cut and ends with a part of its SHA-256.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

MOST_NODES = 200_000
MOST_LEVELS = 12
_SWITCH_KEYS = (
    "network.topology.nvidia.com/datacenter",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/block",
    "dovetail.dev/block",
    "dovetail.dev/rack",
)
"""Those of the scheduler's default fabric, from the widest on."""
_USUAL_TIERS = 3
"""Up to three tiers of switches have the keys that topograph gave them: the one next to the nodes is the block."""
_LONGEST_VALUE = 63
_NOT_IN_VALUE = re.compile(r"[^A-Za-z0-9._-]+")
_HASH_CHARACTERS = 8


class FabricError(ValueError):
    """The text cannot be read, or no labels follow from it. The message names the line, the fault, and what to do."""


class FindingKind(Struct, frozen=True):
    """An `error` makes places wrong or uncertain; nothing is imported until it is corrected."""

    is_error: bool
    fix: str


FINDING_KINDS: Mapping[str, FindingKind] = {
    "cut-file": FindingKind(True, "make the file again, in full"),
    "disagreement": FindingKind(True, "find out which source is true, and correct the other"),
    "duplicate-guid": FindingKind(True, "two devices have one GUID, or a cable moved during discovery: make it again"),
    "loop": FindingKind(True, "remove one of these switches from the children of the other"),
    "two-places": FindingKind(True, "correct the place; a host that is no node is left out with --nodes"),
    "few-links": FindingKind(False, "check cables and ports"),
    "few-spares": FindingKind(False, "repair what is out of order; else wait for jobs to end: nothing is evicted"),
    "linked-leaves": FindingKind(False, "leave a host at a spine out with --nodes if it is no node"),
    "mixed-mtu": FindingKind(False, "set one MTU on all ports: large frames are lost between them"),
    "only-spares": FindingKind(False, "lower perDomain of the rule: no new job with GPUs starts in the domain"),
    "one-source": FindingKind(False, "see why the other source lacks it"),
    "orphan": FindingKind(False, "connect it, or remove it from the file"),
    "renamed-switch": FindingKind(False, "labels follow names: import the newer file again"),
    "several-parents": FindingKind(False, "the first parent counts: give the switch one"),
    "single-link": FindingKind(False, "its nodes are cut off if this link fails"),
    "slow-link": FindingKind(False, "check the cable, and the speed of both ports"),
    "split-clique": FindingKind(False, "one of the two labels is old, or the levels are not nested: see which"),
    "unclear-host": FindingKind(False, "it is left out: set its node description (rdma-ndd), as in `gpu-1 mlx5_0`"),
    "unequal": FindingKind(False, "a gang as large as the others hold may not fit there"),
}  # fmt: skip


class FabricFinding(Struct, frozen=True):
    """One fault. `code` is a key of FINDING_KINDS; `node` is the node it is about, "" if it is about others."""

    code: str
    what: str
    node: str = ""

    @property
    def kind(self) -> FindingKind:
        return FINDING_KINDS[self.code]

    @property
    def severity(self) -> str:
        return "error" if self.kind.is_error else "warning"


class FabricPlacement(Struct, frozen=True):
    """The domains that hold a node, the widest first; `line` of the source, 0 if unknown."""

    node: str
    path: tuple[str, ...]
    line: int = 0


class FabricReading(Struct, frozen=True):
    """What one source describes. `keys` are the label keys of its levels, the widest first, as far as there are any.
    `switches` are names by GUID, where the source has GUIDs."""

    placements: tuple[FabricPlacement, ...]
    keys: tuple[str, ...]
    findings: tuple[FabricFinding, ...] = ()
    switches: Mapping[str, str] = {}


Labels: TypeAlias = dict[str, str]


def one_place_each(
    placements: Sequence[FabricPlacement],
) -> tuple[tuple[FabricPlacement, ...], tuple[FabricFinding, ...]]:
    """The first place of each node, and a finding for each other place of it."""
    first: dict[str, FabricPlacement] = {}
    findings = []
    for one in placements:
        known = first.setdefault(one.node, one)
        if known.path != one.path:
            what = f"{one.node} is in {_shown(known)} and in {_shown(one)}"
            findings.append(FabricFinding("two-places", what, one.node))
    return tuple(first.values()), tuple(findings)


def switch_keys(levels: int) -> tuple[str, ...]:
    """The label keys for as many tiers of switches, as far as there are."""
    return _SWITCH_KEYS[: max(levels, _USUAL_TIERS)][-levels:]


def filled(path: Sequence[str], levels: int) -> tuple[str, ...]:
    """The path with as many levels: what has fewer switches above it is alone at the wider levels."""
    return (path[0],) * (levels - len(path)) + tuple(path) if path else ()


def labels_of(reading: FabricReading, keys: Sequence[str] | None = None) -> dict[str, Labels]:
    """The labels of each node by label key; `keys` from the widest to the narrowest level replace the usual ones.

    Raises FabricError if the levels have no keys, or if two domains would get one value."""
    levels = max((len(one.path) for one in reading.placements), default=0)
    chosen = tuple(keys or reading.keys)
    if len(chosen) != levels:
        raise FabricError(f"there are {levels} levels and {len(chosen)} label keys: name one for each with --keys")
    values: dict[tuple[str, ...], tuple[str, ...]] = {}
    paths: dict[tuple[str, ...], tuple[str, ...]] = {}
    found = {}
    for one in in_order(reading.placements):
        path = filled(one.path, levels)
        if path not in values:
            values[path] = value = tuple(map(label_value, path))
            for depth in range(1, levels + 1):
                known = paths.setdefault(value[:depth], path[:depth])
                if known != path[:depth]:
                    both = f"{known[-1]!r} and {path[depth - 1]!r}"
                    raise FabricError(f"{both} would both be {value[depth - 1]!r} as a label: rename one")
        found[one.node] = dict(zip(chosen, values[path], strict=True))
    return found


def in_order(placements: Sequence[FabricPlacement]) -> list[FabricPlacement]:
    """By domain, and by node within one."""
    return sorted(placements, key=lambda one: (one.path, one.node))


def label_value(name: str) -> str:
    """The name as a label value. Raises FabricError if nothing of it is left."""
    value = _NOT_IN_VALUE.sub("-", name).strip("-_.")
    if not value:
        raise FabricError(f"{name!r} has no letter or digit, which a label value needs: rename it")
    if len(value) > _LONGEST_VALUE:
        end = hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARACTERS]
        value = f"{value[: _LONGEST_VALUE - _HASH_CHARACTERS - 1]}-{end}"
    return value


def _shown(one: FabricPlacement) -> str:
    return " / ".join(one.path) + (f" (line {one.line})" if one.line else "")
