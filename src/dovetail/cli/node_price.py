# SPDX-License-Identifier: Apache-2.0
"""The price of a node of which an answer has the kind."""

from __future__ import annotations

from dovetail.cost.node_prices import NodePrice, node_price
from dovetail.cost.price_rules import PriceBook, Unpriced
from dovetail.history.records import GpuSpan
from dovetail.views.priced_types import PricedNode


def price_at(kind: PricedNode, name: str, book: PriceBook, at_ms: int) -> NodePrice | Unpriced:
    """The price of a node of this kind and name. Raises CurrencyError."""
    bought = kind.purchase
    span = GpuSpan(
        "", name, 0, kind.gpus, kind.model, "healthy", 0,
        instance_type=bought.instance_type, region=bought.region, zone=bought.zone, spot=bought.spot,
    )  # fmt: skip
    return node_price(span, book, at_ms)
