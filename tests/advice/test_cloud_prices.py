# SPDX-License-Identifier: Apache-2.0
"""Prices in answers of the clouds: what counts of them, and how a table takes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail.advice.cloud_prices import CloudPrice, cloud_prices
from dovetail.advice.price_refresh import RefreshedTable, refreshed
from dovetail.advice.price_table import PriceError
from dovetail.advice.prices import BUILT_IN, CloudInstance, built_in_text, read

DAY = "2026-11-29"
BIG, SMALL = "p5.48xlarge", "g5.xlarge"


def spot(
    zone: str, dollars: str, at: str = "2026-11-28T10:00:00+00:00", kind: str = BIG, **more: str
) -> dict[str, str]:
    return {
        "AvailabilityZone": zone, "InstanceType": kind, "ProductDescription": "Linux/UNIX", "SpotPrice": dollars,
        "Timestamp": at, **more,
    }  # fmt: skip


def listed(dollars: str, region: str = "eu-west-1", kind: str = BIG, **attributes: str) -> str:
    of = {
        "instanceType": kind, "regionCode": region, "operatingSystem": "Linux", "tenancy": "Shared",
        "preInstalledSw": "NA", "capacitystatus": "Used",
    }  # fmt: skip
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": dollars}}
    terms = {"OnDemand": {"SKU.TERM": {"priceDimensions": {"SKU.TERM.RATE": dimension}}}}
    product = {"productFamily": "Compute Instance", "sku": "SKU", "attributes": of | attributes}
    item = {"product": product, "serviceCode": "AmazonEC2", "terms": terms, "publicationDate": "2026-11-20T07:00:00Z"}
    return json.dumps(item)


def azure(dollars: float, sku: str = "NC24ads A100 v4", **more: Any) -> dict[str, Any]:
    return {
        "currencyCode": "USD", "retailPrice": dollars, "armRegionName": "eastus", "skuName": sku,
        "armSkuName": "Standard_NC24ads_A100_v4", "productName": "Virtual Machines NCads A100 v4 Series",
        "serviceName": "Virtual Machines", "unitOfMeasure": "1 Hour", "type": "Consumption",
        "isPrimaryMeterRegion": True, "effectiveStartDate": "2022-06-01T00:00:00Z", **more,
    }  # fmt: skip


def found(answer: Any) -> list[tuple[str, str, int | None, int | None, int | None, str]]:
    def row(one: CloudPrice) -> tuple[str, str, int | None, int | None, int | None, str]:
        prices = one.price_micro_usd, one.spot_min_micro_usd, one.spot_median_micro_usd
        return one.instance_type, one.region, *prices, one.day

    return [row(one) for one in cloud_prices(json.dumps(answer), "answer.json", DAY)]


def test_of_ec2_the_latest_price_of_each_zone_counts_and_of_a_region_the_lowest_and_the_median() -> None:
    prices = [
        spot("us-east-1a", "30.0"), spot("us-east-1a", "9.0", "2026-11-27T10:00:00+00:00"), spot("us-east-1b", "20.5"),
        spot("us-east-1c", "40.1", "2026-11-28T23:00:00+00:00"), spot("us-east-1-bos-1a", "41"),
        spot("us-east-1b", "5.0", "2026-11-28T23:30:00+00:00", ProductDescription="Windows"),
        spot("us-gov-west-1a", "33.000001"),
    ]  # fmt: skip
    assert found({"SpotPriceHistory": prices}) == [
        (BIG, "us-east-1", None, 20_500_000, 30_000_000, "2026-11-28"),
        (BIG, "us-gov-west-1", None, 33_000_001, 33_000_001, "2026-11-28"),
    ]


def test_of_the_list_of_aws_linux_on_demand_counts() -> None:
    others = [
        listed("9", operatingSystem="Windows"), listed("9", tenancy="Dedicated"), listed("9", preInstalledSw="SQL Std"),
        listed("0.0000000000", capacitystatus="UnusedCapacityReservation"), listed("0.0"),
    ]  # fmt: skip
    answer = {"FormatVersion": "aws_v1", "PriceList": [*others, listed("61.5"), json.loads(listed("62", "eu-north-1"))]}
    assert found(answer) == [
        (BIG, "eu-north-1", 62_000_000, None, None, "2026-11-20"),
        (BIG, "eu-west-1", 61_500_000, None, None, "2026-11-20"),
    ]


def test_of_azure_linux_by_the_hour_counts_and_pages_are_one_answer() -> None:
    others = [
        azure(9, productName="Virtual Machines NCads A100 v4 Series Windows"), azure(1, "NC24ads A100 v4 Low Priority"),
        azure(20000, type="Reservation"), azure(9, currencyCode="EUR"), azure(9, serviceName="Cloud Services"),
    ]  # fmt: skip
    pages = [
        {"BillingCurrency": "USD", "Items": [azure(3.673), *others]},
        {"Items": [azure(0.7346, "NC24ads A100 v4 Spot")]},
    ]
    assert found(pages) == [("Standard_NC24ads_A100_v4", "eastus", 3_673_000, 734_600, 734_600, DAY)]


def refresh(answer: Any, table: str = "") -> tuple[RefreshedTable, dict[tuple[str, str], CloudInstance]]:
    done = refreshed(table or built_in_text(), BUILT_IN, json.dumps(answer), "answer.json", DAY)
    return done, {(one.instance_type, one.region): one for one in read(done.text, "refreshed")}


def test_a_spot_price_stands_beside_the_list_price_with_the_older_date_of_both() -> None:
    before = {(one.instance_type, one.region): one for one in read(built_in_text(), BUILT_IN)}[BIG, "us-east-1"]
    prices = [spot("us-east-1a", "21.5"), spot("us-east-1b", "30"), spot("eu-west-1a", "1", kind="m5.large")]
    done, table = refresh({"SpotPriceHistory": prices})
    row = table[BIG, "us-east-1"]
    assert (row.price_micro_usd, row.spot_micro_usd) == (before.price_micro_usd, 21_500_000)
    assert row.price_date == before.price_date
    note = "; spot of 2026-11-28: EC2 DescribeSpotPriceHistory"
    assert row.source == before.source + note
    assert (done.replaced, done.added, done.left_out) == (1, 0, 1)
    # Once more is the same, and a newer list price keeps the spot price with its own date.
    again, _ = refresh({"SpotPriceHistory": prices}, done.text)
    assert again.text == done.text
    later, table = refresh({"PriceList": [listed("60", "us-east-1")]}, done.text)
    row = table[BIG, "us-east-1"]
    assert (row.price_micro_usd, row.spot_micro_usd, row.price_date) == (60_000_000, 21_500_000, "2026-11-20")
    assert row.source == "AWS Price List" + note and later.left_out == 0


def test_a_region_that_the_table_lacks_is_added_with_what_the_answer_has() -> None:
    _, table = refresh({"SpotPriceHistory": [spot("eu-central-1a", "0.4", kind=SMALL)]})
    row = table[SMALL, "eu-central-1"]
    assert (row.price_micro_usd, row.spot_micro_usd, row.gpu_milli, row.price_date) == (
        None,
        400_000,
        1000,
        "2026-11-28",
    )
    assert row.source.startswith("EC2 DescribeSpotPriceHistory; spot of")


def test_a_spot_price_of_azure_is_of_the_day_of_the_file() -> None:
    _, table = refresh({"Items": [azure(0.7346, "NC24ads A100 v4 Spot"), azure(3.5)]})
    row = table["Standard_NC24ads_A100_v4", "eastus"]
    assert (row.price_micro_usd, row.spot_micro_usd, row.price_date) == (3_500_000, 734_600, DAY)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("{", "is no answer with prices: "),
        ("{}", "has no price of Linux in dollars"),
        ("[]", "has no price of Linux in dollars"),
        ('{"Items": [{"currencyCode": "USD"}]}', "missing required field `retailPrice`"),
        (json.dumps({"SpotPriceHistory": [spot("moon", "1")]}), "'moon' is no availability zone"),
        (json.dumps({"SpotPriceHistory": [spot("us-east-1a", "cheap")]}), "could not convert string to float: 'cheap'"),
        (json.dumps({"SpotPriceHistory": [spot("us-east-1a", "nan")]}), "is no answer with prices"),
        (json.dumps({"SpotPriceHistory": [spot("us-east-1a", "1", "today")]}), "Invalid isoformat string: 'today'"),
        (json.dumps({"PriceList": ["x"]}), "is no answer with prices: "),
        (json.dumps({"PriceList": [{"product": 3}]}), "Expected `object`, got `int`"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_read_is_refused(answer: str, message: str) -> None:
    with pytest.raises(PriceError, match=message):
        cloud_prices(answer, "answer.json", DAY)


def test_an_answer_with_both_prices_of_a_line_on_two_pages() -> None:
    pages = [{"SpotPriceHistory": [spot("us-east-1a", "21.5")]}, {"PriceList": [listed("60", "us-east-1")]}]
    for answer in (pages, pages[::-1]):
        _, table = refresh(answer)
        row = table[BIG, "us-east-1"]
        assert (row.price_micro_usd, row.spot_micro_usd, row.price_date) == (60_000_000, 21_500_000, "2026-11-20")
        assert row.source == "AWS Price List; spot of 2026-11-28: EC2 DescribeSpotPriceHistory"


def test_an_older_spot_price_is_refused_also_beside_an_older_list_price() -> None:
    done, _ = refresh({"SpotPriceHistory": [spot("us-east-1a", "21.5")]})
    older = {"SpotPriceHistory": [spot("us-east-1a", "9", "2026-11-27T10:00:00+00:00")]}
    with pytest.raises(PriceError, match="a spot price of 2026-11-27 is older than that of 2026-11-28"):
        refresh(older, done.text)


def test_older_prices_are_refused() -> None:
    with pytest.raises(PriceError, match="or later, the date of the table's price"):
        refresh({"PriceList": [listed("60", "us-east-1").replace("2026-11-20", "2025-01-01")]})
