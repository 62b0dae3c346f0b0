# SPDX-License-Identifier: Apache-2.0
"""The links of UFM become places of nodes; contradictions and weak links are found."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from dovetail.topology.fabric import FabricError, FabricReading
from dovetail.topology.ufm_links import read

Link = dict[str, Any]


def link(source: tuple[str, str, str], destination: tuple[str, str, str], width: str = "4x") -> Link:
    """Each end is its GUID, its port and its node description. As in the guide of UFM 6.20."""
    ends = {
        f"{end}_{what}": value
        for end, values in (("source", source), ("destination", destination))
        for what, value in zip(("guid", "port", "port_node_description"), values, strict=True)
    }
    more = {"source_port_dname": source[1], "destination_port_dname": destination[1], "severity": "Info"}
    name = f"{source[0]}_{source[1]}:{destination[0]}_{destination[1]}"
    return ends | more | {"width": width, "name": name, "capabilities": ["collect_system_dump"]}


def small() -> list[Link]:
    """Two leaves with three hosts each, and one spine with two cables to each leaf."""
    links = []
    for at, name in enumerate("ab"):
        leaf = f"00{name}"
        for number in range(3):
            host = f"{at}{number}".rjust(16, "0"), "1", f"GPU-{name}{number} mlx5_0"
            links.append(link(host, (leaf, str(number + 1), f"leaf-{name}:1/{number}/1")))
        for port in (10, 11):
            spine = "00f", str(10 * at + port), f"spine:1/{at}/{port}"
            links.append(link((leaf, str(port), f"leaf-{name}:1/{port}/1"), spine))
    return links


def reading(links: list[Link], **more: Any) -> FabricReading:
    return read(json.dumps(links), **more)


def places(found: FabricReading) -> dict[str, tuple[str, ...]]:
    return {one.node: one.path for one in found.placements}


def codes(found: FabricReading) -> list[str]:
    return sorted(one.code for one in found.findings)


@pytest.mark.parametrize("seed", range(3))
def test_hosts_are_below_their_leaf_and_the_spine_in_any_order(seed: int) -> None:
    links = small()
    random.Random(seed).shuffle(links)
    found = reading(links)
    assert places(found) == {f"gpu-{at}{n}": ("spine", f"leaf-{at}") for at in "ab" for n in range(3)}
    assert found.keys == ("network.topology.nvidia.com/spine", "network.topology.nvidia.com/block")
    assert found.findings == ()
    assert found.switches == {"S-00a": "leaf-a", "S-00b": "leaf-b", "S-00f": "spine"}


def test_only_nodes_count() -> None:
    assert set(places(reading(small(), nodes={"gpu-a0", "gpu-b2"}))) == {"gpu-a0", "gpu-b2"}
    with pytest.raises(FabricError, match="no node of --nodes is linked to a switch"):
        reading(small(), nodes={"other"})


def test_aggregation_nodes_are_no_hosts() -> None:
    sharp = link(("9", "1", "Mellanox Technologies Aggregation Node"), ("00a", "40", "leaf-a:41"))
    assert places(reading([*small(), sharp])) == places(reading(small()))


def test_a_renamed_switch_has_its_new_name_and_the_old_guid() -> None:
    renamed = json.loads(json.dumps(small()).replace("leaf-a", "rack-7"))
    old, new = reading(small()), reading(renamed)
    assert old.switches["S-00a"] == "leaf-a"
    assert new.switches["S-00a"] == "rack-7"
    assert places(new)["gpu-a0"] == ("spine", "rack-7")


@pytest.mark.parametrize(
    ("more", "code"),
    [
        # Another switch with the GUID of leaf a.
        (link(("77", "1", "GPU-c0 mlx5_0"), ("00a", "30", "leaf-c:30")), "duplicate-guid"),
        # A port that has a cable already.
        (link(("77", "1", "GPU-c0 mlx5_0"), ("00a", "1", "leaf-a:1/0/1")), "duplicate-guid"),
        # A second host of one name.
        (link(("78", "1", "GPU-a0 mlx5_0"), ("00b", "30", "leaf-b:30")), "unclear-host"),
        # A host in two racks.
        (link(("79", "1", "GPU-a0 mlx5_1"), ("00b", "30", "leaf-b:30")), "two-places"),
        (link(("7a", "1", "GPU-a3 mlx5_0"), ("00a", "30", "leaf-a:30"), "1x"), "slow-link"),
        (link(("7b", "1", "no name of a host"), ("00a", "30", "leaf-a:30")), "unclear-host"),
        (link(("7c", "1", "GPU-c0 mlx5_0"), ("00c", "1", "leaf-c:1")), "orphan"),
    ],
)
def test_what_contradicts_is_found(more: Link, code: str) -> None:
    assert code in codes(reading([*small(), more]))


def test_a_link_that_is_listed_again_is_no_contradiction() -> None:
    assert "duplicate-guid" not in codes(reading([*small(), small()[0]]))


def test_a_loop_between_switches_ends() -> None:
    ring = [
        link(("00f", "20", "spine:20"), ("00e", "20", "core:20")),
        link(("00e", "21", "core:21"), ("00d", "21", "other:21")),
        link(("00d", "22", "other:22"), ("00f", "22", "spine:22")),
    ]
    assert places(reading([*small(), *ring])).keys() == places(reading(small())).keys()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (json.dumps(small())[:-40], "no links of UFM: .*make the file again"),
        ("{}", "no links of UFM"),
        ('[{"source_guid": 1}]', "no links of UFM"),
        ("[]", "no host is linked to a switch here"),
        (json.dumps([small()[0] | {"source_port_node_description": ""}]), r"\[0\] has no node description"),
    ],
)
def test_what_is_no_answer_of_ufm_is_refused(text: str, why: str) -> None:
    with pytest.raises(FabricError, match=why):
        read(text)
