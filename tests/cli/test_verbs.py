# SPDX-License-Identifier: Apache-2.0
"""`logs`, `wait`, `hold`, `release`, `cancel` and `events` as a user runs them, beside a scheduler."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import wait_report
from dovetail.playground import Fault
from tests.cli.clusters import JOB_SETS, CommandCluster, command_cluster, node
from tests.patience import PATIENCE_S

IMAGE = ("--image", "registry.example/train:1.4")
HELD = "dovetail.dev/hold"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_report, "EVERY_S", 0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CommandCluster]:
    with command_cluster(tmp_path, node("gpu-1"), scheduler=True) as found:
        yield found


def start(cluster: CommandCluster, name: str, *more: str, **values: str) -> None:
    """Run a job; `values` are annotations that the simulated kubelet reads."""
    marks = [f"playground.dovetail.dev/{key.replace('_', '-')}={value}" for key, value in values.items()]
    result = cluster.run("run", name, *IMAGE, *more, *(part for mark in marks for part in ("--annotation", mark)))
    assert result.exit_code == 0, result.output


def until(cluster: CommandCluster, name: str, *phases: str) -> None:
    cluster.eventually(lambda: cluster.phases(name), lambda found: found == sorted(phases))


def waits(cluster: CommandCluster, name: str, pods: int = 1) -> None:
    """A job that does not fit beside one that takes the node."""
    start(cluster, "full", "--gpus", "8")
    until(cluster, "full", "Running")
    start(cluster, name, "--gpus", "8", "--nodes", str(pods))
    until(cluster, name, *["Pending"] * pods)


# logs


def test_the_lines_of_several_pods_begin_with_their_ranks(cluster: CommandCluster) -> None:
    start(cluster, "train", "--nodes", "2", log="one\ntwo")
    until(cluster, "train", "Running", "Running")
    assert cluster.run("logs", "train").stdout == "[0] one\n[0] two\n[1] one\n[1] two\n"
    assert cluster.run("logs", "team-a/train", "--tail", "1").stdout == "[0] two\n[1] two\n"
    assert cluster.run("logs", "job/train", "--rank", "1").stdout == "one\ntwo\n"
    (first,) = [pod["metadata"]["name"] for pod in cluster.pods() if pod["metadata"]["name"].startswith("train-0-")]
    assert cluster.run("logs", first).stdout == cluster.run("logs", "train", "--pod", first).stdout == "one\ntwo\n"
    assert cluster.run("logs", f"pod/{first}", "-c", "main").stdout == "one\ntwo\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--rank", "7"], "Job team-a/train has no pod of rank 7: its pods are train-0-"),
        (["train", "--pod", "x"], "has no pod x"),
        (["train", "-c", "sidecar"], "has no container sidecar: it has main"),
        (["train", "--pod", "x", "--rank", "0"], "use one of them"),
        (["trainn"], "there is no job or pod 'trainn' in namespace team-a; did you mean train"),
        (["jobset/train"], "there is no jobset 'train'"),
        (["train", "--tail", "-1"], "-1 is not in the range"),
        (["a/b/c"], "'a/b/c' is not [KIND/][NAMESPACE/]JOB"),
        (["job/"], "'job/' is not [KIND/][NAMESPACE/]JOB"),
        (["team-b/train", "-n", "team-a"], "JOB has the namespace 'team-b', --namespace is 'team-a'"),
        (["tr\x1b[31main"], "there is no job or pod 'tr\\x1b[31main'"),
    ],
)
def test_logs_that_do_not_exist(cluster: CommandCluster, arguments: list[str], message: str) -> None:
    start(cluster, "train")
    until(cluster, "train", "Running")
    result = cluster.run("logs", *arguments)
    assert result.exit_code in (1, 2) and message in result.output, result.output


def test_of_pods_that_have_not_started_the_reason_is_shown(cluster: CommandCluster) -> None:
    waits(cluster, "train")
    cluster.eventually(lambda: cluster.run("logs", "train").stderr, lambda text: "NoNodeFits" in text)
    result = cluster.run("logs", "train")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("1 pod of Job team-a/train has not started: NoNodeFits (NotYet)")


def test_logs_are_followed_from_before_the_start_to_the_end_of_the_job(cluster: CommandCluster) -> None:
    waits(cluster, "train")
    follower = cluster.begin("logs", "-f", "train")
    (pod,) = [one for one in cluster.pods() if one["metadata"]["name"].startswith("train-")]
    pod["metadata"]["annotations"] |= {
        "playground.dovetail.dev/log": "late",
        "playground.dovetail.dev/run-seconds": "0.2",
    }
    cluster.do(lambda: cluster.playground.store.put_raw("pods", pod))
    assert cluster.run("cancel", "-y", "full").exit_code == 0
    out, errors = follower.communicate(timeout=PATIENCE_S)
    assert (follower.returncode, out) == (0, "late\n"), errors
    assert errors.rstrip().endswith("Job team-a/train: succeeded")


def test_a_log_connection_that_breaks_is_made_again(cluster: CommandCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.jobs.logs._AGAIN_S", 0.01)
    start(cluster, "train", log="line", run_seconds="1")
    until(cluster, "train", "Running")
    cluster.do(lambda: cluster.playground.faults.add(Fault("drop-before", "GET", "pods/log", times=1)))
    result = cluster.run("logs", "-f", "train")
    assert (result.exit_code, result.stdout) == (0, "line\n"), result.output


@pytest.mark.slow
def test_a_closed_pipe_ends_it_quietly(cluster: CommandCluster) -> None:
    start(cluster, "train", log="\n".join(map(str, range(5000))))
    until(cluster, "train", "Running")
    program = f"{sys.executable} -c 'from dovetail.cli import main; main()' logs train | head -1"
    environment = {"KUBECONFIG": str(cluster.config), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(program, shell=True, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("0\n", "")


# wait


def test_the_wait_for_a_start_and_for_the_end(cluster: CommandCluster) -> None:
    start(cluster, "train", run_seconds="0.5")
    result = cluster.run("wait", "train", "--for", "started")
    assert result.exit_code == 0 and "Job team-a/train: 1 pod runs" in result.stderr, result.output
    result = cluster.run("wait", "train")
    assert result.exit_code == 0 and result.stderr.rstrip().endswith("Job team-a/train: succeeded")
    assert cluster.run("wait", "train", "--for", "started").exit_code == 0
    result = cluster.run("wait", "train", "--for", "failed")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, "Error: Job team-a/train has succeeded")


def test_a_wait_for_a_job_that_fails(cluster: CommandCluster) -> None:
    start(cluster, "train", run_seconds="0.1", exit_code="3")
    assert cluster.run("wait", "train", "--for", "failed").exit_code == 0
    result = cluster.run("wait", "train")
    assert result.exit_code == 1 and "Error: Job team-a/train failed: pod train-0-" in result.stderr


@pytest.mark.slow
def test_the_time_of_a_wait_ends(cluster: CommandCluster) -> None:
    waits(cluster, "train")
    result = cluster.run("wait", "train", "--for", "started", "--timeout", "1s")
    assert result.exit_code == 124 and "The time is over; the job goes on." in result.stderr
    assert "Job team-a/train: 1 pod waits: NoNodeFits: 0/1 nodes are available" in result.stderr


def test_a_job_that_is_deleted_ends_the_wait(cluster: CommandCluster) -> None:
    waits(cluster, "train")
    waiter = cluster.begin("wait", "train")
    assert waiter.stderr is not None and waiter.stderr.readline().startswith("Job team-a/train: 1 pod waits")
    assert cluster.run("cancel", "-y", "train").exit_code == 0
    _, errors = waiter.communicate(timeout=PATIENCE_S)
    assert waiter.returncode == 1 and errors.rstrip().endswith("Error: Job team-a/train was deleted")


def test_a_service_does_not_end(cluster: CommandCluster) -> None:
    template = {
        "metadata": {"labels": {"app": "s"}},
        "spec": {"schedulerName": "dovetail", "containers": [{"name": "m"}]},
    }
    cluster.put({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "serve", "namespace": "team-a"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "s"}}, "template": template},
    })  # fmt: skip
    result = cluster.run("wait", "serve")
    assert result.exit_code == 1 and "a Deployment serves until it is deleted: wait --for started" in result.stderr


# hold and release


@pytest.mark.slow
def test_a_held_job_does_not_start_until_it_is_released_and_the_commands_show_it(cluster: CommandCluster) -> None:
    waits(cluster, "train", pods=1)
    result = cluster.run("hold", "train")
    assert (result.exit_code, result.stdout) == (0, "Job team-a/train: held, 1 pod waits.\n"), result.output
    assert cluster.run("cancel", "-y", "full").exit_code == 0
    answer = json.loads(cluster.run("why", "train", "-o", "json").stdout)
    assert (answer["code"], answer["state"]) == ("Held", "NotYet")
    assert "team-a/train " in cluster.run("queue").stdout and "Held" in cluster.run("queue").stdout
    cluster.eventually(lambda: cluster.run("events", "train").stdout, lambda text: "Held: the job is held" in text)
    assert "team-a/train is held" in cluster.run("events", "train").stdout
    assert cluster.phases("train") == ["Pending"]
    result = cluster.run("release", "train")
    assert (result.exit_code, result.stdout) == (0, "Job team-a/train: released, 1 pod may start.\n")
    until(cluster, "train", "Running")
    result = cluster.run("release", "train")
    assert (result.exit_code, result.stderr) == (1, "Error: Job team-a/train is not held\n")


@pytest.mark.slow
def test_a_gang_is_held_by_its_object_too_so_that_its_new_pods_are(cluster: CommandCluster) -> None:
    waits(cluster, "train", pods=2)
    assert cluster.run("hold", "train").stdout == "Job team-a/train: held, 2 pods wait.\n"
    job = cluster.get("jobs.batch", "train")
    assert job is not None and job["metadata"]["annotations"][HELD] == "true"
    cluster.run("cancel", "-y", "full")
    for pod in [one for one in cluster.pods() if one["metadata"]["name"].startswith("train-")]:
        cluster.do(lambda pod=pod: cluster.playground.delete("pods", "team-a", pod["metadata"]["name"]))
    until(cluster, "train", "Pending", "Pending")
    cluster.put(node("gpu-2"))
    answer = cluster.eventually(
        lambda: json.loads(cluster.run("why", "job/train", "-o", "json").stdout),
        lambda found: found["gang"]["exist"] == 2 and found["code"] != "",
    )
    assert answer["code"] == "Held"
    assert cluster.run("release", "train").exit_code == 0
    until(cluster, "train", "Running", "Running")
    job = cluster.get("jobs.batch", "train")
    assert job is not None and HELD not in job["metadata"]["annotations"]


def test_a_pod_of_a_kind_that_the_scheduler_does_not_read_is_held_alone(cluster: CommandCluster) -> None:
    start(cluster, "full", "--gpus", "8")
    until(cluster, "full", "Running")
    labels = {"app": "serve"}
    container = {"name": "m", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    template = {"metadata": {"labels": labels}, "spec": {"schedulerName": "dovetail", "containers": [container]}}
    cluster.put({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "serve", "namespace": "team-a"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    })  # fmt: skip
    cluster.eventually(cluster.pods, lambda pods: len(pods) == 2)
    result = cluster.run("hold", "serve")
    assert result.stdout == (
        "Deployment team-a/serve: held, 1 pod waits. Pods that are made from now on are not held.\n"
    ), result.output
    (name,) = [pod["metadata"]["name"] for pod in cluster.pods() if pod["metadata"]["name"].startswith("serve")]
    assert cluster.run("release", f"pod/{name}").stdout == "Deployment team-a/serve: released, 1 pod may start.\n"


def test_a_gang_of_pods_without_an_object_is_held(cluster: CommandCluster) -> None:
    start(cluster, "full", "--gpus", "8")
    until(cluster, "full", "Running")
    for name in ("x", "y"):
        cluster.put(bare(name, {"dovetail.dev/gang": "pair", "dovetail.dev/gang-min": "2"}))
    assert cluster.run("hold", "pair").stdout == "Gang team-a/pair: held, 2 pods wait.\n"
    assert cluster.run("release", "x").stdout == "Gang team-a/pair: released, 2 pods may start.\n"


def bare(name: str, annotations: dict[str, str] | None = None, scheduler: str = "dovetail") -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "team-a", "annotations": annotations or {}},
        "spec": {"schedulerName": scheduler, "containers": [container]},
    }  # fmt: skip


def suspended(labels: dict[str, str] | None = None) -> dict[str, Any]:
    container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"spec": {"schedulerName": "dovetail", "restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "later", "namespace": "team-a", "labels": labels or {}},
        "spec": {"suspend": True, "template": template},
    }  # fmt: skip


def test_a_suspended_job_is_resumed_but_not_where_kueue_suspends_it(cluster: CommandCluster) -> None:
    cluster.put(suspended())
    result = cluster.run("hold", "later")
    assert result.exit_code == 1 and "is suspended: it has no pods" in result.stderr
    assert "Job team-a/later: is suspended: it has no pods" in cluster.run("wait", "later", "--timeout", "1s").stderr
    result = cluster.run("release", "later")
    assert result.stdout == "Job team-a/later: resumed: its controller makes its pods.\n"
    until(cluster, "later", "Running")
    cluster.do(lambda: cluster.playground.delete("jobs.batch", "team-a", "later"))
    cluster.put(suspended({"kueue.x-k8s.io/queue-name": "q"}))
    result = cluster.run("release", "later")
    assert result.exit_code == 1 and "suspended by Kueue" in result.stderr


@pytest.mark.parametrize("verb", ["hold", "cancel", "release"])
@pytest.mark.slow
def test_what_cannot_be_held_or_cancelled_is_refused(cluster: CommandCluster, verb: str) -> None:
    more = ["-y"] if verb == "cancel" else []
    cluster.put(bare("other", scheduler="default-scheduler"))
    start(cluster, "ended", run_seconds="0.1")
    until(cluster, "ended", "Succeeded")
    result = cluster.run(verb, "other", *more)
    expected = {
        "hold": "belongs to the scheduler default-scheduler: only dovetail reads holds",
        "cancel": "belongs to the scheduler default-scheduler: --any-scheduler cancels it all the same",
        "release": "Pod team-a/other is not held",
    }
    assert result.exit_code == 1 and expected[verb] in result.stderr
    cluster.eventually(
        lambda: cluster.get("jobs.batch", "ended"), lambda job: "completionTime" in (job or {})["status"]
    )
    result = cluster.run(verb, "ended", *more)
    expected = {"hold": "has ended", "cancel": "there is nothing to cancel", "release": "is not held"}
    assert result.exit_code == 1 and expected[verb] in result.stderr
    start(cluster, "runs")
    until(cluster, "runs", "Running")
    if verb == "hold":
        assert "what runs cannot be held; `dovetail cancel` ends it" in cluster.run("hold", "runs").stderr


def test_a_missing_right_to_hold_is_named(cluster: CommandCluster) -> None:
    waits(cluster, "train")
    message = 'pods is forbidden: User "ada" cannot patch resource "pods" in API group "" in the namespace "team-a"'
    cluster.do(
        lambda: cluster.playground.faults.add(Fault("answer", "PATCH", "pods", times=9, status=403, message=message))
    )
    result = cluster.run("hold", "train")
    assert result.exit_code == 1
    assert "user ada has no right to patch pods in namespace team-a: an admin can grant it" in result.stderr


# cancel


def test_a_job_is_cancelled_with_its_pods_and_its_service(cluster: CommandCluster) -> None:
    start(cluster, "train", "--nodes", "2")
    until(cluster, "train", "Running", "Running")
    result = cluster.run("cancel", "train")
    assert result.exit_code == 2 and "nobody can be asked here: --yes cancels without a question" in result.stderr
    assert "Job team-a/train: 2 pods run" in result.stderr
    result = cluster.run("cancel", "train", "-y")
    assert (result.exit_code, result.stdout) == (0, "Job team-a/train: cancelled.\n")
    cluster.eventually(lambda: [*cluster.names("pods"), *cluster.names("services")], lambda names: names == [])


def test_the_name_of_a_pod_cancels_its_job_and_that_of_a_gang_its_pods(cluster: CommandCluster) -> None:
    start(cluster, "train")
    until(cluster, "train", "Running")
    (name,) = cluster.names("pods")
    assert cluster.run("cancel", f"pod/{name}", "-y").stdout == "Job team-a/train: cancelled.\n"
    for pod in ("x", "y"):
        cluster.put(bare(pod, {"dovetail.dev/gang": "pair", "dovetail.dev/gang-min": "2"}))
    assert cluster.run("cancel", "pair", "-y").stdout == "Gang team-a/pair: cancelled.\n"
    cluster.eventually(lambda: cluster.names("pods"), lambda names: names == [])


def test_jobs_are_cancelled_by_label_and_by_queue(cluster: CommandCluster) -> None:
    for queue in ("research", "product"):
        cluster.put({"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": {"name": queue}})
    for name, queue in (("a", "research"), ("b", "product"), ("c", "")):
        start(cluster, name, *(["-q", queue] if queue else []), "--user", f"user-{name}")
    cluster.put(bare("other", scheduler="default-scheduler"))
    result = cluster.run("cancel", "-l", "dovetail.dev/user=user-a,!gone", "-y")
    assert result.stdout == "Job team-a/a: cancelled.\n", result.output
    assert cluster.run("cancel", "--all", "-q", "product", "-y").stdout == "Job team-a/b: cancelled.\n"
    result = cluster.run("cancel", "--all", "-q", "product", "-y")
    assert (result.exit_code, result.stdout) == (
        0,
        "There is no unfinished job of queue product in namespace team-a.\n",
    )
    # Those that name no queue are in that of their namespace.
    assert cluster.run("cancel", "--all", "-q", "default", "-y").stdout == "Job team-a/c: cancelled.\n"
    assert cluster.run("cancel", "--all", "-y").stdout.startswith("There is no unfinished job in namespace")
    assert cluster.run("cancel", "--all", "--any-scheduler", "-y").stdout == "Pod team-a/other: cancelled.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name jobs, or use -l KEY=VALUE or --all"),
        (["x", "--all"], "name jobs, or use -l KEY=VALUE or --all"),
        (["-l", "a=b", "--all"], "name jobs, or use -l KEY=VALUE or --all"),
        (["x", "-q", "research"], "--queue goes with --all"),
        (["-l", "a=b,,c"], "is not a label requirement"),
        (["nothing", "-y"], "there is no job or pod 'nothing' in namespace team-a"),
        (["team-b/nothing", "-y"], "there is no job or pod 'nothing' in namespace team-b"),
    ],
)
@pytest.mark.slow
def test_bad_input_cancels_nothing(cluster: CommandCluster, arguments: list[str], message: str) -> None:
    result = cluster.run("cancel", *arguments)
    assert result.exit_code in (1, 2) and message in result.output, result.output


@pytest.mark.slow
def test_a_closed_pipe_does_not_keep_jobs_from_being_cancelled(cluster: CommandCluster) -> None:
    for name in ("a", "b", "c"):
        start(cluster, name)
    process = cluster.begin("cancel", "-y", "--all")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 141
    assert cluster.names("jobs.batch") == []


def test_what_was_held_is_printed_although_the_next_one_fails(cluster: CommandCluster) -> None:
    waits(cluster, "late")
    result = cluster.run("hold", "late", "full")
    assert result.exit_code == 1 and "nothing of Job team-a/full waits" in result.stderr
    assert result.stdout == "Job team-a/late: held, 1 pod waits.\n"


def test_two_objects_of_one_name_need_a_kind(cluster: CommandCluster) -> None:
    cluster.put(JOB_SETS)
    start(cluster, "train")
    start(cluster, "train", "--nodes", "2", "--kind", "jobset")
    result = cluster.run("events", "train")
    assert result.exit_code == 1 and "'train' names 2 objects: write job/train or jobset/train" in result.stderr
    assert cluster.run("events", "job/train").exit_code == 0
    assert "JobSet team-a/train" in cluster.run("events", "jobset/train").stdout


# events


def test_the_life_of_a_job_and_of_one_that_is_gone(cluster: CommandCluster) -> None:
    start(cluster, "train", "--nodes", "2", run_seconds="0.1")
    until(cluster, "train", "Succeeded", "Succeeded")
    text = cluster.eventually(lambda: cluster.run("events", "train").stdout, lambda text: "has succeeded" in text)
    assert text.splitlines()[0].split() == ["time", "(UTC)", "after", "step", "pods", "what"]
    answer = json.loads(cluster.run("events", "train", "-o", "json").stdout)
    assert (answer["job"], answer["state"], answer["pods"]) == ("team-a/train", "succeeded", 2)
    steps = [step["step"] for step in answer["steps"]]
    assert [one for one in steps if one != "refused"] == ["created", "pods created", "bound", "started", "ended"]
    result = cluster.run("events", "gone")
    assert result.exit_code == 1 and "there is no job or pod 'gone'" in result.stderr


# without a scheduler


@pytest.mark.slow
def test_without_a_scheduler_that_is_stated_and_jobs_are_held_and_cancelled(tmp_path: Path) -> None:
    with command_cluster(tmp_path, node("gpu-1")) as cluster:
        start(cluster, "train")
        until(cluster, "train", "Pending")
        result = cluster.run("wait", "train", "--timeout", "1s")
        assert (result.exit_code, result.stderr.splitlines()[0]) == (
            124, "Job team-a/train: 1 pod waits: no scheduler has tried it yet"
        )  # fmt: skip
        assert (
            "1 pod of Job team-a/train has not started: no scheduler has tried it yet"
            in cluster.run("logs", "train").stderr
        )
        assert "Not known: why it waits, as no scheduler has tried it yet." in cluster.run("events", "train").stdout
        assert cluster.run("hold", "train").exit_code == 0
        assert cluster.run("release", "train").exit_code == 0
        assert cluster.run("cancel", "-y", "train").stdout == "Job team-a/train: cancelled.\n"
