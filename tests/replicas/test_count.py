# SPDX-License-Identifier: Apache-2.0
"""The replicas that an autoscaler should set: what the core can place now is the bound."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from prometheus_client import REGISTRY

from dovetail.cli import cli
from dovetail.kube.api.client import Client
from dovetail.kube.api.config import load_config
from dovetail.kube.objects.views import ViewDocument
from dovetail.kube.reading.prometheus_api import PrometheusAccess
from dovetail.kube.reading.views import NotServed, ViewRequest
from dovetail.replicas import count as replica_count
from dovetail.replicas.need import NeedTarget
from dovetail.replicas.run import ReplicasAsked, publish
from dovetail.replicas.workload import named, selector_of
from tests.cli.answers import answer
from tests.kube.reading.engines_served import engines, series
from tests.kube.reading.test_prometheus import served
from tests.replicas.world import cluster, deployment, node, pod, spec

TWO = [pod("llama-a", "n1"), pod("llama-b", "n1")]


def busy(waiting: float, *pods: str) -> list[dict[str, Any]]:
    """Engines of which each has 5 running requests and so many waiting ones."""
    return [
        series(f"vllm:num_requests_{what}", value, name)
        for name in pods or ("llama-a", "llama-b")
        for what, value in (("running", 5), ("waiting", waiting))
    ]


async def counted(config: Path, now: list[dict[str, Any]], *more: str, name: str = "llama") -> Result:
    async with served(engines(now)) as url:
        call = ["serve", "replicas", name, "--requests", "10", "--prometheus", url, "--kubeconfig", str(config)]
        return await asyncio.to_thread(CliRunner().invoke, cli, [*call, *more])


async def count(config: Path, now: list[dict[str, Any]], *more: str, name: str = "llama") -> dict[str, Any]:
    done = await counted(config, now, "-o", "json", *more, name=name)
    assert done.exit_code == 0, done.output
    (found,) = answer(done.stdout, "ReplicaCount")
    assert isinstance(found, dict)
    return found


async def test_no_more_than_what_can_be_placed_now(tmp_path: Path) -> None:
    # One node is full, and of the other three GPUs and then a whole replica are left.
    objects = [node("n1", 8), node("n2", 7), *TWO]
    async with cluster(tmp_path, deployment(2), objects) as config:
        found = await count(config, busy(25))
        assert (found["current"], found["needed"], found["placeable"], found["desired"]) == (2, 6, 3, 3)
        assert found["because"] == "60 requests, 10 for each replica; 3 can be placed now"
        text = (await counted(config, busy(25))).stdout
    assert "serving/llama" in text and "3 can be placed now" in text


async def test_two_workloads_are_not_promised_the_same_gpus(tmp_path: Path) -> None:
    # Room for three more replicas, and each of the two needs two more.
    objects = [node("n1", 8), node("n2", 12), *TWO]
    async with cluster(tmp_path, deployment(2), objects) as config:
        done = await counted(config, busy(15), "deployment/llama-b", "-o", "json")
    assert [one["needed"] for one in answer(done.stdout, "ReplicaCount")] == [4, 4]
    assert [one["desired"] for one in answer(done.stdout, "ReplicaCount")] == [4, 3]


async def test_the_limit_of_the_queue_is_a_bound(tmp_path: Path) -> None:
    meta = {"name": "default", "uid": "q"}
    queue = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "Queue", "metadata": meta, "spec": {"limit": {"gpu": 12}}}
    async with cluster(tmp_path, deployment(2), [node("n1", 64), queue, *TWO]) as config:
        found = await count(config, busy(25))
    assert (found["needed"], found["desired"]) == (6, 3)


async def test_the_rules_of_the_pods_count(tmp_path: Path) -> None:
    objects = [node("n1", 8), node("n2", 64), *TWO]
    picky = deployment(2, nodeSelector={"gpu": "h100"})
    async with cluster(tmp_path, picky, objects) as config:
        assert (await count(config, busy(25)))["desired"] == 2


def test_a_selector_by_expressions_is_asked_as_the_api_has_it() -> None:
    chosen = deployment(1)
    chosen["spec"]["selector"] = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["llama"]}]}
    assert selector_of(chosen) == "app in (llama)"
    chosen["spec"]["selector"]["matchExpressions"] = [
        {"key": "app", "operator": "NotIn", "values": ["a", "b"]}, {"key": "x", "operator": "Exists"},
        {"key": "y", "operator": "DoesNotExist"},
    ]  # fmt: skip
    assert selector_of(chosen) == "app notin (a,b),x,!y"


async def test_fewer_are_needed_and_nothing_is_asked(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    async with cluster(tmp_path, deployment(2), [node("n1", 8), *TWO], asked) as config:
        found = await count(config, busy(0))
    assert (found["needed"], found["placeable"], found["desired"], asked) == (1, None, 1, [])


async def test_while_replicas_wait_no_more_are_asked_for(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    objects = [node("n1", 8), node("n2", 2), *TWO, pod("llama-c")]
    async with cluster(tmp_path, deployment(3), objects, asked) as config:
        found = await count(config, busy(25))
    assert (found["waiting"], found["needed"], found["desired"], asked) == (1, 6, 3, [])
    assert found["because"].endswith("no more now: 1 wait for room")


LEADERS = {"leaderworkerset.sigs.k8s.io/name": "llama", "leaderworkerset.sigs.k8s.io/worker-index": "0"}


async def test_of_a_leader_worker_set_whole_groups_are_placed(tmp_path: Path) -> None:
    groups = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": "llama", "namespace": "serving", "uid": "l"},
        "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": spec()}}},
        "status": {"hpaPodSelector": ",".join(f"{name}={value}" for name, value in LEADERS.items())},
    }  # fmt: skip
    worker = {"leaderworkerset.sigs.k8s.io/name": "llama", "leaderworkerset.sigs.k8s.io/worker-index": "1"}
    group = [pod("llama-0", "n1", **LEADERS), pod("llama-0-1", "n1", **worker)]
    asked: list[dict[str, Any]] = []
    # Three more pods fit, and so one more group of two.
    objects = [node("n1", 8), node("n2", 12), *group]
    async with cluster(tmp_path, groups, objects, asked) as config:
        found = await count(config, busy(35, "llama-0"), name="leaderworkerset/llama")
    assert (found["workload_kind"], found["current"], found["waiting"]) == ("LeaderWorkerSet", 1, 0)
    assert (found["needed"], found["desired"]) == (4, 2)
    pods = [one for one in asked[0]["change"]["objects"] if one["kind"] == "Pod"]
    assert len(pods) == 6 and {one["spec"]["priority"] for one in pods} == {0}


async def test_pods_that_end_are_no_replicas(tmp_path: Path) -> None:
    ending = pod("llama-old", "n1")
    ending["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z"
    done = pod("llama-done", "n1")
    done["status"]["phase"] = "Failed"
    async with cluster(tmp_path, deployment(2), [node("n1", 16), *TWO, ending, done]) as config:
        found = await count(config, busy(0, "llama-a", "llama-b", "llama-old", "llama-done"))
    assert (found["waiting"], found["needed"]) == (0, 1)


async def test_what_is_asked_is_bounded_and_of_the_namespace_alone(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    objects = [node("n1", 8), *(node(f"m{i}", 8) for i in range(50)), *TWO]
    async with cluster(tmp_path, deployment(2), objects, asked) as config:
        found = await count(config, busy(5000), "--max", "500")
    (question,) = asked
    pods = question["change"]["objects"]
    assert len(pods) == 64 and {one["metadata"]["namespace"] for one in pods} == {"serving"}
    assert {one["spec"]["priority"] for one in pods} == {0}
    assert (found["needed"], found["desired"]) == (500, 66)


async def test_without_metrics_there_is_no_number(tmp_path: Path) -> None:
    async with cluster(tmp_path, deployment(2), [node("n1", 8), *TWO]) as config:
        found = await count(config, busy(9, "other"))
    assert (found["needed"], found["desired"]) == (None, None)


async def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    async with cluster(tmp_path, deployment(2), [node("n1", 8)]) as config:
        done = await counted(config, [], "statefulset/other")
        assert (done.exit_code, "StatefulSet serving/other cannot be read" in done.output) == (1, True)
        assert "KIND is deployment" in (await counted(config, [], "cronjob/x")).output
        assert "is no name" in (await counted(config, [], "deployment/..")).output
        assert (await counted(config, [], "--min", "5", "--max", "4")).exit_code == 2


async def test_without_views_the_error_has_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def not_served(client: Client, request: ViewRequest) -> ViewDocument:
        raise NotServed("the API server has no views")

    monkeypatch.setattr(replica_count, "ask_view", not_served)
    async with cluster(tmp_path, deployment(2), [node("n1", 16), *TWO]) as config:
        done = await counted(config, busy(25))
    assert done.exit_code == 1
    assert "the API server has no views; it is there with the option --views of the scheduler" in done.output


def value(name: str) -> float | None:
    return REGISTRY.get_sample_value(f"dovetail_replicas_{name}", {"kind": "Deployment", "workload": "llama"})


async def test_numbers_are_metrics_and_are_withdrawn_where_a_pass_fails(tmp_path: Path) -> None:
    objects = [node("n1", 8), node("n2", 4), *TWO]
    async with cluster(tmp_path, deployment(2), objects) as config:
        async with served(engines(busy(25))) as url, Client(load_config(str(config))) as client:
            asked = ReplicasAsked("serving", (named("llama"),), NeedTarget(10), PrometheusAccess(url))
            await publish(client, asked)
            assert [value(one) for one in ("current", "waiting", "needed", "placeable", "desired")] == [2, 0, 6, 3, 3]
            before = value("errors_total") or 0.0
        async with Client(load_config(str(config))) as client:
            await publish(client, asked)
    assert [value(one) for one in ("current", "needed", "desired")] == [None] * 3
    assert value("errors_total") == before + 1
