# SPDX-License-Identifier: Apache-2.0
"""`dovetail advise`: the list, the page of one job, and manifests."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from dovetail.cli import cli
from dovetail.cli.advise_columns import ADVICE
from dovetail.cli.history_store import HistorySource
from dovetail.history.records import HOUR_MS, USE_BINS, Gap, GpuHold, GpuSpan, HistoryBatch, Period, PodRecord, UseHour
from dovetail.history.store import HistoryReader, StoreError
from tests.cli.answers import answer as checked
from tests.history.memory_reader import MemoryReader
from tests.terminal import environment

START_MS = 20_000 * 24 * HOUR_MS
MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: serve, namespace: ml}
spec:
  template:
    spec:
      containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]
"""


def _use(gpu: str, uid: str, hours: int, use: int, peak_mib: int) -> Iterator[UseHour]:
    bins = [0] * USE_BINS
    bins[use // 50] = HOUR_MS
    activity = dict.fromkeys(("sm", "tensor", "dram", "engine", "utilization"), use * HOUR_MS)
    for hour in range(hours):
        yield UseHour(gpu, uid, START_MS + hour * HOUR_MS, HOUR_MS, use * HOUR_MS, 0, peak_mib, tuple(bins), activity)


def history() -> MemoryReader:
    """A service that is too large, a training job of the right size, a new job, and a service in another namespace."""
    jobs = [
        ("ml", "serve", "Deployment", 240, 80, 7000), ("ml", "train", "Job", 240, 700, 70_000),
        ("ml", "new", "Job", 20, 80, 7000), ("web", "serve", "Deployment", 240, 80, 7000),
    ]  # fmt: skip
    spans: list[GpuSpan] = []
    holds: list[GpuHold] = []
    pods: list[PodRecord] = []
    used: list[UseHour] = []
    for i, (namespace, name, kind, hours, use, peak_mib) in enumerate(jobs):
        end_ms = START_MS + hours * HOUR_MS
        spans += [GpuSpan(f"g{i}", "n", i, 4, "NVIDIA-H100-80GB-HBM3", "healthy", START_MS)]
        pods += [
            PodRecord(f"p{i}", namespace, f"{name}-0", name, kind, user="[ada]\x07", queue="research",
                      submitted_ms=START_MS, ended_ms=end_ms, outcome="Completed")
        ]  # fmt: skip
        holds += [GpuHold(f"p{i}", f"g{i}", 1000, "whole", START_MS, end_ms)]
        used += list(_use(f"g{i}", f"p{i}", hours, use, peak_mib))
    return MemoryReader(Period(START_MS, START_MS + 240 * HOUR_MS), spans, holds, pods, used)


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryReader:
    reader = history()

    def opened(source: HistorySource) -> HistoryReader:
        assert source.store is not None
        if source.store.name == "none":
            raise StoreError("none", "there is no such file", "pass the file that the collector writes")
        return reader

    monkeypatch.setattr(HistorySource, "_reader", opened)
    monkeypatch.setattr(MemoryReader, "close", lambda _: None, raising=False)
    return reader


def run(*arguments: str, width: int = 0) -> Result:
    return CliRunner().invoke(
        cli, ["advise", "--store", "x", *arguments], env=environment(width) if width else {"COLUMNS": "80"}
    )


def shown(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_list_has_the_largest_saving_first() -> None:
    head, *rows, note = shown().splitlines()
    assert [row.split()[0] for row in rows] == ["ml/serve", "web/serve", "ml/train", "ml/new"]
    assert "mig" in rows[0] and "right-sized" in rows[2] and "not enough data" in rows[3]
    assert note == (
        "4 jobs: 2 advice, 1 right-sized, 1 not enough data. "
        "The advice would have saved 412 GPU hours of 740 GPU hours."
    )
    assert head.split()[:2] == ["job", "workload"]


def test_the_forms_of_a_list() -> None:
    rows = list(csv.DictReader(io.StringIO(shown("-o", "csv"))))
    assert list(rows[0]) == [one.name for one in ADVICE.columns]
    assert (rows[0]["advice"], rows[0]["verdict"], rows[0]["p95"], rows[0]["days"]) == ("mig", "advice", "10", "10")
    assert shown("-o", "name", "--sort-by", "job").splitlines() == ["ml/new", "ml/serve", "ml/train", "web/serve"]
    answer = checked(shown("-o", "json"), "JobAdviceList")
    assert (answer["apiVersion"], answer["kind"]) == ("dovetail.dev/cli.v1", "JobAdviceList")
    first = answer["jobs"][0]
    assert first["job"] == "ml/serve" and first["held_gpu_s"] == 240 * 3600
    assert first["advice"][0]["change"] == {
        "kind": "mig", "amount": 0, "resource": "nvidia.com/mig-1g.10gb", "key": "", "value": ""
    }  # fmt: skip
    assert first["advice"][0]["falsifier"]


def test_jobs_and_namespaces_are_chosen() -> None:
    assert shown("-n", "web", "-o", "name") == "web/serve\n"
    assert shown("web/serve", "train", "-o", "name").splitlines() == ["web/serve", "ml/train"]
    assert shown("serve", "-o", "name").splitlines() == ["ml/serve", "web/serve"]
    assert shown("-n", "none") == "No job held a GPU in the period.\n"
    result = run("ml/serv")
    assert result.exit_code == 1 and "job ml/serv held no GPU in the period; did you mean serve?" in result.output


def test_the_page_of_a_job() -> None:
    page = shown("ml/serve")
    assert page.splitlines()[0] == "ml/serve: advice: mig"
    assert "[ada] , queue research; serving, 1 x NVIDIA-H100-80GB-HBM3 at a time" in page
    for text in (
        "10 days with data; 100 % of 240 GPU hours was measured", "p95 at most 10 %", "peak 6.8 GiB of 79.2 GiB",
        "mig: a MIG instance is enough", "request nvidia.com/mig-1g.10gb in place of the GPU",
        "206 GPU hours of the window", "its real use on the instance reaches 90 %",
    ):  # fmt: skip
        assert text in " ".join(page.split()), page
    new = shown("ml/new")
    assert "ml/new: not enough data" in new and "measured days: 1, runs: 1; 7 days or 20 runs are needed" in new
    assert "ml/train: right-sized" in shown("train")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_names_stay_whole_on_a_terminal(width: int) -> None:
    words = run(width=width).output.split()
    assert {"ml/serve", "web/serve", "NVIDIA-H100-80GB-HBM3"} <= set(words)
    assert "nvidia.com/mig-1g.10gb" in run("ml/serve", width=width).output


def test_a_period_that_is_too_short() -> None:
    assert json.loads(shown("--period", "3d", "-o", "json"))["jobs"][0]["verdict"] == "not enough data"
    assert run("--period", "3").exit_code == 2


def test_diff_and_fix_of_manifests(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(MANIFEST)
    result = run("ml/serve", "--diff", str(file))
    assert "+      containers: [{name: main, resources: {limits: {nvidia.com/mig-1g.10gb: 1}}}]" in result.stdout
    assert "would change: ml/serve" in result.stderr and file.read_text() == MANIFEST
    result = run("--fix", str(tmp_path))
    assert file.read_text() == MANIFEST.replace("nvidia.com/gpu", "nvidia.com/mig-1g.10gb")
    assert "changed: ml/serve" in result.stderr and "no manifest that can be changed: web/serve" in result.stderr
    again = run("ml/serve", "--fix", str(file))
    assert "changed: nothing" in again.stderr and again.exit_code == 0


def test_wrong_usage_and_errors(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(b"\0")
    assert run("--fix", str(bad), "--diff", str(bad)).exit_code == 2
    result = run("--fix", str(bad))
    assert result.exit_code == 1 and "binary file" in result.output
    result = CliRunner().invoke(cli, ["advise", "--store", "none"])
    assert result.exit_code == 1 and result.stderr.startswith("Error: none: there is no such file")
    alone = CliRunner().invoke(cli, ["advise"], env={"KUBECONFIG": str(tmp_path / "none")})
    assert alone.exit_code == 1 and "none" in alone.stderr


def test_what_became_of_earlier_advice(tmp_path: Path, store: MemoryReader) -> None:
    record = tmp_path / "advice.json"
    assert "advised before" not in shown("--record", str(record))
    advised = json.loads(record.read_text())["advice"]
    assert [(one["namespace"], one["name"], one["rule"]) for one in advised] == [
        ("ml", "serve", "mig"),
        ("web", "serve", "mig"),
    ]
    # Ten days later one service runs on a MIG instance, and the other has held nothing.
    later_ms = START_MS + 240 * HOUR_MS
    pod = PodRecord("p9", "ml", "serve-1", "serve", "Deployment", submitted_ms=later_ms)
    hours = [
        replace(one, pod_uid="p9", hour_ms=one.hour_ms + 240 * HOUR_MS)
        for one in store.use(store.until)
        if one.pod_uid == "p0"
    ]
    store.until = Period(START_MS, later_ms + 240 * HOUR_MS)
    held = GpuHold("p9", "g0", 142, "instance", later_ms)
    store.write(HistoryBatch(store.until.end_ms, holds=[held], pods=[pod], use=hours))
    answer = json.loads(shown("--record", str(record), "-o", "json"))
    assert [(one["job"], one["followed"], one["held_now"]) for one in answer["earlier"]] == [
        ("ml/serve", "changed", "1 x 0.142 of NVIDIA-H100-80GB-HBM3 (instance)"), ("web/serve", "gone", ""),
    ]  # fmt: skip
    first = answer["earlier"][0]
    assert (first["gpu_s_per_day"], first["gpu_s_per_day_now"]) == (86_400, 86_400 * 142 // 1000)
    table = shown("--record", str(record))
    assert "What was advised before:" in table and "1 x NVIDIA-H100-80GB-HBM3 (whole)" in table
    assert "advised before" not in shown("--record", str(record), "--no-headers")


@pytest.mark.parametrize(("text", "wrong"), [("{", "not a record of advice"), ('{"format": 2}', "its format is 2")])
def test_a_file_that_is_no_record(tmp_path: Path, text: str, wrong: str) -> None:
    record = tmp_path / "advice.json"
    record.write_text(text)
    result = run("--record", str(record))
    assert result.exit_code == 1 and wrong in result.stderr and record.read_text() == text
    result = run("--record", str(tmp_path / "none" / "advice.json"))
    assert result.exit_code == 1 and "cannot write" in result.stderr


def test_a_record_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    record = tmp_path / "advice.json"
    shown("--record", str(record))
    before = record.read_text()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        result = run("--record", str(record))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.exit_code == 1 and f"cannot write {record}: File too large" in result.stderr
    assert record.read_text() == before and list(tmp_path.iterdir()) == [record]


def test_a_record_is_a_regular_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    # Standard input is meant, whatever is there.
    (tmp_path / "-").touch()
    for name in (str(tmp_path / "pipe"), str(tmp_path), "-"):
        result = run("--record", name)
        assert result.exit_code == 1
        assert f"{name}: is no regular file: what is advised is kept in one" in result.stderr


def test_savings_in_money_have_the_date_of_the_price(tmp_path: Path, store: MemoryReader) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("per,gpu_model,price_h,currency,price_date\ngpu,H100-SXM5,4.00,USD,2026-11-01\n")
    page = shown("ml/serve", "--prices", str(prices))
    assert "at prices of 2026-11-01" in page
    (job,) = json.loads(shown("ml/serve", "--prices", str(prices), "-o", "json"))["jobs"]
    saving = job["advice"][0]["saving"]
    assert saving["cost_micro"] == saving["gpu_s"] * 4_000_000 // 3600 and saving["currency"] == "USD"
    both = json.loads(shown("--prices", str(prices), "-o", "json"))["jobs"]
    cents = sum(one["saving"]["cost_micro"] for job in both for one in job["advice"]) // 10_000
    assert f", and {cents / 100:,.2f} USD where prices are known." in shown("--prices", str(prices))
    (row, *_) = csv.DictReader(io.StringIO(shown("ml/serve", "--prices", str(prices), "-o", "csv")))
    assert float(row["saves-cost"]) == saving["cost_micro"] / 10**6
    prices.write_text(prices.read_text().replace("USD", "EUR"))
    result = run("--prices", str(prices), "--currency", "USD")
    assert result.exit_code == 1 and "name the rate" in result.output


def test_the_same_gpus_for_less_at_list_prices(tmp_path: Path, store: MemoryReader) -> None:
    """Two jobs on instances of AWS, at prices and dates of the built-in table; in a region without prices none."""
    end_ms = START_MS + 240 * HOUR_MS
    for name, region in (("here", "us-east-1"), ("there", "eu-north-1")):
        span = GpuSpan(name, name, 0, 1, "NVIDIA-L4", "healthy", START_MS, instance_type="g6.16xlarge", region=region)
        pod = PodRecord(
            name, "ml", f"{name}-0", name, "Deployment", submitted_ms=START_MS, cpu_milli=3000, memory_mib=12_000
        )
        hold = GpuHold(name, name, 1000, "whole", START_MS)
        store.write(HistoryBatch(end_ms, [span], [hold], [pod], list(_use(name, name, 240, 620, 20_000))))
    page = " ".join(shown("here").split())
    for text in (
        "here: advice: instance", "a pod with 1 GPU requests 3 CPUs and 11.7 GiB; g6.16xlarge has 64 CPUs",
        "select nodes by node.kubernetes.io/instance-type=g6.xlarge", "USD at prices of 2026-07-20",
    ):  # fmt: skip
        assert text in page, page
    assert "there: right-sized" in shown("there")
    assert "here: right-sized" in shown("here", "--no-list-prices", "--prices", str(_no_prices(tmp_path)))
    manifest = tmp_path / "here.yaml"
    manifest.write_text(MANIFEST.replace("name: serve", "name: here"))
    record = tmp_path / "advice.json"
    shown("here", "--fix", str(manifest), "--record", str(record))
    assert "nodeSelector:\n        node.kubernetes.io/instance-type: g6.xlarge" in manifest.read_text()
    assert [one["rule"] for one in json.loads(record.read_text())["advice"]] == ["instance"]


MARKUP = "[bold red]x[/]\x1b[31m<b>\u202e=1+1"


def test_pods_without_an_owner_and_names_with_markup(store: MemoryReader) -> None:
    """A pod on its own, of nobody, whose labels, message and model are what somebody chose."""
    span = GpuSpan("g9", "n9", 0, 1, MARKUP, "healthy", START_MS)
    pod = PodRecord("p9", "ml", "alone", "", labels={MARKUP: MARKUP}, submitted_ms=START_MS, outcome="Failed",
                    ended_ms=START_MS + 240 * HOUR_MS, message=f"CUDA out of memory {MARKUP}")  # fmt: skip
    hold = GpuHold("p9", "g9", 1000, "whole", START_MS, START_MS + 240 * HOUR_MS)
    store.write(HistoryBatch(START_MS + 240 * HOUR_MS, [span], [hold], [pod], list(_use("g9", "p9", 240, 80, 7000))))
    page = run("ml/alone", width=200).output
    assert "an unknown user, queue not known; other, 1 x [bold red]x[/]" in page
    assert "\x1b[31m" not in page and "\u202e" not in page
    assert "alone: advice: out-of-memory" in page
    assert json.loads(shown("ml/alone", "-o", "json"))["jobs"][0]["model"] == MARKUP
    assert "\x1b" not in shown("-o", "csv")


def test_a_time_without_records_is_not_measured(store: MemoryReader) -> None:
    """The service held its GPU on while nothing was written for eight of the ten days."""
    for hour in [one for one in store.use(store.until) if one.pod_uid == "p0"][48:]:
        store.write(HistoryBatch(store.until.end_ms, use=[replace(hour, measured_ms=0, use=0, histogram=())]))
    store.write(HistoryBatch(store.until.end_ms, gaps=[Gap(START_MS + 48 * HOUR_MS, store.until.end_ms, "not run")]))
    page = " ".join(shown("ml/serve").split())
    assert "not enough data" in page and "20 % of the time was measured; 50 % are needed" in page
    assert "20 % of 240 GPU hours was measured" in page


def _no_prices(folder: Path) -> Path:
    file = folder / "other.csv"
    file.write_text("per,gpu_model,price_h,currency,price_date\ngpu,H100-SXM5,4.00,USD,2026-11-01\n")
    return file
