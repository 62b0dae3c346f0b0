# SPDX-License-Identifier: Apache-2.0
"""Fabrics become what decides of them."""

from __future__ import annotations

from dovetail.core.fabric import FabricSpeeds, LevelSpeed, SlowPart, SpareRule
from dovetail.kube.objects.fabric import Fabric
from dovetail.kube.translate.fabrics import (
    MOST_LEVEL_SPEEDS,
    MOST_PER_DOMAIN,
    MOST_SLOW,
    MOST_SPARE_RULES,
    fabric_speeds,
)
from tests.kube.yaml_objects import wire

TEXT = """
metadata: {name: cluster}
spec:
  levels:
  - {bandwidthMBps: 12500}
  - {key: rack, bandwidthMBps: 50000, latencyNs: 20000}
  spares:
  - {key: rack, perDomain: 1}
  - {key: nvidia.com/gpu.clique, perDomain: 2}
status:
  slow:
  - {name: gpu-1, expiresAt: "1970-01-01T00:00:09Z"}
  - {level: rack, name: b/r, expiresAt: "1970-01-01T00:00:10Z"}
  - {name: for-ever}
  - {expiresAt: "1970-01-01T00:00:10Z"}
"""


def test_levels_what_is_slow_until_when_and_spares() -> None:
    levels = LevelSpeed("", 12_500), LevelSpeed("rack", 50_000, 20_000)
    slow = SlowPart("gpu-1", 9_000), SlowPart("b/r", 10_000, "rack")
    spares = SpareRule("rack", 1), SpareRule("nvidia.com/gpu.clique", 2)
    assert fabric_speeds(wire(Fabric, TEXT)) == FabricSpeeds("cluster", levels, slow, spares)


def test_nonsense_and_too_much_are_bounded() -> None:
    levels = ",".join(f"{{key: k{i}, bandwidthMBps: {-1 if i else 10**18}}}" for i in range(99))
    slow = ",".join(f'{{name: n{i}, expiresAt: "2030-01-01T00:00:00Z"}}' for i in range(MOST_SLOW + 9))
    found = fabric_speeds(wire(Fabric, f"{{spec: {{levels: [{levels}]}}, status: {{slow: [{slow}]}}}}"))
    assert (len(found.levels), len(found.slow)) == (MOST_LEVEL_SPEEDS, MOST_SLOW)
    assert (found.levels[0].mbps, found.levels[1].mbps) == (10**8, 0)
    few = "{key: a, perDomain: 0}, {perDomain: 2}, {key: b, perDomain: -1}"
    few += ", {key: c, perDomain: 99999}, {key: c, perDomain: 1}"
    many = ",".join(f"{{key: k{i}, perDomain: 1}}" for i in range(9))
    spares = fabric_speeds(wire(Fabric, f"{{spec: {{spares: [{few}, {many}]}}}}")).spares
    assert spares[0] == SpareRule("c", MOST_PER_DOMAIN)
    assert len(spares) == MOST_SPARE_RULES
