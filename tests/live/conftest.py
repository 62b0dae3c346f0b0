# SPDX-License-Identifier: Apache-2.0
"""The scheduler on a cluster: the same tests on the playground and on the real API server, there under exactly the role
that deploy/ gives it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from dovetail.core.policy import Policy
from dovetail.kube.api.client import MERGE_PATCH, Client
from dovetail.kube.api.config import ClusterConfig, load_config
from dovetail.kube.api.errors import AlreadyExists, ApiError, NotFound
from dovetail.playground import Playground
from dovetail.scheduler.serve import SchedulerOptions, run
from tests.patience import PATIENCE_S
from tests.skipped_time import skipped_waits

Document = dict[str, Any]
_numbers = itertools.count(1)
NAMESPACE = "dovetail-system"
_LONGEST_PAUSE_S = 0.2
"""Between two questions: each has a price, on both sides."""


class Cluster:
    """An admin's view of a cluster, with short ways to make what tests need. Each one has its own namespace, and nodes
    that only its pods select."""

    def __init__(self, client: Client, scheduler_config: ClusterConfig, playground: Playground | None) -> None:
        self.client = client
        self.scheduler_config = scheduler_config
        self.playground = playground
        self.name = f"t{next(_numbers)}"
        self.namespace = self.name

    async def create(self, path: str, document: Document) -> Document:
        found = await self.client.request("POST", path, document, decode=dict[str, Any])
        assert found is not None
        return found

    async def get(self, path: str) -> Document:
        found = await self.client.request("GET", path, decode=dict[str, Any])
        assert found is not None
        return found

    async def namespace_exists(self, name: str) -> None:
        """Make a namespace, unless it is there."""
        with suppress(AlreadyExists):
            await self.create(
                "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            )

    async def node(self, name: str, *, gpus: int | str = 8, labels: dict[str, str] | None = None, **spec: Any) -> str:
        full = f"{self.name}-{name}"
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
        document = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": full,
                "labels": {"kubernetes.io/hostname": full, "test": self.name} | (labels or {}),
            },
            "spec": spec,
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
            },
        }
        await self.create("/api/v1/nodes", document)
        return full

    def pod_document(self, name: str, gpus: int = 1, **spec: Any) -> Document:
        annotations, labels = spec.pop("annotations", {}), spec.pop("labels", {})
        limits = {"cpu": "1", "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "annotations": annotations, "labels": labels},
            "spec": {
                "schedulerName": "dovetail",
                "nodeSelector": {"test": self.name},
                "containers": [{"name": "main", "image": "busybox", "resources": {"limits": limits}}],
            }
            | spec,
        }

    async def pod(self, name: str, gpus: int = 1, **spec: Any) -> Document:
        return await self.create(self.pods_path(), self.pod_document(name, gpus, **spec))

    async def pod_group(self, name: str, count: int, key: str = "") -> Document:
        spec: Document = {"schedulingPolicy": {"gang": {"minCount": count}}}
        if key:
            spec["schedulingConstraints"] = {"topology": [{"key": key}]}
        return await self.create(
            f"/apis/scheduling.k8s.io/v1beta1/namespaces/{self.namespace}/podgroups",
            {
                "apiVersion": "scheduling.k8s.io/v1beta1",
                "kind": "PodGroup",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": spec,
            },
        )

    async def group(self, name: str) -> Document:
        return await self.get(f"/apis/scheduling.k8s.io/v1beta1/namespaces/{self.namespace}/podgroups/{name}")

    def pods_path(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods" + (f"/{name}" if name else "")

    async def patch(self, path: str, body: Document) -> None:
        await self.client.request("PATCH", path, body, content_type=MERGE_PATCH)

    async def delete(self, path: str, *, at_once: bool = True) -> None:
        """Deletes; a pod on a node that no kubelet looks after goes only without grace."""
        with suppress(NotFound):
            await self.client.request("DELETE", path, {"gracePeriodSeconds": 0} if at_once else None)

    async def bound(self) -> dict[str, str]:
        """Node by pod, of all pods of this test that have one."""
        pods = (await self.get(self.pods_path()))["items"]
        return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in pods if p["spec"].get("nodeName")}

    async def condition(self, pod: str) -> Document:
        document = await self.get(self.pods_path(pod))
        found = [c for c in document.get("status", {}).get("conditions", []) if c["type"] == "PodScheduled"]
        return found[0] if found else {}

    async def reported(self, pod: str, start: str) -> str:
        """Wait until the pod's PodScheduled condition has a message that starts like this; the whole message."""
        found = await eventually(
            lambda: self.condition(pod), lambda condition: condition.get("message", "").startswith(start)
        )
        return str(found["message"])

    async def events(self, reason: str) -> list[Document]:
        items = (await self.get(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"))["items"]
        return [event for event in items if event["reason"] == reason]

    @asynccontextmanager
    async def scheduler(self, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
        """The scheduler in this process, under its own credentials; ended at the end of the block."""
        settings: dict[str, Any] = {"leader_elect": False, "listen": "", "lease_namespace": NAMESPACE} | options
        settings.setdefault("policy", Policy(attempts_per_step=64))
        task = asyncio.create_task(run(self.scheduler_config, SchedulerOptions(**settings)))
        try:
            yield task
        finally:
            if task.done() and not task.cancelled():
                logging.getLogger("tests.live").error("the scheduler ended by itself", exc_info=task.exception())
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def clean_up(self) -> None:
        for pod in (await self.get(self.pods_path()))["items"]:
            await self.delete(self.pods_path(pod["metadata"]["name"]))
        for node in (await self.get(f"/api/v1/nodes?labelSelector=test={self.name}"))["items"]:
            await self.delete(f"/api/v1/nodes/{node['metadata']['name']}")


async def eventually(question: Callable[[], Any], wanted: Callable[[Any], bool], within_s: float = PATIENCE_S) -> Any:
    """Ask until the answer is as wanted, less often as time goes by; fails with the last answer."""
    answer, pause_s = None, 0.05
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while True:
                with suppress(ApiError):
                    answer = await question()
                    if wanted(answer):
                        return answer
                await asyncio.sleep(pause_s)
                pause_s = min(1.2 * pause_s, _LONGEST_PAUSE_S)
    raise AssertionError(f"not within {within_s:g} s; last answer: {answer}")


async def stays(question: Callable[[], Any], wanted: Callable[[Any], bool], for_s: float = 1.0) -> None:
    """The answer is as wanted all this time."""
    deadline = asyncio.get_running_loop().time() + for_s
    while asyncio.get_running_loop().time() < deadline:
        answer = await question()
        assert wanted(answer), answer
        await asyncio.sleep(_LONGEST_PAUSE_S)


@asynccontextmanager
async def only_user(plane: Any) -> AsyncIterator[Cluster]:
    """A plane that no other test uses, in its default namespace; the scheduler is its admin."""
    config = load_config(str(plane.kubeconfig))
    async with Client(config) as client:
        cluster = Cluster(client, config, None)
        cluster.namespace = "default"
        yield cluster


@pytest.fixture(params=["playground", pytest.param("plane", marks=pytest.mark.plane)])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    if request.param == "playground":
        async with skipped_waits():
            playground = Playground()
            config = ClusterConfig(await playground.start())
            async with _opened(config, config, playground) as cluster:
                yield cluster
            await playground.stop()
        return
    plane = request.getfixturevalue("deployed_plane")
    config = load_config(str(plane.kubeconfig))
    account = load_config(str(plane.service_account_kubeconfig(NAMESPACE, "dovetail-scheduler")))
    async with _opened(config, account, None) as cluster:
        yield cluster


@asynccontextmanager
async def _opened(
    config: ClusterConfig, scheduler_config: ClusterConfig, playground: Playground | None
) -> AsyncIterator[Cluster]:
    """A cluster with the namespace of a test."""
    async with Client(config) as client:
        cluster = Cluster(client, scheduler_config, playground)
        await cluster.create(
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": cluster.namespace, "labels": {"t": "x"}}},
        )
        if playground is None:
            await eventually(
                lambda: cluster.get(f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts/default"), bool
            )
        yield cluster
        await cluster.clean_up()


@pytest.fixture(scope="session")
def deployed_plane(plane: Any) -> Any:
    """The real plane with deploy/ applied, as users apply it, but for the API of views.

    Nobody serves that here, and with an API that does not answer no namespace ever ends: kube-controller-manager tries
    again and again, with a hundred requests for each.
    """
    plane.kubectl("apply", "-k", "deploy/crds")
    plane.kubectl("apply", "-k", "deploy")
    plane.request("DELETE", "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.views.dovetail.dev")
    return plane
