# SPDX-License-Identifier: Apache-2.0
"""Random hints for random machines, as a referee's case and as ours."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import Struct

from dovetail.core.devices.kubelet.hints import Hint, Hints, masks_over
from dovetail.core.devices.kubelet.inventory import Inventory

POLICIES = ("best-effort", "restricted", "single-numa-node")
MOST_COMBINATIONS = 2000
"""The referee goes through all of them."""


class Merges(Struct):
    """Many merges on one machine; `machines` by policy."""

    numa: tuple[int, ...]
    prefer_closest: bool
    distances: tuple[tuple[int, ...], ...]
    asked: list[tuple[str, list[Hints]]]

    def machine(self, policy: str) -> Inventory:
        return Inventory(
            numa=self.numa,
            topology_policy=policy,
            prefer_closest_numa=self.prefer_closest,
            distances=self.distances,
        )

    def case(self, case_id: str) -> dict[str, Any]:
        return {
            "id": case_id,
            "question": "topology-merge",
            "numa": self.numa,
            "distances": self.distances,
            "preferClosest": self.prefer_closest,
            "merges": [{"policy": policy, "hints": hints} for policy, hints in self.asked],
        }


def merges(seed: int, count: int) -> Merges:
    dice = Random(seed)
    nodes = dice.choice((1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8))
    numa = tuple(range(nodes)) if dice.random() < 0.8 else tuple(sorted(dice.sample(range(12), nodes)))
    near = dice.choice(((10,), (10, 11), (10, 12, 21, 32), (1, 3, 7, 255)))
    distances = tuple(tuple(dice.choice(near) for _ in range(numa[-1] + 1)) for _ in numa)
    masks = masks_over(numa)
    asked = []
    for _ in range(count):
        combinations, providers = 1, []
        for _ in range(dice.choice((0, 1, 2, 3, 3, 3, 3))):
            provider: Hints = {}
            for resource in dice.sample(("cpu", "memory", "gpu", "nic"), dice.choice((0, 1, 1, 1, 2))):
                kind = dice.random()
                if kind < 0.06:
                    provider[resource] = None
                    continue
                most = min(len(masks), 30, MOST_COMBINATIONS // combinations)
                size = 0 if kind < 0.12 else dice.randint(1, most)
                least = dice.choice((1, 1, 2, 3))
                some = [mask for mask in masks if mask.bit_count() >= least] or list(masks)
                chosen = sorted(dice.sample(some, min(size, len(some))), key=masks.index)
                provider[resource] = [_hint(dice, mask, least) for mask in chosen]
                combinations *= max(1, len(chosen))
            providers.append(provider)
        asked.append((dice.choice(POLICIES), providers))
    return Merges(numa, dice.random() < 0.5, distances, asked)


def _hint(dice: Random, mask: int, least: int) -> Hint:
    """Mostly as managers make them: preferred where the mask is as narrow as can be."""
    if dice.random() < 0.9:
        return Hint(mask, mask.bit_count() == least)
    return Hint(None if dice.random() < 0.2 else mask, dice.random() < 0.5)
