# SPDX-License-Identifier: Apache-2.0
"""An operator's own table."""

from __future__ import annotations

import pytest

from dovetail.topology.fabric import FabricError
from dovetail.topology.fabric_table import read


def test_a_column_for_each_level_with_its_key() -> None:
    reading = read("# ours\nexample.com/row, rack, node\r\n1,1a,n1\n\n# spare\n1, 1b, n2\n")
    assert reading.keys == ("example.com/row", "dovetail.dev/rack")
    assert [(one.node, one.path, one.line) for one in reading.placements] == [
        ("n1", ("1", "1a"), 3),
        ("n2", ("1", "1b"), 6),
    ]


def test_a_node_in_two_racks_is_found_with_both_lines() -> None:
    (found,) = read("node,rack\nn1,a\nn2,a\nn1,b\n").findings
    assert (found.code, found.what) == ("two-places", "n1 is in a (line 2) and in b (line 4)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no line with a node"),
        ("node,rack\n", "no line with a node"),
        ("name,rack\nn1,a\n", "line 1: the columns must be"),
        ("node\nn1\n", "line 1: the columns must be"),
        ("node,rack,rack\nn1,a,b\n", "line 1: the columns must be"),
        ("node,rack\nn1,\n", "line 2: no rack"),
        ("node,rack\nn1\n", "line 2: 1 cells for 2 columns"),
        ("node,rack\nn1,a,b\n", "line 2: 3 cells for 2 columns"),
        ('node,rack\nn1,"a\n', "line 2: unexpected end of data"),
    ],
)
def test_what_cannot_be_read_is_refused_by_line(text: str, message: str) -> None:
    with pytest.raises(FabricError, match=message):
        read(text)
