# SPDX-License-Identifier: Apache-2.0
"""Amounts of money as text, with where their prices are from."""

from __future__ import annotations

from typing import Protocol


class HasPrice(Protocol):
    """A row with the source and the date of its price."""

    @property
    def price_source(self) -> str: ...
    @property
    def price_date(self) -> str: ...


class HasNoPrice(Protocol):
    """A row without a price: why, and what to do about it."""

    @property
    def why(self) -> str: ...
    @property
    def fix(self) -> str: ...


def money(micro: int, currency: str) -> str:
    """Millionths of a currency: `1,234.50 USD`."""
    cents = (abs(micro) + 5000) // 10_000
    return f"{'-' * (micro < 0 and cents > 0)}{cents // 100:,}.{cents % 100:02} {currency}".rstrip()


def price_of(one: HasPrice) -> str:
    return f"price: {one.price_source}, of {one.price_date or 'no date'}"


def unpriced(one: HasNoPrice) -> str:
    return f"{one.why}. To do: {one.fix}." if one.fix else f"{one.why}."
