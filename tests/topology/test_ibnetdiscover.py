# SPDX-License-Identifier: Apache-2.0
"""What ibnetdiscover prints becomes places of nodes; contradictions, cut files and weak links are found."""

from __future__ import annotations

import random
import re

import pytest

from benchmarks.fabric_import import NODES, Cabling, network
from dovetail.topology.fabric import FabricError, FabricReading
from dovetail.topology.ibnetdiscover import read


def small(rates: str = "4xNDR") -> Cabling:
    """Two leaves with three hosts each, and one spine with two cables to each leaf."""
    made = Cabling()
    spine = made.device("S", "MF0;spine:MQM9700/U1")
    for at in "ab":
        leaf = made.device("S", f"MF0;leaf-{at}:MQM9700/U1")
        for _ in range(2):
            made.cable(leaf, spine)
        for number in range(3):
            made.cable(leaf, made.device("H", f"GPU-{at}{number} mlx5_0"))
    return made


def codes(reading: FabricReading) -> list[str]:
    return sorted(one.code for one in reading.findings)


def places(reading: FabricReading) -> dict[str, tuple[str, ...]]:
    return {one.node: one.path for one in reading.placements}


def test_hosts_are_below_their_leaf_and_the_spine() -> None:
    reading = read(small().text())
    assert places(reading) == {f"gpu-{at}{n}": ("spine", f"leaf-{at}") for at in "ab" for n in range(3)}
    assert reading.keys == ("network.topology.nvidia.com/spine", "network.topology.nvidia.com/block")
    assert reading.findings == ()


