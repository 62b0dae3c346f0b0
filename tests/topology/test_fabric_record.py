# SPDX-License-Identifier: Apache-2.0
"""What a Fabric records of an import."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from dovetail.topology.fabric import FabricFinding, FabricPlacement, FabricReading
from dovetail.topology.fabric_record import (
    MOST_BYTES,
    MOST_FINDINGS,
    MOST_WRITERS,
    RecordedSource,
    status_of,
    writers_of,
)
from dovetail.topology.node_list import listed_nodes

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
RACK = "dovetail.dev/rack"


def reading(nodes: int, name: str = "gpu-{:05d}") -> FabricReading:
    places = (FabricPlacement(name.format(i), (f"spine-{i // 64}", f"leaf-{i // 8}")) for i in range(nodes))
    return FabricReading(tuple(places), ("spine", "leaf"))


def test_the_places_of_a_source_can_be_read_again() -> None:
    given = reading(100)
    (source,) = status_of({"file": given}, ("a", "b"), {}, (), NOW)["sources"]
    found = msgspec.convert(source, RecordedSource)
    assert (found.name, found.nodes, found.keys, found.read_at) == ("file", 100, ("a", "b"), NOW)
    assert set(found.reading().placements) == set(given.placements)


def test_a_large_fabric_stays_small_enough_for_an_api_server() -> None:
    """Names in which nothing is a number make no short hostlists."""
    many = {name: reading(16_000, "host-{:05d}.rack.example.com") for name in ("file", "cluster")}
    status = status_of(many, (), {}, (), NOW)
    assert len(msgspec.json.encode(status)) <= MOST_BYTES
    assert ["domains" in one for one in status["sources"]] == [True, False]
    assert [one["nodes"] for one in status["sources"]] == [16_000, 16_000]


def test_errors_come_first_and_findings_are_bounded() -> None:
    warnings = [FabricFinding("orphan", f"n{i}") for i in range(MOST_FINDINGS)]
    status = status_of({}, (), {"file": [*warnings, FabricFinding("loop", "x", "n1")]}, (), NOW)
    assert len(status["findings"]) == MOST_FINDINGS
    assert status["findings"][0] == {"source": "file", "severity": "error", "code": "loop", "what": "x", "node": "n1"}
    (condition,) = status["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "SourcesDisagree")


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    before = status_of({}, (), {}, (), NOW)
    later = NOW.replace(hour=12)
    same = status_of({}, (), {"file": [FabricFinding("orphan", "n1")]}, (), later, before)
    assert same["conditions"][0]["lastTransitionTime"] == "2026-03-01T10:00:00Z"
    other = status_of({}, (), {"file": [FabricFinding("loop", "x")]}, (), later, before)
    assert other["conditions"][0]["lastTransitionTime"] == "2026-03-01T12:00:00Z"


def test_the_writers_of_labels_with_the_time_of_the_last() -> None:
    entry = (
        """{"manager": "%s", "time": "2026-0%d-01T00:00:00Z", "fieldsV1": {"f:metadata": {"f:labels": {"f:%s": {}}}}}"""
    )
    nodes = [(entry % ("kubelet", 1, "other"), entry % ("admin", month, RACK)) for month in (2, 3)]
    # One manager may have two entries of a node.
    nodes.append((nodes[0][1], nodes[0][1]))
    items = ",".join(
        f'{{"metadata": {{"name": "{i}", "managedFields": [{",".join(one)}]}}}}' for i, one in enumerate(nodes)
    )
    (writer,) = writers_of(listed_nodes(f'{{"items": [{items}]}}'), [RACK])
    assert (writer.key, writer.manager, writer.nodes) == (RACK, "admin", 3)
    assert writer.since == datetime(2026, 3, 1, tzinfo=UTC)
    managers = ",".join(entry % (f"m{i:03}", 1, RACK) for i in range(MOST_WRITERS + 1))
    many = listed_nodes(f'{{"items": [{{"metadata": {{"name": "n", "managedFields": [{managers}]}}}}]}}')
    assert len(writers_of(many, [RACK])) == MOST_WRITERS
