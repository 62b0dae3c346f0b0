# SPDX-License-Identifier: Apache-2.0
"""The everyday verbs as a user runs them, beside the process of the scheduler, the Job controller and a real API: with
the role `edit` in one namespace, and no right anywhere else.

No kubelet runs: `kubelets` do for the pods what kubelets would.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_beside
from tests.live.conftest import Cluster, eventually
from tests.live.test_moves_on_the_real_plane import ON_THE_PLANE, command, kubelets

IMAGE = ("--image", "registry.example/train:1.4")


class User:
    """Runs commands with the kubeconfig of a user."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.kubeconfig = str(kubeconfig)
        self._fixed = ("--kubeconfig", self.kubeconfig, "-n", namespace)

    async def run(self, verb: str, *arguments: str, code: int = 0, fixed: tuple[str, ...] | None = None) -> str:
        """What it prints, on both channels."""
        own = self._fixed if fixed is None else fixed
        at = arguments.index("--") if "--" in arguments else len(arguments)
        done = await run_beside(*verb.split(), *own, *arguments[:at], *arguments[at:])
        assert done.returncode == code, done
        return done.stdout + done.stderr


async def user_of(request: pytest.FixtureRequest, cluster: Cluster) -> User:
    """One with the role edit in the namespace of the test."""
    plane = request.getfixturevalue("deployed_plane")
    name, where = f"user-{cluster.name}", f"--namespace={cluster.namespace}"
    await asyncio.to_thread(plane.kubectl, "create", "rolebinding", name, "--clusterrole=edit", f"--user={name}", where)
    return User(plane.kubeconfig_for(name), cluster.namespace)


async def pods_of(cluster: Cluster, job: str) -> list[dict[str, Any]]:
    label = f"labelSelector=batch.kubernetes.io/job-name={job}"
    found: list[dict[str, Any]] = (await cluster.get(f"{cluster.pods_path()}?{label}"))["items"]
    return found


@ON_THE_PLANE
async def test_a_user_of_one_namespace_runs_follows_and_cancels_jobs(
    request: pytest.FixtureRequest, cluster: Cluster
) -> None:
    await cluster.node("a", gpus=8)
    user = await user_of(request, cluster)
    async with command(request), kubelets(cluster):
        out = await user.run("run", "first", *IMAGE, "--gpus", "8", "--", "sleep", "60")
        assert f"Job {cluster.namespace}/first created: 1 pod with 8 GPUs." in out
        await user.run("wait", "first", "--for", "started")
        out = await user.run("run", "train", *IMAGE, "--gpus", "4", "--nodes", "2", "--", "torchrun", "t.py")
        assert "It is an indexed Job with a Service, as the cluster serves no JobSets" in out
        await eventually(lambda: pods_of(cluster, "train"), lambda pods: len(pods) == 2)
        out = await user.run("hold", "train")
        assert out == f"Job {cluster.namespace}/train: held, 2 pods wait.\n"
        out = await user.run("cancel", "first", "-y")
        assert out == f"Job {cluster.namespace}/first: cancelled.\n"
        answer = await eventually(
            lambda: user.run("events", "train", "-o", "json"), lambda text: "Held: the job is held" in text
        )
        assert json.loads(answer)["state"] == "held"
        assert "The time is over" in await user.run("wait", "train", "--timeout", "2s", code=124)
        await user.run("release", "train")
        await user.run("wait", "train", "--for", "started")
        steps = [one["step"] for one in json.loads(await user.run("events", "train", "-o", "json"))["steps"]]
        assert steps[:2] == ["created", "pods created"] and "bound" in steps
        for pod in await pods_of(cluster, "train"):
            await cluster.patch(
                f"{cluster.pods_path(pod['metadata']['name'])}/status", {"status": {"phase": "Succeeded"}}
            )
        out = await user.run("wait", "train")
        assert out.rstrip().endswith(f"Job {cluster.namespace}/train: succeeded")
        out = await user.run("cancel", "train", "-y", code=1)
        assert "has ended (succeeded): there is nothing to cancel" in out
        assert "no unfinished job" in await user.run("cancel", "--all", "-y")
        service = f"/api/v1/namespaces/{cluster.namespace}/services/train"
        assert (await cluster.get(service))["spec"]["clusterIP"] == "None"


@ON_THE_PLANE
async def test_a_right_that_is_missing_is_named(request: pytest.FixtureRequest, cluster: Cluster) -> None:
    user = await user_of(request, cluster)
    name, elsewhere = f"user user-{cluster.name}", ("--kubeconfig", user.kubeconfig, "-n", "default")
    out = await user.run("run", "t", *IMAGE, code=1, fixed=elsewhere)
    assert f"{name} has no right to create jobs.batch in namespace default: an admin can grant it" in out
    out = await user.run("events", "t", code=1, fixed=elsewhere)
    assert f"{name} has no right to" in out and "in namespace default" in out
    out = await user.run("queue stop", "research", code=1, fixed=elsewhere[:2])
    assert f"{name} has no right to list queues.dovetail.dev: an admin can grant it" in out


@ON_THE_PLANE
async def test_the_api_server_takes_every_object_that_run_makes(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path
) -> None:
    """A dry run of the server: it validates and defaults them."""
    user = await user_of(request, cluster)
    for gpus in ("0", "8xH100", "1xmig-3g.20gb", "0.5"):
        for nodes in ("1", "4"):
            more = ("--time", "4h", "--cpu", "8", "--memory", "64Gi", "-e", "A=b", "--resource", "rdma/hca=1")
            file = tmp_path / "job.yaml"
            file.write_text(
                await user.run("run", "t", *IMAGE, "--gpus", gpus, "--nodes", nodes, *more, "--dry-run", "--", "a")
            )
            out = await user.run("submit", str(file), "--dry-run")
            assert out.splitlines()[0] == f"Job {cluster.namespace}/t: would be created."


@ON_THE_PLANE
async def test_an_admin_stops_drains_and_resumes_a_queue(request: pytest.FixtureRequest, cluster: Cluster) -> None:
    plane = request.getfixturevalue("deployed_plane")
    await cluster.node("a", gpus=8)
    user = await user_of(request, cluster)
    admin, fixed = User(plane.kubeconfig, cluster.namespace), ("--kubeconfig", str(plane.kubeconfig))
    name = f"q-{cluster.name}"
    assert await admin.run("queue create", name, "--weight", "2", fixed=fixed) == f"Queue {name} created.\n"
    path = f"/apis/dovetail.dev/v1alpha1/queues/{name}"
    try:
        async with command(request), kubelets(cluster):
            await user.run("run", "runs", *IMAGE, "--gpus", "8", "-q", name, "--", "sleep", "60")
            await user.run("wait", "runs", "--for", "started")
            out = await admin.run("queue stop", name, fixed=fixed)
            assert out.startswith(f"Queue {name} is stopped: ")
            assert (await cluster.get(path))["spec"]["stop"] == "Hold"
            await user.run("run", "waits", *IMAGE, "--gpus", "1", "-q", name, "--", "sleep", "60")
            out = await eventually(lambda: user.run("events", "waits"), lambda text: "QueueStopped" in text)
            out = await admin.run("queue drain", name, "--evict", fixed=fixed)
            assert "is evicted" in out and out.rstrip().endswith(f"Nothing runs in queue {name}.")
            out = await admin.run("queue resume", name, fixed=fixed)
            assert out.startswith(f"Queue {name} is resumed: ")
            await user.run("wait", "waits", "--for", "started")
    finally:
        await cluster.delete(path)
