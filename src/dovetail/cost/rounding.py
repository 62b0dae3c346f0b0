# SPDX-License-Identifier: Apache-2.0
"""Exact amounts, and the whole units that are shown of them.

Rules
- An amount of GPU time is in thousandths of a GPU times milliseconds; an amount of money is that times the price of a
  GPU in millionths of the currency per hour, 1 where a price is 0.000001. Both are integers, so that sums are exact
  however they are grouped.
- Only what is shown is rounded, by largest remainder: the parts are rounded down, and what is missing to the rounded
  total goes to those that lost most, the first among equals. So what is shown adds up.
"""

from __future__ import annotations

from collections.abc import Sequence

HOUR = 1000 * 3_600_000
"""The time of one GPU for an hour."""
MICRO = HOUR
"""The money that is a millionth of the currency."""
CENT = 10_000 * MICRO
CENT_HOURS = HOUR // 100


def nearest(amount: int, unit: int) -> int:
    """The number of units, half a unit rounded up."""
    return (2 * amount + unit) // (2 * unit)


def parts_of(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in whole parts, in proportion to the weights, by largest remainder. Their sum is `total`, which is not
    negative. Without a weight above 0 all parts are 0."""
    whole = sum(weights)
    if not whole:
        return [0] * len(weights)
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def shown(rows: Sequence[Sequence[int]], unit: int) -> list[list[int]]:
    """The amounts in units, as a matrix: each column adds up to a part of the rounded total of all, and all columns
    together to that total."""
    columns = list(zip(*rows, strict=True))
    sums = [sum(column) for column in columns]
    totals = parts_of(nearest(sum(sums), unit), sums)
    found = [parts_of(total, column) for total, column in zip(totals, columns, strict=True)]
    return [list(row) for row in zip(*found, strict=True)]


def decimal(number: int, digits: int) -> str:
    """A number of hundredths, or millionths ..., as text: 1250 with 2 digits is 12.50."""
    whole, rest = divmod(abs(number), 10**digits)
    return f"{'-' * (number < 0)}{whole}.{rest:0{digits}}"
