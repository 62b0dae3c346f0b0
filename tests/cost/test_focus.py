# SPDX-License-Identifier: Apache-2.0
"""The columns of FOCUS 1.2 (focus_columns.csv: all 57 of the specification, with their levels), their rules that rows
can be checked by, and that rows made day by day are the bill."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from dovetail.cost.focus import COLUMNS, FocusPart
from dovetail.cost.price_rules import ONE, CurrencyError, PriceBook, PriceRule
from dovetail.history.records import HOUR_MS, GpuHold, GpuSpan, HistoryBatch, PodRecord
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.history.sqlite.store import SqliteStore
from dovetail.historyserver import answers
from dovetail.historyserver.answers import costs_of, focus_of
from dovetail.historyserver.questions import CostQuestion, FocusQuestion, QuestionError

START = 1_793_491_200_000 - 5 * HOUR_MS
HOURS = 24 * 40
CENT = Decimal("0.000001")
NEVER_NULL = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit",
    "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingCategory",
    "PricingCurrency", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory",
    "ServiceName", "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceId",
)  # fmt: skip
"""Of charges for usage."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "history.db"
    end_ms = START + HOURS * HOUR_MS
    spans = [
        GpuSpan(f"{node}-{i}", node, i, 3, model, "healthy", START, 0, kind, "us-east-1", "us-east-1a", node == "n2")
        for node, model, kind in (("n1", "H100", "p5.48xlarge"), ("n2", "A100", ""), ("n3", "none", ""))
        for i in range(3)
    ]
    pods, holds = [], []
    for i in range(60):
        at_ms, node = START + i * 15 * HOUR_MS + 777, f"n{1 + i % 3}"
        pod = PodRecord(
            f"u{i}", "ml", f"p{i}", f"j{i}", "Job", "ada", f"q{i % 2}", labels={"team": "x"}, submitted_ms=at_ms,
            bound_ms=at_ms, started_ms=at_ms + 1000, ended_ms=at_ms + 13 * HOUR_MS + 1, outcome="Completed",
        )  # fmt: skip
        pods.append(pod)
        holds.append(GpuHold(pod.uid, f"{node}-{i % 3}", 333, "share", pod.bound_ms, pod.ended_ms))
    with closing(SqliteStore(path)) as file:
        file.write(HistoryBatch(end_ms, spans, holds, pods))
    return path


def book(currency: str = "USD") -> PriceBook:
    rules = [
        PriceRule(10_000_001, "USD", "2026-07-20", "a bill", instance_type="p5.48xlarge"),
        PriceRule(3_333_333, "EUR", "2026-07-21", "our rack", model="a100"),
    ]
    return PriceBook([rules], currency=currency, rates={"EUR": 1_080_001} if currency else None)


def parts(store: Path, question: FocusQuestion) -> Iterator[FocusPart]:
    while True:
        with closing(SqliteReader(store)) as reader:
            part = focus_of(reader, question, book())
        yield part
        if part.until_ms >= part.end_ms:
            return
        question = FocusQuestion(
            question.period, question.time_zone, question.account, part.until_ms, part.end_ms, part.currency, part.carry
        )


def listed(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_every_column_of_the_specification_is_there_or_its_condition_does_not_hold() -> None:
    table = listed(Path(__file__).with_name("focus_columns.csv"))
    assert len(table) == 57
    named = [one for one in COLUMNS if not one.startswith("x_")]
    assert named == sorted(named) and all(re.fullmatch("x_[A-Z][A-Za-z]+", one) for one in COLUMNS[len(named) :])
    assert [one["column"] for one in table if one["here"] == "yes"] == named
    assert {one["column"] for one in table if one["level"] == "mandatory"} <= set(named)
    assert {one["column"] for one in table if one["level"] == "recommended"} - set(named) == {"InvoiceId"}


def test_rows_keep_the_rules_of_their_columns(store: Path) -> None:
    (part,) = parts(store, FocusQuestion("90d"))
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in part.rows]
    assert len(rows) > 120 and part.unpriced_time > 0
    assert {row["PricingCurrency"] for row in rows} == {"USD", "EUR"}
    units: dict[str, set[str]] = {}
    for row in rows:
        assert all(row[name] for name in NEVER_NULL), row
        start, end = row["ChargePeriodStart"], row["ChargePeriodEnd"]
        assert row["BillingPeriodStart"] <= start < end <= row["BillingPeriodEnd"]
        hours, cost = Decimal(row["PricingQuantity"]), Decimal(row["ListCost"])
        assert abs(hours * Decimal(row["ListUnitPrice"]) - cost) <= CENT * (2 + hours * 2)
        rate = Decimal("1.080001") if row["PricingCurrency"] == "EUR" else Decimal(1)
        for name, inner in (("PricingCurrencyEffectiveCost", cost), ("PricingCurrencyListUnitPrice", None)):
            amount = inner if inner is not None else Decimal(row["ListUnitPrice"])
            assert abs(Decimal(row[name]) * rate - amount) <= 2 * CENT
        units.setdefault(row["SkuPriceId"], set()).add(row["ListUnitPrice"])
        assert row["SkuPriceId"].startswith(row["SkuId"] + "/")
    assert set(units) == {"p5.48xlarge/us-east-1/on-demand", "A100/us-east-1/spot"}
    # The millionths of a node's price of which its GPUs have different ones are those of the first.
    assert all(len(found) <= 2 for found in units.values())


@pytest.mark.parametrize("rows", [1, 50, 25_000])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.slow
def test_made_part_by_part_the_rows_are_the_same_and_the_bill(
    store: Path, monkeypatch: pytest.MonkeyPatch, rows: int, zone: str
) -> None:
    (whole,) = parts(store, FocusQuestion("90d", zone))
    monkeypatch.setattr(answers, "FOCUS_ROWS", rows)
    found = list(parts(store, FocusQuestion("90d", zone)))
    assert len(found) == {1: 41, 50: 5, 25_000: 1}[rows] or rows == 50
    assert tuple(row for part in found for row in part.rows) == whole.rows
    assert found[-1].carry == whole.carry and sum(part.unpriced_time for part in found) == whole.unpriced_time
    with closing(SqliteReader(store)) as reader:
        bill = costs_of(reader, CostQuestion(period="90d"), book()).total.cost_micro
    assert sum(Decimal(row[COLUMNS.index("BilledCost")]) for row in whole.rows) == Decimal(bill) / ONE


def test_parts_of_two_currencies_are_not_added(store: Path) -> None:
    with closing(SqliteReader(store)) as reader, pytest.raises(CurrencyError, match="name the rate"):
        focus_of(reader, FocusQuestion("90d", currency="CHF"), book(""))


@pytest.mark.parametrize(
    ("question", "days"),
    [(FocusQuestion("2031-01"), 0), (FocusQuestion("90d", until_ms=-(1 << 53), end_ms=1 << 53), 41),
     (FocusQuestion("90d", until_ms=1 << 53, end_ms=0), 0)],
)  # fmt: skip
def test_times_that_nobody_knows_have_no_rows(store: Path, question: FocusQuestion, days: int) -> None:
    with closing(SqliteReader(store)) as reader:
        part = focus_of(reader, question, book())
    assert len({row[COLUMNS.index("ChargePeriodStart")] for row in part.rows}) == days
    assert part.until_ms >= part.end_ms or days


def test_a_user_of_one_namespace_gets_none(store: Path) -> None:
    with closing(SqliteReader(store)) as reader, pytest.raises(QuestionError, match="rows of all namespaces"):
        focus_of(reader, FocusQuestion(), book(), "ml")
