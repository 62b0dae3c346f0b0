# SPDX-License-Identifier: Apache-2.0
"""`dovetail simulate` as its user sees it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dovetail.cli import cli
from tests.cli.answers import answer as checked

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,96000,393216,8,G2\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,1,1000\nb,1000,1024,1,500\nc,1000,1024,8,1000\n"
TIMED = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"
    "a,1000,1024,8,1000,,0,100,0\nb,1000,1024,8,1000,G2|X9,10,60,10\n"
)
JOBS = "vc,job,submit_s,num_gpu,duration_s\nx,0,0,16,100\nx,1,10,8,50\ny,0,0,4,7200\n"
TEAMS = (
    "vc,job,submit_s,num_gpu,duration_s,user,cpu_milli,checkpoint_s\n"
    "x,0,0,8,100,ada,64000,10\nx,1,1,8,100,,1000,\ny,0,2,8,50,bob,1000,\n"
)
MANIFESTS = """\
apiVersion: v1
kind: Node
metadata: {name: n0}
status: {allocatable: {cpu: "8", memory: 32Gi, pods: "110", nvidia.com/gpu: "4"}}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: x}
spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: "3"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: x}
spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: "3"}}}]}
---
apiVersion: example.com/v1
kind: Strange
metadata: {name: s}
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("nodes", NODES), ("pods", PODS), ("timed", TIMED), ("jobs", JOBS), ("teams", TEAMS)):
        Path(f"{name}.csv").write_text(text)
    Path("pods.csv.gz").write_bytes(gzip.compress(PODS.encode()))
    Path("cluster.yaml").write_text(MANIFESTS)
    Path("cpu.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,1024,0,\n")
    return tmp_path


def simulate(line: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", *line.split()])


def reported(line: str) -> dict[str, object]:
    result = simulate(f"{line} -o json")
    assert result.exit_code == 0, result.output
    answer: dict[str, object] = json.loads(result.stdout)
    return answer


@pytest.mark.slow
def test_without_arguments_the_sample_is_packed_to_130_percent() -> None:
    answer = reported("")
    assert (answer["nodes"], answer["gpus"], answer["policy"], answer["seed"]) == (1213, 6212, "dovetail", 42)
    assert set(answer["unallocated_gpu_percent"]) == {"100", "130"}  # type: ignore[call-overload]
    assert 8000 < int(str(answer["placed_pods"])) < int(str(answer["arrived_pods"]))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("pods", ["pods.csv", "pods.csv.gz"])
def test_lists_of_one_s_own(pods: str) -> None:
    answer = reported(f"--nodes nodes.csv --pods {pods} --policy fgd --seed 7 --until 90")
    assert (answer["policy"], answer["seed"], answer["gpus"]) == ("fgd", 7, 10)
    assert list(answer["unallocated_gpu_percent"]) == ["90"]  # type: ignore[call-overload]


@pytest.mark.usefixtures("files")
def test_a_timed_list_queues() -> None:
    answer = reported("--nodes nodes.csv --pods timed.csv --timed")
    assert (answer["started_jobs"], answer["ended_jobs"], answer["makespan_s"]) == (2, 2, 150.0)
    assert answer["wait_s"]["max"] == 90.0  # type: ignore[index]
    assert answer["unknown_models"] == {"X9": 1}


@pytest.mark.usefixtures("files")
def test_jobs_queue_for_a_cluster_of_a_size() -> None:
    answer = reported("--nodes 2x8 --jobs jobs.csv --vc x")
    assert (answer["jobs"], answer["arrived_pods"], answer["makespan_s"]) == (2, 3, 150.0)
    assert answer["workload"] == "jobs x on 2x8"


def every(line: str) -> list[dict[str, Any]]:
    result = simulate(f"{line} -o json")
    assert result.exit_code == 0, result.output
    answers: list[dict[str, Any]] = checked(result.stdout, "QueueReport")
    return answers


@pytest.mark.usefixtures("files")
def test_several_policies_are_compared() -> None:
    line = "--nodes 1x8 --jobs teams.csv --policy fifo --policy srtf --policy dovetail"
    answers = every(line)
    assert [answer["policy"] for answer in answers] == ["fifo", "srtf", "dovetail"]
    assert [answer["ended_jobs"] for answer in answers] == [3, 3, 3]
    assert [answer["wait_s"]["mean"] for answer in answers[:2]] == [99.0, pytest.approx((50 + 149) / 3, abs=0.001)]
    assert [answer["evictions"] for answer in answers[:2]] == [0, 1]
    table = simulate(line).stdout
    assert [row.split()[0] for row in table.splitlines()[-3:]] == ["fifo", "srtf", "dovetail"]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("by", "names"), [("vc", ["x", "y"]), ("user", ["ada", "x", "bob"])])
