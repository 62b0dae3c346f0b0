# SPDX-License-Identifier: Apache-2.0
"""Instances of a cloud with their network domains: what the readers of all clouds' answers have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from dovetail.topology.fabric import (
    MOST_LEVELS,
    FabricError,
    FabricFinding,
    FabricPlacement,
    FabricReading,
    one_place_each,
    switch_keys,
)

Instance: TypeAlias = tuple[str, tuple[str, ...]]
"""The name that the node has at the cloud, and its domains, the widest first; none if the cloud states none."""


def reading_of(instances: Sequence[Instance], why_none: str, more_pages: bool = False) -> FabricReading:
    """`why_none` is the reason why instances have no domains; `more_pages` if the answer is one page of several.

    Raises FabricError if no instance has domains, or one has more than MOST_LEVELS."""
    findings = []
    if more_pages:
        findings.append(FabricFinding("cut-file", "the answer has a token of a next page: further pages are missing"))
    for name, path in instances:
        if not path:
            findings.append(FabricFinding("orphan", f"{name} has no network domains", name))
        if len(path) > MOST_LEVELS:
            raise FabricError(f"{name} has more than {MOST_LEVELS} network domains: it is no answer of a cloud")
    placements, twice = one_place_each([FabricPlacement(name, path) for name, path in instances if path])
    if not placements:
        raise FabricError(f"no instance has network domains: {why_none}")
    levels = max(len(one.path) for one in placements)
    return FabricReading(placements, switch_keys(levels), (*findings, *twice))