@pytest.mark.parametrize("seed", range(3))
def test_rails_are_one_unit_in_any_order_of_the_file(seed: int) -> None:
    made = network(2)
    order = list(made.links)
    random.Random(seed).shuffle(order)
    made.links = {device: made.links[device] for device in order}
    found = places(read(made.text()))
    units: dict[tuple[str, ...], set[int]] = {}
    for node, path in found.items():
        units.setdefault(path, set()).add(int(node[4:]) // NODES)
    assert sorted(units.values(), key=min) == [{unit} for unit in range(8)]
    assert {path[1] for path in units} == {"spine-0-0-0", "spine-1-0-0"}
    assert {path[0] for path in units} == {"core-0"} or len({path[0] for path in units}) == 1


def test_rails_that_reach_only_some_hosts_are_of_their_unit() -> None:
    made = small()
    for leaf, hosts in (("a", 3), ("b", 1)):
        rail = made.device("S", f"MF0;rail-{leaf}:MQM9700/U1")
        made.cable(rail, "S-0000000000000001")
        for number in range(hosts):
            made.cable(rail, made.device("H", f"gpu-{leaf}{number} mlx5_1"))
    found = places(read(made.text()))
    assert found == {f"gpu-{at}{n}": ("spine", f"leaf-{at}") for at in "ab" for n in range(3)}


def test_switches_of_one_name_have_their_guids() -> None:
    text = re.sub(r"MF0;[a-z-]+:MQM9700/U1", "SwitchIB Mellanox Technologies", small().text())
    assert set(places(read(text)).values()) == {
        ("S-0000000000000001", "S-0000000000000002"),
        ("S-0000000000000001", "S-0000000000000006"),
    }


def test_grouped_output_reads_the_same() -> None:
    plain = small().text()
    grouped = plain.replace("[2]", "[2][ext 7]").replace(
        "\nswitchguid", "\nChassis 1 (guid 0x1)\n# Spine Nodes\nswitchguid", 1
    )
    assert read(grouped + "\nNon-Chassis Nodes\n") == read(plain)


def test_aggregation_nodes_are_no_hosts() -> None:
    made = small()
    made.cable("S-0000000000000001", made.device("H", "Mellanox Technologies Aggregation Node"))
    assert read(made.text()) == read(small().text())


def test_a_manager_on_two_units_joins_nothing() -> None:
    made = small()
    host = made.device("H", "ufm mlx5_0")
    other = made.device("H", "ufm mlx5_1")
    made.cable("S-0000000000000002", host)
    made.cable("S-0000000000000006", other)
    reading = read(made.text())
    assert "ufm" not in places(reading)
    assert [one.node for one in reading.findings if one.code == "two-places"] == ["ufm"]
    assert len(set(places(reading).values())) == 2


def test_a_manager_at_a_spine_is_kept_out_by_the_names_of_nodes() -> None:
    made = small()
    nodes = set(places(read(made.text())))
    made.cable("S-0000000000000001", made.device("H", "ufm mlx5_0"))
    assert codes(read(made.text())) == ["linked-leaves"]
    assert places(read(made.text(), nodes)) == places(read(small().text()))
    assert read(made.text(), nodes).findings == ()


def test_a_file_that_is_cut_is_refused_or_found_wherever_it_ends() -> None:
    text = small().text()
    read(text)
    for end in range(text.index("Switch"), len(text) - 60, 7):
        try:
            found = codes(read(text[:end]))
        except FabricError as error:
            assert re.search("line [0-9]+: |no host is linked", str(error))
        else:
            assert "cut-file" in found, text[end - 80 : end]


def test_a_line_within_which_the_file_ends_is_named() -> None:
    text = small().text()
    cut = text[: text.rindex("lid 7")]
    with pytest.raises(FabricError, match=f"line {cut.count(chr(10)) + 1}: the file ends within a line"):
        read(cut)
    with pytest.raises(FabricError, match="line 2: 'hello' is no line of ibnetdiscover"):
        read("#\nhello\n#\n")


def test_two_devices_with_one_guid_are_found() -> None:
    made = small()
    text = made.text().replace("0000000000000007", "0000000000000003")
    assert "duplicate-guid" in codes(read(text))


def test_a_port_that_two_switches_are_linked_to_is_found() -> None:
    sections = small().text().split("\n\n")
    text = "\n\n".join(one for one in sections if "\nCa" not in one) + "\n"
    assert codes(read(text)) == []
    text = text.replace("0000000000000007", "0000000000000003")
    assert codes(read(text)) == ["duplicate-guid", "two-places"]


def test_a_section_that_is_there_twice_is_found() -> None:
    text = small().text()
    again = text[text.index('Switch\t65 "S-0000000000000002"') :].split("\n\n")[0]
    assert "duplicate-guid" in codes(read(f"{text}\n{again}\n"))


def test_slow_links_are_found_by_line() -> None:
    lines = small().text().split("\n")
    at = next(at for at, line in enumerate(lines) if line.startswith('[1]\t"S-0000000000000002"'))
    other = next(at for at, line in enumerate(lines) if line.startswith('[1]\t"S-0000000000000001"'))
    for one in (at, other):
        lines[one] = lines[one].replace("4xNDR", "4xDDR")
    (found,) = read("\n".join(lines)).findings
    assert (found.code, found.what) == (
        "slow-link",
        f"line {at + 1}: spine port 1 to leaf-a is 4xDDR; most such links are 4xNDR",
    )


def test_a_leaf_with_one_link_and_a_host_with_fewer_are_found() -> None:
    made = small()
    leaf = made.device("S", "MF0;leaf-c:MQM9700/U1")
    made.cable(leaf, "S-0000000000000001")
    for number in range(3):
        made.cable(leaf, made.device("H", f"gpu-c{number} mlx5_0"))
    for at in ("S-0000000000000002", "S-0000000000000006", leaf):
        for number, host in enumerate(sorted({"S-0000000000000002": "a", "S-0000000000000006": "b"}.get(at, "c") * 3)):
            if (host, number) != ("b", 0):
                made.cable(at, made.device("H", f"gpu-{host}{number} mlx5_1"))
    found = {one.code: one.what for one in read(made.text()).findings}
    assert found == {
        "single-link": "leaf-c has one link to other switches",
        "few-links": "gpu-b0 has 1 of the 2 links that most hosts have",
    }


def test_hosts_without_a_name_of_their_own_are_left_out() -> None:
    text = small().text().replace("GPU-a1 mlx5_0", "MT4129 ConnectX7   Mellanox Technologies")
    text = text.replace("GPU-b1", "localhost").replace("GPU-b2", "localhost")
    reading = read(text)
    assert set(places(reading)) == {"gpu-a0", "gpu-a2", "gpu-b0"}
    assert codes(reading) == ["unclear-host", "unclear-host"]


def test_a_switch_and_a_host_without_links_are_found() -> None:
    made = small()
    made.device("S", "MF0;spare:MQM9700/U1")
    made.device("H", "gpu-z mlx5_0")
    assert sorted(one.what for one in read(made.text()).findings) == [
        "gpu-z has no link to a switch",
        "switch spare has no link",
    ]


def test_only_an_adapter_is_no_network() -> None:
    with pytest.raises(FabricError, match="no host is linked to a switch"):
        read('caguid=0x1\nCa\t1 "H-0000000000000001"\t\t# "gpu-1 HCA-1"\n')
    with pytest.raises(FabricError, match="line 2: a port is over 254"):
        read('Switch\t65 "S-01"\t\t# "a" base port 0 lid 1 lmc 0\n[255]\t"S-02"[1]\t\t# "b" lid 1 4xNDR\n')
