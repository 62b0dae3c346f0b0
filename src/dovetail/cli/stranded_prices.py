# SPDX-License-Identifier: Apache-2.0
"""What stranded GPUs cost: the prices of a PriceBook joined with the answers of `free`.

Rules: a part of a GPU costs its part of the node's price. Where a row has no price there is no sum.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import asdict

from dovetail.cli.node_price import price_at
from dovetail.cost.node_prices import HOURS_30D, NodePrice
from dovetail.cost.price_rules import PriceBook, Unpriced
from dovetail.cost.rounding import nearest
from dovetail.views.free_types import Free, StrandedGpus
from dovetail.views.shape_types import ShapeAnswer


class PricedStranded(Struct, frozen=True):
    """GPUs of a model that are stranded by one cause: `gpus_milli` of them on so many `nodes`, for pods of `gpus` GPUs,
    and what they cost in millionths of the currency, None without a price: then `why`, and how to `fix` that."""

    model: str
    cause: str
    detail: str
    gpus: int
    nodes: int
    gpus_milli: int
    per_hour_micro: int | None
    price_source: str
    price_date: str
    why: str
    fix: str


class StrandedPrice(Struct, frozen=True):
    """What all stranded GPUs cost, None where one has no price."""

    currency: str
    per_hour_micro: int | None
    per_30d_micro: int | None
    rows: tuple[PricedStranded, ...]


class PricedFree(Free, frozen=True):
    """The answer of `free` with the `price` of what is stranded; None where an older scheduler answered."""

    price: StrandedPrice | None = None


class PricedShape(ShapeAnswer, frozen=True):
    """The answer of `free --shape` with the same."""

    price: StrandedPrice | None = None


def priced_free(answer: Free, book: PriceBook, at_ms: int) -> PricedFree:
    """Raises CurrencyError."""
    return PricedFree(**asdict(answer), price=_price(answer.stranded, book, at_ms))


def priced_shape(answer: ShapeAnswer, book: PriceBook, at_ms: int) -> PricedShape:
    """Raises CurrencyError."""
    return PricedShape(**asdict(answer), price=_price(answer.stranded, book, at_ms))


def _price(found: StrandedGpus | None, book: PriceBook, at_ms: int) -> StrandedPrice | None:
    if found is None:
        return None
    rows = tuple(_rows(found, book, at_ms))
    hour = month = None
    if all(one.per_hour_micro is not None for one in rows):
        hour = sum(one.per_hour_micro or 0 for one in rows)
        month = hour * HOURS_30D
    return StrandedPrice(book.currency, hour, month, rows)


def _rows(found: StrandedGpus, book: PriceBook, at_ms: int) -> Iterator[PricedStranded]:
    """What is most first."""
    sums: dict[tuple[str, str, str, int, int, NodePrice | Unpriced], list[int]] = {}
    for part in found.parts:
        kind = part.kind
        for name in part.nodes:
            key = kind.model, part.cause, part.detail, part.gpus, kind.gpus, price_at(kind, name, book, at_ms)
            amount = sums.setdefault(key, [0, 0])
            amount[0] += 1
            amount[1] += part.gpus_milli
    for (model, cause, detail, gpus, of_node, price), (nodes, milli) in sorted(
        sums.items(), key=lambda one: -one[1][1]
    ):
        here = model, cause, detail, gpus, nodes, milli
        if isinstance(price, Unpriced):
            yield PricedStranded(*here, None, "", "", price.why, price.fix)
        else:
            hour = nearest(milli * price.micro, 1000 * of_node)
            yield PricedStranded(*here, hour, price.source, price.date, "", "")
