# SPDX-License-Identifier: Apache-2.0
"""Which offer an agent takes: functions of what is on the table, without state and without a clock of their own.

Rules: a policy gets an OfferRound and returns a move. It is called again when the offers are others, or when its
counter-offer was refused. All times are the broker's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.bargaining.types import LeaseAlternative, Offer

LEAST_CHARGED_MS = 60_000
"""A lease counts for a minute at least (`core.bargaining.terms`)."""
_SEVENTHS = 7
_MIG_PREFIX = "nvidia.com/mig-"


class Accept(Struct, frozen=True):
    """Take the offer with this id; of one that starts later the room is reserved."""

    offer: str


class CounterOffer(Struct, frozen=True):
    """Ask for this instead. It stays within what one option asked for at first."""

    alternative: LeaseAlternative


class Decline(Struct, frozen=True):
    """End the negotiation."""

    why: str = "no offer will do"


class KeepWaiting(Struct, frozen=True):
    """Decline these offers, and wait for others."""


Move = Accept | CounterOffer | Decline | KeepWaiting


class OfferRound(Struct, frozen=True):
    """What is on the table: `offers` for a request for one of `asked`, to be answered until `until_ms`. `rounds` is how
    many counter-offers were made, `refused` why the last answer had no effect ("": it had)."""

    offers: tuple[Offer, ...]
    asked: tuple[LeaseAlternative, ...]
    now_ms: int
    until_ms: int
    rounds: int = 0
    refused: str = ""


OfferPolicy = Callable[[OfferRound], Move]


class FirstFit(Struct, frozen=True):
    """The first offer, now or later, of those that start within `patience_ms` (None: any). The broker offers what can
    be had now first. Source: First Fit, as in bin packing (Johnson 1973): take what fits and do not search."""

    patience_ms: int | None = None

    def __call__(self, table: OfferRound) -> Move:
        for offer in table.offers:
            if self.patience_ms is None or offer.start_ms - table.now_ms <= self.patience_ms:
                return Accept(offer.id)
        return KeepWaiting()


def device_milli(alternative: LeaseAlternative) -> int:
    """What one device of it counts, in thousandths of a GPU: a share its part, a MIG instance its compute slices in
    sevenths, rounded up. A share by memory alone counts as a whole GPU, since the card's memory is not known here."""
    if alternative.gpu_milli:
        return alternative.gpu_milli
    if alternative.resource.startswith(_MIG_PREFIX):
        slices = alternative.resource.removeprefix(_MIG_PREFIX).partition("g")[0]
        return -(-1000 * int(slices) // _SEVENTHS) if slices.isdigit() else 1000
    return 1000


class CheapestCredit(Struct, frozen=True):
    """The offer that costs the plane's ledger least: devices x part of a GPU x weight of the model x term, a term
    counting for LEAST_CHARGED_MS at least; of equal ones the earliest. Where several models will do, the heaviest
    counts. Offers above `most_gpu_minutes` (0: no bound) are not taken. `model_milli` are the weights in thousandths
    (1000 where a model is not there), as in the policy of the broker.

    Source: the ledger of leases charges rate x time from the grant on (see `core.queues.rates`)."""

    model_milli: Mapping[str, int] = {}
    most_gpu_minutes: float = 0.0

    def cost(self, alternative: LeaseAlternative) -> int:
        """In millionths of a GPU, times ms."""
        weights = [self.model_milli.get(model, 1000) for model in alternative.models]
        heaviest = max(weights, default=max(self.model_milli.values(), default=1000))
        duration_ms = max(alternative.duration_ms, LEAST_CHARGED_MS)
        return alternative.count * device_milli(alternative) * heaviest * duration_ms

    def __call__(self, table: OfferRound) -> Move:
        bound = self.most_gpu_minutes * 1_000_000 * 60_000
        costs = [(self.cost(offer.alternative), offer.start_ms, n) for n, offer in enumerate(table.offers)]
        fitting = [one for one in costs if not bound or one[0] <= bound]
        return Accept(table.offers[min(fitting)[2]].id) if fitting else KeepWaiting()


def linear(devices: int) -> float:
    """Twice the devices take half the time."""
    return float(devices)


class DeadlineAware(Struct, frozen=True):
    """What finishes `work_ms` (the run time on one device) by `deadline_ms`, for the fewest device-milliseconds.

    With n devices the work takes work_ms / speedup(n). An offer will do where that is within its term and its start
    plus that is not after the deadline. Of those the one with the least n x time is accepted, then the earliest end,
    then the first. Where none will do, one counter-offer is made: the fewest devices of any option that would still
    finish, all of them, by the latest start that is in time. After that it waits as long as some option could still
    finish, and then declines.

    Source: the rule of Jockey (EuroSys 2012) to allocate the least that meets the deadline, without its model."""

    work_ms: int
    deadline_ms: int
    speedup: Callable[[int], float] = linear

    def needs_ms(self, devices: int) -> int:
        """The run time with so many devices, rounded up."""
        factor = self.speedup(devices)
        return -int(-self.work_ms // factor) if factor > 0 else self.deadline_ms + 1

    def finishes(self, alternative: LeaseAlternative, start_ms: int) -> bool:
        """Whether the work is done by the deadline, within the term."""
        needs_ms = self.needs_ms(alternative.count)
        return needs_ms <= alternative.duration_ms and start_ms + needs_ms <= self.deadline_ms

    def counter(self, table: OfferRound) -> LeaseAlternative | None:
        """The fewest devices that would finish if they were there now; None where no option could."""
        found: list[tuple[int, int, LeaseAlternative]] = []
        for number, asked in enumerate(table.asked):
            start_ms = max(table.now_ms, asked.earliest_ms)
            for count in range(asked.per_node, asked.count + 1, asked.per_node):
                smaller = replace(asked, count=count, least=0)
                if self.finishes(smaller, start_ms) and (not asked.latest_ms or start_ms <= asked.latest_ms):
                    found.append((count, number, smaller))
                    break
        if not found:
            return None
        best = min(found, key=lambda one: one[:2])[2]
        latest_ms = self.deadline_ms - self.needs_ms(best.count)
        return replace(best, latest_ms=min(latest_ms, best.latest_ms) if best.latest_ms else latest_ms)

    def __call__(self, table: OfferRound) -> Move:
        fitting = []
        for number, offer in enumerate(table.offers):
            if self.finishes(offer.alternative, offer.start_ms):
                devices = offer.alternative.count
                needs_ms = self.needs_ms(devices)
                fitting.append((devices * needs_ms, offer.start_ms + needs_ms, number))
        if fitting:
            return Accept(table.offers[min(fitting)[2]].id)
        counter = self.counter(table)
        if counter is None:
            return Decline("no option would finish by the deadline")
        if table.rounds == 0 and not table.refused:
            return CounterOffer(counter)
        return KeepWaiting()
