# SPDX-License-Identifier: Apache-2.0
"""What users see: pods and gangs are placed, and those that are not have a reason."""

from __future__ import annotations

import re

import pytest

from tests.live.conftest import Cluster, eventually, stays

RACK = "dovetail.dev/rack"


async def test_a_pod_is_bound_with_condition_and_event(cluster: Cluster) -> None:
    node = await cluster.node("a")
    await cluster.pod("p", 2)
    async with cluster.scheduler():
        await eventually(cluster.bound, lambda bound: bound == {"p": node})
        condition = await cluster.condition("p")
        assert condition["status"] == "True"
        (event,) = await eventually(lambda: cluster.events("Scheduled"), bool)
        assert event["regarding"]["name"] == "p"
        assert event["note"] == f"Successfully assigned {cluster.namespace}/p to {node}"
        document = await cluster.get(cluster.pods_path("p"))
        assert "dovetail.dev/decision" in document["metadata"]["annotations"]


async def test_a_pod_of_another_scheduler_is_left_alone_and_counted(cluster: Cluster) -> None:
    node = await cluster.node("a")
    await cluster.pod("other", 6, schedulerName="someone-else", nodeName=node)
    await cluster.pod("pending", 1, schedulerName="someone-else")
    await cluster.pod("big", 4)
    await cluster.pod("small", 2)
    async with cluster.scheduler():
        await eventually(cluster.bound, lambda bound: bound == {"other": node, "small": node})
        condition = await eventually(lambda: cluster.condition("big"), bool)
        assert condition["reason"] == "Unschedulable"
        assert "Insufficient nvidia.com/gpu" in condition["message"]
        await stays(cluster.bound, lambda bound: "pending" not in bound, for_s=0.5)


async def test_a_hopeless_pod_gets_never_and_a_waiting_one_not_yet(cluster: Cluster) -> None:
    node = await cluster.node("a")
    await cluster.pod("first", 8)
    async with cluster.scheduler():
        await eventually(cluster.bound, lambda bound: bound == {"first": node})
        await cluster.pod("hopeless", 16)
        await cluster.pod("waiting", 8)
        await cluster.reported("hopeless", "NoNodeFits (Never)")
        await cluster.reported("waiting", "NoNodeFits (NotYet)")
        reported = await eventually(lambda: cluster.events("FailedScheduling"), lambda events: len(events) >= 2)
        assert {event["type"] for event in reported} == {"Warning"}
        await cluster.delete(cluster.pods_path("first"))
        await eventually(cluster.bound, lambda bound: bound == {"waiting": node})


async def test_a_gang_starts_whole_in_one_rack_or_not_at_all(cluster: Cluster) -> None:
    for rack in ("r1", "r2"):
        for number in (1, 2):
            await cluster.node(f"{rack}-{number}", labels={RACK: rack})
    await cluster.pod_group("blocker", 1)
    await cluster.pod("b", 8, schedulingGroup={"podGroupName": "blocker"})
    async with cluster.scheduler():
        (busy,) = (await eventually(cluster.bound, lambda bound: len(bound) == 1)).values()
        await cluster.pod_group("gang", 2, key=RACK)
        await cluster.pod("g-0", 8, schedulingGroup={"podGroupName": "gang"})
        await cluster.reported("g-0", "GangIncomplete")
        await cluster.pod("g-1", 8, schedulingGroup={"podGroupName": "gang"})
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 3)
        assert {bound["g-0"], bound["g-1"]} == {
            f"{cluster.name}-{'r2' if '-r1-' in busy else 'r1'}-{number}" for number in (1, 2)
        }
        group = await eventually(
            lambda: cluster.group("gang"),
            lambda group: any(c["status"] == "True" for c in group.get("status", {}).get("conditions", [])),
        )
        (reported,) = group["status"]["conditions"]
        assert (reported["type"], reported["reason"]) == ("PodGroupInitiallyScheduled", "Scheduled")
        await cluster.pod_group("late", 2, key=RACK)
        for number in range(2):
            await cluster.pod(f"l-{number}", 8, schedulingGroup={"podGroupName": "late"})
        await cluster.reported("l-0", "GangDoesNotFit (NotYet)")
        await stays(cluster.bound, lambda bound: len(bound) == 3, for_s=0.5)
        group = await eventually(lambda: cluster.group("late"), lambda group: group["status"].get("conditions"))
        assert (group["status"]["conditions"][0]["status"], group["status"]["conditions"][0]["reason"]) == (
            "False",
            "Unschedulable",
        )


