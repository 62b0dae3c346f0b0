# SPDX-License-Identifier: Apache-2.0
"""Fabrics: from wire structs to what decides of them. Rates and latencies below zero count as not stated; of two rules
of spares for one level the first counts."""

from __future__ import annotations

from itertools import islice, starmap

from dovetail.core.fabric import FabricSpeeds, LevelSpeed, SlowPart, SpareRule
from dovetail.kube.objects.base import epoch_ms
from dovetail.kube.objects.fabric import Fabric

MOST_LEVEL_SPEEDS = 16
MOST_SLOW = 4096
MOST_SPARE_RULES = 4
MOST_PER_DOMAIN = 1024
_MOST_MBPS = 10**8
_MOST_NS = 10**9


def fabric_speeds(obj: Fabric) -> FabricSpeeds:
    levels = (
        LevelSpeed(one.key, _within(one.bandwidth_mbps, _MOST_MBPS), _within(one.latency_ns, _MOST_NS))
        for one in islice(obj.spec.levels, MOST_LEVEL_SPEEDS)
    )
    slow = (
        SlowPart(one.name, epoch_ms(one.expires_at), one.level)
        for one in islice(obj.status.slow, MOST_SLOW)
        if one.name and one.expires_at is not None
    )
    spares: dict[str, int] = {}
    for one in obj.spec.spares:
        if one.key and one.per_domain > 0 and len(spares) < MOST_SPARE_RULES:
            spares.setdefault(one.key, min(one.per_domain, MOST_PER_DOMAIN))
    return FabricSpeeds(obj.metadata.name, tuple(levels), tuple(slow), tuple(starmap(SpareRule, spares.items())))


def _within(value: int | None, most: int) -> int:
    return min(max(0, value or 0), most)
