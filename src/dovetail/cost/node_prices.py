# SPDX-License-Identifier: Apache-2.0
"""The price of whole nodes: that of all their GPUs."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from dovetail.cost.price_rules import PriceBook, Unpriced
from dovetail.history.records import GpuSpan

HOURS_30D = 720


class NodePrice(Struct, frozen=True):
    """The price of a node for an hour, in millionths of the currency of the book, with its source and date."""

    micro: int
    source: str
    date: str


def node_price(gpu: GpuSpan, book: PriceBook, at_ms: int) -> NodePrice | Unpriced:
    """The price of the node that has `gpu`, at a time. Raises CurrencyError."""
    micro, rule = 0, None
    for index in range(gpu.gpus):
        price = book.price(replace(gpu, index=index), at_ms)
        if isinstance(price, Unpriced):
            return price
        micro, rule = micro + price.micro, price.rule
    assert rule is not None
    return NodePrice(micro, rule.source, rule.date)
