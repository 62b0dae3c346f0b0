# SPDX-License-Identifier: Apache-2.0
"""The history behind the real API server: each user gets what RBAC allows, the same as from the file, and the collector
writes on while it is asked."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Forked, run_forked
from tests.live.behind_the_server import HIDDEN, NODE, BehindServer, until
from tools.controlplane.plane import Plane, RequestFailed

API = "/apis/history.dovetail.dev/v1alpha1"
FOLDER = "deploy/functions/history"
MERGE = "application/merge-patch+json"
QUEUES = "/apis/dovetail.dev/v1alpha1/queues"
BUDGET = {
    "apiVersion": "dovetail.dev/v1alpha1",
    "kind": "Queue",
    "metadata": {"name": "default"},
    "spec": {"budget": {"money": {"amount": 0, "currency": "USD"}, "period": "Month", "whenUsed": "Hold"}},
}
PRICED = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "node.kubernetes.io/instance-type": "p5.48xlarge",
    "topology.kubernetes.io/region": "us-east-1",
}


class _World(BehindServer):
    """With the collector as a process."""

    def __init__(self, plane: Plane, folder: Path) -> None:
        super().__init__(plane)
        self.store = folder / "history.db"
        self.role = str(plane.service_account_kubeconfig("dovetail-system", "dovetail-collector"))

    @contextmanager
    def collector(self) -> Iterator[Forked]:
        fixed = ("--kubeconfig", self.role, "--listen", "", "--store", str(self.store), "--write-every", "0.1")
        process = Forked("collector", *fixed, "--answers", f"{self.address}:{self.port}")
        try:
            yield process
        finally:
            process.terminate()
            process.wait()

    def ask(self, user: str, path: str) -> dict[str, Any]:
        return dict(self.plane.request("GET", API + path, user=user)["answer"])

    def of_file(self, *arguments: str) -> str:
        done = run_forked(*arguments, "--store", str(self.store))
        done.check_returncode()
        return done.stdout


def shows_the_history(plane: Plane, folder: Path) -> None:
    """All of it, on a node that has a price, in a queue that may spend nothing. Nothing of that stays."""
    labels = f"/api/v1/nodes/{NODE}"
    plane.request("PATCH", labels, {"metadata": {"labels": PRICED}}, MERGE)
    plane.request("POST", QUEUES, BUDGET)
    world = _World(plane, folder)
    try:
        _shows_the_history(world)
    finally:
        plane.kubectl("delete", "--ignore-not-found", f"--filename={FOLDER}/apiservice.yaml")
        for namespace in ("team-a", f"{HIDDEN}-b"):
            plane.request("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
        plane.request("DELETE", f"{QUEUES}/default")
        plane.request("PATCH", labels, {"metadata": {"labels": dict.fromkeys(PRICED)}}, MERGE)


def _shows_the_history(world: _World) -> None:
    missing = world.dovetail("olga", "cost")
    assert missing.returncode == 1 and "spec.history.enabled; --store reads a file" in missing.stderr, missing.stderr
    world.plane.kubectl("apply", f"--filename={FOLDER}/apiservice.yaml")
    with world.collector() as process:
        world.make("team-a", "runs", 3, nodeName=NODE)
        world.make(f"{HIDDEN}-b", f"{HIDDEN}-runs", 4, nodeName=NODE)
        until(lambda: world.ask("olga", "/pastjobs"), lambda found: len(found["jobs"]) == 2)
        _refuses_what_rbac_does_not_grant(world)
        _shows_own_names_and_totals(world)
        _commands_answer_as_the_file_does(world)
        _holds_a_queue_whose_money_is_spent(world)
        # Questions keep nothing from being written.
        before = world.ask("olga", "/pastjobs")["known"]["end_ms"]
        for _ in range(5):
            assert world.dovetail("olga", "cost", "--by", "job").returncode == 0
        until(lambda: world.ask("olga", "/pastjobs")["known"]["end_ms"], lambda end_ms: end_ms > before)
        process.kill()
        process.wait()
    gone = until(lambda: world.dovetail("olga", "cost"), lambda done: done.returncode == 1)
    assert "the collector does not answer" in gone.stderr
    with world.collector():
        until(lambda: world.dovetail("alice", "cost"), lambda done: done.returncode == 0)


def _refuses_what_rbac_does_not_grant(world: _World) -> None:
    for user, path in (
        ("alice", "/costs"), ("alice", f"/namespaces/{HIDDEN}-b/costs"), ("nobody", "/namespaces/team-a/costs"),
        ("nobody", "/pastjobs"),
    ):  # fmt: skip
        with pytest.raises(RequestFailed, match="forbidden"):
            world.ask(user, path)
    refused = world.dovetail("nobody", "history")
    assert refused.returncode == 1 and "which the ClusterRole dovetail-viewer grants" in refused.stderr


def _shows_own_names_and_totals(world: _World) -> None:
    for resource in ("pastjobs", "usereports", "costs", "idlelists", "sizeadvice"):
        assert HIDDEN not in json.dumps(world.ask("alice", f"/namespaces/team-a/{resource}"))
    with pytest.raises(RequestFailed, match="in all namespaces"):
        world.ask("alice", "/namespaces/team-a/capacityadvice")
    with pytest.raises(RequestFailed, match="rows of all namespaces"):
        world.ask("alice", "/namespaces/team-a/focuscosts")
    assert world.ask("olga", "/capacityadvice")["kinds"]
    jobs = world.ask("alice", "/namespaces/team-a/pastjobs")
    assert ([job["job"] for job in jobs["jobs"]], jobs["elsewhere"]) == (["team-a/runs"], 1)
    question = "?question=%7B%22by%22%3A%22job%22%7D"
    rows = world.ask("alice", f"/namespaces/team-a/costs{question}")["rows"]
    assert {row["name"] for row in rows if row["kind"] == "group"} == {"team-a/runs", "(other-namespaces)"}
    named = world.ask("olga", f"/costs{question}")["rows"]
    assert {row["name"] for row in named if row["kind"] == "group"} == {"team-a/runs", f"{HIDDEN}-b/{HIDDEN}-runs"}


def _commands_answer_as_the_file_does(world: _World) -> None:
    """Of a time that is over."""
    known = world.ask("olga", "/pastjobs")["known"]
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(known["end_ms"] // 1000))
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(known["start_ms"] // 1000 - 60))
    until(lambda: world.ask("olga", "/pastjobs")["known"]["end_ms"], lambda end_ms: end_ms > known["end_ms"] + 1000)
    for command in (
        ("cost", "--by", "job", "--period", f"{since}..{end}", "-o", "csv"),
        ("report", "--by", "namespace", "--period", f"{since}..{end}", "-o", "csv"),
        ("cost", "--period", f"{since}..{end}", "-o", "focus"),
    ):
        asked = world.dovetail("olga", *command)
        assert (asked.returncode, asked.stdout) == (0, world.of_file(*command)), asked.stderr
        assert f"{HIDDEN}-b" in asked.stdout or "focus" in command
    refused = world.dovetail("alice", "cost", "-o", "focus")
    assert refused.returncode == 1 and "focuscosts" in refused.stderr, refused
    # The context has another namespace.
    assert world.dovetail("alice", "history").returncode == 1
    for command in ("history", "idle", "advise", "cost", "report"):
        assert world.dovetail("alice", command, "-n", "team-a").returncode == 0
    # The name of a job has its own.
    _shows_one_job(world, "team-a/runs")
    _shows_no_other_job(world)
    context = ("config", "set-context", "--current", "--namespace=team-a")
    world.plane.kubectl(f"--kubeconfig={world.users['alice']}", *context)
    for command in (("cost", "--by", "job"), ("report",), ("history",), ("idle",), ("advise",)):
        shown = world.dovetail("alice", *command)
        assert shown.returncode == 0 and HIDDEN not in shown.stdout, shown
        sys.stdout.write(shown.stdout)
    _shows_one_job(world, "runs")
    assert "Other namespaces had 1 job" in world.dovetail("alice", "history").stdout
    refused = world.dovetail("olga", "cost", "--prices", "prices.csv")
    assert refused.returncode == 2 and "options of prices need --store" in refused.stderr


def _shows_one_job(world: _World, name: str) -> None:
    """To the everyday user: an own job with its pods."""
    shown = world.dovetail("alice", "history", name)
    assert (shown.returncode, shown.stderr) == (0, "") and HIDDEN not in shown.stdout, shown
    heads = [line.split()[0] for line in shown.stdout.splitlines()]
    assert heads[:4] == ["job", "team-a/runs", "pod", "runs"] and "view-node" in shown.stdout, shown.stdout


def _shows_no_other_job(world: _World) -> None:
    for name, why in (
        ("team-a/none", "knows no such job team-a/none"),
        (f"{HIDDEN}-b/{HIDDEN}-runs", f"you may not list pastjobs.history.dovetail.dev in namespace {HIDDEN}-b"),
    ):
        refused = world.dovetail("alice", "history", name)
        assert refused.returncode == 1 and why in refused.stderr, refused


def _holds_a_queue_whose_money_is_spent(world: _World) -> None:
    """The scheduler asks the collector with the rights of its role, and starts nothing more in the queue."""
    process = Forked("scheduler", "--kubeconfig", world.scheduler_role, "--listen", "", "--no-recording")
    try:
        money = until(lambda: world.plane.get(f"{QUEUES}/default").get("status", {}).get("money"))
        assert (money["currency"], float(money["spent"]) > 0) == ("USD", True), money
        world.make("team-a", "late", 1)
        shown = until(lambda: world.plane.get("/api/v1/namespaces/team-a/pods/late")["status"].get("conditions"))
        assert "QueueBudgetUsed" in shown[0]["message"], shown
    finally:
        process.terminate()
        process.wait()
    world.remove("team-a", "late")
