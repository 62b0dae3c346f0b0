# SPDX-License-Identifier: Apache-2.0
"""`dovetail drain` as a user runs it, beside the process of the scheduler, Jobs with their controller and a real API.

No kubelet runs: `tended` does for the pods what kubelets would.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dovetail.kube.api.errors import ApiError, NotFound
from tests.forked import Forked, run_beside
from tests.live.conftest import Cluster, eventually, stays
from tests.live.test_moves_on_the_real_plane import LOOK_EVERY_S, ON_THE_PLANE, READY, command, of, remove, workload


@asynccontextmanager
async def tended(cluster: Cluster, ends: asyncio.Event) -> AsyncIterator[None]:
    """Pods that are bound run and are ready; pods that are deleted end, once they may."""

    async def tend() -> None:
        while True:
            for pod in (await cluster.get(cluster.pods_path()))["items"]:
                path = cluster.pods_path(pod["metadata"]["name"])
                with suppress(ApiError):
                    if pod["metadata"].get("deletionTimestamp"):
                        if ends.is_set():
                            await cluster.patch(f"{path}/status", {"status": {"phase": "Failed"}})
                            await cluster.delete(path)
                    elif pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
                        await cluster.patch(f"{path}/status", {"status": READY})
            await asyncio.sleep(LOOK_EVERY_S)

    task = asyncio.create_task(tend())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Drain:
    """The command, with the rights of an admin."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    def begin(self, *arguments: str) -> Forked:
        return Forked("drain", "--kubeconfig", str(self._kubeconfig), *arguments)

    async def run(self, *arguments: str) -> str:
        """What it prints."""
        done = await run_beside("drain", "--kubeconfig", str(self._kubeconfig), *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


async def job(
    cluster: Cluster, name: str, gpus: int, annotations: dict[str, str] | None = None, *, pods: int = 1, node: str = ""
) -> None:
    path, document = workload(cluster, "Job", name, gpus, **(annotations or {}))
    document["spec"] |= {"parallelism": pods, "completions": pods}
    if node:
        document["spec"]["template"]["spec"]["nodeSelector"] |= {"kubernetes.io/hostname": node}
    await cluster.create(path, document)


async def maintenance(cluster: Cluster, node: str) -> dict[str, Any]:
    try:
        found = await cluster.get(f"/apis/dovetail.dev/v1alpha1/gpunodes/{node}")
    except NotFound:
        return {}
    asked: dict[str, Any] = found.get("spec", {}).get("maintenance", {})
    return asked


def times(text: str) -> str:
    """The text without spans of time, and with single spaces."""
    return re.sub(r"\bin (\d+ (h|min|s) ?)+", "in T", re.sub(r" +", " ", text))


@ON_THE_PLANE
async def test_a_node_gets_empty_with_room_held_elsewhere_and_no_job_is_cut(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    drain, ends = Drain(request.getfixturevalue("deployed_plane").kubeconfig), asyncio.Event()
    a, space = await cluster.node("a", gpus=8), cluster.namespace
    async with tended(cluster, ends), command(request):
        await job(cluster, "train", 2, {"checkpoint-interval": "1s"})
        await job(cluster, "sweep", 1, {"max-runtime": "30m"}, pods=2)
        await job(cluster, "notebook", 1)
        bound = await eventually(cluster.bound, lambda bound: len(bound) == 4)
        b = await cluster.node("b", gpus=4)
        (train,) = [name for name in bound if name.startswith("train-")]
        (notebook,) = [name for name in bound if name.startswith("notebook-")]

        # What is affected, and when it will be empty; nothing is written.
        lines = times(await drain.run(a, "--wait-checkpoint", "--dry-run")).splitlines()
        assert any(line.startswith(f"{a} {space}/{train} default 2 moves in T") for line in lines), lines
        assert f"4 pods of 3 jobs ({space}/notebook, {space}/sweep, {space}/train) in 1 queue" in " ".join(lines)
        assert f"{a}: it is not known when {space}/{notebook} will leave." in lines
        assert await maintenance(cluster, a) == {}

        with drain.begin(a, "--wait-checkpoint", "--reason", "new power supply") as process:
            # The pod saves its work, and is evicted. While it ends, its room elsewhere is not for others.
            await eventually(lambda: deleted(cluster), lambda names: names == [train])
            asked = await maintenance(cluster, a)
            assert (asked["drain"], asked["reason"], "start" in asked) == (
                "WaitForCheckpoint",
                "new power supply",
                False,
            )
            await cluster.pod("late", 3)
            await cluster.reported("late", "NoNodeFits")
            ends.set()
            await eventually(cluster.bound, lambda bound: of(bound, "train") == {b})
            await stays(cluster.bound, lambda bound: "late" not in bound and of(bound, "notebook") == {a})
            # A job that fits on no other node waits, as it would be cut.
            await job(cluster, "large", 4, node=a)
            await eventually(lambda: reasons(cluster, "large"), lambda found: "in maintenance" in found)
            await end(cluster, "sweep", "notebook")
            status = await process.ended()
        # The plane of all tests has the API of views, and nobody answers it here.
        shown = [line for line in process.stderr.splitlines() if not line.startswith("note: ")]
        assert status == 0 and shown[0].startswith(f"{a}: in maintenance."), shown
        assert shown[1].startswith(f"{a}: 4 pods left: ") and shown[-1] == f"{a}: empty"

        await cluster.delete(cluster.pods_path("late"))

        # In use again: the job that waited starts.
        assert await drain.run(a, "--undo") == f"{a}: in use again\n"
        await eventually(cluster.bound, lambda bound: of(bound, "large") == {a})
        await end(cluster, "large")

        # Until a start in an hour shorter jobs run.
        start = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        assert f"{a}: it is empty now." in await drain.run(a, "--start", start, "--no-wait")
        assert (await maintenance(cluster, a))["start"] == start
        await job(cluster, "long", 1, {"max-runtime": "2h"}, node=a)
        await job(cluster, "short", 1, {"max-runtime": "30m"}, node=a)
        await eventually(cluster.bound, lambda bound: of(bound, "short") == {a})
        await eventually(lambda: reasons(cluster, "long"), lambda found: "in maintenance" in found)
        answer = json.loads(await drain.run(a, "--start", start, "--dry-run", "-o", "json"))
        (node,) = answer["nodes"]
        assert [one["what"] for one in node["pods"]] == ["ends"] and node["empty_ms"] > 0
        await drain.run(a, "--undo")
        await eventually(cluster.bound, lambda bound: of(bound, "long") == {a})
        await remove(cluster)


async def deleted(cluster: Cluster) -> list[str]:
    pods = (await cluster.get(cluster.pods_path()))["items"]
    return [pod["metadata"]["name"] for pod in pods if pod["metadata"].get("deletionTimestamp")]


async def reasons(cluster: Cluster, name: str) -> str:
    """Why the pods of a Job wait."""
    pods = (await cluster.get(cluster.pods_path()))["items"]
    names = [pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"].startswith(f"{name}-")]
    return " ".join([str((await cluster.condition(one)).get("message", "")) for one in names])


async def end(cluster: Cluster, *jobs: str) -> None:
    """Delete Jobs, and wait until their pods are gone."""
    for name in jobs:
        path = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs/{name}"
        await cluster.client.request("DELETE", path, {"propagationPolicy": "Background"})
    await eventually(cluster.bound, lambda bound: not any(of(bound, name) for name in jobs))
