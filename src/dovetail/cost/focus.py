# SPDX-License-Identifier: Apache-2.0
"""Costs in the columns of FOCUS 1.2, the FinOps Open Cost and Usage Specification.

Rules
- A row is what a pod, or a node for GPU time that nobody held, cost on one day at one price. Rows add up to the bill:
  money has six decimals, and what a row loses or gains by that is in the next one. So rows can be made day by day: what
  is left over at the end of the days (`carry`) goes to the first row of the next ones.
- All mandatory columns are there, the recommended ones, and those conditional ones whose condition holds here; a value
  that is not known is empty. Names that begin with `x_` are Dovetail's own.
- There is one price: billed, effective, contracted and list cost are the same.
- A SKU is an instance type, or the model where that is not known; its price is that in a region, on demand or spot.
- Time without a price has no row, as the cost of a row must not be empty.
- Billing periods are the calendar months, and times are in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct

from dovetail.cost.calendar import local
from dovetail.cost.cells import Cell, GpuTimes
from dovetail.cost.price_rules import ONE, PriceBook, PriceRule
from dovetail.cost.rounding import HOUR, MICRO, decimal, nearest
from dovetail.history.records import PodRecord

VERSION = "1.2"
COLUMNS = (
    "AvailabilityZone", "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd",
    "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "EffectiveCost", "InvoiceIssuerName",
    "ListCost", "ListUnitPrice", "PricingCategory", "PricingCurrency", "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId",
    "RegionName", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "ServiceSubcategory",
    "SkuId", "SkuMeter", "SkuPriceId", "SubAccountId", "SubAccountName", "Tags",
    "x_GpuModel", "x_InstanceType", "x_Node", "x_PriceDate", "x_PriceSource", "x_State", "x_UsedCost",
)  # fmt: skip
_PROVIDER, _UNIT = "Dovetail", "GPU-Hours"
_PREFIX = "dovetail.dev/"
"""Before the tags that are no labels of the pod."""
_LATER = timedelta(days=31)
FocusRow = tuple[str, ...]
"""The values of COLUMNS."""


class FocusPart(Struct, frozen=True):
    """The rows of some days, up to `until_ms`; the next ones begin there, until `end_ms`. `carry` is what rounding has
    left over, `unpriced_time` the time (thousandths of a GPU times ms) that has no row."""

    rows: tuple[FocusRow, ...]
    currency: str
    carry: int
    until_ms: int
    end_ms: int
    unpriced_time: int


class FocusRows:
    """Makes rows, day after day. `carry` is what rounding has left over, at first and then."""

    def __init__(self, book: PriceBook, account: str, carry: int = 0) -> None:
        self._book, self._account, self.carry = book, account, carry

    def of(self, times: GpuTimes) -> Iterator[FocusRow]:
        for cell in times.cells:
            if cell.where.rule is not None:
                self.carry += cell.money
                micro = nearest(self.carry, MICRO)
                self.carry -= micro * MICRO
                yield self._row(times, cell, cell.where.rule, micro)

    def _row(self, times: GpuTimes, cell: Cell, rule: PriceRule, micro: int) -> FocusRow:
        where, pod = cell.where, times.pods.get(cell.pod_uid)
        part = times.segments[where.segment]
        month = local(part.start_ms, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        held = cell.state == "allocated"
        queue = pod.queue if pod is not None else ""
        name = f"{pod.namespace}/{pod.name}" if pod is not None else cell.pod_uid
        cost, hours = decimal(micro, 6), decimal(nearest(cell.time * ONE, HOUR), 6)
        unit_micro = nearest(cell.money, cell.time) if cell.time else 0
        priced = self._priced(rule)
        sku = where.instance_type or where.model or where.node
        values = {
            "AvailabilityZone": where.zone,
            "BilledCost": cost, "ContractedCost": cost, "EffectiveCost": cost, "ListCost": cost,
            "BillingAccountId": self._account, "BillingAccountName": self._account,
            "BillingCurrency": self._book.currency,
            "BillingPeriodStart": _text(month), "BillingPeriodEnd": _text((month + _LATER).replace(day=1)),
            "ChargeCategory": "Usage", "ChargeFrequency": "Usage-Based",
            "ChargeDescription": f"{cell.state.capitalize()} time of {where.model or 'GPUs'}",
            "ChargePeriodStart": _text(local(part.start_ms, UTC)), "ChargePeriodEnd": _text(local(part.end_ms, UTC)),
            "ConsumedQuantity": hours, "ConsumedUnit": _UNIT,
            "InvoiceIssuerName": _PROVIDER, "ProviderName": _PROVIDER, "PublisherName": _PROVIDER,
            "ListUnitPrice": decimal(unit_micro, 6),
            "PricingCategory": "Dynamic" if where.spot else "Standard", "PricingCurrency": rule.currency,
            "PricingCurrencyEffectiveCost": priced(micro), "PricingCurrencyListUnitPrice": priced(unit_micro),
            "PricingQuantity": hours, "PricingUnit": _UNIT,
            "RegionId": where.region, "RegionName": where.region,
            "ResourceId": cell.pod_uid if held else where.node, "ResourceName": name if held else where.node,
            "ResourceType": "Pod" if held else "Node",
            "ServiceCategory": "Compute", "ServiceName": "GPU time", "ServiceSubcategory": "Other (Compute)",
            "SkuId": sku, "SkuMeter": "GPU time",
            "SkuPriceId": "/".join(filter(None, (sku, where.region, "spot" if where.spot else "on-demand", rule.node))),
            "SubAccountId": queue, "SubAccountName": queue,
            "Tags": msgspec.json.encode(_tags(pod)).decode() if pod is not None else "",
            "x_GpuModel": where.model, "x_InstanceType": where.instance_type, "x_Node": where.node,
            "x_PriceDate": rule.date, "x_PriceSource": rule.source, "x_State": cell.state,
            "x_UsedCost": decimal(nearest(cell.used, MICRO), 6) if cell.used_time or cell.idle_time else "",
        }  # fmt: skip
        return tuple(values.get(column, "") for column in COLUMNS)

    def _priced(self, rule: PriceRule) -> Callable[[int], str]:
        """Millionths of the currency of the answer as an amount in that of the price."""
        rate = self._book.rate_of(rule.currency)
        return lambda micro: decimal(nearest(micro * ONE, rate), 6)


def _tags(pod: PodRecord) -> dict[str, str]:
    own = {"namespace": pod.namespace, "job": pod.job, "user": pod.user, "queue": pod.queue}
    return pod.labels | {f"{_PREFIX}{name}": value for name, value in own.items() if value}


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
