# SPDX-License-Identifier: Apache-2.0
"""Places become node labels."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.fabric import DEFAULT_FABRIC
from dovetail.topology.fabric import FabricError, FabricPlacement, FabricReading, label_value, labels_of, switch_keys


def reading(*paths: str) -> FabricReading:
    placements = tuple(FabricPlacement(f"n{at}", tuple(path.split("/"))) for at, path in enumerate(paths))
    return FabricReading(placements, switch_keys(max(len(one.path) for one in placements)))


def test_the_keys_are_those_of_the_default_fabric_in_its_order() -> None:
    for levels in range(1, 6):
        keys = switch_keys(levels)
        assert len(keys) == levels
        assert list(keys) == [key for key in DEFAULT_FABRIC if key in keys]


def test_labels_by_level() -> None:
    assert labels_of(reading("core/leaf 1", "core/leaf 2"), ["example.com/row", "dovetail.dev/rack"]) == {
        "n0": {"example.com/row": "core", "dovetail.dev/rack": "leaf-1"},
        "n1": {"example.com/row": "core", "dovetail.dev/rack": "leaf-2"},
    }


def test_levels_and_keys_have_to_match() -> None:
    with pytest.raises(FabricError, match="there are 2 levels and 1 label keys"):
        labels_of(reading("a/b"), ["x"])
    with pytest.raises(FabricError, match="6 levels and 5 label keys"):
        labels_of(reading("a/b/c/d/e/f"))


def test_two_domains_never_get_one_value() -> None:
    with pytest.raises(FabricError, match="'r 1' and 'r-1' would both be 'r-1'"):
        labels_of(reading("r 1", "r-1"))
    assert len(labels_of(reading("a/r", "b/r"))) == 2


@given(st.text(min_size=1, max_size=100))
def test_values_are_valid_or_refused(name: str) -> None:
    try:
        value = label_value(name)
    except FabricError:
        assert not re.search("[A-Za-z0-9]", name)
    else:
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", value)


def test_long_names_stay_apart() -> None:
    assert label_value("x" * 80 + "1") != label_value("x" * 80 + "2")
