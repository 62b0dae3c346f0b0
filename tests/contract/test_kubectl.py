# SPDX-License-Identifier: Apache-2.0
"""What people type: kubectl, of the version of the real server, against all servers."""

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from dovetail.playground import Playground
from tools.controlplane import binaries

pytestmark = pytest.mark.plane
Kubectl = Callable[..., Awaitable[str]]

MANIFEST = """
apiVersion: v1
kind: Pod
metadata:
  name: one
  labels: {app: one}
spec:
  schedulerName: nobody
  containers:
  - name: main
    image: registry.example/none
    resources: {limits: {nvidia.com/gpu: "2"}}
---
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata:
  name: one
spec:
  schedulingPolicy: {gang: {minCount: 2}}
"""


@pytest.fixture
async def kubectl(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kubectl]:
    """Runs kubectl in a namespace of its own. Fails the test if kubectl fails."""
    file = tmp_path / "store.sqlite" if server == "sqlite" else None
    playground = Playground(bookmark_interval_s=1.0, file=file)
    if server != "plane":
        await playground.start()
        kubeconfig = playground.kubeconfig(tmp_path / "kubeconfig")
    else:
        kubeconfig = request.getfixturevalue("plane").kubeconfig
    environment = os.environ | {
        "KUBECONFIG": str(kubeconfig), "KUBECACHEDIR": str(tmp_path / "cache"), "KUBERC": "off",
    }  # fmt: skip
    namespace = f"kubectl-{uuid.uuid4().hex[:12]}"

    async def run(*arguments: str, text: str = "") -> str:
        process = await asyncio.create_subprocess_exec(
            binaries.build(print) / "kubectl", f"--namespace={namespace}", *arguments, env=environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = await process.communicate(text.encode())
        assert process.returncode == 0, f"kubectl {' '.join(arguments)}: {errors.decode()}"
        return output.decode()

    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    await run("create", "-f-", text=json.dumps(manifest))
    if server == "plane":
        await run("wait", "--for=create", "serviceaccount/default", "--timeout=60s")
    yield run
    await playground.stop()


async def test_apply_get_describe_and_delete(kubectl: Kubectl) -> None:
    assert await kubectl("apply", "-f-", text=MANIFEST) == "pod/one created\npodgroup.scheduling.k8s.io/one created\n"
    assert (
        await kubectl("apply", "-f-", text=MANIFEST) == "pod/one unchanged\npodgroup.scheduling.k8s.io/one unchanged\n"
    )
    changed = MANIFEST.replace("app: one", "app: two")
    assert "pod/one configured" in await kubectl("apply", "-f-", text=changed)
    header, row = (await kubectl("get", "pods")).splitlines()
    assert header.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["one", "0/1", "Pending", "0"]
    described = await kubectl("describe", "pod", "one")
    assert "nvidia.com/gpu:  2" in described and "app=two" in described
    assert 'pod "one" deleted' in await kubectl("delete", "pod", "one", "--wait")
    assert await kubectl("get", "pods", "-o", "name") == ""


async def test_server_side_apply_and_patch(kubectl: Kubectl) -> None:
    assert "pod/one serverside-applied" in await kubectl("apply", "--server-side", "-f-", text=MANIFEST)
    await kubectl("label", "pod", "one", "team=red")
    await kubectl("patch", "pod", "one", "--type=json", '-p=[{"op":"remove","path":"/metadata/labels/team"}]')
    await kubectl("annotate", "pod", "one", "dovetail.dev/queue=red")
    metadata = json.loads(await kubectl("get", "pod", "one", "-o", "json"))["metadata"]
    assert metadata["labels"] == {"app": "one"} and metadata["annotations"]["dovetail.dev/queue"] == "red"


async def test_a_node_is_cordoned_and_described(kubectl: Kubectl) -> None:
    name = f"node-{uuid.uuid4().hex[:12]}"
    node = {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}},
    }  # fmt: skip
    await kubectl("create", "-f-", text=json.dumps(node))
    await kubectl("cordon", name)
    assert "SchedulingDisabled" in await kubectl("get", "nodes", name)
    assert "nvidia.com/gpu:  8" in await kubectl("describe", "node", name)
    await kubectl("delete", "node", name)


async def test_waiting_for_a_condition_is_a_watch(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f-", text=MANIFEST)
    waiting = asyncio.create_task(kubectl("wait", "--for=condition=Example", "pod/one", "--timeout=60s"))
    patch = {"status": {"conditions": [{"type": "Example", "status": "True"}]}}
    await kubectl("patch", "pod", "one", "--subresource=status", f"-p={json.dumps(patch)}")
    assert await waiting == "pod/one condition met\n"
