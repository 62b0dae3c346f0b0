# SPDX-License-Identifier: Apache-2.0
"""What GPUs cost, as far as advice asks for it. The records are filled from prices elsewhere (`cost.model_prices`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from dovetail.history.records import GpuSpan


class HourPrice(Struct, frozen=True):
    """What an hour of a GPU costs, in millionths of the currency, as of a date."""

    micro: int
    currency: str
    date: str

    @property
    def text(self) -> str:
        """`4.00 USD`."""
        return f"{self.micro / 10**6:.2f} {self.currency}"

    def above(self, other: HourPrice, least_milli: int) -> bool:
        """Whether this price is higher than another in the same currency, by this part of it at least."""
        return self.currency == other.currency and other.micro * 1000 <= self.micro * (1000 - least_milli)


class InstanceOffer(Struct, frozen=True):
    """An instance type of a cloud, on demand: the number of its GPUs, its CPUs and memory, the price of one GPU."""

    name: str
    gpus: int
    cpu_milli: int
    memory_mib: int
    price: HourPrice

    @property
    def cpus_per_gpu(self) -> str:
        """In words."""
        return f"{self.cpu_milli / 1000 / self.gpus:g}"


PriceOf = Callable[[str], HourPrice | None]
"""The price of a GPU by its model, the lowest of the cluster; None where there is none."""
PlacePriceOf = Callable[[GpuSpan], HourPrice | None]
OffersOf = Callable[[GpuSpan], Sequence[InstanceOffer]]


class Market(Struct, frozen=True):
    """`model`: the price of a model; `place`: that of a GPU in its node; `offers`: the instance types of its cloud with
    the same GPUs, its own among them, at the prices of its region."""

    model: PriceOf = lambda _: None
    place: PlacePriceOf = lambda _: None
    offers: OffersOf = lambda _: ()


NO_MARKET = Market()
