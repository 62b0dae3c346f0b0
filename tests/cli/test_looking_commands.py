# SPDX-License-Identifier: Apache-2.0
"""The commands that look at queues, as a user runs them: on files that stand for a cluster, and on a playground."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dovetail.cli import cli
from dovetail.playground import Playground

AT = "2026-11-22T00:00:00Z"
GPU = "nvidia.com/gpu"
Document = dict[str, Any]


def _node(name: str, gpus: int = 8) -> Document:
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: str(gpus)}
    meta = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": amounts}}


def _pod(name: str, gpus: int, node: str = "", runs: str = "", **labels: str) -> Document:
    meta: Document = {
        "name": name, "uid": name, "creationTimestamp": "2026-11-21T22:00:00Z",
        "labels": {f"dovetail.dev/{key}": value for key, value in labels.items()},
        "annotations": {"dovetail.dev/max-runtime": runs} if runs else {},
    }  # fmt: skip
    container = {"name": "main", "image": "x", "resources": {"limits": {GPU: gpus}}}
    spec: Document = {"schedulerName": "dovetail", "containers": [container]}
    status: Document = {}
    if node:
        spec["nodeName"] = node
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-21T23:00:00Z"}
        status = {"phase": "Running", "conditions": [scheduled]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def _queue(name: str, **spec: Any) -> Document:
    return {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


CLUSTER = (
    _node("gpu-1"),
    _node("gpu-2"),
    _queue("research", guarantee={"gpu": 8}, weight=2),
    _queue("product", limit={"gpu": 12}),
    _pod("busy", 8, "gpu-1", runs="3h", queue="product"),
    _pod("idle", 4, "gpu-2", queue="product"),
    _pod("train", 8, queue="research"),
    _pod("small", 2, queue="research"),
)


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump_all(CLUSTER))
    return str(file)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, env={"COLUMNS": "200"})


def _ask(cluster: str, *arguments: str) -> Any:
    result = _run(*arguments, "-f", cluster, "--at", AT, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def _shown(cluster: str, *arguments: str) -> str:
    result = _run(*arguments, "-f", cluster, "--at", AT)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_line(cluster: str) -> None:
    found = _ask(cluster, "queue")
    assert {(one["job"], one["queue"]) for one in found["jobs"]} == {
        ("default/train", "research"), ("default/small", "research"),
    }  # fmt: skip
    assert {one["job"]: one["state"] for one in found["jobs"]} == {
        "default/train": "NotYet", "default/small": "NotYet",
    }  # fmt: skip
    shown = _shown(cluster, "queue", "research", "--basis")
    assert "default/train" in shown and "based on" in shown
    assert "No job waits in queue product." in _shown(cluster, "queue", "product")


def test_the_shares(cluster: str) -> None:
    found = {one["queue"]: one for one in _ask(cluster, "share")}
    assert dict(found["product"]["allocated"])["gpu"] == 12_000
    assert dict(found["research"]["guarantee"])["gpu"] == 8000
    shown = _shown(cluster, "share", "research", "--users", "--all")
    assert "research" in shown and "product" not in shown


def test_the_priority_of_a_job(cluster: str) -> None:
    found = _ask(cluster, "priority", "train")
    assert (found["job"], found["queue"], found["levels"][0]["own"]) == ("default/train", "research", "research")
    assert "with its first job" in _shown(cluster, "priority", "default/train")


def test_why_of_a_pod_of_a_queue_and_of_what_is_neither(cluster: str) -> None:
    assert _ask(cluster, "why", "train")["queue"] == "research"
    for name in ("research", "queue/research"):
        assert _ask(cluster, "why", name)["queue"]["queue"] == "research"
    assert "Queue research: allocated" in _shown(cluster, "why", "research")
    assert "from the top down" in _shown(cluster, "why", "train")
    result = _run("why", "trian", "-f", cluster)
    assert result.exit_code == 1
    assert "did you mean default/train" in result.output and ", and no queue of that name; did" in result.output


def test_queue_and_why_agree_on_each_preempting_job(cluster: str) -> None:
    line = {one["job"]: one["code"] for one in _ask(cluster, "queue")["jobs"]}
    assert line == {f"default/{name}": _ask(cluster, "why", name)["code"] for name in ("train", "small")}
    assert "WaitingForEvictions" in line.values()


def test_the_largest_gang(cluster: str) -> None:
    found = _ask(cluster, "free", "--shape", "2x4xH100")
    assert (found["starts"], found["models"][0]["levels"][0]["pods"]) == (False, 1)
    assert "does not start now" in _shown(cluster, "free", "--shape", "2x4xH100")


def test_moves_that_make_room(cluster: str, tmp_path: Path) -> None:
    file = tmp_path / "more.yaml"
    file.write_text(yaml.safe_dump_all([_node("gpu-3"), _pod("more", 4, "gpu-3", queue="product")]))
    found = _ask(cluster, "defrag", "train", "-f", str(file))
    assert [(move["pod"], move["target"]) for step in found["steps"] for move in step["moves"]] == [
        ("default/more", "gpu-2"),
    ]  # fmt: skip
    assert found["lost_gpu_minutes"] == found["steps"][0]["lost_gpu_minutes"] == 240
    shown = _shown(cluster, "defrag", "train", "-f", str(file))
    assert "default/train fits on gpu-3" in shown and "Nothing was moved" in shown and "no controller" in shown
    shown = _shown(cluster, "defrag", "--shape", "8xH100", "-f", str(file))
    assert "a pod with 8 GPUs of H100 fits on gpu-3" in shown


def test_why_no_moves_make_room(cluster: str) -> None:
    assert _ask(cluster, "defrag", "train")["proven"]
    shown = _shown(cluster, "defrag", "train")
    assert shown.startswith("No moves can make room for default/train: it needs 8 of")
    assert "a pod with 4 GPUs fits without moves on gpu-2." in _shown(cluster, "defrag", "--shape", "4")


def test_whatif_submit(cluster: str, tmp_path: Path) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {GPU: 4}}}]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "new"}, "spec": {"template": template}}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    found = _ask(cluster, "whatif", "submit", str(file))
    assert found["jobs"][0]["job"] == "default/new"
    assert "default/new" in _shown(cluster, "whatif", "submit", str(file))


def test_what_is_submitted_may_name_what_the_cluster_has(cluster: str, tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(yaml.safe_dump(_pod("new", 4, queue="research")))
    result = _run("whatif", "submit", str(file), "-f", cluster, "--at", AT)
    assert (result.exit_code, result.stderr) == (0, "")
    file.write_text(yaml.safe_dump(_pod("new", 4, queue="reserch")))
    assert "QueueMissing" in _shown(cluster, "whatif", "submit", str(file))


@pytest.mark.parametrize(("policy", "node"), [(("--policy", "tightest"), "tight"), ((), "roomy")])
@pytest.mark.slow
def test_nodes_are_chosen_by_the_policy_that_is_named(tmp_path: Path, policy: tuple[str, ...], node: str) -> None:
    """Seventy pods that want eight cores beside each GPU will come. A pod with eight cores alone takes them from the
    node that is the fuller one, or from the one that has cores to spare."""
    nodes, pods = [_node("tight", 2), _node("roomy", 2)], [_pod(f"later-{i}", 1) for i in range(70)]
    nodes[0]["status"]["allocatable"]["cpu"], nodes[1]["status"]["allocatable"]["cpu"] = "16", "64"
    plain = _pod("plain", 0)
    for one in (*pods, plain):
        one["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "8"}
    for one in pods:
        one["spec"]["schedulingGates"] = [{"name": "example.com/later"}]
    there, file = tmp_path / "cluster.yaml", tmp_path / "plain.yaml"
    there.write_text(yaml.safe_dump_all([*nodes, *pods]))
    file.write_text(yaml.safe_dump(plain))
    found = _ask(str(there), "whatif", "submit", str(file), *policy)
    assert [place["node"] for place in found["jobs"][0]["places"]] == [node]


def test_whatif_drain(cluster: str) -> None:
    found = _ask(cluster, "whatif", "drain", "gpu-1")
    assert found["notes"] == ["default/busy has no controller: nothing replaces it"]
    assert "attention:" in _shown(cluster, "whatif", "drain", "gpu-1")


@pytest.mark.parametrize("what", [("2x8xH100",), ("--like", "gpu-1", "--count", "2", "--label", "a=b")])
def test_whatif_add_nodes(cluster: str, what: tuple[str, ...]) -> None:
    found = _ask(cluster, "whatif", "add-nodes", *what)
    assert {"default/train": "starts now"}.items() <= {one["job"]: one["effect"] for one in found["jobs"]}.items()


def test_whatif_add_nodes_of_a_file(cluster: str, tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(yaml.safe_dump(_node("gpu-9")))
    found = _ask(cluster, "whatif", "add-nodes", str(file))
    assert [place["node"] for place in found["jobs"][0]["places"]] == ["gpu-9"]


def test_whatif_quota(cluster: str) -> None:
    assert _ask(cluster, "whatif", "quota", "research", "--weight", "5")["notes"] == []
    shown = _shown(cluster, "whatif", "quota", "product", "--limit", "gpu=none", "--guarantee", "gpu=4")
    assert "product" in shown or "no difference" in shown


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("queue", "reserch"), 1, "did you mean research"),
        (("share", "nothing"), 1, "there are default, product, research"),
        (("priority", "busy"), 1, "does not wait"),
        (("priority", "/b"), 2, "is not [NAMESPACE/]NAME"),
        (("priority", "a/b", "-n", "c"), 2, "has the namespace"),
        (("whatif", "drain", "gpu-7"), 1, "did you mean gpu-2, gpu-1"),
        (("whatif", "add-nodes"), 2, "name files with nodes"),
        (("whatif", "add-nodes", "--like", "gpu-9"), 1, "node gpu-9 does not exist"),
        (("whatif", "add-nodes", "2x4xA100"), 1, "there are 8xNVIDIA-H100-80GB-HBM3"),
        (("whatif", "add-nodes", "2x8xH100", "--count", "3"), 2, "--count goes with --like"),
        (("whatif", "add-nodes", "--like", "gpu-1", "--label", "rack"), 2, "must be KEY=VALUE"),
        (("whatif", "quota", "research"), 2, "nothing changes: use"),
        (("whatif", "quota", "reserch", "--weight", "2"), 1, "did you mean research"),
        (("whatif", "quota", "research", "--limit", "gpus=4"), 1, "'gpus' is not a resource class; did you mean gpu"),
        (("whatif", "quota", "research", "--limit", "gpu=many"), 1, "gpu: 'many' is not a quantity"),
        (("whatif", "quota", "research", "--limit", "gpu"), 1, "must be CLASS=AMOUNT"),
        (("whatif", "submit", "/nowhere.yaml"), 1, "/nowhere.yaml: cannot be read"),
        (("whatif", "submit", "/dev/null"), 1, "/dev/null: no object in it matters"),
        (("free", "--shape", "big"), 2, "4x8xH100"),
        (("defrag",), 2, "name a JOB, or use --shape"),
        (("defrag", "train", "--shape", "8"), 2, "name a JOB, or use --shape"),
        (("defrag", "train", "--cpu", "4"), 2, "the requests of a JOB are in its pods"),
        (("defrag", "--shape", "big"), 2, "4x8xH100"),
        (("defrag", "--shape", "8", "--cpu", "-1"), 2, "is negative"),
        (("defrag", "--shape", "8xA100"), 1, "no node has GPUs of the model 'A100'"),
        (("defrag", "busy"), 1, "default/busy does not wait: it has a node"),
        (("defrag", "trian"), 1, "did you mean default/train"),
        (("queue", "--kubeconfig", __file__), 2, "--file and --kubeconfig both choose the cluster"),
        (("queue", "--at", "noon"), 2, "is not a time such as"),
        (("queue", "--at", "2026-11-22T00:00:00"), 2, "has no time zone"),
    ],
)
@pytest.mark.slow
def test_errors_are_one_clear_line(cluster: str, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = _run(*arguments, "-f", cluster)
    assert (result.exit_code, message in result.output) == (code, True), result.output
    assert "Traceback" not in result.output


def test_a_time_belongs_to_files() -> None:
    result = _run("queue", "--at", AT)
    assert result.exit_code == 2 and "--at needs --file" in result.output


def test_unusable_parts_of_files_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(yaml.safe_dump_all([*CLUSTER, {"apiVersion": "example.com/v1", "kind": "Odd"}]))
    result = _run("queue", "-f", str(file))
    assert result.exit_code == 0
    assert "attention:" in result.stderr and "Odd" in result.stderr


async def test_a_live_cluster_is_read_the_same_way(tmp_path: Path) -> None:
    playground = Playground()
    await playground.start()
    try:
        kubeconfig = str(playground.kubeconfig(tmp_path / "kubeconfig"))
        for document in (_node("gpu-1"), _pod("p", 2), _pod("q", 9)):
            playground.put(document)
        result = await asyncio.to_thread(_run, "queue", "--kubeconfig", kubeconfig, "-o", "json")
        assert {one["job"]: one["code"] for one in json.loads(result.stdout)["jobs"]} == {
            "default/p": "Placed", "default/q": "NoNodeFits",
        }  # fmt: skip
        result = await asyncio.to_thread(_run, "whatif", "drain", "gpu-1", "--kubeconfig", kubeconfig, "-o", "json")
        assert {one["effect"] for one in json.loads(result.stdout)["jobs"]} == {"never starts"}
    finally:
        await playground.stop()


@pytest.mark.parametrize(
    ("at", "now", "change", "after"),
    [
        ("2026-10-23T12:00:00Z", 6, "2026-10-23 18:00:00.000 UTC", 2),
        ("2026-10-24T12:00:00Z", 2, "2026-10-26 07:00:00.000 UTC", 6),
    ],
)
def test_the_next_guarantee_of_a_calendar_is_shown_with_its_time(
    tmp_path: Path, at: str, now: int, change: str, after: int
) -> None:
    """Between the two changes the clocks of Berlin go back."""
    by_day = {"days": ["Mon", "Tue", "Wed", "Thu", "Fri"], "start": "08:00", "end": "20:00", "guarantee": {"gpu": 6}}
    calendar = {"timeZone": "Europe/Berlin", "windows": [by_day]}
    queue = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "serving"}}
    (tmp_path / "queue.yaml").write_text(
        yaml.safe_dump(queue | {"spec": {"guarantee": {"gpu": 2}, "calendar": calendar}})
    )
    asked = ["-f", str(tmp_path / "queue.yaml"), "--at", at]
    shown = CliRunner().invoke(cli, ["share", *asked])
    assert shown.exit_code == 0, shown.output
    assert f"serving: the guarantee changes at {change} to {after} gpu" in shown.output
    shown = CliRunner().invoke(cli, ["why", "queue/serving", *asked])
    assert f"guarantee {now} gpu;" in shown.output
    assert f"at {change}, to {after} gpu." in shown.output
