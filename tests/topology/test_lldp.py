# SPDX-License-Identifier: Apache-2.0
"""Switches that hosts see by LLDP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.topology.fabric import FabricError
from dovetail.topology.lldp import read


def interface(name: str, leaf: str, speed: str = "100G", frame: str = "9216", chassis: str = "") -> dict[str, Any]:
    known = {"id": {"type": "mac", "value": chassis or f"mac-{leaf}"}, "ttl": "120"}
    port = {"id": {"type": "ifname", "value": "swp1"}, "mfs": frame, "auto-negotiation": {"current": speed}}
    return {name: {"via": "LLDP", "chassis": {leaf: known} if leaf else known, "port": port}}


def host(name: str, *interfaces: dict[str, Any]) -> str:
    shown = interfaces[0] if len(interfaces) == 1 else list(interfaces)
    return json.dumps({"host": name, "lldp": {"interface": shown}}) + "\n"


def test_hosts_are_below_their_leaves() -> None:
    reading = read(
        host("A", interface("e1", "l1")) + "\n" + host("b", interface("e1", "l1")) + host("c", interface("e1", "l2"))
    )
    assert {one.node: one.path for one in reading.placements} == {"a": ("l1",), "b": ("l1",), "c": ("l2",)}
    assert reading.findings == ()


def test_leaves_of_rails_are_one_domain_and_others_two_places() -> None:
    rails = [host(f"h{at}", interface("e1", "r1"), interface("e2", "r2")) for at in range(3)]
    alone = [host(f"x{at}", interface("e1", "z")) for at in range(8)]
    both = host("y", interface("e1", "r1"), interface("e2", "z"))
    reading = read("".join([*rails, *alone, both]))
    assert {one.path for one in reading.placements if one.node[0] == "h"} == {("r1",)}
    assert [one.node for one in reading.findings if one.code == "two-places"] == ["y"]


def test_links_that_differ_from_most_are_found() -> None:
    text = "".join(host(f"h{at}", interface("e1", "l")) for at in range(3))
    text += host("h3", interface("e1", "l", speed="25G", frame="1522"))
    assert [(one.code, one.node) for one in read(text).findings] == [("slow-link", "h3"), ("mixed-mtu", "h3")]


def test_a_renamed_switch_and_two_switches_of_one_name_are_found() -> None:
    reading = read(host("a", interface("e1", "old", chassis="m1")) + host("b", interface("e1", "new", chassis="m1")))
    assert [one.code for one in reading.findings] == ["renamed-switch"]
    assert {one.path for one in reading.placements} == {("old",)}
    reading = read(host("a", interface("e1", "l", chassis="m1")) + host("b", interface("e1", "l", chassis="m2")))
    assert {one.path for one in reading.placements} == {("l-m1",), ("l-m2",)}


def test_a_switch_without_a_name_and_a_host_without_a_switch() -> None:
    reading = read(host("a", interface("e1", "", chassis="m1")) + json.dumps({"host": "b", "lldp": {}}))
    assert reading.placements[0].path == ("m1",)
    assert [(one.code, one.node) for one in reading.findings] == [("orphan", "b")]


GOOD = host("a", interface("e1", "l"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no host sees a switch"),
        (GOOD + GOOD, "line 2: a is there twice"),
        (GOOD + GOOD[:40], "line 2: "),
        (json.dumps({"lldp": {}}), "line 1: .*host"),
        (json.dumps({"host": "a", "lldp": {"interface": {"e": {"chassis": {"l": {}}}}}}), "line 1: "),
        (host("a", *(interface(f"e{at}", f"l{at}") for at in range(65))), "more than 64 switches"),
    ],
)
def test_what_is_no_such_text_is_refused(text: str, fault: str) -> None:
    with pytest.raises(FabricError, match=fault):
        read(text)
