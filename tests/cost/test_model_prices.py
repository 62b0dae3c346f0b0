# SPDX-License-Identifier: Apache-2.0
"""The price of a GPU by its model."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dovetail.advice.sizing.market import HourPrice
from dovetail.cost.model_prices import market
from dovetail.cost.price_rules import PriceBook, PriceRule
from dovetail.history.records import GpuSpan


def rule(micro: int, **fields: Any) -> PriceRule:
    return PriceRule(micro, "USD", "2026-11-01", "contract", **fields)


def span(model: str, instance_type: str = "", index: int = 0) -> GpuSpan:
    return GpuSpan(f"{model}{index}", "n", index, 3, model, "healthy", 0, instance_type=instance_type)


def test_the_lowest_price_of_a_model_counts() -> None:
    book = PriceBook([[rule(9_000_000, instance_type="big"), rule(4_000_000, model="l4", per_gpu=True)]])
    price_of = market([span("NVIDIA-L4"), span("NVIDIA-L4", "big"), span("NVIDIA-A100-SXM4-40GB")], book, 0).model
    assert price_of("NVIDIA-L4") == price_of("L4") == HourPrice(3_000_000, "USD", "2026-11-01")
    assert price_of("A100-40GB-SXM4") is None


def test_instance_types_with_the_same_gpus_have_the_prices_of_the_book_in_the_region_of_the_node() -> None:
    """A node of AWS on spot that has a price of its own; what other clouds have with an L4 is not offered."""
    node = span("NVIDIA-L4", "g6.16xlarge")
    book = PriceBook(
        [[rule(9_000_000, node="n")]],
        [rule(4_000_000, instance_type="g6.16xlarge", region="us-east-1", spot=False),
         rule(800_000, instance_type="g6.xlarge", region="us-east-1", spot=False),
         rule(100_000, instance_type="g6.xlarge", region="us-east-1", spot=True),
         rule(4_400_000, instance_type="g6.12xlarge", region="us-east-1"),
         rule(700_000, instance_type="g2-standard-4", region="us-east-1"),
         rule(500_000, instance_type="g5.xlarge", region="us-east-1")],
    )  # fmt: skip
    prices = market([], book, 0)
    found = {one.name: (one.gpus, one.cpu_milli, one.price.micro) for one in prices.offers(
        replace(node, region="us-east-1", spot=True, gpus=1))}  # fmt: skip
    assert found == {
        "g6.16xlarge": (1, 64_000, 9_000_000), "g6.xlarge": (1, 4000, 800_000), "g6.12xlarge": (4, 48_000, 1_100_000)
    }  # fmt: skip
    elsewhere = replace(node, node="m", region="eu-north-1")
    assert list(prices.offers(elsewhere)) == [] and list(prices.offers(replace(node, instance_type="own"))) == []
    assert prices.place(replace(node, node="m", region="us-east-1", gpus=1)) == HourPrice(
        4_000_000, "USD", "2026-11-01"
    )


def test_a_model_that_no_node_has_is_priced_by_its_name() -> None:
    book = PriceBook([[rule(4_000_000, model="l4", per_gpu=True)]])
    assert market([], book, 0).model("L4") == HourPrice(4_000_000, "USD", "2026-11-01")
