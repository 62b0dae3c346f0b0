# SPDX-License-Identifier: Apache-2.0
"""Fabrics become what decides of them."""

from __future__ import annotations

from dovetail.core.fabric import FabricSpeeds, LevelSpeed, SlowPart
from dovetail.kube.objects.fabric import Fabric
from dovetail.kube.translate.fabrics import MOST_LEVEL_SPEEDS, MOST_SLOW, fabric_speeds
from tests.kube.yaml_objects import wire

TEXT = """
metadata: {name: cluster}
spec:
  levels:
  - {bandwidthMBps: 12500}
  - {key: rack, bandwidthMBps: 50000, latencyNs: 20000}
status:
  slow:
  - {name: gpu-1, expiresAt: "1970-01-01T00:00:09Z"}
  - {level: rack, name: b/r, expiresAt: "1970-01-01T00:00:10Z"}
  - {name: for-ever}
  - {expiresAt: "1970-01-01T00:00:10Z"}
"""


def test_levels_and_what_is_slow_until_when() -> None:
    levels = LevelSpeed("", 12_500), LevelSpeed("rack", 50_000, 20_000)
    slow = SlowPart("gpu-1", 9_000), SlowPart("b/r", 10_000, "rack")
    assert fabric_speeds(wire(Fabric, TEXT)) == FabricSpeeds("cluster", levels, slow)


def test_nonsense_and_too_much_are_bounded() -> None:
    levels = ",".join(f"{{key: k{i}, bandwidthMBps: {-1 if i else 10**18}}}" for i in range(99))
    slow = ",".join(f'{{name: n{i}, expiresAt: "2030-01-01T00:00:00Z"}}' for i in range(MOST_SLOW + 9))
    found = fabric_speeds(wire(Fabric, f"{{spec: {{levels: [{levels}]}}, status: {{slow: [{slow}]}}}}"))
    assert (len(found.levels), len(found.slow)) == (MOST_LEVEL_SPEEDS, MOST_SLOW)
    assert (found.levels[0].mbps, found.levels[1].mbps) == (10**8, 0)