async def test_an_indexed_job_is_a_gang_by_its_owner(cluster: Cluster) -> None:
    node = await cluster.node("a", gpus=4)
    for name, gpus in (("large", 2), ("small", 1)):
        template = cluster.pod_document("", gpus, restartPolicy="Never")["spec"]
        await cluster.create(
            f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs",
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name, "namespace": cluster.namespace},
                "spec": {
                    "completionMode": "Indexed",
                    "parallelism": 3,
                    "completions": 3,
                    "template": {"spec": template},
                },
            },
        )
    async with cluster.scheduler():
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 3)
        assert {name.split("-")[0] for name in bound} == {"small"}
        assert set(bound.values()) == {node}
        pods = (await cluster.get(cluster.pods_path()))["items"]
        waiting = next(p["metadata"]["name"] for p in pods if p["metadata"]["name"].startswith("large"))
        assert "needs 3 pods" in await cluster.reported(waiting, "GangTooLarge (Never)")


async def test_priority_decides_the_order(cluster: Cluster) -> None:
    node = await cluster.node("a", gpus=1)
    for name, value in (("low", 10), ("high", 1000)):
        await cluster.create(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
             "metadata": {"name": f"{cluster.name}-{name}"}, "value": value},
        )  # fmt: skip
    await cluster.pod("a-low", 1, priorityClassName=f"{cluster.name}-low")
    await cluster.pod("b-high", 1, priorityClassName=f"{cluster.name}-high")
    async with cluster.scheduler():
        await eventually(cluster.bound, lambda bound: bound == {"b-high": node})


async def test_a_gated_pod_is_not_considered_until_its_gate_is_gone(cluster: Cluster) -> None:
    node = await cluster.node("a")
    await cluster.pod("p", 1, schedulingGates=[{"name": "example.com/wait"}])
    async with cluster.scheduler():
        await stays(cluster.bound, lambda bound: not bound, for_s=0.5)
        assert (await cluster.condition("p"))["reason"] == "SchedulingGated"
        await cluster.patch(cluster.pods_path("p"), {"spec": {"schedulingGates": []}})
        await eventually(cluster.bound, lambda bound: bound == {"p": node})


@pytest.mark.parametrize(
    ("annotations", "reported"),
    [
        ({"dovetail.dev/nvlink": "requird"}, "dovetail.dev/nvlink"),
        ({"dovetail.dev/max-runtime": "soon"}, "dovetail.dev/max-runtime"),
        ({"dovetail.dev/topolgy-required": "rack"}, "topology-required"),
        ({"dovetail.dev/gpu-fraction": "1.5"}, "dovetail.dev/gpu-fraction"),
    ],
)
@pytest.mark.slow
async def test_a_bad_annotation_is_reported_and_mended(
    cluster: Cluster, annotations: dict[str, str], reported: str
) -> None:
    node = await cluster.node("a")
    await cluster.pod("p", 1, annotations=annotations)
    async with cluster.scheduler():
        condition = await cluster.reported("p", "InvalidInput (Never)")
        assert reported in condition
        await cluster.patch(cluster.pods_path("p"), {"metadata": {"annotations": dict.fromkeys(annotations)}})
        await eventually(cluster.bound, lambda bound: bound == {"p": node})


async def test_missing_groups_and_queues_are_waited_for(cluster: Cluster) -> None:
    node = await cluster.node("a")
    await cluster.pod("p", 1, schedulingGroup={"podGroupName": "later"})
    await cluster.pod("q", 1, labels={"dovetail.dev/queue": "nobody"})
    async with cluster.scheduler():
        await cluster.reported("p", "GangMissing (NotYet)")
        queue = await cluster.reported("q", "QueueMissing (NotYet)")
        assert "nobody" in queue
        await cluster.pod_group("later", 1)
        await eventually(cluster.bound, lambda bound: bound == {"p": node})


async def test_impossible_gangs_are_never(cluster: Cluster) -> None:
    await cluster.node("a")
    await cluster.pod("p", 1, annotations={f"dovetail.dev/{k}": v for k, v in
                                           (("gang", "g"), ("gang-min", "3"), ("gang-max", "2"))})  # fmt: skip
    async with cluster.scheduler():
        condition = await cluster.reported("p", "InvalidInput (Never)")
        assert "gang-m" in condition


async def test_a_node_without_allocatable_is_named_and_harmless(cluster: Cluster) -> None:
    node = await cluster.node("good", gpus=1)
    await cluster.create(
        "/api/v1/nodes",
        {"apiVersion": "v1", "kind": "Node",
         "metadata": {"name": f"{cluster.name}-bare", "labels": {"test": cluster.name}}},
    )  # fmt: skip
    await cluster.pod("p", 1)
    await cluster.pod("q", 1)
    async with cluster.scheduler():
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 1)
        assert set(bound.values()) == {node}
        left = next(name for name in ("p", "q") if name not in bound)
        condition = await eventually(lambda: cluster.condition(left), bool)
        # Others may have left bare nodes on this plane.
        assert re.search(r"[1-9]\d* node\(s\) whose own object is invalid", condition["message"])
