# SPDX-License-Identifier: Apache-2.0
"""Instances of Compute Engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.topology.fabric import FabricError
from dovetail.topology.gcp_topology import read


def instance(name: str, host: str = "", **topology: str) -> dict[str, Any]:
    return {"name": name, "resourceStatus": {"physicalHost": host, "physicalHostTopology": topology}}


def paths(value: Any) -> dict[str, tuple[str, ...]]:
    return {one.node: one.path for one in read(json.dumps(value)).placements}


def test_an_instance_is_below_its_cluster_block_and_subblock() -> None:
    found = paths([instance("Gpu-1", cluster="c", block="b", subblock="s", host="h")])
    assert found == {"gpu-1": ("c", "b", "s")}


def test_the_older_field_counts_where_the_newer_one_is_missing() -> None:
    assert paths([instance("a", "/c/r/h"), instance("b", "/c/r/h", cluster="c", block="b")]) == {
        "a": ("c", "r"),
        "b": ("c", "b"),
    }


def test_the_answer_of_the_api_may_be_a_page_of_several() -> None:
    answer = {"kind": "compute#instanceList", "items": [instance("a", "/c/r/h")], "nextPageToken": "more"}
    assert [one.code for one in read(json.dumps(answer)).findings] == ["cut-file"]


@pytest.mark.parametrize("text", ["", '[{"name": "a"', "{}", "[]", '[{"name": "a"}]', '[{"name": 1}]'])
def test_what_is_no_such_list_is_refused(text: str) -> None:
    with pytest.raises(FabricError):
        read(text)
