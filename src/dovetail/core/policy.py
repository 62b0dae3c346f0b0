# SPDX-License-Identifier: Apache-2.0
"""The few choices that a driver may make for the core."""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail.core.placing.scores import Scoring, Tightest

DEFAULT_FABRIC = (
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "network.topology.nvidia.com/datacenter",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/block",
    "dovetail.dev/block",
    "dovetail.dev/rack",
    "nvidia.com/gpu.clique",
)
"""Node label keys from the widest to the narrowest. Keys that no node carries cost nothing."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`attempts_per_step` bounds the work of one step (gangs and lone pods tried, pods decided, and each pod that looks
    at other pods), so that the driver can begin to bind.
    `search_limit` bounds the domains tried for one gang. A half-started gang is released after `start_deadline_ms`.
    A pending gang whose reason stays the same is told again at most every `tell_again_ms`. `scoring` chooses among the
    nodes that fit."""

    fabric: tuple[str, ...] = DEFAULT_FABRIC
    attempts_per_step: int = 512
    search_limit: int = 512
    start_deadline_ms: int = 60_000
    tell_again_ms: int = 15_000
    scoring: Scoring = field(default_factory=Tightest)
