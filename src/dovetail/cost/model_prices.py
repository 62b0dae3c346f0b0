# SPDX-License-Identifier: Apache-2.0
"""What an hour of a GPU of a model costs, for advice that does not depend on the node.

Rules: where nodes with the same GPUs have several prices the lowest counts, so that no saving is overstated. A model
that no node has is priced by its name alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.advice.sizing.rule import HourPrice, PriceOf
from dovetail.cost.price_rules import PriceBook, Priced, model_of
from dovetail.history.records import GpuSpan


def model_prices(spans: Iterable[GpuSpan], book: PriceBook, at_ms: int) -> PriceOf:
    """The prices at a time, by Dovetail's name of a model or that of the spans. Raises CurrencyError, also when it is
    called."""
    found: dict[str, HourPrice | None] = {}
    for span in spans:
        model, price = model_of(span.model), _price(book, span, at_ms)
        known = found.get(model)
        if price is not None and (known is None or price.micro < known.micro):
            found[model] = price

    def price_of(name: str) -> HourPrice | None:
        model = model_of(name)
        if model not in found:
            found[model] = _price(book, GpuSpan("", "", 0, 1, name, "healthy", 0), at_ms)
        return found[model]

    return price_of


def _price(book: PriceBook, span: GpuSpan, at_ms: int) -> HourPrice | None:
    price = book.price(span, at_ms)
    return HourPrice(price.micro, book.currency, price.rule.date) if isinstance(price, Priced) else None
