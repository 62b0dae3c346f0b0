# SPDX-License-Identifier: Apache-2.0
"""What GPUs and instance types cost, for advice: the `Market` of a price book.

Rules: where nodes with the same GPUs have several prices the lowest counts, so that no saving is overstated. A model
that no node has is priced by its name alone. Instance types, with their CPUs and memory, are those of the table that
comes with Dovetail; their prices are those of the book, on demand and in the region of the node. A type that has no
price there is not offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from msgspec.structs import replace

from dovetail.advice.prices import CloudInstance, built_in
from dovetail.advice.sizing.market import HourPrice, InstanceOffer, Market
from dovetail.cost.price_rules import PriceBook, Priced, model_of
from dovetail.history.records import GpuSpan


def market(spans: Iterable[GpuSpan], book: PriceBook, at_ms: int) -> Market:
    """The prices at a time; models by Dovetail's name, or that of the spans. Raises CurrencyError, also when it is
    asked."""
    found: dict[str, HourPrice | None] = {}
    for span in spans:
        model, price = model_of(span.model), _price(book, span, at_ms)
        known = found.get(model)
        if price is not None and (known is None or price.micro < known.micro):
            found[model] = price

    def of_model(name: str) -> HourPrice | None:
        model = model_of(name)
        if model not in found:
            found[model] = _price(book, GpuSpan("", "", 0, 1, name, "healthy", 0), at_ms)
        return found[model]

    def of_place(span: GpuSpan) -> HourPrice | None:
        return _price(book, span, at_ms)

    def offers(span: GpuSpan) -> tuple[InstanceOffer, ...]:
        return tuple(_offers(book, span, at_ms))

    return Market(of_model, of_place, offers)


def _price(book: PriceBook, span: GpuSpan, at_ms: int) -> HourPrice | None:
    price = book.price(span, at_ms)
    return HourPrice(price.micro, book.currency, price.rule.date) if isinstance(price, Priced) else None


def _offers(book: PriceBook, span: GpuSpan, at_ms: int) -> Iterator[InstanceOffer]:
    """The instance types with the GPUs of this one; none where its type is not in the table."""
    table = _table()
    own = table.get(span.instance_type)
    for name, one in table.items() if own is not None else ():
        gpus, rest = divmod(one.gpu_milli, 1000)
        if own is None or rest or (one.cloud, one.gpu_model) != (own.cloud, own.gpu_model):
            continue
        # The user's price of a node by name is that of the own type alone.
        node = span.node if one is own else ""
        place = replace(span, node=node, index=0, gpus=gpus, instance_type=name, spot=False)
        price = _price(book, place, at_ms)
        if price is not None:
            yield InstanceOffer(name, gpus, one.cpu_milli, one.memory_mib, price)


@cache
def _table() -> dict[str, CloudInstance]:
    """By name. A type has the same machine in all regions."""
    return {one.instance_type: one for one in reversed(built_in())}
