# SPDX-License-Identifier: Apache-2.0
"""Labels that nodes have."""

from __future__ import annotations

import json

import pytest

from dovetail.topology.fabric import FabricError, FabricReading
from dovetail.topology.fabric_check import findings_of
from dovetail.topology.node_labels import read

LEAF, SPINE = "network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine"
CLIQUE = "nvidia.com/gpu.clique"


def labelled(**nodes: dict[str, str]) -> FabricReading:
    return read(json.dumps({"items": [{"metadata": {"name": one, "labels": found}} for one, found in nodes.items()]}))


def test_levels_are_the_keys_that_nodes_have() -> None:
    reading = labelled(a={LEAF: "l1", SPINE: "s", "other": "x"}, b={LEAF: "l2", SPINE: "s"}, c={"other": "x"})
    assert {one.node: one.path for one in reading.placements} == {"a": ("s", "l1"), "b": ("s", "l2")}


def test_tiers_of_topograph_are_counted_from_the_node() -> None:
    reading = labelled(a={"fabric.topograph.run/tier-0": "leaf", "fabric.topograph.run/tier-1": "spine"})
    assert reading.placements[0].path == ("spine", "leaf")


def test_a_missing_level_has_the_name_of_its_neighbour() -> None:
    reading = labelled(a={LEAF: "l1", SPINE: "s", CLIQUE: "c"}, b={LEAF: "l1", SPINE: "s"}, d={CLIQUE: "c2"})
    assert [one.path for one in reading.placements] == [("s", "l1", "c"), ("s", "l1", "l1"), ("c2", "c2", "c2")]


def test_a_clique_below_two_leaves_is_found() -> None:
    reading = labelled(a={LEAF: "l1", CLIQUE: "c"}, b={LEAF: "l2", CLIQUE: "c"}, d={LEAF: "l2", CLIQUE: "e"})
    assert [(one.code, one.node) for one in reading.findings] == [("split-clique", "b")]


def test_a_node_whose_labels_contradict_another_source_is_found() -> None:
    old = {f"n{at}": {LEAF: f"l{at // 4}"} for at in range(8)}
    new = old | {"n3": {LEAF: "l1"}}
    found = findings_of({"old": labelled(**old), "new": labelled(**new)})
    assert [(one.code, one.node) for one in found["old, new"]] == [("disagreement", "n3")]


@pytest.mark.parametrize(
    "text", ["", '{"items": [', "[]", '{"items": [{}]}', '{"items": [{"metadata": {"name": "a"}}]}']
)
def test_what_has_no_such_labels_is_refused(text: str) -> None:
    with pytest.raises(FabricError):
        read(text)
