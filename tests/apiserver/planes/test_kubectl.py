# SPDX-License-Identifier: Apache-2.0
"""What the owner of a plane types: the real kubectl against a plane."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from dovetail.apiserver.planes.host import HostOptions, PlaneHost
from tests.apiserver.planes.certificates import self_signed
from tools.controlplane import binaries

pytestmark = pytest.mark.plane
Kubectl = Callable[..., Awaitable[str]]

POD = """
apiVersion: v1
kind: Pod
metadata: {name: one, labels: {app: one}}
spec:
  containers:
  - name: main
    image: registry.example/none
    resources: {limits: {nvidia.com/gpu: "2"}}
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  completions: 2
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: registry.example/none}]
"""


class KubectlError(Exception):
    """kubectl failed, with what it printed."""


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    """Runs kubectl on a plane, with the kubeconfig that its owner has. Raises KubectlError."""
    context, certificate = self_signed(tmp_path)
    host = PlaneHost(tmp_path / "planes", HostOptions(ssl_context=context, idle_s=0.2))
    await host.start()
    authority = {"certificate-authority-data": base64.b64encode(certificate).decode()}
    await host.create("team", "one")
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "plane",
        "clusters": [{"name": "plane", "cluster": authority | {"server": host.url_of("team", "one")}}],
        "users": [{"name": "agent", "user": {"token": await host.issue_token("team", "one")}}],
        "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "agent"}}],
    }  # fmt: skip
    await asyncio.to_thread((tmp_path / "kubeconfig").write_text, yaml.safe_dump(config))
    environment = os.environ | {
        "KUBECONFIG": str(tmp_path / "kubeconfig"), "KUBECACHEDIR": str(tmp_path / "cache"), "KUBERC": "off",
    }  # fmt: skip

    async def run(*arguments: str, text: str = "") -> str:
        process = await asyncio.create_subprocess_exec(
            binaries.build(print) / "kubectl", *arguments, env=environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = await process.communicate(text.encode())
        if process.returncode:
            raise KubectlError(errors.decode())
        return output.decode()

    yield run
    await host.stop()


async def test_apply_get_describe_label_and_delete(kubectl: Kubectl) -> None:
    assert await kubectl("apply", "-f-", text=POD) == "pod/one created\n"
    assert await kubectl("apply", "-f-", text=POD) == "pod/one unchanged\n"
    assert "pod/one configured" in await kubectl("apply", "-f-", text=POD.replace("app: one", "app: two"))
    header, row = (await kubectl("get", "pods")).splitlines()
    assert header.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["one", "0/1", "Pending", "0"]
    described = await kubectl("describe", "pod", "one")
    assert "nvidia.com/gpu:  2" in described and "app=two" in described
    await kubectl("label", "pod", "one", "team=red")
    assert "one" in await kubectl("get", "pods", "-l", "team in (red, blue)", "-o", "name")
    assert "pod/one" in await kubectl("get", "all", "-o", "name")
    assert 'pod "one" deleted' in await kubectl("delete", "pod", "one", "--wait")
    assert await kubectl("get", "pods", "-o", "name") == ""


async def test_server_side_apply_shows_a_conflict(kubectl: Kubectl) -> None:
    assert "pod/one serverside-applied" in await kubectl("apply", "--server-side", "-f-", text=POD)
    other = POD.replace("app: one", "app: two")
    with pytest.raises(KubectlError, match=r"conflict with \"kubectl\".*\n.*\.metadata\.labels\.app"):
        await kubectl("apply", "--server-side", "--field-manager=other", "-f-", text=other)
    forced = ("apply", "--server-side", "--field-manager=other", "--force-conflicts", "-f-")
    assert "pod/one serverside-applied" in await kubectl(*forced, text=other)


async def test_a_job_is_waited_for_and_takes_its_pods_along(kubectl: Kubectl) -> None:
    assert await kubectl("apply", "-f-", text=JOB) == "job.batch/train created\n"
    waiting = asyncio.create_task(kubectl("wait", "--for=condition=Complete", "job/train", "--timeout=60s"))
    await kubectl("wait", "--for=create", "pod", "-l", "job-name=train", "--timeout=60s")
    done = json.dumps({"status": {"phase": "Succeeded"}})
    for pod in (await kubectl("get", "pods", "-l", "job-name=train", "-o", "name")).split():
        await kubectl("patch", pod, "--subresource=status", f"-p={done}")
    assert await waiting == "job.batch/train condition met\n"
    assert (await kubectl("get", "job", "train")).splitlines()[1].split()[:3] == ["train", "Complete", "2/2"]
    assert "Complete" in await kubectl("describe", "job", "train")
    await kubectl("delete", "job", "train")
    assert await kubectl("get", "pods", "-o", "name") == ""


async def test_namespaces_are_the_planes_own(kubectl: Kubectl) -> None:
    namespace = json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}})
    await kubectl("create", "-f-", text=namespace)
    await kubectl("apply", "-n", "mine", "-f-", text=POD)
    assert await kubectl("get", "namespaces", "-o", "name") == "namespace/default\nnamespace/mine\n"
    assert (await kubectl("get", "pods", "-A", "--no-headers")).split()[:2] == ["mine", "one"]
    assert "deleted" in await kubectl("delete", "namespace", "mine", "--wait")
    assert await kubectl("get", "pods", "-A", "-o", "name") == ""
    with pytest.raises(KubectlError, match="this namespace may not be deleted"):
        await kubectl("delete", "namespace", "default")


async def test_what_is_not_served_has_a_clear_error(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f-", text=POD)
    with pytest.raises(KubectlError, match="pods/log is not served here: no kubelet can be reached"):
        await kubectl("logs", "one")
    with pytest.raises(KubectlError, match="not served here"):
        await kubectl("exec", "one", "--", "true")
    with pytest.raises(KubectlError, match='the server doesn\'t have a resource type "nodes"'):
        await kubectl("get", "nodes")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("pod.spec.containers.resources", ["FIELDS:", "limits", "requests"]),
        ("job.spec", ["completions", "parallelism", "template"]),
        ("configmap", ["KIND:       ConfigMap", "data", "metadata"]),
        ("podgroup.spec", ["schedulingPolicy"]),
    ],
)
async def test_kinds_are_explained(kubectl: Kubectl, path: str, shown: list[str]) -> None:
    explained = await kubectl("explain", path)
    assert all(text in explained for text in shown)


async def test_the_kinds_are_listed(kubectl: Kubectl) -> None:
    names = (await kubectl("api-resources", "-o", "name")).split()
    assert {"pods", "jobs.batch", "podgroups.scheduling.k8s.io"} <= set(names)
    assert "nodes" not in names
    assert "playground" not in await kubectl("version", "-o", "json")
