# SPDX-License-Identifier: Apache-2.0
"""A table of instances takes the prices of a newer file, and refuses what it cannot take."""

from __future__ import annotations

import pytest

from dovetail.advice.price_refresh import refreshed
from dovetail.advice.price_table import PriceError
from dovetail.advice.prices import COLUMNS, CloudInstance, read

HEAD = ",".join(COLUMNS)
BIG = "acme,big,H100-SXM5,8,80,96,1024,3200,EFA,1000,north,40,9,16,2026-01-31,bill"
NEW = "acme,new,H200-SXM5,8,141,96,1024,3200,EFA,1000,,,,,2026-01-31,list"
TABLE = f"{HEAD}\n{BIG}\n{NEW}\n"
SHORT = "cloud,instance_type,region,price_usd_h,spot_usd_h_median,price_date,source"


def after(*lines: str, head: str = SHORT) -> dict[tuple[str, str], CloudInstance]:
    found = refreshed(TABLE, "table.csv", "\n".join((head, *lines)), "newer.csv")
    return {(one.instance_type, one.region): one for one in read(found.text, "refreshed")}


def test_a_line_replaces_all_prices_and_nothing_else() -> None:
    found = after("acme,big,north,38,,2026-03-01,new bill")["big", "north"]
    assert (found.price_micro_usd, found.spot_micro_usd) == (38_000_000, None)
    assert (found.price_date, found.source, found.rdma, found.memory_mib) == ("2026-03-01", "new bill", "EFA", 1 << 20)


def test_a_region_is_added_and_the_first_price_takes_the_line_without_a_region() -> None:
    found = after("acme,big,south,,11,2026-01-01,bill", "acme,new,south,70,30,2026-03-01,bill")
    assert list(found) == [("big", "north"), ("big", "south"), ("new", "south")]
    assert found["big", "south"].gpu_milli == 8000 and found["big", "north"].price_micro_usd == 40_000_000


def test_a_whole_line_adds_a_type() -> None:
    found = after(BIG.replace("big", "huge").replace(",8,80,", ",16,80,"), head=HEAD)
    assert found["huge", "north"].gpu_milli == 16_000 and len(found) == 3


def test_the_counts() -> None:
    newer = f"{SHORT}\nacme,big,north,38,,2026-03-01,b\nacme,big,south,39,,2026-03-01,b\n"
    found = refreshed(TABLE, "table.csv", newer, "newer.csv")
    assert (found.replaced, found.added, found.kept, found.oldest) == (1, 1, 1, "2026-01-31")
    again = refreshed(found.text, "table.csv", newer, "newer.csv")
    assert again.text == found.text and (again.replaced, again.added) == (2, 0)
    assert read(found.text, "a")[2] == read(TABLE, "a")[1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("acme,big,north,free,,2026-03-01,b", "newer.csv:2, column price_usd_h: 'free' is not dollars"),
        ("acme,big,north,,,2026-03-01,b", "newer.csv:2, column price_usd_h: the line has no price"),
        ("acme,big,north,38,,2026-01-30,b", "column price_date: '2026-01-30' is not 2026-01-31 or later"),
        ("acme,big,north,38,,31 March,b", "column price_date: '31 March' is not a date"),
        ("acme,big,,38,,2026-03-01,b", "column region: '' is not a name"),
        ("acme,big,north,38,,2026-03-01,", "column source: '' is not a name"),
        ("acme,bog,north,38,,2026-03-01,b", "column instance_type: acme bog is not in the table: add gpu_model"),
        ("acme,big,north,38", "newer.csv:2: has 4 cells, the first line names 7"),
        ("acme,big,north,38,,2026-03-01,b\nacme,big,north,37,,2026-03-02,b", "newer.csv:3, column instance_type"),
    ],
)
def test_bad_lines(line: str, message: str) -> None:
    with pytest.raises(PriceError) as error:
        after(line)
    assert message in str(error.value)


def test_files_that_are_no_tables() -> None:
    for newer, message in (
        ("", "cloud: is missing"),
        (f"{SHORT},gpus\n", "'gpus': is not known"),
        (SHORT, "no instance"),
    ):
        with pytest.raises(PriceError, match=message):
            refreshed(TABLE, "table.csv", newer, "newer.csv")
    with pytest.raises(PriceError, match=r"table.csv:2, column gpu_count"):
        refreshed(TABLE.replace(",8,80,", ",many,80,"), "table.csv", f"{SHORT}\n", "newer.csv")
