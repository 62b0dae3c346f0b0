# SPDX-License-Identifier: Apache-2.0
"""The price of a GPU by its model."""

from __future__ import annotations

from typing import Any

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


def test_a_model_that_no_node_has_is_priced_by_its_name() -> None:
    book = PriceBook([[rule(4_000_000, model="l4", per_gpu=True)]])
    assert market([], book, 0).model("L4") == HourPrice(4_000_000, "USD", "2026-11-01")
