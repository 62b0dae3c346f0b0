# SPDX-License-Identifier: Apache-2.0
"""Prices of instances in the answers of the clouds' price APIs, as their command lines write them.

Rules
- Amazon EC2, `aws ec2 describe-spot-price-history`: of each zone the latest price of Linux; of a region the lowest and
  the median of its zones. It is dated by its time stamp.
- AWS, `aws pricing get-products --service-code AmazonEC2`: Linux on demand, shared tenancy, nothing pre-installed;
  dated by its `publicationDate`.
- Azure, https://prices.azure.com/api/retail/prices: virtual machines with Linux by the hour, on demand or spot. The
  answer has no date: it is that of the file.
- Dollars alone. A file has one answer, or a list of them (its pages).
Sources: EC2 API DescribeSpotPriceHistory; AWS Price List Query API; Azure Retail Prices API.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from statistics import median_low
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.advice.price_table import PriceError
from dovetail.core.json_text import JsonError, decode_json

EC2_SPOT, AWS_LIST, AZURE = "EC2 DescribeSpotPriceHistory", "AWS Price List", "Azure Retail Prices"
_REGION = re.compile(r"[a-z]+(?:-[a-z]+)+-\d+")
_LINUX = frozenset({"Linux/UNIX", "Linux/UNIX (Amazon VPC)"})
_AWS_PLAIN = {
    "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
}  # fmt: skip
_AZURE_OTHERS = ("Windows", "Cloud Services", "Dedicated Host")


class CloudPrice(Struct, frozen=True):
    """Prices of an instance type in a region, in millionths of a dollar an hour; None where the answer has none."""

    cloud: str
    instance_type: str
    region: str
    price_micro_usd: int | None
    spot_min_micro_usd: int | None
    spot_median_micro_usd: int | None
    day: str
    source: str


class _SpotPrice(Struct, frozen=True, rename="pascal"):
    availability_zone: str
    instance_type: str
    product_description: str
    spot_price: str
    timestamp: str


class _AzureItem(Struct, frozen=True, rename="camel"):
    currency_code: str
    retail_price: float
    arm_region_name: str = ""
    arm_sku_name: str = ""
    sku_name: str = ""
    product_name: str = ""
    service_name: str = ""
    unit_of_measure: str = ""
    type: str = ""
    is_primary_meter_region: bool = True


class _Answer(Struct, frozen=True):
    SpotPriceHistory: list[_SpotPrice] | None = None
    PriceList: list[str | dict[str, Any]] | None = None
    Items: list[_AzureItem] | None = None


class _AwsProduct(Struct, frozen=True):
    attributes: dict[str, str]


class _AwsDimension(Struct, frozen=True, rename="camel"):
    unit: str
    price_per_unit: dict[str, str]


class _AwsTerm(Struct, frozen=True, rename="camel"):
    price_dimensions: dict[str, _AwsDimension]


class _AwsTerms(Struct, frozen=True):
    OnDemand: dict[str, _AwsTerm] = {}


class _AwsItem(Struct, frozen=True, rename="camel"):
    product: _AwsProduct
    terms: _AwsTerms
    publication_date: str


def is_answer(text: str) -> bool:
    """Whether a file has answers of an API, and is no CSV."""
    return text.lstrip()[:1] in ("{", "[")


def cloud_prices(text: str, file: str, file_day: str) -> list[CloudPrice]:
    """The prices in a file, sorted by cloud, type and region. `file_day` is the date of answers without one. Raises
    PriceError."""
    try:
        pages = text.lstrip().startswith("[")
        answers = decode_json(text, list[_Answer]) if pages else [decode_json(text, _Answer)]
        found = [
            *_ec2_spot([one for page in answers for one in page.SpotPriceHistory or ()]),
            *_aws_list([one for page in answers for one in page.PriceList or ()]),
            *_azure([one for page in answers for one in page.Items or ()], file_day),
        ]
    except (JsonError, ValueError, ArithmeticError) as error:
        raise PriceError(file, 1, "", f"is no answer with prices: {error}") from error
    if not found:
        raise PriceError(
            file, 1, "", "has no price of Linux in dollars: expected is SpotPriceHistory of EC2, PriceList of AWS or "
            "Items of Azure",
        )  # fmt: skip
    return sorted(found, key=lambda one: (one.cloud, one.instance_type, one.region))


def _micro(dollars: str | float) -> int:
    """Raises ValueError."""
    return round(float(dollars) * 10**6)


def _day(stamp: str) -> str:
    """The date of 2026-11-29T08:00:00Z. Raises ValueError."""
    return date.fromisoformat(stamp[:10]).isoformat()


def _region(zone: str) -> str:
    """us-east-1 of us-east-1a, and of the local zone us-east-1-bos-1a. Raises ValueError."""
    found = _REGION.match(zone)
    if found is None:
        raise ValueError(f"{zone!r} is no availability zone")
    return found[0]


def _ec2_spot(prices: list[_SpotPrice]) -> Iterator[CloudPrice]:
    latest: dict[tuple[str, str], dict[str, _SpotPrice]] = defaultdict(dict)
    for one in prices:
        zones = latest[one.instance_type, _region(one.availability_zone)]
        before = zones.get(one.availability_zone)
        if one.product_description in _LINUX and (before is None or one.timestamp > before.timestamp):
            zones[one.availability_zone] = one
    for (kind, region), zones in latest.items():
        if zones:
            micro = [_micro(one.spot_price) for one in zones.values()]
            day = _day(max(one.timestamp for one in zones.values()))
            yield CloudPrice("aws", kind, region, None, min(micro), median_low(micro), day, EC2_SPOT)


def _aws_list(items: list[str | dict[str, Any]]) -> Iterator[CloudPrice]:
    for raw in items:
        try:
            item = decode_json(raw, _AwsItem) if isinstance(raw, str) else msgspec.convert(raw, _AwsItem)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        of = item.product.attributes
        if any(of.get(name) != value for name, value in _AWS_PLAIN.items()):
            continue
        hourly = [
            _micro(one.price_per_unit["USD"])
            for term in item.terms.OnDemand.values()
            for one in term.price_dimensions.values()
            if one.unit == "Hrs" and "USD" in one.price_per_unit
        ]
        dearest = max(hourly, default=0)
        if dearest and of.get("instanceType") and of.get("regionCode"):
            yield CloudPrice(
                "aws", of["instanceType"], of["regionCode"], dearest, None, None, _day(item.publication_date),
                AWS_LIST,
            )  # fmt: skip


def _azure(items: list[_AzureItem], day: str) -> Iterator[CloudPrice]:
    found: dict[tuple[str, str], dict[bool, int]] = defaultdict(dict)
    for one in items:
        by_the_hour = one.type == "Consumption" and one.unit_of_measure == "1 Hour"
        if one.service_name != "Virtual Machines" or not by_the_hour or one.currency_code != "USD":
            continue
        if any(word in one.product_name for word in _AZURE_OTHERS) or "Low Priority" in one.sku_name:
            continue
        if one.is_primary_meter_region and one.arm_sku_name and one.arm_region_name and one.retail_price > 0:
            found[one.arm_sku_name, one.arm_region_name][one.sku_name.endswith(" Spot")] = _micro(one.retail_price)
    for (kind, region), of in found.items():
        yield CloudPrice("azure", kind, region, of.get(False), of.get(True), of.get(True), day, AZURE)
