# SPDX-License-Identifier: Apache-2.0
"""What the collector passes to this process: one line of JSON on standard input. When that ends, this process ends."""

from __future__ import annotations

from msgspec import Struct

from dovetail.aggregated.front_proxy import FrontProxy
from dovetail.cost.price_sources import PriceSources


class HistoryServerOptions(Struct, frozen=True):
    """`listen` is HOST:PORT, `host` the name that the API server asks for, `store` the file that the collector
    writes."""

    listen: str
    host: str
    front_proxy: FrontProxy
    store: str
    prices: PriceSources = PriceSources()
