# SPDX-License-Identifier: Apache-2.0
"""What a change costs, and what is stranded: prices joined with answers of views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dovetail.cli import cli
from dovetail.cli.change_prices import PricedWhatIf, priced_whatif
from dovetail.cli.money import money
from dovetail.core.events import PodChanged
from dovetail.core.state import State
from dovetail.cost.price_rules import PriceBook, PriceRule
from dovetail.views.whatif import Hypothesis, add_nodes, drain, like, quota, submit, whatif
from dovetail.views.whatif_types import WhatIf
from tests.paths import ROOT
from tests.views.queued import H100, HOUR, NOW, node, pod, queue, state_of

PER_GPU_MICRO = 2_490_001
EXAMPLE = ("-f", str(ROOT / "docs/examples/two-teams.yaml"), "--at", "2026-11-22T12:00:00Z")


def book(**fields: Any) -> PriceBook:
    rule = {"per_gpu": True, "model": "h100-80gb-sxm5"} | fields
    return PriceBook([[PriceRule(PER_GPU_MICRO, "EUR", "2026-11-01", "contract", **rule)]])


def priced(state: State, change: Hypothesis, prices: PriceBook | None = None) -> PricedWhatIf:
    found = whatif(state, change, NOW)
    return priced_whatif(found, prices or PriceBook([[PriceRule(PER_GPU_MICRO, "EUR", "", "contract", True)]]))


def test_added_nodes_cost_what_their_gpus_cost() -> None:
    price = priced(state := state_of(node("a")), like(state, "a", 3)).price
    assert price is not None and price.currency == "EUR"
    assert price.per_hour_micro == 3 * 8 * PER_GPU_MICRO and price.per_30d_micro == 720 * price.per_hour_micro
    (row,) = price.nodes
    assert (row.added, row.model, row.nodes, row.gpus, row.price_source) == (True, H100, 3, 24, "contract")


def test_drained_nodes_save_it_and_what_is_named_twice_counts_once() -> None:
    state = state_of(node("a"), node("b"))
    price = priced(state, drain(state, ("a",), NOW)).price
    assert price is not None and price.per_hour_micro == -8 * PER_GPU_MICRO


def test_a_node_of_another_price_is_a_row_of_its_own() -> None:
    state = state_of(node("a"), node("b"), node("c"))
    rules = [PriceRule(800, "EUR", "", "b", node="b"), PriceRule(16, "EUR", "", "all", model="")]
    price = priced(state, drain(state, ("a", "b", "c"), NOW), PriceBook([rules])).price
    assert price is not None and price.per_hour_micro == -(800 + 16 + 16)
    assert [(one.nodes, one.per_hour_micro) for one in price.nodes] == [(2, 32), (1, 800)]


def test_a_change_of_quotas_costs_nothing() -> None:
    state = state_of(node("a"), queue("q"))
    price = priced(state, quota(state, queue("q", 4))).price
    assert price is not None and (price.per_hour_micro, price.nodes, price.jobs) == (0, (), ())


@pytest.mark.parametrize(("runs_ms", "cost"), [(2 * HOUR, 2 * 3 * PER_GPU_MICRO), (0, None)])
def test_what_is_submitted_costs_its_part_for_its_run_time(runs_ms: int, cost: int | None) -> None:
    state = state_of(node("a"))
    change = submit(state, [PodChanged(pod(name, 1, runs_ms=runs_ms)) for name in ("x",)], NOW)
    price = priced(state, change).price
    assert price is not None
    (job,) = price.jobs
    assert (job.job, job.gpus_milli, job.per_hour_micro) == ("ns/x", 1000, PER_GPU_MICRO)
    assert job.cost_micro == (None if cost is None else cost // 3)


def test_without_a_price_no_sum_and_the_reason() -> None:
    state = state_of(node("a"))
    price = priced(state, add_nodes(state, [node("b")]), PriceBook([])).price
    assert price is not None and (price.per_hour_micro, price.per_30d_micro) == (None, None)
    assert "no price fits" in price.nodes[0].why and H100 in price.nodes[0].fix


def test_an_older_scheduler_that_sends_no_nodes_gets_no_price() -> None:
    answer = WhatIf(NOW, (), (), (), (), 0, (), True)
    assert priced_whatif(answer, book()).price is None


@pytest.mark.parametrize(
    ("micro", "text"), [(0, "0.00 USD"), (1_234_565_000, "1,234.57 USD"), (-4_999, "0.00 USD"), (-5_000, "-0.01 USD")]
)
def test_money(micro: int, text: str) -> None:
    assert money(micro, "USD") == text


def test_the_command_prints_price_source_and_date(tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("per,price_h,currency,price_date,source,gpu_model\ngpu,2.5,EUR,2026-11-01,quote 17,H100-SXM5\n")
    arguments = ["whatif", "drain", "gpu-4", *EXAMPLE, "--prices", str(prices)]
    shown = " ".join(CliRunner().invoke(cli, arguments).stdout.split())
    assert "saves 20.00 EUR an hour, 14,400.00 EUR in 30 days" in shown and "quote 17, of 2026-11-01" in shown
    found = json.loads(CliRunner().invoke(cli, [*arguments, "-o", "json"]).stdout)
    assert found["price"]["per_hour_micro"] == -20_000_000
    bad = CliRunner().invoke(cli, [*arguments, "--currency", "USD"])
    assert bad.exit_code == 1 and "name the rate" in bad.output


def test_free_prints_what_is_stranded_and_what_it_costs(tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("per,price_h,currency,price_date,source,gpu_model\ngpu,2.5,EUR,2026-11-01,quote 17,H100-SXM5\n")
    arguments = ["free", "--shape", "4xH100", *EXAMPLE, "--prices", str(prices)]
    shown = " ".join(CliRunner().invoke(cli, arguments).stdout.split())
    assert "pods of 4 GPUs each cannot use 4 of 8 free GPUs, which cost 10.00 EUR an hour, 7,200.00 EUR" in shown
    assert "fragmented" in shown and "quote 17, of 2026-11-01" in shown
    found = json.loads(CliRunner().invoke(cli, [*arguments, "-o", "json"]).stdout)
    (row,) = found["price"]["rows"]
    assert (row["gpus_milli"], row["nodes"], row["per_hour_micro"]) == (4000, 2, 10_000_000)
    assert "No price of" in CliRunner().invoke(cli, arguments[:-2]).stdout
