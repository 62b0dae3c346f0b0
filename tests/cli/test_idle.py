# SPDX-License-Identifier: Apache-2.0
"""`dovetail idle`, on a file of the history."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from dovetail.cli import cli
from dovetail.cli.history_store import HistorySource
from dovetail.cost.idle_pods import IdleList
from dovetail.cost.price_rules import PriceBook
from dovetail.history.records import HOUR_MS, USE_BINS, GpuHold, GpuSpan, HistoryBatch, PodRecord, UseHour
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.history.sqlite.store import SqliteStore
from dovetail.historyserver.answers import idle_of
from dovetail.historyserver.questions import IdleQuestion
from dovetail.playground import Fault
from tests.cli.answers import answer as checked
from tests.cli.clusters import CommandCluster, command_cluster
from tests.idlepolicy.world import DEFINITIONS, GPU_STACKS
from tests.terminal import environment

START_MS = 500_000 * HOUR_MS
NOW_MS = START_MS + 10 * HOUR_MS
MODEL = "NVIDIA-H100-80GB-HBM3"
PRICES = "per,gpu_model,price_h,currency,price_date\ngpu,H100-SXM5,4.00,USD,2026-11-01\n"


def record(name: str, kind: str = "Job", **fields: Any) -> PodRecord:
    own: dict[str, Any] = {
        "namespace": "ml", "user": "ada", "queue": "ml", "node": "n1", "labels": {"app": name},
        "bound_ms": START_MS, "started_ms": START_MS,
    }  # fmt: skip
    return PodRecord(uid=f"uid-{name}", name=f"{name}-x", job=name, kind=kind, **own | fields)


def use(gpu: str, name: str, used_hours: int) -> list[UseHour]:
    """Ten hours, the first of them with use."""
    bins = (HOUR_MS, *([0] * (USE_BINS - 1)))
    return [
        UseHour(gpu, f"uid-{name}", START_MS + hour * HOUR_MS, HOUR_MS, 0, 0, histogram=bins,
                used_until_ms=START_MS + (hour + 1) * HOUR_MS if hour < used_hours else 0)
        for hour in range(10)
    ]  # fmt: skip


def write_history(path: Path) -> None:
    """Ten hours of a node with jobs that use some of their GPUs, all of them, or none."""
    gpus = [f"g{i}" for i in range(8)]
    pods = [
        record("train"), record("busy"), record("web", "Deployment", namespace="serving", user="bob"), record("never"),
        record("part"), record("shared"),
    ]  # fmt: skip
    held = {"train": "g0", "busy": "g1", "web": "g2", "never": "g3", "part": "g4 g5", "shared": "g6"}
    holds = [
        GpuHold(f"uid-{name}", gpu, 500 if name == "shared" else 1000, "whole", START_MS)
        for name, some in held.items()
        for gpu in some.split()
    ]
    hours = [
        *use("g0", "train", 4), *use("g1", "busy", 10), *use("g2", "web", 2), *use("g3", "never", 0),
        *use("g4", "part", 10), *use("g5", "part", 0),
    ]  # fmt: skip
    spans = [GpuSpan(gpu, "n1", i, 8, MODEL, "healthy", START_MS) for i, gpu in enumerate(gpus)]
    with closing(SqliteStore(path)) as writer:
        writer.write(HistoryBatch(NOW_MS, spans, holds, pods, hours))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_history(tmp_path / "history.db")
    (tmp_path / "prices.csv").write_text(PRICES)
    return tmp_path / "history.db"


def shown(store: Path, *options: str, code: int = 0) -> str:
    prices = ["--prices", str(store.parent / "prices.csv")]
    result = CliRunner().invoke(cli, ["idle", "--store", str(store), *prices, *options], env=environment(200))
    assert result.exit_code == code, result.output
    return result.output


def test_those_that_waste_most_are_first_with_what_to_do(store: Path) -> None:
    answer = checked(shown(store, "-o", "json"), "IdleList")
    assert (answer["kind"], answer["currency"], answer["price_date"]) == ("IdleList", "USD", "2026-11-01")
    rows = {one["pod"]: one for one in answer["pods"]}
    # Ten minutes are start-up.
    assert {name: one["gpu_s"] for name, one in rows.items()} == {
        "ml/never-x": 35_400, "ml/part-x": 35_400, "serving/web-x": 28_800, "ml/train-x": 21_600,
    }  # fmt: skip
    assert list(rows) == ["ml/never-x", "ml/part-x", "serving/web-x", "ml/train-x"]
    assert rows["ml/train-x"]["cost_micro"] == 6 * 4_000_000
    assert answer["cost_micro"] == sum(one["cost_micro"] for one in answer["pods"])
    assert "logs train" in rows["ml/train-x"]["action"] and "may hang" in rows["ml/train-x"]["action"]
    assert "scale the Deployment to zero" in rows["serving/web-x"]["action"]
    assert "never used" in rows["ml/never-x"]["action"] and not rows["ml/never-x"]["ever_used"]
    part = rows["ml/part-x"]
    assert "uses 1 of 2 GPUs" in part["action"] and (part["held"], part["unused"], part["idle"]) == (2, 1, False)
    assert answer["not_measured"] == ["ml/shared-x"]


def test_the_table_and_what_is_below_it(store: Path) -> None:
    text = shown(store)
    assert "train-x" in text and "1 of 2" in text and "24.00" in text and "busy" not in text
    assert "33.7 GPU-hours held and not used, 134.66 USD at prices of 2026-11-01." in text
    assert "The use of 1 more pod is not measured: ml/shared-x." in text
    rows = list(csv.DictReader(shown(store, "-o", "csv").splitlines()))
    assert [row["measured"] for row in rows] == ["100"] * 4 and rows[0]["job"] == "ml/never"
    assert shown(store, "-o", "name").split() == ["ml/never-x", "ml/part-x", "serving/web-x", "ml/train-x"]


@pytest.mark.parametrize(
    ("options", "pods"),
    [
        (("-n", "serving"), ["serving/web-x"]),
        (("-u", "bob,eve"), ["serving/web-x"]),
        (("-q", "other"), []),
        (("--least", "7h"), ["ml/never-x", "ml/part-x", "serving/web-x"]),
        (("--exempt", "ml"), ["serving/web-x"]),
        (("--exempt", "app=never", "--exempt", "serving"), ["ml/part-x", "ml/train-x"]),
    ],
)
def test_filters(store: Path, options: tuple[str, ...], pods: list[str]) -> None:
    assert shown(store, *options, "-o", "name").split() == pods


def test_without_idle_pods_or_prices(store: Path) -> None:
    assert "no pod that is measured holds GPUs without using them" in shown(store, "-q", "other")
    (store.parent / "prices.csv").write_text(PRICES.replace("H100-SXM5", "L4"))
    text = shown(store, "--no-list-prices")
    assert "4 pods of which no price is known" in text
    assert {one["cost_micro"] for one in json.loads(shown(store, "--no-list-prices", "-o", "json"))["pods"]} == {None}


def test_records_cannot_bring_formulas_markup_or_control_characters(store: Path) -> None:
    """Users come from annotations, and kinds from owners: their writers are tenants."""
    with closing(SqliteStore(store)) as writer:
        pods = [record("never", "[red]\x1b[31m<b>", user="=1+1"), record("part", queue="[red]\x1b[31m", user="\r=1+1")]
        writer.write(HistoryBatch(NOW_MS, pods=pods))
    table = shown(store, "-o", "wide")
    assert "[red]" in table and "\x1b" not in table and "\r" not in table
    rows = list(csv.DictReader(shown(store, "-o", "csv").splitlines()))
    assert {"'=1+1"} <= {row["user"] for row in rows}
    assert not [text for row in rows for text in row.values() if text[:1] in ("=", "\r") or "\x1b" in text]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["idle", "--store", str(tmp_path / "none.db")])
    assert result.exit_code == 1 and "none.db" in result.output


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CommandCluster]:
    namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("ml", "serving")]
    with command_cluster(tmp_path, *namespaces) as found:
        yield found


def notes(cluster: CommandCluster) -> dict[str, Any]:
    found = cluster.do(lambda: list(cluster.playground.store.collection("events").objects.values()))
    return {one["involvedObject"]["name"]: one for one in found if one.get("reason") == "GPUsIdle"}


def test_owners_are_notified_once_for_each_time_in_which_a_pod_is_idle(store: Path, cluster: CommandCluster) -> None:
    arguments = ["idle", "--store", str(store), "--prices", str(store.parent / "prices.csv"), "--notify"]
    result = cluster.run(*arguments, "-n", "ml")
    assert result.exit_code == 0 and "3 events written." in result.stderr, result.output
    assert notes(cluster).keys() == {"never-x", "part-x", "train-x"}
    train = notes(cluster)["train-x"]
    assert train["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "ml", "name": "train-x", "uid": "uid-train",
    }  # fmt: skip
    assert train["message"].startswith("Its GPU is idle since 2027-01-15 12:00 UTC") and "24.00 USD" in train["message"]
    assert "1 of its 2 GPUs is idle" in notes(cluster)["part-x"]["message"]
    again = cluster.run(*arguments)
    assert again.exit_code == 0 and "1 event written; 3 pods had theirs." in again.stderr
    with closing(SqliteStore(store)) as writer:
        later = [replace(one, used_until_ms=NOW_MS) for one in use("g0", "train", 4) if one.hour_ms == NOW_MS - HOUR_MS]
        writer.write(
            HistoryBatch(
                NOW_MS + 2 * HOUR_MS,
                use=[
                    *later,
                    *(UseHour("g0", "uid-train", NOW_MS + hour * HOUR_MS, HOUR_MS, 0, 0) for hour in range(2)),
                ],
            )
        )
    third = cluster.run(*arguments, "-n", "ml")
    assert "1 event written" in third.stderr, third.output


def test_an_event_that_is_refused_keeps_no_other_from_being_written(store: Path, cluster: CommandCluster) -> None:
    cluster.do(
        lambda: cluster.playground.faults.add(
            Fault("answer", "POST", "events", status=403, message="no right to create", times=1)
        )
    )
    (store.parent / "prices.csv").write_text(PRICES.replace("H100-SXM5", "L4"))
    prices = "--prices", str(store.parent / "prices.csv"), "--no-list-prices"
    result = cluster.run("idle", "--store", str(store), *prices, "--notify")
    assert result.exit_code == 1 and "no event on ml/never-x" in result.stderr and "no right to create" in result.stderr
    assert len(notes(cluster)) == 3
    assert "which cost" not in notes(cluster)["train-x"]["message"]


def test_what_the_policy_of_the_cluster_will_do(
    store: Path, cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector's answer, with what is foreseen; and the same where there is no policy."""

    def collected(_: HistorySource, question: IdleQuestion, __: type[IdleList]) -> IdleList:
        with closing(SqliteReader(store)) as reader:
            return idle_of(reader, question, PriceBook(()))

    monkeypatch.setattr(HistorySource, "_ask", collected)
    assert "No idle policy is installed" in cluster.run("idle").output
    none = cluster.run("idle", "--least", "90d").output
    assert "no pod that is measured" in none and "policy" not in none, "there is nothing for it to do"
    stack = {"idle": {"enabled": True, "exemptNamespaces": ["serving"]}}
    reports = {"observedTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "idlePods": []}
    spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "none"}]}
    for one in (
        *DEFINITIONS, GPU_STACKS,
        {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUStack", "metadata": {"name": "stack"}, "spec": stack},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-x", "namespace": "ml"}, "spec": spec},
    ):  # fmt: skip
        stored = cluster.do(lambda one=one: cluster.playground.put(one))  # type: ignore[misc]
    since = datetime.now(UTC) - timedelta(minutes=30)
    with closing(SqliteStore(store)) as writer:
        writer.run("UPDATE pod_ids SET uid = ? WHERE uid = 'uid-train'", (stored["metadata"]["uid"],))
    # A pod is idle since it was created at the earliest: it is new here.
    reports["idlePods"] = [{"uid": stored["metadata"]["uid"], "since": since.strftime("%Y-%m-%dT%H:%M:%SZ")}]
    cluster.put({
        "apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": "n1"}, "status": reports,
    })  # fmt: skip
    answer = checked(cluster.run("idle", "-o", "json").output, "IdleList")
    rows = {one["pod"]: one for one in answer["pods"]}
    assert answer["policy"] == "on"
    assert {name: one["policy"] for name, one in rows.items()} == {
        "ml/never-x": "none", "ml/part-x": "none", "serving/web-x": "none", "ml/train-x": "notice",
    }  # fmt: skip
    assert rows["serving/web-x"]["policy_note"] == "Namespace serving is exempt." and rows["ml/train-x"]["policy_at"]
    text = cluster.run("idle", "-o", "wide").output
    assert "Namespace serving is exempt." in text and "is gone" in text and "No idle policy" not in text


def hook(received: list[Any], answer: int) -> type[BaseHTTPRequestHandler]:
    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answer)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

    return Hook


@pytest.mark.parametrize(("answer", "code"), [(200, 0), (500, 1)])
def test_the_list_is_sent_where_it_has_pods(store: Path, answer: int, code: int) -> None:
    received: list[Any] = []
    with HTTPServer(("127.0.0.1", 0), hook(received, answer)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/hook"
        try:
            shown(store, "-q", "other", "--webhook", url)
            assert received == []
            text = shown(store, "--webhook", url, code=code)
            assert ("refuses the list: 500" in text) == bool(code)
            (sent,) = received
            assert sent == json.loads(shown(store, "-o", "json")) and sent["kind"] == "IdleList"
        finally:
            server.shutdown()


def test_an_address_that_is_none(store: Path) -> None:
    assert "it has to begin with https://" in shown(store, "--webhook", "file:///etc/passwd", code=2)
    assert "cannot be reached" in shown(store, "--webhook", "http://127.0.0.1:1/", code=1)
