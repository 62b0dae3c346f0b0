# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a plan: those at hand, or those of a price list."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dovetail.advice.prices import CloudInstance
from dovetail.advice.serve.types import GpuOffer
from dovetail.advice.speeds import SPEEDS

_MOST_NODES = 64


def priced(offers: Iterable[GpuOffer], instances: Iterable[CloudInstance]) -> tuple[GpuOffer, ...]:
    """The offers with the cheapest price on demand of a GPU of their model, where one is known."""
    found = {offer.gpu.model: offer for offer in of_list(instances)}

    def with_price(offer: GpuOffer) -> GpuOffer:
        known = found.get(offer.gpu.model)
        if known is None:
            return offer
        return replace(offer, micro_usd_per_gpu_hour=known.micro_usd_per_gpu_hour, price_of=known.price_of)

    return tuple(map(with_price, offers))


def of_list(instances: Iterable[CloudInstance]) -> tuple[GpuOffer, ...]:
    """For each GPU model with known speed the instance with the most GPUs, at the cheapest price of a GPU in it."""
    best: dict[str, GpuOffer] = {}
    for one in instances:
        if one.gpu is None or one.gpu.model not in SPEEDS or one.price_micro_usd is None or one.gpu_milli % 1000:
            continue
        number = one.gpu_milli // 1000
        price = one.price_micro_usd // number
        name = f"{one.cloud} {one.instance_type} {one.region}, {one.price_date}"
        offer = GpuOffer(one.gpu, _MOST_NODES, number, price, name)
        known = best.get(one.gpu.model)
        if known is None or (-number, price) < (-known.gpus_per_node, known.micro_usd_per_gpu_hour or 0):
            best[one.gpu.model] = offer
    return tuple(best.values())
