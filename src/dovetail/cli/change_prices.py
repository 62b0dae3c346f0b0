# SPDX-License-Identifier: Apache-2.0
"""What a change costs or saves: the prices of a PriceBook joined with the answer of `whatif`.

Rules
- Nodes that are added cost the price of their GPUs, nodes that are taken away save it; 30 days are 720 hours.
- What is submitted costs its part of the GPUs of its nodes, for its run-time limit where it has one.
- What has no price is in no sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import asdict

from dovetail.cli.node_price import price_at
from dovetail.cost.node_prices import HOURS_30D, NodePrice
from dovetail.cost.price_rules import PriceBook, Unpriced
from dovetail.cost.rounding import HOUR, nearest
from dovetail.views.priced_types import ChangedNodes, PricedNode, SubmittedGpus
from dovetail.views.whatif_types import WhatIf

_NO_NODE = Unpriced("it gets no node in the look-ahead", "")


class PricedNodes(Struct, frozen=True):
    """Nodes of one kind and price that the change adds, or takes away. Amounts are those of all of them in millionths
    of the currency, None without a price: then `why`, and how to `fix` that."""

    added: bool
    model: str
    nodes: int
    gpus: int
    per_hour_micro: int | None
    per_30d_micro: int | None
    price_source: str
    price_date: str
    why: str
    fix: str


class PricedJob(Struct, frozen=True):
    """GPUs that a submitted job holds. `cost_micro` is what they cost for `run_ms`, None where that is not known."""

    job: str
    model: str
    gpus_milli: int
    run_ms: int
    per_hour_micro: int | None
    cost_micro: int | None
    price_source: str
    price_date: str
    why: str
    fix: str


class ChangePrice(Struct, frozen=True):
    """What the change costs, below 0 what it saves; None where a node that it changes has no price."""

    currency: str
    per_hour_micro: int | None
    per_30d_micro: int | None
    nodes: tuple[PricedNodes, ...]
    jobs: tuple[PricedJob, ...]


class PricedWhatIf(WhatIf, frozen=True):
    """The answer of `whatif` with `price`; None where an older scheduler answered."""

    price: ChangePrice | None = None


def priced_whatif(answer: WhatIf, book: PriceBook) -> PricedWhatIf:
    """Raises CurrencyError."""
    price = None
    if answer.nodes is not None and answer.submitted is not None:
        nodes = tuple(row for one in answer.nodes for row in _nodes(one, book, answer.now_ms))
        jobs = tuple(_jobs(answer.submitted, book, answer.now_ms))
        hour = month = None
        if all(one.per_hour_micro is not None for one in nodes):
            hour = sum((one.per_hour_micro or 0) * (1 if one.added else -1) for one in nodes)
            month = hour * HOURS_30D
        price = ChangePrice(book.currency, hour, month, nodes, jobs)
    return PricedWhatIf(**asdict(answer), price=price)


def _nodes(changed: ChangedNodes, book: PriceBook, at_ms: int) -> Iterator[PricedNodes]:
    """Nodes of equal prices together."""
    kind, found = changed.kind, dict[NodePrice | Unpriced, int]()
    for name in changed.names:
        price = price_at(kind, name, book, at_ms)
        found[price] = found.get(price, 0) + 1
    for price, number in found.items():
        gpus, here = number * kind.gpus, (changed.added, kind.model, number)
        if isinstance(price, Unpriced):
            yield PricedNodes(*here, gpus, None, None, "", "", price.why, price.fix)
        else:
            hour = number * price.micro
            yield PricedNodes(*here, gpus, hour, hour * HOURS_30D, price.source, price.date, "", "")


def _jobs(submitted: Iterable[SubmittedGpus], book: PriceBook, at_ms: int) -> Iterator[PricedJob]:
    """Pods of a job with equal prices together."""
    found: dict[tuple[str, int, PricedNode | None, NodePrice | Unpriced], int] = {}
    for one in submitted:
        price = price_at(one.kind, one.node, book, at_ms) if one.kind is not None else _NO_NODE
        key = one.job, one.run_ms, one.kind, price
        found[key] = found.get(key, 0) + one.gpus_milli
    for (job, run_ms, kind, price), milli in found.items():
        here = job, kind.model if kind is not None else "", milli, run_ms
        if isinstance(price, Unpriced) or kind is None:
            known = price if isinstance(price, Unpriced) else _NO_NODE
            yield PricedJob(*here, None, None, "", "", known.why, known.fix)
            continue
        hour = nearest(milli * price.micro, 1000 * kind.gpus)
        cost = nearest(milli * run_ms * price.micro, HOUR * kind.gpus) if run_ms else None
        yield PricedJob(*here, hour, cost, price.source, price.date, "", "")
