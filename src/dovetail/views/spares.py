# SPDX-License-Identifier: Apache-2.0
"""The spare nodes of each domain, as the rules of the Fabric hold them in a state."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dovetail.core.policy import Policy
from dovetail.core.state import State
from dovetail.kube.api.config import ClusterConfig
from dovetail.kube.reading.state import read_cluster
from dovetail.topology.fabric import FabricFinding

_MOST_NAMED = 8


class DomainSpares(Struct, frozen=True):
    """A domain of the level `key` with `nodes` nodes that have GPUs: of the `wanted` spares those that there are, and
    the nodes that are out of order."""

    key: str
    domain: str
    nodes: int
    wanted: int
    spares: tuple[str, ...]
    out_of_order: tuple[str, ...]


async def live_spares(config: ClusterConfig, policy: Policy, scheduler_name: str) -> tuple[DomainSpares, ...]:
    """Those of a cluster now. Raises KubeError."""
    return domain_spares((await read_cluster(config, policy, scheduler_name)).state)


def domain_spares(state: State) -> tuple[DomainSpares, ...]:
    """By rule, and by name of the domain."""
    names = state.cluster.nodes.names
    return tuple(
        DomainSpares(one.key, one.domain, one.size, one.wanted, _named(names, one.held), _named(names, one.broken))
        for one in state.cluster.spares.counts()
    )


def _named(names: Sequence[str], slots: Sequence[int]) -> tuple[str, ...]:
    return tuple(names[slot] for slot in slots)


def too_few(found: Sequence[DomainSpares]) -> list[FabricFinding]:
    """A finding for each domain with fewer spares than the rule holds, or with no node beside them."""
    return [_finding(one) for one in found if len(one.spares) < one.wanted or one.nodes <= one.wanted]


def _finding(one: DomainSpares) -> FabricFinding:
    if one.nodes <= one.wanted:
        held = f"{one.key} {one.domain} has {one.nodes} nodes with GPUs, of which the rule holds {one.wanted}"
        return FabricFinding("only-spares", held)
    return FabricFinding("few-spares", _lacking(one))


def _lacking(one: DomainSpares) -> str:
    shown = ", ".join(one.out_of_order[:_MOST_NAMED]) + (" ..." if len(one.out_of_order) > _MOST_NAMED else "")
    why = f"; out of order: {shown}" if one.out_of_order else "; its other nodes are in use"
    return f"{one.key} {one.domain} has {len(one.spares)} of {one.wanted} spares{why}"
