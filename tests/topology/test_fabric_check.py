# SPDX-License-Identifier: Apache-2.0
"""Two sources agree if none of their domains cross; else the nodes that are likely wrong are named."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.topology.fabric import FabricPlacement, FabricReading
from dovetail.topology.fabric_check import findings_of


def reading(**paths: str) -> FabricReading:
    return FabricReading(tuple(FabricPlacement(node, tuple(path.split("/"))) for node, path in paths.items()), ())


def between(one: FabricReading, other: FabricReading) -> list[tuple[str, str]]:
    return [(found.code, found.node) for found in findings_of({"a": one, "b": other})["a, b"]]


def domains(one: FabricReading) -> set[frozenset[str]]:
    depths = range(1, max(len(place.path) for place in one.placements) + 1)
    prefixes = {place.path[:depth] for place in one.placements for depth in depths}
    return {frozenset(p.node for p in one.placements if p.path[: len(path)] == path) for path in prefixes}


def test_a_node_in_another_rack_is_named_and_no_other() -> None:
    one = reading(**{f"n{at}": f"x/r{at // 4}" for at in range(8)})
    other = reading(**{f"n{at}": f"rack-{'b' if at == 3 or at > 3 else 'a'}" for at in range(8)})
    assert between(one, other) == [("disagreement", "n3")]


def test_finer_and_wider_domains_agree() -> None:
    one = reading(**{f"n{at}": f"s{at // 8}/l{at // 4}" for at in range(16)})
    other = reading(**{f"n{at}": f"u{at // 2}" for at in range(16)})
    assert between(one, other) == between(other, one) == []


def test_sources_of_other_nodes() -> None:
    assert between(reading(a="x", b="x"), reading(b="y", c="y")) == [("one-source", ""), ("one-source", "")]
    assert between(reading(a="x"), reading(b="x")) == [("disagreement", ""), ("one-source", ""), ("one-source", "")]


def test_a_switch_of_another_name_is_found() -> None:
    one, other = (FabricReading((FabricPlacement("n", ("x",)),), (), (), {"S-1": name}) for name in ("old", "new"))
    assert between(one, other) == [("renamed-switch", "")]


def test_unequal_racks() -> None:
    one = reading(**{f"n{at}": f"r{at // 3}" for at in range(8)}, **{f"m{at}": "wide" for at in range(9)})
    (found,) = findings_of({"a": one})["a"]
    assert (found.code, found.what) == ("unequal", "r2 has 2 of the 3 nodes that most have")


two_levels = st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from("pq")), min_size=6, max_size=6)


@settings(max_examples=60, deadline=None)
@given(two_levels, two_levels)
def test_sources_disagree_exactly_where_domains_cross(
    first: list[tuple[str, str]], second: list[tuple[str, str]]
) -> None:
    one, other = (
        FabricReading(tuple(FabricPlacement(f"n{at}", path) for at, path in enumerate(paths)), ())
        for paths in (first, second)
    )
    crossing = any(a & b and a - b and b - a for a in domains(one) for b in domains(other))
    assert bool(between(one, other)) == crossing
