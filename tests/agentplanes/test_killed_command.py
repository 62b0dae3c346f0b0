# SPDX-License-Identifier: Apache-2.0
"""`dovetail plane serve` is killed again and again while Jobs lease GPUs from the scheduler: each Job completes, each
pod runs once, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import aiohttp
import pytest

from dovetail.agentplanes import names
from dovetail.apiserver.changes import StoreChange
from dovetail.apiserver.objects import Object, condition_of, labels_of, text_at
from tests.agentplanes.on_cluster import AGENT, carried, new_address, secret
from tests.agentplanes.world import job
from tests.forked import Forked
from tests.patience import PATIENCE_S
from tests.scheduler.leased import LEASES, LeasedCluster
from tests.scheduler.scripted import until

KILLS = 6


@contextlib.asynccontextmanager
async def serving(cluster: LeasedCluster, folder: Path) -> AsyncIterator[None]:
    """The command, killed at the end."""
    kubeconfig, before = cluster.playground.kubeconfig(folder / "host.yaml"), secret(cluster)
    with Forked(
        "plane", "serve", f"--kubeconfig={kubeconfig}", f"--state={folder / 'state'}", "--listen=",
        f"--address={new_address()}", "--keep-logs=0", "--log-level=error",
    ) as process:  # fmt: skip
        await until(lambda: secret(cluster) != before or process.poll() is not None)
        yield
        process.kill()
        await process.ended()


async def listed(cluster: LeasedCluster, collection: str) -> list[Object]:
    found = secret(cluster)
    headers = {"Authorization": f"Bearer {found['token']}"}
    url = f"{found['server']}/{collection}"
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as reply:
        items: list[Object] = (await reply.json())["items"]
        return items


async def create(cluster: LeasedCluster, document: Object) -> None:
    found = secret(cluster)
    headers = {"Authorization": f"Bearer {found['token']}"}
    url = f"{found['server']}/apis/batch/v1/namespaces/default/jobs"
    async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=document) as reply:
        assert reply.status == 201, await reply.text()


@pytest.mark.slow
async def test_each_pod_runs_once_whenever_the_command_is_killed(tmp_path: Path) -> None:
    random, ran = Random(1), dict[str, str]()

    def check(change: StoreChange) -> None:
        uid = labels_of(change.object).get(names.POD_UID)
        if uid is not None:
            # By the uid of the endpoint's pod, that of the one pod on the host.
            assert ran.setdefault(uid, change.object["metadata"]["uid"]) == change.object["metadata"]["uid"]

    async with LeasedCluster.opened(AGENT, backend="api", heartbeat="1s") as cluster, cluster.scheduler():
        cluster.playground.store.collection("pods").listeners.append(check)
        for number in range(KILLS):
            async with serving(cluster, tmp_path):
                await create(cluster, job(f"train-{number}", 2, 0.3, pods=2))
                await create(cluster, job(f"prepare-{number}", 0, 0.3))
                await asyncio.sleep(random.random())
        async with serving(cluster, tmp_path):
            for _ in range(int(PATIENCE_S / 0.1)):
                jobs = await listed(cluster, "apis/batch/v1/jobs")
                if all(condition_of(one, "Complete").get("status") == "True" for one in jobs):
                    break
                await asyncio.sleep(0.1)
            assert len(jobs) == 2 * KILLS
            pods = await listed(cluster, "api/v1/pods")
            assert [text_at(pod, "status.phase") for pod in pods] == ["Succeeded"] * 3 * KILLS
            assert len(ran) == 3 * KILLS
            await until(lambda: not carried(cluster))
            await until(
                lambda: all(
                    text_at(lease, "status.state") == "Ended" for lease in cluster.playground.store.list(LEASES)
                )
            )
