# SPDX-License-Identifier: Apache-2.0
"""Costs in the columns of FOCUS 1.2, the FinOps Open Cost and Usage Specification.

Rules
- A row is what a pod, or a node for GPU time that nobody held, cost on one day at one price. Rows add up to the bill:
  money has six decimals, by largest remainder.
- All mandatory columns are there, and those conditional ones that have a value here; a value that is not known is
  empty. Names that begin with `x_` are Dovetail's own.
- There is one price: billed, effective, contracted and list cost are the same.
- Time without a price has no row, as the cost of a row must not be empty.
- Billing periods are the calendar months, and times are in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from dovetail.cost.calendar import local
from dovetail.cost.cells import Cell, GpuTimes
from dovetail.cost.rounding import HOUR, MICRO, decimal, nearest, parts_of
from dovetail.history.records import PodRecord

VERSION = "1.2"
COLUMNS = (
    "AvailabilityZone", "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodEnd",
    "ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingCategory",
    "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId", "RegionName", "ResourceId",
    "ResourceName", "ResourceType", "ServiceCategory", "ServiceName", "SubAccountId", "SubAccountName", "Tags",
    "x_GpuModel", "x_InstanceType", "x_Node", "x_PriceDate", "x_PriceSource", "x_State", "x_UsedCost",
)  # fmt: skip
_PROVIDER = "Dovetail"
_PREFIX = "dovetail.dev/"
"""Before the tags that are no labels of the pod."""
_LATER = timedelta(days=31)


def focus(times: GpuTimes, account: str, currency: str) -> Iterator[dict[str, str]]:
    """The rows, each with all of COLUMNS."""
    cells = [cell for cell in times.cells if cell.where.rule is not None]
    micros = parts_of(nearest(sum(cell.money for cell in cells), MICRO), [cell.money for cell in cells])
    for cell, micro in zip(cells, micros, strict=True):
        yield _row(times, cell, decimal(micro, 6), account, currency)


def _row(times: GpuTimes, cell: Cell, cost: str, account: str, currency: str) -> dict[str, str]:
    where, pod = cell.where, times.pods.get(cell.pod_uid)
    part = times.segments[where.segment]
    month = local(part.start_ms, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    rule = where.rule
    held = cell.state == "allocated"
    queue = pod.queue if pod is not None else ""
    name = f"{pod.namespace}/{pod.name}" if pod is not None else cell.pod_uid
    values = {
        "AvailabilityZone": where.zone,
        "BilledCost": cost, "ContractedCost": cost, "EffectiveCost": cost, "ListCost": cost,
        "BillingAccountId": account, "BillingAccountName": account, "BillingCurrency": currency,
        "BillingPeriodStart": _text(month), "BillingPeriodEnd": _text((month + _LATER).replace(day=1)),
        "ChargeCategory": "Usage", "ChargeFrequency": "Usage-Based",
        "ChargeDescription": f"{cell.state.capitalize()} time of {where.model or 'GPUs'}",
        "ChargePeriodStart": _text(local(part.start_ms, UTC)), "ChargePeriodEnd": _text(local(part.end_ms, UTC)),
        "InvoiceIssuerName": _PROVIDER, "ProviderName": _PROVIDER, "PublisherName": _PROVIDER,
        "PricingCategory": "Dynamic" if where.spot else "Standard",
        "PricingQuantity": decimal(nearest(cell.time * 10**6, HOUR), 6), "PricingUnit": "GPU-Hours",
        "RegionId": where.region, "RegionName": where.region,
        "ResourceId": cell.pod_uid if held else where.node, "ResourceName": name if held else where.node,
        "ResourceType": "Pod" if held else "Node",
        "ServiceCategory": "Compute", "ServiceName": "GPU time",
        "SubAccountId": queue, "SubAccountName": queue,
        "Tags": msgspec.json.encode(_tags(pod)).decode() if pod is not None else "",
        "x_GpuModel": where.model, "x_InstanceType": where.instance_type, "x_Node": where.node,
        "x_PriceDate": rule.date if rule is not None else "", "x_PriceSource": rule.source if rule is not None else "",
        "x_State": cell.state,
        "x_UsedCost": decimal(nearest(cell.used, MICRO), 6) if cell.used_time or cell.idle_time else "",
    }  # fmt: skip
    return {column: values.get(column, "") for column in COLUMNS}


def _tags(pod: PodRecord) -> dict[str, str]:
    own = {"namespace": pod.namespace, "job": pod.job, "user": pod.user, "queue": pod.queue}
    return pod.labels | {f"{_PREFIX}{name}": value for name, value in own.items() if value}


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
