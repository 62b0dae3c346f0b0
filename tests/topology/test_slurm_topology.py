# SPDX-License-Identifier: Apache-2.0
"""Slurm's topology.conf and topology.yaml are read and written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.topology.fabric import FabricError, FabricPlacement, FabricReading
from dovetail.topology.fabric_check import findings_of
from dovetail.topology.slurm_topology import conf_of, read_conf, read_yaml_value, yaml_value_of

TREE = """
# switch.3.1=core
SwitchName=top switches=s[0-1]  # the rest is a comment
switchname=s0 Nodes=n[1-2] LinkSpeed=100
SwitchName=s1 \\
  Nodes=n3,N4
"""


def places(reading: FabricReading) -> dict[str, str]:
    return {one.node: "/".join(one.path) for one in reading.placements}


def codes(reading: FabricReading) -> list[str]:
    return sorted(one.code for one in reading.findings)


def test_a_tree() -> None:
    reading = read_conf(TREE)
    assert places(reading) == {"n1": "top/s0", "n2": "top/s0", "n3": "top/s1", "n4": "top/s1"}
    assert [one.line for one in reading.placements] == [4, 4, 5, 5]
    assert reading.findings == ()


def test_blocks() -> None:
    reading = read_conf("# rack11=nvl-1-1\nBlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2,4\n")
    assert places(reading) == {"n1": "b1", "n2": "b1", "n3": "b2", "n4": "b2"}
    assert reading.keys == ("dovetail.dev/block",)


def test_of_several_topologies_the_default_counts() -> None:
    tree = {"topology": "a", "tree": {"switches": [{"switch": "r", "children": "s1"}, {"switch": "s1", "nodes": "n1"}]}}
    block = {
        "topology": "b",
        "cluster_default": True,
        "block": {"block_sizes": [1], "blocks": [{"block": "b1", "nodes": "n1"}]},
    }
    flat = {"topology": "c", "flat": True}
    assert places(read_yaml_value([flat, tree, block])) == {"n1": "b1"}
    assert places(read_yaml_value([flat, tree])) == {"n1": "r/s1"}
    for bad in ([flat], [], None, {"topology": "a"}, [{"topology": "a", "tree": {"switches": [{"switch": 3}]}}]):
        with pytest.raises(FabricError):
            read_yaml_value(bad)


def test_switches_of_unequal_depth_fill_the_wider_levels() -> None:
    reading = read_conf("SwitchName=a Switches=b\nSwitchName=b Nodes=n1\nSwitchName=c Nodes=n2\n")
    assert places(reading) == {"n1": "a/b", "n2": "c/c"}


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        (
            "SwitchName=a Switches=b Nodes=x\nSwitchName=b Switches=a\nSwitchName=c Nodes=y",
            "loop",
            "a is below b is below a",
        ),
        ("SwitchName=a Switches=a\nSwitchName=c Nodes=y", "loop", "a is below a"),
        (
            "SwitchName=a Switches=c\nSwitchName=b Switches=c\nSwitchName=c Nodes=y",
            "several-parents",
            "c is below a and below b",
        ),
        ("SwitchName=a Switches=b,c\nSwitchName=c Nodes=y", "orphan", "a has a switch b, which no line describes"),
        ("SwitchName=a\nSwitchName=c Nodes=y", "orphan", "a has neither nodes nor switches"),
        ("SwitchName=a Nodes=x\nSwitchName=c Nodes=x,y", "two-places", "x is in a (line 1) and in c (line 2)"),
    ],
)
def test_contradictions_are_found(text: str, code: str, what: str) -> None:
    (found,) = read_conf(text).findings
    assert (found.code, found.what) == (code, what)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=a Nodes=n[1-", "line 1: a: 'n\\[1-' is no hostlist"),
        ("\nNodes=n1", "line 2: no SwitchName or BlockName"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "line 2: a is there twice, first in line 1"),
        ("SwitchName=a Nodse=n1", "line 1: parameter nodse is none"),
        ("SwitchName=a Nodes=n1 and more", "line 1: 'SwitchName=a"),
        ("SwitchName=a Nodes=n[0-150000]\nSwitchName=b Nodes=m[0-150000]", "line 2: more than 200,000"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", "no switch or block has nodes"),
        (
            "\n".join([f"SwitchName=s{n} Switches=s{n + 1}" for n in range(30)] + ["SwitchName=s30 Nodes=x"]),
            "deeper than 12",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_line(text: str, message: str) -> None:
    with pytest.raises(FabricError, match=message):
        read_conf(text)


names = st.sampled_from("abc")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(names, names, names), min_size=1, max_size=12))
def test_what_is_written_is_read_as_the_same_domains(paths: list[tuple[str, str, str]]) -> None:
    reading = FabricReading(tuple(FabricPlacement(f"n{at}", path) for at, path in enumerate(paths)), ())
    for again in (read_conf(conf_of(reading)), read_yaml_value(yaml_value_of(reading))):
        assert again.findings == ()
        assert {one.node for one in again.placements} == {one.node for one in reading.placements}
        own = findings_of({"written": reading, "read": again})["written, read"]
        assert own == []


def test_names_that_are_there_twice_are_written_with_those_above() -> None:
    paths = [("a", "b"), ("c", "b"), ("a-b", "d")]
    text = conf_of(FabricReading(tuple(FabricPlacement(f"n{at}", path) for at, path in enumerate(paths)), ()))
    names = [line.partition(" ")[0] for line in text.splitlines()]
    assert len(names) == len(set(names)) == 7
    assert "SwitchName=c-b Nodes=n1" in text
    assert read_conf(text).findings == ()
