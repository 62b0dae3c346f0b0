# SPDX-License-Identifier: Apache-2.0
"""Alternatives and devices in words."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.core.bargaining.types import Holding, LeaseAlternative, ServiceClass
from dovetail.core.model import Instance
from dovetail.views.lease_texts import alternative_text, nodes_of


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "1 GPU, for 10m, Burst"),
        ({"count": 8, "per_node": 8}, "8 GPUs, on one node, for 10m, Burst"),
        ({"count": 8, "per_node": 4, "least": 4}, "8 GPUs, at least 4, 4 on each node, for 10m, Burst"),
        ({"count": 2, "resource": "nvidia.com/mig-1g.5gb"}, "2 mig-1g.5gb, for 10m, Burst"),
        ({"gpu_milli": 500}, "0.5 of a GPU, for 10m, Burst"),
        ({"count": 3, "gpu_memory_mib": 20 * 1024}, "3 times 20Gi of a GPU, for 10m, Burst"),
        (
            {"service": ServiceClass.SCAVENGER, "duration_ms": 5_400_000, "least_duration_ms": 60_000},
            "1 GPU, for 1h30m, or 1m at least, Scavenger",
        ),
        (
            {"count": 2, "per_node": 2, "nvlink": True, "models": ("A", "B"), "within": ("rack",)},
            "2 GPUs, on one node, by NVLinks, of A or B, inside one rack, for 10m, Burst",
        ),
        ({"cpu_milli": 500, "memory_bytes": 1 << 30}, "1 GPU, 500m CPUs each, 1Gi of memory each, for 10m, Burst"),
        (
            {"earliest_ms": 1, "latest_ms": 1000},
            "1 GPU, for 10m, from 1970-01-01T00:00:00.001Z on, until 1970-01-01T00:00:01.000Z at the latest, Burst",
        ),
    ],
)
def test_an_alternative_in_words(fields: dict[str, Any], text: str) -> None:
    assert alternative_text(LeaseAlternative(**fields)) == text


def test_the_devices_are_shown_by_node() -> None:
    holdings = (Holding("p0", "n1", (2, 3)), Holding("p1", "n2", (0, 1)), Holding("p2", "n1", (0, 1)))
    assert [str(node) for node in nodes_of(holdings)] == ["n1 0,1,2,3", "n2 0,1"]
    (instances,) = nodes_of([Holding("p", "n", (0,), (Instance(0, "1g.5gb", 2),))])
    assert str(instances) == "n 0/1g.5gb@2" and instances.gpus == ()
