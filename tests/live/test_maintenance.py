# SPDX-License-Identifier: Apache-2.0
"""A node in maintenance gets empty, with the whole scheduler, real owners and a real API."""

from __future__ import annotations

import pytest
import yaml

from dovetail.core.policy import Policy
from tests.live.conftest import Cluster, eventually, stays
from tests.live.test_moving_and_broken import WITH_JOBS, job, of
from tests.paths import ROOT

POLICY = Policy(attempts_per_step=64, tell_again_ms=500)


async def maintain(cluster: Cluster, node: str, drain: str) -> None:
    """Put the node into maintenance, as `dovetail drain` does."""
    head = {"apiVersion": "dovetail.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": node}}
    asked = {"id": "1", "by": "user/ada", "drain": drain}
    await cluster.create("/apis/dovetail.dev/v1alpha1/gpunodes", {**head, "spec": {"maintenance": asked}})


@pytest.mark.slow
@WITH_JOBS
async def test_pods_leave_a_node_in_maintenance_and_none_starts_there(cluster: Cluster) -> None:
    definition = yaml.safe_load((ROOT / "deploy/crds/gpunode.yaml").read_text())
    await cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    a = await cluster.node("a", gpus=4)
    async with cluster.scheduler(policy=POLICY):
        await job(cluster, "moves", 2, movable="true")
        await eventually(cluster.bound, lambda bound: of(bound, "moves") == {a})
        b = await cluster.node("b", gpus=4)
        await maintain(cluster, a, "WaitForCheckpoint")
        bound = await eventually(cluster.bound, lambda bound: of(bound, "moves") == {b})
        (drained,) = await eventually(lambda: cluster.events("Drained"), bool)
        assert "is in maintenance" in drained["note"] and "has room elsewhere" in drained["note"]
        await cluster.pod("late", 4)
        assert "1 node(s) in maintenance" in await cluster.reported("late", "NoNodeFits")
        await stays(cluster.bound, lambda now: now == bound)
        await cluster.delete(f"/apis/dovetail.dev/v1alpha1/gpunodes/{a}")
        await eventually(cluster.bound, lambda bound: bound.get("late") == a)
