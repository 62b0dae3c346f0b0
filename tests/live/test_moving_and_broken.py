# SPDX-License-Identifier: Apache-2.0
"""Pods that are moved so that others fit, and gangs of which a pod failed for good, with real owners and a real API."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.core.policy import Policy
from tests.live.conftest import Cluster, eventually, stays

WITH_JOBS = pytest.mark.parametrize("cluster", ["playground"], indirect=True)
"""Jobs have a controller there, and pods that are evicted end."""


async def job(cluster: Cluster, name: str, gpus: int, pods: int = 1, **annotations: str) -> None:
    """A Job whose pods run until they are deleted."""
    template: dict[str, Any] = cluster.pod_document("x", gpus)
    spec = template["spec"] | {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    meta = {"annotations": {f"dovetail.dev/{key}": value for key, value in annotations.items()}}
    await cluster.create(
        f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs",
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": cluster.namespace},
            "spec": {"parallelism": pods, "completions": pods, "template": {"metadata": meta, "spec": spec}},
        },
    )


def of(bound: dict[str, str], job: str) -> set[str]:
    """The nodes of the pods of a Job."""
    return {node for name, node in bound.items() if name.startswith(f"{job}-")}


@WITH_JOBS
async def test_a_pod_moves_and_the_job_that_waits_starts(cluster: Cluster) -> None:
    a, b = await cluster.node("a", gpus=4), await cluster.node("b", gpus=4)
    policy = Policy(attempts_per_step=64, moves_per_hour=4, tell_again_ms=500)
    async with cluster.scheduler(policy=policy):
        await job(cluster, "r0", 2, movable="true")
        await eventually(cluster.bound, lambda bound: len(bound) == 1)
        await cluster.pod("fill", 2)
        await eventually(cluster.bound, lambda bound: len(bound) == 2)
        await job(cluster, "r1", 2, movable="true")
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 3)
        assert of(bound, "r0") | of(bound, "r1") == {a, b}
        await cluster.delete(cluster.pods_path("fill"))
        await cluster.pod("big", 4)
        bound = await eventually(cluster.bound, lambda bound: "big" in bound and len(bound) == 3)
        assert of(bound, "r0") == of(bound, "r1") != {bound["big"]}
        (moved,) = await eventually(lambda: cluster.events("Moved"), bool)
        assert "it has room elsewhere" in moved["note"]
        assert moved["related"]["name"] == "big"
        await stays(cluster.bound, lambda now: now == bound)


@WITH_JOBS
async def test_without_the_option_no_pod_moves(cluster: Cluster) -> None:
    await cluster.node("a", gpus=4)
    await cluster.node("b", gpus=4)
    async with cluster.scheduler(policy=Policy(attempts_per_step=64, tell_again_ms=500)):
        for name in ("r0", "fill", "r1"):
            await job(cluster, name, 2, movable="true")
            await eventually(cluster.bound, lambda bound, name=name: bool(of(bound, name)))
        await cluster.delete(f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs/fill")
        await cluster.pod("big", 4)
        await cluster.reported("big", "NoNodeFits")
        await stays(cluster.bound, lambda bound: "big" not in bound)


@WITH_JOBS
async def test_the_rest_of_a_gang_goes_when_a_pod_has_failed_for_good(cluster: Cluster) -> None:
    await cluster.node("a")
    await cluster.pod_group("g", 2)
    async with cluster.scheduler(policy=Policy(attempts_per_step=64, broken_deadline_ms=2_000)):
        for number in range(2):
            await cluster.pod(f"p{number}", 4, schedulingGroup={"podGroupName": "g"})
        await eventually(cluster.bound, lambda bound: len(bound) == 2)
        failed = {"status": {"phase": "Failed"}}
        await cluster.patch(f"{cluster.pods_path('p0')}/status", failed)
        (released,) = await eventually(lambda: cluster.events("GangBroken"), bool)
        assert released["regarding"]["name"] == "p1"
        assert "1 failed and are not replaced; 1 are left" in released["note"]
