# SPDX-License-Identifier: Apache-2.0
"""Pages as CSV and JSON."""

from __future__ import annotations

import csv
import gzip
from io import StringIO

import msgspec
import pytest

from dovetail.dashboard.page_types import TeamsPage
from dovetail.dashboard.sheets import Sheet, csv_of


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ('a,b\n"c"', 'a,b\n"c"'),
        ("=1+1", "'=1+1"),
        ("@x", "'@x"),
        ("-1 day", "'-1 day"),
        (-1, "-1"),
        (None, ""),
        (True, "true"),
        (["a", "b"], "a b"),
        ((), ""),
        (["=1", "b"], "'=1 b"),
        ([["gpu", 1]], '[["gpu",1]]'),
        ({"a": 1}, '{"a":1}'),
    ],
)
def test_a_cell_is_read_as_it_was_and_is_no_formula(value: object, cell: str) -> None:
    assert list(csv.reader(StringIO(csv_of([{"column": value}])))) == [["column"], [cell]]


def test_without_rows_there_is_nothing() -> None:
    assert csv_of([]) == ""


def test_a_sheet_is_packed_and_has_its_time() -> None:
    sheet = Sheet(1, 5, TeamsPage(()))
    assert gzip.decompress(sheet.packed) == sheet.json
    assert msgspec.json.decode(sheet.json) == {"asOfMs": 5, "page": {"queues": []}, "error": ""}
    assert sheet.compared == Sheet(2, 6, TeamsPage(())).compared
