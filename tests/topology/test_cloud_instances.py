# SPDX-License-Identifier: Apache-2.0
"""Instances and their domains."""

from __future__ import annotations

import pytest

from dovetail.topology.cloud_instances import reading_of
from dovetail.topology.fabric import FabricError


def test_faults_of_instances_are_findings() -> None:
    reading = reading_of([("a", ("x", "y")), ("b", ()), ("a", ("x", "z"))], "why", more_pages=True)
    assert [(one.node, one.path) for one in reading.placements] == [("a", ("x", "y"))]
    assert [(one.code, one.node) for one in reading.findings] == [
        ("cut-file", ""),
        ("orphan", "b"),
        ("two-places", "a"),
    ]
    assert len(reading.keys) == 2


def test_instances_without_domains_are_refused_with_the_reason() -> None:
    with pytest.raises(FabricError, match="such types have none"):
        reading_of([("a", ())], "such types have none")
