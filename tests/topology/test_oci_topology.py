# SPDX-License-Identifier: Apache-2.0
"""Hosts of Oracle Cloud."""

from __future__ import annotations

import json

import pytest

from dovetail.topology.fabric import FabricError
from dovetail.topology.oci_topology import read

PATH = ("island", "network", "local")


@pytest.mark.parametrize(
    "names",
    [
        ("hpc-island-id", "network-block-id", "local-block-id", "instance-id"),
        ("hpcIslandId", "networkBlockId", "localBlockId", "instanceId"),
        ("computeHpcIslandId", "computeNetworkBlockId", "computeLocalBlockId", "instanceId"),
    ],
)
def test_names_of_the_command_and_of_the_api_are_read(names: tuple[str, ...]) -> None:
    hosts = [
        dict(zip(names, (*PATH, "i-1"), strict=True)),
        dict(zip(names, (*PATH[:2], "other", "i-2"), strict=True)),
        dict(zip(names, (*PATH, None), strict=True)),
    ]
    for data in (hosts, {"items": hosts}):
        reading = read(json.dumps({"data": data}))
        assert {one.node: one.path for one in reading.placements} == {"i-1": PATH, "i-2": (*PATH[:2], "other")}
        assert reading.findings == ()


@pytest.mark.parametrize("text", ["", '{"data": {"items": [', "{}", '{"data": []}', '{"data": [{"instanceId": 1}]}'])
def test_what_is_no_such_list_is_refused(text: str) -> None:
    with pytest.raises(FabricError):
        read(text)
