# SPDX-License-Identifier: Apache-2.0
"""`dovetail history`, `dovetail simulate --history` and `dovetail collector` as their users see them."""

from __future__ import annotations

import csv
import json
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.history.records import DAY_MS, Gap, HistoryBatch, PodRecord
from dovetail.history.sqlite.store import SqliteStore
from tests.cli.answers import answer as checked

NOW_MS = 1_790_000_000_000
HOUR_MS = 3_600_000


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, args)))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "history.db"
    begun_ms = NOW_MS - 3 * HOUR_MS
    common = {"user": "ann", "queue": "research", "scheduler": "dovetail", "gpus": "4 GPUs", "gpu_milli": 4000}
    pods = [
        PodRecord(
            "u1", "research", "train-0", "train", "Job", node="gpu-1", labels={"app": "train"}, submitted_ms=begun_ms,
            bound_ms=begun_ms + HOUR_MS, started_ms=begun_ms + HOUR_MS + 90_000, ended_ms=NOW_MS - HOUR_MS,
            outcome="Failed", code="OOMKilled", message="container [red]main[/] exited with 137", restarts=2, **common,
        ),
        PodRecord(
            "u2", "research", "train-1", "train", "Job", node="gpu-2", labels={"app": "train"}, submitted_ms=begun_ms,
            bound_ms=begun_ms + HOUR_MS, ended_ms=NOW_MS - HOUR_MS - HOUR_MS // 2, outcome="Completed", **common,
        ),
        PodRecord("u3", "product", "serve", "serve", submitted_ms=NOW_MS - 60_000, gpu_milli=500, user="bob"),
        PodRecord(
            "u4", "product", "old", "old", submitted_ms=NOW_MS - 20 * DAY_MS, bound_ms=NOW_MS - 20 * DAY_MS,
            ended_ms=NOW_MS - 19 * DAY_MS, outcome="Lost", gpu_milli=1000,
        ),
    ]  # fmt: skip
    with closing(SqliteStore(path)) as store:
        store.write(HistoryBatch(NOW_MS, pods=pods, gaps=[Gap(NOW_MS - 7200_000, NOW_MS - 7000_000, "restart")]))
    return path


def test_the_jobs_of_the_last_week_are_listed(store: Path) -> None:
    lines = run("history", "--store", store).output.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["job", "product/serve", "research/train"]
    assert "8  Failed" in lines[2]
    assert "3 h ago" in lines[2]
    assert lines[3].startswith("The history goes from ")
    assert lines[4] == "It has 1 gap in this time, of 3 min 20 s together."


def test_of_one_job_the_pods_are_listed_with_each_step(store: Path) -> None:
    done = run("history", "train", "--store", store)
    table = [line.split("  ") for line in done.output.splitlines()]
    (first,) = [row for row in table if row[0] == "train-0"]
    cells = [cell.strip() for cell in first if cell.strip()]
    assert cells == [
        "train-0", "Failed", "4 GPUs", "gpu-1", "1 h", "1 min 30 s", "58 min 30 s", "2",
        "OOMKilled: container [red]main[/] exited with 137",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "jobs"),
    [
        (["--since", "30d"], ["product/serve", "research/train", "product/old"]),
        (["-n", "research"], ["research/train"]),
        (["-n", "research", "-A"], ["product/serve", "research/train"]),
        (["-u", "bob,carl"], ["product/serve"]),
        (["-q", "research"], ["research/train"]),
        (["-s", "waiting,Lost"], ["product/serve"]),
        (["-l", "app=train"], ["research/train"]),
        (["*r*"], ["product/serve", "research/train"]),
        (["product/*"], ["product/serve", "product/old"]),
        (["--until", "2h", "--since", "4h"], ["research/train"]),
        (["--sort-by", "job"], ["product/serve", "research/train"]),
    ],
)
def test_jobs_are_chosen(store: Path, args: list[str], jobs: list[str]) -> None:
    done = run("history", "--store", store, "-o", "name", *args)
    assert done.exit_code == 0, done.output
    assert done.output.split() == jobs


def test_the_whole_answer_and_csv(store: Path) -> None:
    (answer,) = checked(run("history", "train", "--store", store, "-o", "json").output, "HistoryJob")
    assert (answer["kind"], answer["made_by"], answer["outcome"], answer["gpu_hours"]) == (
        "HistoryJob",
        "Job",
        "Failed",
        6,
    )
    assert [step["startup_ms"] for step in answer["steps"]] == [90_000, 1_800_000]
    assert yaml.safe_load(run("history", "train", "--store", store, "-o", "yaml").output) == [answer]
    assert run("history", "train", "--store", store, "-o", "jsonpath={[*].code}").output == "OOMKilled\n"
    (row,) = csv.DictReader(StringIO(run("history", "train", "--store", store, "-o", "csv").output))
    assert (row["waited"], row["ran"], row["gpus"], row["made-by"]) == ("3600", "3600", "8", "Job")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nope"], "knows no such job nope; `dovetail history` lists jobs"),
        (["-s", "bad"], "there is no outcome 'bad'; there are Waiting, Running, Completed"),
        (["--since", "2026-01-31T12:00:00"], "has no time zone: end it with Z for UTC"),
        (["--since", "soon"], "'soon' is no duration such as 7d, and no time such as 2026-01-31T12:00:00Z"),
        (["--until", "2h", "--since", "1h"], "--since must be before --until"),
    ],
)
def test_wrong_arguments_are_reported(store: Path, args: list[str], message: str) -> None:
    done = run("history", "--store", store, *args)
    assert done.exit_code
    assert message in done.output


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    done = run("history", "--store", tmp_path / "none.db")
    assert (done.exit_code, done.output) == (
        1, f"Error: {tmp_path}/none.db: there is no such file; pass the file that the collector writes\n",
    )  # fmt: skip


JOBS = "vc,job,submit_s,num_gpu,duration_s\na,one,0,8,3600\na,two,10,8,1800\nb,three,20,4,60\n"


def test_a_simulated_run_has_a_history(tmp_path: Path) -> None:
    jobs, history = tmp_path / "jobs.csv", tmp_path / "history.db"
    jobs.write_text(JOBS)
    done = run("simulate", "--nodes", "1x8", "--jobs", jobs, "--history", history)
    assert done.exit_code == 0, done.output
    answer = json.loads(run("history", "--store", history, "-o", "json").output)
    assert {one["job"]: (one["outcome"], one["submitted"][:10]) for one in answer} == {
        "a/one": ("Completed", "2026-01-01"), "a/two": ("Completed", "2026-01-01"),
        "b/three": ("Completed", "2026-01-01"),
    }  # fmt: skip
    again = run("simulate", "--nodes", "1x8", "--jobs", jobs, "--history", history)
    assert again.exit_code == 2
    assert "is there already: name a new file" in again.output
    both = run("simulate", "--nodes", "1x8", "--jobs", jobs, "--history", tmp_path / "x", "--policy", "fifo")
    assert "--history is of one run of the scheduler's core" in both.output


def test_the_collector_reports_wrong_options(tmp_path: Path) -> None:
    done = run("collector", "--store", tmp_path / "history.db", "--days-by-day", "10")
    assert done.exit_code == 2
    assert "--days-by-day must be at least --days-by-hour" in done.output
