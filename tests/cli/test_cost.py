# SPDX-License-Identifier: Apache-2.0
"""`dovetail cost` and `dovetail report`, as a user runs them on a file of the history."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.cost.focus import COLUMNS
from dovetail.history.records import GpuHold, GpuSpan, HistoryBatch, PodRecord, UseHour
from dovetail.history.sqlite.store import SqliteStore
from tests.cli.answers import answer as checked
from tests.cli.cost_history import DAYS, FORMULA, START, at, write
from tests.terminal import environment

QUEUES = """\
apiVersion: dovetail.dev/v1alpha1
kind: Queue
metadata: {name: vision}
spec: {parent: research}
---
apiVersion: dovetail.dev/v1alpha1
kind: Queue
metadata: {name: audio}
spec: {parent: research}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "history.db"
    write(path)
    return path


def run(store: Path, *arguments: str, command: str = "cost") -> Result:
    words = [command, "--store", str(store), "--period", "2026-11", *arguments]
    return CliRunner().invoke(cli, words, env=environment(200))


def text(store: Path, *arguments: str, command: str = "cost") -> str:
    result = run(store, *arguments, command=command)
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(store: Path, *arguments: str, command: str = "cost") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text(store, *arguments, "-o", "csv", command=command))))


BILL = Decimal("55.04") * 2 * 24 * DAYS
"""Two nodes with a list price for 20 days; the third one has none."""


@pytest.mark.parametrize("by", ["team", "queue", "namespace", "user", "job", "pod", "node", "model", "gpu", "day",
                                "label=team"])  # fmt: skip
@pytest.mark.parametrize("idle", ["separate", "weighted", "even"])
@pytest.mark.slow
def test_every_grouping_adds_up_to_the_bill_to_the_cent(store: Path, by: str, idle: str) -> None:
    if idle != "separate" and by in ("node", "model", "gpu", "day"):
        assert "divides over holders" in run(store, "--by", by, "--idle", idle).output
        return
    found = rows(store, "--by", by, "--idle", idle)
    money = Counter[str]()
    for row in found:
        for name in ("cost", "allocated", "unallocated", "unhealthy", "shared"):
            money[name] += int(Decimal(row[name] or "0") * 100)
    assert money["cost"] == BILL * 100
    assert money["cost"] == sum(money[name] for name in ("allocated", "unallocated", "unhealthy", "shared"))
    assert all(row["currency"] == "USD" and "2026-07-20" in row["prices"] for row in found)


def test_the_table_names_period_prices_and_what_it_rests_on(store: Path) -> None:
    found = text(store)
    assert "total" in found and "(unallocated)" in found and f"{BILL:.2f}" in found
    for part in ("2026-11-01 00:00 to 2026-11-21 00:00 UTC, in USD", "list price of aws us-east-1, of 2026-07-20",
                 "No price: 3840.00 GPU-hours of Z9 on 1 node", "add a row for Z9 to a file of --prices",
                 "The history ends at 2026-11-21 00:00 UTC", "For 2 h nothing was recorded",
                 "(the collector did not run)", "Use was measured for"):  # fmt: skip
        assert part in found
    (lone,) = (line for line in found.splitlines() if line.startswith("(none)"))
    assert lone.split()[1] == "-", "what has no price does not cost 0"


def test_with_a_limit_the_other_groups_are_one_row_and_the_total_is_the_same(store: Path) -> None:
    whole, limited = (json.loads(text(store, "--by", "user", *limit, "-o", "json")) for limit in ((), ("--limit", "1")))
    assert [row["name"] for row in limited["rows"]] == ["ada", "(others)", "(unallocated)", "(unhealthy)"]
    assert (limited["total"], limited["others"], whole["others"]) == (whole["total"], 3, 0)
    for command in ("cost", "report"):
        shown = text(store, "--by", "user", "--limit", "1", command=command)
        assert "(others) has the sums of 3 smaller groups: a larger --limit shows them." in shown
        assert "(others)" not in text(store, "--by", "queue", "--limit", "1", command=command)
    assert "is not in the range" in run(store, "--limit", "0").output


def test_rounding_makes_no_price(tmp_path: Path) -> None:
    path, ends = tmp_path / "history.db", [START + number * 7_333_777 for number in range(12)]
    pods = [PodRecord(f"u{n}", "ns", f"p{n}", "", queue=f"q{n}", bound_ms=ends[n]) for n in range(11)]
    holds = [GpuHold(f"u{n}", "g", 777, "share", ends[n], ends[n + 1]) for n in range(11)]
    use = [UseHour("g", f"u{n}", at(2 * n), 1_234_567 + n, 567_891_234 + 99 * n, 0) for n in range(11)]
    with closing(SqliteStore(path)) as written:
        written.write(HistoryBatch(ends[-1], [GpuSpan("g", "n", 0, 1, "Z9", "healthy", START)], holds, pods, use))
    assert {row["cost"] for row in rows(path)} == {""}


