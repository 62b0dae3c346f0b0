# SPDX-License-Identifier: Apache-2.0
"""A table of cloud instances with the prices of a newer file: CSV, or an answer of a cloud (`cloud_prices`).

Rules
- A line of a newer CSV file replaces all prices of that instance type in that region, because a line has one date for
  both. An empty cell is a price that is unknown.
- A region that the table lacks is added. Cells that the line leaves empty are as in another region.
- A type that the table lacks needs all columns that must be there.
- Prices that are older than those of the table are refused.
- An answer of a cloud is about many types: those that the table lacks are left out. It states one of the two prices:
  the other stays, and the line has the older date of both. `source` has a note about the spot price, with its date.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from dovetail.advice.cloud_prices import CloudPrice, cloud_prices, is_answer
from dovetail.advice.price_table import PriceError, PriceRow
from dovetail.advice.prices import COLUMNS, distinct, instance, key

_PRICES = {"price_usd_h", "spot_usd_h_min", "spot_usd_h_median"}
_NEEDED = ("cloud", "instance_type", "region", "price_usd_h", "price_date", "source")
_OWN = {*_PRICES, *_NEEDED}
"""Columns that are never those of another line."""
_SPOT_NOTE = re.compile(r"; spot of ([0-9-]{10}): .*")


class RefreshedTable(Struct, frozen=True):
    """`text` is CSV. Of its lines, `replaced` have other prices than before, `added` are new, and `kept` are as before:
    the prices of these are of `oldest` or later, "" if there are none. `left_out` are types of an answer that the table
    lacks."""

    text: str
    replaced: int
    added: int
    kept: int
    oldest: str
    left_out: int = 0


def refreshed(table: str, table_file: str, newer: str, newer_file: str, newer_day: str = "") -> RefreshedTable:
    """The table, CSV, with the prices of `newer`. `newer_day` is the date of an answer without one. Raises
    PriceError."""
    of_line = {key(row): row for row in distinct(table, table_file, COLUMNS)}
    of_type: dict[tuple[str, str], PriceRow] = {}
    for row in of_line.values():
        instance(row)
        of_type.setdefault(key(row)[:2], row)
    left_out: set[tuple[str, str]] = set()
    if is_answer(newer):
        prices = cloud_prices(newer, newer_file, newer_day)
        left_out = {(one.cloud, one.instance_type) for one in prices} - of_type.keys()
        lines = _answered([one for one in prices if (one.cloud, one.instance_type) in of_type], of_line, newer_file)
    else:
        lines = distinct(newer, newer_file, _NEEDED)
    new = {key(row): _line(row, of_line.get(key(row)), of_type.get(key(row)[:2])) for row in lines}
    # A type without any price has no region: the first price takes its line.
    priced = {of[:2] for of in new}
    kept = {of: row for of, row in of_line.items() if of not in new and (of[2] or of[:2] not in priced)}
    places = {of: place for place, of in enumerate(dict.fromkeys(of[:2] for of in (*of_line, *new)))}
    table_lines = sorted((kept | new).items(), key=lambda line: places[line[0][:2]])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([row.cells[column] for column in COLUMNS] for _, row in table_lines)
    replaced = len(of_line) - len(kept)
    oldest = min((row.cells["price_date"] for row in kept.values()), default="")
    return RefreshedTable(text.getvalue(), replaced, len(new) - replaced, len(kept), oldest, len(left_out))


def _line(row: PriceRow, before: PriceRow | None, similar: PriceRow | None) -> PriceRow:
    """A line of the newer file, completed."""
    known = before or similar
    if not any(row.cells[column] for column in _PRICES):
        raise PriceError(row.file, row.line, "price_usd_h", "the line has no price: remove it, or add one")
    if known is None and not row.cells["gpu_model"]:
        name = " ".join(key(row)[:2])
        raise PriceError(row.file, row.line, "instance_type", f"{name} is not in the table: add gpu_model and the rest")
    stated = {column: cell for column, cell in row.cells.items() if cell or column in _OWN}
    whole = PriceRow((known.cells if known else row.cells) | stated, row.file, row.line)
    found = instance(whole)
    if before and before.cells["price_date"] > found.price_date:
        raise row.wrong("price_date", f"{before.cells['price_date']} or later, the date of the table's price")
    return whole


def _answered(
    prices: list[CloudPrice], table: Mapping[tuple[str, str, str], PriceRow], file: str
) -> Iterator[PriceRow]:
    """The lines of an answer, each with the price of the table that it does not state."""
    # An answer can have both prices of a line, each on a page of its own.
    latest = dict(table)
    for place, one in enumerate(prices, 1):
        before = latest.get((one.cloud, one.instance_type, one.region))
        old = before.cells if before is not None else dict.fromkeys(COLUMNS, "")
        note = _SPOT_NOTE.search(old["source"])
        source, spot_note = _SPOT_NOTE.sub("", old["source"]), note[0] if note else ""
        spot_day = note[1] if note else old["price_date"]
        days = [one.day]
        cells = {name: old[name] for name in _PRICES}
        if one.price_micro_usd is not None:
            cells["price_usd_h"], source = _dollars(one.price_micro_usd), one.source
        elif old["price_usd_h"]:
            days.append(old["price_date"])
        if one.spot_median_micro_usd is not None and one.spot_min_micro_usd is not None:
            if old["spot_usd_h_median"] and one.day < spot_day:
                what = f"{one.instance_type} {one.region}: a spot price of {one.day} is older than that of {spot_day}"
                raise PriceError(file, 1, "", f"{what} in the table")
            cells["spot_usd_h_min"] = _dollars(one.spot_min_micro_usd)
            cells["spot_usd_h_median"] = _dollars(one.spot_median_micro_usd)
            spot_note = f"; spot of {one.day}: {one.source}"
        elif old["spot_usd_h_median"]:
            days.append(spot_day)
        cells |= {"cloud": one.cloud, "instance_type": one.instance_type, "region": one.region}
        cells |= {"price_date": min(days), "source": (source or one.source) + spot_note}
        row = PriceRow(dict.fromkeys(COLUMNS, "") | cells, file, place)
        latest[one.cloud, one.instance_type, one.region] = row
        yield row


def _dollars(micro_usd: int) -> str:
    whole, part = divmod(micro_usd, 10**6)
    return f"{whole}.{part:06}".rstrip("0").removesuffix(".")
