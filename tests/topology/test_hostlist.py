# SPDX-License-Identifier: Apache-2.0
"""Slurm's hostlist expressions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.topology.fabric import FabricError
from dovetail.topology.hostlist import compress, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ""),
        ("tux", "tux"),
        ("tux[0-3,12,18-20]", "tux0 tux1 tux2 tux3 tux12 tux18 tux19 tux20"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("r[1-2]n[1-2].x,b", "r1n1.x r1n2.x r2n1.x r2n2.x b"),
        ("switch.2.[1-2]", "switch.2.1 switch.2.2"),
    ],
)
def test_expressions(text: str, names: str) -> None:
    assert expand(text) == names.split()


@pytest.mark.parametrize(
    "text",
    ["a[1-", "a]", "a[]", "a[1-x]", "a[3-1]", "a,,b", "a, ,b", "a,", "a[0-999999]", "a[1-999][1-999]", "a[1-9][[2]"],
)
def test_what_is_no_hostlist_or_too_long_is_refused(text: str) -> None:
    with pytest.raises(FabricError):
        expand(text)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "a1-", "", "b.0"]), st.sampled_from(["", "0", "00"]), st.integers(0, 12)))
)
def test_compressed_names_expand_to_the_same(parts: list[tuple[str, str, int]]) -> None:
    names = [f"{prefix}{zeros}{number}" for prefix, zeros, number in parts]
    assert sorted(expand(compress(names))) == sorted(set(names))


def test_compressed_lists_are_short() -> None:
    assert compress(f"gpu-{number:03d}" for number in range(1, 121)) == "gpu-[001-120]"
    assert compress(["a2", "login", "a1", "a4"]) == "a[1-2,4],login"
