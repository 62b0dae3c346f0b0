# SPDX-License-Identifier: Apache-2.0
"""What the GPUs of a period cost, whatever became of their time: the price of each for as long as it was in a node.

What of the time was allocated, and to which pod, is of no matter here: the cells of all groupings add up to this.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dovetail.cost.price_rules import PriceBook, Priced, PriceRule, Unpriced
from dovetail.history.ledger import GpuTime, divide
from dovetail.history.records import GpuSpan, Period


class BillLine(Struct, gc=False):
    """The time of the equal GPUs of a node (thousandths times milliseconds) by one price, or without one, and the money
    for it (see `rounding`)."""

    price: PriceRule | Unpriced
    node: str
    model: str
    instance_type: str
    region: str
    spot: bool
    time: int = 0
    money: int = 0


def bill(spans: Iterable[GpuSpan], period: Period, book: PriceBook) -> list[BillLine]:
    """The lines; `spans` come in the order of `HistoryReader`. Raises CurrencyError."""
    lines: dict[tuple[object, ...], BillLine] = {}
    for one in divide(spans, (), period, book.changes()):
        assert isinstance(one, GpuTime)  # Nothing is held here, so nothing is held of an unknown GPU.
        span, price = one.span, book.price(one.span, one.start_ms)
        rule = price.rule if isinstance(price, Priced) else price
        key = rule, span.node, span.model, span.instance_type, span.region, span.spot
        line = lines.get(key)
        if line is None:
            line = lines[key] = BillLine(*key)
        line.time += one.amount
        line.money += one.amount * (price.micro if isinstance(price, Priced) else 0)
    return list(lines.values())