def test_a_price_file_prices_the_rest_and_another_currency_needs_a_rate(store: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("per,price_h,currency,price_date,source,gpu_model\nnode,10,EUR,2026-02-01,our bill,Z9\n")
    refused = run(store, "--prices", str(own))
    assert refused.exit_code == 1 and "in USD and in EUR (our bill)" in refused.stderr
    found = checked(text(store, "--prices", str(own), "--currency", "USD", "--rate", "EUR=1.1", "-o", "json"), "Cost")
    assert found["total"]["cost_micro"] == int((BILL + 11 * 24 * DAYS) * 10**6) and found["unpriced"] == []
    assert {(one["source"], one["currency"]) for one in found["prices"]} == {
        ("our bill", "EUR"), ("list price of aws us-east-1", "USD"),
    }  # fmt: skip
    assert found["kind"] == "Cost" and found["currency"] == "USD"


def test_teams_are_queues_of_the_top(store: Path, tmp_path: Path) -> None:
    queues = tmp_path / "queues.yaml"
    queues.write_text(QUEUES)
    teams = [row["name"] for row in rows(store, "--queues", str(queues))]
    assert teams == ["research", "(none)", "(unallocated)", "(unhealthy)"]
    assert [row["name"] for row in rows(store, "--queues", str(queues), "--level", "2")][:2] == ["vision", "audio"]
    assert "--level needs --queues" in run(store, "--level", "2").output
    queues.write_text("kind: Job\n")
    assert "there is no Queue in it" in run(store, "--queues", str(queues)).output


def test_labels_cannot_bring_formulas_markup_or_control_characters(store: Path) -> None:
    names = {row["name"] for row in rows(store, "--by", "label=team")}
    assert f"'{FORMULA}" in names and FORMULA not in names
    assert "[red] [31m<b>" in names
    table = text(store, "--by", "label=team")
    assert "[red] [31m<b>" in table and "\x1b" not in table


def test_focus_has_its_columns_and_the_bill(store: Path) -> None:
    result = run(store, "-o", "focus", "--billing-account", "lab")
    found = list(csv.DictReader(io.StringIO(result.stdout)))
    assert list(found[0]) == list(COLUMNS)
    assert sum(Decimal(row["BilledCost"]) for row in found) == BILL
    assert "have no price, and no row" in result.stderr
    for row in found:
        assert row["BilledCost"] == row["EffectiveCost"] == row["ListCost"] == row["ContractedCost"]
        assert (row["BillingAccountId"], row["BillingCurrency"], row["ChargeCategory"]) == ("lab", "USD", "Usage")
        assert row["BillingPeriodStart"] == "2026-11-01T00:00:00Z" and row["BillingPeriodEnd"] == "2026-12-01T00:00:00Z"
        assert row["ChargePeriodStart"][:8] == "2026-11-" and row["ResourceId"] and row["x_PriceDate"] == "2026-07-20"
    pod = next(row for row in found if row["ResourceType"] == "Pod")
    tags = json.loads(pod["Tags"])
    assert tags["dovetail.dev/queue"] == pod["SubAccountId"] and "team" in tags


def test_the_report_has_hours_jobs_and_waits(store: Path) -> None:
    found = {row["name"]: row for row in rows(store, command="report")}
    vision = found["vision"]
    assert (vision["allocated"], vision["jobs"], vision["started"]) == ("873.00", "2", "2")
    assert Decimal(vision["used"]) == Decimal(vision["idle"]) and vision["mean-wait-s"] == "600"
    hours = sum(Decimal(row[name]) for row in found.values() for name in ("allocated", "unallocated", "unhealthy"))
    assert hours == 24 * 24 * DAYS
    days = rows(store, "--by", "day", command="report")
    assert len(days) == DAYS and [row["started"] for row in days[:2]] == ["3", "0"]
    assert "in GPU-hours" in text(store, command="report")
    answer = checked(text(store, "-o", "json", command="report"), "UtilizationReport")
    assert answer["kind"] == "UtilizationReport" and answer["total"]["started"] == 4


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--by", "colour"], "'colour' is none of team, queue"),
        (["--by", "label="], "is none of team"),
        (["--period", "soon"], "'soon' is not a period: write 7d"),
        (["--period", "2026-11-02..2026-11-01"], "is empty"),
        (["--time-zone", "Mars/Olympus"], "the time zone 'Mars/Olympus' is not known"),
        (["--currency", "$"], "three letters"),
        (["--rate", "EUR=-1"], "is not a rate above 0"),
        (["--rate", "EUR=0"], "is not a rate above 0"),
        (["--rate", "EUR=1.1"], "name that too"),
        (["--rate", "EUR=1.1", "--rate", "EUR=1.2"], "two rates for EUR"),
        (["--no-list-prices"], "leaves no prices"),
        (["--prices", "/none.csv"], "cannot read /none.csv"),
        (["--columns", "price"], "there is no column 'price'"),
        (["-o", "focus", "--columns", "name"], "goes with -o table"),
        (["--level", "2", "--by", "user"], "goes with --by team"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(store: Path, arguments: list[str], expected: str) -> None:
    result = run(store, *arguments)
    assert result.exit_code in (1, 2) and expected in " ".join(result.output.split())


def test_a_file_that_is_no_history(tmp_path: Path) -> None:
    result = run(tmp_path / "none.db")
    assert result.exit_code == 1 and "none.db" in result.output and "Traceback" not in result.output


def test_a_period_of_which_nothing_is_known(store: Path) -> None:
    for command in ("cost", "report"):
        found = text(store, "--period", "2031-01", command=command)
        assert found.startswith("Nothing is known of 2031-01-01 00:00 to 2031-02-01 00:00 UTC")
    assert json.loads(text(store, "--period", "2031-01", "-o", "json"))["rows"] == []
    assert rows(store, "--period", "2031-01") == []
    assert text(store, "--period", "2031-01", "-o", "focus").splitlines() == [",".join(COLUMNS)]
