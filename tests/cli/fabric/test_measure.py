# SPDX-License-Identifier: Apache-2.0
"""`dovetail fabric measure` as a user runs it: jobs on the playground, whose pods write what nccl-tests write."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from dovetail.apiserver.objects import Object, text_at
from dovetail.cli import wait_report
from dovetail.cli.fabric import measurement
from dovetail.cli.fabric.measurement import status_of_results
from dovetail.jobs.measuring import PROGRAM, MeasureJob, MeasureRequest, documents_of
from dovetail.kube.objects.pods import Pod
from dovetail.kube.translate.limits import bounded
from dovetail.playground import pod_logs
from dovetail.topology.fabric_measured import FabricGroup, GroupResult, SlowResult
from dovetail.topology.nccl_output import read
from tests.cli.clusters import CommandCluster, command_cluster, node
from tests.paths import ROOT

IMAGE = ("--image", "registry.example/nccl:1", "--annotation", "playground.dovetail.dev/run-seconds=0.1")
RACK = "dovetail.dev/rack"
FABRICS = "fabrics.dovetail.dev"
TABLE = "# size count type redop root time algbw busbw #wrong\n1073741824 268435456 float sum -1 1.0 1.0 %s 0\n"
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandCluster]:
    """Three nodes in rack a, one in rack b; the pods of jobs run for an instant."""
    monkeypatch.setattr(measurement, "EVERY_S", 0.05)
    monkeypatch.setattr(wait_report, "EVERY_S", 0.05)
    nodes = [node(f"n{at}") for at in range(4)]
    for at, one in enumerate(nodes):
        one["metadata"]["labels"][RACK] = "aaab"[at]
    definition = yaml.safe_load((ROOT / "deploy/crds/fabric.yaml").read_text())
    with command_cluster(tmp_path, definition, *nodes, scheduler=True) as found:
        yield found


def write(monkeypatch: pytest.MonkeyPatch, slow: str) -> None:
    """Pods write 40 GB/s where one of their job is on the node `slow`, and 100 elsewhere."""

    def annotations(obj: Object, path: str) -> Any:
        found = pod_logs_object_at(obj, path)
        if path == "metadata.annotations" and text_at(obj, "kind") != "Node" and "affinity" in obj.get("spec", {}):
            rate = 40 if f"'{slow}'" in str(obj["spec"]["affinity"]) else 100
            return {**found, pod_logs.LOG: TABLE % rate}
        return found

    pod_logs_object_at = pod_logs.object_at
    monkeypatch.setattr(pod_logs, "object_at", annotations)


def test_the_plan_has_the_groups_of_each_level(cluster: CommandCluster) -> None:
    result = cluster.run("fabric", "measure", *IMAGE, "--dry-run")
    rows = [line.split()[:3] for line in result.stdout.splitlines()[1:-1]]
    assert rows == [[RACK, "pair", "n[0-1]"], [RACK, "pair", "n[1-2]"], [RACK, "pair", "n[0,2]"],
                    ["all", "nodes", "pair"]]  # fmt: skip
    assert result.stdout.splitlines()[-1] == "4 jobs with 8 GPUs on each node"
    assert cluster.names("jobs.batch") == []


@pytest.mark.slow
def test_a_slow_node_is_found_marked_and_avoided(cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    write(monkeypatch, "n1")
    result = cluster.run("fabric", "measure", *IMAGE, "--level", RACK, "--write", "-e", "A=b", "--", "all_reduce_perf")
    assert result.exit_code == 1, result.output
    assert result.stdout.splitlines()[-2:] == ["slow: n1: 40.0 GB/s of 100.0 GB/s", "3 groups measured; 1 slow"]
    assert cluster.names("jobs.batch") == []
    fabric = cluster.get(FABRICS, "cluster", "")
    assert fabric is not None
    (slow,), (level,) = fabric["status"]["slow"], fabric["status"]["measured"]
    assert (slow["name"], slow["measuredMBps"], slow["expectedMBps"]) == ("n1", 40_000, 100_000)
    assert (level["level"], level["groups"], level["failed"], level["image"]) == (RACK, 3, 0, IMAGE[1])
    cluster.run("run", "train", "--image", "registry.example/train:1", "--gpus", "8", "--nodes", "2", "--time", "1h")
    placed = cluster.eventually(
        lambda: [one["spec"].get("nodeName") for one in cluster.pods()], lambda found: len(found) == 2 and all(found)
    )
    assert sorted(placed) == ["n0", "n2"]


def test_levels_and_nodes_that_are_not_there(cluster: CommandCluster) -> None:
    result = cluster.run("fabric", "measure", *IMAGE, "--nodes", "n[0-1]", "--level", "row")
    assert (result.exit_code, "the levels are" in result.stderr) == (2, True)
    result = cluster.run("fabric", "measure", *IMAGE, "--nodes", "n9")
    assert (result.exit_code, "n9: no node with" in result.stderr) == (1, True)


def test_a_job_without_a_result_is_named_with_its_reason_and_deleted(cluster: CommandCluster) -> None:
    result = cluster.run("fabric", "measure", *IMAGE, "--nodes", "n[0-1]")
    assert result.exit_code == 1
    assert "no line of a table of nccl-tests" in result.stdout
    assert "1 group measured, 1 without a result; 0 slow" in result.stdout
    assert cluster.names("jobs.batch") == []


GROUP = FabricGroup(RACK, "pair", ("a", "b"), ("a", "b"))
OLD = {"name": "a", "measuredMBps": 1, "expectedMBps": 2, "measuredAt": "2026-02-27T00:00:00Z"}


def test_marks_of_what_was_not_measured_stay_until_their_time() -> None:
    before = {
        "slow": [
            OLD | {"expiresAt": "2026-03-05T00:00:00Z"},
            OLD | {"name": "other", "expiresAt": "2026-03-05T00:00:00Z"},
            OLD | {"name": "past", "expiresAt": "2026-02-28T00:00:00Z"},
        ],
        "measured": [{"level": "", "groups": 1}, {"level": RACK, "groups": 9}],
    }
    results = [GroupResult(GROUP, 40, 100), GroupResult(GROUP, None, 100)]
    found = status_of_results(results, [SlowResult("", "b", 40, 100)], timedelta(days=7), "i", before, NOW)
    assert [(one["name"], one["expiresAt"]) for one in found["slow"]] == [
        ("other", "2026-03-05T00:00:00Z"),
        ("b", "2026-03-08T00:00:00Z"),
    ]
    assert [(one["level"], one["groups"], one.get("failed")) for one in found["measured"]] == [
        ("", 1, None),
        (RACK, 2, 1),
    ]
    assert (found["measured"][1]["slowestMBps"], found["measured"][1]["expectedMBps"]) == (40, 100)


def test_a_ring_and_a_pair_with_a_slow_node_take_no_mark_away() -> None:
    marked = OLD | {"level": RACK, "name": "x", "expiresAt": "2026-03-05T00:00:00Z"}
    before = {"slow": [marked, OLD | {"expiresAt": "2026-03-05T00:00:00Z"}]}
    ring = FabricGroup(RACK, "ring", ("a", "b", "c"), ("a", "b", "c"))
    wider = FabricGroup("", "pair", ("a", "b"), ("x", "y"), RACK)
    week = timedelta(days=7)
    kept = status_of_results([GroupResult(ring, 99, 100)], [], week, "i", before, NOW)["slow"]
    assert [one["name"] for one in kept] == ["x", "a"]
    found = status_of_results([GroupResult(wider, 9, 100)], [SlowResult("", "b", 9, 100)], week, "i", before, NOW)
    assert [one["name"] for one in found["slow"]] == ["x", "a", "b"]
    gone = status_of_results([GroupResult(wider, 99, 100)], [], week, "i", before, NOW)["slow"]
    assert [one["name"] for one in gone] == ["a"]


def test_a_job_is_on_its_nodes_alone_preemptible_and_short() -> None:
    job, service = documents_of(MeasureJob("m", ("a", "b"), 8), MeasureRequest("ns", "i"))
    pod = job["spec"]["template"]
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [one["matchFields"][0]["values"] for one in terms["nodeSelectorTerms"]] == [["a"], ["b"]]
    assert pod["metadata"]["annotations"] == {"dovetail.dev/max-runtime": "10m", "dovetail.dev/preemptible": "true"}
    assert (job["spec"]["parallelism"], pod["spec"]["activeDeadlineSeconds"]) == (2, 600)
    assert service["kind"] == "Service"


def test_the_scheduler_reads_all_nodes_of_the_largest_group() -> None:
    nodes = tuple(f"node-{i}" for i in range(measurement._MOST_NODES + 10))
    taken = []
    for count in (measurement._MOST_NODES, len(nodes)):
        job, _ = documents_of(MeasureJob("m", nodes[:count], 8), MeasureRequest("ns", "i"))
        pod = msgspec.convert(
            {"metadata": {"name": "m", "namespace": "ns"}} | {"spec": job["spec"]["template"]["spec"]}, Pod
        )
        taken.append(not bounded(pod).problems)
    assert taken == [True, False]


TORCH = """
class _Any:
    def __getattr__(self, name): return lambda *a, **k: self
import sys, types, time
now_s = [0.0]
time.perf_counter = lambda: now_s[0]
torch = types.ModuleType("torch"); dist = types.ModuleType("torch.distributed")
torch.cuda, torch.float32, torch.zeros = _Any(), None, lambda *a, **k: None
torch.distributed = dist
dist.init_process_group = dist.destroy_process_group = dist.barrier = lambda *a: None
dist.get_world_size, dist.get_rank = lambda: 4, lambda: 0
def all_reduce(data): now_s[0] += 0.01
dist.all_reduce = all_reduce
sys.modules.update({"torch": torch, "torch.distributed": dist})
"""


def test_the_program_writes_a_table_that_is_read() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TORCH + PROGRAM], env={"LOCAL_RANK": "0"}, capture_output=True, text=True
    )
    assert done.stderr == ""
    found = read(done.stdout)
    # 1 GiB in a hundredth of a second, times 3/2 for four ranks.
    assert found.size == 1 << 30 and 161_050 <= found.mbps <= 161_061