def test_jobs_are_in_queues(by: str, names: list[str]) -> None:
    answer = reported(f"--nodes 1x8 --jobs teams.csv --policy fair --queues-by {by} --weight {names[0]}=3")
    queues: Any = answer["queues"]
    assert [queue["queue"] for queue in queues] == names
    assert [queue["weight"] for queue in queues] == [3] + [1] * (len(names) - 1)
    assert sum(queue["jobs"] for queue in queues) == 3
    assert 0 < float(str(answer["jain_index"])) <= 1
    assert (
        f"Jain index {answer['jain_index']}"
        in simulate(f"--nodes 1x8 --jobs teams.csv --policy fair --queues-by {by} --weight {names[0]}=3").stdout
    )


@pytest.mark.usefixtures("files")
def test_nodes_of_a_list_have_cpu_and_memory_that_jobs_may_lack(files: Path) -> None:
    (files / "wide.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,64500,1024,62,\n")
    answer = reported("--nodes wide.csv --jobs teams.csv")
    # x/0 takes all but half a core.
    assert answer["makespan_s"] == 200.0
    assert answer["workload"] == "teams on wide"


@pytest.mark.usefixtures("files")
def test_nodes_fail_by_a_plan_of_the_seed() -> None:
    line = "--nodes 2x8 --jobs jobs.csv --failures 1h:10m --policy fifo --checkpoint 1m --startup 5s"
    one, again, other = reported(f"{line} --seed 3"), reported(f"{line} --seed 3"), reported(f"{line} --seed 4")
    assert int(str(one["failures"])) > 0
    assert {**one, "seconds": 0} == {**again, "seconds": 0}
    assert one["makespan_s"] != other["makespan_s"]
    assert "failures of nodes" in simulate(f"{line} --seed 3").stdout


@pytest.mark.usefixtures("files")
def test_pods_of_a_list_come_and_go_at_a_load() -> None:
    answer = reported("--nodes nodes.csv --pods pods.csv --churn 60 --runtime 10m --for 10h")
    assert answer["jobs"] == answer["ended_jobs"]
    assert 40 < float(str(answer["allocated_gpu_percent"])) < 75


@pytest.mark.usefixtures("files")
@pytest.mark.slow
def test_several_policies_share_a_picture(files: Path) -> None:
    line = "--nodes 1x8 --jobs teams.csv --policy fifo --policy las --queues-by vc --plot both.png"
    assert simulate(line).exit_code == 0
    assert (files / "both.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("files")
def test_manifests_show_placements_and_reasons_of_waiting_pods() -> None:
    result = simulate("cluster.yaml -o json")
    answer = checked(result.stdout, "SnapshotReport")
    assert answer["placed"] == [{"pod": "x/a", "node": "n0"}]
    assert [(w["pod"], w["code"], w["when"]) for w in answer["waiting"]] == [("x/b", "NoNodeFits", "NotYet")]
    assert "Strange s" in answer["problems"][0]
    assert "attention: cluster.yaml:16: Strange s" in result.stderr
    table = simulate("cluster.yaml").stdout
    assert "x/a" in table
    assert "NoNodeFits" in table


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "line", ["--nodes nodes.csv --pods pods.csv", "--nodes 1x8 --jobs jobs.csv --vc x", "cluster.yaml"]
)
@pytest.mark.slow
def test_a_picture_is_drawn_beside_the_table(line: str, files: Path) -> None:
    result = simulate(f"{line} --plot out.png")
    assert result.exit_code == 0, result.output
    assert (files / "out.png").read_bytes().startswith(b"\x89PNG")
    assert "policy dovetail" in result.stdout
    assert "took" in result.stdout
    assert "drawn: out.png" in result.stderr


WRONG = [
    ("--nodes nodes.csv", "--nodes needs --pods or --jobs"),
    ("--pods pods.csv", "--pods needs --nodes"),
    ("--jobs jobs.csv", "a size such as 16x8"),
    ("--nodes nodes.csv --pods pods.csv --jobs jobs.csv", "different workloads"),
    ("--nodes nodes.csv --pods pods.csv cluster.yaml", "different workloads"),
    ("--nodes 2x8 --jobs jobs.csv --until 100", "--until, --timed and --churn go with"),
    ("--nodes nodes.csv --pods timed.csv --timed --until 100", "use one of them"),
    ("--churn 90 --until 100", "use one of them"),
    ("--vc x", "--vc needs --jobs"),
    ("--line easy", "--line needs --jobs"),
    ("--failures 1d:1h", "--failures needs --jobs"),
    ("--runtime 1h", "--runtime needs --churn"),
    ("--for 1h", "--for needs --churn"),
    ("--at 2026-01-31T12:00:00Z", "--at needs a MANIFEST"),
    ("--nodes 2x8 --jobs jobs.csv --weight x=1", "--weight needs --queues-by"),
    ("--nodes 2x8 --jobs jobs.csv --queues-by vc --weight x=0", "must be QUEUE=N: team-a=3"),
    ("--nodes 2x8 --jobs jobs.csv --failures 1d", "must be two durations such as 30d:4h"),
    ("--nodes 2x8 --jobs jobs.csv --failures 1d:0s", "more than zero"),
    ("--nodes 2x8 --jobs jobs.csv --checkpoint often", "must be a duration"),
    ("--nodes 2x8 --jobs jobs.csv --policy srtf --line easy", "--line easy needs an order without preemption"),
    ("--nodes 2x8 --jobs jobs.csv --line easy", "--line goes with the published queue orders"),
    ("--policy fifo", "is a queue order: it needs --jobs"),
    ("--policy fgd --policy dovetail", "several --policy can be compared only with"),
    ("--until 0", "1<=x<=1000"),
    ("--policy best", "'best' is not one of"),
    ("--plot nowhere/x.png", "there is no folder 'nowhere'"),
]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("line", "message"), WRONG)
@pytest.mark.slow
def test_wrong_usage_names_the_valid_combinations(line: str, message: str) -> None:
    result = simulate(line)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


