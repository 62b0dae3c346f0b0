# SPDX-License-Identifier: Apache-2.0
"""Queues that are invalid, or have guarantees that are scaled down. Both are computed by the core's queue tree."""

from __future__ import annotations

from dovetail.advice.doctor.records import Check, ClusterFacts, Problems


def _unusable(seen: ClusterFacts) -> Problems:
    for one in seen.queues or ():
        if one.problem:
            yield f"queue/{one.name}", one.problem, "correct the field; until then the jobs of the queue wait"


def _scaled(seen: ClusterFacts) -> Problems:
    for one in seen.queues or ():
        if one.scaled:
            fix = "lower the guarantees of sibling queues, or raise that of their parent"
            yield f"queue/{one.name}", one.scaled, fix


CHECKS = (
    Check("queues/not-usable", "error", "the queue cannot be used", ("queues",), _unusable),
    Check("queues/guaranteed-twice", "warning", "the guarantees exceed that of the parent queue",
          ("queues",), _scaled),
)  # fmt: skip
