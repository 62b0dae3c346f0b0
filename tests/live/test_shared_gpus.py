# SPDX-License-Identifier: Apache-2.0
"""GPUs that pods share: memory is promised once, by this scheduler and by the next."""

from __future__ import annotations

from tests.live.conftest import Cluster, eventually, stays

SHARED = {
    "nvidia.com/gpu.product": "NVIDIA-A10-SHARED",
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.memory": "24000",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
}


async def devices(cluster: Cluster, name: str) -> str:
    annotations = (await cluster.get(cluster.pods_path(name)))["metadata"]["annotations"]
    return str(annotations["dovetail.dev/devices"])


async def test_memory_of_shared_gpus_is_promised_once_also_after_a_restart(cluster: Cluster) -> None:
    node = await cluster.node("a", gpus=8, labels=SHARED)
    for name, memory in (("p1", "16000Mi"), ("p2", "15000Mi")):
        await cluster.pod(name, annotations={"dovetail.dev/gpu-memory": memory})
    async with cluster.scheduler():
        await eventually(cluster.bound, lambda bound: bound == {"p1": node, "p2": node})
        assert {await devices(cluster, "p1"), await devices(cluster, "p2")} == {"0", "1"}
        await cluster.pod("p3", annotations={"dovetail.dev/gpu-memory": "9000Mi"})
        await eventually(cluster.bound, lambda bound: "p3" in bound)
        assert await devices(cluster, "p3") == await devices(cluster, "p2")
    async with cluster.scheduler():
        await cluster.pod("p4", annotations={"dovetail.dev/gpu-memory": "8001Mi"})
        reported = await cluster.reported("p4", "NoNodeFits")
        assert "1 node(s) had no GPU with the requested share free (8001 MiB of a GPU)" in reported
        await cluster.pod("p5", annotations={"dovetail.dev/gpu-memory": "8000Mi"})
        await eventually(cluster.bound, lambda bound: "p5" in bound)
        assert await devices(cluster, "p5") == await devices(cluster, "p1")
        await cluster.delete(cluster.pods_path("p5"))
        await stays(cluster.bound, lambda bound: "p4" not in bound, for_s=0.3)
        await cluster.delete(cluster.pods_path("p3"))
        await eventually(cluster.bound, lambda bound: bound.get("p4") == node)


async def test_a_request_that_no_shared_gpu_satisfies_is_refused_at_once(cluster: Cluster) -> None:
    await cluster.node("a", gpus=8, labels=SHARED)
    await cluster.pod("large", annotations={"dovetail.dev/gpu-memory": "24001Mi"})
    await cluster.pod("tenant", annotations={"dovetail.dev/gpu-isolation": "memory"})
    await cluster.pod("wide", 3)
    async with cluster.scheduler():
        assert "at most 24000 MiB for one pod" in await cluster.reported("large", "NoNodeFits")
        assert "less isolation than the pod demands" in await cluster.reported("tenant", "NoNodeFits")
        assert "no GPU with the requested share free (a replica's part of each of 3 GPUs)" in await cluster.reported(
            "wide", "NoNodeFits"
        )