BAD = [
    ("--nodes nodes.csv --pods pods.csv --timed", "pods.csv: has no creation_time"),
    ("--nodes nodes.csv --pods none.csv", "none.csv"),
    ("--nodes pods.csv --pods pods.csv", "pods.csv:1"),
    ("--nodes 2x0 --jobs jobs.csv", "2x0"),
    ("--nodes 2x8 --jobs jobs.csv --vc z", "there is no 'z'; there are: x, y"),
    ("--nodes 2x8 --jobs jobs.csv --queues-by vc --weight z=2", "--weight: there is no vc z"),
    ("--nodes none.csv --jobs jobs.csv", "'none.csv' is no cluster such as 16x8"),
    ("--nodes cpu.csv --jobs jobs.csv", "cpu.csv: has no node with a GPU"),
    ("none.yaml", "none.yaml"),
]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("line", "message"), BAD)
def test_bad_input_is_one_line_that_names_the_place(line: str, message: str) -> None:
    result = simulate(line)
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.splitlines()) == 1


def test_a_list_without_gpus_cannot_reach_any_percentage(files: Path) -> None:
    (files / "cpu.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,0,0\n")
    result = simulate("--nodes nodes.csv --pods cpu.csv")
    assert result.exit_code == 1
    assert "no number of these pods asks for 130 % of these GPUs" in result.output


def test_the_job_that_had_least_goes_first(files: Path) -> None:
    """A job of a hundred hours, and one of an hour that comes after twenty."""
    lines = "vc,job,submit_s,num_gpu,duration_s\nx,long,0,8,360000\nx,short,72000,8,3600\n"
    Path("experiments.csv").write_text(lines)
    by_age = reported("--jobs experiments.csv --nodes 1x8 --checkpoint 1h")
    by_least = reported("--jobs experiments.csv --nodes 1x8 --checkpoint 1h --least-served-first")
    assert (by_age["evictions"], by_least["evictions"]) == (0, 1)
    assert by_age["wait_s"]["max"] == 288_000  # type: ignore[index]
    # It waits for the grace period of the victim, and the victim waits for it.
    assert by_least["wait_s"]["max"] < 3700  # type: ignore[index]


@pytest.mark.usefixtures("files")
def test_jobs_take_longer_where_they_communicate_more_slowly() -> None:
    # Of four nodes one under each switch is free when the last job comes, which one switch could hold.
    rows = ("x,a,0,8,100,", "x,b,0,8,9000,", "x,c,0,8,100,", "x,d,0,8,9000,", "x,e,200,16,1000,80")
    columns = "vc,job,submit_s,num_gpu,duration_s,communication_percent"
    Path("spread.csv").write_text("\n".join((columns, *rows)))
    line = "--nodes 2x2x8 --jobs spread.csv --policy fifo"
    plain, even, slow = (
        reported(f"{line} {more}") for more in ("", "--communication 40", "--communication 40 --level-percent 100,25")
    )
    assert plain["step_percent"] is None
    assert even["step_percent"] == 100.0
    assert 105 < slow["step_percent"] < 120
    assert slow["completion_s"]["mean"] > plain["completion_s"]["mean"]
    assert slow["makespan_s"] == plain["makespan_s"] == 9000
    assert (
        f"step        {slow['step_percent']:.1f} % of the time"
        in simulate(f"{line} --communication 40 --level-percent 100,25").stdout
    )


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--nodes 4x8 --jobs jobs.csv --nic 100", "--nic needs --communication"),
        ("--nodes 4x8 --jobs jobs.csv --level-percent 50", "--level-percent needs --communication"),
        ("--communication 30", "--communication needs --jobs"),
        ("--nodes 4x8 --jobs jobs.csv --communication 30 --level-percent 0,50", "must be percents from 1 to 100"),
        ("--nodes 4x8 --jobs jobs.csv --communication 30 --gpu-product H1", "--gpu-product: 'H1' is not known"),
        ("--nodes 4x16 --jobs jobs.csv --communication 30", "--gpu-product: how 16 GPUs of H100-SXM5 in one node"),
    ],
)
def test_communication_that_cannot_be_is_refused(line: str, why: str) -> None:
    result = simulate(line)
    assert result.exit_code
    assert why in " ".join(result.stderr.split())
