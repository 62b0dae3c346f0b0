# SPDX-License-Identifier: Apache-2.0
"""Amounts of money in the cells of price files.

Rules: they have a point for decimals and up to nine of these, and are rounded to millionths. None is below 0 or above
MOST an hour: what is there would be a mistake.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

from dovetail.advice.price_table import NUMBER, PriceRow
from dovetail.cost.price_rules import ONE

MOST = 10**6


def money(row: PriceRow, column: str) -> int:
    """A price in millionths. Raises PriceError."""
    found = micro_of(row.cells[column])
    if found is None:
        expected = f"a price for an hour from 0 to {MOST}, such as 2.5; leave the row out if it is not known"
        raise row.wrong(column, expected)
    return found


def micro_of(text: str) -> int | None:
    """A price in millionths, or None if the text is none."""
    if not NUMBER.fullmatch(text) or Decimal(text) > MOST:
        return None
    return int((Decimal(text) * ONE).quantize(Decimal(1), ROUND_HALF_UP))
