# SPDX-License-Identifier: Apache-2.0
"""The answer of DescribeInstanceTopology."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.topology.aws_topology import read
from dovetail.topology.fabric import FabricError


def instance(name: str, *network: str) -> dict[str, Any]:
    return {"InstanceId": name, "InstanceType": "p5.48xlarge", "NetworkNodes": list(network), "ZoneId": "usw2-az2"}


def answer(*instances: dict[str, Any], **more: str) -> str:
    return json.dumps({"Instances": list(instances)} | more)


def test_instances_are_below_their_network_nodes() -> None:
    reading = read(answer(instance("i-1", "nn-1", "nn-2", "nn-3"), instance("i-2", "nn-1", "nn-2", "nn-4")))
    assert {one.node: one.path for one in reading.placements} == {
        "i-1": ("nn-1", "nn-2", "nn-3"),
        "i-2": ("nn-1", "nn-2", "nn-4"),
    }
    assert len(reading.keys) == 3
    assert reading.findings == ()


def test_a_page_of_an_answer_is_found_to_be_cut() -> None:
    reading = read(answer(instance("i-1", "nn-1"), instance("i-2"), NextToken="more"))
    assert [one.code for one in reading.findings] == ["cut-file", "orphan"]


def test_an_instance_in_two_places_is_found() -> None:
    reading = read(answer(instance("i-1", "nn-1"), instance("i-1", "nn-2")))
    assert [(one.code, one.node) for one in reading.findings] == [("two-places", "i-1")]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"Instances": [{}]}', answer(), answer(instance("i-1", *"abcdefghijklmn"))]
)
def test_what_is_no_such_answer_is_refused(text: str) -> None:
    with pytest.raises(FabricError):
        read(text)
