# SPDX-License-Identifier: Apache-2.0
"""A table of cloud instances with the prices of a newer file.

Rules
- A line of the newer file replaces all prices of that instance type in that region, because a line has one date for
  both. An empty cell is a price that is unknown.
- A region that the table lacks is added. Cells that the line leaves empty are as in another region.
- A type that the table lacks needs all columns that must be there.
- Prices that are older than those of the table are refused.
"""

from __future__ import annotations

import csv
import io

from msgspec import Struct

from dovetail.advice.price_table import PriceError, PriceRow
from dovetail.advice.prices import COLUMNS, distinct, instance, key

_PRICES = {"price_usd_h", "spot_usd_h_min", "spot_usd_h_median"}
_NEEDED = ("cloud", "instance_type", "region", "price_usd_h", "price_date", "source")
_OWN = {*_PRICES, *_NEEDED}
"""Columns that are never those of another line."""


class RefreshedTable(Struct, frozen=True):
    """`text` is CSV. Of its lines, `replaced` have other prices than before, `added` are new, and `kept` are as before:
    the prices of these are of `oldest` or later, "" if there are none."""

    text: str
    replaced: int
    added: int
    kept: int
    oldest: str


def refreshed(table: str, table_file: str, newer: str, newer_file: str) -> RefreshedTable:
    """The table with the prices of `newer`; both are CSV. Raises PriceError."""
    of_line = {key(row): row for row in distinct(table, table_file, COLUMNS)}
    of_type: dict[tuple[str, str], PriceRow] = {}
    for row in of_line.values():
        instance(row)
        of_type.setdefault(key(row)[:2], row)
    new = {
        key(row): _line(row, of_line.get(key(row)), of_type.get(key(row)[:2]))
        for row in distinct(newer, newer_file, _NEEDED)
    }
    # A type without any price has no region: the first price takes its line.
    priced = {of[:2] for of in new}
    kept = {of: row for of, row in of_line.items() if of not in new and (of[2] or of[:2] not in priced)}
    places = {of: place for place, of in enumerate(dict.fromkeys(of[:2] for of in (*of_line, *new)))}
    lines = sorted((kept | new).items(), key=lambda line: places[line[0][:2]])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([row.cells[column] for column in COLUMNS] for _, row in lines)
    replaced = len(of_line) - len(kept)
    oldest = min((row.cells["price_date"] for row in kept.values()), default="")
    return RefreshedTable(text.getvalue(), replaced, len(new) - replaced, len(kept), oldest)


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
